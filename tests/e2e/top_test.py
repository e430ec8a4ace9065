"""`ebb top`: is what stands on the terminal right, does it obey keys and the window, and does it bear a slow daemon and five thousand workers?"""
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from ebbtest import *  # noqa: E402

CROWD = os.path.join(BUILD, "tests", "crowd")


class Screen:
    """`ebb top` on a terminal of its own; frames are taken apart as a terminal would."""

    def __init__(self, pool, *more, rows=24, columns=100, env=None):
        self.master, slave = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.got = b""
        full = {**os.environ, "TERM": "xterm", **(env or {})}
        full.pop("NO_COLOR", None) if not (env or {}).get("NO_COLOR") else None
        self.process = subprocess.Popen([EBB, "top", "--interval", "0.2s", "--socket", "ipc://" + os.path.join(pool.runtime, "clients"), *more], stdin=slave,
                                        stdout=slave, stderr=slave, env=full, start_new_session=True)

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds=0.1):
        if select.select([self.master], [], [], seconds)[0]:
            try:
                self.got += os.read(self.master, 1 << 20)
            except OSError:
                return False
        return True

    def type(self, keys):
        os.write(self.master, keys.encode())

    def frame(self):
        """The lines of the last whole frame that came, without colours."""
        parts = self.got.split(b"\033[H")
        if len(parts) < 3:
            return []
        self.got = b"\033[H".join([b"", *parts[-2:]])
        text = parts[-2].decode("utf-8")
        text = re.sub(r"\033\[[0-9;]*m", "", text)
        lines = text.split("\r\n")
        assert all(line.endswith("\033[K") for line in lines), text
        lines = [line[:-3] for line in lines]
        assert not any(c < " " or "\x7f" <= c < "\xa0" for line in lines for c in line), text
        return lines

    def wait(self, what, seconds=30):
        """Reads until what(lines) is true; the lines."""
        end = time.monotonic() + max(seconds * SLOW, PATIENCE)
        lines = []
        while time.monotonic() < end:
            alive = self.read()
            lines = self.frame() or lines
            if lines and what(lines):
                return lines
            assert alive and self.process.poll() is None, f"it ended: {self.got[-2000:]!r}"
        raise AssertionError("waited in vain; the screen is\n" + "\n".join(lines))

    def leave(self, keys="q", code=0):
        self.type(keys)
        end = time.monotonic() + PATIENCE
        while self.process.poll() is None and time.monotonic() < end:
            self.read()
        self.read(0.5)
        assert self.process.poll() == code, self.process.poll()
        assert b"\033[?1049l" in self.got and b"\033[?25h" in self.got, "the screen was not given back"
        assert termios.tcgetattr(self.slave) == self.before, "the terminal was not set back"

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


def has(*words):
    return lambda lines: all(any(re.search(w, line) for line in lines) for w in words)


def start_job(pool, dir, name, gate):
    inp = write_jsonl(os.path.join(dir, "in.jsonl"), 100, text=lambda i: f"EBB_TEST_GATE:{gate}" if i == 50 else None)
    o = pool.ebb("submit", "--model", tiny_model(), "--input", inp, "--output", os.path.join(dir, "out"), "--name", name, "--json")[1]
    return json.loads(o.splitlines()[0])["job"]


def test_without_a_terminal(dir):
    gate = os.path.join(dir, "gate")
    pool = Pool(dir, env={"EBB_TEST_HOOK": "1"})
    try:
        rc, o, e = pool.ebb("top")
        assert re.match(r"ebbd \S+ on \S+: 0 jobs, 0 running, 0 workers on 0 nodes, ", o) and "\033" not in o, o
        job = start_job(pool, dir, "seen from above", gate)
        one = wait_for(lambda: (lambda t: t if t["workers"] and t["workers"][0]["state"] == "running" else None)(json.loads(pool.ebb("top", "--json")[1])), 60, 0.1)
        assert one["daemon"]["program"].startswith("ebbd ") and one["jobs"][0]["job"] == job and one["jobs"][0]["name"] == "seen from above"
        assert len(one["nodes"]) == 1 and one["nodes"][0]["workers"] == 1 and one["nodes"][0]["busy"] == 1 and one["nodes"][0]["lanes"] == 2
        assert one["nodes"][0]["host"] == one["workers"][0]["host"]
        o = pool.ebb("top", "--once")[1]
        assert re.search(rf"^ *{job} +seen from above +running ", o, re.M) and re.search(r"^ NODE +WORKERS +BUSY", o, re.M) and re.search(r"^ WORKER +NODE", o, re.M), o
        assert "--sort wants name, rate, state or job, not 'colour'" in pool.ebb("top", "--sort", "colour", want=2)[2]
        assert pool.ebb("top", "--interval", "1ms", want=2)[2]
    finally:
        open(gate, "w").close()
        pool.stop()
    rc, o, e = run([EBB, "top", "--socket", os.path.join(pool.runtime, "clients")])
    assert rc == 1 and "no daemon listens" in e, e


def test_on_a_terminal(dir):
    gate = os.path.join(dir, "gate")
    pool = Pool(dir, env={"EBB_TEST_HOOK": "1"})
    s = None
    try:
        job = start_job(pool, dir, "wide \u6d77\u6d77 and \u202e turned", gate)
        s = Screen(pool)
        lines = s.wait(has(r"^ebb top - ebbd \S+ on \S+ - 1 job, 1 running - 1 worker on 1 node - ", rf"^{job} +wide \u6d77\u6d77 and \? turned +running ",
                           r"^WORKER +NODE +STATE", r"/1 +\S+ +running +", r"1-1 of 1 workers by name +q quit"))
        assert len(lines) == 24 and all(len(line) <= 100 for line in lines)
        assert b"\033[7m" in s.got or b"\033[1m" in s.got, "no colours"
        s.type("\t")
        s.wait(has(r"^NODE +WORKERS +BUSY", r"1-1 of 1 nodes by name"))
        s.type("s")
        s.wait(has(r"of 1 nodes by rate"))
        s.type("\t")
        s.wait(has(r"of 1 workers by rate"))
        for rows, columns in ((10, 40), (50, 200), (3, 20), (1, 5), (24, 80)):
            s.resize(rows, columns)
            lines = s.wait(lambda lines: len(lines) == rows and max(map(len, lines)) <= columns)
        s.wait(has(r"^WORKER +NODE"))
        open(gate, "w").close()
        pool.wait_state(job, "done")
        s.wait(has(r" - 0 jobs, 0 running - ", "^no jobs under way"))
        s.leave()
        s.close()
        s = Screen(pool, "--nodes", env={"NO_COLOR": "1"})
        s.wait(has(r"nodes by name"))
        assert not re.search(rb"\033\[[0-9;]*m", s.got)
        s.leave("\003")  # Ctrl-C is a key like q
        s.close()
        s = Screen(pool)
        s.wait(has(r"workers by name"))
        s.process.send_signal(signal.SIGTERM)
        s.leave("", 130)
    finally:
        open(gate, "w").close()
        if s:
            s.close()
        pool.stop()


def test_a_slow_daemon(dir):
    """It stands still: figures stay and say their age, keys work; it goes on, and so do the figures. It is started anew: likewise."""
    pool = Pool(dir, workers=0)
    s = Screen(pool)
    try:
        s.wait(has(r"^no jobs under way"))
        pool.process.send_signal(signal.SIGSTOP)
        s.wait(has(r"^figures are .* old: the daemon is slow to answer"))
        s.type("\t")
        s.wait(has(r"0-0 of 0 nodes"), 10)
        s.wait(has(r"^figures are .* old: the daemon does not answer"), 60)
        pool.process.send_signal(signal.SIGCONT)
        s.wait(lambda lines: not has("figures are")(lines), 60)
        pool.process.send_signal(signal.SIGSTOP)
        s.wait(has(r"^figures are .* old: the daemon is slow to answer"))
        s.leave()
        pool.process.send_signal(signal.SIGCONT)
        s.close()
        s = Screen(pool)
        s.wait(has(r"^no jobs under way"))
        pool.kill()
        s.wait(has(r"^figures are .* old"), 60)
        pool.start()
        s.wait(lambda lines: not has("figures are")(lines), 60)
        s.leave()
    finally:
        s.close()
        pool.process.send_signal(signal.SIGCONT)
        pool.stop()


def test_five_thousand_workers(dir):
    pool = Pool(dir, workers=0)
    crowd = subprocess.Popen([CROWD, "ipc://" + os.path.join(pool.runtime, "workers"), "5000", "200"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    s = None
    try:
        assert crowd.stdout.readline() == b"here\n"
        s = Screen(pool, rows=40)
        s.wait(has(r" - 5,000 workers on 200 nodes - ", r"^node0/1 +node0 +idle ", r"1-\d+ of 5000 workers by name"), 120)
        s.type("\033[F")  # End
        s.wait(has(r"^node199/25 +node199 +idle ", r"-5000 of 5000 workers"), 60)
        s.type("\033[5~")
        lines = s.wait(has(r"of 5000 workers"), 60)
        s.wait(lambda lines: not has(r"-5000 of 5000")(lines), 60)
        s.type("\033OH")
        s.wait(has(r"^1-\d+ of 5000 workers"), 60)
        s.type("\033[6~")
        lines = s.wait(has(r"^(2[0-9]|3[0-9])-\d+ of 5000 workers"), 60)
        assert len(lines) == 40
        s.type("\t")
        s.wait(has(r"^node0 +25 +0 +100 ", r"1-\d+ of 200 nodes"), 60)
        s.leave()
    finally:
        crowd.kill()
        crowd.wait()
        if s:
            s.close()
        pool.stop()


if __name__ == "__main__":
    main(globals())
