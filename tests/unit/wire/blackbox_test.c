/* The black box: what a dead worker's lanes held can be read, and nothing else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "wire/blackbox.h"

static char path[64];

static int setup(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/ebb-box-%d", (int)getpid());
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    return 0;
}

static struct blackbox_record at(uint64_t begin)
{
    return (struct blackbox_record){.job = 1, .epoch = 2, .record = {begin, begin + 10}};
}

static void survives_a_killed_process(void **state)
{
    (void)state;
    struct err e;
    pid_t pid = fork();
    if (pid == 0) {
        struct blackbox *b;
        if (blackbox_create(path, 3, &b, &e) != ST_OK)
            _exit(1);
        struct blackbox_record two[2] = {at(100), at(200)}, other = at(300);
        blackbox_enter(b, 0, two, 2);
        blackbox_enter(b, 1, &other, 1);
        blackbox_leave(b, 1);
        blackbox_enter(b, 2, &other, 1);
        blackbox_cause(b, BLACKBOX_OUT_OF_MEMORY);
        abort();
    }
    int wstatus;
    waitpid(pid, &wstatus, 0);
    assert_true(WIFSIGNALED(wstatus));
    struct blackbox_record *found;
    size_t count;
    int incomplete;
    enum blackbox_cause cause;
    assert_int_equal(blackbox_read(path, &found, &count, &incomplete, &cause, &e), ST_OK);
    assert_int_equal(count, 3);
    assert_int_equal(found[0].record.begin, 100);
    assert_int_equal(found[1].record.begin, 200);
    assert_int_equal(found[2].record.begin, 300);
    assert_int_equal(cause, BLACKBOX_OUT_OF_MEMORY);
    assert_false(incomplete);
    mem_free(found);
}

static void says_that_it_is_incomplete(void **state)
{
    (void)state;
    struct err e;
    struct blackbox *b;
    struct blackbox_record many[BLACKBOX_RECORDS + 5];
    for (size_t i = 0; i < sizeof many / sizeof *many; i++)
        many[i] = at(i * 10);
    assert_int_equal(blackbox_create(path, 1, &b, &e), ST_OK);
    blackbox_enter(b, 0, many, BLACKBOX_RECORDS + 5);
    blackbox_close(b, NULL);
    struct blackbox_record *found;
    size_t count;
    int incomplete;
    enum blackbox_cause cause;
    assert_int_equal(blackbox_read(path, &found, &count, &incomplete, &cause, &e), ST_OK);
    assert_int_equal(count, BLACKBOX_RECORDS);
    assert_true(incomplete);
    mem_free(found);
}

static void missing_short_or_foreign_files_hold_nothing(void **state)
{
    (void)state;
    struct err e;
    struct blackbox_record *found;
    size_t count;
    int incomplete;
    enum blackbox_cause cause;
    assert_int_equal(blackbox_read("/nonexistent/box", &found, &count, &incomplete, &cause, &e), ST_OK);
    assert_int_equal(count, 0);
    static const size_t sizes[] = {0, 1, 15, 16, 100, 20000};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        FILE *f = fopen(path, "w");
        for (size_t i = 0; i < sizes[s]; i++)
            fputc((int)(i * 37 + s), f);
        fclose(f);
        assert_int_equal(blackbox_read(path, &found, &count, &incomplete, &cause, &e), ST_OK);
        assert_int_equal(count, 0);
    }
}

static void a_damaged_box_is_no_harm(void **state)
{
    (void)state;
    struct err e;
    struct blackbox *b;
    struct blackbox_record one = at(7);
    assert_int_equal(blackbox_create(path, 2, &b, &e), ST_OK);
    blackbox_enter(b, 0, &one, 1);
    blackbox_close(b, NULL);
    FILE *f = fopen(path, "r+");
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    for (long i = 8; i < 64 && i < size; i++) { /* each byte behind the magic, spoilt */
        fseek(f, i, SEEK_SET);
        int was = fgetc(f);
        fseek(f, i, SEEK_SET);
        fputc(255, f);
        fflush(f);
        struct blackbox_record *found;
        size_t count;
        int incomplete;
        enum blackbox_cause cause;
        assert_int_equal(blackbox_read(path, &found, &count, &incomplete, &cause, &e), ST_OK);
        assert_true(count <= 2 * BLACKBOX_RECORDS);
        mem_free(found);
        fseek(f, i, SEEK_SET);
        fputc(was, f);
    }
    fclose(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(survives_a_killed_process, setup, teardown),
        cmocka_unit_test_setup_teardown(says_that_it_is_incomplete, setup, teardown),
        cmocka_unit_test_setup_teardown(missing_short_or_foreign_files_hold_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(a_damaged_box_is_no_harm, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
