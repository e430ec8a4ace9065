/* model.safetensors of anybody: refused, or tensors that can be read. */
#include "tests/fuzz/model_files.h"

#include "base/mem.h"
#include "workers/engine/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct weights *w;
    struct err e;
    fuzz_file("model.safetensors", data, size);
    if (weights_open(fuzz_folder, &w, &e) != ST_OK)
        return 0;
    const struct tensor *t = weights_find(w, "a");
    float *out = t ? mem_array(t->count, sizeof *out) : NULL;
    if (out && weights_read(w, t, out, &e) != ST_OK)
        e.code = ST_USER;
    mem_free(out);
    weights_free(w);
    return 0;
}
