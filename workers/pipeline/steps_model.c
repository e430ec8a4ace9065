/* A step that is a model: its records' texts (or arrays) are prepared and run by the lanes of steps.c, and what it gives becomes members of the records. */
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "storage/record.h"
#include "workers/pipeline/encode.h"
#include "workers/pipeline/steps_inside.h"
#include "workers/pipeline/testhook.h"
#include "workers/tensor_in/feed.h"
#include "workers/text/tokenizer.h"

/* Loading ---------------------------------------------------------------------------------------------------------------------------- */

/* One that this job has loaded for an earlier step already. */
static struct loaded *same_model(const struct job *j, const struct loaded *all, size_t at)
{
    const struct job *m = j->steps[at].model;
    for (size_t i = 0; i < at; i++) {
        const struct job *other = j->steps[i].model;
        if (other && memcmp(other->model_digest, m->model_digest, sizeof m->model_digest) == 0 && strcmp(other->spec.precision, m->spec.precision) == 0 &&
            strcmp(other->spec.task, m->spec.task) == 0 && other->spec.top_k == m->spec.top_k && other->npy == m->npy)
            return loaded_ref(all->parts[i]);
    }
    return NULL;
}

/* Words of numerics, each once: "ebb1-x86-f32+ebb1-x86-int8"; of commands alone "commands". */
static void add_numerics(struct model_info *whole, const char *numerics)
{
    size_t n = strlen(whole->numerics), more = strlen(numerics), between = n > 0;
    if (strstr(whole->numerics, numerics) || n + between + more >= sizeof whole->numerics)
        return;
    memcpy(whole->numerics + n, "+", between);
    memcpy(whole->numerics + n + between, numerics, more + 1);
}

static enum status open_all(const struct job *j, const struct model_opts *machine, struct remote *remote, struct loaded *all, struct err *e)
{
    struct model_info *whole = &all->whole;
    uint8_t (*digests)[16] = mem_array(j->step_count, sizeof *digests);
    if (!digests)
        return err_nomem(e, "a model");
    enum status st = ST_OK;
    for (; all->part_count < j->step_count && st == ST_OK; all->part_count++) {
        size_t i = all->part_count;
        if (!j->steps[i].model)
            continue;
        struct model_opts rest = *machine; /* memory that those before have left */
        rest.other_bytes += whole->weight_bytes;
        if (!(all->parts[i] = same_model(j, all, i)) && (st = loaded_open(j->steps[i].model, &rest, remote, &all->parts[i], e)) != ST_OK) {
            err_prefix(e, "%s", j->steps[i].words);
            break;
        }
        const struct model_info *info = all->parts[i]->info;
        memcpy(digests[i], info->digest.bytes, sizeof digests[i]);
        add_numerics(whole, info->numerics);
        whole->weight_bytes += info->weight_bytes;
        whole->dims = i + 1 == j->step_count ? info->dims : 0;
        if (i + 1 == j->step_count)
            whole->kind = info->kind;
    }
    XXH128_canonical_t digest;
    XXH128_canonicalFromHash(&digest, XXH3_128bits(digests, j->step_count * sizeof *digests));
    memcpy(whole->digest.bytes, digest.digest, sizeof whole->digest.bytes);
    mem_free(digests);
    if (!*whole->numerics)
        snprintf(whole->numerics, sizeof whole->numerics, "commands");
    return st;
}

enum status steps_open_models(const struct job *j, const struct model_opts *machine, struct remote *remote, struct loaded **out, struct err *e)
{
    uint64_t begun = clock_ms();
    struct loaded *all = mem_zalloc(sizeof *all);
    if (!all || !(all->parts = mem_array(j->step_count, sizeof *all->parts))) {
        mem_free(all);
        return err_nomem(e, "a model");
    }
    all->refs = 1;
    all->key = j->model_key;
    all->mask_id = -1;
    all->info = &all->whole;
    snprintf(all->whole.name, sizeof all->whole.name, "%zu steps", j->step_count);
    enum status st = open_all(j, machine, remote, all, e);
    if (st == ST_OK && *j->numerics && strcmp(j->numerics, all->whole.numerics) != 0)
        st = err_set(e, ST_USER, "this machine computes as '%s', and the job began with '%s': its rows would differ in their last bits; only machines like the first can go on "
                                 "with it", all->whole.numerics, j->numerics);
    if (st == ST_OK && memcmp(all->whole.digest.bytes, j->model_digest, sizeof j->model_digest) != 0)
        st = err_set(e, ST_CORRUPT, "the digests of the steps' models do not come to that of the job");
    if (st != ST_OK) {
        loaded_unref(all);
        return st;
    }
    all->load_ms = clock_ms() - begun;
    *out = all;
    return ST_OK;
}

/* A lane's memory -------------------------------------------------------------------------------------------------------------------- */

static void bench_clear(struct bench *b)
{
    if (b->ctx)
        model_ctx_free(b->ctx);
    decoder_close(b->decoder);
    feed_scratch_free(b->feed_scratch);
    feed_free(b->feed);
    if (b->tok)
        tok_scratch_free(b->tok);
    loaded_unref(b->loaded);
    *b = (struct bench){0};
}

static void free_room(struct step_lane *l)
{
    mem_free(l->units);
    mem_free(l->named);
    mem_free(l->lengths);
    mem_free(l->hooks);
    mem_free(l->arrays);
    mem_free(l->ids);
    mem_free(l->types);
    l->units = NULL;
    l->named = NULL;
    l->lengths = NULL;
    l->hooks = NULL;
    l->arrays = NULL;
    l->ids = NULL;
    l->types = NULL;
    l->room = l->token_room = 0;
}

void lane_empty(struct step_lane *l)
{
    for (size_t i = 0; i < JOBSPEC_MOST_STEPS; i++)
        bench_clear(&l->bench[i]);
    free_room(l);
}

/* The step's model is this lane's to use. The decoder's words follow from the job's, so another job's chain has a bench of its own: all of them go when a chain does. */
static struct bench *bench_of(struct step_lane *l, const struct step_state *st)
{
    struct bench *b = &l->bench[st->at];
    struct err e;
    if (b->loaded == st->loaded && b->chain == st->chain)
        return b;
    bench_clear(b);
    b->loaded = loaded_ref((struct loaded *)(uintptr_t)st->loaded);
    b->chain = st->chain;
    struct decoder_opts o = st->is->model->decoding;
    o.no_text = b->loaded->info->arrays;
    enum status s = decoder_open(&o, NULL, &b->decoder, &e);
    if (s == ST_OK && b->loaded->info->arrays) {
        s = loaded_feed(b->loaded, st->is->model, &b->feed, &e);
        if (s == ST_OK)
            s = feed_scratch_new(b->feed, &b->feed_scratch, &e);
    } else if (s == ST_OK) {
        s = tok_scratch_new(&b->tok, &e);
    }
    if (s == ST_NOMEM)
        pipeline_out_of_memory(l->p, "a step");
    BUG_IF(s != ST_OK, "a step cannot be prepared though its model was: %s", e.text);
    return b;
}

static void need_ctx(struct step_lane *l, struct bench *b, const struct job *m)
{
    struct err e;
    uint32_t tokens = m->micro_batch_tokens > b->loaded->info->max_tokens ? m->micro_batch_tokens : b->loaded->info->max_tokens;
    if (!b->ctx || b->most_tokens < tokens || b->most_records < m->micro_batch) {
        if (b->ctx)
            model_ctx_free(b->ctx);
        b->ctx = NULL;
        b->most_tokens = tokens;
        b->most_records = m->micro_batch;
        if (model_ctx_new(b->loaded->model, tokens, m->micro_batch, &b->ctx, &e) != ST_OK)
            pipeline_out_of_memory(l->p, "a lane");
    }
    if (l->room < m->micro_batch || l->token_room < tokens) {
        uint32_t n = l->room > m->micro_batch ? l->room : m->micro_batch, most = l->token_room > tokens ? l->token_room : tokens;
        free_room(l);
        l->units = mem_array(n, sizeof *l->units);
        l->named = mem_array(n, sizeof *l->named);
        l->lengths = mem_array(n, sizeof *l->lengths);
        l->hooks = mem_array(n, sizeof *l->hooks);
        l->arrays = mem_array(n, sizeof *l->arrays);
        l->ids = mem_array(most, sizeof *l->ids);
        l->types = mem_array(most, sizeof *l->types);
        if (!l->units || !l->named || !l->lengths || !l->hooks || !l->arrays || !l->ids || !l->types)
            pipeline_out_of_memory(l->p, "a lane");
        l->room = n;
        l->token_room = most;
    }
}

static struct blackbox_record name_of(const struct unit *u)
{
    const struct item *i = u->root->item;
    return (struct blackbox_record){.job = i->held->job->id, .epoch = i->held->epoch, .record = i->record};
}

/* Preparing -------------------------------------------------------------------------------------------------------------------------- */

static void prepare_arrays(struct step_lane *l, struct bench *b, struct unit *u)
{
    struct feed_record r = {.data = u->json, .len = u->len, .source = &u->root->item->input->source};
    enum record_error what = RECORD_FAILED;
    size_t bytes;
    struct err e;
    switch (feed_run(b->feed, b->feed_scratch, &r, &u->arrays, &bytes, &what, &e)) {
    case ST_OK:
        break;
    case ST_NOMEM:
        pipeline_out_of_memory(l->p, "the arrays of a record");
    case ST_USER:
        unit_failed(l->p, u, what, NULL, e.text);
        break;
    default:
        unit_failed(l->p, u, RECORD_UNREADABLE, NULL, e.text);
        break;
    }
}

/* As prepare.c does for a job of one model. */
static void refuse_tokens(struct step_lane *l, const struct bench *b, const struct job *m, struct unit *u, const struct tok_result *t)
{
    const struct model_info *info = b->loaded->info;
    char message[200];
    uint32_t masks = 0;
    *message = 0;
    if (t->truncated && m->refuse_long) {
        snprintf(message, sizeof message, "the text has more than the %u tokens that the model takes; --on-long truncate cuts such texts", info->max_tokens);
        unit_failed(l->p, u, RECORD_TOO_MANY_TOKENS, NULL, message);
        return;
    }
    for (uint32_t k = 0; k < t->count; k++) {
        masks += t->ids[k] == b->loaded->mask_id;
        if (t->types[k] && info->token_types > 1 && t->types[k] >= info->token_types)
            snprintf(message, sizeof message, "the tokenizer gives a token the type %u, the model knows %u types", t->types[k], info->token_types);
    }
    if (info->kind == TASK_FILL_MASK && !masks)
        snprintf(message, sizeof message, t->truncated ? "there is no %s among the first %u tokens of the text" : "there is no %s in the text to be filled",
                 info->mask_token, info->max_tokens);
    if (*message)
        unit_failed(l->p, u, RECORD_FAILED, NULL, message);
}

static void keep_tokens(struct step_lane *l, struct unit *u, const struct tok_result *t, const struct model_info *m)
{
    uint32_t types = 0;
    for (uint32_t k = 0; k < t->count; k++)
        types |= t->types[k];
    u->tokens = t->count;
    if (!(u->ids = mem_alloc(t->count * sizeof *u->ids)) || (types && m->token_types > 1 && !(u->types = mem_alloc(t->count * sizeof *u->types))) ||
        (t->spans && !(u->spans = mem_alloc(t->count * sizeof *u->spans))))
        pipeline_out_of_memory(l->p, "the tokens of a record");
    memcpy(u->ids, t->ids, t->count * sizeof *u->ids);
    if (u->types)
        memcpy(u->types, t->types, t->count * sizeof *u->types);
    if (u->spans)
        memcpy(u->spans, t->spans, t->count * sizeof *u->spans);
}

static void prepare(struct step_lane *l, struct bench *b, const struct job *m, struct unit *u)
{
    struct raw raw = {.end = u->len, .data = u->json, .len = u->len};
    struct record record;
    struct tok_result tokens;
    struct err e;
    if (b->loaded->info->arrays) {
        prepare_arrays(l, b, u);
        return;
    }
    if (decoder_run(b->decoder, &raw, &record, &e) != ST_OK)
        pipeline_out_of_memory(l->p, "decoding a record");
    if (record.error != RECORD_NONE) {
        unit_failed(l->p, u, record.error, NULL, record.message);
        return;
    }
    struct tok_input in = {.text = record.text, .len = record.text_len, .max_tokens = b->loaded->info->max_tokens, .spans = b->loaded->info->kind == TASK_TOKENS};
    enum status st = tokenizer_encode_input(b->loaded->tokenizer, b->tok, &in, &tokens, &e);
    if (st == ST_NOMEM)
        pipeline_out_of_memory(l->p, "the tokens of a record");
    if (st != ST_OK) {
        unit_failed(l->p, u, RECORD_NOT_TOKENISED, NULL, e.text);
        return;
    }
    refuse_tokens(l, b, m, u, &tokens);
    if (u->fate == UNIT_ERROR)
        return;
    keep_tokens(l, u, &tokens, b->loaded->info);
    if (testhook_on() && !(u->hook = mem_strndup(record.text, record.text_len)))
        pipeline_out_of_memory(l->p, "the tokens of a record");
}

void lane_tokenise(struct step_lane *l, struct step_state *st, struct node *units)
{
    struct steps *s = l->steps;
    struct bench *b = bench_of(l, st);
    struct root *through = NULL;
    for (struct unit *u = (struct unit *)units; u; u = (struct unit *)u->node.next) {
        if (steps_is_void(s, u->root)) {
            u->fate = UNIT_DROPPED;
            continue;
        }
        struct blackbox_record named = name_of(u);
        blackbox_enter(l->p->o.box, l->slot, &named, 1);
        prepare(l, b, st->is->model, u);
        blackbox_leave(l->p->o.box, l->slot);
    }
    pthread_mutex_lock(&s->lock);
    for (struct node *next; units; units = next) {
        next = units->next;
        units->next = NULL;
        struct unit *u = (struct unit *)units;
        if (u->fate != UNIT_OPEN) {
            steps_settle(s, units, &through);
            continue;
        }
        s->busy -= (uint64_t)u->taken;
        u->taken = 0;
        line_push(&st->ready, u);
    }
    pthread_mutex_unlock(&s->lock);
    steps_through(s, &l->scratch, through);
}

/* Running ---------------------------------------------------------------------------------------------------------------------------- */

/* Into the lane's arrays, without those that nobody wants any more, which are put before *gone. How many are left. */
static uint32_t lay_out(struct step_lane *l, struct node *units, struct node **gone)
{
    uint32_t n = 0, tokens = 0;
    for (struct node *next; units; units = next) {
        next = units->next;
        struct unit *u = (struct unit *)units;
        if (steps_is_void(l->steps, u->root)) {
            u->fate = UNIT_DROPPED;
            u->node.next = *gone;
            *gone = &u->node;
            continue;
        }
        l->units[n] = u;
        l->lengths[n] = u->tokens;
        l->named[n] = name_of(u);
        l->hooks[n] = u->hook;
        l->arrays[n] = u->arrays;
        if (u->ids)
            memcpy(l->ids + tokens, u->ids, u->tokens * sizeof *l->ids);
        if (u->types)
            memcpy(l->types + tokens, u->types, u->tokens * sizeof *l->types);
        else
            memset(l->types + tokens, 0, u->tokens * sizeof *l->types);
        tokens += u->tokens;
        n++;
    }
    return n;
}

/* Records whose first step this is leave the waiting room of the reader's. */
static void begin(struct step_lane *l, uint32_t n, int full)
{
    uint64_t waited = 0;
    for (uint32_t k = 0; k < n; k++) {
        struct item *i = l->units[k]->root->item;
        waited += !i->begun;
        i->begun = 1;
    }
    budget_begun(&l->p->budget, n, waited, full, clock_ms());
}

static void take_result(struct step_lane *l, const struct job *m, struct unit *u, const struct outcome *o)
{
    l->result.len = 0;
    switch (encode_result(m, u->spans, o, &l->result)) {
    case 1:
        break;
    case 0:
        unit_failed(l->p, u, RECORD_FAILED, NULL, "the model's result holds a number that is not finite");
        return;
    default:
        pipeline_out_of_memory(l->p, "a row");
    }
    if (m->npy) {
        u->row_len = (size_t)o->width * 4;
        if (!(u->row = mem_alloc(u->row_len)))
            pipeline_out_of_memory(l->p, "a row");
        encode_floats(o->f32, o->width, (uint8_t *)u->row);
    }
    unit_passed(l->p, &l->scratch, &l->object, u, l->result.data, l->result.len);
}

struct taking {
    struct step_lane *l;
    const struct job *m;
    const struct loaded *loaded;
};

static void take(void *arg, uint32_t record, const struct array *out, uint32_t n_out, const char *error)
{
    struct taking *t = arg;
    struct unit *u = t->l->units[record];
    struct outcome o = {.task = t->loaded->info->kind, .loaded = t->loaded, .rows = 1, .arrays = out, .n_arrays = n_out};
    if (error) {
        unit_failed(t->l->p, u, RECORD_FAILED, NULL, error);
        return;
    }
    if (o.task != TASK_OUTPUTS) {
        o.f32 = out[0].data;
        o.width = (uint32_t)out[0].dims[0];
    }
    take_result(t->l, t->m, u, &o);
}

static void run_arrays(struct step_lane *l, struct bench *b, const struct job *m, uint32_t n)
{
    struct taking t = {l, m, b->loaded};
    struct err e;
    if (model_infer_arrays(b->loaded->model, b->ctx, n, l->arrays, take, &t, &e) != ST_OK)
        pipeline_out_of_memory(l->p, "a micro-batch");
    blackbox_leave(l->p->o.box, l->slot);
}

static void run_tokens(struct step_lane *l, struct bench *b, const struct job *m, uint32_t n)
{
    const struct model_result *r = model_infer(b->loaded->model, b->ctx, &(struct model_batch){.n = n, .lengths = l->lengths, .ids = l->ids, .types = l->types});
    if (!r)
        pipeline_out_of_memory(l->p, "a micro-batch");
    blackbox_leave(l->p->o.box, l->slot);
    const struct model_tensor *first = &r->tensor[0], *second = r->count > 1 ? &r->tensor[1] : NULL;
    size_t at = 0;
    for (uint32_t k = 0; k < n; k++) {
        struct outcome o = {.task = b->loaded->info->kind, .loaded = b->loaded, .rows = first->rows ? first->rows[k] : 1, .width = first->width,
                            .f32 = first->f32 + at * first->width, .i32 = second ? second->i32 + at * second->width : NULL};
        at += o.rows;
        if (r->errors && r->errors[k])
            unit_failed(l->p, l->units[k], RECORD_FAILED, NULL, r->errors[k]);
        else
            take_result(l, m, l->units[k], &o);
    }
}

void lane_infer(struct step_lane *l, struct step_state *st, struct node *units, int full)
{
    struct steps *s = l->steps;
    struct pipeline *p = l->p;
    const struct job *m = st->is->model;
    struct bench *b = bench_of(l, st);
    struct root *through = NULL;
    struct node *gone = NULL;
    need_ctx(l, b, m);
    uint32_t n = lay_out(l, units, &gone);
    if (n) {
        if (st->at == 0)
            begin(l, n, full);
        blackbox_enter(p->o.box, l->slot, l->named, n);
        if (fault_point("worker.infer") || testhook_run(l->hooks, n))
            pipeline_out_of_memory(p, "a micro-batch");
        if (b->loaded->info->arrays)
            run_arrays(l, b, m, n);
        else
            run_tokens(l, b, m, n);
    }
    for (uint32_t k = n; k-- > 0;) { /* in their order, those that are gone behind them */
        l->units[k]->node.next = gone;
        gone = &l->units[k]->node;
    }
    pthread_mutex_lock(&s->lock);
    steps_settle(s, gone, &through);
    pthread_mutex_unlock(&s->lock);
    steps_through(s, &l->scratch, through);
}
