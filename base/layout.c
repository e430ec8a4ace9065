#include "base/layout.h"

#include <string.h>

#include "base/mem.h"

int layout_init(struct layout *l, size_t count, const uint64_t *sizes, const uint8_t *kinds)
{
    *l = (struct layout){.count = count, .base = mem_array(count + 1, sizeof *l->base)};
    if (!l->base)
        return -1;
    int streams = 0, compressed = 0;
    for (size_t i = 0; i < count; i++) {
        streams |= kinds[i] != 0;
        compressed |= kinds[i] == 2;
    }
    if ((streams && !(l->stream = mem_array(count / 8 + 1, 1))) ||
        (compressed && !(l->physical = mem_array(count + 1, sizeof *l->physical))))
        goto fail;
    const uint64_t most = UINT64_C(1) << 62;
    for (size_t i = 0; i < count; i++) {
        uint64_t own = sizes[i];
        if (kinds[i])
            l->stream[i / 8] = (uint8_t)(l->stream[i / 8] | 1u << i % 8);
        if (kinds[i] == 2) {
            if (sizes[i] > most >> LAYOUT_STREAM_SHIFT)
                goto fail;
            own = sizes[i] ? (sizes[i] << LAYOUT_STREAM_SHIFT) + (1 << 20) : 0;
        }
        if (own > most - l->base[i])
            goto fail;
        l->base[i + 1] = l->base[i] + own;
        if (compressed)
            l->physical[i + 1] = l->physical[i] + sizes[i];
    }
    return 0;
fail:
    layout_release(l);
    return -1;
}

void layout_release(struct layout *l)
{
    mem_free(l->base);
    mem_free(l->physical);
    mem_free(l->stream);
    *l = (struct layout){0};
}

static void *copy(const void *from, size_t bytes, int *failed)
{
    if (!from)
        return NULL;
    void *p = mem_alloc(bytes);
    if (!p)
        *failed = 1;
    else
        memcpy(p, from, bytes);
    return p;
}

int layout_copy(struct layout *to, const struct layout *from)
{
    int failed = 0;
    *to = (struct layout){.count = from->count};
    to->base = copy(from->base, (from->count + 1) * sizeof *from->base, &failed);
    to->physical = copy(from->physical, (from->count + 1) * sizeof *from->physical, &failed);
    to->stream = copy(from->stream, from->count / 8 + 1, &failed);
    if (failed)
        layout_release(to);
    return failed ? -1 : 0;
}

uint64_t layout_end(const struct layout *l)
{
    return l->count ? l->base[l->count] : 0;
}

static const uint64_t *at_rest(const struct layout *l)
{
    return l->physical ? l->physical : l->base;
}

uint64_t layout_bytes(const struct layout *l)
{
    return l->count ? at_rest(l)[l->count] : 0;
}

size_t layout_source(const struct layout *l, uint64_t pos)
{
    size_t low = 0, high = l->count;
    while (low < high) { /* the first source that ends behind pos */
        size_t mid = low + (high - low) / 2;
        if (l->base[mid + 1] > pos)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

int layout_is_stream(const struct layout *l, size_t source)
{
    return l->stream && source < l->count && l->stream[source / 8] >> source % 8 & 1;
}

/* Bytes at rest before pos. */
static uint64_t rest_before(const struct layout *l, uint64_t pos)
{
    size_t i = layout_source(l, pos);
    if (i == l->count)
        return layout_bytes(l);
    uint64_t inside = pos - l->base[i];
    if (l->physical) {
        uint64_t size = l->physical[i + 1] - l->physical[i];
        if (l->base[i + 1] - l->base[i] != size) {
            inside /= 10;
            if (inside > size)
                inside = size;
        }
        return l->physical[i] + inside;
    }
    return l->base[i] + inside;
}

uint64_t layout_weight(const struct layout *l, uint64_t begin, uint64_t end)
{
    return end > begin ? rest_before(l, end) - rest_before(l, begin) : 0;
}

uint64_t layout_advance(const struct layout *l, uint64_t begin, uint64_t bytes, uint64_t limit)
{
    size_t i = layout_source(l, begin);
    if (i == l->count || limit <= begin)
        return limit;
    if (bytes == 0)
        bytes = 1;
    uint64_t want = rest_before(l, begin);
    want = bytes > UINT64_MAX - want ? UINT64_MAX : want + bytes;
    const uint64_t *rest = at_rest(l);
    /* the first source, from i on, at whose end the wanted weight is reached */
    size_t low = i, high = l->count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (rest[mid + 1] >= want)
            high = mid;
        else
            low = mid + 1;
    }
    if (low == l->count)
        return limit;
    uint64_t end;
    if (layout_is_stream(l, low))
        end = l->base[low + 1];
    else
        end = l->base[low] + (want - rest[low]);
    if (end <= begin)
        end = l->base[i + 1];
    return end < limit ? end : limit;
}

int layout_enterable(const struct layout *l, uint64_t pos)
{
    size_t i = layout_source(l, pos);
    return i == l->count || l->base[i] == pos || !layout_is_stream(l, i);
}
