#include "wire/wire.h"

#include "base/mem.h"

static void *take(void *data, size_t size)
{
    (void)data;
    return mem_alloc(size);
}

static void give(void *data, void *p)
{
    (void)data;
    mem_free(p);
}

static ProtobufCAllocator allocator = {take, give, NULL};

enum status wire_encode(Ebb__Envelope__BodyCase which, void *body, struct buf *out, struct err *e)
{
    Ebb__Envelope m = EBB__ENVELOPE__INIT;
    m.body_case = which;
    m.hello = body; /* the members of the union are pointers: any of them carries it */
    size_t size = ebb__envelope__get_packed_size(&m);
    if (size > WIRE_MAX_MESSAGE)
        return err_set(e, ST_USER, "a message of %zu bytes is longer than the %u allowed", size, WIRE_MAX_MESSAGE);
    buf_clear(out);
    if (buf_reserve(out, size))
        return err_nomem(e, "a message");
    out->len = ebb__envelope__pack(&m, (uint8_t *)out->data);
    return ST_OK;
}

enum status wire_decode(const void *data, size_t len, Ebb__Envelope **out, struct err *e)
{
    if (len > WIRE_MAX_MESSAGE)
        return err_set(e, ST_CORRUPT, "a message of %zu bytes is longer than the %u allowed", len, WIRE_MAX_MESSAGE);
    Ebb__Envelope *m = ebb__envelope__unpack(&allocator, len, data);
    if (!m)
        return err_set(e, ST_CORRUPT, "%zu bytes that are no message of ebb's", len);
    if (m->body_case == EBB__ENVELOPE__BODY__NOT_SET) {
        wire_free(m);
        return err_set(e, ST_CORRUPT, "a message of a kind that this version does not know");
    }
    *out = m;
    return ST_OK;
}

void wire_free(Ebb__Envelope *m)
{
    if (m)
        ebb__envelope__free_unpacked(m, &allocator);
}
