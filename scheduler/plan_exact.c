/* States count the devices of each class that are used. With one kind of link a state keeps the set of ideals that it can reach; with unlike links one such
   set for each class that stood last and each class that follows, for the load of a stage depends on both. A transition adds one stage. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "scheduler/plan_search.h"

#define MOST_STATES (1u << 22)
#define NO_LIMIT (DBL_MAX / 65536) /* times any number of replicas it is still below INFINITY */
#define MOST_GAPS 4096
#define CLOSE 1e-9             /* loads nearer than this are equal: sums of times in another order */

struct search {
    struct plan_graph *g;
    size_t states, words, sides; /* sides: sets of a state; 1, or last x following */
    size_t most_copies;
    size_t *stride;
    uint64_t *reach;           /* [states][sides][words] */
    uint64_t *allowed;         /* [class][copies][before][behind][ideal][words] */
    uint8_t *known;            /* the same without words */
    double *least;             /* latency: [states][sides][ideals] */
    double *loads;             /* [class][before][behind][pair] */
    size_t *ends;              /* [class][copies][ideal]: see first_beyond */
    double *rest;              /* latency: [before][class][ideal], the least that what is left can take when a stage of this class is next */
    double limit, most;        /* most: a larger sum is of no use */
    uint64_t effort, spent;
};

static size_t last_ideal(const struct search *s)
{
    return s->g->ideals - 1;
}

/* Sets of a state: which class stood last (nobody: before the first stage), which one follows (nobody: all is done). */
static size_t side(const struct search *s, size_t last, size_t next)
{
    return s->sides == 1 ? 0 : last * (s->g->class_count + 1) + next;
}

static uint64_t *reach_of(const struct search *s, size_t state, size_t last, size_t next)
{
    return s->reach + (state * s->sides + side(s, last, next)) * s->words;
}

static double *least_of(const struct search *s, size_t state, size_t last, size_t next)
{
    return s->least + (state * s->sides + side(s, last, next)) * s->g->ideals;
}

static size_t used(const struct search *s, size_t state, size_t c)
{
    return state / s->stride[c] % (s->g->classes[c].count + 1);
}

/* Loads of one replica, by pair. */
static const double *loads_of(const struct search *s, size_t c, size_t before, size_t behind)
{
    size_t k = s->g->class_count + 1, at = s->sides == 1 ? c : (c * k + before) * k + behind;
    return s->loads + at * s->g->pair_at[s->g->ideals];
}

static double load(const struct search *s, size_t c, size_t copies, const struct plan_pair *p, size_t before, size_t behind)
{
    return loads_of(s, c, before, behind)[p - s->g->pairs] / (double)copies;
}

static void make_loads(struct search *s)
{
    const struct plan_graph *g = s->g;
    size_t nobody = g->class_count;
    for (size_t c = 0; c < nobody; c++)
        for (size_t before = s->sides == 1 ? nobody : 0; before <= nobody; before++)
            for (size_t behind = s->sides == 1 ? nobody : 0; behind <= nobody; behind++) {
                double *to = (double *)(uintptr_t)loads_of(s, c, before, behind);
                for (size_t j = 0; j + 1 < g->ideals; j++)
                    for (size_t i = g->pair_at[j]; i < g->pair_at[j + 1]; i++)
                        to[i] = plan_load(g, (uint32_t)c, j, &g->pairs[i], before == nobody ? PLAN_NOBODY : (uint32_t)before,
                                          behind == nobody ? PLAN_NOBODY : (uint32_t)behind);
                s->spent += g->pair_at[g->ideals] * 4;
            }
}

/* On a chain longer stages compute longer: the first pair from j, of those that there are, which is beyond the limit by computing alone. */
static size_t first_beyond(const struct search *s, size_t c, size_t copies, size_t j)
{
    const struct plan_graph *g = s->g;
    size_t low = g->pair_at[j], high = g->pair_at[j + 1];
    const double *time = g->time + g->classes[c].kind * g->ideals;
    if (g->ideals != g->lumps + 1)
        return high;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if ((time[g->pairs[mid].to] - time[j]) / (double)copies <= s->limit)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static size_t *ends_of(const struct search *s, size_t c, size_t copies)
{
    return s->ends + (c * s->most_copies + copies - 1) * s->g->ideals;
}

static size_t pairs_end(const struct search *s, size_t c, size_t copies, size_t j)
{
    return ends_of(s, c, copies)[j];
}

static void set_limit(struct search *s, double limit)
{
    s->limit = limit;
    for (size_t c = 0; c < s->g->class_count; c++)
        for (size_t copies = 1; copies <= s->most_copies; copies++)
            for (size_t j = 0; j < last_ideal(s); j++)
                ends_of(s, c, copies)[j] = first_beyond(s, c, copies, j);
    s->spent += s->g->class_count * s->most_copies * s->g->ideals * 8;
}

/* With unlike links the last stage is followed by nobody, the others by somebody. */
static int ends_right(const struct search *s, size_t to, size_t behind)
{
    return s->sides == 1 || (to == last_ideal(s)) == (behind == s->g->class_count);
}

/* Ideals that a stage from j may end at within the limit. */
static const uint64_t *allowed(struct search *s, size_t c, size_t copies, size_t before, size_t behind, size_t j)
{
    const struct plan_graph *g = s->g;
    size_t k = s->sides == 1 ? 1 : g->class_count + 1;
    size_t at = ((((c * s->most_copies + copies - 1) * k + (k == 1 ? 0 : before)) * k + (k == 1 ? 0 : behind)) * g->ideals + j);
    uint64_t *set = s->allowed + at * s->words;
    if (s->known[at])
        return set;
    s->known[at] = 1;
    memset(set, 0, s->words * sizeof *set);
    const double *loads = loads_of(s, c, before, behind);
    size_t end = pairs_end(s, c, copies, j);
    s->spent += 8 + 2 * (end - g->pair_at[j]);
    for (size_t i = g->pair_at[j]; i < end; i++)
        if (loads[i] <= s->limit * (double)copies && ends_right(s, g->pairs[i].to, behind))
            plan_set(set, g->pairs[i].to);
    return set;
}

/* Calls fn for each stage that can follow in this state: class, copies, who stood before it, who will stand behind it. 1: stop. */
static int each_stage(struct search *s, size_t state, int (*fn)(struct search *s, size_t state, size_t c, size_t copies, size_t before, size_t behind))
{
    const struct plan_graph *g = s->g;
    size_t nobody = g->class_count;
    for (size_t c = 0; c < g->class_count; c++) {
        size_t free_ones = g->classes[c].count - used(s, state, c);
        if (free_ones > s->most_copies)
            free_ones = s->most_copies;
        for (size_t copies = 1; copies <= free_ones; copies++)
            for (size_t before = s->sides == 1 ? nobody : 0; before <= nobody; before++) {
                if (s->sides > 1 && (before == nobody) != (state == 0))
                    continue;
                for (size_t behind = s->sides == 1 ? nobody : 0; behind <= nobody; behind++) {
                    if (s->sides > 1 && behind != nobody &&
                        used(s, state, behind) + (behind == c ? copies : 0) >= g->classes[behind].count)
                        continue;
                    if (fn(s, state, c, copies, before, behind))
                        return 1;
                }
            }
    }
    return 0;
}

static int spread(struct search *s, size_t state, size_t c, size_t copies, size_t before, size_t behind)
{
    const uint64_t *from = reach_of(s, state, before, c);
    uint64_t *to = reach_of(s, state + copies * s->stride[c], c, behind);
    for (size_t w = 0; w < s->words; w++)
        for (uint64_t bits = from[w]; bits; bits &= bits - 1) {
            size_t j = w * 64 + (size_t)__builtin_ctzll(bits);
            if (j >= last_ideal(s))
                continue;
            const uint64_t *more = allowed(s, c, copies, before, behind, j);
            for (size_t x = 0; x < s->words; x++)
                to[x] |= more[x];
            s->spent += s->words;
        }
    return plan_bit(to, last_ideal(s));
}

/* The state and side in which everything is done, and back from there. */
struct end {
    size_t state, last;
};

static int find_end(const struct search *s, struct end *end)
{
    size_t nobody = s->g->class_count;
    for (size_t state = 1; state < s->states; state++)
        for (size_t last = 0; last < (s->sides == 1 ? 1 : nobody); last++)
            if (plan_bit(reach_of(s, state, last, nobody), last_ideal(s))) {
                *end = (struct end){state, last};
                return 1;
            }
    return 0;
}

/* Before a stage that ends at `to` in this state: tries every stage that may have been the last; `ok` says whether it was. */
static int step_back(struct search *s, size_t *state, size_t *last, size_t *next, size_t *to, struct plan_cut *cut,
                     int (*ok)(struct search *s, size_t before_state, size_t before, size_t c, size_t copies, size_t behind, size_t j,
                               const struct plan_pair *p, size_t state))
{
    const struct plan_graph *g = s->g;
    size_t nobody = g->class_count;
    for (size_t c = s->sides == 1 ? 0 : *last; c < (s->sides == 1 ? nobody : *last + 1); c++)
        for (size_t copies = 1; copies <= used(s, *state, c) && copies <= s->most_copies; copies++) {
            size_t from = *state - copies * s->stride[c];
            for (size_t before = s->sides == 1 ? nobody : 0; before <= nobody; before++) {
                if (s->sides > 1 && (before == nobody) != (from == 0))
                    continue;
                for (size_t j = 0; j < *to; j++) {
                    const struct plan_pair *p = plan_pair(g, j, *to);
                    if (!p || !ok(s, from, before, c, copies, *next, j, p, *state))
                        continue;
                    *cut = (struct plan_cut){.class_ = (uint32_t)c, .replicas = (uint32_t)copies, .from = j, .to = *to};
                    *state = from;
                    *next = c;
                    *last = before;
                    *to = j;
                    return 1;
                }
            }
        }
    return 0;
}

static int reached(struct search *s, size_t from, size_t before, size_t c, size_t copies, size_t behind, size_t j, const struct plan_pair *p, size_t state)
{
    (void)state;
    return plan_bit(reach_of(s, from, before, c), j) && load(s, c, 1, p, before, behind) <= s->limit * (double)copies;
}

static int was_least(struct search *s, size_t from, size_t before, size_t c, size_t copies, size_t behind, size_t j, const struct plan_pair *p, size_t state)
{
    double x = load(s, c, copies, p, before, behind);
    return x <= s->limit && least_of(s, from, before, c)[j] + x == least_of(s, state, c, behind)[p->to];
}

static void walk_back(struct search *s, struct end end, struct plan_found *f,
                      int (*ok)(struct search *s, size_t before_state, size_t before, size_t c, size_t copies, size_t behind, size_t j,
                                const struct plan_pair *p, size_t state))
{
    size_t state = end.state, last = end.last, next = s->g->class_count, to = last_ideal(s), n = 0;
    while (to) {
        int found = step_back(s, &state, &last, &next, &to, &f->cuts[n++], ok);
        BUG_IF(!found, "a plan that was found cannot be followed back");
    }
    for (size_t i = 0; i < n / 2; i++) {
        struct plan_cut x = f->cuts[i];
        f->cuts[i] = f->cuts[n - 1 - i];
        f->cuts[n - 1 - i] = x;
    }
    f->count = n;
    plan_measure(s->g, f->cuts, n, &f->bottleneck, &f->sum);
}

static size_t known_count(const struct search *s)
{
    size_t c = s->g->class_count, k = s->sides == 1 ? 1 : c + 1;
    return c * s->most_copies * k * k * s->g->ideals;
}

/* Is there a plan of no larger load? */
static int within_limit(struct search *s, double limit, struct plan_found *f)
{
    size_t nobody = s->g->class_count;
    set_limit(s, limit);
    memset(s->known, 0, known_count(s));
    memset(s->reach, 0, s->states * s->sides * s->words * sizeof *s->reach);
    s->spent += s->states * s->sides;
    for (size_t c = 0; c < (s->sides == 1 ? 1 : nobody); c++)
        plan_set(reach_of(s, 0, nobody, c), 0);
    for (size_t state = 0; state < s->states; state++)
        if (each_stage(s, state, spread))
            break;
    struct end end;
    if (!find_end(s, &end))
        return 0;
    walk_back(s, end, f, reached);
    return 1;
}

/* Latency: the least sum of loads, none above the limit. What a beginning comes to is at least what it has and what the rest would take if a class could
   stand as often as it likes: a beginning beyond `most` is dropped. */
static double *rest_of(const struct search *s, size_t before, size_t c)
{
    return s->rest + (s->sides == 1 ? 0 : before * s->g->class_count + c) * s->g->ideals;
}

/* The stages of class c that may begin at ideal j, before what is known already of the ideals behind it. */
static double least_next(struct search *s, size_t before, size_t c, size_t j)
{
    const struct plan_graph *g = s->g;
    size_t nobody = g->class_count, most = g->classes[c].count < s->most_copies ? g->classes[c].count : s->most_copies;
    double least = INFINITY;
    for (size_t copies = 1; copies <= most; copies++)
        for (size_t behind = s->sides == 1 ? nobody : 0; behind <= nobody; behind++) {
            if (s->sides > 1 && behind == c && g->classes[c].count == 1)
                continue;
            const double *loads = loads_of(s, c, before, behind), *rest = s->sides == 1 || behind < nobody ? rest_of(s, c, behind) : NULL;
            size_t end = pairs_end(s, c, copies, j);
            s->spent += end - g->pair_at[j];
            for (size_t i = g->pair_at[j]; i < end; i++) {
                size_t to = g->pairs[i].to;
                if (loads[i] > s->limit * (double)copies || !ends_right(s, to, behind))
                    continue;
                double x = loads[i] / (double)copies + (to == last_ideal(s) ? 0 : rest[to]);
                if (x < least)
                    least = x;
            }
        }
    return least;
}

static void least_rest(struct search *s)
{
    size_t nobody = s->g->class_count;
    for (size_t j = s->g->ideals; j-- > 0;)
        if (s->sides == 1) {
            s->rest[j] = j == last_ideal(s) ? 0 : INFINITY;
            for (size_t c = 0; j < last_ideal(s) && c < nobody; c++)
                s->rest[j] = fmin(s->rest[j], least_next(s, nobody, c, j));
        } else {
            for (size_t before = 0; before <= nobody; before++)
                for (size_t c = 0; c < nobody; c++)
                    rest_of(s, before, c)[j] = j == last_ideal(s) ? 0 : least_next(s, before, c, j);
        }
}

static int relax(struct search *s, size_t state, size_t c, size_t copies, size_t before, size_t behind)
{
    const struct plan_graph *g = s->g;
    const double *from = least_of(s, state, before, c), *rest = rest_of(s, before, c), *loads = loads_of(s, c, before, behind);
    double *to = least_of(s, state + copies * s->stride[c], c, behind), most = s->limit * (double)copies;
    for (size_t j = 0; j < last_ideal(s); j++) {
        if (from[j] + rest[j] > s->most) /* INFINITY where it was not reached */
            continue;
        size_t end = pairs_end(s, c, copies, j);
        s->spent += 8 + end - g->pair_at[j];
        for (size_t i = g->pair_at[j]; i < end; i++) {
            const struct plan_pair *p = &g->pairs[i];
            double x = from[j] + loads[i] / (double)copies;
            if (x < to[p->to] && loads[i] <= most && ends_right(s, p->to, behind))
                to[p->to] = x;
        }
    }
    return s->spent > s->effort;
}

static int least_sum(struct search *s, double limit, struct plan_found *f)
{
    size_t nobody = s->g->class_count, n = s->states * s->sides * s->g->ideals;
    set_limit(s, limit);
    least_rest(s);
    for (size_t i = 0; i < n; i++)
        s->least[i] = INFINITY;
    s->spent += n;
    for (size_t c = 0; c < (s->sides == 1 ? 1 : nobody); c++)
        least_of(s, 0, nobody, c)[0] = 0;
    for (size_t state = 0; state < s->states; state++)
        if (each_stage(s, state, relax)) {
            f->exhausted = 1;
            return 0;
        }
    struct end best = {0, 0};
    double least = INFINITY;
    for (size_t state = 1; state < s->states; state++)
        for (size_t last = 0; last < (s->sides == 1 ? 1 : nobody); last++)
            if (least_of(s, state, last, nobody)[last_ideal(s)] < least) {
                least = least_of(s, state, last, nobody)[last_ideal(s)];
                best = (struct end){state, last};
            }
    if (least > s->most)
        return 0;
    walk_back(s, best, f, was_least);
    return 1;
}

/* Bisection: hi is what a plan has, below lo there is none. */
static void least_bottleneck(struct search *s, struct plan_found *f)
{
    double lo = plan_floor(s->g);
    if (!within_limit(s, NO_LIMIT, f))
        return;
    double hi = f->bottleneck;
    while (hi - lo > CLOSE * hi && s->spent <= s->effort) {
        double mid = lo + (hi - lo) / 2;
        if (within_limit(s, mid, f))
            hi = f->bottleneck;
        else
            lo = mid;
    }
    f->bound = hi - lo > CLOSE * hi ? lo : hi;
    f->exhausted = f->bound < hi;
}

/* Largest loads of which not everything is known: no plan in it has a smaller sum than this. */
struct gap {
    double low, high, sum;
};

struct gaps {
    struct gap *of;
    size_t count, cap;
};

static double least_in(const struct gap *a, double waits)
{
    return a->sum + waits * a->low;
}

static void add_gap(struct gaps *a, double low, double high, double sum)
{
    if (low < high && a->count < a->cap)
        a->of[a->count++] = (struct gap){low, high, sum};
}

/* Of M micro-batches. Let sum(T) be the least sum of loads of plans without a load above T; it falls as T grows, and the best plan is where sum(T) + (M - 1) T is least.
   What is not known yet are intervals of T, each with a bound on its sums from the interval to the right of it. The one with the least hope is asked in turn
   in its middle and just below its end: the plan found there (s, b) settles all from b to where it was asked. None better found settles the left part. */
static void least_latency(struct search *s, struct plan_found *f)
{
    struct plan_graph *g = s->g;
    double waits = g->inst->micro_batches ? (double)(g->inst->micro_batches - 1) : 0;
    struct plan_cut *mine = plan_take(&g->arena, g->inst->device_count, sizeof *mine);
    struct gaps open = {.of = plan_take(&g->arena, MOST_GAPS, sizeof *open.of), .cap = MOST_GAPS};
    struct plan_found now = {.cuts = mine};
    least_bottleneck(s, f);
    if (!mine || !open.of || !f->count)
        return;
    double floor = f->bound, best = plan_value(g, f->bottleneck, f->sum), hope;
    set_limit(s, NO_LIMIT);
    least_rest(s);
    double sum = INFINITY;
    for (size_t c = 0; c < (s->sides == 1 ? 1 : g->class_count); c++)
        sum = fmin(sum, rest_of(s, g->class_count, c)[0]);
    add_gap(&open, floor, NO_LIMIT, sum);
    f->exhausted = 0;
    for (int turn = 0; open.count; turn++) {
        size_t at = 0;
        for (size_t i = 1; i < open.count; i++)
            if (least_in(&open.of[i], waits) < least_in(&open.of[at], waits))
                at = i;
        struct gap a = open.of[at];
        hope = least_in(&a, waits);
        if (hope >= best * (1 - CLOSE))
            break;
        open.of[at] = open.of[--open.count];
        if (waits > 0 && a.high > (best - a.sum) / waits)
            a.high = (best - a.sum) / waits;
        double asked = turn == 0 ? fmin(a.high, a.low * 1.05) : turn % 2 == 1 || a.high == NO_LIMIT ? a.high : a.low + (a.high - a.low) / 2;
        s->most = best - waits * a.low;
        int found = least_sum(s, asked, &now);
        if (now.exhausted || open.count + 2 > open.cap) {
            f->exhausted = 1;
            f->bound = hope;
            return;
        }
        add_gap(&open, asked, a.high, a.sum);
        if (!found)
            continue;
        add_gap(&open, a.low, now.bottleneck * (1 - 1e-12), now.sum);
        double value = plan_value(g, now.bottleneck, now.sum);
        if (value < best) {
            best = value;
            memcpy(f->cuts, mine, now.count * sizeof *mine);
            f->count = now.count;
            f->bottleneck = now.bottleneck;
            f->sum = now.sum;
        }
    }
    f->bound = best;
}

size_t plan_states(const struct plan_graph *g, uint64_t effort)
{
    size_t states = 1, sides = g->hop ? (g->class_count + 1) * (g->class_count + 1) : 1, copies = 1;
    for (size_t c = 0; c < g->class_count; c++) {
        if (states > MOST_STATES / (g->classes[c].count + 1))
            return 0;
        states *= g->classes[c].count + 1;
        if (g->inst->replicas && g->classes[c].count > copies)
            copies = g->classes[c].count;
    }
    /* of one test: each state, each side twice, each ideal that it reaches */
    double words = (double)(g->ideals + 63) / 64;
    double one = (double)states * (double)sides * (double)g->class_count * (double)copies * (double)g->ideals * words / 8;
    double memory = (double)states * (double)sides * (g->inst->objective == PLAN_LATENCY ? (double)g->ideals : words) * 8;
    double loads = (double)g->class_count * (double)sides * (double)g->pair_at[g->ideals] * 8;
    double sets = (double)g->class_count * (double)copies * (double)sides * (double)g->ideals * words * 8;
    return one * 25 > (double)effort || memory > 512e6 || sets > 512e6 || loads > 512e6 ? 0 : states;
}

void plan_exact(struct plan_graph *g, size_t states, uint64_t effort, struct plan_found *f)
{
    struct plan_arena *a = &g->arena;
    size_t c = g->class_count;
    struct search s = {.g = g, .states = states, .words = (g->ideals + 63) / 64, .sides = g->hop ? (c + 1) * (c + 1) : 1, .most_copies = 1, .effort = effort};
    s.stride = plan_take(a, c, sizeof *s.stride);
    for (size_t i = 0, stride = 1; s.stride && i < c; i++) {
        s.stride[i] = stride;
        stride *= g->classes[i].count + 1;
        if (g->inst->replicas && g->classes[i].count > s.most_copies)
            s.most_copies = g->classes[i].count;
    }
    s.reach = plan_take(a, states * s.sides * s.words, sizeof *s.reach);
    s.known = plan_take(a, known_count(&s), 1);
    s.allowed = plan_take(a, known_count(&s) * s.words, sizeof *s.allowed);
    s.ends = plan_take(a, c * s.most_copies * g->ideals, sizeof *s.ends);
    s.loads = plan_take(a, c * s.sides * g->pair_at[g->ideals], sizeof *s.loads);
    if (g->inst->objective == PLAN_LATENCY) {
        s.rest = plan_take(a, g->hop ? (c + 1) * c * g->ideals : g->ideals, sizeof *s.rest);
        s.least = plan_take(a, states * s.sides * g->ideals, sizeof *s.least);
    }
    if (a->failed)
        return;
    make_loads(&s);
    if (g->inst->objective == PLAN_LATENCY)
        least_latency(&s, f);
    else
        least_bottleneck(&s, f);
    g->effort += s.spent;
}
