/* What the files of onnx/ share. */
#ifndef EBB_ONNX_PARTS_H
#define EBB_ONNX_PARTS_H

#include "base/buf.h"
#include "base/status.h"
#include "onnx/data.pb-c.h"
#include "onnx/onnx.pb-c.h"
#include "workers/engine/graph/graph.h"

/* protobuf-c takes its memory here. */
extern ProtobufCAllocator onnx_allocator;

/* The whole file. */
MUST_USE enum status onnx_read_file(const char *path, struct buf *out, struct err *e);
/* Looks over the bytes of a message before they are unpacked: protobuf-c recurses without a limit, and makes a struct of every two bytes that claim
   to be one. ST_USER: no such message, or one that goes too deep or would take too much memory. */
MUST_USE enum status onnx_scan(const ProtobufCMessageDescriptor *type, const void *data, size_t len, struct err *e);

/* onnx_allocator frees it. protobuf-c does not tell a lack of memory from damage: this does. */
MUST_USE enum status onnx_unpack(const ProtobufCMessageDescriptor *type, const void *data, size_t len, ProtobufCMessage **out, struct err *e);

/* Where external data lies. */
struct external {
    const char *folder; /* NULL: nowhere */
    char **names;       /* files read so far, each once */
    uint32_t count;
    size_t cap;
};
/* t's large fields are freed as they are taken. */
MUST_USE enum status onnx_tensor(Onnx__TensorProto *t, struct external *x, struct tensor *out, struct err *e);

#endif
