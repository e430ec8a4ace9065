/* Sources through the relay. The happy path: the first bytes are asked for at open, so that what is wrong is known there; then questions for the bytes behind them are
   always on their way, more of them as the reader goes on, up to where it is expected to stop.

   What can fail: the source has changed or is gone (the daemon says so, in the words in which a direct reader would); the daemon has no answer just now: asked again. */
#include "workers/remote/inside.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/path.h"
#include "storage/below.h"

#define FIRST_BYTES (256u << 10)
#define NAMED_CHUNK (1u << 20)
#define AHEAD_BYTES (4u << 20) /* of sources that are not open yet */

struct chunk {
    struct call *call;
    uint64_t offset;
    uint32_t length;
};

struct stream {
    struct remote *r;
    uint64_t job, index, size, until;
    uint64_t at, asked;    /* of the next byte to give; behind the last one asked for */
    struct chunk ring[REMOTE_WINDOW];
    size_t first, count, window;
    const Ebb__RelayData *head; /* the first chunk's answer, looked at already */
};

static Ebb__RelayRead question(const struct stream *s, uint64_t offset, uint32_t length)
{
    Ebb__RelayRead m = EBB__RELAY_READ__INIT;
    m.id = remote_id(s->r);
    m.job = s->job;
    m.source = s->index;
    m.offset = offset;
    m.length = length;
    return m;
}

static void ask(struct stream *s, uint32_t length)
{
    struct chunk *c = &s->ring[(s->first + s->count++) % REMOTE_WINDOW];
    Ebb__RelayRead m = question(s, s->asked, length);
    *c = (struct chunk){.call = call_begin(s->r, m.id, EBB__ENVELOPE__BODY_RELAY_READ, &m), .offset = s->asked, .length = length};
    s->asked += length;
}

static void ask_ahead(struct stream *s)
{
    while (s->count < s->window && s->asked < s->size && (s->count == 0 || s->asked < s->until)) {
        uint64_t left = s->size - s->asked;
        ask(s, left < REMOTE_CHUNK ? (uint32_t)left : REMOTE_CHUNK);
    }
}

enum status stream_ask(struct remote *r, const Ebb__RelayRead *what, struct call **call, const Ebb__RelayData **out, struct err *e)
{
    Ebb__RelayRead m = *what;
    for (;;) {
        enum status st = call_wait(r, *call, EBB__ENVELOPE__BODY_RELAY_DATA, NULL, NULL, e);
        if (st == ST_OK)
            st = call_status((*call)->answer->relay_data->code, (*call)->answer->relay_data->text, e);
        if (st == ST_OK) {
            *out = (*call)->answer->relay_data;
            atomic_fetch_add(&r->in, (*out)->data.len);
            return ST_OK;
        }
        if (st == ST_CORRUPT)
            st = e->code = ST_ENV;
        if (st != ST_AGAIN)
            return st;
        call_end(r, *call);
        clock_sleep_ms(REMOTE_AGAIN_MS);
        m.id = remote_id(r);
        *call = call_begin(r, m.id, EBB__ENVELOPE__BODY_RELAY_READ, &m);
    }
}

/* The answer to the first question on its way. */
static enum status take_head(struct stream *s, struct err *e)
{
    struct chunk *c = &s->ring[s->first];
    if (s->head)
        return ST_OK;
    Ebb__RelayRead m = question(s, c->offset, c->length);
    TRY(stream_ask(s->r, &m, &c->call, &s->head, e));
    size_t got = s->head->data.len;
    if (got == c->length)
        return ST_OK;
    s->head = NULL;
    return err_set(e, ST_ENV, "the relay gave %zu bytes where %u were asked for", got, c->length);
}

/* Sources that come soon ------------------------------------------------------------------------------------------------------------------- */

static void drop_ahead(struct remote *r, size_t i)
{
    r->ahead_count--;
    for (; i < r->ahead_count; i++)
        r->ahead[i] = r->ahead[i + 1];
}

void stream_forget_ahead(struct remote *r)
{
    while (r->ahead_count)
        call_end(r, r->ahead[--r->ahead_count].call);
}

void remote_soon(struct remote *r, uint64_t job, uint64_t index, const struct source *s)
{
    if (!remote_far(r) || !s->size_bytes || !roots_far(r, s->path))
        return;
    uint32_t length = s->size_bytes < FIRST_BYTES ? (uint32_t)s->size_bytes : FIRST_BYTES;
    uint64_t bytes = length;
    int known = 0;
    pthread_mutex_lock(&r->ahead_lock);
    if (r->ahead_count && r->ahead[0].job != job) /* of a lease that was taken away */
        stream_forget_ahead(r);
    for (size_t i = 0; i < r->ahead_count; i++) {
        bytes += r->ahead[i].length;
        known |= r->ahead[i].index == index;
    }
    if (!known && bytes <= AHEAD_BYTES && r->ahead_count < REMOTE_AHEAD) {
        Ebb__RelayRead m = EBB__RELAY_READ__INIT;
        m.id = remote_id(r);
        m.job = job;
        m.source = index;
        m.length = length;
        r->ahead[r->ahead_count++] =
            (struct ahead){.call = call_begin(r, m.id, EBB__ENVELOPE__BODY_RELAY_READ, &m), .job = job, .index = index, .length = length};
    }
    pthread_mutex_unlock(&r->ahead_lock);
}

/* It was asked for already: 1. Those before it in the list were passed over, and nobody will come for them. */
static int take_ahead(struct stream *s)
{
    struct remote *r = s->r;
    int taken = 0;
    pthread_mutex_lock(&r->ahead_lock);
    for (size_t i = 0; i < r->ahead_count && !taken; i++)
        if (r->ahead[i].job == s->job && r->ahead[i].index == s->index) {
            s->ring[s->first] = (struct chunk){.call = r->ahead[i].call, .length = r->ahead[i].length};
            s->asked = r->ahead[i].length;
            s->count = 1;
            drop_ahead(r, i);
            for (; i; i--) {
                call_end(r, r->ahead[0].call);
                drop_ahead(r, 0);
            }
            taken = 1;
        }
    pthread_mutex_unlock(&r->ahead_lock);
    return taken;
}

enum status stream_open(const struct source_via *v, const struct source *s, uint64_t from, void **handle, struct err *e)
{
    struct stream *x = mem_zalloc(sizeof *x);
    if (!x)
        return err_nomem(e, "reading a source");
    x->r = v->arg;
    x->job = s->job;
    x->index = s->index;
    x->size = s->size_bytes;
    x->until = s->until ? s->until : UINT64_MAX;
    x->at = x->asked = from;
    x->window = 1;
    uint64_t left = x->size - from, likely = x->until > from ? x->until - from : 1;
    if (likely < left)
        left = likely;
    if (from || !take_ahead(x))
        ask(x, left < FIRST_BYTES ? (uint32_t)left : FIRST_BYTES); /* of nothing left: whether it is what it was */
    enum status st = take_head(x, e);
    if (st != ST_OK) {
        stream_close(x);
        return st;
    }
    *handle = x;
    return ST_OK;
}

enum status stream_read(void *handle, void *data, size_t want, size_t *got, struct err *e)
{
    struct stream *s = handle;
    *got = 0;
    if (s->at >= s->size)
        return ST_OK;
    for (;;) {
        struct chunk *c = &s->ring[s->first];
        if (s->count && s->at < c->offset + c->length)
            break;
        if (s->count) { /* it is used up, and the reader goes on: look further ahead */
            call_end(s->r, c->call);
            s->head = NULL;
            s->first = (s->first + 1) % REMOTE_WINDOW;
            s->count--;
            if (s->window < REMOTE_WINDOW)
                s->window = s->window * 2 < REMOTE_WINDOW ? s->window * 2 : REMOTE_WINDOW;
        }
        ask_ahead(s);
    }
    TRY(take_head(s, e));
    const struct chunk *c = &s->ring[s->first];
    size_t skip = (size_t)(s->at - c->offset), n = s->head->data.len - skip;
    if (n > want)
        n = want;
    memcpy(data, s->head->data.data + skip, n);
    s->at += n;
    *got = n;
    ask_ahead(s);
    return ST_OK;
}

void stream_close(void *handle)
{
    struct stream *s = handle;
    for (size_t i = 0; i < s->count; i++)
        call_end(s->r, s->ring[(s->first + i) % REMOTE_WINDOW].call);
    mem_free(s);
}

/* Files that records name ---------------------------------------------------------------------------------------------------------------- */

static enum status read_named(struct remote *r, const struct source *s, const char *path, uint64_t offset, uint32_t length, uint64_t *size, struct buf *out,
                              struct err *e)
{
    Ebb__RelayRead m = EBB__RELAY_READ__INIT;
    const Ebb__RelayData *d;
    m.id = remote_id(r);
    m.job = s->job;
    m.source = s->index;
    m.named = (char *)(uintptr_t)path;
    m.offset = offset;
    m.length = length;
    struct call *c = call_begin(r, m.id, EBB__ENVELOPE__BODY_RELAY_READ, &m);
    enum status st = stream_ask(r, &m, &c, &d, e);
    if (st == ST_OK && buf_add(out, d->data.data, d->data.len))
        st = err_nomem(e, "the bytes of a file");
    if (st == ST_OK)
        *size = d->size;
    call_end(r, c);
    return st;
}

enum status stream_named(const struct source_via *v, const struct source *s, const char *path, uint64_t max_bytes, struct buf *out, struct err *e)
{
    uint64_t size = 0;
    buf_clear(out);
    TRY(read_named(v->arg, s, path, 0, NAMED_CHUNK, &size, out, e));
    if (size > max_bytes)
        return below_size(path, size, max_bytes, e);
    while (out->len < size) {
        size_t before = out->len;
        TRY(read_named(v->arg, s, path, out->len, NAMED_CHUNK, &size, out, e));
        if (out->len == before || size > max_bytes)
            break; /* it has become another one meanwhile: the decoder will say so */
    }
    return ST_OK;
}

/* Here, and if it is not, there: a folder that is seen here may hold another file system, or a file that nobody else has; what the daemon sees decides. */
enum status near_named(const struct source_via *v, const struct source *s, const char *path, uint64_t max_bytes, struct buf *out, struct err *e)
{
    size_t n = (size_t)(path_base(s->path) - s->path);
    char *folder = mem_strndup(s->path, n - (n > 1)), *copy = mem_strdup(path);
    if (!folder || !copy)
        remote_no_memory();
    enum status st = below_read(folder, copy, max_bytes, out, e);
    mem_free(copy);
    mem_free(folder);
    return st == ST_OK || st == ST_NOMEM ? st : stream_named(v, s, path, max_bytes, out, e);
}
