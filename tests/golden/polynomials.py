#!/usr/bin/env python3
"""How the coefficients of workers/engine/cpu/poly.h were made. Needs numpy (2.x when they were made).

Weighted least squares, with weights that grow where the error is largest, comes near the minimax fit; the result is then rounded
to f32 and its error measured with f32 arithmetic.
"""
import math

import numpy as np

f32 = np.float32


def reweight(w, err):
    w = w * (err / err.max() + 1e-2)
    return w / w.mean()


def mul_add(a, b, c):
    return (np.float64(a) * np.float64(b) + np.float64(c)).astype(f32)


def horner(coefficients, x):
    p = np.full_like(x, coefficients[-1])
    for c in coefficients[-2::-1]:
        p = mul_add(p, x, c)
    return p


def fit_exp():
    half = math.log(2) / 2 * 1.001
    r = np.cos(np.pi * (np.arange(4000) + 0.5) / 4000) * half
    want = np.array([(math.expm1(v) - v) / v**2 if abs(v) > 1e-3 else 0.5 + v / 6 + v * v / 24 for v in r])
    a, relative, w = np.vander(r, 5, increasing=True), r**2 / np.exp(r) + 1e-6, np.ones_like(r)
    for _ in range(60):
        root = (relative * np.sqrt(w))
        c = np.linalg.lstsq(a * root[:, None], want * root, rcond=None)[0]
        w = reweight(w, abs((a @ c - want) * relative))
    c = [f32(v) for v in c]
    x = np.linspace(-87, 0, 2000001).astype(f32)
    magic, hi = f32(12582912), f32(0.693359375)
    lo = f32(math.log(2) - 0.693359375)
    n = mul_add(x, f32(1 / math.log(2)), magic) - magic
    r = mul_add(n, -lo, mul_add(n, -hi, x))
    y = np.float64(horner([f32(1), f32(1)] + c, r)) * np.exp2(np.float64(n))
    print("EXP_LN2_LO", float(lo).hex())
    print("EXP_E", [float(v).hex() for v in c], "relative error", np.max(abs(y / np.exp(np.float64(x)) - 1)))


def fit_erf(over=5, under=5, end=3.85):
    n = 6000
    z = (np.cos(np.pi * (np.arange(n) + 0.5) / n) + 1) / 2 * end + 1e-9
    t, want = z * z, np.array([math.erf(v) / v for v in z])
    q, w, best = np.ones(n), np.ones(n), (1, None)
    for _ in range(200):
        root = np.sqrt(w) / (want * q)
        a = np.hstack([np.vander(t, over + 1, increasing=True), -want[:, None] * np.vander(t, under + 1, increasing=True)[:, 1:]])
        size = np.max(abs(a * root[:, None]), axis=0)
        s = np.linalg.lstsq(a * root[:, None] / size, want * root, rcond=None)[0] / size
        p = np.vander(t, over + 1, increasing=True) @ s[: over + 1]
        q = 1 + np.vander(t, under + 1, increasing=True)[:, 1:] @ s[over + 1:]
        err = abs(p / q / want - 1)
        if err.max() < best[0]:
            best = (err.max(), s)
        w = reweight(w, err)
    p = [f32(v) for v in best[1][: over + 1]]
    q = [f32(1)] + [f32(v) for v in best[1][over + 1:]]
    x = np.linspace(0, 6, 100001).astype(f32)
    a = np.minimum(x, f32(end))
    y = np.minimum((a * horner(p, a * a)) / horner(q, a * a), f32(1))
    print("ERF_P", [float(v).hex() for v in p])
    print("ERF_Q", [float(v).hex() for v in q])
    print("absolute error", np.max(abs(np.float64(y) - [math.erf(float(v)) for v in x])))


def fit_log(terms=9):
    low, high = math.sqrt(0.5) - 1, math.sqrt(2) - 1
    f = (np.cos(np.pi * (np.arange(6000) + 0.5) / 6000) + 1) / 2 * (high - low) + low
    want = np.array([(math.log1p(v) - v + v * v / 2) / v**3 if abs(v) > 1e-2 else 1 / 3 - v / 4 + v * v / 5 - v**3 / 6 for v in f])
    relative, w = abs(f**3 / np.log1p(f)), np.ones_like(f)
    a = np.vander(f, terms, increasing=True)
    for _ in range(60):
        root = (relative + 1e-4) * np.sqrt(w)
        c = np.linalg.lstsq(a * root[:, None], want * root, rcond=None)[0]
        w = reweight(w, abs((a @ c - want) * relative))
    c = [f32(v) for v in c]
    x = np.exp(np.linspace(-80, 80, 2000001)).astype(f32)
    m, e = np.frexp(x)
    small = m < f32(math.sqrt(0.5))
    m, e = np.where(small, m * f32(2), m).astype(f32), np.where(small, e - 1, e).astype(f32)
    f = m - f32(1)
    y = mul_add(e, f32(math.log(2) - 0.693359375), f * f * f * horner(c, f))
    y = mul_add(e, f32(0.693359375), f + mul_add(f * f, f32(-0.5), y))
    want = np.log(np.float64(x))
    print("LOG_P", [float(v).hex() for v in c], "error over max(|log|, 1)", np.max(abs(y - want) / np.maximum(abs(want), 1)))


fit_exp()
fit_erf()
fit_log()
