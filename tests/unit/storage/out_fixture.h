/* A dataset of known records, the commits that a crowd of workers could have made of it, and what the output must then be, worked out
   the plain way. Nothing here shares code with the assembler. */
#ifndef TEST_OUT_FIXTURE_H
#define TEST_OUT_FIXTURE_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/path.h"
#include "storage/assemble.h"
#include "storage/part.h"
#include "storage/rows.h"

#define MAX_RECORDS 400
#define MAX_SOURCES 6
#define JOB 7

enum fate { GOOD, BAD, QUARANTINED };

struct record {
    struct span span; /* positions, line end included */
    size_t source;
    uint64_t line;    /* from 0 */
    enum fate fate;
    int has_id;
};

struct fixture {
    char dir[64];
    struct dataset d;
    struct source sources[MAX_SOURCES];
    char *text[MAX_SOURCES];      /* bytes (of streams: after decompression) */
    uint64_t text_len[MAX_SOURCES];
    struct record records[MAX_RECORDS];
    size_t count;
    struct output_spec o;
    char out[96];
    struct store *store;
    uint64_t rng;
    uint64_t epoch;
};

#define OK(call) ok_at(call, &f_err, #call, __FILE__, __LINE__)
static struct err f_err;
static void ok_at(enum status st, const struct err *e, const char *what, const char *file, int line)
{
    if (st != ST_OK)
        fail_msg("%s:%d: %s: %s: %s", file, line, what, status_name(st), e->text);
}

static inline uint64_t rnd(struct fixture *f, uint64_t below)
{
    f->rng ^= f->rng << 13;
    f->rng ^= f->rng >> 7;
    f->rng ^= f->rng << 17;
    return below ? f->rng % below : 0;
}

/* kinds: one character a source: p plain, z stream, e empty */
static inline void fixture_init(struct fixture *f, const char *kinds, size_t records_each, uint64_t seed)
{
    memset(f, 0, sizeof *f);
    f->rng = seed * 0x9e3779b97f4a7c15u + 1;
    /* in memory where there is such a place: thousands of small files are synced, and no test here pulls the machine's plug */
    snprintf(f->dir, sizeof f->dir, "%s/ebb-out-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : P_tmpdir);
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->out, sizeof f->out, "%s/out", f->dir);
    uint64_t sizes[MAX_SOURCES];
    uint8_t layout_kinds[MAX_SOURCES];
    size_t n = strlen(kinds);
    for (size_t i = 0; i < n; i++) {
        struct buf b = {0};
        uint64_t line = 0;
        for (size_t k = 0; k < (kinds[i] == 'e' ? 0 : records_each); k++) {
            if (rnd(f, 7) == 0) { /* a blank line is no record */
                assert_int_equal(buf_str(&b, "\n"), 0);
                line++;
            }
            struct record *r = &f->records[f->count++];
            *r = (struct record){.span.begin = b.len, .source = i, .line = line++, .has_id = rnd(f, 3) != 0};
            uint64_t dice = rnd(f, 12);
            r->fate = dice < 3 ? BAD : dice == 3 ? QUARANTINED : GOOD;
            assert_int_equal(buf_printf(&b, "{\"n\":%zu,\"pad\":\"%.*s\"}", f->count - 1, (int)rnd(f, 30), "abcdefghijklmnopqrstuvwxyzabcdef"), 0);
            if (k + 1 < records_each || rnd(f, 2))
                assert_int_equal(buf_str(&b, "\n"), 0);
            r->span.end = b.len;
        }
        f->text[i] = b.data;
        f->text_len[i] = b.len;
        sizes[i] = b.len;
        layout_kinds[i] = kinds[i] == 'z' ? 2 : 0;
        f->sources[i].path = mem_printf("/data/s\"%zu.jsonl", i);
        f->sources[i].size_bytes = b.len;
    }
    f->d = (struct dataset){.format = FORMAT_JSONL, .count = n, .sources = f->sources};
    assert_int_equal(layout_init(&f->d.layout, n, sizes, layout_kinds), 0);
    f->d.end = layout_end(&f->d.layout);
    for (size_t i = 0; i < f->count; i++) {
        f->records[i].span.begin += f->d.layout.base[f->records[i].source];
        f->records[i].span.end += f->d.layout.base[f->records[i].source];
    }
    OK(store_mem_new(&f->store, &f_err));
}

static inline void fixture_spec(struct fixture *f, int is_dir, enum output_kind kind, uint64_t part_bytes)
{
    snprintf(f->out, sizeof f->out, "%s/%s", f->dir, is_dir ? "out" : kind == OUTPUT_NPY ? "out.npy" : "out.jsonl");
    f->o = (struct output_spec){.path = f->out, .is_dir = is_dir, .kind = kind, .dims = kind == OUTPUT_NPY ? 3 : 0, .part_bytes = part_bytes};
}

static inline void fixture_release(struct fixture *f)
{
    store_close(f->store);
    layout_release(&f->d.layout);
    for (size_t i = 0; i < f->d.count; i++) {
        mem_free(f->text[i]);
        mem_free(f->sources[i].path);
    }
    OK(path_remove_tree(f->dir, &f_err));
}

/* What the model makes of a record -------------------------------------------------------------------------------------------- */

static inline void row_of(const struct fixture *f, size_t i, struct buf *row, struct buf *ids)
{
    if (f->o.kind == OUTPUT_JSONL) {
        assert_int_equal(buf_printf(row, "{\"id\":%zu,\"vector\":\"%.*s\"}\n", i, (int)(i * 13 % 47), "0123456789012345678901234567890123456789abcdefghij"), 0);
        return;
    }
    float v[3] = {(float)i, (float)i / 3, -1};
    assert_int_equal(buf_add(row, v, sizeof v), 0);
    assert_int_equal(buf_printf(ids, "\"r%zu\"\n", i), 0);
}

static const char error_message[] = "no \"field\" \\ here\x01";
static const char quarantine_reason[] = "crashed|worker died | thrice";

/* The output as it must be ------------------------------------------------------------------------------------------------------ */

static inline void expect_file(struct buf *all, const char *name, const void *data, size_t len)
{
    assert_int_equal(buf_printf(all, "== %s %zu\n", name, len), 0);
    assert_int_equal(buf_add(all, data, len), 0);
}

static inline void npy_header(struct buf *b, size_t rows)
{
    char text[200];
    int n = snprintf(text, sizeof text, "{'descr': '<f4', 'fortran_order': False, 'shape': (%zu, 3), }", rows);
    assert_int_equal(buf_add(b, "\x93NUMPY\x01\0v\0", 10), 0);
    assert_int_equal(buf_printf(b, "%s%*s\n", text, 117 - n, ""), 0);
}

static inline void expect_part(const struct fixture *f, struct buf *all, size_t part, size_t rows, const struct buf *data, const struct buf *ids)
{
    char name[64], ids_name[80];
    struct buf file = {0};
    snprintf(name, sizeof name, "part-%05zu.%s", part, f->o.kind == OUTPUT_NPY ? "npy" : "jsonl");
    snprintf(ids_name, sizeof ids_name, "part-%05zu.ids.jsonl", part);
    if (!f->o.is_dir) {
        snprintf(name, sizeof name, "%s", path_base(f->out));
        snprintf(ids_name, sizeof ids_name, "%s.ids.jsonl", name);
    }
    if (f->o.kind == OUTPUT_NPY)
        npy_header(&file, rows);
    assert_int_equal(buf_add(&file, data->data, data->len), 0);
    if (f->o.kind == OUTPUT_NPY && f->o.is_dir)
        expect_file(all, ids_name, ids->data, ids->len);
    expect_file(all, name, file.data, file.len);
    if (f->o.kind == OUTPUT_NPY && !f->o.is_dir)
        expect_file(all, ids_name, ids->data, ids->len);
    buf_release(&file);
}

static inline void expect_error(const struct fixture *f, size_t i, struct buf *out)
{
    const struct record *r = &f->records[i];
    assert_int_equal(buf_printf(out, "{\"source\":\"/data/s\\\"%zu.jsonl\",\"line\":%" PRIu64, r->source, r->line + 1), 0);
    if (r->fate == BAD && r->has_id)
        assert_int_equal(buf_printf(out, ",\"id\":{\"n\":%zu}", i), 0);
    assert_int_equal(buf_str(out, r->fate == BAD ? ",\"code\":\"missing_field\",\"message\":\"no \\\"field\\\" \\\\ here\\u0001\"}\n"
                                                 : ",\"code\":\"crashed\",\"message\":\"worker died | thrice\"}\n"),
                     0);
}

/* Every file of the output but the manifest, in the order of names, in one buffer. */
static inline void expected(const struct fixture *f, struct buf *all)
{
    struct buf rows = {0}, ids = {0}, errors = {0};
    size_t part = 0, in_part = 0;
    buf_clear(all);
    for (size_t i = 0; i < f->count; i++) {
        if (f->records[i].fate != GOOD) {
            expect_error(f, i, &errors);
            continue;
        }
        row_of(f, i, &rows, &ids);
        in_part++;
        if (f->o.is_dir && rows.len >= f->o.part_bytes) {
            expect_part(f, all, part++, in_part, &rows, &ids);
            buf_clear(&rows);
            buf_clear(&ids);
            in_part = 0;
        }
    }
    if (in_part || part == 0)
        expect_part(f, all, part, in_part, &rows, &ids);
    char name[64];
    snprintf(name, sizeof name, "%s.errors.jsonl", path_base(f->out));
    expect_file(all, f->o.is_dir ? "errors.jsonl" : name, errors.data, errors.len);
    if (f->o.is_dir)
        expect_file(all, "_SUCCESS", "", 0);
    buf_release(&rows);
    buf_release(&ids);
    buf_release(&errors);
}

static inline int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The same of what stands on disk. Anything that should not be there shows. */
static inline void actual(const struct fixture *f, struct buf *all)
{
    char folder[128], *names[1000];
    size_t n = 0;
    buf_clear(all);
    snprintf(folder, sizeof folder, "%s", f->o.is_dir ? f->out : f->dir);
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (const struct dirent *x; (x = readdir(d));)
        if (x->d_name[0] != '.' && !strstr(x->d_name, ".ebb") && !strstr(x->d_name, "manifest.json") && strcmp(x->d_name, "state") != 0)
            names[n++] = mem_strdup(x->d_name);
    closedir(d);
    qsort(names, n, sizeof *names, by_name);
    for (int round = 0; round < 3; round++) /* rows, then errors, then _SUCCESS */
        for (size_t i = 0; i < n; i++) {
            int kind = strstr(names[i], "errors.jsonl") ? 1 : strcmp(names[i], "_SUCCESS") == 0 ? 2 : 0;
            if (kind != round)
                continue;
            char *path = path_join(folder, names[i]);
            struct buf b = {0};
            OK(path_read(path, 1 << 26, &b, &f_err));
            expect_file(all, names[i], b.data, b.len);
            buf_release(&b);
            mem_free(path);
        }
    for (size_t i = 0; i < n; i++)
        mem_free(names[i]);
}

static inline void check_output(const struct fixture *f)
{
    struct buf want = {0}, have = {0};
    expected(f, &want);
    actual(f, &have);
    const char *w = buf_cstr(&want), *h = buf_cstr(&have);
    if (want.len != have.len || memcmp(w, h, want.len) != 0) {
        size_t i = 0;
        while (i < want.len && i < have.len && w[i] == h[i])
            i++;
        size_t from = i > 200 ? i - 200 : 0;
        fail_msg("outputs differ at byte %zu of %zu/%zu:\nwanted ...%.300s\nhave   ...%.300s", i, want.len, have.len, w + from, h + from);
    }
    buf_release(&want);
    buf_release(&have);
}

/* Commits ---------------------------------------------------------------------------------------------------------------------- */

/* What a worker puts into the part for [begin, end): every record whose first byte is there. */
static inline void work(struct fixture *f, struct part *p, uint64_t begin, uint64_t end)
{
    struct buf row = {0}, ids = {0};
    size_t first = layout_source(&f->d.layout, begin), last = layout_source(&f->d.layout, end - 1);
    OK(part_begin(p, begin, &f_err));
    for (size_t i = 0; i < f->count; i++) {
        const struct record *r = &f->records[i];
        if (r->span.begin < begin || r->span.begin >= end)
            continue;
        assert_int_not_equal(r->fate, QUARANTINED);
        if (r->fate == GOOD) {
            buf_clear(&row);
            buf_clear(&ids);
            row_of(f, i, &row, &ids);
            OK(part_row(p, row.data, row.len, ids.data, ids.len, &f_err));
            continue;
        }
        uint64_t line = 0, base = f->d.layout.base[r->source], from = r->source == first && base < begin ? begin - base : 0;
        for (uint64_t k = from; k < r->span.begin - base; k++)
            line += f->text[r->source][k] == '\n';
        char id[32];
        snprintf(id, sizeof id, "{\"n\":%zu}", i);
        struct part_error x = {.record = r->span, .source = r->source, .line = line, .code = "missing_field", .message = error_message,
                               .id_json = r->has_id ? id : NULL, .id_len = strlen(id)};
        OK(part_error(p, &x, &f_err));
    }
    uint64_t lines = 0, base = f->d.layout.base[last], from = last == first && base < begin ? begin - base : 0;
    for (uint64_t k = from; k < end - base && k < f->text_len[last]; k++)
        lines += f->text[last][k] == '\n';
    OK(part_end(p, end, lines, end - begin, &f_err));
    buf_release(&row);
    buf_release(&ids);
}

static inline void publish(struct fixture *f, struct part *p, uint32_t attempt)
{
    struct store_batch *b = NULL;
    struct part_info info;
    char *dir = output_parts_dir(&f->o);
    if (part_extent_count(p)) {
        OK(part_write(p, dir, JOB, EPOCH(1, ++f->epoch), 0, &info, &f_err));
        OK(store_batch_new(f->store, &b, &f_err));
        for (size_t i = 0; i < part_extent_count(p); i++) {
            struct extent x = part_extents(p)[i];
            x.attempt = attempt;
            rows_put_extent(b, JOB, &x);
        }
        OK(store_write(f->store, b, 1, &f_err));
        store_batch_free(b);
        part_clear(p);
    }
    mem_free(dir);
}

static inline void quarantine(struct fixture *f, const struct record *r, uint32_t attempt)
{
    struct store_batch *b = NULL;
    OK(store_batch_new(f->store, &b, &f_err));
    struct extent x = {.span = r->span, .attempt = attempt, .records = 1, .errors = 1};
    snprintf(x.reason, sizeof x.reason, "%s", quarantine_reason);
    rows_put_extent(b, JOB, &x);
    OK(store_write(f->store, b, 1, &f_err));
    store_batch_free(b);
}

/* Commits [begin, end) in pieces of at most about `piece` bytes, now and then several in a part, out of order. Streams are cut only
   between records. */
static inline void commit(struct fixture *f, uint64_t begin, uint64_t end, uint64_t piece, uint32_t attempt)
{
    struct part *parts[2];
    OK(part_new(&parts[0], &f_err));
    OK(part_new(&parts[1], &f_err));
    size_t i = 0;
    while (begin < end) {
        while (i < f->count && f->records[i].span.begin < begin)
            i++;
        if (i < f->count && f->records[i].span.begin == begin && f->records[i].fate == QUARANTINED) {
            quarantine(f, &f->records[i], attempt);
            begin = f->records[i].span.end;
            continue;
        }
        uint64_t to = begin + 1 + rnd(f, piece);
        if (layout_is_stream(&f->d.layout, layout_source(&f->d.layout, begin))) {
            size_t k = i;
            while (k < f->count && f->records[k].span.begin < to)
                k++;
            uint64_t source_end = f->d.layout.base[layout_source(&f->d.layout, begin) + 1];
            to = k < f->count && f->records[k].span.begin < source_end ? f->records[k].span.begin : source_end;
        } else { /* does not end inside a stream */
            size_t s = layout_source(&f->d.layout, to - 1);
            if (s < f->d.count && layout_is_stream(&f->d.layout, s))
                to = f->d.layout.base[s] > begin ? f->d.layout.base[s] : to;
        }
        for (size_t k = i; k < f->count && f->records[k].span.begin < to; k++)
            if (f->records[k].fate == QUARANTINED) /* its record begins an extent of its own */
                to = f->records[k].span.begin;
        if (to > end)
            to = end;
        struct part *p = parts[rnd(f, 2)];
        work(f, p, begin, to);
        if (rnd(f, 3))
            publish(f, p, attempt);
        begin = to;
    }
    publish(f, parts[0], attempt);
    publish(f, parts[1], attempt);
    part_free(parts[0]);
    part_free(parts[1]);
}

/* Assembling ------------------------------------------------------------------------------------------------------------------- */

static const struct manifest_info test_info = {.spec_json = "{\"model\":\"m\",\"input\":[\"a\"]}", .model_digest = "d1", .numerics = "n1",
                                               .model_name = "mini", .counts = {.records = 3}, .version = "0.1"};

/* From what was saved to the end, in small steps; the saved state goes into the store and, when a path is given, into that file
   (for a life after a kill). Any failure is returned as the daemon would see it. */
static inline enum status assemble(struct fixture *f, uint32_t attempt, uint64_t step, const char *state_path, struct err *e)
{
    struct buf saved = {0};
    struct assembly *a = NULL;
    struct store_batch *b = NULL;
    enum status st = state_path ? path_read(state_path, 1 << 20, &saved, e) : rows_get_assembly(f->store, JOB, &saved, e);
    if (st == ST_NOT_FOUND)
        st = ST_OK, saved.len = 0;
    if (st == ST_OK)
        st = assembly_open(&f->o, JOB, &f->d, attempt, saved.data, saved.len, &a, e);
    if (st == ST_OK)
        st = store_batch_new(f->store, &b, e);
    uint64_t head = st == ST_OK ? assembly_head(a) : 0;
    for (int more = 1; st == ST_OK && (more || head < f->d.end);) {
        if (!more || head == assembly_head(a))
            head = head + step * 3 < f->d.end ? f->d.end - (f->d.end - head) / 2 : f->d.end;
        /* the head stands where an extent ends */
        struct extent_iter *it = NULL;
        struct extent x;
        uint64_t edge = f->d.end;
        st = extent_iter_open(f->store, JOB, head, &it, e);
        if (st == ST_OK && (st = extent_iter_next(it, &x, e)) == ST_OK)
            edge = x.span.begin;
        extent_iter_close(it);
        if (st != ST_OK && st != ST_END)
            break;
        head = edge;
        st = assembly_advance(a, f->store, head, step, &more, e);
        buf_clear(&saved);
        if (st == ST_OK)
            st = assembly_save(a, &saved, e);
        if (st == ST_OK && state_path)
            st = path_write(state_path, saved.data, saved.len, e);
        if (st == ST_OK) {
            store_batch_clear(b);
            rows_put_assembly(b, JOB, saved.data, saved.len);
            st = store_write(f->store, b, 1, e);
        }
        if (st == ST_OK)
            st = assembly_free_parts(a, e);
    }
    struct manifest_info info = test_info;
    info.attempt = attempt;
    if (st == ST_OK)
        st = assembly_finish(a, &info, e);
    store_batch_free(b);
    assembly_close(a);
    buf_release(&saved);
    return st;
}

#endif
