/* The happy path: Stage -> the carrier connects to whom this member sends to, the loader opens its part -> both are there: StageReady -> on the head StageGo: the
   micro-batches that wait leave. On a member MicroBatch -> runner -> MicroBatch for the next, or StageResult for the head.

   What can fail: the part cannot be loaded (StageFault without a peer); a connection goes, or does not come about (StageFault with it, at once); a micro-batch does not
   come back (the head's clock: StageFault). What the daemon makes of it is a newer Stage: then all that is of an older cut is dropped where it is found, and the head sends
   its micro-batches again. Messages of another gang, an older cut, or with another pass: dropped. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "workers/group/inside.h"

#define CONNECT_MS 3000 /* a part is loaded, and its neighbour has not been reached: who died is silent by now for longer than beats are apart, which the daemon looks at */

void part_unref(struct part *x)
{
    if (!x || atomic_fetch_sub(&x->refs, 1) > 1)
        return;
    loaded_unref(x->loaded);
    job_unref(x->job);
    mem_free(x);
}

struct part *part_ref(struct part *x)
{
    atomic_fetch_add(&x->refs, 1);
    return x;
}

void work_free(struct work *w)
{
    wire_free(w->m);
    payload_free(w->in);
    part_unref(w->part);
    mem_free(w);
}

/* Reports ------------------------------------------------------------------------------------------------------------------------- */

void group_fault(struct group *g, uint64_t peer, const char *text)
{
    struct report r = {.kind = REPORT_STAGE_FAULT, .gang = g->gang, .cut = g->cut, .peer = peer};
    snprintf(r.text, sizeof r.text, "%s", text);
    log_warn("gang %" PRIx64 " cut %u: %s", g->gang, g->cut, text);
    pipeline_add_report(g->p, &r);
}

void group_ready(struct group *g)
{
    if (!g->gang || !g->part || g->ready)
        return;
    for (uint32_t i = 0; i < g->peer_count; i++)
        if (!g->peers[i].up)
            return;
    if (runner_busy(&g->runner)) /* with what is of an older cut: a lane that hangs in it must not look as if all were well, the daemon kills this worker then */
        return;
    g->ready = 1;
    log_info("gang %" PRIx64 " cut %u: stage %u of %u is ready, segments [%u, %u)", g->gang, g->cut, g->self, g->count, g->part->first, g->part->end);
    pipeline_add_report(g->p, &(struct report){.kind = REPORT_STAGE_READY, .gang = g->gang, .cut = g->cut, .load_ms = g->part->load_ms});
}

/* Messages between members ---------------------------------------------------------------------------------------------------------- */

static int is_ours(const struct group *g, uint64_t gang, uint32_t cut, ProtobufCBinaryData pass)
{
    return g->gang && gang == g->gang && cut == g->cut && pass.len == g->pass_len && memcmp(pass.data, g->pass, g->pass_len) == 0;
}

/* Takes over both. With the lock held, as all of these. */
static void take_batch(struct group *g, Ebb__Envelope *envelope, struct payload *p)
{
    const Ebb__MicroBatch *m = envelope->micro_batch;
    struct err e;
    struct model_batch b;
    struct work *w = NULL;
    if (!is_ours(g, m->gang, m->cut, m->pass) || m->stage != g->self || !g->part) {
        log_debug("a micro-batch of gang %" PRIx64 " cut %u for stage %u is not for this worker now", m->gang, m->cut, m->stage);
    } else if (message_batch(m, &g->part->bounds, &b, &e) != ST_OK) {
        log_warn("gang %" PRIx64 ": %s", g->gang, e.text);
    } else if ((p == NULL) != (g->self == 0)) {
        log_warn("gang %" PRIx64 ": a micro-batch for stage %u comes %s", g->gang, g->self, p ? "with activations" : "without activations");
    } else if (!(w = mem_alloc(sizeof *w))) {
        pipeline_out_of_memory(g->p, "a micro-batch");
    }
    if (!w) {
        wire_free(envelope);
        payload_free(p);
        return;
    }
    *w = (struct work){.m = envelope, .in = p, .part = part_ref(g->part), .batch = b};
    runner_put(&g->runner, w);
}

static void take(struct group *g, Ebb__Envelope *m, struct payload *p)
{
    if (m->body_case == EBB__ENVELOPE__BODY_MICRO_BATCH) {
        take_batch(g, m, p);
        return;
    }
    if (m->body_case == EBB__ENVELOPE__BODY_STAGE_RESULT) {
        const Ebb__StageResult *r = m->stage_result;
        if (is_ours(g, r->gang, r->cut, r->pass) && g->self == g->head) {
            group_landed(g, m, p);
            return;
        }
        log_debug("a result of gang %" PRIx64 " cut %u is not for this worker now", r->gang, r->cut);
    } else {
        log_warn("a message of kind %d, which no member of a gang should get, is dropped", (int)m->body_case);
    }
    wire_free(m);
    payload_free(p);
}

void group_pass(struct group *g, uint32_t to, Ebb__Envelope__BodyCase which, void *body, struct payload *p)
{
    struct err e;
    enum status st;
    if (to != g->self) {
        st = carrier_send(g->carrier, g->members[to].worker, which, body, p, &e);
    } else { /* the same way, but for the sockets */
        struct buf bytes = {0};
        Ebb__Envelope *m;
        st = wire_encode(which, body, &bytes, &e);
        if (st == ST_OK)
            st = wire_decode(bytes.data, bytes.len, &m, &e);
        buf_release(&bytes);
        if (st == ST_OK)
            take(g, m, p);
        else
            payload_free(p);
    }
    if (st == ST_NOMEM)
        pipeline_out_of_memory(g->p, "a micro-batch");
    if (st != ST_OK)
        group_fault(g, 0, e.text);
}

static void on_message(void *arg, Ebb__Envelope *m, struct payload *p)
{
    struct group *g = arg;
    pthread_mutex_lock(&g->p->lock);
    take(g, m, p);
    pthread_mutex_unlock(&g->p->lock);
}

/* Connections ----------------------------------------------------------------------------------------------------------------------- */

static void on_up(void *arg, uint64_t peer)
{
    struct group *g = arg;
    pthread_mutex_lock(&g->p->lock);
    for (uint32_t i = 0; i < g->peer_count; i++)
        if (g->peers[i].worker == peer)
            g->peers[i].up = 1;
    group_ready(g);
    pthread_mutex_unlock(&g->p->lock);
}

static void say_lost(struct group *g, uint32_t i, const char *what)
{
    char text[200];
    if (g->peers[i].faulted)
        return;
    g->peers[i].faulted = 1;
    snprintf(text, sizeof text, "%s worker %" PRIx64, what, g->peers[i].worker);
    group_fault(g, g->peers[i].worker, text);
}

static void on_lost(void *arg, uint64_t peer)
{
    struct group *g = arg;
    pthread_mutex_lock(&g->p->lock);
    for (uint32_t i = 0; i < g->peer_count; i++)
        if (g->peers[i].worker == peer) {
            g->peers[i].up = 0;
            say_lost(g, i, "the connection is gone to");
        }
    pthread_mutex_unlock(&g->p->lock);
}

static void on_tick(void *arg)
{
    struct group *g = arg;
    pthread_mutex_lock(&g->p->lock);
    for (uint32_t i = 0; g->gang && g->part && i < g->peer_count; i++)
        if (!g->peers[i].up && clock_ms() >= g->since_ms + CONNECT_MS)
            say_lost(g, i, "there is no connection to");
    sends_look(g);
    pthread_mutex_unlock(&g->p->lock);
}

/* What the daemon says ------------------------------------------------------------------------------------------------------------- */

static int find(const Ebb__Stage *m, uint64_t worker, uint32_t *at)
{
    for (*at = 0; *at < m->n_members; ++*at)
        if (m->members[*at]->worker == worker)
            return 1;
    return 0;
}

/* NULL: it can be followed. */
static const char *odd(const struct group *g, const Ebb__Stage *m)
{
    uint32_t at, next = 0;
    if (m->n_members > GROUP_MOST || m->gang == 0 || m->cut == 0 || m->pass.len == 0 || m->pass.len > PASS_MOST)
        return "more members, or less else, than a gang has";
    if (!find(m, m->head, &at) || !find(m, g->o.number, &at))
        return "its head or this worker is none of its members";
    for (size_t i = 0; i < m->n_members; i++) {
        const Ebb__StageMember *x = m->members[i];
        if (x->first != next || x->end <= x->first || strlen(x->endpoint) >= sizeof g->members[0].endpoint || strlen(x->key) > KEYS_Z85)
            return "the parts of its members do not follow each other";
        next = x->end;
    }
    return NULL;
}

/* Out of whatever it was in. Parts stay as the spare one. */
static void forget(struct group *g)
{
    g->gang = 0;
    g->count = g->peer_count = 0;
    g->go = g->ready = g->failed = 0;
    if (g->part) {
        part_unref(g->spare);
        g->spare = g->part;
        g->part = NULL;
    }
    runner_part(&g->runner, NULL);
    sends_again(g);
}

static void leave(struct group *g)
{
    struct err e;
    uint64_t gang = g->gang;
    forget(g);
    part_unref(g->spare);
    g->spare = NULL;
    job_unref(g->job);
    g->job = NULL;
    if (gang && carrier_peers(g->carrier, NULL, 0, &e) == ST_OK)
        log_info("gang %" PRIx64 ": left", gang);
}

static void add_peer(struct group *g, uint32_t member)
{
    if (member == g->self)
        return;
    for (uint32_t i = 0; i < g->peer_count; i++)
        if (g->peers[i].worker == g->members[member].worker)
            return;
    g->peers[g->peer_count].worker = g->members[member].worker;
    g->peers[g->peer_count].up = g->peers[g->peer_count].faulted = 0;
    g->peer_count++;
}

/* To the next, the last one to the head; and the head to the first. */
static enum status connect_peers(struct group *g, struct err *e)
{
    struct carrier_peer list[CARRIER_PEERS];
    add_peer(g, g->self + 1 < g->count ? g->self + 1 : g->head);
    if (g->self == g->head)
        add_peer(g, 0);
    for (uint32_t i = 0; i < g->peer_count; i++)
        for (uint32_t k = 0; k < g->count; k++)
            if (g->members[k].worker == g->peers[i].worker)
                list[i] = (struct carrier_peer){.worker = g->members[k].worker, .endpoint = g->members[k].endpoint, .key = g->members[k].key};
    return carrier_peers(g->carrier, list, g->peer_count, e);
}

static struct job *find_job(struct group *g, uint64_t id)
{
    struct job *j = g->p->jobs;
    while (j && j->id != id)
        j = j->next;
    return j;
}

static enum status start_loader(struct group *g, struct err *e)
{
    return g->loader.started ? ST_OK : stage_start(g->p, &g->loader, loader_run, 0, "load", -1, e);
}

/* Only who is in a gang has these. */
static enum status start_threads(struct group *g, struct err *e)
{
    TRY(start_loader(g, e));
    if (!g->finisher.started)
        TRY(stage_start(g->p, &g->finisher, finisher_run, 0, "finish", -1, e));
    return runner_start(&g->runner, g, g->p->o.lanes, g->first_slot, e);
}

/* The memory of a whole model goes as soon as no record needs it any more: the daemon counts on all of it for the part. */
static void let_go_of_model(struct group *g, const struct job *j)
{
    struct loaded *l = g->p->loaded;
    if (!l || (l->shell && loaded_fits(l, j)))
        return;
    g->p->loaded = NULL;
    loaded_unref(l);
}

static void join_gang(struct group *g, const Ebb__Stage *m, struct job *j)
{
    struct err e;
    let_go_of_model(g, j);
    if (m->gang != g->gang)
        g->slowest_ms = 0;
    forget(g);
    g->gang = m->gang;
    g->cut = m->cut;
    g->count = (uint32_t)m->n_members;
    g->pass_len = m->pass.len;
    memcpy(g->pass, m->pass.data, m->pass.len);
    find(m, m->head, &g->head);
    find(m, g->o.number, &g->self);
    for (uint32_t i = 0; i < g->count; i++) {
        struct member *to = &g->members[i];
        to->worker = m->members[i]->worker;
        to->first = m->members[i]->first;
        to->end = m->members[i]->end;
        snprintf(to->endpoint, sizeof to->endpoint, "%s", m->members[i]->endpoint);
        snprintf(to->key, sizeof to->key, "%s", m->members[i]->key);
    }
    job_ref(j);
    job_unref(g->job);
    g->job = j;
    g->fault_ms = 0;
    const struct member *own = &g->members[g->self];
    log_info("gang %" PRIx64 " cut %u of job %" PRIu64 ": stage %u of %u, segments [%u, %u)%s", g->gang, g->cut, j->id, g->self, g->count, own->first, own->end,
             g->self == g->head ? ", its head" : "");
    if (start_threads(g, &e) != ST_OK || connect_peers(g, &e) != ST_OK) {
        g->failed = 1;
        group_fault(g, 0, e.text);
        return;
    }
    const struct part *spare = g->spare;
    if (spare && spare->first == own->first && spare->end == own->end && spare->job->id == j->id) {
        g->part = g->spare;
        g->spare = NULL;
        g->part->load_ms = 0;
        g->since_ms = clock_ms();
        runner_part(&g->runner, g->part);
        group_ready(g);
    } else {
        pthread_cond_broadcast(&g->to_load);
    }
}

void group_stage(struct group *g, const Ebb__Stage *m)
{
    if (!g)
        return;
    pthread_mutex_lock(&g->p->lock);
    const char *why = NULL;
    struct job *j = NULL;
    if (m->n_members == 0) {
        if (!m->gang || m->gang == g->gang)
            leave(g);
    } else if (m->gang == g->gang && m->cut < g->cut) {
        log_debug("gang %" PRIx64 " cut %u comes behind cut %u", m->gang, m->cut, g->cut);
    } else if (m->gang == g->gang && m->cut == g->cut) {
        if (g->ready && !runner_busy(&g->runner)) { /* the daemon did not hear it */
            g->ready = 0;
            group_ready(g);
        }
    } else if ((why = odd(g, m)) || !(j = find_job(g, m->job))) {
        log_error("gang %" PRIx64 ": %s", m->gang, why ? why : "its job is not known here");
        struct report r = {.kind = REPORT_STAGE_FAULT, .gang = m->gang, .cut = m->cut};
        snprintf(r.text, sizeof r.text, "%s", why ? why : "its job is not known here");
        pipeline_add_report(g->p, &r);
    } else {
        join_gang(g, m, j);
    }
    pthread_mutex_unlock(&g->p->lock);
}

void group_go(struct group *g, uint64_t gang, uint32_t cut)
{
    if (!g)
        return;
    pthread_mutex_lock(&g->p->lock);
    if (g->gang && gang == g->gang && cut == g->cut && g->self == g->head) {
        log_info("gang %" PRIx64 " cut %u goes", gang, cut);
        g->go = 1;
        sends_pump(g);
    }
    pthread_mutex_unlock(&g->p->lock);
}

static void wish_free(struct wish *w)
{
    mem_free(w->peers);
    mem_free(w);
}

void group_wish(struct group *g, uint64_t job, struct way_peer *peers, size_t n)
{
    struct err e;
    struct wish *w = mem_alloc(sizeof *w), **at = &g->profiles;
    if (!w)
        pipeline_out_of_memory(g->p, "a measurement");
    *w = (struct wish){.job = job, .peers = peers, .peer_count = n};
    while (*at && (*at)->job != job)
        at = &(*at)->next;
    if (*at && !(*at)->peer_count) { /* it waits already, but not for the ways */
        mem_free((*at)->peers);
        (*at)->peers = peers;
        (*at)->peer_count = n;
        mem_free(w);
    } else if (*at) {
        wish_free(w);
    } else {
        *at = w;
    }
    if (start_loader(g, &e) != ST_OK)
        log_error("%s", e.text);
    pthread_cond_broadcast(&g->to_load);
}

void group_profile(struct group *g, const Ebb__Profile *m)
{
    if (!g)
        return;
    size_t n = 0, most = m->n_peers < GROUP_WAYS ? m->n_peers : GROUP_WAYS;
    struct way_peer *peers = mem_array(most, sizeof *peers);
    if (!peers && most)
        pipeline_out_of_memory(g->p, "a measurement");
    for (size_t i = 0; i < most; i++) {
        const Ebb__StageMember *x = m->peers[i];
        if (strlen(x->endpoint) >= sizeof peers[n].endpoint || strlen(x->key) >= sizeof peers[n].key)
            continue; /* no worker has such a one */
        peers[n].worker = x->worker;
        snprintf(peers[n].endpoint, sizeof peers[n].endpoint, "%s", x->endpoint);
        snprintf(peers[n].key, sizeof peers[n].key, "%s", x->key);
        n++;
    }
    pthread_mutex_lock(&g->p->lock);
    group_wish(g, m->job, peers, n);
    pthread_mutex_unlock(&g->p->lock);
}

int group_heads(const struct group *g, uint64_t job)
{
    return g && g->gang && g->self == g->head && g->job->id == job;
}

void group_closed(struct group *g)
{
    if (!g || (!g->waiting.first && !g->flying.first))
        return;
    g->closed = 1;
    carrier_poke(g->carrier);
}

int group_busy(struct group *g)
{
    if (!g)
        return 0;
    pthread_mutex_lock(&g->p->lock);
    int busy = g->loading || g->finishing || g->waiting.first || g->flying.first || g->landed.first;
    pthread_mutex_unlock(&g->p->lock);
    return busy || runner_busy(&g->runner);
}

const char *group_endpoint(const struct group *g)
{
    return g ? carrier_endpoint(g->carrier) : "";
}

const char *group_key(const struct group *g)
{
    return g ? carrier_key(g->carrier) : "";
}

/* Begin and end --------------------------------------------------------------------------------------------------------------------- */

uint32_t group_slots(uint32_t lanes)
{
    return lanes;
}

enum status group_new(struct pipeline *p, const struct group_opts *o, uint32_t first_slot, struct group **out, struct err *e)
{
    *out = NULL;
    if (!o->context || !o->endpoint)
        return ST_OK;
    struct group *g = mem_zalloc(sizeof *g);
    if (!g)
        return err_nomem(e, "a group");
    g->p = p;
    g->o = *o;
    g->first_slot = first_slot;
    pthread_cond_init(&g->room, NULL);
    pthread_cond_init(&g->land, NULL);
    pthread_cond_init(&g->to_load, NULL);
    pthread_mutex_init(&g->runner.lock, NULL);
    pthread_cond_init(&g->runner.filled, NULL);
    g->runner.tail = &g->runner.head;
    const struct carrier_handlers h = {.arg = g, .message = on_message, .up = on_up, .lost = on_lost, .tick = on_tick};
    struct err why;
    enum status st = carrier_new(o->context, o->endpoint, o->keys, o->number, &h, &g->carrier, &why);
    if (st == ST_OK) {
        *out = g;
        return ST_OK;
    }
    group_free(g);
    if (st == ST_NOMEM)
        return err_nomem(e, "a carrier");
    log_warn("this worker can be in no gang: %s", why.text);
    return ST_OK;
}

void group_stop(struct group *g)
{
    if (!g)
        return;
    pthread_mutex_lock(&g->p->lock);
    g->stopping = 1;
    pthread_cond_broadcast(&g->room);
    pthread_cond_broadcast(&g->land);
    pthread_cond_broadcast(&g->to_load);
    pthread_mutex_unlock(&g->p->lock);
}

void group_free(struct group *g)
{
    if (!g)
        return;
    pthread_mutex_lock(&g->p->lock); /* out of its gang: a runner that is not through yet sends nothing */
    g->gang = 0;
    g->go = 0;
    pthread_mutex_unlock(&g->p->lock);
    stage_join(&g->loader);          /* it may be measuring a way */
    carrier_free(g->carrier);        /* no message comes in any more */
    runner_end(&g->runner);
    stage_join(&g->finisher);
    pthread_mutex_lock(&g->p->lock);
    sends_drop(g);
    pthread_mutex_unlock(&g->p->lock);
    for (struct wish *w = g->profiles, *next; w; w = next) {
        next = w->next;
        wish_free(w);
    }
    part_unref(g->part);
    part_unref(g->spare);
    job_unref(g->job);
    pthread_cond_destroy(&g->room);
    pthread_cond_destroy(&g->land);
    pthread_cond_destroy(&g->to_load);
    pthread_mutex_destroy(&g->runner.lock);
    pthread_cond_destroy(&g->runner.filled);
    mem_free(g);
}
