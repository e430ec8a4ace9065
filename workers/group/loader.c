/* One thread for what takes long: it opens the part of a model that a new cut gives to this member, and measures what segments cost. The link's beats go on meanwhile. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "workers/group/cost.h"
#include "workers/group/inside.h"

static struct model_opts machine(const struct pipeline *p)
{
    return (struct model_opts){.isa = p->o.isa, .pack_dir = p->o.pack_dir, .pack_bytes = p->o.pack_bytes, .lanes = p->o.lanes};
}

/* Two parts side by side, for as long as it takes to open the new one; not where memory is short. */
static int has_room(const struct group *g, uint32_t first, uint32_t end)
{
    const struct part *spare = g->spare;
    if (!g->o.memory_bytes)
        return 1;
    double each = (double)spare->loaded->info->weight_bytes / (spare->end - spare->first);
    return each * (spare->end - spare->first + end - first) < 0.5 * (double)g->o.memory_bytes;
}

static enum status open_part(struct pipeline *p, struct job *j, uint32_t first, uint32_t end, struct part **out, struct err *e)
{
    struct part *x = mem_zalloc(sizeof *x);
    if (!x)
        return err_nomem(e, "a stage");
    uint64_t begun = clock_ms();
    struct model_opts o = machine(p);
    enum status st = loaded_open_part(j, &o, p->o.remote, first, end, &x->loaded, e);
    if (st != ST_OK) {
        mem_free(x);
        return st;
    }
    const struct model_info *info = x->loaded->info;
    x->refs = 1;
    x->job = job_ref(j);
    x->first = first;
    x->end = end;
    x->load_ms = clock_ms() - begun;
    x->bounds = (struct message_bounds){
        .items = j->micro_batch,
        .tokens = j->micro_batch_tokens > info->max_tokens ? j->micro_batch_tokens : info->max_tokens,
        .longest = info->max_tokens,
        .vocab = info->vocab,
        .types = info->token_types > 1 ? info->token_types : 1,
    };
    *out = x;
    return ST_OK;
}

/* With the lock held, which it gives up meanwhile. */
static void load(struct group *g)
{
    struct pipeline *p = g->p;
    uint64_t gang = g->gang;
    uint32_t cut = g->cut, first = g->members[g->self].first, end = g->members[g->self].end;
    struct job *j = job_ref(g->job);
    struct part *x = NULL, *old = NULL;
    struct err e;
    if (g->spare && !has_room(g, first, end)) {
        old = g->spare;
        g->spare = NULL;
    }
    pthread_mutex_unlock(&p->lock);
    part_unref(old);
    enum status st = open_part(p, j, first, end, &x, &e);
    pthread_mutex_lock(&p->lock);
    if (st == ST_NOMEM && g->spare) {
        old = g->spare;
        g->spare = NULL;
        pthread_mutex_unlock(&p->lock);
        part_unref(old);
        st = open_part(p, j, first, end, &x, &e);
        pthread_mutex_lock(&p->lock);
    }
    old = NULL;
    if (g->gang != gang || g->cut != cut) { /* a newer cut may want the very same */
        if (x && g->gang && !g->part && !g->failed && x->first == g->members[g->self].first && x->end == g->members[g->self].end && x->job->id == g->job->id)
            g->part = x;
        else
            old = x;
    } else if (st == ST_OK) {
        old = g->spare;
        g->spare = NULL;
        g->part = x;
    } else {
        g->failed = 1;
        group_fault(g, 0, e.text);
    }
    if (g->part && g->part == x) {
        g->since_ms = clock_ms();
        runner_part(&g->runner, x);
        group_ready(g);
    }
    pthread_mutex_unlock(&p->lock);
    part_unref(old);
    job_unref(j);
    pthread_mutex_lock(&p->lock);
}

static enum status measure(struct pipeline *p, struct job *j, struct report *r, struct err *e)
{
    struct model_opts o = machine(p);
    struct loaded *shell;
    TRY(loaded_open_part(j, &o, p->o.remote, 0, 0, &shell, e));
    o.precision = j->spec.precision;
    o.task = j->spec.task;
    o.top_k = (uint32_t)j->spec.top_k;
    enum status st = (r->profile = mem_zalloc(sizeof *r->profile)) ? ST_OK : err_nomem(e, "a measurement");
    if (st == ST_OK)
        st = cost_of(shell->path, &o, shell->info, r->profile, e);
    if (st == ST_OK) {
        memcpy(r->digest, shell->info->digest.bytes, sizeof r->digest);
        snprintf(r->numerics, sizeof r->numerics, "%s", shell->info->numerics);
        r->dims = shell->info->dims;
    } else {
        mem_free(r->profile);
        r->profile = NULL;
    }
    loaded_unref(shell);
    return st;
}

static int goes_on(void *group)
{
    struct group *g = group;
    pthread_mutex_lock(&g->p->lock);
    int on = !g->stopping;
    pthread_mutex_unlock(&g->p->lock);
    return on;
}

/* Likewise. */
static void profile(struct group *g)
{
    struct pipeline *p = g->p;
    struct wish *w = g->profiles;
    struct job *j = p->jobs;
    struct err e;
    g->profiles = w->next;
    while (j && j->id != w->job)
        j = j->next;
    struct report r = {.kind = REPORT_PROFILED, .job = w->job};
    struct way_peer *peers = w->peers;
    size_t n = w->peer_count;
    mem_free(w);
    if (!j) {
        mem_free(peers);
        return; /* it is over */
    }
    job_ref(j);
    r.model_key = j->model_key;
    double drag = drag_factor(&g->drag);
    pthread_mutex_unlock(&p->lock);
    uint64_t begun = clock_ms();
    enum status st = measure(p, j, &r, &e);
    uint64_t took = clock_ms() - begun;
    if (st == ST_OK && n) {
        if (!(r.ways = mem_array(n, sizeof *r.ways)))
            pipeline_out_of_memory(p, "a measurement");
        r.way_count = ways_measure(g->carrier, peers, n, goes_on, g, r.ways);
    }
    mem_free(peers);
    pthread_mutex_lock(&p->lock);
    if (st == ST_OK) {
        double all = 0;
        for (uint32_t i = 0; i < r.profile->count; i++)
            all += r.profile->list[i].time_ms *= drag;
        log_info("job %" PRIu64 ": a micro-batch of %u tokens takes %.1f ms here, in %u segments (known in %" PRIu64 " ms)", j->id,
                 r.profile->texts * r.profile->tokens, all, r.profile->count, took);
    } else {
        r.kind = REPORT_MODEL_FAILED;
        r.machine = st == ST_ENV;
        snprintf(r.text, sizeof r.text, "%s", e.text);
        log_error("job %" PRIu64 ": %s", j->id, e.text);
    }
    pipeline_add_report(p, &r);
    pthread_mutex_unlock(&p->lock);
    job_unref(j);
    pthread_mutex_lock(&p->lock);
}

void *loader_run(void *arg)
{
    struct pipeline *p = ((struct stage *)arg)->pipeline;
    struct group *g = NULL;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        g = p->group;
        if (g && g->stopping)
            break;
        g->loading = 1;
        if (g->gang && !g->part && !g->failed) {
            load(g);
        } else if (g->profiles) {
            profile(g);
        } else {
            g->loading = 0;
            pthread_cond_wait(&g->to_load, &p->lock);
        }
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}
