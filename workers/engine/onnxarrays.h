/* An ONNX model whose records bring arrays (images, tables, sound) behind the seam of model.h. */
#ifndef EBB_ENGINE_ONNXARRAYS_H
#define EBB_ENGINE_ONNXARRAYS_H

#include "workers/engine/config.h"
#include "workers/engine/graphmodel.h"
#include "workers/engine/model.h"

struct onnxarrays;

/* Takes gm over on success. folder: config.json there may have labels. *c is filled, and the caller's to release. */
MUST_USE enum status onnxarrays_open(struct graph_model *gm, const char *folder, const struct model_opts *o, struct model_config *c,
                                     struct onnxarrays **out, struct err *e);
void onnxarrays_free(struct onnxarrays *t);
const struct graph_model_info *onnxarrays_info(const struct onnxarrays *t);
uint32_t onnxarrays_width(const struct onnxarrays *t); /* numbers in a record's row; 0: the task is "outputs" */
const struct port *onnxarrays_outputs(const struct onnxarrays *t, uint32_t *count);

struct onnxarrays_lane;
MUST_USE enum status onnxarrays_lane_new(const struct onnxarrays *t, uint32_t max_records, struct onnxarrays_lane **out, struct err *e);
void onnxarrays_lane_free(struct onnxarrays_lane *l);
/* As model_infer_arrays. */
MUST_USE enum status onnxarrays_run(struct onnxarrays_lane *l, uint32_t n, const struct array *const *in, model_take *take, void *arg, struct err *e);
/* As model_arrays_pack, model_stage_arrays and model_arrays_take. */
MUST_USE enum status onnxarrays_pack(struct onnxarrays_lane *l, uint32_t n, const struct array *const *in, const void **out, size_t *out_len, struct err *e);
MUST_USE enum status onnxarrays_stage(struct onnxarrays_lane *l, uint32_t n, const void *in, size_t in_len, const void **out, size_t *out_len, struct err *e);
MUST_USE enum status onnxarrays_take(struct onnxarrays_lane *l, uint32_t n, const void *in, size_t in_len, model_take *take, void *arg, struct err *e);

#endif
