/* A job's fields, their values and names, defaults and checks. Everything is made from JOBSPEC_MAP: the rows of `field_rows` say where a
   field lies in the struct, in YAML (jobspec_yaml.c), in JSON (jobspec_json.c) and among the flags (jobspec_flags.c). */
#include "wire/jobspec.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/rows.h"
#include "base/suggest.h"
#include "base/units.h"
#include "base/when.h"
#include "wire/jobspec_fields.h"

const char *const kind_words[] = {
    [KIND_TEXT] = "a text",
    [KIND_LIST] = "a text or a list of texts",
    [KIND_NUMBER] = "a whole number",
    [KIND_SIGNED] = "a whole number",
    [KIND_SIZE] = "a size such as 64MB or 1.5GiB",
    [KIND_DURATION] = "a duration such as 30s or 5min",
    [KIND_LIMIT] = "a number or a share such as 1%",
    [KIND_STEPS] = "a list of steps, each with a model or a command",
};

const struct field_row field_rows[FIELD_COUNT] = {
#define X(kind, member, path, flag, arg, identity, help)                                                                         \
    [FIELD_##member] = {KIND_##kind, offsetof(struct jobspec, member), path, flag, arg, identity, help},
    JOBSPEC_MAP(X)
#undef X
};

/* Other spellings in YAML. "" is what stands directly under the group: `input: a.jsonl`. */
static const struct {
    const char *path;
    enum field field;
} aliases[] = {
    {"input", FIELD_inputs},      {"input.path", FIELD_inputs}, {"input.paths", FIELD_inputs}, {"output", FIELD_output},
    {"output.dir", FIELD_output}, {"output.file", FIELD_output},
};

void *field_at(struct jobspec *s, enum field f)
{
    return (char *)s + field_rows[f].offset;
}

const void *field_at_const(const struct jobspec *s, enum field f)
{
    return (const char *)s + field_rows[f].offset;
}

static int is_path(enum field f)
{
    return f == FIELD_model || f == FIELD_inputs || f == FIELD_output;
}

/* Values -------------------------------------------------------------------------------------------------------------------------- */

enum status field_set_text(char **to, const char *text, struct err *e)
{
    char *copy = mem_strdup(text);
    if (!copy)
        return err_nomem(e, "a job");
    mem_free(*to);
    *to = copy;
    return ST_OK;
}

void texts_release(struct texts *t)
{
    for (size_t i = 0; i < t->count; i++)
        mem_free(t->items[i]);
    mem_free(t->items);
    *t = (struct texts){0};
}

enum status texts_add(struct texts *t, const char *text, struct err *e)
{
    char **items = mem_resize(t->items, (t->count + 1) * sizeof *items);
    if (!items)
        return err_nomem(e, "a job");
    t->items = items;
    if (!(items[t->count] = mem_strdup(text)))
        return err_nomem(e, "a job");
    t->count++;
    return ST_OK;
}

int limit_parse(const char *text, struct limit *out)
{
    char *end;
    if (!isdigit((unsigned char)*text))
        return -1;
    errno = 0;
    if (text[strspn(text, "0123456789")] == 0) {
        unsigned long long n = strtoull(text, &end, 10);
        if (errno || n > INT64_MAX)
            return -1;
        *out = (struct limit){.count = n, .ppm = UINT32_MAX};
        return 0;
    }
    double share = strtod(text, &end);
    while (*end == ' ')
        end++;
    if (strcmp(end, "%") != 0 || !(share >= 0 && share <= 100))
        return -1;
    *out = (struct limit){.count = UINT64_MAX, .ppm = (uint32_t)llround(share * 10000)};
    return 0;
}

char *limit_words(const struct limit *l, char *out, size_t size)
{
    if (l->ppm != UINT32_MAX)
        snprintf(out, size, "%g%%", l->ppm / 10000.0);
    else
        snprintf(out, size, "%" PRIu64, l->count);
    return out;
}

int field_set_scalar(struct jobspec *s, enum field f, const char *text)
{
    char *end;
    errno = 0;
    switch (field_rows[f].kind) {
    case KIND_NUMBER: {
        unsigned long long n = strtoull(text, &end, 10);
        if (!isdigit((unsigned char)*text) || *end || errno || n > INT64_MAX)
            return -1;
        *(uint64_t *)field_at(s, f) = n;
        return 0;
    }
    case KIND_SIGNED: {
        long long n = strtoll(text, &end, 10);
        if (!(isdigit((unsigned char)*text) || ((*text == '-' || *text == '+') && isdigit((unsigned char)text[1]))) || *end || errno)
            return -1;
        *(int64_t *)field_at(s, f) = n;
        return 0;
    }
    case KIND_SIZE: {
        uint64_t n;
        if (units_parse_bytes(text, &n) || n > INT64_MAX)
            return -1;
        *(uint64_t *)field_at(s, f) = n;
        return 0;
    }
    case KIND_DURATION: {
        uint64_t n;
        if (units_parse_duration(text, &n) || n > INT64_MAX)
            return -1;
        *(uint64_t *)field_at(s, f) = n;
        return 0;
    }
    case KIND_LIMIT:
        return limit_parse(text, field_at(s, f));
    case KIND_TEXT:
    case KIND_LIST:
    case KIND_STEPS:
        break;
    }
    BUG("'%s' is no scalar", field_rows[f].path);
}

static int has_file_ending(const char *path, size_t len)
{
    return (len > 6 && memcmp(path + len - 6, ".jsonl", 6) == 0) || (len > 4 && memcmp(path + len - 4, ".npy", 4) == 0);
}

/* The text as it is kept: paths become absolute, relative to `base` (NULL: the working folder). A '/' behind an output that would
   else look like a file stays: it says "a directory". The caller frees. */
static char *kept(enum field f, const char *text, const char *base, int directory)
{
    if (!is_path(f) || (f == FIELD_inputs && strcmp(text, "-") == 0))
        return mem_strdup(text);
    char *joined = base && *text != '/' ? path_join(base, text) : NULL;
    if (base && *text != '/' && !joined)
        return NULL;
    char *path = path_absolute(joined ? joined : text);
    mem_free(joined);
    size_t n = strlen(text);
    if (path && f == FIELD_output && has_file_ending(path, strlen(path)) && (directory || (n && text[n - 1] == '/'))) {
        char *with = mem_printf("%s/", path);
        mem_free(path);
        return with;
    }
    return path;
}

/* Paths that cannot be meant, and a relative one where there is no working folder any more. */
static enum status refuse_path(enum field f, const char *text, const char *base, struct err *e)
{
    char here[4096];
    if (f == FIELD_output && strcmp(text, "-") == 0)
        return err_set(e, ST_USER, "results go to files, not to standard output: --output (output.path) wants a folder, or a name that ends in .jsonl or .npy");
    if (f == FIELD_inputs && strstr(text, "://") && access(text, F_OK) != 0)
        return err_set(e, ST_USER, "the input '%.200s' is an address, and ebb reads files: fetch it first, or pipe it into --input -", text);
    if (!base && *text && *text != '/' && strcmp(text, "-") != 0 && !getcwd(here, sizeof here))
        return err_errno(e, ST_ENV, errno, "'%.200s' cannot be looked for: there is no current folder any more", text);
    return ST_OK;
}

enum status field_put_text(struct jobspec *s, enum field f, const char *text, const char *base, int directory, struct err *e)
{
    char when[WHEN_MAX];
    int64_t at;
    if (f == FIELD_deadline) { /* from here on it means the same on every machine and on every day */
        if (when_parse(text, clock_wall_ms(), &at))
            return err_set(e, ST_USER, "--%s (%s) takes %s, not '%.80s'", field_rows[f].flag, field_rows[f].path, WHEN_WORDS, text);
        text = when_text(when, at);
    }
    if (is_path(f))
        TRY(refuse_path(f, text, base, e));
    char *value = kept(f, text, base, directory);
    if (!value)
        return err_nomem(e, "a job");
    enum status st = field_rows[f].kind == KIND_LIST ? texts_add(field_at(s, f), value, e) : field_set_text(field_at(s, f), value, e);
    mem_free(value);
    return st;
}

enum status jobspec_init(struct jobspec *s, struct err *e)
{
    *s = (struct jobspec){
        .max_record_bytes = 16u << 20,
        .part_bytes = 256u << 20,
        .max_errors = {UINT64_MAX, UINT32_MAX},
        .workers_preemptible = {UINT64_MAX, UINT32_MAX},
        .weight = 100,
        .lease_target = 30000,
        .commit_every = 3000,
        .stall_timeout = 120000,
        .top_k = 5,
        .micro_batch = 64,
        .micro_batch_tokens = 1024,
    };
    if (field_set_text(&s->precision, "auto", e) || field_set_text(&s->task, "auto", e) || field_set_text(&s->on_long, "truncate", e) || field_set_text(&s->floats, "array", e)) {
        jobspec_release(s);
        return ST_NOMEM;
    }
    return ST_OK;
}

void jobspec_release(struct jobspec *s)
{
    for (enum field f = 0; f < FIELD_COUNT; f++)
        if (field_rows[f].kind == KIND_TEXT)
            mem_free(*(char **)field_at(s, f));
        else if (field_rows[f].kind == KIND_LIST)
            texts_release(field_at(s, f));
        else if (field_rows[f].kind == KIND_STEPS)
            steps_release(field_at(s, f));
    *s = (struct jobspec){0};
}

/* Names of keys ------------------------------------------------------------------------------------------------------------------- */

const char *field_last_word(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

int field_is_group(const char *path)
{
    size_t n = strlen(path);
    for (enum field f = 0; f < FIELD_COUNT; f++)
        if (strncmp(field_rows[f].path, path, n) == 0 && field_rows[f].path[n] == '.')
            return 1;
    return 0;
}

enum field field_find(const char *path, int with_aliases)
{
    for (enum field f = 0; f < FIELD_COUNT; f++)
        if (strcmp(field_rows[f].path, path) == 0)
            return f;
    for (size_t i = 0; with_aliases && i < sizeof aliases / sizeof *aliases; i++)
        if (strcmp(aliases[i].path, path) == 0)
            return aliases[i].field;
    return FIELD_COUNT;
}

/* The key that someone meant by `key` inside `group` ("" at the top), as it has to be written there: a plain word when it belongs here,
   a whole path when it belongs elsewhere; NULL when nothing is near. `out` may be filled. */
static const char *meant(const char *group, const char *key, int with_aliases, char *out, size_t size)
{
    /* the very word, or a flag's name, but elsewhere */
    for (enum field f = 0; f < FIELD_COUNT; f++)
        if (strcmp(field_last_word(field_rows[f].path), key) == 0 || strcmp(field_rows[f].flag, key) == 0 || strcmp(field_rows[f].path, key) == 0)
            return field_rows[f].path;
    /* a word like those that may stand here */
    const char *here[2 * FIELD_COUNT], *path;
    char heads[FIELD_COUNT][32];
    size_t count = 0, n = strlen(group), head_count = 0;
    for (size_t i = 0; i < FIELD_COUNT + (with_aliases ? sizeof aliases / sizeof *aliases : 0); i++) {
        path = i < FIELD_COUNT ? field_rows[i].path : aliases[i - FIELD_COUNT].path;
        if (n && (strncmp(path, group, n) != 0 || path[n] != '.'))
            continue;
        const char *word = path + (n ? n + 1 : 0), *dot = strchr(word, '.');
        if (!dot) {
            here[count++] = word;
        } else {
            snprintf(heads[head_count], sizeof heads[0], "%.*s", (int)(dot - word), word);
            here[count++] = heads[head_count++];
        }
        if (count == sizeof here / sizeof *here || head_count == FIELD_COUNT)
            break;
    }
    const char *near = suggest(key, here, count);
    if (near) {
        snprintf(out, size, "%s", near);
        return out;
    }
    /* or elsewhere */
    const char *words[FIELD_COUNT];
    for (enum field f = 0; f < FIELD_COUNT; f++)
        words[f] = field_last_word(field_rows[f].path);
    near = suggest(key, words, FIELD_COUNT);
    for (enum field f = 0; near && f < FIELD_COUNT; f++)
        if (words[f] == near)
            return field_rows[f].path;
    return NULL;
}

enum status field_unknown(const char *where, const char *what, const char *group, const char *key, int with_aliases, struct err *e)
{
    char word[64];
    enum field whole = strchr(key, '.') ? field_find(key, with_aliases) : FIELD_COUNT;
    if (whole != FIELD_COUNT)
        return err_set(e, ST_USER, "%sunknown %s '%s': write it as '%.*s: {%s: ...}'", where, what, key, (int)strcspn(key, "."), key, field_last_word(key));
    const char *near = meant(group, key, with_aliases, word, sizeof word);
    const char *in = *group ? " in '" : "", *close = *group ? "'" : "";
    if (near)
        return err_set(e, ST_USER, "%sunknown %s '%.80s'%s%s%s (did you mean '%s')", where, what, key, in, group, close, near);
    return err_set(e, ST_USER, "%sunknown %s '%.80s'%s%s%s", where, what, key, in, group, close);
}

/* Words and ranges ---------------------------------------------------------------------------------------------------------------- */

struct words {
    enum field field;
    const char *const *list;
    size_t count;
};

static enum status check_word(const struct jobspec *s, const struct words *w, struct err *e)
{
    const char *text = *(char *const *)field_at_const(s, w->field);
    if (!text)
        return ST_OK;
    char all[128] = "";
    for (size_t i = 0; i < w->count; i++) {
        if (strcmp(text, w->list[i]) == 0)
            return ST_OK;
        size_t n = strlen(all);
        snprintf(all + n, sizeof all - n, "%s%s", i == 0 ? "" : i + 1 == w->count ? " or " : ", ", w->list[i]);
    }
    const char *near = suggest(text, w->list, w->count);
    const char *path = field_rows[w->field].path, *flag = field_rows[w->field].flag;
    if (near)
        return err_set(e, ST_USER, "unknown %s '%.80s' (did you mean '%s'); --%s takes %s", path, text, near, flag, all);
    return err_set(e, ST_USER, "unknown %s '%.80s'; --%s takes %s", path, text, flag, all);
}

static enum status check_range(const struct jobspec *s, enum field f, uint64_t least, uint64_t most, struct err *e)
{
    uint64_t n = *(const uint64_t *)field_at_const(s, f);
    if (n >= least && n <= most)
        return ST_OK;
    if (field_rows[f].kind == KIND_DURATION)
        return err_set(e, ST_USER, "--%s (%s) is between %" PRIu64 " ms and %" PRIu64 " s, not %" PRIu64 " ms", field_rows[f].flag, field_rows[f].path, least,
                       most / 1000, n);
    return err_set(e, ST_USER, "--%s (%s) is between %" PRIu64 " and %" PRIu64 ", not %" PRIu64, field_rows[f].flag, field_rows[f].path, least, most, n);
}

static enum status check_there(const struct jobspec *s, struct err *e)
{
    if (s->steps.count)
        TRY(steps_check(s, e));
    else if (!s->model)
        return err_set(e, ST_USER, "no model is named: give --model DIR, or 'model' in a job file");
    if (!s->inputs.count)
        return err_set(e, ST_USER, "no input is named: give --input PATH, or 'input' in a job file");
    if (!s->output)
        return err_set(e, ST_USER, "no output is named: give --output PATH, or 'output' in a job file");
    return ST_OK;
}

static enum status check_paths(const struct jobspec *s, struct err *e)
{
    if (s->model && *s->model != '/')
        return err_set(e, ST_USER, "the model's path '%s' is not absolute", s->model);
    if (*s->output != '/')
        return err_set(e, ST_USER, "the output's path '%s' is not absolute", s->output);
    for (size_t i = 0; i < s->inputs.count; i++) {
        if (*s->inputs.items[i] != '/' && strcmp(s->inputs.items[i], "-") != 0)
            return err_set(e, ST_USER, "the input's path '%s' is not absolute", s->inputs.items[i]);
        if (strcmp(s->inputs.items[i], "-") == 0 && s->inputs.count > 1)
            return err_set(e, ST_USER, "standard input (-) cannot stand beside other inputs: save it to a file first");
    }
    return ST_OK;
}

static enum status check_name(const struct jobspec *s, struct err *e)
{
    if (s->name && strlen(s->name) > 200)
        return err_set(e, ST_USER, "the job's name is longer than 200 bytes");
    for (const char *p = s->name; p && *p; p++)
        if ((unsigned char)*p < ' ' || *p == 127)
            return err_set(e, ST_USER, "the job's name holds a control character");
    for (size_t i = 0; i < s->keep.count; i++)
        for (size_t j = 0; j < i; j++)
            if (strcmp(s->keep.items[i], s->keep.items[j]) == 0)
                return err_set(e, ST_USER, "--keep names '%s' twice", s->keep.items[i]);
    return ST_OK;
}

enum status jobspec_check(const struct jobspec *s, struct err *e)
{
    static const char *const precisions[] = {"auto", "f32", "bf16", "int8"}, *const tasks[] = {"auto", "embed", "classify", "token-classify", "fill-mask", "outputs"},
                             *const formats[] = {"auto", "jsonl", "csv", "tsv", "lines", "images", "npy"},
                             *const on_longs[] = {"truncate", "error"}, *const outputs[] = {"jsonl", "npy"}, *const floats[] = {"array", "base64"};
    static const struct words words[] = {{FIELD_precision, precisions, 4}, {FIELD_task, tasks, 6}, {FIELD_format, formats, 7}, {FIELD_on_long, on_longs, 2},
                                         {FIELD_output_format, outputs, 2}, {FIELD_floats, floats, 2}};
    const uint64_t day_ms = 86400000;
    TRY(check_there(s, e));
    TRY(check_paths(s, e));
    TRY(check_name(s, e));
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        TRY(check_word(s, &words[i], e));
    TRY(check_range(s, FIELD_top_k, 1, 1000, e));
    TRY(check_range(s, FIELD_max_record_bytes, 1, 1u << 30, e));
    TRY(check_range(s, FIELD_part_bytes, 1, UINT64_C(1) << 50, e));
    TRY(check_range(s, FIELD_weight, 1, 1000, e));
    TRY(check_range(s, FIELD_workers_min, 0, 1000000, e));
    TRY(check_range(s, FIELD_workers_max, 0, 1000000, e));
    TRY(check_range(s, FIELD_stages, 0, GANG_MOST, e));
    TRY(check_range(s, FIELD_lease_target, 10, day_ms, e));
    TRY(check_range(s, FIELD_commit_every, 10, day_ms, e));
    TRY(check_range(s, FIELD_stall_timeout, 100, 7 * day_ms, e));
    TRY(check_range(s, FIELD_micro_batch, 1, 65536, e));
    TRY(check_range(s, FIELD_micro_batch_tokens, 1, 1u << 24, e));
    if (s->priority < INT32_MIN || s->priority > INT32_MAX)
        return err_set(e, ST_USER, "--priority is between %d and %d", INT32_MIN, INT32_MAX);
    int64_t at;
    if (s->deadline && when_parse(s->deadline, clock_wall_ms(), &at))
        return err_set(e, ST_USER, "--%s (%s) takes %s, not '%.80s'", field_rows[FIELD_deadline].flag, field_rows[FIELD_deadline].path, WHEN_WORDS, s->deadline);
    if (s->workers_preemptible.count != UINT64_MAX)
        return err_set(e, ST_USER, "--%s (%s) is a share of the workers such as 90%%, not %" PRIu64, field_rows[FIELD_workers_preemptible].flag,
                       field_rows[FIELD_workers_preemptible].path, s->workers_preemptible.count);
    if (s->workers_max && s->workers_min > s->workers_max)
        return err_set(e, ST_USER, "--min-workers %" PRIu64 " is more than --max-workers %" PRIu64, s->workers_min, s->workers_max);
    return ST_OK;
}

enum status jobspec_check_task(const struct jobspec *s, int npy, struct err *e)
{
    int embed = strcmp(s->task, "embed") == 0, classify = strcmp(s->task, "classify") == 0;
    if (strcmp(s->task, "auto") == 0)
        return ST_OK;
    if (npy && strcmp(s->task, "outputs") == 0)
        return err_set(e, ST_USER, "an .npy file holds one row of numbers for each record, and 'outputs' gives arrays of any sizes; "
                                   "let --output be a directory or end in .jsonl, or choose --task embed");
    if (npy && !embed && !classify)
        return err_set(e, ST_USER, "an .npy file holds one row of numbers for each record, and '%s' gives as many as a text has tokens or masks; "
                                   "let --output be a directory or end in .jsonl", s->task);
    if (s->pair_field && !classify)
        return err_set(e, ST_USER, "--pair-field is for --task classify; this model is to '%s', which takes one text", s->task);
    if (!embed && strcmp(s->floats, "base64") == 0)
        return err_set(e, ST_USER, "--floats base64 is for embeddings; '%s' gives none", s->task);
    return ST_OK;
}
