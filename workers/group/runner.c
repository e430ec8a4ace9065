/* The threads that take micro-batches through this member's part of the model: each has memory of its own for it, planned once, and names in its slot of the black box
   the records that it works on. */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "workers/engine/cpuinfo.h"
#include "workers/engine/slow.h"
#include "workers/group/inside.h"
#include "workers/pipeline/testhook.h"

#define MOST_WAITING 2048 /* more than the credits of any head */

struct running { /* one thread */
    struct runner *r;
    uint32_t slot;
    struct part *part; /* counted */
    struct model_ctx *ctx;
    struct blackbox_record *named;
};

static void let_go(struct running *t)
{
    if (t->ctx)
        model_ctx_free(t->ctx);
    mem_free(t->named);
    part_unref(t->part);
    t->ctx = NULL;
    t->named = NULL;
    t->part = NULL;
}

static void make_ready(struct running *t, struct part *x)
{
    struct err e;
    if (t->part == x)
        return;
    let_go(t);
    t->part = part_ref(x);
    t->named = mem_array(x->bounds.items, sizeof *t->named);
    if (!t->named || model_ctx_new(x->loaded->model, x->bounds.tokens, x->bounds.items, &t->ctx, &e) != ST_OK)
        pipeline_out_of_memory(t->r->g->p, "a stage");
}

/* The next micro-batch; NULL: all is over. A thread whose part is no longer this member's lets go of it while it waits. */
static struct work *next_work(struct running *t)
{
    struct runner *r = t->r;
    pthread_mutex_lock(&r->lock);
    while (!r->head && !r->stopping) {
        if (t->part && t->part != r->current) {
            pthread_mutex_unlock(&r->lock);
            let_go(t);
            pthread_mutex_lock(&r->lock);
            continue;
        }
        pthread_cond_wait(&r->filled, &r->lock);
    }
    struct work *w = r->stopping ? NULL : r->head;
    if (w) {
        r->head = w->next;
        if (!r->head)
            r->tail = &r->head;
        r->waiting--;
        r->running++;
    }
    pthread_mutex_unlock(&r->lock);
    return w;
}

/* Where it goes next; takes over `out`. With the lock held. */
static void pass_on(struct group *g, struct work *w, void *out, size_t out_len, const struct model_result *result)
{
    Ebb__MicroBatch *m = w->m->micro_batch;
    struct err e;
    if (!result) {
        struct payload *p = payload_new(out, out_len);
        if (!p)
            pipeline_out_of_memory(g->p, "activations");
        m->stage++;
        group_pass(g, g->self + 1, EBB__ENVELOPE__BODY_MICRO_BATCH, m, p);
        return;
    }
    struct message_room room;
    Ebb__StageResult r = EBB__STAGE_RESULT__INIT;
    char **errors = mem_array(w->batch.n, sizeof *errors);
    void *bytes;
    size_t len;
    if (!errors || message_of_result(result, w->batch.n, &room, errors, &r, &bytes, &len, &e) != ST_OK)
        pipeline_out_of_memory(g->p, "a result");
    struct payload *p = payload_new(bytes, len);
    if (!p)
        pipeline_out_of_memory(g->p, "a result");
    r.gang = m->gang;
    r.cut = m->cut;
    r.id = m->id;
    r.pass = m->pass;
    group_pass(g, g->head, EBB__ENVELOPE__BODY_STAGE_RESULT, &r, p);
    mem_free(errors);
}

static int is_current(struct group *g, const struct work *w)
{
    return g->gang && w->m->micro_batch->gang == g->gang && w->m->micro_batch->cut == g->cut && g->part == w->part;
}

/* A payload's bytes as the engine wants them: floats where floats may lie. *copy is the caller's to free. */
static const void *aligned(const struct work *w, void **copy, struct pipeline *p)
{
    const void *in = payload_data(w->in);
    size_t len = payload_len(w->in);
    *copy = NULL;
    if ((uintptr_t)in % sizeof(float) == 0)
        return in;
    if (!(*copy = mem_aligned(len ? len : 1)))
        pipeline_out_of_memory(p, "activations");
    memcpy(*copy, in, len);
    return *copy;
}

/* A member that others slow down has other costs than were measured: the scheduler divides the model anew if that is worth it. Where they are not kept they would have to
   be measured again, beside the work. */
static void look_at_drag(struct group *g, uint64_t took_ns, uint64_t cpu_ns)
{
    if (!drag_ran(&g->drag, took_ns, cpu_ns, clock_ms()))
        return;
    log_info("gang %" PRIx64 " cut %u: a micro-batch takes %.1f times its processor time here%s", g->gang, g->cut, drag_factor(&g->drag),
             g->p->o.pack_dir ? "" : "; without a folder for packed weights its costs are not known, and the division stays as it is");
    if (g->p->o.pack_dir)
        group_wish(g, g->job->id, NULL, 0);
}

static void run_one(struct running *t, struct work *w)
{
    struct group *g = t->r->g;
    struct pipeline *p = g->p;
    const Ebb__MicroBatch *m = w->m->micro_batch;
    const struct model_batch *b = &w->batch;
    pthread_mutex_lock(&p->lock);
    int current = is_current(g, w);
    pthread_mutex_unlock(&p->lock);
    if (!current)
        return;
    make_ready(t, w->part);
    for (uint32_t i = 0; i < b->n; i++)
        t->named[i] = (struct blackbox_record){
            .job = w->part->job->id, .epoch = m->records[i]->epoch, .record = {m->records[i]->record->begin, m->records[i]->record->end}};
    blackbox_enter(p->o.box, t->slot, t->named, b->n);
    uint32_t tokens = (uint32_t)(m->ids.len / sizeof *b->ids);
    if (fault_point("worker.stage") || testhook_stage(b->ids, tokens))
        pipeline_out_of_memory(p, "a micro-batch");
    void *copy, *kept = NULL;
    const void *in = aligned(w, &copy, p), *out = NULL;
    size_t out_len = 0;
    const struct model_result *result = NULL;
    struct err e;
    uint64_t began_ns = clock_ns(), cpu_ns = slow_cpu_ns();
    struct slow s = slow_begin();
    enum status st = model_stage(w->part->loaded->model, t->ctx, b, in, payload_len(w->in), &out, &out_len, &result, &e);
    slow_end(&s);
    cpu_ns = (uint64_t)((double)(slow_cpu_ns() - cpu_ns) * slow_factor());
    uint64_t took_ns = clock_ns() - began_ns;
    mem_free(copy);
    if (st == ST_NOMEM || (st == ST_OK && !result && !(kept = mem_alloc(out_len ? out_len : 1))))
        pipeline_out_of_memory(p, "a micro-batch");
    blackbox_leave(p->o.box, t->slot);
    if (kept)
        memcpy(kept, out, out_len); /* `out` is written over by the next one, which need not wait until this one has left */
    pthread_mutex_lock(&p->lock);
    if (!is_current(g, w)) {
        mem_free(kept);
    } else if (st != ST_OK) {
        group_fault(g, 0, e.text);
    } else if (!result == (g->self + 1 == g->count)) {
        mem_free(kept);
        group_fault(g, 0, "the parts of the model are not those that its members have");
    } else {
        pass_on(g, w, kept, out_len, result);
        look_at_drag(g, took_ns, cpu_ns);
    }
    pthread_mutex_unlock(&p->lock);
}

static void *runner_run(void *arg)
{
    struct stage *stage = arg;
    struct running t = {.r = &stage->pipeline->group->runner, .slot = stage->slot};
    unsigned fp = fp_enter();
    for (struct work *w; (w = next_work(&t));) {
        run_one(&t, w);
        work_free(w);
        pthread_mutex_lock(&t.r->lock);
        t.r->running--;
        pthread_mutex_unlock(&t.r->lock);
        pthread_mutex_lock(&stage->pipeline->lock);
        group_ready(t.r->g); /* that was of an older cut, perhaps, and the last of it */
        pthread_mutex_unlock(&stage->pipeline->lock);
    }
    fp_leave(fp);
    let_go(&t);
    return NULL;
}

enum status runner_start(struct runner *r, struct group *g, uint32_t lanes, uint32_t first_slot, struct err *e)
{
    r->g = g;
    if (!r->threads && !(r->threads = mem_array(lanes, sizeof *r->threads)))
        return err_nomem(e, "threads");
    for (; r->count < lanes; r->count++)
        TRY(stage_start(g->p, &r->threads[r->count], runner_run, first_slot + r->count, "stage", (int)r->count, e));
    return ST_OK;
}

void runner_end(struct runner *r)
{
    pthread_mutex_lock(&r->lock);
    r->stopping = 1;
    pthread_cond_broadcast(&r->filled);
    pthread_mutex_unlock(&r->lock);
    for (uint32_t i = 0; i < r->count; i++) /* those that were started */
        stage_join(&r->threads[i]);
    mem_free(r->threads);
    runner_part(r, NULL);
}

void runner_put(struct runner *r, struct work *w)
{
    pthread_mutex_lock(&r->lock);
    int full = r->waiting >= MOST_WAITING;
    if (!full) {
        *r->tail = w;
        r->tail = &w->next;
        r->waiting++;
        pthread_cond_signal(&r->filled);
    }
    pthread_mutex_unlock(&r->lock);
    if (!full)
        return;
    log_warn("a micro-batch is dropped: no head has so many on their way");
    work_free(w);
}

void runner_part(struct runner *r, const struct part *current)
{
    struct work *dropped = NULL;
    pthread_mutex_lock(&r->lock);
    r->current = current;
    if (r->head && r->head->part != current) {
        dropped = r->head;
        r->head = NULL;
        r->tail = &r->head;
        r->waiting = 0;
    }
    pthread_cond_broadcast(&r->filled);
    pthread_mutex_unlock(&r->lock);
    for (struct work *next; dropped; dropped = next) {
        next = dropped->next;
        work_free(dropped);
    }
}

int runner_busy(struct runner *r)
{
    pthread_mutex_lock(&r->lock);
    int busy = r->running || r->head;
    pthread_mutex_unlock(&r->lock);
    return busy;
}
