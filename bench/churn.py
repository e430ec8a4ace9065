#!/usr/bin/env python3
"""Workers that are killed at random: how much of the worker-seconds that existed went into the result.

A real ebbd with six workers of one lane, each killed (-9) after a life drawn from an exponential distribution with a mean of 60 s, then 10 s, but never the last
one; the daemon starts others. Beside it the same job undisturbed, in the same run. Records sleep in the model's place, so that six workers fit on few cores and a busy machine
does not disturb the figure. Goodput = worker-seconds that the undisturbed job needed / worker-seconds that existed; `of_sleep` takes the bare sleeping for the first. The output must
be the same bytes.

The last line is one JSON object."""
import json
import os
import random
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "lib"))
import ebbtest as t

WORKERS = 6
SECONDS = float(os.environ.get("EBB_BENCH_SECONDS", "120"))  # of the undisturbed job
SLEEP_MS = 25


def live(pool):
    """Process numbers of the pool's workers that are not dead."""
    found = []
    for pid in os.listdir("/proc"):
        if not pid.isdigit():
            continue
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                words = f.read().split(b"\0")
            if words[0].endswith(b"ebb-worker") and any(pool.runtime.encode() in w for w in words):
                with open(f"/proc/{pid}/stat") as f:
                    if f.read().rsplit(")", 1)[1].split()[0] not in "ZX":
                        found.append(int(pid))
        except OSError:
            pass
    return found


def job(dir, inp, mean_s, seed):
    """Worker-seconds that existed, kills, seconds, digest of the output."""
    os.makedirs(dir)
    pool, r = t.Pool(dir, workers=WORKERS, lanes=1, env={"EBB_TEST_HOOK": "1"}), random.Random(seed)
    out = os.path.join(dir, "out")
    try:
        pool.ebb("submit", "--model", t.tiny_model(), "--input", inp, "--output", out, "--field", "text")
        ends, existed, kills, began, before = {}, 0.0, 0, time.monotonic(), time.monotonic()
        asked = before
        while True:
            now, pids = time.monotonic(), live(pool)
            existed += len(pids) * (now - before)
            before = now
            for pid in pids:
                ends.setdefault(pid, now + (r.expovariate(1 / mean_s) if mean_s else 1e9))
            for pid in [p for p in pids if ends[p] <= now][: max(0, len(pids) - 1)]:
                os.kill(pid, 9)
                kills += 1
            if now - asked > 0.5:
                asked = now
                state = pool.job(1)
                if state["state"] in ("done", "held", "failed"):
                    break
            time.sleep(0.02)
        assert state["state"] == "done", state
        assert state["errors"] == 0, state
        return existed, kills, time.monotonic() - began, t.output_bytes(out)
    finally:
        pool.stop()


with tempfile.TemporaryDirectory(prefix="ebb-churn-") as dir:
    os.environ["EBB_TEST_DIR"] = dir
    records = int(SECONDS * WORKERS * 1000 / SLEEP_MS)
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), records, text=lambda i: f"EBB_TEST_SLOW:{SLEEP_MS} record {i}")
    figures = {"bench": "churn", "workers": WORKERS, "records": records}
    calm, _, calm_s, output = job(os.path.join(dir, "calm"), inp, None, 0)
    print(f"undisturbed: {calm_s:.0f} s, {calm:.0f} worker-seconds", flush=True)
    figures["undisturbed_s"], figures["undisturbed_worker_s"] = calm_s, calm
    for mean in (60, 10):
        existed, kills, seconds, again = job(os.path.join(dir, f"mean{mean}"), inp, mean, mean)
        assert again == output, "the output differs"
        print(f"mean life {mean} s: {kills} killed, {seconds:.0f} s, {existed:.0f} worker-seconds: goodput {100 * calm / existed:.1f} %", flush=True)
        figures[f"mean_{mean}_s"] = {"goodput": calm / existed, "of_sleep": records * SLEEP_MS / 1000 / existed, "kills": kills, "seconds": seconds}
    print(json.dumps(figures))
