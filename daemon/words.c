#include "daemon/words.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "storage/utf8.h"

void words_tidy(char *s)
{
    size_t len = strlen(s);
    for (char *p = s; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
    for (size_t at = 0; (at += utf8_prefix(s + at, len - at)) < len;)
        s[at] = '?';
}

json_t *words_json(const char *s)
{
    json_t *j = json_string(s);
    if (j)
        return j;
    char *copy = mem_strdup(s);
    if (!copy)
        return NULL;
    words_tidy(copy);
    j = json_string(copy);
    mem_free(copy);
    return j;
}
