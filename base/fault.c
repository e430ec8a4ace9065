#include "base/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"

#define RULES 32

static struct rule {
    char name[48];
    unsigned long at;
    char what[80];
    atomic_ulong passed;
} rules[RULES];
static atomic_int rule_count = -1; /* -1: the environment has not been read */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void parse(const char *spec)
{
    int n = 0;
    while (spec && *spec) {
        BUG_IF(n == RULES, "more than %d rules in EBB_FAULT", RULES);
        struct rule *r = &rules[n++];
        size_t len = strcspn(spec, ",");
        char copy[128];
        BUG_IF(len >= sizeof copy, "a rule of EBB_FAULT is longer than %zu bytes", sizeof copy - 1);
        memcpy(copy, spec, len);
        copy[len] = 0;
        BUG_IF(sscanf(copy, "%47[^:]:%lu:%79s", r->name, &r->at, r->what) != 3, "EBB_FAULT '%s' is not NAME:N:WHAT", copy);
        atomic_store(&r->passed, 0);
        spec += len + (spec[len] == ',');
    }
    atomic_store(&rule_count, n);
}

void fault_set(const char *spec)
{
    pthread_mutex_lock(&lock);
    parse(spec);
    pthread_mutex_unlock(&lock);
}

static int matches(const struct rule *r, const char *name)
{
    size_t n = strlen(r->name);
    if (n && r->name[n - 1] == '*')
        return strncmp(r->name, name, n - 1) == 0;
    return strcmp(r->name, name) == 0;
}

static int act(const struct rule *r)
{
    static const struct {
        const char *word;
        int number;
    } errnos[] = {{"EIO", EIO}, {"ENOSPC", ENOSPC}, {"EINTR", EINTR}, {"EACCES", EACCES}, {"ENOMEM", ENOMEM}};
    if (strcmp(r->what, "kill") == 0 || strcmp(r->what, "stop") == 0) {
        const char *once = getenv("EBB_FAULT_ONCE"); /* the first process that gets here makes the file; the others live on */
        int fd = once ? open(once, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
        if (once && fd < 0)
            return 0;
        if (fd >= 0)
            close(fd);
    }
    if (strcmp(r->what, "kill") == 0)
        kill(getpid(), SIGKILL);
    else if (strcmp(r->what, "stop") == 0)
        kill(getpid(), SIGSTOP);
    else if (strncmp(r->what, "sleep=", 6) == 0)
        clock_sleep_ms(strtoul(r->what + 6, NULL, 10));
    else if (strncmp(r->what, "wait=", 5) == 0)
        while (access(r->what + 5, F_OK) != 0)
            clock_sleep_ms(2);
    else
        for (size_t i = 0; i < sizeof errnos / sizeof *errnos; i++)
            if (strcmp(r->what, errnos[i].word) == 0)
                return errnos[i].number;
    return 0;
}

int fault_point(const char *name)
{
    int n = atomic_load_explicit(&rule_count, memory_order_acquire);
    if (__builtin_expect(n == 0, 1))
        return 0;
    if (n < 0) {
        pthread_mutex_lock(&lock);
        if (atomic_load(&rule_count) < 0)
            parse(getenv("EBB_FAULT"));
        pthread_mutex_unlock(&lock);
        n = atomic_load(&rule_count);
    }
    int errnum = 0;
    for (int i = 0; i < n; i++) { /* each rule counts every pass, whatever the others do */
        if (!matches(&rules[i], name))
            continue;
        unsigned long passed = atomic_fetch_add(&rules[i].passed, 1) + 1;
        if (rules[i].at == 0 || rules[i].at == passed) {
            int said = act(&rules[i]);
            errnum = errnum ? errnum : said;
        }
    }
    return errnum;
}
