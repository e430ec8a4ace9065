/* What one job should have: as many workers as have work that is worth their while; with a deadline, as many as it takes, and such as can
   be relied on when others cannot make it. */
#include <inttypes.h>
#include <stdio.h>

#include "base/units.h"
#include "scheduler/gang.h"
#include "scheduler/job.h"
#include "scheduler/scale.h"

#define UNKNOWN_LEASE_BYTES (64u << 10) /* worth a worker's while, while nobody's rate is known */
#define MARGIN 0.8                      /* of the time that is left: the rest is for what goes wrong */
#define HELD_TO 0.5                     /* what a deadline took is given back below this part of it */
#define PRIOR_LIFE_MS 3600000.0         /* of workers that may be taken away, before anything is known of them */
#define WORTH_EXCHANGING 0.05           /* of a worker's time: below, those that may be taken away are as good as others */
#define LOSS_MS 15000.0                 /* what a loss costs: what was not committed, and the time until another one is there */
#define LATE_AFTER_MS 10000             /* it must look late for so long */

/* How many ------------------------------------------------------------------------------------------------------------------------ */

static double bytes_left(const struct job *j)
{
    return (double)(j->ready_bytes + j->leased_bytes);
}

uint32_t scale_useful(const struct sched *s, const struct job *j)
{
    if (!j->ledger.count)
        return 0;
    double left = bytes_left(j), useful = left / UNKNOWN_LEASE_BYTES, record = (double)job_record_bytes(j);
    uint32_t size = gang_size(j), serving = j->workers + gang_silent_members(j);
    if (j->worker_rate > 0) {
        double shortest = s->config.min_lease_ms, loads = (double)j->load_ms > shortest ? (double)j->load_ms : shortest;
        double keep = left * 1000 / (j->worker_rate * shortest);
        if (keep > serving)
            keep = serving; /* these have the model */
        useful = left * 1000 / (j->worker_rate * loads);
        if (useful < keep)
            useful = keep;
    }
    if (record > 0 && useful > (left / record + 1) * size)
        useful = (left / record + 1) * size;
    if (j->all_streams) { /* one worker a stream */
        uint64_t head = ledger_first(&j->ledger)->span.begin;
        double streams = (double)(j->layout.count - layout_source(&j->layout, head)) * size;
        if (useful > streams)
            useful = streams;
    }
    if (MUTANT(21))
        useful = j->workers;
    uint32_t n = useful < 1 ? 1 : useful > SCALE_MOST ? SCALE_MOST : (uint32_t)useful, most = j->row.params.max_workers;
    if (n < j->row.params.min_workers)
        n = j->row.params.min_workers;
    n = (n + size - 1) / size * size; /* whole pipelines */
    if (most && n > most && !MUTANT(26))
        n = most < size ? most : most / size * size;
    return n;
}

/* How many of full worth it takes to be done in time; as many as are useful when that is not known or too late. */
static double effective_need(const struct sched *s, const struct job *j, uint32_t useful)
{
    double ms = j->deadline_at_ms > s->now_ms ? (double)(j->deadline_at_ms - s->now_ms) * MARGIN - (double)j->load_ms : 0;
    if (j->worker_rate <= 0 || ms <= 0)
        return useful;
    double need = bytes_left(j) * 1000 / (j->worker_rate * ms);
    return need < useful ? need : useful;
}

/* From whom ------------------------------------------------------------------------------------------------------------------------ */

/* The part of a worker's time that counts, with the losses that were measured. */
static double worth(const struct sched *s, const struct job *j, size_t provider)
{
    const struct provider_state *p = &s->providers[provider];
    if (!p->preemptible)
        return 1;
    double life = (p->lived_ms + PRIOR_LIFE_MS) / (p->losses + 1);
    return life / (life + LOSS_MS + (double)j->load_ms);
}

/* Free ones: already there, or on this machine. */
static int is_free(size_t provider)
{
    return provider == PROVIDER_NONE || provider == PROVIDER_LOCAL;
}

static uint32_t take(uint32_t *from, uint32_t *to, uint32_t most)
{
    uint32_t n = *from < most ? *from : most;
    *from -= n;
    *to += n;
    return n;
}

/* n workers: free ones, then its share of guaranteed ones, then those that may be taken away, then guaranteed ones again for those that cannot be
   had. Returns what they are worth; `lack`: of those asked for, how many cannot be had. */
static double fill(const struct sched *s, const struct job *j, uint32_t n, struct scale_room *room, uint32_t out[PROVIDERS], uint32_t *lack)
{
    uint32_t left = n, share = (uint32_t)(((uint64_t)j->row.params.guaranteed_ppm * n + 999999) / 1000000);
    double sum = 0;
    for (size_t i = 0; i < PROVIDERS; i++) {
        out[i] = 0;
        if (is_free(i))
            left -= take(&room->sure[i], &out[i], left);
    }
    sum = n - left;
    uint32_t guaranteed = n - left;
    for (int last = 0; last <= 1; last++) {
        for (size_t i = 0; i < PROVIDERS; i++) {
            uint32_t most = last ? left : guaranteed < share ? share - guaranteed : 0;
            if (is_free(i) || s->providers[i].preemptible)
                continue;
            uint32_t got = take(&room->sure[i], &out[i], most < left ? most : left);
            left -= got;
            guaranteed += got;
            sum += got;
        }
        uint32_t may = n > share ? n - share : 0;
        for (size_t i = 0; i < PROVIDERS && !last; i++) {
            if (!s->providers[i].preemptible)
                continue;
            uint32_t got = take(&room->sure[i], &out[i], may < left ? may : left);
            may -= got;
            left -= got;
            sum += got * worth(s, j, i);
        }
    }
    *lack = left;
    return sum;
}

/* Guaranteed ones in the place of those that may be taken away, until it is enough. */
static double exchange(const struct sched *s, const struct job *j, double need, double sum, struct scale_room *room, uint32_t out[PROVIDERS])
{
    for (size_t from = 0; from < PROVIDERS; from++) {
        double gain = 1 - worth(s, j, from);
        if (!s->providers[from].preemptible || gain < WORTH_EXCHANGING)
            continue;
        for (size_t to = 0; to < PROVIDERS && sum < need; to++) {
            if (is_free(to) || s->providers[to].preemptible)
                continue;
            double wanted = (need - sum) / gain + 1;
            uint32_t most = wanted < out[from] ? (uint32_t)wanted : out[from], got = take(&room->sure[to], &out[to], most);
            out[from] -= got;
            room->sure[from] += got;
            sum += got * gain;
        }
    }
    return sum;
}

/* Those that did not come so far are still asked for where nobody else could be. */
static void order(const struct sched *s, uint32_t lack, struct scale_room *room, uint32_t out[PROVIDERS])
{
    for (int preemptible = 0; preemptible <= 1; preemptible++)
        for (size_t i = 1; i < PROVIDERS; i++)
            if (s->providers[i].preemptible == preemptible)
                lack -= take(&room->orders[i], &out[i], lack);
}

void scale_job(struct sched *s, struct job *j, struct scale_room *room, uint32_t want[PROVIDERS])
{
    uint32_t useful = scale_useful(s, j), n = useful, lack = 0, out[PROVIDERS];
    struct scale_room rest = *room;
    double need = useful, sum;
    j->need = 0;
    if (j->deadline_at_ms) {
        need = effective_need(s, j, useful);
        if (j->worker_rate > 0) {
            if (need > j->held_need || need < j->held_need * HELD_TO)
                j->held_need = need;
            need = j->held_need < useful ? j->held_need : useful;
        }
        uint32_t nothing = room->sure[PROVIDER_NONE] + room->sure[PROVIDER_LOCAL];
        n = (uint32_t)need + ((double)(uint32_t)need < need);
        if (n < nothing)
            n = nothing; /* these cost nothing */
        if (n < j->row.params.min_workers)
            n = j->row.params.min_workers;
        if (n > useful)
            n = useful;
    }
    for (;;) {
        rest = *room;
        sum = fill(s, j, n, &rest, out, &lack);
        double more = need - sum;
        if (more <= 0 || n >= useful || lack)
            break;
        n = more + 1 < useful - n ? n + (uint32_t)more + 1 : useful; /* each is worth less than one, so this never goes too far */
    }
    if (j->deadline_at_ms && j->worker_rate > 0)
        sum = exchange(s, j, need, sum, &rest, out);
    order(s, lack, &rest, out);
    *room = rest;
    j->need = j->deadline_at_ms ? n : 0;
    j->given = n - lack;
    j->ends_ms = j->worker_rate > 0 && sum > 0 ? bytes_left(j) * 1000 / (j->worker_rate * sum) : -1;
    for (size_t i = 1; i < PROVIDERS; i++)
        want[i] += out[i];
}

/* Deadlines ------------------------------------------------------------------------------------------------------------------------- */

static double deadline_left_ms(const struct sched *s, const struct job *j)
{
    return (double)j->deadline_at_ms - (double)s->now_ms - (double)j->overdue_ms;
}

void scale_late_words(const struct sched *s, const struct job *j, char *out, size_t size)
{
    char left[UNITS_MAX], ends[UNITS_MAX];
    out[0] = 0;
    if (!j->deadline_at_ms || !j->late)
        return;
    double ms = deadline_left_ms(s, j);
    if (ms <= 0 && j->ends_ms >= 0)
        snprintf(out, size, "its deadline passed %s ago, it takes about %s more", units_duration(left, -ms / 1000), units_duration(ends, j->ends_ms / 1000));
    else if (ms <= 0)
        snprintf(out, size, "its deadline passed %s ago", units_duration(left, -ms / 1000));
    else
        snprintf(out, size, "it cannot be done by its deadline: %s are left, and with the %u worker%s that can be had it takes about %s",
                 units_duration(left, ms / 1000), j->given, j->given == 1 ? "" : "s", units_duration(ends, j->ends_ms / 1000));
}

void scale_deadline(struct sched *s, struct job *j)
{
    double ms = deadline_left_ms(s, j);
    int late = ms <= 0 || (j->ends_ms >= 0 && j->ends_ms > (j->late ? ms * 0.9 : ms));
    if (late == j->late) {
        j->late_ms = 0;
        return;
    }
    if (!j->late_ms)
        j->late_ms = s->now_ms;
    if (ms > 0 && s->now_ms - j->late_ms < LATE_AFTER_MS)
        return;
    j->late = late;
    j->late_ms = 0;
    char words[200];
    scale_late_words(s, j, words, sizeof words);
    core_history(s, j, "%s", late ? words : "it will be done by its deadline after all");
}
