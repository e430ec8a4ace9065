/* Models that are not on this host: fetched once, into a folder under their digest, by whichever worker comes first; the others wait for it.

   The happy path: the host's lock; a plan from the daemon (which files, a digest of each piece, from whom); every piece compared with its digest and written into a
   folder of another name, synced, renamed: a folder under a digest is complete. Then this worker gives it to other hosts.

   What can fail: another host is gone, slow, or gives wrong bytes: the next one goes on where it stopped, at last the daemon; the worker that fetches dies: its lock
   goes with it, its folder is removed later; it is frozen: after a while the next one fetches without the lock; the disk: said. What is too much for the cache goes,
   the longest unused first. */
#include "workers/remote/inside.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/path.h"

#define ENTRY ".entry"
#define DIGEST 32
#define MOST_FILES 4096
#define ROOM_LEFT (UINT64_C(1) << 30)
#define LOCK_POLL_MS 100
#define FROZEN_S 30     /* who holds the lock has not moved for so long */
#define ALONE_MS 120000 /* no host has had a place for us for so long */
#define STALE_S 3600    /* what a killed worker left unfinished */

struct getting {
    struct remote *r;
    const uint8_t *digest;
    char hex[33];
    char *dir, *tmp;    /* where it will be; where it grows */
    int lock_fd;
    Ebb__ModelPlan *plan;
    struct call *call;  /* whose answer the plan is */
    int *fds;
    uint32_t file;      /* the next piece to be written */
    uint64_t offset, bytes, touched_ms;
};

static void hex_of(const uint8_t digest[16], char out[33])
{
    for (int i = 0; i < 16; i++)
        snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

static char *path_of(const char *dir, const char *name)
{
    char *p = path_join(dir, name);
    if (!p)
        remote_no_memory();
    return p;
}

/* What is there -------------------------------------------------------------------------------------------------------------------------- */

/* The first line of ENTRY says how large it is, the second what to open. NULL: it is not there. */
static char *complete_path(const char *dir)
{
    char *file = path_of(dir, ENTRY);
    struct buf text = {0};
    struct err e;
    char *path = NULL;
    if (path_read(file, 4096 + 64, &text, &e) == ST_OK && buf_cstr(&text)) {
        char *entry = strchr(text.data, '\n');
        if (entry && *++entry)
            path = path_of(dir, entry);
        else if (entry && !(path = mem_strdup(dir)))
            remote_no_memory();
        if (utimensat(AT_FDCWD, file, NULL, 0))
            log_debug("'%s': %s", file, strerror(errno));
    }
    buf_release(&text);
    mem_free(file);
    return path;
}

struct kept {
    char name[40];
    uint64_t bytes;
    time_t used;
};

static int by_use(const void *a, const void *b)
{
    const struct kept *x = a, *y = b;
    return x->used < y->used ? -1 : x->used > y->used;
}

static void remove_kept(const char *models, const char *name)
{
    struct err e;
    char *from = path_of(models, name), *to = mem_printf("%s/.old-%s-%ld", models, name, (long)getpid());
    if (!to)
        remote_no_memory();
    if (rename(from, to) == 0 && path_remove_tree(to, &e) != ST_OK)
        log_warn("%s", e.text);
    mem_free(from);
    mem_free(to);
}

/* Makes room for so many more bytes; what was left unfinished goes. */
static void make_room(const char *models, uint64_t most, uint64_t more)
{
    struct kept *kept = NULL;
    size_t n = 0, cap = 0;
    uint64_t all = more;
    DIR *d = opendir(models);
    time_t now = time(NULL);
    for (struct dirent *x; d && (x = readdir(d));) {
        struct stat s;
        char *path = path_of(models, x->d_name), *entry = path_of(path, ENTRY);
        struct buf text = {0};
        struct err e;
        if ((strncmp(x->d_name, ".get-", 5) == 0 || strncmp(x->d_name, ".old-", 5) == 0) && stat(path, &s) == 0 && now - s.st_mtime > STALE_S) {
            if (path_remove_tree(path, &e) != ST_OK)
                log_warn("%s", e.text);
        } else if (strlen(x->d_name) == 32 && stat(entry, &s) == 0 && path_read(entry, 4096 + 64, &text, &e) == ST_OK && buf_cstr(&text)) {
            if (mem_grow((void **)&kept, &cap, n, sizeof *kept))
                remote_no_memory();
            snprintf(kept[n].name, sizeof kept[n].name, "%s", x->d_name);
            kept[n].bytes = strtoull(text.data, NULL, 10);
            kept[n].used = s.st_mtime;
            all += kept[n++].bytes;
        }
        buf_release(&text);
        mem_free(entry);
        mem_free(path);
    }
    if (d)
        closedir(d);
    if (n)
        qsort(kept, n, sizeof *kept, by_use);
    for (size_t i = 0; i < n && all > most; i++) {
        log_info("model %s leaves the cache, unused for %ld s", kept[i].name, (long)(now - kept[i].used));
        remove_kept(models, kept[i].name);
        all -= kept[i].bytes;
    }
    mem_free(kept);
}

/* The lock -------------------------------------------------------------------------------------------------------------------------------- */

/* Until the lock is ours, or the model is there (*path), or who has the lock has stopped. */
static enum status take_lock(struct getting *g, char **path, struct err *e)
{
    char *file = mem_printf("%s/.lock-%s", g->r->o.model_dir, g->hex);
    if (!file)
        remote_no_memory();
    g->lock_fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    enum status st = g->lock_fd < 0 ? err_errno(e, ST_ENV, errno, "cannot open '%s'", file) : ST_OK;
    for (int waited = 0; st == ST_OK; waited = 1) {
        struct stat s;
        int ours = flock(g->lock_fd, LOCK_EX | LOCK_NB) == 0;
        if ((*path = complete_path(g->dir)) || ours)
            break;
        if (!waited)
            log_info("model %s: another worker of this host fetches it", g->hex);
        if (fstat(g->lock_fd, &s) == 0 && time(NULL) - s.st_mtime > FROZEN_S) {
            log_warn("model %s: the worker that fetches it has stopped; fetched once more", g->hex);
            break;
        }
        clock_sleep_ms(LOCK_POLL_MS);
    }
    mem_free(file);
    return st;
}

static void touch_lock(struct getting *g)
{
    uint64_t now = clock_ms();
    if (now - g->touched_ms < 1000)
        return;
    g->touched_ms = now;
    if (futimens(g->lock_fd, NULL) || (utimensat(AT_FDCWD, g->tmp, NULL, 0) && errno != ENOENT)) /* neither frozen nor left behind */
        log_debug("a lock could not be touched: %s", strerror(errno));
}

/* The plan ---------------------------------------------------------------------------------------------------------------------------------- */

/* Names from the wire: relative, without "..", without anything hidden. */
static int good_name(const char *name)
{
    size_t n = strlen(name);
    if (!n || n > 1024 || *name == '/' || name[n - 1] == '/' || strchr(name, '\n'))
        return 0;
    for (const char *p = name; *p; p += strcspn(p, "/"), p += *p == '/')
        if (*p == '/' || *p == '.')
            return 0;
    return 1;
}

static enum status check_plan(const Ebb__ModelPlan *p, uint64_t *bytes, struct err *e)
{
    *bytes = 0;
    int has_entry = !*p->entry;
    if (p->piece < 4096 || p->piece > 1u << 20 || p->n_files == 0 || p->n_files > MOST_FILES)
        return err_set(e, ST_CORRUPT, "the daemon's plan of the model makes no sense");
    for (size_t i = 0; i < p->n_files; i++) {
        const Ebb__ModelFile *f = p->files[i];
        if (!good_name(f->name) || (i && strcmp(p->files[i - 1]->name, f->name) >= 0))
            return err_set(e, ST_CORRUPT, "the daemon's plan of the model names a file '%.200s'", f->name);
        if (f->size > INT64_MAX || f->digests.len != (f->size + p->piece - 1) / p->piece * DIGEST || __builtin_add_overflow(*bytes, f->size, bytes))
            return err_set(e, ST_CORRUPT, "the daemon's plan of the model has not the digests of '%.200s'", f->name);
        has_entry |= strcmp(f->name, p->entry) == 0;
    }
    return has_entry ? ST_OK : err_set(e, ST_CORRUPT, "the daemon's plan of the model opens a file that it does not name");
}

static int same_plan(const Ebb__ModelPlan *a, const Ebb__ModelPlan *b)
{
    if (a->n_files != b->n_files || a->piece != b->piece || strcmp(a->entry, b->entry) != 0)
        return 0;
    for (size_t i = 0; i < a->n_files; i++)
        if (a->files[i]->size != b->files[i]->size || strcmp(a->files[i]->name, b->files[i]->name) != 0 ||
            a->files[i]->digests.len != b->files[i]->digests.len ||
            (a->files[i]->digests.len && memcmp(a->files[i]->digests.data, b->files[i]->digests.data, a->files[i]->digests.len) != 0))
            return 0;
    return 1;
}

static void wait_ms(uint32_t ms)
{
    clock_sleep_ms(ms < 50 ? 50 : ms > 5000 ? 5000 : ms);
}

/* A new plan, once somebody gives it to us; what was written so far stays good if it is the same. */
static enum status ask_plan(struct getting *g, int alone, struct err *e)
{
    uint64_t until = clock_ms() + ALONE_MS;
    for (;;) {
        uint64_t bytes;
        Ebb__ModelAsk m = EBB__MODEL_ASK__INIT;
        m.id = remote_id(g->r);
        m.digest.data = (uint8_t *)(uintptr_t)g->digest;
        m.digest.len = 16;
        m.host = (char *)(uintptr_t)g->r->o.host;
        m.alone = alone || clock_ms() > until;
        struct call *c = call_begin(g->r, m.id, EBB__ENVELOPE__BODY_MODEL_ASK, &m);
        enum status st = call_wait(g->r, c, EBB__ENVELOPE__BODY_MODEL_PLAN, NULL, NULL, e);
        Ebb__ModelPlan *p = st == ST_OK ? c->answer->model_plan : NULL;
        if (p)
            st = call_status(p->code, p->text, e);
        if (st == ST_OK && !p->n_files && p->wait_ms) { /* others have it first */
            uint32_t ms = p->wait_ms;
            call_end(g->r, c);
            touch_lock(g);
            wait_ms(ms);
            continue;
        }
        if (st == ST_OK)
            st = check_plan(p, &bytes, e);
        if (st == ST_OK && g->plan && !same_plan(g->plan, p))
            st = err_set(e, ST_ENV, "the model changed while it was fetched");
        touch_lock(g);
        if (st == ST_OK) {
            call_end(g->r, g->call);
            g->call = c;
            g->plan = p;
            g->bytes = bytes;
            return ST_OK;
        }
        call_end(g->r, c);
        if (st != ST_AGAIN)
            return st;
        clock_sleep_ms(REMOTE_AGAIN_MS);
    }
}

/* Pieces ------------------------------------------------------------------------------------------------------------------------------------ */

static enum status make_files(struct getting *g, struct err *e)
{
    uint64_t room;
    make_room(g->r->o.model_dir, g->r->o.model_bytes ? g->r->o.model_bytes : REMOTE_MODEL_BYTES, g->bytes);
    TRY(path_free_bytes(g->r->o.model_dir, &room, e));
    if (room < g->bytes + ROOM_LEFT)
        return err_set(e, ST_ENV, "no room for the model in '%s': it needs %" PRIu64 " MiB and a GiB to spare, %" PRIu64 " MiB are free", g->r->o.model_dir,
                       g->bytes >> 20, room >> 20);
    TRY(path_make_dirs(g->tmp, 0700, e));
    g->fds = mem_array(g->plan->n_files, sizeof *g->fds);
    if (!g->fds)
        remote_no_memory();
    for (size_t i = 0; i < g->plan->n_files; i++)
        g->fds[i] = -1;
    for (size_t i = 0; i < g->plan->n_files; i++) {
        char *path = path_of(g->tmp, g->plan->files[i]->name);
        char *folder = mem_strndup(path, (size_t)(path_base(path) - path) - 1);
        if (!folder)
            remote_no_memory();
        enum status st = path_make_dirs(folder, 0700, e);
        if (st == ST_OK && (g->fds[i] = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600)) < 0)
            st = err_errno(e, ST_ENV, errno, "cannot make '%s'", path);
        mem_free(folder);
        mem_free(path);
        TRY(st);
    }
    return ST_OK;
}

static enum status write_piece(struct getting *g, const void *data, size_t len, struct err *e)
{
    for (size_t done = 0; done < len;) {
        int errnum = fault_point("remote.model.write");
        ssize_t n = errnum ? -1 : pwrite(g->fds[g->file], (const char *)data + done, len - done, (off_t)(g->offset + done));
        if (n < 0 && !errnum)
            errnum = errno;
        if (n >= 0)
            done += (size_t)n;
        else if (errnum != EINTR)
            return err_errno(e, ST_ENV, errnum, "cannot write '%s/%s'", g->tmp, g->plan->files[g->file]->name);
    }
    return ST_OK;
}

/* The piece at (file, offset); 0: there is none. Files of nothing are passed over. */
static int step_to(const Ebb__ModelPlan *p, uint32_t *file, const uint64_t *offset)
{
    while (*file < p->n_files && *offset >= p->files[*file]->size) {
        if (*offset) /* the caller begins the next file at 0 */
            return 0;
        ++*file;
    }
    return *file < p->n_files;
}

static void next_piece(const Ebb__ModelPlan *p, uint32_t *file, uint64_t *offset)
{
    *offset += p->piece;
    if (*offset >= p->files[*file]->size) {
        *offset = 0;
        ++*file;
    }
}

static uint32_t piece_length(const Ebb__ModelPlan *p, uint32_t file, uint64_t offset)
{
    uint64_t left = p->files[file]->size - offset;
    return left < p->piece ? (uint32_t)left : p->piece;
}

/* All that is missing, from one of them. *disk: it is ours that failed. */
static enum status take_pieces(struct getting *g, struct taker *t, int *disk, struct err *e)
{
    const Ebb__ModelPlan *p = g->plan;
    uint32_t file = g->file;
    uint64_t offset = g->offset;
    *disk = 0;
    while (step_to(p, &g->file, &g->offset)) {
        while (taker_asked(t) < TAKER_WINDOW && step_to(p, &file, &offset)) {
            taker_ask(t, file, offset, piece_length(p, file, offset));
            next_piece(p, &file, &offset);
        }
        const void *data;
        size_t len;
        uint8_t digest[DIGEST];
        TRY(taker_take(t, &data, &len, e));
        if (len != piece_length(p, g->file, g->offset))
            return err_set(e, ST_CORRUPT, "it gives %zu bytes of '%s' where %u were asked for", len, p->files[g->file]->name, piece_length(p, g->file, g->offset));
        crypto_generichash(digest, sizeof digest, data, len, NULL, 0);
        if (memcmp(digest, p->files[g->file]->digests.data + g->offset / p->piece * DIGEST, DIGEST) != 0)
            return err_set(e, ST_CORRUPT, "it gives wrong bytes of '%s'", p->files[g->file]->name);
        *disk = 1;
        TRY(write_piece(g, data, len, e));
        *disk = 0;
        next_piece(p, &g->file, &g->offset);
        touch_lock(g);
    }
    return ST_OK;
}

static enum status take_from(struct getting *g, const Ebb__ModelPeer *peer, int *disk, struct err *e)
{
    struct taker *t;
    *disk = 0;
    TRY(taker_new(g->r, g->digest, g->plan->pass.data, g->plan->pass.len, peer, &t, e));
    enum status st = take_pieces(g, t, disk, e);
    taker_free(t);
    return st;
}

static enum status fetch_all(struct getting *g, struct err *e)
{
    int alone = 0, failures = 0;
    for (;;) {
        int disk = 0;
        enum status st = ST_AGAIN;
        for (size_t i = 0; i < g->plan->n_peers && st != ST_OK; i++) {
            st = take_from(g, g->plan->peers[i], &disk, e);
            if (st != ST_OK && disk)
                return st;
            if (st != ST_OK)
                log_warn("model %s: the worker at %.200s: %s", g->hex, g->plan->peers[i]->endpoint, e->text);
            else
                log_info("model %s: fetched from another host, at %.200s", g->hex, g->plan->peers[i]->endpoint);
        }
        alone |= g->plan->n_peers > 0;
        if (st != ST_OK && g->plan->here) {
            st = take_from(g, NULL, &disk, e);
            if (st == ST_OK)
                log_info("model %s: fetched from the daemon", g->hex);
            else if (disk || st == ST_NOMEM || ++failures >= 3)
                return st;
        }
        if (st == ST_OK)
            return ST_OK;
        if (!g->plan->n_peers)
            wait_ms(g->plan->wait_ms);
        TRY(ask_plan(g, alone, e));
    }
}

static enum status finish(struct getting *g, struct err *e)
{
    for (size_t i = 0; i < g->plan->n_files; i++) {
        if (fsync(g->fds[i]))
            return err_errno(e, ST_ENV, errno, "cannot sync '%s/%s'", g->tmp, g->plan->files[i]->name);
        char *path = path_of(g->tmp, g->plan->files[i]->name);
        enum status st = path_sync_parent(path, e);
        mem_free(path);
        TRY(st);
    }
    char *file = path_of(g->tmp, ENTRY), *text = mem_printf("%" PRIu64 "\n%s", g->bytes, g->plan->entry);
    if (!text)
        remote_no_memory();
    enum status st = path_write(file, text, strlen(text), e);
    mem_free(file);
    mem_free(text);
    if (st == ST_OK && rename(g->tmp, g->dir) && errno != EEXIST && errno != ENOTEMPTY)
        st = err_errno(e, ST_ENV, errno, "cannot rename '%s'", g->tmp);
    if (st == ST_OK)
        st = path_sync_dir(g->r->o.model_dir, e);
    return st;
}

static void getting_release(struct getting *g)
{
    struct err e;
    for (size_t i = 0; g->fds && i < g->plan->n_files; i++)
        if (g->fds[i] >= 0)
            close(g->fds[i]);
    call_end(g->r, g->call);
    if (path_remove_tree(g->tmp, &e) != ST_OK)
        log_warn("%s", e.text);
    if (g->lock_fd >= 0)
        close(g->lock_fd);
    mem_free(g->fds);
    mem_free(g->dir);
    mem_free(g->tmp);
}

static enum status get(struct getting *g, char **path, struct err *e)
{
    uint64_t begun = clock_ms();
    TRY(path_make_dirs(g->r->o.model_dir, 0700, e));
    *path = complete_path(g->dir);
    if (!*path)
        TRY(take_lock(g, path, e));
    if (*path)
        return ST_OK;
    TRY(ask_plan(g, 0, e));
    TRY(make_files(g, e));
    TRY(fetch_all(g, e));
    TRY(finish(g, e));
    *path = complete_path(g->dir);
    if (!*path)
        return err_set(e, ST_ENV, "the model that was fetched into '%s' is gone again", g->dir);
    log_info("model %s: %" PRIu64 " bytes in '%s' after %" PRIu64 " ms", g->hex, g->bytes, g->dir, clock_ms() - begun);
    return ST_OK;
}

enum status remote_model(struct remote *r, const uint8_t digest[16], char **path, struct err *e)
{
    if (!r->o.model_dir)
        return err_set(e, ST_USER, "the model is not on this machine, and there is no place to keep it: give --model-cache");
    pthread_mutex_lock(&r->model_lock);
    struct getting g = {.r = r, .digest = digest, .lock_fd = -1};
    hex_of(digest, g.hex);
    g.dir = path_of(r->o.model_dir, g.hex);
    g.tmp = mem_printf("%s/.get-%s-%ld", r->o.model_dir, g.hex, (long)getpid());
    if (!g.tmp)
        remote_no_memory();
    enum status st = get(&g, path, e);
    getting_release(&g);
    pthread_mutex_unlock(&r->model_lock);
    if (st == ST_CORRUPT)
        st = e->code = ST_ENV;
    if (st == ST_OK)
        giver_add(r, digest, *path);
    return st;
}

void remote_model_bad(struct remote *r, const uint8_t digest[16])
{
    char hex[33];
    hex_of(digest, hex);
    log_warn("model %s in the cache is damaged: it is fetched again", hex);
    pthread_mutex_lock(&r->model_lock);
    remove_kept(r->o.model_dir, hex);
    pthread_mutex_unlock(&r->model_lock);
}
