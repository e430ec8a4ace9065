/* Ids and kept fields are cut out of a JSON record as they are written, so that 0.10 stays 0.10 and an id of twenty digits keeps them
   all (storage/json.h). A record that is not JSON is read again by jansson, which says what is wrong and where. */
#include "storage/record.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/suggest.h"
#include "storage/csv.h"
#include "storage/json.h"
#include "storage/utf8.h"

#define NO_COLUMN SIZE_MAX

struct decoder {
    enum format format;
    int no_text;
    char *field, *id;          /* NULL: by default */
    char *pair;                /* NULL: none */
    char **keep;
    size_t keep_count;
    struct buf *keep_names;    /* `,"name":` of each */
    /* CSV */
    char **columns;
    size_t column_count;
    size_t text_at, pair_at, id_at, *keep_at;
    struct csv_row row;
    /* JSONL */
    struct json_members members;
    const struct json_member **found; /* one a kept field; NULL: not there */
    struct buf key, text, pair_text, patched;
    /* results */
    struct buf id_buf, keep_buf;
};

static void fail(struct record *out, enum record_error error, const char *fmt, ...) PRINTF(3, 4);
static void fail(struct record *out, enum record_error error, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(out->message, sizeof out->message, fmt, ap);
    va_end(ap);
    utf8_tidy(out->message);
    out->error = error;
    out->text = out->pair = NULL;
    out->text_len = out->pair_len = 0;
}

/* Appends to a list of names for a message, as long as there is room. */
static void list_name(char *list, size_t size, const char *name, size_t *count)
{
    size_t len = strlen(list);
    const char *between = *count ? ", " : "";
    if (len + strlen(between) + strlen(name) + 8 > size) {
        if (len + 6 <= size && (len < 3 || strcmp(list + len - 3, "...")))
            snprintf(list + len, size - len, "%s...", between);
        return;
    }
    snprintf(list + len, size - len, "%s%s", between, name);
    ++*count;
}

/* Column `name` of the header: its place, or ST_USER. */
static enum status find_column(const struct decoder *d, const char *name, size_t *at, struct err *e)
{
    char list[400] = "";
    size_t listed = 0;
    *at = NO_COLUMN;
    for (size_t i = 0; i < d->column_count; i++) {
        list_name(list, sizeof list, d->columns[i], &listed);
        if (strcmp(d->columns[i], name))
            continue;
        if (*at != NO_COLUMN)
            return err_set(e, ST_USER, "the header has column '%s' twice (%zu and %zu): give them different names", name, *at + 1, i + 1);
        *at = i;
    }
    if (*at != NO_COLUMN)
        return ST_OK;
    utf8_tidy(list);
    const char *near = suggest(name, (const char *const *)d->columns, d->column_count);
    return err_set(e, ST_USER, near ? "no column '%s' (columns: %s; did you mean '%s'?)" : "no column '%s' (columns: %s)", name, list, near);
}

static int has_column(const struct decoder *d, const char *name)
{
    for (size_t i = 0; i < d->column_count; i++)
        if (!strcmp(d->columns[i], name))
            return 1;
    return 0;
}

static enum status bind_columns(struct decoder *d, struct err *e)
{
    if (!d->column_count) /* a source without rows */
        return ST_OK;
    if (d->no_text) {
        d->text_at = NO_COLUMN;
    } else if (d->field) {
        TRY(find_column(d, d->field, &d->text_at, e));
    } else if (has_column(d, "text")) {
        TRY(find_column(d, "text", &d->text_at, e));
    } else if (d->column_count == 1 && strpbrk(d->columns[0], ";\t|")) { /* who takes it for a text takes whole rows for texts */
        char name[200] = "";
        size_t listed = 0;
        list_name(name, sizeof name, d->columns[0], &listed);
        utf8_tidy(name);
        return err_set(e, ST_USER, "the header is one column, '%s': is it divided by something else? columns are divided by ',' (csv) or tabs (tsv); say --field if that is its name",
                       name);
    } else if (d->column_count == 1) {
        d->text_at = 0;
    } else {
        char list[400] = "";
        size_t listed = 0;
        for (size_t i = 0; i < d->column_count; i++)
            list_name(list, sizeof list, d->columns[i], &listed);
        utf8_tidy(list);
        return err_set(e, ST_USER, "no column 'text': say which column holds the text (columns: %s)", list);
    }
    if (d->pair)
        TRY(find_column(d, d->pair, &d->pair_at, e));
    if (d->id)
        TRY(find_column(d, d->id, &d->id_at, e));
    else if (has_column(d, "id"))
        TRY(find_column(d, "id", &d->id_at, e));
    else if (has_column(d, "custom_id"))
        TRY(find_column(d, "custom_id", &d->id_at, e));
    for (size_t i = 0; i < d->keep_count; i++)
        TRY(find_column(d, d->keep[i], &d->keep_at[i], e));
    return ST_OK;
}

/* Copies of the caller's words. 0, or -1 when memory is out; decoder_close frees what there is. */
static int copy_words(struct decoder *d, const struct decoder_opts *o, const struct columns *columns)
{
    if ((o->field && !(d->field = mem_strdup(o->field))) || (o->id && !(d->id = mem_strdup(o->id))) || (o->pair && !(d->pair = mem_strdup(o->pair))))
        return -1;
    d->keep = mem_array(o->keep_count, sizeof *d->keep);
    d->keep_names = mem_array(o->keep_count, sizeof *d->keep_names);
    d->keep_at = mem_array(o->keep_count, sizeof *d->keep_at);
    d->found = mem_array(o->keep_count, sizeof *d->found);
    if (!d->keep || !d->keep_names || !d->keep_at || !d->found)
        return -1;
    for (; d->keep_count < o->keep_count; d->keep_count++) {
        size_t i = d->keep_count;
        const char *name = o->keep[i];
        if (!(d->keep[i] = mem_strdup(name)))
            return -1;
        struct buf *b = &d->keep_names[i];
        if (buf_char(b, ',') || json_add_string(b, name, strlen(name)) || buf_char(b, ':')) {
            d->keep_count++;
            return -1;
        }
    }
    if (!columns)
        return 0;
    d->columns = mem_array(columns->count, sizeof *d->columns);
    if (!d->columns)
        return -1;
    for (; d->column_count < columns->count; d->column_count++)
        if (!(d->columns[d->column_count] = mem_strdup(columns->names[d->column_count])))
            return -1;
    return 0;
}

enum status decoder_open(const struct decoder_opts *o, const struct columns *columns, struct decoder **out, struct err *e)
{
    int csv = o->format == FORMAT_CSV || o->format == FORMAT_TSV;
    BUG_IF(csv != (columns != NULL), "a decoder of %s %s columns", format_name(o->format), columns ? "with" : "without");
    if (o->format == FORMAT_LINES && (o->field || o->pair || o->id || o->keep_count)) {
        const char *name = o->field ? o->field : o->pair ? o->pair : o->id ? o->id : o->keep[0];
        return err_set(e, ST_USER, "plain lines have no fields, so none called '%s': leave field, id and keep out", name);
    }
    if ((o->format == FORMAT_IMAGES || o->format == FORMAT_NPY) && (o->field || o->id || o->keep_count)) {
        const char *name = o->field ? o->field : o->id ? o->id : o->keep[0];
        return err_set(e, ST_USER, "%s have no fields, so none called '%s': leave field, id and keep out",
                       o->format == FORMAT_NPY ? "arrays" : "images", name);
    }
    struct decoder *d = mem_zalloc(sizeof *d);
    if (!d)
        return err_nomem(e, "decoding records");
    d->format = o->format;
    d->no_text = o->no_text;
    d->text_at = d->pair_at = d->id_at = NO_COLUMN;
    enum status status = copy_words(d, o, columns) ? err_nomem(e, "decoding records") : ST_OK;
    if (status == ST_OK && csv)
        status = bind_columns(d, e);
    if (status != ST_OK) {
        decoder_close(d);
        return status;
    }
    *out = d;
    return ST_OK;
}

void decoder_close(struct decoder *d)
{
    if (!d)
        return;
    for (size_t i = 0; i < d->keep_count; i++) {
        mem_free(d->keep[i]);
        buf_release(&d->keep_names[i]);
    }
    for (size_t i = 0; i < d->column_count; i++)
        mem_free(d->columns[i]);
    mem_free(d->keep);
    mem_free(d->keep_names);
    mem_free(d->keep_at);
    mem_free(d->found);
    json_members_release(&d->members);
    buf_release(&d->key);
    buf_release(&d->text);
    buf_release(&d->pair_text);
    mem_free(d->pair);
    mem_free(d->columns);
    mem_free(d->field);
    mem_free(d->id);
    csv_release(&d->row);
    buf_release(&d->patched);
    buf_release(&d->id_buf);
    buf_release(&d->keep_buf);
    mem_free(d);
}

/* JSON --------------------------------------------------------------------------------------------------------------------------- */

static const char *type_name(char first)
{
    switch (first) {
    case '{': return "an object";
    case '[': return "an array";
    case '"': return "a string";
    case 't':
    case 'f': return "a boolean";
    case 'n': return "null";
    default: return "a number";
    }
}

/* jansson refuses numbers that no int64 or double holds, though they are JSON. A copy of the record with a 0 in the place of each long one
   has its faults at the same places. -1: memory is out. */
static int without_long_numbers(struct buf *to, const char *data, size_t len)
{
    to->len = 0;
    if (buf_add(to, data, len))
        return -1;
    int quoted = 0;
    for (char *p = to->data, *end = p + len; p < end;) {
        size_t n = quoted ? 0 : json_number(p, end);
        if (n >= 19 || (n && (memchr(p, 'e', n) || memchr(p, 'E', n)))) {
            memset(p, ' ', n);
            *p = '0';
        }
        quoted ^= *p == '"';
        p += n ? n : *p == '\\' && end - p > 1 ? 2 : 1;
    }
    return 0;
}

/* Of a record that is no object: what is it? */
static enum status no_object(struct decoder *d, const char *data, size_t len, struct record *out, struct err *e)
{
    const size_t flags = JSON_DECODE_ANY | JSON_ALLOW_NUL;
    json_error_t error;
    json_t *root = json_loadb(data, len, flags, &error);
    if (!root && json_error_code(&error) == json_error_numeric_overflow) {
        if (without_long_numbers(&d->patched, data, len))
            return err_nomem(e, "decoding a record");
        root = json_loadb(d->patched.data, len, flags, &error);
    }
    int object = json_is_object(root), known = root != NULL;
    json_decref(root);
    size_t first = 0;
    while (first < len && strchr(" \t\r\n", data[first] ? data[first] : 'x'))
        first++;
    if (known && !object) {
        fail(out, RECORD_NOT_OBJECT, "%s, where an object like {\"text\": ...} should stand", type_name(data[first]));
        return ST_OK;
    }
    const char *nul = known ? memchr(data, 0, len) : NULL;
    if (nul) { /* jansson may pass over one between two values */
        fail(out, RECORD_INVALID_JSON, "not valid JSON: a NUL byte, near column %zu", (size_t)(nul - data) + 1);
        return ST_OK;
    }
    if (known || json_error_code(&error) == json_error_stack_overflow) {
        fail(out, RECORD_INVALID_JSON, "nested too deep: 2048 objects and arrays within each other are the limit");
        return ST_OK;
    }
    if (json_error_code(&error) == json_error_out_of_memory)
        return err_nomem(e, "decoding a record");
    char words[sizeof error.text];
    snprintf(words, sizeof words, "%s", error.text);
    char *near = strstr(words, " near "); /* what stands there is told by the column */
    if (near)
        *near = 0;
    fail(out, RECORD_INVALID_JSON, "not valid JSON: %s, near column %d", words, error.column);
    return ST_OK;
}

/* A member's name, unescaped, in d->key. */
static enum status read_key(struct decoder *d, const struct json_member *m, struct err *e)
{
    d->key.len = 0;
    if (json_unescape(&d->key, m->key, m->key_len) || !buf_cstr(&d->key))
        return err_nomem(e, "decoding a record");
    return ST_OK;
}

static int same(const char *s, size_t len, const char *word)
{
    return word && !strncmp(s, word, len) && strlen(word) == len && !memchr(s, 0, len);
}

struct wanted {
    const struct json_member *field, *text, *content, *pair, *id, *default_id, *custom_id;
};

/* One look at all members. Of names that stand twice the last counts. */
static enum status find_members(struct decoder *d, struct wanted *w, struct err *e)
{
    memset(d->found, 0, d->keep_count * sizeof *d->found);
    for (size_t i = 0; i < d->members.count; i++) {
        const struct json_member *m = &d->members.items[i];
        const char *key = m->key;
        size_t len = m->key_len;
        if (memchr(key, '\\', len)) {
            TRY(read_key(d, m, e));
            key = d->key.data;
            len = d->key.len;
        }
        if (same(key, len, d->field))
            w->field = m;
        if (same(key, len, d->pair))
            w->pair = m;
        if (same(key, len, d->id))
            w->id = m;
        if (same(key, len, "text"))
            w->text = m;
        if (same(key, len, "content"))
            w->content = m;
        if (same(key, len, "id"))
            w->default_id = m;
        if (same(key, len, "custom_id"))
            w->custom_id = m;
        for (size_t k = 0; k < d->keep_count; k++)
            if (same(key, len, d->keep[k]))
                d->found[k] = m;
    }
    return ST_OK;
}

static enum status missing(struct decoder *d, const char *name, struct record *out, struct err *e)
{
    char list[160] = "";
    size_t listed = 0;
    for (size_t i = 0; i < d->members.count && listed == i; i++) {
        TRY(read_key(d, &d->members.items[i], e));
        list_name(list, sizeof list, d->key.data, &listed);
    }
    if (!d->members.count)
        fail(out, RECORD_MISSING_FIELD, "no field '%.60s': the object is empty", name);
    else
        fail(out, RECORD_MISSING_FIELD, "no field '%.60s' (fields: %s)", name, list);
    return ST_OK;
}

/* A string member without its escapes: as it stands in the record where there are none. */
static enum status plain_text(const struct json_member *m, struct buf *space, const char **text, size_t *len, struct err *e)
{
    *text = m->value + 1;
    *len = m->value_len - 2;
    if (!memchr(*text, '\\', *len))
        return ST_OK;
    space->len = 0;
    if (json_unescape(space, *text, *len))
        return err_nomem(e, "the text of a record");
    *text = space->data;
    *len = space->len;
    return ST_OK;
}

static enum status keep_members(struct decoder *d, struct err *e)
{
    for (size_t i = 0; i < d->keep_count; i++)
        if (buf_add(&d->keep_buf, d->keep_names[i].data, d->keep_names[i].len) ||
            (d->found[i] ? buf_add(&d->keep_buf, d->found[i]->value, d->found[i]->value_len) : buf_str(&d->keep_buf, "null")))
            return err_nomem(e, "the fields kept of a record");
    return ST_OK;
}

static enum status run_json(struct decoder *d, const struct raw *raw, struct record *out, struct err *e)
{
    size_t valid = utf8_prefix(raw->data, raw->len);
    if (valid < raw->len) {
        fail(out, RECORD_INVALID_UTF8, "byte %zu of the record is not valid UTF-8", valid + 1);
        return ST_OK;
    }
    switch (json_object_members(&d->members, raw->data, raw->len)) {
    case 0: return no_object(d, raw->data, raw->len, out, e);
    case 1: break;
    default: return err_nomem(e, "decoding a record");
    }
    struct wanted w = {0};
    TRY(find_members(d, &w, e));
    const struct json_member *id = d->id ? w.id : w.default_id ? w.default_id : w.custom_id;
    if (id && (*id->value == '"' || *id->value == '-' || (*id->value >= '0' && *id->value <= '9'))) {
        out->id_json = id->value;
        out->id_len = id->value_len;
    }
    if (d->no_text) {
        out->text = "";
        return keep_members(d, e);
    }
    const struct json_member *text = d->field ? w.field : w.text ? w.text : w.content;
    const char *name = d->field ? d->field : w.text || !w.content ? "text" : "content";
    if (!text && !d->field) { /* the only one that is text */
        size_t texts = 0;
        for (size_t i = 0; i < d->members.count; i++) {
            const struct json_member *m = &d->members.items[i];
            if (*m->value != '"' || m == id || m == w.pair)
                continue;
            texts++;
            text = m;
        }
        if (texts != 1)
            text = NULL;
    }
    if (!text)
        return missing(d, name, out, e);
    if (*text->value != '"') {
        fail(out, RECORD_WRONG_TYPE, "field '%.100s' is %s, not a string", name, type_name(*text->value));
        return ST_OK;
    }
    if (d->pair && !w.pair)
        return missing(d, d->pair, out, e);
    if (d->pair && *w.pair->value != '"') {
        fail(out, RECORD_WRONG_TYPE, "field '%.100s' is %s, not a string", d->pair, type_name(*w.pair->value));
        return ST_OK;
    }
    TRY(keep_members(d, e));
    TRY(plain_text(text, &d->text, &out->text, &out->text_len, e));
    return d->pair ? plain_text(w.pair, &d->pair_text, &out->pair, &out->pair_len, e) : ST_OK;
}

/* CSV ---------------------------------------------------------------------------------------------------------------------------- */

static void wrong_columns(const struct decoder *d, struct record *out)
{
    size_t count = d->row.count, want = d->column_count;
    if (count > want) {
        fail(out, RECORD_WRONG_COLUMNS, "%zu columns where the header has %zu", count, want);
        return;
    }
    char list[160] = "";
    size_t listed = 0;
    for (size_t i = count; i < want; i++) {
        char name[80];
        snprintf(name, sizeof name, "'%.60s'", d->columns[i]);
        utf8_tidy(name);
        list_name(list, sizeof list, name, &listed);
    }
    fail(out, RECORD_WRONG_COLUMNS, "%zu column%s where the header has %zu: %s %s missing", count, count == 1 ? "" : "s", want, list,
         want - count == 1 ? "is" : "are");
}

static enum status run_csv(struct decoder *d, const struct raw *raw, struct record *out, struct err *e)
{
    TRY(csv_parse(&d->row, raw->data, raw->len, d->format == FORMAT_TSV ? '\t' : ',', d->column_count, e));
    const struct csv_field *fields = d->row.fields;
    if (d->id_at < d->row.held && !d->row.bad) {
        const struct csv_field *id = &fields[d->id_at];
        if (id->len && utf8_prefix(id->data, id->len) == id->len) {
            if (json_add_string(&d->id_buf, id->data, id->len))
                return err_nomem(e, "the id of a record");
            out->id_json = d->id_buf.data;
            out->id_len = d->id_buf.len;
        }
    }
    size_t valid = utf8_prefix(raw->data, raw->len);
    if (valid < raw->len) {
        fail(out, RECORD_INVALID_UTF8, "byte %zu of the record is not valid UTF-8", valid + 1);
        return ST_OK;
    }
    if (d->row.bad) {
        fail(out, RECORD_BAD_QUOTES, "text behind the closing quote of column %zu%s%.60s%s; a quote within quotes is written twice",
             d->row.bad, d->row.bad <= d->column_count ? ", '" : "", d->row.bad <= d->column_count ? d->columns[d->row.bad - 1] : "",
             d->row.bad <= d->column_count ? "'" : "");
        return ST_OK;
    }
    if (d->row.count != d->column_count) {
        wrong_columns(d, out);
        return ST_OK;
    }
    for (size_t i = 0; i < d->keep_count; i++) {
        const struct csv_field *f = &fields[d->keep_at[i]];
        if (buf_add(&d->keep_buf, d->keep_names[i].data, d->keep_names[i].len) || json_add_string(&d->keep_buf, f->data, f->len))
            return err_nomem(e, "the columns kept of a record");
    }
    if (d->no_text) {
        out->text = "";
        return ST_OK;
    }
    out->text = fields[d->text_at].data;
    out->text_len = fields[d->text_at].len;
    if (d->pair) {
        out->pair = fields[d->pair_at].data;
        out->pair_len = fields[d->pair_at].len;
    }
    return ST_OK;
}

static void run_lines(const struct raw *raw, struct record *out)
{
    size_t valid = utf8_prefix(raw->data, raw->len);
    if (valid < raw->len) {
        fail(out, RECORD_INVALID_UTF8, "byte %zu of the record is not valid UTF-8", valid + 1);
        return;
    }
    out->text = raw->data;
    out->text_len = raw->len;
}

enum status decoder_run(struct decoder *d, const struct raw *raw, struct record *out, struct err *e)
{
    *out = (struct record){0};
    d->id_buf.len = d->keep_buf.len = 0;
    if (raw->error != RECORD_NONE) {
        fail(out, raw->error, "%s", raw->message);
        return ST_OK;
    }
    switch (d->format) {
    case FORMAT_JSONL:
        TRY(run_json(d, raw, out, e));
        break;
    case FORMAT_CSV:
    case FORMAT_TSV:
        TRY(run_csv(d, raw, out, e));
        break;
    case FORMAT_IMAGES:
    case FORMAT_NPY:
        out->text = raw->data;
        out->text_len = raw->len;
        break;
    default:
        run_lines(raw, out);
        break;
    }
    if (out->error == RECORD_NONE) {
        out->keep_json = d->keep_buf.data ? d->keep_buf.data : "";
        out->keep_len = d->keep_buf.len;
    }
    return ST_OK;
}
