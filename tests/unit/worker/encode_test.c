/* The bytes of rows, as people and programs will read them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "workers/pipeline/encode.h"

static const struct input input = {.source = {.path = (char *)(uintptr_t)"/data/a \"b\".jsonl", .base = 1000}};

static struct item *item(const char *id, const char *keep)
{
    struct item *i = item_new();
    i->input = &input;
    i->record = (struct span){1042, 1100};
    i->id = id ? mem_strdup(id) : NULL;
    i->id_len = id ? strlen(id) : 0;
    i->keep = keep ? mem_strdup(keep) : NULL;
    i->keep_len = keep ? strlen(keep) : 0;
    return i;
}

static int embed_item(const struct job *j, struct item *i, const float *x, uint32_t n, struct buf *scratch)
{
    return encode_item(j, i, &(struct outcome){.task = TASK_EMBED, .rows = 1, .width = n, .f32 = x}, scratch);
}

static void check(const struct job *j, const char *id, const char *keep, const float *x, uint32_t n, const char *row, const char *aux)
{
    struct buf scratch = {0};
    struct item *i = item(id, keep);
    assert_int_equal(embed_item(j, i, x, n, &scratch), 1);
    if (row) {
        assert_int_equal(i->row_len, strlen(row));
        assert_memory_equal(i->row, row, i->row_len);
    }
    assert_int_equal(i->aux_len, aux ? strlen(aux) : 0);
    if (aux)
        assert_memory_equal(i->aux, aux, i->aux_len);
    item_free(i);
    buf_release(&scratch);
}

static void jsonl(void **state)
{
    (void)state;
    const struct job j = {.id = 1};
    const float x[] = {0.1f, -1, 3.5e-9f, 16777216, -0.0f};
    check(&j, "17", NULL, x, 5, "{\"id\":17,\"embedding\":[0.1,-1.0,3.5e-9,16777216.0,-0.0]}\n", NULL);
    check(&j, "\"a\"", ",\"stars\":5,\"lang\":null", x, 1, "{\"id\":\"a\",\"stars\":5,\"lang\":null,\"embedding\":[0.1]}\n", NULL);
    check(&j, NULL, ",\"stars\":5", x, 1, "{\"source\":\"/data/a \\\"b\\\".jsonl\",\"offset\":42,\"stars\":5,\"embedding\":[0.1]}\n", NULL);
    check(&j, "1", NULL, x, 0, "{\"id\":1,\"embedding\":[]}\n", NULL);
}

static void base64(void **state)
{
    (void)state;
    const struct job j = {.id = 1, .base64 = 1};
    const float x[] = {1, -2.5f, 0.1f}; /* 0000803f 000020c0 cdcccc3d */
    check(&j, "1", NULL, x, 1, "{\"id\":1,\"embedding\":\"AACAPw==\"}\n", NULL);
    check(&j, "1", NULL, x, 2, "{\"id\":1,\"embedding\":\"AACAPwAAIMA=\"}\n", NULL);
    check(&j, "1", NULL, x, 3, "{\"id\":1,\"embedding\":\"AACAPwAAIMDNzMw9\"}\n", NULL);
}

static void npy(void **state)
{
    (void)state;
    const struct job j = {.id = 1, .npy = 1};
    const float x[] = {1, -2.5f};
    static const uint8_t bytes[] = {0, 0, 0x80, 0x3f, 0, 0, 0x20, 0xc0};
    struct buf scratch = {0};
    struct item *i = item("17", NULL);
    assert_int_equal(embed_item(&j, i, x, 2, &scratch), 1);
    assert_int_equal(i->row_len, sizeof bytes);
    assert_memory_equal(i->row, bytes, sizeof bytes);
    item_free(i);
    buf_release(&scratch);
    check(&j, "17", NULL, x, 2, NULL, "17\n");
    check(&j, "17", ",\"stars\":5", x, 2, NULL, "{\"id\":17,\"stars\":5}\n");
    check(&j, NULL, NULL, x, 2, NULL, "{\"source\":\"/data/a \\\"b\\\".jsonl\",\"offset\":42}\n");
}

/* JSON has no word for them, and a row that holds one is of no use. */
static void what_is_not_finite_is_refused(void **state)
{
    (void)state;
    struct buf scratch = {0};
    for (int npy_too = 0; npy_too < 2; npy_too++) {
        const struct job j = {.id = 1, .npy = npy_too};
        const float bad[] = {NAN, INFINITY, -INFINITY};
        for (int k = 0; k < 3; k++) {
            const float x[] = {1, bad[k], 3.4e38f, 3.4e38f};
            struct item *i = item("1", NULL);
            assert_int_equal(embed_item(&j, i, x, 4, &scratch), 0);
            assert_null(i->row);
            assert_null(i->aux);
            item_free(i);
        }
        const float large[] = {3.4e38f, 3.4e38f};
        struct item *i = item("1", NULL);
        assert_int_equal(embed_item(&j, i, large, 2, &scratch), 1);
        item_free(i);
    }
    buf_release(&scratch);
}

static void each_allocation_may_fail(void **state)
{
    (void)state;
    const float x[64] = {1};
    for (int npy_too = 0; npy_too < 2; npy_too++) {
        const struct job j = {.id = 1, .npy = npy_too};
        for (uint64_t n = 1;; n++) {
            struct buf scratch = {0};
            struct item *i = item("1", ",\"a\":1");
            mem_fail_nth(n);
            int result = embed_item(&j, i, x, 64, &scratch);
            mem_fail_nth(0);
            item_free(i);
            buf_release(&scratch);
            if (result == 1) {
                assert_true(n > 2);
                break;
            }
            assert_int_equal(result, -1);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jsonl),
        cmocka_unit_test(base64),
        cmocka_unit_test(npy),
        cmocka_unit_test(what_is_not_finite_is_refused),
        cmocka_unit_test(each_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
