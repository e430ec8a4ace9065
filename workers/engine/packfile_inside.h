/* What packfile.c (finding) and packfile_write.c (making) share. Only they include this. */
#ifndef EBB_ENGINE_PACKFILE_INSIDE_H
#define EBB_ENGINE_PACKFILE_INSIDE_H

#include <xxhash.h>

#include "workers/engine/packfile.h"

enum { PACK_PAGE = 4096, PACK_NAME_BYTES = 208, PACK_KIND_BYTES = 32, PACK_BLOCKS_MOST = 1 << 20 };

struct pack_header {
    char magic[8];
    uint32_t version, blocks;
    uint8_t digest[16];
    uint64_t form;       /* of the layouts: what packing makes of known numbers */
    uint64_t file_bytes;
    uint64_t index_at, index_sum;
    char kind[PACK_KIND_BYTES];
    uint64_t sum;        /* of all before */
};

struct pack_entry {
    char name[PACK_NAME_BYTES];
    uint32_t precision, n, k, table; /* table: n rows of k floats */
    uint64_t offset, bytes, sum;
};

struct pack_asked {
    struct pack_entry entry;
    void *block;
    int made; /* memory of ours; else in the map */
};

struct pack_map {
    char *at; /* NULL: there is no file */
    size_t bytes;
    uint8_t *seen; /* of each block: its sum was right, or wrong */
};
enum { PACK_UNSEEN, PACK_RIGHT, PACK_WRONG };

struct packfile {
    char *dir, *path;
    uint64_t most_bytes;
    int part, sparing;
    struct pack_header want; /* what a file must say; its counts and sums aside */
    struct pack_map map;
    struct pack_asked *asked;
    size_t count, cap;
    uint32_t made;
    uint64_t mapped_bytes;
    /* while a file is written */
    int writing, fd;
    char *temporary;
    uint64_t end;            /* of what is written */
    struct pack_entry *put;  /* the index */
    size_t puts, put_cap;
    struct pack_entry table; /* whose rows come */
    uint32_t rows;           /* of these, so far */
    XXH3_state_t *sum;
};

static inline uint64_t pack_pages(uint64_t bytes)
{
    return (bytes + PACK_PAGE - 1) / PACK_PAGE * PACK_PAGE;
}

uint64_t pack_header_sum(const struct pack_header *h);
const struct pack_entry *pack_index(const struct pack_map *m, uint32_t *blocks); /* none where there is no file */
/* Maps the file at p->path where it is ours, and says what it should; removes it where it does not. to->at NULL: there is none. */
void pack_map_file(const struct packfile *p, struct pack_map *to);
void pack_unmap(struct pack_map *m);
/* Block i has the sum that the index tells. If not, whatever has the file's name is removed. */
int pack_block_is_right(const struct packfile *p, struct pack_map *m, uint32_t i);
void pack_forget_asked(struct packfile *p); /* with the memory of what was made */

#endif
