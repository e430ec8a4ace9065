/* The passes between folding and plans: they find what exporters took apart and put it together again. Each pass is a function that looks at one
   node and rewrites around it; graph_fuse runs them until nothing changes.

   What is made: LayerNormalization, Gelu, Swish and HardSwish of the standard domain; FusedConv and DynamicQuantizeMatMul of com.microsoft; and, in domain "ebb", Linear, Attention,
   SeqPool, SeqCumSum, Positions and Range (ops/fused_linear.c, ops/fused_attention.c, ops/sequence_pool.c). A fused op computes what its parts would, in f32, with fewer roundings
   in between; that fusing happens depends on the model alone, so a model's results stay the same on every machine. */
#ifndef EBB_GRAPH_FUSE_H
#define EBB_GRAPH_FUSE_H

#include "workers/engine/graph/graph.h"
#include "workers/engine/graph/uniform.h"

/* The graph has its types; nodes made here are checked and typed by the caller afterwards. given: inputs whose number is known. */
MUST_USE enum status graph_fuse(struct graph *g, const struct given *given, uint32_t n_given, struct err *e);

/* Passes: n is the node at hand. *changed is raised when something was rewritten. ST_NOMEM is the only failure. */
MUST_USE enum status fuse_norm(struct graph *g, struct node *n, uint32_t *changed, struct err *e);      /* at Sqrt */
MUST_USE enum status fuse_gelu(struct graph *g, struct node *n, uint32_t *changed, struct err *e);      /* at Erf, Tanh */
MUST_USE enum status fuse_silu(struct graph *g, struct node *n, uint32_t *changed, struct err *e);      /* at Sigmoid, Clip, HardSigmoid */
MUST_USE enum status fuse_conv(struct graph *g, struct node *n, uint32_t *changed, struct err *e);      /* at Conv, FusedConv */
MUST_USE enum status fuse_dynamic(struct graph *g, struct node *n, uint32_t *changed, struct err *e);   /* at MatMulInteger */
MUST_USE enum status fuse_table(struct graph *g, struct node *n, uint32_t *changed, struct err *e);     /* at DequantizeLinear */
MUST_USE enum status fuse_linear(struct graph *g, struct node *n, uint32_t *changed, struct err *e);    /* at MatMul, Gemm */
MUST_USE enum status fuse_epilogue(struct graph *g, struct node *n, uint32_t *changed, struct err *e);  /* at Linear */
MUST_USE enum status fuse_attention(struct graph *g, struct node *n, uint32_t *changed, struct err *e); /* at Softmax */
MUST_USE enum status fuse_qkv(struct graph *g, struct node *n, uint32_t *changed, struct err *e);       /* at Attention */
MUST_USE enum status fuse_pool(struct graph *g, struct node *n, const struct uniform *u, uint32_t *changed, struct err *e);
MUST_USE enum status fuse_positions(struct graph *g, struct node *n, const struct uniform *u, uint32_t *changed, struct err *e); /* at Gather */

MUST_USE enum status fuse_range(struct graph *g, struct node *n, uint32_t *changed, struct err *e); /* at Range */

#endif
