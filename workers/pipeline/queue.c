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

void budget_init(struct budget *b, uint64_t most_bytes, uint64_t most_records)
{
    *b = (struct budget){.most_bytes = most_bytes, .most_ahead = most_bytes / 4, .most_records = most_records};
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->freed, NULL);
}

void budget_release(struct budget *b)
{
    pthread_cond_destroy(&b->freed);
    pthread_mutex_destroy(&b->lock);
}

static int under(uint64_t used, uint64_t more, uint64_t most)
{
    return used == 0 || (more <= most && used <= most - more);
}

static int take(struct budget *b, uint64_t bytes)
{
    if (b->records >= b->most_records || !under(b->ahead, bytes, b->most_ahead) || !under(b->bytes, bytes, b->most_bytes))
        return 0;
    b->bytes += bytes;
    b->ahead += bytes;
    b->records++;
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

void budget_through(struct budget *b, uint64_t records, uint64_t taken, uint64_t kept)
{
    pthread_mutex_lock(&b->lock);
    BUG_IF(b->ahead < taken || b->records < records, "more leaves the budget than was taken from it");
    b->ahead -= taken;
    b->bytes = b->bytes - taken + kept;
    b->records -= records;
    pthread_cond_broadcast(&b->freed); /* only the reader waits here */
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

void budget_wait_idle(struct budget *b, uint64_t pokes)
{
    pthread_mutex_lock(&b->lock);
    while (b->records && b->pokes == pokes)
        pthread_cond_wait(&b->freed, &b->lock);
    pthread_mutex_unlock(&b->lock);
}
