"""Slips of people and of disks: a word that cannot be meant is refused before anything is done, and a source that goes away under a job costs no
record."""
import os
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ebbtest as t


def refused(args, *words):
    rc, o, e = t.run(args)
    assert rc == 2, (rc, o, e)
    for word in words:
        assert word in e, (word, e)
        assert e.count(word) == 1, f"said more than once: {e}"
    assert not o, o


def test_flags_that_cannot_be_meant(dir):
    inp, out = t.write_jsonl(os.path.join(dir, "in.jsonl"), 10), os.path.join(dir, "out")
    refused(t.run_args(t.tiny_model(), inp, out, "--limit", "0"), "--limit 0 asks for no record", "leave it out")
    refused(t.run_args(t.tiny_model(), inp, out, "--memory", "1"), "too small for any model", "at least 64MiB")
    refused(t.run_args(t.tiny_model(), inp, os.path.join(dir, "x.npy/")), "leave the '/' out", "--output-format npy or jsonl")
    job = os.path.join(dir, "job.yaml")
    with open(job, "w") as f:
        f.write(f"model: {t.tiny_model()}\ninput: {{glob: [in.jsonl], limit: 0}}\noutput: out\n")
    refused([t.EBB, "submit", job], "job.yaml:2", "asks for no record at all")
    assert sorted(os.listdir(dir)) == ["in.jsonl", "job.yaml"], os.listdir(dir)
    t.ebb_run(t.tiny_model(), inp, os.path.join(dir, "x.npy/"), "--output-format", "npy")
    assert os.path.exists(os.path.join(dir, "x.npy", "_SUCCESS"))


def test_codes_of_errors(dir):
    inp = os.path.join(dir, "in.jsonl")
    with open(inp, "w") as f:
        f.write('{"text": "good"}\nno json\n')
    p = t.Pool(dir)
    try:
        p.ebb("submit", "--model", t.tiny_model(), "--input", inp, "--output", os.path.join(dir, "out"))
        p.wait_state(1, "done")
        rc, o, e = p.ebb("errors", "1", "--code", "invalid_jsom", want=2)
        assert "no error has the code 'invalid_jsom' (did you mean 'invalid_json')" in e, e
        rc, o, e = p.ebb("errors", "1", "--code", "zzz", want=2)
        assert "known are invalid_json, " in e and "mean" not in e, e
        assert p.ebb("errors", "1", "--code", "missing_field")[1:] == ("", "no errors\n")
        assert "invalid_json" in p.ebb("errors", "1", "--code", "invalid_json")[1]
    finally:
        p.stop()


def test_a_refused_run_leaves_nothing(dir):
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 10)
    out = os.path.join(dir, "out.jsonl")
    with open(out, "w") as f:
        f.write("somebody's own\n")
    os.makedirs(os.path.join(dir, "there"))
    with open(os.path.join(dir, "there", "letter.txt"), "w") as f:
        f.write("somebody's own\n")
    before = sorted(os.listdir(dir))
    for path in out, os.path.join(dir, "there"):
        rc, o, e = t.run(t.run_args(t.tiny_model(), inp, path))
        assert rc == 2 and "--force" in e, (rc, o, e)
        assert sorted(os.listdir(dir)) == before, os.listdir(dir)
    assert os.listdir(os.path.join(dir, "there")) == ["letter.txt"]
    done = os.path.join(dir, "done.jsonl")
    t.ebb_run(t.tiny_model(), inp, done)
    with open(done, "rb") as f:
        rows = f.read()
    rc, o, e = t.run(t.run_args(t.tiny_model(), inp, done, "--limit", "3"))  # another job's output: its state stays
    assert rc == 2 and "this is another job" in e, (rc, o, e)
    with open(done, "rb") as f:
        assert f.read() == rows
    t.ebb_run(t.tiny_model(), inp, done)
    assert os.path.isdir(done + ".ebb"), os.listdir(dir)


def test_what_comes_too_late_is_said(dir):
    """Submitted again with another deadline: the job goes on as it was, and says so."""
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 20)
    p = t.Pool(dir, workers=0)
    try:
        args = ["submit", "--model", t.tiny_model(), "--input", inp, "--output", os.path.join(dir, "out")]
        early, late = "2097-01-31 07:00", "2098-01-31 07:00"
        rc, o, e = p.ebb(*args, "--deadline", early)
        assert e == "", e
        rc, o, e = p.ebb(*args, "--deadline", early)
        assert o == "job 1\n" and "submitted before" in e and "goes on as" not in e, (o, e)
        rc, o, e = p.ebb(*args, "--deadline", late, "--weight", "7")
        assert o == "job 1\n" and "it goes on as it was first submitted: weight was 100 and is 7; deadline was '2097-01-31T" in e and " and is '2098-01-31T" in e, (o, e)
        p.ebb("pause", "1")
        rc, o, e = p.ebb(*args, "--deadline", early, "--max-errors", "5")  # the limit of errors comes with going on
        assert "goes on as" not in e, e
        p.ebb("cancel", "1")
    finally:
        p.stop()


def test_drain_names_whom(dir):
    inp = t.write_jsonl(os.path.join(dir, "in.jsonl"), 20)
    p = t.Pool(dir)
    try:
        p.ebb("submit", "--model", t.tiny_model(), "--input", inp, "--output", os.path.join(dir, "out"))
        p.wait_state(1, "done")
        rc, o, e = p.ebb("drain", want=2)
        assert "or give --all" in e and not o, (o, e)
        rc, o, e = p.ebb("drain", "--all", "host/1", want=2)
        assert "leave the names out" in e, e
        rc, o, e = p.ebb("drain", "nobody/1", want=None)
        assert rc == 2 and "there is no worker 'nobody/1'" in e, (rc, e)
        assert len(p.ebb("workers", "--json")[1].splitlines()) == 1  # so far nobody has left
        assert p.ebb("drain", "--all", "--stay")[1].startswith("1 worker commits")
        t.wait_for(lambda: not p.ebb("workers", "--json")[1], 30)
    finally:
        p.stop()


def test_source_that_goes_away(dir):
    """A folder that is unmounted, say: the job is held, says which source, and goes on when it is back. Not one record is an error."""
    folder, out, gate = os.path.join(dir, "in"), os.path.join(dir, "out"), os.path.join(dir, "gate")
    os.mkdir(folder)
    # the gate is in the second file: however late anybody looks, the ones behind it have not been opened
    files = [t.write_jsonl(os.path.join(folder, f"{k}.jsonl"), 3000, seed=k, text=lambda i, k=k: t.gated(gate, i, 0 if k == 1 else 3000)) for k in range(6)]
    calm, hook = os.path.join(dir, "calm"), {"EBB_TEST_HOOK": "1"}
    t.open_gate(gate)
    t.ebb_run(t.tiny_model(), folder, calm, env=hook)
    os.unlink(gate)
    p = t.Pool(dir, env=hook)
    try:
        job = ("--model", t.tiny_model(), "--input", folder, "--output", out, "--lease", "0.2s", "--commit", "0.1s")
        p.ebb("submit", *job)
        t.wait_for(lambda: p.job(1)["records_done"], 60)
        os.rename(folder, folder + ".away")
        t.open_gate(gate)
        p.wait_state(1, "held")
        why = p.ebb("why", "1")[1]
        assert "a source is gone: bring it back as it was, then resume" in why and folder in why and "ebb resume 1" in why, why
        p.ebb("resume", "1")  # it is not back yet
        p.wait_state(1, "held")
        os.rename(folder + ".away", folder)
        p.ebb("resume", "1")
        j = p.wait_state(1, "done")
        assert j["errors"] == 0 and j["records_done"] == 18000, j
        t.same_output(calm, out)
        # one file of many, under a job typed by hand: the same
        shutil.rmtree(out)
        os.unlink(gate)
        p.ebb("submit", *job)
        t.wait_for(lambda: p.job(2)["records_done"], 60)
        os.rename(files[5], files[5] + ".away")
        t.open_gate(gate)
        p.wait_state(2, "held")
        assert "5.jsonl" in p.ebb("why", "2")[1]
        os.rename(files[5] + ".away", files[5])
        p.ebb("resume", "2")
        p.wait_state(2, "done")
        t.same_output(calm, out)
    finally:
        p.stop()


t.main(globals())
