/* Constant and ConstantOfShape. */
#include <string.h>

#include "base/mem.h"
#include "workers/engine/graph/inner.h"

/* Constant: its attribute is the tensor --------------------------------------------------------------------------------------------------- */

static const char *const names[] = {"value", "value_float", "value_floats", "value_int", "value_ints", "value_string", "value_strings"};

static enum status constant_check(struct node *n, struct err *e)
{
    const struct attr *a = NULL;
    uint32_t found = 0;
    for (uint32_t i = 0; i < sizeof names / sizeof *names; i++)
        if (node_attr(n, names[i])) {
            a = node_attr(n, names[i]);
            found++;
        }
    if (node_attr(n, "sparse_value"))
        return node_error(n, e, "sparse constants are not supported by this version");
    if (found != 1)
        return node_error(n, e, "has %u values where it should have one", found);
    struct tensor *t = mem_zalloc(sizeof *t);
    if (!t)
        return err_nomem(e, "a constant");
    n->state = t;
    int64_t count = a->count;
    switch (a->kind) {
    case ATTR_TENSOR:
        tensor_share(t, a->tensors);
        return ST_OK;
    case ATTR_FLOAT:
        return tensor_copy(t, DT_F32, 0, NULL, &a->f, e);
    case ATTR_FLOATS:
        return tensor_copy(t, DT_F32, 1, &count, a->floats, e);
    case ATTR_INT:
        return tensor_copy(t, DT_I64, 0, NULL, &a->i, e);
    case ATTR_INTS:
        return tensor_copy(t, DT_I64, 1, &count, a->ints, e);
    case ATTR_STRING:
        return tensor_copy(t, DT_STR, 0, NULL, &a->s, e);
    case ATTR_STRINGS:
        return tensor_copy(t, DT_STR, 1, &count, a->strings, e);
    default:
        return node_error(n, e, "attribute '%s' is of the wrong kind", a->name);
    }
}

static enum status constant_shape(struct shaping *s, struct err *e)
{
    (void)e;
    const struct tensor *t = s->node->state;
    type_tensor(&s->out[0], t->dtype, (int)t->rank, t->dims);
    return ST_OK;
}

/* Folded away; this is for a graph that is finished without folding. */
static enum status constant_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *t = n->state;
    struct value v = {.kind = VALUE_TENSOR, .tensor = *t};
    return value_share(run_out_value(r, 0), &v, e);
}

static void constant_release(struct node *n)
{
    struct tensor *t = n->state;
    if (t)
        tensor_release(t);
    mem_free(t);
    n->state = NULL;
}

/* ConstantOfShape: one value, many times --------------------------------------------------------------------------------------------------- */

static enum status fill_check(struct node *n, struct err *e)
{
    const struct attr *a = node_attr(n, "value");
    if (a && (a->kind != ATTR_TENSOR || tensor_count(a->tensors) != 1))
        return node_error(n, e, "attribute 'value' is not a tensor of one element");
    return ST_OK;
}

static enum status fill_shape(struct shaping *s, struct err *e)
{
    const struct attr *a = node_attr(s->node, "value");
    enum dtype d = a ? a->tensors->dtype : DT_F32;
    const struct type *in = &s->in[0];
    if (in->dtype != DT_I64 || in->rank > 1)
        return node_error(s->node, e, "its input must be a vector of int64");
    if (in->rank == 1 && dim_known(in->dims[0]) && in->dims[0] > RANK_MAX)
        return node_error(s->node, e, "would have rank %lld; at most %d is supported", (long long)in->dims[0], RANK_MAX);
    if (!in->values) {
        type_unknown(s, &s->out[0], d, in->rank == 1 && dim_known(in->dims[0]) ? (int)in->dims[0] : -1);
        return ST_OK;
    }
    int rank = in->rank == 1 ? (int)in->dims[0] : 0;
    type_tensor(&s->out[0], d, rank, in->values);
    /* as a shape tensor: all elements are the same number */
    dim count = type_count(s, &s->out[0]);
    if ((dtype_is_int(d) || d == DT_BOOL) && dim_known(count) && count >= 0 && count <= VALUES_MAX) {
        dim *room = s->room(s, count ? (uint32_t)count : 1), one = 0;
        if (!room)
            return err_nomem(e, "a shape");
        if (a)
            tensor_values(a->tensors, &one);
        for (dim i = 0; i < count; i++)
            room[i] = one;
        s->out[0].values = room;
    }
    return ST_OK;
}

static enum status fill_run(struct run *r, const struct node *n, struct err *e)
{
    (void)e;
    const struct attr *a = node_attr(n, "value");
    struct tensor *y = run_out(r, 0);
    int64_t count = tensor_count(y);
    size_t each = dtype_bytes(y->dtype);
    char *to = tensor_data(y);
    if (!a) {
        memset(to, 0, (size_t)count * each);
        return ST_OK;
    }
    const void *one = tensor_data(a->tensors);
    for (int64_t i = 0; i < count; i++)
        memcpy(to + (size_t)i * each, one, each);
    return ST_OK;
}

const struct op_def ops_constant[] = {
    {.domain = "", .name = "Constant", .since = 1, .until = 99, .max_in = 0, .min_out = 1, .max_out = 1, .flags = OP_VIEW, .check = constant_check,
     .shape = constant_shape, .run = constant_run, .release = constant_release},
    {.domain = "", .name = "ConstantOfShape", .since = 9, .until = 99, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, .check = fill_check,
     .shape = fill_shape, .run = fill_run},
    {0},
};
