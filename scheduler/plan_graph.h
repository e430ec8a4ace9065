/* Inside the planner: the graph with what belongs together as one, its ideals, classes of devices, and what a stage between two ideals costs. */
#ifndef EBB_SCHEDULER_PLAN_GRAPH_H
#define EBB_SCHEDULER_PLAN_GRAPH_H

#include "scheduler/plan.h"

#define PLAN_MOST_IDEALS 3000
#define PLAN_NOBODY UINT32_MAX   /* before the first stage, behind the last */

/* All memory of one call; freed at once. */
struct plan_arena {
    struct plan_block *blocks;
    int failed;
};
void *plan_take(struct plan_arena *a, size_t count, size_t size); /* zeroed; NULL once memory was out: see failed */
void plan_drop(struct plan_arena *a);

struct plan_item {               /* an output that may have to travel */
    size_t owner;                /* lump */
    uint64_t *readers;           /* bits of lumps, without the owner */
    double ms;                   /* over the one link, or fixed */
    double bits;                 /* unlike links: to be sent */
    int fixed;
};

struct plan_class {              /* devices that are alike in all respects */
    uint32_t kind;
    uint64_t memory;             /* UINT64_MAX: no limit */
    int free_link;
    size_t *devices, count;
};

struct plan_pair {               /* a stage: what lies between two ideals */
    uint32_t to;
    double in, out;              /* over the one link; not with unlike links */
};

struct plan_graph {
    const struct plan_instance *inst;
    struct plan_arena arena;
    size_t lumps, words;         /* words of a set of lumps */
    size_t *lump_of;             /* by node */
    uint64_t *before;            /* [lumps][words]: predecessors */
    struct plan_item *items;
    size_t item_count;
    size_t ideals;               /* 0: empty set ... ideals - 1: all; by size */
    uint64_t *ideal;             /* [ideals][words] */
    int cut_short;               /* more ideals than are looked at: only those of one order */
    double *time;                /* [kinds][ideals]: sums, what cannot run left out */
    uint32_t *cannot;            /* [kinds][ideals]: how many cannot run */
    uint64_t *weight;            /* [ideals] */
    struct plan_pair *pairs;
    size_t *pair_at;             /* [ideals + 1]: pairs from ideal j */
    struct plan_class *classes;
    size_t class_count;
    double *hop;                 /* unlike links: [class from][class to][ideals], all that is alive at that ideal */
    uint64_t effort;
};

enum status plan_graph_init(struct plan_graph *g, const struct plan_instance *inst, struct err *e);
void plan_graph_release(struct plan_graph *g);

/* Of a stage of class c from ideal j to the pair's ideal; before, behind: classes of its neighbours or PLAN_NOBODY (read with unlike links only). INFINITY: it
   cannot run there. One replica. */
double plan_load(const struct plan_graph *g, uint32_t c, size_t j, const struct plan_pair *pair, uint32_t before, uint32_t behind);
void plan_load_parts(const struct plan_graph *g, uint32_t c, size_t j, const struct plan_pair *pair, uint32_t before, uint32_t behind, double *compute,
                     double *in, double *out);

/* A plan as a row of cuts, first stage first. */
struct plan_cut {
    uint32_t class_, replicas;
    size_t from, to;             /* ideals */
};

static inline int plan_bit(const uint64_t *set, size_t i)
{
    return (int)(set[i / 64] >> (i % 64) & 1);
}
static inline void plan_set(uint64_t *set, size_t i)
{
    set[i / 64] |= 1ull << (i % 64);
}

#endif
