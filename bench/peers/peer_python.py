"""The Python that the peers run in: this one when it has what they need, else a virtual environment of its own under build/bench/venv."""
import importlib.util
import os
import subprocess
import sys

WANTED = ["numpy", "onnx", "onnxruntime", "tokenizers"]


def ensure(extra=()):
    """Returns when everything can be imported; else starts the script anew where it can."""
    names = WANTED + list(extra)
    if all(importlib.util.find_spec(n) for n in names):
        return
    venv = os.path.join(os.environ.get("BUILD", "build"), "bench", "venv")
    python = os.path.join(venv, "bin", "python3")
    if os.path.realpath(sys.prefix) == os.path.realpath(venv) or os.environ.get("EBB_BENCH_VENV"):
        subprocess.check_call([sys.executable, "-m", "pip", "install", "-q", *names])
        return
    if not os.path.exists(python):
        subprocess.check_call([sys.executable, "-m", "venv", venv])
    os.environ["EBB_BENCH_VENV"] = "1"
    os.execv(python, [python, *sys.argv])
