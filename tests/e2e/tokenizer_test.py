"""Tokenizers in a job: a text that the tokenizer cannot take is an error of that record, and models of other families run."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import json
import shutil

import ebbtest as t


def model_with(dir, name, **parts):
    """The tiny model with a tokenizer.json of its own vocabulary, and these parts in it."""
    path = os.path.join(dir, name)
    shutil.copytree(t.tiny_model(), path)
    vocab = {w: i for i, w in enumerate(open(os.path.join(path, "vocab.txt"), encoding="utf-8").read().split("\n")[:-1])}
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "decoder": None,
             "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
             "pre_tokenizer": {"type": "BertPreTokenizer"},
             "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", vocab["[SEP]"]], "cls": ["[CLS]", vocab["[CLS]"]]},
             "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": vocab}}
    for key, value in parts.items():
        whole[key] = value(vocab) if callable(value) else value
    with open(os.path.join(path, "tokenizer.json"), "w") as f:
        json.dump(whole, f)
    return path


def write(dir, *texts):
    path = os.path.join(dir, "in.jsonl")
    with open(path, "w") as f:
        f.writelines(json.dumps({"id": str(i), "text": x}) + "\n" for i, x in enumerate(texts))
    return path


def test_the_file_says_what_the_words_said(dir):
    """A tokenizer.json that means what vocab.txt means gives the same vectors."""
    inp = write(dir, "a first record", "the second, with more words in it", "")
    t.ebb_run(t.tiny_model(), inp, os.path.join(dir, "words"))
    t.ebb_run(model_with(dir, "model"), inp, os.path.join(dir, "file"))
    assert t.rows(os.path.join(dir, "words")) == t.rows(os.path.join(dir, "file"))


def test_other_models_of_words(dir):
    """BPE and Unigram over the same ids: the job runs, and other pieces give other vectors."""
    inp = write(dir, "a first record", "another one")
    seen = []
    for name, model in (("bpe", lambda v: {"type": "BPE", "unk_token": "[UNK]", "fuse_unk": True, "vocab": v, "merges": []}),
                        ("unigram", lambda v: {"type": "Unigram", "unk_id": v["[UNK]"], "vocab": [[w, -1.0 - i / 100] for w, i in v.items()]})):
        out = os.path.join(dir, name + ".out")
        t.ebb_run(model_with(dir, name, model=model), inp, out)
        seen.append(t.rows(out))
        assert len(seen[-1]) == 2
    assert seen[0] != seen[1]


def test_endless_expression(dir):
    """A regular expression that would never end is given up: that record is an error, the others go on."""
    model = model_with(dir, "model", pre_tokenizer={"type": "Split", "pattern": {"Regex": "(a+a+)+[bc]"}, "behavior": "Isolated", "invert": False})
    inp = write(dir, "a good record", "a" * 400, "another")
    out = os.path.join(dir, "out")
    t.ebb_run(model, inp, out, want=3)
    errors = t.errors(out)
    assert len(t.rows(out)) == 2 and len(errors) == 1, errors
    assert errors[0]["code"] == "not_tokenised" and errors[0]["line"] == 2 and "(a+a+)+[bc]" in errors[0]["message"], errors


def test_refused_when_it_is_loaded(dir):
    model = model_with(dir, "model", pre_tokenizer={"type": "Split", "pattern": {"Regex": "[a&&b]"}, "behavior": "Isolated", "invert": False})
    rc, o, e = t.run(t.run_args(model, write(dir, "x"), os.path.join(dir, "out")))
    assert rc == 2 and "tokenizer.json" in e and "[a&&b]" in e, (rc, o, e)


t.main(globals())
