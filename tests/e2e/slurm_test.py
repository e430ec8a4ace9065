"""Workers from a real Slurm: three nodes, a partition whose jobs are taken away for those of another, slurmctld and nodes that fail."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import atexit
import fcntl
import json
import signal

import ebbtest as t
import slurm_rig

_rig = []


def rig():
    """One cluster for all tests of this file."""
    if not _rig:
        _rig.append(slurm_rig.SlurmRig())
        atexit.register(_rig[0].close)
    return _rig[0]


def configure(dir, more="", slurm=""):
    path = os.path.join(dir, "ebbd.yaml")
    with open(path, "w") as f:
        f.write(f"idle: 2s\n{more}slurm:\n  limit: 4\n  cpus: 2\n  poll: 1s\n  options: [--comment=a test]\n{slurm or '  partition: scavenge'}\n")
    return path


def start_tcp(dir):
    """As on a real cluster: over tcp, by a key in a shared folder."""
    port, key = t.free_ports(3), os.path.join(dir, "worker.key")
    rc, _, said = t.run([t.EBB, "keygen", "--state", os.path.join(dir, "state")])
    assert rc == 0, said
    s, pool = start(dir, f"listen: tcp://127.0.0.1:{port}\nroots: [{dir}, {t.TOP}]\n",
                    f"  partition: scavenge\n  connect: tcp://127.0.0.1:{port}\n  key_file: {key}")
    rc, _, said = t.run([t.EBB, "keys", "add", "--node", "--name", "slurm", "--socket", os.path.join(pool.runtime, "clients"), key])
    assert rc == 0, said
    return s, pool


def start(dir, more="", slurm=""):
    s = rig()
    return s, t.Pool(dir, "--config", configure(dir, more, slurm), env={**s.env, "EBB_TEST_HOOK": "1"}, workers=0)


def stop(s, pool):
    """The pool, and what it has in the queue."""
    pool.stop()
    mine = [j for j in s.queue() if j[1].startswith("ebb-")]
    if mine:
        s.cancel(*[j[0] for j in mine])
    t.wait_for(lambda: not [j for j in s.queue() if j[1].startswith("ebb-")], t.PATIENCE, 0.2)


def submit(pool, dir, inp, out, workers=0):
    """workers: so many from its beginning to its end, however fast they turn out to be."""
    path = os.path.join(dir, "job.yaml")
    with open(path, "w") as f:
        f.write(f"name: slurm\nmodel: {t.tiny_model()}\ninput: {{ glob: {inp}, field: text, id: id }}\noutput: {{ path: {out} }}\n"
                f"tuning: {{ commit: 0.2s, lease: 1s }}\n" + (f"workers: {{ min: {workers}, max: {workers} }}\n" if workers else ""))
    return int(json.loads(pool.ebb("submit", path, "--json")[1].splitlines()[0])["job"])


def log_of(pool):
    with open(pool.log, errors="replace") as f:
        return f.read()


def arrived(pool):
    """Names of the workers that have said hello and are not silent."""
    rows = [json.loads(line) for line in pool.ebb("workers", "--json")[1].splitlines()]
    return sorted(r["name"] for r in rows if r["pid"] and r["beat_s"] < 3)


def jobs_of(s, *states):
    return [j for j in s.queue() if j[1].startswith("ebb-") and (not states or j[3] in states)]


def wait(pool, s, what, seconds=t.PATIENCE):
    try:
        return t.wait_for(what, seconds, 0.2)
    except AssertionError as e:
        raise AssertionError(f"{e}\n{s.queue()}\n{log_of(pool)[-6000:]}") from None


def nothing_blamed(pool, job):
    j = pool.job(job)
    assert j["errors"] == 0, j
    for word in ("crashed", "out of memory", ": hung", "quarantin"):
        assert word not in log_of(pool), f"{word}\n{log_of(pool)[-4000:]}"


def slow(gates, i, count):
    """Some milliseconds each; the later parts wait for their gates."""
    part = i * (len(gates) + 1) // count
    return f"record {i} EBB_TEST_SLOW:4 " + (f"EBB_TEST_GATE:{gates[part - 1]} " if part else "")


def test_preempted_twice(dir):
    s, pool = start_tcp(dir)
    out, base = os.path.join(dir, "out"), os.path.join(dir, "base")
    gates = [os.path.join(dir, f"gate{k}") for k in range(2)]
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 3000, text=lambda i: slow(gates, i, 3000))
    try:
        t.ebb_run(t.tiny_model(), inp, base)
        job = submit(pool, dir, inp, out, workers=3)
        for number, gate in enumerate(gates):
            wait(pool, s, lambda: len(arrived(pool)) == 3)
            wait(pool, s, lambda: pool.job(job)["records_done"] > number * 1000 + 50)
            before = pool.job(job)["records_done"]
            prod = s.submit("--partition=prod", "--exclusive", f"--nodes={2 + number}")
            wait(pool, s, lambda: [j for j in s.queue() if j[0] == prod and j[3] == "RUNNING"])
            wait(pool, s, lambda: len(arrived(pool)) == 1 - number)
            assert jobs_of(s, "PENDING"), "nothing waits to come back"
            assert len(jobs_of(s)) <= 4, s.queue()
            assert pool.job(job)["records_done"] >= before
            s.cancel(prod)
            wait(pool, s, lambda: len(arrived(pool)) == 3)
            t.open_gate(gate)
        j = wait(pool, s, lambda: (lambda j: j if j["state"] == "done" else None)(pool.job(job)))
        assert j["records_done"] == 3000, j
        t.same_output(base, out)
        nothing_blamed(pool, job)
        assert any("." in n for n in log_of(pool).split() if n.startswith("slurm-")), "no job was started again by Slurm"
        wait(pool, s, lambda: not jobs_of(s))  # nobody is kept who has nothing to do
        assert arrived(pool) == []
    finally:
        stop(s, pool)


def test_daemon_killed_and_slurmctld_down(dir):
    """A daemon that is killed finds its jobs, those that wait too, and starts none twice. Without slurmctld work goes on, and people are told."""
    s, pool = start(dir)
    out, base = os.path.join(dir, "out"), os.path.join(dir, "base")
    gates = [os.path.join(dir, f"gate{k}") for k in range(3)]
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 3200, text=lambda i: slow(gates, i, 3200))
    down = False
    try:
        t.ebb_run(t.tiny_model(), inp, base)
        job = submit(pool, dir, inp, out, workers=4)
        wait(pool, s, lambda: len(arrived(pool)) == 3 and len(jobs_of(s)) == 4)
        wait(pool, s, lambda: pool.job(job)["records_done"] > 50)
        workers, jobs, running = arrived(pool), {j[0] for j in jobs_of(s)}, {j[0] for j in jobs_of(s, "RUNNING")}
        for gate in gates[:2]:
            done = pool.job(job)["records_done"]
            pool.kill()
            pool.start()
            wait(pool, s, lambda: arrived(pool) == workers)
            t.open_gate(gate)
            wait(pool, s, lambda: pool.job(job)["records_done"] > done + 50)
        wait(pool, s, lambda: all(f"slurm job {j}: adopted" in log_of(pool).split("generation 3:")[1] for j in running))
        assert running <= {j[0] for j in jobs_of(s)} <= jobs and "submitted" not in log_of(pool).split("generation 2:")[1], "others than before were started"
        s.stop_ctld()
        down = True
        wait(pool, s, lambda: "squeue: Unable to contact slurm controller" in log_of(pool))
        said = pool.ebb("doctor", want=None)[1]
        assert "Slurm: squeue: Unable to contact slurm controller" in said, said
        t.open_gate(gates[2])
        j = wait(pool, s, lambda: (lambda j: j if j["state"] == "done" else None)(pool.job(job)))
        assert j["redone"] == 0, f"committed work was done again: {j}"
        t.same_output(base, out)
        nothing_blamed(pool, job)
        s.start_ctld()
        down = False
        wait(pool, s, lambda: "the queue can be read again" in log_of(pool))
        assert "Unable to contact" not in pool.ebb("doctor", want=None)[1]
        wait(pool, s, lambda: not jobs_of(s))  # the one that waited is called back, too
    finally:
        if down:
            s.start_ctld()
        stop(s, pool)


def test_a_node_dies(dir):
    """The power of a node goes. Its worker's work is done by others; its job, which Slurm takes for running, is not left in the queue."""
    s, pool = start(dir, "worker_timeout: 4s\n")
    out, base, gate = os.path.join(dir, "out"), os.path.join(dir, "base"), os.path.join(dir, "gate")
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 2000, text=lambda i: slow([gate], i, 2000))
    try:
        t.ebb_run(t.tiny_model(), inp, base)
        job = submit(pool, dir, inp, out, workers=3)
        wait(pool, s, lambda: len(arrived(pool)) == 3)
        wait(pool, s, lambda: pool.job(job)["records_done"] > 50)
        s.kill_node("n2")
        wait(pool, s, lambda: len(arrived(pool)) == 2)
        t.open_gate(gate)
        wait(pool, s, lambda: pool.job(job)["state"] == "done")
        t.same_output(base, out)
        nothing_blamed(pool, job)
        wait(pool, s, lambda: not jobs_of(s, "RUNNING", "PENDING"))
        s.start_node("n2")
        wait(pool, s, lambda: not jobs_of(s))
        wait(pool, s, lambda: "n2" in s.out("sinfo", "-h", "-N", "-t", "idle", "-o", "%N"))
    finally:
        stop(s, pool)


def test_what_is_refused_is_said(dir):
    """A partition that is not there; a program that is not there; then all is well. Each time the job says what it waits for."""
    os.mkdir(os.path.join(dir, "state"), 0o700)
    with open(os.path.join(dir, "state", "slurm.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as an sbatch of an ebbd that was killed
        s, pool = start(dir, slurm="  partition: nosuch")
        out, base = os.path.join(dir, "out"), os.path.join(dir, "base")
        inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 500)
        try:
            t.ebb_run(t.tiny_model(), inp, base)
            job = submit(pool, dir, inp, out)
            wait(pool, s, lambda: "an sbatch of the ebbd before this one has not ended yet" in pool.ebb("why", str(job))[1])
            assert "sbatch:" not in log_of(pool)
        except BaseException:
            stop(s, pool)
            raise
    try:
        wait(pool, s, lambda: "Slurm: sbatch: invalid partition specified: nosuch" in pool.ebb("why", str(job))[1])
        assert not jobs_of(s)
        configure(dir, slurm="  partition: scavenge\n  program: /nowhere/ebb-worker")
        pool.process.send_signal(signal.SIGHUP)
        wait(pool, s, lambda: "ebb-worker is neither at '/nowhere/ebb-worker' nor on the PATH" in pool.ebb("why", str(job))[1])
        configure(dir)
        pool.process.send_signal(signal.SIGHUP)
        wait(pool, s, lambda: pool.job(job)["state"] == "done")
        t.same_output(base, out)
        nothing_blamed(pool, job)
    finally:
        stop(s, pool)


def test_a_record_that_kills(dir):
    """Workers crash of one record in batch jobs: their black boxes name it, it is set aside, all others are done."""
    s, pool = start(dir)
    out = os.path.join(dir, "out")
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 300, text=lambda i: "EBB_TEST_CRASH" if i == 77 else None)
    try:
        job = submit(pool, dir, inp, out)
        j = wait(pool, s, lambda: (lambda j: j if j["state"] in ("done", "held") else None)(pool.job(job)))
        assert j["state"] == "done" and j["errors"] == 1, (j, pool.ebb("why", str(job))[1])
        assert [r["line"] for r in t.errors(out)] == [78]
        assert "crashed, " in log_of(pool)
    finally:
        stop(s, pool)


def test_started_by_hand(dir):
    """The job script for those who submit workers themselves: they stay until they are cancelled, and then go in peace."""
    s, pool = rig(), t.Pool(dir, workers=0)
    out, base = os.path.join(dir, "out"), os.path.join(dir, "base")
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 500)
    try:
        t.ebb_run(t.tiny_model(), inp, base)
        with open(os.path.join(t.TOP, "deploy/slurm/ebb-worker.sbatch"), encoding="utf-8") as f:
            script = f.read()
        hand = s.submit("--cpus-per-task=2", "--array=0-1", f"--export=ALL,EBB_CONNECT=ipc://{pool.runtime}/workers,EBB_WORKER={t.WORKER}", script=script)
        wait(pool, s, lambda: arrived(pool) == [f"job-{hand}_0", f"job-{hand}_1"])
        job = submit(pool, dir, inp, out)
        wait(pool, s, lambda: pool.job(job)["state"] == "done")
        t.same_output(base, out)
        s.cancel(hand)
        wait(pool, s, lambda: log_of(pool).count("goodbye: drained") == 2 and not [j for j in s.queue() if j[0].startswith(hand)])
        nothing_blamed(pool, job)
    finally:
        stop(s, pool)


t.main(globals())
