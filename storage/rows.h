/* Rows of base/rows.h as keys and values. Keys are big-endian so that a job's rows scan in order; values carry a version byte and
   are read through a bounds-checked cursor; docs/disk-format.md tells every byte. */
#ifndef EBB_STORAGE_ROWS_H
#define EBB_STORAGE_ROWS_H

#include "base/rows.h"
#include "storage/dataset.h"
#include "storage/store.h"

/* meta */
MUST_USE enum status rows_get_generation(struct store *s, uint32_t *generation, struct err *e); /* 0 in a new store */
void rows_put_generation(struct store_batch *b, uint32_t generation);
MUST_USE enum status rows_next_job_id(struct store *s, uint64_t *id, struct err *e);            /* one past the largest ever given */
void rows_put_last_job_id(struct store_batch *b, uint64_t id);

/* jobs: the scheduler's row, and beside it what is opaque to the scheduler */
void rows_put_job(struct store_batch *b, const struct job_row *row);
void rows_put_spec(struct store_batch *b, uint64_t job, const void *json, size_t len);          /* the job as submitted, JSON */
MUST_USE enum status rows_get_spec(struct store *s, uint64_t job, struct buf *json, struct err *e);
/* How far the job's output has been assembled, see storage/assemble.h; opaque bytes here. */
void rows_put_assembly(struct store_batch *b, uint64_t job, const void *data, size_t len);
MUST_USE enum status rows_get_assembly(struct store *s, uint64_t job, struct buf *out, struct err *e); /* NOT_FOUND */
void rows_del_job(struct store_batch *b, uint64_t job);  /* all rows of the job in all families */
MUST_USE enum status rows_each_job(struct store *s, enum status (*visit)(void *arg, const struct job_row *row, struct err *e), void *arg,
                                   struct err *e);
/* A finished job keeps its row, spec, manifest and sources; its spans, extents and old events go. */
void rows_shrink_job(struct store_batch *b, uint64_t job);

/* sources */
MUST_USE enum status rows_put_dataset(struct store_batch *b, uint64_t job, const struct dataset *d, struct err *e);
MUST_USE enum status rows_get_dataset(struct store *s, uint64_t job, struct dataset *out, struct err *e);

/* spans */
void rows_put_span(struct store_batch *b, uint64_t job, const struct span_row *row);
void rows_del_span(struct store_batch *b, uint64_t job, uint64_t begin);
MUST_USE enum status rows_each_span(struct store *s, uint64_t job, enum status (*visit)(void *arg, const struct span_row *row, struct err *e),
                                    void *arg, struct err *e);

/* extents: key is (job, begin, attempt) */
void rows_put_extent(struct store_batch *b, uint64_t job, const struct extent *x);
struct extent_iter;
MUST_USE enum status extent_iter_open(struct store *s, uint64_t job, uint64_t from, struct extent_iter **out, struct err *e);
MUST_USE enum status extent_iter_next(struct extent_iter *i, struct extent *out, struct err *e); /* ST_END */
void extent_iter_close(struct extent_iter *i);

/* events: the last `cap` lines of a job's history */
void rows_add_event(struct store_batch *b, uint64_t job, uint64_t number, int64_t wall_ms, const char *text);
MUST_USE enum status rows_trim_events(struct store *s, struct store_batch *b, uint64_t job, uint32_t cap, struct err *e);
MUST_USE enum status rows_each_event(struct store *s, uint64_t job, enum status (*visit)(void *arg, uint64_t number, int64_t wall_ms, const char *text, struct err *e),
                                     void *arg, struct err *e);

#endif
