/* The way in: the state's folder -> fork, exec ebbd --private -> "ready ENDPOINT" on its standard output -> hello.
   What can fail: the state is served already (exit code 3): its `owner` file tells where, and we ask there; the owner may have just begun, or be about
   to end, so both are tried again for a while. Anything else it says in its log, the end of which becomes our error. */
#include "client/private.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/path.h"
#include "client/client.h"
#include "storage/assemble.h"

#define EXIT_SERVED 3     /* ebbd: the state has an owner that lives */
#define READY_MS 90000    /* an owner on another host is watched for a minute before it counts as dead */
#define SOCKET_PATH_MAX 90 /* leaves room for a name under the 108 bytes of a socket's path */

static int own_folder(const char *path)
{
    struct stat s;
    return lstat(path, &s) == 0 && S_ISDIR(s.st_mode) && s.st_uid == geteuid() && (s.st_mode & 077) == 0;
}

char *private_runtime_dir(const char *state, struct err *e)
{
    const char *base = getenv("XDG_RUNTIME_DIR");
    uint64_t hash = XXH3_64bits(state, strlen(state));
    char *top = NULL, *dir = NULL;
    if (base && *base == '/' && own_folder(base) && strlen(base) + 24 < SOCKET_PATH_MAX)
        top = mem_printf("%s/ebb", base);
    else
        top = mem_printf("/tmp/ebb-%u", (unsigned)geteuid());
    if (!top || !(dir = mem_printf("%s/%016llx", top, (unsigned long long)hash))) {
        err_nomem(e, "a path");
        goto fail;
    }
    const char *both[] = {top, dir};
    for (size_t i = 0; i < 2; i++) {
        if (mkdir(both[i], 0700) && errno != EEXIST) {
            err_errno(e, ST_ENV, errno, "cannot make folder '%s' for sockets", both[i]);
            goto fail;
        }
        if (!own_folder(both[i])) { /* in a folder that all may write to, a name can be anybody's */
            err_set(e, ST_ENV, "'%s' is not a folder of yours alone (owner you, mode 0700); remove it, or set XDG_RUNTIME_DIR to a folder that is", both[i]);
            goto fail;
        }
    }
    mem_free(top);
    return dir;
fail:
    mem_free(top);
    mem_free(dir);
    return NULL;
}

enum status private_init(struct private *p, const char *work_dir, const struct private_opts *o, struct err *e)
{
    *p = (struct private){.opts = *o};
    enum status st = ST_OK;
    char *state = path_join(work_dir, "state"), *real = NULL;
    if (!state)
        return err_nomem(e, "a path");
    st = path_make_dirs(state, 0777, e);
    if (st == ST_OK && !(real = realpath(state, NULL)))
        st = err_errno(e, ST_ENV, errno, "cannot resolve '%s'", state);
    if (st == ST_OK && (!(p->state = mem_strdup(real)) || !(p->log = path_join(work_dir, "ebbd.log"))))
        st = err_nomem(e, "a path");
    free(real); /* of libc */
    mem_free(state);
    if (st == ST_OK && !(p->runtime = private_runtime_dir(p->state, e)))
        st = e ? e->code : ST_ENV;
    if (st != ST_OK)
        private_release(p);
    return st;
}

void private_release(struct private *p)
{
    conn_close(p->conn);
    mem_free(p->state);
    mem_free(p->log);
    mem_free(p->runtime);
    mem_free(p->endpoint);
    *p = (struct private){0};
}

/* Beside our own executable. */
static char *program(struct err *e)
{
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) {
        err_errno(e, ST_ENV, errno, "cannot find out where 'ebb' itself lies (/proc/self/exe)");
        return NULL;
    }
    self[n] = 0;
    *strrchr(self, '/') = 0;
    char *path = path_join(self, "ebbd");
    if (!path) {
        err_nomem(e, "a path");
    } else if (access(path, X_OK)) {
        err_errno(e, ST_ENV, errno, "cannot run '%s', which belongs beside 'ebb'; build or install all of ebb: 'make', 'make install'", path);
        mem_free(path);
        path = NULL;
    }
    return path;
}

void private_last_words(struct private *p, char *out, size_t size)
{
    char text[2048];
    out[0] = 0;
    int fd = open(p->log, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    off_t end = lseek(fd, 0, SEEK_END), from = end - (off_t)sizeof text + 1;
    if (from < p->log_from)
        from = p->log_from;
    ssize_t n = end > from ? pread(fd, text, (size_t)(end - from), from) : 0;
    close(fd);
    while (n > 0 && text[n - 1] == '\n')
        n--;
    if (n <= 0)
        return;
    text[n] = 0;
    const char *start = text + n;
    for (int lines = 0; start > text; start--)
        if (start[-1] == '\n' && ++lines == 5)
            break;
    snprintf(out, size, "\n%s", start);
}

enum start { START_READY, START_SERVED, START_FAILED, START_SIGNAL };

/* Waits for the line. Fills p->endpoint. */
static enum start wait_ready(struct private *p, int fd, struct err *e)
{
    char line[512];
    size_t len = 0;
    uint64_t until = clock_ms() + READY_MS;
    int signals = signals_count();
    for (;;) {
        uint64_t now = clock_ms();
        struct pollfd f = {.fd = fd, .events = POLLIN};
        int n = now < until ? poll(&f, 1, (int)(until - now)) : 0;
        if (signals_count() != signals)
            return START_SIGNAL;
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            err_set(e, ST_ENV, "the daemon '%d' does not get ready; see its log '%s'", (int)p->pid, p->log);
            return START_FAILED;
        }
        ssize_t got = read(fd, line + len, sizeof line - 1 - len);
        if (got < 0 && errno == EINTR)
            continue;
        if (got > 0) {
            len += (size_t)got;
            line[len] = 0;
            char *nl = strchr(line, '\n');
            if (!nl && len < sizeof line - 1)
                continue;
            if (nl)
                *nl = 0;
            mem_free(p->endpoint);
            p->endpoint = strncmp(line, "ready ", 6) == 0 ? mem_strdup(line + 6) : NULL;
            if (p->endpoint)
                return START_READY;
            err_set(e, ST_ENV, "the daemon says '%.100s' where 'ready ENDPOINT' was expected; are 'ebb' and 'ebbd' of one version", line);
            return START_FAILED;
        }
        /* it closed its output: it has ended */
        int status = 0;
        while (waitpid(p->pid, &status, 0) < 0 && errno == EINTR)
            ;
        p->pid = 0;
        if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SERVED)
            return START_SERVED;
        char words[700];
        private_last_words(p, words, sizeof words);
        if (WIFSIGNALED(status))
            err_set(e, ST_ENV, "the daemon was killed by signal %d before it was ready%s", WTERMSIG(status), words);
        else /* exit code 2: what it was told is wrong */
            err_set(e, WEXITSTATUS(status) == EXIT_USER ? ST_USER : ST_ENV, "the daemon could not start (exit code %d)%s", WEXITSTATUS(status), words);
        return START_FAILED;
    }
}

static enum start spawn(struct private *p, const char *path, struct err *e)
{
    char workers[24], lanes[24], memory[24];
    const char *argv[16];
    int argc = 0, out[2];
    argv[argc++] = "ebbd";
    argv[argc++] = "--private";
    argv[argc++] = "--state";
    argv[argc++] = p->state;
    argv[argc++] = "--runtime";
    argv[argc++] = p->runtime;
    const struct {
        const char *name;
        char *text;
        uint64_t value;
    } numbers[] = {{"--workers", workers, p->opts.workers}, {"--lanes", lanes, p->opts.lanes}, {"--memory", memory, p->opts.memory_bytes}};
    for (size_t i = 0; i < COUNT(numbers); i++)
        if (numbers[i].value) {
            snprintf(numbers[i].text, sizeof workers, "%llu", (unsigned long long)numbers[i].value);
            argv[argc++] = numbers[i].name;
            argv[argc++] = numbers[i].text;
        }
    argv[argc] = NULL;
    int log = open(p->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666), null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (log < 0 || null < 0) {
        err_errno(e, ST_ENV, errno, "cannot open '%s'", log < 0 ? p->log : "/dev/null");
        goto fail;
    }
    p->log_from = lseek(log, 0, SEEK_END);
    if (pipe2(out, O_CLOEXEC)) {
        err_errno(e, ST_ENV, errno, "cannot make a pipe");
        goto fail;
    }
    pid_t pid = fork();
    if (pid == 0) {
        setsid(); /* Ctrl-C on the terminal is for us; the daemon is told */
        signal(SIGPIPE, SIG_DFL);
        if (dup2(null, 0) < 0 || dup2(out[1], 1) < 0 || dup2(log, 2) < 0)
            _exit(126);
        execv(path, (char *const *)argv);
        _exit(127);
    }
    close(log);
    close(null);
    close(out[1]);
    if (pid < 0) {
        err_errno(e, ST_ENV, errno, "cannot start another process");
        close(out[0]);
        return START_FAILED;
    }
    p->pid = pid;
    p->ours = 1;
    enum start how = wait_ready(p, out[0], e);
    close(out[0]);
    return how;
fail:
    if (log >= 0)
        close(log);
    if (null >= 0)
        close(null);
    return START_FAILED;
}

/* Who serves the state: 0 and pid, endpoint (the caller frees), host; or -1. */
static int read_owner(const char *state, pid_t *pid, char **endpoint, char *host, size_t host_size)
{
    char *path = path_join(state, "owner");
    json_t *j = path ? json_load_file(path, 0, NULL) : NULL;
    mem_free(path);
    const char *where = text_of(j, "endpoint");
    *endpoint = *where ? mem_strdup(where) : NULL;
    *pid = (pid_t)count_of(j, "pid");
    snprintf(host, host_size, "%s", text_of(j, "host"));
    json_decref(j);
    return *endpoint ? 0 : -1;
}

/* The owner's socket, if it answers. */
static enum status attach(struct private *p, struct err *e)
{
    char host[128], here[128] = "";
    char *endpoint;
    pid_t pid;
    if (read_owner(p->state, &pid, &endpoint, host, sizeof host))
        return err_set(e, ST_ENV, "another daemon serves '%s', but its owner file cannot be read", p->state);
    gethostname(here, sizeof here - 1);
    mem_free(p->endpoint);
    p->endpoint = endpoint;
    p->pid = pid;
    p->ours = 0;
    struct conn *c;
    if (strcmp(host, here) != 0)
        return err_set(e, ST_USER, "this output is being made on host '%s' (process %d); wait for it, or stop it there", host, (int)pid);
    TRY(conn_open(endpoint, &c, e));
    enum status st = conn_call(c, "hello", NULL, 3000, NULL, e);
    if (st != ST_OK) {
        conn_close(c);
        return st;
    }
    p->conn = c;
    return ST_OK;
}

static int alive(void *arg)
{
    return private_alive(arg);
}

enum status private_start(struct private *p, struct err *e)
{
    conn_close(p->conn);
    p->conn = NULL;
    char *path = program(e);
    if (!path)
        return e ? e->code : ST_ENV;
    enum status st = ST_OK;
    uint64_t until = clock_ms() + READY_MS;
    for (;;) {
        enum start how = spawn(p, path, e);
        if (how == START_READY) {
            st = conn_open(p->endpoint, &p->conn, e);
            if (st == ST_ENV && !private_alive(p))
                st = ST_AGAIN; /* it died between two words */
            break;
        }
        if (how == START_FAILED) {
            st = e ? e->code : ST_ENV;
            break;
        }
        st = how == START_SIGNAL ? ST_AGAIN : attach(p, e);
        if (how == START_SIGNAL || st == ST_OK || st == ST_USER || clock_ms() > until)
            break;
        int signals = signals_count();
        clock_sleep_ms(300); /* it is about to listen, or about to end */
        if (signals != signals_count()) {
            st = ST_AGAIN;
            break;
        }
    }
    mem_free(path);
    if (st == ST_OK)
        conn_watch(p->conn, alive, p);
    return st;
}

int private_alive(struct private *p)
{
    if (p->pid <= 0)
        return 0;
    int status;
    pid_t n = waitpid(p->pid, &status, WNOHANG); /* one that we attached to may be our child, too: started before, and found again */
    if (n == 0 || (n < 0 && errno == EINTR))
        return 1;
    if (n < 0 && !p->ours && (kill(p->pid, 0) == 0 || errno == EPERM))
        return 1;
    p->pid = 0;
    return 0;
}

char *private_endpoint_of_output(const char *output)
{
    struct output_spec o = {0};
    struct err e;
    char *path = path_absolute(output), *endpoint = NULL, host[128];
    pid_t pid;
    if (!path)
        return NULL;
    if (output_resolve(path, NULL, &o, &e) == ST_OK) {
        char *work = output_work_dir(&o), *state = work ? path_join(work, "state") : NULL;
        if (state && read_owner(state, &pid, &endpoint, host, sizeof host))
            endpoint = mem_printf("ipc://%s/clients", state); /* nobody is there */
        mem_free(work);
        mem_free(state);
    } else {
        endpoint = mem_printf("ipc://%s", path);
    }
    mem_free(path);
    return endpoint;
}
