"""What a person is told: refusals that save data, reasons that help, figures that can be true."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import json
import shutil
import struct
import signal
import subprocess

import ebbtest as t


def records(path, count):
    return t.write_jsonl(path, count, text=lambda i: f"record {i}")


def refused(dir, inp, out, words, *more):
    code, _, text = t.run(t.run_args(t.tiny_model(), inp, out, *more), cwd=dir)
    assert code == 2, (code, text)
    assert words in text, text


def test_an_output_never_destroys_its_input(dir):
    inp = records(os.path.join(dir, "a.jsonl"), 20)
    before = open(inp).read()
    for more in ([], ["--force"]):
        refused(dir, "a.jsonl", "a.jsonl", "error: the input 'a.jsonl' would be replaced by the output 'a.jsonl'", *more)
    assert open(inp).read() == before
    out = os.path.join(dir, "out")
    t.ebb_run(t.tiny_model(), inp, out)
    before = t.output_bytes(out)
    refused(dir, "out/part-*.jsonl", "out/", "lies in the input 'out/part-*.jsonl'", "--force")
    assert before == t.output_bytes(out)


def test_an_output_is_not_its_next_input(dir):
    os.mkdir(os.path.join(dir, "in"))
    records(os.path.join(dir, "in", "a.jsonl"), 5)
    refused(dir, "in", "in/out/", "the output 'in/out' lies in the input 'in'")
    refused(dir, "in/*.jsonl", "in/o.npy", "the output 'in/o.npy' lies in the input 'in/*.jsonl'")
    t.ebb_run(t.tiny_model(), "in/*.jsonl", "in/out/", cwd=dir)
    t.ebb_run(t.tiny_model(), "in/*.jsonl", "in/out/", cwd=dir)


def test_a_held_job_stays_held(dir):
    """The same command again, with the same limit: 4 again, not 2 as for a wrong command."""
    inp = os.path.join(dir, "a.jsonl")
    with open(inp, "w") as f:
        f.write('{"text": "x"}\n' * 10 + "bad\n" * 2)
    out = os.path.join(dir, "out")
    for _ in range(2):
        code, _, text = t.run(t.run_args(t.tiny_model(), inp, out, "--max-errors", "1"))
        assert code == 4 and "2 records have errors, 1 is allowed" in text and "--max-errors 5%" in text, (code, text)
    t.ebb_run(t.tiny_model(), inp, out, "--max-errors", "2", want=3)


def test_a_model_that_cannot_be_loaded(dir):
    pool = t.Pool(dir, env={}, workers=1, lanes=1)
    try:
        model = os.path.join(dir, "model")
        shutil.copytree(t.tiny_model(), model)
        path = os.path.join(model, "model.safetensors")
        with open(path, "r+b") as f:  # what only reading all weights finds: the headers are looked at before
            head = struct.unpack("<Q", f.read(8))[0]
            f.seek(8 + head)
            f.write(struct.pack("<f", float("nan")))
        inp = records(os.path.join(dir, "a.jsonl"), 5)
        code, text = pool.ebb("submit", "--model", model, "--input", inp, "--output", os.path.join(dir, "out") + "/")[:2]
        assert code == 0, text
        pool.wait_state(1, "held")
        reason = pool.job(1)["reason"]
        assert "model.safetensors" in reason and "log" not in reason and reason.count("its model cannot be loaded") == 1, reason
    finally:
        pool.stop()


def test_wanted_workers_are_those_that_can_come(dir):
    pool = t.Pool(dir, env={"EBB_TEST_HOOK": "1"}, workers=1, lanes=1)
    try:
        inp = t.write_jsonl(os.path.join(dir, "a.jsonl"), 5000, text=lambda i: f"EBB_TEST_SLOW:5 record {i}")
        assert pool.ebb("submit", "--model", t.tiny_model(), "--input", inp, "--output", os.path.join(dir, "out") + "/", "--lease", "0.5s")[0] == 0
        seen = []
        t.wait_for(lambda: seen.append(pool.job(1)) or seen[-1]["records_done"] > 300, 60)
        assert all(j["workers_wanted"] <= 1 for j in seen), max(j["workers_wanted"] for j in seen)
        assert any(j["workers_wanted"] == 1 for j in seen)
    finally:
        pool.stop()


def test_progress_as_json_has_one_shape(dir):
    """The daemon is killed meanwhile: what the client says stays as it was."""
    out, gate = os.path.join(dir, "out"), os.path.join(dir, "gate")
    inp = t.write_jsonl(os.path.join(dir, "a.jsonl"), 3000, text=lambda i: t.gated(gate, i, 2000))
    p = subprocess.Popen(t.run_args(t.tiny_model(), inp, out, "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         env=dict(os.environ, EBB_TEST_HOOK="1"))
    owner = os.path.join(t.work_dir(out), "state", "owner")
    said = t.wait_progress(p, 0)
    os.kill(json.load(open(owner))["pid"], signal.SIGKILL)
    while len(said) < 5:
        said.append(json.loads(p.stdout.readline()))
    t.open_gate(gate)
    text, errors = p.communicate(timeout=t.PATIENCE)
    assert p.returncode == 0, errors
    said += [json.loads(line) for line in text.splitlines()]
    assert said[-1]["event"] == "done" and said[-1]["records_done"] == 3000
    shapes = {tuple(sorted(s)) for s in said[:-1]}
    assert len(shapes) == 1 and len(said) > 4, shapes
    fractions = [s["fraction"] for s in said]
    assert fractions == sorted(fractions)


t.main(globals())
