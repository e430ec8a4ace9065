/* ModelProto -> graph.

   A scope is where names are looked up: the model's graph, the body of an If, Loop or Scan, or a call of a function of the model, which is inlined. A
   body looks outside for what it does not know, and captures it; a function knows only its arguments. All scopes of one graph put their values into it, a
   call under names of its own. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/graph/inner.h"
#include "workers/engine/onnx/onnx.h"
#include "workers/engine/onnx/parts.h"

enum { CALL_DEPTH_MAX = 24, NODES_MAX = 1 << 20, RANKS = RANK_MAX };

struct alias {
    const char *name;
    int32_t value; /* -1: left out by the caller */
};

struct scope {
    const struct scope *outer; /* of a body */
    struct graph *g;
    char *prefix;              /* of a call's own values and nodes */
    struct alias *alias;
    uint32_t aliases;
    const Onnx__FunctionProto *function; /* of a call ... */
    const Onnx__NodeProto *call;         /* ... and the node that calls, whose own references are those of caller */
    const struct scope *caller;
    Onnx__OperatorSetIdProto *const *opset;
    size_t opsets;
};

struct load {
    Onnx__ModelProto *model;
    struct onnx_model *out;
    struct external external;
    const struct kernels *kernels;
    uint32_t nodes, calls, call_depth;
};

static const char *text(const char *s)
{
    return s ? s : "";
}

/* Names --------------------------------------------------------------------------------------------------------------------------------- */

static int32_t find(const struct scope *s, const char *name);

/* In s itself: -1 where the caller leaves it out, UNKNOWN where it is not known. */
enum { UNKNOWN = -2, NO_MEMORY = -3 };
static int32_t find_here(const struct scope *s, const char *name)
{
    for (uint32_t i = 0; i < s->aliases; i++)
        if (strcmp(s->alias[i].name, name) == 0)
            return s->alias[i].value;
    char *full = s->prefix[0] ? mem_printf("%s%s", s->prefix, name) : NULL;
    if (s->prefix[0] && !full)
        return NO_MEMORY;
    int32_t v = graph_find(s->g, full ? full : name);
    mem_free(full);
    return v < 0 ? UNKNOWN : v;
}

static int32_t find(const struct scope *s, const char *name)
{
    int32_t v = find_here(s, name);
    if (v != UNKNOWN || !s->outer)
        return v;
    v = find(s->outer, name);
    if (v < 0)
        return v;
    v = graph_capture(s->g, name, v);
    return v < 0 ? NO_MEMORY : v;
}

static int32_t define(const struct scope *s, const char *name)
{
    for (uint32_t i = 0; i < s->aliases; i++)
        if (strcmp(s->alias[i].name, name) == 0 && s->alias[i].value >= 0)
            return s->alias[i].value;
    if (!s->prefix[0])
        return graph_value(s->g, name);
    char *full = mem_printf("%s%s", s->prefix, name);
    int32_t v = full ? graph_value(s->g, full) : -1;
    mem_free(full);
    return v;
}

static int opset_of(const struct scope *s, const char *domain)
{
    int standard = domain[0] == '\0' || strcmp(domain, "ai.onnx") == 0;
    for (size_t i = 0; i < s->opsets; i++) {
        const char *d = text(s->opset[i]->domain);
        if (standard ? d[0] == '\0' || strcmp(d, "ai.onnx") == 0 : strcmp(d, domain) == 0)
            return s->opset[i]->version > 0 && s->opset[i]->version < 10000 ? (int)s->opset[i]->version : 0;
    }
    return standard ? 0 : 1;
}

/* Attributes ---------------------------------------------------------------------------------------------------------------------------- */

static enum status load_graph(struct load *l, Onnx__GraphProto *p, const struct scope *outer, struct scope *s, struct err *e);

static enum attr_kind kind_of(const Onnx__AttributeProto *p)
{
    if (p->has_type && p->type != ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__UNDEFINED)
        return (enum attr_kind)p->type;
    return p->has_f ? ATTR_FLOAT : p->has_i ? ATTR_INT : p->has_s ? ATTR_STRING : p->t ? ATTR_TENSOR : p->g ? ATTR_GRAPH : p->n_floats ? ATTR_FLOATS
           : p->n_ints ? ATTR_INTS : p->n_strings ? ATTR_STRINGS : p->n_tensors ? ATTR_TENSORS : p->n_graphs ? ATTR_GRAPHS : p->tp ? ATTR_TYPE : (enum attr_kind)0;
}

static enum status copy_string(const ProtobufCBinaryData *b, struct str *out, struct err *e)
{
    char *s = mem_alloc(b->len + 1);
    if (!s)
        return err_nomem(e, "an attribute");
    if (b->len)
        memcpy(s, b->data, b->len);
    s[b->len] = '\0';
    *out = (struct str){s, b->len};
    return ST_OK;
}

static enum status bodies(struct load *l, Onnx__GraphProto **p, size_t count, const struct scope *s, struct attr *a, struct err *e)
{
    a->graphs = mem_array(count ? count : 1, sizeof *a->graphs);
    if (!a->graphs)
        return err_nomem(e, "a body");
    for (size_t i = 0; i < count; i++) {
        struct scope body = {.opset = s->opset, .opsets = s->opsets, .function = s->function, .call = s->call, .caller = s->caller};
        if (s->g->depth >= BODY_DEPTH_MAX)
            return err_set(e, ST_USER, "bodies lie more than %d deep in each other", BODY_DEPTH_MAX);
        TRY(graph_new(l->kernels, s->g, &body.g, e));
        a->graphs[i] = body.g;
        TRY(load_graph(l, p[i], s, &body, e));
    }
    return ST_OK;
}

static enum status load_type(struct load *l, const Onnx__TypeProto *p, struct type *out, struct err *e);

static enum status fill_attr(struct load *l, const Onnx__AttributeProto *p, const struct scope *s, struct attr *a, struct err *e)
{
    struct type t = {0};
    switch (a->kind) {
    case ATTR_FLOAT:
        a->f = p->f;
        return ST_OK;
    case ATTR_INT:
        a->i = p->i;
        return ST_OK;
    case ATTR_STRING:
        return copy_string(&p->s, &a->s, e);
    case ATTR_FLOATS:
        a->count = (uint32_t)p->n_floats;
        a->floats = mem_array(p->n_floats + 1, sizeof *a->floats);
        if (a->floats && p->n_floats)
            memcpy(a->floats, p->floats, p->n_floats * sizeof *a->floats);
        return a->floats ? ST_OK : err_nomem(e, "an attribute");
    case ATTR_INTS:
        a->count = (uint32_t)p->n_ints;
        a->ints = mem_array(p->n_ints + 1, sizeof *a->ints);
        if (a->ints && p->n_ints)
            memcpy(a->ints, p->ints, p->n_ints * sizeof *a->ints);
        return a->ints ? ST_OK : err_nomem(e, "an attribute");
    case ATTR_STRINGS:
        a->strings = mem_array(p->n_strings + 1, sizeof *a->strings);
        if (!a->strings)
            return err_nomem(e, "an attribute");
        for (; a->count < p->n_strings; a->count++)
            TRY(copy_string(&p->strings[a->count], &a->strings[a->count], e));
        return ST_OK;
    case ATTR_TENSOR:
    case ATTR_TENSORS: {
        size_t n = a->kind == ATTR_TENSOR ? 1 : p->n_tensors;
        a->tensors = mem_array(n + 1, sizeof *a->tensors);
        if (!a->tensors)
            return err_nomem(e, "an attribute");
        for (; a->count < n; a->count++) {
            Onnx__TensorProto *tensor = a->kind == ATTR_TENSOR ? p->t : p->tensors[a->count];
            if (!tensor)
                return err_set(e, ST_USER, "holds no tensor");
            TRY(onnx_tensor(tensor, &l->external, &a->tensors[a->count], e));
            l->out->parameters += (uint64_t)tensor_count(&a->tensors[a->count]);
            l->out->weight_bytes += a->tensors[a->count].buffer->bytes;
        }
        return ST_OK;
    }
    case ATTR_GRAPH:
        a->count = 1;
        return p->g ? bodies(l, (Onnx__GraphProto **)&p->g, 1, s, a, e) : err_set(e, ST_USER, "holds no graph");
    case ATTR_GRAPHS:
        a->count = (uint32_t)p->n_graphs;
        return bodies(l, p->graphs, p->n_graphs, s, a, e);
    case ATTR_TYPE:
        if (!p->tp)
            return err_set(e, ST_USER, "holds no type");
        TRY(load_type(l, p->tp, &t, e));
        a->type_kind = t.kind;
        a->i = t.dtype;
        return ST_OK;
    default:
        return err_set(e, ST_USER, "is of kind %d, which is not supported by this version", (int)a->kind);
    }
}

/* The attribute of the calling node that a function's node refers to, or the function's default, or none. */
static const Onnx__AttributeProto *referred(const struct scope **s, const Onnx__AttributeProto *p, Onnx__AttributeProto **made)
{
    *made = NULL;
    while (p && p->ref_attr_name && p->ref_attr_name[0]) {
        const char *name = p->ref_attr_name;
        const Onnx__NodeProto *call = (*s)->call;
        const Onnx__FunctionProto *f = (*s)->function;
        if (!call)
            return NULL;
        p = NULL;
        for (size_t i = 0; i < call->n_attribute; i++)
            if (strcmp(text(call->attribute[i]->name), name) == 0)
                p = call->attribute[i];
        for (unsigned i = 0; !p && f && i < f->base.n_unknown_fields; i++) { /* attribute_proto: newer than the schema */
            const ProtobufCMessageUnknownField *u = &f->base.unknown_fields[i];
            struct cursor c = cursor_make(u->data, u->len);
            uint64_t len = cursor_varint(&c);
            const uint8_t *bytes = u->tag == 11 && u->wire_type == PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED ? cursor_bytes(&c, (size_t)len) : NULL;
            struct err ignored;
            if (!bytes || onnx_scan(&onnx__attribute_proto__descriptor, bytes, (size_t)len, &ignored) != ST_OK)
                continue;
            Onnx__AttributeProto *one = onnx__attribute_proto__unpack(&onnx_allocator, (size_t)len, bytes);
            if (one && strcmp(text(one->name), name) == 0) {
                *made = one;
                return one;
            }
            onnx__attribute_proto__free_unpacked(one, &onnx_allocator);
        }
        *s = (*s)->caller;
    }
    return p;
}

static enum status load_attr(struct load *l, const Onnx__AttributeProto *p, const struct scope *s, struct node *n, struct err *e)
{
    const char *name = text(p->name);
    const struct scope *where = s;
    Onnx__AttributeProto *made;
    p = referred(&where, p, &made);
    if (!p)
        return ST_OK; /* the caller leaves it out */
    struct attr a = {.kind = kind_of(p), .name = mem_strdup(name)};
    enum status st = a.name ? ST_OK : err_nomem(e, "an attribute");
    if (st == ST_OK)
        st = fill_attr(l, p, where, &a, e);
    if (st == ST_USER)
        err_prefix(e, "node '%s' (%s): attribute '%s'", n->name, n->op, name);
    onnx__attribute_proto__free_unpacked(made, &onnx_allocator);
    if (st == ST_OK)
        st = node_add_attr(n, &a, e);
    if (st != ST_OK)
        attr_release(&a);
    return st;
}

/* Nodes --------------------------------------------------------------------------------------------------------------------------------- */

static const Onnx__FunctionProto *function_of(const struct load *l, const Onnx__NodeProto *p)
{
    for (size_t i = 0; i < l->model->n_functions; i++) {
        const Onnx__FunctionProto *f = l->model->functions[i];
        if (strcmp(text(f->name), text(p->op_type)) == 0 && strcmp(text(f->domain), text(p->domain)) == 0)
            return f;
    }
    return NULL;
}

static enum status load_nodes(struct load *l, Onnx__NodeProto **p, size_t count, const struct scope *s, struct err *e);

static void set_alias(struct scope *s, const char *name, int32_t value)
{
    s->alias[s->aliases++] = (struct alias){name, value};
}

static enum status load_call(struct load *l, const Onnx__NodeProto *p, const Onnx__FunctionProto *f, const struct scope *s, struct err *e)
{
    const char *name = text(f->name);
    struct scope call = {.g = s->g, .function = f, .call = p, .caller = s, .opset = f->opset_import, .opsets = f->n_opset_import};
    if (++l->call_depth > CALL_DEPTH_MAX)
        return err_set(e, ST_USER, "function '%s': functions call each other more than %d deep", name, CALL_DEPTH_MAX);
    if (p->n_input > f->n_input || p->n_output > f->n_output)
        return err_set(e, ST_USER, "node '%s': calls function '%s' with %zu inputs and %zu outputs, but it has %zu and %zu", text(p->name), name, p->n_input,
                       p->n_output, f->n_input, f->n_output);
    call.prefix = mem_printf("%s/%s.%u/", s->prefix, p->name && p->name[0] ? p->name : name, l->calls++);
    call.alias = mem_array(f->n_input + f->n_output + 1, sizeof *call.alias);
    enum status st = call.prefix && call.alias ? ST_OK : err_nomem(e, "a function");
    for (size_t i = 0; i < f->n_input && st == ST_OK; i++) {
        int32_t v = i < p->n_input && p->input[i][0] ? find(s, p->input[i]) : -1;
        if (v == NO_MEMORY)
            st = err_nomem(e, "a function");
        else if (v == UNKNOWN)
            st = err_set(e, ST_USER, "node '%s': its input '%s' is made by no node", text(p->name), p->input[i]);
        set_alias(&call, f->input[i], v);
    }
    uint32_t inputs = call.aliases;
    for (size_t i = 0; i < p->n_output && st == ST_OK; i++) {
        if (!p->output[i][0])
            continue;
        int32_t to = define(s, p->output[i]);
        int32_t from = -1;
        for (uint32_t k = 0; k < inputs; k++)
            if (strcmp(call.alias[k].name, f->output[i]) == 0)
                from = call.alias[k].value;
        if (to < 0)
            st = err_nomem(e, "a function");
        else if (from < 0)
            set_alias(&call, f->output[i], to);
        else if (!graph_node(s->g, "", "Identity", 13, NULL, 1, &from, 1, &to)) /* an argument handed back */
            st = err_nomem(e, "a function");
    }
    if (st == ST_OK)
        st = load_nodes(l, f->node, f->n_node, &call, e);
    mem_free(call.alias);
    mem_free(call.prefix);
    l->call_depth--;
    return st;
}

static enum status load_node(struct load *l, const Onnx__NodeProto *p, const struct scope *s, struct err *e)
{
    const char *domain = text(p->domain), *op = text(p->op_type), *name = text(p->name);
    const Onnx__FunctionProto *f = function_of(l, p);
    int opset = opset_of(s, domain);
    if (!op[0])
        return err_set(e, ST_USER, "node '%s': has no op type", name);
    if (f && !(domain[0] == '\0' && op_find(domain, op, opset, NULL)))
        return load_call(l, p, f, s, e);
    if (++l->nodes > NODES_MAX)
        return err_set(e, ST_USER, "the model has more than %d nodes", NODES_MAX);
    if (!opset)
        return err_set(e, ST_USER, "node '%s' (%s): the model imports no opset of domain '%s'", name, op, domain[0] ? domain : "ai.onnx");
    int32_t *ids = mem_array(p->n_input + p->n_output + 1, sizeof *ids);
    enum status st = ids ? ST_OK : err_nomem(e, "a node");
    for (size_t i = 0; i < p->n_input && st == ST_OK; i++) {
        ids[i] = p->input[i][0] ? find(s, p->input[i]) : -1;
        if (ids[i] == NO_MEMORY)
            st = err_nomem(e, "a node");
        else if (ids[i] == UNKNOWN)
            st = err_set(e, ST_USER, "node '%s' (%s): its input '%s' is made by no node, and is neither an input nor an initializer", name, op, p->input[i]);
    }
    size_t outs = 0;
    for (size_t i = 0; i < p->n_output && st == ST_OK; i++) {
        ids[p->n_input + i] = p->output[i][0] ? define(s, p->output[i]) : -1;
        if (p->output[i][0] && ids[p->n_input + i] < 0)
            st = err_nomem(e, "a node");
        outs++;
    }
    struct node *n = NULL;
    if (st == ST_OK) {
        char *full = s->prefix[0] && name[0] ? mem_printf("%s%s", s->prefix, name) : NULL;
        n = graph_node(s->g, domain, op, opset, full ? full : name, (uint32_t)p->n_input, ids, (uint32_t)outs, ids + p->n_input);
        mem_free(full);
        st = n ? ST_OK : err_nomem(e, "a node");
    }
    for (size_t i = 0; i < p->n_attribute && st == ST_OK; i++)
        st = load_attr(l, p->attribute[i], s, n, e);
    mem_free(ids);
    return st;
}

/* Outputs are known before inputs are looked up: a body may capture what stands further down. */
static enum status load_nodes(struct load *l, Onnx__NodeProto **p, size_t count, const struct scope *s, struct err *e)
{
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < p[i]->n_output; k++)
            if (p[i]->output[k][0] && define(s, p[i]->output[k]) < 0)
                return err_nomem(e, "a graph");
    for (size_t i = 0; i < count; i++)
        TRY(load_node(l, p[i], s, e));
    return ST_OK;
}

/* Types and graphs ---------------------------------------------------------------------------------------------------------------------- */

/* A name that exporters give to every size that they do not know says nothing. */
static dim param(struct syms *syms, const char *name)
{
    static const char *const nothing[] = {"", "?", "None", "none", "unk", "unknown", "-1", "dynamic"};
    for (size_t i = 0; i < sizeof nothing / sizeof *nothing; i++)
        if (strcmp(name, nothing[i]) == 0)
            return dim_fresh(syms);
    return dim_named(syms, name);
}

static enum status load_type(struct load *l, const Onnx__TypeProto *p, struct type *out, struct err *e)
{
    struct syms *syms = l->out->graph->syms;
    *out = (struct type){.rank = -1};
    switch (p->value_case) {
    case ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE: {
        const Onnx__TypeProto__Tensor *t = p->tensor_type;
        const Onnx__TensorShapeProto *shape = t->shape;
        out->kind = VALUE_TENSOR;
        out->dtype = t->elem_type > 0 && t->elem_type < 64 ? (enum dtype)t->elem_type : DT_NONE;
        if (!dtype_bytes(out->dtype))
            return err_set(e, ST_USER, "its elements are of %s, which is not supported by this version", dtype_name(out->dtype));
        if (!shape)
            return ST_OK;
        if (shape->n_dim > RANKS)
            return err_set(e, ST_USER, "has rank %zu; at most %d is supported", shape->n_dim, RANKS);
        out->rank = (int)shape->n_dim;
        for (size_t i = 0; i < shape->n_dim; i++) {
            const Onnx__TensorShapeProto__Dimension *d = shape->dim[i];
            if (d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE && d->dim_value >= 0)
                out->dims[i] = d->dim_value;
            else if (d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM && d->dim_param)
                out->dims[i] = param(syms, d->dim_param);
            else
                out->dims[i] = dim_fresh(syms);
            if (out->dims[i] == DIM_UNKNOWN)
                return err_nomem(e, "sizes");
        }
        return ST_OK;
    }
    case ONNX__TYPE_PROTO__VALUE_SEQUENCE_TYPE: {
        struct type element = {0};
        if (!p->sequence_type->elem_type)
            return err_set(e, ST_USER, "is a sequence of nothing");
        TRY(load_type(l, p->sequence_type->elem_type, &element, e));
        if (element.kind != VALUE_TENSOR || element.optional)
            return err_set(e, ST_USER, "is a sequence of something else than tensors, which is not supported by this version");
        out->kind = VALUE_SEQUENCE;
        out->dtype = element.dtype;
        return ST_OK;
    }
    case ONNX__TYPE_PROTO__VALUE_OPTIONAL_TYPE:
        if (!p->optional_type->elem_type)
            return err_set(e, ST_USER, "is an optional of nothing");
        TRY(load_type(l, p->optional_type->elem_type, out, e));
        out->optional = 1;
        return ST_OK;
    default:
        return err_set(e, ST_USER, "is a map or a sparse tensor, which is not supported by this version");
    }
}

static enum status load_initializers(struct load *l, Onnx__GraphProto *p, const struct scope *s, struct err *e)
{
    if (p->n_sparse_initializer)
        return err_set(e, ST_USER, "sparse initializers are not supported by this version");
    for (size_t i = 0; i < p->n_initializer; i++) {
        Onnx__TensorProto *t = p->initializer[i];
        struct tensor c = {0};
        if (!t->name || !t->name[0])
            return err_set(e, ST_USER, "an initializer has no name");
        TRY(onnx_tensor(t, &l->external, &c, e));
        l->out->parameters += (uint64_t)tensor_count(&c);
        l->out->weight_bytes += c.buffer->bytes;
        int32_t v = define(s, t->name);
        if (v >= 0 && s->g->values[v].constant.buffer) {
            tensor_release(&c);
            return err_set(e, ST_USER, "initializer '%s' is there twice", t->name);
        }
        if (v < 0 || graph_set_constant(s->g, v, &c) != 0) {
            tensor_release(&c);
            return err_nomem(e, "an initializer");
        }
    }
    return ST_OK;
}

/* An input that has an initializer too is a constant (IR 3 lists all of them; later ones give a default, which nobody overrides here). In a body it is
   an input all the same: the node gives it. */
static enum status load_inputs(struct load *l, const Onnx__GraphProto *p, const struct scope *s, struct err *e)
{
    for (size_t i = 0; i < p->n_input; i++) {
        const Onnx__ValueInfoProto *v = p->input[i];
        const char *name = text(v->name);
        struct type t = {.kind = VALUE_TENSOR, .rank = -1};
        if (!name[0])
            return err_set(e, ST_USER, "input %zu has no name", i);
        int32_t known = graph_find(s->g, name);
        if (known >= 0 && s->g->values[known].constant.buffer)
            continue;
        for (uint32_t k = 0; k < s->g->n_in; k++)
            if (s->g->in[k] == known)
                return err_set(e, ST_USER, "input '%s' is there twice", name);
        if (v->type && v->type->value_case != ONNX__TYPE_PROTO__VALUE__NOT_SET && load_type(l, v->type, &t, e) != ST_OK) {
            if (s->g->outer && e->code == ST_USER)
                t = (struct type){.kind = VALUE_TENSOR, .rank = -1}; /* the node says what it gives */
            else
                return e->code == ST_USER ? err_prefix(e, "input '%s'", name) : e->code;
        } else if (!s->g->outer && t.dtype == DT_NONE) {
            return err_set(e, ST_USER, "input '%s' has no type", name);
        }
        if (graph_input(s->g, name, &t) < 0)
            return err_nomem(e, "an input");
    }
    return ST_OK;
}

static enum status load_outputs(struct load *l, const Onnx__GraphProto *p, const struct scope *s, struct err *e)
{
    if (!s->g->outer) {
        l->out->outputs = mem_array(p->n_output + 1, sizeof *l->out->outputs);
        if (!l->out->outputs)
            return err_nomem(e, "outputs");
    }
    for (size_t i = 0; i < p->n_output; i++) {
        const char *name = text(p->output[i]->name);
        int32_t v = name[0] ? find(s, name) : UNKNOWN;
        struct err ignored;
        if (v == NO_MEMORY)
            return err_nomem(e, "an output");
        if (v < 0)
            return err_set(e, ST_USER, "output '%s' is made by no node", name);
        if (!s->g->outer && p->output[i]->type && load_type(l, p->output[i]->type, &l->out->outputs[i], &ignored) != ST_OK)
            l->out->outputs[i] = (struct type){0};
        if (graph_output(s->g, v) < 0)
            return err_nomem(e, "an output");
    }
    if (!p->n_output)
        return err_set(e, ST_USER, "the graph has no outputs");
    return ST_OK;
}

static enum status load_graph(struct load *l, Onnx__GraphProto *p, const struct scope *outer, struct scope *s, struct err *e)
{
    char empty[1] = "";
    s->prefix = empty;
    s->outer = outer;
    enum status st = load_initializers(l, p, s, e);
    if (st == ST_OK)
        st = load_inputs(l, p, s, e);
    if (st == ST_OK)
        st = load_nodes(l, p->node, p->n_node, s, e);
    if (st == ST_OK)
        st = load_outputs(l, p, s, e);
    s->prefix = NULL;
    return st;
}

/* Models -------------------------------------------------------------------------------------------------------------------------------- */

void onnx_free(struct onnx_model *m)
{
    if (!m)
        return;
    graph_free(m->graph);
    for (uint32_t i = 0; i < m->n_external; i++)
        mem_free(m->external[i]);
    mem_free(m->external);
    mem_free(m->outputs);
    mem_free(m);
}

static enum status load_model(struct load *l, const char *folder, struct err *e)
{
    Onnx__ModelProto *p = l->model;
    struct scope s = {.opset = p->opset_import, .opsets = p->n_opset_import};
    l->external.folder = folder;
    if (!p->graph)
        return err_set(e, ST_USER, "it holds no graph: the file is damaged, or no ONNX file");
    if (p->ir_version < 1 || p->ir_version > 20)
        return err_set(e, ST_USER, "IR version %lld is not one that this version reads", (long long)p->ir_version);
    TRY(graph_new(l->kernels, NULL, &l->out->graph, e));
    s.g = l->out->graph;
    l->out->ir_version = p->ir_version;
    l->out->opset = opset_of(&s, "");
    snprintf(l->out->producer, sizeof l->out->producer, "%s%s%s", text(p->producer_name), p->producer_version && p->producer_version[0] ? " " : "",
             text(p->producer_version));
    return load_graph(l, p->graph, NULL, &s, e);
}

/* own: what data lies in, let go as soon as it is unpacked, or NULL. */
static enum status load_bytes(const void *data, size_t len, struct buf *own, const char *name, const char *folder, const struct kernels *k,
                              struct onnx_model **out, struct err *e)
{
    struct load l = {.kernels = k};
    l.out = mem_zalloc(sizeof *l.out);
    if (!l.out)
        return err_nomem(e, "a model");
    enum status st = onnx_scan(&onnx__model_proto__descriptor, data, len, e);
    if (st == ST_OK) {
        ProtobufCMessage *model = NULL;
        st = onnx_unpack(&onnx__model_proto__descriptor, data, len, &model, e);
        l.model = (Onnx__ModelProto *)model;
        if (own)
            buf_release(own);
        if (st == ST_OK)
            st = load_model(&l, folder, e);
    }
    onnx__model_proto__free_unpacked(l.model, &onnx_allocator);
    l.out->external = l.external.names;
    l.out->n_external = l.external.count;
    if (st == ST_OK) {
        *out = l.out;
        return ST_OK;
    }
    onnx_free(l.out);
    if (st == ST_USER)
        err_prefix(e, "'%s'", name);
    return st;
}

enum status onnx_load_bytes(const void *data, size_t len, const char *name, const char *folder, const struct kernels *k, struct onnx_model **out,
                            struct err *e)
{
    return load_bytes(data, len, NULL, name, folder, k, out, e);
}

enum status onnx_load(const char *path, const struct kernels *k, struct onnx_model **out, struct err *e)
{
    struct buf b = {0};
    char *folder = mem_strdup(path);
    enum status st = folder ? onnx_read_file(path, &b, e) : err_nomem(e, "a path");
    if (st == ST_OK) {
        char *slash = strrchr(folder, '/');
        if (slash)
            slash[slash == folder] = '\0';
        st = load_bytes(b.data, b.len, &b, path, slash ? folder : ".", k, out, e);
    }
    buf_release(&b);
    mem_free(folder);
    return st;
}
