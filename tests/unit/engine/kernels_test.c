/* Every fast kernel against the naive one, bit by bit, on random shapes; the naive product against OpenBLAS, to a tolerance.
   Buffers have guard values behind each row, so that a kernel which writes outside its rows is seen. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/engine/arrays.h"
#include "workers/engine/ops/linear.h"

/* Same class: same bits. x86-bf16-dp is a class of its own, near the other. */
static void compare_classes(const struct kernels *k, enum precision p, const float *got, const float *want, size_t ld, uint32_t m, uint32_t n,
                            float size, const char *what)
{
    if (strcmp(k->product[p].numerics, kernels_reference.product[p].numerics) == 0) {
        same(got, ld, want, ld, m, n, what);
        return;
    }
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t j = 0; j < n; j++)
            if (!(fabsf(got[i * ld + j] - want[i * ld + j]) <= 1e-6f * size))
                fail_msg("%s: row %u, element %u: %g, not near %g", what, i, j, (double)got[i * ld + j], (double)want[i * ld + j]);
}

static void check_linear(enum precision p, uint32_t m, uint32_t n, uint32_t k, enum act act, int with_res)
{
    size_t lda = k + below(20), ldc = n + below(20), ldr = n + below(20);
    float *a = randoms(m * lda, 2), *w = randoms((size_t)n * k, 1), *bias = randoms(n, 1), *res = randoms(m * ldr, 1);
    float *want = guarded(m, ldc), *got = NULL, *turned = floats((size_t)n * k);
    struct linear l, other;
    struct epilogue e = {.act = act, .p = 0.3f, .q = 0.6f, .res = with_res ? res : NULL, .ldres = ldr, .res_first = with_res > 1};
    for (uint32_t j = 0; j < n; j++)
        for (uint32_t i = 0; i < k; i++)
            turned[(size_t)i * n + j] = w[(size_t)j * k + i];
    assert_int_equal(linear_init(&l, &kernels_reference, p, n, k, NULL), ST_OK);
    linear_set(&l, 0, n, w, bias);
    linear_apply(&l, m, a, lda, &e, want, ldc);
    linear_release(&l);
    for (int i = 0; i < fast_n; i++) {
        char what[128];
        snprintf(what, sizeof what, "%s, precision %d: %u x %u x %u, act %d, residual %d", fast[i]->name, (int)p, m, n, k, (int)act, with_res);
        got = guarded(m, ldc);
        assert_int_equal(linear_init(&l, fast[i], p, n, k, NULL), ST_OK);
        uint32_t part = below(n + 1); /* as two projections that share a product */
        if (below(2)) {
            linear_set(&l, 0, part, w, bias);
            linear_set(&l, part, n - part, w + (size_t)part * k, bias + part);
        } else
            linear_set_strided(&l, 0, n, turned, 1, n, bias);
        size_t size = linear_packed_bytes(fast[i], p, n, k); /* as if it came from a file */
        void *block = mem_aligned(size);
        assert_non_null(block);
        memcpy(block, l.packed, size);
        linear_release(&l);
        linear_bind(&other, fast[i], p, n, k, block);
        linear_apply(&other, m, a, lda, &e, got, ldc);
        linear_release(&other);
        compare_classes(fast[i], p, got, want, ldc, m, n, (float)k * 4 + 4, what);
        mem_free(block);
        mem_free(got);
    }
    mem_free(a);
    mem_free(w);
    mem_free(bias);
    mem_free(res);
    mem_free(want);
    mem_free(turned);
}

static void linear_equals_reference(void **state)
{
    (void)state;
    for (enum precision p = 0; p < PRECISIONS; p++) {
        for (int i = 0; i < 100; i++)
            check_linear(p, 1 + below(40), 1 + below(100), 1 + below(90), (enum act)below(ACT_EXP), (int)below(3));
        /* beyond one block of k, one block of rows, and the exact edges of tiles and panels */
        check_linear(p, 7, 33, 385, ACT_NONE, 1);
        check_linear(p, 14, 64, 768, ACT_GELU, 0);
        check_linear(p, 5, 40, 1153, ACT_GELU_TANH, 1);
        check_linear(p, 3, 17, 3075, ACT_NONE, 1);
        check_linear(p, 97, 32, 65, ACT_NONE, 0);
        check_linear(p, 193, 17, 31, ACT_RELU, 1);
        check_linear(p, 1, 1, 1, ACT_NONE, 0);
        check_linear(p, 6, 16, 384, ACT_NONE, 1);
        check_linear(p, 13, 48, 384, ACT_GELU, 0);
        check_linear(p, 15, 50, 70, ACT_TANH, 2);
    }
}

/* An element has the same bits whatever rows are beside it. */
static void linear_rows_are_independent(void **state)
{
    (void)state;
    enum { M = 61, N = 50, K = 400 };
    float *a = randoms(M * K, 1), *w = randoms(N * K, 1), *bias = randoms(N, 1);
    for (int i = 0; i < fast_n; i++) {
        struct linear l;
        assert_int_equal(linear_init(&l, fast[i], PREC_F32, N, K, NULL), ST_OK);
        linear_set(&l, 0, N, w, bias);
        float *all = guarded(M, N), *some = guarded(M, N);
        linear_run(&l, M, a, K, ACT_GELU, NULL, 0, all, N);
        for (int t = 0; t < 20; t++) {
            uint32_t first = below(M), m = 1 + below(M - first);
            linear_run(&l, m, a + first * K, K, ACT_GELU, NULL, 0, some, N);
            assert_memory_equal(some, all + first * N, m * N * sizeof *all);
        }
        mem_free(all);
        mem_free(some);
        linear_release(&l);
    }
    mem_free(a);
    mem_free(w);
    mem_free(bias);
}

static void linear_near_openblas(void **state)
{
    (void)state;
    openblas_set_num_threads(1);
    for (int t = 0; t < 12; t++) {
        uint32_t m = 1 + below(60), n = 1 + below(200), k = 1 + below(900);
        float *a = randoms((size_t)m * k, 1), *w = randoms((size_t)n * k, 1), *bias = floats(n), *want = floats((size_t)m * n),
              *got = floats((size_t)m * n);
        memset(bias, 0, n * sizeof *bias);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)m, (int)n, (int)k, 1, a, (int)k, w, (int)k, 0, want, (int)n);
        for (int i = 0; i < fast_n; i++) {
            struct linear l;
            assert_int_equal(linear_init(&l, fast[i], PREC_F32, n, k, NULL), ST_OK);
            linear_set(&l, 0, n, w, bias);
            linear_run(&l, m, a, k, ACT_NONE, NULL, 0, got, n);
            linear_release(&l);
            for (size_t j = 0; j < (size_t)m * n; j++)
                if (!(fabsf(got[j] - want[j]) <= 2e-6f * sqrtf((float)k) * 4))
                    fail_msg("%s: element %zu of %u x %u x %u: %g, not %g", fast[i]->name, j, m, n, k, (double)got[j],
                             (double)want[j]);
        }
        mem_free(a);
        mem_free(w);
        mem_free(bias);
        mem_free(want);
        mem_free(got);
    }
}

static void attention_equals_reference(void **state)
{
    (void)state;
    for (int t = 0; t < 120; t++) {
        uint32_t len = 1 + below(t < 100 ? 50 : 200), dim = 1 + below(70);
        if (t % 3 == 0)
            dim = t % 2 ? 32 : 64;
        size_t ld = 3 * dim + below(20), ldo = dim + below(20);
        float *qkv = randoms(len * ld, t % 4 == 0 ? 20 : 2), *want = guarded(len, ldo);
        struct attention_args a = {.len = len, .dim = dim, .q = qkv, .k = qkv + dim, .v = qkv + 2 * dim, .ld = ld,
                                   .scale = 1 / sqrtf((float)dim), .out = want, .ldo = ldo};
        float *bias = randoms((size_t)2 * len + (size_t)len * len, 2);
        if (t % 2) { /* of the distance: one row that slides to the left */
            a.bias = bias + len;
            a.ldbias = -1;
        } else if (t % 4 == 0) {
            a.bias = bias;
            a.ldbias = (ptrdiff_t)len + 1;
        }
        a.precision = t % 5 == 0 ? PREC_BF16 : PREC_F32;
        a.scratch = floats(attention_scratch(&kernels_reference, len, dim));
        kernels_reference.attention(&a);
        mem_free(a.scratch);
        for (int i = 0; i < fast_n; i++) {
            char what[64];
            snprintf(what, sizeof what, "%s: attention %d, %u tokens of %u", fast[i]->name, t, len, dim);
            float *got = a.out = guarded(len, ldo);
            a.scratch = floats(attention_scratch(fast[i], len, dim));
            fast[i]->attention(&a);
            same(got, ldo, want, ldo, len, dim, what);
            mem_free(a.scratch);
            mem_free(got);
        }
        mem_free(bias);
        mem_free(qkv);
        mem_free(want);
    }
}

/* The naive attention itself, against the definition in double. */
static void reference_attention_is_right(void **state)
{
    (void)state;
    enum { LEN = 23, DIM = 12 };
    float *qkv = randoms(LEN * 3 * DIM, 2), *out = floats(LEN * DIM), scratch[LEN], *bias = randoms(2 * LEN, 1);
    kernels_reference.attention(&(struct attention_args){.len = LEN, .dim = DIM, .q = qkv, .k = qkv + DIM, .v = qkv + 2 * DIM,
                                                         .ld = 3 * DIM, .scale = 0.25f, .out = out, .ldo = DIM,
                                                         .bias = bias + LEN, .ldbias = -1, .scratch = scratch});
    for (int i = 0; i < LEN; i++) {
        double p[LEN], sum = 0;
        for (int j = 0; j < LEN; j++) {
            double dot = 0;
            for (int d = 0; d < DIM; d++)
                dot += (double)qkv[i * 3 * DIM + d] * (double)qkv[j * 3 * DIM + DIM + d];
            sum += p[j] = exp(dot / 4 + (double)bias[LEN - i + j]);
        }
        for (int d = 0; d < DIM; d++) {
            double y = 0;
            for (int j = 0; j < LEN; j++)
                y += p[j] / sum * (double)qkv[j * 3 * DIM + 2 * DIM + d];
            assert_true(fabs(y - (double)out[i * DIM + d]) < 2e-6);
        }
    }
    mem_free(qkv);
    mem_free(out);
    mem_free(bias);
}

static void norm_equals_reference(void **state)
{
    (void)state;
    for (int t = 0; t < 60; t++) {
        uint32_t rows = 1 + below(5), n = 1 + below(130);
        size_t ldx = n + below(9), ldy = n + below(9);
        float *x = randoms(rows * ldx, 3), *gamma = randoms(n, 1), *beta = randoms(n, 1), *want = guarded(rows, ldy);
        kernels_reference.norm(rows, n, x, ldx, gamma, beta, 1e-12f, want, ldy);
        for (int i = 0; i < fast_n; i++) {
            float *got = guarded(rows, ldy);
            fast[i]->norm(rows, n, x, ldx, gamma, beta, 1e-12f, got, ldy);
            same(got, ldy, want, ldy, rows, n, fast[i]->name);
            mem_free(got);
        }
        double mean = 0, var = 0;
        for (uint32_t j = 0; j < n; j++)
            mean += (double)x[j] / n;
        for (uint32_t j = 0; j < n; j++)
            var += ((double)x[j] - mean) * ((double)x[j] - mean) / n;
        for (uint32_t j = 0; j < n && n > 8; j++)
            assert_true(fabs(((double)x[j] - mean) / sqrt(var + 1e-12) * (double)gamma[j] + (double)beta[j] - (double)want[j]) < 1e-5);
        mem_free(x);
        mem_free(gamma);
        mem_free(beta);
        mem_free(want);
    }
}

static void ends_equal_reference(void **state)
{
    (void)state;
    for (int t = 0; t < 60; t++) {
        uint32_t len = 1 + below(30), n = 1 + below(90), vocab = 1 + below(50);
        float *word = randoms((size_t)vocab * n, 1), *position = randoms((size_t)len * n, 1), *type = randoms(n, 1);
        int32_t ids[30];
        for (uint32_t i = 0; i < len; i++)
            ids[i] = (int32_t)below(vocab);
        size_t ld = n + below(9);
        enum pooling how = (enum pooling)below(4);
        float *want = guarded(len, ld), *pooled = guarded(1, n + 1), *scaled = guarded(1, n + 1);
        kernels_reference.embed(len, n, ids, word, position, type, want, ld);
        kernels_reference.pool(how, len, n, want, ld, pooled);
        memcpy(scaled, pooled, n * sizeof *scaled);
        kernels_reference.unit(n, scaled);
        double length = 0;
        for (uint32_t j = 0; j < n; j++)
            length += (double)scaled[j] * (double)scaled[j];
        assert_true(fabs(length - 1) < 1e-6);
        for (int i = 0; i < fast_n; i++) {
            float *got = guarded(len, ld), *p = guarded(1, n + 1);
            fast[i]->embed(len, n, ids, word, position, type, got, ld);
            same(got, ld, want, ld, len, n, "embed");
            fast[i]->pool(how, len, n, got, ld, p);
            same(p, n + 1, pooled, n + 1, 1, n, "pool");
            fast[i]->unit(n, p);
            same(p, n + 1, scaled, n + 1, 1, n, "unit");
            mem_free(got);
            mem_free(p);
        }
        mem_free(word);
        mem_free(position);
        mem_free(type);
        mem_free(want);
        mem_free(pooled);
        mem_free(scaled);
    }
    float zero[5] = {0};
    kernels_reference.unit(5, zero);
    for (int i = 0; i < 5; i++)
        assert_true(zero[i] == 0);
}

/* a * b + c, rounded once, for all kinds of exponents: subnormal results, cancellation, half-way cases. */
static void multiply_add_rounds_once(void **state)
{
    (void)state;
    enum { ROWS = 64 };
    for (int t = 0; t < 400; t++) {
        float a[2 * ROWS], w[2], want[ROWS], got[ROWS], bias = 0;
        uint32_t spread = 1 + below(250);
        for (int i = 0; i < 2 * ROWS + 2; i++) {
            float *to = i < 2 * ROWS ? a + i : w + (i - 2 * ROWS);
            uint32_t exponent = 127 - spread / 2 + below(spread), bits = below(2) << 31 | exponent << 23 | below(1 << 23);
            if (below(3) == 0)
                bits &= 0xffff0000; /* short fractions meet half-way cases */
            memcpy(to, &bits, 4);
        }
        for (int i = 0; i < ROWS; i++) {
            if (below(4) == 0) /* nearly cancels */
                a[2 * i + 1] = -(a[2 * i] * w[0]) / w[1];
            want[i] = fmaf(a[2 * i + 1], w[1], fmaf(a[2 * i], w[0], 0));
        }
        for (int i = 0; i < fast_n; i++) {
            struct linear l;
            assert_int_equal(linear_init(&l, fast[i], PREC_F32, 1, 2, NULL), ST_OK);
            linear_set(&l, 0, 1, w, &bias);
            linear_run(&l, ROWS, a, 2, ACT_NONE, NULL, 0, got, 1);
            linear_release(&l);
            for (int r = 0; r < ROWS; r++) {
                float sum = want[r] + bias;
                if (isnan(sum) ? !isnan(got[r]) : memcmp(&got[r], &sum, 4) != 0)
                    fail_msg("%s: %a * %a + %a * %a = %a, not %a", fast[i]->name, (double)a[2 * r], (double)w[0],
                             (double)a[2 * r + 1], (double)w[1], (double)got[r], (double)sum);
            }
        }
    }
}

static void unknown_isa_is_refused(void **state)
{
    (void)state;
    const struct kernels *k = NULL;
    struct err e;
    assert_int_equal(cpu_kernels("sse9", &k, &e), ST_USER);
    assert_string_equal(e.text, "unknown instruction set 'sse9': it is one of auto, avx512bf16, avx512vnni, avx512, avx2vnni, avx2, generic");
    assert_null(k);
    assert_int_equal(cpu_kernels("auto", &k, &e), ST_OK);
    assert_ptr_equal(k, fast[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(multiply_add_rounds_once),
        cmocka_unit_test(linear_equals_reference),   cmocka_unit_test(linear_rows_are_independent),
        cmocka_unit_test(linear_near_openblas),      cmocka_unit_test(reference_attention_is_right),
        cmocka_unit_test(attention_equals_reference), cmocka_unit_test(norm_equals_reference),
        cmocka_unit_test(ends_equal_reference),      cmocka_unit_test(unknown_isa_is_refused),
    };
    return cmocka_run_group_tests(tests, pick_kernels, NULL);
}
