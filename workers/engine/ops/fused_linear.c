/* ebb.Linear: y = act(x W + b) + residual, over the last axis of x. Made by graph/fuse_linear.c only.
   Inputs: x [..., k]; W constant, [k, n] or, with transposed = 1, [n, k]; b constant of n numbers, or left out; residual like y, or left out.
   Attributes: activation (gelu, gelu_tanh, relu, tanh, sigmoid, silu), transposed. */
#include <string.h>

#include "base/mem.h"
#include "workers/engine/ops/args.h"
#include "workers/engine/packfile.h"

struct fused {
    struct linear linear;
    enum act act;
};

static enum status check(struct node *n, struct err *e)
{
    static const struct {
        const char *name;
        enum act act;
    } acts[] = {{"", ACT_NONE}, {"gelu", ACT_GELU}, {"gelu_tanh", ACT_GELU_TANH}, {"relu", ACT_RELU}, {"tanh", ACT_TANH}, {"sigmoid", ACT_SIGMOID},
              {"silu", ACT_SILU}};
    const char *name = node_string(n, "activation", "");
    struct fused *f = mem_zalloc(sizeof *f);
    if (!f)
        return err_nomem(e, "the model's graph");
    n->state = f;
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        if (strcmp(name, acts[i].name) == 0) {
            f->act = acts[i].act;
            return ST_OK;
        }
    return node_error(n, e, "activation '%s' is not known", name);
}

static enum status shape(struct shaping *s, struct err *e)
{
    const struct type *x = &s->in[0], *w = &s->in[1];
    int turned = node_int(s->node, "transposed", 0) != 0;
    if (x->dtype != DT_F32 || w->dtype != DT_F32 || x->rank < 1 || w->rank != 2)
        return node_error(s->node, e, "wrong types");
    if (dim_known(x->dims[x->rank - 1]) && x->dims[x->rank - 1] != w->dims[turned])
        return node_error(s->node, e, "the input's last axis has %lld elements, the weights take %lld", (long long)x->dims[x->rank - 1],
                          (long long)w->dims[turned]);
    type_tensor(&s->out[0], DT_F32, x->rank, x->dims);
    s->out[0].dims[x->rank - 1] = w->dims[!turned];
    return ST_OK;
}

static enum status plan(struct node *n, const struct shaping *s, struct err *e)
{
    struct fused *f = n->state;
    const struct tensor *w = s->constants[1], *b = arg_there(s, 2) ? s->constants[2] : NULL;
    int turned = node_int(n, "transposed", 0) != 0;
    size_t k = (size_t)w->dims[turned], outputs = (size_t)w->dims[!turned];
    return packfile_linear_of(n->pack, &f->linear, n->kernels, (enum precision)n->precision, (uint32_t)outputs, (uint32_t)k, tensor_data(w), turned ? k : 1,
                              turned ? 1 : outputs, b ? tensor_data(b) : NULL, e);
}

static enum status run(struct run *r, const struct node *n, struct err *e)
{
    const struct fused *f = n->state;
    const struct tensor *x = run_in(r, 0), *res = n->n_in > 3 ? run_in(r, 3) : NULL;
    struct tensor *y = run_out(r, 0);
    size_t k = f->linear.k, outputs = f->linear.n;
    int64_t rows = tensor_count(x) / (int64_t)k;
    if (res && tensor_count(res) != rows * (int64_t)outputs)
        return node_error(n, e, "the residual has another size than the result");
    const float *px = tensor_data(x), *pr = res ? tensor_data(res) : NULL;
    float *py = tensor_data(y);
    if (rows > 0)
        linear_run(&f->linear, (uint32_t)rows, px, k, f->act, pr, outputs, py, outputs);
    return ST_OK;
}

static void release(struct node *n)
{
    struct fused *f = n->state;
    if (f)
        linear_release(&f->linear);
    mem_free(f);
    n->state = NULL;
}

static int follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)out;
    if (in == 0)
        return (int)axis < s->in[0].rank - 1 ? (int)axis : -1;
    return in == 3 ? (int)axis : -1;
}

const struct op_def ops_fused_linear[] = {
    {.domain = "ebb", .name = "Linear", .since = 1, .until = OPSET_ANY, .min_in = 2, .max_in = 4, .min_out = 1, .max_out = 1, .flags = OP_PLANNED, .check = check, .shape = shape,
     .plan = plan, .run = run, .release = release, .follow = follow},
    {0},
};
