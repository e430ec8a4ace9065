/* Prepare: bytes of a record become a text, its id and what is passed through, and the text becomes tokens. Any number of threads; each has its own
   decoder and scratch, and names the record that it works on in its slot of the black box. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "workers/pipeline/stages.h"
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
};

static void close_decoder(struct preparing *t)
{
    if (t->decoder)
        decoder_close(t->decoder);
    t->decoder = NULL;
    mem_free(t->refused);
    t->refused = NULL;
    held_unref(t->for_held);
    t->for_held = NULL;
    t->for_input = NULL;
}

/* A decoder serves all sources of a job, but where there are columns only the one source. */
static void need_decoder(struct preparing *t, const struct item *i)
{
    const struct job *j = i->held->job;
    if (t->for_held && t->for_held->job == j && (!j->columns || t->for_input == i->input))
        return;
    close_decoder(t);
    struct err e;
    enum status st = decoder_open(&j->decoding, j->columns ? &i->input->columns : NULL, &t->decoder, &e);
    if (st == ST_NOMEM || (st != ST_OK && !(t->refused = mem_strdup(e.text))))
        pipeline_out_of_memory(t->p, "a decoder");
    t->for_held = held_ref(i->held);
    t->for_input = i->input;
}

static int copy(char **to, size_t *to_len, const char *from, size_t len)
{
    if (!from || !len)
        return 0;
    *to = mem_strndup(from, len);
    *to_len = len;
    return *to ? 0 : -1;
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
    if (t->refused) {
        pipeline_failed(p, i, RECORD_MISSING_FIELD, t->refused);
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
    if (record.error != RECORD_NONE) {
        pipeline_failed(p, i, record.error, record.message);
        return 0;
    }
    struct tok_result tokens;
    enum status st = tokenizer_encode(l->tokenizer, t->scratch, record.text, record.text_len, l->info->max_tokens, &tokens, &e);
    if (st == ST_USER) {
        pipeline_failed(p, i, RECORD_NOT_TOKENISED, e.text);
        return 0;
    }
    if (st != ST_OK)
        pipeline_out_of_memory(p, "the tokens of a record");
    if (tokens.truncated && j->refuse_long) {
        char message[160];
        snprintf(message, sizeof message, "the text has more than the %u tokens that the model takes; --on-long truncate cuts such texts",
                 l->info->max_tokens);
        pipeline_failed(p, i, RECORD_TOO_MANY_TOKENS, message);
        return 0;
    }
    i->tokens = tokens.count;
    i->ids = mem_alloc(tokens.count * sizeof *i->ids);
    if (!i->ids || (testhook_on() && !(i->hook = mem_strndup(record.text, record.text_len))))
        pipeline_out_of_memory(p, "the tokens of a record");
    memcpy(i->ids, tokens.ids, tokens.count * sizeof *i->ids);
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
