#!/usr/bin/env python3
"""Pipelines over several workers: how near to what the formulas promise.

Real ebbd, real workers, a random model of 24 like layers. EBB_TEST_SLOW makes each worker so many times slower than a core of this machine is, by sleeping, so that many of them, of
unlike speeds, can be measured on few cores (their real work together must be less than what the machine has). Micro-batches are all of the nominal size, 8 texts of 128 tokens.

  equal      M micro-batches over S like stages: M x t / (S x time), t what one takes on one worker; M / (M + S - 1) is what fill and drain leave
  unlike     micro-batches a second over workers of unlike speeds, against the slowest stage's own rate, which is what the plan promises
  groups     records a second of 1, 2 and 4 pipelines of two
  again      a member is killed: time until the next division runs, and until its first record is committed
  slowed     a member is stopped for two of three tenths of a second (two workers, one lane each, at their own speed): records a second before, until the next division, and behind it

Times are those of the daemon's log: from the pipeline's start to the last commit. The last line is one JSON object."""
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(TOP, "tests", "lib"), os.path.join(TOP, "tests", "e2e")]
import ebbtest as t
import gang_test

LAYERS, HIDDEN, BATCH, TOKENS = 24, 16, 8, 128
SLOW = float(os.environ.get("EBB_BENCH_SLOW", "64"))
LONG = int(os.environ.get("EBB_BENCH_BATCHES", "64"))


def model():
    return t.make_model(f"bench-pipeline-{HIDDEN}", f"hidden={HIDDEN}", f"layers={LAYERS}", f"positions={TOKENS}", f"tokens={TOKENS}")


def records(dir, batches):
    path = os.path.join(dir, f"in{batches}.jsonl")
    text = " ".join(["a"] * (TOKENS - 2))
    return t.write_jsonl(path, batches * BATCH, text=lambda i: text)


class Bench(gang_test.Gang):
    def when(self, words, n=0):
        """Seconds since 1970 at which the daemon said this for the nth time."""
        with open(self.log, errors="replace") as f:
            found = [line for line in f if re.search(words, line)]
        day, clock = found[n].split()[:2]
        return time.mktime(time.strptime(f"{day} {clock[:8]}", "%Y-%m-%d %H:%M:%S")) + float(clock[8:])


def run(factors, batches, stages):
    """One job over workers so slow: (seconds, a gang as the daemon saw it)."""
    dir = tempfile.mkdtemp(prefix="ebb-bench-")
    os.environ["EBB_TEST_DIR"] = dir
    pool = Bench(dir)
    try:
        inp, out = records(dir, batches), os.path.join(dir, "out")
        for f in factors:
            pool.worker(EBB_TEST_SLOW=str(f))
        t.wait_for(lambda: len(pool.ebb("workers", "--json")[1].splitlines()) == len(factors), 60)
        job = pool.submit(model(), inp, out, stages, f"tuning: {{ commit: 200ms, micro_batch: {BATCH}, micro_batch_tokens: {BATCH * TOKENS} }}")
        seen = t.wait_for(lambda: stages == 1 or [g for g in pool.job(job)["gangs"] if g["state"] == "running"], 120)
        pool.wait_state(job, "done", 600)
        begin = pool.when("pipeline of .* runs") if stages > 1 else pool.when(r"model .* ready")
        groups = len(factors) // stages if stages > 1 else 0
        if groups > 1:
            begin = pool.when("pipeline of .* runs", groups - 1)
        return pool.when("records are done") - begin, seen[0] if stages > 1 else None
    finally:
        pool.stop()
        t.kill_all(dir)
        shutil.rmtree(dir, ignore_errors=True)


def alone_ms(factor, batches=24):
    """What one micro-batch takes on one worker, all layers: the difference of two runs, so that begin and end do not count."""
    few, many = run([factor], batches // 4, 1)[0], run([factor], batches, 1)[0]
    return (many - few) / (batches - batches // 4) * 1e3


def equal(result):
    each = alone_ms(SLOW)
    print(f"one worker: {each:.1f} ms a micro-batch", flush=True)
    result["alone_ms"] = round(each, 2)
    for stages, batches in ((2, 32), (4, 32), (4, LONG), (8, LONG)):
        seconds, _ = run([SLOW] * stages, batches, stages)
        got, ideal = batches * each / (stages * seconds * 1e3), batches / (batches + stages - 1)
        print(f"{stages} stages, {batches} micro-batches: {seconds:.2f} s, {100 * got:.1f} % of {stages} workers; M/(M+S-1) is {100 * ideal:.1f} %: {100 * got / ideal:.1f} % of it", flush=True)
        result[f"equal_{stages}x{batches}"] = round(got / ideal, 4)


def unlike(result):
    for factors in ([SLOW, 1.5 * SLOW, 2 * SLOW, 4 * SLOW], [SLOW, SLOW, 3 * SLOW]):
        s, m = len(factors), LONG
        few, many = run(factors, m // 4, s)[0], run(factors, m, s)
        interval = (many[0] - few) / (m - m // 4) * 1e3  # begin, fill and drain are in both
        predicted = many[1]["bottleneck_ms"]
        print(f"unlike {[round(f / SLOW, 2) for f in factors]}: {[x['last'] + 1 - x['first'] for x in many[1]['members']]} segments; a micro-batch every {interval:.1f} ms, planned {predicted:.1f}: "
              f"{100 * predicted / interval:.1f} % of the bottleneck's rate", flush=True)
        result[f"unlike_{s}_of_bottleneck"] = round(predicted / interval, 4)
        result[f"unlike_{s}_prediction_error"] = round(abs(interval - predicted) / predicted, 4)


def groups(result):
    base = None
    for n in (1, 2, 4):
        seconds, _ = run([SLOW] * (2 * n), 24 * n, 2)
        rate = 24 * n * BATCH / seconds
        base = base or rate
        print(f"{n} pipelines of 2: {rate:.1f} records a second, {rate / base:.2f} x", flush=True)
        result[f"groups_{n}"] = round(rate / base, 3)


def again(result):
    dir = tempfile.mkdtemp(prefix="ebb-bench-")
    os.environ["EBB_TEST_DIR"] = dir
    pool = t.Pool(dir, env={"EBB_TEST_SLOW": str(SLOW)}, workers=4, lanes=1)
    try:
        job = gang_test.Gang.submit(pool, model(), records(dir, 400), os.path.join(dir, "out"), 4, f"tuning: {{ commit: 200ms, micro_batch: {BATCH} }}")
        g = gang_test.gang(pool, job)
        t.wait_for(lambda: pool.job(job)["records_done"] > 40, 120)
        victim = next(m for m in g["members"] if not m["head"])
        pid = next(w["pid"] for w in map(json.loads, pool.ebb("workers", "--json")[1].splitlines()) if w["worker"] == victim["worker"])
        n = pool.job(job)["records_done"]
        os.kill(pid, 9)
        began = time.monotonic()
        gang_test.gang(pool, job, (g["gang"], g["cut"]))
        runs = time.monotonic() - began
        t.wait_for(lambda: pool.job(job)["records_done"] > n + BATCH, 120)
        print(f"a member is killed: the next division runs after {runs * 1e3:.0f} ms, records are committed again after {(time.monotonic() - began) * 1e3:.0f} ms", flush=True)
        result["again_ms"], result["again_commit_ms"] = round(runs * 1e3), round((time.monotonic() - began) * 1e3)
    finally:
        pool.stop()
        t.kill_all(dir)
        shutil.rmtree(dir, ignore_errors=True)


def slowed(result):
    dir = tempfile.mkdtemp(prefix="ebb-bench-")
    os.environ["EBB_TEST_DIR"] = dir
    pool = t.Pool(dir, env={}, workers=2, lanes=1)
    over = threading.Event()
    try:
        heavy = t.make_model("bench-pipeline-heavy", "hidden=384", "layers=12", f"positions={TOKENS}", f"tokens={TOKENS}")
        job = gang_test.Gang.submit(pool, heavy, records(dir, 4000), os.path.join(dir, "out"), 2, f"tuning: {{ commit: 500ms, micro_batch: {BATCH} }}")
        g = gang_test.gang(pool, job)
        victim = next(m for m in g["members"] if not m["head"])
        pid = next(w["pid"] for w in map(json.loads, pool.ebb("workers", "--json")[1].splitlines()) if w["worker"] == victim["worker"])

        def hold_back():
            while not over.is_set():
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.2)
                os.kill(pid, signal.SIGCONT)
                time.sleep(0.1)

        def rate(seconds, until=lambda: False):
            began, n = time.monotonic(), pool.job(job)["records_done"]
            while time.monotonic() - began < seconds and not until():
                time.sleep(0.5)
            return (pool.job(job)["records_done"] - n) / (time.monotonic() - began)

        t.wait_for(lambda: pool.job(job)["records_done"] > 5 * BATCH, 120)
        before = rate(15)
        began, thread = time.monotonic(), threading.Thread(target=hold_back)
        thread.start()
        during = rate(90, lambda: any(x["cut"] > g["cut"] for x in pool.job(job)["gangs"]))
        seconds = time.monotonic() - began
        gang_test.gang(pool, job, (g["gang"], g["cut"]))
        after = rate(20)
        over.set()
        thread.join()
        print(f"a member is held back to a third: {before:.1f} records a second before, {during:.1f} until the next division {seconds:.0f} s later, {after:.1f} behind it", flush=True)
        result["slowed_before"], result["slowed_during"], result["slowed_after"], result["slowed_s"] = round(before, 1), round(during, 1), round(after, 1), round(seconds)
    finally:
        over.set()
        pool.stop()
        t.kill_all(dir)
        shutil.rmtree(dir, ignore_errors=True)


def main():
    result, parts = {"slow": SLOW, "batches": LONG}, {"equal": equal, "unlike": unlike, "groups": groups, "again": again, "slowed": slowed}
    for name in sys.argv[1:] or parts:
        parts[name](result)
    print(json.dumps({"bench": "pipeline", **result}))


if __name__ == "__main__":
    main()
