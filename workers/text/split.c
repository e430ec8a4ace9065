#include "workers/text/split.h"

#include <string.h>

#include "workers/text/bpe.h"
#include "workers/text/scan.h"
#include "workers/text/unicode.h"

static int run(struct splitter *x, int k, const struct piece *in);

void stages_release(struct stages *s)
{
    for (int i = 0; i < s->count; i++)
        pattern_free(s->at[i].pattern);
    s->count = 0;
}

static int nomem(struct splitter *x)
{
    x->status = err_nomem(x->e, "the words of a text");
    return 1;
}

/* A part of in to the stage behind k; an empty one is nothing. */
static inline int pass(struct splitter *x, int k, const struct piece *in, size_t start, size_t end)
{
    struct piece part = {in->p + start, end - start, in->from ? in->from + start : NULL};
    return part.len ? run(x, k + 1, &part) : 0;
}

/* Matches and what lies between them ---------------------------------------------------------------------------------------------- */

struct merging {
    struct splitter *x;
    const struct piece *in;
    int k;
    enum split_behavior behavior;
    int invert;
    int have, match, before; /* is a part held, is it a match, was the last one */
    size_t start, end;
};

static int flush(struct merging *m)
{
    int rc = m->have ? pass(m->x, m->k, m->in, m->start, m->end) : 0;
    m->have = 0;
    return rc;
}

static int hold(struct merging *m, size_t start, size_t end, int match)
{
    int rc = flush(m);
    m->have = 1;
    m->match = match;
    m->start = start;
    m->end = end;
    return rc;
}

static int item(struct merging *m, size_t start, size_t end, int match)
{
    match ^= m->invert;
    int before = m->before, joins = 0;
    m->before = match;
    switch (m->behavior) {
    case SPLIT_REMOVED:
        return match ? 0 : pass(m->x, m->k, m->in, start, end);
    case SPLIT_ISOLATED:
        return pass(m->x, m->k, m->in, start, end);
    case SPLIT_CONTIGUOUS:
        joins = m->have && match == before;
        break;
    case SPLIT_MERGED_WITH_PREVIOUS:
        joins = m->have && match && !before;
        break;
    case SPLIT_MERGED_WITH_NEXT:
        joins = m->have && m->match && !match;
        break;
    }
    if (!joins)
        return hold(m, start, end, match);
    m->end = end;
    m->match = match;
    return 0;
}

static int by_pattern(struct splitter *x, int k, const struct piece *in)
{
    const struct stage *s = &x->stages->at[k];
    struct merging m = {.x = x, .in = in, .k = k, .behavior = s->behavior, .invert = s->invert};
    size_t done = 0, from = 0, last_end = SIZE_MAX;
    for (;;) {
        size_t start = 0, end = 0;
        enum status rc = pattern_find(s->pattern, x->patterns, in->p, in->len, from, &start, &end, x->e);
        if (rc == ST_END)
            break;
        if (rc != ST_OK) {
            x->status = rc;
            return 1;
        }
        if (end == start && end == last_end) { /* no empty match beside another match */
            const uint8_t *p = in->p + from;
            if (from >= in->len)
                break;
            uni_next(&p);
            from = (size_t)(p - in->p);
            continue;
        }
        from = last_end = end;
        if ((start > done && item(&m, done, start, 0)) || item(&m, start, end, 1))
            return 1;
        done = end;
    }
    if (done < in->len && item(&m, done, in->len, 0))
        return 1;
    return flush(&m);
}

static int by_class(struct splitter *x, int k, const struct piece *in)
{
    const struct stage *s = &x->stages->at[k];
    struct merging m = {.x = x, .in = in, .k = k, .behavior = s->behavior, .invert = s->invert};
    size_t done = 0;
    for (const uint8_t *p = in->p, *end = p + in->len; p < end;) {
        size_t start = (size_t)(p - in->p);
        uint32_t c = uni_next(&p);
        if (s->class ? !(uni_flags(c) & s->class) : c != s->separator)
            continue;
        size_t stop = (size_t)(p - in->p);
        if ((start > done && item(&m, done, start, 0)) || item(&m, start, stop, 1))
            return 1;
        done = stop;
    }
    if (done < in->len && item(&m, done, in->len, 0))
        return 1;
    return flush(&m);
}

/* Components of their own kind ----------------------------------------------------------------------------------------------------- */

static int words(struct splitter *x, int k, const struct piece *in)
{
    size_t start = 0, at = 0;
    unsigned kind = UNI_WHITE; /* of what is held: UNI_WORD, UNI_WHITE, or 0 for symbols */
    for (const uint8_t *p = in->p, *end = p + in->len; p < end; at = (size_t)(p - in->p)) {
        unsigned f = uni_flags(uni_next(&p));
        unsigned now = f & UNI_WORD ? UNI_WORD : f & UNI_WHITE;
        if (now == kind)
            continue;
        if (kind != UNI_WHITE && pass(x, k, in, start, at))
            return 1;
        start = at;
        kind = now;
    }
    return kind != UNI_WHITE && pass(x, k, in, start, in->len);
}

/* Hiragana, Katakana and the long vowel mark go with Han; a space goes with all. What comes before the first character of any
   script is lost, as it is in the reference. */
static int script_of(uint32_t c)
{
    return c == ' ' ? 0 : uni_script(c);
}

static int scripts(struct splitter *x, int k, const struct piece *in)
{
    size_t start = SIZE_MAX;
    int last = 0;
    for (const uint8_t *p = in->p, *end = p + in->len; p < end;) {
        size_t at = (size_t)(p - in->p);
        int script = script_of(uni_next(&p));
        if (!script)
            continue;
        if (script != last) {
            if (start != SIZE_MAX && pass(x, k, in, start, at))
                return 1;
            start = at;
        }
        last = script;
    }
    return start != SIZE_MAX && pass(x, k, in, start, in->len);
}

static int fixed(struct splitter *x, int k, const struct piece *in)
{
    size_t start = 0;
    uint32_t count = 0;
    for (const uint8_t *p = in->p, *end = p + in->len; p < end;) {
        uni_next(&p);
        if (++count == x->stages->at[k].length) {
            if (pass(x, k, in, start, (size_t)(p - in->p)))
                return 1;
            start = (size_t)(p - in->p);
            count = 0;
        }
    }
    return pass(x, k, in, start, in->len);
}

/* Where the next separator or, with spaces, space stands. */
static size_t separator(const struct stage *s, const struct piece *in, size_t at, int spaces)
{
    for (; at < in->len; at++) {
        uint8_t b = in->p[at];
        if ((spaces && b == ' ') || (b == s->utf8[0] && in->len - at >= s->utf8_len && !memcmp(in->p + at, s->utf8, s->utf8_len)))
            break;
    }
    return at;
}

static int meta(struct splitter *x, int k, const struct piece *in)
{
    const struct stage *s = &x->stages->at[k];
    struct stretch *out = &x->room[k];
    int traced = in->from != NULL;
    size_t at = 0, sep = separator(s, in, 0, 1);
    out->len = 0;
    if (sep && (s->scheme == META_ALWAYS || (s->scheme == META_FIRST && in->from && in->from[0].start == 0)))
        if (stretch_add_at(out, s->utf8, s->utf8_len, traced ? in->from[0] : (struct tok_span){0, 0}, traced) < 0)
            return nomem(x);
    for (;;) { /* at: behind a separator that is in out already */
        if (stretch_add(out, in->p + at, sep - at, traced ? in->from + at : NULL, traced) < 0)
            return nomem(x);
        if (s->split || sep == in->len) {
            struct piece part = stretch_piece(out, traced);
            if (part.len && run(x, k + 1, &part))
                return 1;
            out->len = 0;
        }
        if (sep == in->len)
            return 0;
        at = sep + (in->p[sep] == ' ' ? 1 : s->utf8_len);
        if (stretch_add_at(out, s->utf8, s->utf8_len, traced ? in->from[sep] : (struct tok_span){0, 0}, traced) < 0)
            return nomem(x);
        sep = separator(s, in, at, 1);
    }
}

/* Words like "  x": a run of separators and what follows it. */
static int runs(struct splitter *x, int k, const struct piece *in)
{
    const struct stage *s = &x->stages->at[k];
    for (size_t start = 0; start < in->len;) {
        size_t at = start;
        while (separator(s, in, at, 0) == at && at < in->len)
            at += s->utf8_len;
        size_t end = separator(s, in, at, 0);
        if (pass(x, k, in, start, end))
            return 1;
        start = end;
    }
    return 0;
}

static int bytes(struct splitter *x, int k, const struct piece *whole)
{
    const struct stage *s = &x->stages->at[k];
    struct piece in = *whole;
    struct stretch *out = &x->room[k];
    int traced = in.from != NULL;
    struct tok_span none = {0, 0};
    out->len = 0;
    if (s->prefix && in.p[0] != ' ') {
        if (stretch_add_at(out, (const uint8_t *)" ", 1, traced ? in.from[0] : none, traced) < 0 ||
            stretch_add(out, in.p, in.len, in.from, traced) < 0)
            return nomem(x);
        in = stretch_piece(out, traced);
    }
    if (!s->raw) { /* words grow behind the text, where it is in the same room */
        size_t keep = out->len;
        if (stretch_reserve(out, 2 * in.len, traced) < 0)
            return nomem(x);
        if (keep)
            in = stretch_piece(out, traced);
        for (size_t at = 0; at < in.len;) {
            size_t n = s->regex ? scan_gpt2(in.p + at, in.p + in.len) : in.len;
            out->len = keep;
            for (size_t i = at; i < at + n; i++) {
                uint8_t utf8[4];
                if (stretch_add_at(out, utf8, uni_encode(bytelevel_char(in.p[i]), utf8), traced ? in.from[i] : none, traced) < 0)
                    return nomem(x);
            }
            struct piece word = {out->p + keep, out->len - keep, traced ? out->from + keep : NULL};
            if (run(x, k + 1, &word))
                return 1;
            at += n;
        }
        return 0;
    }
    if (!s->regex)
        return x->word(x->arg, &in);
    for (size_t at = 0; at < in.len;) {
        size_t n = scan_gpt2(in.p + at, in.p + in.len);
        struct piece word = {in.p + at, n, traced ? in.from + at : NULL};
        if (x->word(x->arg, &word))
            return 1;
        at += n;
    }
    return 0;
}

static int pattern(struct splitter *x, int k, const struct piece *in)
{
    const struct stage *s = &x->stages->at[k];
    enum pattern_known known = pattern_known(s->pattern);
    /* these match everywhere, so that nothing lies between matches */
    int plain = (s->behavior == SPLIT_ISOLATED) || (s->behavior == SPLIT_REMOVED && s->invert);
    if (!plain || known == PATTERN_OTHER || known == PATTERN_SPACES)
        return by_pattern(x, k, in);
    for (size_t at = 0; at < in->len;) {
        const uint8_t *p = in->p + at, *end = in->p + in->len;
        size_t n = known == PATTERN_GPT2 ? scan_gpt2(p, end) : scan_cl100k(p, end, known == PATTERN_QWEN ? 1 : 3);
        if (pass(x, k, in, at, at + n))
            return 1;
        at += n;
    }
    return 0;
}

static int run(struct splitter *x, int k, const struct piece *in)
{
    if (k == x->stages->count)
        return x->word(x->arg, in);
    switch (x->stages->at[k].kind) {
    case STAGE_BYTES:
        return bytes(x, k, in);
    case STAGE_META:
        return meta(x, k, in);
    case STAGE_PATTERN:
        return pattern(x, k, in);
    case STAGE_CLASS:
        return by_class(x, k, in);
    case STAGE_WORDS:
        return words(x, k, in);
    case STAGE_SCRIPTS:
        return scripts(x, k, in);
    case STAGE_FIXED:
        return fixed(x, k, in);
    case STAGE_RUNS:
        return runs(x, k, in);
    }
    return 0;
}

int split_run(struct splitter *x, const struct piece *text)
{
    return text->len ? run(x, 0, text) : 0;
}
