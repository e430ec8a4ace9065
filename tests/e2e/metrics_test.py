"""Metrics and health of ebbd over HTTP: are the figures right, and does a hostile reader do no harm?"""
import ctypes
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from ebbtest import *  # noqa: E402
import prom  # noqa: E402


def http_port(pool):
    def look():
        with open(pool.log, errors="replace") as f:
            found = re.findall(r"metrics at http://\S+:(\d+)/metrics", f.read())
        return int(found[-1]) if found else None
    return wait_for(look, 20)


def start(dir, *more, **kw):
    pool = Pool(dir, "--http", "127.0.0.1:0", *more, **kw)
    return pool, http_port(pool)


def settled(port, what, seconds=30):
    """The loop publishes once a second: waits until a scrape satisfies `what`."""
    def look():
        status, _, text = prom.get(port, "/metrics")
        if status != 200:
            return None
        s = prom.parse(text)
        return s if what(s) else None
    return wait_for(look, seconds, 0.1)


def submit(pool, dir, n=400, name="metrics", text=None, out="out"):
    inp = write_jsonl(os.path.join(dir, out + ".jsonl"), n, text=text)
    o = pool.ebb("submit", "--model", tiny_model(), "--input", inp, "--output", os.path.join(dir, out), "--name", name, "--json")[1]
    return json.loads(o.splitlines()[0])["job"]


def test_figures_of_a_job(dir):
    pool, port = start(dir, workers=2, lanes=1)
    try:
        s = settled(port, lambda s: True)
        assert prom.one(s, "ebb_jobs", state="running") == 0 and prom.one(s, "ebb_store_open") == 1
        assert prom.one(s, "ebb_build_info", version=run([EBBD, "--version"])[1].split()[1]) == 1
        name = 'a "name" with \\ in it'
        n = 500
        job = submit(pool, dir, n, name, text=lambda i: 7 if i % 100 == 3 else None)  # a number is no text: an error row
        assert pool.wait_state(job, "done")["errors"] == 5
        s = settled(port, lambda s: prom.one(s, "ebb_jobs", state="done") == 1)
        who = {"job": str(job)}
        assert prom.one(s, "ebb_records_done_total") == n == prom.one(s, "ebb_job_records_done", **who)
        assert prom.one(s, "ebb_record_errors_total") == 5 == prom.one(s, "ebb_job_errors", **who)
        assert prom.one(s, "ebb_job_rows", **who) == n - 5
        size = os.path.getsize(os.path.join(dir, "out.jsonl"))
        assert prom.one(s, "ebb_job_input_bytes", **who) == size == prom.one(s, "ebb_job_input_bytes_done", **who) == prom.one(s, "ebb_input_bytes_done_total")
        assert prom.one(s, "ebb_job_info", state="done", name=name, model=os.path.basename(tiny_model()), **who) == 1
        acks = prom.one(s, "ebb_commit_ack_seconds_count")
        assert acks >= 1 and acks == sum(prom.one(s, f"ebb_commits{k}_total") for k in ("", "_stale", "_refused")), acks
        assert 0 < prom.one(s, "ebb_commit_ack_seconds_sum") < 60 * acks * SLOW
        assert prom.one(s, "ebb_leases_total") >= 1
        assert prom.one(s, "ebb_store_group_commits_total") >= 1 and prom.one(s, "ebb_store_rows_total") > 5
        assert 0 < prom.one(s, "ebb_store_sync_seconds_total") and 0 < prom.one(s, "ebb_store_last_sync_seconds")
        assert prom.total(s, "ebb_ledger_spans") == 0
        assert prom.total(s, "ebb_workers", provider="slurm") == 0 and prom.one(s, "ebb_workers_wanted", provider="kubernetes") == 0
        assert prom.one(s, "ebb_workers_limit", provider="local") == 2
        with open(f"/proc/{pool.process.pid}/statm") as f:
            rss = int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")
        assert rss / 3 < prom.one(s, "process_resident_memory_bytes") < rss * 3
        fds = len(os.listdir(f"/proc/{pool.process.pid}/fd"))
        assert abs(prom.one(s, "process_open_fds") - fds) < 20
        assert abs(prom.one(s, "process_start_time_seconds") - time.time()) < 300 * SLOW and prom.one(s, "process_cpu_seconds_total") > 0
    finally:
        pool.stop()


def test_workers_by_state(dir):
    gate = os.path.join(dir, "gate")
    pool, port = start(dir, workers=1, env={"EBB_TEST_HOOK": "1"})
    try:
        job = submit(pool, dir, 60, text=lambda i: f"EBB_TEST_GATE:{gate}" if i == 30 else None)
        s = settled(port, lambda s: prom.one(s, "ebb_workers", provider="local", state="running") == 1)
        assert prom.one(s, "ebb_workers_wanted", provider="local") == 1
        assert prom.one(s, "ebb_job_workers", job=str(job)) == 1 and prom.one(s, "ebb_ledger_spans", state="leased") >= 1
        assert prom.one(s, "ebb_worker_lanes") == 2
        assert prom.get(port, "/readyz")[::2] == (200, "ready\n")
        pool.process.terminate()  # it drains: not ready any more, but healthy and still counting
        status, words = wait_for(lambda: (lambda r: r[::2] if r[0] == 503 else None)(prom.get(port, "/readyz")), 10, 0.05)
        assert "about to end" in words, words
        assert prom.get(port, "/healthz")[0] == 200
        open(gate, "w").close()
        pool.process.wait(60 * SLOW)
    finally:
        open(gate, "w").close()
        pool.stop()


def ptrace(request, tid):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    if libc.ptrace(request, tid, None, None) != 0:
        raise Skip(f"one thread cannot be stopped alone: {os.strerror(ctypes.get_errno())}")


def test_a_loop_that_stands_still(dir):
    """Only the loop's thread is stopped: what answers says so, instead of passing old figures off as new ones."""
    pool, port = start(dir, workers=0)
    try:
        settled(port, lambda s: True)
        assert prom.get(port, "/healthz")[::2] == (200, "ok\n")
        ptrace(0x4206, pool.process.pid)  # SEIZE
        ptrace(0x4207, pool.process.pid)  # INTERRUPT
        try:
            status, words = wait_for(lambda: (lambda r: r[::2] if r[0] == 503 else None)(prom.get(port, "/healthz")), 60, 0.2)
            assert re.fullmatch(r"the loop has not come round for \d+ s\n", words), words
            assert prom.get(port, "/readyz")[0] == 503 and prom.get(port, "/metrics")[0] == 503
        finally:
            ptrace(17, pool.process.pid)  # DETACH: it goes on
        wait_for(lambda: prom.get(port, "/healthz")[0] == 200, 20, 0.1)
        settled(port, lambda s: True)
    finally:
        pool.stop()


def test_not_ready_without_a_store(dir):
    pool, port = start(dir, workers=0, env={"EBB_FAULT": "daemon.persist.before:1:EIO"})
    store, aside = os.path.join(pool.state, "store"), os.path.join(dir, "aside")
    try:
        wait_for(lambda: prom.get(port, "/readyz")[0] == 200, 20, 0.1)
        os.rename(store, aside)  # so that opening it anew fails, too
        open(store, "w").close()
        inp = write_jsonl(os.path.join(dir, "in.jsonl"), 10)
        client = subprocess.Popen([EBB, "submit", "--socket", "ipc://" + os.path.join(pool.runtime, "clients"), "--model", tiny_model(), "--input", inp, "--output",
                                   os.path.join(dir, "out")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        status, words = wait_for(lambda: (lambda r: r[::2] if r[0] == 503 else None)(prom.get(port, "/readyz")), 30, 0.1)
        assert "the store is being opened anew" in words, words
        assert prom.get(port, "/healthz")[0] == 200
        settled(port, lambda s: prom.one(s, "ebb_store_open") == 0)
        os.unlink(store)
        os.rename(aside, store)
        wait_for(lambda: prom.get(port, "/readyz")[0] == 200, 30, 0.1)
        settled(port, lambda s: prom.one(s, "ebb_store_open") == 1)
        client.kill()
        client.wait()
    finally:
        pool.stop()


def drained(sock):
    """Has the other end closed?"""
    try:
        while True:
            if not sock.recv(65536):
                return True
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_hostile_readers(dir):
    pool, port = start(dir, workers=0)
    try:
        settled(port, lambda s: True)
        before = len(os.listdir(f"/proc/{pool.process.pid}/fd"))

        def talk(data):
            got = b""
            with socket.create_connection(("127.0.0.1", port), timeout=30) as s:
                try:
                    s.sendall(data)
                    while block := s.recv(65536):
                        got += block
                except ConnectionError:
                    pass  # it was closed before all was read: so much of the answer as came
                return got

        for huge in (b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100000 + b"\r\n\r\n", b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n",
                     b"GET /metrics HTTP/1.1\r\n" + b"X: a\r\n" * 10000 + b"\r\n"):
            got = talk(huge)
            assert not got or re.match(rb"HTTP/1\.[01] (400|413|414|431) ", got), got
        for junk in (b"\0" * 4096, b"\xff\xfe\r\n\r\n", b"GET\r\n\r\n", b"GET /metrics HTTP/9.9\r\n\r\n", b"\r\n" * 2000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as s:
                s.sendall(junk)
        good = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\nContent-Length: 3\r\n\r\nabc"
        r = random.Random(7)
        for _ in range(300):  # a good request with a few bytes changed, left out or doubled
            data = bytearray(good)
            for _ in range(r.randint(1, 6)):
                at = r.randrange(len(data))
                data[at:at + r.randint(0, 2)] = r.choice((b"", bytes([r.randrange(256)]), data[at:at + 8], b"\r\n", b"%", b": "))
            with socket.create_connection(("127.0.0.1", port), timeout=30) as s:
                s.sendall(bytes(data))
        prom.scrape(port)
        assert talk(b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000000\r\n\r\nabc").startswith(b"HTTP/1.1 405 ")
        assert talk(b"DELETE /metrics HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 405 ")
        assert b"Allow: GET, HEAD" in talk(b"PUT / HTTP/1.1\r\nHost: x\r\n\r\n")
        head = talk(b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ") and head.endswith(b"\r\n\r\n") and b"Connection: close" in head
        for path in ("/../etc/passwd", "/metrics/../../x", "/metrics%00", "//", "/metrics/"):
            assert prom.get(port, path)[0] == 404, path
        assert prom.get(port, "/metrics?collect[]=x")[0] == 200

        # three hundred that say nothing, and fifty that drip: whoever asks properly is answered all the while, and all are gone soon
        quiet = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(300)]
        drips = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(50)]
        for s in quiet + drips:
            s.setblocking(False)
        began, left, drop = time.monotonic(), quiet + drips, b"GET /metrics HTTP/1.1\r\nX: "
        while left:
            assert time.monotonic() - began < PATIENCE, f"{len(left)} hang on"
            for i, s in enumerate(drips):
                try:
                    s.send(drop[:1] if i % 2 else b"a")
                except OSError:
                    pass
            assert prom.get(port, "/healthz")[0] == 200
            assert len(os.listdir(f"/proc/{pool.process.pid}/fd")) < before + 64 + 10
            left = [s for s in left if not drained(s)]
            time.sleep(0.3)
        for s in quiet + drips:
            s.close()
        prom.scrape(port)
        assert pool.process.poll() is None
    finally:
        pool.stop()


def test_addresses(dir):
    def refused(words, *args):
        rc, _, err = run([EBBD, "--state", os.path.join(dir, "s"), "--runtime", os.path.join(dir, "r"), *args])
        assert rc == 2 and words in err, (rc, err)

    for bad in ("9570", "localhost", "127.0.0.1:", "127.0.0.1:65536", "[::1:9570", "example.org:80", "1.2.3.4:80x", ":"):
        refused("'http' wants an address and a port", "--http", bad)
    config = os.path.join(dir, "ebbd.yaml")
    with open(config, "w") as f:
        f.write("http: 127.0.0.1:0\n")
    pool = Pool(dir, "--config", config, workers=0)
    try:
        port = http_port(pool)
        prom.get(port, "/healthz")
        refused(f"cannot listen on '127.0.0.1:{port}'", "--http", f"127.0.0.1:{port}")
        with open(config, "w") as f:
            f.write("http: off\n")
        pool.process.send_signal(signal.SIGHUP)

        def closed():
            try:
                prom.get(port, "/healthz", timeout=5)
                return False
            except OSError:
                return True
        wait_for(closed, 20, 0.05)
        with open(config, "w") as f:
            f.write(f"http: 127.0.0.1:{port}\n")
        pool.process.send_signal(signal.SIGHUP)
        wait_for(lambda: not closed(), 20, 0.05)
        settled(port, lambda s: True)
    finally:
        pool.stop()
    with open(pool.log) as f:
        assert "metrics at" in f.read()
    quiet = Pool(os.path.join(dir), workers=0)  # without a word nothing listens
    try:
        links = [os.readlink(f"/proc/{quiet.process.pid}/fd/{n}") for n in os.listdir(f"/proc/{quiet.process.pid}/fd")]
        ours = {m[1] for m in (re.match(r"socket:\[(\d+)\]", x) for x in links) if m}
        for table in ("tcp", "tcp6"):
            with open(f"/proc/{quiet.process.pid}/net/{table}") as f:
                for line in f.readlines()[1:]:
                    words = line.split()
                    assert not (words[9] in ours and words[3] == "0A"), f"listens: {line}"
    finally:
        quiet.stop()


def test_many_jobs_and_workers(dir):
    """Series of jobs are bounded; what is left out is counted, and the totals count everything. A crowd of workers is counted, too."""
    pool, port = start(dir, workers=0)
    crowd = subprocess.Popen([os.path.join(BUILD, "tests", "crowd"), "ipc://" + os.path.join(pool.runtime, "workers"), "1000", "10"], stdout=subprocess.PIPE)
    try:
        inp = write_jsonl(os.path.join(dir, "in.jsonl"), 3)
        jobs = []
        for i in range(103):
            o = pool.ebb("submit", "--model", tiny_model(), "--input", inp, "--output", os.path.join(dir, f"out{i}"), "--json")[1]
            jobs.append(json.loads(o.splitlines()[0])["job"])
            if i == 0:  # of higher numbers are those that are shown
                pool.ebb("pause", str(jobs[0]))
        s = settled(port, lambda s: prom.total(s, "ebb_jobs") == 103)
        shown = {dict(k[1])["job"] for k in s if k[0] == "ebb_job_records_done"}
        assert shown == {str(j) for j in jobs[3:]} and prom.one(s, "ebb_jobs_left_out") == 3
        assert prom.one(s, "ebb_jobs", state="paused") == 1
        assert crowd.stdout.readline() == b"here\n"
        s = settled(port, lambda s: prom.total(s, "ebb_workers", provider="none") == 1000)
        assert prom.one(s, "ebb_worker_lanes") == 4000
        crowd.kill()
        crowd.wait()
    finally:
        crowd.kill()
        crowd.wait()
        pool.stop()


def test_the_peers_own_parser(dir):
    """prometheus_client reads it, too, and finds the same."""
    where = os.path.join(BUILD, "tests", "pypi")
    if not os.path.exists(os.path.join(where, "prometheus_client")):
        r = subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", where, "prometheus_client==0.20.0"], stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
        if r.returncode != 0:
            raise Skip("prometheus_client cannot be had: " + r.stdout.decode(errors="replace").strip().splitlines()[-1][:120])
    sys.path.insert(0, where)
    from prometheus_client.parser import text_string_to_metric_families
    pool, port = start(dir, workers=1)
    try:
        pool.wait_state(submit(pool, dir, 50), "done")
        settled(port, lambda s: prom.one(s, "ebb_jobs", state="done") == 1)
        text = prom.get(port, "/metrics")[2]
        theirs = {(s.name, tuple(sorted(s.labels.items()))): s.value for family in text_string_to_metric_families(text) for s in family.samples}
        ours = prom.parse(text)
        assert theirs == ours, {k: (theirs.get(k), ours.get(k)) for k in set(theirs) ^ set(ours)}
    finally:
        pool.stop()


if __name__ == "__main__":
    main(globals())
