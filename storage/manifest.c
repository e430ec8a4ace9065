/* manifest.json: what was made, of what, by which job. Keys in a fixed order. Made in the working folder, then renamed. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/path.h"
#include "storage/output.h"

static int put(json_t *o, const char *key, json_t *value) /* takes value */
{
    return json_object_set_new(o, key, value);
}

static json_t *number(uint64_t v)
{
    return json_integer((json_int_t)v);
}

static json_t *text_or_null(const char *s)
{
    return s ? json_string(s) : json_null();
}

static json_t *digest(const uint8_t d[16])
{
    char hex[33];
    for (int i = 0; i < 16; i++)
        snprintf(hex + 2 * i, 3, "%02x", d[i]);
    return json_string(hex);
}

static json_t *name(const struct output_spec *o, enum output_name what, uint64_t index)
{
    char *s = output_base_name(o, what, index);
    json_t *j = s ? json_string(s) : NULL;
    mem_free(s);
    return j;
}

static json_t *counts(const struct job_counts *n)
{
    json_t *o = json_object();
    if (put(o, "records", number(n->records)) || put(o, "rows", number(n->rows)) || put(o, "errors", number(n->errors)) ||
        put(o, "quarantined", number(n->quarantined)) || put(o, "input_bytes", number(n->bytes)) ||
        put(o, "extents", number(n->extents)) || put(o, "redone", number(n->redone))) {
        json_decref(o);
        return NULL;
    }
    return o;
}

static json_t *files(const struct output_spec *o, const struct seal *s, const struct file_record *r)
{
    json_t *all = json_array();
    for (uint64_t i = 0; i < s->files && all; i++) {
        json_t *f = json_object();
        int failed = put(f, "name", name(o, OUTPUT_ROWS, i)) || put(f, "rows", number(r[i].rows)) || put(f, "bytes", number(r[i].bytes)) ||
                     put(f, "xxh3_128", digest(r[i].digest));
        if (o->kind == OUTPUT_NPY)
            failed = failed || put(f, "ids", name(o, OUTPUT_IDS, i)) || put(f, "ids_bytes", number(r[i].ids_bytes)) ||
                     put(f, "ids_xxh3_128", digest(r[i].ids_digest));
        if (failed || json_array_append(all, f)) {
            json_decref(all);
            all = NULL;
        }
        json_decref(f);
    }
    return all;
}

static json_t *build(const struct output_spec *o, const struct seal *s, const struct file_record *r, const struct manifest_info *info,
                     json_t *spec)
{
    json_t *m = json_object(), *model = json_object(), *output = json_object(), *errors = json_object();
    int failed = put(m, "manifest", number(1)) || put(m, "ebb", text_or_null(info->version)) ||
                 put(model, "name", text_or_null(info->model_name)) || put(model, "digest", text_or_null(info->model_digest)) ||
                 json_object_set(m, "model", model) || put(m, "numerics", text_or_null(info->numerics)) ||
                 put(m, "attempt", number(info->attempt)) || put(m, "submitted_ms", json_integer(info->submitted_ms)) ||
                 put(m, "finished_ms", json_integer(info->finished_ms)) || put(m, "counts", counts(&info->counts)) ||
                 put(output, "format", json_string(o->kind == OUTPUT_NPY ? "npy" : "jsonl"));
    if (o->kind == OUTPUT_NPY)
        failed = failed || put(output, "dims", number(o->dims));
    failed = failed || put(output, "rows", number(s->rows)) || put(output, "files", files(o, s, r)) ||
             json_object_set(m, "output", output) || put(errors, "name", name(o, OUTPUT_ERRORS, 0)) ||
             put(errors, "rows", number(s->errors)) || put(errors, "bytes", number(s->errors_bytes)) ||
             put(errors, "xxh3_128", digest(s->errors_digest)) || json_object_set(m, "errors", errors) || json_object_set(m, "job", spec);
    json_decref(model);
    json_decref(output);
    json_decref(errors);
    if (failed) {
        json_decref(m);
        return NULL;
    }
    return m;
}

enum status manifest_write(const struct output_spec *o, const struct seal *s, const struct file_record *r, const struct manifest_info *info,
                           struct err *e)
{
    json_error_t je;
    json_t *spec = info->spec_json ? json_loads(info->spec_json, JSON_DECODE_ANY | JSON_ALLOW_NUL, &je) : json_null();
    if (!spec)
        return err_set(e, ST_CORRUPT, "the job's specification is no JSON: %s, at byte %d", je.text, je.position);
    json_t *m = build(o, s, r, info, spec);
    json_decref(spec);
    char *text = m ? json_dumps(m, JSON_INDENT(2)) : NULL;
    json_decref(m);
    char *draft = output_work_file(o, "manifest.json", UINT32_MAX), *path = output_name(o, OUTPUT_MANIFEST, 0, 0);
    struct buf b = {0};
    enum status st = ST_OK;
    if (!text || !draft || !path || buf_str(&b, text) || buf_char(&b, '\n'))
        st = err_nomem(e, "the manifest (or a name in it is not valid UTF-8)");
    int errnum = fault_point("assemble.finish.manifest");
    if (st == ST_OK && errnum)
        st = err_errno(e, ST_ENV, errnum, "cannot write '%s'", path);
    if (st == ST_OK)
        st = path_write(draft, b.data, b.len, e);
    if (st == ST_OK && ((errnum = fault_point("assemble.rename")) || rename(draft, path)))
        st = err_errno(e, ST_ENV, errnum ? errnum : errno, "cannot rename '%s' to '%s'", draft, path);
    if (st == ST_OK)
        st = path_sync_parent(path, e);
    buf_release(&b);
    mem_free(path);
    mem_free(draft);
    free(text);
    return st;
}
