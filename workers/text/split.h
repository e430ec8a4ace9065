/* Cutting normalised text into words: the components of a tokenizer.json's pre_tokenizer. Each cuts what the one before gave it; a
   word is passed on as soon as it is found, so that work stops when nobody wants more. */
#ifndef EBB_TEXT_SPLIT_H
#define EBB_TEXT_SPLIT_H

#include <stdint.h>

#include "base/status.h"
#include "workers/text/normal.h"

enum split_behavior { /* what becomes of a match */
    SPLIT_REMOVED,
    SPLIT_ISOLATED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS, /* with the matches beside it */
};

enum stage_kind {
    STAGE_BYTES,   /* ByteLevel */
    STAGE_META,    /* Metaspace */
    STAGE_PATTERN, /* Split */
    STAGE_CLASS,   /* at each character of a class */
    STAGE_WORDS,   /* Whitespace: runs of \w, runs of what is neither \w nor white space */
    STAGE_SCRIPTS, /* UnicodeScripts */
    STAGE_FIXED,   /* FixedLength */
    STAGE_RUNS,    /* in front of a separator that no token has inside of it: does not change what the model finds */
};

enum meta_scheme { META_ALWAYS, META_FIRST, META_NEVER };

struct stage {
    enum stage_kind kind;
    enum split_behavior behavior;
    int invert;
    struct pattern *pattern;
    unsigned class;      /* STAGE_CLASS: the flags of unicode.h; 0: `separator` alone */
    uint32_t separator;  /* STAGE_META and STAGE_RUNS too */
    uint8_t utf8[4];     /* the same in bytes */
    size_t utf8_len;
    enum meta_scheme scheme;
    int split;           /* STAGE_META */
    int prefix, regex;   /* STAGE_BYTES */
    int raw;             /* STAGE_BYTES: bytes stay bytes, for the model takes them so */
    uint32_t length;     /* STAGE_FIXED, in characters */
};

#define STAGES_MAX 16
struct stages {
    struct stage at[STAGES_MAX];
    int count;
};

struct splitter {
    const struct stages *stages;
    struct stretch *room; /* STAGES_MAX of them */
    struct pattern_room **patterns;
    int (*word)(void *arg, const struct piece *word); /* not 0: stop */
    void *arg;
    enum status status; /* why it stopped, when it was not the word's wish */
    struct err *e;
};

void stages_release(struct stages *s);
/* Not 0: it was stopped, or failed (status says so). Whether a piece begins the original text is read from its origins. */
int split_run(struct splitter *x, const struct piece *text);

#endif
