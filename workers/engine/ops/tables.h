/* Every table of ops, one a line, in whatever order: `X(ops_NAME)`. Each is `const struct op_def ops_NAME[]` of a file in this folder and ends with
   a row of zeros. */
#ifndef EBB_OPS_TABLES_H
#define EBB_OPS_TABLES_H

#define OP_TABLES(X) \
    X(ops_ml_prepare) \
    X(ops_ml_linear) \
    X(ops_trees) \
    X(ops_fused_ms) \
    X(ops_attention_gqa) \
    X(ops_attention_ms) \
    X(ops_rotary) \
    X(ops_attention_std) \
    X(ops_signal) \
    X(ops_col2im) \
    X(ops_roi) \
    X(ops_grid_sample) \
    X(ops_rnn) \
    X(ops_resize) \
    X(ops_quantize) \
    X(ops_qmatmul) \
    X(ops_qconv) \
    X(ops_qlinear) \
    X(ops_conv) \
    X(ops_conv_transpose) \
    X(ops_pooling) \
    X(ops_global_pool) \
    X(ops_max_unpool) \
    X(ops_channel_norm) \
    X(ops_layer_norm) \
    X(ops_lrn) \
    X(ops_unary) \
    X(ops_arith) \
    X(ops_compare) \
    X(ops_variadic) \
    X(ops_where) \
    X(ops_cast) \
    X(ops_clip) \
    X(ops_reshape) \
    X(ops_transpose) \
    X(ops_concat) \
    X(ops_slice) \
    X(ops_gather) \
    X(ops_scatter) \
    X(ops_expand) \
    X(ops_pad) \
    X(ops_shapes) \
    X(ops_nonzero) \
    X(ops_layout) \
    X(ops_reduce) \
    X(ops_softmax) \
    X(ops_topk) \
    X(ops_matmul) \
    X(ops_gemm) \
    X(ops_einsum) \
    X(ops_det) \
    X(ops_nms) \
    X(ops_crop) \
    X(ops_strings) \
    X(ops_identity)  \
    X(ops_constant) \
    X(ops_control) \
    X(ops_scan) \
    X(ops_sequence) \
    X(ops_optional) \
    X(ops_fused_linear) \
    X(ops_fused_attention) \
    X(ops_sequence_pool)

#endif
