#include "workers/pipeline/encode.h"

#include <math.h>
#include <string.h>

#include "base/ftoa.h"
#include "base/mem.h"
#include "storage/errline.h"

static int all_finite(const float *x, uint32_t n)
{
    float sum = 0; /* x - x is 0 for finite numbers and NaN for all others */
    for (uint32_t i = 0; i < n; i++)
        sum += x[i] - x[i];
    return sum == 0;
}

static int name_record(const struct item *i, struct buf *out)
{
    if (i->id)
        return buf_str(out, "\"id\":") || buf_add(out, i->id, i->id_len);
    const struct source *s = &i->input->source;
    return buf_str(out, "\"source\":") || errline_string(out, s->path, strlen(s->path)) ||
           buf_printf(out, ",\"offset\":%llu", (unsigned long long)(i->record.begin - s->base));
}

static void put_le(uint8_t *out, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    for (int k = 0; k < 4; k++)
        out[k] = (uint8_t)(bits >> 8 * k);
}

static int put_floats(const float *x, uint32_t n, struct buf *out)
{
    if (buf_reserve(out, (size_t)n * (FTOA_MAX + 1) + 1))
        return -1;
    char *at = out->data + out->len;
    *at++ = '[';
    for (uint32_t i = 0; i < n; i++) {
        at += ftoa(x[i], at);
        *at++ = ',';
    }
    at[n ? -1 : 0] = ']'; /* in the place of the last comma */
    out->len = (size_t)(at - out->data) + (n ? 0 : 1);
    return 0;
}

static int put_base64(const float *x, uint32_t n, struct buf *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t bytes = (size_t)n * 4;
    if (buf_reserve(out, bytes / 3 * 4 + 8))
        return -1;
    char *at = out->data + out->len;
    *at++ = '"';
    uint8_t group[3], word[4];
    size_t have = 0;
    for (uint32_t i = 0; i < n; i++) {
        put_le(word, x[i]);
        for (int k = 0; k < 4; k++) {
            group[have++] = word[k];
            if (have < 3)
                continue;
            have = 0;
            *at++ = digits[group[0] >> 2];
            *at++ = digits[(group[0] & 3) << 4 | group[1] >> 4];
            *at++ = digits[(group[1] & 15) << 2 | group[2] >> 6];
            *at++ = digits[group[2] & 63];
        }
    }
    if (have) {
        if (have == 1)
            group[1] = 0;
        *at++ = digits[group[0] >> 2];
        *at++ = digits[(group[0] & 3) << 4 | group[1] >> 4];
        *at++ = have == 2 ? digits[(group[1] & 15) << 2] : '=';
        *at++ = '=';
    }
    *at++ = '"';
    out->len = (size_t)(at - out->data);
    return 0;
}

static int encode_jsonl(const struct job *j, const struct item *i, const float *x, uint32_t n, struct buf *out)
{
    return buf_char(out, '{') || name_record(i, out) || buf_add(out, i->keep, i->keep_len) || buf_str(out, ",\"embedding\":") ||
           (j->base64 ? put_base64(x, n, out) : put_floats(x, n, out)) || buf_str(out, "}\n");
}

static int encode_ids(const struct item *i, struct buf *out)
{
    if (i->id && !i->keep_len)
        return buf_add(out, i->id, i->id_len) || buf_char(out, '\n');
    return buf_char(out, '{') || name_record(i, out) || buf_add(out, i->keep, i->keep_len) || buf_str(out, "}\n");
}

static char *copy_of(const struct buf *b, size_t *len)
{
    char *copy = mem_alloc(b->len);
    if (copy)
        memcpy(copy, b->data, b->len);
    *len = b->len;
    return copy;
}

int encode_item(const struct job *j, struct item *i, const float *embedding, uint32_t dims, struct buf *scratch)
{
    if (!all_finite(embedding, dims))
        return 0;
    buf_clear(scratch);
    if (!j->npy) {
        if (encode_jsonl(j, i, embedding, dims, scratch) || !(i->row = copy_of(scratch, &i->row_len)))
            return -1;
        return 1;
    }
    if (encode_ids(i, scratch) || !(i->aux = copy_of(scratch, &i->aux_len)) || !(i->row = mem_alloc((size_t)dims * 4)))
        return -1;
    for (uint32_t k = 0; k < dims; k++)
        put_le((uint8_t *)i->row + 4 * k, embedding[k]);
    i->row_len = (size_t)dims * 4;
    return 1;
}
