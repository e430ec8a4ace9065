/* Walking through tensors: several operands of one set of sizes, each with its own steps. Sizes of one are dropped and axes that lie
   behind each other in every operand are merged, so that most walks come down to one or two loops. */
#ifndef EBB_OPS_WALK_H
#define EBB_OPS_WALK_H

#include <stddef.h>
#include <stdint.h>

#include "workers/engine/graph/tensor.h"

enum { WALK_OPERANDS = 4 };

struct walk {
    uint32_t rank, operands;
    int64_t dims[RANK_MAX];
    int64_t step[WALK_OPERANDS][RANK_MAX]; /* elements from one index to the next */
};

struct walk_at {
    int64_t index[RANK_MAX];
    int64_t at[WALK_OPERANDS]; /* elements from the start */
};

void walk_init(struct walk *w, uint32_t rank, const int64_t *dims);
/* One more operand: row-major, with its last axis under the last of the walk; sizes of one are repeated. */
void walk_broadcast(struct walk *w, uint32_t rank, const int64_t *dims);
/* One more operand with its own steps. */
void walk_steps(struct walk *w, const int64_t *step);
/* After the last operand: drops and merges axes; at least one axis is left. */
void walk_merge(struct walk *w);
int walk_empty(const struct walk *w);
/* Next row: moves at[] to the next index of all axes but the last. 0 when there is none. Begin with zeros; not for empty walks. */
int walk_next(const struct walk *w, struct walk_at *p);

/* step[i] for a row-major tensor */
void row_major(uint32_t rank, const int64_t *dims, int64_t *step);

/* Copies elements of `size` bytes between two walks of the same sizes; steps in elements, zero and negative ones too. Row-major on one side
   or both is fast; a last axis that is dense in only one of them is copied in blocks. */
void copy_steps(size_t size, uint32_t rank, const int64_t *dims, const void *from, const int64_t *from_step, void *to, const int64_t *to_step);
/* The same element everywhere. */
void fill_elements(size_t size, const void *element, int64_t count, void *to);

#endif
