#include "workers/text/charsmap.h"

#include <string.h>

#include "base/mem.h"
#include "workers/text/unicode.h"

static int value_of(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

static int decode(const char *from, size_t len, uint8_t *to, size_t *out)
{
    uint32_t bits = 0;
    int have = 0;
    size_t n = 0;
    while (len && from[len - 1] == '=')
        len--;
    for (size_t i = 0; i < len; i++) {
        int v = value_of(from[i]);
        if (v < 0)
            return -1;
        bits = bits << 6 | (uint32_t)v;
        have += 6;
        if (have >= 8) {
            have -= 8;
            to[n++] = (uint8_t)(bits >> have);
        }
    }
    *out = n;
    return 0;
}

static uint32_t unit_at(const struct charsmap *m, size_t i)
{
    const uint8_t *p = m->bytes + 4 + 4 * i;
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

int charsmap_init(struct charsmap *m, const char *base64, size_t len)
{
    *m = (struct charsmap){0};
    if (!(m->bytes = mem_alloc(len + 4)))
        return -1;
    size_t n = 0;
    uint32_t size = 0;
    if (decode(base64, len, m->bytes, &n) == 0 && n >= 4)
        size = (uint32_t)m->bytes[0] | (uint32_t)m->bytes[1] << 8 | (uint32_t)m->bytes[2] << 16 | (uint32_t)m->bytes[3] << 24;
    if (size < 4 || size % 4 || size > n - 4 || !uni_valid(m->bytes + 4 + size, n - 4 - size)) {
        charsmap_release(m);
        return -2;
    }
    m->units = size / 4;
    m->text = m->bytes + 4 + size;
    m->text_len = n - 4 - size;
    return 0;
}

void charsmap_release(struct charsmap *m)
{
    mem_free(m->bytes);
    *m = (struct charsmap){0};
}

static size_t offset_of(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & 0x200) >> 6);
}

const uint8_t *charsmap_find(const struct charsmap *m, const uint8_t *p, size_t len, size_t *out_len)
{
    size_t at = offset_of(unit_at(m, 0));
    for (size_t i = 0; i < len && p[i]; i++) {
        at ^= p[i];
        if (at >= m->units)
            return NULL;
        uint32_t unit = unit_at(m, at);
        if ((unit & 0x800000FF) != p[i])
            return NULL;
        at ^= offset_of(unit);
        if (!(unit & 0x100))
            continue;
        if (at >= m->units)
            return NULL;
        size_t value = unit_at(m, at) & 0x7FFFFFFF;
        if (value > m->text_len || (value < m->text_len && (m->text[value] & 0xC0) == 0x80))
            return NULL;
        const uint8_t *end = value < m->text_len ? memchr(m->text + value, 0, m->text_len - value) : NULL;
        *out_len = end ? (size_t)(end - (m->text + value)) : m->text_len - value;
        return m->text + value;
    }
    return NULL;
}
