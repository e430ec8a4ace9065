/* Every fast convolution against the naive one, bit by bit, on random shapes, strides, paddings, dilations and groups; an image alone
   against the same image in a batch; pools by the same means; integer products. Guard values lie behind every buffer. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/mem.h"
#include "workers/engine/cpu/conv_int.h"
#include "workers/engine/cpuinfo.h"

/* The tiles of AVX-512 on whatever processor this is: conv_wide */
#define EBB_EMULATE
#define ISA wide
#define ISA_LEVEL 3
#include "workers/engine/cpu/conv.c"

static uint64_t seed = 7;

static uint32_t below(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % n);
}

enum { GUARDS = 64 };

static float *floats(size_t n)
{
    float *p = mem_aligned((n + GUARDS) * sizeof *p);
    assert_non_null(p);
    for (size_t i = 0; i < n + GUARDS; i++)
        p[i] = ((float)below(1 << 16) - 32768) / 32768;
    for (size_t i = n; i < n + GUARDS; i++)
        p[i] = 12345;
    return p;
}

static void check_guards(const float *p, size_t n)
{
    for (size_t i = n; i < n + GUARDS; i++)
        assert_true(p[i] == 12345);
}

static float *run(const struct conv_kernels *k, struct conv_args g, const float *w, size_t n_out)
{
    float *packed = floats(k->packed(&g)), *y = floats(n_out);
    size_t room = k->scratch(&g) / sizeof(float) + 1;
    float *scratch = floats(room);
    k->pack(&g, w, packed);
    check_guards(packed, k->packed(&g));
    g.packed = packed;
    g.scratch = scratch;
    g.y = y;
    k->run(&g);
    check_guards(y, n_out);
    check_guards(scratch, room);
    mem_free(packed);
    mem_free(scratch);
    return y;
}

struct shape {
    struct conv_args g;
    size_t in, out, w;
};

/* 0 when the window does not fit */
static int random_shape(struct shape *s)
{
    struct conv_args *g = &s->g;
    static const uint32_t sizes[] = {1, 2, 3, 5, 7, 8, 9, 13, 16, 17, 32, 33, 41};
    int depthwise = below(3) == 0;
    *g = (struct conv_args){.batch = 1 + below(3), .groups = depthwise ? 2 + below(5) : 1 + below(4) / 3 * below(3)};
    g->ic = depthwise ? 1 : 1 + below(20);
    g->oc = depthwise ? 1 + below(2) : 1 + below(40);
    if (below(8) == 0 && !depthwise)
        g->ic = 100 + below(300);
    uint32_t flat = below(4);
    for (int i = 0; i < 3; i++) {
        int used = i >= (int)(flat == 0 ? 0 : flat == 1 ? 2 : 1);
        g->kernel[i] = used ? 1 + below(4) / 3 * 2 + below(3) : 1;
        g->stride[i] = used ? 1 + below(4) / 2 * below(3) : 1;
        g->dilation[i] = used ? 1 + below(4) / 3 * below(3) : 1;
        g->in[i] = used ? sizes[below(flat == 0 ? 6 : 13)] : 1;
        g->pad[i] = used ? (int32_t)below(4) - (below(6) == 0) * 2 : 0;
        int64_t behind = below(4), room = (int64_t)g->in[i] + g->pad[i] + behind - (g->kernel[i] - 1) * g->dilation[i] - 1;
        if (!used)
            room = 0;
        if (room < 0)
            return 0;
        g->out[i] = (uint32_t)(room / g->stride[i]) + 1;
    }
    if (below(2) == 0 && !depthwise && flat > 1) { /* 3 x 3, as Winograd's way takes it */
        g->groups = 1;
        for (int i = 1; i < 3; i++) {
            g->kernel[i] = 3, g->stride[i] = g->dilation[i] = 1, g->pad[i] = (int32_t)below(3);
            uint32_t whole = g->in[i] + (uint32_t)g->pad[i] + below(3);
            if (whole < 3)
                return 0;
            g->out[i] = whole - 2;
        }
    } else if (below(5) == 0)
        for (int i = 0; i < 3; i++) {
            g->kernel[i] = g->stride[i] = 1, g->pad[i] = 0;
            g->out[i] = g->in[i];
        }
    s->in = (size_t)g->batch * g->groups * g->ic * g->in[0] * g->in[1] * g->in[2];
    s->out = (size_t)g->batch * g->groups * g->oc * g->out[0] * g->out[1] * g->out[2];
    s->w = conv_reference.packed(g);
    return s->out * (s->w / g->oc / g->groups) < 6000000;
}

static uint32_t fast_tables(const struct conv_kernels *fast[4])
{
    const struct kernels *k;
    uint32_t n = 0;
    fast[n++] = &conv_generic;
    fast[n++] = &conv_wide;
    if (cpu_kernels("avx2", &k, NULL) == ST_OK)
        fast[n++] = conv_kernels_of(k);
    if (cpu_kernels("avx512", &k, NULL) == ST_OK)
        fast[n++] = conv_kernels_of(k);
    return n;
}

static void random_shapes(void **state)
{
    (void)state;
    const struct conv_kernels *fast[4];
    uint32_t n = fast_tables(fast);
    int done = 0;
    uint32_t winograds = 0;
    while (done < 400 || winograds < 60) {
        struct shape s;
        if (!random_shape(&s))
            continue;
        struct conv_args *g = &s.g;
        float *x = floats(s.in), *w = floats(s.w), *bias = floats(g->groups * g->oc), *res = floats(s.out);
        g->x = x;
        g->bias = below(2) ? bias : NULL;
        g->res = below(3) == 0 ? res : NULL;
        g->act = (enum conv_act)below(6);
        g->winograd = conv_can_winograd(g);
        winograds += (uint32_t)g->winograd;
        g->a = 0.2f, g->b = 0.5f;
        float *naive = run(&conv_reference, *g, w, s.out);
        for (uint32_t i = 0; i < n; i++) {
            float *y = run(fast[i], *g, w, s.out);
            if (memcmp(y, naive, s.out * sizeof *y))
                fail_msg("%s: batch %u groups %u ic %u oc %u in %u %u %u out %u %u %u kernel %u %u %u stride %u %u %u act %d", fast[i]->name,
                         g->batch, g->groups, g->ic, g->oc, g->in[0], g->in[1], g->in[2], g->out[0], g->out[1], g->out[2], g->kernel[0],
                         g->kernel[1], g->kernel[2], g->stride[0], g->stride[1], g->stride[2], (int)g->act);
            mem_free(y);
        }
        struct conv_args last = *g; /* the last image alone */
        size_t in = s.in / g->batch, out = s.out / g->batch;
        last.batch = 1;
        last.x += s.in - in;
        last.res = g->res ? res + (s.out - out) : NULL;
        float *alone = run(fast[(uint32_t)done % n], last, w, out);
        assert_memory_equal(alone, naive + (s.out - out), out * sizeof *alone);
        mem_free(alone), mem_free(naive), mem_free(x), mem_free(w), mem_free(bias), mem_free(res);
        done++;
    }
}

static void largest_of_windows(void **state)
{
    (void)state;
    const struct conv_kernels *fast[4];
    uint32_t n = fast_tables(fast);
    for (int done = 0; done < 150;) {
        struct shape s;
        if (!random_shape(&s) || s.g.groups < 2 || s.g.ic != 1)
            continue;
        s.g.oc = 1;
        size_t out = (size_t)s.g.batch * s.g.groups * s.g.out[0] * s.g.out[1] * s.g.out[2];
        float *x = floats(s.in), *naive = floats(out);
        s.g.x = x, s.g.y = naive;
        conv_reference.max_pool(&s.g);
        for (uint32_t i = 0; i < n; i++) {
            size_t room = fast[i]->scratch(&s.g) / sizeof(float) + 1;
            float *y = floats(out), *scratch = floats(room);
            s.g.y = y, s.g.scratch = scratch;
            fast[i]->max_pool(&s.g);
            assert_memory_equal(y, naive, out * sizeof *y);
            check_guards(y, out);
            check_guards(scratch, room);
            mem_free(y), mem_free(scratch);
        }
        mem_free(x), mem_free(naive);
        done++;
    }
}

/* Exact sums of products of 16-bit integers, the largest that zero points can make. */
static void integer_products(void **state)
{
    (void)state;
    const struct kernels *k;
    int_gemm_fn *fast[3] = {int_gemm_generic};
    uint32_t n = 1;
    if (cpu_kernels("avx2", &k, NULL) == ST_OK)
        fast[n++] = int_gemm_of(k);
    if (cpu_kernels("avx512", &k, NULL) == ST_OK)
        fast[n++] = int_gemm_of(k);
    for (int round = 0; round < 200; round++) {
        uint32_t m = 1 + below(20), cols = 1 + below(50), depth = 2 * (1 + below(200)), panels = (cols + INT_NR - 1) / INT_NR;
        int16_t *a = mem_array((size_t)m * depth, sizeof *a), *b = mem_array((size_t)panels * INT_NR * depth, sizeof *b);
        int32_t *want = mem_array((size_t)m * cols + 1, sizeof *want), *got = mem_array((size_t)m * cols + 1, sizeof *got);
        assert_true(a && b && want && got);
        for (size_t i = 0; i < (size_t)m * depth; i++)
            a[i] = (int16_t)((int)below(511) - 255);
        for (size_t i = 0; i < (size_t)panels * INT_NR * depth; i++)
            b[i] = (int16_t)(round % 4 == 0 ? 255 : (int)below(511) - 255);
        want[(size_t)m * cols] = got[(size_t)m * cols] = 12345;
        struct int_gemm g = {.m = m, .n = cols, .k = depth, .a = a, .lda = depth, .packed = b, .c = want, .ldc = cols};
        int_gemm_reference(&g);
        g.c = got;
        for (uint32_t i = 0; i < n; i++) {
            memset(got, 0, (size_t)m * cols * sizeof *got);
            fast[i](&g);
            assert_memory_equal(got, want, ((size_t)m * cols + 1) * sizeof *got);
        }
        mem_free(a), mem_free(b), mem_free(want), mem_free(got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_shapes), cmocka_unit_test(largest_of_windows), cmocka_unit_test(integer_products)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
