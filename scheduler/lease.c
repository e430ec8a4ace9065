#include "scheduler/lease.h"

#include <string.h>

#include "scheduler/gang.h"
#include "scheduler/job.h"
#include "scheduler/share.h"
#include "scheduler/worker.h"

#define MODEL_AGAIN_MS 60000 /* a worker that could not load a model is asked again after so long */
#define FIRST_LEASE_BYTES (256u << 10) /* a 64th of what an ordinary one may be; each next one at most four times the last */
#define LEAST_LEASE_BYTES (4u << 10)   /* while a worker's rate is not known */

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
    span_link_piece(l, after, n);
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
    if (w->gang)
        s->gang_dirty = 1;
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
    span_link_piece(l, NULL, n);
    span_account(j, n, 1);
    span_touch(s, j, n);
    if (!n->probe) {
        uint64_t end = layout_advance(&j->layout, n->span.begin, bytes, n->span.end);
        struct span rest = {end, n->span.end};
        if (end < n->span.end && job_weight(j, &rest) > bytes / 8) /* no crumbs */
            span_settle(s, j, span_split(s, j, n, end));
    }
    l->probe = n->probe;
    l->claimed = 1;
    l->read_to = n->span.begin;
    l->seen_ms = s->now_ms;
    l->step = s->step;
    if (w->lease_count == 1) { /* it begins to work */
        w->progress_ms = s->now_ms;
        w->rate_ms += s->now_ms - w->idle_since_ms; /* waiting for work is not slowness */
    }
    if (w->rate_job != j->row.id) {
        worker_switch_rate(w, j->row.id);
        w->rate_ms = s->now_ms;
        w->acc_bytes = w->acc_records = 0;
    }
    if (!n->probe)
        w->last_size = l->bytes_left;
    w->loading = !w->gang && j->row.params.model_key && w->model_key != j->row.params.model_key;
    w->stranded_ms = 0;
    struct sched_action *a = core_message(s, SCHED_DO_SEND_LEASE, j->row.id, w->id, epoch);
    a->u.lease.span = n->span;
    a->u.lease.probe = n->probe | (n->attempts && n->attempts >= j->row.params.max_attempts ? 2 : 0);
    a->u.lease.attempt = j->row.attempt;
    worker_refresh(s, w);
    worker_timer(s, w);
    return l;
}

/* Sizes ----------------------------------------------------------------------------------------------------------------------- */

uint64_t lease_bytes(const struct sched *s, const struct worker *w, const struct job *j)
{
    double rate = worker_rate(w, j);
    uint64_t last = worker_last_size(w, j), most = last ? last * 4 : FIRST_LEASE_BYTES;
    uint32_t target_ms = j->row.params.lease_target_ms ? j->row.params.lease_target_ms : 30000;
    uint64_t bytes = most, least = LEAST_LEASE_BYTES;
    if (rate > 0) {
        double want = rate * target_ms / 1000;
        if (want < (double)bytes)
            bytes = (uint64_t)want;
        least = (uint64_t)(rate * s->config.min_lease_ms / 1000);
    }
    if (least < 2 * job_record_bytes(j)) /* a span that holds no record's beginning is work for nothing */
        least = 2 * job_record_bytes(j);
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
uint64_t lease_bytes_to_do(const struct lease *l)
{
    uint64_t ahead = l->bytes_done > l->bytes_committed ? l->bytes_done - l->bytes_committed : 0;
    return l->bytes_left > ahead ? l->bytes_left - ahead : 0;
}

uint64_t lease_unread_from(const struct lease *l)
{
    return l->read_to > l->first->span.begin ? l->read_to : l->first->span.begin;
}

uint64_t lease_bytes_unread(const struct lease *l)
{
    return layout_weight(&l->job->layout, lease_unread_from(l), l->last->span.end);
}

int lease_near_end(const struct sched *s, const struct worker *w, const struct lease *l)
{
    uint64_t unread = lease_bytes_unread(l);
    if (!unread)
        return 1;
    double rate = worker_rate(w, l->job);
    return rate > 0 && (double)unread * 1000 / rate < 2.0 * s->config.beat_ms;
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
    if (w->failed_model && s->now_ms >= w->failed_ms + MODEL_AGAIN_MS) { /* a disk or a share may be back */
        w->failed_model = 0;
        s->work_dirty = 1;
    }
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
