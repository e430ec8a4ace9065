/* Ops on texts: StringNormalizer, StringConcat, StringSplit. Texts are UTF-8; what is not is left as it is. */
#include <string.h>

#include <utf8proc.h>

#include "workers/engine/ops/args.h"
#include "workers/engine/ops/walk.h"

/* StringNormalizer --------------------------------------------------------------------------------------------------------------------- */

enum change { KEEP, LOWER, UPPER, CHANGE_BAD };

static enum change change_of(const struct node *n)
{
    const char *s = node_string(n, "case_change_action", "NONE");
    return strcmp(s, "NONE") == 0 ? KEEP : strcmp(s, "LOWER") == 0 ? LOWER : strcmp(s, "UPPER") == 0 ? UPPER : CHANGE_BAD;
}

static enum status normalizer_check(struct node *n, struct err *e)
{
    const struct attr *a = node_attr(n, "stopwords");
    if (change_of(n) == CHANGE_BAD)
        return node_error(n, e, "case_change_action is '%s'; it must be LOWER, UPPER or NONE", node_string(n, "case_change_action", ""));
    if (a && a->kind != ATTR_STRINGS && a->count)
        return node_error(n, e, "the attribute 'stopwords' is not a list of strings");
    return ST_OK;
}

static enum status normalizer_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPE(STR), e));
    const struct type *x = &s->in[0];
    if (x->rank >= 0 && x->rank != 1 && !(x->rank == 2 && (x->dims[0] == 1 || !dim_known(x->dims[0]))))
        return node_error(s->node, e, "a row of texts is wanted: [C] or [1, C]");
    type_unknown(s, &s->out[0], DT_STR, x->rank);
    if (x->rank == 2)
        s->out[0].dims[0] = 1;
    return ST_OK;
}

/* The text with each character changed, in `room`, which has 4 bytes for each byte of it. */
static size_t changed(const struct str *s, enum change how, char *room)
{
    size_t n = 0;
    for (size_t i = 0; i < s->len;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t used = utf8proc_iterate((const utf8proc_uint8_t *)s->data + i, (utf8proc_ssize_t)(s->len - i), &c);
        if (used <= 0) {
            room[n++] = s->data[i++];
            continue;
        }
        i += (size_t)used;
        c = how == LOWER ? utf8proc_tolower(c) : how == UPPER ? utf8proc_toupper(c) : c;
        n += (size_t)utf8proc_encode_char(c, (utf8proc_uint8_t *)room + n);
    }
    return n;
}

static int is_stopword(const struct attr *stop, int exact, const struct str *s, char *a, char *b)
{
    size_t n = exact ? s->len : changed(s, LOWER, a);
    const char *text = exact ? s->data : a;
    for (uint32_t i = 0; stop && i < stop->count; i++) {
        size_t len = exact ? stop->strings[i].len : changed(&stop->strings[i], LOWER, b);
        if (len == n && (n == 0 || memcmp(text, exact ? stop->strings[i].data : b, n) == 0))
            return 1;
    }
    return 0;
}

static enum status normalizer_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    const struct str *s = tensor_data(x);
    const struct attr *stop = node_attr(n, "stopwords");
    int exact = node_int(n, "is_case_sensitive", 0) != 0;
    enum change how = change_of(n);
    int64_t count = tensor_count(x), kept = 0;
    size_t longest = 0;
    for (int64_t i = 0; i < count; i++)
        longest = s[i].len > longest ? s[i].len : longest;
    for (uint32_t i = 0; stop && i < stop->count; i++)
        longest = stop->strings[i].len > longest ? stop->strings[i].len : longest;
    void *a, *b, *p;
    TRY(run_scratch(r, 4 * longest + 4, &a, e));
    TRY(run_scratch(r, 4 * longest + 4, &b, e));
    TRY(run_scratch(r, (size_t)(count + 1) * sizeof(struct str), &p, e));
    struct str *out = p;
    for (int64_t i = 0; i < count; i++) {
        if (is_stopword(stop, exact, &s[i], a, b))
            continue;
        out[kept] = s[i];
        if (how != KEEP)
            TRY(run_string(r, a, changed(&s[i], how, a), &out[kept], e));
        kept++;
    }
    if (!kept) /* never nothing: one empty text */
        out[kept++] = (struct str){"", 0};
    TRY(run_make(r, 0, DT_STR, x->rank, x->rank == 2 ? (int64_t[]){1, kept} : (int64_t[]){kept, 0}, e));
    if (run_out(r, 0))
        memcpy(tensor_data(run_out(r, 0)), out, (size_t)kept * sizeof *out);
    return ST_OK;
}

/* StringConcat --------------------------------------------------------------------------------------------------------------------------- */

static enum status concat_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPE(STR), e));
    TRY(arg_type(s, 1, TYPE(STR), e));
    return type_broadcast(s, &s->in[0], &s->in[1], &s->out[0], e);
}

static enum status concat_run(struct run *r, const struct node *n, struct err *e)
{
    (void)n;
    const struct tensor *a = run_in(r, 0), *b = run_in(r, 1);
    struct tensor *y = run_out(r, 0);
    if (!y || !tensor_count(y))
        return ST_OK;
    const struct str *pa = tensor_data(a), *pb = tensor_data(b);
    struct str *to = tensor_data(y);
    struct walk w;
    walk_init(&w, y->rank, y->dims);
    walk_broadcast(&w, a->rank, a->dims);
    walk_broadcast(&w, b->rank, b->dims);
    walk_merge(&w);
    struct walk_at at = {0};
    uint32_t last = w.rank - 1;
    size_t longest = 0, all;
    for (int64_t i = 0, c = tensor_count(a); i < c; i++)
        longest = pa[i].len > longest ? pa[i].len : longest;
    all = longest;
    longest = 0;
    for (int64_t i = 0, c = tensor_count(b); i < c; i++)
        longest = pb[i].len > longest ? pb[i].len : longest;
    all += longest;
    void *room;
    TRY(run_scratch(r, all + 1, &room, e));
    char *text = room;
    do {
        for (int64_t i = 0; i < w.dims[last]; i++) {
            const struct str *x = &pa[at.at[0] + i * w.step[0][last]], *z = &pb[at.at[1] + i * w.step[1][last]];
            if (x->len)
                memcpy(text, x->data, x->len);
            if (z->len)
                memcpy(text + x->len, z->data, z->len);
            TRY(run_string(r, text, x->len + z->len, to++, e));
        }
    } while (walk_next(&w, &at));
    return ST_OK;
}

/* StringSplit ---------------------------------------------------------------------------------------------------------------------------- */

static enum status split_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPE(STR), e));
    const struct type *x = &s->in[0];
    if (x->rank >= RANK_MAX)
        return node_error(s->node, e, "the result has %d axes, at most %d are supported", x->rank + 1, RANK_MAX);
    type_tensor(&s->out[0], DT_STR, x->rank < 0 ? -1 : x->rank + 1, NULL);
    for (int i = 0; i < x->rank; i++)
        s->out[0].dims[i] = x->dims[i];
    if (x->rank >= 0)
        s->out[0].dims[x->rank] = dim_fresh(s->syms);
    if (s->n_out > 1)
        type_tensor(&s->out[1], DT_I64, x->rank, x->dims);
    return ST_OK;
}

static int blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* The next part of the text from *at on; 0 when there is none. `left` counts the cuts that are allowed. Without a delimiter blanks part the words. */
static int next_part(const struct str *s, const char *by, size_t by_len, int64_t *left, size_t *at, struct str *out)
{
    size_t i = *at;
    if (!by_len) {
        while (i < s->len && blank(s->data[i]))
            i++;
        if (i >= s->len)
            return 0;
        size_t end = i;
        while (*left > 0 && end < s->len && !blank(s->data[end]))
            end++;
        end = *left > 0 ? end : s->len;
        *out = (struct str){s->data + i, end - i};
        *at = end;
        --*left;
        return 1;
    }
    if (i > s->len)
        return 0;
    const char *cut = *left > 0 && s->len > i ? memmem(s->data + i, s->len - i, by, by_len) : NULL;
    size_t end = cut ? (size_t)(cut - s->data) : s->len;
    *out = (struct str){s->len ? s->data + i : "", end - i};
    *at = cut ? end + by_len : s->len + 1;
    --*left;
    return 1;
}

static enum status split_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    const struct str *s = tensor_data(x);
    const char *by = node_string(n, "delimiter", "");
    int64_t most = node_int(n, "maxsplit", INT64_MAX), count = tensor_count(x), widest = 0, dims[RANK_MAX];
    size_t by_len = strlen(by);
    struct str part;
    int64_t *sizes = n->n_out > 1 && run_out(r, 1) ? tensor_data(run_out(r, 1)) : NULL;
    for (int64_t i = 0; i < count; i++) {
        int64_t left = most, parts = 0;
        size_t at = 0;
        while (next_part(&s[i], by, by_len, &left, &at, &part))
            parts++;
        widest = parts > widest ? parts : widest;
        if (sizes)
            sizes[i] = parts;
    }
    memcpy(dims, x->dims, x->rank * sizeof *dims);
    dims[x->rank] = widest;
    TRY(run_make(r, 0, DT_STR, x->rank + 1, dims, e));
    if (!run_out(r, 0))
        return ST_OK;
    struct str *to = tensor_data(run_out(r, 0));
    for (int64_t i = 0; i < count; i++) {
        int64_t left = most;
        size_t at = 0;
        for (int64_t k = 0; k < widest; k++) /* the parts lie in the text itself */
            *to++ = next_part(&s[i], by, by_len, &left, &at, &part) ? part : (struct str){"", 0};
    }
    return ST_OK;
}

static int split_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)s, (void)in, (void)out;
    return (int)axis;
}

const struct op_def ops_strings[] = {
    {.domain = "", .name = "StringNormalizer", .since = 10, .until = OPSET_ANY, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1,
     .flags = OP_MAKES, .check = normalizer_check, .shape = normalizer_shape, .run = normalizer_run},
    {.domain = "", .name = "StringConcat", .since = 20, .until = OPSET_ANY, .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1,
     .shape = concat_shape, .run = concat_run, .follow = follow_elementwise},
    {.domain = "", .name = "StringSplit", .since = 20, .until = OPSET_ANY, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 2,
     .flags = OP_MAKES, .shape = split_shape, .run = split_run, .follow = split_follow},
    {0},
};
