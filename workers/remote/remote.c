/* The connection to the relay: one DEALER, spoken to by one thread, which starts with the first question. The happy path: a question is put into a list, sent,
   answered by its number, and the asker wakes.

   What can fail: the connection goes, or the daemon: ZeroMQ connects again, and every question that has no answer is sent again, in order; asking twice is harmless.
   A question that stays without an answer for long is sent again too: its peer may have dropped it. */
#include "workers/remote/inside.h"

#include <errno.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/sight.h"

#define STACK_BYTES (1u << 20)
#define SILENCE_MS 15000
#define RELAY_PORT 2 /* behind the workers' */

noreturn void remote_no_memory(void)
{
    log_error("out of memory for what goes through the daemon");
    fflush(NULL);
    _exit(77);
}

/* Where the relay listens; NULL: the endpoint has another form, so that there is none. */
static char *relay_endpoint(const char *workers)
{
    size_t n = strlen(workers);
    if (strncmp(workers, "ipc://", 6) == 0 && n > 14 && strcmp(workers + n - 8, "/workers") == 0)
        return mem_printf("%.*s/relay", (int)(n - 8), workers);
    const char *colon = strrchr(workers, ':');
    char *end;
    if (strncmp(workers, "tcp://", 6) != 0 || colon == workers + 3)
        return NULL;
    unsigned long port = strtoul(colon + 1, &end, 10);
    if (*end || end == colon + 1 || port == 0 || port > 65535 - RELAY_PORT)
        return NULL;
    return mem_printf("%.*s:%lu", (int)(colon - workers), workers, port + RELAY_PORT);
}

enum status remote_new(const struct remote_opts *o, struct remote **out, struct err *e)
{
    if (sodium_init() < 0)
        return err_set(e, ST_ENV, "cannot start libsodium");
    struct remote *r = mem_zalloc(sizeof *r);
    if (!r)
        return err_nomem(e, "the connection to the relay");
    r->o = *o;
    r->endpoint = relay_endpoint(o->endpoint);
    r->near = (struct source_via){.arg = r, .named = near_named};
    r->far = (struct source_via){.arg = r, .open = stream_open, .read = stream_read, .close = stream_close, .named = stream_named};
    r->last = &r->first;
    r->same_sight = 1; /* until the daemon says what it sees */
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&r->lock, NULL);
    pthread_mutex_init(&r->roots_lock, NULL);
    pthread_mutex_init(&r->model_lock, NULL);
    pthread_mutex_init(&r->ahead_lock, NULL);
    pthread_cond_init(&r->came, &monotonic);
    pthread_condattr_destroy(&monotonic);
    r->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (r->wake_fd < 0) {
        enum status st = err_errno(e, ST_ENV, errno, "cannot make an eventfd");
        remote_free(r);
        return st;
    }
    *out = r;
    return ST_OK;
}

static void wake(struct remote *r)
{
    if (eventfd_write(r->wake_fd, 1)) {
        /* it is awake already */
    }
}

void remote_free(struct remote *r)
{
    if (!r)
        return;
    giver_close(r);
    pthread_mutex_lock(&r->lock);
    r->stopping = 1;
    int started = r->started;
    pthread_mutex_unlock(&r->lock);
    if (started) {
        wake(r);
        pthread_join(r->thread, NULL);
    }
    roots_forget(r);
    stream_forget_ahead(r);
    pthread_mutex_destroy(&r->ahead_lock);
    pthread_cond_destroy(&r->came);
    pthread_mutex_destroy(&r->lock);
    pthread_mutex_destroy(&r->roots_lock);
    pthread_mutex_destroy(&r->model_lock);
    if (r->wake_fd >= 0)
        close(r->wake_fd);
    mem_free(r->endpoint);
    mem_free(r);
}

void remote_welcome(struct remote *r, int relay, const void *sight, size_t len, uint32_t generation)
{
    uint8_t own[SIGHT_BYTES];
    int same = sight_of_this(own) && len == sizeof own && memcmp(own, sight, len) == 0;
    pthread_mutex_lock(&r->lock);
    int news = generation != r->generation || same != r->same_sight;
    r->has_relay = relay && r->endpoint;
    r->same_sight = same;
    r->generation = generation;
    pthread_mutex_unlock(&r->lock);
    if (news && pthread_mutex_trylock(&r->roots_lock) == 0) { /* else somebody is just finding out */
        roots_forget(r);
        pthread_mutex_unlock(&r->roots_lock);
    }
}

int remote_far(struct remote *r)
{
    if (!r)
        return 0;
    pthread_mutex_lock(&r->lock);
    int far = r->has_relay && !r->same_sight;
    pthread_mutex_unlock(&r->lock);
    return far;
}

void remote_figures(struct remote *r, uint64_t *in, uint64_t *out)
{
    *in = atomic_load(&r->in);
    *out = atomic_load(&r->out);
}

/* The thread ------------------------------------------------------------------------------------------------------------------------- */

static uint64_t id_of(const Ebb__Envelope *m)
{
    switch (m->body_case) {
    case EBB__ENVELOPE__BODY_RELAY_DATA:
        return m->relay_data->id;
    case EBB__ENVELOPE__BODY_RELAY_TOKEN:
        return m->relay_token->id;
    case EBB__ENVELOPE__BODY_RELAY_MARKED:
        return m->relay_marked->id;
    case EBB__ENVELOPE__BODY_RELAY_PART_AT:
        return m->relay_part_at->id;
    case EBB__ENVELOPE__BODY_MODEL_PLAN:
        return m->model_plan->id;
    case EBB__ENVELOPE__BODY_MODEL_NOTED:
        return m->model_noted->id;
    default:
        return 0;
    }
}

/* Takes m. */
static void take(struct remote *r, Ebb__Envelope *m)
{
    uint64_t id = id_of(m);
    pthread_mutex_lock(&r->lock);
    struct call *c = r->first;
    while (c && c->id != id)
        c = c->next;
    if (c && !c->answer) {
        c->answer = m;
        m = NULL;
        pthread_cond_broadcast(&r->came);
    }
    pthread_mutex_unlock(&r->lock);
    wire_free(m); /* of a question that nobody asks any more, or an answer that came twice */
}

/* Sends what is to be sent; `all`: what was sent before as well. */
static void send_calls(struct remote *r, struct sock *s, int all)
{
    uint64_t now = clock_ms();
    pthread_mutex_lock(&r->lock);
    for (struct call *c = r->first; c; c = c->next) {
        if (c->answer || (c->sent_ms && !all && now - c->sent_ms < SILENCE_MS))
            continue;
        if (zmq_send(sock_zmq(s), c->bytes.data, c->bytes.len, ZMQ_DONTWAIT) < 0)
            break; /* full: the next turn tries again */
        c->sent_ms = now;
        atomic_fetch_add(&r->out, c->bytes.len);
    }
    pthread_mutex_unlock(&r->lock);
}

/* 1: there is a new connection. */
static int take_monitor(void *monitor)
{
    int connected = 0;
    for (int event; (event = sock_event(monitor));)
        connected |= event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
    return connected;
}

static void serve(struct remote *r, struct sock *s, void *monitor)
{
    for (;;) {
        zmq_pollitem_t items[] = {
            {.socket = sock_zmq(s), .events = ZMQ_POLLIN}, {.fd = r->wake_fd, .events = ZMQ_POLLIN}, {.socket = monitor, .events = ZMQ_POLLIN}};
        zmq_poll(items, 3, 500);
        eventfd_t ignored;
        if (eventfd_read(r->wake_fd, &ignored)) {
            /* the list says what there is */
        }
        pthread_mutex_lock(&r->lock);
        int stopping = r->stopping;
        pthread_mutex_unlock(&r->lock);
        if (stopping)
            return;
        int again = take_monitor(monitor);
        for (;;) {
            struct sock_peer ignored_peer;
            Ebb__Envelope *m;
            struct err e;
            enum status st = sock_receive(s, &ignored_peer, &m, &e);
            if (st == ST_AGAIN)
                break;
            if (st == ST_NOMEM)
                remote_no_memory();
            if (st == ST_OK)
                take(r, m);
            else
                log_warn("a message of the relay's is ignored: %s", e.text);
        }
        send_calls(r, s, again);
    }
}

static void *run(void *arg)
{
    struct remote *r = arg;
    struct err e;
    uint8_t identity[8];
    for (int i = 0; i < 8; i++)
        identity[i] = (uint8_t)(r->o.number >> (56 - 8 * i));
    void *context = zmq_ctx_new(), *monitor = NULL;
    struct sock *s = NULL;
    if (!context)
        remote_no_memory();
    enum status st = sock_dealer(context, r->endpoint, r->o.keys, identity, sizeof identity, &s, &e);
    if (st == ST_OK && (zmq_socket_monitor(sock_zmq(s), "inproc://relay-monitor", ZMQ_EVENT_HANDSHAKE_SUCCEEDED) ||
                        !(monitor = zmq_socket(context, ZMQ_PAIR)) || zmq_connect(monitor, "inproc://relay-monitor")))
        st = err_set(&e, ST_ENV, "cannot watch the connection: %s", zmq_strerror(errno));
    if (st != ST_OK) { /* as when the daemon cannot be reached at all */
        log_error("the relay: %s", e.text);
        fflush(NULL);
        _exit(1);
    }
    serve(r, s, monitor);
    int none = 0;
    zmq_setsockopt(monitor, ZMQ_LINGER, &none, sizeof none);
    zmq_close(monitor);
    zmq_setsockopt(sock_zmq(s), ZMQ_LINGER, &none, sizeof none);
    sock_close(s);
    zmq_ctx_term(context);
    return NULL;
}

/* Calls ------------------------------------------------------------------------------------------------------------------------------- */

uint64_t remote_id(struct remote *r)
{
    pthread_mutex_lock(&r->lock);
    uint64_t id = ++r->next_id;
    pthread_mutex_unlock(&r->lock);
    return id;
}

struct call *call_begin(struct remote *r, uint64_t id, Ebb__Envelope__BodyCase which, void *body)
{
    struct err e;
    struct call *c = mem_zalloc(sizeof *c);
    if (!c || wire_encode(which, body, &c->bytes, &e) != ST_OK)
        remote_no_memory();
    c->id = id;
    pthread_mutex_lock(&r->lock);
    *r->last = c;
    r->last = &c->next;
    if (!r->started) {
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setstacksize(&attributes, STACK_BYTES);
        if (pthread_create(&r->thread, &attributes, run, r))
            remote_no_memory();
        pthread_attr_destroy(&attributes);
        r->started = 1;
    }
    pthread_mutex_unlock(&r->lock);
    wake(r);
    return c;
}

enum status call_wait(struct remote *r, struct call *c, Ebb__Envelope__BodyCase want, int (*goes_on)(void *arg), void *arg, struct err *e)
{
    enum status st = ST_OK;
    pthread_mutex_lock(&r->lock);
    while (!c->answer && st == ST_OK) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += 100000000;
        if (until.tv_nsec >= 1000000000) {
            until.tv_sec++;
            until.tv_nsec -= 1000000000;
        }
        pthread_cond_timedwait(&r->came, &r->lock, &until);
        if (!c->answer && goes_on) {
            pthread_mutex_unlock(&r->lock);
            int go = goes_on(arg);
            pthread_mutex_lock(&r->lock);
            if (!go && !c->answer)
                st = err_set(e, ST_AGAIN, "not wanted any more");
        }
    }
    pthread_mutex_unlock(&r->lock);
    if (st == ST_OK && c->answer->body_case != want)
        st = c->answer->body_case == EBB__ENVELOPE__BODY_RELAY_DATA && c->answer->relay_data->code
                 ? call_status(c->answer->relay_data->code, c->answer->relay_data->text, e)
                 : err_set(e, ST_CORRUPT, "the relay answers with a message of kind %d", (int)c->answer->body_case);
    return st;
}

int call_came(struct remote *r, const struct call *c)
{
    pthread_mutex_lock(&r->lock);
    int came = c->answer != NULL;
    pthread_mutex_unlock(&r->lock);
    return came;
}

void call_end(struct remote *r, struct call *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&r->lock);
    for (struct call **at = &r->first; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            if (!c->next)
                r->last = at;
            break;
        }
    pthread_mutex_unlock(&r->lock);
    wire_free(c->answer);
    buf_release(&c->bytes);
    mem_free(c);
}

enum status call_status(uint32_t code, const char *text, struct err *e)
{
    switch (code) {
    case ST_OK:
        return ST_OK;
    case ST_USER:
    case ST_ENV:
    case ST_CORRUPT:
    case ST_NOT_FOUND:
    case ST_AGAIN:
        return err_set(e, (enum status)code, "%s", text);
    default:
        return err_set(e, ST_ENV, "the daemon could not answer: %s", text);
    }
}
