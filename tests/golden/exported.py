#!/usr/bin/env python3
"""Makes tests/golden/exported: tiny random models as PyTorch's two exporters write them, each a test directory with inputs and what ONNX Runtime makes of
them. Encoders are those of exports.py. Needs torch, transformers, onnx and onnxruntime; `make check` needs only the files.

    tests/golden/exported.py [NAME...]"""
import os
import sys
import warnings

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import numpy_helper
from transformers import GPT2Config, GPT2Model, ResNetConfig, ResNetForImageClassification, T5Config, T5EncoderModel, ViTConfig, ViTModel

warnings.filterwarnings("ignore")
OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "exported")


def save(name, feeds):
    path = f"{OUT}/{name}/model.onnx"
    m = onnx.load(path)
    for n in m.graph.node:  # where it was made is nobody's business
        n.ClearField("doc_string")
        del n.metadata_props[:]
    for v in (*m.graph.value_info, *m.graph.input, *m.graph.output, *m.graph.initializer):
        del v.metadata_props[:]
        v.ClearField("doc_string")
    del m.graph.metadata_props[:], m.metadata_props[:], m.graph.value_info[:]
    onnx.save(m, path)
    session = ort.InferenceSession(path)
    for k, feed in enumerate(feeds):
        d = f"{OUT}/{name}/test_data_set_{k}"
        os.makedirs(d, exist_ok=True)
        for i, x in enumerate(session.get_inputs()):
            with open(f"{d}/input_{i}.pb", "wb") as f:
                f.write(numpy_helper.from_array(feed[x.name], x.name).SerializeToString())
        for i, y in enumerate(session.run(None, {x.name: feed[x.name] for x in session.get_inputs()})):
            with open(f"{d}/output_{i}.pb", "wb") as f:
                f.write(numpy_helper.from_array(np.ascontiguousarray(y), str(i)).SerializeToString())
    print(name, os.path.getsize(path))


def export(name, module, example, outputs, axes, feeds, dynamo):
    os.makedirs(f"{OUT}/{name}", exist_ok=True)
    path, names = f"{OUT}/{name}/model.onnx", list(example)
    with torch.no_grad():
        if dynamo:
            dims = {w: torch.export.Dim(w, min=1 if w == "batch" else 2, max=30) for a in axes.values() for w in a.values()}
            torch.onnx.export(module.eval(), (), path, kwargs=example, input_names=names, output_names=outputs, dynamo=True, opset_version=18,
                              external_data=False, dynamic_shapes={n: {i: dims[w] for i, w in axes[n].items()} for n in names})
        else:
            torch.onnx.export(module.eval(), tuple(example.values()), path, input_names=names, output_names=outputs, dynamic_axes=axes, dynamo=False,
                              opset_version=17)
    save(name, feeds)


class Hidden(torch.nn.Module):
    def __init__(self, m):
        super().__init__()
        self.m = m

    def forward(self, input_ids, attention_mask):
        return self.m(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


class Pixels(torch.nn.Module):
    def __init__(self, m, field):
        super().__init__()
        self.m, self.field = m, field

    def forward(self, pixel_values):
        return getattr(self.m(pixel_values=pixel_values), self.field)


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(4, 6, 2, bidirectional=True, batch_first=True)
        self.gru = torch.nn.GRU(12, 5, batch_first=True)

    def forward(self, x):
        y, _ = self.lstm(x)
        return self.gru(y)


@torch.jit.script
def looped(x, n: torch.Tensor):
    outs = []
    for i in range(int(n)):
        if bool(x.sum() > 10):
            x = x * 0.5
        else:
            x = x + 1
        outs.append(x)
    return torch.stack(outs), x


class Looped(torch.nn.Module):
    def forward(self, x, n):
        return looped(x, n)


def text(name, m, dynamo=False):
    def feed(batch, length):
        r = np.random.RandomState(batch * 100 + length)
        mask = np.ones((batch, length), np.int64)
        if batch > 1:
            mask[1, length // 2:] = 0
        return {"input_ids": r.randint(2, 50, (batch, length)).astype(np.int64), "attention_mask": mask}
    feeds = [feed(2, 6), feed(1, 3), feed(3, 9)]
    axes = {n: {0: "batch", 1: "length"} for n in ("input_ids", "attention_mask", "last_hidden_state")}
    export(name, Hidden(m), {k: torch.from_numpy(v) for k, v in feeds[0].items()}, ["last_hidden_state"], axes, feeds, dynamo)


def image(name, m, field, dynamo=False):
    feeds = [{"pixel_values": np.random.RandomState(b).randn(b, 3, 32, 32).astype(np.float32)} for b in (2, 1)]
    axes = {"pixel_values": {0: "batch"}, "y": {0: "batch"}}
    export(name, Pixels(m, field), {"pixel_values": torch.from_numpy(feeds[0]["pixel_values"])}, ["y"], axes, feeds, dynamo)


VIT = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=32, patch_size=16)
JOBS = {
    "t5_encoder": lambda n: text(n, T5EncoderModel(T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2))),
    "gpt2": lambda n: text(n, GPT2Model(GPT2Config(vocab_size=50, n_positions=40, n_embd=16, n_layer=2, n_head=2))),
    "vit": lambda n: image(n, ViTModel(ViTConfig(**VIT)), "last_hidden_state"),
    "vit_dynamo": lambda n: image(n, ViTModel(ViTConfig(**VIT)), "last_hidden_state", True),
    "resnet": lambda n: image(n, ResNetForImageClassification(ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[2, 2])), "logits"),
    "recurrent": lambda n: export(n, Recurrent(), {"x": torch.randn(2, 5, 4)}, ["y", "h"], {"x": {0: "batch", 1: "length"}, "y": {0: "batch", 1: "length"},
                                  "h": {1: "batch"}}, [{"x": np.random.RandomState(b).randn(b, s, 4).astype(np.float32)} for b, s in ((2, 5), (1, 3))], False),
    "looped": lambda n: export(n, torch.jit.script(Looped()), {"x": torch.randn(2, 3), "n": torch.tensor(4)}, ["ys", "y"], {"x": {0: "batch"}},
                               [{"x": np.random.RandomState(k).randn(2, 3).astype(np.float32), "n": np.array(k, np.int64)} for k in (4, 7)], False),
}
for job in sys.argv[1:] or JOBS:
    torch.manual_seed(0)
    JOBS[job](job)
