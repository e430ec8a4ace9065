#include "client/local.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/suggest.h"
#include "base/units.h"
#include "client/client.h"
#include "client/progress.h"
#include "storage/overlap.h"
#include "workers/text/tokenizer.h"

/* The output, or the nearest folder above it that exists, has to take new files. */
static enum status writable(const struct output_spec *o, struct err *e)
{
    char *p = mem_strdup(o->path);
    if (!p)
        return err_nomem(e, "a path");
    struct stat s;
    enum status st = ST_OK;
    size_t n = strlen(p);
    while (n > 1 && p[n - 1] == '/')
        p[--n] = 0;
    if (!o->is_dir) /* a file is written anew beside the old one */
        p[strrchr(p, '/') == p ? 1 : strrchr(p, '/') - p] = 0;
    while (stat(p, &s) && errno == ENOENT && p[1]) {
        char *slash = strrchr(p, '/');
        slash[slash == p] = 0;
    }
    if (stat(p, &s))
        st = err_errno(e, ST_ENV, errno, "cannot reach the output's folder '%s'", p);
    else if (!S_ISDIR(s.st_mode))
        st = err_set(e, ST_USER, "'%s' is a file, but the output '%s' needs a folder there; choose another --output", p, o->path);
    else if (access(p, W_OK | X_OK))
        st = err_set(e, ST_ENV, "cannot write into '%s' for the output '%s': %s; choose another --output, or ask for the right", p, o->path, strerror(errno));
    mem_free(p);
    return st;
}

enum status local_settle(char **word, const char *as, struct err *e)
{
    char *copy = mem_strdup(as);
    if (!copy)
        return err_nomem(e, "a job");
    mem_free(*word);
    *word = copy;
    return ST_OK;
}

/* Better said now than by workers who find that they cannot divide it. */
static enum status check_stages(const struct jobspec *s, const struct model_info *info, uint32_t segments, struct err *e)
{
    if (s->stages > 1 && info->arrays)
        return err_set(e, ST_USER, "'%s' takes arrays, not texts: such a model runs on one worker, whole; leave --stages out", s->model);
    if (s->stages > 1 && segments < s->stages)
        return err_set(e, ST_USER, "'%s' cannot be cut into %" PRIu64 " stages: it is %u segment%s, see 'ebb model inspect'", s->model, s->stages, segments,
                       segments == 1 ? "" : "s");
    return ST_OK;
}

enum status local_model(struct jobspec *s, struct model_info *info, struct err *e)
{
    struct tokenizer *tokenizer;
    struct model_opts o = {.precision = s->precision, .task = s->task, .top_k = (uint32_t)s->top_k};
    struct cut cut = {.tokens = 128};
    TRY(model_probe_cut(s->model, &o, info, s->stages > 1 ? &cut : NULL, e));
    uint32_t segments = cut.count;
    cut_release(&cut);
    TRY(check_stages(s, info, segments, e));
    if (!info->arrays) {
        char *folder;
        TRY(model_folder(s->model, &folder, e));
        enum status st = tokenizer_open(folder, &tokenizer, e);
        mem_free(folder);
        TRY(st);
        tokenizer_free(tokenizer);
    }
    TRY(local_settle(&s->task, info->task, e));
    return local_settle(&s->precision, info->precision, e);
}

const char *local_gives(const struct model_info *m, char *out, size_t size)
{
    switch (m->kind) {
    case TASK_EMBED: snprintf(out, size, "embeds %u floats", m->dims); break;
    case TASK_CLASSIFY: snprintf(out, size, "classifies, %u label%s (%s)", m->labels, m->labels == 1 ? "" : "s", m->scoring); break;
    case TASK_TOKENS: snprintf(out, size, "classifies tokens, %u labels", m->labels); break;
    case TASK_FILL_MASK: snprintf(out, size, "fills %s, %u tokens each", m->mask_token, m->dims); break;
    case TASK_OUTPUTS: snprintf(out, size, "gives its outputs"); break;
    case TASKS: break;
    }
    return out;
}

static enum status open_models(struct local *l, struct jobspec *s, struct err *e)
{
    struct stat st_model;
    if (s->steps.count) {
        if (!(l->steps = mem_array(s->steps.count, sizeof *l->steps)))
            return err_nomem(e, "the steps of a job");
        TRY(local_steps(s, l->steps, 0, e));
        l->model = l->steps[s->steps.count - 1];
        return jobspec_check_steps(s, NULL, l->out.kind == OUTPUT_NPY, e);
    }
    if (stat(s->model, &st_model))
        return err_set(e, ST_USER, "there is no model at '%s'; --model names a Hugging Face directory, with config.json and model.safetensors", s->model);
    TRY(local_model(s, &l->model, e));
    return jobspec_check_task(s, l->out.kind == OUTPUT_NPY, e);
}

static enum status open_rest(struct local *l, const struct jobspec *s, struct err *e)
{
    if (l->out.kind == OUTPUT_NPY && strcmp(s->floats, "base64") == 0)
        return err_set(e, ST_USER, "--floats base64 is for JSONL; an .npy file holds floats as they are");
    struct dataset_spec d = {.inputs = (const char *const *)s->inputs.items, .input_count = s->inputs.count, .limit = s->limit,
                             .max_record_bytes = s->max_record_bytes};
    if (s->format && !format_parse(s->format, &d.format))
        return err_set(e, ST_USER, "unknown format '%s'", s->format);
    TRY(overlap_inputs(&l->out, d.inputs, d.input_count, e));
    TRY(dataset_open(&d, &l->data, e));
    for (size_t i = 0; i < l->data.count; i++) {
        l->bytes += l->data.sources[i].size_bytes;
        l->compressed |= l->data.sources[i].compression != COMPRESSION_NONE;
    }
    if (s->steps.count && (l->data.format == FORMAT_IMAGES || l->data.format == FORMAT_NPY))
        return jobspec_check_steps(s, format_name(l->data.format), 0, e);
    TRY(overlap_sources(&l->out, &l->data, e));
    TRY(writable(&l->out, e));
    l->work_dir = output_work_dir(&l->out);
    return l->work_dir ? ST_OK : err_nomem(e, "a path");
}

enum status local_open(struct local *l, struct jobspec *s, struct err *e)
{
    *l = (struct local){0};
    enum status st = output_resolve(s->output, s->output_format, &l->out, e);
    if (st == ST_OK)
        st = open_models(l, s, e);
    if (st == ST_OK)
        st = open_rest(l, s, e);
    if (st != ST_OK)
        local_release(l);
    return st;
}

void local_release(struct local *l)
{
    dataset_release(&l->data);
    mem_free(l->work_dir);
    mem_free(l->steps);
    *l = (struct local){0};
}

/* Sample ----------------------------------------------------------------------------------------------------------------------------- */

/* The field that was meant: one spelt alike, else `text`, else the only one. */
static const char *near_field(const char *field, const char *const *names, size_t count)
{
    const char *near = suggest(field, names, count);
    for (size_t i = 0; i < count && !near; i++)
        if (strcmp(names[i], "text") == 0)
            near = names[i];
    return near || count != 1 ? near : names[0];
}

struct sampling {
    const struct local *l;
    const struct jobspec *s;
    uint64_t least, bytes, until_ms;
    void (*visit)(void *arg, const struct sample_record *r);
    void *arg;
    struct sample *out;
    uint64_t missing; /* records without the field */
    struct buf first_missing; /* one of them, as it stands */
    const char *first_path;
    int full;
};

/* flag: what names it, "field" or "pair-field" */
static enum status check_column(const struct source *src, const struct columns *c, const char *field, const char *flag, struct err *e)
{
    char all[400] = "";
    for (size_t i = 0; i < c->count; i++) {
        size_t n = strlen(all);
        if (strcmp(c->names[i], field) == 0)
            return ST_OK;
        if (n + strlen(c->names[i]) + 3 < sizeof all)
            snprintf(all + n, sizeof all - n, "%s%s", n ? ", " : "", c->names[i]);
    }
    const char *near = near_field(field, (const char *const *)c->names, c->count);
    return err_set(e, ST_USER, near ? "'%s' has no column '%s' (columns: %s)\ndid you mean --%s %s" : "'%s' has no column '%s' (columns: %s)\nname the text's with --%s",
                   short_path(src->path), field, all, flag, near);
}

/* Which of the fields to keep it has. */
static enum status see_kept(const struct jobspec *s, const struct record *r, struct sample *out, struct err *e)
{
    char *text = r->keep_len ? mem_printf("{%.*s}", (int)r->keep_len - 1, r->keep_json + 1) : NULL;
    json_t *o = text ? json_loads(text, JSON_DECODE_INT_AS_REAL, NULL) : NULL;
    if (r->keep_len && !text)
        return err_nomem(e, "a record");
    for (size_t i = 0; i < s->keep.count && i < 64; i++) {
        const json_t *v = json_object_get(o, s->keep.items[i]);
        if (!o || (v && !json_is_null(v))) /* what cannot be read again is not judged */
            out->kept |= (uint64_t)1 << i;
    }
    json_decref(o);
    mem_free(text);
    return ST_OK;
}

const char *local_absent(const struct jobspec *s, const struct sample *sample, size_t i, char *out, size_t size)
{
    char n[UNITS_MAX];
    units_count(n, (double)sample->good);
    if (sample->good && s->id && !sample->with_id && i-- == 0) {
        snprintf(out, size, "none of the first %s records has an id in '%s' (--id): rows would have no id", n, s->id);
        return out;
    }
    for (size_t k = 0; sample->good && !s->steps.count && k < s->keep.count && k < 64; k++)
        if (!(sample->kept >> k & 1) && i-- == 0) {
            snprintf(out, size, "none of the first %s records has a field '%s' (--keep): rows would have null there", n, s->keep.items[k]);
            return out;
        }
    return NULL;
}

static enum status sample_source(struct sampling *g, const struct source *src, struct err *e)
{
    const struct jobspec *s = g->s;
    struct reader_opts ro = {.format = g->l->data.format, .max_record_bytes = s->max_record_bytes};
    struct decoder_opts d = {.format = ro.format, .field = s->field, .pair = s->pair_field, .id = s->id, .keep = (const char *const *)s->keep.items,
                             .keep_count = s->keep.count, .no_text = g->l->model.arrays};
    if (s->steps.count) { /* what the first one reads; what is kept may come from any of them */
        const struct step_spec *first = &s->steps.items[0];
        d.field = first->command ? NULL : first->field ? first->field : s->field;
        d.no_text = ro.format != FORMAT_LINES && (first->command || g->l->steps[0].arrays);
        d.keep_count = 0;
    }
    struct columns columns = {0};
    struct reader *r = NULL;
    struct decoder *decoder = NULL;
    uint64_t before = g->out->bytes;
    enum status st = ST_OK;
    int table = ro.format == FORMAT_CSV || ro.format == FORMAT_TSV;
    if (table)
        st = reader_columns(src, &ro, &columns, e);
    if (st == ST_OK && table && !columns.count)
        goto out; /* a file without rows */
    if (st == ST_OK && table && d.field)
        st = check_column(src, &columns, d.field, "field", e);
    if (st == ST_OK && table && s->pair_field)
        st = check_column(src, &columns, s->pair_field, "pair-field", e);
    if (st == ST_OK && (st = decoder_open(&d, table ? &columns : NULL, &decoder, e)) == ST_USER)
        err_prefix(e, "'%s'", short_path(src->path));
    if (st == ST_OK)
        st = reader_open(src, &ro, 0, &r, e);
    while (st == ST_OK) {
        struct raw raw;
        struct record record;
        if (s->limit && g->out->records >= s->limit) {
            g->full = g->out->whole = 1;
            break;
        }
        if (g->out->records >= g->least && (g->out->bytes >= g->bytes || clock_ms() >= g->until_ms)) {
            g->full = 1;
            break;
        }
        st = reader_next(r, UINT64_MAX, &raw, e);
        if (st != ST_OK)
            break;
        st = decoder_run(decoder, &raw, &record, e);
        if (st != ST_OK)
            break;
        g->out->records++;
        g->out->bad += record.error != RECORD_NONE;
        g->out->bytes = before + (src->compression == COMPRESSION_NONE ? raw.end : reader_bytes(r));
        if (record.error == RECORD_NONE && g->out->good < SAMPLE_LOOKED) {
            g->out->good++;
            g->out->with_id += record.id_json != NULL;
            if (d.keep_count && (st = see_kept(s, &record, g->out, e)) != ST_OK)
                break;
        }
        if (record.error == RECORD_MISSING_FIELD && g->missing++ == 0) {
            g->first_path = src->path;
            if (buf_add(&g->first_missing, raw.data, raw.len))
                st = err_nomem(e, "a record");
        }
        if (g->visit)
            g->visit(g->arg, &(struct sample_record){src, &raw, &record, table ? &columns : NULL});
    }
    if (st == ST_END)
        st = ST_OK;
out:
    reader_close(r);
    decoder_close(decoder);
    columns_release(&columns);
    return st;
}

/* Every record lacks the field: that is a wrong name, not bad records. */
static enum status no_such_field(const struct sampling *g, struct err *e)
{
    char all[400] = "";
    const char *names[64], *key;
    size_t count = 0;
    json_t *v, *o = json_loadb(g->first_missing.data, g->first_missing.len, 0, NULL);
    const char *first = g->s->steps.count ? g->s->steps.items[0].field : NULL; /* what the first step reads */
    const char *field = first ? first : g->s->field ? g->s->field : "text", *flag = "field";
    if (g->s->pair_field && !json_object_get(o, g->s->pair_field) && (!g->s->field || json_object_get(o, field))) {
        field = g->s->pair_field; /* it is the other text that is missing */
        flag = "pair-field";
    }
    json_object_foreach(o, key, v)
    {
        size_t n = strlen(all);
        if (n + strlen(key) + 3 < sizeof all)
            snprintf(all + n, sizeof all - n, "%s%s", n ? ", " : "", key);
        if (json_is_string(v) && count < COUNT(names))
            names[count++] = key;
    }
    const char *near = near_field(field, names, count);
    enum status st = near ? err_set(e, ST_USER, "'%s' has no field '%s' in any of its first %llu records (fields: %s)\ndid you mean --%s %s",
                                    short_path(g->first_path), field, (unsigned long long)g->missing, all, flag, near)
                          : err_set(e, ST_USER, "'%s' has no field '%s' in any of its first %llu records (fields: %s)\nname the text's with --%s",
                                    short_path(g->first_path), field, (unsigned long long)g->missing, all, flag);
    json_decref(o);
    return st;
}

enum status local_sample(const struct local *l, const struct jobspec *s, uint64_t least, uint64_t bytes, uint64_t ms,
                         void (*visit)(void *arg, const struct sample_record *r), void *arg, struct sample *out, struct err *e)
{
    *out = (struct sample){0};
    struct sampling g = {.l = l, .s = s, .least = least, .bytes = bytes, .until_ms = clock_ms() + ms, .visit = visit, .arg = arg, .out = out};
    enum status st = ST_OK;
    size_t i = 0;
    for (; i < l->data.count && st == ST_OK && !g.full; i++)
        st = sample_source(&g, &l->data.sources[i], e);
    if (st == ST_OK && !g.full)
        out->whole = 1;
    if (st == ST_OK && g.missing && g.missing == out->bad && out->bad == out->records)
        st = no_such_field(&g, e);
    buf_release(&g.first_missing);
    return st;
}

double local_guess(const struct local *l, const struct jobspec *s, const struct sample *sample)
{
    double n = sample->whole || !sample->bytes ? (double)sample->records : (double)sample->records * (double)l->bytes / (double)sample->bytes;
    return s->limit && n > (double)s->limit ? (double)s->limit : n;
}

char *local_count_words(const struct local *l, double records, int whole, char *out, size_t size)
{
    char n[UNITS_MAX], bytes[UNITS_MAX];
    if (l->data.count == 1)
        snprintf(out, size, "%s, ", path_base(l->data.sources[0].path));
    else
        snprintf(out, size, "%s files, ", units_count(n, (double)l->data.count));
    size_t len = strlen(out);
    snprintf(out + len, size - len, "%s%s, %s%s record%s%s", units_bytes(bytes, l->bytes), l->compressed ? " compressed" : "", whole ? "" : "about ",
             whole ? units_count(n, records) : guess_words(n, records), records >= 0.5 && records < 1.5 ? "" : "s", whole ? "" : " (guessed from the first ones)");
    return out;
}

/* Standard input --------------------------------------------------------------------------------------------------------------------- */

/* Reads fd beside the file: 0 the same, 1 nothing came, 2 something else. */
static enum status compare(int fd, const char *path, int *how, struct err *e)
{
    char a[65536], b[65536];
    uint64_t total = 0;
    enum status st = ST_OK;
    FILE *f = fopen(path, "re");
    if (!f)
        return err_errno(e, ST_ENV, errno, "cannot open '%s'", path);
    *how = 0;
    for (;;) {
        ssize_t n = read(fd, a, sizeof a);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            st = err_errno(e, ST_ENV, errno, "cannot read standard input");
        if (n <= 0)
            break;
        total += (uint64_t)n;
        if (fread(b, 1, (size_t)n, f) != (size_t)n || memcmp(a, b, (size_t)n) != 0) {
            *how = 2;
            break;
        }
    }
    if (st == ST_OK && *how == 0 && total == 0)
        *how = 1;
    else if (st == ST_OK && *how == 0 && fgetc(f) != EOF)
        *how = 2;
    fclose(f);
    return st;
}

enum status local_spool(struct jobspec *s, struct err *e)
{
    if (s->inputs.count != 1 || strcmp(s->inputs.items[0], "-") != 0)
        return ST_OK;
    if (!s->format || strcmp(s->format, "auto") == 0)
        return err_set(e, ST_USER, "standard input has no name that tells its format; give --format jsonl, csv, tsv or lines");
    struct output_spec o;
    TRY(output_resolve(s->output, s->output_format, &o, e));
    char *work = output_work_dir(&o), *path = work ? mem_printf("%s/stdin.%s", work, strcmp(s->format, "lines") == 0 ? "txt" : s->format) : NULL;
    enum status st = path ? ST_OK : err_nomem(e, "a path");
    uint64_t bytes;
    int how = 0;
    if (st == ST_OK && path_exists(path)) {
        st = isatty(STDIN_FILENO) ? ST_OK : compare(STDIN_FILENO, path, &how, e);
        if (st == ST_OK && how == 2)
            st = err_set(e, ST_USER, "standard input is not what it was when '%s' was begun\ngive the same again, or nothing (< /dev/null) to go on with what "
                                     "came first, or choose another --output", s->output);
    } else if (st == ST_OK) {
        if (isatty(STDIN_FILENO))
            say("reading records from the terminal; end with Ctrl-D");
        st = path_make_dirs(work, 0777, e);
        if (st == ST_OK)
            st = dataset_spool(STDIN_FILENO, path, &bytes, e);
    }
    if (st == ST_OK) {
        mem_free(s->inputs.items[0]);
        s->inputs.items[0] = path;
        path = NULL;
    }
    mem_free(work);
    mem_free(path);
    return st;
}
