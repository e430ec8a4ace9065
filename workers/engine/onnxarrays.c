#include "workers/engine/onnxarrays.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "storage/modeldir.h"
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

/* n records of equal sizes. Where they do not go through the model together, each goes alone, so that only the one that is wrong fails. */
static enum status run_some(struct onnxarrays_lane *l, const uint32_t *records, uint32_t n, model_take *take, void *arg, struct err *e)
{
    uint32_t n_in = graph_model_info(l->t->gm)->n_in;
    struct err why;
    for (uint32_t i = 0; i < n; i++)
        memcpy(&l->some[(size_t)i * n_in], &l->in[(size_t)records[i] * n_in], n_in * sizeof *l->some);
    enum status st = graph_lane_run(l->lane, n, l->some, &why);
    if (st == ST_NOMEM)
        return err_set(e, st, "%s", why.text);
    if (st != ST_OK && n == 1)
        take(arg, records[0], NULL, 0, why.text);
    for (uint32_t i = 0; i < n; i++) {
        if (st == ST_OK)
            give(l, i, records[i], take, arg);
        else if (n > 1)
            TRY(run_some(l, &records[i], 1, take, arg, e));
    }
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

enum status onnxarrays_run(struct onnxarrays_lane *l, uint32_t n, const struct array *const *in, model_take *take, void *arg, struct err *e)
{
    const struct graph_model_info *info = graph_model_info(l->t->gm);
    BUG_IF(n > l->max_records, "%u records in a lane of %u", n, l->max_records);
    for (uint32_t r = 0; r < n; r++)
        memcpy(&l->in[(size_t)r * info->n_in], in[r], info->n_in * sizeof *l->in);
    uint32_t at = 0, groups = graph_groups(n, info->n_in, l->in, l->order, l->groups);
    for (uint32_t g = 0; g < groups; g++) {
        uint64_t each = bytes_of(&l->in[(size_t)l->order[at] * info->n_in], info->n_in);
        uint32_t most = info->sharing != SHARING_EQUAL || each > GROUP_BYTES ? 1 : (uint32_t)(GROUP_BYTES / each);
        for (uint32_t done = 0; done < l->groups[g]; done += most) {
            uint32_t some = l->groups[g] - done < most ? l->groups[g] - done : most;
            TRY(run_some(l, l->order + at + done, some, take, arg, e));
        }
        at += l->groups[g];
    }
    return ST_OK;
}
