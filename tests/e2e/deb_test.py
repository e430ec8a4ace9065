"""Debian packages: are they made, sound, and do they install, run and go again? In a throw-away copy of this machine's root, under a real systemd."""
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from ebbtest import *  # noqa: E402
from systemd_rig import Rig  # noqa: E402

PACKAGES = ("ebb", "ebbd", "ebb-worker")
DEBS = os.path.join(BUILD, "deb")


def compiler():
    """As this tree was built: make would build it anew for another one."""
    with open(os.path.join(BUILD, "flags"), encoding="utf-8") as f:
        words = f.read().split()
    return " ".join(words[:words.index("-std=c17")]), next(w for w in words if w.startswith("-O"))


def make_debs():
    if SANITIZE:
        raise Skip("packages are made of what users get, not of instrumented programs")
    for program in ("dh", "dpkg-buildpackage"):
        if not shutil.which(program):
            raise Skip(f"there is no {program}")
    if not os.path.exists(os.path.join(DEBS, "made")):
        cc, opt = compiler()
        env = {k: v for k, v in os.environ.items() if k not in ("MFLAGS", "MAKELEVEL")}
        # knobs of the make that runs us hold here, too; its jobs are not ours
        env["MAKEFLAGS"] = " ".join(w for w in env.get("MAKEFLAGS", "").split() if not w.startswith(("-j", "--jobserver")))
        r = subprocess.run(["make", "--no-print-directory", "-C", TOP, f"B={os.environ.get('BUILD') or 'build'}", f"CC={cc}", f"OPT={opt}", "deb"],
                           env={**env, "DEB_BUILD_OPTIONS": "noautodbgsym nocheck"}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert r.returncode == 0, r.stdout.decode(errors="replace")[-4000:]
        open(os.path.join(DEBS, "made"), "w").close()
    found = {}
    for name in os.listdir(DEBS):
        m = re.fullmatch(r"([a-z-]+)_([^_]+)_[a-z0-9]+\.deb", name)
        if m and m[1] in PACKAGES:
            found[m[1]] = os.path.join(DEBS, name)
    assert sorted(found) == sorted(PACKAGES), os.listdir(DEBS)
    return found


def field(deb, name):
    return run(["dpkg-deb", "-f", deb, name])[1].strip()


def contents(deb):
    return {line.split()[5].lstrip(".").rstrip("/"): line.split()[0] for line in run(["dpkg-deb", "-c", deb])[1].splitlines()}


def test_what_is_in_them(dir):
    debs = make_debs()
    version = run([EBBD, "--version"])[1].split()[1]
    for name, deb in debs.items():
        assert field(deb, "Version") == version
        assert "libc6 (>= " in field(deb, "Depends") and "${" not in field(deb, "Depends"), field(deb, "Depends")
        files = contents(deb)
        assert f"/usr/share/doc/{name}/copyright" in files and f"/usr/share/doc/{name}/changelog.gz" in files, files
        assert not [f for f in files if "/local" in f or f.startswith(("/var", "/run", "/home", "/srv"))], files
    ebb, ebbd, worker = (contents(debs[p]) for p in PACKAGES)
    assert "/usr/bin/ebb" in ebb and "/usr/bin/ebbd" in ebbd and "/usr/bin/ebb-worker" in worker and "/usr/bin/ebb-agent" in worker
    commands = run([EBB, "completion", "commands"])[1].splitlines()
    pages = {f"/usr/share/man/man1/ebb-{c.replace(' ', '-')}.1.gz" for c in commands} | {"/usr/share/man/man1/ebb.1.gz"}
    assert len(commands) > 20 and pages <= set(ebb), pages - set(ebb)
    assert "/usr/share/man/man1/ebbd.1.gz" in ebbd and "/usr/share/man/man1/ebb-worker.1.gz" in worker and "/usr/share/man/man1/ebb-agent.1.gz" in worker
    assert "/usr/share/bash-completion/completions/ebb" in ebb and "/usr/share/zsh/vendor-completions/_ebb" in ebb
    assert "/lib/systemd/system/ebbd.service" in ebbd and {f"/lib/systemd/system/{u}.service" for u in ("ebb-worker@", "ebb-agent")} <= set(worker), worker
    assert worker["/etc/ebb/keys"] == "drwx------"
    for package, conffile in (("ebbd", "/etc/ebb/ebbd.yaml"), ("ebb-worker", "/etc/ebb/agent.yaml")):
        assert run(["dpkg-deb", "--ctrl-tarfile", debs[package]])[0] == 0
        assert conffile in run(["dpkg-deb", "-I", debs[package], "conffiles"])[1].split(), conffile
    assert "libmicrohttpd" in field(debs["ebbd"], "Depends") and "librocksdb" in field(debs["ebbd"], "Depends")
    assert "libjpeg" in field(debs["ebb-worker"], "Depends") and f"ebb-worker (= {version})" in field(debs["ebbd"], "Depends")


def test_what_they_are_built_of(dir):
    """Build-Depends names every library that `make deps` installs for building."""
    with open(os.path.join(TOP, "mk", "packages.txt"), encoding="utf-8") as f:
        wanted = {line for line in f.read().split("\n# ")[0].splitlines() if line and not line.startswith("#")}
    with open(os.path.join(TOP, "deploy", "debian", "control"), encoding="utf-8") as f:
        said = re.search(r"^Build-Depends: ((?:.|\n )*)", f.read(), re.M)[1]
    named = {re.sub(r"\(.*", "", word).strip() for word in said.split(",")}
    assert wanted - named == {"build-essential"}, wanted ^ named  # what every builder has


def test_lintian(dir):
    debs = make_debs()
    if not shutil.which("lintian"):
        raise Skip("there is no lintian")
    rc, o, e = run(["lintian", "--allow-root", "--fail-on", "error,warning", *debs.values()], timeout=300)
    assert rc == 0, o + e


def test_install_run_purge(dir):
    debs = make_debs()
    with Rig() as r:
        for deb in debs.values():
            shutil.copy(deb, r.path("/srv"))
        before = set(r.chroot("find", "/etc", "/usr", "/lib", "/var", "-xdev", "-newermt", "2000-01-01", "-print")[1].splitlines())
        files = [f"/srv/{os.path.basename(d)}" for d in debs.values()]
        r.boot()
        r.enter("sh", "-c", "DEBIAN_FRONTEND=noninteractive dpkg --force-unsafe-io -i " + " ".join(files), timeout=300)
        assert not r.enter("dpkg", "--audit")[1].strip()
        # the daemon runs, is ready, and comes again after a boot; workers and agents wait for somebody to say where
        r.wait_active("ebbd", 60)
        assert r.systemctl("is-enabled", "ebbd").strip() == "enabled"
        assert r.enter("systemctl", "is-enabled", "ebb-agent", want=None)[1].strip() == "disabled"
        assert r.show("ebb-agent", "ActiveState") == "inactive"
        assert r.enter("getent", "passwd", "ebb")[1].split(":")[5] == "/var/lib/ebb"
        r.enter("useradd", "-m", "-G", "ebb", "ann")
        r.enter("install", "-d", "-o", "ann", "-g", "ebb", "-m", "2770", "/srv/jobs")
        shutil.copytree(tiny_model(), r.path("/srv/jobs/model"))
        write_jsonl(r.path("/srv/jobs/in.jsonl"), 120)
        r.enter("chmod", "-R", "a+rX", "/srv/jobs/model", "/srv/jobs/in.jsonl")
        job = ["--model", "/srv/jobs/model", "--input", "/srv/jobs/in.jsonl", "--output"]
        number = r.enter("ebb", "submit", *job, "/srv/jobs/pool.out", user="ann")[1].split()[1]
        r.enter("ebb", "watch", number, user="ann")
        r.enter("ebb", "run", *job, "/srv/jobs/own.out", user="ann")  # without the service
        same_output(r.path("/srv/jobs/pool.out"), r.path("/srv/jobs/own.out"))

        # an upgrade to the same version restarts it once; what an administrator wrote stays
        r.write("/etc/ebb/ebbd.yaml", r.read("/etc/ebb/ebbd.yaml") + "\n# ours\n")
        r.write("/etc/ebb/agent.yaml", "daemon: ipc:///run/ebb/workers\nowner: { present: ignored }\n")
        r.systemctl("start", "ebb-agent")
        pid, agent = r.show("ebbd", "MainPID"), r.show("ebb-agent", "MainPID")
        assert agent != "0"
        r.enter("sh", "-c", "DEBIAN_FRONTEND=noninteractive dpkg --force-unsafe-io --force-confold -i " + " ".join(files), timeout=300)
        r.wait_active("ebbd", 60)
        assert r.show("ebbd", "MainPID") != pid and "# ours" in r.read("/etc/ebb/ebbd.yaml")
        assert number in r.enter("ebb", "jobs", "--all", user="ann")[1]
        wait_for(lambda: r.show("ebb-agent", "MainPID") not in (agent, "0"), 60, 0.1)

        # removal stops everything and keeps configuration; purge leaves jobs, and nothing else
        r.enter("dpkg", "-r", *PACKAGES, timeout=300)
        assert r.enter("systemctl", "is-active", "ebbd", want=None)[1].strip() in ("inactive", "failed", "unknown")
        assert not r.enter("pgrep", "-x", "ebbd|ebb-worker|ebb-agent", want=None)[1].strip()
        assert "# ours" in r.read("/etc/ebb/ebbd.yaml") and not os.path.exists(r.path("/usr/bin/ebb"))
        said = r.enter("dpkg", "-P", *PACKAGES, timeout=300)
        assert "stay in /var/lib/ebb" in said[1] + said[2], said
        assert os.path.isdir(r.path("/var/lib/ebb/store")) and sorted(os.listdir(r.path("/var/lib/ebb"))) == ["store"], os.listdir(r.path("/var/lib/ebb"))
        left = {line for line in r.enter("sh", "-c", "find /etc /usr /lib /var -xdev -newermt 2000-01-01 -print | grep -i ebb || true")[1].splitlines()} - before
        left = {f for f in left if not f.startswith(("/var/lib/ebb", "/var/log", "/var/cache/man")) and "ebbtest" not in f}
        assert not left, left


if __name__ == "__main__":
    made = os.path.join(DEBS, "made")
    if os.path.exists(made):
        os.unlink(made)  # of another build
    main(globals())
