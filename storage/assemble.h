/* From extents to the files that people see. The finished head of a job's output is appended to FILE.partial as it grows; the
   names without .partial appear when all is done. Everything here is idempotent: it may be stopped anywhere and begun again.

   Output is a directory (path ends in '/', exists as one, or no file ending is known) or one file (.jsonl, .npy):
     out/part-00000.jsonl ...   rotated at the first row end at or behind part_bytes of output, so that names and bytes do not depend
                                on how the job was cut; .npy: at whole rows, each part with a header of its own
     out/part-00000.ids.jsonl   beside each .npy part: one JSON id a row (or {"source":..,"offset":..} where the record has none)
     out/errors.jsonl           {"source","line","id"?,"code","message"} in input order; always there, empty without errors
     out/manifest.json          files in order with rows, bytes, digest; counts; model digest; numerics; the job as run
     out/_SUCCESS               last
     FILE, FILE.ids.jsonl, FILE.errors.jsonl, FILE.manifest.json      the same for one file
   The working folder is out/.ebb or FILE.ebb: parts/, and error index for `retry`. */
#ifndef EBB_STORAGE_ASSEMBLE_H
#define EBB_STORAGE_ASSEMBLE_H

#include "base/buf.h"
#include "base/rows.h"
#include "base/status.h"
#include "storage/dataset.h"
#include "storage/store.h"

enum output_kind { OUTPUT_JSONL, OUTPUT_NPY };

struct output_spec {
    const char *path;      /* absolute */
    int is_dir;
    enum output_kind kind;
    uint32_t dims;         /* NPY: floats a row; little-endian f32. 0 when no row was ever made: shape (0, 0) */
    uint64_t part_bytes;   /* rotation of directory outputs; 0: 256 MiB */
};

/* Decides is_dir and kind from the path's ending (format_word "jsonl", "npy" or NULL for "by the ending, else jsonl"). ST_USER when they
   disagree. */
MUST_USE enum status output_resolve(const char *path, const char *format_word, struct output_spec *out, struct err *e);
/* "<path>/.ebb" or "<path>.ebb". The caller frees. NULL when memory is out. */
char *output_work_dir(const struct output_spec *o);
char *output_parts_dir(const struct output_spec *o); /* the work folder's "parts" */
/* Whose output is this? Reads <work>/job (written by output_claim): ST_NOT_FOUND when it is nobody's and holds no foreign files;
   ST_USER when files stand there that ebb did not make ("'out' is not empty: ...; choose another --output or --force"). */
MUST_USE enum status output_owner(const struct output_spec *o, struct buf *fingerprint_json, struct err *e);
/* Makes the folders and writes <work>/job durably (the job's fingerprint as JSON, for the difference to be printed later). */
MUST_USE enum status output_claim(const struct output_spec *o, const char *fingerprint_json, size_t len, struct err *e);

struct assembly;

/* After any failure (but ST_AGAIN of assembly_finish) an assembly is of no use: close it and open it from what was saved last.

   saved: what assembly_save gave last (NULL, 0 at first): files are truncated to the lengths it names. attempt 0 makes the output; a higher one
   (retry) merges rows of extents of that attempt into the output that stands: _SUCCESS goes first, new files are written beside the old
   ones and take their names at the end. */
MUST_USE enum status assembly_open(const struct output_spec *o, uint64_t job, const struct dataset *d, uint32_t attempt, const void *saved,
                                   size_t saved_len, struct assembly **out, struct err *e);
void assembly_close(struct assembly *a);
uint64_t assembly_head(const struct assembly *a); /* position: all extents before it are in */
/* Appends the extents of the store that follow the head without a gap (nothing is between them but space at the end of streams: the
   caller gives the position `head` before which everything is DONE), at most about `bytes` of output. *more: there is more. A part that is missing or has
   another size than its extents say is ST_CORRUPT, naming it. */
MUST_USE enum status assembly_advance(struct assembly *a, struct store *s, uint64_t head, uint64_t bytes, int *more, struct err *e);
/* Syncs data; gives the bytes to keep as rows_put_assembly. */
MUST_USE enum status assembly_save(struct assembly *a, struct buf *out, struct err *e);
/* After that row is safe: deletes parts of which everything was appended before it (those shared by several extents stay until the end). */
MUST_USE enum status assembly_free_parts(struct assembly *a, struct err *e);

struct manifest_info {
    const char *spec_json;       /* the job as run */
    const char *model_digest, *numerics, *model_name;
    struct job_counts counts;
    uint32_t attempt;
    int64_t submitted_ms, finished_ms;
    const char *version;
};
/* The head is the dataset's end: headers completed, names made, errors, manifest, _SUCCESS, parts removed. */
MUST_USE enum status assembly_finish(struct assembly *a, const struct manifest_info *info, struct err *e);

/* The records in error of a finished output, in order, for `retry`: positions. The caller frees with mem_free. */
MUST_USE enum status assembly_error_spans(const struct output_spec *o, struct span **out, size_t *count, struct err *e);
/* Visits the job's error rows as people see them: those already assembled and, from the store, those that are not yet; for
   `ebb errors` while a job runs. Each is one JSON line. */
MUST_USE enum status assembly_each_error(const struct output_spec *o, uint64_t job, const struct dataset *d, struct store *s,
                                         enum status (*visit)(void *arg, const char *json, size_t len, struct err *e), void *arg, struct err *e);

#endif
