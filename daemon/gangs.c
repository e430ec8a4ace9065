#include "daemon/gangs.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/clock.h"
#include "daemon/link.h"

static json_t *number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static json_t *members_json(struct daemon *d, const struct sched_gang_view *v)
{
    json_t *list = json_array();
    for (uint32_t i = 0; list && i < v->count; i++) {
        const struct sched_member *m = &v->members[i];
        const struct worker *w = link_worker(d->link, m->worker);
        char id[24];
        snprintf(id, sizeof id, "%016" PRIx64, m->worker);
        if (json_array_append_new(list, json_pack("{s:s, s:s, s:b, s:I, s:I, s:f, s:o, s:b}", "worker", id, "name", w ? w->name : m->worker ? id : "gone", "head", m->worker == v->head,
                                                  "first", (json_int_t)m->first + 1, "last", (json_int_t)m->end, "share",
                                                  v->segments ? (double)(m->end - m->first) / v->segments : 0.0, "load_ms", number(v->load_ms[i]), "ready", v->ready[i]))) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

json_t *gangs_json(struct daemon *d, uint64_t job)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < sched_gang_count(d->core); i++) {
        struct sched_gang_view v;
        char name[24];
        sched_gang_view(d->core, i, &v);
        if (v.job != job)
            continue;
        snprintf(name, sizeof name, "%" PRIx64, v.gang);
        double per_s = v.bottleneck_ms > 0 ? 1000 / v.bottleneck_ms : 0;
        json_t *members = members_json(d, &v);
        json_t *o = members ? json_pack("{s:s, s:s, s:I, s:I, s:f, s:o, s:o, s:o, s:f, s:o}", "gang", name, "state", v.running ? "running" : "loading", "cut",
                                        (json_int_t)v.cut, "segments", (json_int_t)v.segments, "since_s", (double)(clock_ms() - v.since_ms) / 1000, "bottleneck_ms",
                                        number(v.bottleneck_ms), "batches_per_s", number(per_s), "gap", number(v.gap), "records_per_s", v.records_per_s, "members", members)
                            : NULL;
        if (json_array_append_new(list, o)) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

char *gangs_words(struct daemon *d, uint64_t job, char *out, size_t size)
{
    size_t gangs = 0, workers = 0;
    out[0] = 0;
    for (size_t i = 0; i < sched_gang_count(d->core); i++) {
        struct sched_gang_view v;
        sched_gang_view(d->core, i, &v);
        if (v.job != job || !v.running)
            continue;
        gangs++;
        workers += v.count;
    }
    if (gangs == 1)
        snprintf(out, size, "a pipeline of %zu workers", workers);
    else if (gangs)
        snprintf(out, size, "%zu pipelines of %zu workers", gangs, workers);
    return out;
}

int gangs_write_metrics(const struct daemon *d, struct buf *out)
{
    uint64_t states[2] = {0}, members = 0;
    for (size_t i = 0; d->core && i < sched_gang_count(d->core); i++) {
        struct sched_gang_view v;
        sched_gang_view(d->core, i, &v);
        states[v.running != 0]++;
        members += v.count;
    }
    return buf_printf(out,
                      "# HELP ebb_pipelines Pipelines over several workers, by state; loading: its workers load their parts of the model.\n# TYPE ebb_pipelines gauge\n"
                      "ebb_pipelines{state=\"loading\"} %" PRIu64 "\nebb_pipelines{state=\"running\"} %" PRIu64 "\n"
                      "# HELP ebb_pipeline_workers Workers that are in a pipeline.\n# TYPE ebb_pipeline_workers gauge\nebb_pipeline_workers %" PRIu64 "\n",
                      states[0], states[1], members);
}
