/* The lanes: each thread takes the next micro-batch, runs it through the model with a context of its own, and encodes the rows.

   A micro-batch is what lies at the front of the queue, of one job, up to the job's budget of records and tokens; when less is there, less goes.
   What shares a micro-batch cannot show in a result (DESIGN, "same bytes"). The lane's slot of the black box names the records from before the
   model sees them until after. */
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "workers/engine/cpuinfo.h"
#include "workers/engine/slow.h"
#include "workers/group/group.h"
#include "workers/pipeline/encode.h"
#include "workers/pipeline/stages.h"
#include "workers/pipeline/testhook.h"

struct lane {
    struct pipeline *p;
    uint32_t slot;
    struct loaded *loaded;      /* counted */
    struct model_ctx *ctx;
    uint32_t most_tokens, most_records;
    struct item **items;
    uint32_t *lengths;
    struct blackbox_record *named;
    char **hooks;
    int32_t *ids;
    uint8_t *types;
    const struct array **arrays; /* of each item */
    uint8_t *good;               /* of each item: it has its row */
    struct buf scratch;
};

struct fill {                   /* a micro-batch while the queue is asked for it */
    uint32_t tokens, records;
    int full;
};

/* Of a micro-batch. A model whose layers are held by turns wants them large, and has said how large its memory allows. */
static uint32_t most_records(const struct held *h)
{
    const struct model_info *i = h->loaded->info;
    return i->batch_records ? i->batch_records : h->job->micro_batch;
}

static uint32_t most_tokens(const struct held *h)
{
    const struct model_info *i = h->loaded->info;
    return i->batch_tokens ? i->batch_tokens : h->job->micro_batch_tokens;
}

static int fits(void *arg, const struct node *first_node, const struct node *next_node)
{
    struct fill *f = arg;
    const struct item *first = (const struct item *)first_node, *next = (const struct item *)next_node;
    const struct job *j = first->held->job;
    uint32_t tokens = most_tokens(first->held);
    if (!f->records) {
        f->records = 1;
        f->tokens = first->tokens;
    }
    if (next->held->job != j || next->held->loaded != first->held->loaded || next->held->probe || first->held->probe ||
        f->records >= most_records(first->held) || next->tokens > tokens || f->tokens > tokens - next->tokens) {
        f->full = 1;
        return 0;
    }
    f->records++;
    f->tokens += next->tokens;
    return 1;
}

static void empty(struct lane *l)
{
    if (l->ctx)
        model_ctx_free(l->ctx);
    loaded_unref(l->loaded);
    mem_free(l->items);
    mem_free(l->lengths);
    mem_free(l->named);
    mem_free(l->hooks);
    mem_free(l->ids);
    mem_free(l->types);
    mem_free(l->arrays);
    mem_free(l->good);
    l->arrays = NULL;
    l->good = NULL;
    l->loaded = NULL;
    l->ctx = NULL;
    l->items = NULL;
    l->lengths = NULL;
    l->named = NULL;
    l->hooks = NULL;
    l->ids = NULL;
    l->types = NULL;
}

/* Memory for micro-batches of this job: planned once, nothing is allocated for each. */
static void make_ready(struct lane *l, const struct held *h)
{
    uint32_t tokens = most_tokens(h), n = most_records(h);
    tokens = tokens > h->loaded->info->max_tokens ? tokens : h->loaded->info->max_tokens;
    if (l->loaded == h->loaded && l->most_tokens >= tokens && l->most_records >= n)
        return;
    empty(l);
    struct err e;
    l->loaded = loaded_ref(h->loaded);
    l->most_tokens = tokens;
    l->most_records = n;
    l->items = mem_array(n, sizeof *l->items);
    l->lengths = mem_array(n, sizeof *l->lengths);
    l->named = mem_array(n, sizeof *l->named);
    l->hooks = mem_array(n, sizeof *l->hooks);
    l->ids = mem_array(tokens, sizeof *l->ids);
    l->types = mem_array(tokens, sizeof *l->types);
    l->arrays = mem_array(n, sizeof *l->arrays);
    l->good = mem_array(n, sizeof *l->good);
    if (!l->items || !l->lengths || !l->named || !l->hooks || !l->ids || !l->types || !l->arrays || !l->good ||
        (!l->loaded->shell && model_ctx_new(l->loaded->model, tokens, n, &l->ctx, &e) != ST_OK))
        pipeline_out_of_memory(l->p, "a lane");
}

/* Lays the chain out in the lane's arrays, without those whose lease has been closed meanwhile. Returns how many are left. */
static uint32_t lay_out(struct lane *l, struct node *chain)
{
    struct pipeline *p = l->p;
    struct item *closed = NULL;
    uint32_t n = 0, tokens = 0;
    pthread_mutex_lock(&p->lock);
    for (struct node *next; chain; chain = next) {
        next = chain->next;
        struct item *i = (struct item *)chain;
        if (i->held->closed) {
            i->later = closed;
            closed = i;
            continue;
        }
        l->items[n] = i;
        l->lengths[n] = i->tokens;
        l->named[n] = (struct blackbox_record){.job = i->held->job->id, .epoch = i->held->epoch, .record = i->record};
        l->hooks[n] = i->hook;
        l->arrays[n] = i->arrays;
        if (i->ids)
            memcpy(l->ids + tokens, i->ids, i->tokens * sizeof *l->ids);
        if (i->types)
            memcpy(l->types + tokens, i->types, i->tokens * sizeof *l->types);
        else
            memset(l->types + tokens, 0, i->tokens * sizeof *l->types);
        tokens += i->tokens;
        n++;
    }
    pthread_mutex_unlock(&p->lock);
    for (struct item *later; closed; closed = later) {
        later = closed->later;
        pipeline_discard(p, closed);
    }
    return n;
}

void pipeline_finish(struct pipeline *p, const struct loaded *l, struct item *const *items, uint32_t n, const struct model_result *r, struct buf *scratch)
{
    struct item *rows = NULL;
    struct node **tail = NULL;
    const struct model_tensor *first = &r->tensor[0], *second = r->count > 1 ? &r->tensor[1] : NULL;
    size_t at = 0; /* row of the outputs */
    for (uint32_t k = 0; k < n; k++) {
        struct item *i = items[k];
        i->node.next = NULL;
        mem_free(i->ids);
        mem_free(i->types);
        i->ids = NULL;
        i->types = NULL;
        struct outcome o = {.task = l->info->kind, .loaded = l, .rows = first->rows ? first->rows[k] : 1, .width = first->width,
                            .f32 = first->f32 + at * first->width, .i32 = second ? second->i32 + at * second->width : NULL};
        at += o.rows;
        if (r->errors && r->errors[k]) {
            pipeline_failed(p, i, RECORD_FAILED, r->errors[k]);
            continue;
        }
        switch (encode_item(i->held->job, i, &o, scratch)) {
        case 1:
            if (tail)
                *tail = &i->node;
            else
                rows = i;
            tail = &i->node.next;
            break;
        case 0:
            pipeline_failed(p, i, RECORD_FAILED, "the model's result holds a number that is not finite");
            break;
        default:
            pipeline_out_of_memory(p, "a row");
        }
    }
    if (rows)
        pipeline_rows(p, rows);
}

/* What a model of arrays gives for one record: encoded at once, as the arrays do not stay. */
static void take(void *arg, uint32_t record, const struct array *out, uint32_t n_out, const char *error)
{
    struct lane *l = arg;
    struct item *i = l->items[record];
    struct outcome o = {.task = l->loaded->info->kind, .loaded = l->loaded, .rows = 1, .arrays = out, .n_arrays = n_out};
    if (!error && o.task != TASK_OUTPUTS) {
        o.f32 = out[0].data;
        o.width = (uint32_t)out[0].dims[0];
    }
    mem_free(i->arrays);
    i->arrays = NULL;
    l->good[record] = 0;
    if (error) {
        pipeline_failed(l->p, i, RECORD_FAILED, error);
        return;
    }
    switch (encode_item(i->held->job, i, &o, &l->scratch)) {
    case 1:
        l->good[record] = 1;
        break;
    case 0:
        pipeline_failed(l->p, i, RECORD_FAILED, "the model's result holds a number that is not finite");
        break;
    default:
        pipeline_out_of_memory(l->p, "a row");
    }
}

static void run_arrays(struct lane *l, uint32_t n)
{
    struct item *rows = NULL;
    struct node **tail = NULL;
    struct err e;
    if (model_infer_arrays(l->loaded->model, l->ctx, n, l->arrays, take, l, &e) != ST_OK)
        pipeline_out_of_memory(l->p, "a micro-batch");
    blackbox_leave(l->p->o.box, l->slot);
    for (uint32_t k = 0; k < n; k++) {
        if (!l->good[k])
            continue; /* it is its lease's now */
        struct item *i = l->items[k];
        i->node.next = NULL;
        if (tail)
            *tail = &i->node;
        else
            rows = i;
        tail = &i->node.next;
    }
    if (rows)
        pipeline_rows(l->p, rows);
}

void *infer_run(void *arg)
{
    struct stage *stage = arg;
    struct lane l = {.p = stage->pipeline, .slot = stage->slot};
    struct pipeline *p = l.p;
    unsigned fp = fp_enter(); /* the same rounding in every lane, whatever the thread began with */
    for (;;) {
        struct fill f = {0};
        size_t taken;
        struct node *chain = queue_take(&p->to_infer, SIZE_MAX, fits, &f, &taken);
        if (!chain)
            break;
        pipeline_begun(p, chain, f.full);
        make_ready(&l, ((struct item *)chain)->held);
        uint32_t n = lay_out(&l, chain);
        if (!n)
            continue;
        blackbox_enter(p->o.box, l.slot, l.named, n);
        if (fault_point("worker.infer") || testhook_run(l.hooks, n))
            pipeline_out_of_memory(p, "a micro-batch");
        if (l.loaded->info->arrays) {
            run_arrays(&l, n);
            continue;
        }
        const struct model_batch b = {.n = n, .lengths = l.lengths, .ids = l.ids, .types = l.types};
        if (l.loaded->shell) { /* its gang runs it */
            blackbox_leave(p->o.box, l.slot);
            group_send(p->group, l.loaded, &b, l.items, l.named);
            continue;
        }
        struct slow slow = slow_begin();
        const struct model_result *r = model_infer(l.loaded->model, l.ctx, &b);
        slow_end(&slow);
        if (!r)
            pipeline_out_of_memory(p, "a micro-batch");
        blackbox_leave(p->o.box, l.slot);
        pipeline_finish(p, l.loaded, l.items, n, r, &l.scratch);
    }
    fp_leave(fp);
    empty(&l);
    buf_release(&l.scratch);
    return NULL;
}
