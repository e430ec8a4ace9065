"""Models larger than memory: layers are held by turns, and nothing of it shows in a result."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ebbtest as t

MEMORY_MIB = 72


def model():
    """80 MB of weights in 20 layers: more than is allowed below, and more than a few of its layers."""
    return t.tiny_kind("layers=20", "hidden=256", "heads=4", "vocab=4000", "positions=128")


def peak_mib(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) / 1024 for line in f if line.startswith("VmHWM:"))


def pool_run(dir, name, inp, *more):
    """Output, the peak of the worker's memory, and what it logged."""
    os.mkdir(os.path.join(dir, name))
    pool = t.Pool(os.path.join(dir, name), *more, env={"EBB_PACK_CACHE": os.path.join(dir, "packs")}, workers=1, lanes=2)
    out = os.path.join(dir, name + ".jsonl")
    try:
        spec = os.path.join(dir, name + ".yaml")
        with open(spec, "w") as f:
            f.write(f"model: {model()}\ninput: [{inp}]\noutput: {out}\n")
        job = json.loads(pool.ebb("submit", spec, "--json")[1].splitlines()[0])["job"]
        pool.wait_state(job, "done", 120)
        (pid,) = [pid for pid, program in t.processes(pool.runtime) if program == "ebb-worker"]
        return out, peak_mib(pid)
    finally:
        pool.stop()


def test_a_window_of_layers(dir):
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 300)
    first, small = pool_run(dir, "window", inp, "--memory", f"{MEMORY_MIB}MiB")  # it also packs the weights, within that memory
    again, found = pool_run(dir, "again", inp, "--memory", f"{MEMORY_MIB}MiB")
    whole, large = pool_run(dir, "whole", inp)
    t.same_output(first, whole)
    t.same_output(again, whole)
    print(f"peak of the worker: {small:.0f} MiB, {found:.0f} with its file there, {large:.0f} without a limit")
    if not t.SANITIZE:  # which take memory of their own
        assert small < MEMORY_MIB and found < MEMORY_MIB, (small, found)
        assert large > small + 30, (small, large)


def test_it_says_what_it_needs(dir):
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 5)
    cases = [("off", "64MiB", "can be held by turns only where packed weights are kept on a disk\n   --pack-cache names a folder"),
             (os.path.join(dir, "packs"), "64MiB", None)]
    for i, (cache, memory, says) in enumerate(cases):
        rc, o, e = t.ebb_run(model(), inp, os.path.join(dir, f"out{i}.jsonl"), "--workers", "1", "--lanes", "2", "--memory", memory, env={"EBB_PACK_CACHE": cache}, want=None)
        if says:
            assert rc == 4 and says in e, (rc, e)
        else:
            assert rc == 0, e
    rc, o, e = t.ebb_run(model(), inp, os.path.join(dir, "many.jsonl"), "--workers", "1", "--lanes", "16", "--memory", "64MiB", env={"EBB_PACK_CACHE": os.path.join(dir, "packs")}, want=None)
    assert rc == 4 and "needs at least" in e and "even if its layers are held by turns" in e and "may take 64" in e, (rc, e)


if __name__ == "__main__":
    t.main(globals())
