/* Scaler, Normalizer, Imputer, Binarizer, OneHotEncoder, LabelEncoder, CategoryMapper, ArrayFeatureExtractor, FeatureVectorizer, ZipMap. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/ops/ml.h"
#include "workers/engine/ops/wide.h"

static int every_axis(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)s, (void)out;
    return in == 0 ? (int)axis : -1;
}

static enum status number_input(const struct shaping *s, struct err *e)
{
    if (s->in[0].kind != VALUE_TENSOR || s->in[0].dtype == DT_STR)
        return node_error(s->node, e, "its input is not a tensor of numbers");
    return ST_OK;
}

static enum status float_out(struct shaping *s, struct err *e)
{
    TRY(number_input(s, e));
    shape_as(s, 0, 0);
    s->out[0].dtype = DT_F32;
    return ST_OK;
}

static size_t last_axis(const struct tensor *t)
{
    return t->rank ? (size_t)t->dims[t->rank - 1] : 1;
}

/* Scaler: (x - offset) * scale, one of each for all columns or one for each ---------------------------------------------------------------------------- */

static enum status scaler_shape(struct shaping *s, struct err *e)
{
    uint32_t n_offset, n_scale;
    const struct type *x = &s->in[0];
    TRY(float_out(s, e));
    (void)node_floats(s->node, "offset", &n_offset);
    (void)node_floats(s->node, "scale", &n_scale);
    dim columns = x->rank > 0 ? x->dims[x->rank - 1] : DIM_UNKNOWN;
    for (int i = 0; i < 2; i++) {
        uint32_t n = i ? n_scale : n_offset;
        if (n > 1 && dim_known(columns) && columns != n)
            return node_error(s->node, e, "%u offsets and %u scales for %lld columns", n_offset, n_scale, (long long)columns);
    }
    return ST_OK;
}

static enum status scaler_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    uint32_t n_offset, n_scale;
    const float *offset = node_floats(n, "offset", &n_offset), *scale = node_floats(n, "scale", &n_scale), *from;
    if (!run_out(r, 0))
        return ST_OK;
    float *y = tensor_data(run_out(r, 0));
    size_t columns = last_axis(x);
    TRY(wide_f32(r, x, &from, e));
    for (size_t i = 0, all = (size_t)tensor_count(x); i < all; i++) {
        size_t c = i % columns;
        float v = from[i];
        if (n_offset)
            v -= offset[n_offset > 1 ? c : 0];
        if (n_scale)
            v *= scale[n_scale > 1 ? c : 0];
        y[i] = v;
    }
    return ST_OK;
}

/* Normalizer -------------------------------------------------------------------------------------------------------------------------------------------- */

static enum status normalizer_check(struct node *n, struct err *e)
{
    const char *how = node_string(n, "norm", "MAX");
    return !strcmp(how, "MAX") || !strcmp(how, "L1") || !strcmp(how, "L2") ? ST_OK : node_error(n, e, "attribute 'norm' is '%s'", how);
}

static enum status normalizer_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    const char *how = node_string(n, "norm", "MAX");
    const float *from;
    if (!run_out(r, 0) || tensor_count(x) == 0)
        return ST_OK;
    float *y = tensor_data(run_out(r, 0));
    size_t columns = last_axis(x);
    TRY(wide_f32(r, x, &from, e));
    for (size_t i = 0, rows = (size_t)tensor_count(x) / columns; i < rows; i++, from += columns, y += columns) {
        double norm = how[0] == 'M' ? -INFINITY : 0;
        for (size_t j = 0; j < columns; j++) {
            double v = (double)from[j];
            norm = how[0] == 'M' ? (v > norm ? v : norm) : norm + (how[1] == '1' ? fabs(v) : v * v);
        }
        norm = how[1] == '2' ? sqrt(norm) : norm;
        for (size_t j = 0; j < columns; j++)
            y[j] = norm != 0 ? (float)((double)from[j] / norm) : from[j];
    }
    return ST_OK;
}

/* Imputer: one value in place of another, per column --------------------------------------------------------------------------------------------------- */

static enum status imputer_shape(struct shaping *s, struct err *e)
{
    uint32_t count;
    const struct type *x = &s->in[0];
    TRY(number_input(s, e));
    int floats = dtype_is_float(x->dtype);
    if (floats)
        (void)node_floats(s->node, "imputed_value_floats", &count);
    else
        (void)node_ints(s->node, "imputed_value_int64s", &count);
    if (!count || (count > 1 && x->rank > 0 && dim_known(x->dims[x->rank - 1]) && x->dims[x->rank - 1] != count))
        return node_error(s->node, e, "%u values to impute in %s", count, dtype_name(x->dtype));
    shape_as(s, 0, 0);
    return ST_OK;
}

static enum status imputer_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    struct tensor *y = run_out(r, 0);
    uint32_t count;
    (void)e;
    if (!y)
        return ST_OK;
    size_t columns = last_axis(x), size = dtype_bytes(x->dtype);
    const float *f = NULL;
    const int64_t *v = NULL;
    double replaced;
    if (dtype_is_float(x->dtype)) {
        f = node_floats(n, "imputed_value_floats", &count);
        replaced = (double)node_float(n, "replaced_value_float", 0);
    } else {
        v = node_ints(n, "imputed_value_int64s", &count);
        replaced = (double)node_int(n, "replaced_value_int64", 0);
    }
    memcpy(tensor_data(y), tensor_data(x), (size_t)tensor_count(x) * size);
    for (size_t i = 0, all = (size_t)tensor_count(x); i < all; i++) {
        double a = wide_get(x->dtype, tensor_data(x), i);
        if (a != replaced && !(a != a && replaced != replaced))
            continue;
        size_t c = count > 1 ? i % columns : 0;
        wide_put(y->dtype, tensor_data(y), i, f ? (double)f[c] : (double)v[c]);
    }
    return ST_OK;
}

static enum status binarizer_shape(struct shaping *s, struct err *e)
{
    TRY(number_input(s, e));
    shape_as(s, 0, 0);
    return ST_OK;
}

static enum status binarizer_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    struct tensor *y = run_out(r, 0);
    double threshold = (double)node_float(n, "threshold", 0);
    (void)e;
    for (size_t i = 0, all = (size_t)tensor_count(x); y && i < all; i++)
        wide_put(y->dtype, tensor_data(y), i, wide_get(x->dtype, tensor_data(x), i) > threshold);
    return ST_OK;
}

/* OneHotEncoder ----------------------------------------------------------------------------------------------------------------------------------------- */

static enum status onehot_shape(struct shaping *s, struct err *e)
{
    struct ml_labels cats;
    const struct type *x = &s->in[0];
    TRY(ml_labels_of(s->node, "cats_strings", "cats_int64s", &cats, e));
    if (x->kind != VALUE_TENSOR || (x->dtype == DT_STR) != (cats.strings != NULL) || x->rank >= RANK_MAX)
        return node_error(s->node, e, "its input is of type %s, its categories are %s", dtype_name(x->dtype), cats.strings ? "strings" : "integers");
    if (x->rank < 0) {
        type_unknown(s, &s->out[0], DT_F32, -1);
        return ST_OK;
    }
    dim dims[RANK_MAX];
    memcpy(dims, x->dims, sizeof dims);
    dims[x->rank] = cats.count;
    type_tensor(&s->out[0], DT_F32, x->rank + 1, dims);
    return ST_OK;
}

static int same(const struct str *a, const struct str *b)
{
    return a->len == b->len && !memcmp(a->data, b->data, a->len);
}

static enum status onehot_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    struct ml_labels cats;
    TRY(ml_labels_of(n, "cats_strings", "cats_int64s", &cats, e));
    if (!run_out(r, 0))
        return ST_OK;
    float *y = tensor_data(run_out(r, 0));
    int zeros = node_int(n, "zeros", 1) != 0;
    memset(y, 0, (size_t)tensor_count(run_out(r, 0)) * sizeof *y);
    for (size_t i = 0, all = (size_t)tensor_count(x); i < all; i++, y += cats.count) {
        uint32_t at = cats.count;
        for (uint32_t c = cats.count; c-- > 0;)
            if (cats.strings ? same(&((const struct str *)tensor_data(x))[i], &cats.strings[c])
                             : wide_get(x->dtype, tensor_data(x), i) == (double)cats.ints[c])
                at = c;
        if (at < cats.count)
            y[at] = 1;
        else if (!zeros)
            return node_error(n, e, "element %zu is in no category", i);
    }
    return ST_OK;
}

/* LabelEncoder and CategoryMapper: a table from keys to values ------------------------------------------------------------------------------------------ */

struct table {
    uint32_t count;
    enum dtype from, to;
    const struct str *key_s, *value_s;
    const int64_t *key_i, *value_i;
    const float *key_f, *value_f;
    const struct tensor *keys, *values; /* as tensors: opset 4 */
    int by_index;                       /* opset 1: strings to and from their places in a list */
};

static const struct tensor *attr_tensor(const struct node *n, const char *name)
{
    const struct attr *a = node_attr(n, name);
    return a && a->kind == ATTR_TENSOR && a->tensors && a->tensors->buffer ? a->tensors : NULL;
}

static enum status read_table(struct node *n, struct table *t, struct err *e)
{
    uint32_t n_keys = 0, n_values = 0;
    if (!strcmp(n->op, "CategoryMapper")) {
        t->key_s = ml_strings(n, "cats_strings", &n_keys);
        t->key_i = node_ints(n, "cats_int64s", &n_values);
        t->count = n_keys;
        return n_keys == n_values && n_keys ? ST_OK : node_error(n, e, "%u strings for %u integers", n_keys, n_values);
    }
    if (n->opset < 2) {
        t->key_s = ml_strings(n, "classes_strings", &t->count);
        t->by_index = 1;
        return t->count ? ST_OK : node_error(n, e, "attribute 'classes_strings' is missing");
    }
    t->keys = attr_tensor(n, "keys_tensor"), t->values = attr_tensor(n, "values_tensor");
    t->key_s = ml_strings(n, "keys_strings", &n_keys);
    t->from = DT_STR;
    if (!t->key_s && (t->key_i = node_ints(n, "keys_int64s", &n_keys)))
        t->from = DT_I64;
    if (!t->key_s && !t->key_i && (t->key_f = node_floats(n, "keys_floats", &n_keys)))
        t->from = DT_F32;
    if (t->keys)
        t->from = t->keys->dtype, n_keys = (uint32_t)tensor_count(t->keys);
    t->value_s = ml_strings(n, "values_strings", &n_values);
    t->to = DT_STR;
    if (!t->value_s && (t->value_i = node_ints(n, "values_int64s", &n_values)))
        t->to = DT_I64;
    if (!t->value_s && !t->value_i && (t->value_f = node_floats(n, "values_floats", &n_values)))
        t->to = DT_F32;
    if (t->values)
        t->to = t->values->dtype, n_values = (uint32_t)tensor_count(t->values);
    t->count = n_keys;
    return n_keys == n_values && n_keys ? ST_OK : node_error(n, e, "%u keys for %u values", n_keys, n_values);
}

static enum status table_check(struct node *n, struct err *e)
{
    struct table *t = mem_zalloc(sizeof *t);
    if (!t)
        return err_nomem(e, "the model's graph");
    n->state = t;
    return read_table(n, t, e);
}

static int is_pairs(const struct node *n, const struct table *t) /* strings and integers, whichever way */
{
    return t->by_index || !strcmp(n->op, "CategoryMapper");
}

static enum status table_shape(struct shaping *s, struct err *e)
{
    const struct table *t = s->node->state;
    enum dtype d = s->in[0].dtype;
    if (is_pairs(s->node, t) ? d != DT_STR && d != DT_I64 : s->in[0].kind != VALUE_TENSOR || d != t->from)
        return node_error(s->node, e, "its input is of type %s; %s is needed", dtype_name(d), is_pairs(s->node, t) ? "string or int64" : dtype_name(t->from));
    shape_as(s, 0, 0);
    s->out[0].dtype = is_pairs(s->node, t) ? (d == DT_STR ? DT_I64 : DT_STR) : t->to;
    return ST_OK;
}

static int64_t find_key(const struct table *t, const struct tensor *x, size_t i)
{
    if (x->dtype == DT_STR) {
        const struct str *want = (const struct str *)tensor_data(x) + i, *keys = t->keys ? tensor_data(t->keys) : t->key_s;
        for (uint32_t k = 0; k < t->count; k++)
            if (same(&keys[k], want))
                return k;
        return -1;
    }
    double want = wide_get(x->dtype, tensor_data(x), i);
    for (uint32_t k = 0; k < t->count; k++) {
        double key = t->keys ? wide_get(t->keys->dtype, tensor_data(t->keys), k) : t->key_i ? (double)t->key_i[k] : (double)t->key_f[k];
        if (key == want || (key != key && want != want))
            return k;
    }
    return -1;
}

static struct str default_string(const struct node *n)
{
    const struct attr *a = node_attr(n, "default_string");
    static const char unused[] = "_Unused";
    if (a && a->kind == ATTR_STRING)
        return a->s;
    return (struct str){unused, sizeof unused - 1};
}

static enum status pairs_run(struct run *r, const struct node *n)
{
    const struct table *t = n->state;
    const struct tensor *x = run_in(r, 0);
    struct tensor *y = run_out(r, 0);
    for (size_t i = 0, all = (size_t)tensor_count(x); i < all; i++) {
        if (x->dtype == DT_STR) {
            int64_t k = find_key(t, x, i);
            ((int64_t *)tensor_data(y))[i] = k < 0 ? node_int(n, "default_int64", -1) : t->by_index ? k : t->key_i[k];
        } else {
            int64_t v = ((const int64_t *)tensor_data(x))[i], k = -1;
            if (t->by_index)
                k = v >= 0 && v < t->count ? v : -1;
            else
                for (uint32_t j = 0; j < t->count && k < 0; j++)
                    k = t->key_i[j] == v ? (int64_t)j : -1;
            ((struct str *)tensor_data(y))[i] = k < 0 ? default_string(n) : t->key_s[k];
        }
    }
    return ST_OK;
}

static enum status table_run(struct run *r, const struct node *n, struct err *e)
{
    const struct table *t = n->state;
    const struct tensor *x = run_in(r, 0), *otherwise = attr_tensor(n, "default_tensor");
    struct tensor *y = run_out(r, 0);
    (void)e;
    if (!y)
        return ST_OK;
    if (is_pairs(n, t))
        return pairs_run(r, n);
    for (size_t i = 0, all = (size_t)tensor_count(x); i < all; i++) {
        int64_t k = find_key(t, x, i);
        if (t->to == DT_STR) {
            const struct str *v = t->values ? tensor_data(t->values) : t->value_s;
            ((struct str *)tensor_data(y))[i] = k >= 0 ? v[k] : otherwise ? *(const struct str *)tensor_data(otherwise) : default_string(n);
        } else if (t->to == DT_I64) {
            const int64_t *v = t->values ? tensor_data(t->values) : t->value_i;
            ((int64_t *)tensor_data(y))[i] = k >= 0 ? v[k] : otherwise ? *(const int64_t *)tensor_data(otherwise) : node_int(n, "default_int64", -1);
        } else if (t->values) {
            wide_put(t->to, tensor_data(y), i, k >= 0 ? wide_get(t->to, tensor_data(t->values), (size_t)k) : otherwise ? wide_get(otherwise->dtype, tensor_data(otherwise), 0) : 0);
        } else {
            ((float *)tensor_data(y))[i] = k >= 0 ? t->value_f[k] : node_float(n, "default_float", -0.0f);
        }
    }
    return ST_OK;
}

/* ArrayFeatureExtractor: columns by number --------------------------------------------------------------------------------------------------------------- */

static enum status extract_shape(struct shaping *s, struct err *e)
{
    const struct type *x = &s->in[0];
    TRY(shape_type(s, 1, DT_I64, e));
    if (x->rank < 0 || s->in[1].rank < 0) {
        type_unknown(s, &s->out[0], x->dtype, -1);
        return ST_OK;
    }
    if (x->rank == 0)
        return node_error(s->node, e, "its input is a single number");
    dim count = type_count(s, &s->in[1]);
    if (x->rank == 1) {
        type_tensor(&s->out[0], x->dtype, 2, (dim[]){1, count});
        return ST_OK;
    }
    dim dims[RANK_MAX];
    memcpy(dims, x->dims, sizeof dims);
    dims[x->rank - 1] = count;
    type_tensor(&s->out[0], x->dtype, x->rank, dims);
    return ST_OK;
}

static enum status extract_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0), *at = run_in(r, 1);
    struct tensor *y = run_out(r, 0);
    size_t columns = last_axis(x), count = (size_t)tensor_count(at), size = dtype_bytes(x->dtype);
    const int64_t *index = tensor_data(at);
    for (size_t j = 0; j < count; j++)
        if (index[j] < 0 || (size_t)index[j] >= columns)
            return node_error(n, e, "column %lld of %zu", (long long)index[j], columns);
    for (size_t i = 0, rows = columns ? (size_t)tensor_count(x) / columns : 0; y && i < rows; i++)
        for (size_t j = 0; j < count; j++)
            memcpy((char *)tensor_data(y) + (i * count + j) * size, (const char *)tensor_data(x) + (i * columns + (size_t)index[j]) * size, size);
    return ST_OK;
}

/* FeatureVectorizer: inputs side by side as floats --------------------------------------------------------------------------------------------------------- */

static enum status vectorizer_shape(struct shaping *s, struct err *e)
{
    dim columns = 0, rows = 1;
    for (uint32_t i = 0; i < s->n_in; i++) {
        TRY(ml_numbers(s, i, e));
        const struct type *t = &s->in[i];
        rows = i == 0 ? ml_row_count(s, t) : rows;
        columns = t->rank < 0 ? dim_fresh(s->syms) : dim_add(s->syms, columns, t->dims[t->rank - 1]);
    }
    type_tensor(&s->out[0], DT_F32, 2, (dim[]){rows, columns});
    return ST_OK;
}

static enum status vectorizer_run(struct run *r, const struct node *n, struct err *e)
{
    struct tensor *y = run_out(r, 0);
    size_t first = 0, width = y ? (size_t)y->dims[1] : 0, rows, columns;
    for (uint32_t i = 0; y && i < n->n_in; i++, first += columns) {
        const float *x;
        ml_rows(run_in(r, i), &rows, &columns);
        if (rows != (size_t)y->dims[0])
            return node_error(n, e, "input %u has %zu rows, the first %lld", i, rows, (long long)y->dims[0]);
        TRY(wide_f32(r, run_in(r, i), &x, e));
        for (size_t j = 0; j < rows; j++)
            memcpy((float *)tensor_data(y) + j * width + first, x + j * columns, columns * sizeof *x);
    }
    return ST_OK;
}

/* ZipMap gives each row as a map from class to score; here the scores stay the tensor that they are. */
static enum status zipmap_shape(struct shaping *s, struct err *e)
{
    struct ml_labels labels;
    TRY(ml_labels_of(s->node, "classlabels_strings", "classlabels_int64s", &labels, e));
    TRY(ml_numbers(s, 0, e));
    shape_as(s, 0, 0);
    return ST_OK;
}

static enum status zipmap_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    struct tensor *y = run_out(r, 0);
    (void)n, (void)e;
    if (y)
        memcpy(tensor_data(y), tensor_data(x), (size_t)tensor_count(x) * dtype_bytes(x->dtype));
    return ST_OK;
}

#define ROW(op, most, ...) {.domain = "ai.onnx.ml", .name = op, .since = 1, .until = OPSET_ANY, .min_in = 1, .max_in = most, .min_out = 1, .max_out = 1, __VA_ARGS__}
const struct op_def ops_ml_prepare[] = {
    ROW("Scaler", 1, .shape = scaler_shape, .run = scaler_run, .follow = ml_follow),
    ROW("Normalizer", 1, .check = normalizer_check, .shape = float_out, .run = normalizer_run, .follow = ml_follow),
    ROW("Imputer", 1, .shape = imputer_shape, .run = imputer_run, .follow = ml_follow),
    ROW("Binarizer", 1, .shape = binarizer_shape, .run = binarizer_run, .follow = every_axis),
    ROW("OneHotEncoder", 1, .shape = onehot_shape, .run = onehot_run, .follow = every_axis),
    ROW("LabelEncoder", 1, .check = table_check, .shape = table_shape, .run = table_run, .release = release_state, .follow = every_axis),
    ROW("CategoryMapper", 1, .check = table_check, .shape = table_shape, .run = table_run, .release = release_state, .follow = every_axis),
    ROW("ArrayFeatureExtractor", 2, .shape = extract_shape, .run = extract_run, .follow = ml_follow),
    ROW("FeatureVectorizer", 0xffff, .shape = vectorizer_shape, .run = vectorizer_run),
    ROW("ZipMap", 1, .shape = zipmap_shape, .run = zipmap_run, .follow = ml_follow),
    {0},
};
