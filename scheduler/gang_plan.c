/* Who holds which segments: the workers' profiles as an instance for the planner. Segments are a chain, each worker is a device with the memory that its
   stage leaves for weights. Where workers have measured the links between them these are given to the planner, and those that nobody measured (of one
   host) cost nothing; where nobody measured any, none costs. Transfers go on beside computing. */
#include "scheduler/gang.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "scheduler/plan.h"

#define EFFORT 30000000u /* operations, about a hundredth of a second: 8 unlike workers and 100 segments take a third of it */
#define EFFORT_LINKS 150000000u /* with unlike links: a tenth to a quarter of a second */
#define LUMPS 96                /* so many is what that suffices for, with 8 unlike workers */

const struct profile *gang_profile(const struct worker *w, uint64_t model_key)
{
    for (const struct profile *p = w->profiles; p; p = p->next)
        if (p->model_key == model_key)
            return p;
    return NULL;
}

uint64_t gang_memory(const struct worker *w, const struct profile *p)
{
    if (!w->memory_bytes)
        return UINT64_MAX;
    return w->memory_bytes > p->fixed_bytes ? w->memory_bytes - p->fixed_bytes : 0;
}

static int link_to(const struct worker *a, const struct worker *b, struct sched_link *out)
{
    for (const struct profile *p = a->profiles; p; p = p->next) /* of whichever model; the newest first */
        for (size_t i = 0; i < p->link_count; i++)
            if (p->links[i].worker == b->id) {
                *out = p->links[i];
                return 1;
            }
    return 0;
}

int gang_link(const struct worker *a, const struct worker *b, struct sched_link *out)
{
    struct sched_link back;
    if (!link_to(a, b, out))
        return link_to(b, a, out);
    if (link_to(b, a, &back)) {
        out->bits_per_s = fmin(out->bits_per_s, back.bits_per_s);
        out->latency_ms = fmax(out->latency_ms, back.latency_ms);
    }
    return 1;
}

double gang_bottleneck(const struct gang *g)
{
    double most = 0;
    struct sched_link link;
    for (uint32_t i = 0; i < g->count; i++) {
        const struct gang_member *m = &g->members[i];
        const struct profile *p = m->worker ? gang_profile(m->worker, g->job->row.params.model_key) : NULL;
        double sum = 0;
        if (!p || p->count != g->segments)
            return INFINITY;
        for (uint32_t k = m->first; k < m->end; k++)
            sum += p->segments[k].time_ms;
        most = fmax(most, sum);
        if (i + 1 < g->count && g->members[i + 1].worker && gang_link(m->worker, g->members[i + 1].worker, &link))
            most = fmax(most, p->segments[m->end - 1].out_bytes * 8e3 / link.bits_per_s + link.latency_ms);
    }
    return most;
}

static int same_times(const struct profile *a, const struct profile *b)
{
    for (size_t i = 0; i < a->count; i++)
        if (a->segments[i].time_ms < b->segments[i].time_ms || a->segments[i].time_ms > b->segments[i].time_ms)
            return 0;
    return 1;
}

static void read_plan(const struct plan *p, struct worker *const *among, size_t segments, struct gang_division *out)
{
    *out = (struct gang_division){.segments = (uint32_t)segments, .bottleneck_ms = p->bottleneck_ms, .gap = p->gap};
    uint32_t at = 0;
    for (size_t i = 0; i < p->stage_count; i++) {
        const struct plan_stage *s = &p->stages[i];
        BUG_IF(s->device_count != 1 || !s->node_count || s->nodes[0] != at || s->nodes[s->node_count - 1] != at + s->node_count - 1,
               "stage %zu of a plan is no run of segments on one worker", i);
        out->members[out->count++] = (struct gang_member){.worker = among[s->devices[0]], .first = at, .end = at + (uint32_t)s->node_count, .load_ms = s->load_ms};
        at += (uint32_t)s->node_count;
    }
    BUG_IF(at != segments, "a plan leaves segments out");
}

/* The links between all pairs; 0: nobody measured any. */
static int read_links(struct worker *const *among, size_t count, struct plan_link *out)
{
    int any = 0;
    for (size_t a = 0; a < count; a++)
        for (size_t b = 0; b < count; b++) {
            struct sched_link link;
            out[a * count + b] = (struct plan_link){0, 0};
            if (a == b || !gang_link(among[a], among[b], &link))
                continue;
            out[a * count + b] = (struct plan_link){link.bits_per_s, link.latency_ms};
            any = 1;
        }
    return any;
}

/* With unlike links a model of very many segments would take too long: neighbours stay together, so that LUMPS pieces of about equal time and weight are left. 1: they do. */
static int make_lumps(struct plan_node *nodes, const struct profile *p)
{
    double weight = p->weight_bytes ? (double)p->weight_bytes : 1, time = p->time_ms > 0 ? p->time_ms : 1, sum = 0;
    if (p->count <= LUMPS)
        return 0;
    for (size_t k = 0; k < p->count; k++) {
        nodes[k].group = (int64_t)(sum * LUMPS / 2);
        sum += p->segments[k].time_ms / time + (double)p->segments[k].weight_bytes / weight;
    }
    return 1;
}

enum status gang_divide(const struct job *j, struct worker *const *among, size_t count, struct gang_division *out, struct err *e)
{
    const struct profile *profiles[GANG_MOST] = {NULL};
    uint32_t kinds[GANG_MOST], kind_count = 0;
    *out = (struct gang_division){.count = 0};
    BUG_IF(!count || count > GANG_MOST, "a model is divided among %zu workers", count);
    for (size_t i = 0; i < count; i++) {
        profiles[i] = gang_profile(among[i], j->row.params.model_key);
        BUG_IF(!profiles[i] || profiles[i]->count != profiles[0]->count, "worker %llx is divided among without a profile that fits", (unsigned long long)among[i]->id);
        size_t k = 0;
        while (k < i && !same_times(profiles[k], profiles[i]))
            k++;
        kinds[i] = k < i ? kinds[k] : kind_count++;
    }
    size_t segments = profiles[0]->count;
    struct plan_node *nodes = mem_array(segments, sizeof *nodes);
    struct plan_edge *edges = mem_array(segments, sizeof *edges);
    double *times = mem_array(segments * kind_count, sizeof *times);
    struct plan_device devices[GANG_MOST];
    struct plan_link links[GANG_MOST * GANG_MOST];
    struct plan plan = {.stages = NULL};
    enum status st = ST_OK;
    if (!nodes || !edges || !times) {
        st = err_nomem(e, "a plan");
        goto out;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t memory = gang_memory(among[i], profiles[i]);
        /* 0 would be no limit; a worker that has room for nothing is given a byte */
        devices[i] = (struct plan_device){.name = "worker", .kind = kinds[i], .memory_bytes = memory == UINT64_MAX ? 0 : memory ? memory : 1};
        for (size_t k = 0; k < segments; k++)
            times[k * kind_count + kinds[i]] = profiles[i]->segments[k].time_ms;
    }
    for (size_t k = 0; k < segments; k++) {
        const struct sched_segment *x = &profiles[0]->segments[k];
        nodes[k] = (struct plan_node){.name = "segment", .id = k, .weight_bytes = x->weight_bytes, .output_ms = -1, .output_bytes = x->out_bytes,
                                      .group = -1, .time_ms = times + k * kind_count};
        edges[k] = (struct plan_edge){k, k + 1};
    }
    int linked = read_links(among, count, links);
    nodes[segments - 1].output_bytes = 0; /* goes to the head, not to a next one */
    struct plan_instance in = {.nodes = nodes, .node_count = segments, .edges = edges, .edge_count = segments - 1, .kind_count = kind_count,
                               .devices = devices, .device_count = count, .objective = PLAN_THROUGHPUT,
                               .links = linked ? links : NULL, .overlap = linked, .effort = linked ? EFFORT_LINKS : EFFORT};
    int lumps = linked && make_lumps(nodes, profiles[0]);
    st = plan_make(&in, &plan, e);
    if (st == ST_USER && lumps) { /* memory may be so scarce that each segment matters */
        for (size_t k = 0; k < segments; k++)
            nodes[k].group = -1;
        st = plan_make(&in, &plan, e);
    }
    if (st == ST_OK)
        read_plan(&plan, among, segments, out);
    plan_release(&plan);
out:
    mem_free(nodes);
    mem_free(edges);
    mem_free(times);
    return st;
}

/* Choosing ----------------------------------------------------------------------------------------------------------------------- */

static double time_of(const struct worker *w, const struct job *j)
{
    return gang_profile(w, j->row.params.model_key)->time_ms;
}

/* first ... first + count - 1 of `among` become the fastest (or those with the most memory) of all n; `fixed` in front stay. */
static void bring_front(const struct job *j, struct worker **among, size_t n, size_t fixed, size_t count, int memory)
{
    for (size_t i = fixed; i < count && i < n; i++) {
        size_t best = i;
        for (size_t k = i + 1; k < n; k++) {
            const struct worker *a = among[k], *b = among[best];
            int better;
            if (memory)
                better = a->memory_bytes != b->memory_bytes ? a->memory_bytes > b->memory_bytes || !a->memory_bytes : a->id < b->id;
            else
                better = time_of(a, j) < time_of(b, j) || (!(time_of(b, j) < time_of(a, j)) && a->id < b->id);
            if (better)
                best = k;
        }
        struct worker *w = among[best];
        among[best] = among[i];
        among[i] = w;
    }
}

static int enough_memory(const struct job *j, struct worker *const *among, size_t n)
{
    const struct profile *first = gang_profile(among[0], j->row.params.model_key);
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t has = gang_memory(among[i], gang_profile(among[i], j->row.params.model_key));
        if (has >= first->weight_bytes || (sum += has) >= first->weight_bytes)
            return 1;
    }
    return 0;
}

/* k of them: the fastest, or if these cannot hold the model those with the most memory. */
static enum status try_size(const struct job *j, struct worker **among, size_t n, size_t fixed, size_t k, struct gang_division *out, struct err *e)
{
    enum status st = ST_USER;
    for (int memory = 0; memory <= 1 && st == ST_USER; memory++) {
        bring_front(j, among, n, fixed, k, memory);
        if (enough_memory(j, among, k))
            st = gang_divide(j, among, k, out, e);
        if (k == n)
            break;
    }
    return st;
}

enum status gang_choose(const struct job *j, struct worker **among, size_t n, size_t fixed, size_t from, size_t to, struct gang_division *out, struct err *e)
{
    enum status st = ST_USER;
    *out = (struct gang_division){.count = 0};
    for (size_t k = from > fixed ? from : fixed; k <= to && k <= n && st == ST_USER; k++)
        st = try_size(j, among, n, fixed, k, out, e);
    if (st == ST_USER)
        *out = (struct gang_division){.count = 0};
    return st == ST_NOMEM ? st : ST_OK;
}
