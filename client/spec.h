/* The job of a command line: a job file, if one is named, and flags over it. For run, check and submit. */
#ifndef EBB_CLIENT_SPEC_H
#define EBB_CLIENT_SPEC_H

#include "base/opt.h"
#include "wire/jobspec.h"

/* `own` behind the fields of a job, in a table that lives until the program ends; NULL: out of memory. Called once a program. */
const struct opt_command *spec_table(const struct opt_command *like, const struct opt *own, size_t own_count, struct err *e);
/* After the options are parsed. Released by the caller; checked with jobspec_check. */
MUST_USE enum status spec_read(struct jobspec *s, int operand_count, char **operands, struct err *e);

#endif
