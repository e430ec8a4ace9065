"""Workers that do not see a job's files: served through the daemon, with the same bytes as a direct run, whatever is hidden from them and whatever dies in between.

Another host is a mount namespace in which the folders that it is not to see are empty; where that is not allowed those tests are skipped, and the one through
/proc/self/cwd, which needs no privilege, remains."""
import csv
import glob
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ebbtest as t


def need_namespaces():
    p = subprocess.run(["unshare", "-m", "sh", "-c", "mount -t tmpfs none /mnt"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if p.returncode:
        raise t.Skip("no mount namespaces of one's own: " + p.stderr.decode().strip().splitlines()[-1])


class Far:
    """A worker on another host: `hide` are folders that it finds empty; `inside` are shell commands that are run in there first."""

    def __init__(self, pool, name, hide=(), inside=(), host=None, env=None, cwd="/", more=(), connect=None):
        self.dir = os.path.join(pool.dir, "hosts", host or name)
        os.makedirs(self.dir, exist_ok=True)
        self.log = os.path.join(self.dir, name + ".log")
        args = [t.WORKER, "--connect", connect or f"ipc://{pool.runtime}/workers", "--blackbox", os.path.join(self.dir, name + ".box"), "--host", host or name,
                "--name", name, "--lanes", "2", "--pack-cache", os.path.join(self.dir, "packs"), *more]
        lines = [f"mount -t tmpfs none '{d}'" for d in hide] + list(inside)
        if lines:
            args = ["unshare", "-m", "sh", "-c", " && ".join(lines + ['exec "$@"']), "sh", *args]
        env = {**os.environ, "EBB_TEST_DIR": pool.dir, **(env or {})}
        env.pop("EBB_PACK_CACHE", None)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(args, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def text(self):
        with open(self.log, errors="replace") as f:
            return f.read()

    def says(self, words):
        if words not in self.text():
            raise AssertionError(f"the worker does not say {words!r}:\n{self.text()}")

    def wait_says(self, words, seconds=90):
        try:
            t.wait_for(lambda: words in self.text(), seconds)
        except AssertionError:
            self.says(words)

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30 * t.SLOW)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return self.process.returncode

    def kill(self):
        self.process.kill()
        self.process.wait()


def configured(dir, text):
    path = os.path.join(dir, "ebbd.yaml")
    with open(path, "w") as f:
        f.write(text)
    return ["--config", path]


def pool_log(pool):
    with open(pool.log, errors="replace") as f:
        return f.read()


def submit(pool, model, inputs, out, *more):
    args = ["submit", "--json", "--model", model, "--output", out, *more]
    for i in inputs if isinstance(inputs, list) else [inputs]:
        args += ["--input", i]
    return json.loads(pool.ebb(*args)[1].splitlines()[0])["job"]


def done(pool, job, workers=(), seconds=120):
    try:
        return pool.wait_state(job, "done", seconds)
    except AssertionError:
        raise AssertionError(f"{pool.job(job)}\n{pool_log(pool)[-5000:]}\n" + "\n".join(w.text()[-4000:] for w in workers))


def mixed_input(folder):
    """Plain and compressed sources, with bad records in them."""
    os.makedirs(folder, exist_ok=True)
    a = t.write_jsonl(os.path.join(folder, "a.jsonl"), 4000, seed=1)
    with open(a, "a", encoding="utf-8") as f:
        f.write("{not json\n\n[1,2]\n" + json.dumps({"id": "last", "text": "without a line end"}))
    b = t.write_jsonl(os.path.join(folder, "b.jsonl"), 3000, seed=2, text=lambda i: None if i % 100 else "")
    with open(b, "rb") as f, gzip.open(b + ".gz", "wb") as g:
        g.write(f.read())
    os.unlink(b)
    os.makedirs(os.path.join(folder, "deeper"), exist_ok=True)
    c = t.write_jsonl(os.path.join(folder, "deeper", "c.jsonl"), 2000, seed=3)
    if shutil.which("zstd"):
        subprocess.run(["zstd", "-q", "--rm", c], check=True)
    return folder


def test_hidden_or_not_the_bytes_are_the_same(dir):
    need_namespaces()
    model, inp = t.tiny_model(), mixed_input(os.path.join(dir, "in"))
    direct = os.path.join(dir, "direct")
    t.ebb_run(model, inp, direct, want=3)
    pool = t.Pool(dir, workers=0)
    models = os.path.dirname(model)
    for name, hide, want in (
            ("none", [], ["'/in/' are read directly", "parts are written directly"]),
            ("input", ["in"], ["'/in/' are read through the daemon", "'/in/deeper/' are read through the daemon", "parts are written directly"]),
            ("output", ["out"], ["'/in/' are read directly", "parts are written through the daemon"]),
            ("both", ["in", "out"], ["'/in/' are read through the daemon", "parts are written through the daemon"]),
            ("all", ["in", "out", models], ["'/in/' are read through the daemon", "parts are written through the daemon", "fetched from the daemon"])):
        folder = os.path.join(dir, "out")
        os.makedirs(folder)
        out = os.path.join(folder, name)
        # its own namespace even when nothing is hidden: it is not taken for granted what is seen
        w = Far(pool, name, hide=[os.path.join(dir, h) for h in hide], inside=["true"])
        job = submit(pool, model, inp, out)
        done(pool, job, [w])
        assert w.end() == 0, w.text()
        for words in want:
            w.says(words.replace("'/", f"'{dir}/"))
        t.same_output(direct, out)
        leftovers = glob.glob(os.path.join(out, "**", ".see-*"), recursive=True) + glob.glob(os.path.join(out, "**", ".up-*"), recursive=True)
        assert not leftovers, leftovers
        shutil.rmtree(folder)
    pool.stop()


def test_who_sees_what_the_daemon_sees_asks_for_nothing(dir):
    model, inp, out = t.tiny_model(), t.write_jsonl(os.path.join(dir, "in.jsonl"), 500), os.path.join(dir, "out")
    pool = t.Pool(dir, workers=0)
    w = Far(pool, "near")
    done(pool, submit(pool, model, inp, out), [w])
    w.end()
    assert "the daemon:" not in w.text() and "directly" not in w.text(), w.text()
    pool.stop()


def test_without_any_privilege(dir):
    """Every process has its own /proc/self/cwd: the daemon's and the client's is the folder with the data, the worker's is not."""
    data = os.path.join(dir, "data")
    mixed_input(os.path.join(data, "in"))
    shutil.copytree(t.tiny_model(), os.path.join(data, "model"))
    direct = os.path.join(dir, "direct")
    here = os.getcwd()
    os.chdir(data)
    try:
        t.ebb_run("/proc/self/cwd/model", "/proc/self/cwd/in", direct, want=3)
        pool = t.Pool(dir, workers=0)
        w = Far(pool, "far", env={"EBB_FAULT": "sight:0:EIO"})
        done(pool, submit(pool, "/proc/self/cwd/model", "/proc/self/cwd/in", "/proc/self/cwd/out"), [w])
        w.end()
        w.says("sources in '/proc/self/cwd/in/' are read through the daemon")
        w.says("parts are written through the daemon")
        w.says("fetched from the daemon")
        # names of sources stand in errors.jsonl
        t.same_output(direct, os.path.join(data, "out"))
        pool.stop()
    finally:
        os.chdir(here)


def test_a_file_of_the_same_name_is_not_the_same(dir):
    """Same path, size and time, other bytes: it must come through the daemon. And one that is newer than the daemon's does not hold the job."""
    need_namespaces()
    model, folder = t.tiny_model(), os.path.join(dir, "in")
    os.makedirs(folder)
    inp = t.write_jsonl(os.path.join(folder, "a.jsonl"), 3000, seed=1)
    decoy = t.write_jsonl(os.path.join(dir, "decoy.jsonl"), 3000, seed=1, text=lambda i: "otherwise" if i == 2500 else None)
    size = os.path.getsize(inp)
    with open(decoy, "rb") as f:
        text = f.read()
    with open(decoy, "wb") as f:
        f.write((text + b" " * size)[:size])
    os.utime(decoy, ns=(os.stat(inp).st_atime_ns, os.stat(inp).st_mtime_ns))
    direct = os.path.join(dir, "direct")
    t.ebb_run(model, inp, direct)
    pool = t.Pool(dir, workers=0)
    hidden = f"mount -t tmpfs none '{folder}'"
    w = Far(pool, "decoy", inside=[hidden, f"cp -p '{decoy}' '{inp}'"])
    done(pool, submit(pool, model, inp, os.path.join(dir, "out1")), [w])
    w.end()
    w.says("the file of that name here is another one")
    t.same_output(direct, os.path.join(dir, "out1"))

    # the first source of the folder is the daemon's, the second is not: what was begun with goes back, and the rest comes through the daemon
    second = t.write_jsonl(os.path.join(folder, "b.jsonl"), 3000, seed=2)
    t.ebb_run(model, folder, os.path.join(dir, "direct2"))
    w = Far(pool, "newer", inside=[f"cp -p '{inp}' '{dir}/keep.jsonl'", hidden, f"cp -p '{dir}/keep.jsonl' '{inp}'", f"cp '{decoy}' '{second}'"])
    done(pool, submit(pool, model, folder, os.path.join(dir, "out2")), [w])
    w.end()
    w.says("are read directly")
    w.says("are read through the daemon from now on")
    t.same_output(os.path.join(dir, "direct2"), os.path.join(dir, "out2"))
    pool.stop()


def test_other_formats(dir):
    """CSV with line ends in quotes, images as sources, images that records name, arrays."""
    need_namespaces()
    pool = t.Pool(dir, workers=0)
    folder = os.path.join(dir, "in")
    os.makedirs(folder)
    table = os.path.join(folder, "table.csv")
    with open(table, "w", newline="") as f:
        rows = csv.writer(f)
        rows.writerow(["id", "text"])
        for i in range(2000):
            rows.writerow([i, f"a line, \"quoted\" {i}\nand another" if i % 3 else f"plain {i}"])
        f.write("5,too,many\n")
    photos = os.path.join(folder, "photos")
    shutil.copytree(os.path.join(t.TOP, "tests/golden/images"), photos)
    with open(os.path.join(photos, "text.png"), "w") as f:
        f.write("no picture")
    named = os.path.join(folder, "named.jsonl")
    names = sorted(os.listdir(photos))
    with open(named, "w") as f:
        for i, name in enumerate(names * 3):
            f.write(json.dumps({"id": i, "image": "photos/" + name}) + "\n")
        for bad in ("photos/missing.jpg", "../../etc/passwd", "/etc/passwd", "photos", ""):
            f.write(json.dumps({"id": bad, "image": bad}) + "\n")
    image_model = os.path.join(t.TOP, "tests/golden/imagemodel")
    w = Far(pool, "far", hide=[folder])
    for model, inp, want in ((t.tiny_model(), table, 3), (image_model, photos, 3), (image_model, named, 3)):
        name = os.path.basename(inp)
        direct, out = os.path.join(dir, "direct-" + name.split(".")[0]), os.path.join(dir, "out-" + name.split(".")[0])
        t.ebb_run(model, inp, direct, want=want)
        done(pool, submit(pool, model, inp, out), [w])
        t.same_output(direct, out)
    # a worker that sees the list and not the pictures
    w.end()
    w = Far(pool, "half", hide=[photos])
    done(pool, submit(pool, image_model, named, os.path.join(dir, "out-half")), [w])
    w.end()
    w.says("are read directly")
    t.same_output(os.path.join(dir, "direct-named"), os.path.join(dir, "out-half"))
    pool.stop()


def big_rows(dir):
    """A job whose parts take several messages."""
    return t.tiny_model(hidden=64), t.write_jsonl(os.path.join(dir, "in", "a.jsonl"), 12000, seed=5)


def test_workers_and_daemons_die_in_mid_upload(dir):
    need_namespaces()
    os.makedirs(os.path.join(dir, "in"))
    model, inp = big_rows(dir)
    direct = os.path.join(dir, "direct")
    t.ebb_run(model, inp, direct)
    hide = [os.path.join(dir, "in"), os.path.join(dir, "hidden")]
    for i, (who, fault) in enumerate((("worker", "remote.part.send:3:kill"), ("worker", "worker.read:500:kill"), ("daemon", "relay.part.write:2:kill"),
                                      ("daemon", "relay.part.fsync:1:kill"), ("daemon", "relay.part.name:1:kill"), ("daemon", "relay.part.dirsync:1:kill"),
                                      ("daemon", "relay.read:3:kill"))):
        case = os.path.join(dir, f"case{i}")
        os.makedirs(case)
        os.makedirs(hide[1])
        faults = {"EBB_FAULT": fault, "EBB_FAULT_ONCE": os.path.join(case, "once")}
        pool = t.Pool(case, *configured(case, "worker_timeout: 2s\n"), workers=0, env=faults if who == "daemon" else {})
        out = os.path.join(hide[1], "out")
        w = Far(pool, "one", hide=hide, env=faults if who == "worker" else {"EBB_FAULT": ""})
        job = submit(pool, model, inp, out, "--commit", "100ms")
        t.wait_for(lambda: os.path.exists(faults["EBB_FAULT_ONCE"]), 60)
        if who == "daemon":
            pool.process.wait(30)
            pool.start()
        else:
            assert w.process.wait(30) == -signal.SIGKILL
            w = Far(pool, "two", hide=hide)
        done(pool, job, [w])
        w.end()
        pool.stop()
        t.same_output(direct, out)
        shutil.rmtree(hide[1])


def test_what_fails_now_and_then_is_tried_again(dir):
    need_namespaces()
    os.makedirs(os.path.join(dir, "in"))
    model, inp = big_rows(dir)
    direct = os.path.join(dir, "direct")
    t.ebb_run(model, inp, direct)
    faults = "relay.read:2:EIO,relay.part.open:2:EACCES,relay.part.write:4:ENOSPC,relay.part.fsync:3:EIO,relay.part.name:4:EIO,relay.part.dirsync:4:EIO"
    pool = t.Pool(dir, workers=0, env={"EBB_FAULT": faults})
    hidden = os.path.join(dir, "hidden")
    os.makedirs(hidden)
    w = Far(pool, "far", hide=[os.path.join(dir, "in"), hidden], env={"EBB_FAULT": ""})
    out = os.path.join(hidden, "out")
    done(pool, submit(pool, model, inp, out, "--commit", "100ms"), [w])
    w.end()
    w.says("through the daemon: cannot")
    pool.stop()
    t.same_output(direct, out)


def test_a_source_that_changes_holds_the_job(dir):
    need_namespaces()
    model, folder, out = t.tiny_model(), os.path.join(dir, "in"), os.path.join(dir, "out")
    os.makedirs(folder)
    inp = t.write_jsonl(os.path.join(folder, "a.jsonl"), 2000)
    pool = t.Pool(dir, workers=0)
    job = submit(pool, model, inp, out)
    os.utime(inp, (1, 1))
    w = Far(pool, "far", hide=[folder])
    pool.wait_state(job, "held")
    reason = pool.job(job)["reason"]
    assert "changed since the job was submitted" in reason, reason
    w.end()
    pool.stop()


def gated_input(dir, gate):
    """Enough for a first lease of each of many workers, who all wait at the gate; little work."""
    filler = "tide and sand " * 2000
    return t.write_jsonl(os.path.join(dir, "in.jsonl"), 150, text=lambda i: t.gated(gate, i, 0) + filler)


def test_one_fetch_for_a_host_and_few_from_the_daemon(dir):
    need_namespaces()
    gate = os.path.join(dir, "gate")
    model, inp = t.tiny_model(), gated_input(dir, gate)
    pool = t.Pool(dir, workers=0)
    out = os.path.join(dir, "out")
    job = submit(pool, model, inp, out)
    hook = {"EBB_TEST_HOOK": "1"}
    workers = [Far(pool, f"h{h}w{w}", host=f"h{h}", hide=[os.path.dirname(model)], env=hook) for h in range(4) for w in range(2)]
    for w in workers:
        w.wait_says("is loaded in")
    t.open_gate(gate)
    done(pool, job, workers)
    texts = [w.text() for w in workers]
    for w in workers:
        w.end()
    for h in range(4):
        both = texts[2 * h] + texts[2 * h + 1]
        assert both.count("fetched from the daemon") + both.count("fetched from another host") == 1, both
    from_here = pool_log(pool).count(" reads model ")
    assert 1 <= from_here <= 2, pool_log(pool)
    assert sum("fetched from the daemon" in x for x in texts) == from_here, texts
    t.ebb_run(model, inp, os.path.join(dir, "direct"), env=hook)
    t.same_output(os.path.join(dir, "direct"), out)
    pool.stop()


def test_from_host_to_host(dir):
    """The second host has the model from the first; a third from neither: one gives wrong bytes by now, the other was killed. Then the daemon helps. Who has
    said goodbye is asked no more."""
    need_namespaces()
    gate = os.path.join(dir, "gate")
    model, inp = t.tiny_model(), gated_input(dir, gate)
    pool = t.Pool(dir, workers=0)
    out = os.path.join(dir, "out")
    job = submit(pool, model, inp, out)
    hook = {"EBB_TEST_HOOK": "1"}

    def join(name):
        w = Far(pool, name, hide=[os.path.dirname(model)], env=hook)
        w.wait_says("is loaded in")
        return w

    a = join("a")
    a.says("fetched from the daemon")
    b = join("b")
    b.says("fetched from another host")
    assert pool_log(pool).count(" reads model ") == 1, pool_log(pool)
    b.kill()
    words = glob.glob(os.path.join(a.dir, "models", "[0-9a-f]*", "tokenizer.json"))[0]  # it has been read: a itself is well
    with open(words, "r+b") as f:
        f.seek(100)
        f.write(b"#")
    c = join("c")
    c.says("it gives wrong bytes of 'tokenizer.json'")
    c.says("it does not answer")
    c.says("fetched from the daemon")
    d = join("d")  # whose first peer may be any of them
    d.says("fetched from another host")
    gives_at = d.text().split("given to others at ")[1].split()[0]
    d.end()
    t.wait_for(lambda: "worker d: goodbye" in pool_log(pool), 30)
    e = join("e")  # the last one that had it would have been asked first
    e.says("fetched from ")
    assert gives_at not in e.text(), e.text()
    t.open_gate(gate)
    done(pool, job, [a, c, e])
    for w in (a, c, e):
        w.end()
    t.ebb_run(model, inp, os.path.join(dir, "direct"), env=hook)
    t.same_output(os.path.join(dir, "direct"), out)
    pool.stop()


def test_over_the_network(dir):
    """tcp and CURVE, with the relay two ports behind the workers': a key that was revoked reads nothing any more."""
    need_namespaces()
    folder = os.path.join(dir, "in")
    os.makedirs(folder)
    gate, model = os.path.join(dir, "gate"), t.tiny_model()
    inp = t.write_jsonl(os.path.join(folder, "a.jsonl"), 4000, text=lambda i: t.gated(gate, i, 2000))
    os.makedirs(os.path.join(dir, "state"))
    t.run([t.EBB, "keygen", "--state", os.path.join(dir, "state")])
    port = t.free_ports(3)
    pool = t.Pool(dir, *configured(dir, f"listen: tcp://127.0.0.1:{port}\nroots: [{dir}, {t.TOP}]\nworker_timeout: 3s\n"), workers=0)
    hidden = os.path.join(dir, "hidden")
    os.makedirs(hidden)
    out, hook = os.path.join(hidden, "out"), {"EBB_TEST_HOOK": "1"}

    def keys(*words):
        rc, _, e = t.run([t.EBB, "keys", *words, "--socket", os.path.join(pool.runtime, "clients")])
        assert rc == 0, e

    def join(name):
        key = os.path.join(dir, name + ".key")
        keys("add", "--node", "--name", name, key)
        return Far(pool, name, hide=[folder, hidden, os.path.dirname(model)], connect=f"tcp://127.0.0.1:{port}", more=["--key-file", key], env=hook)

    job = submit(pool, model, inp, out, "--commit", "100ms")
    a = join("a")
    a.wait_says("are written through the daemon")
    keys("revoke", "a")
    t.wait_for(lambda: a.process.poll() is not None or "refuse" in a.text(), 90)
    a.kill()
    b = join("b")
    b.wait_says("is loaded in")
    t.open_gate(gate)
    done(pool, job, [b])
    b.end()
    b.says("are read through the daemon")
    t.ebb_run(model, inp, os.path.join(dir, "direct"), env=hook)
    t.same_output(os.path.join(dir, "direct"), out)
    pool.stop()


def test_a_damaged_cache_is_fetched_again(dir):
    need_namespaces()
    model, inp = t.tiny_model(), t.write_jsonl(os.path.join(dir, "in.jsonl"), 300, seed=3)
    direct = os.path.join(dir, "direct")
    t.ebb_run(model, inp, direct)
    pool = t.Pool(dir, workers=0)
    for i in range(3):
        w = Far(pool, f"w{i}", host="h", hide=[os.path.dirname(model)])
        out = os.path.join(dir, f"out{i}")
        done(pool, submit(pool, model, inp, out), [w])
        w.end()
        t.same_output(direct, out)
        if i == 1:
            assert "fetched" not in w.text(), w.text()
            weights = glob.glob(os.path.join(w.dir, "models", "[0-9a-f]*", "model.safetensors"))[0]
            with open(weights, "r+b") as f:
                f.seek(-5, os.SEEK_END)
                f.write(b"wrong")
    w.says("is damaged: it is fetched again")
    w.says("fetched from the daemon")
    pool.stop()


if __name__ == "__main__":
    t.main(globals())
