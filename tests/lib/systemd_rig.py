"""A real systemd over a throw-away copy of this machine's root: an overlay on a tmpfs, booted by systemd-nspawn as a container with a network of its own.

What is written inside is gone with it. Needs root, systemd-nspawn and the right to mount; Rig() raises Skip with the reason where one is missing."""
import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time

from ebbtest import PATIENCE, Skip, wait_for

# what the machine's own packages would start inside, beside what a test is about
MASKED = ("systemd-networkd", "systemd-resolved", "systemd-timesyncd", "systemd-logind", "systemd-udevd", "systemd-journald-audit.socket", "slurmctld", "slurmd",
          "munge", "cron", "apt-daily.timer", "apt-daily-upgrade.timer", "e2scrub_all.timer", "fstrim.timer", "getty.target", "systemd-binfmt",
          "systemd-firstboot", "systemd-update-utmp", "networking")


def _run(*args, **more):
    return subprocess.run(args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", **more)


class Rig:
    """rig.root is the container's root as seen from here, also before boot(): files are put there."""

    def __init__(self):
        self.nspawn = None
        self.mounted = []
        self.top = None
        if os.geteuid() != 0:
            raise Skip("needs root, for mounts and a container")
        for program in ("systemd-nspawn", "systemctl", "nsenter", "mount"):
            if not shutil.which(program):
                raise Skip(f"there is no {program}")
        self.top = tempfile.mkdtemp(prefix="ebb-systemd-")
        atexit.register(self.close)
        try:
            self._mount("tmpfs", "-o", "mode=0755", "tmpfs", self.top)
            for name in ("upper", "work", "root"):
                os.mkdir(os.path.join(self.top, name), 0o755)
            self.root = os.path.join(self.top, "root")
            self._mount("overlay", "-o", f"lowerdir=/,upperdir={self.top}/upper,workdir={self.top}/work", "overlay", self.root)
        except Skip:
            self.close()
            raise
        self._prepare()

    def _mount(self, kind, *args):
        r = _run("mount", "-t", kind, *args)
        if r.returncode != 0:
            raise Skip(f"cannot mount a file system of kind {kind}: {r.stderr.strip()}")
        self.mounted.append(args[-1])

    def path(self, inside):
        return os.path.join(self.root, inside.lstrip("/"))

    def write(self, inside, text, mode=0o644):
        os.makedirs(os.path.dirname(self.path(inside)), exist_ok=True)
        with open(self.path(inside), "w", encoding="utf-8") as f:
            f.write(text)
        os.chmod(self.path(inside), mode)

    def read(self, inside):
        with open(self.path(inside), encoding="utf-8", errors="replace") as f:
            return f.read()

    def _prepare(self):
        self.write("/etc/machine-id", "uninitialized\n")
        self.write("/etc/hostname", "ebbtest\n")
        os.makedirs(self.path("/etc/systemd/system"), exist_ok=True)
        for unit in MASKED:
            link = self.path(f"/etc/systemd/system/{unit if '.' in unit else unit + '.service'}")
            if os.path.lexists(link):
                os.unlink(link)
            os.symlink("/dev/null", link)
        # images for containers forbid packages to start services; an index of manual pages takes long
        for path in ("/usr/sbin/policy-rc.d", "/var/lib/man-db/auto-update"):
            if os.path.lexists(self.path(path)):
                os.unlink(self.path(path))
        self.write("/etc/systemd/journald.conf.d/test.conf", "[Journal]\nStorage=volatile\nRateLimitIntervalSec=0\n")

    def chroot(self, *args, env=None, want=0, timeout=120):
        """Runs a program in the root before, or without, a systemd. (rc, stdout, stderr)"""
        p = _run("chroot", self.root, *args, timeout=max(timeout, PATIENCE),
                 env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", **(env or {})})
        if want is not None and p.returncode != want:
            raise AssertionError(f"{' '.join(args)} ended with {p.returncode}, not {want}\n{p.stdout}{p.stderr}")
        return p.returncode, p.stdout, p.stderr

    def boot(self):
        self.console = os.path.join(self.top, "console.log")
        with open(self.console, "wb") as log:
            self.nspawn = subprocess.Popen(
                ["systemd-nspawn", "--quiet", "-D", self.root, "--machine=ebb" + str(os.getpid()), "--register=no", "--keep-unit", "--private-network",
                 "--console=pipe", "--boot", "systemd.unit=basic.target", "systemd.journald.forward_to_console=0"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={k: v for k, v in os.environ.items() if k not in ("NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID")})
        end = time.monotonic() + PATIENCE
        self.pid = 0
        while True:
            if self.nspawn.poll() is not None:
                with open(self.console, errors="replace") as f:
                    said = f.read()[-2000:]
                self.nspawn = None
                raise Skip(f"systemd-nspawn cannot boot here: {said.strip()}")
            if not self.pid:
                self.pid = self._first()
            if self.pid:
                r = self.enter("systemctl", "is-system-running", want=None)
                if r[1].strip() in ("running", "degraded"):
                    return self
            if time.monotonic() > end:
                with open(self.console, errors="replace") as f:
                    raise AssertionError(f"systemd did not come up: {r[1:] if self.pid else ''}\n{f.read()[-4000:]}")
            time.sleep(0.1)

    def _first(self):
        """The container's process 1, as it is called here."""
        try:
            with open(f"/proc/{self.nspawn.pid}/task/{self.nspawn.pid}/children") as f:
                children = f.read().split()
        except OSError:
            return 0
        for child in children:
            try:
                with open(f"/proc/{child}/status") as f:
                    ids = [line for line in f if line.startswith("NSpid:")]
                with open(f"/proc/{child}/comm") as f:
                    name = f.read().strip()
            except OSError:
                continue
            if ids and ids[0].split()[-1] == "1" and name == "systemd":
                return int(child)
        return 0

    def enter(self, *args, want=0, timeout=120, user=None):
        """Runs a program inside, as root or as `user`. (rc, stdout, stderr)"""
        if user:
            args = ("runuser", "-u", user, "--", *args)
        p = _run("nsenter", "-t", str(self.pid), "-m", "-u", "-i", "-n", "-p", "-r", "-w", *args, timeout=max(timeout, PATIENCE),
                 env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/root"})
        if want is not None and p.returncode != want:
            raise AssertionError(f"{' '.join(args)} ended with {p.returncode}, not {want}\n{p.stdout}{p.stderr}\n{self.journal()[-6000:]}")
        return p.returncode, p.stdout, p.stderr

    def systemctl(self, *args, want=0):
        return self.enter("systemctl", *args, want=want)[1]

    def show(self, unit, name):
        return self.systemctl("show", "--value", "-p", name, unit).strip()

    def wait_active(self, unit, seconds=60):
        wait_for(lambda: self.show(unit, "ActiveState") == "active" or None, seconds, 0.1)

    def journal(self, unit=None):
        args = ["journalctl", "--no-pager", "-o", "short-monotonic", *(["-u", unit] if unit else [])]
        return _run("nsenter", "-t", str(self.pid), "-m", "-u", "-i", "-p", "-r", "-w", *args).stdout

    def close(self):
        if self.nspawn and self.nspawn.poll() is None:
            first = self._first()
            for pid in (first, self.nspawn.pid):
                if pid:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except OSError:
                        pass
            self.nspawn.wait()
        self.nspawn = None
        while self.mounted:
            where = self.mounted.pop()
            for _ in range(50):
                if _run("umount", "-R", where).returncode == 0:
                    break
                time.sleep(0.1)
            else:
                _run("umount", "-R", "-l", where)
        if self.top:
            shutil.rmtree(self.top, ignore_errors=True)
        self.top = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
