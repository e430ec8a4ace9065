/* The relay of the real ebbd, asked over real sockets: by somebody who means well, by somebody who does not, and by somebody who is slow. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <xxhash.h>

#include "rig.h"

#define LINES 20000
#define MIB (1u << 20)

struct asker {
    struct sock *s;
    uint64_t id;
    Ebb__Envelope *answer; /* the last one */
};

/* By the name that the worker of this number has. */
static void open_asker(struct asker *a, struct rig *r, uint64_t number)
{
    struct err e;
    char endpoint[128];
    uint8_t name[8];
    for (int i = 0; i < 8; i++)
        name[i] = (uint8_t)(number >> (56 - 8 * i));
    *a = (struct asker){.id = number << 8};
    snprintf(endpoint, sizeof endpoint, "ipc://%s/relay", r->run);
    if (sock_dealer(r->zmq, endpoint, NULL, name, sizeof name, &a->s, &e) != ST_OK)
        RIG_FAIL("%s", e.text);
}

static void close_asker(struct asker *a)
{
    wire_free(a->answer);
    int none = 0;
    zmq_setsockopt(sock_zmq(a->s), ZMQ_LINGER, &none, sizeof none);
    sock_close(a->s);
}

static void hear(struct asker *a)
{
    struct err e;
    wire_free(a->answer);
    a->answer = NULL;
    for (uint64_t until = clock_ms() + PATIENCE_MS; clock_ms() < until;)
        if (sock_wait(a->s, 50) > 0 && sock_receive(a->s, NULL, &a->answer, &e) == ST_OK)
            return;
    RIG_FAIL("the relay does not answer");
}

static void say(struct asker *a, Ebb__Envelope__BodyCase which, void *body)
{
    struct err e;
    if (sock_send(a->s, NULL, which, body, &e) != ST_OK)
        RIG_FAIL("%s", e.text);
}

static void send_read(struct asker *a, uint64_t job, uint64_t source, const char *named, uint64_t offset, uint32_t length)
{
    Ebb__RelayRead m = EBB__RELAY_READ__INIT;
    m.id = ++a->id;
    m.job = job;
    m.source = source;
    m.named = (char *)(uintptr_t)named;
    m.offset = offset;
    m.length = length;
    say(a, EBB__ENVELOPE__BODY_RELAY_READ, &m);
}

static const Ebb__RelayData *ask_read(struct asker *a, uint64_t job, uint64_t source, const char *named, uint64_t offset, uint32_t length)
{
    send_read(a, job, source, named, offset, length);
    hear(a);
    assert_int_equal(a->answer->body_case, EBB__ENVELOPE__BODY_RELAY_DATA);
    assert_int_equal(a->answer->relay_data->id, a->id);
    return a->answer->relay_data;
}

static void want_refused(const Ebb__RelayData *d, enum status code, const char *words)
{
    assert_int_equal(d->code, code);
    assert_int_equal(d->data.len, 0);
    if (!strstr(d->text, words))
        RIG_FAIL("'%s' does not say '%s'", d->text, words);
}

static uint64_t submit(struct rig *r)
{
    char output[128];
    snprintf(output, sizeof output, "%s/out.jsonl", r->dir);
    return rig_number(rig_ask(r, "submit", rig_spec(r, output, NULL), 0), "job");
}

/* Works, without a commit, until it has a lease. */
static struct hand *get_lease(struct rig_worker *w)
{
    for (uint64_t until = clock_ms() + PATIENCE_MS; clock_ms() < until;) {
        rig_worker_turn(w, 5, 0);
        for (size_t i = 0; i < 8; i++)
            if (w->hands[i].open)
                return &w->hands[i];
    }
    RIG_FAIL("no lease came");
    return NULL;
}

static int setup(void **state)
{
    struct rig *r = malloc(sizeof *r);
    rig_open(r, LINES);
    rig_start(r, NULL, NULL);
    *state = r;
    return 0;
}

static int teardown(void **state)
{
    rig_close(*state);
    free(*state);
    return 0;
}

/* Reading ---------------------------------------------------------------------------------------------------------------------------- */

static void a_source_in_pieces(void **state)
{
    struct rig *r = *state;
    struct asker a;
    uint64_t job = submit(r);
    open_asker(&a, r, 7);
    for (uint64_t at = 0; at < r->text_len; at += 100000) {
        const Ebb__RelayData *d = ask_read(&a, job, 0, "", at, 100000);
        size_t want = r->text_len - at < 100000 ? r->text_len - at : 100000;
        assert_int_equal(d->code, ST_OK);
        assert_int_equal(d->size, r->text_len);
        assert_int_equal(d->data.len, want);
        assert_memory_equal(d->data.data, r->text + at, want);
    }
    assert_int_equal(ask_read(&a, job, 0, "", r->text_len, 1000)->data.len, 0);
    assert_int_equal(a.answer->relay_data->code, ST_OK);
    assert_int_equal(ask_read(&a, job, 0, "", UINT64_MAX, 1000)->data.len, 0);
    assert_int_equal(ask_read(&a, job, 0, "", 0, 0)->code, ST_OK);

    want_refused(ask_read(&a, job, 1, "", 0, 10), ST_USER, "has 1 sources, none with the number 1");
    want_refused(ask_read(&a, job, UINT64_MAX, "", 0, 10), ST_USER, "none with the number");
    want_refused(ask_read(&a, job + 1, 0, "", 0, 10), ST_USER, "is over, or was never here");
    want_refused(ask_read(&a, job, 0, "", 0, MIB + 1), ST_USER, "more bytes than a message may hold");
    want_refused(ask_read(&a, job, 0, "", 0, UINT32_MAX), ST_USER, "more bytes than a message may hold");

    /* growth is none of ours; a change is */
    int fd = open(r->input, O_WRONLY | O_APPEND);
    assert_int_equal(write(fd, "more\n", 5), 5);
    close(fd);
    assert_int_equal(ask_read(&a, job, 0, "", r->text_len, 1000)->data.len, 0);
    assert_int_equal(a.answer->relay_data->code, ST_OK);
    assert_int_equal(truncate(r->input, (off_t)r->text_len), 0);
    want_refused(ask_read(&a, job, 0, "", 0, 10), ST_USER, "changed since the job was submitted (it was written again");
    assert_int_equal(truncate(r->input, 100), 0);
    want_refused(ask_read(&a, job, 0, "", 0, 10), ST_USER, "changed since the job was submitted (it had");
    assert_int_equal(unlink(r->input), 0);
    want_refused(ask_read(&a, job, 0, "", 0, 10), ST_NOT_FOUND, "cannot open");
    close_asker(&a);
}

static void only_below_the_folder(void **state)
{
    struct rig *r = *state;
    struct asker a;
    char path[200], outside[200];
    uint64_t job = submit(r);
    open_asker(&a, r, 7);
    snprintf(path, sizeof path, "%s/pictures", r->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/pictures/a.jpg", r->dir);
    files_put(path, "picture", 7);
    snprintf(path, sizeof path, "%s/out", r->dir);
    assert_int_equal(symlink("/etc/hostname", path), 0);
    snprintf(path, sizeof path, "%s/fifo", r->dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    snprintf(outside, sizeof outside, "../%s/in.jsonl", strrchr(r->dir, '/') + 1);

    const Ebb__RelayData *d = ask_read(&a, job, 0, "pictures/a.jpg", 0, 100);
    assert_int_equal(d->code, ST_OK);
    assert_int_equal(d->size, 7);
    assert_memory_equal(d->data.data, "picture", 7);
    d = ask_read(&a, job, 0, "pictures/a.jpg", 4, 100);
    assert_int_equal(d->data.len, 3);
    want_refused(ask_read(&a, job, 0, "pictures/b.jpg", 0, 100), ST_USER, "cannot open 'pictures/b.jpg'");
    want_refused(ask_read(&a, job, 0, "/etc/hostname", 0, 100), ST_USER, "leads out of");
    want_refused(ask_read(&a, job, 0, "../../../../../../etc/hostname", 0, 100), ST_USER, "leads out of");
    want_refused(ask_read(&a, job, 0, outside, 0, 100), ST_USER, "leads out of");
    want_refused(ask_read(&a, job, 0, "out", 0, 100), ST_USER, "leads out of");
    want_refused(ask_read(&a, job, 0, "pictures", 0, 100), ST_USER, "no regular file");
    want_refused(ask_read(&a, job, 0, "fifo", 0, 100), ST_USER, "no regular file");
    char *longest = calloc(1, 5000);
    memset(longest, 'x', 4999);
    want_refused(ask_read(&a, job, 0, longest, 0, 100), ST_USER, "a name that is too long");
    free(longest);
    close_asker(&a);
}

static void a_token_is_of_the_bytes(void **state)
{
    struct rig *r = *state;
    struct asker a;
    uint64_t job = submit(r), first = 0;
    open_asker(&a, r, 7);
    for (int round = 0; round < 2; round++) {
        Ebb__RelayLook m = EBB__RELAY_LOOK__INIT;
        m.id = ++a.id;
        m.job = job;
        say(&a, EBB__ENVELOPE__BODY_RELAY_LOOK, &m);
        hear(&a);
        assert_int_equal(a.answer->body_case, EBB__ENVELOPE__BODY_RELAY_TOKEN);
        const Ebb__RelayToken *t = a.answer->relay_token;
        assert_int_equal(t->code, ST_OK);
        assert_true(t->n_at > 8 && t->each >= 4096);
        XXH3_state_t *x = XXH3_createState();
        XXH3_128bits_reset(x);
        for (size_t i = 0; i < t->n_at; i++) {
            assert_true(t->at[i] < r->text_len);
            uint64_t left = r->text_len - t->at[i];
            XXH3_128bits_update(x, r->text + t->at[i], left < t->each ? left : t->each);
        }
        XXH128_canonical_t c;
        XXH128_canonicalFromHash(&c, XXH3_128bits_digest(x));
        XXH3_freeState(x);
        assert_int_equal(t->digest.len, 16);
        assert_memory_equal(t->digest.data, c.digest, 16);
        if (round)
            assert_true(t->at[3] != first); /* nobody can prepare for it */
        first = t->at[3];
    }
    close_asker(&a);
}

/* Writing ---------------------------------------------------------------------------------------------------------------------------- */

static const Ebb__RelayMarked *ask_mark(struct asker *a, uint64_t job, const char *nonce)
{
    Ebb__RelayMark m = EBB__RELAY_MARK__INIT;
    m.id = ++a->id;
    m.job = job;
    m.nonce = (char *)(uintptr_t)nonce;
    say(a, EBB__ENVELOPE__BODY_RELAY_MARK, &m);
    hear(a);
    return a->answer->body_case == EBB__ENVELOPE__BODY_RELAY_MARKED ? a->answer->relay_marked : NULL;
}

static void a_mark_is_seen_where_it_stands(void **state)
{
    struct rig *r = *state;
    struct asker a;
    struct rig_worker w;
    char nonce[40], path[PATH_MAX + 100];
    uint64_t job = submit(r);
    rig_worker_open(&w, r, 0x1234);
    get_lease(&w);
    open_asker(&a, r, 0x1234);
    const Ebb__RelayMarked *m = ask_mark(&a, job, "");
    assert_int_equal(m->code, ST_OK);
    assert_int_equal(strlen(m->nonce), 32);
    snprintf(nonce, sizeof nonce, "%s", m->nonce);
    assert_int_equal(ask_mark(&a, job, nonce)->code, ST_NOT_FOUND);
    snprintf(path, sizeof path, "%s/%" PRIu64 "/.see-%s", w.parts_dir, job, nonce);
    files_put(path, "another text, which is not the nonce", 36);
    assert_int_equal(ask_mark(&a, job, nonce)->code, ST_NOT_FOUND);
    files_put(path, nonce, 32);
    assert_int_equal(ask_mark(&a, job, nonce)->code, ST_OK);
    assert_int_equal(access(path, F_OK), -1); /* it leaves nothing behind */
    assert_null(ask_mark(&a, job, "../../../../../../../etc/hostna"));
    want_refused(a.answer->relay_data, ST_USER, "never given out");
    assert_null(ask_mark(&a, job, "0123456789abcdef0123456789abcde/"));
    assert_int_equal(ask_mark(&a, job + 5, "")->code, ST_USER);
    close_asker(&a);
    rig_worker_close(&w);
}

struct blob {
    uint64_t job, epoch, seq, size;
    uint8_t digest[16];
    const char *bytes;
};

static struct blob blob_of(const struct hand *h, const char *bytes, size_t size)
{
    struct blob b = {h->job, h->epoch, h->seq, size, {0}, bytes};
    XXH128_canonical_t c;
    XXH128_canonicalFromHash(&c, XXH3_128bits(bytes, size));
    memcpy(b.digest, c.digest, 16);
    return b;
}

static const Ebb__RelayPartAt *ask_part(struct asker *a, const struct blob *b, uint64_t offset, size_t len)
{
    Ebb__RelayPart m = EBB__RELAY_PART__INIT;
    m.id = ++a->id;
    m.job = b->job;
    m.epoch = b->epoch;
    m.seq = b->seq;
    m.size = b->size;
    m.digest.data = (uint8_t *)(uintptr_t)b->digest;
    m.digest.len = 16;
    m.offset = offset;
    m.data.data = (uint8_t *)(uintptr_t)b->bytes + (offset < b->size ? offset : 0);
    m.data.len = len;
    say(a, EBB__ENVELOPE__BODY_RELAY_PART, &m);
    hear(a);
    assert_int_equal(a->answer->body_case, EBB__ENVELOPE__BODY_RELAY_PART_AT);
    assert_int_equal(a->answer->relay_part_at->id, a->id);
    return a->answer->relay_part_at;
}

#define WANT(answer, want_code, want_at, want_done)                                                                              \
    do {                                                                                                                         \
        const Ebb__RelayPartAt *got_ = (answer);                                                                                 \
        if (got_->code != (want_code) || got_->at != (want_at) || got_->done != (want_done))                                     \
            RIG_FAIL("line %d: code %u (%s), at %" PRIu64 ", done %d", __LINE__, got_->code, got_->text, got_->at, got_->done);  \
    } while (0)

/* What rig_make_part would write itself. */
static void read_part(struct rig_worker *w, struct hand *h, struct buf *out, char *path, size_t size)
{
    struct err e;
    rig_make_part(w, h);
    part_path(path, size, w->parts_dir, h->job, h->epoch, h->seq);
    assert_int_equal(path_read(path, 1 << 26, out, &e), ST_OK);
    assert_int_equal(unlink(path), 0);
}

static void a_part_is_written_once(void **state)
{
    struct rig *r = *state;
    struct asker a;
    struct rig_worker w;
    struct buf bytes = {0}, there = {0};
    struct err e;
    char path[PATH_MAX];
    submit(r);
    rig_worker_open(&w, r, 0x1234);
    w.chunk_bytes = 100000;
    struct hand *h = get_lease(&w);
    open_asker(&a, r, 0x1234);
    read_part(&w, h, &bytes, path, sizeof path);
    struct blob b = blob_of(h, bytes.data, bytes.len);
    assert_true(b.size > 60000);

    WANT(ask_part(&a, &b, 0, 1000), ST_AGAIN, 0, 0); /* nobody began it */
    WANT(ask_part(&a, &b, 0, 0), ST_OK, 0, 0);
    assert_true(a.answer->relay_part_at->credit >= MIB);
    WANT(ask_part(&a, &b, 0, 10000), ST_OK, 10000, 0);
    WANT(ask_part(&a, &b, 0, 10000), ST_OK, 10000, 0);     /* again */
    WANT(ask_part(&a, &b, 5000, 10000), ST_OK, 15000, 0);  /* half of it again */
    WANT(ask_part(&a, &b, 20000, 1000), ST_OK, 15000, 0);  /* something was lost before it */
    assert_int_equal(access(path, F_OK), -1);              /* no name before it is whole */
    WANT(ask_part(&a, &b, 15000, b.size - 15000), ST_OK, b.size, 1);
    assert_int_equal(path_read(path, 1 << 26, &there, &e), ST_OK);
    assert_int_equal(there.len, bytes.len);
    assert_memory_equal(there.data, bytes.data, bytes.len);

    WANT(ask_part(&a, &b, b.size - 10, 10), ST_AGAIN, 0, 0); /* the last answer was lost: from the beginning, and it is there */
    WANT(ask_part(&a, &b, 0, 0), ST_OK, b.size, 1);
    struct blob other = blob_of(h, r->text + 1, bytes.len); /* a name is never used twice */
    WANT(ask_part(&a, &other, 0, 0), ST_CORRUPT, 0, 0);

    rig_commit(&w, h);
    while (w.acks == 0)
        rig_worker_turn(&w, 5, 0);
    assert_int_equal(w.stale, 0);
    assert_int_equal(h->seq, 1);
    buf_release(&bytes);
    buf_release(&there);
    close_asker(&a);
    rig_worker_close(&w);
}

static void wrong_bytes_and_wrong_owners(void **state)
{
    struct rig *r = *state;
    struct asker a, thief;
    struct rig_worker w, other;
    char path[PATH_MAX];
    uint64_t job = submit(r);
    rig_worker_open(&w, r, 0x1234);
    struct hand *h = get_lease(&w);
    rig_worker_open(&other, r, 0x5678);
    while (!other.welcomed)
        rig_worker_turn(&other, 5, 0);
    open_asker(&a, r, 0x1234);
    open_asker(&thief, r, 0x5678);
    struct blob b = blob_of(h, r->text, 50000);
    part_path(path, sizeof path, w.parts_dir, b.job, b.epoch, b.seq);

    /* not its lease; no lease; no job; no lease of that job */
    WANT(ask_part(&thief, &b, 0, 0), ST_USER, 0, 0);
    struct blob stale = b;
    stale.epoch = b.epoch - 1;
    WANT(ask_part(&a, &stale, 0, 0), ST_USER, 0, 0);
    stale.epoch = b.epoch + 1;
    WANT(ask_part(&a, &stale, 0, 0), ST_USER, 0, 0);
    stale = b;
    stale.job = job + 1;
    WANT(ask_part(&a, &stale, 0, 0), ST_USER, 0, 0);

    /* bytes that are not those of the digest */
    struct blob wrong = b;
    wrong.digest[3] ^= 1;
    WANT(ask_part(&a, &wrong, 0, 0), ST_OK, 0, 0);
    WANT(ask_part(&a, &wrong, 0, 50000), ST_CORRUPT, 0, 0);
    assert_int_equal(access(path, F_OK), -1);

    /* nobody else goes on with it, and no other size or digest does */
    WANT(ask_part(&a, &b, 0, 0), ST_OK, 0, 0);
    WANT(ask_part(&a, &b, 0, 20000), ST_OK, 20000, 0);
    WANT(ask_part(&thief, &b, 20000, 30000), ST_AGAIN, 0, 0);
    struct blob longer = b;
    longer.size++;
    WANT(ask_part(&a, &longer, 20000, 1000), ST_AGAIN, 0, 0);
    WANT(ask_part(&a, &wrong, 20000, 1000), ST_AGAIN, 0, 0);

    /* nonsense */
    WANT(ask_part(&a, &b, UINT64_MAX - 5, 1000), ST_USER, 0, 0);
    WANT(ask_part(&a, &b, 49000, 2000), ST_USER, 0, 0);
    longer.size = UINT64_MAX;
    WANT(ask_part(&a, &longer, 0, 0), ST_USER, 0, 0);
    Ebb__RelayPart m = EBB__RELAY_PART__INIT; /* no digest */
    m.id = ++a.id;
    m.size = 10;
    say(&a, EBB__ENVELOPE__BODY_RELAY_PART, &m);
    hear(&a);
    assert_int_equal(a.answer->relay_part_at->code, ST_USER);
    Ebb__Hello hello = EBB__HELLO__INIT; /* at the wrong door */
    say(&a, EBB__ENVELOPE__BODY_HELLO, &hello);
    hear(&a);
    want_refused(a.answer->relay_data, ST_USER, "no worker sends to the relay");
    zmq_send(sock_zmq(a.s), "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 11, 0); /* no message at all */
    zmq_send(sock_zmq(a.s), "", 0, 0);

    /* and all the while the part stands where it stood */
    WANT(ask_part(&a, &b, 20000, 30000), ST_OK, 50000, 1);
    assert_int_equal(access(path, F_OK), 0);

    close_asker(&a);
    close_asker(&thief);
    rig_worker_close(&w);
    rig_worker_close(&other);
}

static void a_message_that_is_too_long_is_not_read(void **state)
{
    struct rig *r = *state;
    struct asker a;
    struct err e;
    uint64_t job = submit(r);
    open_asker(&a, r, 7);
    Ebb__RelayPart m = EBB__RELAY_PART__INIT;
    m.size = 8 * MIB;
    m.digest.len = 16;
    m.digest.data = (uint8_t *)(uintptr_t)r->text;
    m.data.len = 2 * MIB;
    m.data.data = calloc(1, m.data.len);
    assert_int_equal(sock_send(a.s, NULL, EBB__ENVELOPE__BODY_RELAY_PART, &m, &e), ST_OK);
    free(m.data.data);
    /* the connection is shut, a new one is made, and ebbd is well; the question may be lost with the old one */
    for (uint64_t until = clock_ms() + PATIENCE_MS;;) {
        send_read(&a, job, 0, "", 0, 10);
        if (sock_wait(a.s, 300) > 0)
            break;
        if (clock_ms() > until)
            RIG_FAIL("the relay does not answer any more");
    }
    hear(&a);
    assert_int_equal(a.answer->relay_data->code, ST_OK);
    close_asker(&a);
}

static void a_part_goes_on_over_a_restart(void **state)
{
    struct rig *r = *state;
    struct asker a;
    struct rig_worker w;
    char path[PATH_MAX];
    submit(r);
    rig_worker_open(&w, r, 0x1234);
    struct hand *h = get_lease(&w);
    open_asker(&a, r, 0x1234);
    struct blob b = blob_of(h, r->text, 60000);
    part_path(path, sizeof path, w.parts_dir, b.job, b.epoch, b.seq);
    WANT(ask_part(&a, &b, 0, 0), ST_OK, 0, 0);
    WANT(ask_part(&a, &b, 0, 30000), ST_OK, 30000, 0);
    rig_end(r, SIGKILL);
    rig_start(r, NULL, NULL);
    WANT(ask_part(&a, &b, 30000, 30000), ST_AGAIN, 0, 0);
    for (uint64_t until = clock_ms() + PATIENCE_MS;; rig_worker_turn(&w, 5, 0)) { /* until its Hello is heard */
        const Ebb__RelayPartAt *at = ask_part(&a, &b, 0, 0);
        if (at->code == ST_OK)
            break;
        assert_true(at->code == ST_USER || at->code == ST_AGAIN);
        assert_true(clock_ms() < until);
    }
    WANT(ask_part(&a, &b, 0, 60000), ST_OK, 60000, 1);
    assert_int_equal(access(path, F_OK), 0);
    close_asker(&a);
    rig_worker_close(&w);
}

static void failed_writes_condemn(void **state)
{
    struct rig *r = *state;
    struct asker a;
    struct rig_worker w;
    char path[PATH_MAX];
    static const char *const faults[] = {"relay.part.open:1:EACCES", "relay.part.write:2:ENOSPC", "relay.part.fsync:1:EIO", "relay.part.name:1:EIO",
                                         "relay.part.dirsync:1:EIO"};
    submit(r);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        rig_end(r, SIGKILL);
        rig_start(r, faults[i], NULL);
        rig_worker_open(&w, r, 0x1234 + i);
        struct hand *h = get_lease(&w);
        open_asker(&a, r, 0x1234 + i);
        struct blob b = blob_of(h, r->text, 40000);
        part_path(path, sizeof path, w.parts_dir, b.job, b.epoch, b.seq);
        int failed = 0;
        const Ebb__RelayPartAt *at = ask_part(&a, &b, 0, 0);
        for (uint64_t offset = 0; at->code == ST_OK && !at->done; offset += 20000)
            at = ask_part(&a, &b, offset, 20000);
        failed = at->code == ST_ENV;
        if (!failed)
            RIG_FAIL("%s: code %u (%s)", faults[i], at->code, at->text);
        assert_int_equal(access(path, F_OK), -1);
        /* once more, and it goes well */
        WANT(ask_part(&a, &b, 0, 0), ST_OK, 0, 0);
        WANT(ask_part(&a, &b, 0, 40000), ST_OK, 40000, 1);
        assert_int_equal(access(path, F_OK), 0);
        assert_int_equal(unlink(path), 0);
        close_asker(&a);
        rig_worker_close(&w);
    }
}

/* Slow ones ----------------------------------------------------------------------------------------------------------------------------- */

static uint64_t resident_kib(pid_t pid)
{
    char path[64], line[200];
    uint64_t kib = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "VmRSS: %" SCNu64, &kib) == 1)
            break;
    fclose(f);
    return kib;
}

#define SLOW 30
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SHADOW 8 /* times the memory, for what watches it */
#else
#define SHADOW 1
#endif

/* Thirty workers ask for 64 MiB each and take nothing: ebbd keeps 8 MiB for each at most and 128 MiB for all; then they take it, and everything comes. */
static void who_does_not_take_costs_little(void **state)
{
    struct rig *r = *state;
    struct asker slow[SLOW], quick;
    uint64_t job;
    char *big = malloc(2 * MIB);
    for (size_t i = 0; i < 2 * MIB; i++)
        big[i] = i % 64 == 63 ? '\n' : (char)('a' + i % 26);
    files_put(r->input, big, 2 * MIB);
    job = submit(r);
    open_asker(&quick, r, 99);
    ask_read(&quick, job, 0, "", 0, MIB); /* whatever it takes for one is there */
    uint64_t before = resident_kib(r->ebbd);
    int few = 2; /* messages that our own end keeps without being asked: what is more stays with ebbd */
    for (int i = 0; i < SLOW; i++) {
        struct err e;
        char endpoint[128], name[16];
        snprintf(endpoint, sizeof endpoint, "ipc://%s/relay", r->run);
        snprintf(name, sizeof name, "slow-%d", i);
        slow[i] = (struct asker){.id = (uint64_t)i << 32};
        void *s = zmq_socket(r->zmq, ZMQ_DEALER);
        zmq_setsockopt(s, ZMQ_RCVHWM, &few, sizeof few);
        zmq_setsockopt(s, ZMQ_ROUTING_ID, name, strlen(name));
        assert_int_equal(zmq_connect(s, endpoint), 0);
        for (int k = 0; k < 64; k++) {
            struct buf b = {0};
            Ebb__RelayRead m = EBB__RELAY_READ__INIT;
            m.id = ++slow[i].id;
            m.job = job;
            m.offset = (uint64_t)(k % 2) * MIB;
            m.length = MIB;
            assert_int_equal(wire_encode(EBB__ENVELOPE__BODY_RELAY_READ, &m, &b, &e), ST_OK);
            assert_true(zmq_send(s, b.data, b.len, 0) > 0);
            buf_release(&b);
        }
        slow[i].s = s;
    }
    /* the others are served all the while */
    for (int k = 0; k < 50; k++)
        assert_int_equal(ask_read(&quick, job, 0, "", 0, 1000)->code, ST_OK);
    uint64_t most = 0;
    for (int k = 0; k < 20; k++) {
        clock_sleep_ms(20);
        uint64_t now = resident_kib(r->ebbd);
        most = now > most ? now : most;
    }
    if (most > before + SHADOW * 200 * 1024)
        RIG_FAIL("%" PRIu64 " MiB became %" PRIu64 " MiB", before >> 10, most >> 10);
    /* each has asked for what would be 1.9 GiB in all */
    for (int i = 0; i < SLOW; i++)
        for (int k = 0; k < 64; k++) {
            zmq_msg_t m;
            Ebb__Envelope *answer;
            struct err e;
            zmq_msg_init(&m);
            int wait = PATIENCE_MS;
            zmq_setsockopt(slow[i].s, ZMQ_RCVTIMEO, &wait, sizeof wait);
            assert_true(zmq_msg_recv(&m, (void *)slow[i].s, 0) > 0);
            assert_int_equal(wire_decode(zmq_msg_data(&m), zmq_msg_size(&m), &answer, &e), ST_OK);
            assert_int_equal(answer->relay_data->code, ST_OK);
            assert_int_equal(answer->relay_data->data.len, MIB);
            wire_free(answer);
            zmq_msg_close(&m);
        }
    for (int i = 0; i < SLOW; i++)
        zmq_close((void *)slow[i].s);
    close_asker(&quick);
    free(big);
}

/* Who asks for more than it may have at once is told so, and what it may have comes. */
static void too_many_questions(void **state)
{
    struct rig *r = *state;
    struct asker a;
    uint64_t job = submit(r), good = 0, refused = 0;
    open_asker(&a, r, 7);
    for (int i = 0; i < 500; i++)
        send_read(&a, job, 0, "", 0, MIB);
    for (int i = 0; i < 500; i++) {
        hear(&a);
        good += a.answer->relay_data->code == ST_OK;
        refused += a.answer->relay_data->code == ST_USER && strstr(a.answer->relay_data->text, "too many questions at once") != NULL;
    }
    assert_int_equal(good + refused, 500);
    assert_true(good >= 64);
    close_asker(&a);
}

/* Peers that go while answers are on their way take nothing with them. */
static void who_goes_gives_its_room_back(void **state)
{
    struct rig *r = *state;
    uint64_t job = submit(r);
    struct asker a;
    for (uint64_t round = 0; round < 40; round++) {
        open_asker(&a, r, 1000 + round);
        for (int k = 0; k < 60; k++)
            send_read(&a, job, 0, "", 0, MIB);
        if (round % 2)
            hear(&a);
        close_asker(&a);
    }
    open_asker(&a, r, 5);
    for (int k = 0; k < 300; k++)
        assert_int_equal(ask_read(&a, job, 0, "", 0, MIB)->code, ST_OK);
    close_asker(&a);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_source_in_pieces), TEST(only_below_the_folder), TEST(a_token_is_of_the_bytes), TEST(a_mark_is_seen_where_it_stands),
        TEST(a_part_is_written_once), TEST(wrong_bytes_and_wrong_owners), TEST(a_message_that_is_too_long_is_not_read),
        TEST(a_part_goes_on_over_a_restart), TEST(failed_writes_condemn), TEST(who_does_not_take_costs_little), TEST(too_many_questions),
        TEST(who_goes_gives_its_room_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
