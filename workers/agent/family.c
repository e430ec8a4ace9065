#include "workers/agent/family.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct member {
    int group, session;
    uint64_t ticks;
};

static int look(int pid, struct member *out)
{
    char path[64], text[1024], state;
    unsigned long long t[4];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = 0;
    const char *p = strrchr(text, ')');
    /* state, parent, group, session, ..., user, system, and of children that were waited for */
    if (!p || sscanf(p + 1, " %c %*d %d %d %*d %*d %*u %*u %*u %*u %*u %llu %llu %llu %llu", &state, &out->group, &out->session, &t[0], &t[1], &t[2], &t[3]) != 7)
        return -1;
    out->ticks = t[0] + t[1] + t[2] + t[3];
    return 0;
}

static int each(int leader, int (*see)(int pid, const struct member *m, void *arg), void *arg)
{
    int seen = 0;
    DIR *d = opendir("/proc");
    if (!d)
        return 0;
    for (struct dirent *x; (x = readdir(d));) {
        struct member m;
        int pid = *x->d_name >= '0' && *x->d_name <= '9' ? atoi(x->d_name) : 0;
        if (pid > 0 && look(pid, &m) == 0 && (m.session == leader || pid == leader))
            seen += see(pid, &m, arg);
    }
    closedir(d);
    return seen;
}

struct signalling {
    int leader, number;
};

static int signal_other(int pid, const struct member *m, void *arg)
{
    const struct signalling *s = arg;
    return m->group != s->leader && kill(pid, s->number) == 0;
}

void family_signal(int leader, int number)
{
    struct signalling s = {leader, number};
    if (kill(-leader, number))
        kill(leader, number); /* it has not come so far as to have a group */
    if (each(leader, signal_other, &s))
        each(leader, signal_other, &s);
}

static int add(int pid, const struct member *m, void *arg)
{
    (void)pid;
    *(uint64_t *)arg += m->ticks;
    return 1;
}

uint64_t family_ticks(int leader)
{
    uint64_t sum = 0;
    each(leader, add, &sum);
    return sum;
}
