"""Writes a BERT sentence encoder as a plain ONNX graph, node for node what torch.onnx.export makes of it (opset 17, attention written out), so that
ONNX Runtime's own fusions find what they look for: input_ids, attention_mask, token_type_ids [batch, sequence] -> last_hidden_state."""
import json
import os
import struct

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def tensors(path):
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        head = json.loads(f.read(n))
        data = f.read()
    kinds = {"F32": np.float32, "F16": np.float16, "I64": np.int64}
    return {
        k: np.frombuffer(data[v["data_offsets"][0] : v["data_offsets"][1]], kinds[v["dtype"]]).reshape(v["shape"])
        for k, v in head.items()
        if k != "__metadata__"
    }


def build(model_dir, out):
    config = json.load(open(os.path.join(model_dir, "config.json")))
    w = tensors(os.path.join(model_dir, "model.safetensors"))
    w = {k.removeprefix("bert."): v.astype(np.float32) for k, v in w.items() if v.dtype != np.int64}
    h, heads = config["hidden_size"], config["num_attention_heads"]
    d, eps = h // heads, config["layer_norm_eps"]
    nodes, inits, seen = [], [], set()

    def const(name, a):
        if name not in seen:
            seen.add(name)
            inits.append(numpy_helper.from_array(np.asarray(a), name))
        return name

    def op(kind, ins, out=None, **attrs):
        out = out or f"{kind}_{len(nodes)}"
        nodes.append(helper.make_node(kind, ins, [out], name=f"node_{len(nodes)}", **attrs))
        return out

    def i64(*v):
        return const("i64_" + "_".join(map(str, v)).replace("-", "m"), np.array(v, np.int64))

    def f32(name, v):
        return const(name, np.array(v, np.float32))

    def linear(x, name):
        m = op("MatMul", [x, const(name + ".T", np.ascontiguousarray(w[name + ".weight"].T))])
        return op("Add", [const(name + ".bias", w[name + ".bias"]), m])

    def norm(x, name):
        return op("LayerNormalization", [x, const(name + ".weight", w[name + ".weight"]), const(name + ".bias", w[name + ".bias"])], axis=-1, epsilon=eps)

    shape = op("Shape", ["input_ids"])
    batch = op("Gather", [shape, const("zero", np.int64(0))], axis=0)
    length = op("Gather", [shape, const("one", np.int64(1))], axis=0)
    batch1, length1 = op("Unsqueeze", [batch, i64(0)]), op("Unsqueeze", [length, i64(0)])
    positions = op("Slice", [const("position_ids", np.arange(config["max_position_embeddings"], dtype=np.int64)[None]), i64(0), length1, i64(1), i64(1)])
    e = "embeddings."
    x = op("Gather", [const("words", w[e + "word_embeddings.weight"]), "input_ids"])
    x = op("Add", [x, op("Gather", [const("types", w[e + "token_type_embeddings.weight"]), "token_type_ids"])])
    x = op("Add", [x, op("Gather", [const("positions", w[e + "position_embeddings.weight"]), positions])])
    x = norm(x, e + "LayerNorm")
    mask = op("Cast", [op("Unsqueeze", [op("Unsqueeze", ["attention_mask", i64(1)]), i64(2)])], to=TensorProto.FLOAT)
    mask = op("Mul", [op("Sub", [f32("f_one", 1), mask]), f32("f_lowest", np.finfo(np.float32).min)])
    split = op("Concat", [batch1, length1, i64(heads), i64(d)], axis=0)
    merge = op("Concat", [batch1, length1, i64(h)], axis=0)
    for i in range(config["num_hidden_layers"]):
        p = f"encoder.layer.{i}."
        q, k, v = (op("Reshape", [linear(x, p + "attention.self." + n), split]) for n in ("query", "key", "value"))
        scores = op("MatMul", [op("Transpose", [q], perm=[0, 2, 1, 3]), op("Transpose", [k], perm=[0, 2, 3, 1])])
        scores = op("Add", [op("Div", [scores, f32("root", d**0.5)]), mask])
        ctx = op("MatMul", [op("Softmax", [scores], axis=-1), op("Transpose", [v], perm=[0, 2, 1, 3])])
        ctx = op("Reshape", [op("Transpose", [ctx], perm=[0, 2, 1, 3]), merge])
        x = norm(op("Add", [linear(ctx, p + "attention.output.dense"), x]), p + "attention.output.LayerNorm")
        u = linear(x, p + "intermediate.dense")
        g = op("Add", [op("Erf", [op("Div", [u, f32("root2", 2**0.5)])]), f32("f_one", 1)])
        g = op("Mul", [op("Mul", [u, g]), f32("half", 0.5)])
        y = op("Add", [linear(g, p + "output.dense"), x])
        x = norm(y, p + "output.LayerNorm")
    nodes[-1].output[0] = "last_hidden_state"
    ids = [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "sequence"]) for n in ("input_ids", "attention_mask", "token_type_ids")]
    res = [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "sequence", h])]
    m = helper.make_model(helper.make_graph(nodes, "bert", ids, res, inits), opset_imports=[helper.make_opsetid("", 17)])
    m.ir_version = 8
    onnx.checker.check_model(m)
    onnx.save(m, out)
