/* A turn: wait for a message, a signal or the time to look; read the node; let the policy decide; do what it says; tell the daemon.

   It looks five times a second while guests run, which is what an owner's return within a second asks for, and less often otherwise. The guests come last
   in every line and the agent does not: it must get its turn on a node that is as busy as can be. */
#include "workers/agent/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/path.h"
#include "wire/keys.h"
#include "wire/process.h"
#include "workers/agent/guests.h"
#include "workers/agent/talk.h"
#include "workers/agent/watch.h"

#define LOOK_MS 200            /* while guests are there, or have just been sent for */
#define LOOK_CALM_MS 500       /* without */
#define LOOK_IDLE_MS 1000      /* and nobody wants any */
#define EAGER_LOOKS 10         /* after the start */
#define BYTES_MS 1000          /* between two looks at the guests' memory */
#define LAST_WORDS_MS 3000     /* for the daemon to note the last endings */
#define OWN_NICE (-5)

struct agent {
    const struct agent_words *words;
    struct agent_config config;
    struct keys keys;
    struct policy_state state;
    struct readings readings;
    struct decision decision;
    struct watch *watch;
    struct guests *guests;
    struct talk *talk;
    int signal_fd, lock_fd;
    int leave, now;            /* told to end; told twice */
    int joined;                /* where the daemon is was said by the key alone */
    uint64_t look_ms, bytes_ms, leave_ms, watchdog_ms;
    unsigned looks;
    char status[200];
};

/* Signals ---------------------------------------------------------------------------------------------------------------------------- */

static int signal_write_fd = -1;

static void on_signal(int number)
{
    int saved = errno;
    unsigned char byte = (unsigned char)number;
    if (write(signal_write_fd, &byte, 1) < 0) {
        /* the pipe is full of news */
    }
    errno = saved;
}

static int signals_as_file(void)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP, SIGCHLD};
    int fds[2];
    if (pipe2(fds, O_NONBLOCK | O_CLOEXEC))
        return -1;
    signal_write_fd = fds[1];
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaction(numbers[i], &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    return fds[0];
}

static int changed(const char *a, const char *b)
{
    return (a != NULL) != (b != NULL) || (a && strcmp(a, b));
}

static void reload(struct agent *a)
{
    struct agent_config c;
    struct err e;
    sd_notify(0, "RELOADING=1");
    if (agent_config_read(&c, a->words, &e) != ST_OK) {
        log_error("the configuration stays as it is: %s", e.text);
    } else {
        if (((c.daemon || !a->joined) && changed(c.daemon, a->config.daemon)) || changed(c.key_file, a->config.key_file) || changed(c.dir, a->config.dir) ||
            changed(c.host, a->config.host) || changed(c.pack_cache, a->config.pack_cache) || c.pack_bytes != a->config.pack_bytes || c.priority != a->config.priority)
            log_warn("daemon, key_file, dir, host, priority and pack_cache need a restart");
        a->config.policy = c.policy;
        a->config.log_level = c.log_level;
        log_init("ebb-agent", c.log_level);
        log_info("configuration read again");
        a->look_ms = 0;
        agent_config_release(&c);
    }
    sd_notify(0, "READY=1");
}

static void take_signals(struct agent *a, uint64_t now_ms)
{
    unsigned char number;
    while (read(a->signal_fd, &number, 1) == 1) {
        if (number == SIGHUP) {
            reload(a);
        } else if (number != SIGCHLD) {
            log_info("signal %d: %s", number, a->leave ? "ends at once" : "guests commit what they have, and go");
            a->now = a->leave;
            a->leave = 1;
            a->leave_ms = a->look_ms = 0;
            sd_notify(0, "STOPPING=1");
        }
    }
    (void)now_ms;
}

/* Looking and acting ----------------------------------------------------------------------------------------------------------------- */

static void look(struct agent *a, uint64_t now_ms)
{
    struct readings *r = &a->readings;
    if (!a->bytes_ms || now_ms - a->bytes_ms >= BYTES_MS) {
        r->guests_bytes = guests_bytes(a->guests);
        a->bytes_ms = now_ms;
    }
    watch_read(a->watch, now_ms, guests_cpu_ns(a->guests), r);
    r->guests = (uint32_t)guests_count(a->guests);
    r->running = guests_frozen(a->guests) ? 0 : r->guests;
    r->leave = a->leave;
    enum policy_mode was = a->decision.mode;
    char before[sizeof a->decision.reason];
    memcpy(before, a->decision.reason, sizeof before);
    policy_decide(&a->config.policy, &a->state, r, &a->decision);
    if (a->decision.mode != was || !a->looks)
        log_info("node %s: %s%s%s", a->config.host, policy_mode_word(a->decision.mode), *a->decision.reason ? ": " : "", a->decision.reason);
    else if (a->decision.mode == MODE_AWAY && strcmp(before, a->decision.reason))
        log_debug("node %s: away: %s", a->config.host, a->decision.reason);
    a->looks++;
}

static void act(struct agent *a, uint64_t now_ms)
{
    const struct decision *d = &a->decision;
    size_t wanted = talk_wanted(a->talk), staying = guests_staying(a->guests);
    switch (d->order) {
    case ORDER_FREE:
    case ORDER_THAW:
        guests_thaw(a->guests);
        if (staying > d->room)
            guests_drain(a->guests, staying - d->room, "the owner needs the room");
        /* One that is leaving still has its share of the node. */
        for (size_t n = guests_count(a->guests); !a->leave && staying < wanted && n < d->room; staying++, n++)
            if (guests_start(a->guests, policy_lanes(&a->config.policy, a->readings.cores), policy_memory(&a->config.policy, a->readings.memory_bytes),
                             a->config.policy.grace_ms * 9 / 10, now_ms)) /* it goes by itself before it is killed */
                break;
        break;
    case ORDER_FREEZE:
        guests_freeze(a->guests);
        break;
    case ORDER_DRAIN:
        guests_thaw(a->guests);
        guests_drain(a->guests, SIZE_MAX, d->reason);
        break;
    case ORDER_EVICT:
        guests_evict(a->guests, d->reason);
        break;
    }
}

static void tell_systemd(struct agent *a, uint64_t now_ms)
{
    char status[sizeof a->status];
    size_t n = guests_count(a->guests);
    snprintf(status, sizeof status, "%s%s%.90s%s, %zu guest%s%s%.60s", policy_mode_word(a->decision.mode), *a->decision.reason ? " (" : "",
             a->decision.reason, *a->decision.reason ? ")" : "", n, n == 1 ? "" : "s", talk_welcome(a->talk) ? "" : "; ", talk_trouble(a->talk));
    if (now_ms - a->watchdog_ms < 1000 && strcmp(status, a->status) == 0)
        return;
    a->watchdog_ms = now_ms;
    memcpy(a->status, status, sizeof status);
    sd_notifyf(0, "WATCHDOG=1\nSTATUS=%s", status);
}

static uint64_t next_look(const struct agent *a, uint64_t now_ms)
{
    if (guests_count(a->guests) || a->looks < EAGER_LOOKS)
        return now_ms + LOOK_MS;
    return now_ms + (talk_wanted(a->talk) || a->decision.mode != MODE_FREE ? LOOK_CALM_MS : LOOK_IDLE_MS);
}

static void turn(struct agent *a)
{
    zmq_pollitem_t items[3];
    uint64_t now_ms = clock_ms();
    talk_poll_items(a->talk, items);
    items[2] = (zmq_pollitem_t){.fd = a->signal_fd, .events = ZMQ_POLLIN};
    /* A closed socket leaves a place that waits for nothing. */
    zmq_pollitem_t *first = items[0].socket ? items : items + 2;
    zmq_poll(first, first == items ? 3 : 1, a->look_ms > now_ms ? (long)(a->look_ms - now_ms) : 0);
    now_ms = clock_ms();
    take_signals(a, now_ms);
    int news = guests_reap(a->guests, now_ms);
    news |= talk_turn(a->talk, a->guests, now_ms);
    if (news || now_ms >= a->look_ms) {
        look(a, now_ms);
        act(a, now_ms);
        a->look_ms = next_look(a, now_ms);
        /* A worker that could not be started is tried again when its time has come. */
        uint64_t again_ms = guests_not_before(a->guests);
        if (again_ms > now_ms && again_ms < a->look_ms)
            a->look_ms = again_ms;
    }
    struct decision told = a->decision;
    if (now_ms < guests_not_before(a->guests) && told.room > guests_count(a->guests)) { /* others can do better just now */
        told.room = (uint32_t)guests_count(a->guests);
        snprintf(told.reason, sizeof told.reason, "%.230s", guests_trouble(a->guests));
    }
    talk_state(a->talk, &told, &a->readings, a->guests, now_ms);
    tell_systemd(a, now_ms);
}

/* ------------------------------------------------------------------------------------------------------------------------------------- */

/* The key file says, too, where the daemon is, when nothing else does. */
static enum status find_daemon(struct agent *a, struct err *e)
{
    struct agent_config *c = &a->config;
    struct keys_file k;
    if (c->key_file && (!c->daemon || strncmp(c->daemon, "tcp://", 6) == 0)) {
        TRY(keys_read(c->key_file, KEYS_NODE, &a->keys, e));
        a->joined = !c->daemon;
        if (!c->daemon && keys_read_file(c->key_file, &k, e) == ST_OK && *k.daemon && !(c->daemon = mem_strdup(k.daemon)))
            return err_nomem(e, "the configuration");
        keys_wipe(&k.keys);
    }
    if (!c->daemon)
        return err_set(e, ST_USER, "no daemon is named: write 'daemon: tcp://HOST:5570' into " AGENT_FILE ", give --connect, or let 'ebb-agent join' do it");
    if (strncmp(c->daemon, "tcp://", 6) == 0 && !c->key_file)
        return err_set(e, ST_USER, "'%s' wants a key: 'ebb invite --node' on the daemon's machine prints the line that makes one here", c->daemon);
    return ST_OK;
}

/* Another agent would take our guests for left behind. */
static enum status take_folder(struct agent *a, struct err *e)
{
    char *path = path_join(a->config.dir, AGENT_LOCK);
    if (!path)
        return err_nomem(e, "the configuration");
    enum status st = ST_OK;
    a->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (a->lock_fd < 0)
        st = err_errno(e, ST_ENV, errno, "cannot open '%s'", path);
    else if (flock(a->lock_fd, LOCK_EX | LOCK_NB))
        st = err_set(e, ST_USER, "another ebb-agent uses '%s': give another folder with --dir, or stop it", a->config.dir);
    mem_free(path);
    return st;
}

/* Drawn when the folder was made, so that the daemon knows who comes back after a restart; of another host name it is another agent's, should a disk
   have been copied. */
static enum status find_number(const struct agent_config *c, uint64_t *number, struct err *e)
{
    char *path = path_join(c->dir, AGENT_NUMBER);
    struct buf text = {0};
    enum status st = path ? path_read(path, 64, &text, e) : err_nomem(e, "the configuration");
    if (st == ST_OK && (!buf_cstr(&text) || sscanf(text.data, "%16" SCNx64, number) != 1 || !*number))
        st = ST_NOT_FOUND; /* damaged: a new one is as good */
    if (st == ST_NOT_FOUND) {
        char line[24];
        *number = process_draw_number();
        int n = snprintf(line, sizeof line, "%016" PRIx64 "\n", *number);
        st = path_write(path, line, (size_t)n, e);
    }
    buf_release(&text);
    mem_free(path);
    for (const char *h = c->host; *h; h++)
        *number = (*number ^ (unsigned char)*h) * 0x100000001b3u;
    *number += !*number;
    return st;
}

static enum status open_all(struct agent *a, struct err *e)
{
    TRY(agent_config_read(&a->config, a->words, e));
    log_init("ebb-agent", a->config.log_level);
    TRY(find_daemon(a, e));
    TRY(path_make_dirs(a->config.dir, 0700, e));
    TRY(take_folder(a, e));
    TRY(watch_open(a->config.proc, clock_ms(), &a->watch, e));
    struct agent_config *c = &a->config;
    int tcp = strncmp(c->daemon, "tcp://", 6) == 0;
    struct guests_opts o = {.host = c->host, .dir = c->dir, .endpoint = c->daemon, .key_file = tcp ? c->key_file : NULL, .pack_cache = c->pack_cache,
                            .pack_bytes = c->pack_bytes, .priority = c->priority};
    TRY(guests_open(&o, &a->guests, e));
    watch_read(a->watch, clock_ms(), guests_cpu_ns(a->guests), &a->readings);
    uint64_t number;
    TRY(find_number(c, &number, e));
    struct talk_opts t = {.number = number, .endpoint = c->daemon, .host = c->host, .keys = tcp ? &a->keys : NULL, .cores = a->readings.cores,
                          .memory_bytes = a->readings.memory_bytes};
    TRY(talk_open(&t, &a->talk, e));
    a->signal_fd = signals_as_file();
    return a->signal_fd < 0 ? err_errno(e, ST_ENV, errno, "cannot set up signals") : ST_OK;
}

int agent_run(const struct agent_words *words)
{
    struct agent a = {.words = words, .lock_fd = -1, .signal_fd = -1};
    struct err e;
    int code = 0;
    log_init("ebb-agent", LOG_INFO);
    enum status st = open_all(&a, &e);
    if (st == ST_OK) {
        char sees[900];
        if (setpriority(PRIO_PROCESS, 0, OWN_NICE))
            log_debug("stays at its priority: %s", strerror(errno));
        watch_words(a.watch, sees, sizeof sees);
        log_info("ebb-agent %s: node %s, %u cores, for the daemon at '%s'", AGENT_VERSION, a.config.host, a.readings.cores, a.config.daemon);
        for (char *save = NULL, *line = strtok_r(sees, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
            log_info("%s", line);
        log_info("guests are held by signals and control groups (%s)", guests_means(a.guests));
        sd_notify(0, "READY=1");
        while (!a.now && !(a.leave && !guests_count(a.guests) && (!guests_endings(a.guests) || !talk_welcome(a.talk) ||
                                                                   (a.leave_ms && clock_ms() - a.leave_ms > LAST_WORDS_MS)))) {
            turn(&a);
            if (a.leave && !a.leave_ms && !guests_count(a.guests))
                a.leave_ms = clock_ms();
        }
        if (a.now) { /* the daemon is told what it cost, if it is there */
            guests_evict(a.guests, "the agent ends");
            for (uint64_t until_ms = clock_ms() + LAST_WORDS_MS; (guests_count(a.guests) || (talk_welcome(a.talk) && guests_endings(a.guests))) && clock_ms() < until_ms;) {
                a.look_ms = clock_ms() + 10;
                turn(&a);
            }
        }
        log_info("ends");
    } else {
        fprintf(stderr, "ebb-agent: %s\n", e.text);
        code = status_exit_code(st);
    }
    guests_close(a.guests);
    talk_close(a.talk);
    watch_close(a.watch);
    keys_wipe(&a.keys);
    if (a.lock_fd >= 0)
        close(a.lock_fd);
    agent_config_release(&a.config);
    return code;
}
