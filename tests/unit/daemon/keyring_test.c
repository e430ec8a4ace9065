/* authorized_keys: what a line may be, who keeps which number, and that edits leave people's own lines alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "daemon/keyring.h"

#define A "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
#define B "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
#define C "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs"

struct heard {
    size_t count, line;
    char why[200];
};

static void hear(void *arg, size_t line, const char *why)
{
    struct heard *h = arg;
    h->count++;
    h->line = line;
    snprintf(h->why, sizeof h->why, "%s", why);
}

static void read_text(struct keyring *r, const char *text, struct heard *h)
{
    struct err e;
    *h = (struct heard){0};
    assert_int_equal(keyring_read(r, text, strlen(text), hear, h, &e), ST_OK);
}

static void lines(void **state)
{
    (void)state;
    struct keyring r = {0};
    struct heard h;
    read_text(&r, "# remark\n\n  node " A "  gpu-box\r\nclient\t" B " anna\ninvite-node " C " guest until=2026-12-01T20:15:00Z", &h);
    assert_int_equal(h.count, 0);
    assert_int_equal(r.count, 3);
    const struct keyring_key *k = keyring_find(&r, A);
    assert_int_equal(k->role, KEYS_NODE);
    assert_string_equal(k->name, "gpu-box");
    assert_int_equal(k->until_ms, 0);
    assert_int_equal(k->invite, 0);
    k = keyring_find(&r, C);
    assert_int_equal(k->invite, 1);
    assert_int_equal(k->role, KEYS_NODE);
    assert_true(k->until_ms == 1796156100000);
    int several;
    assert_ptr_equal(keyring_named(&r, "anna", &several), keyring_find(&r, B));
    assert_ptr_equal(keyring_named(&r, B, &several), keyring_find(&r, B));
    assert_null(keyring_named(&r, "nobody", &several));
    keyring_release(&r);
}

static void bad_lines_let_nobody_in(void **state)
{
    (void)state;
    static const char *const bad[][2] = {{"king " A " x", "begins with none"},
                                         {"daemon " A " x", "begins with none"},
                                         {"invite-daemon " A " x", "begins with none"},
                                         {"node", "second word"},
                                         {"node short x", "second word"},
                                         {"node " A A " x", "second word"},
                                         {"node " A " a b", "third word"},
                                         {"node " A " a/../b", "third word"},
                                         {"invite-node " A " x", "wants 'until='"},
                                         {"invite-node " A " x until=tomorrow", "wants a time"},
                                         {"invite-node " A " x until=2026-12-01T20:15:00", "wants a time"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct keyring r = {0};
        struct heard h;
        char text[512];
        snprintf(text, sizeof text, "client %s good\n%s\nclient %s too\n", B, bad[i][0], C);
        read_text(&r, text, &h);
        assert_int_equal(h.count, 1);
        assert_int_equal(h.line, 2);
        if (!strstr(h.why, bad[i][1]))
            fail_msg("'%s': '%s' does not say '%s'", bad[i][0], h.why, bad[i][1]);
        assert_int_equal(r.count, 2);
        assert_null(keyring_find(&r, A));
        keyring_release(&r);
    }
    struct keyring r = {0};
    struct heard h;
    read_text(&r, "node " A " one\nclient " A " two\n", &h);
    assert_string_equal(h.why, "its key stands on an earlier line already");
    assert_int_equal(keyring_find(&r, A)->role, KEYS_NODE);
    char *text = calloc(1, 5000);
    memset(text, 'x', 4000);
    read_text(&r, text, &h);
    assert_string_equal(h.why, "it is too long");
    *text = '#';
    read_text(&r, text, &h);
    assert_int_equal(h.count, 0);
    free(text);
    keyring_release(&r);
}

static void numbers_stay_and_are_never_given_again(void **state)
{
    (void)state;
    struct keyring r = {0};
    struct heard h;
    read_text(&r, "node " A " a\nclient " B " b\n", &h);
    uint32_t a = keyring_find(&r, A)->user, b = keyring_find(&r, B)->user;
    assert_true(a && b && a != b);
    read_text(&r, "client " B " renamed\nnode " C " c\n", &h);
    assert_int_equal(keyring_find(&r, B)->user, b);
    assert_null(keyring_user(&r, a));
    uint32_t c = keyring_find(&r, C)->user;
    assert_true(c != a && c != b);
    read_text(&r, "node " A " a\nnode " B " b\n", &h); /* back again: whoever came with it before does not; and B is something else now */
    assert_true(keyring_find(&r, A)->user > c);
    assert_true(keyring_find(&r, B)->user > c);
    assert_null(keyring_user(&r, b));
    assert_null(keyring_user(&r, 0));
    assert_null(keyring_user(&r, 1000));
    keyring_release(&r);
}

static void names_are_tidy_and_their_own(void **state)
{
    (void)state;
    struct keyring r = {0};
    struct heard h;
    char name[KEYS_NAME_MAX];
    read_text(&r, "node " A " box\nnode " B " box-2\n", &h);
    keyring_name(&r, "desk", name);
    assert_string_equal(name, "desk");
    keyring_name(&r, "box", name);
    assert_string_equal(name, "box-3");
    keyring_name(&r, "../a b\n", name);
    assert_string_equal(name, "..-a-b-");
    keyring_name(&r, "", name);
    assert_string_equal(name, "unnamed");
    char longer[300];
    memset(longer, 'a', sizeof longer);
    longer[299] = 0;
    keyring_name(&r, longer, name);
    assert_true(strlen(name) < KEYS_NAME_MAX - 11);
    keyring_release(&r);
}

static void edits(void **state)
{
    (void)state;
    static const char text[] = "# mine\nnode " A " box # no\n\nclient " B " anna\ninvite-client " C " old until=2020-01-01T00:00:00Z\nnonsense\nnode " A " box";
    struct buf out = {0};
    assert_int_equal(keyring_without(&out, text, strlen(text), A, 1700000000000), 0);
    assert_string_equal(buf_cstr(&out), "# mine\nnode " A " box # no\n\nclient " B " anna\nnonsense\n");
    struct keyring_key k = {.role = KEYS_CLIENT, .invite = 1, .name = "x", .until_ms = 1796156100000};
    strcpy(k.key, C);
    assert_int_equal(keyring_add(&out, &k), 0);
    assert_non_null(strstr(buf_cstr(&out), "nonsense\ninvite-client " C " x until=2026-12-01T20:15:00Z\n"));
    buf_clear(&out);
    k = (struct keyring_key){.role = KEYS_NODE, .name = "y"};
    strcpy(k.key, A);
    assert_int_equal(keyring_add(&out, &k), 0); /* the first line of a new file: with words for people */
    assert_true(out.data[0] == '#');
    struct keyring r = {0};
    struct heard h;
    read_text(&r, buf_cstr(&out), &h);
    assert_int_equal(h.count, 0);
    assert_string_equal(keyring_find(&r, A)->name, "y");
    keyring_release(&r);
    buf_release(&out);
}

static void a_failed_allocation_changes_nothing(void **state)
{
    (void)state;
    struct keyring r = {0};
    struct heard h = {0};
    struct err e;
    read_text(&r, "node " A " a\n", &h);
    static const char text[] = "node " B " b\nclient " C " c\n";
    for (uint64_t n = 1;; n++) {
        mem_fail_nth(n);
        enum status st = keyring_read(&r, text, strlen(text), hear, &h, &e);
        uint64_t made = mem_fail_nth(0);
        if (made < n) {
            assert_int_equal(st, ST_OK);
            break;
        }
        assert_int_equal(st, ST_NOMEM);
        assert_int_equal(r.count, 1);
        assert_non_null(keyring_user(&r, 1));
    }
    keyring_release(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines),
        cmocka_unit_test(bad_lines_let_nobody_in),
        cmocka_unit_test(numbers_stay_and_are_never_given_again),
        cmocka_unit_test(names_are_tidy_and_their_own),
        cmocka_unit_test(edits),
        cmocka_unit_test(a_failed_allocation_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
