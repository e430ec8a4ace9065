/* A text goes through in stretches, so that memory and work stay small however long it is:

     find the next added token in the raw text, at most WINDOW bytes ahead
     cut there, or else where the two sides are normalised alike alone and together
     normalise the stretch; find added tokens in what came out of it, where the tokenizer has such
     cut it into words, and each word into pieces

   until the text or the limit on tokens is reached. Runs of ASCII skip the normaliser: a table says what becomes of each byte. */
#include "workers/text/tokenizer.h"

#include <string.h>

#include "base/mem.h"
#include "workers/text/parts.h"
#include "workers/text/unicode.h"

#define WINDOW 4096
/* A stretch without a place to cut at (a million marks on one letter) is cut anyway, so that memory stays bounded; only there
   may ids differ from the reference's. */
#define STRETCH_MAX (1u << 20)
#define IDS_KEPT (1u << 20)

struct tok_scratch {
    struct runes runes, tmp;
    struct runes held; /* normalised, not yet searched for added tokens */
    uint8_t *word;
    size_t word_cap;
    int32_t *ids;
    size_t ids_cap;
};

struct encoder {
    const struct tokenizer *t;
    struct tok_scratch *s;
    size_t count, limit;       /* ids so far, those in front included; more than limit is too many */
    size_t word_len, word_chars; /* chars counts on where the word is too long, len does not */
    int word_kind;
    uint32_t previous; /* the character before held.at[0]; NONE at the start of a segment */
    int full;          /* limit exceeded, or out of memory: stop */
    int nomem;
};

#define NONE UINT32_MAX

enum status tokenizer_open(const char *dir, struct tokenizer **out, struct err *e)
{
    struct tokenizer *t = mem_zalloc(sizeof *t);
    if (!t)
        return err_nomem(e, "a tokenizer");
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
    wordpiece_release(&t->model);
    trie_release(&t->raw.trie);
    trie_release(&t->normal.trie);
    for (size_t i = 0; i < t->added_count; i++)
        mem_free(t->added[i].content);
    mem_free(t->added);
    mem_free(t->around);
    mem_free(t);
}

uint32_t tokenizer_vocab_size(const struct tokenizer *t)
{
    return t->vocab_size;
}

uint32_t tokenizer_special_count(const struct tokenizer *t)
{
    return t->before + t->after;
}

enum status tok_scratch_new(struct tok_scratch **out, struct err *e)
{
    struct tok_scratch *s = mem_zalloc(sizeof *s);
    if (!s)
        return err_nomem(e, "a tokenizer's scratch");
    *out = s;
    return ST_OK;
}

void tok_scratch_free(struct tok_scratch *s)
{
    if (!s)
        return;
    runes_release(&s->runes);
    runes_release(&s->tmp);
    runes_release(&s->held);
    mem_free(s->word);
    mem_free(s->ids);
    mem_free(s);
}

static int reserve_ids(struct tok_scratch *s, size_t want)
{
    if (want <= s->ids_cap)
        return 0;
    size_t cap = s->ids_cap ? s->ids_cap * 2 : 1024;
    if (cap < want)
        cap = want;
    if (cap > SIZE_MAX / sizeof *s->ids)
        return -1;
    void *p = mem_resize(s->ids, cap * sizeof *s->ids);
    if (!p)
        return -1;
    s->ids = p;
    s->ids_cap = cap;
    return 0;
}

static void fail(struct encoder *x)
{
    x->nomem = x->full = 1;
}

/* Words ----------------------------------------------------------------------------------------------------------------------- */

static void push(struct encoder *x, int32_t id)
{
    if (x->full)
        return;
    if (reserve_ids(x->s, x->count + 1) < 0) {
        fail(x);
        return;
    }
    x->s->ids[x->count++] = id;
    x->full = x->count > x->limit;
}

static void end_word(struct encoder *x)
{
    if (!x->word_chars)
        return;
    if (x->word_chars > x->t->model.max_chars) {
        push(x, x->t->model.unk);
    } else if (!x->full) {
        if (reserve_ids(x->s, x->count + x->word_len) < 0) {
            fail(x);
            return;
        }
        x->count += wordpiece_split(&x->t->model, x->s->word, x->word_len, x->s->ids + x->count);
        x->full = x->count > x->limit;
    }
    x->word_len = x->word_chars = 0;
}

static void put_char(struct encoder *x, uint32_t c)
{
    int kind = tok_kind(x->t->split, c);
    if (kind == KIND_SPACE || kind == KIND_PUNCT || (x->word_chars && kind != x->word_kind))
        end_word(x);
    if (kind == KIND_SPACE)
        return;
    x->word_kind = kind;
    if (x->word_chars++ < x->t->model.max_chars)
        x->word_len += uni_encode(c, x->s->word + x->word_len);
    if (kind == KIND_PUNCT)
        end_word(x);
}

static void put_ascii(struct encoder *x, const uint8_t *p, const uint8_t *end)
{
    const struct tokenizer *t = x->t;
    while (p < end && !x->full) {
        int kind = t->ascii_kind[*p];
        if (kind > KIND_SYMBOL) {
            if (kind != KIND_NONE)
                end_word(x);
            if (kind == KIND_PUNCT)
                push(x, t->ascii_id[*p]);
            p++;
            continue;
        }
        if (x->word_chars && kind != x->word_kind)
            end_word(x);
        x->word_kind = kind;
        const uint8_t *start = p;
        size_t room = x->word_chars < t->model.max_chars ? t->model.max_chars - x->word_chars : 0;
        uint8_t *word = x->s->word + x->word_len;
        do {
            if (room) {
                *word++ = t->ascii_char[*p];
                room--;
            }
            p++;
        } while (p < end && t->ascii_kind[*p] == kind);
        x->word_len = (size_t)(word - x->s->word);
        x->word_chars += (size_t)(p - start);
    }
}

/* Stretches ------------------------------------------------------------------------------------------------------------------- */

/* Decodes and normalises [p, end) into s->runes. */
static int normalize(struct encoder *x, const uint8_t *p, const uint8_t *end)
{
    struct runes *r = &x->s->runes;
    r->len = 0;
    if (runes_reserve(r, (size_t)(end - p)) < 0)
        return -1;
    while (p < end)
        r->at[r->len++] = uni_decode(&p, end);
    return normalizer_run(&x->t->norm, r, &x->s->tmp);
}

static const uint8_t *ascii_run(const uint8_t *p, const uint8_t *end)
{
    uint64_t eight;
    while (end - p >= 8 && (memcpy(&eight, p, 8), !(eight & 0x8080808080808080u)))
        p += 8;
    while (p < end && *p < 0x80)
        p++;
    return p;
}

static void put_plain(struct encoder *x, const uint8_t *p, const uint8_t *end)
{
    const uint8_t *kind = x->t->ascii_kind;
    while (p < end && !x->full) {
        const uint8_t *run = ascii_run(p, end);
        const uint8_t *stop = run;
        if (run < end) /* the last character may go together with what follows */
            while (stop > p && kind[*--stop] == KIND_NONE)
                ;
        put_ascii(x, p, stop);
        if (run == end || x->full)
            return;
        while (run < end && (*run >= 0x80 || kind[*run] == KIND_NONE))
            run++;
        if (normalize(x, stop, run) < 0) {
            fail(x);
            return;
        }
        for (size_t i = 0; i < x->s->runes.len && !x->full; i++)
            put_char(x, x->s->runes.at[i]);
        p = run;
    }
}

static int is_word(uint32_t c)
{
    return c != NONE && (uni_flags(c) & UNI_WORD);
}

/* The longest added token at the start of c, in characters; 0 if there is none. */
static size_t match_runes(const struct added_set *set, const uint32_t *c, size_t len, int32_t *index)
{
    uint32_t state = TRIE_ROOT;
    size_t best = 0;
    for (size_t i = 0; i < len; i++) {
        uint8_t bytes[4];
        size_t n = uni_encode(c[i], bytes);
        if (!i && !set->first[bytes[0]])
            return 0;
        for (size_t k = 0; k < n && state != TRIE_NONE; k++)
            state = trie_step(&set->trie, state, bytes[k]);
        if (state == TRIE_NONE)
            break;
        if (set->trie.cell[state].value >= 0) {
            *index = set->trie.cell[state].value;
            best = i + 1;
        }
    }
    return best;
}

/* Searches what is held for added tokens and passes on what is decided: all of it at the end of a segment. */
static void pass_held(struct encoder *x, int end)
{
    const struct added_set *set = &x->t->normal;
    struct runes *h = &x->s->held;
    size_t i = 0;
    while (i < h->len && !x->full && (end || h->len - i > set->longest)) {
        int32_t index = 0;
        size_t n = match_runes(set, h->at + i, h->len - i, &index);
        const struct added *a = n ? &x->t->added[index] : NULL;
        uint32_t before = i ? h->at[i - 1] : x->previous;
        uint32_t after = i + n < h->len ? h->at[i + n] : NONE;
        if (a && !(a->single_word && (is_word(before) || is_word(after)))) {
            end_word(x);
            push(x, a->id);
        } else { /* a token inside of a word is passed over whole */
            for (size_t k = 0; k < (n ? n : 1); k++)
                put_char(x, h->at[i + k]);
        }
        i += n ? n : 1;
    }
    if (i)
        x->previous = h->at[i - 1];
    h->len -= i;
    memmove(h->at, h->at + i, h->len * sizeof *h->at);
}

static void put_stretch(struct encoder *x, const uint8_t *p, const uint8_t *end)
{
    if (!x->t->normal.count) {
        put_plain(x, p, end);
        return;
    }
    struct runes *r = &x->s->runes, *h = &x->s->held;
    if (normalize(x, p, end) < 0 || runes_reserve(h, r->len) < 0) {
        fail(x);
        return;
    }
    if (r->len)
        memcpy(h->at + h->len, r->at, r->len * sizeof *r->at);
    h->len += r->len;
    pass_held(x, 0);
}

static void end_segment(struct encoder *x)
{
    if (x->t->normal.count && x->s->held.len)
        pass_held(x, 1);
    end_word(x);
    x->previous = NONE;
}

/* Added tokens in raw text ---------------------------------------------------------------------------------------------------- */

struct match {
    size_t start, end;
    const struct added *token;
};

static uint32_t char_before(const uint8_t *text, size_t at)
{
    if (!at)
        return NONE;
    size_t i = at - 1;
    while (i && at - i < 4 && (text[i] & 0xC0) == 0x80)
        i--;
    const uint8_t *p = text + i;
    return uni_decode(&p, text + at);
}

static uint32_t char_at(const uint8_t *text, size_t len, size_t at)
{
    const uint8_t *p = text + at;
    return at < len ? uni_decode(&p, text + len) : NONE;
}

/* Finds the first token that starts at *from or later and before `stop`; if there is none, 0, and *from is where to go on. */
static int find_raw(const struct tokenizer *t, const uint8_t *text, size_t len, size_t *from, size_t stop, struct match *m)
{
    const struct added_set *set = &t->raw;
    size_t i = *from;
    while (set->count && i < stop) {
        if (set->only >= 0) {
            const uint8_t *p = memchr(text + i, set->only, stop - i);
            if (!p)
                break;
            i = (size_t)(p - text);
        } else if (!set->first[text[i]]) {
            i++;
            continue;
        }
        uint32_t state = TRIE_ROOT;
        int32_t index = -1;
        size_t end = i;
        for (size_t k = i; k < len; k++) {
            state = trie_step(&set->trie, state, text[k]);
            if (state == TRIE_NONE)
                break;
            if (set->trie.cell[state].value >= 0) {
                index = set->trie.cell[state].value;
                end = k + 1;
            }
        }
        if (index < 0) {
            i++;
            continue;
        }
        const struct added *a = &t->added[index];
        if (a->single_word && (is_word(char_before(text, i)) || is_word(char_at(text, len, end)))) {
            i = end;
            continue;
        }
        *m = (struct match){i, end, a};
        return 1;
    }
    *from = i > stop ? i : stop;
    return 0;
}

/* The last place in (low, high) to cut at, or 0. */
static size_t last_boundary(const uint8_t *text, size_t len, size_t low, size_t high)
{
    for (size_t i = high; i-- > low + 1;)
        if ((text[i] & 0xC0) != 0x80 && (uni_flags(char_at(text, len, i)) & UNI_BOUNDARY))
            return i;
    return 0;
}

static size_t skip_white(const uint8_t *text, size_t len, size_t at)
{
    const uint8_t *p = text + at, *end = text + len;
    while (p < end) {
        const uint8_t *next = p;
        if (!(uni_flags(uni_decode(&next, end)) & UNI_WHITE))
            break;
        p = next;
    }
    return (size_t)(p - text);
}

static size_t trim_white(const uint8_t *text, size_t low, size_t at)
{
    while (at > low) {
        size_t i = at - 1;
        while (i > low && (text[i] & 0xC0) == 0x80)
            i--;
        if (!(uni_flags(char_before(text, at)) & UNI_WHITE))
            break;
        at = i;
    }
    return at;
}

static void put_text(struct encoder *x, const uint8_t *text, size_t len)
{
    size_t at = 0;       /* all before is done */
    size_t searched = 0; /* no added token starts before */
    size_t uncut = 0;    /* no boundary between at and here */
    while (!x->full) {
        struct match m = {0};
        int found = 0;
        if (searched < len)
            found = find_raw(x->t, text, len, &searched, searched + WINDOW < len ? searched + WINDOW : len, &m);
        size_t limit = found ? m.start : searched;
        if (!found && limit < len) {
            size_t cut = limit > at ? last_boundary(text, len, uncut > at ? uncut : at, limit) : 0;
            if (!cut && limit > at && limit - at > STRETCH_MAX) {
                cut = limit;
                while (cut > at && (text[cut] & 0xC0) == 0x80)
                    cut--;
            }
            if (cut > at) {
                put_stretch(x, text + at, text + cut);
                at = cut;
            } else {
                uncut = limit > 4 ? limit - 4 : 0; /* its last character may have been cut short */
            }
            continue;
        }
        if (found && m.token->lstrip)
            limit = trim_white(text, at, limit > at ? limit : at);
        if (limit > at)
            put_stretch(x, text + at, text + limit);
        end_segment(x);
        if (!found)
            return;
        push(x, m.token->id);
        at = searched = m.end;
        if (m.token->rstrip && !x->full)
            at = skip_white(text, len, at);
    }
}

enum status tokenizer_encode(const struct tokenizer *t, struct tok_scratch *s, const char *text, size_t len, uint32_t max_tokens,
                             struct tok_result *out, struct err *e)
{
    uint32_t specials = t->before + t->after;
    size_t limit = SIZE_MAX; /* of ids without those behind */
    if (max_tokens)
        limit = t->before + (max_tokens > specials ? max_tokens - specials : 0);

    if (s->ids_cap > IDS_KEPT) { /* one huge text does not hold its memory for ever */
        mem_free(s->ids);
        s->ids = NULL;
        s->ids_cap = 0;
    }
    size_t word_max = (size_t)t->model.max_chars * 4;
    if (s->word_cap < word_max) {
        void *p = mem_resize(s->word, word_max);
        if (!p)
            return err_nomem(e, "the words of a text");
        s->word = p;
        s->word_cap = word_max;
    }
    s->held.len = 0;
    if (reserve_ids(s, specials) < 0)
        return err_nomem(e, "the tokens of a text");
    if (t->before)
        memcpy(s->ids, t->around, t->before * sizeof *s->ids);

    struct encoder x = {.t = t, .s = s, .count = t->before, .limit = limit, .previous = NONE};
    put_text(&x, (const uint8_t *)text, len);
    if (x.nomem || x.count > UINT32_MAX - specials)
        return err_nomem(e, "the tokens of a text");
    int truncated = x.count > limit;
    if (truncated)
        x.count = limit;
    if (reserve_ids(s, x.count + t->after) < 0)
        return err_nomem(e, "the tokens of a text");
    if (t->after)
        memcpy(s->ids + x.count, t->around + t->before, t->after * sizeof *s->ids);
    x.count += t->after;
    if (max_tokens && x.count > max_tokens)
        x.count = max_tokens;
    *out = (struct tok_result){.ids = s->ids, .count = (uint32_t)x.count, .truncated = truncated};
    return ST_OK;
}
