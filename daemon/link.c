/* Two ROUTER sockets in a libuv loop. ZMQ_FD is edge-triggered and only wakes: before the loop sleeps, an empty idle handle is started
   when a socket is readable; behind the sleep at most TURN messages of each are read. */
#include "daemon/link_inside.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/mem.h"
#include "daemon/agents.h"
#include "daemon/api.h"
#include "daemon/auth.h"
#include "daemon/metrics.h"
#include "daemon/relay.h"

#define TURN 64              /* messages of one socket before the loop goes round */
#define MOST_HELD 65536
#define MOST_EXTENTS 65536
#define FORGET_MS 600000     /* a worker that has been silent for so long leaves the tables */

uint64_t link_peer_key(const struct sock_peer *p)
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

noreturn void link_no_memory(struct link *l)
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

#define DIGITS_LEAST 6 /* fewer are no worker's number but a word or a count */

char *link_name_workers(struct link *l, const char *text, char *out, size_t size)
{
    static const char letters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    size_t at = 0;
    out[0] = 0;
    while (*text && at + 1 < size) {
        size_t digits = strspn(text, "0123456789abcdef"), word = strspn(text, letters);
        const struct worker *w = digits == word && digits >= DIGITS_LEAST && digits <= 16 ? link_worker(l, strtoull(text, NULL, 16)) : NULL;
        size_t n = word ? word : 1;
        int wrote = w ? snprintf(out + at, size - at, "%s", w->name) : snprintf(out + at, size - at, "%.*s", (int)n, text);
        at += (size_t)wrote;
        text += n;
    }
    return out;
}

static struct worker *worker_of(struct link *l, const struct sock_peer *peer)
{
    struct worker *w = map_find(&l->by_peer, link_peer_key(peer));
    return w && same_peer(&w->peer, peer) && w->peer.user == peer->user ? w : NULL;
}

void link_letter_free(struct letter *x)
{
    wire_free(x->m);
    if (x->job)
        job_release(x->job);
    mem_free(x->fault);
    mem_free(x);
}

void link_free_if_done(struct worker *w)
{
    if (!w->ended || w->verifying)
        return;
    for (struct letter *x = w->first, *next; x; x = next) {
        next = x->next;
        link_letter_free(x);
    }
    mem_free(w->told);
    mem_free(w);
}

static void worker_leave(struct link *l, struct worker *w)
{
    if (map_find(&l->by_number, w->number) == w)
        map_remove(&l->by_number, w->number);
    if (map_find(&l->by_peer, link_peer_key(&w->peer)) == w)
        map_remove(&l->by_peer, link_peer_key(&w->peer));
    w->ended = 1;
}

void link_ended(struct link *l, uint64_t number, enum worker_end how, const struct sched_suspect *suspects, size_t count)
{
    struct sched_event ev = {.kind = SCHED_WORKER_ENDED, .worker = number};
    ev.u.ended.how = how;
    ev.u.ended.suspects = suspects;
    ev.u.ended.count = count;
    metrics_worker_ended(how);
    loop_tell(l->d, &ev);
    relay_worker_ended(l->d->relay, number);
    struct worker *w = link_worker(l, number);
    if (!w)
        return;
    worker_leave(l, w);
    link_free_if_done(w);
}

/* Coming in ----------------------------------------------------------------------------------------------------------------------- */

/* Takes m. */
static void queue(struct link *l, struct worker *w, Ebb__Envelope *m)
{
    struct letter *x = mem_zalloc(sizeof *x);
    if (!x)
        link_no_memory(l);
    x->worker = w;
    x->m = m;
    x->came_ns = clock_ns();
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
    link_pump(l, w);
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
    case EBB__ENVELOPE__BODY_PROFILED:
    case EBB__ENVELOPE__BODY_STAGE_READY:
    case EBB__ENVELOPE__BODY_STAGE_FAULT:
        return link_stage_senseless(m);
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
        link_send_refused(l, peer, text);
        return NULL;
    }
    if (h->generation > l->d->generation) {
        snprintf(text, sizeof text, "worker '%.60s' has served generation %u of this pool, this ebbd is generation %u: an older state was brought back, or another "
                                    "ebbd serves here",
                 h->name ? h->name : "", h->generation, l->d->generation);
        link_send_refused(l, peer, text);
        return NULL;
    }
    struct worker *w = worker_of(l, peer), *other = link_worker(l, h->worker);
    struct worker *named = map_find(&l->by_peer, link_peer_key(peer));
    if ((named && named->peer.user != peer->user) || (other && other->peer.user != peer->user)) {
        snprintf(text, sizeof text, "worker '%.60s' comes under the number of another that came with another key", h->name ? h->name : "");
        link_send_refused(l, peer, text);
        return NULL;
    }
    if (w && w->number != h->worker) { /* a new process behind an old name */
        link_ended(l, w->number, WORKER_LOST, NULL, 0);
        w = NULL;
    }
    if (!w && other) { /* it has reconnected under another name */
        if (map_find(&l->by_peer, link_peer_key(&other->peer)) == other)
            map_remove(&l->by_peer, link_peer_key(&other->peer));
        other->peer = *peer;
        if (map_add(&l->by_peer, link_peer_key(peer), other))
            link_no_memory(l);
        w = other;
    }
    if (w)
        return w;
    w = mem_zalloc(sizeof *w);
    if (!w)
        link_no_memory(l);
    w->number = h->worker;
    w->peer = *peer;
    if (map_add(&l->by_number, w->number, w) || map_add(&l->by_peer, link_peer_key(peer), w))
        link_no_memory(l);
    return w;
}

/* Takes m. */
static void from_worker(struct link *l, const struct sock_peer *peer, Ebb__Envelope *m)
{
    if (agents_says(m)) {
        const char *senseless_word = agents_said(l->d, peer, m);
        if (senseless_word)
            complain(l, "%s", senseless_word);
        wire_free(m);
        return;
    }
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
            link_ask_hello(l, w);
        else
            link_ask_stranger(l, peer);
    } else {
        w->seen_ms = clock_ms();
        if (w->ask_hello)
            link_ask_hello(l, w);
        if (m->body_case != EBB__ENVELOPE__BODY_BEAT) {
            queue(l, w, m);
            return;
        }
        link_beat(l, w, m->beat);
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

/* 0: it must not be heard, or it was about keys alone. */
static int let_in(struct link *l, struct sock *s, const struct sock_peer *peer, const Ebb__Envelope *m)
{
    struct auth *a = l->d->auth;
    enum keys_role role = s == l->workers ? KEYS_NODE : KEYS_CLIENT;
    int join = m->body_case == EBB__ENVELOPE__BODY_JOIN;
    if (!a || !peer->user) {
        if (join)
            complain(l, "a Join over a socket that needs no key");
        return !join;
    }
    if (!auth_heard(a, peer, role, join))
        return 0;
    if (join)
        auth_join(a, s, peer, role, m->join);
    return !join;
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
            link_no_memory(l);
        if (st != ST_OK)
            complain(l, "%s", e.text);
        else if (!peer.len) {
            complain(l, "a peer whose name is too long");
            wire_free(m);
        } else if (!let_in(l, s, &peer, m)) {
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
    int busy = l->d->core && (sock_readable(l->workers) || sock_readable(l->clients));
    if (l->d->auth)
        auth_prepare_turn(l->d->auth, &busy);
    if (busy)
        uv_idle_start(&l->idle, on_idle);
}

void link_turn(struct link *l)
{
    uv_idle_stop(&l->idle);
    if (l->d->auth)
        auth_turn(l->d->auth);
    drain(l, l->clients);
    drain(l, l->workers);
    link_errands(l);
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
        link_ask_hello(l, w);
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
    if (getrandom(l->secret, sizeof l->secret, 0) != sizeof l->secret) {
        err_errno(e, st, errno, "cannot draw random bytes");
        goto out;
    }
    if (!(l->zmq = zmq_ctx_new())) {
        err_set(e, st, "cannot start ZeroMQ: %s", zmq_strerror(zmq_errno()));
        goto out;
    }
    zmq_ctx_set(l->zmq, ZMQ_MAX_SOCKETS, 65535);
    st = sock_router(l->zmq, d->workers_endpoint, NULL, &l->workers, e);
    if (st == ST_OK)
        st = sock_router(l->zmq, d->clients_endpoint, NULL, &l->clients, e);
    if (st != ST_OK)
        goto out;
    struct sock *socks[] = {l->workers, l->clients};
    for (int i = 0; i < 2; i++) {
        uv_poll_init(&d->uv, &l->poll[i], sock_fd(socks[i]));
        uv_poll_start(&l->poll[i], UV_READABLE, on_poll);
    }
    uv_idle_init(&d->uv, &l->idle);
    d->link = l;
    return d->auth ? auth_listen(d->auth, l->zmq, l->workers, l->clients, e) : ST_OK;
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
        link_free_if_done(w);
    }
    auth_close(d);
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
