"""What a model can be asked for besides embeddings: labels of texts, of pairs and of tokens, and tokens for a mask; through the whole program,
against what transformers gives (tests/golden/families.py)."""
import csv
import json
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ebbtest as t

GOLDEN = os.path.join(t.TOP, "tests/golden/families.jsonl")
CLASSIFY = ("family=bert", "head=classify")


def goldens():
    """[(the model's arguments, its records)]"""
    groups = []
    with open(GOLDEN, encoding="utf-8") as f:
        for row in map(json.loads, f):
            if not groups or groups[-1][0] != row["model"]:
                groups.append((row["model"], []))
            groups[-1][1].append(row)
    return groups


def near(a, b, what):
    assert len(a) == len(b), what
    for x, y in zip(a, b):
        assert abs(x - y) <= 1e-5, (what, a, b)


def check_row(row, g, labels):
    what = (g["model"], g["text"])
    if g["head"] == "embed":
        near(row["embedding"], g["embedding"], what)
    elif g["head"] == "classify":
        near(list(row["scores"].values()), g["scores"], what)
        assert list(row["scores"]) == labels[:3], what
        best = max(row["scores"], key=row["scores"].get)
        assert row["label"] == best and row["score"] == row["scores"][best], what
    elif g["head"] == "token-classify":
        real = [(s, at) for s, at in zip(g["scores"], g["spans"]) if at[0] < at[1]]
        assert [[x["start"], x["end"]] for x in row["tokens"]] == [at for _, at in real], what
        near([x["score"] for x in row["tokens"]], [max(s) for s, _ in real], what)
        assert [x["label"] for x in row["tokens"]] == [labels[s.index(max(s))] for s, _ in real], what
    else:
        assert [[x["id"] for x in mask] for mask in row["masks"]] == g["tokens"], what
        assert [[x["token"] for x in mask] for mask in row["masks"]] == g["words"], what
        for mask, scores in zip(row["masks"], g["scores"]):
            near([x["score"] for x in mask], scores, what)


def test_every_family_and_head(dir):
    labels = ["L0", "B-1", "L2", "B-3", "L4"]
    records = 0
    for k, (args, rows) in enumerate(goldens()):
        if args[0] in ("family=camembert", "family=xlm-roberta"):  # roberta by other names; the unit test has them
            continue
        inp, out = os.path.join(dir, f"{k}.jsonl"), os.path.join(dir, f"{k}")
        for paired in (False, True):
            these = [g for g in rows if bool(g["other"]) == paired]
            if not these:
                continue
            with open(inp, "w", encoding="utf-8") as f:
                for i, g in enumerate(these):
                    f.write(json.dumps({"id": i, "text": g["text"], "other": g["other"]}) + "\n")
            t.ebb_run(t.tiny_kind(*args), inp, out + "-p" * paired, *(["--pair-field", "other"] if paired else []))
            got = t.rows(out + "-p" * paired)
            assert [r["id"] for r in got] == list(range(len(these)))
            for row, g in zip(got, these):
                check_row(row, g, labels)
                records += 1
    assert records > 120
    print(f"{records} records")


def test_pairs_in_csv_and_their_errors(dir):
    rows = [("a", "a tide", "of waves"), ("b", "x, \"y\"", "no way"), ("c", "", "z")]
    with open(os.path.join(dir, "in.csv"), "w", newline="", encoding="utf-8") as f:
        w = csv.writer(f)
        w.writerow(["id", "text", "other"])
        w.writerows(rows)
    with open(os.path.join(dir, "in.jsonl"), "w", encoding="utf-8") as f:
        for i, a, b in rows:
            f.write(json.dumps({"id": i, "text": a, "other": b}) + "\n")
        f.write('{"id": "d", "text": "alone"}\n{"id": "e", "text": "a", "other": 7}\n')
    model = t.tiny_kind(*CLASSIFY)
    t.ebb_run(model, os.path.join(dir, "in.csv"), os.path.join(dir, "c"), "--pair-field", "other")
    t.ebb_run(model, os.path.join(dir, "in.jsonl"), os.path.join(dir, "j"), "--pair-field", "other", want=None)
    assert t.rows(os.path.join(dir, "c")) == t.rows(os.path.join(dir, "j"))
    assert len(t.rows(os.path.join(dir, "c"))) == 3
    assert [e["message"] for e in t.errors(os.path.join(dir, "j"))] == ["no field 'other' (fields: id, text)", "field 'other' is a number, not a string"]
    rc, _, err = t.ebb_run(t.tiny_model(), os.path.join(dir, "in.jsonl"), os.path.join(dir, "x"), "--pair-field", "other", want=2)
    assert "--pair-field is for --task classify" in err and "this model is to 'embed'" in err, err
    rc, _, err = t.ebb_run(model, os.path.join(dir, "in.csv"), os.path.join(dir, "x"), "--pair-field", "otter", want=2)
    assert "'otter'" in err and "other" in err, err


def test_scoring_by_problem_type(dir):
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 20)
    out = {}
    for problem in ("single_label_classification", "multi_label_classification", "regression"):
        out[problem] = os.path.join(dir, problem)
        t.ebb_run(t.tiny_kind(*CLASSIFY, "problem=" + problem), inp, out[problem])
    import math
    for soft, sig, raw in zip(*(t.rows(o) for o in out.values())):
        x = list(raw["scores"].values())
        top = max(x)
        e = [math.exp(v - top) for v in x]
        near(list(soft["scores"].values()), [v / sum(e) for v in e], soft)
        near(list(sig["scores"].values()), [1 / (1 + math.exp(-v)) for v in x], sig)
        assert soft["label"] == sig["label"] == raw["label"]
    one = os.path.join(dir, "one")
    t.ebb_run(t.tiny_kind(*CLASSIFY, "labels=1", "problem=regression"), inp, one)
    assert all(sorted(r) == ["id", "score"] for r in t.rows(one)) and len(t.rows(one)) == 20


def test_task_is_chosen_and_counts(dir):
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 10)
    model = t.tiny_kind(*CLASSIFY)
    out = os.path.join(dir, "out")
    t.ebb_run(model, inp, out)
    with open(os.path.join(out, "manifest.json"), encoding="utf-8") as f:
        assert '"task":"classify"' in f.read().replace(" ", "")
    rc, _, err = t.ebb_run(model, inp, out, "--task", "embed", want=2)
    assert "task" in err and "classify" in err and "embed" in err, err
    t.ebb_run(model, inp, out, "--task", "classify")  # what it is anyway: the same job
    t.ebb_run(model, inp, os.path.join(dir, "e"), "--task", "embed")
    assert len(t.rows(os.path.join(dir, "e"))[0]["embedding"]) == 32
    rc, _, err = t.ebb_run(t.tiny_model(), inp, os.path.join(dir, "x"), "--task", "classify", want=2)
    assert "tensor 'pooler.dense.weight' is missing" in err, err
    rc, _, err = t.ebb_run(model, inp, os.path.join(dir, "x"), "--task", "clasify", want=2)
    assert "unknown task 'clasify' (did you mean 'classify')" in err, err
    mask = t.tiny_kind("family=bert", "head=fill-mask")
    with open(os.path.join(dir, "mask.jsonl"), "w", encoding="utf-8") as f:
        f.write('{"id": 1, "text": "a [MASK] and a [MASK]"}\n{"id": 2, "text": "none"}\n')
    t.ebb_run(mask, os.path.join(dir, "mask.jsonl"), os.path.join(dir, "m"), "--top-k", "2", want=None)
    rows = t.rows(os.path.join(dir, "m"))
    assert len(rows) == 1 and [len(m) for m in rows[0]["masks"]] == [2, 2], rows
    assert [e["message"] for e in t.errors(os.path.join(dir, "m"))] == ["there is no [MASK] in the text to be filled"]
    rc, _, err = t.ebb_run(mask, os.path.join(dir, "mask.jsonl"), os.path.join(dir, "m"), "--top-k", "3", want=2)
    assert "top_k was 2 and is 3" in err, err


def test_npy_of_scores(dir):
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 30)
    model = t.tiny_kind(*CLASSIFY)
    t.ebb_run(model, inp, os.path.join(dir, "j"))
    t.ebb_run(model, inp, os.path.join(dir, "s.npy"))
    with open(os.path.join(dir, "s.npy"), "rb") as f:
        data = f.read()
    assert b"(30, 3)" in data[:128], data[:128]
    want = b"".join(struct.pack("<3f", *r["scores"].values()) for r in t.rows(os.path.join(dir, "j")))
    assert data[128:] == want
    for head in ("token-classify", "fill-mask"):
        rc, _, err = t.ebb_run(t.tiny_kind("family=bert", "head=" + head), inp, os.path.join(dir, "x.npy"), want=2)
        assert "an .npy file holds one row of numbers for each record" in err and ".jsonl" in err, err


def test_precision_is_decided_once(dir):
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 300)
    rows = {}
    for precision in ("f32", "bf16", "int8"):
        out = os.path.join(dir, precision)
        _, _, err = t.ebb_run(t.tiny_model(), inp, out, *(["--precision", precision] if precision != "f32" else []), "--workers", "2", "--lease", "0.2s")
        rows[precision] = t.rows(out)
        with open(os.path.join(out, "manifest.json"), encoding="utf-8") as f:
            manifest = json.load(f)
        assert manifest["numerics"].startswith("ebb1-x86-" + precision), manifest["numerics"]
        assert f'"precision": "{precision}"' in json.dumps(manifest), manifest
        assert err.splitlines()[0].endswith(", " + precision), err
        cosine = [sum(x * y for x, y in zip(a["embedding"], b["embedding"])) for a, b in zip(rows["f32"], rows[precision])]
        assert min(cosine) > 0.98 and (precision == "f32" or min(cosine) < 1 - 1e-9), (precision, min(cosine))
        one = os.path.join(dir, precision + "-alone")  # the same bytes, whatever shares a micro-batch
        t.ebb_run(t.tiny_model(), inp, one, "--precision", precision, "--micro-batch", "1", "--lanes", "1")
        t.same_output(out, one)
    rc, _, err = t.ebb_run(t.tiny_model(), inp, os.path.join(dir, "f32"), "--precision", "int8", want=2)
    assert "precision was f32 and is int8" in err or "precision was 'f32' and is 'int8'" in err, err
    t.ebb_run(t.tiny_model(), inp, os.path.join(dir, "f32"), "--precision", "f32")  # what auto was: the same job


def test_inspect_and_check(dir):
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 10)
    model = t.tiny_kind("family=roberta", "head=classify")
    rc, out, err = t.run([t.EBB, "model", "inspect", "--json", model])
    info = json.loads(out)
    assert rc == 0 and info["architecture"] == "roberta" and info["task"] == "classify" and info["labels"] == 3, (out, err)
    assert info["label_names"] == "L0, B-1, L2" and info["weight_bytes"] > info["parameters"], info
    rc, out, err = t.run([t.EBB, "model", "inspect", model, "--task", "embed"])
    assert rc == 0 and "32 floats a text" in out, (out, err)
    rc, out, err = t.run([t.EBB, "check", "--json", "--model", model, "--input", inp, "--output", os.path.join(dir, "o")])
    assert rc == 0 and json.loads(out)["task"] == "classify", (out, err)
    rc, out, err = t.run([t.EBB, "model", "bench", "--json", model, "--seconds", "0.1s", "--lanes", "1"])
    lines = [json.loads(x) for x in out.splitlines()]
    line = lines[0]
    assert [x["precision"] for x in lines] == ["f32", "bf16", "int8"], out
    assert rc == 0 and line["precision"] == "f32" and line["records_per_s"] > 0 and 0 < (line["of_f32_peak"] or 0.5) < 1.5, (out, err)


t.main(globals())
