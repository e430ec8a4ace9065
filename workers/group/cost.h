/* What the segments of a model cost on this machine, measured once and kept beside the packed weights, as JSON:
   `<digest>-<precision>-<isa>-<task>-<lanes>.cost`. A file that was made on another processor, by another version, or is damaged, is measured and
   written again. */
#ifndef EBB_WORKERS_COST_H
#define EBB_WORKERS_COST_H

#include "base/status.h"
#include "workers/engine/profile.h"

/* info: what the model says when it is opened, for the file's name. As profile_measure otherwise; o->pack_dir NULL keeps nothing. */
MUST_USE enum status cost_of(const char *dir, const struct model_opts *o, const struct model_info *info, struct profile *out, struct err *e);

#endif
