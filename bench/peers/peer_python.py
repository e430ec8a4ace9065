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


def optional(name):
    """A peer that is not needed: 1 where it can be imported, if need be after it was put into the virtual environment of the benchmarks (not into anybody
    else's Python); else 0, and why it is left out is said."""
    if importlib.util.find_spec(name):
        return 1
    venv = os.path.join(os.environ.get("BUILD", "build"), "bench", "venv")
    if os.path.realpath(sys.prefix) != os.path.realpath(venv):
        print(f"{name} is not there: not compared (pip install {name})", flush=True)
        return 0
    p = subprocess.run([sys.executable, "-m", "pip", "install", "-q", name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    importlib.invalidate_caches()
    if p.returncode == 0 and importlib.util.find_spec(name):
        return 1
    print(f"{name} is not there, and pip does not bring it: not compared ({p.stdout.strip().splitlines()[-1] if p.stdout.strip() else p.returncode})", flush=True)
    return 0
