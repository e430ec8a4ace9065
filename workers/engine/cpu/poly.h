/* The numbers behind exp, erf and tanh, shared by all kernels so that all give the same bits.
   Fitted by weighted least squares (tests/golden/polynomials.py), then rounded to f32.
   exp: relative error below 8e-8 on [-87, 0]; erf: absolute error below 3e-7. */
#ifndef EBB_ENGINE_POLY_H
#define EBB_ENGINE_POLY_H

/* exp(x) = 2^n * (1 + r + r^2 * (E0 + E1 r + .. + E4 r^4)), n = round(x / ln 2), r = x - n * LN2_HI - n * LN2_LO.
   Adding ROUND_MAGIC = 1.5 * 2^23 leaves round(x) in the low bits of the sum. Where x <= 0 is known, the result below EXP_MIN is 0;
   for any x, it is held within EXP_LOWEST..EXP_HIGHEST, beyond which the result is 0 or infinite, and 2^n is applied in two steps. */
#define EXP_MIN -87.0f
#define EXP_LOWEST -104.0f
#define EXP_HIGHEST 89.0f
#define EXP_LOG2E 0x1.715476p+0f
#define EXP_LN2_HI 0x1.63p-1f
#define EXP_LN2_LO -0x1.bd0106p-13f
#define EXP_ROUND_MAGIC 12582912.0f
#define EXP_E0 0x1.fffffcp-2f
#define EXP_E1 0x1.55549p-3f
#define EXP_E2 0x1.5558f4p-5f
#define EXP_E3 0x1.123a6cp-7f
#define EXP_E4 0x1.6a2352p-10f

/* erf(z) = min(a, ERF_MAX) P(a^2) / Q(a^2) with the sign of z, a = |z|, at most 1 */
#define ERF_MAX 3.85f
#define ERF_P0 0x1.20dd74p+0f
#define ERF_P1 0x1.80d15cp-3f
#define ERF_P2 0x1.adea58p-5f
#define ERF_P3 0x1.e18ed6p-9f
#define ERF_P4 0x1.2b8d74p-12f
#define ERF_P5 0x1.1af742p-19f
#define ERF_Q1 0x1.ffd9cep-2f
#define ERF_Q2 0x1.cf61p-4f
#define ERF_Q3 0x1.e479c8p-7f
#define ERF_Q4 0x1.2c4a3cp-10f
#define ERF_Q5 0x1.44e7ccp-15f

/* log(m 2^e) = e LN2_HI + (f - f^2/2 + (f^3 P(f) + e LN2_LO)), f = m - 1, m from sqrt(1/2) on, whose bits LOG_SQRT_HALF are.
   LN2 as for exp. Absolute error below 8e-8 of max(|log|, 1). */
#define LOG_SQRT_HALF 0x3f3504f3
#define LOG_P0 0x1.555548p-2f
#define LOG_P1 -0x1.000006p-2f
#define LOG_P2 0x1.99a4b6p-3f
#define LOG_P3 -0x1.555c4ep-3f
#define LOG_P4 0x1.233766p-3f
#define LOG_P5 -0x1.fc220ep-4f
#define LOG_P6 0x1.e6f08cp-4f
#define LOG_P7 -0x1.de3bfap-4f
#define LOG_P8 0x1.145740p-4f

/* gelu(x) = x/2 (1 + erf(x / sqrt 2));  gelu_new(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
#define GELU_SQRT_HALF 0x1.6a09e6p-1f
#define GELU_TANH_C 0x1.988454p-1f
#define GELU_TANH_CUBE 0x1.6e4e26p-5f

#endif
