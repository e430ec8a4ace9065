#include "storage/lines.h"

#include <string.h>

int lines_scan(const char *p, size_t len, size_t *used)
{
    const char *nl = len ? memchr(p, '\n', len) : NULL;
    *used = nl ? (size_t)(nl - p) + 1 : len;
    return nl != NULL;
}

uint64_t lines_count(const char *p, size_t len)
{
    uint64_t n = 0;
    for (size_t used; lines_scan(p, len, &used); p += used, len -= used)
        n++;
    return n;
}

int lines_blank(const char *p, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (p[i] != ' ' && p[i] != '\t' && p[i] != '\r')
            return 0;
    return 1;
}
