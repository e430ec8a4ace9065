/* An output that lies in its own input is refused, before anything is destroyed; outputs beside it are not. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/path.h"
#include "storage/overlap.h"

static struct err e;
static char dir[64];

static int setup(void **state)
{
    (void)state;
    strcpy(dir, P_tmpdir "/ebb-overlap-XXXXXX");
    static const char *const files[] = {"a.jsonl", "b.jsonl", "in/1.jsonl", "in/2.jsonl", "done/part-00000.jsonl", "done/.ebb/stdin.jsonl", "o.npy.ebb/stdin.jsonl", "in/old.npy.ebb/ebbd.log"};
    if (!mkdtemp(dir) || chdir(dir) || mkdir("in", 0777) || mkdir("done", 0777) || mkdir("done/.ebb", 0777) || mkdir("o.npy.ebb", 0777) || mkdir("in/old.npy.ebb", 0777))
        return -1;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (path_write(files[i], "{\"text\":\"x\"}\n", 13, &e) != ST_OK)
            return -1;
    return symlink("a.jsonl", "link.jsonl");
}

static int teardown(void **state)
{
    (void)state;
    return path_remove_tree(dir, &e) == ST_OK ? 0 : -1;
}

static enum status check(const char *input, const char *output)
{
    struct output_spec o;
    struct dataset d = {0};
    char *in = path_absolute(input), *out = path_absolute(output);
    const char *inputs[] = {in};
    char with_slash[256];
    snprintf(with_slash, sizeof with_slash, "%s%s", out, output[strlen(output) - 1] == '/' && out[strlen(out) - 1] != '/' ? "/" : "");
    enum status st = output_resolve(with_slash, NULL, &o, &e);
    assert_int_equal(st, ST_OK);
    st = overlap_inputs(&o, inputs, 1, &e);
    if (st == ST_OK) {
        st = dataset_open(&(struct dataset_spec){.inputs = inputs, .input_count = 1}, &d, &e);
        if (st != ST_OK)
            fail_msg("%s", e.text);
        st = overlap_sources(&o, &d, &e);
    }
    dataset_release(&d);
    mem_free(in);
    mem_free(out);
    return st;
}

static void refused(const char *input, const char *output, const char *words)
{
    if (check(input, output) != ST_USER)
        fail_msg("%s -> %s is taken", input, output);
    if (!strstr(e.text, words))
        fail_msg("'%s' is not in '%s'", words, e.text);
}

static void fine(const char *input, const char *output)
{
    if (check(input, output) != ST_OK)
        fail_msg("%s -> %s: %s", input, output, e.text);
}

static void what_is_read_is_not_replaced(void **state)
{
    (void)state;
    refused("a.jsonl", "a.jsonl", "would be replaced by the output");
    refused("link.jsonl", "a.jsonl", "would be replaced by the output");
    refused("done/part-00000.jsonl", "done/", "lies in the output");
    refused("done/part-*.jsonl", "done/", "its own results");
    refused("in/1.jsonl", "in/", "lies in the output");
}

static void results_are_not_read_the_next_time(void **state)
{
    (void)state;
    refused("in", "in/out/", "its own results");
    refused("in", "in/deep/er/out/", "its own results");
    refused("in", "in/o.npy", "its own results");
    refused("in/*.jsonl", "in/o.jsonl", "its own results");
    refused("in/*.jsonl", "in/o.npy", "its own results"); /* o.npy.ids.jsonl */
    refused("i*", "in/out/", "its own results");
    refused("**/*.jsonl", "in/out/", "its own results");
}

static void beside_is_fine(void **state)
{
    (void)state;
    fine("in", "out/"); /* the working folder of another output is no input */
    fine("in", "in2/");
    fine("in", "o.jsonl");
    fine("in", "in/.out/");
    fine("in/*.jsonl", "in/out/");
    fine("a.jsonl", "b2.jsonl");
    fine("a.jsonl", "out/");
    fine("[ab].jsonl", "o.jsonl");
    fine("done/.ebb/stdin.jsonl", "done/");
    fine("o.npy.ebb/stdin.jsonl", "o.npy");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_read_is_not_replaced), cmocka_unit_test(results_are_not_read_the_next_time),
                                       cmocka_unit_test(beside_is_fine)};
    return cmocka_run_group_tests_name("overlap", tests, setup, teardown);
}
