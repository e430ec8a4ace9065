/* A change of a span: taken out of the counters and the index, changed, put back, and its row noted (span_touch) for the end of the step. */
#include "scheduler/span.h"

#include "scheduler/job.h"
#include "scheduler/lease.h"

static unsigned avail_of(const struct node *n)
{
    if (n->lease || n->not_before_ms)
        return 0;
    return !n->probe ? AVAIL_PLAIN : n->crashes ? AVAIL_CRASHER : AVAIL_PROBE;
}

void span_account(struct job *j, struct node *n, int sign)
{
    uint64_t weight = job_weight(j, &n->span);
    if (sign > 0) {
        n->avail = (uint8_t)avail_of(n);
        ledger_update(n);
    }
    uint64_t one = (uint64_t)(int64_t)sign;
    if (sign < 0)
        weight = -weight;
    if (n->lease) {
        j->leased_nodes += one;
        n->lease->bytes_left += weight;
        j->leased_bytes += weight;
    } else {
        j->ready_nodes += one;
        j->ready_bytes += weight;
        if (n->not_before_ms)
            j->backing_off += one;
    }
    for (int kind = 0; kind < 3; kind++)
        if (n->avail == 1 << kind)
            j->avail[kind] += one;
}

void span_touch(struct sched *s, struct job *j, struct node *n)
{
    if (n->stored && n->stored_begin != n->span.begin) {
        core_row(s, SCHED_DO_DEL_SPAN, j->row.id)->u.span.span.begin = n->stored_begin;
        n->stored = 0;
    }
    if (n->dirty)
        return;
    n->dirty = 1;
    BUG_IF(s->dirty_count >= s->dirty_cap, "a step touched more spans than it had room for");
    s->dirty[s->dirty_count++] = (struct dirty_node){j, n};
}

static void unlink_piece(struct node *n)
{
    struct lease *l = n->lease;
    if (n->prev)
        n->prev->next = n->next;
    else
        l->first = n->next;
    if (n->next)
        n->next->prev = n->prev;
    else
        l->last = n->prev;
    n->prev = n->next = NULL;
    n->lease = NULL;
    l->pieces--;
}

void span_link_piece(struct lease *l, struct node *after, struct node *n)
{
    n->lease = l;
    n->prev = after;
    n->next = after ? after->next : l->first;
    if (n->prev)
        n->prev->next = n;
    else
        l->first = n;
    if (n->next)
        n->next->prev = n;
    else
        l->last = n;
    l->pieces++;
}

struct node *span_insert(struct sched *s, struct job *j, struct span span)
{
    struct node *n = core_node(s);
    n->span = span;
    n->avail = (uint8_t)avail_of(n);
    ledger_insert(&j->ledger, n);
    span_account(j, n, 1);
    span_touch(s, j, n);
    return n;
}

struct node *span_restore(struct sched *s, struct job *j, const struct span_row *row, struct lease *l)
{
    struct node *n = core_node(s);
    n->span = row->span;
    n->attempts = row->attempts;
    n->losses = row->losses;
    n->probe = row->probe;
    n->crashes = row->crashes;
    n->crash_host = row->crash_host;
    n->next_seq = row->next_seq;
    n->stored = 1;
    n->stored_begin = row->span.begin;
    n->lease = l;
    n->avail = (uint8_t)avail_of(n);
    n->lease = NULL;
    ledger_insert(&j->ledger, n);
    if (l) {
        lease_add_piece(j, l, n);
        if (row->next_seq > l->next_seq)
            l->next_seq = row->next_seq;
    } else {
        span_account(j, n, 1);
    }
    return n;
}

/* The right half begins with another record: what is known of the first one stays left. */
struct node *span_split(struct sched *s, struct job *j, struct node *n, uint64_t at)
{
    BUG_IF(at <= n->span.begin || at >= n->span.end, "split of a span at its edge");
    struct node *right = core_node(s);
    span_account(j, n, -1);
    right->span = (struct span){at, n->span.end};
    right->attempts = n->attempts;
    right->probe = n->probe;
    n->span.end = at;
    if (n->lease)
        span_link_piece(n->lease, n, right);
    right->avail = (uint8_t)avail_of(right);
    ledger_insert(&j->ledger, right);
    span_account(j, n, 1);
    span_account(j, right, 1);
    if (n->not_before_ms) {
        span_back_off(s, j, right, n->not_before_ms);
    }
    span_touch(s, j, n);
    span_touch(s, j, right);
    return right;
}

void span_drop(struct sched *s, struct job *j, struct node *n)
{
    if (n->not_before_ms)
        span_back_off(s, j, n, 0);
    span_account(j, n, -1);
    if (n->stored)
        core_row(s, SCHED_DO_DEL_SPAN, j->row.id)->u.span.span.begin = n->stored_begin;
    n->stored = 0;
    if (n->lease)
        unlink_piece(n);
    ledger_remove(&j->ledger, n);
    if (!n->dirty) { /* so that the flush puts it back to the unused ones */
        n->dirty = 1;
        BUG_IF(s->dirty_count >= s->dirty_cap, "a step touched more spans than it had room for");
        s->dirty[s->dirty_count++] = (struct dirty_node){j, n};
    }
    n->dead = 1;
}

/* The front is done: what was known of its first record is void. */
void span_advance(struct sched *s, struct job *j, struct node *n, uint64_t to)
{
    span_account(j, n, -1);
    n->span.begin = to;
    n->losses = 0;
    n->crashes = 0;
    n->crash_host = 0;
    span_account(j, n, 1);
    span_touch(s, j, n);
}

static int joinable(const struct node *a, const struct node *b)
{
    return a && b && a->span.end == b->span.begin && !a->lease && !b->lease && !a->not_before_ms && !b->not_before_ms &&
           !a->attempts && !b->attempts && !a->losses && !b->losses && !a->crashes && !b->crashes && a->probe == b->probe;
}

/* A piece, or a READY span, becomes READY and joins its equals. */
struct node *span_settle(struct sched *s, struct job *j, struct node *n)
{
    span_account(j, n, -1);
    if (n->lease)
        unlink_piece(n);
    n->next_seq = 0;
    span_account(j, n, 1);
    struct node *left = ledger_prev(n), *right = ledger_next(n);
    if (joinable(n, right) || (MUTANT(9) && right && !right->lease && !right->probe && !n->probe)) {
        uint64_t end = right->span.end;
        span_drop(s, j, right);
        span_account(j, n, -1);
        n->span.end = end;
        span_account(j, n, 1);
    }
    if (joinable(left, n)) {
        uint64_t end = n->span.end;
        span_drop(s, j, n);
        span_account(j, left, -1);
        left->span.end = end;
        span_account(j, left, 1);
        n = left;
    }
    span_touch(s, j, n);
    return n;
}

struct node *span_ready(struct sched *s, struct job *j, struct node *n)
{
    s->work_dirty = 1;
    return span_settle(s, j, n);
}

void span_back_off(struct sched *s, struct job *j, struct node *n, uint64_t not_before_ms)
{
    span_account(j, n, -1);
    n->not_before_ms = not_before_ms;
    if (not_before_ms)
        heap_set(&s->backoffs, not_before_ms, n, &n->backoff_place);
    else
        heap_take(&s->backoffs, &n->backoff_place);
    span_account(j, n, 1);
}
