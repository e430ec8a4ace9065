"""The network: a pool on tcp with keys. Who has none, a wrong one or a revoked one stays out; whoever means harm does none; the output is the same bytes."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import json
import random
import re
import resource
import signal
import socket
import stat
import subprocess
import time

import ebbtest as t

HOSTILE = os.path.join(t.BUILD, "tests", "hostile")
AGENT = os.path.join(t.BUILD, "bin", "ebb-agent")
HOOK = {"EBB_TEST_HOOK": "1"}


def free_ports():
    """Three in a row that nobody listens at."""
    while True:
        port = random.randint(20000, 32000)
        held = []
        try:
            for p in range(port, port + 3):
                s = socket.socket()
                held.append(s)
                s.bind(("127.0.0.1", p))
            return port
        except OSError:
            pass
        finally:
            for s in held:
                s.close()


class NetPool(t.Pool):
    def __init__(self, dir, config=""):
        self.port = free_ports()
        os.makedirs(dir, exist_ok=True)
        state = os.path.join(dir, "state")
        rc, o, e = t.run([t.EBB, "keygen", "--state", state])
        assert rc == 0, e
        self.public = o.strip()
        self.config = os.path.join(dir, "ebbd.yaml")
        with open(self.config, "w") as f:
            f.write(f"listen: tcp://127.0.0.1:{self.port}\nroots: [{dir}, {t.BUILD}]\nworker_timeout: 5s\n{config}")
        self.started = []
        super().__init__(dir, "--config", self.config, env=HOOK, workers=0)

    @property
    def workers_at(self):
        return f"tcp://127.0.0.1:{self.port}"

    @property
    def clients_at(self):
        return f"tcp://127.0.0.1:{self.port + 1}"

    def key(self, role, name):
        path = os.path.join(self.dir, name + ".key")
        rc, o, e = t.run([t.EBB, "keys", "add", "--socket", os.path.join(self.runtime, "clients"), f"--{role}", "--name", name, path])
        assert rc == 0, e
        return path

    def keys(self, *words, want=0):
        rc, o, e = t.run([t.EBB, "keys", *words, "--socket", os.path.join(self.runtime, "clients")])
        assert rc == want, (rc, o, e)
        return o

    def worker(self, key, at=None, number=None):
        n = len(self.started) + 1
        err = os.path.join(self.dir, f"worker-{n}.log")
        with open(err, "wb") as log:
            p = subprocess.Popen([t.WORKER, "--connect", at or self.workers_at, "--key-file", key, "--number", str(number or random.getrandbits(62) | 1),
                                  "--name", f"w{n}", "--blackbox", os.path.join(self.dir, f"box-{n}")], env=self.env, stderr=log, stdin=subprocess.DEVNULL)
        p.log = err
        self.started.append(p)
        return p

    def said(self):
        with open(self.log, errors="replace") as f:
            return f.read()

    def wait_said(self, words):
        return t.wait_for(lambda: words in self.said(), 30)

    def tcp(self, key, *words, want=0, at=None):
        rc, o, e = t.run([t.EBB, "--daemon", at or self.clients_at, "--key-file", key, *words], env={"XDG_CONFIG_HOME": os.path.join(self.dir, "config")})
        if want is not None:
            assert rc == want, f"ebb {' '.join(words)} ended with {rc}\n{o}{e}\n{self.said()[-3000:]}"
        return rc, o, e

    def stop(self):
        for p in self.started:
            if p.poll() is None:
                p.kill()
            p.wait()
        super().stop()


def with_net(f):
    def body(dir):
        pool = NetPool(dir)
        try:
            f(dir, pool)
        finally:
            pool.stop()

    body.__name__ = f.__name__
    return body


def log_of(p):
    with open(p.log, errors="replace") as f:
        return f.read()


def records(dir, count=600, free=200, gate=None):
    """An input whose records behind the first `free` wait for the gate; the same texts without a gate give the reference."""
    gate = gate or os.path.join(dir, "gate")
    return t.write_jsonl(os.path.join(dir, "in.jsonl"), count, text=lambda i: t.gated(gate, i, free)), gate


def spec(dir, inp, name="job"):
    out, path = os.path.join(dir, "out"), os.path.join(dir, name + ".yaml")
    with open(path, "w") as f:
        f.write(f"name: {name}\nmodel: {t.tiny_model()}\ninput: {{ glob: {inp}, field: text, id: id }}\noutput: {{ dir: {out}, format: jsonl }}\n")
    return path, out


def reference(dir, inp, gate):
    """What a run on this machine alone makes of it, over ipc. The gate must be open."""
    assert os.path.exists(gate)
    out = os.path.join(dir, "reference")
    t.ebb_run(t.tiny_model(), inp, out, "--field", "text", "--id", "id", env=HOOK)
    return out


def submit(pool, key, path):
    return json.loads(pool.tcp(key, "submit", path, "--json")[1].splitlines()[0])["job"]


def finish(dir, pool, job, inp, gate, out):
    t.open_gate(gate)
    pool.wait_state(job, "done")
    t.same_output(out, reference(dir, inp, gate))


def wait_end(p, code):
    t.wait_for(lambda: p.poll() is not None, 30)
    assert p.returncode == code, (p.returncode, log_of(p))


def other_server(pool, key):
    """The same key file, with another daemon's key pinned."""
    rc, o, e = t.run([t.EBB, "keygen", "--state", os.path.join(pool.dir, "elsewhere"), "--force"])
    path = key + ".wrong"
    with open(key) as f:
        lines = [f"server: {o.strip()}\n" if line.startswith("server:") else line for line in f]
    with open(path, "w", opener=lambda p, flags: os.open(p, flags, 0o600)) as f:
        f.writelines(lines)
    return path


@with_net
def test_a_job_by_tcp_gives_the_same_bytes_through_a_restart(dir, pool):
    node, client = pool.key("node", "node"), pool.key("client", "client")
    inp, gate = records(dir)
    path, out = spec(dir, inp)
    job = submit(pool, client, path)
    a, b = pool.worker(node), pool.worker(node)
    t.wait_for(lambda: pool.job(job)["records_done"] > 50, 30)
    pool.kill()
    pool.start()
    for n in ("w1", "w2"):  # they come back with what they hold
        t.wait_for(lambda: f"worker {n}: joined" in pool.said().split("generation 2", 1)[-1], 30)
    assert re.search("holds [1-9][0-9]* leases", pool.said().split("generation 2", 1)[1]), pool.said()
    finish(dir, pool, job, inp, gate, out)
    assert a.poll() is None and b.poll() is None, log_of(a) + log_of(b)
    assert json.loads(pool.tcp(client, "status", str(job), "--json")[1].splitlines()[0])["state"] == "done"


@with_net
def test_keys_that_do_not_fit_open_nothing(dir, pool):
    node, client = pool.key("node", "node"), pool.key("client", "client")
    inp, gate = records(dir)
    path, out = spec(dir, inp)
    job = submit(pool, client, path)
    pool.worker(node)
    t.wait_for(lambda: pool.job(job)["records_done"] > 50, 30)
    # a client with the daemon's key pinned wrongly, one that is not known, a node's key at the clients' port and the other way round
    rc, o, e = pool.tcp(other_server(pool, client), "jobs", want=1)
    assert "is not the daemon whose public key is" in e, e
    pool.wait_said("knows another public key of the daemon")
    strange = NetKey(pool, client, "client")
    rc, o, e = pool.tcp(strange, "jobs", want=2)
    assert "does not let the key" in e, e
    pool.wait_said("is not known here")
    rc, o, e = pool.tcp(node, "jobs", want=2)
    assert "is one of a worker or an agent" in e, e
    forged = client + ".node"
    with open(client) as f, open(forged, "w", opener=lambda p, flags: os.open(p, flags, 0o600)) as g:
        g.write(f.read().replace("role: client", "role: node"))
    w = pool.worker(forged)
    wait_end(w, 2)
    assert "does not let this worker in" in log_of(w), log_of(w)
    pool.wait_said("'client' has the key of a client, and this is the port for nodes")
    rc, o, e = t.run([HOSTILE, "flood", pool.clients_at, node, "1"])
    assert rc == 1 and "does not let the key" in e, (rc, e)
    # no keys at all
    for at in (pool.workers_at, pool.clients_at):
        rc, o, e = t.run([HOSTILE, "plain", at])
        assert (rc, o.strip()) == (0, "silence"), (rc, o, e)
    pool.wait_said("it speaks without keys")
    rc, o, e = t.run([t.WORKER, "--connect", pool.workers_at, "--number", "5", "--blackbox", os.path.join(dir, "b")])
    assert rc == 2 and "ebb invite" in e, (rc, e)
    # what a client of another machine may not
    for words in (("keys", "list"), ("invite", "--client"), ("keys", "add", "--node", os.path.join(dir, "x.key")), ("keys", "revoke", "node")):
        rc, o, e = pool.tcp(client, *words, want=2)
        assert "on the daemon's own machine alone" in e, e
    outside = os.path.join("/var/tmp", "ebb-outside-roots")
    rc, o, e = pool.tcp(client, "submit", "--model", t.tiny_model(), "--input", inp, "--field", "text", "--output", outside, want=2)
    assert "roots" in e and not os.path.exists(outside), e
    finish(dir, pool, job, inp, gate, out)


def NetKey(pool, like, role):
    """A key file that nobody has authorised, with this daemon's key pinned."""
    other = os.path.join(pool.dir, "stranger")
    t.run([t.EBB, "keygen", "--state", other, "--force"])
    path = os.path.join(pool.dir, "stranger.key")
    with open(os.path.join(other, "keys", "daemon.key")) as f, open(path, "w", opener=lambda p, flags: os.open(p, flags, 0o600)) as g:
        g.write(f.read().replace("role: daemon", f"role: {role}") + f"server: {pool.public}\n")
    return path


@with_net
def test_a_revoked_key_is_dropped_in_the_middle(dir, pool):
    bad, good, client, other = pool.key("node", "bad"), pool.key("node", "good"), pool.key("client", "client"), pool.key("client", "other")
    inp, gate = records(dir)
    path, out = spec(dir, inp)
    job = submit(pool, client, path)
    w = pool.worker(bad)
    t.wait_for(lambda: pool.job(job)["records_done"] > 50, 30)
    assert "bad" in pool.keys("list")
    pool.keys("revoke", "bad")
    wait_end(w, 2)
    pool.wait_said("worker w1: its key was revoked")
    assert not pool.ebb("workers", "--json")[1].strip()
    wait_end(pool.worker(bad), 2)
    assert pool.keys("revoke", "bad", want=2) == ""
    # by hand, in the file; a line that is none lets nobody in and harms no other
    listed = os.path.join(pool.state, "keys", "authorized_keys")
    assert stat.S_IMODE(os.stat(listed).st_mode) == 0o600
    pool.tcp(other, "jobs")
    with open(listed) as f:
        lines = [line for line in f if not line.rstrip().endswith(" other")]
    with open(listed, "w") as f:
        f.writelines(lines + ["node what?\n"])
    pool.wait_said("lets nobody in: its second word is not a key")
    pool.tcp(other, "jobs", want=2)
    pool.tcp(client, "jobs")
    pool.worker(good)
    finish(dir, pool, job, inp, gate, out)


@with_net
def test_invitations(dir, pool):
    at = os.path.join(pool.runtime, "clients")

    def invite(*words):
        rc, o, e = t.run([t.EBB, "invite", "--socket", at, *words])
        assert rc == 0, e
        return o.split()

    home = {"XDG_CONFIG_HOME": os.path.join(dir, "home")}
    words = invite("--client", "--name", "anna")
    assert words[:2] == ["ebb", "join"] and words[2] == pool.clients_at, words
    text = words[4]
    typo = text[:50] + ("q" if text[50] != "q" else "p") + text[51:]
    for wrong, says in ((typo, "checksum"), (text[:-3], "missing"), (text[:20] + "b" + text[21:], "character 21"), ("hello", "no invitation")):
        rc, o, e = t.run([t.EBB, "join", words[2], "--key", wrong], env=home)
        assert rc == 2 and says in e, (rc, e)
    rc, o, e = t.run([t.EBB, *words[1:]], env=home)
    assert rc == 0 and "as 'anna'" in o, (rc, o, e)
    key = os.path.join(dir, "home", "ebb", "client.key")
    assert stat.S_IMODE(os.stat(key).st_mode) == 0o600 and not os.path.exists(key + ".joining")
    assert pool.tcp(key, "jobs")[0] == 0
    by_env = {**home, "EBB_DAEMON": pool.clients_at[len("tcp://"):], "EBB_KEY_FILE": key}
    assert t.run([t.EBB, "jobs"], env=by_env)[0] == 0
    assert t.run([t.EBB, "--daemon", pool.clients_at, f"--key-file={key}", "jobs"], env=home)[0] == 0
    rc, o, e = t.run([t.EBB, "jobs", "--daemon", "localhost:1", "--key-file", key], env=home)
    assert rc == 1 and "no daemon can be reached at 'tcp://localhost:1'" in e, (rc, e)
    rc, o, e = t.run([t.EBB, "jobs", "--daemon", pool.clients_at, "--key-file", key + ".none"], env=home)
    assert rc == 2 and "ebb invite --client" in e, (rc, e)
    # once; never over a key that is there
    rc, o, e = t.run([t.EBB, *words[1:]], env=home)
    assert rc == 2 and "already" in e, (rc, e)
    before = open(key).read()
    rc, o, e = t.run([t.EBB, *words[1:], "--force"], env=home)
    assert rc == 2 and "does not take this invitation" in e and open(key).read() == before, (rc, e)
    # a node's: for the other program, and it is over
    words = invite("--node", "--valid", "2s")
    rc, o, e = t.run([t.EBB, *words[1:3], "--key", words[4], "--key-file", os.path.join(dir, "no.key")], env=home)
    assert rc == 2 and "ebb-agent join" in e, (rc, e)
    time.sleep(2.1)
    rc, o, e = t.run([AGENT, *words[1:], "--dir", os.path.join(dir, "agent")])
    assert rc == 2 and "does not take this invitation" in e, (rc, e)
    words = invite("--node", "--name", "box")
    rc, o, e = t.run([AGENT, *words[1:], "--dir", os.path.join(dir, "agent")])
    assert rc == 0 and "as 'box'" in o, (rc, o, e)
    w = pool.worker(os.path.join(dir, "agent", "node.key"))
    t.wait_for(lambda: "welcomed" in log_of(w), 30)
    # revoked before it was used
    words = invite("--client", "--name", "nobody")
    pool.keys("revoke", "nobody")
    rc, o, e = t.run([t.EBB, *words[1:]], env={"XDG_CONFIG_HOME": os.path.join(dir, "home2")})
    assert rc == 2 and "does not take this invitation" in e, (rc, e)
    # a configuration that would open every folder is not taken while the ports are open
    with open(pool.config) as f:
        text = f.read()
    with open(pool.config, "w") as f:
        f.write("\n".join(line for line in text.split("\n") if not line.startswith("roots")))
    pool.process.send_signal(signal.SIGHUP)
    pool.wait_said("the configuration stays as it is: 'roots' must be said")
    with open(pool.config, "w") as f:
        f.write(text)
    doctor = [json.loads(line) for line in t.run([t.EBB, "doctor", "--json", "--socket", at])[1].splitlines()]
    assert any(c["name"] == "network" and "2 keys, 0 open invitations" in c["text"] for c in doctor), doctor
    # what the daemon knows outlives it
    pool.kill()
    pool.start()
    assert pool.tcp(key, "jobs")[0] == 0
    names = {json.loads(line)["name"]: json.loads(line) for line in pool.keys("list", "--json").splitlines()}
    assert set(names) == {"anna", "box"} and not names["box"]["invitation"], names


def test_nothing_listens_without_keys(dir):
    state, config = os.path.join(dir, "state"), os.path.join(dir, "c.yaml")

    def start(text, *more):
        with open(config, "w") as f:
            f.write(text)
        return t.run([t.EBBD, "--config", config, "--state", state, "--runtime", os.path.join(dir, "run"), "--workers", "0", *more])

    port = free_ports()
    rc, o, e = start(f"listen: tcp://0.0.0.0:{port}\nroots: [/]\n")
    assert rc == 2 and "ebb keygen" in e and state in e, (rc, e)
    rc, o, e = start(f"listen: tcp://0.0.0.0:{port}\n")
    assert rc == 2 and "roots" in e, (rc, e)
    for wrong in ("0.0.0.0:5570", "tcp://:5570", "tcp://*:0", "tcp://*:65534", "ipc:///x", "tcp://a:b:5570", "tcp://[::1]", "[]x"):
        rc, o, e = start(f"listen: '{wrong}'\nroots: [/]\n")
        assert rc == 2 and "c.yaml:1" in e and "tcp://ADDRESS:PORT" in e, (wrong, rc, e)
    assert t.run([t.EBB, "keygen", "--state", state])[0] == 0
    own = os.path.join(state, "keys", "daemon.key")
    assert stat.S_IMODE(os.stat(own).st_mode) == 0o600 and stat.S_IMODE(os.stat(os.path.dirname(own)).st_mode) == 0o700
    before = open(own).read()
    rc, o, e = t.run([t.EBB, "keygen", "--state", state])
    assert rc == 2 and "--force" in e and open(own).read() == before, (rc, e)
    os.chmod(own, 0o644)
    rc, o, e = start(f"listen: tcp://0.0.0.0:{port}\nroots: [/]\n")
    assert rc == 2 and "chmod 600" in e, (rc, e)
    os.chmod(own, 0o600)
    with open(own, "w") as f:
        f.write(before.replace("secret: ", "secret: x"))
    rc, o, e = start(f"listen: tcp://0.0.0.0:{port}\nroots: [/]\n")
    assert rc == 2 and "daemon.key':4" in e, (rc, e)
    with open(own, "w") as f:
        f.write(before)
    busy = socket.socket()
    busy.bind(("127.0.0.1", port))
    busy.listen()
    rc, o, e = start(f"listen: [ tcp://127.0.0.1:{port} ]\nroots: [/]\n")
    assert rc == 1 and f"127.0.0.1:{port}" in e, (rc, e)
    busy.close()


@with_net
def test_garbage_and_slow_peers_hold_nothing_up(dir, pool):
    node, client = pool.key("node", "node"), pool.key("client", "client")
    inp, gate = records(dir)
    path, out = spec(dir, inp)
    job = submit(pool, client, path)
    pool.worker(node)
    t.wait_for(lambda: pool.job(job)["records_done"] > 50, 30)
    r = random.Random(1)
    held = []
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = 4096 if hard == resource.RLIM_INFINITY else min(hard, 4096)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))

    def connect(port):
        s = socket.create_connection(("127.0.0.1", port))
        held.append(s)
        return s

    def send(s, data):
        try:
            s.sendall(data)
        except OSError:
            pass  # it was shut already

    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(15) + b"\0" + bytes(31)
    for port in (pool.port, pool.port + 1, pool.port + 2):
        for i in range(40):
            send(connect(port), r.randbytes(r.choice([1, 10, 64, 100, 5000, 100000])))
        send(connect(port), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        for size in (2**63 - 1, 2**62, 2**32, (8 << 20) + 1, 0):  # a frame so long, and never all of it
            send(connect(port), greeting + b"\x06" + size.to_bytes(8, "big") + b"\x05HELLO" + r.randbytes(1000))
            send(connect(port), greeting + b"\x02" + size.to_bytes(8, "big") + r.randbytes(3000))
        send(connect(port), greeting + b"\x04\xc8\x05HELLO\x01\x00" + r.randbytes(192))
        send(connect(port), b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + b"\0" + bytes(31))
    drips = [connect(port) for port in (pool.port, pool.port + 1, pool.port + 2) for _ in range(5)]
    for i in range(min(900, most - 500)):
        connect(pool.port + i % 2)
    for i, byte in enumerate(greeting[:40]):
        for s in drips:
            send(s, bytes([byte]))
        if i % 10 == 0:
            assert pool.tcp(client, "status", str(job), "--json")[0] == 0
    pool.worker(node)
    t.wait_for(lambda: len(pool.ebb("workers", "--json")[1].splitlines()) == 2, 30)
    finish(dir, pool, job, inp, gate, out)
    pool.wait_said("refused: 127.0.0.1")  # at the latest when those that were silent have had their ten seconds
    assert pool.process.poll() is None
    for s in held:
        s.close()


@with_net
def test_hostile_peers_with_good_keys_do_no_harm(dir, pool):
    node, bad, client, rude = pool.key("node", "node"), pool.key("node", "bad"), pool.key("client", "client"), pool.key("client", "rude")
    inp, gate = records(dir, 2000, 1500)
    path, out = spec(dir, inp)
    job = submit(pool, client, path)
    t.open_gate(gate)
    for seed in range(1, 40 if t.SOAK else 3):
        rc, o, e = t.run([HOSTILE, "worker", pool.workers_at, bad, str(seed), "2000"])
        assert rc == 0, (rc, o, e, pool.said()[-3000:])
        assert pool.process.poll() is None, pool.said()[-3000:]
        if seed == 1:
            pool.worker(node)  # from now on an honest one beside them
        rc, o, e = t.run([HOSTILE, "worker", f"tcp://127.0.0.1:{pool.port + 2}", bad, str(seed), "1000"])  # at the relay
        assert rc == 0, (rc, o, e, pool.said()[-3000:])
        rc, o, e = t.run([HOSTILE, "client", pool.clients_at, rude, str(seed), "600"])
        assert rc == 0, (rc, o, e, pool.said()[-3000:])
    assert "0 leases" not in o
    pool.wait_state(job, "done")
    t.same_output(out, reference(dir, inp, gate))
    said = pool.said()
    assert "message dropped" in said
    assert "\nerror: forged line" not in said and "BUG" not in said, said[-3000:]
    assert not os.path.exists("/tmp/x\n")
    found = [os.path.join(at, f) for at, _, files in os.walk(os.path.join(dir, "out", ".ebb")) for f in files if ".." in f]
    assert not found, found
    rc, o, e = t.run([HOSTILE, "flood", pool.workers_at, bad, "50"])
    assert rc == 0, e
    pool.keys("revoke", "bad")
    rc, o, e = t.run([HOSTILE, "flood", pool.workers_at, bad, "1"])
    assert rc == 1 and "does not let the key" in e, (rc, o, e)
    assert pool.tcp(client, "status", str(job))[0] == 0


if __name__ == "__main__":
    t.main(globals())
