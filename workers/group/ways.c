#include "workers/group/ways.h"

#include <inttypes.h>
#include <string.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "wire/sock.h"
#include "wire/wire.h"

#define PINGS 5
#define PIECES 4
#define PIECE_BYTES (256u << 10)
#define FIRST_MS 2000   /* a connection has to be made for it */
#define MOST_MS 5000
#define TURN_MS 100     /* until it is asked again whether to go on */

struct asking {
    void *zmq;
    int (*goes_on)(void *arg);
    void *arg;
    uint64_t next_id;
};

static void free_bytes(void *data, void *hint)
{
    (void)hint;
    mem_free(data);
}

/* 0, or -1: it did not leave. */
static int ask(struct asking *a, size_t bytes)
{
    Ebb__LinkProbe m = EBB__LINK_PROBE__INIT;
    struct buf envelope = {.data = NULL};
    struct err e;
    zmq_msg_t head, body;
    m.id = ++a->next_id;
    if (wire_encode(EBB__ENVELOPE__BODY_LINK_PROBE, &m, &envelope, &e) != ST_OK)
        return -1;
    if (zmq_msg_init_data(&head, envelope.data, envelope.len, free_bytes, NULL)) {
        buf_release(&envelope);
        return -1;
    }
    int sent = zmq_msg_init_size(&body, bytes) == 0;
    if (sent) {
        memset(zmq_msg_data(&body), 0, bytes);
        sent = zmq_msg_send(&head, a->zmq, ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 && zmq_msg_send(&body, a->zmq, ZMQ_DONTWAIT) >= 0;
        if (!sent)
            zmq_msg_close(&body);
    }
    if (!sent)
        zmq_msg_close(&head);
    return sent ? 0 : -1;
}

/* Waits for the answer to `id`: 1, or 0 when it does not come before until_ms. */
static int answered(struct asking *a, uint64_t id, uint64_t until_ms)
{
    while (clock_ms() < until_ms && a->goes_on(a->arg)) {
        zmq_pollitem_t item = {.socket = a->zmq, .events = ZMQ_POLLIN};
        zmq_msg_t m;
        struct err e;
        Ebb__Envelope *x = NULL;
        if (zmq_poll(&item, 1, TURN_MS) <= 0)
            continue;
        zmq_msg_init(&m);
        if (zmq_msg_recv(&m, a->zmq, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&m);
            continue;
        }
        int is_it = wire_decode(zmq_msg_data(&m), zmq_msg_size(&m), &x, &e) == ST_OK && x->body_case == EBB__ENVELOPE__BODY_LINK_PROBE && x->link_probe->id == id;
        zmq_msg_close(&m);
        wire_free(x);
        if (is_it)
            return 1;
    }
    return 0;
}

static int measure(struct asking *a, struct way *out)
{
    uint64_t least_ns = UINT64_MAX;
    for (int i = 0; i < PINGS; i++) {
        uint64_t begun = clock_ns();
        if (ask(a, 1) || !answered(a, a->next_id, clock_ms() + FIRST_MS))
            return 0;
        uint64_t took = clock_ns() - begun;
        least_ns = took < least_ns ? took : least_ns; /* the first one waited for the connection */
    }
    uint64_t begun = clock_ns(), until_ms = clock_ms() + MOST_MS, first = a->next_id + 1;
    unsigned came = 0;
    for (int i = 0; i < PIECES; i++)
        if (ask(a, PIECE_BYTES))
            return 0;
    while (came < PIECES && answered(a, first + came, until_ms))
        came++;
    uint64_t took = clock_ns() - begun;
    took -= took > least_ns ? least_ns : 0;
    out->latency_ms = (double)least_ns / 2e6;
    out->bits_per_s = 8e9 * PIECE_BYTES * (came ? came : 1) / (double)(took ? took : 1);
    return a->goes_on(a->arg);
}

size_t ways_measure(struct carrier *c, const struct way_peer *peers, size_t n, int (*goes_on)(void *arg), void *arg, struct way *out)
{
    size_t found = 0;
    for (size_t i = 0; i < n && goes_on(arg); i++) {
        struct sock *s;
        struct err e;
        const struct carrier_peer to = {.worker = peers[i].worker, .endpoint = peers[i].endpoint, .key = peers[i].key};
        if (carrier_dial(c, &to, &s, &e) != ST_OK) {
            log_warn("the way to worker %" PRIx64 " cannot be measured: %s", to.worker, e.text);
            continue;
        }
        struct asking a = {.zmq = sock_zmq(s), .goes_on = goes_on, .arg = arg};
        out[found] = (struct way){.worker = to.worker};
        if (measure(&a, &out[found]))
            found++;
        else
            log_warn("the way to worker %" PRIx64 " cannot be measured: it does not answer at '%s'", to.worker, to.endpoint);
        int none = 0;
        zmq_setsockopt(a.zmq, ZMQ_LINGER, &none, sizeof none);
        sock_close(s);
    }
    return found;
}
