/* The relay's threads, sockets and end. */
#include "daemon/relay_inside.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "daemon/auth.h"
#include "daemon/link_inside.h"

#define MESSAGES_KEPT 8 /* of a peer, by ZeroMQ */
#define LONGEST_MESSAGE (RELAY_CHUNK + 8192)
#define STACK_BYTES (1u << 20)

/* Hands ------------------------------------------------------------------------------------------------------------------------------- */

void relay_hand_add(struct hand *h, struct task *t, int first)
{
    pthread_mutex_lock(&h->lock);
    t->next = first ? h->first : NULL;
    if (first || !h->first)
        h->first = t;
    else
        h->last->next = t;
    if (!first || !h->last)
        h->last = t;
    pthread_cond_signal(&h->more);
    pthread_mutex_unlock(&h->lock);
}

static void *hand_run(void *arg)
{
    struct hand *h = arg;
    pthread_mutex_lock(&h->lock);
    while (!atomic_load(&h->relay->stopping)) {
        struct task *t = h->first;
        if (!t) {
            struct timespec until;
            clock_gettime(CLOCK_MONOTONIC, &until);
            until.tv_sec += 5;
            if (!pthread_cond_timedwait(&h->more, &h->lock, &until))
                continue;
        } else {
            h->first = t->next;
            if (!h->first)
                h->last = NULL;
        }
        pthread_mutex_unlock(&h->lock);
        if (t)
            h->run(h, t);
        h->idle(h, clock_ms(), 0);
        pthread_mutex_lock(&h->lock);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

/* Opening and closing ------------------------------------------------------------------------------------------------------------------ */

static int start_thread(pthread_t *thread, void *(*fn)(void *), void *arg)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    int failed = pthread_create(thread, &attributes, fn, arg);
    pthread_attr_destroy(&attributes);
    return !failed;
}

static enum status start(struct relay *r, struct err *e)
{
    for (int i = 0; i < HANDS; i++) {
        struct hand *h = &r->hands[i];
        h->relay = r;
        h->run = i <= HAND_READ_LAST ? relay_read_run : i <= HAND_WRITE_LAST ? relay_write_run : relay_model_run;
        h->idle = i <= HAND_READ_LAST ? relay_read_idle : i <= HAND_WRITE_LAST ? relay_write_idle : relay_model_idle;
        pthread_condattr_t monotonic;
        pthread_condattr_init(&monotonic);
        pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
        pthread_mutex_init(&h->lock, NULL);
        pthread_cond_init(&h->more, &monotonic);
        pthread_condattr_destroy(&monotonic);
    }
    for (int i = 0; i < HANDS; i++)
        if (!(r->hands[i].started = start_thread(&r->hands[i].thread, hand_run, &r->hands[i])))
            return err_set(e, ST_ENV, "cannot start a thread for the relay");
    if (!(r->started = start_thread(&r->thread, relay_run, r)))
        return err_set(e, ST_ENV, "cannot start a thread for the relay");
    return ST_OK;
}

static void stop(struct relay *r)
{
    atomic_store(&r->stopping, 1);
    relay_wake(r);
    for (int i = 0; i < HANDS; i++) {
        struct hand *h = &r->hands[i];
        if (!h->started)
            continue;
        pthread_mutex_lock(&h->lock);
        pthread_cond_signal(&h->more);
        pthread_mutex_unlock(&h->lock);
        pthread_join(h->thread, NULL);
        for (struct task *t = h->first, *next; t; t = next) {
            next = t->next;
            relay_task_free(t);
        }
        h->idle(h, clock_ms(), 1);
        pthread_mutex_destroy(&h->lock);
        pthread_cond_destroy(&h->more);
    }
    if (r->started)
        pthread_join(r->thread, NULL);
}

static void on_closed(uv_handle_t *h)
{
    struct relay *r = h->data;
    pthread_mutex_destroy(&r->lock);
    mem_free(r->ended);
    mem_free(r);
}

/* Two ports behind the workers'. */
static enum status bind_at(struct relay *r, const char *endpoint, struct err *e)
{
    const char *colon = strrchr(endpoint, ':');
    char *text = mem_printf("%.*s:%d", (int)(colon - endpoint), endpoint, atoi(colon + 1) + RELAY_PORT);
    if (!text)
        return err_nomem(e, "the relay");
    enum status st = sock_bind(r->sock, text, auth_keys(r->d->auth), SOCK_NODES, e);
    mem_free(text);
    return st;
}

enum status relay_open(struct daemon *d, struct err *e)
{
    struct relay *r = mem_zalloc(sizeof *r);
    if (!r)
        return err_nomem(e, "the relay");
    if (sodium_init() < 0) {
        mem_free(r);
        return err_set(e, ST_ENV, "cannot start libsodium");
    }
    r->d = d;
    r->wake_fd = -1;
    pthread_mutex_init(&r->lock, NULL);
    r->async.data = r;
    uv_async_init(&d->uv, &r->async, relay_asked);
    d->relay = r;
    r->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (r->wake_fd < 0)
        return err_errno(e, ST_ENV, errno, "cannot start the relay");
    char *endpoint = mem_printf("ipc://%s/" RELAY_NAME, d->config->runtime_dir);
    if (!endpoint)
        return err_nomem(e, "the relay");
    enum status st = sock_router_few(d->link->zmq, MESSAGES_KEPT, LONGEST_MESSAGE, &r->sock, e);
    if (st == ST_OK)
        st = sock_bind(r->sock, endpoint, NULL, SOCK_NODES, e);
    mem_free(endpoint);
    for (char **at = d->auth ? d->config->listen : NULL; st == ST_OK && at && *at; at++)
        st = bind_at(r, *at, e);
    if (st == ST_OK)
        st = start(r, e);
    return st;
}

void relay_close(struct daemon *d)
{
    struct relay *r = d->relay;
    if (!r)
        return;
    d->relay = NULL;
    stop(r);
    for (struct task *t = r->asks, *next; t; t = next) {
        next = t->next;
        relay_task_free(t);
    }
    for (struct answer *a = r->first, *next; a; a = next) {
        next = a->next;
        relay_written(NULL, a);
    }
    size_t i = 0;
    for (struct peer *p; (p = map_next(&r->by_name, &i));) {
        for (struct task *t = p->first, *next; t; t = next) {
            next = t->next;
            relay_task_free(t);
        }
        p->first = NULL;
        relay_peer_unref(p);
    }
    map_release(&r->by_name);
    sock_close(r->sock);
}

/* Behind the end of ZeroMQ's context, whose threads still give answers back until then. */
void relay_release(struct relay *r)
{
    if (!r)
        return;
    if (r->wake_fd >= 0)
        close(r->wake_fd);
    uv_close((uv_handle_t *)&r->async, on_closed);
}

void relay_worker_ended(struct relay *r, uint64_t number)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    void *grown = r->ended;
    if (mem_grow(&grown, &r->ended_cap, r->ended_count, sizeof *r->ended))
        relay_no_memory();
    r->ended = grown;
    r->ended[r->ended_count++] = number;
    pthread_mutex_unlock(&r->lock);
}

void relay_figures(const struct daemon *d, struct relay_figures *out)
{
    const struct relay *r = d->relay;
    *out = (struct relay_figures){0};
    if (!r)
        return;
    out->peers = atomic_load(&r->peer_count);
    out->read_bytes = atomic_load(&r->read_bytes);
    out->written_bytes = atomic_load(&r->written_bytes);
    out->model_bytes = atomic_load(&r->model_bytes);
    out->parts = atomic_load(&r->parts);
    out->refused = atomic_load(&r->refused);
    out->waiting_bytes = atomic_load(&r->waiting);
    out->model_fetches = atomic_load(&r->model_fetches);
}
