/* What the segments of a model (cut.h) cost on this machine: each is opened alone, one after the other, and run on what the one before it gave, so that no more
   than one of them is in memory. The planner divides a model among workers by such figures (docs/pipelines.md). */
#ifndef EBB_ENGINE_PROFILE_H
#define EBB_ENGINE_PROFILE_H

#include <stdint.h>

#include "base/status.h"
#include "workers/engine/cut.h"
#include "workers/engine/model.h"

/* The micro-batch of the nominal size: so many made-up texts of so many tokens (or as many as the model takes). */
enum { PROFILE_TEXTS = 8, PROFILE_TOKENS = 128 };

struct profile_segment {
    char first[96];        /* the op, or the layer, with which it begins */
    double time_ms;        /* between two nominal micro-batches where o->lanes lanes are at work: a lane's processor time over their number */
    uint64_t weight_bytes; /* in memory, as packed */
    double out_bytes;      /* what crosses the cut behind it, of the nominal micro-batch; of the last one, its results */
};

struct profile {
    struct profile_segment *list;
    uint32_t count;
    uint32_t texts, tokens; /* of the nominal micro-batch: tokens of each text */
    uint64_t fixed_bytes;   /* memory that a stage takes beside its weights, with o->lanes contexts */
    struct model_info info; /* of the whole model */
};

/* o: as the model is going to be opened; part, first and end are not looked at. slower: 1; in tests of unlike speeds times are so many times longer. ST_USER: the
   model cannot be run in parts, with the reason. profile_release. */
MUST_USE enum status profile_measure(const char *dir, const struct model_opts *o, double slower, struct profile *out, struct err *e);
void profile_release(struct profile *p);

#endif
