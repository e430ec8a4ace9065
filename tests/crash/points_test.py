"""Death and failure at chosen points: before and after each persist, send, write, sync and rename."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import subprocess
import time

import ebbtest as t

DAEMON = ["daemon.step", "daemon.persist.before", "daemon.persist.after", "daemon.send.before", "daemon.send.after", "store.write",
          "daemon.publish.*", "assemble.copy", "assemble.sync", "assemble.rename", "assemble.finish.*"]
WORKER = ["worker.read", "worker.infer", "worker.part.before", "part.open", "part.write", "part.fsync", "part.dirsync", "worker.commit.before",
          "worker.commit.after", "worker.ack"]
HITS = range(1, 13) if t.SOAK else (1, 3)


def test_programs_that_die_at_once_are_given_up(dir):
    """A daemon that cannot live is no endless loop: after a few tries the client says so."""
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 100)
    for point, words in ("daemon.send.before:1", "died 5 times before it took the job"), ("daemon.persist.after:1", "died 5 times in a row without getting on"):
        rc, o, e = t.run(t.run_args(t.tiny_model(), inp, os.path.join(dir, "out")), env={"EBB_FAULT": point + ":kill"})
        assert rc == 1 and words in e and "ebbd" in e, (rc, o, e)


def until_done(args, env, first_env, tries=40):
    """The first try has the fault in its environment, the next ones have not."""
    for i in range(tries):
        rc, o, e = t.run(args, env={**env, **(first_env if i == 0 else {})}, timeout=120)
        if rc in (0, 3):
            return i, o + e
        if rc not in (1, 4, 130, -9):
            raise AssertionError(f"ended with {rc}: {o} {e}")
    raise AssertionError(f"not done after {tries} tries: {rc} {o} {e}")


def sweep(dir, points, what):
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 600)
    base = os.path.join(dir, "base")
    t.ebb_run(t.tiny_model(), inp, base, "--part-bytes", "100KB")
    reached = 0
    for point in points:
        for n in HITS:
            out = os.path.join(dir, f"out-{point.replace('*', 'x')}-{n}-{what}")
            args = t.run_args(t.tiny_model(), inp, out, "--commit", "0.05s", "--lease", "0.2s", "--part-bytes", "100KB")
            try:
                fault = {"EBB_FAULT": f"{point}:{n}:{what}", **({"EBB_FAULT_ONCE": out + ".fault"} if what == "kill" else {})}
                until_done(args, {}, fault)
                t.same_output(base, out)
            except BaseException as error:
                raise AssertionError(f"at {point}:{n}:{what}: {error}\n{t.state_log(out)}") from error
            t.wait_for(lambda: not t.processes(out), 15)
            reached += os.path.exists(out + ".fault")
    assert what != "kill" or reached >= len(points), f"only {reached} of {len(points) * len(HITS)} faults were reached"


def test_daemon_killed_at_each_point(dir):
    sweep(dir, DAEMON, "kill")


def test_worker_killed_at_each_point(dir):
    sweep(dir, WORKER, "kill")


def test_input_output_errors(dir):
    sweep(dir, ["store.write", "part.open", "part.write", "part.fsync", "part.dirsync", "assemble.copy", "assemble.sync", "assemble.rename"], "EIO")


def test_no_space(dir):
    sweep(dir, ["store.write", "part.write", "assemble.copy"], "ENOSPC")


t.main(globals())
