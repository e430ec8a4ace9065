/* How fast the scheduler's core decides, apart from everything that it causes: steps per second for commits of 1,000 and 5,000
   workers, with ledgers of a thousand and of a million spans, and what a span costs in memory. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/host.h"
#include "base/mem.h"
#include "scheduler/sched.h"

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double resident_mib(void)
{
    return (double)host_resident_bytes() / (1 << 20);
}

struct held {
    uint64_t epoch, seq;
    struct span span;
};

struct bench {
    struct sched *s;
    struct sched_update u;
    struct held *held; /* two a worker */
    uint64_t now, leases, answers;
};

static void step(struct bench *b, struct sched_event *ev)
{
    struct err e;
    ev->now_ms = b->now;
    if (sched_step(b->s, ev, &b->u, &e) != ST_OK) {
        fprintf(stderr, "%s\n", e.text);
        exit(1);
    }
    for (size_t i = 0; i < b->u.count; i++) {
        const struct sched_action *a = &b->u.actions[i];
        if (a->kind == SCHED_DO_SEND_LEASE) {
            struct held *h = &b->held[a->worker * 2];
            if (h->epoch)
                h++;
            *h = (struct held){a->epoch, 0, a->u.lease.span};
            b->leases++;
        }
        b->answers += a->kind == SCHED_DO_SEND_ACK && a->u.ack.verdict == ACK_DONE;
    }
}

struct figures {
    double restore_s, span_bytes, commits_per_s, beats_per_s, rss_mib, worst_us;
};

static struct figures run(size_t workers, size_t spans, size_t commits)
{
    struct bench b = {.now = 1000, .held = mem_array(workers * 2 + 2, sizeof *b.held)};
    struct err e;
    struct layout l;
    const uint64_t size = 1000, each = size * 2; /* every other thousand bytes are done */
    uint64_t total = spans * each;
    uint8_t plain = 0;
    double before = resident_mib();
    if (!b.held || sched_new(NULL, &b.s, &e) != ST_OK || layout_init(&l, 1, &total, &plain))
        exit(1);
    struct sched_event ev = {.kind = SCHED_START, .u.start.generation = 1};
    step(&b, &ev);
    struct job_row row = {.id = 1, .params = {.weight = 100, .lease_target_ms = 30000, .max_errors = UINT64_MAX, .max_errors_ppm = UINT32_MAX}};
    ev = (struct sched_event){.kind = SCHED_JOB_RESTORED, .job = 1, .u.job = {&row, &l}};
    step(&b, &ev);
    double t = seconds();
    for (size_t i = 0; i < spans; i++) {
        struct span_row r = {.span = {i * each, i * each + size}};
        ev = (struct sched_event){.kind = SCHED_SPAN_RESTORED, .job = 1, .u.span = &r};
        step(&b, &ev);
    }
    struct figures f = {.restore_s = seconds() - t};
    f.span_bytes = (resident_mib() - before) * (1 << 20) / (double)spans;
    ev = (struct sched_event){.kind = SCHED_RECOVERED};
    step(&b, &ev);
    for (size_t w = 1; w <= workers; w++) {
        ev = (struct sched_event){.kind = SCHED_WORKER_JOINED, .worker = w};
        ev.u.joined.host = w / 16 + 1;
        ev.u.joined.numerics = 7;
        step(&b, &ev);
    }
    /* each worker commits its lease in four parts and is given the next one */
    t = seconds();
    size_t done = 0;
    uint64_t turn = 0;
    double last = t;
    while (done < commits) {
        size_t w = turn++ % workers + 1;
        struct held *h = &b.held[w * 2];
        if (!h->epoch)
            break;
        b.now += turn % 50 == 0;
        uint64_t to = h->seq == 3 ? h->span.end : h->span.begin + size / 4;
        struct extent x = {.span = {h->span.begin, to}, .records = 3, .rows = 3, .rows_bytes = 5000, .bytes = to - h->span.begin};
        ev = (struct sched_event){.kind = SCHED_COMMIT, .job = 1, .worker = w, .epoch = h->epoch};
        ev.u.commit.seq = h->seq++;
        ev.u.commit.done = &x;
        ev.u.commit.done_count = 1;
        h->span.begin = to;
        if (to == h->span.end) {
            h[0] = h[1];
            h[1] = (struct held){0};
        }
        step(&b, &ev);
        done++;
        if (done % 16 == 0) {
            double at = seconds();
            f.worst_us = (at - last) * 1e6 / 16 > f.worst_us ? (at - last) * 1e6 / 16 : f.worst_us;
            last = at;
        }
    }
    t = seconds() - t;
    if (b.answers != done) {
        fprintf(stderr, "%" PRIu64 " of %zu commits were accepted\n", b.answers, done);
        exit(1);
    }
    f.commits_per_s = (double)done / t;
    t = seconds();
    size_t beats = commits;
    for (size_t i = 0; i < beats; i++) {
        size_t w = i % workers + 1;
        struct held *h = &b.held[w * 2];
        struct sched_progress p[2] = {{h[0].epoch, h[0].span.begin, i, i}, {h[1].epoch, h[1].span.begin, 0, 0}};
        ev = (struct sched_event){.kind = SCHED_WORKER_BEAT, .worker = w};
        ev.u.beat.leases = p;
        ev.u.beat.count = h[1].epoch ? 2 : h[0].epoch ? 1 : 0;
        b.now += i % 50 == 0;
        step(&b, &ev);
    }
    f.beats_per_s = (double)beats / (seconds() - t);
    f.rss_mib = resident_mib();
    sched_check(b.s);
    sched_free(b.s);
    sched_update_release(&b.u);
    layout_release(&l);
    mem_free(b.held);
    return f;
}

int main(void)
{
    static const struct {
        size_t workers, spans;
    } cases[] = {{1000, 10000}, {1000, 1000000}, {5000, 1000000}};
    struct figures f[3];
    printf("workers      spans   restore s   bytes/span   commits/s     beats/s   worst us   rss MiB\n");
    for (int i = 0; i < 3; i++) {
        f[i] = run(cases[i].workers, cases[i].spans, cases[i].spans < 100000 ? 8000 * 4 : 400000);
        printf("%7zu %10zu %11.2f %12.0f %11.0f %11.0f %10.1f %9.0f\n", cases[i].workers, cases[i].spans, f[i].restore_s, f[i].span_bytes,
               f[i].commits_per_s, f[i].beats_per_s, f[i].worst_us, f[i].rss_mib);
    }
    printf("{\"bench\":\"sched\",\"commits_per_s_1000_workers\":%.0f,\"commits_per_s_1000_workers_1m_spans\":%.0f,"
           "\"commits_per_s_5000_workers_1m_spans\":%.0f,\"beats_per_s_5000_workers\":%.0f,\"restore_1m_spans_s\":%.2f,"
           "\"bytes_per_span\":%.0f,\"rss_mib\":%.0f}\n",
           f[0].commits_per_s, f[1].commits_per_s, f[2].commits_per_s, f[2].beats_per_s, f[1].restore_s, f[1].span_bytes, f[2].rss_mib);
    return 0;
}
