/* Gives the models of this host's cache to other hosts: a ROUTER with a key of its own, which the daemon tells to those it sends here, together with a pass that they
   have to show. Whoever receives a piece compares it with the daemon's digest, so that nobody need trust us. */
#include "workers/remote/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/mem.h"
#include "storage/modeldir.h"

#define AGAIN_MS 30000   /* the daemon is told again: it may be another one by now */
#define PIECE_MOST (1u << 20)
#define MESSAGES_KEPT 16
#define LONGEST 4096
#define STACK_BYTES (1u << 20)

struct given {
    struct given *next;
    uint8_t digest[16], pass[64];
    size_t pass_len;
    struct model_files files;
    int *fds;
    struct call *said;    /* ModelHave on its way */
    uint64_t next_ms;
};

struct giver {
    struct remote *r;
    pthread_t thread;
    int wake[2];
    void *context;
    struct sock *sock;
    struct keys keys;
    char endpoint[256];
    pthread_mutex_t lock; /* of the list and `stopping` */
    struct given *list;
    int stopping;
};

static void given_free(struct remote *r, struct given *x)
{
    call_end(r, x->said);
    for (size_t i = 0; x->fds && i < x->files.count; i++)
        if (x->fds[i] >= 0)
            close(x->fds[i]);
    mem_free(x->fds);
    modeldir_files_release(&x->files);
    mem_free(x);
}

static void answer(struct giver *g, const struct sock_peer *peer, uint64_t id, enum status st, const char *text, uint64_t size, void *data, size_t len)
{
    struct err e;
    Ebb__RelayData m = EBB__RELAY_DATA__INIT;
    m.id = id;
    m.code = (uint32_t)st;
    m.text = (char *)(uintptr_t)text;
    m.size = size;
    m.data.data = data;
    m.data.len = len;
    if (sock_send(g->sock, peer, EBB__ENVELOPE__BODY_RELAY_DATA, &m, &e) != ST_OK)
        log_debug("a piece of a model did not leave: %s", e.text);
}

/* With the lock held. */
static void give(struct giver *g, const struct sock_peer *peer, const Ebb__ModelRead *m)
{
    struct given *x = g->list;
    while (x && (m->digest.len != sizeof x->digest || memcmp(x->digest, m->digest.data, sizeof x->digest) != 0))
        x = x->next;
    if (!x || !x->pass_len || m->pass.len != x->pass_len || memcmp(m->pass.data, x->pass, x->pass_len) != 0 || m->file >= x->files.count ||
        m->length > PIECE_MOST) {
        answer(g, peer, m->id, ST_USER, "there is no such thing to be had here", 0, NULL, 0);
        return;
    }
    int *fd = &x->fds[m->file];
    if (*fd < 0) {
        char *path = mem_printf("%s/%s", x->files.folder, x->files.items[m->file].name);
        if (!path)
            remote_no_memory();
        *fd = open(path, O_RDONLY | O_CLOEXEC);
        mem_free(path);
    }
    void *data = mem_alloc(m->length + 1);
    if (!data)
        remote_no_memory();
    ssize_t n = *fd < 0 ? -1 : pread(*fd, data, m->length, (off_t)m->offset);
    if (n < 0)
        answer(g, peer, m->id, ST_ENV, "it cannot be read here any more", 0, NULL, 0);
    else
        answer(g, peer, m->id, ST_OK, "", x->files.items[m->file].size_bytes, data, (size_t)n);
    mem_free(data);
}

/* With the lock held. */
static void tell_daemon(struct giver *g, struct given *x)
{
    if (x->said && call_came(g->r, x->said)) {
        const Ebb__Envelope *a = x->said->answer;
        if (a->body_case == EBB__ENVELOPE__BODY_MODEL_NOTED && a->model_noted->pass.len && a->model_noted->pass.len <= sizeof x->pass) {
            x->pass_len = a->model_noted->pass.len;
            memcpy(x->pass, a->model_noted->pass.data, x->pass_len);
        }
        call_end(g->r, x->said);
        x->said = NULL;
        x->next_ms = clock_ms() + AGAIN_MS;
    }
    if (x->said || clock_ms() < x->next_ms)
        return;
    Ebb__ModelHave m = EBB__MODEL_HAVE__INIT;
    m.id = remote_id(g->r);
    m.digest.data = x->digest;
    m.digest.len = sizeof x->digest;
    m.host = (char *)(uintptr_t)g->r->o.host;
    m.endpoint = g->endpoint;
    m.key.data = (uint8_t *)g->keys.public_key;
    m.key.len = KEYS_Z85;
    x->said = call_begin(g->r, m.id, EBB__ENVELOPE__BODY_MODEL_HAVE, &m);
}

static void *run(void *arg)
{
    struct giver *g = arg;
    for (;;) {
        zmq_pollitem_t items[] = {{.socket = sock_zmq(g->sock), .events = ZMQ_POLLIN}, {.fd = g->wake[0], .events = ZMQ_POLLIN}};
        zmq_poll(items, 2, 200);
        char byte[16];
        while (read(g->wake[0], byte, sizeof byte) > 0)
            ;
        pthread_mutex_lock(&g->lock);
        if (g->stopping)
            break;
        for (struct given *x = g->list; x; x = x->next)
            tell_daemon(g, x);
        for (int i = 0; i < MESSAGES_KEPT; i++) {
            struct sock_peer peer = {0};
            Ebb__Envelope *m;
            struct err e;
            enum status st = sock_receive(g->sock, &peer, &m, &e);
            if (st == ST_AGAIN)
                break;
            if (st == ST_NOMEM)
                remote_no_memory();
            if (st != ST_OK)
                continue;
            if (m->body_case == EBB__ENVELOPE__BODY_MODEL_READ && peer.len)
                give(g, &peer, m->model_read);
            wire_free(m);
        }
        pthread_mutex_unlock(&g->lock);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

static void giver_free(struct giver *g)
{
    for (struct given *x = g->list, *next; x; x = next) {
        next = x->next;
        given_free(g->r, x);
    }
    sock_close(g->sock);
    if (g->context)
        zmq_ctx_term(g->context);
    for (int i = 0; i < 2; i++)
        if (g->wake[i] >= 0)
            close(g->wake[i]);
    keys_wipe(&g->keys);
    pthread_mutex_destroy(&g->lock);
    mem_free(g);
}

static enum status start(struct giver *g, struct err *e)
{
    char address[220], at[256];
    size_t size = sizeof g->endpoint;
    TRY(keys_generate(&g->keys, e));
    TRY(sock_own_address(g->r->o.endpoint, address, sizeof address, e));
    snprintf(at, sizeof at, "tcp://%s:*", address);
    if (pipe2(g->wake, O_NONBLOCK | O_CLOEXEC))
        return err_errno(e, ST_ENV, errno, "cannot make a pipe");
    if (!(g->context = zmq_ctx_new()))
        return err_nomem(e, "a socket");
    TRY(sock_router_few(g->context, MESSAGES_KEPT, LONGEST, &g->sock, e));
    TRY(sock_bind(g->sock, at, &g->keys, "", e)); /* without a domain: the pass says who may */
    if (zmq_getsockopt(sock_zmq(g->sock), ZMQ_LAST_ENDPOINT, g->endpoint, &size))
        return err_set(e, ST_ENV, "cannot tell where '%s' listens: %s", at, zmq_strerror(errno));
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    int failed = pthread_create(&g->thread, &attributes, run, g);
    pthread_attr_destroy(&attributes);
    return failed ? err_set(e, ST_ENV, "cannot start a thread") : ST_OK;
}

static struct giver *giver_of(struct remote *r, struct err *e)
{
    if (r->giver)
        return r->giver;
    struct giver *g = mem_zalloc(sizeof *g);
    if (!g)
        remote_no_memory();
    g->r = r;
    g->wake[0] = g->wake[1] = -1;
    pthread_mutex_init(&g->lock, NULL);
    if (start(g, e) != ST_OK) {
        giver_free(g);
        return NULL;
    }
    r->giver = g;
    log_info("models of this host are given to others at %s", g->endpoint);
    return g;
}

void giver_add(struct remote *r, const uint8_t digest[16], const char *path)
{
    struct err e;
    pthread_mutex_lock(&r->model_lock);
    struct giver *g = giver_of(r, &e);
    struct given *x = mem_zalloc(sizeof *x);
    if (!x)
        remote_no_memory();
    memcpy(x->digest, digest, sizeof x->digest);
    if (g) {
        pthread_mutex_lock(&g->lock);
        for (struct given *old, **at = &g->list; (old = *at);) /* it may have been fetched anew */
            if (memcmp(old->digest, digest, sizeof old->digest) == 0) {
                *at = old->next;
                given_free(r, old);
            } else {
                at = &old->next;
            }
        pthread_mutex_unlock(&g->lock);
    }
    enum status st = g ? modeldir_files(path, &x->files, &e) : ST_ENV;
    if (st == ST_OK) {
        x->fds = mem_array(x->files.count, sizeof *x->fds);
        if (!x->fds)
            remote_no_memory();
        for (size_t i = 0; i < x->files.count; i++)
            x->fds[i] = -1;
        pthread_mutex_lock(&g->lock);
        x->next = g->list;
        g->list = x;
        pthread_mutex_unlock(&g->lock);
        if (write(g->wake[1], "", 1) < 0)
            log_debug("awake already");
    } else {
        log_warn("models of this host are not given to others: %s", e.text);
        given_free(r, x);
    }
    pthread_mutex_unlock(&r->model_lock);
}

void giver_close(struct remote *r)
{
    struct giver *g = r->giver;
    if (!g)
        return;
    pthread_mutex_lock(&g->lock);
    g->stopping = 1;
    pthread_mutex_unlock(&g->lock);
    if (write(g->wake[1], "", 1) < 0)
        log_debug("awake already");
    pthread_join(g->thread, NULL);
    giver_free(g);
    r->giver = NULL;
}
