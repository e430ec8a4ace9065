/* The happy path: AgentHello -> Welcome, AgentWant; AgentState every second and whenever something changes; AgentEnded for each guest that is gone, until
   AgentNoted.

   What can fail: the connection goes, or the daemon is started anew: ZeroMQ connects again and we say hello; a Welcome that we did not ask for asks for one,
   too. Our key is refused: ZeroMQ gives up for good, so the socket is made anew, in case somebody lets us in. */
#include "workers/agent/talk.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "wire/process.h"
#include "wire/sock.h"
#include "workers/agent/config.h"

#define HELLO_AGAIN_MS 2000
#define STATE_MS 1000
#define ENDED_AGAIN_MS 2000
#define REOPEN_MS 5000        /* after a refusal */
#define AWAY_MS 20000         /* without a daemon: it wants nobody any more */
#define SILENCE_MS 60000      /* the same, connected, without a word */
#define MOST_GUESTS 1024
#define MESSAGES_A_TURN 64

struct talk {
    struct talk_opts o;
    uint64_t number;
    void *context, *monitor;
    struct sock *sock;
    int connected, asked, welcome, refused;
    uint64_t hello_ms, lost_ms, reopen_ms, word_ms;
    uint32_t wanted;
    uint64_t state_ms, state_key; /* what was said last, and when */
    char trouble[300];
};

/* The socket ------------------------------------------------------------------------------------------------------------------------ */

static void close_socket(struct talk *t)
{
    int none = 0;
    if (t->sock)
        zmq_socket_monitor(sock_zmq(t->sock), NULL, 0); /* it would go on telling nobody, and lose the words */
    if (t->monitor) {
        zmq_setsockopt(t->monitor, ZMQ_LINGER, &none, sizeof none);
        zmq_close(t->monitor);
    }
    t->monitor = NULL;
    sock_close(t->sock);
    t->sock = NULL;
}

static enum status open_socket(struct talk *t, struct err *e)
{
    char at[40];
    /* A name of its own for each socket: one that takes over the name of another that is still going away is sometimes not heard. */
    uint64_t identity = process_draw_number();
    TRY(sock_dealer(t->context, t->o.endpoint, t->o.keys, &identity, sizeof identity, &t->sock, e));
    static unsigned turn;
    snprintf(at, sizeof at, "inproc://monitor-%u", ++turn); /* the old one may not have gone yet */
    int events = ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL;
    if (zmq_socket_monitor(sock_zmq(t->sock), at, events) || !(t->monitor = zmq_socket(t->context, ZMQ_PAIR)) || zmq_connect(t->monitor, at)) {
        enum status st = err_set(e, ST_ENV, "cannot watch the connection: %s", zmq_strerror(errno));
        close_socket(t);
        return st;
    }
    return ST_OK;
}

enum status talk_open(const struct talk_opts *o, struct talk **out, struct err *e)
{
    struct talk *t = mem_zalloc(sizeof *t);
    if (!t)
        return err_nomem(e, "the connection");
    t->o = *o;
    t->number = o->number;
    t->context = zmq_ctx_new();
    enum status st = t->context ? open_socket(t, e) : err_set(e, ST_ENV, "cannot start ZeroMQ: %s", zmq_strerror(errno));
    if (st != ST_OK) {
        talk_close(t);
        return st;
    }
    snprintf(t->trouble, sizeof t->trouble, "no daemon at '%s' yet", o->endpoint);
    *out = t;
    return ST_OK;
}

void talk_close(struct talk *t)
{
    if (!t)
        return;
    close_socket(t);
    if (t->context)
        zmq_ctx_term(t->context);
    mem_free(t);
}

void talk_poll_items(struct talk *t, zmq_pollitem_t items[2])
{
    items[0] = (zmq_pollitem_t){.socket = t->sock ? sock_zmq(t->sock) : NULL, .fd = -1, .events = ZMQ_POLLIN};
    items[1] = (zmq_pollitem_t){.socket = t->monitor, .fd = -1, .events = ZMQ_POLLIN};
}

/* Saying ------------------------------------------------------------------------------------------------------------------------------ */

static int say(struct talk *t, Ebb__Envelope__BodyCase which, void *body)
{
    struct err e;
    if (!t->sock || sock_send(t->sock, NULL, which, body, &e) != ST_OK) {
        log_debug("a message could not be sent");
        return 0;
    }
    return 1;
}

static void say_hello(struct talk *t, uint64_t now_ms)
{
    Ebb__AgentHello m = EBB__AGENT_HELLO__INIT;
    m.version_min = WIRE_VERSION_MIN;
    m.version_max = WIRE_VERSION;
    m.program = (char *)(uintptr_t) "ebb-agent " AGENT_VERSION;
    m.agent = t->number;
    m.host = (char *)(uintptr_t)t->o.host;
    m.pid = (uint32_t)getpid();
    m.cores = t->o.cores;
    m.memory_bytes = t->o.memory_bytes;
    say(t, EBB__ENVELOPE__BODY_AGENT_HELLO, &m);
    t->asked = 1;
    t->hello_ms = now_ms;
    t->state_ms = 0; /* it knows nothing of us */
}

static uint64_t mix(uint64_t key, uint64_t x)
{
    return (key ^ x) * 0x9e3779b97f4a7c15u;
}

static void say_endings(struct talk *t, struct guests *g, uint64_t now_ms)
{
    for (struct guest_ending *x = guests_endings(g); x; x = x->next) {
        if (x->told_ms && now_ms - x->told_ms < ENDED_AGAIN_MS)
            continue;
        Ebb__AgentEnded m = EBB__AGENT_ENDED__INIT;
        Ebb__AgentSuspect *suspects = mem_array(x->count + 1, sizeof *suspects), **at = mem_array(x->count + 1, sizeof *at);
        Ebb__Span *spans = mem_array(x->count + 1, sizeof *spans);
        if (suspects && at && spans) {
            for (size_t i = 0; i < x->count; i++) {
                suspects[i] = (Ebb__AgentSuspect)EBB__AGENT_SUSPECT__INIT;
                spans[i] = (Ebb__Span)EBB__SPAN__INIT;
                spans[i].begin = x->records[i].record.begin;
                spans[i].end = x->records[i].record.end;
                suspects[i].job = x->records[i].job;
                suspects[i].epoch = x->records[i].epoch;
                suspects[i].record = &spans[i];
                at[i] = &suspects[i];
            }
            m.worker = x->number;
            m.how = x->how;
            m.n_suspects = x->count;
            m.suspects = at;
            m.text = x->text;
            say(t, EBB__ENVELOPE__BODY_AGENT_ENDED, &m);
            x->told_ms = now_ms;
        }
        mem_free(suspects);
        mem_free(at);
        mem_free(spans);
    }
}

void talk_state(struct talk *t, const struct decision *d, const struct readings *r, struct guests *g, uint64_t now_ms)
{
    Ebb__AgentGuest guest[MOST_GUESTS], *at[MOST_GUESTS];
    Ebb__AgentState m = EBB__AGENT_STATE__INIT;
    struct guest_view v;
    if (!t->welcome || !t->connected)
        return;
    uint64_t key = mix(mix(1, (uint64_t)d->mode), d->room);
    for (const char *c = d->reason; *c && *c != '(' && (*c < '0' || *c > '9'); c++) /* figures that tremble are no news */
        key = mix(key, (unsigned char)*c);
    while (m.n_guests < MOST_GUESTS && guests_view(g, m.n_guests, &v)) {
        guest[m.n_guests] = (Ebb__AgentGuest)EBB__AGENT_GUEST__INIT;
        guest[m.n_guests].worker = v.number;
        guest[m.n_guests].name = (char *)(uintptr_t)v.name;
        guest[m.n_guests].pid = (uint32_t)v.pid;
        guest[m.n_guests].state = (char *)(uintptr_t)(v.leaving ? "leaving" : guests_frozen(g) ? "frozen" : "running");
        key = mix(key, v.number + (uint64_t)(2 * v.leaving + guests_frozen(g)));
        at[m.n_guests] = &guest[m.n_guests];
        m.n_guests++;
    }
    if (t->state_ms == 0 || key != t->state_key || now_ms - t->state_ms >= STATE_MS) {
        m.state = (char *)(uintptr_t)policy_mode_word(d->mode);
        m.reason = (char *)(uintptr_t)d->reason;
        m.room = d->room;
        m.guests = at;
        m.load_of_others = (float)r->load_of_others;
        m.memory_available_bytes = r->memory_available_bytes;
        say(t, EBB__ENVELOPE__BODY_AGENT_STATE, &m);
        t->state_ms = now_ms ? now_ms : 1;
        t->state_key = key;
    }
    say_endings(t, g, now_ms);
}

/* Hearing ----------------------------------------------------------------------------------------------------------------------------- */

static void on_refused(struct talk *t, const char *text, uint64_t now_ms)
{
    if (strcmp(t->trouble, text))
        log_error("%s", text);
    snprintf(t->trouble, sizeof t->trouble, "%s", text);
    t->welcome = t->connected = 0;
    t->wanted = 0;
    t->refused = 1;
    t->reopen_ms = now_ms + REOPEN_MS;
}

static void on_message(struct talk *t, const Ebb__Envelope *m, struct guests *g, uint64_t now_ms)
{
    char text[400];
    t->connected = 1;
    t->word_ms = now_ms;
    switch (m->body_case) {
    case EBB__ENVELOPE__BODY_WELCOME:
        if (!t->asked) { /* it does not know us: it was started anew */
            say_hello(t, now_ms);
            return;
        }
        t->asked = 0;
        if (!t->welcome || *t->trouble)
            log_info("welcomed by %s at '%s', generation %u", m->welcome->program, t->o.endpoint, m->welcome->generation);
        t->welcome = 1;
        t->trouble[0] = 0;
        return;
    case EBB__ENVELOPE__BODY_REFUSED:
        snprintf(text, sizeof text, "the daemon at '%.80s' refuses this agent: %.280s", t->o.endpoint, m->refused->text);
        on_refused(t, text, now_ms);
        return;
    case EBB__ENVELOPE__BODY_AGENT_WANT:
        if (m->agent_want->workers != t->wanted)
            log_info("the daemon wants %u worker%s here", m->agent_want->workers, m->agent_want->workers == 1 ? "" : "s");
        t->wanted = m->agent_want->workers;
        return;
    case EBB__ENVELOPE__BODY_AGENT_KILL:
        if (guests_end_one(g, m->agent_kill->worker, m->agent_kill->gently, m->agent_kill->why))
            log_debug("worker %" PRIx64 " is to end (%s), and is none of ours", m->agent_kill->worker, m->agent_kill->why);
        return;
    case EBB__ENVELOPE__BODY_AGENT_NOTED:
        guests_noted(g, m->agent_noted->worker);
        return;
    default:
        log_warn("a message of kind %d, which no agent should get, is ignored", (int)m->body_case);
    }
}

static void take_monitor(struct talk *t, uint64_t now_ms)
{
    for (int event; t->monitor && (event = sock_event(t->monitor));) {
        if (event == ZMQ_EVENT_DISCONNECTED && t->connected) {
            log_warn("the connection to the daemon is gone; it is tried again");
            snprintf(t->trouble, sizeof t->trouble, "the daemon at '%.200s' is away", t->o.endpoint);
            t->connected = t->welcome = 0;
            t->lost_ms = now_ms;
        } else if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
            t->connected = 1;
            t->word_ms = now_ms;
            say_hello(t, now_ms);
        } else if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH || event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL) {
            char text[400];
            snprintf(text, sizeof text, event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH
                                            ? "the daemon at '%.200s' does not let this node's key in: invite it there with 'ebb invite --node'"
                                            : "the daemon at '%.200s' has another key than the one that is pinned here, or is no ebbd",
                     t->o.endpoint);
            on_refused(t, text, now_ms);
        }
    }
}

int talk_turn(struct talk *t, struct guests *g, uint64_t now_ms)
{
    uint32_t was = t->wanted;
    struct err e;
    take_monitor(t, now_ms);
    for (int i = 0; i < MESSAGES_A_TURN && t->sock; i++) {
        struct sock_peer ignored;
        Ebb__Envelope *m;
        enum status st = sock_receive(t->sock, &ignored, &m, &e);
        if (st == ST_AGAIN)
            break;
        if (st != ST_OK) {
            log_warn("a message of the daemon's is ignored: %s", e.text);
            continue;
        }
        on_message(t, m, g, now_ms);
        wire_free(m);
    }
    if (t->refused && now_ms >= t->reopen_ms) {
        close_socket(t);
        if (open_socket(t, &e) == ST_OK)
            t->refused = t->asked = 0;
        else
            on_refused(t, e.text, now_ms);
        t->lost_ms = now_ms;
    }
    if (t->asked && t->connected && now_ms - t->hello_ms >= HELLO_AGAIN_MS)
        say_hello(t, now_ms);
    if (t->wanted && ((!t->connected && now_ms - t->lost_ms >= AWAY_MS) || (t->connected && now_ms - t->word_ms >= SILENCE_MS))) {
        log_warn("no word from the daemon at '%s': no workers are started for it", t->o.endpoint);
        t->wanted = 0;
    }
    return t->wanted != was;
}

uint32_t talk_wanted(const struct talk *t)
{
    return t->wanted;
}

int talk_welcome(const struct talk *t)
{
    return t->welcome;
}

const char *talk_trouble(const struct talk *t)
{
    return t->trouble;
}
