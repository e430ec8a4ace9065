#include "workers/engine/graph/uniform.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/graph/rewrite.h"

/* The number of a constant whose elements are all the same. */
static struct uniform of_constant(const struct tensor *t)
{
    struct uniform none = {0}, u = {.kind = UNIFORM_NUMBER};
    size_t width = dtype_bytes(t->dtype);
    int64_t n = tensor_count(t);
    const char *p = tensor_data(t);
    if (n < 1 || t->dtype == DT_STR)
        return none;
    double low = INFINITY;
    int same = 1;
    for (int64_t i = 0; i < n; i++) {
        same = same && memcmp(p, p + (size_t)i * width, width) == 0;
        double x;
        switch (t->dtype) {
        case DT_I64: x = (double)((const int64_t *)(const void *)p)[i]; break;
        case DT_I32: x = ((const int32_t *)(const void *)p)[i]; break;
        case DT_BOOL: x = ((const uint8_t *)p)[i] != 0; break;
        case DT_F32: x = ((const float *)(const void *)p)[i]; break;
        case DT_F64: x = ((const double *)(const void *)p)[i]; break;
        default: return none;
        }
        if (isnan(x))
            return none;
        low = x < low ? x : low;
        if (!same && i > 4096)
            return none; /* a weight: its lower bound serves nobody */
    }
    u.number = low;
    u.has_low = 1;
    u.low = low;
    if (!same)
        u.kind = UNIFORM_NO;
    return u;
}

static struct uniform number(double x)
{
    return (struct uniform){.kind = UNIFORM_NUMBER, .number = x, .has_low = 1, .low = x};
}

static struct uniform size_of_axis(dim d)
{
    if (dim_known(d))
        return number((double)d);
    return (struct uniform){.kind = UNIFORM_SIZE, .size = d, .has_low = 1, .low = 1};
}

static int is_float_type(const struct graph *g, int32_t v)
{
    return v >= 0 && dtype_is_float(g->values[v].type.dtype);
}

/* As the type of the result would hold it. */
static double rounded(enum dtype d, double x)
{
    switch (d) {
    case DT_F32: return (float)x;
    case DT_BOOL: return x != 0;
    case DT_F64: return x;
    default: return dtype_is_float(d) ? (double)(float)x : trunc(x);
    }
}

static int binary(const char *op, double a, double b, double *out)
{
    if (strcmp(op, "Add") == 0) *out = a + b;
    else if (strcmp(op, "Sub") == 0) *out = a - b;
    else if (strcmp(op, "Mul") == 0) *out = a * b;
    else if (strcmp(op, "And") == 0) *out = a != 0 && b != 0;
    else if (strcmp(op, "Or") == 0) *out = a != 0 || b != 0;
    else if (strcmp(op, "Equal") == 0) *out = a == b;
    else if (strcmp(op, "Greater") == 0) *out = a > b;
    else if (strcmp(op, "GreaterOrEqual") == 0) *out = a >= b;
    else if (strcmp(op, "Less") == 0) *out = a < b;
    else if (strcmp(op, "LessOrEqual") == 0) *out = a <= b;
    else if (strcmp(op, "Max") == 0) *out = a > b ? a : b;
    else if (strcmp(op, "Min") == 0) *out = a < b ? a : b;
    else return 0;
    return 1;
}

static int one_of(const char *op, const char *const *list)
{
    for (; *list; list++)
        if (strcmp(op, *list) == 0)
            return 1;
    return 0;
}

/* Ops whose result holds elements of input 0 and nothing else. */
static const char *const movers[] = {"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Slice", "Tile", "Gather", "GatherND",
                                     "GatherElements", "ReduceMax", "ReduceMin", "ReduceMean", NULL};

static struct uniform reduce_sum(const struct graph *g, const struct node *n, const struct uniform *in)
{
    struct uniform none = {0};
    const struct type *from = &g->values[n->in[0]].type, *to = &g->values[n->out[0]].type;
    if (in->kind != UNIFORM_NUMBER || from->rank < 0 || to->rank < 0)
        return none;
    dim all = 1, left = 1;
    for (int i = 0; i < from->rank; i++)
        all = dim_mul(g->syms, all, from->dims[i]);
    for (int i = 0; i < to->rank; i++)
        left = dim_mul(g->syms, left, to->dims[i]);
    dim summed = left == 0 ? DIM_UNKNOWN : dim_div(g->syms, all, left);
    if (summed == DIM_UNKNOWN || summed == 0)
        return none;
    if (dim_known(summed))
        return number(rounded(to->dtype, in->number * (double)summed));
    /* exact: a sum of ones counts */
    return in->number == 1 ? size_of_axis(summed) : none;
}

static struct uniform of_node(const struct graph *g, const struct node *n, const struct uniform *u)
{
    struct uniform none = {0};
    if (n->domain[0] || n->n_out < 1 || n->out[0] < 0 || n->n_in < 1)
        return none;
    enum dtype d = g->values[n->out[0]].type.dtype;
    const struct uniform *a = n->in[0] >= 0 ? &u[n->in[0]] : &none, *b = n->n_in > 1 && n->in[1] >= 0 ? &u[n->in[1]] : &none;
    double x;
    if (one_of(n->op, movers)) {
        struct uniform r = *a;
        return r;
    }
    if (strcmp(n->op, "Cast") == 0) {
        struct uniform r = *a;
        if (r.kind == UNIFORM_NUMBER)
            return number(rounded(d, r.number));
        if (d == DT_BOOL)
            return r.kind == UNIFORM_SIZE ? number(1) : none;
        r.has_low = r.has_low && (is_float_type(g, n->out[0]) ? fabs(r.low) < 1e6 : r.low >= 0 && r.low < 1e6);
        r.low = r.has_low ? rounded(d, r.low) : 0;
        return r;
    }
    if (n->n_in == 2 && a->kind == UNIFORM_NUMBER && b->kind == UNIFORM_NUMBER && binary(n->op, a->number, b->number, &x))
        return number(rounded(d, x));
    if (n->n_in == 2 && a->has_low && b->kind == UNIFORM_NUMBER &&
        ((strcmp(n->op, "GreaterOrEqual") == 0 && a->low >= b->number) || (strcmp(n->op, "Greater") == 0 && a->low > b->number)))
        return number(1);
    if (n->n_in == 2 && a->has_low && b->kind == UNIFORM_NUMBER && strcmp(n->op, "Less") == 0 && a->low >= b->number)
        return number(0);
    if (strcmp(n->op, "And") == 0 && ((a->kind == UNIFORM_NUMBER && a->number == 0) || (b->kind == UNIFORM_NUMBER && b->number == 0)))
        return number(0);
    if (strcmp(n->op, "Div") == 0 && is_float_type(g, n->out[0]) && a->kind == UNIFORM_NUMBER && b->kind == UNIFORM_NUMBER && b->number != 0)
        return number(rounded(d, a->number / b->number));
    if (strcmp(n->op, "Not") == 0 && a->kind == UNIFORM_NUMBER)
        return number(a->number == 0);
    if (strcmp(n->op, "Neg") == 0 && a->kind == UNIFORM_NUMBER)
        return number(-a->number);
    if (strcmp(n->op, "ReduceSum") == 0)
        return reduce_sum(g, n, a);
    if (strcmp(n->op, "ConstantOfShape") == 0) {
        const struct attr *v = node_attr(n, "value");
        return v ? of_constant(&v->tensors[0]) : number(0);
    }
    if (strcmp(n->op, "Range") == 0 && n->n_in == 3 && n->in[2] >= 0 && u[n->in[2]].has_low && u[n->in[2]].low > 0 && a->has_low)
        return (struct uniform){.has_low = 1, .low = a->low};
    if (strcmp(n->op, "Clip") == 0) { /* from below; a size is at least 1 */
        double low = -INFINITY, high = INFINITY;
        int known = (n->n_in < 2 || n->in[1] < 0 || constant_number(g, n->in[1], &low)) && (n->n_in < 3 || n->in[2] < 0 || constant_number(g, n->in[2], &high));
        if (n->opset < 11) {
            low = (double)node_float(n, "min", -INFINITY);
            high = (double)node_float(n, "max", INFINITY);
        }
        if (known && a->kind == UNIFORM_NUMBER)
            return number(rounded(d, a->number < low ? low : a->number > high ? high : a->number));
        if (known && a->kind == UNIFORM_SIZE && low <= 1 && high > 1e9)
            return *a;
        return none;
    }
    if (strcmp(n->op, "Where") == 0 && n->n_in == 3 && a->kind == UNIFORM_NUMBER && n->in[2] >= 0) {
        const struct uniform *taken = a->number != 0 ? b : &u[n->in[2]];
        return *taken;
    }
    if (strcmp(n->op, "Concat") == 0) {
        struct uniform r = *a;
        for (uint32_t i = 1; i < n->n_in; i++)
            if (n->in[i] < 0 || u[n->in[i]].kind != UNIFORM_NUMBER || u[n->in[i]].number != r.number)
                return none;
        return r.kind == UNIFORM_NUMBER ? r : none;
    }
    return none;
}

enum status uniform_find(const struct graph *g, const struct given *given, uint32_t n_given, struct uniform **out, struct err *e)
{
    struct uniform *u = mem_zalloc((g->n_values ? g->n_values : 1) * sizeof *u);
    if (!u)
        return err_nomem(e, "the model's graph");
    for (uint32_t i = 0; i < g->n_values; i++) {
        const struct type *t = &g->values[i].type;
        if (g->values[i].constant.buffer)
            u[i] = of_constant(&g->values[i].constant);
        else if (t->kind == VALUE_TENSOR && t->values && t->rank >= 0) { /* sizes */
            dim n = 1;
            for (int k = 0; k < t->rank; k++)
                n = dim_mul(g->syms, n, t->dims[k]);
            dim first = dim_known(n) && n > 0 ? t->values[0] : DIM_UNKNOWN;
            for (dim k = 1; k < n && dim_known(n); k++)
                if (t->values[k] != first)
                    first = DIM_UNKNOWN;
            if (first != DIM_UNKNOWN)
                u[i] = size_of_axis(first);
        }
    }
    for (uint32_t i = 0; i < n_given; i++)
        u[given[i].value] = number(given[i].number);
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct node *n = g->nodes[i];
        int32_t v = n->n_out ? n->out[0] : -1;
        if (v >= 0 && u[v].kind == UNIFORM_NO && !g->values[v].constant.buffer && g->values[v].type.kind == VALUE_TENSOR) {
            struct uniform r = of_node(g, n, u);
            if (r.kind != UNIFORM_NO || r.has_low)
                u[v] = r;
        }
    }
    *out = u;
    return ST_OK;
}

static int is_number(const struct uniform *u, int32_t v, double x)
{
    return v >= 0 && u[v].kind == UNIFORM_NUMBER && u[v].number == x;
}

/* The input that the node passes on unchanged, or -1. */
static int32_t passes(const struct graph *g, const struct node *n, const struct uniform *u)
{
    const struct type *out = &g->values[n->out[0]].type;
    int32_t a = n->in[0], b = n->n_in > 1 ? n->in[1] : -1, r = -1;
    if (node_is(n, "Add"))
        r = is_number(u, b, 0) ? a : is_number(u, a, 0) ? b : -1;
    else if (node_is(n, "Sub"))
        r = is_number(u, b, 0) ? a : -1;
    else if (node_is(n, "Mul"))
        r = is_number(u, b, 1) ? a : is_number(u, a, 1) ? b : -1;
    else if (node_is(n, "Div"))
        r = is_number(u, b, 1) ? a : -1;
    else if (node_is(n, "Where") && a >= 0 && u[a].kind == UNIFORM_NUMBER)
        r = u[a].number != 0 ? b : n->in[2];
    else if (node_is(n, "Expand") || node_is(n, "Identity") || node_is(n, "Cast") || node_is(n, "Reshape") || node_is(n, "Dropout"))
        r = a;
    if (r < 0 || !same_dims(&g->values[r].type, out) || (node_is(n, "Dropout") && n->n_out > 1 && n->out[1] >= 0))
        return -1;
    return r;
}

static int broadcasts(const struct node *n)
{
    static const char *const ops[] = {"Add", "Sub", "Mul", "Div", NULL};
    return n->domain[0] == '\0' && one_of(n->op, ops) && n->n_in == 2;
}

enum status uniform_simplify(struct graph *g, const struct uniform *u, uint32_t *changed, struct err *e)
{
    (void)e;
    *changed = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        struct node *n = g->nodes[i];
        if (n->n_in < 1 || n->n_out < 1 || n->out[0] < 0 || n->in[0] < 0)
            continue;
        int32_t r = passes(g, n, u);
        if (r >= 0)
            *changed += (uint32_t)replace_value(g, n->out[0], r);
        if (!broadcasts(n))
            continue;
        for (uint32_t j = 0; j < 2; j++) { /* Expand in front of an op that broadcasts, to no more than the other input's shape */
            struct node *expand = made_by(g, n->in[j], "Expand");
            const struct type *other = &g->values[n->in[1 - j]].type, *out = &g->values[n->out[0]].type;
            if (expand && same_dims(other, out) && !is_output(g, n->in[j]) && n->in[0] != n->in[1]) {
                n->in[j] = expand->in[0];
                ++*changed;
            }
        }
    }
    return ST_OK;
}
