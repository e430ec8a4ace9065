#include "storage/npy.h"

#include <stdio.h>
#include <string.h>

/* The header is a dictionary of Python: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } */
struct text {
    const char *p, *end;
};

static void blanks(struct text *t)
{
    while (t->p < t->end && (*t->p == ' ' || *t->p == '\n' || *t->p == '\t' || *t->p == '\r'))
        t->p++;
}

static int take(struct text *t, const char *word)
{
    size_t n = strlen(word);
    blanks(t);
    if ((size_t)(t->end - t->p) < n || memcmp(t->p, word, n) != 0)
        return 0;
    t->p += n;
    return 1;
}

/* A string without escapes */
static int quoted(struct text *t, const char **s, size_t *len)
{
    blanks(t);
    if (t->p == t->end || (*t->p != '\'' && *t->p != '"'))
        return 0;
    char quote = *t->p++;
    *s = t->p;
    while (t->p < t->end && *t->p != quote && *t->p != '\\')
        t->p++;
    *len = (size_t)(t->p - *s);
    return t->p < t->end && *t->p++ == quote;
}

static int number(struct text *t, uint64_t *v)
{
    const char *from = (blanks(t), t->p);
    *v = 0;
    for (; t->p < t->end && *t->p >= '0' && *t->p <= '9'; t->p++)
        if (__builtin_mul_overflow(*v, 10, v) || __builtin_add_overflow(*v, (uint64_t)(*t->p - '0'), v))
            return 0;
    if (t->p == from)
        return 0;
    take(t, "L"); /* as Python 2 wrote them */
    return 1;
}

static enum status read_descr(struct text *t, struct npy *n, struct err *e)
{
    const char *s;
    size_t len;
    blanks(t);
    if (t->p < t->end && *t->p == '[')
        return err_set(e, ST_USER, "arrays of records are not supported; save one array for each of their fields");
    if (!quoted(t, &s, &len) || len < 2 || len > 16)
        return err_set(e, ST_CORRUPT, "the type of its elements cannot be read");
    n->big_endian = *s == '>';
    if (strchr("<>|=", *s)) {
        s++;
        len--;
    }
    n->kind = *s;
    n->size = len == 2 && s[1] >= '1' && s[1] <= '8' ? (uint32_t)(s[1] - '0') : 0;
    int known = (n->kind == 'f' && (n->size == 2 || n->size == 4 || n->size == 8)) || (n->kind == 'b' && n->size == 1) ||
                ((n->kind == 'i' || n->kind == 'u') && (n->size == 1 || n->size == 2 || n->size == 4 || n->size == 8));
    if (known)
        return ST_OK;
    const char *advice = *s == 'O' ? " (objects of Python)" : *s == 'c' ? " (complex numbers)" : *s == 'U' || *s == 'S' ? " (texts)" : "";
    return err_set(e, ST_USER, "elements of type '%.*s'%s are not supported; supported are f2, f4, f8, i1 to i8, u1 to u8 and b1", (int)len, s,
                   advice);
}

static enum status read_shape(struct text *t, struct npy *n, struct err *e)
{
    int open = take(t, "(");
    for (n->rank = 0; open && !take(t, ")"); n->rank++) {
        if (n->rank == NPY_RANK_MAX)
            return err_set(e, ST_USER, "more than %d axes are not supported", NPY_RANK_MAX);
        if (!number(t, &n->dims[n->rank]))
            open = 0;
        else if (!take(t, ",")) {
            open = take(t, ")");
            n->rank++;
            break;
        }
    }
    return open ? ST_OK : err_set(e, ST_CORRUPT, "its shape cannot be read");
}

static enum status read_dictionary(struct text t, struct npy *n, struct err *e)
{
    enum { DESCR = 1, ORDER = 2, SHAPE = 4 };
    int seen = 0, fortran = 0;
    const char *key;
    size_t len;
    if (!take(&t, "{"))
        return err_set(e, ST_CORRUPT, "its header cannot be read");
    while (!take(&t, "}")) {
        if (!quoted(&t, &key, &len) || !take(&t, ":"))
            return err_set(e, ST_CORRUPT, "its header cannot be read");
        if (len == 5 && memcmp(key, "descr", 5) == 0) {
            TRY(read_descr(&t, n, e));
            seen |= DESCR;
        } else if (len == 13 && memcmp(key, "fortran_order", 13) == 0) {
            fortran = take(&t, "True");
            if (!fortran && !take(&t, "False"))
                return err_set(e, ST_CORRUPT, "its order cannot be read");
            seen |= ORDER;
        } else if (len == 5 && memcmp(key, "shape", 5) == 0) {
            TRY(read_shape(&t, n, e));
            seen |= SHAPE;
        } else {
            return err_set(e, ST_CORRUPT, "its header has an unknown entry '%.*s'", len < 40 ? (int)len : 40, key);
        }
        if (!take(&t, ",") && (blanks(&t), t.p == t.end || *t.p != '}'))
            return err_set(e, ST_CORRUPT, "its header cannot be read");
    }
    if (seen != (DESCR | ORDER | SHAPE))
        return err_set(e, ST_CORRUPT, "its header lacks type, order or shape");
    if (fortran && n->rank > 1)
        return err_set(e, ST_USER, "an array in column order is not supported; save numpy.ascontiguousarray(a)");
    return ST_OK;
}

enum status npy_parse(const void *data, size_t len, struct npy *out, struct err *e)
{
    const uint8_t *p = data;
    struct npy n = {0};
    if (len < 10 || memcmp(p, "\x93NUMPY", 6) != 0)
        return err_set(e, ST_CORRUPT, "no .npy file%s", len >= 4 && memcmp(p, "PK\3\4", 4) == 0 ? "; an .npz holds several, unzip it" : "");
    if (p[6] < 1 || p[6] > 3)
        return err_set(e, ST_USER, "version %d of the .npy format is not supported; supported are 1 to 3", p[6]);
    size_t at = p[6] == 1 ? 10 : 12, head;
    if (len < at)
        return err_set(e, ST_CORRUPT, "the .npy file is truncated");
    head = (size_t)p[8] | (size_t)p[9] << 8;
    if (p[6] > 1)
        head |= (size_t)p[10] << 16 | (size_t)p[11] << 24;
    if (head > NPY_HEAD_MAX - at)
        return err_set(e, ST_CORRUPT, "a header of %zu bytes is longer than any array needs", head);
    if (head > len - at)
        return err_set(e, ST_CORRUPT, "the .npy file is truncated");
    TRY(read_dictionary((struct text){(const char *)p + at, (const char *)p + at + head}, &n, e));
    n.data_at = at + head;
    n.count = 1;
    n.row_bytes = n.size;
    for (uint32_t i = 0; i < n.rank; i++) {
        uint64_t bytes;
        if (__builtin_mul_overflow(n.count, n.dims[i], &n.count) || __builtin_mul_overflow(n.count, n.size, &bytes) ||
            (i && __builtin_mul_overflow(n.row_bytes, n.dims[i], &n.row_bytes)) || bytes > INT64_MAX || n.row_bytes > INT64_MAX ||
            n.dims[i] > INT64_MAX)
            return err_set(e, ST_CORRUPT, "its shape is larger than any file");
    }
    *out = n;
    return ST_OK;
}

enum status npy_check_size(const struct npy *n, uint64_t file_bytes, struct err *e)
{
    uint64_t want = n->data_at + n->count * n->size;
    if (file_bytes != want)
        return err_set(e, ST_CORRUPT, "it has %llu bytes, its header asks for %llu", (unsigned long long)file_bytes, (unsigned long long)want);
    return ST_OK;
}
