/* ONNX files: a model becomes a graph (workers/engine/graph) that is yet to be finished. Opsets 7 to 22 and newer ones as far as their ops are known;
   IR 3 to 10; the schema is that of Debian's libonnx-dev, newer fields are looked at where they matter.

   Bytes of a file are looked over before they are unpacked (depth, sizes), names resolved, external data read from inside the model's folder only. What
   is wrong is ST_USER naming file and node or tensor. */
#ifndef EBB_ONNX_ONNX_H
#define EBB_ONNX_ONNX_H

#include "base/status.h"
#include "workers/engine/graph/graph.h"

struct onnx_model {
    struct graph *graph;
    struct type *outputs; /* as declared, in the graph's order; kind VALUE_NONE where the file does not say */
    int64_t ir_version;
    int opset;            /* of ai.onnx; 0: none imported */
    char producer[96];    /* "pytorch 2.1" */
    uint64_t parameters;  /* elements of initializers */
    uint64_t weight_bytes;
    char **external;      /* files with data, relative to the model's folder */
    uint32_t n_external;
};

MUST_USE enum status onnx_load(const char *path, const struct kernels *k, struct onnx_model **out, struct err *e);
/* The same from memory; folder is where external data would lie, NULL: nowhere. name is for messages. */
MUST_USE enum status onnx_load_bytes(const void *data, size_t len, const char *name, const char *folder, const struct kernels *k,
                                     struct onnx_model **out, struct err *e);
void onnx_free(struct onnx_model *m);

/* A file that holds a TensorProto, SequenceProto or OptionalProto, as t says. Its tensors are constants: onnx_value_free. */
MUST_USE enum status onnx_read_value(const char *path, const struct type *t, struct value *out, struct err *e);
void onnx_value_free(struct value *v);

#endif
