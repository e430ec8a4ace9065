/* The input as the taps of a convolution want it: padding is zeros and strides are undone. Element i of phase p along an axis is padded element
   i * stride + p, so that a tap is a shift whatever the stride. A convolution without padding and stride reads the input itself. */
#ifndef EBB_ENGINE_CONV_PLANES_H
#define EBB_ENGINE_CONV_PLANES_H

#include "workers/engine/cpu/conv.h"
#include "workers/engine/cpu/isa.h"

enum { BLOCK_PIXELS = 576 }; /* so many output pixels at least are made at once, of several images where these are small */

struct plan {
    int direct;          /* the input itself */
    uint32_t taps;       /* of one channel */
    uint32_t k;          /* ic * taps */
    uint32_t size[3];    /* of a phase's plane */
    uint32_t phases[3];  /* how many are needed along each axis */
    size_t channel;      /* floats of one channel: all phases */
    size_t image;        /* from one image to the next */
    size_t in, out;      /* elements of one channel */
    uint32_t row;        /* output pixels that lie behind each other in a plane */
    uint32_t images;     /* done at once */
};

INL uint32_t phase_of(const struct conv_args *g, uint32_t axis, uint32_t tap)
{
    return (uint32_t)((uint64_t)tap * g->dilation[axis] % g->stride[axis]);
}

INL uint32_t common(uint32_t a, uint32_t b)
{
    while (b) {
        uint32_t t = a % b;
        a = b, b = t;
    }
    return a;
}

/* Phases that some tap needs: taps go through `period` phases in turn, multiples of what stride and dilation have in common. */
INL uint32_t phase_count(const struct conv_args *g, uint32_t axis)
{
    uint32_t period = g->stride[axis] / common(g->stride[axis], g->dilation[axis]);
    return g->kernel[axis] < period ? g->kernel[axis] : period;
}

/* A phase's place among them, or -1. */
INL int phase_slot(const struct conv_args *g, uint32_t axis, uint32_t phase)
{
    uint32_t each = common(g->stride[axis], g->dilation[axis]);
    if (phase % each)
        return -1;
    if (g->kernel[axis] >= g->stride[axis] / each)
        return (int)(phase / each);
    if (g->dilation[axis] == 1)
        return phase < g->kernel[axis] ? (int)phase : -1;
    for (uint32_t k = 0; k < g->kernel[axis]; k++)
        if (phase_of(g, axis, k) == phase)
            return (int)k;
    return -1;
}

INL int is_depthwise(const struct conv_args *g)
{
    return g->ic == 1 && g->groups > 1;
}

/* A depthwise convolution has planes of its own even where the input would do: its vectors read beyond the last row. */
INL struct plan plan_of(const struct conv_args *g)
{
    struct plan p = {.direct = !is_depthwise(g), .taps = g->kernel[0] * g->kernel[1] * g->kernel[2]};
    p.k = p.taps * g->ic;
    p.in = (size_t)g->in[0] * g->in[1] * g->in[2];
    p.out = (size_t)g->out[0] * g->out[1] * g->out[2];
    for (int i = 0; i < 3; i++) {
        uint32_t reach = (g->out[i] - 1) * g->stride[i] + (g->kernel[i] - 1) * g->dilation[i] + 1;
        p.size[i] = (reach + g->stride[i] - 1) / g->stride[i];
        p.phases[i] = phase_count(g, (uint32_t)i);
        p.direct &= g->stride[i] == 1 && g->pad[i] == 0 && reach <= g->in[i];
    }
    if (p.direct)
        memcpy(p.size, g->in, sizeof p.size);
    p.channel = (size_t)p.phases[0] * p.phases[1] * p.phases[2] * p.size[0] * p.size[1] * p.size[2];
    p.image = p.direct ? (size_t)g->groups * g->ic * p.in : g->ic * p.channel;
    p.row = g->out[2];
    if (p.size[2] == g->out[2]) {
        p.row *= g->out[1];
        if (p.size[1] == g->out[1])
            p.row *= g->out[0];
    }
    /* small images fill panels together */
    size_t n = p.out ? (BLOCK_PIXELS + p.out - 1) / p.out : 1;
    p.images = n < g->batch ? (uint32_t)n : g->batch;
    p.images = p.images ? p.images : 1;
    return p;
}

/* Where output pixel i of an image begins in a plane. */
INL size_t pixel_at(const struct conv_args *g, const struct plan *p, size_t i)
{
    size_t r = i / p->row, c = i % p->row;
    if (p->row == g->out[2])
        return ((r / g->out[1]) * p->size[1] + r % g->out[1]) * p->size[2] + c;
    return r * p->size[1] * p->size[2] + c; /* whole planes, or all */
}

INL void shifts(const struct conv_args *g, const struct plan *p, uint32_t *off)
{
    size_t plane = (size_t)p->size[0] * p->size[1] * p->size[2];
    for (uint32_t d = 0; d < g->kernel[0]; d++)
        for (uint32_t h = 0; h < g->kernel[1]; h++)
            for (uint32_t w = 0; w < g->kernel[2]; w++) {
                uint32_t pd = (uint32_t)phase_slot(g, 0, phase_of(g, 0, d)), ph = (uint32_t)phase_slot(g, 1, phase_of(g, 1, h)),
                         pw = (uint32_t)phase_slot(g, 2, phase_of(g, 2, w));
                size_t at = ((pd * p->phases[1] + ph) * p->phases[2] + pw) * plane;
                at += ((size_t)(d * g->dilation[0] / g->stride[0]) * p->size[1] + h * g->dilation[1] / g->stride[1]) * p->size[2] +
                      w * g->dilation[2] / g->stride[2];
                *off++ = (uint32_t)at;
            }
    for (uint32_t c = 1; c < g->ic; c++)
        for (uint32_t t = 0; t < p->taps; t++, off++)
            *off = off[-(ptrdiff_t)p->taps] + (uint32_t)p->channel;
}

/* Elements 0, 2, 4.. of two vectors */
INL vf evens(vf a, vf b)
{
#if ISA_LEVEL == 3
    return __builtin_shuffle(a, b, (vi){0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30});
#elif ISA_LEVEL == 2
    return __builtin_shuffle(a, b, (vi){0, 2, 4, 6, 8, 10, 12, 14});
#else
    return __builtin_shuffle(a, b, (vi){0, 2, 4, 6});
#endif
}

INL void fill(float *to, int64_t n, float with)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = with;
}

/* One row of a phase: to[i] = padded[i * stride + phase]; `pad` stands outside the input */
INL void phase_row(const struct conv_args *g, uint32_t n, uint32_t phase, float pad, const float *from, float *to)
{
    int64_t s = g->stride[2], first = (int64_t)phase - g->pad[2], width = g->in[2];
    int64_t lo = first < 0 ? (-first + s - 1) / s : 0, hi = first < width ? (width - first + s - 1) / s : 0;
    hi = hi < n ? hi : n;
    lo = lo < hi ? lo : hi;
    fill(to, lo, pad);
    if (s == 1) {
        memcpy(to + lo, from + first + lo, (size_t)(hi - lo) * sizeof *to);
    } else {
        int64_t i = lo;
        from += first;
        if (s == 2)
            for (; i + VL < hi; i += VL) /* reads one float beyond the last that it takes: there is a next */
                store(to + i, evens(load(from + i * 2), load(from + i * 2 + VL)));
        for (; i < hi; i++)
            to[i] = from[i * s];
    }
    fill(to + hi, n - hi, pad);
}

/* One channel: all its phases. */
INL void phase_channel(const struct conv_args *g, const struct plan *p, float pad, const float *x, float *to)
{
    for (uint32_t pd = 0; pd < g->stride[0]; pd++)
        for (uint32_t ph = 0; ph < g->stride[1]; ph++)
            for (uint32_t pw = 0; pw < g->stride[2]; pw++) {
                int sd = phase_slot(g, 0, pd), sh = phase_slot(g, 1, ph), sw = phase_slot(g, 2, pw);
                if (sd < 0 || sh < 0 || sw < 0)
                    continue;
                float *at = to + (((uint32_t)sd * p->phases[1] + (uint32_t)sh) * p->phases[2] + (uint32_t)sw) *
                                     ((size_t)p->size[0] * p->size[1] * p->size[2]);
                for (uint32_t d = 0; d < p->size[0]; d++)
                    for (uint32_t h = 0; h < p->size[1]; h++, at += p->size[2]) {
                        int64_t id = (int64_t)d * g->stride[0] + pd - g->pad[0], ih = (int64_t)h * g->stride[1] + ph - g->pad[1];
                        if (id < 0 || ih < 0 || id >= g->in[0] || ih >= g->in[1])
                            fill(at, p->size[2], pad);
                        else
                            phase_row(g, p->size[2], pw, pad, x + ((size_t)id * g->in[1] + (size_t)ih) * g->in[2], at);
                    }
            }
}

#endif
