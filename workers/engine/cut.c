#include "workers/engine/cut.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/encoder.h"

void cut_release(struct cut *c)
{
    mem_free(c->list);
    c->list = NULL;
    c->count = 0;
}

/* What stands on top of the layers, for one text, or one mask in it. */
static void head_costs(const struct model_config *c, double tokens, uint32_t top_k, double *flops, uint64_t *bytes)
{
    double h = c->hidden;
    *flops = 0;
    switch (c->task) {
    case TASK_EMBED:
        *flops = c->pooling_count * tokens * h;
        for (uint32_t i = 0; i < c->step_count; i++)
            *flops += c->step[i].is_dense ? 2.0 * c->step[i].in * c->step[i].out : 3.0 * config_width(c);
        *bytes = 4ull * config_width(c);
        break;
    case TASK_CLASSIFY:
        *flops = 2 * h * (h + c->label_count);
        *bytes = 4ull * c->label_count;
        break;
    case TASK_TOKENS:
        *flops = 2 * tokens * h * c->label_count;
        *bytes = (uint64_t)(4 * tokens * c->label_count);
        break;
    case TASK_FILL_MASK:
        *flops = 2.0 * c->embedding * (h + c->vocab);
        *bytes = 8ull * top_k;
        break;
    case TASK_OUTPUTS: /* of arrays; never here */
    case TASKS: BUG("task %d", (int)c->task);
    }
}

/* Marks are: embeddings, each layer that has weights of its own, what is on top. Layers that share weights have them where they are used first. */
enum status cut_encoder(struct cut *out, const struct loading *l, uint32_t top_k, struct err *e)
{
    const struct model_config *c = l->c;
    uint32_t layers = c->layers * c->inner, own = c->groups * c->inner;
    double h = c->hidden, tokens = out->tokens;
    struct cut_segment *s = mem_array(layers + 2, sizeof *s);
    BUG_IF(l->marks != own + 2, "%zu marks of a model with %u layers", l->marks, own);
    if (!s)
        return err_nomem(e, "segments");
    for (uint32_t i = 0; i < layers + 2; i++) {
        uint32_t from = i == 0 ? 0 : i > layers ? own + 1 : 1 + encoder_weights_of(c, i - 1), before = i > 0 && i <= layers ? i - 1 : 0;
        uint64_t end = from + 1 < l->marks ? l->mark[from + 1].bytes : l->bytes;
        int again = 0;
        while (before-- > 0)
            again |= encoder_weights_of(c, before) + 1 == from;
        snprintf(s[i].first, sizeof s[i].first, "%s", l->mark[from].name);
        s[i].weight_bytes = again ? 0 : end - l->mark[from].bytes;
        s[i].flops = 2 * (tokens * (4 * h * h + 2 * h * c->ffn) + 2 * tokens * tokens * h);
        s[i].out_bytes = (uint64_t)(4 * tokens * h);
    }
    int projects = c->family->projection && (c->embedding != c->hidden || c->family->inner);
    s[0].flops = 8 * tokens * c->embedding + projects * 2 * tokens * c->embedding * h; /* two sums and a norm */
    head_costs(c, tokens, top_k, &s[layers + 1].flops, &s[layers + 1].out_bytes);
    out->list = s;
    out->count = layers + 2;
    return ST_OK;
}
