/* The normaliser of a tokenizer: a list of plain steps over characters, whatever components the file names. */
#ifndef EBB_TEXT_NORMALIZE_H
#define EBB_TEXT_NORMALIZE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct runes { /* a growing run of characters; zeroed is empty */
    uint32_t *at;
    size_t len, cap;
};

int runes_reserve(struct runes *r, size_t more); /* -1: out of memory */
void runes_release(struct runes *r);

enum norm_step {
    NORM_CLEAN,      /* drops control characters, turns white space into ' ' */
    NORM_HAN,        /* puts spaces around Chinese characters */
    NORM_DROP_MN,    /* drops non-spacing marks */
    NORM_DROP_MARKS, /* drops all marks */
    NORM_LOWER,
    NORM_NFD,
    NORM_NFC,
    NORM_NFKD,
    NORM_NFKC,
    NORM_NMT,      /* sentencepiece's: drops control characters, turns odd spaces into ' ' */
    NORM_CHARSMAP, /* replaces by a table */
};

#define NORM_STEPS_MAX 32

struct charsmap;

struct normalizer {
    int count;
    uint8_t step[NORM_STEPS_MAX]; /* enum norm_step */
    struct charsmap *map;         /* of NORM_CHARSMAP; not owned */
};

/* Normalises r in place, with tmp as room. -1: out of memory. */
int normalizer_run(const struct normalizer *n, struct runes *r, struct runes *tmp);

/* What becomes of an ASCII character with others beside it: itself, another one, nothing (NORM_GONE), or what only a run tells. */
#define NORM_GONE (-1)
#define NORM_UNSURE (-2)
int normalizer_ascii(const struct normalizer *n, int c);

/* The same as normalizer_run, one step at a time and slowly, saying of each character where in the original text it comes from,
   as the reference has it. from[i] goes with r->at[i]; both grow. base is where the text begins. */
struct tok_span;
struct trace {
    struct tok_span *at;
    size_t cap;
};
int normalizer_trace(const struct normalizer *n, struct runes *r, struct trace *from, struct runes *tmp, struct trace *tmp_from,
                     uint32_t base);
int trace_reserve(struct trace *t, size_t len);
void trace_release(struct trace *t);

#endif
