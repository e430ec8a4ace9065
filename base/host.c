#include "base/host.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

uint32_t host_processors(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n > 0 ? (uint32_t)n : 1;
}

uint64_t host_resident_bytes(void)
{
    unsigned long long total, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f)
        return 0;
    if (fscanf(f, "%llu %llu", &total, &resident) != 2)
        resident = 0;
    fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t number_in(const char *path)
{
    FILE *f = fopen(path, "re");
    uint64_t n = 0;
    if (!f)
        return 0;
    if (fscanf(f, "%" SCNu64, &n) != 1) /* "max" is no number */
        n = 0;
    fclose(f);
    return n;
}

/* The least limit along a path of control groups: each is bound by those above it. */
static uint64_t group_limit(const char *root, char *path, const char *file, uint64_t least)
{
    for (;;) {
        char whole[4096];
        int n = snprintf(whole, sizeof whole, "%s%s/%s", root, path, file);
        uint64_t limit = n > 0 && (size_t)n < sizeof whole ? number_in(whole) : 0;
        if (limit && limit < least)
            least = limit;
        char *slash = strrchr(path, '/');
        if (!slash)
            return least;
        *slash = '\0';
    }
}

uint64_t host_memory_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), each = sysconf(_SC_PAGESIZE);
    uint64_t least = pages > 0 && each > 0 ? (uint64_t)pages * (uint64_t)each : 0;
    char line[2048];
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f || !least) {
        if (f)
            fclose(f);
        return least;
    }
    while (fgets(line, sizeof line, f)) { /* "0::/user.slice" (version 2), "4:memory:/slurm/job" (version 1) */
        char *kind = strchr(line, ':'), *path = kind ? strchr(kind + 1, ':') : NULL;
        if (!path)
            continue;
        line[strcspn(line, "\n")] = '\0';
        *path++ = '\0';
        if (strcmp(path, "/") == 0)
            *path = '\0';
        if (strcmp(kind, ":") == 0)
            least = group_limit("/sys/fs/cgroup", path, "memory.max", least);
        else if (strstr(kind, "memory"))
            least = group_limit("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes", least);
    }
    fclose(f);
    return least;
}

uint64_t host_memory_limit(void)
{
    uint64_t least = UINT64_MAX;
    static const int kinds[] = {RLIMIT_DATA, RLIMIT_AS};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct rlimit l;
        if (getrlimit((__rlimit_resource_t)kinds[i], &l) == 0 && l.rlim_cur != RLIM_INFINITY && l.rlim_cur < least)
            least = l.rlim_cur;
    }
    return least == UINT64_MAX ? 0 : least;
}
