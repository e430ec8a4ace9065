/* An ordinary turn: timers and threads report; before the loop sleeps, the open group is handed to the store's thread and readable
   sockets keep it awake; behind the sleep the sockets are read, each message one step.

   The end: SIGTERM, SIGINT or `stop` drains the workers, waits for their last commits, and closes; a second one, or the grace's end,
   kills them instead: what was acknowledged is safe either way. */
#include "daemon/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/path.h"
#include "daemon/apply.h"
#include "daemon/auth.h"
#include "daemon/guard.h"
#include "daemon/http.h"
#include "daemon/job.h"
#include "daemon/link.h"
#include "daemon/owner.h"
#include "daemon/provider.h"
#include "daemon/publish.h"
#include "daemon/relay.h"
#include "daemon/sweep.h"
#include "wire/sock.h"

#define RETRY_MS 1000     /* between two tries to open the store */
#define BUSY_RETRY_MS 50  /* somebody reads it: soon over */
#define STORE_ID_KEY "ebbd.store_id"
#define EXIT_SERVED 3     /* another ebbd serves this state */

/* Steps ---------------------------------------------------------------------------------------------------------------------------- */

enum status loop_step(struct daemon *d, struct sched_event *ev, struct err *e)
{
    if (!d->core)
        return err_set(e, ST_AGAIN, "the store is being opened anew (%s); ask again", *d->trouble ? d->trouble : "after a failed write");
    uint64_t now = clock_ms();
    if (now > d->now_ms)
        d->now_ms = now;
    ev->now_ms = d->now_ms;
    fault_point("daemon.step");
    enum status st = sched_step(d->core, ev, &d->update, e);
    apply_update(d->apply, &d->update); /* a refused event may still have moved time on */
    if (st == ST_NOMEM)
        loop_fatal(d, e);
    return st;
}

void loop_tell(struct daemon *d, struct sched_event *ev)
{
    struct err e;
    if (loop_step(d, ev, &e) != ST_OK)
        log_warn("not taken: %s", e.text);
}

void loop_fatal(struct daemon *d, const struct err *e)
{
    (void)d;
    log_error("ends: %s; what was acknowledged is safe, start again", e->text);
    exit(status_exit_code(e->code));
}

static void on_tick(uv_timer_t *t)
{
    struct daemon *d = t->data;
    struct sched_event ev = {.kind = SCHED_TICK};
    if (d->core)
        loop_tell(d, &ev);
}

void loop_wake_at(struct daemon *d, uint64_t when_ms)
{
    uv_update_time(&d->uv); /* a timer counts from the loop's own time, which stands still within a turn: it would be early */
    uint64_t now = clock_ms();
    uv_timer_start(&d->tick, on_tick, when_ms > now ? when_ms - now : 0, 0);
}

/* Coming back ------------------------------------------------------------------------------------------------------------------------ */

static enum status read_store_id(struct daemon *d, struct store *s, struct store_batch *b, struct err *e)
{
    struct buf id = {0};
    uint8_t random[16];
    enum status st = store_get(s, STORE_META, STORE_ID_KEY, strlen(STORE_ID_KEY), &id, e);
    if (st == ST_OK && id.len == 32) {
        memcpy(d->store_id, id.data, 32);
        d->store_id[32] = 0;
    } else if (st == ST_OK) {
        st = err_set(e, ST_CORRUPT, "the store's id has %zu bytes, not 32", id.len);
    } else if (st == ST_NOT_FOUND) {
        if (getrandom(random, sizeof random, 0) != sizeof random) {
            st = err_errno(e, ST_ENV, errno, "cannot draw random bytes");
        } else {
            for (size_t i = 0; i < sizeof random; i++)
                snprintf(d->store_id + 2 * i, 3, "%02x", random[i]);
            store_put(b, STORE_META, STORE_ID_KEY, strlen(STORE_ID_KEY), d->store_id, 32);
            st = ST_OK;
        }
    }
    buf_release(&id);
    return st;
}

/* A new core out of an open store: the generation is raised and synced, then every row is an event. */
static enum status recover(struct daemon *d, struct err *e)
{
    struct store *s = apply_store(d->apply);
    struct store_batch *b = NULL;
    uint32_t generation = 0;
    enum status st = rows_get_generation(s, &generation, e);
    if (st == ST_OK && generation == UINT32_MAX)
        st = err_set(e, ST_CORRUPT, "the store has been opened 2^32 times: move its jobs to a new one");
    if (st == ST_OK)
        st = store_batch_new(s, &b, e);
    if (st == ST_OK) {
        rows_put_generation(b, generation + 1);
        st = read_store_id(d, s, b, e);
    }
    if (st == ST_OK)
        st = store_write(s, b, 1, e);
    store_batch_free(b);
    TRY(st);
    uint64_t next = 0, begin = clock_ms();
    TRY(rows_next_job_id(s, &next, e));
    if (next > d->next_job)
        d->next_job = next;
    d->generation = generation + 1;
    struct sched_config config = sched_config_default;
    config.worker_timeout_ms = (uint32_t)d->config->worker_timeout;
    TRY(sched_new(&config, &d->core, e));
    struct sched_event ev = {.kind = SCHED_START};
    ev.u.start.generation = d->generation;
    st = loop_step(d, &ev, e);
    if (st == ST_OK)
        st = jobs_restore(d, s, e);
    ev = (struct sched_event){.kind = SCHED_RECOVERED};
    if (st == ST_OK)
        st = loop_step(d, &ev, e);
    if (st != ST_OK) {
        sched_free(d->core);
        d->core = NULL;
        return st;
    }
    provider_tell(d);
    log_info("generation %u: %zu jobs, read in %" PRIu64 " ms", d->generation, sched_job_count(d->core), clock_ms() - begin);
    return ST_OK;
}

static void on_retry(uv_timer_t *t)
{
    struct daemon *d = t->data;
    struct err e;
    enum status st = apply_reopen(d->apply, &e);
    if (st == ST_OK)
        st = recover(d, &e);
    if (st != ST_OK) {
        if (st != ST_AGAIN) {
            apply_discard(d->apply);
            if (strcmp(d->trouble, e.text))
                log_error("the store cannot be opened: %s", e.text);
            snprintf(d->trouble, sizeof d->trouble, "%.500s", e.text);
        }
        uv_timer_start(&d->retry, on_retry, st == ST_AGAIN ? BUSY_RETRY_MS : RETRY_MS, 0);
        return;
    }
    d->trouble[0] = 0;
    publish_restart(d->publish);
    link_rejoin(d->link);
    log_info("the store is open again");
}

void loop_store_failed(struct daemon *d, const struct err *e)
{
    log_error("the store could not be written: %s; it is opened anew", e->text);
    snprintf(d->trouble, sizeof d->trouble, "%.500s", e->text);
    sched_free(d->core);
    d->core = NULL;
    uv_timer_stop(&d->tick);
    apply_discard(d->apply);
    uv_timer_start(&d->retry, on_retry, 0, 0);
}

/* The end ---------------------------------------------------------------------------------------------------------------------------- */

void loop_stop(struct daemon *d, int now)
{
    if (d->phase == LOOP_RUNNING && !now) {
        d->phase = LOOP_DRAINING;
        d->drain_deadline_ms = clock_ms() + LOOP_GRACE_MS;
        sd_notify(0, "STOPPING=1\nSTATUS=workers commit what they have");
        log_info("ends: %zu workers commit what they have", provider_left(d));
        provider_stop(d, 0);
    } else if (d->phase != LOOP_ENDING) {
        d->phase = LOOP_ENDING;
        sd_notify(0, "STOPPING=1");
        log_info("ends at once");
        provider_stop(d, 1);
    }
}

/* Once everything that is under way has come to its end. What threads do for clients, parts and disks counts: they use what is closed then,
   and so do the ends of their errands on the loop. */
static int may_end(const struct daemon *d)
{
    if (d->phase == LOOP_RUNNING || (d->phase == LOOP_DRAINING && provider_left(d)))
        return 0;
    return (!d->core || apply_idle(d->apply)) && d->uv.active_reqs.count == 0;
}

static void on_prepare(uv_prepare_t *h)
{
    struct daemon *d = h->data;
    apply_flush(d->apply);
    if (may_end(d)) {
        d->ended = 1;
        uv_stop(&d->uv);
    }
    link_prepare(d->link);
}

static void on_check(uv_check_t *h)
{
    struct daemon *d = h->data;
    if (!d->ended) /* what comes now finds nobody: its rows and its answer would leave with no group any more */
        link_turn(d->link);
}

static void on_signal(uv_signal_t *h, int number)
{
    struct daemon *d = h->data;
    log_info("signal %d", number);
    loop_stop(d, 0);
}

/* Each second ------------------------------------------------------------------------------------------------------------------------ */

static void tell_systemd(struct daemon *d)
{
    size_t running = 0;
    if (!d->core) {
        sd_notifyf(0, "WATCHDOG=1\nSTATUS=the store cannot be written: %.300s", d->trouble);
        return;
    }
    for (size_t i = 0; i < sched_job_count(d->core); i++) {
        struct sched_job_view v;
        running += sched_job_view(d->core, sched_job_at(d->core, i), &v) && v.row->state == JOB_RUNNING;
    }
    if (d->phase == LOOP_RUNNING)
        sd_notifyf(0, "WATCHDOG=1\nSTATUS=%zu jobs running, %zu workers", running, sched_worker_count(d->core));
    else
        sd_notify(0, "WATCHDOG=1");
}

static void on_second(uv_timer_t *t)
{
    struct daemon *d = t->data;
    static uint64_t before;
    uint64_t now = clock_ms();
    if (before && now - before > 5000 && d->client_ms < now) /* we stood still, and so heard nobody */
        d->client_ms = now;
    before = now;
    tell_systemd(d);
    if (d->core) {
        link_second(d->link);
        provider_second(d);
        guard_second(d->guard);
        sweep_second(d->sweep);
    }
    if (d->auth)
        auth_second(d->auth);
    http_second(d);
    if (d->config->is_private && d->phase == LOOP_RUNNING && now - d->client_ms > LOOP_PRIVATE_SILENCE_MS) {
        log_info("no client has spoken for %d s", LOOP_PRIVATE_SILENCE_MS / 1000);
        loop_stop(d, 0);
    }
    if (d->phase == LOOP_DRAINING && now > d->drain_deadline_ms) {
        log_warn("%zu workers are still there after %d s", provider_left(d), LOOP_GRACE_MS / 1000);
        loop_stop(d, 1);
    }
}

/* The folders stay as they were. */
static void on_reload(uv_signal_t *h, int number)
{
    (void)number;
    struct daemon *d = h->data;
    struct config *c = mem_zalloc(sizeof *c);
    struct err e;
    enum status st = c ? config_init(c, &e) : err_nomem(&e, "the configuration");
    if (st == ST_OK)
        st = config_parse(c, d->argc, d->argv, &e);
    if (st == ST_OK)
        st = auth_reload(d, c, &e);
    char *state = st == ST_OK ? mem_strdup(d->config->state_dir) : NULL, *runtime = st == ST_OK ? mem_strdup(d->config->runtime_dir) : NULL;
    if (st == ST_OK && (!state || !runtime))
        st = err_nomem(&e, "the configuration");
    if (st != ST_OK) {
        log_error("the configuration stays as it is: %s", e.text);
        if (c)
            config_release(c);
        mem_free(c);
        mem_free(state);
        mem_free(runtime);
        return;
    }
    sd_notify(0, "RELOADING=1");
    if (strcmp(c->state_dir, state) || strcmp(c->runtime_dir, runtime))
        log_warn("state_dir and runtime_dir need a restart");
    mem_free(c->state_dir);
    mem_free(c->runtime_dir);
    c->state_dir = state;
    c->runtime_dir = runtime;
    c->own_runtime = d->config->own_runtime;
    char **listen = c->listen; /* what we listen at, until a restart */
    c->listen = d->config->listen;
    d->config->listen = listen;
    c->before = d->config;
    d->config = c;
    log_init("ebbd", c->log_level);
    log_info("configuration read again");
    provider_reload(d);
    http_reload(d);
    sd_notify(0, "READY=1");
}

/* Opening and closing ---------------------------------------------------------------------------------------------------------------- */

static enum status make_runtime(struct daemon *d, struct err *e)
{
    const char *dir = d->config->runtime_dir;
    struct stat s;
    TRY(path_make_dirs(dir, 0700, e));
    if (lstat(dir, &s))
        return err_errno(e, ST_ENV, errno, "cannot look at '%s'", dir);
    if (!S_ISDIR(s.st_mode) || s.st_uid != geteuid())
        return err_set(e, ST_USER, "the runtime folder '%s' belongs to somebody else: give another one with --runtime", dir);
    if (chmod(dir, 0700))
        return err_errno(e, ST_ENV, errno, "cannot change the mode of '%s'", dir);
    return ST_OK;
}

/* Members of the group may ask what clients may ask; workers' socket, lock and folder stay ours. */
static enum status open_to_group(struct daemon *d, struct err *e)
{
    const char *group = d->config->group, *socket = d->clients_endpoint + strlen("ipc://");
    if (!group)
        return ST_OK;
    errno = 0;
    const struct group *g = getgrnam(group);
    if (!g)
        return err_set(e, ST_USER, "there is no group '%s' ('group' in the configuration)", group);
    if (chown(d->config->runtime_dir, (uid_t)-1, g->gr_gid) || chown(socket, (uid_t)-1, g->gr_gid))
        return err_errno(e, ST_USER, errno, "cannot give '%s' to group '%s': ebbd's user must be a member of it", socket, group);
    if (chmod(d->workers_endpoint + strlen("ipc://"), 0600) || chmod(socket, 0660) || chmod(d->config->runtime_dir, 0710))
        return err_errno(e, ST_ENV, errno, "cannot change the mode of '%s'", socket);
    return ST_OK;
}

/* Sockets of a live daemon would be taken away from it in silence: whoever holds the lock has them. It stays ours to the end. */
static enum status lock_runtime(struct daemon *d, struct err *e)
{
    char *path = path_join(d->config->runtime_dir, "lock");
    if (!path)
        return err_nomem(e, "the sockets");
    enum status st = ST_OK;
    d->runtime_lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (d->runtime_lock < 0)
        st = err_errno(e, ST_ENV, errno, "cannot open '%s'", path);
    else if (flock(d->runtime_lock, LOCK_EX | LOCK_NB))
        st = err_set(e, ST_USER, "another ebbd has its sockets in '%s': give another folder with --runtime", d->config->runtime_dir);
    mem_free(path);
    return st;
}

static void make_handles(struct daemon *d, uv_check_t *check)
{
    uv_prepare_init(&d->uv, &d->prepare);
    uv_check_init(&d->uv, check);
    uv_timer_init(&d->uv, &d->second);
    uv_signal_init(&d->uv, &d->sigterm);
    uv_signal_init(&d->uv, &d->sigint);
    uv_signal_init(&d->uv, &d->sighup);
    d->prepare.data = check->data = d->second.data = d->sigterm.data = d->sigint.data = d->sighup.data = d;
    uv_prepare_start(&d->prepare, on_prepare);
    uv_check_start(check, on_check);
    uv_timer_start(&d->second, on_second, 1000, 1000);
    uv_signal_start(&d->sigterm, on_signal, SIGTERM);
    uv_signal_start(&d->sigint, on_signal, SIGINT);
    if (d->config->is_private)
        signal(SIGHUP, SIG_IGN); /* the terminal may go; the job goes on while its client asks */
    else
        uv_signal_start(&d->sighup, on_reload, SIGHUP);
}

static enum status open_all(struct daemon *d, struct err *e)
{
    TRY(make_runtime(d, e));
    d->workers_endpoint = mem_printf("ipc://%s/workers", d->config->runtime_dir);
    d->clients_endpoint = mem_printf("ipc://%s/clients", d->config->runtime_dir);
    if (!d->workers_endpoint || !d->clients_endpoint)
        return err_nomem(e, "the sockets");
    struct owner_record theirs = {0};
    TRY(owner_take(d->config->state_dir, d->clients_endpoint, OWNER_SILENCE_MS, &theirs, &d->owner, e));
    TRY(lock_runtime(d, e));
    TRY(auth_open(d, e));
    TRY(http_open(d, e));
    uv_timer_init(&d->uv, &d->tick);
    uv_timer_init(&d->uv, &d->retry);
    d->tick.data = d->retry.data = d;
    TRY(apply_open(d, e));
    TRY(jobs_open(d, e));
    TRY(guard_open(d, e));
    TRY(sweep_open(d, SWEEP_AFTER_MS, e));
    TRY(provider_open(d, e));
    TRY(recover(d, e));
    TRY(publish_open(d, e));
    TRY(link_open(d, e));
    TRY(open_to_group(d, e));
    TRY(relay_open(d, e));
    publish_restart(d->publish);
    provider_recovered(d);
    return ST_OK;
}

static void close_all(struct daemon *d)
{
    http_close(d);
    publish_close(d);
    struct relay *relay = d->relay;
    relay_close(d);
    link_close(d);
    auth_close(d);
    relay_release(relay);
    provider_close(d);
    guard_close(d);
    sweep_close(d);
    apply_close(d);
    jobs_close(d);
    sched_free(d->core);
    d->core = NULL;
    sched_update_release(&d->update);
}

static void close_handle(uv_handle_t *h, void *arg)
{
    (void)arg;
    if (!uv_is_closing(h))
        uv_close(h, NULL);
}

int loop_run(struct config *config, int argc, char **argv)
{
    struct daemon d = {.config = config, .argc = argc, .argv = argv, .runtime_lock = -1};
    struct err e;
    uv_check_t check;
    signal(SIGPIPE, SIG_IGN);
    if (gethostname(d.host, sizeof d.host - 1))
        snprintf(d.host, sizeof d.host, "localhost");
    d.host_id = XXH64(d.host, strlen(d.host), 0) | 1;
    uv_loop_init(&d.uv);
    if (config->is_private && getpgrp() != getpid())
        setsid(); /* Ctrl-C is for the client, which tells us what to do */
    enum status st = open_all(&d, &e);
    if (st == ST_OK) {
        make_handles(&d, &check);
        d.client_ms = clock_ms();
        log_info("ebbd %s: serves '%s' at %s", EBBD_VERSION, config->state_dir, d.clients_endpoint);
        sd_notifyf(0, "READY=1\nSTATUS=serves %s", config->state_dir);
        if (config->is_private) {
            printf("ready %s\n", d.clients_endpoint);
            fflush(stdout);
            if (!freopen("/dev/null", "w", stdout))
                log_debug("standard output stays open");
        }
        uv_run(&d.uv, UV_RUN_DEFAULT);
        log_info("ends: everything acknowledged is safe");
    } else {
        fprintf(stderr, "ebbd: %s\n", e.text);
        d.exit_code = st == ST_AGAIN ? EXIT_SERVED : status_exit_code(st);
    }
    config = d.config;
    close_all(&d);
    uv_walk(&d.uv, close_handle, NULL);
    uv_run(&d.uv, UV_RUN_DEFAULT); /* threads end, handles close */
    uv_loop_close(&d.uv);
    owner_release(d.owner);
    if (config->own_runtime) {
        if (path_remove_tree(config->runtime_dir, &e) != ST_OK)
            log_debug("%s", e.text);
    } else if (st == ST_OK) {
        unlink(d.clients_endpoint + strlen("ipc://"));
        unlink(d.workers_endpoint + strlen("ipc://"));
        sock_sweep(config->runtime_dir, RELAY_NAME, 0);  /* ours: closed above */
        sock_sweep(config->runtime_dir, SOCK_STAGES, 1); /* of workers that were killed */
    }
    if (d.runtime_lock >= 0)
        close(d.runtime_lock);
    mem_free(d.clients_endpoint);
    mem_free(d.workers_endpoint);
    for (struct config *c = d.config, *before; c; c = before) {
        before = c->before;
        config_release(c);
        if (before) /* the first one is the caller's */
            mem_free(c);
    }
    return d.exit_code;
}
