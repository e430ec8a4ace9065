#!/usr/bin/env python3
"""Arrays that NumPy wrote (2.4.6 when they were made): writes tests/golden/arrays/*.npy and tests/golden/arrays.jsonl, a line for each with its
type, shape and elements.
"""
import json
import os
import warnings

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "arrays")

ARRAYS = {
    "f2": np.array([0, -0.0, 1.5, 65504, 6e-8, -2 / 3], dtype="<f2"),
    "f4": (np.arange(24, dtype="<f4") / 7 - 1).reshape(2, 3, 4),
    "f8": np.array([[0.1, 1e300, -5e-324], [1 / 3, 2**53 + 2, -1e22]]),
    "f4big": np.array([[1.25, -3e38]], dtype=">f4"),
    "i1": np.array([-128, 0, 127], dtype="i1"),
    "i2": np.array([[-32768], [32767]], dtype="<i2"),
    "i4": np.array(-2147483648, dtype="<i4"),
    "i4big": np.arange(-3, 3, dtype=">i4"),
    "i8": np.array([-2**63, 2**63 - 1], dtype="<i8"),
    "u1": np.arange(256, dtype="u1").reshape(16, 16),
    "u2": np.array([65535], dtype="<u2"),
    "u4": np.array([[[4294967295]]], dtype="<u4"),
    "u8": np.array([2**64 - 1, 0], dtype="<u8"),
    "b1": np.array([[True, False], [False, True]]),
    "empty": np.zeros((0, 3), dtype="<f4"),
    "column": np.asfortranarray(np.arange(5, dtype="<f4")),
}

os.makedirs(FOLDER, exist_ok=True)
lines = []
for name, array in ARRAYS.items():
    for version in ((1, 0), (2, 0), (3, 0)):
        if version != (1, 0) and name not in ("f4", "i8"):
            continue
        file = f"{name}_v{version[0]}.npy"
        with open(os.path.join(FOLDER, file), "wb") as out, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            np.lib.format.write_array(out, array, version=version)
        lines.append({"file": file, "kind": array.dtype.kind, "size": array.dtype.itemsize, "shape": list(array.shape), "values": array.tolist()})
with open(os.path.join(HERE, "arrays.jsonl"), "w") as out:
    for line in lines:
        out.write(json.dumps(line) + "\n")
