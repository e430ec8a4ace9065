/* tokenizer.json of anybody: refused, or a tokenizer that takes any text. */
#include "tests/fuzz/model_files.h"

#include "workers/text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "The tide ebbs, the tide flows; \xc3\xa9t\xc3\xa9 \xe6\xbd\xae\xe6\xb1\x90 [SEP] \xf0\x9f\x8c\x8a ##ed";
    struct tokenizer *t;
    struct tok_scratch *s;
    struct tok_result r;
    struct err e;
    fuzz_file("tokenizer.json", data, size);
    if (tokenizer_open(fuzz_folder, &t, &e) != ST_OK)
        return 0;
    if (tok_scratch_new(&s, &e) != ST_OK)
        abort();
    for (uint32_t most = 0; most < 20; most += 7)
        if (tokenizer_encode(t, s, text, sizeof text - 1, most ? most + tokenizer_special_count(t) : 0, &r, &e) != ST_OK)
            abort();
    tok_scratch_free(s);
    tokenizer_free(t);
    return 0;
}
