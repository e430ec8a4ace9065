/* The worker's end of the relay against a daemon that says what the test wants: wrong sizes, wrong bytes, names that lead out, nothing at all. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <pthread.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/path.h"
#include "tests/lib/files.h"
#include "workers/remote/inside.h"

#define PIECE 4096
#define SIZE (6u << 20)

enum lie {
    HONEST, SHORT, LONG, SAY_AGAIN, SAY_CHANGED, SAY_NONSENSE, /* of sources */
    BAD_BYTES, ESCAPE, ABSOLUTE, HIDDEN, TWICE, NO_DIGESTS, HUGE_FILE, NO_ENTRY, WAIT_FIRST, /* of models */
    FORGET_ONCE, NEVER_YOURS, BAD_DIGEST /* of parts */
};

struct rig {
    char dir[64], endpoint[128], relay[128], models[128];
    void *context;
    pthread_t thread;
    pthread_mutex_t lock;
    int running, quit;
    enum lie lie;
    int lies;             /* so many times; then honest */
    _Atomic uint64_t asked, asked_to, model_reads, plans; /* questions for sources; the last byte asked for */
    struct buf part;      /* what came of it */
    struct remote *r;
};

static char *text; /* of the only source */

static void fill(void)
{
    text = malloc(SIZE);
    for (size_t i = 0; i < SIZE; i++)
        text[i] = (char)("abcdefghijklmnopqrstuvwxyz\n"[(i * 31 + i / 97) % 27]);
}

static int lies(struct rig *g)
{
    if (!g->lies)
        return 0;
    g->lies--;
    return 1;
}

static void say(struct sock *s, const struct sock_peer *peer, Ebb__Envelope__BodyCase which, void *body)
{
    struct err e;
    if (sock_send(s, peer, which, body, &e) != ST_OK)
        printf("the test's daemon cannot answer: %s\n", e.text);
}

static void on_read(struct rig *g, struct sock *s, const struct sock_peer *peer, const Ebb__RelayRead *m)
{
    Ebb__RelayData d = EBB__RELAY_DATA__INIT;
    g->asked++;
    g->asked_to = m->offset + m->length > g->asked_to ? m->offset + m->length : g->asked_to;
    d.id = m->id;
    d.size = SIZE;
    d.data.data = (uint8_t *)text + m->offset;
    d.data.len = m->offset + m->length <= SIZE ? m->length : SIZE - m->offset;
    if (g->lie != HONEST && lies(g))
        switch (g->lie) {
        case SHORT:
            d.data.len /= 2;
            break;
        case LONG:
            d.data.data = (uint8_t *)text;
            d.data.len += 7;
            break;
        case SAY_AGAIN:
            d.code = ST_AGAIN;
            d.text = "not now";
            d.data.len = 0;
            break;
        case SAY_CHANGED:
            d.code = ST_USER;
            d.text = "'x' changed since the job was submitted (it is another)";
            d.data.len = 0;
            break;
        default: {
            d.code = 4711;
            d.text = "what is this";
            d.data.len = 0;
            break;
        }
        }
    say(s, peer, EBB__ENVELOPE__BODY_RELAY_DATA, &d);
}

static const char *const names[] = {"config.json", "deep/er/weights.bin", "empty.txt", "tokenizer.json"};
static const size_t sizes[] = {100, 100000, 0, PIECE};

static void on_plan(struct rig *g, struct sock *s, const struct sock_peer *peer, const Ebb__ModelAsk *m)
{
    uint8_t digests[4][32 * 32];
    Ebb__ModelFile files[4], *at[4];
    Ebb__ModelPlan p = EBB__MODEL_PLAN__INIT;
    int lie = g->lie != HONEST && g->lie != BAD_BYTES && lies(g);
    g->plans++;
    for (int i = 0; i < 4; i++) {
        ebb__model_file__init(&files[i]);
        files[i].name = (char *)(uintptr_t)names[i];
        files[i].size = sizes[i];
        size_t n = (sizes[i] + PIECE - 1) / PIECE;
        for (size_t k = 0; k < n; k++)
            crypto_generichash(digests[i] + 32 * k, 32, (uint8_t *)text + k * PIECE + (size_t)i, k + 1 < n ? PIECE : sizes[i] - k * PIECE, NULL, 0);
        files[i].digests.data = digests[i];
        files[i].digests.len = 32 * n;
        at[i] = &files[i];
    }
    p.id = m->id;
    p.entry = "";
    p.piece = PIECE;
    p.files = at;
    p.n_files = 4;
    p.here = 1;
    if (lie)
        switch (g->lie) {
        case ESCAPE:
            files[1].name = "deep/../../../escaped";
            break;
        case ABSOLUTE:
            files[0].name = "/tmp/ebb-remote-test-absolute";
            break;
        case HIDDEN:
            files[0].name = ".entry";
            break;
        case TWICE:
            files[1].name = files[0].name;
            break;
        case NO_DIGESTS:
            files[1].digests.len -= 32;
            break;
        case HUGE_FILE:
            files[1].size = UINT64_MAX;
            break;
        case NO_ENTRY:
            p.entry = "../other.onnx";
            break;
        default:
            p.here = 0;
            p.n_files = 0;
            p.wait_ms = 50;
            break;
        }
    say(s, peer, EBB__ENVELOPE__BODY_MODEL_PLAN, &p);
}

static void on_piece(struct rig *g, struct sock *s, const struct sock_peer *peer, const Ebb__ModelRead *m)
{
    Ebb__RelayData d = EBB__RELAY_DATA__INIT;
    char bytes[PIECE];
    g->model_reads++;
    memcpy(bytes, text + m->offset + m->file, m->length);
    if (g->lie == BAD_BYTES && m->file == 1 && m->offset == 2 * PIECE && lies(g))
        bytes[5] ^= 1;
    d.id = m->id;
    d.size = sizes[m->file];
    d.data.data = (uint8_t *)bytes;
    d.data.len = m->length;
    say(s, peer, EBB__ENVELOPE__BODY_RELAY_DATA, &d);
}

static void on_part(struct rig *g, struct sock *s, const struct sock_peer *peer, const Ebb__RelayPart *m)
{
    Ebb__RelayPartAt a = EBB__RELAY_PART_AT__INIT;
    a.id = m->id;
    a.credit = 2u << 20;
    if (g->lie == NEVER_YOURS) {
        a.code = ST_USER;
        a.text = "not held by this worker";
    } else if (!m->data.len) {
        buf_clear(&g->part);
    } else if (g->lie == FORGET_ONCE && g->part.len > (3u << 20) && lies(g)) {
        buf_clear(&g->part);
        g->lie = HONEST;
        a.code = ST_AGAIN;
        a.text = "begin the part again";
    } else if (m->offset != g->part.len) {
        a.code = ST_AGAIN;
        a.text = "begin the part again";
    } else if (buf_add(&g->part, m->data.data, m->data.len)) {
        abort();
    }
    if (!a.code)
        a.at = g->part.len;
    a.done = !a.code && a.at == m->size;
    if (a.done && g->lie == BAD_DIGEST) {
        a.code = ST_CORRUPT;
        a.text = "the bytes that came are not those of its digest";
        a.done = 0;
    }
    say(s, peer, EBB__ENVELOPE__BODY_RELAY_PART_AT, &a);
}

static void *serve(void *arg)
{
    struct rig *g = arg;
    struct sock *s;
    struct err e;
    if (sock_router(g->context, g->relay, NULL, &s, &e) != ST_OK) {
        printf("%s\n", e.text);
        abort();
    }
    for (;;) {
        pthread_mutex_lock(&g->lock);
        int quit = g->quit;
        pthread_mutex_unlock(&g->lock);
        if (quit)
            break;
        struct sock_peer peer;
        Ebb__Envelope *m;
        if (sock_wait(s, 20) <= 0 || sock_receive(s, &peer, &m, &e) != ST_OK)
            continue;
        pthread_mutex_lock(&g->lock);
        if (m->body_case == EBB__ENVELOPE__BODY_RELAY_READ)
            on_read(g, s, &peer, m->relay_read);
        else if (m->body_case == EBB__ENVELOPE__BODY_MODEL_ASK)
            on_plan(g, s, &peer, m->model_ask);
        else if (m->body_case == EBB__ENVELOPE__BODY_MODEL_READ)
            on_piece(g, s, &peer, m->model_read);
        else if (m->body_case == EBB__ENVELOPE__BODY_RELAY_PART)
            on_part(g, s, &peer, m->relay_part);
        pthread_mutex_unlock(&g->lock);
        wire_free(m);
    }
    sock_close(s);
    return NULL;
}

static void start(struct rig *g)
{
    g->quit = 0;
    assert_int_equal(pthread_create(&g->thread, NULL, serve, g), 0);
    g->running = 1;
}

static void stop(struct rig *g)
{
    if (!g->running)
        return;
    pthread_mutex_lock(&g->lock);
    g->quit = 1;
    pthread_mutex_unlock(&g->lock);
    pthread_join(g->thread, NULL);
    g->running = 0;
}

static int setup(void **state)
{
    struct rig *g = calloc(1, sizeof *g);
    struct err e;
    strcpy(g->dir, "/tmp/ebb-remote-XXXXXX");
    assert_non_null(mkdtemp(g->dir));
    snprintf(g->endpoint, sizeof g->endpoint, "ipc://%s/workers", g->dir);
    snprintf(g->relay, sizeof g->relay, "ipc://%s/relay", g->dir);
    snprintf(g->models, sizeof g->models, "%s/models", g->dir);
    pthread_mutex_init(&g->lock, NULL);
    g->context = zmq_ctx_new();
    const struct remote_opts o = {.endpoint = g->endpoint, .number = 7, .host = "h", .model_dir = g->models, .model_bytes = 250000};
    assert_int_equal(remote_new(&o, &g->r, &e), ST_OK);
    assert_int_equal(remote_far(g->r), 0);
    remote_welcome(g->r, 1, "0123456789abcdef", 16, 1);
    assert_int_equal(remote_far(g->r), 1);
    start(g);
    *state = g;
    return 0;
}

static int teardown(void **state)
{
    struct rig *g = *state;
    struct err e;
    remote_free(g->r);
    stop(g);
    zmq_ctx_term(g->context);
    buf_release(&g->part);
    pthread_mutex_destroy(&g->lock);
    assert_int_equal(path_remove_tree(g->dir, &e), ST_OK);
    free(g);
    return 0;
}

static void lie(struct rig *g, enum lie what, int times)
{
    pthread_mutex_lock(&g->lock);
    g->lie = what;
    g->lies = times;
    g->asked = g->asked_to = g->model_reads = g->plans = 0;
    pthread_mutex_unlock(&g->lock);
}

/* Sources -------------------------------------------------------------------------------------------------------------------------- */

static enum status read_source(struct rig *g, uint64_t from, uint64_t until, uint64_t want, struct err *e)
{
    struct source s = {.path = "x", .size_bytes = SIZE, .via = &g->r->far, .job = 1, .until = until};
    struct source_file in;
    static char block[70001];
    TRY(source_open(&s, from, &in, e));
    enum status st = ST_OK;
    for (uint64_t at = from; st == ST_OK && at < want;) {
        size_t got;
        st = source_read(&in, block, sizeof block, &got, e);
        if (st == ST_OK && (got == 0 || memcmp(block, text + at, got) != 0))
            st = err_set(e, ST_CORRUPT, "%zu other bytes at %llu", got, (unsigned long long)at);
        at += st == ST_OK ? got : 0;
    }
    source_close(&in);
    return st;
}

static void whole_sources_and_parts_of_them(void **state)
{
    struct rig *g = *state;
    struct err e;
    assert_int_equal(read_source(g, 0, 0, SIZE, &e), ST_OK);
    assert_int_equal(read_source(g, 12345, 0, SIZE, &e), ST_OK);
    assert_int_equal(read_source(g, SIZE, 0, SIZE, &e), ST_OK);
    /* nothing far behind where the reader is expected to stop is asked for, unless it goes on */
    lie(g, HONEST, 0);
    assert_int_equal(read_source(g, 100000, 400000, 400000, &e), ST_OK);
    assert_true(g->asked_to <= 400000 + REMOTE_CHUNK);
    assert_int_equal(read_source(g, 100000, 400000, SIZE, &e), ST_OK);
    /* who reads little of a large source makes few questions */
    lie(g, HONEST, 0);
    assert_int_equal(read_source(g, 0, 0, 1000, &e), ST_OK);
    assert_true(g->asked <= 2);
}

static void what_is_wrong_with_a_source(void **state)
{
    struct rig *g = *state;
    struct err e;
    lie(g, SAY_AGAIN, 3);
    assert_int_equal(read_source(g, 0, 0, SIZE, &e), ST_OK);
    lie(g, SHORT, 1);
    assert_int_equal(read_source(g, 0, 0, SIZE, &e), ST_ENV);
    lie(g, LONG, 1);
    assert_int_equal(read_source(g, 0, 0, SIZE, &e), ST_ENV);
    assert_non_null(strstr(e.text, "where 262144 were asked for"));
    lie(g, SAY_CHANGED, 1);
    assert_int_equal(read_source(g, 0, 0, SIZE, &e), ST_USER);
    assert_string_equal(e.text, "'x' changed since the job was submitted (it is another)");
    lie(g, SAY_NONSENSE, 1);
    assert_int_equal(read_source(g, 0, 0, SIZE, &e), ST_ENV);
    lie(g, HONEST, 0);
    assert_int_equal(read_source(g, 0, 0, SIZE, &e), ST_OK);
}

static void *start_late(void *arg)
{
    clock_sleep_ms(300);
    start(arg);
    return NULL;
}

static void the_daemon_goes_and_comes_back(void **state)
{
    struct rig *g = *state;
    struct err e;
    pthread_t late;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(read_source(g, 0, 0, 1000, &e), ST_OK);
        stop(g);
        assert_int_equal(pthread_create(&late, NULL, start_late, g), 0);
        assert_int_equal(read_source(g, 0, 0, SIZE, &e), ST_OK);
        pthread_join(late, NULL);
    }
}

static void ahead_of_the_reader(void **state)
{
    struct rig *g = *state;
    struct err e;
    struct source s = {.path = "/there/is/no/such/file", .size_bytes = SIZE};
    remote_soon(g->r, 1, 5, &s); /* nothing is known of its folder */
    remote_distrust(g->r, &s, "the test says so");
    lie(g, HONEST, 0);
    for (uint64_t i = 0; i < 100; i++)
        remote_soon(g->r, 1, 5 + i % 50, &s);
    assert_true(g->r->ahead_count > 1 && g->r->ahead_count <= 16); /* 4 MiB */
    size_t before = g->r->ahead_count;
    struct source_file in;
    s.via = &g->r->far;
    s.job = 1;
    s.index = 7; /* the first two are passed over */
    assert_int_equal(source_open(&s, 0, &in, &e), ST_OK);
    assert_int_equal(g->r->ahead_count, before - 3);
    char block[1000];
    size_t got;
    assert_int_equal(source_read(&in, block, sizeof block, &got, &e), ST_OK);
    assert_memory_equal(block, text, sizeof block);
    source_close(&in);
    s.job = 2;
    remote_soon(g->r, 2, 0, &s); /* another job: the others are not wanted any more */
    assert_int_equal(g->r->ahead_count, 1);
}

/* Parts ------------------------------------------------------------------------------------------------------------------------------ */

static int yes(void *arg)
{
    (void)arg;
    return 1;
}

static int soon_no(void *arg)
{
    int *left = arg;
    return (*left)-- > 0;
}

static void want_whole_part(struct rig *g)
{
    pthread_mutex_lock(&g->lock);
    assert_int_equal(g->part.len, SIZE);
    assert_memory_equal(g->part.data, text, SIZE);
    pthread_mutex_unlock(&g->lock);
}

static void parts(void **state)
{
    struct rig *g = *state;
    struct err e;
    static const uint8_t digest[16] = {1};
    const struct remote_part p = {.job = 1, .epoch = 2, .seq = 3, .data = text, .size = SIZE, .digest = digest};
    assert_int_equal(remote_part(g->r, &p, yes, NULL, &e), ST_OK);
    want_whole_part(g);
    lie(g, FORGET_ONCE, 1);
    assert_int_equal(remote_part(g->r, &p, yes, NULL, &e), ST_OK);
    want_whole_part(g);
    const struct remote_part nothing = {.job = 1, .epoch = 2, .seq = 4, .data = "", .size = 0, .digest = digest};
    lie(g, HONEST, 0);
    assert_int_equal(remote_part(g->r, &nothing, yes, NULL, &e), ST_OK);
    lie(g, BAD_DIGEST, 1);
    assert_int_equal(remote_part(g->r, &p, yes, NULL, &e), ST_ENV);
    assert_non_null(strstr(e.text, "through the daemon: the bytes that came"));
    lie(g, NEVER_YOURS, 1);
    int left = 3;
    assert_int_equal(remote_part(g->r, &p, soon_no, &left, &e), ST_AGAIN); /* the lease was taken away meanwhile */
    stop(g);
    left = 3;
    assert_int_equal(remote_part(g->r, &p, soon_no, &left, &e), ST_AGAIN);
}

/* Models ------------------------------------------------------------------------------------------------------------------------------ */

static size_t files_in(const char *dir)
{
    char command[200];
    size_t n = 0;
    snprintf(command, sizeof command, "find %s -type f ! -name '.lock-*' 2>/dev/null | wc -l", dir);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%zu", &n), 1);
    pclose(f);
    return n;
}

static void a_model_comes_once(void **state)
{
    struct rig *g = *state;
    struct err e;
    uint8_t digest[16] = {9};
    char *path = NULL, file[300];
    struct buf bytes = {0};
    lie(g, WAIT_FIRST, 2);
    assert_int_equal(remote_model(g->r, digest, &path, &e), ST_OK);
    assert_int_equal(g->plans, 3);
    for (size_t i = 0; i < 4; i++) {
        buf_clear(&bytes);
        snprintf(file, sizeof file, "%s/%s", path, names[i]);
        assert_int_equal(path_read(file, 1 << 20, &bytes, &e), ST_OK);
        assert_int_equal(bytes.len, sizes[i]);
        if (bytes.len)
            assert_memory_equal(bytes.data, text + i, bytes.len);
    }
    mem_free(path);
    lie(g, HONEST, 0);
    assert_int_equal(remote_model(g->r, digest, &path, &e), ST_OK);
    assert_int_equal(g->plans + g->model_reads, 0);
    /* the cache holds two of these and not three; the longest unused goes */
    char first[200];
    snprintf(first, sizeof first, "%s", path);
    mem_free(path);
    struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    snprintf(file, sizeof file, "%s/.entry", first);
    assert_int_equal(utimensat(AT_FDCWD, file, old, 0), 0);
    for (uint8_t i = 1; i < 3; i++) {
        digest[1] = i;
        assert_int_equal(remote_model(g->r, digest, &path, &e), ST_OK);
        mem_free(path);
        assert_int_equal(access(first, F_OK), i == 1 ? 0 : -1);
    }
    /* damaged: away with it, and once more */
    remote_model_bad(g->r, digest);
    lie(g, HONEST, 0);
    assert_int_equal(remote_model(g->r, digest, &path, &e), ST_OK);
    assert_int_equal(g->plans, 1);
    mem_free(path);
    buf_release(&bytes);
}

static void what_is_wrong_with_a_model(void **state)
{
    struct rig *g = *state;
    struct err e;
    uint8_t digest[16] = {9};
    char *path = NULL, escaped[200];
    for (enum lie what = ESCAPE; what <= NO_ENTRY; what++) {
        lie(g, what, 1);
        assert_int_equal(remote_model(g->r, digest, &path, &e), ST_ENV);
        assert_non_null(strstr(e.text, "the daemon's plan of the model"));
        assert_int_equal(files_in(g->models), 0);
    }
    snprintf(escaped, sizeof escaped, "%s/escaped", g->dir);
    assert_int_equal(access(escaped, F_OK), -1);
    assert_int_equal(access("/tmp/ebb-remote-test-absolute", F_OK), -1);
    lie(g, BAD_BYTES, 100);
    assert_int_equal(remote_model(g->r, digest, &path, &e), ST_ENV);
    assert_string_equal(e.text, "it gives wrong bytes of 'deep/er/weights.bin'");
    assert_int_equal(files_in(g->models), 0);
    lie(g, BAD_BYTES, 1); /* once: the rest is not fetched anew */
    assert_int_equal(remote_model(g->r, digest, &path, &e), ST_OK);
    assert_true(g->model_reads < 27 + 12);
    mem_free(path);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(whole_sources_and_parts_of_them), TEST(what_is_wrong_with_a_source), TEST(the_daemon_goes_and_comes_back), TEST(ahead_of_the_reader),
        TEST(parts), TEST(a_model_comes_once), TEST(what_is_wrong_with_a_model),
    };
    fill();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(text);
    return failed;
}
