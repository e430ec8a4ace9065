"""Faults that come together: an owner and a restart, a key taken back from a worker without the files, several agents on one host, wrong clocks, impatient operators.
After each: every record once, the bytes of a quiet run, and nobody blamed."""
import glob
import json
import os
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ebbtest as t
import agent_test as a
import net_test as n
import relay_test as r

YAML = "workers: { count: 1, lanes: 1, priority: normal }\nevict: { after: 60s }\nreturn_after: 1s\nowner: { idle: 1min }\n"


def begun(pool, job, more_than=0):
    return t.wait_for(lambda: pool.job(job)["records_done"] > more_than, 60, 0.1)


def finish(dir, pool, job, inp, gate, out):
    n.finish(dir, pool, job, inp, gate, out)
    a.no_blame(pool, job)


def with_agents(f):
    """f(dir, pool, agents): what it appends to agents is ended."""
    def body(dir):
        pool, agents = n.NetPool(dir), []
        try:
            f(dir, pool, agents)
            for x in agents:
                if x.process.poll() is None:
                    assert x.stop() == 0, x.text()[-3000:]
                assert not x.guests()
        finally:
            for x in agents:
                if x.process.poll() is None:
                    x.process.kill()
                x.process.wait()
            pool.stop()

    body.__name__ = f.__name__
    return body


class Lent(a.Agent):
    """An agent that was invited; `called`: what its node is called, if not as its folder."""

    def __init__(self, dir, pool, agents, name, called=None, env=None, joined=False):
        os.makedirs(os.path.join(dir, name, "state"), exist_ok=True)
        key = os.path.join(dir, name, "state", "node.key")
        shutil.move(pool.key("node", name), key)
        if joined: # as an invitation leaves it
            with open(key, "a") as f:
                f.write(f"daemon: {pool.workers_at}\n")
        self.called, self.more, self.joined = called or name, env or {}, joined
        super().__init__(dir, pool, name, endpoint=pool.workers_at, yaml=YAML)
        agents.append(self)

    def start(self, pool):
        self.args[self.args.index("--host") + 1] = self.called
        if self.joined and "--connect" in self.args:
            at = self.args.index("--connect")
            del self.args[at : at + 2]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.args, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **pool.env, **self.more})


def other_time(days):
    """What makes a program live at another time."""
    found = glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
    if not found or t.SANITIZE:
        raise t.Skip("an instrumented program takes no other library first" if found else "there is no faketime")
    return {"LD_PRELOAD": found[0], "FAKETIME": f"{days}d", "FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1"}


@with_agents
def test_owner_and_a_daemon_killed(dir, pool, agents):
    inp, gate = n.records(dir)
    path, out = n.spec(dir, inp)
    client = pool.key("client", "client")
    job = n.submit(pool, client, path)
    x = Lent(dir, pool, agents, "desk")
    begun(pool, job)
    guest = t.wait_for(x.guests, 30)[0]
    x.node.log_in("owner")
    x.node.touch()
    t.wait_for(lambda: a.stands_still(guest), 30)
    pool.kill()
    pool.start()
    t.wait_for(lambda: any(row["state"] == "frozen" for row in a.rows(pool, "nodes")), 60, 0.1)
    x.node.log_in()
    t.wait_for(lambda: not x.guests() or not a.stands_still(x.guests()[0]), 60)
    finish(dir, pool, job, inp, gate, out)


@with_agents
def test_two_agents_of_one_node_one_of_another_time(dir, pool, agents):
    """Two people's agents under one name with odd letters; one agent lives years ahead and one behind. Then all are told to go again and again."""
    inp, gate = n.records(dir)
    path, out = n.spec(dir, inp)
    with open(path, "a") as f:
        f.write("workers: { min: 2 }\n")
    job = n.submit(pool, pool.key("client", "client"), path)
    for name, days in (("one", "+2000"), ("two", "-2000")):
        Lent(dir, pool, agents, name, called="a node;$(x)", env=other_time(days))
    begun(pool, job)
    t.wait_for(lambda: len(a.rows(pool, "workers")) == 2, 60, 0.1)
    for _ in range(20):
        pool.ebb("drain", "--all", want=None)
    pool.kill()
    pool.start()
    finish(dir, pool, job, inp, gate, out)


def relayed(dir, pool):
    """A job of which everything is below a folder that others do not see."""
    folder = os.path.join(dir, "seen")
    os.makedirs(folder)
    gate = os.path.join(dir, "gate")
    inp = t.write_jsonl(os.path.join(folder, "in.jsonl"), 600, text=lambda i: t.gated(gate, i, 200))
    model = shutil.copytree(t.tiny_model(), os.path.join(folder, "model"))
    out = os.path.join(folder, "out")
    job = json.loads(pool.ebb("submit", "--json", "--model", model, "--input", inp, "--output", out, "--commit", "200ms", "--micro-batch", "4")[1].splitlines()[0])["job"]
    return folder, inp, gate, model, out, job


@n.with_net
def test_key_taken_back_from_one_behind_the_relay(dir, pool):
    """One is cut off in mid-upload, one has hardly any room for models, one is asked to go with a micro-batch that outlasts its grace: the last does the rest."""
    r.need_namespaces()
    folder, inp, gate, model, out, job = relayed(dir, pool)
    workers = []
    try:
        bad = r.Far(pool, "bad", hide=[folder], env=n.HOOK, connect=pool.workers_at, more=["--key-file", pool.key("node", "bad")])
        workers.append(bad)
        begun(pool, job, 20)
        pool.keys("revoke", "bad")
        assert bad.process.wait(60) == 2, bad.text()[-2000:]
        models = os.path.join(dir, "hosts", "small", "models")
        small = r.Far(pool, "small", hide=[folder], inside=[f"mkdir -p {models}", f"mount -t tmpfs -o size=16k none {models}"], env=n.HOOK, connect=pool.workers_at,
                      more=["--key-file", pool.key("node", "small")])
        workers.append(small)
        # nobody else is there: the job waits for one, and is not held for a fault of that machine alone
        t.wait_for(lambda: "worker small: no room for the model in" in pool.job(job)["waits_for"] and "it waits for another worker" in pool.job(job)["waits_for"], 60, 0.1)
        assert pool.job(job)["state"] == "running", pool.job(job)
        small.kill()
        late = r.Far(pool, "late", hide=[folder], env=n.HOOK, connect=pool.workers_at, more=["--key-file", pool.key("node", "late"), "--grace", "1s"])
        workers.append(late)
        t.wait_for(lambda: any(w["name"] == "late" and w["state"] == "running" for w in a.rows(pool, "workers")), 60, 0.1)
        late.process.terminate()
        late.process.wait(60)
        good = r.Far(pool, "good", hide=[folder], host="late", env=n.HOOK, connect=pool.workers_at, more=["--key-file", pool.key("node", "good")])
        workers.append(good)
        finish(dir, pool, job, inp, gate, out)
    except AssertionError:
        sys.stderr.write(pool.said()[-4000:] + "".join(w.text()[-1500:] for w in workers if os.path.exists(w.log)))
        raise
    finally:
        for w in workers:
            w.kill()


def test_a_configuration_that_changes_its_mind(dir):
    """What needs a restart is said, and what ebbd listens at stays true: nothing falls over when it is asked."""
    pool = n.NetPool(dir)
    try:
        first = open(pool.config).read()
        for text, says in ((first.replace("listen:", "#listen:"), "'listen' needs a restart"), (first.replace("roots:", "#roots:"), "'roots' must be said"),
                           (first + "bogus: 1\n", "unknown key 'bogus'"), (first.replace("5s", "0s"), "'worker_timeout' must be 2s to 1h")):
            with open(pool.config, "w") as f:
                f.write(text)
            pool.process.send_signal(signal.SIGHUP)
            pool.wait_said(says)
            assert f"tcp://127.0.0.1:{pool.port}" in pool.ebb("doctor", want=None)[1]
            assert pool.ebb("invite", "--node")[1].startswith(f"ebb-agent join tcp://") and str(pool.port) in pool.ebb("invite", "--node")[1]
        with open(pool.config, "w") as f:
            f.write(first)
        pool.process.send_signal(signal.SIGHUP)
        t.wait_for(lambda: pool.said().count("configuration read again") == 2, 30)
        assert pool.said().count("needs a restart") == 1
    finally:
        pool.stop()


def test_old_deadlines_and_roots_that_are_links(dir):
    real, link = os.path.join(dir, "real"), os.path.join(dir, "link")
    os.makedirs(real)
    os.symlink(real, link)
    config = os.path.join(dir, "ebbd.yaml")
    with open(config, "w") as f:
        f.write(f"roots: [{link}, {t.BUILD}]\n")
    gate = os.path.join(dir, "gate")
    inp = t.write_jsonl(os.path.join(real, "in.jsonl"), 100, text=lambda i: t.gated(gate, i, 20))
    pool = t.Pool(dir, "--config", config, env=n.HOOK)
    try:
        pool.ebb("submit", "--model", t.tiny_model(), "--input", inp, "--output", os.path.join(dir, "out"), want=2)
        for through in (link, real):
            pool.ebb("submit", "--model", t.tiny_model(), "--input", os.path.join(through, "in.jsonl"), "--output", os.path.join(through, "out" + through[-1]), "--deadline",
                     "2020-01-31 07:00")
        for again in (0, 1): # a daemon that was started anew knows as well
            late = t.wait_for(lambda: pool.job(1)["late"], 60)
            assert "d " in late and int(late.split("passed ")[1].split()[0]) > 1000, late
            if not again:
                pool.kill()
                pool.start()
        t.open_gate(gate)
        for job in (1, 2):
            pool.wait_state(job, "done")
    finally:
        pool.stop()


@with_agents
def test_a_node_that_lends_nothing_for_a_while(dir, pool, agents):
    """As an invited node is set up: the key alone says where the daemon is. Reading the file again says what is so."""
    inp, gate = n.records(dir)
    path, out = n.spec(dir, inp)
    job = n.submit(pool, pool.key("client", "client"), path)
    x = Lent(dir, pool, agents, "desk", joined=True)
    begun(pool, job, 20)
    x.configure(YAML.replace("count: 1", "count: 0"))
    x.process.send_signal(signal.SIGHUP)
    t.wait_for(lambda: any(row["reason"] == "no room: 'workers.count' is 0" for row in a.rows(pool, "nodes")), 60, 0.1)
    t.wait_for(lambda: not x.guests(), 60)
    x.configure(YAML)
    x.process.send_signal(signal.SIGHUP)
    t.wait_for(lambda: x.text().count("configuration read again") == 2, 60)
    assert "need a restart" not in x.text(), x.text()
    pool.worker(pool.key("node", "other"))
    finish(dir, pool, job, inp, gate, out)


def test_doctor_knows_a_pool_elsewhere(dir):
    port = t.free_ports(1)
    for env in ({"EBB_DAEMON": f"tcp://127.0.0.1:{port}"}, {"EBB_DAEMON": "ipc:///nowhere"}):
        rc, o, e = t.run([t.EBB, "doctor"], env={"EBB_SOCKET": "", "XDG_CONFIG_HOME": dir, **env})
        assert rc == 1 and "BAD" in o, (o, e)


if __name__ == "__main__":
    t.main(globals())
