/* crowd ENDPOINT COUNT [HOSTS]: so many workers that say hello to the daemon, send heartbeats and never ask for anything: what a pool of thousands looks
   like to those who watch it. Prints "here" when all have been welcomed; leaves without a word when killed. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "base/clock.h"
#include "wire/sock.h"
#include "wire/wire.h"

#define BEAT_MS 4000
#define FIRST_NUMBER 1000

static void die(const char *what)
{
    fprintf(stderr, "crowd: %s\n", what);
    exit(1);
}

static void hello(struct sock *s, unsigned i, unsigned hosts)
{
    char host[32], name[40], numerics[] = "ebb1-x86-f32", program[] = "crowd";
    struct err e;
    Ebb__Hello m = EBB__HELLO__INIT;
    snprintf(host, sizeof host, "node%u", i % hosts);
    snprintf(name, sizeof name, "%s/%u", host, i / hosts + 1);
    m.version_min = WIRE_VERSION_MIN;
    m.version_max = WIRE_VERSION;
    m.program = program;
    m.worker = FIRST_NUMBER + i;
    m.host = host;
    m.name = name;
    m.pid = 1;
    m.lanes = 4;
    m.numerics = numerics;
    if (sock_send(s, NULL, EBB__ENVELOPE__BODY_HELLO, &m, &e) != ST_OK)
        die(e.text);
}

int main(int argc, char **argv)
{
    unsigned count = argc > 2 ? (unsigned)atoi(argv[2]) : 0, hosts = argc > 3 ? (unsigned)atoi(argv[3]) : 100, here = 0;
    struct sock **socks = calloc(count + 1, sizeof *socks);
    unsigned char *welcomed = calloc(count + 1, 1);
    void *context = zmq_ctx_new();
    struct err e;
    if (!count || !hosts || !socks || !welcomed || !context || zmq_ctx_set(context, ZMQ_MAX_SOCKETS, (int)count + 10))
        die("usage: crowd ENDPOINT COUNT [HOSTS]");
    for (unsigned i = 0; i < count; i++) {
        unsigned char identity[8];
        for (int k = 0; k < 8; k++)
            identity[k] = (unsigned char)((uint64_t)(FIRST_NUMBER + i) >> (56 - 8 * k));
        if (sock_dealer(context, argv[1], NULL, identity, sizeof identity, &socks[i], &e) != ST_OK)
            die(e.text);
        hello(socks[i], i, hosts);
    }
    for (uint64_t next_ms = 0;;) {
        uint64_t now_ms = clock_ms();
        for (unsigned i = 0; i < count; i++) {
            Ebb__Envelope *m;
            while (sock_receive(socks[i], NULL, &m, &e) == ST_OK) {
                if (m->body_case == EBB__ENVELOPE__BODY_WELCOME && !welcomed[i]) {
                    welcomed[i] = 1;
                    here++;
                } else if (m->body_case == EBB__ENVELOPE__BODY_WELCOME) {
                    hello(socks[i], i, hosts); /* a new daemon */
                }
                wire_free(m);
            }
            if (now_ms >= next_ms && welcomed[i]) {
                Ebb__Beat b = EBB__BEAT__INIT;
                b.rss_bytes = (uint64_t)(i + 1) << 20;
                if (sock_send(socks[i], NULL, EBB__ENVELOPE__BODY_BEAT, &b, &e) != ST_OK)
                    die(e.text);
            }
        }
        if (now_ms >= next_ms)
            next_ms = now_ms + BEAT_MS;
        if (here == count) {
            puts("here");
            fflush(stdout);
            here++;
        }
        clock_sleep_ms(here > count ? 100 : 2);
    }
}
