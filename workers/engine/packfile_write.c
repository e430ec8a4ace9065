/* A file is written under a name of its own, block after block, then the index and the header; it is synced, and given its name only if no other worker was faster
   with the same. Where its layers are in use already, its pages take the place of the memory at the same addresses, so that layers that hold pointers
   see nothing.

   What can fail: a folder that cannot be written, a full disk: no cache. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/path.h"
#include "workers/engine/packfile_inside.h"

#define ROOM_LEFT (UINT64_C(1) << 30) /* a cache leaves a disk that much */
#define STALE_S 3600                  /* what a killed worker left unfinished */

static int write_at(int fd, const void *data, size_t bytes, uint64_t at)
{
    const char *from = data;
    int pretend = fault_point("pack.write");
    if (pretend) {
        errno = pretend;
        return -1;
    }
    while (bytes) {
        ssize_t n = pwrite(fd, from, bytes < 1u << 30 ? bytes : 1u << 30, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        from += n;
        at += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return 0;
}

/* What was begun is gone, or has its name. */
static void close_writing(struct packfile *p)
{
    if (p->fd >= 0)
        close(p->fd);
    if (p->temporary)
        unlink(p->temporary);
    XXH3_freeState(p->sum);
    mem_free(p->temporary);
    mem_free(p->put);
    p->fd = -1;
    p->temporary = NULL;
    p->sum = NULL;
    p->put = NULL;
    p->puts = p->put_cap = 0;
}

void packfile_free(struct packfile *p)
{
    if (!p)
        return;
    close_writing(p);
    pack_forget_asked(p);
    mem_free(p->asked);
    pack_unmap(&p->map);
    mem_free(p->dir);
    mem_free(p->path);
    mem_free(p);
}

static int no_cache(struct packfile *p, const char *why)
{
    log_warn("packed weights are not kept: '%s': %s", p->path, why);
    close_writing(p);
    return -1;
}

static int begin(struct packfile *p, uint64_t bytes)
{
    struct err why;
    uint64_t room;
    if (bytes > p->most_bytes || (path_free_bytes(p->dir, &room, &why) == ST_OK && room < bytes + ROOM_LEFT)) {
        log_warn("packed weights are not kept: %llu MiB are too much for '%s'", (unsigned long long)(bytes >> 20), p->dir);
        return -1;
    }
    p->temporary = mem_printf("%s.XXXXXX.part", p->path);
    p->fd = p->temporary ? mkostemps(p->temporary, 5, O_CLOEXEC) : -1; /* 0600 */
    if (p->fd < 0) {
        log_warn("packed weights are not kept: '%s' cannot be written: %s", p->dir, p->temporary ? strerror(errno) : "out of memory");
        mem_free(p->temporary);
        p->temporary = NULL;
        return -1;
    }
    p->end = PACK_PAGE;
    return 0;
}

/* Where the next block goes. */
static struct pack_entry *next_entry(struct packfile *p, const struct pack_entry *what)
{
    if (p->puts == PACK_BLOCKS_MOST || mem_grow((void **)&p->put, &p->put_cap, p->puts, sizeof *p->put)) {
        no_cache(p, "out of memory");
        return NULL;
    }
    struct pack_entry *x = &p->put[p->puts++];
    *x = *what;
    x->offset = p->end;
    p->end += pack_pages(x->bytes);
    return x;
}

static int put_block(struct packfile *p, const struct pack_entry *what, const void *block)
{
    struct pack_entry *x = next_entry(p, what);
    if (!x)
        return -1;
    x->sum = XXH3_64bits(block, x->bytes);
    return write_at(p->fd, block, x->bytes, x->offset) ? no_cache(p, strerror(errno)) : 0;
}

/* Is the file in the map the one that we would have written? Its layers' sums are looked at by whoever uses them. */
static int says(const struct packfile *p, const struct pack_map *m)
{
    uint32_t blocks;
    const struct pack_entry *index = pack_index(m, &blocks);
    return index && blocks == p->puts && memcmp(index, p->put, p->puts * sizeof *index) == 0;
}

/* Gives the file its name, unless another worker was faster with the same. */
static int name_file(struct packfile *p)
{
    if (renameat2(AT_FDCWD, p->temporary, AT_FDCWD, p->path, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno == EEXIST) {
        struct pack_map m;
        pack_map_file(p, &m); /* removes it if it is wrong */
        int fits = says(p, &m);
        for (uint32_t i = 0; fits && i < p->puts; i++)
            fits = pack_block_is_right(p, &m, i);
        pack_unmap(&m);
        if (fits)
            return unlink(p->temporary);
    }
    return rename(p->temporary, p->path); /* also where a file system knows no better */
}

struct found {
    char *path;
    struct timespec at;
    uint64_t bytes;
};

static int by_age(const void *a, const void *b)
{
    const struct found *x = a, *y = b;
    if (x->at.tv_sec != y->at.tv_sec)
        return x->at.tv_sec < y->at.tv_sec ? -1 : 1;
    return (x->at.tv_nsec > y->at.tv_nsec) - (x->at.tv_nsec < y->at.tv_nsec);
}

/* Files of the folder, the longest unused ones first, until the rest fits; ours stays. Also what workers that were killed left behind. */
static void make_room(const struct packfile *p)
{
    struct found *list = NULL;
    size_t count = 0, cap = 0;
    uint64_t sum = 0;
    DIR *d = opendir(p->dir);
    for (struct dirent *x; d && (x = readdir(d));) {
        struct stat s;
        const char *end = strrchr(x->d_name, '.');
        int whole = end && strcmp(end, ".pack") == 0, part = end && strcmp(end, ".part") == 0 && strstr(x->d_name, ".pack.");
        char *path = whole || part ? path_join(p->dir, x->d_name) : NULL;
        if (!path || lstat(path, &s) || !S_ISREG(s.st_mode)) {
            mem_free(path);
            continue;
        }
        if (part) {
            if (s.st_mtime < time(NULL) - STALE_S)
                unlink(path);
        } else {
            sum += (uint64_t)s.st_size;
            if (strcmp(path, p->path) != 0 && mem_grow((void **)&list, &cap, count, sizeof *list) == 0) {
                list[count++] = (struct found){path, s.st_mtim, (uint64_t)s.st_size};
                path = NULL;
            }
        }
        mem_free(path);
    }
    if (d)
        closedir(d);
    if (count)
        qsort(list, count, sizeof *list, by_age);
    for (size_t i = 0; i < count; i++) {
        if (sum > p->most_bytes && unlink(list[i].path) == 0) {
            log_info("packed weights: '%s' was not used for the longest time and makes room", list[i].path);
            sum -= list[i].bytes;
        }
        mem_free(list[i].path);
    }
    mem_free(list);
}

/* 0: the file is there, under its name, and p->put is its index still. */
static int finish(struct packfile *p)
{
    struct pack_header h = p->want;
    h.blocks = (uint32_t)p->puts;
    h.index_at = p->end;
    h.file_bytes = p->end + pack_pages(p->puts * sizeof *p->put);
    h.index_sum = XXH3_64bits(p->put, p->puts * sizeof *p->put);
    h.sum = pack_header_sum(&h);
    if (ftruncate(p->fd, (off_t)h.file_bytes) || write_at(p->fd, p->put, p->puts * sizeof *p->put, h.index_at) || write_at(p->fd, &h, sizeof h, 0) ||
        fdatasync(p->fd) || name_file(p))
        return no_cache(p, strerror(errno));
    mem_free(p->temporary);
    p->temporary = NULL; /* it has its name */
    log_info("packed weights: '%s' holds %zu layers, %llu MiB", p->path, p->puts, (unsigned long long)(h.file_bytes >> 20));
    return 0;
}

/* Streaming -------------------------------------------------------------------------------------------------------------------------------- */

int packfile_begin(struct packfile *p, uint64_t about_bytes)
{
    pack_forget_asked(p);
    pack_unmap(&p->map);
    p->made = 0;
    p->mapped_bytes = 0;
    p->writing = 1;
    return begin(p, about_bytes);
}

int packfile_flush(struct packfile *p)
{
    int failed = p->fd < 0;
    for (size_t i = 0; i < p->count && !failed; i++)
        failed = put_block(p, &p->asked[i].entry, p->asked[i].block);
    pack_forget_asked(p);
    return failed ? -1 : 0;
}

int packfile_rows(struct packfile *p, const char *name, uint32_t rows, uint32_t cols, uint32_t first, uint32_t count, const float *data)
{
    size_t row = sizeof(float) * cols;
    if (p->fd < 0)
        return -1;
    if (first == 0) {
        struct pack_entry e = {.precision = PREC_F32, .n = rows, .k = cols, .table = 1, .bytes = row * rows};
        snprintf(e.name, sizeof e.name, "%s", name);
        p->rows = 0;
        if (!next_entry(p, &e))
            return -1;
        p->sum = p->sum ? p->sum : XXH3_createState();
        if (!p->sum || XXH3_64bits_reset(p->sum) == XXH_ERROR)
            return no_cache(p, "out of memory");
    }
    BUG_IF(p->puts == 0 || strcmp(p->put[p->puts - 1].name, name) != 0 || first != p->rows || count > rows - first, "rows %u+%u of '%s', the next is %u", first, count,
           name, p->rows);
    struct pack_entry *x = &p->put[p->puts - 1];
    XXH3_64bits_update(p->sum, data, row * count);
    p->rows += count;
    x->sum = XXH3_64bits_digest(p->sum);
    return write_at(p->fd, data, row * count, x->offset + row * first) ? no_cache(p, strerror(errno)) : 0;
}

int packfile_broken(const struct packfile *p)
{
    return p->writing && p->fd < 0;
}

int packfile_end(struct packfile *p)
{
    int failed = packfile_flush(p) || finish(p);
    close_writing(p);
    p->writing = 0;
    p->made = 0;
    if (failed)
        return -1;
    pack_map_file(p, &p->map);
    make_room(p);
    return p->map.at ? 0 : -1;
}

/* All at once ------------------------------------------------------------------------------------------------------------------------------ */

/* The file's pages in the place of ours, at the same addresses: those of the very map whose sums were looked at, whatever has the file's name by now. */
static void swap_pages(struct packfile *p)
{
    struct pack_map m;
    pack_map_file(p, &m);
    for (uint32_t i = 0; says(p, &m) && i < p->count; i++) {
        struct pack_asked *x = &p->asked[i];
        size_t size = pack_pages(x->entry.bytes);
        if (x->made && pack_block_is_right(p, &m, i) && mremap(m.at + p->put[i].offset, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, x->block) != MAP_FAILED)
            p->mapped_bytes += x->entry.bytes;
    }
    pack_unmap(&m);
}

/* What is in the file and was not asked for, behind what was. */
static int put_others(struct packfile *p)
{
    struct pack_map m;
    uint32_t blocks;
    int failed = 0;
    pack_map_file(p, &m);
    const struct pack_entry *index = pack_index(&m, &blocks);
    for (uint32_t i = 0; i < blocks && !failed; i++) {
        int asked = 0;
        for (size_t k = 0; k < p->count && !asked; k++)
            asked = strcmp(p->asked[k].entry.name, index[i].name) == 0;
        if (!asked && pack_block_is_right(p, &m, i))
            failed = put_block(p, &index[i], m.at + index[i].offset);
    }
    pack_unmap(&m);
    return failed;
}

void packfile_seal(struct packfile *p)
{
    if (!p || !p->made)
        return;
    uint64_t bytes = PACK_PAGE + pack_pages(p->count * sizeof *p->put);
    int failed = 0;
    for (size_t i = 0; i < p->count; i++)
        bytes += pack_pages(p->asked[i].entry.bytes);
    if (begin(p, bytes))
        return;
    for (size_t i = 0; i < p->count && !failed; i++)
        failed = put_block(p, &p->asked[i].entry, p->asked[i].block);
    if (!failed && p->part)
        failed = put_others(p);
    if (!failed && finish(p) == 0) {
        swap_pages(p);
        make_room(p);
    }
    close_writing(p);
}
