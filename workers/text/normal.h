/* Normalising a stretch of text: the components of a tokenizer.json's normalizer, one after the other, over bytes. Components that
   look at characters one by one are put together into one step, which passes runs of ASCII through a table. */
#ifndef EBB_TEXT_NORMAL_H
#define EBB_TEXT_NORMAL_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "workers/text/charsmap.h"
#include "workers/text/normalize.h"
#include "workers/text/pattern.h"
#include "workers/text/tokenizer.h"

/* Some text, and of each of its bytes where in the original it comes from; NULL when nobody asks. */
struct piece {
    const uint8_t *p;
    size_t len;
    const struct tok_span *from;
};

/* A growing piece. Behind its bytes there are always STRETCH_ROOM that may be read. */
#define STRETCH_ROOM 32
struct stretch {
    uint8_t *p;
    size_t len, cap;
    struct tok_span *from;
    size_t from_cap;
};

int stretch_reserve(struct stretch *s, size_t more, int traced); /* -1: out of memory */
void stretch_release(struct stretch *s);
int stretch_add(struct stretch *s, const uint8_t *p, size_t len, const struct tok_span *from, int traced);
/* All of them from one place; from may be NULL when not traced. */
int stretch_add_at(struct stretch *s, const uint8_t *p, size_t len, struct tok_span at, int traced);
struct piece stretch_piece(const struct stretch *s, int traced);

enum normal_kind {
    NORMAL_CHARS,
    NORMAL_STRIP,
    NORMAL_PREPEND,
    NORMAL_REPLACE,
    NORMAL_BYTES, /* into the byte-level alphabet */
};

struct normal_op {
    enum normal_kind kind;
    struct normalizer chars;
    struct charsmap map;
    int16_t ascii[128]; /* what normalizer_ascii says */
    int left, right;
    struct pattern *pattern;
    char *text; /* to put in front, or in place of a match */
    size_t text_len;
};

#define NORMALS_MAX 16
struct normals {
    struct normal_op op[NORMALS_MAX];
    int count;
};

struct normal_room {
    struct runes runes, tmp;
    struct trace trace, tmp_trace;
    struct stretch one, two;
    struct pattern_room **patterns;
};

/* Once all ops are there. */
void normals_finish(struct normals *n);
void normals_release(struct normals *n);
void normal_room_release(struct normal_room *r);
/* Replaces *io by its normalised form, which the room owns until its next use (or which is *io itself). first and last tell whether
   the piece is at the beginning and at the end of its segment; base is where the segment begins. ST_NOMEM, or ST_USER when a regular
   expression takes too many steps. */
MUST_USE enum status normals_run(const struct normals *n, struct normal_room *r, struct piece *io, int first, int last, uint32_t base,
                                 struct err *e);

#endif
