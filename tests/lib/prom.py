"""A strict reader of Prometheus' text format 0.0.4, for tests: more particular than Prometheus itself."""
import http.client
import re

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"')
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def get(port, path, host="127.0.0.1", timeout=30, method="GET", body=None):
    """(status, content type, text)"""
    c = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        c.request(method, path, body=body)
        r = c.getresponse()
        return r.status, r.getheader("Content-Type"), r.read().decode("utf-8")
    finally:
        c.close()


def _labels(text, line):
    found, at = {}, 0
    while at < len(text):
        m = LABEL.match(text, at)
        assert m, f"labels in {line!r}"
        assert m[1] not in found, f"label {m[1]} twice in {line!r}"
        found[m[1]] = re.sub(r"\\(.)", lambda x: {"n": "\n"}.get(x[1], x[1]), m[2])
        at = m.end()
        if at < len(text):
            assert text[at] == ",", line
            at += 1
    return found


def parse(text):
    """{(name, ((label, value), ...)): float}; raises when anything is out of order."""
    assert text.endswith("\n"), "the last line has no end"
    samples, types, helps, seen = {}, {}, {}, []
    for line in text.split("\n")[:-1]:
        assert line and line == line.strip(), repr(line)
        if line.startswith("# "):
            kind, name, rest = line[2:].split(" ", 2)
            assert kind in ("HELP", "TYPE") and NAME.fullmatch(name), line
            to = helps if kind == "HELP" else types
            assert name not in to, f"{kind} {name} twice"
            to[name] = rest
            if kind == "TYPE":
                assert rest in ("counter", "gauge", "histogram"), line
                assert name in helps, f"no HELP before {line}"
                seen.append(name)
            continue
        m = re.fullmatch(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)", line)
        assert m, repr(line)
        name, value = m[1], float(m[3])
        family = name if name in types else re.sub(r"_(bucket|sum|count)$", "", name)
        assert family in types, f"{name} has no TYPE"
        assert seen[-1] == family, f"{name} does not stand under its own heading"
        assert (types[family] == "histogram") == (family != name), line
        assert types[family] != "counter" or (name.endswith("_total") and value >= 0), line
        labels = _labels(m[2] or "", line)
        key = (name, tuple(sorted(labels.items())))
        assert key not in samples, f"{line} twice"
        assert value == value and (value >= 0 or types[family] == "gauge"), line
        samples[key] = value
    for family, kind in types.items():
        if kind != "histogram":
            continue
        buckets = [(float(dict(k[1])["le"]), v) for k, v in samples.items() if k[0] == family + "_bucket"]
        assert buckets == sorted(buckets), family
        assert all(a[1] <= b[1] for a, b in zip(buckets, buckets[1:])), f"{family} does not grow"
        assert buckets[-1][0] == float("inf") and buckets[-1][1] == samples[(family + "_count", ())], family
        assert (family + "_sum", ()) in samples
    return samples


def scrape(port, **more):
    status, kind, text = get(port, "/metrics", **more)
    assert (status, kind) == (200, CONTENT_TYPE), (status, kind, text[:400])
    return parse(text)


def one(samples, series, **labels):
    return samples[(series, tuple(sorted(labels.items())))]


def total(samples, series, **labels):
    return sum(v for k, v in samples.items() if k[0] == series and labels.items() <= dict(k[1]).items())
