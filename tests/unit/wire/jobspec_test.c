/* Do flags, YAML and JSON say the same job, and does each mistake name its place and a way out? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/path.h"
#include "tests/lib/files.h"
#include "wire/jobspec.h"

static char folder[] = "/tmp/ebb-jobspec-XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder) || chdir(folder))
        return -1;
    char *real = realpath(folder, NULL); /* the folder above may be a link */
    int same = real && strcmp(real, folder) == 0;
    free(real);
    return same ? 0 : -1;
}

static int drop_folder(void **state)
{
    (void)state;
    struct err e;
    return path_remove_tree(folder, &e) != ST_OK;
}

static enum status from_yaml(struct jobspec *s, const char *text, struct err *e)
{
    files_put("job.yaml", text, strlen(text));
    assert_int_equal(jobspec_init(s, e), ST_OK);
    return jobspec_from_yaml(s, "job.yaml", e);
}

static void yaml_says(const char *text, const char *wanted)
{
    struct jobspec s;
    struct err e = {0};
    enum status st = from_yaml(&s, text, &e);
    if (st != ST_USER || strcmp(e.text, wanted) != 0)
        print_error("%s: '%s'\n", status_name(st), e.text);
    assert_int_equal(st, ST_USER);
    assert_string_equal(e.text, wanted);
    jobspec_release(&s);
}

static char *json_text(const struct jobspec *s)
{
    json_t *j = jobspec_to_json(s);
    assert_non_null(j);
    char *text = json_dumps(j, JSON_SORT_KEYS);
    json_decref(j);
    assert_non_null(text);
    return text;
}

static enum status from_words(struct jobspec *s, char **words, struct err *e)
{
    struct jobspec_flags *flags;
    int argc = 0, operands;
    char *argv[64];
    for (argv[argc++] = (char *)"ebb run"; *words; words++)
        argv[argc++] = *words;
    argv[argc] = NULL;
    assert_int_equal(jobspec_init(s, e), ST_OK);
    assert_int_equal(jobspec_flags_new(&flags, e), ST_OK);
    struct opt_command c = {.name = "ebb run"};
    c.opts = jobspec_flags_opts(flags, &c.opt_count);
    enum status st = opt_parse(&c, argc, argv, &operands, e);
    if (st == ST_OK)
        st = jobspec_from_flags(s, flags, e);
    jobspec_flags_free(flags);
    return st;
}
#define WORDS(...) ((char *[]){__VA_ARGS__, NULL})

static void defaults(void **state)
{
    (void)state;
    struct jobspec s;
    struct err e;
    assert_int_equal(jobspec_init(&s, &e), ST_OK);
    assert_string_equal(s.precision, "auto");
    assert_string_equal(s.on_long, "truncate");
    assert_string_equal(s.floats, "array");
    assert_null(s.field);
    assert_null(s.format);
    assert_int_equal(s.max_record_bytes, 16 << 20);
    assert_true(s.max_errors.count == UINT64_MAX && s.max_errors.ppm == UINT32_MAX);
    assert_int_equal(s.lease_target, 30000);
    jobspec_release(&s);
    assert_null(s.precision);
}

static const char full_yaml[] = "name: reviews\n"
                                "model: models/mini\n"
                                "precision: f32\n"
                                "input: { glob: [a.jsonl, 'b*.jsonl'], field: body, id: review_id, keep: [stars, lang], limit: 10,\n"
                                "         format: jsonl, max_record: 1MiB, on_long: error }\n"
                                "output: { dir: out, format: jsonl, floats: base64, part_bytes: 64MB }\n"
                                "max_errors: 1%\n"
                                "weight: 200\n"
                                "priority: -3\n"
                                "workers: { min: 1, max: 40, preemptible: 90% }\n"
                                "deadline: 2030-01-31T07:00+01:00\n"
                                "pipeline: { stages: 3 }\n"
                                "tuning: { lease: 0.2s, commit: 500ms, stall: 1min, micro_batch: 8, micro_batch_tokens: 512 }\n";

static void yaml_flags_and_json_agree(void **state)
{
    (void)state;
    struct jobspec y, f, j;
    struct err e = {0};
    enum status st = from_yaml(&y, full_yaml, &e);
    if (st)
        print_error("%s\n", e.text);
    assert_int_equal(st, ST_OK);
    assert_int_equal(from_words(&f,
                                WORDS("--name", "reviews", "--model=models/mini", "--precision", "f32", "--input", "a.jsonl", "--input", "b*.jsonl",
                                      "--field", "body", "--id", "review_id", "--keep", "stars,lang", "--limit", "10", "--format", "jsonl",
                                      "--max-record", "1MiB", "--on-long", "error", "--output", "out", "--output-format", "jsonl", "--floats",
                                      "base64", "--part-bytes", "64MB", "--max-errors", "1%", "--weight", "200", "--priority", "-3",
                                      "--min-workers", "1", "--max-workers", "40", "--preemptible", "90%", "--deadline", "2030-01-31T06:00Z", "--stages", "3", "--lease", "0.2s", "--commit", "500ms", "--stall", "1min",
                                      "--micro-batch", "8", "--micro-batch-tokens", "512"),
                                &e),
                     ST_OK);
    assert_int_equal(jobspec_check(&y, &e), ST_OK);
    char *a = json_text(&y), *b = json_text(&f);
    assert_string_equal(a, b);
    assert_int_equal(jobspec_init(&j, &e), ST_OK);
    assert_int_equal(jobspec_from_json(&j, a, strlen(a), &e), ST_OK);
    char *c = json_text(&j);
    assert_string_equal(a, c);
    /* and the figures themselves */
    char path[128];
    snprintf(path, sizeof path, "%s/b*.jsonl", folder);
    assert_int_equal(j.inputs.count, 2);
    assert_string_equal(j.inputs.items[1], path);
    assert_int_equal(j.max_errors.ppm, 10000);
    assert_int_equal(j.workers_preemptible.ppm, 900000);
    assert_string_equal(j.deadline, "2030-01-31T06:00:00Z"); /* the same everywhere */
    assert_int_equal(j.priority, -3);
    assert_int_equal(j.stages, 3);
    assert_int_equal(j.lease_target, 200);
    assert_int_equal(j.part_bytes, 64000000);
    assert_string_equal(j.keep.items[1], "lang");
    free(a);
    free(b);
    free(c);
    jobspec_release(&y);
    jobspec_release(&f);
    jobspec_release(&j);
}

static void other_spellings(void **state)
{
    (void)state;
    struct jobspec s;
    struct err e;
    char path[128];
    assert_int_equal(from_yaml(&s, "input: data/x.csv\noutput: out.npy\nmodel: /m/../n\n", &e), ST_OK);
    snprintf(path, sizeof path, "%s/data/x.csv", folder);
    assert_int_equal(s.inputs.count, 1);
    assert_string_equal(s.inputs.items[0], path);
    assert_string_equal(s.model, "/n");
    snprintf(path, sizeof path, "%s/out.npy", folder);
    assert_string_equal(s.output, path);
    jobspec_release(&s);
    assert_int_equal(from_yaml(&s, "input: [a, b]\noutput: {dir: x.npy}\nmodel: m\n", &e), ST_OK);
    assert_int_equal(s.inputs.count, 2);
    snprintf(path, sizeof path, "%s/x.npy/", folder); /* a folder, though it looks like a file */
    assert_string_equal(s.output, path);
    jobspec_release(&s);
    assert_int_equal(from_yaml(&s, "input: {path: a}\noutput: {file: x.npy}\nmodel: &m mini\nname: *m\n", &e), ST_OK);
    assert_string_equal(s.name, "mini"); /* anchors are resolved */
    jobspec_release(&s);
    /* null says: as if it were not there */
    assert_int_equal(from_yaml(&s, "weight: null\nmax_errors: ~\nmodel: m\n", &e), ST_OK);
    assert_int_equal(s.weight, 100);
    jobspec_release(&s);
}

static void paths_are_those_of_the_files_folder(void **state)
{
    (void)state;
    struct jobspec s;
    struct err e;
    char path[128];
    assert_int_equal(path_make_dirs("jobs", 0777, &e), ST_OK);
    files_put("jobs/a.yaml", "model: ../m\ninput: '-'\n", 23);
    assert_int_equal(jobspec_init(&s, &e), ST_OK);
    assert_int_equal(jobspec_from_yaml(&s, "jobs/a.yaml", &e), ST_OK);
    snprintf(path, sizeof path, "%s/m", folder);
    assert_string_equal(s.model, path);
    assert_string_equal(s.inputs.items[0], "-");
    jobspec_release(&s);
    assert_int_equal(jobspec_init(&s, &e), ST_OK);
    assert_int_equal(jobspec_from_yaml(&s, "nowhere.yaml", &e), ST_NOT_FOUND);
    jobspec_release(&s);
}

static void yaml_mistakes(void **state)
{
    (void)state;
    yaml_says("model: m\ninput: x\noutput: o\n\nworker: {min: 1}\n", "job.yaml:5: unknown key 'worker' (did you mean 'workers')");
    yaml_says("input: {fields: x}\n", "job.yaml:1: unknown key 'fields' in 'input' (did you mean 'field')");
    yaml_says("model: m\nfield: x\n", "job.yaml:2: unknown key 'field' (did you mean 'input.field')");
    yaml_says("min-workers: 2\n", "job.yaml:1: unknown key 'min-workers' (did you mean 'workers.min')");
    yaml_says("input: {weight: 3}\n", "job.yaml:1: unknown key 'weight' in 'input' (did you mean 'weight')");
    yaml_says("input.field: x\n", "job.yaml:1: unknown key 'input.field': write it as 'input: {field: ...}'");
    yaml_says("zzzzqqq: 3\n", "job.yaml:1: unknown key 'zzzzqqq'");
    yaml_says("model: [a]\n", "job.yaml:1: 'model' wants a text, found a list");
    yaml_says("model: m\nname: {a: b}\n", "job.yaml:2: 'name' wants a text, found a mapping");
    yaml_says("input: {limit: many}\n", "job.yaml:1: 'input.limit' wants a whole number, found 'many'");
    yaml_says("input: {limit: -1}\n", "job.yaml:1: 'input.limit' wants a whole number, found '-1'");
    yaml_says("input:\n  limit: 99999999999999999999\n", "job.yaml:2: 'input.limit' wants a whole number, found '99999999999999999999'");
    yaml_says("priority: high\n", "job.yaml:1: 'priority' wants a whole number, found 'high'");
    yaml_says("output: {part_bytes: big}\n", "job.yaml:1: 'output.part_bytes' wants a size such as 64MB or 1.5GiB, found 'big'");
    yaml_says("tuning: {lease: soon}\n", "job.yaml:1: 'tuning.lease' wants a duration such as 30s or 5min, found 'soon'");
    yaml_says("max_errors: 101%\n", "job.yaml:1: 'max_errors' wants a number or a share such as 1%, found '101%'");
    yaml_says("max_errors: -1\n", "job.yaml:1: 'max_errors' wants a number or a share such as 1%, found '-1'");
    yaml_says("model: m\ndeadline: tonight\n",
              "job.yaml:2: 'deadline' wants a time such as 07:00, 2030-01-31 07:00, 2030-01-31T06:00:00Z or +3h, found 'tonight'");
    yaml_says("workers: 3\n", "job.yaml:1: 'workers' wants a mapping, found '3'");
    yaml_says("workers: {min: {a: 1}}\n", "job.yaml:1: 'workers.min' wants a whole number, found a mapping");
    yaml_says("model:\n", "job.yaml:1: 'model' has no value");
    yaml_says("weight:\n", "job.yaml:1: 'weight' has no value");
    yaml_says("input: {keep: 'a, b'}\n", "job.yaml:1: 'input.keep' wants a list: [a, b]");
    yaml_says("input: {keep: [[a]]}\n", "job.yaml:1: 'input.keep' wants a text or a list of texts, found a list");
    yaml_says("model: a\nname: b\nmodel: c\n", "job.yaml:3: 'model' stands here a second time, the first is in line 1");
    yaml_says("input: {glob: a, path: b}\n", "job.yaml:1: 'input.path' says 'input.glob' a second time; keep one of them");
    yaml_says("- a\n", "job.yaml:1: a job is a mapping of keys to values, such as 'model: DIR'");
    yaml_says("# nothing\n", "'job.yaml' is empty; see 'ebb submit --help' for what a job file holds");
    yaml_says("model: a\n---\nmodel: b\n", "job.yaml:3: a second document: one file holds one job");
    yaml_says("? [a]\n: b\n", "job.yaml:1: a key has to be a word");
    yaml_says("model: \"a\\0b\"\n", "job.yaml:1: 'model' holds a NUL character");
    struct jobspec s;
    struct err e;
    assert_int_equal(from_yaml(&s, "model: a\ninput: {glob: a\nname: b: c\n", &e), ST_USER);
    assert_non_null(strstr(e.text, "job.yaml:3: not valid YAML: "));
    jobspec_release(&s);
    assert_int_equal(from_yaml(&s, "model: \xff\xfe\n", &e), ST_USER);
    assert_non_null(strstr(e.text, "'job.yaml' is no text in UTF-8"));
    jobspec_release(&s);
}

/* Aliases that multiply ("a billion laughs") cost nothing, because only known keys are entered. */
static void yaml_bomb(void **state)
{
    (void)state;
    struct jobspec s;
    struct err e;
    assert_int_equal(from_yaml(&s,
                               "name: &a [x,x,x,x,x,x,x,x,x]\nmodel: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\ninput: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n", &e),
                     ST_USER);
    jobspec_release(&s);
    struct buf deep = {0};
    for (int i = 0; i < 10000; i++)
        assert_int_equal(buf_char(&deep, '['), 0);
    assert_non_null(buf_cstr(&deep));
    assert_int_equal(from_yaml(&s, deep.data, &e), ST_USER);
    jobspec_release(&s);
    buf_release(&deep);
}

static void json_says(const char *json, const char *wanted)
{
    struct jobspec s;
    struct err e = {0};
    assert_int_equal(jobspec_init(&s, &e), ST_OK);
    enum status st = jobspec_from_json(&s, json, strlen(json), &e);
    if (st != ST_USER || strcmp(e.text, wanted) != 0)
        print_error("%s: '%s'\n", status_name(st), e.text);
    assert_int_equal(st, ST_USER);
    assert_string_equal(e.text, wanted);
    jobspec_release(&s);
}

static void json_mistakes(void **state)
{
    (void)state;
    json_says("[]", "a job has to be an object, found a list");
    json_says("{\"colour\":1}", "unknown member 'colour'");
    json_says("{\"input\":{\"feild\":1}}", "unknown member 'feild' in 'input' (did you mean 'field')");
    json_says("{\"input\":[\"a\"]}", "'input' of a job wants an object, found a list");
    json_says("{\"input\":{\"path\":\"a\"}}", "unknown member 'path' in 'input' (did you mean 'output.path')"); /* no aliases on the wire */
    json_says("{\"model\":5}", "'model' of a job wants a text, found another number");
    json_says("{\"model\":\"\"}", "'model' of a job wants a text, found a text");
    json_says("{\"weight\":-1}", "'weight' of a job wants a whole number, found another number");
    json_says("{\"weight\":1.5}", "'weight' of a job wants a whole number, found another number");
    json_says("{\"weight\":\"1\"}", "'weight' of a job wants a whole number, found a text");
    json_says("{\"tuning\":{\"lease\":1e300}}", "'tuning.lease' of a job wants a duration such as 30s or 5min, found another number");
    json_says("{\"max_errors\":\"x\"}", "'max_errors' of a job wants a number or a share such as 1%, found a text");
    json_says("{\"input\":{\"glob\":[1]}}", "'input.glob' of a job wants a text or a list of texts, found a list");
    json_says("{\"input\":{\"input\":{\"field\":\"a\"}}}", "unknown member 'input' in 'input' (did you mean 'input.glob')");
    struct jobspec s;
    struct err e;
    static const char *const broken[] = {"", "{", "{\"model\":\"a\\u0000b\"}", "{\"model\":\"a\",\"model\":\"b\"}", "{\"model\":\"\xff\"}"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        assert_int_equal(jobspec_init(&s, &e), ST_OK);
        assert_int_equal(jobspec_from_json(&s, broken[i], strlen(broken[i]), &e), ST_USER);
        assert_non_null(strstr(e.text, "not valid JSON: line 1"));
        jobspec_release(&s);
    }
}

static void flags_mistakes(void **state)
{
    (void)state;
    struct jobspec s;
    struct err e;
    assert_int_equal(from_words(&s, WORDS("--max-errors", "lots"), &e), ST_USER);
    assert_string_equal(e.text, "--max-errors takes a number or a share such as 1%, not 'lots'");
    jobspec_release(&s);
    assert_int_equal(from_words(&s, WORDS("--model", ""), &e), ST_USER);
    assert_string_equal(e.text, "--model is empty; leave it out for the default");
    jobspec_release(&s);
    assert_int_equal(from_words(&s, WORDS("--limit", "18446744073709551614"), &e), ST_USER);
    assert_string_equal(e.text, "--limit takes a whole number, not '18446744073709551614'");
    jobspec_release(&s);
    assert_int_equal(from_words(&s, WORDS("--feild", "x"), &e), ST_USER);
    assert_string_equal(e.text, "unknown option '--feild' (did you mean '--field'); see 'ebb run --help'");
    jobspec_release(&s);
}

static void check_says(const char *more, const char *wanted)
{
    struct jobspec s;
    struct err e = {0};
    char yaml[512];
    snprintf(yaml, sizeof yaml, "model: m\ninput: a\noutput: o\n%s\n", more);
    assert_int_equal(from_yaml(&s, yaml, &e), ST_OK);
    enum status st = jobspec_check(&s, &e);
    if (!wanted) {
        assert_int_equal(st, ST_OK);
    } else {
        assert_int_equal(st, ST_USER);
        assert_string_equal(e.text, wanted);
    }
    jobspec_release(&s);
}

static void words_and_ranges(void **state)
{
    (void)state;
    check_says("", NULL);
    check_says("precision: bf16", NULL);
    check_says("precision: f23", "unknown precision 'f23' (did you mean 'f32'); --precision takes auto, f32, bf16 or int8");
    check_says("task: clasify", "unknown task 'clasify' (did you mean 'classify'); --task takes auto, embed, classify, token-classify, fill-mask or outputs");
    check_says("top_k: 0", "--top-k (top_k) is between 1 and 1000, not 0");
    check_says("weight: 1001", "--weight (weight) is between 1 and 1000, not 1001");
    check_says("tuning: {lease: 1ms}", "--lease (tuning.lease) is between 10 ms and 86400 s, not 1 ms");
    check_says("workers: {min: 3, max: 2}", "--min-workers 3 is more than --max-workers 2");
    check_says("workers: {preemptible: 0%}", NULL);
    check_says("workers: {preemptible: 5}", "--preemptible (workers.preemptible) is a share of the workers such as 90%, not 5");
    check_says("deadline: 07:00", NULL);
    check_says("pipeline: {stages: 8}", NULL);
    check_says("pipeline: {stages: 9}", "--stages (pipeline.stages) is between 0 and 8, not 9");
    check_says("tuning: {micro_batch: 0}", "--micro-batch (tuning.micro_batch) is between 1 and 65536, not 0");
    check_says("priority: 3000000000", "--priority is between -2147483648 and 2147483647");
    check_says("name: \"a\\nb\"", "the job's name holds a control character");
    struct jobspec s;
    struct err e;
    assert_int_equal(jobspec_init(&s, &e), ST_OK);
    assert_int_equal(jobspec_check(&s, &e), ST_USER);
    assert_string_equal(e.text, "no model is named: give --model DIR, or 'model' in a job file");
    const char relative[] = "{\"model\":\"m\",\"input\":{\"glob\":[\"/a\"]},\"output\":{\"path\":\"/o\"}}";
    assert_int_equal(jobspec_from_json(&s, relative, sizeof relative - 1, &e), ST_OK);
    assert_int_equal(jobspec_check(&s, &e), ST_USER);
    assert_string_equal(e.text, "the model's path 'm' is not absolute");
    jobspec_release(&s);
}

static void identity(void **state)
{
    (void)state;
    struct jobspec a, b;
    struct err e;
    char words[256];
    assert_int_equal(from_yaml(&a, "model: m\ninput: a\noutput: o\n", &e), ST_OK);
    /* what changes no output changes no identity */
    assert_int_equal(from_yaml(&b,
                               "name: other\nmodel: n\ninput: b\noutput: p\nweight: 3\npriority: 1\nworkers: {max: 3}\nmax_errors: 5\n"
                               "tuning: {lease: 1s, commit: 1s, stall: 1s, micro_batch: 1, micro_batch_tokens: 9}\n",
                               &e),
                     ST_OK);
    json_t *then = jobspec_fingerprint(&a, "jsonl", "aa", "bb"), *now = jobspec_fingerprint(&b, "jsonl", "aa", "bb");
    assert_int_equal(jobspec_fingerprint_differs(then, now, words, sizeof words), 0);
    assert_string_equal(words, "");
    /* and yet people may want to know of it */
    char long_words[1024];
    assert_int_equal(jobspec_rest_differs(&a, &a, 1, long_words, sizeof long_words), 0);
    assert_string_equal(long_words, "");
    assert_int_equal(jobspec_rest_differs(&a, &b, 0, long_words, sizeof long_words), 8);
    assert_string_equal(long_words, "weight was 100 and is 3; priority was 0 and is 1; workers.max was 0 and is 3; tuning.lease was 30 s and is 1 s; "
                                    "tuning.commit was 3 s and is 1 s; tuning.stall was 120 s and is 1 s; tuning.micro_batch was 64 and is 1; "
                                    "tuning.micro_batch_tokens was 1024 and is 9");
    assert_int_equal(jobspec_rest_differs(&b, &a, 1, words, sizeof words), 9);
    assert_int_equal(strlen(words), sizeof words - 1);
    assert_int_equal(strncmp(words, "max_errors was 5 and is ", 24), 0);
    json_decref(now);
    jobspec_release(&b);
    assert_int_equal(from_yaml(&b, "model: m\ninput: {path: a, field: title, keep: [x]}\noutput: {path: o, floats: base64}\n", &e), ST_OK);
    now = jobspec_fingerprint(&b, "jsonl", "cc", "bb");
    assert_int_equal(jobspec_fingerprint_differs(then, now, words, sizeof words), 4);
    assert_string_equal(words, "the model has changed; input.field was not set and is 'title'; input.keep was [] and is [\"x\"]; "
                               "output.floats was 'array' and is 'base64'");
    json_decref(now);
    now = jobspec_fingerprint(&a, "csv", "aa", "dd");
    assert_int_equal(jobspec_fingerprint_differs(then, now, words, sizeof words), 2);
    assert_string_equal(words, "input.format was 'jsonl' and is 'csv'");
    json_decref(now);
    now = jobspec_fingerprint(&a, "jsonl", "aa", "dd");
    assert_int_equal(jobspec_fingerprint_differs(then, now, words, sizeof words), 1);
    assert_string_equal(words, "the input has changed");
    char tiny[8];
    assert_int_equal(jobspec_fingerprint_differs(then, now, tiny, sizeof tiny), 1);
    assert_string_equal(tiny, "the inp");
    json_decref(now);
    json_decref(then);
    jobspec_release(&a);
    jobspec_release(&b);
}

/* Each allocation fails once: the answer is ST_NOMEM, nothing leaks (under the address sanitizer), and the last round succeeds. */
static void sweep(enum status (*make)(struct jobspec *s, struct err *e))
{
    for (uint64_t n = 1;; n++) {
        struct jobspec s;
        struct err e = {0};
        assert_true(n < 10000);
        mem_fail_nth(n);
        enum status st = jobspec_init(&s, &e);
        if (st == ST_OK) {
            st = make(&s, &e);
            jobspec_release(&s);
        }
        mem_fail_nth(0);
        if (st == ST_OK) {
            assert_true(n > 10);
            break;
        }
        assert_int_equal(st, ST_NOMEM);
        assert_non_null(strstr(e.text, "out of memory"));
    }
}

static enum status make_yaml(struct jobspec *s, struct err *e)
{
    return jobspec_from_yaml(s, "job.yaml", e);
}

static const char full_json[] = "{\"name\":\"n\",\"model\":\"/m\",\"input\":{\"glob\":[\"/a\",\"/b\"],\"keep\":[\"x\",\"y\"],\"field\":\"f\"},"
                                "\"output\":{\"path\":\"/o\",\"floats\":\"base64\"},\"max_errors\":\"0.25%\"}";

static enum status make_json(struct jobspec *s, struct err *e)
{
    return jobspec_from_json(s, full_json, sizeof full_json - 1, e);
}

static enum status make_flags(struct jobspec *s, struct err *e)
{
    struct jobspec_flags *flags;
    char *argv[] = {(char *)"ebb run", (char *)"--input", (char *)"a", (char *)"--keep", (char *)"b,c", (char *)"--model", (char *)"m", NULL};
    int operands;
    TRY(jobspec_flags_new(&flags, e));
    struct opt_command c = {.name = "ebb run"};
    c.opts = jobspec_flags_opts(flags, &c.opt_count);
    enum status st = opt_parse(&c, 7, argv, &operands, e);
    if (st == ST_OK)
        st = jobspec_from_flags(s, flags, e);
    jobspec_flags_free(flags);
    return st;
}

static void allocation_failures(void **state)
{
    (void)state;
    files_put("job.yaml", full_yaml, sizeof full_yaml - 1);
    sweep(make_yaml);
    sweep(make_json);
    sweep(make_flags);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),         cmocka_unit_test(yaml_flags_and_json_agree), cmocka_unit_test(other_spellings),
        cmocka_unit_test(paths_are_those_of_the_files_folder), cmocka_unit_test(yaml_mistakes), cmocka_unit_test(yaml_bomb),
        cmocka_unit_test(json_mistakes),    cmocka_unit_test(flags_mistakes),            cmocka_unit_test(words_and_ranges),
        cmocka_unit_test(identity),         cmocka_unit_test(allocation_failures),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
