#include "workers/engine/ops/walk.h"

#include <string.h>

#include "base/status.h"

void row_major(uint32_t rank, const int64_t *dims, int64_t *step)
{
    int64_t n = 1;
    for (uint32_t i = rank; i-- > 0; n *= dims[i])
        step[i] = n;
}

void walk_init(struct walk *w, uint32_t rank, const int64_t *dims)
{
    BUG_IF(rank > RANK_MAX, "a walk of %u axes", rank);
    w->rank = rank;
    w->operands = 0;
    for (uint32_t i = 0; i < rank; i++)
        w->dims[i] = dims[i];
}

void walk_steps(struct walk *w, const int64_t *step)
{
    BUG_IF(w->operands == WALK_OPERANDS, "too many operands");
    for (uint32_t i = 0; i < w->rank; i++)
        w->step[w->operands][i] = step[i];
    w->operands++;
}

void walk_broadcast(struct walk *w, uint32_t rank, const int64_t *dims)
{
    int64_t step[RANK_MAX] = {0}, n = 1;
    BUG_IF(rank > w->rank, "an operand of %u axes in a walk of %u", rank, w->rank);
    for (uint32_t i = rank; i-- > 0; n *= dims[i])
        step[w->rank - rank + i] = dims[i] == 1 ? 0 : n;
    walk_steps(w, step);
}

void walk_merge(struct walk *w)
{
    uint32_t r = 0;
    for (uint32_t i = 0; i < w->rank; i++) {
        if (w->dims[i] == 1)
            continue;
        int merge = r > 0;
        for (uint32_t o = 0; merge && o < w->operands; o++)
            merge = w->step[o][r - 1] == w->step[o][i] * w->dims[i];
        if (merge) {
            w->dims[r - 1] *= w->dims[i];
        } else {
            w->dims[r] = w->dims[i];
            r++;
        }
        for (uint32_t o = 0; o < w->operands; o++)
            w->step[o][r - 1] = w->step[o][i];
    }
    if (!r) {
        w->dims[0] = 1;
        for (uint32_t o = 0; o < w->operands; o++)
            w->step[o][0] = 1;
        r = 1;
    }
    w->rank = r;
}

int walk_empty(const struct walk *w)
{
    for (uint32_t i = 0; i < w->rank; i++)
        if (!w->dims[i])
            return 1;
    return 0;
}

int walk_next(const struct walk *w, struct walk_at *p)
{
    for (uint32_t i = w->rank - 1; i-- > 0;) {
        p->index[i]++;
        for (uint32_t o = 0; o < w->operands; o++)
            p->at[o] += w->step[o][i];
        if (p->index[i] < w->dims[i])
            return 1;
        for (uint32_t o = 0; o < w->operands; o++)
            p->at[o] -= w->step[o][i] * w->dims[i];
        p->index[i] = 0;
    }
    return 0;
}

#define COPY_LOOP(type)                                                         \
    do {                                                                        \
        const type *f = (const type *)from;                                     \
        type *t = (type *)to;                                                   \
        if (fs == 0) {                                                          \
            type v = *f;                                                        \
            for (int64_t i = 0; i < n; i++)                                     \
                t[i * ts] = v;                                                  \
        } else if (ts == 1) {                                                   \
            for (int64_t i = 0; i < n; i++)                                     \
                t[i] = f[i * fs];                                               \
        } else {                                                                \
            for (int64_t i = 0; i < n; i++)                                     \
                t[i * ts] = f[i * fs];                                          \
        }                                                                       \
    } while (0)

static void copy_row(size_t size, int64_t n, const char *from, int64_t fs, char *to, int64_t ts)
{
    if (fs == 1 && ts == 1) {
        memcpy(to, from, (size_t)n * size);
        return;
    }
    switch (size) {
    case 1:
        COPY_LOOP(uint8_t);
        break;
    case 2:
        COPY_LOOP(uint16_t);
        break;
    case 4:
        COPY_LOOP(uint32_t);
        break;
    case 8:
        COPY_LOOP(uint64_t);
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            memcpy(to + i * ts * (int64_t)size, from + i * fs * (int64_t)size, size);
    }
}

/* A matrix whose rows are dense on one side and whose columns are on the other, in blocks that stay in the first-level cache. */
#define COPY_BLOCK(type)                                                                     \
    do {                                                                                     \
        const type *f = (const type *)from;                                                  \
        type *t = (type *)to;                                                                \
        for (int64_t i0 = 0; i0 < rows; i0 += 16)                                            \
            for (int64_t j0 = 0; j0 < cols; j0 += 16) {                                      \
                int64_t i1 = i0 + 16 < rows ? i0 + 16 : rows, j1 = j0 + 16 < cols ? j0 + 16 : cols; \
                for (int64_t i = i0; i < i1; i++)                                            \
                    for (int64_t j = j0; j < j1; j++)                                        \
                        t[i * tr + j * tc] = f[i * fr + j * fc];                             \
            }                                                                                \
    } while (0)

typedef uint32_t four __attribute__((vector_size(16)));

static inline four load_four(const uint32_t *p)
{
    four v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Four-byte elements, rows dense in `from` and columns in `to`: tiles of 4 x 4 in registers. */
static void turn_matrix(int64_t rows, int64_t cols, const uint32_t *f, int64_t fc, uint32_t *t, int64_t tr)
{
    int64_t whole_rows = rows / 4 * 4, whole_cols = cols / 4 * 4;
    for (int64_t j0 = 0; j0 < whole_cols; j0 += 16)
        for (int64_t i = 0; i < whole_rows; i += 4)
            for (int64_t j = j0; j < j0 + 16 && j < whole_cols; j += 4) {
                const uint32_t *p = f + i + j * fc;
                uint32_t *q = t + i * tr + j;
                four a = load_four(p), b = load_four(p + fc), c = load_four(p + 2 * fc), d = load_four(p + 3 * fc);
                four ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
                four ef = __builtin_shufflevector(a, b, 2, 6, 3, 7), gh = __builtin_shufflevector(c, d, 2, 6, 3, 7);
                four out[4] = {__builtin_shufflevector(ab, cd, 0, 1, 4, 5), __builtin_shufflevector(ab, cd, 2, 3, 6, 7),
                               __builtin_shufflevector(ef, gh, 0, 1, 4, 5), __builtin_shufflevector(ef, gh, 2, 3, 6, 7)};
                for (int k = 0; k < 4; k++)
                    memcpy(q + k * tr, &out[k], sizeof out[k]);
            }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = i < whole_rows ? whole_cols : 0; j < cols; j++)
            t[i * tr + j] = f[i + j * fc];
}

static void copy_matrix(size_t size, int64_t rows, int64_t cols, const char *from, int64_t fr, int64_t fc, char *to, int64_t tr, int64_t tc)
{
    switch (size) {
    case 1:
        COPY_BLOCK(uint8_t);
        break;
    case 2:
        COPY_BLOCK(uint16_t);
        break;
    case 4:
        if (fr == 1 && tc == 1)
            turn_matrix(rows, cols, (const uint32_t *)from, fc, (uint32_t *)to, tr);
        else
            COPY_BLOCK(uint32_t);
        break;
    case 8:
        COPY_BLOCK(uint64_t);
        break;
    default:
        for (int64_t i = 0; i < rows; i++)
            copy_row(size, cols, from + i * fr * (int64_t)size, fc, to + i * tr * (int64_t)size, tc);
    }
}

/* When the axis along which `from` is dense is not the last one, that axis comes to stand before the last: the two are then copied as
   matrices. */
static int blocked(struct walk *w)
{
    uint32_t last = w->rank - 1;
    if (w->rank < 2 || w->step[1][last] != 1 || w->step[0][last] <= 1)
        return 0;
    for (uint32_t i = 0; i < last; i++) {
        if (w->step[0][i] != 1)
            continue;
        int64_t d = w->dims[i], f = w->step[0][i], t = w->step[1][i];
        for (uint32_t j = i; j + 1 < last; j++) {
            w->dims[j] = w->dims[j + 1];
            w->step[0][j] = w->step[0][j + 1];
            w->step[1][j] = w->step[1][j + 1];
        }
        w->dims[last - 1] = d;
        w->step[0][last - 1] = f;
        w->step[1][last - 1] = t;
        return 1;
    }
    return 0;
}

void copy_steps(size_t size, uint32_t rank, const int64_t *dims, const void *from, const int64_t *from_step, void *to, const int64_t *to_step)
{
    struct walk w;
    walk_init(&w, rank, dims);
    walk_steps(&w, from_step);
    walk_steps(&w, to_step);
    walk_merge(&w);
    if (walk_empty(&w))
        return;
    struct walk_at p = {0};
    const char *f = from;
    char *t = to;
    int64_t z = (int64_t)size;
    uint32_t last = w.rank - 1;
    if (blocked(&w)) {
        uint32_t row = last - 1;
        struct walk outer = w;
        outer.rank = last; /* walk_next leaves out the last of these: the rows */
        do
            copy_matrix(size, w.dims[row], w.dims[last], f + p.at[0] * z, w.step[0][row], w.step[0][last], t + p.at[1] * z, w.step[1][row],
                        w.step[1][last]);
        while (walk_next(&outer, &p));
        return;
    }
    do
        copy_row(size, w.dims[last], f + p.at[0] * z, w.step[0][last], t + p.at[1] * z, w.step[1][last]);
    while (walk_next(&w, &p));
}

void fill_elements(size_t size, const void *element, int64_t count, void *to)
{
    if (count <= 0)
        return;
    const unsigned char *b = element;
    int zero = 1;
    for (size_t i = 0; i < size; i++)
        zero &= b[i] == 0;
    if (zero)
        memset(to, 0, (size_t)count * size);
    else
        copy_row(size, count, element, 0, to, 1);
}
