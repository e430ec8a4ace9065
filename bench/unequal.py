#!/usr/bin/env python3
"""Four workers of speed 1 : 1 : 1 : 0.5: how near the job comes to the ideal, in which all end at once, and what an even split would take.

Real workers with a real model, throttled for real: each may use a share of one core (40 %, the slow one 20 %), by a control group's quota where one may be made, else by stopping it and letting
it go on 20 times a second. The ideal is what it would take if nobody had stood idle: from the job's middle on, the time in which a worker had nothing to do is counted, by its share of the whole speed, and taken off. Even split: a quarter of the
records at the slow one's speed, which is measured in the job itself, over its middle. EBB_BENCH_RECORDS and EBB_BENCH_SHARE (of a core; 0.1 lets the slow one do some ten records a second) change the size. The last line is
one JSON object."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "lib"))
import ebbtest as t

SPEEDS = (1, 1, 1, 0.5)
SHARE = float(os.environ.get("EBB_BENCH_SHARE", "0.4"))  # of a core, of the fast ones
RECORDS = int(os.environ.get("EBB_BENCH_RECORDS", "12000"))
GROUPS = "/sys/fs/cgroup/cpu"


class Quota:
    """A control group (version 1) with a share of one core."""

    def __init__(self, pid, share):
        self.path = f"{GROUPS}/ebb-unequal-{pid}"
        os.mkdir(self.path)
        for name, value in (("cpu.cfs_period_us", 50000), ("cpu.cfs_quota_us", int(50000 * share)), ("cgroup.procs", pid)):
            with open(f"{self.path}/{name}", "w") as f:
                f.write(str(value))

    def end(self):
        t.wait_for(lambda: self._gone(), 30)

    def _gone(self):
        try:
            os.rmdir(self.path)
            return True
        except OSError:
            return False


class Stops(threading.Thread):
    def __init__(self, pid, share):
        super().__init__(daemon=True)
        self.pid, self.share, self.over = pid, share, False
        self.start()

    def run(self):
        try:
            while not self.over:
                os.kill(self.pid, signal.SIGCONT)
                time.sleep(0.05 * self.share)
                os.kill(self.pid, signal.SIGSTOP)
                time.sleep(0.05 * (1 - self.share))
            os.kill(self.pid, signal.SIGCONT)
        except ProcessLookupError:
            pass

    def end(self):
        self.over = True
        self.join()


def throttle(pid, share):
    try:
        return Quota(pid, share), "quota"
    except OSError:
        return Stops(pid, share), "stops"


def texts(path):
    """The glosses, as often as it takes."""
    with open(t.GLOSSES) as f:
        lines = [json.loads(line)["text"] for line in f]
    with open(path, "w") as f:
        for i in range(RECORDS):
            f.write(json.dumps({"id": i, "text": lines[i % len(lines)]}) + "\n")
    return path


def workers_of(pool):
    return {w["name"]: w for w in (json.loads(line) for line in pool.ebb("workers", "--json")[1].splitlines())}


def main(dir):
    os.environ["EBB_TEST_DIR"] = dir
    inp, out = texts(os.path.join(dir, "in.jsonl")), os.path.join(dir, "out")
    os.makedirs(os.path.join(dir, "pool"))
    pool = t.Pool(os.path.join(dir, "pool"), workers=0)
    workers, throttles, how = [], [], ""
    try:
        for i, speed in enumerate(SPEEDS):
            p = subprocess.Popen([t.WORKER, "--connect", "ipc://" + os.path.join(pool.runtime, "workers"), "--lanes", "1", "--name", f"w{i}", "--blackbox", os.path.join(dir, f"w{i}.box")],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            workers.append(p)
            limit, how = throttle(p.pid, SHARE * speed)
            throttles.append(limit)
        t.wait_for(lambda: len(workers_of(pool)) == len(SPEEDS), 60)
        pool.ebb("submit", "--model", t.MINILM, "--input", inp, "--output", out, "--field", "text")
        began, samples, first_idle, lost, last = time.monotonic(), [], None, 0, 0
        while True:
            state = pool.job(1)
            now = time.monotonic() - began
            w = workers_of(pool)
            samples.append((now, state["records_done"]))
            idle = [i for i in range(len(SPEEDS)) if w[f"w{i}"]["state"] != "running"]
            if state["records_done"] > RECORDS // 2:
                lost += (now - last) * sum(SPEEDS[i] for i in idle) / sum(SPEEDS)
                if len(idle) == 0:
                    first_idle = None
                elif first_idle is None:
                    first_idle = now
            last = now
            if state["state"] in ("done", "held", "failed"):
                break
            time.sleep(0.1)
        assert state["state"] == "done", state
        total = time.monotonic() - began
    finally:
        for p in workers:
            p.send_signal(signal.SIGKILL)
        for x in throttles:
            x.end() if isinstance(x, Stops) else None
        for p in workers:
            p.wait()
        for x in throttles:
            x.end() if isinstance(x, Quota) else None
        pool.stop()
    a = next(s for s in samples if s[1] > RECORDS * 0.2)
    b = next(s for s in samples if s[1] > RECORDS * 0.8)
    rate = (b[1] - a[1]) / (b[0] - a[0])
    ideal = total - lost
    slow = rate * SPEEDS[-1] / sum(SPEEDS)
    even = RECORDS / len(SPEEDS) / slow
    print(f"throttled by {how}; {RECORDS} records in {total:.1f} s; ideal {ideal:.1f} s ({100 * (total / ideal - 1):.1f} % over); an even split {even:.1f} s "
          f"({even / total:.2f} x as long); at the end somebody had nothing to do for {total - (first_idle or total):.1f} s")
    print(json.dumps({"bench": "unequal", "throttle": how, "seconds": total, "ideal_s": ideal, "over_ideal": total / ideal - 1, "even_split_s": even,
                      "even_split_ratio": even / total, "tail_s": total - (first_idle or total)}))


with tempfile.TemporaryDirectory(prefix="ebb-unequal-") as d:
    main(d)
