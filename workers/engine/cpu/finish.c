/* What follows a product, on a tile that is still in the first-level cache; and functions of one element over arrays. */
#include "workers/engine/cpu/element.h"

struct side { /* of one row: what is added before and after */
    const float *bias, *before, *after;
    float row_bias;
    int has_row_bias;
};

WORK void finish_columns(const enum act act, const struct side *s, vf p, vf q, uint32_t n, float *c)
{
    uint32_t j = 0;
    for (; j + VL <= n; j += VL) {
        vf x = load(c + j);
        if (s->bias)
            x = x + load(s->bias + j);
        if (s->has_row_bias)
            x = x + splat(s->row_bias);
        if (s->before)
            x = x + load(s->before + j);
        x = activate(act, x, p, q);
        if (s->after)
            x = x + load(s->after + j);
        store(c + j, x);
    }
    if (j == n)
        return;
    float t[4][VL]; /* the last columns, with zeros behind them */
    const float *from[4] = {c, s->bias, s->before, s->after};
    for (int i = 0; i < 4; i++)
        for (uint32_t l = 0; l < VL; l++)
            t[i][l] = from[i] && j + l < n ? from[i][j + l] : 0;
    vf x = load(t[0]);
    if (s->bias)
        x = x + load(t[1]);
    if (s->has_row_bias)
        x = x + splat(s->row_bias);
    if (s->before)
        x = x + load(t[2]);
    x = activate(act, x, p, q);
    if (s->after)
        x = x + load(t[3]);
    store(t[0], x);
    memcpy(c + j, t[0], (n - j) * sizeof *c);
}

/* The function alone, over whole vectors */
INL void act_rows(const enum act act, vf p, vf q, uint32_t rows, uint32_t n, float *c, size_t ldc)
{
    for (uint32_t i = 0; i < rows; i++, c += ldc)
#pragma GCC unroll 2
        for (uint32_t j = 0; j < n; j += VL)
            store(c + j, activate(act, load(c + j), p, q));
}

INL void finish_rows(const enum act act, const struct epilogue *e, uint32_t row0, uint32_t rows, uint32_t n, float *c, size_t ldc)
{
    vf p = splat(e->p), q = splat(e->q);
    if (!e->bias && !e->row_bias && !e->res && n % VL == 0) {
        act_rows(act, p, q, rows, n, c, ldc);
        return;
    }
    for (uint32_t i = 0; i < rows; i++) {
        const float *res = e->res ? e->res + (row0 + i) * e->ldres : NULL;
        struct side s = {.bias = e->bias, .before = e->res_first ? res : NULL, .after = e->res_first ? NULL : res,
                         .row_bias = e->row_bias ? e->row_bias[row0 + i] : 0, .has_row_bias = e->row_bias != NULL};
        finish_columns(act, &s, p, q, n, c + i * ldc);
    }
}

void SYM(finish)(const struct epilogue *e, uint32_t row0, uint32_t rows, uint32_t n, float *c, size_t ldc)
{
#define CASE(act)                                                                                                                \
    case act: finish_rows(act, e, row0, rows, n, c, ldc); break;
    switch (e->act) {
        EACH_ACT(CASE)
    case ACTS: break;
    }
#undef CASE
}

WORK void map_with(const enum act act, vf p, vf q, size_t n, const float *x, float *y)
{
    size_t j = 0;
    for (; j + VL <= n; j += VL)
        store(y + j, activate(act, load(x + j), p, q));
    if (j < n) {
        float t[VL] = {0};
        memcpy(t, x + j, (n - j) * sizeof *t);
        store(t, activate(act, load(t), p, q));
        memcpy(y + j, t, (n - j) * sizeof *t);
    }
}

void SYM(map)(enum act f, float p, float q, size_t n, const float *x, float *y)
{
#define CASE(act)                                                                                                                \
    case act: map_with(act, splat(p), splat(q), n, x, y); break;
    switch (f) {
        EACH_ACT(CASE)
    case ACTS: break;
    }
#undef CASE
}
