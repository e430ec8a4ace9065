/* CSV or TSV: header, rows, and the same rows when the source is entered at one of them. */
#include "tests/fuzz/source_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3)
        return 0;
    struct reader_opts o = {.format = data[0] & 1 ? FORMAT_CSV : FORMAT_TSV, .max_record_bytes = data[1] ? data[1] : 1 << 20};
    struct fuzz_source f;
    struct columns columns;
    struct decoder *d = NULL;
    struct err e;
    fuzz_source_open(&f, data + 3, size - 3, COMPRESSION_NONE);
    enum status status = reader_columns(&f.source, &o, &columns, &e);
    MUST(status == ST_OK || status == ST_USER);
    if (status == ST_OK) {
        const char *last = columns.count ? columns.names[columns.count - 1] : "a";
        struct decoder_opts options = {.format = o.format, .field = last, .keep = &last, .keep_count = 1};
        status = decoder_open(&options, &columns, &d, &e);
        MUST(status == ST_OK || status == ST_USER); /* a name that stands twice */
        columns_release(&columns);
    }
    struct fuzz_read whole = fuzz_read(&f, &o, 0, UINT64_MAX, d);
    MUST(whole.end == size - 3);
    uint64_t target = data[2] * (size - 3) / 255, at;
    MUST(reader_boundary(&f.source, &o, 0, target, &at, &e) == ST_OK && at >= target);
    struct fuzz_read first = fuzz_read(&f, &o, 0, at, d);
    if (at == 0) { /* an empty header is all that there is */
        MUST(first.records == 0);
    } else {
        struct fuzz_read second = fuzz_read(&f, &o, at, UINT64_MAX, d);
        MUST(first.records + second.records == whole.records && second.end == size - 3);
    }
    decoder_close(d);
    fuzz_source_close(&f);
    return 0;
}
