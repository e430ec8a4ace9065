/* What model_info says of a model in words. */
#ifndef EBB_ENGINE_DESCRIBE_H
#define EBB_ENGINE_DESCRIBE_H

#include <stddef.h>

#include "workers/engine/config.h"
#include "workers/engine/graphmodel.h"
#include "workers/engine/model.h"

/* The last component of dir, of what it resolves to for "." and the like. */
MUST_USE enum status describe_name(const char *dir, char *out, size_t cap, struct err *e);
void describe_precision(struct model_info *i, enum precision p, const struct kernels *k);
/* What a task is described by, whatever the model is read from. */
void describe_task(struct model_info *i, const struct model_config *c, const struct kernels *k);
/* All but what its tensors tell. */
void describe_encoder(struct model_info *i, const struct model_config *c, const struct kernels *k, uint32_t top_k);
void describe_graph(struct model_info *i, const struct graph_model_info *g);

#endif
