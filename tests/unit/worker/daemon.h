/* A daemon that does as a test says: a ROUTER, one real ebb-worker process, and a note of everything that it commits. Part of worker_test.c; group_test.c starts
   workers of its own. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <zmq.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/rows.h"
#include "storage/dataset.h"
#include "storage/modeldir.h"
#include "storage/part.h"
#include "tests/lib/files.h"
#include "tests/lib/tinymodel.h"
#include "wire/blackbox.h"
#include "wire/jobspec.h"
#include "wire/sock.h"

#define NUMBER UINT64_C(0x1122334455667788)
#define WAIT_MS 120000 /* what has not come by then never comes, however slow the machine */
#define MODEL_KEY 7

struct got {
    struct extent x;
    char *rows, *errors;
};

struct daemon {
    char *numerics; /* that jobs are said to have begun with; NULL: none */
    char dir[128], endpoint[160], box[160], model[160], parts[160];
    void *context;
    struct sock *router;
    struct sock_peer peer;
    struct model_digest digest;
    struct dataset data;
    struct jobspec spec;
    pid_t pid;
    int alive;
    uint32_t generation;
    uint32_t beat_ms;
    /* what came */
    struct got *got;
    size_t got_count, got_cap;
    struct span *returned;
    size_t returned_count, returned_cap;
    uint64_t last_epoch, last_seq;
    int ack;                       /* 1: commits are answered as they come */
    int hellos, beats, model_ready, byes, job_faults;
    char fault_text[1200];
    Ebb__Envelope *hello, *beat;
    uint64_t cut_at;
    int cut_answers;
    int (*other)(struct daemon *d, const Ebb__Envelope *m); /* of another kind, or more to do with it: 1: it is dealt with. NULL: there is none */
    void *arg;
};

static char *worker_path(void)
{
    static char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 32);
    assert_true(n > 0);
    path[n] = 0;
    char *at = strstr(path, "/tests/unit/");
    assert_non_null(at);
    strcpy(at, "/bin/ebb-worker");
    return path;
}

static struct daemon *daemon_new(void)
{
    struct daemon *d = calloc(1, sizeof *d);
    struct err e;
    snprintf(d->dir, sizeof d->dir, "%s/ebb-worker-test-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    assert_non_null(mkdtemp(d->dir));
    snprintf(d->endpoint, sizeof d->endpoint, "ipc://%s/s", d->dir);
    snprintf(d->box, sizeof d->box, "%s/box", d->dir);
    snprintf(d->model, sizeof d->model, "%s/model", d->dir);
    snprintf(d->parts, sizeof d->parts, "%s/parts", d->dir);
    assert_int_equal(tinymodel_write(d->model, &(struct tinymodel){.hidden = 16, .layers = 1}), 0);
    assert_int_equal(modeldir_digest(d->model, &d->digest, &e), ST_OK);
    assert_int_equal(jobspec_init(&d->spec, &e), ST_OK);
    d->spec.model = mem_strdup(d->model);
    d->spec.output = mem_printf("%s/out.jsonl", d->dir);
    d->context = zmq_ctx_new();
    d->generation = 5;
    d->beat_ms = 50;
    d->ack = 1;
    assert_int_equal(sock_router(d->context, d->endpoint, NULL, &d->router, &e), ST_OK);
    return d;
}

static void daemon_start(struct daemon *d, const char *lanes, const char *const *env)
{
    unlink(d->box);
    d->pid = fork();
    assert_true(d->pid >= 0);
    if (d->pid == 0) {
        for (; env && *env; env++)
            putenv((char *)(uintptr_t)*env);
        if (!getenv("EBB_TEST_NOISE") && !freopen("/dev/null", "w", stderr))
            _exit(99);
        char number[32];
        snprintf(number, sizeof number, "%" PRIu64, NUMBER);
        const char *grace = getenv("TEST_GRACE"); /* of this process alone: see env */
        execl(worker_path(), "ebb-worker", "--connect", d->endpoint, "--name", "t/1", "--number", number, "--blackbox", d->box, "--lanes", lanes,
              "--grace", grace ? grace : "20s", (char *)NULL);
        _exit(98);
    }
    d->alive = 1;
}

/* Waits for the process: exit code, or 1000 + signal. */
static int daemon_reap(struct daemon *d)
{
    int status;
    for (uint64_t until = clock_ms() + WAIT_MS; clock_ms() < until; clock_sleep_ms(5)) {
        pid_t pid = waitpid(d->pid, &status, WNOHANG);
        if (pid == d->pid) {
            d->alive = 0;
            return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
        }
    }
    return -1;
}

static void daemon_forget(struct daemon *d)
{
    for (size_t i = 0; i < d->got_count; i++) {
        free(d->got[i].rows);
        free(d->got[i].errors);
    }
    d->got_count = d->returned_count = 0;
}

static void daemon_free(struct daemon *d)
{
    struct err e;
    if (d->alive) {
        kill(d->pid, SIGKILL);
        waitpid(d->pid, NULL, 0);
    }
    sock_close(d->router);
    zmq_ctx_term(d->context);
    daemon_forget(d);
    mem_free(d->got);
    mem_free(d->returned);
    wire_free(d->hello);
    wire_free(d->beat);
    jobspec_release(&d->spec);
    dataset_release(&d->data);
    assert_int_equal(path_remove_tree(d->dir, &e), ST_OK);
    free(d);
}

/* Says something to the worker. */
static void say(struct daemon *d, Ebb__Envelope__BodyCase which, void *body)
{
    struct err e;
    enum status st = sock_send(d->router, &d->peer, which, body, &e);
    if (st != ST_OK)
        fail_msg("%s", e.text);
}

static void say_welcome(struct daemon *d)
{
    Ebb__Welcome m = EBB__WELCOME__INIT;
    m.version = WIRE_VERSION;
    m.generation = d->generation;
    m.beat_ms = d->beat_ms;
    m.program = (char *)(uintptr_t)"test";
    say(d, EBB__ENVELOPE__BODY_WELCOME, &m);
}

static void say_ack(struct daemon *d, uint64_t epoch, uint64_t seq, uint32_t verdict)
{
    Ebb__Ack m = EBB__ACK__INIT;
    m.epoch = epoch;
    m.seq = seq;
    m.verdict = verdict;
    say(d, EBB__ENVELOPE__BODY_ACK, &m);
}

static void say_job(struct daemon *d, uint64_t job)
{
    json_t *spec = jobspec_to_json(&d->spec);
    char *text = json_dumps(spec, 0);
    Ebb__Job m = EBB__JOB__INIT;
    m.job = job;
    m.spec = text;
    m.model_key = MODEL_KEY;
    m.model_digest.data = d->digest.bytes;
    m.model_digest.len = sizeof d->digest.bytes;
    m.parts_dir = d->parts;
    m.format = d->data.format;
    if (d->numerics)
        m.numerics = d->numerics;
    say(d, EBB__ENVELOPE__BODY_JOB, &m);
    free(text);
    json_decref(spec);
}

static void say_lease(struct daemon *d, uint64_t job, uint64_t epoch, struct span span, int probe)
{
    Ebb__Source sources[64], *at[64];
    size_t n = 0;
    for (size_t i = 0; i < d->data.count; i++) {
        const struct source *s = &d->data.sources[i];
        uint64_t end = d->data.layout.base[i + 1];
        if (s->base >= span.end || end <= span.begin)
            continue;
        assert_true(n < 64);
        sources[n] = (Ebb__Source)EBB__SOURCE__INIT;
        sources[n].index = i;
        sources[n].path = s->path;
        sources[n].size_bytes = s->size_bytes;
        sources[n].mtime_ns = s->mtime_ns;
        sources[n].compression = s->compression;
        sources[n].position = s->base;
        sources[n].end = end;
        at[n] = &sources[n];
        n++;
    }
    Ebb__Span wire_span = EBB__SPAN__INIT;
    wire_span.begin = span.begin;
    wire_span.end = span.end;
    Ebb__Lease m = EBB__LEASE__INIT;
    m.job = job;
    m.epoch = epoch;
    m.span = &wire_span;
    m.probe = probe;
    m.n_sources = n;
    m.sources = at;
    say(d, EBB__ENVELOPE__BODY_LEASE, &m);
}

static void say_cut(struct daemon *d, uint64_t epoch, uint64_t at)
{
    Ebb__Cut m = EBB__CUT__INIT;
    m.epoch = epoch;
    m.at = at;
    say(d, EBB__ENVELOPE__BODY_CUT, &m);
}

static void say_drain(struct daemon *d, uint32_t grace_ms)
{
    Ebb__Drain m = EBB__DRAIN__INIT;
    m.grace_ms = grace_ms;
    say(d, EBB__ENVELOPE__BODY_DRAIN, &m);
}

/* Reads the part that a commit names, as the assembler would. */
static void take_commit(struct daemon *d, const Ebb__Commit *m)
{
    char path[300];
    struct buf part = {0};
    struct err e;
    d->last_epoch = m->epoch;
    d->last_seq = m->seq;
    if (m->n_done) {
        part_path(path, sizeof path, d->parts, m->job, m->epoch, m->seq);
        if (path_read(path, SIZE_MAX, &part, &e) != ST_OK)
            fail_msg("%s", e.text);
        assert_int_equal(part.len, m->part_bytes);
        assert_int_equal(m->part_digest.len, 16);
    }
    for (size_t i = 0; i < m->n_done; i++) {
        const Ebb__Extent *x = m->done[i];
        void *items = d->got;
        assert_int_equal(mem_grow(&items, &d->got_cap, d->got_count, sizeof *d->got), 0);
        d->got = items;
        struct got *g = &d->got[d->got_count++];
        g->x = (struct extent){
            .span = {x->span->begin, x->span->end},
            .epoch = m->epoch,
            .rows_bytes = x->rows_bytes,
            .records = x->records,
            .rows = x->rows,
            .errors = x->errors,
            .lines = x->lines,
            .bytes = x->bytes,
        };
        assert_true(x->rows_at + x->rows_bytes + x->aux_bytes + x->errors_bytes <= part.len);
        g->rows = strndup(part.len ? part.data + x->rows_at : "", x->rows_bytes);
        g->errors = strndup(part.len ? part.data + x->rows_at + x->rows_bytes + x->aux_bytes : "", x->errors_bytes);
    }
    for (size_t i = 0; i < m->n_returned; i++) {
        void *items = d->returned;
        assert_int_equal(mem_grow(&items, &d->returned_cap, d->returned_count, sizeof *d->returned), 0);
        d->returned = items;
        d->returned[d->returned_count++] = (struct span){m->returned[i]->span->begin, m->returned[i]->span->end};
    }
    buf_release(&part);
}

/* One message, at most; 1 when there was one. */
static int hear(struct daemon *d, int timeout_ms)
{
    struct err e;
    Ebb__Envelope *m;
    if (sock_wait(d->router, timeout_ms) != 1 || sock_receive(d->router, &d->peer, &m, &e) != ST_OK)
        return 0;
    assert_int_equal(d->peer.len, 8);
    if (d->other && d->other(d, m)) {
        wire_free(m);
        return 1;
    }
    switch (m->body_case) {
    case EBB__ENVELOPE__BODY_HELLO:
        d->hellos++;
        wire_free(d->hello);
        d->hello = m;
        say_welcome(d);
        return 1;
    case EBB__ENVELOPE__BODY_BEAT:
        d->beats++;
        wire_free(d->beat);
        d->beat = m;
        return 1;
    case EBB__ENVELOPE__BODY_MODEL_READY:
        assert_int_equal(m->model_ready->model_key, MODEL_KEY);
        assert_memory_equal(m->model_ready->digest.data, d->digest.bytes, 16);
        d->model_ready++;
        break;
    case EBB__ENVELOPE__BODY_MODEL_FAILED:
        d->job_faults++;
        snprintf(d->fault_text, sizeof d->fault_text, "%s", m->model_failed->text);
        break;
    case EBB__ENVELOPE__BODY_JOB_FAULT:
        d->job_faults++;
        snprintf(d->fault_text, sizeof d->fault_text, "%s", m->job_fault->text);
        break;
    case EBB__ENVELOPE__BODY_COMMIT:
        take_commit(d, m->commit);
        if (d->ack)
            say_ack(d, m->commit->epoch, m->commit->seq, 0);
        break;
    case EBB__ENVELOPE__BODY_CUT_ANSWER:
        d->cut_at = m->cut_answer->at;
        d->cut_answers++;
        break;
    case EBB__ENVELOPE__BODY_BYE:
        d->byes++;
        break;
    default:
        fail_msg("the worker sent a message of kind %d", (int)m->body_case);
    }
    wire_free(m);
    return 1;
}

/* Listens until cond holds; fails the test after WAIT_MS. */
#define HEAR_UNTIL(d, cond)                                                                                                      \
    do {                                                                                                                         \
        uint64_t until_ = clock_ms() + WAIT_MS;                                                                                  \
        while (!(cond)) {                                                                                                        \
            if (clock_ms() > until_)                                                                                             \
                fail_msg("waited in vain for %s", #cond);                                                                        \
            hear(d, 20);                                                                                                         \
        }                                                                                                                        \
    } while (0)

static uint64_t covered(const struct daemon *d)
{
    uint64_t n = 0;
    for (size_t i = 0; i < d->got_count; i++)
        n += d->got[i].x.span.end - d->got[i].x.span.begin;
    for (size_t i = 0; i < d->returned_count; i++)
        n += d->returned[i].end - d->returned[i].begin;
    return n;
}

static int by_begin(const void *a, const void *b)
{
    const struct got *x = a, *y = b;
    return x->x.span.begin < y->x.span.begin ? -1 : x->x.span.begin > y->x.span.begin;
}

/* Everything in [begin, end) was committed once; the rows in order. The caller frees. `errors`: likewise, as people would read their lines:
   "source:line code\n". */
static char *daemon_rows(struct daemon *d, struct span all, struct buf *errors)
{
    struct buf rows = {0};
    uint64_t at = all.begin, lines = 0; /* line ends before `at` in its source */
    qsort(d->got, d->got_count, sizeof *d->got, by_begin);
    for (size_t i = 0; i < d->got_count; i++) {
        const struct got *g = &d->got[i];
        assert_int_equal(g->x.span.begin, at);
        size_t first = layout_source(&d->data.layout, at), last = layout_source(&d->data.layout, g->x.span.end - 1);
        if (d->data.sources[first].base == at)
            lines = 0;
        at = g->x.span.end;
        assert_int_equal(g->x.records, g->x.rows + g->x.errors);
        assert_int_equal(buf_add(&rows, g->rows, g->x.rows_bytes), 0);
        for (const char *p = g->errors; *p;) {
            const char *end = strchr(p, '\n');
            json_t *j = json_loadb(p, (size_t)(end - p), 0, NULL);
            assert_non_null(j);
            size_t source = (size_t)json_integer_value(json_object_get(j, "source"));
            uint64_t line = (uint64_t)json_integer_value(json_object_get(j, "line"));
            if (d->data.sources[source].base < g->x.span.begin)
                line += lines;
            assert_int_equal(buf_printf(errors, "%zu:%" PRIu64 " %s\n", source, line + 1, json_string_value(json_object_get(j, "code"))), 0);
            json_decref(j);
            p = end + 1;
        }
        lines = g->x.lines + (d->data.sources[last].base < g->x.span.begin ? lines : 0);
    }
    assert_int_equal(at, all.end);
    const char *text = buf_cstr(&rows);
    return (char *)(uintptr_t)text;
}
