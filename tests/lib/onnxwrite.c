#include "tests/lib/onnxwrite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(int r)
{
    if (r == 0)
        return;
    fprintf(stderr, "out of memory\n");
    abort();
}

static void tag(struct buf *b, uint32_t field, uint32_t wire)
{
    must(buf_varint(b, field << 3 | wire));
}

static void number(struct buf *b, uint32_t field, int64_t x)
{
    tag(b, field, 0);
    must(buf_varint(b, (uint64_t)x));
}

static void bytes(struct buf *b, uint32_t field, const void *data, size_t len)
{
    tag(b, field, 2);
    must(buf_varint(b, len));
    must(buf_add(b, data, len));
}

static void text(struct buf *b, uint32_t field, const char *s)
{
    bytes(b, field, s, strlen(s));
}

static void message(struct buf *b, uint32_t field, struct buf *m)
{
    bytes(b, field, m->len ? m->data : "", m->len);
    buf_release(m);
}

void ow_begin(struct onnxwrite *w, uint32_t seed)
{
    *w = (struct onnxwrite){.seed = seed};
    text(&w->graph, 2, "g");
}

static void value(struct onnxwrite *w, uint32_t field, const char *name, int type, uint32_t rank, const int64_t *dims)
{
    struct buf shape = {0}, tensor = {0}, of = {0}, info = {0};
    for (uint32_t i = 0; i < rank; i++) {
        struct buf d = {0};
        char open[2] = {(char)('m' - dims[i]), '\0'};
        if (dims[i] < 0)
            text(&d, 2, open);
        else
            number(&d, 1, dims[i]);
        message(&shape, 1, &d);
    }
    number(&tensor, 1, type);
    message(&tensor, 2, &shape);
    message(&of, 1, &tensor);
    text(&info, 1, name);
    message(&info, 2, &of);
    message(&w->graph, field, &info);
}

void ow_input(struct onnxwrite *w, const char *name, int type, uint32_t rank, const int64_t *dims)
{
    value(w, 11, name, type, rank, dims);
}

void ow_output(struct onnxwrite *w, const char *name, int type, uint32_t rank, const int64_t *dims)
{
    value(w, 12, name, type, rank, dims);
}

void ow_tensor(struct onnxwrite *w, const char *name, int type, uint32_t rank, const int64_t *dims, const void *data, size_t len)
{
    struct buf t = {0};
    for (uint32_t i = 0; i < rank; i++)
        number(&t, 1, dims[i]);
    number(&t, 2, type);
    text(&t, 8, name);
    bytes(&t, 9, data, len);
    message(&w->graph, 5, &t);
}

void ow_random(struct onnxwrite *w, const char *name, float scale, uint32_t rank, const int64_t *dims)
{
    size_t count = 1;
    for (uint32_t i = 0; i < rank; i++)
        count *= (size_t)dims[i];
    float *x = malloc(count * sizeof *x + 1);
    must(x ? 0 : -1);
    for (size_t i = 0; i < count; i++) {
        w->seed = w->seed * 1664525u + 1013904223u;
        x[i] = scale * (float)((int)(w->seed >> 20 & 127) - 63) / 64;
    }
    ow_tensor(w, name, OW_F32, rank, dims, x, count * sizeof *x);
    free(x);
}

void ow_ints(struct onnxwrite *w, const char *name, uint32_t count, const int64_t *ints)
{
    int64_t dims = count;
    ow_tensor(w, name, OW_I64, 1, &dims, ints, count * sizeof *ints);
}

void ow_int(struct onnxwrite *w, const char *name, int64_t x)
{
    ow_tensor(w, name, OW_I64, 0, NULL, &x, sizeof x);
}

static void words(struct buf *b, uint32_t field, const char *list)
{
    while (*list) {
        size_t n = strcspn(list, " ");
        bytes(b, field, list, n == 1 && *list == '-' ? 0 : n);
        list += n + (list[n] == ' ');
    }
}

static void attributes(struct buf *n, const char *list)
{
    while (list && *list) {
        struct buf a = {0};
        size_t len = strcspn(list, " "), name = strcspn(list, "=:");
        char one[200];
        snprintf(one, sizeof one, "%.*s", (int)len, list);
        char *x = one + name + 1;
        bytes(&a, 1, one, name);
        if (one[name] == ':') {
            float f = strtof(x, NULL);
            number(&a, 20, 1);
            tag(&a, 2, 5);
            must(buf_add(&a, &f, sizeof f));
        } else if (strchr(x, ',')) {
            number(&a, 20, 7);
            for (char *next = x; *next; next += *next == ',')
                number(&a, 8, strtoll(next, &next, 10));
        } else {
            number(&a, 20, 2);
            number(&a, 3, strtoll(x, NULL, 10));
        }
        message(n, 5, &a);
        list += len + (list[len] == ' ');
    }
}

static void begin_node(struct onnxwrite *w, struct buf *n, const char *op, const char *in, const char *out)
{
    char name[100];
    words(n, 1, in);
    words(n, 2, out);
    snprintf(name, sizeof name, "%s_%u", op, w->nodes++);
    text(n, 3, name);
    text(n, 4, op);
}

void ow_node(struct onnxwrite *w, const char *op, const char *in, const char *out, const char *attrs)
{
    struct buf n = {0};
    begin_node(w, &n, op, in, out);
    attributes(&n, attrs);
    message(&w->graph, 1, &n);
}

static void body(struct buf *n, const char *name, struct onnxwrite *b)
{
    struct buf a = {0};
    if (!name)
        return;
    text(&a, 1, name);
    number(&a, 20, 5);
    message(&a, 6, &b->graph);
    message(n, 5, &a);
}

void ow_control(struct onnxwrite *w, const char *op, const char *in, const char *out, const char *name1, struct onnxwrite *body1, const char *name2, struct onnxwrite *body2)
{
    struct buf n = {0};
    begin_node(w, &n, op, in, out);
    body(&n, name1, body1);
    body(&n, name2, body2);
    message(&w->graph, 1, &n);
}

int ow_write(struct onnxwrite *w, const char *path)
{
    struct buf m = {0}, opset = {0};
    number(&m, 1, 8);
    text(&opset, 1, "");
    number(&opset, 2, 17);
    message(&m, 8, &opset);
    message(&m, 7, &w->graph);
    FILE *f = fopen(path, "w");
    int ok = f && fwrite(m.data, 1, m.len, f) == m.len;
    ok = f && fclose(f) == 0 && ok;
    buf_release(&m);
    if (!ok)
        perror(path);
    return ok ? 0 : -1;
}
