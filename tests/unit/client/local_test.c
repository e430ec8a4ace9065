/* Is what can be found out beforehand found out: missing models and fields, how much there is, what stands at standard input? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#undef fail /* ours prints an error */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/path.h"
#include "client/client.h"
#include "client/local.h"
#include "client/measure.h"
#include "client/spec.h"
#include "tests/lib/tinymodel.h"

static char folder[] = "/tmp/ebb-local-XXXXXX";
static struct err e;

static int make_folder(void **state)
{
    (void)state;
    return !mkdtemp(folder) || chdir(folder) || tinymodel_write("model", &(struct tinymodel){0});
}

static int drop_folder(void **state)
{
    (void)state;
    return path_remove_tree(folder, &e) != ST_OK;
}

static void put(const char *path, const char *text)
{
    assert_int_equal(path_write(path, text, strlen(text), &e), ST_OK);
}

static void job(struct jobspec *s, const char *input, const char *field)
{
    char yaml[512];
    snprintf(yaml, sizeof yaml, "model: model\ninput: {glob: '%s'%s%s}\noutput: out\n", input, field ? ", field: " : "", field ? field : "");
    put("job.yaml", yaml);
    assert_int_equal(jobspec_init(s, &e), ST_OK);
    enum status st = jobspec_from_yaml(s, "job.yaml", &e);
    if (st != ST_OK)
        print_error("%s\n", e.text);
    assert_int_equal(st, ST_OK);
}

static void sampled(const char *input, const char *field, enum status wanted, const char *words, struct sample *out)
{
    struct jobspec s;
    struct local l;
    struct sample sample = {0};
    job(&s, input, field);
    enum status st = local_open(&l, &s, &e);
    if (st == ST_OK) {
        st = local_sample(&l, &s, 5, 1000, 1000, NULL, NULL, &sample, &e);
        local_release(&l);
    }
    if (st != wanted)
        print_error("%s: %s\n", status_name(st), e.text);
    assert_int_equal(st, wanted);
    if (words && !strstr(e.text, words))
        print_error("'%s' is not in '%s'\n", words, e.text);
    assert_true(!words || strstr(e.text, words));
    if (out)
        *out = sample;
    jobspec_release(&s);
}

static void fields(void **state)
{
    (void)state;
    struct sample sample;
    put("a.jsonl", "{\"id\":1,\"text\":\"x\"}\n{\"id\":2,\"title\":\"y\"}\n{bad\n");
    sampled("a.jsonl", "text", ST_OK, NULL, &sample);
    assert_true(sample.records == 3 && sample.bad == 2 && sample.whole); /* some bad records are no reason to refuse */
    sampled("a.jsonl", "txt", ST_OK, NULL, NULL);                        /* one is not even JSON: who knows */
    put("b.jsonl", "{\"id\":1,\"text\":\"x\"}\n{\"id\":2,\"text\":\"y\"}\n");
    sampled("b.jsonl", "txt", ST_USER, "'b.jsonl' has no field 'txt' in any of its first 2 records (fields: id, text)\ndid you mean --field text", NULL);
    sampled("b.jsonl", "zzzz", ST_USER, "did you mean --field text", NULL);
    put("c.jsonl", "{\"a\":\"x\",\"b\":\"y\"}\n");
    sampled("c.jsonl", "zzzz", ST_USER, "(fields: a, b)\nname the text's with --field", NULL);
    put("t.csv", "id,title,text\n1,a,b\n");
    sampled("t.csv", "body", ST_USER, "'t.csv' has no column 'body' (columns: id, title, text)\ndid you mean --field text", NULL);
    sampled("t.csv", "titel", ST_USER, "did you mean --field title", NULL);
    put("empty.jsonl", "");
    sampled("empty.jsonl", "any", ST_OK, NULL, &sample);
    assert_true(sample.records == 0 && sample.whole);
}

/* A slip in --id or --keep is said before the night, though it may be meant. */
static void absent(void **state)
{
    (void)state;
    char words[512];
    struct jobspec s;
    struct sample sample;
    struct local l;
    put("k.jsonl", "{\"id\":1,\"text\":\"x\",\"stars\":5}\n{\"id\":2,\"text\":\"y\",\"lang\":null}\n{bad\n");
    job(&s, "k.jsonl", "text, id: idd, keep: [stars, lang, zz]");
    assert_int_equal(local_open(&l, &s, &e), ST_OK);
    assert_int_equal(local_sample(&l, &s, 5, 1000, 1000, NULL, NULL, &sample, &e), ST_OK);
    assert_string_equal(local_absent(&s, &sample, 0, words, sizeof words), "none of the first 2 records has an id in 'idd' (--id): rows would have no id");
    assert_string_equal(local_absent(&s, &sample, 1, words, sizeof words),
                        "none of the first 2 records has a field 'lang' (--keep): rows would have null there");
    assert_non_null(strstr(local_absent(&s, &sample, 2, words, sizeof words), "'zz'"));
    assert_null(local_absent(&s, &sample, 3, words, sizeof words));
    local_release(&l);
    jobspec_release(&s);
    job(&s, "k.jsonl", "text, id: id, keep: [stars]");
    assert_int_equal(local_open(&l, &s, &e), ST_OK);
    assert_int_equal(local_sample(&l, &s, 5, 1000, 1000, NULL, NULL, &sample, &e), ST_OK);
    assert_null(local_absent(&s, &sample, 0, words, sizeof words));
    local_release(&l);
    jobspec_release(&s);
}

static void refused(void **state)
{
    (void)state;
    struct jobspec s;
    struct local l;
    put("a.jsonl", "{\"text\":\"x\"}\n");
    sampled("none*.jsonl", NULL, ST_USER, "none*.jsonl", NULL);
    job(&s, "a.jsonl", NULL);
    mem_free(s.model);
    s.model = mem_strdup("/nowhere/model");
    assert_int_equal(local_open(&l, &s, &e), ST_USER);
    assert_string_equal(e.text, "there is no model at '/nowhere/model'; --model names a Hugging Face directory, with config.json and model.safetensors");
    jobspec_release(&s);
    job(&s, "a.jsonl", NULL);
    mem_free(s.output);
    s.output = mem_printf("%s/a.jsonl/out.npy", folder); /* a folder is wanted where a file stands */
    assert_int_not_equal(local_open(&l, &s, &e), ST_OK);
    assert_non_null(strstr(e.text, "a.jsonl"));
    jobspec_release(&s);
    job(&s, "a.jsonl", NULL);
    mem_free(s.output);
    s.output = mem_printf("%s/out.npy", folder);
    mem_free(s.floats);
    s.floats = mem_strdup("base64");
    assert_int_equal(local_open(&l, &s, &e), ST_USER);
    assert_non_null(strstr(e.text, "--floats base64 is for JSONL"));
    jobspec_release(&s);
}

static void guesses(void **state)
{
    (void)state;
    struct jobspec s;
    struct local l;
    struct sample sample;
    struct buf b = {0};
    char words[256];
    for (int i = 0; i < 5000; i++)
        assert_int_equal(buf_printf(&b, "{\"id\":%d,\"text\":\"some words\"}\n", 10000 + i), 0);
    put("big.jsonl", buf_cstr(&b));
    job(&s, "big.jsonl", NULL);
    assert_int_equal(local_open(&l, &s, &e), ST_OK);
    assert_int_equal(local_sample(&l, &s, 5, 1000, 10000, NULL, NULL, &sample, &e), ST_OK);
    assert_true(!sample.whole && sample.records < 100 && sample.bytes >= 1000);
    double n = local_guess(&l, &s, &sample);
    assert_true(n > 4990 && n < 5010);
    assert_string_equal(local_count_words(&l, n, 0, words, sizeof words), "big.jsonl, 161.1 KiB, about 5,000 records (guessed from the first ones)");
    s.limit = 50;
    assert_true(local_guess(&l, &s, &sample) == 50);
    assert_int_equal(local_sample(&l, &s, 200, 100000, 10000, NULL, NULL, &sample, &e), ST_OK);
    assert_true(sample.whole && sample.records == 50);
    local_release(&l);
    jobspec_release(&s);
    buf_release(&b);
}

static enum status spool(const char *format, const char *text)
{
    struct jobspec s;
    int saved = dup(STDIN_FILENO);
    put("stdin-text", text);
    int fd = open("stdin-text", O_RDONLY);
    assert_true(fd >= 0 && dup2(fd, STDIN_FILENO) == STDIN_FILENO);
    close(fd);
    job(&s, "-", NULL);
    if (format)
        s.format = mem_strdup(format);
    enum status st = local_spool(&s, &e);
    if (st == ST_OK) {
        struct buf b = {0};
        char path[160];
        snprintf(path, sizeof path, "%s/out/.ebb/stdin.jsonl", folder);
        assert_string_equal(s.inputs.items[0], path);
        assert_int_equal(path_read(path, 1000, &b, &e), ST_OK);
        assert_string_equal(b.data, "{\"text\":\"a\"}\n"); /* what came first, whatever came later */
        buf_release(&b);
    }
    jobspec_release(&s);
    dup2(saved, STDIN_FILENO);
    close(saved);
    return st;
}

static void standard_input(void **state)
{
    (void)state;
    assert_int_equal(spool(NULL, "{}"), ST_USER);
    assert_string_equal(e.text, "standard input has no name that tells its format; give --format jsonl, csv, tsv or lines");
    assert_int_equal(spool("jsonl", "{\"text\":\"a\"}\n"), ST_OK);
    assert_int_equal(spool("jsonl", "{\"text\":\"a\"}\n"), ST_OK); /* the same again */
    assert_int_equal(spool("jsonl", ""), ST_OK);                   /* nothing: go on */
    assert_int_equal(spool("jsonl", "{\"text\":\"b\"}\n"), ST_USER);
    assert_non_null(strstr(e.text, "standard input is not what it was"));
    assert_int_equal(spool("jsonl", "{\"text\":\"a\"}"), ST_USER);          /* shorter */
    assert_int_equal(spool("jsonl", "{\"text\":\"a\"}\n{}\n"), ST_USER); /* longer */
}

static void speed(void **state)
{
    (void)state;
    struct model *m;
    struct tokens t = {0};
    struct speed speed;
    static const int32_t ids[] = {2, 10, 11, 12, 3};
    assert_int_equal(model_open("model", &(struct model_opts){0}, &m, &e), ST_OK);
    assert_int_equal(measure_speed(m, &t, 2, 8, 64, 0.05, &speed, &e), ST_OK); /* nothing to measure */
    assert_true(speed.records_per_s == 0);
    for (int i = 0; i < 37; i++)
        assert_int_equal(tokens_add(&t, ids, 3 + (uint32_t)i % 3), 0);
    assert_int_equal(measure_speed(m, &t, 2, 8, 64, 0.05, &speed, &e), ST_OK);
    assert_true(speed.records_per_s > 0 && speed.tokens_per_s > 3 * speed.records_per_s && speed.tokens_per_s < 5 * speed.records_per_s);
    assert_true(speed.row_chars > 32 * 4 && speed.row_chars < 32 * 17);
    tokens_release(&t);
    model_free(m);
}

static void a_job_file_and_flags(void **state)
{
    (void)state;
    struct jobspec s;
    static const struct opt_command like = {.name = "ebb run", .operands_max = 64};
    const struct opt_command *table = spec_table(&like, NULL, 0, &e);
    assert_non_null(table);
    put("j.yaml", "model: model\ninput: a.jsonl\noutput: out\nweight: 5\n");
    char *argv[] = {(char *)"ebb run", (char *)"j.yaml", (char *)"--weight", (char *)"7", NULL};
    int operands;
    assert_int_equal(opt_parse(table, 4, argv, &operands, &e), ST_OK);
    assert_int_equal(spec_read(&s, operands, argv + 1, &e), ST_OK);
    assert_int_equal(s.weight, 7); /* the flag wins */
    assert_string_equal(path_base(s.model), "model");
    jobspec_release(&s);
    /* the shell has taken a pattern apart */
    table = spec_table(&like, NULL, 0, &e);
    char *apart[] = {(char *)"ebb run", (char *)"--input", (char *)"a.jsonl", (char *)"b.jsonl", (char *)"--model", (char *)"model", NULL};
    put("b.jsonl", "");
    assert_int_equal(opt_parse(table, 6, apart, &operands, &e), ST_OK);
    assert_int_equal(spec_read(&s, operands, apart + 1, &e), ST_USER);
    assert_non_null(strstr(e.text, "'b.jsonl' stands alone behind the options"));
    assert_non_null(strstr(e.text, "put patterns in quotes"));
    /* the input without its flag */
    static const char *const data[] = {"b.jsonl", ".", "nowhere/x.csv.gz"};
    for (size_t i = 0; i < COUNT(data); i++) {
        table = spec_table(&like, NULL, 0, &e);
        char *alone[] = {(char *)"ebb run", (char *)(uintptr_t)data[i], (char *)"--model", (char *)"model", NULL};
        assert_int_equal(opt_parse(table, 4, alone, &operands, &e), ST_OK);
        assert_int_equal(spec_read(&s, operands, alone + 1, &e), ST_USER);
        assert_non_null(strstr(e.text, "is no job file; is it the input? then write --input"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(fields),         cmocka_unit_test(refused), cmocka_unit_test(absent), cmocka_unit_test(guesses),
                                       cmocka_unit_test(standard_input), cmocka_unit_test(speed),   cmocka_unit_test(a_job_file_and_flags)};
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
