/* Units of records between steps, and the records that they come from: what becomes of a unit, and of its record when it was the last. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "workers/pipeline/encode.h"
#include "workers/pipeline/steps_inside.h"
#include "workers/text/tokenizer.h"

/* Units ------------------------------------------------------------------------------------------------------------------------------ */

void line_init(struct line *l)
{
    *l = (struct line){.tail = NULL};
    l->tail = &l->head;
}

void line_push(struct line *l, struct unit *u)
{
    u->node.next = NULL;
    *l->tail = &u->node;
    l->tail = &u->node.next;
    l->count++;
    l->tokens += u->tokens;
}

struct unit *line_pop(struct line *l)
{
    struct unit *u = (struct unit *)l->head;
    if (!u)
        return NULL;
    l->head = u->node.next;
    if (!l->head)
        l->tail = &l->head;
    l->count--;
    l->tokens -= u->tokens;
    u->node.next = NULL;
    return u;
}

struct unit *unit_new(struct pipeline *p, struct root *r, uint32_t step, const char *json, size_t len)
{
    struct unit *u = mem_zalloc(sizeof *u);
    if (!u || !(u->json = mem_alloc(len + 1)))
        pipeline_out_of_memory(p, "a record of a step");
    memcpy(u->json, json, len);
    u->json[len] = 0;
    u->len = len;
    u->root = r;
    u->step = step;
    return u;
}

static void forget_input(struct unit *u)
{
    mem_free(u->ids);
    mem_free(u->types);
    mem_free(u->spans);
    mem_free(u->arrays);
    mem_free(u->hook);
    u->ids = NULL;
    u->types = NULL;
    u->spans = NULL;
    u->arrays = NULL;
    u->hook = NULL;
    u->tokens = 0;
}

void unit_free(struct unit *u)
{
    forget_input(u);
    mem_free(u->json);
    mem_free(u->row);
    mem_free(u->aux);
    mem_free(u->message);
    mem_free(u);
}

void unit_failed(struct pipeline *p, struct unit *u, enum record_error error, const char *code, const char *message)
{
    u->fate = UNIT_ERROR;
    u->error = error;
    u->code = code;
    u->message = mem_printf("%s: %s", u->root->chain->job->steps[u->step].words, message);
    if (!u->message)
        pipeline_out_of_memory(p, "an error row");
}

static char *copy_of(struct pipeline *p, const struct buf *b, size_t *len)
{
    char *copy = mem_alloc(b->len + 1);
    if (!copy)
        pipeline_out_of_memory(p, "a record of a step");
    memcpy(copy, b->data, b->len);
    copy[b->len] = 0;
    *len = b->len;
    return copy;
}

/* What stands behind its name in the record's row. */
static void make_row(struct pipeline *p, struct record_scratch *s, struct buf *space, struct unit *u, const char *result, size_t result_len)
{
    const struct root *r = u->root;
    const struct texts *keep = &r->chain->job->spec.keep;
    space->len = 0;
    int failed = record_keep(s, u->json, u->len, r->whole, r->whole_len, keep->items, keep->count, space);
    failed = failed || (result ? buf_add(space, result, result_len) : record_rest(s, u->json, u->len, keep->items, keep->count, u->of_many, space));
    if (failed || buf_str(space, "}\n"))
        pipeline_out_of_memory(p, "a row");
    if (u->row) /* .npy: the floats are there */
        u->aux = copy_of(p, space, &u->aux_len);
    else
        u->row = copy_of(p, space, &u->row_len);
    u->fate = UNIT_ROW;
}

void unit_passed(struct pipeline *p, struct record_scratch *s, struct buf *space, struct unit *u, const char *result, size_t result_len)
{
    const struct job *j = u->root->chain->job;
    const struct condition *when = &j->steps[u->step].when;
    int last = u->step + 1 == j->step_count;
    char why[300];
    forget_input(u);
    if (result && (!last || when->count)) {
        space->len = 0;
        if (record_with(s, u->json, u->len, result, result_len, space))
            pipeline_out_of_memory(p, "a record of a step");
        mem_free(u->json);
        u->json = copy_of(p, space, &u->len);
    }
    switch (record_passes(s, when, u->json, u->len, why, sizeof why)) {
    case 1:
        break;
    case 0:
        u->fate = UNIT_DROPPED;
        return;
    case -2:
        unit_failed(p, u, RECORD_MISSING_FIELD, NULL, why);
        return;
    default:
        pipeline_out_of_memory(p, "a condition");
    }
    if (last)
        make_row(p, s, space, u, j->npy ? "" : result, j->npy ? 0 : result_len);
    else
        u->fate = UNIT_GOES_ON;
}

int steps_is_void(struct steps *s, const struct root *r)
{
    if (r->too_large)
        return 1;
    pthread_mutex_lock(&s->p->lock);
    int closed = r->item->held->closed;
    pthread_mutex_unlock(&s->p->lock);
    return closed;
}

/* Roots ------------------------------------------------------------------------------------------------------------------------------ */

static void recount(struct steps *s, struct unit *u)
{
    uint64_t now = sizeof *u + u->len + u->row_len + u->aux_len;
    s->bytes += now - u->bytes;
    u->bytes = now;
}

static void count_in(struct root *r, uint64_t bytes)
{
    r->bytes += bytes;
    if (r->bytes > STEPS_RECORD_BYTES)
        r->too_large = 1;
}

static void take_out(struct steps *s, struct unit *u)
{
    struct root *r = u->root;
    *(u->before ? &u->before->behind : &r->first) = u->behind;
    *(u->behind ? &u->behind->before : &r->last) = u->before;
    s->bytes -= u->bytes;
    unit_free(u);
}

void steps_settle(struct steps *s, struct node *units, struct root **through)
{
    uint64_t now_ms = clock_ms();
    for (struct node *next; units; units = next) {
        next = units->next;
        struct unit *u = (struct unit *)units;
        struct root *r = u->root;
        atomic_fetch_add(&r->chain->pulse, 1);
        s->busy -= (uint64_t)u->taken;
        u->taken = 0;
        recount(s, u);
        switch (u->fate) {
        case UNIT_GOES_ON:
            u->fate = UNIT_OPEN;
            u->step++;
            u->since_ms = now_ms;
            line_push(&r->chain->step[u->step].raw, u);
            continue;
        case UNIT_ROW:
            mem_free(u->json);
            u->json = NULL;
            u->len = 0;
            recount(s, u);
            count_in(r, u->row_len + u->aux_len);
            r->rows++;
            break;
        case UNIT_ERROR:
            break;
        case UNIT_DROPPED:
            take_out(s, u);
            break;
        case UNIT_OPEN:
            BUG("a record leaves a step without a fate");
        }
        if (--r->open == 0) {
            r->next = *through;
            *through = r;
        }
    }
    pthread_cond_signal(&s->work);
}

static void root_free(struct steps *s, struct root *r)
{
    pthread_mutex_lock(&s->lock);
    while (r->first)
        take_out(s, r->first);
    pthread_mutex_unlock(&s->lock);
    mem_free(r->whole);
    chain_unref(r->chain);
    mem_free(r);
}

static void fail_item(struct pipeline *p, struct root *r, enum record_error error, const char *code, const char *message)
{
    r->item->code = code;
    pipeline_failed(p, r->item, error, message);
}

/* 1: the item has its rows. */
static int make_rows(struct pipeline *p, struct buf *space, struct root *r)
{
    struct item *i = r->item;
    const struct job *j = r->chain->job;
    char message[200];
    size_t child = 0;
    space->len = 0;
    if (j->npy && r->rows != 1) {
        snprintf(message, sizeof message, "an .npy file holds exactly one row for each record, and this one came to %zu; let --output be a directory or end in .jsonl", r->rows);
        fail_item(p, r, RECORD_FAILED, NULL, message);
        return 0;
    }
    if (j->npy) {
        struct unit *u = r->first;
        if (u->aux_len == 2 && i->id) { /* nothing but "}\n": no field is kept */
            if (buf_add(space, i->id, i->id_len) || buf_char(space, '\n'))
                pipeline_out_of_memory(p, "a row");
        } else if (buf_char(space, '{') || encode_name(i, space) || buf_add(space, u->aux, u->aux_len)) {
            pipeline_out_of_memory(p, "a row");
        }
        i->aux = copy_of(p, space, &i->aux_len);
        i->row = u->row;
        i->row_len = u->row_len;
        u->row = NULL;
        return 1;
    }
    for (struct unit *u = r->first; u; u = u->behind, child++)
        if (buf_char(space, '{') || encode_name(i, space) || (r->many && buf_printf(space, ",\"child\":%zu", child)) || buf_add(space, u->row, u->row_len))
            pipeline_out_of_memory(p, "a row");
    if (child)
        i->row = copy_of(p, space, &i->row_len);
    i->counted = 1;
    i->rows = child;
    return 1;
}

static const struct unit *first_error(const struct root *r)
{
    const struct unit *u = r->first;
    while (u && u->fate != UNIT_ERROR)
        u = u->behind;
    return u;
}

/* Not done, and not the record's fault: its lease goes back, and until that is so the item stays what it is. */
static void keep_lost(struct steps *s, struct root *r)
{
    pthread_mutex_lock(&s->lock);
    r->next = r->chain->lost;
    r->chain->lost = r;
    pthread_mutex_unlock(&s->lock);
}

void steps_through(struct steps *s, struct record_scratch *scratch, struct root *through)
{
    struct pipeline *p = s->p;
    struct item *rows = NULL;
    struct node **tail = NULL;
    char message[200];
    for (struct root *r = through, *next; r; r = next) {
        next = r->next;
        struct item *i = r->item;
        const struct unit *error = first_error(r);
        pthread_mutex_lock(&p->lock);
        int closed = i->held->closed;
        pthread_mutex_unlock(&p->lock);
        if (r->lost && !closed) {
            keep_lost(s, r);
            continue;
        }
        if (closed) {
            pipeline_discard(p, i);
        } else if (r->too_large) {
            snprintf(message, sizeof message, "what the steps make of it takes more than %u MiB: that is the limit of what one record may become", STEPS_RECORD_BYTES >> 20);
            fail_item(p, r, RECORD_FAILED, NULL, message);
        } else if (error) {
            fail_item(p, r, error->error, error->code, error->message);
        } else if (make_rows(p, &scratch->object, r)) {
            i->node.next = NULL;
            if (tail)
                *tail = &i->node;
            else
                rows = i;
            tail = &i->node.next;
        }
        root_free(s, r);
    }
    if (rows)
        pipeline_rows(p, rows);
}

struct root *steps_found_again(struct steps *s)
{
    struct root *out = NULL;
    for (struct chain *c = s->chains; c; c = c->next)
        for (struct root **at = &c->lost, *r; (r = *at);) {
            pthread_mutex_lock(&s->p->lock);
            int closed = r->item->held->closed;
            pthread_mutex_unlock(&s->p->lock);
            if (!closed) {
                at = &r->next;
                continue;
            }
            *at = r->next;
            r->next = out;
            out = r;
        }
    return out;
}

void steps_enter(struct pipeline *p, struct item *i, const struct record *record)
{
    struct chain *c = i->held->chain;
    struct steps *s = c->steps;
    struct buf object = {0};
    struct root *r = mem_zalloc(sizeof *r);
    const char *json = i->raw;
    size_t len = i->raw_len;
    int failed = !r;
    if (i->held->job->decoding.format == FORMAT_LINES) {
        failed = failed || buf_str(&object, "{\"text\":") || json_add_string(&object, record->text, record->text_len) || buf_char(&object, '}');
        json = object.data;
        len = object.len;
    } else if (i->held->job->columns) {
        failed = failed || buf_char(&object, '{') || (i->keep_len && buf_add(&object, i->keep + 1, i->keep_len - 1)) || buf_char(&object, '}');
        json = object.data;
        len = object.len;
    }
    if (failed)
        pipeline_out_of_memory(p, "a record of a step");
    atomic_fetch_add(&c->refs, 1);
    r->item = i;
    r->chain = c;
    r->open = 1;
    r->bytes = 0;
    r->first = r->last = unit_new(p, r, 0, json, len);
    if (c->commands && c->job->spec.keep.count) { /* a command may leave fields out that are to be kept */
        if (!(r->whole = mem_strndup(json, len)))
            pipeline_out_of_memory(p, "a record of a step");
        r->whole_len = len;
    }
    buf_release(&object);
    mem_free(i->raw);
    mem_free(i->keep);
    i->raw = i->keep = NULL;
    i->keep_len = 0;
    pthread_mutex_lock(&s->lock);
    recount(s, r->first);
    r->first->since_ms = clock_ms();
    line_push(&c->step[0].raw, r->first);
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
}
