/* Sources and files that records name, read for workers that do not see them. A source is looked at again after each read: what is given out is from the file as it
   was at submission, so that a worker need not look once more before it commits. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/path.h"
#include "daemon/relay_inside.h"
#include "storage/below.h"
#include "storage/source.h"

#define MOST_OPEN 64
#define SAMPLES 16
#define SAMPLE_BYTES 4096

struct open_file {
    struct open_file *next;
    uint64_t job, index, used_ms;
    struct source source; /* its path is ours */
    int fd;               /* -1: only the name is known */
};

static void close_file(struct open_file *f)
{
    if (f->fd >= 0)
        close(f->fd);
    mem_free(f->source.path);
    mem_free(f);
}

void relay_read_idle(struct hand *h, uint64_t now_ms, int all)
{
    struct open_file *f, **at = (struct open_file **)&h->files;
    for (size_t n = 0; (f = *at);) /* the last used is first */
        if (all || n >= MOST_OPEN || now_ms - f->used_ms > RELAY_IDLE_MS) {
            *at = f->next;
            close_file(f);
        } else {
            at = &f->next;
            n++;
        }
}

static struct open_file *find(struct hand *h, uint64_t job, uint64_t index)
{
    for (struct open_file *f, **at = (struct open_file **)&h->files; (f = *at); at = &f->next)
        if (f->job == job && f->index == index) {
            *at = f->next;
            f->next = h->files;
            h->files = f;
            f->used_ms = clock_ms();
            return f;
        }
    return NULL;
}

/* What the loop has said of it. */
static struct open_file *remember(struct hand *h, struct task *t, uint64_t job, uint64_t index)
{
    struct open_file *f = find(h, job, index);
    if (f) {
        mem_free(f->source.path);
        if (f->fd >= 0)
            close(f->fd);
    } else {
        f = mem_zalloc(sizeof *f);
        if (!f)
            relay_no_memory();
        f->next = h->files;
        h->files = f;
    }
    f->job = job;
    f->index = index;
    f->used_ms = clock_ms();
    f->source = t->source;
    f->source.path = t->path;
    f->fd = -1;
    t->path = NULL;
    return f;
}

static void forget(struct hand *h, const struct open_file *f)
{
    for (struct open_file **at = (struct open_file **)&h->files; *at; at = &(*at)->next)
        if (*at == f) {
            struct open_file *gone = *at;
            *at = gone->next;
            close_file(gone);
            return;
        }
}

static enum status open_it(struct open_file *f, struct err *e)
{
    if (f->fd >= 0)
        return ST_OK;
    struct source_file in;
    struct source s = f->source;
    s.via = NULL;
    TRY(source_open(&s, 0, &in, e));
    f->fd = in.fd;
    return ST_OK;
}

static enum status read_at(int fd, const char *path, void *data, size_t want, uint64_t offset, size_t *got, struct err *e)
{
    *got = 0;
    int errnum = fault_point("relay.read");
    if (errnum)
        return err_errno(e, ST_ENV, errnum, "cannot read '%.300s' at byte %" PRIu64, path, offset);
    while (*got < want) {
        ssize_t n = pread(fd, (char *)data + *got, want - *got, (off_t)(offset + *got));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(e, ST_ENV, errno, "cannot read '%.300s' at byte %" PRIu64, path, offset + *got);
        if (n == 0)
            break;
        *got += (size_t)n;
    }
    return ST_OK;
}

static void say_read(struct hand *h, struct task *t, struct open_file *f)
{
    const Ebb__RelayRead *m = t->m->relay_read;
    struct err e;
    uint64_t left = m->offset < f->source.size_bytes ? f->source.size_bytes - m->offset : 0;
    size_t want = m->length < left ? m->length : (size_t)left, got = 0;
    void *data = mem_alloc(want + 1);
    if (!data)
        relay_no_memory();
    enum status st = open_it(f, &e);
    if (st == ST_OK)
        st = read_at(f->fd, f->source.path, data, want, m->offset, &got, &e);
    if (st == ST_OK)
        st = source_check(&f->source, f->fd, &e);
    if (st == ST_OK && got < want)
        st = err_set(&e, ST_USER, "'%s' changed since the job was submitted (it had %" PRIu64 " bytes and ends after %" PRIu64 ")", f->source.path,
                     f->source.size_bytes, m->offset + got);
    uint64_t size = f->source.size_bytes;
    if (st != ST_OK)
        forget(h, f); /* another file may stand there by now */
    atomic_fetch_add(&h->relay->read_bytes, got);
    relay_say_data(t, m->id, st, &e, size, data, got);
    mem_free(data);
}

static void say_named(struct hand *h, struct task *t, const struct open_file *f)
{
    const Ebb__RelayRead *m = t->m->relay_read;
    const char *path = f->source.path;
    size_t n = (size_t)(path_base(path) - path), got = 0;
    struct err e;
    char *folder = mem_strndup(path, n - (n > 1)), *named = mem_strdup(m->named);
    void *data = mem_alloc(m->length + 1);
    uint64_t size = 0;
    int fd;
    if (!folder || !named || !data)
        relay_no_memory();
    enum status st = below_open(folder, named, 0, &fd, &size, &e);
    if (st == ST_OK) {
        st = read_at(fd, m->named, data, m->length, m->offset, &got, &e);
        close(fd);
    }
    atomic_fetch_add(&h->relay->read_bytes, got);
    relay_say_data(t, m->id, st, &e, size, data, got);
    mem_free(data);
    mem_free(named);
    mem_free(folder);
}

/* A small file whole; of a larger one its beginning, its end, and places that nobody could foresee. */
static void choose(uint64_t size, uint64_t *at, size_t *n, uint32_t *each)
{
    if (size <= SAMPLES * SAMPLE_BYTES) {
        at[0] = 0;
        *n = 1;
        *each = SAMPLES * SAMPLE_BYTES;
        return;
    }
    uint64_t random[SAMPLES] = {0};
    if (getrandom(random, sizeof random, 0) != sizeof random)
        random[0] = clock_ns(); /* of no use to an attacker: who compares wants to know */
    for (size_t i = 0; i < SAMPLES; i++)
        at[i] = i == 0 ? 0 : i == 1 ? size - SAMPLE_BYTES : random[i] % (size - SAMPLE_BYTES);
    *n = SAMPLES;
    *each = SAMPLE_BYTES;
}

static void say_token(struct hand *h, struct task *t, struct open_file *f)
{
    uint64_t at[SAMPLES];
    char block[SAMPLES * SAMPLE_BYTES];
    size_t n = 0;
    struct err e;
    Ebb__RelayToken m = EBB__RELAY_TOKEN__INIT;
    XXH3_state_t *x = XXH3_createState();
    XXH128_canonical_t digest;
    if (!x)
        relay_no_memory();
    XXH3_128bits_reset(x);
    choose(f->source.size_bytes, at, &n, &m.each);
    enum status st = open_it(f, &e);
    for (size_t i = 0; i < n && st == ST_OK; i++) {
        uint64_t left = f->source.size_bytes - at[i];
        size_t got;
        st = read_at(f->fd, f->source.path, block, left < m.each ? (size_t)left : m.each, at[i], &got, &e);
        if (st == ST_OK)
            XXH3_128bits_update(x, block, got);
    }
    if (st == ST_OK)
        st = source_check(&f->source, f->fd, &e);
    XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(x));
    XXH3_freeState(x);
    if (st != ST_OK) {
        m.text = e.text;
        forget(h, f);
    } else {
        m.at = at;
        m.n_at = n;
        m.digest.data = digest.digest;
        m.digest.len = sizeof digest.digest;
    }
    m.id = t->m->relay_look->id;
    m.code = (uint32_t)st;
    relay_answer(t, EBB__ENVELOPE__BODY_RELAY_TOKEN, &m);
}

static void say_no(struct task *t)
{
    if (t->m->body_case == EBB__ENVELOPE__BODY_RELAY_READ) {
        relay_say_data(t, t->m->relay_read->id, t->st, &t->e, 0, NULL, 0);
        return;
    }
    Ebb__RelayToken m = EBB__RELAY_TOKEN__INIT;
    m.id = t->m->relay_look->id;
    m.code = (uint32_t)t->st;
    m.text = t->e.text;
    relay_answer(t, EBB__ENVELOPE__BODY_RELAY_TOKEN, &m);
}

void relay_read_run(struct hand *h, struct task *t)
{
    int look = t->m->body_case == EBB__ENVELOPE__BODY_RELAY_LOOK;
    uint64_t job = look ? t->m->relay_look->job : t->m->relay_read->job, index = look ? t->m->relay_look->source : t->m->relay_read->source;
    if (t->again && t->st != ST_OK) {
        say_no(t);
        return;
    }
    struct open_file *f = t->again ? remember(h, t, job, index) : find(h, job, index);
    if (!f)
        relay_ask(t);
    else if (look)
        say_token(h, t, f);
    else if (*t->m->relay_read->named)
        say_named(h, t, f);
    else
        say_read(h, t, f);
}
