/* Inside the planner: two ways to find the cuts. Both fill `cuts` (room for as many as there are devices) and return their number; 0: there is no plan. */
#ifndef EBB_SCHEDULER_PLAN_SEARCH_H
#define EBB_SCHEDULER_PLAN_SEARCH_H

#include "scheduler/plan_graph.h"

struct plan_found {
    struct plan_cut *cuts;
    size_t count;
    double bottleneck, sum, bound; /* bound: of the objective */
    int exhausted;                 /* effort ran out before there was an answer */
};

/* Exact, over states (how many of each class are used). 0: too many states for this effort; nothing was done. */
size_t plan_states(const struct plan_graph *g, uint64_t effort);
void plan_exact(struct plan_graph *g, size_t states, uint64_t effort, struct plan_found *f);

/* By prices; bounds as good as they come. */
void plan_priced(struct plan_graph *g, uint64_t effort, struct plan_found *f);

/* Largest load and sum of loads. */
void plan_measure(const struct plan_graph *g, const struct plan_cut *cuts, size_t count, double *bottleneck, double *sum);
const struct plan_pair *plan_pair(const struct plan_graph *g, size_t from, size_t to);
/* The smallest largest load that a stage can have at all: no plan is better. */
double plan_floor(const struct plan_graph *g);
/* Of the objective. */
double plan_value(const struct plan_graph *g, double bottleneck, double sum);

#endif
