/* A node's turn: its sizes, memory for what it makes, and what an op may ask of its run.

   What a node's sizes come to is kept and used again while its inputs have the sizes (and, for short vectors and scalars, the elements) of the last
   time, so that steady work costs a comparison per node. */
#include <string.h>

#include "base/mem.h"
#include "base/units.h"
#include "workers/engine/graph/pack.h"
#include "workers/engine/graph/running.h"

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

/* Memory of this run that lies idle goes: scratch, strings and buffers that nobody holds now. */
static void reclaim(struct run *root)
{
    while (root->spare) {
        struct strings *s = root->spare;
        root->spare = s->next;
        pool_credit(root->pool, sizeof *s + s->cap);
        mem_free(s);
    }
    for (uint32_t i = 0; i < root->chunks; i++)
        if (!root->chunk[i].used) {
            pool_credit(root->pool, root->chunk[i].cap);
            mem_free(root->chunk[i].base);
            root->chunk[i] = (struct chunk){0};
        }
    pool_trim(root->pool);
}

static enum status refuse(const struct run *r, size_t bytes, const char *what, struct err *e)
{
    char size[UNITS_MAX], most[UNITS_MAX];
    units_bytes(size, bytes);
    units_bytes(most, pool_most(r->pool));
    if (!r->node)
        return err_set(e, ST_USER, "%s of %s is more than the memory that a run may have here (%s)", what, size, most);
    return node_error(r->node, e, "%s of %s would take the run beyond the memory that it may have here (%s)", what, size, most);
}

enum status run_buffer(struct run *r, size_t bytes, struct buffer **out, struct err *e)
{
    *out = pool_get(r->pool, bytes);
    if (!*out && r->root) {
        reclaim(r->root);
        *out = pool_get(r->pool, bytes);
    }
    if (*out)
        return ST_OK;
    return pool_full(r->pool, bytes) ? refuse(r, bytes, "a tensor", e) : err_nomem(e, "a tensor");
}

/* Of the outermost run's own memory. */
static enum status charged(struct run *r, size_t bytes, const char *what, void **out, struct err *e)
{
    struct run *root = r->root;
    if (pool_charge(root->pool, bytes) != 0) {
        reclaim(root);
        if (pool_charge(root->pool, bytes) != 0)
            return refuse(r, bytes, what, e);
    }
    *out = mem_aligned(bytes);
    if (*out)
        return ST_OK;
    pool_credit(root->pool, bytes);
    return err_nomem(e, what);
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
    struct buffer *b;
    TRY(run_buffer(r, (size_t)bytes, &b, e));
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
    uint32_t at = 0;
    void *base;
    TRY(charged(r, bytes, "scratch memory", &base, e));
    while (at < root->chunks && root->chunk[at].base)
        at++;
    if (at == CHUNKS) {
        pool_credit(root->pool, bytes);
        mem_free(base);
        return node_error(r->node, e, "takes too many pieces of scratch memory");
    }
    root->chunks += at == root->chunks;
    root->chunk[at] = (struct chunk){.base = base, .cap = bytes, .used = bytes};
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
        for (uint32_t i = 0; i < root->chunks; i++)
            mem_free(root->chunk[i].base);
        void *base = mem_aligned(all);
        root->chunk[0] = (struct chunk){.base = base, .cap = all};
        root->chunks = base != NULL;
        if (!base)
            pool_credit(root->pool, all);
        return;
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
            void *room;
            TRY(charged(r, sizeof *s + cap, "a text", &room, e));
            s = room;
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
    for (uint32_t k = 0; k < n->n_out && st == ST_OK && !(n->def->flags & (OP_MAKES | OP_VALUES)); k++)
        if (r->out[k] && s->out[k].kind == VALUE_TENSOR && s->out_bytes[k] == SIZE_MAX)
            st = node_error(n, e, "the sizes of output %u cannot be told from what its inputs hold", k);
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
            TRY(run_buffer(r, s->out_bytes[k], &v->tensor.buffer, e));
        v->kind = VALUE_TENSOR;
    }
    return ST_OK;
}

enum status running_turn(struct run *r, const struct node *n, struct slot *s, struct err *e)
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
        if (r->out[k] && r->out[k]->kind == VALUE_NONE && s->out[k].kind == VALUE_TENSOR && !s->out[k].optional)
            st = node_error(n, e, "it has made no output %u of what it was given", k);
    if (st == ST_USER && strncmp(e->text, "node '", 6) != 0) /* said by what knows of no node */
        st = err_prefix(e, "node '%s' (%s)", n->name, n->op);
    return st;
}
