#!/usr/bin/env python3
"""The engine against ONNX Runtime on the same machine, the same cores and the same tokens: all-MiniLM-L6-v2, f32, bf16 and int8.

     bench/encoder.py [--threads 2] [--rounds 5] [--seconds 3] [--texts 2000]

Two inputs: 32 sequences of 128 tokens, and real texts (WordNet glosses). The peer runs the plain graph as an exporter writes it, at its best of
{1 session x all threads, a process of 1 thread per core} x batches of {8, 32}; its int8 is its own dynamic quantisation. For real texts it runs in batches of 32,
padded, in file order, and sorted by length. ebb runs packed, in file order. Rounds alternate; figures are medians. The last line is one JSON object.
OpenVINO, in f32 with its hint for throughput, is reported beside where pip brings it."""
import argparse
import json
import multiprocessing as mp
import os
import statistics
import subprocess
import sys
import time

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "peers"))
import peer_python  # noqa: E402

peer_python.ensure()
import bert_onnx  # noqa: E402
import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

BUILD = os.environ.get("BUILD", "build")


def session(path, threads):
    o = ort.SessionOptions()
    o.intra_op_num_threads, o.inter_op_num_threads, o.log_severity_level = threads, 1, 3
    o.add_session_config_entry("session.intra_op.allow_spinning", "1" if threads > 1 else "0")
    return ort.InferenceSession(path, o, providers=["CPUExecutionProvider"])


def feed(batch):
    longest = max(len(t) for t in batch)
    ids = np.zeros((len(batch), longest), np.int64)
    mask = np.zeros_like(ids)
    for i, t in enumerate(batch):
        ids[i, : len(t)] = t
        mask[i, : len(t)] = 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def ort_loop(path, threads, feeds, seconds, start, out, first, step):
    s = session(path, threads)
    mine = feeds[first::step]
    s.run(None, mine[0])
    start.wait()
    t, i = time.perf_counter(), 0
    while True:
        s.run(None, mine[i % len(mine)])
        i += 1
        if i % len(mine) == 0 and time.perf_counter() - t > seconds:
            break
    took = time.perf_counter() - t
    out.put(sum(int(f["attention_mask"].sum()) for f in mine) * (i // len(mine)) / took)


def ort_rate(path, feeds, threads, split, seconds):
    """Real tokens per second, padding not counted. split: a process per thread."""
    n = threads if split else 1
    start, out = mp.Barrier(n), mp.Queue()
    ps = [mp.Process(target=ort_loop, args=(path, 1 if split else threads, feeds, seconds, start, out, i, n)) for i in range(n)]
    for p in ps:
        p.start()
    rate = sum(out.get() for _ in ps)
    for p in ps:
        p.join()
    return rate


def openvino_loop(path, threads, feeds, seconds, out):
    import openvino as ov

    core = ov.Core()
    settings = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    model = core.compile_model(path, "CPU", settings)
    names = {i.any_name for i in model.inputs}
    feeds = [{k: v for k, v in f.items() if k in names} for f in feeds]
    queue = ov.AsyncInferQueue(model)
    for f in feeds[: len(queue)]:
        queue.start_async(f)
    queue.wait_all()
    t, rounds = time.perf_counter(), 0
    while time.perf_counter() - t < seconds or not rounds:
        for f in feeds:
            queue.start_async(f)
        rounds += 1
    queue.wait_all()
    took = time.perf_counter() - t
    out.put(sum(int(f["attention_mask"].sum()) for f in feeds) * rounds / took)


def openvino_rate(path, feeds, threads, seconds):
    """Real tokens per second, in a process of its own: it keeps its threads."""
    out = mp.Queue()
    p = mp.Process(target=openvino_loop, args=(path, threads, feeds, seconds, out))
    p.start()
    rate = out.get()
    p.join()
    return rate


def ebb_rate(model, ids, precision, threads, seconds, out=None):
    cmd = [os.path.join(BUILD, "bench/tools/encode_ids"), model, ids, precision, str(threads), str(seconds)] + ([out] if out else [])
    return json.loads(subprocess.run(cmd, check=True, capture_output=True, text=True).stdout)


def write_ids(path, texts):
    with open(path, "wb") as f:
        for t in texts:
            np.array([len(t), *t], np.int32).tofile(f)


def quality(a, b, k=10):
    """Mean and least cosine of two sets of unit vectors, and the share of each one's k nearest neighbours that agrees."""
    cos = (a * b).sum(1)
    na, nb = (np.argsort(-(x @ x.T - 2 * np.eye(len(x))), axis=1)[:, :k] for x in (a, b))
    same = np.mean([len(set(p) & set(q)) / k for p, q in zip(na, nb)])
    return float(cos.mean()), float(cos.min()), float(same)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", default=os.path.join(BUILD, "demo/all-MiniLM-L6-v2"))
    p.add_argument("--texts-file", default=os.path.join(BUILD, "demo/glosses.jsonl"))
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=3)
    p.add_argument("--texts", type=int, default=2000)
    p.add_argument("--precisions", default="f32,bf16,int8")
    a = p.parse_args()
    work = os.path.join(BUILD, "bench", "encoder")
    os.makedirs(work, exist_ok=True)
    graph, graph8 = os.path.join(work, "minilm.onnx"), os.path.join(work, "minilm.int8.onnx")
    bert_onnx.build(a.model, graph)
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(graph, graph8, per_channel=True, weight_type=QuantType.QInt8)
    tok = Tokenizer.from_file(os.path.join(a.model, "tokenizer.json"))
    tok.no_padding()
    tok.enable_truncation(256)
    with open(a.texts_file) as f:
        lines = [json.loads(x)["text"] for x in f]
    texts = [e.ids for e in tok.encode_batch(lines[:: max(1, len(lines) // a.texts)][: a.texts])]
    rng = np.random.default_rng(1)
    fixed = [list(map(int, row)) for row in rng.integers(1000, 30000, (32, 128))]
    write_ids(os.path.join(work, "fixed.ids"), fixed * a.threads * 2)  # 32 x 128 tokens make one micro-batch; each lane gets its own
    write_ids(os.path.join(work, "texts.ids"), texts)
    by32 = lambda t, n=32: [feed(t[i : i + n]) for i in range(0, len(t), n)]  # noqa: E731
    order, by_length = by32(texts), by32(sorted(texts, key=len))

    peers = {}
    for name, g in (("f32", graph), ("int8", graph8)):
        for split in (False, True):
            for batch in (8, 32):
                f = by32(fixed, batch) * (a.threads if split else 1)
                peers[f"ort {name}, {'%d x 1' % a.threads if split else '1 x %d' % a.threads}, batch {batch}"] = (name, g, f, split)
    rates, best = {}, {}
    for key, (name, g, f, split) in peers.items():  # which of the peer's settings is its best, in one short run each
        r = ort_rate(g, f, a.threads, split, a.seconds / 2)
        if r > best.get(name, (0,))[0]:
            best[name] = (r, key, split)
    jobs = {}
    for name, g in (("f32", graph), ("int8", graph8)):
        _, key, split = best[name]
        jobs[f"ort {name} fixed"] = lambda g=g, key=key, split=split: ort_rate(g, peers[key][2], a.threads, split, a.seconds)
        jobs[f"ort {name} order"] = lambda g=g, split=split: ort_rate(g, order, a.threads, split, a.seconds)
        jobs[f"ort {name} sorted"] = lambda g=g, split=split: ort_rate(g, by_length, a.threads, split, a.seconds)
    openvino = peer_python.optional("openvino")
    if openvino:
        jobs["openvino f32 fixed"] = lambda: openvino_rate(graph, by32(fixed) * a.threads * 2, a.threads, a.seconds)
        jobs["openvino f32 sorted"] = lambda: openvino_rate(graph, by_length, a.threads, a.seconds)
        jobs["openvino f32 order"] = lambda: openvino_rate(graph, order, a.threads, a.seconds)
    for name in a.precisions.split(","):
        for what in ("fixed", "texts"):
            file = os.path.join(work, what + ".ids")
            jobs[f"ebb {name} {what}"] = lambda name=name, file=file: ebb_rate(a.model, file, name, a.threads, a.seconds)["tokens_per_s"]
    for _ in range(a.rounds):
        for key, job in jobs.items():
            rates.setdefault(key, []).append(job())
    med = {k: statistics.median(v) for k, v in rates.items()}
    rows = {n: os.path.join(work, n + ".rows") for n in a.precisions.split(",")}
    info = {n: ebb_rate(a.model, os.path.join(work, "texts.ids"), n, a.threads, 0.1, rows[n]) for n in rows}
    dims = json.load(open(os.path.join(a.model, "config.json")))["hidden_size"]
    vec = {n: np.fromfile(f, np.float32).reshape(-1, dims) for n, f in rows.items()}

    print(f"onnxruntime {ort.__version__} (f32 best: {best['f32'][1]}; int8 best: {best['int8'][1]}); ebb on {info['f32']['isa']}, {a.threads} threads; "
          f"{len(texts)} glosses of {sum(map(len, texts)) / len(texts):.1f} tokens; medians of {a.rounds} rounds")
    for k, v in med.items():
        print(f"  {k:19} {v:9.0f} tokens/s  ({min(rates[k]):.0f}-{max(rates[k]):.0f})")
    out = {"bench": "encoder", "onnxruntime": ort.__version__, "isa": info["f32"]["isa"], "threads": a.threads}

    def ratio(name, x, y):
        if x in med and y in med:
            out[name] = round(med[x] / med[y], 3)

    ratio("f32_vs_ort", "ebb f32 fixed", "ort f32 fixed")
    ratio("bf16_vs_ort_f32", "ebb bf16 fixed", "ort f32 fixed")
    ratio("int8_vs_ort_int8", "ebb int8 fixed", "ort int8 fixed")
    ratio("int8_vs_f32", "ebb int8 fixed", "ebb f32 fixed")
    for n in ("f32", "int8"):
        ratio(f"text_{n}_vs_ort_sorted", f"ebb {n} texts", f"ort {n} sorted")
        ratio(f"text_{n}_vs_ort_file_order", f"ebb {n} texts", f"ort {n} order")
    ratio("f32_vs_openvino", "ebb f32 fixed", "openvino f32 fixed")
    ratio("text_f32_vs_openvino_sorted", "ebb f32 texts", "openvino f32 sorted")
    if openvino:
        from importlib.metadata import version

        out["openvino"] = version("openvino")
    ratio("text_bf16_vs_ort_f32_sorted", "ebb bf16 texts", "ort f32 sorted")
    for n in rows:
        if n != "f32":
            mean, least, same = quality(vec["f32"], vec[n])
            print(f"  {n} against f32: cosine {mean:.6f} on average, {least:.6f} at least; of the 10 nearest neighbours {100 * same:.1f} % agree")
            out |= {f"{n}_cosine": round(mean, 6), f"{n}_cosine_min": round(least, 6), f"{n}_neighbours": round(same, 4)}
    print(json.dumps(out))


if __name__ == "__main__":
    main()
