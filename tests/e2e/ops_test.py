"""Single ops and small fitted models against what ONNX Runtime computed for them (tests/golden/ops.py)."""
import json
import os
import sys
import tarfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ebbtest as t

ARCHIVE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "ops.tar.gz")


def check(folder, *options):
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder)
    rc, out, err = t.run([t.EBB, "model", "test", "--json", *options, folder], timeout=300)
    results = [json.loads(line) for line in out.splitlines()]
    total = results.pop()
    for r in results:
        if r["result"] != "passed":
            print(f"   {r['result']}: {os.path.basename(r['test'])}: {r['why']}")
    assert rc == 0 and total["passed"] == len(results) > 800, total


def test_ops(dir):
    check(dir)


def test_ops_with_sizes_told_when_they_run(dir):
    check(dir, "--symbolic")


def test_ops_without_vector_instructions(dir):
    check(dir, "--isa", "generic")


t.main(globals())
