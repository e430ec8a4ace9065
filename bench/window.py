#!/usr/bin/env python3
"""A model larger than memory, by a window of its layers, against the same with all of it in memory.

     bench/window.py [--layers 24] [--hidden 512] [--records 600] [--rounds 3] [--memory 100MiB,140MiB,200MiB]

A random encoder; texts of 3 to 40 words. One pool each: one worker of two lanes that is warm, with its pages in the page cache. Jobs alternate. Throughput is compared by the clock, and by the worker's processor time,
which others on the machine disturb less; peaks are what the kernel has seen of the worker. Predicted: the peak is at most what is there without weights, and the window; a sweep's pages cost about a quarter of a
microsecond each to map and to let go, which is a thousandth of computing with a batch's tokens, so the throughput is that of full memory. The last line is one JSON object."""
import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "..", "tests", "lib"))
os.chdir(os.path.join(here, ".."))
import ebbtest as t

HELD = re.compile(r"is larger than its memory: (\d+) of (\d+) layers are held at once, (\d+) MiB; batches of (\d+) tokens")


class Bench:
    def __init__(self, top, name, model, *more):
        self.dir = os.path.join(top, name)
        os.mkdir(self.dir)
        self.model, self.jobs = model, 0
        self.pool = t.Pool(self.dir, workers=0)
        with open(os.path.join(self.dir, "worker.log"), "wb") as log:  # one of its own, that stays when there is nothing to do
            self.worker = subprocess.Popen([t.WORKER, "--connect", "ipc://" + os.path.join(self.pool.runtime, "workers"), "--blackbox", os.path.join(self.dir, "box"), "--lanes", "2", *more],
                                           env={**os.environ, "EBB_PACK_CACHE": os.path.join(top, "packs")}, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def stop(self):
        self.worker.terminate()
        self.worker.wait()
        self.pool.stop()

    def status(self, word):
        with open(f"/proc/{self.worker.pid}/status") as f:
            return next(int(line.split()[1]) / 1024 for line in f if line.startswith(word + ":"))

    def cpu_s(self):
        with open(f"/proc/{self.worker.pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def run(self, inp):
        out, spec = os.path.join(self.dir, f"out{self.jobs}.jsonl"), os.path.join(self.dir, f"job{self.jobs}.yaml")
        with open(spec, "w") as f:
            f.write(f"model: {self.model}\ninput: [{inp}]\noutput: {out}\n")
        cpu, begun = self.cpu_s(), time.monotonic()
        self.jobs += 1
        job = json.loads(self.pool.ebb("submit", spec, "--json")[1].splitlines()[0])["job"]
        self.pool.wait_state(job, "done", 1800)
        return out, time.monotonic() - begun, self.cpu_s() - cpu

    def held(self):
        with open(os.path.join(self.dir, "worker.log"), errors="replace") as f:
            text = f.read()
        m = HELD.search(text)
        return [int(x) for x in m.groups()] if m else None


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--layers", type=int, default=24)
    a.add_argument("--hidden", type=int, default=512)
    a.add_argument("--records", type=int, default=600)
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--memory", default="100MiB,140MiB,200MiB")
    a = a.parse_args()
    model = t.tiny_kind(f"layers={a.layers}", f"hidden={a.hidden}", "heads=8", "vocab=20000", "positions=256", "tokens=256")
    weights = json.loads(t.run([t.EBB, "model", "inspect", "--json", model])[1])["weight_bytes"] / 2**20
    top = tempfile.mkdtemp(prefix="ebb-bench-window-")
    pools = {}
    try:
        inp = t.write_jsonl(os.path.join(top, "in.jsonl"), a.records, words=40)
        warm = t.write_jsonl(os.path.join(top, "warm.jsonl"), 30, seed=2)
        pools = {"all": Bench(top, "all", model), **{m: Bench(top, m, model, "--memory", m) for m in a.memory.split(",")}}
        times = {name: [] for name in pools}
        want = None
        for p in pools.values():
            p.run(warm)
        for _ in range(a.rounds):
            for name, p in pools.items():
                out, wall, cpu = p.run(inp)
                times[name].append((wall, cpu))
                want = want or t.digest(out)
                assert t.digest(out) == want, "other bytes"
        result = {"bench": "window", "weights_mib": round(weights), "layers": a.layers, "records": a.records, "windows": []}
        median = {name: [statistics.median(x[i] for x in times[name]) for i in (0, 1)] for name in pools}
        full = pools["all"].status("VmHWM")
        result["peak_all_mib"] = round(full)
        fixed = full - weights
        for name in a.memory.split(","):
            held = pools[name].held()
            peak = pools[name].status("VmHWM")
            if not held:
                print(f"{name}: the whole model fits")
                continue
            layers, of, mib, tokens = held
            w = {"memory": name, "window_layers": layers, "of": of, "window_mib": mib, "batch_tokens": tokens, "peak_mib": round(peak), "predicted_peak_mib": round(fixed + mib + 16),
                 "throughput_by_clock": round(median["all"][0] / median[name][0], 3), "throughput_by_cpu": round(median["all"][1] / median[name][1], 3)}
            result["windows"].append(w)
            print(f"{name}: {layers} of {of} layers, {mib} MiB of {weights:.0f}; peak {peak:.0f} MiB (at most {w['predicted_peak_mib']} predicted, {full:.0f} with all of it in memory); throughput "
                  f"{w['throughput_by_clock']:.2f} by the clock, {w['throughput_by_cpu']:.2f} by processor time")
        print(json.dumps(result))
    finally:
        for p in pools.values():
            p.stop()
        shutil.rmtree(top, ignore_errors=True)


main()
