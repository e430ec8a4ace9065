"""Packed weights in a file: made once, found again, and never to be seen in a result, whatever happens to the file. And where a model can be cut."""
import glob
import json
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ebbtest as t
import onnxfile as o


def product(path):
    """An ONNX model with a constant matrix, of texts' length none: rows of 3."""
    nodes = [o.node("MatMul", ["x", "w"], ["a"]), o.node("Add", ["a", "b"], ["y"])]
    m = o.model(o.graph(nodes, [o.value("x", o.FLOAT, ["batch", 3])], [o.value("y", o.FLOAT, ["batch", 2])],
                        [o.floats("w", [3, 2], [1, 2, 3, 4, 5, 6]), o.floats("b", [2], [0.5, 0.25])]))
    with open(path, "wb") as f:
        f.write(m)
    return path


def packs(dir):
    return sorted(glob.glob(os.path.join(dir, "**", "*.pack*"), recursive=True))


def worker_log(out):
    return "".join(whole(p).decode() for p in glob.glob(os.path.join(t.work_dir(out), "state", "workers", "*.log")))


def whole(path):
    with open(path, "rb") as f:
        return f.read()


def run(dir, name, model, inp, cache, *more):
    out = os.path.join(dir, name)
    t.ebb_run(model, inp, out, *more, env={"EBB_PACK_CACHE": cache})
    return out


def check(dir, model, inp, *more):
    cache = os.path.join(dir, "cache")
    plain = run(dir, "plain", model, inp, "off", *more)
    assert not packs(dir)
    first = run(dir, "first", model, inp, cache, *more)
    t.same_output(plain, first)
    (path,) = packs(cache)
    good, node = whole(path), os.stat(path).st_ino
    assert "packed weights: '" in worker_log(first)
    second = run(dir, "second", model, inp, cache, *more)
    t.same_output(plain, second)
    assert os.stat(path).st_ino == node and "packed weights: " not in worker_log(second)
    index = struct.unpack_from("<Q", good, 48)[0]
    (last,) = struct.unpack_from("<Q", good, index + 248 * (struct.unpack_from("<I", good, 12)[0] - 1) + 224)
    with open(path, "r+b") as f:  # the last layer's first byte
        f.seek(last)
        f.write(bytes([good[last] ^ 1]))
    third = run(dir, "third", model, inp, cache, *more)
    t.same_output(plain, third)
    assert "a layer's weights are damaged" in worker_log(third), worker_log(third)
    assert packs(cache) == [path] and whole(path) == good


def test_an_encoder(dir):
    check(dir, t.tiny_model(), t.write_jsonl(os.path.join(dir, "in.jsonl"), 300))


def test_an_encoder_in_int8(dir):
    check(dir, t.tiny_model(), t.write_jsonl(os.path.join(dir, "in.jsonl"), 300), "--precision", "int8")


def test_onnx(dir):
    inp = os.path.join(dir, "in.jsonl")
    with open(inp, "w") as f:
        f.writelines('{"id": %d, "x": [%d, 2, %d]}\n' % (i, i, i % 7) for i in range(200))
    check(dir, product(os.path.join(dir, "product.onnx")), inp)


def test_a_folder_that_cannot_be(dir):
    """Is said once, and costs nothing else."""
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 300)
    plain = run(dir, "plain", t.tiny_model(), inp, "off")
    out = run(dir, "out", t.tiny_model(), inp, "/dev/null/packs")
    t.same_output(plain, out)
    assert worker_log(out).count("packed weights are not kept: ") == 1, worker_log(out)


def test_workers_at_once(dir):
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 3000)
    cache = os.path.join(dir, "cache")
    plain = run(dir, "plain", t.tiny_model(), inp, "off")
    out = run(dir, "out", t.tiny_model(), inp, cache, "--workers", "3", "--lanes", "1")
    t.same_output(plain, out)
    assert len(packs(cache)) == 1, packs(cache)


def inspect(model):
    rc, text, err = t.run([t.EBB, "model", "inspect", model])
    assert rc == 0, err
    rc, j, err = t.run([t.EBB, "model", "inspect", "--json", model])
    assert rc == 0, err
    return text, json.loads(j)


def test_segments(dir):
    text, j = inspect(t.tiny_model())
    assert "cuts    into 4 segments, the costliest with 4" in text and "operations on 128 tokens; at most 16.0 KiB cross a cut" in text, text
    assert [s["first"] for s in j["segments"]] == ["embeddings", "encoder.layer.0", "encoder.layer.1", "head"]
    assert sum(s["weight_bytes"] for s in j["segments"]) == j["weight_bytes"]
    assert [s["out_bytes"] for s in j["segments"]] == [128 * 32 * 4] * 3 + [32 * 4]
    text, j = inspect(product(os.path.join(dir, "product.onnx")))
    assert "cuts    none: 1 segment\n" in text, text
    (s,) = j["segments"]
    assert s["weight_bytes"] == 8 * 4 and s["flops"] == 2 * 3 * 2 and s["out_bytes"] == 2 * 4, s


t.main(globals())
