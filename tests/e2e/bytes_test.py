"""The same bytes, always: a record's result does not depend on workers, leases, micro-batches or lanes."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ebbtest as t


def job(dir, name, *more, model=None, inp=None, out=None):
    out = out or os.path.join(dir, name)
    t.ebb_run(model or t.tiny_model(), inp or os.path.join(dir, "in.jsonl"), out, *more)
    return out


def test_workers_leases_and_micro_batches(dir):
    t.write_jsonl(os.path.join(dir, "in.jsonl"), 3000, words=40)
    base = job(dir, "base", "--workers", "1", "--lanes", "1")
    assert len(t.rows(base)) == 3000
    assert [r["id"] for r in t.rows(base)] == [f"r{i}" for i in range(3000)]
    for name, more in {
        "three": ["--workers", "3", "--lanes", "2"],
        "short": ["--workers", "3", "--lease", "0.2s", "--commit", "0.1s"],
        "long": ["--workers", "2", "--lease", "30s"],
        "one": ["--micro-batch", "1"],
        "sixty-four": ["--micro-batch", "64", "--lanes", "3"],
        "tokens": ["--micro-batch-tokens", "4096", "--micro-batch", "512"],
    }.items():
        t.same_output(base, job(dir, name, *more))


def test_real_model(dir):
    """The published model over real sentences, one lane against three workers."""
    if not os.path.exists(t.MINILM):
        raise t.Skip("the demo's model is not there; make demo-data")
    if t.SANITIZE == "thread":
        raise t.Skip("the real model takes half an hour in an instrumented worker; the tiny one goes the same way")
    with open(t.GLOSSES, encoding="utf-8") as f, open(os.path.join(dir, "in.jsonl"), "w", encoding="utf-8") as g:
        for i, line in enumerate(f):
            if i % 150 == 0:
                g.write(line)
    a = job(dir, "a", "--lanes", "1", model=t.MINILM)
    b = job(dir, "b", "--workers", "3", "--lanes", "1", "--lease", "0.5s", "--commit", "0.2s", "--micro-batch", "3", model=t.MINILM)
    t.same_output(a, b)


def test_scores_of_pairs(dir):
    """Cross-encoders: both texts, their token types, and a head on top."""
    import json
    with open(os.path.join(dir, "pairs.jsonl"), "w", encoding="utf-8") as f:
        for i in range(2000):
            f.write(json.dumps({"id": i, "text": "the tide " * (i % 9 + 1), "other": f"of {i} waves and " * (i % 7)}) + "\n")
    with open(os.path.join(dir, "one.jsonl"), "w", encoding="utf-8") as f:
        f.write(json.dumps({"id": 1234, "text": "the tide " * (1234 % 9 + 1), "other": "of 1234 waves and " * (1234 % 7)}) + "\n")
    for family in ("bert", "deberta-v2"):
        model = t.tiny_kind("family=" + family, "head=classify")
        pairs = dict(model=model, inp=os.path.join(dir, "pairs.jsonl"))
        a = job(dir, family + "-a", "--pair-field", "other", "--workers", "1", "--lanes", "1", **pairs)
        b = job(dir, family + "-b", "--pair-field", "other", "--workers", "3", "--lanes", "2", "--lease", "0.2s", "--commit", "0.1s", "--micro-batch", "7", **pairs)
        t.same_output(a, b)
        alone = job(dir, family + "-alone", "--pair-field", "other", model=model, inp=os.path.join(dir, "one.jsonl"))
        assert t.rows(alone) == [t.rows(a)[1234]]


def test_npy_file(dir):
    t.write_jsonl(os.path.join(dir, "in.jsonl"), 1000)
    a = job(dir, "a", "--lanes", "1", out=os.path.join(dir, "a.npy"))
    b = job(dir, "b", "--workers", "3", "--lease", "0.2s", "--commit", "0.1s", out=os.path.join(dir, "b.npy"))
    t.same_output(a, b)
    data = open(a, "rb").read()
    assert data[:6] == b"\x93NUMPY" and b"(1000, 32)" in data[:128], data[:128]
    assert len(data) == 128 + 1000 * 32 * 4, len(data)


def test_part_rotation(dir):
    """Names and bytes of a directory's parts do not depend on how the job was cut."""
    t.write_jsonl(os.path.join(dir, "in.jsonl"), 2000)
    a = job(dir, "a", "--part-bytes", "100KB", "--workers", "1")
    b = job(dir, "b", "--part-bytes", "100KB", "--workers", "3", "--lease", "0.2s", "--commit", "0.05s")
    assert len([n for n in t.output_bytes(a) if n.startswith("part-")]) > 3
    t.same_output(a, b)


t.main(globals())
