"""Frozen and forgotten: a worker that sleeps past its lease and wakes, a daemon that stops for a while, one that is restarted."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import json
import signal
import time

import ebbtest as t


def yaml(dir, inp, out, **tuning):
    path = os.path.join(dir, "job.yaml")
    with open(path, "w") as f:
        f.write(f"name: frozen\nmodel: {t.tiny_model()}\ninput: {{ glob: {inp}, field: text }}\noutput: {{ path: {out} }}\n"
                "tuning: { commit: 0.2s, lease: 1s }\n")
    return path


def baseline(dir, inp, *gates):
    out = os.path.join(dir, "base")
    for gate in gates:
        t.open_gate(gate)
    t.ebb_run(t.tiny_model(), inp, out, env={"EBB_TEST_HOOK": "1"})
    for gate in gates:
        os.unlink(gate)
    return out


def pool_with_job(dir, inp, out, config=""):
    path = os.path.join(dir, "ebbd.yaml")
    with open(path, "w") as f:
        f.write(config)
    pool = t.Pool(dir, "--config", path, env={"EBB_TEST_HOOK": "1"}, workers=2, lanes=1)
    try:
        return pool, int(json.loads(pool.ebb("submit", yaml(dir, inp, out), "--json")[1].splitlines()[0])["job"])
    except BaseException:
        pool.stop()
        raise


def worker_pids(pool):
    return sorted(p for p, n in t.processes(pool.runtime) if n == "ebb-worker")


def test_frozen_worker_wakes_after_its_lease(dir):
    out, gate = os.path.join(dir, "out"), os.path.join(dir, "gate")
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 4000, text=lambda i: t.gated(gate, i, 2000))
    base = baseline(dir, inp, gate)
    pool, job = pool_with_job(dir, inp, out, "worker_timeout: 2s\n")
    try:
        t.wait_for(lambda: pool.job(job)["records_done"] > 100, 30)
        victim = worker_pids(pool)[0]
        os.kill(victim, signal.SIGSTOP)
        t.wait_for(lambda: (victim, "lost") in [(w["pid"], w["state"]) for w in map(json.loads, pool.ebb("workers", "--json")[1].splitlines())], 60)
        try:
            os.kill(victim, signal.SIGCONT)
        except OSError:
            pass  # its provider was right to kill it
        t.open_gate(gate)
        pool.wait_state(job, "done", 120)
        t.same_output(base, out)
    finally:
        pool.stop()


def test_restarted_daemon_readopts_its_workers(dir):
    out, gates = os.path.join(dir, "out"), [os.path.join(dir, f"gate{k}") for k in range(3)]
    # a quarter passes; each next one waits for its gate, so that there is work after each restart, and none too much before
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 4000, text=lambda i: t.gated(gates[max(i // 1000, 1) - 1], i, 1000))
    base = baseline(dir, inp, *gates)
    pool, job = pool_with_job(dir, inp, out)
    try:
        t.wait_for(lambda: pool.job(job)["records_done"] > 200 and len(worker_pids(pool)) == 2, 30)
        for gate in gates:
            before = worker_pids(pool)
            done = pool.job(job)["records_done"]
            pool.kill()
            time.sleep(0.3)
            pool.start()
            t.open_gate(gate)
            t.wait_for(lambda: pool.job(job)["records_done"] > done + 50, 30)
            after = worker_pids(pool)
            assert before == after, f"the workers were not adopted: {before} {after}"
        j = pool.wait_state(job, "done", 120)
        assert j["redone"] == 0, f"committed work was done again: {j}"
        t.same_output(base, out)
    finally:
        pool.stop()


def test_daemon_and_workers_die_together(dir):
    """The plug is pulled, or the kernel ends them all: the next daemon starts other workers, whoever else is there to wake it."""
    out, gate = os.path.join(dir, "out"), os.path.join(dir, "gate")
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 2000, text=lambda i: t.gated(gate, i, 1000))
    base = baseline(dir, inp, gate)
    pool, job = pool_with_job(dir, inp, out)
    try:
        for _ in range(3):
            t.wait_for(lambda: pool.job(job)["records_done"] > 100 and worker_pids(pool), 30)
            pool.kill()
            t.kill_all(pool.runtime)
            t.wait_for(lambda: not worker_pids(pool), 30)
            pool.start()
            t.wait_for(lambda: worker_pids(pool), 60)
        t.open_gate(gate)
        pool.wait_state(job, "done")
        t.same_output(base, out)
    finally:
        pool.stop()


def test_stopped_daemon_expires_nobody(dir):
    """A daemon that was frozen for longer than every time-out must not blame its workers."""
    out, gate = os.path.join(dir, "out"), os.path.join(dir, "gate")
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 3000, text=lambda i: t.gated(gate, i, 2000))
    base = baseline(dir, inp, gate)
    pool, job = pool_with_job(dir, inp, out, "worker_timeout: 6s\n")
    try:
        t.wait_for(lambda: pool.job(job)["records_done"] > 100, 30)
        before = worker_pids(pool)
        pool.process.send_signal(signal.SIGSTOP)
        time.sleep(8)
        pool.process.send_signal(signal.SIGCONT)
        pool.job(job)  # it answers
        assert worker_pids(pool) == before
        t.open_gate(gate)
        j = pool.wait_state(job, "done", 120)
        assert j["redone"] == 0, j
        t.same_output(base, out)
    finally:
        pool.stop()


t.main(globals())
