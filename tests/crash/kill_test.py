"""kill -9 of any program at any moment: the same command, typed again until it is done, gives the undisturbed bytes."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import random
import signal
import subprocess
import time

import ebbtest as t

KILLS = 1000 if t.SOAK else 25


def storm(dir, seed, kills, records, *more, inputs=None):
    """Runs a job under random kills of client, daemon and workers; returns when it is done."""
    r = random.Random(seed)
    inp = inputs or t.write_jsonl(os.path.join(dir, "in.jsonl"), records, text=lambda i: f"EBB_TEST_SLOW:1 record number {i}", seed=seed)
    base, out = os.path.join(dir, "base"), os.path.join(dir, f"out-{seed}")
    env = {"EBB_TEST_HOOK": "1"}
    if not os.path.exists(base):
        t.ebb_run(t.tiny_model(), inp, base, *more, env=env)
    args = t.run_args(t.tiny_model(), inp, out, "--commit", "0.1s", "--lease", "0.5s", "--workers", "2", "--lanes", "2", *more)
    killed = {"ebb": 0, "ebbd": 0, "ebb-worker": 0}
    p = None
    end = time.monotonic() + 600 * t.SLOW
    while True:
        if p is None or p.poll() is not None:
            if p is not None and p.returncode in (0, 3):
                break
            if p is not None and p.returncode not in (-9, 1, 130):
                raise AssertionError(f"ended with {p.returncode}: {p.communicate()}\n{t.state_log(out)}")
            p = subprocess.Popen(args, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if time.monotonic() > end:
            p.kill()
            raise AssertionError(f"not done after {end} s, {killed}\n{t.state_log(out)}")
        time.sleep(r.uniform(0.05, 0.6))
        if sum(killed.values()) < kills:
            victims = [v for v in t.processes(out) + ([(p.pid, "ebb")] if p.poll() is None else [])]
            kinds = sorted({n for _, n in victims})
            if kinds:
                kind = r.choice(kinds)
                pid = r.choice([q for q, n in victims if n == kind])
                try:
                    os.kill(pid, signal.SIGKILL)
                    killed[kind] += 1
                except OSError:
                    pass
    t.same_output(base, out)
    t.wait_for(lambda: not t.processes(out), 15)
    return killed


def test_random_kills(dir):
    total, seed = {}, 1
    while sum(total.values()) < KILLS:
        killed = storm(dir, seed, 25, 4000)
        for k, n in killed.items():
            total[k] = total.get(k, 0) + n
        seed += 1
        if not any(killed.values()):
            raise AssertionError("nothing was killed: the job is too short for this test")
    print(f"killed: {total}")


def test_random_kills_of_compressed_and_csv(dir):
    import gzip
    import json

    a, b = os.path.join(dir, "a.jsonl.gz"), os.path.join(dir, "b.jsonl.gz")
    for path in (a, b):
        with gzip.open(path, "wt", compresslevel=1) as f:
            for i in range(1500):
                f.write(json.dumps({"id": f"{path[-10]}{i}", "text": f"EBB_TEST_SLOW:1 record {i}"}) + "\n")
    killed = storm(dir, 77, 12, 0, inputs=[a, b])
    print(f"killed: {killed}")


def test_everything_at_once(dir):
    """All processes of the job die at the same moment, several times, as when the plug is pulled."""
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 3000, text=lambda i: f"EBB_TEST_SLOW:1 record number {i}")
    base, out = os.path.join(dir, "base"), os.path.join(dir, "out")
    env = {"EBB_TEST_HOOK": "1"}
    t.ebb_run(t.tiny_model(), inp, base, env=env)
    args = t.run_args(t.tiny_model(), inp, out, "--commit", "0.1s", "--lease", "0.5s")
    for i in range(4):
        p = subprocess.Popen(args, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(0.8 + 0.3 * i)
        p.kill()
        t.kill_all(out)
        p.wait()
    t.ebb_run(t.tiny_model(), inp, out, "--commit", "0.1s", "--lease", "0.5s", env=env)
    t.same_output(base, out)


t.main(globals())
