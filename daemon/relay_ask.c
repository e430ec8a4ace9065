/* What only the loop knows: which file a number stands for, and whose a lease is. A hand leaves its question in a list and goes on with others; the loop answers
   between two turns, with copies, and the task goes back to the hand. */
#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/job.h"
#include "daemon/job_steps.h"
#include "daemon/relay_inside.h"

void relay_ask(struct task *t)
{
    struct relay *r = t->peer->relay;
    pthread_mutex_lock(&r->lock);
    t->next = r->asks;
    r->asks = t;
    pthread_mutex_unlock(&r->lock);
    uv_async_send(&r->async);
}

static enum status copy_path(struct task *t, const char *path)
{
    t->path = mem_strdup(path);
    if (!t->path)
        relay_no_memory();
    return ST_OK;
}

static enum status say_source(struct task *t, uint64_t job, uint64_t index, struct err *e)
{
    struct daemon *d = t->peer->relay->d;
    const struct job *j = job_find(d, job);
    if (!j || !j->has_sources)
        return err_set(e, ST_USER, "job %" PRIu64 " is over, or was never here", job);
    if (index >= j->dataset.count)
        return err_set(e, ST_USER, "job %" PRIu64 " has %zu sources, none with the number %" PRIu64, job, j->dataset.count, index);
    t->source = j->dataset.sources[index];
    (void)copy_path(t, t->source.path);
    t->source.path = t->path;
    return ST_OK;
}

static enum status say_folder(struct task *t, uint64_t job, struct err *e)
{
    const struct job *j = job_find(t->peer->relay->d, job);
    return j && j->has_sources ? copy_path(t, j->parts_dir) : err_set(e, ST_USER, "job %" PRIu64 " is over, or was never here", job);
}

/* Only who holds the lease writes a part of it. This is no fence, which is the commit alone: a lease may be taken away behind this word, and the part that comes
   to be then is one that no row names, as when its worker had died a moment later; the sweep removes it. It keeps late and foreign writers from filling the disk. */
static enum status say_part(struct task *t, const Ebb__RelayPart *m, struct err *e)
{
    struct daemon *d = t->peer->relay->d;
    TRY(say_folder(t, m->job, e));
    if (!sched_leased(d->core, m->job, relay_number(t->peer), m->epoch))
        return err_set(e, ST_USER, "lease %" PRIx64 " of job %" PRIu64 " is not held by this worker", m->epoch, m->job);
    return ST_OK;
}

static enum status say_model(struct task *t, const uint8_t *digest, struct err *e)
{
    struct daemon *d = t->peer->relay->d;
    size_t i = 0;
    for (const struct job *j; (j = map_next(&d->jobs->by_id, &i));) {
        if (!j->has_sources)
            continue;
        if (j->spec.model && memcmp(j->model.bytes, digest, sizeof j->model.bytes) == 0)
            return copy_path(t, j->spec.model);
        const char *path = job_steps_path(j, digest);
        if (path)
            return copy_path(t, path);
    }
    return err_set(e, ST_USER, "no job of this pool uses such a model");
}

static void answer(struct task *t)
{
    const Ebb__Envelope *m = t->m;
    mem_free(t->path);
    t->path = NULL;
    t->again = 1;
    if (!t->peer->relay->d->core)
        t->st = err_set(&t->e, ST_AGAIN, "the daemon is reading its store; ask again");
    else if (m->body_case == EBB__ENVELOPE__BODY_RELAY_READ)
        t->st = say_source(t, m->relay_read->job, m->relay_read->source, &t->e);
    else if (m->body_case == EBB__ENVELOPE__BODY_RELAY_LOOK)
        t->st = say_source(t, m->relay_look->job, m->relay_look->source, &t->e);
    else if (m->body_case == EBB__ENVELOPE__BODY_RELAY_PART)
        t->st = say_part(t, m->relay_part, &t->e);
    else if (m->body_case == EBB__ENVELOPE__BODY_RELAY_MARK)
        t->st = say_folder(t, m->relay_mark->job, &t->e);
    else
        t->st = say_model(t, m->body_case == EBB__ENVELOPE__BODY_MODEL_ASK ? m->model_ask->digest.data : m->model_read->digest.data, &t->e);
}

void relay_asked(uv_async_t *async)
{
    struct relay *r = async->data;
    pthread_mutex_lock(&r->lock);
    struct task *t = r->asks, *next, *in_order = NULL;
    r->asks = NULL;
    pthread_mutex_unlock(&r->lock);
    for (; t; t = next) {
        next = t->next;
        t->next = in_order;
        in_order = t;
    }
    for (t = in_order; t; t = next) {
        next = t->next;
        answer(t);
        relay_hand_add(t->hand, t, 1);
    }
}
