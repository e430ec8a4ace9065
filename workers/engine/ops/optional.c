/* Values that may not be there. */
#include "workers/engine/ops/bodies.h"

static enum status make_check(struct node *n, struct err *e)
{
    if (n->n_in && n->in[0] >= 0)
        return ST_OK;
    const struct attr *a = node_attr(n, "type");
    return a && a->kind == ATTR_TYPE ? ST_OK : node_error(n, e, "has neither an input nor an attribute 'type'");
}

static enum status make_shape(struct shaping *s, struct err *e)
{
    (void)e;
    const struct attr *a = node_attr(s->node, "type");
    if (!s->syms)
        return ST_OK; /* running tells */
    if (s->n_in && s->in[0].kind != VALUE_NONE) {
        s->out[0] = s->in[0];
        s->out[0].optional = 1;
    } else {
        s->out[0] = (struct type){.kind = (enum value_kind)a->type_kind, .optional = 1, .dtype = (enum dtype)a->i, .rank = -1};
    }
    return ST_OK;
}

static enum status pass_run(struct run *r, const struct node *n, struct err *e)
{
    static const struct value none;
    (void)n;
    const struct value *x = run_in_value(r, 0);
    return run_out_value(r, 0) ? value_share(run_out_value(r, 0), x ? x : &none, e) : ST_OK;
}

static enum status has_shape(struct shaping *s, struct err *e)
{
    (void)e;
    type_tensor(&s->out[0], DT_BOOL, 0, NULL);
    return ST_OK;
}

static enum status has_run(struct run *r, const struct node *n, struct err *e)
{
    (void)n;
    (void)e;
    const struct value *x = run_in_value(r, 0);
    *(uint8_t *)tensor_data(run_out(r, 0)) = x && x->kind != VALUE_NONE;
    return ST_OK;
}

static enum status get_shape(struct shaping *s, struct err *e)
{
    if (!s->syms)
        return ST_OK;
    if (s->in[0].kind == VALUE_NONE)
        return node_error(s->node, e, "gets from an optional of which nothing is known");
    s->out[0] = s->in[0];
    s->out[0].optional = 0;
    return ST_OK;
}

static enum status get_run(struct run *r, const struct node *n, struct err *e)
{
    const struct value *x = run_in_value(r, 0);
    return x->kind == VALUE_NONE ? node_error(n, e, "gets from an empty optional") : pass_run(r, n, e);
}

const struct op_def ops_optional[] = {
    {.domain = "", .name = "Optional", .since = 15, .until = 99, .min_in = 0, .max_in = 1, .min_out = 1, .max_out = 1, .flags = OP_VALUES | OP_HOST,
     .check = make_check, .shape = make_shape, .run = pass_run},
    {.domain = "", .name = "OptionalHasElement", .since = 15, .until = 99, .min_in = 0, .max_in = 1, .min_out = 1, .max_out = 1,
     .flags = OP_VALUES | OP_HOST, .shape = has_shape, .run = has_run},
    {.domain = "", .name = "OptionalGetElement", .since = 15, .until = 99, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1,
     .flags = OP_VALUES | OP_HOST, .shape = get_shape, .run = get_run},
    {0},
};
