/* What travels between the stages of an ONNX model, in bytes: for each record of a micro-batch either why it does not go through the model, or, with the records that
   shared its run, the tensors that cross the cut. Both sides made their part of the same model (graph/part.h) and know which these are; what is read is checked against
   that, and is ST_CORRUPT where it does not fit.

   All numbers are little-endian, each field begins at a multiple of eight bytes:
     head      8 check of the cut; 4 records; 4 runs
     run       4 records in it; 4 bytes of an error (0: none); 4 each: which records; then the error, or the sizes and tensors that both sides know to be there
     tensor    1 element type; 1 rank; 6 zero; 8 each: sizes; then elements as they lie in memory. Of strings: 8 bytes of all; each with 8 for its length before it
   No version: both ends are of one gang, and a gang is of one version. */
#ifndef EBB_ENGINE_CARRY_H
#define EBB_ENGINE_CARRY_H

#include "base/buf.h"
#include "base/status.h"
#include "workers/engine/graphmodel.h"

/* Writing. Only ST_NOMEM fails. */
struct carry_out {
    struct buf b; /* buf_release */
    uint32_t runs;
};
MUST_USE enum status carry_begin(struct carry_out *o, uint64_t check, uint32_t records, struct err *e); /* forgets what was there */
MUST_USE enum status carry_run(struct carry_out *o, uint32_t n, const uint32_t *records, struct err *e); /* then its sizes and tensors */
MUST_USE enum status carry_sizes(struct carry_out *o, uint32_t n, const int64_t *sizes, struct err *e);
MUST_USE enum status carry_tensor(struct carry_out *o, const struct array *a, struct err *e);
MUST_USE enum status carry_error(struct carry_out *o, uint32_t record, const char *text, struct err *e);
void carry_end(struct carry_out *o);

/* Reading. ST_CORRUPT says what is wrong; ST_NOMEM. */
struct carry_in {
    struct cursor c;
    uint32_t records, runs;
    uint8_t *seen; /* of each record */
    uint32_t *list; /* of the run at hand */
};
struct carry_run {
    uint32_t n;
    const uint32_t *records; /* until the next */
    const char *error;       /* NULL: none; n is 1 then */
    size_t error_len;
};
MUST_USE enum status carry_open(struct carry_in *in, const void *data, size_t len, uint64_t check, uint32_t records, struct err *e);
void carry_close(struct carry_in *in); /* also after a failure */
/* *more: 0 where there are no more runs; all records were there then, and nothing is left over. */
MUST_USE enum status carry_next(struct carry_in *in, struct carry_run *run, int *more, struct err *e);
MUST_USE enum status carry_read_sizes(struct carry_in *in, uint32_t n, int64_t *sizes, struct err *e); /* each >= 0 */
/* out->data lies in the bytes read, maybe at an odd address, and of strings in a form of its own: carry_unpack. name is for messages. */
MUST_USE enum status carry_read_tensor(struct carry_in *in, const char *name, struct array *out, struct err *e);
size_t carry_bytes(const struct array *a); /* that it takes once unpacked */
void carry_unpack(const struct array *a, void *to); /* strings point into the bytes read */

#endif
