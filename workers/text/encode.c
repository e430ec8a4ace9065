/* A text becomes ids in the general way:

     find the next added token in the raw text
     take what lies before it, piece by piece where the tokenizer allows that, and normalise it
     find added tokens in the normalised piece, where the tokenizer has such
     cut what lies between them into words, and each word into tokens by the model; words met before are in a cache

   until the text or the limit is reached. */
#include <string.h>

#include "base/mem.h"
#include "workers/text/parts.h"
#include "workers/text/unicode.h"

#define PIECE 4096        /* bytes to take at once, at least */
#define WINDOW (64 << 10) /* to look for added tokens ahead */

struct encoder {
    const struct tokenizer *t;
    struct tok_scratch *s;
    struct ids *out;
    size_t limit;
    const uint8_t *text; /* the original, and where it ends: what is behind must not be read */
    const uint8_t *text_end;
    int spans; /* wanted */
    enum status status;
    struct err *e;
};

static int nomem(struct encoder *x)
{
    x->status = err_nomem(x->e, "the tokens of a text");
    return 1;
}

static int is_blank(uint32_t c)
{
    return c == 0x120 || (uni_flags(c) & UNI_WHITE); /* 0x120 is the space of the byte-level alphabet */
}

static struct blanks blanks_of(const uint8_t *p, size_t len)
{
    const uint8_t *end = p + len;
    struct blanks b = {0, 0};
    for (const uint8_t *q = p; q < end && is_blank(uni_decode(&q, end)) && b.before < UINT8_MAX;)
        b.before++;
    while (p < end)
        b.after = !is_blank(uni_decode(&p, end)) ? 0 : b.after < UINT8_MAX ? (uint8_t)(b.after + 1) : UINT8_MAX;
    return b;
}

/* An added token; text is what was found. */
static int push(struct encoder *x, int32_t id, const uint8_t *text, size_t len, struct tok_span span)
{
    if (!len) /* the spaces that it is made of are those of the token before it */
        return 0;
    if (ids_reserve(x->out, x->out->count + 1, x->spans) < 0)
        return nomem(x);
    if (x->spans) {
        x->out->span[x->out->count] = span;
        x->out->blank[x->out->count] = blanks_of(text, len);
    }
    x->out->id[x->out->count++] = id;
    return x->out->count > x->limit;
}

/* Words ----------------------------------------------------------------------------------------------------------------------- */

static size_t chars_in(const uint8_t *p, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += (p[i] & 0xC0) != 0x80;
    return n;
}

/* How many bytes of the word each piece of a WordPiece word takes. */
static void piece_ends(const struct tokenizer *t, const int32_t *ids, size_t count, size_t len, uint32_t *ends)
{
    size_t end = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t n = 0;
        vocab_token(&t->vocab, ids[i], &n);
        end += n - (i && n >= t->model.prefix_len ? t->model.prefix_len : 0);
        ends[i] = (uint32_t)(end < len ? end : len);
    }
    if (count)
        ends[count - 1] = (uint32_t)len;
}

static enum status split_word(struct encoder *x, const uint8_t *p, size_t len, int32_t *ids, uint32_t *ends, size_t *count)
{
    const struct tokenizer *t = x->t;
    switch (t->kind) {
    case MODEL_BPE:
        return bpe_split(&t->bpe, &x->s->bpe, p, len, ids, ends, count, x->e);
    case MODEL_UNIGRAM:
        return unigram_split(&t->unigram, &x->s->unigram, p, len, ids, ends, count, x->e);
    case MODEL_WORDPIECE:
        if (len > t->model.max_chars && chars_in(p, len) > t->model.max_chars) {
            ids[0] = t->model.unk;
            *count = 1;
        } else {
            *count = wordpiece_split(&t->model, p, len, ids);
        }
        if (ends)
            piece_ends(t, ids, *count, len, ends);
        return ST_OK;
    case MODEL_WORDLEVEL:
        break;
    }
    int32_t id = vocab_find(&t->vocab, p, len);
    if (id < 0 && t->unk < 0)
        return err_set(x->e, ST_USER, "the tokenizer does not know '%.*s' and its vocabulary lacks the unknown token '%.100s'",
                       (int)(len < 40 ? len : 40), p, t->unk_name);
    ids[0] = id < 0 ? t->unk : id;
    if (ends)
        ends[0] = (uint32_t)len;
    *count = 1;
    return ST_OK;
}

static size_t most_ids(const struct tokenizer *t, size_t len)
{
    return t->kind == MODEL_BPE ? bpe_most(&t->bpe, len) : len + 1;
}

static int put_spans(struct encoder *x, const struct piece *w)
{
    size_t most = most_ids(x->t, w->len), count = 0;
    if (most > x->s->ends_cap) {
        void *p = mem_resize(x->s->ends, (most + most / 2) * sizeof *x->s->ends);
        if (!p)
            return nomem(x);
        x->s->ends = p;
        x->s->ends_cap = most + most / 2;
    }
    if (ids_reserve(x->out, x->out->count + most, 1) < 0)
        return nomem(x);
    size_t at = x->out->count;
    x->status = split_word(x, w->p, w->len, x->out->id + at, x->s->ends, &count);
    if (x->status != ST_OK)
        return 1;
    for (size_t i = 0, start = 0; i < count; i++) {
        size_t end = x->s->ends[i];
        uint32_t n = 0;
        int32_t id = x->out->id[at + i];
        const char *token = vocab_token(&x->t->vocab, id, &n);
        int spelt = x->t->kind == MODEL_UNIGRAM && id == x->t->unigram.unk && end > start; /* there an unknown token is what it stands for */
        x->out->blank[at + i] = !x->t->trims ? (struct blanks){0, 0}
                                : spelt      ? blanks_of(w->p + start, end - start)
                                             : blanks_of((const uint8_t *)token, n);
        if (end <= start) { /* one of several that stand for the same bytes */
            x->out->span[at + i] = i ? x->out->span[at + i - 1] : (struct tok_span){w->from[0].start, w->from[0].start};
            continue;
        }
        x->out->span[at + i] = (struct tok_span){w->from[start].start, w->from[end - 1].end};
        start = end;
    }
    x->out->count += count;
    return x->out->count > x->limit;
}

/* The word's bytes and zeros behind them. */
static inline void load_key(const struct encoder *x, const struct piece *w, uint64_t key[3])
{
    static const uint8_t mask[2 * CACHE_WORD] = {
        0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,
        0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,
    };
    if (w->p >= x->text && w->p < x->text_end && (size_t)(x->text_end - w->p) < CACHE_WORD) {
        memset(key, 0, CACHE_WORD);
        memcpy(key, w->p, w->len);
        return;
    }
    uint64_t m[3];
    memcpy(key, w->p, CACHE_WORD); /* a stretch has room behind its end */
    memcpy(m, mask + CACHE_WORD - w->len, CACHE_WORD);
    for (int i = 0; i < 3; i++)
        key[i] &= m[i];
}

static inline int same_word(const struct cache_entry *c, const struct piece *w, const uint64_t key[3])
{
    return c->len == w->len && c->key[0] == key[0] && c->key[1] == key[1] && c->key[2] == key[2];
}

static int put_word(void *arg, const struct piece *w)
{
    struct encoder *x = arg;
    if (x->spans)
        return put_spans(x, w);
    struct cache_entry *c = NULL;
    uint64_t key[3];
    if (w->len <= CACHE_WORD) {
        load_key(x, w, key);
        uint64_t h = hash_mix(hash_mix(key[0], key[1]), key[2] + w->len);
        c = &x->s->cache[(h >> 50) & ~(uint64_t)1]; /* one of two; the one used longer ago is the first to go */
        if (!same_word(c, w, key) && same_word(c + 1, w, key)) {
            struct cache_entry other = c[1];
            c[1] = c[0];
            c[0] = other;
        }
        if (same_word(c, w, key)) {
            if (ids_reserve(x->out, x->out->count + CACHE_IDS, 0) < 0)
                return nomem(x);
            memcpy(x->out->id + x->out->count, c->id, sizeof c->id);
            x->out->count += c->count;
            return x->out->count > x->limit;
        }
    }
    size_t count = 0, at = x->out->count;
    if (ids_reserve(x->out, at + most_ids(x->t, w->len), 0) < 0)
        return nomem(x);
    x->status = split_word(x, w->p, w->len, x->out->id + at, NULL, &count);
    if (x->status != ST_OK)
        return 1;
    x->out->count += count;
    if (c && count <= CACHE_IDS) {
        c[1] = c[0];
        memcpy(c->key, key, sizeof key);
        c->len = (uint8_t)w->len;
        c->count = (uint8_t)count;
        memcpy(c->id, x->out->id + at, count * sizeof *c->id);
    }
    return x->out->count > x->limit;
}

_Static_assert(CACHE_SLOTS == 1 << (64 - 50), "put_word takes the upper bits of the hash");

/* Pieces ---------------------------------------------------------------------------------------------------------------------- */

static int put_words(struct encoder *x, const struct piece *in)
{
    struct splitter split = {.stages = &x->t->stages, .room = x->s->room, .patterns = &x->s->patterns, .word = put_word, .arg = x,
                             .status = ST_OK, .e = x->e};
    int rc = split_run(&split, in);
    if (split.status != ST_OK)
        x->status = split.status;
    return rc;
}

static struct piece part_of(const struct piece *in, size_t start, size_t end)
{
    return (struct piece){in->p + start, end - start, in->from ? in->from + start : NULL};
}

static int put_normal(struct encoder *x, const struct piece *in)
{
    const struct added_set *set = &x->t->normal;
    if (!set->count)
        return put_words(x, in);
    size_t at = 0, searched = 0;
    struct match m;
    while (find_added(x->t, set, in->p, in->len, &searched, in->len, &m)) {
        size_t start = m.token->lstrip ? find_trim_white(in->p, at, m.start > at ? m.start : at) : m.start;
        size_t end = m.token->rstrip ? find_skip_white(in->p, in->len, m.end) : m.end;
        if (start > at) {
            struct piece before = part_of(in, at, start);
            if (put_words(x, &before))
                return 1;
        }
        struct tok_span span = {0, 0};
        if (in->from && end > start)
            span = (struct tok_span){in->from[start].start, in->from[end - 1].end};
        if (push(x, m.token->id, in->p + start, end > start ? end - start : 0, span))
            return 1;
        at = end;
        searched = m.end;
    }
    struct piece rest = part_of(in, at, in->len);
    return at < in->len && put_words(x, &rest);
}

/* Text that is not UTF-8 has U+FFFD in place of each byte that belongs to no character. */
static int put_piece(struct encoder *x, size_t from, size_t to, int first, int last)
{
    const uint8_t *p = x->text + from, *end = x->text + to;
    struct stretch *copy = &x->s->text;
    int traced = x->spans || (first && !from && x->t->whole_origins), valid = uni_valid(p, (size_t)(end - p));
    struct piece in = {p, to - from, NULL};
    if (traced || !valid) {
        copy->len = 0;
        while (p < end) {
            const uint8_t *start = p;
            uint8_t utf8[4];
            size_t n = uni_encode(uni_decode(&p, end), utf8);
            struct tok_span span = {(uint32_t)(start - x->text), (uint32_t)(p - x->text)};
            if (stretch_add_at(copy, utf8, n, span, traced) < 0)
                return nomem(x);
        }
        in = stretch_piece(copy, traced);
    }
    x->status = normals_run(&x->t->normals, &x->s->normal, &in, first, last, (uint32_t)from, x->e);
    return x->status != ST_OK || (in.len && put_normal(x, &in));
}

static int is_letter(uint8_t b)
{
    return (b | 0x20) >= 'a' && (b | 0x20) <= 'z';
}

/* Where in [low, high) a space stands between two letters; 0 if nowhere. */
static size_t place_to_cut(const uint8_t *text, size_t low, size_t high)
{
    for (size_t i = low + 1; i + 1 < high; i++)
        if (text[i] == ' ' && is_letter(text[i - 1]) && is_letter(text[i + 1]))
            return i;
    return 0;
}

static void put_text(struct encoder *x, size_t len)
{
    const struct tokenizer *t = x->t;
    size_t at = 0, searched = 0; /* all before at is done; no added token starts before searched */
    int first = 1;               /* at is at the beginning of a segment */
    for (;;) {
        struct match m = {0};
        int found = searched < len && find_added(t, &t->raw, x->text, len, &searched, searched + WINDOW < len ? searched + WINDOW : len, &m);
        size_t limit = found ? m.start : searched;
        while (t->cuttable && limit > at && limit - at > 2 * PIECE) {
            size_t cut = place_to_cut(x->text, at + PIECE, limit);
            if (!cut)
                break;
            if (put_piece(x, at, cut, first, 0))
                return;
            at = cut;
            first = 0;
        }
        if (!found && limit < len)
            continue;
        size_t start = limit;
        if (found && m.token->lstrip)
            start = find_trim_white(x->text, at, start > at ? start : at);
        if (start > at && put_piece(x, at, start, first, 1))
            return;
        if (!found)
            return;
        size_t end = m.token->rstrip ? find_skip_white(x->text, len, m.end) : m.end;
        if (push(x, m.token->id, x->text + start, end > start ? end - start : 0, (struct tok_span){(uint32_t)start, (uint32_t)end}))
            return;
        at = end;
        searched = m.end;
        first = 1;
    }
}

enum status encode_text(const struct tokenizer *t, struct tok_scratch *s, const uint8_t *text, size_t len, size_t limit, int spans,
                        struct ids *out, struct err *e)
{
    if (len >= UINT32_MAX)
        return err_set(e, ST_USER, "the text has 4 GiB or more");
    if (!s->cache) {
        if (!(s->cache = mem_aligned(CACHE_SLOTS * sizeof *s->cache))) /* an entry is a cache line */
            return err_nomem(e, "the cache of a tokenizer");
        s->cache_serial = 0;
    }
    if (s->cache_serial != t->serial) {
        memset(s->cache, 0, CACHE_SLOTS * sizeof *s->cache);
        s->cache_serial = t->serial;
    }
    s->normal.patterns = &s->patterns;
    struct encoder x = {.t = t, .s = s, .out = out, .limit = limit, .text = text, .text_end = text + len, .spans = spans,
                        .status = ST_OK, .e = e};
    put_text(&x, len);
    return x.status;
}
