/* The happy path: the core wants workers; missing ones are started; each says hello by itself and is reaped when it goes. How it went,
   and which records were in it, is told to the core.

   Workers outlive a daemon that was killed: beside each one's black box lies a note of its process. The next daemon watches those that
   live by a pidfd, starts no others in their place, and tells the core of those that died meanwhile; how such ones exit only their black box
   tells. */
#include "daemon/local_inside.h"

#include <dirent.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/host.h"
#include "base/mem.h"
#include "base/path.h"
#include "daemon/job.h"
#include "daemon/link.h"
#include "wire/process.h"

#define GREET_MS 60000        /* a worker that has not said hello by then never will */

/* Signals ------------------------------------------------------------------------------------------------------------------------- */

static void on_child_exit(uv_process_t *p, int64_t status, int signal)
{
    local_died(p->data, (int)status, signal);
}

static void on_pidfd(uv_poll_t *p, int status, int events)
{
    (void)status;
    (void)events;
    uv_poll_stop(p);
    local_died(p->data, 0, 0);
}

/* A number may be another process's by now; a pidfd and a child that was not reaped are safe. */
static void send_signal(const struct child *c, int signal)
{
    if (c->dead)
        return;
    if (c->adopted)
        syscall(SYS_pidfd_send_signal, c->pidfd, signal, NULL, 0);
    else
        kill(c->pid, signal);
}

/* Starting ------------------------------------------------------------------------------------------------------------------------- */

static struct child *child_new(struct local *l, uint64_t number)
{
    struct child *c = mem_zalloc(sizeof *c);
    char box[40], note[40];
    snprintf(box, sizeof box, "%016" PRIx64 ".box", number);
    snprintf(note, sizeof note, "%016" PRIx64 ".pid", number);
    if (!c || !(c->blackbox = path_join(l->dir, box)) || !(c->note = path_join(l->dir, note))) {
        if (c)
            mem_free(c->blackbox);
        mem_free(c);
        return NULL;
    }
    c->l = l;
    c->number = number;
    c->pidfd = -1;
    c->started_ms = clock_ms();
    return c;
}

static unsigned free_place(const struct local *l)
{
    for (unsigned place = 1;; place++) {
        const struct child *c = l->children;
        while (c && c->place != place)
            c = c->next;
        if (!c)
            return place;
    }
}

static void start(struct local *l)
{
    struct daemon *d = l->d;
    uint64_t number;
    do
        number = process_draw_number();
    while (local_find(l, number));
    struct child *c = child_new(l, number);
    if (!c)
        return; /* again in a second */
    char log[48], digits[24], lanes[24], memory[24], pack_bytes[24];
    c->place = free_place(l);
    snprintf(c->name, sizeof c->name, "%.120s/%u", d->host, c->place);
    snprintf(log, sizeof log, "worker-%u.log", c->place);
    snprintf(digits, sizeof digits, "%" PRIu64, number);
    uint64_t each = d->config->lanes ? d->config->lanes : host_processors() / (d->config->workers ? d->config->workers : 1);
    snprintf(lanes, sizeof lanes, "%" PRIu64, each ? each : 1);
    snprintf(memory, sizeof memory, "%" PRIu64, d->config->memory);
    snprintf(pack_bytes, sizeof pack_bytes, "%" PRIu64, d->config->pack_bytes);
    c->log = path_join(l->dir, log);
    int fd = c->log ? process_open_log(c->log) : -1;
    char *args[] = {l->program, "--connect", d->workers_endpoint, "--name", c->name, "--number", digits, "--blackbox", c->blackbox, "--lanes", lanes,
                    "--provider", "local", NULL, NULL, NULL, NULL, NULL, NULL, NULL};
    size_t at = sizeof args / sizeof *args - 7;
    if (d->config->memory) {
        args[at++] = "--memory";
        args[at++] = memory;
    }
    if (d->config->pack_cache) {
        args[at++] = "--pack-cache";
        args[at++] = d->config->pack_cache;
    }
    if (d->config->pack_bytes) {
        args[at++] = "--pack-cache-size";
        args[at++] = pack_bytes;
    }
    uv_stdio_container_t stdio[] = {{.flags = UV_IGNORE},
                                    {.flags = fd < 0 ? UV_IGNORE : UV_INHERIT_FD, .data.fd = fd},
                                    {.flags = fd < 0 ? UV_IGNORE : UV_INHERIT_FD, .data.fd = fd}};
    uv_process_options_t options = {.file = l->program, .args = args, .exit_cb = on_child_exit, .stdio = stdio, .stdio_count = 3, .flags = UV_PROCESS_DETACHED};
    c->process.data = c;
    int failed = *l->program ? uv_spawn(&d->uv, &c->process, &options) : UV_ENOENT;
    if (fd >= 0)
        close(fd);
    if (failed) {
        snprintf(l->trouble, sizeof l->trouble, "no worker can be started: '%s': %s", *l->program ? l->program : "ebb-worker", uv_strerror(failed));
        l->deaths++;
        l->not_before_ms = clock_ms() + BACK_OFF_MS * (l->deaths < 10 ? l->deaths : 10);
        log_error("%s", l->trouble);
        if (l->deaths >= DEATHS_THAT_HOLD) {
            l->deaths = 0;
            local_hold_all(l, l->trouble);
        }
        if (*l->program)
            uv_close((uv_handle_t *)&c->process, local_child_closed);
        else
            local_child_free(c);
        return;
    }
    c->pid = c->process.pid;
    if (process_note_write(c->note, c->pid, c->place))
        log_warn("worker %s: '%s' cannot be written: a later daemon would not know this worker", c->name, c->note);
    c->next = l->children;
    l->children = c;
    l->count++;
    log_info("worker %s: started as %d, %s lanes", c->name, c->pid, lanes);
}

void local_fill(struct local *l)
{
    struct daemon *d = l->d;
    if (l->stay || d->phase != LOOP_RUNNING || !d->core || clock_ms() < l->not_before_ms)
        return;
    size_t ours = 0, want = l->wanted < d->config->workers ? l->wanted : d->config->workers;
    for (const struct child *c = l->children; c; c = c->next)
        ours += !c->draining && !c->hung && !c->bye && !c->dead;
    for (size_t was = l->count + 1; ours < want && l->count < d->config->workers + 4 && l->count != was; ours++) {
        was = l->count;
        start(l);
    }
}

/* What the core asks, see daemon/provider.h ------------------------------------------------------------------------------------------ */

static void terms(const struct daemon *d, struct provider_terms *out)
{
    const struct local *l = d->local;
    out->limit = (uint32_t)(l->stay && l->count < d->config->workers ? l->count : d->config->workers);
    out->idle_ms = d->config->is_private ? 0 : d->config->idle_ms; /* a private daemon's workers stay as long as it does */
}

static void want(struct daemon *d, uint32_t workers)
{
    d->local->wanted = workers;
    local_fill(d->local);
}

static int owns(const struct daemon *d, uint64_t worker)
{
    return d->local && local_find(d->local, worker) != NULL;
}

static void said_hello(struct daemon *d, const struct worker *w)
{
    struct local *l = d->local;
    local_find(l, w->number)->greeted = 1;
    l->deaths = 0;
    l->trouble[0] = 0;
}

static void said_bye(struct daemon *d, uint64_t worker)
{
    local_find(d->local, worker)->bye = 1;
}

static void kill_hung(struct daemon *d, uint64_t worker, const char *why)
{
    (void)why;
    struct child *c = local_find(d->local, worker);
    c->hung = 1;
    send_signal(c, SIGKILL);
}

static void leaving(struct daemon *d, uint64_t worker)
{
    local_find(d->local, worker)->draining = 1;
}

static void second(struct daemon *d)
{
    struct local *l = d->local;
    uint64_t now = clock_ms();
    for (struct child *c = l->children; c; c = c->next)
        if (!c->greeted && !c->dead && !c->hung && now - c->started_ms > GREET_MS) {
            log_warn("worker %s: has not said hello for %d s and is killed", c->name, GREET_MS / 1000);
            c->hung = 1;
            send_signal(c, SIGKILL);
        }
    local_fill(l);
}

static void stay(struct daemon *d, int on)
{
    d->local->stay = on;
    local_fill(d->local);
}

static void stop(struct daemon *d, int now)
{
    struct local *l = d->local;
    l->stay = 1;
    for (struct child *c = l->children; c; c = c->next) {
        if (now) {
            c->killed = 1;
            send_signal(c, SIGKILL);
            continue;
        }
        c->draining = 1;
        if (!c->greeted) { /* it holds nothing */
            send_signal(c, SIGTERM);
            continue;
        }
        struct sched_event ev = {.kind = SCHED_WORKER_DRAIN, .worker = c->number};
        loop_tell(d, &ev);
    }
}

static size_t left(const struct daemon *d)
{
    return d->local ? d->local->count : 0;
}

static size_t starting(const struct daemon *d, provider_visit *visit, void *arg)
{
    size_t n = 0;
    for (const struct child *c = d->local->children; c; c = c->next)
        if (!c->greeted) {
            n++;
            if (visit)
                visit(arg, c->number, c->name, (uint64_t)c->pid, c->started_ms);
        }
    return n;
}

static const char *trouble(const struct daemon *d)
{
    return d->local->trouble;
}

const char *local_program(const struct local *l)
{
    return l->program;
}

/* Those of an earlier daemon ------------------------------------------------------------------------------------------------------- */

static void adopt(struct local *l, const char *file)
{
    uint64_t number;
    struct process_note note;
    char log[48];
    struct child *c = sscanf(file, "%16" SCNx64, &number) == 1 ? child_new(l, number) : NULL;
    if (!c)
        return;
    process_note_read(c->note, &note);
    snprintf(c->name, sizeof c->name, "%.120s/%u", l->d->host, note.place);
    snprintf(log, sizeof log, "worker-%u.log", note.place);
    c->log = path_join(l->dir, log);
    c->place = note.place;
    c->pid = note.pid;
    c->adopted = 1;
    if (process_note_lives(&note))
        c->pidfd = (int)syscall(SYS_pidfd_open, note.pid, 0);
    uv_poll_init(&l->d->uv, &c->poll, c->pidfd >= 0 ? c->pidfd : l->idle_fd);
    c->poll.data = c;
    if (c->pidfd >= 0)
        uv_poll_start(&c->poll, UV_READABLE, on_pidfd);
    else
        c->fallen = 1;
    c->next = l->children;
    l->children = c;
    l->count++;
    log_info("worker %s: %s %d of an earlier daemon", c->name, c->fallen ? "died meanwhile, process" : "adopted, process", note.pid);
}

static void adopt_all(struct local *l)
{
    DIR *dir = opendir(l->dir);
    for (const struct dirent *f; dir && (f = readdir(dir));) {
        size_t n = strlen(f->d_name);
        if (n == 20 && strcmp(f->d_name + 16, ".pid") == 0)
            adopt(l, f->d_name);
    }
    if (dir)
        closedir(dir);
}

static void recovered(struct daemon *d)
{
    for (struct child *c = d->local->children; c; c = c->next)
        if (c->fallen && !c->dead)
            local_died(c, 0, 0);
}

/* Opening ------------------------------------------------------------------------------------------------------------------------- */

static enum status open_local(struct daemon *d, struct err *e)
{
    struct local *l = mem_zalloc(sizeof *l);
    if (!l)
        return err_nomem(e, "the workers");
    l->d = d;
    l->dir = path_join(d->config->state_dir, "workers");
    l->program = process_find_worker();
    enum status st = l->dir && l->program ? path_make_dirs(l->dir, 0700, e) : err_nomem(e, "the workers");
    if (st != ST_OK) {
        mem_free(l->dir);
        mem_free(l->program);
        mem_free(l);
        return st;
    }
    l->oom_kills = process_oom_kills();
    uv_timer_init(&d->uv, &l->reaper);
    l->reaper.data = l;
    l->idle_fd = eventfd(0, EFD_CLOEXEC);
    d->local = l;
    adopt_all(l);
    return ST_OK;
}

static void on_reaper_closed(uv_handle_t *h)
{
    struct local *l = h->data;
    close(l->idle_fd);
    mem_free(l);
}

static void close_local(struct daemon *d)
{
    struct local *l = d->local;
    if (!l)
        return;
    for (struct child *c = l->children, *next; c; c = next) {
        next = c->next;
        uv_handle_t *h = c->adopted ? (uv_handle_t *)&c->poll : (uv_handle_t *)&c->process;
        h->data = c;
        uv_close(h, local_child_closed);
    }
    mem_free(l->dir);
    mem_free(l->program);
    d->local = NULL;
    uv_close((uv_handle_t *)&l->reaper, on_reaper_closed);
}

const struct provider provider_local = {.id = PROVIDER_LOCAL,
                                        .open = open_local,
                                        .recovered = recovered,
                                        .close = close_local,
                                        .terms = terms,
                                        .want = want,
                                        .owns = owns,
                                        .kill = kill_hung,
                                        .leaving = leaving,
                                        .hello = said_hello,
                                        .bye = said_bye,
                                        .second = second,
                                        .starting = starting,
                                        .trouble = trouble,
                                        .stay = stay,
                                        .stop = stop,
                                        .left = left};
