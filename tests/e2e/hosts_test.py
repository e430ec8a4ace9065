"""Several hosts with addresses of their own, and what networks do: a worker cut off, all of them, the daemon; packets lost, a connection that only one end believes in, a slow link,
workers that see none of the files. The output is the same bytes each time, and nobody is blamed."""
import json
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ebbtest as t
import hosts as h

PORT = 5570
RECORDS, FREE = 400, 120


class Net:
    """ebbd on host d, workers by key on others."""

    def __init__(self, dir, *names):
        self.hosts = h.Hosts("d", *names)
        self.dir, self.workers = dir, {}
        self.state, self.runtime = os.path.join(dir, "state"), os.path.join(dir, "rt")
        self.data, self.gate = os.path.join(dir, "data"), os.path.join(dir, "gate")
        os.makedirs(self.data)
        config = os.path.join(dir, "ebbd.yaml")
        with open(config, "w") as f:
            f.write(f"listen: tcp://{self.hosts.address('d')}:{PORT}\nroots: [{dir}, {t.BUILD}]\nworker_timeout: 4s\nworkers: {{ count: 0 }}\n")
        rc, o, e = t.run([t.EBB, "keygen", "--state", self.state])
        assert rc == 0, e
        self.log = os.path.join(dir, "ebbd.log")
        with open(self.log, "ab") as log:
            self.daemon = subprocess.Popen(self.hosts.command("d", t.EBBD, "--config", config, "--state", self.state, "--runtime", self.runtime),
                                           stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "EBB_TEST_DIR": dir})
        t.wait_for(lambda: os.path.exists(os.path.join(self.runtime, "clients")) and self.ebb("jobs", want=None)[0] == 0, 30)

    def ebb(self, *words, want=0):
        rc, o, e = t.run([t.EBB, *words[:1], "--socket", os.path.join(self.runtime, "clients"), *words[1:]])
        assert want is None or rc == want, (words, rc, o, e, self.said()[-3000:])
        return rc, o, e

    def said(self):
        with open(self.log, errors="replace") as f:
            return f.read()

    def key(self, name):
        path = os.path.join(self.dir, name + ".key")
        if os.path.exists(path):
            return path
        rc, o, e = t.run([t.EBB, "keys", "add", "--socket", os.path.join(self.runtime, "clients"), "--node", "--name", name, path])
        assert rc == 0, e
        return path

    def worker(self, name, hide=()):
        own = os.path.join(self.dir, "on-" + name)
        os.makedirs(own, exist_ok=True)
        args = [t.WORKER, "--connect", f"tcp://{self.hosts.address('d')}:{PORT}", "--key-file", self.key(name), "--name", name, "--host", name, "--blackbox",
                os.path.join(own, "box"), "--lanes", "1", "--pack-cache", os.path.join(own, "packs")]
        if hide:
            args = ["unshare", "-m", "sh", "-c", " && ".join([f"mount -t tmpfs none '{d}'" for d in hide] + ['exec "$@"']), "sh", *args]
        with open(os.path.join(own, "log"), "ab") as log:
            self.workers[name] = subprocess.Popen(self.hosts.command(name, *args), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                  env={**os.environ, "EBB_TEST_HOOK": "1", "EBB_TEST_DIR": self.dir})

    def states(self):
        return {w["name"]: w["state"] for w in map(json.loads, self.ebb("workers", "--json")[1].splitlines())}

    def wait_states(self, **want):
        t.wait_for(lambda: (lambda s: all(s.get(n) in ((v,) if isinstance(v, str) else v) for n, v in want.items()))(self.states()), 60, 0.2)

    def submit(self, *words, layers=2):
        self.input = t.write_jsonl(os.path.join(self.data, "in.jsonl"), RECORDS, text=lambda i: t.gated(self.gate, i, FREE))
        self.out = os.path.join(self.dir, "out")
        self.model = t.tiny_model(layers=layers)
        self.ebb("submit", "--model", self.model, "--input", self.input, "--output", self.out, "--micro-batch", "1", *words)

    def job(self):
        return json.loads(self.ebb("status", "--json", "1")[1].splitlines()[0])

    def wait_begun(self):
        """Some records are done, and every worker holds some that wait."""
        t.wait_for(lambda: self.job()["records_done"] >= 20 and set(self.states().values()) == {"running"}, 60, 0.2)

    def finish(self):
        """Opens the gate; done, nobody blamed, and the bytes of an undisturbed run."""
        t.open_gate(self.gate)
        job = t.wait_for(lambda: (lambda j: j if j["state"] in ("done", "held", "failed") else None)(self.job()), 120, 0.2)
        assert job["state"] == "done" and job["errors"] == 0 and job["quarantined"] == 0, (job, self.said()[-3000:])
        alone = os.path.join(self.dir, "alone")
        t.ebb_run(self.model, self.input, alone, env={"EBB_TEST_HOOK": "1"})
        t.same_output(self.out, alone)

    def end(self):
        for p in [*self.workers.values(), self.daemon]:
            if p.poll() is None:
                p.kill()
            p.wait()
        t.kill_all(self.dir)
        self.hosts.end()


def on_hosts(*names):
    def wrap(f):
        def body(dir):
            h.need()
            net = Net(dir, *names)
            try:
                f(net)
            finally:
                net.end()

        body.__name__ = f.__name__
        return body

    return wrap


@on_hosts("a", "b")
def test_one_worker_cut_off(net):
    net.worker("a")
    net.worker("b")
    net.wait_states(a="idle", b="idle")
    net.submit()
    net.wait_begun()
    net.hosts.cut("a")
    t.wait_for(lambda: net.states().get("a") in ("lost", None), 60, 0.2)
    net.finish()
    net.hosts.cut("a", whole=False)  # it comes back with commits for leases that others have done since
    net.wait_states(a="idle", b="idle")


@on_hosts("a", "b")
def test_all_workers_cut_off(net):
    net.worker("a")
    net.worker("b")
    net.wait_states(a="idle", b="idle")
    net.submit()
    net.wait_begun()
    for name in "ab":
        net.hosts.cut(name)
    t.wait_for(lambda: set(net.states().values()) <= {"lost"}, 60, 0.2)
    for name in "ab":
        net.hosts.cut(name, whole=False)
    net.wait_states(a="running", b="running")
    net.finish()


@on_hosts("a", "b")
def test_the_daemon_cut_off(net):
    net.worker("a")
    net.worker("b")
    net.wait_states(a="idle", b="idle")
    net.submit()
    net.wait_begun()
    net.hosts.cut("d")
    t.wait_for(lambda: set(net.states().values()) <= {"lost"}, 60, 0.2)
    t.open_gate(net.gate)  # they go on alone, and have commits to offer when it comes back
    net.hosts.cut("d", whole=False)
    net.finish()


@on_hosts("a", "b")
def test_every_tenth_packet_lost(net):
    for name in "dab":
        net.hosts.lose(name, 0.05)  # at each end, and both ways: about a tenth of what one sends to another
    net.worker("a")
    net.worker("b")
    net.wait_states(a="idle", b="idle")
    net.submit()
    net.wait_begun()
    net.finish()


@on_hosts("a", "b")
def test_a_connection_that_only_one_end_believes_in(net):
    net.worker("a")
    net.worker("b")
    net.wait_states(a="idle", b="idle")
    net.submit()
    net.wait_begun()
    net.hosts.deaf("d", "a")
    net.workers["a"].kill()  # the daemon never hears of it: neither end nor reset arrives
    net.workers["a"].wait()
    t.wait_for(lambda: net.states().get("a") in ("lost", None), 60, 0.2)
    net.hosts.hears("d")
    net.worker("a")  # the same host anew
    t.wait_for(lambda: "running" in [s for n, s in net.states().items() if n == "a"] or net.states().get("a") == "idle", 60, 0.2)
    net.finish()


@on_hosts("a", "b")
def test_a_slow_link_and_workers_that_see_no_files(net):
    for name in "ab":
        net.hosts.slow(name, "4mbit")
    os.makedirs(os.path.join(net.dir, "out"), exist_ok=True)
    for name in "ab":
        net.worker(name, hide=[net.data, os.path.join(net.dir, "out")])
    net.wait_states(a="idle", b="idle")
    net.submit()
    net.wait_begun()
    net.finish()
    for name in "ab":
        with open(os.path.join(net.dir, "on-" + name, "log")) as f:
            assert "through the daemon" in f.read(), "it saw the files"


@on_hosts("a", "b", "c")
def test_a_pipeline_over_three_hosts(net):
    """Each way is measured by whoever joins later. A worker behind a slow one is left out, as long as the others do without it."""
    net.hosts.slow("a", "8mbit")
    for name in "abc":
        net.worker(name)
    net.wait_states(a="idle", b="idle", c="idle")
    net.submit("--stages", "3", layers=6)
    t.wait_for(lambda: net.job()["records_done"] >= 20, 60, 0.2)
    t.wait_for(lambda: "pipeline of 2 workers runs" in net.said(), 60, 0.2)
    ways = re.findall(r"worker (\w): to worker (\w) ([0-9.e+]+) Mbit/s", net.said())
    assert {frozenset((x, y)) for x, y, _ in ways} >= {frozenset("ab"), frozenset("ac"), frozenset("bc")}, net.said()[-3000:]
    assert all(float(n) < 20 for x, y, n in ways if x == "a"), ways  # what leaves it is held back
    assert not re.search(r"worker a: its stage of gang \w+, cut \d+, is ready", net.said()), net.said()[-3000:]
    net.hosts.cut("c")
    t.wait_for(lambda: re.search(r"its pipeline of \d workers is dissolved|pipeline, cut 2", net.said()), 60, 0.2)
    net.hosts.cut("c", whole=False)
    net.finish()


t.main(globals())
