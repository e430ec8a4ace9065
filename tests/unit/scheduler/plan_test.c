/* The planner against trying everything, on small random problems; and what it says of those that have no plan. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "scheduler/plan.h"

#define MOST_NODES 8
#define MOST_DEVICES 5

static uint64_t seed;

static uint32_t draw(uint32_t n) /* xorshift64* */
{
    seed ^= seed >> 12;
    seed ^= seed << 25;
    seed ^= seed >> 27;
    return (uint32_t)((seed * 2685821657736338717u) >> 33) % n;
}

struct problem {
    struct plan_instance in;
    struct plan_node nodes[MOST_NODES];
    double times[MOST_NODES][MOST_DEVICES];
    struct plan_edge edges[MOST_NODES * MOST_NODES];
    struct plan_device devices[MOST_DEVICES];
    struct plan_link links[MOST_DEVICES * MOST_DEVICES];
};

static void make(struct problem *p, uint64_t number)
{
    seed = number * 0x9E3779B97F4A7C15u + 1;
    for (int i = 0; i < 8; i++)
        draw(2);
    memset(p, 0, sizeof *p);
    struct plan_instance *in = &p->in;
    in->node_count = 1 + draw(5);
    in->device_count = 1 + draw(3);
    in->kind_count = 1 + draw(3);
    in->overlap = (int)draw(2);
    in->replicas = draw(4) == 0;
    in->objective = draw(3) == 0 ? PLAN_LATENCY : PLAN_THROUGHPUT;
    in->micro_batches = 1 + draw(9);
    int chain = (int)draw(2), grouped = draw(4) == 0, scarce = draw(3) == 0;
    for (size_t i = 0; i < in->node_count; i++) {
        struct plan_node *n = &p->nodes[i];
        for (uint32_t k = 0; k < in->kind_count; k++)
            p->times[i][k] = draw(12) == 0 && k ? INFINITY : 1 + draw(20) * 0.5;
        *n = (struct plan_node){.name = "n", .id = i, .weight_bytes = 1 + draw(9), .output_ms = draw(3) ? -1 : 0.25 * draw(8), .output_bytes = 100 * draw(50),
                                .group = grouped && draw(2) ? (int64_t)draw(2) : -1, .time_ms = p->times[i]};
        for (size_t k = 0; k < i; k++)
            if (chain ? k + 1 == i : draw(3) == 0)
                p->edges[in->edge_count++] = (struct plan_edge){k, i};
    }
    for (size_t d = 0; d < in->device_count; d++)
        p->devices[d] = (struct plan_device){.name = "d", .kind = draw(in->kind_count), .memory_bytes = scarce ? 4 + draw(20) : 0, .free_link = draw(6) == 0};
    in->link = (struct plan_link){draw(4) ? 1e6 : 0, 0.1 * draw(3)};
    if (draw(3) == 0) {
        for (size_t i = 0; i < in->device_count * in->device_count; i++)
            p->links[i] = (struct plan_link){1e5 * (1 + draw(20)), 0.1 * draw(3)};
        in->links = p->links;
    }
    in->nodes = p->nodes;
    in->edges = p->edges;
    in->devices = p->devices;
}

/* Everything is tried: stages one after the other, each any set of nodes whose predecessors are placed, on any devices that are alike. */
struct stage {
    uint32_t nodes, devices;
};

struct trial {
    const struct problem *p;
    struct stage stages[MOST_NODES];
    size_t count;
    double best;
};

static double transfer(const struct problem *p, size_t node, struct plan_link l)
{
    const struct plan_node *n = &p->nodes[node];
    return n->output_ms >= 0 ? n->output_ms : l.bits_per_s > 0 ? n->output_bytes * 8e3 / l.bits_per_s + l.latency_ms : 0;
}

static int reads(const struct problem *p, size_t from, uint32_t readers)
{
    for (size_t e = 0; e < p->in.edge_count; e++)
        if (p->edges[e].from == from && readers >> p->edges[e].to & 1)
            return 1;
    return 0;
}

static double cost(const struct trial *t, size_t s)
{
    const struct problem *p = t->p;
    size_t d = (size_t)__builtin_ctz(t->stages[s].devices);
    double compute = 0, in = 0, out = 0;
    uint32_t mine = t->stages[s].nodes, before = 0, behind = 0;
    for (size_t i = 0; i < t->count; i++)
        *(i < s ? &before : &behind) |= i == s ? 0 : t->stages[i].nodes;
    for (size_t v = 0; v < p->in.node_count; v++) {
        if (mine >> v & 1)
            compute += p->times[v][p->devices[d].kind];
        if (p->devices[d].free_link)
            continue;
        if (!p->in.links) {
            if (!(mine >> v & 1) && reads(p, v, mine))
                in += transfer(p, v, p->in.link);
            if (mine >> v & 1 && reads(p, v, ~mine))
                out += transfer(p, v, p->in.link);
            continue;
        }
        size_t n = p->in.device_count;
        if (s && before >> v & 1 && reads(p, v, mine | behind))
            in += transfer(p, v, p->links[(size_t)__builtin_ctz(t->stages[s - 1].devices) * n + d]);
        if (s + 1 < t->count && (before | mine) >> v & 1 && reads(p, v, behind))
            out += transfer(p, v, p->links[d * n + (size_t)__builtin_ctz(t->stages[s + 1].devices)]);
    }
    double load = p->in.overlap ? fmax(compute, fmax(in, out)) : compute + in + out;
    return load / __builtin_popcount(t->stages[s].devices);
}

static int same(struct plan_link a, struct plan_link b)
{
    return a.bits_per_s == b.bits_per_s && a.latency_ms == b.latency_ms;
}

static int alike(const struct problem *p, size_t a, size_t b)
{
    const struct plan_device *x = &p->devices[a], *y = &p->devices[b];
    size_t n = p->in.device_count;
    if (x->kind != y->kind || x->memory_bytes != y->memory_bytes || x->free_link != y->free_link)
        return 0;
    if (!p->in.links)
        return 1;
    for (size_t o = 0; o < n; o++)
        if (o != a && o != b && (!same(p->links[a * n + o], p->links[b * n + o]) || !same(p->links[o * n + a], p->links[o * n + b])))
            return 0;
    return same(p->links[a * n + b], p->links[b * n + a]);
}

static int may_stand(const struct problem *p, uint32_t nodes, uint32_t devices)
{
    size_t first = (size_t)__builtin_ctz(devices);
    uint64_t weight = 0;
    if (!p->in.replicas && __builtin_popcount(devices) > 1)
        return 0;
    for (size_t d = 0; d < p->in.device_count; d++)
        if (devices >> d & 1 && d != first && !alike(p, first, d))
            return 0;
    for (size_t v = 0; v < p->in.node_count; v++)
        if (nodes >> v & 1) {
            weight += p->nodes[v].weight_bytes;
            if (!isfinite(p->times[v][p->devices[first].kind]))
                return 0;
        }
    return !p->devices[first].memory_bytes || weight <= p->devices[first].memory_bytes;
}

static int closed(const struct problem *p, uint32_t placed, uint32_t nodes)
{
    for (size_t e = 0; e < p->in.edge_count; e++)
        if (nodes >> p->edges[e].to & 1 && !((placed | nodes) >> p->edges[e].from & 1))
            return 0;
    for (size_t a = 0; a < p->in.node_count; a++)
        for (size_t b = 0; b < p->in.node_count; b++)
            if (p->nodes[a].group >= 0 && p->nodes[a].group == p->nodes[b].group && (nodes >> a & 1) != (nodes >> b & 1))
                return 0;
    return 1;
}

static double value(const struct trial *t)
{
    double sum = 0, most = 0;
    for (size_t s = 0; s < t->count; s++) {
        double x = cost(t, s);
        sum += x;
        most = fmax(most, x);
    }
    return t->p->in.objective == PLAN_LATENCY ? sum + (double)(t->p->in.micro_batches - 1) * most : most;
}

static void try_all(struct trial *t, uint32_t placed, uint32_t used)
{
    const struct problem *p = t->p;
    uint32_t all = (1u << p->in.node_count) - 1;
    if (placed == all) {
        t->best = fmin(t->best, value(t));
        return;
    }
    for (uint32_t nodes = 1; nodes <= all; nodes++) {
        if (nodes & placed || !closed(p, placed, nodes))
            continue;
        for (uint32_t devices = 1; devices < 1u << p->in.device_count; devices++) {
            if (devices & used || !may_stand(p, nodes, devices))
                continue;
            t->stages[t->count++] = (struct stage){nodes, devices};
            try_all(t, placed | nodes, used | devices);
            t->count--;
        }
    }
}

/* What the plan says of itself, reckoned anew. */
static double reckon(const struct problem *p, const struct plan *plan)
{
    struct trial t = {.p = p};
    uint32_t nodes = 0, devices = 0;
    for (size_t s = 0; s < plan->stage_count; s++) {
        struct stage *x = &t.stages[t.count++];
        *x = (struct stage){0};
        for (size_t i = 0; i < plan->stages[s].node_count; i++)
            x->nodes |= 1u << plan->stages[s].nodes[i];
        for (size_t i = 0; i < plan->stages[s].device_count; i++)
            x->devices |= 1u << plan->stages[s].devices[i];
        assert_int_equal(nodes & x->nodes, 0);
        assert_int_equal(devices & x->devices, 0);
        assert_true(closed(p, nodes, x->nodes));
        assert_true(may_stand(p, x->nodes, x->devices));
        nodes |= x->nodes;
        devices |= x->devices;
    }
    assert_int_equal(nodes, (1u << p->in.node_count) - 1);
    return value(&t);
}

static void as_good_as_trying_all(void **state)
{
    (void)state;
    size_t without = 0;
    for (uint64_t number = 1; number <= 600; number++) {
        struct problem p;
        struct plan plan;
        struct err e;
        make(&p, number);
        struct trial t = {.p = &p, .best = INFINITY};
        try_all(&t, 0, 0);
        enum status st = plan_make(&p.in, &plan, &e);
        if (t.best == INFINITY) {
            assert_int_equal(st, ST_USER);
            without++;
            continue;
        }
        if (st != ST_OK)
            print_error("problem %d: %s; best is %f\n", (int)number, e.text, t.best);
        assert_int_equal(st, ST_OK);
        double own = reckon(&p, &plan);
        if (fabs(plan.value_ms - t.best) > 1e-6 * t.best || fabs(own - plan.value_ms) > 1e-6 * own || plan.gap > 1e-6)
            print_error("problem %d: found %f (reckoned %f, gap %f), best is %f\n", (int)number, plan.value_ms, own, plan.gap, t.best);
        assert_true(fabs(own - plan.value_ms) <= 1e-6 * own);
        assert_true(fabs(plan.value_ms - t.best) <= 1e-6 * t.best);
        assert_true(plan.gap <= 1e-6);
        plan_release(&plan);
    }
    assert_true(without > 5 && without < 200);
}

/* Where states are forbidden, prices find plans whose bound holds. */
static void prices_bound_what_they_find(void **state)
{
    (void)state;
    size_t exact = 0, plans = 0;
    for (uint64_t number = 1; number <= 400; number++) {
        struct problem p;
        struct plan plan;
        struct err e;
        make(&p, number);
        struct trial t = {.p = &p, .best = INFINITY};
        try_all(&t, 0, 0);
        p.in.by_prices = 1;
        if (t.best == INFINITY || plan_make(&p.in, &plan, &e) != ST_OK)
            continue;
        assert_int_equal(plan.states, 0);
        assert_true(plan.value_ms >= t.best * (1 - 1e-6));
        if (plan.bound_ms > t.best * (1 + 1e-6))
            print_error("problem %d: bound %f, best is %f\n", (int)number, plan.bound_ms, t.best);
        assert_true(plan.bound_ms <= t.best * (1 + 1e-6));
        assert_true(fabs(reckon(&p, &plan) - plan.value_ms) <= 1e-6 * plan.value_ms);
        plans++;
        exact += plan.value_ms <= t.best * (1 + 1e-6);
        plan_release(&plan);
    }
    assert_true(plans > 200);
    assert_true(exact > plans / 2);
}

static void chain(struct problem *p, size_t nodes, size_t devices)
{
    memset(p, 0, sizeof *p);
    for (size_t i = 0; i < nodes; i++) {
        p->times[i][0] = 1 + (double)i;
        p->nodes[i] = (struct plan_node){.name = "layer", .id = i, .weight_bytes = 10, .output_ms = 0, .group = -1, .time_ms = p->times[i]};
        if (i)
            p->edges[i - 1] = (struct plan_edge){i - 1, i};
    }
    for (size_t d = 0; d < devices; d++)
        p->devices[d] = (struct plan_device){.name = "device"};
    p->in = (struct plan_instance){.nodes = p->nodes, .node_count = nodes, .edges = p->edges, .edge_count = nodes - 1, .kind_count = 1, .devices = p->devices,
                                   .device_count = devices, .micro_batches = 1};
}

static void what_cannot_be(void **state)
{
    (void)state;
    struct problem p;
    struct plan plan;
    struct err e;
    chain(&p, 4, 2);
    for (size_t d = 0; d < 2; d++)
        p.devices[d].memory_bytes = 15;
    assert_int_equal(plan_make(&p.in, &plan, &e), ST_USER);
    assert_string_equal(e.text, "the devices together have not enough memory for the model");
    p.nodes[2].weight_bytes = 99;
    assert_int_equal(plan_make(&p.in, &plan, &e), ST_USER);
    assert_string_equal(e.text, "node 2 ('layer') has 99 bytes of weights, more than any device on which it can run");
    chain(&p, 4, 2);
    p.times[1][0] = INFINITY;
    assert_int_equal(plan_make(&p.in, &plan, &e), ST_USER);
    assert_string_equal(e.text, "node 1 ('layer') can run on none of the devices");
    chain(&p, 4, 2);
    p.edges[0].to = 7;
    assert_int_equal(plan_make(&p.in, &plan, &e), ST_USER);
    assert_string_equal(e.text, "edge 0 leads to no node");
    chain(&p, 4, 2);
    p.in.node_count = 0;
    assert_int_equal(plan_make(&p.in, &plan, &e), ST_USER);
    chain(&p, 4, 2);
    p.times[3][0] = NAN;
    assert_int_equal(plan_make(&p.in, &plan, &e), ST_USER);
}

/* A cycle stays on one device. */
static void cycles_stay_together(void **state)
{
    (void)state;
    struct problem p;
    struct plan plan;
    struct err e;
    chain(&p, 4, 4);
    p.edges[p.in.edge_count++] = (struct plan_edge){2, 1};
    assert_int_equal(plan_make(&p.in, &plan, &e), ST_OK);
    assert_int_equal(plan.stage_count, 3);
    assert_int_equal(plan.stages[1].node_count, 2);
    assert_true(plan.bottleneck_ms == 5);
    plan_release(&plan);
}

/* Eight devices unlike in speed, memory and links, 96 layers, few and many micro-batches: proved within the default effort, which is counted in operations and so
   the same on any machine. */
static void latency_over_unlike_links_is_proved(void **state)
{
    (void)state;
    enum { LAYERS = 96, DEVICES = 8 };
    static struct plan_node nodes[LAYERS];
    static double times[LAYERS][DEVICES];
    static struct plan_edge edges[LAYERS - 1];
    static struct plan_device devices[DEVICES];
    static struct plan_link links[DEVICES * DEVICES];
    struct plan_instance in = {.nodes = nodes, .node_count = LAYERS, .edges = edges, .edge_count = LAYERS - 1, .kind_count = DEVICES, .devices = devices,
                               .device_count = DEVICES, .links = links, .objective = PLAN_LATENCY};
    seed = 99;
    double speed[DEVICES];
    uint64_t total = 0;
    for (int d = 0; d < DEVICES; d++)
        speed[d] = 1 + 0.01 * draw(700);
    for (size_t i = 0; i < LAYERS; i++) {
        double work = 20 + 0.1 * draw(400);
        for (int d = 0; d < DEVICES; d++)
            times[i][d] = work / speed[d] * (0.9 + 0.001 * draw(200));
        nodes[i] = (struct plan_node){.name = "layer", .id = i, .weight_bytes = 1000000 + draw(19000000), .output_ms = -1, .output_bytes = 100000 + draw(300000),
                                      .group = -1, .time_ms = times[i]};
        total += nodes[i].weight_bytes;
        if (i)
            edges[i - 1] = (struct plan_edge){i - 1, i};
    }
    for (uint32_t d = 0; d < DEVICES; d++) {
        devices[d] = (struct plan_device){.name = "d", .kind = d, .memory_bytes = total / (8 * 100) * (100 + draw(300))};
        for (size_t k = 0; k < d; k++)
            links[d * DEVICES + k] = links[k * DEVICES + d] = (struct plan_link){1e8 * (1 + draw(99)), 0.05 + 0.01 * draw(45)};
    }
    const uint64_t batches[] = {4, 16};
    for (size_t i = 0; i < 2; i++) {
        struct plan plan;
        struct err e;
        in.micro_batches = batches[i];
        assert_int_equal(plan_make(&in, &plan, &e), ST_OK);
        print_message("%d micro-batches: %.3f ms, gap %g, %.0f million operations\n", (int)batches[i], plan.value_ms, plan.gap, (double)plan.effort / 1e6);
        assert_true(plan.gap < 1e-6);
        assert_true(plan.states > 0);
        assert_true(plan.effort < 1000000000);
        plan_release(&plan);
    }
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    struct problem p;
    for (int by_prices = 0; by_prices < 2; by_prices++) {
        chain(&p, 6, 3);
        p.in.by_prices = by_prices;
        for (uint64_t nth = 1;; nth++) {
            struct plan plan;
            struct err e;
            mem_fail_nth(nth);
            enum status st = plan_make(&p.in, &plan, &e);
            uint64_t made = mem_fail_nth(0);
            if (st == ST_OK) {
                assert_true(made < nth);
                plan_release(&plan);
                break;
            }
            assert_int_equal(st, ST_NOMEM);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_good_as_trying_all), cmocka_unit_test(prices_bound_what_they_find), cmocka_unit_test(what_cannot_be),
        cmocka_unit_test(cycles_stay_together),  cmocka_unit_test(any_allocation_may_fail),
        cmocka_unit_test(latency_over_unlike_links_is_proved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
