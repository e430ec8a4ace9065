#include "workers/text/normal.h"

#include <string.h>

#include "base/mem.h"
#include "workers/text/bpe.h"
#include "workers/text/unicode.h"

int stretch_reserve(struct stretch *s, size_t more, int traced)
{
    size_t want = s->len + more + STRETCH_ROOM;
    if (want > s->cap) {
        size_t cap = want + want / 2 + 1024;
        void *p = cap < want ? NULL : mem_resize(s->p, cap);
        if (!p)
            return -1;
        s->p = p;
        memset(s->p + s->cap, 0, cap - s->cap);
        s->cap = cap;
    }
    if (traced && want > s->from_cap) {
        size_t cap = want + want / 2 + 1024;
        void *p = cap > SIZE_MAX / sizeof *s->from ? NULL : mem_resize(s->from, cap * sizeof *s->from);
        if (!p)
            return -1;
        s->from = p;
        s->from_cap = cap;
    }
    return 0;
}

void stretch_release(struct stretch *s)
{
    mem_free(s->p);
    mem_free(s->from);
    *s = (struct stretch){0};
}

int stretch_add(struct stretch *s, const uint8_t *p, size_t len, const struct tok_span *from, int traced)
{
    if (stretch_reserve(s, len, traced) < 0)
        return -1;
    if (len)
        memcpy(s->p + s->len, p, len);
    if (traced && len)
        memcpy(s->from + s->len, from, len * sizeof *from);
    s->len += len;
    return 0;
}

int stretch_add_at(struct stretch *s, const uint8_t *p, size_t len, struct tok_span at, int traced)
{
    if (stretch_reserve(s, len, traced) < 0)
        return -1;
    if (len)
        memcpy(s->p + s->len, p, len);
    for (size_t i = 0; traced && i < len; i++)
        s->from[s->len + i] = at;
    s->len += len;
    return 0;
}

struct piece stretch_piece(const struct stretch *s, int traced)
{
    return (struct piece){s->p, s->len, traced ? s->from : NULL};
}

void normals_finish(struct normals *n)
{
    for (int i = 0; i < n->count; i++)
        for (int c = 0; c < 128; c++)
            n->op[i].ascii[c] = (int16_t)normalizer_ascii(&n->op[i].chars, c);
}

void normals_release(struct normals *n)
{
    for (int i = 0; i < n->count; i++) {
        charsmap_release(&n->op[i].map);
        pattern_free(n->op[i].pattern);
        mem_free(n->op[i].text);
    }
    n->count = 0;
}

void normal_room_release(struct normal_room *r)
{
    runes_release(&r->runes);
    runes_release(&r->tmp);
    trace_release(&r->trace);
    trace_release(&r->tmp_trace);
    stretch_release(&r->one);
    stretch_release(&r->two);
}

/* Characters -------------------------------------------------------------------------------------------------------------------- */

/* [p, end) by way of the table of steps. */
static int slow_chars(const struct normal_op *op, struct normal_room *r, const uint8_t *p, const uint8_t *end, struct stretch *out)
{
    r->runes.len = 0;
    if (runes_reserve(&r->runes, (size_t)(end - p)) < 0)
        return -1;
    while (p < end)
        r->runes.at[r->runes.len++] = uni_next(&p);
    if (normalizer_run(&op->chars, &r->runes, &r->tmp) < 0 || stretch_reserve(out, 4 * r->runes.len, 0) < 0)
        return -1;
    for (size_t i = 0; i < r->runes.len; i++)
        out->len += uni_encode(r->runes.at[i], out->p + out->len);
    return 0;
}

/* Runs of ASCII through the table, the rest with the character in front of it (and the one behind, where there are clusters) the long
   way. What has no change in it is not copied. */
static int chars(const struct normal_op *op, struct normal_room *r, struct piece *io, struct stretch *out)
{
    const uint8_t *start = io->p, *end = io->p + io->len, *p = start;
    while (p < end && *p < 0x80 && op->ascii[*p] == *p)
        p++;
    if (p == end)
        return 0;
    p = p - start > 1 ? p - 1 : start; /* the last one may go together with what follows */
    out->len = 0;
    if (stretch_add(out, start, (size_t)(p - start), NULL, 0) < 0)
        return -1;
    while (p < end) {
        const uint8_t *run = p;
        while (run < end && *run < 0x80 && op->ascii[*run] != NORM_UNSURE)
            run++;
        const uint8_t *stop = run;
        if (run < end) /* back to a character that stays: what is dropped hides it from what follows */
            while (stop > p && op->ascii[*--stop] < 0)
                ;
        if (stretch_reserve(out, (size_t)(stop - p), 0) < 0)
            return -1;
        uint8_t *to = out->p + out->len;
        for (; p < stop; p++) {
            *to = (uint8_t)op->ascii[*p];
            to += op->ascii[*p] >= 0;
        }
        out->len = (size_t)(to - out->p);
        if (run == end)
            break;
        while (run < end && (*run >= 0x80 || op->ascii[*run] < 0)) {
            while (run < end && (*run >= 0x80 || op->ascii[*run] < 0))
                run++;
            if (op->chars.map && run < end) /* \r\n, and characters that draw the next one to them */
                run++;
        }
        if (slow_chars(op, r, p, run, out) < 0)
            return -1;
        p = run;
    }
    *io = stretch_piece(out, 0);
    return 0;
}

static int traced_chars(const struct normal_op *op, struct normal_room *r, struct piece *io, struct stretch *out, uint32_t base)
{
    r->runes.len = 0;
    if (runes_reserve(&r->runes, io->len + 1) < 0 || trace_reserve(&r->trace, io->len + 1) < 0)
        return -1;
    for (const uint8_t *p = io->p, *end = p + io->len; p < end;) {
        r->trace.at[r->runes.len] = io->from[p - io->p];
        r->runes.at[r->runes.len++] = uni_next(&p);
    }
    if (normalizer_trace(&op->chars, &r->runes, &r->trace, &r->tmp, &r->tmp_trace, base) < 0)
        return -1;
    out->len = 0;
    for (size_t i = 0; i < r->runes.len; i++) {
        uint8_t utf8[4];
        if (stretch_add_at(out, utf8, uni_encode(r->runes.at[i], utf8), r->trace.at[i], 1) < 0)
            return -1;
    }
    *io = stretch_piece(out, 1);
    return 0;
}

/* The others -------------------------------------------------------------------------------------------------------------------- */

static void cut(struct piece *io, size_t from, size_t to)
{
    io->p += from;
    io->from = io->from ? io->from + from : NULL;
    io->len = to - from;
}

static void strip(const struct normal_op *op, struct piece *io, int first, int last)
{
    const uint8_t *p = io->p, *end = io->p + io->len;
    while (op->left && first && p < end) {
        const uint8_t *next = p;
        if (!(uni_flags(uni_next(&next)) & UNI_WHITE))
            break;
        p = next;
    }
    while (op->right && last && p < end) {
        const uint8_t *q = end - 1;
        while (q > p && (*q & 0xC0) == 0x80)
            q--;
        const uint8_t *c = q;
        if (!(uni_flags(uni_next(&c)) & UNI_WHITE))
            break;
        end = q;
    }
    cut(io, (size_t)(p - io->p), (size_t)(end - io->p));
}

static int prepend(const struct normal_op *op, struct piece *io, struct stretch *out)
{
    int traced = io->from != NULL;
    struct tok_span at = traced ? io->from[0] : (struct tok_span){0, 0};
    out->len = 0;
    if (stretch_add_at(out, (const uint8_t *)op->text, op->text_len, at, traced) < 0 ||
        stretch_add(out, io->p, io->len, io->from, traced) < 0)
        return -1;
    *io = stretch_piece(out, traced);
    return 0;
}

/* Where in [p, end) two spaces stand side by side, or end. */
static const uint8_t *two_spaces(const uint8_t *p, const uint8_t *end)
{
    while (p < end && (p = memchr(p, ' ', (size_t)(end - p)))) {
        if (p + 1 < end && p[1] == ' ')
            return p;
        p += 2;
    }
    return end;
}

static enum status replace(const struct normal_op *op, struct normal_room *r, struct piece *io, struct stretch *out, uint32_t base,
                           struct err *e)
{
    int traced = io->from != NULL;
    size_t done = 0, from = 0, last_end = SIZE_MAX;
    if (pattern_known(op->pattern) == PATTERN_SPACES) {
        const uint8_t *end = io->p + io->len;
        if (two_spaces(io->p, end) == end)
            return ST_OK;
    }
    out->len = 0;
    for (;;) {
        size_t start = 0, end = 0;
        enum status rc = pattern_find(op->pattern, r->patterns, io->p, io->len, from, &start, &end, e);
        if (rc == ST_END)
            break;
        TRY(rc);
        if (end == start && end == last_end) { /* no empty match beside another match */
            const uint8_t *p = io->p + from;
            if (from >= io->len)
                break;
            uni_next(&p);
            from = (size_t)(p - io->p);
            continue;
        }
        from = last_end = end;
        struct tok_span at = {base, base};
        if (traced && end)
            at = io->from[end - 1];
        if (stretch_add(out, io->p + done, start - done, traced ? io->from + done : NULL, traced) < 0 ||
            stretch_add_at(out, (const uint8_t *)op->text, op->text_len, at, traced) < 0)
            return err_nomem(e, "a normalised text");
        done = end;
    }
    if (last_end == SIZE_MAX)
        return ST_OK;
    if (stretch_add(out, io->p + done, io->len - done, traced ? io->from + done : NULL, traced) < 0)
        return err_nomem(e, "a normalised text");
    *io = stretch_piece(out, traced);
    return ST_OK;
}

static int bytes(struct piece *io, struct stretch *out)
{
    int traced = io->from != NULL;
    out->len = 0;
    if (stretch_reserve(out, 2 * io->len, traced) < 0)
        return -1;
    for (size_t i = 0; i < io->len; i++) {
        uint8_t utf8[4];
        if (stretch_add_at(out, utf8, uni_encode(bytelevel_char(io->p[i]), utf8), traced ? io->from[i] : (struct tok_span){0, 0}, traced) < 0)
            return -1;
    }
    *io = stretch_piece(out, traced);
    return 0;
}

enum status normals_run(const struct normals *n, struct normal_room *r, struct piece *io, int first, int last, uint32_t base,
                        struct err *e)
{
    for (int i = 0; i < n->count && io->len; i++) {
        const struct normal_op *op = &n->op[i];
        int rc = 0;
        /* io is in one of the two, or in the caller's text: the other one is free */
        struct stretch *out = r->one.p && io->p >= r->one.p && io->p < r->one.p + r->one.cap ? &r->two : &r->one;
        switch (op->kind) {
        case NORMAL_CHARS:
            rc = io->from ? traced_chars(op, r, io, out, base) : chars(op, r, io, out);
            break;
        case NORMAL_STRIP:
            strip(op, io, first, last);
            break;
        case NORMAL_PREPEND:
            rc = first ? prepend(op, io, out) : 0;
            break;
        case NORMAL_REPLACE:
            TRY(replace(op, r, io, out, base, e));
            break;
        case NORMAL_BYTES:
            rc = bytes(io, out);
            break;
        }
        if (rc < 0)
            return err_nomem(e, "a normalised text");
    }
    return ST_OK;
}
