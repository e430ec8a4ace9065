/* "Did you mean": the candidate nearest to a misspelt word, or NULL when none is near (edit distance with transpositions, at most a
   third of the word's length and at least 1). */
#ifndef EBB_BASE_SUGGEST_H
#define EBB_BASE_SUGGEST_H

#include <stddef.h>

const char *suggest(const char *word, const char *const *candidates, size_t count);

#endif
