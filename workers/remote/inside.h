/* Inside: remote.c (the connection), roots.c (what is seen), stream.c (sources), upload.c (parts), model.c (models), giver.c (to other hosts) share this. */
#ifndef EBB_WORKERS_REMOTE_INSIDE_H
#define EBB_WORKERS_REMOTE_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/buf.h"
#include "base/log.h"
#include "wire/sock.h"
#include "workers/remote/remote.h"

#define REMOTE_CHUNK (512u << 10)      /* bytes of a question for a source's */
#define REMOTE_WINDOW 14               /* such questions at a time: under the 8 MiB that the relay keeps for a peer */
#define REMOTE_AGAIN_MS 200            /* the daemon has no answer just now */

struct call { /* a question on its way; the asker's */
    struct call *next;
    uint64_t id, sent_ms;  /* 0: not sent yet */
    struct buf bytes;
    Ebb__Envelope *answer;
};

struct ahead { /* the first bytes of a source, on their way */
    struct call *call;
    uint64_t job, index;
    uint32_t length;
};

struct root {
    struct root *next;
    char *folder;
    int far;
};

struct outlet {
    struct outlet *next;
    uint64_t job;
    int direct;
};

struct giver;

struct remote {
    struct remote_opts o;
    char *endpoint;        /* the relay's; NULL: there can be none */
    struct source_via near, far;

    pthread_mutex_t lock;  /* of all that follows */
    pthread_cond_t came;   /* an answer */
    int has_relay, same_sight;
    uint32_t generation;
    struct call *first, **last; /* in the order in which they are to be sent */
    uint64_t next_id;
    int started, stopping;
    pthread_t thread;
    int wake_fd;

    pthread_mutex_t roots_lock; /* held while the daemon is asked: two askers get one answer */
    struct root *roots;
    size_t root_count;
    struct outlet *outlets;

    pthread_mutex_t ahead_lock;
    struct ahead ahead[REMOTE_AHEAD]; /* the oldest first */
    size_t ahead_count;

    pthread_mutex_t model_lock;
    struct giver *giver;

    atomic_uint_fast64_t in, out;
};

/* Asks. The body's id has been drawn by remote_id. Never fails but for memory, which ends the program. */
uint64_t remote_id(struct remote *r);
struct call *call_begin(struct remote *r, uint64_t id, Ebb__Envelope__BodyCase which, void *body);
/* Waits for the answer, which is of the kind `want` then, and stays the call's. ST_AGAIN: goes_on (NULL: always) said no. ST_CORRUPT: another kind came. */
MUST_USE enum status call_wait(struct remote *r, struct call *c, Ebb__Envelope__BodyCase want, int (*goes_on)(void *arg), void *arg, struct err *e);
int call_came(struct remote *r, const struct call *c); /* its answer is there */
void call_end(struct remote *r, struct call *c); /* answered or not; NULL is fine */
/* A code from the wire, and its words. */
MUST_USE enum status call_status(uint32_t code, const char *text, struct err *e);
noreturn void remote_no_memory(void);

/* One whole read, ST_AGAIN waited out. *out: the answer, in the call, which the caller ends. */
MUST_USE enum status stream_ask(struct remote *r, const Ebb__RelayRead *what, struct call **call, const Ebb__RelayData **out, struct err *e);
void stream_forget_ahead(struct remote *r);
enum status stream_open(const struct source_via *v, const struct source *s, uint64_t from, void **handle, struct err *e);
enum status stream_read(void *handle, void *data, size_t want, size_t *got, struct err *e);
void stream_close(void *handle);
enum status stream_named(const struct source_via *v, const struct source *s, const char *path, uint64_t max_bytes, struct buf *out, struct err *e);
enum status near_named(const struct source_via *v, const struct source *s, const char *path, uint64_t max_bytes, struct buf *out, struct err *e);

void roots_forget(struct remote *r); /* with roots_lock */
int roots_far(struct remote *r, const char *path); /* its folder is known to come through the relay */

/* giver.c: gives the models of the cache to other hosts. path: as a model is opened. What fails is said in the log. */
void giver_add(struct remote *r, const uint8_t digest[16], const char *path);
void giver_close(struct remote *r);

/* taker.c: pieces of a model, from the daemon or from another host. */
#define TAKER_WINDOW 8
struct taker;
MUST_USE enum status taker_new(struct remote *r, const uint8_t digest[16], const void *pass, size_t pass_len, const Ebb__ModelPeer *peer, struct taker **out,
                               struct err *e); /* peer NULL: the daemon */
void taker_free(struct taker *t);
size_t taker_asked(const struct taker *t);
void taker_ask(struct taker *t, uint32_t file, uint64_t offset, uint32_t length); /* at most TAKER_WINDOW at a time */
/* The first that was asked for; *data is valid until the next call. */
MUST_USE enum status taker_take(struct taker *t, const void **data, size_t *len, struct err *e);

#endif
