/* A .npy file of anybody: refused, or an array whose elements become what a model wants, whole and row by row. */
#include <stdint.h>
#include <stdlib.h>

#include "workers/tensor_in/tensor_in.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const enum dtype types[] = {DT_F32, DT_F16, DT_F64, DT_I64, DT_U8, DT_BOOL, DT_I8};
    static const int64_t any[RANK_MAX] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    static struct tensor_in t;
    struct npy n;
    struct err e;
    enum status st = npy_parse(data, size, &n, &e);
    if (st != ST_OK) {
        if (st != ST_CORRUPT && st != ST_USER)
            abort();
        return 0;
    }
    if (npy_check_size(&n, size, &e) != ST_OK)
        return 0;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct tensor_want w = {.name = "x", .dtype = types[i], .rank = n.rank, .dims = any};
        st = tensor_in_npy(&w, &n, 0, data + n.data_at, size - n.data_at, &t, &e);
        if (st != ST_OK && st != ST_USER)
            abort();
        if (st == ST_OK && t.count != n.count)
            abort();
        w.rank--;
        for (uint64_t r = 0; n.rank && r < n.dims[0] && r < 10; r++) {
            st = tensor_in_npy(&w, &n, 1, data + n.data_at + r * n.row_bytes, n.row_bytes, &t, &e);
            if (st != ST_OK && st != ST_USER)
                abort();
        }
    }
    return 0;
}
