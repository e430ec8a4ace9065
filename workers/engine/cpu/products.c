/* Products: packed weights times rows (f32, bf16, int8), and products of two things made at run time.

   Everything is seen as 32-bit words: a word is one float, two bf16 or int16, or four bytes, along k. A block of MC rows and KC words is packed
   so that a tile's words of one k lie side by side; it stays in the second-level cache while all panels of weights pass, and a panel's
   block of k in the first. A tile of MR x NR results stays in registers for the block's whole k. Between blocks of k its sums rest in c:
   as f32, or as the bits of an exact 32-bit sum. */
#include "workers/engine/cpu/product_tiles.h"

enum { KC = 384, MC = ISA_LEVEL == 3 ? 112 : ISA_LEVEL == 2 ? 240 : 48 };

/* Rows where they lie, for attention. */
#define ROW_TILE(w, mr)                                                                                                          \
    static __attribute__((noinline)) void row_tile_##mr(uint32_t kc, const float *a, size_t lda, const float *b, float *c,       \
                                                        size_t ldc, int first)                                                   \
    {                                                                                                                            \
        row_tile(mr, kc, a, lda, b, c, ldc, first);                                                                              \
    }
#define ROW_NAME_OF(w, mr) row_tile_##mr,
EACH_MR(ROW_TILE, )
tile_fn *const SYM(row_tiles)[MR + 1] = {NULL, EACH_MR(ROW_NAME_OF, )};

/* Rows into tiles ------------------------------------------------------------------------------------------------------------------ */

static void bf16_words(uint32_t k, const float *x, uint32_t *out)
{
    uint32_t i = 0;
    for (; i + 2 <= k; i += 2)
        out[i / 2] = bf16_of(x[i]) | bf16_of(x[i + 1]) << 16;
    if (i < k)
        out[i / 2] = bf16_of(x[i]);
}

static void bf16_row(uint32_t k, const float *x, float *out)
{
    uint32_t i = 0;
    for (; i + VL <= k; i += VL)
        store(out + i, round_bf16(load(x + i)));
    for (; i < k; i++) {
        uint32_t u = bf16_of(x[i]) << 16;
        memcpy(out + i, &u, 4);
    }
}

/* The largest |x| of a block; NaN where one of it is no number. Below 1e-30 a block counts as zeros. */
static float row_magnitude(uint32_t k, const float *x)
{
    struct v16 top = zero16(), odd = zero16();
    uint32_t i = 0;
    for (; i < k; i += 16) {
        struct v16 y = k - i >= 16 ? load16(x + i) : load_part(x + i, k - i, 0);
        EACH(odd, odd.v[l] + (y.v[l] - y.v[l]));
        EACH(y, (vf)((vi)y.v[l] & 0x7fffffff));
        EACH(top, larger(y.v[l], top.v[l]));
    }
    float max = max16(top), strange = sum16(odd);
    return max < 1e-30f ? 0 + strange : max + strange;
}

/* round(x * inverse), |.| <= 127, nearest even: adding 1.5 * 2^23 leaves the integer in the low bits. */
INL int32_t quantise(float x, float inverse)
{
    float y = x * inverse + 12582912.0f;
    int32_t i;
    memcpy(&i, &y, 4);
    return i - 0x4b400000;
}

static void int8_words(uint32_t k, const float *x, float inverse, uint32_t *out)
{
#if defined(EBB_VNNI)
    uint8_t *to = (uint8_t *)out;
    uint32_t group = 4;
    for (uint32_t i = 0; i < k; i++)
        to[i] = (uint8_t)(quantise(x[i], inverse) + 128);
#else
    int16_t *to = (int16_t *)out;
    uint32_t group = 2;
    for (uint32_t i = 0; i < k; i++)
        to[i] = (int16_t)quantise(x[i], inverse);
#endif
    for (uint32_t i = k; i % group; i++)
        to[i] = 0;
}

/* The product ---------------------------------------------------------------------------------------------------------------------- */

/* Where a panel's block of k comes from */
enum source { WORDS, /* as it is */ BF16_HALVES, /* to be widened to f32 */ BYTES /* to be widened to int16 */ };

struct work {
    const struct gemm_args *g;
    size_t a_col;           /* of f32: elements of a row of a lie so far apart */
    const char *panels;     /* of the columns from column0 on, block of k included */
    size_t panel_bytes;     /* from one panel to the next */
    int in_place;           /* 1: panels hold this block of k alone */
    const float *scale;     /* as in struct side; of all outputs */
    const int32_t *start;   /* of all panels and blocks */
};

INL uint32_t words_of(const enum word word, uint32_t k)
{
    return word == F32 ? k : word == U8 ? (k + 3) / 4 : (k + 1) / 2;
}

INL uint32_t blocks_of(uint32_t k)
{
    return k ? (k + BLOCK - 1) / BLOCK : 1;
}

INL uint32_t group_of(const enum word word)
{
    return word == F32 ? 1 : word == U8 ? 4 : 2;
}

static void interleave_rows(uint32_t mr, uint32_t kd, const float *x, size_t ld, float *out)
{
    if (mr == MR)
        interleave(MR, kd, x, ld, out);
    else
        interleave(mr, kd, x, ld, out);
}

/* A row's part as integers, block by block, and their scales: scale[block * mr] */
INL void int8_row(uint32_t kc, uint32_t mr, const float *x, uint32_t *out, float *scale)
{
    const uint32_t group = INT8_GROUP;
    uint32_t k = 0;
    do {
        uint32_t n = kc - k < BLOCK ? kc - k : BLOCK;
        float top = row_magnitude(n, x + k);
        int8_words(n, x + k, top > 0 ? 127 / top : 0, out + k / group);
        *scale = top / 127;
        scale += mr;
        k += n;
    } while (k < kc);
}

/* Rows i0.. of a, k0..k0+kc, into tiles; row_scale gets [tile][block][row of the tile]. */
INL void pack_rows(const enum word word, const int rounded, const struct work *w, uint32_t i0, uint32_t rows, uint32_t k0, uint32_t kc,
                   float *out, float *row_scale)
{
    const struct gemm_args *g = w->g;
    uint32_t tiles_n = (rows + MR - 1) / MR, kd = words_of(word, kc);
    _Alignas(64) uint32_t t[MR * KC]; /* rows as words, where they are not taken as they are */
    for (uint32_t tile_i = 0; tile_i < tiles_n; tile_i++) {
        uint32_t r0 = rows * tile_i / tiles_n, mr = rows * (tile_i + 1) / tiles_n - r0;
        const float *a = g->a + (i0 + r0) * g->lda + k0 * w->a_col;
        float *to = out + (size_t)r0 * kd;
        if (word == F32 && !rounded && w->a_col != 1) {
            for (uint32_t k = 0; k < kc; k++)
                for (uint32_t i = 0; i < mr; i++)
                    to[(size_t)k * mr + i] = a[i * g->lda + k * w->a_col];
            continue;
        }
        if (word == F32 && !rounded) {
            interleave_rows(mr, kd, a, g->lda, to);
            continue;
        }
        for (uint32_t i = 0; i < mr; i++) {
            if (word == F32)
                bf16_row(kc, a + i * g->lda, (float *)t + i * KC);
            else if (word == DP)
                bf16_words(kc, a + i * g->lda, t + i * KC);
            else
                int8_row(kc, mr, a + i * g->lda, t + i * KC, row_scale + r0 * blocks_of(kc) + i);
        }
        interleave_rows(mr, kd, (const float *)t, KC, to);
    }
}

INL const float *panel_block(const enum source from, const struct work *w, uint32_t j, size_t word0, uint32_t kd, float *space)
{
    const char *panel = w->panels + (size_t)(j / NR) * w->panel_bytes;
    if (from == WORDS)
        return (const float *)panel + word0 * NR;
    if (from == BF16_HALVES) {
        const uint16_t *b = (const uint16_t *)panel + word0 * NR;
        uint32_t *to = (uint32_t *)space;
        for (uint32_t i = 0; i < kd * NR; i++)
            to[i] = (uint32_t)b[i] << 16;
    } else {
        const int8_t *b = (const int8_t *)panel + word0 * NR * 2;
        int16_t *to = (int16_t *)space;
        for (uint32_t i = 0; i < kd * NR * 2; i++)
            to[i] = b[i];
    }
    return space;
}

/* One tile over one block of k. A panel that reaches beyond n goes through a tile of its own: nothing outside c is touched. */
INL void gemm_tile(const struct work *w, packed_tile_fn *const *tiles, uint32_t i, uint32_t mr, uint32_t j, uint32_t kd, const float *a,
                   const float *b, struct side s)
{
    const struct gemm_args *g = w->g;
    struct epilogue e = g->e; /* what is left to do behind the tile */
    float *c = g->c + i * g->ldc + j;
    uint32_t n = g->n - j < NR ? g->n - j : NR;
    s.ldres = e.ldres;
    if (n == NR) {
        if (!e.row_bias) {
            s.bias = e.bias ? e.bias + j : NULL;
            e.bias = NULL;
            if (e.res && e.act == ACT_NONE) {
                s.res = e.res + i * e.ldres + j;
                e.res = NULL;
            }
        }
        tiles[mr](kd, a, b, c, g->ldc, &s);
    } else {
        _Alignas(64) float edge[MR * NR];
        if (!s.first) {
            memset(edge, 0, sizeof edge);
            for (uint32_t r = 0; r < mr; r++)
                memcpy(edge + r * NR, c + r * g->ldc, n * sizeof *edge);
        }
        tiles[mr](kd, a, b, edge, NR, &s);
        for (uint32_t r = 0; r < mr; r++)
            memcpy(c + r * g->ldc, edge + r * NR, n * sizeof *edge);
    }
    if (s.last && (e.bias || e.row_bias || e.res || e.act != ACT_NONE)) {
        e.bias = e.bias ? e.bias + j : NULL;
        e.res = e.res ? e.res + j : NULL;
        SYM(finish)(&e, i, mr, n, c, g->ldc);
    }
}

/* Blocks of nearly the same size, of whole tiles: a block of few rows would wait for the weights. */
INL uint32_t block_of(uint32_t m)
{
    uint32_t blocks = (m + MC - 1) / MC, tiles_n = (m + MR - 1) / MR;
    return blocks ? (tiles_n + blocks - 1) / blocks * MR : MR;
}

/* Rows i0.. and the block of k from k0 (in elements) on, over all columns. */
INL void gemm_block(const enum word word, const enum source from, packed_tile_fn *const *tiles, const struct work *w, uint32_t i0,
                    uint32_t rows, uint32_t k0, uint32_t kc)
{
    const struct gemm_args *g = w->g;
    _Alignas(64) float a[MC * KC + SLACK];
    _Alignas(64) float space[KC * NR]; /* a panel's block, where it is widened */
    const int int8 = word == I16 || word == U8;
    float row_scale[MC * (KC * INT8_GROUP / BLOCK)];
    uint32_t tiles_n = (rows + MR - 1) / MR, kd = words_of(word, kc);
    pack_rows(word, from == BF16_HALVES, w, i0, rows, k0, kc, a, row_scale);
    for (uint32_t j = 0; j < g->n; j += NR) {
        const float *b = panel_block(from, w, j, w->in_place ? 0 : k0 / group_of(word), kd, space);
        const char *next = (const char *)b + (from == WORDS && j + NR < g->n ? w->panel_bytes : 0);
        uint32_t share = (kd * NR * 4 / 64 + tiles_n - 1) / tiles_n; /* of the next panel, line by line, while this one is at work */
        struct side s = {.first = k0 == 0, .last = k0 + kc == g->k, .scale = w->scale ? w->scale + j : NULL};
        s.start = w->start ? w->start + ((size_t)(j / NR) * blocks_of(g->k) + k0 / BLOCK) * NR : NULL;
        for (uint32_t t = 0; t < tiles_n; t++) { /* tiles of nearly equal height: no slow sliver at the end */
            uint32_t r0 = rows * t / tiles_n, mr = rows * (t + 1) / tiles_n - r0;
            for (uint32_t l = 0; from == WORDS && l < share; l++)
                _mm_prefetch(next + ((size_t)t * share + l) * 64, _MM_HINT_T1);
            s.row_scale = int8 ? row_scale + r0 * blocks_of(kc) : NULL;
            gemm_tile(w, tiles, i0 + r0, mr, j, kd, a + (size_t)r0 * kd, b, s);
        }
    }
}

INL void gemm(const enum word word, const enum source from, packed_tile_fn *const *tiles, const struct work *w)
{
    const struct gemm_args *g = w->g;
    const uint32_t step = KC * group_of(word), block = block_of(g->m);
    for (uint32_t i0 = 0; i0 < g->m; i0 += block) {
        uint32_t rows = g->m - i0 < block ? g->m - i0 : block, k0 = 0;
        do { /* once for k = 0 too */
            uint32_t kc = g->k - k0 < step ? g->k - k0 : step;
            gemm_block(word, from, tiles, w, i0, rows, k0, kc);
            k0 += kc;
        } while (k0 < g->k);
    }
}

INL size_t columns(uint32_t n)
{
    return ((size_t)n + NR - 1) / NR * NR;
}

INL size_t round64(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* f32 ------------------------------------------------------------------------------------------------------------------------------ */

size_t SYM(f32_packed_bytes)(uint32_t n, uint32_t k)
{
    return sizeof(float) * columns(n) * k;
}

void SYM(f32_pack)(uint32_t n, uint32_t k, uint32_t first, uint32_t count, const float *w, size_t row, size_t column, void *packed)
{
    (void)n;
    for (uint32_t j = 0; j < count; j++) {
        float *to = (float *)packed + (size_t)((first + j) / NR) * k * NR + (first + j) % NR;
        for (uint32_t i = 0; i < k; i++)
            to[(size_t)i * NR] = w[j * row + i * column];
    }
}

void SYM(f32_run)(const struct gemm_args *g)
{
    struct work w = {.g = g, .a_col = 1, .panels = g->packed, .panel_bytes = sizeof(float) * g->k * NR};
    gemm(F32, WORDS, F32_tiles, &w);
}

/* bf16 ----------------------------------------------------------------------------------------------------------------------------- */

#if defined(EBB_BF16)
enum { BF16_GROUP = 2 };
#else
enum { BF16_GROUP = 1 };
#endif

INL size_t bf16_panel_bytes(uint32_t k)
{
    return sizeof(uint16_t) * ((size_t)k + BF16_GROUP - 1) / BF16_GROUP * BF16_GROUP * NR;
}

size_t SYM(bf16_packed_bytes)(uint32_t n, uint32_t k)
{
    return round64(columns(n) / NR * bf16_panel_bytes(k));
}

void SYM(bf16_pack)(uint32_t n, uint32_t k, uint32_t first, uint32_t count, const float *w, size_t row, size_t column, void *packed)
{
    (void)n;
    for (uint32_t j = 0; j < count; j++) {
        uint16_t *panel = (uint16_t *)((char *)packed + (size_t)((first + j) / NR) * bf16_panel_bytes(k));
        for (uint32_t i = 0; i < k; i++)
            panel[((size_t)(i / BF16_GROUP) * NR + (first + j) % NR) * BF16_GROUP + i % BF16_GROUP] =
                (uint16_t)bf16_of(w[j * row + i * column]);
    }
}

void SYM(bf16_run)(const struct gemm_args *g)
{
    struct work w = {.g = g, .a_col = 1, .panels = g->packed, .panel_bytes = bf16_panel_bytes(g->k)};
#if defined(EBB_BF16)
    gemm(DP, WORDS, DP_tiles, &w);
#else
    gemm(F32, BF16_HALVES, F32_tiles, &w);
#endif
}

/* int8 ----------------------------------------------------------------------------------------------------------------------------- */

INL size_t int8_panel_bytes(uint32_t k)
{
    return ((size_t)k + INT8_GROUP - 1) / INT8_GROUP * INT8_GROUP * NR;
}

/* Panels; then each output's scale; then, for bytes, what struct side calls start. */
INL size_t int8_start_bytes(uint32_t n, uint32_t k)
{
    return INT8_GROUP == 4 ? sizeof(int32_t) * columns(n) * blocks_of(k) : 0;
}

size_t SYM(int8_packed_bytes)(uint32_t n, uint32_t k)
{
    return round64(columns(n) / NR * int8_panel_bytes(k)) + round64(sizeof(float) * columns(n)) + round64(int8_start_bytes(n, k));
}

INL float *int8_scales(uint32_t n, uint32_t k, const void *packed)
{
    return (float *)((uintptr_t)packed + round64(columns(n) / NR * int8_panel_bytes(k)));
}

INL int32_t *int8_start(uint32_t n, uint32_t k, const void *packed)
{
    return (int32_t *)((char *)int8_scales(n, k, packed) + round64(sizeof(float) * columns(n)));
}

void SYM(int8_pack)(uint32_t n, uint32_t k, uint32_t first, uint32_t count, const float *w, size_t row, size_t column, void *packed)
{
    for (uint32_t j = 0; j < count; j++) {
        uint32_t out = first + j;
        int8_t *panel = (int8_t *)packed + (size_t)(out / NR) * int8_panel_bytes(k);
        int32_t *start = int8_start(n, k, packed) + (size_t)(out / NR) * blocks_of(k) * NR + out % NR;
        float top = 0;
        for (uint32_t i = 0; i < k; i++) {
            float x = w[j * row + i * column];
            x = x < 0 ? -x : x;
            top = x > top ? x : top;
        }
        float inverse = top < 1e-30f ? 0 : 127 / top;
        int8_scales(n, k, packed)[out] = top < 1e-30f ? 0 : top / 127;
        for (uint32_t i = 0; i < k; i++) {
            int32_t q = quantise(w[j * row + i * column], inverse);
            panel[((size_t)(i / INT8_GROUP) * NR + out % NR) * INT8_GROUP + i % INT8_GROUP] = (int8_t)q;
            if (INT8_GROUP == 4)
                start[(size_t)(i / BLOCK) * NR] = (i % BLOCK ? start[(size_t)(i / BLOCK) * NR] : 0) - 128 * q;
        }
    }
}

void SYM(int8_run)(const struct gemm_args *g)
{
    struct work w = {.g = g, .a_col = 1, .panels = g->packed, .panel_bytes = int8_panel_bytes(g->k)};
    w.scale = int8_scales(g->n, g->k, g->packed);
#if defined(EBB_VNNI)
    w.start = int8_start(g->n, g->k, g->packed);
    gemm(U8, WORDS, INT8_TILES, &w);
#else
    gemm(I16, BYTES, INT8_TILES, &w);
#endif
}

/* Of two things made at run time --------------------------------------------------------------------------------------------------- */

enum { NC = 512 };

size_t SYM(matmul_scratch)(const struct matmul_args *g)
{
    uint32_t kc = g->k < KC ? g->k : KC;
    size_t n = columns(g->n < NC ? g->n : NC);
    return n * kc + SLACK;
}

/* panels[j / NR][k][j % NR] = b(k0 + k, j0 + j), zeros beyond n */
static void pack_block(const struct matmul_args *g, const float *b, uint32_t k0, uint32_t kc, uint32_t j0, uint32_t n, float *panels)
{
    for (uint32_t j = 0; j < n; j += NR, panels += (size_t)kc * NR) {
        uint32_t width = n - j < NR ? n - j : NR;
        const float *from = b + k0 * g->b_row + (j0 + j) * g->b_col;
        if (width < NR)
            memset(panels, 0, sizeof *panels * kc * NR);
        if (g->b_col == 1)
            for (uint32_t k = 0; k < kc; k++)
                memcpy(panels + (size_t)k * NR, from + k * g->b_row, width * sizeof *panels);
        else if (g->b_row == 1 && width == NR)
            interleave(NR, kc, from, g->b_col, panels);
        else
            for (uint32_t jj = 0; jj < width; jj++)
                for (uint32_t k = 0; k < kc; k++)
                    panels[(size_t)k * NR + jj] = from[k * g->b_row + jj * g->b_col];
    }
}

static void matmul_one(const struct matmul_args *m, const float *a, const float *b, const float *res, float *c)
{
    for (uint32_t j0 = 0; j0 < m->n; j0 += NC) {
        struct gemm_args g = {.m = m->m, .n = m->n - j0 < NC ? m->n - j0 : NC, .k = m->k, .a = a, .lda = m->a_row, .e = m->e, .c = c + j0,
                              .ldc = m->ldc};
        g.e.bias = m->e.bias ? m->e.bias + j0 : NULL;
        g.e.res = res ? res + j0 : NULL;
        uint32_t k0 = 0;
        const uint32_t block = block_of(m->m);
        do {
            uint32_t kc = m->k - k0 < KC ? m->k - k0 : KC;
            struct work w = {.g = &g, .a_col = m->a_col, .panels = (const char *)m->scratch, .panel_bytes = sizeof(float) * kc * NR,
                             .in_place = 1};
            pack_block(m, b, k0, kc, j0, g.n, m->scratch);
            for (uint32_t i0 = 0; i0 < m->m; i0 += block)
                gemm_block(F32, WORDS, F32_tiles, &w, i0, m->m - i0 < block ? m->m - i0 : block, k0, kc);
            k0 += kc;
        } while (k0 < m->k);
    }
}

void SYM(matmul)(const struct matmul_args *g)
{
    for (uint32_t i = 0; i < g->batches; i++)
        matmul_one(g, g->a + i * g->a_batch, g->b + i * g->b_batch, g->e.res ? g->e.res + i * g->c_batch : NULL, g->c + i * g->c_batch);
}
