/* Convolution as its definition says: one output element at a time. Slow, kept for ever: what the fast ones are compared with. */
#include <math.h>
#include <string.h>

#include "workers/engine/cpu/conv.h"
#include "workers/engine/cpu/conv_int.h"
#include "workers/engine/cpu/kernels.h"

static float clip(float x, float lo, float hi)
{
    x = x > lo ? x : lo;
    return x < hi ? x : hi;
}

static float activate(const struct conv_args *g, float x)
{
    switch (g->act) {
    case CONV_ACT_RELU: return x > 0 ? x : 0;
    case CONV_ACT_CLIP: return clip(x, g->a, g->b);
    case CONV_ACT_LEAKY: return x < 0 ? x * g->a : x;
    case CONV_ACT_HARD_SIGMOID: return clip(x * g->a + g->b, 0, 1);
    case CONV_ACT_HARD_SWISH: return x * clip(x * g->a + g->b, 0, 1);
    case CONV_ACT_NONE: break;
    }
    return x;
}

static float input_at(const struct conv_args *g, const float *plane, int64_t d, int64_t h, int64_t w)
{
    if (d < 0 || h < 0 || w < 0 || d >= g->in[0] || h >= g->in[1] || w >= g->in[2])
        return 0;
    return plane[((size_t)d * g->in[1] + (size_t)h) * g->in[2] + (size_t)w];
}

static float chain(const struct conv_args *g, const float *x, const float *w, uint32_t od, uint32_t oh, uint32_t ow)
{
    size_t volume = (size_t)g->in[0] * g->in[1] * g->in[2];
    float sum = 0;
    for (uint32_t c = 0; c < g->ic; c++)
        for (uint32_t kd = 0; kd < g->kernel[0]; kd++)
            for (uint32_t kh = 0; kh < g->kernel[1]; kh++)
                for (uint32_t kw = 0; kw < g->kernel[2]; kw++)
                    sum = fmaf(*w++,
                               input_at(g, x + c * volume, (int64_t)od * g->stride[0] + (int64_t)kd * g->dilation[0] - g->pad[0],
                                        (int64_t)oh * g->stride[1] + (int64_t)kh * g->dilation[1] - g->pad[1],
                                        (int64_t)ow * g->stride[2] + (int64_t)kw * g->dilation[2] - g->pad[2]),
                               sum);
    return sum;
}

/* Winograd's way ------------------------------------------------------------------------------------------------------------------------ */

int conv_can_winograd(const struct conv_args *g)
{
    int can = g->groups == 1 && g->kernel[0] == 1 && g->kernel[1] == 3 && g->kernel[2] == 3;
    for (int i = 0; i < 3; i++)
        can &= g->stride[i] == 1 && g->dilation[i] == 1;
    return can;
}

static void kernel_side(const double *w, size_t step, double *u, size_t to)
{
    u[0] = w[0];
    u[to] = (w[0] + w[step] + w[2 * step]) / 2;
    u[2 * to] = (w[0] - w[step] + w[2 * step]) / 2;
    u[3 * to] = w[2 * step];
}

void conv_winograd_weights(const float w[9], float u[16])
{
    double wide[9], half[12], all[16];
    for (int i = 0; i < 9; i++)
        wide[i] = (double)w[i];
    for (int j = 0; j < 3; j++)
        kernel_side(wide + j, 3, half + j, 3);
    for (int i = 0; i < 4; i++)
        kernel_side(half + 3 * i, 1, all + 4 * i, 1);
    for (int i = 0; i < 16; i++)
        u[i] = (float)all[i];
}

static void input_side(const float *d, size_t step, float *v)
{
    float d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step];
    v[0] = d0 - d2, v[step] = d1 + d2, v[2 * step] = d2 - d1, v[3 * step] = d1 - d3;
}

/* Element (h, w) of output channel o of an image. */
static float winograd_at(const struct conv_args *g, const float *x, const float *u, uint32_t h, uint32_t w)
{
    size_t volume = (size_t)g->in[1] * g->in[2];
    int64_t top = (int64_t)(h / 2 * 2) - g->pad[1], left = (int64_t)(w / 2 * 2) - g->pad[2];
    float m[16] = {0}, half[8];
    for (uint32_t c = 0; c < g->ic; c++, u += 16) {
        float v[16];
        for (int i = 0; i < 16; i++)
            v[i] = input_at(g, x + c * volume, 0, top + i / 4, left + i % 4);
        for (int j = 0; j < 4; j++)
            input_side(v + j, 4, v + j);
        for (int i = 0; i < 4; i++)
            input_side(v + 4 * i, 1, v + 4 * i);
        for (int i = 0; i < 16; i++)
            m[i] = fmaf(u[i], v[i], m[i]);
    }
    for (int j = 0; j < 4; j++)
        half[j] = m[j] + m[4 + j] + m[8 + j], half[4 + j] = m[4 + j] - m[8 + j] - m[12 + j];
    const float *row = half + 4 * (h % 2);
    return w % 2 ? row[1] - row[2] - row[3] : row[0] + row[1] + row[2];
}

static void ref_run(const struct conv_args *g)
{
    size_t volume = (size_t)g->in[0] * g->in[1] * g->in[2], taps = (size_t)g->kernel[0] * g->kernel[1] * g->kernel[2], at = 0;
    for (uint32_t b = 0; b < g->batch; b++)
        for (uint32_t o = 0; o < g->groups * g->oc; o++)
            for (uint32_t d = 0; d < g->out[0]; d++)
                for (uint32_t h = 0; h < g->out[1]; h++)
                    for (uint32_t w = 0; w < g->out[2]; w++, at++) {
                        const float *image = g->x + (size_t)b * g->ic * volume;
                        float y = g->winograd ? winograd_at(g, image, g->packed + (size_t)o * g->ic * 16, h, w) : chain(g, g->x + ((size_t)b * g->groups + o / g->oc) * g->ic * volume,
                                        g->packed + (size_t)o * g->ic * taps, d, h, w);
                        if (g->bias)
                            y += g->bias[o];
                        if (g->res)
                            y += g->res[at];
                        g->y[at] = activate(g, y);
                    }
}

static void ref_max_pool(const struct conv_args *g)
{
    size_t volume = (size_t)g->in[0] * g->in[1] * g->in[2], at = 0, windows = (size_t)g->out[0] * g->out[1] * g->out[2];
    for (size_t i = 0; i < (size_t)g->batch * g->groups; i++)
        for (size_t o = 0; o < windows; o++, at++) {
            size_t place[3] = {o / g->out[2] / g->out[1], o / g->out[2] % g->out[1], o % g->out[2]};
            float best = -INFINITY;
            for (uint32_t t = 0; t < g->kernel[0] * g->kernel[1] * g->kernel[2]; t++) {
                uint32_t tap[3] = {t / g->kernel[2] / g->kernel[1], t / g->kernel[2] % g->kernel[1], t % g->kernel[2]};
                int64_t p[3];
                int inside = 1;
                for (int a = 0; a < 3; a++) {
                    p[a] = (int64_t)place[a] * g->stride[a] + (int64_t)tap[a] * g->dilation[a] - g->pad[a];
                    inside &= p[a] >= 0 && p[a] < g->in[a];
                }
                float x = inside ? input_at(g, g->x + i * volume, p[0], p[1], p[2]) : -INFINITY;
                best = x > best ? x : best;
            }
            g->y[at] = best;
        }
}

static size_t ref_packed(const struct conv_args *g)
{
    size_t taps = (size_t)g->kernel[0] * g->kernel[1] * g->kernel[2];
    return (size_t)g->groups * g->oc * g->ic * (g->winograd ? 16 : taps);
}

static void ref_pack(const struct conv_args *g, const float *w, float *packed)
{
    for (size_t i = 0; g->winograd && i < (size_t)g->oc * g->ic; i++)
        conv_winograd_weights(w + 9 * i, packed + 16 * i);
    if (!g->winograd)
        memcpy(packed, w, ref_packed(g) * sizeof *w);
}

static size_t ref_scratch(const struct conv_args *g)
{
    (void)g;
    return 0;
}

const struct conv_kernels conv_reference = {
    .name = "reference",
    .packed = ref_packed,
    .pack = ref_pack,
    .scratch = ref_scratch,
    .run = ref_run,
    .max_pool = ref_max_pool,
};

const struct conv_kernels *conv_kernels_of(const struct kernels *k)
{
    static const struct conv_kernels *const all[] = {&conv_avx512, &conv_avx2, &conv_generic};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strncmp(k->name, all[i]->name, strlen(all[i]->name))) /* avx512vnni: avx512 */
            return all[i];
    return &conv_reference;
}

/* Integer products the same way. */
void int_gemm_reference(const struct int_gemm *g)
{
    for (uint32_t i = 0; i < g->m; i++)
        for (uint32_t j = 0; j < g->n; j++) {
            int32_t sum = 0;
            for (uint32_t k = 0; k < g->k; k++)
                sum += g->a[i * g->lda + k] * g->packed[((size_t)(j / INT_NR) * g->k + k / 2 * 2) * INT_NR + j % INT_NR * 2 + k % 2];
            g->c[i * g->ldc + j] = sum;
        }
}

int_gemm_fn *int_gemm_of(const struct kernels *k)
{
    return !strncmp(k->name, "avx512", 6) ? int_gemm_avx512
           : !strncmp(k->name, "avx2", 4) ? int_gemm_avx2
           : !strcmp(k->name, "generic") ? int_gemm_generic
                                         : int_gemm_reference;
}
