#include "daemon/owner.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/path.h"
#include "wire/process.h"

struct owner {
    char *state_dir;
    struct owner_record self;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int stop;
    _Atomic uint64_t seen_ms; /* when the file was last ours */
};

int owner_alive(const struct owner_record *r)
{
    uint64_t started;
    return process_start(r->pid, &started) == 0 && started == r->started;
}

enum owner_verdict owner_judge(const struct owner_record *theirs, const struct owner_record *self, int (*alive)(const struct owner_record *r))
{
    if (!theirs)
        return OWNER_FREE;
    if (strcmp(theirs->host, self->host))
        return OWNER_WATCH;
    if (strcmp(theirs->boot, self->boot))
        return OWNER_FREE; /* this host has been started anew since */
    return alive(theirs) ? OWNER_LIVE : OWNER_FREE;
}

enum status owner_self(const char *endpoint, struct owner_record *out, struct err *e)
{
    *out = (struct owner_record){.pid = (uint64_t)getpid()};
    uint8_t random[16];
    struct buf boot = {0};
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return err_errno(e, ST_ENV, errno, "cannot draw random bytes");
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(out->nonce + 2 * i, 3, "%02x", random[i]);
    if (gethostname(out->host, sizeof out->host - 1))
        return err_errno(e, ST_ENV, errno, "cannot ask for the host's name");
    enum status st = path_read("/proc/sys/kernel/random/boot_id", 4096, &boot, e);
    if (st == ST_OK)
        snprintf(out->boot, sizeof out->boot, "%.*s", (int)strcspn(boot.data, "\n"), boot.data);
    buf_release(&boot);
    TRY(st);
    if (process_start(out->pid, &out->started))
        return err_set(e, ST_ENV, "cannot read '/proc/self/stat': is /proc mounted");
    snprintf(out->endpoint, sizeof out->endpoint, "%s", endpoint);
    return ST_OK;
}

static char *owner_path(const char *state_dir)
{
    return path_join(state_dir, "owner");
}

enum status owner_read(const char *state_dir, struct owner_record *out, struct err *e)
{
    char *path = owner_path(state_dir);
    if (!path)
        return err_nomem(e, "a path");
    struct buf text = {0};
    const char *host, *boot, *nonce, *endpoint;
    json_int_t pid, started, beat;
    enum status st = path_read(path, 65536, &text, e);
    if (st == ST_OK) {
        json_t *j = json_loadb(text.data, text.len, 0, NULL);
        if (json_unpack(j, "{s:s, s:s, s:s, s:s, s:I, s:I, s:I}", "host", &host, "boot", &boot, "nonce", &nonce, "endpoint", &endpoint, "pid", &pid,
                        "started", &started, "beat", &beat) == 0) {
            *out = (struct owner_record){.pid = (uint64_t)pid, .started = (uint64_t)started, .beat = (uint64_t)beat};
            snprintf(out->host, sizeof out->host, "%s", host);
            snprintf(out->boot, sizeof out->boot, "%s", boot);
            snprintf(out->nonce, sizeof out->nonce, "%s", nonce);
            snprintf(out->endpoint, sizeof out->endpoint, "%s", endpoint);
        } else {
            st = err_set(e, ST_CORRUPT, "'%s' is not an owner file of ebb; remove it when no ebbd serves '%s'", path, state_dir);
        }
        json_decref(j);
    }
    buf_release(&text);
    mem_free(path);
    return st;
}

enum status owner_write(const char *state_dir, const struct owner_record *r, struct err *e)
{
    char *path = owner_path(state_dir), *text = NULL;
    json_t *j = json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:I}", "host", r->host, "boot", r->boot, "nonce", r->nonce, "endpoint", r->endpoint, "pid",
                          (json_int_t)r->pid, "started", (json_int_t)r->started, "beat", (json_int_t)r->beat);
    enum status st = path && j && (text = json_dumps(j, JSON_COMPACT)) ? path_write(path, text, strlen(text), e) : err_nomem(e, "the owner file");
    free(text);
    json_decref(j);
    mem_free(path);
    return st;
}

enum status owner_check(struct owner *o, struct err *e)
{
    struct owner_record now;
    TRY(owner_read(o->state_dir, &now, e));
    if (strcmp(now.nonce, o->self.nonce))
        return err_set(e, ST_AGAIN, "the state '%s' has been taken over by ebbd %" PRIu64 " on host '%s'", o->state_dir, now.pid, now.host);
    atomic_store(&o->seen_ms, clock_ms());
    return ST_OK;
}

uint64_t owner_age_ms(struct owner *o)
{
    uint64_t seen = atomic_load(&o->seen_ms), now = clock_ms();
    return now > seen ? now - seen : 0;
}

/* The state is not ours any more, or we cannot tell: nothing may be written, not even a farewell. */
static void end_at_once(const struct err *e)
{
    log_error("ends at once: %s", e->text);
    _exit(1);
}

static void *refresh(void *arg)
{
    struct owner *o = arg;
    pthread_mutex_lock(&o->lock);
    while (!o->stop) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += OWNER_REFRESH_MS / 1000;
        pthread_cond_timedwait(&o->wake, &o->lock, &until);
        if (o->stop)
            break;
        pthread_mutex_unlock(&o->lock);
        struct err e;
        if (owner_check(o, &e) != ST_OK)
            end_at_once(&e);
        o->self.beat++;
        if (owner_write(o->state_dir, &o->self, &e) != ST_OK)
            log_warn("the owner file could not be refreshed: %s", e.text); /* no space: the old one stands and still names us */
        pthread_mutex_lock(&o->lock);
    }
    pthread_mutex_unlock(&o->lock);
    return NULL;
}

/* Does the file change within the time? ST_AGAIN: yes, its owner lives. */
static enum status watch(const char *state_dir, const struct owner_record *first, uint64_t silence_ms, struct err *e)
{
    log_info("'%s' belongs to ebbd %" PRIu64 " on host '%s'; it is taken over when that is silent for %" PRIu64 " s", state_dir, first->pid, first->host,
             silence_ms / 1000);
    for (uint64_t begin = clock_ms(); clock_ms() - begin < silence_ms;) {
        clock_sleep_ms(silence_ms < 2000 ? silence_ms / 20 + 1 : 500);
        struct owner_record now;
        enum status st = owner_read(state_dir, &now, e);
        if (st == ST_NOT_FOUND)
            return ST_OK; /* it has left */
        TRY(st);
        if (now.beat != first->beat || strcmp(now.nonce, first->nonce))
            return err_set(e, ST_AGAIN, "ebbd %" PRIu64 " on host '%s' serves '%s'", now.pid, now.host, state_dir);
    }
    return ST_OK;
}

enum status owner_take(const char *state_dir, const char *endpoint, uint64_t silence_ms, struct owner_record *theirs, struct owner **out, struct err *e)
{
    struct owner_record self;
    TRY(path_make_dirs(state_dir, 0700, e));
    TRY(owner_self(endpoint, &self, e));
    char *lock_path = path_join(state_dir, "owner.lock");
    struct owner *o = mem_zalloc(sizeof *o);
    int lock = -1;
    enum status st = lock_path && o && (o->state_dir = mem_strdup(state_dir)) ? ST_OK : err_nomem(e, "the owner file");
    if (st != ST_OK)
        goto out;
    /* Two that start at once take turns; who comes second finds the first one's file. */
    lock = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock < 0 || flock(lock, LOCK_EX)) {
        st = err_errno(e, ST_ENV, errno, "cannot lock '%s'", lock_path);
        goto out;
    }
    st = owner_read(state_dir, theirs, e);
    int there = st == ST_OK;
    if (st != ST_OK && st != ST_NOT_FOUND)
        goto out;
    st = ST_OK;
    switch (owner_judge(there ? theirs : NULL, &self, owner_alive)) {
    case OWNER_LIVE:
        st = err_set(e, ST_AGAIN, "ebbd %" PRIu64 " serves '%s' already; clients reach it at %s", theirs->pid, state_dir, theirs->endpoint);
        break;
    case OWNER_WATCH:
        st = watch(state_dir, theirs, silence_ms, e);
        break;
    case OWNER_FREE:
        if (there)
            log_info("takes over '%s' from ebbd %" PRIu64 ", which is dead", state_dir, theirs->pid);
        break;
    }
    o->self = self;
    if (st == ST_OK)
        st = owner_write(state_dir, &self, e);
    if (st == ST_OK)
        st = owner_check(o, e); /* another host may have written at the same moment */
    if (st != ST_OK)
        goto out;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&o->lock, NULL);
    pthread_cond_init(&o->wake, &attr);
    pthread_condattr_destroy(&attr);
    int failed = pthread_create(&o->thread, NULL, refresh, o);
    if (failed)
        st = err_errno(e, ST_ENV, failed, "cannot start a thread");
out:
    if (lock >= 0)
        close(lock);
    mem_free(lock_path);
    if (st == ST_OK) {
        *out = o;
    } else if (o) {
        mem_free(o->state_dir);
        mem_free(o);
    }
    return st;
}

void owner_release(struct owner *o)
{
    if (!o)
        return;
    pthread_mutex_lock(&o->lock);
    o->stop = 1;
    pthread_cond_signal(&o->wake);
    pthread_mutex_unlock(&o->lock);
    pthread_join(o->thread, NULL);
    struct err e;
    char *path = owner_path(o->state_dir);
    if (path && owner_check(o, &e) == ST_OK)
        unlink(path);
    mem_free(path);
    pthread_mutex_destroy(&o->lock);
    pthread_cond_destroy(&o->wake);
    mem_free(o->state_dir);
    mem_free(o);
}
