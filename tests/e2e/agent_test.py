"""Nodes that lend themselves: a real ebbd, real agents, real workers. The node that an agent sees is a folder that mimics /proc, so that an owner
comes and goes at will; one test makes a real load."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import json
import shutil
import signal
import struct
import subprocess
import threading
import time

import ebbtest as t

AGENT = os.path.join(t.BUILD, "bin", "ebb-agent")
HOOK = {"EBB_TEST_HOOK": "1"}
# Guests that come last would wait for the other tests of this machine without end; what they are is looked at in a test of its own.
YAML = """
workers: { count: 1, lanes: 1, priority: normal }
evict: { after: 3s }
return_after: 1s
"""


class Node:
    """What an agent sees: a quiet machine of 32 GiB, until told otherwise."""

    def __init__(self, dir):
        self.dir = dir
        self.busy = 0.0
        for sub in ("pressure", "dev/pts"):
            os.makedirs(os.path.join(dir, sub), exist_ok=True)
        self.write("utmp", b"")
        for what in ("cpu", "memory", "io"):
            self.write(f"pressure/{what}", b"some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
        self.memory(20)
        self.stat()
        self.tty = os.path.join(dir, "dev", "tty2")
        self.write("dev/tty2", b"")
        os.utime(self.tty, (1e9, 1e9))

    def write(self, name, data):
        path = os.path.join(self.dir, name)
        with open(path + ".new", "wb") as f:
            f.write(data)
        os.rename(path + ".new", path)

    def memory(self, available_gib):
        self.write("meminfo", f"MemTotal:       33554432 kB\nMemFree: 1 kB\nMemAvailable:   {int(available_gib * (1 << 20))} kB\n".encode())

    def stat(self):
        self.write("stat", f"cpu  {int(self.busy * 100)} 0 0 100000 0 0 0 0 0 0\n".encode())

    def log_in(self, *users):
        """utmp with these users at tty2."""
        data = b""
        for user in users:
            data += struct.pack("=hxxi32s4s32s256shhiii4i20x", 7, os.getpid(), b"tty2", b"2", user.encode(), b"", 0, 0, 0, 0, 0, 0, 0, 0, 0)
        assert len(data) == 384 * len(users)
        self.write("utmp", data)

    def touch(self):
        """Somebody types. The terminal's time has whole seconds for the agent: one that it has not seen."""
        self.typed = getattr(self, "typed", time.time()) + 1
        os.utime(self.tty, (self.typed, self.typed))


class Load(threading.Thread):
    """Makes a node's counters say that others keep so many cores busy."""

    def __init__(self, node, cores):
        super().__init__(daemon=True)
        self.node, self.cores, self.stop = node, cores, threading.Event()
        self.start()

    def run(self):
        last = time.monotonic()
        while not self.stop.wait(0.05):
            now = time.monotonic()
            self.node.busy += self.cores * (now - last)
            last = now
            self.node.stat()

    def end(self):
        self.stop.set()
        self.join()


class Agent:
    def __init__(self, dir, pool, host="desk1", yaml=YAML, node=None, endpoint=None, program=AGENT, prefix=()):
        self.dir = os.path.join(dir, host)
        os.makedirs(self.dir, exist_ok=True)
        self.node = Node(os.path.join(self.dir, "proc")) if node is None else node
        self.file = os.path.join(self.dir, "agent.yaml")
        self.log = os.path.join(self.dir, "agent.log")
        self.configure(yaml)
        if endpoint is None:
            endpoint = f"ipc://{pool.runtime}/workers"
        self.args = [*prefix, program, "--config", self.file, *(["--connect", endpoint] if endpoint else []), "--host", host, "--dir", os.path.join(self.dir, "state"), *(["--proc", self.node.dir] if self.node else [])]
        self.start(pool)

    def start(self, pool):
        env = {**os.environ, **pool.env}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.args, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)

    def configure(self, yaml):
        with open(self.file, "w") as f:
            f.write(yaml)

    def text(self):
        with open(self.log, errors="replace") as f:
            return f.read()

    def says(self, words, seconds=30):
        try:
            return t.wait_for(lambda: words in self.text(), seconds)
        except AssertionError:
            raise AssertionError(f"the agent never said '{words}':\n{self.text()[-3000:]}") from None

    def guests(self):
        """Process ids of its live workers."""
        found = []
        for pid, name in t.processes(self.dir):
            if name == "ebb-worker":
                found.append(pid)
        return found

    def stop(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
            try:
                return self.process.wait(40 * t.SLOW)
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise AssertionError(f"the agent does not end:\n{self.text()[-3000:]}") from None
        return self.process.returncode


def slow_input(dir, records, ms=5):
    return t.write_jsonl(os.path.join(dir, "in.jsonl"), records, text=lambda i: f"EBB_TEST_SLOW:{ms} record number {i}")


def gated_input(dir, records=400, free=150):
    """Workers come as far as the gate and wait there: nothing is over before the test has had its say."""
    gate = os.path.join(dir, "gate")
    return t.write_jsonl(os.path.join(dir, "in.jsonl"), records, text=lambda i: t.gated(gate, i, free)), gate


def finish(dir, pool, job, inp, gate, out):
    """Opens the gate; what comes out is what a run on this machine alone gives, and nobody is blamed."""
    t.open_gate(gate)
    j = pool.wait_state(job, "done", 120)
    base = os.path.join(dir, "base")
    t.ebb_run(t.tiny_model(), inp, base, env=HOOK)
    t.same_output(base, out)
    no_blame(pool, job)
    return j


def submit(pool, dir, inp, out, model=None):
    path = os.path.join(dir, "job.yaml")
    with open(path, "w") as f:
        f.write(f"model: {model or t.tiny_model()}\ninput: {{ glob: {inp}, field: text }}\noutput: {{ path: {out} }}\ntuning: {{ commit: 0.3s }}\n")
    return int(json.loads(pool.ebb("submit", path, "--json")[1].splitlines()[0])["job"])


def rows(pool, what):
    return [json.loads(line) for line in pool.ebb(what, "--json")[1].splitlines()]


def started(pool, job, more_than=0, seconds=60):
    return t.wait_for(lambda: (lambda j: j if j["records_done"] > more_than else None)(pool.job(job)), seconds)


def no_blame(pool, job):
    j = pool.job(job)
    assert j["quarantined"] == 0 and j["errors"] == 0, j
    events = pool.ebb("status", str(job))[1]
    assert "crashed" not in events and "suspect" not in events, events


def stands_still(pid):
    """Frozen by its control group, or stopped by a signal."""
    with open(f"/proc/{pid}/stat") as f:
        if f.read().rpartition(")")[2].split()[0] in "Tt":
            return True
    with open(f"/proc/{pid}/cgroup") as f:
        path = next((line.rstrip("\n")[3:] for line in f if line.startswith("0::")), None)
    with open("/proc/mounts") as f:
        root = next((line.split()[1] for line in f if line.split()[2] == "cgroup2"), None)
    if path is None or root is None:
        return False
    try:
        with open(os.path.join(root, path.lstrip("/"), "cgroup.events")) as f:
            return "frozen 1" in f.read()
    except OSError:
        return False



def test_job_through_agents_is_identical(dir):
    """A real model, real text, two nodes; one is taken away in mid-job."""
    if not os.path.exists(t.MINILM):
        raise t.Skip("no real model: make demo-data")
    inp = os.path.join(dir, "in.jsonl")
    with open(t.GLOSSES, encoding="utf-8") as f, open(inp, "w", encoding="utf-8") as out:
        for i, line in enumerate(f):
            if i == 600:
                break
            out.write(line)
    field = next(k for k, v in json.loads(open(inp, encoding="utf-8").readline()).items() if isinstance(v, str) and k != "id")
    base, out = os.path.join(dir, "base"), os.path.join(dir, "out")
    t.ebb_run(t.MINILM, inp, base, "--field", field, timeout=300)
    pool = t.Pool(dir, workers=0)
    agents = [Agent(dir, pool, host) for host in ("desk1", "desk2")]
    try:
        path = os.path.join(dir, "job.yaml")
        with open(path, "w") as f:
            f.write(f"model: {t.MINILM}\ninput: {{ glob: {inp}, field: {field} }}\noutput: {{ path: {out} }}\ntuning: {{ commit: 0.3s, lease: 1s }}\n")
        job = int(json.loads(pool.ebb("submit", path, "--json")[1].splitlines()[0])["job"])
        started(pool, job, seconds=120)
        agents[0].node.log_in("anna")
        agents[0].node.touch()
        agents[0].says("node desk1: frozen: owner at the keyboard (anna, tty2)")
        assert {n["host"] for n in rows(pool, "nodes")} == {"desk1", "desk2"}
        pool.wait_state(job, "done", 240)
        t.same_output(base, out)
        no_blame(pool, job)
    finally:
        for a in agents:
            a.stop()
        pool.stop()


def test_owner_comes_and_goes(dir):
    """Frozen, then gone; nothing is done meanwhile; nothing is blamed; the job finishes once the owner has left."""
    inp, gate = gated_input(dir)
    out = os.path.join(dir, "out")
    pool = t.Pool(dir, env=HOOK, workers=0)
    agent = Agent(dir, pool, yaml=YAML + "owner: { idle: 1s }\n")
    try:
        job = submit(pool, dir, inp, out)
        started(pool, job)
        guest, = agent.guests()
        agent.node.log_in("anna")
        typing = threading.Event()

        def type():
            while not typing.wait(0.2):
                agent.node.touch()

        keyboard = threading.Thread(target=type, daemon=True)
        agent.node.touch()
        came = time.monotonic()
        keyboard.start()
        t.wait_for(lambda: not os.path.exists(f"/proc/{guest}") or stands_still(guest), 20, 0.005)
        frozen = time.monotonic() - came
        shown = t.wait_for(lambda: [w for w in rows(pool, "workers") if w["state"] == "frozen"] or not agent.guests(), 20)
        if shown is not True:
            assert shown[0]["lease"].startswith("owner at the keyboard") and shown[0]["host"] == "desk1", shown
        t.wait_for(lambda: not os.path.exists(f"/proc/{guest}"), 30, 0.005)
        gone = time.monotonic() - came
        node, = rows(pool, "nodes")
        agent.says("node desk1: away: owner at the keyboard")
        t.wait_for(lambda: not rows(pool, "workers"), 20)
        node, = rows(pool, "nodes")
        assert node["state"] == "away" and node["room"] == 0 and node["reason"].startswith("owner at the keyboard (anna"), node
        why = json.loads(pool.ebb("why", str(job), "--json")[1])
        assert "owner at the keyboard" in why["text"], why
        done = pool.job(job)["records_done"]
        time.sleep(1.5)
        assert pool.job(job)["records_done"] == done and not agent.guests(), "somebody works while the owner is there"
        typing.set()
        keyboard.join()
        t.wait_for(lambda: agent.guests(), 60)
        j = finish(dir, pool, job, inp, gate, out)
        log = agent.text()
        assert log.count("is evicted: owner at the keyboard") == 1, log
        assert log.index("node desk1: frozen: owner at the keyboard") < log.index("is evicted: owner at the keyboard"), log
        # bench/owner.py measures; here other tests may run beside
        print(f"   frozen after {frozen:.2f} s, gone after {gone:.2f} s, {j['redone']} redone")
    finally:
        agent.stop()
        pool.stop()


def test_short_load_only_freezes(dir):
    """A load that passes: the same worker goes on where it stood."""
    inp, gate = gated_input(dir)
    out = os.path.join(dir, "out")
    pool = t.Pool(dir, env=HOOK, workers=0)
    agent = Agent(dir, pool, yaml=YAML.replace("after: 3s", "after: 60s") + "thaw_after: 300ms\n")
    try:
        job = submit(pool, dir, inp, out)
        started(pool, job)
        guest, = agent.guests()
        load = Load(agent.node, 64)
        t.wait_for(lambda: stands_still(guest), 30)
        agent.says("node desk1: frozen: load of others")
        load.end()
        t.wait_for(lambda: not stands_still(guest), 30)
        j = finish(dir, pool, job, inp, gate, out)
        assert agent.text().count(": started as ") == 1 and j["redone"] == 0, agent.text()
    finally:
        agent.stop()
        pool.stop()


def test_short_memory_evicts(dir):
    inp, gate = gated_input(dir)
    out = os.path.join(dir, "out")
    pool = t.Pool(dir, env=HOOK, workers=0)
    agent = Agent(dir, pool)
    try:
        job = submit(pool, dir, inp, out)
        started(pool, job)
        agent.node.memory(0.5)
        agent.says("is evicted: memory is short: 512.0 MiB available")
        t.wait_for(lambda: not agent.guests(), 30)
        assert "frozen" not in agent.text(), "standing still gives no memory back"
        agent.node.memory(20)
        finish(dir, pool, job, inp, gate, out)
    finally:
        agent.stop()
        pool.stop()


def busy_cores(seconds):
    def busy():
        with open("/proc/stat") as f:
            n = [int(x) for x in f.readline().split()[1:8]]
        return (n[0] + n[1] + n[2] + n[5] + n[6]) / os.sysconf("SC_CLK_TCK")

    before = busy()
    time.sleep(seconds)
    return (busy() - before) / seconds


def test_real_load_is_seen(dir):
    """A real processor hog on the real machine. Where others keep it busy already, there is nothing to see."""
    if busy_cores(1.5) > 0.2 * os.cpu_count():
        raise t.Skip("this machine is busy with other things")
    inp, _ = gated_input(dir)
    pool = t.Pool(dir, env=HOOK, workers=0)
    agent = Agent(dir, pool, node=False, yaml=YAML + "owner: { present: ignored }\nload: { limit: 45%, calm: 44% }\n"
                                                     "pressure: { cpu: off, memory: off, io: off }\n")
    hogs = []
    try:
        job = submit(pool, dir, inp, os.path.join(dir, "out"))

        def begun():
            if pool.job(job)["records_done"]:
                return True
            if any(n["reason"].startswith("load of others") for n in rows(pool, "nodes")):
                raise t.Skip("this machine is busy with other things")
            return False

        t.wait_for(begun, 60)
        hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())]
        agent.says("frozen: load of others", 60)
        agent.says("is evicted: load of others", 60)
        no_blame(pool, job)
    finally:
        for h in hogs:
            h.kill()
            h.wait()
        agent.stop()
        pool.stop()


def test_killed_agent_takes_its_workers_along(dir):
    """Nobody would look out for the owner. The next agent tells how they ended; the job goes on."""
    inp, gate = gated_input(dir)
    out = os.path.join(dir, "out")
    pool = t.Pool(dir, env=HOOK, workers=0)
    agent = Agent(dir, pool)
    try:
        job = submit(pool, dir, inp, out)
        started(pool, job)
        guest, = agent.guests()
        agent.process.kill()
        agent.process.wait()
        t.wait_for(lambda: not agent.guests(), 10)
        state = os.path.join(agent.dir, "state", "workers")
        assert [f for f in os.listdir(state) if f.endswith(".pid")], "no note is left for the next agent"
        agent.start(pool)
        agent.says("evicted: it died with its agent")
        finish(dir, pool, job, inp, gate, out)
        t.wait_for(lambda: not [f for f in os.listdir(state) if f.endswith((".pid", ".box"))] or agent.guests(), 20)
    finally:
        agent.stop()
        pool.stop()


def test_killed_agent_with_frozen_workers(dir):
    """Frozen ones die with it, too."""
    inp, _ = gated_input(dir)
    pool = t.Pool(dir, env=HOOK, workers=0)
    agent = Agent(dir, pool, yaml=YAML.replace("after: 3s", "after: 60s"))
    try:
        job = submit(pool, dir, inp, os.path.join(dir, "out"))
        started(pool, job)
        guest, = agent.guests()
        load = Load(agent.node, 64)
        t.wait_for(lambda: stands_still(guest), 30)
        agent.process.kill()
        agent.process.wait()
        t.wait_for(lambda: not os.path.exists(f"/proc/{guest}"), 10)
        load.end()
        agent.start(pool)  # and nothing of theirs keeps new ones from running
        agent.says("evicted: it died with its agent")
        t.wait_for(lambda: agent.guests() and not stands_still(agent.guests()[0]), 60)
    finally:
        agent.stop()
        pool.stop()


def test_without_control_groups(dir):
    """Signals do: stopped, continued where it stood, and killed with its agent although it is stopped."""
    hide = ["unshare", "--mount", "--propagation", "private", "sh", "-c", 'mount -t tmpfs none /sys/fs/cgroup && exec "$@"', "sh"]
    if subprocess.run([*hide, "true"], stderr=subprocess.DEVNULL).returncode:
        raise t.Skip("no mounts of one's own here")
    inp, _ = gated_input(dir)
    pool = t.Pool(dir, env=HOOK, workers=0)
    agent = Agent(dir, pool, yaml=YAML.replace("after: 3s", "after: 60s") + "thaw_after: 300ms\n", prefix=hide)

    def stopped(pid):
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] == "T"

    try:
        job = submit(pool, dir, inp, os.path.join(dir, "out"))
        started(pool, job)
        agent.says("guests are held by signals and control groups (none)")
        guest, = agent.guests()
        load = Load(agent.node, 64)
        t.wait_for(lambda: stopped(guest), 30)
        load.end()
        t.wait_for(lambda: not stopped(guest), 30)
        assert agent.guests() == [guest], agent.text()
        load = Load(agent.node, 64)
        t.wait_for(lambda: stopped(guest), 30)
        agent.process.kill()
        agent.process.wait()
        t.wait_for(lambda: not os.path.exists(f"/proc/{guest}"), 10)
        load.end()
    finally:
        agent.stop()
        pool.stop()


def test_killed_daemon_finds_its_nodes_again(dir):
    """The agent and its workers live on, say hello to the next daemon, and nothing is done twice."""
    inp, gate = gated_input(dir)
    out = os.path.join(dir, "out")
    pool = t.Pool(dir, env=HOOK, workers=0)
    agent = Agent(dir, pool)
    try:
        job = submit(pool, dir, inp, out)
        started(pool, job)
        pool.kill()
        pool.start()
        t.wait_for(lambda: [n for n in rows(pool, "nodes") if n["workers"] == 1], 30)
        j = finish(dir, pool, job, inp, gate, out)
        assert j["redone"] == 0, j
        assert agent.text().count(": started as ") == 1, "the worker was replaced"
    finally:
        agent.stop()
        pool.stop()


def test_node_vanishes(dir):
    """Agent and workers gone at once, and nobody says so: another node gets the work."""
    inp, gate = gated_input(dir)
    out = os.path.join(dir, "out")
    config = os.path.join(dir, "ebbd.yaml")
    with open(config, "w") as f:
        f.write("worker_timeout: 2s\n")
    pool = t.Pool(dir, "--config", config, env=HOOK, workers=0)
    agents = [Agent(dir, pool, host) for host in ("desk1", "desk2")]
    try:
        t.wait_for(lambda: len([n for n in rows(pool, "nodes") if n["state"] == "free"]) == 2, 30)
        path = os.path.join(dir, "job.yaml")
        with open(path, "w") as f:
            f.write(f"model: {t.tiny_model()}\ninput: {{ glob: {inp}, field: text }}\noutput: {{ path: {out} }}\nworkers: {{ max: 1 }}\ntuning: {{ commit: 0.3s }}\n")
        job = int(json.loads(pool.ebb("submit", path, "--json")[1].splitlines()[0])["job"])
        started(pool, job)
        victim = next(a for a in agents if a.guests())
        victim.process.kill()
        victim.process.wait()
        other = next(a for a in agents if a is not victim)
        t.wait_for(lambda: other.guests(), 30)
        finish(dir, pool, job, inp, gate, out)
        victim.start(pool)  # takes what it left
    finally:
        for a in agents:
            a.stop()
        pool.stop()


def test_workers_that_cannot_start(dir):
    """The node says so, its tries become rarer, and another one gets the work."""
    inp = slow_input(dir, 300)
    pool = t.Pool(dir, env=HOOK, workers=0)
    folder = os.path.join(dir, "bin")
    os.makedirs(folder)
    shutil.copy(AGENT, folder)
    with open(os.path.join(folder, "ebb-worker"), "w", opener=lambda p, flags: os.open(p, flags, 0o755)) as f:
        f.write("#!/bin/sh\necho 'error: no luck today' >&2\nexit 1\n")
    bad = Agent(dir, pool, "desk1", program=os.path.join(folder, "ebb-agent"))
    good = None
    try:
        job = submit(pool, dir, inp, os.path.join(dir, "out"))
        bad.says("workers end as soon as they start: exit 1: error: no luck today; the next one in ")
        t.wait_for(lambda: "desk1: workers end as soon as they start: exit 1: error: no luck today" in json.loads(pool.ebb("why", str(job), "--json")[1])["text"], 60)
        good = Agent(dir, pool, "desk2")
        pool.wait_state(job, "done", 120)
        assert bad.text().count(": started as ") < 12, bad.text()
    finally:
        bad.stop()
        if good:
            good.stop()
        pool.stop()


def test_crash_is_told_with_its_record(dir):
    """An eviction blames nobody; a record that kills its worker is found, through the agent's reading of the black box."""
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 300, text=lambda i: "EBB_TEST_CRASH here" if i == 137 else f"record number {i}")
    out = os.path.join(dir, "out")
    pool = t.Pool(dir, env=HOOK, workers=0)
    agent = Agent(dir, pool)
    try:
        job = submit(pool, dir, inp, out)
        pool.wait_state(job, "done", 120)
        bad = t.errors(out)
        assert [e["line"] for e in bad] == [138] and bad[0]["code"] == "crashed", bad
    finally:
        agent.stop()
        pool.stop()


def test_told_to_end_it_drains(dir):
    """SIGTERM: what is done is committed, the worker says goodbye, the agent ends with 0."""
    inp, _ = gated_input(dir)
    pool = t.Pool(dir, env=HOOK, workers=0)
    agent = Agent(dir, pool)
    try:
        job = submit(pool, dir, inp, os.path.join(dir, "out"))
        started(pool, job)
        assert agent.stop() == 0, agent.text()
        assert not agent.guests()
        log = agent.text()
        assert "is asked to leave: the agent ends" in log and ": ended: drained, exit 0" in log, log
        t.wait_for(lambda: not rows(pool, "workers"), 20)
        assert pool.job(job)["redone"] == 0
    finally:
        agent.stop()
        pool.stop()


def test_hours_end(dir):
    """Outside hours workers are asked to leave, not frozen; what is said of it is what stands in the file."""
    now = time.localtime()
    day = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"][(now.tm_wday + 3) % 7]
    inp, _ = gated_input(dir)
    pool = t.Pool(dir, env=HOOK, workers=0)
    agent = Agent(dir, pool)
    try:
        job = submit(pool, dir, inp, os.path.join(dir, "out"))
        started(pool, job)
        agent.configure(YAML + f"hours: [ '{day} 10:00-10:01' ]\n")
        agent.process.send_signal(signal.SIGHUP)
        agent.says(f"node desk1: leaving: outside hours {day} 10:00-10:01")
        agent.says(": ended: drained")
        t.wait_for(lambda: [n for n in rows(pool, "nodes") if n["state"] == "away" and n["reason"].startswith("outside hours")], 20)
        agent.configure("hours: [ 'fr 10:00-11:00' ]\n")
        agent.process.send_signal(signal.SIGHUP)
        agent.says("the configuration stays as it is: agent.yaml:1: 'hours' has no day 'fr'")
        agent.configure(YAML)
        agent.process.send_signal(signal.SIGHUP)
        t.wait_for(lambda: agent.guests(), 60)
    finally:
        agent.stop()
        pool.stop()


def test_several_nodes_share(dir):
    """Work is spread over those that are free: one worker each, on both; their hosts are two."""
    inp, _ = gated_input(dir, 3000)
    pool = t.Pool(dir, env=HOOK, workers=0)
    agents = [Agent(dir, pool, host) for host in ("desk1", "desk2", "desk3")]
    agents[2].node.log_in("bert")
    agents[2].node.touch()
    try:
        agents[2].says("node desk3: away: owner at the keyboard")
        path = os.path.join(dir, "job.yaml")
        with open(path, "w") as f:
            f.write(f"model: {t.tiny_model()}\ninput: {{ glob: {inp}, field: text }}\noutput: {{ path: {dir}/out }}\n"
                    "workers: { min: 2, max: 2 }\ntuning: { commit: 0.3s, lease: 1s }\n")
        job = int(json.loads(pool.ebb("submit", path, "--json")[1].splitlines()[0])["job"])
        t.wait_for(lambda: sorted(w["host"] for w in rows(pool, "workers") if w["state"] == "running") == ["desk1", "desk2"], 60)
        assert not agents[2].guests()
        pool.ebb("cancel", str(job))
    finally:
        for a in agents:
            a.stop()
        pool.stop()


def test_several_workers_on_a_node(dir):
    """As many as there is room for; frozen and thawed as one; the youngest goes when there is less room."""
    inp, _ = gated_input(dir, 4000)
    pool = t.Pool(dir, env=HOOK, workers=0)
    agent = Agent(dir, pool, yaml=YAML.replace("count: 1", "count: 2").replace("after: 3s", "after: 60s") + "thaw_after: 300ms\nkeep: { memory: 4GiB }\n")
    try:
        path = os.path.join(dir, "job.yaml")
        with open(path, "w") as f:
            f.write(f"model: {t.tiny_model()}\ninput: {{ glob: {inp}, field: text }}\noutput: {{ path: {dir}/out }}\nworkers: {{ min: 2, max: 2 }}\n"
                    "tuning: { commit: 0.3s, lease: 1s }\n")
        pool.ebb("submit", path)
        t.wait_for(lambda: sorted(w["name"] for w in rows(pool, "workers") if w["state"] == "running") == ["desk1/1", "desk1/2"], 60)
        both = agent.guests()
        load = Load(agent.node, 64)
        t.wait_for(lambda: len(both) == 2 and all(stands_still(g) for g in both), 30)
        load.end()
        t.wait_for(lambda: not any(stands_still(g) for g in both), 30)
        agent.node.memory(8)  # 4 GiB beside what is kept: one has its quarter of 14 GiB
        agent.says("worker desk1/2: is asked to leave: the owner needs the room")
        t.wait_for(lambda: len(agent.guests()) == 1, 30)
        assert agent.guests()[0] in both
        pool.ebb("cancel", "1")
    finally:
        agent.stop()
        pool.stop()


def test_guests_are_humble(dir):
    """Last in line for the processor and the disk, first to be killed for memory; the agent is not."""
    pool = t.Pool(dir, env=HOOK, workers=0)
    agent = Agent(dir, pool, yaml=YAML.replace("priority: normal", "priority: idle"))
    try:
        submit(pool, dir, gated_input(dir)[0], os.path.join(dir, "out"))
        guest = t.wait_for(lambda: agent.guests(), 60)[0]

        def humble():
            with open(f"/proc/{guest}/oom_score_adj") as f:
                return os.sched_getscheduler(guest) == os.SCHED_IDLE and f.read() == "1000\n"

        t.wait_for(humble, 20)
        assert os.getpriority(os.PRIO_PROCESS, guest) == 19
        assert os.sched_getscheduler(agent.process.pid) == os.SCHED_OTHER
        with open(f"/proc/{agent.process.pid}/oom_score_adj") as f:
            assert f.read() != "1000\n"
        assert os.getpgid(guest) == guest, "it is in the agent's group of processes"
    finally:
        agent.stop(signal.SIGTERM)
        pool.stop()


def test_nodes_come_while_a_job_waits(dir):
    """Nobody there: the job waits and says so. A node offers itself: work starts."""
    inp = slow_input(dir, 300)
    config = os.path.join(dir, "ebbd.yaml")
    with open(config, "w") as f:
        f.write("idle: 1s\n")
    pool = t.Pool(dir, "--config", config, env=HOOK, workers=0)
    agent = None
    try:
        job = submit(pool, dir, inp, os.path.join(dir, "out"))
        assert rows(pool, "nodes") == [] and rows(pool, "workers") == []
        began = time.monotonic()
        agent = Agent(dir, pool)
        started(pool, job)
        took = time.monotonic() - began
        print(f"   first records committed {took:.2f} s after the agent's start")
        pool.wait_state(job, "done", 60)
        t.wait_for(lambda: not agent.guests(), 60) # idle ones leave
    finally:
        if agent:
            agent.stop()
        pool.stop()


def test_invited_by_tcp(dir):
    """By invitation, over tcp; a key that is revoked ends it; another invitation, and it goes on."""
    inp, gate = gated_input(dir)
    out = os.path.join(dir, "out")
    config, state = os.path.join(dir, "ebbd.yaml"), os.path.join(dir, "state")
    with open(config, "w") as f:
        f.write(f"listen: tcp://127.0.0.1:{t.free_ports(3)}\nroots: [{dir}, {t.BUILD}]\nworker_timeout: 5s\n")
    rc, _, err = t.run([t.EBB, "keygen", "--state", state])
    assert rc == 0, err
    pool = t.Pool(dir, "--config", config, env=HOOK, workers=0)
    agent = None

    def join(*more):
        rc, line, err = t.run([t.EBB, "invite", "--socket", f"ipc://{pool.runtime}/clients", "--node", "--name", "box"])
        assert rc == 0, err
        words = line.split()
        assert words[:2] == ["ebb-agent", "join"], line
        rc, o, err = t.run([AGENT, *words[1:], "--dir", os.path.join(dir, "desk1", "state"), *more])
        assert rc == 0, err

    try:
        job = submit(pool, dir, inp, out)
        os.makedirs(os.path.join(dir, "desk1"))
        join()
        agent = Agent(dir, pool, endpoint="")
        started(pool, job)
        rc, _, err = t.run([t.EBB, "keys", "revoke", "box", "--socket", f"ipc://{pool.runtime}/clients"])
        assert rc == 0, err
        agent.says("does not let this node's key in: invite it there with 'ebb invite --node'")
        t.wait_for(lambda: not agent.guests(), 60)
        agent.stop()
        join("--force")
        agent.start(pool)
        finish(dir, pool, job, inp, gate, out)
    finally:
        if agent:
            agent.stop()
        pool.stop()


def test_mistakes_in_the_file(dir):
    path = os.path.join(dir, "agent.yaml")
    for text, want in (
            ("owners: { idle: 5min }\n", "agent.yaml:1: unknown key 'owners' (did you mean 'owner')"),
            ("owner:\n  idel: 5min\n", "agent.yaml:2: unknown key 'idel' (did you mean 'idle')"),
            ("owner:\n  idle: soon\n", "agent.yaml:2: 'owner.idle' wants a duration such as 10min"),
            ("owner: { present: activ }\n", "agent.yaml:1: 'owner.present' wants active, logged-in or ignored, not 'activ' (did you mean 'active')"),
            ("load:\n  limit: 10%\n  calm: 20%\n", "agent.yaml:3: 'load.calm' must be below 'load.limit', or guests come and go without end"),
            ("load: { limit: 0.25 }\n", "agent.yaml:1: 'load.limit' wants a share of the cores such as 25%, or off"),
            ("hours:\n  - mon-fri 19:00-07:00\n  - sut,sun\n", "agent.yaml:3: 'hours' has no day 'sut': did you mean 'sat' (days are mon tue wed thu fri sat sun)"),
            ("hours: 7-19\n", "agent.yaml:1: 'hours' cannot be read: '7-19': write hours such as 'mon-fri 19:00-07:00', 'sat,sun' or '22:00-06:00'"),
            ("workers: { memory: 1MiB }\n", "agent.yaml:1: 'workers.memory' of '1MiB' is too small for any model: give at least 64MiB, or 0"),
            ("workers: { count: 9999 }\n", "agent.yaml:1: 'workers.count' wants a whole number up to 1024"),
            ("grace: 5s\ngrace: 6s\n", "agent.yaml:2: 'grace' is there twice"),
            ("keep: 5\n", "agent.yaml:1: 'keep' wants keys below it"),
            ("- a\n", "agent.yaml:1: wants lines of the form 'key: value'"),
            ("a: [\n", "agent.yaml:2: not YAML: "),
            ("daemon: tcp://127.0.0.1:5570\n", "'tcp://127.0.0.1:5570' wants a key: 'ebb invite --node' on the daemon's machine prints the line that makes one here"),
            ("grace: 5s\n", "no daemon is named: "),
    ):
        with open(path, "w") as f:
            f.write(text)
        rc, out, err = t.run([AGENT, "--config", path, "--dir", os.path.join(dir, "state")])
        assert rc == 2 and err.startswith("ebb-agent: " + want), (text, rc, err)
    rc, out, err = t.run([AGENT, "statsu"])
    assert rc == 2 and "did you mean 'status'" in err, err
    rc, out, err = t.run([AGENT, "--config", os.path.join(dir, "none.yaml")])
    assert rc == 2 and "there is no configuration file" in err, err


def test_sample_file_is_the_default(dir):
    """Every key of deploy/agent.yaml is known; with what is commented out there, too, it says what holds anyway."""
    sample = os.path.join(t.TOP, "deploy", "agent.yaml")
    with open(sample) as f:
        text = f.read()
    node = Node(os.path.join(dir, "proc"))
    path = os.path.join(dir, "agent.yaml")

    def status(config):
        with open(path, "w") as f:
            f.write(config)
        rc, out, err = t.run([AGENT, "status", "--json", "--config", path, "--dir", os.path.join(dir, "state"), "--host", "desk1", "--proc", node.dir])
        assert rc == 0, err
        return json.loads(out)

    given, default = status(text), status("log_level: info\n")
    for o in (given, default):
        o.pop("idle_s")
    assert given == default, (given, default)
    whole = "\n".join(line[1:] if line.startswith("#") and not line.startswith("# ") and len(line) > 1 else line for line in text.splitlines())
    status(whole)


def test_status_says_what_it_would_do(dir):
    node = Node(os.path.join(dir, "proc"))
    args = [AGENT, "status", "--dir", os.path.join(dir, "state"), "--host", "desk1", "--proc", node.dir]
    config = os.path.join(dir, "agent.yaml")
    with open(config, "w") as f:
        f.write("workers: { count: 2, lanes: 1 }\nload: { limit: off }\n")
    args += ["--config", config]

    def status():
        rc, out, err = t.run([*args, "--json"])
        assert rc == 0, err
        return json.loads(out)

    assert status()["would"] == "run" and status()["reason"] == ""
    rc, out, err = t.run(args)
    assert rc == 0 and "would     run up to " in out and "node      desk1, " in out and "no agent runs here" in out, out
    node.log_in("anna")
    os.utime(node.tty)
    o = status()
    assert o["would"] == "not run" and o["reason"] == "owner at the keyboard (anna, tty2)" and o["people"] == 1, o
    node.log_in()
    node.memory(0.25)
    o = status()
    assert o["would"] == "not run" and o["reason"].startswith("memory is short: 256.0 MiB available"), o
    os.unlink(os.path.join(node.dir, "pressure", "memory"))
    node.memory(20)
    rc, out, err = t.run(args)
    assert rc == 0 and "memory unknown" in out and "no pressure/memory: " in out, out
    assert status()["pressure"]["memory"] is None
    os.unlink(os.path.join(node.dir, "stat"))
    rc, out, err = t.run(args)
    assert rc == 1 and "cannot read the load in" in err, (rc, err)


def test_two_agents_do_not_share_a_folder(dir):
    pool = t.Pool(dir, workers=0)
    agent = Agent(dir, pool)
    try:
        agent.says("welcomed by ebbd")
        rc, out, err = t.run(agent.args)
        assert rc == 2 and "another ebb-agent uses '" in err, (rc, err)
        rc, out, err = t.run([AGENT, "status", "--config", agent.file, "--dir", os.path.join(agent.dir, "state"), "--proc", agent.node.dir])
        assert rc == 0 and "its agent runs" in out, out
    finally:
        agent.stop()
        pool.stop()


if __name__ == "__main__":
    t.main(globals())
