"""Images and arrays through the whole program, against what ONNX Runtime and transformers made of the same pictures."""
import base64
import json
import os
import random
import shutil
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ebbtest as t

MODEL = os.path.join(t.TOP, "tests/golden/imagemodel")
IMAGES = os.path.join(t.TOP, "tests/golden/images")
LABELS = ["cat", "dog", "bird", "boat"]
with open(os.path.join(MODEL, "golden.json"), encoding="utf-8") as f:
    GOLDEN = json.load(f)


def check_scores(row, name):
    want = GOLDEN[name]["scores"]
    got = [row["scores"][label] for label in LABELS]
    assert max(abs(a - b) for a, b in zip(got, want)) < 1e-4, (name, got, want)
    assert row["label"] == LABELS[want.index(max(want))] and row["score"] == max(got), row


def photos(dir):
    folder = os.path.join(dir, "photos")
    shutil.copytree(IMAGES, folder)
    return folder


def npy(path, shape, values):
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape!r}, }}".encode()
    head += b" " * (-(10 + len(head) + 1) % 64) + b"\n"
    with open(path, "wb") as out:
        out.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + struct.pack(f"<{len(values)}f", *values))


def test_a_folder_of_images(dir):
    folder, out = photos(dir), os.path.join(dir, "out.jsonl")
    with open(os.path.join(folder, "broken.jpg"), "wb") as f, open(os.path.join(IMAGES, "colour.jpg"), "rb") as whole:
        f.write(whole.read()[:400])
    open(os.path.join(folder, "nothing.png"), "w").close()
    with open(os.path.join(folder, "text.png"), "w") as f:
        f.write("no picture")
    t.ebb_run(MODEL, folder, out, want=3)
    rows = t.rows(out)
    assert [os.path.basename(r["id"]) for r in rows] == sorted(GOLDEN), rows[:2]
    for row in rows:
        assert os.path.isabs(row["id"])
        check_scores(row, os.path.basename(row["id"]))
    errors = {os.path.basename(e["source"]): e for e in t.errors(out)}
    assert sorted(errors) == ["broken.jpg", "nothing.png", "text.png"], errors
    assert all(e["code"] == "bad_image" for e in errors.values()), errors
    assert "truncated" in errors["broken.jpg"]["message"] and "no bytes" in errors["nothing.png"]["message"], errors


def test_the_same_bytes_however_it_is_cut(dir):
    folder = photos(dir)
    outs = []
    for more in (["--workers", "1"], ["--workers", "3"], ["--micro-batch", "1"]):
        out = os.path.join(dir, f"out{len(outs)}.jsonl")
        t.ebb_run(MODEL, folder, out, *more)
        outs.append(out)
    for out in outs[1:]:
        t.same_output(outs[0], out)


def test_records_that_name_or_hold_a_picture(dir):
    folder = photos(dir)
    inp, out = os.path.join(dir, "list.jsonl"), os.path.join(dir, "out.jsonl")
    names = sorted(GOLDEN)
    with open(inp, "w") as f:
        for i, name in enumerate(names):
            image = f"photos/{name}"
            if i % 3:
                with open(os.path.join(folder, name), "rb") as data:
                    image = base64.b64encode(data.read()).decode()
                if i % 3 == 2:
                    image = "data:image/x;base64," + image
            f.write(json.dumps({"id": i, "image": image, "name": name}) + "\n")
        f.write(json.dumps({"id": "gone", "image": "photos/gone.png"}) + "\n")
        f.write(json.dumps({"id": "outside", "image": "../../../../etc/passwd"}) + "\n")
        f.write(json.dumps({"id": "none"}) + "\n")
    t.ebb_run(MODEL, inp, out, "--keep", "name", want=3)
    rows = t.rows(out)
    assert [(r["id"], r["name"]) for r in rows] == list(enumerate(names))
    for row in rows:
        check_scores(row, row["name"])
    assert [(e["id"], e["code"]) for e in t.errors(out)] == [("gone", "bad_image"), ("outside", "bad_image"), ("none", "missing_field")]
    assert "leads out of" in t.errors(out)[1]["message"]


def test_arrays_of_json_and_npy(dir):
    """The same numbers in three wrappings give the same rows."""
    r = random.Random(5)
    records = [[struct.unpack("<f", struct.pack("<f", r.uniform(-2, 2)))[0] for _ in range(3 * 24 * 24)] for _ in range(7)]
    inp = os.path.join(dir, "in.jsonl")
    with open(inp, "w") as f:
        for v in records:
            array = [[v[(c * 24 + y) * 24:(c * 24 + y + 1) * 24] for y in range(24)] for c in range(3)]
            f.write(json.dumps({"pixel_values": array}) + "\n")
    npy(os.path.join(dir, "in.npy"), (7, 3, 24, 24), [x for v in records for x in v])
    found = {}
    for name in ("in.jsonl", "in.npy"):
        out = os.path.join(dir, f"out-{name}.jsonl")
        t.ebb_run(MODEL, os.path.join(dir, name), out, "--task", "outputs")
        found[name] = [row["outputs"]["logits"] for row in t.rows(out)]
        assert len(found[name]) == 7 and all(len(v) == 4 for v in found[name]), found[name][:1]
    assert found["in.jsonl"] == found["in.npy"]
    with open(os.path.join(dir, "in.npy"), "ab") as f:
        f.write(b"x")
    out = os.path.join(dir, "bad.jsonl")
    t.ebb_run(MODEL, os.path.join(dir, "in.npy"), out, "--task", "outputs", want=3)
    assert [e["code"] for e in t.errors(out)] == ["damaged"], t.errors(out)


def test_what_does_not_go_together(dir):
    folder = photos(dir)
    model = os.path.join(dir, "model")
    shutil.copytree(MODEL, model)
    config = os.path.join(model, "preprocessor_config.json")

    def refused(words, inp=folder, *more):
        rc, out, err = t.ebb_run(model, inp, os.path.join(dir, "out.jsonl"), *more, want=None, timeout=60)
        assert rc == 4 and "is held: its model cannot be loaded" in err and words in err, (rc, out, err)
        shutil.rmtree(os.path.join(dir, "out.jsonl.ebb"), ignore_errors=True)

    with open(config) as f:
        good = json.load(f)
    for change, words in (({"crop_size": 20}, "does not go with its preprocessor_config.json"), ({"image_processor_type": "DonutImageProcessor"}, "is not supported"),
                          ({"do_thumbnail": True}, "the field 'do_thumbnail' is not known for CLIP")):
        with open(config, "w") as f:
            json.dump({**good, **change}, f)
        refused(words)
    os.remove(config)
    refused("the model has no preprocessor_config.json")


t.main(globals())
