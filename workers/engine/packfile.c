/* A file is a header, blocks, each from a page of its own, and an index of them. It is mapped whole, which costs nothing: a block's pages come, and its sum is looked
   at, when somebody asks for it.

   What can fail: a folder that cannot be used: no cache. A file that says anything but what was asked for, or whose sums are wrong: it is
   removed. Files on network file systems are not mapped: when another host removes one, whoever has it mapped dies of it. */
#include "workers/engine/packfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/path.h"
#include "workers/engine/packfile_inside.h"

enum { SPARING_BYTES = 4 << 20 };

static const char magic[8] = "EBBPACK";

uint64_t pack_header_sum(const struct pack_header *h)
{
    return XXH3_64bits(h, offsetof(struct pack_header, sum));
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

const struct pack_entry *pack_index(const struct pack_map *m, uint32_t *blocks)
{
    const struct pack_header *h = (const struct pack_header *)m->at;
    *blocks = h ? h->blocks : 0;
    return h ? (const struct pack_entry *)(m->at + h->index_at) : NULL;
}

/* NULL, or what is wrong with what the file says it is. */
static const char *examine(const struct pack_header *want, const char *map, size_t bytes)
{
    const struct pack_header *h = (const struct pack_header *)map;
    if (bytes < PACK_PAGE || memcmp(h->magic, magic, sizeof magic) != 0)
        return "it is no such file";
    if (h->sum != pack_header_sum(h))
        return "its header is damaged";
    if (h->version != want->version || h->form != want->form || memcmp(h->digest, want->digest, sizeof h->digest) != 0 ||
        memcmp(h->kind, want->kind, sizeof h->kind) != 0)
        return "it was made for something else";
    if (h->file_bytes != bytes || h->blocks > PACK_BLOCKS_MOST || h->index_at % PACK_PAGE || h->index_at > bytes ||
        bytes - h->index_at < h->blocks * sizeof(struct pack_entry))
        return "it is not complete";
    const struct pack_entry *index = (const struct pack_entry *)(map + h->index_at);
    if (h->index_sum != XXH3_64bits(index, h->blocks * sizeof *index))
        return "its index is damaged";
    for (uint32_t i = 0; i < h->blocks; i++) {
        const struct pack_entry *x = &index[i];
        if (!memchr(x->name, 0, sizeof x->name) || x->offset % PACK_PAGE || x->offset > h->index_at || x->bytes > h->index_at - x->offset)
            return "its index is damaged";
    }
    return NULL;
}

static void remove_file(const struct packfile *p, const char *wrong)
{
    log_warn("packed weights: '%s' is made anew: %s", p->path, wrong);
    if (unlink(p->path) && errno != ENOENT)
        log_warn("packed weights: '%s' cannot be removed: %s", p->path, strerror(errno));
}

void pack_map_file(const struct packfile *p, struct pack_map *to)
{
    struct stat s;
    *to = (struct pack_map){0};
    int fd = open(p->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        if (errno != ENOENT)
            log_warn("packed weights: '%s' cannot be opened: %s", p->path, strerror(errno));
        return;
    }
    const char *wrong = NULL;
    char *map = MAP_FAILED;
    size_t bytes = 0;
    if (fstat(fd, &s) || !S_ISREG(s.st_mode) || s.st_uid != geteuid() || (s.st_mode & 022))
        wrong = "it is not a file that this user alone may write";
    else if ((bytes = (size_t)s.st_size) < PACK_PAGE)
        wrong = "it is not complete";
    else if ((map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0)) == MAP_FAILED)
        log_warn("packed weights: '%s' cannot be mapped: %s", p->path, strerror(errno));
    else
        wrong = examine(&p->want, map, bytes);
    if (wrong)
        remove_file(p, wrong);
    uint8_t *seen = map != MAP_FAILED && !wrong ? mem_zalloc(((const struct pack_header *)map)->blocks + 1) : NULL;
    if (seen) {
        futimens(fd, NULL); /* the longest unused one goes first */
        *to = (struct pack_map){map, bytes, seen};
    } else if (map != MAP_FAILED) {
        munmap(map, bytes);
    }
    close(fd);
}

void pack_unmap(struct pack_map *m)
{
    if (m->at)
        munmap(m->at, m->bytes);
    mem_free(m->seen);
    *m = (struct pack_map){0};
}

static uint64_t block_sum(const struct packfile *p, const char *at, size_t bytes)
{
    XXH3_state_t *x = p->sparing ? XXH3_createState() : NULL;
    if (!x) {
        madvise((void *)(uintptr_t)at, pack_pages(bytes), MADV_WILLNEED);
        return XXH3_64bits(at, bytes);
    }
    XXH3_64bits_reset(x);
    for (size_t i = 0; i < bytes; i += SPARING_BYTES) {
        size_t n = bytes - i < SPARING_BYTES ? bytes - i : SPARING_BYTES;
        XXH3_64bits_update(x, at + i, n);
        madvise((void *)(uintptr_t)(at + i), pack_pages(n), MADV_DONTNEED);
    }
    uint64_t sum = XXH3_64bits_digest(x);
    XXH3_freeState(x);
    return sum;
}

int pack_block_is_right(const struct packfile *p, struct pack_map *m, uint32_t i)
{
    uint32_t blocks;
    const struct pack_entry *x = &pack_index(m, &blocks)[i];
    if (m->seen[i] == PACK_UNSEEN) {
        m->seen[i] = x->sum == block_sum(p, m->at + x->offset, x->bytes) ? PACK_RIGHT : PACK_WRONG;
        if (m->seen[i] == PACK_WRONG)
            remove_file(p, "a layer's weights are damaged");
    }
    return m->seen[i] == PACK_RIGHT;
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
    if (sysconf(_SC_PAGESIZE) != PACK_PAGE || prepare_dir(o->dir) != 0)
        return ST_OK;
    struct packfile *p = mem_zalloc(sizeof *p);
    if (!p)
        return err_nomem(e, "packed weights");
    p->fd = -1;
    p->most_bytes = o->most_bytes ? o->most_bytes : PACKFILE_MOST_BYTES;
    p->part = o->part;
    p->sparing = o->sparing;
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
    pack_map_file(p, &p->map);
    *out = p;
    return ST_OK;
}

void pack_forget_asked(struct packfile *p)
{
    for (size_t i = 0; i < p->count; i++)
        if (p->asked[i].made)
            munmap(p->asked[i].block, pack_pages(p->asked[i].entry.bytes));
    p->count = 0;
}

/* Layers ----------------------------------------------------------------------------------------------------------------------------------- */

static int same(const struct pack_entry *x, const char *name, int table, enum precision precision, uint32_t n, uint32_t k, size_t bytes)
{
    return strcmp(x->name, name) == 0 && x->table == (uint32_t)table && x->precision == (uint32_t)precision && x->n == n && x->k == k && x->bytes == bytes;
}

static const struct pack_asked *find(const struct packfile *p, const char *name, enum precision precision, uint32_t n, uint32_t k, size_t bytes)
{
    for (size_t i = 0; i < p->count; i++)
        if (same(&p->asked[i].entry, name, 0, precision, n, k, bytes))
            return &p->asked[i];
    return NULL;
}

/* Where it lies in the file; NULL: it does not. */
static void *find_mapped(struct packfile *p, const char *name, int table, enum precision precision, uint32_t n, uint32_t k, size_t bytes)
{
    uint32_t blocks;
    const struct pack_entry *index = p->writing ? NULL : pack_index(&p->map, &blocks);
    for (uint32_t i = 0; index && i < blocks; i++)
        if (same(&index[i], name, table, precision, n, k, bytes))
            return pack_block_is_right(p, &p->map, i) ? p->map.at + index[i].offset : NULL;
    return NULL;
}

int packfile_has(struct packfile *p, const char *name, const struct kernels *kernels, enum precision precision, uint32_t n, uint32_t k)
{
    return p && find_mapped(p, name, 0, precision, n, k, linear_packed_bytes(kernels, precision, n, k)) != NULL;
}

int packfile_has_table(struct packfile *p, const char *name, uint32_t rows, uint32_t cols)
{
    return p && find_mapped(p, name, 1, PREC_F32, rows, cols, sizeof(float) * rows * cols) != NULL;
}

const float *packfile_table(struct packfile *p, const char *name, uint32_t rows, uint32_t cols)
{
    const float *table = p ? find_mapped(p, name, 1, PREC_F32, rows, cols, sizeof(float) * rows * cols) : NULL;
    if (table)
        p->mapped_bytes += sizeof(float) * rows * cols;
    return table;
}

enum status packfile_linear(struct packfile *p, const char *name, struct linear *l, const struct kernels *kernels, enum precision precision, uint32_t n, uint32_t k,
                            struct err *e)
{
    if (!p || !name || strlen(name) >= PACK_NAME_BYTES || p->count == PACK_BLOCKS_MOST)
        return linear_init(l, kernels, precision, n, k, e);
    size_t bytes = linear_packed_bytes(kernels, precision, n, k);
    const struct pack_asked *before = find(p, name, precision, n, k, bytes); /* by another layer, or before the graph was read again */
    if (before) {
        linear_bind(l, kernels, precision, n, k, before->block);
        return ST_OK;
    }
    if (mem_grow((void **)&p->asked, &p->cap, p->count, sizeof *p->asked))
        return err_nomem(e, "the model's weights");
    struct pack_asked a = {.entry = {.precision = (uint32_t)precision, .n = n, .k = k, .bytes = bytes}};
    snprintf(a.entry.name, sizeof a.entry.name, "%s", name);
    a.block = find_mapped(p, name, 0, precision, n, k, bytes);
    if (a.block) {
        linear_bind(l, kernels, precision, n, k, a.block);
        p->mapped_bytes += bytes;
    } else {
        a.block = mmap(NULL, pack_pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
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
