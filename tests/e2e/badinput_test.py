"""Bad input: each kind gives a clear error with its place, the rest goes on, the exit code says so."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import gzip
import json
import shutil
import struct

import ebbtest as t


def lines(dir, name, *texts):
    path = os.path.join(dir, name)
    with open(path, "wb") as f:
        f.write(b"".join(x if isinstance(x, bytes) else x.encode() for x in texts))
    return path


def good(i):
    return json.dumps({"id": f"g{i}", "text": f"a good record {i}"}) + "\n"


def expect(dir, inp, want_errors, good_count, *more, model=None):
    """Runs; checks exit code 3, the rows, and (line, code, words in the message) of each error in order."""
    out = os.path.join(dir, "out")
    t.ebb_run(model or t.tiny_model(), inp, out, *more, want=3 if want_errors else 0)
    assert len(t.rows(out)) == good_count, (len(t.rows(out)), good_count)
    errors = t.errors(out)
    assert len(errors) == len(want_errors), errors
    for got, (line, code, words) in zip(errors, want_errors):
        assert got["code"] == code and (line is None or got["line"] == line) and words in got["message"], (got, line, code, words)
        assert got["source"].endswith(os.path.basename(inp if isinstance(inp, str) else inp[0])) or not isinstance(inp, str), got
    return out


def refused(dir, args, *words, want=2):
    rc, o, e = t.run(args)
    assert rc == want, (rc, o, e)
    for w in words:
        assert w in e, (w, e)
    assert not os.path.exists(os.path.join(dir, "out", "_SUCCESS"))
    return e


def test_not_json(dir):
    expect(dir, lines(dir, "in.jsonl", good(1), '{"id": "x", "text": \n', good(2), "not json at all\n", good(3)),
           [(2, "invalid_json", ""), (4, "invalid_json", "")], 3)


def test_not_an_object(dir):
    expect(dir, lines(dir, "in.jsonl", good(1), "[1,2]\n", '"text"\n', good(2)), [(2, "not_object", ""), (3, "not_object", "")], 2)


def test_invalid_utf8(dir):
    expect(dir, lines(dir, "in.jsonl", good(1), b'{"text": "caf\xe9"}\n', good(2)), [(2, "invalid_utf8", "")], 2)


def test_missing_field_and_wrong_type(dir):
    expect(dir, lines(dir, "in.jsonl", good(1), '{"id": 7, "title": "x"}\n', '{"id": 8, "text": 5}\n', '{"text": null}\n', good(2)),
           [(2, "missing_field", "text"), (3, "wrong_type", "text"), (4, "wrong_type", "text")], 2, "--field", "text")
    assert t.errors(os.path.join(dir, "out"))[0]["id"] == 7


def test_empty_file(dir):
    out = expect(dir, lines(dir, "in.jsonl", ""), [], 0)
    assert os.path.exists(os.path.join(out, "_SUCCESS"))


def test_empty_file_among_others(dir):
    a, b, c = lines(dir, "a.jsonl", good(1)), lines(dir, "b.jsonl", ""), lines(dir, "c.jsonl", good(2))
    out = os.path.join(dir, "out")
    t.ebb_run(t.tiny_model(), [a, b, c], out)
    assert [r["id"] for r in t.rows(out)] == ["g1", "g2"]


def test_long_line(dir):
    """A line of 200 MB, in one with others."""
    path = os.path.join(dir, "in.jsonl")
    with open(path, "wb") as f:
        f.write(good(1).encode() + b'{"text": "')
        for _ in range(200):
            f.write(b"x" * (1 << 20))
        f.write(b'"}\n' + good(2).encode())
    expect(dir, path, [(2, "too_long", "")], 2)


def test_truncated_gzip(dir):
    whole = gzip.compress("".join(good(i) for i in range(5000)).encode())
    path = lines(dir, "in.jsonl.gz", whole[: len(whole) * 2 // 3])
    out = os.path.join(dir, "out")
    t.ebb_run(t.tiny_model(), path, out, want=3)
    rows, errors = t.rows(out), t.errors(out)
    assert 1000 < len(rows) < 5000, len(rows)
    assert [r["id"] for r in rows] == [f"g{i}" for i in range(len(rows))]
    assert errors[-1]["code"] == "truncated" and len(errors) <= 2, errors


def test_damaged_gzip_among_good_files(dir):
    a = lines(dir, "a.jsonl.gz", gzip.compress(good(1).encode()))
    b = lines(dir, "b.jsonl.gz", b"this is no gzip")
    c = lines(dir, "c.jsonl.gz", gzip.compress(good(2).encode()))
    out = os.path.join(dir, "out")
    t.ebb_run(t.tiny_model(), [a, b, c], out, want=3)
    assert [r["id"] for r in t.rows(out)] == ["g1", "g2"]
    errors = t.errors(out)
    assert len(errors) == 1 and errors[0]["code"] == "damaged" and errors[0]["source"].endswith("b.jsonl.gz"), errors


def test_csv_columns(dir):
    path = lines(dir, "in.csv", "id,text,stars\n", "1,fine,5\n", "2,short\n", '3,"quoted, with\nnewline",4\n', "4\n", "5,ok,1\n")
    out = expect(dir, path, [(3, "wrong_columns", "stars"), (6, "wrong_columns", "text")], 3, "--keep", "stars")
    assert [(r["id"], r["stars"]) for r in t.rows(out)] == [("1", "5"), ("3", "4"), ("5", "1")]


def test_csv_without_the_column(dir):
    path = lines(dir, "in.csv", "id,title,text,stars\n", "1,a,b,5\n")
    e = refused(dir, t.run_args(t.tiny_model(), path, os.path.join(dir, "out"), "--field", "txt"), "txt", "text")
    assert "stars" in e


def test_duplicate_ids_are_kept(dir):
    out = expect(dir, lines(dir, "in.jsonl", good(1), good(1), good(1)), [], 3)
    assert [r["id"] for r in t.rows(out)] == ["g1"] * 3


def test_unreadable_file(dir):
    refused(dir, t.run_args(t.tiny_model(), os.path.join(dir, "nothing.jsonl"), os.path.join(dir, "out")), "nothing.jsonl")
    refused(dir, t.run_args(t.tiny_model(), os.path.join(dir, "*.jsonl"), os.path.join(dir, "out")), "*.jsonl")


def test_output_of_another_job(dir):
    inp, out = lines(dir, "in.jsonl", good(1), good(2)), os.path.join(dir, "out")
    t.ebb_run(t.tiny_model(), inp, out)
    other = lines(dir, "other.jsonl", good(3))
    before = t.output_bytes(out)
    rc, o, e = t.run(t.run_args(t.tiny_model(), other, out))
    assert rc == 2 and "out" in e, (rc, e)
    assert t.output_bytes(out) == before


def test_output_with_foreign_files(dir):
    inp, out = lines(dir, "in.jsonl", good(1)), os.path.join(dir, "out")
    os.mkdir(out)
    lines(out, "thesis.txt", "do not touch")
    refused(dir, t.run_args(t.tiny_model(), inp, out), "out")
    assert open(os.path.join(out, "thesis.txt")).read() == "do not touch"


def model_copy(dir, name):
    path = os.path.join(dir, name)
    shutil.copytree(t.tiny_model(), path)
    return path


def test_model_directories(dir):
    inp = lines(dir, "in.jsonl", good(1))
    out = os.path.join(dir, "out")
    refused(dir, t.run_args(os.path.join(dir, "no-model"), inp, out), "no-model")
    for missing in ("config.json", "model.safetensors"):
        m = model_copy(dir, "m-" + missing)
        os.remove(os.path.join(m, missing))
        refused(dir, t.run_args(m, inp, out), missing)
    m = model_copy(dir, "m-truncated")
    with open(os.path.join(m, "model.safetensors"), "r+b") as f:
        f.truncate(os.path.getsize(os.path.join(m, "model.safetensors")) // 2)
    refused(dir, t.run_args(m, inp, out), "model.safetensors")
    m = model_copy(dir, "m-dtype")
    path = os.path.join(m, "model.safetensors")
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    header = data[8 : 8 + n].replace(b'"F32"', b'"I32"', 1)
    open(path, "wb").write(data[:8] + header + data[8 + n :])
    refused(dir, t.run_args(m, inp, out), "I32")
    m = model_copy(dir, "m-nan")
    path = os.path.join(m, "model.safetensors")
    open(path, "wb").write(data[: 8 + n] + struct.pack("<f", float("nan")) + data[8 + n + 4 :])
    refused(dir, t.run_args(m, inp, out), "NaN", "model.safetensors", want=4)  # seen only when all weights are read: the job is held
    out = os.path.join(dir, "out-tokenizer")
    m = model_copy(dir, "m-tokenizer")
    open(os.path.join(m, "tokenizer.json"), "w").write("{")
    refused(dir, t.run_args(m, inp, out), "tokenizer.json")


def test_unknown_flag_and_yaml_key(dir):
    inp = lines(dir, "in.jsonl", good(1))
    refused(dir, [t.EBB, "run", "--modle", "x"], "--modle", "--model")
    refused(dir, [t.EBB, "rnu"], "rnu", "run")
    job = lines(dir, "job.yaml", f"name: x\nmodel: {t.tiny_model()}\ninput: {{ glob: {inp}, field: text }}\noutput: {{ dir: {dir}/out }}\nworker: {{ max: 2 }}\n")
    refused(dir, [t.EBB, "run", job], "job.yaml:5", "worker", "workers")


def test_long_texts(dir):
    """Longer than the model takes: cut, or an error of that record where the job says so."""
    long = json.dumps({"id": "long", "text": "word " * 5000}) + "\n"
    inp = lines(dir, "in.jsonl", good(1), long, good(2))
    out = os.path.join(dir, "cut")
    t.ebb_run(t.tiny_model(), inp, out)
    assert len(t.rows(out)) == 3
    expect(dir, inp, [(2, "too_many_tokens", "")], 2, "--on-long", "error")


def test_max_errors_holds_the_job(dir):
    inp = os.path.join(dir, "in.jsonl")
    with open(inp, "w") as f:
        for i in range(3000):
            f.write(good(i) if i % 3 else "broken\n")
    out = os.path.join(dir, "out")
    rc, o, e = t.run(t.run_args(t.tiny_model(), inp, out, "--max-errors", "1%"))
    assert rc == 4 and "1" in e, (rc, o, e)
    rc, o, e = t.run(t.run_args(t.tiny_model(), inp, out, "--max-errors", "60%"))
    assert rc == 3, (rc, o, e)
    assert len(t.rows(out)) == 2000 and len(t.errors(out)) == 1000


def test_line_numbers_across_files_and_cuts(dir):
    """Errors name their line in their file, however the job was cut."""
    paths, want = [], []
    for n in range(4):
        path = os.path.join(dir, f"in-{n}.jsonl")
        with open(path, "w") as f:
            for i in range(1500):
                bad = (i * 7 + n) % 211 == 0
                f.write("oops\n" if bad else good(i))
                if bad:
                    want.append((os.path.basename(path), i + 1))
        paths.append(path)
    out = os.path.join(dir, "out")
    t.ebb_run(t.tiny_model(), paths, out, "--workers", "3", "--lease", "0.1s", "--commit", "0.05s", want=3)
    got = [(os.path.basename(e["source"]), e["line"]) for e in t.errors(out)]
    assert got == want, (got[:5], want[:5], len(got), len(want))


t.main(globals())
