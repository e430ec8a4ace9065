#include "base/provider_id.h"

#include <string.h>

static const char *const words[PROVIDERS] = {
#define X(name, word) [PROVIDER_##name] = word,
    PROVIDER_MAP(X)
#undef X
};

const char *provider_id_word(uint32_t id)
{
    return words[id < PROVIDERS ? id : PROVIDER_NONE];
}

int provider_id_parse(const char *word, uint32_t *out)
{
    for (uint32_t i = 0; i < PROVIDERS; i++)
        if (strcmp(words[i], word) == 0) {
            *out = i;
            return 0;
        }
    return -1;
}
