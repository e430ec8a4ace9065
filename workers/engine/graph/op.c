/* What ops share: attributes, messages, types. */
#include "workers/engine/graph/op.h"

#include <stdio.h>
#include <string.h>

#include "workers/engine/graph/graph.h"

enum status node_error(const struct node *n, struct err *e, const char *format, ...)
{
    char text[sizeof e->text];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    return err_set(e, ST_USER, "node '%s' (%s%s%s): %s", n->name, n->domain, n->domain[0] ? "." : "", n->op, text);
}

/* Attributes ------------------------------------------------------------------------------------------------------------------------- */

const struct attr *node_attr(const struct node *n, const char *name)
{
    for (uint32_t i = 0; i < n->n_attr; i++)
        if (strcmp(n->attr[i].name, name) == 0)
            return &n->attr[i];
    return NULL;
}

/* A wrong kind is remembered, and the graph is refused when the op's turn to check, shape or plan has ended. */
static const struct attr *attr_of(const struct node *n, const char *name, enum attr_kind kind)
{
    const struct attr *a = node_attr(n, name);
    if (a && a->kind != kind) {
        /* one that is empty says nothing of its kind */
        if (!(a->count == 0 && (a->kind == ATTR_FLOATS || a->kind == ATTR_INTS || a->kind == ATTR_STRINGS)))
            ((struct node *)n)->bad_attr = a->name;
        return NULL;
    }
    return a;
}

int64_t node_int(const struct node *n, const char *name, int64_t otherwise)
{
    const struct attr *a = attr_of(n, name, ATTR_INT);
    return a ? a->i : otherwise;
}

float node_float(const struct node *n, const char *name, float otherwise)
{
    const struct attr *a = attr_of(n, name, ATTR_FLOAT);
    return a ? a->f : otherwise;
}

const char *node_string(const struct node *n, const char *name, const char *otherwise)
{
    const struct attr *a = attr_of(n, name, ATTR_STRING);
    return a ? a->s.data : otherwise;
}

const int64_t *node_ints(const struct node *n, const char *name, uint32_t *count)
{
    static const int64_t none;
    const struct attr *a = attr_of(n, name, ATTR_INTS);
    *count = a ? a->count : 0;
    return !a ? NULL : a->count ? a->ints : &none;
}

const float *node_floats(const struct node *n, const char *name, uint32_t *count)
{
    static const float none;
    const struct attr *a = attr_of(n, name, ATTR_FLOATS);
    *count = a ? a->count : 0;
    return !a ? NULL : a->count ? a->floats : &none;
}

/* Types ------------------------------------------------------------------------------------------------------------------------------ */

void type_tensor(struct type *t, enum dtype d, int rank, const dim *dims)
{
    *t = (struct type){.kind = VALUE_TENSOR, .dtype = d, .rank = rank};
    for (int i = 0; i < rank; i++)
        t->dims[i] = dims ? dims[i] : DIM_UNKNOWN;
}

void type_unknown(struct shaping *s, struct type *t, enum dtype d, int rank)
{
    type_tensor(t, d, rank, NULL);
    for (int i = 0; i < rank; i++)
        t->dims[i] = dim_fresh(s->syms);
}

/* Two sizes that meet. */
static int broadcast_dim(dim a, dim b, dim *out)
{
    if (a == b || b == 1)
        *out = a;
    else if (a == 1)
        *out = b;
    else if (dim_known(a) && dim_known(b))
        return 0;
    else
        *out = dim_known(b) ? b : a; /* a number that is not 1 wins: the other must be it, or 1 */
    return 1;
}

static const char *shape_text(const struct shaping *s, const struct type *t, char *buf, size_t cap)
{
    char one[128];
    size_t n = (size_t)snprintf(buf, cap, "[");
    for (int i = 0; i < t->rank && n < cap; i++)
        n += (size_t)snprintf(buf + n, cap - n, "%s%s", i ? ", " : "", dim_text(s->syms, t->dims[i], one, sizeof one));
    if (n < cap)
        snprintf(buf + n, cap - n, "]");
    return buf;
}

enum status type_broadcast(struct shaping *s, const struct type *a, const struct type *b, struct type *out, struct err *e)
{
    struct type r = {.kind = VALUE_TENSOR, .dtype = a->dtype, .rank = a->rank > b->rank ? a->rank : b->rank};
    if (a->rank < 0 || b->rank < 0)
        r.rank = -1;
    for (int i = 0; i < r.rank; i++) { /* from the right */
        int ia = a->rank - 1 - i, ib = b->rank - 1 - i, o = r.rank - 1 - i;
        if (!broadcast_dim(ia >= 0 ? a->dims[ia] : 1, ib >= 0 ? b->dims[ib] : 1, &r.dims[o])) {
            char x[256], y[256];
            return node_error(s->node, e, "shapes %s and %s do not go together", shape_text(s, a, x, sizeof x), shape_text(s, b, y, sizeof y));
        }
    }
    *out = r; /* out may be a or b */
    return ST_OK;
}

dim type_count(struct shaping *s, const struct type *t)
{
    dim n = 1;
    if (t->rank < 0)
        return DIM_UNKNOWN;
    for (int i = 0; i < t->rank; i++)
        n = dim_mul(s->syms, n, t->dims[i]);
    return n;
}

enum status axis_in(const struct node *n, int64_t axis, int rank, uint32_t *out, struct err *e)
{
    if (axis < -rank || axis >= rank)
        return node_error(n, e, "axis %lld is outside a tensor of rank %d", (long long)axis, rank);
    *out = (uint32_t)(axis < 0 ? axis + rank : axis);
    return ST_OK;
}

/* An axis stays by itself where the output has it at the same place from the right. Where this input's size is 1 and the output's is not, it is
   spread over the others: index 0 then is in every one. Where another input brings an axis of another size there, indices of it meet one of this:
   element by element all the same. */
int follow_elementwise(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    int from_right = s->in[in].rank - 1 - (int)axis;
    int at = s->out[out].rank - 1 - from_right;
    if (s->in[in].rank < 0 || s->out[out].rank < 0 || at < 0)
        return -1;
    return s->in[in].dims[axis] == s->out[out].dims[at] ? at : -1;
}
