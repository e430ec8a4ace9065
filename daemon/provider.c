#include "daemon/provider.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/log.h"
#include "daemon/agents.h"

static const struct provider *const all[] = {&provider_local, &provider_agent, &provider_slurm, &provider_kubernetes};
#define COUNT (sizeof all / sizeof *all)

static const struct provider *owner_of(const struct daemon *d, uint64_t worker)
{
    for (size_t i = 0; i < COUNT; i++)
        if (all[i]->owns && all[i]->owns(d, worker))
            return all[i];
    return NULL;
}

enum status provider_open(struct daemon *d, struct err *e)
{
    for (size_t i = 0; i < COUNT; i++)
        if (all[i]->open)
            TRY(all[i]->open(d, e));
    return ST_OK;
}

void provider_close(struct daemon *d)
{
    for (size_t i = COUNT; i-- > 0;)
        if (all[i]->close)
            all[i]->close(d);
}

void provider_changed(struct daemon *d, enum provider_id id)
{
    struct provider_terms now, *told = &d->provider_terms[id];
    for (size_t i = 0; i < COUNT; i++) {
        if (all[i]->id != id)
            continue;
        now = (struct provider_terms){0};
        all[i]->terms(d, &now);
        if (!d->core || (d->provider_told[id] && now.limit == told->limit && now.preemptible == told->preemptible && now.idle_ms == told->idle_ms))
            return;
        if (!d->provider_told[id] && !now.limit)
            return; /* is not in use: whoever says that it is of this provider has come by itself */
        *told = now;
        d->provider_told[id] = 1;
        struct sched_event ev = {.kind = SCHED_PROVIDER};
        ev.u.provider.id = id;
        ev.u.provider.limit = now.limit;
        ev.u.provider.preemptible = now.preemptible;
        ev.u.provider.idle_ms = now.idle_ms;
        loop_tell(d, &ev);
    }
}

void provider_tell(struct daemon *d)
{
    for (size_t i = 0; i < COUNT; i++) {
        d->provider_told[all[i]->id] = 0;
        provider_changed(d, all[i]->id);
    }
}

void provider_recovered(struct daemon *d)
{
    for (size_t i = 0; i < COUNT; i++)
        if (all[i]->recovered)
            all[i]->recovered(d);
}

void provider_reload(struct daemon *d)
{
    for (size_t i = 0; i < COUNT; i++) {
        if (all[i]->stay)
            all[i]->stay(d, 0);
        provider_changed(d, all[i]->id);
    }
}

void provider_second(struct daemon *d)
{
    for (size_t i = 0; i < COUNT; i++) {
        provider_changed(d, all[i]->id);
        if (all[i]->second)
            all[i]->second(d);
    }
}

void provider_want(struct daemon *d, uint32_t id, uint32_t workers)
{
    if (d->wanted[id] != workers)
        log_info("provider %s: %" PRIu32 " workers are wanted", provider_id_word(id), workers);
    d->wanted[id] = workers;
    for (size_t i = 0; i < COUNT; i++)
        if (all[i]->id == id)
            all[i]->want(d, workers);
}

uint32_t provider_of(const struct daemon *d, uint64_t worker)
{
    const struct provider *p = owner_of(d, worker);
    return p ? p->id : PROVIDER_NONE;
}

void provider_kill(struct daemon *d, uint64_t worker, const char *why)
{
    const struct provider *p = owner_of(d, worker);
    const struct worker *w = link_worker(d->link, worker);
    log_warn("worker %s: is to be killed: %s", w ? w->name : "?", why);
    if (p && p->kill)
        p->kill(d, worker, why);
    else /* nobody here can kill it; it gets nothing before it has said hello anew, and its commits are stale */
        link_ended(d->link, worker, WORKER_HUNG, NULL, 0);
}

void provider_leaving(struct daemon *d, uint64_t worker)
{
    const struct provider *p = owner_of(d, worker);
    if (p && p->leaving)
        p->leaving(d, worker);
}

void provider_hello(struct daemon *d, const struct worker *w)
{
    const struct provider *p = owner_of(d, w->number);
    if (p && p->hello)
        p->hello(d, w);
}

void provider_bye(struct daemon *d, uint64_t worker)
{
    const struct provider *p = owner_of(d, worker);
    if (p && p->bye)
        p->bye(d, worker);
}

size_t provider_starting(const struct daemon *d, provider_visit *visit, void *arg)
{
    size_t n = 0;
    for (size_t i = 0; i < COUNT; i++)
        if (all[i]->starting)
            n += all[i]->starting(d, visit, arg);
    return n;
}

size_t provider_starting_of(const struct daemon *d, enum provider_id id)
{
    for (size_t i = 0; i < COUNT; i++)
        if (all[i]->id == id && all[i]->starting)
            return all[i]->starting(d, NULL, NULL);
    return 0;
}

const char *provider_trouble(const struct daemon *d)
{
    const char *first = "";
    for (size_t i = 0; i < COUNT; i++) {
        const char *text = all[i]->trouble ? all[i]->trouble(d) : "";
        if (!*text && d->provider_told[all[i]->id] && d->provider_terms[all[i]->id].limit)
            return ""; /* this one can */
        if (!*first)
            first = text;
    }
    return first;
}

void provider_examine(const struct daemon *d, void (*say)(void *arg, const char *name, int ok, const char *text), void *arg)
{
    for (size_t i = 0; i < COUNT; i++) {
        struct provider_terms now = {0};
        all[i]->terms(d, &now);
        if (!now.limit)
            continue;
        const char *trouble = all[i]->trouble ? all[i]->trouble(d) : "";
        char text[800];
        if (*trouble)
            snprintf(text, sizeof text, "%s", trouble);
        else
            snprintf(text, sizeof text, "%s workers, at most %" PRIu32 ": %" PRIu32 " wanted, %zu on the way", now.preemptible ? "preemptible" : "guaranteed",
                     now.limit, d->wanted[all[i]->id], all[i]->starting ? all[i]->starting(d, NULL, NULL) : 0);
        say(arg, provider_id_word(all[i]->id), !*trouble || (all[i]->queues && all[i]->queues(d)), text);
    }
}

void provider_stay(struct daemon *d, int stay)
{
    for (size_t i = 0; i < COUNT; i++) {
        if (all[i]->stay)
            all[i]->stay(d, stay);
        provider_changed(d, all[i]->id);
    }
}

void provider_stop(struct daemon *d, int now)
{
    for (size_t i = 0; i < COUNT; i++)
        if (all[i]->stop)
            all[i]->stop(d, now);
}

size_t provider_left(const struct daemon *d)
{
    size_t n = 0;
    for (size_t i = 0; i < COUNT; i++)
        if (all[i]->left)
            n += all[i]->left(d);
    return n;
}
