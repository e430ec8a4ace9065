/* How a model fits into the memory that it may take: whole, or by a window of its layers (window.h), and how many tokens a batch should have then. */
#ifndef EBB_ENGINE_FIT_H
#define EBB_ENGINE_FIT_H

#include "workers/engine/encoder.h"
#include "workers/engine/head.h"
#include "workers/engine/window.h"

/* Tokens of a lane's batch with a window, where memory allows: so that a layer is computed longer than it is read (docs/pipelines.md). */
enum { FIT_BATCH_TOKENS = 4096, FIT_TOKENS_OF_A_RECORD = 8, FIT_BATCH_RECORDS = 256 /* that a black box has room for */ };

struct fit_opts {
    const char *name;             /* of the model, for messages */
    const struct encoder *encoder;
    const struct head *head;      /* NULL: none of its segments */
    uint64_t memory_bytes, other_bytes; /* all that there is; what is not the model's */
    uint64_t weight_bytes, mapped_bytes; /* of the weights; of these, in a file */
    uint32_t lanes, max_tokens;
};

struct fit {
    struct window *window; /* NULL: it fits whole. window_free */
    uint32_t layers;       /* that the window holds at once */
    uint64_t window_bytes;
    uint32_t batch_tokens, batch_records;
};

/* Before anything is read. ST_ENV: without a file of packed weights it cannot be, and says so. */
MUST_USE enum status fit_unmapped(const struct fit_opts *o, struct err *e);
/* The weights are bound. ST_ENV names what is needed. */
MUST_USE enum status fit_model(const struct fit_opts *o, struct fit *out, struct err *e);

#endif
