/* The socket's thread. The happy path: a question arrives, goes to its hand at once when there is room for its answer; the answer comes back through a list and an
   eventfd, and is handed to ZeroMQ without a copy; when ZeroMQ has written it out, a function of ours is called, and the room is there again.

   What can come between: a peer that asks faster than it takes: its questions wait, and beyond some it is refused; all peers together hold more than they may: who
   waits is served in turn; disks slower than the peers: the socket is not read until they have caught up, and ZeroMQ keeps no more than a few messages of each
   peer; a peer that goes: ZeroMQ drops its answers, which frees them. */
#include "daemon/relay_inside.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <xxhash.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/mem.h"
#include "daemon/auth.h"
#include "daemon/link_inside.h"

#define TURN 64
#define LEAST_COST 4096                       /* an answer is never counted less */
#define FORGET_MS 600000

noreturn void relay_no_memory(void)
{
    log_error("ends: memory is out, for the relay; what was acknowledged is safe, start again");
    exit(1);
}

void relay_wake(struct relay *r)
{
    if (eventfd_write(r->wake_fd, 1)) {
        /* it is full of the same news */
    }
}

/* At most one line a second of what foreign bytes may cause. */
static void complain(struct relay *r, const char *what)
{
    uint64_t now = clock_ms();
    if (now - r->complaint_ms < 1000) {
        r->complaints++;
        return;
    }
    log_warn("relay: message dropped: %s (and %" PRIu64 " before it)", what, r->complaints);
    r->complaint_ms = now;
    r->complaints = 0;
}

/* Peers, tasks, answers ------------------------------------------------------------------------------------------------------------- */

static struct peer *peer_ref(struct peer *p)
{
    atomic_fetch_add(&p->refs, 1);
    return p;
}

void relay_peer_unref(struct peer *p)
{
    if (atomic_fetch_sub(&p->refs, 1) == 1)
        mem_free(p);
}

uint64_t relay_number(const struct peer *p)
{
    uint64_t n = 0;
    if (p->name.len != 8)
        return 0;
    for (int i = 0; i < 8; i++)
        n = n << 8 | p->name.id[i];
    return n;
}

static void give_room(struct peer *p, uint64_t bytes)
{
    struct relay *r = p->relay;
    atomic_fetch_sub(&p->waiting, bytes);
    atomic_fetch_sub(&r->waiting, bytes);
    if (atomic_exchange(&r->hungry, 0))
        relay_wake(r);
}

void relay_task_free(struct task *t)
{
    struct relay *r = t->peer->relay;
    if (t->reserved)
        give_room(t->peer, t->reserved);
    if (t->taken) {
        atomic_fetch_sub(&r->taken, t->taken);
        if (atomic_exchange(&r->hungry, 0))
            relay_wake(r);
    }
    wire_free(t->m);
    relay_peer_unref(t->peer);
    mem_free(t->path);
    mem_free(t);
}

void relay_answer(struct task *t, Ebb__Envelope__BodyCase which, void *body)
{
    struct relay *r = t->peer->relay;
    struct err e;
    struct answer *a = mem_zalloc(sizeof *a);
    if (!a || wire_encode(which, body, &a->bytes, &e) != ST_OK)
        relay_no_memory();
    a->peer = peer_ref(t->peer);
    a->reserved = t->reserved; /* the room goes along */
    t->reserved = 0;
    relay_task_free(t);
    pthread_mutex_lock(&r->lock);
    if (r->last)
        r->last->next = a;
    else
        r->first = a;
    r->last = a;
    pthread_mutex_unlock(&r->lock);
    relay_wake(r);
}

void relay_say_data(struct task *t, uint64_t id, enum status st, const struct err *e, uint64_t size, const void *data, size_t len)
{
    Ebb__RelayData m = EBB__RELAY_DATA__INIT;
    m.id = id;
    m.code = (uint32_t)st;
    m.size = size;
    if (st != ST_OK) {
        m.text = (char *)(uintptr_t)e->text;
        if (st != ST_AGAIN)
            atomic_fetch_add(&t->peer->relay->refused, 1);
    } else {
        m.data.data = (uint8_t *)(uintptr_t)data;
        m.data.len = len;
    }
    relay_answer(t, EBB__ENVELOPE__BODY_RELAY_DATA, &m);
}

/* ZeroMQ's thread: the answer is written out, or its peer is gone. */
void relay_written(void *data, void *hint)
{
    struct answer *a = hint;
    (void)data;
    atomic_load(&a->handed); /* all that was written before is seen here, also by who checks that */
    if (a->reserved)
        give_room(a->peer, a->reserved);
    relay_peer_unref(a->peer);
    buf_release(&a->bytes);
    mem_free(a);
}

static void send_answer(struct relay *r, struct answer *a)
{
    zmq_msg_t m;
    void *s = sock_zmq(r->sock);
    if (zmq_send(s, a->peer->name.id, a->peer->name.len, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) {
        log_debug("relay: an answer finds nobody: %s", zmq_strerror(errno)); /* it asks again if it still wants it */
        relay_written(NULL, a);
        return;
    }
    void *bytes = a->bytes.data;
    size_t len = a->bytes.len;
    atomic_store(&a->handed, 1);
    if (zmq_msg_init_data(&m, bytes, len, relay_written, a))
        relay_no_memory();
    if (zmq_msg_send(&m, s, ZMQ_DONTWAIT) < 0)
        zmq_msg_close(&m);
}

static void send_answers(struct relay *r)
{
    pthread_mutex_lock(&r->lock);
    struct answer *a = r->first;
    r->first = r->last = NULL;
    pthread_mutex_unlock(&r->lock);
    for (struct answer *next; a; a = next) {
        next = a->next;
        send_answer(r, a);
    }
}

/* Which hand: always the same for a source, a part, a model. */
static struct hand *hand_of(struct relay *r, const Ebb__Envelope *m)
{
    uint64_t key[3] = {0};
    int first = HAND_READ, count = HAND_READ_LAST - HAND_READ + 1;
    switch (m->body_case) {
    case EBB__ENVELOPE__BODY_RELAY_READ:
        key[0] = m->relay_read->job;
        key[1] = m->relay_read->source;
        break;
    case EBB__ENVELOPE__BODY_RELAY_LOOK:
        key[0] = m->relay_look->job;
        key[1] = m->relay_look->source;
        break;
    case EBB__ENVELOPE__BODY_RELAY_PART:
        key[0] = m->relay_part->job;
        key[1] = m->relay_part->epoch;
        key[2] = m->relay_part->seq;
        first = HAND_WRITE;
        break;
    case EBB__ENVELOPE__BODY_RELAY_MARK:
        key[0] = m->relay_mark->job;
        first = HAND_WRITE;
        break;
    default:
        return &r->hands[HAND_MODEL];
    }
    return &r->hands[first + (int)(XXH64(key, sizeof key, 0) % (unsigned)count)];
}

/* Who is served ------------------------------------------------------------------------------------------------------------------------ */

static uint64_t cost_of(const Ebb__Envelope *m)
{
    uint64_t bytes = m->body_case == EBB__ENVELOPE__BODY_RELAY_READ ? m->relay_read->length
                     : m->body_case == EBB__ENVELOPE__BODY_MODEL_READ ? m->model_read->length : 0;
    return bytes < LEAST_COST ? LEAST_COST : bytes;
}

/* Who has taken everything gets one more answer in any case: others that take nothing must not starve it. */
static int has_room(const struct relay *r, const struct peer *p, uint64_t cost)
{
    uint64_t own = atomic_load(&p->waiting);
    return own == 0 || (own + cost <= RELAY_PEER_BYTES && atomic_load(&r->waiting) + cost <= RELAY_ALL_BYTES);
}

static void hand_over(struct relay *r, struct peer *p, struct task *t)
{
    t->reserved = cost_of(t->m);
    atomic_fetch_add(&p->waiting, t->reserved);
    atomic_fetch_add(&r->waiting, t->reserved);
    t->hand = hand_of(r, t->m);
    relay_hand_add(t->hand, t, 0);
}

/* Peers that wait, one question each in turn, until nobody can be served. */
static void serve_waiting(struct relay *r)
{
    if (!r->ring)
        return;
    atomic_store(&r->hungry, 1); /* before looking: what is freed from here on wakes us */
    for (int served = 1; served;) {
        served = 0;
        struct peer **at = &r->ring, *last = NULL, *turned = NULL, **turned_last = &turned;
        for (struct peer *p; (p = *at);) {
            if (!has_room(r, p, cost_of(p->first->m))) {
                last = p;
                at = &p->next;
                continue;
            }
            struct task *t = p->first;
            p->first = t->next;
            p->asked--;
            hand_over(r, p, t);
            served = 1;
            *at = p->next;
            if (p->first) { /* behind the others */
                p->next = NULL;
                *turned_last = p;
                turned_last = &p->next;
            } else {
                p->last = NULL;
                p->next = NULL;
            }
        }
        if (last)
            last->next = turned;
        else
            r->ring = turned;
    }
}

static void wait_in_line(struct relay *r, struct peer *p, struct task *t)
{
    if (p->last)
        p->last->next = t;
    else
        p->first = t;
    p->last = t;
    if (p->asked++ == 0) {
        struct peer **at = &r->ring;
        while (*at)
            at = &(*at)->next;
        *at = p;
        p->next = NULL;
    }
}

/* What comes in ------------------------------------------------------------------------------------------------------------------------- */

static int is_nonce(const char *s)
{
    return strlen(s) == 32 && strspn(s, "0123456789abcdef") == 32;
}

/* A message may be well formed and yet not make sense. NULL: it does. *id: its number. */
static const char *senseless(const Ebb__Envelope *m, uint64_t *id)
{
    switch (m->body_case) {
    case EBB__ENVELOPE__BODY_RELAY_READ:
        *id = m->relay_read->id;
        return m->relay_read->length > RELAY_CHUNK ? "more bytes than a message may hold are asked for"
               : strlen(m->relay_read->named) >= 4096 ? "a name that is too long" : NULL;
    case EBB__ENVELOPE__BODY_RELAY_LOOK:
        *id = m->relay_look->id;
        return NULL;
    case EBB__ENVELOPE__BODY_RELAY_MARK:
        *id = m->relay_mark->id;
        return *m->relay_mark->nonce && !is_nonce(m->relay_mark->nonce) ? "a nonce that was never given out" : NULL;
    case EBB__ENVELOPE__BODY_RELAY_PART: {
        const Ebb__RelayPart *p = m->relay_part;
        uint64_t end;
        *id = p->id;
        if (p->digest.len != 16)
            return "a part without a digest";
        if (p->data.len > RELAY_CHUNK || __builtin_add_overflow(p->offset, p->data.len, &end) || end > p->size || p->size > INT64_MAX)
            return "bytes outside of their part";
        return NULL;
    }
    case EBB__ENVELOPE__BODY_MODEL_ASK:
        *id = m->model_ask->id;
        return m->model_ask->digest.len != 16 || !*m->model_ask->host || strlen(m->model_ask->host) > 255 ? "a question for no model" : NULL;
    case EBB__ENVELOPE__BODY_MODEL_READ:
        *id = m->model_read->id;
        return m->model_read->digest.len != 16 || m->model_read->length > RELAY_CHUNK ? "a question for no bytes of a model" : NULL;
    case EBB__ENVELOPE__BODY_MODEL_HAVE:
        *id = m->model_have->id;
        return m->model_have->digest.len != 16 || !*m->model_have->host || strlen(m->model_have->host) > 255 || strlen(m->model_have->endpoint) > 255 ||
                       (*m->model_have->endpoint && m->model_have->key.len != 40)
                   ? "a model at no place" : NULL;
    default:
        return "a message that no worker sends to the relay";
    }
}

static struct peer *meet(struct relay *r, const struct sock_peer *name)
{
    uint64_t key = XXH64(name->id, name->len, name->len);
    struct peer *p = map_find(&r->by_name, key);
    if (p && p->name.len == name->len && memcmp(p->name.id, name->id, name->len) == 0 && p->name.user == name->user) {
        p->seen_ms = clock_ms();
        return p;
    }
    if (p) /* a name of somebody else's, who showed another key; or one of the same sum, which does not happen by chance */
        return NULL;
    p = mem_zalloc(sizeof *p);
    if (!p || map_add(&r->by_name, key, p))
        relay_no_memory();
    p->refs = 1;
    p->name = *name;
    p->relay = r;
    p->seen_ms = clock_ms();
    atomic_fetch_add(&r->peer_count, 1);
    return p;
}

/* In the words of the answer that the question wants. */
static void refuse(struct task *t, uint64_t id, const char *why)
{
    struct err e;
    err_set(&e, ST_USER, "%s", why);
    if (t->m->body_case == EBB__ENVELOPE__BODY_RELAY_PART) {
        Ebb__RelayPartAt m = EBB__RELAY_PART_AT__INIT;
        m.id = id;
        m.code = ST_USER;
        m.text = e.text;
        atomic_fetch_add(&t->peer->relay->refused, 1);
        relay_answer(t, EBB__ENVELOPE__BODY_RELAY_PART_AT, &m);
        return;
    }
    relay_say_data(t, id, ST_USER, &e, 0, NULL, 0);
}

/* Takes m. */
static void take(struct relay *r, const struct sock_peer *name, Ebb__Envelope *m)
{
    uint64_t id = 0;
    const char *why = senseless(m, &id);
    struct peer *p = meet(r, name);
    if (!p) {
        complain(r, "a peer under another's name");
        wire_free(m);
        return;
    }
    struct task *t = mem_zalloc(sizeof *t);
    if (!t)
        relay_no_memory();
    t->peer = peer_ref(p);
    t->m = m;
    if (m->body_case == EBB__ENVELOPE__BODY_RELAY_PART) {
        t->taken = m->relay_part->data.len;
        atomic_fetch_add(&r->taken, t->taken);
    }
    if (!why && p->asked >= RELAY_PEER_ASKED)
        why = "too many questions at once";
    if (why) {
        complain(r, why);
        refuse(t, id, why);
    } else if (p->asked || !has_room(r, p, cost_of(m))) {
        wait_in_line(r, p, t);
    } else {
        hand_over(r, p, t);
    }
}

static int listens(const struct relay *r)
{
    return atomic_load(&r->taken) < RELAY_TAKEN_BYTES;
}

static void receive(struct relay *r)
{
    for (int i = 0; i < TURN && listens(r); i++) {
        struct sock_peer name = {0};
        Ebb__Envelope *m = NULL;
        struct err e;
        enum status st = sock_receive(r->sock, &name, &m, &e);
        if (st == ST_AGAIN)
            return;
        if (st == ST_NOMEM)
            relay_no_memory();
        if (st != ST_OK) {
            complain(r, e.text);
        } else if (!name.len) {
            complain(r, "a peer whose name is too long");
            wire_free(m);
        } else if (r->d->auth && !auth_may(r->d->auth, &name, KEYS_NODE)) {
            complain(r, "a peer whose key is not one of a node, or was revoked");
            wire_free(m);
        } else {
            take(r, &name, m);
        }
    }
}

/* One at a time: the table changes. */
static void forget_silent(struct relay *r)
{
    uint64_t now = clock_ms();
    size_t i = 0;
    for (struct peer *p; (p = map_next(&r->by_name, &i));)
        if (!p->asked && now - p->seen_ms > FORGET_MS) {
            map_remove(&r->by_name, XXH64(p->name.id, p->name.len, p->name.len));
            atomic_fetch_sub(&r->peer_count, 1);
            relay_peer_unref(p);
            return;
        }
}

void *relay_run(void *arg)
{
    struct relay *r = arg;
    uint64_t looked_ms = clock_ms();
    while (!atomic_load(&r->stopping)) {
        int open = listens(r);
        if (!open) {
            atomic_store(&r->hungry, 1);
            open = listens(r); /* it may have fallen in between */
        }
        zmq_pollitem_t items[] = {{.socket = sock_zmq(r->sock), .events = (short)(open ? ZMQ_POLLIN : 0)}, {.fd = r->wake_fd, .events = ZMQ_POLLIN}};
        zmq_poll(items, 2, 1000);
        eventfd_t ignored;
        if (eventfd_read(r->wake_fd, &ignored)) {
            /* nothing was written: the lists say what there is */
        }
        receive(r);
        send_answers(r);
        serve_waiting(r);
        if (clock_ms() - looked_ms > 1000) {
            looked_ms = clock_ms();
            forget_silent(r);
        }
    }
    return NULL;
}
