/* From logits to scores, row by row, and the best of a row. Computed in double without libm: the same bits everywhere. */
#ifndef EBB_ENGINE_SCORES_H
#define EBB_ENGINE_SCORES_H

#include <stdint.h>

#include "workers/engine/config.h"

void scores_row(enum scoring how, uint32_t n, float *x);
/* The k best of a softmax over x, best first; of equals the one with the smaller index. ids and out have room for k <= n. */
void scores_top(uint32_t n, const float *x, uint32_t k, int32_t *ids, float *out);

#endif
