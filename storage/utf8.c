#include "storage/utf8.h"

#include <stdint.h>
#include <string.h>

/* Length of the valid character at s, 0 when there is none. */
static size_t character(const unsigned char *s, size_t len)
{
    unsigned char c = s[0], low = 0x80, high = 0xbf; /* bounds of the second byte */
    size_t n;
    if (c < 0x80)
        return 1;
    if (c < 0xc2)
        return 0;
    if (c < 0xe0) {
        n = 2;
    } else if (c < 0xf0) {
        n = 3;
        low = c == 0xe0 ? 0xa0 : low;
        high = c == 0xed ? 0x9f : high;
    } else if (c < 0xf5) {
        n = 4;
        low = c == 0xf0 ? 0x90 : low;
        high = c == 0xf4 ? 0x8f : high;
    } else {
        return 0;
    }
    if (len < n || s[1] < low || s[1] > high)
        return 0;
    for (size_t i = 2; i < n; i++)
        if (s[i] < 0x80 || s[i] > 0xbf)
            return 0;
    return n;
}

size_t utf8_prefix(const char *s, size_t len)
{
    const unsigned char *p = (const unsigned char *)s;
    size_t i = 0;
    while (i < len) {
        while (len - i >= 8) { /* eight at once while they are ASCII */
            uint64_t eight;
            memcpy(&eight, p + i, 8);
            if (eight & UINT64_C(0x8080808080808080))
                break;
            i += 8;
        }
        if (i == len)
            break;
        size_t n = character(p + i, len - i);
        if (!n)
            return i;
        i += n;
    }
    return i;
}

void utf8_tidy(char *s)
{
    size_t len = strlen(s), whole = utf8_prefix(s, len);
    if (len - whole < 4) /* a character that was cut */
        s[whole] = 0;
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            *s = '?';
}
