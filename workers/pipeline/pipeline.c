/* The happy path: the link hands in a job and a lease -> the reader makes items of its records -> prepare decodes and tokenises them -> a lane
   takes a micro-batch, runs it and encodes the rows -> the writer makes a part of what is finished every few seconds and reports a commit
   -> the link sends it, and its acknowledgement comes back here.

   What can fail: a record (it becomes an error row and the rest goes on); a source or the model (the job cannot go on: said to the
   daemon, the lease given back); a part (the lease given back; the third time in a row the job is to be held); memory (the process ends, its
   black box says what was in it); the daemon takes a lease away (what is in flight for it is thrown away where it is found). */
#include "workers/pipeline/pipeline.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "workers/engine/profile.h"
#include "workers/group/group.h"
#include "workers/pipeline/stages.h"
#include "workers/pipeline/steps.h"

#define BUDGET_BYTES (64u << 20)
#define LANES_A_PREPARER 8
#define BATCHES_AHEAD 7          /* micro-batches a lane that may be read and not yet begun, at most */
#define RECORDS_A_BATCH 64
#define SIGNAL_STACK_BYTES (64u << 10)
#define EXIT_OUT_OF_MEMORY 77

static uint32_t preparers_for(uint32_t lanes)
{
    return (lanes + LANES_A_PREPARER - 1) / LANES_A_PREPARER;
}

uint32_t pipeline_slots(uint32_t lanes)
{
    return lanes + preparers_for(lanes) + group_slots(lanes) + steps_slots(lanes);
}

struct start {
    struct stage *stage;
    void *(*run)(void *);
    char name[16];
};

static void *begin(void *arg)
{
    struct start s = *(struct start *)arg;
    mem_free(arg);
    pthread_setname_np(pthread_self(), s.name);
    stack_t stack = {.ss_sp = s.stage->stack, .ss_size = SIGNAL_STACK_BYTES}, before;
    sigaltstack(&stack, &before);
    void *result = s.run(s.stage);
    sigaltstack(&before, NULL);
    return result;
}

enum status stage_start(struct pipeline *p, struct stage *stage, void *(*run)(void *), uint32_t slot, const char *name, int number, struct err *e)
{
    struct start *s = mem_zalloc(sizeof *s);
    stage->stack = mem_aligned(SIGNAL_STACK_BYTES);
    if (!s || !stage->stack) {
        mem_free(s);
        return err_nomem(e, "a thread");
    }
    stage->pipeline = p;
    stage->slot = slot;
    *s = (struct start){.stage = stage, .run = run};
    if (number < 0)
        snprintf(s->name, sizeof s->name, "%s", name);
    else
        snprintf(s->name, sizeof s->name, "%s %d", name, number);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    int errnum = pthread_create(&stage->thread, &attributes, begin, s);
    pthread_attr_destroy(&attributes);
    if (errnum) {
        mem_free(s);
        return err_errno(e, ST_ENV, errnum, "cannot start thread '%s'", name);
    }
    stage->started = 1;
    return ST_OK;
}

static void condition(pthread_cond_t *c)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attributes);
    pthread_condattr_destroy(&attributes);
}

enum status pipeline_new(const struct pipeline_opts *o, struct pipeline **out, struct err *e)
{
    BUG_IF(o->lanes == 0, "a pipeline without lanes");
    struct pipeline *p = mem_zalloc(sizeof *p);
    if (!p)
        return err_nomem(e, "the pipeline");
    p->o = *o;
    p->last_report = &p->reports;
    p->preparers = preparers_for(o->lanes);
    p->steps_slot = pipeline_slots(o->lanes) - steps_slots(o->lanes);
    uint64_t bytes = o->budget_bytes ? o->budget_bytes : BUDGET_BYTES;
    p->o.budget_bytes = bytes;
    budget_init(&p->budget, bytes, o->lanes, (uint64_t)o->lanes * BATCHES_AHEAD * RECORDS_A_BATCH);
    queue_init(&p->to_prepare);
    queue_init(&p->to_infer);
    pthread_mutex_init(&p->lock, NULL);
    condition(&p->to_read);
    condition(&p->to_write);
    p->prepare = mem_array(p->preparers, sizeof *p->prepare);
    p->lane = mem_array(o->lanes, sizeof *p->lane);
    enum status st = p->prepare && p->lane ? ST_OK : err_nomem(e, "the pipeline");
    for (uint32_t i = 0; st == ST_OK && i < o->lanes; i++)
        st = stage_start(p, &p->lane[i], infer_run, i, "lane", (int)i, e);
    for (uint32_t i = 0; st == ST_OK && i < p->preparers; i++)
        st = stage_start(p, &p->prepare[i], prepare_run, o->lanes + i, "prepare", (int)i, e);
    if (st == ST_OK)
        st = stage_start(p, &p->writer, write_run, 0, "write", -1, e);
    if (st == ST_OK)
        st = stage_start(p, &p->reader, read_run, 0, "read", -1, e);
    if (st == ST_OK) {
        const struct group_opts g = {.context = o->context, .endpoint = o->endpoint, .keys = o->keys, .number = o->number, .memory_bytes = o->memory_bytes};
        st = group_new(p, &g, o->lanes + p->preparers, &p->group, e);
    }
    if (st != ST_OK)
        pipeline_free(p);
    else
        *out = p;
    return st;
}

void stage_join(struct stage *s)
{
    if (s->started)
        pthread_join(s->thread, NULL);
    mem_free(s->stack);
}

void pipeline_free(struct pipeline *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stopping = 1;
    while (p->helds)
        pipeline_drop(p, p->helds);
    pthread_cond_broadcast(&p->to_read);
    pthread_cond_broadcast(&p->to_write);
    pthread_mutex_unlock(&p->lock);
    budget_poke(&p->budget);
    group_stop(p->group);
    stage_join(&p->reader);
    queue_close(&p->to_prepare);
    for (uint32_t i = 0; p->prepare && i < p->preparers; i++)
        stage_join(&p->prepare[i]);
    steps_free(p);
    queue_close(&p->to_infer);
    for (uint32_t i = 0; p->lane && i < p->o.lanes; i++)
        stage_join(&p->lane[i]);
    stage_join(&p->writer);
    group_free(p->group);
    pthread_mutex_lock(&p->lock);
    while (p->scans) {
        pthread_mutex_unlock(&p->lock);
        clock_sleep_ms(1);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    for (struct job *j = p->jobs, *next; j; j = next) {
        next = j->next;
        job_unref(j);
    }
    for (struct report *r; (r = pipeline_report(p));) {
        commit_free(r->commit);
        if (r->profile)
            profile_release(r->profile);
        mem_free(r->profile);
        mem_free(r->ways);
        mem_free(r);
    }
    loaded_unref(p->loaded);
    mem_free(p->prepare);
    mem_free(p->lane);
    queue_release(&p->to_prepare);
    queue_release(&p->to_infer);
    budget_release(&p->budget);
    pthread_cond_destroy(&p->to_read);
    pthread_cond_destroy(&p->to_write);
    pthread_mutex_destroy(&p->lock);
    mem_free(p);
}

_Noreturn void pipeline_out_of_memory(struct pipeline *p, const char *what)
{
    blackbox_cause(p->o.box, BLACKBOX_OUT_OF_MEMORY);
    log_error("out of memory for %s; the records in the lanes are tried alone next", what);
    _exit(EXIT_OUT_OF_MEMORY);
}

/* Reports ------------------------------------------------------------------------------------------------------------------------- */

void pipeline_add_report(struct pipeline *p, const struct report *r)
{
    struct report *copy = mem_alloc(sizeof *copy);
    if (!copy)
        pipeline_out_of_memory(p, "a report");
    *copy = *r;
    copy->next = NULL;
    *p->last_report = copy;
    p->last_report = &copy->next;
    if (eventfd_write(p->o.wake_fd, 1)) {
        /* the counter is at its top: the link is awake already */
    }
}

struct report *pipeline_report(struct pipeline *p)
{
    pthread_mutex_lock(&p->lock);
    struct report *r = p->reports;
    if (r) {
        p->reports = r->next;
        if (!p->reports)
            p->last_report = &p->reports;
    }
    pthread_mutex_unlock(&p->lock);
    return r;
}

void commit_free(struct commit *c)
{
    if (!c)
        return;
    mem_free(c->done);
    mem_free(c->returned);
    mem_free(c);
}

void pipeline_add_commit(struct pipeline *p, struct commit *c)
{
    pipeline_add_report(p, &(struct report){.kind = REPORT_COMMIT, .job = c->job, .epoch = c->epoch, .commit = c});
}

void pipeline_cut_answer(struct pipeline *p, uint64_t epoch, uint64_t at)
{
    log_info("lease %" PRIx64 " is cut at %" PRIu64, epoch, at);
    pipeline_add_report(p, &(struct report){.kind = REPORT_CUT, .epoch = epoch, .at = at});
}

/* Jobs and leases ----------------------------------------------------------------------------------------------------------------- */

enum status pipeline_job(struct pipeline *p, const struct job_words *w, struct err *e)
{
    struct job *j;
    TRY(job_new(w, &j, e));
    pthread_mutex_lock(&p->lock);
    for (struct job **at = &p->jobs; *at; at = &(*at)->next)
        if ((*at)->id == j->id) { /* the daemon may say it again after a restart; leases keep the one they came with */
            struct job *old = *at;
            *at = old->next;
            job_unref(old);
            break;
        }
    j->next = p->jobs;
    p->jobs = j;
    pthread_mutex_unlock(&p->lock);
    return ST_OK;
}

void pipeline_forget_job(struct pipeline *p, uint64_t job)
{
    pthread_mutex_lock(&p->lock);
    for (struct job **at = &p->jobs; *at; at = &(*at)->next)
        if ((*at)->id == job) {
            struct job *old = *at;
            *at = old->next;
            job_unref(old);
            break;
        }
    pthread_mutex_unlock(&p->lock);
    steps_forget(p, job);
}

struct held *pipeline_find(struct pipeline *p, uint64_t epoch)
{
    struct held *h = p->helds;
    while (h && h->epoch != epoch)
        h = h->next;
    return h;
}

static enum status check_inputs(struct span span, const struct input *inputs, size_t count, struct err *e)
{
    if (span.begin >= span.end)
        return err_set(e, ST_CORRUPT, "a lease of nothing, [%" PRIu64 ", %" PRIu64 ")", span.begin, span.end);
    uint64_t at = span.begin;
    for (size_t i = 0; i < count; i++) {
        const struct input *in = &inputs[i];
        if (in->end < in->source.base || (i && in->source.base < inputs[i - 1].end))
            return err_set(e, ST_CORRUPT, "a lease whose sources are not in order");
        if (in->source.base <= at && in->end > at)
            at = in->end;
    }
    if (at < span.end)
        return err_set(e, ST_CORRUPT, "a lease whose sources end at %" PRIu64 ", before the lease does at %" PRIu64, at, span.end);
    return ST_OK;
}

enum status pipeline_lease(struct pipeline *p, uint64_t job, uint64_t epoch, struct span span, int probe, struct input *inputs,
                           size_t input_count, struct err *e)
{
    enum status st = check_inputs(span, inputs, input_count, e);
    struct job *j = NULL;
    pthread_mutex_lock(&p->lock);
    if (st == ST_OK && pipeline_find(p, epoch))
        st = err_set(e, ST_AGAIN, "lease %" PRIx64 " is held already", epoch);
    if (st == ST_OK) {
        for (j = p->jobs; j && j->id != job; j = j->next)
            ;
        if (!j)
            st = err_set(e, ST_NOT_FOUND, "a lease of job %" PRIu64 ", which this worker was not told of", job);
    }
    if (st != ST_OK) {
        pthread_mutex_unlock(&p->lock);
        inputs_free(inputs, input_count);
        return st;
    }
    for (size_t i = 0; i < input_count; i++)
        inputs[i].stream = j->columns || inputs[i].source.compression != COMPRESSION_NONE;
    struct held *h = held_new(job_ref(j), epoch, span, probe, inputs, input_count, clock_ms());
    if (!h)
        pipeline_out_of_memory(p, "a lease");
    struct held **at = &p->helds;
    while (*at)
        at = &(*at)->next;
    *at = h;
    log_info("job %" PRIu64 " lease %" PRIx64 ": %s [%" PRIu64 ", %" PRIu64 ") in %zu source%s", job, epoch, probe ? "probe" : "begins", span.begin,
             span.end, input_count, input_count == 1 ? "" : "s");
    pthread_cond_signal(&p->to_read);
    pthread_cond_signal(&p->to_write);
    pthread_mutex_unlock(&p->lock);
    return ST_OK;
}

void pipeline_throw_away(struct pipeline *p, struct item *chain)
{
    uint64_t bytes = 0;
    for (struct item *i = chain, *later; i; i = later) {
        later = i->later;
        bytes += i->charge;
        item_free(i);
    }
    if (bytes)
        budget_give(&p->budget, bytes);
}

static void close_held(struct pipeline *p, struct held *h)
{
    struct item *dropped;
    p->done_bytes -= h->done_bytes;
    held_close(h, &dropped);
    pipeline_throw_away(p, dropped);
    group_closed(p->group);
    budget_poke(&p->budget);
    pthread_cond_broadcast(&p->to_read);
}

void pipeline_drop(struct pipeline *p, struct held *h)
{
    struct held **at = &p->helds;
    while (*at != h)
        at = &(*at)->next;
    *at = h->next;
    close_held(p, h);
    held_unref(h);
}

int pipeline_over(struct pipeline *p, struct held *h)
{
    if (h->acked < h->seq || !(h->closed || (held_complete(h) && h->done == 0)))
        return 0;
    log_info("job %" PRIu64 " lease %" PRIx64 " is over: %" PRIu64 " records", h->job->id, h->epoch, h->records_done);
    pipeline_drop(p, h);
    return 1;
}

void pipeline_give_back(struct pipeline *p, struct held *h, uint64_t seq, const char *why)
{
    struct span *rest = NULL;
    size_t n = 0;
    struct commit *c = mem_zalloc(sizeof *c);
    if (!c || held_rest(h, &rest, &n))
        pipeline_out_of_memory(p, "a commit");
    *c = (struct commit){.job = h->job->id, .epoch = h->epoch, .seq = seq, .returned = rest, .returned_count = n};
    log_info("job %" PRIu64 " lease %" PRIx64 ": %zu span%s given back: %s", h->job->id, h->epoch, n, n == 1 ? "" : "s", why);
    close_held(p, h);
    pipeline_add_commit(p, c);
}

void pipeline_revoke(struct pipeline *p, uint64_t epoch, const char *why)
{
    pthread_mutex_lock(&p->lock);
    struct held *h = pipeline_find(p, epoch);
    if (h) {
        log_info("job %" PRIu64 " lease %" PRIx64 " is dropped: %s", h->job->id, epoch, why);
        pipeline_drop(p, h);
    }
    pthread_mutex_unlock(&p->lock);
}

int pipeline_acked(struct pipeline *p, uint64_t epoch, uint64_t seq)
{
    pthread_mutex_lock(&p->lock);
    struct held *h = pipeline_find(p, epoch);
    int over = 0;
    if (h) {
        if (seq < h->seq && seq >= h->acked)
            h->acked = seq + 1;
        over = pipeline_over(p, h);
        pthread_cond_broadcast(&p->to_read); /* a probe goes on */
        pthread_cond_signal(&p->to_write);
    }
    pthread_mutex_unlock(&p->lock);
    return over;
}

void pipeline_drain(struct pipeline *p, uint64_t until_ms)
{
    pthread_mutex_lock(&p->lock);
    if (!p->draining || until_ms < p->drain_until_ms)
        p->drain_until_ms = until_ms;
    p->draining = 1;
    pthread_cond_broadcast(&p->to_read);
    pthread_cond_signal(&p->to_write);
    pthread_mutex_unlock(&p->lock);
    budget_poke(&p->budget);
}

/* Results ------------------------------------------------------------------------------------------------------------------------- */

void pipeline_begun(struct pipeline *p, struct node *chain, int full)
{
    uint64_t records = 0, waited = 0;
    for (struct node *n = chain; n; n = n->next) {
        struct item *i = (struct item *)n;
        records++;
        waited += !i->begun;
        i->begun = 1;
    }
    budget_begun(&p->budget, records, waited, full, clock_ms());
}

void pipeline_discard(struct pipeline *p, struct item *i)
{
    budget_through(&p->budget, 1, !i->begun, i->charge, 0, clock_ms());
    item_free(i);
}

/* With the lock held. */
static void finish(struct pipeline *p, struct item *i, enum item_state result, uint64_t now_ms)
{
    struct held *h = i->held;
    if (!held_finish(h, i, result, now_ms)) {
        budget_give(&p->budget, i->charge);
        item_free(i);
        return;
    }
    p->records_done++;
    p->done_bytes += i->charge;
    if (h->done == 1 || h->probe || held_complete(h) || pipeline_full(p) || (p->draining && !h->open))
        pthread_cond_signal(&p->to_write);
}

void pipeline_failed(struct pipeline *p, struct item *i, enum record_error error, const char *message)
{
    i->error = error;
    i->message = mem_strdup(message);
    if (!i->message)
        pipeline_out_of_memory(p, "an error row");
    uint64_t now_ms = clock_ms(), taken = i->charge;
    mem_free(i->raw);
    i->raw = NULL;
    i->charge = sizeof *i + strlen(message) + i->id_len + i->keep_len;
    budget_through(&p->budget, 1, !i->begun, taken, i->charge, now_ms);
    pthread_mutex_lock(&p->lock);
    finish(p, i, ITEM_ERROR, now_ms);
    pthread_mutex_unlock(&p->lock);
}

void pipeline_rows(struct pipeline *p, struct item *chain)
{
    uint64_t taken = 0, kept = 0, records = 0, unbegun = 0, now_ms = clock_ms();
    for (struct item *i = chain; i; i = (struct item *)i->node.next) {
        taken += i->charge;
        i->charge = sizeof *i + i->row_len + i->aux_len;
        kept += i->charge;
        records++;
        unbegun += !i->begun;
    }
    budget_through(&p->budget, records, unbegun, taken, kept, now_ms);
    pthread_mutex_lock(&p->lock);
    for (struct item *i = chain, *next; i; i = next) {
        next = (struct item *)i->node.next;
        finish(p, i, ITEM_ROW, now_ms);
    }
    pthread_mutex_unlock(&p->lock);
}

/* What the link asks -------------------------------------------------------------------------------------------------------------- */

size_t pipeline_held_count(struct pipeline *p)
{
    size_t n = 0;
    pthread_mutex_lock(&p->lock);
    for (struct held *h = p->helds; h; h = h->next)
        n++;
    pthread_mutex_unlock(&p->lock);
    return n;
}

/* A record of several steps may take longer than a worker may go without progress, its command being watched by its own clock. So while its steps move at all, a byte
   of it counts as done at each beat. */
static uint64_t bytes_told(struct held *h)
{
    if (!h->chain)
        return h->bytes_done;
    uint64_t pulse = chain_pulse(h->chain);
    if (h->bytes_done > h->told_bytes)
        h->told_bytes = h->bytes_done;
    else if (h->open && pulse != h->told_pulse)
        h->told_bytes++;
    h->told_pulse = pulse;
    return h->told_bytes;
}

size_t pipeline_held(struct pipeline *p, struct pipeline_progress *out, size_t most)
{
    size_t n = 0;
    pthread_mutex_lock(&p->lock);
    for (struct held *h = p->helds; h && n < most; h = h->next)
        out[n++] = (struct pipeline_progress){
            .job = h->job->id,
            .epoch = h->epoch,
            .next_seq = h->acked,
            .read_to = h->read_to,
            .records_done = h->records_done,
            .bytes_done = bytes_told(h),
        };
    pthread_mutex_unlock(&p->lock);
    return n;
}

uint64_t pipeline_records_done(struct pipeline *p)
{
    pthread_mutex_lock(&p->lock);
    uint64_t n = p->records_done;
    pthread_mutex_unlock(&p->lock);
    return n;
}

uint64_t pipeline_bytes(struct pipeline *p)
{
    return budget_bytes(&p->budget);
}

void pipeline_loaded(struct pipeline *p, uint64_t *model_key, char *numerics, size_t size)
{
    pthread_mutex_lock(&p->lock);
    *model_key = p->loaded && !p->loaded->shell ? p->loaded->key : 0;
    snprintf(numerics, size, "%s", p->loaded ? p->loaded->info->numerics : "");
    pthread_mutex_unlock(&p->lock);
}

int pipeline_idle(struct pipeline *p)
{
    pthread_mutex_lock(&p->lock);
    int idle = !p->reading && p->helds == NULL;
    pthread_mutex_unlock(&p->lock);
    return idle && budget_records(&p->budget) == 0 && !group_busy(p->group);
}

struct group *pipeline_group(struct pipeline *p)
{
    return p->group;
}
