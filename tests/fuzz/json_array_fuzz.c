/* JSON of anybody where a tensor is wanted: refused, or a tensor of the wanted rank. The first byte says of which. */
#include <stdint.h>
#include <stdlib.h>

#include "workers/tensor_in/tensor_in.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const enum dtype types[] = {DT_F32, DT_F16, DT_F64, DT_I64, DT_U8, DT_BOOL, DT_I8, DT_BF16};
    static const int64_t any[RANK_MAX] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    static struct tensor_in t;
    struct err e;
    if (!size)
        return 0;
    struct tensor_want w = {.name = "x", .dtype = types[data[0] & 7], .rank = (data[0] >> 3) % (RANK_MAX + 1), .dims = any};
    enum status st = tensor_in_json(&w, (const char *)data + 1, size - 1, &t, &e);
    if (st != ST_OK && st != ST_USER)
        abort();
    uint64_t count = 1;
    for (uint32_t i = 0; i < w.rank; i++)
        count *= (uint64_t)t.dims[i];
    if (st == ST_OK && (t.count != count || t.cap < count * dtype_bytes(w.dtype) || t.count > size))
        abort();
    return 0;
}
