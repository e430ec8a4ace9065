#!/usr/bin/env python3
"""The planner: published problems, random clusters of unlike devices, and what is gained over devices in the order given and over an even split.

Clusters: speeds 1 to 8, each layer a little faster or slower on each device, memory from scarce to ample, one kind of link or links of 0.1 to 10 Gbit/s. What is gained over a fixed order depends
on what unlike devices are unlike in, so eight devices are also drawn in several ways: see READINGS. The last line is one JSON object."""
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EBB = os.path.join(TOP, os.environ.get("BUILD") or "build", "bin", "ebb")
OPTIMA = {"bert24": 17.789906, "resnet50": 33.774666, "bert_l-3": 27.918568, "vit-base-8cpus": 1548.760009}


def plan(problem):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(problem, f)
        f.flush()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        p = subprocess.run([EBB, "model", "plan", "--json", "--instance", f.name], capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if p.returncode:
        return None
    p = json.loads(p.stdout)
    p["cpu_s"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime  # with what is compared beside it
    return p


def cluster(seed, devices, layers, links, kinds=None, objective="throughput", micro_batches=1):
    r = random.Random(seed)
    kinds = kinds or devices
    speeds = [r.uniform(1, 8) for _ in range(kinds)]
    nodes = [{"id": i, "name": f"layer{i}", "weight_bytes": r.randrange(10**6, 2 * 10**7), "output_bytes": r.choice([10**5, 2 * 10**5, 4 * 10**5]),
              "time_ms": {f"k{k}": (w := r.uniform(20, 60)) / speeds[k] * r.uniform(0.9, 1.1) for k in range(kinds)}} for i in range(layers)]
    total = sum(n["weight_bytes"] for n in nodes)
    problem = {"format": "ebb-plan/1", "objective": objective, "micro_batches": micro_batches, "overlap": bool(seed & 1), "nodes": nodes,
               "edges": [[i, i + 1] for i in range(layers - 1)],
               "devices": [{"name": f"d{d}", "kind": f"k{d % kinds}", "memory_bytes": int(total * r.uniform(1, 4) / devices)} for d in range(devices)]}
    if links:
        problem["links"] = [{"from": f"d{a}", "to": f"d{b}", "bandwidth_bits_per_s": 10 ** r.uniform(8, 10), "latency_ms": r.uniform(0.05, 0.5)}
                            for a in range(devices) for b in range(a)]
    else:
        problem["link"] = {"bandwidth_bits_per_s": 1e9, "latency_ms": 0.1}
    return problem


# What "unlike" may mean. "Fully heterogeneous" has a meaning in the literature on mapping pipelines: processors of unlike speed *and* links of unlike capacity (Benoit and Robert, "Mapping Pipeline Skeletons
# onto Heterogeneous Platforms", 2008; unlike speeds alone are "communication homogeneous"). output_mb: what crosses a cut; 3.1 MB are 8 sequences of 128 tokens, 768 wide, in f32. memory: of each device, in even shares
# of the model. parts: consecutive parts of the model of unlike operations, each with a speed of its own on each device.
READINGS = {
    "speeds": {},
    "speeds_memory": {"memory": (0.7, 2)},
    "speeds_links_small": {"links": True},
    "speeds_links": {"links": True, "output_mb": (1, 4)},
    "speeds_links_memory": {"links": True, "output_mb": (1, 4), "memory": (0.7, 2)},
    "operations": {"parts": 3},
    "operations_links_memory": {"parts": 3, "links": True, "output_mb": (1, 4), "memory": (0.7, 2)},
}


def drawn(seed, links=False, output_mb=(0.1, 0.4), memory=None, parts=1, devices=8, layers=96):
    r = random.Random(seed)
    speeds = [[r.uniform(1, 8) for _ in range(parts)] for _ in range(devices)]
    nodes = []
    for i in range(layers):
        work = r.uniform(20, 60)
        nodes.append({"id": i, "name": f"layer{i}", "weight_bytes": r.randrange(10**6, 2 * 10**7), "output_bytes": int(1e6 * r.uniform(*output_mb)),
                      "time_ms": {f"k{d}": work / speeds[d][i * parts // layers] * r.uniform(0.9, 1.1) for d in range(devices)}})
    total = sum(n["weight_bytes"] for n in nodes)
    problem = {"format": "ebb-plan/1", "objective": "throughput", "overlap": bool(seed & 1), "nodes": nodes, "edges": [[i, i + 1] for i in range(layers - 1)],
               "devices": [{"name": f"d{d}", "kind": f"k{d}"} | ({"memory_bytes": int(total * r.uniform(*memory) / devices)} if memory else {}) for d in range(devices)]}
    if links:
        problem["links"] = [{"from": f"d{a}", "to": f"d{b}", "bandwidth_bits_per_s": 10 ** r.uniform(8, 10), "latency_ms": r.uniform(0.05, 0.5)}
                            for a in range(devices) for b in range(a)]
    else:
        problem["link"] = {"bandwidth_bits_per_s": 1e9, "latency_ms": 0.1}
    return problem


def fastest_first(problem):
    def time(d):
        return sum(n["time_ms"][d["kind"]] for n in problem["nodes"])
    return problem | {"devices": sorted(problem["devices"], key=time)}


def readings(figures, count=20):
    figures["readings_8x96"] = {}
    for label, how in READINGS.items():
        plans, given, sorted_ = 0, [], []
        for seed in range(count):
            problem = drawn(seed, **how)
            p, q = plan(problem), plan(fastest_first(problem))
            if not p:
                continue
            plans += 1
            assert p["gap"] < 1e-6 and abs(p["value_ms"] - q["value_ms"]) <= 1e-6 * p["value_ms"], "the best plan does not depend on the order given"
            given += [p["fixed_order_ms"] / p["value_ms"] - 1] if p["fixed_order_ms"] else []
            sorted_ += [q["fixed_order_ms"] / q["value_ms"] - 1] if q["fixed_order_ms"] else []
        f = {"problems": plans, "gain_over_given_order": statistics.mean(given), "median": statistics.median(given), "given_order_fits": len(given),
             "gain_over_fastest_first": statistics.mean(sorted_), "fastest_first_fits": len(sorted_)}
        print(f"{label:24} {plans} problems: {100 * f['gain_over_given_order']:.1f} % over devices in the order given (median {100 * f['median']:.1f} %, it finds {len(given)} plans), "
              f"{100 * f['gain_over_fastest_first']:.1f} % over fastest first ({len(sorted_)})")
        figures["readings_8x96"][label] = f


def published(figures):
    for name, optimum in OPTIMA.items():
        with open(os.path.join(TOP, "tests", "golden", "plan", name + ".json")) as f:
            p = plan(json.load(f))
        ok = abs(p["value_ms"] - optimum) < 2e-6 * optimum and p["gap"] < 1e-9
        print(f"{name:16} {p['value_ms']:12.6f} ms, optimum {optimum}: {'proved' if ok else 'MISSED'}, {p['took_ms']:.0f} ms")
        figures[name] = {"value_ms": p["value_ms"], "optimal": ok, "took_ms": p["took_ms"]}


def clusters(figures):
    for label, args, count in [("8x96", (8, 96, False), 20), ("8x96_links", (8, 96, True), 20), ("8x96_latency_16", (8, 96, False, None, "latency", 16), 8),
                               ("8x96_links_latency_4", (8, 96, True, None, "latency", 4), 6), ("8x96_links_latency_16", (8, 96, True, None, "latency", 16), 6),
                               ("16x96", (16, 96, False), 6), ("64x96_4_kinds", (64, 96, False, 4), 6), ("64x96", (64, 96, False), 6)]:
        plans = [p for s in range(count) if (p := plan(cluster(s, *args)))]
        gains = [p["fixed_order_ms"] / p["value_ms"] - 1 for p in plans if p["fixed_order_ms"]]
        even = [p["even_split_ms"] / p["value_ms"] - 1 for p in plans if p["even_split_ms"]]
        f = {"problems": len(plans), "gap_max": max(p["gap"] for p in plans), "cpu_s_max": max(p["cpu_s"] for p in plans),
             "gain_over_fixed_order": statistics.mean(gains) if gains else None, "gain_over_even_split": statistics.mean(even) if even else None,
             "even_split_fits": len(even)}
        print(f"{label:16} {f['problems']} problems: gap at most {100 * f['gap_max']:.2f} %, {f['cpu_s_max']:.2f} s of processor time at most; "
              + (f"{100 * f['gain_over_fixed_order']:.1f} % over devices in the order given" if gains else "")
              + (f", {100 * f['gain_over_even_split']:.0f} % over an even split (where that fits: {len(even)})" if even else ""))
        figures[label] = f


figures = {"bench": "plan"}
published(figures)
clusters(figures)
readings(figures)
print(json.dumps(figures))
sys.exit(0 if all(figures[n]["optimal"] for n in OPTIMA) else 1)
