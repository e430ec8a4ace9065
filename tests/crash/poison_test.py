"""Records that kill: found by the black box and a probe, quarantined and named; all others are done."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ebbtest as t

HOOK = {"EBB_TEST_HOOK": "1"}


def poisoned(dir, count, poison):
    """poison: {record number: text}"""
    return t.write_jsonl(os.path.join(dir, "in.jsonl"), count, text=lambda i: poison.get(i))


def check(dir, inp, count, bad, code, *more):
    out = os.path.join(dir, "out")
    t.ebb_run(t.tiny_model(), inp, out, *more, env=HOOK, want=3 if bad else 0, timeout=240)
    errors = t.errors(out)
    assert [(e["line"], e["code"]) for e in errors] == [(i + 1, code) for i in bad], errors
    assert [r["id"] for r in t.rows(out)] == [f"r{i}" for i in range(count) if i not in bad]
    return errors


def test_record_that_crashes(dir):
    inp = poisoned(dir, 2000, {777: "please EBB_TEST_CRASH now"})
    errors = check(dir, inp, 2000, [777], "crashed", "--workers", "2", "--lanes", "1", "--commit", "0.2s")
    assert errors[0]["source"].endswith("in.jsonl"), errors


def test_several_records_that_crash(dir):
    bad = {5: "EBB_TEST_CRASH", 1200: "EBB_TEST_CRASH", 1201: "EBB_TEST_CRASH", 2999: "EBB_TEST_CRASH"}
    inp = poisoned(dir, 3000, bad)
    check(dir, inp, 3000, sorted(bad), "crashed", "--commit", "0.2s")


def test_record_that_crashes_only_beside_a_neighbour(dir):
    """Alone it is innocent: nothing is lost, nobody is blamed."""
    inp = poisoned(dir, 1000, {500: "EBB_TEST_CRASH_WITH:nitroglycerine", 502: "some nitroglycerine"})
    check(dir, inp, 1000, [], "", "--commit", "0.2s")


def test_record_that_eats_all_memory(dir):
    if t.SANITIZE:
        raise t.Skip("a limit of memory counts the terabytes that sanitizers reserve")
    inp = poisoned(dir, 1000, {321: "EBB_TEST_EAT"})
    check(dir, inp, 1000, [321], "out_of_memory", "--memory", "600MB", "--commit", "0.2s")


def test_record_that_hangs(dir):
    inp = poisoned(dir, 1000, {400: "EBB_TEST_HANG"})
    check(dir, inp, 1000, [400], "hung", "--stall", "2s", "--commit", "0.2s")


def test_broken_model_holds_the_job(dir):
    """A model that crashes on everything is no reason to quarantine everything."""
    inp = poisoned(dir, 1000, {})
    out = os.path.join(dir, "out")
    rc, o, e = t.run(t.run_args(t.tiny_model(), inp, out), env={**HOOK, "EBB_TEST_BROKEN_MODEL": "1"}, timeout=120)
    assert rc == 4, (rc, o, e)
    assert "crash" in (o + e), (o, e)
    assert not os.path.exists(os.path.join(out, "_SUCCESS"))
    t.ebb_run(t.tiny_model(), inp, out)
    assert len(t.rows(out)) == 1000 and not t.errors(out)


def test_retry_after_the_cause_is_gone(dir):
    """Quarantined records run again once they are asked for, and land where they belong."""
    inp = poisoned(dir, 600, {100: "EBB_TEST_CRASH", 300: "EBB_TEST_CRASH"})
    base, out = os.path.join(dir, "base"), os.path.join(dir, "out.d")
    t.ebb_run(t.tiny_model(), inp, base)
    pool = t.Pool(dir, env=HOOK)
    try:
        job = os.path.join(dir, "job.yaml")
        with open(job, "w") as f:
            f.write(f"model: {t.tiny_model()}\ninput: {inp}\noutput: {{ dir: {out} }}\n")
        pool.ebb("submit", job)
        pool.wait_state(1, "done", 120)
        assert [e["line"] for e in t.errors(out)] == [101, 301]
        pool.stop()
        pool.env.pop("EBB_TEST_HOOK")
        os.makedirs(pool.runtime, exist_ok=True)
        pool.start()
        pool.ebb("retry", "1")
        t.wait_for(lambda: pool.job(1)["state"] == "done" and pool.job(1)["errors"] == 0, 60)
        t.same_output(base, out)
    finally:
        pool.stop()


t.main(globals())
