/* Small ONNX files for tests: a graph is written part by part, then the file. Names are the caller's; sizes below 0 are open: -1 "n", -2 "m", and so on. */
#ifndef EBB_TESTS_ONNXWRITE_H
#define EBB_TESTS_ONNXWRITE_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct onnxwrite {
    struct buf graph;
    uint32_t seed, nodes;
};

enum { OW_F32 = 1, OW_U8 = 2, OW_I8 = 3, OW_I32 = 6, OW_I64 = 7, OW_BOOL = 9 }; /* as ONNX numbers types */

void ow_begin(struct onnxwrite *w, uint32_t seed);
void ow_input(struct onnxwrite *w, const char *name, int type, uint32_t rank, const int64_t *dims);
void ow_output(struct onnxwrite *w, const char *name, int type, uint32_t rank, const int64_t *dims);
void ow_tensor(struct onnxwrite *w, const char *name, int type, uint32_t rank, const int64_t *dims, const void *data, size_t bytes);
/* Numbers of a few bits in -scale..scale, of the seed. */
void ow_random(struct onnxwrite *w, const char *name, float scale, uint32_t rank, const int64_t *dims);
void ow_ints(struct onnxwrite *w, const char *name, uint32_t count, const int64_t *ints);
void ow_int(struct onnxwrite *w, const char *name, int64_t value); /* a scalar */

/* "a b" are inputs, "c" outputs, in one string each. attrs: "axis=1 strides=2,2" (integers; a list where there is a comma, "axes=1,"), "alpha:0.5" (a float); NULL: none. */
void ow_node(struct onnxwrite *w, const char *op, const char *in, const char *out, const char *attrs);
/* The same with bodies under these names, which are graphs that were begun and have inputs, outputs and nodes; they are released. */
void ow_control(struct onnxwrite *w, const char *op, const char *in, const char *out, const char *name1, struct onnxwrite *body1, const char *name2, struct onnxwrite *body2);
/* 0, or -1 after a line on stderr; w is released. */
int ow_write(struct onnxwrite *w, const char *path);

#endif
