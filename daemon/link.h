/* Both sockets, and who is behind them. */
#ifndef EBB_DAEMON_LINK_H
#define EBB_DAEMON_LINK_H

#include "daemon/loop.h"
#include "daemon/map.h"
#include "wire/sock.h"

struct worker {
    uint64_t number;
    struct sock_peer peer;
    char name[64], host[128], program[64], numerics[64];
    uint32_t pid, lanes;
    uint64_t memory_bytes, rss_bytes, records_done;
    uint64_t model_key;   /* loaded; 0: none */
    uint32_t dims;
    uint32_t provider;    /* enum provider_id */
    char stage_endpoint[256], stage_key[41]; /* where others send it micro-batches; "": it can be in no pipeline */
    uint64_t reach;       /* equal for those that can send each other micro-batches; 0: with nobody */
    uint64_t profiled_key; /* model whose segments it has measured, and proved; 0: none */
    int joined;           /* the core knows it in this generation */
    int ask_hello;        /* something did not reach it: it shall say what it holds */
    int ended;            /* leaves the tables when nothing of it is being verified */
    uint64_t seen_ms, welcome_ms, since_ms;
    uint64_t *told;       /* jobs that it has been told */
    size_t told_count, told_cap;
    struct letter *first, *last; /* messages in order, the first of which may wait for its part to be looked at */
    size_t verifying;
};

MUST_USE enum status link_open(struct daemon *d, struct err *e);
/* Asks every worker that was connected for a new hello: the core is new. */
void link_rejoin(struct link *l);
void link_close(struct daemon *d);
/* Called once a turn of the loop, before it sleeps, and behind. */
void link_prepare(struct link *l);
void link_turn(struct link *l);
void link_second(struct link *l);       /* once a second: forgets those that have been silent for long */

struct worker *link_worker(struct link *l, uint64_t number); /* NULL */
struct worker *link_next(struct link *l, size_t *i);         /* over all; see map_next */
size_t link_count(struct link *l);
/* The core knows workers by number: each that stands in `text` in hexadecimal and is there gets its name instead. Returns out. */
char *link_name_workers(struct link *l, const char *text, char *out, size_t size);
/* It is over with this worker: tells the core, forgets it. */
struct sched_suspect;
void link_ended(struct link *l, uint64_t number, enum worker_end how, const struct sched_suspect *suspects, size_t count);

/* None fails: a peer that cannot be reached says hello again before it gets anything else. */
void link_send_lease(struct link *l, uint64_t worker, uint64_t job, uint64_t epoch, struct span span, int probe);
void link_send_cut(struct link *l, uint64_t worker, uint64_t epoch, uint64_t at);
void link_send_revoke(struct link *l, uint64_t worker, uint64_t epoch);
void link_send_ack(struct link *l, uint64_t worker, uint64_t epoch, uint64_t seq, enum ack_verdict verdict);
void link_send_drain(struct link *l, uint64_t worker);
void link_send_profile(struct link *l, uint64_t worker, uint64_t job);
/* first: of its `count` members; none: it leaves the gang. */
void link_send_stage(struct link *l, uint64_t worker, uint64_t job, uint64_t gang, uint32_t cut, uint64_t head, const struct sched_member *first, size_t count);
void link_send_stage_go(struct link *l, uint64_t worker, uint64_t gang, uint32_t cut);
void link_forget_job(struct link *l, uint64_t job);
/* For agents, who share the workers' socket. 0 when it is gone. */
int link_send_peer(struct link *l, const struct sock_peer *peer, Ebb__Envelope__BodyCase which, void *body);
void link_send_welcome(struct link *l, const struct sock_peer *peer);
void link_send_refused(struct link *l, const struct sock_peer *peer, const char *text);
/* By a Welcome that it did not ask for; once a second at most. A stranger: one that an earlier daemon knew. */
void link_ask_stranger(struct link *l, const struct sock_peer *peer);
uint64_t link_peer_key(const struct sock_peer *p);
/* json: NULL for "{}". 0 when the client is gone. */
int link_send_reply(struct link *l, const struct sock_peer *client, uint64_t id, enum status code, const char *json, int more);

#endif
