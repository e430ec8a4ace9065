/* The configuration: every complaint names file, line and key. */
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

#include "base/path.h"
#include "daemon/config.h"
#include "tests/lib/files.h"

static char dir[64], file[96];

static int setup(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/ebbd-config-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(file, sizeof file, "%s/ebbd.yaml", dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    struct err e;
    return path_remove_tree(dir, &e) == ST_OK ? 0 : -1;
}

static enum status read_text(struct config *c, const char *text, struct err *e)
{
    files_put(file, text, strlen(text));
    assert_int_equal(config_init(c, e), ST_OK);
    return config_read(c, file, e);
}

static void refused(const char *text, const char *words)
{
    struct config c;
    struct err e = {0};
    enum status st = read_text(&c, text, &e);
    if (st != ST_USER || strcmp(e.text, words)) {
        print_error("wanted '%s', got %d '%s'\n", words, (int)st, e.text);
        fail();
    }
    config_release(&c);
}

static void whole_file(void **state)
{
    (void)state;
    struct config c;
    struct err e;
    assert_int_equal(read_text(&c,
                               "# a pool\n"
                               "state_dir: /srv/ebb\nruntime_dir: /run/ebb-test\nroots: [/srv/a/, /nowhere/../b]\n"
                               "workers:\n  count: 3\n  lanes: 4\n  memory: 2GiB\n  pack_cache: off\n  pack_cache_size: 3GiB\nidle: 1min\nmin_free: 1GiB\nlog_level: debug\n",
                               &e),
                     ST_OK);
    assert_string_equal(c.state_dir, "/srv/ebb");
    assert_string_equal(c.runtime_dir, "/run/ebb-test");
    assert_string_equal(c.roots[0], "/srv/a");
    assert_string_equal(c.roots[1], "/b");
    assert_null(c.roots[2]);
    assert_int_equal(c.workers, 3);
    assert_int_equal(c.lanes, 4);
    assert_int_equal(c.memory, (uint64_t)2 << 30);
    assert_string_equal(c.pack_cache, "off");
    assert_int_equal(c.pack_bytes, (uint64_t)3 << 30);
    assert_int_equal(c.idle_ms, 60000);
    assert_int_equal(c.min_free, (uint64_t)1 << 30);
    assert_int_equal(c.log_level, LOG_DEBUG);
    config_release(&c);
    assert_int_equal(read_text(&c, "", &e), ST_OK); /* empty: defaults */
    assert_int_equal(c.workers, 1);
    assert_int_equal(c.idle_ms, 30000);
    assert_int_equal(c.min_free, 512u << 20);
    config_release(&c);
}

static void complaints(void **state)
{
    (void)state;
    refused("state_dir: /a\nworker:\n  count: 1\n", "ebbd.yaml:2: unknown key 'worker' (did you mean 'workers')");
    refused("workers:\n  cuont: 1\n", "ebbd.yaml:2: unknown key 'cuont' (did you mean 'count')");
    refused("zzz: 1\n", "ebbd.yaml:1: unknown key 'zzz'; see ebbd(1) for those there are");
    refused("workers: 3\n", "ebbd.yaml:1: 'workers' wants keys below it");
    refused("workers:\n  count: many\n", "ebbd.yaml:2: 'workers.count' wants a whole number");
    refused("workers:\n  count: -1\n", "ebbd.yaml:2: 'workers.count' wants a whole number");
    refused("workers:\n  count: 99999999999999999999\n", "ebbd.yaml:2: 'workers.count' wants a whole number");
    refused("\n\nidle: soon\n", "ebbd.yaml:3: 'idle' wants a duration such as 30s");
    refused("min_free: 1 lot\n", "ebbd.yaml:1: 'min_free' wants a size such as 512MiB");
    refused("log_level: loud\n", "ebbd.yaml:1: 'log_level' wants error, warning, info or debug");
    refused("roots: /srv\n", "ebbd.yaml:1: 'roots' wants a list of folders");
    refused("slurm:\n  class: cheap\n", "ebbd.yaml:2: 'slurm.class' wants preemptible or guaranteed");
    refused("slurm:\n  options: --nice\n", "ebbd.yaml:2: 'slurm.options' wants a list of texts");
    refused("slurm:\n  options: [a, [b]]\n", "ebbd.yaml:2: 'slurm.options' wants a list of texts");
    refused("slurm:\n  partiton: x\n", "ebbd.yaml:2: unknown key 'partiton' (did you mean 'partition')");
    refused("kubernetes: 3\n", "ebbd.yaml:1: 'kubernetes' wants keys below it");
    refused("roots: [srv]\n", "ebbd.yaml:1: 'roots' wants a list of folders");
    refused("state_dir: [a]\n", "ebbd.yaml:1: 'state_dir' wants a text");
    refused("idle: 1s\nidle: 2s\n", "ebbd.yaml:2: 'idle' is there twice");
    refused("- a\n", "ebbd.yaml:1: wants lines of the form 'key: value'");
    refused("? [a]\n: 1\n", "ebbd.yaml:1: a key must be a word");
    struct config c;
    struct err e = {0};
    assert_int_equal(read_text(&c, "a: [1\nb: 2\n", &e), ST_USER);
    assert_non_null(strstr(e.text, "ebbd.yaml:2: not YAML"));
    assert_int_equal(config_read(&c, "/nowhere/ebbd.yaml", &e), ST_USER);
    assert_string_equal(e.text, "there is no configuration file '/nowhere/ebbd.yaml'");
    config_release(&c);
}

static void command_line(void **state)
{
    (void)state;
    struct config c;
    struct err e;
    unsetenv("EBB_PACK_CACHE");
    assert_int_equal(read_text(&c, "workers:\n  count: 3\n  lanes: 2\nstate_dir: /srv/ebb\n", &e), ST_OK);
    config_release(&c);
    char *argv[] = {"ebbd", "--config", file, "--workers", "0", "--runtime", "/run/x", "--log", "error", NULL};
    assert_int_equal(config_init(&c, &e), ST_OK);
    assert_int_equal(config_parse(&c, 9, argv, &e), ST_OK);
    assert_int_equal(c.workers, 0); /* the command line wins */
    assert_int_equal(c.lanes, 2);
    assert_string_equal(c.state_dir, "/srv/ebb");
    assert_string_equal(c.runtime_dir, "/run/x");
    assert_string_equal(c.pack_cache, "/srv/ebb/packs");
    assert_int_equal(c.log_level, LOG_ERROR);
    config_release(&c);
    char *mine[] = {"ebbd", "--private", "--state", "/srv/x", "--runtime", "/run/x", NULL};
    assert_int_equal(config_init(&c, &e), ST_OK);
    assert_int_equal(config_parse(&c, 6, mine, &e), ST_OK);
    assert_int_equal(c.min_free, 64u << 20); /* an ebb run fits on a small disk */
    assert_null(c.pack_cache);                /* and its state goes with the output: the worker knows a better place */
    config_release(&c);
    char *bad[] = {"ebbd", "--wrokers", "1", NULL};
    assert_int_equal(config_init(&c, &e), ST_OK);
    assert_int_equal(config_parse(&c, 3, bad, &e), ST_USER);
    assert_non_null(strstr(e.text, "did you mean '--workers'"));
    char longer[128];
    memset(longer, 'x', sizeof longer - 1);
    longer[0] = '/';
    longer[sizeof longer - 1] = 0;
    char *far[] = {"ebbd", "--runtime", longer, NULL};
    assert_int_equal(config_parse(&c, 3, far, &e), ST_USER);
    assert_non_null(strstr(e.text, "too long for sockets"));
    config_release(&c);
}

static void slurm(void **state)
{
    (void)state;
    struct config c;
    struct err e;
    assert_int_equal(read_text(&c, "slurm:\n  limit: 20\n  class: guaranteed\n  partition: scavenge\n  time: 4h\n  cpus: 2\n  memory: 4GiB\n"
                                   "  options: [\"--nice=10\", \"--comment=a b\"]\n  connect: tcp://pool:5570\n  grace: 10s\n"
                                   "kubernetes: { limit: 7, class: guaranteed }\n", &e), ST_OK);
    assert_int_equal(c.slurm_limit, 20);
    assert_int_equal(c.slurm_class, 0);
    assert_string_equal(c.slurm_partition, "scavenge");
    assert_null(c.slurm_account);
    assert_int_equal(c.slurm_time, 4 * 3600 * 1000);
    assert_int_equal(c.slurm_cpus, 2);
    assert_int_equal(c.slurm_memory, (uint64_t)4 << 30);
    assert_string_equal(c.slurm_options[0], "--nice=10");
    assert_string_equal(c.slurm_options[1], "--comment=a b");
    assert_null(c.slurm_options[2]);
    assert_string_equal(c.slurm_connect, "tcp://pool:5570");
    assert_int_equal(c.slurm_grace, 10000);
    assert_int_equal(c.slurm_poll, 5000);
    assert_int_equal(c.kubernetes_limit, 7);
    assert_int_equal(c.kubernetes_class, 0);
    config_release(&c);
    assert_int_equal(read_text(&c, "", &e), ST_OK);
    assert_int_equal(c.slurm_limit, 0);
    assert_int_equal(c.slurm_class, 1);
    assert_int_equal(c.kubernetes_class, 1);
    config_release(&c);
    static const char *const wrong[][2] = {
        {"slurm: { limit: 5000 }\n", "'slurm.limit': at most 4096"},
        {"slurm: { cpus: 0 }\n", "'slurm.cpus' must be 1 to 1024"},
        {"slurm: { memory: 1MiB }\n", "'slurm.memory' is too small for any model: give at least 64MiB"},
        {"slurm: { time: 30s }\n", "'slurm.time' must be at least 1min"},
        {"slurm: { poll: 10ms }\n", "'slurm.poll' must be at least 1s"},
        {"slurm: { limit: 1, connect: pool }\n", "'slurm.connect' wants tcp://HOST:PORT or ipc://PATH, not 'pool'"},
    };
    char *argv[] = {"ebbd", "--config", file, "--state", "/srv/ebb", "--runtime", "/run/x", NULL};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        files_put(file, wrong[i][0], strlen(wrong[i][0]));
        assert_int_equal(config_init(&c, &e), ST_OK);
        assert_int_equal(config_parse(&c, 7, argv, &e), ST_USER);
        assert_string_equal(e.text, wrong[i][1]);
        config_release(&c);
    }
    files_put(file, "slurm: { limit: 1 }\n", strlen("slurm: { limit: 1 }\n"));
    assert_int_equal(config_init(&c, &e), ST_OK);
    assert_int_equal(config_parse(&c, 7, argv, &e), ST_OK);
    assert_string_equal(c.slurm_dir, "/srv/ebb/slurm");
    config_release(&c);
}

/* What is said to be the default is the default, and every key is there. */
static void the_sample_is_the_default(void **state)
{
    (void)state;
    struct config sample, none;
    struct err e;
    assert_int_equal(config_init(&sample, &e), ST_OK);
    if (config_read(&sample, "deploy/ebbd.yaml", &e) != ST_OK) {
        print_error("%s\n", e.text);
        fail();
    }
    assert_int_equal(config_init(&none, &e), ST_OK);
    assert_int_equal(sample.slurm_limit, none.slurm_limit);
    assert_int_equal(sample.slurm_class, none.slurm_class);
    assert_int_equal(sample.slurm_cpus, none.slurm_cpus);
    assert_int_equal(sample.slurm_poll, none.slurm_poll);
    assert_int_equal(sample.kubernetes_class, none.kubernetes_class);
    assert_int_equal(sample.idle_ms, none.idle_ms);
    assert_int_equal(sample.worker_timeout, none.worker_timeout);
    assert_int_equal(sample.workers, none.workers);
    assert_null(sample.slurm_connect);
    config_release(&sample);
    assert_int_equal(config_init(&sample, &e), ST_OK); /* that of a cluster */
    if (config_read(&sample, "deploy/slurm/ebbd.yaml", &e) != ST_OK) {
        print_error("%s\n", e.text);
        fail();
    }
    assert_int_equal(sample.slurm_limit, 40);
    assert_string_equal(sample.slurm_partition, "scavenge");
    config_release(&sample);
    config_release(&none);
}

static void roots(void **state)
{
    (void)state;
    struct config c;
    struct err e;
    char text[256], path[160], link[96];
    snprintf(path, sizeof path, "%s/in", dir);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/outside", dir);
    mkdir(path, 0700);
    snprintf(link, sizeof link, "%s/in/link", dir);
    assert_int_equal(symlink(path, link), 0);
    snprintf(text, sizeof text, "roots: [%s/in]\n", dir);
    assert_int_equal(read_text(&c, text, &e), ST_OK);
    static const struct {
        const char *behind;
        int allowed;
    } cases[] = {{"/in", 1}, {"/in/a/b.jsonl", 1}, {"/in/../in/a", 1}, {"/inn/a", 0}, {"/outside/a", 0}, {"/in/../outside", 0}, {"/in/link/a", 0}, {"", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(path, sizeof path, "%s%s", dir, cases[i].behind);
        if ((config_allows(&c, path, &e) == ST_OK) != cases[i].allowed) {
            print_error("'%s' should%s be allowed\n", path, cases[i].allowed ? "" : " not");
            fail();
        }
    }
    config_release(&c);
    assert_int_equal(config_init(&c, &e), ST_OK);
    assert_int_equal(config_allows(&c, "/etc/passwd", &e), ST_OK); /* no roots: all */
    config_release(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(whole_file), cmocka_unit_test(complaints), cmocka_unit_test(command_line), cmocka_unit_test(slurm),
                                       cmocka_unit_test(the_sample_is_the_default),
                                       cmocka_unit_test(roots)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
