/* Commands that behave, how they end, and all kinds in one run. */
#include "tests/unit/command/rig.h"

static void thousands_of_records(void **state)
{
    (void)state;
    struct run x;
    struct command_stats s;
    script("double.py", PYTHON_LOOP "    print(json.dumps({'id': r['id'], 'twice': r['n'] * 2}))\n");
    begin(&x, (struct command_opts){.shell = "python3 double.py", .children = 3});
    submit(&x, 20000, "{\"id\":%d,\"n\":%d}", 1);
    wait_back(&x, x.count);
    for (size_t i = 0; i < x.count; i++) {
        char want[64];
        snprintf(want, sizeof want, "{\"id\": %zu, \"twice\": %zu}", i, i * 2);
        is_answer(&x.given[i], want);
    }
    command_stats(x.c, &s);
    assert_int_equal(s.answers, x.count);
    assert_int_equal(s.inside, 0);
    assert_int_equal(s.redone, 0);
    assert_true(s.starts >= 1 && s.starts <= 3);
    finish(&x);
}

static void one_after_the_other_without_ids(void **state)
{
    (void)state;
    struct run x;
    begin(&x, (struct command_opts){.shell = "while read -r l; do printf '[%s]\\r\\n' \"$l\"; done", .children = 2});
    submit(&x, 500, "%d", 0);
    wait_back(&x, x.count);
    for (size_t i = 0; i < x.count; i++) {
        char want[64];
        snprintf(want, sizeof want, "[%zu]", i);
        is_answer(&x.given[i], want);
    }
    finish(&x);
}

/* Answers to which no id can be put, among others that have theirs. */
static void some_answers_without_ids(void **state)
{
    (void)state;
    struct run x;
    script("some.py", PYTHON_LOOP "    n = r['id']\n    print('null' if n % 3 == 0 else json.dumps([n]) if n % 3 == 1 else l.strip())\n");
    begin(&x, (struct command_opts){.shell = "python3 some.py", .children = 2});
    submit(&x, 3000, "{\"id\":%d}", 1);
    wait_back(&x, x.count);
    for (size_t i = 0; i < x.count; i++) {
        char want[64];
        snprintf(want, sizeof want, i % 3 == 0 ? "null" : i % 3 == 1 ? "[%zu]" : "{\"id\":%zu}", i);
        is_answer(&x.given[i], want);
    }
    finish(&x);
}

/* What a child finds: its folder, its environment, no descriptors of ours, no signals blocked or ignored, a group of its own. */
static void what_a_child_finds(void **state)
{
    (void)state;
    struct run x;
    char want[512];
    static const char *const env[] = {"EBB_JOB=17", "EBB_STEP=2", "HOME=/nowhere", NULL};
    int leak = open("/dev/null", O_RDONLY); /* as a library may open it */
    /* Signals that may be ignored: those of Python itself (13, 25), and glibc's own (32, 33), which posix_spawn leaves so in whatever make starts. */
    setenv("NOTIFY_SOCKET", "/run/nothing", 1);
    script("look.py", PYTHON_LOOP
           "    s = dict(x.split(':', 1) for x in open('/proc/self/status').read().splitlines() if ':' in x)\n"
           "    fds = [f for f in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + f)]\n" /* less the one that lists */
           "    e = os.environ\n"
           "    print(json.dumps([os.getcwd() == os.path.realpath(r), e['EBB_JOB'], e['EBB_STEP'], e['EBB_CHILD'], e['HOME'], e.get('NOTIFY_SOCKET'),\n"
           "        e['PYTHONUNBUFFERED'], sorted(fds), int(s['SigBlk'], 16), int(s['SigIgn'], 16) & ~0x181001000, os.getpgid(0) != os.getpgid(os.getppid())]))\n");
    begin(&x, (struct command_opts){.shell = "exec python3 look.py", .env = env});
    snprintf(want, sizeof want, "\"%s\"", dir);
    submit(&x, 1, want, 0);
    wait_back(&x, 1);
    is_answer(&x.given[0], "[true, \"17\", \"2\", \"0\", \"/nowhere\", null, \"1\", [\"0\", \"1\", \"2\"], 0, 0, true]");
    finish(&x);
    unsetenv("NOTIFY_SOCKET");
    close(leak);
}

/* 16 MiB each way, and a child that answers while it reads: no one waits for the other for ever. */
static void huge_records(void **state)
{
    (void)state;
    struct run x;
    size_t size = (16u << 20) - 64;
    char *blank = malloc(size + 1);
    memset(blank, 'x', size);
    blank[size] = '\0';
    char *fmt;
    assert_true(asprintf(&fmt, "{\"id\":%%d,\"t\":\"%s\"}", blank) > 0);
    begin(&x, (struct command_opts){.shell = "cat", .children = 1});
    submit(&x, 4, fmt, 1);
    wait_back(&x, x.count);
    for (size_t i = 0; i < x.count; i++)
        is_answer(&x.given[i], x.given[i].line);
    finish(&x);
    free(fmt);
    free(blank);
}

static void fan_out(void **state)
{
    (void)state;
    struct run x;
    script("fan.py", PYTHON_LOOP "    print(json.dumps([{'c': i, 't': 'x' * 100} for i in range(r['id'] * 1000)]))\n");
    begin(&x, (struct command_opts){.shell = "python3 fan.py", .children = 2});
    submit(&x, 12, "{\"id\":%d}", 1);
    wait_back(&x, x.count);
    for (size_t i = 0; i < x.count; i++) {
        size_t n = 0;
        assert_int_equal(x.given[i].end, COMMAND_ANSWER);
        for (const char *p = x.given[i].answer; (p = strstr(p, "\"c\"")); p++)
            n++;
        assert_int_equal(n, i * 1000);
    }
    finish(&x);
}

static void noise_without_end(void **state)
{
    (void)state;
    struct run x;
    script("noisy.py", PYTHON_LOOP "    sys.stderr.write('noise %d\\n' % r['id'] * 20000)\n    print(l.strip())\n");
    begin(&x, (struct command_opts){.shell = "python3 noisy.py", .children = 2});
    submit(&x, 40, "{\"id\":%d}", 1);
    wait_back(&x, x.count);
    for (size_t i = 0; i < x.count; i++)
        is_answer(&x.given[i], x.given[i].line);
    finish(&x);
}

/* More children, while all are busy and records wait: each waits here until there are as many as allowed. */
static void grows_and_shrinks(void **state)
{
    (void)state;
    struct run x;
    struct command_stats s;
    begin(&x, (struct command_opts){.shell = "touch up.$EBB_CHILD\nread -r l && echo \"$l\"\nwhile read -r l; do\n"
                                             "if [ \"$l\" -ge 1 ]; then while [ $(ls up.* | wc -l) -lt 4 ]; do sleep 0.02; done; fi\n"
                                             "echo \"$l\"; done",
                                    .children = 4, .idle_ms = 20});
    submit(&x, 400, "%d", 0);
    wait_back(&x, x.count);
    for (size_t i = 0; i < x.count; i++)
        is_answer(&x.given[i], x.given[i].line);
    do {
        clock_sleep_ms(5);
        command_stats(x.c, &s);
    } while (s.children > 1);
    assert_int_equal(s.most_children, 4);
    finish(&x);
}

static void not_more_than_allowed(void **state)
{
    (void)state;
    struct run x;
    struct command_stats s;
    begin(&x, (struct command_opts){.shell = "mkdir only || exit 9\nwhile read -r l; do sleep 0.01; [ $l = 20 ] && rmdir only && exit 3; echo \"$l\"; done; rmdir only", .children = 1});
    submit(&x, 40, "%d", 0);
    wait_back(&x, x.count);
    for (size_t i = 0; i < x.count; i++)
        if (i == 20)
            is_error(&x.given[i], COMMAND_CRASHED, "exit status 3, 3 times alone");
        else
            is_answer(&x.given[i], x.given[i].line);
    command_stats(x.c, &s);
    assert_int_equal(s.most_children, 1);
    finish(&x);
}

/* Ends --------------------------------------------------------------------------------------------------------------------------------- */

static void stopped_in_the_middle(void **state)
{
    (void)state;
    struct run x;
    begin(&x, (struct command_opts){.shell = "read -r l; sleep 1000 & echo $! >pid.new; mv pid.new pid; wait", .children = 2});
    submit(&x, 200, "%d", 0);
    wait_file("pid");
    pid_t pid = atoi(content("pid"));
    command_stop(x.c);
    wait_back(&x, x.count);
    for (size_t i = 0; i < x.count; i++)
        assert_int_equal(x.given[i].end, COMMAND_NOT_DONE);
    assert_int_equal(x.faults, 0);
    wait_gone(pid);
    finish(&x);
}

/* A child that ends when its input does has the time for it; another is killed, with all that it started. */
static void ends_in_good_order(void **state)
{
    (void)state;
    struct run x;
    begin(&x, (struct command_opts){.shell = "sleep 1000 & echo $! >pid; while read -r l; do echo $l; done; echo bye >bye"});
    submit(&x, 3, "%d", 0);
    wait_back(&x, x.count);
    pid_t pid = atoi(content("pid"));
    finish(&x);
    assert_string_equal(content("bye"), "bye");
    wait_gone(pid);
}

/* This program once more, as a worker that holds a command and may be killed or stopped: behind fork alone no thread may be started. */
static pid_t other(const char *what)
{
    pid_t pid = fork();
    if (pid == 0) {
        execl("/proc/self/exe", "command_test", "--other", what, dir, (char *)NULL);
        _exit(99);
    }
    return pid;
}

static int other_main(const char *what)
{
    struct run x;
    struct command_stats s;
    if (strcmp(what, "killed") == 0) {
        begin(&x, (struct command_opts){.shell = "trap '' TERM HUP; read -r l; sleep 1000 & echo $! >pid.new; echo $$ >own; mv pid.new pid; wait; wait", .children = 1});
        submit(&x, 2, "%d", 0);
        for (;;)
            pause();
    }
    begin(&x, (struct command_opts){.shell = "while read -r l; do echo $$ >own.new; mv own.new own.$l; [ $l = 1 ] && while [ ! -e gate ]; do sleep 0.02; done; echo $l; done", .children = 1,
                                    .timeout_ms = 2000, .start_ms = 1});
    submit(&x, 2, "%d", 0);
    wait_back(&x, 2);
    command_stats(x.c, &s);
    int bad = x.given[0].end != COMMAND_ANSWER || x.given[1].end != COMMAND_ANSWER || s.starts != 1;
    finish(&x);
    return bad;
}

/* We are killed: nothing that we started outlives us, not even what a shell of ours started. */
static void no_orphans(void **state)
{
    (void)state;
    pid_t us = other("killed");
    wait_file("pid");
    pid_t pid = atoi(content("pid")), own = atoi(content("own"));
    kill(us, SIGKILL);
    assert_int_equal(waitpid(us, NULL, 0), us);
    wait_gone(own);
    wait_gone(pid);
}

/* We were stopped for longer than a record may take: that is not held against it. */
static void stopped_for_a_while(void **state)
{
    (void)state;
    pid_t us = other("stopped");
    wait_file("own.1");
    pid_t own = atoi(content("own.1"));
    /* as an agent without control groups does, and with them the kernel */
    kill(us, SIGSTOP);
    kill(-own, SIGSTOP);
    clock_sleep_ms(3500);
    kill(-own, SIGCONT);
    kill(us, SIGCONT);
    clock_sleep_ms(100);
    touch("gate");
    int status;
    assert_int_equal(waitpid(us, &status, 0), us);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* Everything at once --------------------------------------------------------------------------------------------------------------------- */

static void each_has_its_own_due(void **state)
{
    (void)state;
    struct run x;
    script("mixed.sh", "while read -r l; do\n"
                       "    n=${l#*:}; n=${n%?}\n"
                       "    case $((n * 7919 % 97)) in\n"
                       "    1) kill -s ABRT $$ ;;\n"
                       "    2) exit 3 ;;\n"
                       "    3) echo garbage ;;\n"
                       "    4) exit 0 ;;\n"
                       "    5) echo \"{\\\"id\\\": $n, \\\"error\\\": \\\"refused\\\"}\" ;;\n"
                       "    6) echo \"{\\\"id\\\": $((n + 1))}\" ;;\n"
                       "    7) echo null ;;\n"
                       "    8) head -c 3000 /dev/zero | tr '\\0' '['; echo ;;\n"
                       "    *) echo \"$l\" ;;\n"
                       "    esac\n"
                       "done\n");
    begin(&x, (struct command_opts){.shell = "exec sh mixed.sh", .children = 3});
    submit(&x, 600, "{\"id\":%d}", 1);
    wait_back(&x, x.count);
    for (size_t i = 0; i < x.count; i++) {
        const struct given *g = &x.given[i];
        switch (i * 7919 % 97) {
        case 1: is_error(g, COMMAND_CRASHED, "signal 6"); break;
        case 2: is_error(g, COMMAND_CRASHED, "exit status 3"); break;
        case 3: is_error(g, COMMAND_GARBAGE, "not JSON: 'garbage'"); break;
        case 4: is_error(g, COMMAND_MISSING, "exit status 0"); break;
        case 5: is_error(g, COMMAND_REFUSED, "refused"); break;
        case 6: is_error(g, COMMAND_GARBAGE, "an answer with the id"); break;
        case 7: is_answer(g, "null"); break;
        case 8: is_error(g, COMMAND_GARBAGE, "not JSON"); break;
        default: is_answer(g, g->line);
        }
    }
    assert_int_equal(x.faults, 0);
    finish(&x);
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "--other") == 0) {
        log_init("command_test", getenv("EBB_TEST_VERBOSE") ? LOG_DEBUG : LOG_ERROR);
        signal(SIGPIPE, SIG_IGN);
        snprintf(dir, sizeof dir, "%s", argv[3]);
        return other_main(argv[2]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(thousands_of_records, before_each),
        cmocka_unit_test_setup(one_after_the_other_without_ids, before_each),
        cmocka_unit_test_setup(some_answers_without_ids, before_each),
        cmocka_unit_test_setup(what_a_child_finds, before_each),
        cmocka_unit_test_setup(huge_records, before_each),
        cmocka_unit_test_setup(fan_out, before_each),
        cmocka_unit_test_setup(noise_without_end, before_each),
        cmocka_unit_test_setup(grows_and_shrinks, before_each),
        cmocka_unit_test_setup(not_more_than_allowed, before_each),
        cmocka_unit_test_setup(stopped_in_the_middle, before_each),
        cmocka_unit_test_setup(ends_in_good_order, before_each),
        cmocka_unit_test_setup(no_orphans, before_each),
        cmocka_unit_test_setup(stopped_for_a_while, before_each),
        cmocka_unit_test_setup(each_has_its_own_due, before_each),
    };
    RUN(argc, argv, tests);
}
