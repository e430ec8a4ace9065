#include "workers/tensor_in/feed.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/path.h"
#include "storage/csv.h"
#include "storage/json.h"
#include "storage/utf8.h"
#include "workers/image/fetch.h"
#include "workers/image/prepare.h"
#include "workers/tensor_in/tensor_in.h"

struct feed {
    const struct port *in;
    uint32_t n_in;
    struct feed_opts o;
    int pictures;            /* the model's only input takes pictures, and the model says how */
    struct image_spec *spec; /* with the input's layout */
    int table;               /* CSV and TSV */
    int all_columns;         /* are one input */
    char words[256];
};

struct feed_scratch {
    struct tensor_in *tensors; /* one an input */
    struct json_members members;
    struct csv_row row;
    struct buf bytes, name;
    struct image_scratch image;
    char *folder; /* of the last source */
    size_t n;
};

/* Made once ------------------------------------------------------------------------------------------------------------------------ */

static void words_of(const struct port *p, char *to, size_t size)
{
    size_t at = (size_t)snprintf(to, size, "'%.64s' [", p->name);
    for (int i = 0; i < p->rank && at < size; i++)
        at += (size_t)(p->dims[i] < 0 ? snprintf(to + at, size - at, "%sany", i ? ", " : "")
                                      : snprintf(to + at, size - at, "%s%lld", i ? ", " : "", (long long)p->dims[i]));
    if (at < size)
        snprintf(to + at, size - at, p->rank < 0 ? "any]" : "]");
}

/* Where channels, height and width stand; 0: this is no input of pictures */
static int picture_axes(const struct port *p, int channels_last, int *c, int *h, int *w)
{
    int first = p->rank - 3;
    if (p->rank < 3 || p->rank > 4 || (first && p->dims[0] != 1 && p->dims[0] != -1))
        return 0;
    const int64_t *d = p->dims + first;
    if (d[0] == 3 || (d[2] != 3 && !channels_last)) {
        *c = first;
        *h = first + 1;
        *w = first + 2;
    } else {
        *h = first;
        *w = first + 1;
        *c = first + 2;
    }
    return p->dims[*c] == 3 || p->dims[*c] == -1;
}

static enum status take_pictures(struct feed *f, struct err *e)
{
    const struct port *p = &f->in[0];
    int c, h, w;
    uint32_t width, height;
    char words[200];
    words_of(p, words, sizeof words);
    if (p->dtype != DT_F32)
        return err_set(e, ST_USER, "the model's input %s is of type %s, pictures become float32", words, dtype_name(p->dtype));
    if (!picture_axes(p, f->o.images->channels_last, &c, &h, &w))
        return err_set(e, ST_USER, "the model's input %s is not one of pictures with three channels", words);
    f->spec = mem_alloc(sizeof *f->spec);
    if (!f->spec)
        return err_nomem(e, "how images are prepared");
    *f->spec = *f->o.images;
    f->spec->channels_last = c > h;
    int fixed = image_spec_fixed(f->spec, &width, &height);
    if (!fixed && p->dims[h] >= 0 && p->dims[w] >= 0)
        return err_set(e, ST_USER,
                       "the model's input %s wants pictures of one size, its preprocessor_config.json (%s) makes each of its own: it needs a 'size' of height and "
                       "width, or do_center_crop",
                       words, f->spec->type);
    if (fixed && ((p->dims[h] >= 0 && p->dims[h] != height) || (p->dims[w] >= 0 && p->dims[w] != width)))
        return err_set(e, ST_USER, "the model's input %s does not go with its preprocessor_config.json (%s), which makes pictures of height %u and width %u",
                       words, f->spec->type, height, width);
    f->pictures = 1;
    return ST_OK;
}

static enum status resolve(struct feed *f, struct err *e)
{
    const struct feed_opts *o = &f->o;
    char words[200];
    words_of(&f->in[0], words, sizeof words);
    if (f->n_in == 1 && o->images && (o->format == FORMAT_IMAGES || o->format == FORMAT_JSONL)) {
        enum status st = take_pictures(f, e);
        if (st != ST_USER || o->format == FORMAT_IMAGES)
            TRY(st);
    }
    if (o->format == FORMAT_IMAGES && f->n_in != 1)
        return err_set(e, ST_USER, "the model has %u inputs, pictures can only be given to a model with one", f->n_in);
    if (o->format == FORMAT_IMAGES && !f->pictures)
        return err_set(e, ST_USER,
                       "the model has no preprocessor_config.json, which says how a picture becomes its input %s: write one beside it (docs/images.md)", words);
    if (o->format == FORMAT_NPY && f->n_in != 1)
        return err_set(e, ST_USER, "the model has %u inputs, an array can only be given to a model with one: give JSON lines with a member for each", f->n_in);
    if (o->format == FORMAT_LINES)
        return err_set(e, ST_USER, "the model takes arrays of numbers (its first input is %s), plain lines have none: give JSON lines, CSV, .npy or images", words);
    for (uint32_t i = 0; i < f->n_in; i++)
        if (f->in[i].dtype == DT_STR && !f->table)
            return err_set(e, ST_USER, "the model's input '%s' wants texts, which only CSV gives", f->in[i].name);
    if (f->pictures)
        snprintf(f->words, sizeof f->words, "%s%s%s -> %s", o->format == FORMAT_IMAGES ? "each file" : "the member '",
                 o->format == FORMAT_IMAGES ? "" : o->field ? o->field : "image", o->format == FORMAT_IMAGES ? "" : "'", words);
    else
        snprintf(f->words, sizeof f->words, "%s -> %s%s",
                 o->format == FORMAT_NPY                      ? "each row"
                 : f->table                                    ? "columns"
                 : f->n_in == 1 && o->field                    ? o->field
                                                               : "members of the same names",
                 words, f->n_in > 1 ? ", ..." : "");
    return ST_OK;
}

enum status feed_new(const struct port *in, uint32_t n_in, const struct feed_opts *o, struct feed **out, struct err *e)
{
    struct feed *f = mem_zalloc(sizeof *f);
    if (!f)
        return err_nomem(e, "the inputs of a model");
    if (!n_in) {
        mem_free(f);
        return err_set(e, ST_USER, "the model has no inputs: it gives the same for every record");
    }
    f->in = in;
    f->n_in = n_in;
    f->o = *o;
    f->table = o->format == FORMAT_CSV || o->format == FORMAT_TSV;
    enum status st = resolve(f, e);
    if (st != ST_OK) {
        feed_free(f);
        return st;
    }
    *out = f;
    return ST_OK;
}

void feed_free(struct feed *f)
{
    if (f)
        mem_free(f->spec);
    mem_free(f);
}

uint64_t feed_bytes(const struct feed *f)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < f->n_in; i++) {
        const struct port *p = &f->in[i];
        uint64_t n = dtype_bytes(p->dtype);
        uint32_t width, height;
        if (f->pictures && image_spec_fixed(f->spec, &width, &height)) {
            n *= (uint64_t)3 * width * height;
        } else {
            for (int k = 0; k < p->rank; k++)
                if (p->dims[k] > 0 && __builtin_mul_overflow(n, (uint64_t)p->dims[k], &n))
                    n = UINT32_MAX;
        }
        bytes += (n < UINT32_MAX ? n : UINT32_MAX) + sizeof(struct array);
    }
    return bytes;
}

const char *feed_words(const struct feed *f)
{
    return f->words;
}

enum status feed_scratch_new(const struct feed *f, struct feed_scratch **out, struct err *e)
{
    struct feed_scratch *s = mem_zalloc(sizeof *s);
    if (s)
        s->tensors = mem_array(f->n_in, sizeof *s->tensors);
    if (!s || !s->tensors) {
        mem_free(s);
        return err_nomem(e, "the inputs of a model");
    }
    s->n = f->n_in;
    *out = s;
    return ST_OK;
}

void feed_scratch_free(struct feed_scratch *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n; i++)
        tensor_in_release(&s->tensors[i]);
    mem_free(s->tensors);
    mem_free(s->folder);
    json_members_release(&s->members);
    csv_release(&s->row);
    buf_release(&s->bytes);
    buf_release(&s->name);
    image_scratch_release(&s->image);
    mem_free(s);
}

/* For each record ------------------------------------------------------------------------------------------------------------------- */

struct run {
    const struct feed *f;
    struct feed_scratch *s;
    const struct feed_record *r;
    enum record_error *what;
};

/* A record's fault */
static enum status fault(const struct run *c, enum record_error what, enum status st)
{
    *c->what = what;
    return st == ST_NOMEM || st == ST_ENV ? st : ST_USER;
}

static enum status picture(const struct run *c, const char *data, size_t len, struct err *e)
{
    const struct feed *f = c->f;
    const struct port *p = &f->in[0];
    struct tensor_in *t = &c->s->tensors[0];
    uint32_t width, height;
    t->dtype = DT_F32;
    enum status st = image_prepare(f->spec, &c->s->image, data, len, t->data, t->cap / sizeof(float), &width, &height, e);
    if (st == ST_AGAIN) {
        tensor_in_release(t);
        t->dtype = DT_F32;
        t->cap = (size_t)width * height * 3 * sizeof(float);
        t->data = mem_alloc(t->cap);
        if (!t->data) {
            t->cap = 0;
            return err_nomem(e, "the numbers of an image");
        }
        st = image_prepare_again(f->spec, &c->s->image, t->data, t->cap / sizeof(float), &width, &height, e);
    }
    if (st != ST_OK)
        return fault(c, RECORD_BAD_IMAGE, st);
    t->rank = (uint32_t)p->rank;
    int64_t *d = t->dims;
    if (t->rank == 4)
        *d++ = 1;
    int64_t sizes[2][3] = {{3, height, width}, {height, width, 3}};
    memcpy(d, sizes[f->spec->channels_last], sizeof sizes[0]);
    t->count = (uint64_t)width * height * 3;
    struct tensor_want w = {.name = p->name, .dtype = p->dtype, .rank = (uint32_t)p->rank, .dims = p->dims};
    for (uint32_t i = 0; i < t->rank; i++)
        if (w.dims[i] >= 0 && w.dims[i] != t->dims[i]) {
            err_set(e, ST_USER, "the picture becomes %u x %u, the model's input '%s' wants another size", width, height, p->name);
            return fault(c, RECORD_WRONG_SHAPE, ST_USER);
        }
    return ST_OK;
}

static enum status named_picture(const struct run *c, const char *text, size_t len, struct err *e)
{
    struct feed_scratch *s = c->s;
    const char *path = c->r->source->path;
    size_t n = (size_t)(path_base(path) - path); /* with the '/' */
    n -= n > 1;
    if (!s->folder || strlen(s->folder) != n || memcmp(s->folder, path, n) != 0) {
        mem_free(s->folder);
        s->folder = mem_strndup(path, n);
        if (!s->folder)
            return err_nomem(e, "the folder of a source");
    }
    enum status st = image_fetch(s->folder, c->r->source, text, len, c->f->o.images->decode.limits.max_bytes, &s->bytes, e);
    if (st != ST_OK)
        return fault(c, RECORD_BAD_IMAGE, st);
    return picture(c, s->bytes.data, s->bytes.len, e);
}

static const struct json_member *find(struct feed_scratch *s, const char *name, int *out_of_memory)
{
    const struct json_member *found = NULL;
    size_t n = strlen(name);
    for (size_t i = 0; i < s->members.count; i++) { /* of names that stand twice the last counts */
        const struct json_member *m = &s->members.items[i];
        const char *key = m->key;
        size_t len = m->key_len;
        if (memchr(key, '\\', len)) {
            s->name.len = 0;
            if (json_unescape(&s->name, m->key, m->key_len)) {
                *out_of_memory = 1;
                return NULL;
            }
            key = s->name.data;
            len = s->name.len;
        }
        if (len == n && memcmp(key, name, n) == 0)
            found = m;
    }
    return found;
}

static uint32_t depth_of(const char *p, size_t len)
{
    uint32_t depth = 0;
    for (const char *end = p + len; p < end && strchr(" \t\r\n[", *p ? *p : 'x'); p++)
        depth += *p == '[';
    return depth < ARRAY_RANK_MAX ? depth : ARRAY_RANK_MAX;
}

static enum status json_array(const struct run *c, uint32_t i, const struct json_member *m, struct err *e)
{
    static const int64_t any[ARRAY_RANK_MAX] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    const struct port *p = &c->f->in[i];
    struct tensor_want w = {.name = p->name, .dtype = p->dtype, .rank = (uint32_t)p->rank, .dims = p->dims};
    if (p->rank < 0) {
        w.rank = depth_of(m->value, m->value_len);
        w.dims = any;
    }
    enum status st = tensor_in_json(&w, m->value, m->value_len, &c->s->tensors[i], e);
    return st == ST_OK ? ST_OK : fault(c, RECORD_WRONG_SHAPE, st);
}

static enum status json_record(const struct run *c, struct err *e)
{
    const struct feed *f = c->f;
    struct feed_scratch *s = c->s;
    size_t valid = utf8_prefix(c->r->data, c->r->len);
    if (valid < c->r->len) {
        err_set(e, ST_USER, "not valid UTF-8 at byte %zu", valid + 1);
        return fault(c, RECORD_INVALID_UTF8, ST_USER);
    }
    int rc = json_object_members(&s->members, c->r->data, c->r->len), oom = 0;
    if (rc < 0)
        return err_nomem(e, "decoding a record");
    if (!rc) {
        err_set(e, ST_USER, "no JSON object");
        return fault(c, RECORD_INVALID_JSON, ST_USER);
    }
    if (f->pictures) {
        const struct json_member *m = find(s, f->o.field ? f->o.field : "image", &oom);
        if (m && *m->value == '"') {
            s->name.len = 0;
            if (json_unescape(&s->name, m->value + 1, m->value_len - 2))
                return err_nomem(e, "decoding a record");
            return named_picture(c, s->name.data ? s->name.data : "", s->name.len, e);
        }
        if (!m && !find(s, f->in[0].name, &oom) && !oom) {
            err_set(e, ST_USER, "there is no '%s', a path or base64", f->o.field ? f->o.field : "image");
            return fault(c, RECORD_MISSING_FIELD, ST_USER);
        }
    }
    for (uint32_t i = 0; i < f->n_in && !oom; i++) {
        const char *name = f->n_in == 1 && f->o.field && !f->pictures ? f->o.field : f->in[i].name;
        const struct json_member *m = find(s, name, &oom);
        if (!m && !oom) {
            err_set(e, ST_USER, "there is no '%s', an array for the model's input of that name", name);
            return fault(c, RECORD_MISSING_FIELD, ST_USER);
        }
        if (m)
            TRY(json_array(c, i, m, e));
    }
    return oom ? err_nomem(e, "decoding a record") : ST_OK;
}

/* Tables: numbers as JSON writes them, blanks around them allowed; other words are faults of the record -------------------------------- */

static enum status cell(const struct run *c, uint32_t i, const struct csv_field *field, const char *column, uint64_t at, struct err *e)
{
    const char *p = field->data, *end = p + field->len;
    while (p < end && (*p == ' ' || *p == '+'))
        p++;
    while (end > p && end[-1] == ' ')
        end--;
    struct tensor_want w = {.name = column, .dtype = c->f->in[i].dtype, .rank = 0};
    struct tensor_in one = {0};
    enum status st = tensor_in_json(&w, p, (size_t)(end - p), &one, e);
    if (st == ST_OK)
        memcpy((char *)c->s->tensors[i].data + at * dtype_bytes(w.dtype), one.data, dtype_bytes(w.dtype));
    tensor_in_release(&one);
    return st == ST_OK ? ST_OK : fault(c, RECORD_WRONG_TYPE, st);
}

static size_t column_of(const struct columns *columns, const char *name)
{
    size_t i = 0;
    while (i < columns->count && strcmp(columns->names[i], name) != 0)
        i++;
    return i;
}

/* A column that is an id, or passed through, is no number for the model */
static int is_set_aside(const struct feed *f, const char *column)
{
    if (f->o.id ? strcmp(column, f->o.id) == 0 : strcmp(column, "id") == 0 || strcmp(column, "custom_id") == 0)
        return 1;
    for (size_t i = 0; i < f->o.keep_count; i++)
        if (strcmp(column, f->o.keep[i]) == 0)
            return 1;
    return 0;
}

static enum status make_room(struct tensor_in *t, enum dtype d, uint64_t count, struct err *e)
{
    size_t bytes = count * dtype_bytes(d) + 1;
    t->dtype = d;
    t->count = count;
    if (bytes <= t->cap)
        return ST_OK;
    mem_free(t->data);
    t->cap = 0;
    t->data = mem_alloc(bytes);
    if (!t->data)
        return err_nomem(e, "a row's numbers");
    t->cap = bytes;
    return ST_OK;
}

/* All columns that are not set aside become one input */
static enum status row_of_numbers(const struct run *c, struct err *e)
{
    const struct feed *f = c->f;
    const struct port *p = &f->in[0];
    const struct columns *columns = c->r->columns;
    struct tensor_in *t = &c->s->tensors[0];
    uint64_t n = 0;
    TRY(make_room(t, p->dtype, columns->count, e));
    for (size_t i = 0; i < columns->count; i++)
        if (!is_set_aside(f, columns->names[i]))
            TRY(cell(c, 0, &c->s->row.fields[i], columns->names[i], n++, e));
    t->count = n;
    t->rank = (uint32_t)(p->rank < 0 ? 1 : p->rank);
    for (uint32_t i = 0; i < t->rank; i++)
        t->dims[i] = 1;
    t->dims[t->rank - 1] = (int64_t)n;
    if (p->rank > 0 && p->dims[p->rank - 1] >= 0 && p->dims[p->rank - 1] != (int64_t)n) {
        err_set(e, ST_USER, "%llu columns, the model's input '%s' wants %lld; the id and columns that are passed through do not count",
                (unsigned long long)n, p->name, (long long)p->dims[p->rank - 1]);
        return fault(c, RECORD_WRONG_SHAPE, ST_USER);
    }
    return ST_OK;
}

static int all_ones(const struct port *p)
{
    for (int i = 0; i < p->rank; i++)
        if (p->dims[i] != 1 && p->dims[i] != -1)
            return 0;
    return 1;
}

static enum status table_record(const struct run *c, struct err *e)
{
    const struct feed *f = c->f;
    const struct columns *columns = c->r->columns;
    struct feed_scratch *s = c->s;
    TRY(csv_parse(&s->row, c->r->data, c->r->len, f->o.format == FORMAT_TSV ? '\t' : ',', columns->count, e));
    if (s->row.bad || s->row.count != columns->count) {
        if (s->row.bad)
            err_set(e, ST_USER, "text behind the closing quote of column %zu", s->row.bad);
        else
            err_set(e, ST_USER, "%zu columns, the header has %zu", s->row.count, columns->count);
        return fault(c, s->row.bad ? RECORD_BAD_QUOTES : RECORD_WRONG_COLUMNS, ST_USER);
    }
    if (f->n_in == 1 && column_of(columns, f->in[0].name) == columns->count && f->in[0].dtype != DT_STR && f->in[0].rank != 0)
        return row_of_numbers(c, e);
    for (uint32_t i = 0; i < f->n_in; i++) {
        const struct port *p = &f->in[i];
        struct tensor_in *t = &s->tensors[i];
        size_t at = column_of(columns, p->name);
        if (at == columns->count) {
            err_set(e, ST_USER, "no column '%s' for the model's input of that name", p->name);
            return fault(c, RECORD_WRONG_COLUMNS, ST_USER);
        }
        if (!all_ones(p)) {
            err_set(e, ST_USER, "the model's input '%s' wants more numbers than a column holds", p->name);
            return fault(c, RECORD_WRONG_SHAPE, ST_USER);
        }
        TRY(make_room(t, p->dtype, 1, e));
        t->rank = (uint32_t)(p->rank < 0 ? 1 : p->rank);
        for (uint32_t k = 0; k < t->rank; k++)
            t->dims[k] = 1;
        if (p->dtype == DT_STR)
            *(struct str *)t->data = (struct str){s->row.fields[at].data, s->row.fields[at].len};
        else
            TRY(cell(c, i, &s->row.fields[at], p->name, 0, e));
    }
    return ST_OK;
}

static enum status array_row(const struct run *c, struct err *e)
{
    const struct port *p = &c->f->in[0];
    static const int64_t any[ARRAY_RANK_MAX] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    struct tensor_want w = {.name = p->name, .dtype = p->dtype, .rank = (uint32_t)p->rank, .dims = p->dims};
    if (p->rank < 0) {
        w.rank = c->r->npy->rank - 1;
        w.dims = any;
    }
    enum status st = tensor_in_npy(&w, c->r->npy, 1, c->r->data, c->r->len, &c->s->tensors[0], e);
    return st == ST_OK ? ST_OK : fault(c, RECORD_WRONG_SHAPE, st);
}

/* Into one block: the arrays, then the elements of each, then the bytes of texts */
static enum status pack(const struct run *c, struct array **arrays, size_t *bytes, struct err *e)
{
    uint32_t n = c->f->n_in;
    size_t at = (n * sizeof **arrays + 63) / 64 * 64, size = at;
    for (uint32_t i = 0; i < n; i++) {
        struct tensor_in *t = &c->s->tensors[i];
        size += (t->count * dtype_bytes(t->dtype) + 63) / 64 * 64;
        for (uint64_t k = 0; t->dtype == DT_STR && k < t->count; k++)
            size += ((struct str *)t->data)[k].len;
    }
    char *block = mem_aligned(size);
    if (!block)
        return err_nomem(e, "what a model is given for a record");
    struct array *a = (struct array *)(void *)block;
    memset(a, 0, n * sizeof *a);
    size_t text_at = size;
    for (uint32_t i = 0; i < n; i++) {
        struct tensor_in *t = &c->s->tensors[i];
        size_t len = t->count * dtype_bytes(t->dtype);
        a[i].dtype = t->dtype;
        a[i].rank = t->rank;
        memcpy(a[i].dims, t->dims, t->rank * sizeof *t->dims);
        a[i].data = block + at;
        memcpy(block + at, t->data, len);
        for (uint64_t k = 0; t->dtype == DT_STR && k < t->count; k++) {
            struct str *text = (struct str *)(void *)(block + at) + k;
            text_at -= text->len;
            memcpy(block + text_at, text->data, text->len);
            text->data = block + text_at;
        }
        at += (len + 63) / 64 * 64;
    }
    *arrays = a;
    *bytes = size;
    return ST_OK;
}

enum status feed_run(const struct feed *f, struct feed_scratch *s, const struct feed_record *r, struct array **arrays, size_t *bytes,
                     enum record_error *what, struct err *e)
{
    struct run c = {f, s, r, what};
    *what = RECORD_NONE;
    switch (f->o.format) {
    case FORMAT_IMAGES:
        TRY(picture(&c, r->data, r->len, e));
        break;
    case FORMAT_NPY:
        TRY(array_row(&c, e));
        break;
    case FORMAT_JSONL:
        TRY(json_record(&c, e));
        break;
    default:
        TRY(table_record(&c, e));
    }
    return pack(&c, arrays, bytes, e);
}
