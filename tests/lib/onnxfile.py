"""ONNX files written by hand, byte by byte, for tests: no library is needed, and a file can be as wrong as a test wants it."""
import struct

FLOAT, INT64, BOOL = 1, 7, 9


def varint(n):
    n &= (1 << 64) - 1
    out = bytearray()
    while True:
        out.append(n & 127 | (128 if n > 127 else 0))
        n >>= 7
        if not n:
            return bytes(out)


def field(number, value):
    """An int, or bytes or text or a message (bytes)."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, str):
        value = value.encode()
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields(number, values):
    return b"".join(field(number, v) for v in values)


def tensor(name, dtype, dims, raw=None, external=None):
    out = fields(1, dims) + field(2, dtype) + field(8, name)
    if raw is not None:
        out += field(9, raw)
    if external is not None:
        out += fields(13, (field(1, k) + field(2, str(v)) for k, v in external.items())) + field(14, 1)
    return out


def floats(name, dims, values):
    return tensor(name, FLOAT, dims, struct.pack(f"<{len(values)}f", *values))


def int64s(name, dims, values):
    return tensor(name, INT64, dims, struct.pack(f"<{len(values)}q", *values))


def attr(name, value):
    out = field(1, name)
    if isinstance(value, int):
        return out + field(3, value) + field(20, 2)
    if isinstance(value, float):
        return out + varint(2 << 3 | 5) + struct.pack("<f", value) + field(20, 1)
    if isinstance(value, str):
        return out + field(4, value) + field(20, 3)
    if isinstance(value, list):
        return out + fields(8, value) + field(20, 7)
    kind, bytes_ = value  # ("tensor" or "graph", message)
    return out + (field(5, bytes_) + field(20, 4) if kind == "tensor" else field(6, bytes_) + field(20, 5))


def node(op, inputs, outputs, name="", domain="", **attrs):
    return fields(1, inputs) + fields(2, outputs) + field(3, name or op) + field(4, op) + field(7, domain) + \
        fields(5, (attr(k, v) for k, v in attrs.items()))


def value(name, dtype, dims):
    """dims: numbers and names."""
    shape = fields(1, (field(1, d) if isinstance(d, int) else field(2, d) for d in dims))
    return field(1, name) + field(2, field(1, field(1, dtype) + field(2, shape)))


def graph(nodes, inputs, outputs, initializers=(), name="g"):
    return fields(1, nodes) + field(2, name) + fields(5, initializers) + fields(11, inputs) + fields(12, outputs)


def model(graph_bytes, opset=17, ir=8, functions=(), domains=()):
    return field(1, ir) + field(7, graph_bytes) + field(8, field(1, "") + field(2, opset)) + fields(25, functions) + \
        fields(8, (field(1, d) + field(2, v) for d, v in domains))
