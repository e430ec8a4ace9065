/* Inside the assembly: what assemble.c (opening, advancing, saving), merge.c (retries) and finish.c (names) share. */
#ifndef EBB_STORAGE_ASSEMBLY_H
#define EBB_STORAGE_ASSEMBLY_H

#include "storage/asmstate.h"
#include "storage/assemble.h"
#include "storage/errwalk.h"
#include "storage/outfiles.h"
#include "storage/output.h"

/* The output of an earlier attempt, while a retry merges. */
struct old {
    struct seal seal;
    struct file_record *files;
    struct error_record *errors;
    int rows_fd, ids_fd, errors_fd;
    char *rows_path, *ids_path, *errors_path;
    struct buf window; /* of the errors; from `used` on it holds what lies at old_errors_at */
    size_t used;
};

struct taken_part {
    uint64_t epoch, seq;
};

struct assembly {
    struct output_spec o;
    const struct dataset *d;
    char *path, *parts_dir;
    struct asmstate st;
    struct outfiles files;
    struct errwalk walk;
    struct part_file part;
    int errors_fd, index_fd;
    char *errors_path, *index_path;
    struct buf errors, index; /* not written yet; st.errors and st.errors_bytes count them */
    struct old old;
    struct taken_part *parts; /* appended whole; those before `saved_parts` lie before what was saved */
    size_t part_count, part_cap, saved_parts;
    int sealed, failed;
    struct seal seal;
};

/* assemble.c */
void assembly_close_files(struct assembly *a);
/* Counts the row whose bytes were added to a->errors behind `before`, and adds its record. */
MUST_USE enum status assembly_count_error(struct assembly *a, size_t before, const struct error_record *r, struct err *e);
MUST_USE enum status assembly_sync(struct assembly *a, struct err *e);
MUST_USE enum status assembly_usable(const struct assembly *a, struct err *e);

/* merge.c */
/* Takes _SUCCESS away and opens the earlier output, whose seal a->old.seal is. *kept: its files before the one that holds the first
   row to move. */
MUST_USE enum status merge_open(struct assembly *a, int fresh, uint64_t *kept, struct err *e);
void merge_close(struct assembly *a);
/* Makes way for the extent: everything of the earlier output that lies before it flows past, the errors of its records go. */
MUST_USE enum status merge_extent(struct assembly *a, const struct extent *x, struct err *e);
MUST_USE enum status merge_rest(struct assembly *a, struct err *e);

#endif
