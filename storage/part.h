/* A part: the immutable file that one commit makes. Sections of its extents lie one behind another: rows, auxiliary (ids of .npy
   outputs), errors. The worker fills it in memory, writes it once, and never opens it again.

   An error line in a part is JSON with what the assembler needs to make the line that people see:
   {"begin":P,"end":P,"source":I,"line":L,"row":R,"code":"...","message":"...","id":...}   begin and end are positions of the record; line
   counts line ends from the extent's start or, when the record's source begins inside the extent, from the source's start; row is the number of
   the extent's rows before it. */
#ifndef EBB_STORAGE_PART_H
#define EBB_STORAGE_PART_H

#include "base/buf.h"
#include "base/rows.h"
#include "base/status.h"

struct part; /* a part being filled */

struct part_info {
    uint64_t size_bytes;
    uint8_t digest[16]; /* XXH3-128 of the file */
};

MUST_USE enum status part_new(struct part **out, struct err *e);
void part_free(struct part *p);
void part_clear(struct part *p); /* ready for the next commit */
size_t part_bytes(const struct part *p);
size_t part_extent_count(const struct part *p);
const struct extent *part_extents(const struct part *p); /* span, sections, counts are filled in */

/* Begins an extent at position `begin`; results of consecutive records follow; part_end closes it. */
MUST_USE enum status part_begin(struct part *p, uint64_t begin, struct err *e);
/* row: its bytes as they stand in the output, a JSONL row with its line end; aux (.npy outputs): the row's line of the ids file, with
   its line end. The counts of the extent follow from these calls; part_extents shows those that part_end closed. */
MUST_USE enum status part_row(struct part *p, const void *row, size_t len, const void *aux, size_t aux_len, struct err *e);
/* All that one record came to: n rows, one behind another, each with its line end; perhaps none. */
MUST_USE enum status part_rows(struct part *p, const void *rows, size_t len, uint64_t n, struct err *e);
struct part_error {
    struct span record;
    size_t source;
    uint64_t line;
    const char *code, *message;
    const char *id_json; /* or NULL */
    size_t id_len;
};
MUST_USE enum status part_error(struct part *p, const struct part_error *error, struct err *e);
/* Of a job of one model each record leaves a row or an error; of several steps one may leave no row, or many. */
MUST_USE enum status part_end(struct part *p, uint64_t end, uint64_t lines, uint64_t bytes, struct err *e);

/* Writes <dir>/<job>/<epoch>-<seq> (decimal; folders are made): O_EXCL, data and folder synced. EEXIST: a file of that name is not
   ours to touch: ST_ENV. After a failed write or sync the file is condemned: removed, and the name not to be used again. */
MUST_USE enum status part_write(struct part *p, const char *dir, uint64_t job, uint64_t epoch, uint64_t seq, struct part_info *info,
                                struct err *e);
/* Gives the extents their name, and says what the file is to hold: for whoever writes it elsewhere. *data is valid until the part is changed. */
void part_seal(struct part *p, uint64_t epoch, uint64_t seq, struct part_info *info, const void **data);
/* "<dir>/<job>/<epoch>-<seq>" */
void part_path(char *out, size_t size, const char *dir, uint64_t job, uint64_t epoch, uint64_t seq);
/* Exists with that size? ST_OK; ST_NOT_FOUND or ST_CORRUPT saying what is there instead. Waits up to `wait_ms` for a network file system to
   show it. */
MUST_USE enum status part_verify(const char *dir, uint64_t job, uint64_t epoch, uint64_t seq, uint64_t size_bytes, uint32_t wait_ms,
                                 struct err *e);
/* Deletes files of the job's folder of parts but those that are to be kept: `keep` says so of (epoch, seq) that has a row, or of which a worker
   still holds the epoch. What is no part is not touched. */
MUST_USE enum status part_sweep(const char *dir, uint64_t job, int (*keep)(void *arg, uint64_t epoch, uint64_t seq), void *arg,
                                uint64_t *removed, struct err *e);

#endif
