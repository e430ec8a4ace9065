/* `ebb check`: everything short of starting. Reads the model and the beginning of the input, and says what would be done, how long it would take, and
   what is wrong. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/host.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/units.h"
#include "client/client.h"
#include "client/local.h"
#include "client/measure.h"
#include "client/spec.h"
#include "workers/text/tokenizer.h"

#define SAMPLE 200          /* records that are tokenised and measured */
#define KEPT_FREE (512u << 20) /* what a daemon leaves free, unless it is told otherwise */
#define SHOWN 5             /* bad ones that are printed */
#define LONGEST_COUNTED 65536 /* tokens: a longer text's length is "more than" */

struct check {
    struct jobspec spec;
    struct local local;
    struct tokenizer *tokenizer;
    struct tok_scratch *scratch;
    struct model *model;
    struct tokens tokens;
    uint32_t counts[SAMPLE]; /* tokens, uncut */
    size_t count, cut, columns, bad;
    uint64_t side_bytes;     /* ids and kept fields of the sample */
    json_t *errors;          /* {source, line, code, message} */
    struct sample sample;
    struct speed speed;
    uint32_t lanes;
    enum status st;
    struct err e;
};

static void add_bad(struct check *c, const struct sample_record *r, const char *code, const char *message)
{
    c->bad++;
    if (json_array_size(c->errors) < SHOWN)
        json_array_append_new(c->errors, json_pack("{s:s, s:I, s:s, s:s}", "source", r->source->path, "line", (json_int_t)r->raw->line + 1, "code", code,
                                                   "message", message));
}

static void visit(void *arg, const struct sample_record *r)
{
    struct check *c = arg;
    struct tok_result tokens;
    uint32_t most = c->local.model.max_tokens;
    if (r->columns)
        c->columns = r->columns->count;
    if (c->st != ST_OK)
        return;
    if (r->record->error != RECORD_NONE) {
        add_bad(c, r, record_error_code(r->record->error), r->record->message);
        return;
    }
    if (c->count == SAMPLE)
        return;
    if (c->local.model.arrays || c->spec.steps.count) { /* counted, not measured */
        c->counts[c->count++] = 0;
        c->side_bytes += r->record->id_len + r->record->keep_len;
        return;
    }
    struct tok_input in = {.text = r->record->text, .len = r->record->text_len, .pair = r->record->pair, .pair_len = r->record->pair_len,
                           .max_tokens = LONGEST_COUNTED};
    c->st = tokenizer_encode_input(c->tokenizer, c->scratch, &in, &tokens, &c->e);
    if (c->st == ST_USER) {
        c->st = ST_OK;
        add_bad(c, r, record_error_code(RECORD_NOT_TOKENISED), c->e.text);
        return;
    }
    if (c->st != ST_OK)
        return;
    c->counts[c->count++] = tokens.count;
    c->side_bytes += r->record->id_len + r->record->keep_len;
    if (tokens.count > most) {
        c->cut++;
        if (strcmp(c->spec.on_long, "error") == 0) {
            char message[96];
            snprintf(message, sizeof message, "%u tokens, the model takes %u", tokens.count, most);
            add_bad(c, r, record_error_code(RECORD_TOO_MANY_TOKENS), message);
            return;
        }
        in.max_tokens = most;
        c->st = tokenizer_encode_input(c->tokenizer, c->scratch, &in, &tokens, &c->e);
    }
    if (c->st == ST_OK && tokens_add(&c->tokens, tokens.ids, tokens.count))
        c->st = err_nomem(&c->e, "tokens");
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static double output_bytes(const struct check *c, double records)
{
    uint32_t dims = c->local.model.dims;
    double side = c->count ? (double)c->side_bytes / (double)c->count : 0;
    if (c->local.out.kind == OUTPUT_NPY)
        return records * (4.0 * dims + side + 4);
    double row = strcmp(c->spec.floats, "base64") == 0 ? (double)((4 * dims + 2) / 3 * 4 + 2) : c->speed.row_chars;
    return records * (row + side + 24);
}

static void print_reads(const struct check *c, double records)
{
    static const char *const words[] = {[FORMAT_AUTO] = "?", [FORMAT_JSONL] = "JSONL", [FORMAT_CSV] = "CSV", [FORMAT_TSV] = "TSV", [FORMAT_LINES] = "lines of text",
                                        [FORMAT_IMAGES] = "images", [FORMAT_NPY] = "arrays"};
    const struct local *l = &c->local;
    char text[512];
    const char *stream = l->compressed ? "; compressed files are read from their start, each by one worker"
                         : l->data.format == FORMAT_CSV || l->data.format == FORMAT_TSV ? "; quoted newlines are possible, so each file is read by one worker" : "";
    local_count_words(l, records, c->sample.whole, text, sizeof text);
    if (c->columns)
        print_field("reads", "%s: %s, header, %zu column%s%s", text, words[l->data.format], c->columns, c->columns == 1 ? "" : "s", stream);
    else
        print_field("reads", "%s: %s%s", text, words[l->data.format], stream);
}

static void print_sample(struct check *c)
{
    char n[UNITS_MAX], a[UNITS_MAX], b[UNITS_MAX], most[UNITS_MAX];
    json_t *bad;
    size_t i;
    if (!c->count) {
        print_field("sample", "no good record among the first %s", units_count(n, (double)c->sample.records));
    } else if (c->spec.steps.count) {
        print_field("sample", "%s record%s read; what the steps make of them, the first lease shows", units_count(n, (double)c->count), c->count == 1 ? "" : "s");
    } else if (c->local.model.arrays) {
        print_field("sample", "%s record%s read; whether they are what the model wants, the first lease shows", units_count(n, (double)c->count),
                    c->count == 1 ? "" : "s");
    } else {
        qsort(c->counts, c->count, sizeof *c->counts, by_number);
        uint32_t median = c->counts[c->count / 2], longest = c->counts[c->count - 1], limit = c->local.model.max_tokens;
        int error = strcmp(c->spec.on_long, "error") == 0;
        units_count(n, (double)c->count);
        units_count(a, median);
        units_count(b, longest);
        units_count(most, limit);
        if (c->cut)
            print_field("sample", "%s record%s: median %s tokens, longest %s%s (the model takes %s: %.3g %% would %s; --on-long error|truncate, now %s)", n,
                        c->count == 1 ? "" : "s", a, longest == LONGEST_COUNTED ? "more than " : "", b, most, 100.0 * (double)c->cut / (double)c->count,
                        error ? "be errors" : "be cut", c->spec.on_long);
        else
            print_field("sample", "%s record%s: median %s tokens, longest %s (the model takes %s)", n, c->count == 1 ? "" : "s", a, b, most);
    }
    char words[512];
    for (size_t k = 0; local_absent(&c->spec, &c->sample, k, words, sizeof words); k++)
        print_field("note", "%s", words);
    if (c->bad)
        print_field("errors", "%zu of the first %s records:", c->bad, units_count(n, (double)c->sample.records));
    json_array_foreach(c->errors, i, bad)
        printf("        %s:%" PRIu64 ": %s: %s\n", short_path(text_of(bad, "source")), count_of(bad, "line"), text_of(bad, "code"), text_of(bad, "message"));
}

static int print_all(struct check *c)
{
    const struct model_info *m = &c->local.model;
    char a[UNITS_MAX], b[UNITS_MAX], d[UNITS_MAX];
    double records = local_guess(&c->local, &c->spec, &c->sample);
    double seconds = c->speed.records_per_s > 0 ? records / c->speed.records_per_s : -1, bytes = output_bytes(c, records);
    uint64_t free_bytes = 0;
    struct err e;
    enum status st = path_free_bytes(c->local.out.path, &free_bytes, &e);
    if (st != ST_OK)
        return fail(&e);
    if (common.json && c->spec.steps.count) {
        json_t *spec = jobspec_to_json(&c->spec), *steps = json_incref(json_object_get(spec, "steps"));
        json_decref(spec);
        return print_json(json_pack("{s:o, s:s, s:I, s:I, s:f, s:b, s:{s:I, s:I}, s:O, s:I}", "steps", steps, "format", format_name(c->local.data.format), "sources",
                                    (json_int_t)c->local.data.count, "bytes", (json_int_t)c->local.bytes, "records_guess", records, "exact", c->sample.whole, "sample", "records",
                                    (json_int_t)c->sample.records, "bad", (json_int_t)c->bad, "errors", c->errors, "free_bytes", (json_int_t)free_bytes));
    }
    if (common.json)
        return print_json(json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:f, s:b, s:{s:I, s:I, s:I, s:I, s:I, s:f}, s:O, s:f, s:f, s:I, s:o, s:f, s:I}", "model",
                                    m->name, "task", m->task, "precision", m->precision, "precision_why", m->precision_why, "numerics", m->numerics, "format", format_name(c->local.data.format), "sources",
                                    (json_int_t)c->local.data.count, "bytes", (json_int_t)c->local.bytes, "dims", (json_int_t)m->dims, "records_guess", records,
                                    "exact", c->sample.whole, "sample", "records", (json_int_t)c->sample.records, "bad", (json_int_t)c->bad, "median_tokens",
                                    (json_int_t)(c->count ? c->counts[c->count / 2] : 0), "longest_tokens", (json_int_t)(c->count ? c->counts[c->count - 1] : 0),
                                    "max_tokens", (json_int_t)m->max_tokens, "cut_share", c->count ? (double)c->cut / (double)c->count : 0.0, "errors", c->errors,
                                    "records_per_s", c->speed.records_per_s, "tokens_per_s", c->speed.tokens_per_s, "lanes", (json_int_t)c->lanes, "seconds",
                                    seconds < 0 ? json_null() : json_real(seconds), "output_bytes", bytes, "free_bytes", (json_int_t)free_bytes));
    char gives[128], words[512];
    for (size_t i = 0; i < c->spec.steps.count; i++) {
        snprintf(gives, sizeof gives, "step %zu", i + 1);
        print_field(gives, "%s", local_step_words(&c->spec, c->local.steps, i, words, sizeof words));
    }
    if (c->spec.steps.count) {
        print_reads(c, records);
        print_sample(c);
        puts("nothing was started");
        return EXIT_DONE;
    }
    print_field("model", "%s (%s, %s parameters, %s), %s", m->name, m->architecture, units_count(a, (double)m->parameters),
                local_gives(m, gives, sizeof gives), m->precision);
    print_field("numbers", "%s: %s", m->precision, m->precision_why);
    print_reads(c, records);
    print_sample(c);
    if (seconds >= 0) {
        print_field("speed", "about %s on this machine (%s, %u core%s)", units_rate(a, c->speed.records_per_s), m->precision, c->lanes,
                    c->lanes == 1 ? "" : "s");
        print_field("time", "%s here; output about %s, %s are free", units_duration(a, seconds), units_bytes(b, (uint64_t)bytes), units_bytes(d, free_bytes));
    }
    if (free_bytes < KEPT_FREE)
        print_field("space", "less than %s are free: 'ebb run' would wait until there is more", units_bytes(a, KEPT_FREE));
    else if (bytes > (double)free_bytes)
        print_field("space", "the output does not fit: choose another --output, or --output-format npy, or --floats base64");
    puts("nothing was started");
    return EXIT_DONE;
}

/* What stands at the output already. */
static enum status look_at_output(struct check *c, struct err *e)
{
    struct buf theirs = {0};
    enum status st = output_owner(&c->local.out, &theirs, e);
    buf_release(&theirs);
    if (st == ST_OK)
        say("'%s' holds a job already: 'ebb run' goes on with it, or says what differs", short_path(c->local.out.path));
    return st == ST_NOT_FOUND ? ST_OK : st;
}

static enum status measure(struct check *c, struct err *e)
{
    struct model_opts o = {.precision = c->spec.precision, .task = c->spec.task, .top_k = (uint32_t)c->spec.top_k};
    if (c->local.model.arrays || c->spec.steps.count)
        return local_sample(&c->local, &c->spec, SAMPLE, 4u << 20, 300, visit, c, &c->sample, e);
    char *folder;
    TRY(model_folder(c->spec.model, &folder, e));
    enum status opened = tokenizer_open(folder, &c->tokenizer, e);
    mem_free(folder);
    TRY(opened);
    TRY(tok_scratch_new(&c->scratch, e));
    TRY(local_sample(&c->local, &c->spec, SAMPLE, 4u << 20, 300, visit, c, &c->sample, e));
    if (c->st != ST_OK) {
        *e = c->e;
        return c->st;
    }
    qsort(c->counts, c->count, sizeof *c->counts, by_number);
    if (!c->tokens.count)
        return ST_OK;
    TRY(model_open(c->spec.model, &o, &c->model, e));
    model_set_mask(c->model, tokenizer_id(c->tokenizer, model_info(c->model)->mask_token));
    c->local.model = *model_info(c->model);
    return measure_speed(c->model, &c->tokens, c->lanes, (uint32_t)c->spec.micro_batch, (uint32_t)c->spec.micro_batch_tokens, 1.5, &c->speed, e);
}

static int run_check(int operand_count, char **operands)
{
    struct check *c = mem_zalloc(sizeof *c);
    struct err e;
    if (!c || !(c->errors = json_array()))
        return fail_with(ST_NOMEM, "out of memory for a check");
    if (spec_read(&c->spec, operand_count, operands, &e) != ST_OK) {
        json_decref(c->errors);
        mem_free(c);
        return fail(&e);
    }
    c->lanes = host_processors();
    enum status st = ST_OK;
    if (strcmp(c->spec.inputs.items[0], "-") == 0)
        st = err_set(&e, ST_USER, "standard input can be read only once, so a check would take it from the run; check a file with its first records instead");
    if (st == ST_OK)
        st = local_open(&c->local, &c->spec, &e);
    if (st == ST_OK && !common.force)
        st = look_at_output(c, &e);
    if (st == ST_OK)
        st = measure(c, &e);
    int code = st == ST_OK ? print_all(c) : fail(&e);
    model_free(c->model);
    tok_scratch_free(c->scratch);
    tokenizer_free(c->tokenizer);
    tokens_release(&c->tokens);
    local_release(&c->local);
    jobspec_release(&c->spec);
    json_decref(c->errors);
    mem_free(c);
    return code;
}

static const struct opt own[] = {
    {.name = "force", .type = OPT_FLAG, .value = &common.force, .group = "This command", .help = "as if the output were free"},
    {.name = "json", .type = OPT_FLAG, .value = &common.json, .group = "This command", .help = "print the findings as JSON"},
};

static const struct opt_command like = {
    .name = "ebb check",
    .operands = "[JOB.yaml]",
    .summary = "say what a job would do, how long it would take and what is wrong with it; start nothing",
    .details = "Takes what 'ebb run' and 'ebb submit' take. Reads the model and the first records, counts their tokens, runs them for a second or two.\n"
               "\n"
               "Exit codes: 0 the job can be started; 2 it cannot, and why; 1 the environment failed.",
    .examples = "  ebb check --model minilm/ --input reviews.csv --field text --output out/\n  ebb check job.yaml --json",
    .operands_max = 64,
};

static const struct opt_command *make_table(struct err *e)
{
    return spec_table(&like, own, COUNT(own), e);
}

const struct command command_check = {.name = "check", .group = "On this machine", .make_table = make_table, .run = run_check};
