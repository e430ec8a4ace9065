/* The interval map of one job: the spans that are not DONE, in order. A treap by position; each node also knows which kinds of
   work lie below it, so that the first span that can be given away is found in O(log n). */
#ifndef EBB_SCHEDULER_LEDGER_H
#define EBB_SCHEDULER_LEDGER_H

#include <stddef.h>
#include <stdint.h>

#include "base/rows.h"

/* READY and not backing off: what a lease can take. */
enum {
    AVAIL_PLAIN = 1,
    AVAIL_PROBE = 2,   /* suspects that have not crashed alone yet */
    AVAIL_CRASHER = 4, /* suspects that have */
};

struct lease;

struct node {
    struct span span;
    struct node *left, *right, *parent;
    struct lease *lease;        /* NULL: READY */
    struct node *prev, *next;   /* pieces of the lease, ascending; `next` links unused nodes */
    uint64_t next_seq;          /* as it stands in the store */
    uint64_t stored_begin;      /* key of its row in the store */
    uint64_t not_before_ms;     /* backing off until then; 0: not */
    uint64_t crash_host;
    uint32_t rank;              /* of the treap */
    uint32_t backoff_place;
    uint16_t attempts, losses;
    uint8_t probe, crashes;
    uint8_t avail, below;       /* AVAIL_: own; or'ed over the subtree */
    uint8_t stored, dirty, dead;
};

struct ledger {
    struct node *root;
    size_t count;
    uint64_t salt;
};

void ledger_insert(struct ledger *l, struct node *n);
void ledger_remove(struct ledger *l, struct node *n);
void ledger_update(struct node *n); /* after a change of n->avail */
struct node *ledger_find(const struct ledger *l, uint64_t pos); /* the node that holds pos */
struct node *ledger_at_or_after(const struct ledger *l, uint64_t pos); /* the first that ends behind pos */
struct node *ledger_first(const struct ledger *l);
struct node *ledger_next(const struct node *n);
struct node *ledger_prev(const struct node *n);
/* The first node of one of these kinds; behind `after` when that is not NULL. */
struct node *ledger_avail(const struct ledger *l, unsigned kinds, const struct node *after);
void ledger_check(const struct ledger *l);

#endif
