/* The happy path: Hello -> Welcome; a Job, its Leases; each commit that the pipeline reports goes out, and is kept until its Ack comes; a Beat every
   so often; Drain -> the last commits, their Acks, Bye.

   What can fail: a message is lost with its connection, or the daemon restarts: ZeroMQ connects again, we say Hello with the leases we
   hold, and after the Welcome send again whatever was not acknowledged, in order; the daemon answers a commit that it has already with the same
   Ack. A Welcome that we did not ask for is a daemon that does not know us: Hello. A lease was given to somebody else (STALE, Revoke): it
   is dropped. A part that a commit named is never removed here, whatever the answer: a daemon that was restarted may call stale what it has
   a row of, and its sweep knows better. The daemon stays away: we go, what is not committed is done again by others. */
#include "workers/link.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/host.h"
#include "base/log.h"
#include "base/mem.h"
#include "wire/sock.h"
#include "wire/wire.h"
#include "workers/engine/profile.h"
#include "workers/group/group.h"
#include "workers/group/ways.h"
#include "workers/outbox.h"
#include "workers/remote/remote.h"
#include "workers/service.h"

#define LANES_MS 1500 /* a drain lets the lanes go on for so long, then commits and gives the rest back: who waits sees it end soon */
#define HELLO_AGAIN_MS 2000
#define COMMIT_AGAIN_MS 5000
#define ALONE_MS 30000        /* without a connection */
#define ALONE_TCP_MS 120000   /* the same to another machine, which takes longer to come back */
#define ORPHAN_MS 15000       /* the same when the parent is gone too */
#define SILENCE_MS 120000     /* connected, asked, and no answer */
#define STALL_MS 5000         /* we were not run ourselves for so long: what was silent meanwhile is no evidence */
#define MOST_LEASES 64
#define MESSAGES_A_TURN 64
#define NUMERICS "ebb1-x86-f32" /* what would be loaded, as long as nothing is */

struct link {
    const struct link_opts *o;
    struct pipeline *p;
    void *monitor;
    struct sock *sock;
    char host[256];
    pid_t parent;
    uint32_t generation;
    int welcomed, asked;      /* a Hello waits for its Welcome */
    int connected, was_connected;
    unsigned broken;          /* handshakes, before the first one that was not */
    uint64_t hello_ms, beat_ms, next_beat_ms;
    uint64_t lost_ms;         /* since when there is no connection */
    uint64_t word_ms;         /* last word of the daemon */
    uint64_t turn_ms;
    struct outbox outbox;
    int draining, signals, leave, exit_code;
    uint64_t drain_end_ms;
};

static void send(const struct link *l, Ebb__Envelope__BodyCase which, void *body)
{
    outbox_say(l->sock, which, body);
}

static void leave(struct link *l, int exit_code)
{
    l->leave = 1;
    l->exit_code = exit_code;
}

/* Hello and beats ----------------------------------------------------------------------------------------------------------------- */

static void say_hello(struct link *l, uint64_t now_ms)
{
    struct pipeline_progress leases[MOST_LEASES];
    Ebb__Held held[MOST_LEASES], *held_at[MOST_LEASES];
    size_t n = pipeline_held(l->p, leases, MOST_LEASES);
    for (size_t i = 0; i < n; i++) {
        held[i] = (Ebb__Held)EBB__HELD__INIT;
        held[i].job = leases[i].job;
        held[i].epoch = leases[i].epoch;
        held[i].next_seq = leases[i].next_seq;
        held_at[i] = &held[i];
    }
    char numerics[64];
    Ebb__Hello m = EBB__HELLO__INIT;
    pipeline_loaded(l->p, &m.model_key, numerics, sizeof numerics);
    if (!numerics[0])
        snprintf(numerics, sizeof numerics, "%s", NUMERICS);
    m.version_min = WIRE_VERSION_MIN;
    m.version_max = WIRE_VERSION;
    m.program = (char *)(uintptr_t)l->o->program;
    m.worker = l->o->number;
    m.host = l->host;
    m.pid = (uint32_t)getpid();
    m.lanes = l->o->lanes;
    m.memory_bytes = l->o->memory_bytes;
    m.provider = l->o->provider;
    m.numerics = numerics;
    m.n_held = n;
    m.held = held_at;
    m.generation = l->generation;
    m.name = (char *)(uintptr_t)l->o->name;
    m.stage_endpoint = (char *)(uintptr_t)group_endpoint(pipeline_group(l->p));
    m.stage_key = (char *)(uintptr_t)group_key(pipeline_group(l->p));
    send(l, EBB__ENVELOPE__BODY_HELLO, &m);
    l->asked = 1;
    l->hello_ms = now_ms;
}

static void beat(struct link *l)
{
    struct pipeline_progress leases[MOST_LEASES];
    Ebb__Progress progress[MOST_LEASES], *progress_at[MOST_LEASES];
    size_t n = pipeline_held(l->p, leases, MOST_LEASES);
    for (size_t i = 0; i < n; i++) {
        progress[i] = (Ebb__Progress)EBB__PROGRESS__INIT;
        progress[i].epoch = leases[i].epoch;
        progress[i].read_to = leases[i].read_to;
        progress[i].records_done = leases[i].records_done;
        progress[i].bytes_done = leases[i].bytes_done;
        progress_at[i] = &progress[i];
    }
    Ebb__Beat m = EBB__BEAT__INIT;
    m.n_leases = n;
    m.leases = progress_at;
    m.rss_bytes = host_resident_bytes();
    m.records_done = pipeline_records_done(l->p);
    m.input_queue_bytes = pipeline_bytes(l->p);
    send(l, EBB__ENVELOPE__BODY_BEAT, &m);
}

/* Reports ------------------------------------------------------------------------------------------------------------------------- */

/* A lease that this worker cannot begin with: all of it goes back. */
static void return_lease(struct link *l, uint64_t job, uint64_t epoch, struct span span, uint64_t now_ms)
{
    struct commit *c = mem_zalloc(sizeof *c);
    if (!c || !(c->returned = mem_array(1, sizeof *c->returned)))
        outbox_no_memory();
    c->job = job;
    c->epoch = epoch;
    c->returned[0] = span;
    c->returned_count = 1;
    outbox_add(&l->outbox, l->welcomed ? l->sock : NULL, c, now_ms);
}

static void say_job_fault(struct link *l, uint64_t job, const char *text)
{
    Ebb__JobFault m = EBB__JOB_FAULT__INIT;
    m.job = job;
    m.text = (char *)(uintptr_t)text;
    send(l, EBB__ENVELOPE__BODY_JOB_FAULT, &m);
}

static void say_profiled(struct link *l, struct report *r)
{
    struct profile *p = r->profile;
    Ebb__Segment *segments = mem_array(p->count, sizeof *segments), **at = mem_array(p->count, sizeof(void *));
    Ebb__Link *links = mem_array(r->way_count, sizeof *links), **links_at = mem_array(r->way_count, sizeof(void *));
    if (!segments || !at || !links || !links_at)
        outbox_no_memory();
    for (size_t i = 0; i < r->way_count; i++) {
        links[i] = (Ebb__Link)EBB__LINK__INIT;
        links[i].worker = r->ways[i].worker;
        links[i].bits_per_s = r->ways[i].bits_per_s;
        links[i].latency_ms = r->ways[i].latency_ms;
        links_at[i] = &links[i];
    }
    for (uint32_t i = 0; i < p->count; i++) {
        segments[i] = (Ebb__Segment)EBB__SEGMENT__INIT;
        segments[i].time_ms = p->list[i].time_ms;
        segments[i].weight_bytes = p->list[i].weight_bytes;
        segments[i].out_bytes = p->list[i].out_bytes;
        at[i] = &segments[i];
    }
    Ebb__Profiled m = EBB__PROFILED__INIT;
    m.job = r->job;
    m.model_key = r->model_key;
    m.numerics = r->numerics;
    m.digest.data = r->digest;
    m.digest.len = sizeof r->digest;
    m.n_segments = p->count;
    m.segments = at;
    m.fixed_bytes = p->fixed_bytes;
    m.dims = r->dims;
    m.n_links = r->way_count;
    m.links = links_at;
    send(l, EBB__ENVELOPE__BODY_PROFILED, &m);
    mem_free(segments);
    mem_free(at);
    mem_free(links);
    mem_free(links_at);
    mem_free(r->ways);
    profile_release(p);
    mem_free(p);
}

static void take_reports(struct link *l, uint64_t now_ms)
{
    eventfd_t ignored;
    if (eventfd_read(l->o->wake_fd, &ignored)) {
        /* nothing was written since: the list says what there is */
    }
    for (struct report *r; (r = pipeline_report(l->p));) {
        switch (r->kind) {
        case REPORT_COMMIT:
            outbox_add(&l->outbox, l->welcomed ? l->sock : NULL, r->commit, now_ms);
            break;
        case REPORT_CUT: {
            Ebb__CutAnswer m = EBB__CUT_ANSWER__INIT;
            m.epoch = r->epoch;
            m.at = r->at;
            send(l, EBB__ENVELOPE__BODY_CUT_ANSWER, &m);
            break;
        }
        case REPORT_MODEL_READY: {
            Ebb__ModelReady m = EBB__MODEL_READY__INIT;
            m.model_key = r->model_key;
            m.digest.data = r->digest;
            m.digest.len = sizeof r->digest;
            m.numerics = r->numerics;
            m.load_ms = r->load_ms;
            m.dims = r->dims;
            send(l, EBB__ENVELOPE__BODY_MODEL_READY, &m);
            break;
        }
        case REPORT_MODEL_FAILED: {
            Ebb__ModelFailed m = EBB__MODEL_FAILED__INIT;
            m.job = r->job;
            m.model_key = r->model_key;
            m.text = r->text;
            m.machine = r->machine;
            send(l, EBB__ENVELOPE__BODY_MODEL_FAILED, &m);
            break;
        }
        case REPORT_JOB_FAULT:
            say_job_fault(l, r->job, r->text);
            break;
        case REPORT_PROFILED:
            say_profiled(l, r);
            break;
        case REPORT_STAGE_READY: {
            Ebb__StageReady m = EBB__STAGE_READY__INIT;
            m.gang = r->gang;
            m.cut = r->cut;
            m.load_ms = r->load_ms;
            send(l, EBB__ENVELOPE__BODY_STAGE_READY, &m);
            break;
        }
        case REPORT_STAGE_FAULT: {
            Ebb__StageFault m = EBB__STAGE_FAULT__INIT;
            m.gang = r->gang;
            m.cut = r->cut;
            m.peer = r->peer;
            m.text = r->text;
            send(l, EBB__ENVELOPE__BODY_STAGE_FAULT, &m);
            break;
        }
        }
        mem_free(r);
    }
}

/* What the daemon says ------------------------------------------------------------------------------------------------------------ */

static void drain(struct link *l, uint64_t grace_ms, const char *why, uint64_t now_ms)
{
    if (l->draining && now_ms + grace_ms >= l->drain_end_ms)
        return;
    log_info("draining: %s", why);
    l->draining = 1;
    l->drain_end_ms = now_ms + grace_ms;
    pipeline_drain(l->p, now_ms + (grace_ms / 2 < LANES_MS ? grace_ms / 2 : LANES_MS));
}

static void on_welcome(struct link *l, const Ebb__Welcome *m, uint64_t now_ms)
{
    if (m->generation < l->generation) {
        log_error("the daemon at '%s' is of generation %u, an older one than %u, which this worker has served: it runs from an old state", l->o->endpoint,
                  m->generation, l->generation);
        leave(l, 1);
        return;
    }
    l->generation = m->generation;
    l->beat_ms = m->beat_ms < 10 ? 10 : m->beat_ms > 60000 ? 60000 : m->beat_ms;
    if (!l->asked) { /* it does not know us: it was restarted, or took us for lost */
        say_hello(l, now_ms);
        return;
    }
    l->asked = 0;
    if (l->o->remote)
        remote_welcome(l->o->remote, m->relay, m->sight.data, m->sight.len, m->generation);
    if (!l->welcomed)
        log_info("welcomed by %s, generation %u", m->program, m->generation);
    l->welcomed = 1;
    l->next_beat_ms = now_ms + l->beat_ms;
    outbox_again(&l->outbox, l->sock, now_ms, 0);
}

static void on_job(struct link *l, const Ebb__Job *m)
{
    struct err e;
    const struct job_words w = {
        .id = m->job,
        .spec_json = m->spec,
        .parts_dir = m->parts_dir,
        .model_key = m->model_key,
        .model_digest = m->model_digest.data,
        .model_digest_len = m->model_digest.len,
        .format = m->format,
        .numerics = m->numerics,
        .step_digests = m->step_digests.data,
        .step_digests_len = m->step_digests.len,
    };
    enum status st = pipeline_job(l->p, &w, &e);
    if (st == ST_NOMEM)
        outbox_no_memory();
    if (st != ST_OK) {
        log_error("job %" PRIu64 ": %s", m->job, e.text);
        say_job_fault(l, m->job, e.text);
    }
}

static void on_lease(struct link *l, const Ebb__Lease *m, uint64_t now_ms)
{
    struct err e;
    if (!m->span) {
        log_error("a lease without a span");
        return;
    }
    struct span span = {m->span->begin, m->span->end};
    struct input *inputs = mem_array(m->n_sources, sizeof *inputs);
    if (!inputs)
        outbox_no_memory();
    for (size_t i = 0; i < m->n_sources; i++) {
        const Ebb__Source *s = m->sources[i];
        inputs[i] = (struct input){
            .source = {
                .path = mem_strdup(s->path),
                .size_bytes = s->size_bytes,
                .mtime_ns = s->mtime_ns,
                .compression = (enum compression)s->compression,
                .base = s->position,
            },
            .index = s->index,
            .end = s->end,
        };
        if (!inputs[i].source.path)
            outbox_no_memory();
    }
    enum status st = pipeline_lease(l->p, m->job, m->epoch, span, m->probe, inputs, m->n_sources, &e);
    if (st == ST_OK)
        return;
    log_error("lease %" PRIx64 ": %s", m->epoch, e.text);
    if (st == ST_AGAIN)
        return;
    say_job_fault(l, m->job, e.text);
    return_lease(l, m->job, m->epoch, span, now_ms);
}

static void on_ack(struct link *l, const Ebb__Ack *m)
{
    enum { DONE, STALE, FAULT }; /* ack_verdict of scheduler/sched.h */
    fault_point("worker.ack");
    if (m->verdict == DONE) {
        outbox_forget(&l->outbox, m->epoch, m->seq);
        pipeline_acked(l->p, m->epoch, m->seq);
        return;
    }
    log_warn("lease %" PRIx64 " commit %" PRIu64 " is refused: %s", m->epoch, m->seq,
             m->verdict == STALE ? "the lease is not ours any more" : "the daemon cannot find the part as it was described");
    outbox_forget(&l->outbox, m->epoch, UINT64_MAX);
    pipeline_revoke(l->p, m->epoch, "its commit was refused");
}

static void on_message(struct link *l, const Ebb__Envelope *m, uint64_t now_ms)
{
    l->word_ms = now_ms;
    l->connected = l->was_connected = 1;
    switch (m->body_case) {
    case EBB__ENVELOPE__BODY_WELCOME:
        on_welcome(l, m->welcome, now_ms);
        break;
    case EBB__ENVELOPE__BODY_REFUSED:
        log_error("the daemon at '%s' refuses this worker: %s", l->o->endpoint, m->refused->text);
        leave(l, 2);
        break;
    case EBB__ENVELOPE__BODY_JOB:
        on_job(l, m->job);
        break;
    case EBB__ENVELOPE__BODY_LEASE:
        on_lease(l, m->lease, now_ms);
        break;
    case EBB__ENVELOPE__BODY_CUT:
        pipeline_cut(l->p, m->cut->epoch, m->cut->at);
        break;
    case EBB__ENVELOPE__BODY_REVOKE:
        outbox_forget(&l->outbox, m->revoke->epoch, UINT64_MAX);
        pipeline_revoke(l->p, m->revoke->epoch, "revoked");
        break;
    case EBB__ENVELOPE__BODY_ACK:
        on_ack(l, m->ack);
        break;
    case EBB__ENVELOPE__BODY_DRAIN:
        drain(l, m->drain->grace_ms, "the daemon says so", now_ms);
        break;
    case EBB__ENVELOPE__BODY_PROFILE:
        group_profile(pipeline_group(l->p), m->profile);
        break;
    case EBB__ENVELOPE__BODY_STAGE:
        group_stage(pipeline_group(l->p), m->stage);
        break;
    case EBB__ENVELOPE__BODY_STAGE_GO:
        group_go(pipeline_group(l->p), m->stage_go->gang, m->stage_go->cut);
        break;
    case EBB__ENVELOPE__BODY_FORGET_JOB:
        pipeline_forget_job(l->p, m->forget_job->job);
        break;
    default:
        log_warn("a message of kind %d, which no worker should get, is ignored", (int)m->body_case);
        break;
    }
}

/* Connection, signals, time ------------------------------------------------------------------------------------------------------- */

static void take_monitor(struct link *l, uint64_t now_ms)
{
    for (int event; (event = sock_event(l->monitor));) {
        if (event == ZMQ_EVENT_DISCONNECTED && l->connected) {
            log_warn("the connection to the daemon is gone; it is tried again");
            l->connected = 0;
            l->lost_ms = now_ms;
        } else if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) { /* ZeroMQ gives up behind this, and rightly */
            log_error("the daemon at '%s' does not let this worker in: its key %s is not known there, or was revoked; leaving, what is not committed is "
                      "done again", l->o->endpoint, l->o->keys ? l->o->keys->public_key : "");
            leave(l, 2);
        } else if (event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL || event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL) {
            if (l->o->keys && !l->was_connected && ++l->broken == 3)
                log_warn("who listens at '%s' ends every handshake: it is not the daemon whose public key is %s, or no daemon at all; it is tried again",
                         l->o->endpoint, l->o->keys->server_key);
        } else if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
            l->broken = 0;
            l->connected = 1;
            l->word_ms = now_ms;
            if (l->was_connected)
                say_hello(l, now_ms);
            l->was_connected = 1;
        }
    }
}

static void take_signals(struct link *l, uint64_t now_ms)
{
    unsigned char number;
    while (read(l->o->signal_fd, &number, 1) == 1) {
        if (number == SIGUSR1) { /* a notice, which SIGTERM follows; told twice by that it would leave at once */
            drain(l, l->o->grace_ms, "SIGUSR1, a notice", now_ms);
            continue;
        }
        if (++l->signals > 1) {
            log_warn("told twice to leave: leaving at once; what is not committed is done again");
            _exit(0);
        }
        drain(l, l->o->grace_ms, number == SIGTERM ? "SIGTERM" : "SIGINT", now_ms);
    }
}

static void look_at_clock(struct link *l, uint64_t now_ms)
{
    if (now_ms - l->turn_ms > STALL_MS) {
        l->word_ms = now_ms;
        l->lost_ms = now_ms;
    }
    l->turn_ms = now_ms;
    if (!l->connected) {
        uint64_t alone_ms = now_ms - l->lost_ms;
        if (alone_ms >= (l->o->keys ? ALONE_TCP_MS : ALONE_MS) || (alone_ms >= ORPHAN_MS && getppid() != l->parent)) {
            log_error("no daemon at '%s' for %" PRIu64 " s: leaving; what is not committed is done again", l->o->endpoint, alone_ms / 1000);
            leave(l, 1);
            return;
        }
    } else if ((l->outbox.first || l->asked) && now_ms - l->word_ms >= SILENCE_MS) {
        log_error("the daemon at '%s' does not answer: leaving", l->o->endpoint);
        leave(l, 1);
        return;
    }
    if (l->asked && l->connected && now_ms >= l->hello_ms + HELLO_AGAIN_MS)
        say_hello(l, now_ms);
    if (l->welcomed && l->connected) {
        outbox_again(&l->outbox, l->sock, now_ms, COMMIT_AGAIN_MS);
        if (now_ms >= l->next_beat_ms) {
            beat(l);
            l->next_beat_ms = now_ms + l->beat_ms;
        }
    }
    if (l->draining && ((!l->outbox.first && pipeline_held_count(l->p) == 0) || now_ms >= l->drain_end_ms)) {
        Ebb__Bye m = EBB__BYE__INIT;
        m.reason = (char *)(uintptr_t)(l->outbox.first ? "the grace is over" : "drained");
        log_info("leaving: %s", m.reason);
        send(l, EBB__ENVELOPE__BODY_BYE, &m);
        leave(l, 0);
    }
}

static void earlier(uint64_t *at, uint64_t other)
{
    if (other < *at)
        *at = other;
}

static long wait_ms(const struct link *l, uint64_t now_ms)
{
    uint64_t at = now_ms + 1000;
    if (l->welcomed && l->connected)
        earlier(&at, l->next_beat_ms);
    if (l->asked && l->connected)
        earlier(&at, l->hello_ms + HELLO_AGAIN_MS);
    if (l->draining)
        earlier(&at, l->drain_end_ms);
    return at > now_ms ? (long)(at - now_ms) : 0;
}

static void turn(struct link *l)
{
    zmq_pollitem_t items[] = {
        {.socket = sock_zmq(l->sock), .events = ZMQ_POLLIN},
        {.socket = l->monitor, .events = ZMQ_POLLIN},
        {.fd = l->o->wake_fd, .events = ZMQ_POLLIN},
        {.fd = l->o->signal_fd, .events = ZMQ_POLLIN},
    };
    zmq_poll(items, sizeof items / sizeof *items, wait_ms(l, clock_ms()));
    uint64_t now_ms = clock_ms();
    take_signals(l, now_ms);
    take_monitor(l, now_ms);
    for (int i = 0; i < MESSAGES_A_TURN && !l->leave; i++) {
        struct sock_peer ignored;
        Ebb__Envelope *m;
        struct err e;
        enum status st = sock_receive(l->sock, &ignored, &m, &e);
        if (st == ST_AGAIN)
            break;
        if (st == ST_NOMEM)
            outbox_no_memory();
        if (st != ST_OK) {
            log_warn("a message of the daemon's is ignored: %s", e.text);
            continue;
        }
        on_message(l, m, now_ms);
        wire_free(m);
    }
    take_reports(l, now_ms);
    if (!l->leave)
        look_at_clock(l, now_ms);
    service_turn(l->welcomed && l->connected, l->draining, pipeline_held_count(l->p), now_ms);
}

static enum status connect_link(struct link *l, struct err *e)
{
    uint8_t identity[8];
    for (int i = 0; i < 8; i++)
        identity[i] = (uint8_t)(l->o->number >> (56 - 8 * i));
    TRY(sock_dealer(l->o->context, l->o->endpoint, l->o->keys, identity, sizeof identity, &l->sock, e));
    if (zmq_socket_monitor(sock_zmq(l->sock), "inproc://monitor",
                           ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
                               ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL) ||
        !(l->monitor = zmq_socket(l->o->context, ZMQ_PAIR)) || zmq_connect(l->monitor, "inproc://monitor"))
        return err_set(e, ST_ENV, "cannot watch the connection: %s", zmq_strerror(errno));
    return ST_OK;
}

int link_run(const struct link_opts *o, struct pipeline *p)
{
    struct link l = {.o = o, .p = p, .parent = getppid(), .lost_ms = clock_ms(), .word_ms = clock_ms(), .turn_ms = clock_ms(), .beat_ms = 1000};
    struct err e;
    outbox_init(&l.outbox);
    if (o->host)
        snprintf(l.host, sizeof l.host, "%s", o->host);
    else if (gethostname(l.host, sizeof l.host - 1))
        snprintf(l.host, sizeof l.host, "unknown");
    if (connect_link(&l, &e) == ST_OK) {
        say_hello(&l, clock_ms());
        while (!l.leave)
            turn(&l);
    } else {
        log_error("%s", e.text);
        l.exit_code = 1;
    }
    outbox_release(&l.outbox);
    if (l.monitor) {
        int none = 0;
        zmq_setsockopt(l.monitor, ZMQ_LINGER, &none, sizeof none);
        zmq_close(l.monitor);
    }
    sock_close(l.sock);
    return l.exit_code;
}
