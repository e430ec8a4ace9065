/* The happy path: the reader attaches a lease to the chain of its job (made with its first one) -> prepare gives each record as an object -> its unit waits at the first step -> a
   lane tokenises it, runs it with others, and adds what the model gave; or a child of the command answers -> it waits at the next step, or is a row, or is dropped -> when no
   unit of a record is open, its rows go to the record's lease.

   What can fail: a unit (the record is an error when all of its units are through: that of the first in order, so that the same record always says the same); a command as such (its
   job's leases go back, the job is to be held); a lease that is taken away (units are thrown away where they are found). */
#include "workers/pipeline/steps.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "workers/engine/cpuinfo.h"
#include "workers/pipeline/steps_inside.h"

#define CHUNK 16        /* units that are tokenised together */
#define LOOK_MS 200     /* an idle lane looks after roots whose leases are to be closed, and chains that have ended */

uint32_t steps_slots(uint32_t lanes)
{
    return lanes + JOBSPEC_MOST_STEPS;
}

/* What a lane does next -------------------------------------------------------------------------------------------------------------- */

struct work {
    struct step_state *step;
    struct node *units;
    int infer, full;
};

/* Enough waits behind this step, or there is room. */
int step_has_room(const struct chain *c, size_t at, uint64_t now_ms)
{
    if (at + 1 == c->count)
        return 1;
    struct step_state *next = &c->step[at + 1];
    uint64_t most = next->command ? step_command_most(next, now_ms) : (uint64_t)next->is->model->micro_batch * 4;
    return c->steps->bytes < STEPS_BYTES && next->raw.count + next->ready.count < most;
}

static int is_full(const struct step_state *st)
{
    const struct job *m = st->is->model;
    return st->ready.count >= m->micro_batch || st->ready.tokens >= m->micro_batch_tokens;
}

static struct node *take_raw(struct step_state *st, size_t most)
{
    struct node *units = NULL, **tail = &units;
    for (size_t n = 0; n < most && st->raw.head; n++) {
        struct unit *u = line_pop(&st->raw);
        *tail = &u->node;
        tail = &u->node.next;
        u->taken = 1;
        st->chain->steps->busy++;
    }
    return units;
}

/* What lies in front, up to the job's budget; a probe's records with nobody else's. */
static struct node *take_batch(struct step_state *st, int *full)
{
    const struct job *m = st->is->model;
    struct node *units = NULL, **tail = &units;
    const struct root *first = NULL;
    uint64_t tokens = 0;
    uint32_t n = 0;
    *full = 0;
    for (struct unit *u; (u = (struct unit *)st->ready.head); n++) {
        if (first && (n >= m->micro_batch || tokens + u->tokens > m->micro_batch_tokens || (u->root != first && (first->item->held->probe || u->root->item->held->probe)))) {
            *full = 1;
            break;
        }
        first = first ? first : u->root;
        tokens += u->tokens;
        line_pop(&st->ready);
        *tail = &u->node;
        tail = &u->node.next;
        u->taken = 1;
        st->chain->steps->busy++;
    }
    return units;
}

static int take_step(struct step_state *st, int whatever, uint64_t now_ms, struct work *w)
{
    const struct unit *oldest = (const struct unit *)st->ready.head;
    int full = is_full(st) || (oldest && (whatever || oldest->since_ms + STEPS_LONG_MS <= now_ms));
    if (full) {
        *w = (struct work){.step = st, .infer = 1};
        w->units = take_batch(st, &w->full);
    } else if (st->raw.count) {
        *w = (struct work){.step = st, .units = take_raw(st, CHUNK)};
    }
    return w->units != NULL;
}

/* From the last step to the first: what is full; then what has waited; then, where nobody moves, whatever there is. */
static int pick(struct steps *s, uint64_t now_ms, uint64_t *next_ms, struct work *w, struct root **through)
{
    *w = (struct work){0};
    for (int pass = 0; pass < 3; pass++) {
        if (pass == 2 && s->busy)
            break;
        for (struct chain *c = s->chains; c; c = c->next)
            for (size_t i = c->count; i-- > 0;) {
                struct step_state *st = &c->step[i];
                if (st->command) {
                    if (pass != 1 && step_command_feed(st, pass == 2, now_ms, through) && pass == 2)
                        return 0;
                    continue;
                }
                if (pass < 2 && !step_has_room(c, i, now_ms))
                    continue;
                const struct unit *oldest = (const struct unit *)st->ready.head;
                if (pass == 1 && oldest && oldest->since_ms + STEPS_IDLE_MS > now_ms && !oldest->root->item->held->probe) {
                    if (oldest->since_ms + STEPS_IDLE_MS < *next_ms)
                        *next_ms = oldest->since_ms + STEPS_IDLE_MS;
                    continue;
                }
                if (take_step(st, pass > 0, now_ms, w))
                    return 1;
            }
    }
    return 0;
}

static void wait_until(struct steps *s, uint64_t ms)
{
    struct timespec t = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
    if (ms == UINT64_MAX)
        pthread_cond_wait(&s->work, &s->lock);
    else
        pthread_cond_timedwait(&s->work, &s->lock, &t);
}

static void chain_free(struct chain *c)
{
    for (size_t i = 0; i < c->count; i++)
        command_free(c->step[i].command);
    mem_free(c->step);
    loaded_unref(c->loaded);
    job_unref(c->job);
    mem_free(c);
}

/* Chains that nobody needs any more. With the lock held, which is let go meanwhile. */
static void bury(struct steps *s)
{
    for (;;) {
        pthread_mutex_lock(&s->dead_lock);
        struct chain *c = s->dead;
        if (c)
            s->dead = c->dead_next;
        pthread_mutex_unlock(&s->dead_lock);
        if (!c)
            return;
        for (struct chain **at = &s->chains; *at; at = &(*at)->next)
            if (*at == c) {
                *at = c->next;
                break;
            }
        s->deaths++;
        pthread_cond_broadcast(&s->work); /* what lanes keep of it is to go */
        pthread_mutex_unlock(&s->lock);
        log_info("job %" PRIu64 ": its steps are put away", c->job->id);
        chain_free(c);
        pthread_mutex_lock(&s->lock);
    }
}

static void *lane_run(void *arg)
{
    struct stage *stage = arg;
    struct steps *s = stage->pipeline->steps;
    struct step_lane l = {.p = stage->pipeline, .steps = s, .slot = stage->slot};
    unsigned fp = fp_enter(); /* as in every lane */
    pthread_mutex_lock(&s->lock);
    while (!s->stopping) {
        struct work w;
        struct root *through = NULL;
        uint64_t now_ms = clock_ms(), next_ms = s->chains ? now_ms + LOOK_MS : UINT64_MAX;
        bury(s);
        if (l.deaths != s->deaths) {
            l.deaths = s->deaths;
            pthread_mutex_unlock(&s->lock);
            lane_empty(&l);
            pthread_mutex_lock(&s->lock);
            continue;
        }
        struct root *again = steps_found_again(s);
        int found = pick(s, now_ms, &next_ms, &w, &through);
        if (found || through || again) {
            if (found)
                pthread_cond_signal(&s->work); /* there may be more */
            pthread_mutex_unlock(&s->lock);
            steps_through(s, &l.scratch, through);
            steps_through(s, &l.scratch, again);
            if (found && w.infer)
                lane_infer(&l, w.step, w.units, w.full);
            else if (found)
                lane_tokenise(&l, w.step, w.units);
            pthread_mutex_lock(&s->lock);
            continue;
        }
        wait_until(s, next_ms);
    }
    pthread_mutex_unlock(&s->lock);
    lane_empty(&l);
    record_scratch_release(&l.scratch);
    buf_release(&l.result);
    buf_release(&l.object);
    fp_leave(fp);
    return NULL;
}

/* Chains ----------------------------------------------------------------------------------------------------------------------------- */

void chain_unref(struct chain *c)
{
    if (!c || atomic_fetch_sub(&c->refs, 1) > 1)
        return;
    struct steps *s = c->steps;
    pthread_mutex_lock(&s->dead_lock);
    c->dead_next = s->dead;
    s->dead = c;
    pthread_mutex_unlock(&s->dead_lock);
}

uint64_t chain_pulse(struct chain *c)
{
    if (atomic_load(&c->inside)) /* a command that hangs is found by whoever runs it */
        atomic_fetch_add(&c->pulse, 1);
    return atomic_load(&c->pulse);
}

static enum status steps_new(struct pipeline *p, struct err *e)
{
    struct steps *s = mem_zalloc(sizeof *s);
    pthread_condattr_t attributes;
    if (!s || !(s->lane = mem_array(p->o.lanes, sizeof *s->lane))) {
        mem_free(s);
        return err_nomem(e, "steps");
    }
    s->p = p;
    s->lanes = p->o.lanes;
    s->first_slot = p->steps_slot;
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->dead_lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&s->work, &attributes);
    pthread_condattr_destroy(&attributes);
    p->steps = s;
    enum status st = ST_OK;
    for (uint32_t i = 0; st == ST_OK && i < s->lanes; i++)
        st = stage_start(p, &s->lane[i], lane_run, s->first_slot + i, "step", (int)i, e);
    if (st != ST_OK)
        steps_free(p);
    return st;
}

static enum status chain_new(struct steps *s, struct held *h, struct chain **out, struct err *e)
{
    const struct job *j = h->job;
    struct chain *c = mem_zalloc(sizeof *c);
    if (!c || !(c->step = mem_array(j->step_count, sizeof *c->step))) {
        mem_free(c);
        return err_nomem(e, "steps");
    }
    c->refs = 2; /* the lease's, and that of `current` */
    c->steps = s;
    c->job = job_ref(h->job);
    c->loaded = loaded_ref(h->loaded);
    c->count = j->step_count;
    enum status st = ST_OK;
    for (size_t i = 0; i < c->count && st == ST_OK; i++) {
        struct step_state *x = &c->step[i];
        *x = (struct step_state){.chain = c, .at = (uint32_t)i, .slot = s->first_slot + s->lanes + (uint32_t)i, .is = &j->steps[i], .loaded = h->loaded->parts[i]};
        line_init(&x->raw);
        line_init(&x->ready);
        if (x->is->model)
            continue;
        st = step_command_new(x, e);
        c->commands++;
    }
    if (st != ST_OK)
        chain_free(c);
    else
        *out = c;
    return st;
}

static void set_current(struct steps *s, struct chain *c)
{
    pthread_mutex_lock(&s->lock);
    struct chain *old = s->current;
    s->current = c;
    if (c) {
        c->next = s->chains;
        s->chains = c;
    }
    pthread_mutex_unlock(&s->lock);
    chain_unref(old);
    pthread_mutex_lock(&s->lock);
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
}

static enum status attach(struct pipeline *p, struct held *h, struct err *e)
{
    struct chain *c = NULL;
    if (!p->steps)
        TRY(steps_new(p, e));
    struct steps *s = p->steps;
    pthread_mutex_lock(&s->lock);
    if (s->current && s->current->job == h->job && s->current->loaded == h->loaded && !s->current->faulted)
        c = s->current;
    if (c)
        atomic_fetch_add(&c->refs, 1);
    pthread_mutex_unlock(&s->lock);
    if (!c) {
        TRY(chain_new(s, h, &c, e));
        set_current(s, c);
        log_info("job %" PRIu64 ": %zu steps, %d of them commands", h->job->id, c->count, c->commands);
    }
    pthread_mutex_lock(&p->lock);
    h->chain = c;
    pthread_mutex_unlock(&p->lock);
    return ST_OK;
}

int steps_attach(struct pipeline *p, struct held *h)
{
    struct err e;
    if (!h->job->step_count) {
        if (p->steps)
            set_current(p->steps, NULL);
        return 1;
    }
    enum status st = attach(p, h, &e);
    if (st == ST_OK)
        return 1;
    if (st == ST_NOMEM)
        pipeline_out_of_memory(p, "steps");
    pthread_mutex_lock(&p->lock);
    struct report report = {.kind = REPORT_JOB_FAULT, .job = h->job->id};
    snprintf(report.text, sizeof report.text, "%s", e.text);
    log_error("job %" PRIu64 ": %s", h->job->id, e.text);
    pipeline_add_report(p, &report);
    h->give_up = 1;
    pthread_cond_signal(&p->to_write);
    pthread_mutex_unlock(&p->lock);
    return 0;
}

void steps_forget(struct pipeline *p, uint64_t job)
{
    struct steps *s = p->steps;
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    int is = s->current && s->current->job->id == job;
    pthread_mutex_unlock(&s->lock);
    if (is)
        set_current(s, NULL);
}

void steps_free(struct pipeline *p)
{
    struct steps *s = p->steps;
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->stopping = 1;
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
    for (uint32_t i = 0; i < s->lanes; i++)
        stage_join(&s->lane[i]);
    set_current(s, NULL);
    pthread_mutex_lock(&s->lock);
    bury(s);
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->dead_lock);
    pthread_cond_destroy(&s->work);
    mem_free(s->lane);
    mem_free(s);
    p->steps = NULL;
}
