#include "wire/settings.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/suggest.h"
#include "base/units.h"

#define MOST_ROWS 128
#define FILE_MAX (1u << 20)

struct reading {
    const struct setting *table;
    size_t count;
    const char *name, *page; /* of the file, of the manual: for messages */
    yaml_document_t document;
};

/* Values --------------------------------------------------------------------------------------------------------------------------- */

void settings_free_list(char **list)
{
    for (char **p = list; p && *p; p++)
        mem_free(*p);
    mem_free(list);
}

int settings_text(struct settings_value *v, void *to)
{
    char **text = to;
    if (!v->text || !*v->text)
        return EINVAL;
    char *copy = mem_strdup(v->text);
    if (!copy)
        return ENOMEM;
    mem_free(*text);
    *text = copy;
    return 0;
}

int settings_folders(struct settings_value *v, void *to)
{
    char ***folders = to;
    if (v->text)
        return EINVAL;
    char **list = mem_array(v->count + 1, sizeof *list);
    if (!list)
        return ENOMEM;
    for (size_t i = 0; i < v->count; i++) {
        char real[PATH_MAX];
        int failed = *v->items[i] != '/' ? EINVAL : !(list[i] = realpath(v->items[i], real) ? mem_strdup(real) : path_absolute(v->items[i])) ? ENOMEM : 0;
        if (failed) {
            v->at = i;
            settings_free_list(list);
            return failed;
        }
    }
    settings_free_list(*folders);
    *folders = list;
    return 0;
}

int settings_list(struct settings_value *v, char ***to, int one, int (*fits)(const char *text))
{
    if (v->text && !one)
        return EINVAL;
    size_t count = v->text ? 1 : v->count;
    char **list = mem_array(count + 1, sizeof *list);
    if (!list)
        return ENOMEM;
    for (size_t i = 0; i < count; i++) {
        const char *text = v->text ? v->text : v->items[i];
        int failed = !fits(text) ? EINVAL : !(list[i] = mem_strdup(text)) ? ENOMEM : 0;
        if (failed) {
            v->at = i;
            settings_free_list(list);
            return failed;
        }
    }
    settings_free_list(*to);
    *to = list;
    return 0;
}

int settings_number(struct settings_value *v, void *to)
{
    char *end;
    if (!v->text || !isdigit((unsigned char)*v->text))
        return EINVAL;
    errno = 0;
    unsigned long long n = strtoull(v->text, &end, 10);
    if (*end || errno || n > UINT32_MAX)
        return EINVAL;
    *(uint64_t *)to = n;
    return 0;
}

int settings_size(struct settings_value *v, void *to)
{
    return v->text && units_parse_bytes(v->text, to) == 0 ? 0 : EINVAL;
}

int settings_duration(struct settings_value *v, void *to)
{
    return v->text && units_parse_duration(v->text, to) == 0 ? 0 : EINVAL;
}

int settings_parse_level(const char *word, void *to)
{
    static const char *const words[] = {"error", "warning", "info", "debug"};
    for (int i = 0; word && i < 4; i++)
        if (strcmp(word, words[i]) == 0) {
            *(enum log_level *)to = (enum log_level)i;
            return 0;
        }
    return EINVAL;
}

int settings_level(struct settings_value *v, void *to)
{
    return settings_parse_level(v->text, to);
}

/* Keys ----------------------------------------------------------------------------------------------------------------------------- */

static const char *scalar(yaml_node_t *n)
{
    return n->type == YAML_SCALAR_NODE ? (const char *)n->data.scalar.value : NULL;
}

static enum status read_value(struct reading *r, const struct setting *s, yaml_node_t *n, struct err *e)
{
    char why[SETTINGS_WHY_MAX] = "";
    struct settings_value v = {.text = scalar(n), .why = why};
    const char **items = NULL;
    int failed = n->type == YAML_MAPPING_NODE ? EINVAL : 0;
    if (n->type == YAML_SEQUENCE_NODE) {
        v.count = (size_t)(n->data.sequence.items.top - n->data.sequence.items.start);
        items = mem_array(v.count + 1, sizeof *items);
        if (!items)
            failed = ENOMEM;
        for (size_t i = 0; i < v.count && !failed; i++)
            if (!(items[i] = scalar(yaml_document_get_node(&r->document, n->data.sequence.items.start[i])))) {
                failed = EINVAL;
                v.at = i;
            }
        v.items = items;
    }
    if (!failed)
        failed = s->take(&v, s->to);
    size_t line = n->start_mark.line + 1;
    if (failed == EINVAL && v.at < v.count)
        line = yaml_document_get_node(&r->document, n->data.sequence.items.start[v.at])->start_mark.line + 1;
    mem_free(items);
    if (failed == ENOMEM)
        return err_nomem(e, "the configuration");
    if (failed)
        return err_set(e, ST_USER, "%s:%zu: '%s' %s%s", r->name, line, s->path, *why ? "" : "wants ", *why ? why : s->wants);
    if (s->line)
        *s->line = n->start_mark.line + 1;
    return ST_OK;
}

/* Is it a key, or (*section) the beginning of some? */
static int known(const struct reading *r, const char *path, const struct setting **row, int *section)
{
    size_t n = strlen(path);
    *row = NULL;
    *section = 0;
    for (size_t i = 0; i < r->count; i++) {
        if (strcmp(r->table[i].path, path) == 0) {
            *row = &r->table[i];
            return 1;
        }
        if (strncmp(r->table[i].path, path, n) == 0 && r->table[i].path[n] == '.')
            *section = 1;
    }
    return *section;
}

static enum status unknown_key(const struct reading *r, const char *prefix, const char *key, size_t line, struct err *e)
{
    char words[MOST_ROWS][48];
    const char *candidates[MOST_ROWS];
    size_t n = 0, skip = strlen(prefix);
    for (size_t i = 0; i < r->count && n < MOST_ROWS; i++) {
        if (strncmp(r->table[i].path, prefix, skip))
            continue;
        snprintf(words[n], sizeof words[n], "%.*s", (int)strcspn(r->table[i].path + skip, "."), r->table[i].path + skip);
        candidates[n] = words[n];
        n++;
    }
    const char *near = suggest(key, candidates, n);
    if (near)
        return err_set(e, ST_USER, "%s:%zu: unknown key '%s' (did you mean '%s')", r->name, line, key, near);
    return err_set(e, ST_USER, "%s:%zu: unknown key '%s'; see %s for those there are", r->name, line, key, r->page);
}

static enum status read_mapping(struct reading *r, const char *prefix, yaml_node_t *map, struct err *e)
{
    for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top; p++) {
        yaml_node_t *key = yaml_document_get_node(&r->document, p->key), *value = yaml_document_get_node(&r->document, p->value);
        size_t line = key->start_mark.line + 1;
        if (!scalar(key))
            return err_set(e, ST_USER, "%s:%zu: a key must be a word", r->name, line);
        char path[96];
        const struct setting *row;
        int section;
        snprintf(path, sizeof path, "%s%s", prefix, scalar(key));
        if (strlen(scalar(key)) > 40 || !known(r, path, &row, &section))
            return unknown_key(r, prefix, scalar(key), line, e);
        for (yaml_node_pair_t *q = map->data.mapping.pairs.start; q < p; q++)
            if (strcmp(scalar(yaml_document_get_node(&r->document, q->key)), scalar(key)) == 0)
                return err_set(e, ST_USER, "%s:%zu: '%s' is there twice", r->name, line, path);
        if (row) {
            TRY(read_value(r, row, value, e));
            continue;
        }
        if (value->type != YAML_MAPPING_NODE)
            return err_set(e, ST_USER, "%s:%zu: '%s' wants keys below it", r->name, line, path);
        strncat(path, ".", sizeof path - strlen(path) - 1);
        TRY(read_mapping(r, path, value, e));
    }
    return ST_OK;
}

enum status settings_read(const char *file, const struct setting *table, size_t count, const char *page, struct err *e)
{
    BUG_IF(count > MOST_ROWS, "a table of %zu settings", count);
    struct buf text = {0};
    enum status st = path_read(file, FILE_MAX, &text, e);
    if (st != ST_OK) {
        buf_release(&text);
        return st == ST_NOT_FOUND ? err_set(e, ST_USER, "there is no configuration file '%s'", file) : st;
    }
    struct reading r = {.table = table, .count = count, .name = path_base(file), .page = page};
    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser)) {
        buf_release(&text);
        return err_nomem(e, "the configuration");
    }
    yaml_parser_set_input_string(&parser, (const unsigned char *)text.data, text.len);
    if (!yaml_parser_load(&parser, &r.document)) {
        st = err_set(e, ST_USER, "%s:%zu: not YAML: %s", r.name, parser.problem_mark.line + 1, parser.problem ? parser.problem : "?");
    } else {
        yaml_node_t *root = yaml_document_get_root_node(&r.document);
        if (root && root->type == YAML_MAPPING_NODE)
            st = read_mapping(&r, "", root, e);
        else if (root)
            st = err_set(e, ST_USER, "%s:%zu: wants lines of the form 'key: value'", r.name, root->start_mark.line + 1);
        yaml_document_delete(&r.document);
    }
    yaml_parser_delete(&parser);
    buf_release(&text);
    return st;
}
