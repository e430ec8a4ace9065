"""The node tests of the ONNX project, and ONNX files that are wrong."""
import json
import os
import re
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ebbtest as t
import onnxfile as o

DATA = "/usr/share/libonnx-testdata/data"
FOLDERS = ["node", "simple", "pytorch-operator", "pytorch-converted"]
# what is not there on purpose, and why; the tests of these must be refused, naming the node
LEFT_OUT = [
    (r"_nllloss_|_NLLLoss|test_nllloss|sce_|test_softmax_cross|_loss", "losses: for training"),
    (r"training|test_adagrad|test_adam|test_momentum|test_nesterov|gradient", "for training"),
    (r"bernoulli|random|test_multinomial", "random"),
    (r"strnorm|tfidf", "strings and TfIdf"),
    (r"window|_dft|_stft|melweight", "signal windows"),
]


def left_out(name):
    return next((why for pattern, why in LEFT_OUT if re.search(pattern, name)), None)


def node_tests(*options):
    assert os.path.isdir(DATA), f"{DATA} is missing: it is in libonnx-testdata"
    rc, out, err = t.run([t.EBB, "model", "test", "--json", *options, *(os.path.join(DATA, f) for f in FOLDERS)], timeout=300)
    results = [json.loads(line) for line in out.splitlines()]
    total = results.pop()
    assert rc in (0, 1) and not err, (rc, err)
    assert len(results) == total["passed"] + total["failed"] + total["unsupported"] > 1000, total
    counted = [r for r in results if r["result"] == "passed" or not left_out(os.path.basename(r["test"]))]
    bad = [r for r in counted if r["result"] != "passed"]
    for r in bad:
        print(f"   {r['result']}: {os.path.basename(r['test'])}: {r['why']}")
    share = 1 - len(bad) / len(counted)
    print(f"   {len(counted) - len(bad)} of {len(counted)} passed ({100 * share:.2f} %), {len(results) - len(counted)} left out")
    assert share >= 0.99 and len(counted) > 880, share
    for r in results:
        if r["result"] == "failed":
            assert not left_out(os.path.basename(r["test"])), r  # refused cleanly, or right
        if r["result"] == "unsupported":
            assert "node '" in r["why"] or "input '" in r["why"], r


def test_nodes(dir):
    node_tests()


def test_nodes_with_constants_for_inputs(dir):
    node_tests("--constants")


def test_nodes_with_sizes_told_when_they_run(dir):
    node_tests("--symbolic")


def test_nodes_without_vectors(dir):
    node_tests("--isa", "generic")


def test_models_as_exporters_write_them(dir):
    """tests/golden/exported.py made them; fused and plain, folded and not, by each kind of kernels."""
    for options in ([], ["--plain"], ["--symbolic"], ["--constants"], ["--isa", "generic"], ["--isa", "generic", "--plain"]):
        rc, out, err = t.run([t.EBB, "model", "test", "--tolerance", "1e-5", *options, os.path.join(t.TOP, "tests/golden/exported")])
        assert rc == 0 and out == "7 passed, 0 failed, 0 unsupported\n", (options, out, err)


# Files that are wrong ----------------------------------------------------------------------------------------------------------------------

X = o.value("x", o.FLOAT, ["n"])
Y = o.value("y", o.FLOAT, ["n"])


def refused(dir, name, data, *words):
    """A test directory with that model: unsupported or failed, and the reason has the words."""
    folder = os.path.join(dir, name)
    os.makedirs(os.path.join(folder, "test_data_set_0"), exist_ok=True)
    with open(os.path.join(folder, "model.onnx"), "wb") as f:
        f.write(data)
    with open(os.path.join(folder, "test_data_set_0", "input_0.pb"), "wb") as f:
        f.write(o.floats("x", [2], [1, 2]))
    rc, out, err = t.run([t.EBB, "model", "test", "--json", folder])
    assert rc == 1, (rc, out, err)
    why = json.loads(out.splitlines()[0])["why"]
    for w in words:
        assert w in why, (w, why)
    return why


def relu(x="x", y="y", **more):
    return o.node("Relu", [x], [y], **more)


def test_damaged(dir):
    good = o.model(o.graph([relu()], [X], [Y]))
    for cut in range(len(good) - 1):
        refused(dir, "cut", good[:cut])
    refused(dir, "empty", b"", "empty")
    refused(dir, "text", b"this is no model at all", "damaged, or no ONNX file")
    refused(dir, "nograph", o.field(1, 8), "no graph")
    deep = b""
    for _ in range(5000):  # graphs in attributes of nodes in graphs
        deep = o.field(1, o.field(5, o.field(6, deep)))
    refused(dir, "deep", o.field(1, 8) + o.field(7, deep), "more than 64 deep")
    refused(dir, "many", o.field(1, 8) + o.field(7, o.field(5, b"") * 3000000), "memory")
    refused(dir, "confused", o.field(1, 8) + o.field(7, 5), "no message")


def test_wrong_graphs(dir):
    refused(dir, "cycle", o.model(o.graph([o.node("Add", ["x", "b"], ["a"]), relu("a", "b"), relu("b", "y")], [X], [Y])), "cycle")
    refused(dir, "nowhere", o.model(o.graph([relu("z")], [X], [Y])), "node 'Relu'", "'z' is made by no node")
    refused(dir, "twice", o.model(o.graph([relu(), relu()], [X], [Y])), "'y' is made twice")
    refused(dir, "noop", o.model(o.graph([o.node("Frobnicate", ["x"], ["a"], name="f1"), o.node("Twist", ["a"], ["y"], name="t1")], [X], [Y])),
            "node 'f1': op 'ai.onnx.Frobnicate' (opset 17) is not supported by this version", "node 't1': op 'ai.onnx.Twist'")
    refused(dir, "noout", o.model(o.graph([relu()], [X], [o.value("z", 1, [1])])), "output 'z' is made by no node")
    refused(dir, "noopset", o.model(o.graph([relu()], [X], [Y]), opset=0), "imports no opset")
    refused(dir, "kind", o.model(o.graph([o.node("Softmax", ["x"], ["y"], axis=1.5)], [X], [Y])), "attribute 'axis' is of the wrong kind")
    refused(dir, "shapes", o.model(o.graph([o.node("Add", ["x", "c"], ["y"])], [o.value("x", o.FLOAT, [2])], [Y],
                                           [o.floats("c", [3], [1, 2, 3])])), "node 'Add'", "[2] and [3] do not go together")
    refused(dir, "types", o.model(o.graph([o.node("Add", ["x", "c"], ["y"])], [X], [Y], [o.int64s("c", [2], [1, 2])])), "node 'Add'")
    f = o.field(1, "F") + o.field(4, "a") + o.field(5, "b") + o.field(7, o.node("F", ["a"], ["b"], domain="me")) + o.field(10, "me") + \
        o.field(9, o.field(1, "me") + o.field(2, 1))
    refused(dir, "recursive", o.model(o.graph([o.node("F", ["x"], ["y"], domain="me")], [X], [Y]), functions=[f]), "call each other")


def test_wrong_tensors(dir):
    def with_tensor(t_):
        return o.model(o.graph([o.node("Add", ["x", "c"], ["y"])], [X], [Y], [t_]))
    refused(dir, "short", with_tensor(o.tensor("c", o.FLOAT, [4], b"12345678")), "tensor 'c'", "16")
    refused(dir, "huge", with_tensor(o.tensor("c", o.FLOAT, [1 << 40, 1 << 40], b"")), "tensor 'c'", "cannot be")
    refused(dir, "negative", with_tensor(o.tensor("c", o.FLOAT, [-4], b"")), "tensor 'c'")
    refused(dir, "type", with_tensor(o.tensor("c", 14, [1], b"12345678")), "tensor 'c'", "not supported")
    outside = os.path.join(dir, "secret.bin")
    with open(outside, "wb") as f:
        f.write(b"12345678")
    for place in ("../secret.bin", outside, "a/../../secret.bin", ""):
        refused(dir, "outside", with_tensor(o.tensor("c", o.FLOAT, [2], external={"location": place})), "tensor 'c'", "not inside the model's folder")
    refused(dir, "missing", with_tensor(o.tensor("c", o.FLOAT, [2], external={"location": "w.bin"})), "tensor 'c'", "w.bin")
    os.makedirs(os.path.join(dir, "range"), exist_ok=True)
    with open(os.path.join(dir, "range", "w.bin"), "wb") as f:
        f.write(b"1234567")
    refused(dir, "range", with_tensor(o.tensor("c", o.FLOAT, [2], external={"location": "w.bin"})), "beyond the end")
    refused(dir, "range", with_tensor(o.tensor("c", o.FLOAT, [1], external={"location": "w.bin", "offset": 1 << 63})), "beyond the end")
    refused(dir, "range", with_tensor(o.tensor("c", o.FLOAT, [1], external={"location": "w.bin", "length": 7})), "7 of external data")


def passes(dir, name, model_bytes, inputs, outputs, files=()):
    folder = os.path.join(dir, name)
    os.makedirs(os.path.join(folder, "test_data_set_0"))
    for path, data in [("model.onnx", model_bytes), *files, *((f"test_data_set_0/input_{i}.pb", x) for i, x in enumerate(inputs)),
                       *((f"test_data_set_0/output_{i}.pb", x) for i, x in enumerate(outputs))]:
        with open(os.path.join(folder, path), "wb") as f:
            f.write(data)
    for options in ([], ["--constants"], ["--symbolic"]):
        rc, out, err = t.run([t.EBB, "model", "test", *options, folder])
        assert rc == 0 and out == "1 passed, 0 failed, 0 unsupported\n", (options, out, err)


def test_external_data(dir):
    w = o.tensor("w", o.FLOAT, [2], external={"location": "weights.bin", "offset": 4, "length": 8})
    passes(dir, "a", o.model(o.graph([o.node("Mul", ["x", "w"], ["y"])], [X], [Y], [w])), [o.floats("x", [2], [1, 2])],
           [o.floats("y", [2], [10, 40])], [("weights.bin", b"\0\0\0\0" + struct.pack("<2f", 10, 20))])


def test_halves_go_to_ops_that_take_none(dir):
    """What is normalised already stays as it is."""
    def halves(name, dims, values):
        return o.tensor(name, 10, dims, struct.pack(f"<{len(values)}e", *values))
    nodes = [o.node("EmbedLayerNormalization", ["x", "", "words", "places", "", "gamma", "beta"], ["a", "mask"], domain="com.microsoft"),
             o.node("SkipLayerNormalization", ["a", "zeros", "gamma", "beta"], ["y"], domain="com.microsoft")]
    consts = [halves("words", [2, 4], [1, -1, 1, -1, -1, -1, 1, 1]), halves("places", [3, 4], [0] * 12), halves("gamma", [4], [1] * 4), halves("beta", [4], [0] * 4),
              halves("zeros", [1, 2, 4], [0] * 8)]
    m = o.model(o.graph(nodes, [o.value("x", 6, ["batch", 2])], [o.value("y", 10, ["batch", 2, 4])], consts), domains=[("com.microsoft", 1)])
    passes(dir, "a", m, [o.tensor("x", 6, [1, 2], struct.pack("<2i", 1, 0))], [halves("y", [1, 2, 4], [-1, -1, 1, 1, 1, -1, 1, -1])])


def test_old_files_list_initializers_as_inputs(dir):
    passes(dir, "a", o.model(o.graph([o.node("Mul", ["x", "w"], ["y"])], [X, o.value("w", o.FLOAT, [2])], [Y], [o.floats("w", [2], [3, 4])]), ir=3),
           [o.floats("x", [2], [1, 2])], [o.floats("y", [2], [3, 8])])


def test_functions_are_inlined(dir):
    """Twice(a) = a + a with a name of its own inside; Quad calls it twice; the attribute goes through."""
    twice = o.field(1, "Twice") + o.field(4, "a") + o.field(5, "b") + o.field(10, "me") + o.field(9, o.field(1, "") + o.field(2, 17)) + \
        o.field(7, o.node("Identity", ["a"], ["t"])) + o.field(7, o.node("Add", ["t", "a"], ["b"]))
    leaky = o.fields(1, ["q"]) + o.fields(2, ["b"]) + o.field(3, "leaky") + o.field(4, "LeakyRelu") + \
        o.field(5, o.field(1, "alpha") + o.field(21, "slope") + o.field(20, 1))
    quad = o.field(1, "Quad") + o.field(4, "a") + o.field(5, "b") + o.field(6, "slope") + o.field(10, "me") + \
        o.field(9, o.field(1, "me") + o.field(2, 1)) + o.field(9, o.field(1, "") + o.field(2, 17)) + \
        o.field(7, o.node("Twice", ["a"], ["t"], domain="me")) + o.field(7, o.node("Twice", ["t"], ["q"], domain="me")) + o.field(7, leaky)
    passes(dir, "a", o.model(o.graph([o.node("Quad", ["x"], ["y"], domain="me", slope=0.5)], [X], [Y]), functions=[twice, quad], domains=[("me", 1)]),
           [o.floats("x", [2], [1, -2])], [o.floats("y", [2], [4, -4])])


def test_bodies_capture(dir):
    """A loop in a branch: both use values from outside, one that is made further down among them."""
    step = o.graph([o.node("Add", ["carried", "late"], ["sum"]), o.node("Identity", ["cond_in"], ["cond_out"])],
                   [o.value("i", o.INT64, []), o.value("cond_in", o.BOOL, []), o.value("carried", o.FLOAT, ["k"])],
                   [o.value("cond_out", o.BOOL, []), o.value("sum", o.FLOAT, ["k"])])
    loop = o.graph([o.node("Loop", ["three", "", "x"], ["z"], body=("graph", step))], [], [o.value("z", o.FLOAT, ["n"])])
    other = o.graph([o.node("Identity", ["x"], ["z2"])], [], [o.value("z2", o.FLOAT, ["n"])])
    nodes = [o.node("If", ["c"], ["y"], then_branch=("graph", loop), else_branch=("graph", other)),
             o.node("ReduceSum", ["x", "zero"], ["s"], keepdims=0), o.node("Greater", ["s", "limit"], ["c"]), o.node("Mul", ["x", "ten"], ["late"])]
    m = o.model(o.graph(nodes, [X], [Y], [o.int64s("three", [], [3]), o.int64s("zero", [1], [0]), o.floats("limit", [], [2.5]),
                                          o.floats("ten", [], [10])]))
    passes(dir, "taken", m, [o.floats("x", [2], [1, 2])], [o.floats("y", [2], [31, 62])])
    passes(dir, "not", m, [o.floats("x", [2], [1, 1])], [o.floats("y", [2], [1, 1])])


t.main(globals())
