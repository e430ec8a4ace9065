/* Looking after gangs, at the end of each step: broken ones are cut anew or dissolved, members that do not get ready are killed, those who go first are
   given workers, and whoever left is told so. What memory does not allow waits for a tick. */
#include "scheduler/gang.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "scheduler/blame.h"
#include "scheduler/lease.h"
#include "scheduler/scale.h"
#include "scheduler/share.h"
#include "scheduler/worker.h"

#define AGAIN_MS 10000          /* nothing was heard: the message may be lost */
#define PROFILE_AGAIN_MS 30000
#define PROFILE_MOST_MS 600000  /* workers of one host measure one after the other */
#define LOADING_STALLS 4        /* loading a part may take so many stall timeouts */
#define FAULTS_MOST 3           /* in a row, without a commit between */
#define BREAK_MS 5000           /* a pipeline that was given up is not set up again for so long, doubled each time up to 64 times that */
#define APART_MS 120000         /* two that did not reach each other are kept apart, where others are there */
#define IDLE_MS 10000           /* nothing to do: it is dissolved */
#define STRANDED_MS 30000       /* leases wait so long for a pipeline: after a restart, others have come back by then */
#define HOLD_MS 60000           /* at least so long before a job of the same priority is given its workers */
#define HIGHER_MS 2000          /* a job of higher priority waits so long for workers */
#define EQUAL_MS 30000          /* one of the same */
#define CLAIM_MS 60000          /* workers that were taken from one gang wait so long for those of the next */

/* Its head gives up what it holds. 0, or -1: memory is out, nothing has changed. */
static int dissolve(struct sched *s, struct gang *g, const char *why)
{
    size_t pieces = 0, leases = 0;
    struct worker *head = g->head;
    if (gang_too_soon(s, head))
        return 0;
    for (const struct lease *l = head ? head->leases : NULL; l; l = l->worker_next, leases++)
        pieces += l->pieces;
    if (core_room(s, 3, leases + 1, pieces * 3, 0))
        return -1;
    core_history(s, g->job, "its pipeline of %u workers is dissolved: %s", g->count, why);
    while (head && head->leases) {
        core_message(s, SCHED_DO_SEND_REVOKE, head->leases->job->row.id, head->id, head->leases->epoch);
        lease_release(s, head->leases);
    }
    gang_end(s, g);
    return 0;
}

/* A pipeline that broke again and again: not at once, and others first. */
static int give_up(struct sched *s, struct gang *g)
{
    struct job *j = g->job;
    char why[100];
    snprintf(why, sizeof why, "%u times in a row one worker did not answer another", g->faults);
    if (gang_too_soon(s, g->head))
        return 0;
    if (dissolve(s, g, why))
        return -1;
    uint64_t wait = (uint64_t)BREAK_MS << (j->gang_breaks < 6 ? j->gang_breaks : 6);
    j->gang_breaks++;
    j->gang_after_ms = s->now_ms + wait;
    j->gang_apart_ms = s->now_ms + wait + APART_MS;
    return 0;
}

/* Looking after them -------------------------------------------------------------------------------------------------------------- */

static void at(struct sched *s, uint64_t ms)
{
    if (!s->gang_ms || ms < s->gang_ms)
        s->gang_ms = ms;
}

/* As it is. 0: a member is gone. */
static int same_division(const struct gang *g, struct gang_division *out)
{
    *out = (struct gang_division){.count = g->count, .segments = g->segments, .bottleneck_ms = g->bottleneck_ms, .gap = g->gap};
    memcpy(out->members, g->members, sizeof out->members);
    for (uint32_t i = 0; i < g->count; i++)
        if (!g->members[i].worker)
            return 0;
    return 1;
}

/* Among those that are left, and free ones; when all are there, nothing moves. -1: memory is out. */
static int mend(struct sched *s, struct gang *g)
{
    struct gang_division d;
    struct err e;
    const struct worker *killed = g->head ? map_get(&s->workers, g->killed) : NULL;
    if (killed && killed->killed)
        return 0; /* until its end is told, or its time is up */
    g->killed = 0;
    if (!g->head) { /* the others are the next one */
        struct job *j = g->job;
        uint32_t left = 0;
        for (uint32_t i = 0; i < g->count; i++)
            left += g->members[i].worker != NULL;
        if (dissolve(s, g, "its head is gone"))
            return -1;
        if (left > 1 && (!j->gang_fewer || left < j->gang_fewer))
            j->gang_fewer = left;
        return 0;
    }
    if (g->job->row.state != JOB_RUNNING)
        return dissolve(s, g, "its job does not run");
    if (g->faults >= FAULTS_MOST)
        return give_up(s, g);
    if (!same_division(g, &d) && gang_redivide(s, g, &d, &e) != ST_OK)
        return -1;
    if (d.count < 2)
        return dissolve(s, g, "those that are left cannot hold the model");
    int has_head = 0;
    for (uint32_t i = 0; i < d.count; i++)
        has_head |= d.members[i].worker == g->head;
    if (!has_head)
        return dissolve(s, g, "its head is of no use to it any more");
    if (gang_cut_room(s))
        return -1;
    gang_cut(s, g, &d);
    return 0;
}

/* Workers whose parts are not loaded. -1: memory is out. */
static int tend_loading(struct sched *s, struct gang *g)
{
    uint32_t stall = g->job->row.params.stall_timeout_ms;
    for (uint32_t i = 0; i < g->count; i++) {
        struct gang_member *m = &g->members[i];
        /* one that held its part before only had to come out of its last micro-batch */
        uint64_t limit = (uint64_t)stall * (m->moved ? LOADING_STALLS : 1);
        if (m->ready || !stall || s->now_ms < g->cut_ms + limit || s->now_ms < s->no_hang_before_ms || m->worker->beat_ms < g->cut_ms + limit)
            continue;
        struct worker *w = m->worker;
        if (core_room(s, 2, 1, 0, 0))
            return -1;
        struct sched_action *a = core_message(s, SCHED_DO_KILL_WORKER, g->job->row.id, w->id, 0);
        snprintf(a->u.text, sizeof a->u.text, "its part of a pipeline was not ready after %" PRIu64 " s", (s->now_ms - g->cut_ms) / 1000);
        w->killed = 1;
        w->killed_ms = s->now_ms;
        g->killed = w->id;
        worker_refresh(s, w); /* it leaves */
        worker_timer(s, w);
        return mend(s, g);
    }
    if (s->now_ms - g->sent_ms < AGAIN_MS)
        return 0;
    if (core_room(s, 0, g->count, 0, 0))
        return -1;
    g->sent_ms = s->now_ms;
    for (uint32_t i = 0; i < g->count; i++)
        if (!g->members[i].ready)
            gang_send(s, SCHED_DO_SEND_STAGE, g, g->members[i].worker);
    return 0;
}

/* Could any of its members do something for a job that has work? */
static int others_want(const struct sched *s, const struct gang *g)
{
    for (const struct job *j = s->running; j; j = j->next_running)
        for (uint32_t i = 0; i < g->count && j != g->job && (j->avail[0] || j->avail[1] || j->avail[2]); i++)
            if (g->members[i].worker && share_fits(s, g->members[i].worker, j))
                return 1;
    return 0;
}

static int tend(struct sched *s, struct gang *g)
{
    struct job *j = g->job;
    for (uint32_t i = 0; i < g->count && g->state != GANG_BROKEN; i++)
        if (g->members[i].worker && !share_fits(s, g->members[i].worker, j))
            gang_leave(s, g->members[i].worker);
    if (g->head && g->head->lease_count)
        g->idle_ms = 0;
    else if (!g->idle_ms)
        g->idle_ms = s->now_ms;
    int work = j->row.state == JOB_RUNNING && (j->avail[0] || j->avail[1] || j->avail[2]);
    if (g->idle_ms && j->row.state != JOB_RUNNING)
        return dissolve(s, g, "its job does not run");
    if (g->idle_ms && !work && s->now_ms - g->idle_ms >= (others_want(s, g) ? HIGHER_MS : IDLE_MS))
        return dissolve(s, g, "nothing is left for it to do");
    if (g->state == GANG_BROKEN)
        return mend(s, g);
    if (g->state == GANG_LOADING)
        return tend_loading(s, g);
    if (g->head->leases && s->now_ms - g->head->progress_ms >= AGAIN_MS && s->now_ms - g->sent_ms >= AGAIN_MS) {
        if (core_room(s, 0, g->count + 1, 0, 0))
            return -1;
        g->sent_ms = s->now_ms;
        for (uint32_t i = 0; i < g->count; i++) /* nothing to those that know it */
            gang_send(s, SCHED_DO_SEND_STAGE, g, g->members[i].worker);
        gang_send(s, SCHED_DO_SEND_STAGE_GO, g, g->head);
    }
    return 0;
}

/* Those that measure a model: asked again, or given up. */
static int tend_profiles(struct sched *s)
{
    for (size_t i = 0; i < s->joined_count && s->profiling; i++) {
        struct worker *w = s->joined[i];
        if (!w->profiling)
            continue;
        const struct job *j = s->running;
        while (j && j->row.params.model_key != w->profiling)
            j = j->next_running;
        if (!j) {
            gang_profiling(s, w, 0);
        } else if (s->now_ms - w->profile_ms >= PROFILE_MOST_MS && s->now_ms >= s->no_hang_before_ms) { /* it beats, and does not get to it */
            if (core_room(s, 0, 1, 0, 0))
                return -1;
            struct sched_action *a = core_message(s, SCHED_DO_KILL_WORKER, j->row.id, w->id, 0);
            snprintf(a->u.text, sizeof a->u.text, "it has not measured the model for %" PRIu64 " s", (s->now_ms - w->profile_ms) / 1000);
            w->killed = 1;
            w->killed_ms = s->now_ms;
            worker_refresh(s, w); /* it measures no more */
            worker_timer(s, w);
        } else if (s->now_ms - w->profile_sent_ms >= PROFILE_AGAIN_MS) {
            if (core_room(s, 0, 1, 0, 0))
                return -1;
            w->profile_sent_ms = s->now_ms;
            core_message(s, SCHED_DO_SEND_PROFILE, j->row.id, w->id, 0);
        }
        s->work_dirty |= !w->profiling;
    }
    return 0;
}

/* Leases that only a pipeline can run, of workers that are in none: after a restart they wait a while for one. -1: memory is out. */
static int tend_stranded(struct sched *s, struct job *j)
{
    for (struct lease *l = j->leases, *next; l; l = next) {
        struct worker *w = l->worker;
        next = l->job_next;
        if (!l->claimed || !worker_usable(w) || w->gang || gang_can_keep(w, j)) {
            if (w->joined && !w->gang)
                w->stranded_ms = 0;
            continue;
        }
        if (!w->stranded_ms)
            w->stranded_ms = s->now_ms;
        if (s->now_ms - w->stranded_ms < STRANDED_MS)
            continue;
        if (core_room(s, 1, 1, l->pieces * 3, 0))
            return -1;
        core_message(s, SCHED_DO_SEND_REVOKE, j->row.id, w->id, l->epoch);
        lease_release(s, l);
        if (!w->leases)
            w->stranded_ms = 0;
        return tend_stranded(s, j); /* the list has changed */
    }
    return 0;
}

/* May j have the workers of this gang? Those of a lower priority; of the same one, when the gang has worked for a while and j had less than its share. */
static int goes_before(const struct sched *s, const struct job *j, const struct gang *g)
{
    if (j == g->job || j->row.params.priority < g->job->row.params.priority)
        return 0;
    if (j->row.params.priority == g->job->row.params.priority) {
        uint64_t hold = 10 * g->job->load_ms > HOLD_MS ? 10 * g->job->load_ms : HOLD_MS;
        if (g->state != GANG_RUNNING || j->vtime > g->job->vtime || s->now_ms - g->ran_ms < hold)
            return 0;
    }
    return 1;
}

/* Is w of use to j now? As a member of a gang, or by itself. */
static int of_use(const struct sched *s, const struct worker *w, const struct job *j)
{
    if (!w || !worker_usable(w) || !share_fits(s, w, j))
        return 0;
    return gang_can_keep(w, j) ? j->avail[0] || blame_probe_for(s, j, w) != NULL : w->reach != 0;
}

/* The gang that is to give its workers to j: of the lowest priority, the youngest of these. NULL: none is, or it would not help. */
static struct gang *victim_for(const struct sched *s, const struct job *j)
{
    struct gang *victim = NULL;
    uint32_t has = j->workers + gang_silent_members(j), most = j->row.params.max_workers, useful = scale_useful(s, j), in_gangs = 0, unoccupied = 0;
    int alone = 0;
    if (!(j->avail[0] || j->avail[1] || j->avail[2]) || (most && has >= most) || has >= useful)
        return NULL;
    for (size_t i = 0; i < s->gang_count; i++) {
        struct gang *g = s->gangs[i];
        uint32_t n = 0;
        if (!goes_before(s, j, g) || (has && j->row.params.priority == g->job->row.params.priority))
            continue;
        for (uint32_t k = 0; k < g->count; k++)
            if (of_use(s, g->members[k].worker, j)) {
                n++;
                alone |= gang_can_keep(g->members[k].worker, j);
            }
        in_gangs += n;
        if (n && (!victim || g->job->row.params.priority <= victim->job->row.params.priority))
            victim = g;
    }
    for (const struct worker *w = victim ? s->idle_first : NULL; w; w = w->next_idle)
        if (of_use(s, w, j) && share_pick(s, w) == j) {
            unoccupied++;
            if (gang_can_keep(w, j))
                return NULL; /* it is about to be served */
        } else if (gang_may_join(s, w, j)) {
            in_gangs++;
        }
    if (!victim || alone)
        return victim;
    uint32_t least = gang_least(j) > 1 ? gang_least(j) : 2;
    return gang_wanted(s, j) && unoccupied < least && unoccupied + in_gangs >= least ? victim : NULL;
}

/* Priority, and a fair share, for those who wait while gangs hold the workers: one gang at a time. -1: memory is out. */
static int yield(struct sched *s)
{
    for (struct job *j = s->running; j; j = j->next_running) {
        struct gang *victim = victim_for(s, j);
        if (!victim) {
            j->gang_want_ms = 0;
            continue;
        }
        if (!j->gang_want_ms)
            j->gang_want_ms = s->now_ms;
        uint64_t wait = j->row.params.priority > victim->job->row.params.priority ? HIGHER_MS : EQUAL_MS;
        if ((s->now_ms - j->gang_want_ms < wait && s->now_ms >= j->gang_claim_ms) || MUTANT(32))
            continue;
        j->gang_want_ms = s->now_ms;
        if (gang_too_soon(s, victim->head))
            continue;
        if (dissolve(s, victim, "another job goes first"))
            return -1;
        if (gang_least(j) > 1)
            j->gang_claim_ms = s->now_ms + CLAIM_MS;
        s->work_dirty = 1;
    }
    return 0;
}

/* Those that left are told so, unless they are in a gang again: they would let go of what they may still need. */
static int tell_leavers(struct sched *s)
{
    for (size_t i = 0; i < s->joined_count; i++) {
        struct worker *w = s->joined[i];
        if (!w->left_gang || w->lost)
            continue;
        if (!w->gang) {
            if (core_room(s, 0, 1, 0, 0))
                return -1;
            struct sched_action *a = core_message(s, SCHED_DO_SEND_STAGE, 0, w->id, 0);
            a->u.stage.gang = w->left_gang;
            a->u.stage.cut = w->left_cut;
        }
        w->left_gang = 0;
    }
    s->leavers = 0;
    return 0;
}

void gang_update(struct sched *s)
{
    int due = s->gang_dirty || (s->gang_ms && s->now_ms >= s->gang_ms);
    if (!due && !s->work_dirty && !s->leavers)
        return;
    int wrong = 0;
    if (due) {
        s->gang_dirty = 0;
        s->gang_ms = 0;
        for (size_t i = s->gang_count; i-- > 0 && !wrong;)
            wrong = tend(s, s->gangs[i]);
        wrong = wrong || tend_profiles(s);
        for (struct job *j = s->running; j && !wrong; j = j->next_running)
            if (j->row.params.model_key && j->row.params.stages != 1 && j->leases)
                wrong = tend_stranded(s, j);
    }
    int more = wrong ? wrong : gang_gather(s);
    wrong = wrong || more < 0;
    if (due && s->gang_count && !wrong)
        wrong = yield(s);
    if (s->leavers && !wrong)
        wrong = tell_leavers(s);
    if (wrong) {
        s->gang_dirty = 1;
        core_later(s);
    } else if (more > 0) {
        s->gang_dirty = 1;
        s->retry_ms = s->now_ms; /* the rest in the next step */
    }
    if (s->gang_count || s->profiling || s->gang_jobs)
        at(s, s->now_ms + s->config.beat_ms);
}
