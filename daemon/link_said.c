/* A worker's messages are handled in the order in which it sent them. A commit that names a part waits until a thread has looked at the
   part, and what comes behind it waits too; heartbeats do not. */
#include "daemon/link_inside.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/mem.h"
#include "daemon/auth.h"
#include "daemon/provider.h"
#include "daemon/words.h"
#include "storage/part.h"

#define PART_WAIT_MS 5000    /* for a network file system to show a part */

struct errand { /* of a thread: parts to look at */
    uv_work_t work;
    struct link *l;
    struct letter *letters;
    int patient; /* second look, with patience */
};

void link_take_text(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%s", from ? from : "");
    words_tidy(to);
}

/* What two workers must have in common to share any job at all: "ebb1-x86" of "ebb1-x86-bf16-dp". What follows depends on the model that is
   loaded, and is compared when it is. */
static size_t class_length(const char *numerics)
{
    const char *dash = strchr(numerics, '-');
    dash = dash ? strchr(dash + 1, '-') : NULL;
    return dash ? (size_t)(dash - numerics) : strlen(numerics);
}

static void on_hello(struct link *l, struct worker *w, const Ebb__Hello *h)
{
    struct daemon *d = l->d;
    struct sched_held *held = mem_array(h->n_held, sizeof *held);
    if (!held)
        link_no_memory(l);
    for (size_t i = 0; i < h->n_held; i++)
        held[i] = (struct sched_held){h->held[i]->job, h->held[i]->epoch, h->held[i]->next_seq};
    int again = w->joined;
    link_take_text(w->name, sizeof w->name, h->name);
    link_take_text(w->host, sizeof w->host, h->host);
    link_take_text(w->program, sizeof w->program, h->program);
    link_take_text(w->numerics, sizeof w->numerics, h->numerics);
    w->pid = h->pid;
    w->lanes = h->lanes;
    w->memory_bytes = h->memory_bytes;
    w->model_key = h->model_key;
    w->provider = h->provider && h->provider < PROVIDERS ? h->provider : provider_of(d, w->number);
    w->ask_hello = 0;
    w->told_count = 0; /* it may be another process by the same number */
    if (!w->since_ms)
        w->since_ms = clock_ms();
    link_send_welcome(l, &w->peer);
    struct sched_event ev = {.kind = SCHED_WORKER_JOINED, .worker = w->number};
    ev.u.joined.host = XXH64(w->host, strlen(w->host), 0) | 1;
    ev.u.joined.memory_bytes = h->memory_bytes;
    ev.u.joined.lanes = h->lanes;
    ev.u.joined.provider = w->provider;
    ev.u.joined.numerics = *w->numerics ? XXH32(w->numerics, class_length(w->numerics), 0) : 0;
    ev.u.joined.model_key = h->model_key;
    ev.u.joined.reach = link_stage_hello(w, h);
    ev.u.joined.held = held;
    ev.u.joined.held_count = h->n_held;
    w->joined = 1;
    const char *key = d->auth ? auth_name(d->auth, &w->peer) : "";
    log_info("worker %s: %s from %s (pid %u%s%s), %u lanes, holds %zu leases", w->name, again ? "hello again" : "joined", w->host, w->pid, *key ? ", key " : "", key,
             w->lanes, h->n_held);
    loop_tell(d, &ev);
    provider_hello(d, w);
    mem_free(held);
}

enum other_model link_other_model(struct link *l, const struct worker *w, uint64_t model_key, const ProtobufCBinaryData *digest, const char *numerics, char *text, size_t size)
{
    size_t i = 0;
    for (struct job *j; (j = map_next(&l->d->jobs->by_id, &i));)
        if (j->model_key == model_key && (digest->len != sizeof j->model.bytes || memcmp(digest->data, j->model.bytes, sizeof j->model.bytes))) {
            snprintf(text, size, "'%s' is not the model that was submitted: worker %s reads other bytes", j->spec.model ? j->spec.model : j->model_name, w->name);
            return 1;
        }
    const struct job *other = numerics && *numerics ? job_of_other_numerics(l->d, model_key, numerics) : NULL;
    if (!other)
        return MODEL_SAME;
    snprintf(text, size, "worker %s computes it as '%s', and job %" PRIu64 " began with '%s': its rows would differ in their last bits", w->name, numerics, other->id,
             other->numerics);
    return MODEL_OTHER_NUMERICS;
}

void link_no_model(struct link *l, const struct worker *w, uint64_t job, uint64_t model_key, const char *text, int machine)
{
    struct sched_event ev = {.kind = SCHED_MODEL_FAILED, .worker = w->number, .job = job};
    ev.u.model.model_key = model_key;
    ev.u.model.text = text;
    ev.u.model.machine = machine && w->provider != PROVIDER_LOCAL;
    loop_tell(l->d, &ev);
}

static void on_model_ready(struct link *l, struct worker *w, const Ebb__ModelReady *m)
{
    struct daemon *d = l->d;
    struct sched_event ev = {.kind = SCHED_MODEL_READY, .worker = w->number};
    char text[400];
    enum other_model other = link_other_model(l, w, m->model_key, &m->digest, m->numerics, text, sizeof text);
    if (other != MODEL_SAME) {
        link_no_model(l, w, 0, m->model_key, text, other == MODEL_OTHER_NUMERICS);
        return;
    }
    w->model_key = m->model_key;
    w->dims = m->dims;
    if (m->numerics && *m->numerics)
        link_take_text(w->numerics, sizeof w->numerics, m->numerics);
    job_model_ready(d, m->model_key, m->dims, w->numerics);
    log_info("worker %s: model %" PRIx64 " ready after %" PRIu64 " ms, %u floats a row", w->name, m->model_key, m->load_ms, m->dims);
    ev.u.model.model_key = m->model_key;
    ev.u.model.load_ms = m->load_ms;
    loop_tell(d, &ev);
}

static void on_model_failed(struct link *l, struct worker *w, const Ebb__ModelFailed *m)
{
    char said[320], text[400];
    link_take_text(said, sizeof said, m->text);
    log_warn("worker %s: model %" PRIx64 " failed: %s", w->name, m->model_key, said);
    if (w->provider == PROVIDER_LOCAL)
        snprintf(text, sizeof text, "%s", said);
    else
        snprintf(text, sizeof text, "worker %s: %s", w->name, said); /* it may be that machine's fault */
    link_no_model(l, w, m->job, m->model_key, text, m->machine);
}

static void on_job_fault(struct link *l, struct worker *w, const Ebb__JobFault *m)
{
    char text[240];
    link_take_text(text, sizeof text, m->text);
    log_warn("worker %s: job %" PRIu64 " cannot go on: %s", w->name, m->job, text);
    struct sched_job_view v;
    if (!l->d->core || !sched_job_view(l->d->core, m->job, &v) || v.row->state == JOB_HELD)
        return; /* another worker has said so */
    struct sched_event ev = {.kind = SCHED_JOB_CONTROL, .job = m->job};
    ev.u.control.verb = VERB_HOLD;
    ev.u.control.text = text;
    ev.u.control.wall_ms = clock_wall_ms();
    loop_tell(l->d, &ev);
}

void link_beat(struct link *l, struct worker *w, const Ebb__Beat *b)
{
    struct sched_progress *p = mem_array(b->n_leases, sizeof *p);
    if (!p)
        link_no_memory(l);
    for (size_t i = 0; i < b->n_leases; i++)
        p[i] = (struct sched_progress){b->leases[i]->epoch, b->leases[i]->read_to, b->leases[i]->records_done, b->leases[i]->bytes_done};
    w->rss_bytes = b->rss_bytes;
    w->records_done = b->records_done;
    struct sched_event ev = {.kind = SCHED_WORKER_BEAT, .worker = w->number};
    ev.u.beat.leases = p;
    ev.u.beat.count = b->n_leases;
    loop_tell(l->d, &ev);
    mem_free(p);
}

/* The sections of a part lie inside of it, and one without a part has none. */
static const char *commit_fault(const Ebb__Commit *c)
{
    for (size_t i = 0; i < c->n_done; i++) {
        const Ebb__Extent *x = c->done[i];
        uint64_t end = x->rows_at;
        if (__builtin_add_overflow(end, x->rows_bytes, &end) || __builtin_add_overflow(end, x->aux_bytes, &end) ||
            __builtin_add_overflow(end, x->errors_bytes, &end) || (x->rows_bytes + x->aux_bytes + x->errors_bytes && end > c->part_bytes))
            return "an extent lies outside of its part";
        if (!c->part_bytes && (x->rows || x->errors))
            return "rows without a part";
    }
    return NULL;
}

static void on_commit(struct link *l, struct worker *w, const struct letter *x)
{
    const Ebb__Commit *c = x->m->commit;
    struct extent *done = mem_array(c->n_done, sizeof *done);
    struct sched_returned *returned = mem_array(c->n_returned, sizeof *returned);
    if (!done || !returned)
        link_no_memory(l);
    for (size_t i = 0; i < c->n_done; i++) {
        const Ebb__Extent *from = c->done[i];
        struct extent *to = &done[i];
        to->span = (struct span){from->span->begin, from->span->end};
        to->part_extents = (uint32_t)c->n_done;
        to->rows_at = from->rows_at;
        to->rows_bytes = from->rows_bytes;
        to->aux_bytes = from->aux_bytes;
        to->errors_bytes = from->errors_bytes;
        to->records = from->records;
        to->rows = from->rows;
        to->errors = from->errors;
        to->lines = from->lines;
        to->bytes = from->bytes;
    }
    for (size_t i = 0; i < c->n_returned; i++)
        returned[i] = (struct sched_returned){{c->returned[i]->span->begin, c->returned[i]->span->end}, c->returned[i]->transient != 0};
    struct sched_event ev = {.kind = SCHED_COMMIT, .job = c->job, .worker = w->number, .epoch = c->epoch};
    ev.u.commit.seq = c->seq;
    ev.u.commit.done = done;
    ev.u.commit.done_count = c->n_done;
    ev.u.commit.returned = returned;
    ev.u.commit.returned_count = c->n_returned;
    ev.u.commit.part_fault = x->fault ? x->fault : commit_fault(c);
    ev.u.commit.wall_ms = clock_wall_ms();
    if (ev.u.commit.part_fault)
        log_warn("worker %s: commit %" PRIx64 "-%" PRIu64 " of job %" PRIu64 " is refused: %s", w->name, c->epoch, c->seq, c->job, ev.u.commit.part_fault);
    l->d->commit_ns = x->came_ns;
    loop_tell(l->d, &ev);
    l->d->commit_ns = 0;
    mem_free(returned);
    mem_free(done);
}

static void handle(struct link *l, struct worker *w, const struct letter *x)
{
    const Ebb__Envelope *m = x->m;
    struct sched_event ev = {.worker = w->number};
    if (!l->d->core)
        return; /* it will say hello again, and what was not acknowledged comes again */
    switch (m->body_case) {
    case EBB__ENVELOPE__BODY_HELLO:
        on_hello(l, w, m->hello);
        return;
    case EBB__ENVELOPE__BODY_COMMIT:
        on_commit(l, w, x);
        return;
    case EBB__ENVELOPE__BODY_CUT_ANSWER:
        ev.kind = SCHED_CUT_ANSWERED;
        ev.epoch = m->cut_answer->epoch;
        ev.u.cut.at = m->cut_answer->at;
        loop_tell(l->d, &ev);
        return;
    case EBB__ENVELOPE__BODY_MODEL_READY:
        on_model_ready(l, w, m->model_ready);
        return;
    case EBB__ENVELOPE__BODY_MODEL_FAILED:
        on_model_failed(l, w, m->model_failed);
        return;
    case EBB__ENVELOPE__BODY_JOB_FAULT:
        on_job_fault(l, w, m->job_fault);
        return;
    case EBB__ENVELOPE__BODY_PROFILED:
        link_profiled(l, w, m->profiled);
        return;
    case EBB__ENVELOPE__BODY_STAGE_READY:
        link_stage_ready(l, w, m->stage_ready);
        return;
    case EBB__ENVELOPE__BODY_STAGE_FAULT:
        link_stage_fault(l, w, m->stage_fault);
        return;
    case EBB__ENVELOPE__BODY_BYE: {
        char reason[160];
        link_take_text(reason, sizeof reason, m->bye->reason);
        log_info("worker %s: goodbye%s%s", w->name, *reason ? ": " : "", reason);
        provider_bye(l->d, w->number);
        link_ended(l, w->number, WORKER_DRAINED, NULL, 0);
        return;
    }
    default:
        BUG("a message of kind %d was let in", (int)m->body_case);
    }
}

/* Messages whose turn has come. The worker may be gone behind this. */
void link_pump(struct link *l, struct worker *w)
{
    while (w->first && !w->first->waiting && !w->ended) {
        struct letter *x = w->first;
        w->first = x->next;
        if (!w->first)
            w->last = NULL;
        w->verifying++; /* it must not be freed meanwhile */
        handle(l, w, x);
        w->verifying--;
        link_letter_free(x);
    }
    link_free_if_done(w);
}

/* Looking at parts ---------------------------------------------------------------------------------------------------------------- */

static void run_errand(uv_work_t *work)
{
    struct errand *t = work->data;
    for (struct letter *x = t->letters; x; x = x->verify_next) {
        const Ebb__Commit *c = x->m->commit;
        struct err e = {0};
        x->found = part_verify(x->job->parts_dir, c->job, c->epoch, c->seq, c->part_bytes, t->patient ? PART_WAIT_MS : 0, &e);
        if (x->found != ST_OK && !(x->fault = mem_strdup(e.text)))
            x->found = ST_NOMEM;
    }
}

static void start_errand(struct link *l, struct letter *letters, int patient);

static void errand_done(uv_work_t *work, int status)
{
    (void)status;
    struct errand *t = work->data;
    struct link *l = t->l;
    l->errands--;
    if (!t->patient)
        l->quick = 0;
    for (struct letter *x = t->letters, *next; x; x = next) {
        next = x->verify_next;
        x->verify_next = NULL;
        if (x->found == ST_NOMEM)
            link_no_memory(l);
        if (x->found != ST_OK && !t->patient) {
            mem_free(x->fault);
            x->fault = NULL;
            start_errand(l, x, 1);
            continue;
        }
        struct worker *w = x->worker;
        x->waiting = 0;
        w->verifying--;
        link_pump(l, w);
    }
    mem_free(t);
}

static void start_errand(struct link *l, struct letter *letters, int patient)
{
    struct errand *t = mem_zalloc(sizeof *t);
    if (!t)
        link_no_memory(l);
    t->work.data = t;
    t->l = l;
    t->letters = letters;
    t->patient = patient;
    l->errands++;
    uv_queue_work(&l->d->uv, &t->work, run_errand, errand_done);
}

void link_errands(struct link *l)
{
    if (l->quick || !l->verify_first)
        return;
    struct letter *letters = l->verify_first;
    l->verify_first = l->verify_last = NULL;
    l->quick = 1;
    start_errand(l, letters, 0);
}
