/* Places are numbered on and on: place p is unit p mod units of sweep p / units. [tail, head) are in memory; one thread fetches at the head, and lets go at the
   tail when it needs room. A sweep owns `units` places from `start` on; of each, `left` lanes are still to come.

   What can fail: reading the file, when its disk fails: whoever touches the page gets SIGBUS, as with any mapped file. */
#include "workers/engine/window.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/mem.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

enum { PAGE = 4096, STACK_BYTES = 256 << 10 };
/* A sweep begins when all lanes are there, or an eighth of the last one's time after the first of them came: at a job's end some have nothing to do. */
enum { PATIENCE_SHARE = 8, PATIENCE_FIRST_US = 20000, PATIENCE_MOST_US = 1000000 };

struct window {
    struct window_set *set;
    struct window_piece *piece; /* all of them, the tables' too */
    uint64_t *set_bytes;
    uint32_t *held;             /* of each set: places in memory that use it */
    uint32_t *unit, *left;
    uint32_t units, sets, tables;
    const struct window_piece *table;
    uint64_t most_bytes;

    pthread_mutex_t lock, table_lock;
    pthread_cond_t changed;
    pthread_t thread;
    int ending, gathering;
    uint32_t lanes, waiting, running;
    uint64_t head, tail, start, next, sweeps;
    uint64_t bytes, began_us, last_us;
    struct window_figures figures;
};

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static size_t pages(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* Memory --------------------------------------------------------------------------------------------------------------------------------- */

static void fetch(const struct window_piece *p)
{
    void *at = (void *)(uintptr_t)p->at;
    madvise(at, pages(p->bytes), MADV_WILLNEED);
    if (madvise(at, pages(p->bytes), MADV_POPULATE_READ) == 0 || errno != EINVAL)
        return;
    for (size_t i = 0; i < p->bytes; i += PAGE) /* kernels before 5.14 */
        (void)*((const volatile char *)p->at + i);
}

static void let_go(const struct window_piece *p)
{
    madvise((void *)(uintptr_t)p->at, pages(p->bytes), MADV_DONTNEED);
}

/* The lock is held. All lanes of its sweep have passed the place at the tail. */
static int tail_is_over(const struct window *w)
{
    return w->tail < w->head && w->tail < w->next && (w->tail < w->start || w->left[w->tail - w->start] == 0);
}

/* The lock is held, and let go while memory comes and goes: no other thread touches what is neither in [tail, head) nor... and a set that is being let go is in
   no place of it. */
static void drop_tail(struct window *w)
{
    uint32_t set = w->unit[w->tail % w->units];
    w->tail++;
    if (--w->held[set] > 0)
        return;
    w->bytes -= w->set_bytes[set];
    pthread_mutex_unlock(&w->lock);
    for (uint32_t i = 0; i < w->set[set].pieces; i++)
        let_go(&w->set[set].piece[i]);
    pthread_mutex_lock(&w->lock);
}

static void take_head(struct window *w)
{
    uint32_t set = w->unit[w->head % w->units];
    if (w->held[set]++ == 0) {
        w->bytes += w->set_bytes[set];
        w->figures.fetched_bytes += w->set_bytes[set];
        w->figures.most_bytes = w->bytes > w->figures.most_bytes ? w->bytes : w->figures.most_bytes;
        pthread_mutex_unlock(&w->lock);
        for (uint32_t i = 0; i < w->set[set].pieces; i++)
            fetch(&w->set[set].piece[i]);
        pthread_mutex_lock(&w->lock);
    }
    w->head++;
    pthread_cond_broadcast(&w->changed);
}

/* One sweep ahead at most: what lanes are to find is what they are waiting for, or will be next. */
static int wants_more(const struct window *w)
{
    return w->sweeps && w->head < w->next + w->units;
}

static void *fetch_run(void *arg)
{
    struct window *w = arg;
    pthread_mutex_lock(&w->lock);
    while (!w->ending) {
        uint32_t set = w->unit[w->head % w->units];
        int room = w->held[set] || w->bytes + w->set_bytes[set] <= w->most_bytes;
        if (wants_more(w) && room)
            take_head(w);
        else if (wants_more(w) && tail_is_over(w))
            drop_tail(w);
        else
            pthread_cond_wait(&w->changed, &w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* Sweeps --------------------------------------------------------------------------------------------------------------------------------- */

/* The lock is held; this lane is the first that waits. */
static void gather(struct window *w)
{
    uint64_t patience = w->sweeps ? w->last_us / PATIENCE_SHARE : PATIENCE_FIRST_US;
    patience = patience < PATIENCE_MOST_US ? patience : PATIENCE_MOST_US;
    uint64_t until = now_us() + patience;
    struct timespec at = {.tv_sec = (time_t)(until / 1000000), .tv_nsec = (long)(until % 1000000) * 1000};
    w->gathering = 1;
    while (w->waiting < w->lanes && pthread_cond_timedwait(&w->changed, &w->lock, &at) != ETIMEDOUT)
        ;
    w->gathering = 0;
    w->running = w->waiting;
    w->waiting = 0;
    w->start = w->next;
    w->next += w->units;
    for (uint32_t i = 0; i < w->units; i++)
        w->left[i] = w->running;
    w->sweeps++;
    w->figures.sweeps++;
    w->began_us = now_us();
    pthread_cond_broadcast(&w->changed);
}

void window_begin(struct window *w)
{
    pthread_mutex_lock(&w->lock);
    uint64_t mine = w->sweeps;
    w->waiting++;
    if (w->gathering)
        pthread_cond_broadcast(&w->changed); /* one more is there */
    while (w->sweeps == mine) {
        if (w->running == 0 && !w->gathering)
            gather(w);
        else
            pthread_cond_wait(&w->changed, &w->lock);
    }
    pthread_mutex_unlock(&w->lock);
}

void window_wait(struct window *w, uint32_t unit)
{
    uint64_t from = 0;
    pthread_mutex_lock(&w->lock);
    while (w->head <= w->start + unit) {
        from = from ? from : now_us();
        pthread_cond_wait(&w->changed, &w->lock);
    }
    w->figures.waited_us += from ? now_us() - from : 0;
    pthread_mutex_unlock(&w->lock);
}

void window_done(struct window *w, uint32_t unit)
{
    pthread_mutex_lock(&w->lock);
    BUG_IF(unit >= w->units || w->left[unit] == 0, "unit %u is left by more lanes than came", unit);
    int last = --w->left[unit] == 0;
    if (unit == w->units - 1 && --w->running == 0)
        w->last_us = now_us() - w->began_us;
    if (last)
        pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

void window_join(struct window *w)
{
    pthread_mutex_lock(&w->lock);
    w->lanes++;
    pthread_mutex_unlock(&w->lock);
}

void window_leave(struct window *w)
{
    pthread_mutex_lock(&w->lock);
    w->lanes--;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

void window_table_enter(struct window *w)
{
    pthread_mutex_lock(&w->table_lock);
}

void window_table_leave(struct window *w)
{
    for (uint32_t i = 0; i < w->tables; i++)
        let_go(&w->table[i]);
    pthread_mutex_unlock(&w->table_lock);
}

void window_figures(struct window *w, struct window_figures *out)
{
    pthread_mutex_lock(&w->lock);
    *out = w->figures;
    pthread_mutex_unlock(&w->lock);
}

/* Beginning and end ---------------------------------------------------------------------------------------------------------------------- */

static void release(struct window *w)
{
    mem_free(w->set);
    mem_free(w->piece);
    mem_free(w->set_bytes);
    mem_free(w->held);
    mem_free(w->unit);
    mem_free(w->left);
    mem_free(w);
}

static enum status copy(struct window *w, const struct window_opts *o, struct err *e)
{
    size_t pieces = o->tables;
    for (uint32_t i = 0; i < o->sets; i++)
        pieces += o->set[i].pieces;
    w->set = mem_array(o->sets, sizeof *w->set);
    w->set_bytes = mem_array(o->sets, sizeof *w->set_bytes);
    w->held = mem_array(o->sets, sizeof *w->held);
    w->unit = mem_array(o->units, sizeof *w->unit);
    w->left = mem_array(o->units, sizeof *w->left);
    w->piece = mem_array(pieces, sizeof *w->piece);
    if (!w->set || !w->set_bytes || !w->held || !w->unit || !w->left || !w->piece)
        return err_nomem(e, "a window of layers");
    struct window_piece *next = w->piece;
    for (uint32_t i = 0; i < o->sets; i++) {
        w->set[i] = (struct window_set){next, o->set[i].pieces};
        for (uint32_t k = 0; k < o->set[i].pieces; k++) {
            *next++ = o->set[i].piece[k];
            w->set_bytes[i] += pages(o->set[i].piece[k].bytes);
        }
        BUG_IF(w->set_bytes[i] > o->most_bytes, "a window that is smaller than a unit");
    }
    w->table = next;
    memcpy(next, o->table, o->tables * sizeof *next);
    memcpy(w->unit, o->unit, o->units * sizeof *w->unit);
    w->sets = o->sets;
    w->units = o->units;
    w->tables = o->tables;
    w->most_bytes = o->most_bytes;
    return ST_OK;
}

enum status window_new(const struct window_opts *o, struct window **out, struct err *e)
{
    struct window *w = mem_zalloc(sizeof *w);
    if (!w)
        return err_nomem(e, "a window of layers");
    enum status st = copy(w, o, e);
    if (st != ST_OK) {
        release(w);
        return st;
    }
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&w->lock, NULL);
    pthread_mutex_init(&w->table_lock, NULL);
    pthread_cond_init(&w->changed, &clock);
    pthread_condattr_destroy(&clock);
    pthread_attr_t attr;
    sigset_t all, was;
    sigfillset(&all);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    pthread_sigmask(SIG_SETMASK, &all, &was); /* signals are the others' */
    int failed = pthread_create(&w->thread, &attr, fetch_run, w);
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    pthread_attr_destroy(&attr);
    if (failed) {
        pthread_cond_destroy(&w->changed);
        pthread_mutex_destroy(&w->table_lock);
        pthread_mutex_destroy(&w->lock);
        release(w);
        return err_errno(e, ST_ENV, failed, "no thread for a window of layers");
    }
    *out = w;
    return ST_OK;
}

void window_free(struct window *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    BUG_IF(w->running || w->waiting, "a window goes while lanes sweep");
    w->ending = 1;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->table_lock);
    pthread_mutex_destroy(&w->lock);
    release(w);
}
