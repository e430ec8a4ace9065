/* Models, for hosts that do not have them. The plan of a model names its files with a digest of each piece, so that whoever receives one knows at once whether it is
   sound, from whomever it came. Few hosts at a time read from here; when one of them is through it gives the model to others, and those to others again: however
   many hosts there are, the daemon gives it away once or twice.

   What can fail: a host that stops in the middle (its place is free again after a while); peers that are gone or give wrong bytes (who asked says so, and waits for
   a place here); the model's files were changed (they are read again, and if they are not the job's any more, that is said). */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"
#include "daemon/relay_inside.h"
#include "daemon/words.h"
#include "storage/modeldir.h"

#define PIECE RELAY_CHUNK
#define DIGEST 32
#define PASS 32
#define READERS 2           /* hosts that read from here at a time */
#define READER_IDLE_MS 20000 /* it has stopped */
#define WAIT_MS 500
#define TAKERS 2            /* that one host gives it to at a time: the hosts that have it double, none is swamped */
#define TAKER_MS 600000     /* who has not said so by then is through, or never will be */
#define MOST_PEERS 4        /* in an answer */
#define MOST_HOLDERS 256
#define MODEL_IDLE_MS 3600000

#define HOLDER_MS 120000     /* who gives a model away says so again within half of this */

struct holder {
    struct holder *next;
    uint64_t ms, worker;
    char host[256], endpoint[256], key[41];
    struct {
        char host[256];
        uint64_t ms; /* 0: free */
    } takers[TAKERS];
};

struct piece_file {
    uint8_t *digests;
    size_t pieces;
    struct stat seen;
    int fd;
};

struct model {
    struct model *next;
    uint8_t digest[16];
    uint8_t pass[PASS];
    struct model_files files;
    struct piece_file *of;
    struct {
        char host[256];
        struct sock_peer peer;
        uint64_t ms;
        int chosen;
    } readers[READERS];
    struct holder *holders; /* the one that was named longest ago first */
    size_t holder_count;
    uint64_t fetches, used_ms;
};

static void model_free(struct model *m)
{
    for (size_t i = 0; m->of && i < m->files.count; i++) {
        mem_free(m->of[i].digests);
        if (m->of[i].fd >= 0)
            close(m->of[i].fd);
    }
    mem_free(m->of);
    modeldir_files_release(&m->files);
    for (struct holder *x = m->holders, *next; x; x = next) {
        next = x->next;
        mem_free(x);
    }
    mem_free(m);
}

/* Workers that ended give nothing away any more. */
static void forget_ended(struct hand *h)
{
    struct relay *r = h->relay;
    pthread_mutex_lock(&r->lock);
    uint64_t *ended = r->ended;
    size_t n = r->ended_count;
    r->ended = NULL;
    r->ended_count = r->ended_cap = 0;
    pthread_mutex_unlock(&r->lock);
    for (struct model *m = h->files; n && m; m = m->next)
        for (struct holder *x, **at = &m->holders; (x = *at);) {
            size_t i = 0;
            while (i < n && ended[i] != x->worker)
                i++;
            if (i == n) {
                at = &x->next;
                continue;
            }
            *at = x->next;
            mem_free(x);
            m->holder_count--;
        }
    mem_free(ended);
}

void relay_model_idle(struct hand *h, uint64_t now_ms, int all)
{
    forget_ended(h);
    for (struct model *m, **at = (struct model **)&h->files; (m = *at);)
        if (all || now_ms - m->used_ms > MODEL_IDLE_MS) {
            *at = m->next;
            model_free(m);
        } else {
            at = &m->next;
        }
}

static struct model *find(struct hand *h, const uint8_t *digest)
{
    struct model *m = h->files;
    while (m && memcmp(m->digest, digest, sizeof m->digest) != 0)
        m = m->next;
    if (m)
        m->used_ms = clock_ms();
    return m;
}

/* The plan ------------------------------------------------------------------------------------------------------------------------------- */

static enum status open_piece_file(const struct model *m, size_t i, struct err *e)
{
    struct piece_file *f = &m->of[i];
    if (f->fd >= 0)
        return ST_OK;
    char *path = mem_printf("%s/%s", m->files.folder, m->files.items[i].name);
    if (!path)
        relay_no_memory();
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    enum status st = f->fd < 0 ? err_errno(e, ST_ENV, errno, "cannot read '%s'", path) : ST_OK;
    mem_free(path);
    return st;
}

static enum status read_piece(const struct model *m, size_t i, uint64_t offset, void *data, size_t want, struct err *e)
{
    TRY(open_piece_file(m, i, e));
    for (size_t got = 0; got < want;) {
        int errnum = fault_point("relay.model.read");
        ssize_t n = errnum ? -1 : pread(m->of[i].fd, (char *)data + got, want - got, (off_t)(offset + got));
        if (n < 0 && !errnum)
            errnum = errno;
        if (n < 0 && errnum == EINTR)
            continue;
        if (n < 0)
            return err_errno(e, ST_ENV, errnum, "cannot read '%s/%s'", m->files.folder, m->files.items[i].name);
        if (n == 0)
            return err_set(e, ST_ENV, "'%s/%s' became shorter while it was read", m->files.folder, m->files.items[i].name);
        got += (size_t)n;
    }
    return ST_OK;
}

static enum status sum_file(struct model *m, size_t i, void *block, struct err *e)
{
    struct piece_file *f = &m->of[i];
    uint64_t size = m->files.items[i].size_bytes;
    f->pieces = (size_t)((size + PIECE - 1) / PIECE);
    f->digests = mem_alloc(f->pieces * DIGEST + 1);
    if (!f->digests)
        relay_no_memory();
    TRY(open_piece_file(m, i, e));
    if (fstat(f->fd, &f->seen))
        return err_errno(e, ST_ENV, errno, "cannot look at '%s/%s'", m->files.folder, m->files.items[i].name);
    for (size_t k = 0; k < f->pieces; k++) {
        uint64_t left = size - k * (uint64_t)PIECE;
        size_t n = left < PIECE ? (size_t)left : PIECE;
        TRY(read_piece(m, i, k * (uint64_t)PIECE, block, n, e));
        crypto_generichash(f->digests + k * DIGEST, DIGEST, block, n, NULL, 0);
    }
    return ST_OK;
}

static enum status plan(const uint8_t *digest, const char *path, struct model **out, struct err *e)
{
    struct model_digest now;
    uint64_t begun = clock_ms();
    TRY(modeldir_digest(path, &now, e));
    if (memcmp(now.bytes, digest, sizeof now.bytes) != 0)
        return err_set(e, ST_USER, "the model in '%s' is not the one that the job was submitted with; put that one back, or submit again", path);
    struct model *m = mem_zalloc(sizeof *m);
    void *block = mem_alloc(PIECE);
    if (!m || !block)
        relay_no_memory();
    memcpy(m->digest, digest, sizeof m->digest);
    m->used_ms = clock_ms();
    enum status st = modeldir_files(path, &m->files, e);
    if (st == ST_OK && !(m->of = mem_array(m->files.count, sizeof *m->of)))
        relay_no_memory();
    for (size_t i = 0; st == ST_OK && i < m->files.count; i++)
        m->of[i].fd = -1;
    for (size_t i = 0; st == ST_OK && i < m->files.count; i++)
        st = sum_file(m, i, block, e);
    if (st == ST_OK && getrandom(m->pass, sizeof m->pass, 0) != sizeof m->pass)
        st = err_errno(e, ST_ENV, errno, "cannot draw random bytes");
    mem_free(block);
    if (st != ST_OK) {
        model_free(m);
        return st;
    }
    log_info("relay: model '%s' (%s): %zu files, summed in %" PRIu64 " ms", path, now.hex, m->files.count, clock_ms() - begun);
    *out = m;
    return ST_OK;
}

static int is_changed(const struct model *m)
{
    for (size_t i = 0; i < m->files.count; i++) {
        struct stat s;
        const struct stat *was = &m->of[i].seen;
        char *path = mem_printf("%s/%s", m->files.folder, m->files.items[i].name);
        if (!path)
            relay_no_memory();
        int changed = stat(path, &s) || s.st_size != was->st_size || s.st_mtim.tv_sec != was->st_mtim.tv_sec || s.st_mtim.tv_nsec != was->st_mtim.tv_nsec ||
                      s.st_ino != was->st_ino;
        mem_free(path);
        if (changed)
            return 1;
    }
    return 0;
}

/* Who has it, who gets it ------------------------------------------------------------------------------------------------------------------ */

static void note_reading(struct model *m, const struct sock_peer *peer)
{
    for (int i = 0; i < READERS; i++)
        if (m->readers[i].chosen && m->readers[i].peer.len == peer->len && memcmp(m->readers[i].peer.id, peer->id, peer->len) == 0)
            m->readers[i].ms = clock_ms();
}

static int let_read(struct relay *r, struct model *m, const char *host, const struct sock_peer *peer)
{
    uint64_t now = clock_ms();
    int free_place = -1;
    for (int i = 0; i < READERS; i++) {
        if (m->readers[i].chosen && strcmp(m->readers[i].host, host) == 0) {
            m->readers[i].ms = now;
            m->readers[i].peer = *peer;
            return 1;
        }
        if (!m->readers[i].chosen || now - m->readers[i].ms > READER_IDLE_MS)
            free_place = i;
    }
    if (free_place < 0)
        return 0;
    snprintf(m->readers[free_place].host, sizeof m->readers[free_place].host, "%s", host);
    m->readers[free_place].peer = *peer;
    m->readers[free_place].ms = now;
    m->readers[free_place].chosen = 1;
    m->fetches++;
    atomic_fetch_add(&r->model_fetches, 1);
    char shown[256];
    snprintf(shown, sizeof shown, "%s", host);
    words_tidy(shown);
    log_info("relay: host %s reads model '%s' from here (fetch %" PRIu64 " of it)", shown, m->files.folder, m->fetches);
    return 1;
}

/* And those that have not been heard of for long. */
static void remove_holder(struct model *m, const char *host)
{
    uint64_t now = clock_ms();
    for (struct holder *x, **at = &m->holders; (x = *at);)
        if (strcmp(x->host, host) == 0 || now - x->ms > HOLDER_MS) {
            *at = x->next;
            mem_free(x);
            m->holder_count--;
        } else {
            at = &x->next;
        }
}

/* It takes from nobody any more. */
static void free_taker(struct model *m, const char *host)
{
    for (struct holder *x = m->holders; x; x = x->next)
        for (int i = 0; i < TAKERS; i++)
            if (x->takers[i].ms && strcmp(x->takers[i].host, host) == 0)
                x->takers[i].ms = 0;
}

static int has_place(const struct holder *x, uint64_t now)
{
    for (int i = 0; i < TAKERS; i++)
        if (!x->takers[i].ms || now - x->takers[i].ms > TAKER_MS)
            return i;
    return -1;
}

static void note_holder(struct model *m, const Ebb__ModelHave *have, uint64_t worker)
{
    for (int i = 0; i < READERS; i++)
        if (strcmp(m->readers[i].host, have->host) == 0)
            m->readers[i].chosen = 0;
    free_taker(m, have->host);
    for (struct holder *x = m->holders; x; x = x->next)
        if (strcmp(x->host, have->host) == 0 && strcmp(x->endpoint, have->endpoint) == 0) { /* it says so again */
            x->ms = clock_ms();
            x->worker = worker;
            return;
        }
    remove_holder(m, have->host);
    if (!*have->endpoint || m->holder_count >= MOST_HOLDERS)
        return;
    struct holder *x = mem_zalloc(sizeof *x), **at = &m->holders;
    if (!x)
        relay_no_memory();
    snprintf(x->host, sizeof x->host, "%s", have->host);
    snprintf(x->endpoint, sizeof x->endpoint, "%s", have->endpoint);
    memcpy(x->key, have->key.data, 40);
    x->ms = clock_ms();
    x->worker = worker;
    x->next = *at;
    *at = x; /* who has it last is asked first: it has given it to the fewest */
    m->holder_count++;
}

static void say_peer(struct holder *x, Ebb__ModelPeer *out)
{
    ebb__model_peer__init(out);
    out->endpoint = x->endpoint;
    out->key.data = (uint8_t *)x->key;
    out->key.len = 40;
}

/* The first of them has a place for one more, which is noted; the others are for when it fails. None: all that have it are busy. */
static size_t choose_peers(struct model *m, const char *host, Ebb__ModelPeer *peers)
{
    uint64_t now = clock_ms();
    struct holder *chosen = NULL;
    for (struct holder *x = m->holders; x && !chosen; x = x->next)
        if (has_place(x, now) >= 0)
            chosen = x;
    if (!chosen)
        return 0;
    int place = has_place(chosen, now);
    snprintf(chosen->takers[place].host, sizeof chosen->takers[place].host, "%s", host);
    chosen->takers[place].ms = now;
    size_t n = 0;
    say_peer(chosen, &peers[n++]);
    for (struct holder *x = m->holders; x && n < MOST_PEERS; x = x->next)
        if (x != chosen)
            say_peer(x, &peers[n++]);
    return n;
}

/* Answers ------------------------------------------------------------------------------------------------------------------------------------ */

static void say_plan(struct hand *h, struct task *t, struct model *m)
{
    const Ebb__ModelAsk *ask = t->m->model_ask;
    Ebb__ModelPlan p = EBB__MODEL_PLAN__INIT;
    Ebb__ModelFile *files = mem_array(m->files.count, sizeof *files), **files_at = mem_array(m->files.count, sizeof *files_at);
    Ebb__ModelPeer peers[MOST_PEERS], *peers_at[MOST_PEERS];
    if (!files || !files_at)
        relay_no_memory();
    for (size_t i = 0; i < m->files.count; i++) {
        ebb__model_file__init(&files[i]);
        files[i].name = m->files.items[i].name;
        files[i].size = m->files.items[i].size_bytes;
        files[i].digests.data = m->of[i].digests;
        files[i].digests.len = m->of[i].pieces * DIGEST;
        files_at[i] = &files[i];
    }
    remove_holder(m, ask->host); /* it would not ask if it had it */
    free_taker(m, ask->host);
    p.id = ask->id;
    p.entry = m->files.entry;
    p.piece = PIECE;
    p.files = files_at;
    p.n_files = m->files.count;
    p.pass.data = m->pass;
    p.pass.len = sizeof m->pass;
    p.n_peers = ask->alone ? 0 : choose_peers(m, ask->host, peers);
    for (size_t i = 0; i < p.n_peers; i++)
        peers_at[i] = &peers[i];
    p.peers = peers_at;
    if (!p.n_peers && (ask->alone || !m->holders))
        p.here = let_read(h->relay, m, ask->host, &t->peer->name);
    if (!p.n_peers && !p.here) { /* many may wait: they need no plan for that */
        p.wait_ms = WAIT_MS;
        p.n_files = 0;
    }
    relay_answer(t, EBB__ENVELOPE__BODY_MODEL_PLAN, &p);
    mem_free(files);
    mem_free(files_at);
}

static void say_piece(struct hand *h, struct task *t, struct model *m)
{
    const Ebb__ModelRead *ask = t->m->model_read;
    struct err e;
    enum status st = ST_OK;
    uint64_t size = ask->file < m->files.count ? m->files.items[ask->file].size_bytes : 0;
    size_t want = ask->offset < size ? (size - ask->offset < ask->length ? (size_t)(size - ask->offset) : ask->length) : 0;
    void *data = mem_alloc(want + 1);
    if (!data)
        relay_no_memory();
    if (ask->file >= m->files.count)
        st = err_set(&e, ST_USER, "the model has %zu files, none with the number %u", m->files.count, ask->file);
    else if (ask->pass.len != PASS || memcmp(ask->pass.data, m->pass, PASS) != 0)
        st = err_set(&e, ST_USER, "ask for the plan first");
    else
        st = read_piece(m, ask->file, ask->offset, data, want, &e);
    if (st == ST_OK)
        atomic_fetch_add(&h->relay->model_bytes, want);
    relay_say_data(t, ask->id, st, &e, size, data, want);
    mem_free(data);
}

static void say_no_plan(struct task *t, enum status st, const struct err *e)
{
    if (t->m->body_case == EBB__ENVELOPE__BODY_MODEL_READ) {
        relay_say_data(t, t->m->model_read->id, st, e, 0, NULL, 0);
        return;
    }
    Ebb__ModelPlan p = EBB__MODEL_PLAN__INIT;
    p.id = t->m->model_ask->id;
    p.code = (uint32_t)st;
    p.text = (char *)(uintptr_t)e->text;
    relay_answer(t, EBB__ENVELOPE__BODY_MODEL_PLAN, &p);
}

static void note(struct hand *h, struct task *t)
{
    const Ebb__ModelHave *have = t->m->model_have;
    struct model *m = find(h, have->digest.data);
    Ebb__ModelNoted noted = EBB__MODEL_NOTED__INIT;
    noted.id = have->id;
    if (m) {
        note_holder(m, have, relay_number(t->peer));
        noted.pass.data = m->pass;
        noted.pass.len = sizeof m->pass;
    }
    relay_answer(t, EBB__ENVELOPE__BODY_MODEL_NOTED, &noted);
}

void relay_model_run(struct hand *h, struct task *t)
{
    forget_ended(h);
    if (t->m->body_case == EBB__ENVELOPE__BODY_MODEL_HAVE) {
        note(h, t);
        return;
    }
    int ask = t->m->body_case == EBB__ENVELOPE__BODY_MODEL_ASK;
    const uint8_t *digest = ask ? t->m->model_ask->digest.data : t->m->model_read->digest.data;
    struct model *m = find(h, digest);
    if (ask && m && is_changed(m)) {
        struct model **at = (struct model **)&h->files;
        while (*at != m)
            at = &(*at)->next;
        *at = m->next;
        model_free(m);
        m = NULL;
    }
    struct err e;
    enum status st = ST_OK;
    if (!m && !t->again) {
        relay_ask(t);
        return;
    }
    if (!m) {
        st = t->st == ST_OK ? plan(digest, t->path, &m, &e) : err_set(&e, t->st, "%s", t->e.text);
        if (st == ST_OK) {
            m->next = h->files;
            h->files = m;
        }
    }
    if (st != ST_OK) {
        say_no_plan(t, st, &e);
    } else if (ask) {
        say_plan(h, t, m);
    } else {
        note_reading(m, &t->peer->name);
        say_piece(h, t, m);
    }
}
