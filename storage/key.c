#include "storage/key.h"

#include "base/status.h"

static void add(struct key *k, uint64_t v, size_t bytes)
{
    BUG_IF(k->len + bytes > sizeof k->bytes, "a key of more than %zu bytes", sizeof k->bytes);
    for (size_t i = 0; i < bytes; i++)
        k->bytes[k->len + i] = (uint8_t)(v >> 8 * (bytes - 1 - i));
    k->len += bytes;
}

struct key key_job_prefix(uint64_t job)
{
    struct key k = {.len = 0};
    add(&k, job, 8);
    return k;
}

struct key key_job(uint64_t job, enum key_job_row row)
{
    struct key k = key_job_prefix(job);
    add(&k, row, 1);
    return k;
}

struct key key_source_chunk(uint64_t job, uint32_t chunk)
{
    struct key k = key_job_prefix(job);
    add(&k, chunk, 4);
    return k;
}

struct key key_span(uint64_t job, uint64_t begin)
{
    struct key k = key_job_prefix(job);
    add(&k, begin, 8);
    return k;
}

struct key key_extent(uint64_t job, uint64_t begin, uint32_t attempt)
{
    struct key k = key_job_prefix(job);
    add(&k, begin, 8);
    add(&k, attempt, 4);
    return k;
}

struct key key_event(uint64_t job, uint64_t number)
{
    struct key k = key_job_prefix(job);
    add(&k, number, 8);
    return k;
}
