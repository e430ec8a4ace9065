"""Makes tests/golden/ops.tar.gz: single ops with random sizes and attributes, and small models of scikit-learn, XGBoost and LightGBM, each with what
ONNX Runtime computes, as test directories for `ebb model test`. What the ONNX project's own node tests lack is here: ops of com.microsoft and
ai.onnx.ml, quantised ops with all kinds of zero points, RNNs in both directions, windows of odd sizes.

Needs onnx, onnxruntime, scikit-learn, skl2onnx, xgboost, lightgbm, onnxmltools. Run: python tests/golden/ops.py

Left out, as ONNX Runtime differs from ONNX's definition there: SAME padding where a kernel is smaller than its stride; align_corners with scales that make
a fractional length. Inputs of interpolating ops are positive, so that single precision does not cancel."""

import io
import os
import tarfile
import warnings

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

warnings.filterwarnings("ignore")
rng = np.random.default_rng(1)
files = {}
TYPES = {np.dtype(k): v for k, v in {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9}.items()}


def keep(name, model, inputs, outputs):
    folder = f"test_{name}_{len(files):04d}"
    files[f"{folder}/model.onnx"] = model.SerializeToString()
    for i, (k, v) in enumerate(inputs):
        files[f"{folder}/test_data_set_0/input_{i}.pb"] = numpy_helper.from_array(v, k).SerializeToString()
    for i, (k, v) in enumerate(outputs):
        v = np.asarray(v)
        files[f"{folder}/test_data_set_0/output_{i}.pb"] = numpy_helper.from_array(
            v.astype(object) if v.dtype.kind in "OU" else v, k
        ).SerializeToString()


def options():
    o = ort.SessionOptions()
    o.log_severity_level = 4
    o.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return o


def case(name, op, ins, nout=1, opset=17, domain="", const=(), outs=None, **attrs):
    names = [f"x{i}" if v is not None else "" for i, v in enumerate(ins)]
    made = [f"y{i}" if outs is None or i in outs else "" for i in range(nout)]
    node = helper.make_node(op, names, made, domain=domain, **attrs)
    given = [i for i, v in enumerate(ins) if v is not None and i not in const]
    inputs = [helper.make_tensor_value_info(names[i], TYPES[ins[i].dtype], ins[i].shape) for i in given]
    weights = [numpy_helper.from_array(ins[i], names[i]) for i in const if ins[i] is not None]
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])

    def model(outputs):
        return helper.make_model(helper.make_graph([node], "g", inputs, outputs, weights), opset_imports=opsets, ir_version=8)

    names_out = [o for o in made if o]
    feeds = {names[i]: ins[i] for i in given}
    try:
        session = ort.InferenceSession(
            model([helper.make_empty_tensor_value_info(o) for o in names_out]).SerializeToString(), options(), providers=["CPUExecutionProvider"]
        )
        results = session.run(None, feeds)
    except Exception as e:  # what ONNX Runtime cannot do on a processor
        print("not by ONNX Runtime:", name, str(e)[:100])
        return
    outputs = [helper.make_tensor_value_info(o, TYPES[np.asarray(y).dtype], np.asarray(y).shape) for o, y in zip(names_out, results)]
    keep(name, model(outputs), feeds.items(), zip(names_out, results))


def f(*s):
    return rng.standard_normal(s).astype(np.float32)


def R(a, b):
    return int(rng.integers(a, b))


MS = "com.microsoft"


def com_microsoft():
    for t in range(3):
        B, S, N, H = R(1, 4), R(1, 9), 2, [4, 8, 20][t]
        I = 12
        W = f(I, 3 * N * H)
        bs = f(3 * N * H)
        x = f(B, S, I)
        for uni in (0, 1):
            case("attention", "Attention", [x, W, bs], domain=MS, num_heads=N, unidirectional=uni)
            case("attention_mask1", "Attention", [x, W, bs, rng.integers(1, S + 1, B).astype(np.int32)], domain=MS, num_heads=N, unidirectional=uni)
            mk = (rng.random((B, S)) < 0.7).astype(np.int32)
            mk[:, 0] = 1
            case("attention_mask2", "Attention", [x, W, bs, mk], domain=MS, num_heads=N, unidirectional=uni, const=(1, 2))
            case("attention_past", "Attention", [x, W, bs, None, f(2, B, N, 5, H)], 2, domain=MS, num_heads=N, unidirectional=uni)
        mk3 = (rng.random((B, S, S)) < 0.7).astype(np.int32)
        mk3[:, :, 0] = 1
        case("attention_mask3", "Attention", [x, W, bs, mk3], domain=MS, num_heads=N)
        case("attention_add", "Attention", [x, W, bs, None, None, f(B, N, S, S)], domain=MS, num_heads=N)
        case("attention_add_mask", "Attention", [x, W, bs, mk, None, f(1, N, S, S)], domain=MS, num_heads=N, const=(1, 2))
        case(
            "attention_sizes",
            "Attention",
            [x, f(I, N * H * 2 + N * 6), f(N * H * 2 + N * 6)],
            domain=MS,
            num_heads=N,
            qkv_hidden_sizes=[N * H, N * H, N * 6],
        )
        L = R(1, 7)
        q, k, v = f(B, S, N * H), f(B, L, N * H), f(B, L, N * H)
        case("mha", "MultiHeadAttention", [q, k, v], domain=MS, num_heads=N)
        case("mha_bias", "MultiHeadAttention", [q, k, v, f(3 * N * H)], domain=MS, num_heads=N)
        case("mha_mask", "MultiHeadAttention", [q, k, v, None, rng.integers(1, L + 1, B).astype(np.int32)], domain=MS, num_heads=N)
        mk = (rng.random((B, L)) < 0.7).astype(np.int32)
        mk[:, 0] = 1
        case("mha_mask2", "MultiHeadAttention", [q, k, v, f(3 * N * H), mk], domain=MS, num_heads=N)
        case("mha_add", "MultiHeadAttention", [q, k, v, None, None, f(1, N, S, L)], domain=MS, num_heads=N, scale=0.3)
        case("mha_kv4", "MultiHeadAttention", [q, f(B, N, L, H), f(B, N, L, H)], domain=MS, num_heads=N)
        case(
            "mha_past",
            "MultiHeadAttention",
            [q, f(B, S, N * H), f(B, S, N * H), None, None, None, f(B, N, 3, H), f(B, N, 3, H)],
            3,
            domain=MS,
            num_heads=N,
        )
        case("mha_packed", "MultiHeadAttention", [f(B, S, N, 3, H)], domain=MS, num_heads=N)
        case("mha_packedkv", "MultiHeadAttention", [q, f(B, L, N, 2, H)], domain=MS, num_heads=N)
        case("mha_uni", "MultiHeadAttention", [q, f(B, S, N * H), f(B, S, N * H)], domain=MS, num_heads=N, unidirectional=1)
        KV = 1
        Nq = 2
        H2 = 16
        for P in (0, 4):
            S2 = S if P == 0 else 1
            tot = S2 + P
            q = f(B, S2, Nq * H2)
            k = f(B, S2, KV * H2)
            v = f(B, S2, KV * H2)
            past = [f(B, KV, P, H2), f(B, KV, P, H2)] if P else [None, None]
            cs = f(32, H2 // 2)
            sn = f(32, H2 // 2)
            sl = np.full(B, tot - 1, np.int32)
            tt = np.array([tot], np.int32)
            case("gqa", "GroupQueryAttention", [q, k, v] + past + [sl, tt], 3, domain=MS, num_heads=Nq, kv_num_heads=KV)
            case("gqa_rot", "GroupQueryAttention", [q, k, v] + past + [sl, tt, cs, sn], 3, domain=MS, num_heads=Nq, kv_num_heads=KV, do_rotary=1)
            case(
                "gqa_roti",
                "GroupQueryAttention",
                [q, k, v] + past + [sl, tt, cs, sn],
                3,
                domain=MS,
                num_heads=Nq,
                kv_num_heads=KV,
                do_rotary=1,
                rotary_interleaved=1,
                local_window_size=2,
            )
            case(
                "gqa_packed",
                "GroupQueryAttention",
                [f(B, S2, (Nq + 2 * KV) * H2), None, None] + past + [sl, tt],
                3,
                domain=MS,
                num_heads=Nq,
                kv_num_heads=KV,
                softcap=5.0,
            )
            if P:
                case(
                    "gqa_share",
                    "GroupQueryAttention",
                    [q, k, v, f(B, KV, 10, H2), f(B, KV, 10, H2), rng.integers(1, 6, B).astype(np.int32), np.array([7], np.int32)],
                    3,
                    domain=MS,
                    num_heads=Nq,
                    kv_num_heads=KV,
                )
        pos = rng.integers(0, 20, (B, S)).astype(np.int64)
        case("rot", "RotaryEmbedding", [f(B, S, N * H), pos, f(40, H // 2), f(40, H // 2)], domain=MS)
        case("rot4", "RotaryEmbedding", [f(B, N, S, H), np.array([3], np.int64), f(40, H // 2), f(40, H // 2)], domain=MS, interleaved=1)
        case("rotp", "RotaryEmbedding", [f(B, S, N * H), pos, f(40, H // 4), f(40, H // 4)], domain=MS, num_heads=N, rotary_embedding_dim=H // 2)
        D = [8, 17, 40][t]
        x = f(B, S, D)
        for op, extra in (("SkipLayerNormalization", [f(D), f(D)]), ("SkipSimplifiedLayerNormalization", [f(D)])):
            case("skip", op, [x, f(B, S, D)] + extra, 4, outs=(0, 3), domain=MS, epsilon=1e-5)
            case("skip1", op, [x, f(1, S, D)] + extra + ([f(D)]), domain=MS)
            case("skip2", op, [x, f(S, D)] + extra + ([f(D)]), 4, outs=(0, 3), domain=MS)
        case("sln", "SimplifiedLayerNormalization", [x, f(D)], domain="", opset=17)
        case("ln", "LayerNormalization", [x, f(D)], 3, opset=17)
        case("ln_ax", "LayerNormalization", [x, f(S, D), f(S, D)], opset=17, axis=1)
        ids = rng.integers(0, 30, (B, S)).astype(np.int32)
        sg = rng.integers(0, 2, (B, S)).astype(np.int32)
        emb = [ids, sg, f(30, D), f(12, D), f(2, D), f(D), f(D), (rng.random((B, S)) < 0.5).astype(np.int32)]
        case("embed", "EmbedLayerNormalization", emb, 3, domain=MS)
        case("embed2", "EmbedLayerNormalization", [ids, None, emb[2], emb[3], None, emb[5], emb[6]], 2, domain=MS)
        case("embed3", "EmbedLayerNormalization", emb + [np.tile(np.arange(S, dtype=np.int32)[::-1], (B, 1)).copy()], 2, domain=MS)
        case("biasgelu", "BiasGelu", [x, f(D)], domain=MS)
        case("fastgelu", "FastGelu", [x, f(D)], domain=MS)
        case("fastgelu1", "FastGelu", [x], domain=MS)
        case("gelu", "Gelu", [x], domain=MS)
        case("quickgelu", "QuickGelu", [x], domain=MS, alpha=1.5)
        for ta in (0, 1):
            for tb in (0, 1):
                a = f(B, *((5, 7)[::-1] if ta else (5, 7)))
                b = f(*((7, 9)[::-1] if tb else (7, 9)))
                case("fmm", "FusedMatMul", [a, b], domain=MS, transA=ta, transB=tb, alpha=0.5, const=(1,) if t else ())
                case(
                    "fgemm",
                    "FusedGemm",
                    [a[0], b, f(9)],
                    domain=MS,
                    transA=ta,
                    transB=tb,
                    alpha=0.5,
                    beta=2.0,
                    activation="LeakyRelu",
                    activation_alpha=0.2,
                )
        x4 = f(B, 6, 7, 8)
        w4 = f(8, 6, 3, 3)
        for act, pr in (
            ("Relu", None),
            ("Sigmoid", None),
            ("Tanh", None),
            ("LeakyRelu", [0.2]),
            ("Clip", [0.0, 6.0]),
            ("HardSigmoid", [0.2, 0.5]),
            ("HardSwish", None),
        ):
            kw = dict(activation=act, pads=[1, 1, 1, 1])
            if pr:
                kw["activation_params"] = pr
            case("fconv_" + act, "FusedConv", [x4, w4, f(8)], domain=MS, const=(1, 2), **kw)
        case("fconv_res", "FusedConv", [x4, w4, f(8), f(B, 8, 7, 8)], domain=MS, const=(1, 2), pads=[1, 1, 1, 1], activation="Relu")
        for bits in (4,):
            K, Nn, blk = [(32, 8, 16), (70, 5, 32), (128, 16, 64)][t]
            nb = (K + blk - 1) // blk
            Bq = rng.integers(0, 256, (Nn, nb, blk * bits // 8)).astype(np.uint8)
            sc = f(Nn * nb).astype(np.float32)
            zp = rng.integers(0, 256, (Nn * ((nb * bits + 7) // 8))).astype(np.uint8)
            case("nbits", "MatMulNBits", [f(B, 3, K), Bq, sc], domain=MS, K=K, N=Nn, bits=bits, block_size=blk, const=(1, 2))
            case("nbits_z", "MatMulNBits", [f(B, 3, K), Bq, sc, zp], domain=MS, K=K, N=Nn, bits=bits, block_size=blk, const=(1, 2, 3))


def u8(*s):
    return rng.integers(0, 256, s).astype(np.uint8)


def i8(*s):
    return rng.integers(-128, 128, s).astype(np.int8)


def i7(*s):
    return rng.integers(-64, 64, s).astype(np.int8)


def sc(*s):
    return np.asarray(rng.random(s) * 0.05 + 0.01).astype(np.float32)


def quantised():
    def z(d, v=None):
        return np.array(R(0, 100) if v is None else v, dtype=d)

    for t in range(4):
        B = R(1, 4)
        Mm, K, N = R(1, 9), R(1, 40), R(1, 30)
        for ad in (u8, i8):
            for bd in (u8, i7):
                a = ad(B, Mm, K)
                b = bd(K, N)
                az = z(a.dtype, a.dtype.type(5))
                bz = z(b.dtype, b.dtype.type(3 if t % 2 else 0))
                case("mmi", "MatMulInteger", [a, b, az, bz], const=(1, 3) if t % 2 else ())
                case("mmi0", "MatMulInteger", [a, b])
                case("qlmm", "QLinearMatMul", [a, sc(), az, b, sc(), bz, np.asarray(sc() * 8, np.float32), z(a.dtype, a.dtype.type(7))], const=(3, 5))
                case("mmitf", "MatMulIntegerToFloat", [a, b, sc(), sc(), az, bz, f(N)], domain=MS)
        case("mmi_col", "MatMulInteger", [u8(Mm, K), i7(K, N), z(np.uint8), i7(N)])
        case(
            "qlmm_col",
            "QLinearMatMul",
            [u8(Mm, K), sc(), z(np.uint8), i7(K, N), sc(N), np.zeros(N, np.int8), np.asarray(sc() * 8, np.float32), z(np.uint8)],
            const=(3, 4, 5),
        )
        case("dqmm", "DynamicQuantizeMatMul", [f(B, Mm, K), i7(K, N), sc(), z(np.int8, 1), f(N)], domain=MS, const=(1,))
        case("dqmm2", "DynamicQuantizeMatMul", [f(B, Mm, K), u8(K, N), sc(N), u8(N)], domain=MS, const=(1,))
        for tA in (0, 1):
            case(
                "qgemm",
                "QGemm",
                [
                    u8(K, Mm) if tA else u8(Mm, K),
                    sc(),
                    z(np.uint8),
                    i7(N, K),
                    sc(),
                    z(np.int8, 2),
                    rng.integers(-500, 500, (N,)).astype(np.int32),
                    np.asarray(sc() * 8, np.float32),
                    z(np.uint8),
                ],
                domain=MS,
                transA=tA,
                transB=1,
                alpha=1.0,
            )
        case(
            "qgemm_f",
            "QGemm",
            [u8(Mm, K), sc(), z(np.uint8), i7(K, N), sc(N), np.zeros(N, np.int8), rng.integers(-500, 500, (N,)).astype(np.int32)],
            domain=MS,
        )
        for g in (1, 2, 4):
            ic, oc = 4, 8
            kh = R(1, 4)
            st = R(1, 3)
            dl = R(1, 3)
            x = u8(B, ic, 11, 9)
            w = i7(oc, ic // g, kh, kh)
            kw = dict(group=g, strides=[st, st], dilations=[dl, dl], pads=[R(0, 2) for _ in range(4)])
            case("convint", "ConvInteger", [x, u8(oc, ic // g, kh, kh), z(np.uint8), z(np.uint8)], **kw)
            case(
                "qlconv",
                "QLinearConv",
                [
                    x,
                    sc(),
                    z(np.uint8),
                    w,
                    sc(),
                    z(np.int8, 0),
                    np.asarray(sc() * 6, np.float32),
                    z(np.uint8),
                    rng.integers(-500, 500, oc).astype(np.int32),
                ],
                const=(3, 5, 8),
                **kw,
            )
            case(
                "qlconv_pc",
                "QLinearConv",
                [x, sc(), z(np.uint8), w, sc(oc), np.zeros(oc, np.int8), np.asarray(sc() * 6, np.float32), z(np.uint8)],
                const=(3, 4, 5),
                **kw,
            )
            case(
                "qlconv_i8",
                "QLinearConv",
                [i8(B, ic, 11, 9), sc(), z(np.int8, 3), w, sc(), z(np.int8, 0), np.asarray(sc() * 6, np.float32), z(np.int8, -3)],
                const=(3, 5),
                **kw,
            )
        x = u8(B, 3, 5)
        y = u8(3, 1)
        case("qladd", "QLinearAdd", [x, sc(), z(np.uint8), y, sc(), z(np.uint8), np.asarray(sc() * 2, np.float32), z(np.uint8)], domain=MS)
        case("qlmul", "QLinearMul", [x, sc(), z(np.uint8), y, sc(), z(np.uint8), np.asarray(sc() * 2, np.float32), z(np.uint8)], domain=MS)
        case("qlsig", "QLinearSigmoid", [x, sc(), z(np.uint8), np.array(1 / 256, np.float32), z(np.uint8, 0)], domain=MS, const=(1, 2, 3, 4))
        case("qlleaky", "QLinearLeakyRelu", [x, sc(), z(np.uint8), sc(), z(np.uint8)], domain=MS, const=(1, 2, 3, 4), alpha=0.1)
        case("qlgap", "QLinearGlobalAveragePool", [u8(B, 5, 4, 3), sc(), z(np.uint8), sc(), z(np.uint8)], domain=MS)
        case("qlcat", "QLinearConcat", [sc(), z(np.uint8), u8(2, 3), sc(), z(np.uint8), u8(2, 4), sc(), z(np.uint8)], domain=MS, axis=1)
        case("ql", "QuantizeLinear", [f(3, 4, 5) * 3, sc(4), u8(4)], opset=13, axis=1)
        case("ql8", "QuantizeLinear", [f(3, 4, 5) * 3, sc(), z(np.int8, 3)], opset=10)
        case("dql", "DequantizeLinear", [i8(3, 4, 5), sc(5), i8(5)], opset=13, axis=-1)
        case("dql32", "DequantizeLinear", [rng.integers(-1000, 1000, (3, 4)).astype(np.int32), sc(4)], opset=13, axis=1)
        case("dyn", "DynamicQuantizeLinear", [f(7, 5) * (1 if t else 0)], 3, opset=11)


def standard():
    for t in range(20):
        nd = R(1, 4)
        g = [1, 1, 2, 3][R(0, 4)]
        ic = g * R(1, 5)
        oc = g * R(1, 5)
        sp = [R(4, 9) for _ in range(nd)]
        if t % 4 == 0:
            g = ic = R(2, 6)
            oc = ic * R(1, 3)
        k = [R(1, 4) for _ in range(nd)]
        st = [R(1, 4) for _ in range(nd)]
        dl = [R(1, 3) for _ in range(nd)]
        x = f(R(1, 3), ic, *sp)
        kw = dict(strides=st, dilations=dl, group=g)
        ap = ["NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"][R(0, 5)]
        if ap.startswith("SAME"):
            st = [min(a, b) for a, b in zip(st, k)]
            kw["strides"] = st
        if ap != "NOTSET":
            kw["auto_pad"] = ap
            kw["dilations"] = [1] * nd
        else:
            kw["pads"] = [R(0, 3) for _ in range(2 * nd)]
        case("conv", "Conv", [x, f(oc, ic // g, *k), f(oc)], const=(1, 2) if t % 2 else (), opset=11, **kw)
        kw2 = dict(strides=st, dilations=kw["dilations"], group=g)
        if ap in ("NOTSET", "VALID"):
            kw2["output_padding"] = [R(0, s) for s in st]
            kw2["pads"] = [R(0, 2) for _ in range(2 * nd)]
        else:
            kw2["auto_pad"] = ap
        case("convt", "ConvTranspose", [x, f(ic, oc // g, *k), f(oc)], const=(1, 2) if t % 2 else (), opset=11, **kw2)
        pk = dict(kernel_shape=k, strides=st)
        if ap != "NOTSET":
            pk["auto_pad"] = ap
        else:
            pk["pads"] = [R(0, kk) for kk in k] * 2
            pk["ceil_mode"] = t % 2
        case("maxpool", "MaxPool", [x], 2, opset=12, storage_order=(t // 2) % 2, **pk)
        case("maxpoold", "MaxPool", [x], opset=12, **dict(pk, dilations=[1 for _ in range(nd)]))
        case("avgpool", "AveragePool", [x], opset=19, count_include_pad=(t // 2) % 2, **pk)
        case("avgpool11", "AveragePool", [x], opset=11, count_include_pad=(t // 2) % 2, **pk)
        case("lppool", "LpPool", [x], opset=18, p=R(1, 4), **pk)
        case("inorm", "InstanceNormalization", [x, f(ic), f(ic)], opset=11)
        case("bn", "BatchNormalization", [x, f(ic), f(ic), f(ic), np.abs(f(ic))], opset=15)
        case("lrn", "LRN", [f(2, 5, 3, 3)], opset=13, size=2 * R(0, 3) + 1, alpha=0.1, beta=0.6, bias=1.5)
        case("gn", "GroupNormalization", [f(2, 6, 3, 4), f(6), f(6)], opset=21, num_groups=[1, 2, 3, 6][t % 4])
        if nd == 2:
            for md in ("bilinear", "nearest", "bicubic"):
                for pm in ("zeros", "border", "reflection"):
                    case(
                        "grid",
                        "GridSample",
                        [np.abs(x) + 1, (f(x.shape[0], 4, 5, 2) * 0.8)],
                        opset=16,
                        mode=md,
                        padding_mode=pm,
                        align_corners=t // 2 % 2,
                    )
        ct = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"][R(0, 4)]
        md = ["nearest", "linear", "cubic"][R(0, 3)]
        if md == "cubic" and nd != 2:
            md = "linear"
        nm = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"][R(0, 4)]
        x2 = np.abs(f(1, 2, *sp)) + 1
        sizes = np.array([1, 2] + [R(2, 20) for _ in sp], np.int64)
        case("resize_sizes", "Resize", [x2, None, None, sizes], opset=19, mode=md, coordinate_transformation_mode=ct, nearest_mode=nm, const=(3,))
        case(
            "resize_scales",
            "Resize",
            [x2, None, np.array([1, 1] + [[0.5, 2, 1.5, 3][R(0, 4)] for _ in sp], np.float32)],
            opset=13,
            mode=md,
            coordinate_transformation_mode=ct if ct != "align_corners" else "half_pixel",
            nearest_mode=nm,
            const=(2,),
        )
        if nd == 2:
            case(
                "resize_aa",
                "Resize",
                [x2, None, None, sizes],
                opset=18,
                mode=["linear", "cubic"][t % 2],
                antialias=1,
                coordinate_transformation_mode="half_pixel",
                const=(3,),
            )
    for t in range(16):
        S, B, I, H = R(1, 8), R(1, 5), R(1, 7), R(1, 20)
        dr = ["forward", "reverse", "bidirectional"][t % 3]
        D = 2 if t % 3 == 2 else 1
        for op, G in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
            lens = rng.integers(1, S + 1, B).astype(np.int32) if t % 2 else None
            ins = [
                f(S, B, I),
                f(D, G * H, I) * 0.5,
                f(D, G * H, H) * 0.5,
                f(D, 2 * G * H) * 0.5 if t % 4 else None,
                lens,
                f(D, B, H) if t % 3 else None,
            ]
            kw = {}
            if op == "LSTM":
                ins += [f(D, B, H) if t % 5 else None, f(D, 3 * H) if t % 2 else None]
                if t % 7 == 3:
                    kw["input_forget"] = 1
            if op == "GRU":
                kw["linear_before_reset"] = t // 3 % 2
            if t % 6 == 5:
                kw["clip"] = 0.7
            if t % 8 == 6:
                a = {"LSTM": ["Sigmoid", "HardSigmoid", "LeakyRelu"], "GRU": ["HardSigmoid", "Softsign"], "RNN": ["Affine"]}[op]
                kw["activations"] = a * D
                if op == "LSTM":
                    kw["activation_alpha"] = [0.3, 0.1] * D
                    kw["activation_beta"] = [0.4] * D
                if op == "GRU":
                    kw["activation_alpha"] = [0.3] * D
                    kw["activation_beta"] = [0.4] * D
                if op == "RNN":
                    kw["activation_alpha"] = [0.3] * D
                    kw["activation_beta"] = [0.4] * D
            case(op.lower(), op, ins, 3 if op == "LSTM" else 2, opset=14, hidden_size=H, direction=dr, const=(1, 2, 3) if t % 2 else (), **kw)


def fitted():
    from lightgbm import LGBMClassifier, LGBMRegressor
    from onnxmltools.convert import convert_lightgbm, convert_xgboost
    from onnxmltools.convert.common.data_types import FloatTensorType as Floats
    from skl2onnx import convert_sklearn, to_onnx
    from skl2onnx.common.data_types import Int64TensorType, StringTensorType
    from sklearn import (
        cluster,
        datasets,
        decomposition,
        ensemble,
        impute,
        linear_model,
        naive_bayes,
        neighbors,
        neural_network,
        preprocessing,
        svm,
        tree,
    )
    from sklearn.base import clone
    from xgboost import XGBClassifier, XGBRegressor

    x, y = datasets.load_iris(return_X_y=True)
    x = x.astype(np.float32)
    holes = x.copy()
    holes[::5, 1] = np.nan
    targets = {"three": y, "two": (y > 0).astype(int), "names": np.array(["a", "bb", "ccc"])[y]}
    number = (x[:, 0] * 2 + x[:, 1] ** 2).astype(np.float32)
    opset = {"": 17, "ai.onnx.ml": 3}

    def add(name, model, rows):
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        feeds = {model.graph.input[0].name: rows}
        keep(name, model, feeds.items(), zip([o.name for o in model.graph.output], session.run(None, feeds)))

    classifiers = [
        linear_model.LogisticRegression(),
        linear_model.SGDClassifier(loss="log_loss", random_state=0),
        tree.DecisionTreeClassifier(random_state=0),
        ensemble.RandomForestClassifier(8, random_state=0),
        ensemble.GradientBoostingClassifier(n_estimators=8, random_state=0),
        svm.SVC(probability=True, random_state=0),
        svm.SVC(kernel="poly", random_state=0),
        svm.NuSVC(probability=True, random_state=0),
        naive_bayes.GaussianNB(),
        neighbors.KNeighborsClassifier(3),
        neural_network.MLPClassifier((8,), max_iter=50, random_state=0),
    ]
    for c in classifiers:
        for kind, t in targets.items():
            m = clone(c).fit(x, t)
            add(f"{type(c).__name__.lower()}_{kind}", to_onnx(m, x[:1], options={id(m): {"zipmap": False}}, target_opset=opset), x[::7])
    for c in [
        linear_model.Ridge(),
        tree.DecisionTreeRegressor(random_state=0),
        ensemble.RandomForestRegressor(8, random_state=0),
        svm.SVR(),
        svm.OneClassSVM(),
        ensemble.GradientBoostingRegressor(n_estimators=8, random_state=0),
    ]:
        add(type(c).__name__.lower(), to_onnx(c.fit(x, number), x[:1], target_opset=opset), x[::7])
    for c in [
        preprocessing.StandardScaler(),
        preprocessing.Normalizer("l1"),
        preprocessing.Normalizer("l2"),
        preprocessing.Normalizer("max"),
        preprocessing.Binarizer(threshold=2.0),
        preprocessing.PolynomialFeatures(2),
        decomposition.PCA(2),
        cluster.KMeans(3, random_state=0),
    ]:
        add(type(c).__name__.lower(), to_onnx(c.fit(x), x[:1], target_opset=opset), x[::7])
    add("imputer", to_onnx(impute.SimpleImputer().fit(holes), holes[:1], target_opset=opset), holes[::7])
    words = np.array([["x", "p"], ["y", "q"], ["z", "p"], ["x", "q"]], dtype=object)
    for c in [preprocessing.OneHotEncoder(handle_unknown="ignore", sparse_output=False), preprocessing.OrdinalEncoder()]:
        add(type(c).__name__.lower(), convert_sklearn(c.fit(words), initial_types=[("x", StringTensorType([None, 2]))], target_opset=opset), words)
    numbers = np.array([[1, 5], [2, 6], [1, 7]], np.int64)
    c = preprocessing.OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(numbers)
    add("onehotencoder_numbers", convert_sklearn(c, initial_types=[("x", Int64TensorType([None, 2]))], target_opset=opset), numbers)
    shape = [("x", Floats([None, 4]))]
    for name, m, t in [
        ("xgb", XGBRegressor(n_estimators=8), number),
        ("xgb_two", XGBClassifier(n_estimators=8), targets["two"]),
        ("xgb_three", XGBClassifier(n_estimators=8), y),
    ]:
        add(name, convert_xgboost(m.fit(holes, t), initial_types=shape, target_opset=15), holes[::7])
    for name, m, t in [
        ("lgbm", LGBMRegressor(n_estimators=8, verbose=-1), number),
        ("lgbm_two", LGBMClassifier(n_estimators=8, verbose=-1), targets["two"]),
        ("lgbm_three", LGBMClassifier(n_estimators=8, verbose=-1), y),
    ]:
        add(name, convert_lightgbm(m.fit(holes, t), initial_types=shape, target_opset=15, zipmap=False), holes[::7])


com_microsoft()
quantised()
standard()
fitted()
path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ops.tar.gz")
with tarfile.open(path, "w:gz") as archive:
    for name, data in files.items():
        info = tarfile.TarInfo(name)
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
print(len({n.split("/")[0] for n in files}), "cases,", os.path.getsize(path), "bytes")
