/* What an assembly keeps between starts: little numbers, as the row `assembly` of the job. */
#ifndef EBB_STORAGE_ASMSTATE_H
#define EBB_STORAGE_ASMSTATE_H

#include "storage/outfiles.h"

#define ASMSTATE_MAP(X)                                                                                                          \
    X(job)                                                                                                                       \
    X(attempt)                                                                                                                   \
    X(kind)                                                                                                                      \
    X(is_dir)                                                                                                                    \
    X(dims)                                                                                                                      \
    X(part_bytes)                                                                                                                \
    X(head)         /* position: all before it is in */                                                                         \
    X(taken)        /* extents so far; 0: the next two say nothing */                                                            \
    X(last_begin)   /* the last one's span */                                                                                    \
    X(last_end)                                                                                                                  \
    X(line_source)  /* line ends before last_end, in this source */                                                              \
    X(line_count)                                                                                                                \
    X(errors)       /* error rows written */                                                                                     \
    X(errors_bytes)                                                                                                              \
    X(inserted)     /* retry: rows that the output did not have before */                                                        \
    X(old_errors)   /* retry: error rows of the earlier output that are behind us, and their bytes */                            \
    X(old_errors_at)                                                                                                             \
    X(old_row)      /* retry: rows of the earlier output that are behind us, and where in which file that is */                  \
    X(old_file)                                                                                                                  \
    X(old_file_row)                                                                                                              \
    X(old_at)                                                                                                                    \
    X(old_ids_at)
struct asmstate {
#define X(name) uint64_t name;
    ASMSTATE_MAP(X)
#undef X
    struct outfiles_state files;
};

int asmstate_put(struct buf *out, const struct asmstate *s); /* 0, or -1 when memory is out */
MUST_USE enum status asmstate_get(const void *data, size_t len, struct asmstate *s, struct err *e);

#endif
