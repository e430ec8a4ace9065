/* `ebb model inspect` and `ebb model bench`. */
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/host.h"
#include "base/mem.h"
#include "base/units.h"
#include "client/client.h"
#include "client/measure.h"
#include "workers/engine/precision.h"
#include "workers/text/tokenizer.h"

static uint64_t lanes, seconds_ms = 2000, open_size = 64;
static const char *task_word, *precision_word;

/* The model as a job with these flags would have it. */
static struct model_opts wanted(void)
{
    return (struct model_opts){.task = task_word, .precision = precision_word};
}

enum { CUT_TOKENS = 128 }; /* the length, or open size, for which segments are told */

static json_t *segments_json(const struct cut *c)
{
    json_t *list = json_array();
    for (uint32_t i = 0; list && i < c->count; i++)
        json_array_append_new(list, json_pack("{s:s, s:I, s:f, s:I}", "first", c->list[i].first, "weight_bytes", (json_int_t)c->list[i].weight_bytes, "flops",
                                              c->list[i].flops, "out_bytes", (json_int_t)c->list[i].out_bytes));
    return list;
}

static void print_segments(const struct cut *c, int arrays)
{
    char a[UNITS_MAX], b[UNITS_MAX], d[UNITS_MAX];
    const struct cut_segment *costliest = c->list;
    uint64_t most = 0;
    if (!c->count)
        return;
    for (uint32_t i = 1; i < c->count; i++)
        costliest = c->list[i].flops > costliest->flops ? &c->list[i] : costliest;
    for (uint32_t i = 0; i + 1 < c->count; i++)
        most = c->list[i].out_bytes > most ? c->list[i].out_bytes : most;
    if (c->count == 1)
        print_field("cuts", "none: 1 segment");
    else
        print_field("cuts", "into %u segments, the costliest with %s of weights and %s operations %s %d%s; at most %s cross a cut", c->count, units_bytes(a, costliest->weight_bytes),
                    units_count(d, costliest->flops), arrays ? "where open sizes are" : "on", CUT_TOKENS, arrays ? "" : " tokens", units_bytes(b, most));
}

static json_t *inspect_json(const struct model_info *m, uint32_t vocabulary, const struct cut *cut)
{
    json_t *j = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:b, s:s, s:I, s:s, s:s}", "name", m->name, "architecture", m->architecture, "task", m->task,
                          "precision", m->precision, "isa", m->isa, "numerics", m->numerics, "pooling", m->pooling, "normalize", m->normalize, "scoring",
                          m->scoring, "labels", (json_int_t)m->labels, "label_names", m->label_names, "ops", m->ops);
    json_t *more = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:I, s:I}", "parameters", (json_int_t)m->parameters, "weight_bytes",
                             (json_int_t)m->weight_bytes, "layers", (json_int_t)m->layers, "hidden", (json_int_t)m->hidden, "heads", (json_int_t)m->heads,
                             "ffn", (json_int_t)m->ffn, "vocab", (json_int_t)m->vocab, "tokenizer_vocab", (json_int_t)vocabulary, "max_tokens",
                             (json_int_t)m->max_tokens, "dims", (json_int_t)m->dims, "digest", m->digest.hex, "bytes", (json_int_t)m->digest.size_bytes,
                             "files", (json_int_t)m->digest.files);
    if (j && more)
        json_object_update(j, more);
    if (j)
        json_object_set_new(j, "segments", segments_json(cut));
    json_decref(more);
    return j;
}

static void print_gives(const struct model_info *m)
{
    switch (m->kind) {
    case TASK_EMBED: print_field("gives", "%u floats a %s%s%s%s", m->dims, m->arrays ? "record" : "text: ", m->pooling, m->arrays ? "" : " pooling", m->normalize ? ", scaled to length 1" : ""); break;
    case TASK_CLASSIFY:
    case TASK_TOKENS:
        print_field("gives", "scores (%s) of %u label%s for each %s: %s", m->scoring, m->labels, m->labels == 1 ? "" : "s",
                    m->kind == TASK_TOKENS ? "token" : m->arrays ? "record" : "text", m->label_names);
        break;
    case TASK_FILL_MASK: print_field("gives", "the %u likeliest tokens for each %s in a text (--top-k)", m->dims, m->mask_token); break;
    case TASK_OUTPUTS: print_field("gives", "%s", m->outputs); break;
    case TASKS: break;
    }
}

static enum status open_tokenizer(const char *path, struct tokenizer **out, struct err *e)
{
    char *folder;
    TRY(model_folder(path, &folder, e));
    enum status st = tokenizer_open(folder, out, e);
    mem_free(folder);
    return st;
}

static int run_inspect(int operand_count, char **operands)
{
    (void)operand_count;
    struct model_info m;
    struct model_opts o = wanted();
    struct tokenizer *t = NULL;
    struct cut cut = {.tokens = CUT_TOKENS};
    struct err e;
    char a[UNITS_MAX], b[UNITS_MAX];
    enum status st = model_probe_cut(operands[0], &o, &m, &cut, &e);
    if (st == ST_OK && !m.arrays)
        st = open_tokenizer(operands[0], &t, &e);
    if (st != ST_OK) {
        cut_release(&cut);
        return fail(&e);
    }
    uint32_t vocabulary = t ? tokenizer_vocab_size(t) : 0, special = t ? tokenizer_special_count(t) : 0;
    tokenizer_free(t);
    if (common.json) {
        json_t *j = inspect_json(&m, vocabulary, &cut);
        cut_release(&cut);
        return print_json(j);
    }
    print_field("model", "%s (%s), to %s", m.name, m.architecture, m.task);
    print_field("size", "%s parameters, %s in %u files", units_count(a, (double)m.parameters), units_bytes(b, m.digest.size_bytes), m.digest.files);
    if (m.layers)
        print_field("shape", "%u layers, hidden %u, %u heads, feed-forward %u, vocabulary %s", m.layers, m.hidden, m.heads, m.ffn, units_count(a, m.vocab));
    if (m.arrays)
        print_field("takes", "%s", m.inputs);
    else
        print_field("text", "at most %u tokens, %u of them special; longer texts are cut (--on-long)", m.max_tokens, special);
    print_gives(&m);
    print_field("ops", "%s", m.ops);
    print_segments(&cut, m.arrays);
    cut_release(&cut);
    print_field("memory", "%s of weights, shared by all lanes", units_bytes(a, m.weight_bytes));
    print_field("runs", "all of it on the processor, by %s kernels; numerics %s", m.isa, m.numerics);
    print_field("numbers", "%s: %s", m.precision, m.precision_why);
    print_field("digest", "%s", m.digest.hex);
    return EXIT_DONE;
}

/* Texts of 4 to 60 words, the same ones each time. */
static enum status generate(const struct tokenizer *t, uint32_t most, const char *mask, struct tokens *out, struct err *e)
{
    static const char *const words[] = {"the",  "tide",  "of",   "a",     "harbour", "rises", "slowly", "and",    "falls",    "while",  "boats", "wait",
                                        "for",  "wind",  "that", "never", "comes",   "in",    "time",   "people", "remember", "stones", "under", "water",
                                        "cold", "light", "is",   "made",  "from",    "many",  "small",  "waves"};
    struct tok_scratch *s = NULL;
    struct tok_result r;
    struct buf text = {0};
    uint64_t state = 88172645463325252u;
    enum status st = tok_scratch_new(&s, e);
    for (int i = 0; i < 400 && st == ST_OK; i++) {
        buf_clear(&text);
        int count = 4 + i * 37 % 57, failed = 0;
        if (*mask)
            failed = buf_str(&text, mask) || buf_char(&text, ' ');
        for (int w = 0; w < count && !failed; w++) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17; /* xorshift64 */
            failed = buf_str(&text, words[state % COUNT(words)]) || buf_char(&text, ' ');
        }
        st = failed ? err_nomem(e, "a text") : tokenizer_encode(t, s, text.data, text.len, most, &r, e);
        if (st == ST_OK && tokens_add(out, r.ids, r.count))
            st = err_nomem(e, "tokens");
    }
    buf_release(&text);
    tok_scratch_free(s);
    return st;
}

/* One model on n lanes: what it does, and what share of the machine that is. */
static enum status bench_lanes(const struct model *m, const struct tokens *tokens, uint32_t n, struct err *e)
{
    const struct model_info *i = model_info(m);
    struct speed speed;
    char a[UNITS_MAX], b[UNITS_MAX], share[64] = "";
    double flops = model_flops(m, tokens->count, tokens->lengths) / (double)tokens->total;
    double before = measure_peak(i->isa, n, 0.2);
    TRY(measure_speed(m, tokens, n, 64, 1024, (double)seconds_ms / 1000, &speed, e));
    double after = measure_peak(i->isa, n, 0.2), peak = before > after ? before : after; /* others may have used the machine */
    if (common.json) {
        print_json(json_pack("{s:s, s:s, s:s, s:s, s:I, s:f, s:f, s:f, s:f, s:o}", "model", i->name, "task", i->task, "precision", i->precision, "isa", i->isa,
                             "lanes", (json_int_t)n, "records_per_s", speed.records_per_s, "tokens_per_s", speed.tokens_per_s, "tokens_per_record",
                             (double)tokens->total / (double)tokens->count, "gflops", speed.tokens_per_s * flops / 1e9, "of_f32_peak",
                             peak > 0 ? json_real(speed.tokens_per_s * flops / peak) : json_null()));
    } else {
        if (peak > 0)
            snprintf(share, sizeof share, "; %.0f %% of the f32 multiply-adds that the machine can do", 100 * speed.tokens_per_s * flops / peak);
        print_field(i->precision, "%u lane%s: %s (%s of tokens)%s", n, n == 1 ? "" : "s", units_rate(a, speed.records_per_s),
                    units_rate(b, speed.tokens_per_s), share);
    }
    fflush(stdout);
    return ST_OK;
}

static enum status bench_arrays(const struct model *m, uint32_t n, struct err *e)
{
    const struct model_info *i = model_info(m);
    struct speed speed;
    char a[UNITS_MAX];
    TRY(measure_arrays(m, (int64_t)open_size, n, (double)seconds_ms / 1000, &speed, e));
    if (common.json)
        print_json(json_pack("{s:s, s:s, s:s, s:s, s:I, s:f}", "model", i->name, "task", i->task, "precision", i->precision, "isa", i->isa, "lanes", (json_int_t)n,
                             "records_per_s", speed.records_per_s));
    else
        print_field(i->precision, "%u lane%s: %s", n, n == 1 ? "" : "s", units_rate(a, speed.records_per_s));
    fflush(stdout);
    return ST_OK;
}

static enum status bench_precision(const char *dir, const char *precision, uint32_t most, struct err *e)
{
    struct model *m = NULL;
    struct tokenizer *t = NULL;
    struct model_opts o = wanted();
    struct tokens tokens = {0};
    o.precision = precision;
    TRY(model_open(dir, &o, &m, e));
    const struct model_info *i = model_info(m);
    enum status st = i->arrays ? ST_OK : open_tokenizer(dir, &t, e);
    if (st == ST_OK && t) {
        model_set_mask(m, tokenizer_id(t, i->mask_token));
        st = generate(t, i->max_tokens, i->mask_token, &tokens, e);
    }
    if (st == ST_OK && !common.json && i->arrays)
        print_field("model", "%s, to %s, %s, %s kernels; made-up %s", i->name, i->task, i->precision, i->isa, i->inputs);
    else if (st == ST_OK && !common.json)
        print_field("model", "%s, to %s, %s, %s kernels; texts of 4 to 60 words, %.1f tokens each", i->name, i->task, i->precision, i->isa,
                    (double)tokens.total / (double)tokens.count);
    for (uint32_t n = 1; st == ST_OK; n = n * 2 < most ? n * 2 : most) { /* 1, 2, 4 ... and all */
        st = i->arrays ? bench_arrays(m, n, e) : bench_lanes(m, &tokens, n, e);
        if (n == most)
            break;
    }
    tokens_release(&tokens);
    tokenizer_free(t);
    model_free(m);
    return st;
}

static int run_bench(int operand_count, char **operands)
{
    (void)operand_count;
    struct err e;
    uint32_t most = lanes ? (uint32_t)(lanes < 4096 ? lanes : 4096) : host_processors();
    enum status st = ST_OK;
    if (precision_word)
        st = bench_precision(operands[0], precision_word, most, &e);
    for (int i = 0; st == ST_OK && !precision_word && precision_words[i]; i++)
        st = bench_precision(operands[0], precision_words[i], most, &e);
    return st == ST_OK ? EXIT_DONE : fail(&e);
}

#define ROW_TASK                                                                                                                                              \
    {                                                                                                                                                         \
        .name = "task", .type = OPT_TEXT, .value = &task_word, .arg = "WORD",                                                                                 \
        .help = "embed, classify, token-classify or fill-mask (default: what it was made for)"                                                                \
    }

static const struct opt inspect_opts[] = {
    ROW_TASK,
    {.name = "precision", .type = OPT_TEXT, .value = &precision_word, .arg = "WORD", .help = "as a job with this --precision would run it"},
    ROW_JSON,
};
static const struct opt_command inspect_table = {.name = "ebb model inspect", .operands = "DIR", .summary = "say what a model is and what it takes",
                                                 .examples = "  ebb model inspect all-MiniLM-L6-v2/", .opts = inspect_opts, .opt_count = COUNT(inspect_opts),
                                                 .operands_min = 1, .operands_max = 1};
const struct command command_model_inspect = {.name = "model inspect", .group = "On this machine", .table = &inspect_table, .run = run_inspect};

static const struct opt bench_opts[] = {
    {.name = "lanes", .type = OPT_NUMBER, .value = &lanes, .arg = "N", .help = "up to so many cores at once (default: all)"},
    {.name = "seconds", .type = OPT_DURATION, .value = &seconds_ms, .arg = "TIME", .help = "for each number of lanes (default: 2s)"},
    {.name = "size", .type = OPT_NUMBER, .value = &open_size, .arg = "N", .help = "what open sizes of a model's arrays are (default: 64)"},
    {.name = "precision", .type = OPT_TEXT, .value = &precision_word, .arg = "WORD", .help = "only this one (default: all that there are)"},
    ROW_TASK,
    ROW_JSON,
};
static const struct opt_command bench_table = {.name = "ebb model bench", .operands = "DIR", .summary = "measure how fast a model runs on this machine",
                                               .details = "Runs made-up texts through the engine alone, in each precision, on one lane and on more. Reading, tokenising and writing are left "
                                                          "out: 'ebb check' says what a job would do. The share is of the multiply-adds in f32 that as many cores do when they do "
                                                          "nothing else, measured just before and after.",
                                               .examples = "  ebb model bench all-MiniLM-L6-v2/ --lanes 4", .opts = bench_opts, .opt_count = COUNT(bench_opts),
                                               .operands_min = 1, .operands_max = 1};
const struct command command_model_bench = {.name = "model bench", .group = "On this machine", .table = &bench_table, .run = run_bench};
