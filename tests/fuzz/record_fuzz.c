/* A record of a job of several steps, from a command that may be anybody's: a line with a condition, and behind it the JSON. What comes out of an object is an object again, with what was
   put in; an array falls into values. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "storage/utf8.h"
#include "workers/pipeline/record_json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void object(struct record_scratch *s, const struct condition *c, const char *json, size_t len)
{
    static const char result[] = ",\"label\":\"x\",\"score\":0.5,\"scores\":{\"a\":1}";
    static char *names[] = {(char *)"id", (char *)"a b", (char *)"none"};
    struct buf out = {0}, row = {0};
    char why[300];
    size_t n;
    if (record_with(s, json, len, result, sizeof result - 1, &out) || json_object_members(&s->members, out.data, out.len) != 1 || s->members.count < 3)
        abort();
    int passes = record_passes(s, c, out.data, out.len, why, sizeof why);
    if (passes == -1)
        abort();
    if (buf_str(&row, "{\"x\":1") || record_keep(s, json, len, out.data, out.len, names, 3, &row) || record_rest(s, json, len, names, 3, 1, &row) || buf_char(&row, '}') ||
        json_object_members(&s->members, row.data, row.len) != 1)
        abort();
    const char *id = record_id(s, json, len, &n);
    if (id && (id < json || n > len || !json_is_value(id, n)))
        abort();
    buf_release(&out);
    buf_release(&row);
}

static void array(const char *json, size_t len)
{
    const char *element;
    size_t at = 0, n;
    while (record_next(json, len, &at, &element, &n))
        if (element < json || element + n > json + len || !json_is_value(element, n))
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data, *end = size ? memchr(text, '\n', size) : NULL;
    struct record_scratch s = {0};
    struct condition c;
    struct err e;
    if (!end)
        return 0;
    size_t len = size - (size_t)(end + 1 - text);
    char *words = mem_strndup(text, (size_t)(end - text)), *json = mem_alloc(len + 1);
    memcpy(json, end + 1, len);
    if (condition_parse(words, &c, &e) != ST_OK)
        c = (struct condition){0};
    if (utf8_prefix(json, len) == len && json_is_value(json, len)) { /* as the command's runner has seen to */
        if (record_kind(json, len) == '{')
            object(&s, &c, json, len);
        else if (record_kind(json, len) == '[')
            array(json, len);
    }
    condition_release(&c);
    record_scratch_release(&s);
    mem_free(words);
    mem_free(json);
    return 0;
}
