#include "wire/process.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/path.h"

#define LOG_BYTES (1 << 20)   /* a log that is longer begins anew */

/* Who it is ----------------------------------------------------------------------------------------------------------------------- */

/* Field 22 of stat, counted behind the name, which may hold anything. */
int process_start(uint64_t pid, uint64_t *started)
{
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%" PRIu64 "/stat", pid);
    FILE *f = fopen(path, "re");
    if (!f)
        return -1;
    size_t n = fread(line, 1, sizeof line - 1, f);
    fclose(f);
    line[n] = 0;
    char *p = strrchr(line, ')');
    if (!p)
        return -1;
    p++;
    if (p[0] == ' ' && p[1] == 'Z')
        return -1; /* dead, only not reaped */
    for (int field = 2; field < 21 && p; field++)
        p = strchr(p + 1, ' ');
    return p && sscanf(p, "%" SCNu64, started) == 1 ? 0 : -1;
}

int process_note_write(const char *path, int pid, unsigned place)
{
    uint64_t started = 0;
    char text[80];
    process_start((uint64_t)pid, &started);
    int n = snprintf(text, sizeof text, "%d %" PRIu64 " %u\n", pid, started, place);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    int failed = fd < 0 || write(fd, text, (size_t)n) != n;
    if (fd >= 0)
        close(fd);
    return failed ? -1 : 0;
}

void process_note_read(const char *path, struct process_note *out)
{
    struct buf text = {0};
    struct err e;
    *out = (struct process_note){0};
    if (path_read(path, 4096, &text, &e) == ST_OK && buf_cstr(&text))
        sscanf(text.data, "%d %" SCNu64 " %u", &out->pid, &out->started, &out->place);
    buf_release(&text);
}

int process_note_lives(const struct process_note *n)
{
    uint64_t started;
    return n->pid > 0 && process_start((uint64_t)n->pid, &started) == 0 && started == n->started;
}

uint64_t process_draw_number(void)
{
    uint64_t number = 0;
    while (!number)
        if (getrandom(&number, sizeof number, 0) != sizeof number)
            number = 0;
    return number;
}

char *process_find_worker(void)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n > 0) {
        self[n] = 0;
        char *slash = strrchr(self, '/');
        *slash = 0;
        char *beside = path_join(self, "ebb-worker");
        if (!beside || access(beside, X_OK) == 0)
            return beside;
        mem_free(beside);
    }
    char *path = mem_strdup(getenv("PATH") ? getenv("PATH") : ""), *save = NULL;
    for (char *dir = path ? strtok_r(path, ":", &save) : NULL; dir; dir = strtok_r(NULL, ":", &save)) {
        char *there = path_join(dir, "ebb-worker");
        if (!there || access(there, X_OK) == 0) {
            mem_free(path);
            return there;
        }
        mem_free(there);
    }
    mem_free(path);
    return mem_strdup("");
}

/* What it says --------------------------------------------------------------------------------------------------------------------- */

int process_open_log(const char *path)
{
    struct stat s;
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd >= 0 && fstat(fd, &s) == 0 && s.st_size > LOG_BYTES && ftruncate(fd, 0))
        log_debug("'%s' cannot be shortened", path);
    return fd;
}

void process_last_words(const char *log, char *out, size_t size)
{
    out[0] = 0;
    int fd = open(log, O_RDONLY | O_CLOEXEC);
    struct stat s;
    char tail[1024];
    if (fd < 0)
        return;
    ssize_t n = fstat(fd, &s) ? -1 : pread(fd, tail, sizeof tail - 1, s.st_size > (off_t)sizeof tail ? s.st_size - (off_t)sizeof tail + 1 : 0);
    close(fd);
    if (n <= 0)
        return;
    while (n > 0 && tail[n - 1] == '\n')
        n--;
    tail[n] = 0;
    char *line = tail; /* the last three lines, in one */
    for (int lines = 0, at = (int)n - 1; at >= 0; at--)
        if (tail[at] == '\n' && ++lines == 3) {
            line = tail + at + 1;
            break;
        }
    const char *before = "";
    char *save = NULL; /* what several workers said alike is said once */
    for (char *p = strtok_r(line, "\n", &save); p; before = p, p = strtok_r(NULL, "\n", &save)) {
        size_t len = strlen(out);
        if (strcmp(p, before))
            snprintf(out + len, size - len, "%s%s", len ? "|" : "", p);
    }
}

/* How it went --------------------------------------------------------------------------------------------------------------------- */

static uint64_t number_behind(const char *path, const char *word)
{
    struct buf text = {0};
    struct err e;
    uint64_t n = 0;
    if (path_read(path, 1 << 20, &text, &e) == ST_OK && buf_cstr(&text)) {
        size_t len = strlen(word);
        for (const char *line = text.data; line; line = strchr(line, '\n'), line += line != NULL)
            if (strncmp(line, word, len) == 0 && line[len] == ' ')
                n = strtoull(line + len, NULL, 10);
    }
    buf_release(&text);
    return n;
}

uint64_t process_oom_kills(void)
{
    uint64_t n = number_behind("/proc/vmstat", "oom_kill");
    struct buf text = {0};
    struct err e;
    if (path_read("/proc/self/cgroup", 65536, &text, &e) == ST_OK && buf_cstr(&text)) {
        char *save = NULL;
        for (char *line = strtok_r(text.data, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
            char *group = strchr(line, ':'), *path = group ? strchr(group + 1, ':') : NULL;
            char file[PATH_MAX];
            if (!path)
                continue;
            if (strncmp(line, "0::", 3) == 0) {
                snprintf(file, sizeof file, "/sys/fs/cgroup%s/memory.events", path + 1);
                n += number_behind(file, "oom_kill");
            } else if (strncmp(group, ":memory:", 8) == 0) {
                snprintf(file, sizeof file, "/sys/fs/cgroup/memory%s/memory.oom_control", path + 1);
                n += number_behind(file, "oom_kill");
            }
        }
    }
    buf_release(&text);
    return n;
}

enum worker_end process_cause(const struct process_death *x)
{
    if (x->killed_hung)
        return WORKER_HUNG;
    if (x->cause == BLACKBOX_OUT_OF_MEMORY)
        return WORKER_OOM;
    if (x->cause == BLACKBOX_CRASHED)
        return WORKER_CRASHED;
    if (x->unknown)
        return x->bye ? WORKER_DRAINED : x->evicted ? WORKER_PREEMPTED : WORKER_LOST;
    switch (x->signal) {
    case SIGSEGV:
    case SIGABRT:
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
        return WORKER_CRASHED;
    case SIGKILL:
        return x->evicted ? WORKER_PREEMPTED : x->oom_risen ? WORKER_OOM : WORKER_LOST;
    case 0:
        return x->exit_status == 0 && x->bye ? WORKER_DRAINED : x->evicted ? WORKER_PREEMPTED : WORKER_LOST;
    default:
        return x->evicted ? WORKER_PREEMPTED : WORKER_LOST;
    }
}

const char *process_end_word(enum worker_end how)
{
    static const char *const words[] = {
#define X(name, word, guilt) [WORKER_##name] = word,
        WORKER_END_MAP(X)
#undef X
    };
    return (unsigned)how < WORKER_ENDS ? words[how] : "?";
}
