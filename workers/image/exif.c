#include <string.h>

#include "workers/image/format.h"

static uint32_t number(const uint8_t *p, int bytes, int big)
{
    uint32_t v = 0;
    for (int i = 0; i < bytes; i++)
        v |= (uint32_t)p[i] << 8 * (big ? bytes - 1 - i : i);
    return v;
}

int exif_orientation(const uint8_t *data, size_t len)
{
    enum { TAG = 0x0112, SHORT = 3, ENTRY = 12 };
    if (len >= 6 && memcmp(data, "Exif\0\0", 6) == 0) {
        data += 6;
        len -= 6;
    }
    if (len < 8 || (memcmp(data, "II*\0", 4) != 0 && memcmp(data, "MM\0*", 4) != 0))
        return 1;
    int big = data[0] == 'M';
    uint32_t at = number(data + 4, 4, big);
    if (at > len - 2)
        return 1;
    uint32_t entries = number(data + at, 2, big);
    const uint8_t *p = data + at + 2;
    size_t left = len - at - 2;
    for (; entries && left >= ENTRY; entries--, p += ENTRY, left -= ENTRY)
        if (number(p, 2, big) == TAG && number(p + 2, 2, big) == SHORT && number(p + 4, 4, big) == 1) {
            uint32_t v = number(p + 8, 2, big);
            return v >= 1 && v <= 8 ? (int)v : 1;
        }
    return 1;
}
