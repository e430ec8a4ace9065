/* Reads what commits made, extent after extent, and knows on which line each error stands: lines are prefix sums over extents. */
#ifndef EBB_STORAGE_ERRWALK_H
#define EBB_STORAGE_ERRWALK_H

#include "base/rows.h"
#include "base/status.h"
#include "storage/dataset.h"
#include "storage/errline.h"

/* The part that is open; consecutive extents often share one. */
struct part_file {
    const char *dir; /* borrowed */
    uint64_t job, epoch, seq;
    int fd; /* -1: none */
    uint64_t size;
    char *path;
};
/* Opens the part of the extent and checks that its sections lie inside. ST_CORRUPT, naming the part, when it is missing or has
   another size than its extents say. */
MUST_USE enum status part_file_open(struct part_file *p, const struct extent *x, struct err *e);
void part_file_close(struct part_file *p);

struct errwalk {
    const struct dataset *d;
    uint64_t source, lines; /* line ends before the next extent, in this source */
    int known;              /* 0: behind a gap, the number of lines is not known */
};

/* The next extent does not follow the last one. */
void errwalk_jump(struct errwalk *w, uint64_t begin);
/* Gives the extent's errors in order (line: from 1, 0 unknown; x->row counts the extent's rows before it), then moves behind it. A
   quarantined one has no part: p is not touched, its error is made of its reason. */
typedef enum status errwalk_fn(void *arg, const struct errline *x, uint64_t line, struct err *e);
MUST_USE enum status errwalk_extent(struct errwalk *w, const struct extent *x, struct part_file *p, errwalk_fn *visit, void *arg,
                                    struct err *e);

#endif
