/* `ebb-agent status`: reads for a second what the agent reads, and says what it would do with it. Nothing is started or stopped. */
#include <dirent.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/units.h"
#include "wire/process.h"
#include "workers/agent/agent.h"
#include "workers/agent/guests.h"
#include "workers/agent/watch.h"

#define LOOKS 5
#define LOOK_MS 250

struct here { /* guests of the agent that runs with the same folder */
    uint32_t count;
    uint64_t bytes, ticks;
};

static void look_at_guests(const char *dir, struct here *h)
{
    char *workers = path_join(dir, "workers");
    DIR *d = workers ? opendir(workers) : NULL;
    *h = (struct here){0};
    for (const struct dirent *f; d && (f = readdir(d));) {
        struct process_note note;
        char *path = strlen(f->d_name) == 20 && strcmp(f->d_name + 16, ".pid") == 0 ? path_join(workers, f->d_name) : NULL;
        if (!path)
            continue;
        process_note_read(path, &note);
        if (process_note_lives(&note)) {
            h->count++;
            h->bytes += guests_bytes_of(note.pid);
            h->ticks += guests_ticks_of(note.pid);
        }
        mem_free(path);
    }
    if (d)
        closedir(d);
    mem_free(workers);
}

static int agent_runs(const char *dir)
{
    char *path = path_join(dir, AGENT_LOCK);
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    int locked = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB);
    if (fd >= 0)
        close(fd);
    mem_free(path);
    return locked;
}

static json_t *known(int is, double x)
{
    return is ? json_real(x) : json_null();
}

static void print_json(const struct agent_config *c, const struct readings *r, const struct decision *d, const struct here *h, const char *sees)
{
    json_t *o = json_pack("{s:s, s:b, s:i, s:I, s:o, s:o, s:{s:o, s:o, s:o}, s:i, s:o, s:s, s:b, s:i, s:I, s:s, s:s, s:i, s:s}", "host", c->host, "agent_runs",
                          agent_runs(c->dir), "cores", (int)r->cores, "memory_bytes", (json_int_t)r->memory_bytes, "memory_available_bytes",
                          r->memory_known ? json_integer((json_int_t)r->memory_available_bytes) : json_null(), "load_of_others", known(r->load_known, r->load_of_others), "pressure", "cpu",
                          known(r->pressure_known[PRESSURE_CPU], r->pressure[PRESSURE_CPU]), "memory",
                          known(r->pressure_known[PRESSURE_MEMORY], r->pressure[PRESSURE_MEMORY]), "io",
                          known(r->pressure_known[PRESSURE_IO], r->pressure[PRESSURE_IO]), "people", (int)r->people, "idle_s",
                          known(r->idle_ms != POLICY_NEVER, (double)r->idle_ms / 1000), "who", r->who, "in_hours",
                          calendar_open(&c->policy.hours, r->minute), "guests", (int)h->count, "guests_bytes", (json_int_t)h->bytes, "would",
                          d->mode == MODE_FREE ? "run" : "not run", "reason", d->reason, "room", (int)d->room, "watches", sees);
    if (o)
        json_dumpf(o, stdout, JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(o);
}

static void print_limit(double limit)
{
    if (limit < POLICY_OFF)
        printf(" (limit %.0f %%)", 100 * limit);
}

static void print_text(const struct agent_config *c, const struct readings *r, const struct decision *d, const struct here *h, char *sees)
{
    const struct policy *p = &c->policy;
    static const char *const words[] = {
#define X(name, word) [PRESSURE_##name] = word,
        POLICY_PRESSURE_MAP(X)
#undef X
    };
    char a[UNITS_MAX], b[UNITS_MAX], e[UNITS_MAX], k[UNITS_MAX];
    printf("node      %s, %u cores, %s; %s\n", c->host, r->cores, units_bytes(a, r->memory_bytes),
           agent_runs(c->dir) ? "its agent runs" : "no agent runs here");
    if (!r->people_known)
        printf("people    cannot be seen\n");
    else if (r->idle_ms == POLICY_NEVER)
        printf("people    %u logged in, nobody at the keyboard\n", r->people);
    else
        printf("people    %u logged in; last sign of life %s ago (%s)\n", r->people, units_duration(a, (double)r->idle_ms / 1000), r->who);
    printf("hours     %s\n", !p->hours.count ? "always" : calendar_open(&p->hours, r->minute) ? "open now" : "closed now");
    if (r->load_known)
        printf("load      of others %.2f of %u cores", r->load_of_others, r->cores);
    else
        printf("load      cannot be read");
    print_limit(p->load_limit);
    putchar('\n');
    if (r->memory_known)
        printf("memory    %s available of %s; %s are kept for the owner, below %s guests go at once\n", units_bytes(a, r->memory_available_bytes),
               units_bytes(b, r->memory_bytes), units_bytes(k, policy_bytes(&p->memory_keep, r->memory_bytes)),
               units_bytes(e, policy_bytes(&p->memory_evict, r->memory_bytes)));
    else
        printf("memory    cannot be read\n");
    printf("pressure ");
    for (int i = 0; i < PRESSURES; i++) {
        if (r->pressure_known[i])
            printf(" %s %.0f %%", words[i], 100 * r->pressure[i]);
        else
            printf(" %s unknown", words[i]);
        print_limit(p->pressure_limit[i]);
    }
    printf("\nguests    %u here, %s; at most %" PRIu64 ", of %u lane%s each\n", h->count, units_bytes(a, h->bytes), p->workers,
           policy_lanes(p, r->cores), policy_lanes(p, r->cores) == 1 ? "" : "s");
    for (char *save = NULL, *line = strtok_r(sees, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        printf("watches   %s\n", line);
    if (d->mode == MODE_FREE)
        printf("would     run up to %u worker%s%s%s\n", d->room, d->room == 1 ? "" : "s", *d->reason ? ": " : "", d->reason);
    else
        printf("would     run none: %s\n", d->reason);
}

int agent_status(const struct agent_words *words, int json)
{
    struct agent_config c;
    struct watch *w = NULL;
    struct policy_state state = {0};
    struct readings r = {0};
    struct decision d = {0};
    struct here h;
    struct err e;
    char sees[900];
    enum status st = agent_config_read(&c, words, &e);
    if (st == ST_OK) {
        st = watch_open(c.proc, clock_ms(), &w, &e);
        if (st != ST_OK)
            agent_config_release(&c);
    }
    if (st != ST_OK) {
        fprintf(stderr, "ebb-agent: %s\n", e.text);
        return status_exit_code(st);
    }
    long per_s = sysconf(_SC_CLK_TCK);
    for (int i = 0; i < LOOKS; i++) {
        if (i)
            clock_sleep_ms(LOOK_MS);
        look_at_guests(c.dir, &h);
        watch_read(w, clock_ms(), h.ticks * (1000000000ull / (uint64_t)(per_s > 0 ? per_s : 100)), &r);
        r.guests = r.running = h.count;
        r.guests_bytes = h.bytes;
        policy_decide(&c.policy, &state, &r, &d);
    }
    watch_words(w, sees, sizeof sees);
    if (json)
        print_json(&c, &r, &d, &h, sees);
    else
        print_text(&c, &r, &d, &h, sees);
    watch_close(w);
    agent_config_release(&c);
    return 0;
}
