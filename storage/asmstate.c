#include "storage/asmstate.h"

#define VERSION 1

int asmstate_put(struct buf *out, const struct asmstate *s)
{
    size_t before = out->len;
    int failed = buf_char(out, VERSION);
#define X(name) failed = failed || buf_varint(out, s->name);
    ASMSTATE_MAP(X)
#undef X
#define X(name) failed = failed || buf_varint(out, s->files.name);
    OUTFILES_STATE_MAP(X)
#undef X
    if (failed)
        out->len = before;
    return failed ? -1 : 0;
}

enum status asmstate_get(const void *data, size_t len, struct asmstate *s, struct err *e)
{
    struct cursor c = cursor_make(data, len);
    uint8_t version = cursor_u8(&c);
    if (!c.bad && version != VERSION)
        return err_set(e, version > VERSION ? ST_USER : ST_CORRUPT, "the saved state of the output has version %u and this program knows %d",
                       version, VERSION);
#define X(name) s->name = cursor_varint(&c);
    ASMSTATE_MAP(X)
#undef X
#define X(name) s->files.name = cursor_varint(&c);
    OUTFILES_STATE_MAP(X)
#undef X
    if (c.bad || cursor_left(&c) || s->files.file_open > 1 || s->files.kept > s->files.file || s->attempt > UINT32_MAX)
        return err_set(e, ST_CORRUPT, "the saved state of the output is damaged");
    return ST_OK;
}
