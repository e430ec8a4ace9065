/* Does an output lie in its own input? Then a job would destroy what it reads, or find its own results among its sources the next time. */
#ifndef EBB_STORAGE_OVERLAP_H
#define EBB_STORAGE_OVERLAP_H

#include "storage/assemble.h"
#include "storage/dataset.h"

/* ST_USER: `inputs` (as in dataset_spec) name a place where the output's files would be found too. Before dataset_open, which would trip over them. */
MUST_USE enum status overlap_inputs(const struct output_spec *o, const char *const *inputs, size_t input_count, struct err *e);
/* ST_USER: a source is a file that the output would replace, or lies in the output's folder. What lies in the working folder, such as spooled
   standard input, is no output. */
MUST_USE enum status overlap_sources(const struct output_spec *o, const struct dataset *d, struct err *e);

#endif
