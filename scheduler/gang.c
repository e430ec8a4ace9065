/* An ordinary gang: gang_form.c finds workers and a division, each is told its part (SEND_STAGE), each says that it is loaded, and the head is told
   to go; from then on it is given leases. A member that leaves breaks the gang: it is cut anew among those that are left, and free ones.

   What can fail: a message is lost (asked again), a member does not load its part in time (killed), does not answer another one (cut anew; three times in a
   row without a commit: given up for a while), the head goes (its leases go back as any worker's do; the others are free for the next gang). */
#include "scheduler/gang.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "scheduler/share.h"
#include "scheduler/worker.h"

#define PROFILES_KEPT 4         /* of a worker */
#define SEGMENTS_MOST 4096
#define LINKS_MOST 64           /* of a profile */

static const char *const state_word[] = {
#define X(name, word) [GANG_##name] = word,
    GANG_STATE_MAP(X)
#undef X
};

/* from -> to: the only moves that a gang makes */
#define TO(state) (1u << GANG_##state)
static const unsigned state_moves[] = {
    [GANG_LOADING] = TO(RUNNING) | TO(BROKEN) | TO(OVER),
    [GANG_RUNNING] = TO(LOADING) | TO(BROKEN) | TO(OVER),
    [GANG_BROKEN] = TO(LOADING) | TO(OVER),
    [GANG_OVER] = 0,
};

void gang_set_state(struct sched *s, struct gang *g, enum gang_state to)
{
    BUG_IF(!(state_moves[g->state] >> to & 1), "gang %" PRIx64 ": from %s to %s", g->id, state_word[g->state], state_word[to]);
    g->state = to;
    s->gang_dirty = 1;
    if (g->head)
        worker_refresh(s, g->head);
}

/* What is it good for ------------------------------------------------------------------------------------------------------------ */

int gang_needs(const struct worker *w, const struct job *j)
{
    const struct job_params *p = &j->row.params;
    if (!p->model_key)
        return 0;
    if (p->stages)
        return p->stages > 1;
    return p->model_bytes && w->memory_bytes && p->model_bytes > w->memory_bytes;
}

int gang_can_hold(const struct worker *w, const struct job *j)
{
    if (w->gang)
        return w->gang->job == j && (w->gang->head == w || MUTANT(35)) && (w->gang->state == GANG_RUNNING || MUTANT(28));
    if (!gang_needs(w, j) || w->solo_model == j->row.params.model_key)
        return 1;
    /* one that could be of use to a pipeline is measured first */
    return !j->row.params.stages && j->by_window && (!w->reach || !j->gang_gather_ms || gang_profile(w, j->row.params.model_key));
}

int gang_can_keep(const struct worker *w, const struct job *j)
{
    return !gang_needs(w, j) || w->solo_model == j->row.params.model_key || (!j->row.params.stages && j->by_window);
}

int gang_waits(const struct worker *w)
{
    return w->gang ? w->gang->state != GANG_RUNNING : w->stranded_ms != 0;
}

int gang_may_join(const struct sched *s, const struct worker *w, const struct job *j)
{
    return gang_needs(w, j) && worker_usable(w) && w->reach && (!w->gang || MUTANT(34)) && !w->mute && w->solo_model != j->row.params.model_key &&
           s->now_ms - w->beat_ms <= 5 * s->config.beat_ms && share_fits(s, w, j);
}

int gang_gathers(const struct sched *s, const struct worker *w, const struct job *j)
{
    return j->gang_gather_ms && gang_may_join(s, w, j);
}

uint32_t gang_silent_members(const struct job *j)
{
    uint32_t n = j->gang_workers;
    for (const struct gang *g = j->gangs; g; g = g->job_next)
        n -= g->head && g->head->lease_count;
    return n;
}

uint32_t gang_size(const struct job *j)
{
    uint32_t stages = j->row.params.stages;
    if (!j->row.params.model_key || stages == 1)
        return 1;
    if (stages > 1)
        return stages < GANG_MOST ? stages : GANG_MOST;
    return j->gangs ? j->gangs->count : j->gang_least && !j->by_window && j->workers == 0 ? j->gang_least : 1;
}

uint32_t gang_count_of(const struct worker *w)
{
    return w->gang && w->gang->head == w ? w->gang->count : 1;
}

void gang_progress(struct worker *w)
{
    if (!w->gang)
        return;
    w->gang->faults = 0;
    w->gang->job->gang_breaks = 0;
}

/* Coming and going --------------------------------------------------------------------------------------------------------------- */

static void forget_member(struct sched *s, struct gang *g, struct worker *w, uint32_t cut)
{
    w->gang = NULL;
    w->stage = 0;
    g->job->gang_workers--;
    w->left_gang = g->id;
    w->left_cut = cut;
    s->leavers = 1;
    s->work_dirty = 1;
}

void gang_leave(struct sched *s, struct worker *w)
{
    struct gang *g = w->gang;
    if (!g)
        return;
    g->members[w->stage].worker = NULL;
    g->members[w->stage].ready = 0;
    if (g->head == w)
        g->head = NULL;
    forget_member(s, g, w, g->cut);
    worker_refresh(s, w);
    if (MUTANT(29) && g->head)
        return;
    if (g->state != GANG_BROKEN)
        gang_set_state(s, g, GANG_BROKEN);
}

void gang_again(struct sched *s, struct worker *w)
{
    if (w->gang && w->gang->state != GANG_BROKEN)
        gang_set_state(s, w->gang, GANG_BROKEN);
}

void gang_end(struct sched *s, struct gang *g)
{
    struct job *j = g->job;
    struct worker *head = g->head;
    gang_set_state(s, g, GANG_OVER);
    for (uint32_t i = 0; i < g->count; i++)
        if (g->members[i].worker) {
            struct worker *w = g->members[i].worker;
            forget_member(s, g, w, g->cut);
            worker_refresh(s, w);
        }
    if (head && head->leases && worker_usable(head))
        head->stranded_ms = s->now_ms;
    if (g->job_prev)
        g->job_prev->job_next = g->job_next;
    else
        j->gangs = g->job_next;
    if (g->job_next)
        g->job_next->job_prev = g->job_prev;
    j->gang_count--;
    size_t at = 0;
    while (s->gangs[at] != g)
        at++;
    memmove(s->gangs + at, s->gangs + at + 1, (--s->gang_count - at) * sizeof(struct gang *));
    mem_free(g);
}

void gang_forget(struct worker *w)
{
    for (struct profile *p = w->profiles, *next; p; p = next) {
        next = p->next;
        mem_free(p);
    }
    w->profiles = NULL;
}

int gang_too_soon(struct sched *s, const struct worker *w)
{
    for (const struct lease *l = w ? w->leases : NULL; l; l = l->worker_next)
        if (l->step == s->step) {
            s->gang_dirty = 1;
            s->retry_ms = s->now_ms;
            return 1;
        }
    return 0;
}

/* What its members say ------------------------------------------------------------------------------------------------------------ */

void gang_profiling(struct sched *s, struct worker *w, uint64_t model_key)
{
    s->profiling += (size_t)(model_key != 0) - (size_t)(w->profiling != 0);
    w->profiling = model_key;
    w->profile_ms = w->profile_sent_ms = s->now_ms;
    worker_refresh(s, w);
}

/* Checked already. A worker that tells its costs anew measures no links: what it knew of them stays. */
static struct profile *profile_new(const struct worker *w, const struct sched_event *ev)
{
    const struct sched_link *links = ev->u.profiled.links;
    size_t count = ev->u.profiled.count, n = ev->u.profiled.link_count;
    const struct profile *old = gang_profile(w, ev->u.profiled.model_key);
    if (!n && old) {
        links = old->links;
        n = old->link_count;
    }
    struct profile *p = mem_alloc(sizeof *p + count * sizeof *p->segments + n * sizeof *links);
    if (!p)
        return NULL;
    *p = (struct profile){.model_key = ev->u.profiled.model_key, .fixed_bytes = ev->u.profiled.fixed_bytes, .count = count, .link_count = n};
    memcpy(p->segments, ev->u.profiled.segments, count * sizeof *p->segments);
    if (n) {
        struct sched_link *to = (struct sched_link *)(void *)(p->segments + count); /* as strictly aligned as a segment */
        memcpy(to, links, n * sizeof *to);
        p->links = to;
    }
    for (size_t i = 0; i < count; i++) {
        p->time_ms += p->segments[i].time_ms;
        p->weight_bytes += p->segments[i].weight_bytes;
    }
    return p;
}

enum status gang_profiled(struct sched *s, const struct sched_event *ev, struct err *e)
{
    struct worker *w = map_get(&s->workers, ev->worker);
    const struct sched_segment *in = ev->u.profiled.segments;
    size_t count = ev->u.profiled.count;
    uint64_t key = ev->u.profiled.model_key;
    if (!w || !w->joined)
        return ST_OK;
    if (!key || !count || count > SEGMENTS_MOST)
        return err_set(e, ST_USER, "worker %" PRIx64 ": a profile of %zu segments", w->id, count);
    for (size_t i = 0; i < count; i++)
        if (!(in[i].time_ms >= 0) || !isfinite(in[i].time_ms) || !(in[i].out_bytes >= 0) || !isfinite(in[i].out_bytes))
            return err_set(e, ST_USER, "worker %" PRIx64 ": segment %zu has a cost that is none", w->id, i);
    if (ev->u.profiled.link_count > LINKS_MOST)
        return err_set(e, ST_USER, "worker %" PRIx64 ": a profile of %zu links, at most %d are taken", w->id, ev->u.profiled.link_count, LINKS_MOST);
    for (size_t i = 0; i < ev->u.profiled.link_count; i++) {
        const struct sched_link *l = &ev->u.profiled.links[i];
        if (!(l->bits_per_s > 0) || !isfinite(l->bits_per_s) || !(l->latency_ms >= 0) || !isfinite(l->latency_ms))
            return err_set(e, ST_USER, "worker %" PRIx64 ": its link to %" PRIx64 " has a speed or a latency that is none", w->id, l->worker);
    }
    struct profile *p = profile_new(w, ev);
    if (!p)
        return err_nomem(e, "a profile");
    p->version = ++s->profile_versions;
    worker_heard(s, w);
    size_t kept = 0;
    for (struct profile **at = &w->profiles; *at;) {
        struct profile *old = *at;
        if (old->model_key == key || ++kept >= PROFILES_KEPT) {
            *at = old->next;
            mem_free(old);
        } else {
            at = &old->next;
        }
    }
    p->next = w->profiles;
    w->profiles = p;
    if (w->profiling == key)
        gang_profiling(s, w, 0);
    s->work_dirty = s->gang_dirty = 1;
    return ST_OK;
}

void gang_send(struct sched *s, enum sched_action_kind kind, const struct gang *g, const struct worker *w)
{
    struct sched_action *a = core_message(s, kind, g->job->row.id, w->id, 0);
    a->u.stage.gang = g->id;
    a->u.stage.cut = g->cut;
    a->u.stage.head = g->head->id;
    a->u.stage.count = g->count;
    for (uint32_t i = 0; i < g->count; i++)
        a->u.stage.members[i] = (struct sched_member){g->members[i].worker->id, g->members[i].first, g->members[i].end};
}

/* The gang that w speaks of, in the cut that is; NULL: it is told to leave, or speaks of the past. Room: 1 message */
static struct gang *spoken_of(struct sched *s, struct worker *w, const struct sched_event *ev)
{
    struct gang *g = w->gang;
    if (g && g->id == ev->u.stage.gang)
        return g->cut == ev->u.stage.cut || MUTANT(31) ? g : NULL;
    struct sched_action *a = core_message(s, SCHED_DO_SEND_STAGE, ev->job, w->id, 0);
    a->u.stage.gang = ev->u.stage.gang;
    a->u.stage.cut = ev->u.stage.cut;
    return NULL;
}

enum status gang_stage_ready(struct sched *s, const struct sched_event *ev, struct err *e)
{
    struct worker *w = map_get(&s->workers, ev->worker);
    if (!w || !w->joined)
        return ST_OK;
    if (core_room(s, 2, 2, 0, 0))
        return err_nomem(e, "a stage");
    worker_heard(s, w);
    struct gang *g = spoken_of(s, w, ev);
    if (!g || g->state != GANG_LOADING)
        return ST_OK;
    struct job *j = g->job;
    g->members[w->stage].ready = 1;
    if (ev->u.stage.load_ms)
        j->load_ms = j->load_ms ? (j->load_ms * 3 + ev->u.stage.load_ms) / 4 : ev->u.stage.load_ms;
    for (uint32_t i = 0; i < g->count; i++)
        if (!g->members[i].ready && !(MUTANT(30) && i))
            return ST_OK;
    gang_set_state(s, g, GANG_RUNNING);
    gang_send(s, SCHED_DO_SEND_STAGE_GO, g, g->head);
    g->sent_ms = s->now_ms;
    if (!g->ran_ms)
        g->ran_ms = s->now_ms;
    g->head->loading = 0;
    g->head->progress_ms = g->head->rate_ms = s->now_ms;
    g->head->acc_bytes = g->head->acc_records = 0;
    core_history(s, j, "its pipeline of %u workers runs, cut %u", g->count, g->cut);
    worker_timer(s, g->head);
    s->work_dirty = 1;
    return ST_OK;
}

enum status gang_stage_fault(struct sched *s, const struct sched_event *ev, struct err *e)
{
    struct worker *w = map_get(&s->workers, ev->worker);
    if (!w || !w->joined)
        return ST_OK;
    if (core_room(s, 6, 2, 0, 0))
        return err_nomem(e, "a stage");
    worker_heard(s, w);
    struct gang *g = spoken_of(s, w, ev);
    if (!g || (g->state != GANG_LOADING && g->state != GANG_RUNNING))
        return ST_OK;
    struct job *j = g->job;
    const char *text = ev->u.stage.text && ev->u.stage.text[0] ? ev->u.stage.text : "no reason was given";
    struct worker *peer = ev->u.stage.peer ? map_get(&s->workers, ev->u.stage.peer) : NULL;
    if (!ev->u.stage.peer) {
        core_history(s, j, "worker %" PRIx64 " cannot hold its part of the model: %.150s", w->id, text);
        gang_leave(s, w);
        worker_no_model(s, w, j, text, 0);
    } else if (peer && peer->gang == g && peer != w && s->now_ms - peer->beat_ms > s->config.beat_ms * 5 / 2) {
        core_history(s, j, "worker %" PRIx64 " does not answer %" PRIx64 " and is silent: it leaves the pipeline", peer->id, w->id);
        peer->mute = 1; /* until it is heard */
        gang_leave(s, peer);
    } else {
        g->faults++;
        j->gang_apart[0] = w->id;
        j->gang_apart[1] = ev->u.stage.peer;
        core_history(s, j, "worker %" PRIx64 " gets no answer from %" PRIx64 ": the pipeline is cut anew", w->id, ev->u.stage.peer);
        gang_set_state(s, g, GANG_BROKEN);
    }
    s->work_dirty = 1;
    return ST_OK;
}

