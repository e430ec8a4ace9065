#include "workers/engine/onnxarrays.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "storage/modeldir.h"
#include "workers/engine/carry.h"
#include "workers/engine/graph/tensor.h"
#include "workers/engine/scores.h"

enum { GROUP_BYTES = 4 << 20 }; /* of inputs that share a run: activations are several times that */

struct onnxarrays {
    struct graph_model *gm;
    enum task task;
    enum scoring scoring;
    uint32_t output, width;
};

/* id2label of config.json, where it has as many as the output is wide. */
static enum status read_labels(const char *folder, uint32_t width, struct model_config *c, struct err *e)
{
    json_t *j = NULL;
    struct err ignored;
    enum status st = modeldir_json(folder, "config.json", &j, &ignored);
    if (st != ST_OK)
        return st == ST_NOMEM ? err_nomem(e, "config.json") : ST_OK;
    json_t *names = json_object_get(j, "id2label");
    if (json_object_size(names) == width && !(c->label = mem_array(width, sizeof *c->label)))
        st = err_nomem(e, "labels");
    for (uint32_t i = 0; c->label && i < width && st == ST_OK; i++) {
        char key[16];
        snprintf(key, sizeof key, "%u", i);
        const char *name = json_string_value(json_object_get(names, key));
        c->label[i] = name ? mem_strdup(name) : mem_printf("LABEL_%u", i);
        if (c->label[i])
            c->label_count++;
        else
            st = err_nomem(e, "labels");
    }
    const char *problem = json_string_value(json_object_get(j, "problem_type"));
    c->scoring = problem && strcmp(problem, "multi_label_classification") == 0 ? SCORING_SIGMOID : problem && strcmp(problem, "regression") == 0 ? SCORING_RAW : SCORING_SOFTMAX;
    json_decref(j);
    return st;
}

/* An output that is one row of float32 of a known width: "logits" before others, a task's first before the rest. */
static int find_row(const struct graph_model_info *i, const char *word)
{
    for (uint32_t o = 0; o < i->n_out; o++)
        if (i->out[o].rank == 1 && i->out[o].dtype == DT_F32 && i->out[o].dims[0] > 0 && i->out[o].dims[0] < 1 << 24 && i->batched &&
            (!word || strstr(i->out[o].name, word)))
            return (int)o;
    return -1;
}

static enum status set_up(struct onnxarrays *t, const char *folder, const struct model_opts *o, struct model_config *c, struct err *e)
{
    const struct graph_model_info *i = graph_model_info(t->gm);
    int is_auto = !o->task || strcmp(o->task, "auto") == 0;
    int logits = find_row(i, "logits"), row = logits >= 0 ? logits : find_row(i, NULL);
    t->task = TASK_OUTPUTS;
    if (row >= 0) {
        t->output = (uint32_t)row;
        t->width = (uint32_t)i->out[row].dims[0];
        TRY(read_labels(folder, t->width, c, e));
    }
    if (is_auto && c->label_count && (logits >= 0 || i->n_out == 1))
        t->task = TASK_CLASSIFY;
    else if (!is_auto && strcmp(o->task, "classify") == 0)
        t->task = TASK_CLASSIFY;
    else if (!is_auto && strcmp(o->task, "embed") == 0)
        t->task = TASK_EMBED;
    else if (!is_auto && strcmp(o->task, "outputs") != 0)
        return err_set(e, ST_USER, "the task '%s' is one of texts; this model takes arrays: it can embed, classify, or give its outputs", o->task);
    if (t->task != TASK_OUTPUTS && row < 0)
        return err_set(e, ST_USER, "none of its outputs ('%s'...) is one row of float32 for each record, which the task '%s' needs; --task outputs gives them as they are",
                       i->n_out ? i->out[0].name : "", task_words[t->task]);
    if (t->task == TASK_CLASSIFY && !c->label_count) { /* numbers for names */
        if (!(c->label = mem_array(t->width, sizeof *c->label)))
            return err_nomem(e, "labels");
        for (; c->label_count < t->width; c->label_count++)
            if (!(c->label[c->label_count] = mem_printf("LABEL_%u", c->label_count)))
                return err_nomem(e, "labels");
    }
    c->task = t->task;
    t->scoring = c->scoring;
    if (t->task == TASK_OUTPUTS)
        t->width = 0;
    return ST_OK;
}

enum status onnxarrays_open(struct graph_model *gm, const char *folder, const struct model_opts *o, struct model_config *c, struct onnxarrays **out,
                            struct err *e)
{
    struct onnxarrays *t = mem_zalloc(sizeof *t);
    if (!t)
        return err_nomem(e, "a model");
    *c = (struct model_config){0};
    t->gm = gm;
    enum status st = set_up(t, folder, o, c, e);
    if (st == ST_OK) {
        *out = t;
        return ST_OK;
    }
    config_release(c);
    mem_free(t);
    return st;
}

void onnxarrays_free(struct onnxarrays *t)
{
    if (!t)
        return;
    graph_model_free(t->gm);
    mem_free(t);
}

const struct graph_model_info *onnxarrays_info(const struct onnxarrays *t)
{
    return graph_model_info(t->gm);
}

uint32_t onnxarrays_width(const struct onnxarrays *t)
{
    return t->width;
}

const struct port *onnxarrays_outputs(const struct onnxarrays *t, uint32_t *count)
{
    const struct graph_model_info *i = graph_model_info(t->gm);
    *count = t->task == TASK_OUTPUTS ? i->n_out : 1;
    return t->task == TASK_OUTPUTS ? i->out : &i->out[t->output];
}

/* Lanes ------------------------------------------------------------------------------------------------------------------------------------- */

struct onnxarrays_lane {
    const struct onnxarrays *t;
    struct graph_lane *lane;
    uint32_t max_records, *order, *groups;
    struct array *in; /* of all records, one behind the other; then of a group */
    struct array *some;
    float *scores;
    /* of stages */
    struct carry_out carried;
    void *room; /* arrays that were read */
    size_t room_bytes;
};

void onnxarrays_lane_free(struct onnxarrays_lane *l)
{
    if (!l)
        return;
    graph_lane_free(l->lane);
    mem_free(l->order);
    mem_free(l->groups);
    mem_free(l->in);
    mem_free(l->some);
    mem_free(l->scores);
    buf_release(&l->carried.b);
    mem_free(l->room);
    mem_free(l);
}

enum status onnxarrays_lane_new(const struct onnxarrays *t, uint32_t max_records, struct onnxarrays_lane **out, struct err *e)
{
    struct onnxarrays_lane *l = mem_zalloc(sizeof *l);
    if (!l)
        return err_nomem(e, "a lane");
    size_t ports = graph_model_info(t->gm)->n_in + 1;
    *l = (struct onnxarrays_lane){.t = t, .max_records = max_records};
    l->order = mem_array(max_records, sizeof *l->order);
    l->groups = mem_array(max_records, sizeof *l->groups);
    l->in = mem_array(max_records * ports, sizeof *l->in);
    l->some = mem_array(max_records * ports, sizeof *l->some);
    l->scores = mem_array(t->width + 1, sizeof *l->scores);
    enum status st = l->order && l->groups && l->in && l->some && l->scores ? graph_lane_new(t->gm, &l->lane, e) : err_nomem(e, "a lane");
    if (st == ST_OK)
        *out = l;
    else
        onnxarrays_lane_free(l);
    return st;
}

static void give(struct onnxarrays_lane *l, uint32_t at, uint32_t record, model_take *take, void *arg)
{
    const struct onnxarrays *t = l->t;
    struct array out[PORTS_MAX];
    if (t->task == TASK_OUTPUTS) {
        uint32_t n = graph_model_info(t->gm)->n_out;
        for (uint32_t o = 0; o < n; o++)
            graph_lane_result(l->lane, o, at, &out[o]);
        take(arg, record, out, n, NULL);
        return;
    }
    graph_lane_result(l->lane, t->output, at, &out[0]);
    if (out[0].dtype != DT_F32 || out[0].rank != 1 || out[0].dims[0] != t->width) {
        take(arg, record, NULL, 0, "the model's result has other sizes than its file says");
        return;
    }
    if (t->task == TASK_CLASSIFY) {
        memcpy(l->scores, out[0].data, t->width * sizeof *l->scores);
        scores_row(t->scoring, t->width, l->scores);
        out[0].data = l->scores;
    }
    take(arg, record, out, 1, NULL);
}

/* Where a run's results go: to the caller, or on to the next stage. */
struct taker {
    model_take *take;
    void *arg;
    struct carry_out *to;
};

/* n records of equal sizes: l->some, or what was taken. Where they do not go through the model together, each goes alone, so that only the one that is wrong fails. */
static enum status run_some(struct onnxarrays_lane *l, const uint32_t *records, uint32_t n, int taken, const struct taker *t, struct err *e)
{
    uint32_t n_in = graph_model_info(l->t->gm)->n_in;
    struct err why;
    for (uint32_t i = 0; i < n && !taken; i++)
        memcpy(&l->some[(size_t)i * n_in], &l->in[(size_t)records[i] * n_in], n_in * sizeof *l->some);
    enum status st = taken ? graph_lane_resume(l->lane, &why) : graph_lane_run(l->lane, n, l->some, &why);
    if (st == ST_NOMEM)
        return err_set(e, st, "%s", why.text);
    if (st != ST_OK && n == 1) {
        if (t->to)
            return carry_error(t->to, records[0], why.text, e);
        t->take(t->arg, records[0], NULL, 0, why.text);
    }
    for (uint32_t i = 0; st != ST_OK && n > 1 && i < n; i++) {
        if (taken)
            TRY(graph_lane_take_one(l->lane, i, 0, 0, e));
        TRY(run_some(l, &records[i], 1, taken, t, e));
    }
    if (st == ST_OK && t->to) {
        TRY(carry_run(t->to, n, records, e));
        return graph_lane_carry(l->lane, t->to, e);
    }
    for (uint32_t i = 0; st == ST_OK && i < n; i++)
        give(l, i, records[i], t->take, t->arg);
    return ST_OK;
}

static uint64_t bytes_of(const struct array *in, uint32_t n_in)
{
    uint64_t bytes = 1;
    for (uint32_t i = 0; i < n_in; i++) {
        uint64_t n = dtype_bytes(in[i].dtype);
        for (uint32_t k = 0; k < in[i].rank; k++)
            n *= (uint64_t)in[i].dims[k];
        bytes += n;
    }
    return bytes;
}

/* l->in has the arrays of n records. */
static enum status run_all(struct onnxarrays_lane *l, uint32_t n, const struct taker *t, struct err *e)
{
    const struct graph_model_info *info = graph_model_info(l->t->gm);
    uint32_t at = 0, groups = graph_groups(n, info->n_in, l->in, l->order, l->groups);
    for (uint32_t g = 0; g < groups; g++) {
        uint64_t each = bytes_of(&l->in[(size_t)l->order[at] * info->n_in], info->n_in);
        uint32_t most = info->sharing != SHARING_EQUAL || each > GROUP_BYTES ? 1 : (uint32_t)(GROUP_BYTES / each);
        for (uint32_t done = 0; done < l->groups[g]; done += most) {
            uint32_t some = l->groups[g] - done < most ? l->groups[g] - done : most;
            TRY(run_some(l, l->order + at + done, some, 0, t, e));
        }
        at += l->groups[g];
    }
    return ST_OK;
}

enum status onnxarrays_run(struct onnxarrays_lane *l, uint32_t n, const struct array *const *in, model_take *take, void *arg, struct err *e)
{
    const struct graph_model_info *info = graph_model_info(l->t->gm);
    BUG_IF(n > l->max_records, "%u records in a lane of %u", n, l->max_records);
    BUG_IF(!graph_model_is_first(l->t->gm) || !graph_model_is_last(l->t->gm), "a part of a model is run as if it were whole");
    for (uint32_t r = 0; r < n; r++)
        memcpy(&l->in[(size_t)r * info->n_in], in[r], info->n_in * sizeof *l->in);
    return run_all(l, n, &(struct taker){take, arg, NULL}, e);
}

/* Stages ------------------------------------------------------------------------------------------------------------------------------------

   What records bring, and what they get, travels as what crosses cuts does: a run for each record. */

enum { CHECK_INPUTS = 0x1e, CHECK_RESULTS = 0x2e };

static uint64_t check_of(const struct port *p, uint32_t count, uint64_t check)
{
    for (uint32_t i = 0; i < count; i++)
        for (const char *c = p[i].name; *c; c++)
            check = (check ^ (uint8_t)*c) * UINT64_C(1099511628211) + (uint64_t)p[i].dtype;
    return check;
}

static uint64_t inputs_check(const struct onnxarrays *t)
{
    const struct graph_model_info *i = graph_model_info(t->gm);
    return check_of(i->in, i->n_in, CHECK_INPUTS);
}

static uint64_t results_check(const struct onnxarrays *t)
{
    uint32_t count;
    const struct port *p = onnxarrays_outputs(t, &count);
    return check_of(p, count, CHECK_RESULTS);
}

enum status onnxarrays_pack(struct onnxarrays_lane *l, uint32_t n, const struct array *const *in, const void **out, size_t *out_len, struct err *e)
{
    uint32_t n_in = graph_model_info(l->t->gm)->n_in;
    struct carry_out *o = &l->carried;
    BUG_IF(n > l->max_records, "%u records in a lane of %u", n, l->max_records);
    TRY(carry_begin(o, inputs_check(l->t), n, e));
    for (uint32_t r = 0; r < n; r++) {
        TRY(carry_run(o, 1, &r, e));
        for (uint32_t i = 0; i < n_in; i++)
            TRY(carry_tensor(o, &in[r][i], e));
    }
    carry_end(o);
    *out = o->b.data;
    *out_len = o->b.len;
    return ST_OK;
}

/* Arrays that were read, and lie in the bytes they came in, get memory of their own. */
static enum status unpack(struct onnxarrays_lane *l, struct array *a, size_t count, struct err *e)
{
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += (carry_bytes(&a[i]) + 63) / 64 * 64;
    if (bytes > l->room_bytes || !l->room) {
        void *room = mem_aligned(bytes + 64);
        if (!room)
            return err_nomem(e, "a lane's inputs");
        mem_free(l->room);
        l->room = room;
        l->room_bytes = bytes;
    }
    char *to = l->room;
    for (size_t i = 0; i < count; i++) {
        carry_unpack(&a[i], to);
        a[i].data = to;
        to += (carry_bytes(&a[i]) + 63) / 64 * 64;
    }
    return ST_OK;
}

static enum status read_port(struct carry_in *in, const struct port *p, struct array *out, struct err *e)
{
    TRY(carry_read_tensor(in, p->name, out, e));
    return out->dtype == p->dtype ? ST_OK : err_set(e, ST_CORRUPT, "what came is damaged: '%s' is of %s, not %s", p->name, dtype_name(out->dtype), dtype_name(p->dtype));
}

static enum status read_inputs(struct onnxarrays_lane *l, struct carry_in *in, uint32_t n, struct err *e)
{
    const struct graph_model_info *info = graph_model_info(l->t->gm);
    struct carry_run run;
    int more;
    for (;;) {
        TRY(carry_next(in, &run, &more, e));
        if (!more)
            return unpack(l, l->in, (size_t)n * info->n_in, e);
        if (run.n != 1 || run.error)
            return err_set(e, ST_CORRUPT, "what the first stage was given is damaged: a record without its arrays");
        for (uint32_t i = 0; i < info->n_in; i++)
            TRY(read_port(in, &info->in[i], &l->in[(size_t)run.records[0] * info->n_in + i], e));
    }
}

/* The error of a record, with an end. */
static const char *text_of(const struct carry_run *run, char *to, size_t cap)
{
    snprintf(to, cap, "%.*s", run->error_len < cap ? (int)run->error_len : (int)cap - 1, run->error);
    return to;
}

static enum status resume_all(struct onnxarrays_lane *l, struct carry_in *in, const struct taker *t, struct err *e)
{
    struct carry_run run;
    char text[sizeof e->text];
    int more;
    for (;;) {
        TRY(carry_next(in, &run, &more, e));
        if (!more)
            return ST_OK;
        if (run.error) {
            if (t->to)
                TRY(carry_error(t->to, run.records[0], text_of(&run, text, sizeof text), e));
            else
                t->take(t->arg, run.records[0], NULL, 0, text_of(&run, text, sizeof text));
            continue;
        }
        TRY(graph_lane_take(l->lane, in, run.n, NULL, e));
        TRY(run_some(l, run.records, run.n, 1, t, e));
    }
}

/* The last stage's model_take: results become bytes. */
struct results {
    struct carry_out *to;
    enum status st;
    struct err *e;
};

static void put_result(void *arg, uint32_t record, const struct array *out, uint32_t n_out, const char *error)
{
    struct results *r = arg;
    if (r->st == ST_OK)
        r->st = error ? carry_error(r->to, record, error, r->e) : carry_run(r->to, 1, &record, r->e);
    for (uint32_t i = 0; i < n_out && !error && r->st == ST_OK; i++)
        r->st = carry_tensor(r->to, &out[i], r->e);
}

static enum status run_stage(struct onnxarrays_lane *l, uint32_t n, struct carry_in *in, const struct taker *t, struct err *e)
{
    if (!graph_model_is_first(l->t->gm))
        return resume_all(l, in, t, e);
    TRY(read_inputs(l, in, n, e));
    return run_all(l, n, t, e);
}

enum status onnxarrays_stage(struct onnxarrays_lane *l, uint32_t n, const void *data, size_t len, const void **out, size_t *out_len, struct err *e)
{
    const struct graph_model *gm = l->t->gm;
    struct carry_out *o = &l->carried;
    struct results results = {.to = o, .e = e};
    int last = graph_model_is_last(gm);
    struct taker t = last ? (struct taker){put_result, &results, NULL} : (struct taker){NULL, NULL, o};
    struct carry_in in = {0};
    BUG_IF(n > l->max_records, "%u records in a lane of %u", n, l->max_records);
    TRY(carry_begin(o, last ? results_check(l->t) : graph_model_check(gm, 1), n, e));
    enum status st = carry_open(&in, data, len, graph_model_is_first(gm) ? inputs_check(l->t) : graph_model_check(gm, 0), n, e);
    if (st == ST_OK)
        st = run_stage(l, n, &in, &t, e);
    if (st == ST_OK)
        st = results.st;
    carry_close(&in);
    TRY(st);
    carry_end(o);
    *out = o->b.data;
    *out_len = o->b.len;
    return ST_OK;
}

static enum status take_all(struct onnxarrays_lane *l, struct carry_in *in, const struct port *p, uint32_t count, model_take *take, void *arg, struct err *e)
{
    struct array out[PORTS_MAX];
    struct carry_run run;
    char text[sizeof e->text];
    int more;
    for (;;) {
        TRY(carry_next(in, &run, &more, e));
        if (!more)
            return ST_OK;
        if (run.error) {
            take(arg, run.records[0], NULL, 0, text_of(&run, text, sizeof text));
            continue;
        }
        if (run.n != 1)
            return err_set(e, ST_CORRUPT, "what the last stage gave is damaged: %u records have one result", run.n);
        for (uint32_t i = 0; i < count; i++)
            TRY(read_port(in, &p[i], &out[i], e));
        TRY(unpack(l, out, count, e));
        if (l->t->task != TASK_OUTPUTS && (out[0].rank != 1 || out[0].dims[0] != l->t->width))
            return err_set(e, ST_CORRUPT, "what the last stage gave is damaged: '%s' is not a row of %u numbers", p[0].name, l->t->width);
        take(arg, run.records[0], out, count, NULL);
    }
}

enum status onnxarrays_take(struct onnxarrays_lane *l, uint32_t n, const void *data, size_t len, model_take *take, void *arg, struct err *e)
{
    struct carry_in in = {0};
    uint32_t count;
    const struct port *p = onnxarrays_outputs(l->t, &count);
    enum status st = carry_open(&in, data, len, results_check(l->t), n, e);
    if (st == ST_OK)
        st = take_all(l, &in, p, count, take, arg, e);
    carry_close(&in);
    return st;
}
