"""A pool: ebbd as a service runs it, several jobs, and every verb a person may use."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import json
import shutil
import signal
import time

import ebbtest as t


def spec(dir, name, inp, out, more=""):
    path = os.path.join(dir, name + ".yaml")
    with open(path, "w") as f:
        f.write(f"name: {name}\nmodel: {t.tiny_model()}\ninput: {{ glob: {inp}, field: text, id: id }}\noutput: {{ dir: {out}, format: jsonl }}\n{more}")
    return path


def submit(pool, path):
    return json.loads(pool.ebb("submit", path, "--json")[1].splitlines()[0])["job"]


def workers(pool):
    return [json.loads(line) for line in pool.ebb("workers", "--json")[1].splitlines()]


def slow(dir, name, count, ms=2):
    return t.write_jsonl(os.path.join(dir, name), count, text=lambda i: f"EBB_TEST_SLOW:{ms} record {i}")


def with_pool(f):
    def run(dir):
        pool = t.Pool(dir, env={"EBB_TEST_HOOK": "1"}, workers=2, lanes=1)
        try:
            f(dir, pool)
        finally:
            pool.stop()

    run.__name__ = f.__name__
    return run


def test_two_jobs_and_the_list(dir):
    @with_pool
    def body(dir, pool):
        a, b = slow(dir, "a.jsonl", 1500), slow(dir, "b.jsonl", 1500)
        one = submit(pool, spec(dir, "one", a, os.path.join(dir, "oa")))
        two = submit(pool, spec(dir, "two", b, os.path.join(dir, "ob")))
        assert (one, two) == (1, 2)
        listed = [json.loads(line) for line in pool.ebb("jobs", "--json")[1].splitlines()]
        assert {j["name"] for j in listed} >= {"one", "two"}, listed
        assert "one" in pool.ebb("jobs")[1]
        t.wait_for(lambda: pool.ebb("workers", "--json")[1].strip(), 10)
        pool.wait_state(one, "done")
        pool.wait_state(two, "done")
        for out in ("oa", "ob"):
            assert len(t.rows(os.path.join(dir, out))) == 1500

    body(dir)


def test_pause_resume_cancel_rm(dir):
    @with_pool
    def body(dir, pool):
        out, gate = os.path.join(dir, "out"), os.path.join(dir, "gate")
        inp = t.write_jsonl(os.path.join(dir, "a.jsonl"), 3000, text=lambda i: t.gated(gate, i, 2000))
        job = submit(pool, spec(dir, "p", inp, out))
        t.wait_for(lambda: pool.job(job)["records_done"] > 50, 30)
        pool.ebb("pause", str(job))
        pool.wait_state(job, "paused")
        t.open_gate(gate)
        t.wait_for(lambda: all(w["job"] != job for w in workers(pool)), 30)
        done = pool.job(job)["records_done"]
        time.sleep(1)
        assert pool.job(job)["records_done"] == done < 3000
        assert "paused" in pool.ebb("why", str(job))[1]
        pool.ebb("resume", str(job))
        pool.wait_state(job, "done")
        assert len(t.rows(out)) == 3000
        os.unlink(gate)
        second = submit(pool, spec(dir, "c", inp, os.path.join(dir, "out2")))
        t.wait_for(lambda: pool.job(second)["records_done"] > 50, 30)
        pool.ebb("cancel", str(second))
        t.open_gate(gate)
        pool.wait_state(second, "canceled")
        pool.ebb("rm", str(second))
        assert pool.ebb("status", str(second), want=None)[0] == 2
        assert pool.ebb("status", "99", want=None)[0] == 2

    body(dir)


def test_priority_goes_first(dir):
    @with_pool
    def body(dir, pool):
        """As soon as their leases are done all workers are the important job's, though the other has much to do and by far the larger share."""
        gate = os.path.join(dir, "gate")
        low = submit(pool, spec(dir, "low", slow(dir, "a.jsonl", 20000, 1), os.path.join(dir, "oa"), "weight: 1000\ntuning: { lease: 0.5s }\n"))
        t.wait_for(lambda: pool.job(low)["records_done"] > 20, 30)
        inp = t.write_jsonl(os.path.join(dir, "b.jsonl"), 5000, text=lambda i: t.gated(gate, i, 0))
        high = submit(pool, spec(dir, "high", inp, os.path.join(dir, "ob"), "priority: 5\ntuning: { lease: 0.5s }\n"))
        t.wait_for(lambda: [w["job"] for w in workers(pool)] == [high, high], 60)
        assert pool.job(low)["state"] == "running", pool.job(low)
        t.open_gate(gate)
        pool.wait_state(high, "done")
        pool.ebb("cancel", str(low))

    body(dir)


def test_resubmission_attaches(dir):
    @with_pool
    def body(dir, pool):
        path = spec(dir, "s", slow(dir, "a.jsonl", 1000), os.path.join(dir, "out"))
        assert submit(pool, path) == submit(pool, path)
        pool.wait_state(1, "done")
        assert submit(pool, path) == 1

    body(dir)


def test_drain_on_sigterm_and_resume(dir):
    @with_pool
    def body(dir, pool):
        inp, out = slow(dir, "a.jsonl", 3000), os.path.join(dir, "out")
        job = submit(pool, spec(dir, "d", inp, out))
        t.wait_for(lambda: pool.job(job)["records_done"] > 50, 30)
        pool.process.send_signal(signal.SIGTERM)
        assert pool.process.wait(t.PATIENCE) == 0
        assert not [n for _, n in t.processes(pool.runtime) if n == "ebb-worker"]
        pool.start()
        j = pool.wait_state(job, "done")
        assert j["redone"] == 0 and len(t.rows(out)) == 3000

    body(dir)


def test_second_daemon_is_refused(dir):
    @with_pool
    def body(dir, pool):
        rc, o, e = t.run([t.EBBD, "--state", pool.state, "--runtime", pool.runtime + "-2"])
        assert rc == 3 and str(pool.process.pid) in e, (rc, o, e)

    body(dir)


def test_bad_config(dir):
    path = os.path.join(dir, "ebbd.yaml")
    with open(path, "w") as f:
        f.write("state_dir: /nowhere\nworker_timeuot: 3s\n")
    rc, o, e = t.run([t.EBBD, "--config", path])
    assert rc == 2 and "ebbd.yaml:2" in e and "worker_timeout" in e, (rc, o, e)


def test_full_disk_passes_by_itself(dir):
    """A write that finds no space holds the job; nobody has to be there for it to go on. `ebb run` waits for it too."""
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 500)
    base, out, alone = (os.path.join(dir, n) for n in ("base", "out", "alone"))
    t.ebb_run(t.tiny_model(), inp, base)
    full = {"EBB_FAULT": "assemble.copy:1:ENOSPC"}
    pool = t.Pool(dir, env=full)
    try:
        job = submit(pool, spec(dir, "f", inp, out))
        pool.wait_state(job, "done")
        assert "No space left" in "".join(e for e in open(pool.log)), "the fault was not reached"
    finally:
        pool.stop()
    t.same_output(base, out)
    t.ebb_run(t.tiny_model(), inp, alone, env=full)
    t.same_output(base, alone)


def test_a_model_that_cannot_be_loaded_is_refused_at_once(dir):
    @with_pool
    def body(dir, pool):
        model = os.path.join(dir, "model")
        shutil.copytree(t.tiny_model(), model)
        with open(os.path.join(model, "model.safetensors"), "r+b") as f:
            f.truncate(1000)
        path = spec(dir, "broken", t.write_jsonl(os.path.join(dir, "a.jsonl"), 10), os.path.join(dir, "out"))
        text = open(path).read().replace(t.tiny_model(), model)
        open(path, "w").write(text)
        rc, o, e = pool.ebb("submit", path, want=2)
        assert "model.safetensors" in e, e

    body(dir)


def test_errors_and_results(dir):
    @with_pool
    def body(dir, pool):
        inp, gate, out = (os.path.join(dir, n) for n in ("in.jsonl", "gate", "out"))
        with open(inp, "w") as f:
            for i in range(300):
                f.write(json.dumps({"id": i, "text": t.gated(gate, i, 0 if i == 1 else 300)}) + "\n" if i % 10 else "bad\n")
        job = submit(pool, spec(dir, "e", inp, out, "tuning: { commit: 0.1s, micro_batch: 1 }\n"))
        t.wait_for(lambda: "in.jsonl: line not known yet: invalid_json" in pool.ebb("errors", str(job))[1], 60)  # those before it are still to be read
        t.open_gate(gate)
        pool.wait_state(job, "done")
        assert ":11: invalid_json" in pool.ebb("errors", str(job))[1]
        assert len(pool.ebb("errors", str(job), "--limit", "100")[1].splitlines()) == 30
        listed = [json.loads(line) for line in pool.ebb("errors", str(job), "--json", "--limit", "5")[1].splitlines()]
        assert [e["line"] for e in listed[:5]] == [1, 11, 21, 31, 41], listed
        assert "part-00000.jsonl" in pool.ebb("results", str(job))[1]
        assert len(pool.ebb("results", str(job), "--cat")[1].splitlines()) == 270
        part = os.path.join(out, "part-00000.jsonl")
        with open(part, "r+b") as f:
            f.truncate(os.path.getsize(part) // 2)
        assert "rows of 270: files of the results of job 1 were moved" in pool.ebb("results", str(job), "--cat", want=1)[2]
        os.rename(out, out + ".away")  # people move files
        assert "any more: they were moved or removed" in pool.ebb("results", str(job), want=1)[2]
        assert "has 30 records in error, but its list is not in" in pool.ebb("errors", str(job), want=1)[2]

    body(dir)


t.main(globals())
