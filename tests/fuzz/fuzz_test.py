"""Gives each fuzz target some seconds (FUZZ_SECONDS, 10), as many at once as there are processors, beginning with its seeds. What it finds that its seeds
do not reach goes again, unless FUZZ_KEEP is set: then it is kept in BUILD/fuzz/corpus for the next run. Inputs that crash are kept in BUILD/fuzz/found."""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.environ.get("BUILD", "build")
SECONDS = int(os.environ.get("FUZZ_SECONDS", "10"))
KEEP = os.environ.get("FUZZ_KEEP")
ONE_INPUT_S = 120  # far more than any takes, also beside others on a busy machine: it is hangs that are looked for
MEMORY_MB = 2048


def fuzz(target):
    name = os.path.basename(target)
    corpus = os.path.join(BUILD, "fuzz/corpus", name) if KEEP else tempfile.mkdtemp(prefix="ebb-fuzz-")
    found = os.path.join(BUILD, "fuzz/found", "")
    os.makedirs(corpus, exist_ok=True)
    os.makedirs(found, exist_ok=True)
    seeds = os.path.join(HERE, "seeds", name)
    if not os.path.isdir(seeds):
        return name, f"there are no seeds for it in {seeds}", ""
    run = [target, f"-max_total_time={SECONDS}", f"-timeout={ONE_INPUT_S}", f"-rss_limit_mb={MEMORY_MB}", f"-artifact_prefix={found}{name}-",
           "-print_final_stats=1", corpus, seeds]
    p = subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, errors="replace")
    said = p.communicate()[0]
    shutil.rmtree(f"/dev/shm/ebb-fuzz-{p.pid}", ignore_errors=True)  # model_files.h
    if not KEEP:
        shutil.rmtree(corpus)
    units = re.search(r"number_of_executed_units: (\d+)", said)
    counted = re.findall(r"cov: (\d+)", said)
    if p.returncode != 0:
        return name, f"exit code {p.returncode}; once more: {target} {found}{name}-...\n{said[-6000:]}", ""
    if not units or int(units.group(1)) == 0 or not counted:
        return name, f"it ran nothing\n{said[-2000:]}", ""
    return name, None, f"{int(units.group(1)):,} inputs, {counted[-1]} edges"


def main():
    targets = [os.path.join(BUILD, "fuzz", os.path.basename(c)[:-2]) for c in sorted(glob.glob(os.path.join(HERE, "*_fuzz.c")))]
    bad = 0
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for name, wrong, said in pool.map(fuzz, targets):
            print(f"FAILED: {name}: {wrong}" if wrong else f"ok: {name} ({said})", flush=True)
            bad += wrong is not None
    return 1 if bad or not targets else 0


if __name__ == "__main__":
    sys.exit(main())
