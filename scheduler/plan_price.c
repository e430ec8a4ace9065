/* Where there are too many states. For a bound T on the load, an arc (class, ideal, ideal) is a stage within T. A plan is a path from the empty ideal to the whole graph that
   uses no class more often than it has devices. Let a use of class c cost y_c: then no plan is cheaper than the sum of all prices, so where the cheapest path,
   which may use a class as often as it likes, costs more than all devices together, there is no plan within T (Lagrange relaxation). Prices rise
   where a path uses more devices than there are (subgradients). The same prices lead a beam search to plans: at each ideal it keeps the partial plans whose
   devices were cheapest. Last, windows of some neighbouring stages are searched anew with the devices that stand idle. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "scheduler/plan_search.h"

#define CLOSE 1e-9
#define ROUNDS 400            /* of prices, for one T */
#define BEAM 48               /* partial plans kept at an ideal */

struct arc {
    uint32_t to, class_;
    size_t pair;
    double load;              /* at least: over the best links */
};

struct partial {              /* a plan up to an ideal; its last stage is counted without what follows */
    double cost;
    struct partial *before;
    const struct plan_pair *pair;
    uint32_t class_, from;
};

struct prices {
    struct plan_graph *g;
    double *y, *best_y;       /* by class; all devices together cost 1 */
    struct arc *arcs;
    size_t *arc_at, arc_count, arc_cap;
    double *cost;             /* by ideal */
    size_t *via;              /* arc that leads there */
    uint32_t *uses;           /* by class */
    struct partial *beams;    /* [ideals][BEAM] */
    size_t *kept, *dearest;
    double *least_in, *least_out; /* unlike links: [class][ideal] */
    double limit;
    uint64_t effort, spent;
};

/* The least that a stage costs, whoever its neighbours are. */
static double least_load(const struct prices *s, uint32_t c, size_t j, const struct plan_pair *p)
{
    const struct plan_graph *g = s->g;
    if (!g->hop)
        return plan_load(g, c, j, p, PLAN_NOBODY, PLAN_NOBODY);
    double compute, in, out;
    plan_load_parts(g, c, j, p, PLAN_NOBODY, PLAN_NOBODY, &compute, &in, &out);
    in = s->least_in[c * g->ideals + j];
    out = s->least_out[c * g->ideals + p->to];
    return g->inst->overlap ? fmax(compute, fmax(in, out)) : compute + in + out;
}

static void make_least(struct prices *s)
{
    const struct plan_graph *g = s->g;
    size_t n = g->ideals;
    for (size_t c = 0; c < g->class_count; c++)
        for (size_t j = 0; j < n; j++) {
            double in = INFINITY, out = INFINITY;
            for (size_t o = 0; o < g->class_count; o++) {
                if (o == c && g->classes[c].count < 2)
                    continue;
                in = fmin(in, g->hop[(o * g->class_count + c) * n + j]);
                out = fmin(out, g->hop[(c * g->class_count + o) * n + j]);
            }
            s->least_in[c * n + j] = g->classes[c].free_link || j == 0 || in == INFINITY ? 0 : in;
            s->least_out[c * n + j] = g->classes[c].free_link || j == n - 1 || out == INFINITY ? 0 : out;
        }
    s->spent += g->class_count * g->class_count * n * 4;
}

/* All stages within the limit. */
static void make_arcs(struct prices *s)
{
    const struct plan_graph *g = s->g;
    s->arc_count = 0;
    for (size_t j = 0; j < g->ideals; j++) {
        s->arc_at[j] = s->arc_count;
        for (size_t i = g->pair_at[j]; i < g->pair_at[j + 1]; i++)
            for (uint32_t c = 0; c < g->class_count; c++) {
                double load = least_load(s, c, j, &g->pairs[i]);
                if (load > s->limit)
                    continue;
                BUG_IF(s->arc_count == s->arc_cap, "more stages than pairs of ideals and classes");
                s->arcs[s->arc_count++] = (struct arc){.to = g->pairs[i].to, .class_ = c, .pair = i, .load = load};
            }
        s->spent += (g->pair_at[j + 1] - g->pair_at[j]) * g->class_count * 6;
    }
    s->arc_at[g->ideals] = s->arc_count;
}

/* Cheapest path: prices, and weight times the loads. INFINITY: there is none. */
static double cheapest(struct prices *s, double weight)
{
    size_t n = s->g->ideals;
    for (size_t i = 1; i < n; i++)
        s->cost[i] = INFINITY;
    s->cost[0] = 0;
    for (size_t j = 0; j < n; j++) {
        if (s->cost[j] == INFINITY)
            continue;
        for (size_t a = s->arc_at[j]; a < s->arc_at[j + 1]; a++) {
            double c = s->cost[j] + s->y[s->arcs[a].class_] + weight * s->arcs[a].load;
            if (c < s->cost[s->arcs[a].to]) {
                s->cost[s->arcs[a].to] = c;
                s->via[s->arcs[a].to] = a;
            }
        }
    }
    s->spent += s->arc_count * 3;
    return s->cost[n - 1];
}

static size_t arc_begin(const struct prices *s, size_t a)
{
    size_t low = 0, high = s->g->ideals;
    while (low + 1 < high) {
        size_t mid = (low + high) / 2;
        if (s->arc_at[mid] <= a)
            low = mid;
        else
            high = mid;
    }
    return low;
}

static void count_uses(struct prices *s)
{
    memset(s->uses, 0, s->g->class_count * sizeof *s->uses);
    for (size_t at = s->g->ideals - 1; at;) {
        size_t a = s->via[at];
        s->uses[s->arcs[a].class_]++;
        at = arc_begin(s, a);
    }
}

/* The largest found of: cheapest path - all devices. Above 0 (weight 0): no plan is within the limit. The prices that gave it stay. */
static double dual(struct prices *s, double weight, double enough)
{
    const struct plan_graph *g = s->g;
    size_t c = g->class_count;
    double best = -INFINITY, scale = 1;
    for (size_t i = 0; i < c; i++)
        s->y[i] = s->best_y[i];
    for (int round = 0, stale = 0; round < ROUNDS && s->spent < s->effort; round++) {
        double path = cheapest(s, weight), all = 0, over = 0;
        if (path == INFINITY)
            return INFINITY;
        for (size_t i = 0; i < c; i++)
            all += s->y[i] * (double)g->classes[i].count;
        if (path - all > best) {
            best = path - all;
            memcpy(s->best_y, s->y, c * sizeof *s->y);
            stale = 0;
        } else if (++stale >= 12) {
            scale /= 2;
            stale = 0;
            memcpy(s->y, s->best_y, c * sizeof *s->y);
            if (scale < 1e-3)
                break;
            cheapest(s, weight);
        }
        if (best > enough)
            break;
        count_uses(s);
        for (size_t i = 0; i < c; i++) {
            double more = (double)s->uses[i] - (double)g->classes[i].count;
            if (more > 0 || s->y[i] > 0)
                over += more * more;
        }
        if (over == 0)
            break;
        double target = weight > 0 ? 0.02 * fabs(best) : 0.05, step = scale * target / over;
        for (size_t i = 0; i < c; i++) {
            s->y[i] += step * ((double)s->uses[i] - (double)g->classes[i].count);
            if (s->y[i] < 0)
                s->y[i] = 0;
        }
        if (weight == 0) { /* only their proportions matter */
            double sum = 0;
            for (size_t i = 0; i < c; i++)
                sum += s->y[i] * (double)g->classes[i].count;
            for (size_t i = 0; i < c && sum > 0; i++)
                s->y[i] /= sum;
        }
    }
    return best;
}

static void even_prices(struct prices *s)
{
    for (size_t i = 0; i < s->g->class_count; i++)
        s->best_y[i] = 1.0 / (double)s->g->inst->device_count;
}

static uint32_t before_of(const struct partial *p)
{
    return p->before && p->before->before ? p->before->class_ : PLAN_NOBODY;
}

/* Does its last stage stay within the limit with this one behind it? */
static int holds(const struct prices *s, const struct partial *p, uint32_t behind)
{
    return !p->before || plan_load(s->g, p->class_, p->from, p->pair, before_of(p), behind) <= s->limit;
}

/* By class, for this partial plan: how often it is used (in `uses`), UINT32_MAX where it cannot follow. */
static void see_uses(struct prices *s, const struct partial *p)
{
    const struct plan_graph *g = s->g;
    memset(s->uses, 0, g->class_count * sizeof *s->uses);
    for (const struct partial *q = p; q->before; q = q->before)
        s->uses[q->class_]++;
    int same = g->hop || !p->before ? -1 : holds(s, p, 0); /* with one kind of link it does not matter who follows */
    for (uint32_t c = 0; c < g->class_count; c++)
        if (s->uses[c] >= g->classes[c].count || !(same < 0 ? holds(s, p, c) : same))
            s->uses[c] = UINT32_MAX;
    s->spent += g->class_count * 8;
}

/* Along the prices, and weight times the loads; over the arcs made for the limit. 1: a plan within it. */
static int beam(struct prices *s, double weight, struct plan_found *f)
{
    struct plan_graph *g = s->g;
    size_t n = g->ideals;
    memset(s->kept, 0, n * sizeof *s->kept);
    s->kept[0] = 1;
    s->beams[0] = (struct partial){.cost = 0};
    for (size_t j = 0; j + 1 < n; j++)
        for (size_t k = 0; k < s->kept[j]; k++) {
            struct partial *p = &s->beams[j * BEAM + k];
            see_uses(s, p);
            s->spent += (s->arc_at[j + 1] - s->arc_at[j]) * 8;
            for (size_t a = s->arc_at[j]; a < s->arc_at[j + 1]; a++) {
                uint32_t c = s->arcs[a].class_;
                if (s->uses[c] == UINT32_MAX)
                    continue;
                size_t to = s->arcs[a].to, count = s->kept[to], worst = 0;
                double cost = p->cost + s->y[c] + 1e-9 + weight * s->arcs[a].load;
                struct partial *row = s->beams + to * BEAM;
                if (count == BEAM) { /* the dearest makes room */
                    worst = s->dearest[to];
                    if (row[worst].cost <= cost)
                        continue;
                }
                struct partial more = {.cost = cost, .before = p, .pair = &g->pairs[s->arcs[a].pair], .class_ = c, .from = (uint32_t)j};
                if (to == n - 1 && !holds(s, &more, PLAN_NOBODY))
                    continue;
                if (count < BEAM)
                    worst = s->kept[to]++;
                row[worst] = more;
                if (s->kept[to] == BEAM) {
                    s->dearest[to] = 0;
                    for (size_t w = 1; w < BEAM; w++)
                        if (row[w].cost > row[s->dearest[to]].cost)
                            s->dearest[to] = w;
                    s->spent += BEAM;
                }
            }
        }
    if (!s->kept[n - 1])
        return 0;
    const struct partial *best = &s->beams[(n - 1) * BEAM];
    for (size_t k = 1; k < s->kept[n - 1]; k++)
        best = s->beams[(n - 1) * BEAM + k].cost < best->cost ? &s->beams[(n - 1) * BEAM + k] : best;
    f->count = 0;
    for (const struct partial *p = best; p->before; p = p->before)
        f->count++;
    size_t at = f->count;
    for (const struct partial *p = best; p->before; p = p->before)
        f->cuts[--at] = (struct plan_cut){.class_ = p->class_, .replicas = 1, .from = p->from, .to = p->pair->to};
    plan_measure(g, f->cuts, f->count, &f->bottleneck, &f->sum);
    return 1;
}

static int prices_init(struct prices *s)
{
    struct plan_arena *a = &s->g->arena;
    size_t n = s->g->ideals, c = s->g->class_count;
    s->y = plan_take(a, c, sizeof *s->y);
    s->best_y = plan_take(a, c, sizeof *s->best_y);
    s->arc_cap = s->g->pair_at[n] * c;
    s->arcs = plan_take(a, s->arc_cap + 1, sizeof *s->arcs);
    s->arc_at = plan_take(a, n + 1, sizeof *s->arc_at);
    s->cost = plan_take(a, n, sizeof *s->cost);
    s->via = plan_take(a, n, sizeof *s->via);
    s->uses = plan_take(a, c, sizeof *s->uses);
    s->beams = plan_take(a, n * BEAM, sizeof *s->beams);
    s->kept = plan_take(a, n, sizeof *s->kept);
    s->dearest = plan_take(a, n, sizeof *s->dearest);
    if (s->g->hop) {
        s->least_in = plan_take(a, c * n, sizeof *s->least_in);
        s->least_out = plan_take(a, c * n, sizeof *s->least_out);
    }
    if (s->g->hop && !a->failed)
        make_least(s);
    return !a->failed;
}

/* The smallest load that a stage can have and that is not below T: no plan lies between. */
static double next_load(const struct prices *s, double t)
{
    const struct plan_graph *g = s->g;
    double next = INFINITY;
    for (size_t j = 0; j < g->ideals; j++)
        for (size_t i = g->pair_at[j]; i < g->pair_at[j + 1]; i++)
            for (uint32_t c = 0; c < g->class_count; c++) {
                double load = least_load(s, c, j, &g->pairs[i]);
                if (load >= t && load < next)
                    next = load;
            }
    return next;
}

static int try_limit(struct prices *s, double limit, struct plan_found *f, struct plan_found *best)
{
    s->limit = limit;
    if (!beam(s, 0, f) || f->bottleneck >= best->bottleneck)
        return 0;
    memcpy(best->cuts, f->cuts, f->count * sizeof *f->cuts);
    best->count = f->count;
    best->bottleneck = f->bottleneck;
    best->sum = f->sum;
    return 1;
}

/* Prices are stirred a little, and the beam goes along them again, just below what was found; as long as effort is left. */
static void stir(struct prices *s, struct plan_found *now, struct plan_found *best, double lo)
{
    uint64_t state = 88172645463325252u;
    double step = 0.01;
    for (int round = 0, failed = 0; s->spent < s->effort && best->bottleneck > lo * (1 + 1e-4); round++) {
        if (round == 0 || failed == 0) {
            s->limit = fmax(best->bottleneck * (1 - step), lo * (1 + 1e-6));
            make_arcs(s);
            dual(s, 0, 1e-9);
        }
        for (size_t i = 0; i < s->g->class_count; i++) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17; /* xorshift64 */
            s->y[i] = s->best_y[i] * (0.6 + 0.8 * (double)(state >> 11) / 9007199254740992.0);
        }
        if (try_limit(s, s->limit, now, best)) {
            failed = 0;
        } else if (++failed == 8) {
            if ((step /= 2) < 2e-4)
                step = 0.01;
            failed = 0;
        }
    }
}

/* Largest load: [lo, best->bottleneck] is narrowed from both ends. */
static void narrow(struct prices *s, struct plan_found *now, struct plan_found *best, double *lo)
{
    *lo = plan_floor(s->g);
    even_prices(s);
    memcpy(s->y, s->best_y, s->g->class_count * sizeof *s->y);
    s->limit = DBL_MAX;
    make_arcs(s);
    if (!try_limit(s, DBL_MAX, now, best))
        return;
    double above = best->bottleneck, below = *lo; /* between: not known */
    for (int round = 0; round < 40 && above - below > 1e-4 * above && s->spent < s->effort; round++) {
        double mid = below + (above - below) / 2;
        s->limit = mid;
        make_arcs(s);
        double d = dual(s, 0, 1e-9);
        if (d > 1e-9) {
            below = *lo = mid;
            continue;
        }
        memcpy(s->y, s->best_y, s->g->class_count * sizeof *s->y);
        if (try_limit(s, mid, now, best))
            above = best->bottleneck;
        else
            above = mid; /* neither proved nor found: look lower for the bound first */
    }
    /* from the bound upwards: the first limit for which the beam finds something */
    double step = (best->bottleneck - *lo) / 2;
    for (int round = 0; round < 24 && step > 1e-4 * best->bottleneck && s->spent < s->effort; round++) {
        double at = best->bottleneck - step;
        if (at <= *lo)
            at = *lo * (1 + 1e-6);
        s->limit = at;
        make_arcs(s);
        dual(s, 0, 1e-9);
        memcpy(s->y, s->best_y, s->g->class_count * sizeof *s->y);
        if (try_limit(s, at, now, best))
            step = (best->bottleneck - *lo) / 2;
        else
            step /= 2;
    }
    if (s->g->inst->objective == PLAN_THROUGHPUT)
        stir(s, now, best, *lo);
    double next = next_load(s, *lo);
    if (isfinite(next))
        *lo = next;
    if (*lo > best->bottleneck * (1 - CLOSE))
        *lo = best->bottleneck;
}

static double least_sum(struct prices *s, double limit)
{
    s->limit = limit;
    make_arcs(s);
    memset(s->best_y, 0, s->g->class_count * sizeof *s->best_y);
    double sum = dual(s, 1, INFINITY);
    memcpy(s->y, s->best_y, s->g->class_count * sizeof *s->y);
    return sum;
}

static void try_value(struct prices *s, struct plan_found *now, struct plan_found *best)
{
    if (!beam(s, 1, now) || plan_value(s->g, now->bottleneck, now->sum) >= plan_value(s->g, best->bottleneck, best->sum))
        return;
    memcpy(best->cuts, now->cuts, now->count * sizeof *now->cuts);
    best->count = now->count;
    best->bottleneck = now->bottleneck;
    best->sum = now->sum;
}

/* Latency: the least, over intervals of T, of the least sum within the upper end and (M - 1) times the lower one. Only as far up as a plan can win. */
static void latency(struct prices *s, struct plan_found *now, struct plan_found *best, double lo)
{
    enum { STEPS = 12 };
    struct plan_graph *g = s->g;
    double waits = g->inst->micro_batches ? (double)(g->inst->micro_batches - 1) : 0, bound = INFINITY;
    double least = least_sum(s, DBL_MAX);
    if (!isfinite(least) || least < 0)
        least = 0;
    s->limit = DBL_MAX;
    try_value(s, now, best);
    double value = plan_value(g, best->bottleneck, best->sum), most = waits > 0 ? (value - least) / waits : lo;
    for (int k = 0; k < STEPS && waits > 0 && most > lo; k++) {
        double from = lo + (most - lo) * k / STEPS, to = lo + (most - lo) * (k + 1) / STEPS;
        double sum = s->spent < s->effort ? least_sum(s, to) : least;
        s->limit = to;
        if (s->spent < s->effort && sum < INFINITY)
            try_value(s, now, best);
        bound = fmin(bound, fmax(sum, least) + waits * from);
    }
    if (waits == 0 || most <= lo)
        bound = least + waits * lo;
    best->bound = fmin(bound, plan_value(g, best->bottleneck, best->sum));
}

void plan_priced(struct plan_graph *g, uint64_t effort, struct plan_found *f)
{
    struct prices s = {.g = g, .effort = effort};
    struct plan_cut *cuts = plan_take(&g->arena, g->inst->device_count, sizeof *cuts);
    if (!cuts || !prices_init(&s))
        return;
    struct plan_found now = {.cuts = cuts};
    double lo = 0;
    f->bottleneck = INFINITY;
    f->exhausted = 1;
    if (g->inst->objective == PLAN_LATENCY)
        s.effort = effort / 2;
    narrow(&s, &now, f, &lo);
    s.effort = effort;
    if (f->count) {
        f->bound = lo;
        if (g->inst->objective == PLAN_LATENCY)
            latency(&s, &now, f, lo);
    }
    g->effort += s.spent;
}
