/* The black box: a small file that a worker maps and keeps up to date without system calls, so that whoever reaps it can read which
   records were in its lanes when it died. One slot a lane, plus slots for the stages before (decoding and tokenising can crash too). */
#ifndef EBB_WIRE_BLACKBOX_H
#define EBB_WIRE_BLACKBOX_H

#include <stddef.h>
#include <stdint.h>

#include "base/layout.h"
#include "base/status.h"

#define BLACKBOX_RECORDS 256 /* in one slot */

struct blackbox_record {
    uint64_t job, epoch;
    struct span record;
};

struct blackbox;

/* Worker: makes the file (replacing an old one) with so many slots. */
MUST_USE enum status blackbox_create(const char *path, uint32_t slots, struct blackbox **out, struct err *e);
/* One thread per slot. Enter says: these records are in this slot now (more than BLACKBOX_RECORDS: the first ones are kept, the box says
   that it is incomplete); leave empties it. */
void blackbox_enter(struct blackbox *b, uint32_t slot, const struct blackbox_record *records, uint32_t count);
void blackbox_leave(struct blackbox *b, uint32_t slot);
/* A cause that the worker itself knows, noted before it dies: memory is out; a handler of SIGSEGV, SIGABRT and the like. Kept in the box. Async-signal-safe. */
enum blackbox_cause { BLACKBOX_UNKNOWN, BLACKBOX_OUT_OF_MEMORY, BLACKBOX_CRASHED };
void blackbox_cause(struct blackbox *b, enum blackbox_cause cause);
void blackbox_close(struct blackbox *b, const char *unlink_path); /* NULL: the file stays */

/* Parent, after the worker's death: what was inside. The caller frees *out with mem_free. A missing or short file gives nothing
   (ST_OK, count 0). */
MUST_USE enum status blackbox_read(const char *path, struct blackbox_record **out, size_t *count, int *incomplete, enum blackbox_cause *cause,
                                   struct err *e);

#endif
