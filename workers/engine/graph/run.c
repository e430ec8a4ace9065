/* Runs a finished graph: node after node, each value let go when the last node that needs it has run.

   What a node's sizes come to is kept and used again while its inputs have the sizes (and, for short vectors and scalars, the elements) of the last
   time, so that steady work costs a comparison per node. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/cpuinfo.h"
#include "workers/engine/graph/inner.h"
#include "workers/engine/graph/pack.h"

/* What was seen of an input when its node was last shaped. */
struct seen {
    struct tensor t; /* type and sizes */
    enum value_kind kind;
    uint32_t bytes;  /* of elements kept */
    uint8_t data[VALUES_MAX * 8];
};

struct slot {
    int valid;
    uint32_t n_seen;
    uint32_t *watch;      /* its inputs that are not constants */
    struct seen *seen;    /* of each */
    struct type *out;     /* what shape said */
    size_t *out_bytes;    /* SIZE_MAX: not told */
    uint32_t n_ends;      /* see graph.ends */
    const int32_t *ends;
    uint32_t n_takers;    /* inputs of which output 0 may take the memory */
    uint32_t *takers;
};

struct strings {
    struct strings *next;
    size_t used, cap;
    char data[];
};

struct chunk {
    void *base;
    size_t used, cap;
};

enum { CHUNKS = 16 };

struct run {
    const struct graph *g;
    struct run *root;      /* the outermost; owns the pool and the strings */
    struct pool *pool;
    struct value *values;  /* of the graph's values */
    struct slot *slots;    /* of its nodes */
    struct run *bodies, *next_body;
    struct buffer *borrowed; /* of each input: the caller's memory */

    /* the node whose turn it is */
    const struct node *node;
    const struct slot *slot;
    const struct value **in; /* NULL: left out */
    struct value **out;

    /* for shape functions */
    struct type *in_types;
    const struct tensor **constants;
    dim *in_values;
    struct room *room;
    struct strings *strings, *spare;
    struct chunk chunk[CHUNKS];
    uint32_t chunks;
    const struct seqs *seqs;
};

/* An input's buffer has this owner: never counted down to nothing, never taken over. */
static char caller;

/* Making and freeing ----------------------------------------------------------------------------------------------------------------- */

static void arity(const struct graph *g, uint32_t *in, uint32_t *out)
{
    *in = *out = 1;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        *in = g->nodes[i]->n_in > *in ? g->nodes[i]->n_in : *in;
        *out = g->nodes[i]->n_out > *out ? g->nodes[i]->n_out : *out;
    }
}

/* Input k is not needed afterwards, and is not another input too. */
static int ends_here(const struct node *n, uint32_t k, const struct slot *s)
{
    uint32_t times = 0, found = 0;
    for (uint32_t i = 0; i < n->n_in; i++)
        times += n->in[i] == n->in[k];
    for (uint32_t i = 0; i < s->n_ends; i++)
        found += s->ends[i] == n->in[k];
    return times == 1 && found == 1;
}

static enum status make_slot(struct run *r, uint32_t i, struct err *e)
{
    const struct graph *g = r->g;
    const struct node *n = g->nodes[i];
    struct slot *s = &r->slots[i];
    s->watch = mem_array(n->n_in + 1, sizeof *s->watch);
    s->out = mem_array(n->n_out + 1, sizeof *s->out);
    s->out_bytes = mem_array(n->n_out + 1, sizeof *s->out_bytes);
    if (!s->watch || !s->out || !s->out_bytes)
        return err_nomem(e, "a run");
    for (uint32_t k = 0; k < n->n_in; k++)
        if (n->in[k] >= 0 && !g->values[n->in[k]].constant.buffer)
            s->watch[s->n_seen++] = k;
    s->seen = mem_array(s->n_seen + 1, sizeof *s->seen);
    if (!s->seen)
        return err_nomem(e, "a run");
    s->ends = g->ends + g->ends_at[i];
    s->n_ends = g->ends_at[i + 1] - g->ends_at[i];
    if (!(n->def->flags & OP_IN_PLACE))
        return ST_OK;
    s->takers = mem_array(s->n_seen + 1, sizeof *s->takers);
    if (!s->takers)
        return err_nomem(e, "a run");
    for (uint32_t k = 0; k < s->n_seen; k++)
        if (ends_here(n, s->watch[k], s))
            s->takers[s->n_takers++] = s->watch[k];
    return ST_OK;
}

static enum status set_up(struct run *r, struct run *root, struct err *e)
{
    const struct graph *g = r->g;
    uint32_t n_in, n_out;
    arity(g, &n_in, &n_out);
    r->root = root ? root : r;
    r->values = mem_array(g->n_values + 1, sizeof *r->values);
    r->slots = mem_array(g->n_nodes + 1, sizeof *r->slots);
    r->in = mem_array(n_in, sizeof *r->in);
    r->out = mem_array(n_out, sizeof *r->out);
    r->in_types = mem_array(n_in, sizeof *r->in_types);
    r->constants = mem_array(n_in, sizeof *r->constants);
    r->in_values = mem_array(n_in, VALUES_MAX * sizeof *r->in_values);
    r->borrowed = mem_array(g->n_in + 1, sizeof *r->borrowed);
    if (!r->values || !r->slots || !r->in || !r->out || !r->in_types || !r->constants || !r->in_values || !r->borrowed)
        return err_nomem(e, "a run");
    for (uint32_t i = 0; i < g->n_values; i++)
        if (g->values[i].constant.buffer)
            r->values[i] = (struct value){.kind = VALUE_TENSOR, .tensor = g->values[i].constant};
    for (uint32_t i = 0; i < g->n_nodes; i++)
        TRY(make_slot(r, i, e));
    if (root)
        r->pool = root->pool;
    else
        TRY(pool_new(&r->pool, e));
    return ST_OK;
}

static void free_strings(struct strings *s)
{
    while (s) {
        struct strings *next = s->next;
        mem_free(s);
        s = next;
    }
}

void run_free(struct run *r)
{
    if (!r)
        return;
    while (r->bodies) {
        struct run *next = r->bodies->next_body;
        run_free(r->bodies);
        r->bodies = next;
    }
    for (uint32_t i = 0; r->values && i < r->g->n_values; i++)
        value_release(&r->values[i]);
    for (uint32_t i = 0; r->slots && i < r->g->n_nodes; i++) {
        mem_free(r->slots[i].watch);
        mem_free(r->slots[i].seen);
        mem_free(r->slots[i].takers);
        mem_free(r->slots[i].out);
        mem_free(r->slots[i].out_bytes);
    }
    for (uint32_t i = 0; i < r->chunks; i++)
        mem_free(r->chunk[i].base);
    free_strings(r->strings);
    free_strings(r->spare);
    room_free(r->room);
    mem_free(r->values);
    mem_free(r->slots);
    mem_free(r->in);
    mem_free(r->out);
    mem_free(r->in_types);
    mem_free(r->constants);
    mem_free(r->in_values);
    mem_free(r->borrowed);
    if (r->root == r)
        pool_free(r->pool);
    mem_free(r);
}

static enum status new_run(const struct graph *g, struct run *root, struct run **out, struct err *e)
{
    BUG_IF(!g->ends_at, "a graph is run before it is finished");
    struct run *r = mem_zalloc(sizeof *r);
    if (!r)
        return err_nomem(e, "a run");
    r->g = g;
    enum status st = set_up(r, root, e);
    if (st != ST_OK) {
        if (!r->root)
            r->root = r;
        run_free(r);
        return st;
    }
    *out = r;
    return ST_OK;
}

enum status run_new(const struct graph *g, struct run **out, struct err *e)
{
    return new_run(g, NULL, out, e);
}

size_t run_bytes(const struct run *r)
{
    size_t n = pool_bytes(r->pool);
    for (uint32_t i = 0; i < r->chunks; i++)
        n += r->chunk[i].cap;
    return n;
}

struct pool *run_pool(struct run *r)
{
    return r->pool;
}

const struct node *run_node(const struct run *r)
{
    return r->node;
}

/* Inputs ----------------------------------------------------------------------------------------------------------------------------- */

static const char *type_text(enum dtype d, uint32_t rank, const int64_t *dims, char *buf, size_t cap)
{
    size_t n = (size_t)snprintf(buf, cap, "%s[", dtype_name(d));
    for (uint32_t i = 0; i < rank && n < cap; i++)
        n += (size_t)snprintf(buf + n, cap - n, "%s%lld", i ? ", " : "", (long long)dims[i]);
    if (n < cap)
        snprintf(buf + n, cap - n, "]");
    return buf;
}

/* An input is what the graph was finished for. */
static enum status check_input(const struct run *r, uint32_t i, const struct tensor *t, struct err *e)
{
    const struct graph_value *v = &r->g->values[r->g->in[i]];
    char got[256], want[64];
    int fits = v->type.rank < 0 || (uint32_t)v->type.rank == t->rank;
    for (uint32_t k = 0; fits && v->type.rank >= 0 && k < t->rank; k++)
        fits = t->dims[k] >= 0 && (!dim_known(v->type.dims[k]) || v->type.dims[k] == t->dims[k]);
    if (fits && (v->type.dtype == DT_NONE || v->type.dtype == t->dtype))
        return ST_OK;
    char shape[512];
    size_t n = (size_t)snprintf(shape, sizeof shape, "%s[", dtype_name(v->type.dtype));
    for (int k = 0; k < v->type.rank && n < sizeof shape; k++)
        n += (size_t)snprintf(shape + n, sizeof shape - n, "%s%s", k ? ", " : "", dim_text(r->g->syms, v->type.dims[k], want, sizeof want));
    if (n < sizeof shape)
        snprintf(shape + n, sizeof shape - n, v->type.rank < 0 ? "...]" : "]");
    return err_set(e, ST_USER, "input '%s' is %s where the model takes %s", v->name, type_text(t->dtype, t->rank, t->dims, got, sizeof got), shape);
}

enum status run_set(struct run *r, uint32_t i, enum dtype d, uint32_t rank, const int64_t *dims, const void *data, struct err *e)
{
    BUG_IF(i >= r->g->n_in || rank > RANK_MAX, "input %u of %u", i, r->g->n_in);
    struct value *v = &r->values[r->g->in[i]];
    struct tensor t = {.dtype = d, .rank = rank, .buffer = &r->borrowed[i]};
    if (rank)
        memcpy(t.dims, dims, rank * sizeof *dims);
    TRY(check_input(r, i, &t, e));
    value_clear(v);
    r->borrowed[i] = (struct buffer){.refs = 1u << 30, .base = (void *)data, .owner = &caller};
    v->kind = VALUE_TENSOR;
    v->tensor = t;
    return ST_OK;
}

/* Tensors of sequences are copied: their memory is the caller's, who says so only of whole inputs. */
enum status run_set_value(struct run *r, uint32_t i, const struct value *v, struct err *e)
{
    if (v->kind == VALUE_TENSOR)
        return run_set(r, i, v->tensor.dtype, v->tensor.rank, v->tensor.dims, tensor_data(&v->tensor), e);
    BUG_IF(i >= r->g->n_in, "input %u of %u", i, r->g->n_in);
    struct value *to = &r->values[r->g->in[i]];
    value_clear(to);
    to->element = v->element;
    to->kind = v->kind;
    for (uint32_t k = 0; v->kind == VALUE_SEQUENCE && k < v->count; k++) {
        struct tensor t = v->items[k].tensor;
        int64_t bytes = tensor_size(t.dtype, t.rank, t.dims);
        struct buffer *b = bytes < 0 ? NULL : pool_get(r->pool, (size_t)bytes);
        if (!b)
            return err_nomem(e, "an input");
        memcpy(b->base, tensor_data(&v->items[k].tensor), (size_t)bytes);
        t.buffer = b;
        t.offset = 0;
        enum status st = value_append(to, &t, e);
        buffer_drop(b);
        TRY(st);
    }
    return ST_OK;
}

enum status run_give(struct run *body, uint32_t i, const struct value *v, struct err *e)
{
    BUG_IF(i >= body->g->n_in, "input %u of %u", i, body->g->n_in);
    return value_share(&body->values[body->g->in[i]], v, e);
}

enum status run_give_capture(struct run *body, uint32_t i, const struct value *v, struct err *e)
{
    BUG_IF(i >= body->g->n_captures, "capture %u of %u", i, body->g->n_captures);
    int32_t to = body->g->captures[i];
    if (body->g->values[to].constant.buffer)
        return ST_OK;
    return value_share(&body->values[to], v, e);
}

/* A node's turn ---------------------------------------------------------------------------------------------------------------------- */

const struct tensor *run_in(const struct run *r, uint32_t i)
{
    return i < r->node->n_in && r->in[i] && r->in[i]->kind == VALUE_TENSOR ? &r->in[i]->tensor : NULL;
}

const struct value *run_in_value(const struct run *r, uint32_t i)
{
    return i < r->node->n_in ? r->in[i] : NULL;
}

struct tensor *run_out(struct run *r, uint32_t i)
{
    return i < r->node->n_out && r->out[i] ? &r->out[i]->tensor : NULL;
}

struct value *run_out_value(struct run *r, uint32_t i)
{
    return i < r->node->n_out ? r->out[i] : NULL;
}

enum status run_make(struct run *r, uint32_t i, enum dtype d, uint32_t rank, const int64_t *dims, struct err *e)
{
    if (i >= r->node->n_out || !r->out[i])
        return ST_OK;
    struct value *v = r->out[i];
    struct tensor t = {.dtype = d, .rank = rank};
    if (rank)
        memcpy(t.dims, dims, rank * sizeof *dims); /* dims may be v's own */
    int64_t bytes = rank <= RANK_MAX ? tensor_size(d, rank, t.dims) : -1;
    if (bytes < 0)
        return node_error(r->node, e, "output %u would have sizes that cannot be", i);
    struct buffer *b = pool_get(r->pool, (size_t)bytes);
    if (!b)
        return err_nomem(e, "a tensor");
    value_clear(v);
    v->kind = VALUE_TENSOR;
    v->tensor = t;
    v->tensor.buffer = b;
    return ST_OK;
}

void run_view(struct run *r, uint32_t i, uint32_t j, size_t offset, uint32_t rank, const int64_t *dims)
{
    if (i >= r->node->n_out || !r->out[i])
        return;
    const struct tensor *from = &r->in[j]->tensor;
    struct value *v = r->out[i];
    struct tensor t = {.dtype = from->dtype, .rank = rank, .buffer = from->buffer, .offset = from->offset + offset};
    if (rank)
        memcpy(t.dims, dims, rank * sizeof *dims);
    buffer_keep(t.buffer);
    value_clear(v);
    v->kind = VALUE_TENSOR;
    v->tensor = t;
}

enum status run_scratch(struct run *r, size_t bytes, void **out, struct err *e)
{
    struct run *root = r->root;
    bytes = (bytes + 127) / 64 * 64; /* never nothing; a line between neighbours */
    for (uint32_t i = 0; i < root->chunks; i++)
        if (root->chunk[i].cap - root->chunk[i].used >= bytes) {
            *out = (char *)root->chunk[i].base + root->chunk[i].used;
            root->chunk[i].used += bytes;
            return ST_OK;
        }
    if (root->chunks == CHUNKS)
        return node_error(r->node, e, "takes too many pieces of scratch memory");
    void *base = mem_aligned(bytes);
    if (!base)
        return err_nomem(e, "scratch memory");
    root->chunk[root->chunks++] = (struct chunk){.base = base, .cap = bytes, .used = bytes};
    *out = base;
    return ST_OK;
}

/* What the node took is free again. Several chunks become one, so that the next time finds room in it. A node with bodies keeps its own while they
   run: only what lies above `mark` is let go. */
static void scratch_reset(struct run *root, const size_t *mark, uint32_t marked)
{
    if (marked == 0 && root->chunks > 1) {
        size_t all = 0;
        for (uint32_t i = 0; i < root->chunks; i++)
            all += root->chunk[i].cap;
        void *base = mem_aligned(all);
        if (base) {
            for (uint32_t i = 0; i < root->chunks; i++)
                mem_free(root->chunk[i].base);
            root->chunk[0] = (struct chunk){.base = base, .cap = all};
            root->chunks = 1;
            return;
        }
    }
    for (uint32_t i = 0; i < root->chunks; i++)
        root->chunk[i].used = i < marked ? mark[i] : 0;
}

enum status run_string(struct run *r, const char *data, size_t len, struct str *out, struct err *e)
{
    struct run *root = r->root;
    struct strings *s = root->strings;
    if (!s || s->cap - s->used < len + 1) {
        struct strings **at = &root->spare;
        while (*at && (*at)->cap < len + 1)
            at = &(*at)->next;
        if (*at) {
            s = *at;
            *at = s->next;
        } else {
            size_t cap = len + 1 > 65536 ? len + 1 : 65536;
            s = mem_alloc(sizeof *s + cap);
            if (!s)
                return err_nomem(e, "strings");
            s->cap = cap;
        }
        s->used = 0;
        s->next = root->strings;
        root->strings = s;
    }
    char *to = s->data + s->used;
    if (len)
        memcpy(to, data, len);
    to[len] = '\0';
    s->used += len + 1;
    *out = (struct str){to, len};
    return ST_OK;
}

void run_pack(struct run *r, const struct seqs *s)
{
    if (!s != !r->seqs) /* what was shaped for the other way is not for this one */
        for (uint32_t i = 0; i < r->g->n_nodes; i++)
            r->slots[i].valid = 0;
    r->seqs = s;
}

const struct seqs *run_seqs(const struct run *r)
{
    return r->root->seqs;
}

/* Sizes ------------------------------------------------------------------------------------------------------------------------------ */

/* Of an input of which elements may matter to sizes: a vector or scalar, short. */
static uint32_t kept_bytes(const struct tensor *t)
{
    if (t->rank > 1 || t->dtype == DT_STR)
        return 0;
    int64_t n = t->rank ? t->dims[0] : 1;
    return n <= VALUES_MAX ? (uint32_t)((size_t)n * dtype_bytes(t->dtype)) : 0;
}

static int same_as_seen(const struct run *r, const struct slot *s)
{
    for (uint32_t k = 0; k < s->n_seen; k++) {
        const struct value *v = r->in[s->watch[k]];
        const struct seen *was = &s->seen[k];
        if (v->kind != was->kind)
            return 0;
        if (v->kind == VALUE_SEQUENCE)
            return 0;
        if (v->kind == VALUE_NONE)
            continue;
        const struct tensor *t = &v->tensor;
        if (t->dtype != was->t.dtype || t->rank != was->t.rank)
            return 0;
        for (uint32_t i = 0; i < t->rank; i++)
            if (t->dims[i] != was->t.dims[i])
                return 0;
        if (was->bytes && memcmp(tensor_data(t), was->data, was->bytes) != 0)
            return 0;
    }
    return 1;
}

static void look(const struct run *r, struct slot *s)
{
    for (uint32_t k = 0; k < s->n_seen; k++) {
        const struct value *v = r->in[s->watch[k]];
        struct seen *was = &s->seen[k];
        was->kind = v->kind;
        was->bytes = 0;
        if (v->kind != VALUE_TENSOR)
            continue;
        was->t = v->tensor;
        was->bytes = kept_bytes(&v->tensor);
        if (was->bytes)
            memcpy(was->data, tensor_data(&v->tensor), was->bytes);
    }
}

static dim *shaping_room(struct shaping *s, uint32_t count)
{
    struct run *r = s->owner;
    return room_get(&r->room, count);
}

static void type_of(struct run *r, uint32_t i, struct type *t)
{
    const struct value *v = r->in[i];
    *t = (struct type){.kind = v ? v->kind : VALUE_NONE};
    r->constants[i] = NULL;
    if (!v)
        return;
    if (v->kind == VALUE_SEQUENCE) {
        t->dtype = v->element;
        t->rank = -1;
        return;
    }
    if (v->kind == VALUE_NONE) {
        t->optional = 1;
        return;
    }
    const struct tensor *x = &v->tensor;
    t->dtype = x->dtype;
    t->rank = (int)x->rank;
    memcpy(t->dims, x->dims, x->rank * sizeof *x->dims);
    r->constants[i] = x;
    if (tensor_has_values(x))
        t->values = tensor_values(x, r->in_values + (size_t)i * VALUES_MAX);
}

static enum status check_out(const struct node *n, uint32_t k, const struct type *t, size_t *bytes, struct err *e)
{
    *bytes = SIZE_MAX;
    if (t->kind != VALUE_TENSOR || t->rank < 0)
        return ST_OK;
    int known = 1;
    for (int i = 0; i < t->rank; i++) {
        if (dim_known(t->dims[i]) && t->dims[i] < 0)
            return node_error(n, e, "output %u would have size %lld along axis %d", k, (long long)t->dims[i], i);
        known &= dim_known(t->dims[i]);
    }
    int64_t size = known ? tensor_size(t->dtype, (uint32_t)t->rank, t->dims) : 0;
    if (size < 0)
        return node_error(n, e, "output %u would have sizes that cannot be", k);
    if (known)
        *bytes = (size_t)size;
    return ST_OK;
}

static enum status shape_node(struct run *r, const struct node *n, struct slot *s, struct err *e)
{
    s->valid = 0;
    for (uint32_t i = 0; i < n->n_in; i++)
        type_of(r, i, &r->in_types[i]);
    memset(s->out, 0, n->n_out * sizeof *s->out);
    struct shaping sh = {.node = n, .n_in = n->n_in, .n_out = n->n_out, .in = r->in_types, .out = s->out, .constants = r->constants,
                         .room = shaping_room, .owner = r, .packed = r->root->seqs != NULL};
    enum status st = n->def->shape(&sh, e);
    for (uint32_t k = 0; k < n->n_out && st == ST_OK; k++) {
        s->out[k].values = NULL; /* its elements are computed */
        st = check_out(n, k, &s->out[k], &s->out_bytes[k], e);
    }
    room_reset(r->room);
    TRY(st);
    look(r, s);
    s->valid = 1;
    return ST_OK;
}

/* Memory for the outputs that shape could tell; where the op allows it, that of an input which ends here. */
static enum status make_outputs(struct run *r, const struct node *n, const struct slot *s, struct err *e)
{
    for (uint32_t k = 0; k < n->n_out; k++) {
        struct value *v = r->out[k];
        if (!v)
            continue;
        const struct type *t = &s->out[k];
        value_clear(v);
        if (t->kind != VALUE_TENSOR) {
            v->element = t->dtype;
            continue;
        }
        v->tensor = (struct tensor){.dtype = t->dtype, .rank = t->rank < 0 ? 0 : (uint32_t)t->rank};
        for (uint32_t i = 0; i < v->tensor.rank; i++)
            v->tensor.dims[i] = t->dims[i];
        if (s->out_bytes[k] == SIZE_MAX || (n->def->flags & OP_VIEW))
            continue;
        for (uint32_t i = 0; k == 0 && i < s->n_takers && !v->tensor.buffer; i++) {
            const struct value *from = r->in[s->takers[i]];
            if (from->kind == VALUE_TENSOR && from->tensor.dtype == t->dtype && from->tensor.buffer->owner == r->pool &&
                from->tensor.buffer->refs == 1 && tensor_count(&from->tensor) == tensor_count(&v->tensor)) {
                v->tensor.buffer = from->tensor.buffer;
                v->tensor.offset = from->tensor.offset;
                buffer_keep(v->tensor.buffer);
            }
        }
        if (!v->tensor.buffer)
            v->tensor.buffer = pool_get(r->pool, s->out_bytes[k]);
        if (!v->tensor.buffer)
            return err_nomem(e, "a tensor");
        v->kind = VALUE_TENSOR;
    }
    return ST_OK;
}

/* r->in and r->out are set. */
static enum status turn(struct run *r, const struct node *n, struct slot *s, struct err *e)
{
    struct run *root = r->root;
    size_t mark[CHUNKS];
    uint32_t marked = r == root ? 0 : root->chunks;
    for (uint32_t i = 0; i < marked; i++)
        mark[i] = root->chunk[i].used;
    r->node = n;
    r->slot = s;
    if (!s->valid || !same_as_seen(r, s))
        TRY(shape_node(r, n, s, e));
    TRY(make_outputs(r, n, s, e));
    enum status st = n->def->run(r, n, e);
    scratch_reset(root, mark, marked);
    for (uint32_t k = 0; k < n->n_out && st == ST_OK; k++)
        BUG_IF(r->out[k] && r->out[k]->kind == VALUE_NONE && s->out[k].kind == VALUE_TENSOR && !s->out[k].optional,
               "node '%s' (%s) made no output %u", n->name, n->op, k);
    return st;
}

/* What is left of the last run: its results, or more where it failed. */
static void clear(struct run *r, int all)
{
    const struct graph *g = r->g;
    for (uint32_t i = 0; i < (all ? g->n_values : g->n_out); i++) {
        int32_t v = all ? (int32_t)i : g->out[i];
        if (!g->values[v].constant.buffer && g->values[v].producer >= 0)
            value_clear(&r->values[v]);
    }
}

enum status run_go(struct run *r, struct err *e)
{
    const struct graph *g = r->g;
    clear(r, 0);
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct node *n = g->nodes[i];
        struct slot *s = &r->slots[i];
        for (uint32_t k = 0; k < n->n_in; k++)
            r->in[k] = n->in[k] < 0 ? NULL : &r->values[n->in[k]];
        for (uint32_t k = 0; k < n->n_out; k++)
            r->out[k] = n->out[k] < 0 ? NULL : &r->values[n->out[k]];
        enum status st = turn(r, n, s, e);
        if (st != ST_OK) {
            clear(r, 1);
            return st;
        }
        for (uint32_t k = 0; k < s->n_ends; k++)
            value_clear(&r->values[s->ends[k]]);
    }
    return ST_OK;
}

const struct value *run_taken(const struct run *r, uint32_t i)
{
    return &r->values[r->g->out[i]];
}

void run_done(struct run *r)
{
    const struct graph *g = r->g;
    clear(r, 0);
    for (uint32_t i = 0; i < g->n_in; i++)
        value_clear(&r->values[g->in[i]]);
    for (uint32_t i = 0; i < g->n_captures; i++)
        if (!g->values[g->captures[i]].constant.buffer)
            value_clear(&r->values[g->captures[i]]);
}

enum status run_body(struct run *r, const struct graph *body, struct run **out, struct err *e)
{
    for (struct run *b = r->bodies; b; b = b->next_body)
        if (b->g == body) {
            *out = b;
            return ST_OK;
        }
    struct run *b = NULL;
    TRY(new_run(body, r->root, &b, e));
    b->next_body = r->bodies;
    r->bodies = b;
    *out = b;
    return ST_OK;
}

/* A whole run -------------------------------------------------------------------------------------------------------------------------- */

/* A result does not lie in memory that the caller takes back. */
static enum status own(struct run *r, struct value *v, struct err *e)
{
    for (uint32_t i = 0; v->kind == VALUE_SEQUENCE && i < v->count; i++)
        TRY(own(r, &v->items[i], e));
    if (v->kind != VALUE_TENSOR || !v->tensor.buffer->owner)
        return ST_OK;
    struct tensor *t = &v->tensor;
    if (t->buffer->owner == &caller || t->dtype == DT_STR) {
        size_t bytes = (size_t)tensor_count(t) * dtype_bytes(t->dtype);
        struct buffer *b = pool_get(r->pool, bytes);
        if (!b)
            return err_nomem(e, "a result");
        if (bytes)
            memcpy(b->base, tensor_data(t), bytes);
        buffer_drop(t->buffer);
        t->buffer = b;
        t->offset = 0;
    }
    struct str *s = t->dtype == DT_STR ? tensor_data(t) : NULL;
    for (int64_t i = 0; s && i < tensor_count(t); i++)
        TRY(run_string(r, s[i].data, s[i].len, &s[i], e));
    return ST_OK;
}

static enum status whole(struct run *r, struct err *e)
{
    const struct graph *g = r->g;
    for (uint32_t i = 0; i < g->n_in; i++) {
        const struct graph_value *v = &g->values[g->in[i]];
        if (r->values[g->in[i]].kind == VALUE_NONE && !v->type.optional && !v->constant.buffer)
            return err_set(e, ST_USER, "input '%s' is not given", v->name);
    }
    clear(r, 0);
    while (r->strings) {
        struct strings *s = r->strings;
        r->strings = s->next;
        s->next = r->spare;
        r->spare = s;
    }
    TRY(run_go(r, e));
    for (uint32_t i = 0; i < g->n_out; i++)
        TRY(own(r, &r->values[g->out[i]], e));
    return ST_OK;
}

enum status run_graph(struct run *r, struct err *e)
{
    unsigned saved = fp_enter();
    enum status st = whole(r, e);
    fp_leave(saved);
    return st;
}

const struct value *run_result(const struct run *r, uint32_t i)
{
    return &r->values[r->g->out[i]];
}

enum status run_submit(struct run *r, ticket *out, struct err *e)
{
    TRY(run_graph(r, e));
    *out = 1; /* it is done */
    return ST_OK;
}

enum status run_wait(struct run *r, ticket t, struct err *e)
{
    (void)r;
    (void)e;
    BUG_IF(t != 1, "no such ticket");
    return ST_OK;
}

/* One node on its own ------------------------------------------------------------------------------------------------------------------ */

static enum status once(struct run *r, struct node *n, struct slot *s, const struct tensor *const *in, struct value *values, struct tensor *out,
                        struct err *e)
{
    for (uint32_t i = 0; i < n->n_in; i++) {
        r->in[i] = in[i] ? &values[i] : NULL;
        if (in[i])
            values[i] = (struct value){.kind = VALUE_TENSOR, .tensor = *in[i]};
    }
    for (uint32_t k = 0; k < n->n_out; k++)
        r->out[k] = n->out[k] < 0 ? NULL : &values[n->n_in + k];
    unsigned saved = fp_enter();
    enum status st = turn(r, n, s, e);
    fp_leave(saved);
    for (uint32_t k = 0; k < n->n_out && st == ST_OK; k++) {
        if (!r->out[k])
            continue;
        struct tensor *t = &r->out[k]->tensor;
        if (!t->buffer->owner)
            tensor_share(&out[k], t);
        else
            st = tensor_copy(&out[k], t->dtype, t->rank, t->dims, tensor_data(t), e);
    }
    return st;
}

enum status run_once(const struct graph *g, struct node *n, const struct tensor *const *in, struct tensor *out, struct err *e)
{
    struct run r = {.g = g, .root = &r};
    struct slot s = {0};
    uint32_t n_in = n->n_in + 1, n_out = n->n_out + 1;
    struct value *values = mem_array(n_in + n_out, sizeof *values);
    s.out = mem_array(n_out, sizeof *s.out);
    s.out_bytes = mem_array(n_out, sizeof *s.out_bytes);
    r.in = mem_array(n_in, sizeof *r.in);
    r.out = mem_array(n_out, sizeof *r.out);
    r.in_types = mem_array(n_in, sizeof *r.in_types);
    r.constants = mem_array(n_in, sizeof *r.constants);
    r.in_values = mem_array(n_in, VALUES_MAX * sizeof *r.in_values);
    enum status st = !values || !s.out || !s.out_bytes || !r.in || !r.out || !r.in_types || !r.constants || !r.in_values
                         ? err_nomem(e, "folding constants")
                         : pool_new(&r.pool, e);
    if (st == ST_OK)
        st = once(&r, n, &s, in, values, out, e);
    for (uint32_t k = 0; st != ST_OK && k < n->n_out; k++)
        tensor_release(&out[k]);
    for (uint32_t k = 0; values && k < n->n_out; k++)
        value_release(&values[n->n_in + k]);
    for (uint32_t i = 0; i < r.chunks; i++)
        mem_free(r.chunk[i].base);
    free_strings(r.strings);
    room_free(r.room);
    pool_free(r.pool);
    mem_free(values);
    mem_free(s.out);
    mem_free(s.out_bytes);
    mem_free(r.in);
    mem_free(r.out);
    mem_free(r.in_types);
    mem_free(r.constants);
    mem_free(r.in_values);
    return st;
}
