/* Connections over tcp: who came, and why one went before it had shown a key. ZeroMQ tells of them in the order in which its one thread saw them, so that
   the number of a connection's file means the connection accepted last under it, or one that has come since: an action on a wrong one shuts it, and
   it connects again.

   Connections that have not been heard of wait in a queue: of more than most_waiting the oldest go, and all after a minute. Without that, connections
   that say nothing could take all the files that a process may have. */
#include "daemon/auth_inside.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/mem.h"

#define EVENTS_A_TURN 4096
#define SILENT_MS 60000
#define MOST_FDS 1000000

static struct tcp_fd *slot(struct auth *a, int fd)
{
    if (fd < 0 || fd >= MOST_FDS)
        return NULL;
    if ((size_t)fd >= a->fd_count) {
        size_t n = ((size_t)fd + 256) & ~(size_t)255;
        struct tcp_fd *fds = mem_resize(a->fds, n * sizeof *fds);
        if (!fds)
            auth_no_memory(a);
        memset(fds + a->fd_count, 0, (n - a->fd_count) * sizeof *fds);
        a->fds = fds;
        a->fd_count = n;
    }
    return &a->fds[fd];
}

static void leave_queue(struct auth *a, int fd)
{
    struct tcp_fd *f = &a->fds[fd];
    if (!f->accepted)
        return;
    if (f->before >= 0)
        a->fds[f->before].behind = f->behind;
    else
        a->first = f->behind;
    if (f->behind >= 0)
        a->fds[f->behind].before = f->before;
    else
        a->last = f->before;
    f->accepted = 0;
    a->waiting--;
}

static void join_queue(struct auth *a, int fd)
{
    struct tcp_fd *f = &a->fds[fd];
    leave_queue(a, fd);
    f->accepted = 1;
    f->since_ms = clock_ms();
    f->before = a->last;
    f->behind = -1;
    if (a->last >= 0)
        a->fds[a->last].behind = fd;
    else
        a->first = fd;
    a->last = fd;
    a->waiting++;
}

static int is_port(const struct auth *a, int port)
{
    for (size_t i = 0; i < a->port_count; i++)
        if (port == a->ports[i] || port == a->ports[i] + 1)
            return 1;
    return 0;
}

static int port_of(const struct sockaddr_storage *s)
{
    if (s->ss_family == AF_INET)
        return ntohs(((const struct sockaddr_in *)s)->sin_port);
    return s->ss_family == AF_INET6 ? ntohs(((const struct sockaddr_in6 *)s)->sin6_port) : 0;
}

/* ZeroMQ closes the file itself when it sees the end. */
void auth_shut(struct auth *a, int fd)
{
    struct sockaddr_storage own;
    socklen_t size = sizeof own;
    if (fd >= 0 && getsockname(fd, (struct sockaddr *)&own, &size) == 0 && is_port(a, port_of(&own)))
        shutdown(fd, SHUT_RDWR);
}

void auth_spoke(struct auth *a, int fd, uint32_t user, int invited)
{
    struct tcp_fd *f = slot(a, fd);
    if (!f)
        return;
    f->user = user;
    f->invited = invited;
    leave_queue(a, fd);
}

const char *auth_address(struct auth *a, int fd)
{
    return fd >= 0 && (size_t)fd < a->fd_count && *a->fds[fd].address ? a->fds[fd].address : "a peer that has gone";
}

unsigned auth_connections(struct auth *a, uint32_t user)
{
    unsigned n = 0;
    for (size_t i = 0; i < a->fd_count; i++)
        n += a->fds[i].user == user;
    return n;
}

/* An invitation that was used is over, and yet its answer must reach the other end, which then goes by itself, or in a minute. */
void auth_drop_revoked(struct auth *a)
{
    for (size_t i = 0; i < a->fd_count; i++) {
        struct tcp_fd *f = &a->fds[i];
        if (!f->user || keyring_user(&a->ring, f->user))
            continue;
        if (f->invited) {
            join_queue(a, (int)i);
        } else {
            log_info("%s: its key was revoked; its connection is shut", f->address);
            auth_shut(a, (int)i);
        }
        f->user = 0;
    }
}

static void on_accepted(struct auth *a, int fd)
{
    struct tcp_fd *f = slot(a, fd);
    if (!f)
        return;
    struct sockaddr_storage peer;
    socklen_t size = sizeof peer;
    char ip[INET6_ADDRSTRLEN] = "";
    f->user = 0;
    f->address[0] = 0;
    if (getpeername(fd, (struct sockaddr *)&peer, &size) == 0) {
        if (peer.ss_family == AF_INET)
            inet_ntop(AF_INET, &((struct sockaddr_in *)&peer)->sin_addr, ip, sizeof ip);
        else if (peer.ss_family == AF_INET6)
            inet_ntop(AF_INET6, &((struct sockaddr_in6 *)&peer)->sin6_addr, ip, sizeof ip);
        if (*ip)
            snprintf(f->address, sizeof f->address, "%s:%d", auth_plain_ip(ip), port_of(&peer));
    }
    join_queue(a, fd);
    while (a->waiting > a->most_waiting) {
        int oldest = a->first;
        auth_complain(a, "%s: more than %d connections have not said a word, and it is the oldest", auth_address(a, oldest), a->most_waiting);
        auth_shut(a, oldest);
        leave_queue(a, oldest);
    }
}

static void on_gone(struct auth *a, struct watch *w, int fd)
{
    if (fd >= 0 && (size_t)fd < a->fd_count) {
        if (*w->why && a->fds[fd].accepted)
            auth_complain(a, "%s: %s", auth_address(a, fd), w->why);
        leave_queue(a, fd);
        a->fds[fd].user = 0;
        a->fds[fd].address[0] = 0;
    }
    w->why[0] = 0;
}

static const char *protocol_words(int code)
{
    switch (code) {
    case ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC:
        return "its handshake cannot be opened: it knows another public key of the daemon than this one's";
    case ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
        return "it speaks without keys";
    default:
        return "it does not speak as ebb does";
    }
}

static void on_event(struct auth *a, struct watch *w, uint16_t event, uint32_t value)
{
    switch (event) {
    case ZMQ_EVENT_ACCEPTED:
        on_accepted(a, (int)value);
        break;
    case ZMQ_EVENT_ACCEPT_FAILED:
        auth_complain(a, "a connection cannot be accepted: %s", strerror((int)value));
        break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
        snprintf(w->why, sizeof w->why, "%s", protocol_words((int)value));
        break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        if (!*w->why)
            snprintf(w->why, sizeof w->why, "it went, or was silent, before it had shown a key");
        break;
    case ZMQ_EVENT_DISCONNECTED:
    case ZMQ_EVENT_CLOSED:
        on_gone(a, w, (int)value);
        break;
    default:
        break;
    }
}

void auth_watch_turn(struct auth *a, struct watch *w)
{
    for (int i = 0; i < EVENTS_A_TURN; i++) {
        uint8_t bytes[8] = {0};
        char address[KEYS_ENDPOINT_MAX];
        int n = zmq_recv(w->monitor, bytes, sizeof bytes, ZMQ_DONTWAIT);
        if (n < 0)
            return;
        int m = zmq_recv(w->monitor, address, sizeof address - 1, ZMQ_DONTWAIT); /* both came at once */
        address[m < 0 ? 0 : m < (int)sizeof address ? m : (int)sizeof address - 1] = 0;
        uint16_t event;
        uint32_t value;
        memcpy(&event, bytes, sizeof event);
        memcpy(&value, bytes + sizeof event, sizeof value);
        if (n >= 6 && strncmp(address, "tcp", 3) == 0)
            on_event(a, w, event, value);
    }
}

void auth_watch_second(struct auth *a)
{
    uint64_t now = clock_ms();
    while (a->first >= 0 && now - a->fds[a->first].since_ms > SILENT_MS) {
        int fd = a->first;
        log_debug("%s: silent for %d s; its connection is shut", auth_address(a, fd), SILENT_MS / 1000);
        auth_shut(a, fd);
        leave_queue(a, fd);
    }
}

static void on_poll(uv_poll_t *h, int status, int events)
{
    (void)h;
    (void)status;
    (void)events;
}

enum status auth_watch_open(struct auth *a, struct watch *w, void *context, struct sock *s, const char *name, struct err *e)
{
    int none = 0, fd = -1;
    size_t size = sizeof fd;
    w->sock = s;
    /* No limit on what waits: ZeroMQ's thread would stand still at one, and with it every connection. */
    if (zmq_socket_monitor(sock_zmq(s), name,
                           ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_ACCEPT_FAILED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED |
                               ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL) ||
        !(w->monitor = zmq_socket(context, ZMQ_PAIR)) || zmq_setsockopt(w->monitor, ZMQ_RCVHWM, &none, sizeof none) ||
        zmq_setsockopt(w->monitor, ZMQ_LINGER, &none, sizeof none) || zmq_connect(w->monitor, name) || zmq_getsockopt(w->monitor, ZMQ_FD, &fd, &size))
        return err_set(e, ST_ENV, "cannot watch connections: %s", zmq_strerror(errno));
    uv_poll_init(&a->d->uv, &w->poll, fd);
    w->poll.data = a;
    a->handles++;
    uv_poll_start(&w->poll, UV_READABLE, on_poll);
    return ST_OK;
}
