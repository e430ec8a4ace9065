#include "wire/sock.h"

#include <dirent.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/mem.h"

#define HIGH_IPC 100000 /* messages on their way */
#define HIGH_TCP 4000
#define HEARTBEAT_MS 5000
#define HEARTBEAT_DEAD_MS 20000
#define HANDSHAKE_MS 10000 /* for who connects to show its key */
#define CONNECT_MS 10000
#define CURVE_ADDS 64 /* bytes, to a message; a few less in truth */

struct sock {
    void *zmq, *context;
    int router;
    size_t longest; /* message that the other end takes */
    int few;        /* messages of a peer that are kept until they are read; 0: as many as usual */
    int64_t short_most; /* bytes of a message that is taken; 0: as usual */
    struct buf bytes; /* of the message being encoded */
};

static int is_tcp(const char *endpoint)
{
    return strncmp(endpoint, "tcp://", 6) == 0;
}

static void set(struct sock *s, int option, int value)
{
    int failed = zmq_setsockopt(s->zmq, option, &value, sizeof value);
    BUG_IF(failed, "option %d of a socket: %s", option, zmq_strerror(errno));
}

static enum status make(void *context, int type, struct sock **out, struct err *e)
{
    struct sock *s = mem_zalloc(sizeof *s);
    if (!s)
        return err_nomem(e, "a socket");
    s->zmq = zmq_socket(context, type);
    if (!s->zmq) {
        mem_free(s);
        return err_set(e, ST_ENV, "cannot make a socket: %s", zmq_strerror(errno));
    }
    s->context = context;
    s->router = type == ZMQ_ROUTER;
    s->longest = WIRE_MAX_MESSAGE;
    set(s, ZMQ_LINGER, 1000);
    if (s->router) {
        set(s, ZMQ_ROUTER_MANDATORY, 1);
        set(s, ZMQ_ROUTER_HANDOVER, 1);
    }
    *out = s;
    return ST_OK;
}

/* ZeroMQ takes these over for the endpoint that is bound or connected next: a ROUTER with several has them for each. */
static void tune(struct sock *s, const char *endpoint)
{
    int tcp = is_tcp(endpoint);
    int64_t most = s->short_most ? s->short_most : s->router && tcp ? SOCK_MAX_TCP : WIRE_MAX_MESSAGE;
    zmq_setsockopt(s->zmq, ZMQ_MAXMSGSIZE, &most, sizeof most);
    set(s, ZMQ_SNDHWM, tcp ? HIGH_TCP : HIGH_IPC);
    set(s, ZMQ_RCVHWM, s->few ? s->few : tcp ? HIGH_TCP : HIGH_IPC);
    set(s, ZMQ_IPV6, tcp);
    /* A connection whose other end went without a word: both sides notice. The threads of ZeroMQ answer, so that a busy program is no dead one. */
    set(s, ZMQ_HEARTBEAT_IVL, tcp ? HEARTBEAT_MS : 0);
    set(s, ZMQ_HEARTBEAT_TIMEOUT, tcp ? HEARTBEAT_DEAD_MS : 0);
    set(s, ZMQ_HEARTBEAT_TTL, tcp ? HEARTBEAT_DEAD_MS : 0);
    set(s, ZMQ_TCP_KEEPALIVE, tcp ? 1 : -1);
    set(s, ZMQ_TCP_KEEPALIVE_IDLE, tcp ? 30 : -1);
    set(s, ZMQ_TCP_KEEPALIVE_INTVL, tcp ? 10 : -1);
    set(s, ZMQ_TCP_KEEPALIVE_CNT, tcp ? 3 : -1);
    set(s, ZMQ_TCP_MAXRT, tcp ? HEARTBEAT_DEAD_MS : 0);
    set(s, ZMQ_HANDSHAKE_IVL, tcp ? HANDSHAKE_MS : 30000);
    set(s, ZMQ_BACKLOG, tcp ? 1024 : 128);
    set(s, ZMQ_CONNECT_TIMEOUT, tcp ? CONNECT_MS : 0);
    set(s, ZMQ_RECONNECT_IVL, 50);
    set(s, ZMQ_RECONNECT_IVL_MAX, tcp ? 4000 : 1000);
}

static void plain(struct sock *s)
{
    set(s, ZMQ_CURVE_SERVER, 0);
    zmq_setsockopt(s->zmq, ZMQ_ZAP_DOMAIN, "", 0);
}

/* Whoever reaches a port without keys is let in, and the file's mode that guards an ipc socket guards no port. */
static enum status refuse_bare(const char *endpoint, const struct keys *keys, struct err *e)
{
    return is_tcp(endpoint) && !keys ? err_set(e, ST_USER, "'%s' needs keys: nothing is said over tcp without them", endpoint) : ST_OK;
}

/* Contexts with a gate. Without one ZeroMQ would let in whoever knows the daemon's public key, which is no secret. */
static pthread_mutex_t gates_lock = PTHREAD_MUTEX_INITIALIZER;
static void *gates[16];
#define GATES (sizeof gates / sizeof *gates)

static int swap_gate(void *from, void *to)
{
    size_t i = 0;
    pthread_mutex_lock(&gates_lock);
    while (i < GATES && gates[i] != from)
        i++;
    if (i < GATES)
        gates[i] = to;
    pthread_mutex_unlock(&gates_lock);
    return i < GATES;
}

enum status sock_gate_open(void *context, void **zap, struct err *e)
{
    int none = 0;
    *zap = zmq_socket(context, ZMQ_REP);
    if (!*zap || zmq_setsockopt(*zap, ZMQ_LINGER, &none, sizeof none) || zmq_setsockopt(*zap, ZMQ_RCVHWM, &none, sizeof none) ||
        zmq_setsockopt(*zap, ZMQ_SNDHWM, &none, sizeof none) || zmq_bind(*zap, "inproc://zeromq.zap.01") || !swap_gate(NULL, context)) {
        enum status st = err_set(e, ST_ENV, "cannot answer for keys: %s", zmq_strerror(errno));
        if (*zap)
            zmq_close(*zap);
        *zap = NULL;
        return st;
    }
    return ST_OK;
}

void sock_gate_close(void *context, void *zap)
{
    if (!zap)
        return;
    swap_gate(context, NULL);
    zmq_close(zap);
}

enum status sock_bind(struct sock *s, const char *endpoint, const struct keys *keys, const char *domain, struct err *e)
{
    TRY(refuse_bare(endpoint, keys, e));
    if (keys && *domain && !swap_gate(s->context, s->context))
        return err_set(e, ST_ENV, "'%s' cannot be listened at: nobody is there to say which keys may come in", endpoint);
    tune(s, endpoint);
    if (keys) {
        set(s, ZMQ_CURVE_SERVER, 1);
        if (zmq_setsockopt(s->zmq, ZMQ_CURVE_SECRETKEY, keys->secret_key, KEYS_Z85 + 1) ||
            (*domain && zmq_setsockopt(s->zmq, ZMQ_ZAP_DOMAIN, domain, strlen(domain))))
            return err_set(e, ST_ENV, "cannot use the daemon's keys: %s", zmq_strerror(errno));
    } else {
        plain(s);
    }
    if (zmq_bind(s->zmq, endpoint))
        return err_set(e, ST_ENV, "cannot listen at '%s': %s", endpoint, zmq_strerror(errno));
    return ST_OK;
}

enum status sock_router(void *context, const char *endpoint, const struct keys *keys, struct sock **out, struct err *e)
{
    struct sock *s;
    TRY(make(context, ZMQ_ROUTER, &s, e));
    enum status st = sock_bind(s, endpoint, keys, SOCK_NODES, e);
    if (st != ST_OK) {
        sock_close(s);
        return st;
    }
    *out = s;
    return ST_OK;
}

enum status sock_router_few(void *context, int few, size_t longest, struct sock **out, struct err *e)
{
    TRY(make(context, ZMQ_ROUTER, out, e));
    (*out)->few = few;
    (*out)->short_most = (int64_t)longest;
    return ST_OK;
}

static enum status dealer_new(void *context, const char *endpoint, const struct keys *keys, const void *identity, size_t identity_len, struct sock **out,
                              struct err *e)
{
    struct sock *s;
    TRY(refuse_bare(endpoint, keys, e));
    TRY(make(context, ZMQ_DEALER, &s, e));
    tune(s, endpoint);
    if (is_tcp(endpoint))
        s->longest = SOCK_MAX_TCP - CURVE_ADDS;
    if (identity)
        zmq_setsockopt(s->zmq, ZMQ_ROUTING_ID, identity, identity_len);
    if (keys && (zmq_setsockopt(s->zmq, ZMQ_CURVE_SERVERKEY, keys->server_key, KEYS_Z85 + 1) ||
                 zmq_setsockopt(s->zmq, ZMQ_CURVE_PUBLICKEY, keys->public_key, KEYS_Z85 + 1) ||
                 zmq_setsockopt(s->zmq, ZMQ_CURVE_SECRETKEY, keys->secret_key, KEYS_Z85 + 1))) {
        enum status st = err_set(e, ST_ENV, "cannot use these keys: %s", zmq_strerror(errno));
        sock_close(s);
        return st;
    }
    *out = s;
    return ST_OK;
}

static enum status start_connecting(struct sock *s, const char *endpoint, struct err *e)
{
    return zmq_connect(s->zmq, endpoint) ? err_set(e, ST_ENV, "cannot connect to '%s': %s", endpoint, zmq_strerror(errno)) : ST_OK;
}

enum status sock_dealer(void *context, const char *endpoint, const struct keys *keys, const void *identity, size_t identity_len, struct sock **out,
                        struct err *e)
{
    struct sock *s;
    TRY(dealer_new(context, endpoint, keys, identity, identity_len, &s, e));
    enum status st = start_connecting(s, endpoint, e);
    if (st != ST_OK) {
        sock_close(s);
        return st;
    }
    *out = s;
    return ST_OK;
}

enum status sock_dealer_apart(void *context, const char *endpoint, const struct keys *keys, struct sock **out, struct err *e)
{
    return dealer_new(context, endpoint, keys, NULL, 0, out, e);
}

void sock_sweep(const char *folder, const char *prefix, int age_s)
{
    DIR *d = opendir(folder);
    for (struct dirent *x; d && (x = readdir(d));) {
        struct sockaddr_un a = {.sun_family = AF_UNIX};
        struct stat s;
        if (strncmp(x->d_name, prefix, strlen(prefix)) != 0 || snprintf(a.sun_path, sizeof a.sun_path, "%s/%s", folder, x->d_name) >= (int)sizeof a.sun_path ||
            lstat(a.sun_path, &s) || !S_ISSOCK(s.st_mode) || time(NULL) - s.st_mtime < age_s)
            continue;
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) && errno == ECONNREFUSED)
            unlink(a.sun_path);
        if (fd >= 0)
            close(fd);
    }
    if (d)
        closedir(d);
}

enum status sock_own_address(const char *endpoint, char *out, size_t size, struct err *e)
{
    if (strncmp(endpoint, "tcp://", 6) != 0) {
        snprintf(out, size, "127.0.0.1");
        return ST_OK;
    }
    char host[256];
    const char *colon = strrchr(endpoint, ':'), *from = endpoint + 6;
    if (colon < from)
        return err_set(e, ST_ENV, "'%s' names no port", endpoint);
    size_t n = (size_t)(colon - from);
    if (n >= 2 && *from == '[')
        from++, n -= 2;
    snprintf(host, sizeof host, "%.*s", (int)n, from);
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM}, *found = NULL;
    int failed = getaddrinfo(host, colon + 1, &hints, &found);
    if (failed)
        return err_set(e, ST_ENV, "cannot find '%s': %s", host, gai_strerror(failed));
    enum status st = err_set(e, ST_ENV, "cannot tell which address faces '%s'", host);
    int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct sockaddr_storage own;
    socklen_t len = sizeof own;
    char text[200];
    if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0 && getsockname(fd, (struct sockaddr *)&own, &len) == 0 &&
        getnameinfo((struct sockaddr *)&own, len, text, sizeof text, NULL, 0, NI_NUMERICHOST) == 0) {
        snprintf(out, size, own.ss_family == AF_INET6 ? "[%s]" : "%s", text);
        st = ST_OK;
    }
    if (fd >= 0)
        close(fd);
    freeaddrinfo(found);
    return st;
}

/* Why does a connection not come about? ZeroMQ tries for ever, and does not say. */
static enum status probe(const char *endpoint, int timeout_ms, struct err *e)
{
    char host[256];
    const char *at = endpoint + 6, *colon = strrchr(at, ':');
    int bracketed = *at == '[';
    snprintf(host, sizeof host, "%.*s", (int)(colon - at) - 2 * bracketed, at + bracketed);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    int failed = getaddrinfo(host, colon + 1, &hints, &list);
    if (failed)
        return err_set(e, ST_ENV, "there is no address for the host '%s': %s", host, gai_strerror(failed));
    enum status st = ST_ENV;
    for (struct addrinfo *a = list; a && st != ST_OK; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), why = 0;
        socklen_t size = sizeof why;
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        if (fd < 0 || (connect(fd, a->ai_addr, a->ai_addrlen) && errno != EINPROGRESS))
            why = errno;
        else if (poll(&p, 1, timeout_ms) <= 0)
            why = ETIMEDOUT;
        else
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &size);
        if (fd >= 0)
            close(fd);
        st = why ? err_set(e, ST_ENV, "no daemon can be reached at '%s': %s%s", endpoint, strerror(why),
                           why == ECONNREFUSED ? "; is ebbd running there, with 'listen' in its configuration" : "")
                 : ST_OK;
    }
    freeaddrinfo(list);
    return st;
}

/* The next event, up to timeout_ms: 0 when there is none. */
static int next_event(void *monitor, long timeout_ms, uint16_t *event, uint32_t *value)
{
    zmq_pollitem_t item = {.socket = monitor, .events = ZMQ_POLLIN};
    uint8_t bytes[8] = {0};
    char address[8];
    if (zmq_poll(&item, 1, timeout_ms) <= 0 || zmq_recv(monitor, bytes, sizeof bytes, ZMQ_DONTWAIT) < 0)
        return 0;
    zmq_recv(monitor, address, sizeof address, ZMQ_DONTWAIT);
    memcpy(event, bytes, sizeof *event);
    memcpy(value, bytes + sizeof *event, sizeof *value);
    return 1;
}

static enum status wait_handshake(void *monitor, const char *endpoint, const struct keys *keys, uint64_t timeout_ms, struct err *e)
{
    int connected = 0, broken = 0;
    for (uint64_t now = clock_ms(), until = now + timeout_ms; now < until; now = clock_ms()) {
        uint16_t event = 0;
        uint32_t value = 0;
        if (!next_event(monitor, (long)(until - now), &event, &value))
            continue;
        if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED)
            return ST_OK;
        if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
            return err_set(e, ST_USER, "the daemon at '%s' does not let the key %s in: it is not known there, was revoked, or is for another port", endpoint,
                           keys->public_key);
        connected |= event == ZMQ_EVENT_CONNECTED;
        /* Once may be a daemon that is just ending. */
        broken += event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL || event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL;
        if (broken > 2)
            return err_set(e, ST_ENV, "who listens at '%s' is not the daemon whose public key is %s: it has been given new keys, or something else "
                                      "listens there", endpoint, keys->server_key);
        if (event == ZMQ_EVENT_CONNECT_RETRIED && !connected)
            TRY(probe(endpoint, timeout_ms > 5000 ? 5000 : (int)timeout_ms, e));
    }
    if (!connected)
        TRY(probe(endpoint, 1000, e));
    return err_set(e, ST_ENV, "the daemon at '%s' did not answer within %d s", endpoint, (int)(timeout_ms / 1000));
}

enum status sock_meet(void *context, const char *endpoint, const struct keys *keys, uint64_t timeout_ms, struct sock **out, struct err *e)
{
    static _Atomic unsigned last;
    struct sock *s;
    char name[40];
    int none = 0;
    TRY(dealer_new(context, endpoint, keys, NULL, 0, &s, e));
    snprintf(name, sizeof name, "inproc://ebb.meet.%u", ++last);
    void *monitor = NULL;
    enum status st = ST_OK;
    if (zmq_socket_monitor(s->zmq, name, ZMQ_EVENT_ALL) || !(monitor = zmq_socket(context, ZMQ_PAIR)) || zmq_connect(monitor, name) ||
        zmq_setsockopt(monitor, ZMQ_LINGER, &none, sizeof none))
        st = err_set(e, ST_ENV, "cannot watch the connection: %s", zmq_strerror(errno));
    if (st == ST_OK)
        st = start_connecting(s, endpoint, e);
    if (st == ST_OK)
        st = wait_handshake(monitor, endpoint, keys, timeout_ms, e);
    zmq_socket_monitor(s->zmq, NULL, 0);
    if (monitor)
        zmq_close(monitor);
    if (st != ST_OK) {
        set(s, ZMQ_LINGER, 0);
        sock_close(s);
        return st;
    }
    *out = s;
    return ST_OK;
}

void sock_close(struct sock *s)
{
    if (!s)
        return;
    zmq_close(s->zmq);
    buf_release(&s->bytes);
    mem_free(s);
}

void *sock_zmq(struct sock *s)
{
    return s->zmq;
}

int sock_fd(struct sock *s)
{
    int fd = -1;
    size_t size = sizeof fd;
    zmq_getsockopt(s->zmq, ZMQ_FD, &fd, &size);
    return fd;
}

int sock_readable(struct sock *s)
{
    int events = 0;
    size_t size = sizeof events;
    zmq_getsockopt(s->zmq, ZMQ_EVENTS, &events, &size);
    return (events & ZMQ_POLLIN) != 0;
}

enum status sock_send(struct sock *s, const struct sock_peer *peer, Ebb__Envelope__BodyCase which, void *body, struct err *e)
{
    TRY(wire_encode(which, body, &s->bytes, e));
    if (s->bytes.len > s->longest)
        return err_set(e, ST_USER, "a message of %zu bytes is longer than the %zu allowed over tcp", s->bytes.len, s->longest);
    if (s->router && zmq_send(s->zmq, peer->id, peer->len, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0)
        return errno == EHOSTUNREACH ? err_set(e, ST_NOT_FOUND, "the peer is gone")
                                     : err_set(e, ST_AGAIN, "cannot send: %s", zmq_strerror(errno));
    if (zmq_send(s->zmq, s->bytes.data, s->bytes.len, ZMQ_DONTWAIT) < 0)
        return err_set(e, ST_AGAIN, "cannot send: %s", zmq_strerror(errno));
    return ST_OK;
}

static enum status frame(struct sock *s, zmq_msg_t *m, int *more, struct err *e)
{
    zmq_msg_init(m);
    while (zmq_msg_recv(m, s->zmq, ZMQ_DONTWAIT) < 0) {
        if (errno == EINTR)
            continue;
        zmq_msg_close(m);
        return err_set(e, ST_AGAIN, "nothing to receive");
    }
    *more = zmq_msg_more(m);
    return ST_OK;
}

/* The ZAP handler calls a key by a number. A plain peer could claim one, and gain nothing by it: it may all that a key may. */
static void whose(zmq_msg_t *m, struct sock_peer *peer)
{
    const char *user = zmq_msg_gets(m, "User-Id");
    unsigned long number = user ? strtoul(user, NULL, 10) : 0;
    peer->user = number <= UINT32_MAX ? (uint32_t)number : 0;
    peer->fd = zmq_msg_get(m, ZMQ_SRCFD);
}

enum status sock_receive(struct sock *s, struct sock_peer *peer, Ebb__Envelope **out, struct err *e)
{
    zmq_msg_t m;
    int more = 0;
    TRY(frame(s, &m, &more, e));
    if (s->router) {
        size_t n = zmq_msg_size(&m);
        peer->len = (uint8_t)(n <= SOCK_PEER_MAX ? n : 0); /* a longer name is nobody we can answer */
        memcpy(peer->id, zmq_msg_data(&m), peer->len);
        zmq_msg_close(&m);
        if (!more)
            return err_set(e, ST_CORRUPT, "a message without a body");
        TRY(frame(s, &m, &more, e));
    }
    if (s->router)
        whose(&m, peer);
    enum status st = more ? err_set(e, ST_CORRUPT, "a message of too many frames") : wire_decode(zmq_msg_data(&m), zmq_msg_size(&m), out, e);
    zmq_msg_close(&m);
    while (more && frame(s, &m, &more, e) == ST_OK)
        zmq_msg_close(&m);
    return st;
}

int sock_wait(struct sock *s, int timeout_ms)
{
    zmq_pollitem_t item = {.socket = s->zmq, .events = ZMQ_POLLIN};
    int n = zmq_poll(&item, 1, timeout_ms);
    return n < 0 ? -1 : n > 0;
}

int sock_event(void *monitor)
{
    zmq_msg_t m;
    uint16_t event = 0;
    zmq_msg_init(&m);
    if (zmq_msg_recv(&m, monitor, ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(&m);
        return 0;
    }
    if (zmq_msg_size(&m) >= sizeof event)
        memcpy(&event, zmq_msg_data(&m), sizeof event);
    while (zmq_msg_more(&m)) { /* the address: both came at once */
        zmq_msg_close(&m);
        zmq_msg_init(&m);
        if (zmq_msg_recv(&m, monitor, ZMQ_DONTWAIT) < 0)
            break;
    }
    zmq_msg_close(&m);
    return event;
}
