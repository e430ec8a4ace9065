/* The files of rows of an output as they grow: rows are appended in runs, files end at the first row end at or behind part_bytes, so
   that they do not depend on how the runs were cut. Every file bears the ending .partial until the output is named. */
#ifndef EBB_STORAGE_OUTFILES_H
#define EBB_STORAGE_OUTFILES_H

#include "storage/output.h"

/* What must be known to go on after a restart. `file` counts the finished files, too. */
#define OUTFILES_STATE_MAP(X)                                                                                                    \
    X(rows)       /* of all files */                                                                                             \
    X(file)       /* the current file's number */                                                                                \
    X(file_open)  /* 1: it has been made */                                                                                      \
    X(file_rows)  /* in it */                                                                                                    \
    X(file_bytes) /* of rows in it, a header not counted */                                                                      \
    X(ids_bytes)  /* in its file of ids */                                                                                       \
    X(kept)       /* so many files stand under their names from an earlier attempt */
struct outfiles_state {
#define X(name) uint64_t name;
    OUTFILES_STATE_MAP(X)
#undef X
};

/* Whole rows, one behind the other, in a file; with .npy outputs the same rows' ids in another place. */
struct run {
    int fd, ids_fd;
    const char *path, *ids_path; /* for messages */
    uint64_t at, bytes, rows;
    uint64_t ids_at, ids_bytes;
};

struct outfiles {
    struct output_spec o;
    struct outfiles_state st;
    uint64_t part_bytes, row_bytes;
    char *rows_path, *ids_path, *index_path, *folder, *work;
    int rows_fd, ids_fd, index_fd;
    int new_names; /* since the last sync */
    char *scratch;
};

/* state NULL: begins anew, with `kept` files whose records are `records`. Else files are truncated to what it says. On failure
   nothing is held. */
MUST_USE enum status outfiles_open(struct outfiles *f, const struct output_spec *o, uint32_t attempt, const struct outfiles_state *state,
                                   uint64_t kept, const struct file_record *records, struct err *e);
void outfiles_close(struct outfiles *f);
MUST_USE enum status outfiles_append(struct outfiles *f, const struct run *r, struct err *e);
MUST_USE enum status outfiles_sync(struct outfiles *f, struct err *e);
MUST_USE enum status outfiles_complete(struct outfiles *f, struct err *e); /* ends the current file; outfiles_sync follows */

/* Copies [at, at + len) of one file to another. */
MUST_USE enum status outfiles_copy(struct outfiles *f, int from, const char *from_path, uint64_t at, int to, const char *to_path,
                                   uint64_t to_at, uint64_t len, struct err *e);
/* Behind the nth line end at or after `at`; ST_CORRUPT when there are fewer before `end`. */
MUST_USE enum status outfiles_skip_lines(struct outfiles *f, int fd, const char *path, uint64_t at, uint64_t end, uint64_t n, uint64_t *to,
                                         struct err *e);

#endif
