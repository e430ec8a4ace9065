/* Values in files of their own, as ONNX test directories hold them. */
#include <string.h>

#include "base/mem.h"
#include "workers/engine/onnx/onnx.h"
#include "workers/engine/onnx/parts.h"

void onnx_value_free(struct value *v)
{
    for (uint32_t i = 0; i < v->count; i++)
        onnx_value_free(&v->items[i]);
    mem_free(v->items);
    if (v->kind == VALUE_TENSOR)
        tensor_release(&v->tensor);
    *v = (struct value){0};
}

static enum status from_tensor(Onnx__TensorProto *p, struct value *out, struct err *e)
{
    TRY(onnx_tensor(p, NULL, &out->tensor, e));
    out->kind = VALUE_TENSOR;
    return ST_OK;
}

static enum status from_sequence(Onnx__SequenceProto *p, struct value *out, struct err *e)
{
    if (p->n_sequence_values || (p->has_elem_type && p->elem_type > 1))
        return err_set(e, ST_USER, "it is a sequence of something else than tensors");
    out->kind = VALUE_SEQUENCE;
    out->items = mem_array(p->n_tensor_values + 1, sizeof *out->items);
    if (!out->items)
        return err_nomem(e, "a sequence");
    out->cap = (uint32_t)p->n_tensor_values;
    for (; out->count < p->n_tensor_values; out->count++)
        TRY(from_tensor(p->tensor_values[out->count], &out->items[out->count], e));
    if (out->count)
        out->element = out->items[0].tensor.dtype;
    return ST_OK;
}

static const ProtobufCMessageDescriptor *message_of(const struct type *t)
{
    return t->optional ? &onnx__optional_proto__descriptor : t->kind == VALUE_SEQUENCE ? &onnx__sequence_proto__descriptor : &onnx__tensor_proto__descriptor;
}

static enum status convert(ProtobufCMessage *m, const struct type *t, struct value *out, struct err *e)
{
    if (t->optional) {
        Onnx__OptionalProto *p = (Onnx__OptionalProto *)m;
        out->kind = VALUE_NONE;
        return p->tensor_value ? from_tensor(p->tensor_value, out, e) : p->sequence_value ? from_sequence(p->sequence_value, out, e) : ST_OK;
    }
    return t->kind == VALUE_SEQUENCE ? from_sequence((Onnx__SequenceProto *)m, out, e) : from_tensor((Onnx__TensorProto *)m, out, e);
}

enum status onnx_read_value(const char *path, const struct type *t, struct value *out, struct err *e)
{
    struct buf b = {0};
    struct value v = {0};
    const ProtobufCMessageDescriptor *d = message_of(t);
    enum status st = onnx_read_file(path, &b, e);
    if (st == ST_OK && b.len) /* an empty optional or sequence takes no bytes */
        st = onnx_scan(d, b.data, b.len, e);
    if (st == ST_OK) {
        ProtobufCMessage *m = NULL;
        st = onnx_unpack(d, b.data, b.len, &m, e);
        if (st == ST_OK)
            st = convert(m, t, &v, e);
        if (m)
            protobuf_c_message_free_unpacked(m, &onnx_allocator);
    }
    buf_release(&b);
    if (st == ST_OK) {
        if (v.kind == VALUE_SEQUENCE && !v.count)
            v.element = t->dtype;
        *out = v;
        return ST_OK;
    }
    onnx_value_free(&v);
    if (st == ST_USER)
        err_prefix(e, "'%s'", path);
    return st;
}
