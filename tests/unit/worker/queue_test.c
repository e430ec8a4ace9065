/* Queues keep order and lose nothing between threads; the budget is never overdrawn, and whoever waits at it can be called away. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/clock.h"
#include "workers/pipeline/queue.h"

struct thing {
    struct node node;
    uint32_t from, number, weight;
};

static struct thing *thing(uint32_t from, uint32_t number)
{
    struct thing *t = calloc(1, sizeof *t);
    t->from = from;
    t->number = number;
    t->weight = number % 5 + 1;
    return t;
}

static int lighter_than_ten(void *arg, const struct node *first, const struct node *next)
{
    uint32_t *sum = arg;
    if (!*sum)
        *sum = ((const struct thing *)first)->weight;
    if (*sum + ((const struct thing *)next)->weight > 10)
        return 0;
    *sum += ((const struct thing *)next)->weight;
    return 1;
}

static void takes_what_fits(void **state)
{
    (void)state;
    struct queue q;
    queue_init(&q);
    for (uint32_t i = 0; i < 8; i++)
        queue_push(&q, &thing(0, i)->node, 1); /* weights 1 2 3 4 5 1 2 3 */
    static const size_t want[] = {4, 3, 1};
    uint32_t number = 0;
    for (size_t k = 0; k < 3; k++) {
        uint32_t sum = 0;
        size_t n;
        struct node *chain = queue_take(&q, SIZE_MAX, lighter_than_ten, &sum, &n);
        assert_int_equal(n, want[k]);
        for (struct node *next; chain; chain = next) {
            next = chain->next;
            assert_int_equal(((struct thing *)chain)->number, number++);
            free(chain);
        }
    }
    size_t n;
    queue_push(&q, NULL, 0);
    queue_close(&q);
    assert_null(queue_take(&q, 1, NULL, NULL, &n));
    assert_int_equal(n, 0);
    queue_release(&q);
}

#define EACH 20000

struct busy {
    struct queue *q;
    uint32_t number;
    uint64_t *seen; /* of each producer: the sum of the numbers */
    uint64_t taken;
};

static void *produce(void *arg)
{
    struct busy *b = arg;
    for (uint32_t i = 1; i <= EACH;) {
        struct node *chain = NULL, **tail = &chain;
        size_t n = 0;
        for (; n < i % 7 + 1 && i <= EACH; n++, i++) {
            *tail = &thing(b->number, i)->node;
            tail = &(*tail)->next;
        }
        queue_push(b->q, chain, n);
    }
    return NULL;
}

static void *consume(void *arg)
{
    struct busy *b = arg;
    size_t n;
    uint32_t last[3] = {0};
    for (struct node *chain; (chain = queue_take(b->q, 5, NULL, NULL, &n));)
        for (struct node *next; chain; chain = next) {
            next = chain->next;
            struct thing *t = (struct thing *)chain;
            if (t->number <= last[t->from]) /* each producer's things come in their order */
                abort();
            last[t->from] = t->number;
            b->seen[t->from] += t->number;
            b->taken++;
            free(t);
        }
    return NULL;
}

static void many_threads(void **state)
{
    (void)state;
    struct queue q;
    queue_init(&q);
    pthread_t producers[3], consumers[3];
    struct busy p[3], c[3];
    uint64_t seen[3][3] = {{0}};
    for (uint32_t i = 0; i < 3; i++) {
        c[i] = (struct busy){.q = &q, .seen = seen[i]};
        pthread_create(&consumers[i], NULL, consume, &c[i]);
    }
    for (uint32_t i = 0; i < 3; i++) {
        p[i] = (struct busy){.q = &q, .number = i};
        pthread_create(&producers[i], NULL, produce, &p[i]);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(producers[i], NULL);
    queue_close(&q);
    uint64_t taken = 0;
    for (int i = 0; i < 3; i++) {
        pthread_join(consumers[i], NULL);
        taken += c[i].taken;
    }
    assert_int_equal(taken, 3 * EACH);
    for (int i = 0; i < 3; i++)
        assert_int_equal(seen[0][i] + seen[1][i] + seen[2][i], (uint64_t)EACH * (EACH + 1) / 2);
    queue_release(&q);
}

static void *give_later(void *arg)
{
    clock_sleep_ms(30);
    budget_through(arg, 1, 1, 60, 0, 0);
    return NULL;
}

static void *poke_later(void *arg)
{
    clock_sleep_ms(30);
    budget_poke(arg);
    return NULL;
}

static void the_budget_bounds(void **state)
{
    (void)state;
    struct budget b;
    pthread_t t;
    budget_init(&b, 400, 1, 3);               /* 100 ahead */
    assert_int_equal(budget_try(&b, 500), 1); /* larger than all: only alone */
    assert_int_equal(budget_try(&b, 1), 0);
    budget_through(&b, 1, 1, 500, 0, 0);
    assert_int_equal(budget_try(&b, 60), 1);
    assert_int_equal(budget_try(&b, 41), 0);
    assert_int_equal(budget_try(&b, 500), 0);
    uint64_t pokes = budget_pokes(&b);
    pthread_create(&t, NULL, give_later, &b);
    assert_int_equal(budget_take(&b, 41, pokes), 1); /* waited for room */
    pthread_join(t, NULL);
    assert_int_equal(budget_bytes(&b), 41);
    assert_int_equal(budget_try(&b, 1), 1);
    assert_int_equal(budget_try(&b, 1), 1);
    assert_int_equal(budget_try(&b, 1), 0); /* three records */
    pthread_create(&t, NULL, poke_later, &b);
    assert_int_equal(budget_take(&b, 1, pokes), 0);
    assert_int_equal(budget_take(&b, 1, pokes), 0); /* poked since: does not wait */
    pthread_join(t, NULL);
    budget_begun(&b, 3, 3, 1, 0);
    budget_through(&b, 3, 0, 43, 1000, 0); /* results always fit, and hold up what comes */
    assert_int_equal(budget_records(&b), 0);
    assert_int_equal(budget_try(&b, 1), 0);
    budget_give(&b, 601);
    assert_int_equal(budget_try(&b, 1), 1);
    budget_through(&b, 1, 1, 1, 0, 0);
    budget_give(&b, 399);
    assert_int_equal(budget_bytes(&b), 0);
    budget_wait_idle(&b, budget_pokes(&b));
    budget_release(&b);
}

/* As the reader does: records of a byte until the door is shut. How many. */
static uint64_t read_on(struct budget *b)
{
    uint64_t n = 0;
    while (budget_try(b, 1))
        n++;
    return n;
}

/* A lane takes so many and is through with them some time later. */
static void run_batch(struct budget *b, uint64_t n, int full, uint64_t *now_ms, uint64_t takes_ms)
{
    budget_begun(b, n, n, full, *now_ms);
    *now_ms += takes_ms;
    budget_through(b, n, 0, n, 0, *now_ms);
}

/* However slow the model, no more waits than it does in about a second and a micro-batch a lane. */
static void reading_goes_as_far_as_the_model_is_fast(void **state)
{
    (void)state;
    struct budget b;
    uint64_t now_ms = 7000;
    budget_init(&b, 1 << 20, 1, 448);
    assert_int_equal(read_on(&b), 16); /* nothing is known */
    budget_begun(&b, 16, 16, 0, now_ms);
    assert_int_equal(read_on(&b), 32); /* all that was there went into one: more might have */
    budget_begun(&b, 32, 32, 0, now_ms);
    assert_int_equal(read_on(&b), 64);
    budget_begun(&b, 45, 45, 1, now_ms); /* so many fit */
    assert_int_equal(budget_may_wait(&b), 64);
    budget_through(&b, 16 + 32 + 45, 0, 16 + 32 + 45, 0, now_ms);
    assert_int_equal(budget_may_wait(&b), 93); /* went through just now */
    read_on(&b);
    for (int i = 0; i < 100; i++) { /* 45 in 100 ms */
        run_batch(&b, 45, 1, &now_ms, 100);
        read_on(&b);
        assert_true(b.waiting >= budget_may_wait(&b));
        if (i >= 10)
            assert_in_range(budget_may_wait(&b), 450 / 2, 448);
    }
    for (int i = 0; i < 20; i++) { /* 45 in a millisecond: the most there may be */
        run_batch(&b, 45, 1, &now_ms, 1);
        read_on(&b);
    }
    assert_int_equal(b.waiting, 448);
    for (int i = 0; i < 12; i++) { /* 45 in 2 s, as it may be at once when others take the processor */
        run_batch(&b, 45, 1, &now_ms, 2000);
        read_on(&b);
    }
    assert_int_equal(budget_may_wait(&b), 45);
    assert_int_equal(b.waiting, 45);
    for (int i = 0; i < 5; i++) { /* long records: 2 fit, in 3 s */
        run_batch(&b, 2, 1, &now_ms, 3000);
        read_on(&b);
    }
    assert_int_equal(budget_may_wait(&b), 2);
    for (int i = 0; i < 8; i++) { /* short ones again, and all that there are fit: it opens by itself */
        uint64_t n = b.waiting;
        run_batch(&b, n, 0, &now_ms, 2000);
        read_on(&b);
    }
    assert_int_equal(b.waiting, 448);
    budget_release(&b);
}

/* What fails before a lane has it, and what a lane has twice, is counted once; an hour without work ends the past. */
static void what_waits_is_counted_once(void **state)
{
    (void)state;
    struct budget b;
    budget_init(&b, 1 << 20, 2, 896);
    assert_int_equal(read_on(&b), 32); /* for two lanes */
    budget_through(&b, 2, 2, 2, 0, 0); /* no JSON */
    assert_int_equal(read_on(&b), 2);
    budget_begun(&b, 10, 10, 1, 10);
    budget_begun(&b, 10, 0, 1, 20); /* sent again */
    assert_int_equal(budget_records(&b), 32);
    assert_int_equal(b.waiting, 22);
    budget_through(&b, 10, 0, 10, 0, 30);
    assert_int_equal(budget_may_wait(&b), 20); /* two micro-batches */
    assert_int_equal(b.waiting, 22);
    budget_begun(&b, 20, 20, 1, 40);
    budget_through(&b, 20, 0, 20, 0, 50);
    assert_int_equal(budget_may_wait(&b), 40);
    budget_begun(&b, 1, 1, 1, 3600000);
    assert_int_equal(budget_may_wait(&b), 2);
    budget_through(&b, 2, 1, 2, 0, 3600000);
    assert_int_equal(budget_records(&b), 0);
    assert_int_equal(b.waiting, 0);
    budget_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_what_fits),
        cmocka_unit_test(many_threads),
        cmocka_unit_test(the_budget_bounds),
        cmocka_unit_test(reading_goes_as_far_as_the_model_is_fast),
        cmocka_unit_test(what_waits_is_counted_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
