/* A window over weights that are mapped from a file: units (layers) that are used one after the other, again and again, while no more than so many bytes of
   them are in memory. What comes next is fetched while the lanes compute; what all lanes have left behind goes.

   One way through all units is a sweep. All lanes that have something to do make it together, so that one window serves them all:
       window_begin -> for each unit, in order: window_wait, what is done with it, window_done */
#ifndef EBB_ENGINE_WINDOW_H
#define EBB_ENGINE_WINDOW_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct window;

struct window_piece { /* of a mapped file, from the start of a page on */
    const void *at;
    size_t bytes;
};

struct window_set {
    const struct window_piece *piece;
    uint32_t pieces;
};

struct window_opts {
    const struct window_set *set;      /* each with pages of its own */
    uint32_t sets;
    const uint32_t *unit;              /* its set; units may share one */
    uint32_t units;
    const struct window_piece *table;  /* what is read here and there: window_table_enter */
    uint32_t tables;
    uint64_t most_bytes;               /* of sets in memory; the largest one fits */
};

/* Copies what it needs. Nothing is in memory yet. ST_NOMEM, ST_ENV: no thread. */
MUST_USE enum status window_new(const struct window_opts *o, struct window **out, struct err *e);
void window_free(struct window *w); /* no lane is in a sweep */

/* A lane that will sweep comes, or goes: a sweep waits a little for those that are there. */
void window_join(struct window *w);
void window_leave(struct window *w);

void window_begin(struct window *w);
void window_wait(struct window *w, uint32_t unit); /* until it is in memory */
void window_done(struct window *w, uint32_t unit);

/* One lane at a time looks things up in the tables; their pages go when it leaves. */
void window_table_enter(struct window *w);
void window_table_leave(struct window *w);

struct window_figures {
    uint64_t sweeps, fetched_bytes, most_bytes; /* most_bytes: that were in memory at once */
    uint64_t waited_us;                         /* lanes for units, together */
};
void window_figures(struct window *w, struct window_figures *out);

#endif
