/* Are the sockets of a private daemon kept where nobody else can reach, and is a daemon that cannot start told in its own words? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#undef fail /* ours prints an error */

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/path.h"
#include "client/client.h"
#include "client/private.h"

static char folder[] = "/tmp/ebb-private-XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    return !mkdtemp(folder) || setenv("XDG_RUNTIME_DIR", folder, 1);
}

static int drop_folder(void **state)
{
    (void)state;
    struct err e;
    return path_remove_tree(folder, &e) != ST_OK;
}

static void runtime_folder(void **state)
{
    (void)state;
    struct err e;
    struct stat s;
    char *a = private_runtime_dir("/state/a", &e), *again = private_runtime_dir("/state/a", &e), *b = private_runtime_dir("/state/b", &e);
    assert_non_null(a);
    assert_string_equal(a, again);
    assert_string_not_equal(a, b);
    assert_int_equal(strncmp(a, folder, strlen(folder)), 0);
    assert_true(strlen(path_base(a)) == 16 && strspn(path_base(a), "0123456789abcdef") == 16);
    assert_true(strlen(a) + strlen("/clients") < 100);
    assert_int_equal(stat(a, &s), 0);
    assert_int_equal(s.st_mode & 0777, 0700);
    /* open to others, or a link that somebody laid: refused */
    assert_int_equal(chmod(a, 0755), 0);
    assert_null(private_runtime_dir("/state/a", &e));
    assert_non_null(strstr(e.text, "is not a folder of yours alone"));
    assert_int_equal(rmdir(a), 0);
    assert_int_equal(symlink(b, a), 0);
    assert_null(private_runtime_dir("/state/a", &e));
    assert_int_equal(unlink(a), 0);
    mem_free(a);
    mem_free(again);
    mem_free(b);
}

static void without_a_runtime_folder(void **state)
{
    (void)state;
    struct err e;
    char prefix[64];
    static const char *const unfit[] = {"", "relative", "/nowhere/at/all",
                                        "/tmp/a-folder-so-long-that-a-socket-in-it-would-have-too-long-a-name-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
    snprintf(prefix, sizeof prefix, "/tmp/ebb-%u/", (unsigned)geteuid());
    for (size_t i = 0; i < COUNT(unfit); i++) {
        setenv("XDG_RUNTIME_DIR", unfit[i], 1);
        char *p = private_runtime_dir("/state/of/a/test", &e);
        assert_non_null(p);
        assert_int_equal(strncmp(p, prefix, strlen(prefix)), 0);
        rmdir(p);
        mem_free(p);
    }
    setenv("XDG_RUNTIME_DIR", folder, 1);
}

static void allocation_failures(void **state)
{
    (void)state;
    char work[128];
    struct err e;
    snprintf(work, sizeof work, "%s/work", folder);
    for (uint64_t n = 1;; n++) {
        struct private p;
        mem_fail_nth(n);
        enum status st = private_init(&p, work, &(struct private_opts){0}, &e);
        mem_fail_nth(0);
        if (st == ST_OK) {
            assert_true(n > 5);
            private_release(&p);
            break;
        }
        assert_int_equal(st, ST_NOMEM);
    }
}

/* The test stands in a folder without an ebbd. */
static void no_daemon_beside(void **state)
{
    (void)state;
    struct private p;
    struct err e;
    char work[128];
    snprintf(work, sizeof work, "%s/work", folder);
    assert_int_equal(private_init(&p, work, &(struct private_opts){0}, &e), ST_OK);
    assert_int_equal(private_start(&p, &e), ST_ENV);
    assert_non_null(strstr(e.text, "/ebbd', which belongs beside 'ebb'"));
    assert_int_equal(private_alive(&p), 0);
    private_release(&p);
}

static void last_words(void **state)
{
    (void)state;
    struct private p = {0};
    struct err e;
    char log[128], words[300];
    snprintf(log, sizeof log, "%s/log", folder);
    p.log = log;
    private_last_words(&p, words, sizeof words);
    assert_string_equal(words, ""); /* there is no log */
    assert_int_equal(path_write(log, "old\n1\n2\n3\n4\n5\n6\n", 16, &e), ST_OK);
    private_last_words(&p, words, sizeof words);
    assert_string_equal(words, "\n2\n3\n4\n5\n6");
    p.log_from = 12; /* what was there before it was started is not its */
    private_last_words(&p, words, sizeof words);
    assert_string_equal(words, "\n5\n6");
    p.log_from = 16;
    private_last_words(&p, words, sizeof words);
    assert_string_equal(words, "");
}

static void endpoint_of_an_output(void **state)
{
    (void)state;
    struct err e;
    char path[160], owner[] = "{\"host\":\"h\",\"endpoint\":\"ipc:///run/x/clients\",\"pid\":5}";
    snprintf(path, sizeof path, "%s/out/.ebb/state", folder);
    assert_int_equal(path_make_dirs(path, 0777, &e), ST_OK);
    snprintf(path, sizeof path, "%s/out", folder);
    char *p = private_endpoint_of_output(path);
    assert_non_null(strstr(p, "/out/.ebb/state/clients")); /* nobody's: connecting says so */
    mem_free(p);
    snprintf(path, sizeof path, "%s/out/.ebb/state/owner", folder);
    assert_int_equal(path_write(path, owner, sizeof owner - 1, &e), ST_OK);
    snprintf(path, sizeof path, "%s/out/", folder);
    p = private_endpoint_of_output(path);
    assert_string_equal(p, "ipc:///run/x/clients");
    mem_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(runtime_folder),   cmocka_unit_test(without_a_runtime_folder), cmocka_unit_test(allocation_failures),
                                       cmocka_unit_test(no_daemon_beside), cmocka_unit_test(last_words),               cmocka_unit_test(endpoint_of_an_output)};
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
