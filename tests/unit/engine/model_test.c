/* Models from tiny directories: what is read, what is refused and how, and that a row's bits depend on nothing but its tokens. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xmmintrin.h>

#include "base/mem.h"
#include "base/path.h"
#include "tests/lib/files.h"
#include "tests/lib/tinymodel.h"
#include "workers/engine/model.h"

static char dir[] = "/tmp/ebb-model-test-XXXXXX";

static int make_dir(void **state)
{
    (void)state;
    strcpy(dir + strlen(dir) - 6, "XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int drop_dir(void **state)
{
    (void)state;
    struct err e;
    return path_remove_tree(dir, &e) != ST_OK;
}

static void tiny(const struct tinymodel *t)
{
    assert_int_equal(tinymodel_write(dir, t), 0);
}

static struct model *open_with(const struct model_opts *o)
{
    struct model *m = NULL;
    struct err e;
    if (model_open(dir, o, &m, &e) != ST_OK)
        fail_msg("%s", e.text);
    return m;
}

static struct model_ctx *context(const struct model *m, uint32_t tokens, uint32_t seqs)
{
    struct model_ctx *c = NULL;
    assert_int_equal(model_ctx_new(m, tokens, seqs, &c, NULL), ST_OK);
    return c;
}

/* The message starts with '<dir>, so that tests need not know dir: `tail` is what follows it. */
static void refused(const struct model_opts *o, enum status want, const char *tail)
{
    struct model *m = (struct model *)1;
    struct err e = {0};
    enum status st = model_open(dir, o, &m, &e);
    if (st == ST_OK)
        fail_msg("opened, though it should say: %s", tail);
    assert_int_equal(st, want);
    assert_int_equal(e.code, want);
    assert_ptr_equal(m, (struct model *)1);
    const char *at = strstr(e.text, dir);
    assert_string_equal(at ? at + strlen(dir) : e.text, tail);
}

/* Files ---------------------------------------------------------------------------------------------------------------------------- */

static char *path_of(const char *name)
{
    static char p[4096];
    snprintf(p, sizeof p, "%s/%s", dir, name);
    return p;
}

static void put(const char *name, const void *data, size_t n)
{
    files_put(path_of(name), data, n);
}

static void put_text(const char *name, const char *s)
{
    put(name, s, strlen(s));
}

static char *get(const char *name, size_t *n)
{
    FILE *f = fopen(path_of(name), "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    char *p = calloc(1, *n + 1);
    assert_int_equal(fread(p, 1, *n, f), *n);
    fclose(f);
    return p;
}

/* Replaces the first `from` behind `after` in a file by `to` of the same length. */
static void edit(const char *name, const char *after, const char *from, const char *to)
{
    size_t n;
    char *p = get(name, &n), *at;
    assert_int_equal(strlen(from), strlen(to));
    at = memmem(p, n, after, strlen(after));
    assert_non_null(at);
    at = memmem(at, n - (size_t)(at - p), from, strlen(from));
    assert_non_null(at);
    memcpy(at, to, strlen(to));
    put(name, p, n);
    free(p);
}

/* Where a tensor's data begins in model.safetensors. */
static size_t data_of(const char *tensor)
{
    size_t n;
    char *p = get("model.safetensors", &n), key[128];
    uint64_t header;
    memcpy(&header, p, 8);
    snprintf(key, sizeof key, "\"%s\":", tensor);
    char *at = memmem(p, n, key, strlen(key));
    assert_non_null(at);
    at = strstr(at, "data_offsets\":[");
    size_t where = 8 + header + strtoull(at + strlen("data_offsets\":["), NULL, 10);
    free(p);
    return where;
}

static void poke(const char *tensor, uint32_t element, float value)
{
    FILE *f = fopen(path_of("model.safetensors"), "r+b");
    assert_non_null(f);
    fseek(f, (long)(data_of(tensor) + 4 * element), SEEK_SET);
    fwrite(&value, 4, 1, f);
    fclose(f);
}

static void cut(const char *name, off_t size)
{
    assert_int_equal(truncate(path_of(name), size), 0);
}

static off_t size_of(const char *name)
{
    struct stat s;
    assert_int_equal(stat(path_of(name), &s), 0);
    return s.st_size;
}

/* A safetensors file with this header and no data. */
static void put_header(const char *header, uint64_t len)
{
    char p[4096] = {0};
    memcpy(p, &len, 8);
    strcpy(p + 8, header);
    put("model.safetensors", p, 8 + strlen(header));
}

/* Runs -------------------------------------------------------------------------------------------------------------------------- */

static uint64_t seed = 7;

static uint32_t below(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % n);
}

enum { SEQS = 24, LONGEST = 64, HIDDEN_MAX = 96 };

struct texts {
    uint32_t lengths[SEQS], starts[SEQS], total;
    int32_t ids[SEQS * LONGEST];
};

static void random_texts(struct texts *t, uint32_t longest, uint32_t vocab)
{
    t->total = 0;
    for (int i = 0; i < SEQS; i++) {
        t->starts[i] = t->total;
        t->lengths[i] = 1 + below(longest);
        for (uint32_t j = 0; j < t->lengths[i]; j++)
            t->ids[t->total++] = (int32_t)below(vocab);
    }
}

static void run_alone(const struct model *m, const struct texts *t, float *out)
{
    uint32_t dims = model_info(m)->dims;
    struct model_ctx *c = context(m, LONGEST, 1);
    for (int i = 0; i < SEQS; i++)
        model_run(m, c, 1, &t->lengths[i], t->ids + t->starts[i], out + (size_t)i * dims);
    model_ctx_free(c);
}

/* Random subsets in random order, packed, through one context that is never cleaned between them. */
static void bits_depend_on_the_text_alone(void **state)
{
    (void)state;
    static const struct tinymodel kinds[] = {
        {.hidden = 32},
        {.hidden = 36, .heads = 3, .ffn = 50, .layers = 3, .act = "gelu_new", .pooling = "cls"},
        {.hidden = 96, .heads = 2, .ffn = 400, .layers = 1, .act = "relu", .pooling = "max", .no_normalize = 1},
        {.hidden = 15, .heads = 5, .ffn = 7, .pooling = "mean_sqrt_len"},
    };
    for (size_t k = 0; k < 3 * sizeof kinds / sizeof *kinds; k++) { /* in each precision */
        static const char *const precisions[] = {"f32", "bf16", "int8"};
        const char *precision = precisions[k % 3];
        tiny(&kinds[k / 3]);
        struct texts t;
        random_texts(&t, LONGEST, 512);
        static const char *const isas[] = {"auto", "generic"};
        static float first[SEQS * HIDDEN_MAX];
        char numerics[64];
        for (int v = 0; v < 3; v++) {
            struct model *m = open_with(&(struct model_opts){.isa = v < 2 ? isas[v] : NULL, .precision = precision, .reference = v == 2});
            if (v == 0)
                strcpy(numerics, model_info(m)->numerics);
            else if (strcmp(numerics, model_info(m)->numerics) != 0) { /* bf16 by an instruction that rounds in its own way */
                model_free(m);
                continue;
            }
            uint32_t dims = model_info(m)->dims;
            static float alone[SEQS * HIDDEN_MAX], packed[SEQS * HIDDEN_MAX];
            run_alone(m, &t, alone);
            if (v == 0)
                memcpy(first, alone, sizeof *alone * SEQS * dims);
            else
                assert_memory_equal(first, alone, sizeof *alone * SEQS * dims); /* every kernel set, the same bits */
            struct model_ctx *c = context(m, SEQS * LONGEST, SEQS);
            for (int r = 0; r < (v == 0 ? 40 : 3); r++) {
                uint32_t n = 1 + below(SEQS), which[SEQS], lengths[SEQS], total = 0;
                int32_t ids[SEQS * LONGEST];
                for (uint32_t i = 0; i < n; i++) {
                    which[i] = below(SEQS);
                    lengths[i] = t.lengths[which[i]];
                    memcpy(ids + total, t.ids + t.starts[which[i]], lengths[i] * sizeof *ids);
                    total += lengths[i];
                }
                model_run(m, c, n, lengths, ids, packed);
                for (uint32_t i = 0; i < n; i++)
                    assert_memory_equal(packed + i * dims, alone + which[i] * dims, dims * sizeof *packed);
            }
            model_ctx_free(c);
            model_free(m);
        }
    }
}

struct lane {
    const struct model *m;
    const struct texts *t;
    const float *want;
    int bad;
};

static void *run_lane(void *p)
{
    struct lane *l = p;
    uint32_t dims = model_info(l->m)->dims;
    struct model_ctx *c = NULL;
    _mm_setcsr(_mm_getcsr() | 0x8040); /* a thread that flushes subnormals: model_run must not mind */
    unsigned mine = _mm_getcsr();
    if (model_ctx_new(l->m, SEQS * LONGEST, SEQS, &c, NULL) != ST_OK) {
        l->bad = 1;
        return NULL;
    }
    float out[SEQS * HIDDEN_MAX];
    for (int r = 0; r < 20; r++) {
        model_run(l->m, c, SEQS, l->t->lengths, l->t->ids, out);
        l->bad |= memcmp(out, l->want, sizeof *out * SEQS * dims) != 0;
    }
    l->bad |= _mm_getcsr() != mine;
    model_ctx_free(c);
    return NULL;
}

static void many_contexts_at_once(void **state)
{
    (void)state;
    tiny(&(struct tinymodel){.hidden = 48});
    struct model *m = open_with(NULL);
    struct texts t;
    random_texts(&t, LONGEST, 512);
    static float want[SEQS * HIDDEN_MAX];
    run_alone(m, &t, want);
    struct lane lane[4];
    pthread_t thread[4];
    for (int i = 0; i < 4; i++) {
        lane[i] = (struct lane){m, &t, want, 0};
        assert_int_equal(pthread_create(&thread[i], NULL, run_lane, &lane[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(lane[i].bad, 0);
    }
    model_free(m);
}

static void run_allocates_nothing(void **state)
{
    (void)state;
    tiny(&(struct tinymodel){0});
    struct model *m = open_with(NULL);
    struct model_ctx *c = context(m, 64, 4);
    uint32_t lengths[3] = {10, 1, 30};
    int32_t ids[41] = {2, 3, 4};
    float out[3 * 32];
    mem_fail_nth(UINT64_MAX);
    model_run(m, c, 3, lengths, ids, out);
    assert_int_equal(mem_fail_nth(0), 0);
    assert_true(model_ctx_bytes(m, 64, 4) > 64 * 32 * sizeof(float));
    model_ctx_free(c);
    model_free(m);
}

/* Every allocation fails once: an error each time, never a crash or a leak (the sanitizers' builds see those). */
static void every_allocation_may_fail(void **state)
{
    (void)state;
    tiny(&(struct tinymodel){.layers = 1, .shards = 2});
    uint64_t n = 1;
    for (;; n++) {
        struct model *m = NULL;
        struct model_ctx *c = NULL;
        struct err e = {0};
        mem_fail_nth(n);
        enum status st = model_open(dir, NULL, &m, &e);
        if (st == ST_OK)
            st = model_ctx_new(m, 8, 1, &c, &e);
        mem_fail_nth(0);
        model_ctx_free(c);
        model_free(m);
        if (st == ST_OK)
            break;
        assert_int_equal(st, ST_NOMEM);
        assert_non_null(strstr(e.text, "out of memory for "));
    }
    assert_true(n > 40);
}

/* Reading ------------------------------------------------------------------------------------------------------------------------ */

static void facts_are_told(void **state)
{
    (void)state;
    tiny(&(struct tinymodel){.hidden = 40, .layers = 3, .heads = 4, .ffn = 100, .vocab = 200, .max_positions = 90, .max_tokens = 50});
    struct model *m = open_with(&(struct model_opts){.precision = "auto", .isa = "generic"});
    const struct model_info *i = model_info(m);
    assert_string_equal(i->name, dir + 5); /* behind "/tmp/" */
    assert_string_equal(i->architecture, "bert");
    assert_string_equal(i->precision, "f32");
    assert_string_equal(i->isa, "generic");
    assert_string_equal(i->numerics, "ebb1-x86-f32");
    assert_string_equal(i->pooling, "mean");
    assert_int_equal(i->normalize, 1);
    assert_int_equal(i->layers, 3);
    assert_int_equal(i->hidden, 40);
    assert_int_equal(i->heads, 4);
    assert_int_equal(i->ffn, 100);
    assert_int_equal(i->vocab, 200);
    assert_int_equal(i->max_tokens, 50);
    assert_int_equal(i->dims, 40);
    uint64_t layer = 4 * (40 * 40 + 40) + 2 * 40 * 100 + 100 + 40 + 4 * 40;
    assert_int_equal(i->parameters, 40 * (200 + 90 + 2) + 80 + 3 * layer);
    assert_true(i->weight_bytes >= 4 * (i->parameters - 40));
    struct model_info p;
    assert_int_equal(model_probe(dir, NULL, &p, NULL), ST_OK);
    assert_string_equal(p.name, i->name);
    assert_int_equal(p.parameters, i->parameters);
    assert_memory_equal(&p.digest, &i->digest, sizeof p.digest);
    assert_string_not_equal(p.isa, "");
    model_free(m);
}

/* The same numbers in another type, name, or split give the same embeddings, and another digest. */
static void ways_of_storing_agree(void **state)
{
    (void)state;
    static const struct tinymodel ways[] = {{0},           {.dtype = "F16"}, {.dtype = "BF16"}, {.bert_prefix = 1},
                                            {.shards = 3}, {.dtype = "F16", .shards = 7, .bert_prefix = 1}};
    struct texts t;
    random_texts(&t, LONGEST, 512);
    static float first[SEQS * HIDDEN_MAX], out[SEQS * HIDDEN_MAX];
    char digest[33] = "";
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        drop_dir(NULL);
        tiny(&ways[i]);
        struct model *m = open_with(NULL);
        run_alone(m, &t, i == 0 ? first : out);
        if (i > 0)
            assert_memory_equal(first, out, sizeof *out * SEQS * 32);
        assert_string_not_equal(model_info(m)->digest.hex, digest);
        strcpy(digest, model_info(m)->digest.hex);
        model_free(m);
    }
    for (int i = 0; i < 32; i++)
        assert_true(isfinite(first[i]));
    assert_memory_not_equal(first, first + 32, 32 * sizeof *first);
}

static void old_names_of_norms(void **state)
{
    (void)state;
    tiny(&(struct tinymodel){.layers = 1});
    struct texts t;
    random_texts(&t, LONGEST, 512);
    static float a[SEQS * HIDDEN_MAX], b[SEQS * HIDDEN_MAX];
    struct model *m = open_with(NULL);
    run_alone(m, &t, a);
    model_free(m);
    edit("model.safetensors", "encoder.layer.0.output.LayerNorm", "LayerNorm.weight\"", "LayerNorm.gamma\" ");
    edit("model.safetensors", "encoder.layer.0.output.LayerNorm.bias", "LayerNorm.bias\"", "LayerNorm.beta\"");
    m = open_with(NULL);
    run_alone(m, &t, b);
    model_free(m);
    assert_memory_equal(a, b, sizeof *a * SEQS * 32);
}

static void limits_come_from_the_files(void **state)
{
    (void)state;
    struct model_info i;
    tiny(&(struct tinymodel){.max_positions = 77, .max_tokens = 500});
    assert_int_equal(model_probe(dir, NULL, &i, NULL), ST_OK);
    assert_int_equal(i.max_tokens, 77);
    put_text("sentence_bert_config.json", "{\"max_seq_length\": null}");
    put_text("tokenizer_config.json", "{\"model_max_length\": 60}");
    assert_int_equal(model_probe(dir, NULL, &i, NULL), ST_OK);
    assert_int_equal(i.max_tokens, 60);
    put_text("tokenizer_config.json", "{\"model_max_length\": 1e30}");
    assert_int_equal(model_probe(dir, NULL, &i, NULL), ST_OK);
    assert_int_equal(i.max_tokens, 77);
}

static void without_modules(void **state)
{
    (void)state;
    tiny(&(struct tinymodel){.pooling = ""});
    struct model_info i;
    assert_int_equal(model_probe(dir, NULL, &i, NULL), ST_OK);
    assert_string_equal(i.pooling, "mean");
    assert_int_equal(i.normalize, 0);
}

static void newer_spellings_of_modules(void **state)
{
    (void)state;
    tiny(&(struct tinymodel){.pooling = "cls", .no_normalize = 1});
    put_text("1_Pooling/config.json", "{\"pooling_mode\": \"max\"}");
    put_text("modules.json", "[{\"path\": \"\", \"type\": \"a.b.Transformer\"}, {\"path\": \"1_Pooling\", \"type\": \"Pooling\"}]");
    struct model_info i;
    assert_int_equal(model_probe(dir, NULL, &i, NULL), ST_OK);
    assert_string_equal(i.pooling, "max");
    assert_int_equal(i.normalize, 0);
}

/* Refusals ------------------------------------------------------------------------------------------------------------------------ */

static void options_are_checked(void **state)
{
    (void)state;
    tiny(&(struct tinymodel){0});
    refused(&(struct model_opts){.precision = "int4"}, ST_USER, "precision 'int4' is not known; it is one of auto, f32, bf16, int8");
    refused(&(struct model_opts){.isa = "neon"}, ST_USER,
            "unknown instruction set 'neon': it is one of auto, avx512bf16, avx512vnni, avx512, avx2vnni, avx2, generic");
}

static void missing_files(void **state)
{
    (void)state;
    refused(NULL, ST_USER, "' is not a model directory: it has no config.json");
    tiny(&(struct tinymodel){0});
    unlink(path_of("model.safetensors"));
    refused(NULL, ST_USER,
            "' has neither model.safetensors nor model.safetensors.index.json: weights in other formats (pytorch_model.bin) must "
            "be saved as safetensors first");
    put_text("pytorch_model.bin", "PK");
    struct model *m;
    struct err e;
    assert_int_equal(model_open(dir, NULL, &m, &e), ST_USER);
    assert_non_null(strstr(e.text, "' has its weights only as pytorch_model.bin"));
    assert_non_null(strstr(e.text, "safe_serialization=True"));
    tiny(&(struct tinymodel){0});
    unlink(path_of("1_Pooling/config.json"));
    refused(NULL, ST_USER, "/1_Pooling/config.json' is missing, though modules.json names its folder");
    assert_int_equal(model_open("/nonexistent/model", NULL, &m, &e), ST_USER);
    assert_string_equal(e.text, "there is no model directory '/nonexistent/model'");
}

static void bad_configs(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *message;
    } edits[] = {
        {"\"bert\"", "\"gpt2\"", "/config.json': the architecture 'gpt2' is not supported by this version; supported are bert, distilbert, "
         "roberta, camembert, xlm-roberta, mpnet, electra, albert, deberta-v2"},
        {"absolute", "relative",
         "/config.json': position_embedding_type 'relative' is not supported; supported is 'absolute'"},
        {"\"gelu\"", "\"silu\"",
         "/config.json': hidden_act 'silu' is not supported; it is one of gelu, gelu_new, gelu_pytorch_tanh, relu, tanh"},
        {"heads\": 4", "heads\": 5", "/config.json': hidden_size 32 is not a multiple of num_attention_heads 5"},
        {"layers\": 2", "layers\": 0", "/config.json': 'num_hidden_layers' must be a whole number from 1 to 1024"},
        {"hidden_size", "hidden_sise", "/config.json' lacks 'hidden_size'"},
        {"1e-12", "\"abc\"", "/config.json': layer_norm_eps must be a number from 0 to 1"},
        {"vocab_size\": 512", "vocab_size\": 513",
         "/model.safetensors': tensor 'embeddings.word_embeddings.weight' has the shape [512, 32]; config.json asks for [513, 32]"},
        {"layers\": 2", "layers\": 3",
         "/model.safetensors': tensor 'encoder.layer.2.attention.self.query.weight' is missing, with and without the prefix "
         "'bert.'"},
        {"\"absolute\",", "\"absolute\";",
         "/config.json' is not valid JSON: line 12, column 40: '}' expected near ';'"},
    };
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        tiny(&(struct tinymodel){0});
        edit("config.json", "", edits[i].from, edits[i].to);
        refused(NULL, ST_USER, edits[i].message);
    }
    tiny(&(struct tinymodel){0});
    put_text("config.json", "[1, 2]");
    refused(NULL, ST_USER, "/config.json' is not a JSON object");
    put_text("config.json", "");
    refused(NULL, ST_USER, "/config.json' is not valid JSON: line 1, column 0: '[' or '{' expected near end of file");
}

static void bad_modules(void **state)
{
    (void)state;
    static const char transformer[] = "{\"path\": \"\", \"type\": \"a.Transformer\"}";
    static const struct {
        const char *rest, *message;
    } lists[] = {
        {"", "/modules.json' has no Pooling: one vector a text needs it"},
        {", {\"path\": \"2_Dense\", \"type\": \"a.Dense\"}",
         "/modules.json': module 1 is a 'Dense'; supported by this version are Transformer, Pooling, then Dense and "
         "Normalize"},
        {", {\"path\": \"../x\", \"type\": \"a.Pooling\"}",
         "/modules.json': module 1 has the path '../x', which leads out of the directory"},
        {", {\"type\": \"a.Pooling\"}", "/modules.json': module 1 has no path"},
    };
    tiny(&(struct tinymodel){0});
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        char text[512];
        snprintf(text, sizeof text, "[%s%s]", transformer, lists[i].rest);
        put_text("modules.json", text);
        refused(NULL, ST_USER, lists[i].message);
    }
    tiny(&(struct tinymodel){0});
    put_text("1_Pooling/config.json", "{\"pooling_mode\": \"attention\"}");
    refused(NULL, ST_USER,
            "/1_Pooling/config.json': pooling 'attention' is not supported; it is one of cls, max, mean, mean_sqrt_len, weightedmean, "
            "lasttoken");
    put_text("1_Pooling/config.json", "{\"pooling_mode_max_tokens\": false}");
    refused(NULL, ST_USER, "/1_Pooling/config.json' asks for no or an unknown kind of pooling");
    put_text("1_Pooling/config.json", "{\"pooling_mode_mean_tokens\": true, \"word_embedding_dimension\": 33}");
    refused(NULL, ST_USER, "/1_Pooling/config.json': word_embedding_dimension is not the hidden_size 32 of config.json");
}

static void damaged_weights(void **state)
{
    (void)state;
    char text[512];
    tiny(&(struct tinymodel){0});
    off_t full = size_of("model.safetensors");
    poke("encoder.layer.1.output.dense.weight", 5 * 128 + 17, NAN);
    refused(NULL, ST_USER,
            "/model.safetensors': tensor 'encoder.layer.1.output.dense.weight' holds a NaN at [5, 17]: the file is damaged, or its "
            "training went wrong");
    tiny(&(struct tinymodel){0});
    poke("embeddings.LayerNorm.bias", 31, -INFINITY);
    refused(NULL, ST_USER,
            "/model.safetensors': tensor 'embeddings.LayerNorm.bias' holds an infinity at [31]: the file is damaged, or its "
            "training went wrong");
    tiny(&(struct tinymodel){0});
    cut("model.safetensors", full - 1);
    size_t header = data_of("embeddings.word_embeddings.weight");
    snprintf(text, sizeof text,
             "/model.safetensors' is truncated: tensor 'encoder.layer.1.output.LayerNorm.bias' ends at byte %llu of the data, and "
             "there are %llu; fetch the file again",
             (unsigned long long)full - header, (unsigned long long)full - header - 1);
    refused(NULL, ST_USER, text);
    cut("model.safetensors", 100);
    struct err e;
    struct model *m;
    assert_int_equal(model_open(dir, NULL, &m, &e), ST_USER);
    assert_non_null(strstr(e.text, "is truncated or no safetensors file: its header would have"));
    cut("model.safetensors", 5);
    refused(NULL, ST_USER, "/model.safetensors' is truncated: it has 5 bytes, less than a header");
    cut("model.safetensors", 0);
    refused(NULL, ST_USER, "/model.safetensors' is truncated: it has 0 bytes, less than a header");
    tiny(&(struct tinymodel){0});
    FILE *f = fopen(path_of("model.safetensors"), "ab");
    fwrite("tail", 1, 4, f);
    fclose(f);
    refused(NULL, ST_USER, "/model.safetensors': 4 bytes at the end belong to no tensor; fetch the file again");
    tiny(&(struct tinymodel){0});
    edit("model.safetensors", "encoder.layer.0.intermediate.dense.bias", "\"F32\"", "\"I32\"");
    refused(NULL, ST_USER,
            "/model.safetensors': tensor 'encoder.layer.0.intermediate.dense.bias' has dtype 'I32'; supported are F32, F16 and "
            "BF16");
    tiny(&(struct tinymodel){0});
    edit("model.safetensors", "encoder.layer.0.intermediate.dense.bias", "\"F32\"", "\"F16\"");
    refused(NULL, ST_USER,
            "/model.safetensors': tensor 'encoder.layer.0.intermediate.dense.bias' has 512 bytes, which is not what its shape and "
            "its dtype 'F16' need");
    tiny(&(struct tinymodel){0});
    edit("model.safetensors", "encoder.layer.0.attention.self.key.weight", "[32,32]", "[16,64]");
    refused(NULL, ST_USER,
            "/model.safetensors': tensor 'encoder.layer.0.attention.self.key.weight' has the shape [16, 64]; config.json asks for "
            "[32, 32]");
    tiny(&(struct tinymodel){0});
    edit("model.safetensors", "", "embeddings.LayerNorm.bias", "embeddings.LayerNorm.bios");
    refused(NULL, ST_USER,
            "/model.safetensors': tensor 'embeddings.LayerNorm.bias' is missing, with and without the prefix 'bert.'");
}

static void hostile_headers(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        uint64_t len; /* 0: as long as it is */
        const char *message;
    } cases[] = {
        {"{}", UINT64_MAX,
         "/model.safetensors' is truncated or no safetensors file: its header would have 18446744073709551615 bytes, the file has "
         "10"},
        {"{}", 3, "/model.safetensors' is truncated or no safetensors file: its header would have 3 bytes, the file has 10"},
        {"[]", 0, "/model.safetensors' is damaged or no safetensors file: its header is not a JSON object: it is another value"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", 0,
         "/model.safetensors' is truncated: tensor 'a' ends at byte 16 of the data, and there are 0; fetch the file again"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[16,0]}}", 0,
         "/model.safetensors': tensor 'a' ends at byte 0, before its begin at 16"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-4],\"data_offsets\":[0,0]}}", 0,
         "/model.safetensors': tensor 'a' has an impossible shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
         "/model.safetensors': tensor 'a' has an impossible shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0,
         "/model.safetensors': tensor 'a' has 0 bytes, which is not what its shape and its dtype 'F32' need"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,0]}}", 0,
         "/model.safetensors': tensor 'a' has 9 dimensions; 8 are supported"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":7,\"data_offsets\":[0,0]}}", 0,
         "/model.safetensors': the header's entry for tensor 'a' is not {dtype, shape, data_offsets}"},
        {"{\"a\":[1]}", 0, "/model.safetensors': the header's entry for tensor 'a' is not {dtype, shape, data_offsets}"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0]}}", 0,
         "/model.safetensors': the header's entry for tensor 'a' is not {dtype, shape, data_offsets}"},
    };
    tiny(&(struct tinymodel){0});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_header(cases[i].header, cases[i].len ? cases[i].len : strlen(cases[i].header));
        refused(NULL, ST_USER, cases[i].message);
    }
    put_header("{\"a\":{}, \"a\":{}}", 16);
    struct err e;
    struct model *m;
    assert_int_equal(model_open(dir, NULL, &m, &e), ST_USER);
    assert_non_null(strstr(e.text, "its header is not a JSON object: duplicate object key"));
    tiny(&(struct tinymodel){0}); /* two tensors over the same bytes, and bytes of nobody */
    edit("model.safetensors", "embeddings.LayerNorm.bias\"", "[82304,82432]", "[82176,82304]");
    assert_int_equal(model_open(dir, NULL, &m, &e), ST_USER);
    assert_non_null(strstr(e.text, "overlaps the tensor"));
}

static void bad_shards(void **state)
{
    (void)state;
    struct err e;
    struct model *m;
    tiny(&(struct tinymodel){.shards = 3});
    unlink(path_of("model-00002-of-00003.safetensors"));
    refused(NULL, ST_USER, "/model-00002-of-00003.safetensors': No such file or directory");
    tiny(&(struct tinymodel){.shards = 3});
    edit("model.safetensors.index.json", "", "model-00001-of-00003.safetensors", "/odel-00001-of-00003.safetensors");
    refused(NULL, ST_USER,
            "/model.safetensors.index.json': tensor 'embeddings.word_embeddings.weight' is given to "
            "'/odel-00001-of-00003.safetensors', which is no file name");
    tiny(&(struct tinymodel){.shards = 3});
    edit("model.safetensors.index.json", "embeddings.word", "00001-of", "00002-of");
    assert_int_equal(model_open(dir, NULL, &m, &e), ST_USER);
    assert_non_null(strstr(e.text, "/model-00002-of-00003.safetensors': tensor 'embeddings.word_embeddings.weight' is missing, "
                                   "though 'model.safetensors.index.json' places it there"));
    put_text("model.safetensors.index.json", "{}");
    refused(NULL, ST_USER, "/model.safetensors.index.json' has no weight_map");
    unlink(path_of("model.safetensors.index.json"));
    assert_int_equal(mkfifo(path_of("model.safetensors"), 0600), 0);
    refused(NULL, ST_USER, "/model.safetensors' is not a plain file");
}

/* Bytes of the header and of config.json changed at random: refused as the user's matter, or harmless; never a crash. */
static void random_damage(void **state)
{
    (void)state;
    static const char *const names[] = {"model.safetensors", "config.json", "modules.json", "1_Pooling/config.json"};
    int opened = 0, refusals = 0;
    for (int i = 0; i < 400; i++) {
        const char *name = names[i % 4];
        tiny(&(struct tinymodel){.layers = 1, .vocab = 120, .max_positions = 10});
        size_t n;
        char *p = get(name, &n);
        size_t header = i % 4 == 0 ? 8 + (size_t)(uint8_t)p[0] + 256 * (size_t)(uint8_t)p[1] : n;
        for (uint32_t k = 1 + below(3); k > 0; k--)
            p[below((uint32_t)header)] = below(2) ? (char)below(256) : (char)('0' + below(10));
        put(name, p, n);
        free(p);
        struct model *m = NULL;
        struct err e = {0};
        enum status st = model_open(dir, NULL, &m, &e);
        if (st == ST_OK) {
            opened++;
            model_free(m);
        } else {
            refusals++;
            assert_int_equal(st, ST_USER);
            assert_true(strlen(e.text) > 20);
        }
    }
    assert_true(opened > 0 && refusals > 200);
}

/* The caller's faults end the program, they never read beyond a table. */
static void misuse_is_a_bug(void **state)
{
    (void)state;
    tiny(&(struct tinymodel){.layers = 1, .max_positions = 20});
    struct model *m = open_with(NULL);
    static const struct {
        uint32_t len;
        int32_t id;
    } faults[] = {{1, 512}, {1, -1}, {21, 0}, {41, 0}, {0, 0}};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            signal(SIGABRT, SIG_DFL);
            if (!freopen("/dev/null", "w", stderr))
                _exit(1);
            struct model_ctx *c = context(m, 40, 1);
            int32_t ids[41];
            float out[32];
            for (int k = 0; k < 41; k++)
                ids[k] = faults[i].id;
            model_run(m, c, 1, &faults[i].len, ids, out);
            _exit(0);
        }
        int how;
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGABRT);
    }
    model_free(m);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_dir, drop_dir)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(bits_depend_on_the_text_alone),
        TEST(many_contexts_at_once),
        TEST(run_allocates_nothing),
        TEST(every_allocation_may_fail),
        TEST(facts_are_told),
        TEST(ways_of_storing_agree),
        TEST(old_names_of_norms),
        TEST(limits_come_from_the_files),
        TEST(without_modules),
        TEST(newer_spellings_of_modules),
        TEST(options_are_checked),
        TEST(missing_files),
        TEST(bad_configs),
        TEST(bad_modules),
        TEST(damaged_weights),
        TEST(hostile_headers),
        TEST(bad_shards),
        TEST(random_damage),
        TEST(misuse_is_a_bug),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
