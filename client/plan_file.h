/* ebb-plan/1: a placement problem as a JSON file, see docs/pipelines.md. */
#ifndef EBB_CLIENT_PLAN_FILE_H
#define EBB_CLIENT_PLAN_FILE_H

#include <jansson.h>

#include "scheduler/plan.h"

struct plan_file {
    struct plan_instance instance;  /* points into the rest */
    const char **kinds;
    int contiguous;                 /* as the file says: plans are contiguous all the same */
    json_t *json;
    struct plan_node *nodes;
    double *times;
    struct plan_edge *edges;
    struct plan_device *devices;
    struct plan_link *links;
};

/* ST_USER names the file and the place in it. The caller releases *out; on failure it is empty. */
MUST_USE enum status plan_file_read(const char *path, struct plan_file *out, struct err *e);
void plan_file_release(struct plan_file *f);

#endif
