/* Every few seconds a thread asks how much is free on the file systems of the state and of each running job's output. A job is held
   below the least, and goes on above it and a tenth more, so that it does not flutter. */
#include "daemon/guard.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/units.h"
#include "daemon/job.h"
#include "daemon/publish.h"

#define EVERY_S 5
#define MOST_WAIT_MS 600000

struct place {
    uint64_t job;
    char *path;
    uint64_t free_bytes;
    int known;
};

struct guard {
    struct daemon *d;
    uv_work_t work;
    int busy;
    unsigned second;
    char *state_dir;
    uint64_t state_free;
    int state_known;
    struct place *places;
    size_t count;
};

static void look(uv_work_t *work)
{
    struct guard *g = work->data;
    struct err e;
    g->state_known = path_free_bytes(g->state_dir, &g->state_free, &e) == ST_OK;
    for (size_t i = 0; i < g->count; i++)
        g->places[i].known = path_free_bytes(g->places[i].path, &g->places[i].free_bytes, &e) == ST_OK;
}

static void places_free(struct guard *g)
{
    for (size_t i = 0; i < g->count; i++)
        mem_free(g->places[i].path);
    mem_free(g->places);
    g->places = NULL;
    g->count = 0;
}

static void hold(struct daemon *d, uint64_t job, const char *path, uint64_t free_bytes)
{
    char text[256], units[UNITS_MAX], least[UNITS_MAX];
    snprintf(text, sizeof text, JOB_GUARD_WORDS "%s free for '%.120s', %s must stay; the job goes on by itself when there is more",
             units_bytes(units, free_bytes), path, units_bytes(least, d->config->min_free));
    struct sched_event ev = {.kind = SCHED_JOB_CONTROL, .job = job};
    ev.u.control.verb = VERB_HOLD;
    ev.u.control.text = text;
    ev.u.control.wall_ms = clock_wall_ms();
    loop_tell(d, &ev);
}

static void go_on(struct daemon *d, struct job *j)
{
    struct sched_event ev = {.kind = SCHED_JOB_CONTROL, .job = j->id};
    ev.u.control.verb = VERB_RESUME;
    ev.u.control.max_errors = UINT64_MAX - 1;
    ev.u.control.max_errors_ppm = UINT32_MAX - 1;
    ev.u.control.wall_ms = clock_wall_ms();
    uint64_t now = clock_ms();
    if (now < j->space_ms)
        return;
    /* What statvfs counts as free may be of no use (no inodes, a quota): it is tried again ever more slowly. */
    if (!j->space_wait_ms || now - j->space_ms > MOST_WAIT_MS)
        j->space_wait_ms = EVERY_S * 1000;
    else
        j->space_wait_ms = 2 * j->space_wait_ms < MOST_WAIT_MS ? 2 * j->space_wait_ms : MOST_WAIT_MS;
    j->space_ms = now + j->space_wait_ms;
    log_info("job %" PRIu64 ": there is space again", j->id);
    publish_forget(d->publish, j->id);
    loop_tell(d, &ev);
}

static void seen(uv_work_t *work, int status)
{
    (void)status;
    struct guard *g = work->data;
    struct daemon *d = g->d;
    uint64_t least = d->config->min_free, enough = least + least / 10;
    for (size_t i = 0; d->core && i < g->count; i++) {
        const struct place *p = &g->places[i];
        struct job *j = job_find(d, p->job);
        struct sched_job_view v;
        if (!j || !p->known || !g->state_known || !sched_job_view(d->core, p->job, &v))
            continue;
        int state_short = g->state_free < p->free_bytes;
        uint64_t free_bytes = state_short ? g->state_free : p->free_bytes;
        if (v.row->state == JOB_RUNNING && free_bytes < least)
            hold(d, p->job, state_short ? g->state_dir : p->path, free_bytes);
        else if (job_waits_for_space(v.row) && free_bytes >= enough)
            go_on(d, j);
    }
    places_free(g);
    g->busy = 0;
}

void guard_second(struct guard *g)
{
    struct daemon *d = g->d;
    if (g->second++ % EVERY_S || g->busy || !d->core || !d->config->min_free)
        return;
    g->places = mem_array(d->jobs->by_id.count, sizeof *g->places);
    if (!g->places)
        return; /* in five seconds */
    size_t i = 0;
    for (struct job *j; (j = map_next(&d->jobs->by_id, &i));) {
        struct sched_job_view v;
        if (!sched_job_view(d->core, j->id, &v) || !(v.row->state == JOB_RUNNING || job_waits_for_space(v.row)))
            continue;
        struct place *p = &g->places[g->count];
        p->job = j->id;
        if ((p->path = mem_strdup(j->output_path)))
            g->count++;
    }
    if (!g->count) {
        places_free(g);
        return;
    }
    g->busy = 1;
    uv_queue_work(&d->uv, &g->work, look, seen);
}

void guard_soon(struct guard *g)
{
    g->second = 0;
}

enum status guard_open(struct daemon *d, struct err *e)
{
    struct guard *g = mem_zalloc(sizeof *g);
    if (!g || !(g->state_dir = mem_strdup(d->config->state_dir))) {
        mem_free(g);
        return err_nomem(e, "the guard");
    }
    g->d = d;
    g->work.data = g;
    d->guard = g;
    return ST_OK;
}

void guard_close(struct daemon *d)
{
    if (!d->guard)
        return;
    places_free(d->guard);
    mem_free(d->guard->state_dir);
    mem_free(d->guard);
    d->guard = NULL;
}
