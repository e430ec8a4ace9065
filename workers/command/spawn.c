/* The happy path: three pipes, vfork (the worker may hold a large model: fork would copy its tables of pages), and in the child nothing but system
   calls until the shell takes over.

   What can fail: out of processes or files: the call fails. The folder is not there: the child says so and ends, as a command does that cannot start. */
#include "workers/command/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"

#define SHELL "/bin/sh"
#define CANNOT 126           /* as shells have it: found, but cannot be run */

extern char **environ;

/* Lines of "+ GROUP" and "- GROUP"; at the end of its input, which is ours, what is left is killed. */
static const char keeper_script[] = "trap '' TERM INT HUP\n"
                                    "l=\n"
                                    "while read -r op g; do\n"
                                    "  case $op in\n"
                                    "  +) l=\"$l $g\" ;;\n"
                                    "  -) n=; for i in $l; do [ \"$i\" = \"$g\" ] || n=\"$n $i\"; done; l=$n ;;\n"
                                    "  esac\n"
                                    "done\n"
                                    "for i in $l; do kill -s KILL -- \"-$i\"; done\n";

/* The environment --------------------------------------------------------------------------------------------------------------------- */

static int same_name(const char *a, const char *b)
{
    size_t n = strcspn(a, "=");
    return strcspn(b, "=") == n && memcmp(a, b, n) == 0;
}

/* The service manager's words are for us alone; faults that tests plant, too. */
static int withheld(const char *x)
{
    static const char *const names[] = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "EBB_FAULT",
                                        "EBB_FAULT_ONCE", "EBB_KEY_FILE", "EBB_CHILD"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (same_name(x, names[i]))
            return 1;
    return 0;
}

static int given(const char *const *list, const char *x)
{
    for (; list && *list; list++)
        if (same_name(*list, x))
            return 1;
    return 0;
}

enum status spawn_init(struct spawn *s, const char *shell, const char *dir, const char *const *more, struct err *e)
{
    static const char unbuffered[] = "PYTHONUNBUFFERED=1"; /* an answer that waits in a buffer looks like a hang */
    size_t count = 0, bytes = 0, n = 0;
    *s = (struct spawn){.keeper_fd = -1};
    for (char **x = environ; *x; x++) {
        count++;
        bytes += strlen(*x) + 1;
    }
    for (const char *const *x = more; x && *x; x++) {
        count++;
        bytes += strlen(*x) + 1;
    }
    s->shell = mem_strdup(shell);
    s->dir = dir ? mem_strdup(dir) : NULL;
    s->env = mem_array(count + 3, sizeof *s->env);
    s->own = mem_alloc(bytes + sizeof unbuffered);
    if (!s->shell || (dir && !s->dir) || !s->env || !s->own) {
        spawn_release(s);
        return err_nomem(e, "a command's environment");
    }
    char *at = s->own;
    s->env[n++] = s->number;
    for (char **x = environ; *x; x++)
        if (!withheld(*x) && !given(more, *x)) {
            s->env[n++] = at;
            at = stpcpy(at, *x) + 1;
        }
    for (const char *const *x = more; x && *x; x++) {
        s->env[n++] = at;
        at = stpcpy(at, *x) + 1;
    }
    if (!given((const char *const *)s->env, unbuffered)) {
        s->env[n++] = at;
        stpcpy(at, unbuffered);
    }
    return ST_OK;
}

/* Processes --------------------------------------------------------------------------------------------------------------------------- */

struct plan { /* all that the child looks at */
    const char *const *argv;
    char **env;
    const char *dir;
    int fds[3];
    int keeper_fd;           /* -1: it is the keeper itself, which waits for our death and does not die of it */
    pid_t parent;
};

static void complain(const char *what, const char *which)
{
    const char *why = strerrordesc_np(errno);
    const char *const parts[] = {"ebb: cannot ", what, " '", which, "': ", why ? why : "?", "\n"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (write(2, parts[i], strlen(parts[i])) < 0)
            return;
}

/* Behind vfork: our parent's memory, its threads in unknown states. System calls only. */
static _Noreturn void become(const struct plan *p)
{
    pid_t own = getpid();
    setpgid(0, 0);
    if (p->keeper_fd >= 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != p->parent)
            _exit(CANNOT); /* it died before that */
        char line[16], *at = line + sizeof line;
        *--at = '\n';
        for (unsigned v = (unsigned)own; v || at == line + sizeof line - 1; v /= 10)
            *--at = (char)('0' + v % 10);
        *--at = ' ';
        *--at = '+';
        if (write(p->keeper_fd, at, (size_t)(line + sizeof line - at)) < 0) {
            /* somebody killed the keeper: the other two ways are left */
        }
    }
    for (int i = 0; i < 3; i++)
        dup2(p->fds[i], i);
    syscall(SYS_close_range, 3u, ~0u, 4u /* CLOSE_RANGE_CLOEXEC */); /* whatever a library may have opened without the flag */
    struct sigaction usual = {.sa_handler = SIG_DFL};
    for (int i = 1; i < NSIG; i++)
        sigaction(i, &usual, NULL);
    if (p->dir && chdir(p->dir)) {
        complain("run the command in", p->dir);
        _exit(CANNOT);
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execve(SHELL, (char *const *)(uintptr_t)p->argv, p->env);
    complain("run", SHELL);
    _exit(CANNOT);
}

static __attribute__((noinline)) pid_t begin(const struct plan *p)
{
    pid_t pid = vfork();
    if (pid == 0)
        become(p);
    return pid;
}

static void shut(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* Both ends above 2, so that nothing is in the way of dup2; the one that is ours does not block. */
static int open_pipe(int fds[2], int ours)
{
    if (pipe2(fds, O_CLOEXEC)) {
        fds[0] = fds[1] = -1;
        return -1;
    }
    for (int i = 0; i < 2; i++)
        if (fds[i] <= 2) {
            int high = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);
            close(fds[i]);
            fds[i] = high;
        }
    if (fds[0] < 0 || fds[1] < 0 || fcntl(fds[ours], F_SETFL, O_NONBLOCK)) {
        shut(&fds[0]);
        shut(&fds[1]);
        return -1;
    }
    return 0;
}

static enum status keep(struct spawn *s, struct err *e)
{
    static const char *const argv[] = {"sh", "-c", keeper_script, "ebb-keeper", NULL};
    int fds[2], null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0)
        return err_errno(e, ST_ENV, errno, "cannot open /dev/null");
    if (open_pipe(fds, 1)) {
        int why = errno;
        close(null);
        return err_errno(e, ST_ENV, why, "cannot make a pipe for a command's keeper");
    }
    if (null <= 2) {
        int high = fcntl(null, F_DUPFD_CLOEXEC, 3);
        close(null);
        null = high;
    }
    struct plan p = {.argv = argv, .env = s->env, .dir = "/", .fds = {fds[0], null, null}, .keeper_fd = -1, .parent = getpid()};
    pid_t pid = begin(&p);
    int why = errno;
    shut(&fds[0]);
    shut(&null);
    if (pid < 0) {
        shut(&fds[1]);
        return err_errno(e, ST_ENV, why, "cannot start a command's keeper");
    }
    s->keeper = pid;
    s->keeper_fd = fds[1];
    return ST_OK;
}

enum status spawn_run(struct spawn *s, uint32_t number, struct spawned *out, struct err *e)
{
    const char *const argv[] = {"sh", "-c", s->shell, NULL};
    int in[2], said[2], noise[2];
    snprintf(s->number, sizeof s->number, "EBB_CHILD=%u", number);
    if (!s->keeper)
        TRY(keep(s, e));
    if (open_pipe(in, 1))
        return err_errno(e, ST_ENV, errno, "cannot make a pipe for a command");
    int failed = open_pipe(said, 0);
    if (failed || (failed = open_pipe(noise, 0)) != 0) {
        int why = errno;
        shut(&in[0]);
        shut(&in[1]);
        if (said[0] >= 0) {
            shut(&said[0]);
            shut(&said[1]);
        }
        return err_errno(e, ST_ENV, why, "cannot make a pipe for a command");
    }
    struct plan p = {.argv = argv, .env = s->env, .dir = s->dir, .fds = {in[0], said[1], noise[1]}, .keeper_fd = s->keeper_fd, .parent = getpid()};
    pid_t pid = begin(&p);
    int why = errno;
    shut(&in[0]);
    shut(&said[1]);
    shut(&noise[1]);
    if (pid < 0) {
        shut(&in[1]);
        shut(&said[0]);
        shut(&noise[0]);
        return err_errno(e, ST_ENV, why, "cannot start a command");
    }
    *out = (struct spawned){.pid = pid, .in = in[1], .out = said[0], .err = noise[0]};
    out->pidfd = (int)syscall(SYS_pidfd_open, pid, 0); /* closed on exec by itself */
    return ST_OK;
}

void spawn_kill(pid_t pid)
{
    if (kill(-pid, SIGKILL))
        kill(pid, SIGKILL);
}

int spawn_reap(struct spawn *s, pid_t pid, int *status)
{
    siginfo_t info = {0};
    if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != pid)
        return 0;
    kill(-pid, SIGKILL); /* the number is its own until it is reaped, and the keeper forgets it before that */
    if (s->keeper_fd >= 0) {
        char line[24];
        int len = snprintf(line, sizeof line, "- %d\n", (int)pid);
        if (write(s->keeper_fd, line, (size_t)len) < 0) {
            /* as in become */
        }
    }
    *status = 0;
    while (waitpid(pid, status, 0) < 0 && errno == EINTR)
        ;
    return 1;
}

void spawn_release(struct spawn *s)
{
    shut(&s->keeper_fd);
    if (s->keeper > 0)
        while (waitpid(s->keeper, NULL, 0) < 0 && errno == EINTR)
            ;
    mem_free(s->shell);
    mem_free(s->dir);
    mem_free(s->env);
    mem_free(s->own);
    *s = (struct spawn){.keeper_fd = -1};
}
