/* What tests of the daemon share: a real ebbd in a folder of its own, a client, and a scripted worker that speaks over real sockets. The
   worker's "model" gives back each line of the input as its row, so that the output must be the input, byte for byte. */
#ifndef EBB_TESTS_DAEMON_RIG_H
#define EBB_TESTS_DAEMON_RIG_H

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/path.h"
#include "storage/modeldir.h"
#include "storage/part.h"
#include "tests/lib/files.h"
#include "wire/sock.h"

struct rig {
    char dir[64], state[96], run[96], clients[128], workers[128], input[96], model[96];
    pid_t ebbd;
    void *zmq;
    struct sock *client;
    uint64_t next_id;
    char *text; /* of the input */
    size_t text_len;
};

#define PATIENCE_MS 120000 /* what has not come by then never comes, however slow the machine */

#define RIG_FAIL(...)                                                                                                            \
    do {                                                                                                                         \
        print_error(__VA_ARGS__);                                                                                                \
        print_error("\n");                                                                                                       \
        fail();                                                                                                                  \
    } while (0)

static inline void rig_start(struct rig *r, const char *fault, const char *const *more)
{
    char self[PATH_MAX], program[PATH_MAX + 32];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    /* build/tests/unit/daemon/x_test -> build/bin/ebbd */
    snprintf(program, sizeof program, "%s/../../../bin/ebbd", dirname(self));
    const char *args[16] = {program, "--state", r->state, "--runtime", r->run, "--workers", "0"};
    size_t k = 7;
    for (; more && *more && k < 15; more++)
        args[k++] = *more;
    args[k] = NULL;
    fflush(NULL);
    r->ebbd = fork();
    if (r->ebbd)
        return;
    char log[128];
    snprintf(log, sizeof log, "%s/ebbd.log", r->dir);
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(fd, 2);
    if (fault)
        setenv("EBB_FAULT", fault, 1);
    else
        unsetenv("EBB_FAULT");
    execv(program, (char *const *)args);
    _exit(127);
}

static inline void rig_open(struct rig *r, size_t lines)
{
    *r = (struct rig){.ebbd = -1};
    strcpy(r->dir, "/tmp/ebbd-test-XXXXXX");
    assert_non_null(mkdtemp(r->dir));
    snprintf(r->state, sizeof r->state, "%s/state", r->dir);
    snprintf(r->run, sizeof r->run, "%s/run", r->dir);
    snprintf(r->clients, sizeof r->clients, "ipc://%s/clients", r->run);
    snprintf(r->workers, sizeof r->workers, "ipc://%s/workers", r->run);
    snprintf(r->input, sizeof r->input, "%s/in.jsonl", r->dir);
    snprintf(r->model, sizeof r->model, "%s/model", r->dir);
    assert_int_equal(mkdir(r->model, 0700), 0);
    char config[128];
    snprintf(config, sizeof config, "%s/config.json", r->model);
    static const char bert[] = "{\"model_type\": \"bert\"}\n";
    files_put(config, bert, sizeof bert - 1);
    struct buf text = {0};
    for (size_t i = 0; i < lines; i++)
        assert_int_equal(buf_printf(&text, "{\"id\":%zu,\"text\":\"line %zu of the input\"}\n", i, i * 7919 % 1000), 0);
    files_put(r->input, text.data, text.len);
    r->text = text.data;
    r->text_len = text.len;
    r->zmq = zmq_ctx_new();
    struct err e;
    if (sock_dealer(r->zmq, r->clients, NULL, NULL, 0, &r->client, &e) != ST_OK)
        RIG_FAIL("%s", e.text);
}

static inline int rig_end(struct rig *r, int signal_number) /* exit status, or -signal */
{
    int status = 0;
    if (r->ebbd <= 0)
        return 0;
    if (signal_number)
        kill(r->ebbd, signal_number);
    waitpid(r->ebbd, &status, 0);
    r->ebbd = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static inline int rig_dead(struct rig *r) /* 1: it has died (and is reaped) */
{
    int status;
    if (r->ebbd <= 0 || waitpid(r->ebbd, &status, WNOHANG) != r->ebbd)
        return r->ebbd <= 0;
    r->ebbd = -1;
    return 1;
}

static inline void rig_close(struct rig *r)
{
    struct err e;
    rig_end(r, SIGKILL);
    sock_close(r->client);
    zmq_ctx_term(r->zmq);
    if (!getenv("EBB_TEST_KEEP"))
        assert_int_equal(path_remove_tree(r->dir, &e), ST_OK);
    free(r->text);
}

/* One request, its last reply. NULL: no answer in time. The caller frees; *code is the reply's. */
static inline json_t *rig_ask_for(struct rig *r, const char *verb, json_t *in, uint32_t *code, uint64_t timeout_ms)
{
    struct err e;
    char *text = in ? json_dumps(in, 0) : strdup("{}");
    json_decref(in);
    Ebb__Request q = EBB__REQUEST__INIT;
    q.id = ++r->next_id;
    q.verb = (char *)verb;
    q.json = text;
    q.version = WIRE_VERSION;
    if (sock_send(r->client, NULL, EBB__ENVELOPE__BODY_REQUEST, &q, &e) != ST_OK)
        RIG_FAIL("%s", e.text);
    free(text);
    json_t *out = NULL;
    for (uint64_t until = clock_ms() + timeout_ms; !out && clock_ms() < until;) {
        Ebb__Envelope *m;
        if (sock_wait(r->client, 20) <= 0 || sock_receive(r->client, NULL, &m, &e) != ST_OK)
            continue;
        if (m->body_case == EBB__ENVELOPE__BODY_REPLY && m->reply->id == r->next_id && !m->reply->more) {
            *code = m->reply->code;
            out = json_loads(m->reply->json, 0, NULL);
            assert_non_null(out);
        }
        wire_free(m);
    }
    return out;
}

static inline json_t *rig_ask(struct rig *r, const char *verb, json_t *in, uint32_t want_code)
{
    uint32_t code = 99;
    json_t *o = rig_ask_for(r, verb, in, &code, PATIENCE_MS);
    if (!o)
        RIG_FAIL("no answer to '%s'", verb);
    if (code != want_code) {
        char *text = json_dumps(o, 0);
        RIG_FAIL("'%s' gave code %u, not %u: %s", verb, code, want_code, text);
    }
    return o;
}

static inline json_t *rig_spec(struct rig *r, const char *output, json_t *more)
{
    json_t *spec = json_pack("{s:s, s:{s:[s], s:s}, s:{s:s}}", "model", r->model, "input", "glob", r->input, "field", "text", "output", "path", output);
    if (more)
        json_object_update_recursive(spec, more);
    json_decref(more);
    return json_pack("{s:o}", "spec", spec);
}

static inline uint64_t rig_number(json_t *o, const char *key) /* takes the object */
{
    json_t *n = json_object_get(o, key);
    uint64_t v = json_is_number(n) ? (uint64_t)json_number_value(n) : UINT64_MAX;
    json_decref(o);
    return v;
}

/* The worker ----------------------------------------------------------------------------------------------------------------------- */

struct hand { /* a lease in its hands */
    uint64_t job, epoch, seq;
    struct span span, chunk; /* chunk: that of commit `seq`, whose part is written */
    int open, sent, made;
    struct part_info part;
    struct extent extent;
};

struct rig_worker {
    struct rig *r;
    struct sock *s;
    uint64_t number, beat_ms, model_key;
    uint32_t generation;
    int welcomed, asked, refused, drained, said_bye;
    char parts_dir[PATH_MAX];
    uint8_t digest[16];
    struct hand hands[8];
    size_t chunk_bytes;
    uint64_t commits, acks, stale, leases, hellos;
    uint64_t sent_ms;
    const char *numerics; /* of what it loads; NULL: "test-f32" */
    const char *name, *stage_endpoint, *stage_key; /* NULL: "test-host/1", none */
    const char *host;        /* NULL: "test-host" */
    const char *at;          /* where it connects to, with these keys; NULL: the daemon's own socket, without */
    const struct keys *keys;
    int (*hears)(struct rig_worker *w, const Ebb__Envelope *m); /* before anything else; 1: that is all. NULL: not */
};

static inline void rig_send(struct rig_worker *w, Ebb__Envelope__BodyCase which, void *body)
{
    struct err e;
    if (sock_send(w->s, NULL, which, body, &e) != ST_OK)
        RIG_FAIL("%s", e.text);
}

static inline void rig_hello(struct rig_worker *w)
{
    Ebb__Hello h = EBB__HELLO__INIT;
    Ebb__Held held[8], *pointers[8];
    h.version_min = h.version_max = WIRE_VERSION;
    h.program = "scripted worker";
    h.worker = w->number;
    h.host = (char *)(uintptr_t)(w->host ? w->host : "test-host");
    h.pid = 0;
    h.lanes = 1;
    h.numerics = "test-f32";
    h.model_key = w->model_key;
    h.generation = w->generation;
    h.name = (char *)(uintptr_t)(w->name ? w->name : "test-host/1");
    h.stage_endpoint = (char *)(uintptr_t)(w->stage_endpoint ? w->stage_endpoint : "");
    h.stage_key = (char *)(uintptr_t)(w->stage_key ? w->stage_key : "");
    for (size_t i = 0; i < 8; i++)
        if (w->hands[i].open) {
            Ebb__Held x = EBB__HELD__INIT;
            x.job = w->hands[i].job;
            x.epoch = w->hands[i].epoch;
            x.next_seq = w->hands[i].seq;
            held[h.n_held] = x;
            pointers[h.n_held] = &held[h.n_held];
            h.n_held++;
            w->hands[i].sent = 0; /* what was not acknowledged goes out again */
        }
    h.held = pointers;
    w->hellos++;
    w->asked = 1;
    rig_send(w, EBB__ENVELOPE__BODY_HELLO, &h);
}

/* With what it is to say already in *w. */
static inline void rig_worker_begin(struct rig_worker *w, struct rig *r, uint64_t number)
{
    struct err e;
    w->r = r;
    w->number = number;
    w->chunk_bytes = 2000;
    if (sock_dealer(r->zmq, w->at ? w->at : r->workers, w->keys, &w->number, sizeof w->number, &w->s, &e) != ST_OK)
        RIG_FAIL("%s", e.text);
    rig_hello(w);
}

static inline void rig_worker_open(struct rig_worker *w, struct rig *r, uint64_t number)
{
    *w = (struct rig_worker){.r = NULL};
    rig_worker_begin(w, r, number);
}

static inline void rig_worker_close(struct rig_worker *w)
{
    sock_close(w->s);
}

/* The next rows of the lease in a part, whose commit is then due. */
static inline void rig_make_part(struct rig_worker *w, struct hand *h)
{
    struct err e;
    struct part *p;
    const char *text = w->r->text;
    size_t len = w->r->text_len;
    h->chunk.begin = h->seq ? h->chunk.end : h->span.begin;
    h->chunk.end = h->chunk.begin + w->chunk_bytes < h->span.end ? h->chunk.begin + w->chunk_bytes : h->span.end;
    assert_int_equal(part_new(&p, &e), ST_OK);
    assert_int_equal(part_begin(p, h->chunk.begin, &e), ST_OK);
    uint64_t at = h->chunk.begin, lines = 0;
    while (at > 0 && at < len && text[at - 1] != '\n')
        at++;
    for (; at < h->chunk.end; lines++) { /* a record belongs to the span that holds its first byte */
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = (size_t)(end - (text + at)) + 1;
        assert_int_equal(part_row(p, text + at, n, NULL, 0, &e), ST_OK);
        at += n;
    }
    for (lines = 0, at = h->chunk.begin; at < h->chunk.end; at++)
        lines += text[at] == '\n';
    assert_int_equal(part_end(p, h->chunk.end, lines, h->chunk.end - h->chunk.begin, &e), ST_OK);
    h->extent = part_extents(p)[0];
    h->made = 1;
    h->part = (struct part_info){0};
    if (part_write(p, w->parts_dir, h->job, h->epoch, h->seq, &h->part, &e) != ST_OK)
        RIG_FAIL("%s", e.text);
    part_free(p);
}

static inline void rig_commit(struct rig_worker *w, struct hand *h)
{
    Ebb__Commit c = EBB__COMMIT__INIT;
    Ebb__Extent x = EBB__EXTENT__INIT, *pointer = &x;
    Ebb__Span span = EBB__SPAN__INIT;
    span.begin = h->extent.span.begin;
    span.end = h->extent.span.end;
    x.span = &span;
    x.rows_at = h->extent.rows_at;
    x.rows_bytes = h->extent.rows_bytes;
    x.records = h->extent.records;
    x.rows = h->extent.rows;
    x.lines = h->extent.lines;
    x.bytes = h->extent.bytes;
    c.job = h->job;
    c.epoch = h->epoch;
    c.seq = h->seq;
    c.n_done = 1;
    c.done = &pointer;
    c.part_bytes = h->part.size_bytes;
    c.part_digest.data = h->part.digest;
    c.part_digest.len = sizeof h->part.digest;
    h->sent = 1;
    w->sent_ms = clock_ms();
    w->commits++;
    rig_send(w, EBB__ENVELOPE__BODY_COMMIT, &c);
}

static inline struct hand *rig_hand(struct rig_worker *w, uint64_t epoch)
{
    for (size_t i = 0; i < 8; i++)
        if (w->hands[i].open && w->hands[i].epoch == epoch)
            return &w->hands[i];
    return NULL;
}

static inline void rig_take(struct rig_worker *w, const Ebb__Envelope *m)
{
    struct hand *h;
    if (w->hears && w->hears(w, m))
        return;
    switch (m->body_case) {
    case EBB__ENVELOPE__BODY_WELCOME:
        w->generation = m->welcome->generation;
        if (!w->asked)
            rig_hello(w); /* it does not know us */
        else
            w->asked = 0;
        w->welcomed = 1;
        break;
    case EBB__ENVELOPE__BODY_JOB: {
        snprintf(w->parts_dir, sizeof w->parts_dir, "%s", m->job->parts_dir);
        w->model_key = m->job->model_key;
        assert_int_equal(m->job->model_digest.len, 16);
        memcpy(w->digest, m->job->model_digest.data, 16);
        Ebb__ModelReady ready = EBB__MODEL_READY__INIT;
        ready.model_key = w->model_key;
        ready.digest.data = w->digest;
        ready.digest.len = 16;
        ready.numerics = (char *)(uintptr_t)(w->numerics ? w->numerics : "test-f32");
        ready.load_ms = 1;
        ready.dims = 4;
        rig_send(w, EBB__ENVELOPE__BODY_MODEL_READY, &ready);
        break;
    }
    case EBB__ENVELOPE__BODY_LEASE:
        assert_true(m->lease->n_sources >= 1);
        assert_string_equal(m->lease->sources[0]->path, w->r->input);
        w->leases++;
        for (size_t i = 0; i < 8; i++)
            if (!w->hands[i].open) {
                w->hands[i] = (struct hand){.job = m->lease->job, .epoch = m->lease->epoch, .open = 1};
                w->hands[i].span = (struct span){m->lease->span->begin, m->lease->span->end};
                return;
            }
        RIG_FAIL("more than 8 leases");
    case EBB__ENVELOPE__BODY_ACK:
        w->acks++;
        if (m->ack->verdict == 1)
            w->stale++;
        if (!(h = rig_hand(w, m->ack->epoch)) || m->ack->seq != h->seq)
            break;
        if (m->ack->verdict == 1) {
            h->open = 0;
            break;
        }
        assert_int_equal(m->ack->verdict, 0);
        h->seq++;
        h->sent = h->made = 0;
        if (h->chunk.end == h->span.end)
            h->open = 0;
        break;
    case EBB__ENVELOPE__BODY_REVOKE:
        if ((h = rig_hand(w, m->revoke->epoch)))
            h->open = 0;
        break;
    case EBB__ENVELOPE__BODY_CUT: {
        Ebb__CutAnswer a = EBB__CUT_ANSWER__INIT;
        a.epoch = m->cut->epoch;
        h = rig_hand(w, a.epoch);
        a.at = h ? h->span.end : m->cut->at;
        rig_send(w, EBB__ENVELOPE__BODY_CUT_ANSWER, &a);
        break;
    }
    case EBB__ENVELOPE__BODY_DRAIN:
        w->drained = 1;
        break;
    case EBB__ENVELOPE__BODY_REFUSED:
        w->refused = 1;
        break;
    default:
        break;
    }
}

/* What has come, a heartbeat when it is due, and at most one commit for each lease. */
static inline void rig_worker_turn(struct rig_worker *w, int wait_ms, int commits)
{
    struct err e;
    Ebb__Envelope *m;
    sock_wait(w->s, wait_ms);
    while (sock_receive(w->s, NULL, &m, &e) == ST_OK) {
        rig_take(w, m);
        wire_free(m);
    }
    if (clock_ms() - w->beat_ms > 200) {
        Ebb__Beat b = EBB__BEAT__INIT;
        Ebb__Progress progress[8], *pointers[8];
        for (size_t i = 0; i < 8; i++)
            if (w->hands[i].open) {
                Ebb__Progress x = EBB__PROGRESS__INIT;
                x.epoch = w->hands[i].epoch;
                x.read_to = w->hands[i].seq ? w->hands[i].chunk.end : w->hands[i].span.begin;
                x.records_done = w->hands[i].seq;
                progress[b.n_leases] = x;
                pointers[b.n_leases] = &progress[b.n_leases];
                b.n_leases++;
            }
        b.leases = pointers;
        w->beat_ms = clock_ms();
        rig_send(w, EBB__ENVELOPE__BODY_BEAT, &b);
    }
    for (size_t i = 0; i < 8 && commits; i++) {
        struct hand *h = &w->hands[i];
        if (!h->open || h->sent)
            continue;
        if (!h->made)
            rig_make_part(w, h);
        rig_commit(w, h);
        break;
    }
}

#endif
