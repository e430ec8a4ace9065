/* Sources whose records have a length that is known beforehand: whole files (images), and the rows of a .npy array. They can be entered
   anywhere. storage/reader.h stands before this; what its functions promise holds here. */
#ifndef EBB_STORAGE_FIXED_H
#define EBB_STORAGE_FIXED_H

#include "storage/npy.h"
#include "storage/reader.h"

struct fixed;

int fixed_format(enum format f); /* it is read by this */
MUST_USE enum status fixed_open(const struct source *s, const struct reader_opts *o, uint64_t from, struct fixed **out, struct err *e);
void fixed_close(struct fixed *f);
MUST_USE enum status fixed_next(struct fixed *f, uint64_t to, struct raw *out, struct err *e);
uint64_t fixed_position(const struct fixed *f);
uint64_t fixed_lines(const struct fixed *f); /* of an array rows take the place of lines */
int fixed_at_end(const struct fixed *f);

/* The header of a .npy source. ST_CORRUPT: it has none that can be used; such a source gives one record, with that error (its words name no file).
   Others as of reader_open. */
MUST_USE enum status fixed_npy(const struct source *s, struct npy *out, struct err *e);

#endif
