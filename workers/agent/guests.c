/* The happy path: fork; the child becomes the last in every line and the first to be killed, joins the control groups, and is a worker. SIGCHLD
   wakes the agent, which reaps it and keeps the ending, black box and note until the daemon has noted it.

   What can fail: no program, no memory: guests_trouble says so, and the next try is later each time. The agent dies: so do they, by the kernel's
   hand; the next agent finds note and box. */
#include "workers/agent/guests.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/path.h"
#include "wire/process.h"
#include "workers/agent/cgroup.h"
#include "workers/agent/family.h"

#define AT_ONCE_MS 5000
#define BACK_OFF_MS 500
#define BACK_OFF_MAX_MS 30000
#define CLOSE_MS 3000

#define IOPRIO_IDLE (3 << 13)  /* IOPRIO_PRIO_VALUE(IOPRIO_CLASS_IDLE, 0) of linux/ioprio.h */
#define IOPRIO_LAST (2 << 13 | 7) /* IOPRIO_CLASS_BE, the last of eight */
#define IOPRIO_OF_PROCESS 1

struct guest {
    struct guest *next;
    uint64_t number, started_ms;
    char name[160], why[160];
    unsigned place;
    int pid;
    int asked, hung, evicted;
    char *box, *note, *log;
    uint64_t ticks;            /* of processor time, at the last look, where groups do not count it */
};

struct guests {
    struct guests_opts o;
    char *dir, *program, name[48];
    struct guest *first;       /* the youngest first */
    size_t count;
    struct guest_ending *endings;
    struct cgroup *group;
    int frozen;
    uint64_t gone_ticks;       /* of those that are no more */
    unsigned deaths;
    uint64_t back_off_ms, not_before_ms;
    char trouble[400];
};

/* Endings ---------------------------------------------------------------------------------------------------------------------------- */

static void file_of(const struct guests *g, uint64_t number, const char *end, char *out, size_t size)
{
    snprintf(out, size, "%s/%016" PRIx64 ".%s", g->dir, number, end);
}

/* What became of it, by its exit, its box, and what we did to it. */
static void keep_ending(struct guests *g, uint64_t number, const char *name, const char *box, struct process_death *death, const char *why)
{
    struct guest_ending *x = mem_zalloc(sizeof *x);
    struct err e;
    int incomplete = 0;
    if (!x) {
        log_error("worker %s: out of memory, how it ended is not told", name);
        return;
    }
    if (blackbox_read(box, &x->records, &x->count, &incomplete, &death->cause, &e) != ST_OK)
        log_warn("worker %s: its black box cannot be read: %s", name, e.text);
    x->number = number;
    x->how = process_cause(death);
    if (x->how == WORKER_PREEMPTED || x->how == WORKER_DRAINED) {
        mem_free(x->records);
        x->records = NULL;
        x->count = 0;
    }
    char how[64];
    if (death->unknown)
        snprintf(how, sizeof how, "it died with its agent");
    else if (death->signal)
        snprintf(how, sizeof how, "signal %d", death->signal);
    else
        snprintf(how, sizeof how, "exit %d", death->exit_status);
    if (x->how == WORKER_PREEMPTED)
        snprintf(x->text, sizeof x->text, "evicted: %s", death->unknown ? how : why);
    else if (*why)
        snprintf(x->text, sizeof x->text, "%s (%s)", how, why);
    else
        snprintf(x->text, sizeof x->text, "%s", how);
    log_info("worker %s: ended: %s, %s, %zu records were in it%s", name, process_end_word(x->how), x->text, x->count, incomplete ? " at least" : "");
    x->next = g->endings;
    g->endings = x;
}

struct guest_ending *guests_endings(struct guests *g)
{
    return g->endings;
}

void guests_noted(struct guests *g, uint64_t number)
{
    char path[4200];
    for (struct guest_ending **at = &g->endings, *x; (x = *at); at = &x->next)
        if (x->number == number) {
            *at = x->next;
            file_of(g, number, "box", path, sizeof path);
            unlink(path);
            file_of(g, number, "pid", path, sizeof path);
            unlink(path);
            mem_free(x->records);
            mem_free(x);
            return;
        }
}

/* Starting --------------------------------------------------------------------------------------------------------------------------- */

static void guest_free(struct guest *x)
{
    mem_free(x->box);
    mem_free(x->note);
    mem_free(x->log);
    mem_free(x);
}

static unsigned free_place(const struct guests *g)
{
    for (unsigned place = 1;; place++) {
        const struct guest *x = g->first;
        while (x && x->place != place)
            x = x->next;
        if (!x)
            return place;
    }
}

static int cannot(struct guests *g, uint64_t now_ms, const char *what, int errnum)
{
    g->back_off_ms = g->back_off_ms ? g->back_off_ms * 2 : BACK_OFF_MS;
    if (g->back_off_ms > BACK_OFF_MAX_MS)
        g->back_off_ms = BACK_OFF_MAX_MS;
    g->not_before_ms = now_ms + g->back_off_ms;
    snprintf(g->trouble, sizeof g->trouble, "no worker can be started: %s%s%s", what, errnum ? ": " : "", errnum ? strerror(errnum) : "");
    log_error("%s", g->trouble);
    return -1;
}

static void write_there(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return; /* there are kernels without it */
    for (int tries = 0; tries < 8 && write(fd, text, strlen(text)) < 0 && errno == EAGAIN; tries++) /* autogroups change every 100 ms at the most */
        nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
    close(fd);
}

/* Between fork and exec, with other threads' locks in unknown states: system calls only. What may not be had is gone without: the order of the
   scheduler alone keeps a guest out of the way. */
static void become_guest(const int *doors, size_t door_count, int log_fd, pid_t parent, enum policy_priority priority)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127); /* it died before that */
    setsid(); /* a group of its own for signals, and of its own for the scheduler's autogroup */
    for (size_t i = 0; i < door_count; i++)
        if (write(doors[i], "0", 1) < 0) {
            /* said at the start, by what the groups can */
        }
    write_there("/proc/self/oom_score_adj", "1000");
    if (priority != PRIORITY_NORMAL) {
        write_there("/proc/self/autogroup", "19");
        setpriority(PRIO_PROCESS, 0, 19);
        syscall(SYS_ioprio_set, IOPRIO_OF_PROCESS, 0, priority == PRIORITY_IDLE ? IOPRIO_IDLE : IOPRIO_LAST);
    } else {
        setpriority(PRIO_PROCESS, 0, 0); /* the agent's own is better */
    }
    struct sched_param none = {0};
    if (priority == PRIORITY_IDLE)
        sched_setscheduler(0, SCHED_IDLE, &none);
    sigset_t all;
    sigemptyset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(null, 0);
    dup2(log_fd >= 0 ? log_fd : null, 1);
    dup2(log_fd >= 0 ? log_fd : null, 2);
}

int guests_start(struct guests *g, uint32_t lanes, uint64_t memory_bytes, uint64_t grace_ms, uint64_t now_ms)
{
    char grace_text[24], number_text[24], lanes_text[16], memory_text[24], pack_text[24], log[48], path[4200];
    if (now_ms < g->not_before_ms)
        return -1;
    if (!*g->program)
        return cannot(g, now_ms, "'ebb-worker' is neither beside ebb-agent nor on the PATH", 0);
    struct guest *x = mem_zalloc(sizeof *x);
    if (!x)
        return cannot(g, now_ms, "out of memory", 0);
    x->number = process_draw_number();
    x->place = free_place(g);
    x->started_ms = now_ms;
    snprintf(x->name, sizeof x->name, "%.120s/%u", g->o.host, x->place);
    snprintf(log, sizeof log, "worker-%u.log", x->place);
    x->log = path_join(g->dir, log);
    file_of(g, x->number, "box", path, sizeof path);
    x->box = mem_strdup(path);
    file_of(g, x->number, "pid", path, sizeof path);
    x->note = mem_strdup(path);
    if (!x->log || !x->box || !x->note) {
        guest_free(x);
        return cannot(g, now_ms, "out of memory", 0);
    }
    snprintf(number_text, sizeof number_text, "%" PRIu64, x->number);
    snprintf(lanes_text, sizeof lanes_text, "%" PRIu32, lanes);
    snprintf(grace_text, sizeof grace_text, "%" PRIu64 "ms", grace_ms);
    snprintf(memory_text, sizeof memory_text, "%" PRIu64, memory_bytes);
    snprintf(pack_text, sizeof pack_text, "%" PRIu64, g->o.pack_bytes);
    const char *args[32] = {g->program, "--connect", g->o.endpoint, "--name", x->name, "--number", number_text, "--blackbox", x->box, "--lanes",
                            lanes_text, "--provider", "agent", "--host", g->o.host, "--grace", grace_text};
    size_t n = 0;
    while (args[n])
        n++;
    const struct {
        const char *option, *value;
    } more[] = {{"--memory", memory_bytes ? memory_text : NULL},
                {"--key-file", g->o.key_file},
                {"--pack-cache", g->o.pack_cache},
                {"--pack-cache-size", g->o.pack_bytes ? pack_text : NULL}};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        if (more[i].value) {
            args[n++] = more[i].option;
            args[n++] = more[i].value;
        }
    int fd = process_open_log(x->log), doors[CGROUP_MOST];
    size_t door_count = cgroup_doors(g->group, doors);
    char **argv = (char **)(uintptr_t)args;
    pid_t parent = getpid();
    x->pid = fork();
    if (x->pid == 0) {
        become_guest(doors, door_count, fd, parent, g->o.priority);
        execv(g->program, argv);
        _exit(127);
    }
    int why = errno;
    if (fd >= 0)
        close(fd);
    if (x->pid < 0) {
        guest_free(x);
        return cannot(g, now_ms, g->program, why);
    }
    if (process_note_write(x->note, x->pid, x->place))
        log_warn("worker %s: '%s' cannot be written: a later agent would not know how it ended", x->name, x->note);
    x->next = g->first;
    g->first = x;
    g->count++;
    log_info("worker %s: started as %d, %u lanes", x->name, x->pid, lanes);
    return 0;
}

/* Holding and ending ------------------------------------------------------------------------------------------------------------------ */

/* Each guest leads a session of its own. It is our child, so that the number is nobody else's before it is reaped. */
static void signal_one(const struct guest *x, int number)
{
    family_signal(x->pid, number);
}

void guests_freeze(struct guests *g)
{
    if (g->frozen || !g->count)
        return;
    g->frozen = 1;
    if (cgroup_freeze(g->group, 1) == 0)
        return;
    for (struct guest *x = g->first; x; x = x->next)
        signal_one(x, SIGSTOP);
}

void guests_thaw(struct guests *g)
{
    if (!g->frozen)
        return;
    g->frozen = 0;
    if (cgroup_freeze(g->group, 0) == 0)
        return;
    for (struct guest *x = g->first; x; x = x->next)
        signal_one(x, SIGCONT);
}

static void because(struct guest *x, const char *why)
{
    if (!*x->why)
        snprintf(x->why, sizeof x->why, "%s", why);
}

void guests_drain(struct guests *g, size_t most, const char *why)
{
    for (struct guest *x = g->first; x && most; x = x->next) {
        if (x->asked)
            continue;
        x->asked = 1;
        most--;
        because(x, why);
        log_info("worker %s: is asked to leave: %s", x->name, why);
        kill(x->pid, SIGTERM);
    }
}

void guests_evict(struct guests *g, const char *why)
{
    for (struct guest *x = g->first; x; x = x->next) {
        if (x->evicted || x->hung)
            continue;
        x->evicted = 1;
        because(x, why);
        log_info("worker %s: is evicted: %s", x->name, why);
        signal_one(x, SIGKILL);
    }
    if (g->count)
        cgroup_kill(g->group); /* and what it started */
}

int guests_end_one(struct guests *g, uint64_t number, int gently, const char *why)
{
    struct guest *x = g->first;
    while (x && x->number != number)
        x = x->next;
    if (!x)
        return -1;
    because(x, why);
    if (!gently) {
        log_warn("worker %s: is killed: %s", x->name, why);
        x->hung = 1;
        signal_one(x, SIGKILL);
    } else if (!x->asked) {
        x->asked = 1;
        log_info("worker %s: is asked to leave: %s", x->name, why);
        kill(x->pid, SIGTERM);
    }
    return 0;
}

/* Reaping ----------------------------------------------------------------------------------------------------------------------------- */

uint64_t guests_ticks_of(int pid)
{
    return family_ticks(pid);
}

static void reap_one(struct guests *g, struct guest *x, int status, uint64_t now_ms)
{
    struct process_death death = {.killed_hung = x->hung, .evicted = x->evicted || x->asked};
    if (WIFSIGNALED(status))
        death.signal = WTERMSIG(status);
    else
        death.exit_status = WEXITSTATUS(status);
    /* A worker that was told to leave ends with 0 behind its goodbye. That the kernel kills a guest for memory is what it is a guest for: no
       evidence against its records. */
    death.bye = !death.signal && !death.exit_status;
    int at_once = now_ms - x->started_ms < AT_ONCE_MS && !x->asked && !x->evicted && !x->hung;
    keep_ending(g, x->number, x->name, x->box, &death, x->why);
    if (now_ms - x->started_ms >= AT_ONCE_MS) {
        g->back_off_ms = 0;
        g->trouble[0] = 0;
    } else if (at_once && g->endings && g->endings->how == WORKER_LOST) {
        char words[200];
        process_last_words(x->log, words, sizeof words);
        g->back_off_ms = g->back_off_ms ? g->back_off_ms * 2 : BACK_OFF_MS;
        if (g->back_off_ms > BACK_OFF_MAX_MS)
            g->back_off_ms = BACK_OFF_MAX_MS;
        g->not_before_ms = now_ms + g->back_off_ms;
        snprintf(g->trouble, sizeof g->trouble, "workers end as soon as they start: %.100s%s%s", g->endings->text, *words ? ": " : "", words);
        log_warn("worker %s: %s; the next one in %" PRIu64 " ms", x->name, g->trouble, g->back_off_ms);
    }
    for (struct guest **at = &g->first; *at; at = &(*at)->next)
        if (*at == x) {
            *at = x->next;
            break;
        }
    g->count--;
    guest_free(x);
}

int guests_reap(struct guests *g, uint64_t now_ms)
{
    int some = 0;
    for (struct guest *x = g->first, *next; x; x = next) {
        next = x->next;
        siginfo_t dead = {0};
        int status = 0;
        if (waitid(P_PID, (id_t)x->pid, &dead, WEXITED | WNOHANG | WNOWAIT) || !dead.si_pid)
            continue;
        g->gone_ticks += guests_ticks_of(x->pid); /* it can still be asked */
        waitpid(x->pid, &status, 0);
        reap_one(g, x, status, now_ms);
        some = 1;
    }
    if (!g->count && g->frozen)
        guests_thaw(g); /* those to come are not born frozen */
    return some;
}

/* Looking ----------------------------------------------------------------------------------------------------------------------------- */

size_t guests_count(const struct guests *g)
{
    return g->count;
}

size_t guests_staying(const struct guests *g)
{
    size_t n = 0;
    for (const struct guest *x = g->first; x; x = x->next)
        n += !x->asked && !x->evicted && !x->hung;
    return n;
}

int guests_frozen(const struct guests *g)
{
    return g->frozen;
}

int guests_view(const struct guests *g, size_t i, struct guest_view *out)
{
    const struct guest *x = g->first;
    while (x && i--)
        x = x->next;
    if (!x)
        return 0;
    *out = (struct guest_view){x->number, x->started_ms, x->name, x->pid, x->asked || x->evicted || x->hung};
    return 1;
}

uint64_t guests_cpu_ns(struct guests *g)
{
    uint64_t ns, ticks = g->gone_ticks;
    if (cgroup_cpu_ns(g->group, &ns) == 0)
        return ns;
    for (struct guest *x = g->first; x; x = x->next) {
        uint64_t now = guests_ticks_of(x->pid);
        if (now > x->ticks)
            x->ticks = now;
        ticks += x->ticks;
    }
    long per_s = sysconf(_SC_CLK_TCK);
    return ticks * (1000000000ull / (uint64_t)(per_s > 0 ? per_s : 100));
}

uint64_t guests_bytes_of(int pid)
{
    char path[64];
    unsigned long long total, resident = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", pid);
    FILE *f = fopen(path, "re");
    if (f && fscanf(f, "%llu %llu", &total, &resident) != 2)
        resident = 0;
    if (f)
        fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t guests_bytes(const struct guests *g)
{
    uint64_t sum = 0;
    for (const struct guest *x = g->first; x; x = x->next)
        sum += guests_bytes_of(x->pid);
    return sum;
}

const char *guests_trouble(const struct guests *g)
{
    return g->trouble;
}

uint64_t guests_not_before(const struct guests *g)
{
    return g->not_before_ms;
}

const char *guests_means(const struct guests *g)
{
    return cgroup_words(g->group);
}

/* Opening and closing ----------------------------------------------------------------------------------------------------------------- */

/* One that an agent before us left: by now dead, or killed here. */
static void take_leftover(struct guests *g, const char *file)
{
    uint64_t number;
    char path[4200], name[160];
    struct process_note note;
    if (sscanf(file, "%16" SCNx64, &number) != 1)
        return;
    file_of(g, number, "pid", path, sizeof path);
    process_note_read(path, &note);
    snprintf(name, sizeof name, "%.120s/%u", g->o.host, note.place);
    if (process_note_lives(&note)) {
        log_warn("worker %s: process %d was left by an agent that is gone, and is killed", name, note.pid);
        kill(-note.pid, SIGKILL);
        kill(note.pid, SIGKILL);
        for (uint64_t until_ms = clock_ms() + CLOSE_MS; process_note_lives(&note) && clock_ms() < until_ms;)
            clock_sleep_ms(5);
    }
    file_of(g, number, "box", path, sizeof path);
    struct process_death death = {.unknown = 1, .evicted = 1};
    keep_ending(g, number, name, path, &death, "");
}

static void take_leftovers(struct guests *g)
{
    DIR *d = opendir(g->dir);
    for (const struct dirent *f; d && (f = readdir(d));)
        if (strlen(f->d_name) == 20 && strcmp(f->d_name + 16, ".pid") == 0)
            take_leftover(g, f->d_name);
    if (d)
        closedir(d);
}

enum status guests_open(const struct guests_opts *o, struct guests **out, struct err *e)
{
    struct guests *g = mem_zalloc(sizeof *g);
    struct stat s;
    if (!g)
        return err_nomem(e, "the guests");
    g->o = *o;
    g->dir = path_join(o->dir, "workers");
    g->program = process_find_worker();
    enum status st = g->dir && g->program ? path_make_dirs(g->dir, 0700, e) : err_nomem(e, "the guests");
    if (st == ST_OK && stat(g->dir, &s))
        st = err_errno(e, ST_ENV, errno, "cannot look at '%s'", g->dir);
    if (st == ST_OK) {
        /* the same for every agent that uses this folder: the next one finds what is in it */
        snprintf(g->name, sizeof g->name, "ebb-guests-%" PRIx64, ((uint64_t)s.st_dev << 40) ^ (uint64_t)s.st_ino);
        if (!(g->group = cgroup_open(g->name, o->priority == PRIORITY_IDLE)))
            st = err_nomem(e, "the guests");
    }
    if (st != ST_OK) {
        mem_free(g->dir);
        mem_free(g->program);
        mem_free(g);
        return st;
    }
    take_leftovers(g);
    *out = g;
    return ST_OK;
}

void guests_close(struct guests *g)
{
    if (!g)
        return;
    guests_evict(g, "the agent ends");
    for (uint64_t until_ms = clock_ms() + CLOSE_MS; g->count && clock_ms() < until_ms; clock_sleep_ms(5))
        guests_reap(g, clock_ms());
    cgroup_close(g->group);
    while (g->first) {
        struct guest *x = g->first;
        g->first = x->next;
        guest_free(x);
    }
    while (g->endings) { /* box and note stay for the next agent */
        struct guest_ending *x = g->endings;
        g->endings = x->next;
        mem_free(x->records);
        mem_free(x);
    }
    mem_free(g->dir);
    mem_free(g->program);
    mem_free(g);
}
