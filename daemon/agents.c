/* The happy path: an agent says hello and how its node is; what room there is goes to the core as the provider's limit, and what the core then wants is
   spread over the nodes that are free. A worker that an agent starts says hello by itself. How one ended its agent says, until that is noted: after a
   moment, so that what the worker sent last is read first.

   What can fail: an agent falls silent: nothing is expected of its node any more; its workers are judged by their own silence. The daemon was started anew:
   agents are asked for a hello as workers are. */
#include "daemon/agents_inside.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "daemon/job.h"

#define FORGET_MS 120000
#define WANT_AGAIN_MS 5000     /* it is told now and then, should a message have been lost; that is how it knows, too, that we live */
#define KILL_MS 5000           /* for an agent to say that a hung worker is dead */
#define STALL_MS 3000          /* we were not run ourselves: silence meanwhile is no evidence */
#define DEAF_MS 20000          /* it was told to start workers, and none has come */
#define DEAF_PAUSE_MS 60000
#define GREET_MS 60000         /* a worker that has not said hello by then never will */

/* Finding -------------------------------------------------------------------------------------------------------------------------- */

struct agent *agents_of(const struct agents *a, const struct sock_peer *peer)
{
    struct agent *x = map_find(&a->by_peer, link_peer_key(peer));
    return x && x->peer.len == peer->len && memcmp(x->peer.id, peer->id, peer->len) == 0 && x->peer.user == peer->user ? x : NULL;
}

struct guest *agents_guest(const struct agent *x, uint64_t worker)
{
    for (size_t i = 0; i < x->count; i++)
        if (x->guests[i].number == worker)
            return &x->guests[i];
    return NULL;
}

struct guest *agents_find(const struct daemon *d, uint64_t worker, struct agent **whose)
{
    size_t i = 0;
    for (struct agent *x; d->agents && (x = map_next(&d->agents->by_peer, &i));) {
        struct guest *g = agents_guest(x, worker);
        if (g) {
            *whose = x;
            return g;
        }
    }
    return NULL;
}

static int arrived(const struct daemon *d, const struct guest *g)
{
    const struct worker *w = d->link ? link_worker(d->link, g->number) : NULL;
    return w && w->joined;
}

/* It works, or can be expected to. One that is silent for long (frozen, or gone with its node) is lost to the core, which wants another in its place. */
static int counts(const struct daemon *d, const struct agent *x, const struct guest *g)
{
    const struct worker *w = d->link ? link_worker(d->link, g->number) : NULL;
    if (g->leaving)
        return 0;
    return w && w->joined ? clock_ms() - w->seen_ms <= d->config->worker_timeout : !x->silent;
}

/* Those that are there and stay. */
static uint32_t staying(const struct daemon *d, const struct agent *x, int which_arrived)
{
    uint32_t n = 0;
    for (size_t i = 0; i < x->count; i++)
        n += counts(d, x, &x->guests[i]) && arrived(d, &x->guests[i]) == which_arrived;
    return n;
}

/* An agent that promises workers and starts none does not keep others from getting the work. */
static int deaf(const struct agent *x)
{
    uint64_t now_ms = clock_ms();
    return x->short_ms && now_ms - x->short_ms > DEAF_MS;
}

static uint32_t spare(const struct agents *a, const struct agent *x)
{
    uint32_t has = (uint32_t)x->count; /* one that leaves still has its share of the node */
    return x->free && !x->silent && !a->stay && !deaf(x) && x->room > has ? x->room - has : 0;
}

/* Wishes --------------------------------------------------------------------------------------------------------------------------- */

void agents_tell_want(struct agents *a, struct agent *x, uint64_t now_ms)
{
    if (x->silent || (x->told == x->wants && x->told_ms && now_ms - x->told_ms < WANT_AGAIN_MS))
        return;
    Ebb__AgentWant m = EBB__AGENT_WANT__INIT;
    m.workers = x->wants;
    if (link_send_peer(a->d->link, &x->peer, EBB__ENVELOPE__BODY_AGENT_WANT, &m)) {
        x->told = x->wants;
        x->told_ms = now_ms;
    }
}

static void send_kill(struct agents *a, struct agent *x, uint64_t worker, int gently, const char *why)
{
    Ebb__AgentKill m = EBB__AGENT_KILL__INIT;
    m.worker = worker;
    m.gently = gently;
    m.why = (char *)(uintptr_t)why;
    if (!link_send_peer(a->d->link, &x->peer, EBB__ENVELOPE__BODY_AGENT_KILL, &m))
        log_warn("node %s: its agent cannot be told to end worker %" PRIx64, x->host, worker);
}

/* Those that have not arrived, and are too many. */
static void call_back(struct agents *a, struct agent *x, uint32_t most)
{
    for (size_t i = x->count; i-- > 0 && most;) {
        struct guest *g = &x->guests[i];
        if (g->leaving || arrived(a->d, g))
            continue;
        most--;
        g->leaving = g->called_back = 1;
        send_kill(a, x, g->number, 1, "it is not needed any more");
    }
}

/* Those that are there stay where they are; the rest goes where there is most room. */
static void spread(struct agents *a)
{
    struct daemon *d = a->d;
    if (!d->core || d->phase != LOOP_RUNNING || !d->link)
        return;
    uint32_t left = a->wanted;
    uint64_t now_ms = clock_ms();
    size_t i = 0;
    for (struct agent *x; (x = map_next(&a->by_peer, &i));) {
        x->wants = staying(d, x, 1);
        left -= x->wants < left ? x->wants : left;
    }
    i = 0;
    for (struct agent *x; (x = map_next(&a->by_peer, &i));) {
        uint32_t starting = staying(d, x, 0), keep = starting < left ? starting : left;
        if (keep < starting)
            call_back(a, x, starting - keep);
        x->wants += keep;
        left -= keep;
    }
    for (int given = 1; left && given;) { /* one to each in turn: two nodes with one worker each do more than one with two */
        given = 0;
        i = 0;
        for (struct agent *x; left && (x = map_next(&a->by_peer, &i));) {
            uint32_t has = staying(d, x, 0) + staying(d, x, 1);
            if (x->wants < has || x->wants - has >= spare(a, x))
                continue;
            x->wants++;
            left--;
            given = 1;
        }
    }
    i = 0;
    for (struct agent *x; (x = map_next(&a->by_peer, &i));) {
        int short_of = x->wants > staying(d, x, 0) + staying(d, x, 1);
        if (!short_of && !deaf(x))
            x->short_ms = 0;
        else if (short_of && !x->short_ms)
            x->short_ms = now_ms;
        else if (deaf(x) && now_ms - x->short_ms > DEAF_MS + DEAF_PAUSE_MS)
            x->short_ms = 0; /* tried again */
        agents_tell_want(a, x, now_ms);
    }
}

void agents_news(struct agents *a)
{
    provider_changed(a->d, PROVIDER_AGENT); /* the core may want another number at once, which spreads them */
    spread(a);
}

void agents_free(struct agents *a, struct agent *x)
{
    map_remove(&a->by_peer, link_peer_key(&x->peer));
    mem_free(x->guests);
    mem_free(x);
}

/* The provider ----------------------------------------------------------------------------------------------------------------------- */

static enum status open_agents(struct daemon *d, struct err *e)
{
    struct agents *a = mem_zalloc(sizeof *a);
    if (!a)
        return err_nomem(e, "the agents");
    a->d = d;
    uv_timer_init(&d->uv, &a->timer);
    a->timer.data = a;
    d->agents = a;
    return ST_OK;
}

static void on_closed(uv_handle_t *h)
{
    mem_free(h->data);
}

static void close_agents(struct daemon *d)
{
    struct agents *a = d->agents;
    if (!a)
        return;
    size_t i = 0;
    for (struct agent *x; (x = map_next(&a->by_peer, &i));) {
        mem_free(x->guests);
        mem_free(x);
    }
    map_release(&a->by_peer);
    agents_endings_free(a);
    d->agents = NULL;
    uv_close((uv_handle_t *)&a->timer, on_closed);
}

/* What lives counts, frozen or leaving too: the core must not send busy ones of other nodes away for it. */
static void terms(const struct daemon *d, struct provider_terms *out)
{
    const struct agents *a = d->agents;
    size_t i = 0;
    *out = (struct provider_terms){.preemptible = 1, .idle_ms = d->config->idle_ms};
    for (const struct agent *x; (x = map_next(&a->by_peer, &i));)
        out->limit += (x->silent ? staying(d, x, 1) : (uint32_t)x->count) + spare(a, x);
}

static void want(struct daemon *d, uint32_t workers)
{
    d->agents->wanted = workers;
    spread(d->agents);
}

static int owns(const struct daemon *d, uint64_t worker)
{
    struct agent *whose;
    return agents_find(d, worker, &whose) != NULL;
}

static void kill_hung(struct daemon *d, uint64_t worker, const char *why)
{
    struct agent *x = NULL;
    struct guest *g = agents_find(d, worker, &x);
    g->leaving = 1;
    g->kill_ms = clock_ms();
    send_kill(d->agents, x, worker, 0, why);
}

static void leaving(struct daemon *d, uint64_t worker)
{
    struct agent *x;
    struct guest *g = agents_find(d, worker, &x);
    g->leaving = 1;
    spread(d->agents);
}

static void second(struct daemon *d)
{
    struct agents *a = d->agents;
    uint64_t now_ms = clock_ms();
    int stalled = a->second_ms && now_ms - a->second_ms > STALL_MS, changed = 0;
    size_t i = 0;
    a->second_ms = now_ms;
    for (struct agent *x; (x = map_next(&a->by_peer, &i));) {
        if (stalled)
            x->seen_ms = now_ms;
        if (!x->silent && now_ms - x->seen_ms > AGENTS_SILENT_MS) {
            log_warn("node %s: its agent is silent", x->host);
            x->silent = changed = 1;
        }
        for (size_t k = 0; k < x->count; k++) {
            struct guest *g = &x->guests[k];
            if (!g->leaving && !arrived(d, g) && now_ms - g->seen_ms > GREET_MS) {
                log_warn("node %s: worker %" PRIx64 " has not said hello for %d s and is sent away", x->host, g->number, GREET_MS / 1000);
                g->leaving = changed = 1;
                send_kill(a, x, g->number, 0, "it has not said hello");
            }
            if (g->kill_ms && now_ms - g->kill_ms > KILL_MS) {
                /* Its agent says nothing; the core must not wait for it. */
                g->kill_ms = 0;
                link_ended(d->link, g->number, WORKER_HUNG, NULL, 0);
                return; /* tables may have changed; the rest has its turn in a second */
            }
        }
        if (x->silent && now_ms - x->seen_ms > FORGET_MS) {
            log_info("node %s: forgotten", x->host);
            agents_free(a, x);
            break; /* the table has changed */
        }
    }
    if (changed)
        agents_news(a);
    else
        spread(a);
}

static size_t starting(const struct daemon *d, provider_visit *visit, void *arg)
{
    const struct agents *a = d->agents;
    size_t n = 0, i = 0;
    for (struct agent *x; (x = map_next(&a->by_peer, &i));)
        for (size_t k = 0; k < x->count; k++) {
            const struct guest *g = &x->guests[k];
            if (g->leaving || arrived(d, g))
                continue;
            n++;
            if (visit)
                visit(arg, g->number, g->name, g->pid, g->seen_ms);
        }
    return n;
}

/* Nodes there are, and none is free: the one that was seen first says why. */
static const char *trouble(const struct daemon *d)
{
    struct agents *a = d->agents;
    const struct agent *first = NULL;
    size_t i = 0;
    for (const struct agent *x; (x = map_next(&a->by_peer, &i));) {
        if (x->silent || !x->stated)
            continue;
        if (x->count || spare(a, x))
            return "";
        if (!first || x->joined_ms < first->joined_ms)
            first = x;
    }
    if (!first)
        return "";
    snprintf(a->trouble, sizeof a->trouble, "%zu node%s offer%s %s, none is free now (%.100s: %.200s)", a->by_peer.count, a->by_peer.count == 1 ? "" : "s",
             a->by_peer.count == 1 ? "s" : "", a->by_peer.count == 1 ? "itself" : "themselves", first->host,
             *first->reason ? first->reason : first->state);
    return a->trouble;
}

static void stay(struct daemon *d, int on)
{
    d->agents->stay = on;
    spread(d->agents);
}

const struct provider provider_agent = {.id = PROVIDER_AGENT,
                                        .open = open_agents,
                                        .close = close_agents,
                                        .terms = terms,
                                        .want = want,
                                        .owns = owns,
                                        .kill = kill_hung,
                                        .leaving = leaving,
                                        .bye = leaving,
                                        .second = second,
                                        .starting = starting,
                                        .trouble = trouble,
                                        .stay = stay};

/* For people ------------------------------------------------------------------------------------------------------------------------- */

json_t *agents_dress(const struct daemon *d, uint64_t worker, json_t *o)
{
    struct agent *x;
    const struct guest *g = agents_find(d, worker, &x);
    if (!o || !g || strcmp(g->state, "frozen"))
        return o;
    if (json_object_set_new(o, "state", json_string(g->state)) || json_object_set_new(o, "lease", json_string(x->reason)) ||
        json_object_set_new(o, "since_s", json_real((double)(clock_ms() - g->since_ms) / 1000))) {
        json_decref(o);
        return NULL;
    }
    return o;
}

static const char *state_word(const struct agent *x)
{
    return x->silent ? "silent" : x->stated ? x->state : "new";
}

void agents_visit(const struct daemon *d, void (*node)(void *arg, const char *state), void (*worker)(void *arg, uint64_t number, const char *state), void *arg)
{
    size_t i = 0;
    for (const struct agent *x; d->agents && (x = map_next(&d->agents->by_peer, &i));) {
        node(arg, state_word(x));
        for (size_t k = 0; k < x->count; k++)
            worker(arg, x->guests[k].number, x->guests[k].state);
    }
}

json_t *agents_json(const struct daemon *d)
{
    const struct agents *a = d->agents;
    json_t *list = json_array();
    uint64_t now_ms = clock_ms();
    size_t i = 0;
    for (const struct agent *x; list && (x = map_next(&a->by_peer, &i));) {
        const char *state = state_word(x);
        json_t *o = json_pack("{s:s, s:s, s:s, s:f, s:i, s:i, s:i, s:i, s:f, s:I, s:I, s:s}", "host", x->host, "state", state, "reason", x->silent ? "" : x->reason,
                              "since_s", (double)(now_ms - (x->silent ? x->seen_ms : x->stated ? x->state_since_ms : x->joined_ms)) / 1000, "workers",
                              (int)x->count, "wanted", (int)x->wants, "room", (int)x->room, "cores", (int)x->cores, "load_of_others", x->load_of_others,
                              "memory_bytes", (json_int_t)x->memory_bytes, "memory_available_bytes", (json_int_t)x->available_bytes, "program", x->program);
        if (!o || json_array_append_new(list, o)) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}
