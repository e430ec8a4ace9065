"""Pipelines over several workers, in the words that people see: ebb status, workers, why, top, the metrics; and what is refused."""
import json
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ebbtest as t
import metrics_test
import prom


def submit(pool, dir, model, inp, out, stages):
    return json.loads(pool.ebb("submit", "--model", model, "--input", inp, "--field", "text", "--output", os.path.join(dir, out), "--stages", str(stages), "--json")[1])["job"]


def why(pool, job):
    return pool.ebb("why", str(job))[1].splitlines()[0]


def test_a_pipeline_at_work(dir):
    model, inp = t.tiny_model(layers=6), t.write_jsonl(os.path.join(dir, "in.jsonl"), 20000)
    pool, port = metrics_test.start(dir, env={"EBB_TEST_SLOW": "200"}, workers=2, lanes=1)
    try:
        job = submit(pool, dir, model, inp, "out", 2)
        g = t.wait_for(lambda: next((g for g in pool.job(job)["gangs"] if g["state"] == "running"), None), 60)
        assert g["cut"] == 1 and g["segments"] == 8 and g["bottleneck_ms"] > 0 and 0 <= g["gap"] < 1, g
        assert abs(g["batches_per_s"] * g["bottleneck_ms"] - 1000) < 1, g
        a, b = g["members"]
        assert a["first"] == 1 and b["first"] == a["last"] + 1 and b["last"] == 8 and a["ready"] and b["ready"], g
        assert [a["head"], b["head"]].count(True) == 1 and abs(a["share"] + b["share"] - 1) < 1e-9, g
        assert max(a["load_ms"], b["load_ms"]) <= g["bottleneck_ms"] * 1.001, g
        t.wait_for(lambda: why(pool, job) == f"job {job} is running on a pipeline of 2 workers", 60)
        said = pool.ebb("status", str(job))[1]
        assert re.search(r"^pipeline 2 workers, running for .*, cut 1; \S+ ms a micro-batch predicted \(\S+/s\)", said, re.M), said
        for i, m in enumerate((a, b)):
            assert re.search(rf"^ {i + 1} +{m['name']} +{m['first']}-{m['last']} of 8 +\d+ % +\S+ ms +{'ready, head' if m['head'] else 'ready'}$", said, re.M), said
            assert re.search(rf"pipeline, cut 1: .*{m['name']} {m['first']}-{m['last']}", said), said  # the history names workers as people do
        t.wait_for(lambda: any(w["lease"] for w in workers(pool)), 60)
        said, listed = pool.ebb("workers")[1], workers(pool)
        assert sorted((w["stage"], w["stages"], w["job"], w["state"]) for w in listed) == [(1, 2, job, "running"), (2, 2, job, "running")], listed
        assert len([w for w in listed if w["lease"]]) == 1, listed
        assert re.search(rf"stage 1/2 of job {job}", said) and re.search(rf"stage 2/2 of job {job}", said), said
        assert f"stage 2/2 of job {job}" in pool.ebb("top")[1]
        text = t.wait_for(lambda: (lambda status, _, text: text if status == 200 else None)(*prom.get(port, "/metrics")), 60)
        assert re.search(r'^ebb_pipelines\{state="running"\} 1$', text, re.M) and re.search(r"^ebb_pipeline_workers 2$", text, re.M), text
        assert re.search(r"^ebb_pipeline_recuts_total 0$", text, re.M) and re.search(r"^ebb_pipeline_faults_total 0$", text, re.M), text
        # one of them dies: another comes in its place, and the model is divided anew
        member = next(w for w in listed if not w["lease"])
        os.kill(member["pid"], 9)
        t.wait_for(lambda: (lambda x: x and x[0]["state"] == "running" and (x[0]["gang"], x[0]["cut"]) != (g["gang"], g["cut"]))(pool.job(job)["gangs"]), 60)
        pool.ebb("cancel", str(job))
        t.wait_for(lambda: not pool.job(job)["gangs"], 60)
        assert all(not w["stages"] for w in workers(pool)), workers(pool)
    finally:
        pool.stop()


def workers(pool):
    return [json.loads(line) for line in pool.ebb("workers", "--json")[1].splitlines()]


def test_what_a_job_waits_for(dir):
    model, inp = t.tiny_model(layers=6), t.write_jsonl(os.path.join(dir, "in.jsonl"), 50)
    pool = t.Pool(dir, workers=1, lanes=1)
    try:
        job = submit(pool, dir, model, inp, "out", 3)
        t.wait_for(lambda: "needs 3 workers that reach each other, 1 is there" in why(pool, job), 60)
        # each holds all of it after all: the same job, typed again
        assert submit(pool, dir, model, inp, "out", 1) == job
        assert pool.wait_state(job, "done")["stages"] == 1
        assert "from now on each worker holds all of its model" in pool.ebb("status", str(job))[1]
    finally:
        pool.stop()


def test_run_starts_what_it_takes(dir):
    """`ebb run --stages 2` starts two workers; without it one worker holds all; resumed with another number the same job goes on."""
    model, inp = t.tiny_model(layers=3), t.write_jsonl(os.path.join(dir, "in.jsonl"), 200)
    one, two = os.path.join(dir, "one"), os.path.join(dir, "two")
    t.ebb_run(model, inp, one, "--lanes", "1")
    t.ebb_run(model, inp, two, "--lanes", "1", "--stages", "2")
    t.same_output(one, two)
    with open(os.path.join(one, "manifest.json")) as f:
        assert json.load(f)["job"]["pipeline"]["stages"] == 1
    with open(os.path.join(two, "manifest.json")) as f:
        assert json.load(f)["job"]["pipeline"]["stages"] == 2


def test_nonsense_is_refused(dir):
    model, inp, out = t.tiny_model(layers=2), t.write_jsonl(os.path.join(dir, "in.jsonl"), 5), os.path.join(dir, "out")

    def refused(words, *args):
        rc, o, err = t.run(t.run_args(model, inp, out, *args))
        assert rc == 2 and words in err and not o, (words, rc, err)
        assert not os.path.exists(out), os.listdir(out)

    refused("--stages (pipeline.stages) is between 0 and 8, not 9", "--stages", "9")
    refused("--stages 3 is a pipeline of 3 workers, and --workers 2 starts fewer", "--stages", "3", "--workers", "2")
    refused("cannot be cut into 5 stages: it is 4 segments", "--stages", "5")


if __name__ == "__main__":
    t.main(globals())
