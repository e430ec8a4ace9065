/* Records out of one source. reader_open enters it at a given offset; reader_next gives record after record, good and bad, in
   order; memory stays flat whatever the source's size. Which record belongs to a span is decided by its first byte. */
#ifndef EBB_STORAGE_READER_H
#define EBB_STORAGE_READER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "storage/dataset.h"

/* What can be wrong with one record: code as it stands in errors.jsonl, words */
#define RECORD_ERROR_MAP(X)                                                                                                      \
    X(NONE, "", "")                                                                                                              \
    X(INVALID_JSON, "invalid_json", "not valid JSON")                                                                            \
    X(INVALID_UTF8, "invalid_utf8", "not valid UTF-8")                                                                           \
    X(NOT_OBJECT, "not_object", "a JSON value that is no object")                                                                \
    X(MISSING_FIELD, "missing_field", "the field is not there")                                                                  \
    X(WRONG_TYPE, "wrong_type", "the field is no text")                                                                          \
    X(WRONG_COLUMNS, "wrong_columns", "another number of columns than the header")                                               \
    X(BAD_QUOTES, "bad_quotes", "a quoted field that is not closed")                                                             \
    X(TOO_LONG, "too_long", "longer than a record may be")                                                                       \
    X(TRUNCATED, "truncated", "the compressed stream ends before its end")                                                       \
    X(DAMAGED, "damaged", "the compressed stream is damaged")                                                                    \
    X(UNREADABLE, "unreadable", "the source cannot be read")                                                                     \
    X(TOO_MANY_TOKENS, "too_many_tokens", "more tokens than the model takes")                                                    \
    X(NOT_TOKENISED, "not_tokenised", "the tokenizer cannot take it")                                                            \
    X(BAD_IMAGE, "bad_image", "no image that can be read")                                                                       \
    X(WRONG_SHAPE, "wrong_shape", "not the numbers that the model's input wants")                                                \
    X(CRASHED, "crashed", "crashed the worker every time it was run alone")                                                      \
    X(HUNG, "hung", "hung the worker every time it was run alone")                                                               \
    X(OUT_OF_MEMORY, "out_of_memory", "took all memory every time it was run alone")                                             \
    X(FAILED, "failed", "failed every time it was tried")
enum record_error {
#define X(name, code, words) RECORD_##name,
    RECORD_ERROR_MAP(X)
#undef X
};
const char *record_error_code(enum record_error error);

struct reader_opts {
    enum format format;
    uint64_t max_record_bytes; /* longer ones are TOO_LONG, skipped without being held; 16 MiB by default */
};

struct raw {                   /* one record as it stands in the source */
    uint64_t offset, end;      /* in the source, after decompression: first byte, one past its line end */
    uint64_t line;             /* number of line ends between where the reader entered (offset 0: the source's start) and its first
                                  byte; the first record of a source has 0 */
    const char *data;          /* without line end; a BOM at the source's start dropped; valid until the next call */
    size_t len;                /* 0 with an error that leaves nothing to show */
    enum record_error error;   /* TOO_LONG, TRUNCATED, DAMAGED, BAD_QUOTES, UNREADABLE; else NONE */
    char message[160];         /* with an error */
};

struct reader;

/* A record of CSV or TSV ends at the first line end outside quotes. One that is too long ends at the first line end behind max_record_bytes,
   quotes or not, so that a stray quote takes no more than that with it.

   Enters `s` at offset `from`: anywhere in plain JSONL and LINES (the first record is the first that begins at or after `from`, where a
   record begins at 0 or behind '\n'), at a known record start elsewhere. Verifies size (not smaller than s->size_bytes) and
   time (of a file that grew, only the size): ST_USER "'x' changed since the job was submitted (…)" holds the job, and so does ST_NOT_FOUND: it is gone. ST_ENV: cannot be opened or read now. Bytes beyond
   s->size_bytes are not read. A compressed stream is decompressed from its start and skipped up to `from`. */
MUST_USE enum status reader_open(const struct source *s, const struct reader_opts *o, uint64_t from, struct reader **out,
                                 struct err *e);
void reader_close(struct reader *r);

/* The next record whose first byte lies before `to` (offset). ST_END: there is none; then reader_position is `to`, or where the
   source ended. A record may end behind `to`; reader_position and reader_lines never go beyond it. The first row of CSV and TSV is the
   header and no record; entered at 0, the reader passes over it. Blank lines are skipped in JSONL, CSV and TSV; in LINES they are records of no text.
   A stream that is truncated or damaged gives the records before the fault, then one record with the error (it ends one byte
   behind the fault, so that it is never empty and nobody finds it twice), then ST_END.
   ST_ENV: reading failed (EIO ...), ST_NOMEM. */
MUST_USE enum status reader_next(struct reader *r, uint64_t to, struct raw *out, struct err *e);
uint64_t reader_position(const struct reader *r); /* everything before this offset has been given */
uint64_t reader_lines(const struct reader *r);    /* line ends between where the reader entered and reader_position (which in CSV must be
                                                     no place inside a record) */
uint64_t reader_bytes(const struct reader *r);    /* bytes at rest consumed since it entered (compressed ones of a stream; skipping back
                                                     to `from` does not count) */
int reader_at_end(const struct reader *r);        /* the source has no more; of a stream this may be known only after ST_END */

/* Where a record begins at or after `target`, for a cut of a stream whose reading stands at `from` (a known record start): scans
   without decoding, on a handle of its own. *at is the source's end when there is none. Any thread. For line formats that can be entered
   anywhere it is target itself. */
MUST_USE enum status reader_boundary(const struct source *s, const struct reader_opts *o, uint64_t from, uint64_t target, uint64_t *at,
                                     struct err *e);

/* The column names of a CSV/TSV source (its first row); an empty list for a source without rows. The caller frees with
   columns_release. */
struct columns {
    char **names;
    size_t count;
};
MUST_USE enum status reader_columns(const struct source *s, const struct reader_opts *o, struct columns *out, struct err *e);
void columns_release(struct columns *c);

#endif
