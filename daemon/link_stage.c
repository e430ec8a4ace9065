/* What is said about pipelines over several workers: the core decides who holds which part of a model, and workers send each other micro-batches
   on sockets of their own. Here a worker's Hello tells where its socket is; a Stage tells all members of a gang each other's. None of what one
   says about itself is passed on before it has been looked at. */
#include "daemon/link_inside.h"

#include <inttypes.h>
#include <math.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/mem.h"
#include "daemon/metrics.h"
#include "wire/keys.h"

#define PASS_BYTES 16
#define IPC_PATH_MAX 107     /* of a socket's path */
#define SEGMENTS_MOST 4096   /* of one model */
#define TIME_MOST_MS 1e9
#define BYTES_MOST (UINT64_C(1) << 50)
#define REACH_TCP 1          /* all that have an address reach each other */
#define PEERS_MOST 32        /* that one is asked to measure the way to */
#define LINKS_MOST 64        /* that are heard of in one profile */
#define LATENCY_BELOW_MS 60000
#define RATE_LEAST 1.0       /* bits a second; what is below, or above the other, is no link's */
#define RATE_MOST 1e15

/* Coming in ----------------------------------------------------------------------------------------------------------------------- */

static int plain(const char *text, const char *also)
{
    for (const char *p = text; *p; p++)
        if (!((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || strchr(also, *p)))
            return 0;
    return 1;
}

/* Over ipc: a socket's file of our own user. Over the network: an address with its key. */
static int fit(const struct worker *w, const char *endpoint, const char *key)
{
    if (!w->peer.user)
        return strncmp(endpoint, "ipc:///", 7) == 0 && strlen(endpoint) <= 6 + IPC_PATH_MAX && plain(endpoint + 6, "/._-+:@,=%~") && !strstr(endpoint, "..") && !*key;
    const char *colon = strrchr(endpoint, ':');
    unsigned long port = colon ? strtoul(colon + 1, NULL, 10) : 0;
    return strncmp(endpoint, "tcp://", 6) == 0 && strlen(endpoint) < sizeof w->stage_endpoint && colon > endpoint + 6 && plain(endpoint + 6, ".:[]-_%") &&
           strspn(colon + 1, "0123456789") == strlen(colon + 1) && port >= 1 && port <= 65535 && keys_valid(key);
}

static int loopback(const char *endpoint)
{
    return strncmp(endpoint, "tcp://127.", 10) == 0 || strncmp(endpoint, "tcp://[::1]", 11) == 0;
}

uint64_t link_stage_hello(struct worker *w, const Ebb__Hello *h)
{
    const char *endpoint = h->stage_endpoint ? h->stage_endpoint : "", *key = h->stage_key ? h->stage_key : "";
    w->stage_endpoint[0] = w->stage_key[0] = 0;
    w->reach = 0;
    if (!*endpoint)
        return 0;
    if (!fit(w, endpoint, key)) {
        char shown[128];
        link_take_text(shown, sizeof shown, endpoint);
        log_warn("worker %s: says that micro-batches come in at '%s', which cannot be passed on: it takes part in no pipeline", w->name, shown);
        return 0;
    }
    snprintf(w->stage_endpoint, sizeof w->stage_endpoint, "%s", endpoint);
    snprintf(w->stage_key, sizeof w->stage_key, "%s", key);
    if (w->peer.user && !loopback(endpoint))
        w->reach = REACH_TCP;
    else /* those of one machine; over its files and over its loopback are two things */
        w->reach = XXH64(w->host, strlen(w->host), w->peer.user ? 2 : 1) | 2;
    return w->reach;
}

static const char *segments_senseless(const Ebb__Profiled *m)
{
    if (!m->n_segments || m->n_segments > SEGMENTS_MOST)
        return "a profile without segments, or of too many";
    if (m->fixed_bytes > BYTES_MOST)
        return "a profile of impossible figures";
    for (size_t i = 0; i < m->n_segments; i++) {
        const Ebb__Segment *s = m->segments[i];
        if (!isfinite(s->time_ms) || s->time_ms < 0 || s->time_ms > TIME_MOST_MS || !isfinite(s->out_bytes) || s->out_bytes < 0 || s->out_bytes > (double)BYTES_MOST ||
            s->weight_bytes > BYTES_MOST)
            return "a profile of impossible figures";
    }
    return NULL;
}

const char *link_stage_senseless(const Ebb__Envelope *m)
{
    if (m->body_case == EBB__ENVELOPE__BODY_PROFILED)
        return segments_senseless(m->profiled);
    if (m->body_case == EBB__ENVELOPE__BODY_STAGE_READY)
        return m->stage_ready->gang && m->stage_ready->cut ? NULL : "a stage of no gang";
    return m->stage_fault->gang && m->stage_fault->cut ? NULL : "a fault of no gang";
}

static const char *link_wrong(const struct worker *w, const Ebb__Link *x)
{
    if (!x->worker || x->worker == w->number)
        return "it leads to no other worker";
    if (!isfinite(x->bits_per_s) || x->bits_per_s < RATE_LEAST || x->bits_per_s > RATE_MOST)
        return "its rate is impossible";
    return isfinite(x->latency_ms) && x->latency_ms >= 0 && x->latency_ms < LATENCY_BELOW_MS ? NULL : "its latency is impossible";
}

/* Those that make sense into `out`, which holds LINKS_MOST; how many. Each of the others is as if nobody had measured it. */
static size_t links_of(struct link *l, const struct worker *w, const Ebb__Profiled *m, struct sched_link *out)
{
    size_t count = 0, wrong = 0;
    const char *why = NULL;
    for (size_t i = 0; i < m->n_links; i++) {
        const Ebb__Link *x = m->links[i];
        const char *fault = i < LINKS_MOST ? link_wrong(w, x) : "there are too many";
        if (fault) {
            wrong++;
            why = why ? why : fault;
            continue;
        }
        out[count++] = (struct sched_link){x->worker, x->bits_per_s, x->latency_ms};
        const struct worker *to = link_worker(l, x->worker);
        if (to) /* else it left meanwhile */
            log_info("worker %s: to worker %s %.*f Mbit/s, %.2f ms", w->name, to->name, x->bits_per_s < 1e7 ? 3 : 0, x->bits_per_s / 1e6, x->latency_ms);
    }
    if (wrong)
        log_warn("worker %s: %zu of the %zu links that it says to have measured are left out: %s", w->name, wrong, m->n_links, why);
    return count;
}

void link_profiled(struct link *l, struct worker *w, const Ebb__Profiled *m)
{
    struct job *j = job_find(l->d, m->job);
    if (!j || j->model_key != m->model_key) {
        log_debug("worker %s: a profile of a model that nobody asked about", w->name);
        return;
    }
    char text[400];
    struct sched_event ev = {.kind = SCHED_WORKER_PROFILED, .worker = w->number, .job = m->job};
    enum other_model other = link_other_model(l, w, m->model_key, &m->digest, m->numerics, text, sizeof text);
    if (other != MODEL_SAME) {
        link_no_model(l, w, m->job, m->model_key, text, other == MODEL_OTHER_NUMERICS);
        return;
    }
    struct sched_link links[LINKS_MOST];
    struct sched_segment *segments = mem_array(m->n_segments, sizeof *segments);
    if (!segments)
        link_no_memory(l);
    double ms = 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < m->n_segments; i++) {
        segments[i] = (struct sched_segment){m->segments[i]->time_ms, m->segments[i]->weight_bytes, m->segments[i]->out_bytes};
        ms += segments[i].time_ms;
        bytes += segments[i].weight_bytes;
    }
    w->profiled_key = m->model_key;
    if (m->numerics && *m->numerics)
        link_take_text(w->numerics, sizeof w->numerics, m->numerics);
    job_model_ready(l->d, m->model_key, m->dims, w->numerics);
    log_info("worker %s: model %" PRIx64 " has %zu segments, %.1f ms a micro-batch, %" PRIu64 " bytes of weights", w->name, m->model_key, m->n_segments, ms, bytes);
    ev.u.profiled.model_key = m->model_key;
    ev.u.profiled.segments = segments;
    ev.u.profiled.count = m->n_segments;
    ev.u.profiled.fixed_bytes = m->fixed_bytes;
    ev.u.profiled.links = links;
    ev.u.profiled.link_count = links_of(l, w, m, links);
    loop_tell(l->d, &ev);
    mem_free(segments);
}

void link_stage_ready(struct link *l, struct worker *w, const Ebb__StageReady *m)
{
    struct sched_event ev = {.kind = SCHED_STAGE_READY, .worker = w->number};
    ev.u.stage.gang = m->gang;
    ev.u.stage.cut = m->cut;
    ev.u.stage.load_ms = m->load_ms;
    log_info("worker %s: its stage of gang %" PRIx64 ", cut %u, is ready after %" PRIu64 " ms", w->name, m->gang, m->cut, m->load_ms);
    loop_tell(l->d, &ev);
}

void link_stage_fault(struct link *l, struct worker *w, const Ebb__StageFault *m)
{
    char said[320], text[500];
    struct sched_event ev = {.kind = SCHED_STAGE_FAULT, .worker = w->number};
    const struct worker *peer = m->peer ? link_worker(l, m->peer) : NULL;
    link_take_text(said, sizeof said, m->text);
    if (peer)
        snprintf(text, sizeof text, "%s does not answer: %s", peer->name, said);
    else if (w->provider == PROVIDER_LOCAL)
        snprintf(text, sizeof text, "%s", said);
    else
        snprintf(text, sizeof text, "worker %s: %s", w->name, said); /* it may be that machine's fault */
    log_warn("worker %s: gang %" PRIx64 ", cut %u: %s", w->name, m->gang, m->cut, text);
    metrics_add(METRIC_STAGE_FAULTS, 1);
    ev.u.stage.gang = m->gang;
    ev.u.stage.cut = m->cut;
    ev.u.stage.peer = m->peer;
    ev.u.stage.text = text;
    loop_tell(l->d, &ev);
}

/* Going out ----------------------------------------------------------------------------------------------------------------------- */

/* A worker and the job that it knows now; else it will say hello, or is gone. */
static struct worker *told(struct link *l, uint64_t worker, uint64_t job)
{
    struct worker *w = link_reachable(l, worker);
    const struct job *j = job_find(l->d, job);
    return w && j && !w->ask_hello && link_tell_job(l, w, j) ? w : NULL;
}

/* Where others' micro-batches come in. Texts stay the worker's. */
static Ebb__StageMember door(const struct worker *x)
{
    Ebb__StageMember m = EBB__STAGE_MEMBER__INIT;
    m.worker = x->number;
    m.endpoint = (char *)(uintptr_t)x->stage_endpoint;
    m.key = (char *)(uintptr_t)x->stage_key;
    return m;
}

/* Workers of other hosts that w may send micro-batches to, into `out`, which holds PEERS_MOST; how many. Where there are more, those that joined last:
   the others were there when somebody else was asked. */
static size_t peers_of(struct link *l, const struct worker *w, const struct worker **out)
{
    size_t count = 0, i = 0;
    uint64_t now = clock_ms();
    for (const struct worker *x; (x = link_next(l, &i));) {
        if (!w->reach || x->reach != w->reach || !x->joined || strcmp(x->host, w->host) == 0 || now - x->seen_ms > l->d->config->worker_timeout)
            continue;
        size_t at = count;
        while (at && out[at - 1]->since_ms < x->since_ms)
            at--;
        if (at == PEERS_MOST)
            continue;
        count += count < PEERS_MOST;
        memmove(out + at + 1, out + at, (count - 1 - at) * sizeof *out);
        out[at] = x;
    }
    return count;
}

void link_send_profile(struct link *l, uint64_t worker, uint64_t job)
{
    struct worker *w = told(l, worker, job);
    const struct worker *peers[PEERS_MOST];
    Ebb__StageMember members[PEERS_MOST], *pointers[PEERS_MOST];
    Ebb__Profile m = EBB__PROFILE__INIT;
    if (!w)
        return;
    m.job = job;
    m.n_peers = peers_of(l, w, peers);
    m.peers = pointers;
    for (size_t i = 0; i < m.n_peers; i++) {
        members[i] = door(peers[i]);
        pointers[i] = &members[i];
    }
    link_send_to(l, w, EBB__ENVELOPE__BODY_PROFILE, &m);
}

void link_send_stage(struct link *l, uint64_t worker, uint64_t job, uint64_t gang, uint32_t cut, uint64_t head, const struct sched_member *first, size_t count)
{
    struct worker *w = count ? told(l, worker, job) : link_reachable(l, worker);
    Ebb__StageMember members[GANG_MOST], *pointers[GANG_MOST];
    Ebb__Stage m = EBB__STAGE__INIT;
    uint8_t pass[PASS_BYTES], named[16];
    if (!w)
        return;
    for (size_t i = 0; i < count; i++) {
        const struct worker *x = link_worker(l, first[i].worker);
        if (!x)
            return; /* it has gone meanwhile: the core divides anew */
        members[i] = door(x);
        members[i].first = first[i].first;
        members[i].end = first[i].end;
        pointers[i] = &members[i];
    }
    /* Nobody outside can guess it, and none is kept: a gang's follows from its name. */
    memcpy(named, &gang, sizeof gang);
    memcpy(named + sizeof gang, &job, sizeof job);
    crypto_generichash(pass, sizeof pass, named, sizeof named, l->secret, sizeof l->secret);
    m.gang = gang;
    m.cut = cut;
    m.job = job;
    m.n_members = count;
    m.members = pointers;
    m.head = head;
    m.pass.data = pass;
    m.pass.len = count ? sizeof pass : 0;
    link_send_to(l, w, EBB__ENVELOPE__BODY_STAGE, &m);
}

void link_send_stage_go(struct link *l, uint64_t worker, uint64_t gang, uint32_t cut)
{
    struct worker *w = link_reachable(l, worker);
    Ebb__StageGo m = EBB__STAGE_GO__INIT;
    m.gang = gang;
    m.cut = cut;
    if (w)
        link_send_to(l, w, EBB__ENVELOPE__BODY_STAGE_GO, &m);
}
