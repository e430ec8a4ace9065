/* tokenizer.json of anybody: refused, or a tokenizer that takes any text. What stands behind the file's first NUL is one. */
#include <string.h>

#include "tests/fuzz/model_files.h"

#include "workers/text/tokenizer.h"

static void encode(const struct tokenizer *t, struct tok_scratch *s, const char *text, size_t len)
{
    struct tok_result r;
    struct err e;
    for (uint32_t most = 0; most < 20; most += 7) {
        struct tok_input in = {.text = text, .len = len, .max_tokens = most ? most + tokenizer_special_count(t) : 0};
        enum status rc = tokenizer_encode_input(t, s, &in, &r, &e);
        if (rc != ST_OK && rc != ST_USER)
            abort();
        if (rc == ST_OK && most && r.count > in.max_tokens)
            abort();
        in.spans = 1;
        in.pair = text;
        in.pair_len = len / 2;
        in.cut = (enum tok_cut)(most % 3);
        if (tokenizer_encode_input(t, s, &in, &r, &e) != ST_OK)
            continue;
        for (uint32_t i = 0; i < r.count; i++)
            if (r.spans[i].end < r.spans[i].start || r.spans[i].end > len || r.ids[i] < 0 ||
                (uint32_t)r.ids[i] >= tokenizer_vocab_size(t))
                abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "The tide ebbs, the tide flows; \xc3\xa9t\xc3\xa9 \xe6\xbd\xae\xe6\xb1\x90 [SEP] \xf0\x9f\x8c\x8a ##ed  the<s>12345'S\r\n";
    struct tokenizer *t;
    struct tok_scratch *s;
    struct err e;
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    fuzz_file("tokenizer.json", data, nul ? (size_t)(nul - data) : size);
    if (tokenizer_open(fuzz_folder, &t, &e) != ST_OK)
        return 0;
    if (tok_scratch_new(&s, &e) != ST_OK)
        abort();
    encode(t, s, text, sizeof text - 1);
    if (nul) {
        size_t len = size - (size_t)(nul + 1 - data);
        char *copy = malloc(len + 1); /* so that a read past the end is seen */
        if (!copy)
            abort();
        memcpy(copy, nul + 1, len);
        encode(t, s, copy, len);
        free(copy);
    }
    tok_scratch_free(s);
    tokenizer_free(t);
    return 0;
}
