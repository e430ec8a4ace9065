/* Prepare: bytes of a record become a text, its id and what is passed through, and the text becomes tokens. Any number of threads; each has its own
   decoder and scratch, and names the record that it works on in its slot of the black box. */
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "storage/errline.h"
#include "workers/pipeline/stages.h"
#include "workers/pipeline/steps.h"
#include "workers/pipeline/testhook.h"

#define CHUNK 16

struct preparing {
    struct pipeline *p;
    uint32_t slot;
    struct tok_scratch *scratch;
    struct decoder *decoder;
    char *refused;            /* why the source's columns do not go with the job: each of its records is an error */
    struct held *for_held;    /* whose decoder that is, counted: it owns the columns */
    const struct input *for_input;
    struct feed *feed;        /* of a model of arrays */
    struct feed_scratch *feed_scratch;
    struct npy npy;           /* the header of for_npy */
    const struct input *for_npy;
};

static void close_decoder(struct preparing *t)
{
    if (t->decoder)
        decoder_close(t->decoder);
    t->decoder = NULL;
    mem_free(t->refused);
    t->refused = NULL;
    feed_scratch_free(t->feed_scratch);
    feed_free(t->feed);
    t->feed_scratch = NULL;
    t->feed = NULL;
    held_unref(t->for_held);
    t->for_held = NULL;
    t->for_input = NULL;
    t->for_npy = NULL;
}

/* A decoder serves all sources of a job, but where there are columns only the one source. */
static void need_decoder(struct preparing *t, const struct item *i)
{
    const struct job *j = i->held->job;
    const struct loaded *l = i->held->loaded;
    if (t->for_held && t->for_held->job == j && t->for_held->loaded == l && (!j->columns || t->for_input == i->input) &&
        (j->decoding.format != FORMAT_NPY || t->for_input == i->input))
        return;
    close_decoder(t);
    struct err e;
    struct decoder_opts o = j->decoding;
    o.no_text = l->info->arrays;
    if (j->step_count) { /* of a record every field, which the steps choose from */
        o.field = o.pair = NULL;
        o.no_text = o.format != FORMAT_LINES;
        o.keep = j->columns ? (const char *const *)i->input->columns.names : NULL;
        o.keep_count = j->columns ? i->input->columns.count : 0;
    }
    enum status st = decoder_open(&o, j->columns ? &i->input->columns : NULL, &t->decoder, &e);
    if (st == ST_NOMEM || (st != ST_OK && !(t->refused = mem_strdup(e.text))))
        pipeline_out_of_memory(t->p, "a decoder");
    if (st == ST_OK && l->info->arrays) {
        st = loaded_feed(l, j, &t->feed, &e);
        if (st == ST_OK)
            st = feed_scratch_new(t->feed, &t->feed_scratch, &e);
        if (st == ST_OK && j->decoding.format == FORMAT_NPY)
            st = fixed_npy(&i->input->source, &t->npy, &e);
        if (st == ST_NOMEM || (st != ST_OK && !(t->refused = mem_strdup(e.text))))
            pipeline_out_of_memory(t->p, "a decoder");
    }
    t->for_held = held_ref(i->held);
    t->for_input = i->input;
}

/* What the model needs of the tokens, kept with the item. -1: memory is out. */
static int keep_tokens(struct item *i, const struct tok_result *t, const struct model_info *m)
{
    uint32_t types = 0;
    for (uint32_t k = 0; k < t->count; k++)
        types |= t->types[k];
    i->tokens = t->count;
    if (!(i->ids = mem_alloc(t->count * sizeof *i->ids)) || (types && m->token_types > 1 && !(i->types = mem_alloc(t->count * sizeof *i->types))) ||
        (t->spans && !(i->spans = mem_alloc(t->count * sizeof *i->spans))))
        return -1;
    memcpy(i->ids, t->ids, t->count * sizeof *i->ids);
    if (i->types)
        memcpy(i->types, t->types, t->count * sizeof *i->types);
    if (i->spans)
        memcpy(i->spans, t->spans, t->count * sizeof *i->spans);
    return 0;
}

/* What would make no sense to the model. 0: nothing. */
static int refuse_tokens(struct pipeline *p, struct item *i, const struct tok_result *t, const struct loaded *l)
{
    char message[200];
    uint32_t masks = 0;
    for (uint32_t k = 0; k < t->count; k++) {
        masks += t->ids[k] == l->mask_id;
        if (t->types[k] && l->info->token_types > 1 && t->types[k] >= l->info->token_types) {
            snprintf(message, sizeof message, "the tokenizer gives a token the type %u, the model knows %u types", t->types[k], l->info->token_types);
            pipeline_failed(p, i, RECORD_FAILED, message);
            return 1;
        }
    }
    if (l->info->kind != TASK_FILL_MASK || masks)
        return 0;
    snprintf(message, sizeof message, t->truncated ? "there is no %s among the first %u tokens of the text" : "there is no %s in the text to be filled",
             l->info->mask_token, l->info->max_tokens);
    pipeline_failed(p, i, RECORD_FAILED, message);
    return 1;
}

static int copy(char **to, size_t *to_len, const char *from, size_t len)
{
    if (!from || !len)
        return 0;
    *to = mem_strndup(from, len);
    *to_len = len;
    return *to ? 0 : -1;
}

/* A picture's id is its path. -1: memory is out. */
static int name_image(struct item *i)
{
    struct buf id = {0};
    const char *path = i->input->source.path;
    if (errline_string(&id, path, strlen(path))) {
        buf_release(&id);
        return -1;
    }
    i->id = id.data;
    i->id_len = id.len;
    return 0;
}

/* A model of arrays: 1 when the item has them. */
static int prepare_arrays(struct preparing *t, struct item *i)
{
    struct pipeline *p = t->p;
    const struct job *j = i->held->job;
    struct feed_record r = {.data = i->raw, .len = i->raw_len, .source = &i->input->source, .columns = j->columns ? &i->input->columns : NULL,
                            .npy = j->decoding.format == FORMAT_NPY ? &t->npy : NULL};
    enum record_error what = RECORD_FAILED;
    size_t bytes;
    struct err e;
    switch (feed_run(t->feed, t->feed_scratch, &r, &i->arrays, &bytes, &what, &e)) {
    case ST_OK:
        break;
    case ST_USER:
        pipeline_failed(p, i, what, e.text);
        return 0;
    case ST_NOMEM:
        pipeline_out_of_memory(p, "the arrays of a record");
    default:
        pipeline_failed(p, i, RECORD_UNREADABLE, e.text);
        return 0;
    }
    mem_free(i->raw);
    i->raw = NULL;
    return 1;
}

/* 1: it goes on to the lanes. */
static int prepare(struct preparing *t, struct item *i)
{
    struct pipeline *p = t->p;
    const struct job *j = i->held->job;
    const struct loaded *l = i->held->loaded;
    struct err e;
    if (i->input->refused) {
        pipeline_failed(p, i, RECORD_WRONG_COLUMNS, i->input->refused);
        return 0;
    }
    need_decoder(t, i);
    if (t->refused) { /* an array without a header came with an error of its own, in the same words */
        mem_free(i->message);
        i->message = NULL;
        pipeline_failed(p, i, i->error != RECORD_NONE ? i->error : RECORD_MISSING_FIELD, t->refused);
        return 0;
    }
    struct raw raw = {
        .offset = i->record.begin - i->input->source.base,
        .end = i->record.end - i->input->source.base,
        .line = i->line,
        .data = i->raw,
        .len = i->raw_len,
        .error = i->error,
    };
    if (i->message)
        snprintf(raw.message, sizeof raw.message, "%s", i->message);
    mem_free(i->message);
    i->message = NULL;
    struct record record;
    if (decoder_run(t->decoder, &raw, &record, &e) != ST_OK)
        pipeline_out_of_memory(p, "decoding a record");
    if (copy(&i->id, &i->id_len, record.id_json, record.id_len) || copy(&i->keep, &i->keep_len, record.keep_json, record.keep_len))
        pipeline_out_of_memory(p, "decoding a record");
    if (j->decoding.format == FORMAT_IMAGES && name_image(i))
        pipeline_out_of_memory(p, "the name of an image");
    if (record.error != RECORD_NONE) {
        pipeline_failed(p, i, record.error, record.message);
        return 0;
    }
    if (j->step_count) {
        steps_enter(p, i, &record);
        return 0;
    }
    if (l->info->arrays)
        return prepare_arrays(t, i);
    struct tok_result tokens;
    struct tok_input in = {
        .text = record.text,
        .len = record.text_len,
        .pair = record.pair,
        .pair_len = record.pair_len,
        .max_tokens = l->info->max_tokens,
        .spans = l->info->kind == TASK_TOKENS,
    };
    enum status st = tokenizer_encode_input(l->tokenizer, t->scratch, &in, &tokens, &e);
    if (st == ST_NOMEM)
        pipeline_out_of_memory(p, "the tokens of a record");
    if (st != ST_OK) {
        pipeline_failed(p, i, RECORD_NOT_TOKENISED, e.text);
        return 0;
    }
    if (tokens.truncated && j->refuse_long) {
        char message[160];
        snprintf(message, sizeof message, "the text has more than the %u tokens that the model takes; --on-long truncate cuts such texts",
                 l->info->max_tokens);
        pipeline_failed(p, i, RECORD_TOO_MANY_TOKENS, message);
        return 0;
    }
    if (refuse_tokens(p, i, &tokens, l))
        return 0;
    if (keep_tokens(i, &tokens, l->info) || (testhook_on() && !(i->hook = mem_strndup(record.text, record.text_len))))
        pipeline_out_of_memory(p, "the tokens of a record");
    mem_free(i->raw);
    i->raw = NULL;
    return 1;
}

static int is_closed(struct pipeline *p, const struct held *h)
{
    pthread_mutex_lock(&p->lock);
    int closed = h->closed;
    pthread_mutex_unlock(&p->lock);
    return closed;
}

void *prepare_run(void *arg)
{
    struct stage *stage = arg;
    struct preparing t = {.p = stage->pipeline, .slot = stage->slot};
    struct pipeline *p = t.p;
    struct err e;
    if (tok_scratch_new(&t.scratch, &e) != ST_OK)
        pipeline_out_of_memory(p, "the tokenizer");
    size_t n;
    for (struct node *chain; (chain = queue_take(&p->to_prepare, CHUNK, NULL, NULL, &n));) {
        struct node *ready = NULL, **tail = &ready;
        size_t count = 0;
        for (struct node *next; chain; chain = next) {
            next = chain->next;
            chain->next = NULL;
            struct item *i = (struct item *)chain;
            if (is_closed(p, i->held)) {
                pipeline_discard(p, i);
                continue;
            }
            struct blackbox_record named = {.job = i->held->job->id, .epoch = i->held->epoch, .record = i->record};
            blackbox_enter(p->o.box, t.slot, &named, 1);
            int goes_on = prepare(&t, i);
            blackbox_leave(p->o.box, t.slot);
            if (goes_on) {
                *tail = &i->node;
                tail = &i->node.next;
                count++;
            }
        }
        queue_push(&p->to_infer, ready, count);
    }
    close_decoder(&t);
    tok_scratch_free(t.scratch);
    return NULL;
}
