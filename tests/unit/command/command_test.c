/* Commands that behave, and all the ways in which they do not: each record comes back once, with what is its own due. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "workers/command/command.h"

/* A job's worth of records ------------------------------------------------------------------------------------------------------------- */

struct given {
    struct command_record r;
    char *line, *id, *answer, *text;
    int back;
    enum command_end end;
    enum command_error error;
};

struct run {
    struct command *c;
    pthread_mutex_t lock;
    pthread_cond_t news;
    struct given *given;
    size_t count, back;
    int faults;
    char fault[2000];
};

static char dir[64];

static void answered(void *arg, struct command_record *r, const struct command_answer *a)
{
    struct run *x = arg;
    struct given *g = r->owner;
    pthread_mutex_lock(&x->lock);
    g->back++;
    g->end = a->end;
    g->error = a->error;
    if (a->end == COMMAND_ANSWER)
        g->answer = strndup(a->line, a->len);
    if (a->end == COMMAND_ERROR)
        g->text = strdup(a->text);
    x->back++;
    pthread_cond_broadcast(&x->news);
    pthread_mutex_unlock(&x->lock);
}

static void faulted(void *arg, const char *text)
{
    struct run *x = arg;
    pthread_mutex_lock(&x->lock);
    x->faults++;
    snprintf(x->fault, sizeof x->fault, "%s", text);
    pthread_cond_broadcast(&x->news);
    pthread_mutex_unlock(&x->lock);
}

static void begin(struct run *x, struct command_opts o)
{
    struct err e;
    memset(x, 0, sizeof *x);
    pthread_mutex_init(&x->lock, NULL);
    pthread_cond_init(&x->news, NULL);
    o.answered = answered;
    o.faulted = faulted;
    o.arg = x;
    o.name = "job 1 step 2";
    if (!o.dir)
        o.dir = dir;
    if (command_new(&o, &x->c, &e) != ST_OK)
        fail_msg("%s", e.text);
}

/* Lines by fmt, which takes the number twice at the most. with_id: the lines begin with {"id":N, and that is told. */
static void submit(struct run *x, size_t count, const char *fmt, int with_id)
{
    assert_null(x->given);
    x->given = calloc(count, sizeof *x->given);
    x->count = count;
    for (size_t i = 0; i < count; i++) {
        struct given *g = &x->given[i];
        assert_true(asprintf(&g->line, fmt, (int)i, (int)i) > 0);
        g->r = (struct command_record){.line = g->line, .len = strlen(g->line), .owner = g};
        if (with_id) {
            assert_true(asprintf(&g->id, "%d", (int)i) > 0);
            g->r.id = g->id;
            g->r.id_len = strlen(g->id);
        }
        command_submit(x->c, &g->r);
    }
}

static void wait_back(struct run *x, size_t count)
{
    pthread_mutex_lock(&x->lock);
    while (x->back < count)
        pthread_cond_wait(&x->news, &x->lock);
    pthread_mutex_unlock(&x->lock);
}

static void finish(struct run *x)
{
    command_free(x->c);
    assert_int_equal(x->back, x->count);
    for (size_t i = 0; i < x->count; i++) {
        assert_int_equal(x->given[i].back, 1);
        free(x->given[i].line);
        free(x->given[i].id);
        free(x->given[i].answer);
        free(x->given[i].text);
    }
    free(x->given);
    pthread_mutex_destroy(&x->lock);
    pthread_cond_destroy(&x->news);
}

static void is_answer(const struct given *g, const char *line)
{
    if (g->end != COMMAND_ANSWER)
        fail_msg("%s: end %d: %s", g->line, g->end, g->text ? g->text : "");
    assert_string_equal(g->answer, line);
}

static void is_error(const struct given *g, enum command_error error, const char *words)
{
    if (g->end != COMMAND_ERROR)
        fail_msg("%s: no error but %d '%s'", g->line, g->end, g->answer ? g->answer : "");
    if (strcmp(command_error_word(g->error), command_error_word(error)) != 0 || !strstr(g->text, words))
        fail_msg("%s: %s: '%s', where %s with '%s' was due", g->line, command_error_word(g->error), g->text, command_error_word(error), words);
}

/* Files of the run --------------------------------------------------------------------------------------------------------------------- */

static const char *path(const char *name)
{
    static char out[128];
    snprintf(out, sizeof out, "%s/%s", dir, name);
    return out;
}

static void empty_dir(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s/*", dir);
    assert_int_equal(system(command), 0);
}

static size_t lines_of(const char *name)
{
    FILE *f = fopen(path(name), "r");
    size_t n = 0;
    int c;
    if (!f)
        return 0;
    while ((c = getc(f)) != EOF)
        n += c == '\n';
    fclose(f);
    return n;
}

/* The first line, in memory of ours; "" when there is none. */
static const char *content(const char *name)
{
    static char out[4096];
    FILE *f = fopen(path(name), "r");
    out[0] = '\0';
    if (f) {
        if (!fgets(out, sizeof out, f))
            out[0] = '\0';
        fclose(f);
    }
    out[strcspn(out, "\n")] = '\0';
    return out;
}

static void touch(const char *name)
{
    FILE *f = fopen(path(name), "w");
    assert_non_null(f);
    fclose(f);
}

static void wait_file(const char *name)
{
    struct stat st;
    while (stat(path(name), &st) || st.st_size == 0)
        clock_sleep_ms(10);
}

static void wait_gone(pid_t pid)
{
    while (kill(pid, 0) == 0) {
        /* where nobody reaps orphans, a dead one stays: that is gone enough */
        char name[64], text[512] = "";
        snprintf(name, sizeof name, "/proc/%d/stat", (int)pid);
        FILE *f = fopen(name, "r");
        if (f && fgets(text, sizeof text, f) && strstr(text, ") Z ")) {
            fclose(f);
            return;
        }
        if (f)
            fclose(f);
        clock_sleep_ms(10);
    }
}

static void script(const char *name, const char *text)
{
    FILE *f = fopen(path(name), "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

#define PYTHON_LOOP "import sys, json, os\n" \
                    "for l in sys.stdin:\n" \
                    "    r = json.loads(l)\n"

/* Those that behave -------------------------------------------------------------------------------------------------------------------- */

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

/* Those that do not -------------------------------------------------------------------------------------------------------------------- */

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

/* Not the record's fault --------------------------------------------------------------------------------------------------------------- */

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

static int before_each(void **state)
{
    (void)state;
    empty_dir();
    return 0;
}

int main(int argc, char **argv)
{
    log_init("command_test", getenv("EBB_TEST_VERBOSE") ? LOG_DEBUG : LOG_ERROR);
    signal(SIGPIPE, SIG_IGN);
    if (argc == 4 && strcmp(argv[1], "--other") == 0) {
        snprintf(dir, sizeof dir, "%s", argv[3]);
        return other_main(argv[2]);
    }
    strcpy(dir, "/tmp/ebb-command-XXXXXX");
    if (!mkdtemp(dir))
        return 1;
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
        cmocka_unit_test_setup(cannot_be_run, before_each),
        cmocka_unit_test_setup(dies_at_once, before_each),
        cmocka_unit_test_setup(bad_ones_first, before_each),
        cmocka_unit_test_setup(bad_ones_together, before_each),
        cmocka_unit_test_setup(killed_from_outside, before_each),
        cmocka_unit_test_setup(out_of_memory, before_each),
        cmocka_unit_test_setup(stopped_in_the_middle, before_each),
        cmocka_unit_test_setup(ends_in_good_order, before_each),
        cmocka_unit_test_setup(no_orphans, before_each),
        cmocka_unit_test_setup(stopped_for_a_while, before_each),
        cmocka_unit_test_setup(each_has_its_own_due, before_each),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    empty_dir();
    rmdir(dir);
    return failed;
}
