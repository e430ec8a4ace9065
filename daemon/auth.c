/* A peer comes: ZeroMQ's thread does the handshake, by which the peer proves that it holds a key and knows ours; the question whether this key may come
   in arrives as a message here and is answered with the number of the key, which then stands on every message of that connection.

   What can fail: no handshake is finished (another protocol, another daemon's key pinned, silence): auth_watch.c hears of it and names the address.
   The key is not in authorized_keys, is one of the other port, or its invitation is over: 400, and the peer is told. A key is revoked while its peer
   is connected: its workers are lost, its connections shut, its messages refused. */
#include "daemon/auth_inside.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/path.h"
#include "daemon/link.h"
#include "daemon/words.h"

#define QUESTIONS_A_TURN 256
#define BURST 20 /* lines about refusals at once; then one a second */
#define ZAP_FRAMES 7

noreturn void auth_no_memory(struct auth *a)
{
    struct err e;
    err_nomem(&e, "keys");
    loop_fatal(a->d, &e);
}

void auth_complain(struct auth *a, const char *fmt, ...)
{
    uint64_t now = clock_ms(), seconds = (now - a->said_ms) / 1000;
    a->refused++;
    a->lines = a->lines + seconds > BURST ? BURST : a->lines + seconds;
    a->said_ms += seconds * 1000;
    if (!a->lines) {
        a->unsaid++;
        return;
    }
    a->lines--;
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (a->unsaid)
        log_warn("refused: %s (and %" PRIu64 " before it)", text, a->unsaid);
    else
        log_warn("refused: %s", text);
    a->unsaid = 0;
}

uint64_t auth_refused(const struct auth *a)
{
    return a ? a->refused : 0;
}

const struct keys *auth_keys(const struct auth *a)
{
    return &a->keys;
}

/* Who may what --------------------------------------------------------------------------------------------------------------------- */

static const char *domain_of(enum keys_role role)
{
    return role == KEYS_NODE ? SOCK_NODES : SOCK_CLIENTS;
}

static int over(const struct keyring_key *k)
{
    return k->until_ms && k->until_ms <= clock_wall_ms();
}

int auth_may(struct auth *a, const struct sock_peer *peer, enum keys_role role)
{
    if (!peer->user)
        return 1;
    pthread_mutex_lock(&a->lock);
    const struct keyring_key *k = keyring_user(&a->ring, peer->user);
    int may = k && k->role == role && !k->invite && !over(k);
    pthread_mutex_unlock(&a->lock);
    return may;
}

const char *auth_name(struct auth *a, const struct sock_peer *peer)
{
    const struct keyring_key *k = keyring_user(&a->ring, peer->user);
    return k ? k->name : "";
}

int auth_heard(struct auth *a, const struct sock_peer *peer, enum keys_role role, int join)
{
    if (!peer->user)
        return 1;
    const struct keyring_key *k = keyring_user(&a->ring, peer->user);
    auth_spoke(a, peer->fd, peer->user, k && k->invite);
    if (k && k->role == role && k->invite == join && !over(k))
        return 1;
    if (k && k->invite && !over(k))
        auth_complain(a, "%s sent with the invitation '%s' what is no Join", auth_address(a, peer->fd), k->name);
    else if (k && k->role == role && !over(k))
        auth_complain(a, "%s asks to join, and has a key already", auth_address(a, peer->fd));
    else
        auth_complain(a, "%s: its key %s", auth_address(a, peer->fd), k ? "is over" : "was revoked");
    auth_shut(a, peer->fd);
    return 0;
}

static void bad_line(void *arg, size_t line, const char *why)
{
    struct auth *a = arg;
    log_error("'%s':%zu: lets nobody in: %s", a->file, line, why);
}

void auth_take_text(struct auth *a, const char *text, size_t len)
{
    struct err e;
    size_t before = a->ring.count;
    pthread_mutex_lock(&a->lock);
    enum status st = keyring_read(&a->ring, text, len, bad_line, a, &e);
    pthread_mutex_unlock(&a->lock);
    if (st != ST_OK)
        auth_no_memory(a);
    if (a->ring.count != before || !a->listening)
        log_info("keys and invitations for the network: %zu", a->ring.count);
    if (!a->listening)
        return;
    auth_drop_revoked(a);
    size_t i = 0;
    for (struct worker *w; (w = link_next(a->d->link, &i));)
        if (!auth_may(a, &w->peer, KEYS_NODE)) {
            log_warn("worker %s: its key was revoked; its leases go to others", w->name);
            link_ended(a->d->link, w->number, WORKER_LOST, NULL, 0);
            i = 0; /* the table has changed */
        }
}

/* An IPv4 address as people write it: a socket for both families shows it in the clothes of an IPv6 one. */
const char *auth_plain_ip(const char *ip)
{
    return strncmp(ip, "::ffff:", 7) == 0 && strchr(ip, '.') ? ip + 7 : ip;
}

/* ZeroMQ's questions ----------------------------------------------------------------------------------------------------------------- */

static const char *judge(struct auth *a, const char *domain, const char *mechanism, const uint8_t *key, size_t key_len, const char *address, uint32_t *user)
{
    char z85[KEYS_Z85 + 1];
    *user = 0;
    if (strcmp(mechanism, "CURVE") != 0 || key_len != 32 || !zmq_z85_encode(z85, key, 32)) {
        auth_complain(a, "%s shows no key", address);
        return "a key is wanted";
    }
    const struct keyring_key *k = keyring_find(&a->ring, z85);
    if (!k) {
        auth_complain(a, "%s: its key %s is not known here", address, z85);
        return "this key is not known here";
    }
    if (strcmp(domain, domain_of(k->role)) != 0) {
        auth_complain(a, "%s: '%s' has the key of a %s, and this is the port for %s", address, k->name, keys_role_word(k->role), domain);
        return k->role == KEYS_NODE ? "a node's key opens the workers' port alone" : "a client's key opens the clients' port alone";
    }
    if (over(k)) {
        auth_complain(a, "%s: the %s '%s' is over", address, k->invite ? "invitation" : "key", k->name);
        return "this invitation is over";
    }
    *user = k->user;
    return NULL;
}

static void answer(struct auth *a, const char *id, size_t id_len, const char *code, const char *text, const char *user)
{
    int failed = zmq_send(a->zap, "1.0", 3, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 || zmq_send(a->zap, id, id_len, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 ||
                 zmq_send(a->zap, code, 3, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 || zmq_send(a->zap, text, strlen(text), ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 ||
                 zmq_send(a->zap, user, strlen(user), ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 || zmq_send(a->zap, "", 0, ZMQ_DONTWAIT) < 0;
    if (failed)
        log_debug("a peer was gone before it could be let in: %s", zmq_strerror(errno));
}

/* 0: there is none. The frames: version, id, domain, address, identity, mechanism, credentials. */
static int question(struct auth *a)
{
    char frames[ZAP_FRAMES][256];
    size_t lengths[ZAP_FRAMES] = {0};
    for (size_t i = 0;; i++) {
        char spare[256];
        char *to = i < ZAP_FRAMES ? frames[i] : spare;
        int n = zmq_recv(a->zap, to, sizeof spare - 1, ZMQ_DONTWAIT);
        if (n < 0)
            return 0;
        size_t len = n < (int)sizeof spare ? (size_t)n : sizeof spare - 1;
        to[len] = 0;
        if (i < ZAP_FRAMES)
            lengths[i] = len;
        int more = 0;
        size_t size = sizeof more;
        zmq_getsockopt(a->zap, ZMQ_RCVMORE, &more, &size);
        if (more)
            continue;
        uint32_t user = 0;
        const char *why = i + 1 < ZAP_FRAMES ? "a key is wanted"
                                             : judge(a, frames[2], frames[5], (const uint8_t *)frames[6], lengths[6], auth_plain_ip(frames[3]), &user);
        char digits[16];
        snprintf(digits, sizeof digits, "%" PRIu32, user);
        answer(a, frames[1], lengths[1], why ? "400" : "200", why ? why : "", why ? "" : digits);
        return 1;
    }
}

static int readable(void *socket)
{
    int events = 0;
    size_t size = sizeof events;
    zmq_getsockopt(socket, ZMQ_EVENTS, &events, &size);
    return (events & ZMQ_POLLIN) != 0;
}

void auth_prepare_turn(struct auth *a, int *busy)
{
    *busy |= readable(a->zap) || readable(a->watch[0].monitor) || readable(a->watch[1].monitor);
}

/* The questions first: who was let in was accepted before, and its messages are read behind this. */
void auth_turn(struct auth *a)
{
    for (int i = 0; i < QUESTIONS_A_TURN && question(a); i++)
        ;
    auth_watch_turn(a, &a->watch[0]);
    auth_watch_turn(a, &a->watch[1]);
}

void auth_second(struct auth *a)
{
    auth_watch_second(a);
    if (a->unsaid && clock_ms() - a->said_ms > 10000) {
        log_warn("refused: %" PRIu64 " more", a->unsaid);
        a->unsaid = 0;
    }
}

/* Opening and closing ---------------------------------------------------------------------------------------------------------------- */

static enum status read_at_start(struct auth *a, struct err *e)
{
    struct buf text = {0};
    enum status st = path_read(a->file, KEYRING_FILE_MAX, &text, e);
    if (st == ST_OK || st == ST_NOT_FOUND) {
        auth_take_text(a, text.len ? text.data : "", text.len);
        if (!a->ring.count)
            log_warn("nobody may come in over the network yet: 'ebb invite --node' or 'ebb invite --client' lets them");
        st = ST_OK;
    }
    buf_release(&text);
    return st;
}

enum status auth_open(struct daemon *d, struct err *e)
{
    const struct config *c = d->config;
    if (!c->listen || !*c->listen)
        return ST_OK;
    if (!c->roots || !*c->roots)
        return err_set(e, ST_USER, "'listen' lets clients of other machines in, and 'roots' does not say which folders they may name: set it ('roots: [/]' is all of them)");
    struct auth *a = mem_zalloc(sizeof *a);
    if (!a)
        return err_nomem(e, "keys");
    a->d = d;
    a->first = a->last = -1;
    pthread_mutex_init(&a->lock, NULL);
    char *own = path_join(c->state_dir, KEYS_DAEMON_FILE);
    a->dir = path_join(c->state_dir, KEYS_DIR);
    a->file = path_join(c->state_dir, KEYS_AUTHORIZED_FILE);
    enum status st = own && a->dir && a->file ? keys_read(own, KEYS_DAEMON, &a->keys, e) : err_nomem(e, "keys");
    if (st == ST_NOT_FOUND)
        st = err_set(e, ST_USER, "'listen' names '%s', and there are no keys, without which nothing may be said over a network: make them with 'ebb keygen --state %s'",
                     c->listen[0], c->state_dir);
    if (st == ST_OK)
        st = read_at_start(a, e);
    mem_free(own);
    d->auth = a;
    if (st != ST_OK)
        auth_close(d);
    return st;
}

static int same_list(char *const *x, char *const *y)
{
    for (; x && y && *x && *y && strcmp(*x, *y) == 0; x++, y++)
        ;
    return (!x || !*x) && (!y || !*y);
}

enum status auth_reload(struct daemon *d, const struct config *next, struct err *e)
{
    if (d->auth && (!next->roots || !*next->roots))
        return err_set(e, ST_USER, "'roots' must be said while clients come in over the network");
    if (!same_list(d->config->listen, next->listen))
        log_warn("'listen' needs a restart");
    if (d->auth)
        auth_read_again(d->auth);
    return ST_OK;
}

void auth_examine(const struct daemon *d, void (*say)(void *arg, const char *name, int ok, const char *text), void *arg)
{
    const struct auth *a = d->auth;
    char text[300];
    size_t open = 0, keys = 0;
    if (!a) {
        say(arg, "network", 1, "no other machine may come in: 'listen' is not set");
        return;
    }
    for (size_t i = 0; i < a->ring.count; i++) {
        const struct keyring_key *k = &a->ring.keys[i];
        open += k->invite && !over(k);
        keys += !k->invite && !over(k);
    }
    snprintf(text, sizeof text, "%s%s, %zu keys, %zu open invitations; refused since the start: %" PRIu64 "%s", d->config->listen[0],
             d->config->listen[1] ? " and more" : "", keys, open, a->refused, a->refused ? " (the log says who)" : "");
    say(arg, "network", 1, text);
}

static void on_poll(uv_poll_t *h, int status, int events)
{
    (void)h;
    (void)status;
    (void)events;
}

static void on_change(uv_fs_poll_t *h, int status, const uv_stat_t *before, const uv_stat_t *now)
{
    (void)status;
    (void)before;
    (void)now;
    auth_read_again(h->data);
}

/* Each connection is a file; the usual 1024 are few for a pool, and for whoever opens many to do harm. */
static int raise_files(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r))
        return 256;
    if (r.rlim_cur < r.rlim_max) {
        rlim_t before = r.rlim_cur;
        r.rlim_cur = r.rlim_max < 65536 ? r.rlim_max : 65536;
        if (r.rlim_cur < before || setrlimit(RLIMIT_NOFILE, &r))
            r.rlim_cur = before;
    }
    return r.rlim_cur / 4 < 2048 ? (int)(r.rlim_cur / 4) : 2048;
}

static enum status open_zap(struct auth *a, void *context, struct err *e)
{
    int fd = -1;
    size_t size = sizeof fd;
    TRY(sock_gate_open(context, &a->zap, e));
    a->context = context;
    if (zmq_getsockopt(a->zap, ZMQ_FD, &fd, &size))
        return err_set(e, ST_ENV, "cannot answer for keys: %s", zmq_strerror(errno));
    uv_poll_init(&a->d->uv, &a->zap_poll, fd);
    a->zap_poll.data = a;
    a->handles++;
    uv_poll_start(&a->zap_poll, UV_READABLE, on_poll);
    return ST_OK;
}

/* "tcp://HOST:PORT" with the port moved. */
static enum status bind_at(const struct auth *a, struct sock *s, const char *endpoint, int more, const char *domain, struct err *e)
{
    char text[KEYS_ENDPOINT_MAX];
    const char *colon = strrchr(endpoint, ':');
    BUG_IF(!colon || colon - endpoint > 200, "an endpoint '%s' was let in", endpoint);
    snprintf(text, sizeof text, "%.*s:%d", (int)(colon - endpoint), endpoint, atoi(colon + 1) + more);
    return sock_bind(s, text, &a->keys, domain, e);
}

enum status auth_listen(struct auth *a, void *context, struct sock *workers, struct sock *clients, struct err *e)
{
    a->most_waiting = raise_files();
    TRY(open_zap(a, context, e));
    TRY(auth_watch_open(a, &a->watch[0], context, workers, "inproc://ebb.watch.workers", e));
    TRY(auth_watch_open(a, &a->watch[1], context, clients, "inproc://ebb.watch.clients", e));
    for (char **at = a->d->config->listen; *at; at++) {
        if (a->port_count == sizeof a->ports / sizeof *a->ports)
            return err_set(e, ST_USER, "'listen' names more than %zu endpoints", a->port_count);
        a->ports[a->port_count++] = atoi(strrchr(*at, ':') + 1);
        TRY(bind_at(a, workers, *at, 0, SOCK_NODES, e));
        TRY(bind_at(a, clients, *at, 1, SOCK_CLIENTS, e));
        log_info("listens at '%s' for workers, one port on for clients; the daemon's public key is %s", *at, a->keys.public_key);
    }
    uv_fs_poll_init(&a->d->uv, &a->changes);
    a->changes.data = a;
    a->handles++;
    uv_fs_poll_start(&a->changes, on_change, a->file, 1000);
    a->listening = 1;
    return ST_OK;
}

static void let_go(struct auth *a)
{
    if (a->handles || !a->closed)
        return;
    keyring_release(&a->ring);
    keys_wipe(&a->keys);
    pthread_mutex_destroy(&a->lock);
    mem_free(a->dir);
    mem_free(a->file);
    mem_free(a->fds);
    mem_free(a);
}

static void on_closed(uv_handle_t *h)
{
    struct auth *a = h->data;
    a->handles--;
    let_go(a);
}

void auth_close(struct daemon *d)
{
    struct auth *a = d->auth;
    if (!a)
        return;
    d->auth = NULL;
    BUG_IF(a->editing, "keys are closed while their file is written");
    auth_edits_release(a);
    uv_handle_t *handles[] = {(uv_handle_t *)&a->zap_poll, (uv_handle_t *)&a->changes, (uv_handle_t *)&a->watch[0].poll, (uv_handle_t *)&a->watch[1].poll};
    for (size_t i = 0; i < sizeof handles / sizeof *handles; i++)
        if (handles[i]->data)
            uv_close(handles[i], on_closed);
    for (int i = 0; i < 2; i++) {
        if (a->watch[i].sock)
            zmq_socket_monitor(sock_zmq(a->watch[i].sock), NULL, 0); /* it would go on telling nobody, and lose the words */
        if (a->watch[i].monitor)
            zmq_close(a->watch[i].monitor);
    }
    sock_gate_close(a->context, a->zap);
    a->closed = 1;
    let_go(a);
}
