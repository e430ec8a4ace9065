/* The bytes of one source at rest: opened, checked against what the dataset says of it, and read in order. Nothing beyond
   size_bytes is read, so that a file that grows gives the same bytes to everyone. */
#ifndef EBB_STORAGE_SOURCE_H
#define EBB_STORAGE_SOURCE_H

#include "storage/dataset.h"

struct buf;

/* Where a source's bytes come from when not from a file of this machine. Any thread may open; who opened a handle alone reads and closes it. Errors as of
   source_open and source_read. */
struct source_via {
    void *arg;
    /* NULL, with read and close: a file after all */
    enum status (*open)(const struct source_via *v, const struct source *s, uint64_t from, void **handle, struct err *e);
    enum status (*read)(void *handle, void *data, size_t want, size_t *got, struct err *e); /* *got 0: the source has become shorter */
    void (*close)(void *handle);
    /* A file that a record of the source names, whole; as below_read of below.h. Replaces `out`. */
    enum status (*named)(const struct source_via *v, const struct source *s, const char *path, uint64_t max_bytes, struct buf *out, struct err *e);
};

struct source_file {
    int fd;
    const char *path; /* the source's; not owned */
    uint64_t size;    /* bytes that may be read */
    uint64_t at;      /* bytes before the next read */
    const struct source_via *via;
    void *handle;
};

/* ST_USER: it changed; ST_NOT_FOUND: it is gone; ST_ENV: it cannot be opened now. Close it with source_close. */
MUST_USE enum status source_open(const struct source *s, uint64_t from, struct source_file *out, struct err *e);
void source_close(struct source_file *f);
/* The file of an open descriptor against what the dataset says of it: as source_open. */
MUST_USE enum status source_check(const struct source *s, int fd, struct err *e);
/* Which code a failed open comes to. */
enum status source_open_failed(const char *path, int errnum, struct err *e);
/* *got is less than `want` only at the end. ST_ENV: reading failed; ST_USER: the file has become shorter. */
MUST_USE enum status source_read(struct source_file *f, void *data, size_t want, size_t *got, struct err *e);

#endif
