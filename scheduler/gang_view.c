/* What people see of gangs, and the core's examination of them. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "scheduler/gang.h"
#include "scheduler/job.h"
#include "scheduler/share.h"
#include "scheduler/worker.h"

size_t sched_gang_count(const struct sched *s)
{
    return s->gang_count;
}

void sched_gang_view(const struct sched *s, size_t i, struct sched_gang_view *out)
{
    const struct gang *g = s->gangs[i];
    *out = (struct sched_gang_view){.gang = g->id,
                                    .job = g->job->row.id,
                                    .head = g->head ? g->head->id : 0,
                                    .cut = g->cut,
                                    .segments = g->segments,
                                    .running = g->state == GANG_RUNNING,
                                    .since_ms = g->cut_ms,
                                    .count = g->count,
                                    .bottleneck_ms = g->bottleneck_ms,
                                    .gap = g->gap,
                                    .records_per_s = g->head && g->head->leases ? g->head->records_per_s : 0};
    for (uint32_t k = 0; k < g->count; k++) {
        const struct gang_member *m = &g->members[k];
        out->members[k] = (struct sched_member){m->worker ? m->worker->id : 0, m->first, m->end};
        out->load_ms[k] = m->load_ms;
        out->ready[k] = m->ready;
    }
}

#define SAY(...) snprintf(out, size, __VA_ARGS__)

/* Workers that could be members were it not for their reach; the most memory of one. 0: some fit alone, or none is there. */
static int too_small(const struct sched *s, const struct job *j, size_t *reach, uint64_t *memory)
{
    size_t fit = 0;
    *reach = *memory = 0;
    for (size_t i = 0; i < s->joined_count; i++) {
        const struct worker *w = s->joined[i];
        if (!worker_usable(w) || !share_fits(s, w, j))
            continue;
        if (!gang_needs(w, j) || w->solo_model == j->row.params.model_key)
            return 0;
        fit++;
        *reach += w->reach != 0;
        *memory = w->memory_bytes > *memory ? w->memory_bytes : *memory;
    }
    return fit != 0;
}

/* Of those that could be members: how many are free, or measure its model. */
static void count_free(const struct sched *s, const struct job *j, size_t *unoccupied, size_t *measuring)
{
    *unoccupied = *measuring = 0;
    for (size_t i = 0; i < s->joined_count; i++) {
        const struct worker *w = s->joined[i];
        if (!gang_may_join(s, w, j))
            continue;
        *unoccupied += worker_unoccupied(w) != 0;
        *measuring += w->profiling == j->row.params.model_key;
    }
}

int gang_why(const struct sched *s, const struct job *j, char *out, size_t size)
{
    const struct job_params *p = &j->row.params;
    if (!p->model_key || p->stages == 1)
        return 0;
    for (const struct gang *g = j->gangs; g; g = g->job_next) {
        uint32_t ready = 0;
        for (uint32_t i = 0; i < g->count; i++)
            ready += g->members[i].ready != 0;
        if (g->state == GANG_RUNNING)
            continue;
        SAY("its pipeline is being set up: %u of %u stages %s loaded", ready, g->count, ready == 1 ? "is" : "are");
        return 1;
    }
    if (j->gangs || !s->alive)
        return 0;
    uint32_t least = p->stages > 1 ? gang_size(j) : j->gang_least;
    size_t reach;
    uint64_t memory;
    if (j->by_window || !too_small(s, j, &reach, &memory))
        return 0;
    if (s->now_ms < j->gang_after_ms) {
        SAY("its pipeline broke: worker %" PRIx64 " got no answer from %" PRIx64 "; it is set up again in %" PRIu64 " s", j->gang_apart[0], j->gang_apart[1],
            (j->gang_after_ms - s->now_ms) / 1000 + 1);
        return 1;
    }
    if (!p->stages && (!least || j->gang_supply < 2)) {
        SAY("its model needs %.1f GiB, the largest worker has %.1f GiB: if no others come in a few seconds it is held by parts, in turn",
            (double)p->model_bytes / (1 << 30), (double)memory / (1 << 30));
        return 1;
    }
    if (p->max_workers && p->max_workers < least) {
        SAY("its model needs %u workers that reach each other, and it may have at most %u", least, p->max_workers);
        return 1;
    }
    size_t unoccupied, measuring;
    count_free(s, j, &unoccupied, &measuring);
    if (measuring) {
        SAY("its model is being measured on %zu worker%s", measuring, measuring == 1 ? "" : "s");
        return 1;
    }
    if (!reach) {
        SAY("its model needs %u workers that reach each other, and none of those that are there can be a stage of a pipeline", least);
        return 1;
    }
    if (j->gang_supply < least) {
        if (!j->gang_supply)
            return 0;
        SAY("its model needs %u workers that reach each other, %u %s there", least, j->gang_supply, j->gang_supply == 1 ? "is" : "are");
        return 1;
    }
    if (unoccupied < least) {
        SAY("its model needs %u workers at once, %zu %s free, the others serve other jobs", least, unoccupied, unoccupied == 1 ? "is" : "are");
        return 1;
    }
    if (!j->gang_tried)
        return 0;
    SAY("the %u workers that reach each other have too little memory for its model together", j->gang_supply);
    return 1;
}

/* Examination -------------------------------------------------------------------------------------------------------------------- */

void gang_check(const struct sched *s)
{
    size_t profiling = 0;
    for (size_t i = 0; i < s->gang_count; i++) {
        const struct gang *g = s->gangs[i];
        uint32_t at = 0, ready = 0;
        BUG_IF(i && s->gangs[i - 1]->id >= g->id, "gangs are out of order");
        BUG_IF(core_job(s, g->job->row.id) != g->job, "gang %" PRIx64 " is of no job", g->id);
        BUG_IF(g->count < 2 || g->count > GANG_MOST || !g->cut || g->state == GANG_OVER, "gang %" PRIx64 ": %u members, state %d", g->id, g->count, (int)g->state);
        for (uint32_t k = 0; k < g->count; k++) {
            const struct gang_member *m = &g->members[k];
            BUG_IF(m->first != at || m->end <= m->first, "gang %" PRIx64 ": member %u holds segments %u-%u", g->id, k, m->first, m->end);
            at = m->end;
            ready += m->ready != 0;
            BUG_IF(!m->worker && g->state != GANG_BROKEN, "gang %" PRIx64 ": member %u is gone and it is not broken", g->id, k);
            if (!m->worker)
                continue;
            BUG_IF(m->worker->gang != g || m->worker->stage != k || !worker_usable(m->worker), "gang %" PRIx64 ": member %u is not its own", g->id, k);
            BUG_IF(m->worker != g->head && m->worker->leases, "gang %" PRIx64 ": member %u holds leases and is not the head", g->id, k);
            for (const struct lease *l = m->worker->leases; l; l = l->worker_next)
                BUG_IF(l->job != g->job, "gang %" PRIx64 ": its head serves another job", g->id);
        }
        BUG_IF(at != g->segments, "gang %" PRIx64 ": its members hold %u of %u segments", g->id, at, g->segments);
        BUG_IF(g->state == GANG_RUNNING && ready != g->count, "gang %" PRIx64 " runs and %u of %u are ready", g->id, ready, g->count);
        BUG_IF(g->state != GANG_BROKEN && (!g->head || g->head->gang != g), "gang %" PRIx64 " has no head", g->id);
    }
    for (size_t i = 0; i < s->joined_count; i++) {
        const struct worker *w = s->joined[i];
        profiling += w->profiling != 0;
        BUG_IF(w->gang && w->gang->members[w->stage].worker != w, "worker %" PRIx64 ": gang", w->id);
    }
    BUG_IF(profiling != s->profiling, "workers that measure a model");
    for (size_t k = 0; k < s->job_count; k++) {
        const struct job *j = s->jobs[k];
        uint32_t gangs = 0, workers = 0;
        const struct gang *before = NULL;
        for (const struct gang *g = j->gangs; g; before = g, g = g->job_next) {
            BUG_IF(g->job != j || g->job_prev != before, "job %" PRIu64 ": gangs", j->row.id);
            gangs++;
            for (uint32_t i = 0; i < g->count; i++)
                workers += g->members[i].worker != NULL;
        }
        BUG_IF(gangs != j->gang_count || workers != j->gang_workers, "job %" PRIu64 ": %u gangs of %u workers", j->row.id, gangs, workers);
    }
}
