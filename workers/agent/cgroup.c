#include "workers/agent/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/path.h"

struct cgroup {
    char *v2, *cpu, *acct;      /* our groups; NULL: there is none. v1's cpu and cpuacct may be one */
    int door[CGROUP_MOST];
    size_t doors;
    int freezes, kills;
    char words[160];
};

/* Small files ------------------------------------------------------------------------------------------------------------------------ */

static int say(const char *dir, const char *name, const char *text)
{
    char *path = path_join(dir, name);
    int fd = path ? open(path, O_WRONLY | O_CLOEXEC) : -1;
    int failed = fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text);
    int why = errno;
    if (fd >= 0)
        close(fd);
    mem_free(path);
    errno = why;
    return failed ? -1 : 0;
}

static int ask(const char *dir, const char *name, char *out, size_t size)
{
    char *path = path_join(dir, name);
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t n = fd < 0 ? -1 : read(fd, out, size - 1);
    if (fd >= 0)
        close(fd);
    mem_free(path);
    out[n > 0 ? n : 0] = 0;
    return n < 0 ? -1 : 0;
}

static int has(const char *dir, const char *name)
{
    char *path = path_join(dir, name);
    int there = path && access(path, W_OK) == 0;
    mem_free(path);
    return there;
}

/* The number behind a word at the beginning of a line. */
static int number_of(const char *text, const char *word, uint64_t *out)
{
    size_t len = strlen(word);
    for (const char *line = text; line; line = strchr(line, '\n'), line += line != NULL)
        if (strncmp(line, word, len) == 0 && line[len] == ' ') {
            *out = strtoull(line + len, NULL, 10);
            return 0;
        }
    return -1;
}

/* Where we are ----------------------------------------------------------------------------------------------------------------------- */

static int word_in(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; (p = strstr(p, word)); p += n)
        if ((p == list || p[-1] == ',') && (p[n] == ',' || p[n] == 0))
            return 1;
    return 0;
}

/* Where a hierarchy is mounted: of v2 (controller NULL) or of a controller of v1. */
static char *mount_of(const char *controller)
{
    char *found = NULL, line[1024];
    FILE *f = fopen("/proc/self/mounts", "re");
    while (f && !found && fgets(line, sizeof line, f)) {
        char dir[512], type[32], options[256];
        if (sscanf(line, "%*s %511s %31s %255s", dir, type, options) != 3)
            continue;
        if (controller ? strcmp(type, "cgroup") == 0 && word_in(options, controller) : strcmp(type, "cgroup2") == 0)
            found = mem_strdup(dir);
    }
    if (f)
        fclose(f);
    return found;
}

/* Our own group in it, as a folder. The caller frees; NULL: none. */
static char *own_group(const char *controller)
{
    char *dir = mount_of(controller), *found = NULL, line[1024];
    FILE *f = dir ? fopen("/proc/self/cgroup", "re") : NULL;
    while (f && !found && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = 0;
        *list++ = 0;
        if (controller ? word_in(list, controller) : strcmp(line, "0") == 0 && !*list)
            found = mem_printf("%s%s", dir, strcmp(path, "/") ? path : "");
    }
    if (f)
        fclose(f);
    mem_free(dir);
    return found;
}

/* A folder of that name below it; NULL: may not be made. */
static char *make(const char *own, const char *name)
{
    char *dir = own ? path_join(own, name) : NULL;
    if (dir && mkdir(dir, 0755) && errno != EEXIST) {
        mem_free(dir);
        return NULL;
    }
    return dir;
}

static void add_word(struct cgroup *c, const char *word)
{
    size_t n = strlen(c->words);
    if (*word)
        snprintf(c->words + n, sizeof c->words - n, "%s%s", n ? ", " : "", word);
}

static int open_door(struct cgroup *c, const char *dir)
{
    char *path = dir ? path_join(dir, "cgroup.procs") : NULL;
    int fd = path ? open(path, O_WRONLY | O_CLOEXEC) : -1;
    mem_free(path);
    if (fd < 0)
        return -1;
    c->door[c->doors++] = fd;
    return 0;
}

static void close_group(char **dir)
{
    int failed = *dir ? rmdir(*dir) : 0;
    for (int tries = 0; failed && errno == EBUSY && tries < 100; tries++) { /* the last of them is still on its way out */
        clock_sleep_ms(10);
        failed = rmdir(*dir);
    }
    if (failed && errno != ENOENT)
        log_debug("'%s' cannot be removed: %s", *dir, strerror(errno));
    mem_free(*dir);
    *dir = NULL;
}

/* Version 2: members of a group whose children have controllers must lie in one of these children. That is done only in a group that was given to
   us, of which we are the only member. */
static void enable_cpu(const char *own)
{
    char text[256], pid[24], *end;
    if (say(own, "cgroup.subtree_control", "+cpu") == 0 || errno != EBUSY)
        return;
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    if (ask(own, "cgroup.procs", text, sizeof text) || strtol(text, &end, 10) != getpid() || strcmp(end, "\n"))
        return;
    char *aside = make(own, "agent");
    if (aside && say(aside, "cgroup.procs", pid) == 0 && say(own, "cgroup.subtree_control", "+cpu"))
        log_debug("no processor control below '%s': %s", own, strerror(errno));
    mem_free(aside);
}

static void open_v2(struct cgroup *c, const char *name, int idle)
{
    char *own = own_group(NULL);
    c->v2 = make(own, name);
    if (c->v2 && open_door(c, c->v2)) {
        close_group(&c->v2);
    } else if (c->v2) {
        c->freezes = has(c->v2, "cgroup.freeze");
        c->kills = has(c->v2, "cgroup.kill");
        const char *root = strrchr(own, '/');
        if (idle && !has(c->v2, "cpu.idle") && root && has(own, "cgroup.events")) /* the root group has none, and is not ours to change */
            enable_cpu(own);
        if (c->freezes)
            add_word(c, "cgroup v2 freeze");
        if (c->kills)
            add_word(c, "cgroup v2 kill");
        if (say(c->v2, "cpu.idle", idle ? "1" : "0") == 0)
            add_word(c, idle ? "cgroup v2 cpu.idle" : "");
        else if (idle && say(c->v2, "cpu.weight", "1") == 0)
            add_word(c, "cgroup v2 cpu.weight 1");
    }
    mem_free(own);
}

static void open_v1(struct cgroup *c, const char *name, int idle)
{
    char *own = own_group("cpu"), *acct = own_group("cpuacct");
    c->cpu = make(own, name);
    if (c->cpu && open_door(c, c->cpu)) {
        close_group(&c->cpu);
    } else if (c->cpu) {
        if (say(c->cpu, "cpu.idle", idle ? "1" : "0") == 0)
            add_word(c, idle ? "cgroup v1 cpu.idle" : "");
        else if (idle && say(c->cpu, "cpu.shares", "2") == 0)
            add_word(c, "cgroup v1 cpu.shares 2");
    }
    if (c->cpu && has(c->cpu, "cpuacct.usage"))
        c->acct = mem_strdup(c->cpu);
    else if ((c->acct = make(acct, name)) && open_door(c, c->acct))
        close_group(&c->acct);
    mem_free(own);
    mem_free(acct);
}

struct cgroup *cgroup_open(const char *name, int idle)
{
    struct cgroup *c = mem_zalloc(sizeof *c);
    if (!c)
        return NULL;
    open_v2(c, name, idle);
    open_v1(c, name, idle);
    cgroup_freeze(c, 0); /* what a dead agent left */
    cgroup_kill(c);
    return c;
}

void cgroup_close(struct cgroup *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->doors; i++)
        close(c->door[i]);
    close_group(&c->v2);
    if (c->acct && c->cpu && strcmp(c->acct, c->cpu) == 0) {
        mem_free(c->acct);
        c->acct = NULL;
    }
    close_group(&c->cpu);
    close_group(&c->acct);
    mem_free(c);
}

/* Use ---------------------------------------------------------------------------------------------------------------------------------- */

size_t cgroup_doors(const struct cgroup *c, int fds[CGROUP_MOST])
{
    memcpy(fds, c->door, c->doors * sizeof *fds);
    return c->doors;
}

int cgroup_can_freeze(const struct cgroup *c)
{
    return c->freezes;
}

int cgroup_freeze(struct cgroup *c, int on)
{
    return c->freezes ? say(c->v2, "cgroup.freeze", on ? "1" : "0") : -1;
}

int cgroup_frozen(const struct cgroup *c)
{
    char text[256];
    uint64_t frozen = 0;
    return c->freezes && ask(c->v2, "cgroup.events", text, sizeof text) == 0 && number_of(text, "frozen", &frozen) == 0 && frozen;
}

void cgroup_kill(struct cgroup *c)
{
    if (c->kills && say(c->v2, "cgroup.kill", "1"))
        log_warn("'%s' cannot be killed as one: %s", c->v2, strerror(errno));
}

int cgroup_cpu_ns(const struct cgroup *c, uint64_t *ns)
{
    char text[1024];
    if (c->acct && ask(c->acct, "cpuacct.usage", text, sizeof text) == 0) {
        *ns = strtoull(text, NULL, 10);
        return 0;
    }
    if (c->v2 && ask(c->v2, "cpu.stat", text, sizeof text) == 0 && number_of(text, "usage_usec", ns) == 0) {
        *ns *= 1000;
        return 0;
    }
    return -1;
}

const char *cgroup_words(const struct cgroup *c)
{
    return *c->words ? c->words : "none";
}
