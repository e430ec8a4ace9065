/* Do flags, YAML and JSON say the same steps, what of them is a job's identity, and does each mistake name its place? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/path.h"
#include "tests/lib/files.h"
#include "wire/jobspec.h"

static char folder[] = "/tmp/ebb-steps-XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    return !mkdtemp(folder) || chdir(folder);
}

static int drop_folder(void **state)
{
    (void)state;
    struct err e;
    return path_remove_tree(folder, &e) != ST_OK;
}

static const char yaml[] = "steps:\n"
                           "  - command: python3 clean.py --a=1,2\n"
                           "    timeout: 1.5s\n"
                           "    concurrency: 3\n"
                           "  - model: classifier\n"
                           "    precision: int8\n"
                           "    batch: 16\n"
                           "    when: label != toxic\n"
                           "  - {model: /m/embedder, field: body}\n"
                           "input: in.jsonl\n"
                           "output: out\n";

static enum status from_yaml(struct jobspec *s, const char *text, struct err *e)
{
    files_put("job.yaml", text, strlen(text));
    TRY(jobspec_init(s, e));
    return jobspec_from_yaml(s, "job.yaml", e);
}

static enum status from_steps(struct jobspec *s, const char *const *steps, struct err *e)
{
    struct jobspec_flags *flags;
    char *words[32] = {"ebb", "--input", "in.jsonl", "--output", "out"};
    int n = 5, operands;
    size_t count;
    for (; *steps; steps++) {
        words[n++] = "--step";
        words[n++] = (char *)(uintptr_t)*steps;
    }
    TRY(jobspec_init(s, e));
    enum status st = jobspec_flags_new(&flags, e);
    if (st != ST_OK)
        return st;
    struct opt_command c = {.name = "ebb test", .summary = "x", .opts = jobspec_flags_opts(flags, &count)};
    c.opt_count = count;
    st = opt_parse(&c, n, words, &operands, e);
    if (st == ST_OK)
        st = jobspec_from_flags(s, flags, e);
    jobspec_flags_free(flags);
    return st;
}

static char *json_text(const struct jobspec *s)
{
    json_t *j = jobspec_to_json(s);
    assert_non_null(j);
    char *text = json_dumps(j, JSON_SORT_KEYS);
    json_decref(j);
    return text;
}

static void three_ways_agree(void **state)
{
    (void)state;
    struct jobspec a, b, c;
    struct err e = {0};
    static const char *const steps[] = {"command=python3 clean.py --a=1,2,timeout=1.5s,concurrency=3", "model=classifier, precision=int8,batch=16,when=label != toxic",
                                        "model=/m/embedder,field=body", NULL};
    if (from_yaml(&a, yaml, &e) != ST_OK || jobspec_check(&a, &e) != ST_OK)
        fail_msg("%s", e.text);
    assert_int_equal(a.steps.count, 3);
    assert_string_equal(a.steps.items[0].command, "python3 clean.py --a=1,2");
    assert_int_equal(a.steps.items[0].timeout, 1500);
    assert_int_equal(a.steps.items[0].dir[0], '/');
    assert_int_equal(a.steps.items[1].model[0], '/');
    assert_null(a.steps.items[1].dir);
    if (from_steps(&b, steps, &e) != ST_OK || jobspec_check(&b, &e) != ST_OK)
        fail_msg("%s", e.text);
    char *x = json_text(&a), *y = json_text(&b);
    assert_string_equal(x, y);
    assert_int_equal(jobspec_init(&c, &e), ST_OK);
    assert_int_equal(jobspec_from_json(&c, x, strlen(x), &e), ST_OK);
    char *z = json_text(&c);
    assert_string_equal(x, z);
    char name[200];
    assert_string_equal(jobspec_model_name(&a, name, sizeof name), "python3 clean.py --a=1,2 > classifier > embedder");
    free(x);
    free(y);
    free(z);
    jobspec_release(&a);
    jobspec_release(&b);
    jobspec_release(&c);
}

static json_t *print_of(const char *step)
{
    struct jobspec s;
    struct err e = {0};
    const char *steps[] = {step, "model=/m/last", NULL};
    if (from_steps(&s, steps, &e) != ST_OK || jobspec_check(&s, &e) != ST_OK)
        fail_msg("%s: %s", step, e.text);
    json_t *print = jobspec_fingerprint(&s, "jsonl", "aa", "bb");
    jobspec_release(&s);
    assert_non_null(print);
    return print;
}

static void identity(void **state)
{
    (void)state;
    static const struct {
        const char *a, *b;
        int same;
    } cases[] = {
        {"model=/m/a,batch=3", "model=/m/a,batch=4", 1},
        {"model=/m/a", "model=/m/b", 1}, /* which model it is says the digest of all of them */
        {"command=cat,timeout=3s,concurrency=1", "command=cat", 1},
        {"command=cat", "command=tac", 0},
        {"command=cat,dir=/a", "command=cat,dir=/b", 0},
        {"model=/m/a,precision=int8", "model=/m/a,precision=f32", 0},
        {"model=/m/a,when=x > 1", "model=/m/a", 0},
        {"model=/m/a,field=x", "model=/m/a", 0},
        {"command=cat", "model=/m/a", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char words[600];
        json_t *a = print_of(cases[i].a), *b = print_of(cases[i].b);
        int differs = jobspec_fingerprint_differs(a, b, words, sizeof words);
        if ((differs == 0) != cases[i].same)
            fail_msg("%s / %s: %s", cases[i].a, cases[i].b, words);
        json_decref(a);
        json_decref(b);
    }
    struct jobspec s;
    struct err e;
    assert_int_equal(jobspec_init(&s, &e), ST_OK);
    json_t *one = jobspec_fingerprint(&s, "jsonl", "aa", "bb"); /* of a job of one model: as before there were steps */
    assert_null(json_object_get(one, "steps"));
    json_decref(one);
    json_t *j = jobspec_to_json(&s);
    assert_null(json_object_get(j, "steps"));
    json_decref(j);
    jobspec_release(&s);
}

static void mistakes(void **state)
{
    (void)state;
    static const struct {
        const char *steps[3], *words;
    } flags[] = {
        {{"cat"}, "wants KEY=VALUE"},
        {{"model=/m/a,batch=x"}, "whole number"},
        {{"command=cat,timeout=x"}, "a duration"},
        {{"model=/m/a,model=/m/b"}, "a second time"},
        {{"mdel=/m/a"}, "did you mean 'model'"},
        {{"model="}, "has no value"},
        {{"when=x > 1"}, "neither a model nor a command"},
        {{"model=/m/a,command=cat"}, "a model and a command"},
        {{"model=/m/a,timeout=3s"}, "is for commands"},
        {{"command=cat,field=x"}, "is for models"},
        {{"model=/m/a,precision=int9"}, "f32, bf16 or int8"},
        {{"model=/m/a", "model=/m/b,when=x"}, "step 2: the condition 'x'"},
        {{"command=cat,timeout=10ms"}, "timeout is between"},
        {{"model=/m/a,top_k=5000"}, "top_k is at most 1000"},
    };
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        struct jobspec s;
        struct err e = {0};
        enum status st = from_steps(&s, flags[i].steps, &e);
        if (st == ST_OK)
            st = jobspec_check(&s, &e);
        if (st != ST_USER || !strstr(e.text, flags[i].words))
            fail_msg("'%s': %s", flags[i].steps[0], e.text);
        jobspec_release(&s);
    }
    static const char *const files[][2] = {
        {"steps: cat\n", "job.yaml:1: 'steps' wants a list of steps"},
        {"steps:\n  - cat\n", "job.yaml:2: 'steps' wants a list of steps"},
        {"steps:\n  - command: cat\n    tiemout: 3s\n", "job.yaml:3: unknown key 'tiemout' of a step (did you mean 'timeout')"},
        {"steps:\n  - command: [cat]\n", "job.yaml:2: a step is a mapping of words to single values"},
        {"steps:\n  - model: a\n    batch: many\n", "job.yaml:3: 'batch' of a step wants a whole number"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct jobspec s;
        struct err e = {0};
        if (from_yaml(&s, files[i][0], &e) != ST_USER || strncmp(e.text, files[i][1], strlen(files[i][1])) != 0)
            fail_msg("%s: %s", files[i][0], e.text);
        jobspec_release(&s);
    }
    static const char *const jsons[] = {"{\"steps\":3}", "{\"steps\":[3]}", "{\"steps\":[{\"model\":[]}]}", "{\"steps\":[{\"x\":1}]}", "{\"steps\":[{\"batch\":-1}]}"};
    for (size_t i = 0; i < sizeof jsons / sizeof *jsons; i++) {
        struct jobspec s;
        struct err e = {0};
        assert_int_equal(jobspec_init(&s, &e), ST_OK);
        assert_int_equal(jobspec_from_json(&s, jsons[i], strlen(jsons[i]), &e), ST_USER);
        jobspec_release(&s);
    }
    char many[JOBSPEC_MOST_STEPS * 40 + 100] = "steps:\n";
    for (int i = 0; i <= JOBSPEC_MOST_STEPS; i++)
        strcat(many, "  - model: /m/a\n");
    struct jobspec s;
    struct err e = {0};
    assert_int_equal(from_yaml(&s, many, &e), ST_USER);
    assert_non_null(strstr(e.text, "at most 16 steps"));
    jobspec_release(&s);
}

static void what_does_not_go_together(void **state)
{
    (void)state;
    struct jobspec s;
    struct err e = {0};
    static const char *const ends_in_command[] = {"model=/m/a", "command=cat", NULL}, *const ends_in_classes[] = {"command=cat", "model=/m/a,task=token-classify", NULL};
    assert_int_equal(from_steps(&s, ends_in_command, &e), ST_OK);
    assert_int_equal(jobspec_check_steps(&s, NULL, 0, &e), ST_OK);
    assert_int_equal(jobspec_check_steps(&s, "images", 0, &e), ST_USER);
    assert_non_null(strstr(e.text, "the input is of images"));
    assert_int_equal(jobspec_check_steps(&s, NULL, 1, &e), ST_USER);
    assert_non_null(strstr(e.text, "let a model be the last step"));
    s.stages = 2;
    assert_int_equal(jobspec_check(&s, &e), ST_USER);
    assert_non_null(strstr(e.text, "--stages 2"));
    jobspec_release(&s);
    assert_int_equal(from_steps(&s, ends_in_classes, &e), ST_OK);
    assert_int_equal(jobspec_check_steps(&s, NULL, 1, &e), ST_USER);
    assert_int_equal(jobspec_check_steps(&s, NULL, 0, &e), ST_OK);
    jobspec_release(&s);
}

static void allocation_failures(void **state)
{
    (void)state;
    uint64_t n = 1;
    for (int done = 0; !done; n++) {
        struct jobspec s = {0}, t = {0};
        struct err e;
        static const char *const steps[] = {"command=cat,dir=x", "model=a,when=b = c", NULL};
        mem_fail_nth(n);
        enum status st = from_steps(&s, steps, &e);
        if (st == ST_OK)
            st = jobspec_check(&s, &e);
        if (st == ST_OK)
            st = from_yaml(&t, yaml, &e);
        mem_fail_nth(0);
        assert_true(st == ST_OK || st == ST_NOMEM);
        done = st == ST_OK;
        jobspec_release(&s);
        jobspec_release(&t);
    }
    assert_true(n > 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(three_ways_agree), cmocka_unit_test(identity), cmocka_unit_test(mistakes),
                                       cmocka_unit_test(what_does_not_go_together), cmocka_unit_test(allocation_failures)};
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
