/* `ebb model plan`: of a problem in a file (model_plan.c), or of a model, measured on this machine (model_plan_dir.c). */
#ifndef EBB_CLIENT_MODEL_PLAN_H
#define EBB_CLIENT_MODEL_PLAN_H

#include <jansson.h>

#include "base/opt.h"
#include "scheduler/plan.h"

/* Workers that are alike, or the devices that were named. */
struct plan_dir_opts {
    const char *precision, *task;
    uint64_t workers, memory_bytes, lanes; /* 0: not said */
    struct opt_list devices;               /* "NAME:FACTOR[:MEMORY]" */
    const char *link;                      /* "RATE[:LATENCY]"; NULL: costs nothing */
};

/* The exit code. */
int model_plan_dir(const char *dir, const struct plan_dir_opts *o);

/* "proved" or "gap" */
void model_plan_print_gap(const struct plan *p, double took_ms);

#endif
