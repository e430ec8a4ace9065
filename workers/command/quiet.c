/* /proc/PID/task/TID/syscall names the call in which a thread sleeps and its arguments ("running" for one that does not), /proc/PID/fd/N what it reads
   from, /proc/PID/task/TID/children who is below. Looked at from the top: mostly the first look ends it. */
#include "workers/command/quiet.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST_PROCESSES 64
#define MOST_DEPTH 8

struct quiet {
    ino_t ours;
    int processes, asks; /* asks: somebody reads our pipe */
};

static int text_of(char *out, size_t size, const char *fmt, int pid, const char *tid)
{
    char path[96];
    snprintf(path, sizeof path, fmt, pid, tid);
    FILE *f = fopen(path, "re");
    if (!f)
        return -1;
    size_t n = fread(out, 1, size - 1, f);
    fclose(f);
    out[n] = '\0';
    return 0;
}

static int waits(struct quiet *q, int pid, const char *tid)
{
    char text[256], path[64];
    struct stat st;
    if (text_of(text, sizeof text, "/proc/%d/task/%s/syscall", pid, tid))
        return 0;
    char *end;
    long call = strtol(text, &end, 10);
    if (end == text) /* "running" */
        return 0;
    if (call == SYS_wait4 || call == SYS_waitid || call == SYS_futex)
        return 1;
    if (call != SYS_read)
        return 0;
    unsigned long fd = strtoul(end, NULL, 16);
    snprintf(path, sizeof path, "/proc/%d/fd/%lu", pid, fd);
    if (stat(path, &st) || !S_ISFIFO(st.st_mode))
        return 0;
    q->asks |= st.st_ino == q->ours;
    return 1;
}

static int all_wait(struct quiet *q, int pid, int depth)
{
    char path[64], text[1024];
    if (depth == MOST_DEPTH || ++q->processes > MOST_PROCESSES)
        return 0;
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *d = opendir(path);
    int good = d != NULL;
    for (struct dirent *x; good && (x = readdir(d));) {
        if (*x->d_name < '0' || *x->d_name > '9')
            continue;
        good = waits(q, pid, x->d_name);
        if (!good || text_of(text, sizeof text, "/proc/%d/task/%s/children", pid, x->d_name))
            continue; /* a kernel that does not name children: the threads of the first one must do */
        for (char *at = text, *end; good; at = end) {
            long child = strtol(at, &end, 10);
            if (end == at)
                break;
            good = all_wait(q, (int)child, depth + 1);
        }
    }
    if (d)
        closedir(d);
    return good;
}

int quiet_for_input(pid_t pid, int in_fd)
{
    struct stat st;
    struct quiet q = {0};
    int unread;
    if (fstat(in_fd, &st) || ioctl(in_fd, FIONREAD, &unread) || unread)
        return 0;
    q.ours = st.st_ino;
    return all_wait(&q, pid, 0) && q.asks;
}
