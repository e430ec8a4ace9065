/* A job as a YAML file. The document is loaded whole, so that every message can name its line. */
#include <stdio.h>
#include <string.h>
#include <yaml.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/when.h"
#include "wire/jobspec.h"
#include "wire/jobspec_fields.h"

#define LARGEST_FILE (1u << 20) /* bytes of YAML */
#define DEPTH 2                 /* "input.glob" */

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
        return wrong_type(y, path, field_rows[f].kind, n);
    const char *text = (const char *)n->data.scalar.value;
    if (!n->data.scalar.length)
        return err_set(y->e, ST_USER, "%s'%s' has no value", place(y, n, where, sizeof where), path);
    if (memchr(text, 0, n->data.scalar.length))
        return err_set(y->e, ST_USER, "%s'%s' holds a NUL character", place(y, n, where, sizeof where), path);
    int64_t at;
    if (f == FIELD_deadline && when_parse(text, clock_wall_ms(), &at))
        return err_set(y->e, ST_USER, "%s'%s' wants %s, found '%.80s'", place(y, n, where, sizeof where), path, WHEN_WORDS, text);
    return field_put_text(y->s, f, text, y->folder, strcmp(path, "output.dir") == 0, y->e);
}

/* A list of mappings of words to scalars. */
static enum status yaml_steps(struct yaml *y, const char *path, const yaml_node_t *n)
{
    char where[256];
    struct err why;
    steps_release(&y->s->steps);
    if (n->type != YAML_SEQUENCE_NODE)
        return wrong_type(y, path, KIND_STEPS, n);
    for (yaml_node_item_t *i = n->data.sequence.items.start; i < n->data.sequence.items.top; i++) {
        const yaml_node_t *step = yaml_document_get_node(&y->doc, *i);
        if (step->type != YAML_MAPPING_NODE)
            return wrong_type(y, path, KIND_STEPS, step);
        TRY(steps_add(&y->s->steps, y->e));
        for (yaml_node_pair_t *p = step->data.mapping.pairs.start; p < step->data.mapping.pairs.top; p++) {
            const yaml_node_t *key = yaml_document_get_node(&y->doc, p->key), *value = yaml_document_get_node(&y->doc, p->value);
            if (key->type != YAML_SCALAR_NODE || value->type != YAML_SCALAR_NODE || memchr(key->data.scalar.value, 0, key->data.scalar.length) ||
                memchr(value->data.scalar.value, 0, value->data.scalar.length))
                return err_set(y->e, ST_USER, "%sa step is a mapping of words to single values, such as 'model: DIR'", place(y, key, where, sizeof where));
            if (scalar_is_null(value))
                continue;
            enum status st = steps_put(&y->s->steps, (const char *)key->data.scalar.value, (const char *)value->data.scalar.value, y->folder, &why);
            if (st != ST_OK)
                return st == ST_NOMEM ? err_nomem(y->e, y->file) : err_set(y->e, st, "%s%s", place(y, key, where, sizeof where), why.text);
        }
        enum status st = steps_complete(&y->s->steps, y->folder, &why);
        if (st != ST_OK)
            return st == ST_NOMEM ? err_nomem(y->e, y->file) : err_set(y->e, st, "%s%s", place(y, step, where, sizeof where), why.text);
    }
    return ST_OK;
}

static enum status yaml_value(struct yaml *y, const char *path, enum field f, const yaml_node_t *n)
{
    char where[256];
    if (y->set[f]++)
        return err_set(y->e, ST_USER, "%s'%s' says '%s' a second time; keep one of them", place(y, n, where, sizeof where), path, field_rows[f].path);
    if (n->type == YAML_SCALAR_NODE && scalar_is_null(n))
        return ST_OK;
    switch (field_rows[f].kind) {
    case KIND_TEXT:
        return yaml_text(y, path, f, n);
    case KIND_LIST:
        texts_release(field_at(y->s, f));
        if (n->type == YAML_SCALAR_NODE && strchr(field_rows[f].arg, ',') && strchr((const char *)n->data.scalar.value, ','))
            return err_set(y->e, ST_USER, "%s'%s' wants a list: [%.80s]", place(y, n, where, sizeof where), path,
                           (const char *)n->data.scalar.value);
        if (n->type != YAML_SEQUENCE_NODE)
            return yaml_text(y, path, f, n);
        for (yaml_node_item_t *i = n->data.sequence.items.start; i < n->data.sequence.items.top; i++)
            TRY(yaml_text(y, path, f, yaml_document_get_node(&y->doc, *i)));
        return ST_OK;
    case KIND_STEPS:
        return yaml_steps(y, path, n);
    case KIND_NUMBER:
    case KIND_SIGNED:
    case KIND_SIZE:
    case KIND_DURATION:
    case KIND_LIMIT:
        if (n->type == YAML_SCALAR_NODE && !n->data.scalar.length)
            return err_set(y->e, ST_USER, "%s'%s' has no value", place(y, n, where, sizeof where), path);
        if (n->type != YAML_SCALAR_NODE || memchr(n->data.scalar.value, 0, n->data.scalar.length) ||
            field_set_scalar(y->s, f, (const char *)n->data.scalar.value))
            return wrong_type(y, path, field_rows[f].kind, n);
        if (f == FIELD_limit && !y->s->limit)
            return err_set(y->e, ST_USER, "%s'%s' of 0 asks for no record at all; leave it out to have every record", place(y, n, where, sizeof where), path);
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
        if (known && field_is_group(path) && value->type == YAML_MAPPING_NODE && depth < DEPTH) {
            TRY(yaml_mapping(y, path, depth + 1, value));
            continue;
        }
        enum field f = known ? field_find(path, 1) : FIELD_COUNT;
        if (f != FIELD_COUNT) {
            TRY(yaml_value(y, path, f, value));
            continue;
        }
        if (known && field_is_group(path)) {
            char found[96];
            return err_set(y->e, ST_USER, "%s'%s' wants a mapping, found %s", place(y, value, where, sizeof where), path,
                           node_words(value, found, sizeof found));
        }
        return field_unknown(place(y, key, where, sizeof where), "key", group, word, 1, y->e);
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
