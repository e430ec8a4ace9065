/* Identity: the same tensor, sequence or optional under another name. */
#include "workers/engine/graph/inner.h"

static enum status shape(struct shaping *s, struct err *e)
{
    (void)e;
    s->out[0] = s->in[0];
    return ST_OK;
}

static enum status run(struct run *r, const struct node *n, struct err *e)
{
    (void)n;
    const struct value *v = run_in_value(r, 0);
    if (v->kind != VALUE_TENSOR)
        return run_out_value(r, 0) ? value_share(run_out_value(r, 0), v, e) : ST_OK;
    run_view(r, 0, 0, 0, v->tensor.rank, v->tensor.dims);
    return ST_OK;
}

static int follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)in;
    (void)out;
    return s->in[0].kind == VALUE_TENSOR ? (int)axis : -1;
}

const struct op_def ops_identity[] = {
    {.domain = "", .name = "Identity", .since = 1, .until = 99, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, .flags = OP_VIEW,
     .shape = shape, .run = run, .follow = follow},
    {0},
};
