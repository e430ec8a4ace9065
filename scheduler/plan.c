#include "scheduler/plan.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "scheduler/plan_search.h"

#define EFFORT 1500000000u

const struct plan_pair *plan_pair(const struct plan_graph *g, size_t from, size_t to)
{
    size_t low = g->pair_at[from], high = g->pair_at[from + 1];
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (g->pairs[mid].to < to)
            low = mid + 1;
        else
            high = mid;
    }
    return low < g->pair_at[from + 1] && g->pairs[low].to == to ? &g->pairs[low] : NULL;
}

void plan_measure(const struct plan_graph *g, const struct plan_cut *cuts, size_t count, double *bottleneck, double *sum)
{
    *bottleneck = *sum = 0;
    for (size_t i = 0; i < count; i++) {
        double x = plan_load(g, cuts[i].class_, cuts[i].from, plan_pair(g, cuts[i].from, cuts[i].to), i ? cuts[i - 1].class_ : PLAN_NOBODY,
                             i + 1 < count ? cuts[i + 1].class_ : PLAN_NOBODY) /
                   cuts[i].replicas;
        *sum += x;
        if (x > *bottleneck)
            *bottleneck = x;
    }
}

double plan_value(const struct plan_graph *g, double bottleneck, double sum)
{
    if (g->inst->objective == PLAN_THROUGHPUT)
        return bottleneck;
    return sum + (g->inst->micro_batches ? (double)(g->inst->micro_batches - 1) : 0) * bottleneck;
}

double plan_floor(const struct plan_graph *g)
{
    const struct plan_instance *in = g->inst;
    double most = 0, work = 0;
    size_t copies = 1;
    for (size_t c = 0; in->replicas && c < g->class_count; c++)
        copies = g->classes[c].count > copies ? g->classes[c].count : copies;
    for (size_t v = 0; v < in->node_count; v++) {
        double least = INFINITY;
        for (size_t c = 0; c < g->class_count; c++)
            least = fmin(least, in->nodes[v].time_ms[g->classes[c].kind]);
        most = fmax(most, least / (double)copies);
        work += least;
    }
    return fmax(most, work / (double)in->device_count); /* even where each node ran on its best device */
}

static void stage_free(struct plan_stage *s)
{
    mem_free(s->devices);
    mem_free(s->nodes);
}

void plan_release(struct plan *p)
{
    for (size_t i = 0; i < p->stage_count; i++)
        stage_free(&p->stages[i]);
    mem_free(p->stages);
    *p = (struct plan){.stages = NULL};
}

static int between(const struct plan_graph *g, const struct plan_cut *c, size_t node)
{
    size_t lump = g->lump_of[node];
    return plan_bit(g->ideal + c->to * g->words, lump) && !plan_bit(g->ideal + c->from * g->words, lump);
}

static enum status make_stages(const struct plan_graph *g, const struct plan_found *f, struct plan *out, struct err *e)
{
    size_t *used = mem_array(g->class_count, sizeof *used);
    out->stages = mem_array(f->count, sizeof *out->stages);
    if (!used || !out->stages) {
        mem_free(used);
        return err_nomem(e, "a plan");
    }
    for (size_t i = 0; i < f->count; i++) {
        const struct plan_cut *c = &f->cuts[i];
        struct plan_stage *s = &out->stages[out->stage_count++];
        s->devices = mem_array(c->replicas, sizeof *s->devices);
        s->nodes = mem_array(g->inst->node_count, sizeof *s->nodes);
        if (!s->devices || !s->nodes) {
            mem_free(used);
            return err_nomem(e, "a plan");
        }
        for (uint32_t r = 0; r < c->replicas; r++)
            s->devices[s->device_count++] = g->classes[c->class_].devices[used[c->class_]++];
        for (size_t v = 0; v < g->inst->node_count; v++)
            if (between(g, c, v))
                s->nodes[s->node_count++] = v;
        uint32_t before = i ? c[-1].class_ : PLAN_NOBODY, behind = i + 1 < f->count ? c[1].class_ : PLAN_NOBODY;
        const struct plan_pair *pair = plan_pair(g, c->from, c->to);
        plan_load_parts(g, c->class_, c->from, pair, before, behind, &s->compute_ms, &s->in_ms, &s->out_ms);
        s->load_ms = plan_load(g, c->class_, c->from, pair, before, behind) / c->replicas;
    }
    mem_free(used);
    return ST_OK;
}

/* By prices, where states alone did not come to an end: the better plan, the better bound. */
static void better(struct plan_graph *g, uint64_t effort, struct plan_found *f)
{
    struct plan_found p = {.cuts = plan_take(&g->arena, g->inst->device_count, sizeof *p.cuts)};
    if (!p.cuts)
        return;
    plan_priced(g, effort, &p);
    if (!p.count)
        return;
    if (g->inst->replicas) /* prices know of none */
        p.bound = plan_value(g, plan_floor(g), 0);
    double bound = f->count && f->bound > p.bound ? f->bound : p.bound;
    if (!f->count || plan_value(g, p.bottleneck, p.sum) < plan_value(g, f->bottleneck, f->sum))
        *f = p;
    f->bound = bound;
}

enum status plan_make(const struct plan_instance *in, struct plan *out, struct err *e)
{
    struct plan_graph g;
    *out = (struct plan){.stages = NULL};
    TRY(plan_graph_init(&g, in, e));
    uint64_t effort = in->effort ? in->effort : EFFORT;
    struct plan_found f = {.cuts = plan_take(&g.arena, in->device_count, sizeof *f.cuts)};
    size_t states = in->by_prices ? 0 : plan_states(&g, effort);
    if (f.cuts && states)
        plan_exact(&g, states, effort, &f);
    if (f.cuts && (!states || f.exhausted))
        better(&g, effort, &f);
    enum status st = ST_OK;
    if (g.arena.failed)
        st = err_nomem(e, "a plan");
    else if (!f.count)
        st = err_set(e, ST_USER, states ? "the devices together have not enough memory for the model"
                                        : "no plan was found: the devices together have hardly enough memory for the model");
    if (st == ST_OK)
        st = make_stages(&g, &f, out, e);
    if (st == ST_OK) {
        out->bottleneck_ms = f.bottleneck;
        out->sum_ms = f.sum;
        out->value_ms = plan_value(&g, f.bottleneck, f.sum);
        out->bound_ms = g.cut_short ? plan_value(&g, plan_floor(&g), 0) : f.bound;
        if (out->bound_ms > out->value_ms)
            out->bound_ms = out->value_ms;
        out->gap = out->value_ms > 0 ? (out->value_ms - out->bound_ms) / out->value_ms : 0;
        out->ideals = g.ideals;
        out->states = states;
        out->effort = g.effort;
    } else {
        plan_release(out);
    }
    plan_graph_release(&g);
    return st;
}

/* For comparison ------------------------------------------------------------------------------------------------------------------- */

static uint32_t class_of(const struct plan_graph *g, size_t device)
{
    for (uint32_t c = 0;; c++)
        for (size_t i = 0; i < g->classes[c].count; i++)
            if (g->classes[c].devices[i] == device)
                return c;
}

/* best[b][a][i]: least largest load of plans that end at ideal i with device a, where b follows (n: nobody). */
double plan_fixed_order(const struct plan_instance *in, struct err *e)
{
    struct plan_graph g;
    if (plan_graph_init(&g, in, e) != ST_OK)
        return INFINITY;
    size_t n = in->device_count, m = g.ideals, last = m - 1;
    if (g.hop && (double)n * (double)n * (double)n * (double)g.pair_at[m] > 2e9) { /* too much for what is only beside */
        plan_graph_release(&g);
        return INFINITY;
    }
    double *best = plan_take(&g.arena, (n + 1) * n * m, sizeof *best), *sum = plan_take(&g.arena, (n + 1) * n * m, sizeof *sum), value = INFINITY;
    size_t nexts = g.hop ? n + 1 : 1; /* with one kind of link it does not matter who follows */
    for (size_t i = 0; best && sum && i < nexts * n * m; i++)
        best[i] = INFINITY;
    for (size_t a = 0; best && sum && a < n; a++)
        for (size_t before = 0; before <= a; before++) { /* before == a: nobody */
            if (!g.hop && before < a && before + 1 < a)
                continue; /* rows of earlier devices are carried along below */
            for (size_t b = g.hop ? a + 1 : n; b <= n; b++)
                for (size_t j = 0; j < last; j++) {
                    size_t from = ((g.hop ? a : 0) * n + before) * m + j;
                    double so_far = before == a ? (j ? INFINITY : 0) : best[from], sums = before == a ? 0 : sum[from];
                    if (so_far == INFINITY)
                        continue;
                    for (size_t i = g.pair_at[j]; i < g.pair_at[j + 1]; i++) {
                        if (g.hop && (g.pairs[i].to == last) != (b == n))
                            continue;
                        double x = plan_load(&g, class_of(&g, a), j, &g.pairs[i], before == a ? PLAN_NOBODY : class_of(&g, before),
                                             b == n ? PLAN_NOBODY : class_of(&g, b));
                        double *to = &best[((g.hop ? b : 0) * n + a) * m + g.pairs[i].to];
                        if (fmax(so_far, x) < *to) {
                            *to = fmax(so_far, x);
                            sum[to - best] = sums + x;
                        }
                    }
                }
            if (!g.hop && before == a && a) /* a may stay unused */
                for (size_t j = 0; j < m; j++)
                    if (best[(a - 1) * m + j] < best[a * m + j]) {
                        best[a * m + j] = best[(a - 1) * m + j];
                        sum[a * m + j] = sum[(a - 1) * m + j];
                    }
        }
    for (size_t a = 0; best && sum && a < n; a++) {
        size_t at = ((g.hop ? n : 0) * n + a) * m + last;
        if (best[at] < INFINITY)
            value = fmin(value, plan_value(&g, best[at], sum[at]));
    }
    if (g.arena.failed)
        err_nomem(e, "a plan");
    plan_graph_release(&g);
    return value;
}

/* Lumps in topological order, as many for each device as for the next. */
double plan_even_split(const struct plan_instance *in, struct err *e)
{
    struct plan_graph g;
    if (plan_graph_init(&g, in, e) != ST_OK)
        return INFINITY;
    size_t n = in->device_count < g.lumps ? in->device_count : g.lumps, from = 0;
    double most = 0, sum = 0;
    struct plan_cut *cuts = plan_take(&g.arena, n, sizeof *cuts);
    for (size_t d = 0; cuts && d < n && most < INFINITY; d++) {
        size_t want = g.lumps * (d + 1) / n, to = from; /* the first ideal of that size that holds the last one */
        for (size_t i = from + 1; i < g.ideals && to == from; i++) {
            size_t size = 0;
            for (size_t w = 0; w < g.words; w++)
                size += (size_t)__builtin_popcountll(g.ideal[i * g.words + w]);
            if (size == want && plan_pair(&g, from, i))
                to = i;
        }
        if (to == from) {
            most = INFINITY;
            break;
        }
        cuts[d] = (struct plan_cut){.class_ = class_of(&g, d), .replicas = 1, .from = from, .to = to};
        from = to;
    }
    if (cuts && most < INFINITY)
        plan_measure(&g, cuts, n, &most, &sum);
    double value = cuts && most < INFINITY ? plan_value(&g, most, sum) : INFINITY;
    plan_graph_release(&g);
    return value;
}
