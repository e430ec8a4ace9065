/* The world: its clock, network, daemon, operators. */
#include "tests/sim/sim.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

struct pending { /* what one step wants: rows first, then messages */
    struct sched_update update;
    struct span *uncover;
    uint64_t uncover_job;
    size_t uncover_count;
    int in_sync;
    struct pending *next;
};

void *xmalloc(size_t size)
{
    void *p = calloc(1, size ? size : 1);
    if (!p)
        abort();
    return p;
}

void *xgrow(void *p, size_t *cap, size_t count, size_t size)
{
    if (count < *cap)
        return p;
    *cap = *cap ? *cap * 2 : 8;
    p = realloc(p, *cap * size);
    if (!p)
        abort();
    return p;
}

void sim_fail(struct sim *m, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    snprintf(m->failure, sizeof m->failure, "at %" PRIu64 " ms, step %" PRIu64 ": %s", m->now_ms, m->steps, text);
    longjmp(m->failed, 1);
}

void sim_trace(struct sim *m, const char *fmt, ...)
{
    if (!m->trace)
        return;
    va_list ap;
    va_start(ap, fmt);
    printf("%9" PRIu64 "  ", m->now_ms);
    vprintf(fmt, ap);
    printf("\n");
    va_end(ap);
}

uint64_t rnd(struct sim *m, uint64_t n)
{
    uint64_t x = m->rng += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return n ? (x ^ x >> 31) % n : 0;
}

int chance(struct sim *m, double p)
{
    return (double)(rnd(m, UINT64_C(1) << 40)) < p * (double)(UINT64_C(1) << 40);
}

size_t dataset_at(const struct dataset *d, uint64_t pos)
{
    size_t low = 0, high = d->count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (d->records[mid].begin < pos)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* The queue -------------------------------------------------------------------------------------------------------------------- */

static int before(const struct item *a, const struct item *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void push(struct sim *m, struct item *it)
{
    m->queue = xgrow(m->queue, &m->queue_cap, m->queue_count, sizeof *m->queue);
    size_t i = m->queue_count++;
    while (i && before(it, m->queue[(i - 1) / 2])) {
        m->queue[i] = m->queue[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    m->queue[i] = it;
}

static struct item *pop(struct sim *m)
{
    struct item *top = m->queue[0], *last = m->queue[--m->queue_count];
    size_t i = 0;
    for (size_t c; (c = i * 2 + 1) < m->queue_count; i = c) {
        if (c + 1 < m->queue_count && before(m->queue[c + 1], m->queue[c]))
            c++;
        if (!before(m->queue[c], last))
            break;
        m->queue[i] = m->queue[c];
    }
    if (m->queue_count)
        m->queue[i] = last;
    return top;
}

struct item *sim_at(struct sim *m, uint64_t at_ms, enum happening what)
{
    struct item *it = xmalloc(sizeof *it);
    it->at = at_ms;
    it->order = m->order++;
    it->what = what;
    push(m, it);
    return it;
}

struct parcel *parcel_new(struct sim *m, enum sched_event_kind kind)
{
    (void)m;
    struct parcel *p = xmalloc(sizeof *p);
    p->ev.kind = kind;
    return p;
}

void parcel_free(struct parcel *p)
{
    if (!p)
        return;
    free(p->done);
    free(p->returned);
    free(p->progress);
    free(p->held);
    free(p->suspects);
    free(p);
}

static struct parcel *parcel_copy(struct sim *m, const struct parcel *from)
{
    struct parcel *p = parcel_new(m, from->ev.kind);
    p->ev = from->ev;
    p->incarnation = from->incarnation;
#define COPY(field, view, n)                                                                                                     \
    if (from->field) {                                                                                                           \
        p->field = xmalloc(((n) + 1) * sizeof *p->field);                                                                        \
        memcpy(p->field, from->field, (n) * sizeof *p->field);                                                                   \
        p->ev.u.view = p->field;                                                                                                 \
    }
    COPY(done, commit.done, from->ev.u.commit.done_count)
    COPY(returned, commit.returned, from->ev.u.commit.returned_count)
    COPY(progress, beat.leases, from->ev.u.beat.count)
    COPY(held, joined.held, from->ev.u.joined.held_count)
    COPY(suspects, ended.suspects, from->ev.u.ended.count)
#undef COPY
    return p;
}

static void item_free(struct item *it)
{
    parcel_free(it->parcel);
    free(it->action);
    free(it);
}

/* The network ------------------------------------------------------------------------------------------------------------------ */

static int lost(struct sim *m, const struct sim_worker *w)
{
    return w->cut_off_until > m->now_ms || (m->faulty && chance(m, m->loss));
}

static uint64_t delay(struct sim *m)
{
    uint64_t d = 1 + rnd(m, 20);
    if (m->faulty && chance(m, m->slow_net))
        d += rnd(m, 6000);
    return d;
}

void sim_to_daemon(struct sim *m, struct sim_worker *w, struct parcel *p)
{
    int copies = 1 + (m->faulty && chance(m, m->doubling));
    while (copies--) {
        if (lost(m, w))
            continue;
        struct item *it = sim_at(m, m->now_ms + delay(m), TO_DAEMON);
        it->worker = w->index;
        it->parcel = parcel_copy(m, p);
    }
    parcel_free(p);
}

void sim_notice(struct sim *m, struct sim_worker *w, struct parcel *p)
{
    /* a death outside of anybody's sight shows by silence only */
    if (m->faulty && p->ev.u.ended.how == WORKER_LOST && chance(m, 0.3)) {
        parcel_free(p);
        return;
    }
    struct item *it = sim_at(m, m->now_ms + 5 + rnd(m, 500), WORKER_NOTICED);
    it->worker = w->index;
    it->parcel = p;
}

static void to_worker(struct sim *m, size_t index, const struct sched_action *a)
{
    struct sim_worker *w = &m->workers[index];
    int copies = 1 + (m->faulty && chance(m, m->doubling));
    while (copies--) {
        if (lost(m, w))
            continue;
        struct item *it = sim_at(m, m->now_ms + delay(m), TO_WORKER);
        it->worker = index;
        it->number = w->id;
        it->action = xmalloc(sizeof *a);
        *it->action = *a;
    }
}

static struct sim_worker *worker_by_id(struct sim *m, uint64_t id)
{
    for (size_t i = 0; i < m->worker_count; i++)
        if (m->workers[i].id == id && m->workers[i].exists)
            return &m->workers[i];
    return NULL;
}

/* The daemon --------------------------------------------------------------------------------------------------------------------*/

static void pending_free(struct pending *p)
{
    sched_update_release(&p->update);
    free(p->uncover);
    free(p);
}

static void daemon_down(struct sim *m)
{
    sched_free(m->sched);
    m->sched = NULL;
    m->life = 0;
    m->syncing = 0;
    while (m->first) {
        struct pending *p = m->first;
        m->first = p->next;
        pending_free(p);
    }
    m->last = NULL;
    image_copy(&m->now, &m->durable);
    for (size_t i = 0; i < m->worker_count; i++)
        m->workers[i].joined = 0;
}

static void check_answers(struct sim *m, const struct sched_action *a)
{
    if (a->kind == SCHED_DO_ADD_EVENT && strstr(a->u.text, "does not fit"))
        sim_fail(m, "the core thinks that an honest worker broke the protocol: %s", a->u.text);
    if (a->kind == SCHED_DO_SEND_LEASE) {
        struct image_job *j = &m->now.jobs[a->job - 1];
        if (j->row.state != JOB_RUNNING)
            sim_fail(m, "job %" PRIu64 " does not run and gets a lease", a->job);
        m->probes += a->u.lease.probe & 1;
        for (size_t i = 0; i < m->epoch_count; i++)
            if (m->epochs[i] == a->epoch)
                sim_fail(m, "epoch %" PRIx64 " is given away twice", a->epoch);
        m->epochs = xgrow(m->epochs, &m->epoch_cap, m->epoch_count, sizeof *m->epochs);
        m->epochs[m->epoch_count++] = a->epoch;
    }
    if (a->kind == SCHED_DO_SEND_ACK) {
        size_t i = 0;
        while (i < m->accepted_count && (m->accepted[i].epoch != a->epoch || m->accepted[i].seq != a->u.ack.seq))
            i++;
        int known = i < m->accepted_count;
        if (a->u.ack.verdict == ACK_STALE && known && m->accepted[i].life == m->life)
            sim_fail(m, "commit %" PRIx64 "/%" PRIu64 " was accepted and is refused when it comes again", a->epoch, a->u.ack.seq);
        if (a->u.ack.verdict == ACK_DONE && !known) {
            m->accepted = xgrow(m->accepted, &m->accepted_cap, m->accepted_count, sizeof *m->accepted);
            m->accepted[m->accepted_count].epoch = a->epoch;
            m->accepted[m->accepted_count].seq = a->u.ack.seq;
            m->accepted[m->accepted_count++].life = m->life;
            m->commits++;
        }
        m->stale += a->u.ack.verdict == ACK_STALE;
    }
    m->cuts += a->kind == SCHED_DO_SEND_CUT;
    m->kills += a->kind == SCHED_DO_KILL_WORKER;
    if (a->kind == SCHED_DO_PUT_EXTENT && a->u.extent.epoch == 0) {
        const struct dataset *d = &m->data[a->job - 1];
        size_t i = dataset_at(d, a->u.extent.span.begin);
        if (i == d->count || d->records[i].begin != a->u.extent.span.begin || d->records[i].poison == HARMLESS ||
            d->records[i].poison == CRASHES_BESIDE_NEXT)
            sim_fail(m, "an innocent record is quarantined: job %" PRIu64 " at %" PRIu64, a->job, a->u.extent.span.begin);
        m->quarantines++;
    }
}

static void start_sync(struct sim *m)
{
    if (m->syncing || !m->first)
        return;
    m->syncing = 1;
    for (struct pending *p = m->first; p; p = p->next)
        p->in_sync = 1;
    sim_at(m, m->now_ms + 1 + rnd(m, m->faulty && chance(m, 0.02) ? 3000 : 8), SYNCED)->number = m->life;
}

/* One step of the core, all that must hold after it, and its update on the way to the disk. 0: it was refused. */
static int step(struct sim *m, struct sched_event *ev)
{
    struct err e;
    m->steps++;
    ev->now_ms = m->now_ms;
    enum status st = sched_step(m->sched, ev, &m->update, &e);
    if (st == ST_USER)
        return 0;
    if (st != ST_OK)
        sim_fail(m, "step: %s", e.text);
    if (ev->kind == SCHED_JOB_CONTROL && ev->u.control.verb == VERB_RETRY)
        image_uncover(m, &m->now, ev->job, ev->u.control.spans, ev->u.control.span_count);
    int messages = 0;
    for (size_t i = 0; i < m->update.count; i++) {
        const struct sched_action *a = &m->update.actions[i];
        if (a->kind > SCHED_DO_ADD_EVENT)
            messages = 1;
        else if (messages)
            sim_fail(m, "a row stands behind a message");
        image_apply(m, &m->now, a);
    }
    for (size_t i = 0; i < m->update.count; i++)
        check_answers(m, &m->update.actions[i]);
    sched_check(m->sched);
    image_compare(m, &m->now, m->sched);
    struct pending *p = xmalloc(sizeof *p);
    p->update.count = p->update.cap = m->update.count;
    p->update.actions = malloc((m->update.count + 1) * sizeof *p->update.actions);
    if (!p->update.actions)
        abort();
    if (m->update.count)
        memcpy(p->update.actions, m->update.actions, m->update.count * sizeof *p->update.actions);
    if (ev->kind == SCHED_JOB_CONTROL && ev->u.control.verb == VERB_RETRY) {
        p->uncover_job = ev->job;
        p->uncover_count = ev->u.control.span_count;
        p->uncover = xmalloc(p->uncover_count * sizeof *p->uncover);
        memcpy(p->uncover, ev->u.control.spans, p->uncover_count * sizeof *p->uncover);
    }
    if (m->last)
        m->last->next = p;
    else
        m->first = p;
    m->last = p;
    start_sync(m);
    return 1;
}

static void daemon_up(struct sim *m)
{
    struct err e;
    m->life = ++m->lives;
    m->generation++;
    sim_trace(m, "daemon starts, generation %u", m->generation);
    struct sched_config config = sched_config_default;
    config.worker_timeout_ms = 5000 + (uint32_t)(m->seed % 4) * 5000;
    if (sched_new(&config, &m->sched, &e) != ST_OK)
        sim_fail(m, "%s", e.text);
    struct sched_event ev = {.kind = SCHED_START, .now_ms = m->now_ms};
    ev.u.start.generation = m->generation;
    if (sched_step(m->sched, &ev, &m->update, &e) != ST_OK)
        sim_fail(m, "start: %s", e.text);
    for (size_t k = 0; k < MAX_JOBS; k++) {
        const struct image_job *j = &m->durable.jobs[k];
        if (!j->exists)
            continue;
        ev = (struct sched_event){.kind = SCHED_JOB_RESTORED, .now_ms = m->now_ms, .job = k + 1};
        ev.u.job.row = &j->row;
        ev.u.job.layout = &m->data[k].layout;
        if (sched_step(m->sched, &ev, &m->update, &e) != ST_OK)
            sim_fail(m, "restore: %s", e.text);
        for (size_t i = 0; i < j->span_count; i++) {
            ev = (struct sched_event){.kind = SCHED_SPAN_RESTORED, .now_ms = m->now_ms, .job = k + 1};
            ev.u.span = &j->spans[i];
            if (sched_step(m->sched, &ev, &m->update, &e) != ST_OK)
                sim_fail(m, "restore: %s", e.text);
        }
    }
    ev = (struct sched_event){.kind = SCHED_RECOVERED};
    step(m, &ev);
    /* what was submitted but not synced is submitted again by its client */
    for (size_t k = 0; k < m->data_count; k++)
        if (m->data[k].submitted && !m->durable.jobs[k].exists)
            sim_at(m, m->now_ms + 500 + rnd(m, 2000), SUBMIT)->number = k;
}

static void daemon_crash(struct sim *m)
{
    if (!m->life)
        return;
    sim_trace(m, "daemon dies");
    m->restarts++;
    daemon_down(m);
    sim_at(m, m->now_ms + 100 + rnd(m, chance(m, 0.2) ? 30000 : 2000), DAEMON_STARTS);
}

static void carry_out(struct sim *m, const struct sched_action *a)
{
    struct sim_worker *w;
    struct item *it;
    switch (a->kind) {
    case SCHED_DO_SEND_LEASE:
    case SCHED_DO_SEND_CUT:
    case SCHED_DO_SEND_REVOKE:
    case SCHED_DO_SEND_ACK:
    case SCHED_DO_SEND_DRAIN:
        if ((w = worker_by_id(m, a->worker)))
            to_worker(m, w->index, a);
        break;
    case SCHED_DO_KILL_WORKER:
        if ((w = worker_by_id(m, a->worker))) {
            it = sim_at(m, m->now_ms + 10 + rnd(m, 500), WORKER_HUNG_KILLED);
            it->worker = w->index;
            it->number = w->incarnation;
        }
        break;
    case SCHED_DO_WANT_WORKERS:
        m->wanted = a->u.workers;
        break;
    case SCHED_DO_PUBLISH:
        it = sim_at(m, m->now_ms + 10 + rnd(m, 1500), PUBLISHED);
        it->number = m->life;
        it->worker = a->job;
        break;
    case SCHED_DO_WAKE:
        it = sim_at(m, a->u.wake_ms > m->now_ms ? a->u.wake_ms : m->now_ms, TICK);
        it->number = m->life;
        break;
    default:
        break;
    }
}

static void check_sent(struct sim *m, const struct sched_action *a)
{
    if (a->kind != SCHED_DO_SEND_LEASE)
        return;
    const struct image_job *j = &m->durable.jobs[a->job - 1];
    for (size_t i = 0; i < j->span_count; i++)
        if (j->spans[i].epoch == a->epoch && j->spans[i].worker == a->worker && j->spans[i].state == SPAN_LEASED)
            return;
    sim_fail(m, "lease %" PRIx64 " is sent before it is a row", a->epoch);
}

static void synced(struct sim *m)
{
    m->syncing = 0;
    if (m->faulty && chance(m, m->write_fails)) {
        sim_trace(m, "a write fails: the core is dropped");
        m->restarts++;
        daemon_down(m);
        daemon_up(m);
        return;
    }
    struct pending *first = m->first;
    while (m->first && m->first->in_sync) {
        struct pending *p = m->first;
        if (p->uncover_count)
            image_uncover(m, &m->durable, p->uncover_job, p->uncover, p->uncover_count);
        for (size_t i = 0; i < p->update.count; i++)
            image_apply(m, &m->durable, &p->update.actions[i]);
        for (size_t i = 0; i < p->update.count; i++)
            check_sent(m, &p->update.actions[i]);
        m->first = p->next;
    }
    struct pending *rest = m->first;
    if (!rest)
        m->last = NULL;
    int crash = m->faulty && chance(m, m->crash_at_send);
    size_t sent = crash ? rnd(m, 4) : SIZE_MAX; /* it may die between any two messages */
    for (struct pending *p = first, *next; p && p != rest; p = next) {
        next = p->next;
        for (size_t i = 0; i < p->update.count && sent; i++)
            if (p->update.actions[i].kind > SCHED_DO_ADD_EVENT) {
                carry_out(m, &p->update.actions[i]);
                sent -= sent != SIZE_MAX;
            }
        pending_free(p);
    }
    if (crash)
        daemon_crash(m);
    else
        start_sync(m);
}

static void event_of_worker(struct sim *m, struct item *it)
{
    struct sim_worker *w = &m->workers[it->worker];
    struct parcel *p = it->parcel;
    if (!m->life)
        return;
    if (p->ev.kind == SCHED_WORKER_JOINED && p->incarnation == w->incarnation) {
        w->joined = 1;
        struct sched_action welcome = {.kind = SCHED_DO_WAKE}; /* the link answers; to the worker it is only a word */
        to_worker(m, w->index, &welcome);
    } else if (p->ev.kind == SCHED_WORKER_JOINED) {
        return; /* of a process that is gone: its connection is, too */
    } else if (!w->joined || p->incarnation != w->incarnation) {
        if (p->incarnation == w->incarnation && w->exists && !lost(m, w)) {
            struct item *r = sim_at(m, m->now_ms + delay(m), REJOIN);
            r->worker = w->index;
            r->number = w->incarnation;
        }
        if (p->ev.kind != SCHED_COMMIT || chance(m, 0.5))
            return; /* the link may let commits of strangers through: their epochs speak for them */
    }
    static const char *const word[] = {
#define X(name) [SCHED_##name] = #name,
        SCHED_EVENT_MAP(X)
#undef X
    };
    sim_trace(m, "%s worker %" PRIx64 " epoch %" PRIx64 " seq %" PRIu64 " at %" PRIu64, word[p->ev.kind], p->ev.worker, p->ev.epoch,
              p->ev.kind == SCHED_COMMIT ? p->ev.u.commit.seq : 0, p->ev.kind == SCHED_CUT_ANSWERED ? p->ev.u.cut.at : 0);
    for (size_t i = 0; p->ev.kind == SCHED_COMMIT && i < p->ev.u.commit.done_count; i++)
        sim_trace(m, "    done %" PRIu64 "-%" PRIu64, p->done[i].span.begin, p->done[i].span.end);
    for (size_t i = 0; p->ev.kind == SCHED_COMMIT && i < p->ev.u.commit.returned_count; i++)
        sim_trace(m, "    back %" PRIu64 "-%" PRIu64, p->returned[i].span.begin, p->returned[i].span.end);
    for (size_t k = 0; m->trace && k < m->data_count; k++)
        for (size_t i = 0; i < m->now.jobs[k].span_count; i++)
            if (m->now.jobs[k].spans[i].epoch && m->now.jobs[k].spans[i].epoch == p->ev.epoch)
                sim_trace(m, "    held %" PRIu64 "-%" PRIu64 " next %" PRIu64, m->now.jobs[k].spans[i].span.begin,
                          m->now.jobs[k].spans[i].span.end, m->now.jobs[k].spans[i].next_seq);
    if (p->ev.kind == SCHED_COMMIT && m->faulty && chance(m, 0.01))
        p->ev.u.commit.part_fault = "no such file";
    step(m, &p->ev);
    if (m->faulty && chance(m, m->crash_at_step))
        daemon_crash(m);
}

/* Operators -------------------------------------------------------------------------------------------------------------------- */

static void submit(struct sim *m, size_t k)
{
    struct dataset *d = &m->data[k];
    d->submitted = 1;
    if (!m->life) {
        sim_at(m, m->now_ms + 1000, SUBMIT)->number = k;
        return;
    }
    if (m->now.jobs[k].exists)
        return;
    struct job_row row = {.id = k + 1, .params = d->params, .state = m->faulty && chance(m, 0.1) ? JOB_PAUSED : JOB_RUNNING};
    struct sched_event ev = {.kind = SCHED_JOB_SUBMITTED, .job = k + 1};
    ev.u.job.row = &row;
    ev.u.job.layout = &d->layout;
    sim_trace(m, "job %zu is submitted", k + 1);
    step(m, &ev);
}

static void control(struct sim *m, uint64_t job, enum job_verb verb)
{
    struct sched_event ev = {.kind = SCHED_JOB_CONTROL, .job = job};
    ev.u.control.verb = verb;
    ev.u.control.text = verb == VERB_HOLD ? "a source changed" : NULL;
    ev.u.control.max_errors = UINT64_MAX;
    ev.u.control.max_errors_ppm = UINT32_MAX;
    struct span spans[64];
    if (verb == VERB_RETRY) {
        const struct image_job *j = &m->now.jobs[job - 1];
        size_t n = 0;
        for (int quarantined = 1; quarantined >= 0; quarantined--) {
            for (size_t i = 0; i < j->bad_count && n < 64; i++)
                if (j->bad[i].quarantined == quarantined)
                    spans[n++] = j->bad[i].span;
            if (quarantined)
                ev.u.control.quarantined_count = n;
        }
        ev.u.control.spans = spans;
        ev.u.control.span_count = n;
    }
    int done = step(m, &ev);
    sim_trace(m, "operator: verb %d on job %" PRIu64 "%s", (int)verb, job, done ? "" : ", refused");
}

static void operate(struct sim *m)
{
    if (m->life && m->data_count) {
        uint64_t job = 1 + rnd(m, m->data_count);
        const struct image_job *j = &m->now.jobs[job - 1];
        if (!m->faulty) {
            for (size_t k = 0; k < m->data_count; k++)
                if (m->now.jobs[k].exists && (m->now.jobs[k].row.state == JOB_HELD || m->now.jobs[k].row.state == JOB_PAUSED))
                    control(m, k + 1, VERB_RESUME);
        } else if (j->exists && j->row.state == JOB_DONE) {
            if (j->bad_count && j->row.attempt < 2)
                control(m, job, VERB_RETRY);
        } else if (j->exists) {
            switch (rnd(m, 12)) {
            case 0:
            case 1:
                control(m, job, VERB_PAUSE);
                break;
            case 2:
                control(m, job, VERB_HOLD);
                break;
            case 3:
                if (chance(m, 0.1))
                    control(m, job, VERB_CANCEL);
                break;
            case 4:
                if (m->worker_count) {
                    struct sim_worker *w = &m->workers[rnd(m, m->worker_count)];
                    struct sched_event ev = {.kind = SCHED_WORKER_DRAIN, .worker = w->id};
                    if (w->exists)
                        step(m, &ev);
                }
                break;
            default:
                control(m, job, VERB_RESUME);
            }
        }
    }
    sim_at(m, m->now_ms + 1000 + rnd(m, m->faulty ? 15000 : 4000), OPERATOR);
}

/* A run ------------------------------------------------------------------------------------------------------------------------ */

static void happen(struct sim *m, struct item *it)
{
    struct sim_worker *w = &m->workers[it->worker < MAX_WORKERS ? it->worker : 0];
    int for_daemon = it->what == TO_DAEMON || it->what == WORKER_NOTICED || it->what == TICK || it->what == PUBLISHED ||
                     it->what == SUBMIT || it->what == OPERATOR;
    int for_worker = it->what == TO_WORKER || it->what == WORKER_TURN || it->what == REJOIN;
    uint64_t later = for_daemon && m->life && m->stalled_until > m->now_ms ? m->stalled_until
                     : for_worker && w->exists && w->frozen_until > m->now_ms ? w->frozen_until
                                                                             : 0;
    if (later) { /* the daemon stands still, or the worker does */
        struct item *again = sim_at(m, later, it->what);
        again->worker = it->worker;
        again->number = it->number;
        again->parcel = it->parcel;
        again->action = it->action;
        it->parcel = NULL;
        it->action = NULL;
        return;
    }
    struct sched_event ev = {0};
    switch (it->what) {
    case TO_DAEMON:
        event_of_worker(m, it);
        break;
    case TO_WORKER:
        if (w->exists && w->id == it->number)
            worker_receive(m, w, it->action);
        break;
    case REJOIN:
        if (w->exists && w->incarnation == it->number)
            worker_rejoin(m, w);
        break;
    case SYNCED:
        if (it->number == m->life)
            synced(m);
        break;
    case TICK:
        if (it->number == m->life) {
            ev.kind = SCHED_TICK;
            step(m, &ev);
        }
        break;
    case DAEMON_STARTS:
        if (!m->life)
            daemon_up(m);
        break;
    case DAEMON_CRASHES:
        if (m->faulty)
            daemon_crash(m);
        break;
    case DAEMON_STALLS:
        if (m->faulty) {
            m->stalled_until = m->now_ms + 1000 + rnd(m, 25000);
            sim_at(m, m->now_ms + 30000 + rnd(m, 120000), DAEMON_STALLS);
        }
        break;
    case PUBLISHED:
        if (it->number == m->life) {
            ev.kind = SCHED_JOB_PUBLISHED;
            ev.job = it->worker;
            ev.u.published.failure = m->faulty && chance(m, m->publish_fails) ? "the disk is full" : NULL;
            step(m, &ev);
        }
        break;
    case WORKER_TURN:
        if (w->exists && w->incarnation == it->number)
            worker_turn(m, w);
        break;
    case WORKER_SPAWNS:
        if (!w->exists)
            worker_spawn(m, w, it->number ? it->number : ++m->next_worker_id);
        break;
    case WORKER_KILLED:
        if (m->faulty) {
            if (w->exists)
                worker_dies(m, w, chance(m, 0.3) ? WORKER_PREEMPTED : WORKER_LOST);
            sim_at(m, m->now_ms + 10000 + rnd(m, 100000), WORKER_KILLED)->worker = rnd(m, m->worker_count);
        }
        break;
    case WORKER_FREEZES:
        if (m->faulty) {
            w->frozen_until = m->now_ms + rnd(m, 40000);
            sim_at(m, m->now_ms + 10000 + rnd(m, 100000), WORKER_FREEZES)->worker = rnd(m, m->worker_count);
        }
        break;
    case PARTITION:
        if (m->faulty) {
            w->cut_off_until = m->now_ms + rnd(m, 40000);
            sim_at(m, m->now_ms + 10000 + rnd(m, 100000), PARTITION)->worker = rnd(m, m->worker_count);
        }
        break;
    case WORKER_NOTICED:
        /* the provider knows which process it speaks of */
        if (m->life && (it->parcel->incarnation == w->incarnation || !w->joined || w->id != it->parcel->ev.worker)) {
            sim_trace(m, "worker %" PRIx64 " ended", it->parcel->ev.worker);
            step(m, &it->parcel->ev);
            if (m->faulty && chance(m, m->crash_at_step))
                daemon_crash(m);
        }
        break;
    case WORKER_HUNG_KILLED:
        if (w->exists && w->incarnation == it->number)
            worker_dies(m, w, WORKER_HUNG);
        break;
    case PROBE_KILLED:
        if (w->exists && w->incarnation == it->number)
            worker_dies(m, w, WORKER_LOST);
        break;
    case OPERATOR:
        operate(m);
        break;
    case SUBMIT:
        submit(m, (size_t)it->number);
        break;
    }
}

static void make_dataset(struct sim *m, size_t k)
{
    struct dataset *d = &m->data[k];
    size_t sources = 1 + rnd(m, chance(m, 0.3) ? 60 : 4);
    uint64_t *sizes = xmalloc(sources * sizeof *sizes);
    uint8_t *kinds = xmalloc(sources);
    int streams = chance(m, 0.3);
    uint64_t mean = 200 + rnd(m, 8000);
    size_t most = 50 + rnd(m, 1500);
    for (size_t i = 0; i < sources; i++) {
        sizes[i] = chance(m, 0.1) ? 0 : 1 + rnd(m, 2 * mean * most / sources);
        kinds[i] = streams ? (uint8_t)rnd(m, 3) : 0;
        if (kinds[i] == 2)
            sizes[i] = sizes[i] / 5 + 1;
    }
    if (layout_init(&d->layout, sources, sizes, kinds))
        abort();
    size_t cap = 0;
    for (size_t i = 0; i < sources; i++) {
        uint64_t pos = d->layout.base[i], end = d->layout.base[i + 1];
        if (kinds[i] == 2 && end > pos)
            end = pos + sizes[i] * 5; /* what it unpacks to; behind that there is nothing */
        while (pos < end) {
            uint64_t size = 1 + rnd(m, 2 * mean);
            if (size > end - pos)
                size = end - pos;
            d->records = xgrow(d->records, &cap, d->count, sizeof *d->records);
            d->records[d->count++] = (struct record){.begin = pos, .end = pos + size};
            pos += size;
        }
    }
    double flaky = chance(m, 0.3) ? 0.01 : 0, late = chance(m, 0.3) ? 0.05 : 0;
    for (size_t i = 0; i < d->count; i++) {
        d->records[i].fails = !chance(m, flaky) ? 0 : chance(m, 0.2) ? FAILS_ALWAYS : (uint8_t)(1 + rnd(m, 6));
        d->records[i].late = (uint8_t)chance(m, late);
    }
    size_t poisons = d->count > 40 ? rnd(m, 4) : 0;
    for (size_t i = 0; i < poisons; i++) {
        struct record *r = &d->records[rnd(m, d->count)];
        r->poison = (uint8_t)(1 + rnd(m, 4));
        r->fails = 0;
    }
    d->job = k + 1;
    d->params = (struct job_params){.weight = 100 + (uint32_t)rnd(m, 3) * 100,
                                    .priority = (int32_t)rnd(m, 2),
                                    .model_key = rnd(m, 3),
                                    .lease_target_ms = 1000 + (uint32_t)rnd(m, 10000),
                                    .stall_timeout_ms = 60000,
                                    .max_workers = chance(m, 0.2) ? 1 + (uint32_t)rnd(m, 4) : 0,
                                    .max_errors = chance(m, 0.1) ? rnd(m, 5) : UINT64_MAX,
                                    .max_errors_ppm = chance(m, 0.1) ? 5000 : UINT32_MAX,
                                    .max_attempts = 3};
    free(sizes);
    free(kinds);
}

static int all_over(const struct sim *m)
{
    if (!m->life)
        return 0;
    for (size_t k = 0; k < m->data_count; k++) {
        enum job_state s = m->durable.jobs[k].row.state;
        if (!m->durable.jobs[k].exists || (s != JOB_DONE && s != JOB_CANCELED))
            return 0;
    }
    return 1;
}

static void check_end(struct sim *m)
{
    for (size_t k = 0; k < m->data_count; k++) {
        const struct image_job *j = &m->durable.jobs[k];
        const struct dataset *d = &m->data[k];
        if (j->row.state == JOB_CANCELED)
            continue;
        uint64_t end = layout_end(&d->layout);
        if (end && (j->cover_count != 1 || j->cover[0].begin != 0 || j->cover[0].end != end))
            sim_fail(m, "job %zu is done and lacks positions", k + 1);
        if (j->row.counts.records != d->count)
            sim_fail(m, "job %zu is done with %" PRIu64 " of %zu records", k + 1, j->row.counts.records, d->count);
        uint64_t quarantined = 0;
        for (size_t i = 0; i < d->count; i++) {
            int found = 0, lethal = d->records[i].poison != HARMLESS && d->records[i].poison != CRASHES_BESIDE_NEXT;
            for (size_t b = 0; b < j->bad_count && lethal; b++)
                found |= j->bad[b].quarantined && j->bad[b].span.begin == d->records[i].begin;
            if (lethal && !found)
                sim_fail(m, "job %zu: the record at %" PRIu64 " kills and is not quarantined", k + 1, d->records[i].begin);
            quarantined += (uint64_t)lethal;
        }
        if (j->row.counts.quarantined != quarantined || j->row.counts.errors != j->errors)
            sim_fail(m, "job %zu: %" PRIu64 " quarantined, the counter says %" PRIu64, k + 1, quarantined, j->row.counts.quarantined);
    }
    if (m->wanted)
        sim_fail(m, "nothing is left to do and %u workers are wanted", m->wanted);
}

void sim_release(struct sim *m)
{
    if (m->sched)
        daemon_down(m);
    sched_update_release(&m->update);
    image_release(&m->now);
    image_release(&m->durable);
    for (size_t k = 0; k < m->data_count; k++) {
        layout_release(&m->data[k].layout);
        free(m->data[k].records);
    }
    for (size_t i = 0; i < m->worker_count; i++)
        worker_clear(&m->workers[i]);
    while (m->queue_count)
        item_free(pop(m));
    free(m->queue);
    free(m->accepted);
    free(m->epochs);
}

int sim_run(struct sim *m, uint64_t seed, int trace)
{
    *m = (struct sim){.seed = seed, .rng = seed * UINT64_C(0x2545f4914f6cdd1d) + 1, .trace = trace, .faulty = 1};
    struct item *volatile it = NULL;
    if (setjmp(m->failed)) {
        if (it)
            item_free(it);
        return -1;
    }
    m->now_ms = 1000000;
    int calm = chance(m, 0.15);
    if (!calm) {
        m->loss = chance(m, 0.5) ? 0.1 * (double)rnd(m, 3) / 2 : 0;
        m->doubling = chance(m, 0.5) ? 0.05 : 0;
        m->slow_net = chance(m, 0.4) ? 0.05 : 0;
        m->crash_at_step = chance(m, 0.5) ? 0.004 : 0;
        m->crash_at_send = chance(m, 0.5) ? 0.004 : 0;
        m->write_fails = chance(m, 0.3) ? 0.002 : 0;
        m->probes_killed = chance(m, 0.3) ? 0.4 : 0;
        m->publish_fails = chance(m, 0.3) ? 0.3 : 0;
    }
    m->faults_end_ms = m->now_ms + 20000 + rnd(m, 180000);
    m->data_count = 1 + rnd(m, chance(m, 0.3) ? MAX_JOBS : 2);
    for (size_t k = 0; k < m->data_count; k++) {
        make_dataset(m, k);
        sim_at(m, m->now_ms + rnd(m, k ? 60000 : 2000), SUBMIT)->number = k;
    }
    m->worker_count = 1 + rnd(m, chance(m, 0.1) ? 40 : 10);
    for (size_t i = 0; i < m->worker_count; i++) {
        m->workers[i].index = i;
        sim_at(m, m->now_ms + rnd(m, 20000), WORKER_SPAWNS)->worker = i;
    }
    if (!calm) {
        for (int i = 0; i < 3; i++) {
            if (chance(m, 0.5))
                sim_at(m, m->now_ms + rnd(m, 60000), WORKER_KILLED)->worker = rnd(m, m->worker_count);
            if (chance(m, 0.4))
                sim_at(m, m->now_ms + rnd(m, 60000), WORKER_FREEZES)->worker = rnd(m, m->worker_count);
            if (chance(m, 0.4))
                sim_at(m, m->now_ms + rnd(m, 60000), PARTITION)->worker = rnd(m, m->worker_count);
            if (chance(m, 0.3))
                sim_at(m, m->now_ms + rnd(m, 100000), DAEMON_CRASHES);
        }
        if (chance(m, 0.3))
            sim_at(m, m->now_ms + rnd(m, 60000), DAEMON_STALLS);
    }
    sim_at(m, m->now_ms + 5000, OPERATOR);
    daemon_up(m);
    uint64_t limit = m->faults_end_ms + 4 * UINT64_C(3600000);
    for (size_t k = 0; k < m->data_count; k++) /* the slowest worker (half a byte/ms) may be the only one that a job allows, or that is left */
        for (size_t i = 0; i < m->data[k].count; i++)
            limit += 3 * (m->data[k].records[i].end - m->data[k].records[i].begin);
    uint64_t over_since = 0;
    while (m->queue_count) {
        it = pop(m);
        m->now_ms = it->at;
        if (m->faulty && m->now_ms >= m->faults_end_ms)
            m->faulty = 0;
        if (m->now_ms > limit)
            for (size_t k = 0; m->sched && k < m->data_count; k++) {
                struct sched_job_view v;
                if (sched_job_view(m->sched, k + 1, &v))
                    sim_trace(m, "job %zu: state %d, %" PRIu64 " spans ready, %" PRIu64 " leased, %u workers, waits for '%s'", k + 1,
                              (int)v.row->state, v.spans_ready, v.spans_leased, v.workers, v.waits_for);
            }
        if (m->now_ms > limit)
            sim_fail(m, "no faults any more, and still not done");
        happen(m, it);
        item_free(it);
        it = NULL;
        if (m->faulty || !all_over(m)) {
            over_since = 0;
        } else if (!over_since) {
            over_since = m->now_ms; /* a while longer: late messages must not do harm */
        } else if (m->now_ms - over_since > 12000) {
            check_end(m);
            return 0;
        }
    }
    sim_fail(m, "nothing happens any more");
}
