"""Memory stays flat whatever the dataset's size."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import json
import subprocess
import time

import ebbtest as t

SIZE_MB = 2000 if t.SOAK else 600


def rss(pid):
    with open(f"/proc/{pid}/status") as f:
        for line in f:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return 0


def test_flat_over_long_lines(dir):
    """120 KB lines: worker and daemon hold within 10 % from the first tenth to the last."""
    inp, out = os.path.join(dir, "in.jsonl"), os.path.join(dir, "out")
    line = "lorem ipsum dolor " * 6700
    with open(inp, "w") as f:
        for i in range(SIZE_MB * 1000000 // len(line)):
            f.write(json.dumps({"id": i, "text": line}) + "\n")
    p = subprocess.Popen(t.run_args(t.tiny_model(), inp, out, "--workers", "1"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    samples = []  # (MiB worker, MiB daemon)
    while p.poll() is None:
        now = {}
        for pid, name in t.processes(out):
            try:
                now[name] = max(now.get(name, 0), rss(pid))
            except OSError:
                pass
        if "ebb-worker" in now and "ebbd" in now:
            samples.append((now["ebb-worker"], now["ebbd"]))
        time.sleep(0.02)
    o, e = p.communicate()
    assert p.returncode == 0, (p.returncode, o, e)
    assert len(samples) >= 20, f"only {len(samples)} samples: too fast for this test"
    tenth = max(2, len(samples) // 10)
    for which, name in enumerate(("ebb-worker", "ebbd")):
        first = max(s[which] for s in samples[tenth : 2 * tenth])
        last = max(s[which] for s in samples[-tenth:])
        print(f"{name}: {first:.0f} MiB in the second tenth, {last:.0f} MiB in the last, {max(s[which] for s in samples):.0f} MiB at most")
        assert last <= first * 1.1 + 8, f"{name} grew from {first:.0f} to {last:.0f} MiB"
        assert max(s[which] for s in samples) < 700


if t.SANITIZE:
    print("skip: all (an instrumented program's memory says nothing of the product's)")
    sys.exit(0)
t.main(globals())
