"""ONNX models through the whole program: texts, arrays, rows of .npy, images; a record's result is its own, whatever shares its run."""
import json
import os
import shutil
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ebbtest as t
import onnxfile as o

IMAGES = os.path.join(t.TOP, "tests/golden/images")


def write(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb" if isinstance(data, bytes) else "w") as f:
        f.write(data)
    return path


def records(dir, rows):
    return write(os.path.join(dir, "in.jsonl"), "".join(json.dumps(r) + "\n" for r in rows))


def outputs(dir, model, inp, *more, want=0, name="out"):
    out = os.path.join(dir, name)
    t.ebb_run(model, inp, out, *more, want=want)
    return out


def scaled():
    """y = (a + 10 b) * 2, of any length; sizes of a and b go together."""
    v = [o.value("a", o.FLOAT, ["batch", "n"]), o.value("b", o.FLOAT, ["batch", "n"])]
    nodes = [o.node("Mul", ["b", "ten"], ["c"]), o.node("Add", ["a", "c"], ["d"]), o.node("Mul", ["d", "two"], ["y"])]
    return o.model(o.graph(nodes, v, [o.value("y", o.FLOAT, ["batch", "n"])], [o.floats("ten", [], [10]), o.floats("two", [], [2])]))


def test_arrays(dir):
    model = write(os.path.join(dir, "m", "scaled.onnx"), scaled())
    rows = [{"id": i, "a": [i + k for k in range(1 + i % 3)], "b": [0.5] * (1 + i % 3)} for i in range(40)]
    rows[7]["b"] = [1, 2, 3, 4]     # does not go with a
    rows[8]["a"] = [[1]]            # of another rank
    del rows[9]["b"]
    out = outputs(dir, model, records(dir, rows), want=3)
    got = {r["id"]: r["outputs"]["y"] for r in t.rows(out)}
    assert sorted(got) == [i for i in range(40) if i not in (7, 8, 9)], sorted(got)
    for i, y in got.items():
        assert y == [2 * (i + k + 5) for k in range(1 + i % 3)], (i, y)
    errors = t.errors(out)
    assert [e["code"] for e in errors] == ["failed", "wrong_shape", "wrong_shape"] or len(errors) == 3, errors
    assert "input 'b' has size 4 along axis 1, but 'n' is 2" in errors[0]["message"], errors[0]
    alone = outputs(dir, model, records(dir, rows), "--micro-batch", "1", want=3, name="alone")
    t.same_output(out, alone)


def test_records_that_a_model_mixes_go_alone(dir):
    """It subtracts the mean over the batch: of a record alone that leaves zeros."""
    nodes = [o.node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1), o.node("Sub", ["x", "m"], ["y"])]
    m = o.model(o.graph(nodes, [o.value("x", o.FLOAT, ["batch", 2])], [o.value("y", o.FLOAT, ["batch", 2])]))
    model = write(os.path.join(dir, "m", "mix.onnx"), m)
    rc, text, err = t.run([t.EBB, "model", "inspect", model])
    assert rc == 0 and "records go one by one" in text, (text, err)
    out = outputs(dir, model, records(dir, [{"id": i, "x": [i, 2 * i]} for i in range(20)]))
    assert [r["outputs"]["y"] for r in t.rows(out)] == [[0, 0]] * 20


def npy(path, rows, dims):
    head = "{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }" % ", ".join(map(str, dims))
    head += " " * (-(len(head) + 11) % 64) + "\n"
    return write(path, b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + struct.pack(f"<{len(rows)}f", *rows))


def test_rows_of_npy(dir):
    nodes = [o.node("MatMul", ["x", "w"], ["y"])]
    m = o.model(o.graph(nodes, [o.value("x", o.FLOAT, ["batch", 3])], [o.value("y", o.FLOAT, ["batch", 2])], [o.floats("w", [3, 2], [1, 2, 3, 4, 5, 6])]))
    model = write(os.path.join(dir, "m", "product.onnx"), m)
    inp = npy(os.path.join(dir, "in.npy"), [float(i) for i in range(30)], [10, 3])
    out = outputs(dir, model, inp)
    want = [[a + 3 * b + 5 * c, 2 * a + 4 * b + 6 * c] for a, b, c in ((3 * i, 3 * i + 1, 3 * i + 2) for i in range(10))]
    assert [r["outputs"]["y"] for r in t.rows(out)] == want
    rows = outputs(dir, model, inp, "--task", "embed", name="embedded")
    assert [r["embedding"] for r in t.rows(rows)] == want


def test_images(dir):
    """Which of its colours is a picture's strongest?"""
    nodes = [o.node("GlobalAveragePool", ["pixel_values"], ["a"]), o.node("Flatten", ["a"], ["logits"])]
    m = o.model(o.graph(nodes, [o.value("pixel_values", o.FLOAT, ["batch", 3, 8, 8])], [o.value("logits", o.FLOAT, ["batch", 3])]))
    write(os.path.join(dir, "m", "model.onnx"), m)
    write(os.path.join(dir, "m", "config.json"), json.dumps({"id2label": {"0": "red", "1": "green", "2": "blue"}}))
    write(os.path.join(dir, "m", "preprocessor_config.json"), json.dumps({
        "image_processor_type": "ViTImageProcessor", "do_resize": True, "size": {"height": 8, "width": 8}, "do_rescale": True, "rescale_factor": 1 / 255,
        "do_normalize": False, "resample": 2}))
    model = os.path.join(dir, "m")
    out = outputs(dir, model, IMAGES, want=None)
    rows = t.rows(out)
    assert len(rows) > 10 and all(r["label"] in ("red", "green", "blue") and abs(sum(r["scores"].values()) - 1) < 1e-5 for r in rows), rows[:2]
    t.same_output(out, outputs(dir, model, IMAGES, "--micro-batch", "1", want=None, name="alone"))


def text_model(dir, nodes, out_dims, ids="input_ids", initializers=()):
    folder = os.path.join(dir, "text")
    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(t.tiny_model()):
        if name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
            shutil.copy(os.path.join(t.tiny_model(), name), folder)
    v = [o.value(n, o.INT64, ["batch", "length"]) for n in (ids, "attention_mask")]
    write(os.path.join(folder, "model.onnx"), o.model(o.graph(nodes, v, [o.value("last_hidden_state", o.FLOAT, out_dims)], initializers)))
    return folder


def test_texts(dir):
    """A token's vector is its id and 1: the mean tells the ids' mean. Packed or not, alone or not: the same."""
    nodes = [o.node("Cast", ["input_ids"], ["f"], to=1), o.node("Unsqueeze", ["f", "two"], ["g"]), o.node("Mul", ["g", "pattern"], ["last_hidden_state"])]
    model = text_model(dir, nodes, ["batch", "length", 2], initializers=[o.int64s("two", [1], [2]), o.floats("pattern", [2], [1, 0.5])])
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 60)
    out = outputs(dir, model, inp)
    rows = [r["embedding"] for r in t.rows(out)]
    assert len(rows) == 60 and all(len(r) == 2 and abs(r[0] - 2 * r[1]) < 1e-3 * abs(r[0]) for r in rows), rows[:3]
    assert len({r[0] for r in rows}) > 30
    t.same_output(out, outputs(dir, model, inp, "--micro-batch", "1", name="alone"))


def test_a_record_that_does_not_go_through_fails_alone(dir):
    """Lengths are looked up in a table of four."""
    nodes = [o.node("Gather", ["table", "x"], ["y"])]
    m = o.model(o.graph(nodes, [o.value("x", o.INT64, ["batch"])], [o.value("y", o.FLOAT, ["batch", 1])], [o.floats("table", [4, 1], [5, 6, 7, 8])]))
    model = write(os.path.join(dir, "m", "table.onnx"), m)
    out = outputs(dir, model, records(dir, [{"id": i, "x": i} for i in range(6)]), want=3)
    assert [r["outputs"]["y"] for r in t.rows(out)] == [[5], [6], [7], [8]]
    assert [(e["code"], "node 'Gather'" in e["message"]) for e in t.errors(out)] == [("failed", True)] * 2, t.errors(out)


def test_a_record_that_asks_for_too_much_memory_fails_alone(dir):
    """How often its number is repeated is the record's to say: one says ten thousand million times."""
    nodes = [o.node("Expand", ["one", "times"], ["many"]), o.node("ReduceSum", ["many"], ["y"], keepdims=0)]
    m = o.model(o.graph(nodes, [o.value("times", o.INT64, [2])], [o.value("y", o.FLOAT, [])], [o.floats("one", [1], [1])]))
    model = write(os.path.join(dir, "m", "many.onnx"), m)
    rows = [{"id": i, "times": [i + 1, 2]} for i in range(20)]
    rows[11]["times"] = [100000, 100000]
    rows[12]["times"] = [2 ** 62, 2 ** 62]
    rows[13]["times"] = [-2 ** 63, 1]
    out = outputs(dir, model, records(dir, rows), want=3)
    assert [(r["id"], r["outputs"]["y"]) for r in t.rows(out)] == [(i, 2 * (i + 1)) for i in range(20) if i not in (11, 12, 13)]
    errors = t.errors(out)
    assert [e["code"] for e in errors] == ["failed"] * 3, errors
    assert "node 'Expand' (Expand): a tensor of 37.3 GiB would take the run beyond the memory" in errors[0]["message"], errors[0]


def test_a_text_that_does_not_go_through_says_why(dir):
    """Token ids are looked up in a table of 40, and the vocabulary has more (the one that is added hides that when the model is loaded): such a text fails, with the
    node's words."""
    nodes = [o.node("Add", ["input_ids", "one"], ["ids"]), o.node("Gather", ["table", "ids"], ["last_hidden_state"], name="look_up")]
    model = text_model(dir, nodes, ["batch", "length", 2], initializers=[o.floats("table", [40, 2], [i / 7 for i in range(80)]), o.int64s("one", [], [1])])
    out = outputs(dir, model, t.write_jsonl(os.path.join(dir, "in.jsonl"), 30), want=None)
    errors = t.errors(out)
    assert errors and all(e["code"] == "failed" and "node 'look_up' (Gather)" in e["message"] for e in errors), errors[:2]


def test_stages(dir):
    """A model of texts over several workers: the bytes of one, and texts that fail in the last of them fail alone, with the same words. What cannot be divided is
    refused at once."""
    nodes = [o.node("Gather", ["table", "input_ids"], ["h0"])]
    weights = [o.floats("table", [512, 8], [(i * 7919 % 201 - 100) / 100 for i in range(512 * 8)]), o.floats("short", [215, 8], [i / 900 for i in range(215 * 8)])]
    for i in range(4):
        weights.append(o.floats(f"w{i}", [8, 8], [((i + 3) * k * 31 % 101 - 50) / 70 for k in range(64)]))
        nodes += [o.node("MatMul", [f"h{i}", f"w{i}"], [f"p{i}"]), o.node("Tanh", [f"p{i}"], [f"h{i + 1}"])]
    nodes += [o.node("Gather", ["short", "input_ids"], ["more"], name="look_up"), o.node("Add", ["h4", "more"], ["last_hidden_state"])]
    model = text_model(dir, nodes, ["batch", "length", 8], initializers=weights)
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 120, text=lambda i: "ee is no row of the short table" if i % 40 == 7 else "a b " * (i % 5) + f"c {i}")
    one = outputs(dir, model, inp, "--lanes", "1", want=3, name="one")
    assert len(t.errors(one)) == 3 and all("node 'look_up' (Gather)" in e["message"] for e in t.errors(one)), t.errors(one)
    t.same_output(one, outputs(dir, model, inp, "--lanes", "1", "--stages", "3", want=3, name="three"))
    rc, _, err = t.run(t.run_args(model, inp, os.path.join(dir, "many"), "--stages", "8"))
    assert rc == 2 and "cannot be cut into 8 stages: it is " in err, err
    arrays = write(os.path.join(dir, "m", "scaled.onnx"), scaled())
    rc, _, err = t.run(t.run_args(arrays, records(dir, [{"a": [1], "b": [1]}]), os.path.join(dir, "arrays"), "--stages", "2"))
    assert rc == 2 and "takes arrays, not texts: such a model runs on one worker, whole" in err, err


def test_the_digest_covers_external_data(dir):
    w = o.tensor("w", o.FLOAT, [1], external={"location": "w.bin"})
    m = o.model(o.graph([o.node("Mul", ["x", "w"], ["y"])], [o.value("x", o.FLOAT, ["batch"])], [o.value("y", o.FLOAT, ["batch"])], [w]))
    model = write(os.path.join(dir, "m", "a.onnx"), m)
    digests = set()
    for number in (1, 2):
        write(os.path.join(dir, "m", "w.bin"), struct.pack("<f", number))
        for path in (model, os.path.dirname(model)):
            rc, text, err = t.run([t.EBB, "model", "inspect", "--json", path])
            assert rc == 0, err
            digests.add(json.loads(text)["digest"])
    assert len(digests) == 2, digests


def test_what_does_not_go_together_is_refused_before_anything_starts(dir):
    model = write(os.path.join(dir, "m", "scaled.onnx"), scaled())
    out = os.path.join(dir, "out")
    rc, _, err = t.run(t.run_args(model, records(dir, [{"a": [1], "b": [1]}]), out, "--output-format", "npy"))
    assert rc == 2 and "npy" in err, err
    rc, _, err = t.run([t.EBB, "model", "inspect", os.path.join(dir, "m", "none.onnx")])
    assert rc == 2 and err, err
    write(os.path.join(dir, "two", "a.onnx"), scaled())
    write(os.path.join(dir, "two", "b.onnx"), scaled())
    rc, _, err = t.run([t.EBB, "model", "inspect", os.path.join(dir, "two")])
    assert rc == 2 and "2 ONNX files" in err, err


t.main(globals())
