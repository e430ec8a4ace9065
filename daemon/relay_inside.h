/* Inside the relay: relay_open.c (threads, sockets, the end), relay.c (the socket, who waits for what), relay_ask.c (what the loop says), relay_read.c
   (sources), relay_write.c (parts), relay_model.c (models) share this.

   The way of a question: the socket's thread makes a *task* of it and queues it with its *peer*; when there is room for the answer, it goes to the *hand* (a
   thread with files of its own) that has always served this source, part or model, so that no file is shared by two threads; a hand that does not know the file
   yet sends the task to the loop, which says what it is and sends it back; the answer goes to the socket's thread, and its memory is given back when ZeroMQ has
   written it out. */
#ifndef EBB_DAEMON_RELAY_INSIDE_H
#define EBB_DAEMON_RELAY_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/log.h"
#include "daemon/map.h"
#include "daemon/relay.h"
#include "storage/dataset.h"
#include "wire/sock.h"

#define RELAY_CHUNK (1u << 20)              /* most bytes of a question's answer, or of a part in a message */
#define RELAY_PEER_BYTES (UINT64_C(8) << 20) /* of answers that a peer has not taken */
#define RELAY_ALL_BYTES (UINT64_C(128) << 20) /* of all peers, and one answer more for each that has taken all of its own */
#define RELAY_PEER_ASKED 64                 /* questions of a peer that wait */
#define RELAY_CREDIT (UINT64_C(4) << 20)    /* of a part, on its way */
#define RELAY_TAKEN_BYTES (UINT64_C(64) << 20) /* of parts, read from the socket and not written: then it is not read */
#define RELAY_IDLE_MS 15000                 /* a file that nobody asked for is closed */

enum { HAND_READ, HAND_READ_LAST = 1, HAND_WRITE, HAND_WRITE_LAST = 3, HAND_MODEL, HANDS };

struct relay;
struct hand;

struct peer {
    atomic_int refs;      /* of the table, of tasks, of answers */
    struct sock_peer name;
    struct relay *relay;
    atomic_uint_fast64_t waiting; /* bytes of answers that are promised or not taken */
    struct task *first, *last;    /* questions that wait for room */
    size_t asked;
    uint64_t seen_ms;
    struct peer *next;            /* in the ring */
};

struct task {
    struct task *next;
    struct peer *peer;    /* counted */
    struct hand *hand;
    Ebb__Envelope *m;
    uint64_t reserved;    /* of the peer's room */
    uint64_t taken;       /* bytes of a part */
    int again;            /* has come back from the loop with the following */
    enum status st;
    struct err e;
    struct source source; /* its path is `path` */
    char *path;           /* of the source, of the folder of parts, of the model; owned */
};

struct hand {
    struct relay *relay;
    pthread_t thread;
    int started;
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct task *first, *last;
    void (*run)(struct hand *h, struct task *t); /* takes the task */
    void (*idle)(struct hand *h, uint64_t now_ms, int all); /* closes what nobody has asked for; `all`: everything */
    void *files;          /* the hand's own */
};

struct answer {
    struct answer *next;
    struct peer *peer; /* counted */
    struct buf bytes;
    uint64_t reserved;
    atomic_int handed; /* to ZeroMQ, which gives it back on a thread of its own */
};

struct relay {
    struct daemon *d;
    struct sock *sock;
    int wake_fd;
    pthread_t thread;
    int started;
    atomic_int stopping;

    struct map by_name;   /* peers; the socket thread's, as the ring */
    struct peer *ring;    /* whose turn is next */
    struct hand hands[HANDS];

    pthread_mutex_t lock; /* of the next four */
    struct answer *first, *last;
    struct task *asks;    /* for the loop */
    int closed;           /* the loop answers no more */
    uint64_t *ended;      /* workers that the hand of models has not heard of yet */
    size_t ended_count, ended_cap;
    uv_async_t async;

    atomic_uint_fast64_t waiting, taken; /* as of peers, over all */
    atomic_int hungry;    /* somebody waits for that to fall */
    atomic_uint_fast64_t read_bytes, written_bytes, model_bytes, parts, refused, model_fetches, peer_count;
    uint64_t complaint_ms, complaints;
};

/* relay.c. Each takes the task. body: a message for the envelope, which stays the caller's. */
void relay_answer(struct task *t, Ebb__Envelope__BodyCase which, void *body);
void relay_say_data(struct task *t, uint64_t id, enum status st, const struct err *e, uint64_t size, const void *data, size_t len);
void relay_task_free(struct task *t);
void relay_hand_add(struct hand *h, struct task *t, int first);
noreturn void relay_no_memory(void);
void *relay_run(void *relay); /* the socket's thread */
void relay_wake(struct relay *r);
void relay_written(void *data, void *answer); /* ZeroMQ's thread: it is written out, or its peer is gone */
void relay_peer_unref(struct peer *p);
uint64_t relay_number(const struct peer *p); /* of the worker; 0: it is none */

/* relay_ask.c. Takes the task; it comes back to its hand with `again` set. */
void relay_ask(struct task *t);
void relay_asked(uv_async_t *async);

/* The hands. */
void relay_read_run(struct hand *h, struct task *t);
void relay_read_idle(struct hand *h, uint64_t now_ms, int all);
void relay_write_run(struct hand *h, struct task *t);
void relay_write_idle(struct hand *h, uint64_t now_ms, int all);
void relay_model_run(struct hand *h, struct task *t);
void relay_model_idle(struct hand *h, uint64_t now_ms, int all);

#endif
