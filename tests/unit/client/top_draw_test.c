/* What `ebb top` draws, without a terminal: whatever the window's size and whatever names hold, a frame is whole lines that fit. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "client/top_draw.h"

static json_t *hello(void)
{
    return json_pack("{s:s, s:s}", "program", "ebbd 1", "host", "here");
}

static json_t *jobs_of(size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "job-%zu", i);
        json_array_append_new(list, json_pack("{s:I, s:s, s:s, s:f, s:f, s:I, s:I, s:I, s:s, s:s}", "job", (json_int_t)i + 1, "name", name, "state",
                                              i % 3 ? "running" : "held", "fraction", 0.5, "records_per_s", 100.0, "workers", (json_int_t)2, "workers_wanted",
                                              (json_int_t)4, "errors", (json_int_t)i, "reason", i % 3 ? "" : "the disk is full", "waits_for", ""));
    }
    return json_pack("{s:o}", "jobs", list);
}

static json_t *workers_of(size_t count, size_t hosts)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) {
        char name[64], host[32], number[24];
        snprintf(host, sizeof host, "node%zu", i % hosts);
        snprintf(name, sizeof name, "%s/%zu", host, i / hosts + 1);
        snprintf(number, sizeof number, "%016zx", i);
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s, s:I, s:f, s:f, s:I, s:I, s:s}", "worker", number, "name", name, "host", host, "state",
                                              i % 2 ? "running" : "idle", "job", (json_int_t)(i % 5), "records_per_s", (double)(i * 7 % 1000), "since_s",
                                              (double)i, "lanes", (json_int_t)4, "rss_bytes", (json_int_t)1 << 30, "lease", "part-017 62-128 MB"));
    }
    return json_pack("{s:o}", "workers", list);
}

static void take(struct top_pool *p, json_t *jobs, json_t *workers, json_t *offers)
{
    struct err e;
    assert_int_equal(top_pool_take(p, hello(), jobs, workers, offers, &e), ST_OK);
}

/* Columns of a line without its escape sequences, of which only known ones may be there; none holds a control character. */
static int columns_of(const char *at, const char *end)
{
    int n = 0;
    while (at < end) {
        if (*at == '\033') {
            static const char *const known[] = {"\033[1m", "\033[7m", "\033[31m", "\033[2m", "\033[0m", "\033[K", "\033[H"};
            size_t i = 0;
            while (i < sizeof known / sizeof *known && strncmp(at, known[i], strlen(known[i])) != 0)
                i++;
            assert_true(i < sizeof known / sizeof *known);
            at += strlen(known[i]);
            continue;
        }
        utf8proc_int32_t point;
        utf8proc_ssize_t len = utf8proc_iterate((const utf8proc_uint8_t *)at, end - at, &point);
        assert_true(len > 0);
        assert_true(point >= 0x20 && !(point >= 0x7F && point < 0xA0) && point != 0x202E);
        n += utf8proc_charwidth(point);
        at += len;
    }
    return n;
}

static void check_frame(const struct top_pool *p, struct top_screen *s)
{
    struct buf out = {0};
    assert_int_equal(top_draw(p, s, &out), 0);
    assert_non_null(buf_cstr(&out));
    int lines = 0;
    for (const char *at = out.data; at; lines++) {
        const char *end = strstr(at, "\r\n");
        assert_true(columns_of(at, end ? end : at + strlen(at)) <= s->columns);
        at = end ? end + 2 : NULL;
    }
    assert_int_equal(lines, s->rows);
    buf_release(&out);
}

static void every_size(void **state)
{
    (void)state;
    static const size_t counts[][2] = {{0, 0}, {1, 1}, {3, 40}, {60, 2}, {40, 200}};
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        struct top_pool p;
        take(&p, jobs_of(counts[k][0]), workers_of(counts[k][1], 7), NULL);
        for (int rows = 1; rows < 50; rows += rows < 12 ? 1 : 7)
            for (int columns = 1; columns < 220; columns = columns * 2 + 1)
                for (int nodes = 0; nodes < 2; nodes++) {
                    struct top_screen s = {.rows = rows, .columns = columns, .colours = rows % 2, .nodes = nodes, .first = counts[k][1] / 2,
                                           .trouble = columns % 4 ? "" : "the daemon is slow", .age_s = 3};
                    check_frame(&p, &s);
                    s.first = SIZE_MAX / 2; /* the end */
                    check_frame(&p, &s);
                    assert_true(s.first <= counts[k][1]);
                }
        top_pool_release(&p);
    }
}

static void five_thousand(void **state)
{
    (void)state;
    struct top_pool p;
    struct buf out = {0};
    struct top_screen s = {.rows = 40, .columns = 100, .trouble = ""};
    take(&p, jobs_of(2), workers_of(5000, 200), NULL);
    assert_int_equal(p.node_count, 200);
    top_pool_sort(&p, TOP_BY_NAME);
    assert_int_equal(top_draw(&p, &s, &out), 0);
    assert_non_null(buf_cstr(&out));
    assert_non_null(strstr(out.data, "node0/1 "));
    assert_non_null(strstr(out.data, "of 5000 workers by name"));
    assert_null(strstr(out.data, "node199/25"));
    s.first = SIZE_MAX / 2;
    buf_clear(&out);
    assert_int_equal(top_draw(&p, &s, &out), 0);
    assert_non_null(buf_cstr(&out));
    assert_non_null(strstr(out.data, "node199/25"));
    assert_int_equal(s.first + s.page, 5000);
    top_pool_sort(&p, TOP_BY_RATE);
    for (size_t i = 1; i < p.worker_count; i++)
        assert_true(json_number_value(json_object_get(p.worker_rows[i - 1], "records_per_s")) >= json_number_value(json_object_get(p.worker_rows[i], "records_per_s")));
    for (size_t i = 1; i < p.node_count; i++)
        assert_true(p.nodes[i - 1].records_per_s >= p.nodes[i].records_per_s);
    buf_release(&out);
    top_pool_release(&p);
}

static void names_cannot_steer(void **state)
{
    (void)state;
    struct top_pool p;
    json_t *workers = workers_of(3, 1), *list = json_object_get(workers, "workers"), *jobs = jobs_of(1);
    json_object_set_new(json_array_get(json_object_get(jobs, "jobs"), 0), "name", json_string("\033[2J\033]0;owned\a\xc2\x9b" "31m \xe2\x80\xae"));
    json_object_set_new(json_array_get(list, 0), "name", json_string("\r\n\t\033[?1049l\x7f \xe6\xb5\xb7\xe6\xb5\xb7"));
    json_object_set_new(json_array_get(list, 1), "lease", json_string("\xe2\x80\xa8\xe2\x80\x8f."));
    take(&p, jobs, workers, json_pack("{s:[{s:s, s:s, s:s}, {s:s, s:s, s:s}]}", "nodes", "host", "node0", "state", "frozen", "reason", "\033c", "host", "other", "state", "away", "reason", "owner"));
    for (int nodes = 0; nodes < 2; nodes++) {
        struct top_screen s = {.rows = 20, .columns = 90, .colours = 1, .nodes = nodes, .trouble = "\033[5m"};
        check_frame(&p, &s);
    }
    assert_int_equal(p.node_count, 2); /* one of them is an agent's alone */
    json_t *all = top_json(&p);
    assert_int_equal(json_array_size(json_object_get(all, "nodes")), 2);
    assert_string_equal(json_string_value(json_object_get(json_array_get(json_object_get(all, "nodes"), 1), "agent")), "away");
    json_decref(all);
    top_pool_release(&p);
}

static void memory_runs_out(void **state)
{
    (void)state;
    struct top_pool p = {0};
    struct top_screen s = {.rows = 24, .columns = 80, .trouble = ""};
    struct err e;
    for (uint64_t nth = 1;; nth++) {
        struct buf out = {0};
        json_t *jobs = jobs_of(3), *workers = workers_of(20, 4);
        mem_fail_nth(nth);
        enum status st = top_pool_take(&p, hello(), jobs, workers, NULL, &e);
        int failed = st == ST_OK ? top_draw(&p, &s, &out) : 0;
        mem_fail_nth(0);
        assert_true(st == ST_OK || st == ST_NOMEM);
        assert_true(st == ST_OK || !p.jobs);
        buf_release(&out);
        top_pool_release(&p);
        if (st == ST_OK && !failed)
            break;
        assert_true(nth < 10000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_size), cmocka_unit_test(five_thousand), cmocka_unit_test(names_cannot_steer),
                                       cmocka_unit_test(memory_runs_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
