/* In what the linear layers of a model compute: the words of --precision. */
#ifndef EBB_ENGINE_PRECISION_H
#define EBB_ENGINE_PRECISION_H

#include "base/status.h"
#include "workers/engine/cpu/kernels.h"

extern const char *const precision_words[PRECISIONS + 1]; /* NULL behind the last */
/* NULL and "auto": f32, which gives the model's own numbers, the same bits on every processor. Another precision is faster and rounds, so it is
   asked for, never taken. ST_USER: the word is not known. */
MUST_USE enum status precision_parse(const char *word, enum precision *out, struct err *e);
/* Why it is this one, for people. */
const char *precision_why(enum precision p);

#endif
