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

int encode_name(const struct item *i, struct buf *out)
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

static int put_number(float x, struct buf *out)
{
    char text[FTOA_MAX];
    return buf_add(out, text, (size_t)ftoa(x, text));
}

static int put_text(const char *s, struct buf *out)
{
    return errline_string(out, s, strlen(s));
}

static uint32_t best_of(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

static int put_scores(const struct outcome *o, struct buf *out)
{
    const struct model *m = o->loaded->model;
    if (o->width == 1)
        return buf_str(out, ",\"score\":") || put_number(o->f32[0], out);
    uint32_t best = best_of(o->f32, o->width);
    int failed = buf_str(out, ",\"label\":") || put_text(model_label(m, best), out) || buf_str(out, ",\"score\":") ||
                 put_number(o->f32[best], out) || buf_str(out, ",\"scores\":{");
    for (uint32_t i = 0; i < o->width && !failed; i++)
        failed = (i && buf_char(out, ',')) || put_text(model_label(m, i), out) || buf_char(out, ':') || put_number(o->f32[i], out);
    return failed || buf_char(out, '}');
}

static int put_tokens(const struct outcome *o, const struct tok_span *spans, struct buf *out)
{
    const struct model *m = o->loaded->model;
    int failed = buf_str(out, ",\"tokens\":["), first = 1;
    for (uint32_t i = 0; i < o->rows && !failed; i++) {
        const float *row = o->f32 + (size_t)i * o->width;
        const struct tok_span *at = &spans[i];
        uint32_t best = best_of(row, o->width);
        if (at->start == at->end)
            continue;
        failed = buf_str(out, first ? "{\"label\":" : ",{\"label\":") || put_text(model_label(m, best), out) || buf_str(out, ",\"score\":") ||
                 put_number(row[best], out) || buf_printf(out, ",\"start\":%u,\"end\":%u}", at->start, at->end);
        first = 0;
    }
    return failed || buf_char(out, ']');
}

/* A model's vocabulary may be padded beyond the tokenizer's. */
static const char *token_text(const struct tokenizer *t, int32_t id)
{
    const char *text = tokenizer_token(t, id);
    return text ? text : "";
}

static int put_masks(const struct outcome *o, struct buf *out)
{
    const struct tokenizer *t = o->loaded->tokenizer;
    int failed = buf_str(out, ",\"masks\":[");
    for (uint32_t i = 0; i < o->rows && !failed; i++) {
        failed = buf_str(out, i ? ",[" : "[");
        for (uint32_t k = 0; k < o->width && !failed; k++) {
            size_t at = (size_t)i * o->width + k;
            failed = buf_str(out, k ? ",{\"token\":" : "{\"token\":") || put_text(token_text(t, o->i32[at]), out) ||
                     buf_printf(out, ",\"id\":%d,\"score\":", (int)o->i32[at]) || put_number(o->f32[at], out) || buf_char(out, '}');
        }
        failed = failed || buf_char(out, ']');
    }
    return failed || buf_char(out, ']');
}

/* One element of an array. */
static int put_element(const struct array *a, size_t at, struct buf *out)
{
    const void *p = a->data;
    switch (a->dtype) {
    case DT_F32: return put_number(((const float *)p)[at], out);
    case DT_F16: return put_number(f16_to_f32(((const uint16_t *)p)[at]), out);
    case DT_BF16: return put_number(bf16_to_f32(((const uint16_t *)p)[at]), out);
    case DT_F64: return buf_printf(out, "%.17g", ((const double *)p)[at]);
    case DT_BOOL: return buf_str(out, ((const uint8_t *)p)[at] ? "true" : "false");
    case DT_U8: return buf_printf(out, "%u", ((const uint8_t *)p)[at]);
    case DT_I8: return buf_printf(out, "%d", ((const int8_t *)p)[at]);
    case DT_U16: return buf_printf(out, "%u", ((const uint16_t *)p)[at]);
    case DT_I16: return buf_printf(out, "%d", ((const int16_t *)p)[at]);
    case DT_U32: return buf_printf(out, "%u", ((const uint32_t *)p)[at]);
    case DT_I32: return buf_printf(out, "%d", ((const int32_t *)p)[at]);
    case DT_U64: return buf_printf(out, "%llu", (unsigned long long)((const uint64_t *)p)[at]);
    case DT_I64: return buf_printf(out, "%lld", (long long)((const int64_t *)p)[at]);
    case DT_STR: return errline_string(out, ((const struct str *)p)[at].data, ((const struct str *)p)[at].len);
    case DT_NONE:
    case DT_END: break;
    }
    return -1;
}

/* Nested as deep as the array has axes; *at is the next element. */
static int put_array(const struct array *a, uint32_t axis, size_t *at, struct buf *out)
{
    if (axis == a->rank)
        return put_element(a, (*at)++, out);
    int failed = buf_char(out, '[');
    for (int64_t i = 0; i < a->dims[axis] && !failed; i++)
        failed = (i && buf_char(out, ',')) || put_array(a, axis + 1, at, out);
    return failed || buf_char(out, ']');
}

static int put_outputs(const struct outcome *o, struct buf *out)
{
    uint32_t n;
    const struct port *ports = model_outputs(o->loaded->model, &n);
    int failed = buf_str(out, ",\"outputs\":{");
    for (uint32_t k = 0; k < o->n_arrays && k < n && !failed; k++) {
        size_t at = 0;
        failed = (k && buf_char(out, ',')) || put_text(ports[k].name, out) || buf_char(out, ':') || put_array(&o->arrays[k], 0, &at, out);
    }
    return failed || buf_char(out, '}');
}

/* JSON has no word for what is not finite. */
static int arrays_finite(const struct outcome *o)
{
    for (uint32_t k = 0; k < o->n_arrays; k++) {
        const struct array *a = &o->arrays[k];
        size_t n = 1;
        for (uint32_t i = 0; i < a->rank; i++)
            n *= (size_t)a->dims[i];
        for (size_t i = 0; i < n; i++)
            if ((a->dtype == DT_F32 && !isfinite(((const float *)a->data)[i])) || (a->dtype == DT_F64 && !isfinite(((const double *)a->data)[i])) ||
                (a->dtype == DT_F16 && (((const uint16_t *)a->data)[i] & 0x7c00) == 0x7c00) ||
                (a->dtype == DT_BF16 && (((const uint16_t *)a->data)[i] & 0x7f80) == 0x7f80))
                return 0;
    }
    return 1;
}

static int put_embedding(const struct job *j, const struct outcome *o, struct buf *out)
{
    return buf_str(out, ",\"embedding\":") || (j->base64 ? put_base64(o->f32, o->width, out) : put_floats(o->f32, o->width, out));
}

static int put_result(const struct job *j, const struct tok_span *spans, const struct outcome *o, struct buf *out)
{
    switch (o->task) {
    case TASK_EMBED: return put_embedding(j, o, out);
    case TASK_CLASSIFY: return put_scores(o, out);
    case TASK_TOKENS: return put_tokens(o, spans, out);
    case TASK_FILL_MASK: return put_masks(o, out);
    case TASK_OUTPUTS: return put_outputs(o, out);
    case TASKS: break;
    }
    return 0;
}

static int encode_jsonl(const struct job *j, const struct item *i, const struct outcome *o, struct buf *out)
{
    return buf_char(out, '{') || encode_name(i, out) || buf_add(out, i->keep, i->keep_len) || put_result(j, i->spans, o, out) || buf_str(out, "}\n");
}

static int encode_ids(const struct item *i, struct buf *out)
{
    if (i->id && !i->keep_len)
        return buf_add(out, i->id, i->id_len) || buf_char(out, '\n');
    return buf_char(out, '{') || encode_name(i, out) || buf_add(out, i->keep, i->keep_len) || buf_str(out, "}\n");
}

static char *copy_of(const struct buf *b, size_t *len)
{
    char *copy = mem_alloc(b->len);
    if (copy)
        memcpy(copy, b->data, b->len);
    *len = b->len;
    return copy;
}

static int is_finite(const struct outcome *o)
{
    return o->task == TASK_OUTPUTS ? arrays_finite(o) : all_finite(o->f32, o->rows * o->width);
}

int encode_result(const struct job *j, const struct tok_span *spans, const struct outcome *o, struct buf *out)
{
    return is_finite(o) ? put_result(j, spans, o, out) ? -1 : 1 : 0;
}

void encode_floats(const float *x, uint32_t n, uint8_t *out)
{
    for (uint32_t k = 0; k < n; k++)
        put_le(out + 4 * (size_t)k, x[k]);
}

int encode_item(const struct job *j, struct item *i, const struct outcome *o, struct buf *scratch)
{
    if (!is_finite(o))
        return 0;
    buf_clear(scratch);
    if (!j->npy) {
        if (encode_jsonl(j, i, o, scratch) || !(i->row = copy_of(scratch, &i->row_len)))
            return -1;
        return 1;
    }
    BUG_IF(o->rows != 1, "%u rows of one record for an .npy file", o->rows);
    if (encode_ids(i, scratch) || !(i->aux = copy_of(scratch, &i->aux_len)) || !(i->row = mem_alloc((size_t)o->width * 4)))
        return -1;
    encode_floats(o->f32, o->width, (uint8_t *)i->row);
    i->row_len = (size_t)o->width * 4;
    return 1;
}
