/* Commands that do not behave: only the record that is to blame pays for it. */
#include "tests/unit/command/rig.h"

static void dies_of_one(void **state)
{
    (void)state;
    struct run x;
    script("die.py", PYTHON_LOOP
           "    if r['id'] == 70:\n"
           "        open('tries', 'a').write('.\\n')\n"
           "        print('no memory for record 70', file=sys.stderr)\n"
           "        os.kill(os.getpid(), 11)\n"
           "    if r['id'] == 71:\n"
           "        raise ValueError('record 71 has no price')\n"
           "    if r['id'] == 500 and not os.path.exists('once'):\n"
           "        open('once', 'w')\n"
           "        os._exit(1)\n"
           "    print(l.strip())\n");
    begin(&x, (struct command_opts){.shell = "exec python3 die.py", .children = 2});
    submit(&x, 1000, "{\"id\":%d}", 1);
    wait_back(&x, x.count);
    for (size_t i = 0; i < x.count; i++)
        if (i == 70)
            is_error(&x.given[i], COMMAND_CRASHED, "died of signal 11 (Segmentation fault), 3 times alone with this record; its last words: no memory for record 70");
        else if (i == 71)
            is_error(&x.given[i], COMMAND_CRASHED, "exit status 1, 3 times alone with this record; its last words: ValueError: record 71 has no price");
        else
            is_answer(&x.given[i], x.given[i].line);
    assert_true(lines_of("tries") >= 4);
    assert_int_equal(x.faults, 0);
    finish(&x);
}

static void hangs_at_one(void **state)
{
    (void)state;
    struct run x;
    script("hang.py", PYTHON_LOOP "    if r['id'] == 5:\n        while True: sys.stdin.read(1); import time; time.sleep(1)\n    print(l.strip())\n");
    begin(&x, (struct command_opts){.shell = "python3 hang.py", .children = 2, .timeout_ms = 400, .start_ms = 3000});
    submit(&x, 60, "{\"id\":%d}", 1);
    wait_back(&x, x.count);
    for (size_t i = 0; i < x.count; i++)
        if (i == 5)
            is_error(&x.given[i], COMMAND_HUNG, "did not answer within 400 ms");
        else
            is_answer(&x.given[i], x.given[i].line);
    finish(&x);
}

static void nonsense(void **state)
{
    (void)state;
    static const struct {
        const char *shell, *words;
        enum command_error error;
        int only; /* 1: with ids, 2: without */
    } cases[] = {
        {"echo processing 7", "a line that is not JSON: 'processing 7'", COMMAND_GARBAGE, 0},
        {"echo", "an empty line", COMMAND_GARBAGE, 0},
        {"echo '{\"a\":1'", "not JSON: '{\"a\":1'", COMMAND_GARBAGE, 0},
        {"echo NaN", "not JSON: 'NaN'", COMMAND_GARBAGE, 0},
        {"printf '\"ab\\377\"\\n'", "not UTF-8 from byte 3 on: '\"ab'", COMMAND_GARBAGE, 0},
        {"head -c 200000 /dev/zero | tr '\\0' y; echo", "a line of more than 100000 bytes", COMMAND_GARBAGE, 0},
        {"head -c 200000 /dev/zero | tr '\\0' y; cat >/dev/null", "a line of more than 100000 bytes", COMMAND_GARBAGE, 0},
        {"echo '{\"id\":4}'", "an answer with the id 4, where that to 7 was due", COMMAND_GARBAGE, 1},
        {"echo '{\"id\":\"7\"}'", "an answer with the id \"7\"", COMMAND_GARBAGE, 1},
        {"exit 0", "ended (exit status 0) before it answered, 2 times alone", COMMAND_MISSING, 0},
        {"printf '{\"id\":'; exit 0", "a line that is not JSON: '{\"id\":'", COMMAND_GARBAGE, 0},
        {"exec >&-; cat >/dev/null; exit 4", "closed its standard output before it answered", COMMAND_MISSING, 2},
        {"printf '[1]\\n[2]\\n'", "more lines than it was given records", COMMAND_GARBAGE, 2}, /* ids tell by the next one, below */
        {"printf '[1]\\n['", "more lines than it was given records", COMMAND_GARBAGE, 2},
        {"printf 'a\\377b\\001\\tc\\n' >&2; exit 7", "exit status 7, 3 times alone with this record; its last words: a?b  c", COMMAND_CRASHED, 0},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        for (int ids = 0; ids < 2; ids++) {
            struct run x;
            char text[1000];
            if (cases[k].only == (ids ? 2 : 1))
                continue;
            snprintf(text, sizeof text, "while read -r l; do if [ \"$l\" = '{\"id\":7}' ]; then %s; else echo %s; fi; done", cases[k].shell, ids ? "\"$l\"" : "\"[$l]\"");
            begin(&x, (struct command_opts){.shell = text, .children = 1, .answer_bytes = 100000});
            submit(&x, 20, "{\"id\":%d}", ids);
            wait_back(&x, x.count);
            for (size_t i = 0; i < x.count; i++) {
                char want[64];
                snprintf(want, sizeof want, ids ? "{\"id\":%zu}" : "[{\"id\":%zu}]", i);
                if (i == 7)
                    is_error(&x.given[i], cases[k].error, cases[k].words);
                else
                    is_answer(&x.given[i], want);
            }
            assert_int_equal(x.faults, 0);
            finish(&x);
        }
    }
}

/* It answers nothing to one record, or twice, and goes on: ids tell, whatever was ahead. */
static void one_too_few_one_too_many(void **state)
{
    (void)state;
    struct run x;
    script("uneven.py", PYTHON_LOOP
           "    if r['id'] == 30: continue\n"
           "    print(l.strip())\n"
           "    if r['id'] == 60: print(l.strip())\n");
    begin(&x, (struct command_opts){.shell = "python3 uneven.py", .children = 2, .timeout_ms = 400, .start_ms = 3000});
    submit(&x, 200, "{\"id\":%d}", 1);
    wait_back(&x, x.count);
    for (size_t i = 0; i < x.count; i++)
        if (i == 30)
            is_error(&x.given[i], x.given[i].error == COMMAND_MISSING ? COMMAND_MISSING : COMMAND_HUNG, "answer");
        else
            is_answer(&x.given[i], x.given[i].line);
    assert_int_equal(x.faults, 0);
    finish(&x);
}

/* One that waits for more because it works on several at once, or for something outside, is left alone. */
static void not_quiet(void **state)
{
    (void)state;
    static const char *const scripts[] = {
        "import sys, threading, time, os\n"
        "def work(l):\n    while not os.path.exists('gate'): time.sleep(0.02)\n    print(l.strip())\n"
        "for l in sys.stdin:\n    threading.Thread(target=work, args=(l,)).start()\n",
        "import sys, asyncio, os\n"
        "async def main():\n"
        "    r = asyncio.StreamReader()\n"
        "    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(r), sys.stdin)\n"
        "    while l := await r.readline():\n        while not os.path.exists('gate'): await asyncio.sleep(0.02)\n        print(l.decode().strip())\n"
        "asyncio.run(main())\n",
        "import sys, os, socket, time\n"
        "a, b = socket.socketpair()\n"
        "if os.fork() == 0:\n    os.close(0)\n    while b.recv(1): pass\n    os._exit(0)\n" /* somebody waits for what may come from outside */
        "for l in sys.stdin:\n    while not os.path.exists('gate'): time.sleep(0.02)\n    print(l.strip())\n",
    };
    for (size_t k = 0; k < sizeof scripts / sizeof *scripts; k++) {
        struct run x;
        struct command_stats s;
        empty_dir();
        script("busy.py", scripts[k]);
        begin(&x, (struct command_opts){.shell = "python3 busy.py", .children = 1});
        submit(&x, 3, "%d", 0);
        clock_sleep_ms(1500); /* the first looks fall into this: none of them may say that it waits for more only */
        touch("gate");
        wait_back(&x, x.count);
        for (size_t i = 0; i < x.count; i++)
            is_answer(&x.given[i], x.given[i].line);
        command_stats(x.c, &s);
        assert_int_equal(s.starts, 1);
        finish(&x);
    }
}

/* Without ids nobody could say whose the answers before were. */
static void more_lines_later(void **state)
{
    (void)state;
    struct run x;
    begin(&x, (struct command_opts){.shell = "while read -r l; do echo \"[$l]\"; while [ ! -e gate ]; do sleep 0.02; done; echo \"[$l]\"; done"});
    submit(&x, 1, "%d", 0);
    wait_back(&x, 1);
    is_answer(&x.given[0], "[0]");
    touch("gate");
    pthread_mutex_lock(&x.lock);
    while (!x.faults)
        pthread_cond_wait(&x.news, &x.lock);
    pthread_mutex_unlock(&x.lock);
    assert_non_null(strstr(x.fault, "answers with more lines than it is given records"));
    finish(&x);
}

static void ends_after_a_few(void **state)
{
    (void)state;
    struct run x;
    begin(&x, (struct command_opts){.shell = "for i in 1 2 3; do read -r l || exit 0; echo \"$l\"; done", .children = 2});
    submit(&x, 50, "{\"id\":%d}", 1);
    wait_back(&x, x.count);
    for (size_t i = 0; i < x.count; i++)
        is_answer(&x.given[i], x.given[i].line);
    finish(&x);
    begin(&x, (struct command_opts){.shell = "head -n 1", .children = 2});
    submit(&x, 20, "%d", 0);
    wait_back(&x, x.count);
    for (size_t i = 0; i < x.count; i++)
        is_answer(&x.given[i], x.given[i].line);
    finish(&x);
}

/* Answers that come only when the input ends. It is seen that the child waits for more, and for nothing else, if the kernel tells; else when its time is
   over. */
static void keeps_answers_in_a_buffer(void **state)
{
    (void)state;
    int told = access("/proc/self/syscall", R_OK) == 0;
    for (int ids = 0; ids < 2; ids++) {
        struct run x;
        struct command_stats s;
        begin(&x, (struct command_opts){.shell = "awk '/\"id\":33}/ {print \"no 33 here\" >\"/dev/stderr\"; exit 3} {print}'", .children = 2, .ahead = 16,
                                        .timeout_ms = told ? 1000000 : 1500, .start_ms = 100});
        submit(&x, 120, "{\"id\":%d}", ids);
        wait_back(&x, x.count);
        for (size_t i = 0; i < x.count; i++)
            if (i == 33)
                is_error(&x.given[i], COMMAND_CRASHED, "no 33 here");
            else
                is_answer(&x.given[i], x.given[i].line);
        command_stats(x.c, &s);
        assert_true(s.starts < 60);
        finish(&x);
    }
}

static void error_and_retry(void **state)
{
    (void)state;
    struct run x;
    struct command_stats s;
    script("retry.py", PYTHON_LOOP
           "    n = r['id']\n"
           "    if n == 1: print(json.dumps({'id': 1, 'error': 'too b\\u00e4d\\nfor us'}))\n"
           "    elif n == 2:\n"
           "        open('two', 'a').write('.\\n')\n"
           "        print(json.dumps({'retry': 'busy', 'after': 0.01}))\n"
           "    elif n == 3:\n"
           "        with open('three', 'a') as f: f.write('.\\n')\n"
           "        if len(open('three').readlines()) < 3: print(json.dumps({'retry': {'code': 503}, 'after': 0}))\n"
           "        else: print(l.strip())\n"
           "    elif n == 4: print(json.dumps({'id': 4, 'error': None, 'retry': None}))\n"
           "    elif n == 5: print(json.dumps({'error': {'code': 5}}))\n"
           "    else: print(l.strip())\n");
    begin(&x, (struct command_opts){.shell = "python3 retry.py", .children = 1, .retries = 3});
    submit(&x, 12, "{\"id\":%d}", 1);
    wait_back(&x, x.count);
    for (size_t i = 0; i < x.count; i++)
        if (i == 1)
            is_error(&x.given[i], COMMAND_REFUSED, "too b\xc3\xa4" "d?for us");
        else if (i == 2)
            is_error(&x.given[i], COMMAND_RETRY, "asked for another try 4 times in a row: busy");
        else if (i == 4)
            is_answer(&x.given[i], "{\"id\": 4, \"error\": null, \"retry\": null}");
        else if (i == 5)
            is_error(&x.given[i], COMMAND_REFUSED, "{\"code\": 5}");
        else
            is_answer(&x.given[i], x.given[i].line);
    assert_int_equal(lines_of("two"), 4);
    assert_int_equal(lines_of("three"), 3);
    command_stats(x.c, &s);
    assert_int_equal(s.retried, 5);
    assert_int_equal(s.starts, 1);
    finish(&x);
}

/* What the command needs is down for a while: one record asks, the others wait and keep their tries. */
static void all_want_another_try(void **state)
{
    (void)state;
    struct run x;
    script("down.py", PYTHON_LOOP
           "    with open('asked', 'a') as f: f.write('.\\n')\n"
           "    if len(open('asked').readlines()) < 40: print(json.dumps({'id': r['id'], 'retry': 'down', 'after': 0.001}))\n"
           "    else: print(l.strip())\n");
    begin(&x, (struct command_opts){.shell = "python3 down.py", .children = 1, .retries = 40});
    submit(&x, 300, "{\"id\":%d}", 1);
    wait_back(&x, x.count);
    for (size_t i = 0; i < x.count; i++)
        is_answer(&x.given[i], x.given[i].line);
    assert_int_equal(lines_of("asked"), 339);
    finish(&x);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(dies_of_one, before_each),
        cmocka_unit_test_setup(hangs_at_one, before_each),
        cmocka_unit_test_setup(nonsense, before_each),
        cmocka_unit_test_setup(one_too_few_one_too_many, before_each),
        cmocka_unit_test_setup(not_quiet, before_each),
        cmocka_unit_test_setup(more_lines_later, before_each),
        cmocka_unit_test_setup(ends_after_a_few, before_each),
        cmocka_unit_test_setup(keeps_answers_in_a_buffer, before_each),
        cmocka_unit_test_setup(error_and_retry, before_each),
        cmocka_unit_test_setup(all_want_another_try, before_each),
    };
    RUN(argc, argv, tests);
}
