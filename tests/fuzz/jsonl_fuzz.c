/* Lines of JSON, or plain ones, cut into two spans at a place that the input names: the same records as in one, each decoded. */
#include "tests/fuzz/source_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3)
        return 0;
    enum format format = data[0] & 1 ? FORMAT_JSONL : FORMAT_LINES;
    const char *const keep[] = {"a", "b\"c"};
    struct decoder_opts options = {.format = format};
    if (format == FORMAT_JSONL && data[0] & 2)
        options = (struct decoder_opts){.format = format, .field = "t", .id = "i", .keep = keep, .keep_count = 2};
    struct reader_opts o = {.format = format, .max_record_bytes = data[1] ? data[1] : 1 << 20};
    struct fuzz_source f;
    struct decoder *d;
    fuzz_source_open(&f, data + 3, size - 3, COMPRESSION_NONE);
    MUST(decoder_open(&options, NULL, &d, NULL) == ST_OK);
    uint64_t cut = size > 3 ? data[2] * (size - 3) / 255 : 0;
    struct fuzz_read whole = fuzz_read(&f, &o, 0, size - 3, d);
    struct fuzz_read first = fuzz_read(&f, &o, 0, cut, d), second = fuzz_read(&f, &o, cut, size - 3, d);
    MUST(first.records + second.records == whole.records);
    MUST(first.end == cut && second.end == size - 3 && whole.end == size - 3);
    if (first.records == 0)
        MUST(second.sum == whole.sum);
    decoder_close(d);
    fuzz_source_close(&f);
    return 0;
}
