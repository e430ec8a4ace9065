/* What is seen here of what the daemon sees. A folder of sources is proved by the first of them that is met: the daemon names places in it and the digest of what
   stands there; the same bytes under the same path, in a file of the same size and time, is the same file for all that matters. Whatever else fails of the folder
   later sends all of it through the relay. */
#include "workers/remote/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/path.h"

#define MOST_ROOTS 4096
#define MOST_SAMPLE (1u << 20)
#define SEEN_TRIES 3 /* a network file system may show a file late */
#define SEEN_PAUSE_MS 300

void roots_forget(struct remote *r)
{
    for (struct root *x = r->roots, *next; x; x = next) {
        next = x->next;
        mem_free(x->folder);
        mem_free(x);
    }
    for (struct outlet *x = r->outlets, *next; x; x = next) {
        next = x->next;
        mem_free(x);
    }
    r->roots = NULL;
    r->outlets = NULL;
    r->root_count = 0;
}

static struct root *find_root(const struct remote *r, const char *path)
{
    size_t n = (size_t)(path_base(path) - path);
    struct root *x = r->roots;
    while (x && (strlen(x->folder) != n || memcmp(x->folder, path, n) != 0))
        x = x->next;
    return x;
}

static struct root *add_root(struct remote *r, const char *path, int far)
{
    if (r->root_count >= MOST_ROOTS) {
        struct outlet *kept = r->outlets;
        r->outlets = NULL;
        roots_forget(r);
        r->outlets = kept;
    }
    struct root *x = mem_zalloc(sizeof *x);
    if (!x || !(x->folder = mem_strndup(path, (size_t)(path_base(path) - path))))
        remote_no_memory();
    x->far = far;
    x->next = r->roots;
    r->roots = x;
    r->root_count++;
    return x;
}

/* NULL: the file here is the daemon's. Else why not, in `why`. */
static const char *compare(const struct source *s, const Ebb__RelayToken *token, struct err *why)
{
    struct source_file in;
    struct source here = *s;
    here.via = NULL;
    if (token->each == 0 || token->each > MOST_SAMPLE || token->digest.len != sizeof(XXH128_canonical_t))
        return "the daemon's token makes no sense";
    if (source_open(&here, 0, &in, why) != ST_OK)
        return why->text;
    XXH3_state_t *x = XXH3_createState();
    char *block = mem_alloc(token->each);
    if (!x || !block)
        remote_no_memory();
    XXH3_128bits_reset(x);
    const char *fault = NULL;
    for (size_t i = 0; i < token->n_at && !fault; i++) {
        uint64_t left = token->at[i] < s->size_bytes ? s->size_bytes - token->at[i] : 0;
        size_t want = left < token->each ? (size_t)left : token->each;
        ssize_t n;
        do
            n = pread(in.fd, block, want, (off_t)token->at[i]);
        while (n < 0 && errno == EINTR);
        if (n < 0 || (size_t)n != want)
            fault = "it cannot be read here";
        else
            XXH3_128bits_update(x, block, want);
    }
    XXH128_canonical_t digest;
    XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(x));
    if (!fault && memcmp(digest.digest, token->digest.data, sizeof digest.digest) != 0)
        fault = "the file of that name here is another one";
    XXH3_freeState(x);
    mem_free(block);
    source_close(&in);
    return fault;
}

static enum status look(struct remote *r, const struct source *s, struct root **out, struct err *e)
{
    for (;;) {
        Ebb__RelayLook m = EBB__RELAY_LOOK__INIT;
        m.id = remote_id(r);
        m.job = s->job;
        m.source = s->index;
        struct call *c = call_begin(r, m.id, EBB__ENVELOPE__BODY_RELAY_LOOK, &m);
        enum status st = call_wait(r, c, EBB__ENVELOPE__BODY_RELAY_TOKEN, NULL, NULL, e);
        const Ebb__RelayToken *token = st == ST_OK ? c->answer->relay_token : NULL;
        if (token)
            st = call_status(token->code, token->text, e);
        if (st == ST_OK) {
            struct err why;
            const char *fault = compare(s, token, &why);
            *out = add_root(r, s->path, fault != NULL);
            log_info("job %" PRIu64 ": sources in '%s' are read %s%s%s", s->job, (*out)->folder, fault ? "through the daemon: " : "directly", fault ? fault : "",
                     "");
        }
        call_end(r, c);
        if (st == ST_CORRUPT)
            st = e->code = ST_ENV;
        if (st != ST_AGAIN)
            return st;
        clock_sleep_ms(REMOTE_AGAIN_MS);
    }
}

enum status remote_settle(struct remote *r, uint64_t job, uint64_t index, struct source *s, struct err *e)
{
    s->job = job;
    s->index = index;
    s->via = NULL;
    if (!remote_far(r))
        return ST_OK;
    pthread_mutex_lock(&r->roots_lock);
    struct root *x = find_root(r, s->path);
    enum status st = x ? ST_OK : look(r, s, &x, e);
    if (st == ST_OK)
        s->via = x->far ? &r->far : &r->near;
    pthread_mutex_unlock(&r->roots_lock);
    return st;
}

int roots_far(struct remote *r, const char *path)
{
    if (pthread_mutex_trylock(&r->roots_lock))
        return 0; /* somebody is finding something out */
    const struct root *x = find_root(r, path);
    int far = x && x->far;
    pthread_mutex_unlock(&r->roots_lock);
    return far;
}

void remote_distrust(struct remote *r, const struct source *s, const char *why)
{
    pthread_mutex_lock(&r->roots_lock);
    struct root *x = find_root(r, s->path);
    if (!x)
        x = add_root(r, s->path, 0);
    if (!x->far)
        log_warn("sources in '%s' are read through the daemon from now on: %s", x->folder, why);
    x->far = 1;
    pthread_mutex_unlock(&r->roots_lock);
}

enum status remote_judge(struct remote *r, uint64_t job, uint64_t index, const struct source *s, struct err *e)
{
    struct err here = *e;
    const Ebb__RelayData *d;
    Ebb__RelayRead m = EBB__RELAY_READ__INIT;
    m.id = remote_id(r);
    m.job = job;
    m.source = index;
    struct call *c = call_begin(r, m.id, EBB__ENVELOPE__BODY_RELAY_READ, &m);
    enum status st = stream_ask(r, &m, &c, &d, e);
    call_end(r, c);
    if (st != ST_OK)
        return st;
    remote_distrust(r, s, here.text);
    return err_set(e, ST_ENV, "%s; the daemon's has not: it is read through the daemon from now on", here.text);
}

/* The folder of parts ----------------------------------------------------------------------------------------------------------------------- */

/* nonce "": a new one comes back in `out`. */
static enum status ask_mark(struct remote *r, uint64_t job, const char *nonce, char out[33], struct err *e)
{
    for (;;) {
        Ebb__RelayMark m = EBB__RELAY_MARK__INIT;
        m.id = remote_id(r);
        m.job = job;
        m.nonce = (char *)(uintptr_t)nonce;
        struct call *c = call_begin(r, m.id, EBB__ENVELOPE__BODY_RELAY_MARK, &m);
        enum status st = call_wait(r, c, EBB__ENVELOPE__BODY_RELAY_MARKED, NULL, NULL, e);
        const Ebb__RelayMarked *a = st == ST_OK ? c->answer->relay_marked : NULL;
        if (a)
            st = call_status(a->code, a->text, e);
        if (st == ST_OK && (strlen(a->nonce) != 32 || strspn(a->nonce, "0123456789abcdef") != 32))
            st = err_set(e, ST_ENV, "the daemon's nonce makes no sense");
        if (st == ST_OK)
            memcpy(out, a->nonce, 33);
        call_end(r, c);
        if (st == ST_CORRUPT)
            st = e->code = ST_ENV;
        if (st != ST_AGAIN)
            return st;
        clock_sleep_ms(REMOTE_AGAIN_MS);
    }
}

/* NULL: it stands there. Folders are not made: the daemon has made them, if it is the same folder. */
static const char *write_mark(const char *path, const char *nonce, struct err *why)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0) {
        err_errno(why, ST_ENV, errno, "cannot make a file in its folder of parts");
        return why->text;
    }
    int failed = write(fd, nonce, 32) != 32 || fsync(fd);
    failed |= close(fd) != 0;
    if (!failed)
        return NULL;
    err_errno(why, ST_ENV, errno, "cannot write in its folder of parts");
    unlink(path);
    return why->text;
}

static enum status try_mark(struct remote *r, uint64_t job, const char *parts_dir, const char **fault, struct err *why, struct err *e)
{
    char nonce[33], same[33];
    TRY(ask_mark(r, job, "", nonce, e));
    char *path = mem_printf("%s/%" PRIu64 "/.see-%s", parts_dir, job, nonce);
    if (!path)
        remote_no_memory();
    *fault = write_mark(path, nonce, why);
    if (!*fault) {
        enum status st = ST_NOT_FOUND;
        for (int i = 0; i < SEEN_TRIES && st == ST_NOT_FOUND; i++) {
            if (i)
                clock_sleep_ms(SEEN_PAUSE_MS);
            st = ask_mark(r, job, nonce, same, why);
        }
        if (st != ST_OK) {
            *fault = "the daemon does not see what is written there";
            unlink(path);
        }
    }
    mem_free(path);
    return ST_OK;
}

enum status remote_output(struct remote *r, uint64_t job, const char *parts_dir, int *direct, struct err *e)
{
    *direct = 1;
    if (!remote_far(r))
        return ST_OK;
    pthread_mutex_lock(&r->roots_lock);
    struct outlet *x = r->outlets;
    while (x && x->job != job)
        x = x->next;
    enum status st = ST_OK;
    if (!x) {
        const char *fault = NULL;
        struct err why;
        st = try_mark(r, job, parts_dir, &fault, &why, e);
        if (st == ST_OK) {
            x = mem_zalloc(sizeof *x);
            if (!x)
                remote_no_memory();
            x->job = job;
            x->direct = fault == NULL;
            x->next = r->outlets;
            r->outlets = x;
            log_info("job %" PRIu64 ": parts are written %s%s", job, fault ? "through the daemon: " : "directly", fault ? fault : "");
        }
    }
    if (st == ST_OK)
        *direct = x->direct;
    pthread_mutex_unlock(&r->roots_lock);
    return st;
}
