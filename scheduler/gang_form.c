/* Which workers become a gang, and when. Planning takes milliseconds, so it is done when the workers that could take part have changed, once a step, and
   not again among workers with whom it failed.

   A job of pipelines is a job like others to a free worker (share_pick): when it is that job's turn, the worker waits for others of its kind instead of
   being given a lease. It is asked once what the segments of the model cost on it. As soon as enough of those that wait can hold the model, the fastest of them
   become a gang. */
#include "scheduler/gang.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "scheduler/lease.h"
#include "scheduler/scale.h"
#include "scheduler/share.h"
#include "scheduler/worker.h"

#define ALONE_AFTER_MS 5000     /* free workers wait so long for each other; then the model goes through a window of each */
#define GATHER_MOST_MS 120000   /* so long workers wait for others that are busy still; */
#define GATHER_REST_MS 60000    /* then they do something else for a while */
#define BETTER_MS 30000         /* a gang is not cut anew for a better division before it has run so long */
#define BETTER_BY 0.9           /* of its bottleneck */

static int may_gang(const struct job *j)
{
    const struct job_params *p = &j->row.params;
    return p->model_key && (p->stages > 1 || (!p->stages && p->model_bytes));
}

static int has_work(const struct job *j)
{
    return j->avail[0] || j->avail[1] || j->avail[2];
}

static uint64_t in_use(const struct job *j)
{
    return (uint64_t)j->workers + gang_silent_members(j);
}

/* How many more workers the job may have. */
static uint64_t allowed(const struct job *j)
{
    uint64_t most = j->row.params.max_workers, has = in_use(j);
    return !most ? UINT32_MAX : most > has ? most - has : 0;
}

static uint32_t stages_of(const struct job *j)
{
    uint32_t n = j->row.params.stages;
    return n > GANG_MOST ? GANG_MOST : n;
}

uint32_t gang_least(const struct job *j)
{
    if (j->row.params.stages)
        return j->gang_fewer && j->gang_fewer < stages_of(j) ? j->gang_fewer : stages_of(j);
    return j->gang_least;
}

/* Workers that would do in one gang: they reach each other and give the same bits. */
static int same_group(const struct job *j, const struct worker *a, const struct worker *b)
{
    return a->reach == b->reach && (a->numerics == b->numerics || j->row.numerics == NUMERICS_ANY);
}

static int compare_numbers(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

/* Looking around ----------------------------------------------------------------------------------------------------------------- */

static int by_group_and_memory(const void *a, const void *b)
{
    const struct worker *x = *(struct worker *const *)a, *y = *(struct worker *const *)b;
    int c = compare_numbers(x->reach, y->reach);
    if (!c)
        c = compare_numbers(x->numerics, y->numerics);
    if (!c)
        c = compare_numbers(y->memory_bytes, x->memory_bytes);
    return c ? c : compare_numbers(x->id, y->id);
}

/* Room for all that there are. */
static int pick_room(struct sched *s)
{
    while (s->pick_cap < s->joined_count)
        if (mem_grow((void **)&s->pick, &s->pick_cap, s->pick_cap, sizeof(struct worker *)))
            return -1;
    return 0;
}

/* How many there are in the largest group, busy ones too; and without a number of stages, how many it takes to have the memory. */
static void survey(struct sched *s, struct job *j)
{
    size_t n = 0;
    j->gang_seen = s->membership;
    j->gang_seen_ms = s->now_ms;
    for (size_t i = 0; i < s->joined_count; i++) {
        struct worker *w = s->joined[i];
        if (gang_may_join(s, w, j) && !(w->leases && w->leases->job != j && w->leases->job->row.params.priority > j->row.params.priority))
            s->pick[n++] = w;
    }
    if (n > 1)
        qsort(s->pick, n, sizeof(struct worker *), by_group_and_memory);
    uint32_t most = 0, least = 0;
    for (size_t i = 0, from = 0; i <= n; i++) {
        if (i < n && same_group(j, s->pick[i], s->pick[from]))
            continue;
        uint32_t size = (uint32_t)(i - from), needs = 0;
        uint64_t sum = 0;
        for (size_t k = from; k < i && k - from < GANG_MOST && !needs; k++) {
            sum += s->pick[k]->memory_bytes;
            if (sum >= j->row.params.model_bytes && k > from)
                needs = (uint32_t)(k - from) + 1;
        }
        if (j->row.params.stages)
            needs = stages_of(j);
        if (!needs && size) /* as many more of the smallest */
            needs = size + (uint32_t)((j->row.params.model_bytes - sum) / (s->pick[i - 1]->memory_bytes + 1)) + 1;
        if (size > most || (size == most && size && needs < least)) {
            most = size;
            least = needs;
        }
        from = i;
    }
    if (most > j->gang_supply)
        j->gang_rest_ms = 0; /* more than when it gave up */
    j->gang_supply = most;
    if (least)
        j->gang_least = least;
}

/* Choosing ----------------------------------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* Names a set of workers with their profiles, in whatever order. */
static uint64_t name_set(const struct job *j, struct worker *const *among, size_t n)
{
    uint64_t x = n;
    for (size_t i = 0; i < n; i++) {
        const struct profile *p = gang_profile(among[i], j->row.params.model_key);
        x += mix(among[i]->id ^ mix(p ? p->version + 1 : 0) ^ mix(among[i]->memory_bytes));
    }
    return x | 1;
}

/* Two that do not reach each other are not both taken where there are others. */
static size_t keep_apart(const struct sched *s, const struct job *j, struct worker **among, size_t n, size_t fixed, size_t least)
{
    if (s->now_ms >= j->gang_apart_ms || n <= least)
        return n;
    int both = 0;
    for (size_t i = 0; i < n; i++)
        both += among[i]->id == j->gang_apart[0] || among[i]->id == j->gang_apart[1];
    for (size_t i = n; i-- > fixed && both > 1;)
        if (among[i]->id == j->gang_apart[1] || among[i]->id == j->gang_apart[0]) {
            among[i] = among[--n];
            break;
        }
    return n;
}

/* Profiles of another number of segments than the first one's do not count (two versions of the program, perhaps). */
static size_t alike(const struct job *j, struct worker **among, size_t n)
{
    size_t kept = 0, count = n ? gang_profile(among[0], j->row.params.model_key)->count : 0;
    for (size_t i = 0; i < n; i++)
        if (gang_profile(among[i], j->row.params.model_key)->count == count)
            among[kept++] = among[i];
    return kept;
}

/* Free ones that j may have, that were measured. Appends to `pick`; those of one group with `with`, when that is not NULL. */
static size_t free_ones(struct sched *s, struct job *j, const struct worker *with, size_t n)
{
    for (struct worker *w = s->idle_first; w; w = w->next_idle) {
        if (!gang_may_join(s, w, j) || (with && !same_group(j, w, with)) || !gang_profile(w, j->row.params.model_key))
            continue;
        const struct job *turn = share_pick(s, w);
        if (!turn || turn == j)
            s->pick[n++] = w;
    }
    return n;
}

enum status gang_redivide(struct sched *s, struct gang *g, struct gang_division *out, struct err *e)
{
    struct job *j = g->job;
    size_t n = 0, members;
    *out = (struct gang_division){.count = 0};
    if (pick_room(s))
        return err_nomem(e, "a gang");
    s->pick[n++] = g->head;
    for (uint32_t i = 0; i < g->count; i++)
        if (g->members[i].worker && g->members[i].worker != g->head && gang_profile(g->members[i].worker, j->row.params.model_key))
            s->pick[n++] = g->members[i].worker;
    members = n;
    if (!gang_profile(g->head, j->row.params.model_key))
        return ST_OK;
    uint64_t more = allowed(j);
    n = free_ones(s, j, g->head, n);
    n = alike(j, s->pick, n);
    n = keep_apart(s, j, s->pick, n, 1, 2);
    size_t least = j->row.params.stages ? stages_of(j) : g->count, most = members + (more < GANG_MOST ? (size_t)more : GANG_MOST);
    most = most < GANG_MOST ? most : GANG_MOST;
    if (j->row.params.stages && most > stages_of(j))
        most = stages_of(j);
    least = least < most ? least : most;
    least = least < n ? least : n;
    g->tried = name_set(j, s->pick, n);
    enum status st = gang_choose(j, s->pick, n, 1, least, most, out, e);
    j->gang_better_ms = s->now_ms + BETTER_MS;
    return st;
}

/* Carrying it out ----------------------------------------------------------------------------------------------------------------- */

int gang_cut_room(struct sched *s)
{
    return core_room(s, 3, 4 * GANG_MOST, 0, 0);
}

static void describe(struct sched *s, const struct gang *g)
{
    char text[200];
    size_t at = 0;
    for (uint32_t i = 0; i < g->count && at < sizeof text; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%" PRIx64 " %u-%u", i ? ", " : "", g->members[i].worker->id, g->members[i].first + 1,
                               g->members[i].end);
    core_history(s, g->job, "pipeline, cut %u: %s", g->cut, text);
}

void gang_cut(struct sched *s, struct gang *g, const struct gang_division *d)
{
    struct gang_member old[GANG_MOST];
    uint32_t old_count = g->count;
    struct worker *head = g->head;
    memcpy(old, g->members, sizeof old);
    g->cut++;
    g->count = d->count;
    g->segments = d->segments;
    g->bottleneck_ms = d->bottleneck_ms;
    g->gap = d->gap;
    g->cut_ms = g->sent_ms = s->now_ms;
    for (uint32_t i = 0; i < old_count; i++) { /* those that leave */
        struct worker *w = old[i].worker;
        uint32_t k = 0;
        while (k < d->count && d->members[k].worker != w)
            k++;
        if (!w || k < d->count)
            continue;
        w->gang = NULL;
        w->stage = 0;
        w->left_gang = g->id;
        w->left_cut = g->cut;
        s->leavers = 1;
        g->job->gang_workers--;
        worker_refresh(s, w);
    }
    for (uint32_t i = 0; i < d->count; i++) {
        struct gang_member *m = &g->members[i];
        struct worker *w = d->members[i].worker;
        *m = d->members[i];
        m->ready = 0;
        m->moved = 1;
        for (uint32_t k = 0; k < old_count; k++)
            if (old[k].worker == w && old[k].first <= m->first && m->end <= old[k].end)
                m->moved = 0;
        if (!w->gang) {
            g->job->gang_workers++;
            w->gang = g;
            w->model_key = 0; /* of a model that it had loaded nothing is left */
        }
        w->stage = i;
        w->stranded_ms = 0;
        worker_refresh(s, w);
    }
    for (uint32_t i = 0; i < d->count; i++)
        gang_send(s, SCHED_DO_SEND_STAGE, g, g->members[i].worker);
    if (g->state != GANG_LOADING)
        gang_set_state(s, g, GANG_LOADING);
    describe(s, g);
    worker_timer(s, head);
}

/* One more gang of j: the head is one that holds leases of it already, or the first in line. -1: memory is out. */
static int form(struct sched *s, struct job *j, const struct gang_division *d)
{
    struct worker *head = d->members[0].worker;
    size_t leases = 0, pieces = 0;
    for (uint32_t i = 0; i < d->count; i++) {
        struct worker *w = d->members[i].worker;
        if (w->leases && (!head->leases || w->leases->bytes_left > head->leases->bytes_left))
            head = w;
    }
    for (uint32_t i = 0; i < d->count; i++)
        if (d->members[i].worker != head && gang_too_soon(s, d->members[i].worker))
            return 0;
    for (uint32_t i = 0; i < d->count; i++)
        for (const struct lease *l = d->members[i].worker->leases; l; l = l->worker_next) {
            pieces += l->pieces;
            leases++;
        }
    if (core_room(s, 4, 4 * GANG_MOST + leases, pieces * 3, 0) ||
        (s->gang_count == s->gang_cap && mem_grow((void **)&s->gangs, &s->gang_cap, s->gang_count, sizeof(struct gang *))))
        return -1;
    struct gang *g = mem_zalloc(sizeof *g);
    if (!g)
        return -1;
    s->counter++;
    BUG_IF(!s->counter, "the epochs of this generation are used up");
    g->id = EPOCH(s->generation, s->counter);
    g->job = j;
    g->state = GANG_LOADING;
    g->head = head;
    for (uint32_t i = 0; i < d->count; i++) {
        struct worker *w = d->members[i].worker;
        while (w != head && w->leases) { /* it worked alone, with a window */
            core_message(s, SCHED_DO_SEND_REVOKE, w->leases->job->row.id, w->id, w->leases->epoch);
            lease_release(s, w->leases);
        }
    }
    s->gangs[s->gang_count++] = g;
    g->job_next = j->gangs;
    if (j->gangs)
        j->gangs->job_prev = g;
    j->gangs = g;
    j->gang_count++;
    gang_cut(s, g, d);
    g->tried = 0;
    j->by_window = 0;
    if (d->count >= stages_of(j))
        j->gang_fewer = 0;
    j->gang_none_ms = j->gang_gather_ms = j->gang_claim_ms = j->gang_tried = 0;
    j->gang_better_ms = s->now_ms + BETTER_MS;
    return 0;
}

/* By group; in it those that hold leases of the job first, then by their ids. */
static int by_group(const void *a, const void *b)
{
    const struct worker *x = *(struct worker *const *)a, *y = *(struct worker *const *)b;
    int c = compare_numbers(x->reach, y->reach);
    if (!c)
        c = compare_numbers(x->numerics, y->numerics);
    if (!c)
        c = (x->leases == NULL) - (y->leases == NULL);
    return c ? c : compare_numbers(x->id, y->id);
}

/* Tries each group of the n in `pick`. 1: a gang was formed, or it was found that a worker does best alone; 0: none can be; -1: memory is out. */
static int form_among(struct sched *s, struct job *j, size_t n)
{
    struct err e;
    struct gang_division d;
    qsort(s->pick, n, sizeof(struct worker *), by_group);
    uint64_t name = name_set(j, s->pick, n);
    if (name == j->gang_tried)
        return 0;
    for (size_t from = 0, to; from < n; from = to) {
        for (to = from + 1; to < n && same_group(j, s->pick[to], s->pick[from]);)
            to++;
        struct worker **group = s->pick + from;
        size_t has = 0, fixed = group[0]->leases != NULL, stages = stages_of(j), least = stages ? gang_least(j) : 2, most = stages ? stages : GANG_MOST;
        size_t size = keep_apart(s, j, group, alike(j, group, to - from), fixed, least);
        for (size_t i = 0; i < size; i++)
            has += group[i]->leases != NULL;
        if (most > allowed(j) + has)
            most = (size_t)(allowed(j) + has);
        if (size < least || most < least)
            continue;
        if (stages) /* all that are asked for, or that are there */
            least = size < most ? size : most;
        enum status st = gang_choose(j, group, size, fixed, least, most, &d, &e);
        if (st == ST_OK && fixed && !d.count)
            st = gang_choose(j, group, size, 0, least, most, &d, &e);
        if (st != ST_OK)
            return -1;
        if (d.count == 1) {
            if (core_room(s, 1, 0, 0, 0))
                return -1;
            struct worker *w = d.members[0].worker;
            w->solo_model = j->row.params.model_key;
            s->membership++;
            s->work_dirty = 1;
            core_history(s, j, "worker %" PRIx64 " runs the whole model: no division of it is faster than that worker alone", w->id);
            return 1;
        }
        if (d.count)
            return form(s, j, &d) ? -1 : 1;
    }
    j->gang_tried = name;
    return 0;
}

static int ask(struct sched *s, struct job *j, struct worker *w)
{
    if (core_room(s, 0, 1, 0, 0))
        return -1;
    core_message(s, SCHED_DO_SEND_PROFILE, j->row.id, w->id, 0);
    gang_profiling(s, w, j->row.params.model_key);
    return 0;
}

/* Free ones that nobody needs are measured, too: a gang may be better with one of them. -1: memory is out. */
static int ask_spare(struct sched *s, struct job *j)
{
    for (struct worker *w = s->idle_first, *next; w; w = next) {
        next = w->next_idle;
        if (gang_may_join(s, w, j) && !gang_profile(w, j->row.params.model_key) && !share_pick(s, w) && ask(s, j, w))
            return -1;
    }
    return 0;
}

/* Free workers that wait for j, and those that hold leases of it alone. Those that were not measured yet are asked to. -1: memory is out. */
static int gather(struct sched *s, struct job *j)
{
    size_t n = 0;
    uint64_t key = j->row.params.model_key;
    for (struct worker *w = s->idle_first, *next; w; w = next) {
        next = w->next_idle;
        if (!gang_may_join(s, w, j) || share_pick(s, w) != j)
            continue;
        if (gang_profile(w, key)) {
            s->pick[n++] = w;
            continue;
        }
        if (ask(s, j, w))
            return -1;
    }
    for (const struct lease *l = j->leases; l; l = l->job_next) {
        struct worker *w = l->worker;
        size_t k = 0;
        while (k < n && s->pick[k] != w)
            k++;
        if (k < n || w->profiling || !l->claimed || !gang_may_join(s, w, j))
            continue;
        if (gang_profile(w, key)) {
            s->pick[n++] = w;
        } else if (w->stranded_ms) { /* it has nothing else to do */
            if (ask(s, j, w))
                return -1;
        }
    }
    if (s->profiling) /* others are still to come: they may be the better ones */
        j->gang_gather_ms = s->now_ms;
    return n ? form_among(s, j, n) : 0;
}

/* Workers that are of use to j only together, and that nobody needs: the clock runs. */
static int any_free(const struct sched *s, const struct job *j)
{
    for (const struct worker *w = s->idle_first; w; w = w->next_idle)
        if (gang_needs(w, j) && w->solo_model != j->row.params.model_key && share_fits(s, w, j))
            return 1;
    return 0;
}

static void watch_the_clock(struct sched *s, struct job *j)
{
    uint32_t most = j->row.params.max_workers;
    if (!j->row.params.stages && most && (most < 2 || most < j->gang_least)) {
        s->work_dirty |= !j->by_window;
        j->by_window = 1; /* it may have too few for a pipeline */
    }
    if (j->row.params.stages || j->by_window || j->gangs || !any_free(s, j)) {
        j->gang_none_ms = 0;
        return;
    }
    if (!j->gang_none_ms)
        j->gang_none_ms = s->now_ms;
    if (s->now_ms - j->gang_none_ms < ALONE_AFTER_MS || core_room(s, 1, 0, 0, 0))
        return;
    j->by_window = 1;
    j->gang_none_ms = 0;
    s->work_dirty = 1;
    core_history(s, j, "no pipeline can be formed of the workers that are there: each holds the model by parts, in turn");
}

/* A division of the same members and free ones that is clearly better. 1: it is carried out; -1: memory is out. */
static int improve(struct sched *s, struct gang *g)
{
    struct job *j = g->job;
    if (g->state != GANG_RUNNING || s->now_ms - g->cut_ms < BETTER_MS || s->now_ms < j->gang_better_ms)
        return 0;
    struct gang_division d;
    struct err e;
    uint64_t tried = g->tried;
    size_t n = 0;
    for (uint32_t i = 0; i < g->count; i++)
        s->pick[n++] = g->members[i].worker;
    n = free_ones(s, j, g->head, n);
    if (name_set(j, s->pick, n) == tried)
        return 0;
    j->gang_better_ms = s->now_ms + s->config.beat_ms;
    size_t stages = stages_of(j), most = stages ? stages : GANG_MOST;
    for (size_t i = 0; i < n; i++)
        if (!gang_profile(s->pick[i], j->row.params.model_key)) { /* not any more */
            g->tried = name_set(j, s->pick, n);
            return 0;
        }
    g->tried = name_set(j, s->pick, n);
    if (most > g->count + allowed(j))
        most = (size_t)(g->count + allowed(j));
    for (size_t i = 0; i < n; i++)
        if (s->pick[i] == g->head) {
            s->pick[i] = s->pick[0];
            s->pick[0] = g->head;
        }
    n = alike(j, s->pick, n);
    n = keep_apart(s, j, s->pick, n, 1, 2);
    enum status st = gang_choose(j, s->pick, n, 1, most < n ? most : n, most, &d, &e);
    if (st != ST_OK) {
        g->tried = tried;
        return -1;
    }
    int has_head = 0;
    for (uint32_t i = 0; i < d.count; i++)
        has_head |= d.members[i].worker == g->head;
    if (!has_head || d.count < 2 || d.bottleneck_ms > gang_bottleneck(g) * BETTER_BY)
        return 0;
    if (gang_cut_room(s)) {
        g->tried = tried;
        return -1;
    }
    core_history(s, j, "its pipeline is cut anew: %.3g ms a micro-batch, not %.3g", d.bottleneck_ms, gang_bottleneck(g));
    gang_cut(s, g, &d);
    j->gang_better_ms = s->now_ms + BETTER_MS;
    return 1;
}

/* Whether free workers are to wait for j. */
int gang_wanted(const struct sched *s, const struct job *j)
{
    uint32_t least = gang_least(j) > 2 ? gang_least(j) : 2;
    if (!has_work(j) || s->now_ms < j->gang_after_ms || allowed(j) < least || s->now_ms < j->gang_rest_ms)
        return 0;
    return !j->gangs || scale_useful(s, j) >= in_use(j) + gang_least(j);
}

int gang_gather(struct sched *s)
{
    int done = 0;
    s->gang_jobs = 0;
    for (struct job *j = s->running; j; j = j->next_running) {
        if (!may_gang(j))
            continue;
        s->gang_jobs = 1;
        if (pick_room(s))
            return -1;
        if (j->gang_seen != s->membership || s->now_ms - j->gang_seen_ms >= s->config.beat_ms)
            survey(s, j);
        int enough = j->gang_least && ((j->gang_supply >= gang_least(j) && j->gang_supply > 1) || s->now_ms < j->gang_claim_ms);
        int was = j->gang_gather_ms != 0;
        if (!enough || !gang_wanted(s, j)) {
            j->gang_gather_ms = 0;
        } else if (!was) {
            j->gang_gather_ms = s->now_ms;
        } else if (s->now_ms - j->gang_gather_ms >= GATHER_MOST_MS) {
            j->gang_gather_ms = 0;
            j->gang_rest_ms = s->now_ms + GATHER_REST_MS;
        }
        s->work_dirty |= was && !j->gang_gather_ms;
        if (j->gang_gather_ms) {
            int one = gather(s, j);
            if (one < 0)
                return -1;
            done |= one;
        } else if (j->gangs && ask_spare(s, j)) {
            return -1;
        }
        if (has_work(j))
            watch_the_clock(s, j);
    }
    for (size_t i = 0; i < s->gang_count && !done; i++) {
        int one = pick_room(s) ? -1 : improve(s, s->gangs[i]);
        if (one < 0)
            return -1;
        done |= one;
    }
    return done;
}
