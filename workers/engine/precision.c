#include "workers/engine/precision.h"

#include <string.h>

const char *const precision_words[PRECISIONS + 1] = {"f32", "bf16", "int8", NULL};

enum status precision_parse(const char *word, enum precision *out, struct err *e)
{
    if (!word || strcmp(word, "auto") == 0) {
        *out = PREC_F32;
        return ST_OK;
    }
    for (int i = 0; i < PRECISIONS; i++)
        if (strcmp(word, precision_words[i]) == 0) {
            *out = (enum precision)i;
            return ST_OK;
        }
    return err_set(e, ST_USER, "precision '%s' is not known; it is one of auto, f32, bf16, int8", word);
}

const char *precision_why(enum precision p)
{
    static const char *const why[PRECISIONS] = {
        "the model's own numbers, the same on every processor; bf16 and int8 are faster, and round",
        "weights and activations rounded to 8 bits of mantissa",
        "weights rounded to 8 bits by output, activations by row and 128 inputs",
    };
    return why[p];
}
