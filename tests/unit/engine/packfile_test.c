/* Packed weights on disk: what is found gives the bits of what was packed; nothing that is wrong with a file, a folder or a disk shows in a result. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/path.h"
#include "tests/lib/files.h"
#include "tests/lib/tinymodel.h"
#include "workers/engine/cpuinfo.h"
#include "workers/engine/model.h"
#include "workers/engine/packfile.h"

enum { LAYERS = 3, ENTRY = 248, HEADER = 104, INDEX_AT = 48, INDEX_SUM_AT = 56, KIND_AT = 64, SUM_AT = 96 }; /* of the format */

static char top[] = "/tmp/ebb-packfile-test-XXXXXX", dir[64];
static uint8_t digest[16] = "a model's digest";

static int make_dir(void **state)
{
    (void)state;
    strcpy(top + strlen(top) - 6, "XXXXXX");
    if (!mkdtemp(top))
        return -1;
    snprintf(dir, sizeof dir, "%s/a/b", top);
    return 0;
}

static int drop_dir(void **state)
{
    (void)state;
    struct err e;
    fault_set(NULL);
    return path_remove_tree(top, &e) != ST_OK;
}

/* Three layers ----------------------------------------------------------------------------------------------------------------------------- */

static const struct shape {
    const char *name;
    enum precision precision;
    uint32_t n, k;
} shapes[LAYERS] = {{"layer.0.up", PREC_F32, 70, 33}, {"layer.0.down", PREC_INT8, 33, 300}, {"out", PREC_F32, 1, 5}};

static float number(uint32_t i)
{
    return (float)(i * 2654435761u >> 8) * 0x1p-23f - 1;
}

static struct packfile_opts opts(void)
{
    const struct kernels *k;
    assert_int_equal(cpu_kernels(NULL, &k, NULL), ST_OK);
    return (struct packfile_opts){.dir = dir, .digest = digest, .kind = "embed", .kernels = k, .precision = PREC_INT8};
}

static void fill(struct linear *l)
{
    float *w = mem_array((size_t)l->n * (l->k + 1), sizeof *w);
    for (uint32_t i = 0; i < l->n * (l->k + 1); i++)
        w[i] = number(i + l->k);
    linear_set(l, 0, l->n, w, w + (size_t)l->n * l->k);
    mem_free(w);
}

/* What a layer makes of two rows, as a digest. */
static uint64_t result(const struct linear *l)
{
    float x[2 * 300], y[2 * 70] = {0};
    for (uint32_t i = 0; i < 2 * l->k; i++)
        x[i] = number(i + 77);
    linear_run(l, 2, x, l->k, ACT_GELU, NULL, 0, y, l->n);
    return XXH3_64bits(y, sizeof *y * 2 * l->n);
}

struct outcome {
    uint32_t made;
    uint64_t mapped, result[LAYERS];
};

static uint64_t all_bytes(const struct kernels *k)
{
    uint64_t n = 0;
    for (int i = 0; i < LAYERS; i++)
        n += linear_packed_bytes(k, shapes[i].precision, shapes[i].n, shapes[i].k);
    return n;
}

/* One load, as a worker does it. */
static struct outcome load_with(const struct packfile_opts *o)
{
    struct packfile *p = (void *)1;
    struct linear l[LAYERS];
    struct outcome out = {0};
    assert_int_equal(packfile_open(o, &p, NULL), ST_OK);
    for (int i = 0; i < LAYERS; i++) {
        assert_int_equal(packfile_linear(p, shapes[i].name, &l[i], o->kernels, shapes[i].precision, shapes[i].n, shapes[i].k, NULL), ST_OK);
        if (!l[i].filled)
            fill(&l[i]);
    }
    out.made = packfile_made(p);
    packfile_seal(p);
    out.mapped = packfile_mapped_bytes(p);
    for (int i = 0; i < LAYERS; i++) {
        out.result[i] = result(&l[i]);
        linear_release(&l[i]);
    }
    packfile_free(p);
    return out;
}

static struct outcome load(void)
{
    struct packfile_opts o = opts();
    return load_with(&o);
}

/* Without any cache. */
static struct outcome plain(void)
{
    struct packfile_opts o = opts();
    struct outcome out = {0};
    for (int i = 0; i < LAYERS; i++) {
        struct linear l;
        assert_int_equal(packfile_linear(NULL, shapes[i].name, &l, o.kernels, shapes[i].precision, shapes[i].n, shapes[i].k, NULL), ST_OK);
        fill(&l);
        out.result[i] = result(&l);
        linear_release(&l);
    }
    return out;
}

static void assert_outcome(const struct outcome *o, uint32_t made, int mapped)
{
    struct outcome want = plain();
    struct packfile_opts with = opts();
    assert_memory_equal(o->result, want.result, sizeof want.result);
    assert_int_equal(o->made, made);
    assert_int_equal(o->mapped, mapped ? all_bytes(with.kernels) : 0);
}

static uint32_t count_files(const char *end, char *last)
{
    DIR *d = opendir(dir);
    uint32_t n = 0;
    for (struct dirent *x; d && (x = readdir(d));) {
        const char *at = strrchr(x->d_name, '.');
        if (at && at != x->d_name && strcmp(at, end) == 0) {
            n++;
            if (last)
                sprintf(last, "%s/%s", dir, x->d_name);
        }
    }
    if (d)
        closedir(d);
    return n;
}

static char *only_file(void)
{
    static char path[400];
    assert_int_equal(count_files(".pack", path), 1);
    assert_int_equal(count_files(".part", NULL), 0);
    return path;
}

static void fresh_then_found(void **state)
{
    (void)state;
    struct outcome o = load();
    struct stat s;
    assert_outcome(&o, LAYERS, 1);
    assert_int_equal(stat(only_file(), &s), 0);
    assert_int_equal(s.st_mode & 0777, 0600);
    assert_int_equal(stat(dir, &s), 0);
    assert_int_equal(s.st_mode & 0777, 0700);
    ino_t before = (stat(only_file(), &s), s.st_ino);
    for (int i = 0; i < 2; i++) {
        o = load();
        assert_outcome(&o, 0, 1);
    }
    assert_int_equal((stat(only_file(), &s), s.st_ino), before);
}

/* Other models, tasks and kernels have files of their own, and never each other's. */
static void others_are_told_apart(void **state)
{
    (void)state;
    struct packfile_opts o = opts();
    load();
    uint8_t other[16] = "another digest!";
    o.digest = other;
    struct outcome x = load_with(&o);
    assert_outcome(&x, LAYERS, 1);
    o = opts();
    o.kind = "classify";
    x = load_with(&o);
    assert_outcome(&x, LAYERS, 1);
    assert_int_equal(count_files(".pack", NULL), 3);
    /* under another one's name */
    char path[400], command[900];
    x = load();
    assert_outcome(&x, 0, 1);
    assert_int_equal(path_remove_tree(dir, NULL), ST_OK);
    load_with(&o);
    strcpy(path, only_file());
    assert_int_equal(snprintf(command, sizeof command, "%.*sembed.pack", (int)(strlen(path) - strlen("classify.pack")), path) > 0, 1);
    assert_int_equal(rename(path, command), 0);
    x = load();
    assert_outcome(&x, LAYERS, 1);
    x = load();
    assert_outcome(&x, 0, 1);
}

/* A file that lacks a layer, or has it in another size, is made anew with what is wanted. */
static void another_set_of_layers(void **state)
{
    (void)state;
    struct packfile_opts o = opts();
    for (int round = 0; round < 2; round++) {
        struct packfile *p;
        struct linear l[2];
        assert_int_equal(path_remove_tree(dir, NULL), ST_OK);
        assert_int_equal(packfile_open(&o, &p, NULL), ST_OK);
        assert_int_equal(packfile_linear(p, round ? "none" : shapes[0].name, &l[0], o.kernels, PREC_F32, shapes[0].n, shapes[0].k, NULL), ST_OK);
        fill(&l[0]);
        assert_int_equal(packfile_linear(p, shapes[1].name, &l[1], o.kernels, PREC_INT8, shapes[1].n, shapes[1].k + 1, NULL), ST_OK);
        packfile_seal(p);
        linear_release(&l[0]);
        linear_release(&l[1]);
        packfile_free(p);
        struct outcome x = load();
        assert_outcome(&x, LAYERS - (round == 0), 1);
        x = load();
        assert_outcome(&x, 0, 1);
    }
}

static char *bytes_of(const char *path, size_t *n)
{
    struct buf b = {0};
    assert_int_equal(path_read(path, 1 << 24, &b, NULL), ST_OK);
    char *p = malloc(b.len);
    memcpy(p, b.data, b.len);
    *n = b.len;
    buf_release(&b);
    return p;
}

static void put_back(const char *path, const char *p, size_t n)
{
    files_put(path, p, n);
    assert_int_equal(chmod(path, 0600), 0);
}

static void damaged_layers(const char *path, const char *p, size_t n, uint32_t made)
{
    put_back(path, p, n);
    struct outcome x = load();
    assert_outcome(&x, made, 1);
    x = load(); /* and the next one finds all of it */
    assert_outcome(&x, 0, 1);
}

static void damaged(const char *path, const char *p, size_t n)
{
    damaged_layers(path, p, n, LAYERS);
}

static size_t index_of(const char *p)
{
    uint64_t at;
    memcpy(&at, p + INDEX_AT, sizeof at);
    return (size_t)at;
}

static void each_byte_counts(void **state)
{
    (void)state;
    size_t n, again;
    load();
    char *path = strdup(only_file()), *p = bytes_of(path, &n);
    for (size_t i = 0; i < HEADER; i++) {
        p[i] ^= 0x10;
        damaged(path, p, n);
        p[i] ^= 0x10;
    }
    size_t index = index_of(p);
    assert_true(index % 4096 == 0 && index + LAYERS * ENTRY <= n);
    for (size_t i = index; i < index + LAYERS * ENTRY; i += 3) {
        p[i] ^= 1;
        damaged(path, p, n);
        p[i] ^= 1;
    }
    for (int i = 0; i < LAYERS; i++) { /* the first, a middle and the last byte of each layer */
        uint64_t at, bytes;
        memcpy(&at, p + index + i * ENTRY + 224, sizeof at);
        memcpy(&bytes, p + index + i * ENTRY + 232, sizeof bytes);
        assert_true(at % 4096 == 0 && at + bytes <= index);
        const uint64_t places[] = {at, at + bytes / 2, at + bytes - 1};
        for (int k = 0; k < 3; k++) {
            p[places[k]] ^= 1;
            damaged_layers(path, p, n, 1);
            p[places[k]] ^= 1;
        }
    }
    char *now = bytes_of(path, &again); /* made anew each time, with the same bytes */
    assert_int_equal(again, n);
    assert_memory_equal(now, p, n);
    free(now);
    const size_t lengths[] = {0, 1, HEADER, 4095, 4096, 4097, index, index + ENTRY, n - 4096, n - 1};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        damaged(path, p, lengths[i]);
    char *longer = calloc(1, n + 4096);
    memcpy(longer, p, n);
    damaged(path, longer, n + 4096);
    free(longer);
    free(p);
    free(path);
}

static void put64(char *p, size_t at, uint64_t x)
{
    memcpy(p + at, &x, sizeof x);
}

/* Sums that are right over what is not. */
static void consistent_lies(void **state)
{
    (void)state;
    size_t n;
    load();
    char *path = strdup(only_file()), *good = bytes_of(path, &n), *p = malloc(n);
    for (int i = 0; i < 15; i++) {
        memcpy(p, good, n);
        size_t index = index_of(p);
        char *entry = p + index;
        uint32_t blocks = LAYERS, made = LAYERS;
        switch (i) {
        case 0: p[8]++; break;                                /* version */
        case 1: blocks = UINT32_MAX; break;                   /* more than there can be */
        case 2: blocks = 1000; break;                         /* the index would end behind the file */
        case 3: p[16] ^= 1; break;                            /* digest */
        case 4: p[32] ^= 1; break;                            /* form */
        case 5: put64(p, 40, n + 1); break;                   /* the file's size */
        case 6: p[KIND_AT] ^= 1; break;                       /* kind */
        case 7: put64(entry, 224, n + 4096 - n % 4096); break; /* offset: behind the end */
        case 8: put64(entry, 224, 4096 + 64); break;          /* not of a page */
        case 9: put64(entry, 232, UINT64_MAX - 4096); break;  /* bytes */
        case 10: memset(entry, 'x', 208); break;              /* a name without an end */
        case 11: put64(entry, 240, 1), made = 1; break;       /* the layer's own sum */
        case 12: put64(p, INDEX_AT, n + 4096); break;         /* the index: behind the end */
        case 13: put64(p, INDEX_AT, index + 8); break;        /* not of a page */
        case 14: put64(entry, 232, index); break;             /* a layer that reaches into the index */
        }
        memcpy(p + 12, &blocks, sizeof blocks);
        if (blocks == LAYERS)
            put64(p, INDEX_SUM_AT, XXH3_64bits(entry, LAYERS * ENTRY));
        put64(p, SUM_AT, XXH3_64bits(p, SUM_AT));
        damaged_layers(path, p, n, made);
    }
    free(p);
    free(good);
    free(path);
}

/* What another user could have put there. */
static void foreign_files(void **state)
{
    (void)state;
    struct stat s;
    load();
    char *path = strdup(only_file()), other[400];
    assert_int_equal(chmod(path, 0666), 0);
    struct outcome x = load();
    assert_outcome(&x, LAYERS, 1);
    assert_int_equal((stat(path, &s), s.st_mode & 0777), 0600);
    snprintf(other, sizeof other, "%s/other", top);
    assert_int_equal(rename(path, other), 0);
    assert_int_equal(symlink(other, path), 0);
    x = load();
    assert_outcome(&x, LAYERS, 1);
    assert_true(lstat(path, &s) == 0 && S_ISREG(s.st_mode) && stat(other, &s) == 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0); /* cannot be replaced: no cache */
    x = load();
    assert_outcome(&x, LAYERS, 0);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    x = load();
    assert_outcome(&x, LAYERS, 1);
    assert_int_equal(chmod(dir, 0777), 0);
    x = load();
    assert_outcome(&x, 0, 0);
    free(path);
}

static void no_folder(void **state)
{
    (void)state;
    char file[64];
    snprintf(file, sizeof file, "%s/a", top);
    files_put(file, "x", 1);
    struct packfile_opts o = opts();
    struct packfile *p = (void *)1;
    assert_int_equal(packfile_open(&o, &p, NULL), ST_OK);
    assert_null(p);
    struct outcome x = load();
    assert_outcome(&x, 0, 0);
}

/* A folder of one's own that cannot be written: root may write everywhere, so it is somebody else. */
static void read_only_folder(void **state)
{
    (void)state;
    assert_int_equal(chmod(top, 0777), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if ((geteuid() == 0 && setuid(65534)) || path_make_dirs(dir, 0700, NULL) != ST_OK || chmod(dir, 0500))
            _exit(2);
        struct outcome x = load();
        assert_outcome(&x, LAYERS, 0);
        if (count_files(".pack", NULL) + count_files(".part", NULL))
            _exit(3);
        /* what is there already serves */
        chmod(dir, 0700);
        load();
        chmod(dir, 0500);
        x = load();
        assert_outcome(&x, 0, 1);
        _exit(0);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), 0);
    assert_int_equal(chmod(dir, 0700), 0);
}

static void full_disk(void **state)
{
    (void)state;
    for (int i = 1; i <= LAYERS + 2; i++) { /* the header, the index, each layer */
        char fault[64];
        snprintf(fault, sizeof fault, "pack.write:%d:ENOSPC", i);
        fault_set(fault);
        struct outcome x = load();
        assert_outcome(&x, LAYERS, 0);
        assert_int_equal(count_files(".pack", NULL) + count_files(".part", NULL), 0);
    }
    char fault[64];
    snprintf(fault, sizeof fault, "pack.write:%d:ENOSPC", LAYERS + 3);
    fault_set(fault);
    struct outcome x = load();
    assert_outcome(&x, LAYERS, 1);
}

/* Many at one moment: each gets the right bits and the file's pages; one file stays. */
static void at_once(void **state)
{
    (void)state;
    enum { CHILDREN = 6 };
    for (int round = 0; round < 5; round++) {
        int start[2];
        pid_t child[CHILDREN];
        assert_int_equal(path_remove_tree(dir, NULL), ST_OK);
        assert_int_equal(pipe(start), 0);
        fflush(NULL);
        for (int i = 0; i < CHILDREN; i++) {
            child[i] = fork();
            if (child[i] == 0) {
                char byte;
                close(start[1]);
                if (read(start[0], &byte, 1) != 0)
                    _exit(2);
                struct outcome x = load();
                assert_outcome(&x, x.made, 1);
                _exit(0);
            }
        }
        close(start[0]);
        close(start[1]);
        for (int i = 0; i < CHILDREN; i++) {
            int how;
            assert_int_equal(waitpid(child[i], &how, 0), child[i]);
            assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
        }
        struct outcome x = load();
        assert_outcome(&x, 0, 1);
        only_file();
    }
}

static void the_longest_unused_go_first(void **state)
{
    (void)state;
    struct packfile_opts o = opts();
    uint8_t other[16] = {0};
    char path[400];
    struct stat s;
    load();
    assert_int_equal(stat(only_file(), &s), 0);
    o.digest = other;
    o.most_bytes = (uint64_t)s.st_size * 7 / 2;
    snprintf(path, sizeof path, "%s/gone.pack.abcdef.part", dir); /* a killed worker's */
    files_put(path, "x", 1);
    struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    for (uint8_t i = 1; i < 10; i++) {
        other[0] = i;
        struct outcome x = load_with(&o);
        assert_outcome(&x, LAYERS, 1);
        assert_true(count_files(".pack", NULL) <= 3);
        struct outcome first = load(); /* in use all the time: it stays */
        assert_outcome(&first, 0, 1);
    }
    assert_int_equal(count_files(".part", NULL), 0);
    other[0] = 9;
    struct outcome x = load_with(&o);
    assert_outcome(&x, 0, 1);
    other[0] = 1;
    o.most_bytes = (uint64_t)s.st_size - 1; /* one that does not fit is not written */
    x = load_with(&o);
    assert_outcome(&x, LAYERS, 0);
}

/* Names that are digests of what is packed: equal weights share a block, whatever else differs keeps them apart. */
static void named_by_content(void **state)
{
    (void)state;
    struct packfile_opts o = opts();
    float w[12], bias[4] = {1, 2, 3, 4};
    for (uint32_t i = 0; i < 12; i++)
        w[i] = number(i);
    for (int round = 0; round < 2; round++) {
        struct packfile *p;
        struct linear l[5], own[5];
        assert_int_equal(packfile_open(&o, &p, NULL), ST_OK);
        const struct {
            uint32_t n, k;
            size_t row, column;
            const float *bias;
        } each[5] = {{4, 3, 3, 1, bias}, {4, 3, 3, 1, bias}, {4, 3, 1, 4, bias}, {4, 3, 3, 1, NULL}, {3, 4, 4, 1, bias}};
        for (int i = 0; i < 5; i++) {
            assert_int_equal(packfile_linear_of(p, &l[i], o.kernels, PREC_F32, each[i].n, each[i].k, w, each[i].row, each[i].column, each[i].bias, NULL), ST_OK);
            assert_int_equal(packfile_linear_of(NULL, &own[i], o.kernels, PREC_F32, each[i].n, each[i].k, w, each[i].row, each[i].column, each[i].bias, NULL), ST_OK);
        }
        assert_ptr_equal(l[0].packed, l[1].packed);
        assert_int_equal(packfile_made(p), round == 0 ? 4 : 0);
        packfile_seal(p);
        for (int i = 0; i < 5; i++) {
            assert_memory_equal(l[i].packed, own[i].packed, linear_packed_bytes(o.kernels, PREC_F32, each[i].n, each[i].k));
            linear_release(&l[i]);
            linear_release(&own[i]);
        }
        packfile_free(p);
    }
}

/* Streaming ---------------------------------------------------------------------------------------------------------------------------------- */

enum { ROWS = 37, COLS = 19 };

static float *table_rows(void)
{
    float *t = malloc(sizeof *t * ROWS * COLS);
    for (uint32_t i = 0; i < ROWS * COLS; i++)
        t[i] = number(i + 5);
    return t;
}

/* Layers in two goes, a table between them. -1: something said that there is no cache. */
static int stream(const struct packfile_opts *o, uint32_t rows_at_once)
{
    struct packfile *p;
    struct linear l[LAYERS];
    float *t = table_rows();
    assert_int_equal(packfile_open(o, &p, NULL), ST_OK);
    int failed = packfile_begin(p, 1 << 16);
    for (int i = 0; i < LAYERS && !failed; i++) {
        assert_int_equal(packfile_linear(p, shapes[i].name, &l[i], o->kernels, shapes[i].precision, shapes[i].n, shapes[i].k, NULL), ST_OK);
        assert_false(l[i].filled);
        fill(&l[i]);
        for (uint32_t r = 0, n; i == 1 && r < ROWS && !failed; r += n) {
            n = ROWS - r < rows_at_once ? ROWS - r : rows_at_once;
            failed = packfile_rows(p, "words", ROWS, COLS, r, n, t + (size_t)r * COLS);
        }
        if (i != 1 && !failed)
            failed = packfile_flush(p);
        linear_release(&l[i]);
    }
    if (!failed)
        failed = packfile_end(p);
    for (int i = 0; i < LAYERS && !failed; i++)
        assert_true(packfile_has(p, shapes[i].name, o->kernels, shapes[i].precision, shapes[i].n, shapes[i].k));
    packfile_free(p);
    free(t);
    return failed;
}

static void assert_table(struct packfile *p, int there)
{
    float *t = table_rows();
    const float *found = packfile_table(p, "words", ROWS, COLS);
    assert_true((found != NULL) == there && packfile_has_table(p, "words", ROWS, COLS) == there);
    if (there)
        assert_memory_equal(found, t, sizeof *t * ROWS * COLS);
    assert_null(packfile_table(p, "words", COLS, ROWS));
    assert_null(packfile_table(p, "word", ROWS, COLS));
    free(t);
}

static void streamed_is_found(void **state)
{
    (void)state;
    struct packfile_opts o = opts();
    char *first = NULL;
    size_t n = 0, m;
    for (uint32_t each = 1; each <= ROWS; each += 6) { /* the file's bytes do not depend on how many rows come at once */
        assert_int_equal(path_remove_tree(dir, NULL), ST_OK);
        assert_int_equal(stream(&o, each), 0);
        char *now = bytes_of(only_file(), &m);
        if (first) {
            assert_int_equal(n, m);
            assert_memory_equal(first, now, n);
            free(now);
        } else {
            first = now;
            n = m;
        }
    }
    struct outcome x = load();
    assert_outcome(&x, 0, 1);
    struct packfile *p;
    assert_int_equal(packfile_open(&o, &p, NULL), ST_OK);
    assert_table(p, 1);
    assert_int_equal(packfile_mapped_bytes(p), 4 * ROWS * COLS);
    assert_false(packfile_has(p, "words", o.kernels, PREC_F32, ROWS, COLS)); /* a table is no layer */
    assert_false(packfile_has(p, shapes[0].name, o.kernels, PREC_F32, shapes[0].n, shapes[0].k + 1));
    packfile_free(p);
    /* a damaged table is not found, what else is in the file is; one that begins anew makes it whole */
    static const char name[] = "words";
    size_t index = index_of(first), at = 0;
    for (size_t i = index; i < index + (LAYERS + 1) * ENTRY; i += ENTRY)
        if (strcmp(first + i, name) == 0)
            memcpy(&at, first + i + 224, sizeof at);
    assert_true(at >= 4096 && at < index);
    char *path = strdup(only_file());
    first[at + 4 * ROWS * COLS - 1] ^= 1;
    put_back(path, first, n);
    assert_int_equal(packfile_open(&o, &p, NULL), ST_OK);
    assert_table(p, 0);
    assert_false(path_exists(path));
    assert_true(packfile_has(p, shapes[1].name, o.kernels, shapes[1].precision, shapes[1].n, shapes[1].k));
    packfile_free(p);
    assert_int_equal(stream(&o, 5), 0);
    assert_int_equal(packfile_open(&o, &p, NULL), ST_OK);
    assert_table(p, 1);
    packfile_free(p);
    free(path);
    free(first);
}

/* Whatever write fails: no file stays, and the next one makes it. */
static void streaming_to_a_full_disk(void **state)
{
    (void)state;
    struct packfile_opts o = opts();
    enum { WRITES = LAYERS + 3 /* rows, in three goes */ + 2 };
    for (int i = 1; i <= WRITES; i++) {
        char fault[64];
        snprintf(fault, sizeof fault, "pack.write:%d:ENOSPC", i);
        fault_set(fault);
        assert_int_equal(stream(&o, 13), -1);
        assert_int_equal(count_files(".pack", NULL) + count_files(".part", NULL), 0);
    }
    fault_set(NULL);
    assert_int_equal(stream(&o, 13), 0);
    only_file();
}

/* Parts of one model, whose layers nobody knows beforehand: each leaves in the file what others asked for. */
static void parts_share_a_file(void **state)
{
    (void)state;
    struct packfile_opts o = opts();
    for (int part = 0; part < 2; part++) {
        o.part = part;
        assert_int_equal(path_remove_tree(dir, NULL), ST_OK);
        for (int i = 0; i < 2 * LAYERS; i++) {
            struct packfile *p;
            struct linear l;
            const struct shape *s = &shapes[i % LAYERS];
            assert_int_equal(packfile_open(&o, &p, NULL), ST_OK);
            assert_int_equal(packfile_linear(p, s->name, &l, o.kernels, s->precision, s->n, s->k, NULL), ST_OK);
            assert_int_equal(l.filled, part && i >= LAYERS);
            if (!l.filled)
                fill(&l);
            packfile_seal(p);
            linear_release(&l);
            packfile_free(p);
        }
        struct outcome x = load();
        assert_outcome(&x, part ? 0 : LAYERS - 1, 1);
    }
}

static void where_it_is(void **state)
{
    (void)state;
    static const struct {
        const char *told, *xdg, *home, *want;
    } each[] = {{NULL, "/x", "/home/u", "/x/ebb"}, {NULL, NULL, "/home/u", "/home/u/.cache/ebb"}, {NULL, "rel", "/home/u", "/home/u/.cache/ebb"},
                {NULL, NULL, NULL, NULL},          {NULL, NULL, "/", NULL},                        {"off", "/x", "/home/u", NULL},
                {"/d/e", "/x", "/home/u", "/d/e"}, {"", NULL, "/home/u", "/home/u/.cache/ebb"}};
    static const char *const names[] = {"EBB_PACK_CACHE", "XDG_CACHE_HOME", "HOME"};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        const char *const values[] = {each[i].told, each[i].xdg, each[i].home};
        char *found = (void *)1;
        for (int k = 0; k < 3; k++)
            values[k] ? setenv(names[k], values[k], 1) : unsetenv(names[k]);
        assert_int_equal(packfile_default_dir(&found, NULL), ST_OK);
        if (each[i].want)
            assert_string_equal(found, each[i].want);
        else
            assert_null(found);
        mem_free(found);
    }
}

/* Whole models: the same bits without a cache, with one that is made, and with one that is found. */
static void models(void **state)
{
    (void)state;
    static const struct tinymodel kinds[] = {{.seed = 1}, {.seed = 2, .family = "mpnet", .head = "classify"}, {.seed = 3, .family = "deberta-v2"},
                                             {.seed = 4, .head = "fill-mask"}, {.seed = 5, .family = "albert", .dense = "Tanh"}};
    static const char *const precisions[] = {"f32", "bf16", "int8"};
    char path[80];
    snprintf(path, sizeof path, "%s/model", top);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct err e;
        assert_int_equal(path_remove_tree(path, NULL), ST_OK);
        assert_int_equal(tinymodel_write(path, &kinds[i]), 0);
        for (int k = 0; k < 3; k++) {
            float want[1024] = {0}, got[1024] = {0};
            for (int round = 0; round < 3; round++) {
                struct model *m = NULL;
                struct model_ctx *c = NULL;
                if (model_open(path, &(struct model_opts){.precision = precisions[k], .pack_dir = round ? dir : NULL}, &m, &e) != ST_OK)
                    fail_msg("%s", e.text);
                const uint32_t lengths[] = {5, 3};
                const int32_t ids[] = {2, 7, 4, 11, 3, 2, 4, 3};
                model_set_mask(m, 4);
                assert_int_equal(model_ctx_new(m, 8, 2, &c, NULL), ST_OK);
                const struct model_result *r = model_infer(m, c, &(struct model_batch){.n = 2, .lengths = lengths, .ids = ids});
                memcpy(round ? got : want, r->tensor[0].f32, 2 * r->tensor[0].width * sizeof *got);
                assert_memory_equal(want, round ? got : want, sizeof want);
                assert_true((model_info(m)->shared_bytes > 0) == (round > 0));
                assert_true(model_info(m)->shared_bytes < model_info(m)->weight_bytes);
                assert_int_equal(count_files(".pack", NULL), 3 * (int)i + k + (round > 0));
                model_ctx_free(c);
                model_free(m);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(fresh_then_found, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(others_are_told_apart, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(another_set_of_layers, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(each_byte_counts, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(consistent_lies, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(foreign_files, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(no_folder, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(read_only_folder, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(full_disk, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(at_once, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(the_longest_unused_go_first, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(named_by_content, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(streamed_is_found, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(streaming_to_a_full_disk, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(parts_share_a_file, make_dir, drop_dir),
        cmocka_unit_test(where_it_is),
        cmocka_unit_test_setup_teardown(models, make_dir, drop_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
