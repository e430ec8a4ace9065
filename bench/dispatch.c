/* Durable range commits through one ebbd, and how long each waits for its acknowledgement.

     build/bench/dispatch [--workers N,...] [--seconds S] [--window W] [--dir DIR] [--parts DIR]

   A real ebbd (--private, no workers of its own) serves one job over a sparse file of 64 GiB that nobody reads; N simulated workers with a socket each
   take leases and commit their spans in steps of 64 bytes, at most W unacknowledged each. Each commit has a part of one row, written as a worker
   writes it, checked, assembled and freed by the daemon: on a tmpfs, so that the disk serves the store alone. Worker side and daemon share the
   machine: on 2 processors the workers' own system calls are a good part of what is measured.
   The processor time that a commit takes is printed for both sides, and of the daemon for the two threads through which every commit goes one after
   the other: they say what a machine with a processor for each could do.
   First at full speed, then at half of the rate that came out: the goal for the latency is stated at half load. The store is synced at every
   group commit; the disk's own syncs a second are measured in the same folder and printed beside. The last line is one JSON object. */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/opt.h"
#include "base/path.h"
#include "storage/part.h"
#include "wire/sock.h"

enum { STEP = 64, MOST_WINDOW = 64, MOST_LEASES = 4, SAMPLES = 1 << 22 };

struct lease {
    uint64_t job, epoch, at, end, seq, acked;
    uint64_t sent_ns[MOST_WINDOW];
    int open;
};

struct worker {
    struct sock *s;
    uint64_t number, beat_ms;
    int asked;
    struct lease leases[MOST_LEASES];
};

static const char *base_dir = "/tmp", *tmpfs = "/dev/shm";
static char dir[PATH_MAX], out_dir[PATH_MAX], parts_dir[PATH_MAX], clients[PATH_MAX], workers_at[PATH_MAX];
static uint64_t seconds = 5, window = 8;
static void *context;
static pid_t daemon_pid;
static struct worker *workers;
static size_t worker_count;
static struct part *part;

static struct {
    uint64_t acks, refused;
    uint32_t *us; /* of acknowledgements in the time that counts */
    size_t count;
    int counts;
    double rate;      /* of sending; 0: as fast as it goes */
    uint64_t begin_ns, sent;
} run;

static void die(const struct err *e)
{
    fprintf(stderr, "dispatch: %s\n", e->text);
    if (daemon_pid > 0)
        kill(daemon_pid, SIGKILL);
    exit(1);
}

static void check(enum status st, const struct err *e)
{
    if (st != ST_OK)
        die(e);
}

/* The daemon ------------------------------------------------------------------------------------------------------------------------ */

static void start_daemon(void)
{
    char program[PATH_MAX], state[PATH_MAX + 16], sockets[PATH_MAX + 16], line[PATH_MAX] = "";
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 32);
    program[n > 0 ? n : 0] = 0;
    dirname(program); /* in place */
    strcat(program, "/../bin/ebbd");
    snprintf(state, sizeof state, "%s/state", dir);
    snprintf(sockets, sizeof sockets, "%s/run", dir);
    int out[2];
    struct err e;
    if (pipe2(out, O_CLOEXEC))
        check(err_set(&e, ST_ENV, "no pipe"), &e);
    daemon_pid = fork();
    if (daemon_pid == 0) {
        dup2(out[1], 1);
        execl(program, program, "--private", "--state", state, "--runtime", sockets, "--workers", "0", "--log", "warning", (char *)NULL);
        _exit(127);
    }
    close(out[1]);
    FILE *f = fdopen(out[0], "r");
    if (!f || !fgets(line, sizeof line, f) || strncmp(line, "ready ", 6))
        check(err_set(&e, ST_ENV, "'%s' did not start", program), &e);
    fclose(f);
    line[strcspn(line, "\n")] = 0;
    snprintf(clients, sizeof clients, "%s", line + 6);
    snprintf(workers_at, sizeof workers_at, "%.*sworkers", (int)(strlen(clients) - strlen("clients")), clients);
}

static json_t *ask(struct sock *s, const char *verb, json_t *in)
{
    static uint64_t id;
    struct err e;
    Ebb__Request q = EBB__REQUEST__INIT;
    q.id = ++id;
    q.verb = (char *)(uintptr_t)verb;
    q.json = json_dumps(in, 0);
    q.version = WIRE_VERSION;
    json_decref(in);
    check(sock_send(s, NULL, EBB__ENVELOPE__BODY_REQUEST, &q, &e), &e);
    free(q.json);
    json_t *out = NULL;
    for (uint64_t until = clock_ms() + 20000; !out && clock_ms() < until;) {
        Ebb__Envelope *m;
        if (sock_wait(s, 50) <= 0 || sock_receive(s, NULL, &m, &e) != ST_OK)
            continue;
        if (m->body_case == EBB__ENVELOPE__BODY_REPLY && m->reply->id == id) {
            out = json_loads(m->reply->json, 0, NULL);
            if (m->reply->code)
                check(err_set(&e, ST_ENV, "'%s': %s", verb, m->reply->json), &e);
        }
        wire_free(m);
    }
    if (!out)
        check(err_set(&e, ST_ENV, "no answer to '%s'", verb), &e);
    return out;
}

/* Workers ---------------------------------------------------------------------------------------------------------------------------- */

static void send_out(struct worker *w, Ebb__Envelope__BodyCase which, void *body)
{
    struct err e;
    check(sock_send(w->s, NULL, which, body, &e), &e);
}

static void hello(struct worker *w)
{
    Ebb__Hello h = EBB__HELLO__INIT;
    char name[32];
    snprintf(name, sizeof name, "bench/%" PRIu64, w->number);
    h.version_min = h.version_max = WIRE_VERSION;
    h.program = "dispatch";
    h.worker = w->number;
    h.host = "bench";
    h.lanes = 1;
    h.numerics = "bench";
    h.name = name;
    w->asked = 1;
    send_out(w, EBB__ENVELOPE__BODY_HELLO, &h);
}

static void beat(struct worker *w, uint64_t now_ms)
{
    Ebb__Beat b = EBB__BEAT__INIT;
    Ebb__Progress progress[MOST_LEASES], *at[MOST_LEASES];
    for (int i = 0; i < MOST_LEASES; i++) {
        const struct lease *l = &w->leases[i];
        if (!l->open)
            continue;
        ebb__progress__init(&progress[b.n_leases]);
        progress[b.n_leases].epoch = l->epoch;
        progress[b.n_leases].read_to = l->at;
        progress[b.n_leases].records_done = progress[b.n_leases].bytes_done = l->seq * STEP;
        at[b.n_leases] = &progress[b.n_leases];
        b.n_leases++;
    }
    b.leases = at;
    w->beat_ms = now_ms;
    send_out(w, EBB__ENVELOPE__BODY_BEAT, &b);
}

static void commit(struct worker *w, struct lease *l, uint64_t now_ns)
{
    struct err e;
    Ebb__Commit c = EBB__COMMIT__INIT;
    Ebb__Extent x = EBB__EXTENT__INIT, *at = &x;
    Ebb__Span span = EBB__SPAN__INIT;
    struct part_info info = {0};
    span.begin = l->at;
    span.end = l->at + STEP < l->end ? l->at + STEP : l->end;
    x.span = &span;
    x.bytes = span.end - span.begin;
    part_clear(part);
    check(part_begin(part, span.begin, &e), &e);
    check(part_row(part, "{\"bench\":1}\n", 12, NULL, 0, &e), &e);
    check(part_end(part, span.end, 0, STEP, &e), &e);
    check(part_write(part, parts_dir, l->job, l->epoch, l->seq, &info, &e), &e);
    const struct extent *made = part_extents(part);
    x.rows_at = made->rows_at;
    x.rows_bytes = made->rows_bytes;
    x.records = x.rows = 1;
    c.job = l->job;
    c.epoch = l->epoch;
    c.seq = l->seq;
    c.n_done = 1;
    c.done = &at;
    c.part_bytes = info.size_bytes;
    c.part_digest.data = info.digest;
    c.part_digest.len = sizeof info.digest;
    l->sent_ns[l->seq % MOST_WINDOW] = now_ns;
    l->seq++;
    l->at = span.end;
    run.sent++;
    send_out(w, EBB__ENVELOPE__BODY_COMMIT, &c);
}

static void take(struct worker *w, const Ebb__Envelope *m)
{
    switch (m->body_case) {
    case EBB__ENVELOPE__BODY_WELCOME:
        if (!w->asked)
            hello(w);
        w->asked = 0;
        break;
    case EBB__ENVELOPE__BODY_JOB: {
        Ebb__ModelReady r = EBB__MODEL_READY__INIT;
        snprintf(parts_dir, sizeof parts_dir, "%s", m->job->parts_dir);
        r.model_key = m->job->model_key;
        r.digest = m->job->model_digest;
        r.numerics = "bench";
        r.load_ms = r.dims = 1;
        send_out(w, EBB__ENVELOPE__BODY_MODEL_READY, &r);
        break;
    }
    case EBB__ENVELOPE__BODY_LEASE:
        for (int i = 0; i < MOST_LEASES; i++)
            if (!w->leases[i].open) {
                w->leases[i] = (struct lease){.job = m->lease->job, .epoch = m->lease->epoch, .at = m->lease->span->begin, .end = m->lease->span->end, .open = 1};
                break;
            }
        break;
    case EBB__ENVELOPE__BODY_ACK:
        for (int i = 0; i < MOST_LEASES; i++) {
            struct lease *l = &w->leases[i];
            if (!l->open || l->epoch != m->ack->epoch)
                continue;
            if (m->ack->verdict)
                run.refused++;
            else if (run.counts && run.count < SAMPLES)
                run.us[run.count++] = (uint32_t)((clock_ns() - l->sent_ns[m->ack->seq % MOST_WINDOW]) / 1000);
            run.acks++;
            l->acked++;
            if (l->at == l->end && l->acked == l->seq)
                l->open = 0;
        }
        break;
    case EBB__ENVELOPE__BODY_REVOKE:
        for (int i = 0; i < MOST_LEASES; i++)
            if (w->leases[i].epoch == m->revoke->epoch)
                w->leases[i].open = 0;
        break;
    case EBB__ENVELOPE__BODY_CUT: { /* from what has not been sent yet */
        Ebb__CutAnswer a = EBB__CUT_ANSWER__INIT;
        a.epoch = m->cut->epoch;
        a.at = m->cut->at;
        for (int i = 0; i < MOST_LEASES; i++) {
            struct lease *l = &w->leases[i];
            if (!l->open || l->epoch != a.epoch)
                continue;
            a.at = m->cut->at > l->at ? m->cut->at : l->at;
            a.at = a.at < l->end ? a.at : l->end;
            l->end = a.at;
            l->open = l->at < l->end || l->acked < l->seq;
        }
        send_out(w, EBB__ENVELOPE__BODY_CUT_ANSWER, &a);
        break;
    }
    default:
        break;
    }
}

static int may_send(uint64_t now_ns)
{
    return run.rate == 0 || (double)run.sent + 1 < run.rate * (double)(now_ns - run.begin_ns) / 1e9;
}

/* One look at every worker; whether anything happened. */
static int turn(void)
{
    struct err e;
    Ebb__Envelope *m;
    int busy = 0;
    uint64_t now_ns = clock_ns();
    for (size_t i = 0; i < worker_count; i++) {
        struct worker *w = &workers[i];
        while (sock_receive(w->s, NULL, &m, &e) == ST_OK) {
            take(w, m);
            wire_free(m);
            busy = 1;
        }
        for (int k = 0; k < MOST_LEASES; k++) {
            struct lease *l = &w->leases[k];
            while (l->open && l->at < l->end && l->seq - l->acked < window && may_send(now_ns)) {
                commit(w, l, run.rate > 0 ? clock_ns() : now_ns);
                busy = 1;
            }
            if (l->open && l->at < l->end)
                break; /* one lease after the other */
        }
        if (now_ns / 1000000 - w->beat_ms >= 1000)
            beat(w, now_ns / 1000000);
    }
    return busy;
}

/* A private daemon that hears of no client for long thinks that nobody is there. */
static void say_that_we_are_here(struct sock *client)
{
    static uint64_t said;
    if (clock_ms() - said < 2000)
        return;
    json_decref(ask(client, "hello", json_object()));
    said = clock_ms();
}

static void go(double for_s, struct sock *client)
{
    uint64_t end = clock_ns() + (uint64_t)(for_s * 1e9);
    while (clock_ns() < end) {
        if (!turn())
            usleep(50);
        say_that_we_are_here(client);
    }
}

static int by_size(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static double percentile_ms(double share)
{
    return run.count ? run.us[(size_t)(share * (double)(run.count - 1))] / 1000.0 : 0;
}

/* Processor time of one thread of the daemon, and of all of them, in microseconds. The loop has the process's own number; the writer is the one that
   took most of the others. */
struct spent {
    uint64_t loop, all, bench;
    struct {
        long id;
        uint64_t us;
    } threads[256];
    size_t count;
};

static uint64_t thread_us(const char *path)
{
    char text[1024] = "";
    unsigned long user = 0, sys = 0;
    FILE *f = fopen(path, "r");
    if (f && fread(text, 1, sizeof text - 1, f)) {
        const char *behind = strrchr(text, ')');
        if (behind)
            sscanf(behind + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &sys);
    }
    if (f)
        fclose(f);
    return (user + sys) * (1000000 / (uint64_t)sysconf(_SC_CLK_TCK));
}

static struct spent spent_now(void)
{
    struct spent t = {0};
    struct rusage own;
    char path[128];
    getrusage(RUSAGE_SELF, &own);
    t.bench = (uint64_t)(own.ru_utime.tv_sec + own.ru_stime.tv_sec) * 1000000 + (uint64_t)(own.ru_utime.tv_usec + own.ru_stime.tv_usec);
    snprintf(path, sizeof path, "/proc/%d/task", (int)daemon_pid);
    DIR *tasks = opendir(path);
    for (struct dirent *x; tasks && (x = readdir(tasks)) && t.count < sizeof t.threads / sizeof *t.threads;) {
        long id = strtol(x->d_name, NULL, 10);
        if (!id)
            continue;
        snprintf(path, sizeof path, "/proc/%d/task/%ld/stat", (int)daemon_pid, id);
        uint64_t us = thread_us(path);
        t.threads[t.count].id = id;
        t.threads[t.count++].us = us;
        t.all += us;
        if (id == daemon_pid)
            t.loop = us;
    }
    if (tasks)
        closedir(tasks);
    return t;
}

static uint64_t busiest_other(const struct spent *a, const struct spent *b)
{
    uint64_t most = 0;
    for (size_t i = 0; i < b->count; i++)
        for (size_t k = 0; k < a->count; k++)
            if (a->threads[k].id == b->threads[i].id && a->threads[k].id != daemon_pid && b->threads[i].us - a->threads[k].us > most)
                most = b->threads[i].us - a->threads[k].us;
    return most;
}

static double measure(double rate, double for_s, struct sock *client, double *p50, double *p99)
{
    run.rate = rate;
    run.begin_ns = clock_ns();
    run.sent = 0;
    run.counts = 0;
    go(0.5, client); /* into its stride */
    run.counts = 1;
    run.count = 0;
    uint64_t acks = run.acks, begin = clock_ns();
    go(for_s, client);
    double took = (double)(clock_ns() - begin) / 1e9;
    run.counts = 0;
    qsort(run.us, run.count, sizeof *run.us, by_size);
    *p50 = percentile_ms(0.5);
    *p99 = percentile_ms(0.99);
    return (double)(run.acks - acks) / took;
}

/* What the disk can do at all: appends of 4 KiB, each synced. */
static double disk_syncs(void)
{
    char path[PATH_MAX + 16], block[4096] = "x";
    snprintf(path, sizeof path, "%s/sync", dir);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600), n = 0;
    uint64_t begin = clock_ns();
    while (fd >= 0 && clock_ns() - begin < 500000000u && write(fd, block, sizeof block) == sizeof block && fdatasync(fd) == 0)
        n++;
    close(fd);
    unlink(path);
    return n / ((double)(clock_ns() - begin) / 1e9);
}

static json_t *with_workers(size_t n)
{
    struct err e;
    char path[PATH_MAX + 32];
    snprintf(dir, sizeof dir, "%s/ebb-dispatch-XXXXXX", base_dir);
    if (!mkdtemp(dir))
        check(err_set(&e, ST_ENV, "cannot make a folder in '%s'", base_dir), &e);
    snprintf(out_dir, sizeof out_dir, "%s/ebb-dispatch-XXXXXX", tmpfs);
    if (!mkdtemp(out_dir))
        check(err_set(&e, ST_ENV, "cannot make a folder in '%s'", tmpfs), &e);
    double syncs = disk_syncs();
    snprintf(path, sizeof path, "%s/model", dir);
    check(path_make_dirs(path, 0700, &e), &e);
    strcat(path, "/config.json");
    check(path_write(path, "{}\n", 3, &e), &e);
    snprintf(path, sizeof path, "%s/blank.jsonl", dir);
    check(path_write(path, "\n\n\n\n", 4, &e), &e);
    if (truncate(path, (off_t)1 << 36)) /* nobody reads it: 64 GiB of it are not there */
        check(err_set(&e, ST_ENV, "cannot make '%s' long", path), &e);
    start_daemon();
    context = zmq_ctx_new();
    zmq_ctx_set(context, ZMQ_MAX_SOCKETS, 65535);
    struct sock *client;
    check(sock_dealer(context, clients, NULL, NULL, 0, &client, &e), &e);
    char model[PATH_MAX + 16], output[PATH_MAX + 16];
    snprintf(model, sizeof model, "%s/model", dir);
    snprintf(output, sizeof output, "%s/out.jsonl", out_dir);
    json_decref(ask(client, "submit",
                    json_pack("{s:{s:s, s:{s:[s]}, s:{s:s}}}", "spec", "model", model, "input", "glob", path, "output", "path", output)));
    workers = mem_array(n, sizeof *workers);
    worker_count = 0;
    run.acks = run.refused = 0;
    check(part_new(&part, &e), &e);
    for (size_t i = 0; i < n; i++) {
        workers[i].number = 1000 + i;
        check(sock_dealer(context, workers_at, NULL, &workers[i].number, sizeof workers[i].number, &workers[i].s, &e), &e);
        hello(&workers[i]);
        worker_count++;
        if (i % 16 == 15)
            turn();
        say_that_we_are_here(client);
    }
    run.rate = 0.0001; /* nothing yet */
    run.begin_ns = clock_ns();
    size_t have = 0;
    for (uint64_t until = clock_ms() + 20000; have < n && clock_ms() < until;) {
        go(0.1, client);
        have = 0;
        for (size_t i = 0; i < n; i++)
            have += workers[i].leases[0].open != 0;
    }
    if (have < n)
        fprintf(stderr, "dispatch: only %zu of %zu workers have a lease\n", have, n);
    double p50, p99, half50, half99;
    struct spent before = spent_now();
    uint64_t acks = run.acks;
    double rate = measure(0, (double)seconds, client, &p50, &p99);
    struct spent behind = spent_now();
    double each = 1.0 / (double)(run.acks - acks ? run.acks - acks : 1);
    double loop_us = (double)(behind.loop - before.loop) * each, writer_us = (double)busiest_other(&before, &behind) * each,
           daemon_us = (double)(behind.all - before.all) * each, bench_us = (double)(behind.bench - before.bench) * each;
    double half = measure(rate / 2, (double)seconds, client, &half50, &half99);
    if (run.refused)
        fprintf(stderr, "dispatch: %" PRIu64 " commits were refused\n", run.refused);
    printf("%5zu workers: %8.0f commits/s (p50 %.2f ms, p99 %.2f ms); at %.0f/s: p50 %.2f ms, p99 %.2f ms; this disk syncs %.0f/s\n", n, rate, p50, p99, half,
           half50, half99, syncs);
    printf("              processor time a commit: daemon %.0f us (loop %.0f, writer %.0f), workers' side %.0f us\n", daemon_us, loop_us, writer_us, bench_us);
    fflush(stdout);
    ask(client, "stop", json_pack("{s:b}", "drain", 0));
    waitpid(daemon_pid, NULL, 0);
    daemon_pid = 0;
    for (size_t i = 0; i < n; i++)
        sock_close(workers[i].s);
    sock_close(client);
    zmq_ctx_term(context);
    mem_free(workers);
    part_free(part);
    check(path_remove_tree(dir, &e), &e);
    check(path_remove_tree(out_dir, &e), &e);
    return json_pack("{s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I}", "workers", (json_int_t)n, "commits_per_s", rate, "p50_ms", p50, "p99_ms", p99,
                     "half_load_p50_ms", half50, "half_load_p99_ms", half99, "daemon_us", daemon_us, "loop_us", loop_us, "writer_us", writer_us, "bench_us", bench_us, "disk_syncs_per_s", syncs, "refused", (json_int_t)run.refused);
}

int main(int argc, char **argv)
{
    struct opt_list counts = {0};
    struct err e;
    int operands;
    const struct opt opts[] = {
        {.name = "workers", .type = OPT_LIST, .value = &counts, .arg = "N,...", .split = 1, .help = "simulated workers (default: 1,100,1000)"},
        {.name = "seconds", .type = OPT_NUMBER, .value = &seconds, .arg = "S", .help = "of each measurement (default: 5)"},
        {.name = "window", .type = OPT_NUMBER, .value = &window, .arg = "W", .help = "commits of one worker under way (default: 8, at most 64)"},
        {.name = "dir", .type = OPT_TEXT, .value = &base_dir, .arg = "DIR", .help = "where the store lies (default: /tmp)"},
        {.name = "parts", .type = OPT_TEXT, .value = &tmpfs, .arg = "DIR", .help = "where parts and output lie (default: /dev/shm)"},
    };
    const struct opt_command command = {.name = "dispatch", .summary = "durable commits through one ebbd", .opts = opts, .opt_count = sizeof opts / sizeof *opts};
    enum status st = opt_parse(&command, argc, argv, &operands, &e);
    if (st == ST_END)
        return 0;
    check(st, &e);
    if (window < 1 || window > MOST_WINDOW)
        check(err_set(&e, ST_USER, "--window wants 1 to %d", MOST_WINDOW), &e);
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    signal(SIGPIPE, SIG_IGN);
    run.us = mem_array(SAMPLES, sizeof *run.us);
    static const char *const all[] = {"1", "100", "1000"};
    json_t *list = json_array();
    for (size_t i = 0; i < (counts.count ? counts.count : 3); i++)
        json_array_append_new(list, with_workers(strtoul(counts.count ? counts.items[i] : all[i], NULL, 10)));
    json_t *o = json_pack("{s:s, s:I, s:o}", "bench", "dispatch", "window", (json_int_t)window, "runs", list);
    char *text = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(6));
    puts(text);
    free(text);
    json_decref(o);
    mem_free(run.us);
    opt_list_release(&counts);
    return 0;
}
