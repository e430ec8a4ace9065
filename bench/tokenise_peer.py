#!/usr/bin/env python3
"""How fast are the Hugging Face tokenizers at what build/bench/tokenise does? One core, one text at a time and in batches.

    python3 bench/tokenise_peer.py                                        both in turn over WordNet's nouns: MiniLM's and those that make check fetches
    python3 bench/tokenise_peer.py MODEL-FOLDER TEXT-FILE [SECONDS]
    python3 bench/tokenise_peer.py --compare TEXT-FILE MODEL-FOLDER...    both in turn, three rounds each, and the ratio

The last line is JSON.
"""
import glob
import json
import os
import subprocess
import sys
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import peer_python  # noqa: E402

peer_python.ensure()
from tokenizers import Tokenizer, __version__  # noqa: E402

BUILD = os.environ.get("BUILD", "build")
WORDNET = "/usr/share/wordnet/data.noun"


def lines(path):
    wordnet = os.path.basename(path).startswith("data.")
    out = []
    with open(path, encoding="utf-8") as f:
        for line in f:
            if wordnet:
                if " | " in line:
                    out.append(line.split(" | ", 1)[1].rstrip("\n"))
            else:
                out.append(line.rstrip("\n"))
    return out


def measure(folder, texts, seconds):
    t = Tokenizer.from_file(folder + "/tokenizer.json")
    t.no_padding()
    t.no_truncation()
    some = texts[:20000]  # its speed does not depend on how many there are
    size = sum(len(x.encode()) + 1 for x in some)
    best = {}
    stop = time.monotonic() + seconds
    while len(best) < 2 or time.monotonic() < stop:
        for name, run in (("one", lambda: [t.encode(x) for x in some]), ("batch", lambda: t.encode_batch_fast(some))):
            start = time.perf_counter()
            run()
            took = time.perf_counter() - start
            best[name] = min(took, best.get(name, took))
    return size / best["one"] / 1e6, size / best["batch"] / 1e6


def compare(path, folders):
    texts = lines(path)
    rows = []
    print(f"tokenizers {__version__}, one core; MB/s of {path}, best of three rounds in turn")
    print(f"{'tokenizer':24} {'ebb':>8} {'theirs':>8} {'ratio':>7}")
    for folder in folders:
        ours, theirs = 0, 0
        for _ in range(3):
            out = subprocess.run([os.path.join(BUILD, "bench/tokenise"), folder, path, "1"], capture_output=True, text=True, check=True).stdout
            ours = max(ours, json.loads(out.strip().split("\n")[-1])["mb_per_s"])
            theirs = max(theirs, *measure(folder, texts, 1))
        name = os.path.basename(os.path.normpath(folder))
        print(f"{name:24} {ours:8.1f} {theirs:8.2f} {ours / theirs:6.1f}x", flush=True)
        rows.append({"tokenizer": name, "ebb_mb_per_s": round(ours, 1), "tokenizers_mb_per_s": round(theirs, 2), "ratio": round(ours / theirs, 1)})
    print(json.dumps({"bench": "tokenise_peer", "tokenizers": __version__, "least_ratio": min(r["ratio"] for r in rows), "rows": rows}, separators=(",", ":")))


if __name__ == "__main__":
    if len(sys.argv) > 3 and sys.argv[1] == "--compare":
        compare(sys.argv[2], sys.argv[3:])
    elif len(sys.argv) > 2:
        one, batch = measure(sys.argv[1], lines(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 2)
        print(f"one by one {one:.2f} MB/s, in batches {batch:.2f} MB/s")
        print(json.dumps({"bench": "tokenise_peer", "mb_per_s": round(max(one, batch), 2)}, separators=(",", ":")))
    elif len(sys.argv) == 1:
        compare(WORDNET, ["build/demo/all-MiniLM-L6-v2", *sorted(os.path.dirname(f) for f in glob.glob("build/tokenizers/*/tokenizer.json"))])
    else:
        sys.exit(__doc__)
