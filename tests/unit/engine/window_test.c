/* Layers that are held by turns: no more of them in memory than was allowed, the same bits, whatever the model, the window, and how many lanes sweep together. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/path.h"
#include "tests/lib/files.h"
#include "tests/lib/tinymodel.h"
#include "workers/engine/model.h"
#include "workers/engine/window.h"

static char top[] = "/tmp/ebb-window-test-XXXXXX", dir[FILES_ROOM], packs[FILES_ROOM];

static int start(void **state)
{
    (void)state;
    return files_begin(top, dir, packs);
}

static int end(void **state)
{
    (void)state;
    return files_end(top);
}

/* The window alone ------------------------------------------------------------------------------------------------------------------------- */

enum { SETS = 7, UNITS = 12, LANES = 3, SWEEPS = 20, PAGES_MOST = 40, PAGE_BYTES = 4096 };

struct ground {
    struct window *w;
    struct window_piece piece[SETS];
    char *map;
    size_t bytes;
    const uint32_t *unit;
    uint64_t most;
    atomic_int wrong;
};

/* Bytes of the mapping that are in this process' memory. */
static uint64_t resident(const void *map)
{
    FILE *f = fopen("/proc/self/smaps", "r");
    char line[300];
    uint64_t kib = 0, from;
    int here = 0;
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%" SCNx64 "-", &from) == 1 && strchr(line, '-') && strchr(line, '-') < strchr(line, ' '))
            here = from == (uint64_t)(uintptr_t)map;
        else if (here && sscanf(line, "Rss: %" SCNu64, &kib) == 1)
            break;
    }
    if (f)
        fclose(f);
    return kib << 10;
}

static void *lane(void *arg)
{
    struct ground *g = arg;
    for (int s = 0; s < SWEEPS; s++) {
        window_table_enter(g->w);
        if (g->map[g->bytes - 1] != 'z')
            atomic_fetch_add(&g->wrong, 1);
        window_table_leave(g->w);
        window_begin(g->w);
        for (uint32_t u = 0; u < UNITS; u++) {
            const struct window_piece *p = &g->piece[g->unit[u]];
            window_wait(g->w, u);
            for (size_t i = 0; i < p->bytes; i += PAGE_BYTES)
                if (((const char *)p->at)[i] != (char)('a' + g->unit[u]))
                    atomic_fetch_add(&g->wrong, 1);
            if (s % 8 == 0 && resident(g->map) > g->most + 17 * PAGE_BYTES) /* the table's, with what the kernel maps around */
                atomic_fetch_add(&g->wrong, 1000);
            window_done(g->w, u);
        }
    }
    window_leave(g->w);
    return NULL;
}

static void only_so_much_in_memory(void **state)
{
    (void)state;
    static const uint32_t orders[][UNITS] = {{0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4}, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, {0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 6, 6}, {6, 5, 4, 3, 2, 1, 0, 6, 5, 4, 3, 2}};
    char path[80];
    snprintf(path, sizeof path, "%s/weights", top);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    size_t pages[SETS], at = 0, largest = 0, all = 0;
    for (uint32_t i = 0; i < SETS; i++) {
        pages[i] = 1 + i * 29 % PAGES_MOST;
        largest = pages[i] > largest ? pages[i] : largest;
        char *block = malloc(pages[i] * PAGE_BYTES);
        memset(block, 'a' + (int)i, pages[i] * PAGE_BYTES);
        assert_int_equal(pwrite(fd, block, pages[i] * PAGE_BYTES, (off_t)at), pages[i] * PAGE_BYTES);
        free(block);
        at += pages[i] * PAGE_BYTES + 16 * PAGE_BYTES; /* nothing is mapped around one that is another's */
        all += pages[i];
    }
    at = (at + 64 * PAGE_BYTES) / (64 * PAGE_BYTES) * (64 * PAGE_BYTES) + PAGE_BYTES;
    assert_int_equal(pwrite(fd, "z", 1, (off_t)at - 1), 1);
    for (size_t order = 0; order < sizeof orders / sizeof *orders; order++)
        for (size_t most = largest; most <= all + 40; most += 37) {
            struct ground g = {.bytes = at, .unit = orders[order], .most = most * PAGE_BYTES};
            struct window_set set[SETS];
            struct err e;
            g.map = mmap(NULL, at, PROT_READ, MAP_SHARED, fd, 0);
            assert_true(g.map != MAP_FAILED);
            size_t from = 0;
            for (uint32_t i = 0; i < SETS; i++) {
                g.piece[i] = (struct window_piece){g.map + from, pages[i] * PAGE_BYTES};
                set[i] = (struct window_set){&g.piece[i], 1};
                from += pages[i] * PAGE_BYTES + 16 * PAGE_BYTES;
            }
            struct window_piece table = {g.map + at - PAGE_BYTES, PAGE_BYTES};
            assert_int_equal(window_new(&(struct window_opts){.set = set, .sets = SETS, .unit = g.unit, .units = UNITS, .table = &table, .tables = 1, .most_bytes = g.most}, &g.w, &e),
                             ST_OK);
            pthread_t thread[LANES];
            for (int i = 0; i < LANES; i++)
                window_join(g.w);
            for (int i = 0; i < LANES; i++)
                assert_int_equal(pthread_create(&thread[i], NULL, lane, &g), 0);
            for (int i = 0; i < LANES; i++)
                pthread_join(thread[i], NULL);
            struct window_figures f;
            window_figures(g.w, &f);
            assert_int_equal(g.wrong, 0);
            assert_true(f.most_bytes <= g.most);
            assert_in_range(f.sweeps, SWEEPS, LANES * SWEEPS);
            window_free(g.w);
            munmap(g.map, at);
        }
    close(fd);
}

static void memory_is_out(void **state)
{
    (void)state;
    struct window_piece piece = {mmap(NULL, PAGE_BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), PAGE_BYTES};
    struct window_set set = {&piece, 1};
    uint32_t unit = 0;
    struct window *w = NULL;
    struct err e;
    uint64_t n = 0;
    enum status st;
    do {
        mem_fail_nth(++n);
        st = window_new(&(struct window_opts){.set = &set, .sets = 1, .unit = &unit, .units = 1, .table = &piece, .tables = 1, .most_bytes = PAGE_BYTES}, &w, &e);
        mem_fail_nth(0);
        assert_true(st == ST_OK || st == ST_NOMEM);
    } while (st != ST_OK);
    window_free(w);
    munmap((void *)(uintptr_t)piece.at, PAGE_BYTES);
    assert_true(n > 6);
}

/* Models ----------------------------------------------------------------------------------------------------------------------------------- */

enum { RECORDS = 20, TOKENS = 256, MASK_ID = 4, WORDS = 1 << 14 };

static uint32_t lengths[RECORDS];
static int32_t ids[TOKENS];
static uint8_t types[TOKENS];

static void make_texts(void)
{
    for (uint32_t i = 0; i < RECORDS; i++)
        lengths[i] = 1 + i * 7 % 23;
    for (uint32_t i = 0; i < TOKENS; i++) {
        ids[i] = i % 5 == 3 ? MASK_ID : (int32_t)(5 + i * 37 % 100);
        types[i] = i % 4 > 1;
    }
}

static struct model *open_it(const struct model_opts *o)
{
    struct model *m = NULL;
    struct err e;
    if (model_open(dir, o, &m, &e) != ST_OK)
        fail_msg("%s", e.text);
    model_set_mask(m, MASK_ID);
    return m;
}

struct outcome {
    size_t words;
    uint32_t word[WORDS];
};

static void keep(struct outcome *o, const struct model_result *r)
{
    for (uint32_t k = 0; k < r->count; k++) {
        const struct model_tensor *t = &r->tensor[k];
        size_t n = 0;
        for (uint32_t i = 0; i < RECORDS; i++)
            n += (size_t)(t->rows ? t->rows[i] : 1) * t->width;
        BUG_IF(o->words + n > WORDS, "too little room");
        memcpy(o->word + o->words, t->f32 ? (const void *)t->f32 : (const void *)t->i32, 4 * n);
        o->words += n;
    }
}

struct sweeper {
    const struct model *m;
    const struct outcome *want;
    int runs, wrong;
};

static void *sweep(void *arg)
{
    struct sweeper *s = arg;
    struct outcome *got = malloc(sizeof *got);
    struct model_ctx *c;
    if (model_ctx_new(s->m, TOKENS, RECORDS, &c, NULL) != ST_OK)
        abort();
    for (int i = 0; i < s->runs; i++) {
        got->words = 0;
        keep(got, model_infer(s->m, c, &(struct model_batch){.n = RECORDS, .lengths = lengths, .ids = ids, .types = types}));
        s->wrong += got->words != s->want->words || memcmp(got->word, s->want->word, 4 * got->words) != 0;
    }
    model_ctx_free(c);
    free(got);
    return NULL;
}

/* Some lanes, the one with more to do than the other. */
static void run_lanes(const struct model *m, const struct outcome *want, const char *what)
{
    pthread_t thread[2];
    struct sweeper s[2] = {{m, want, 4, 0}, {m, want, 2, 0}};
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, sweep, &s[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    if (s[0].wrong || s[1].wrong)
        fail_msg("%s: other bits", what);
}

static enum status open_within(const struct model_opts *o, uint64_t bytes, struct model **m, struct err *e)
{
    struct model_opts with = *o;
    with.memory_bytes = bytes;
    return model_open(dir, &with, m, e);
}

/* The least that a model needs; below it an error names what it needs. */
static uint64_t least_memory(const struct model_opts *o)
{
    uint64_t low = 0, high = UINT64_C(1) << 30;
    struct err e;
    while (low + 1024 < high) {
        uint64_t mid = (low + high) / 2;
        struct model *m = NULL;
        enum status st = open_within(o, mid, &m, &e);
        if (st == ST_OK) {
            model_free(m);
            high = mid;
        } else {
            assert_int_equal(st, mid ? ST_ENV : ST_OK);
            assert_non_null(strstr(e.text, "held by turns"));
            assert_non_null(strstr(e.text, "may take"));
            low = mid;
        }
    }
    return high;
}

static const struct tinymodel kinds[] = {
    {.layers = 6}, {.layers = 6, .dense = "Tanh", .pooling = "cls"}, {.layers = 5, .family = "mpnet", .head = "classify"},
    {.layers = 4, .family = "deberta-v2", .head = "token-classify"}, {.layers = 4, .family = "deberta-v2", .variant = 1}, {.layers = 6, .family = "albert"},
    {.layers = 6, .family = "albert", .variant = 1}, {.layers = 4, .family = "electra", .head = "fill-mask"}, {.layers = 4, .head = "fill-mask", .vocab = 9000, .hidden = 16, .heads = 2},
    {.layers = 4, .family = "roberta", .head = "fill-mask", .untied = 1}};
static const char *const precisions[] = {"f32", "bf16", "int8"};

static void the_same_bits(void **state)
{
    (void)state;
    static struct outcome want;
    struct err e;
    make_texts();
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct model_opts o = {.precision = precisions[k % 3], .lanes = 2};
        struct model *m = NULL;
        char what[64];
        snprintf(what, sizeof what, "model %zu", k);
        assert_int_equal(path_remove_tree(dir, &e), ST_OK);
        assert_int_equal(path_remove_tree(packs, &e), ST_OK);
        assert_int_equal(tinymodel_write(dir, &kinds[k]), 0);
        m = open_it(&o);
        assert_int_equal(model_info(m)->window, 0);
        struct model_ctx *c;
        assert_int_equal(model_ctx_new(m, TOKENS, RECORDS, &c, NULL), ST_OK);
        want.words = 0;
        keep(&want, model_infer(m, c, &(struct model_batch){.n = RECORDS, .lengths = lengths, .ids = ids, .types = types}));
        model_ctx_free(c);
        model_free(m);
        m = NULL;
        assert_int_equal(open_within(&o, 4096, &m, &e), ST_ENV); /* nowhere to put packed weights */
        assert_non_null(strstr(e.text, "--pack-cache"));
        o.pack_dir = packs;
        uint64_t least = least_memory(&o);
        int windows = 0;
        for (uint64_t bytes = least;; bytes += least / 8) {
            assert_int_equal(open_within(&o, bytes, &m, &e), ST_OK);
            model_set_mask(m, MASK_ID);
            const struct model_info *i = model_info(m);
            if (i->window) {
                windows++;
                assert_in_range(i->window, 1, i->layers * 4);
                assert_true(i->window_bytes <= bytes && i->batch_tokens >= i->max_tokens && i->batch_records > 0);
            }
            run_lanes(m, &want, what);
            int over = !i->window;
            model_free(m);
            if (over)
                break;
        }
        assert_true(windows > 0);
    }
}

/* A stage's part by a window of its own. */
static void stages_have_windows(void **state)
{
    (void)state;
    static struct outcome want, got;
    struct err e;
    make_texts();
    assert_int_equal(path_remove_tree(dir, &e), ST_OK);
    assert_int_equal(path_remove_tree(packs, &e), ST_OK);
    assert_int_equal(tinymodel_write(dir, &(struct tinymodel){.layers = 6, .head = "fill-mask"}), 0);
    struct model *m = open_it(NULL);
    struct model_ctx *c;
    struct model_batch b = {.n = RECORDS, .lengths = lengths, .ids = ids, .types = types};
    assert_int_equal(model_ctx_new(m, TOKENS, RECORDS, &c, NULL), ST_OK);
    want.words = 0;
    keep(&want, model_infer(m, c, &b));
    model_ctx_free(c);
    model_free(m);
    for (uint32_t cut = 1; cut < 8; cut++) {
        const void *in = NULL, *out = NULL;
        size_t len = 0, out_len;
        const struct model_result *r = NULL;
        struct model *part[2];
        struct model_ctx *ctx[2];
        for (int i = 0; i < 2; i++) {
            struct model_opts o = {.part = 1, .first = i ? cut : 0, .end = i ? 8 : cut, .lanes = 1, .pack_dir = packs};
            assert_int_equal(open_within(&o, least_memory(&o), &part[i], &e), ST_OK);
            model_set_mask(part[i], MASK_ID);
            assert_true(model_info(part[i])->window || o.end - o.first < 3);
            assert_int_equal(model_ctx_new(part[i], TOKENS, RECORDS, &ctx[i], NULL), ST_OK);
        }
        for (int i = 0; i < 2; i++) {
            if (model_stage(part[i], ctx[i], &b, in, len, &out, &out_len, &r, &e) != ST_OK)
                fail_msg("%s", e.text);
            in = out;
            len = out_len;
        }
        got.words = 0;
        keep(&got, r);
        assert_int_equal(got.words, want.words);
        assert_memory_equal(got.word, want.word, 4 * want.words);
        for (int i = 0; i < 2; i++) {
            model_ctx_free(ctx[i]);
            model_free(part[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_so_much_in_memory),
        cmocka_unit_test(memory_is_out),
        cmocka_unit_test(the_same_bits),
        cmocka_unit_test(stages_have_windows),
    };
    return cmocka_run_group_tests(tests, start, end);
}
