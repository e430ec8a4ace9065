#include "tests/unit/scheduler/rig.h"

#include "scheduler/ledger.h"

#define N 4000

/* Against a plain array that is searched from its beginning. */
static void test_a_million_choices(void **state)
{
    (void)state;
    static struct node pool[N];
    static uint8_t in[N];
    struct ledger l = {0};
    uint64_t x = 1;
    for (int round = 0; round < 60000; round++) {
        x = x * UINT64_C(6364136223846793005) + 1442695040888963407u;
        size_t i = (size_t)(x >> 33) % N;
        if (!in[i]) {
            pool[i] = (struct node){.span = {i * 10 + 1, i * 10 + 8}, .avail = (uint8_t)(1u << (x >> 20) % 3)};
            if ((x >> 24) % 3 == 0)
                pool[i].avail = 0;
            ledger_insert(&l, &pool[i]);
            in[i] = 1;
        } else if ((x >> 25) % 2) {
            ledger_remove(&l, &pool[i]);
            in[i] = 0;
        } else {
            pool[i].avail = (uint8_t)(1u << (x >> 20) % 3);
            ledger_update(&pool[i]);
        }
        if (round % 1000)
            continue;
        ledger_check(&l);
        uint64_t pos = (x >> 40) % (N * 10);
        size_t after = 0;
        while (after < N && !(in[after] && pool[after].span.end > pos))
            after++;
        struct node *want = after < N ? &pool[after] : NULL;
        assert_ptr_equal(ledger_at_or_after(&l, pos), want);
        assert_ptr_equal(ledger_find(&l, pos), want && want->span.begin <= pos ? want : NULL);
        for (unsigned kinds = 1; kinds < 8; kinds++) {
            struct node *got = NULL;
            size_t k = 0;
            for (int step = 0; step < 5; step++) {
                while (k < N && !(in[k] && pool[k].avail & kinds))
                    k++;
                got = ledger_avail(&l, kinds, got);
                assert_ptr_equal(got, k < N ? &pool[k] : NULL);
                if (!got)
                    break;
                k++;
            }
        }
        size_t count = 0;
        struct node *last = NULL;
        for (struct node *n = ledger_first(&l); n; n = ledger_next(n), count++) {
            assert_ptr_equal(ledger_prev(n), last);
            last = n;
        }
        assert_int_equal(count, l.count);
    }
}

static unsigned depth(const struct node *n)
{
    if (!n)
        return 0;
    unsigned a = depth(n->left), b = depth(n->right);
    return 1 + (a > b ? a : b);
}

static void test_it_stays_shallow_when_filled_in_order(void **state)
{
    (void)state;
    size_t n = 200000;
    struct node *pool = calloc(n, sizeof *pool);
    struct ledger l = {0};
    for (size_t i = 0; i < n; i++) {
        pool[i].span = (struct span){i, i + 1};
        ledger_insert(&l, &pool[i]);
    }
    assert_true(depth(l.root) < 60);
    for (size_t i = 0; i < n - 10; i++) /* done from the front, as jobs are */
        ledger_remove(&l, &pool[i]);
    ledger_check(&l);
    assert_int_equal(l.count, 10);
    free(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_million_choices),
        cmocka_unit_test(test_it_stays_shallow_when_filled_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
