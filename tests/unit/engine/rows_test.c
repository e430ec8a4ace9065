/* Functions of elements and of rows, and products of two things made at run time: right against the C library's doubles, and the same bits in every
   table. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "tests/unit/engine/arrays.h"

static const float P = 0.3f, Q = 0.6f;

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double right(enum act f, double x)
{
    double p = (double)P, q = (double)Q, hard = fmin(fmax(p * x + q, 0), 1);
    switch (f) {
    case ACT_GELU: return x / 2 * (1 + erf(x / sqrt(2)));
    case ACT_GELU_TANH: return x / 2 * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case ACT_RELU: return fmax(x, 0);
    case ACT_TANH: return tanh(x);
    case ACT_SILU: return x * sigmoid(x);
    case ACT_SIGMOID: return sigmoid(x);
    case ACT_CLIP: return fmin(fmax(x, p), q);
    case ACT_LEAKY_RELU: return x < 0 ? p * x : x;
    case ACT_HARD_SIGMOID: return hard;
    case ACT_HARD_SWISH: return x * hard;
    case ACT_QUICK_GELU: return x * sigmoid(p * x);
    case ACT_ELU: return x < 0 ? p * expm1(x) : x;
    case ACT_SOFTPLUS: return fmax(x, 0) + log1p(exp(-fabs(x)));
    case ACT_EXP: return exp(x);
    case ACT_LOG: return log(x);
    case ACT_ERF: return erf(x);
    case ACT_NONE:
    case ACTS: break;
    }
    return x;
}

static void same_in_all(enum act f, size_t n, const float *x, const float *want)
{
    float *got = floats(n + 1);
    for (int i = 0; i < fast_n; i++) {
        uint32_t guard = GUARD, after;
        memcpy(got + n, &guard, 4);
        fast[i]->vec.map(f, P, Q, n, x, got);
        for (size_t j = 0; j < n; j++)
            if (memcmp(got + j, want + j, 4) != 0 && !(isnan(got[j]) && isnan(want[j])))
                fail_msg("%s: function %d of %a is %a, not %a", fast[i]->name, (int)f, (double)x[j], (double)got[j], (double)want[j]);
        memcpy(&after, got + n, 4);
        assert_int_equal(after, GUARD);
        memcpy(got, x, n * sizeof *x); /* in place */
        fast[i]->vec.map(f, P, Q, n, got, got);
        for (size_t j = 0; j < n; j++)
            assert_true(memcmp(got + j, want + j, 4) == 0 || isnan(want[j]));
    }
    mem_free(got);
}

static void functions_are_right(void **state)
{
    (void)state;
    enum { N = 20003 };
    float *x = floats(N), *y = floats(N);
    for (enum act f = ACT_NONE; f < ACTS; f++) {
        for (int i = 0; i < N; i++)
            x[i] = (float)(i - N / 2) / 800; /* -12.5 .. 12.5 */
        kernels_reference.vec.map(f, P, Q, N, x, y);
        for (int i = 0; i < N; i++) {
            if (f == ACT_LOG && x[i] <= 0)
                continue;
            double v = (double)x[i], want = right(f, v), room = f == ACT_EXP ? 3e-7 * want : 5e-7 * (1 + fabs(v));
            if (!(fabs((double)y[i] - want) <= room))
                fail_msg("function %d of %g is %.9g, not %.9g", (int)f, v, (double)y[i], want);
        }
        same_in_all(f, N, x, y);
    }
    mem_free(x);
    mem_free(y);
}

/* Near zero tanh, erf and exp(x) - 1 keep their relative precision. */
static void small_arguments_are_right(void **state)
{
    (void)state;
    static const enum act which[] = {ACT_TANH, ACT_ERF, ACT_ELU};
    for (int t = 0; t < 20000; t++) {
        float x = uniform() * ldexpf(1, -(int)below(30)), y;
        enum act f = which[t % 3];
        kernels_reference.vec.map(f, 1, 0, 1, &x, &y);
        double v = (double)x, want = f == ACT_TANH ? tanh(v) : f == ACT_ERF ? erf(v) : v < 0 ? expm1(v) : v;
        if (!(fabs((double)y - want) <= 5e-7 * fabs(want)))
            fail_msg("function %d of %g is %.9g, not %.9g", (int)f, v, (double)y, want);
    }
}

static void ends_of_the_range(void **state)
{
    (void)state;
    float x[] = {0, -0.0f, INFINITY, -INFINITY, NAN, 88.7f, 88.8f, -87.2f, -87.4f, -103, -104, -150, 1e-45f, 1e-38f, 3e38f, -3e38f, 1, 0.70710677f};
    enum { N = sizeof x / sizeof *x };
    float y[N];
    for (enum act f = ACT_NONE; f < ACTS; f++) {
        kernels_reference.vec.map(f, P, Q, N, x, y);
        assert_true(isnan(y[4])); /* NaN is never lost */
        same_in_all(f, N, x, y);
    }
    kernels_reference.vec.map(ACT_EXP, 0, 0, N, x, y);
    assert_true(y[0] == 1 && y[2] == INFINITY && y[3] == 0 && y[6] == INFINITY && y[11] == 0);
    assert_true(fabs((double)y[5] / exp((double)x[5]) - 1) < 3e-7 && fabs((double)y[9] - exp(-103)) < 1.5e-45);
    kernels_reference.vec.map(ACT_LOG, 0, 0, N, x, y);
    assert_true(y[0] == -INFINITY && y[1] == -INFINITY && y[2] == INFINITY && isnan(y[3]) && y[16] == 0);
    assert_true(fabs((double)y[12] - log((double)x[12])) < 1e-5 && fabs((double)y[14] - log((double)x[14])) < 1e-5);
    kernels_reference.vec.map(ACT_TANH, 0, 0, N, x, y);
    assert_true(y[2] == 1 && y[3] == -1 && y[15] == -1);
}

static void reductions_equal_reference(void **state)
{
    (void)state;
    const struct vec *r = &kernels_reference.vec;
    for (int t = 0; t < 200; t++) {
        uint32_t n = 1 + below(t < 150 ? 70 : 2000);
        float *x = randoms(n, t % 3 ? 3 : 40), *z = randoms(n, 1), *soft = guarded(1, n + 1), *logs = guarded(1, n + 1);
        double sum = 0, dot = 0, exps = 0;
        float top = r->max(n, x);
        for (uint32_t j = 0; j < n; j++) {
            sum += (double)x[j];
            dot += (double)x[j] * (double)z[j];
            exps += exp((double)x[j] - (double)top);
        }
        assert_true(fabs(sum - (double)r->sum(n, x)) < 1e-3 && fabs(dot - (double)r->dot(n, x, z)) < 1e-3);
        r->softmax(n, x, soft);
        r->log_softmax(n, x, logs);
        for (uint32_t j = 0; j < n; j++) {
            double p = exp((double)x[j] - (double)top) / exps;
            assert_true(fabs(p - (double)soft[j]) < 1e-6 && fabs((double)x[j] - (double)top - log(exps) - (double)logs[j]) < 1e-5);
        }
        for (int i = 0; i < fast_n; i++) {
            const struct vec *v = &fast[i]->vec;
            float a[] = {r->sum(n, x), r->max(n, x), r->min(n, x), r->squares(n, x, 0.5f), r->dot(n, x, z)};
            float b[] = {v->sum(n, x), v->max(n, x), v->min(n, x), v->squares(n, x, 0.5f), v->dot(n, x, z)};
            float *got = guarded(1, n + 1);
            same(b, 5, a, 5, 1, 5, fast[i]->name);
            v->softmax(n, x, got);
            same(got, n + 1, soft, n + 1, 1, n, "softmax");
            v->log_softmax(n, x, got);
            same(got, n + 1, logs, n + 1, 1, n, "log softmax");
            mem_free(got);
        }
        mem_free(x);
        mem_free(z);
        mem_free(soft);
        mem_free(logs);
    }
}

static void norms_equal_reference(void **state)
{
    (void)state;
    for (int t = 0; t < 100; t++) {
        uint32_t rows = 1 + below(4), n = 1 + below(130);
        size_t ldx = n + below(9), ldy = n + below(9);
        float *x = randoms(rows * ldx, 3), *gamma = randoms(n, 1), *beta = randoms(n, 1), *want = guarded(rows, ldy), *rms = guarded(rows, ldy);
        const float *g = t % 4 / 2 ? gamma : NULL, *b = t % 2 ? beta : NULL;
        kernels_reference.norm(rows, n, x, ldx, g, b, 1e-5f, want, ldy);
        kernels_reference.rms_norm(rows, n, x, ldx, g, 1e-5f, rms, ldy);
        double mean = 0, var = 0, squares = 0;
        for (uint32_t j = 0; j < n; j++)
            mean += (double)x[j] / n;
        for (uint32_t j = 0; j < n; j++) {
            var += ((double)x[j] - mean) * ((double)x[j] - mean) / n;
            squares += (double)x[j] * (double)x[j] / n;
        }
        for (uint32_t j = 0; j < n && n > 8; j++) {
            double scale = g ? (double)g[j] : 1, shift = b ? (double)b[j] : 0;
            assert_true(fabs(((double)x[j] - mean) / sqrt(var + 1e-5) * scale + shift - (double)want[j]) < 1e-5);
            assert_true(fabs((double)x[j] / sqrt(squares + 1e-5) * scale - (double)rms[j]) < 1e-5);
        }
        for (int i = 0; i < fast_n; i++) {
            float *got = guarded(rows, ldy);
            fast[i]->norm(rows, n, x, ldx, g, b, 1e-5f, got, ldy);
            same(got, ldy, want, ldy, rows, n, "norm");
            fast[i]->rms_norm(rows, n, x, ldx, g, 1e-5f, got, ldy);
            same(got, ldy, rms, ldy, rows, n, "rms norm");
            mem_free(got);
        }
        mem_free(x);
        mem_free(gamma);
        mem_free(beta);
        mem_free(want);
        mem_free(rms);
    }
}

/* Any strides of both sides, batches that repeat one of them, biases along rows and columns, k = 0. */
static void check_matmul(uint32_t batches, uint32_t m, uint32_t n, uint32_t k)
{
    size_t a_size = (size_t)m * k + 1, b_size = (size_t)k * n + 1, ldc = n + below(9), c_batch = m * ldc;
    int a_turned = (int)below(2), b_turned = (int)below(3), one_b = (int)below(2);
    float *a = randoms(batches * a_size, 1), *b = randoms(batches * b_size * 2, 1), *bias = randoms(n, 1), *rows = randoms(m, 1),
          *res = randoms(batches * c_batch, 1), *want = guarded(batches * m, ldc);
    struct matmul_args g = {.batches = batches, .m = m, .n = n, .k = k, .a = a, .b = b, .a_batch = a_size, .b_batch = one_b ? 0 : b_size,
                            .a_row = a_turned ? 1 : k, .a_col = a_turned ? m : 1,
                            .b_row = b_turned ? 1 : n, .b_col = b_turned ? k : 1, .c = want, .c_batch = c_batch, .ldc = ldc,
                            .e = {.act = (enum act)below(4), .bias = below(2) ? bias : NULL, .row_bias = below(2) ? rows : NULL,
                                  .res = below(2) ? res : NULL, .ldres = ldc, .res_first = (int)below(2)}};
    if (b_turned == 2) { /* every second element */
        g.b_row = 2 * (size_t)n;
        g.b_col = 2;
        g.b_batch = 0;
    }
    kernels_reference.matmul(&g);
    for (int i = 0; i < fast_n; i++) {
        char what[128];
        snprintf(what, sizeof what, "%s: matmul %u of %u x %u x %u, turned %d %d", fast[i]->name, batches, m, n, k, a_turned, b_turned);
        g.c = guarded(batches * m, ldc);
        g.scratch = floats(fast[i]->matmul_scratch(&g) + 1);
        fast[i]->matmul(&g);
        same(g.c, ldc, want, ldc, (size_t)batches * m, n, what);
        mem_free(g.scratch);
        mem_free(g.c);
    }
    mem_free(a);
    mem_free(b);
    mem_free(bias);
    mem_free(rows);
    mem_free(res);
    mem_free(want);
}

static void matmul_equals_reference(void **state)
{
    (void)state;
    for (int t = 0; t < 150; t++)
        check_matmul(1 + below(3), 1 + below(40), 1 + below(70), below(50));
    check_matmul(1, 3, 1100, 20); /* beyond a block of columns, of k, of rows */
    check_matmul(2, 17, 33, 900);
    check_matmul(1, 500, 20, 30);
    check_matmul(1, 1, 1, 0);
}

/* finish on a part of the rows of what a product elsewhere left */
static void finish_equals_reference(void **state)
{
    (void)state;
    for (int t = 0; t < 100; t++) {
        uint32_t m = 2 + below(10), n = 1 + below(60), row0 = below(m), rows = m - row0;
        size_t ldc = n + below(5);
        float *c = randoms(rows * ldc, 2), *bias = randoms(n, 1), *row_bias = randoms(m, 1), *res = randoms(m * n, 1), *want = guarded(rows, ldc);
        struct epilogue e = {.bias = t % 2 ? bias : NULL, .row_bias = t % 3 ? NULL : row_bias, .act = (enum act)below(ACT_EXP), .p = P, .q = Q,
                             .res = t % 5 ? res : NULL, .ldres = n, .res_first = (int)below(2)};
        for (uint32_t i = 0; i < rows; i++)
            memcpy(want + i * ldc, c + i * ldc, n * sizeof *c);
        kernels_reference.finish(&e, row0, rows, n, want, ldc);
        for (int k = 0; k < fast_n; k++) {
            float *got = guarded(rows, ldc);
            for (uint32_t i = 0; i < rows; i++)
                memcpy(got + i * ldc, c + i * ldc, n * sizeof *c);
            fast[k]->finish(&e, row0, rows, n, got, ldc);
            same(got, ldc, want, ldc, rows, n, "finish");
            mem_free(got);
        }
        mem_free(c);
        mem_free(bias);
        mem_free(row_bias);
        mem_free(res);
        mem_free(want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions_are_right),   cmocka_unit_test(small_arguments_are_right), cmocka_unit_test(ends_of_the_range),
        cmocka_unit_test(reductions_equal_reference), cmocka_unit_test(norms_equal_reference), cmocka_unit_test(matmul_equals_reference),
        cmocka_unit_test(finish_equals_reference),
    };
    return cmocka_run_group_tests(tests, pick_kernels, NULL);
}
