/* What children say on their standard error: line by line into the log, not more than a reader can bear, and the last of it kept for messages. */
#ifndef EBB_WORKERS_NOISE_H
#define EBB_WORKERS_NOISE_H

#include <stddef.h>
#include <stdint.h>

#define NOISE_LINE 400
#define NOISE_LAST 3

struct noise_limit {         /* of all children of a command together; zeroed at first */
    uint64_t tokens_ms, since_ms, left_out;
    int begun;
};
/* 1: so many lines were not said lately that this one may be. now_ms is monotonic. *left_out: how many were left out before it. */
int noise_allowed(struct noise_limit *l, uint64_t now_ms, uint64_t *left_out);

struct noise {               /* of one child; zeroed at first */
    char line[NOISE_LINE];
    size_t len;
    char last[NOISE_LAST][NOISE_LINE]; /* a ring: `said` lines went through it */
    uint64_t said;
};
/* Bytes as they came. Each line that is whole, and not empty, goes to the log behind `name`. */
void noise_add(struct noise *n, const char *bytes, size_t len, const char *name, uint32_t child, struct noise_limit *l, uint64_t now_ms);
void noise_end(struct noise *n, const char *name, uint32_t child, struct noise_limit *l, uint64_t now_ms); /* no more comes */
/* The last line, or the last `lines` (NOISE_LAST at most) with " | " between them; "" when it said nothing. */
void noise_words(const struct noise *n, unsigned lines, char *out, size_t size);

#endif
