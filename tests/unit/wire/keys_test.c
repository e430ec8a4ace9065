/* Key files: whole, of the right role, not to be read by others; addresses as people write them; invitations and every typo in them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/path.h"
#include "tests/lib/files.h"
#include "wire/invite.h"
#include "wire/keys.h"

static char dir[64], file[96];

static int setup(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/ebb-keys-XXXXXX");
    snprintf(file, sizeof file, "%s/a.key", mkdtemp(dir) ? dir : "");
    return *file != '/';
}

static int teardown(void **state)
{
    (void)state;
    struct err e;
    return path_remove_tree(dir, &e) != ST_OK;
}

static void drawn(struct keys_file *k, enum keys_role role)
{
    struct err e;
    struct keys server;
    *k = (struct keys_file){.role = role};
    assert_int_equal(keys_generate(&server, &e), ST_OK);
    assert_int_equal(keys_generate(&k->keys, &e), ST_OK);
    if (role != KEYS_DAEMON)
        strcpy(k->keys.server_key, server.public_key);
}

static void written_and_read(void **state)
{
    (void)state;
    struct keys_file k, back;
    struct keys keys;
    struct err e;
    struct stat s;
    drawn(&k, KEYS_NODE);
    strcpy(k.daemon, "tcp://pool:5570");
    strcpy(k.name, "box");
    assert_int_equal(keys_write(file, &k, &e), ST_OK);
    assert_int_equal(stat(file, &s), 0);
    assert_int_equal(s.st_mode & 0777, 0600);
    assert_int_equal(keys_read_file(file, &back, &e), ST_OK);
    assert_memory_equal(&back, &k, sizeof k);
    assert_int_equal(keys_read(file, KEYS_NODE, &keys, &e), ST_OK);
    assert_string_equal(keys.secret_key, k.keys.secret_key);
    assert_int_equal(keys_read(file, KEYS_CLIENT, &keys, &e), ST_USER);
    assert_non_null(strstr(e.text, "is one of a worker or an agent, and a client needs its own"));
    assert_int_equal(keys_read("/nowhere/x.key", KEYS_NODE, &keys, &e), ST_NOT_FOUND);
    assert_int_equal(chmod(file, 0644), 0);
    assert_int_equal(keys_read(file, KEYS_NODE, &keys, &e), ST_USER);
    assert_non_null(strstr(e.text, "chmod 600"));
    assert_int_equal(chmod(file, 0440), 0); /* through a group, as a secret of Kubernetes is read */
    assert_int_equal(keys_read(file, KEYS_NODE, &keys, &e), ST_OK);
}

static void refused(const char *text, const char *words)
{
    struct keys_file k;
    struct err e;
    unlink(file);
    files_put(file, text, strlen(text));
    assert_int_equal(chmod(file, 0600), 0);
    assert_int_equal(keys_read_file(file, &k, &e), ST_USER);
    if (!strstr(e.text, words))
        fail_msg("'%s' does not say '%s'", e.text, words);
    assert_string_equal(k.keys.secret_key, "");
}

static void what_is_no_key_file(void **state)
{
    (void)state;
    struct keys_file k, other;
    char text[1024];
    drawn(&k, KEYS_NODE);
    drawn(&other, KEYS_NODE);
    refused("", "'role' is missing");
    refused("hello\n", ":1: not a line of a key file");
    refused("role: king\n", "unknown role 'king'");
    refused("# a remark\n\nrole: node\npublic: short\n", ":4: what stands behind 'public:' is not a key");
    snprintf(text, sizeof text, "role: node\npublic: %s\n", k.keys.public_key);
    refused(text, "'secret' is missing");
    snprintf(text, sizeof text, "role: node\npublic: %s\nsecret: %s\n", k.keys.public_key, k.keys.secret_key);
    refused(text, "does not name the daemon's key");
    snprintf(text, sizeof text, "role: daemon\npublic: %s\nsecret: %s\n", other.keys.public_key, k.keys.secret_key);
    refused(text, "the public key is not that of the secret one");
    memset(text, 'x', sizeof text);
    memcpy(text, "name: ", 6);
    text[sizeof text - 1] = 0;
    refused(text, "too long");
}

static void addresses(void **state)
{
    (void)state;
    static const char *const good[][3] = {{"pool", "tcp://pool:5570", "tcp://pool:5571"},
                                          {"pool:1", "tcp://pool:1", "tcp://pool:1"},
                                          {"tcp://10.0.0.1:65535", "tcp://10.0.0.1:65535", "tcp://10.0.0.1:65535"},
                                          {"[::1]", "tcp://[::1]:5570", "tcp://[::1]:5571"},
                                          {"tcp://[fe80::1%eth0]:99", "tcp://[fe80::1%eth0]:99", "tcp://[fe80::1%eth0]:99"}};
    static const char *const bad[] = {"", "tcp://", ":5570", "pool:", "pool:0", "pool:65536", "pool:1x", "a b", "a/b", "::1", "[::1", "[::1]x", "ipc:///x", "a:1:2", "a'b"};
    char out[KEYS_ENDPOINT_MAX];
    struct err e;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(keys_endpoint(good[i][0], KEYS_NODE, out, &e), ST_OK);
        assert_string_equal(out, good[i][1]);
        assert_int_equal(keys_endpoint(good[i][0], KEYS_CLIENT, out, &e), ST_OK);
        assert_string_equal(out, good[i][2]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(keys_endpoint(bad[i], KEYS_NODE, out, &e), ST_USER);
    char longer[400];
    memset(longer, 'a', sizeof longer);
    longer[sizeof longer - 1] = 0;
    assert_int_equal(keys_endpoint(longer, KEYS_NODE, out, &e), ST_USER);
}

static void invitations_there_and_back(void **state)
{
    (void)state;
    struct err e;
    for (int i = 0; i < 50; i++) {
        struct keys_file k;
        struct invite v = {.role = i % 2 ? KEYS_NODE : KEYS_CLIENT}, back;
        char text[INVITE_TEXT];
        drawn(&k, KEYS_NODE);
        v.keys = k.keys;
        invite_write(&v, text);
        assert_int_equal(invite_read(text, &back, &e), ST_OK);
        assert_memory_equal(&back, &v, sizeof v);
        for (char *p = text; *p; p++) /* a reader may shout */
            if (*p >= 'a' && *p <= 'z')
                *p = (char)(*p - 32);
        assert_int_equal(invite_read(text, &back, &e), ST_OK);
        assert_memory_equal(&back, &v, sizeof v);
    }
}

/* Each single wrong letter, each swap of neighbours, each letter lost or doubled. */
static void every_typo_is_found(void **state)
{
    (void)state;
    static const char letters[] = "qpzry9x8gf2tvdw0s3jn54khce6mua7lbio1";
    struct keys_file k;
    struct err e;
    struct invite v = {.role = KEYS_NODE}, back;
    char text[INVITE_TEXT], wrong[INVITE_TEXT + 1];
    drawn(&k, KEYS_NODE);
    v.keys = k.keys;
    invite_write(&v, text);
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++) {
        for (const char *p = letters; *p; p++) {
            memcpy(wrong, text, n + 1);
            wrong[i] = *p;
            if (*p != text[i])
                assert_int_equal(invite_read(wrong, &back, &e), ST_USER);
        }
        memcpy(wrong, text, n + 1);
        if (i + 1 < n && text[i] != text[i + 1]) {
            wrong[i] = text[i + 1];
            wrong[i + 1] = text[i];
            assert_int_equal(invite_read(wrong, &back, &e), ST_USER);
        }
        memcpy(wrong, text, n + 1);
        memmove(wrong + i, wrong + i + 1, n - i);
        assert_int_equal(invite_read(wrong, &back, &e), ST_USER);
        memcpy(wrong, text, i + 1);
        memcpy(wrong + i + 1, text + i, n - i + 1);
        assert_int_equal(invite_read(wrong, &back, &e), ST_USER);
    }
    assert_int_equal(invite_read("", &back, &e), ST_USER);
    assert_int_equal(invite_read("bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4", &back, &e), ST_USER);
}

static void files_survive_every_failed_allocation(void **state)
{
    (void)state;
    struct keys_file k, back;
    struct err e;
    drawn(&k, KEYS_DAEMON);
    for (uint64_t n = 1;; n++) {
        mem_fail_nth(n);
        enum status st = keys_write(file, &k, &e);
        if (st == ST_OK)
            st = keys_read_file(file, &back, &e);
        uint64_t made = mem_fail_nth(0);
        if (made < n) {
            assert_int_equal(st, ST_OK);
            break;
        }
        assert_int_equal(st, ST_NOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(written_and_read, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_no_key_file, setup, teardown),
        cmocka_unit_test(addresses),
        cmocka_unit_test(invitations_there_and_back),
        cmocka_unit_test(every_typo_is_found),
        cmocka_unit_test_setup_teardown(files_survive_every_failed_allocation, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
