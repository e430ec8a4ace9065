/* The happy path: carrier_peers -> the thread connects -> up; carrier_send puts frames into the list `out`, wakes the thread, which hands them to ZeroMQ; what comes in
   at the ROUTER goes to the handler.

   What can fail: a connection goes (lost; ZeroMQ tries again, and what it had on its way is gone or comes: whoever hears of it sends all of a new cut); bytes that are
   none of ours (dropped); a peer that takes nothing in (frames wait in memory: the head's credits bound how many). */
#include "workers/group/carrier.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "wire/sock.h"

#define STACK_BYTES (1u << 20)
#define MESSAGES_A_TURN 64
#define ENDPOINT_BYTES 256
#define STALE_S 60            /* a socket file that old, at which nobody listens, was left by a worker that was killed */

struct payload {
    zmq_msg_t frame;
};

struct frames {               /* a message that waits for the thread */
    struct frames *next;
    uint64_t peer;
    struct buf envelope;
    struct payload *payload;
};

struct wanted {               /* a peer, as carrier_peers was told */
    uint64_t worker;
    char endpoint[ENDPOINT_BYTES], key[KEYS_Z85 + 1];
};

struct peer {                 /* the thread's */
    struct wanted w;
    struct sock *sock;        /* NULL: the place is free */
    void *monitor;
    int up;
};

struct carrier {
    void *context;
    struct carrier_handlers h;
    struct keys keys;         /* all empty: ipc */
    struct sock *router;
    char endpoint[256];
    int wake;
    pthread_t thread;
    int started;
    unsigned monitors;        /* names that were given */

    pthread_mutex_t lock;     /* of what follows */
    struct frames *out, **last;
    struct wanted wanted[CARRIER_PEERS];
    size_t wanted_count;
    int changed, poked, stopping;

    struct peer peers[CARRIER_PEERS];
};

/* Payloads ------------------------------------------------------------------------------------------------------------------------ */

static void give_back(void *data, void *hint)
{
    (void)hint;
    mem_free(data);
}

struct payload *payload_new(void *data, size_t len)
{
    struct payload *p = data ? mem_alloc(sizeof *p) : NULL;
    if (!p || zmq_msg_init_data(&p->frame, data, len, give_back, NULL)) {
        mem_free(p);
        mem_free(data);
        return NULL;
    }
    return p;
}

/* ZeroMQ's message API takes no const. */
static zmq_msg_t *frame_of(const struct payload *p)
{
    return (zmq_msg_t *)(uintptr_t)&p->frame;
}

const void *payload_data(const struct payload *p)
{
    return p ? zmq_msg_data(frame_of(p)) : NULL;
}

size_t payload_len(const struct payload *p)
{
    return p ? zmq_msg_size(frame_of(p)) : 0;
}

void payload_free(struct payload *p)
{
    if (p)
        zmq_msg_close(&p->frame);
    mem_free(p);
}

static void frames_free(struct frames *f)
{
    buf_release(&f->envelope);
    payload_free(f->payload);
    mem_free(f);
}

/* Any thread ---------------------------------------------------------------------------------------------------------------------- */

static void wake(struct carrier *c)
{
    if (eventfd_write(c->wake, 1)) {
        /* the counter is at its top: the thread is awake already */
    }
}

static enum status check_peer(const struct carrier_peer *x, struct err *e)
{
    if (strlen(x->endpoint) >= ENDPOINT_BYTES || (*x->key && !keys_valid(x->key)) || (*x->key != 0) != (strncmp(x->endpoint, "tcp://", 6) == 0))
        return err_set(e, ST_CORRUPT, "a member at '%.300s', with a key that does not go with that", x->endpoint);
    return ST_OK;
}

enum status carrier_peers(struct carrier *c, const struct carrier_peer *list, size_t n, struct err *e)
{
    struct wanted w[CARRIER_PEERS];
    BUG_IF(n > CARRIER_PEERS, "%zu peers of one member", n);
    for (size_t i = 0; i < n; i++) {
        TRY(check_peer(&list[i], e));
        w[i].worker = list[i].worker;
        snprintf(w[i].endpoint, sizeof w[i].endpoint, "%s", list[i].endpoint);
        snprintf(w[i].key, sizeof w[i].key, "%s", list[i].key);
    }
    pthread_mutex_lock(&c->lock);
    if (n)
        memcpy(c->wanted, w, n * sizeof *w);
    c->wanted_count = n;
    c->changed = 1;
    pthread_mutex_unlock(&c->lock);
    wake(c);
    return ST_OK;
}

enum status carrier_send(struct carrier *c, uint64_t peer, Ebb__Envelope__BodyCase which, void *body, struct payload *p, struct err *e)
{
    struct frames *f = mem_zalloc(sizeof *f);
    enum status st = f ? wire_encode(which, body, &f->envelope, e) : err_nomem(e, "a message");
    if (st == ST_OK && payload_len(p) > CARRIER_MOST_BYTES)
        st = err_set(e, ST_USER, "%zu bytes cross a cut of the model with one micro-batch, where %" PRIu64 " MiB may; give the job a smaller --micro-batch-tokens",
                     payload_len(p), CARRIER_MOST_BYTES >> 20);
    if (st != ST_OK) {
        payload_free(p);
        if (f)
            frames_free(f);
        return st;
    }
    f->peer = peer;
    f->payload = p;
    pthread_mutex_lock(&c->lock);
    *c->last = f;
    c->last = &f->next;
    pthread_mutex_unlock(&c->lock);
    wake(c);
    return ST_OK;
}

void carrier_poke(struct carrier *c)
{
    pthread_mutex_lock(&c->lock);
    c->poked = 1;
    pthread_mutex_unlock(&c->lock);
    wake(c);
}

const char *carrier_endpoint(const struct carrier *c)
{
    return c->endpoint;
}

const char *carrier_key(const struct carrier *c)
{
    return c->keys.public_key;
}

/* The thread's peers -------------------------------------------------------------------------------------------------------------- */

static void close_now(void *zmq)
{
    int none = 0;
    zmq_setsockopt(zmq, ZMQ_LINGER, &none, sizeof none);
}

static void disconnect(struct peer *p)
{
    if (!p->sock)
        return;
    zmq_socket_monitor(sock_zmq(p->sock), NULL, 0);
    if (p->monitor) {
        close_now(p->monitor);
        zmq_close(p->monitor);
    }
    close_now(sock_zmq(p->sock));
    sock_close(p->sock);
    *p = (struct peer){.sock = NULL};
}

/* A DEALER that is not connected yet. */
static enum status dealer_for(struct carrier *c, const char *endpoint, const char *key, struct sock **out, struct err *e)
{
    struct keys keys = c->keys;
    if (*key) {
        snprintf(keys.server_key, sizeof keys.server_key, "%s", key);
        if (!*keys.public_key)
            return err_set(e, ST_USER, "a member at '%s', where this worker speaks over ipc", endpoint);
    }
    return sock_dealer_apart(c->context, endpoint, *key ? &keys : NULL, out, e);
}

enum status carrier_dial(struct carrier *c, const struct carrier_peer *to, struct sock **out, struct err *e)
{
    struct sock *s;
    TRY(check_peer(to, e));
    TRY(dealer_for(c, to->endpoint, to->key, &s, e));
    if (zmq_connect(sock_zmq(s), to->endpoint)) {
        enum status st = err_set(e, ST_ENV, "cannot connect to '%s': %s", to->endpoint, zmq_strerror(errno));
        sock_close(s);
        return st;
    }
    *out = s;
    return ST_OK;
}

static enum status connect_to(struct carrier *c, const struct wanted *w, struct peer *p, struct err *e)
{
    char name[64];
    snprintf(name, sizeof name, "inproc://stage.%p.%u", (void *)c, c->monitors++);
    *p = (struct peer){.w = *w};
    /* The monitor stands before the connection begins, so that no event of it is missed. */
    TRY(dealer_for(c, w->endpoint, w->key, &p->sock, e));
    if (zmq_socket_monitor(sock_zmq(p->sock), name, ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED) || !(p->monitor = zmq_socket(c->context, ZMQ_PAIR)) ||
        zmq_connect(p->monitor, name) || zmq_connect(sock_zmq(p->sock), w->endpoint)) {
        enum status st = err_set(e, ST_ENV, "cannot connect to a member of the gang at '%s': %s", w->endpoint, zmq_strerror(errno));
        disconnect(p);
        return st;
    }
    return ST_OK;
}

static int same(const struct wanted *a, const struct wanted *b)
{
    return a->worker == b->worker && strcmp(a->endpoint, b->endpoint) == 0 && strcmp(a->key, b->key) == 0;
}

static void change_peers(struct carrier *c)
{
    struct wanted w[CARRIER_PEERS];
    pthread_mutex_lock(&c->lock);
    size_t n = c->changed ? c->wanted_count : 0;
    int changed = c->changed;
    memcpy(w, c->wanted, sizeof w);
    c->changed = 0;
    pthread_mutex_unlock(&c->lock);
    if (!changed)
        return;
    int kept[CARRIER_PEERS] = {0};
    for (size_t k = 0; k < CARRIER_PEERS; k++) {
        struct peer *p = &c->peers[k];
        int stays = 0;
        for (size_t i = 0; p->sock && i < n && !stays; i++)
            if (!kept[i] && same(&p->w, &w[i]))
                stays = kept[i] = 1;
        if (!stays)
            disconnect(p);
        else if (p->up)
            c->h.up(c->h.arg, p->w.worker);
    }
    for (size_t i = 0; i < n; i++) {
        struct err e;
        size_t k = 0;
        while (!kept[i] && c->peers[k].sock)
            k++;
        if (kept[i] || connect_to(c, &w[i], &c->peers[k], &e) == ST_OK)
            continue;
        log_error("%s", e.text);
        c->h.lost(c->h.arg, w[i].worker);
    }
}

static void look_at(struct carrier *c, struct peer *p)
{
    for (int event; p->sock && (event = sock_event(p->monitor));) {
        int up = event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
        if (up == p->up)
            continue;
        p->up = up;
        if (up)
            c->h.up(c->h.arg, p->w.worker);
        else
            c->h.lost(c->h.arg, p->w.worker);
    }
}

/* Frames -------------------------------------------------------------------------------------------------------------------------- */

/* The envelope's bytes and the payload go to ZeroMQ as they are; its thread frees them. */
static void send_frames(struct peer *p, struct frames *f)
{
    zmq_msg_t m;
    void *zmq = sock_zmq(p->sock);
    if (zmq_msg_init_data(&m, f->envelope.data, f->envelope.len, give_back, NULL))
        return;
    f->envelope = (struct buf){.data = NULL};
    if (zmq_msg_send(&m, zmq, (f->payload ? ZMQ_SNDMORE : 0) | ZMQ_DONTWAIT) < 0 || (f->payload && zmq_msg_send(&f->payload->frame, zmq, ZMQ_DONTWAIT) < 0)) {
        log_warn("a message to a member of the gang does not leave: %s", zmq_strerror(errno)); /* the head's time-out finds that it is missing */
        zmq_msg_close(&m);
    }
}

static void send_all(struct carrier *c)
{
    pthread_mutex_lock(&c->lock);
    struct frames *f = c->out;
    c->out = NULL;
    c->last = &c->out;
    pthread_mutex_unlock(&c->lock);
    for (struct frames *next; f; f = next) {
        next = f->next;
        struct peer *to = NULL;
        for (size_t k = 0; k < CARRIER_PEERS; k++)
            if (c->peers[k].sock && c->peers[k].w.worker == f->peer)
                to = &c->peers[k];
        if (to)
            send_frames(to, f);
        frames_free(f);
    }
}

static int next_frame(void *zmq, zmq_msg_t *m)
{
    int n;
    zmq_msg_init(m);
    while ((n = zmq_msg_recv(m, zmq, ZMQ_DONTWAIT)) < 0 && errno == EINTR)
        ;
    if (n < 0)
        zmq_msg_close(m);
    return n >= 0;
}

/* Whoever measures the way here gets a short answer, if there was something to weigh the way with. Takes over the name. */
static void answer_probe(struct carrier *c, zmq_msg_t *name, Ebb__LinkProbe *probe)
{
    struct buf b = {.data = NULL};
    struct err e;
    zmq_msg_t m;
    void *zmq = sock_zmq(c->router);
    int ready = wire_encode(EBB__ENVELOPE__BODY_LINK_PROBE, probe, &b, &e) == ST_OK && zmq_msg_init_data(&m, b.data, b.len, give_back, NULL) == 0;
    if (!ready)
        buf_release(&b);
    else if (zmq_msg_send(name, zmq, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 || zmq_msg_send(&m, zmq, ZMQ_DONTWAIT) < 0)
        zmq_msg_close(&m); /* it is gone, or takes nothing in: so it learns nothing */
    zmq_msg_close(name);
}

/* One message: 0 when there is none. */
static int receive(struct carrier *c)
{
    void *zmq = sock_zmq(c->router);
    zmq_msg_t m, name;
    struct payload *p = NULL;
    Ebb__Envelope *envelope = NULL;
    struct err e;
    if (!next_frame(zmq, &name))
        return 0;
    int more = zmq_msg_more(&name);
    enum status st = ST_CORRUPT;
    if (more && next_frame(zmq, &m)) {
        more = zmq_msg_more(&m);
        st = wire_decode(zmq_msg_data(&m), zmq_msg_size(&m), &envelope, &e);
        zmq_msg_close(&m);
    }
    if (more && st == ST_OK) {
        p = mem_alloc(sizeof *p);
        if (!p)
            st = err_nomem(&e, "a message");
        else if (next_frame(zmq, &p->frame))
            more = zmq_msg_more(&p->frame);
    }
    while (more && next_frame(zmq, &m)) {
        st = st == ST_OK ? ST_CORRUPT : st;
        more = zmq_msg_more(&m);
        zmq_msg_close(&m);
    }
    if (st == ST_OK && p && envelope->body_case == EBB__ENVELOPE__BODY_LINK_PROBE) {
        answer_probe(c, &name, envelope->link_probe);
        wire_free(envelope);
        payload_free(p);
        return 1;
    }
    zmq_msg_close(&name); /* it says nothing: who speaks shows its pass */
    if (st == ST_OK) {
        c->h.message(c->h.arg, envelope, p);
        return 1;
    }
    log_warn("a message that is none of a gang's is dropped");
    wire_free(envelope);
    payload_free(p);
    return 1;
}

static void *carrier_run(void *arg)
{
    struct carrier *c = arg;
    uint64_t next_ms = 0;
    for (int stopping = 0; !stopping;) {
        zmq_pollitem_t items[2 + CARRIER_PEERS] = {{.socket = sock_zmq(c->router), .events = ZMQ_POLLIN}, {.fd = c->wake, .events = ZMQ_POLLIN}};
        int n = 2;
        for (size_t k = 0; k < CARRIER_PEERS; k++)
            if (c->peers[k].sock)
                items[n++] = (zmq_pollitem_t){.socket = c->peers[k].monitor, .events = ZMQ_POLLIN};
        zmq_poll(items, n, n > 2 ? CARRIER_TICK_MS : -1);
        eventfd_t ignored;
        if (eventfd_read(c->wake, &ignored)) {
            /* nothing was written since */
        }
        pthread_mutex_lock(&c->lock);
        stopping = c->stopping;
        int tick = c->poked || clock_ms() >= next_ms;
        c->poked = 0;
        pthread_mutex_unlock(&c->lock);
        change_peers(c);
        for (size_t k = 0; k < CARRIER_PEERS; k++)
            look_at(c, &c->peers[k]);
        send_all(c);
        for (int i = 0; i < MESSAGES_A_TURN && receive(c); i++)
            send_all(c);
        if (tick) {
            next_ms = clock_ms() + CARRIER_TICK_MS;
            c->h.tick(c->h.arg);
        }
    }
    return NULL;
}

/* Where it listens ---------------------------------------------------------------------------------------------------------------- */

static enum status choose(struct carrier *c, const char *endpoint, const struct keys *keys, uint64_t number, char *at, size_t size, struct err *e)
{
    char address[220];
    if (keys) {
        TRY(keys_generate(&c->keys, e));
        TRY(sock_own_address(endpoint, address, sizeof address, e));
        snprintf(at, size, "tcp://%s:*", address);
        return ST_OK;
    }
    const char *slash = strrchr(endpoint, '/');
    if (strncmp(endpoint, "ipc://", 6) != 0 || !slash || slash < endpoint + 6)
        return err_set(e, ST_ENV, "'%s' has no folder for another socket", endpoint);
    char *folder = mem_strndup(endpoint + 6, (size_t)(slash - endpoint - 6));
    if (!folder)
        return err_nomem(e, "a path");
    sock_sweep(folder, SOCK_STAGES, STALE_S);
    int n = snprintf(at, size, "ipc://%s/" SOCK_STAGES "%" PRIx64, folder, number);
    mem_free(folder);
    if (n - 6 >= (int)sizeof ((struct sockaddr_un *)0)->sun_path)
        return err_set(e, ST_ENV, "'%s' is too long for a socket's path", at);
    return ST_OK;
}

static enum status start(struct carrier *c, const char *endpoint, const struct keys *keys, uint64_t number, struct err *e)
{
    char at[256];
    size_t size = sizeof c->endpoint;
    TRY(choose(c, endpoint, keys, number, at, sizeof at, e));
    if (c->wake < 0)
        return err_errno(e, ST_ENV, errno, "cannot make an eventfd");
    TRY(sock_router_few(c->context, 0, CARRIER_MOST_BYTES, &c->router, e));
    TRY(sock_bind(c->router, at, keys ? &c->keys : NULL, "", e)); /* without a domain: the pass says who may */
    if (zmq_getsockopt(sock_zmq(c->router), ZMQ_LAST_ENDPOINT, c->endpoint, &size))
        return err_set(e, ST_ENV, "cannot tell where '%s' listens: %s", at, zmq_strerror(errno));
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    int failed = pthread_create(&c->thread, &attributes, carrier_run, c);
    pthread_attr_destroy(&attributes);
    if (failed)
        return err_errno(e, ST_ENV, failed, "cannot start a thread");
    pthread_setname_np(c->thread, "carrier");
    c->started = 1;
    return ST_OK;
}

enum status carrier_new(void *context, const char *endpoint, const struct keys *keys, uint64_t number, const struct carrier_handlers *h, struct carrier **out,
                        struct err *e)
{
    struct carrier *c = mem_zalloc(sizeof *c);
    if (!c)
        return err_nomem(e, "a carrier");
    c->context = context;
    c->h = *h;
    c->last = &c->out;
    c->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pthread_mutex_init(&c->lock, NULL);
    enum status st = start(c, endpoint, keys, number, e);
    if (st != ST_OK)
        carrier_free(c);
    else
        *out = c;
    return st;
}

void carrier_free(struct carrier *c)
{
    if (!c)
        return;
    if (c->started) {
        pthread_mutex_lock(&c->lock);
        c->stopping = 1;
        pthread_mutex_unlock(&c->lock);
        wake(c);
        pthread_join(c->thread, NULL);
    }
    for (size_t k = 0; k < CARRIER_PEERS; k++)
        disconnect(&c->peers[k]);
    if (c->router) {
        close_now(sock_zmq(c->router));
        sock_close(c->router);
        if (strncmp(c->endpoint, "ipc://", 6) == 0)
            unlink(c->endpoint + 6); /* ZeroMQ leaves it */
    }
    for (struct frames *f = c->out, *next; f; f = next) {
        next = f->next;
        frames_free(f);
    }
    if (c->wake >= 0)
        close(c->wake);
    keys_wipe(&c->keys);
    pthread_mutex_destroy(&c->lock);
    mem_free(c);
}
