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


def slow_input(dir, records, ms):
    return t.write_jsonl(os.path.join(dir, "in.jsonl"), records, text=lambda i: f"EBB_TEST_SLOW:{ms} record number {i}")


def baseline(dir, inp):
    out = os.path.join(dir, "base")
    t.ebb_run(t.tiny_model(), inp, out, env={"EBB_TEST_HOOK": "1"})
    return out


def test_frozen_worker_wakes_after_its_lease(dir):
    inp = slow_input(dir, 4000, 2)
    base, out = baseline(dir, inp), os.path.join(dir, "out")
    config = os.path.join(dir, "ebbd.yaml")
    with open(config, "w") as f:
        f.write("worker_timeout: 2s\n")
    pool = t.Pool(dir, "--config", config, env={"EBB_TEST_HOOK": "1"}, workers=2, lanes=1)
    try:
        job = int(json.loads(pool.ebb("submit", yaml(dir, inp, out), "--json")[1].splitlines()[0])["job"])
        t.wait_for(lambda: pool.job(job)["records_done"] > 100, 30)
        victim = [p for p, n in t.processes(pool.runtime) if n == "ebb-worker"][0]
        os.kill(victim, signal.SIGSTOP)
        time.sleep(5)
        try:
            os.kill(victim, signal.SIGCONT)
        except OSError:
            pass  # its provider was right to kill it
        pool.wait_state(job, "done", 120)
        t.same_output(base, out)
    finally:
        pool.stop()


def test_restarted_daemon_readopts_its_workers(dir):
    inp = slow_input(dir, 4000, 2)
    base, out = baseline(dir, inp), os.path.join(dir, "out")
    pool = t.Pool(dir, env={"EBB_TEST_HOOK": "1"}, workers=2, lanes=1)
    try:
        job = int(json.loads(pool.ebb("submit", yaml(dir, inp, out), "--json")[1].splitlines()[0])["job"])
        t.wait_for(lambda: pool.job(job)["records_done"] > 200, 30)
        for _ in range(3):
            before = sorted(p for p, n in t.processes(pool.runtime) if n == "ebb-worker")
            done = pool.job(job)["records_done"]
            pool.kill()
            time.sleep(0.3)
            pool.start()
            t.wait_for(lambda: pool.job(job)["records_done"] > done + 50, 30)
            after = sorted(p for p, n in t.processes(pool.runtime) if n == "ebb-worker")
            assert before == after, f"the workers were not adopted: {before} {after}"
        j = pool.wait_state(job, "done", 120)
        assert j["redone"] == 0, f"committed work was done again: {j}"
        t.same_output(base, out)
    finally:
        pool.stop()


def test_stopped_daemon_expires_nobody(dir):
    """A daemon that was frozen for longer than every time-out must not blame its workers."""
    inp = slow_input(dir, 3000, 2)
    base, out = baseline(dir, inp), os.path.join(dir, "out")
    config = os.path.join(dir, "ebbd.yaml")
    with open(config, "w") as f:
        f.write("worker_timeout: 2s\n")
    pool = t.Pool(dir, "--config", config, env={"EBB_TEST_HOOK": "1"}, workers=2, lanes=1)
    try:
        job = int(json.loads(pool.ebb("submit", yaml(dir, inp, out), "--json")[1].splitlines()[0])["job"])
        t.wait_for(lambda: pool.job(job)["records_done"] > 100, 30)
        before = sorted(p for p, n in t.processes(pool.runtime) if n == "ebb-worker")
        pool.process.send_signal(signal.SIGSTOP)
        time.sleep(5)
        pool.process.send_signal(signal.SIGCONT)
        j = pool.wait_state(job, "done", 120)
        assert j["redone"] == 0, j
        t.same_output(base, out)
    finally:
        pool.stop()


t.main(globals())
