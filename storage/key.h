/* Keys of the store: big-endian, so that what belongs together scans in order; of fixed length per family, so that none is a prefix
   of another. docs/disk-format.md tells every byte. */
#ifndef EBB_STORAGE_KEY_H
#define EBB_STORAGE_KEY_H

#include <stddef.h>
#include <stdint.h>

struct key {
    uint8_t bytes[24];
    size_t len;
};

/* What a row of the family jobs is; the byte behind the job's id. */
enum key_job_row { KEY_JOB_ROW, KEY_JOB_SPEC, KEY_JOB_ASSEMBLY };

struct key key_job(uint64_t job, enum key_job_row row);
struct key key_job_prefix(uint64_t job);        /* before all keys of the job, behind all of the job before it */
struct key key_source_chunk(uint64_t job, uint32_t chunk);
struct key key_span(uint64_t job, uint64_t begin);
struct key key_extent(uint64_t job, uint64_t begin, uint32_t attempt);
struct key key_event(uint64_t job, uint64_t number);

#endif
