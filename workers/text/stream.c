/* WordPiece with plain steps and splits goes its own way, without a copy of the text. It through in stretches, so that memory and work stay small however long it is:

     find the next added token in the raw text, at most WINDOW bytes ahead
     cut there, or else where the two sides are normalised alike alone and together
     normalise the stretch; find added tokens in what came out of it, where the tokenizer has such
     cut it into words, and each word into pieces

   until the text or the limit on tokens is reached. Runs of ASCII skip the normaliser: a table says what becomes of each byte. */
#include <string.h>

#include "base/mem.h"
#include "workers/text/parts.h"
#include "workers/text/unicode.h"

#define WINDOW 4096
/* A stretch without a place to cut at (a million marks on one letter) is cut anyway, so that memory stays bounded; only there
   may ids differ from the reference's. */
#define STRETCH_MAX (1u << 20)

struct encoder {
    const struct tokenizer *t;
    struct tok_scratch *s;
    struct ids *out;
    size_t limit;                /* more ids than this are too many */
    size_t word_len, word_chars; /* chars counts on where the word is too long, len does not */
    int word_kind;
    uint32_t previous; /* the character before held.at[0]; FIND_NONE at the start of a segment */
    int full;          /* limit exceeded, or out of memory: stop */
    int nomem;
};

static void fail(struct encoder *x)
{
    x->nomem = x->full = 1;
}

/* Words ----------------------------------------------------------------------------------------------------------------------- */

static void push(struct encoder *x, int32_t id)
{
    if (x->full)
        return;
    if (ids_reserve(x->out, x->out->count + 1, 0) < 0) {
        fail(x);
        return;
    }
    x->out->id[x->out->count++] = id;
    x->full = x->out->count > x->limit;
}

static void end_word(struct encoder *x)
{
    if (!x->word_chars)
        return;
    if (x->word_chars > x->t->model.max_chars) {
        push(x, x->t->model.unk);
    } else if (!x->full) {
        if (ids_reserve(x->out, x->out->count + x->word_len, 0) < 0) {
            fail(x);
            return;
        }
        x->out->count += wordpiece_split(&x->t->model, x->s->word, x->word_len, x->out->id + x->out->count);
        x->full = x->out->count > x->limit;
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
        uint32_t after = i + n < h->len ? h->at[i + n] : FIND_NONE;
        if (a && !(a->single_word && (find_is_word(before) || find_is_word(after)))) {
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
    x->previous = FIND_NONE;
}

/* The last place in (low, high) to cut at, or 0. */
static size_t last_boundary(const uint8_t *text, size_t len, size_t low, size_t high)
{
    for (size_t i = high; i-- > low + 1;)
        if ((text[i] & 0xC0) != 0x80 && (uni_flags(find_char_at(text, len, i)) & UNI_BOUNDARY))
            return i;
    return 0;
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
            found = find_added(x->t, &x->t->raw, text, len, &searched, searched + WINDOW < len ? searched + WINDOW : len, &m);
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
            limit = find_trim_white(text, at, limit > at ? limit : at); /* not before at: what is done is done */
        if (limit > at)
            put_stretch(x, text + at, text + limit);
        end_segment(x);
        if (!found)
            return;
        size_t start = m.token->lstrip ? limit : m.start;
        at = m.token->rstrip ? find_skip_white(text, len, m.end) : m.end;
        if (at > start) /* else the spaces that it is made of are those of the token before it */
            push(x, m.token->id);
        searched = m.end;
    }
}

enum status stream_text(const struct tokenizer *t, struct tok_scratch *s, const uint8_t *text, size_t len, size_t limit,
                        struct ids *out, struct err *e)
{
    size_t word_max = (size_t)t->model.max_chars * 4;
    if (s->word_cap < word_max) {
        void *p = mem_resize(s->word, word_max);
        if (!p)
            return err_nomem(e, "the words of a text");
        s->word = p;
        s->word_cap = word_max;
    }
    s->held.len = 0;
    struct encoder x = {.t = t, .s = s, .out = out, .limit = limit, .previous = FIND_NONE};
    put_text(&x, text, len);
    return x.nomem ? err_nomem(e, "the tokens of a text") : ST_OK;
}

int tok_kind(enum tok_split split, uint32_t c)
{
    unsigned f = uni_flags(c);
    if (f & UNI_WHITE)
        return KIND_SPACE;
    switch (split) {
    case SPLIT_BERT:
        return f & UNI_PUNCT ? KIND_PUNCT : KIND_WORD;
    case SPLIT_WORDS:
        return f & UNI_WORD ? KIND_WORD : KIND_SYMBOL;
    case SPLIT_SPACE:
        break;
    }
    return KIND_WORD;
}

/* Is the pre-tokenizer one of those that tok_kind knows? */
static int plain_split(const struct stages *s, enum tok_split *out)
{
    const struct stage *a = &s->at[0], *b = &s->at[1];
    if (s->count == 1 && a->kind == STAGE_WORDS) {
        *out = SPLIT_WORDS;
        return 1;
    }
    if (!s->count || a->kind != STAGE_CLASS || a->class != UNI_WHITE || a->behavior != SPLIT_REMOVED)
        return 0;
    *out = s->count == 1 ? SPLIT_SPACE : SPLIT_BERT;
    return s->count == 1 || (s->count == 2 && b->kind == STAGE_CLASS && b->class == UNI_PUNCT && b->behavior == SPLIT_ISOLATED);
}

void stream_prepare(struct tokenizer *t)
{
    const struct normals *n = &t->normals;
    if (t->kind != MODEL_WORDPIECE || n->count > 1 || (n->count && (n->op[0].kind != NORMAL_CHARS || n->op[0].chars.map)) ||
        !plain_split(&t->stages, &t->split))
        return;
    t->stream = 1;
    if (n->count)
        t->norm = n->op[0].chars;
    for (int c = 0; c < 128; c++) {
        int to = normalizer_ascii(&t->norm, c);
        t->ascii_kind[c] = to < 0 ? KIND_NONE : (uint8_t)tok_kind(t->split, (uint32_t)to);
        t->ascii_char[c] = to < 0 ? 0 : (uint8_t)to;
        if (to >= 0)
            wordpiece_split(&t->model, &t->ascii_char[c], 1, &t->ascii_id[c]);
    }
}
