#include "workers/pipeline/queue.h"

#include "base/status.h"

void queue_init(struct queue *q)
{
    *q = (struct queue){.tail = NULL};
    q->tail = &q->head;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->filled, NULL);
}

void queue_release(struct queue *q)
{
    BUG_IF(q->head, "a queue is released with %zu items in it", q->count);
    pthread_cond_destroy(&q->filled);
    pthread_mutex_destroy(&q->lock);
}

void queue_push(struct queue *q, struct node *chain, size_t n)
{
    if (!chain)
        return;
    struct node *last = chain;
    while (last->next)
        last = last->next;
    pthread_mutex_lock(&q->lock);
    *q->tail = chain;
    q->tail = &last->next;
    q->count += n;
    if (q->waiting > 1 && n > 1)
        pthread_cond_broadcast(&q->filled);
    else if (q->waiting)
        pthread_cond_signal(&q->filled);
    pthread_mutex_unlock(&q->lock);
}

struct node *queue_take(struct queue *q, size_t most, int (*fits)(void *arg, const struct node *first, const struct node *next), void *arg,
                        size_t *n)
{
    *n = 0;
    pthread_mutex_lock(&q->lock);
    while (!q->head && !q->closed) {
        q->waiting++;
        pthread_cond_wait(&q->filled, &q->lock);
        q->waiting--;
    }
    struct node *first = q->head, *last = first;
    if (first) {
        size_t taken = 1;
        while (taken < most && last->next && (!fits || fits(arg, first, last->next))) {
            last = last->next;
            taken++;
        }
        q->head = last->next;
        if (!q->head)
            q->tail = &q->head;
        last->next = NULL;
        q->count -= taken;
        *n = taken;
        if (q->head && q->waiting)
            pthread_cond_signal(&q->filled);
    }
    pthread_mutex_unlock(&q->lock);
    return first;
}

size_t queue_count(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    size_t n = q->count;
    pthread_mutex_unlock(&q->lock);
    return n;
}

void queue_close(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->closed = 1;
    pthread_cond_broadcast(&q->filled);
    pthread_mutex_unlock(&q->lock);
}

void budget_init(struct budget *b, uint64_t most_bytes, uint32_t lanes, uint64_t most_waiting)
{
    *b = (struct budget){.most_bytes = most_bytes, .most_ahead = most_bytes / 4, .lanes = lanes, .most_waiting = most_waiting, .batch = BUDGET_FIRST_BATCH};
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->freed, NULL);
}

void budget_release(struct budget *b)
{
    pthread_cond_destroy(&b->freed);
    pthread_mutex_destroy(&b->lock);
}

/* Half seconds go by. What passed in one that is over longer than another one ago says nothing any more of how fast records go; how large micro-batches are
   is remembered until there is a newer one. */
static void pace(struct budget *b, uint64_t now_ms)
{
    if (now_ms < b->now.ends_ms)
        return;
    b->before = now_ms < b->now.ends_ms + BUDGET_PACE_MS ? b->now : (struct pace){0};
    b->now = (struct pace){.ends_ms = now_ms + BUDGET_PACE_MS};
}

static uint64_t may_wait(const struct budget *b)
{
    uint64_t lately = b->now.through + b->before.through, least = b->batch * b->lanes, n = lately > least ? lately : least;
    return n < b->most_waiting ? n : b->most_waiting;
}

static int under(uint64_t used, uint64_t more, uint64_t most)
{
    return used == 0 || (more <= most && used <= most - more);
}

static int take(struct budget *b, uint64_t bytes)
{
    if (b->waiting >= may_wait(b) || !under(b->ahead, bytes, b->most_ahead) || !under(b->bytes, bytes, b->most_bytes))
        return 0;
    b->bytes += bytes;
    b->ahead += bytes;
    b->records++;
    b->waiting++;
    return 1;
}

int budget_try(struct budget *b, uint64_t bytes)
{
    pthread_mutex_lock(&b->lock);
    int taken = take(b, bytes);
    pthread_mutex_unlock(&b->lock);
    return taken;
}

int budget_take(struct budget *b, uint64_t bytes, uint64_t pokes)
{
    pthread_mutex_lock(&b->lock);
    int taken;
    while (!(taken = take(b, bytes)) && b->pokes == pokes)
        pthread_cond_wait(&b->freed, &b->lock);
    pthread_mutex_unlock(&b->lock);
    return taken;
}

uint64_t budget_pokes(struct budget *b)
{
    pthread_mutex_lock(&b->lock);
    uint64_t n = b->pokes;
    pthread_mutex_unlock(&b->lock);
    return n;
}

void budget_poke(struct budget *b)
{
    pthread_mutex_lock(&b->lock);
    b->pokes++;
    pthread_cond_broadcast(&b->freed);
    pthread_mutex_unlock(&b->lock);
}

void budget_begun(struct budget *b, uint64_t records, uint64_t waited, int full, uint64_t now_ms)
{
    uint64_t holds = full ? records : 2 * records;
    pthread_mutex_lock(&b->lock);
    BUG_IF(b->waiting < waited || waited > records, "more records are begun than waited");
    pace(b, now_ms);
    b->waiting -= waited;
    if (holds > b->now.largest)
        b->now.largest = holds;
    b->batch = b->now.largest > b->before.largest ? b->now.largest : b->before.largest;
    pthread_cond_broadcast(&b->freed); /* only the reader waits here */
    pthread_mutex_unlock(&b->lock);
}

void budget_through(struct budget *b, uint64_t records, uint64_t unbegun, uint64_t taken, uint64_t kept, uint64_t now_ms)
{
    pthread_mutex_lock(&b->lock);
    BUG_IF(b->ahead < taken || b->records < records || b->waiting < unbegun || unbegun > records, "more leaves the budget than was taken from it");
    pace(b, now_ms);
    b->ahead -= taken;
    b->bytes = b->bytes - taken + kept;
    b->records -= records;
    b->waiting -= unbegun;
    b->now.through += records - unbegun;
    pthread_cond_broadcast(&b->freed);
    pthread_mutex_unlock(&b->lock);
}

void budget_give(struct budget *b, uint64_t bytes)
{
    pthread_mutex_lock(&b->lock);
    BUG_IF(b->bytes - b->ahead < bytes, "the budget gets back more than was taken from it");
    b->bytes -= bytes;
    pthread_cond_broadcast(&b->freed);
    pthread_mutex_unlock(&b->lock);
}

uint64_t budget_bytes(struct budget *b)
{
    pthread_mutex_lock(&b->lock);
    uint64_t n = b->bytes;
    pthread_mutex_unlock(&b->lock);
    return n;
}

uint64_t budget_records(struct budget *b)
{
    pthread_mutex_lock(&b->lock);
    uint64_t n = b->records;
    pthread_mutex_unlock(&b->lock);
    return n;
}

uint64_t budget_may_wait(struct budget *b)
{
    pthread_mutex_lock(&b->lock);
    uint64_t n = may_wait(b);
    pthread_mutex_unlock(&b->lock);
    return n;
}

void budget_wait_idle(struct budget *b, uint64_t pokes)
{
    pthread_mutex_lock(&b->lock);
    while (b->records && b->pokes == pokes)
        pthread_cond_wait(&b->freed, &b->lock);
    pthread_mutex_unlock(&b->lock);
}
