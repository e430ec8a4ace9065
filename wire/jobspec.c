/* Everything here is made from JOBSPEC_MAP: the rows of `table` say where a field lies in the struct, in YAML, in JSON and among the flags. */
#include "wire/jobspec.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/mem.h"
#include "base/path.h"
#include "base/suggest.h"
#include "base/units.h"

#define LARGEST_FILE (1u << 20) /* bytes of YAML */
#define DEPTH 2                 /* "input.glob" */

enum kind { KIND_TEXT, KIND_LIST, KIND_NUMBER, KIND_SIGNED, KIND_SIZE, KIND_DURATION, KIND_LIMIT };

static const char *const kind_words[] = {
    [KIND_TEXT] = "a text",
    [KIND_LIST] = "a text or a list of texts",
    [KIND_NUMBER] = "a whole number",
    [KIND_SIGNED] = "a whole number",
    [KIND_SIZE] = "a size such as 64MB or 1.5GiB",
    [KIND_DURATION] = "a duration such as 30s or 5min",
    [KIND_LIMIT] = "a number or a share such as 1%",
};

enum field {
#define X(kind, member, path, flag, arg, identity, help) FIELD_##member,
    JOBSPEC_MAP(X)
#undef X
    FIELD_COUNT
};

struct row {
    enum kind kind;
    size_t offset;
    const char *path, *flag, *arg;
    int identity;
    const char *help;
};

static const struct row table[FIELD_COUNT] = {
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

static void *at(struct jobspec *s, enum field f)
{
    return (char *)s + table[f].offset;
}

static const void *at_const(const struct jobspec *s, enum field f)
{
    return (const char *)s + table[f].offset;
}

static int is_path(enum field f)
{
    return f == FIELD_model || f == FIELD_inputs || f == FIELD_output;
}

/* Values -------------------------------------------------------------------------------------------------------------------------- */

static enum status set_text(char **to, const char *text, struct err *e)
{
    char *copy = mem_strdup(text);
    if (!copy)
        return err_nomem(e, "a job");
    mem_free(*to);
    *to = copy;
    return ST_OK;
}

static void texts_release(struct texts *t)
{
    for (size_t i = 0; i < t->count; i++)
        mem_free(t->items[i]);
    mem_free(t->items);
    *t = (struct texts){0};
}

static enum status texts_add(struct texts *t, const char *text, struct err *e)
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

/* "1000", "1%", "0.25%". 0, or -1. */
static int parse_limit(const char *text, struct limit *out)
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

static char *limit_words(const struct limit *l, char *out, size_t size)
{
    if (l->ppm != UINT32_MAX)
        snprintf(out, size, "%g%%", l->ppm / 10000.0);
    else
        snprintf(out, size, "%" PRIu64, l->count);
    return out;
}

/* A scalar as text; the kinds that are no text. 0, or -1 when it is not what the kind wants. */
static int set_scalar(struct jobspec *s, enum field f, const char *text)
{
    char *end;
    errno = 0;
    switch (table[f].kind) {
    case KIND_NUMBER: {
        unsigned long long n = strtoull(text, &end, 10);
        if (!isdigit((unsigned char)*text) || *end || errno || n > INT64_MAX)
            return -1;
        *(uint64_t *)at(s, f) = n;
        return 0;
    }
    case KIND_SIGNED: {
        long long n = strtoll(text, &end, 10);
        if (!(isdigit((unsigned char)*text) || ((*text == '-' || *text == '+') && isdigit((unsigned char)text[1]))) || *end || errno)
            return -1;
        *(int64_t *)at(s, f) = n;
        return 0;
    }
    case KIND_SIZE: {
        uint64_t n;
        if (units_parse_bytes(text, &n) || n > INT64_MAX)
            return -1;
        *(uint64_t *)at(s, f) = n;
        return 0;
    }
    case KIND_DURATION: {
        uint64_t n;
        if (units_parse_duration(text, &n) || n > INT64_MAX)
            return -1;
        *(uint64_t *)at(s, f) = n;
        return 0;
    }
    case KIND_LIMIT:
        return parse_limit(text, at(s, f));
    case KIND_TEXT:
    case KIND_LIST:
        break;
    }
    BUG("'%s' is no scalar", table[f].path);
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

/* TEXT replaces, LIST appends. */
static enum status put_text(struct jobspec *s, enum field f, const char *text, const char *base, int directory, struct err *e)
{
    char *value = kept(f, text, base, directory);
    if (!value)
        return err_nomem(e, "a job");
    enum status st = table[f].kind == KIND_LIST ? texts_add(at(s, f), value, e) : set_text(at(s, f), value, e);
    mem_free(value);
    return st;
}

enum status jobspec_init(struct jobspec *s, struct err *e)
{
    *s = (struct jobspec){
        .max_record_bytes = 16u << 20,
        .part_bytes = 256u << 20,
        .max_errors = {UINT64_MAX, UINT32_MAX},
        .weight = 100,
        .lease_target = 30000,
        .commit_every = 3000,
        .stall_timeout = 120000,
        .micro_batch = 64,
        .micro_batch_tokens = 1024,
    };
    if (set_text(&s->precision, "auto", e) || set_text(&s->on_long, "truncate", e) || set_text(&s->floats, "array", e)) {
        jobspec_release(s);
        return ST_NOMEM;
    }
    return ST_OK;
}

void jobspec_release(struct jobspec *s)
{
    for (enum field f = 0; f < FIELD_COUNT; f++)
        if (table[f].kind == KIND_TEXT)
            mem_free(*(char **)at(s, f));
        else if (table[f].kind == KIND_LIST)
            texts_release(at(s, f));
    *s = (struct jobspec){0};
}

/* Flags --------------------------------------------------------------------------------------------------------------------------- */

struct jobspec_flags {
    struct opt opts[FIELD_COUNT];
    size_t count;
    union {
        const char *text;
        struct opt_list list;
        uint64_t number;
        int64_t sign;
    } values[FIELD_COUNT];
};

/* What a number holds when its flag was not given: no value that the table accepts. */
#define ABSENT UINT64_MAX
#define ABSENT_SIGNED INT64_MIN

static const char *group_of(const char *path)
{
    static const struct {
        const char *prefix, *group;
    } groups[] = {{"input.", "Input"}, {"output.", "Output"}, {"workers.", "Workers"}, {"tuning.", "Tuning"}};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (strncmp(path, groups[i].prefix, strlen(groups[i].prefix)) == 0)
            return groups[i].group;
    return "Job";
}

enum status jobspec_flags_new(struct jobspec_flags **out, struct err *e)
{
    static const enum opt_type types[] = {
        [KIND_TEXT] = OPT_TEXT, [KIND_LIST] = OPT_LIST,         [KIND_NUMBER] = OPT_NUMBER, [KIND_SIGNED] = OPT_SIGNED,
        [KIND_SIZE] = OPT_SIZE, [KIND_DURATION] = OPT_DURATION, [KIND_LIMIT] = OPT_TEXT,
    };
    struct jobspec_flags *flags = mem_zalloc(sizeof *flags);
    if (!flags)
        return err_nomem(e, "options");
    for (enum field f = 0; f < FIELD_COUNT; f++) {
        const struct row *r = &table[f];
        if (!*r->flag)
            continue;
        if (r->kind == KIND_NUMBER || r->kind == KIND_SIZE || r->kind == KIND_DURATION)
            flags->values[f].number = ABSENT;
        else if (r->kind == KIND_SIGNED)
            flags->values[f].sign = ABSENT_SIGNED;
        flags->opts[flags->count++] = (struct opt){
            .name = r->flag,
            .type = types[r->kind],
            .value = &flags->values[f],
            .arg = r->arg,
            .help = r->help,
            .group = group_of(r->path),
            .split = r->kind == KIND_LIST && strchr(r->arg, ',') != NULL,
        };
    }
    *out = flags;
    return ST_OK;
}

void jobspec_flags_free(struct jobspec_flags *flags)
{
    if (!flags)
        return;
    for (enum field f = 0; f < FIELD_COUNT; f++)
        if (table[f].kind == KIND_LIST)
            opt_list_release(&flags->values[f].list);
    mem_free(flags);
}

const struct opt *jobspec_flags_opts(struct jobspec_flags *flags, size_t *count)
{
    *count = flags->count;
    return flags->opts;
}

static enum status flag_bad(enum field f, const char *text, struct err *e)
{
    return err_set(e, ST_USER, "--%s takes %s, not '%s'", table[f].flag, kind_words[table[f].kind], text);
}

enum status jobspec_from_flags(struct jobspec *s, struct jobspec_flags *flags, struct err *e)
{
    for (enum field f = 0; f < FIELD_COUNT; f++) {
        const struct row *r = &table[f];
        if (!*r->flag)
            continue;
        char number[24];
        switch (r->kind) {
        case KIND_TEXT:
            if (flags->values[f].text && !*flags->values[f].text)
                return err_set(e, ST_USER, "--%s is empty; leave it out for the default", r->flag);
            if (flags->values[f].text)
                TRY(put_text(s, f, flags->values[f].text, NULL, 0, e));
            break;
        case KIND_LIST:
            if (flags->values[f].list.count)
                texts_release(at(s, f));
            for (size_t i = 0; i < flags->values[f].list.count; i++) {
                if (!*flags->values[f].list.items[i])
                    return err_set(e, ST_USER, "--%s is empty", r->flag);
                TRY(put_text(s, f, flags->values[f].list.items[i], NULL, 0, e));
            }
            break;
        case KIND_NUMBER:
        case KIND_SIZE:
        case KIND_DURATION:
            if (flags->values[f].number == ABSENT)
                break;
            snprintf(number, sizeof number, "%" PRIu64, flags->values[f].number);
            if (flags->values[f].number > INT64_MAX)
                return flag_bad(f, number, e);
            *(uint64_t *)at(s, f) = flags->values[f].number;
            break;
        case KIND_SIGNED:
            if (flags->values[f].sign != ABSENT_SIGNED)
                *(int64_t *)at(s, f) = flags->values[f].sign;
            break;
        case KIND_LIMIT:
            if (flags->values[f].text && parse_limit(flags->values[f].text, at(s, f)))
                return flag_bad(f, flags->values[f].text, e);
            break;
        }
    }
    return ST_OK;
}

/* Names of keys ------------------------------------------------------------------------------------------------------------------- */

static const char *last_word(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

/* Is `path` the head of others: "input"? */
static int is_group(const char *path)
{
    size_t n = strlen(path);
    for (enum field f = 0; f < FIELD_COUNT; f++)
        if (strncmp(table[f].path, path, n) == 0 && table[f].path[n] == '.')
            return 1;
    return 0;
}

static enum field find(const char *path, int with_aliases)
{
    for (enum field f = 0; f < FIELD_COUNT; f++)
        if (strcmp(table[f].path, path) == 0)
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
        if (strcmp(last_word(table[f].path), key) == 0 || strcmp(table[f].flag, key) == 0 || strcmp(table[f].path, key) == 0)
            return table[f].path;
    /* a word like those that may stand here */
    const char *here[2 * FIELD_COUNT], *path;
    char heads[FIELD_COUNT][32];
    size_t count = 0, n = strlen(group), head_count = 0;
    for (size_t i = 0; i < FIELD_COUNT + (with_aliases ? sizeof aliases / sizeof *aliases : 0); i++) {
        path = i < FIELD_COUNT ? table[i].path : aliases[i - FIELD_COUNT].path;
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
        words[f] = last_word(table[f].path);
    near = suggest(key, words, FIELD_COUNT);
    for (enum field f = 0; near && f < FIELD_COUNT; f++)
        if (words[f] == near)
            return table[f].path;
    return NULL;
}

static enum status unknown(const char *where, const char *what, const char *group, const char *key, int with_aliases, struct err *e)
{
    char word[64];
    enum field whole = strchr(key, '.') ? find(key, with_aliases) : FIELD_COUNT;
    if (whole != FIELD_COUNT)
        return err_set(e, ST_USER, "%sunknown %s '%s': write it as '%.*s: {%s: ...}'", where, what, key, (int)strcspn(key, "."), key, last_word(key));
    const char *near = meant(group, key, with_aliases, word, sizeof word);
    const char *in = *group ? " in '" : "", *close = *group ? "'" : "";
    if (near)
        return err_set(e, ST_USER, "%sunknown %s '%.80s'%s%s%s (did you mean '%s')", where, what, key, in, group, close, near);
    return err_set(e, ST_USER, "%sunknown %s '%.80s'%s%s%s", where, what, key, in, group, close);
}

/* YAML ---------------------------------------------------------------------------------------------------------------------------- */

struct yaml {
    const char *file;  /* as typed, for messages */
    char *folder;
    yaml_document_t doc;
    struct jobspec *s;
    struct err *e;
    uint8_t set[FIELD_COUNT];
};

static const char *place(const struct yaml *y, const yaml_node_t *n, char *out, size_t size)
{
    snprintf(out, size, "%.200s:%zu: ", y->file, n->start_mark.line + 1);
    return out;
}

static const char *node_words(const yaml_node_t *n, char *out, size_t size)
{
    if (n->type == YAML_SCALAR_NODE)
        snprintf(out, size, "'%.80s'", (const char *)n->data.scalar.value);
    else
        snprintf(out, size, "%s", n->type == YAML_SEQUENCE_NODE ? "a list" : "a mapping");
    return out;
}

static int scalar_is_plain(const yaml_node_t *n)
{
    return n->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

static int scalar_is_null(const yaml_node_t *n)
{
    const char *text = (const char *)n->data.scalar.value;
    return scalar_is_plain(n) && (strcmp(text, "null") == 0 || strcmp(text, "~") == 0);
}

static enum status wrong_type(struct yaml *y, const char *path, enum kind kind, const yaml_node_t *n)
{
    char where[256], found[96];
    return err_set(y->e, ST_USER, "%s'%s' wants %s, found %s", place(y, n, where, sizeof where), path, kind_words[kind],
                   node_words(n, found, sizeof found));
}

/* A text of the file: no NUL, not empty. */
static enum status yaml_text(struct yaml *y, const char *path, enum field f, const yaml_node_t *n)
{
    char where[256];
    if (n->type != YAML_SCALAR_NODE)
        return wrong_type(y, path, table[f].kind, n);
    const char *text = (const char *)n->data.scalar.value;
    if (!n->data.scalar.length)
        return err_set(y->e, ST_USER, "%s'%s' has no value", place(y, n, where, sizeof where), path);
    if (memchr(text, 0, n->data.scalar.length))
        return err_set(y->e, ST_USER, "%s'%s' holds a NUL character", place(y, n, where, sizeof where), path);
    return put_text(y->s, f, text, y->folder, strcmp(path, "output.dir") == 0, y->e);
}

static enum status yaml_value(struct yaml *y, const char *path, enum field f, const yaml_node_t *n)
{
    char where[256];
    if (y->set[f]++)
        return err_set(y->e, ST_USER, "%s'%s' says '%s' a second time; keep one of them", place(y, n, where, sizeof where), path, table[f].path);
    if (n->type == YAML_SCALAR_NODE && scalar_is_null(n))
        return ST_OK;
    switch (table[f].kind) {
    case KIND_TEXT:
        return yaml_text(y, path, f, n);
    case KIND_LIST:
        texts_release(at(y->s, f));
        if (n->type == YAML_SCALAR_NODE && strchr(table[f].arg, ',') && strchr((const char *)n->data.scalar.value, ','))
            return err_set(y->e, ST_USER, "%s'%s' wants a list: [%.80s]", place(y, n, where, sizeof where), path,
                           (const char *)n->data.scalar.value);
        if (n->type != YAML_SEQUENCE_NODE)
            return yaml_text(y, path, f, n);
        for (yaml_node_item_t *i = n->data.sequence.items.start; i < n->data.sequence.items.top; i++)
            TRY(yaml_text(y, path, f, yaml_document_get_node(&y->doc, *i)));
        return ST_OK;
    case KIND_NUMBER:
    case KIND_SIGNED:
    case KIND_SIZE:
    case KIND_DURATION:
    case KIND_LIMIT:
        if (n->type == YAML_SCALAR_NODE && !n->data.scalar.length)
            return err_set(y->e, ST_USER, "%s'%s' has no value", place(y, n, where, sizeof where), path);
        if (n->type != YAML_SCALAR_NODE || memchr(n->data.scalar.value, 0, n->data.scalar.length) ||
            set_scalar(y->s, f, (const char *)n->data.scalar.value))
            return wrong_type(y, path, table[f].kind, n);
        return ST_OK;
    }
    BUG("'%s' has no kind", path);
}

static enum status yaml_mapping(struct yaml *y, const char *group, int depth, const yaml_node_t *n)
{
    char where[256];
    yaml_node_pair_t *first = n->data.mapping.pairs.start, *top = n->data.mapping.pairs.top;
    for (yaml_node_pair_t *p = first; p < top; p++) {
        const yaml_node_t *key = yaml_document_get_node(&y->doc, p->key), *value = yaml_document_get_node(&y->doc, p->value);
        if (key->type != YAML_SCALAR_NODE || memchr(key->data.scalar.value, 0, key->data.scalar.length))
            return err_set(y->e, ST_USER, "%sa key has to be a word", place(y, key, where, sizeof where));
        const char *word = (const char *)key->data.scalar.value;
        for (yaml_node_pair_t *q = first; q < p; q++) {
            const yaml_node_t *other = yaml_document_get_node(&y->doc, q->key);
            if (strcmp((const char *)other->data.scalar.value, word) == 0)
                return err_set(y->e, ST_USER, "%s'%.80s' stands here a second time, the first is in line %zu", place(y, key, where, sizeof where),
                               word, other->start_mark.line + 1);
        }
        char path[96];
        int len = snprintf(path, sizeof path, "%s%s%s", group, *group ? "." : "", word);
        int known = len > 0 && (size_t)len < sizeof path && !strchr(word, '.');
        if (known && is_group(path) && value->type == YAML_MAPPING_NODE && depth < DEPTH) {
            TRY(yaml_mapping(y, path, depth + 1, value));
            continue;
        }
        enum field f = known ? find(path, 1) : FIELD_COUNT;
        if (f != FIELD_COUNT) {
            TRY(yaml_value(y, path, f, value));
            continue;
        }
        if (known && is_group(path)) {
            char found[96];
            return err_set(y->e, ST_USER, "%s'%s' wants a mapping, found %s", place(y, value, where, sizeof where), path,
                           node_words(value, found, sizeof found));
        }
        return unknown(place(y, key, where, sizeof where), "key", group, word, 1, y->e);
    }
    return ST_OK;
}

static enum status yaml_broken(const struct yaml *y, const yaml_parser_t *p)
{
    if (p->error == YAML_MEMORY_ERROR)
        return err_nomem(y->e, y->file);
    if (p->error == YAML_READER_ERROR)
        return err_set(y->e, ST_USER, "'%s' is no text in UTF-8, see byte %zu: %s", y->file, p->problem_offset, p->problem);
    return err_set(y->e, ST_USER, "%s:%zu: not valid YAML: %s%s%s", y->file, p->problem_mark.line + 1, p->problem ? p->problem : "cannot be read",
                   p->context ? " " : "", p->context ? p->context : "");
}

/* The loader of libyaml gives "found duplicate anchor" and the like as errors of its own; aliases come resolved. */
static enum status yaml_documents(struct yaml *y, yaml_parser_t *p)
{
    if (!yaml_parser_load(p, &y->doc))
        return yaml_broken(y, p);
    enum status st;
    const yaml_node_t *root = yaml_document_get_root_node(&y->doc);
    if (!root)
        st = err_set(y->e, ST_USER, "'%s' is empty; see 'ebb submit --help' for what a job file holds", y->file);
    else if (root->type != YAML_MAPPING_NODE)
        st = err_set(y->e, ST_USER, "%s:%zu: a job is a mapping of keys to values, such as 'model: DIR'", y->file, root->start_mark.line + 1);
    else
        st = yaml_mapping(y, "", 1, root);
    yaml_document_delete(&y->doc);
    if (st != ST_OK)
        return st;
    yaml_document_t next;
    if (!yaml_parser_load(p, &next))
        return yaml_broken(y, p);
    root = yaml_document_get_root_node(&next);
    if (root)
        st = err_set(y->e, ST_USER, "%s:%zu: a second document: one file holds one job", y->file, root->start_mark.line + 1);
    yaml_document_delete(&next);
    return st;
}

enum status jobspec_from_yaml(struct jobspec *s, const char *file, struct err *e)
{
    struct yaml y = {.file = file, .s = s, .e = e};
    struct buf text = {0};
    yaml_parser_t parser;
    enum status st = path_read(file, LARGEST_FILE, &text, e);
    if (st != ST_OK)
        goto out;
    y.folder = path_absolute(file);
    if (!y.folder) {
        st = err_nomem(e, file);
        goto out;
    }
    char *slash = strrchr(y.folder, '/');
    slash[slash == y.folder] = 0;
    if (!yaml_parser_initialize(&parser)) {
        st = err_nomem(e, file);
        goto out;
    }
    yaml_parser_set_input_string(&parser, (const unsigned char *)text.data, text.len);
    st = yaml_documents(&y, &parser);
    yaml_parser_delete(&parser);
out:
    mem_free(y.folder);
    buf_release(&text);
    return st;
}

/* JSON ---------------------------------------------------------------------------------------------------------------------------- */

static json_t *json_of(const struct jobspec *s, enum field f)
{
    const void *p = at_const(s, f);
    char words[32];
    switch (table[f].kind) {
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
    case KIND_LIMIT: {
        const struct limit *l = p;
        if (l->ppm != UINT32_MAX)
            return json_string(limit_words(l, words, sizeof words));
        return l->count == UINT64_MAX ? json_null() : json_integer((json_int_t)l->count);
    }
    }
    BUG("'%s' has no kind", table[f].path);
}

json_t *jobspec_to_json(const struct jobspec *s)
{
    json_t *root = json_object();
    for (enum field f = 0; root && f < FIELD_COUNT; f++) {
        const char *path = table[f].path, *dot = strchr(path, '.');
        json_t *in = root;
        if (dot) {
            char group[32];
            snprintf(group, sizeof group, "%.*s", (int)(dot - path), path);
            in = json_object_get(root, group);
            if (!in && json_object_set_new(root, group, json_object()) == 0)
                in = json_object_get(root, group);
        }
        if (!in || json_object_set_new(in, last_word(path), json_of(s, f))) {
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
    switch (table[f].kind) {
    case KIND_NUMBER:
    case KIND_SIZE:
        if (!json_is_integer(v) || n < 0)
            return -1;
        *(uint64_t *)at(s, f) = (uint64_t)n;
        return 0;
    case KIND_SIGNED:
        if (!json_is_integer(v))
            return -1;
        *(int64_t *)at(s, f) = n;
        return 0;
    case KIND_DURATION: {
        double seconds = json_number_value(v);
        if (!json_is_number(v) || !(seconds >= 0 && seconds < 9e15))
            return -1;
        *(uint64_t *)at(s, f) = json_is_integer(v) ? (uint64_t)n * 1000 : (uint64_t)llround(seconds * 1000);
        return 0;
    }
    case KIND_LIMIT:
        if (json_is_integer(v) && n >= 0) {
            *(struct limit *)at(s, f) = (struct limit){.count = (uint64_t)n, .ppm = UINT32_MAX};
            return 0;
        }
        return json_is_string(v) ? parse_limit(json_string_value(v), at(s, f)) : -1;
    case KIND_TEXT:
    case KIND_LIST:
        break;
    }
    BUG("'%s' is no scalar", table[f].path);
}

static enum status json_value(struct jobspec *s, enum field f, json_t *v, struct err *e)
{
    int fits = 1;
    if (json_is_null(v))
        return ST_OK;
    if (table[f].kind == KIND_TEXT) {
        fits = json_is_string(v) && json_string_length(v) > 0;
        if (fits)
            TRY(set_text(at(s, f), json_string_value(v), e));
    } else if (table[f].kind == KIND_LIST) {
        json_t *item;
        size_t i;
        texts_release(at(s, f));
        fits = json_is_array(v);
        json_array_foreach(v, i, item)
        {
            if (!json_is_string(item) || json_string_length(item) == 0) {
                fits = 0;
                break;
            }
            TRY(texts_add(at(s, f), json_string_value(item), e));
        }
    } else {
        fits = json_scalar(s, f, v) == 0;
    }
    if (!fits)
        return err_set(e, ST_USER, "'%s' of a job wants %s, found %s", table[f].path, kind_words[table[f].kind], json_words(v));
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
        enum field f = known ? find(path, 0) : FIELD_COUNT;
        if (f != FIELD_COUNT)
            TRY(json_value(s, f, v, e));
        else if (known && !*group && is_group(path) && json_is_object(v))
            TRY(json_object_in(s, path, v, e));
        else if (known && !*group && is_group(path))
            return err_set(e, ST_USER, "'%s' of a job wants an object, found %s", path, json_words(v));
        else
            return unknown("", "member", group, key, 0, e);
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

/* Words and ranges ---------------------------------------------------------------------------------------------------------------- */

struct words {
    enum field field;
    const char *const *list;
    size_t count;
};

static enum status check_word(const struct jobspec *s, const struct words *w, struct err *e)
{
    const char *text = *(char *const *)at_const(s, w->field);
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
    const char *path = table[w->field].path, *flag = table[w->field].flag;
    if (near)
        return err_set(e, ST_USER, "unknown %s '%.80s' (did you mean '%s'); --%s takes %s", path, text, near, flag, all);
    return err_set(e, ST_USER, "unknown %s '%.80s'; --%s takes %s", path, text, flag, all);
}

static enum status check_range(const struct jobspec *s, enum field f, uint64_t least, uint64_t most, struct err *e)
{
    uint64_t n = *(const uint64_t *)at_const(s, f);
    if (n >= least && n <= most)
        return ST_OK;
    if (table[f].kind == KIND_DURATION)
        return err_set(e, ST_USER, "--%s (%s) is between %" PRIu64 " ms and %" PRIu64 " s, not %" PRIu64 " ms", table[f].flag, table[f].path, least,
                       most / 1000, n);
    return err_set(e, ST_USER, "--%s (%s) is between %" PRIu64 " and %" PRIu64 ", not %" PRIu64, table[f].flag, table[f].path, least, most, n);
}

static enum status check_there(const struct jobspec *s, struct err *e)
{
    if (!s->model)
        return err_set(e, ST_USER, "no model is named: give --model DIR, or 'model' in a job file");
    if (!s->inputs.count)
        return err_set(e, ST_USER, "no input is named: give --input PATH, or 'input' in a job file");
    if (!s->output)
        return err_set(e, ST_USER, "no output is named: give --output PATH, or 'output' in a job file");
    return ST_OK;
}

static enum status check_paths(const struct jobspec *s, struct err *e)
{
    if (*s->model != '/')
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
    static const char *const precisions[] = {"auto", "f32"}, *const formats[] = {"auto", "jsonl", "csv", "tsv", "lines"},
                             *const on_longs[] = {"truncate", "error"}, *const outputs[] = {"jsonl", "npy"}, *const floats[] = {"array", "base64"};
    static const struct words words[] = {{FIELD_precision, precisions, 2}, {FIELD_format, formats, 5}, {FIELD_on_long, on_longs, 2},
                                         {FIELD_output_format, outputs, 2}, {FIELD_floats, floats, 2}};
    const uint64_t day_ms = 86400000;
    TRY(check_there(s, e));
    TRY(check_paths(s, e));
    TRY(check_name(s, e));
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        TRY(check_word(s, &words[i], e));
    TRY(check_range(s, FIELD_max_record_bytes, 1, 1u << 30, e));
    TRY(check_range(s, FIELD_part_bytes, 1, UINT64_C(1) << 50, e));
    TRY(check_range(s, FIELD_weight, 1, 1000, e));
    TRY(check_range(s, FIELD_workers_min, 0, 1000000, e));
    TRY(check_range(s, FIELD_workers_max, 0, 1000000, e));
    TRY(check_range(s, FIELD_lease_target, 10, day_ms, e));
    TRY(check_range(s, FIELD_commit_every, 10, day_ms, e));
    TRY(check_range(s, FIELD_stall_timeout, 100, 7 * day_ms, e));
    TRY(check_range(s, FIELD_micro_batch, 1, 65536, e));
    TRY(check_range(s, FIELD_micro_batch_tokens, 1, 1u << 24, e));
    if (s->priority < INT32_MIN || s->priority > INT32_MAX)
        return err_set(e, ST_USER, "--priority is between %d and %d", INT32_MIN, INT32_MAX);
    if (s->workers_max && s->workers_min > s->workers_max)
        return err_set(e, ST_USER, "--min-workers %" PRIu64 " is more than --max-workers %" PRIu64, s->workers_min, s->workers_max);
    return ST_OK;
}

/* Identity ------------------------------------------------------------------------------------------------------------------------ */

json_t *jobspec_fingerprint(const struct jobspec *s, const char *format_resolved, const char *model_hex, const char *dataset_hex)
{
    json_t *root = json_object();
    int failed = !root || json_object_set_new(root, "model", json_string(model_hex)) || json_object_set_new(root, "input", json_string(dataset_hex));
    for (enum field f = 0; f < FIELD_COUNT && !failed; f++)
        if (table[f].identity)
            failed = json_object_set_new(root, table[f].path, f == FIELD_format ? json_string(format_resolved) : json_of(s, f));
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
                input_named |= strcmp(key, table[FIELD_format].path) == 0 || strcmp(key, table[FIELD_limit].path) == 0;
            }
        }
    }
    if (input && !input_named) /* format and limit are in the dataset's digest too */
        say(words, size, "the input has changed");
    return count;
}
