"""What the end-to-end and crash tests share: folders, tiny models, inputs, running and killing the real programs.

A test file defines functions named test_*; main() runs them, each in a folder of its own, and prints one line each: "ok: NAME",
"FAILED: NAME" with the trace, or "skip: NAME (reason)". Only Python's standard library is used."""
import glob
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(TOP, os.environ.get("BUILD") or "build")
EBB = os.path.join(BUILD, "bin", "ebb")
EBBD = os.path.join(BUILD, "bin", "ebbd")
WORKER = os.path.join(BUILD, "bin", "ebb-worker")
MINILM = os.environ.get("EBB_TEST_MODEL", os.path.join(TOP, "build/demo/all-MiniLM-L6-v2"))
GLOSSES = os.path.join(TOP, "build/demo/glosses.jsonl")
SOAK = bool(os.environ.get("EBB_SOAK"))
SANITIZE = os.environ.get("SANITIZE")
os.environ.setdefault("EBB_PACK_CACHE", os.path.join(BUILD, "tests", "packs"))  # not in the user's own
SLOW = 5 if SANITIZE else 1  # instrumented programs take longer
PATIENCE = 180 * SLOW  # what has not happened by then never does: no limit is shorter, for a slow machine is no defect

_models = {}


class Skip(Exception):
    pass


def make_model(name, *args):
    """The folder of a model that mkmodel makes; it appears whole, and anew when mkmodel was built anew."""
    path, maker = os.path.join(BUILD, "tests", "models", name), os.path.join(BUILD, "tests/mkmodel")
    if not os.path.exists(path) or os.stat(path).st_mtime < os.stat(maker).st_mtime:
        made = f"{path}.{os.getpid()}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        subprocess.run([maker, made, *args], check=True, stdout=subprocess.DEVNULL)
        shutil.rmtree(path, ignore_errors=True)
        os.rename(made, path)
    return path


def tiny_model(seed=1, hidden=32, layers=2):
    """A random sentence encoder that runs in microseconds; made once for each kind."""
    key = (seed, hidden, layers)
    if key not in _models:
        _models[key] = make_model(f"tiny-{seed}-{hidden}-{layers}", str(seed), str(hidden), str(layers))
    return _models[key]


def tiny_kind(*args):
    """A tiny random model of another kind: "family=roberta", "head=classify" (tests/lib/tinymodel.h)."""
    if args not in _models:
        _models[args] = make_model("-".join(a.replace("=", "_") for a in args), *args)
    return _models[args]


def write_jsonl(path, count, seed=1, text=None, words=12):
    """count records {"id", "text"}; text(i) may replace the random text."""
    r = random.Random(seed)
    vocab = ["river", "stone", "light", "quick", "harbour", "tide", "ebb", "flow", "salt", "wind", "moon", "drift", "sand", "shell", "a", "of"]
    with open(path, "w", encoding="utf-8") as f:
        for i in range(count):
            t = text(i) if text else None
            if t is None:
                t = " ".join(r.choice(vocab) for _ in range(r.randint(1, words)))
            f.write(json.dumps({"id": f"r{i}", "text": t}, ensure_ascii=False) + "\n")
    return path


def run(args, env=None, timeout=120, stdin=None, cwd=None):
    """Runs a program to its end; returns (exit code, stdout, stderr)."""
    p = subprocess.run(args, env={**os.environ, **(env or {})}, timeout=max(timeout * SLOW, PATIENCE), stdin=stdin or subprocess.DEVNULL, cwd=cwd,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return p.returncode, p.stdout.decode("utf-8", "replace"), p.stderr.decode("utf-8", "replace")


def run_args(model, inp, out, *more):
    inputs = inp if isinstance(inp, list) else [inp]
    args = [EBB, "run", "--model", model, "--output", out]
    for i in inputs:
        args += ["--input", i]
    return args + list(more)


def ebb_run(model, inp, out, *more, env=None, timeout=120, want=0, cwd=None):
    rc, o, e = run(run_args(model, inp, out, *more), env=env, timeout=timeout, cwd=cwd)
    if want is not None and rc != want:
        raise AssertionError(f"ebb run ended with {rc}, not {want}\nstdout: {o}\nstderr: {e}\n{state_log(out)}")
    return rc, o, e


def work_dir(out):
    return os.path.join(out, ".ebb") if os.path.isdir(out) or not os.path.splitext(out)[1] else out + ".ebb"


def state_log(out):
    text = ""
    for path in glob.glob(os.path.join(work_dir(out), "state", "*.log")):
        with open(path, errors="replace") as f:
            text += f"--- {os.path.basename(path)}\n" + "".join(f.readlines()[-60:])
    return text


def output_bytes(out):
    """{name: bytes} of what the user sees of an output (a directory or one file), the manifest apart."""
    if os.path.isdir(out):
        names = [n for n in sorted(os.listdir(out)) if n not in (".ebb", "manifest.json", "_SUCCESS")]
        paths = {n: os.path.join(out, n) for n in names}
    else:
        paths = {}
        for end in ("", ".ids.jsonl", ".errors.jsonl"):
            p = out + end
            if os.path.exists(p):
                paths["FILE" + end] = p
        stem = os.path.splitext(out)[0]
        for end in (".ids.jsonl", ".errors.jsonl"):
            if os.path.exists(stem + end):
                paths["FILE" + end] = stem + end
    result = {}
    for name, path in paths.items():
        with open(path, "rb") as f:
            result[name] = f.read()
    return result


def same_output(a, b):
    x, y = output_bytes(a), output_bytes(b)
    assert x, f"{a} has no output"
    assert sorted(x) == sorted(y), f"other files: {sorted(x)} and {sorted(y)}"
    for name in x:
        if x[name] != y[name]:
            at = next((i for i, (p, q) in enumerate(zip(x[name], y[name])) if p != q), min(len(x[name]), len(y[name])))
            raise AssertionError(f"{name} differs at byte {at} ({len(x[name])} and {len(y[name])} bytes): "
                                 f"{x[name][max(0, at - 60):at + 60]!r} / {y[name][max(0, at - 60):at + 60]!r}")


def rows(out):
    """The JSON rows of a JSONL output, in order."""
    if os.path.isdir(out):
        files = sorted(glob.glob(os.path.join(out, "part-*.jsonl")))
        files = [f for f in files if not f.endswith(".ids.jsonl")]
    else:
        files = [out]
    result = []
    for path in files:
        with open(path, encoding="utf-8") as f:
            result += [json.loads(line) for line in f]
    return result


def errors(out):
    for path in (os.path.join(out, "errors.jsonl"), out + ".errors.jsonl", os.path.splitext(out)[0] + ".errors.jsonl"):
        if os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                return [json.loads(line) for line in f]
    raise AssertionError(f"{out} has no errors file")


def processes(mark):
    """Process ids of our programs whose command line or environment names `mark` (the test's folder), with their program's name."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                words = f.read().split(b"\0")
            with open(f"/proc/{pid}/environ", "rb") as f:
                environ = f.read()
            with open(f"/proc/{pid}/stat") as f:
                state = f.read().rpartition(")")[2].split()[0]
        except OSError:
            continue
        name = os.path.basename(words[0]).decode("utf-8", "replace")
        if state != "Z" and name in ("ebb", "ebbd", "ebb-worker", "ebb-agent") and (mark.encode() in b"\0".join(words) or mark.encode() in environ):
            found.append((int(pid), name))
    return found


def kill_all(mark):
    for pid, _ in processes(mark):
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass


def wait_for(what, seconds, poll=0.02):
    """Waits until what() is true; returns its value. Polls: what lasts for a moment only may be missed."""
    seconds = max(seconds * SLOW, PATIENCE)
    end = time.monotonic() + seconds
    while True:
        value = what()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds} s in vain")
        time.sleep(poll)


def gated(gate, i, free):
    """Text of record i of an input whose first `free` records pass; those behind wait until open_gate(gate). So a job is neither over too soon nor
    does it depend on how fast anything is. Workers need EBB_TEST_HOOK=1."""
    return f"record {i}" if i < free else f"EBB_TEST_GATE:{gate} record {i}"


def open_gate(gate):
    with open(gate, "w"):
        pass


def wait_progress(p, records):
    """Reads what `ebb run --json` says on its piped standard output until more than so many records are done; the lines so far."""
    said = []
    while not said or said[-1].get("records_done", 0) <= records:
        line = p.stdout.readline()
        if not line:
            raise AssertionError(f"ebb run ended with {p.wait()} after {said[-1:]}: {p.stderr.read() if p.stderr else ''}")
        said.append(json.loads(line))
    return said


def free_ports(count):
    """So many in a row, below those that the system gives away by itself."""
    while True:
        first, held = random.SystemRandom().randrange(20000, 32000), []
        try:
            for port in range(first, first + count):
                held.append(socket.socket())
                held[-1].bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
        finally:
            for s in held:
                s.close()


class Pool:
    """A real ebbd with a state of its own, as a service would run it."""

    def __init__(self, dir, *more, env=None, workers=1, lanes=2):
        self.dir = dir
        self.state = os.path.join(dir, "state")
        self.runtime = tempfile.mkdtemp(prefix="ebb-rt-")
        self.args = [EBBD, "--state", self.state, "--runtime", self.runtime, "--workers", str(workers), "--lanes", str(lanes), *more]
        self.env = {**os.environ, **(env or {}), "EBB_TEST_DIR": dir}
        self.log = os.path.join(dir, "ebbd.log")
        self.process = None
        self.start()

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.args, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_for(lambda: os.path.exists(os.path.join(self.runtime, "clients")) and self.ebb("status", "--json", want=None)[0] == 0, 20)

    def ebb(self, *args, want=0, timeout=60):
        rc, o, e = run([EBB, args[0], "--socket", "ipc://" + os.path.join(self.runtime, "clients"), *args[1:]], timeout=timeout)
        if want is not None and rc != want:
            with open(self.log, errors="replace") as f:
                tail = "".join(f.readlines()[-40:])
            raise AssertionError(f"ebb {' '.join(args)} ended with {rc}, not {want}\nstdout: {o}\nstderr: {e}\n{tail}")
        return rc, o, e

    def job(self, job):
        return json.loads(self.ebb("status", "--json", str(job))[1].splitlines()[0])

    def wait_state(self, job, states, seconds=60):
        states = (states,) if isinstance(states, str) else states
        return wait_for(lambda: (lambda j: j if j["state"] in states else None)(self.job(job)), seconds, 0.1)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()
        kill_all(self.runtime)
        shutil.rmtree(self.runtime, ignore_errors=True)


def digest(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        for block in iter(lambda: f.read(1 << 20), b""):
            h.update(block)
    return h.hexdigest()


def main(module_globals):
    """Runs every test_* of a file, or those that the arguments name."""
    wanted = sys.argv[1:]
    failed = 0
    for name, f in list(module_globals.items()):
        if not name.startswith("test_") or (wanted and name not in wanted):
            continue
        dir = tempfile.mkdtemp(prefix="ebb-e2e-")
        os.environ["EBB_TEST_DIR"] = dir  # marks the processes of this test
        began = time.monotonic()
        try:
            f(dir)
            print(f"ok: {name} ({time.monotonic() - began:.1f} s)", flush=True)
        except Skip as reason:
            print(f"skip: {name} ({reason})", flush=True)
        except BaseException as error:
            failed += 1
            print(f"FAILED: {name} ({time.monotonic() - began:.1f} s)", flush=True)
            traceback.print_exc(file=sys.stdout)
            if os.environ.get("EBB_KEEP"):
                print(f"kept: {dir}", flush=True)
            if isinstance(error, KeyboardInterrupt):
                raise
        finally:
            kill_all(dir)
            if not os.environ.get("EBB_KEEP"):
                shutil.rmtree(dir, ignore_errors=True)
    sys.exit(1 if failed else 0)
