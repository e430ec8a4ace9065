#include "workers/command/answer.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "storage/utf8.h"

#define SHOWN 80             /* bytes of a line that is no answer */
#define MOST_AFTER_S 3600.0

static void say(struct answer *a, enum answer_kind kind, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void say(struct answer *a, enum answer_kind kind, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(a->text, sizeof a->text, fmt, args);
    va_end(args);
    utf8_tidy(a->text);
    a->kind = kind;
}

/* How much of it is shown: whole characters. */
static int shown_of(const char *p, size_t len)
{
    return (int)utf8_prefix(p, len < SHOWN ? len : SHOWN);
}

static const struct json_member *member(const struct answer *a, const char *key)
{
    size_t len = strlen(key);
    for (size_t i = a->members.count; i-- > 0;)
        if (a->members.items[i].key_len == len && memcmp(a->members.items[i].key, key, len) == 0)
            return &a->members.items[i];
    return NULL;
}

static int is_null(const struct json_member *m)
{
    return m->value_len == 4 && *m->value == 'n';
}

static int number(const char *p, size_t len, double *out)
{
    char text[400];
    if (!len || len >= sizeof text || json_number(p, p + len) != len)
        return -1;
    memcpy(text, p, len);
    text[len] = '\0';
    *out = strtod(text, NULL);
    return 0;
}

/* 1 the same, 0 not, -1 memory is out. */
static int same_id(struct answer *a, const char *p, size_t p_len, const char *q, size_t q_len)
{
    double x, y;
    if (p_len == q_len && memcmp(p, q, p_len) == 0)
        return 1;
    if (*p == '"' && *q == '"') {
        buf_clear(&a->left);
        buf_clear(&a->right);
        if (json_unescape(&a->left, p + 1, p_len - 2) || json_unescape(&a->right, q + 1, q_len - 2))
            return -1;
        return a->left.len == a->right.len && (!a->left.len || memcmp(a->left.data, a->right.data, a->left.len) == 0);
    }
    return number(p, p_len, &x) == 0 && number(q, q_len, &y) == 0 && x == y;
}

/* The words of a member, whatever it is. */
static void words(struct answer *a, enum answer_kind kind, const struct json_member *m)
{
    buf_clear(&a->left);
    int failed = *m->value == '"' ? json_unescape(&a->left, m->value + 1, m->value_len - 2) : buf_add(&a->left, m->value, m->value_len);
    if (failed) {
        a->kind = ANSWER_NOMEM;
        return;
    }
    int len = a->left.len < sizeof a->text ? (int)a->left.len : (int)sizeof a->text;
    say(a, kind, "%.*s", len, len ? a->left.data : "");
    if (!*a->text)
        say(a, kind, "no reason given");
}

void answer_read(struct answer *a, const char *line, size_t len, const char *id, size_t id_len)
{
    a->kind = ANSWER_VALUE;
    a->echoes = a->has_after = 0;
    a->text[0] = '\0';
    int shown = shown_of(line, len);
    size_t good = utf8_prefix(line, len);
    if (good != len) {
        say(a, ANSWER_GARBAGE, "a line that is not UTF-8 from byte %zu on: '%.*s'", good, shown, line);
        return;
    }
    const char *p = line, *end = line + len;
    while (p < end && (*p == ' ' || *p == '\t'))
        p++;
    if (p == end) {
        say(a, ANSWER_GARBAGE, "an empty line");
        return;
    }
    int object = *p == '{' ? json_object_members(&a->members, line, len) : 0;
    if (object < 0) {
        a->kind = ANSWER_NOMEM;
        return;
    }
    if (*p == '{' ? !object : !json_is_value(line, len)) {
        say(a, ANSWER_GARBAGE, "a line that is not JSON: '%.*s'", shown, line);
        return;
    }
    if (!object)
        return;
    const struct json_member *m = id && (*id == '"' || *id == '-' || (*id >= '0' && *id <= '9')) ? member(a, "id") : NULL;
    if (m && !is_null(m)) {
        int same = same_id(a, m->value, m->value_len, id, id_len);
        if (same < 0) {
            a->kind = ANSWER_NOMEM;
            return;
        }
        if (!same) {
            say(a, ANSWER_OTHER, "an answer with the id %.*s, where that to %.*s was due", shown_of(m->value, m->value_len), m->value, shown_of(id, id_len), id);
            return;
        }
        a->echoes = 1;
    }
    if ((m = member(a, "error")) && !is_null(m)) {
        words(a, ANSWER_REFUSED, m);
    } else if ((m = member(a, "retry")) && !is_null(m)) {
        words(a, ANSWER_RETRY, m);
        double s;
        if ((m = member(a, "after")) && number(m->value, m->value_len, &s) == 0 && s >= 0) {
            a->has_after = 1;
            a->after_ms = (uint64_t)((s < MOST_AFTER_S ? s : MOST_AFTER_S) * 1000);
        }
    }
}

void answer_release(struct answer *a)
{
    json_members_release(&a->members);
    buf_release(&a->left);
    buf_release(&a->right);
}
