/* A part through the relay. The happy path: the part is begun, its bytes go out in order with several messages on their way, and the last answer says that file and
   folder are synced.

   What can fail: the daemon does not know the part (it was restarted, or a message was lost): all of it again; it does not know our lease (it has not heard our Hello
   yet, or the lease is somebody else's): asked again for as long as the lease is ours, and for a while at most; the disk, or the digest: told to the writer. */
#include "workers/remote/inside.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"

#define WINDOW 8
#define PATIENCE_MS 30000 /* for a daemon that does not know the lease */
#define RESTARTS 100000

struct upload {
    struct remote *r;
    const struct remote_part *part;
    int (*goes_on)(void *arg);
    void *arg;
    struct call *ring[WINDOW];
    size_t first, count;
    uint64_t at, sent, credit;
    int done;
};

static void send(struct upload *u, uint64_t offset, size_t len)
{
    fault_point("remote.part.send");
    Ebb__RelayPart m = EBB__RELAY_PART__INIT;
    m.id = remote_id(u->r);
    m.job = u->part->job;
    m.epoch = u->part->epoch;
    m.seq = u->part->seq;
    m.size = u->part->size;
    m.digest.data = (uint8_t *)(uintptr_t)u->part->digest;
    m.digest.len = 16;
    m.offset = offset;
    m.data.data = (uint8_t *)(uintptr_t)u->part->data + offset;
    m.data.len = len;
    u->ring[(u->first + u->count++) % WINDOW] = call_begin(u->r, m.id, EBB__ENVELOPE__BODY_RELAY_PART, &m);
}

static void forget_all(struct upload *u)
{
    for (; u->count; u->count--) {
        call_end(u->r, u->ring[u->first]);
        u->first = (u->first + 1) % WINDOW;
    }
}

static enum status take_one(struct upload *u, struct err *e)
{
    struct call *c = u->ring[u->first];
    enum status st = call_wait(u->r, c, EBB__ENVELOPE__BODY_RELAY_PART_AT, u->goes_on, u->arg, e);
    if (st == ST_AGAIN) { /* not wanted: END is not what the daemon says */
        e->code = ST_END;
        return ST_END;
    }
    if (st == ST_OK) {
        const Ebb__RelayPartAt *a = c->answer->relay_part_at;
        st = call_status(a->code, a->text, e);
        u->at = a->at;
        u->done = a->done;
        u->credit = a->credit;
    }
    call_end(u->r, c);
    u->first = (u->first + 1) % WINDOW;
    u->count--;
    return st;
}

/* Once from its beginning. ST_AGAIN: once more. */
static enum status go(struct upload *u, struct err *e)
{
    uint64_t size = u->part->size;
    u->done = 0;
    send(u, 0, 0);
    TRY(take_one(u, e));
    u->sent = u->at;
    while (!u->done) {
        while (u->sent < size && u->count < WINDOW && u->sent - u->at < u->credit) {
            size_t n = size - u->sent < REMOTE_CHUNK ? (size_t)(size - u->sent) : REMOTE_CHUNK;
            send(u, u->sent, n);
            u->sent += n;
        }
        if (!u->count)
            return err_set(e, ST_AGAIN, "the daemon wants %" PRIu64 " bytes of the part and no more", u->at);
        uint64_t before = u->at;
        TRY(take_one(u, e));
        if (u->at < before || u->at > u->sent)
            return err_set(e, ST_AGAIN, "the daemon begins the part again");
        if (!u->done && !u->count && u->at < u->sent)
            u->sent = u->at; /* something was lost on the way */
    }
    return ST_OK;
}

enum status remote_part(struct remote *r, const struct remote_part *p, int (*goes_on)(void *arg), void *arg, struct err *e)
{
    struct upload u = {.r = r, .part = p, .goes_on = goes_on, .arg = arg};
    uint64_t until_ms = clock_ms() + PATIENCE_MS;
    enum status st = ST_AGAIN;
    for (int i = 0; i < RESTARTS && st == ST_AGAIN; i++) {
        st = go(&u, e);
        forget_all(&u);
        if (st == ST_USER && clock_ms() < until_ms)
            st = ST_AGAIN;
        if (st == ST_AGAIN) {
            if (!goes_on(arg))
                st = ST_END;
            else
                clock_sleep_ms(REMOTE_AGAIN_MS);
        }
    }
    if (st == ST_OK)
        return ST_OK;
    if (st == ST_END)
        return err_set(e, ST_AGAIN, "the lease was taken away while a part of it was on its way");
    return err_prefix(e, "cannot write a part of job %" PRIu64 " through the daemon", p->job) == ST_NOMEM ? ST_NOMEM : (e->code = ST_ENV);
}
