#include "workers/outbox.h"

#include <stdlib.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"

struct sent {
    struct sent *next;
    struct commit *commit;
    uint64_t at_ms;
};

void outbox_init(struct outbox *o)
{
    *o = (struct outbox){.first = NULL};
    o->last = &o->first;
}

void outbox_release(struct outbox *o)
{
    for (struct sent *s; (s = o->first);) {
        o->first = s->next;
        commit_free(s->commit);
        mem_free(s);
    }
    outbox_init(o);
}

_Noreturn void outbox_no_memory(void)
{
    log_error("out of memory for a message");
    abort(); /* its handler notes it */
}

void outbox_say(struct sock *to, Ebb__Envelope__BodyCase which, void *body)
{
    struct err e;
    enum status st = sock_send(to, NULL, which, body, &e);
    if (st == ST_NOMEM)
        outbox_no_memory();
    if (st != ST_OK)
        log_warn("a message to the daemon waits: %s", e.text);
}

static void extent_out(const struct extent *x, Ebb__Span *span, Ebb__Extent *m)
{
    *span = (Ebb__Span)EBB__SPAN__INIT;
    span->begin = x->span.begin;
    span->end = x->span.end;
    *m = (Ebb__Extent)EBB__EXTENT__INIT;
    m->span = span;
    m->rows_at = x->rows_at;
    m->rows_bytes = x->rows_bytes;
    m->aux_bytes = x->aux_bytes;
    m->errors_bytes = x->errors_bytes;
    m->records = x->records;
    m->rows = x->rows;
    m->errors = x->errors;
    m->lines = x->lines;
    m->bytes = x->bytes;
}

static void send_commit(struct sock *to, struct sent *s, uint64_t now_ms)
{
    const struct commit *c = s->commit;
    size_t done = c->done_count, returned = c->returned_count;
    Ebb__Span *spans = mem_array(done + returned, sizeof *spans);
    Ebb__Extent *extents = mem_array(done, sizeof *extents), **extents_at = mem_array(done, sizeof(void *));
    Ebb__Returned *backs = mem_array(returned, sizeof *backs), **backs_at = mem_array(returned, sizeof(void *));
    if (!spans || !extents || !extents_at || !backs || !backs_at)
        outbox_no_memory();
    for (size_t i = 0; i < done; i++) {
        extent_out(&c->done[i], &spans[i], &extents[i]);
        extents_at[i] = &extents[i];
    }
    for (size_t i = 0; i < returned; i++) {
        spans[done + i] = (Ebb__Span)EBB__SPAN__INIT;
        spans[done + i].begin = c->returned[i].begin;
        spans[done + i].end = c->returned[i].end;
        backs[i] = (Ebb__Returned)EBB__RETURNED__INIT;
        backs[i].span = &spans[done + i];
        backs_at[i] = &backs[i];
    }
    Ebb__Commit m = EBB__COMMIT__INIT;
    m.job = c->job;
    m.epoch = c->epoch;
    m.seq = c->seq;
    m.n_done = done;
    m.done = extents_at;
    m.n_returned = returned;
    m.returned = backs_at;
    m.part_bytes = c->part_bytes;
    if (done) {
        m.part_digest.len = sizeof c->part_digest;
        m.part_digest.data = (uint8_t *)(uintptr_t)c->part_digest;
    }
    fault_point("worker.commit.before");
    outbox_say(to, EBB__ENVELOPE__BODY_COMMIT, &m);
    fault_point("worker.commit.after");
    s->at_ms = now_ms;
    mem_free(spans);
    mem_free(extents);
    mem_free(extents_at);
    mem_free(backs);
    mem_free(backs_at);
}

void outbox_add(struct outbox *o, struct sock *to, struct commit *c, uint64_t now_ms)
{
    struct sent *s = mem_zalloc(sizeof *s);
    if (!s)
        outbox_no_memory();
    s->commit = c;
    *o->last = s;
    o->last = &s->next;
    if (to)
        send_commit(to, s, now_ms);
}

void outbox_again(struct outbox *o, struct sock *to, uint64_t now_ms, uint64_t older_than_ms)
{
    for (struct sent *s = o->first; s; s = s->next)
        if (now_ms >= s->at_ms + older_than_ms)
            send_commit(to, s, now_ms);
}

void outbox_forget(struct outbox *o, uint64_t epoch, uint64_t seq)
{
    for (struct sent **at = &o->first; *at;) {
        struct sent *s = *at;
        if (s->commit->epoch != epoch || (seq != UINT64_MAX && s->commit->seq != seq)) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        commit_free(s->commit);
        mem_free(s);
    }
    o->last = &o->first;
    while (*o->last)
        o->last = &(*o->last)->next;
}
