/* A peer that means harm, for tests of the network:

     hostile plain ENDPOINT                   says hello without keys; prints "silence" or "answered" after a while
     hostile worker ENDPOINT KEYFILE SEED N   a node with a good key: hellos, then N messages of every kind that goes to a daemon, with fields at random
                                              (huge numbers, paths with '..', long texts, huge counts), bits flipped, frames too many; commits of leases
                                              that it holds and of others that it does not; then goes without a word
     hostile client ENDPOINT KEYFILE SEED N   the same with a client's key: requests of every verb with JSON at random, and whatever else
     hostile flood ENDPOINT KEYFILE N         N connections with a good key, one after the other, each with one word

   What it was sent is counted and printed. What it never says: ModelFailed and JobFault of a job that there is, with which any node may hold a job. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/mem.h"
#include "wire/sock.h"

#define ARENA (256u << 20)

static uint64_t seed;
static char *arena;
static size_t used;
static uint64_t leases[64][3]; /* job, epoch, end of the span: that it was given */
static size_t lease_count;

static uint64_t draw(void) /* splitmix64 */
{
    uint64_t z = (seed += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void die(const struct err *e)
{
    fprintf(stderr, "hostile: %s\n", e->text);
    exit(1);
}

static void *take(size_t n)
{
    n = (n + 15) & ~(size_t)15;
    if (used + n > ARENA)
        return NULL;
    void *p = memset(arena + used, 0, n);
    used += n;
    return p;
}

static uint64_t number(void)
{
    static const uint64_t some[] = {0, 1, 2, 3, 7, 64, 65536, UINT32_MAX, UINT64_MAX, INT64_MAX, (uint64_t)1 << 63, 1000000007};
    if (lease_count && draw() % 3 == 0)
        return leases[draw() % lease_count][draw() % 3] + (draw() % 4 == 0);
    return draw() % 4 ? some[draw() % (sizeof some / sizeof *some)] : draw();
}

static char *text(void)
{
    static const char *const some[] = {"", "..", "../../../../etc/passwd", "/etc/shadow", "a/../../b", "\xff\xfe\x01", "%s%n%s%n", "\n\rerror: forged line", "ebb",
                                       "0123456789abcdef0123456789abcdef", "ebb1-x86-f32", "'; rm -rf /"};
    size_t n = draw() % 13;
    if (n < 12)
        return (char *)(uintptr_t)some[n];
    n = draw() % 8 ? 5000 : 200000;
    char *p = take(n + 1);
    if (p)
        memset(p, 'A', n);
    return p ? p : (char *)(uintptr_t)"";
}

/* Fills a message of any type by its description. */
static void fill(ProtobufCMessage *m, int depth)
{
    const ProtobufCMessageDescriptor *d = m->descriptor;
    for (unsigned i = 0; i < d->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &d->fields[i];
        size_t width = f->type == PROTOBUF_C_TYPE_STRING || f->type == PROTOBUF_C_TYPE_MESSAGE ? sizeof(void *)
                       : f->type == PROTOBUF_C_TYPE_BYTES                                      ? sizeof(ProtobufCBinaryData)
                       : f->type == PROTOBUF_C_TYPE_UINT64 || f->type == PROTOBUF_C_TYPE_INT64 || f->type == PROTOBUF_C_TYPE_DOUBLE ? 8 : 4;
        size_t n = 1;
        char *to = (char *)m + f->offset;
        if (draw() % 5 == 0)
            continue;
        if (f->label == PROTOBUF_C_LABEL_REPEATED) {
            n = depth > 1 ? draw() % 3 : draw() % 20 == 0 ? 70000 : draw() % 5;
            char *list = take(n * width);
            if (!list)
                continue;
            *(size_t *)((char *)m + f->quantifier_offset) = n;
            *(void **)to = list;
            to = list;
        }
        for (size_t k = 0; k < n; k++, to += width) {
            switch (f->type) {
            case PROTOBUF_C_TYPE_STRING:
                *(char **)to = n > 100 ? (char *)(uintptr_t)"x" : text();
                break;
            case PROTOBUF_C_TYPE_BYTES:
                ((ProtobufCBinaryData *)to)->data = (uint8_t *)text();
                ((ProtobufCBinaryData *)to)->len = strlen((char *)((ProtobufCBinaryData *)to)->data);
                break;
            case PROTOBUF_C_TYPE_MESSAGE: {
                const ProtobufCMessageDescriptor *sub = f->descriptor;
                ProtobufCMessage *child = take(sub->sizeof_message);
                if (!child) { /* a list with a hole cannot be sent */
                    if (f->label == PROTOBUF_C_LABEL_REPEATED)
                        *(size_t *)((char *)m + f->quantifier_offset) = k;
                    k = n;
                    break;
                }
                sub->message_init(child);
                fill(child, depth + 1);
                *(ProtobufCMessage **)to = child;
                break;
            }
            case PROTOBUF_C_TYPE_BOOL:
                *(protobuf_c_boolean *)to = draw() & 1;
                break;
            default:
                if (width == 8)
                    *(uint64_t *)to = number();
                else
                    *(uint32_t *)to = (uint32_t)number();
            }
        }
    }
}

static int harmless(Ebb__Envelope__BodyCase which, ProtobufCMessage *m)
{
    if (which == EBB__ENVELOPE__BODY_JOB_FAULT)
        ((Ebb__JobFault *)m)->job |= 1u << 30; /* of none */
    return which != EBB__ENVELOPE__BODY_MODEL_FAILED;
}

/* The envelope's kinds, from..to by number. */
static void say_any(struct sock *s, unsigned from, unsigned to)
{
    const ProtobufCMessageDescriptor *d = &ebb__envelope__descriptor;
    const ProtobufCFieldDescriptor *f;
    do
        f = &d->fields[draw() % d->n_fields];
    while (f->id < from || f->id > to);
    const ProtobufCMessageDescriptor *sub = f->descriptor;
    used = 0;
    ProtobufCMessage *m = take(sub->sizeof_message);
    sub->message_init(m);
    fill(m, 0);
    struct err e;
    struct buf bytes = {0};
    if (!harmless((Ebb__Envelope__BodyCase)f->id, m))
        return;
    if (wire_encode((Ebb__Envelope__BodyCase)f->id, m, &bytes, &e) == ST_OK && bytes.len < SOCK_MAX_TCP - 100) {
        int odd = (int)(draw() % 8);
        for (int i = 0; odd == 0 && bytes.len && i < 4; i++)
            bytes.data[draw() % bytes.len] ^= (char)(1u << draw() % 8);
        if (odd == 1)
            bytes.len = bytes.len ? draw() % bytes.len : 0;
        if (odd == 2)
            zmq_send(sock_zmq(s), bytes.data, bytes.len < 100 ? bytes.len : 100, ZMQ_SNDMORE | ZMQ_DONTWAIT);
        zmq_send(sock_zmq(s), bytes.data, bytes.len, ZMQ_DONTWAIT);
    }
    buf_release(&bytes);
}

static size_t hear(struct sock *s, uint64_t ms)
{
    size_t heard = 0;
    for (uint64_t until = clock_ms() + ms, now; (now = clock_ms()) <= until;) {
        struct sock_peer ignored;
        Ebb__Envelope *m;
        struct err e;
        enum status st = sock_receive(s, &ignored, &m, &e);
        if (st == ST_AGAIN) {
            if (now == until || sock_wait(s, (int)(until - now)) <= 0)
                break;
            continue;
        }
        heard++;
        if (st != ST_OK)
            continue;
        if (m->body_case == EBB__ENVELOPE__BODY_LEASE && m->lease->span && lease_count < 64) {
            uint64_t *l = leases[lease_count++];
            l[0] = m->lease->job;
            l[1] = m->lease->epoch;
            l[2] = m->lease->span->end;
        }
        wire_free(m);
    }
    return heard;
}

static void hello(struct sock *s, uint64_t worker)
{
    Ebb__Hello h = EBB__HELLO__INIT;
    struct err e;
    h.version_min = h.version_max = WIRE_VERSION;
    h.program = (char *)(uintptr_t) "ebb-worker 0.1.0";
    h.worker = worker;
    h.host = (char *)(uintptr_t) "../../etc";
    h.name = (char *)(uintptr_t) "../../../tmp/x\n";
    h.lanes = 1;
    h.numerics = (char *)(uintptr_t) "ebb1-x86-f32";
    if (sock_send(s, NULL, EBB__ENVELOPE__BODY_HELLO, &h, &e) != ST_OK)
        die(&e);
}

/* Commits of leases that it was given: no part was written, or none could have been. */
static void forge(struct sock *s)
{
    for (size_t i = 0; i < lease_count; i++)
        for (int k = 0; k < 4; k++) {
            Ebb__Span span = EBB__SPAN__INIT;
            Ebb__Extent extent = EBB__EXTENT__INIT, *extents[] = {&extent};
            Ebb__Commit c = EBB__COMMIT__INIT;
            struct err e;
            span.end = k == 0 ? leases[i][2] : k == 1 ? UINT64_MAX : 5;
            extent.span = &span;
            extent.rows = extent.records = k == 2 ? UINT64_MAX : 5;
            extent.rows_bytes = k == 3 ? UINT64_MAX : 100;
            c.job = leases[i][0];
            c.epoch = leases[i][1] + (k == 1);
            c.seq = k == 2 ? UINT64_MAX : 0;
            c.n_done = 1;
            c.done = extents;
            c.part_bytes = 100;
            if (sock_send(s, NULL, EBB__ENVELOPE__BODY_COMMIT, &c, &e) != ST_OK)
                return;
        }
}

static int as_worker(void *context, const char *endpoint, const struct keys *keys, uint64_t count)
{
    struct sock *s;
    struct err e;
    uint8_t identity[8];
    uint64_t name = draw(), heard = 0;
    for (int i = 0; i < 8; i++)
        identity[i] = (uint8_t)(name >> (56 - 8 * i));
    if (sock_dealer(context, endpoint, keys, identity, sizeof identity, &s, &e) != ST_OK)
        die(&e);
    for (uint64_t i = 0; i < count; i++) {
        if (i == count / 4) { /* a stranger until then */
            hello(s, name);
            heard += hear(s, 500);
            forge(s);
        }
        say_any(s, 1, 99);
        if (i % 64 == 0)
            heard += hear(s, 5);
    }
    forge(s);
    heard += hear(s, 500);
    printf("%" PRIu64 " messages heard, %zu leases\n", heard, lease_count);
    return 0;
}

static int as_client(void *context, const char *endpoint, const struct keys *keys, uint64_t count)
{
    static const char *const verbs[] = {"hello", "submit", "jobs", "job", "why", "errors", "events", "resume", "retry", "workers", "doctor", "nodes", "keys", "invite",
                                        "authorize", "revoke", "stop", "../x", ""};
    static const char *const texts[] = {"", "{}", "[]", "{\"job\": 1e300}", "{\"job\": -1}", "{\"role\": \"node\", \"key\": \"x\"}", "{\"drain\": false}",
                                        "{\"spec\": {\"model\": \"/etc\", \"inputs\": [\"/etc/passwd\"], \"output\": \"/etc/x\"}}", "{\"job\": 99}",
                                        "{\"spec\": {\"model\": \"..\", \"inputs\": [\"../../../../etc/passwd\"], \"output\": \"../../..\"}, \"force\": true}", "\xff"};
    struct sock *s;
    struct err e;
    uint64_t heard = 0;
    if (sock_meet(context, endpoint, keys, 20000, &s, &e) != ST_OK)
        die(&e);
    for (uint64_t i = 0; i < count; i++) {
        Ebb__Request r = EBB__REQUEST__INIT;
        r.id = draw();
        r.version = draw() % 8 ? WIRE_VERSION : (uint32_t)number();
        r.verb = (char *)(uintptr_t)verbs[draw() % (sizeof verbs / sizeof *verbs)];
        r.json = (char *)(uintptr_t)texts[draw() % (sizeof texts / sizeof *texts)];
        if (draw() % 4)
            (void)!sock_send(s, NULL, EBB__ENVELOPE__BODY_REQUEST, &r, &e);
        else
            say_any(s, 1, 39);
        if (i % 16 == 0)
            heard += hear(s, 5);
    }
    heard += hear(s, 1000);
    printf("%" PRIu64 " messages heard\n", heard);
    return 0;
}

static int flood(void *context, const char *endpoint, const struct keys *keys, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        struct sock *s;
        struct err e;
        if (sock_meet(context, endpoint, keys, 20000, &s, &e) != ST_OK)
            die(&e);
        Ebb__Bye m = EBB__BYE__INIT;
        (void)!sock_send(s, NULL, EBB__ENVELOPE__BODY_BYE, &m, &e);
        sock_close(s);
    }
    printf("%" PRIu64 " connections\n", count);
    return 0;
}

/* ZeroMQ without CURVE. */
static int plain(void *context, const char *endpoint)
{
    void *s = zmq_socket(context, ZMQ_DEALER);
    Ebb__Hello h = EBB__HELLO__INIT;
    struct buf bytes = {0};
    struct err e;
    h.worker = 7;
    h.lanes = 1;
    h.host = (char *)(uintptr_t) "plain";
    if (!s || zmq_connect(s, endpoint) || wire_encode(EBB__ENVELOPE__BODY_HELLO, &h, &bytes, &e) != ST_OK)
        return 1;
    zmq_send(s, bytes.data, bytes.len, ZMQ_DONTWAIT);
    zmq_pollitem_t item = {.socket = s, .events = ZMQ_POLLIN};
    puts(zmq_poll(&item, 1, 1500) > 0 ? "answered" : "silence");
    return 0;
}

int main(int argc, char **argv)
{
    void *context = zmq_ctx_new();
    struct keys keys;
    struct err e;
    int code = 2;
    arena = mem_alloc(ARENA);
    if (argc == 3 && strcmp(argv[1], "plain") == 0)
        code = plain(context, argv[2]);
    else if (argc < 5)
        fputs("hostile plain|worker|client|flood ENDPOINT [KEYFILE SEED N]\n", stderr);
    else if (keys_read(argv[3], strcmp(argv[1], "client") == 0 ? KEYS_CLIENT : KEYS_NODE, &keys, &e) != ST_OK)
        die(&e);
    else if (strcmp(argv[1], "flood") == 0)
        code = flood(context, argv[2], &keys, strtoull(argv[4], NULL, 10));
    else if (argc == 6) {
        seed = strtoull(argv[4], NULL, 10);
        code = strcmp(argv[1], "worker") == 0 ? as_worker(context, argv[2], &keys, strtoull(argv[5], NULL, 10))
                                              : as_client(context, argv[2], &keys, strtoull(argv[5], NULL, 10));
    }
    fflush(stdout);
    _exit(code); /* without a goodbye */
}
