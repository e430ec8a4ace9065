#include "base/suggest.h"

#include <string.h>
#include <strings.h>

#define LONGEST 64

/* Optimal string alignment distance: insert, delete, change, swap neighbours. */
static size_t distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    size_t rows[3][LONGEST + 1];
    if (n > LONGEST || m > LONGEST)
        return LONGEST;
    size_t *before = rows[0], *last = rows[1], *now = rows[2];
    memset(before, 0, sizeof rows[0]);
    for (size_t j = 0; j <= m; j++)
        last[j] = j;
    for (size_t i = 1; i <= n; i++) {
        now[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best)
                best = last[j] + 1;
            if (now[j - 1] + 1 < best)
                best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
        }
        size_t *t = before;
        before = last;
        last = now;
        now = t;
    }
    return last[m];
}

const char *suggest(const char *word, const char *const *candidates, size_t count)
{
    size_t limit = strlen(word) / 3;
    if (limit == 0)
        limit = 1;
    const char *best = NULL;
    for (size_t i = 0; i < count; i++) {
        size_t d = strcasecmp(word, candidates[i]) == 0 ? 0 : distance(word, candidates[i]);
        size_t len = strlen(word);
        if (d > limit && len >= 3 && strncasecmp(word, candidates[i], len) == 0)
            d = limit; /* the beginning of a longer word */
        if (d <= limit && (!best || d < limit)) {
            best = candidates[i];
            limit = d;
        }
    }
    return best;
}
