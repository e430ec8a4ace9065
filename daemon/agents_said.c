/* What agents say, and what becomes of it. How a worker ended waits a moment, so that what the worker sent last is read first. */
#include "daemon/agents_inside.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "daemon/job.h"
#include "daemon/words.h"

#define MOST_AGENTS 20000
#define MOST_GUESTS 1024
#define MOST_SUSPECTS 65536
#define MOST_ENDINGS 10000
#define LAST_WORDS_MS 150      /* what a worker sent before its end is read first */

/* What agents say ------------------------------------------------------------------------------------------------------------------ */

static void take_text(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%s", from ? from : "");
    words_tidy(to);
}

static struct agent *by_number(const struct agents *a, uint64_t number)
{
    size_t i = 0;
    for (struct agent *x; (x = map_next(&a->by_peer, &i));)
        if (x->number == number)
            return x;
    return NULL;
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
    struct agent *x = agents_of(a, peer), *other = x ? NULL : by_number(a, m->agent), *named = map_find(&a->by_peer, link_peer_key(peer));
    if ((other && other->peer.user != peer->user && clock_ms() - other->seen_ms <= AGENTS_SILENT_MS) ||
        (named && named->peer.user != peer->user && clock_ms() - named->seen_ms <= AGENTS_SILENT_MS)) {
        link_send_refused(a->d->link, peer, "it comes under the number of an agent that came with another key, and speaks");
        return;
    }
    if (!x && !other && a->by_peer.count >= MOST_AGENTS) {
        link_send_refused(a->d->link, peer, "this ebbd knows as many agents as it can");
        return;
    }
    if (other) { /* started anew, or it has made a new connection */
        map_remove(&a->by_peer, link_peer_key(&other->peer));
        x = other;
    }
    int again = x != NULL, other_process = again && x->pid != m->pid;
    if (named && named != x) /* another one by that name, by chance or by ill will */
        agents_free(a, named);
    if (!x)
        x = mem_zalloc(sizeof *x);
    if (!x || map_add(&a->by_peer, link_peer_key(peer), x)) {
        struct err e;
        err_nomem(&e, "an agent");
        loop_fatal(a->d, &e);
    }
    if (!again)
        x->joined_ms = clock_ms();
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

/* A guest that has come is of this node, and came with the same key. */
static int strangers(const struct agents *a, const struct agent *x, uint64_t worker)
{
    const struct worker *w = link_worker(a->d->link, worker);
    return w && (strcmp(w->host, x->host) || w->peer.user != x->peer.user);
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
    x->load_of_others = isfinite(m->load_of_others) && m->load_of_others > 0 ? m->load_of_others : 0; /* JSON knows no others */
    x->available_bytes = m->memory_available_bytes;
    for (size_t i = 0; i < x->count; i++)
        x->guests[i].named = 0;
    for (size_t i = 0; i < m->n_guests; i++) {
        struct guest *g = agents_guest(x, m->guests[i]->worker);
        char word[sizeof g->state];
        if (strangers(a, x, m->guests[i]->worker))
            continue;
        take_text(word, sizeof word, m->guests[i]->state);
        if (!g) {
            if (mem_grow((void **)&x->guests, &x->cap, x->count, sizeof *x->guests)) {
                struct err e;
                err_nomem(&e, "an agent's workers");
                loop_fatal(a->d, &e);
            }
            g = &x->guests[x->count++];
            x->short_ms = 0;
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
        agents_news(a);
    else
        agents_tell_want(a, x, now_ms);
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
    struct guest *g = agents_find(a->d, m->worker, &whose);
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
    struct guest *g = agents_find(a->d, worker, &whose);
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
        agents_news(a);
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
    struct agent *x = agents_of(a, peer);
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

void agents_endings_free(struct agents *a)
{
    while (a->endings) { /* not noted: their agents say so again */
        struct ending *e = a->endings;
        a->endings = e->next;
        mem_free(e->suspects);
        mem_free(e);
    }
}
