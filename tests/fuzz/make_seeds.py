"""Makes the seeds of fuzz targets whose input people do not write by hand: python3 tests/fuzz/make_seeds.py. They are kept in tests/fuzz/seeds; one is
added by hand where a crash was found."""
import gzip
import json
import os
import re
import struct
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))


def put(target, name, data):
    folder = os.path.join(HERE, "seeds", target)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as f:
        f.write(data if isinstance(data, bytes) else data.encode())


# Readers: a few bytes of choices go before the text --------------------------------------------------------------------------------

CSV = 'id,text,more\n1,"one, two",x\n2,"says ""hello""\nover two lines",\n3,é,"z"\r\n'
put("csv_fuzz", "csv", b"\1\0\x80" + CSV.encode())
put("csv_fuzz", "csv_short", b"\1\x10\x40" + CSV.encode())
put("csv_fuzz", "tsv", b"\0\0\xc0" + b"id\ttext\n1\tone\\ttwo\n2\t\n\n3\tthree\n")
put("csv_fuzz", "bom", b"\1\0\x20\xef\xbb\xbfa,a\n1,2\n")

LINES = ['{"t": "one", "i": 7, "a": [1, {"x": null}], "b\\"c": "kept"}', '{"i": "seven", "t": "\\u00e9\\ud83c\\udf0a \\n"}', "not json", '{"t": 1e400}', "", '{"t": "a", "t": "b"}']
put("jsonl_fuzz", "fields", b"\3\0\x80" + "\n".join(LINES).encode())
put("jsonl_fuzz", "text", b"\1\0\x40" + b'{"text": "one", "id": "a"}\r\n{"text": "two", "custom_id": 3}\n')
put("jsonl_fuzz", "lines", b"\0\x08\xa0" + "short\na line that is too long\né\n\xff\n".encode("latin-1"))
put("jsonl_fuzz", "utf16", b"\1\0\0" + '\ufeff{"text": "x"}\n'.encode("utf-16-le"))

PACKED = b"one\ntwo\n" + b"a longer line\n" * 40
put("inflate_fuzz", "gzip", b"\3\0" + gzip.compress(PACKED, mtime=0))
put("inflate_fuzz", "gzip_twice", b"\3\0" + gzip.compress(PACKED[:40], mtime=0) + gzip.compress(PACKED[40:], mtime=0))
put("inflate_fuzz", "gzip_csv", b"\2\x20" + gzip.compress(CSV.encode() * 9, mtime=0))
zstd = subprocess.run(["zstd", "-q", "-c"], input=PACKED, stdout=subprocess.PIPE, check=True).stdout
put("inflate_fuzz", "zstd", b"\1\0" + zstd)
put("inflate_fuzz", "zstd_skipped", b"\1\0" + struct.pack("<II", 0x184D2A50, 4) + b"skip" + zstd + zstd)
put("inflate_fuzz", "cut", b"\3\0" + gzip.compress(PACKED, mtime=0)[:-9])

# A job, as a client sends it -----------------------------------------------------------------------------------------------------------

JOB = {"name": None, "model": "/m", "precision": "f32", "task": "embed", "top_k": 5,
       "input": {"glob": ["/in.jsonl"], "format": None, "field": None, "pair_field": None, "id": None, "keep": [], "limit": 0, "max_record": 16777216,
                 "on_long": "truncate"},
       "output": {"path": "/out", "format": None, "floats": "array", "part_bytes": 268435456}, "max_errors": None, "weight": 100, "priority": 0,
       "workers": {"min": 0, "max": 0}, "tuning": {"lease": 30, "commit": 3, "stall": 120, "micro_batch": 64, "micro_batch_tokens": 1024}}
put("jobspec_fuzz", "plain", json.dumps(JOB))
FULL = json.loads(json.dumps(JOB))
FULL.update(name="n", task="classify", precision="int8", max_errors="1%", priority=-3)
FULL["input"].update(format="csv", field="text", pair_field="other", id="id", keep=["a", "b"], limit=9, on_long="error")
FULL["output"].update(format="jsonl", floats="base64")
FULL["tuning"].update(lease=0.5)
put("jobspec_fuzz", "full", json.dumps(FULL))
put("jobspec_fuzz", "wrong", json.dumps(dict(JOB, task=7, more={"x": []})))

# model.safetensors ------------------------------------------------------------------------------------------------------------------------


def safetensors(tensors, metadata=None):
    head, data = {}, b""
    if metadata:
        head["__metadata__"] = metadata
    for name, kind, shape, raw in tensors:
        head[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + data


put("safetensors_fuzz", "f32", safetensors([("a", "F32", [2, 3], struct.pack("<6f", *range(6)))], {"format": "pt"}))
put("safetensors_fuzz", "f16", safetensors([("b", "BF16", [2], b"\0\0\x80\x3f"), ("a", "F16", [3], b"\0\x3c\0\0\0\x3c")]))
put("safetensors_fuzz", "scalar", safetensors([("a", "F32", [], b"\0\0\x80\x3f"), ("empty", "F32", [0, 4], b"")]))
put("safetensors_fuzz", "gap", safetensors([("a", "F32", [1], b"\0\0\x80\x3f")]) + b"more")
put("safetensors_fuzz", "long", struct.pack("<Q", 1 << 60) + b"{}")

# What lies beside a model's weights -----------------------------------------------------------------------------------------------------

BERT = {"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
        "hidden_act": "gelu", "vocab_size": 100, "max_position_embeddings": 64, "type_vocab_size": 2, "layer_norm_eps": 1e-12}
put("config_fuzz", "bert", json.dumps(BERT))
put("config_fuzz", "labels", json.dumps(dict(BERT, architectures=["BertForSequenceClassification"], id2label={"0": "no", "1": "yes"},
                                            problem_type="multi_label_classification")))
put("config_fuzz", "roberta", json.dumps(dict(BERT, model_type="roberta", architectures=["RobertaForMaskedLM"], pad_token_id=1)))
put("config_fuzz", "mpnet", json.dumps(dict(BERT, model_type="mpnet", architectures=["MPNetForTokenClassification"], relative_attention_num_buckets=32,
                                           id2label={"0": "O", "1": "B"})))
put("config_fuzz", "deberta", json.dumps(dict(BERT, model_type="deberta-v2", architectures=["DebertaV2Model"], relative_attention=True, position_buckets=16,
                                             pos_att_type="c2p|p2c", norm_rel_ebd="layer_norm", share_att_key=True, position_biased_input=False)))
put("config_fuzz", "albert", json.dumps(dict(BERT, model_type="albert", architectures=["AlbertModel"], embedding_size=16, num_hidden_groups=1,
                                            inner_group_num=1)))

# Messages: one of each, every field set -------------------------------------------------------------------------------------------------


def varint(n):
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes(out + bytes([n]))


def messages():
    text = re.sub(r"//[^\n]*", "", open(os.path.join(HERE, "../../wire/ebb.proto")).read())
    found = {}
    for name, body in re.findall(r"message (\w+) \{((?:[^{}]|\{[^{}]*\})*)\}", text):
        found[name] = [(kind, field, int(number)) for kind, field, number in re.findall(r"([\w.]+) (\w+) = (\d+)", body)]
    return found


def pack(found, name, depth=0):
    out = b""
    for kind, _, number in found[name]:
        if kind in found:
            body = pack(found, kind, depth + 1) if depth < 3 else b""
        elif kind in ("string", "bytes"):
            body = b"ab"
        elif kind in ("double", "fixed64"):
            out += varint(number << 3 | 1) + struct.pack("<d", 0.5)
            continue
        elif kind in ("float", "fixed32"):
            out += varint(number << 3 | 5) + struct.pack("<f", 0.5)
            continue
        else:
            out += varint(number << 3) + b"\1"
            continue
        out += varint(number << 3 | 2) + varint(len(body)) + body
    return out


ALL = messages()
for kind, field, number in ALL["Envelope"]:
    body = pack(ALL, kind)
    put("wire_fuzz", field, varint(number << 3 | 2) + varint(len(body)) + body)


# Micro-batches and results of a gang that fit: the envelope's length, the envelope, the payload.
def field(number, body):
    return varint(number << 3 | 2) + varint(len(body)) + body


def number(n, value):
    return varint(n << 3) + varint(value)


def with_payload(name, case, body, payload=b""):
    envelope = field(case, body)
    put("stage_fuzz", name, struct.pack("<H", len(envelope)) + envelope + payload)


START = number(1, 7) + number(2, 1) + number(3, 9) + field(4, b"0123456789abcdef")
RECORDS = b"".join(field(9, number(1, 5) + field(2, number(1, i) + number(2, i + 1))) for i in range(2))
with_payload("batch", 12, START + field(6, bytes([2, 1])) + field(7, struct.pack("<3i", 2, 50, 3)) + RECORDS)
with_payload("types", 12, START + number(5, 1) + field(6, bytes([2, 1])) + field(7, struct.pack("<3i", 2, 50, 3)) + field(8, bytes([0, 1, 1])) + RECORDS)
with_payload("embedding", 13, START + field(5, field(1, b"embedding") + number(2, 4)), struct.pack("<12f", *range(12)))
with_payload("tokens", 13, START + field(5, number(2, 2) + field(3, bytes([3, 1, 5]))), struct.pack("<18f", *range(18)))
with_payload("masks", 13, START + field(5, number(2, 3) + field(3, bytes([1, 0, 2]))) + field(5, number(2, 3) + field(3, bytes([1, 0, 2])) + number(4, 1)),
             struct.pack("<9f9i", *range(18)))
with_payload("errors", 13, START + field(5, field(1, b"embedding") + number(2, 4)) + field(6, b"") + field(6, b"bad") + field(6, b""), struct.pack("<12f", *range(12)))
