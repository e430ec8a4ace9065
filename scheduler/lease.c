#include "scheduler/lease.h"

#include <string.h>

#include "scheduler/blame.h"
#include "scheduler/share.h"

#define FIRST_LEASE_BYTES (256u << 10) /* a 64th of what an ordinary one may be; each next one at most four times the last */
#define LEAST_LEASE_BYTES (4u << 10)   /* while a worker's rate is not known */
#define DEFAULT_RATE 65536.0           /* bytes/s; only to compare workers of whom nothing is known */
#define MAX_PIECES 256                 /* of a lease; the protocol asks for 64 holes */
#define MAX_BACKOFF_MS 300000

/* Nodes ----------------------------------------------------------------------------------------------------------------------- */

uint64_t job_weight(const struct job *j, const struct span *span)
{
    return layout_weight(&j->layout, span->begin, span->end);
}

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

static void touch(struct sched *s, struct job *j, struct node *n)
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

static void link_piece(struct lease *l, struct node *after, struct node *n)
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
    touch(s, j, n);
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
        link_piece(n->lease, n, right);
    right->avail = (uint8_t)avail_of(right);
    ledger_insert(&j->ledger, right);
    span_account(j, n, 1);
    span_account(j, right, 1);
    if (n->not_before_ms) {
        span_back_off(s, j, right, n->not_before_ms);
    }
    touch(s, j, n);
    touch(s, j, right);
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
static void advance(struct sched *s, struct job *j, struct node *n, uint64_t to)
{
    span_account(j, n, -1);
    n->span.begin = to;
    n->losses = 0;
    n->crashes = 0;
    n->crash_host = 0;
    span_account(j, n, 1);
    touch(s, j, n);
}

static int joinable(const struct node *a, const struct node *b)
{
    return a && b && a->span.end == b->span.begin && !a->lease && !b->lease && !a->not_before_ms && !b->not_before_ms &&
           !a->attempts && !b->attempts && !a->losses && !b->losses && !a->crashes && !b->crashes && a->probe == b->probe;
}

/* A piece, or a READY span, becomes READY and joins its equals. */
static struct node *settle(struct sched *s, struct job *j, struct node *n)
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
    touch(s, j, n);
    return n;
}

struct node *span_ready(struct sched *s, struct job *j, struct node *n)
{
    s->work_dirty = 1;
    return settle(s, j, n);
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

/* Leases ---------------------------------------------------------------------------------------------------------------------- */

struct lease *lease_open(struct sched *s, struct job *j, struct worker *w, uint64_t epoch)
{
    struct lease *l = s->free_leases;
    BUG_IF(!l, "a step opened more leases than it had room for");
    s->free_leases = l->worker_next;
    s->free_lease_count--;
    *l = (struct lease){.epoch = epoch, .job = j, .worker = w};
    l->job_next = j->leases;
    if (j->leases)
        j->leases->job_prev = l;
    j->leases = l;
    j->lease_count++;
    int serves = 0;
    struct lease **at = &w->leases;
    for (; *at; at = &(*at)->worker_next)
        serves |= (*at)->job == j;
    *at = l;
    w->lease_count++;
    if (!serves)
        j->workers++;
    map_put(&s->epochs, epoch, l);
    return l;
}

void lease_add_piece(struct job *j, struct lease *l, struct node *n)
{
    struct node *after = l->last;
    while (after && after->span.begin > n->span.begin)
        after = after->prev;
    link_piece(l, after, n);
    span_account(j, n, 1);
}

void lease_end(struct sched *s, struct lease *l)
{
    BUG_IF(l->pieces, "lease %llx ends with pieces", (unsigned long long)l->epoch);
    struct job *j = l->job;
    struct worker *w = l->worker;
    struct ended *slot = &s->ended[s->ended_at++ % ENDED_SLOTS];
    if (slot->epoch)
        map_del(&s->ended_epochs, slot->epoch);
    *slot = (struct ended){l->epoch, w->id, l->next_seq};
    map_put(&s->ended_epochs, l->epoch, slot);
    if (l->cut_deadline_ms)
        s->cuts--;
    map_del(&s->epochs, l->epoch);
    if (l->job_prev)
        l->job_prev->job_next = l->job_next;
    else
        j->leases = l->job_next;
    if (l->job_next)
        l->job_next->job_prev = l->job_prev;
    j->lease_count--;
    int serves = 0;
    for (struct lease **at = &w->leases; *at;) {
        if (*at == l) {
            *at = l->worker_next;
        } else {
            serves |= (*at)->job == j;
            at = &(*at)->worker_next;
        }
    }
    if (--w->lease_count == 0)
        w->idle_since_ms = s->now_ms;
    if (!serves) {
        j->workers--;
        if (j->row.params.max_workers)
            s->work_dirty = 1;
    }
    l->worker_next = s->free_leases;
    s->free_leases = l;
    s->free_lease_count++;
    worker_refresh(s, w);
}

void lease_release(struct sched *s, struct lease *l)
{
    while (l->first)
        span_ready(s, l->job, l->first);
    lease_end(s, l);
}

struct lease *lease_find(const struct sched *s, uint64_t epoch, uint64_t worker)
{
    struct lease *l = map_get(&s->epochs, epoch);
    return l && l->worker->id == worker ? l : NULL;
}

struct node *lease_carve(struct sched *s, struct lease *l, struct span span)
{
    struct job *j = l->job;
    struct node *n = ledger_find(&j->ledger, span.begin);
    if (!n || n->lease != l || span.end <= span.begin)
        return NULL;
    if (span.begin > n->span.begin)
        n = span_split(s, j, n, span.begin);
    if (span.end < n->span.end) /* a record may reach beyond its span */
        span_split(s, j, n, span.end);
    return n;
}

static void switch_rate(struct worker *w, uint64_t job)
{
    struct past_rate now = {w->rate_job, w->last_size, w->bytes_per_s, w->records_per_s}, then = {.job = job};
    size_t i = 0;
    while (i < PAST_RATES - 1 && w->past[i].job != job)
        i++;
    if (w->past[i].job == job)
        then = w->past[i];
    memmove(w->past + 1, w->past, i * sizeof *w->past);
    w->past[0] = now;
    w->rate_job = job;
    w->last_size = then.last_size;
    w->bytes_per_s = then.bytes_per_s;
    w->records_per_s = then.records_per_s;
}

struct lease *lease_grant(struct sched *s, struct worker *w, struct job *j, struct node *n, uint64_t bytes)
{
    if (!MUTANT(7) || !s->counter)
        s->counter++;
    BUG_IF(!s->counter, "the epochs of this generation are used up");
    uint64_t epoch = EPOCH(s->generation, s->counter);
    if (MUTANT(7) && map_get(&s->epochs, epoch))
        epoch = EPOCH(s->generation, ++s->counter);
    struct lease *l = lease_open(s, j, w, epoch);
    span_account(j, n, -1);
    link_piece(l, NULL, n);
    span_account(j, n, 1);
    touch(s, j, n);
    if (!n->probe) {
        uint64_t end = layout_advance(&j->layout, n->span.begin, bytes, n->span.end);
        struct span rest = {end, n->span.end};
        if (end < n->span.end && job_weight(j, &rest) > bytes / 8) /* no crumbs */
            settle(s, j, span_split(s, j, n, end));
    }
    l->probe = n->probe;
    l->claimed = 1;
    l->read_to = n->span.begin;
    l->seen_ms = s->now_ms;
    if (w->lease_count == 1) { /* it begins to work */
        w->progress_ms = s->now_ms;
        w->rate_ms += s->now_ms - w->idle_since_ms; /* waiting for work is not slowness */
    }
    if (w->rate_job != j->row.id) {
        switch_rate(w, j->row.id);
        w->rate_ms = s->now_ms;
        w->acc_bytes = w->acc_records = 0;
    }
    if (!n->probe)
        w->last_size = l->bytes_left;
    w->loading = j->row.params.model_key && w->model_key != j->row.params.model_key;
    struct sched_action *a = core_message(s, SCHED_DO_SEND_LEASE, j->row.id, w->id, epoch);
    a->u.lease.span = n->span;
    a->u.lease.probe = n->probe | (n->attempts && n->attempts >= j->row.params.max_attempts ? 2 : 0);
    a->u.lease.attempt = j->row.attempt;
    worker_refresh(s, w);
    worker_timer(s, w);
    return l;
}

/* Rates and sizes ------------------------------------------------------------------------------------------------------------- */

static uint64_t last_size(const struct worker *w, const struct job *j)
{
    if (w->rate_job == j->row.id)
        return w->last_size;
    for (size_t i = 0; i < PAST_RATES; i++)
        if (w->past[i].job == j->row.id)
            return w->past[i].last_size;
    return 0;
}

double worker_rate(const struct worker *w, const struct job *j)
{
    if (w->rate_job == j->row.id)
        return w->bytes_per_s;
    for (size_t i = 0; i < PAST_RATES; i++)
        if (w->past[i].job == j->row.id)
            return w->past[i].bytes_per_s;
    return 0;
}

static uint64_t record_bytes(const struct job *j)
{
    return j->row.counts.records ? j->row.counts.bytes / j->row.counts.records : 0;
}

uint64_t lease_bytes(const struct sched *s, const struct worker *w, const struct job *j)
{
    double rate = worker_rate(w, j);
    uint64_t last = last_size(w, j), most = last ? last * 4 : FIRST_LEASE_BYTES;
    uint32_t target_ms = j->row.params.lease_target_ms ? j->row.params.lease_target_ms : 30000;
    uint64_t bytes = most, least = LEAST_LEASE_BYTES;
    if (rate > 0) {
        double want = rate * target_ms / 1000;
        if (want < (double)bytes)
            bytes = (uint64_t)want;
        least = (uint64_t)(rate * s->config.min_lease_ms / 1000);
    }
    if (least < 2 * record_bytes(j)) /* a span that holds no record's beginning is work for nothing */
        least = 2 * record_bytes(j);
    uint64_t useful = j->workers + s->idle_count + !w->idle;
    for (const struct lease *l = w->leases; l; l = l->worker_next)
        if (l->job == j) {
            useful--;
            break;
        }
    if (j->row.params.max_workers && useful > j->row.params.max_workers)
        useful = j->row.params.max_workers;
    if (useful > 1 && bytes > j->ready_bytes / (2 * useful))
        bytes = j->ready_bytes / (2 * useful);
    if (bytes < least)
        bytes = least;
    return bytes ? bytes : 1;
}

/* Of the lease's bytes: how many are not computed yet, and how many of these not even read. */
static uint64_t bytes_to_do(const struct lease *l)
{
    uint64_t ahead = l->bytes_done > l->bytes_committed ? l->bytes_done - l->bytes_committed : 0;
    return l->bytes_left > ahead ? l->bytes_left - ahead : 0;
}

static uint64_t unread_from(const struct lease *l)
{
    return l->read_to > l->first->span.begin ? l->read_to : l->first->span.begin;
}

static uint64_t bytes_unread(const struct lease *l)
{
    return layout_weight(&l->job->layout, unread_from(l), l->last->span.end);
}

int lease_near_end(const struct sched *s, const struct worker *w, const struct lease *l)
{
    uint64_t unread = bytes_unread(l);
    if (!unread)
        return 1;
    double rate = worker_rate(w, l->job);
    return rate > 0 && (double)unread * 1000 / rate < 2.0 * s->config.beat_ms;
}

/* Adds what the lease says to have done since it was last asked, and renews the rates when enough time has gone by. */
void worker_measure(struct sched *s, struct worker *w, struct lease *l)
{
    uint64_t bytes = l->bytes_done > l->bytes_committed ? l->bytes_done : l->bytes_committed;
    uint64_t records = l->records_done > l->records_committed ? l->records_done : l->records_committed;
    if (w->rate_job == l->job->row.id) {
        w->acc_bytes += bytes - l->bytes_counted;
        w->acc_records += records - l->records_counted;
    }
    l->bytes_counted = bytes;
    l->records_counted = records;
    uint64_t ms = s->now_ms - w->rate_ms;
    if (ms < s->config.beat_ms / 2 || !ms || (w->bytes_per_s <= 0 && !w->acc_bytes))
        return;
    double b = (double)w->acc_bytes * 1000 / (double)ms, r = (double)w->acc_records * 1000 / (double)ms;
    double keep = w->bytes_per_s > 0 ? 0.7 : 0;
    w->bytes_per_s = w->bytes_per_s * keep + b * (1 - keep);
    w->records_per_s = w->records_per_s * keep + r * (1 - keep);
    w->acc_bytes = w->acc_records = 0;
    w->rate_ms = s->now_ms;
}

static void job_measure(struct sched *s, struct job *j, uint64_t records, uint64_t bytes)
{
    uint64_t second = s->now_ms / 1000;
    size_t i = second % RATE_BUCKETS;
    if (j->rate[i].second != second) {
        j->rate[i].second = second;
        j->rate[i].records = j->rate[i].bytes = 0;
    }
    j->rate[i].records += records;
    j->rate[i].bytes += bytes;
}

/* Commits --------------------------------------------------------------------------------------------------------------------- */

/* Whether one span lies in one piece of the lease. */
static int held(const struct lease *l, const struct span *span)
{
    const struct node *n = ledger_find(&l->job->ledger, span->begin);
    return span->begin < span->end && n && n->lease == l && span->end <= n->span.end;
}

static int overlaps_done(const struct sched_event *ev, const struct span *span)
{
    size_t low = 0, high = ev->u.commit.done_count;
    while (low < high) { /* the first done span that ends behind span->begin */
        size_t mid = low + (high - low) / 2;
        if (ev->u.commit.done[mid].span.end > span->begin)
            high = mid;
        else
            low = mid + 1;
    }
    return low < ev->u.commit.done_count && ev->u.commit.done[low].span.begin < span->end;
}

/* What a commit gives back that a cut took meanwhile (the two may pass each other) is back already. 0: nothing is left of it. */
static int clip(const struct lease *l, struct span *span)
{
    if (span->end > l->last->span.end)
        span->end = l->last->span.end;
    return span->begin < span->end;
}

/* Everything that it names is still held under this lease, once. */
static int commit_fits(const struct lease *l, const struct sched_event *ev)
{
    const struct extent *done = ev->u.commit.done;
    const struct sched_returned *back = ev->u.commit.returned;
    size_t done_count = ev->u.commit.done_count, back_count = ev->u.commit.returned_count;
    size_t holes = 0;
    for (size_t i = 0; i < done_count; i++) {
        if (!held(l, &done[i].span) || (i && done[i].span.begin < done[i - 1].span.end))
            return 0;
        holes += i == 0 || done[i].span.begin != done[i - 1].span.end;
    }
    for (size_t i = 0; i < back_count; i++) {
        struct span span = back[i].span;
        if (span.begin >= span.end)
            return 0;
        if (clip(l, &span) && (!held(l, &span) || overlaps_done(ev, &span)))
            return 0;
        if (i && back[i].span.begin >= back[i - 1].span.end)
            continue;
        for (size_t k = 0; k < i; k++) /* not in order: each with each */
            if (back[i].span.begin < back[k].span.end && back[k].span.begin < back[i].span.end)
                return 0;
    }
    return l->pieces + holes + back_count <= MAX_PIECES * 2;
}

static void take_out(struct sched *s, struct lease *l, const struct span *span)
{
    struct job *j = l->job;
    struct node *n = ledger_find(&j->ledger, span->begin);
    if (n->span.begin == span->begin && span->end < n->span.end) {
        advance(s, j, n, span->end);
        return;
    }
    n = lease_carve(s, l, *span);
    span_drop(s, j, n);
}

static void give_back(struct sched *s, struct lease *l, const struct sched_returned *back)
{
    struct job *j = l->job;
    struct span span = back->span;
    if (!l->pieces || !clip(l, &span))
        return;
    struct node *n = lease_carve(s, l, span);
    if (MUTANT(5)) {
        span_drop(s, j, n);
        return;
    }
    if (back->transient && n->attempts < UINT16_MAX && !MUTANT(20))
        n->attempts++;
    uint16_t attempts = n->attempts;
    n = span_ready(s, j, n);
    if (back->transient && !MUTANT(20)) {
        uint64_t delay = s->config.retry_delay_ms;
        for (unsigned i = 1; i < attempts && delay < MAX_BACKOFF_MS; i++)
            delay *= 2;
        span_back_off(s, j, n, s->now_ms + (delay < MAX_BACKOFF_MS ? delay : MAX_BACKOFF_MS) + 1);
    }
}

static void answer(struct sched *s, const struct sched_event *ev, enum ack_verdict verdict)
{
    struct sched_action *a = core_message(s, SCHED_DO_SEND_ACK, ev->job, ev->worker, ev->epoch);
    a->u.ack.seq = ev->u.commit.seq;
    a->u.ack.verdict = verdict;
}

static void refuse(struct sched *s, const struct sched_event *ev)
{
    struct job *j = core_job(s, ev->job);
    if (j && j->row.state != JOB_DONE && j->row.state != JOB_CANCELED) {
        j->row.counts.redone++;
        core_touch_job(s, j);
    }
    answer(s, ev, ACK_STALE);
}

enum status lease_commit(struct sched *s, const struct sched_event *ev, struct err *e)
{
    uint64_t seq = ev->u.commit.seq;
    struct lease *l = lease_find(s, ev->epoch, ev->worker);
    struct worker *w = map_get(&s->workers, ev->worker);
    size_t spans = ev->u.commit.done_count + ev->u.commit.returned_count;
    int breach = l && seq >= l->next_seq && !ev->u.commit.part_fault && (seq > l->next_seq || ev->job != l->job->row.id || !commit_fits(l, ev));
    if (core_room(s, ev->u.commit.done_count + 8, 4, breach ? l->pieces * 3 : spans * 7 + 2, 0))
        return err_nomem(e, "a commit");
    if (w)
        worker_heard(s, w);
    if (MUTANT(2) && !l && core_job(s, ev->job) && ev->u.commit.done_count && core_job(s, ev->job)->row.state == JOB_RUNNING) {
        core_row(s, SCHED_DO_PUT_EXTENT, ev->job)->u.extent = ev->u.commit.done[0];
        answer(s, ev, ACK_DONE);
        return ST_OK;
    }
    if (!l) {
        const struct ended *was = map_get(&s->ended_epochs, ev->epoch);
        if (was && was->worker == ev->worker && seq < was->next_seq)
            answer(s, ev, ACK_DONE);
        else
            refuse(s, ev);
        return ST_OK;
    }
    struct job *j = l->job;
    if (seq < l->next_seq) {
        if (MUTANT(1))
            for (size_t i = 0; i < ev->u.commit.done_count; i++)
                core_row(s, SCHED_DO_PUT_EXTENT, j->row.id)->u.extent = ev->u.commit.done[i];
        answer(s, ev, ACK_DONE);
        return ST_OK;
    }
    if (ev->u.commit.part_fault) {
        answer(s, ev, ACK_FAULT);
        return ST_OK;
    }
    if (breach) {
        /* against the protocol: nobody knows what this worker has done, so what it holds is done again */
        core_history(s, j, "worker %llx: commit %llu of lease %llx does not fit what it holds, the lease is taken back",
                     (unsigned long long)ev->worker, (unsigned long long)seq, (unsigned long long)ev->epoch);
        lease_release(s, l);
        refuse(s, ev);
        return ST_OK;
    }
    l->next_seq++;
    uint64_t records = 0, bytes = 0;
    for (size_t i = 0; i < ev->u.commit.done_count; i++) {
        const struct extent *done = &ev->u.commit.done[i];
        if (l->probe)
            blame_passed(s, l, &done->span);
        take_out(s, l, &done->span);
        struct sched_action *a = core_row(s, SCHED_DO_PUT_EXTENT, j->row.id);
        a->u.extent = *done;
        a->u.extent.attempt = j->row.attempt;
        a->u.extent.epoch = l->epoch;
        a->u.extent.seq = seq;
        records += done->records;
        bytes += done->bytes;
        j->row.counts.rows += done->rows;
        j->row.counts.errors += done->errors;
    }
    j->row.counts.records += records;
    j->row.counts.bytes += bytes;
    j->row.counts.extents += ev->u.commit.done_count;
    l->records_committed += records;
    l->bytes_committed += bytes;
    for (size_t i = 0; i < ev->u.commit.returned_count; i++)
        give_back(s, l, &ev->u.commit.returned[i]);
    if (ev->u.commit.done_count) {
        j->crash_run = 0;
        j->crashed = 0;
        job_measure(s, j, records, bytes);
    }
    core_touch_job(s, j);
    answer(s, ev, ACK_DONE);
    if (w) {
        w->progress_ms = s->now_ms;
        worker_measure(s, w, l);
        if (ev->u.commit.done_count && w->loading) {
            w->model_key = j->row.params.model_key;
            w->loading = 0;
            worker_timer(s, w);
        }
    }
    if (!l->pieces)
        lease_end(s, l);
    else if (l->first->next_seq != l->next_seq && !MUTANT(6)) /* one piece at least carries the number */
        touch(s, j, l->first);
    job_check_errors(s, j, 0);
    job_finish(s, j);
    if (w && w->joined)
        share_feed(s, w);
    return ST_OK;
}

/* Cuts ------------------------------------------------------------------------------------------------------------------------ */

static void ask_cut(struct sched *s, struct lease *l, uint64_t at)
{
    if (!l->cut_deadline_ms)
        s->cuts++;
    l->cut_deadline_ms = s->now_ms + s->config.cut_timeout_ms;
    core_message(s, SCHED_DO_SEND_CUT, l->job->row.id, l->worker->id, l->epoch)->u.cut_at = at;
    worker_timer(s, l->worker);
}

/* Where the lease l of v should be cut so that w and v end together; its end: nowhere. *finish_s: when v would be done alone. */
static uint64_t cut_point(const struct sched *s, const struct lease *l, const struct worker *w, double *finish_s)
{
    const struct job *j = l->job;
    const struct worker *v = l->worker;
    double rv = worker_rate(v, j), rw = worker_rate(w, j);
    if (rv <= 0)
        rv = rw > 0 ? rw : DEFAULT_RATE;
    if (rw <= 0)
        rw = rv;
    double before = 0;
    for (const struct lease *b = v->leases; b != l; b = b->worker_next)
        before += (double)bytes_to_do(b);
    double unread = (double)bytes_unread(l), to_do = (double)bytes_to_do(l);
    if (to_do < unread)
        to_do = unread;
    double backlog = before + to_do - unread;
    *finish_s = (before + to_do) / rv;
    uint64_t end = l->last->span.end, from = unread_from(l), at;
    if (*finish_s * 1000 < 2.0 * s->config.min_lease_ms)
        return end;
    double keep = (unread * rv - backlog * rw) / (rv + rw); /* (backlog + keep) / rv = (unread - keep) / rw */
    at = keep < 1 ? from : layout_advance(&j->layout, from, (uint64_t)keep, end);
    if (at >= end)
        return end;
    if (at != l->first->span.begin && !layout_enterable(&j->layout, at))
        at = j->layout.base[layout_source(&j->layout, at) + 1];
    if (at >= end)
        return end;
    uint64_t tail = layout_weight(&j->layout, at, end);
    return tail < record_bytes(j) || (double)tail * 1000 / rw < s->config.min_lease_ms ? end : at;
}

int lease_cut_for(struct sched *s, struct worker *w)
{
    struct lease *best = NULL;
    uint64_t best_at = 0;
    double longest = 0;
    int32_t priority = 0;
    for (struct job *j = s->running; j; j = j->next_running) {
        if (!j->lease_count || s->now_ms < j->no_cut_before_ms || !share_may_serve(s, w, j) ||
            (best && j->row.params.priority < priority))
            continue;
        int found = 0;
        for (struct lease *l = j->leases; l; l = l->job_next) {
            if (l->probe || !l->claimed || l->cut_deadline_ms || l->refused_cut || l->worker == w || !worker_usable(l->worker))
                continue;
            double finish;
            uint64_t at = cut_point(s, l, w, &finish);
            if (at >= l->last->span.end)
                continue;
            found = 1;
            if (!best || j->row.params.priority > priority || finish > longest) {
                best = l;
                best_at = at;
                longest = finish;
                priority = j->row.params.priority;
            }
        }
        if (!found) /* spares the next idle worker the search */
            j->no_cut_before_ms = s->now_ms + s->config.beat_ms / 2;
    }
    if (!best)
        return 0;
    if (core_room(s, 0, 1, 0, 0)) {
        core_later(s);
        return 0;
    }
    ask_cut(s, best, best_at);
    return 1;
}

enum status lease_cut_answered(struct sched *s, const struct sched_event *ev, struct err *e)
{
    struct lease *l = lease_find(s, ev->epoch, ev->worker);
    struct worker *w = map_get(&s->workers, ev->worker);
    if (core_room(s, 4, 2, (l ? l->pieces * 3 : 0) + 4, 0))
        return err_nomem(e, "a cut");
    if (w)
        worker_heard(s, w);
    if (!l)
        return ST_OK;
    struct job *j = l->job;
    if (l->cut_deadline_ms) {
        l->cut_deadline_ms = 0;
        s->cuts--;
    }
    uint64_t at = ev->u.cut.at;
    if (MUTANT(3) && at < l->last->span.end)
        at -= (at - l->first->span.begin) / 2;
    if (at >= l->last->span.end)
        l->refused_cut = 1;
    while (l->last && l->last->span.end > at) {
        if (l->last->span.begin < at)
            span_split(s, j, l->last, at);
        span_ready(s, j, l->last);
    }
    if (!l->pieces) {
        lease_end(s, l);
    } else if (l->first->next_seq != l->next_seq) {
        touch(s, j, l->first);
    }
    return ST_OK;
}

int lease_sweep(struct sched *s)
{
    while (s->sweeps) {
        struct job *j = s->sweeps;
        for (struct lease *l = j->leases; l && j->row.state != JOB_RUNNING; l = l->job_next) {
            if (l->told_to_stop || !l->claimed || l->probe)
                continue;
            if (core_room(s, 0, 1, 0, 0))
                return -1;
            l->told_to_stop = 1;
            ask_cut(s, l, unread_from(l));
        }
        j->sweep = 0;
        s->sweeps = j->next_sweep;
    }
    return 0;
}

/* Beats ----------------------------------------------------------------------------------------------------------------------- */

enum status lease_beat(struct sched *s, const struct sched_event *ev, struct err *e)
{
    struct worker *w = map_get(&s->workers, ev->worker);
    if (!w || !w->joined)
        return ST_OK; /* the link asks strangers to say hello first */
    /* the lost ones of the leases that it does not name are rare: no room for each piece every second */
    if (core_room(s, 0, ev->u.beat.count + w->lease_count + 3, 0, 0))
        return err_nomem(e, "a heartbeat");
    worker_heard(s, w);
    w->mute = 0;
    worker_refresh(s, w);
    if (w->draining && s->now_ms - w->drain_sent_ms >= s->config.cut_timeout_ms / 2) { /* it did not hear, it seems */
        w->drain_sent_ms = s->now_ms;
        core_message(s, SCHED_DO_SEND_DRAIN, 0, w->id, 0);
    }
    for (size_t i = 0; i < ev->u.beat.count; i++) {
        const struct sched_progress *p = &ev->u.beat.leases[i];
        struct lease *l = lease_find(s, p->epoch, w->id);
        if (!l || w->banned) {
            core_message(s, SCHED_DO_SEND_REVOKE, ev->job, w->id, p->epoch);
            continue;
        }
        l->seen_ms = s->now_ms;
        if (p->records_done > l->records_done || p->bytes_done > l->bytes_done || p->read_to > l->read_to)
            w->progress_ms = s->now_ms;
        if (p->read_to > l->read_to)
            l->read_to = p->read_to;
        if (p->records_done > l->records_done)
            l->records_done = p->records_done;
        if (p->bytes_done > l->bytes_done)
            l->bytes_done = p->bytes_done;
        worker_measure(s, w, l);
    }
    for (struct lease *l = w->leases, *next; l; l = next) {
        next = l->worker_next;
        if (s->now_ms - l->seen_ms <= s->config.cut_timeout_ms || s->now_ms < s->no_expiry_before_ms)
            continue;
        if (core_room(s, 2, 1, l->pieces * 3, 0))
            break; /* the next beat will do */
        core_message(s, SCHED_DO_SEND_REVOKE, l->job->row.id, w->id, l->epoch);
        lease_release(s, l);
    }
    share_feed(s, w);
    return ST_OK;
}
