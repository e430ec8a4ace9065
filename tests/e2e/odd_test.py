"""Odd input, odd places, odd moments: what people have lying about. Each record comes out once, in order, or the words say what to do."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import glob
import gzip
import json
import subprocess

import ebbtest as t


def put(dir, name, data):
    path = os.path.join(os.fsencode(dir), name if isinstance(name, bytes) else name.encode())
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data if isinstance(data, bytes) else data.encode())
    return os.fsdecode(path)


def rec(i):
    return json.dumps({"id": f"g{i}", "text": f"good record {i}"}) + "\n"


def ids(out):
    return [r["id"] for r in t.rows(out)]


def test_one_folder_of_odd_files(dir):
    """Line ends, marks, members, names: all in one job, in the order of the names."""
    two = lambda i: rec(i) + rec(i + 1)
    files = [(b"00 no end.jsonl", two(0).rstrip("\n")), (b"01\r.jsonl", two(2).replace("\n", "\r\n")), (b"02\n'\"*?[.jsonl", b"\xef\xbb\xbf" + two(4).encode()),
             (b"03-empty.jsonl", b""), (b"04.jsonl", rec(6) + "\n \n\n" + rec(7) + "\n"), (b"05.jsonl.gz", gzip.compress(rec(8).encode()) + gzip.compress(b"") +
             gzip.compress(rec(9).encode()) + bytes(600)), (b"06.jsonl.gz", gzip.compress(b"")), (b"07.jsonl.gz", b""), ("08 ü 🙂.jsonl".encode(), two(10)),
             (b"09\xff\xfe.jsonl", two(12)), (b"10" + b"x" * 240 + b".jsonl", two(14)), (b"11/" + b"/".join([b"d" * 200] * 12) + b"/a.jsonl", two(16)),
             (b".hidden.jsonl", two(90))]
    folder = os.path.join(dir, "in put\n")
    for name, data in files:
        put(folder, name, data)
    os.symlink("../11", os.path.join(folder, "11", "up"))  # folders that links lead to are not searched: no loop
    os.symlink("04.jsonl", os.path.join(folder, "99 link.jsonl"))
    out = os.path.join(dir, "o ut\nü/")
    t.ebb_run(t.tiny_model(), folder, out, "--lease", "0.1s", "--commit", "0.05s", "--part-bytes", "4KiB", "--workers", "2")
    assert ids(out) == [f"g{i}" for i in [*range(18), 6, 7]], ids(out)
    rc, o, e = t.ebb_run(t.tiny_model(), os.path.join(folder, "02\n'\"*?[.jsonl"), os.path.join(dir, "one.jsonl"))  # a pattern that is a name
    assert ids(os.path.join(dir, "one.jsonl")) == ["g4", "g5"]


def test_odd_records(dir):
    inp = put(dir, "in.jsonl", b"\n".join([
        b'{"id":"a","text":"one","text":"two"}', b'{"id":"b","text":"x\\u0000y"}', b'{"id":"c","text":"x\\ud800y"}', b'{"id":"d","text":"x\x00y"}', b'{"id":"e","text":""}',
        b'{"id":12345678901234567890,"text":"f"}', b'{"id":"g","x":' + b"[" * 5000 + b"]" * 5000 + b',"text":"g"}', b'{"id":"h","text":"h"} {"id":"i"}', b"", b'{"id":"j","text":"j"}\r']))
    out = os.path.join(dir, "out")
    t.ebb_run(t.tiny_model(), inp, out, want=3)
    assert ids(out) == ["a", "b", "e", 12345678901234567890, "j"], ids(out)
    assert [(e["line"], e["code"]) for e in t.errors(out)] == [(3, "invalid_json"), (4, "invalid_json"), (7, "invalid_json"), (8, "invalid_json")], t.errors(out)


def test_refused_with_advice(dir):
    inp = put(dir, "in.jsonl", rec(0))
    out = os.path.join(dir, "out")
    put(dir, "semicolons.csv", "id;text\n1;x\n")
    put(dir, "u16.csv", "id,text\n1,x\n".encode("utf-16"))
    put(dir, "folder/README.md", "# data\n")
    put(dir, "folder/a.jsonl", rec(0))
    put(dir, "packed.jsonl", gzip.compress(rec(0).encode()))
    os.mkfifo(os.path.join(dir, "pipe.jsonl"))
    os.mkdir(os.path.join(dir, "empty"))
    put(dir, "file", "x")
    for given, code, words in (("semicolons.csv", 2, "divided by something else"), ("u16.csv", 2, "iconv -f UTF-16"), ("folder", 2, "a pattern such as '*.jsonl'"),
                               ("packed.jsonl", 2, "rename it"), ("pipe.jsonl", 2, "pipe it into --input -"), ("empty", 2, "holds no files"),
                               ("https://example.org/a.jsonl", 2, "fetch it first"), ("", 2, "--input is empty")):
        rc, o, e = t.run(t.run_args(t.tiny_model(), given and (given if ":" in given else os.path.join(dir, given)), out))
        assert rc == code and words in e, (given, rc, e)
    for to, code, words in (("-", 2, "not to standard output"), ("/dev/stdout", 2, "/dev/stdout"), (os.path.join(dir, "file", "out"), 1, "Not a directory"),
                            (os.path.join(dir, "x" * 300), 1, "File name too long")):
        rc, o, e = t.run(t.run_args(t.tiny_model(), inp, to), cwd=dir)
        assert rc == code and words in e, (to, rc, e)
    assert not os.path.exists(out) and not os.path.exists(os.path.join(dir, "-"))


def test_no_current_folder(dir):
    """It was removed under the shell: relative names mean nothing, and above all not the root's."""
    inp, gone = put(dir, "in.jsonl", rec(0) + rec(1)), os.path.join(dir, "gone")
    os.mkdir(gone)
    run = " ".join(t.run_args(t.tiny_model(), inp, "{}"))
    script = f"cd {gone} && rmdir {gone} && {run.format('ebb-test-out/')}; echo $?; {run.format(dir + '/out')}; echo $?"
    p = subprocess.run(["sh", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=t.PATIENCE)
    assert p.stdout.split() == ["1", "0"] and "there is no current folder any more" in p.stderr, (p.stdout, p.stderr)
    assert ids(os.path.join(dir, "out")) == ["g0", "g1"]


def test_little_of_everything(dir):
    """No environment, no home, few files: enough, or an error in words."""
    inp = put(dir, "in.jsonl", rec(0) + rec(1))
    for n, (before, code) in enumerate([("env -i", 0), ("env -u HOME TMPDIR=/nonexistent XDG_RUNTIME_DIR=/nonexistent", 0), ("prlimit --nofile=64", 0),
                                        ("prlimit --nofile=20", 1), ("prlimit --stack=65536", 0)]):
        out = os.path.join(dir, f"out{n}")
        rc, o, e = t.run([*before.split(), *t.run_args(t.tiny_model(), inp, out)])
        assert rc == code, (before, rc, e)
        if code == 0:
            assert ids(out) == ["g0", "g1"]
        else:
            assert "Too many open files" in e, e
            t.ebb_run(t.tiny_model(), inp, out)  # and on, when there is enough
            assert ids(out) == ["g0", "g1"]


def test_who_reads_has_had_enough(dir):
    """`ebb ... | head -1` is no failure of ebb; a full disk behind it is one."""
    inp = put(dir, "in.jsonl", rec(0))
    run = " ".join(t.run_args(t.tiny_model(), inp, os.path.join(dir, "out"), "--json"))
    p = subprocess.run(["bash", "-c", f"{run} | head -c 1; echo ${{PIPESTATUS[0]}}"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert p.stdout.endswith("0\n") and "error" not in p.stderr, (p.stdout, p.stderr)
    for words in (run, f"{t.EBB} run --help"):
        p = subprocess.run(f"{words} > /dev/full", shell=True, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert p.returncode == 1 and "cannot write to standard output" in p.stderr, (words, p.returncode, p.stderr)


def test_the_clock_jumps(dir):
    """A month on and a year back, while a job runs: nobody expires, nothing is done twice."""
    fake = glob.glob("/usr/lib/*/faketime/libfaketime.so.1")
    if not fake or t.SANITIZE:
        raise t.Skip("an instrumented program takes no other library first" if fake else "there is no faketime")
    clock, gate, out = put(dir, "clock", "+0d\n"), os.path.join(dir, "gate"), os.path.join(dir, "out")
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 2000, text=lambda i: t.gated(gate, i, 1000))
    pool = t.Pool(dir, workers=2, lanes=1, env={"EBB_TEST_HOOK": "1", "LD_PRELOAD": fake[0], "FAKETIME_TIMESTAMP_FILE": clock, "FAKETIME_NO_CACHE": "1", "NO_FAKE_STAT": "1",
                                                "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"})
    try:
        pool.ebb("submit", "--model", t.tiny_model(), "--input", inp, "--output", out, "--commit", "0.1s")
        t.wait_for(lambda: pool.job(1)["records_done"] > 300 and len(t.processes(pool.runtime)) == 3, 30)
        before = sorted(t.processes(pool.runtime))
        for jump in ("+40d", "-400d", "+1d"):
            put(dir, "clock", jump + "\n")
            beats = lambda: all(json.loads(w)["beat_s"] < 5 for w in pool.ebb("workers", "--json")[1].splitlines())
            t.wait_for(beats, 30)
            assert pool.job(1)["state"] == "running", pool.job(1)
        assert sorted(t.processes(pool.runtime)) == before, (before, t.processes(pool.runtime))
        t.open_gate(gate)
        j = pool.wait_state(1, "done")
        assert j["redone"] == 0 and ids(out) == [f"r{i}" for i in range(2000)], j
        assert pool.ebb("status", "1")[0] == pool.ebb("jobs", "--all")[0] == 0
    finally:
        pool.stop()


t.main(globals())
