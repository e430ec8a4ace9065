"""What a job is: the same command resumes or attaches, another one is told what differs."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import json
import signal
import subprocess
import time

import ebbtest as t


def test_finished_job_is_not_redone(dir):
    inp, out = t.write_jsonl(os.path.join(dir, "in.jsonl"), 200), os.path.join(dir, "out")
    t.ebb_run(t.tiny_model(), inp, out)
    before = {n: os.stat(os.path.join(out, n)).st_mtime_ns for n in t.output_bytes(out)}
    t.ebb_run(t.tiny_model(), inp, out)
    assert before == {n: os.stat(os.path.join(out, n)).st_mtime_ns for n in t.output_bytes(out)}


def test_changed_model_or_input_is_refused(dir):
    inp, out = t.write_jsonl(os.path.join(dir, "in.jsonl"), 200), os.path.join(dir, "out")
    t.ebb_run(t.tiny_model(), inp, out)
    rc, o, e = t.run(t.run_args(t.tiny_model(seed=2), inp, out))
    assert rc == 2 and "model" in e, (rc, e)
    rc, o, e = t.run(t.run_args(t.tiny_model(), inp, out, "--floats", "base64"))
    assert rc == 2 and "floats" in e and "base64" in e, (rc, e)
    with open(inp, "a") as f:
        f.write('{"id": "more", "text": "one more"}\n')
    rc, o, e = t.run(t.run_args(t.tiny_model(), inp, out))
    assert rc == 2 and ("input" in e or "in.jsonl" in e), (rc, e)


def test_tuning_is_no_identity(dir):
    inp, out = t.write_jsonl(os.path.join(dir, "in.jsonl"), 200), os.path.join(dir, "out")
    t.ebb_run(t.tiny_model(), inp, out, "--micro-batch", "4")
    t.ebb_run(t.tiny_model(), inp, out, "--micro-batch", "9", "--lanes", "1")


def test_interrupt_and_resume(dir):
    base, out, gate = os.path.join(dir, "base"), os.path.join(dir, "out"), os.path.join(dir, "gate")
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 4000, text=lambda i: t.gated(gate, i, 2000))
    env = {"EBB_TEST_HOOK": "1"}
    t.open_gate(gate)
    t.ebb_run(t.tiny_model(), inp, base, env=env)
    os.unlink(gate)
    p = subprocess.Popen(t.run_args(t.tiny_model(), inp, out, "--commit", "0.2s", "--lanes", "1", "--json"), env={**os.environ, **env},
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    t.wait_progress(p, 0)
    p.send_signal(signal.SIGINT)
    e = p.stderr.readline()  # it has understood
    assert b"draining" in e, e
    t.open_gate(gate)
    o, e = p.communicate(timeout=t.PATIENCE)
    assert p.returncode == 130, (p.returncode, o, e)
    assert b"same command" in o + e, (o, e)
    t.wait_for(lambda: not t.processes(out), 10)
    rc, o, e = t.ebb_run(t.tiny_model(), inp, out, env=env)
    assert "resuming" in o + e, (o, e)
    t.same_output(base, out)


def test_run_while_the_last_one_leaves(dir):
    """Typed again while the daemon of before still drains its workers: waited for, not refused."""
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 300, text=lambda i: f"EBB_TEST_SLOW:{20 if i < 250 else 1} record {i}")
    out, env = os.path.join(dir, "out"), {"EBB_TEST_HOOK": "1"}
    args = t.run_args(t.tiny_model(), inp, out, "--commit", "0.1s", "--lanes", "1", "--json")
    p = subprocess.Popen(args, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    while b'"records_done":0,' in p.stdout.readline():
        pass
    p.kill()
    p.wait()
    for pid, name in t.processes(out):
        if name == "ebbd":
            os.kill(pid, signal.SIGTERM)
    time.sleep(0.1)
    rc, o, e = t.run(args, env=env)
    assert rc == 0 and json.loads(o.splitlines()[-1])["redone"] == 0, (rc, o, e)
    assert [r["id"] for r in t.rows(out)] == [f"r{i}" for i in range(300)]


def test_two_runs_of_one_job_at_once(dir):
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 2000, text=lambda i: f"EBB_TEST_SLOW:1 record {i}")
    base, out = os.path.join(dir, "base"), os.path.join(dir, "out")
    env = {"EBB_TEST_HOOK": "1"}
    t.ebb_run(t.tiny_model(), inp, base, env=env)
    both = [subprocess.Popen(t.run_args(t.tiny_model(), inp, out), env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE) for _ in range(2)]
    for p in both:
        o, e = p.communicate(timeout=t.PATIENCE)
        assert p.returncode == 0, (p.returncode, o, e)
    t.same_output(base, out)


def test_refused_run_leaves_the_other_alone(dir):
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 2000, text=lambda i: f"EBB_TEST_SLOW:1 record {i}")
    out = os.path.join(dir, "out")
    first = subprocess.Popen(t.run_args(t.tiny_model(), inp, out), env={**os.environ, "EBB_TEST_HOOK": "1"}, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    t.wait_for(lambda: os.path.exists(os.path.join(out, ".ebb", "job")), 20)
    rc, o, e = t.ebb_run(t.tiny_model(), inp, out, "--floats", "base64", want=2)
    assert "output.floats" in e, (o, e)
    o, e = first.communicate(timeout=t.PATIENCE)
    assert first.returncode == 0 and b"the daemon has gone" not in e, (first.returncode, o, e)
    assert len(t.rows(out)) == 2000


def test_damaged_output_is_made_anew_with_force(dir):
    """Somebody shortens a file that is being written: nothing is papered over, and --force begins anew."""
    base, out, gate = os.path.join(dir, "base"), os.path.join(dir, "out"), os.path.join(dir, "gate")
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 3000, text=lambda i: t.gated(gate, i, 2000))
    env = {"EBB_TEST_HOOK": "1"}
    t.open_gate(gate)
    t.ebb_run(t.tiny_model(), inp, base, env=env)
    os.unlink(gate)
    args = t.run_args(t.tiny_model(), inp, out, "--commit", "0.1s", "--lease", "0.5s")
    p = subprocess.Popen(args, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    partial = os.path.join(out, "part-00000.jsonl.partial")
    t.wait_for(lambda: os.path.exists(partial) and os.path.getsize(partial) > 1000, 20)
    os.truncate(partial, 500)
    t.open_gate(gate)
    o, e = p.communicate(timeout=t.PATIENCE)
    assert p.returncode == 4 and b"500 bytes" in e and b"--force" in e, (p.returncode, o, e)
    rc, o, e = t.run(args, env=env)
    assert rc == 4 and "part-00000.jsonl.partial' has 500 bytes" in e, (rc, o, e)
    rc, o, e = t.run([*args, "--force"], env=env)
    assert rc == 0, (rc, o, e)
    t.same_output(base, out)


def test_input_changed_while_it_runs(dir):
    """A source that changes under a job holds it; nothing wrong is written."""
    out, gate = os.path.join(dir, "out"), os.path.join(dir, "gate")
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 3000, text=lambda i: t.gated(gate, i, 2000))
    p = subprocess.Popen(t.run_args(t.tiny_model(), inp, out, "--commit", "0.2s", "--lease", "0.5s", "--lanes", "1", "--json"),
                         env={**os.environ, "EBB_TEST_HOOK": "1"}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    t.wait_progress(p, 0)
    with open(inp, "r+") as f:
        f.write('{"id": "changed!')
    os.utime(inp)
    t.open_gate(gate)
    o, e = p.communicate(timeout=t.PATIENCE)
    assert p.returncode == 4 and b"changed" in o + e, (p.returncode, o, e)
    assert not os.path.exists(os.path.join(out, "_SUCCESS"))


def test_growth_is_ignored(dir):
    """What is appended to a source while the job runs does not belong to it."""
    out, gate = os.path.join(dir, "out"), os.path.join(dir, "gate")
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 600, text=lambda i: t.gated(gate, i, 400))
    p = subprocess.Popen(t.run_args(t.tiny_model(), inp, out, "--commit", "0.1s", "--lease", "0.3s", "--lanes", "1", "--json"),
                         env={**os.environ, "EBB_TEST_HOOK": "1"}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    t.wait_progress(p, 0)
    with open(inp, "a") as f:
        f.write('{"id": "late", "text": "appended while the job runs"}\n' * 5)
    t.open_gate(gate)
    o, e = p.communicate(timeout=t.PATIENCE)
    assert p.returncode == 0, (p.returncode, o, e)
    assert [r["id"] for r in t.rows(out)] == [f"r{i}" for i in range(600)]


def test_standard_input(dir):
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 500)
    a, b = os.path.join(dir, "a"), os.path.join(dir, "b")
    t.ebb_run(t.tiny_model(), inp, a)
    with open(inp) as f:
        rc, o, e = t.run(t.run_args(t.tiny_model(), "-", b, "--format", "jsonl"), stdin=f)
    assert rc == 0, (rc, o, e)
    assert t.output_bytes(a)["part-00000.jsonl"] == t.output_bytes(b)["part-00000.jsonl"]


def test_limit(dir):
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 500)
    out = os.path.join(dir, "out")
    t.ebb_run(t.tiny_model(), inp, out, "--limit", "123")
    assert [r["id"] for r in t.rows(out)] == [f"r{i}" for i in range(123)]


def test_manifest(dir):
    inp, out = t.write_jsonl(os.path.join(dir, "in.jsonl"), 500), os.path.join(dir, "out")
    t.ebb_run(t.tiny_model(), inp, out)
    m = json.load(open(os.path.join(out, "manifest.json")))
    text = json.dumps(m)
    assert "500" in text and "ebb1" in text, m
    assert os.path.exists(os.path.join(out, "_SUCCESS"))


t.main(globals())
