#include "workers/engine/onnxtext.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "storage/modeldir.h"
#include "workers/engine/carry.h"
#include "workers/engine/head.h"
#include "workers/engine/loading.h"
#include "workers/engine/scores.h"

enum { TRIAL_FEW = 4, TRIAL_TOKENS = 48, TOKENS_DEFAULT = 512, STAGE_BYTES = 32768 };

struct onnxtext {
    struct graph_model *gm;
    const struct kernels *kernels;
    struct model_config c; /* without its labels */
    struct head *head;     /* embed, where the model gives rows of tokens: pooling and what follows */
    uint32_t output;
    int rows_are_tokens;
    uint32_t given, width; /* numbers in a row of that output; in one that comes out */
    uint32_t top_k;
    double bytes_per_token;
};

/* Which output, which task --------------------------------------------------------------------------------------------------------------------- */

static int find_output(const struct graph_model_info *i, const char *word, int rank)
{
    for (uint32_t o = 0; o < i->n_out; o++)
        if ((!word || strstr(i->out[o].name, word)) && (rank < 0 || i->out[o].rank == rank) && i->out[o].dtype == DT_F32)
            return (int)o;
    return -1;
}

static int first_of(const int *choices, int count)
{
    for (int i = 0; i < count; i++)
        if (choices[i] >= 0)
            return choices[i];
    return -1;
}

/* Ranks are of one record: a row for a text has 1, rows for tokens have 2. */
static enum status choose(struct onnxtext *t, const char *word, enum task *task, struct err *e)
{
    const struct graph_model_info *i = graph_model_info(t->gm);
    int lead = i->batched ? 0 : 1; /* describe_port leaves the batch out where there is one */
    int vector = find_output(i, "embedding", 1 + lead), hidden = find_output(i, "hidden", 2 + lead), rows = find_output(i, "token_embeddings", 2 + lead);
    int logits = find_output(i, "logits", 1 + lead), token_logits = find_output(i, "logits", 2 + lead);
    int any1 = find_output(i, NULL, 1 + lead), any2 = find_output(i, NULL, 2 + lead);
    if (vector < 0)
        vector = find_output(i, "sentence", 1 + lead);
    if (!word || strcmp(word, "auto") == 0)
        *task = logits >= 0 ? TASK_CLASSIFY : token_logits >= 0 ? TASK_TOKENS : TASK_EMBED;
    else
        for (*task = 0; *task < TASKS && strcmp(word, task_words[*task]) != 0;)
            (*task)++;
    int o = -1;
    switch (*task) {
    case TASK_EMBED:
        o = first_of((int[]){vector, rows, hidden, token_logits < 0 ? any2 : -1, logits < 0 ? any1 : -1}, 5);
        break;
    case TASK_CLASSIFY:
        o = first_of((int[]){logits, any1}, 2);
        break;
    case TASK_TOKENS:
    case TASK_FILL_MASK:
        o = first_of((int[]){token_logits, any2}, 2);
        break;
    case TASK_OUTPUTS:
    case TASKS:
        return err_set(e, ST_USER, "the task '%s' is not one of texts", word);
    }
    if (o < 0)
        return err_set(e, ST_USER, "none of its outputs ('%s'...) is what the task '%s' needs", i->n_out ? i->out[0].name : "", task_words[*task]);
    t->output = (uint32_t)o;
    return ST_OK;
}

/* What lies beside the file ------------------------------------------------------------------------------------------------------------------------ */

static uint32_t limit_of(const char *folder, const char *file, const char *key)
{
    json_t *j = NULL;
    struct err ignored;
    uint32_t n = 0;
    if (modeldir_json(folder, file, &j, &ignored) == ST_OK) {
        double x = json_number_value(json_object_get(j, key));
        n = x >= 1 && x < 1e9 ? (uint32_t)x : 0; /* model_max_length is 1e30 where a publisher knew of no limit */
    }
    json_decref(j);
    return n;
}

/* id2label of config.json; "LABEL_3" where it does not say. */
static enum status read_labels(const char *folder, uint32_t count, struct model_config *c, struct err *e)
{
    json_t *j = NULL;
    struct err ignored;
    enum status st = ST_OK;
    if (modeldir_json(folder, "config.json", &j, &ignored) != ST_OK)
        j = NULL;
    json_t *names = json_object_get(j, "id2label");
    c->label = mem_array(count ? count : 1, sizeof *c->label);
    if (!c->label)
        st = err_nomem(e, "labels");
    for (uint32_t i = 0; i < count && st == ST_OK; i++) {
        char key[16];
        snprintf(key, sizeof key, "%u", i);
        const char *name = json_string_value(json_object_get(names, key));
        c->label[i] = name ? mem_strdup(name) : mem_printf("LABEL_%u", i);
        if (!c->label[i])
            st = err_nomem(e, "labels");
        else
            c->label_count++;
    }
    json_decref(j);
    return st;
}

/* config.json is read as for safetensors where it is of a family that is known; else little is asked of it. */
static enum status read_config(const char *folder, enum task task, uint32_t width, uint32_t fill, struct model_config *c, struct err *e)
{
    struct err why;
    int found;
    enum status st = config_read(folder, task_words[task], c, &why);
    if (st == ST_NOMEM)
        return err_set(e, st, "%s", why.text);
    if (st != ST_OK) {
        *c = (struct model_config){.task = task, .pooling = {POOL_MEAN}, .pooling_count = 1};
        static const char *const where[][2] = {{"sentence_bert_config.json", "max_seq_length"}, {"tokenizer_config.json", "model_max_length"},
                                               {"config.json", "max_position_embeddings"}, {"config.json", "n_positions"}};
        for (size_t i = 0; i < sizeof where / sizeof *where && !c->max_tokens; i++)
            c->max_tokens = limit_of(folder, where[i][0], where[i][1]);
        if (!c->max_tokens)
            c->max_tokens = fill ? fill : TOKENS_DEFAULT;
        c->hidden = width;
        if (task == TASK_EMBED)
            TRY(modules_read(folder, c, &found, e));
        snprintf(c->mask_token, sizeof c->mask_token, "[MASK]");
    }
    if (task == TASK_EMBED)
        c->hidden = width;
    if (fill && c->max_tokens > fill)
        c->max_tokens = fill;
    if ((task == TASK_CLASSIFY || task == TASK_TOKENS) && c->label_count != width) {
        for (uint32_t i = 0; i < c->label_count; i++)
            mem_free(c->label[i]);
        mem_free(c->label);
        c->label = NULL;
        c->label_count = 0;
        TRY(read_labels(folder, width, c, e));
    }
    return ST_OK;
}

static enum status open_head(struct onnxtext *t, const char *folder, struct model_config *c, struct err *e)
{
    struct loading l = {.c = c, .kernels = t->kernels, .load = 1};
    enum status st = head_load(&l, folder, NULL, 1, &t->head, e);
    loading_release(&l);
    return st;
}

/* What crosses the cut behind a part is kept by its lane until the next run. */
static enum status weigh_carried(const struct graph_lane *l, size_t *bytes, struct err *e)
{
    struct carry_out o = {0};
    enum status st = carry_begin(&o, 0, 1, e);
    if (st == ST_OK)
        st = carry_run(&o, 1, &(uint32_t){0}, e);
    if (st == ST_OK)
        st = graph_lane_carry(l, &o, e);
    *bytes += o.b.cap;
    buf_release(&o.b);
    return st;
}

/* A text of nothing in particular. */
static enum status trial(struct onnxtext *t, uint32_t tokens, size_t *bytes, struct err *e)
{
    struct graph_lane *l = NULL;
    uint32_t fill = graph_model_fill(t->gm), n = fill && tokens > fill ? fill : tokens;
    int32_t ids[TRIAL_TOKENS] = {0};
    const float *rows;
    enum status st = ST_OK;
    TRY(graph_lane_new(t->gm, &l, e));
    if (!graph_model_is_first(t->gm))
        st = graph_lane_take_nothing(l, n, e);
    if (st == ST_OK)
        st = graph_lane_texts(l, 1, &n, ids, NULL, fill, e);
    if (st == ST_OK && graph_model_is_first(t->gm) && graph_model_is_last(t->gm))
        st = graph_lane_rows(l, t->output, &rows, &t->given, &t->rows_are_tokens, e);
    *bytes = graph_lane_bytes(l);
    if (st == ST_OK && !graph_model_is_last(t->gm))
        st = weigh_carried(l, bytes, e);
    graph_lane_free(l);
    return st;
}

/* What comes out of the last stage; the whole model has just shown it. */
static enum status know_output(struct onnxtext *t, struct err *e)
{
    const struct graph_model_info *i = graph_model_info(t->gm);
    const struct port *p = &i->out[t->output];
    int rank = p->rank + i->batched;
    if (graph_model_is_first(t->gm) && graph_model_is_last(t->gm))
        return ST_OK;
    if (rank < 2 || rank > 3 || p->dims[p->rank - 1] < 1 || p->dims[p->rank - 1] > UINT32_MAX)
        return err_set(e, ST_USER, "output '%s' is neither a row of float32 for each text nor one for each token", p->name);
    t->given = (uint32_t)p->dims[p->rank - 1];
    t->rows_are_tokens = rank == 3;
    return ST_OK;
}

/* What a lane takes for each token. */
static enum status try_out(struct onnxtext *t, const struct model_opts *o, struct err *e)
{
    size_t few, more;
    struct err why; /* a model may have fewer positions than the longer text */
    if (o->part && o->first == o->end)
        return ST_OK;
    enum status shorter = trial(t, TRIAL_FEW, &few, &why);
    /* a later stage is given zeros, which may not go through; then nothing but a lane's size is not known */
    if (shorter == ST_NOMEM || (shorter != ST_OK && graph_model_is_first(t->gm)))
        return err_set(e, shorter, "%s", why.text);
    enum status longer = trial(t, TRIAL_TOKENS, &more, &why);
    if (longer == ST_NOMEM)
        return err_set(e, longer, "%s", why.text);
    t->bytes_per_token = longer == ST_OK ? (double)more / TRIAL_TOKENS : shorter == ST_OK ? (double)few / TRIAL_FEW : STAGE_BYTES;
    return ST_OK;
}

static enum status set_up(struct onnxtext *t, const char *folder, const struct model_opts *o, struct model_config *c, struct err *e)
{
    enum task task;
    TRY(choose(t, o->task, &task, e));
    TRY(try_out(t, o, e));
    TRY(know_output(t, e));
    if ((task == TASK_TOKENS || task == TASK_FILL_MASK) && !t->rows_are_tokens)
        return err_set(e, ST_USER, "output '%s' has no rows for tokens, which the task '%s' needs", graph_model_info(t->gm)->out[t->output].name, task_words[task]);
    if (task == TASK_CLASSIFY && t->rows_are_tokens)
        return err_set(e, ST_USER, "output '%s' has rows for tokens, but the task 'classify' wants one for each text", graph_model_info(t->gm)->out[t->output].name);
    TRY(read_config(folder, task, t->given, graph_model_fill(t->gm), c, e));
    uint32_t vocab = graph_model_vocab(t->gm);
    if (!c->vocab || vocab)
        c->vocab = vocab ? vocab : INT32_MAX;
    t->width = task == TASK_FILL_MASK ? (o->top_k ? o->top_k : 5) : t->given;
    if (t->width > t->given)
        t->width = t->given;
    if (task == TASK_EMBED && t->rows_are_tokens) {
        if (graph_model_is_last(t->gm))
            TRY(open_head(t, folder, c, e));
        t->width = config_width(c);
    }
    t->c = *c;
    t->c.label = NULL;
    return ST_OK;
}

enum status onnxtext_open(struct graph_model *gm, const char *folder, const struct model_opts *o, const struct kernels *k, struct model_config *c,
                          struct onnxtext **out, struct err *e)
{
    struct onnxtext *t = mem_zalloc(sizeof *t);
    if (!t)
        return err_nomem(e, "a model");
    *c = (struct model_config){0};
    t->kernels = k;
    t->gm = gm;
    enum status st = set_up(t, folder, o, c, e);
    if (st == ST_OK) {
        *out = t;
        return ST_OK;
    }
    head_free(t->head);
    config_release(c);
    mem_free(t);
    return st;
}

void onnxtext_free(struct onnxtext *t)
{
    if (!t)
        return;
    head_free(t->head);
    graph_model_free(t->gm);
    mem_free(t);
}

const struct graph_model_info *onnxtext_info(const struct onnxtext *t)
{
    return graph_model_info(t->gm);
}

uint32_t onnxtext_width(const struct onnxtext *t)
{
    return t->width;
}

/* Lanes -------------------------------------------------------------------------------------------------------------------------------------------- */

struct onnxtext_lane {
    const struct onnxtext *t;
    uint32_t max_tokens, max_seqs;
    struct graph_lane *lane;
    void *head_memory;
    struct head_work head;
    float *out;
    int32_t *found;           /* fill-mask */
    uint32_t *rows, *at;      /* of each text: rows that come out, the first of them */
    uint32_t *order, *lengths; /* of a group */
    uint32_t *starts;          /* first token of each text */
    int32_t *ids;
    uint8_t *types;
    char **errors;             /* of each text */
    struct model_result result;
    struct carry_out carried;  /* of a stage that is not the last */
};

static int per_token(const struct onnxtext *t)
{
    return t->c.task == TASK_TOKENS || t->c.task == TASK_FILL_MASK;
}

static size_t out_numbers(const struct onnxtext *t, uint32_t max_tokens, uint32_t max_seqs)
{
    return (size_t)(per_token(t) ? max_tokens : max_seqs) * t->width;
}

size_t onnxtext_lane_bytes(const struct onnxtext *t, uint32_t max_tokens, uint32_t max_seqs)
{
    return sizeof(struct onnxtext_lane) + (size_t)(t->bytes_per_token * max_tokens) + (t->head ? head_work_bytes(t->head, max_tokens, max_seqs) : 0) +
           out_numbers(t, max_tokens, max_seqs) * 8 + (size_t)max_seqs * 20 + (size_t)max_tokens * 5;
}

enum status onnxtext_lane_new(const struct onnxtext *t, uint32_t max_tokens, uint32_t max_seqs, struct onnxtext_lane **out, struct err *e)
{
    struct onnxtext_lane *l = mem_zalloc(sizeof *l);
    if (!l)
        return err_nomem(e, "a lane");
    *l = (struct onnxtext_lane){.t = t, .max_tokens = max_tokens, .max_seqs = max_seqs};
    size_t n = out_numbers(t, max_tokens, max_seqs);
    l->out = mem_array(n + 1, sizeof *l->out);
    l->found = mem_array(t->c.task == TASK_FILL_MASK ? n + 1 : 1, sizeof *l->found);
    l->rows = mem_array(max_seqs, sizeof *l->rows);
    l->at = mem_array(max_seqs, sizeof *l->at);
    l->order = mem_array(max_seqs, sizeof *l->order);
    l->lengths = mem_array(max_seqs, sizeof *l->lengths);
    l->starts = mem_array(max_seqs, sizeof *l->starts);
    l->ids = mem_array(max_tokens, sizeof *l->ids);
    l->types = mem_array(max_tokens, sizeof *l->types);
    l->errors = mem_array(max_seqs, sizeof *l->errors);
    if (t->head)
        l->head_memory = mem_aligned(head_work_bytes(t->head, max_tokens, max_seqs) + 64);
    enum status st = l->out && l->found && l->rows && l->at && l->order && l->lengths && l->starts && l->ids && l->types && l->errors && (!t->head || l->head_memory)
                         ? graph_lane_new(t->gm, &l->lane, e)
                         : err_nomem(e, "a lane");
    if (st != ST_OK) {
        onnxtext_lane_free(l);
        return st;
    }
    if (t->head)
        head_work_init(&l->head, t->head, max_tokens, max_seqs, l->head_memory);
    *out = l;
    return ST_OK;
}

void onnxtext_lane_free(struct onnxtext_lane *l)
{
    if (!l)
        return;
    graph_lane_free(l->lane);
    mem_free(l->head_memory);
    mem_free(l->out);
    mem_free(l->found);
    mem_free(l->rows);
    mem_free(l->at);
    mem_free(l->order);
    mem_free(l->lengths);
    mem_free(l->starts);
    mem_free(l->ids);
    mem_free(l->types);
    for (uint32_t r = 0; l->errors && r < l->max_seqs; r++)
        mem_free(l->errors[r]);
    mem_free(l->errors);
    buf_release(&l->carried.b);
    mem_free(l);
}

/* What text `r` of the batch gives, from its row or rows of the model's output. */
static void take(struct onnxtext_lane *l, uint32_t r, uint32_t length, const int32_t *ids, int32_t mask_id, const float *x)
{
    const struct onnxtext *t = l->t;
    float *out = l->out + (size_t)l->at[r] * t->width;
    int32_t *found = l->found + (t->c.task == TASK_FILL_MASK ? (size_t)l->at[r] * t->width : 0);
    switch (t->c.task) {
    case TASK_EMBED:
        if (t->head)
            x = head_run(t->head, &l->head, 1, &length, ids, mask_id, x, t->given)->tensor[0].f32;
        memcpy(out, x, t->width * sizeof *out);
        break;
    case TASK_CLASSIFY:
        memcpy(out, x, t->width * sizeof *out);
        scores_row(t->c.scoring, t->width, out);
        break;
    case TASK_TOKENS:
        memcpy(out, x, (size_t)length * t->width * sizeof *out);
        for (uint32_t k = 0; k < length; k++)
            scores_row(t->c.scoring, t->width, out + (size_t)k * t->width);
        break;
    case TASK_FILL_MASK:
        for (uint32_t k = 0; k < length; k++, x += t->given)
            if (ids[k] == mask_id) {
                scores_top(t->given, x, t->width, found, out);
                found += t->width;
                out += t->width;
            }
        break;
    case TASK_OUTPUTS:
    case TASKS:
        break;
    }
}

static enum status fail(struct onnxtext_lane *l, uint32_t r, const char *why)
{
    const struct onnxtext *t = l->t;
    l->errors[r] = mem_strdup(why);
    l->result.errors = l->errors;
    for (size_t k = 0; k < (size_t)l->rows[r] * t->width; k++)
        l->out[(size_t)l->at[r] * t->width + k] = NAN;
    for (size_t k = 0; t->c.task == TASK_FILL_MASK && k < (size_t)l->rows[r] * t->width; k++)
        l->found[(size_t)l->at[r] * t->width + k] = 0;
    return l->errors[r] ? ST_OK : ST_NOMEM;
}

/* Texts l->order[0..n), which may share a run. Where one does not go through the model, each goes alone, so that only that one fails. `to`: of a stage that is not the
   last, where what crosses the cut behind it goes. Only ST_NOMEM fails. */
static enum status run_group(struct onnxtext_lane *l, const struct model_batch *b, uint32_t n, int32_t mask_id, struct carry_out *to, struct err *e)
{
    const struct onnxtext *t = l->t;
    uint32_t tokens = 0, width, fill = graph_model_fill(t->gm);
    const float *rows = NULL;
    struct err why;
    int by_token = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t r = l->order[i];
        l->lengths[i] = b->lengths[r];
        memcpy(l->ids + tokens, b->ids + l->starts[r], b->lengths[r] * sizeof *l->ids);
        if (b->types)
            memcpy(l->types + tokens, b->types + l->starts[r], b->lengths[r]);
        tokens += b->lengths[r];
    }
    enum status st = graph_lane_texts(l->lane, n, l->lengths, l->ids, b->types ? l->types : NULL, fill, &why);
    if (st == ST_OK && !to)
        st = graph_lane_rows(l->lane, t->output, &rows, &width, &by_token, &why);
    if (st == ST_OK && !to && (width != t->given || by_token != t->rows_are_tokens))
        st = err_set(&why, ST_USER, "its rows change their width");
    if (st == ST_NOMEM)
        return err_set(e, st, "%s", why.text);
    if (st != ST_OK && n == 1)
        return to ? carry_error(to, l->order[0], why.text, e) : fail(l, l->order[0], why.text) == ST_OK ? ST_OK : err_nomem(e, "an error");
    for (uint32_t i = 0, start = 0; st != ST_OK && n > 1 && i < n; i++) {
        uint32_t kept = l->order[0], length = b->lengths[l->order[i]];
        if (!graph_model_is_first(t->gm))
            TRY(graph_lane_take_one(l->lane, i, start, length, e));
        start += length;
        l->order[0] = l->order[i];
        enum status one = run_group(l, b, 1, mask_id, to, e);
        l->order[0] = kept;
        TRY(one);
    }
    if (st == ST_OK && to) {
        TRY(carry_run(to, n, l->order, e));
        return graph_lane_carry(l->lane, to, e);
    }
    int packed = graph_model_info(t->gm)->sharing == SHARING_PACKED;
    for (uint32_t i = 0; st == ST_OK && i < n; i++) {
        uint32_t r = l->order[i], length = b->lengths[r];
        take(l, r, length, b->ids + l->starts[r], mask_id, rows);
        rows += (size_t)(!by_token ? 1 : packed || !fill ? length : fill) * width;
    }
    return ST_OK;
}

static enum status run_all(struct onnxtext_lane *l, const struct model_batch *b, int32_t mask_id, struct carry_out *to, struct err *e)
{
    enum sharing sharing = graph_model_info(l->t->gm)->sharing;
    uint32_t fill = graph_model_fill(l->t->gm);
    for (uint32_t first = 0; first < b->n; first++) {
        uint32_t n = 0;
        if (sharing != SHARING_EQUAL || fill) { /* all at once, or one after the other */
            uint32_t many = sharing == SHARING_PACKED ? b->n : 1;
            for (; n < many; n++)
                l->order[n] = first + n;
            first += many - 1;
        } else {
            for (uint32_t r = 0; r < first && n == 0; r++)
                n = b->lengths[r] == b->lengths[first];
            if (n)
                continue; /* it was in an earlier group */
            for (uint32_t r = first; r < b->n; r++)
                if (b->lengths[r] == b->lengths[first])
                    l->order[n++] = r;
        }
        TRY(run_group(l, b, n, mask_id, to, e));
    }
    return ST_OK;
}

/* Where each text's tokens and rows begin. */
static void begin(struct onnxtext_lane *l, const struct model_batch *b, int32_t mask_id)
{
    const struct onnxtext *t = l->t;
    uint32_t rows = 0, tokens = 0;
    BUG_IF(b->n > l->max_seqs, "%u texts in a lane of %u", b->n, l->max_seqs);
    for (uint32_t r = 0; r < b->n; r++) {
        l->starts[r] = tokens;
        l->at[r] = rows;
        l->rows[r] = t->c.task == TASK_TOKENS ? b->lengths[r] : t->c.task == TASK_FILL_MASK ? 0 : 1;
        for (uint32_t k = 0; t->c.task == TASK_FILL_MASK && k < b->lengths[r]; k++)
            l->rows[r] += b->ids[tokens + k] == mask_id;
        tokens += b->lengths[r];
        rows += l->rows[r];
    }
    BUG_IF(tokens > l->max_tokens, "%u tokens in a lane of %u", tokens, l->max_tokens);
    for (uint32_t r = 0; l->result.errors && r < l->max_seqs; r++) {
        mem_free(l->errors[r]);
        l->errors[r] = NULL;
    }
    l->result.errors = NULL;
}

static const struct model_result *result_of(struct onnxtext_lane *l)
{
    const struct onnxtext *t = l->t;
    l->result.count = 1;
    l->result.tensor[0] = (struct model_tensor){.name = t->c.task == TASK_EMBED ? "embedding" : "scores", .width = t->width, .f32 = l->out,
                                                .rows = per_token(t) ? l->rows : NULL};
    if (t->c.task == TASK_FILL_MASK) {
        l->result.tensor[1] = (struct model_tensor){.name = "tokens", .width = t->width, .i32 = l->found, .rows = l->rows};
        l->result.count = 2;
    }
    return &l->result;
}

const struct model_result *onnxtext_run(struct onnxtext_lane *l, const struct model_batch *b, int32_t mask_id)
{
    struct err e;
    BUG_IF(!graph_model_is_first(l->t->gm) || !graph_model_is_last(l->t->gm), "a part of a model is run as if it were whole");
    begin(l, b, mask_id);
    return run_all(l, b, mask_id, NULL, &e) == ST_OK ? result_of(l) : NULL;
}

/* Stages ------------------------------------------------------------------------------------------------------------------------------------------- */

/* One run of the stage before. */
static enum status resume(struct onnxtext_lane *l, const struct model_batch *b, struct carry_in *in, const struct carry_run *run, int32_t mask_id, struct carry_out *to,
                          struct err *e)
{
    const struct graph_model_info *i = graph_model_info(l->t->gm);
    if (run->error) {
        char text[sizeof e->text];
        snprintf(text, sizeof text, "%.*s", run->error_len < sizeof text ? (int)run->error_len : (int)sizeof text - 1, run->error);
        return to ? carry_error(to, run->records[0], text, e) : fail(l, run->records[0], text) == ST_OK ? ST_OK : err_nomem(e, "an error");
    }
    for (uint32_t k = 0; k < run->n; k++) {
        l->order[k] = run->records[k];
        l->lengths[k] = b->lengths[run->records[k]];
        if (i->sharing == SHARING_EQUAL && !graph_model_fill(l->t->gm) && l->lengths[k] != l->lengths[0])
            return err_set(e, ST_CORRUPT, "what came from the stage before is damaged: texts of %u and %u tokens share a run", l->lengths[0], l->lengths[k]);
    }
    TRY(graph_lane_take(l->lane, in, run->n, l->lengths, e));
    return run_group(l, b, run->n, mask_id, to, e);
}

static enum status resume_all(struct onnxtext_lane *l, const struct model_batch *b, const void *data, size_t len, int32_t mask_id, struct carry_out *to, struct err *e)
{
    struct carry_in in = {0};
    struct carry_run run;
    int more = 1;
    enum status st = carry_open(&in, data, len, graph_model_check(l->t->gm, 0), b->n, e);
    while (st == ST_OK && more) {
        st = carry_next(&in, &run, &more, e);
        if (st == ST_OK && more)
            st = resume(l, b, &in, &run, mask_id, to, e);
    }
    carry_close(&in);
    return st;
}

/* It came over the wire. */
static enum status check_batch(const struct onnxtext_lane *l, const struct model_batch *b, struct err *e)
{
    uint32_t fill = graph_model_fill(l->t->gm);
    uint64_t tokens = 0, longest = fill ? fill : l->max_tokens;
    if (!b->n || b->n > l->max_seqs || !b->ids)
        return err_set(e, ST_CORRUPT, "a micro-batch of %u texts; 1 to %u were planned", b->n, l->max_seqs);
    for (uint32_t r = 0; r < b->n; r++) {
        if (!b->lengths[r] || b->lengths[r] > longest)
            return err_set(e, ST_CORRUPT, "a micro-batch with a text of %u tokens; the model takes 1 to %llu", b->lengths[r], (unsigned long long)longest);
        tokens += b->lengths[r];
    }
    return tokens <= l->max_tokens ? ST_OK
                                   : err_set(e, ST_CORRUPT, "a micro-batch of %llu tokens; planned were %u", (unsigned long long)tokens, l->max_tokens);
}

enum status onnxtext_stage(struct onnxtext_lane *l, const struct model_batch *b, int32_t mask_id, const void *in, size_t in_len, const void **out, size_t *out_len,
                           const struct model_result **result, struct err *e)
{
    const struct graph_model *gm = l->t->gm;
    int last = graph_model_is_last(gm);
    struct carry_out *to = last ? NULL : &l->carried;
    *out = NULL;
    *out_len = 0;
    *result = NULL;
    TRY(check_batch(l, b, e));
    begin(l, b, mask_id);
    if (to)
        TRY(carry_begin(to, graph_model_check(gm, 1), b->n, e));
    if (graph_model_is_first(gm) && in_len)
        return err_set(e, ST_CORRUPT, "the first stage of a model is given %zu bytes as if there were one before it", in_len);
    if (graph_model_is_first(gm))
        TRY(run_all(l, b, mask_id, to, e));
    else
        TRY(resume_all(l, b, in, in_len, mask_id, to, e));
    if (last) {
        *result = result_of(l);
        return ST_OK;
    }
    carry_end(to);
    *out = to->b.data;
    *out_len = to->b.len;
    return ST_OK;
}
