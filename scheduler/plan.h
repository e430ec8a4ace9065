/* Where the segments of a model run: which devices, in which order, cut where. Pure: no clock; effort is counted in operations.

   A stage is a set of nodes on one device, or on several that share its micro-batches (replicas). Stages are in an order in which every edge runs
   forward or stays inside. The load of a stage is the time that one micro-batch takes there:

       compute + in + out,  or max(compute, in, out) where transfers overlap with computing;  over the number of replicas

   compute is the sum of its nodes' times on that kind of device. With one kind of link for all (`links` NULL) a node's output comes in once for each stage outside
   that reads it and goes out once. With unlike links what a later stage reads passes through every stage between: `in` is all that is alive at the stage's
   begin over the link from the stage before, `out` all that is alive at its end over the link to the next. On a chain that is the same.

   Objectives: the largest load (throughput), or the sum of loads + (M - 1) x the largest (latency of M micro-batches).

   How: nodes that must stay together (one group; a cycle behind that) become one. The prefixes of the order are the ideals of the graph (sets closed under
   predecessors; Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators", 2020), on a chain simply its positions. Devices that are alike in all
   respects form a class, and a state says how many of each class are used. For a bound T on the load, the ideals that each state can reach are a bit set, so one
   test is a few million words; T is then bisected. Where there are too many states: Lagrange prices on devices give a lower bound (a shortest path over
   cuts in which a device may be used twice, at its price), and a beam search along these prices gives a plan; the gap between both is stated. */
#ifndef EBB_SCHEDULER_PLAN_H
#define EBB_SCHEDULER_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct plan_node {
    const char *name;
    uint64_t id;             /* for messages */
    uint64_t weight_bytes;
    double output_ms;        /* transfer of its output; negative: output_bytes over the link */
    double output_bytes;
    int64_t group;           /* nodes of one group stay together; negative: none */
    const double *time_ms;   /* by kind of device; INFINITY: cannot run there */
};

struct plan_device {
    const char *name;
    uint32_t kind;
    uint64_t memory_bytes;   /* 0: no limit */
    int free_link;           /* pays neither in nor out */
};

struct plan_link {
    double bits_per_s;       /* 0: costs nothing */
    double latency_ms;       /* for each output */
};

struct plan_edge {
    size_t from, to;         /* indexes of nodes */
};

enum plan_objective { PLAN_THROUGHPUT, PLAN_LATENCY };

struct plan_instance {       /* the caller keeps all it points to */
    const struct plan_node *nodes;
    size_t node_count;
    const struct plan_edge *edges;
    size_t edge_count;
    uint32_t kind_count;
    const struct plan_device *devices;
    size_t device_count;
    struct plan_link link;
    const struct plan_link *links; /* [from * device_count + to]; NULL: `link` for every pair */
    enum plan_objective objective;
    uint64_t micro_batches;  /* latency: M */
    int overlap, replicas;
    int by_prices;           /* tests: even where there are few states */
    uint64_t effort;         /* at most about so many operations; 0: 1.5e9, about a second */
};

struct plan_stage {
    size_t *devices;         /* more than one: replicas */
    size_t device_count;
    size_t *nodes;           /* ascending */
    size_t node_count;
    double compute_ms, in_ms, out_ms, load_ms; /* load: of all replicas together */
};

struct plan {
    struct plan_stage *stages; /* in order */
    size_t stage_count;
    double bottleneck_ms, sum_ms;
    double value_ms;         /* of the objective */
    double bound_ms;         /* no plan is better */
    double gap;              /* (value - bound) / value; 0: proved optimal */
    size_t ideals, states;   /* how large the search was; states 0: prices */
    uint64_t effort;         /* operations, about */
};

/* ST_USER: there is no plan (e names a node that fits nowhere, or says that all devices together are too small), or the instance is not well formed (no
   nodes or devices, an edge that leads nowhere). The caller releases *out with plan_release; on failure it is empty. */
MUST_USE enum status plan_make(const struct plan_instance *in, struct plan *out, struct err *e);
void plan_release(struct plan *p);

/* For comparison: the same devices in the order given, cuts by dynamic programming (each device may stay unused), and stages of as equal a number of nodes
   as can be. The value of the objective; INFINITY where they find no plan. */
double plan_fixed_order(const struct plan_instance *in, struct err *e);
double plan_even_split(const struct plan_instance *in, struct err *e);

#endif
