/* Words across the diagonal, and rounding to bf16: how rows become what a tile wants. For files compiled per instruction set. */
#ifndef EBB_ENGINE_PACK_H
#define EBB_ENGINE_PACK_H

#include "workers/engine/cpu/isa.h"

#if defined(EBB_EMULATE) /* SIMDe 0.7.4 has no other name for it */
#define _mm512_shuffle_f32x4(a, b, imm) simde_mm512_shuffle_f32x4(a, b, imm)
#endif

enum { SLACK = 16 }; /* the last store of a tile may reach beyond it */

/* VL x VL words change places across the diagonal. */
INL void transpose(vf r[VL])
{
#if defined(EBB_EMULATE) && ISA_LEVEL == 2
    float t[VL][VL];
    for (int i = 0; i < VL; i++)
        for (int l = 0; l < VL; l++)
            t[l][i] = r[i][l];
    memcpy(r, t, sizeof t);
#elif ISA_LEVEL == 2
    __m256 t[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m256 lo = r[i], hi = r[i + 4];
        r[i] = _mm256_permute2f128_ps(lo, hi, 0x20);
        r[i + 4] = _mm256_permute2f128_ps(lo, hi, 0x31);
    }
#elif ISA_LEVEL == 3
    __m512 t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) { /* each 128-bit lane of r[i + c] now holds column c of four rows and four columns */
        r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        __m512 a = _mm512_shuffle_f32x4(r[c], r[4 + c], 0x88), b = _mm512_shuffle_f32x4(r[c], r[4 + c], 0xdd);
        __m512 d = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0x88), e = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0xdd);
        t[c] = _mm512_shuffle_f32x4(a, d, 0x88);
        t[4 + c] = _mm512_shuffle_f32x4(b, e, 0x88);
        t[8 + c] = _mm512_shuffle_f32x4(a, d, 0xdd);
        t[12 + c] = _mm512_shuffle_f32x4(b, e, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        r[i] = t[i];
#else
    _MM_TRANSPOSE4_PS(r[0], r[1], r[2], r[3]);
#endif
}

#if ISA_LEVEL == 2 && !defined(EBB_EMULATE)
/* The height of a tile: pairs of rows become words of 64 bits, and no store overlaps another. Lanes hold k and k + 4. */
INL void interleave6x8(const float *x, size_t ld, float *out)
{
    __m256d lo[3], hi[3];
#pragma GCC unroll 3
    for (int i = 0; i < 3; i++) {
        __m256 even = _mm256_loadu_ps(x + (size_t)(2 * i) * ld), odd = _mm256_loadu_ps(x + (size_t)(2 * i + 1) * ld);
        lo[i] = (__m256d)_mm256_unpacklo_ps(even, odd);
        hi[i] = (__m256d)_mm256_unpackhi_ps(even, odd);
    }
    __m256d v[6] = {_mm256_unpacklo_pd(lo[0], lo[1]), _mm256_shuffle_pd(lo[2], lo[0], 0xa), _mm256_unpackhi_pd(lo[1], lo[2]),
                    _mm256_unpacklo_pd(hi[0], hi[1]), _mm256_shuffle_pd(hi[2], hi[0], 0xa), _mm256_unpackhi_pd(hi[1], hi[2])};
#pragma GCC unroll 3
    for (int i = 0; i < 3; i++) {
        store(out + 8 * i, (vf)_mm256_permute2f128_pd(v[2 * i], v[2 * i + 1], 0x20));
        store(out + 24 + 8 * i, (vf)_mm256_permute2f128_pd(v[2 * i], v[2 * i + 1], 0x31));
    }
}
#endif

/* out[k][mr] = x[mr][k]. Groups of VL rows, the last first: what a store writes too much is written over by the next. */
INL void interleave(const uint32_t mr, uint32_t kd, const float *x, size_t ld, float *out)
{
    uint32_t k = 0;
#if ISA_LEVEL == 2 && !defined(EBB_EMULATE)
    if (mr == 6)
        for (; k + VL <= kd; k += VL)
            interleave6x8(x + k, ld, out + (size_t)k * 6);
#endif
    for (; k + VL <= kd; k += VL)
        for (int g = (int)((mr - 1) / VL); g >= 0; g--) {
            vf r[VL];
            uint32_t first = (uint32_t)g * VL;
#pragma GCC unroll 16
            for (uint32_t i = 0; i < VL; i++)
                r[i] = first + i < mr ? load(x + (first + i) * ld + k) : (vf){0};
            transpose(r);
#pragma GCC unroll 16
            for (uint32_t i = 0; i < VL; i++)
                store(out + (size_t)(k + i) * mr + first, r[i]);
        }
    for (; k < kd; k++)
        for (uint32_t i = 0; i < mr; i++)
            memcpy(out + (size_t)k * mr + i, x + i * ld + k, 4);
}

INL vf round_bf16(vf x)
{
    vu u = (vu)x;
    u = (u + 0x7fff + ((u >> 16) & 1)) & 0xffff0000;
    return choose(x != x, x, (vf)u);
}

/* As one number in 16 bits; NaN keeps being one. */
INL uint32_t bf16_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return x != x ? (u >> 16) | 0x40 : (u + 0x7fff + ((u >> 16) & 1)) >> 16;
}

#endif
