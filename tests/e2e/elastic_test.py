"""As many workers as the work is worth: they come, they go, they are replaced; and a deadline that is missed is said."""
import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import json

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


def gated(dir, name, count, first=0):
    gate = os.path.join(dir, name + ".gate")
    return gate, t.write_jsonl(os.path.join(dir, name + ".jsonl"), count, text=lambda i: t.gated(gate, i, first))


def pool_of(dir, count, idle):
    config = os.path.join(dir, "ebbd.yaml")
    with open(config, "w") as f:
        f.write(f"idle: {idle}\nhttp: off\n")
    return t.Pool(dir, "--config", config, env={"EBB_TEST_HOOK": "1"}, workers=count, lanes=1)


def test_workers_come_with_work_and_go_without(dir):
    pool = pool_of(dir, 3, "1s")
    try:
        assert workers(pool) == []
        gate, inp = gated(dir, "a", 12000)
        job = submit(pool, spec(dir, "a", inp, os.path.join(dir, "out")))
        t.wait_for(lambda: len([w for w in workers(pool) if w["state"] in ("running", "idle")]) == 3, 60)
        assert {w["provider"] for w in workers(pool)} == {"local"}
        assert pool.job(job)["workers_wanted"] == 3, pool.job(job)
        victim = workers(pool)[0]
        os.kill(victim["pid"], signal.SIGKILL)
        t.wait_for(lambda: len([w for w in workers(pool) if w["state"] in ("running", "idle") and w["pid"] != victim["pid"]]) == 3, 60)
        t.open_gate(gate)
        assert pool.wait_state(job, "done")["errors"] == 0
        t.wait_for(lambda: workers(pool) == [], 60)
        assert len(t.rows(os.path.join(dir, "out"))) == 12000
    finally:
        pool.stop()


def test_no_more_workers_than_a_job_may_have(dir):
    pool = pool_of(dir, 3, "1s")
    try:
        gate, inp = gated(dir, "a", 12000)
        job = submit(pool, spec(dir, "a", inp, os.path.join(dir, "out"), "workers: { max: 1 }\n"))
        t.wait_for(lambda: [w["job"] for w in workers(pool)] == [job], 60)
        assert pool.job(job)["workers_wanted"] == 1
        gate2, inp2 = gated(dir, "b", 12000)
        second = submit(pool, spec(dir, "b", inp2, os.path.join(dir, "out2"), "workers: { max: 2, preemptible: 50% }\n"))
        t.wait_for(lambda: sorted(w["job"] for w in workers(pool)) == [job, second, second], 60)
        pool.ebb("cancel", str(second))
        t.open_gate(gate2)
        t.wait_for(lambda: [w["job"] for w in workers(pool)] == [job], 60) # its two have nothing to do, and go
        t.open_gate(gate)
        pool.wait_state(job, "done")
    finally:
        pool.stop()


def test_a_deadline_that_has_passed_is_said(dir):
    pool = pool_of(dir, 1, "30s")
    try:
        rc, _, e = pool.ebb("submit", spec(dir, "x", os.path.join(dir, "none"), os.path.join(dir, "x"), "deadline: soon\n"), want=2)
        assert "x.yaml:5: 'deadline' wants a time such as 07:00" in e, e
        gate, inp = gated(dir, "a", 3000)
        job = submit(pool, spec(dir, "a", inp, os.path.join(dir, "out"), "deadline: +1s\n"))
        late = t.wait_for(lambda: pool.job(job)["late"], 60)
        assert "its deadline passed" in late, late
        assert pool.job(job)["deadline_ms"] > 1e12
        assert pool.job(job)["state"] == "running"
        assert "its deadline passed" in pool.ebb("why", str(job))[1]
        text = pool.ebb("status", str(job))[1]
        assert "wanted  by " in text and text.count("its deadline passed") >= 2, text # as it stands, and as a line of history
        pool.kill() # it is not forgotten
        pool.start()
        t.wait_for(lambda: "its deadline passed" in pool.job(job)["late"], 60)
        t.open_gate(gate)
        assert pool.wait_state(job, "done")["late"] == ""
    finally:
        pool.stop()


if __name__ == "__main__":
    t.main(globals())
