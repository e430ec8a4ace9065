/* The bytes of one source at rest: opened, checked against what the dataset says of it, and read in order. Nothing beyond
   size_bytes is read, so that a file that grows gives the same bytes to everyone. */
#ifndef EBB_STORAGE_SOURCE_H
#define EBB_STORAGE_SOURCE_H

#include "storage/dataset.h"

struct source_file {
    int fd;
    const char *path; /* the source's; not owned */
    uint64_t size;    /* bytes that may be read */
    uint64_t at;      /* bytes before the next read */
};

/* ST_USER: it changed; ST_NOT_FOUND: it is gone; ST_ENV: it cannot be opened now. Close it with source_close. */
MUST_USE enum status source_open(const struct source *s, uint64_t from, struct source_file *out, struct err *e);
void source_close(struct source_file *f);
/* *got is less than `want` only at the end. ST_ENV: reading failed; ST_USER: the file has become shorter. */
MUST_USE enum status source_read(struct source_file *f, void *data, size_t want, size_t *got, struct err *e);

#endif
