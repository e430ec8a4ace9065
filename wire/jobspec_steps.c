/* The steps of a job: as flags, in YAML, as JSON; their checks. Everything is made from JOBSPEC_STEP_MAP. */
#include <errno.h>
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/path.h"
#include "base/suggest.h"
#include "base/units.h"
#include "wire/condition.h"
#include "wire/jobspec.h"
#include "wire/jobspec_fields.h"

#define TIMEOUT_MS 30000
#define LEAST_TIMEOUT_MS 100

enum only { FOR_ALL, FOR_MODELS, FOR_COMMANDS };

enum step_field {
#define X(kind, member, key, identity, only, help) STEP_##member,
    JOBSPEC_STEP_MAP(X)
#undef X
        STEP_FIELDS
};

static const struct step_row {
    enum kind kind;
    size_t offset;
    const char *key;
    int identity;
    enum only only;
} step_rows[STEP_FIELDS] = {
#define X(kind, member, key, identity, only, help) [STEP_##member] = {KIND_##kind, offsetof(struct step_spec, member), key, identity, only},
    JOBSPEC_STEP_MAP(X)
#undef X
};

static void *at(struct step_spec *s, enum step_field f)
{
    return (char *)s + step_rows[f].offset;
}

static const void *at_const(const struct step_spec *s, enum step_field f)
{
    return (const char *)s + step_rows[f].offset;
}

static int is_given(const struct step_spec *s, enum step_field f)
{
    return step_rows[f].kind == KIND_TEXT ? *(char *const *)at_const(s, f) != NULL : *(const uint64_t *)at_const(s, f) != 0;
}

void steps_release(struct step_specs *s)
{
    for (size_t i = 0; i < s->count; i++)
        for (enum step_field f = 0; f < STEP_FIELDS; f++)
            if (step_rows[f].kind == KIND_TEXT)
                mem_free(*(char **)at(&s->items[i], f));
    mem_free(s->items);
    *s = (struct step_specs){0};
}

enum status steps_add(struct step_specs *s, struct err *e)
{
    if (s->count == JOBSPEC_MOST_STEPS)
        return err_set(e, ST_USER, "a job has at most %d steps", JOBSPEC_MOST_STEPS);
    struct step_spec *items = mem_resize(s->items, (s->count + 1) * sizeof *items);
    if (!items)
        return err_nomem(e, "the steps of a job");
    s->items = items;
    s->items[s->count++] = (struct step_spec){0};
    return ST_OK;
}

/* STEP_FIELDS when there is none. */
static enum step_field find(const char *key, size_t len)
{
    enum step_field f = 0;
    while (f < STEP_FIELDS && (strncmp(step_rows[f].key, key, len) != 0 || step_rows[f].key[len]))
        f++;
    return f;
}

static enum status unknown(const char *key, struct err *e)
{
    const char *keys[STEP_FIELDS];
    for (enum step_field f = 0; f < STEP_FIELDS; f++)
        keys[f] = step_rows[f].key;
    const char *near = suggest(key, keys, STEP_FIELDS);
    if (near)
        return err_set(e, ST_USER, "unknown key '%.80s' of a step (did you mean '%s')", key, near);
    return err_set(e, ST_USER, "unknown key '%.80s' of a step; it has a model or a command, and with it dir, precision, task, top_k, field, when, batch, concurrency, timeout",
                   key);
}

static enum status put_path(char **to, const char *text, const char *base, struct err *e)
{
    if (base && !*base)
        return field_set_text(to, text, e);
    char *joined = base && *text != '/' ? path_join(base, text) : NULL, *path = NULL, here[4096];
    if (!base && *text != '/' && !getcwd(here, sizeof here))
        return err_errno(e, ST_ENV, errno, "'%.200s' cannot be looked for: there is no current folder any more", text);
    if (!base || *text == '/' || joined)
        path = path_absolute(joined ? joined : text);
    mem_free(joined);
    if (!path)
        return err_nomem(e, "the steps of a job");
    mem_free(*to);
    *to = path;
    return ST_OK;
}

enum status steps_put(struct step_specs *s, const char *key, const char *text, const char *base, struct err *e)
{
    struct step_spec *step = &s->items[s->count - 1];
    enum step_field f = find(key, strlen(key));
    uint64_t n;
    char *end;
    if (f == STEP_FIELDS)
        return unknown(key, e);
    if (is_given(step, f))
        return err_set(e, ST_USER, "'%s' of a step stands here a second time", key);
    if (!*text)
        return err_set(e, ST_USER, "'%s' of a step has no value", key);
    switch (step_rows[f].kind) {
    case KIND_DURATION:
        if (units_parse_duration(text, &n) || n > INT64_MAX)
            return err_set(e, ST_USER, "'%s' of a step wants %s, not '%.80s'", key, kind_words[KIND_DURATION], text);
        *(uint64_t *)at(step, f) = n;
        return ST_OK;
    case KIND_NUMBER:
        errno = 0;
        n = strtoull(text, &end, 10);
        if (!isdigit((unsigned char)*text) || *end || errno || n > 1000000)
            return err_set(e, ST_USER, "'%s' of a step wants a whole number, not '%.80s'", key, text);
        *(uint64_t *)at(step, f) = n;
        return ST_OK;
    default:
        if (f == STEP_model || f == STEP_dir)
            return put_path(at(step, f), text, base, e);
        return field_set_text(at(step, f), text, e);
    }
}

enum status steps_complete(struct step_specs *s, const char *base, struct err *e)
{
    struct step_spec *step = &s->items[s->count - 1];
    if (step->command && !step->timeout)
        step->timeout = TIMEOUT_MS;
    return step->command && !step->dir ? put_path(&step->dir, ".", base, e) : ST_OK;
}

/* Where a key of the table with its '=' begins behind a comma; the text's end when none does. */
static const char *next_key(const char *p)
{
    for (const char *comma = p; (comma = strchr(comma, ',')); comma++) {
        const char *key = comma + 1 + strspn(comma + 1, " ");
        size_t n = strcspn(key, "=, ");
        if (key[n] == '=' && find(key, n) != STEP_FIELDS)
            return comma;
    }
    return p + strlen(p);
}

enum status steps_add_flag(struct step_specs *s, const char *text, struct err *e)
{
    TRY(steps_add(s, e));
    for (const char *p = text; *p;) {
        p += strspn(p, " ");
        const char *end = next_key(p), *is = memchr(p, '=', (size_t)(end - p));
        if (!is)
            return err_set(e, ST_USER, "--step '%.200s' wants KEY=VALUE, e.g. --step model=DIR,precision=int8 or --step 'command=python3 clean.py'", text);
        char *key = mem_strndup(p, (size_t)(is - p)), *value = mem_strndup(is + 1, (size_t)(end - is - 1));
        enum status st = key && value ? steps_put(s, key, value, NULL, e) : err_nomem(e, "the steps of a job");
        mem_free(key);
        mem_free(value);
        if (st != ST_OK)
            return st == ST_NOMEM ? st : err_prefix(e, "--step '%.200s'", text);
        p = *end ? end + 1 : end;
    }
    return steps_complete(s, NULL, e);
}

/* JSON ---------------------------------------------------------------------------------------------------------------------------- */

static int put_field(json_t *o, const struct step_spec *s, enum step_field f)
{
    const struct step_row *r = &step_rows[f];
    if (r->kind == KIND_TEXT)
        return json_object_set_new(o, r->key, json_string(*(char *const *)at_const(s, f)));
    uint64_t n = *(const uint64_t *)at_const(s, f);
    if (r->kind == KIND_NUMBER)
        return json_object_set_new(o, r->key, json_integer((json_int_t)n));
    return json_object_set_new(o, r->key, n % 1000 ? json_real((double)n / 1000) : json_integer((json_int_t)(n / 1000)));
}

json_t *steps_json(const struct step_specs *s, int identity)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < s->count; i++) {
        const struct step_spec *step = &s->items[i];
        json_t *o = json_object();
        int failed = !o || (identity && step->model && json_object_set_new(o, "model", json_true())); /* which one is in the job's digest of models */
        for (enum step_field f = 0; f < STEP_FIELDS && !failed; f++)
            if (is_given(step, f) && (!identity || step_rows[f].identity))
                failed = put_field(o, step, f);
        if (failed || json_array_append(list, o)) {
            json_decref(o);
            json_decref(list);
            return NULL;
        }
        json_decref(o);
    }
    return list;
}

enum status steps_from_json(struct step_specs *s, json_t *v, struct err *e)
{
    size_t i;
    json_t *o, *value;
    const char *key;
    char number[40];
    steps_release(s);
    json_array_foreach(v, i, o)
    {
        if (!json_is_object(o))
            return err_set(e, ST_USER, "step %zu of a job has to be an object", i + 1);
        TRY(steps_add(s, e));
        json_object_foreach(o, key, value)
        {
            const char *text = json_string_value(value);
            if (json_is_integer(value))
                snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
            else if (json_is_real(value))
                snprintf(number, sizeof number, "%.3f", json_real_value(value));
            else if (json_is_null(value))
                continue;
            else if (!text)
                return err_set(e, ST_USER, "'%.80s' of step %zu of a job wants a text or a number", key, i + 1);
            TRY(steps_put(s, key, text ? text : number, "", e));
        }
        if (s->items[s->count - 1].command && !s->items[s->count - 1].timeout)
            s->items[s->count - 1].timeout = TIMEOUT_MS;
    }
    return ST_OK;
}

/* Checks -------------------------------------------------------------------------------------------------------------------------- */

static enum status check_word(size_t number, const char *key, const char *text, const char *const *words, size_t count, struct err *e)
{
    char all[128] = "";
    for (size_t i = 0; text && i < count; i++) {
        if (strcmp(text, words[i]) == 0)
            return ST_OK;
        size_t n = strlen(all);
        snprintf(all + n, sizeof all - n, "%s%s", i ? i + 1 == count ? " or " : ", " : "", words[i]);
    }
    return text ? err_set(e, ST_USER, "step %zu: unknown %s '%.80s'; it is %s", number, key, text, all) : ST_OK;
}

static enum status check_step(size_t number, const struct step_spec *s, struct err *e)
{
    static const char *const precisions[] = {"auto", "f32", "bf16", "int8"}, *const tasks[] = {"auto", "embed", "classify", "token-classify", "fill-mask", "outputs"};
    if (!s->model == !s->command)
        return err_set(e, ST_USER, "step %zu has %s: each step is one of them", number, s->model ? "a model and a command" : "neither a model nor a command");
    for (enum step_field f = 0; f < STEP_FIELDS; f++)
        if (is_given(s, f) && step_rows[f].only == (s->model ? FOR_COMMANDS : FOR_MODELS))
            return err_set(e, ST_USER, "step %zu: '%s' is for %s", number, step_rows[f].key, s->model ? "commands, and this is a model" : "models, and this is a command");
    TRY(check_word(number, "precision", s->precision, precisions, 4, e));
    TRY(check_word(number, "task", s->task, tasks, 6, e));
    if (s->model && *s->model != '/')
        return err_set(e, ST_USER, "step %zu: the model's path '%s' is not absolute", number, s->model);
    if (s->command && (!s->dir || *s->dir != '/'))
        return err_set(e, ST_USER, "step %zu: the folder in which the command runs is not absolute", number);
    if (s->command && strlen(s->command) > 65536)
        return err_set(e, ST_USER, "step %zu: the command is longer than 64 KiB; put it into a file", number);
    if (s->top_k > 1000 || s->batch > 65536 || s->concurrency > 4096)
        return err_set(e, ST_USER, "step %zu: top_k is at most 1000, batch at most 65536, concurrency at most 4096", number);
    if (s->command && (s->timeout < LEAST_TIMEOUT_MS || s->timeout > UINT64_C(86400000)))
        return err_set(e, ST_USER, "step %zu: timeout is between %d ms and 1 day", number, LEAST_TIMEOUT_MS);
    if (s->when) {
        struct condition c;
        enum status st = condition_parse(s->when, &c, e);
        if (st != ST_OK)
            return st == ST_NOMEM ? st : err_prefix(e, "step %zu", number);
        condition_release(&c);
    }
    return ST_OK;
}

enum status steps_check(const struct jobspec *s, struct err *e)
{
    const char *with = s->model ? "model" : s->pair_field ? "pair-field" : s->task && strcmp(s->task, "auto") != 0 ? "task" : NULL;
    if (with)
        return err_set(e, ST_USER, "--%s cannot stand beside steps: %s", with,
                       s->model ? "make it a step of its own" : s->pair_field ? "pairs are for jobs of one model" : "say it in the step: --step model=DIR,task=...");
    if (s->stages > 1)
        return err_set(e, ST_USER, "--stages %" PRIu64 " cuts one model among workers, and this is a job of steps: leave one of the two out", s->stages);
    for (size_t i = 0; i < s->steps.count; i++)
        TRY(check_step(i + 1, &s->steps.items[i], e));
    return ST_OK;
}

enum status jobspec_check_steps(const struct jobspec *s, const char *kinds, int npy, struct err *e)
{
    const struct step_spec *last = &s->steps.items[s->steps.count - 1];
    if (kinds)
        return err_set(e, ST_USER, "a job of several steps reads records with fields (jsonl, csv, tsv, lines), and the input is of %s", kinds);
    if (npy && last->command)
        return err_set(e, ST_USER, "an .npy file holds one row of numbers for each record, and a command gives fields; let --output be a directory or end in .jsonl, "
                                   "or let a model be the last step");
    if (last->command && strcmp(s->floats, "base64") == 0)
        return err_set(e, ST_USER, "--floats base64 is for embeddings, and the last step is a command");
    struct jobspec settled = *s;
    settled.task = last->task ? last->task : s->task;
    return last->model ? jobspec_check_task(&settled, npy, e) : ST_OK;
}

/* The text of a name as far as it goes, without a character that was cut in two. */
static void tidy_end(char *s)
{
    size_t n = strlen(s), back = 0;
    while (back < 3 && back < n && ((unsigned char)s[n - 1 - back] & 0xc0) == 0x80)
        back++;
    unsigned char lead = back < n ? (unsigned char)s[n - 1 - back] : 0;
    size_t want = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc0 ? 1 : 0;
    if (want > back)
        s[n - 1 - back] = 0;
}

const char *jobspec_step_name(const struct step_spec *s, char *out, size_t size)
{
    snprintf(out, size, "%s", s->model ? path_base(s->model) : s->command ? s->command : "?");
    for (char *p = out; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 127)
            *p = ' ';
    tidy_end(out);
    return out;
}

const char *jobspec_model_name(const struct jobspec *s, char *out, size_t size)
{
    char name[49];
    if (!s->steps.count) {
        snprintf(out, size, "%s", s->model ? path_base(s->model) : "");
        return out;
    }
    *out = 0;
    for (size_t i = 0; i < s->steps.count; i++) {
        size_t n = strlen(out);
        snprintf(out + n, size - n, "%s%s", i ? " > " : "", jobspec_step_name(&s->steps.items[i], name, sizeof name));
    }
    tidy_end(out);
    return out;
}
