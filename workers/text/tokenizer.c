/* Texts in, ids out: encode.c (or stream.c) turns each text into ids, what is here cuts them to the limit and puts special tokens
   between them. */
#include "workers/text/tokenizer.h"

#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"
#include "workers/text/parts.h"

#define IDS_KEPT (1u << 20)

static atomic_uint_fast64_t serials;

enum status tokenizer_open(const char *dir, struct tokenizer **out, struct err *e)
{
    struct tokenizer *t = mem_zalloc(sizeof *t);
    if (!t)
        return err_nomem(e, "a tokenizer");
    t->serial = atomic_fetch_add(&serials, 1) + 1;
    enum status rc = tok_load(dir, t, e);
    if (rc != ST_OK) {
        tokenizer_free(t);
        return rc;
    }
    *out = t;
    return ST_OK;
}

void tokenizer_free(struct tokenizer *t)
{
    if (!t)
        return;
    vocab_release(&t->vocab);
    wordpiece_release(&t->model);
    bpe_release(&t->bpe);
    unigram_release(&t->unigram);
    normals_release(&t->normals);
    stages_release(&t->stages);
    trie_release(&t->raw.trie);
    trie_release(&t->normal.trie);
    for (size_t i = 0; i < t->added_count; i++)
        mem_free(t->added[i].content);
    mem_free(t->added);
    mem_free(t->added_of);
    mem_free(t->added_slot);
    mem_free(t->unk_name);
    mem_free(t);
}

uint32_t tokenizer_vocab_size(const struct tokenizer *t)
{
    return t->vocab_size;
}

uint32_t tokenizer_special_count(const struct tokenizer *t)
{
    return t->single.special;
}

uint32_t tokenizer_pair_special_count(const struct tokenizer *t)
{
    return t->pair.special;
}

static const struct added *added_of(const struct tokenizer *t, int32_t id)
{
    uint32_t i = id >= 0 && (uint32_t)id < t->vocab_size ? t->added_of[id] : 0;
    return i ? &t->added[i - 1] : NULL;
}

const char *tokenizer_token(const struct tokenizer *t, int32_t id)
{
    const struct added *a = added_of(t, id);
    return a ? a->content : vocab_token(&t->vocab, id, NULL);
}

int32_t tokenizer_id(const struct tokenizer *t, const char *token)
{
    return tok_find_id(t, token);
}

int tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    const struct added *a = added_of(t, id);
    return a && a->special;
}

enum status tok_scratch_new(struct tok_scratch **out, struct err *e)
{
    struct tok_scratch *s = mem_zalloc(sizeof *s);
    if (!s)
        return err_nomem(e, "a tokenizer's scratch");
    *out = s;
    return ST_OK;
}

static void ids_release(struct ids *x)
{
    mem_free(x->id);
    mem_free(x->span);
    mem_free(x->blank);
    *x = (struct ids){0};
}

void tok_scratch_free(struct tok_scratch *s)
{
    if (!s)
        return;
    runes_release(&s->runes);
    runes_release(&s->tmp);
    runes_release(&s->held);
    mem_free(s->word);
    ids_release(&s->ids[0]);
    ids_release(&s->ids[1]);
    ids_release(&s->all);
    mem_free(s->types);
    normal_room_release(&s->normal);
    for (int i = 0; i < STAGES_MAX; i++)
        stretch_release(&s->room[i]);
    stretch_release(&s->text);
    pattern_room_free(s->patterns);
    bpe_room_release(&s->bpe);
    unigram_room_release(&s->unigram);
    mem_free(s->ends);
    mem_free(s->cache);
    mem_free(s);
}

int ids_reserve(struct ids *x, size_t want, int spans)
{
    if (want > x->cap) {
        size_t cap = x->cap ? x->cap * 2 : 1024;
        if (cap < want)
            cap = want;
        void *p = cap > SIZE_MAX / sizeof *x->id ? NULL : mem_resize(x->id, cap * sizeof *x->id);
        if (!p)
            return -1;
        x->id = p;
        x->cap = cap;
    }
    if (spans && x->cap > x->span_cap) {
        void *p = x->cap > SIZE_MAX / sizeof *x->span ? NULL : mem_resize(x->span, x->cap * sizeof *x->span);
        if (!p)
            return -1;
        x->span = p;
        x->span_cap = x->cap;
    }
    if (spans && x->cap > x->blank_cap) {
        void *p = mem_resize(x->blank, x->cap * sizeof *x->blank);
        if (!p)
            return -1;
        x->blank = p;
        x->blank_cap = x->cap;
    }
    return 0;
}

/* One huge text does not hold its memory for ever. */
static void shrink(struct tok_scratch *s)
{
    for (int i = 0; i < 2; i++)
        if (s->ids[i].cap > IDS_KEPT)
            ids_release(&s->ids[i]);
    if (s->all.cap > IDS_KEPT)
        ids_release(&s->all);
    if (s->unigram.cap > IDS_KEPT)
        unigram_room_release(&s->unigram);
    if (s->bpe.symbol_cap > IDS_KEPT || s->bpe.heap_cap > IDS_KEPT)
        bpe_room_release(&s->bpe);
}

/* Spans ------------------------------------------------------------------------------------------------------------------------- */

/* Moves a place by n characters, towards stop. */
static uint32_t ahead(const char *text, uint32_t at, uint32_t n, uint32_t stop)
{
    for (; n && at < stop; n--)
        for (at++; at < stop && (text[at] & 0xC0) == 0x80; at++)
            ;
    return at;
}

static uint32_t back(const char *text, uint32_t at, uint32_t n, uint32_t stop)
{
    for (; n && at > stop; n--)
        for (at--; at > stop && (text[at] & 0xC0) == 0x80; at--)
            ;
    return at;
}

static void trim_spans(const struct tokenizer *t, const char *text, struct ids *x)
{
    for (int k = 0; k < t->trims; k++)
        for (size_t i = 0; i < x->count; i++) {
            struct tok_span *s = &x->span[i];
            struct blanks b = x->blank[i];
            if (b.before == 1 && t->trim[k].prefix && (!i || !s->start))
                b.before = 0; /* it was put there, and is no part of the text */
            s->start = ahead(text, s->start, b.before, s->end);
            s->end = back(text, s->end, b.after, s->start);
        }
}

/* --------------------------------------------------------------------------------------------------------------------------- */

static void keep(struct ids *x, size_t start, size_t count, int spans)
{
    if (start) {
        memmove(x->id, x->id + start, count * sizeof *x->id);
        if (spans) {
            memmove(x->span, x->span + start, count * sizeof *x->span);
            memmove(x->blank, x->blank + start, count * sizeof *x->blank);
        }
    }
    x->count = count;
}

/* Cuts to count ids, at the end or, where the tokenizer says so, at the beginning. */
static int cut(const struct tokenizer *t, struct ids *x, size_t count, int spans)
{
    if (x->count <= count)
        return 0;
    keep(x, t->left ? x->count - count : 0, count, spans);
    return 1;
}

static enum status one_text(const struct tokenizer *t, struct tok_scratch *s, const char *text, size_t len, size_t limit, int spans,
                            struct ids *out, struct err *e)
{
    out->count = 0;
    if (ids_reserve(out, 1, spans) < 0)
        return err_nomem(e, "the tokens of a text");
    if (t->left)
        limit = SIZE_MAX;
    if (t->stream && !spans)
        return stream_text(t, s, (const uint8_t *)text, len, limit, out, e);
    return encode_text(t, s, (const uint8_t *)text, len, limit, spans, out, e);
}

/* The lengths that a pair is cut to, as the reference has it. */
static enum status share(const struct tok_input *in, size_t max, size_t n[2], struct err *e)
{
    if (n[0] + n[1] <= max)
        return ST_OK;
    if (in->cut != TOK_LONGEST_FIRST && max) {
        int cut_one = in->cut == TOK_ONLY_SECOND;
        size_t other = n[!cut_one];
        if (other >= max)
            return err_set(e, ST_USER, "the %s text alone has all the tokens that both may have", cut_one ? "first" : "second");
        n[cut_one] = max - other;
        return ST_OK;
    }
    int longer = n[1] >= n[0];
    size_t a = n[!longer], b = a > max ? a : max - a > a ? max - a : a;
    if (a + b > max) {
        a = max / 2;
        b = a + max % 2;
    }
    n[!longer] = a;
    n[longer] = b;
    return ST_OK;
}

static enum status assemble(const struct tokenizer *t, struct tok_scratch *s, const struct tok_input *in, struct tok_result *out,
                            struct err *e)
{
    const struct post *post = in->pair ? &t->pair : &t->single;
    struct ids *all = &s->all;
    size_t count = post->special + (post->has[0] ? s->ids[0].count : 0) + (post->has[1] ? s->ids[1].count : 0);
    if (count > UINT32_MAX || ids_reserve(all, count + 1, in->spans) < 0)
        return err_nomem(e, "the tokens of a text");
    if (count + 1 > s->types_cap) {
        void *p = mem_resize(s->types, count + count / 2 + 64);
        if (!p)
            return err_nomem(e, "the tokens of a text");
        s->types = p;
        s->types_cap = count + count / 2 + 64;
    }
    size_t n = 0;
    for (uint32_t i = 0; i < post->count; i++) {
        const struct post_part *p = &post->part[i];
        if (p->sequence < 0) {
            all->id[n] = p->id;
            if (in->spans)
                all->span[n] = (struct tok_span){0, 0};
            s->types[n++] = p->type;
            continue;
        }
        const struct ids *from = &s->ids[p->sequence];
        if (!from->count)
            continue;
        memcpy(all->id + n, from->id, from->count * sizeof *from->id);
        if (in->spans)
            memcpy(all->span + n, from->span, from->count * sizeof *from->span);
        memset(s->types + n, p->type, from->count);
        out->part[p->sequence] = (struct tok_span){(uint32_t)n, (uint32_t)(n + from->count)};
        n += from->count;
    }
    if (in->max_tokens && n > in->max_tokens)
        n = in->max_tokens;
    all->count = n;
    out->ids = all->id;
    out->types = s->types;
    out->spans = in->spans ? all->span : NULL;
    out->count = (uint32_t)n;
    return ST_OK;
}

enum status tokenizer_encode_input(const struct tokenizer *t, struct tok_scratch *s, const struct tok_input *in, struct tok_result *out,
                                   struct err *e)
{
    const struct post *post = in->pair ? &t->pair : &t->single;
    if (in->pair && !post->has[1])
        return err_set(e, ST_USER, "the tokenizer's post_processor takes no second text");
    size_t max = SIZE_MAX;
    if (in->max_tokens)
        max = in->max_tokens > post->special ? in->max_tokens - post->special : 0;
    shrink(s);
    struct tok_result r = {0};
    int pair = in->pair != NULL;
    /* the longer of two long texts gets an odd token: then all of both must be counted */
    size_t limit = pair && max % 2 && in->cut == TOK_LONGEST_FIRST ? SIZE_MAX : max;
    TRY(one_text(t, s, in->text, in->len, limit, in->spans, &s->ids[0], e));
    s->ids[1].count = 0;
    if (pair)
        TRY(one_text(t, s, in->pair, in->pair_len, limit, in->spans, &s->ids[1], e));
    size_t n[2] = {s->ids[0].count, s->ids[1].count};
    if (in->pair)
        TRY(share(in, max, n, e));
    else
        n[0] = n[0] > max ? max : n[0];
    for (int i = 0; i < 2; i++) {
        r.truncated |= cut(t, &s->ids[i], n[i], in->spans);
        if (in->spans)
            trim_spans(t, i ? in->pair : in->text, &s->ids[i]);
    }
    TRY(assemble(t, s, in, &r, e));
    *out = r;
    return ST_OK;
}

enum status tokenizer_encode(const struct tokenizer *t, struct tok_scratch *s, const char *text, size_t len, uint32_t max_tokens,
                             struct tok_result *out, struct err *e)
{
    return tokenizer_encode_input(t, s, &(struct tok_input){.text = text, .len = len, .max_tokens = max_tokens}, out, e);
}
