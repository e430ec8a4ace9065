/* Group commit: what a step wants to say leaves after the sync that covers it, in order, and not at all when that fails. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/path.h"
#include "daemon/apply.h"
#include "daemon/map.h"
#include "daemon/owner.h"

static struct config config;
static struct daemon d;
static char dir[64];

struct word {
    int number, safe, said;
    int rows; /* of numbers up to this one that were in the store when it was said */
};
static struct word words[64];
static int order[64], count;

static int setup(void **state)
{
    (void)state;
    struct err e;
    struct owner_record theirs;
    log_init("apply_test", LOG_ERROR);
    strcpy(dir, "/tmp/ebbd-apply-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    memset(&d, 0, sizeof d);
    memset(words, 0, sizeof words);
    count = 0;
    config.state_dir = dir;
    d.config = &config;
    uv_loop_init(&d.uv);
    uv_timer_init(&d.uv, &d.tick);
    uv_timer_init(&d.uv, &d.retry);
    d.retry.data = &d;
    if (owner_take(dir, "ipc:///x", 100, &theirs, &d.owner, &e) != ST_OK || apply_open(&d, &e) != ST_OK || sched_new(NULL, &d.core, &e) != ST_OK)
        return -1;
    return 0;
}

static void close_handle(uv_handle_t *h, void *arg)
{
    (void)arg;
    if (!uv_is_closing(h))
        uv_close(h, NULL);
}

static int teardown(void **state)
{
    (void)state;
    struct err e;
    fault_set(NULL);
    apply_close(&d);
    sched_free(d.core);
    uv_walk(&d.uv, close_handle, NULL);
    uv_run(&d.uv, UV_RUN_DEFAULT);
    uv_loop_close(&d.uv);
    owner_release(d.owner);
    return path_remove_tree(dir, &e) == ST_OK ? 0 : -1;
}

static int in_store(int number)
{
    struct buf value = {0};
    struct err e;
    char key[24];
    snprintf(key, sizeof key, "test-%d", number);
    int there = store_get(apply_store(d.apply), STORE_META, key, strlen(key), &value, &e) == ST_OK;
    buf_release(&value);
    return there;
}

static void say(void *arg, int safe)
{
    struct word *w = arg;
    w->said++;
    w->safe = safe;
    for (int i = 0; i <= w->number && safe; i++)
        w->rows += in_store(i);
    order[count++] = w->number;
}

static void step(int number, int row)
{
    char key[24];
    snprintf(key, sizeof key, "test-%d", number);
    if (row)
        store_put(apply_batch(d.apply), STORE_META, key, strlen(key), "x", 1);
    words[number].number = number;
    apply_call(d.apply, say, &words[number]);
}

static void run_until_idle(void)
{
    for (uint64_t until = clock_ms() + 60000; !apply_idle(d.apply) && clock_ms() < until;) {
        apply_flush(d.apply);
        uv_run(&d.uv, UV_RUN_ONCE);
    }
    assert_true(apply_idle(d.apply));
}

static void nothing_leaves_before_its_sync(void **state)
{
    (void)state;
    char gate[96], fault[128];
    snprintf(gate, sizeof gate, "%s/gate", dir);
    snprintf(fault, sizeof fault, "daemon.persist.before:1:wait=%s", gate);
    fault_set(fault);
    step(0, 1);
    apply_flush(d.apply); /* the thread has it, and waits */
    step(1, 1);
    apply_flush(d.apply);
    step(2, 0); /* without rows, and yet it was decided on top of what is not safe */
    apply_flush(d.apply);
    uv_run(&d.uv, UV_RUN_NOWAIT);
    assert_int_equal(count, 0);
    struct err e;
    assert_int_equal(path_write(gate, "", 0, &e), ST_OK);
    run_until_idle();
    assert_int_equal(count, 3);
    struct apply_figures f;
    apply_figures(d.apply, &f);
    assert_int_equal(f.groups, 2); /* what waited was one sync */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(order[i], i);
        assert_int_equal(words[i].safe, 1);
        assert_int_equal(words[i].rows, i < 2 ? i + 1 : 2);
    }
}

static void many_steps_few_syncs(void **state)
{
    (void)state;
    for (int i = 0; i < 60; i++) {
        step(i, i % 3 != 2);
        if (i % 5 == 0) {
            apply_flush(d.apply);
            uv_run(&d.uv, UV_RUN_NOWAIT);
        }
    }
    run_until_idle();
    assert_int_equal(count, 60);
    for (int i = 0; i < 60; i++) {
        assert_int_equal(order[i], i);
        assert_int_equal(words[i].rows, i + 1 - (i + 1) / 3);
    }
    /* with nothing to write and nobody under way it leaves at once, without a sync */
    struct apply_figures before, after;
    apply_figures(d.apply, &before);
    step(60, 0);
    apply_flush(d.apply);
    assert_int_equal(words[60].said, 1);
    apply_figures(d.apply, &after);
    assert_int_equal(before.groups, after.groups);
}

static void a_failed_write_takes_all_behind_it(void **state)
{
    (void)state;
    step(0, 1);
    run_until_idle();
    fault_set("daemon.persist.before:1:EIO");
    assert_non_null(apply_read_begin(d.apply)); /* a reader keeps it from being opened anew: so far, no further */
    step(1, 1);
    apply_flush(d.apply);
    step(2, 1);
    step(3, 0);
    for (uint64_t until = clock_ms() + 60000; d.core && clock_ms() < until;)
        uv_run(&d.uv, UV_RUN_ONCE);
    assert_null(d.core); /* it was decided on rows that may not be there */
    uv_timer_stop(&d.retry);
    apply_read_end(d.apply);
    assert_int_equal(count, 4);
    for (int i = 1; i < 4; i++) {
        assert_int_equal(order[i], i);
        assert_int_equal(words[i].safe, 0);
        assert_int_equal(words[i].said, 1);
        assert_false(in_store(i));
    }
    assert_true(in_store(0));
    struct err e;
    assert_int_equal(apply_reopen(d.apply, &e), ST_OK);
    assert_true(in_store(0));
}

static void readers_hold_the_store(void **state)
{
    (void)state;
    struct err e;
    assert_non_null(apply_read_begin(d.apply));
    assert_int_equal(apply_reopen(d.apply, &e), ST_AGAIN);
    apply_read_end(d.apply);
    assert_int_equal(apply_reopen(d.apply, &e), ST_OK);
}

static void maps(void **state)
{
    (void)state;
    struct map m = {0};
    static char there[4000]; /* the model: which keys are in */
    uint64_t x = 1;
    size_t n = 0;
    for (int i = 0; i < 100000; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        uint64_t k = (x >> 33) % 4000, key = k * 0x100000; /* keys that collide */
        if (x >> 62) {
            if (!there[k])
                n++;
            there[k] = 1;
            assert_int_equal(map_add(&m, key, &there[k]), 0);
        } else {
            assert_ptr_equal(map_remove(&m, key), there[k] ? &there[k] : NULL);
            n -= there[k] != 0;
            there[k] = 0;
        }
        assert_int_equal(m.count, n);
    }
    for (uint64_t k = 0; k < 4000; k++)
        assert_ptr_equal(map_find(&m, k * 0x100000), there[k] ? &there[k] : NULL);
    size_t at = 0, seen = 0;
    while (map_next(&m, &at))
        seen++;
    assert_int_equal(seen, n);
    map_release(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nothing_leaves_before_its_sync, setup, teardown),
        cmocka_unit_test_setup_teardown(many_steps_few_syncs, setup, teardown),
        cmocka_unit_test_setup_teardown(a_failed_write_takes_all_behind_it, setup, teardown),
        cmocka_unit_test_setup_teardown(readers_hold_the_store, setup, teardown),
        cmocka_unit_test(maps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
