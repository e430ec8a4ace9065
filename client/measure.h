/* How fast the engine runs on this machine: the model itself, on tokens that are there already, on several lanes for a second or two. */
#ifndef EBB_CLIENT_MEASURE_H
#define EBB_CLIENT_MEASURE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "workers/engine/model.h"

struct tokens { /* sequences back to back */
    int32_t *ids;
    uint32_t *lengths;
    size_t count, total, count_cap, total_cap;
};
MUST_USE int tokens_add(struct tokens *t, const int32_t *ids, uint32_t count); /* 0 or -1 */
void tokens_release(struct tokens *t);

struct speed {
    double records_per_s, tokens_per_s;
    double row_chars; /* of the numbers of one record as text, on the average */
};
/* What the processor can do on so many cores at once: f32 multiply-adds alone, in floating point operations per second; 0: not known. */
double measure_peak(const char *isa, uint32_t lanes, double seconds);
MUST_USE enum status measure_speed(const struct model *m, const struct tokens *t, uint32_t lanes, uint32_t micro_batch, uint32_t micro_batch_tokens,
                                   double seconds, struct speed *out, struct err *e);

/* A model of arrays, on made-up ones: open sizes of its inputs are open_size. ST_USER: such do not go through it. */
MUST_USE enum status measure_arrays(const struct model *m, int64_t open_size, uint32_t lanes, double seconds, struct speed *out, struct err *e);

#endif
