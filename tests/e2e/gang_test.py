"""Pipelines over several workers, end to end: the bytes are those of one worker alone, whatever the number of stages, whoever dies, joins or is slow."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import json
import random
import signal
import subprocess
import time

import ebbtest as t
import net_test

LAYERS = 6
GATE_ID = 109 + 16 * 26 + 16  # of "qq" in the vocabulary of tests/lib/tinymodel.h


class Gang(t.Pool):
    """A pool whose workers the test starts, each with an environment of its own."""

    def __init__(self, dir, **env):
        self.started = {}
        super().__init__(dir, env=env, workers=0)

    def worker(self, **env):
        number, name = random.getrandbits(62) | 1, f"w{len(self.started) + 1}"
        with open(os.path.join(self.dir, name + ".log"), "wb") as log:
            p = subprocess.Popen([t.WORKER, "--connect", "ipc://" + os.path.join(self.runtime, "workers"), "--number", str(number), "--name", name, "--blackbox",
                                  os.path.join(self.dir, name + ".box"), "--lanes", "1", "--memory", "512MiB"], env={**self.env, **env}, stdin=subprocess.DEVNULL, stderr=log)
        p.number, p.name = f"{number:016x}", name
        self.started[p.number] = p
        return p

    def submit(self, model, inp, out, stages, more="tuning: { commit: 100ms, micro_batch: 8 }"):
        path = os.path.join(self.dir, f"{os.path.basename(out)}.yaml")
        with open(path, "w") as f:
            f.write(f"model: {model}\ninput: {{ glob: {inp}, field: text, id: id }}\noutput: {{ dir: {out}, format: jsonl }}\npipeline: {{ stages: {stages} }}\n{more}\n")
        return json.loads(self.ebb("submit", path, "--json")[1].splitlines()[0])["job"]


def alone(dir, model, inp):
    out = os.path.join(dir, "alone")
    t.ebb_run(model, inp, out, "--lanes", "1")
    return out


def test_the_bytes_of_one_worker(dir):
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 400)
    masks = t.write_jsonl(os.path.join(dir, "masks.jsonl"), 400, text=lambda i: f"the [MASK] of tide {i} is [MASK]" if i % 9 else "there is none")
    for name, model, i, stages in (("embed", t.tiny_model(layers=LAYERS), inp, 5), ("classify", t.tiny_kind("head=classify", "layers=3"), inp, 2),
                                   ("tokens", t.tiny_kind("head=token-classify", "layers=3"), inp, 2), ("masks", t.tiny_kind("head=fill-mask", "layers=3"), masks, 3)):
        one, many = os.path.join(dir, name + "1"), os.path.join(dir, name + "n")
        errors = 3 if i == masks else 0
        t.ebb_run(model, i, one, "--lanes", "1", want=errors)
        t.ebb_run(model, i, many, "--lanes", "1", "--stages", str(stages), want=errors)
        t.same_output(one, many)


def gang(pool, job, last=None):
    """The pipeline that runs the job, another division than `last`; waits for it."""
    def look():
        g = pool.job(job)["gangs"]
        return g[0] if g and g[0]["state"] == "running" and (g[0]["gang"], g[0]["cut"]) != last else None
    return t.wait_for(look, 60)


def test_members_are_killed(dir):
    model, inp, out = t.tiny_model(layers=LAYERS), t.write_jsonl(os.path.join(dir, "in.jsonl"), 1500), os.path.join(dir, "out")
    wanted = alone(dir, model, inp)
    pool = t.Pool(dir, env={"EBB_TEST_SLOW": "100"}, workers=4, lanes=1)
    try:
        job, last, said = Gang.submit(pool, model, inp, out, 3), None, []
        for head in (0, 1, 0):
            g = gang(pool, job, last)
            n = pool.job(job)["records_done"]
            t.wait_for(lambda: pool.job(job)["records_done"] > n, 60)  # some are on their way
            last, victim = (g["gang"], g["cut"]), next(m for m in g["members"] if bool(m["head"]) == bool(head))
            pid = next(w["pid"] for w in map(json.loads, pool.ebb("workers", "--json")[1].splitlines()) if w["worker"] == victim["worker"])
            os.kill(pid, signal.SIGKILL)
            began, n = time.monotonic(), pool.job(job)["records_done"]
            gang(pool, job, last)
            again = time.monotonic() - began
            t.wait_for(lambda: pool.job(job)["records_done"] > n, 60)
            said.append(f"{'head' if head else 'member'}: a new division runs after {again * 1e3:.0f} ms, its first records are done after {(time.monotonic() - began) * 1e3:.0f} ms")
        print("   ", "; ".join(said))
        pool.wait_state(job, "done", 120)
        t.same_output(wanted, out)
        assert not t.errors(out)
    finally:
        pool.stop()


def test_one_too_few_then_a_slow_one(dir):
    model, inp, out = t.tiny_model(layers=LAYERS), t.write_jsonl(os.path.join(dir, "in.jsonl"), 300), os.path.join(dir, "out")
    wanted = alone(dir, model, inp)
    pool = Gang(dir)
    try:
        fast = pool.worker(EBB_TEST_SLOW="20")
        job = pool.submit(model, inp, out, 2)
        t.wait_for(lambda: "needs 2 workers that reach each other, 1 is there" in pool.ebb("why", str(job))[1], 60)
        slow = pool.worker(EBB_TEST_SLOW="80")
        held = {m["worker"]: m["last"] + 1 - m["first"] for m in gang(pool, job)["members"]}
        assert held[fast.number] > held[slow.number] + 1, (held, fast.number, slow.number)  # four times as fast
        pool.wait_state(job, "done", 120)
        t.same_output(wanted, out)
    finally:
        pool.stop()


def test_a_record_that_crashes_a_stage(dir):
    """It is found, tried alone, and set aside; the others go on."""
    model, out = t.tiny_kind("layers=6", "vocab=1024"), os.path.join(dir, "out")
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 200, text=lambda i: "qq it is" if i == 77 else f"record {i}")
    pool = t.Pool(dir, env={"EBB_TEST_HOOK": "1", "EBB_TEST_STAGE": f"crash:{GATE_ID}"}, workers=2, lanes=1)
    try:
        job = Gang.submit(pool, model, inp, out, 2)
        pool.wait_state(job, "done", 120)
        assert [e["code"] for e in t.errors(out)] == ["crashed"], t.errors(out)
        rows = t.rows(out)
        assert [r["id"] for r in rows] == [f"r{i}" for i in range(200) if i != 77]
    finally:
        pool.stop()


def test_over_tcp_with_keys(dir):
    pool = net_test.NetPool(os.path.join(dir, "net"))
    model, inp, out = t.tiny_model(layers=LAYERS), t.write_jsonl(os.path.join(pool.dir, "in.jsonl"), 500), os.path.join(pool.dir, "out")
    wanted = alone(dir, model, inp)
    try:
        for i in range(3):
            pool.worker(pool.key("node", f"n{i}"))
        job = Gang.submit(pool, model, inp, out, 3)
        pool.wait_state(job, "done", 120)
        t.same_output(wanted, out)
        with open(pool.log, errors="replace") as f:
            assert "pipeline of 3 workers runs" in f.read()
    finally:
        pool.stop()


if __name__ == "__main__":
    t.main(globals())
