/* Pieces of a model, several questions on their way. From the daemon they come as any answer does, and are waited for; another host has to be quick, since there are
   others. */
#include "workers/remote/inside.h"

#include <stdio.h>
#include <string.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/mem.h"

#define PEER_PATIENCE_MS 5000

struct taker {
    struct remote *r;
    uint8_t digest[16], pass[64];
    size_t pass_len;
    void *context;       /* of a peer's connection; NULL: the daemon */
    struct sock *sock;
    uint64_t next_id;
    struct {
        uint64_t id;
        struct call *call;
        Ebb__Envelope *answer;
    } ring[TAKER_WINDOW];
    size_t first, count;
    struct call *last_call;
    Ebb__Envelope *last_answer;
};

static enum status connect_peer(struct taker *t, const Ebb__ModelPeer *peer, struct err *e)
{
    struct keys k = {0};
    if (peer->key.len != KEYS_Z85)
        return err_set(e, ST_CORRUPT, "a peer without a key");
    TRY(keys_generate(&k, e));
    memcpy(k.server_key, peer->key.data, KEYS_Z85);
    t->context = zmq_ctx_new();
    if (!t->context)
        return err_nomem(e, "a connection to another host");
    enum status st = sock_dealer(t->context, peer->endpoint, &k, NULL, 0, &t->sock, e);
    keys_wipe(&k);
    return st;
}

enum status taker_new(struct remote *r, const uint8_t digest[16], const void *pass, size_t pass_len, const Ebb__ModelPeer *peer, struct taker **out,
                      struct err *e)
{
    struct taker *t = mem_zalloc(sizeof *t);
    if (!t)
        return err_nomem(e, "a model");
    t->r = r;
    memcpy(t->digest, digest, sizeof t->digest);
    t->pass_len = pass_len < sizeof t->pass ? pass_len : sizeof t->pass;
    if (t->pass_len)
        memcpy(t->pass, pass, t->pass_len);
    enum status st = peer ? connect_peer(t, peer, e) : ST_OK;
    if (st != ST_OK) {
        taker_free(t);
        return st;
    }
    *out = t;
    return ST_OK;
}

static void drop_last(struct taker *t)
{
    call_end(t->r, t->last_call);
    wire_free(t->last_answer);
    t->last_call = NULL;
    t->last_answer = NULL;
}

void taker_free(struct taker *t)
{
    if (!t)
        return;
    drop_last(t);
    for (; t->count; t->count--) {
        call_end(t->r, t->ring[t->first].call);
        wire_free(t->ring[t->first].answer);
        t->first = (t->first + 1) % TAKER_WINDOW;
    }
    if (t->sock) {
        int none = 0;
        zmq_setsockopt(sock_zmq(t->sock), ZMQ_LINGER, &none, sizeof none);
        sock_close(t->sock);
    }
    if (t->context)
        zmq_ctx_term(t->context);
    mem_free(t);
}

size_t taker_asked(const struct taker *t)
{
    return t->count;
}

void taker_ask(struct taker *t, uint32_t file, uint64_t offset, uint32_t length)
{
    BUG_IF(t->count >= TAKER_WINDOW, "too many pieces of a model are asked for");
    size_t i = (t->first + t->count++) % TAKER_WINDOW;
    Ebb__ModelRead m = EBB__MODEL_READ__INIT;
    m.id = t->sock ? ++t->next_id : remote_id(t->r);
    m.digest.data = t->digest;
    m.digest.len = sizeof t->digest;
    m.file = file;
    m.offset = offset;
    m.length = length;
    m.pass.data = t->pass;
    m.pass.len = t->pass_len;
    t->ring[i].id = m.id;
    t->ring[i].answer = NULL;
    t->ring[i].call = NULL;
    struct err e;
    if (!t->sock)
        t->ring[i].call = call_begin(t->r, m.id, EBB__ENVELOPE__BODY_MODEL_READ, &m);
    else if (sock_send(t->sock, NULL, EBB__ENVELOPE__BODY_MODEL_READ, &m, &e) != ST_OK)
        log_debug("a question for a model could not be sent: %s", e.text); /* no answer will come, and that is noticed */
}

static enum status hear_peer(struct taker *t, struct err *e)
{
    uint64_t until = clock_ms() + PEER_PATIENCE_MS;
    while (!t->ring[t->first].answer) {
        struct sock_peer ignored;
        Ebb__Envelope *m = NULL;
        enum status st = sock_receive(t->sock, &ignored, &m, e);
        if (st == ST_AGAIN) {
            uint64_t now = clock_ms();
            if (now >= until)
                return err_set(e, ST_ENV, "it does not answer");
            sock_wait(t->sock, (int)(until - now));
            continue;
        }
        TRY(st);
        size_t i = 0;
        while (m->body_case == EBB__ENVELOPE__BODY_RELAY_DATA && i < t->count && t->ring[(t->first + i) % TAKER_WINDOW].id != m->relay_data->id)
            i++;
        if (m->body_case != EBB__ENVELOPE__BODY_RELAY_DATA || i == t->count || t->ring[(t->first + i) % TAKER_WINDOW].answer) {
            wire_free(m);
            return err_set(e, ST_CORRUPT, "it says what nobody asked for");
        }
        t->ring[(t->first + i) % TAKER_WINDOW].answer = m;
    }
    return ST_OK;
}

enum status taker_take(struct taker *t, const void **data, size_t *len, struct err *e)
{
    BUG_IF(!t->count, "no piece of a model was asked for");
    drop_last(t);
    enum status st = t->sock ? hear_peer(t, e) : call_wait(t->r, t->ring[t->first].call, EBB__ENVELOPE__BODY_RELAY_DATA, NULL, NULL, e);
    t->last_call = t->ring[t->first].call;
    t->last_answer = t->ring[t->first].answer;
    t->first = (t->first + 1) % TAKER_WINDOW;
    t->count--;
    if (st != ST_OK)
        return st;
    const Ebb__RelayData *d = (t->sock ? t->last_answer : t->last_call->answer)->relay_data;
    TRY(call_status(d->code, d->text, e));
    atomic_fetch_add(&t->r->in, d->data.len);
    *data = d->data.data;
    *len = d->data.len;
    return ST_OK;
}
