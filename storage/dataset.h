/* The dataset of a job: an ordered list of sources, fixed when the job is submitted. */
#ifndef EBB_STORAGE_DATASET_H
#define EBB_STORAGE_DATASET_H

#include <stddef.h>
#include <stdint.h>

#include "base/layout.h"
#include "base/status.h"

/* name, word, stream even when not compressed */
#define FORMAT_MAP(X)                                                                                                            \
    X(AUTO, "auto", 0)                                                                                                           \
    X(JSONL, "jsonl", 0)                                                                                                         \
    X(CSV, "csv", 1)                                                                                                             \
    X(TSV, "tsv", 1)                                                                                                             \
    X(LINES, "lines", 0)                                                                                                         \
    X(IMAGES, "images", 0)                                                                                                       \
    X(NPY, "npy", 0)
enum format {
#define X(name, word, stream) FORMAT_##name,
    FORMAT_MAP(X)
#undef X
};
const char *format_name(enum format f);
int format_parse(const char *word, enum format *out); /* 0 when there is no such word */

enum compression { COMPRESSION_NONE, COMPRESSION_GZIP, COMPRESSION_ZSTD };

struct source_via;

struct source {
    char *path;          /* absolute; owned by the dataset */
    uint64_t size_bytes; /* at rest, when the job was submitted; growth beyond it is ignored */
    int64_t mtime_ns;
    enum compression compression;
    uint64_t base;       /* position of its first byte */

    const struct source_via *via; /* NULL: a file under that path; else see source.h. Not owned */
    uint64_t job, index;          /* for `via`: the job, the source's index in its dataset */
    uint64_t until;               /* for `via`: a reader will hardly go beyond this offset; 0: not known */
};

struct dataset_spec {
    const char *const *inputs; /* files, directories (all files below, hidden ones left out), globs (*, ?, [...], **), see
                                  storage/walk.h; "-" is not known here: standard input is spooled into a file first, see dataset_spool */
    size_t input_count;
    enum format format;        /* AUTO: by the sources' names (.jsonl .ndjson .json .csv .tsv .txt, with or without .gz .zst; .jpg .jpeg
                                  .png .webp: images, each file a record; .npy: arrays, each row a record), all of one kind; else refused, saying which names disagree */
    uint64_t limit;            /* 0: none; else the first so many records, bad ones included */
    uint64_t max_record_bytes; /* for finding the end of the limit */
};

struct dataset {
    enum format format;
    size_t count;
    struct source *sources;    /* in the order of `inputs`; within one of them by name, bytewise, digits not treated apart */
    struct layout layout;
    uint64_t end;              /* positions from here on do not belong to the job (--limit); else layout_end */
};

/* Lists and stats. Errors (ST_USER): nothing matches (says which input), unreadable, a folder without files, mixed formats,
   UTF-16/32 by BOM in the first source (advice: iconv), compressed bytes there without such a name, a source twice (the same path; two
   names of one file are two sources). Empty files are fine. On failure *out is untouched. */
MUST_USE enum status dataset_open(const struct dataset_spec *spec, struct dataset *out, struct err *e);
void dataset_release(struct dataset *d);
/* XXH3-128 over format, end (the limit) and each source's path, size and time: part of the job's fingerprint. */
void dataset_digest(const struct dataset *d, uint8_t out[16]);
/* The first source of `now` that differs from `then`, in words ("'a.jsonl' had 120 bytes and has 130"); 0 when equal. */
int dataset_differs(const struct dataset *then, const struct dataset *now, char *words, size_t size);
/* Copies fd to `path` durably (data and folder synced, O_EXCL under a temporary name, then renamed). */
MUST_USE enum status dataset_spool(int fd, const char *path, uint64_t *bytes, struct err *e);

/* On disk: see docs/disk-format.md. Chunks of some thousand sources; encode gives the i-th chunk (*more is 0 on the last). */
struct buf;
MUST_USE enum status dataset_encode_chunk(const struct dataset *d, size_t chunk, struct buf *out, int *more, struct err *e);
/* Appends what a chunk holds; chunks come in order; dataset_finish builds the layout. */
MUST_USE enum status dataset_decode_chunk(struct dataset *d, const void *data, size_t len, struct err *e);
MUST_USE enum status dataset_finish(struct dataset *d, struct err *e);

#endif
