#!/usr/bin/env python3
"""What it costs not to see the files: bytes a second through the relay over ipc and over tcp with CURVE, from memory; a job's rate with one worker that sees
everything and with one that sees nothing, in turn, the same input and the same bytes out; and, since a rate is worth little on a machine that is busy with
other things, the processor time that worker and daemon took for the same.

Needs mount namespaces of its own (root). The last line is one JSON object."""
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "lib"))
import ebbtest as t

READER = os.path.join(t.BUILD, "bench", "tools", "relay_reader")
RUNS = int(os.environ.get("EBB_BENCH_RUNS", "5"))
MIB = int(os.environ.get("EBB_BENCH_MIB", "512"))
RECORDS = int(os.environ.get("EBB_BENCH_RECORDS", "3000"))
MODEL = t.MINILM if os.path.exists(os.path.join(t.MINILM, "config.json")) else t.tiny_model()


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        words = f.read().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS")) / 1024


def submit(pool, model, inp, out, *more):
    return json.loads(pool.ebb("submit", "--json", "--model", model, "--input", inp, "--output", out, *more)[1].splitlines()[0])["job"]


def throughput(dir, result):
    os.makedirs(os.path.join(dir, "state"))
    subprocess.run([t.EBB, "keygen", "--state", os.path.join(dir, "state")], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    port = t.free_ports(3)
    config = os.path.join(dir, "ebbd.yaml")
    with open(config, "w") as f:
        f.write(f"listen: tcp://127.0.0.1:{port}\nroots: [{dir}, {t.TOP}]\n")
    pool = t.Pool(dir, "--config", config, workers=0)
    key = os.path.join(dir, "node.key")
    subprocess.run([t.EBB, "keys", "add", "--node", "--socket", os.path.join(pool.runtime, "clients"), key], check=True, stdout=subprocess.DEVNULL)
    big = os.path.join(dir, "big.jsonl")
    with open(big, "w") as f:
        for i in range(MIB):
            f.write(("x" * 1023 + "\n") * 1024)
    job = submit(pool, MODEL, big, os.path.join(dir, "out"))
    size = os.path.getsize(big)

    def read(*where):
        before = cpu_seconds(pool.process.pid)
        p = subprocess.run([READER, *where], check=True, stdout=subprocess.PIPE)
        count, seconds = p.stdout.split()
        return int(count) / float(seconds) / 1e6, (cpu_seconds(pool.process.pid) - before) / (int(count) / 1e9)

    def direct():
        begun = time.monotonic()
        with open(big, "rb", buffering=0) as f:
            block = bytearray(1 << 20)
            while f.readinto(block):
                pass
        return size / (time.monotonic() - begun) / 1e6

    rates = {"ipc": [], "curve": []}
    costs = {"ipc": [], "curve": []}
    reads, most = [], 0
    direct()
    for _ in range(RUNS):
        for name, where in (("ipc", [f"ipc://{pool.runtime}/workers", str(job), "0", str(size)]),
                            ("curve", [f"tcp://127.0.0.1:{port}", str(job), "0", str(size), key])):
            rate, cost = read(*where)
            rates[name].append(rate)
            costs[name].append(cost)
            most = max(most, resident_mib(pool.process.pid))
        reads.append(direct())
    result["direct_read_mb_s"] = round(statistics.median(reads))
    for name in rates:
        result[f"{name}_mb_s"] = round(statistics.median(rates[name]))
        result[f"{name}_daemon_cpu_s_per_gb"] = round(statistics.median(costs[name]), 3)
    result["daemon_rss_mib"] = round(most)
    print(f"{MIB} MiB, MB/s: read directly {result['direct_read_mb_s']}, relay over ipc {result['ipc_mb_s']}, over tcp with CURVE {result['curve_mb_s']}")
    pool.stop()


def jobs(dir, result):
    folder = os.path.join(dir, "in")
    os.makedirs(folder)
    inp = os.path.join(folder, "in.jsonl")
    if os.path.exists(t.GLOSSES):
        with open(t.GLOSSES, encoding="utf-8") as f, open(inp, "w", encoding="utf-8") as g:
            for _, line in zip(range(RECORDS), f):
                g.write(line)
    else:
        t.write_jsonl(inp, RECORDS)
    pool = t.Pool(dir, workers=0)
    seconds, cpu = {"direct": [], "relay": []}, {"direct": [], "relay": []}
    first = None
    for i in range(2 * RUNS):
        kind = ("direct", "relay")[i % 2]
        outs = os.path.join(dir, "outs")
        os.makedirs(outs)
        hidden = [folder, outs] if kind == "relay" else []
        lines = [f"mount -t tmpfs none '{d}'" for d in hidden] + ['exec "$@"']
        log = open(os.path.join(dir, "worker.log"), "ab")
        worker = subprocess.Popen(["unshare", "-m", "sh", "-c", " && ".join(lines), "sh", t.WORKER, "--connect", f"ipc://{pool.runtime}/workers", "--blackbox",
                                   os.path.join(dir, "box"), "--host", f"h{i}", "--lanes", str(max(1, (os.cpu_count() or 2) - 1))], stderr=log, stdout=log,
                                  stdin=subprocess.DEVNULL, cwd="/")
        # a small job first: the model is loaded, the roots are proved
        job = submit(pool, MODEL, inp, os.path.join(outs, "warm"), "--limit", "50")
        pool.wait_state(job, "done", 120)
        begun = time.monotonic()
        out = os.path.join(outs, "out")
        both = (pool.process.pid, worker.pid)
        before = sum(map(cpu_seconds, both))
        job = submit(pool, MODEL, inp, out)
        state = pool.wait_state(job, "done", 600)
        cpu[kind].append(sum(map(cpu_seconds, both)) - before)
        seconds[kind].append((state["finished_ms"] - state["submitted_ms"]) / 1000 or time.monotonic() - begun)
        worker.terminate()
        worker.wait()
        if first is None:
            first = os.path.join(dir, "first")
            shutil.copytree(out, first)
        else:
            t.same_output(first, out)
        shutil.rmtree(outs)
    pool.stop()
    for kind in seconds:
        result[f"job_{kind}_cpu_ms_per_record"] = round(1000 * statistics.median(cpu[kind]) / RECORDS, 4)
        result[f"job_{kind}_records_s"] = round(RECORDS / statistics.median(seconds[kind]), 1)
    result["job_relay_vs_direct"] = round(statistics.median(seconds["direct"]) / statistics.median(seconds["relay"]), 3)
    result["job_relay_vs_direct_cpu"] = round(result["job_relay_cpu_ms_per_record"] / result["job_direct_cpu_ms_per_record"], 3)
    print(f"{RECORDS} records of {os.path.basename(MODEL)}, records/s: direct {result['job_direct_records_s']}, relay {result['job_relay_records_s']} "
          f"({result['job_relay_vs_direct']} of it); processor time "
          f"{result['job_relay_vs_direct_cpu']} of the direct job's; the same bytes")


def main():
    result = {"bench": "relay", "mib": MIB, "records": RECORDS, "runs": RUNS, "model": os.path.basename(MODEL), "cores": os.cpu_count()}
    dir = tempfile.mkdtemp(prefix="ebb-bench-relay-")
    os.environ["EBB_TEST_DIR"] = dir
    try:
        for name, f in (("throughput", throughput), ("jobs", jobs)):
            os.makedirs(os.path.join(dir, name))
            f(os.path.join(dir, name), result)
    finally:
        t.kill_all(dir)
        shutil.rmtree(dir, ignore_errors=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
