/* Parts, written for workers that do not see the job's folder of parts.

   The happy path: a question without data begins the part: the loop knows the lease, a file under a name of its own is made; its bytes come in order, each
   message answered with how far it is; with the last one the digest is compared, the file synced, given its name, and the folder synced: only then is it "done".

   What can come between: bytes that were written already (passed over); a gap, or a part that nobody began here, after the daemon or the connection went away
   (ST_AGAIN: begin again, which throws away what there was); a part that is complete already, its answer lost (the file's digest is compared, and it is done); a
   digest that does not fit (ST_CORRUPT), a failed write or sync (ST_ENV): the file is condemned. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/path.h"
#include "daemon/relay_inside.h"
#include "storage/part.h"

#define MOST_UPLOADS 256
#define UPLOAD_IDLE_MS 60000
#define NONCE_BYTES 16

struct upload {
    struct upload *next;
    uint64_t job, epoch, seq, size, at, used_ms;
    uint8_t digest[16];
    struct sock_peer owner;
    char *dir, *path; /* of parts; under which it is written */
    int fd;
    XXH3_state_t *sum;
};

static void throw_away(struct upload *u)
{
    if (u->fd >= 0) {
        close(u->fd);
        unlink(u->path);
    }
    XXH3_freeState(u->sum);
    mem_free(u->dir);
    mem_free(u->path);
    mem_free(u);
}

void relay_write_idle(struct hand *h, uint64_t now_ms, int all)
{
    size_t n = 0;
    for (struct upload *u, **at = (struct upload **)&h->files; (u = *at);)
        if (all || n >= MOST_UPLOADS || now_ms - u->used_ms > UPLOAD_IDLE_MS) {
            *at = u->next;
            throw_away(u);
        } else {
            at = &u->next;
            n++;
        }
}

/* Takes it out of the list. */
static struct upload *pick(struct hand *h, const Ebb__RelayPart *m)
{
    for (struct upload *u, **at = (struct upload **)&h->files; (u = *at); at = &u->next)
        if (u->job == m->job && u->epoch == m->epoch && u->seq == m->seq) {
            *at = u->next;
            return u;
        }
    return NULL;
}

static void put(struct hand *h, struct upload *u)
{
    u->used_ms = clock_ms();
    u->next = h->files;
    h->files = u;
}

static void say_at(struct task *t, enum status st, const struct err *e, uint64_t at, int done)
{
    Ebb__RelayPartAt m = EBB__RELAY_PART_AT__INIT;
    m.id = t->m->relay_part->id;
    m.code = (uint32_t)st;
    m.at = at;
    m.credit = RELAY_CREDIT;
    m.done = done;
    if (st != ST_OK) {
        m.text = (char *)(uintptr_t)e->text;
        if (st != ST_AGAIN)
            atomic_fetch_add(&t->peer->relay->refused, 1);
        if (st == ST_ENV || st == ST_CORRUPT)
            log_warn("relay: part %" PRIx64 "-%" PRIu64 " of job %" PRIu64 ": %s", t->m->relay_part->epoch, t->m->relay_part->seq, t->m->relay_part->job, e->text);
    }
    relay_answer(t, EBB__ENVELOPE__BODY_RELAY_PART_AT, &m);
}

static int same_digest(const uint8_t digest[16], XXH128_hash_t sum)
{
    XXH128_canonical_t c;
    XXH128_canonicalFromHash(&c, sum);
    return memcmp(c.digest, digest, sizeof c.digest) == 0;
}

static int same_peer(const struct sock_peer *a, const struct sock_peer *b)
{
    return a->len == b->len && memcmp(a->id, b->id, a->len) == 0;
}

/* A part of this name stands there: ST_OK when it is this one, ST_CORRUPT when not; ST_NOT_FOUND: there is none. */
static enum status look_at(const char *path, uint64_t size, const uint8_t digest[16], struct err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat s;
    if (fd < 0)
        return err_errno(e, errno == ENOENT ? ST_NOT_FOUND : ST_ENV, errno, "cannot open '%s'", path);
    enum status st = ST_OK;
    char *block = mem_alloc(RELAY_CHUNK);
    XXH3_state_t *sum = XXH3_createState();
    if (!block || !sum)
        relay_no_memory();
    XXH3_128bits_reset(sum);
    if (fstat(fd, &s) || !S_ISREG(s.st_mode) || (uint64_t)s.st_size != size)
        st = ST_CORRUPT;
    for (ssize_t n = 1; n && st == ST_OK;) {
        n = read(fd, block, RELAY_CHUNK);
        if (n > 0)
            XXH3_128bits_update(sum, block, (size_t)n);
        else if (n < 0 && errno != EINTR)
            st = err_errno(e, ST_ENV, errno, "cannot read '%s'", path);
    }
    if (st == ST_OK && !same_digest(digest, XXH3_128bits_digest(sum)))
        st = ST_CORRUPT;
    XXH3_freeState(sum);
    mem_free(block);
    close(fd);
    return st == ST_CORRUPT ? err_set(e, st, "a part '%s' with other bytes is there already", path) : st;
}

/* It may have got its name a moment before the daemon died. */
static enum status is_there(const char *dir, const char *path, const Ebb__RelayPart *m, struct err *e)
{
    TRY(look_at(path, m->size, m->digest.data, e));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    enum status st = fd < 0 || fsync(fd) ? err_errno(e, ST_ENV, errno, "cannot sync part '%s'", path) : ST_OK;
    if (fd >= 0)
        close(fd);
    char *folder = mem_printf("%s/%" PRIu64, dir, m->job);
    if (!folder)
        relay_no_memory();
    if (st == ST_OK)
        st = path_sync_dir(folder, e);
    mem_free(folder);
    return st;
}

static enum status make_folder(const char *dir, uint64_t job, struct err *e)
{
    char *folder = mem_printf("%s/%" PRIu64, dir, job);
    if (!folder)
        relay_no_memory();
    enum status st = path_make_dirs(folder, 0777, e);
    if (st == ST_OK)
        st = path_sync_dir(dir, e);
    mem_free(folder);
    return st;
}

static enum status write_all(struct upload *u, const void *data, size_t len, struct err *e)
{
    for (size_t done = 0; done < len;) {
        int errnum = fault_point("relay.part.write");
        ssize_t n = errnum ? -1 : write(u->fd, (const char *)data + done, len - done);
        if (n < 0 && !errnum)
            errnum = errno;
        if (n >= 0)
            done += (size_t)n;
        else if (errnum == ENOSPC || errnum == EDQUOT)
            return err_errno(e, ST_ENV, errnum, "cannot write part '%s': free some space, then go on", u->path);
        else if (errnum != EINTR)
            return err_errno(e, ST_ENV, errnum, "cannot write part '%s'", u->path);
    }
    XXH3_128bits_update(u->sum, data, len);
    u->at += len;
    return ST_OK;
}

/* A name is never used twice; link does not replace what somebody else may have put there, rename would. */
static enum status give_name(const struct upload *u, const char *path, struct err *e)
{
    int errnum = fault_point("relay.part.name");
    if (!errnum && link(u->path, path) == 0) {
        unlink(u->path);
        return ST_OK;
    }
    if (!errnum)
        errnum = errno;
    if (errnum == EEXIST)
        return look_at(path, u->size, u->digest, e);
    if ((errnum == EPERM || errnum == EOPNOTSUPP || errnum == ENOSYS || errnum == EMLINK) && access(path, F_OK) && rename(u->path, path) == 0)
        return ST_OK; /* a file system without links */
    return err_errno(e, ST_ENV, errnum, "cannot name part '%s'", path);
}

static enum status complete(struct upload *u, struct err *e)
{
    char path[PATH_MAX];
    if (!same_digest(u->digest, XXH3_128bits_digest(u->sum)))
        return err_set(e, ST_CORRUPT, "the bytes that came are not those of its digest");
    int errnum = fault_point("relay.part.fsync");
    if (errnum || fsync(u->fd))
        return err_errno(e, ST_ENV, errnum ? errnum : errno, "cannot sync part '%s'", u->path);
    part_path(path, sizeof path, u->dir, u->job, u->epoch, u->seq);
    TRY(give_name(u, path, e));
    close(u->fd);
    u->fd = -1;
    char *folder = mem_printf("%s/%" PRIu64, u->dir, u->job);
    if (!folder)
        relay_no_memory();
    errnum = fault_point("relay.part.dirsync");
    enum status st = errnum ? err_errno(e, ST_ENV, errnum, "cannot sync folder '%s'", folder) : path_sync_dir(folder, e);
    mem_free(folder);
    if (st != ST_OK)
        unlink(path); /* condemned */
    return st;
}

/* All bytes are there: takes the upload. */
static void end(struct hand *h, struct task *t, struct upload *u)
{
    struct err e;
    uint64_t size = u->size;
    enum status st = complete(u, &e);
    throw_away(u);
    if (st == ST_OK)
        atomic_fetch_add(&h->relay->parts, 1);
    say_at(t, st, &e, st == ST_OK ? size : 0, st == ST_OK);
}

/* Behind the loop's word. */
static void begin(struct hand *h, struct task *t)
{
    const Ebb__RelayPart *m = t->m->relay_part;
    char path[PATH_MAX];
    struct err e, why;
    struct upload *u = pick(h, m);
    if (u)
        throw_away(u);
    if (strlen(t->path) + 80 > sizeof path) {
        say_at(t, err_set(&e, ST_USER, "the path '%.500s' is too long", t->path), &e, 0, 0);
        return;
    }
    part_path(path, sizeof path, t->path, m->job, m->epoch, m->seq);
    enum status st = is_there(t->path, path, m, &e);
    if (st != ST_NOT_FOUND) {
        say_at(t, st, &e, st == ST_OK ? m->size : 0, st == ST_OK);
        return;
    }
    st = make_folder(t->path, m->job, &e);
    u = mem_zalloc(sizeof *u);
    if (!u || !(u->path = mem_printf("%s/%" PRIu64 "/.up-%" PRIu64 "-%" PRIu64, t->path, m->job, m->epoch, m->seq)) || !(u->sum = XXH3_createState()))
        relay_no_memory();
    u->fd = -1;
    u->dir = t->path;
    t->path = NULL;
    u->owner = t->peer->name;
    u->job = m->job;
    u->epoch = m->epoch;
    u->seq = m->seq;
    u->size = m->size;
    memcpy(u->digest, m->digest.data, sizeof u->digest);
    XXH3_128bits_reset(u->sum);
    if (st == ST_OK) {
        int errnum = fault_point("relay.part.open");
        u->fd = errnum ? -1 : open(u->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (u->fd < 0)
            st = err_errno(&why, ST_ENV, errnum ? errnum : errno, "cannot make part '%s'", u->path);
    } else {
        why = e;
    }
    if (st != ST_OK) {
        throw_away(u);
        say_at(t, st, &why, 0, 0);
        return;
    }
    if (u->size) {
        put(h, u);
        say_at(t, ST_OK, NULL, 0, 0);
    } else {
        end(h, t, u);
    }
}

static void go_on(struct hand *h, struct task *t)
{
    const Ebb__RelayPart *m = t->m->relay_part;
    struct err e;
    struct upload *u = pick(h, m);
    if (!u || !same_peer(&u->owner, &t->peer->name) || u->size != m->size || memcmp(u->digest, m->digest.data, sizeof u->digest) != 0) {
        if (u)
            put(h, u);
        say_at(t, err_set(&e, ST_AGAIN, "begin the part again"), &e, 0, 0);
        return;
    }
    if (m->offset > u->at) { /* a message was lost before this one */
        uint64_t at = u->at;
        put(h, u);
        say_at(t, ST_OK, NULL, at, 0);
        return;
    }
    uint64_t known = u->at - m->offset;
    enum status st = known < m->data.len ? write_all(u, m->data.data + known, m->data.len - (size_t)known, &e) : ST_OK;
    atomic_fetch_add(&h->relay->written_bytes, m->data.len);
    if (st == ST_OK && u->at < u->size) {
        uint64_t at = u->at;
        put(h, u);
        say_at(t, ST_OK, NULL, at, 0);
        return;
    }
    if (st == ST_OK) {
        end(h, t, u);
        return;
    }
    throw_away(u);
    say_at(t, st, &e, 0, 0);
}

/* Does the worker write where we read? -------------------------------------------------------------------------------------------------- */

static void say_marked(struct task *t, enum status st, const char *text, const char *nonce)
{
    Ebb__RelayMarked m = EBB__RELAY_MARKED__INIT;
    m.id = t->m->relay_mark->id;
    m.code = (uint32_t)st;
    if (text)
        m.text = (char *)(uintptr_t)text;
    if (nonce)
        m.nonce = (char *)(uintptr_t)nonce;
    relay_answer(t, EBB__ENVELOPE__BODY_RELAY_MARKED, &m);
}

static void mark(struct task *t)
{
    const Ebb__RelayMark *m = t->m->relay_mark;
    char nonce[2 * NONCE_BYTES + 1], found[2 * NONCE_BYTES + 1] = "";
    struct err e;
    if (!*m->nonce) {
        uint8_t random[NONCE_BYTES];
        enum status st = make_folder(t->path, m->job, &e);
        if (st == ST_OK && getrandom(random, sizeof random, 0) != sizeof random)
            st = err_errno(&e, ST_ENV, errno, "cannot draw random bytes");
        if (st != ST_OK) {
            say_marked(t, st, e.text, NULL);
            return;
        }
        for (int i = 0; i < NONCE_BYTES; i++)
            snprintf(nonce + 2 * i, 3, "%02x", random[i]);
        say_marked(t, ST_OK, NULL, nonce);
        return;
    }
    char *path = mem_printf("%s/%" PRIu64 "/.see-%s", t->path, m->job, m->nonce);
    if (!path)
        relay_no_memory();
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); /* opening asks a network file system anew */
    ssize_t n = fd < 0 ? 0 : read(fd, found, sizeof found - 1);
    int seen = n == sizeof found - 1 && strcmp(found, m->nonce) == 0;
    if (fd >= 0)
        close(fd);
    if (seen)
        unlink(path);
    mem_free(path);
    say_marked(t, seen ? ST_OK : ST_NOT_FOUND, seen ? NULL : "the daemon does not see the file", m->nonce);
}

void relay_write_run(struct hand *h, struct task *t)
{
    int is_mark = t->m->body_case == EBB__ENVELOPE__BODY_RELAY_MARK;
    if (t->again && t->st != ST_OK) {
        if (is_mark)
            say_marked(t, t->st, t->e.text, NULL);
        else
            say_at(t, t->st, &t->e, 0, 0);
    } else if (!t->again && (is_mark || !t->m->relay_part->data.len)) {
        relay_ask(t);
    } else if (is_mark) {
        mark(t);
    } else if (t->again) {
        begin(h, t);
    } else {
        go_on(h, t);
    }
}
