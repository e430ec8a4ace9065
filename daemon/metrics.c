#include "daemon/metrics.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/path.h"
#include "daemon/agents.h"
#include "daemon/api.h"
#include "daemon/apply.h"
#include "daemon/auth.h"
#include "daemon/call.h"
#include "daemon/gangs.h"
#include "daemon/job.h"
#include "daemon/link.h"
#include "daemon/provider.h"
#include "daemon/relay.h"

/* Counting ------------------------------------------------------------------------------------------------------------------------- */

static const double bounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10};
#define BOUNDS (sizeof bounds / sizeof *bounds)
#define WORKER_ENDS (WORKER_HUNG + 1)

static _Atomic uint64_t counters[METRIC_COUNTERS];
static _Atomic uint64_t ended[WORKER_ENDS];
static _Atomic uint64_t acked[BOUNDS + 1], acked_ns;

void metrics_add(enum metric_counter c, uint64_t n)
{
    atomic_fetch_add_explicit(&counters[c], n, memory_order_relaxed);
}

void metrics_worker_ended(enum worker_end how)
{
    atomic_fetch_add_explicit(&ended[how], 1, memory_order_relaxed);
}

void metrics_commit_acked(uint64_t took_ns)
{
    size_t i = 0;
    while (i < BOUNDS && (double)took_ns > bounds[i] * 1e9)
        i++;
    atomic_fetch_add_explicit(&acked[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&acked_ns, took_ns, memory_order_relaxed);
}

/* Writing -------------------------------------------------------------------------------------------------------------------------- */

int metrics_label(struct buf *out, const char *value)
{
    int failed = 0;
    for (; *value && !failed; value++) {
        const char *escaped = *value == '\\' ? "\\\\" : *value == '"' ? "\\\"" : *value == '\n' ? "\\n" : NULL;
        failed = escaped ? buf_str(out, escaped) : buf_char(out, *value);
    }
    return failed;
}

static int head(struct buf *out, const char *name, const char *type, const char *help)
{
    return buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static int number(struct buf *out, const char *name, const char *type, const char *help, double v)
{
    return head(out, name, type, help) || buf_printf(out, "%s %.15g\n", name, v);
}

static int write_counters(struct buf *out)
{
    static const struct {
        const char *series, *help;
    } texts[METRIC_COUNTERS] = {
#define X(name, series, help) [METRIC_##name] = {series, help},
        METRIC_COUNTER_MAP(X)
#undef X
    };
    static const char *const ends[WORKER_ENDS] = {
#define X(name, word, guilt) [WORKER_##name] = word,
        WORKER_END_MAP(X)
#undef X
    };
    int failed = 0;
    for (size_t i = 0; i < METRIC_COUNTERS && !failed; i++)
        failed = number(out, texts[i].series, "counter", texts[i].help, (double)atomic_load_explicit(&counters[i], memory_order_relaxed));
    failed = failed || head(out, "ebb_workers_ended_total", "counter", "Workers that went, by how they did.");
    for (size_t i = 0; i < WORKER_ENDS && !failed; i++)
        failed = buf_printf(out, "ebb_workers_ended_total{how=\"%s\"} %" PRIu64 "\n", ends[i], atomic_load_explicit(&ended[i], memory_order_relaxed));
    return failed;
}

static int write_histogram(struct buf *out)
{
    static const char name[] = "ebb_commit_ack_seconds";
    uint64_t sum = 0;
    int failed = head(out, name, "histogram", "From a commit's arrival to its acknowledgement's leaving, the part's examination and the sync included.");
    for (size_t i = 0; i < BOUNDS && !failed; i++) {
        sum += atomic_load_explicit(&acked[i], memory_order_relaxed);
        failed = buf_printf(out, "%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, bounds[i], sum);
    }
    sum += atomic_load_explicit(&acked[BOUNDS], memory_order_relaxed);
    return failed || buf_printf(out, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n%s_sum %.9g\n%s_count %" PRIu64 "\n", name, sum, name,
                                (double)atomic_load_explicit(&acked_ns, memory_order_relaxed) / 1e9, name, sum);
}

static int write_store(const struct daemon *d, struct buf *out)
{
    struct apply_figures f;
    apply_figures(d->apply, &f);
    return number(out, "ebb_store_group_commits_total", "counter", "Synced writes of the store; each holds the rows of all that waited.", (double)f.groups) ||
           number(out, "ebb_store_rows_total", "counter", "Rows written.", (double)f.rows) ||
           number(out, "ebb_store_sync_seconds_total", "counter", "Time spent in synced writes.", (double)f.sync_us / 1e6) ||
           number(out, "ebb_store_last_sync_seconds", "gauge", "How long the last synced write took.", (double)f.last_sync_us / 1e6);
}

static int write_relay(const struct daemon *d, struct buf *out)
{
    struct relay_figures f;
    relay_figures(d, &f);
    return number(out, "ebb_relay_peers", "gauge", "Workers that get files through the daemon.", (double)f.peers) ||
           head(out, "ebb_relay_sent_bytes_total", "counter", "Bytes that the relay gave to workers.") ||
           buf_printf(out, "ebb_relay_sent_bytes_total{what=\"input\"} %" PRIu64 "\nebb_relay_sent_bytes_total{what=\"model\"} %" PRIu64 "\n", f.read_bytes,
                      f.model_bytes) ||
           number(out, "ebb_relay_received_bytes_total", "counter", "Bytes of parts that the relay took from workers.", (double)f.written_bytes) ||
           number(out, "ebb_relay_parts_total", "counter", "Parts that the relay completed.", (double)f.parts) ||
           number(out, "ebb_relay_refused_total", "counter", "Questions that the relay answered with an error.", (double)f.refused) ||
           number(out, "ebb_keys_refused_total", "counter", "Connections and messages that were refused over the network: no key, an unknown or revoked one, nonsense.",
                  (double)auth_refused(d->auth)) ||
           number(out, "ebb_relay_model_fetches_total", "counter", "Hosts that were let read a model from the daemon.", (double)f.model_fetches) ||
           number(out, "ebb_relay_waiting_bytes", "gauge", "Answers that workers have not taken yet.", (double)f.waiting_bytes);
}

/* Workers: by provider and state. */
static const char *const worker_states[] = {"starting", "loading", "running", "idle", "probing", "draining", "lost", "frozen"};
#define WORKER_STATES (sizeof worker_states / sizeof *worker_states)
static const char *const node_states[] = {"free", "frozen", "leaving", "away", "silent", "new"};
#define NODE_STATES (sizeof node_states / sizeof *node_states)

static size_t find_word(const char *const *words, size_t count, const char *word)
{
    size_t i = 0;
    while (i < count && strcmp(words[i], word) != 0)
        i++;
    return i;
}

static size_t worker_state(const struct daemon *d, const struct sched_worker_view *v)
{
    const char *word = api_worker_state(v, v->job ? job_find((struct daemon *)(uintptr_t)d, v->job) : NULL);
    size_t i = find_word(worker_states, WORKER_STATES, word);
    BUG_IF(i == WORKER_STATES, "a worker is in state '%s'", word);
    return i;
}

/* What agents say of their nodes. */
struct nodes {
    uint64_t states[NODE_STATES];
    uint64_t *frozen; /* workers, ascending once all are there */
    size_t frozen_count, frozen_cap;
    int failed;
};

static void on_node(void *arg, const char *state)
{
    struct nodes *n = arg;
    size_t i = find_word(node_states, NODE_STATES, state);
    if (i < NODE_STATES) /* else a word of an agent that is newer than we are */
        n->states[i]++;
}

static void on_guest(void *arg, uint64_t number_of_worker, const char *state)
{
    struct nodes *n = arg;
    if (strcmp(state, "frozen") != 0 || n->failed)
        return;
    n->failed = mem_grow((void **)&n->frozen, &n->frozen_cap, n->frozen_count, sizeof *n->frozen);
    if (!n->failed)
        n->frozen[n->frozen_count++] = number_of_worker;
}

static int compare_numbers(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static int write_nodes(struct buf *out, const struct nodes *n)
{
    int failed = head(out, "ebb_nodes", "gauge", "Nodes that agents offer, by what their agent says.");
    for (size_t i = 0; i < NODE_STATES && !failed; i++)
        failed = buf_printf(out, "ebb_nodes{state=\"%s\"} %" PRIu64 "\n", node_states[i], n->states[i]);
    return failed;
}

static int write_workers(const struct daemon *d, struct buf *out)
{
    uint64_t count[PROVIDERS][WORKER_STATES] = {0};
    size_t frozen = find_word(worker_states, WORKER_STATES, "frozen");
    struct nodes nodes = {0};
    double lanes = 0;
    agents_visit(d, on_node, on_guest, &nodes);
    if (nodes.frozen_count)
        qsort(nodes.frozen, nodes.frozen_count, sizeof *nodes.frozen, compare_numbers);
    for (size_t i = 0; d->core && i < sched_worker_count(d->core); i++) {
        struct sched_worker_view v;
        sched_worker_view(d->core, i, &v);
        int stands = nodes.frozen_count && bsearch(&v.worker, nodes.frozen, nodes.frozen_count, sizeof *nodes.frozen, compare_numbers);
        count[v.provider < PROVIDERS ? v.provider : PROVIDER_NONE][stands ? frozen : worker_state(d, &v)]++;
        lanes += v.lanes;
    }
    mem_free(nodes.frozen);
    if (nodes.failed || write_nodes(out, &nodes))
        return -1;
    for (uint32_t p = 1; p < PROVIDERS; p++)
        count[p][0] += provider_starting_of(d, p);
    int failed = head(out, "ebb_workers", "gauge", "Workers by provider and state; starting: asked for, or started, and not arrived yet.");
    for (uint32_t p = 0; p < PROVIDERS && !failed; p++)
        for (size_t s = 0; s < WORKER_STATES && !failed; s++)
            failed = buf_printf(out, "ebb_workers{provider=\"%s\",state=\"%s\"} %" PRIu64 "\n", provider_id_word(p), worker_states[s], count[p][s]);
    failed = failed || head(out, "ebb_workers_wanted", "gauge", "Workers that would be useful now, by the provider that is to give them.");
    for (uint32_t p = 1; p < PROVIDERS && !failed; p++)
        failed = buf_printf(out, "ebb_workers_wanted{provider=\"%s\"} %" PRIu32 "\n", provider_id_word(p), d->wanted[p]);
    failed = failed || head(out, "ebb_workers_limit", "gauge", "Most workers that the provider can give.");
    for (uint32_t p = 1; p < PROVIDERS && !failed; p++)
        failed = buf_printf(out, "ebb_workers_limit{provider=\"%s\"} %" PRIu32 "\n", provider_id_word(p), d->provider_told[p] ? d->provider_terms[p].limit : 0);
    return failed || number(out, "ebb_worker_lanes", "gauge", "Lanes of all workers that joined.", lanes);
}

/* Jobs with series of their own: those that are not over, and those that just were. */
struct shown {
    struct sched_job_view views[METRICS_JOBS_SHOWN];
    size_t count, left_out;
};

struct series {
    const char *name, *help;
    double (*of)(const struct sched_job_view *v);
};

#define OF(word, expression)                                                                                                     \
    static double of_##word(const struct sched_job_view *v)                                                                      \
    {                                                                                                                            \
        return (double)(expression);                                                                                             \
    }
OF(records, v->row->counts.records)
OF(rows, v->row->counts.rows)
OF(errors, v->row->counts.errors)
OF(quarantined, v->row->counts.quarantined)
OF(done, v->row->counts.bytes)
OF(total, v->bytes_total)
OF(rate, v->records_per_s)
OF(workers, v->workers)
OF(wanted, v->workers_wanted)
OF(ready, v->spans_ready)
OF(leased, v->spans_leased)
#undef OF

static const struct series job_series[] = {
    {"ebb_job_records_done", "Records of the job that are done, bad ones included; a retry takes some back.", of_records},
    {"ebb_job_rows", "Rows of the job that are written.", of_rows},
    {"ebb_job_errors", "Error rows of the job.", of_errors},
    {"ebb_job_quarantined", "Records of the job that crashed workers and were set aside.", of_quarantined},
    {"ebb_job_input_bytes_done", "Bytes of its input at rest that are done.", of_done},
    {"ebb_job_input_bytes", "Bytes of its input at rest.", of_total},
    {"ebb_job_records_per_second", "Its rate over the last half minute.", of_rate},
    {"ebb_job_workers", "Workers that hold a lease of it.", of_workers},
    {"ebb_job_workers_wanted", "Workers that would be useful to it and that providers can give.", of_wanted},
    {"ebb_job_spans_ready", "Its spans that wait for a worker.", of_ready},
    {"ebb_job_spans_leased", "Its spans that a worker has.", of_leased},
};

static int write_series(struct buf *out, const struct shown *s, const struct series *x)
{
    int failed = head(out, x->name, "gauge", x->help);
    for (size_t i = 0; i < s->count && !failed; i++)
        failed = buf_printf(out, "%s{job=\"%" PRIu64 "\"} %.15g\n", x->name, s->views[i].row->id, x->of(&s->views[i]));
    return failed;
}

static int write_info(const struct daemon *d, struct buf *out, const struct shown *s)
{
    int failed = head(out, "ebb_job_info", "gauge", "Always 1: the job's name, model and state.");
    for (size_t i = 0; i < s->count && !failed; i++) {
        const struct job_row *r = s->views[i].row;
        const struct job *j = job_find((struct daemon *)(uintptr_t)d, r->id);
        if (!j)
            continue;
        failed = buf_printf(out, "ebb_job_info{job=\"%" PRIu64 "\",state=\"%s\",name=\"", r->id, job_state_word(r->state)) || metrics_label(out, j->name) ||
                 buf_str(out, "\",model=\"") || metrics_label(out, j->model_name) || buf_str(out, "\"} 1\n");
    }
    return failed;
}

static int write_jobs(const struct daemon *d, struct buf *out)
{
    static struct shown s; /* the loop's alone */
    uint64_t states[JOB_CANCELED + 1] = {0}, ready = 0, leased = 0;
    int64_t wall_ms = clock_wall_ms();
    s.count = s.left_out = 0;
    for (size_t i = d->core ? sched_job_count(d->core) : 0; i-- > 0;) { /* the newest first: these are the ones that are left in */
        struct sched_job_figures f;
        sched_job_figures(d->core, i, &f);
        const struct job_row *r = f.row;
        states[r->state]++;
        ready += f.spans_ready;
        leased += f.spans_leased;
        if ((r->state == JOB_DONE || r->state == JOB_CANCELED) && wall_ms - r->finished_ms > METRICS_JOB_KEPT_MS)
            continue;
        if (s.count == METRICS_JOBS_SHOWN)
            s.left_out++;
        else
            s.count += sched_job_view(d->core, r->id, &s.views[s.count]) != 0;
    }
    int failed = head(out, "ebb_jobs", "gauge", "Jobs by state.");
    for (enum job_state state = 0; state <= JOB_CANCELED && !failed; state++)
        failed = buf_printf(out, "ebb_jobs{state=\"%s\"} %" PRIu64 "\n", job_state_word(state), states[state]);
    failed = failed || head(out, "ebb_ledger_spans", "gauge", "Spans of all jobs that are not done, by state.") ||
             buf_printf(out, "ebb_ledger_spans{state=\"ready\"} %" PRIu64 "\nebb_ledger_spans{state=\"leased\"} %" PRIu64 "\n", ready, leased) ||
             number(out, "ebb_jobs_left_out", "gauge", "Jobs that are not over and have no series of their own, because there are too many.", (double)s.left_out) ||
             write_info(d, out, &s);
    for (size_t i = 0; i < sizeof job_series / sizeof *job_series && !failed; i++)
        failed = write_series(out, &s, &job_series[i]);
    return failed;
}

enum status metrics_write(struct daemon *d, struct buf *out, struct err *e)
{
    int failed = head(out, "ebb_build_info", "gauge", "Always 1: the program's version.") ||
                 buf_printf(out, "ebb_build_info{version=\"%s\"} 1\n", EBBD_VERSION) ||
                 number(out, "ebb_generation", "gauge", "How often this state has been opened.", d->generation) ||
                 number(out, "ebb_store_open", "gauge", "1: the store can be written; 0: it is being opened anew.", d->core != NULL) || write_jobs(d, out) ||
                 write_workers(d, out) || gangs_write_metrics(d, out) || write_counters(out) || write_histogram(out) ||
                 write_relay(d, out) || (d->apply && write_store(d, out));
    return failed ? err_nomem(e, "metrics") : ST_OK;
}

/* The process ---------------------------------------------------------------------------------------------------------------------- */

static int64_t start_time_ms(void)
{
    static _Atomic int64_t known;
    if (!known) {
        struct buf text = {0};
        struct err e;
        unsigned long long ticks = 0;
        double up = 0;
        if (path_read("/proc/self/stat", 8192, &text, &e) == ST_OK && buf_cstr(&text)) {
            const char *p = strrchr(text.data, ')'); /* the name may hold anything; the 20th word behind it is the start */
            for (int i = 0; p && i < 20; i++)
                p = strchr(p + 1, ' ');
            ticks = p ? strtoull(p + 1, NULL, 10) : 0;
        }
        buf_clear(&text);
        if (path_read("/proc/uptime", 4096, &text, &e) == ST_OK && buf_cstr(&text))
            up = strtod(text.data, NULL);
        buf_release(&text);
        known = clock_wall_ms() - (int64_t)(up * 1000) + (int64_t)(ticks * 1000 / (unsigned long long)sysconf(_SC_CLK_TCK));
    }
    return known;
}

static double open_files(void)
{
    double n = -1; /* the folder's own descriptor */
    DIR *dir = opendir("/proc/self/fd");
    for (const struct dirent *f; dir && (f = readdir(dir));)
        n += f->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return n < 0 ? 0 : n;
}

enum status metrics_write_process(struct buf *out, struct err *e)
{
    unsigned long long pages = 0, resident = 0;
    struct rusage used = {0};
    struct rlimit files = {0};
    struct buf text = {0};
    enum status st = path_read("/proc/self/statm", 4096, &text, e);
    if (st == ST_OK && sscanf(text.data, "%llu %llu", &pages, &resident) != 2)
        st = err_set(e, ST_ENV, "'/proc/self/statm' does not say how much memory is in use");
    buf_release(&text);
    TRY(st);
    getrusage(RUSAGE_SELF, &used);
    getrlimit(RLIMIT_NOFILE, &files);
    double page = (double)sysconf(_SC_PAGESIZE);
    int failed = number(out, "process_resident_memory_bytes", "gauge", "Memory of ebbd.", (double)resident * page) ||
                 number(out, "process_virtual_memory_bytes", "gauge", "Address space of ebbd.", (double)pages * page) ||
                 number(out, "process_cpu_seconds_total", "counter", "Processor time of ebbd.",
                        (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6) ||
                 number(out, "process_open_fds", "gauge", "Descriptors that are open.", open_files()) ||
                 number(out, "process_max_fds", "gauge", "Most descriptors that may be open.", (double)files.rlim_cur) ||
                 number(out, "process_start_time_seconds", "gauge", "When ebbd started, since 1970.", (double)start_time_ms() / 1000);
    return failed ? err_nomem(e, "metrics") : ST_OK;
}
