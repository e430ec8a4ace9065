#include "workers/engine/describe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/precision.h"

/* Of the kernels; raised whenever a bit of any result changes. The class of the numbers follows (kernels.h). */
#define NUMERICS "ebb1"

/* The last component of dir, of what it resolves to for "." and the like. */
enum status describe_name(const char *dir, char *out, size_t cap, struct err *e)
{
    char *real = realpath(dir, NULL);
    if (!real)
        return err_set(e, ST_USER, "there is no model directory '%s'", dir);
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    size_t start = n;
    while (start > 0 && dir[start - 1] != '/')
        start--;
    const char *s = dir + start;
    size_t len = n - start;
    if (len == 0 || (len == 1 && s[0] == '.') || (len == 2 && s[0] == '.' && s[1] == '.')) {
        s = strrchr(real, '/') + 1;
        len = strlen(s);
    }
    snprintf(out, cap, "%.*s", (int)len, s);
    free(real); /* libc's */
    return ST_OK;
}

static void describe_labels(struct model_info *i, const struct model_config *c)
{
    size_t n = 0, cap = sizeof i->label_names - 4;
    i->labels = c->label_count;
    for (uint32_t k = 0; k < c->label_count; k++) {
        size_t need = strlen(c->label[k]) + (k ? 2 : 0);
        if (n + need >= cap) {
            snprintf(i->label_names + n, sizeof i->label_names - n, "...");
            break;
        }
        n += (size_t)snprintf(i->label_names + n, cap - n, "%s%s", k ? ", " : "", c->label[k]);
    }
}

/* As they run, for one micro-batch. */
static void describe_ops(struct model_info *i, const struct model_config *c)
{
    uint32_t layers = c->layers * c->inner, linear = 4 * layers, norm = 1 + 2 * layers;
    int projects = c->family->projection && (c->embedding != c->hidden || c->family->inner);
    char head[48] = "";
    linear += (uint32_t)projects;
    if (c->task == TASK_EMBED) {
        for (uint32_t k = 0; k < c->step_count; k++)
            linear += (uint32_t)c->step[k].is_dense;
        snprintf(head, sizeof head, ", %u pool%s", c->pooling_count, i->normalize ? ", 1 unit" : "");
    } else {
        linear += c->task == TASK_TOKENS ? 1 : 2;
        norm += c->task == TASK_FILL_MASK;
        snprintf(head, sizeof head, ", 1 %s", c->task == TASK_FILL_MASK ? "top-k" : scoring_words[c->scoring]);
    }
    snprintf(i->ops, sizeof i->ops, "1 embed, %u linear, %u %sattention, %u norm%s", linear, layers,
             c->family->relative == RELATIVE_NONE ? "" : "relative ", norm, head);
}

/* What a task is described by, whatever the model is read from. */
void describe_task(struct model_info *i, const struct model_config *c, const struct kernels *k)
{
    size_t n = 0;
    i->kind = c->task;
    snprintf(i->task, sizeof i->task, "%s", task_words[c->task]);
    snprintf(i->isa, sizeof i->isa, "%s", k->name);
    for (uint32_t p = 0; c->task == TASK_EMBED && p < c->pooling_count; p++)
        n += (size_t)snprintf(i->pooling + n, sizeof i->pooling - n, "%s%s", p ? "+" : "", pooling_name(c->pooling[p]));
    i->normalize = c->task == TASK_EMBED && c->step_count && !c->step[c->step_count - 1].is_dense;
    if (c->task == TASK_CLASSIFY || c->task == TASK_TOKENS)
        snprintf(i->scoring, sizeof i->scoring, "%s", scoring_words[c->scoring]);
    snprintf(i->mask_token, sizeof i->mask_token, "%s", c->mask_token);
    describe_labels(i, c);
    i->vocab = c->vocab;
    i->token_types = c->types;
    i->max_tokens = c->max_tokens;
    i->per_token = c->task == TASK_TOKENS || c->task == TASK_FILL_MASK;
}

void describe_encoder(struct model_info *i, const struct model_config *c, const struct kernels *k, uint32_t top_k)
{
    snprintf(i->architecture, sizeof i->architecture, "%s", c->family->type);
    describe_task(i, c, k);
    describe_ops(i, c);
    i->layers = c->layers;
    i->hidden = c->hidden;
    i->heads = c->heads;
    i->ffn = c->ffn;
    i->dims = c->task == TASK_EMBED ? config_width(c) : c->task == TASK_FILL_MASK ? top_k : c->label_count;
}

void describe_precision(struct model_info *i, enum precision p, const struct kernels *k)
{
    snprintf(i->precision, sizeof i->precision, "%s", precision_words[p]);
    snprintf(i->precision_why, sizeof i->precision_why, "%s", precision_why(p));
    snprintf(i->numerics, sizeof i->numerics, NUMERICS "-%s", k->product[p].numerics);
}

static void describe_ports(char *to, size_t cap, const struct port *p, uint32_t count)
{
    size_t n = 0;
    for (uint32_t i = 0; i < count && n < cap; i++) {
        n += (size_t)snprintf(to + n, cap - n, "%s%s %s[", i ? ", " : "", p[i].name, dtype_name(p[i].dtype));
        for (int k = 0; k < p[i].rank && n < cap; k++)
            n += (size_t)(p[i].dims[k] < 0 ? snprintf(to + n, cap - n, "%sany", k ? ", " : "") : snprintf(to + n, cap - n, "%s%lld", k ? ", " : "", (long long)p[i].dims[k]));
        if (n < cap)
            n += (size_t)snprintf(to + n, cap - n, p[i].rank < 0 ? "...]" : "]");
    }
}

void describe_graph(struct model_info *i, const struct graph_model_info *g)
{
    static const char *const of_texts[] = {"texts go one by one", "texts of one length share a run", "texts are packed"};
    static const char *const of_arrays[] = {"records go one by one", "records of equal sizes share a run", ""};
    snprintf(i->architecture, sizeof i->architecture, "onnx");
    snprintf(i->ops, sizeof i->ops, "%u nodes, %u as they run; %s", g->nodes, g->ops, (g->text ? of_texts : of_arrays)[g->sharing]);
    if (!g->text) {
        describe_ports(i->inputs, sizeof i->inputs, g->in, g->n_in);
        describe_ports(i->outputs, sizeof i->outputs, g->out, g->n_out);
    }
    i->parameters = g->parameters;
    i->weight_bytes = g->part_bytes;
    for (uint32_t k = 0; k < g->n_in; k++)
        if (strstr(g->in[k].name, "type") || strstr(g->in[k].name, "segment"))
            i->token_types = 2;
}
