/* ebb.Attention: softmax(q k^T * scale + bias) v, head by head, each sequence by itself. Made by graph/fuse_attention.c only.
   Inputs: q, k, v [batch, length, heads * dim], or one [batch, length, 3 * heads * dim] that holds them side by side; behind them the bias, if there is one:
   [heads, length, length], maybe with a 1 in front, the same for all texts. Of packed texts it has the longest one's length, and a shorter one takes the corner where both
   begin (pack.c has proved that this is the bias that it has alone). Attributes: heads, scale. */
#include "workers/engine/cpu/kernels.h"
#include "workers/engine/ops/args.h"

static int side_by_side(uint32_t n_in)
{
    return n_in <= 2;
}

static int has_bias(uint32_t n_in)
{
    return n_in == 2 || n_in == 4;
}

static enum status shape(struct shaping *s, struct err *e)
{
    const struct type *x = &s->in[0];
    int64_t heads = node_int(s->node, "heads", 0);
    if (x->dtype != DT_F32 || x->rank != 3 || heads < 1 || !dim_known(x->dims[2]))
        return node_error(s->node, e, "wrong types");
    int one = side_by_side(s->n_in);
    int64_t width = one ? x->dims[2] / 3 : x->dims[2];
    for (uint32_t i = 1; !one && i < 3; i++)
        for (int a = 0; a < 3; a++)
            if (s->in[i].rank != 3 || (dim_known(s->in[i].dims[a]) && dim_known(x->dims[a]) && s->in[i].dims[a] != x->dims[a]))
                return node_error(s->node, e, "queries, keys and values have different sizes");
    if (width % heads || (one && width * 3 != x->dims[2]))
        return node_error(s->node, e, "%lld numbers do not make %lld heads", (long long)width, (long long)heads);
    const struct type *b = &s->in[s->n_in - 1];
    if (has_bias(s->n_in) && (b->dtype != DT_F32 || b->rank < 3 || b->rank > 4 || b->dims[b->rank - 3] != heads || (b->rank == 4 && b->dims[0] != 1)))
        return node_error(s->node, e, "what is added to its scores does not have the sizes [%lld, length, length]", (long long)heads);
    type_tensor(&s->out[0], DT_F32, 3, x->dims);
    s->out[0].dims[2] = width;
    return ST_OK;
}

static enum status run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    struct tensor *y = run_out(r, 0);
    const struct seqs *s = run_seqs(r);
    size_t ld = (size_t)x->dims[2], width = (size_t)y->dims[2], heads = (size_t)node_int(n, "heads", 1), each = width / heads;
    const float *q = tensor_data(x), *k = !side_by_side(n->n_in) ? tensor_data(run_in(r, 1)) : q + width,
                *v = !side_by_side(n->n_in) ? tensor_data(run_in(r, 2)) : q + 2 * width;
    float *out = tensor_data(y);
    uint32_t count = s ? s->count : (uint32_t)x->dims[0], longest = s ? 0 : (uint32_t)x->dims[1];
    for (uint32_t i = 0; s && i < count; i++)
        longest = s->lengths[i] > longest ? s->lengths[i] : longest;
    if (s && (int64_t)s->tokens != x->dims[0] * x->dims[1])
        return node_error(n, e, "%lld rows for %u packed tokens", (long long)(x->dims[0] * x->dims[1]), s->tokens);
    const struct tensor *b = has_bias(n->n_in) ? run_in(r, n->n_in - 1) : NULL;
    if (b && (b->dims[b->rank - 2] != longest || b->dims[b->rank - 1] != longest))
        return node_error(n, e, "what is added to the scores is for texts of %lld tokens; there are %u", (long long)b->dims[b->rank - 1], longest);
    if (!longest)
        return ST_OK;
    void *scratch;
    TRY(run_scratch(r, attention_scratch(n->kernels, longest, (uint32_t)each) * sizeof(float), &scratch, e));
    size_t row = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t len = s ? s->lengths[i] : longest;
        for (size_t h = 0; h < heads; h++) {
            struct attention_args a = {
                .len = len,
                .dim = (uint32_t)each,
                .q = q + row * ld + h * each,
                .k = k + row * ld + h * each,
                .v = v + row * ld + h * each,
                .ld = ld,
                .scale = node_float(n, "scale", 1),
                .bias = b ? (const float *)tensor_data(b) + h * longest * longest : NULL,
                .ldbias = longest,
                .precision = n->precision == PREC_BF16 ? PREC_BF16 : PREC_F32,
                .out = out + row * width + h * each,
                .ldo = width,
                .scratch = scratch,
            };
            n->kernels->attention(&a);
        }
        row += len;
    }
    return ST_OK;
}

/* Texts stay apart; tokens do not. The bias is every text's. */
static int follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)out;
    return axis == 0 && !(has_bias(s->n_in) && in == s->n_in - 1) ? 0 : -1;
}

const struct op_def ops_fused_attention[] = {
    {.domain = "ebb", .name = "Attention", .since = 1, .until = OPSET_ANY, .min_in = 1, .max_in = 4, .min_out = 1, .max_out = 1, .shape = shape, .run = run,
     .follow = follow},
    {0},
};
