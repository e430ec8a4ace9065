#!/usr/bin/env python3
"""An owner's return to a node that is lent: how soon the guests stand still and are gone, and what they cost the owner's own programs.

A real ebbd, a real agent on the real /proc, a real model at work. An owner's program that takes every core starts: time until the guest is frozen, and
gone. One that fills memory: time until it is gone. Then the same program's own speed: alone; beside guests that the agent was told to leave running whatever
comes (their low rank alone); and with the agent as it is by default. Medians of alternating runs. A sign of life at the keyboard is made in a folder that mimics
/dev, since there may be no keyboard. What the load of others decides can be seen only where there is little of it: on a machine that is busy with other things
these figures are null, and it is said.

The last line is one JSON object."""
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(TOP, os.environ.get("BUILD") or "build")
BIN = os.path.join(BUILD, "bin")
HOG = os.path.join(BUILD, "bench", "tools", "hog")
MODEL = os.path.join(TOP, "build", "demo", "all-MiniLM-L6-v2")
GLOSSES = os.path.join(TOP, "build", "demo", "glosses.jsonl")
RUNS = int(os.environ.get("EBB_BENCH_RUNS", "5"))
SECONDS = float(os.environ.get("EBB_BENCH_SECONDS", "6"))
PATIENCE_S = float(os.environ.get("EBB_BENCH_PATIENCE", "40"))
CORES = os.cpu_count()

COMMON = """
return_after: 1s
thaw_after: 1s
pressure: { cpu: off, io: off, memory: off }
"""


def available():
    with open("/proc/meminfo") as f:
        return int(re.search(r"MemAvailable:\s+(\d+)", f.read()).group(1)) * 1024


def others(seconds=2.0):
    """Cores that are busy now."""
    def busy():
        with open("/proc/stat") as f:
            n = [int(x) for x in f.readline().split()[1:8]]
        return (n[0] + n[1] + n[2] + n[5] + n[6]) / os.sysconf("SC_CLK_TCK")
    a = busy()
    time.sleep(seconds)
    return (busy() - a) / seconds


def quiet():
    """Waits for a moment in which little else runs."""
    end = time.monotonic() + PATIENCE_S
    while others(1.0) > 0.15 * CORES:
        if time.monotonic() > end:
            return False
    return True


def still(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            if f.read().rpartition(")")[2].split()[0] in "TtZX":
                return True
        with open(f"/proc/{pid}/cgroup") as f:
            path = next((line.rstrip("\n")[3:] for line in f if line.startswith("0::")), None)
        with open("/proc/mounts") as f:
            root = next((line.split()[1] for line in f if line.split()[2] == "cgroup2"), None)
        if path is None or root is None:
            return False
        with open(os.path.join(root, path.lstrip("/"), "cgroup.events")) as f:
            return "frozen 1" in f.read()
    except OSError:
        return True


def gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


class Pool:
    def __init__(self, dir):
        self.dir = dir
        self.runtime = tempfile.mkdtemp(prefix="ebb-rt-")
        self.log = open(os.path.join(dir, "log"), "ab")
        self.daemon = subprocess.Popen([f"{BIN}/ebbd", "--state", f"{dir}/state", "--runtime", self.runtime, "--workers", "0"], stdout=self.log, stderr=self.log)
        self.agent = None
        self.wait(lambda: os.path.exists(f"{self.runtime}/clients") and self.ebb("status", "--json").returncode == 0, 30, "ebbd does not start")

    def wait(self, what, seconds, complaint, poll=0.01):
        end = time.monotonic() + seconds
        while True:
            value = what()
            if value:
                return value
            if time.monotonic() > end:
                raise SystemExit(f"{complaint}; see {self.dir}/log")
            time.sleep(poll)

    def ebb(self, *args):
        return subprocess.run([f"{BIN}/ebb", args[0], "--socket", f"ipc://{self.runtime}/clients", *args[1:]], stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def submit(self, inp):
        out = os.path.join(self.dir, "out")
        with open(f"{self.dir}/job.yaml", "w") as f:
            f.write(f"model: {MODEL}\ninput: {{ glob: {inp}, field: text }}\noutput: {{ path: {out} }}\ntuning: {{ commit: 1s }}\n")
        r = self.ebb("submit", f"{self.dir}/job.yaml", "--json")
        if r.returncode:
            raise SystemExit(r.stderr.decode())
        self.job = json.loads(r.stdout.splitlines()[0])["job"]

    def done(self):
        r = self.ebb("status", "--json", str(self.job))
        return json.loads(r.stdout.splitlines()[0]) if r.returncode == 0 else {"records_done": 0, "redone": 0, "state": "?"}

    def start_agent(self, more="", proc=None):
        with open(f"{self.dir}/agent.yaml", "w") as f:
            f.write(COMMON + ("" if "owner:" in more else "owner: { present: ignored }\n") + more)
        self.agent = subprocess.Popen([f"{BIN}/ebb-agent", "--config", f"{self.dir}/agent.yaml", "--connect", f"ipc://{self.runtime}/workers", "--dir",
                                       f"{self.dir}/agent", *(["--proc", proc] if proc else [])], stdout=self.log, stderr=self.log)

    def stop_agent(self):
        if self.agent:
            self.agent.terminate()
            self.agent.wait()
            self.agent = None

    def guests(self):
        found = []
        folder = f"{self.dir}/agent/workers"
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            if name.endswith(".pid"):
                with open(os.path.join(folder, name)) as f:
                    words = f.read().split()
                if words and not gone(int(words[0])):
                    found.append(int(words[0]))
        return found

    def at_work(self):
        """A guest that computes, and has for a moment."""
        before = self.done()["records_done"]
        self.wait(lambda: self.guests() and self.done()["records_done"] > before and not still(self.guests()[0]), 120,
                  "no guest comes to work: is the machine idle", 0.1)
        time.sleep(0.5)
        return self.guests()[0]

    def stop(self):
        self.stop_agent()
        self.daemon.terminate()
        self.daemon.wait()
        shutil.rmtree(self.runtime, ignore_errors=True)


def hog(*args):
    p = subprocess.Popen([HOG, *map(str, args)], stdout=subprocess.PIPE, text=True)
    p.stdout.readline()
    return p, time.monotonic()


def speed(p):
    rest = p.stdout.read().split()
    p.wait()
    return float(rest[-1])


def keyboard(pool):
    """The same for somebody who begins to type."""
    proc = os.path.join(pool.dir, "proc")
    for sub in ("pressure", "dev"):
        os.makedirs(os.path.join(proc, sub), exist_ok=True)
    for name, text in (("stat", "cpu 0 0 0 0 0 0 0 0 0 0\n"), ("meminfo", "MemTotal: 33554432 kB\nMemAvailable: 20000000 kB\n")):
        with open(os.path.join(proc, name), "w") as f:
            f.write(text)
    tty = os.path.join(proc, "dev", "tty1")
    with open(tty, "w"):
        os.utime(tty, (1e9, 1e9))
    pool.start_agent("owner: { present: active, idle: 10min }\nworkers: { priority: normal }\n", proc=proc) # at work even if the machine is busy
    guest = pool.at_work()
    os.utime(tty)
    began, frozen = time.monotonic(), None
    while not gone(guest):
        if frozen is None and still(guest):
            frozen = time.monotonic() - began
        if time.monotonic() - began > 30:
            raise SystemExit(f"nobody left for the keyboard; see {pool.dir}/log")
        time.sleep(0.001)
    away = time.monotonic() - began
    pool.stop_agent()
    return frozen if frozen is not None else away, away


def guest_share(pool, seconds):
    """Of all processor time."""
    def used():
        with open(f"/proc/{pool.guests()[0]}/stat") as f:
            n = f.read().rpartition(")")[2].split()
        return (int(n[11]) + int(n[12])) / os.sysconf("SC_CLK_TCK")
    before = used()
    time.sleep(seconds)
    return (used() - before) / seconds / CORES


def returns(pool, policy, kind, *args, short=0):
    """Seconds until frozen and gone, for one return; of memory, from the moment on at which less than `short` bytes are available. Each has an agent of its
    own: one that has seen some waits ever longer before guests come again."""
    pool.start_agent(policy)
    guest = pool.at_work()
    p, began = hog(*args)
    frozen = None
    while short and available() >= short:
        if p.poll() is not None:
            raise SystemExit("the hog did not fill memory in time")
        began = time.monotonic()
    while not gone(guest):
        if frozen is None and still(guest):
            frozen = time.monotonic() - began
        if time.monotonic() - began > 30:
            raise SystemExit(f"a {kind} hog did not drive the guest away; see {pool.dir}/log")
        time.sleep(0.001)
    away = time.monotonic() - began
    p.kill()
    p.wait()
    pool.stop_agent()
    return frozen if frozen is not None else away, away


def main():
    for path in (HOG, MODEL, GLOSSES, f"{BIN}/ebb-agent"):
        if not os.path.exists(path):
            raise SystemExit(f"'{path}' is missing: make all demo-data {BUILD}/bench/tools/hog")
    busy = others()
    if busy > 0.15 * CORES:
        print(f"warning: {busy:.1f} of {CORES} cores are busy with other things; the figures are disturbed", file=sys.stderr)
    dir = tempfile.mkdtemp(prefix="ebb-owner-")
    ok = False
    pool = Pool(dir)
    result = {"bench": "owner", "runs": RUNS, "cores": CORES, "others_before": round(busy, 2)}
    try:
        inp = os.path.join(dir, "in.jsonl")
        with open(GLOSSES, encoding="utf-8") as f, open(inp, "w", encoding="utf-8") as out:
            text = f.read()
            for _ in range(4):
                out.write(text)
        pool.submit(inp)
        # How soon
        times = {"keyboard": [keyboard(pool) for _ in range(RUNS)], "cpu": None, "memory": None}
        size = min(3 << 30, available() // 4)
        short = available() - size // 2
        policy = (f"load: {{ limit: off }}\nkeep: {{ memory: {1 << 20} }}\nevict: {{ memory: {short} }}\nworkers: {{ memory: 2GiB, priority: normal }}\n")
        times["memory"] = [returns(pool, policy, "memory", "memory", size, 60, short=short) for _ in range(RUNS)]
        if quiet():
            times["cpu"] = [returns(pool, "", "processor", "cpu", CORES, 30) for _ in range(RUNS)]
        words = {"keyboard": "somebody types", "cpu": "a program takes all cores", "memory": "a program takes the memory"}
        for kind, pairs in times.items():
            for name, i in (("frozen", 0), ("gone", 1)):
                result[f"{kind}_{name}_s"] = round(statistics.median(x[i] for x in pairs), 3) if pairs else None
                result[f"{kind}_{name}_worst_s"] = round(max(x[i] for x in pairs), 3) if pairs else None
            if pairs:
                print(f"{words[kind]}: stands still after {result[f'{kind}_frozen_s']} s (worst {result[f'{kind}_frozen_worst_s']}), gone after "
                      f"{result[f'{kind}_gone_s']} s (worst {result[f'{kind}_gone_worst_s']})", flush=True)
            else:
                print(f"{words[kind]}: not measured, this machine is busy with other things", flush=True)
        # What guests take while others want everything: this can be seen on a busy machine, too
        pool.start_agent("load: { limit: off }\n")
        pool.wait(pool.guests, 120, "no guest comes", 0.1)
        time.sleep(2)
        p, _ = hog("cpu", CORES, 20)
        share = guest_share(pool, 15)
        p.kill()
        p.wait()
        pool.stop_agent()
        result["guest_share_percent"] = round(100 * share, 2)
        print(f"beside a program that wants all cores a guest that is left there takes {result['guest_share_percent']} % of the processor's time", flush=True)
        # What guests cost
        ways = {"alone": None, "beside": "load: { limit: off }\n", "agent": ""}
        for kind, args in (("cpu", ("cpu", CORES, SECONDS)), ("memory", ("memory", 256 << 20, SECONDS))):
            got = {way: [] for way in ways}
            if not quiet():
                print(f"the owner's {kind} program: not measured, this machine is busy with other things", flush=True)
                result.update({f"{kind}_slower_{way}_percent": None for way in ("beside", "agent")})
                continue
            for _ in range(RUNS):
                for way, policy in ways.items():
                    if policy is not None:
                        pool.start_agent(policy)
                        pool.at_work()
                    p, _ = hog(*args)
                    got[way].append(speed(p))
                    pool.stop_agent()
            alone = statistics.median(got["alone"])
            for way in ("beside", "agent"):
                slower = 100 * (1 - statistics.median(got[way]) / alone)
                result[f"{kind}_slower_{way}_percent"] = round(slower, 2)
            spread = 100 * (max(got["alone"]) - min(got["alone"])) / alone
            result[f"{kind}_alone_spread_percent"] = round(spread, 2)
            print(f"the owner's {kind} program is slower by {result[f'{kind}_slower_beside_percent']} % beside guests that stay, by "
                  f"{result[f'{kind}_slower_agent_percent']} % as the agent does it (alone it varies by {spread:.1f} %)", flush=True)
        j = pool.done()
        result["records_redone"], result["records_done"], result["blamed"] = j["redone"], j["records_done"], j.get("quarantined", 0)
        # What the agent itself takes
        pool.start_agent("load: { limit: off }\nworkers: { priority: normal }\n")
        pool.at_work()
        with open(f"/proc/{pool.agent.pid}/stat") as f:
            before = f.read().rpartition(")")[2].split()
        time.sleep(20)
        with open(f"/proc/{pool.agent.pid}/stat") as f:
            after = f.read().rpartition(")")[2].split()
        ticks = sum(int(after[i]) - int(before[i]) for i in (11, 12))
        result["agent_cpu_percent"] = round(100 * ticks / os.sysconf("SC_CLK_TCK") / 20, 2)
        print(f"the agent itself takes {result['agent_cpu_percent']} % of a core")
        ok = True
    finally:
        pool.stop()
        if ok:
            shutil.rmtree(dir, ignore_errors=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
