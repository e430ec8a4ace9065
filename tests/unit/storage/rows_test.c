#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "storage/asmstate.h"
#include "storage/errline.h"
#include "storage/key.h"
#include "storage/rows.h"

static struct err err;
static struct store *s;
static struct store_batch *b;
static uint64_t rng = 88172645463325252u;

static void ok(enum status st)
{
    if (st != ST_OK)
        fail_msg("%s: %s", status_name(st), err.text);
}

static int setup(void **state)
{
    (void)state;
    return store_mem_new(&s, &err) != ST_OK || store_batch_new(s, &b, &err) != ST_OK ? -1 : 0;
}

static int teardown(void **state)
{
    (void)state;
    store_batch_free(b);
    store_close(s);
    return 0;
}

static void flush(void)
{
    ok(store_write(s, b, 1, &err));
    store_batch_clear(b);
}

static uint64_t rnd(void)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    return rng ^= rng << 17;
}

/* Numbers of every size, the largest among them. */
static uint64_t any(void)
{
    return rnd() % 9 == 0 ? UINT64_MAX : rnd() >> rnd() % 64;
}

static struct job_row any_job(uint64_t id)
{
    struct job_row r;
    memset(&r, 0, sizeof r); /* padding, too: rows are compared as bytes */
    r.id = id;
    r.state = (enum job_state)(rnd() % 6);
    r.params = (struct job_params){(uint32_t)any(), (int32_t)any(), any(), any(), (uint32_t)any(), (uint32_t)any(), (uint32_t)any(),
                                   (uint32_t)any(), any(), (uint32_t)any(), (uint32_t)any(), (uint32_t)any(), (int64_t)any(), (uint32_t)any()};
    r.counts = (struct job_counts){any(), any(), any(), any(), any(), any(), any()};
    r.attempt = (uint32_t)any();
    r.numerics = (uint32_t)any();
    r.submitted_ms = (int64_t)any();
    r.finished_ms = (int64_t)any();
    snprintf(r.reason, sizeof r.reason, "%.*s", (int)(rnd() % 256), "1.2 % of records fail (limit 1 %), the last with 'text is longer than 512 tokens'");
    return r;
}

static void check_job(const struct job_row *x, const struct job_row *y)
{
    assert_int_equal(x->id, y->id);
    assert_int_equal(x->state, y->state);
    const struct job_params *p = &x->params, *q = &y->params;
    assert_true(p->weight == q->weight && p->priority == q->priority && p->model_key == q->model_key && p->model_bytes == q->model_bytes &&
                p->lease_target_ms == q->lease_target_ms && p->stall_timeout_ms == q->stall_timeout_ms && p->min_workers == q->min_workers &&
                p->max_workers == q->max_workers && p->max_errors == q->max_errors && p->max_errors_ppm == q->max_errors_ppm &&
                p->max_attempts == q->max_attempts && p->guaranteed_ppm == q->guaranteed_ppm && p->deadline_ms == q->deadline_ms &&
                p->stages == q->stages);
    assert_memory_equal(&x->counts, &y->counts, sizeof x->counts);
    assert_true(x->attempt == y->attempt && x->numerics == y->numerics && x->submitted_ms == y->submitted_ms && x->finished_ms == y->finished_ms);
    assert_string_equal(x->reason, y->reason);
}

struct seen {
    struct job_row jobs[200];
    struct span_row spans[200];
    size_t count;
};

static enum status see_job(void *arg, const struct job_row *row, struct err *e)
{
    (void)e;
    struct seen *x = arg;
    x->jobs[x->count++] = *row;
    return ST_OK;
}

static enum status see_span(void *arg, const struct span_row *row, struct err *e)
{
    (void)e;
    struct seen *x = arg;
    x->spans[x->count++] = *row;
    return ST_OK;
}

static void jobs_read_back(void **state)
{
    (void)state;
    struct job_row rows[100];
    static struct seen seen;
    for (size_t i = 0; i < 100; i++) {
        rows[i] = any_job(i * 3 + 1); /* ascending: keys scan in the order of numbers */
        rows_put_job(b, &rows[i]);
        rows_put_spec(b, rows[i].id, "{}", 2); /* rows beside it are no jobs */
        rows_put_assembly(b, rows[i].id, "x", 1);
    }
    flush();
    seen.count = 0;
    ok(rows_each_job(s, see_job, &seen, &err));
    assert_int_equal(seen.count, 100);
    for (size_t i = 0; i < 100; i++)
        check_job(&rows[i], &seen.jobs[i]);
    rows[7].counts.records++;
    rows_put_job(b, &rows[7]);
    rows_del_job(b, rows[8].id);
    flush();
    seen.count = 0;
    ok(rows_each_job(s, see_job, &seen, &err));
    assert_int_equal(seen.count, 99);
    check_job(&rows[7], &seen.jobs[7]);
    check_job(&rows[9], &seen.jobs[8]);
}

static enum status stop(void *arg, const struct job_row *row, struct err *e)
{
    (void)row;
    ++*(int *)arg;
    return err_set(e, ST_AGAIN, "enough");
}

static void a_visitor_can_stop(void **state)
{
    (void)state;
    int n = 0;
    struct job_row r = any_job(1);
    rows_put_job(b, &r);
    r.id = 2;
    rows_put_job(b, &r);
    flush();
    assert_int_equal(rows_each_job(s, stop, &n, &err), ST_AGAIN);
    assert_string_equal(err.text, "enough");
    assert_int_equal(n, 1);
}

static void spans_read_back(void **state)
{
    (void)state;
    struct span_row rows[100];
    static struct seen seen;
    uint64_t at = 0;
    for (size_t i = 0; i < 100; i++) {
        memset(&rows[i], 0, sizeof rows[i]);
        rows[i].span.begin = at;
        at += 1 + rnd() % (UINT64_C(1) << 50);
        rows[i].span.end = at;
        rows[i].state = (enum span_state)(rnd() & 1);
        rows[i].worker = any();
        rows[i].epoch = any();
        rows[i].next_seq = any();
        rows[i].attempts = (uint16_t)any();
        rows[i].losses = (uint16_t)any();
        rows[i].probe = (uint8_t)(rnd() & 1);
        rows[i].crashes = (uint8_t)any();
        rows[i].crash_host = any();
        rows_put_span(b, 41, &rows[i]);
    }
    struct span_row other = {.span = {5, 9}};
    rows_put_span(b, 40, &other);
    rows_put_span(b, 42, &other);
    flush();
    seen.count = 0;
    ok(rows_each_span(s, 41, see_span, &seen, &err));
    assert_int_equal(seen.count, 100);
    for (size_t i = 0; i < 100; i++)
        assert_memory_equal(&rows[i], &seen.spans[i], sizeof rows[i]);
    rows_del_span(b, 41, rows[0].span.begin);
    flush();
    seen.count = 0;
    ok(rows_each_span(s, 41, see_span, &seen, &err));
    assert_int_equal(seen.count, 99);
}

static void extents_read_back(void **state)
{
    (void)state;
    struct extent rows[60], x;
    for (size_t i = 0; i < 60; i++) { /* three attempts at each place */
        memset(&rows[i], 0, sizeof rows[i]);
        rows[i].span.begin = i / 3 * 1000;
        rows[i].span.end = rows[i].span.begin + 1 + (any() >> 2);
        rows[i].attempt = (uint32_t)(i % 3 == 2 ? 70000 : i % 3);
        rows[i].epoch = any();
        rows[i].seq = any();
        rows[i].part_extents = (uint32_t)any();
        uint64_t *v[] = {&rows[i].rows_at, &rows[i].rows_bytes, &rows[i].aux_bytes, &rows[i].errors_bytes, &rows[i].records,
                         &rows[i].rows,    &rows[i].errors,     &rows[i].lines,     &rows[i].bytes};
        for (size_t k = 0; k < 9; k++)
            *v[k] = any();
        strcpy(rows[i].reason, i % 2 ? "" : "crashed|by signal 11");
    }
    for (size_t i = 60; i-- > 0;)
        rows_put_extent(b, 3, &rows[i]);
    flush();
    struct extent_iter *it = NULL;
    ok(extent_iter_open(s, 3, 5000, &it, &err));
    for (size_t i = 15; i < 60; i++) {
        ok(extent_iter_next(it, &x, &err));
        assert_memory_equal(&x, &rows[i], sizeof x);
    }
    assert_int_equal(extent_iter_next(it, &x, &err), ST_END);
    extent_iter_close(it);
    ok(extent_iter_open(s, 2, 0, &it, &err));
    assert_int_equal(extent_iter_next(it, &x, &err), ST_END);
    extent_iter_close(it);
}

static void meta_counts_on(void **state)
{
    (void)state;
    uint32_t generation = 77;
    uint64_t id = 77;
    ok(rows_get_generation(s, &generation, &err));
    ok(rows_next_job_id(s, &id, &err));
    assert_int_equal(generation, 0);
    assert_int_equal(id, 1);
    rows_put_generation(b, UINT32_MAX);
    rows_put_last_job_id(b, 41);
    flush();
    ok(rows_get_generation(s, &generation, &err));
    ok(rows_next_job_id(s, &id, &err));
    assert_int_equal(generation, UINT32_MAX);
    assert_int_equal(id, 42);
}

static void specs_and_states_are_bytes(void **state)
{
    (void)state;
    struct buf v = {0};
    rows_put_spec(b, 5, "{\"a\":1}", 7);
    rows_put_assembly(b, 5, "\0\xff\n", 3);
    rows_put_assembly(b, 6, "", 0);
    flush();
    ok(rows_get_spec(s, 5, &v, &err));
    assert_int_equal(v.len, 7);
    assert_memory_equal(v.data, "{\"a\":1}", 7);
    ok(rows_get_assembly(s, 5, &v, &err));
    assert_int_equal(v.len, 3);
    assert_memory_equal(v.data, "\0\xff\n", 3);
    ok(rows_get_assembly(s, 6, &v, &err));
    assert_int_equal(v.len, 0);
    assert_int_equal(rows_get_spec(s, 6, &v, &err), ST_NOT_FOUND);
    assert_string_equal(err.text, "no job 6");
    rows_shrink_job(b, 5);
    flush();
    assert_int_equal(rows_get_assembly(s, 5, &v, &err), ST_NOT_FOUND);
    assert_string_equal(err.text, "nothing of job 5 has been assembled");
    ok(rows_get_spec(s, 5, &v, &err));
    buf_release(&v);
}

static void datasets_come_back(void **state)
{
    (void)state;
    struct source sources[3] = {{.path = (char *)"/a/x.jsonl", .size_bytes = 10, .mtime_ns = -5},
                                {.path = (char *)"/a/y.jsonl.gz", .size_bytes = 7, .mtime_ns = 99, .compression = COMPRESSION_GZIP},
                                {.path = (char *)"/a/\xff", .size_bytes = 0}};
    struct dataset d = {.format = FORMAT_JSONL, .count = 3, .sources = sources}, got = {0};
    uint64_t sizes[] = {10, 7, 0};
    uint8_t kinds[] = {0, 2, 0};
    assert_int_equal(layout_init(&d.layout, 3, sizes, kinds), 0);
    d.end = layout_end(&d.layout);
    ok(rows_put_dataset(b, 9, &d, &err));
    flush();
    ok(rows_get_dataset(s, 9, &got, &err));
    assert_int_equal(got.count, 3);
    assert_int_equal(got.end, d.end);
    for (size_t i = 0; i < 3; i++) {
        assert_string_equal(got.sources[i].path, sources[i].path);
        assert_int_equal(got.sources[i].size_bytes, sources[i].size_bytes);
        assert_int_equal(got.sources[i].mtime_ns, sources[i].mtime_ns);
        assert_int_equal(got.sources[i].compression, sources[i].compression);
    }
    assert_int_equal(layout_end(&got.layout), layout_end(&d.layout));
    dataset_release(&got);
    layout_release(&d.layout);
    assert_int_equal(rows_get_dataset(s, 8, &got, &err), ST_NOT_FOUND);
    struct key k = key_source_chunk(9, 0); /* the first chunk is lost */
    store_del(b, STORE_SOURCES, k.bytes, k.len);
    k = key_source_chunk(9, 1);
    store_put(b, STORE_SOURCES, k.bytes, k.len, "\1x", 2);
    flush();
    assert_int_equal(rows_get_dataset(s, 9, &got, &err), ST_CORRUPT);
    assert_string_equal(err.text, "damaged row in 'sources', key 000000000000000900000001: a chunk is missing before it");
}

static enum status see_event(void *arg, uint64_t number, int64_t wall_ms, const char *text, struct err *e)
{
    struct buf *out = arg;
    return buf_printf(out, "%" PRIu64 "@%" PRId64 " %.20s;", number, wall_ms, text) ? err_nomem(e, "a test") : ST_OK;
}

static void events_are_capped(void **state)
{
    (void)state;
    struct buf seen = {0};
    char text[40], long_text[2000];
    for (uint64_t i = 1; i <= 10; i++) {
        snprintf(text, sizeof text, "line %" PRIu64, i);
        rows_add_event(b, 4, i, (int64_t)i * 100, text);
    }
    rows_add_event(b, 5, 1, 0, "of another job");
    flush();
    ok(rows_trim_events(s, b, 4, 3, &err));
    flush();
    ok(rows_each_event(s, 4, see_event, &seen, &err));
    assert_string_equal(buf_cstr(&seen), "8@800 line 8;9@900 line 9;10@1000 line 10;");
    ok(rows_trim_events(s, b, 4, 3, &err));
    assert_int_equal(store_batch_count(b), 0);
    buf_clear(&seen);
    ok(rows_each_event(s, 5, see_event, &seen, &err));
    assert_string_equal(buf_cstr(&seen), "1@0 of another job;");
    memset(long_text, 'x', sizeof long_text - 1); /* cut, not refused */
    long_text[sizeof long_text - 1] = 0;
    rows_add_event(b, 4, 11, 0, long_text);
    flush();
    ok(rows_each_event(s, 4, see_event, &seen, &err));
    buf_release(&seen);
}

static void removal_and_shrinking_touch_one_job(void **state)
{
    (void)state;
    static struct seen seen;
    for (uint64_t job = 1; job <= 3; job++) {
        struct job_row r = any_job(job);
        struct span_row sp = {.span = {0, 5}};
        struct extent x = {.span = {5, 9}};
        rows_put_job(b, &r);
        rows_put_span(b, job, &sp);
        rows_put_extent(b, job, &x);
        rows_add_event(b, job, 1, 0, "e");
    }
    flush();
    rows_del_job(b, 2);
    rows_shrink_job(b, 3);
    flush();
    for (uint64_t job = 1; job <= 3; job++) {
        struct extent_iter *it = NULL;
        struct extent x;
        struct buf events = {0};
        seen.count = 0;
        ok(rows_each_span(s, job, see_span, &seen, &err));
        assert_int_equal(seen.count, job == 1);
        ok(extent_iter_open(s, job, 0, &it, &err));
        assert_int_equal(extent_iter_next(it, &x, &err), job == 1 ? ST_OK : ST_END);
        extent_iter_close(it);
        ok(rows_each_event(s, job, see_event, &events, &err));
        assert_int_equal(events.len > 0, job != 2);
        buf_release(&events);
    }
    seen.count = 0;
    ok(rows_each_job(s, see_job, &seen, &err));
    assert_int_equal(seen.count, 2);
}

/* Damage ------------------------------------------------------------------------------------------------------------------------ */

static void put_raw(enum store_cf cf, struct key k, const void *v, size_t len)
{
    store_put(b, cf, k.bytes, k.len, v, len);
    flush();
}

/* A store of an earlier program: its job rows end before the share and the deadline (version 1), or before the stages (2). */
static void job_rows_of_earlier_versions_are_read(void **state)
{
    (void)state;
    static struct seen seen;
    struct job_row row = any_job(7);
    row.params.guaranteed_ppm = 0;
    row.params.deadline_ms = 0;
    row.params.stages = 0;
    rows_put_job(b, &row);
    flush();
    struct buf value = {0};
    struct key k = key_job(7, KEY_JOB_ROW);
    ok(store_get(s, STORE_JOBS, k.bytes, k.len, &value, &err));
    assert_int_equal(value.data[0], 3);
    for (uint8_t version = 1; version <= 2; version++) {
        size_t more = version == 1 ? 3 : 1;
        value.data[0] = (char)version;
        put_raw(STORE_JOBS, k, value.data, value.len - more + 1); /* a byte too many for that version */
        assert_int_equal(rows_each_job(s, see_job, &seen, &err), ST_CORRUPT);
        put_raw(STORE_JOBS, k, value.data, value.len - more - 1); /* and one too few */
        assert_int_equal(rows_each_job(s, see_job, &seen, &err), ST_CORRUPT);
        put_raw(STORE_JOBS, k, value.data, value.len - more);
        memset(&seen, 0, sizeof seen);
        ok(rows_each_job(s, see_job, &seen, &err));
        check_job(&row, &seen.jobs[0]);
    }
    buf_release(&value);
}

static void damage_names_family_and_key(void **state)
{
    (void)state;
    static struct seen seen;
    struct extent_iter *it = NULL;
    struct extent x;
    put_raw(STORE_SPANS, key_span(1, 2), "\2", 1);
    assert_int_equal(rows_each_span(s, 1, see_span, &seen, &err), ST_CORRUPT);
    assert_string_equal(err.text, "damaged row in 'spans', key 00000000000000010000000000000002: version 2, and this program knows version 1");
    put_raw(STORE_SPANS, key_span(1, 2), "", 0);
    assert_int_equal(rows_each_span(s, 1, see_span, &seen, &err), ST_CORRUPT);
    assert_non_null(strstr(err.text, "empty"));
    put_raw(STORE_SPANS, key_span(1, 2), "\1\5", 2);
    assert_int_equal(rows_each_span(s, 1, see_span, &seen, &err), ST_CORRUPT);
    assert_non_null(strstr(err.text, "it ends too early"));
    put_raw(STORE_SPANS, key_span(1, 2), "\1\5\7\0\0\0\0\0\0\0\0", 11); /* state 7 */
    assert_int_equal(rows_each_span(s, 1, see_span, &seen, &err), ST_CORRUPT);
    assert_non_null(strstr(err.text, "a value out of range"));
    put_raw(STORE_SPANS, key_span(1, 2), "\1\5\0\0\0\0\0\0\0\0\0\0", 12);
    assert_int_equal(rows_each_span(s, 1, see_span, &seen, &err), ST_CORRUPT);
    assert_non_null(strstr(err.text, "bytes behind its end"));
    put_raw(STORE_SPANS, key_span(1, 2), "\1\5\0\0\0\0\0\0\0\0\0", 11);
    seen.count = 0;
    ok(rows_each_span(s, 1, see_span, &seen, &err));
    assert_int_equal(seen.spans[0].span.end, 7);
    struct key k = key_extent(1, 2, 3);
    k.len--;
    put_raw(STORE_EXTENTS, k, "\1", 1);
    ok(extent_iter_open(s, 1, 0, &it, &err));
    assert_int_equal(extent_iter_next(it, &x, &err), ST_CORRUPT);
    assert_non_null(strstr(err.text, "damaged row in 'extents', key 0000000000000001"));
    extent_iter_close(it);
    uint32_t generation;
    store_put(b, STORE_META, "generation", 10, "\1\xff\xff\xff\xff\x7f", 6);
    flush();
    assert_int_equal(rows_get_generation(s, &generation, &err), ST_CORRUPT);
    assert_string_equal(err.text, "damaged row in 'meta', key 67656e65726174696f6e: a value out of range");
}

static enum status quiet_job(void *arg, const struct job_row *row, struct err *e)
{
    (void)arg;
    (void)e;
    return strnlen(row->reason, sizeof row->reason) < sizeof row->reason ? ST_OK : ST_USER;
}

static enum status quiet_span(void *arg, const struct span_row *row, struct err *e)
{
    (void)arg;
    (void)e;
    return row->span.end >= row->span.begin ? ST_OK : ST_USER;
}

static enum status quiet_event(void *arg, uint64_t number, int64_t wall_ms, const char *text, struct err *e)
{
    (void)arg;
    (void)number;
    (void)wall_ms;
    (void)e;
    return strlen(text) < 512 ? ST_OK : ST_USER;
}

/* Random bytes, and good rows with a few bytes changed, into each decoder: a clean answer, never a crash or a row that breaks its
   own rules. */
static void random_bytes_do_no_harm(void **state)
{
    (void)state;
    size_t good = 0, bad = 0;
    for (int round = 0; round < 20000; round++) {
        uint8_t v[200];
        size_t len = rnd() % 120;
        for (size_t i = 0; i < sizeof v; i++)
            v[i] = (uint8_t)(rnd() % 3 ? rnd() % 4 : rnd());
        v[0] = rnd() % 8 ? 1 : v[0];
        struct key keys[] = {key_job(1, KEY_JOB_ROW), key_span(1, any()), key_extent(1, any(), 0), key_event(1, any()), key_source_chunk(1, 0)};
        static const enum store_cf cf[] = {STORE_JOBS, STORE_SPANS, STORE_EXTENTS, STORE_EVENTS, STORE_SOURCES};
        size_t which = rnd() % 5;
        if (which < 4 && rnd() % 2) { /* a good row, a few bytes of it changed */
            struct buf raw = {0};
            struct job_row job = any_job(1);
            struct span_row sp = {.span = {7, 7 + (any() >> 1)}, .worker = any(), .epoch = any()};
            struct extent ex = {.span = {7, 7 + (any() >> 1)}, .rows = any(), .reason = "crashed|x"};
            keys[1] = key_span(1, 7);
            keys[2] = key_extent(1, 7, 0);
            keys[3] = key_event(1, 3);
            rows_put_job(b, &job);
            rows_put_span(b, 1, &sp);
            rows_put_extent(b, 1, &ex);
            rows_add_event(b, 1, 3, 4, "started");
            flush();
            ok(store_get(s, cf[which], keys[which].bytes, keys[which].len, &raw, &err));
            len = raw.len < sizeof v ? raw.len : sizeof v;
            memcpy(v, raw.data, len);
            for (uint64_t n = rnd() % 3; n > 0; n--)
                v[rnd() % len] = (uint8_t)rnd();
            buf_release(&raw);
            rows_del_job(b, 1);
        }
        store_put(b, cf[which], keys[which].bytes, keys[which].len, v, len);
        flush();
        struct extent_iter *it = NULL;
        struct extent x;
        struct dataset d = {0};
        enum status st = ST_OK;
        err.text[0] = 0;
        if (which == 0)
            st = rows_each_job(s, quiet_job, NULL, &err);
        else if (which == 1)
            st = rows_each_span(s, 1, quiet_span, NULL, &err);
        else if (which == 2) {
            ok(extent_iter_open(s, 1, 0, &it, &err));
            st = extent_iter_next(it, &x, &err);
            extent_iter_close(it);
            if (st == ST_OK)
                assert_true(x.span.end >= x.span.begin && strnlen(x.reason, sizeof x.reason) < sizeof x.reason);
        } else if (which == 3)
            st = rows_each_event(s, 1, quiet_event, NULL, &err);
        else {
            st = rows_get_dataset(s, 1, &d, &err);
            if (st == ST_OK)
                dataset_release(&d);
        }
        assert_true(st == ST_OK || st == ST_CORRUPT);
        if (st == ST_CORRUPT && !strstr(err.text, "damaged row in '"))
            fail_msg("kind %zu: '%s' names no row", (size_t)which, err.text);
        good += st == ST_OK;
        bad += st == ST_CORRUPT;
        rows_del_job(b, 1);
        flush();

        struct asmstate as;
        st = asmstate_get(v, len, &as, &err);
        assert_true(st == ST_OK || st == ST_CORRUPT || st == ST_USER);
        const char *p = (const char *)v;
        struct errline l;
        v[len ? len - 1 : 0] = '\n';
        while (p < (const char *)v + len && errline_read(&p, (const char *)v + len, &l) == 0)
            assert_true(p <= (const char *)v + len);
    }
    assert_true(good > 200 && bad > 5000);
}

/* A good error line with one byte changed or the end cut off either reads or does not: no byte outside of it is looked at. */
static void damaged_error_lines_do_no_harm(void **state)
{
    (void)state;
    struct buf line = {0};
    struct errline x = {.record = {10, 20}, .source = 3, .line = 4, .row = 5, .code = "c", .code_len = 1, .message = "say \"\\\" \xff", .message_len = 9,
                        .id = "[1,\n{}]", .id_len = 7}, y;
    assert_int_equal(errline_write(&line, &x), 0);
    const char *p = line.data;
    assert_int_equal(errline_read(&p, line.data + line.len, &y), 0);
    assert_ptr_equal(p, line.data + line.len);
    assert_int_equal(y.id_len, 7);
    assert_memory_equal(y.id, "[1, {}]", 7); /* one line stays one line */
    assert_memory_equal(y.message, "\"say \\\"\\\\\\\" \xef\xbf\xbd\"", y.message_len);
    size_t refused = 0;
    for (size_t i = 0; i < line.len; i++)
        for (int c = 0; c < 256; c++) {
            char *copy = malloc(line.len); /* exactly as long: a sanitizer sees a read beyond */
            memcpy(copy, line.data, line.len);
            copy[i] = (char)c;
            p = copy;
            refused += errline_read(&p, copy + line.len, &y) != 0;
            free(copy);
        }
    for (size_t len = 0; len < line.len; len++) {
        char *copy = malloc(len + 1);
        memcpy(copy, line.data, len);
        p = copy;
        assert_int_not_equal(errline_read(&p, copy + len, &y), 0);
        free(copy);
    }
    assert_true(refused > line.len * 100);
    buf_release(&line);
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        struct job_row r = any_job(1);
        struct extent x = {.span = {1, 2}};
        struct buf v = {0};
        struct extent_iter *it = NULL;
        static struct seen seen;
        mem_fail_nth(n);
        rows_put_job(b, &r);
        rows_put_spec(b, 1, "{}", 2);
        rows_put_extent(b, 1, &x);
        rows_add_event(b, 1, 1, 0, "x");
        enum status st = store_write(s, b, 1, &err);
        seen.count = 0;
        if (st == ST_OK)
            st = rows_each_job(s, see_job, &seen, &err);
        if (st == ST_OK)
            st = rows_get_spec(s, 1, &v, &err);
        if (st == ST_OK)
            st = extent_iter_open(s, 1, 0, &it, &err);
        if (st == ST_OK)
            st = extent_iter_next(it, &x, &err);
        extent_iter_close(it);
        uint64_t made = mem_fail_nth(0);
        buf_release(&v);
        store_batch_clear(b);
        if (made < n) {
            ok(st);
            return;
        }
        assert_int_equal(st, ST_NOMEM);
    }
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(jobs_read_back),
        T(a_visitor_can_stop),
        T(spans_read_back),
        T(extents_read_back),
        T(meta_counts_on),
        T(specs_and_states_are_bytes),
        T(datasets_come_back),
        T(events_are_capped),
        T(removal_and_shrinking_touch_one_job),
        T(job_rows_of_earlier_versions_are_read),
        T(damage_names_family_and_key),
        T(random_bytes_do_no_harm),
        T(damaged_error_lines_do_no_harm),
        T(any_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
