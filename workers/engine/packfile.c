/* A file is a header, an index of blocks, and the blocks, each from a page of its own. It is written under a name of its own, synced, and given its name
   only if no other worker was faster; then its pages take the place of the memory at the same addresses, so that layers that hold pointers see nothing.

   What can fail: a folder that cannot be written, a full disk: no cache. A file that says anything but what was asked for, or whose sums are wrong: it is
   removed. Files on network file systems are not mapped: when another host removes one, whoever has it mapped dies of it. */
#include "workers/engine/packfile.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/path.h"

enum { PAGE = 4096, NAME_BYTES = 208, KIND_BYTES = 32, BLOCKS_MOST = 1 << 20 };
#define ROOM_LEFT (UINT64_C(1) << 30) /* a cache leaves a disk that much */
#define STALE_S 3600                  /* what a killed worker left unfinished */

static const char magic[8] = "EBBPACK";

struct header {
    char magic[8];
    uint32_t version, blocks;
    uint8_t digest[16];
    uint64_t form;       /* of the layouts: what packing makes of known numbers */
    uint64_t file_bytes;
    uint64_t index_sum;
    char kind[KIND_BYTES];
    uint64_t sum;        /* of all before */
};

struct entry {
    char name[NAME_BYTES];
    uint32_t precision, n, k, zero;
    uint64_t offset, bytes, sum;
};

struct asked {
    struct entry entry;
    void *block;
    int made; /* memory of ours; else in the map */
};

struct packfile {
    char *dir, *path;
    uint64_t most_bytes;
    struct header want; /* what a file must say; its counts and sums aside */
    char *map;
    size_t map_bytes;
    struct asked *asked;
    size_t count, cap;
    uint32_t made;
    uint64_t mapped_bytes;
};

static uint64_t pages(uint64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static uint64_t header_sum(const struct header *h)
{
    return XXH3_64bits(h, offsetof(struct header, sum));
}

/* The key ---------------------------------------------------------------------------------------------------------------------------------- */

/* Of the form in which these kernels want weights: a kernel that packs otherwise, under whatever name, has another one. */
static enum status find_form(const struct kernels *kernels, enum precision precision, uint64_t *out, struct err *e)
{
    enum { N = 75, K = 301 }; /* no multiples of anything */
    float *w = mem_array((size_t)N * K, sizeof *w);
    uint64_t form = PACKFILE_VERSION;
    if (!w)
        return err_nomem(e, "packed weights");
    for (uint32_t i = 0; i < N * K; i++)
        w[i] = (float)(i * 2654435761u >> 8) * 0x1p-23f - 1;
    const enum precision each[] = {precision, PREC_F32};
    for (int i = 0; i < 2; i++) {
        const struct weight_product *p = &kernels->product[each[i]];
        size_t bytes = p->packed_bytes(N, K);
        void *packed = mem_aligned(bytes);
        if (!packed) {
            mem_free(w);
            return err_nomem(e, "packed weights");
        }
        memset(packed, 0, bytes);
        p->pack(N, K, 0, N, w, K, 1, packed);
        form = XXH3_64bits_withSeed(packed, bytes, form);
        form = XXH3_64bits_withSeed(p->layout, strlen(p->layout), form);
        mem_free(packed);
    }
    mem_free(w);
    *out = form;
    return ST_OK;
}

/* Reading ---------------------------------------------------------------------------------------------------------------------------------- */

static int is_network(long type)
{
    static const uint32_t types[] = {0x6969, 0x517b, 0xfe534d42, 0xff534d42, 0x5346414f, 0x73757245, 0x01021997, 0x0bd00bd0, 0x00c36400, 0x47504653, 0x65735546,
                                     0x19830326}; /* NFS, SMB, SMB2, CIFS, AFS, Coda, 9P, Lustre, Ceph, GPFS, FUSE, BeeGFS */
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if ((uint32_t)type == types[i])
            return 1;
    return 0;
}

static const struct entry *index_of(const char *map)
{
    return (const struct entry *)(map + PAGE);
}

/* NULL, or what is wrong with the file's bytes. All of them are read. */
static const char *examine(const struct header *want, const char *map, size_t bytes)
{
    const struct header *h = (const struct header *)map;
    if (bytes < PAGE || memcmp(h->magic, magic, sizeof magic) != 0)
        return "it is no such file";
    if (h->sum != header_sum(h))
        return "its header is damaged";
    if (h->version != want->version || h->form != want->form || memcmp(h->digest, want->digest, sizeof h->digest) != 0 ||
        memcmp(h->kind, want->kind, sizeof h->kind) != 0)
        return "it was made for something else";
    if (h->file_bytes != bytes || h->blocks > BLOCKS_MOST || bytes - PAGE < h->blocks * sizeof(struct entry))
        return "it is not complete";
    const struct entry *index = index_of(map);
    if (h->index_sum != XXH3_64bits(index, h->blocks * sizeof *index))
        return "its index is damaged";
    for (uint32_t i = 0; i < h->blocks; i++) {
        const struct entry *x = &index[i];
        if (!memchr(x->name, 0, sizeof x->name) || x->offset % PAGE || x->offset > bytes || x->bytes > bytes - x->offset)
            return "its index is damaged";
        if (x->sum != XXH3_64bits(map + x->offset, x->bytes))
            return "a layer's weights are damaged";
    }
    return NULL;
}

/* Maps the file at p->path where it is ours, and right; removes it where it is not right. *out NULL: there is none. */
static void map_file(const struct packfile *p, char **out, size_t *bytes)
{
    struct stat s;
    *out = NULL;
    int fd = open(p->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        if (errno != ENOENT)
            log_warn("packed weights: '%s' cannot be opened: %s", p->path, strerror(errno));
        return;
    }
    const char *wrong = NULL;
    char *map = MAP_FAILED;
    if (fstat(fd, &s) || !S_ISREG(s.st_mode) || s.st_uid != geteuid() || (s.st_mode & 022))
        wrong = "it is not a file that this user alone may write";
    else if (s.st_size < PAGE)
        wrong = "it is not complete";
    else if ((map = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0)) == MAP_FAILED)
        log_warn("packed weights: '%s' cannot be mapped: %s", p->path, strerror(errno));
    else
        wrong = examine(&p->want, map, (size_t)s.st_size);
    if (wrong) {
        log_warn("packed weights: '%s' is made anew: %s", p->path, wrong);
        if (unlink(p->path) && errno != ENOENT)
            log_warn("packed weights: '%s' cannot be removed: %s", p->path, strerror(errno));
        if (map != MAP_FAILED)
            munmap(map, (size_t)s.st_size);
    } else if (map != MAP_FAILED) {
        futimens(fd, NULL); /* the longest unused one goes first */
        *out = map;
        *bytes = (size_t)s.st_size;
    }
    close(fd);
}

/* 0: usable. Else what is wrong was said. */
static int prepare_dir(const char *dir)
{
    struct err why;
    struct stat s;
    struct statfs fs;
    if (path_make_dirs(dir, 0700, &why) != ST_OK)
        log_warn("packed weights are not kept: %s", why.text);
    else if (stat(dir, &s) || s.st_uid != geteuid() || (s.st_mode & 022))
        log_warn("packed weights are not kept: '%s' is not a folder that this user alone may write", dir);
    else if (statfs(dir, &fs) || is_network(fs.f_type))
        log_warn("packed weights are not kept: '%s' is on a network file system; --pack-cache names a folder on a local disk", dir);
    else
        return 0;
    return -1;
}

enum status packfile_open(const struct packfile_opts *o, struct packfile **out, struct err *e)
{
    *out = NULL;
    if (sysconf(_SC_PAGESIZE) != PAGE || prepare_dir(o->dir) != 0)
        return ST_OK;
    struct packfile *p = mem_zalloc(sizeof *p);
    if (!p)
        return err_nomem(e, "packed weights");
    p->most_bytes = o->most_bytes ? o->most_bytes : PACKFILE_MOST_BYTES;
    p->want.version = PACKFILE_VERSION;
    memcpy(p->want.magic, magic, sizeof magic);
    memcpy(p->want.digest, o->digest, sizeof p->want.digest);
    snprintf(p->want.kind, sizeof p->want.kind, "%s", o->kind);
    char hex[33];
    for (int i = 0; i < 16; i++)
        snprintf(hex + 2 * i, 3, "%02x", o->digest[i]);
    p->dir = mem_strdup(o->dir);
    p->path = mem_printf("%s/%s-%s-%s.pack", o->dir, hex, o->kernels->product[o->precision].layout, p->want.kind);
    enum status st = p->dir && p->path ? find_form(o->kernels, o->precision, &p->want.form, e) : err_nomem(e, "packed weights");
    if (st != ST_OK) {
        packfile_free(p);
        return st;
    }
    map_file(p, &p->map, &p->map_bytes);
    *out = p;
    return ST_OK;
}

void packfile_free(struct packfile *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->count; i++)
        if (p->asked[i].made)
            munmap(p->asked[i].block, pages(p->asked[i].entry.bytes));
    mem_free(p->asked);
    if (p->map)
        munmap(p->map, p->map_bytes);
    mem_free(p->dir);
    mem_free(p->path);
    mem_free(p);
}

/* Layers ----------------------------------------------------------------------------------------------------------------------------------- */

static int same(const struct entry *x, const char *name, enum precision precision, uint32_t n, uint32_t k, size_t bytes)
{
    return strcmp(x->name, name) == 0 && x->precision == (uint32_t)precision && x->n == n && x->k == k && x->bytes == bytes;
}

static const struct asked *find(const struct packfile *p, const char *name, enum precision precision, uint32_t n, uint32_t k, size_t bytes)
{
    for (size_t i = 0; i < p->count; i++)
        if (same(&p->asked[i].entry, name, precision, n, k, bytes))
            return &p->asked[i];
    return NULL;
}

static void *find_mapped(const struct packfile *p, const char *name, enum precision precision, uint32_t n, uint32_t k, size_t bytes)
{
    const struct header *h = (const struct header *)p->map;
    for (uint32_t i = 0; h && i < h->blocks; i++)
        if (same(&index_of(p->map)[i], name, precision, n, k, bytes))
            return p->map + index_of(p->map)[i].offset;
    return NULL;
}

enum status packfile_linear(struct packfile *p, const char *name, struct linear *l, const struct kernels *kernels, enum precision precision, uint32_t n, uint32_t k,
                            struct err *e)
{
    if (!p || !name || strlen(name) >= NAME_BYTES || p->count == BLOCKS_MOST)
        return linear_init(l, kernels, precision, n, k, e);
    size_t bytes = linear_packed_bytes(kernels, precision, n, k);
    const struct asked *before = find(p, name, precision, n, k, bytes); /* by another layer, or before the graph was read again */
    if (before) {
        linear_bind(l, kernels, precision, n, k, before->block);
        return ST_OK;
    }
    if (mem_grow((void **)&p->asked, &p->cap, p->count, sizeof *p->asked))
        return err_nomem(e, "the model's weights");
    struct asked a = {.entry = {.precision = (uint32_t)precision, .n = n, .k = k, .bytes = bytes}};
    snprintf(a.entry.name, sizeof a.entry.name, "%s", name);
    a.block = find_mapped(p, name, precision, n, k, bytes);
    if (a.block) {
        linear_bind(l, kernels, precision, n, k, a.block);
        p->mapped_bytes += bytes;
    } else {
        a.block = mmap(NULL, pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (a.block == MAP_FAILED)
            return err_nomem(e, "the model's weights");
        a.made = 1;
        p->made++;
        linear_lend(l, kernels, precision, n, k, a.block);
    }
    p->asked[p->count++] = a;
    return ST_OK;
}

enum status packfile_linear_of(struct packfile *p, struct linear *l, const struct kernels *kernels, enum precision precision, uint32_t n, uint32_t k, const float *w,
                               size_t row, size_t column, const float *bias, struct err *e)
{
    char name[64];
    if (p) { /* n and k go into the search themselves; the strides tell which of them runs faster */
        XXH128_hash_t h = XXH3_128bits(w, sizeof *w * n * k), b = XXH3_128bits(bias, bias ? sizeof *bias * n : 0);
        snprintf(name, sizeof name, "%c%016llx%016llx%016llx%c", column == 1 && row == k ? 'n' : 't', (unsigned long long)h.high64, (unsigned long long)h.low64,
                 (unsigned long long)(b.high64 ^ b.low64), bias ? 'b' : '-');
    }
    TRY(packfile_linear(p, p ? name : NULL, l, kernels, precision, n, k, e));
    if (!l->filled)
        linear_set_strided(l, 0, n, w, row, column, bias);
    return ST_OK;
}

uint32_t packfile_made(const struct packfile *p)
{
    return p ? p->made : 0;
}

uint64_t packfile_mapped_bytes(const struct packfile *p)
{
    return p ? p->mapped_bytes : 0;
}

/* Writing ---------------------------------------------------------------------------------------------------------------------------------- */

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

/* Where everything goes; h and index get their sums. */
static void lay_out(struct packfile *p, struct header *h, struct entry *index)
{
    uint64_t at = PAGE + pages(p->count * sizeof *index);
    *h = p->want;
    h->blocks = (uint32_t)p->count;
    for (size_t i = 0; i < p->count; i++) {
        struct entry *x = &p->asked[i].entry;
        x->offset = at;
        x->sum = XXH3_64bits(p->asked[i].block, x->bytes);
        at += pages(x->bytes);
        index[i] = *x;
    }
    h->file_bytes = at;
    h->index_sum = XXH3_64bits(index, p->count * sizeof *index);
    h->sum = header_sum(h);
}

static int write_all(const struct packfile *p, int fd, const struct header *h, const struct entry *index)
{
    if (ftruncate(fd, (off_t)h->file_bytes) || write_at(fd, h, sizeof *h, 0) || write_at(fd, index, p->count * sizeof *index, PAGE))
        return -1;
    for (size_t i = 0; i < p->count; i++)
        if (write_at(fd, p->asked[i].block, p->asked[i].entry.bytes, index[i].offset))
            return -1;
    return fdatasync(fd);
}

/* Is the file in the map, which was examined, the one that we have or would have written? Sums of all layers included. */
static int says(const struct packfile *p, const char *map, const struct entry *index)
{
    return ((const struct header *)map)->blocks == p->count && memcmp(index_of(map), index, p->count * sizeof *index) == 0;
}

/* Gives the file its name, unless another worker was faster with the same. */
static int name_file(const struct packfile *p, const char *temporary, const struct entry *index)
{
    if (renameat2(AT_FDCWD, temporary, AT_FDCWD, p->path, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno == EEXIST) {
        char *map;
        size_t bytes;
        map_file(p, &map, &bytes); /* removes it if it is wrong */
        int fits = map && says(p, map, index);
        if (map)
            munmap(map, bytes);
        if (fits)
            return unlink(temporary);
    }
    return rename(temporary, p->path); /* also where a file system knows no better */
}

/* The file's pages in the place of ours, at the same addresses: those of the very map that was examined, whatever has the file's name by now. */
static void swap_pages(struct packfile *p, const struct entry *index)
{
    char *map;
    size_t bytes;
    map_file(p, &map, &bytes);
    for (size_t i = 0; map && says(p, map, index) && i < p->count; i++) {
        struct asked *x = &p->asked[i];
        size_t size = pages(x->entry.bytes);
        if (x->made && mremap(map + index[i].offset, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, x->block) != MAP_FAILED)
            p->mapped_bytes += x->entry.bytes;
    }
    if (map)
        munmap(map, bytes);
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

/* 0: the file is there, under its name. */
static int keep(const struct packfile *p, const struct header *h, const struct entry *index)
{
    struct err why;
    uint64_t room;
    if (h->file_bytes > p->most_bytes || (path_free_bytes(p->dir, &room, &why) == ST_OK && room < h->file_bytes + ROOM_LEFT)) {
        log_warn("packed weights are not kept: %llu MiB are too much for '%s'", (unsigned long long)(h->file_bytes >> 20), p->dir);
        return -1;
    }
    char *temporary = mem_printf("%s.XXXXXX.part", p->path);
    int fd = temporary ? mkostemps(temporary, 5, O_CLOEXEC) : -1; /* 0600 */
    if (fd < 0) {
        log_warn("packed weights are not kept: '%s' cannot be written: %s", p->dir, strerror(errno));
        mem_free(temporary);
        return -1;
    }
    int failed = write_all(p, fd, h, index);
    close(fd);
    if (failed || name_file(p, temporary, index)) {
        log_warn("packed weights are not kept: '%s': %s", p->path, strerror(errno));
        unlink(temporary);
        failed = -1;
    }
    mem_free(temporary);
    return failed;
}

void packfile_seal(struct packfile *p)
{
    if (!p || !p->made)
        return;
    struct header h;
    struct entry *index = mem_array(p->count, sizeof *index);
    if (!index) {
        log_warn("packed weights are not kept: out of memory");
        return;
    }
    lay_out(p, &h, index);
    if (keep(p, &h, index) == 0) {
        log_info("packed weights: '%s' holds %zu layers, %llu MiB", p->path, p->count, (unsigned long long)(h.file_bytes >> 20));
        swap_pages(p, index);
        make_room(p);
    }
    mem_free(index);
}

/* Where ------------------------------------------------------------------------------------------------------------------------------------ */

enum status packfile_default_dir(char **out, struct err *e)
{
    const char *told = getenv("EBB_PACK_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    *out = NULL;
    if (told && *told) {
        if (strcmp(told, "off") == 0)
            return ST_OK;
        *out = path_absolute(told);
    } else if (xdg && *xdg == '/') {
        *out = path_join(xdg, "ebb");
    } else if (home && *home == '/' && home[1]) {
        *out = path_join(home, ".cache/ebb");
    } else {
        return ST_OK;
    }
    return *out ? ST_OK : err_nomem(e, "a path");
}
