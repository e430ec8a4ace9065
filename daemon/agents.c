/* The happy path: an agent says hello and how its node is; what room there is goes to the core as the provider's limit, and what the core then wants is
   spread over the nodes that are free. A worker that an agent starts says hello by itself. How one ended its agent says, until that is noted: after a
   moment, so that what the worker sent last is read first.

   What can fail: an agent falls silent: nothing is expected of its node any more; its workers are judged by their own silence. The daemon was started anew:
   agents are asked for a hello as workers are. */
#include "daemon/agents.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/ending.h"
#include "base/mem.h"
#include "daemon/job.h"
#include "daemon/words.h"

#define MOST_AGENTS 20000
#define MOST_GUESTS 1024
#define MOST_SUSPECTS 65536
#define MOST_ENDINGS 10000
#define SILENT_MS 6000         /* an agent speaks every second */
#define FORGET_MS 120000
#define WANT_AGAIN_MS 5000     /* it is told now and then, should a message have been lost; that is how it knows, too, that we live */
#define LAST_WORDS_MS 150      /* what a worker sent before its end is read first */
#define KILL_MS 5000           /* for an agent to say that a hung worker is dead */
#define STALL_MS 3000          /* we were not run ourselves: silence meanwhile is no evidence */
#define GREET_MS 60000         /* a worker that has not said hello by then never will */

struct guest {
    uint64_t number;
    char name[128], state[12];
    uint32_t pid;
    uint64_t since_ms;         /* of the state */
    uint64_t seen_ms;          /* when its agent named it first */
    int leaving;               /* it, its agent or the core says so: it counts no more */
    int called_back;
    uint64_t kill_ms;          /* told to kill it; 0: was not */
    int named;                 /* in the message that is being read */
};

struct agent {
    uint64_t number, seen_ms, state_since_ms, joined_ms;
    struct sock_peer peer;
    char host[128], program[64], state[12], reason[240];
    uint32_t cores, pid, room, told, wants; /* workers: that it was told, that it is to have */
    uint64_t memory_bytes, available_bytes, told_ms;
    double load_of_others;
    int free, silent, stated;
    struct guest *guests;
    size_t count, cap;
};

struct ending {
    struct ending *next;
    uint64_t worker, due_ms;
    struct sock_peer peer;
    enum worker_end how;
    struct sched_suspect *suspects;
    size_t count;
    char text[240];
};

struct agents {
    struct daemon *d;
    struct map by_peer;
    uint32_t wanted;
    int stay;
    uint64_t second_ms;
    struct ending *endings;
    size_t ending_count;
    uv_timer_t timer;          /* runs while there are endings */
    char trouble[400];
};

/* Finding -------------------------------------------------------------------------------------------------------------------------- */

static struct agent *agent_of(const struct agents *a, const struct sock_peer *peer)
{
    struct agent *x = map_find(&a->by_peer, link_peer_key(peer));
    return x && x->peer.len == peer->len && memcmp(x->peer.id, peer->id, peer->len) == 0 ? x : NULL;
}

static struct guest *guest_of(const struct agent *x, uint64_t worker)
{
    for (size_t i = 0; i < x->count; i++)
        if (x->guests[i].number == worker)
            return &x->guests[i];
    return NULL;
}

static struct guest *find(const struct daemon *d, uint64_t worker, struct agent **whose)
{
    size_t i = 0;
    for (struct agent *x; d->agents && (x = map_next(&d->agents->by_peer, &i));) {
        struct guest *g = guest_of(x, worker);
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

/* Those that are there and stay. */
static uint32_t staying(const struct daemon *d, const struct agent *x, int which_arrived)
{
    uint32_t n = 0;
    for (size_t i = 0; i < x->count; i++)
        n += !x->guests[i].leaving && arrived(d, &x->guests[i]) == which_arrived;
    return n;
}

static uint32_t spare(const struct agents *a, const struct agent *x)
{
    uint32_t has = (uint32_t)x->count; /* one that leaves still has its share of the node */
    return x->free && !x->silent && !a->stay && x->room > has ? x->room - has : 0;
}

/* Wishes --------------------------------------------------------------------------------------------------------------------------- */

static void tell_want(struct agents *a, struct agent *x, uint64_t now_ms)
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
    for (struct agent *x; (x = map_next(&a->by_peer, &i));)
        tell_want(a, x, now_ms);
}

static void news(struct agents *a)
{
    provider_changed(a->d, PROVIDER_AGENT); /* the core may want another number at once, which spreads them */
    spread(a);
}

/* What agents say ------------------------------------------------------------------------------------------------------------------ */

static void take_text(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%s", from ? from : "");
    words_tidy(to);
}

static void agent_free(struct agents *a, struct agent *x)
{
    map_remove(&a->by_peer, link_peer_key(&x->peer));
    mem_free(x->guests);
    mem_free(x);
}

static void on_hello(struct agents *a, const struct sock_peer *peer, const Ebb__AgentHello *m)
{
    char text[300];
    if (m->version_min > WIRE_VERSION || m->version_max < WIRE_VERSION_MIN) {
        snprintf(text, sizeof text, "it speaks versions %u to %u of the protocol, this ebbd %u to %u: install the same version of both", m->version_min,
                 m->version_max, WIRE_VERSION_MIN, WIRE_VERSION);
        link_send_refused(a->d->link, peer, text);
        return;
    }
    struct agent *x = agent_of(a, peer);
    if (!x && a->by_peer.count >= MOST_AGENTS) {
        link_send_refused(a->d->link, peer, "this ebbd knows as many agents as it can");
        return;
    }
    int again = x != NULL, other_process = again && x->pid != m->pid;
    if (!x) {
        x = mem_zalloc(sizeof *x);
        struct agent *other = map_find(&a->by_peer, link_peer_key(peer));
        if (other) /* its like by chance */
            agent_free(a, other);
        if (!x || map_add(&a->by_peer, link_peer_key(peer), x)) {
            struct err e;
            mem_free(x);
            err_nomem(&e, "an agent");
            loop_fatal(a->d, &e);
        }
        x->joined_ms = clock_ms();
    }
    x->number = m->agent;
    x->peer = *peer;
    x->pid = m->pid;
    x->cores = m->cores;
    x->memory_bytes = m->memory_bytes;
    x->seen_ms = clock_ms();
    x->silent = 0;
    x->told_ms = 0; /* it knows nothing of us */
    if (other_process) { /* its workers died with it; it says what it has, and how they ended */
        x->stated = x->free = 0;
        x->room = 0;
        x->count = 0;
    }
    take_text(x->host, sizeof x->host, m->host);
    take_text(x->program, sizeof x->program, m->program);
    log_info("node %s: its agent %s (pid %u), %u cores", x->host, other_process ? "was started anew" : again ? "says hello again" : "offers it", m->pid, m->cores);
    link_send_welcome(a->d->link, peer);
}

static void on_state(struct agents *a, struct agent *x, const Ebb__AgentState *m)
{
    uint64_t now_ms = clock_ms();
    char state[sizeof x->state], reason[sizeof x->reason];
    int changed = x->silent || !x->stated;
    take_text(state, sizeof state, m->state);
    take_text(reason, sizeof reason, m->reason);
    if (!x->stated || strcmp(state, x->state)) {
        log_info("node %s: %s%s%s", x->host, state, *reason ? ": " : "", reason);
        x->state_since_ms = now_ms;
        changed = 1;
    }
    memcpy(x->state, state, sizeof state);
    memcpy(x->reason, reason, sizeof reason);
    changed |= x->room != m->room;
    x->stated = 1;
    x->silent = 0;
    x->free = strcmp(state, "free") == 0;
    x->room = m->room;
    x->load_of_others = m->load_of_others;
    x->available_bytes = m->memory_available_bytes;
    for (size_t i = 0; i < x->count; i++)
        x->guests[i].named = 0;
    for (size_t i = 0; i < m->n_guests; i++) {
        struct guest *g = guest_of(x, m->guests[i]->worker);
        char word[sizeof g->state];
        take_text(word, sizeof word, m->guests[i]->state);
        if (!g) {
            if (mem_grow((void **)&x->guests, &x->cap, x->count, sizeof *x->guests)) {
                struct err e;
                err_nomem(&e, "an agent's workers");
                loop_fatal(a->d, &e);
            }
            g = &x->guests[x->count++];
            *g = (struct guest){.number = m->guests[i]->worker, .pid = m->guests[i]->pid, .seen_ms = now_ms};
            take_text(g->name, sizeof g->name, m->guests[i]->name);
            changed = 1;
        }
        if (strcmp(g->state, word)) {
            memcpy(g->state, word, sizeof word);
            g->since_ms = now_ms;
            changed = 1;
        }
        g->named = 1;
        g->leaving |= strcmp(word, "leaving") == 0;
    }
    size_t kept = 0;
    for (size_t i = 0; i < x->count; i++)
        if (x->guests[i].named)
            x->guests[kept++] = x->guests[i];
    changed |= kept != x->count;
    x->count = kept;
    if (changed)
        news(a);
    else
        tell_want(a, x, now_ms);
}

/* Endings -------------------------------------------------------------------------------------------------------------------------- */

static void on_timer(uv_timer_t *t);

static void note(struct agents *a, const struct sock_peer *peer, uint64_t worker)
{
    Ebb__AgentNoted m = EBB__AGENT_NOTED__INIT;
    m.worker = worker;
    if (!link_send_peer(a->d->link, peer, EBB__ENVELOPE__BODY_AGENT_NOTED, &m))
        log_debug("an ending cannot be noted yet");
}

static void on_ended(struct agents *a, struct agent *x, const Ebb__AgentEnded *m)
{
    struct agent *whose = NULL;
    const struct worker *w = link_worker(a->d->link, m->worker);
    struct guest *g = find(a->d, m->worker, &whose);
    if ((g && whose != x) || (w && (strcmp(w->host, x->host) || w->peer.user != x->peer.user))) {
        log_warn("node %s: its agent speaks of a worker that is not of this node; that is ignored", x->host);
        note(a, &x->peer, m->worker);
        return;
    }
    for (struct ending *e = a->endings; e; e = e->next)
        if (e->worker == m->worker)
            return; /* it says so again */
    struct ending *e = a->ending_count < MOST_ENDINGS ? mem_zalloc(sizeof *e) : NULL;
    if (!e || !(e->suspects = mem_array(m->n_suspects, sizeof *e->suspects))) {
        mem_free(e);
        log_warn("node %s: too many endings at once; it will say so again", x->host);
        return;
    }
    e->worker = m->worker;
    e->peer = x->peer;
    e->due_ms = clock_ms() + LAST_WORDS_MS;
    e->how = (enum worker_end)m->how;
    take_text(e->text, sizeof e->text, m->text);
    for (size_t i = 0; i < m->n_suspects; i++)
        if (m->suspects[i]->record && m->suspects[i]->record->begin < m->suspects[i]->record->end)
            e->suspects[e->count++] =
                (struct sched_suspect){m->suspects[i]->job, m->suspects[i]->epoch, {m->suspects[i]->record->begin, m->suspects[i]->record->end}};
    struct ending **at = &a->endings;
    while (*at)
        at = &(*at)->next;
    *at = e;
    a->ending_count++;
    if (g)
        g->leaving = 1;
    if (!uv_is_active((uv_handle_t *)&a->timer))
        uv_timer_start(&a->timer, on_timer, LAST_WORDS_MS, LAST_WORDS_MS / 3);
}

static void drop_guest(struct agents *a, uint64_t worker)
{
    struct agent *whose = NULL;
    struct guest *g = find(a->d, worker, &whose);
    if (g)
        *g = whose->guests[--whose->count];
}

static void on_timer(uv_timer_t *t)
{
    struct agents *a = t->data;
    uint64_t now_ms = clock_ms();
    static const char *const words[] = {
#define X(name, word, guilt) [WORKER_##name] = word,
        WORKER_END_MAP(X)
#undef X
    };
    for (struct ending **at = &a->endings, *e; (e = *at);) {
        const struct worker *w = a->d->core ? link_worker(a->d->link, e->worker) : NULL;
        if (now_ms < e->due_ms || !a->d->core || (w && w->verifying)) {
            at = &e->next;
            continue;
        }
        log_info("worker %s: ended: %s, %s, %zu records were in it", w ? w->name : "of an agent", words[e->how], e->text, e->count);
        *at = e->next;
        a->ending_count--;
        drop_guest(a, e->worker);
        link_ended(a->d->link, e->worker, e->how, e->suspects, e->count);
        note(a, &e->peer, e->worker);
        mem_free(e->suspects);
        mem_free(e);
        news(a);
        at = &a->endings; /* telling may have changed the list */
    }
    if (!a->endings)
        uv_timer_stop(&a->timer);
}

int agents_says(const Ebb__Envelope *m)
{
    return m->body_case == EBB__ENVELOPE__BODY_AGENT_HELLO || m->body_case == EBB__ENVELOPE__BODY_AGENT_STATE ||
           m->body_case == EBB__ENVELOPE__BODY_AGENT_ENDED;
}

const char *agents_said(struct daemon *d, const struct sock_peer *peer, const Ebb__Envelope *m)
{
    struct agents *a = d->agents;
    struct agent *x = agent_of(a, peer);
    if (x && x->peer.user != peer->user)
        return "an agent under the number of another that came with another key";
    if (x)
        x->seen_ms = clock_ms();
    switch (m->body_case) {
    case EBB__ENVELOPE__BODY_AGENT_HELLO:
        if (!m->agent_hello->agent || !m->agent_hello->host || !*m->agent_hello->host || !m->agent_hello->cores)
            return "a hello of an agent without number, host or cores";
        on_hello(a, peer, m->agent_hello);
        return NULL;
    case EBB__ENVELOPE__BODY_AGENT_STATE:
        if (m->agent_state->n_guests > MOST_GUESTS || m->agent_state->room > MOST_GUESTS)
            return "an agent with too many workers";
        for (size_t i = 0; i < m->agent_state->n_guests; i++)
            if (!m->agent_state->guests[i]->worker)
                return "an agent's worker without a number";
        break;
    case EBB__ENVELOPE__BODY_AGENT_ENDED:
        if (!m->agent_ended->worker || m->agent_ended->how >= WORKER_ENDS || m->agent_ended->n_suspects > MOST_SUSPECTS)
            return "an ending of no known kind";
        break;
    default:
        BUG("a message of kind %d is no agent's", (int)m->body_case);
    }
    if (!x)
        link_ask_stranger(d->link, peer); /* an earlier daemon knew it */
    else if (m->body_case == EBB__ENVELOPE__BODY_AGENT_STATE)
        on_state(a, x, m->agent_state);
    else
        on_ended(a, x, m->agent_ended);
    return NULL;
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
    while (a->endings) { /* not noted: their agents say so again */
        struct ending *e = a->endings;
        a->endings = e->next;
        mem_free(e->suspects);
        mem_free(e);
    }
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
        out->limit += (uint32_t)x->count + spare(a, x);
}

static void want(struct daemon *d, uint32_t workers)
{
    d->agents->wanted = workers;
    spread(d->agents);
}

static int owns(const struct daemon *d, uint64_t worker)
{
    struct agent *whose;
    return find(d, worker, &whose) != NULL;
}

static void kill_hung(struct daemon *d, uint64_t worker, const char *why)
{
    struct agent *x = NULL;
    struct guest *g = find(d, worker, &x);
    g->leaving = 1;
    g->kill_ms = clock_ms();
    send_kill(d->agents, x, worker, 0, why);
}

static void leaving(struct daemon *d, uint64_t worker)
{
    struct agent *x;
    struct guest *g = find(d, worker, &x);
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
        if (!x->silent && now_ms - x->seen_ms > SILENT_MS) {
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
            agent_free(a, x);
            break; /* the table has changed */
        }
    }
    if (changed)
        news(a);
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
    const struct guest *g = find(d, worker, &x);
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
