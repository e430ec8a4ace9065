"""Memory stays flat whatever the dataset's size."""
import json
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ebbtest as t

FILE_MB, FILES = (2000, 10) if t.SOAK else (100, 80)
PROGRAMS = ("ebb-worker", "ebbd")


def peak_mib(pid):
    """The most memory that the process has had at once since the last reset: no sample can miss it."""
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) / 1024 for line in f if line.startswith("VmHWM:"))


def reset_peak(pid):
    with open(f"/proc/{pid}/clear_refs", "w") as f:
        f.write("5")


def bytes_read(pid):
    with open(f"/proc/{pid}/io") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("rchar:"))


def long_lines(dir):
    """A folder of files with 120 KB lines; links to one file, so that the input is large and the disk is not."""
    line, folder = "lorem ipsum dolor " * 6700, os.path.join(dir, "in")
    os.mkdir(folder)
    first = os.path.join(folder, "0000.jsonl")
    with open(first, "w") as f:
        for i in range(FILE_MB * 1000000 // len(line)):
            f.write(json.dumps({"id": i, "text": line}) + "\n")
    for i in range(1, FILES):
        os.link(first, os.path.join(folder, f"{i:04}.jsonl"))
    return folder, FILES * os.path.getsize(first)


def peaks_by_tenth(dir, total, command):
    """Runs the job; {program: its peak in each tenth of the input}. Tenths are of the bytes that the worker has read, so that neither a fast nor
    a slow machine changes what is compared."""
    p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    pids, peaks = {}, {name: [] for name in PROGRAMS}
    while p.poll() is None:
        if len(pids) < len(PROGRAMS):
            pids.update({name: pid for pid, name in t.processes(dir) if name in PROGRAMS})
        else:
            try:
                done = bytes_read(pids["ebb-worker"]) / total
                due = len(peaks["ebb-worker"])
                if due < 10 and done >= min((due + 1) / 10, 0.99):
                    for name in PROGRAMS:
                        peaks[name].append(peak_mib(pids[name]))
                        reset_peak(pids[name])
            except (FileNotFoundError, ProcessLookupError, StopIteration):
                pass  # it has just ended
        time.sleep(0.005)
    o, e = p.communicate()
    assert p.returncode == 0, (p.returncode, o, e)
    for name in PROGRAMS:
        print(f"{name}: peaks by tenth of the input, MiB: {' '.join(f'{x:.1f}' for x in peaks[name])}")
        assert len(peaks[name]) == 10, f"{len(peaks[name])} tenths of {name} were seen"
    return peaks


def test_flat_over_long_lines(dir):
    """120 KB lines: in no tenth of the input do worker or daemon take 10 % more than in the first. Results wait for a commit, at most for its
    interval: that is short here, so that the first tenth holds many commits, as any tenth does in a long job."""
    try:
        reset_peak(os.getpid())
    except OSError as error:
        raise t.Skip(f"this kernel cannot reset a process's peak of memory: {error}")
    folder, total = long_lines(dir)
    peaks = peaks_by_tenth(dir, total, t.run_args(t.tiny_model(), folder, os.path.join(dir, "out"), "--workers", "1", "--commit", "100ms"))
    for name in PROGRAMS:
        first, most = peaks[name][0], max(peaks[name])
        assert most <= first * 1.1, f"{name} grew from {first:.1f} to {most:.1f} MiB"


if t.SANITIZE:
    print("skip: all (an instrumented program's memory says nothing of the product's)")
    sys.exit(0)
t.main(globals())
