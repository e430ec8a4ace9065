/* What is sent. Nothing here fails: a peer that cannot be reached says hello again before it gets anything else. Every hello is answered by a
   Welcome; a Welcome that nobody asked for asks for a hello: so are those asked that are not known, and those that something did not reach. */
#include "daemon/link_inside.h"

#include <inttypes.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/sight.h"
#include "daemon/relay.h"

int link_send_to(struct link *l, struct worker *w, Ebb__Envelope__BodyCase which, void *body)
{
    struct err e;
    enum status st = sock_send(l->workers, &w->peer, which, body, &e);
    if (st == ST_OK)
        return 1;
    if (st == ST_NOMEM)
        link_no_memory(l);
    if (!w->ask_hello) /* said once */
        log_warn("worker %s: could not be reached: %s", w->name, e.text);
    w->ask_hello = 1;
    return 0;
}

struct worker *link_reachable(struct link *l, uint64_t number)
{
    struct worker *w = link_worker(l, number);
    if (!w)
        log_debug("worker %" PRIx64 ": is gone, nothing is sent", number);
    return w;
}

void link_send_welcome(struct link *l, const struct sock_peer *peer)
{
    Ebb__Welcome m = EBB__WELCOME__INIT;
    uint8_t sight[SIGHT_BYTES];
    struct err e;
    m.version = WIRE_VERSION;
    m.generation = l->d->generation;
    m.beat_ms = sched_config_default.beat_ms;
    m.program = "ebbd " EBBD_VERSION;
    m.relay = l->d->relay != NULL;
    m.sight.data = sight;
    m.sight.len = sight_of_this(sight) ? sizeof sight : 0;
    if (sock_send(l->workers, peer, EBB__ENVELOPE__BODY_WELCOME, &m, &e) != ST_OK)
        log_debug("a welcome could not be sent: %s", e.text);
}

void link_ask_hello(struct link *l, struct worker *w)
{
    uint64_t now = clock_ms();
    if (w->welcome_ms && now - w->welcome_ms < 1000)
        return;
    w->welcome_ms = now;
    link_send_welcome(l, &w->peer);
}

/* An earlier daemon knew it: it shall say hello to this one. */
void link_ask_stranger(struct link *l, const struct sock_peer *peer)
{
    uint64_t key = link_peer_key(peer), now = clock_ms();
    size_t i = key % (sizeof l->strangers / sizeof *l->strangers);
    if (l->strangers[i].peer == key && now - l->strangers[i].ms < 1000)
        return;
    l->strangers[i].peer = key;
    l->strangers[i].ms = now;
    link_send_welcome(l, peer);
}

void link_send_refused(struct link *l, const struct sock_peer *peer, const char *text)
{
    Ebb__Refused m = EBB__REFUSED__INIT;
    struct err e;
    m.text = (char *)text;
    log_warn("a worker was refused: %s", text);
    if (sock_send(l->workers, peer, EBB__ENVELOPE__BODY_REFUSED, &m, &e) != ST_OK)
        log_debug("a refusal could not be sent: %s", e.text);
}

int link_send_peer(struct link *l, const struct sock_peer *peer, Ebb__Envelope__BodyCase which, void *body)
{
    struct err e;
    enum status st = sock_send(l->workers, peer, which, body, &e);
    if (st == ST_NOMEM)
        link_no_memory(l);
    return st == ST_OK;
}

int link_tell_job(struct link *l, struct worker *w, const struct job *j)
{
    for (size_t i = 0; i < w->told_count; i++)
        if (w->told[i] == j->id)
            return 1;
    if (mem_grow((void **)&w->told, &w->told_cap, w->told_count, sizeof *w->told))
        link_no_memory(l);
    Ebb__Job m = EBB__JOB__INIT;
    m.job = j->id;
    m.spec = j->spec_json;
    m.model_key = j->model_key;
    m.model_digest.data = (uint8_t *)j->model.bytes;
    m.model_digest.len = sizeof j->model.bytes;
    m.step_digests.data = (uint8_t *)j->step_digests;
    m.step_digests.len = j->step_digests ? j->spec.steps.count * sizeof *j->step_digests : 0;
    m.parts_dir = j->parts_dir;
    m.format = (uint32_t)j->format;
    m.numerics = (char *)(uintptr_t)j->numerics;
    if (!link_send_to(l, w, EBB__ENVELOPE__BODY_JOB, &m))
        return 0;
    w->told[w->told_count++] = j->id;
    return 1;
}

void link_send_lease(struct link *l, uint64_t worker, uint64_t job, uint64_t epoch, struct span span, int probe)
{
    struct worker *w = link_reachable(l, worker);
    struct job *j = job_find(l->d, job);
    if (!w || !j || w->ask_hello || !link_tell_job(l, w, j))
        return;
    const struct dataset *d = &j->dataset;
    size_t first = layout_source(&d->layout, span.begin), n = 0;
    size_t last = layout_source(&d->layout, span.end - 1);
    BUG_IF(!j->has_sources || first >= d->count || last >= d->count, "lease %" PRIx64 " of job %" PRIu64 " lies outside of its dataset", epoch, job);
    Ebb__Source *sources = mem_array(last - first + 1, sizeof *sources);
    Ebb__Source **pointers = mem_array(last - first + 1, sizeof *pointers);
    if (!sources || !pointers)
        link_no_memory(l);
    for (size_t i = first; i <= last; i++) {
        uint64_t base = d->layout.base[i], end = d->layout.base[i + 1];
        if (end == base)
            continue; /* holds nothing */
        Ebb__Source *s = &sources[n];
        ebb__source__init(s);
        s->index = i;
        s->path = d->sources[i].path;
        s->size_bytes = d->sources[i].size_bytes;
        s->mtime_ns = d->sources[i].mtime_ns;
        s->compression = (uint32_t)d->sources[i].compression;
        s->position = base;
        s->end = end;
        pointers[n] = s;
        n++;
    }
    Ebb__Span where = EBB__SPAN__INIT;
    where.begin = span.begin;
    where.end = span.end;
    Ebb__Lease m = EBB__LEASE__INIT;
    m.job = job;
    m.epoch = epoch;
    m.span = &where;
    m.probe = probe;
    m.n_sources = n;
    m.sources = pointers;
    link_send_to(l, w, EBB__ENVELOPE__BODY_LEASE, &m);
    mem_free(pointers);
    mem_free(sources);
}

void link_send_cut(struct link *l, uint64_t worker, uint64_t epoch, uint64_t at)
{
    struct worker *w = link_reachable(l, worker);
    Ebb__Cut m = EBB__CUT__INIT;
    m.epoch = epoch;
    m.at = at;
    if (w)
        link_send_to(l, w, EBB__ENVELOPE__BODY_CUT, &m);
}

void link_send_revoke(struct link *l, uint64_t worker, uint64_t epoch)
{
    struct worker *w = link_reachable(l, worker);
    Ebb__Revoke m = EBB__REVOKE__INIT;
    m.epoch = epoch;
    if (w)
        link_send_to(l, w, EBB__ENVELOPE__BODY_REVOKE, &m);
}

void link_send_ack(struct link *l, uint64_t worker, uint64_t epoch, uint64_t seq, enum ack_verdict verdict)
{
    struct worker *w = link_reachable(l, worker);
    Ebb__Ack m = EBB__ACK__INIT;
    m.epoch = epoch;
    m.seq = seq;
    m.verdict = (uint32_t)verdict;
    if (w)
        link_send_to(l, w, EBB__ENVELOPE__BODY_ACK, &m);
}

void link_send_drain(struct link *l, uint64_t worker)
{
    struct worker *w = link_reachable(l, worker);
    Ebb__Drain m = EBB__DRAIN__INIT;
    m.grace_ms = LOOP_GRACE_MS;
    if (w)
        link_send_to(l, w, EBB__ENVELOPE__BODY_DRAIN, &m);
}

void link_forget_job(struct link *l, uint64_t job)
{
    size_t i = 0;
    for (struct worker *w; (w = link_next(l, &i));)
        for (size_t k = 0; k < w->told_count; k++)
            if (w->told[k] == job) {
                w->told[k] = w->told[--w->told_count];
                Ebb__ForgetJob m = EBB__FORGET_JOB__INIT;
                m.job = job;
                link_send_to(l, w, EBB__ENVELOPE__BODY_FORGET_JOB, &m);
                break;
            }
}

int link_send_reply(struct link *l, const struct sock_peer *client, uint64_t id, enum status code, const char *json, int more)
{
    Ebb__Reply m = EBB__REPLY__INIT;
    struct err e;
    m.id = id;
    m.code = (uint32_t)code;
    m.json = (char *)(json ? json : "{}");
    m.more = more;
    enum status st = sock_send(l->clients, client, EBB__ENVELOPE__BODY_REPLY, &m, &e);
    if (st == ST_USER) { /* longer than a message may be */
        m.code = ST_USER;
        m.json = "{\"error\": \"the answer is too long for one message: ask for less\"}";
        st = sock_send(l->clients, client, EBB__ENVELOPE__BODY_REPLY, &m, &e);
    }
    if (st != ST_OK)
        log_debug("a client did not get its answer: %s", e.text);
    return st == ST_OK;
}
