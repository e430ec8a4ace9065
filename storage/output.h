/* Inside the output: where its files stand, and what is kept about them in the working folder. storage/assemble.h is the public
   face. All numbers in these files are little-endian; docs/disk-format.md tells every byte.

   <work>/job                 the fingerprint of the job that owns the output
   <work>/files-<attempt>     a record for each finished file of rows
   <work>/errors-<attempt>    a record for each error row: which record, and before which row it would have stood
   <work>/output              the seal: written when all bytes are safe and only names are missing; what `retry` begins with */
#ifndef EBB_STORAGE_OUTPUT_H
#define EBB_STORAGE_OUTPUT_H

#include "storage/assemble.h"

#define PARTIAL ".partial"
#define NPY_HEADER 128
#define PART_BYTES_DEFAULT ((uint64_t)256 << 20)

enum output_name { OUTPUT_ROWS, OUTPUT_IDS, OUTPUT_ERRORS, OUTPUT_MANIFEST, OUTPUT_SUCCESS };

/* The caller frees; NULL when memory is out. index counts for ROWS and IDS. A single file has no _SUCCESS: that it stands under its
   own name says the same. */
char *output_name(const struct output_spec *o, enum output_name what, uint64_t index, int partial);
/* The same without the path before it. Owned as above. */
char *output_base_name(const struct output_spec *o, enum output_name what, uint64_t index);
/* A file of the working folder; attempt is added behind the name unless UINT32_MAX. */
char *output_work_file(const struct output_spec *o, const char *name, uint32_t attempt);
/* The folder in which the names stand. */
char *output_folder(const struct output_spec *o);
/* Removes files of rows and ids that have no name yet, of index `from` and above. */
MUST_USE enum status output_drop_partial(const struct output_spec *o, uint64_t from, struct err *e);

/* Records of the two indexes ------------------------------------------------------------------------------------------------- */
struct file_record {
    uint64_t rows, bytes, ids_bytes; /* bytes: of the whole file */
    uint8_t digest[16], ids_digest[16];
};
#define FILE_RECORD_BYTES 56
struct error_record {
    struct span record;
    uint64_t row;          /* rows of the output before it */
    uint64_t source, line; /* line counts from 1; 0 is not used */
};
#define ERROR_RECORD_BYTES 40

int file_record_put(struct buf *b, const struct file_record *r);
void file_record_get(struct cursor *c, struct file_record *r);
int error_record_put(struct buf *b, const struct error_record *r);
void error_record_get(struct cursor *c, struct error_record *r);
/* Reads `count` records; the file may be longer (what follows is of no account), not shorter. The caller frees with mem_free. */
MUST_USE enum status output_read_files(const struct output_spec *o, uint32_t attempt, uint64_t count, struct file_record **out,
                                       struct err *e);
MUST_USE enum status output_read_errors(const struct output_spec *o, uint32_t attempt, uint64_t count, struct error_record **out,
                                        struct err *e);

/* The seal ------------------------------------------------------------------------------------------------------------------ */
struct seal {
    uint64_t job, attempt;
    uint64_t kind, is_dir, dims, part_bytes;
    uint64_t rows, files, kept; /* kept: so many files stand under their names from an earlier attempt */
    uint64_t errors, errors_bytes;
    uint64_t end;               /* of the dataset */
    uint8_t errors_digest[16];
};
MUST_USE enum status seal_write(const struct output_spec *o, const struct seal *s, struct err *e);
MUST_USE enum status seal_read(const struct output_spec *o, struct seal *s, struct err *e); /* ST_NOT_FOUND */

/* Little things ------------------------------------------------------------------------------------------------------------- */
MUST_USE enum status output_pwrite(int fd, const char *path, const void *data, size_t len, uint64_t at, struct err *e);
/* Exactly len bytes; fewer are ST_CORRUPT. */
MUST_USE enum status output_pread(int fd, const char *path, void *data, size_t len, uint64_t at, struct err *e);
/* Before more is written behind the first `bytes`: they are there, and the file still has a name. Else ST_CORRUPT. */
MUST_USE enum status output_intact(int fd, const char *path, uint64_t bytes, struct err *e);
/* Both with the fault point "assemble.sync". */
MUST_USE enum status output_sync(int fd, const char *path, struct err *e);
MUST_USE enum status output_sync_dir(const char *dir, struct err *e);
/* XXH3-128 of [0, bytes) of the file. */
MUST_USE enum status output_digest(int fd, const char *path, uint64_t bytes, uint8_t out[16], struct err *e);

/* storage/manifest.c */
MUST_USE enum status manifest_write(const struct output_spec *o, const struct seal *s, const struct file_record *files,
                                    const struct manifest_info *info, struct err *e);

#endif
