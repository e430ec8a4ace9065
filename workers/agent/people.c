#include "workers/agent/people.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/input.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <utmp.h>

#include "base/mem.h"
#include "base/path.h"

#define MOST_LINES 256
#define MOST_DEVICES 64
#define LIST_AGAIN_MS 1000     /* for new terminals, where there is no utmp */
#define LOOK_AGAIN_MS 30000    /* for devices that were plugged in */
#define UTMP_MAX (1u << 20)

struct line {                  /* a terminal */
    char name[UT_LINESIZE + 1];
    time_t touched;            /* as the terminal has it */
    uint64_t idle_ms, seen_ms; /* how long it was untouched at seen_ms, when we first saw it or saw it change */
    int alive;                 /* in the look under way */
};

struct people {
    int real;
    char *utmp, *dev;
    struct line *lines;
    size_t count;
    int device[MOST_DEVICES];
    char device_name[MOST_DEVICES][24];
    size_t devices, closed_devices; /* that are read; that may not be */
    uint64_t listed_ms;             /* terminals; 0: not yet */
    uint64_t looked_ms, input_ms;   /* for devices; last input: POLICY_NEVER */
    uint64_t begun_ms;
    int has_utmp;
};

struct people *people_open(const char *root, uint64_t now_ms)
{
    struct people *p = mem_zalloc(sizeof *p);
    if (!p)
        return NULL;
    p->real = !root;
    p->utmp = root ? path_join(root, "utmp") : mem_strdup("/run/utmp");
    p->dev = root ? path_join(root, "dev") : mem_strdup("/dev");
    p->lines = mem_array(MOST_LINES, sizeof *p->lines);
    p->input_ms = POLICY_NEVER;
    p->begun_ms = now_ms;
    if (!p->utmp || !p->dev || !p->lines) {
        people_close(p);
        return NULL;
    }
    return p;
}

void people_close(struct people *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->devices; i++)
        close(p->device[i]);
    mem_free(p->utmp);
    mem_free(p->dev);
    mem_free(p->lines);
    mem_free(p);
}

/* Input devices ---------------------------------------------------------------------------------------------------------------------- */

static int is_for_people(int fd)
{
    unsigned long bits[(EV_MAX + 8 * sizeof(long)) / (8 * sizeof(long))] = {0};
    if (ioctl(fd, EVIOCGBIT(0, sizeof bits), bits) < 0)
        return errno != EINVAL && errno != ENODEV; /* not an input device at all: a test's */
    return (bits[0] & (1ul << EV_KEY | 1ul << EV_REL)) != 0;
}

static void look_for_devices(struct people *p)
{
    char *dir = path_join(p->dev, "input");
    DIR *d = dir ? opendir(dir) : NULL;
    p->closed_devices = 0;
    for (const struct dirent *f; d && (f = readdir(d));) {
        if (strncmp(f->d_name, "event", 5) || strlen(f->d_name) >= sizeof p->device_name[0] || p->devices == MOST_DEVICES)
            continue;
        size_t i = 0;
        while (i < p->devices && strcmp(p->device_name[i], f->d_name))
            i++;
        if (i < p->devices)
            continue;
        int fd = openat(dirfd(d), f->d_name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0) {
            p->closed_devices++;
        } else if (is_for_people(fd)) {
            p->device[p->devices] = fd;
            snprintf(p->device_name[p->devices++], sizeof p->device_name[0], "%.23s", f->d_name);
        } else {
            close(fd);
        }
    }
    if (d)
        closedir(d);
    mem_free(dir);
}

static void read_devices(struct people *p, uint64_t now_ms)
{
    char waste[4096];
    if (!p->looked_ms || now_ms - p->looked_ms >= LOOK_AGAIN_MS) {
        look_for_devices(p);
        p->looked_ms = now_ms ? now_ms : 1;
    }
    for (size_t i = 0; i < p->devices; i++) {
        ssize_t n;
        for (int turn = 0; turn < 64 && (n = read(p->device[i], waste, sizeof waste)) > 0; turn++)
            p->input_ms = now_ms;
        if (n < 0 && errno == ENODEV) { /* unplugged */
            close(p->device[i]);
            p->devices--;
            p->device[i] = p->device[p->devices];
            memcpy(p->device_name[i], p->device_name[p->devices], sizeof p->device_name[0]);
            i--;
        }
    }
}

/* Terminals -------------------------------------------------------------------------------------------------------------------------- */

static struct line *line_of(struct people *p, const char *name)
{
    for (size_t i = 0; i < p->count; i++)
        if (strcmp(p->lines[i].name, name) == 0)
            return &p->lines[i];
    if (p->count == MOST_LINES)
        return NULL;
    struct line *l = &p->lines[p->count++];
    *l = (struct line){.touched = -1};
    snprintf(l->name, sizeof l->name, "%s", name);
    return l;
}

/* How long nobody touched a terminal; POLICY_NEVER: there is no such terminal. */
static uint64_t idle_of(struct people *p, const char *name, uint64_t now_ms)
{
    struct stat s;
    if (*name == '/' || strstr(name, ".."))
        return POLICY_NEVER;
    char *path = path_join(p->dev, name);
    int there = path && stat(path, &s) == 0 && (!p->real || S_ISCHR(s.st_mode));
    mem_free(path);
    struct line *l = there ? line_of(p, name) : NULL;
    if (!l)
        return POLICY_NEVER;
    l->alive = 1;
    if (l->touched == -1) {
        time_t wall = time(NULL);
        l->idle_ms = wall > s.st_atime ? (uint64_t)(wall - s.st_atime) * 1000 : 0;
        l->seen_ms = now_ms;
    } else if (l->touched != s.st_atime) {
        l->idle_ms = 0;
        l->seen_ms = now_ms;
    }
    l->touched = s.st_atime;
    return l->idle_ms + (now_ms - l->seen_ms);
}

static void consider(struct readings *r, uint64_t idle_ms, const char *user, const char *line)
{
    if (idle_ms == POLICY_NEVER || (r->idle_ms != POLICY_NEVER && idle_ms >= r->idle_ms))
        return;
    r->idle_ms = idle_ms;
    snprintf(r->who, sizeof r->who, "%.31s%s%.31s", user, *user ? ", " : "", line);
    for (char *c = r->who; *c; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c > 0x7e)
            *c = '?';
}

static uint64_t since_input(const struct people *p, uint64_t now_ms)
{
    return now_ms - (p->input_ms == POLICY_NEVER ? p->begun_ms : p->input_ms);
}

/* One entry of utmp. */
static void read_entry(struct people *p, const struct utmp *u, uint64_t now_ms, struct readings *r)
{
    char line[UT_LINESIZE + 1], user[UT_NAMESIZE + 1];
    snprintf(line, sizeof line, "%.*s", UT_LINESIZE, u->ut_line);
    snprintf(user, sizeof user, "%.*s", UT_NAMESIZE, u->ut_user);
    if (u->ut_type != USER_PROCESS || !*user || (p->real && u->ut_pid > 0 && kill(u->ut_pid, 0) && errno == ESRCH))
        return;
    uint64_t idle_ms = idle_of(p, line, now_ms);
    if (strncmp(line, "tty", 3) == 0 || idle_ms == POLICY_NEVER) {
        /* At the machine itself: a graphical session leaves no trace at its terminal. Input says more; where it cannot be read, being logged in
           counts as being there. */
        uint64_t input_ms = p->devices ? since_input(p, now_ms) : p->closed_devices || idle_ms == POLICY_NEVER ? 0 : POLICY_NEVER;
        if (input_ms < idle_ms)
            idle_ms = input_ms;
    }
    r->people++;
    if (!*r->who)
        snprintf(r->who, sizeof r->who, "%.31s, %.31s", user, line);
    consider(r, idle_ms, user, line);
}

static int read_utmp(struct people *p, uint64_t now_ms, struct readings *r)
{
    struct buf bytes = {0};
    struct err e;
    if (path_read(p->utmp, UTMP_MAX, &bytes, &e) != ST_OK) {
        buf_release(&bytes);
        return 0;
    }
    for (size_t at = 0; at + sizeof(struct utmp) <= bytes.len; at += sizeof(struct utmp)) {
        struct utmp u;
        memcpy(&u, bytes.data + at, sizeof u);
        read_entry(p, &u, now_ms, r);
    }
    buf_release(&bytes);
    return 1;
}

/* Every terminal below `dir` whose name begins with a prefix and goes on with digits. */
static int read_terminals(struct people *p, const char *dir, const char *prefix, uint64_t now_ms, struct readings *r)
{
    char *path = *dir ? path_join(p->dev, dir) : mem_strdup(p->dev);
    DIR *d = path ? opendir(path) : NULL;
    size_t skip = strlen(prefix);
    for (const struct dirent *f; d && (f = readdir(d));) {
        const char *digits = f->d_name + skip;
        char name[UT_LINESIZE + 1];
        if (strncmp(f->d_name, prefix, skip) || !*digits || strspn(digits, "0123456789") != strlen(digits) || strlen(digits) > 8)
            continue;
        snprintf(name, sizeof name, "%s%s%s%.8s", dir, *dir ? "/" : "", prefix, digits);
        consider(r, idle_of(p, name, now_ms), "", name);
    }
    int there = d != NULL;
    if (d)
        closedir(d);
    mem_free(path);
    return there;
}

void people_read(struct people *p, uint64_t now_ms, struct readings *r)
{
    r->people = 0;
    r->idle_ms = POLICY_NEVER;
    r->who[0] = 0;
    for (size_t i = 0; i < p->count; i++)
        p->lines[i].alive = 0;
    read_devices(p, now_ms);
    p->has_utmp = read_utmp(p, now_ms, r);
    int terminals = 0;
    if (!p->has_utmp && p->listed_ms && now_ms - p->listed_ms < LIST_AGAIN_MS) { /* going through the folders is most of what a look costs */
        for (size_t i = 0; i < p->count; i++)
            consider(r, idle_of(p, p->lines[i].name, now_ms), "", p->lines[i].name);
        terminals = 1;
    } else if (!p->has_utmp) {
        terminals = read_terminals(p, "", "tty", now_ms, r);
        terminals |= read_terminals(p, "pts", "", now_ms, r);
        p->listed_ms = terminals ? now_ms : 0;
    }
    if (p->input_ms != POLICY_NEVER) /* somebody at the log-in screen is somebody, too */
        consider(r, now_ms - p->input_ms, "", "input devices");
    r->people_known = p->has_utmp || terminals || p->devices;
    size_t kept = 0;
    for (size_t i = 0; i < p->count; i++)
        if (p->lines[i].alive)
            p->lines[kept++] = p->lines[i];
    p->count = kept;
}

void people_words(const struct people *p, char *out, size_t size)
{
    int n = snprintf(out, size, "%s", p->has_utmp ? "who is logged in (utmp)" : "all terminals (there is no utmp)");
    if (p->devices)
        n += snprintf(out + n, size - (size_t)n, ", %zu input device%s", p->devices, p->devices == 1 ? "" : "s");
    if (p->closed_devices && n > 0 && (size_t)n < size)
        snprintf(out + n, size - (size_t)n, ", %zu input device%s not (no permission): who is logged in at the screen counts as there", p->closed_devices,
                 p->closed_devices == 1 ? " is" : "s are");
}
