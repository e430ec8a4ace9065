/* The header of a .npy file (NumPy's format, versions 1 to 3): what its elements are, the array's shape, and where they begin. Anybody's bytes
   may be given. */
#ifndef EBB_STORAGE_NPY_H
#define EBB_STORAGE_NPY_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define NPY_RANK_MAX 12
#define NPY_HEAD_MAX 65536 /* bytes that a header may take */

struct npy {
    char kind;          /* 'f', 'i', 'u', or 'b' for booleans */
    uint32_t size;      /* bytes of an element: 1, 2, 4, 8 */
    int big_endian;
    uint32_t rank;
    uint64_t dims[NPY_RANK_MAX];
    uint64_t count;     /* elements */
    uint64_t data_at;   /* of the first element, in the file */
    uint64_t row_bytes; /* of one index of the first axis; of a single element when the rank is 0 */
};

/* data: the file's beginning; NPY_HEAD_MAX bytes are enough. ST_CORRUPT: no .npy file, or damaged; ST_USER: one that is not supported (texts,
   objects, complex numbers, records, columns first in memory), with advice. */
MUST_USE enum status npy_parse(const void *data, size_t len, struct npy *out, struct err *e);
/* The file has the bytes that the header asks for. ST_CORRUPT. */
MUST_USE enum status npy_check_size(const struct npy *n, uint64_t file_bytes, struct err *e);

#endif
