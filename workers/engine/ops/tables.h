/* Every table of ops, one a line, in whatever order: `X(ops_NAME)`. Each is `const struct op_def ops_NAME[]` of a file in this folder and ends with
   a row of zeros. */
#ifndef EBB_OPS_TABLES_H
#define EBB_OPS_TABLES_H

#define OP_TABLES(X) \
    X(ops_identity)  \
    X(ops_constant)

#endif
