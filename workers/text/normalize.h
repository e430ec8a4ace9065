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
};

#define NORM_STEPS_MAX 32

struct normalizer {
    int count;
    uint8_t step[NORM_STEPS_MAX]; /* enum norm_step */
};

/* Normalises r in place, with tmp as room. -1: out of memory. */
int normalizer_run(const struct normalizer *n, struct runes *r, struct runes *tmp);

/* What becomes of an ASCII character: itself, another one, or nothing (-1). No step makes more of it than that. */
int normalizer_ascii(const struct normalizer *n, int c);

#endif
