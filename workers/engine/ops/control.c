/* If and Loop. Their bodies are graphs; what a body captures are further inputs of the node. */
#include <string.h>

#include "base/mem.h"
#include "workers/engine/ops/bodies.h"

/* If -------------------------------------------------------------------------------------------------------------------------------------- */

static enum status if_check(struct node *n, struct err *e)
{
    TRY(body_check(n, "then_branch", e));
    TRY(body_check(n, "else_branch", e));
    uint32_t at;
    uint32_t a = body_of(n, "then_branch", &at)->n_out, b = body_of(n, "else_branch", &at)->n_out;
    if (a < n->n_out || b < n->n_out)
        return node_error(n, e, "has %u outputs, its branches %u and %u", n->n_out, a, b);
    return ST_OK;
}

static int truth(const struct tensor *t)
{
    return tensor_count(t) > 0 && *(const uint8_t *)tensor_data(t);
}

/* With a condition that is constant only the branch that is taken has to make sense; graph_finish puts it in the node's place. */
static enum status if_shape(struct shaping *s, struct err *e)
{
    const struct node *n = s->node;
    if (!s->syms)
        return ST_OK; /* running tells */
    if (s->in[0].dtype != DT_BOOL)
        return node_error(n, e, "its condition is no bool");
    uint32_t then_at, else_at;
    struct graph *then_branch = body_of(n, "then_branch", &then_at), *else_branch = body_of(n, "else_branch", &else_at);
    int known = s->constants[0] && !graph_outermost(then_branch)->no_fold;
    int which = known ? truth(s->constants[0]) : 0;
    if (!known || which)
        TRY(body_infer(s, then_branch, NULL, then_at, e));
    if (!known || !which)
        TRY(body_infer(s, else_branch, NULL, else_at, e));
    for (uint32_t i = 0; i < n->n_out; i++) {
        s->out[i] = *body_out(known && !which ? else_branch : then_branch, i);
        if (!known && type_merge(s, &s->out[i], body_out(else_branch, i), NULL) < 0)
            return node_error(n, e, "output %u is of another type in each branch", i);
    }
    return ST_OK;
}

static enum status if_run(struct run *r, const struct node *n, struct err *e)
{
    uint32_t at;
    const struct tensor *c = run_in(r, 0);
    struct graph *g = body_of(n, truth(c) ? "then_branch" : "else_branch", &at);
    struct run *body;
    if (tensor_count(c) != 1)
        return node_error(n, e, "its condition has %lld elements", (long long)tensor_count(c));
    TRY(body_start(r, g, at, &body, e));
    enum status st = run_go(body, e);
    for (uint32_t i = 0; i < n->n_out && st == ST_OK; i++)
        if (run_out_value(r, i))
            st = value_share(run_out_value(r, i), run_taken(body, i), e);
    run_done(body);
    return st;
}

/* Loop ------------------------------------------------------------------------------------------------------------------------------------ */

enum { CARRIED_MAX = 4096, MERGES = 16 };

static enum status loop_check(struct node *n, struct err *e)
{
    uint32_t at;
    TRY(body_check(n, "body", e));
    const struct graph *g = body_of(n, "body", &at);
    uint32_t carried = n->n_own - 2;
    if (n->n_own > CARRIED_MAX || g->n_in != carried + 2 || g->n_out < carried + 1 || n->n_out > g->n_out - 1)
        return node_error(n, e, "carries %u values, but its body has %u inputs and %u outputs", carried, g->n_in, g->n_out);
    for (uint32_t i = 0; i < carried; i++)
        if (n->in[2 + i] < 0)
            return node_error(n, e, "input %u is left out, but needed", 2 + i);
    return ST_OK;
}

/* What is carried has whatever type holds the first value and all later ones: the body is inferred until its outputs add nothing. */
static enum status loop_shape(struct shaping *s, struct err *e)
{
    const struct node *n = s->node;
    uint32_t at, carried = n->n_own - 2;
    struct graph *g = body_of(n, "body", &at);
    if (!s->syms)
        return ST_OK;
    struct type *in = mem_array(carried + 2, sizeof *in);
    uint32_t *free = mem_array(carried + 1, sizeof *free);
    enum status st = in && free ? ST_OK : err_nomem(e, "types");
    int changed = 1;
    if (st == ST_OK) {
        type_tensor(&in[0], DT_I64, 0, NULL);
        type_tensor(&in[1], DT_BOOL, 0, NULL);
        for (uint32_t i = 0; i < carried; i++) {
            in[2 + i] = s->in[2 + i];
            in[2 + i].values = NULL;
        }
    }
    for (int round = 0; changed && st == ST_OK; round++) {
        changed = 0;
        st = round < MERGES ? body_infer(s, g, in, at, e) : node_error(n, e, "the types that it carries do not come to rest");
        for (uint32_t i = 0; i < carried && st == ST_OK; i++) {
            int m = type_merge(s, &in[2 + i], body_out(g, 1 + i), &free[i]);
            changed |= m;
            if (m < 0)
                st = node_error(n, e, "carried value %u changes its type", i);
        }
    }
    for (uint32_t i = 0; i < n->n_out && st == ST_OK; i++) {
        if (i < carried) {
            s->out[i] = in[2 + i];
            continue;
        }
        struct type t = *body_out(g, 1 + i);
        if (t.kind != VALUE_TENSOR || t.rank == RANK_MAX) {
            st = node_error(n, e, "output %u gathers something else than tensors of rank %d at most", i, RANK_MAX - 1);
            break;
        }
        if (t.rank >= 0) {
            memmove(t.dims + 1, t.dims, (size_t)t.rank * sizeof *t.dims);
            t.dims[0] = dim_fresh(s->syms);
            t.rank++;
        }
        t.values = NULL;
        s->out[i] = t;
    }
    mem_free(in);
    mem_free(free);
    return st;
}

struct loop {
    struct value count, cond; /* given to the body */
    struct value *carried;    /* and these */
    struct value *gathered;   /* sequences */
    uint32_t n_carried, n_gathered;
};

static enum status turn(struct run *r, struct run *body, struct loop *l, int64_t i, int *more, struct err *e)
{
    TRY(value_make(r, &l->count, DT_I64, 0, NULL, e));
    TRY(value_make(r, &l->cond, DT_BOOL, 0, NULL, e));
    *(int64_t *)tensor_data(&l->count.tensor) = i;
    *(uint8_t *)tensor_data(&l->cond.tensor) = (uint8_t)*more;
    TRY(run_give(body, 0, &l->count, e));
    TRY(run_give(body, 1, &l->cond, e));
    for (uint32_t k = 0; k < l->n_carried; k++) {
        TRY(run_give(body, 2 + k, &l->carried[k], e));
        value_clear(&l->carried[k]); /* the body may work in its memory */
    }
    TRY(run_go(body, e));
    const struct value *c = run_taken(body, 0);
    if (c->kind != VALUE_TENSOR || c->tensor.dtype != DT_BOOL || tensor_count(&c->tensor) != 1)
        return node_error(run_node(r), e, "its body's condition is no bool");
    *more = truth(&c->tensor);
    for (uint32_t k = 0; k < l->n_carried; k++)
        TRY(value_share(&l->carried[k], run_taken(body, 1 + k), e));
    for (uint32_t k = 0; k < l->n_gathered; k++) {
        const struct value *v = run_taken(body, 1 + l->n_carried + k);
        if (v->kind != VALUE_TENSOR)
            return node_error(run_node(r), e, "its body gives no tensor to gather");
        TRY(value_append(run_pool(r), &l->gathered[k], &v->tensor, e));
    }
    return ST_OK;
}

static enum status loop_run(struct run *r, const struct node *n, struct err *e)
{
    uint32_t at;
    const struct graph *g = body_of(n, "body", &at);
    const struct tensor *most = run_in(r, 0), *cond = run_in(r, 1);
    struct loop l = {.n_carried = n->n_own - 2, .n_gathered = g->n_out - 1 - (n->n_own - 2)};
    struct run *body = NULL;
    struct value *all = mem_array(l.n_carried + l.n_gathered + 1, sizeof *all);
    if (!all)
        return err_nomem(e, "a loop");
    l.carried = all;
    l.gathered = all + l.n_carried;
    for (uint32_t k = 0; k < l.n_gathered; k++)
        l.gathered[k].kind = VALUE_SEQUENCE;
    int64_t count = most && tensor_count(most) ? scalar_int(most, 0) : INT64_MAX;
    int more = cond ? truth(cond) : 1;
    enum status st = body_start(r, g, at, &body, e);
    for (uint32_t k = 0; k < l.n_carried && st == ST_OK; k++)
        st = value_share(&l.carried[k], run_in_value(r, 2 + k), e);
    for (int64_t i = 0; i < count && more && st == ST_OK; i++)
        st = turn(r, body, &l, i, &more, e);
    if (body)
        run_done(body);
    for (uint32_t k = 0; k < n->n_out && st == ST_OK; k++) {
        struct tensor like;
        if (!run_out_value(r, k))
            continue;
        if (k < l.n_carried) {
            st = value_share(run_out_value(r, k), &l.carried[k], e);
            continue;
        }
        body_like(g, 1 + k, &like);
        st = run_stack(r, k, &l.gathered[k - l.n_carried], 0, 1, 0, &like, e);
    }
    value_release(&l.count);
    value_release(&l.cond);
    for (uint32_t k = 0; k < l.n_carried + l.n_gathered; k++)
        value_release(&all[k]);
    mem_free(all);
    return st;
}

const struct op_def ops_control[] = {
    {.domain = "", .name = "If", .since = 1, .until = 99, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 0xffff, .flags = OP_VALUES | OP_NO_FOLD,
     .check = if_check, .shape = if_shape, .run = if_run},
    {.domain = "", .name = "Loop", .since = 1, .until = 99, .min_in = 2, .max_in = 0xffff, .min_out = 1, .max_out = 0xffff,
     .flags = OP_VALUES | OP_NO_FOLD, .check = loop_check, .shape = loop_shape, .run = loop_run},
    {0},
};
