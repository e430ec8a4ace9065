/* What the members of a gang say to each other, checked against what their model takes and gives: whoever reads a MicroBatch or a StageResult through these
   never looks behind its bytes, whatever the peer sent. Pure. docs/pipelines.md. */
#ifndef EBB_WORKERS_MESSAGE_H
#define EBB_WORKERS_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "wire/wire.h"
#include "workers/engine/model.h"

struct message_bounds {
    uint32_t items, tokens; /* of a micro-batch */
    uint32_t longest;       /* tokens of an item */
    uint32_t vocab, types;
};

/* *out points into m. ST_CORRUPT: it is none. */
MUST_USE enum status message_batch(const Ebb__MicroBatch *m, const struct message_bounds *b, struct model_batch *out, struct err *e);

/* Of n items of these lengths, by a model of which info tells. out->tensor points into m and payload (aligned for floats), out->errors is one block: mem_free. ST_CORRUPT:
   it is none. */
MUST_USE enum status message_result(const Ebb__StageResult *m, const void *payload, size_t len, const struct model_info *info, uint32_t n, const uint32_t *lengths,
                                    struct model_result *out, struct err *e);

/* The way out: tensors (room for MODEL_OUTPUTS_MAX) and their bytes, one behind the other, in *payload: mem_free. m's lists point into r, `tensors` and `errors`
   (room for n). */
struct message_room {
    Ebb__StageTensor tensor[MODEL_OUTPUTS_MAX], *tensors[MODEL_OUTPUTS_MAX];
};
MUST_USE enum status message_of_result(const struct model_result *r, uint32_t n, struct message_room *room, char **errors, Ebb__StageResult *m, void **payload,
                                       size_t *len, struct err *e);

#endif
