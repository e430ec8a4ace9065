#!/usr/bin/env python3
"""A cascade of two models with random fan-out, in one job, against its parts one after the other and against one process with fixed batches.

     bench/cascade.py [--records 1500] [--rounds 5]

Each record (three glosses of WordNet) falls apart into 0 to 5 pieces, drawn by its number; a classifier (random weights, BERT of 3 layers of 192) throws out about half of them; all-MiniLM-L6-v2 embeds the rest.

  job       one `ebb run` of three steps: a command, a model with `when`, a model
  parts     the same by hand: the command over the file, `ebb run` with the classifier, its rows filtered, `ebb run` with the encoder
  fused     one Python process with ONNX Runtime as such scripts are written: 32 records at a time, their pieces padded into one batch for the classifier, what is left of them into one for the encoder

All on the same cores, f32, start-up of models and programs included; rows are compared (job and parts: the same bytes; fused: cosine). Rounds alternate, figures are medians. The last line is one
JSON object."""
import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "..", "tests", "lib"))
sys.path.insert(0, os.path.join(here, "peers"))

SPLIT = """
import json, random, sys
for line in sys.stdin:
    r = json.loads(line)
    d, words = random.Random(r["id"]), r["text"].split()
    n = d.randint(0, 5)
    cuts = sorted(d.randint(0, len(words)) for _ in range(n - 1)) if n else []
    ends = list(zip([0] + cuts, cuts + [len(words)])) if n else []
    print(json.dumps([{"id": r["id"], "text": " ".join(words[a:b])} for a, b in ends]), flush=True)
"""
FUSED = """
import json, os, sys
import numpy as np, onnxruntime as ort
from tokenizers import Tokenizer
sys.path.insert(0, sys.argv[1])
source, out, threads, batch = sys.argv[2], sys.argv[3], int(sys.argv[4]), 32
models = json.loads(sys.argv[5])
import fused_parts as parts

def session(path):
    o = ort.SessionOptions()
    o.intra_op_num_threads, o.log_severity_level = threads, 3
    return ort.InferenceSession(path, o, providers=["CPUExecutionProvider"])

classify, embed = session(models["classifier_onnx"]), session(models["encoder_onnx"])
head = np.load(models["head"])
tokens = [Tokenizer.from_file(os.path.join(models[m], "tokenizer.json")) for m in ("classifier", "encoder")]
for t, most in zip(tokens, (models["classifier_tokens"], 256)):
    t.enable_truncation(most)
    t.enable_padding()

def run(s, tokenizer, texts):
    e = tokenizer.encode_batch(texts)
    ids, mask = np.array([x.ids for x in e], np.int64), np.array([x.attention_mask for x in e], np.int64)
    return s.run(None, {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)})[0], mask

with open(source) as f, open(out, "w") as o:
    lines = f.readlines()
    for at in range(0, len(lines), batch):
        pieces = [p for line in lines[at : at + batch] for p in parts.split(json.loads(line))]
        if not pieces:
            continue
        x, _ = run(classify, tokens[0], [p["text"] for p in pieces])
        logits = np.tanh(x[:, 0] @ head["pooler_w"].T + head["pooler_b"]) @ head["out_w"].T + head["out_b"]
        e = np.exp(logits - logits.max(1, keepdims=True))
        scores = e / e.sum(1, keepdims=True)
        left = [p for p, s in zip(pieces, scores) if s.max() >= models["least"]]
        if not left:
            continue
        x, mask = run(embed, tokens[1], [p["text"] for p in left])
        m = mask[:, :, None].astype(np.float32)
        v = (x * m).sum(1) / m.sum(1)
        v /= np.linalg.norm(v, axis=1, keepdims=True)
        for p, row in zip(left, v):
            o.write(json.dumps({"id": p["id"], "child": p["child"], "embedding": row.tolist()}) + "\\n")
"""
PARTS = """
import random
def split(r):
    d, words = random.Random(r["id"]), r["text"].split()
    n = d.randint(0, 5)
    cuts = sorted(d.randint(0, len(words)) for _ in range(n - 1)) if n else []
    ends = list(zip([0] + cuts, cuts + [len(words)])) if n else []
    return [{"id": r["id"], "child": k, "text": " ".join(words[a:b])} for k, (a, b) in enumerate(ends)]
"""


def write(path, text):
    with open(path, "w") as f:
        f.write(text)
    return path


def dump(path, records):
    with open(path, "w") as f:
        for r in records:
            f.write(json.dumps(r) + "\n")
    return path


class Bench:
    def __init__(self, t, dir, records):
        self.t, self.dir, self.records = t, dir, records
        self.split = write(os.path.join(dir, "split.py"), SPLIT)
        write(os.path.join(dir, "fused_parts.py"), PARTS)
        self.fused = write(os.path.join(dir, "fused.py"), FUSED)
        self.classifier = t.tiny_kind("head=classify", "hidden=192", "layers=3", "labels=4", "tokens=128", "positions=256")
        with open(t.GLOSSES) as f:
            texts = [json.loads(line)["text"] for line in f]
        self.input = dump(os.path.join(dir, "in.jsonl"), [{"id": i, "text": " ".join(texts[3 * i % len(texts) :][:3])} for i in range(records)])
        self.least = self.middle_score()

    def path(self, name):
        return os.path.join(self.dir, name)

    def by_command(self, to):
        """The pieces as records of their own."""
        answers = subprocess.run([sys.executable, self.split], stdin=open(self.input), stdout=subprocess.PIPE, check=True).stdout.splitlines()
        n = 0
        with open(to, "w") as f:
            for line in answers:
                for p in json.loads(line):
                    f.write(json.dumps({"id": n, "record": p["id"], "text": p["text"]}) + "\n")
                    n += 1
        return to

    def middle_score(self):
        """Half of the pieces score as high."""
        out = self.path("scores")
        self.t.ebb_run(self.classifier, self.by_command(self.path("pieces0.jsonl")), out)
        return sorted(r["score"] for r in self.t.rows(out))[-1 + len(self.t.rows(out)) // 2]

    def job(self, k):
        out = self.path(f"job{k}")
        began = time.monotonic()
        rc, _, e = self.t.run([self.t.EBB, "run", "--input", self.input, "--output", out, "--step", f"command={sys.executable} {self.split}", "--step",
                               f"model={self.classifier},when=score >= {self.least!r}", "--step", f"model={self.t.MINILM}"])
        assert rc == 0, e
        return time.monotonic() - began, out

    def parts(self, k):
        began = time.monotonic()
        pieces, classified, out = self.by_command(self.path(f"pieces{k}.jsonl")), self.path(f"classified{k}"), self.path(f"parts{k}")
        self.t.ebb_run(self.classifier, pieces, classified, "--keep", "text")
        left = dump(self.path(f"left{k}.jsonl"), [{"id": r["id"], "text": r["text"]} for r in self.t.rows(classified) if r["score"] >= self.least])
        self.t.ebb_run(self.t.MINILM, left, out)
        return time.monotonic() - began, out

    def make_peer(self):
        import bert_onnx
        import numpy as np

        models = {"classifier": self.classifier, "encoder": self.t.MINILM, "classifier_onnx": self.path("classifier.onnx"), "encoder_onnx": self.path("encoder.onnx"),
                  "head": self.path("head.npz"), "classifier_tokens": 128, "least": self.least}
        bert_onnx.build(self.classifier, models["classifier_onnx"])
        bert_onnx.build(self.t.MINILM, models["encoder_onnx"])
        w = {k.removeprefix("bert."): v for k, v in bert_onnx.tensors(os.path.join(self.classifier, "model.safetensors")).items()}
        np.savez(models["head"], pooler_w=w["pooler.dense.weight"], pooler_b=w["pooler.dense.bias"], out_w=w["classifier.weight"], out_b=w["classifier.bias"])
        self.models = json.dumps(models)

    def run_fused(self, k):
        out = self.path(f"fused{k}.jsonl")
        began = time.monotonic()
        subprocess.run([sys.executable, self.fused, self.dir, self.input, out, str(os.cpu_count()), self.models], check=True)
        return time.monotonic() - began, out


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--records", type=int, default=int(os.environ.get("EBB_BENCH_RECORDS", "1500")))
    p.add_argument("--rounds", type=int, default=5)
    o = p.parse_args()
    import peer_python

    try:
        peer_python.ensure()
        peer = True
    except subprocess.CalledProcessError as e:
        print(f"no ONNX Runtime here, and pip does not bring it: the fused process is not compared ({e})", flush=True)
        peer = False
    import ebbtest as t

    with tempfile.TemporaryDirectory(prefix="ebb-cascade-") as dir:
        b = Bench(t, dir, o.records)
        if peer:
            b.make_peer()
        ways = {"job": b.job, "parts": b.parts, **({"fused": b.run_fused} if peer else {})}
        took = {name: [] for name in ways}
        for k in range(o.rounds):
            for name, way in ways.items():
                seconds, out = way(k)
                took[name].append(seconds)
                if k == 0 and name == "job":
                    rows = t.rows(out)
                elif k == 0 and name == "parts":
                    assert [r["embedding"] for r in t.rows(out)] == [r["embedding"] for r in rows], "the parts give other rows than the job"
                elif k == 0:
                    fused = {(r["id"], r["child"]): r["embedding"] for r in map(json.loads, open(out))}
            print(f"round {k + 1}: " + ", ".join(f"{name} {took[name][-1]:.2f} s" for name in ways), flush=True)
        figures = {"bench": "cascade", "records": o.records, "rows": len(rows), "cores": os.cpu_count(), "rounds": o.rounds}
        for name in ways:
            figures[f"{name}_s"] = round(statistics.median(took[name]), 2)
        figures["job_vs_parts"] = round(statistics.median(x / y for x, y in zip(took["parts"], took["job"])), 2)
        figures["job_vs_fused"] = round(statistics.median(x / y for x, y in zip(took["fused"], took["job"])), 2) if peer else None
        if peer:
            import onnxruntime

            near = list(fused.values())
            assert abs(len(near) - len(rows)) <= 2, (len(near), len(rows))  # a score at the very edge may round to the other side
            if len(near) == len(rows):
                figures["least_cosine"] = round(min(cosine(a, r["embedding"]) for a, r in zip(near, rows)), 6)
            figures["onnxruntime"] = onnxruntime.__version__
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
