#include "workers/agent/config.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/host.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/suggest.h"
#include "wire/settings.h"

#define MOST_WORKERS 1024

void agent_config_release(struct agent_config *c)
{
    mem_free(c->daemon);
    mem_free(c->key_file);
    mem_free(c->dir);
    mem_free(c->host);
    mem_free(c->pack_cache);
    mem_free(c->file);
    mem_free(c->proc);
    *c = (struct agent_config){0};
}

/* Values --------------------------------------------------------------------------------------------------------------------------- */

/* "25%" -> 0.25 */
static int parse_share(const char *text, double *to)
{
    char *end;
    if (!text || !isdigit((unsigned char)*text))
        return EINVAL;
    double x = strtod(text, &end);
    while (*end == ' ')
        end++;
    if (strcmp(end, "%") != 0 || x > 100)
        return EINVAL;
    *to = x / 100;
    return 0;
}

static int take_limit(struct settings_value *v, void *to)
{
    if (v->text && strcmp(v->text, "off") == 0) {
        *(double *)to = POLICY_OFF;
        return 0;
    }
    double x;
    if (parse_share(v->text, &x) || x <= 0)
        return EINVAL;
    *(double *)to = x;
    return 0;
}

static int take_amount(struct settings_value *v, void *to)
{
    struct policy_amount a = {0};
    if (parse_share(v->text, &a.share) && settings_size(v, &a.bytes))
        return EINVAL;
    *(struct policy_amount *)to = a;
    return 0;
}

static int take_owner(struct settings_value *v, void *to)
{
    static const char *const words[] = {[OWNER_ACTIVE] = "active", [OWNER_LOGGED_IN] = "logged-in", [OWNER_IGNORED] = "ignored"};
    for (int i = 0; v->text && i < 3; i++)
        if (strcmp(v->text, words[i]) == 0) {
            *(enum policy_owner *)to = (enum policy_owner)i;
            return 0;
        }
    const char *near = v->text ? suggest(v->text, words, 3) : NULL;
    if (near)
        snprintf(v->why, SETTINGS_WHY_MAX, "wants active, logged-in or ignored, not '%.40s' (did you mean '%s')", v->text, near);
    return EINVAL;
}

static int take_priority(struct settings_value *v, void *to)
{
    static const char *const words[] = {[PRIORITY_IDLE] = "idle", [PRIORITY_LOW] = "low", [PRIORITY_NORMAL] = "normal"};
    for (int i = 0; v->text && i < 3; i++)
        if (strcmp(v->text, words[i]) == 0) {
            *(enum policy_priority *)to = (enum policy_priority)i;
            return 0;
        }
    return EINVAL;
}

static int take_hours(struct settings_value *v, void *to)
{
    struct calendar c = {0};
    for (v->at = 0; v->at < (v->text ? 1 : v->count); v->at++)
        if (calendar_add(&c, v->text ? v->text : v->items[v->at], v->why, SETTINGS_WHY_MAX))
            return EINVAL;
    *(struct calendar *)to = c;
    return 0;
}

static int take_workers(struct settings_value *v, void *to)
{
    uint64_t n;
    if (settings_number(v, &n) || n > MOST_WORKERS)
        return EINVAL;
    *(uint64_t *)to = n;
    return 0;
}

static int take_memory(struct settings_value *v, void *to)
{
    uint64_t n;
    if (settings_size(v, &n))
        return EINVAL;
    if (n && n < HOST_LEAST_WORKER_MEMORY) {
        snprintf(v->why, SETTINGS_WHY_MAX, "of '%.40s' is too small for any model: give at least 64MiB, or 0", v->text);
        return EINVAL;
    }
    *(uint64_t *)to = n;
    return 0;
}

/* The file ------------------------------------------------------------------------------------------------------------------------- */

static enum status read_file(struct agent_config *c, const char *file, struct err *e)
{
    struct policy *p = &c->policy;
    size_t calm_line = 0, limit_line = 0, lanes_line = 0;
    const struct setting table[] = {
        {"daemon", "an endpoint such as tcp://pool.example:5570", settings_text, &c->daemon, NULL},
        {"key_file", "a path", settings_text, &c->key_file, NULL},
        {"dir", "a path", settings_text, &c->dir, NULL},
        {"host", "a name", settings_text, &c->host, NULL},
        {"workers.count", "a whole number up to 1024", take_workers, &p->workers, NULL},
        {"workers.lanes", "a whole number up to 1024", take_workers, &p->lanes, &lanes_line},
        {"workers.memory", "a size such as 4GiB, or 0", take_memory, &p->memory_each, NULL},
        {"workers.priority", "idle, low or normal", take_priority, &c->priority, NULL},
        {"workers.pack_cache", "a folder, or off", settings_text, &c->pack_cache, NULL},
        {"workers.pack_cache_size", "a size such as 20GiB", settings_size, &c->pack_bytes, NULL},
        {"owner.present", "active, logged-in or ignored", take_owner, &p->owner, NULL},
        {"owner.idle", "a duration such as 10min", settings_duration, &p->owner_idle_ms, NULL},
        {"hours", "hours such as [mon-fri 19:00-07:00, 'sat,sun']", take_hours, &p->hours, NULL},
        {"keep.cores", "a whole number", settings_number, &p->cores_keep, NULL},
        {"keep.memory", "a share such as 15%, or a size such as 2GiB", take_amount, &p->memory_keep, NULL},
        {"load.limit", "a share of the cores such as 25%, or off", take_limit, &p->load_limit, &limit_line},
        {"load.calm", "a share of the cores such as 10%", take_limit, &p->load_calm, &calm_line},
        {"pressure.cpu", "a share of the time such as 50%, or off", take_limit, &p->pressure_limit[PRESSURE_CPU], NULL},
        {"pressure.memory", "a share of the time such as 10%, or off", take_limit, &p->pressure_limit[PRESSURE_MEMORY], NULL},
        {"pressure.io", "a share of the time such as 50%, or off", take_limit, &p->pressure_limit[PRESSURE_IO], NULL},
        {"evict.memory", "a share such as 5%, or a size such as 1GiB", take_amount, &p->memory_evict, NULL},
        {"evict.after", "a duration such as 3s", settings_duration, &p->evict_after_ms, NULL},
        {"freeze_after", "a duration such as 100ms", settings_duration, &p->freeze_after_ms, NULL},
        {"thaw_after", "a duration such as 1s", settings_duration, &p->thaw_after_ms, NULL},
        {"return_after", "a duration such as 1min", settings_duration, &p->return_after_ms, NULL},
        {"grace", "a duration such as 20s", settings_duration, &p->grace_ms, NULL},
        {"log_level", "error, warning, info or debug", settings_level, &c->log_level, NULL},
    };
    TRY(settings_read(file, table, sizeof table / sizeof *table, "docs/agent.md", e));
    const char *name = path_base(file);
    if (p->load_calm >= p->load_limit && (calm_line || limit_line))
        return err_set(e, ST_USER, "%s:%zu: 'load.calm' must be below 'load.limit', or guests come and go without end", name,
                       calm_line ? calm_line : limit_line);
    if (lanes_line && p->lanes > 1024)
        return err_set(e, ST_USER, "%s:%zu: 'workers.lanes' is at most 1024", name, lanes_line);
    return (c->file = mem_strdup(file)) ? ST_OK : err_nomem(e, "the configuration");
}

/* ------------------------------------------------------------------------------------------------------------------------------------ */

static int replace(char **to, const char *with)
{
    if (!with)
        return 0;
    char *copy = mem_strdup(with);
    if (!copy)
        return -1;
    mem_free(*to);
    *to = copy;
    return 0;
}

static int make_absolute(char **path)
{
    char *p = *path ? path_absolute(*path) : NULL;
    if (*path && !p)
        return -1;
    mem_free(*path);
    *path = p;
    return 0;
}

static char *default_dir(void)
{
    const char *s;
    if ((s = getenv("STATE_DIRECTORY")) && *s)
        return mem_strndup(s, strcspn(s, ":"));
    if (geteuid() == 0)
        return mem_strdup("/var/lib/ebb-agent");
    if ((s = getenv("XDG_STATE_HOME")) && *s == '/')
        return path_join(s, "ebb-agent");
    s = getenv("HOME");
    return path_join(s && *s == '/' ? s : "/", ".local/state/ebb-agent");
}

char *agent_config_joined_key(const struct agent_config *c)
{
    return path_join(c->dir, "node.key");
}

static enum status read_all(struct agent_config *c, const struct agent_words *w, struct err *e)
{
    char host[256] = "";
    if (gethostname(host, sizeof host - 1))
        snprintf(host, sizeof host, "localhost");
    if (!(c->dir = default_dir()) || !(c->host = mem_strdup(host)))
        return err_nomem(e, "the configuration");
    if (w->file || path_exists(AGENT_FILE))
        TRY(read_file(c, w->file ? w->file : AGENT_FILE, e));
    if (w->level && settings_parse_level(w->level, &c->log_level))
        return err_set(e, ST_USER, "--log wants error, warning, info or debug, not '%s'", w->level);
    if (replace(&c->daemon, w->daemon) || replace(&c->key_file, w->key_file) || replace(&c->host, w->host) || replace(&c->dir, w->dir) ||
        replace(&c->proc, w->proc) || make_absolute(&c->dir) || make_absolute(&c->key_file) || make_absolute(&c->proc) ||
        (c->pack_cache && strcmp(c->pack_cache, "off") && make_absolute(&c->pack_cache)) ||
        (!c->pack_cache && !getenv("EBB_PACK_CACHE") && !(c->pack_cache = path_join(c->dir, "packs"))))
        return err_nomem(e, "the configuration");
    char *joined = c->key_file ? NULL : agent_config_joined_key(c);
    if (!c->key_file && !joined)
        return err_nomem(e, "the configuration");
    if (joined && path_exists(joined))
        c->key_file = joined;
    else
        mem_free(joined);
    if (!*c->host || strlen(c->host) > 120)
        return err_set(e, ST_USER, "the node's name must have 1 to 120 characters");
    return ST_OK;
}

enum status agent_config_read(struct agent_config *c, const struct agent_words *words, struct err *e)
{
    *c = (struct agent_config){.policy = policy_default, .log_level = LOG_INFO};
    enum status st = read_all(c, words, e);
    if (st != ST_OK)
        agent_config_release(c);
    return st;
}
