"""ebbd and ebb-worker as services of a real systemd: start, crash, hang, reload, stop, upgrade, each in the middle of a job. Whatever happens to the
service, the output has the bytes of an undisturbed run.

One container is booted for all tests of this file; each begins with a service that runs. What a job does is held by gates, never by time."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from ebbtest import *  # noqa: E402
import prom  # noqa: E402
from systemd_rig import Rig  # noqa: E402

UNITS = os.path.join(TOP, "deploy", "systemd")
RECORDS = 240
_rig = None


def install(root):
    """As `make install prefix=/usr DESTDIR=root`, but of what is built already: a compiler has no place in this test."""
    for name in ("ebb", "ebbd", "ebb-worker", "ebb-agent"):
        shutil.copy(os.path.join(BUILD, "bin", name), os.path.join(root, "usr/bin", name))
    for name in ("ebbd.service", "ebb-worker@.service", "ebb-agent.service"):
        with open(os.path.join(UNITS, name), encoding="utf-8") as f:
            text = f.read().replace("/usr/local/bin", "/usr/bin")
        with open(os.path.join(root, "usr/lib/systemd/system", name), "w", encoding="utf-8") as f:
            f.write(text)
    shutil.copy(os.path.join(UNITS, "ebb.sysusers"), os.path.join(root, "usr/lib/sysusers.d/ebb.conf"))
    os.makedirs(os.path.join(root, "etc/ebb"), exist_ok=True)
    shutil.copy(os.path.join(TOP, "deploy", "ebbd.yaml"), os.path.join(root, "etc/ebb/ebbd.yaml"))


def rig():
    """The container, with a pool that runs and a member of its group."""
    global _rig
    if SANITIZE:
        raise Skip("sanitizers need system calls that the units forbid")
    if _rig is None:
        r = Rig()
        install(r.root)
        r.chroot("systemd-sysusers", "/usr/lib/sysusers.d/ebb.conf")
        r.chroot("useradd", "-m", "-G", "ebb", "ann")
        r.chroot("useradd", "-m", "bob")
        r.chroot("install", "-d", "-o", "ann", "-g", "ebb", "-m", "2770", "/srv/jobs")
        shutil.copytree(tiny_model(), r.path("/srv/jobs/model"))
        r.chroot("chmod", "-R", "a+rX", "/srv/jobs/model")
        r.write("/etc/systemd/system/ebbd.service.d/test.conf", "[Service]\nEnvironment=EBB_TEST_HOOK=1\n")
        r.boot()
        _rig = r
    if _rig.show("ebbd", "ActiveState") != "active":
        _rig.systemctl("start", "ebbd")
    return _rig


def records(r, name, *gates):
    """An input whose record i waits for gates[i]'s file. The path inside."""
    gates = dict(gates)
    path = write_jsonl(r.path(f"/srv/jobs/{name}.jsonl"), RECORDS, text=lambda i: f"EBB_TEST_GATE:{gates[i]}" if i in gates else None)
    os.chmod(path, 0o644)
    return f"/srv/jobs/{name}.jsonl"


def open_gate(r, gate):
    open(r.path(gate), "w").close()
    os.chmod(r.path(gate), 0o644)


def ebb(r, *args, want=0, user="ann"):
    return r.enter("ebb", *args, want=want, user=user)


def submit(r, name, inp):
    out = f"/srv/jobs/{name}.out"
    o = ebb(r, "submit", "--model", "/srv/jobs/model", "--input", inp, "--output", out, "--name", name, "--json")[1]
    return json.loads(o.splitlines()[0])["job"], out


def job(r, number):
    rc, o, e = ebb(r, "status", "--json", str(number), want=None)
    return json.loads(o.splitlines()[0]) if rc == 0 else None


def wait_job(r, number, what, seconds=90):
    return wait_for(lambda: (lambda j: j if j and what(j) else None)(job(r, number)), seconds, 0.2)


def finish(r, number, out, inp, name):
    """Waits for the end; the output is that of an undisturbed `ebb run` over the same input."""
    j = wait_job(r, number, lambda j: j["state"] not in ("running", "publishing"))
    assert j["state"] == "done" and j["records_done"] == RECORDS and j["errors"] == 0, j
    plain = tempfile.mkdtemp(prefix="plain", dir=os.environ["EBB_TEST_DIR"])
    # the hook is off there: a gate's words are a text like any other
    ebb_run(tiny_model(), r.path(inp), os.path.join(plain, "out"))
    same_output(r.path(out), os.path.join(plain, "out"))
    ebb(r, "rm", str(number))
    shutil.rmtree(r.path(out), ignore_errors=True)


def workers(r):
    """{pid inside: start time} of ebb-worker processes."""
    o = r.enter("sh", "-c", "for p in $(pgrep -x ebb-worker); do echo $p $(cut -d' ' -f22 /proc/$p/stat); done")[1]
    return {int(a): b for a, b in (line.split() for line in o.splitlines() if len(line.split()) == 2)}


def metrics(r):
    """Of the container's own network; waits while the daemon starts."""
    ask = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9570/metrics').read().decode(), end='')"
    return prom.parse(wait_for(lambda: (lambda got: got[1] if got[0] == 0 else None)(r.enter("python3", "-c", ask, want=None)), 20, 0.2))


def midway(r, name, gate):
    """A job that has done some records and waits at a gate: (number, out, input)."""
    inp = records(r, name, (RECORDS // 2, gate))
    number, out = submit(r, name, inp)
    wait_job(r, number, lambda j: j["records_done"] > 0)
    return number, out, inp


def test_units_are_sound(dir):
    """systemd-analyze has no complaint, and rates each below 2.5."""
    r = rig()
    for unit in ("ebbd.service", "ebb-worker@one.service", "ebb-agent.service"):
        rc, o, e = r.enter("systemd-analyze", "verify", "--man=no", f"/usr/lib/systemd/system/{unit.replace('one', '')}", want=None)
        said = [line for line in e.splitlines() if "ebb" in line]
        assert rc == 0 and not said, (rc, e)
        o = r.enter("systemd-analyze", "security", "--no-pager", "--offline=true", f"/usr/lib/systemd/system/{unit.replace('one', '')}")[1]
        level = float(re.search(r"Overall exposure level for \S+: ([\d.]+)", o)[1])
        assert level < 2.5, o
    o = r.enter("systemd-analyze", "security", "--no-pager", "ebbd.service")[1]  # as it is loaded, and runs
    assert float(re.search(r"Overall exposure level for \S+: ([\d.]+)", o)[1]) < 2.5, o


def test_start_and_a_job(dir):
    r = rig()
    assert r.show("ebbd", "Type") == "notify" and r.show("ebbd", "SubState") == "running"
    pid = r.show("ebbd", "MainPID")
    assert r.enter("ps", "-o", "user=,group=", "-p", pid)[1].split() == ["ebb", "ebb"]
    assert r.enter("grep", "CapEff", f"/proc/{pid}/status")[1].split()[1] == "0" * 16
    modes = r.enter("stat", "-c", "%a %U %G %n", "/run/ebb", "/run/ebb/clients", "/run/ebb/workers", "/var/lib/ebb")[1].split("\n")
    assert modes[:4] == ["710 ebb ebb /run/ebb", "660 ebb ebb /run/ebb/clients", "600 ebb ebb /run/ebb/workers", "700 ebb ebb /var/lib/ebb"], modes
    inp = records(r, "plain")
    number, out = submit(r, "plain", inp)
    wait_job(r, number, lambda j: j["state"] == "done")
    assert r.enter("stat", "-c", "%U %G", out + "/manifest.json", user="ann")[1].split() == ["ebb", "ebb"]
    wait_for(lambda: re.match(r"\d+ jobs running, \d+ workers", r.show("ebbd", "StatusText")), 20, 0.1)
    wait_for(lambda: prom.one(metrics(r), "ebb_records_done_total") >= RECORDS, 20, 0.2)  # published once a second
    finish(r, number, out, inp, "plain")
    rc, _, e = ebb(r, "jobs", want=None, user="bob")  # no member of the group
    assert rc == 1 and "you may not talk to the daemon" in e, (rc, e)


def test_crash_in_mid_job(dir):
    """kill -9: started again at once, the worker of before goes on in the same process."""
    r = rig()
    number, out, inp = midway(r, "crash", "/srv/jobs/crash.gate")
    pid, restarts, before = r.show("ebbd", "MainPID"), int(r.show("ebbd", "NRestarts")), workers(r)
    assert before
    r.systemctl("kill", "--kill-whom=main", "-s", "KILL", "ebbd")
    wait_for(lambda: r.show("ebbd", "MainPID") not in (pid, "0") and r.show("ebbd", "ActiveState") == "active", 60, 0.1)
    assert int(r.show("ebbd", "NRestarts")) == restarts + 1
    assert workers(r) == before, "workers did not outlive ebbd"
    wait_for(lambda: ": adopted, process" in r.journal("ebbd"), 20, 0.2)
    wait_for(lambda: "hello again" in r.journal("ebbd") or "joined" in r.journal("ebbd").rpartition("adopted, process")[2], 60, 0.2)
    open_gate(r, "/srv/jobs/crash.gate")
    finish(r, number, out, inp, "crash")
    assert not [line for line in r.journal("ebbd").splitlines() if "quarantine" in line or "suspect" in line]


def test_watchdog_bites(dir):
    """A loop that stands still is killed, and the service starts again."""
    r = rig()
    r.write("/etc/systemd/system/ebbd.service.d/watchdog.conf", "[Service]\nWatchdogSec=6\nTimeoutAbortSec=1\n")
    r.systemctl("daemon-reload")
    r.systemctl("restart", "ebbd")
    try:
        number, out, inp = midway(r, "hang", "/srv/jobs/hang.gate")
        pid, restarts = r.show("ebbd", "MainPID"), int(r.show("ebbd", "NRestarts"))
        r.enter("kill", "-STOP", pid)
        wait_for(lambda: r.show("ebbd", "MainPID") not in (pid, "0") and r.show("ebbd", "ActiveState") == "active", 90, 0.2)
        assert int(r.show("ebbd", "NRestarts")) > restarts  # a busy machine may let it bite once more
        assert "Watchdog timeout" in r.journal("ebbd")
        open_gate(r, "/srv/jobs/hang.gate")
        finish(r, number, out, inp, "hang")
    finally:
        os.unlink(r.path("/etc/systemd/system/ebbd.service.d/watchdog.conf"))
        r.systemctl("daemon-reload")
        r.systemctl("restart", "ebbd")


def test_reload(dir):
    """SIGHUP: the configuration is read again, a mistake in it changes nothing, the process stays."""
    r = rig()
    pid = r.show("ebbd", "MainPID")
    text = r.read("/etc/ebb/ebbd.yaml")
    try:
        r.write("/etc/ebb/ebbd.yaml", text.replace("  count: 1", "  count: 3"))
        r.systemctl("reload", "ebbd")
        wait_for(lambda: "configuration read again" in r.journal("ebbd"), 20, 0.1)

        def limit():
            return prom.one(metrics(r), "ebb_workers_limit", provider="local")
        wait_for(lambda: limit() == 3, 30, 0.3)
        r.write("/etc/ebb/ebbd.yaml", text.replace("  count: 1", "  cuont: 5"))
        r.systemctl("reload", "ebbd")
        wait_for(lambda: "unknown key 'cuont' (did you mean 'count')" in r.journal("ebbd"), 20, 0.1)
        assert r.show("ebbd", "MainPID") == pid and r.show("ebbd", "ActiveState") == "active" and limit() == 3
    finally:
        r.write("/etc/ebb/ebbd.yaml", text)
        r.systemctl("reload", "ebbd")


def test_stop_in_mid_job(dir):
    """systemctl stop drains: what is done is committed, workers are gone, within the time allowed; start resumes."""
    r = rig()
    number, out, inp = midway(r, "stop", "/srv/jobs/stop.gate")
    done, before = job(r, number)["records_done"], r.journal("ebbd")
    r.systemctl("stop", "ebbd")
    assert r.show("ebbd", "ActiveState") == "inactive" and r.show("ebbd", "Result") == "success", r.show("ebbd", "Result")
    assert workers(r) == {}
    log = r.journal("ebbd")[len(before):]
    assert "workers commit what they have" in log and "everything acknowledged is safe" in log and "ends at once" not in log, log[-3000:]
    r.systemctl("start", "ebbd")
    assert job(r, number)["records_done"] >= done
    open_gate(r, "/srv/jobs/stop.gate")
    finish(r, number, out, inp, "stop")


def test_upgrade_in_mid_job(dir):
    """The programs are replaced under a running job, then the service is restarted."""
    r = rig()
    number, out, inp = midway(r, "upgrade", "/srv/jobs/upgrade.gate")
    old = run([EBBD, "--version"])[1].split()[1]
    new = "9" + old[1:]
    for name in ("ebbd", "ebb-worker"):
        with open(r.path(f"/usr/bin/{name}"), "rb") as f:
            code = f.read()
        assert code.count(old.encode() + b"\0") >= 1, f"{name} does not name its version"
        with open(r.path(f"/usr/bin/{name}.new"), "wb") as f:
            f.write(code.replace(old.encode() + b"\0", new.encode() + b"\0"))
        os.chmod(r.path(f"/usr/bin/{name}.new"), 0o755)
        os.rename(r.path(f"/usr/bin/{name}.new"), r.path(f"/usr/bin/{name}"))
    try:
        r.systemctl("restart", "ebbd")
        assert f"ebbd {new}: serves" in r.journal("ebbd"), r.journal("ebbd")[-2000:]
        open_gate(r, "/srv/jobs/upgrade.gate")
        finish(r, number, out, inp, "upgrade")
    finally:
        for name in ("ebbd", "ebb-worker"):
            shutil.copy(os.path.join(BUILD, "bin", name), r.path(f"/usr/bin/{name}.new"))
            os.rename(r.path(f"/usr/bin/{name}.new"), r.path(f"/usr/bin/{name}"))
        r.systemctl("restart", "ebbd")


def test_a_worker_of_its_own(dir):
    """ebb-worker@one joins over tcp with a key that root alone can read: works, is killed, hangs, and leaves as it is told."""
    r = rig()
    text = r.read("/etc/ebb/ebbd.yaml")
    r.write("/etc/ebb/ebbd.yaml", text.replace("  count: 1", "  count: 0").replace("worker_timeout: 15s", "worker_timeout: 3s") + "\nlisten: tcp://127.0.0.1:5570\nroots: [/srv]\n")
    r.write("/etc/systemd/system/ebb-worker@.service.d/test.conf", "[Service]\nEnvironment=EBB_TEST_HOOK=1\nWatchdogSec=6\nTimeoutAbortSec=1\nRestartSec=100ms\n")
    try:
        r.systemctl("daemon-reload")
        r.enter("ebb", "keygen", "--state", "/var/lib/ebb", user="ebb")
        r.systemctl("restart", "ebbd")
        r.enter("install", "-d", "-m", "0700", "/etc/ebb/keys")
        r.enter("ebb", "keys", "add", "--node", "--name", "one", "/etc/ebb/keys/one.key")
        r.write("/etc/ebb/worker-one.env", "EBB_CONNECT=tcp://127.0.0.1:5570\nEBB_WORKER_OPTIONS=--lanes 2\n")
        unit = "ebb-worker@one"
        r.systemctl("start", unit)
        pid = r.show(unit, "MainPID")
        assert r.enter("ps", "-o", "user=", "-p", pid)[1].split() == ["ebb"] and r.enter("grep", "CapEff", f"/proc/{pid}/status")[1].split()[1] == "0" * 16
        wait_for(lambda: r.show(unit, "StatusText").startswith("serves the pool"), 30, 0.1)
        number, out, inp = midway(r, "alone", "/srv/jobs/alone.gate")
        assert r.show(unit, "StatusText") == "serves the pool, 1 lease"

        r.systemctl("kill", "-s", "KILL", unit)
        wait_for(lambda: r.show(unit, "MainPID") not in (pid, "0") and r.show(unit, "StatusText").startswith("serves the pool"), 60, 0.1)
        pid = r.show(unit, "MainPID")
        r.enter("kill", "-STOP", pid)
        wait_for(lambda: r.show(unit, "MainPID") not in (pid, "0") and r.show(unit, "ActiveState") == "active", 60, 0.1)
        assert "Watchdog timeout" in r.journal(unit)

        r.systemctl("stop", unit)
        assert r.show(unit, "Result") == "success" and "leaving: drained" in r.journal(unit), r.journal(unit)[-2000:]
        r.systemctl("start", unit)
        open_gate(r, "/srv/jobs/alone.gate")
        finish(r, number, out, inp, "alone")
        r.systemctl("stop", unit)

        # an agent that root lets join finds its key, before its first start and after
        r.write("/etc/ebb/agent.yaml", "host: joined\nowner: { present: ignored }\n")
        for again in (False, True):
            line = r.enter("ebb", "invite", "--node", "--name", f"agent{again}", "--address", "127.0.0.1")[1].split()
            r.enter(*line, *(["--force"] if again else []))
            r.systemctl("start", "ebb-agent")
            wait_for(lambda: any(json.loads(x)["host"] == "joined" and json.loads(x)["state"] != "silent" for x in ebb(r, "nodes", "--json")[1].splitlines()), 30, 0.2)
            r.systemctl("stop", "ebb-agent")
    finally:
        r.systemctl("stop", "ebb-worker@one")
        r.write("/etc/ebb/ebbd.yaml", text)
        r.systemctl("restart", "ebbd")


def test_an_agent(dir):
    """ebb-agent offers the machine, starts a worker under its hardening, and takes it along when it is stopped."""
    r = rig()
    text = r.read("/etc/ebb/ebbd.yaml")
    r.write("/etc/ebb/ebbd.yaml", text.replace("  count: 1", "  count: 0"))
    # this machine is busy with other tests, and that is not what this one is about
    r.write("/etc/ebb/agent.yaml", "daemon: ipc:///run/ebb/workers\nhost: lent\nworkers: { count: 1, lanes: 1, priority: normal }\nload: { limit: off }\n"
            "pressure: { cpu: off, memory: off, io: off }\nowner: { present: ignored }\nkeep: { cores: 0, memory: 0% }\nreturn_after: 1s\n")
    try:
        r.systemctl("restart", "ebbd")
        r.systemctl("start", "ebb-agent")
        assert r.show("ebb-agent", "ActiveState") == "active" and r.show("ebb-agent", "Type") == "notify"
        wait_for(lambda: any(json.loads(line)["host"] == "lent" for line in ebb(r, "nodes", "--json")[1].splitlines()), 30, 0.2)
        inp = records(r, "lent")
        number, out = submit(r, "lent", inp)
        wait_job(r, number, lambda j: j["records_done"] > 0)
        finish(r, number, out, inp, "lent")
        mine = workers(r)
        r.systemctl("stop", "ebb-agent")
        assert r.show("ebb-agent", "Result") == "success", r.journal("ebb-agent")[-2000:]
        assert not set(workers(r)) & set(mine), "a worker outlived its agent"
    finally:
        r.systemctl("stop", "ebb-agent")
        r.write("/etc/ebb/ebbd.yaml", text)
        r.systemctl("restart", "ebbd")


if __name__ == "__main__":
    try:
        main(globals())
    finally:
        if _rig:
            _rig.close()
