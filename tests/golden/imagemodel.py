#!/usr/bin/env python3
"""A tiny classifier of images with random weights, and what ONNX Runtime and transformers make of the pictures in tests/golden/images: writes
tests/golden/imagemodel/{model.onnx,config.json,preprocessor_config.json,golden.json}. Needs onnx, onnxruntime, transformers, pillow (1.23.2, 1.32.0, 5.24.0 and 13.0.0
when they were made).
"""
import json
import os

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "imagemodel")
LABELS = ["cat", "dog", "bird", "boat"]

rng = np.random.default_rng(3)


def weight(name, *shape):
    scale = 1 / np.sqrt(np.prod(shape[1:])) if len(shape) > 1 else 0.1
    return numpy_helper.from_array((rng.standard_normal(shape) * scale * 2).astype(np.float32), name)


def model():
    nodes = [
        helper.make_node("Conv", ["pixel_values", "w1", "b1"], ["c1"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("MaxPool", ["r1"], ["p1"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["p1", "w2", "b2"], ["c2"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["p1", "w3", "b3"], ["c3"]),
        helper.make_node("Add", ["c2", "c3"], ["a1"]),
        helper.make_node("Relu", ["a1"], ["r2"]),
        helper.make_node("GlobalAveragePool", ["r2"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "w4", "b4"], ["logits"], transB=1),
    ]
    weights = [weight("w1", 8, 3, 3, 3), weight("b1", 8), weight("w2", 12, 8, 3, 3), weight("b2", 12), weight("w3", 12, 8, 1, 1), weight("b3", 12),
               weight("w4", len(LABELS), 12), weight("b4", len(LABELS))]
    graph = helper.make_graph(nodes, "tiny", [helper.make_tensor_value_info("pixel_values", TensorProto.FLOAT, ["batch", 3, 24, 24])],
                              [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", len(LABELS)])], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="tests/golden/imagemodel.py")
    made.ir_version = 8
    onnx.checker.check_model(made)
    return made


os.makedirs(FOLDER, exist_ok=True)
made = model()
onnx.save(made, os.path.join(FOLDER, "model.onnx"))
processor = CLIPImageProcessorPil(size={"shortest_edge": 27}, crop_size={"height": 24, "width": 24})
with open(os.path.join(FOLDER, "preprocessor_config.json"), "w") as out:
    out.write(processor.to_json_string())
with open(os.path.join(FOLDER, "config.json"), "w") as out:
    json.dump({"model_type": "resnet", "architectures": ["ResNetForImageClassification"], "id2label": dict(enumerate(LABELS)),
               "problem_type": "single_label_classification"}, out, indent=1)
session = onnxruntime.InferenceSession(made.SerializeToString())
golden = {}
for name in sorted(os.listdir(os.path.join(HERE, "images"))):
    image = Image.open(os.path.join(HERE, "images", name))
    pixels = np.array(processor(image)["pixel_values"][0], dtype=np.float32)
    logits = session.run(None, {"pixel_values": pixels[None]})[0][0]
    odds = np.exp(logits - logits.max())
    golden[name] = {"logits": [float(v) for v in logits], "scores": [float(v) for v in odds / odds.sum()]}
with open(os.path.join(FOLDER, "golden.json"), "w") as out:
    json.dump(golden, out, indent=0)
