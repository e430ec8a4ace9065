/* What is not the record's fault: a command that cannot work at all, whoever ends its children, memory. */
#include "tests/unit/command/rig.h"

static void cannot_be_run(void **state)
{
    (void)state;
    static const struct {
        const char *shell, *dir, *words;
    } cases[] = {
        {"no-such-program --fast", NULL, "the command cannot be run: it ended with exit status 127: sh: 1: no-such-program: not found"},
        {"cat", "/no/such/folder", "cannot be run: it ended with exit status 126: ebb: cannot run the command in '/no/such/folder': No such file or directory"},
    };
    for (size_t k = 0; k < 2; k++) {
        struct run x;
        struct command_stats s;
        begin(&x, (struct command_opts){.shell = cases[k].shell, .dir = cases[k].dir, .children = 4});
        submit(&x, 100, "%d", 0);
        wait_back(&x, x.count);
        assert_int_equal(x.faults, 1);
        if (!strstr(x.fault, cases[k].words))
            fail_msg("'%s'", x.fault);
        for (size_t i = 0; i < x.count; i++)
            assert_int_equal(x.given[i].end, COMMAND_NOT_DONE);
        command_stats(x.c, &s);
        assert_int_equal(s.starts, 1);
        finish(&x);
    }
}

static void dies_at_once(void **state)
{
    (void)state;
    static const struct {
        const char *shell, *words;
    } cases[] = {
        {"python3 -c 'import no_such_module'", "was started 3 times in a row without one answer; the last time it ended with exit status 1; it said: "
                                               "Traceback (most recent call last): | File \"<string>\", line 1, in <module> | ModuleNotFoundError: No module named 'no_such_module'"},
        {"true", "it ended (exit status 0) before it answered"},
        {"echo loading the model; cat", "it answered with a line that is not JSON: 'loading the model'"},
        {"exec >&-; cat >/dev/null", "it closed its standard output before it answered"},
        {"kill -SEGV $$", "it died of signal 11"},
        {"yes '{}'", "it answered"}, /* with more lines than it was given records, or before it had read one */
        {"echo '{}'; while [ ! -e gate ]; do sleep 0.02; done; cat", "it answered before it had read the record"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct run x;
        struct command_stats s;
        begin(&x, (struct command_opts){.shell = cases[k].shell, .children = 4});
        submit(&x, 100, "%d", 0);
        wait_back(&x, x.count);
        assert_int_equal(x.faults, 1);
        if (!strstr(x.fault, cases[k].words))
            fail_msg("'%s'", x.fault);
        for (size_t i = 0; i < x.count; i++)
            assert_int_equal(x.given[i].end, COMMAND_NOT_DONE);
        command_stats(x.c, &s);
        assert_int_equal(s.starts, 3);
        /* and from now on */
        struct given late = {.r = {.line = "1", .len = 1, .owner = &late}};
        command_submit(x.c, &late.r);
        wait_back(&x, 101);
        assert_int_equal(late.end, COMMAND_NOT_DONE);
        x.back--;
        finish(&x);
    }
}

/* The first records are bad, and the command is not. One record alone is never the command's fault. */
static void bad_ones_first(void **state)
{
    (void)state;
    struct run x;
    begin(&x, (struct command_opts){.shell = "while read -r l; do [ $l -lt 2 ] && exit 5; echo $l; done", .children = 2});
    submit(&x, 50, "%d", 0);
    wait_back(&x, x.count);
    for (size_t i = 0; i < x.count; i++)
        if (i < 2)
            is_error(&x.given[i], COMMAND_CRASHED, "exit status 5, 3 times alone");
        else
            is_answer(&x.given[i], x.given[i].line);
    assert_int_equal(x.faults, 0);
    finish(&x);
    begin(&x, (struct command_opts){.shell = "read -r l; exit 5"});
    submit(&x, 1, "%d", 0);
    wait_back(&x, 1);
    is_error(&x.given[0], COMMAND_CRASHED, "exit status 5, 3 times alone");
    assert_int_equal(x.faults, 0);
    finish(&x);
}

/* Whole stretches of bad records, with nothing good between them that could show that the command works. */
static void bad_ones_together(void **state)
{
    (void)state;
    struct run x;
    begin(&x, (struct command_opts){.shell = "while read -r l; do [ $(( l / 5 % 2 )) = 1 ] && exit 5; echo $l; done", .children = 1});
    submit(&x, 30, "%d", 0);
    wait_back(&x, x.count);
    for (size_t i = 0; i < x.count; i++)
        if (i / 5 % 2)
            is_error(&x.given[i], COMMAND_CRASHED, "exit status 5, 3 times alone");
        else
            is_answer(&x.given[i], x.given[i].line);
    assert_int_equal(x.faults, 0);
    finish(&x);
}

/* Somebody ends a child: its record is none the worse for it. */
static void killed_from_outside(void **state)
{
    (void)state;
    struct run x;
    struct command_stats s;
    begin(&x, (struct command_opts){.shell = "while read -r l; do echo $$ >pid.new; mv pid.new pid.$l; while [ ! -e gate ]; do sleep 0.02; done; echo $l; done"});
    submit(&x, 1, "%d", 0);
    for (int i = 0; i < 3; i++) {
        wait_file("pid.0");
        pid_t pid = atoi(content("pid.0"));
        unlink(path("pid.0"));
        assert_int_equal(kill(pid, i % 2 ? SIGTERM : SIGKILL), 0);
    }
    touch("gate");
    wait_back(&x, 1);
    is_answer(&x.given[0], "0");
    command_stats(x.c, &s);
    assert_int_equal(s.starts, 4);
    finish(&x);
}

/* Memory is out once, wherever that may be: no record is the worse for it. */
static void out_of_memory(void **state)
{
    (void)state;
    uint64_t made = UINT64_MAX;
    for (uint64_t nth = 1; nth <= made; nth++) {
        struct command_opts o = {.shell = "cat", .dir = dir, .answered = answered, .faulted = faulted};
        struct command *c = NULL;
        struct err e;
        mem_fail_nth(nth);
        enum status st = command_new(&o, &c, &e);
        made = mem_fail_nth(0);
        assert_int_equal(st, nth <= made ? ST_NOMEM : ST_OK);
        if (st == ST_OK)
            command_free(c);
    }
    made = UINT64_MAX;
    for (uint64_t nth = 1; nth <= made; nth++) {
        struct run x;
        begin(&x, (struct command_opts){.shell = "i=0; while read -r l; do i=$((i + 1)); [ $((i % 3)) = 0 ] && echo '[1]' || echo \"$l\"; done", .children = 1});
        mem_fail_nth(nth);
        submit(&x, 12, "{\"id\":%d}", 1);
        wait_back(&x, x.count);
        made = mem_fail_nth(0);
        for (size_t i = 0; i < x.count; i++)
            assert_int_equal(x.given[i].end, COMMAND_ANSWER);
        assert_int_equal(x.faults, 0);
        finish(&x);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(cannot_be_run, before_each),
        cmocka_unit_test_setup(dies_at_once, before_each),
        cmocka_unit_test_setup(bad_ones_first, before_each),
        cmocka_unit_test_setup(bad_ones_together, before_each),
        cmocka_unit_test_setup(killed_from_outside, before_each),
        cmocka_unit_test_setup(out_of_memory, before_each),
    };
    RUN(argc, argv, tests);
}
