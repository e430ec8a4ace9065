/* A command and its records, as the tests of workers/command use them: each record comes back once, with what is its own due. */
#ifndef EBB_TESTS_COMMAND_RIG_H
#define EBB_TESTS_COMMAND_RIG_H

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

static inline void answered(void *arg, struct command_record *r, const struct command_answer *a)
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

static inline void faulted(void *arg, const char *text)
{
    struct run *x = arg;
    pthread_mutex_lock(&x->lock);
    x->faults++;
    snprintf(x->fault, sizeof x->fault, "%s", text);
    pthread_cond_broadcast(&x->news);
    pthread_mutex_unlock(&x->lock);
}

static inline void begin(struct run *x, struct command_opts o)
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
static inline void submit(struct run *x, size_t count, const char *fmt, int with_id)
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

static inline void wait_back(struct run *x, size_t count)
{
    pthread_mutex_lock(&x->lock);
    while (x->back < count)
        pthread_cond_wait(&x->news, &x->lock);
    pthread_mutex_unlock(&x->lock);
}

static inline void finish(struct run *x)
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

static inline void is_answer(const struct given *g, const char *line)
{
    if (g->end != COMMAND_ANSWER)
        fail_msg("%s: end %d: %s", g->line, g->end, g->text ? g->text : "");
    assert_string_equal(g->answer, line);
}

static inline void is_error(const struct given *g, enum command_error error, const char *words)
{
    if (g->end != COMMAND_ERROR)
        fail_msg("%s: no error but %d '%s'", g->line, g->end, g->answer ? g->answer : "");
    if (strcmp(command_error_word(g->error), command_error_word(error)) != 0 || !strstr(g->text, words))
        fail_msg("%s: %s: '%s', where %s with '%s' was due", g->line, command_error_word(g->error), g->text, command_error_word(error), words);
}

/* Files of the run --------------------------------------------------------------------------------------------------------------------- */

static inline const char *path(const char *name)
{
    static char out[128];
    snprintf(out, sizeof out, "%s/%s", dir, name);
    return out;
}

static inline void empty_dir(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s/*", dir);
    assert_int_equal(system(command), 0);
}

static inline size_t lines_of(const char *name)
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
static inline const char *content(const char *name)
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

static inline void touch(const char *name)
{
    FILE *f = fopen(path(name), "w");
    assert_non_null(f);
    fclose(f);
}

static inline void wait_file(const char *name)
{
    struct stat st;
    while (stat(path(name), &st) || st.st_size == 0)
        clock_sleep_ms(10);
}

static inline void wait_gone(pid_t pid)
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

static inline void script(const char *name, const char *text)
{
    FILE *f = fopen(path(name), "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

#define PYTHON_LOOP "import sys, json, os\n" \
                    "for l in sys.stdin:\n" \
                    "    r = json.loads(l)\n"

static inline int before_each(void **state)
{
    (void)state;
    empty_dir();
    return 0;
}

/* A folder of its own for the whole program; argv: which tests, as cmocka filters them. */
#define RUN(argc, argv, tests) \
    do { \
        log_init("command_test", getenv("EBB_TEST_VERBOSE") ? LOG_DEBUG : LOG_ERROR); \
        signal(SIGPIPE, SIG_IGN); \
        strcpy(dir, "/tmp/ebb-command-XXXXXX"); \
        if (!mkdtemp(dir)) \
            return 1; \
        if ((argc) > 1) \
            cmocka_set_test_filter((argv)[1]); \
        int failed = cmocka_run_group_tests(tests, NULL, NULL); \
        empty_dir(); \
        rmdir(dir); \
        return failed; \
    } while (0)

#endif
