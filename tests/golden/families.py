#!/usr/bin/env python3
"""families.jsonl: what transformers and sentence-transformers give for tiny random models of every family and head.

    python3 tests/golden/families.py build/tests/mkmodel > tests/golden/families.jsonl

The models are made by mkmodel (tests/lib/tinymodel.c), so none is kept. Each line is one record: the model's arguments, the text (and the
other of a pair), its tokens, and the numbers. Needs torch, transformers, tokenizers and sentence-transformers; made with transformers
5.24.0, sentence-transformers 6.2.0 and torch 2.15.0, each text alone, eager attention, in float32."""
import json
import subprocess
import sys
import tempfile

import torch
import transformers
from tokenizers import Tokenizer

transformers.logging.set_verbosity_error()

FAMILIES = ["bert", "distilbert", "roberta", "camembert", "xlm-roberta", "mpnet", "electra", "albert", "deberta-v2"]
SIZES = ["hidden=24", "heads=3", "ffn=40", "vocab=150", "positions=64", "tokens=48"]
TEXTS = ["a tide of 7 waves", "x", "Ebb & flow: the sea, 3 miles [PAD] off é the coast of [MASK]! [MASK] and [MASK] then",
         "the quick brown fox jumps over the lazy dog and then some more until the text is cut"]
PAIRS = [("a tide", "of waves"), ("x y", "no [PAD] way home tonight")]
HEADS = {"classify": transformers.AutoModelForSequenceClassification, "token-classify": transformers.AutoModelForTokenClassification,
         "fill-mask": transformers.AutoModelForMaskedLM}
MASK = 4


def numbers(x):
    return [float(f"{v:.9g}") for v in x]


def encode(tokenizer, text, other=None):
    tokenizer.enable_truncation(48)
    e = tokenizer.encode(text, other) if other else tokenizer.encode(text)
    return e.ids, e.type_ids


def spans(tokenizer, text):
    """Where in the text, in bytes, each token lies; the special ones around it lie nowhere."""
    e = tokenizer.encode(text)
    return [[len(text[:i].encode()) for i in at] for at in e.offsets]


def load(kind, path):
    model, info = kind.from_pretrained(path, attn_implementation="eager", output_loading_info=True)
    # every tensor of ours is one of theirs and the other way round; a pooler that embeddings do not use is none of ours
    missing = [k for k in info["missing_keys"] if "pooler" not in k]
    assert not missing and not info["unexpected_keys"] and not info["mismatched_keys"], (path, info)
    return model.eval()


def result(head, model, ids, types):
    given = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    if getattr(model.config, "type_vocab_size", 0):
        given["token_type_ids"] = torch.tensor([types])
    with torch.no_grad():
        out = model(**given)
    if head == "classify":
        return {"scores": numbers(torch.softmax(out.logits[0].double(), -1))}
    if head == "token-classify":
        return {"scores": [numbers(row) for row in torch.softmax(out.logits[0].double(), -1)]}
    best = [torch.softmax(row.double(), -1).topk(5) for row, i in zip(out.logits[0], ids) if i == MASK]
    return {"scores": [numbers(b.values) for b in best], "tokens": [b.indices.tolist() for b in best]}


def hidden(model, ids, types):
    given = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    if getattr(model.config, "type_vocab_size", 0):
        given["token_type_ids"] = torch.tensor([types])
    with torch.no_grad():
        return model(**given).last_hidden_state[0]


def put(**row):
    print(json.dumps(row, ensure_ascii=False, separators=(",", ":")))


def make(mkmodel, path, args):
    subprocess.run([mkmodel, path, *args], check=True)
    return Tokenizer.from_file(path + "/tokenizer.json")


def families(mkmodel, top):
    for family in FAMILIES:
        for head, kind in HEADS.items():
            args = ["family=" + family, "head=" + head, *SIZES, *(["labels=5"] if head == "token-classify" else [])]
            path = f"{top}/{family}-{head}"
            tokenizer = make(mkmodel, path, args)
            model = load(kind, path)
            for text, other in [(t, None) for t in TEXTS] + (PAIRS if head == "classify" else []):
                if head == "fill-mask" and "[MASK]" not in text:
                    continue
                ids, types = encode(tokenizer, text, other)
                more = {"spans": spans(tokenizer, text)} if head == "token-classify" else {}
                row = result(head, model, ids, types)
                if head == "fill-mask":
                    more = {"words": [[tokenizer.id_to_token(i) for i in best] for best in row["tokens"]]}
                put(model=args, head=head, text=text, other=other, ids=ids, types=types, **more, **row)
        args = ["family=" + family, "pooling=mean", "normalize=0", *SIZES]
        tokenizer = make(mkmodel, f"{top}/{family}", args)
        model = load(transformers.AutoModel, f"{top}/{family}")
        for text in TEXTS:
            ids, types = encode(tokenizer, text)
            put(model=args, head="embed", text=text, other=None, ids=ids, types=types, embedding=numbers(hidden(model, ids, types).mean(0)))


def variants(mkmodel, top):
    """What some models of a family have and others not."""
    for i, (args, head) in enumerate([(["family=deberta-v2", "variant=1"], "classify"), (["family=albert", "variant=1", "layers=4"], "classify"),
                                      (["family=electra", "variant=1"], "token-classify"), (["family=bert", "untied=1"], "fill-mask"),
                                      (["family=distilbert", "untied=1"], "fill-mask"), (["family=roberta", "untied=1", "act=gelu_new"], "fill-mask")]):
        args = [*args, "head=" + head, *SIZES]
        path = f"{top}/variant-{i}"
        tokenizer = make(mkmodel, path, args)
        model = load(HEADS[head], path)
        for text, other in [(t, None) for t in TEXTS] + (PAIRS if head == "classify" else []):
            if head == "fill-mask" and "[MASK]" not in text:
                continue
            ids, types = encode(tokenizer, text, other)
            row = result(head, model, ids, types)
            more = {"spans": spans(tokenizer, text)} if head == "token-classify" else {}
            if head == "fill-mask":
                more = {"words": [[tokenizer.id_to_token(i) for i in best] for best in row["tokens"]]}
            put(model=args, head=head, text=text, other=other, ids=ids, types=types, **more, **row)


def modules(mkmodel, top):
    """Poolings and Dense, by sentence-transformers."""
    from sentence_transformers import SentenceTransformer
    for i, more in enumerate([["pooling=weightedmean"], ["pooling=lasttoken"], ["pooling=mean_sqrt_len"], ["pooling=cls+max+mean", "normalize=0"],
                              ["pooling=mean", "dense=Tanh"], ["pooling=cls", "dense=Identity", "normalize=0"], ["pooling=max", "dense=ReLU"]]):
        args = more + SIZES
        path = f"{top}/modules-{i}"
        tokenizer = make(mkmodel, path, args)
        model = SentenceTransformer(path, device="cpu")
        for text in TEXTS:
            ids, types = encode(tokenizer, text)
            put(model=args, head="embed", text=text, other=None, ids=ids, types=types, embedding=numbers(model.encode([text])[0]))


with tempfile.TemporaryDirectory() as top:
    families(sys.argv[1], top)
    variants(sys.argv[1], top)
    modules(sys.argv[1], top)
