#include "workers/agent/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/host.h"
#include "base/mem.h"
#include "base/path.h"
#include "workers/agent/people.h"

#define SAMPLES 16
#define LOAD_WINDOW_MS 400     /* shorter ones are lost in the kernel's ticks of 10 ms */
#define PRESSURE_WINDOW_MS 1000
#define BUSY_SLACK_S 1.0
#define STALE_MS 5000          /* samples that are older say nothing of now */

struct series {                /* a counter over time */
    struct {
        uint64_t at_ms;
        double value;
    } sample[SAMPLES];
    size_t count, newest;
};

struct watch {
    int real;
    char *stat, *meminfo, *pressure[PRESSURES];
    struct series busy, waited[PRESSURES];
    struct people *people;
    uint32_t cores;
    double tick_s;
    int missing[PRESSURES], why[PRESSURES];
};

static const char *const pressure_files[] = {
#define X(name, word) [PRESSURE_##name] = "pressure/" word,
    POLICY_PRESSURE_MAP(X)
#undef X
};

/* Counters --------------------------------------------------------------------------------------------------------------------------- */

static void series_add(struct series *s, uint64_t at_ms, double value, double slack)
{
    if (s->count && (s->sample[s->newest].at_ms == at_ms || value < s->sample[s->newest].value - slack))
        s->count = 0; /* counters go back when processors are taken away, or a test begins anew */
    s->newest = s->count ? (s->newest + 1) % SAMPLES : 0;
    s->sample[s->newest].at_ms = at_ms;
    s->sample[s->newest].value = value;
    if (s->count < SAMPLES)
        s->count++;
}

/* Growth per second over the latest stretch that is at least window_ms long, or what there is of it. 0, or -1: too few samples. */
static int series_rate(const struct series *s, uint64_t window_ms, double *per_s)
{
    if (s->count < 2)
        return -1;
    uint64_t now_ms = s->sample[s->newest].at_ms;
    size_t at = s->newest;
    for (size_t i = 1; i < s->count; i++) {
        size_t older = (s->newest + SAMPLES - i) % SAMPLES;
        if (now_ms - s->sample[older].at_ms > STALE_MS)
            break;
        at = older;
        if (now_ms - s->sample[at].at_ms >= window_ms)
            break;
    }
    uint64_t ms = now_ms - s->sample[at].at_ms;
    if (ms < 100)
        return -1;
    *per_s = (s->sample[s->newest].value - s->sample[at].value) / ((double)ms / 1000);
    return 0;
}

/* Files ------------------------------------------------------------------------------------------------------------------------------ */

static ssize_t slurp(const char *path, char *out, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, out, size - 1);
    int why = errno;
    if (fd >= 0)
        close(fd);
    out[n > 0 ? n : 0] = 0;
    errno = why;
    return n;
}

static int read_busy(const struct watch *w, double *busy_s)
{
    char text[512]; /* only the first line counts */
    uint64_t user, nice, system, idle, iowait, irq, softirq;
    if (slurp(w->stat, text, sizeof text) <= 0 ||
        sscanf(text, "cpu %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, &user, &nice, &system, &idle, &iowait, &irq,
               &softirq) != 7)
        return -1;
    *busy_s = (double)(user + nice + system + irq + softirq) * w->tick_s;
    return 0;
}

static int read_memory(const struct watch *w, uint64_t *total, uint64_t *available)
{
    char text[4096];
    if (slurp(w->meminfo, text, sizeof text) <= 0)
        return -1;
    const char *t = strstr(text, "MemTotal:"), *a = strstr(text, "MemAvailable:");
    if (!t || !a)
        return -1;
    *total = strtoull(t + 9, NULL, 10) * 1024;
    *available = strtoull(a + 13, NULL, 10) * 1024;
    return *total ? 0 : -1;
}

static int read_pressure(struct watch *w, int which, double *waited_s)
{
    char text[512];
    ssize_t n = slurp(w->pressure[which], text, sizeof text);
    w->why[which] = n < 0 ? errno : 0;
    const char *total = n > 0 ? strstr(text, "total=") : NULL;
    w->missing[which] = !total;
    if (!total)
        return -1;
    *waited_s = strtod(total + 6, NULL) / 1e6;
    return 0;
}

int watch_minute(void)
{
    time_t now = time(NULL);
    struct tm t;
    if (!localtime_r(&now, &t))
        return CALENDAR_UNKNOWN;
    return (t.tm_wday + 6) % 7 * 24 * 60 + t.tm_hour * 60 + t.tm_min;
}

/* ------------------------------------------------------------------------------------------------------------------------------------- */

void watch_read(struct watch *w, uint64_t now_ms, uint64_t guests_cpu_ns, struct readings *r)
{
    double value;
    r->now_ms = now_ms;
    r->minute = watch_minute();
    r->cores = w->cores;
    r->load_known = 0;
    if ((!w->real || guests_cpu_ns != UINT64_MAX) && read_busy(w, &value) == 0) {
        /* Both are read within some microseconds of each other. The guests' time is exact, and holds what a hypervisor took from them; the kernel's is
           counted in ticks, and does not. So the difference may go back, little by little, as long as guests run. That is not held against what others take
           later. */
        value -= w->real ? (double)guests_cpu_ns / 1e9 : 0;
        series_add(&w->busy, now_ms, value, BUSY_SLACK_S);
        r->load_known = series_rate(&w->busy, LOAD_WINDOW_MS, &r->load_of_others) == 0;
        if (r->load_known && r->load_of_others < 0)
            r->load_of_others = 0;
    }
    r->memory_known = read_memory(w, &r->memory_bytes, &r->memory_available_bytes) == 0;
    for (int i = 0; i < PRESSURES; i++) {
        r->pressure_known[i] = 0;
        if (read_pressure(w, i, &value) == 0) {
            series_add(&w->waited[i], now_ms, value, 0);
            r->pressure_known[i] = series_rate(&w->waited[i], PRESSURE_WINDOW_MS, &r->pressure[i]) == 0;
        }
    }
    people_read(w->people, now_ms, r);
}

void watch_words(const struct watch *w, char *out, size_t size)
{
    char people[300];
    int n = 0;
    people_words(w->people, people, sizeof people);
    n += snprintf(out + n, size - (size_t)n, "people: %s\n", people);
    for (int i = 0; i < PRESSURES && (size_t)n < size; i++)
        if (w->missing[i])
            n += snprintf(out + n, size - (size_t)n, "no %s: '%s': %s; load and memory are watched all the same\n", pressure_files[i], w->pressure[i],
                          w->why[i] ? strerror(w->why[i]) : "not what it should be");
}

enum status watch_open(const char *root, uint64_t now_ms, struct watch **out, struct err *e)
{
    struct watch *w = mem_zalloc(sizeof *w);
    if (!w)
        return err_nomem(e, "the watch");
    const char *proc = root ? root : "/proc";
    long ticks = sysconf(_SC_CLK_TCK), cores = sysconf(_SC_NPROCESSORS_ONLN);
    w->real = !root;
    w->tick_s = 1.0 / (double)(ticks > 0 ? ticks : 100);
    w->cores = cores > 0 ? (uint32_t)cores : 1;
    w->stat = path_join(proc, "stat");
    w->meminfo = path_join(proc, "meminfo");
    w->people = people_open(root, now_ms);
    int short_of = !w->stat || !w->meminfo || !w->people;
    for (int i = 0; i < PRESSURES; i++)
        short_of |= !(w->pressure[i] = path_join(proc, pressure_files[i]));
    if (short_of) {
        watch_close(w);
        return err_nomem(e, "the watch");
    }
    *out = w;
    double busy;
    if (read_busy(w, &busy)) {
        enum status st = err_errno(e, ST_ENV, errno, "cannot read the load in '%s'", w->stat);
        watch_close(w);
        return st;
    }
    return ST_OK;
}

void watch_close(struct watch *w)
{
    if (!w)
        return;
    people_close(w->people);
    mem_free(w->stat);
    mem_free(w->meminfo);
    for (int i = 0; i < PRESSURES; i++)
        mem_free(w->pressure[i]);
    mem_free(w);
}
