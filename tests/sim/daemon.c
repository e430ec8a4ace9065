/* The daemon around the core: steps, rows on their way to the disk, messages that leave when those are safe, crashes between any two of these; and
   its operators. */
#include "tests/sim/sim.h"

#include <inttypes.h>
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

/* The daemon --------------------------------------------------------------------------------------------------------------------*/

static void pending_free(struct pending *p)
{
    sched_update_release(&p->update);
    free(p->uncover);
    free(p);
}

void daemon_down(struct sim *m)
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
    gang_check_action(m, a);
    if (a->kind == SCHED_DO_SEND_DRAIN) {
        m->let_go += !m->operating;
        providers_check_drain(m, a->worker);
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
int daemon_step(struct sim *m, struct sched_event *ev)
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
    if (m->elastic && (ev->kind == SCHED_JOB_SUBMITTED || ev->kind == SCHED_JOB_CONTROL))
        providers_note(m);
    sched_check(m->sched);
    gang_check_time(m);
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

void daemon_up(struct sim *m)
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
    daemon_step(m, &ev);
    if (m->elastic) {
        providers_tell(m);
    } else { /* its workers come by themselves; what is wanted is looked at all the same */
        ev = (struct sched_event){.kind = SCHED_PROVIDER};
        ev.u.provider.id = PROVIDER_LOCAL;
        ev.u.provider.limit = (uint32_t)m->worker_count;
        daemon_step(m, &ev);
    }
    /* what was submitted but not synced is submitted again by its client */
    for (size_t k = 0; k < m->data_count; k++)
        if (m->data[k].submitted && !m->durable.jobs[k].exists)
            sim_at(m, m->now_ms + 500 + rnd(m, 2000), SUBMIT)->number = k;
}

void daemon_crash(struct sim *m)
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
    case SCHED_DO_SEND_PROFILE:
    case SCHED_DO_SEND_STAGE:
    case SCHED_DO_SEND_STAGE_GO:
        if ((w = sim_worker_by_id(m, a->worker)))
            sim_to_worker(m, w->index, a);
        break;
    case SCHED_DO_KILL_WORKER:
        if ((w = sim_worker_by_id(m, a->worker))) {
            it = sim_at(m, m->now_ms + 10 + rnd(m, 500), WORKER_HUNG_KILLED);
            it->worker = w->index;
            it->number = w->incarnation;
        }
        break;
    case SCHED_DO_WANT_WORKERS:
        m->wanted[a->u.want.provider] = a->u.want.workers;
        break;
    case SCHED_DO_PUBLISH:
        it = sim_at(m, m->now_ms + 10 + rnd(m, 1500), PUBLISHED);
        it->number = m->life;
        it->worker = a->job;
        break;
    case SCHED_DO_WAKE:
        it = sim_at(m, a->u.wake_ms > m->now_ms ? a->u.wake_ms : m->now_ms, TICK);
        it->number = m->life;
        it->worker = ++m->alarm;
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

void daemon_synced(struct sim *m)
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

void daemon_hears(struct sim *m, struct item *it)
{
    struct sim_worker *w = &m->workers[it->worker];
    struct parcel *p = it->parcel;
    if (!m->life)
        return;
    if (p->ev.kind == SCHED_WORKER_JOINED && p->incarnation == w->incarnation) {
        w->joined = 1;
        struct sched_action welcome = {.kind = SCHED_DO_WAKE}; /* the link answers; to the worker it is only a word */
        sim_to_worker(m, w->index, &welcome);
    } else if (p->ev.kind == SCHED_WORKER_JOINED) {
        return; /* of a process that is gone: its connection is, too */
    } else if (!w->joined || p->incarnation != w->incarnation) {
        if (p->incarnation == w->incarnation && w->exists && !sim_lost(m, w)) {
            struct item *r = sim_at(m, m->now_ms + sim_delay(m), REJOIN);
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
    daemon_step(m, &p->ev);
    if (m->faulty && chance(m, m->crash_at_step))
        daemon_crash(m);
}

/* Operators -------------------------------------------------------------------------------------------------------------------- */

void daemon_submit(struct sim *m, size_t k)
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
    daemon_step(m, &ev);
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
    int done = daemon_step(m, &ev);
    sim_trace(m, "operator: verb %d on job %" PRIu64 "%s", (int)verb, job, done ? "" : ", refused");
}

void daemon_operate(struct sim *m)
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
                    m->operating = 1;
                    if (w->exists)
                        daemon_step(m, &ev);
                    m->operating = 0;
                }
                break;
            default:
                control(m, job, VERB_RESUME);
            }
        }
    }
    sim_at(m, m->now_ms + 1000 + rnd(m, m->faulty ? 15000 : 4000), OPERATOR);
}
