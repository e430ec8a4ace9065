/* Two ROUTER sockets in a libuv loop. ZMQ_FD is edge-triggered and only wakes: before the loop sleeps, an empty idle handle is started
   when a socket is readable; behind the sleep at most TURN messages of each are read.

   A worker's messages are handled in the order in which it sent them. A commit that names a part waits until a thread has looked at the
   part, and what comes behind it waits too; heartbeats do not. Every hello is answered by a Welcome; a Welcome that nobody asked for asks for
   a hello: so are those asked that are not known, and those that something did not reach. */
#include "daemon/link.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/path.h"
#include "daemon/api.h"
#include "daemon/job.h"
#include "daemon/local.h"
#include "daemon/words.h"
#include "storage/part.h"

#define TURN 64              /* messages of one socket before the loop goes round */
#define PART_WAIT_MS 5000    /* for a network file system to show a part */
#define MOST_HELD 65536
#define MOST_EXTENTS 65536
#define FORGET_MS 600000     /* a worker that has been silent for so long leaves the tables */

struct letter { /* a message that waits for its turn */
    struct letter *next;        /* of the same worker */
    struct letter *verify_next; /* of the same errand */
    struct worker *worker;
    Ebb__Envelope *m;
    int waiting;                /* for a thread to look at its part */
    struct job *job;            /* held meanwhile */
    enum status found;
    char *fault;
};

struct errand { /* of a thread: parts to look at */
    uv_work_t work;
    struct link *l;
    struct letter *letters;
    int patient; /* second look, with patience */
};

struct link {
    struct daemon *d;
    void *zmq;
    struct sock *workers, *clients;
    uv_poll_t poll[2];
    uv_idle_t idle;
    struct map by_number, by_peer;
    struct letter *verify_first, *verify_last;
    int errands, quick; /* under way; quick: the first looks, one errand at a time */
    uint64_t complaint_ms, complaints;
    struct {
        uint64_t peer, ms;
    } strangers[256]; /* lately asked for a hello: once a second is enough */
};

static uint64_t peer_key(const struct sock_peer *p)
{
    return XXH64(p->id, p->len, p->len);
}

static int same_peer(const struct sock_peer *a, const struct sock_peer *b)
{
    return a->len == b->len && memcmp(a->id, b->id, a->len) == 0;
}

/* Foreign bytes may come in floods: at most one line a second, with the number of those left out. */
static void complain(struct link *l, const char *fmt, ...) PRINTF(2, 3);
static void complain(struct link *l, const char *fmt, ...)
{
    uint64_t now = clock_ms();
    if (now - l->complaint_ms < 1000) {
        l->complaints++;
        return;
    }
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (l->complaints)
        log_warn("message dropped: %s (and %" PRIu64 " before it)", text, l->complaints);
    else
        log_warn("message dropped: %s", text);
    l->complaint_ms = now;
    l->complaints = 0;
}

static void no_memory(struct link *l)
{
    struct err e;
    err_nomem(&e, "a message");
    loop_fatal(l->d, &e);
}

/* Workers ------------------------------------------------------------------------------------------------------------------------- */

struct worker *link_worker(struct link *l, uint64_t number)
{
    return map_find(&l->by_number, number);
}

struct worker *link_next(struct link *l, size_t *i)
{
    return map_next(&l->by_number, i);
}

size_t link_count(struct link *l)
{
    return l->by_number.count;
}

static struct worker *worker_of(struct link *l, const struct sock_peer *peer)
{
    struct worker *w = map_find(&l->by_peer, peer_key(peer));
    return w && same_peer(&w->peer, peer) ? w : NULL;
}

static void letter_free(struct letter *x)
{
    wire_free(x->m);
    if (x->job)
        job_release(x->job);
    mem_free(x->fault);
    mem_free(x);
}

static void worker_free_if_done(struct worker *w)
{
    if (!w->ended || w->verifying)
        return;
    for (struct letter *x = w->first, *next; x; x = next) {
        next = x->next;
        letter_free(x);
    }
    mem_free(w->told);
    mem_free(w);
}

static void worker_leave(struct link *l, struct worker *w)
{
    if (map_find(&l->by_number, w->number) == w)
        map_remove(&l->by_number, w->number);
    if (map_find(&l->by_peer, peer_key(&w->peer)) == w)
        map_remove(&l->by_peer, peer_key(&w->peer));
    w->ended = 1;
}

void link_ended(struct link *l, uint64_t number, enum worker_end how, const struct sched_suspect *suspects, size_t count)
{
    struct sched_event ev = {.kind = SCHED_WORKER_ENDED, .worker = number};
    ev.u.ended.how = how;
    ev.u.ended.suspects = suspects;
    ev.u.ended.count = count;
    loop_tell(l->d, &ev);
    struct worker *w = link_worker(l, number);
    if (!w)
        return;
    worker_leave(l, w);
    worker_free_if_done(w);
}

/* Sending ------------------------------------------------------------------------------------------------------------------------- */

static int send_to(struct link *l, struct worker *w, Ebb__Envelope__BodyCase which, void *body)
{
    struct err e;
    enum status st = sock_send(l->workers, &w->peer, which, body, &e);
    if (st == ST_OK)
        return 1;
    if (st == ST_NOMEM)
        no_memory(l);
    if (!w->ask_hello) /* said once */
        log_warn("worker %s: could not be reached: %s", w->name, e.text);
    w->ask_hello = 1;
    return 0;
}

static struct worker *reachable(struct link *l, uint64_t number)
{
    struct worker *w = link_worker(l, number);
    if (!w)
        log_debug("worker %" PRIx64 ": is gone, nothing is sent", number);
    return w;
}

static void send_welcome(struct link *l, const struct sock_peer *peer)
{
    Ebb__Welcome m = EBB__WELCOME__INIT;
    struct err e;
    m.version = WIRE_VERSION;
    m.generation = l->d->generation;
    m.beat_ms = sched_config_default.beat_ms;
    m.program = "ebbd " EBBD_VERSION;
    if (sock_send(l->workers, peer, EBB__ENVELOPE__BODY_WELCOME, &m, &e) != ST_OK)
        log_debug("a welcome could not be sent: %s", e.text);
}

static void ask_hello(struct link *l, struct worker *w)
{
    uint64_t now = clock_ms();
    if (w->welcome_ms && now - w->welcome_ms < 1000)
        return;
    w->welcome_ms = now;
    send_welcome(l, &w->peer);
}

/* An earlier daemon knew it: it shall say hello to this one. */
static void ask_stranger(struct link *l, const struct sock_peer *peer)
{
    uint64_t key = peer_key(peer), now = clock_ms();
    size_t i = key % (sizeof l->strangers / sizeof *l->strangers);
    if (l->strangers[i].peer == key && now - l->strangers[i].ms < 1000)
        return;
    l->strangers[i].peer = key;
    l->strangers[i].ms = now;
    send_welcome(l, peer);
}

static void send_refused(struct link *l, const struct sock_peer *peer, const char *text)
{
    Ebb__Refused m = EBB__REFUSED__INIT;
    struct err e;
    m.text = (char *)text;
    log_warn("a worker was refused: %s", text);
    if (sock_send(l->workers, peer, EBB__ENVELOPE__BODY_REFUSED, &m, &e) != ST_OK)
        log_debug("a refusal could not be sent: %s", e.text);
}

/* 1 when the worker knows the job now. */
static int tell_job(struct link *l, struct worker *w, const struct job *j)
{
    for (size_t i = 0; i < w->told_count; i++)
        if (w->told[i] == j->id)
            return 1;
    if (mem_grow((void **)&w->told, &w->told_cap, w->told_count, sizeof *w->told))
        no_memory(l);
    Ebb__Job m = EBB__JOB__INIT;
    m.job = j->id;
    m.spec = j->spec_json;
    m.model_key = j->model_key;
    m.model_digest.data = (uint8_t *)j->model.bytes;
    m.model_digest.len = sizeof j->model.bytes;
    m.parts_dir = j->parts_dir;
    m.format = (uint32_t)j->format;
    if (!send_to(l, w, EBB__ENVELOPE__BODY_JOB, &m))
        return 0;
    w->told[w->told_count++] = j->id;
    return 1;
}

void link_send_lease(struct link *l, uint64_t worker, uint64_t job, uint64_t epoch, struct span span, int probe)
{
    struct worker *w = reachable(l, worker);
    struct job *j = job_find(l->d, job);
    if (!w || !j || w->ask_hello || !tell_job(l, w, j))
        return;
    const struct dataset *d = &j->dataset;
    size_t first = layout_source(&d->layout, span.begin), n = 0;
    size_t last = layout_source(&d->layout, span.end - 1);
    BUG_IF(!j->has_sources || first >= d->count || last >= d->count, "lease %" PRIx64 " of job %" PRIu64 " lies outside of its dataset", epoch, job);
    Ebb__Source *sources = mem_array(last - first + 1, sizeof *sources);
    Ebb__Source **pointers = mem_array(last - first + 1, sizeof *pointers);
    if (!sources || !pointers)
        no_memory(l);
    for (size_t i = first; i <= last; i++) {
        uint64_t base = d->layout.base[i], end = d->layout.base[i + 1];
        if (end == base)
            continue; /* holds nothing */
        Ebb__Source *s = &sources[n];
        ebb__source__init(s);
        s->index = i;
        s->path = d->sources[i].path;
        s->size_bytes = d->sources[i].size_bytes;
        s->mtime_ns = d->sources[i].mtime_ns;
        s->compression = (uint32_t)d->sources[i].compression;
        s->position = base;
        s->end = end;
        pointers[n] = s;
        n++;
    }
    Ebb__Span where = EBB__SPAN__INIT;
    where.begin = span.begin;
    where.end = span.end;
    Ebb__Lease m = EBB__LEASE__INIT;
    m.job = job;
    m.epoch = epoch;
    m.span = &where;
    m.probe = probe;
    m.n_sources = n;
    m.sources = pointers;
    send_to(l, w, EBB__ENVELOPE__BODY_LEASE, &m);
    mem_free(pointers);
    mem_free(sources);
}

void link_send_cut(struct link *l, uint64_t worker, uint64_t epoch, uint64_t at)
{
    struct worker *w = reachable(l, worker);
    Ebb__Cut m = EBB__CUT__INIT;
    m.epoch = epoch;
    m.at = at;
    if (w)
        send_to(l, w, EBB__ENVELOPE__BODY_CUT, &m);
}

void link_send_revoke(struct link *l, uint64_t worker, uint64_t epoch)
{
    struct worker *w = reachable(l, worker);
    Ebb__Revoke m = EBB__REVOKE__INIT;
    m.epoch = epoch;
    if (w)
        send_to(l, w, EBB__ENVELOPE__BODY_REVOKE, &m);
}

void link_send_ack(struct link *l, uint64_t worker, uint64_t epoch, uint64_t seq, enum ack_verdict verdict)
{
    struct worker *w = reachable(l, worker);
    Ebb__Ack m = EBB__ACK__INIT;
    m.epoch = epoch;
    m.seq = seq;
    m.verdict = (uint32_t)verdict;
    if (w)
        send_to(l, w, EBB__ENVELOPE__BODY_ACK, &m);
}

void link_send_drain(struct link *l, uint64_t worker)
{
    struct worker *w = reachable(l, worker);
    Ebb__Drain m = EBB__DRAIN__INIT;
    m.grace_ms = LOOP_GRACE_MS;
    if (w)
        send_to(l, w, EBB__ENVELOPE__BODY_DRAIN, &m);
}

void link_forget_job(struct link *l, uint64_t job)
{
    size_t i = 0;
    for (struct worker *w; (w = link_next(l, &i));)
        for (size_t k = 0; k < w->told_count; k++)
            if (w->told[k] == job) {
                w->told[k] = w->told[--w->told_count];
                Ebb__ForgetJob m = EBB__FORGET_JOB__INIT;
                m.job = job;
                send_to(l, w, EBB__ENVELOPE__BODY_FORGET_JOB, &m);
                break;
            }
}

int link_send_reply(struct link *l, const struct sock_peer *client, uint64_t id, enum status code, const char *json, int more)
{
    Ebb__Reply m = EBB__REPLY__INIT;
    struct err e;
    m.id = id;
    m.code = (uint32_t)code;
    m.json = (char *)(json ? json : "{}");
    m.more = more;
    enum status st = sock_send(l->clients, client, EBB__ENVELOPE__BODY_REPLY, &m, &e);
    if (st == ST_USER) { /* longer than a message may be */
        m.code = ST_USER;
        m.json = "{\"error\": \"the answer is too long for one message: ask for less\"}";
        st = sock_send(l->clients, client, EBB__ENVELOPE__BODY_REPLY, &m, &e);
    }
    if (st != ST_OK)
        log_debug("a client did not get its answer: %s", e.text);
    return st == ST_OK;
}

/* What workers say -------------------------------------------------------------------------------------------------------------- */

static void take_text(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%s", from ? from : "");
    words_tidy(to);
}

static void on_hello(struct link *l, struct worker *w, const Ebb__Hello *h)
{
    struct daemon *d = l->d;
    struct sched_held *held = mem_array(h->n_held, sizeof *held);
    if (!held)
        no_memory(l);
    for (size_t i = 0; i < h->n_held; i++)
        held[i] = (struct sched_held){h->held[i]->job, h->held[i]->epoch, h->held[i]->next_seq};
    int again = w->joined;
    take_text(w->name, sizeof w->name, h->name);
    take_text(w->host, sizeof w->host, h->host);
    take_text(w->program, sizeof w->program, h->program);
    take_text(w->numerics, sizeof w->numerics, h->numerics);
    w->pid = h->pid;
    w->lanes = h->lanes;
    w->memory_bytes = h->memory_bytes;
    w->model_key = h->model_key;
    w->ask_hello = 0;
    w->told_count = 0; /* it may be another process by the same number */
    if (!w->since_ms)
        w->since_ms = clock_ms();
    send_welcome(l, &w->peer);
    struct sched_event ev = {.kind = SCHED_WORKER_JOINED, .worker = w->number};
    ev.u.joined.host = XXH64(w->host, strlen(w->host), 0) | 1;
    ev.u.joined.memory_bytes = h->memory_bytes;
    ev.u.joined.lanes = h->lanes;
    ev.u.joined.numerics = *w->numerics ? XXH32(w->numerics, strlen(w->numerics), 0) : 0;
    ev.u.joined.model_key = h->model_key;
    ev.u.joined.held = held;
    ev.u.joined.held_count = h->n_held;
    w->joined = 1;
    log_info("worker %s: %s from %s (pid %u), %u lanes, holds %zu leases", w->name, again ? "hello again" : "joined", w->host, w->pid, w->lanes,
             h->n_held);
    loop_tell(d, &ev);
    local_hello(d->local, w);
    mem_free(held);
}

static void on_model_ready(struct link *l, struct worker *w, const Ebb__ModelReady *m)
{
    struct daemon *d = l->d;
    struct sched_event ev = {.kind = SCHED_MODEL_READY, .worker = w->number};
    ev.u.model.model_key = m->model_key;
    ev.u.model.load_ms = m->load_ms;
    size_t i = 0;
    char text[400];
    for (struct job *j; (j = map_next(&d->jobs->by_id, &i));)
        if (j->model_key == m->model_key &&
            (m->digest.len != sizeof j->model.bytes || memcmp(m->digest.data, j->model.bytes, sizeof j->model.bytes))) {
            snprintf(text, sizeof text, "'%s' is not the model that was submitted: worker %s reads other bytes", j->spec.model, w->name);
            ev.kind = SCHED_MODEL_FAILED;
            ev.u.model.text = text;
        }
    if (ev.kind == SCHED_MODEL_READY) {
        w->model_key = m->model_key;
        w->dims = m->dims;
        if (m->numerics && *m->numerics)
            take_text(w->numerics, sizeof w->numerics, m->numerics);
        job_model_ready(d, m->model_key, m->dims, w->numerics);
        log_info("worker %s: model %" PRIx64 " ready after %" PRIu64 " ms, %u floats a row", w->name, m->model_key, m->load_ms, m->dims);
    }
    loop_tell(d, &ev);
}

static void on_model_failed(struct link *l, struct worker *w, const Ebb__ModelFailed *m)
{
    char text[400];
    take_text(text, sizeof text, m->text);
    log_warn("worker %s: model %" PRIx64 " failed: %s", w->name, m->model_key, text);
    struct sched_event ev = {.kind = SCHED_MODEL_FAILED, .worker = w->number, .job = m->job};
    ev.u.model.model_key = m->model_key;
    ev.u.model.text = text;
    loop_tell(l->d, &ev);
}

static void on_job_fault(struct link *l, struct worker *w, const Ebb__JobFault *m)
{
    char text[240];
    take_text(text, sizeof text, m->text);
    log_warn("worker %s: job %" PRIu64 " cannot go on: %s", w->name, m->job, text);
    struct sched_job_view v;
    if (!l->d->core || !sched_job_view(l->d->core, m->job, &v) || v.row->state == JOB_HELD)
        return; /* another worker has said so */
    struct sched_event ev = {.kind = SCHED_JOB_CONTROL, .job = m->job};
    ev.u.control.verb = VERB_HOLD;
    ev.u.control.text = text;
    ev.u.control.wall_ms = clock_wall_ms();
    loop_tell(l->d, &ev);
}

static void on_beat(struct link *l, struct worker *w, const Ebb__Beat *b)
{
    struct sched_progress *p = mem_array(b->n_leases, sizeof *p);
    if (!p)
        no_memory(l);
    for (size_t i = 0; i < b->n_leases; i++)
        p[i] = (struct sched_progress){b->leases[i]->epoch, b->leases[i]->read_to, b->leases[i]->records_done, b->leases[i]->bytes_done};
    w->rss_bytes = b->rss_bytes;
    w->records_done = b->records_done;
    struct sched_event ev = {.kind = SCHED_WORKER_BEAT, .worker = w->number};
    ev.u.beat.leases = p;
    ev.u.beat.count = b->n_leases;
    loop_tell(l->d, &ev);
    mem_free(p);
}

/* The sections of a part lie inside of it, and one without a part has none. */
static const char *commit_fault(const Ebb__Commit *c)
{
    for (size_t i = 0; i < c->n_done; i++) {
        const Ebb__Extent *x = c->done[i];
        uint64_t end = x->rows_at;
        if (__builtin_add_overflow(end, x->rows_bytes, &end) || __builtin_add_overflow(end, x->aux_bytes, &end) ||
            __builtin_add_overflow(end, x->errors_bytes, &end) || (x->rows_bytes + x->aux_bytes + x->errors_bytes && end > c->part_bytes))
            return "an extent lies outside of its part";
        if (!c->part_bytes && (x->rows || x->errors))
            return "rows without a part";
    }
    return NULL;
}

static void on_commit(struct link *l, struct worker *w, const struct letter *x)
{
    const Ebb__Commit *c = x->m->commit;
    struct extent *done = mem_array(c->n_done, sizeof *done);
    struct sched_returned *returned = mem_array(c->n_returned, sizeof *returned);
    if (!done || !returned)
        no_memory(l);
    for (size_t i = 0; i < c->n_done; i++) {
        const Ebb__Extent *from = c->done[i];
        struct extent *to = &done[i];
        to->span = (struct span){from->span->begin, from->span->end};
        to->part_extents = (uint32_t)c->n_done;
        to->rows_at = from->rows_at;
        to->rows_bytes = from->rows_bytes;
        to->aux_bytes = from->aux_bytes;
        to->errors_bytes = from->errors_bytes;
        to->records = from->records;
        to->rows = from->rows;
        to->errors = from->errors;
        to->lines = from->lines;
        to->bytes = from->bytes;
    }
    for (size_t i = 0; i < c->n_returned; i++)
        returned[i] = (struct sched_returned){{c->returned[i]->span->begin, c->returned[i]->span->end}, c->returned[i]->transient != 0};
    struct sched_event ev = {.kind = SCHED_COMMIT, .job = c->job, .worker = w->number, .epoch = c->epoch};
    ev.u.commit.seq = c->seq;
    ev.u.commit.done = done;
    ev.u.commit.done_count = c->n_done;
    ev.u.commit.returned = returned;
    ev.u.commit.returned_count = c->n_returned;
    ev.u.commit.part_fault = x->fault ? x->fault : commit_fault(c);
    ev.u.commit.wall_ms = clock_wall_ms();
    if (ev.u.commit.part_fault)
        log_warn("worker %s: commit %" PRIx64 "-%" PRIu64 " of job %" PRIu64 " is refused: %s", w->name, c->epoch, c->seq, c->job, ev.u.commit.part_fault);
    loop_tell(l->d, &ev);
    mem_free(returned);
    mem_free(done);
}

static void handle(struct link *l, struct worker *w, const struct letter *x)
{
    const Ebb__Envelope *m = x->m;
    struct sched_event ev = {.worker = w->number};
    if (!l->d->core)
        return; /* it will say hello again, and what was not acknowledged comes again */
    switch (m->body_case) {
    case EBB__ENVELOPE__BODY_HELLO:
        on_hello(l, w, m->hello);
        return;
    case EBB__ENVELOPE__BODY_COMMIT:
        on_commit(l, w, x);
        return;
    case EBB__ENVELOPE__BODY_CUT_ANSWER:
        ev.kind = SCHED_CUT_ANSWERED;
        ev.epoch = m->cut_answer->epoch;
        ev.u.cut.at = m->cut_answer->at;
        loop_tell(l->d, &ev);
        return;
    case EBB__ENVELOPE__BODY_MODEL_READY:
        on_model_ready(l, w, m->model_ready);
        return;
    case EBB__ENVELOPE__BODY_MODEL_FAILED:
        on_model_failed(l, w, m->model_failed);
        return;
    case EBB__ENVELOPE__BODY_JOB_FAULT:
        on_job_fault(l, w, m->job_fault);
        return;
    case EBB__ENVELOPE__BODY_BYE: {
        char reason[160];
        take_text(reason, sizeof reason, m->bye->reason);
        log_info("worker %s: goodbye%s%s", w->name, *reason ? ": " : "", reason);
        local_bye(l->d->local, w->number);
        link_ended(l, w->number, WORKER_DRAINED, NULL, 0);
        return;
    }
    default:
        BUG("a message of kind %d was let in", (int)m->body_case);
    }
}

/* Messages whose turn has come. The worker may be gone behind this. */
static void pump(struct link *l, struct worker *w)
{
    while (w->first && !w->first->waiting && !w->ended) {
        struct letter *x = w->first;
        w->first = x->next;
        if (!w->first)
            w->last = NULL;
        w->verifying++; /* it must not be freed meanwhile */
        handle(l, w, x);
        w->verifying--;
        letter_free(x);
    }
    worker_free_if_done(w);
}

/* Looking at parts ---------------------------------------------------------------------------------------------------------------- */

static void run_errand(uv_work_t *work)
{
    struct errand *t = work->data;
    for (struct letter *x = t->letters; x; x = x->verify_next) {
        const Ebb__Commit *c = x->m->commit;
        struct err e = {0};
        x->found = part_verify(x->job->parts_dir, c->job, c->epoch, c->seq, c->part_bytes, t->patient ? PART_WAIT_MS : 0, &e);
        if (x->found != ST_OK && !(x->fault = mem_strdup(e.text)))
            x->found = ST_NOMEM;
    }
}

static void start_errand(struct link *l, struct letter *letters, int patient);

static void errand_done(uv_work_t *work, int status)
{
    (void)status;
    struct errand *t = work->data;
    struct link *l = t->l;
    l->errands--;
    if (!t->patient)
        l->quick = 0;
    for (struct letter *x = t->letters, *next; x; x = next) {
        next = x->verify_next;
        x->verify_next = NULL;
        if (x->found == ST_NOMEM)
            no_memory(l);
        if (x->found != ST_OK && !t->patient) {
            mem_free(x->fault);
            x->fault = NULL;
            start_errand(l, x, 1);
            continue;
        }
        struct worker *w = x->worker;
        x->waiting = 0;
        w->verifying--;
        pump(l, w);
    }
    mem_free(t);
}

static void start_errand(struct link *l, struct letter *letters, int patient)
{
    struct errand *t = mem_zalloc(sizeof *t);
    if (!t)
        no_memory(l);
    t->work.data = t;
    t->l = l;
    t->letters = letters;
    t->patient = patient;
    l->errands++;
    uv_queue_work(&l->d->uv, &t->work, run_errand, errand_done);
}

static void errands(struct link *l)
{
    if (l->quick || !l->verify_first)
        return;
    struct letter *letters = l->verify_first;
    l->verify_first = l->verify_last = NULL;
    l->quick = 1;
    start_errand(l, letters, 0);
}

/* Coming in ----------------------------------------------------------------------------------------------------------------------- */

/* Takes m. */
static void queue(struct link *l, struct worker *w, Ebb__Envelope *m)
{
    struct letter *x = mem_zalloc(sizeof *x);
    if (!x)
        no_memory(l);
    x->worker = w;
    x->m = m;
    if (w->last)
        w->last->next = x;
    else
        w->first = x;
    w->last = x;
    struct job *j = m->body_case == EBB__ENVELOPE__BODY_COMMIT && m->commit->n_done ? job_find(l->d, m->commit->job) : NULL;
    if (j) {
        x->job = job_hold(j);
        x->waiting = 1;
        w->verifying++;
        if (l->verify_last)
            l->verify_last->verify_next = x;
        else
            l->verify_first = x;
        l->verify_last = x;
    }
    pump(l, w);
}

/* A message may be well formed and yet not make sense; protobuf leaves members out. */
static const char *senseless(const Ebb__Envelope *m)
{
    const Ebb__Commit *c = m->commit;
    switch (m->body_case) {
    case EBB__ENVELOPE__BODY_HELLO:
        if (!m->hello->worker || !m->hello->lanes || m->hello->lanes > 65536 || !m->hello->host || !*m->hello->host)
            return "a hello without worker, host or lanes";
        return m->hello->n_held > MOST_HELD ? "a hello with too many leases" : NULL;
    case EBB__ENVELOPE__BODY_BEAT:
        return m->beat->n_leases > MOST_HELD ? "a heartbeat with too many leases" : NULL;
    case EBB__ENVELOPE__BODY_COMMIT:
        if (c->n_done > MOST_EXTENTS || c->n_returned > MOST_EXTENTS)
            return "a commit of too many spans";
        for (size_t i = 0; i < c->n_done; i++)
            if (!c->done[i]->span || c->done[i]->span->begin >= c->done[i]->span->end)
                return "a commit with an empty span";
        for (size_t i = 0; i < c->n_returned; i++)
            if (!c->returned[i]->span || c->returned[i]->span->begin >= c->returned[i]->span->end)
                return "a commit with an empty span";
        return NULL;
    case EBB__ENVELOPE__BODY_CUT_ANSWER:
    case EBB__ENVELOPE__BODY_MODEL_READY:
    case EBB__ENVELOPE__BODY_MODEL_FAILED:
    case EBB__ENVELOPE__BODY_JOB_FAULT:
    case EBB__ENVELOPE__BODY_BYE:
        return NULL;
    default:
        return "a message that no worker sends";
    }
}

/* The worker that says hello, known from now on; NULL when it is refused. */
static struct worker *meet(struct link *l, const struct sock_peer *peer, const Ebb__Hello *h)
{
    char text[300];
    if (h->version_min > WIRE_VERSION || h->version_max < WIRE_VERSION_MIN) {
        snprintf(text, sizeof text, "worker '%.60s' speaks versions %u to %u of the protocol, this ebbd %u to %u: install the same version of both",
                 h->name ? h->name : "", h->version_min, h->version_max, WIRE_VERSION_MIN, WIRE_VERSION);
        send_refused(l, peer, text);
        return NULL;
    }
    if (h->generation > l->d->generation) {
        snprintf(text, sizeof text, "worker '%.60s' has served generation %u of this pool, this ebbd is generation %u: an older state was brought back, or another "
                                    "ebbd serves here",
                 h->name ? h->name : "", h->generation, l->d->generation);
        send_refused(l, peer, text);
        return NULL;
    }
    struct worker *w = worker_of(l, peer), *other = link_worker(l, h->worker);
    if (w && w->number != h->worker) { /* a new process behind an old name */
        link_ended(l, w->number, WORKER_LOST, NULL, 0);
        w = NULL;
    }
    if (!w && other) { /* it has reconnected under another name */
        if (map_find(&l->by_peer, peer_key(&other->peer)) == other)
            map_remove(&l->by_peer, peer_key(&other->peer));
        other->peer = *peer;
        if (map_add(&l->by_peer, peer_key(peer), other))
            no_memory(l);
        w = other;
    }
    if (w)
        return w;
    w = mem_zalloc(sizeof *w);
    if (!w)
        no_memory(l);
    w->number = h->worker;
    w->peer = *peer;
    if (map_add(&l->by_number, w->number, w) || map_add(&l->by_peer, peer_key(peer), w))
        no_memory(l);
    return w;
}

/* Takes m. */
static void from_worker(struct link *l, const struct sock_peer *peer, Ebb__Envelope *m)
{
    const char *why = senseless(m);
    struct worker *w = worker_of(l, peer);
    if (why) {
        complain(l, "worker '%s': %s", w ? w->name : "?", why);
    } else if (m->body_case == EBB__ENVELOPE__BODY_HELLO) {
        w = meet(l, peer, m->hello);
        if (w) {
            w->seen_ms = clock_ms();
            queue(l, w, m);
            return;
        }
    } else if (!w || !w->joined) {
        if (w)
            ask_hello(l, w);
        else
            ask_stranger(l, peer);
    } else {
        w->seen_ms = clock_ms();
        if (w->ask_hello)
            ask_hello(l, w);
        if (m->body_case != EBB__ENVELOPE__BODY_BEAT) {
            queue(l, w, m);
            return;
        }
        on_beat(l, w, m->beat);
    }
    wire_free(m);
}

static void from_client(struct link *l, const struct sock_peer *peer, Ebb__Envelope *m)
{
    l->d->client_ms = clock_ms();
    if (m->body_case != EBB__ENVELOPE__BODY_REQUEST) {
        complain(l, "a client sent what no client sends");
    } else if (m->request->version < WIRE_VERSION_MIN || m->request->version > WIRE_VERSION) {
        char text[200];
        snprintf(text, sizeof text, "{\"error\": \"the client speaks version %u of the protocol, this ebbd %u to %u: install the same version of both\"}",
                 m->request->version, WIRE_VERSION_MIN, WIRE_VERSION);
        link_send_reply(l, peer, m->request->id, ST_USER, text, 0);
    } else {
        api_request(l->d, peer, m->request->id, m->request->verb ? m->request->verb : "", m->request->json ? m->request->json : "");
    }
    wire_free(m);
}

static void drain(struct link *l, struct sock *s)
{
    for (int i = 0; i < TURN && l->d->core; i++) {
        struct sock_peer peer = {0};
        Ebb__Envelope *m = NULL;
        struct err e;
        enum status st = sock_receive(s, &peer, &m, &e);
        if (st == ST_AGAIN)
            return;
        if (st == ST_NOMEM)
            no_memory(l);
        if (st != ST_OK)
            complain(l, "%s", e.text);
        else if (!peer.len) {
            complain(l, "a peer whose name is too long");
            wire_free(m);
        } else
            (s == l->workers ? from_worker : from_client)(l, &peer, m);
    }
}

static void on_idle(uv_idle_t *h)
{
    (void)h;
}

static void on_poll(uv_poll_t *h, int status, int events)
{
    (void)h;
    (void)status;
    (void)events;
}

void link_prepare(struct link *l)
{
    if (l->d->core && (sock_readable(l->workers) || sock_readable(l->clients)))
        uv_idle_start(&l->idle, on_idle);
}

void link_turn(struct link *l)
{
    uv_idle_stop(&l->idle);
    drain(l, l->clients);
    drain(l, l->workers);
    errands(l);
}

void link_second(struct link *l)
{
    uint64_t now = clock_ms();
    size_t i = 0;
    for (struct worker *w; (w = link_next(l, &i));)
        if (now - w->seen_ms > FORGET_MS) {
            log_info("worker %s: silent for %u min, forgotten", w->name, FORGET_MS / 60000);
            link_ended(l, w->number, WORKER_LOST, NULL, 0);
            return; /* the table has changed; the others' turn comes in a second */
        }
}

void link_rejoin(struct link *l)
{
    size_t i = 0;
    for (struct worker *w; (w = link_next(l, &i));) {
        w->joined = 0;
        w->told_count = 0;
        w->welcome_ms = 0;
        ask_hello(l, w);
    }
}

/* Opening and closing ------------------------------------------------------------------------------------------------------------- */

enum status link_open(struct daemon *d, struct err *e)
{
    struct link *l = mem_zalloc(sizeof *l);
    if (!l)
        return err_nomem(e, "the sockets");
    l->d = d;
    enum status st = ST_ENV;
    if (!(l->zmq = zmq_ctx_new())) {
        err_set(e, st, "cannot start ZeroMQ: %s", zmq_strerror(zmq_errno()));
        goto out;
    }
    zmq_ctx_set(l->zmq, ZMQ_MAX_SOCKETS, 65535);
    st = sock_router(l->zmq, d->workers_endpoint, &l->workers, e);
    if (st == ST_OK)
        st = sock_router(l->zmq, d->clients_endpoint, &l->clients, e);
    if (st != ST_OK)
        goto out;
    struct sock *socks[] = {l->workers, l->clients};
    for (int i = 0; i < 2; i++) {
        uv_poll_init(&d->uv, &l->poll[i], sock_fd(socks[i]));
        uv_poll_start(&l->poll[i], UV_READABLE, on_poll);
    }
    uv_idle_init(&d->uv, &l->idle);
    d->link = l;
    return ST_OK;
out:
    sock_close(l->workers);
    if (l->zmq)
        zmq_ctx_term(l->zmq);
    mem_free(l);
    return st;
}

static void on_closed(uv_handle_t *h)
{
    if (h->data)
        mem_free(h->data);
}

void link_close(struct daemon *d)
{
    struct link *l = d->link;
    if (!l)
        return;
    BUG_IF(l->errands, "the sockets are closed while parts are looked at");
    size_t i = 0;
    for (struct worker *w; (w = link_next(l, &i));) {
        w->ended = 1;
        w->verifying = 0;
        worker_free_if_done(w);
    }
    map_release(&l->by_number);
    map_release(&l->by_peer);
    uv_close((uv_handle_t *)&l->poll[0], NULL);
    uv_close((uv_handle_t *)&l->poll[1], NULL);
    sock_close(l->workers);
    sock_close(l->clients);
    zmq_ctx_term(l->zmq);
    l->idle.data = l;
    uv_close((uv_handle_t *)&l->idle, on_closed); /* the last of its handles */
    d->link = NULL;
}
