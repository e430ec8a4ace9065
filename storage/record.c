/* JSON is checked and its text unescaped by jansson; ids and kept fields are then cut out of the record as they are written, so
   that 0.10 stays 0.10 and an id of twenty digits keeps them all. */
#include "storage/record.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/suggest.h"
#include "storage/csv.h"
#include "storage/utf8.h"

#define NO_COLUMN SIZE_MAX

struct decoder {
    enum format format;
    char *field, *id;          /* NULL: by default */
    char **keep;
    size_t keep_count;
    struct buf *keep_names;    /* `,"name":` of each */
    /* CSV */
    char **columns;
    size_t column_count;
    size_t text_at, id_at, *keep_at;
    struct csv_row row;
    /* JSONL */
    json_t *root;
    struct slice *found;       /* one a kept field: where its value stands in the record */
    struct buf patched;
    /* results */
    struct buf id_buf, keep_buf;
};

struct slice {
    const char *data;          /* NULL: not there */
    size_t len;
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
    out->text = NULL;
    out->text_len = 0;
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

/* s as a JSON string, with its quotes. */
static int add_json_string(struct buf *b, const char *s, size_t len)
{
    static const char hex[] = "0123456789abcdef";
    if (buf_reserve(b, len + 2) || buf_char(b, '"'))
        return -1;
    for (size_t i = 0, from = 0; i <= len; i++) {
        unsigned char c = i < len ? (unsigned char)s[i] : 0;
        if (i < len && c >= 0x20 && c != '"' && c != '\\')
            continue;
        if (buf_add(b, s + from, i - from))
            return -1;
        if (i == len)
            break;
        from = i + 1;
        const char *names = "\"\"\\\\\bb\ff\nn\rr\tt";
        char escape[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
        size_t escape_len = 6;
        for (size_t k = 0; k < 14; k += 2)
            if ((unsigned char)names[k] == c) {
                escape[1] = names[k + 1];
                escape_len = 2;
            }
        if (buf_add(b, escape, escape_len))
            return -1;
    }
    return buf_char(b, '"');
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
    if (d->field) {
        TRY(find_column(d, d->field, &d->text_at, e));
    } else if (has_column(d, "text")) {
        TRY(find_column(d, "text", &d->text_at, e));
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
    if ((o->field && !(d->field = mem_strdup(o->field))) || (o->id && !(d->id = mem_strdup(o->id))))
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
        if (buf_char(b, ',') || add_json_string(b, name, strlen(name)) || buf_char(b, ':')) {
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
    if (o->format == FORMAT_LINES && (o->field || o->id || o->keep_count)) {
        const char *name = o->field ? o->field : o->id ? o->id : o->keep[0];
        return err_set(e, ST_USER, "plain lines have no fields, so none called '%s': leave field, id and keep out", name);
    }
    struct decoder *d = mem_zalloc(sizeof *d);
    if (!d)
        return err_nomem(e, "decoding records");
    d->format = o->format;
    d->text_at = d->id_at = NO_COLUMN;
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
    json_decref(d->root);
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

static const char *type_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER:
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    case JSON_NULL: return "null";
    }
    return "of an unknown type";
}

static int is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* Length of the number of JSON's grammar at p; 0 when there is none. */
static size_t number(const char *p, const char *end)
{
    const char *s = p;
    s += s < end && *s == '-';
    if (s == end || *s < '0' || *s > '9')
        return 0;
    if (*s == '0')
        s++;
    else
        while (s < end && *s >= '0' && *s <= '9')
            s++;
    if (s + 1 < end && *s == '.' && s[1] >= '0' && s[1] <= '9')
        for (s++; s < end && *s >= '0' && *s <= '9'; s++)
            ;
    if (s < end && (*s == 'e' || *s == 'E')) {
        const char *x = s + 1;
        x += x < end && (*x == '+' || *x == '-');
        if (x < end && *x >= '0' && *x <= '9') {
            for (s = x; s < end && *s >= '0' && *s <= '9'; s++)
                ;
        }
    }
    return (size_t)(s - p);
}

/* Behind the string that opens at p; `end` when it does not close. */
static const char *skip_string(const char *p, const char *end)
{
    for (p++; p < end; p++) {
        if (*p == '"')
            return p + 1;
        if (*p == '\\')
            p++;
    }
    return end;
}

/* jansson refuses numbers that no int64 or double holds, though they are JSON. A copy of the record with a 0 in the place of each long one
   has the same shape and the same texts. -1: memory is out. */
static int without_long_numbers(struct buf *to, const char *data, size_t len)
{
    to->len = 0;
    if (buf_add(to, data, len))
        return -1;
    for (char *p = to->data, *end = p + len; p < end;) {
        if (*p == '"') {
            p = to->data + (skip_string(p, end) - to->data);
            continue;
        }
        size_t n = number(p, end);
        if (n >= 19 || (n && (memchr(p, 'e', n) || memchr(p, 'E', n)))) {
            memset(p, ' ', n);
            *p = '0';
        }
        p += n ? n : 1;
    }
    return 0;
}

/* Behind the value at p, in a record that is known to be JSON. */
static const char *skip_value(const char *p, const char *end)
{
    if (*p == '"')
        return skip_string(p, end);
    if (*p != '{' && *p != '[') {
        while (p < end && *p != ',' && *p != '}' && *p != ']' && !is_space(*p))
            p++;
        return p;
    }
    for (size_t depth = 0; p < end;) {
        if (*p == '"') {
            p = skip_string(p, end);
            continue;
        }
        depth += *p == '{' || *p == '[';
        depth -= *p == '}' || *p == ']';
        p++;
        if (!depth)
            break;
    }
    return p;
}

/* Does the key that stands between quotes at [key, key + len) mean `name`? */
static int is_key(const char *key, size_t len, const char *name)
{
    size_t name_len = strlen(name);
    if (!memchr(key, '\\', len))
        return len == name_len && !memcmp(key, name, len);
    json_t *plain = json_loadb(key - 1, len + 2, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    int same = plain && json_string_length(plain) == name_len && !memcmp(json_string_value(plain), name, name_len);
    json_decref(plain);
    return same;
}

/* Where the values of id and kept fields stand in an object that is known to be JSON. Of keys that stand twice the last counts, as for
   jansson. */
static void find_values(struct decoder *d, const char *id_name, const char *data, size_t len, struct slice *id)
{
    const char *p = data, *end = data + len;
    while (p < end && *p != '{')
        p++;
    p++;
    while (p < end) {
        while (p < end && (is_space(*p) || *p == ','))
            p++;
        if (p >= end || *p != '"')
            return;
        const char *key = p + 1;
        p = skip_string(p, end);
        size_t key_len = (size_t)(p - key) - 1;
        while (p < end && (is_space(*p) || *p == ':'))
            p++;
        if (p >= end)
            return;
        struct slice value = {.data = p};
        p = skip_value(p, end);
        value.len = (size_t)(p - value.data);
        if (id_name && is_key(key, key_len, id_name))
            *id = value;
        for (size_t i = 0; i < d->keep_count; i++)
            if (is_key(key, key_len, d->keep[i]))
                d->found[i] = value;
    }
}

static enum status not_json(struct record *out, const char *data, size_t len, const json_error_t *error, struct err *e)
{
    switch (json_error_code(error)) {
    case json_error_out_of_memory:
        return err_nomem(e, "decoding a record");
    case json_error_invalid_utf8:
        fail(out, RECORD_INVALID_UTF8, "byte %zu of the record is not valid UTF-8", utf8_prefix(data, len) + 1);
        return ST_OK;
    case json_error_stack_overflow:
        fail(out, RECORD_INVALID_JSON, "nested too deep, near column %d", error->column);
        return ST_OK;
    case json_error_null_byte_in_key:
        fail(out, RECORD_INVALID_JSON, "the name of a field holds a NUL, near column %d", error->column);
        return ST_OK;
    default:
        break;
    }
    char words[sizeof error->text];
    snprintf(words, sizeof words, "%s", error->text);
    char *near = strstr(words, " near "); /* what stands there is told by the column */
    if (near)
        *near = 0;
    fail(out, RECORD_INVALID_JSON, "not valid JSON: %s, near column %d", words, error->column);
    return ST_OK;
}

static void missing(struct record *out, const char *name, json_t *object)
{
    char list[160] = "";
    size_t listed = 0;
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
        list_name(list, sizeof list, key, &listed);
    if (!json_object_size(object))
        fail(out, RECORD_MISSING_FIELD, "no field '%.60s': the object is empty", name);
    else
        fail(out, RECORD_MISSING_FIELD, "no field '%.60s' (fields: %s)", name, list);
}

/* The member that holds the text, and its name; NULL: said in `out`. */
static json_t *text_member(const struct decoder *d, const char *id_name, struct record *out)
{
    const char *name = d->field;
    json_t *value = NULL;
    if (!name) {
        name = "text";
        if (!(value = json_object_get(d->root, name)) && (value = json_object_get(d->root, "content")))
            name = "content";
        if (!value) { /* the only one that is text */
            const char *key;
            json_t *member;
            size_t texts = 0;
            json_object_foreach(d->root, key, member) {
                if (!json_is_string(member) || (id_name && !strcmp(key, id_name)))
                    continue;
                texts++;
                value = member;
            }
            if (texts != 1) {
                missing(out, "text", d->root);
                return NULL;
            }
        }
    } else if (!(value = json_object_get(d->root, name))) {
        missing(out, name, d->root);
        return NULL;
    }
    if (!json_is_string(value)) {
        fail(out, RECORD_WRONG_TYPE, "field '%.100s' is %s, not a string", name, type_name(value));
        return NULL;
    }
    return value;
}

static enum status run_json(struct decoder *d, const struct raw *raw, struct record *out, struct err *e)
{
    json_error_t error;
    const size_t flags = JSON_DECODE_ANY | JSON_ALLOW_NUL;
    json_decref(d->root);
    d->root = json_loadb(raw->data, raw->len, flags, &error);
    if (!d->root && json_error_code(&error) == json_error_numeric_overflow) {
        if (without_long_numbers(&d->patched, raw->data, raw->len))
            return err_nomem(e, "decoding a record");
        d->root = json_loadb(d->patched.data, raw->len, flags, &error);
    }
    if (!d->root)
        return not_json(out, raw->data, raw->len, &error, e);
    if (!json_is_object(d->root)) {
        fail(out, RECORD_NOT_OBJECT, "%s, where an object like {\"text\": ...} should stand", type_name(d->root));
        return ST_OK;
    }
    const char *id_name = d->id;
    if (!id_name)
        id_name = json_object_get(d->root, "id") ? "id" : json_object_get(d->root, "custom_id") ? "custom_id" : NULL;
    struct slice id = {0};
    memset(d->found, 0, d->keep_count * sizeof *d->found);
    if (id_name || d->keep_count)
        find_values(d, id_name, raw->data, raw->len, &id);
    if (id.data && (*id.data == '"' || *id.data == '-' || (*id.data >= '0' && *id.data <= '9'))) {
        out->id_json = id.data;
        out->id_len = id.len;
    }
    json_t *value = text_member(d, id_name, out);
    if (!value)
        return ST_OK;
    for (size_t i = 0; i < d->keep_count; i++)
        if (buf_add(&d->keep_buf, d->keep_names[i].data, d->keep_names[i].len) ||
            (d->found[i].data ? buf_add(&d->keep_buf, d->found[i].data, d->found[i].len) : buf_str(&d->keep_buf, "null")))
            return err_nomem(e, "the fields kept of a record");
    out->text = json_string_value(value);
    out->text_len = json_string_length(value);
    return ST_OK;
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
            if (add_json_string(&d->id_buf, id->data, id->len))
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
        if (buf_add(&d->keep_buf, d->keep_names[i].data, d->keep_names[i].len) || add_json_string(&d->keep_buf, f->data, f->len))
            return err_nomem(e, "the columns kept of a record");
    }
    out->text = fields[d->text_at].data;
    out->text_len = fields[d->text_at].len;
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
