/* An ONNX model of texts behind the seam of model.h: which of its outputs is what the task asks for, and what still has to be done to it. */
#ifndef EBB_ENGINE_ONNXTEXT_H
#define EBB_ENGINE_ONNXTEXT_H

#include "workers/engine/config.h"
#include "workers/engine/graphmodel.h"
#include "workers/engine/model.h"

struct onnxtext;

/* Takes gm over on success. What lies in folder beside it (config.json, modules.json ...) says what the file does not. *c is filled, and the
   caller's to release. A short text is run once, so that what cannot run fails here. */
MUST_USE enum status onnxtext_open(struct graph_model *gm, const char *folder, const struct model_opts *o, const struct kernels *k, struct model_config *c,
                                   struct onnxtext **out, struct err *e);
void onnxtext_free(struct onnxtext *t);
const struct graph_model_info *onnxtext_info(const struct onnxtext *t);
uint32_t onnxtext_width(const struct onnxtext *t); /* numbers in a row that comes out */

struct onnxtext_lane;
MUST_USE enum status onnxtext_lane_new(const struct onnxtext *t, uint32_t max_tokens, uint32_t max_seqs, struct onnxtext_lane **out, struct err *e);
void onnxtext_lane_free(struct onnxtext_lane *l);
size_t onnxtext_lane_bytes(const struct onnxtext *t, uint32_t max_tokens, uint32_t max_seqs); /* about what a lane comes to */
/* A text that does not go through the model gets NaN for its numbers, and why in `errors`. mask_id: as model_set_mask said. NULL: memory is out. */
const struct model_result *onnxtext_run(struct onnxtext_lane *l, const struct model_batch *b, int32_t mask_id);
/* As model_stage. */
MUST_USE enum status onnxtext_stage(struct onnxtext_lane *l, const struct model_batch *b, int32_t mask_id, const void *in, size_t in_len, const void **out,
                                    size_t *out_len, const struct model_result **result, struct err *e);

#endif
