"""From text to embedding through the whole program, against what sentence-transformers gives."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import json
import math

import ebbtest as t

GOLDEN = os.path.join(t.TOP, "tests/golden/minilm_embeddings.jsonl")


def test_embeddings_equal_sentence_transformers(dir):
    if not os.path.exists(t.MINILM):
        raise t.Skip("the demo's model is not there; make demo-data")
    if t.SANITIZE == "thread":
        raise t.Skip("the real model takes too long in an instrumented worker")
    with open(GOLDEN, encoding="utf-8") as f:
        golden = [json.loads(line) for line in f]
    assert len(golden) >= 50
    inp = os.path.join(dir, "in.jsonl")
    with open(inp, "w", encoding="utf-8") as f:
        for i, g in enumerate(golden):
            f.write(json.dumps({"id": i, "text": g["text"]}) + "\n")
    out = os.path.join(dir, "out.jsonl")
    t.ebb_run(t.MINILM, inp, out)
    rows = t.rows(out)
    assert len(rows) == len(golden)
    worst = 0
    for g, r in zip(golden, rows):
        a, b = g["embedding"], r["embedding"]
        diff = max(abs(x - y) for x, y in zip(a, b))
        cosine = sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))
        worst = max(worst, diff)
        assert len(a) == len(b) and diff <= 1e-5 and cosine >= 0.99999, (g["text"][:60], diff, cosine)
    print(f"largest difference {worst:.2e} over {len(golden)} texts")


t.main(globals())
