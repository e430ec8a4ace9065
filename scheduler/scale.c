#include "scheduler/scale.h"

#define PERIOD_MS 1000
#define UNKNOWN_LEASE_BYTES (64u << 10) /* worth a worker's while, while nobody's rate is known */
#define MOST 1000000u

void job_rate(const struct sched *s, const struct job *j, double *records_per_s, double *bytes_per_s)
{
    uint64_t second = s->now_ms / 1000, records = 0, bytes = 0, oldest = second;
    for (size_t i = 0; i < RATE_BUCKETS; i++) {
        if (second - j->rate[i].second >= 30 || !(j->rate[i].records || j->rate[i].bytes))
            continue;
        records += j->rate[i].records;
        bytes += j->rate[i].bytes;
        if (j->rate[i].second < oldest)
            oldest = j->rate[i].second;
    }
    double span_s = (double)(s->now_ms - oldest * 1000) / 1000;
    if (span_s < 1)
        span_s = 1;
    *records_per_s = (double)records / span_s;
    *bytes_per_s = (double)bytes / span_s;
}

uint32_t scale_useful(const struct sched *s, const struct job *j)
{
    if (!j->ledger.count)
        return 0;
    double records, bytes, lease = UNKNOWN_LEASE_BYTES;
    job_rate(s, j, &records, &bytes);
    if (bytes > 0 && j->workers) {
        lease = bytes / j->workers * s->config.min_lease_ms / 1000;
        if (lease < 1)
            lease = 1;
    }
    double useful = (double)(j->ready_bytes + j->leased_bytes) / lease;
    if (j->all_streams) { /* one worker a stream */
        uint64_t head = ledger_first(&j->ledger)->span.begin;
        double streams = (double)(j->layout.count - layout_source(&j->layout, head));
        if (useful > streams)
            useful = streams;
    }
    uint32_t n = useful < 1 ? 1 : useful > MOST ? MOST : (uint32_t)useful;
    if (n < j->row.params.min_workers)
        n = j->row.params.min_workers;
    if (j->row.params.max_workers && n > j->row.params.max_workers)
        n = j->row.params.max_workers;
    return n;
}

void scale_update(struct sched *s)
{
    if (!s->scale_dirty || (s->now_ms < s->scale_ms && s->wanted_known && !s->running == !s->wanted))
        return;
    s->scale_dirty = 0;
    s->scale_ms = s->now_ms + PERIOD_MS;
    uint64_t sum = 0;
    for (const struct job *j = s->running; j; j = j->next_running)
        sum += scale_useful(s, j);
    uint32_t wanted = sum > MOST ? MOST : (uint32_t)sum;
    if (s->wanted_known && wanted == s->wanted)
        return;
    s->wanted_known = 1;
    s->wanted = wanted;
    core_message(s, SCHED_DO_WANT_WORKERS, 0, 0, 0)->u.workers = wanted;
}
