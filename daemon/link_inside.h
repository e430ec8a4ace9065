/* Inside the link: what link.c (sockets, who is behind them, what comes in), link_send.c and link_said.c (what workers say) share. */
#ifndef EBB_DAEMON_LINK_INSIDE_H
#define EBB_DAEMON_LINK_INSIDE_H

#include "base/log.h"
#include "daemon/job.h"
#include "daemon/link.h"

struct letter { /* a message that waits for its turn */
    struct letter *next;        /* of the same worker */
    struct letter *verify_next; /* of the same errand */
    struct worker *worker;
    Ebb__Envelope *m;
    uint64_t came_ns;
    int waiting;                /* for a thread to look at its part */
    struct job *job;            /* held meanwhile */
    enum status found;
    char *fault;
};

struct link {
    struct daemon *d;
    void *zmq;
    struct sock *workers, *clients;
    uv_poll_t poll[2];
    uv_idle_t idle;
    struct map by_number, by_peer;
    struct letter *verify_first, *verify_last;
    int errands, quick; /* under way; quick: the first looks, one errand at a time */
    uint8_t secret[32]; /* drawn at the start: makes the passes of gangs */
    uint64_t complaint_ms, complaints;
    struct {
        uint64_t peer, ms;
    } strangers[256]; /* lately asked for a hello: once a second is enough */
};

/* link.c */
noreturn void link_no_memory(struct link *l);
uint64_t link_peer_key(const struct sock_peer *p);
void link_letter_free(struct letter *x);
void link_free_if_done(struct worker *w); /* it has ended, and nothing of it is being verified */

/* link_send.c */
/* 0 when it could not be reached: it will say hello again. */
int link_send_to(struct link *l, struct worker *w, Ebb__Envelope__BodyCase which, void *body);
struct worker *link_reachable(struct link *l, uint64_t number); /* NULL, logged */
/* 1 when the worker knows the job now. */
int link_tell_job(struct link *l, struct worker *w, const struct job *j);
/* By a Welcome that it did not ask for; once a second at most. */
void link_ask_hello(struct link *l, struct worker *w);

/* link_stage.c: pipelines over several workers */
/* Keeps what the hello says of where micro-batches come in, and gives what the core wants to know of it (`reach`). */
uint64_t link_stage_hello(struct worker *w, const Ebb__Hello *h);
const char *link_stage_senseless(const Ebb__Envelope *m); /* NULL: it may be heard */
void link_profiled(struct link *l, struct worker *w, const Ebb__Profiled *m);
void link_stage_ready(struct link *l, struct worker *w, const Ebb__StageReady *m);
void link_stage_fault(struct link *l, struct worker *w, const Ebb__StageFault *m);

/* link_said.c */
/* The model cannot be had there. The fault is that machine's alone only where it is not ours: nobody comes in place of one of our own. */
void link_no_model(struct link *l, const struct worker *w, uint64_t job, uint64_t model_key, const char *text, int machine);
void link_take_text(char *to, size_t size, const char *from); /* made fit to be shown */
/* What a worker says of a model that it read is not what was submitted, or it computes in another way: why. */
enum other_model { MODEL_SAME, MODEL_OTHER_BYTES, MODEL_OTHER_NUMERICS };
enum other_model link_other_model(struct link *l, const struct worker *w, uint64_t model_key, const ProtobufCBinaryData *digest, const char *numerics, char *text, size_t size);
void link_beat(struct link *l, struct worker *w, const Ebb__Beat *b);
/* Messages whose turn has come. The worker may be gone behind this. */
void link_pump(struct link *l, struct worker *w);
/* Sends a thread to look at the parts that wait for it. */
void link_errands(struct link *l);

#endif
