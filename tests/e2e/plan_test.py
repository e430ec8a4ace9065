"""`ebb model plan`: published problems come to their known optimum, plans are what they say they are, and a wrong file is named with the place."""
import glob
import itertools
import json
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ebbtest as t

PROBLEMS = os.path.join(t.TOP, "tests", "golden", "plan")
OPTIMA = {"bert24": 17.789906, "resnet50": 33.774666, "bert_l-3": 27.918568, "vit-base-8cpus": 1548.760009}


def plan(path):
    rc, out, err = t.run([t.EBB, "model", "plan", "--instance", path, "--json"])
    assert rc == 0, (rc, err)
    return json.loads(out)


def largest_load(problem, stages):
    """What docs/pipelines.md says a plan costs, from the file alone; one kind of link, no replicas."""
    nodes = {n["id"]: n for n in problem["nodes"]}
    devices = {d["name"]: d for d in problem["devices"]}
    link = problem.get("link") or {}
    stage_of = {v: i for i, s in enumerate(stages) for v in s["nodes"]}
    assert sorted(stage_of) == sorted(nodes), "each node once"
    assert sum(len(s["nodes"]) for s in stages) == len(nodes)
    assert len({s["device"] for s in stages}) == len(stages), "each device once"
    assert all(stage_of[a] <= stage_of[b] for a, b in problem["edges"]), "edges run forward"
    groups = {}
    for v, n in nodes.items():
        if "group" in n:
            assert groups.setdefault(n["group"], stage_of[v]) == stage_of[v], "groups stay together"

    def transfer(n):
        if "output_ms" in n:
            return n["output_ms"]
        return n.get("output_bytes", 0) * 8e3 / link["bandwidth_bits_per_s"] + link.get("latency_ms", 0) if link else 0

    worst = 0
    for i, s in enumerate(stages):
        d = devices[s["device"]]
        compute = sum(nodes[v]["time_ms"][d["kind"]] for v in s["nodes"])
        assert sum(nodes[v].get("weight_bytes", 0) for v in s["nodes"]) <= d.get("memory_bytes", 1 << 62)
        into = sum(transfer(nodes[a]) for a in {a for a, b in problem["edges"] if stage_of[b] == i and stage_of[a] != i})
        out = sum(transfer(nodes[a]) for a in {a for a, b in problem["edges"] if stage_of[a] == i and stage_of[b] != i})
        if d.get("free_link"):
            into = out = 0
        worst = max(worst, max(compute, into, out) if problem.get("overlap") else compute + into + out)
    return worst


def test_published_problems(dir):
    found = {os.path.basename(p)[:-5] for p in glob.glob(os.path.join(PROBLEMS, "*.json"))}
    assert found == set(OPTIMA), found
    for name, optimum in OPTIMA.items():
        path = os.path.join(PROBLEMS, name + ".json")
        p = plan(path)
        with open(path) as f:
            own = largest_load(json.load(f), p["stages"])
        assert abs(own - optimum) < 2e-6 * optimum, (name, own)
        assert abs(own - p["value_ms"]) < 1e-6 * own, (name, own, p["value_ms"])
        assert p["optimal"] and p["gap"] < 1e-9, (name, p["gap"])


def cluster(r, devices, layers):
    speeds = [r.uniform(0.5, 4) for _ in range(devices)]
    nodes = []
    for i in range(layers):
        work = r.uniform(5, 15)
        nodes.append({"id": i, "name": f"layer{i}", "weight_bytes": r.randrange(10**6, 2 * 10**7), "output_bytes": r.choice([10**5, 2 * 10**5, 4 * 10**5]),
                      "time_ms": {f"k{d}": work / speeds[d] * r.uniform(0.9, 1.1) for d in range(devices)}})
    total = sum(n["weight_bytes"] for n in nodes)
    return {"format": "ebb-plan/1", "objective": "throughput", "overlap": r.random() < 0.5, "contiguous": True, "nodes": nodes,
            "edges": [[i, i + 1] for i in range(layers - 1)], "link": {"bandwidth_bits_per_s": 1e9, "latency_ms": 0.1},
            "devices": [{"name": f"d{d}", "kind": f"k{d}", "memory_bytes": int(total * r.uniform(1, 4) / devices)} for d in range(devices)]}


def test_random_clusters(dir):
    r, path = random.Random(5), os.path.join(dir, "cluster.json")
    for devices, layers, gap in [(8, 96, 1e-9)] * 4 + [(64, 96, 0.02)] * 2:
        problem = cluster(r, devices, layers)
        with open(path, "w") as f:
            json.dump(problem, f)
        p = plan(path)
        own = largest_load(problem, p["stages"])
        assert abs(own - p["value_ms"]) < 1e-6 * own, (own, p["value_ms"])
        assert p["gap"] <= gap, (devices, p["gap"])
        assert p["bound_ms"] <= p["value_ms"] * (1 + 1e-9)
        if p["fixed_order_ms"] is not None:
            assert p["value_ms"] <= p["fixed_order_ms"] * (1 + 1e-9)


def test_replicas_and_latency(dir):
    """Two alike devices share a stage's micro-batches; of few micro-batches it is the way through that counts."""
    path = os.path.join(dir, "two.json")
    problem = {"format": "ebb-plan/1", "nodes": [{"id": 7, "name": "only", "time_ms": {"cpu": 10}}], "edges": [],
               "devices": [{"name": "a", "kind": "cpu"}, {"name": "b", "kind": "cpu"}], "replicas": True}

    def value(**more):
        with open(path, "w") as f:
            json.dump({**problem, **more}, f)
        return plan(path)

    p = value()
    assert p["value_ms"] == 5 and sorted(p["stages"][0]["devices"]) == ["a", "b"], p
    assert value(replicas=False)["value_ms"] == 10
    nodes = [{"id": i, "name": f"n{i}", "time_ms": {"fast": 10, "slow": 12}, "output_ms": 1} for i in range(2)]
    devices = [{"name": "f", "kind": "fast"}, {"name": "s", "kind": "slow"}]
    one = value(nodes=nodes, edges=[[0, 1]], devices=devices, replicas=False, objective="latency", micro_batches=1)
    assert one["value_ms"] == 20 and len(one["stages"]) == 1, one
    many = value(nodes=nodes, edges=[[0, 1]], devices=devices, replicas=False, objective="latency", micro_batches=100)
    assert len(many["stages"]) == 2 and many["value_ms"] == 11 + 13 + 99 * 13, many


def test_what_people_see(dir):
    rc, out, err = t.run([t.EBB, "model", "plan", "--instance", os.path.join(PROBLEMS, "vit-base-8cpus.json")])
    assert rc == 0 and "bottleneck 1548.760009 ms" in out and "no plan is better" in out and "11.5 % more" in out, out


def test_wrong_files(dir):
    path = os.path.join(dir, "p.json")
    good = {"format": "ebb-plan/1", "nodes": [{"id": 1, "name": "a", "time_ms": {"cpu": 1}}], "edges": [], "devices": [{"name": "d", "kind": "cpu"}]}

    def refused(words, **more):
        with open(path, "w") as f:
            json.dump({**good, **more}, f)
        rc, out, err = t.run([t.EBB, "model", "plan", "--instance", path])
        assert rc == 2 and words in err and not out, (words, rc, err)

    refused('"format" must be "ebb-plan/1"', format="x")
    refused("unknown key 'device' (did you mean 'devices')", device=1)
    refused("nodes[0]: unknown key 'wieght_bytes' (did you mean 'weight_bytes')", nodes=[{"id": 1, "time_ms": {}, "wieght_bytes": 1}])
    refused("nodes[0]: needs an 'id'", nodes=[{"time_ms": {"cpu": 1}}])
    refused("has the id of another node", nodes=good["nodes"] * 2)
    refused("edges[0]: must be [from, to]", edges=[[1, 2]])
    refused("edges[0]: must be [from, to]", edges=[7])
    refused("devices[0]: needs 'name' and 'kind'", devices=[{"name": "d"}])
    refused("'devices' must be a list", devices=[])
    refused("can run on none of the devices", nodes=[{"id": 1, "name": "a", "time_ms": {"gpu": 1}}])
    refused("times must be numbers", nodes=[{"id": 1, "time_ms": {"cpu": -1}}])
    refused("'micro_batches' must be", micro_batches=0)
    refused("no link between 'd' and 'e'", devices=[{"name": "d", "kind": "cpu"}, {"name": "e", "kind": "cpu"}, {"name": "f", "kind": "cpu"}],
            links=[{"from": "f", "to": "d", "bandwidth_bits_per_s": 1}, {"from": "f", "to": "e", "bandwidth_bits_per_s": 1}])
    refused("more than any device", devices=[{"name": "d", "kind": "cpu", "memory_bytes": 5}], nodes=[{"id": 1, "time_ms": {"cpu": 1}, "weight_bytes": 9}])
    with open(path, "w") as f:
        f.write("{")
    rc, out, err = t.run([t.EBB, "model", "plan", "--instance", path])
    assert rc == 2 and "line 1" in err, err
    rc, out, err = t.run([t.EBB, "model", "plan", "--instance", os.path.join(dir, "none.json")])
    assert rc == 2 and "none.json" in err, err


def best_load(segments, devices, rate, latency):
    """Every order of every choice of devices, every cut: the smallest of the largest loads."""
    n, best = len(segments), None
    for count in range(1, len(devices) + 1):
        for order in itertools.permutations(range(len(devices)), count):
            for cuts in itertools.combinations(range(1, n), count - 1):
                at, worst = [0, *cuts, n], 0
                for i, d in enumerate(order):
                    name, factor, room = devices[d]
                    part = segments[at[i]:at[i + 1]]
                    if room and sum(s["weight_bytes"] for s in part) > room:
                        break
                    cross = lambda k: segments[k - 1]["out_bytes"] * 8e3 / rate + latency if 0 < k < n else 0
                    worst = max(worst, sum(s["time_ms"] for s in part) / factor, cross(at[i]), cross(at[i + 1]))
                else:
                    best = worst if best is None else min(best, worst)
    return best


def test_of_a_model(dir):
    """What `model plan DIR` says is a plan of the segments that it measured, and none is better; memory is kept to; nonsense is refused."""
    model = t.tiny_model(layers=5)

    def said(*args):
        rc, out, err = t.run([t.EBB, "model", "plan", model, "--lanes", "1", "--json", *args])
        assert rc == 0, (rc, err)
        p = json.loads(out)
        assert len(p["segments"]) == 7 and all(s["time_ms"] > 0 for s in p["segments"]), p
        assert sum(s["weight_bytes"] for s in p["segments"]) == p["weight_bytes"]
        assert [s["first"] for s in p["stages"]] == [1] + [s["last"] + 1 for s in p["stages"][:-1]] and p["stages"][-1]["last"] == 7, p["stages"]
        assert abs(p["texts_per_s"] * p["bottleneck_ms"] - 1000 * p["texts"]) < 1, p
        return p

    p = said("--workers", "3")
    assert p["optimal"] and abs(p["bottleneck_ms"] - best_load(p["segments"], [("", 1, 0)] * 3, 1e99, 0)) < 1e-9 * p["bottleneck_ms"], p
    assert abs(p["alone"]["time_ms"] - sum(s["time_ms"] for s in p["segments"])) < 1e-9 * p["alone"]["time_ms"], p
    layer, fixed = p["segments"][1]["weight_bytes"], p["fixed_bytes"]
    embeddings = p["segments"][0]["weight_bytes"]
    room = embeddings + layer + layer // 2
    unlike = [("slow", 0.5, 0), ("small", 2, 2 * layer), ("new", 3, room)]
    p = said("--link", "1M:0.01ms", *[a for n, f, m in unlike for a in ("--device", f"{n}:{f}" + (f":{fixed + m}" if m else ""))])
    assert p["optimal"] and abs(p["bottleneck_ms"] - best_load(p["segments"], unlike, 1e6, 0.01)) < 1e-9 * p["bottleneck_ms"], p
    assert p["alone"]["device"] == "slow" and all(s["weight_bytes"] <= {"small": 2 * layer, "new": room}.get(s["device"], 1e12) for s in p["stages"]), p
    # as few as hold it
    assert len(said("--memory", str(fixed + p["weight_bytes"]))["stages"]) == 1
    few = said("--memory", str(fixed + room))
    assert len(few["devices"]) == 3 and len(few["stages"]) == 3 and few["alone"] is None, few

    def refused(words, *args):
        rc, out, err = t.run([t.EBB, "model", "plan", *args])
        assert rc == 2 and words in err and not out, (words, rc, err)

    refused("cannot hold the model", model, "--lanes", "1", "--memory", str(fixed + embeddings // 2))
    refused("at most so many", model, "--workers", "9")
    refused("--device takes NAME:FACTOR[:MEMORY]", model, "--device", "fast")
    refused("--device names 'a' twice", model, "--device", "a:1", "--device", "a:2")
    refused("--link takes RATE[:LATENCY]", model, "--link", "1X")
    refused("leave --workers and --memory out", model, "--device", "a:1", "--memory", "1GiB")
    refused("nothing is given to be planned")
    refused("--instance is a whole problem", model, "--instance", "x.json")


if __name__ == "__main__":
    t.main(globals())
