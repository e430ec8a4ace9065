/* `ebb model inspect` and `ebb model bench`. */
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/host.h"
#include "base/mem.h"
#include "base/units.h"
#include "client/client.h"
#include "client/measure.h"
#include "workers/text/tokenizer.h"

static uint64_t lanes, seconds_ms = 2000;

static int run_inspect(int operand_count, char **operands)
{
    (void)operand_count;
    struct model_info m;
    struct tokenizer *t = NULL;
    struct err e;
    char a[UNITS_MAX], b[UNITS_MAX];
    if (model_probe(operands[0], NULL, &m, &e) != ST_OK || tokenizer_open(operands[0], &t, &e) != ST_OK)
        return fail(&e);
    uint32_t vocabulary = tokenizer_vocab_size(t), special = tokenizer_special_count(t);
    tokenizer_free(t);
    if (common.json)
        return print_json(json_pack("{s:s, s:s, s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:I, s:I}", "name", m.name, "architecture",
                                    m.architecture, "pooling", m.pooling, "normalize", m.normalize, "parameters", (json_int_t)m.parameters, "layers",
                                    (json_int_t)m.layers, "hidden", (json_int_t)m.hidden, "heads", (json_int_t)m.heads, "ffn", (json_int_t)m.ffn, "vocab",
                                    (json_int_t)m.vocab, "tokenizer_vocab", (json_int_t)vocabulary, "max_tokens", (json_int_t)m.max_tokens, "dims",
                                    (json_int_t)m.dims, "digest", m.digest.hex, "bytes", (json_int_t)m.digest.size_bytes, "files", (json_int_t)m.digest.files));
    print_field("model", "%s (%s)", m.name, m.architecture);
    print_field("size", "%s parameters, %s in %u files", units_count(a, (double)m.parameters), units_bytes(b, m.digest.size_bytes), m.digest.files);
    print_field("shape", "%u layers, hidden %u, %u heads, feed-forward %u, vocabulary %s", m.layers, m.hidden, m.heads, m.ffn, units_count(a, m.vocab));
    print_field("text", "at most %u tokens, %u of them special; longer texts are cut (--on-long)", m.max_tokens, special);
    print_field("gives", "%u floats a text: %s pooling%s", m.dims, m.pooling, m.normalize ? ", scaled to length 1" : "");
    print_field("digest", "%s", m.digest.hex);
    return EXIT_DONE;
}

/* Texts of 4 to 60 words, the same ones each time. */
static enum status generate(const char *dir, uint32_t most, struct tokens *out, struct err *e)
{
    static const char *const words[] = {"the",  "tide",  "of",   "a",     "harbour", "rises", "slowly", "and",    "falls",    "while",  "boats", "wait",
                                        "for",  "wind",  "that", "never", "comes",   "in",    "time",   "people", "remember", "stones", "under", "water",
                                        "cold", "light", "is",   "made",  "from",    "many",  "small",  "waves"};
    struct tokenizer *t = NULL;
    struct tok_scratch *s = NULL;
    struct tok_result r;
    struct buf text = {0};
    uint64_t state = 88172645463325252u;
    enum status st = tokenizer_open(dir, &t, e);
    if (st == ST_OK)
        st = tok_scratch_new(&s, e);
    for (int i = 0; i < 400 && st == ST_OK; i++) {
        buf_clear(&text);
        int count = 4 + i * 37 % 57, failed = 0;
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
    tokenizer_free(t);
    return st;
}

static int run_bench(int operand_count, char **operands)
{
    (void)operand_count;
    struct model *m = NULL;
    struct model_opts o = {0};
    struct tokens tokens = {0};
    struct err e;
    char a[UNITS_MAX], b[UNITS_MAX];
    uint32_t most = lanes ? (uint32_t)(lanes < 4096 ? lanes : 4096) : host_processors();
    enum status st = model_open(operands[0], &o, &m, &e);
    if (st == ST_OK)
        st = generate(operands[0], model_info(m)->max_tokens, &tokens, &e);
    if (st == ST_OK && !common.json)
        print_field("model", "%s, %s, %s kernels; texts of 4 to 60 words, %.1f tokens each", model_info(m)->name, model_info(m)->precision, model_info(m)->isa,
                    (double)tokens.total / (double)tokens.count);
    for (uint32_t n = 1; st == ST_OK; n = n * 2 < most ? n * 2 : most) { /* 1, 2, 4 ... and all */
        struct speed speed;
        st = measure_speed(m, &tokens, n, 64, 1024, (double)seconds_ms / 1000, &speed, &e);
        if (st == ST_OK && common.json)
            print_json(json_pack("{s:s, s:s, s:s, s:I, s:f, s:f, s:f}", "model", model_info(m)->name, "precision", model_info(m)->precision, "isa",
                                 model_info(m)->isa, "lanes", (json_int_t)n, "records_per_s", speed.records_per_s, "tokens_per_s", speed.tokens_per_s,
                                 "tokens_per_record", (double)tokens.total / (double)tokens.count));
        else if (st == ST_OK)
            print_field(n == 1 ? "speed" : "", "%u lane%s: %s (%s of tokens)", n, n == 1 ? "" : "s", units_rate(a, speed.records_per_s), units_rate(b, speed.tokens_per_s));
        fflush(stdout);
        if (n == most)
            break;
    }
    tokens_release(&tokens);
    model_free(m);
    return st == ST_OK ? EXIT_DONE : fail(&e);
}

static const struct opt inspect_opts[] = {ROW_JSON};
static const struct opt_command inspect_table = {.name = "ebb model inspect", .operands = "DIR", .summary = "say what a model is and what it takes",
                                                 .examples = "  ebb model inspect all-MiniLM-L6-v2/", .opts = inspect_opts, .opt_count = COUNT(inspect_opts),
                                                 .operands_min = 1, .operands_max = 1};
const struct command command_model_inspect = {.name = "model inspect", .group = "On this machine", .table = &inspect_table, .run = run_inspect};

static const struct opt bench_opts[] = {
    {.name = "lanes", .type = OPT_NUMBER, .value = &lanes, .arg = "N", .help = "up to so many cores at once (default: all)"},
    {.name = "seconds", .type = OPT_DURATION, .value = &seconds_ms, .arg = "TIME", .help = "for each number of lanes (default: 2s)"},
    ROW_JSON,
};
static const struct opt_command bench_table = {.name = "ebb model bench", .operands = "DIR", .summary = "measure how fast a model runs on this machine",
                                               .details = "Runs made-up texts through the engine alone, on one lane and on more. Reading, tokenising and writing are left out: "
                                                          "'ebb check' says what a job would do.",
                                               .examples = "  ebb model bench all-MiniLM-L6-v2/ --lanes 4", .opts = bench_opts, .opt_count = COUNT(bench_opts),
                                               .operands_min = 1, .operands_max = 1};
const struct command command_model_bench = {.name = "model bench", .group = "On this machine", .table = &bench_table, .run = run_bench};
