/* A job as JSON, on the wire and in the manifest; and its identity, which is made of the same values. */
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wire/jobspec.h"
#include "wire/jobspec_fields.h"

static json_t *json_of(const struct jobspec *s, enum field f)
{
    const void *p = field_at_const(s, f);
    char words[32];
    switch (field_rows[f].kind) {
    case KIND_TEXT: {
        const char *text = *(char *const *)p;
        return text ? json_string(text) : json_null();
    }
    case KIND_LIST: {
        const struct texts *t = p;
        json_t *list = json_array();
        for (size_t i = 0; list && i < t->count; i++)
            if (json_array_append_new(list, json_string(t->items[i]))) {
                json_decref(list);
                return NULL;
            }
        return list;
    }
    case KIND_NUMBER:
    case KIND_SIZE:
        return json_integer((json_int_t) * (const uint64_t *)p);
    case KIND_SIGNED:
        return json_integer((json_int_t) * (const int64_t *)p);
    case KIND_DURATION: { /* seconds, as a number without a unit is in YAML */
        uint64_t ms = *(const uint64_t *)p;
        return ms % 1000 ? json_real((double)ms / 1000) : json_integer((json_int_t)(ms / 1000));
    }
    case KIND_STEPS:
        return steps_json(p, 0);
    case KIND_LIMIT: {
        const struct limit *l = p;
        if (l->ppm != UINT32_MAX)
            return json_string(limit_words(l, words, sizeof words));
        return l->count == UINT64_MAX ? json_null() : json_integer((json_int_t)l->count);
    }
    }
    BUG("'%s' has no kind", field_rows[f].path);
}

json_t *jobspec_to_json(const struct jobspec *s)
{
    json_t *root = json_object();
    for (enum field f = 0; root && f < FIELD_COUNT; f++) {
        const char *path = field_rows[f].path, *dot = strchr(path, '.');
        json_t *in = root;
        if (field_rows[f].kind == KIND_STEPS && !s->steps.count)
            continue;
        if (dot) {
            char group[32];
            snprintf(group, sizeof group, "%.*s", (int)(dot - path), path);
            in = json_object_get(root, group);
            if (!in && json_object_set_new(root, group, json_object()) == 0)
                in = json_object_get(root, group);
        }
        if (!in || json_object_set_new(in, field_last_word(path), json_of(s, f))) {
            json_decref(root);
            return NULL;
        }
    }
    return root;
}

static const char *json_words(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a text";
    case JSON_INTEGER:
    case JSON_REAL:
        return "another number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "true or false";
    case JSON_NULL:
        return "null";
    }
    return "something else";
}

/* 0, or -1 when it is not what the kind wants. */
static int json_scalar(struct jobspec *s, enum field f, const json_t *v)
{
    json_int_t n = json_integer_value(v);
    switch (field_rows[f].kind) {
    case KIND_NUMBER:
    case KIND_SIZE:
        if (!json_is_integer(v) || n < 0)
            return -1;
        *(uint64_t *)field_at(s, f) = (uint64_t)n;
        return 0;
    case KIND_SIGNED:
        if (!json_is_integer(v))
            return -1;
        *(int64_t *)field_at(s, f) = n;
        return 0;
    case KIND_DURATION: {
        double seconds = json_number_value(v);
        if (!json_is_number(v) || !(seconds >= 0 && seconds < 9e15))
            return -1;
        *(uint64_t *)field_at(s, f) = json_is_integer(v) ? (uint64_t)n * 1000 : (uint64_t)llround(seconds * 1000);
        return 0;
    }
    case KIND_LIMIT:
        if (json_is_integer(v) && n >= 0) {
            *(struct limit *)field_at(s, f) = (struct limit){.count = (uint64_t)n, .ppm = UINT32_MAX};
            return 0;
        }
        return json_is_string(v) ? limit_parse(json_string_value(v), field_at(s, f)) : -1;
    case KIND_TEXT:
    case KIND_LIST:
    case KIND_STEPS:
        break;
    }
    BUG("'%s' is no scalar", field_rows[f].path);
}

static enum status json_value(struct jobspec *s, enum field f, json_t *v, struct err *e)
{
    int fits = 1;
    if (json_is_null(v))
        return ST_OK;
    if (field_rows[f].kind == KIND_TEXT) {
        fits = json_is_string(v) && json_string_length(v) > 0;
        if (fits)
            TRY(field_set_text(field_at(s, f), json_string_value(v), e));
    } else if (field_rows[f].kind == KIND_LIST) {
        json_t *item;
        size_t i;
        texts_release(field_at(s, f));
        fits = json_is_array(v);
        json_array_foreach(v, i, item)
        {
            if (!json_is_string(item) || json_string_length(item) == 0) {
                fits = 0;
                break;
            }
            TRY(texts_add(field_at(s, f), json_string_value(item), e));
        }
    } else if (field_rows[f].kind == KIND_STEPS) {
        fits = json_is_array(v);
        if (fits)
            TRY(steps_from_json(field_at(s, f), v, e));
    } else {
        fits = json_scalar(s, f, v) == 0;
    }
    if (!fits)
        return err_set(e, ST_USER, "'%s' of a job wants %s, found %s", field_rows[f].path, kind_words[field_rows[f].kind], json_words(v));
    return ST_OK;
}

static enum status json_object_in(struct jobspec *s, const char *group, json_t *o, struct err *e)
{
    const char *key;
    json_t *v;
    json_object_foreach(o, key, v)
    {
        char path[96];
        int len = snprintf(path, sizeof path, "%s%s%s", group, *group ? "." : "", key);
        int known = len > 0 && (size_t)len < sizeof path && !strchr(key, '.');
        enum field f = known ? field_find(path, 0) : FIELD_COUNT;
        if (f != FIELD_COUNT)
            TRY(json_value(s, f, v, e));
        else if (known && !*group && field_is_group(path) && json_is_object(v))
            TRY(json_object_in(s, path, v, e));
        else if (known && !*group && field_is_group(path))
            return err_set(e, ST_USER, "'%s' of a job wants an object, found %s", path, json_words(v));
        else
            return field_unknown("", "member", group, key, 0, e);
    }
    return ST_OK;
}

enum status jobspec_from_json(struct jobspec *s, const char *json, size_t len, struct err *e)
{
    json_error_t at_error;
    json_t *root = json_loadb(json, len, JSON_REJECT_DUPLICATES, &at_error);
    if (!root)
        return err_set(e, ST_USER, "a job that is not valid JSON: line %d, column %d: %s", at_error.line, at_error.column, at_error.text);
    enum status st = json_is_object(root) ? json_object_in(s, "", root, e) : err_set(e, ST_USER, "a job has to be an object, found %s", json_words(root));
    json_decref(root);
    return st;
}

/* Identity ------------------------------------------------------------------------------------------------------------------------ */

json_t *jobspec_fingerprint(const struct jobspec *s, const char *format_resolved, const char *model_hex, const char *dataset_hex)
{
    json_t *root = json_object();
    int failed = !root || json_object_set_new(root, "model", json_string(model_hex)) || json_object_set_new(root, "input", json_string(dataset_hex));
    for (enum field f = 0; f < FIELD_COUNT && !failed; f++)
        if (field_rows[f].kind == KIND_STEPS) /* a job of one model has none: its identity is what it was before there were steps */
            failed = s->steps.count && json_object_set_new(root, field_rows[f].path, steps_json(&s->steps, 1));
        else if (field_rows[f].identity)
            failed = json_object_set_new(root, field_rows[f].path, f == FIELD_format ? json_string(format_resolved) : json_of(s, f));
    if (failed) {
        json_decref(root);
        return NULL;
    }
    return root;
}

static void value_words(const json_t *v, char *out, size_t size)
{
    if (!v || json_is_null(v)) {
        snprintf(out, size, "not set");
        return;
    }
    if (json_is_string(v)) {
        snprintf(out, size, "'%.60s'", json_string_value(v));
        return;
    }
    char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
    snprintf(out, size, "%.60s", text ? text : "?");
    free(text); /* jansson's own allocator */
}

static void say(char *words, size_t size, const char *fmt, ...) PRINTF(3, 4);
static void say(char *words, size_t size, const char *fmt, ...)
{
    size_t n = strlen(words);
    if (n && n + 2 < size) {
        memcpy(words + n, "; ", 3);
        n += 2;
    }
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(words + n, size - n, fmt, ap);
    va_end(ap);
}

int jobspec_fingerprint_differs(const json_t *then, const json_t *now, char *words, size_t size)
{
    int count = 0, input = 0, input_named = 0;
    const char *key;
    json_t *v;
    words[0] = 0;
    for (int side = 0; side < 2; side++) { /* what is new or has changed, then what is gone */
        json_t *from = (json_t *)(side ? then : now);
        const json_t *other = side ? now : then;
        json_object_foreach(from, key, v)
        {
            const json_t *w = json_object_get(other, key);
            if (side ? w != NULL : w && json_equal(v, w))
                continue;
            count++;
            if (strcmp(key, "model") == 0) {
                say(words, size, "the model has changed");
            } else if (strcmp(key, "input") == 0) {
                input = 1; /* said below, if nothing says more */
            } else {
                char was[80], is[80];
                value_words(side ? v : w, was, sizeof was);
                value_words(side ? w : v, is, sizeof is);
                say(words, size, "%s was %s and is %s", key, was, is);
                input_named |= strcmp(key, field_rows[FIELD_format].path) == 0 || strcmp(key, field_rows[FIELD_limit].path) == 0;
            }
        }
    }
    if (input && !input_named) /* format and limit are in the dataset's digest too */
        say(words, size, "the input has changed");
    return count;
}

int jobspec_rest_differs(const struct jobspec *then, const struct jobspec *now, int max_errors, char *words, size_t size)
{
    int count = 0;
    words[0] = 0;
    for (enum field f = 0; f < FIELD_COUNT; f++) {
        if (field_rows[f].identity || f == FIELD_name || f == FIELD_model || f == FIELD_inputs || f == FIELD_output || f == FIELD_stages ||
            (f == FIELD_max_errors && !max_errors))
            continue;
        json_t *was = json_of(then, f), *is = json_of(now, f);
        if (!was || !is) {
            json_decref(was);
            json_decref(is);
            return -1;
        }
        if (!json_equal(was, is)) {
            char a[80], b[80];
            const char *unit = field_rows[f].kind == KIND_DURATION ? " s" : "";
            value_words(was, a, sizeof a);
            value_words(is, b, sizeof b);
            say(words, size, "%s was %s%s and is %s%s", field_rows[f].path, a, unit, b, unit);
            count++;
        }
        json_decref(was);
        json_decref(is);
    }
    return count;
}
