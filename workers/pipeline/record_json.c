#include "workers/pipeline/record_json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

void record_scratch_release(struct record_scratch *s)
{
    json_members_release(&s->members);
    json_members_release(&s->inner);
    buf_release(&s->key);
    buf_release(&s->object);
    *s = (struct record_scratch){0};
}

/* 1 when the member is called so, 0, or -1. */
static int is_called(struct record_scratch *s, const struct json_member *m, const char *name, size_t len)
{
    if (!memchr(m->key, '\\', m->key_len))
        return m->key_len == len && memcmp(m->key, name, len) == 0;
    s->key.len = 0;
    if (json_unescape(&s->key, m->key, m->key_len))
        return -1;
    return s->key.len == len && memcmp(s->key.data, name, len) == 0;
}

/* Of names that stand twice the last counts. 1: *out is it (NULL: there is none); -1. */
static int find(struct record_scratch *s, const struct json_members *m, const char *name, size_t len, const struct json_member **out)
{
    *out = NULL;
    for (size_t i = m->count; i-- > 0;) {
        int is = is_called(s, &m->items[i], name, len);
        if (is < 0)
            return -1;
        if (is) {
            *out = &m->items[i];
            return 1;
        }
    }
    return 1;
}

static int put_member(const struct json_member *m, int first, struct buf *out)
{
    return (!first && buf_char(out, ',')) || buf_char(out, '"') || buf_add(out, m->key, m->key_len) || buf_str(out, "\":") || buf_add(out, m->value, m->value_len) ? -1 : 0;
}

int record_with(struct record_scratch *s, const char *json, size_t len, const char *result, size_t result_len, struct buf *out)
{
    s->object.len = 0;
    if (buf_char(&s->object, '{') || buf_add(&s->object, result + 1, result_len - 1) || buf_char(&s->object, '}') ||
        json_object_members(&s->inner, s->object.data, s->object.len) < 0 || json_object_members(&s->members, json, len) < 0 || buf_char(out, '{'))
        return -1;
    int first = 1;
    for (size_t i = 0; i < s->members.count; i++) {
        int replaced = 0;
        for (size_t k = 0; k < s->inner.count && !replaced; k++)
            if ((replaced = is_called(s, &s->members.items[i], s->inner.items[k].key, s->inner.items[k].key_len)) < 0) /* ours have no escapes */
                return -1;
        if (replaced)
            continue;
        if (put_member(&s->members.items[i], first, out))
            return -1;
        first = 0;
    }
    return buf_add(out, result + first, result_len - (size_t)first) || buf_char(out, '}') ? -1 : 0;
}

/* By its whole name, else by dots into objects. */
static int look_up(struct record_scratch *s, const char *name, const struct json_member **out)
{
    size_t n = strcspn(name, ".");
    if (find(s, &s->members, name, strlen(name), out) < 0)
        return -1;
    if (*out || !name[n])
        return 1;
    if (find(s, &s->members, name, n, out) < 0)
        return -1;
    for (const char *at = name + n; *out && *at;) {
        size_t part = strcspn(at + 1, ".");
        int is = json_object_members(&s->inner, (*out)->value, (*out)->value_len);
        if (is <= 0) {
            *out = NULL;
            return is < 0 ? -1 : 1;
        }
        if (find(s, &s->inner, at + 1, part, out) < 0)
            return -1;
        at += part + 1;
    }
    return 1;
}

static int by_order(enum condition_op op, int order)
{
    switch (op) {
    case CONDITION_EQ:
    case CONDITION_IS: return order == 0;
    case CONDITION_NE: return order != 0;
    case CONDITION_LT: return order < 0;
    case CONDITION_LE: return order <= 0;
    case CONDITION_GT: return order > 0;
    case CONDITION_GE: return order >= 0;
    }
    return 0;
}

static int compare_text(struct record_scratch *s, const struct clause *c, const struct json_member *m)
{
    s->key.len = 0;
    if (json_unescape(&s->key, m->value + 1, m->value_len - 2))
        return -1;
    size_t n = strlen(c->text), least = s->key.len < n ? s->key.len : n;
    int order = least ? memcmp(s->key.data, c->text, least) : 0;
    if (!order)
        order = s->key.len < n ? -1 : s->key.len > n;
    return by_order(c->op, order);
}

static int compare_number(const struct clause *c, const struct json_member *m)
{
    char *copy = mem_strndup(m->value, m->value_len);
    if (!copy)
        return -1;
    double x = strtod(copy, NULL);
    mem_free(copy);
    return by_order(c->op, x < c->number ? -1 : x > c->number);
}

/* Things of different kinds are not equal, and neither is the larger one. */
static int clause_holds(struct record_scratch *s, const struct clause *c, char *why, size_t size)
{
    const struct json_member *m;
    if (look_up(s, c->field, &m) < 0)
        return -1;
    if (!m) {
        snprintf(why, size, "'when' asks for the field '%.80s', and the record has none", c->field);
        return -2;
    }
    char kind = record_kind(m->value, m->value_len);
    int is_number = kind == '-' || (kind >= '0' && kind <= '9'), equal = c->op == CONDITION_IS, ordered = !equal && c->op != CONDITION_NE;
    if (kind == '"' && (c->kind == CONDITION_TEXT || !ordered))
        return compare_text(s, c, m);
    if (is_number && c->kind == CONDITION_NUMBER)
        return compare_number(c, m);
    if (ordered) {
        snprintf(why, size, "'when' asks whether '%.80s' %s %.80s, and it is %s", c->field, condition_op_word(c->op), c->text, record_kind_words(kind));
        return -2;
    }
    int same = (kind == 't' && c->kind == CONDITION_TRUE) || (kind == 'f' && c->kind == CONDITION_FALSE) || (kind == 'n' && c->kind == CONDITION_NULL);
    return same == equal;
}

int record_passes(struct record_scratch *s, const struct condition *c, const char *json, size_t len, char *why, size_t size)
{
    int passes = 1;
    if (!c->count)
        return 1;
    if (json_object_members(&s->members, json, len) < 0)
        return -1;
    for (size_t i = 0; i < c->count && passes > 0; i++)
        passes = clause_holds(s, &c->items[i], why, size);
    return passes;
}

int record_keep(struct record_scratch *s, const char *json, size_t len, const char *whole, size_t whole_len, char *const *names, size_t count, struct buf *out)
{
    if (!count)
        return 0;
    if (json_object_members(&s->members, json, len) < 0 || (whole && json_object_members(&s->inner, whole, whole_len) < 0))
        return -1;
    for (size_t i = 0; i < count; i++) {
        const struct json_member *m;
        size_t n = strlen(names[i]);
        if (find(s, &s->members, names[i], n, &m) < 0 || (!m && whole && find(s, &s->inner, names[i], n, &m) < 0))
            return -1;
        if (buf_char(out, ',') || json_add_string(out, names[i], n) || buf_char(out, ':') || (m ? buf_add(out, m->value, m->value_len) : buf_str(out, "null")))
            return -1;
    }
    return 0;
}

int record_rest(struct record_scratch *s, const char *json, size_t len, char *const *but, size_t count, int but_child, struct buf *out)
{
    if (json_object_members(&s->members, json, len) < 0)
        return -1;
    for (size_t i = 0; i < s->members.count; i++) {
        const struct json_member *m = &s->members.items[i];
        int left_out = is_called(s, m, "id", 2);
        if (!left_out && but_child)
            left_out = is_called(s, m, "child", 5);
        for (size_t k = 0; k < count && !left_out; k++)
            left_out = is_called(s, m, but[k], strlen(but[k]));
        if (left_out < 0 || (!left_out && put_member(m, 0, out)))
            return -1;
    }
    return 0;
}

const char *record_id(struct record_scratch *s, const char *json, size_t len, size_t *id_len)
{
    const struct json_member *m;
    if (json_object_members(&s->members, json, len) <= 0 || find(s, &s->members, "id", 2, &m) < 0 || !m)
        return NULL;
    if (*m->value != '"' && *m->value != '-' && (*m->value < '0' || *m->value > '9'))
        return NULL;
    *id_len = m->value_len;
    return m->value;
}

static size_t space(const char *json, size_t len, size_t at)
{
    while (at < len && (json[at] == ' ' || json[at] == '\t' || json[at] == '\r' || json[at] == '\n'))
        at++;
    return at;
}

char record_kind(const char *json, size_t len)
{
    size_t at = space(json, len, 0);
    return at < len ? json[at] : 0;
}

const char *record_kind_words(char kind)
{
    switch (kind) {
    case '{': return "an object";
    case '[': return "an array";
    case '"': return "a string";
    case 't':
    case 'f': return "true or false";
    case 'n': return "null";
    default: return "a number";
    }
}

/* Behind the value that begins at `at`. */
static size_t value_end(const char *json, size_t len, size_t at)
{
    size_t depth = 0;
    for (; at < len; at++) {
        char c = json[at];
        if (c == '"') {
            for (at++; at < len && json[at] != '"'; at++)
                at += json[at] == '\\';
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']') {
            if (!depth)
                return at; /* of what it stands in */
            depth--;
        } else if (depth == 0 && (c == ',' || c == ' ' || c == '\t' || c == '\r' || c == '\n')) {
            return at;
        }
        if (depth == 0 && (c == '"' || c == '}' || c == ']'))
            return at < len ? at + 1 : len;
    }
    return len;
}

int record_next(const char *json, size_t len, size_t *at, const char **element, size_t *element_len)
{
    size_t p = *at;
    if (p == 0)
        p = space(json, len, 0) + 1; /* behind the bracket */
    p = space(json, len, p);
    if (p < len && json[p] == ',')
        p = space(json, len, p + 1);
    if (p >= len || json[p] == ']')
        return 0;
    size_t end = value_end(json, len, p);
    *element = json + p;
    *element_len = end - p;
    *at = end;
    return 1;
}
