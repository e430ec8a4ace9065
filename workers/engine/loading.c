#include "workers/engine/loading.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { NAME_MAX_BYTES = 192, TABLE_BYTES = 4 << 20 /* of a table that are read at once */ };

void loading_release(struct loading *l)
{
    mem_free(l->space);
    mem_free(l->mark);
    l->space = NULL;
    l->mark = NULL;
    l->room = l->marks = l->mark_cap = 0;
}

enum status loading_mark(struct loading *l, const char *name, struct err *e)
{
    if (!l->marking)
        return ST_OK;
    if (mem_grow((void **)&l->mark, &l->mark_cap, l->marks, sizeof *l->mark))
        return err_nomem(e, "segments");
    struct mark *m = &l->mark[l->marks++];
    m->bytes = l->bytes;
    snprintf(m->name, sizeof m->name, "%s", name);
    return ST_OK;
}

float *loading_space(struct loading *l, size_t n)
{
    if (n > l->room) {
        mem_free(l->space);
        l->space = mem_array(n, sizeof *l->space);
        l->room = l->space ? n : 0;
    }
    return l->space;
}

static const struct tensor *find_prefixed(const struct loading *l, const char *name)
{
    const char *family = l->c->family->prefix;
    char text[NAME_MAX_BYTES];
    const struct tensor *t = weights_find(l->w, name);
    for (int i = 1; !t && i < 4; i++) {
        snprintf(text, sizeof text, "%s%s%s%s", i & 2 ? "model." : "", i & 1 ? family : "", i & 1 ? "." : "", name);
        t = weights_find(l->w, text);
    }
    return t;
}

/* Old conversions call a norm's weight and bias gamma and beta. */
static const struct tensor *find_named(const struct loading *l, const char *name)
{
    char other[NAME_MAX_BYTES];
    const struct tensor *t = find_prefixed(l, name);
    const char *norm = strstr(name, "LayerNorm.");
    if (!t && norm) {
        snprintf(other, sizeof other, "%.*sLayerNorm.%s", (int)(norm - name), name, strstr(norm, ".weight") ? "gamma" : "beta");
        t = find_prefixed(l, other);
    }
    return t;
}

int loading_has(const struct loading *l, const char *name)
{
    return find_named(l, name) != NULL;
}

static const char *shape_text(uint32_t rank, const uint64_t *dim, char *out, size_t cap)
{
    size_t n = (size_t)snprintf(out, cap, "[");
    for (uint32_t i = 0; i < rank && n < cap; i++)
        n += (size_t)snprintf(out + n, cap - n, "%s%llu", i ? ", " : "", (unsigned long long)dim[i]);
    if (n < cap)
        snprintf(out + n, cap - n, "]");
    return out;
}

static enum status find(const struct loading *l, const char *name, uint32_t rows, uint32_t cols, const struct tensor **out, struct err *e)
{
    const struct tensor *t = find_named(l, name);
    if (!t)
        return err_set(e, ST_USER, "'%s': tensor '%s' is missing, with and without the prefix '%s.'", weights_main_file(l->w), name,
                       l->c->family->prefix);
    uint64_t dim[2] = {rows, cols};
    uint32_t rank = cols ? 2 : 1;
    if (t->rank != rank || t->dim[0] != rows || (cols && t->dim[1] != cols)) {
        char has[200], needs[200];
        return err_set(e, ST_USER, "'%s': tensor '%s' has the shape %s; config.json asks for %s", weights_file(l->w, t->file), t->name,
                       shape_text(t->rank, t->dim, has, sizeof has), shape_text(rank, dim, needs, sizeof needs));
    }
    if (strcmp(t->dtype, "F32") != 0 && strcmp(t->dtype, "F16") != 0 && strcmp(t->dtype, "BF16") != 0)
        return err_set(e, ST_USER, "'%s': tensor '%s' has dtype '%s'; supported are F32, F16 and BF16", weights_file(l->w, t->file), t->name,
                       t->dtype);
    *out = t;
    return ST_OK;
}

enum status loading_tensor(struct loading *l, const char *name, uint32_t rows, uint32_t cols, float *to, struct err *e)
{
    const struct tensor *t;
    TRY(find(l, name, rows, cols, &t, e));
    l->parameters += t->count;
    return l->load ? weights_read(l->w, t, to, e) : ST_OK;
}

enum status loading_rows(struct loading *l, const char *name, uint32_t rows, uint32_t cols, uint32_t first, uint32_t count, float *to, struct err *e)
{
    const struct tensor *t;
    TRY(find(l, name, rows, cols, &t, e));
    return weights_read_some(l->w, t, (uint64_t)first * cols, (uint64_t)count * cols, to, e);
}

static enum status cannot_write(struct err *e)
{
    return err_set(e, ST_ENV, "packed weights cannot be written");
}

static enum status pack_table(struct loading *l, const char *name, uint32_t rows, uint32_t cols, struct err *e)
{
    uint32_t fit = (uint32_t)(TABLE_BYTES / sizeof(float)) / cols, some = fit ? fit : 1;
    float *space = loading_space(l, (size_t)(some < rows ? some : rows) * cols);
    if (!space)
        return err_nomem(e, "the model's weights");
    for (uint32_t i = 0, n; i < rows; i += n) {
        n = rows - i < some ? rows - i : some;
        TRY(loading_rows(l, name, rows, cols, i, n, space, e));
        if (packfile_rows(l->pack, name, rows, cols, i, n, space))
            return cannot_write(e);
    }
    return ST_OK;
}

enum status loading_shape(struct loading *l, const char *name, uint32_t rows, uint32_t cols, struct err *e)
{
    int load = l->load;
    l->load = 0;
    enum status st = loading_tensor(l, name, rows, cols, NULL, e);
    l->load = load;
    return st;
}

enum status loading_table(struct loading *l, const char *name, uint32_t rows, uint32_t cols, const float **to, float **own, struct err *e)
{
    size_t count = (size_t)rows * cols;
    if (l->ask)
        l->lacks += !packfile_has_table(l->pack, name, rows, cols);
    *to = l->load ? packfile_table(l->pack, name, rows, cols) : NULL;
    if (!l->load || *to) /* it was checked when it was packed */
        return loading_shape(l, name, rows, cols, e);
    if (l->packing)
        return pack_table(l, name, rows, cols, e);
    if (!(*own = mem_aligned(count * sizeof **own)))
        return err_nomem(e, "the model's weights");
    *to = *own;
    return loading_tensor(l, name, rows, cols, *own, e);
}

struct loading_was loading_enter(struct loading *l, int wanted)
{
    struct loading_was was = {l->load, l->ask, l->bytes};
    l->load = l->load && wanted;
    l->ask = l->ask && wanted;
    return was;
}

void loading_leave(struct loading *l, struct loading_was was, int wanted)
{
    l->load = was.load;
    l->ask = was.ask;
    l->bytes = wanted ? l->bytes : was.bytes;
}

enum status loading_flush(struct loading *l, struct err *e)
{
    return l->load && l->packing && packfile_flush(l->pack) ? cannot_write(e) : ST_OK;
}

enum status loading_norm(struct loading *l, const char *name, uint32_t n, float eps, struct norm *to, struct err *e)
{
    char text[NAME_MAX_BYTES];
    l->bytes += norm_bytes(n);
    if (l->load)
        TRY(norm_init(to, l->kernels, n, eps, e));
    snprintf(text, sizeof text, "%s.weight", name);
    TRY(loading_tensor(l, text, n, 0, l->load ? to->gamma : NULL, e));
    snprintf(text, sizeof text, "%s.bias", name);
    return loading_tensor(l, text, n, 0, l->load ? to->beta : NULL, e);
}

enum status loading_linear(struct loading *l, const char *packed, uint32_t n, uint32_t k, struct linear *to, struct err *e)
{
    l->bytes += linear_packed_bytes(l->kernels, l->precision, n, k);
    if (l->ask && packed)
        l->lacks += !packfile_has(l->pack, packed, l->kernels, l->precision, n, k);
    return l->load ? packfile_linear(l->pack, packed, to, l->kernels, l->precision, n, k, e) : ST_OK;
}

static enum status part(struct loading *l, const char *weight, const char *bias, uint32_t first, uint32_t count, uint32_t k,
                        struct linear *to, struct err *e)
{
    size_t size = (size_t)count * k;
    int load = l->load;
    l->load = load && !to->filled;
    float *space = l->load ? loading_space(l, size + count) : NULL;
    enum status st = l->load && !space ? err_nomem(e, "the model's weights") : loading_tensor(l, weight, count, k, space, e);
    if (st == ST_OK && bias)
        st = loading_tensor(l, bias, count, 0, l->load ? space + size : NULL, e);
    else if (st == ST_OK && l->load)
        memset(space + size, 0, count * sizeof *space);
    if (st == ST_OK && l->load)
        linear_set(to, first, count, space, space + size);
    l->load = load;
    return st;
}

enum status loading_part(struct loading *l, const char *name, uint32_t first, uint32_t count, uint32_t k, struct linear *to, struct err *e)
{
    char weight[NAME_MAX_BYTES], bias[NAME_MAX_BYTES];
    snprintf(weight, sizeof weight, "%s.weight", name);
    snprintf(bias, sizeof bias, "%s.bias", name);
    return part(l, weight, bias, first, count, k, to, e);
}

enum status loading_named(struct loading *l, const char *weight, const char *bias, uint32_t count, uint32_t k, struct linear *to,
                          struct err *e)
{
    return part(l, weight, bias, 0, count, k, to, e);
}
