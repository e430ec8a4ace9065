/* What the parts of a group share; only they include this. */
#ifndef EBB_WORKERS_GROUP_INSIDE_H
#define EBB_WORKERS_GROUP_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>

#include "workers/group/carrier.h"
#include "workers/group/group.h"
#include "workers/group/message.h"
#include "workers/group/drag.h"
#include "workers/group/ways.h"
#include "workers/pipeline/stages.h"

#define PASS_MOST 64

struct part { /* of a model, counted */
    atomic_int refs;
    struct job *job;          /* counted */
    struct loaded *loaded;    /* counted */
    uint32_t first, end;
    struct message_bounds bounds;
    uint64_t load_ms;
};
struct part *part_ref(struct part *x);
void part_unref(struct part *x);

struct work { /* a micro-batch that waits for a runner */
    struct work *next;
    Ebb__Envelope *m;
    struct payload *in;
    struct part *part;        /* counted */
    struct model_batch batch; /* points into m */
};
void work_free(struct work *w);

/* The threads that run the part: runner.c. */
struct runner {
    struct group *g;
    struct stage *threads;
    uint32_t count;
    pthread_mutex_t lock;
    pthread_cond_t filled;
    struct work *head, **tail;
    size_t waiting;
    uint32_t running;
    const struct part *current; /* a thread lets go of the memory of any other */
    int stopping;
};
MUST_USE enum status runner_start(struct runner *r, struct group *g, uint32_t lanes, uint32_t first_slot, struct err *e);
void runner_end(struct runner *r);
void runner_put(struct runner *r, struct work *w);
void runner_part(struct runner *r, const struct part *current); /* what waits for another is dropped */
int runner_busy(struct runner *r);

struct flight { /* a micro-batch of the head's, from its lane until its rows are made */
    struct flight *next;
    uint64_t id, sent_ms;
    struct loaded *loaded;    /* counted */
    uint32_t n, tokens;
    struct item **items;      /* and what follows: one block of memory with this */
    struct blackbox_record *named;
    uint32_t *lengths;
    int32_t *ids;
    uint8_t *types;           /* NULL: all 0 */
    Ebb__Envelope *m;         /* its result */
    struct payload *payload;
};

struct flights { /* ascending ids */
    struct flight *first;
    uint32_t count;
};

struct member {
    uint64_t worker;
    uint32_t first, end;
    char endpoint[256], key[KEYS_Z85 + 1];
};

struct group {
    struct pipeline *p;
    struct group_opts o;
    struct carrier *carrier;
    struct runner runner;
    uint32_t first_slot;

    /* under the pipeline's lock */
    uint64_t gang;            /* 0: in none */
    uint32_t cut, count;
    struct member members[GROUP_MOST];
    uint32_t self, head;      /* places among them */
    uint8_t pass[PASS_MOST];
    size_t pass_len;
    struct job *job;          /* counted; the gang's */
    struct part *part;        /* counted; loaded for this cut */
    struct part *spare;       /* counted; that of the cut before */
    uint64_t since_ms;        /* when the part was there */
    int failed;               /* it cannot be loaded, which was said */
    int ready, go;            /* was said; the head was told */
    struct {
        uint64_t worker;
        int up, faulted;
    } peers[CARRIER_PEERS];   /* whom this member sends to */
    uint32_t peer_count;
    uint64_t fault_ms;        /* when the head last said that something does not come back */

    struct flights waiting, flying, landed;
    uint64_t next_id, slowest_ms;
    pthread_cond_t room, land, to_load;
    int closed;               /* leases were, since the list was looked through */

    struct wish {
        struct wish *next;
        uint64_t job;
        struct way_peer *peers; /* to measure the way to, too */
        size_t peer_count;
    } *profiles;              /* to be measured */
    struct drag drag;         /* of the runners */
    int loading, finishing, stopping;
    struct stage finisher, loader;
};

/* group.c, with the lock held */
void group_fault(struct group *g, uint64_t peer, const char *text);
void group_ready(struct group *g);               /* says it, when all is there */
/* The job's costs are to be told, and the ways to n peers, which it takes over. */
void group_wish(struct group *g, uint64_t job, struct way_peer *peers, size_t n);
/* A message for member `to`: to the carrier, or straight to this worker's own part. Takes over the payload. */
void group_pass(struct group *g, uint32_t to, Ebb__Envelope__BodyCase which, void *body, struct payload *p);
void group_landed(struct group *g, Ebb__Envelope *m, struct payload *p); /* sends.c: a StageResult of this cut; takes over both */

/* sends.c, with the lock held */
void sends_pump(struct group *g);                /* what may leave, leaves */
void sends_again(struct group *g);               /* a new cut, or none: all that flies waits again */
void sends_look(struct group *g);                /* what is wanted no more goes; what does not come back is told */
void sends_drop(struct group *g);
void *finisher_run(void *stage);

/* loader.c */
void *loader_run(void *stage);

#endif
