/* What `ebb top` shows: a snapshot of a pool made of the daemon's answers, and the lines of a screen made of that. No terminal and no socket in here. */
#ifndef EBB_CLIENT_TOP_DRAW_H
#define EBB_CLIENT_TOP_DRAW_H

#include <jansson.h>
#include <stddef.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/status.h"

/* how the list is ordered, in the words of the screen */
#define TOP_ORDER_MAP(X)                                                                                                         \
    X(NAME, "name")                                                                                                              \
    X(RATE, "rate")                                                                                                              \
    X(STATE, "state") /* of nodes: how many workers */                                                                           \
    X(JOB, "job")     /* of nodes: memory */
enum top_order {
#define X(name, word) TOP_BY_##name,
    TOP_ORDER_MAP(X)
#undef X
        TOP_ORDERS
};

struct top_node {
    const char *name;
    size_t workers, busy, lanes;
    double records_per_s;
    uint64_t rss_bytes;
    const char *state, *reason; /* as its agent says; "" without one */
};

struct top_pool {
    json_t *hello, *jobs, *workers, *offers; /* answers; owned. offers: of `nodes`, may be NULL */
    const json_t **job_rows, **worker_rows;
    struct top_node *nodes;         /* names point into the workers */
    size_t job_count, worker_count, node_count, running;
    double records_per_s;
};

/* Takes the four answers, also when it fails (ST_NOMEM; *out is empty then). */
MUST_USE enum status top_pool_take(struct top_pool *out, json_t *hello, json_t *jobs, json_t *workers, json_t *offers, struct err *e);
void top_pool_release(struct top_pool *p);
void top_pool_sort(struct top_pool *p, enum top_order order);

struct top_screen {
    int rows, columns, colours;
    int nodes;              /* the list shows nodes, not workers */
    enum top_order order;
    size_t first;           /* of the list's rows: drawing corrects it to what there is */
    size_t page;            /* rows of the list that were drawn; 0 before */
    const char *trouble;    /* why the figures are old; "" when they are not */
    double age_s;           /* of the figures */
};

/* Exactly rows lines, each at most so many columns, parted by "\r\n" and ended by "erase to the line's end"; the cursor is moved home first.
   Whatever a name holds, nothing of it is a control character. 0, or -1 when memory is out. */
MUST_USE int top_draw(const struct top_pool *p, struct top_screen *s, struct buf *out);
/* The same as tables, for pipes. */
void top_print(const struct top_pool *p, FILE *to);
/* The same as one object: {daemon, records_per_s, jobs, nodes, workers}. NULL when memory is out. */
json_t *top_json(const struct top_pool *p);

#endif
