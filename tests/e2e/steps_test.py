"""Jobs of several steps: the same rows as the steps one after the other by hand, children in order, what a command does wrong falls on its record alone, and kills that do not show."""
import json
import os
import random
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ebbtest as t

CLASSIFY = ("family=bert", "head=classify")
CLEAN = """
import json, sys
for line in sys.stdin:
    r = json.loads(line)
    r["text"] = r["text"].strip().lower()
    print(json.dumps(r, ensure_ascii=False), flush=True)
"""
# so many children as the record says; of those of a second step, every third goes
FAN = """
import json, os, sys, time
gate = sys.argv[1] if len(sys.argv) > 1 else None
for line in sys.stdin:
    r = json.loads(line)
    while gate and r["n"] > int(sys.argv[2]) and not os.path.exists(gate):
        time.sleep(0.01)
    words = r["text"].split()
    print(json.dumps([{"text": " ".join(words[: k + 1]), "k": k} for k in range(r["fan"])]), flush=True)
"""
THIRD = """
import json, sys
for line in sys.stdin:
    r = json.loads(line)
    print("null" if r["k"] % 3 == 1 else json.dumps({**r, "text": r["text"].upper()}), flush=True)
"""
ODD = """
import json, os, sys, time
for line in sys.stdin:
    r = json.loads(line)
    text = r["text"]
    if "SILENT" in text:
        continue
    if "CRASH" in text:
        os._exit(3)
    if "HANG" in text:
        time.sleep(3600)
    if "ERROR" in text:
        r = {"error": "it is no good"}
    if "NUMBER" in text:
        r = 17
    if "INSIDE" in text:
        r = [r, 5]
    out = json.dumps(r)
    if "GARBAGE" in text:
        out = "this is no answer"
    if "HUGE" in text:
        out = json.dumps({"id": r["id"], "text": "x" * (17 << 20)})
    print(out, flush=True)
"""


def write(dir, name, text):
    path = os.path.join(dir, name)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return path


def write_records(path, records):
    with open(path, "w", encoding="utf-8") as f:
        for r in records:
            f.write(json.dumps(r, ensure_ascii=False) + "\n")
    return path


def steps_run(steps, inp, out, *more, want=0, env=None):
    args = [t.EBB, "run", "--input", inp, "--output", out]
    for s in steps:
        args += ["--step", s]
    rc, o, e = t.run(args + list(more), env=env)
    assert rc == want, f"ebb run ended with {rc}, not {want}\n{o}\n{e}\n{t.state_log(out)}"
    return e


def part(out):
    with open(os.path.join(out, "part-00000.jsonl"), "rb") as f:
        return f.read()


def test_a_cascade_is_its_parts_one_after_the_other(dir):
    """clean -> classify, what scores low is dropped -> embed: the bytes of three runs by hand"""
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 600, text=lambda i: None if i % 7 else f"  Harbour TIDE {i}  Ünder wind ")
    clean = write(dir, "clean.py", CLEAN)
    classifier, embedder = t.tiny_kind(*CLASSIFY), t.tiny_model()
    by_hand = os.path.join(dir, "clean.jsonl")
    with open(inp, encoding="utf-8") as i, open(by_hand, "w", encoding="utf-8") as o:
        subprocess.run([sys.executable, clean], stdin=i, stdout=o, check=True)
    t.ebb_run(classifier, by_hand, os.path.join(dir, "classified"), "--keep", "text")
    classified = t.rows(os.path.join(dir, "classified"))
    middle = sorted(r["score"] for r in classified)[300]
    passed = [r for r in classified if r["score"] >= middle and r["label"] != "none"]
    assert 200 < len(passed) < 400, len(passed)
    t.ebb_run(embedder, write_records(os.path.join(dir, "passed.jsonl"), passed), os.path.join(dir, "embedded"), "--keep", "label,score")
    out = os.path.join(dir, "cascade")
    with open(os.path.join(dir, "job.yaml"), "w") as f:
        f.write(f"""
steps:
  - command: {sys.executable} clean.py
    timeout: 2min
  - model: {classifier}
    batch: 5
    when: score >= {middle!r} and label != none
  - model: {embedder}
    field: text
input: {{path: in.jsonl, keep: [label, score]}}
output: cascade
tuning: {{micro_batch: 7, stall: 10min}}
""")
    rc, o, e = t.run([t.EBB, "run", os.path.join(dir, "job.yaml")])
    assert rc == 0, (o, e)
    assert "step 1" in e and "step 3" in e, e
    assert part(out) == part(os.path.join(dir, "embedded"))
    manifest = json.load(open(os.path.join(out, "manifest.json")))
    assert manifest["counts"]["records"] == 600 and manifest["counts"]["rows"] == len(passed) and manifest["counts"]["errors"] == 0, manifest["counts"]
    # the same again in other batches, by flags: the same identity, so it is done already
    steps = [f"command={sys.executable} clean.py,timeout=1min,concurrency=1", f"model={classifier},when=score >= {middle!r} and label != none", f"model={embedder},field=text"]
    rc, o, e = t.run([t.EBB, "run", "--input", inp, "--keep", "label,score", "--output", out] + [x for s in steps for x in ("--step", s)], cwd=dir)
    assert rc == 0 and "done already" in e, (rc, o, e)
    # another condition is another job
    steps[1] = f"model={classifier},when=score >= 2"
    rc, o, e = t.run([t.EBB, "run", "--input", inp, "--keep", "label,score", "--output", out] + [x for s in steps for x in ("--step", s)], cwd=dir)
    assert rc == 2 and "steps was" in e, (rc, o, e)


def fan_records(count):
    r = random.Random(5)
    words = ["river", "stone", "tide", "ebb", "flow", "salt"]
    return [{"id": i, "n": i, "fan": r.randint(0, 5), "text": " ".join(r.choice(words) for _ in range(5)), "kept": [i, "x"]} for i in range(count)]


def fan_expected(records):
    """(id, child, text) of the rows behind FAN and THIRD"""
    out = []
    for r in records:
        words, child = r["text"].split(), 0
        for k in range(r["fan"]):
            if k % 3 != 1:
                out.append((r["id"], child, " ".join(words[: k + 1]).upper()))
                child += 1
    return out


def test_children_come_in_order(dir):
    """each record becomes 0 to 5, some of which go; the rows are those of a run over the children"""
    records = fan_records(700)
    inp = write_records(os.path.join(dir, "in.jsonl"), records)
    fan, third = write(dir, "fan.py", FAN), write(dir, "third.py", THIRD)
    expected = fan_expected(records)
    model = t.tiny_model()
    plain = os.path.join(dir, "plain")
    t.ebb_run(model, write_records(os.path.join(dir, "children.jsonl"), [{"id": i, "text": x[2]} for i, x in enumerate(expected)]), plain)
    out = os.path.join(dir, "out")
    steps = [f"command={sys.executable} {fan},timeout=2min", f"command={sys.executable} {third},timeout=2min", f"model={model},batch=9"]
    steps_run(steps, inp, out, "--keep", "kept,k,none", "--stall", "10min")
    rows = t.rows(out)
    assert [(r["id"], r["child"]) for r in rows] == [x[:2] for x in expected]
    by_id = {r["id"]: r for r in records}
    for row, alone in zip(rows, t.rows(plain)):
        assert row["embedding"] == alone["embedding"], row["id"]
        assert row["kept"] == by_id[row["id"]]["kept"] and row["none"] is None and row["k"] % 3 != 1
        assert list(row) == ["id", "child", "kept", "k", "none", "embedding"], list(row)
    counts = json.load(open(os.path.join(out, "manifest.json")))["counts"]
    assert counts["records"] == 700 and counts["rows"] == len(expected) and counts["errors"] == 0, counts
    # a command at the end: what it answered; csv and plain lines begin as objects too
    lines = write(dir, "in.txt", "one two three\nfour\n")
    count = write(dir, "count.py", 'import json,sys\nfor l in sys.stdin:\n    r=json.loads(l); r["words"]=len(r["text"].split()); print(json.dumps(r),flush=True)\n')
    steps_run([f"command={sys.executable} {count}"], lines, os.path.join(dir, "lines"))
    assert [(r["text"], r["words"]) for r in t.rows(os.path.join(dir, "lines"))] == [("one two three", 3), ("four", 1)]
    table = write(dir, "in.csv", 'id,text,n\nb7,"a ""quoted"" word",3\nb8,,4\n')
    steps_run([f"command={sys.executable} {count},when=words > 0"], table, os.path.join(dir, "csv"))
    assert part(os.path.join(dir, "csv")) == b'{"id":"b7","text":"a \\"quoted\\" word","n":"3","words":3}\n'


def test_all_dropped(dir):
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 150)
    out = os.path.join(dir, "out")
    steps_run([f"model={t.tiny_kind(*CLASSIFY)},when=label = nothing", f"model={t.tiny_model()}"], inp, out)
    assert t.rows(out) == [] and t.errors(out) == []
    counts = json.load(open(os.path.join(out, "manifest.json")))["counts"]
    assert counts["records"] == 150 and counts["rows"] == 0, counts


def test_only_the_record_is_blamed(dir):
    """a command that crashes, hangs, answers garbage, nothing, too much, an error, a number: each time one record of many"""
    odd = {30: "CRASH", 60: "HANG", 90: "GARBAGE", 120: "SILENT", 150: "ERROR", 180: "NUMBER", 210: "HUGE", 240: "INSIDE"}
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 300, text=lambda i: f"{odd[i]} wind {i}" if i in odd else None)
    out = os.path.join(dir, "out")
    script = write(dir, "odd.py", ODD)
    e = steps_run([f"command={sys.executable} {script},timeout=2s", f"model={t.tiny_model()}"], inp, out, want=3)
    found = {x["id"]: x for x in t.errors(out)}
    assert set(found) == {f"r{i}" for i in odd}, (sorted(found), e)
    for i, what in odd.items():
        x = found[f"r{i}"]
        assert x["line"] == i + 1 and "step 1 (" in x["message"], x
        want = {"CRASH": ("command_crashed",), "HANG": ("command_hung",), "GARBAGE": ("command_garbage",), "NUMBER": ("command_garbage",), "HUGE": ("command_garbage",),
                "INSIDE": ("command_garbage",), "ERROR": ("command_error",), "SILENT": ("command_hung", "command_no_answer", "command_garbage")}[what]
        assert x["code"] in want, (what, x)
    assert "it is no good" in found["r150"]["message"] and "element 2" in found["r240"]["message"], found
    assert [r["id"] for r in t.rows(out)] == [f"r{i}" for i in range(300) if i not in odd]


def test_a_retry_puts_children_in_their_place(dir):
    """records that failed come to several rows, to one or to none, between rows that stay"""
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 300, words=6)
    mended = os.path.join(dir, "mended")
    script = write(dir, "moody.py", f"""
import json, os, sys
for line in sys.stdin:
    r = json.loads(line)
    n = int(r["id"][1:])
    if n % 9 in (3, 4, 7) and not os.path.exists({mended!r}):
        r = {{"error": "not yet"}}
    elif n % 5 == 4:
        r = None
    else:
        r = [{{"id": r["id"], "text": w}} for w in r["text"].split()[: n % 4]]
    print(json.dumps(r), flush=True)
""")
    steps = [f"command={sys.executable} {script}", f"model={t.tiny_model()}"]
    steps_run(steps, inp, os.path.join(dir, "out"), want=3)
    assert len(t.errors(os.path.join(dir, "out"))) == 99
    t.open_gate(mended)
    steps_run(steps, inp, os.path.join(dir, "out"), "--retry")
    steps_run(steps, inp, os.path.join(dir, "at_once"))
    t.same_output(os.path.join(dir, "out"), os.path.join(dir, "at_once"))


def test_a_record_that_kills_the_worker_in_a_step(dir):
    """found, tried alone, named; its siblings' records pass"""
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 120, text=lambda i: "EBB_TEST_CRASH here" if i == 77 else None)
    clean = write(dir, "pass.py", "import sys\nfor line in sys.stdin:\n    print(line, end='', flush=True)\n")
    out = os.path.join(dir, "out")
    steps_run([f"command={sys.executable} {clean}", f"model={t.tiny_kind(*CLASSIFY)}", f"model={t.tiny_model()}"], inp, out, "--keep", "label", want=3, env={"EBB_TEST_HOOK": "1"})
    found = t.errors(out)
    assert [(x["line"], x["code"]) for x in found] == [(78, "crashed")], found
    assert [r["id"] for r in t.rows(out)] == [f"r{i}" for i in range(120) if i != 77]


def test_a_command_that_never_works_holds_the_job(dir):
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 200)
    out = os.path.join(dir, "out")
    args = [t.EBB, "run", "--input", inp, "--output", out, "--step", "command=./no-such-program --x", "--step", f"model={t.tiny_model()}"]
    rc, o, e = t.run(args, cwd=dir)
    assert rc == 4 and "step 1 (./no-such-program" in e, (rc, o, e)
    # it is there now: the same command goes on
    write(dir, "no-such-program", f"#!{sys.executable}\n" + CLEAN)
    os.chmod(os.path.join(dir, "no-such-program"), 0o755)
    rc, o, e = t.run(args, cwd=dir)
    assert rc == 0, (rc, o, e)
    assert len(t.rows(out)) == 200


def test_kills_do_not_show(dir):
    """the worker dies, then the daemon, with records in every step: the same bytes as undisturbed, nothing twice"""
    records = fan_records(400)
    inp = write_records(os.path.join(dir, "in.jsonl"), records)
    fan, third, gate = write(dir, "fan.py", FAN), write(dir, "third.py", THIRD), os.path.join(dir, "gate")

    def steps(gate_at):
        return ["--step", f"command={sys.executable} {fan} {gate} 250,timeout=10min", "--step", f"model={t.tiny_kind(*CLASSIFY)},batch=5",
                "--step", f"command={sys.executable} {third}", "--step", f"model={t.tiny_model()}", "--stall", "20min", "--commit", "50ms", "--keep", "label"]
    out = os.path.join(dir, "out")
    args = [t.EBB, "run", "--json", "--input", inp, "--output", out] + steps(gate)
    p = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "EBB_TEST_DIR": dir}, text=True)
    try:
        t.wait_progress(p, 100)
        for name in ("ebb-worker", "ebbd"):
            pids = t.wait_for(lambda: [pid for pid, n in t.processes(dir) if n == name], 30)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        t.wait_for(lambda: {"ebb-worker", "ebbd"} <= {n for _, n in t.processes(dir)}, 60)
        t.open_gate(gate)
        o, e = p.communicate(timeout=t.PATIENCE)
        assert p.returncode == 0, (p.returncode, o[-2000:], e, t.state_log(out))
    finally:
        if p.poll() is None:
            p.kill()
        t.kill_all(dir)
    undisturbed = os.path.join(dir, "undisturbed")
    rc, o, e = t.run([t.EBB, "run", "--input", inp, "--output", undisturbed] + steps(gate))
    assert rc == 0, (rc, o, e)
    t.same_output(out, undisturbed)
    assert [(r["id"], r["child"]) for r in t.rows(out)] == [x[:2] for x in fan_expected(records)]
    left = subprocess.run(["pgrep", "-f", fan], stdout=subprocess.PIPE).stdout
    assert not left, f"children of a command are left: {left}"


def test_npy_and_max_errors(dir):
    records = [{"id": i, "text": f"wind {i}", "n": i, "fan": 2 if i == 7 else 0 if i == 9 else 1} for i in range(40)]
    inp = write_records(os.path.join(dir, "in.jsonl"), records)
    steps = [f"command={sys.executable} {write(dir, 'fan.py', FAN)}", f"model={t.tiny_model()}"]
    out = os.path.join(dir, "out.npy")
    steps_run(steps, inp, out, want=3)
    found = {x["id"]: x for x in t.errors(out)}
    assert sorted(found) == [7, 9] and "came to 2" in found[7]["message"] and "came to 0" in found[9]["message"], found
    assert "exactly one row" in found[7]["message"], found
    with open(out + ".ids.jsonl") as f:
        assert [json.loads(line) for line in f] == [i for i in range(40) if i not in (7, 9)]
    e = steps_run(steps[:1], inp, os.path.join(dir, "no.npy"), want=2)
    assert "let a model be the last step" in e, e
    # more errors than allowed: held, and the words name it
    steps = [f"model={t.tiny_model()},field=no", f"model={t.tiny_model()}"]
    bad = write_records(os.path.join(dir, "bad.jsonl"), [{"id": i, "text": "x", **({"no": "wind"} if i < 30 else {})} for i in range(60)])
    e = steps_run(steps, bad, os.path.join(dir, "held"), "--max-errors", "5", want=4)
    assert "errors" in e, e
    e = steps_run(steps, bad, os.path.join(dir, "held"), "--max-errors", "50", want=3)
    found = t.errors(os.path.join(dir, "held"))
    assert len(found) == 30 and found[0]["code"] == "missing_field" and "step 1 (" in found[0]["message"], found[:1]


def test_a_pool_runs_commands_only_where_it_is_told_to(dir):
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 50)
    clean = write(dir, "clean.py", CLEAN)
    args = ["submit", "--input", inp, "--output", os.path.join(dir, "out"), "--step", f"command={sys.executable} {clean}", "--step", f"model={t.tiny_model()}"]
    pool = t.Pool(dir)
    try:
        rc, o, e = pool.ebb(*args, want=None)
        assert rc == 2 and "commands: true" in e, (rc, o, e)
        pool.stop()
        conf = write(dir, "ebbd.yaml", "commands: true\n")
        pool = t.Pool(dir, "--config", conf)
        job = int(pool.ebb(*args)[1].split()[1])
        pool.wait_state(job, "done")
        assert len(t.rows(os.path.join(dir, "out"))) == 50
        assert " > " in pool.ebb("status", str(job))[1]
    finally:
        pool.stop()


def test_what_makes_no_sense_is_refused(dir):
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 5)
    out, model = os.path.join(dir, "out"), t.tiny_model()
    for steps, more, words in (
            ([f"model={model},timeout=3s"], [], "for commands"),
            (["command=cat,precision=int8"], [], "for models"),
            ([f"model={model},command=cat"], [], "each step is one of them"),
            ([f"model={model},when=x"], [], "no comparison"),
            ([f"model={model},batch=x"], [], "whole number"),
            (["cat"], [], "KEY=VALUE"),
            ([f"model={model}"], ["--model", model], "cannot stand beside steps"),
            ([f"model={model}"], ["--stages", "2"], "--stages 2"),
            ([f"model={model}-none"], [], "step 1: there is no model"),
            ([f"command=cat,dir={dir}/none"], [], "step 1: the command is to run"),
            ([f"model={model}", "command=cat"], ["--floats", "base64"], "the last step is a command")):
        e = steps_run(steps, inp, out, *more, want=2)
        assert words in e, (steps, e)
    yaml = write(dir, "job.yaml", f"steps:\n  - model: {model}\n    prcision: int8\ninput: in.jsonl\noutput: out\n")
    rc, o, e = t.run([t.EBB, "run", yaml])
    assert rc == 2 and "job.yaml:3" in e and "did you mean 'precision'" in e, (rc, o, e)
    rc, o, e = t.run([t.EBB, "check", "--input", inp, "--output", out, "--step", "command=cat,when=text != x", "--step", f"model={model}"])
    assert rc == 0 and "command: cat" in o and "goes on when text != x" in o, (rc, o, e)


if __name__ == "__main__":
    t.main(globals())
