"""A real Slurm on this machine: munged, slurmctld and a few slurmd, each a node of its own name, in a folder of their own.

The nodes share this machine's processors; Slurm is told that each has some. Everything (sockets, keys, spools, logs) lies in a temporary folder,
nothing of the system's own Slurm or munge is touched, and close() ends every process that was started here, jobs included.

    with SlurmRig(dir, nodes=3) as slurm:
        subprocess.run(["squeue"], env=slurm.env)

Two partitions: 'scavenge' (jobs are requeued when somebody else wants the nodes) and 'prod' (whose jobs preempt those)."""
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import ebbtest as t

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
MARK = "EBB_SLURM_RIG"  # in the environment of all that is started here

CONF = """\
ClusterName=ebbtest
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmctldAddr=127.0.0.1
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={dir}/munge.sock,cred_expire=5
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool.%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd.%n.pid
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=1,sched_interval=1,bf_interval=1
SlurmctldParameters=preempt_send_user_signal
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait={kill_wait}
MessageTimeout=10
SlurmctldTimeout=30
SlurmdTimeout={slurmd_timeout}
MinJobAge=60
MailProg=/bin/true
ReturnToService=2
{nodes}
PartitionName=scavenge Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE MaxTime=INFINITE State=UP
PartitionName=prod Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP
"""


def unable():
    """Why no Slurm can run here; None: it can."""
    if os.geteuid() != 0:
        return "a Slurm of our own needs root"
    for p in PROGRAMS:
        if not shutil.which(p, path=path()):
            return f"'{p}' is not installed"
    try:
        pwd.getpwnam("munge")
    except KeyError:
        return "there is no user 'munge'"
    return None


def path():
    return os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"


class SlurmRig:
    def __init__(self, nodes=3, cpus=2, kill_wait=3, slurmd_timeout=10):
        reason = unable()
        if reason:
            raise t.Skip(reason)
        self.dir = tempfile.mkdtemp(prefix="ebb-slurm-")
        os.chmod(self.dir, 0o755)
        self.nodes = [f"n{i + 1}" for i in range(nodes)]
        self.env = {**os.environ, "PATH": path(), "SLURM_CONF": os.path.join(self.dir, "slurm.conf"), MARK: self.dir, "LC_ALL": "C"}
        self.processes = {}
        try:
            first = t.free_ports(nodes + 1)
            ports = range(first, first + nodes + 1)
            host = socket.gethostname().split(".")[0]
            lines = [f"NodeName={n} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} Boards=1 SocketsPerBoard=1 "
                     f"CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory=4000" for n, port in zip(self.nodes, ports[1:])]
            with open(self.env["SLURM_CONF"], "w") as f:
                f.write(CONF.format(dir=self.dir, host=host, ctld_port=ports[0], kill_wait=kill_wait, slurmd_timeout=slurmd_timeout,
                                    nodes="\n".join(lines)))
            os.mkdir(os.path.join(self.dir, "state"))
            self._munged()
            self.start_ctld()
            for n in self.nodes:
                self.start_node(n)
            self._wait("the nodes to be idle", lambda: self.out("sinfo", "-h", "-N", "-o", "%t").split().count("idle") >= 2 * nodes, 60)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # Its parts ----------------------------------------------------------------------------------------------------------------

    def _spawn(self, name, args):
        log = open(os.path.join(self.dir, f"{name}.out"), "ab")
        with log:
            self.processes[name] = subprocess.Popen(args, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def _munged(self):
        """A munge of our own: its folder belongs to its user, as it insists on."""
        key = os.path.join(self.dir, "munge", "key")
        user = pwd.getpwnam("munge")
        os.mkdir(os.path.dirname(key), 0o700)
        with open(key, "wb") as f:
            f.write(os.urandom(128))
        os.chmod(key, 0o400)
        for p in (key, os.path.dirname(key)):
            os.chown(p, user.pw_uid, user.pw_gid)
        run = os.path.join(self.dir, "munge")
        self._spawn("munged", ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", shutil.which("munged", path=path()),
                               "--foreground", "--force", f"--key-file={key}", f"--socket={run}/sock", f"--pid-file={run}/pid",
                               f"--log-file={run}/log", f"--seed-file={run}/seed"])
        os.chmod(run, 0o711)
        os.symlink(os.path.join(run, "sock"), os.path.join(self.dir, "munge.sock"))
        self._wait("munged", lambda: os.path.exists(os.path.join(run, "sock")), 20)

    def start_ctld(self):
        self._spawn("slurmctld", [shutil.which("slurmctld", path=path()), "-D", "-f", self.env["SLURM_CONF"]])
        self._wait("slurmctld", lambda: self.run("scontrol", "ping").returncode == 0 and "UP" in self.out("scontrol", "ping"), 60)

    def stop_ctld(self):
        """As for a service: killed instead, it would forget the jobs of the last seconds."""
        self.processes["slurmctld"].terminate()
        self.processes["slurmctld"].wait(t.PATIENCE)

    def start_node(self, node):
        self._spawn(node, [shutil.which("slurmd", path=path()), "-D", "-f", self.env["SLURM_CONF"], "-N", node])

    def kill_node(self, node):
        """The power goes: slurmd, and all that runs under it, at once."""
        doomed = self.processes[node].pid
        tree = self._tree(doomed) + [p for p, words, environ in self._ours() if f"SLURMD_NODENAME={node}".encode() in environ.split(b"\0")]
        stepds = [p for p, words, _ in self._ours() if words.startswith(b"slurmstepd") and self._node_of_stepd(p) == node]
        for pid in {*tree, *stepds}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.processes[node].wait()

    # Asking it ----------------------------------------------------------------------------------------------------------------

    def run(self, *args, stdin=None):
        return subprocess.run(args, env=self.env, input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60 * t.SLOW)

    def out(self, *args, stdin=None):
        return self.run(*args, stdin=stdin).stdout

    def queue(self, *more):
        """[(job, name, partition, state, node)] of what has not ended."""
        text = self.out("squeue", "-h", "-r", "-o", "%i|%j|%P|%T|%N", *more)
        return [tuple(line.split("|")) for line in text.splitlines()]

    def submit(self, *options, script="#!/bin/sh\nsleep 600\n"):
        p = self.run("sbatch", "--parsable", "--output=/dev/null", *options, stdin=script)
        assert p.returncode == 0, p.stderr
        return p.stdout.strip().split(";")[0]

    def cancel(self, *jobs):
        self.run("scancel", *jobs)

    # The end ------------------------------------------------------------------------------------------------------------------

    def _wait(self, what, true, seconds):
        try:
            t.wait_for(true, seconds, 0.1)
        except AssertionError:
            tails = ""
            for name in sorted(os.listdir(self.dir)):
                if name.endswith((".log", ".out")):
                    with open(os.path.join(self.dir, name), errors="replace") as f:
                        tails += f"--- {name}\n" + "".join(f.readlines()[-12:])
            raise AssertionError(f"waited {seconds} s for {what} in vain\n{tails}") from None

    def _ours(self):
        """(pid, command line, environment) of everything that was started here."""
        mark = f"{MARK}={self.dir}".encode()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as f:
                    environ = f.read()
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    words = f.read()
            except OSError:
                continue
            if mark in environ.split(b"\0"):
                yield int(pid), words, environ

    def _tree(self, root):
        parents = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat") as f:
                    parents[int(pid)] = int(f.read().rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                pass
        found = [root]
        for pid in found:
            found += [p for p, parent in parents.items() if parent == pid]
        return found

    def _node_of_stepd(self, pid):
        """A stepd has left its slurmd; its job's processes name the node."""
        for child in self._tree(pid)[1:]:
            try:
                with open(f"/proc/{child}/environ", "rb") as f:
                    for word in f.read().split(b"\0"):
                        if word.startswith(b"SLURMD_NODENAME="):
                            return word.split(b"=", 1)[1].decode()
            except OSError:
                pass
        return None

    def close(self):
        for p in self.processes.values():
            if p.poll() is None:
                p.kill()
        end = time.monotonic() + 20
        while True:
            left = [pid for pid, _, _ in self._ours() if pid != os.getpid()]
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            if not left or time.monotonic() > end:
                break
            time.sleep(0.05)
        for p in self.processes.values():
            p.wait()
        if not os.environ.get("EBB_KEEP"):
            shutil.rmtree(self.dir, ignore_errors=True)
