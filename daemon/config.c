#include "daemon/config.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/host.h"
#include "base/mem.h"
#include "base/opt.h"
#include "base/path.h"
#include "daemon/http.h"
#include "scheduler/sched.h"
#include "wire/settings.h"

#define LONGEST_TIMEOUT_MS 3600000
#define PRIVATE_MIN_FREE (64u << 20)

static char *first_of(const char *list) /* systemd gives several folders apart by ':' */
{
    return mem_strndup(list, strcspn(list, ":"));
}

static char *default_state(void)
{
    const char *s;
    if ((s = getenv("STATE_DIRECTORY")) && *s)
        return first_of(s);
    if (geteuid() == 0)
        return mem_strdup("/var/lib/ebb");
    if ((s = getenv("XDG_STATE_HOME")) && *s == '/')
        return path_join(s, "ebb");
    s = getenv("HOME");
    return path_join(s && *s == '/' ? s : "/", ".local/state/ebb");
}

static char *default_runtime(void)
{
    const char *s;
    if ((s = getenv("RUNTIME_DIRECTORY")) && *s)
        return first_of(s);
    if (geteuid() == 0)
        return mem_strdup("/run/ebb");
    if ((s = getenv("XDG_RUNTIME_DIR")) && *s == '/')
        return path_join(s, "ebb");
    return mem_printf("/tmp/ebb-%u", (unsigned)geteuid());
}

enum status config_init(struct config *c, struct err *e)
{
    *c = (struct config){.workers = 1, .idle_ms = 30000, .worker_timeout = sched_config_default.worker_timeout_ms, .min_free = 512u << 20, .log_level = LOG_INFO,
                         .slurm_class = 1, .slurm_cpus = 1, .slurm_poll = 5000, .kubernetes_class = 1};
    c->state_dir = default_state();
    c->runtime_dir = default_runtime();
    if (!c->state_dir || !c->runtime_dir) {
        config_release(c);
        return err_nomem(e, "the configuration");
    }
    return ST_OK;
}

#define FREE_TEXT(x) mem_free(x)
#define FREE_ENDPOINTS(p) settings_free_list(p)
#define FREE_LIST(x) settings_free_list(x)
#define FREE_WORDS(x) settings_free_list(x)
#define FREE_NUMBER(x) (void)(x)
#define FREE_SIZE(x) (void)(x)
#define FREE_DURATION(x) (void)(x)
#define FREE_LEVEL(x) (void)(x)
#define FREE_CLASS(x) (void)(x)
#define FREE_FLAG(x) (void)(x)

void config_release(struct config *c)
{
#define X(kind, member, path) FREE_##kind(c->member);
    CONFIG_MAP(X)
#undef X
    mem_free(c->file);
    *c = (struct config){0};
}

/* The file ------------------------------------------------------------------------------------------------------------------------- */

/* Two ports behind this one are used, too. */
static int endpoint_fits(const char *text)
{
    if (strncmp(text, "tcp://", 6) != 0 || strlen(text) > 200)
        return 0;
    const char *host = text + 6, *colon = strrchr(host, ':');
    if (!colon || colon == host || strspn(colon + 1, "0123456789") != strlen(colon + 1) || strlen(colon + 1) > 5)
        return 0;
    int bracketed = *host == '[' && colon[-1] == ']', port = atoi(colon + 1);
    return port >= 1 && port <= 65533 && (bracketed || !memchr(host, ':', (size_t)(colon - host))) && !strpbrk(host, " ;/@");
}

static int take_ENDPOINTS(struct settings_value *v, void *to)
{
    return settings_list(v, to, 1, endpoint_fits);
}

static int not_empty(const char *text)
{
    return *text != 0;
}

static int take_WORDS(struct settings_value *v, void *to)
{
    return settings_list(v, to, 0, not_empty);
}

static int take_CLASS(struct settings_value *v, void *to)
{
    if (!v->text || (strcmp(v->text, "preemptible") && strcmp(v->text, "guaranteed")))
        return EINVAL;
    *(int *)to = *v->text == 'p';
    return 0;
}

static int take_FLAG(struct settings_value *v, void *to)
{
    if (!v->text || (strcmp(v->text, "true") && strcmp(v->text, "false")))
        return EINVAL;
    *(int *)to = *v->text == 't';
    return 0;
}

/* kind, in words, how it is taken */
#define TAKE_TEXT "a text", settings_text
#define TAKE_LIST "a list of folders", settings_folders
#define TAKE_ENDPOINTS "tcp://ADDRESS:PORT with a port of 1 to 65533, e.g. tcp://0.0.0.0:5570, or a list of them", take_ENDPOINTS
#define TAKE_NUMBER "a whole number", settings_number
#define TAKE_SIZE "a size such as 512MiB", settings_size
#define TAKE_DURATION "a duration such as 30s", settings_duration
#define TAKE_LEVEL "error, warning, info or debug", settings_level
#define TAKE_WORDS "a list of texts", take_WORDS
#define TAKE_CLASS "preemptible or guaranteed", take_CLASS
#define TAKE_FLAG "true or false", take_FLAG

static int take_text(char **to, const char *text)
{
    char *copy = mem_strdup(text);
    if (!copy)
        return ENOMEM;
    mem_free(*to);
    *to = copy;
    return 0;
}

enum status config_read(struct config *c, const char *file, struct err *e)
{
    const struct setting table[] = {
#define X(kind, member, path) {path, TAKE_##kind, &c->member, NULL},
        CONFIG_MAP(X)
#undef X
    };
    TRY(settings_read(file, table, sizeof table / sizeof *table, "ebbd(1)", e));
    return take_text(&c->file, file) ? err_nomem(e, "the configuration") : ST_OK;
}

/* The command line -------------------------------------------------------------------------------------------------------------- */

static enum status make_absolute(char **path, struct err *e)
{
    char *p = path_absolute(*path);
    if (!p)
        return err_nomem(e, "the configuration");
    mem_free(*path);
    *path = p;
    return ST_OK;
}

/* A private daemon's sockets: paths of sockets are short, so they cannot lie beside the output. */
static enum status private_runtime(struct config *c, struct err *e)
{
    const char *base = getenv("XDG_RUNTIME_DIR");
    if (!base || *base != '/' || access(base, W_OK) || strlen(base) > 60)
        base = "/tmp";
    char *dir = path_join(base, "ebb-XXXXXX");
    if (!dir)
        return err_nomem(e, "the configuration");
    if (!mkdtemp(dir)) {
        enum status st = err_errno(e, ST_ENV, errno, "cannot make a folder for sockets in '%s'", base);
        mem_free(dir);
        return st;
    }
    mem_free(c->runtime_dir);
    c->runtime_dir = dir;
    c->own_runtime = 1;
    return ST_OK;
}

static enum status finish_slurm(struct config *c, struct err *e)
{
    if (!c->slurm_dir && !(c->slurm_dir = path_join(c->state_dir, "slurm")))
        return err_nomem(e, "the configuration");
    TRY(make_absolute(&c->slurm_dir, e)); /* the state may have been given as a relative one */
    if (c->slurm_limit > 4096 || c->kubernetes_limit > 4096)
        return err_set(e, ST_USER, "'%s.limit': at most 4096", c->slurm_limit > 4096 ? "slurm" : "kubernetes");
    if (c->slurm_cpus < 1 || c->slurm_cpus > 1024)
        return err_set(e, ST_USER, "'slurm.cpus' must be 1 to 1024");
    if (c->slurm_memory && c->slurm_memory < HOST_LEAST_WORKER_MEMORY)
        return err_set(e, ST_USER, "'slurm.memory' is too small for any model: give at least 64MiB");
    if (c->slurm_time && c->slurm_time < 60000)
        return err_set(e, ST_USER, "'slurm.time' must be at least 1min");
    if (c->slurm_poll < 1000)
        return err_set(e, ST_USER, "'slurm.poll' must be at least 1s");
    if (c->slurm_limit && c->slurm_connect && strncmp(c->slurm_connect, "tcp://", 6) && strncmp(c->slurm_connect, "ipc://", 6))
        return err_set(e, ST_USER, "'slurm.connect' wants tcp://HOST:PORT or ipc://PATH, not '%s'", c->slurm_connect);
    return ST_OK;
}

enum status config_parse(struct config *c, int argc, char **argv, struct err *e)
{
    const char *file = NULL, *state = NULL, *runtime = NULL, *level = NULL, *http = NULL;
    uint64_t workers = UINT64_MAX, lanes = UINT64_MAX, memory = UINT64_MAX;
    int version = 0, operands = 0;
    const struct opt opts[] = {
        {.name = "config", .letter = 'c', .type = OPT_TEXT, .value = &file, .arg = "FILE", .help = "read FILE instead of " CONFIG_FILE},
        {.name = "state", .letter = 's', .type = OPT_TEXT, .value = &state, .arg = "DIR", .help = "where the store lies"},
        {.name = "runtime", .letter = 'r', .type = OPT_TEXT, .value = &runtime, .arg = "DIR", .help = "where the sockets lie; a short path"},
        {.name = "private", .type = OPT_FLAG, .value = &c->is_private, .help = "serve one `ebb run`: say 'ready ENDPOINT' on standard output, end when no client has spoken for 10 s"},
        {.name = "workers", .letter = 'w', .type = OPT_NUMBER, .value = &workers, .arg = "N", .help = "most workers on this machine (default: 1; 0: none)"},
        {.name = "lanes", .type = OPT_NUMBER, .value = &lanes, .arg = "N", .help = "lanes of each worker (default: the processors divided among them)"},
        {.name = "memory", .type = OPT_SIZE, .value = &memory, .arg = "SIZE", .help = "memory of each worker (default: it decides)"},
        {.name = "http", .type = OPT_TEXT, .value = &http, .arg = "ADDRESS:PORT|off", .help = "serve /metrics, /healthz and /readyz there, e.g. 127.0.0.1:9570 (default: off); port 0: any, the log says which"},
        {.name = "log", .type = OPT_TEXT, .value = &level, .arg = "LEVEL", .help = "error, warning, info or debug"},
        {.name = "version", .type = OPT_FLAG, .value = &version, .help = "print the version"},
    };
    const struct opt_command command = {.name = "ebbd",
                                        .summary = "the scheduler daemon of ebb",
                                        .details = "Keeps the jobs of one state directory, gives their spans to workers and makes their results. "
                                                   "Ends with 3 when another ebbd serves the same state.",
                                        .examples = "ebbd --state /var/lib/ebb --runtime /run/ebb --workers 2",
                                        .opts = opts,
                                        .opt_count = sizeof opts / sizeof *opts};
    TRY(opt_parse(&command, argc, argv, &operands, e));
    if (version) {
        printf("ebbd %s\n", EBBD_VERSION);
        return ST_END;
    }
    if (c->is_private) /* nobody can configure it, and small disks are normal */
        c->min_free = PRIVATE_MIN_FREE;
    if (file)
        TRY(config_read(c, file, e));
    else if (!c->is_private && path_exists(CONFIG_FILE))
        TRY(config_read(c, CONFIG_FILE, e));
    if (level && settings_parse_level(level, &c->log_level))
        return err_set(e, ST_USER, "--log wants error, warning, info or debug, not '%s'", level);
    if ((state && take_text(&c->state_dir, state)) || (runtime && take_text(&c->runtime_dir, runtime)) || (http && take_text(&c->http, http)))
        return err_nomem(e, "the configuration");
    c->workers = workers == UINT64_MAX ? c->workers : workers;
    c->lanes = lanes == UINT64_MAX ? c->lanes : lanes;
    c->memory = memory == UINT64_MAX ? c->memory : memory;
    if (c->memory && c->memory < HOST_LEAST_WORKER_MEMORY)
        return err_set(e, ST_USER, "a worker's memory of %" PRIu64 " bytes is too small for any model: give at least 64MiB", c->memory);
    if (c->workers > 4096 || c->lanes > 4096)
        return err_set(e, ST_USER, "%s: at most 4096", c->workers > 4096 ? "--workers" : "--lanes");
    if (c->worker_timeout < 2 * sched_config_default.beat_ms || c->worker_timeout > LONGEST_TIMEOUT_MS)
        return err_set(e, ST_USER, "'worker_timeout' must be 2s to 1h: a worker speaks every second");
    if (c->is_private && !runtime)
        TRY(private_runtime(c, e));
    TRY(make_absolute(&c->state_dir, e));
    TRY(make_absolute(&c->runtime_dir, e));
    if (!c->pack_cache && !c->is_private && !getenv("EBB_PACK_CACHE") && !(c->pack_cache = path_join(c->state_dir, "packs")))
        return err_nomem(e, "the configuration");
    if (c->pack_cache && strcmp(c->pack_cache, "off") != 0)
        TRY(make_absolute(&c->pack_cache, e));
    TRY(finish_slurm(c, e));
    TRY(http_check(c->http, e));
    if (strlen(c->runtime_dir) > 90)
        return err_set(e, ST_USER, "the runtime folder '%s' is too long for sockets (90 bytes): give a shorter one with --runtime", c->runtime_dir);
    return ST_OK;
}

enum status config_allows(const struct config *c, const char *path, struct err *e)
{
    if (!c->roots || !*c->roots)
        return ST_OK;
    char *p = path_absolute(path), *tail = NULL, real[PATH_MAX] = "/";
    if (!p)
        return err_nomem(e, "a path");
    /* The part that exists, with its links followed; what does not exist yet cannot lead elsewhere. */
    size_t n = strlen(p);
    while (!realpath(p, real) && n > 1) {
        while (n > 1 && p[n - 1] != '/')
            n--;
        n -= n > 1;
        p[n] = 0;
    }
    mem_free(p);
    p = path_absolute(path);
    tail = p ? mem_printf("%s%s%s", strcmp(real, "/") ? real : "", n < strlen(p) && p[n] != '/' ? "/" : "", p + n) : NULL;
    enum status st = tail ? ST_USER : err_nomem(e, "a path");
    for (char **root = c->roots; tail && *root; root++) {
        char own[PATH_MAX];
        const char *r = realpath(*root, own) ? own : *root; /* /home may be a link itself */
        size_t len = strlen(r);
        if (strncmp(tail, r, len) == 0 && (tail[len] == '/' || tail[len] == 0 || r[len - 1] == '/'))
            st = ST_OK;
    }
    if (tail && st != ST_OK)
        err_set(e, ST_USER, "'%s' lies outside the folders that this daemon may use ('roots' in its configuration)", path);
    mem_free(tail);
    mem_free(p);
    return st;
}
