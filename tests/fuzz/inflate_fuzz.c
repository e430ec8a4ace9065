/* Bytes that say they are gzip or zstd: they end, in records and at most one error, and give the same when entered at the last one. */
#include "tests/fuzz/source_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    struct reader_opts o = {.format = data[0] & 1 ? FORMAT_LINES : FORMAT_CSV, .max_record_bytes = data[1] ? data[1] : 1 << 20};
    struct fuzz_source f;
    fuzz_source_open(&f, data + 2, size - 2, data[0] & 2 ? COMPRESSION_GZIP : COMPRESSION_ZSTD);
    struct fuzz_read whole = fuzz_read(&f, &o, 0, UINT64_MAX, NULL);
    if (whole.records && whole.last) {
        struct fuzz_read last = fuzz_read(&f, &o, whole.last, UINT64_MAX, NULL);
        MUST(last.records == 1 && last.end == whole.end);
        MUST(fuzz_read(&f, &o, whole.end, UINT64_MAX, NULL).records == 0);
    }
    fuzz_source_close(&f);
    return 0;
}
