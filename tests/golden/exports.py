"""Makes exports/*.onnx: tiny encoders with random weights, as torch.onnx.export writes them, by family, attention and exporter, each with the texts of
exports/texts.json and what transformers computes for them. Needs torch, transformers, onnx, onnxscript. The files are committed; this is how they came."""
import json
import os
import warnings

import onnx
import torch
import transformers as tf

warnings.filterwarnings("ignore")
here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "exports")
common = dict(vocab_size=40, hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=12, max_position_embeddings=20, pad_token_id=1)
configs = {
    "bert": lambda: tf.BertConfig(**common),
    "roberta": lambda: tf.RobertaConfig(**common, type_vocab_size=1),
    "distilbert": lambda: tf.DistilBertConfig(vocab_size=40, dim=8, n_heads=2, n_layers=1, hidden_dim=12, max_position_embeddings=20),
    "mpnet": lambda: tf.MPNetConfig(**common),
    "electra": lambda: tf.ElectraConfig(**common, embedding_size=4),
}


class Embedder(torch.nn.Module):
    def __init__(self, m, types):
        super().__init__()
        self.m, self.types = m, types

    def forward(self, input_ids, attention_mask, token_type_ids=None):
        kw = {"token_type_ids": token_type_ids} if self.types else {}
        h = self.m(input_ids=input_ids, attention_mask=attention_mask, **kw).last_hidden_state
        k = attention_mask.unsqueeze(-1).expand(h.size()).float()
        p = torch.sum(h * k, 1) / torch.clamp(k.sum(1), min=1e-9)
        return h, torch.nn.functional.normalize(p, p=2, dim=1)


def strip(path):
    """Without what the exporter notes of its own source lines."""
    m = onnx.load(path)
    for part in [m, m.graph, *m.graph.node, *m.graph.value_info, *m.graph.initializer, *m.graph.input, *m.graph.output, *m.functions]:
        part.ClearField("doc_string")
        part.ClearField("metadata_props")
    del m.graph.value_info[:]
    onnx.save(m, path)


torch.manual_seed(1)
texts = [torch.randint(4, 40, (n,)).tolist() for n in (5, 9, 1, 9, 12)]
golden = {"texts": texts}
for family, kind, opset in [
    ("bert", "eager", 11), ("bert", "eager", 14), ("bert", "sdpa", 17), ("bert", "sdpa", 0), ("bert", "eager", 0), ("distilbert", "sdpa", 14),
    ("roberta", "sdpa", 14), ("mpnet", "eager", 14), ("electra", "sdpa", 17),
]:
    torch.manual_seed(7)
    config = configs[family]()
    config._attn_implementation = kind
    m = tf.AutoModel.from_config(config, attn_implementation=kind)
    for p in m.parameters():
        torch.nn.init.normal_(p, std=0.4)
    types = family in ("bert", "electra")
    e = Embedder(m, types).eval()
    names = ["input_ids", "attention_mask"] + (["token_type_ids"] if types else [])
    args = tuple(torch.ones(2, 6, dtype=torch.int64) * (i != 2) * (5 if i == 0 else 1) for i in range(len(names)))
    name = f"{family}-{kind}-{opset or 'dynamo'}"
    path = os.path.join(here, name + ".onnx")
    try:
        if opset:
            axes = {n: {0: "batch", 1: "sequence"} for n in names + ["token_embeddings"]} | {"sentence_embedding": {0: "batch"}}
            torch.onnx.export(e, args, path, input_names=names, output_names=["token_embeddings", "sentence_embedding"], dynamic_axes=axes, opset_version=opset, dynamo=False)
        else:
            b, l = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("sequence", min=2, max=20)
            shapes = {n: {0: b, 1: l} for n in names}
            torch.onnx.export(e, args, path, input_names=names, output_names=["token_embeddings", "sentence_embedding"], dynamic_shapes=shapes, dynamo=True, opset_version=18, external_data=False, optimize=True, verbose=False)
    except Exception as err:
        print("left out:", name, repr(err)[:200])
        continue
    strip(path)
    with torch.no_grad():
        out = []
        for t in texts:
            ids = torch.tensor([t])
            out.append(e(*([ids, torch.ones_like(ids)] + ([torch.zeros_like(ids)] if types else [])))[1][0].tolist())
    golden[name] = [[float(f"{x:.7g}") for x in row] for row in out]
    print(name, os.path.getsize(path))
json.dump(golden, open(os.path.join(here, "golden.json"), "w"))

# quantised as ONNX Runtime does it: what comes out is near what the plain one gives
from onnxruntime.quantization import QuantType, quantize_dynamic  # noqa: E402

quantize_dynamic(os.path.join(here, "bert-sdpa-17.onnx"), os.path.join(here, "bert-dynamic-17.onnx"), per_channel=True, weight_type=QuantType.QInt8)
