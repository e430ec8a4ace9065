#include "wire/sock.h"

#include <errno.h>
#include <string.h>
#include <zmq.h>

#include "base/mem.h"

struct sock {
    void *zmq;
    int router;
    struct buf bytes; /* of the message being encoded */
};

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
    s->router = type == ZMQ_ROUTER;
    int linger = 1000, high = 100000, mandatory = 1, handover = 1;
    int64_t most = WIRE_MAX_MESSAGE;
    zmq_setsockopt(s->zmq, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(s->zmq, ZMQ_SNDHWM, &high, sizeof high);
    zmq_setsockopt(s->zmq, ZMQ_RCVHWM, &high, sizeof high);
    zmq_setsockopt(s->zmq, ZMQ_MAXMSGSIZE, &most, sizeof most);
    if (s->router) {
        zmq_setsockopt(s->zmq, ZMQ_ROUTER_MANDATORY, &mandatory, sizeof mandatory);
        zmq_setsockopt(s->zmq, ZMQ_ROUTER_HANDOVER, &handover, sizeof handover);
    } else {
        int first = 50, last = 1000;
        zmq_setsockopt(s->zmq, ZMQ_RECONNECT_IVL, &first, sizeof first);
        zmq_setsockopt(s->zmq, ZMQ_RECONNECT_IVL_MAX, &last, sizeof last);
    }
    *out = s;
    return ST_OK;
}

enum status sock_router(void *context, const char *endpoint, struct sock **out, struct err *e)
{
    struct sock *s;
    TRY(make(context, ZMQ_ROUTER, &s, e));
    if (zmq_bind(s->zmq, endpoint)) {
        enum status st = err_set(e, ST_ENV, "cannot listen at '%s': %s", endpoint, zmq_strerror(errno));
        sock_close(s);
        return st;
    }
    *out = s;
    return ST_OK;
}

enum status sock_dealer(void *context, const char *endpoint, const void *identity, size_t identity_len, struct sock **out, struct err *e)
{
    struct sock *s;
    TRY(make(context, ZMQ_DEALER, &s, e));
    if (identity)
        zmq_setsockopt(s->zmq, ZMQ_ROUTING_ID, identity, identity_len);
    if (zmq_connect(s->zmq, endpoint)) {
        enum status st = err_set(e, ST_ENV, "cannot connect to '%s': %s", endpoint, zmq_strerror(errno));
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
