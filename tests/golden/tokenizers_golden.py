#!/usr/bin/env python3
"""Writes tokenizers.jsonl: what Hugging Face's tokenizers makes of the same texts with the tokenizers of real models and with small
ones trained here, which stand in tests/golden/small.

    python3 tests/golden/fetch_tokenizers.py build/tokenizers
    python3 tests/golden/tokenizers_golden.py train    writes tests/golden/small/NAME/tokenizer.json; needs WordNet at /usr/share/wordnet
    python3 tests/golden/tokenizers_golden.py golden   writes tests/golden/tokenizers.jsonl

Needs the Python package `tokenizers` (0.23). The first line of the file is the list of texts, every other line one tokenizer: the ids
of the first texts as they are, and of every text digests of its ids, of the bytes that they stand for, of the ids cut to 16, and of the
ids and types of the text with its successor, cut to 32.
"""
import json
import os
import random
import sys

import tokens
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
SMALL = os.path.join(HERE, "small")
REAL = os.path.join(os.path.dirname(os.path.dirname(HERE)), "build", "tokenizers")
SHOWN = 24


def glosses(count):
    out = []
    for part in ("noun", "verb"):
        with open(f"/usr/share/wordnet/data.{part}", encoding="utf-8") as f:
            out += [line.split(" | ", 1)[1].strip() for line in f if " | " in line]
    return random.Random(tokens.SEED).sample(out, count)


def texts():
    r = random.Random(tokens.SEED)
    out = [t for t in tokens.WRITTEN if t != "x" * 99]
    out += glosses(40)
    words = [w for t in out for w in t.split(" ")]
    glue = ["", " ", "  ", "   ", "\n", "\r\n", "\n\n", "\t", ".", ",", "'s", "'LL", "\u200b", "\u00a0", "\u0000", "\u0301", "\u2581", "1", "12345", " 9",
            "<s>", "</s>", "<unk>", "<mask>", "<|endoftext|>", "<|begin_of_text|>", "<|im_start|>", "<EOT>", "<\uff5cend\u2581of\u2581sentence\uff5c>"]
    for _ in range(120):
        out.append("".join(r.choice(words)[:20] + r.choice(glue) for _ in range(r.randint(2, 12))))
    for script in tokens.SCRIPTS[::2]:
        out.append(tokens.soup(r, [script, (0x20, 0x20)], 24))
    for _ in range(40):
        out.append(tokens.soup(r, tokens.SCRIPTS, r.randint(5, 30)))
    return out


def fnv(numbers):
    h = 0xCBF29CE484222325
    for n in numbers:
        h = ((h ^ n) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def in_bytes(text, offsets):
    at = [0]
    for c in text:
        at.append(at[-1] + len(c.encode()))
    return [n for a, b in offsets for n in (at[a], at[b])]


def line(name, path, rows):
    t = Tokenizer.from_file(path)
    t.no_padding()
    t.no_truncation()
    out = {"name": name, "ids": [], "whole": [], "spans": [], "cut": [], "pair": []}
    for i, text in enumerate(rows):
        e = t.encode(text)
        if i < SHOWN:
            out["ids"].append(e.ids)
        out["whole"].append(fnv(e.ids))
        out["spans"].append(fnv(in_bytes(text, e.offsets)))
    t.enable_truncation(16)
    out["cut"] = [fnv(t.encode(text).ids) for text in rows]
    t.enable_truncation(32)
    for text, other in zip(rows, rows[1:]):
        try:
            e = t.encode(text, other)
            out["pair"].append(fnv(e.ids + e.type_ids))
        except BaseException:  # a template without a second text
            out["pair"].append("")
    many = "".join(rows) * 4
    t.no_truncation()
    out["long"] = fnv(t.encode(many).ids)
    return out


def golden():
    rows = texts()
    with open(os.path.join(HERE, "tokenizers.jsonl"), "w", encoding="ascii") as f:
        put = lambda v: f.write(json.dumps(v, separators=(",", ":")) + "\n")
        put({"texts": rows})
        for root in (REAL, SMALL):
            for name in sorted(os.listdir(root)):
                put(line(name, os.path.join(root, name, "tokenizer.json"), rows))


def train():
    corpus = [t.replace("\0", "") for t in glosses(6000) + tokens.WRITTEN * 2]  # a key of JSON with a NUL in it is refused
    quiet = dict(show_progress=False)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]

    def save(name, t):
        os.makedirs(os.path.join(SMALL, name), exist_ok=True)
        path = os.path.join(SMALL, name, "tokenizer.json")
        t.save(path, pretty=False)
        print(f"{path}: {os.path.getsize(path) / 1e3:.0f} kB")

    t = Tokenizer(models.BPE())  # as roberta-base
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    t.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=1500, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **quiet))
    t.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=True)
    t.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    save("roberta", t)

    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))  # as llama-2
    t.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    t.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")  # for the training alone: no merges over words
    t.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=1500, limit_alphabet=200, special_tokens=["<unk>", "<s>", "</s>"] + [
        f"<0x{i:02X}>" for i in range(256)], **quiet))
    made = json.loads(t.to_str())
    made["pre_tokenizer"] = None
    made["added_tokens"] = made["added_tokens"][:3]
    t = Tokenizer.from_str(json.dumps(made))
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    save("llama", t)

    t = Tokenizer(models.Unigram())  # as xlm-roberta, but for its table of characters, which is as large as all the rest
    t.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    t.train_from_iterator(corpus, trainers.UnigramTrainer(vocab_size=1500, special_tokens=special, unk_token="<unk>", **quiet))
    t.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    t.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    save("xlmr", t)

    t = Tokenizer(models.WordLevel(unk_token="<unk>"))
    t.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase(), normalizers.Strip()])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.UnicodeScripts(), pre_tokenizers.Digits(True), pre_tokenizers.Whitespace()])
    t.train_from_iterator(corpus, trainers.WordLevelTrainer(vocab_size=1500, special_tokens=special, **quiet))
    t.add_tokens([AddedToken("new york", single_word=True)])
    save("words", t)

    t = Tokenizer(models.WordPiece(unk_token="<unk>", max_input_chars_per_word=50))
    t.normalizer = normalizers.BertNormalizer(strip_accents=False, lowercase=True)
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("contiguous"),
                                               pre_tokenizers.Split(Regex(r"(?<=[a-z])[A-Z]|\d{3}"), "merged_with_previous")])
    t.train_from_iterator(corpus, trainers.WordPieceTrainer(vocab_size=1500, special_tokens=special, **quiet))
    t.post_processor = processors.BertProcessing(("</s>", 2), ("<s>", 0))
    save("pieces", t)


if __name__ == "__main__":
    if sys.argv[1:] == ["train"]:
        train()
    elif sys.argv[1:] == ["golden"]:
        golden()
    else:
        sys.exit(__doc__)
