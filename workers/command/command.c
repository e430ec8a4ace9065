/* The happy path: a record is submitted; the thread wakes, gives it to the child that has the least to do, writes, waits; an answer comes and is the
   record's (fate.c).

   What can fail: a child dies, hangs, or answers nonsense: fate.c says whose fault that is, and the record comes back to one of three lists here:
   `waiting` (anybody's), `suspects` (alone, in a fresh child), `later` (not before its time). We are stopped for a while, with or without the children
   (a frozen control group, SIGSTOP): the time is not held against them. */
#include "workers/command/command.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "workers/command/inside.h"
#include "workers/command/quiet.h"

#define MOST_CHILDREN 1024
#define STACK_BYTES (1u << 20)
#define FDS 4                    /* of a child: in, out, err, pidfd */
#define READ_BYTES (1u << 20)    /* from one child at a time */
#define BATCH_MS 100             /* so long a batch is waited for */
#define LEAVE_MS 2000            /* to end by itself, when its input has ended */
#define FLUSH_MS 10000           /* to answer, when its input was closed because it hung */
#define ENDED_MS 1000            /* to end, when it has closed its output */
#define TICK_MS 1000
#define NO_PIDFD_MS 50
#define QUIET_MS 500             /* so long after a record became due it is first looked whether its child waits for more; then later and later */
#define QUIET_AGAIN_MS 100       /* and once more, before that is believed */
#define QUIET_MAX_MS 8000
#define LATE_MS 1000             /* later than that by ourselves: we were stopped */
#define FIRST_SLACK_MS 5000

/* Lists ---------------------------------------------------------------------------------------------------------------------------------- */

void list_init(struct list *l)
{
    l->first = NULL;
    l->last = &l->first;
    l->count = 0;
}

void list_add(struct list *l, struct command_record *r)
{
    r->next = NULL;
    *l->last = r;
    l->last = &r->next;
    l->count++;
}

void list_add_front(struct list *l, struct command_record *r)
{
    r->next = l->first;
    l->first = r;
    if (!r->next)
        l->last = &r->next;
    l->count++;
}

struct command_record *list_take(struct list *l)
{
    struct command_record *r = l->first;
    if (!r)
        return NULL;
    l->first = r->next;
    if (!l->first)
        l->last = &l->first;
    l->count--;
    r->next = NULL;
    return r;
}

/* What one child is due ------------------------------------------------------------------------------------------------------------------ */

static uint64_t limit_ms(const struct command *c, const struct child *ch)
{
    uint64_t ms = c->o.timeout_ms * (ch->batch ? ch->load : 1);
    if (!ch->lines) {
        uint64_t first = 2 * c->first_ms + FIRST_SLACK_MS;
        ms += c->first_ms && first < c->o.start_ms ? first : c->o.start_ms;
    }
    return ms;
}

static void earlier(uint64_t *until, uint64_t ms)
{
    if (ms < *until)
        *until = ms;
}

/* It waits for more, without an answer to what it has. */
static int has_gone_quiet(struct child *ch, uint64_t now_ms, uint64_t *until)
{
    if (ch->unsent || ch->in < 0 || ch->ended)
        return 0;
    if (ch->quiet_due != ch->due_ms) { /* another record is due */
        ch->quiet_due = ch->due_ms;
        ch->quiet_next_ms = ch->due_ms + QUIET_MS;
        ch->quiet_pause_ms = QUIET_MS;
        ch->quiet = 0;
    }
    if (now_ms >= ch->quiet_next_ms) {
        if (!quiet_for_input(ch->pid, ch->in) || child_has_said(ch))
            ch->quiet = 0;
        else if (++ch->quiet == 2)
            return 1;
        if (!ch->quiet && ch->quiet_pause_ms < QUIET_MAX_MS)
            ch->quiet_pause_ms *= 2;
        ch->quiet_next_ms = now_ms + (ch->quiet ? QUIET_AGAIN_MS : ch->quiet_pause_ms);
    }
    earlier(until, ch->quiet_next_ms);
    return 0;
}

/* Looks at the clock for one child; *until: when to look again. */
static void look(struct command *c, struct child *ch, uint64_t now_ms, uint64_t *until)
{
    if (ch->pidfd < 0)
        earlier(until, now_ms + NO_PIDFD_MS);
    if (ch->state == CHILD_DYING)
        return;
    if (ch->load)
        ch->idle_ms = 0;
    else if (!ch->idle_ms)
        ch->idle_ms = now_ms;
    if (ch->ended) {
        if (!ch->ended_ms)
            ch->ended_ms = now_ms;
        if (now_ms >= ch->ended_ms + ENDED_MS) {
            if (ch->load)
                fate_failed(c, ch, COMMAND_MISSING, "closed its standard output before it answered", now_ms);
            else
                child_kill(ch);
            return;
        }
        earlier(until, ch->ended_ms + ENDED_MS);
    }
    if (ch->state == CHILD_LEAVING) {
        if (now_ms >= ch->leave_by_ms) {
            if (ch->load)
                fate_hung(c, ch, now_ms);
            else
                child_kill(ch);
            return;
        }
        earlier(until, ch->leave_by_ms);
        return;
    }
    if (!ch->load) {
        if (ch->retiring || ch->in < 0)
            deal_let_go(ch, now_ms, LEAVE_MS);
        else if (deal_serving(c) > 1 && now_ms >= ch->idle_ms + c->o.idle_ms)
            deal_let_go(ch, now_ms, LEAVE_MS);
        else if (deal_serving(c) > 1)
            earlier(until, ch->idle_ms + c->o.idle_ms);
        return;
    }
    if (ch->batch && !ch->unsent && ch->in >= 0) {
        uint64_t full = ch->started_ms + BATCH_MS;
        if (ch->given >= ch->batch_size || now_ms >= full) {
            deal_let_go(ch, now_ms, limit_ms(c, ch));
            earlier(until, ch->leave_by_ms);
            return;
        }
        earlier(until, full);
    }
    if (!ch->due)
        return;
    uint64_t limit = ch->due_ms + limit_ms(c, ch);
    if (now_ms < limit && !has_gone_quiet(ch, now_ms, until)) {
        earlier(until, limit);
        return;
    }
    /* programs that keep their answers in a buffer let go of them when their input ends */
    ch->hung = 1;
    deal_let_go(ch, now_ms, c->o.timeout_ms < FLUSH_MS ? c->o.timeout_ms : FLUSH_MS);
    earlier(until, ch->leave_by_ms);
}

/* It reads no more. What was not begun goes to others, but for the record that it was started for: that is told by how it ends. */
static void deaf(struct command *c, struct child *ch)
{
    struct command_record *r = ch->unsent, *before = NULL, *chain = NULL, *next;
    if (r && (ch->sent || (r == ch->due && !ch->lines))) {
        before = r;
        r = r->next;
    } else if (r) {
        for (next = ch->first; next != r; next = next->next)
            before = next;
    }
    if (!r)
        return;
    if (ch->due == r)
        ch->due = NULL;
    if (ch->unsent == r)
        ch->unsent = NULL;
    if (before)
        before->next = NULL;
    else
        ch->first = NULL;
    ch->last = before;
    for (; r; r = next) {
        next = r->next;
        r->next = chain;
        chain = r;
        ch->load--;
        ch->given--;
    }
    for (; chain; chain = next) {
        next = chain->next;
        fate_again(c, chain);
    }
}

static void feed(struct command *c, struct child *ch, uint64_t now_ms)
{
    int moved = 0;
    if (ch->state == CHILD_DYING || !ch->unsent || ch->in < 0)
        return;
    int was_first = ch->unsent == ch->due;
    if (child_write(ch, &moved))
        deaf(c, ch);
    if (moved && was_first)
        ch->due_ms = now_ms; /* a long record is on its way */
    if (was_first && ch->unsent != ch->due && ch->lines && !ch->answered_ns)
        ch->answered_ns = clock_ns(); /* its pace is measured from here */
}

static void hear(struct command *c, struct child *ch, uint64_t now_ms)
{
    const char *line;
    size_t len;
    if (child_read(ch, READ_BYTES)) {
        fate_lost(c, ch, "was ended because memory is out here", now_ms);
        return;
    }
    while (ch->state != CHILD_DYING && !c->over && child_line(ch, &line, &len))
        fate_line(c, ch, line, len, now_ms);
    if (ch->state == CHILD_DYING || c->over)
        return;
    fate_quiet(c, ch, now_ms);
    if (ch->alone && !ch->load)
        ch->alone = 0; /* it has stood the test, and serves like any other */
}

/* Its process is over: the rest of what it said, then its end. */
static void bury(struct command *c, struct child **at, uint64_t now_ms)
{
    struct child *ch = *at;
    int status;
    if (ch->state != CHILD_DYING) {
        hear(c, ch, now_ms); /* all of it: a pipe holds no more than that */
        if (ch->state != CHILD_DYING)
            child_hear(ch, c->name, &c->noise, now_ms, 1);
    }
    if (!child_over(&c->spawn, ch, &status))
        return;
    if (ch->state != CHILD_DYING && !c->over)
        fate_ended(c, ch, status, now_ms);
    fate_not_done(c, ch); /* only where we are being stopped */
    *at = ch->next;
    child_free(ch);
    c->count--;
    atomic_store(&c->now_children, c->count);
}

/* The thread -------------------------------------------------------------------------------------------------------------------------------- */

static void stop_all(struct command *c, uint64_t now_ms)
{
    struct command_record *r;
    while ((r = list_take(&c->waiting)) || (r = list_take(&c->suspects)) || (r = list_take(&c->later)))
        fate_give_back(c, r);
    for (struct child *ch = c->children; ch; ch = ch->next) {
        if (ch->load) {
            child_kill(ch);
            fate_not_done(c, ch);
        } else if (ch->state == CHILD_UP) {
            deal_let_go(ch, now_ms, LEAVE_MS);
        } else if (ch->state == CHILD_LEAVING) {
            earlier(&ch->leave_by_ms, now_ms + LEAVE_MS);
        }
    }
}

/* 1 when the thread is to end. */
static int take_submitted(struct command *c)
{
    struct command_record *r;
    pthread_mutex_lock(&c->lock);
    struct list got = c->submitted;
    if (!got.first)
        got.last = &got.first;
    list_init(&c->submitted);
    c->over |= c->stopping;
    int ending = c->ending;
    pthread_mutex_unlock(&c->lock);
    while ((r = list_take(&got)))
        list_add(&c->waiting, r);
    return ending && !c->children && !c->waiting.count && !c->suspects.count && !c->later.count;
}

static size_t gather(struct command *c)
{
    size_t n = 0;
    c->polled[n++] = (struct pollfd){.fd = c->wake, .events = POLLIN};
    for (struct child *ch = c->children; ch; ch = ch->next) {
        int alive = ch->state != CHILD_DYING;
        c->polled[n++] = (struct pollfd){.fd = ch->pidfd, .events = POLLIN};
        c->polled[n++] = (struct pollfd){.fd = alive ? ch->out : -1, .events = POLLIN};
        c->polled[n++] = (struct pollfd){.fd = alive ? ch->err : -1, .events = POLLIN};
        c->polled[n++] = (struct pollfd){.fd = alive && ch->unsent ? ch->in : -1, .events = POLLOUT};
    }
    return n;
}

static void serve(struct command *c, uint64_t now_ms)
{
    size_t n = 1;
    for (struct child **at = &c->children, *ch; (ch = *at); n += FDS) {
        const struct pollfd *p = &c->polled[n];
        if (p[1].revents && ch->state != CHILD_DYING)
            hear(c, ch, now_ms);
        if (p[2].revents && ch->state != CHILD_DYING)
            child_hear(ch, c->name, &c->noise, now_ms, 0);
        if (p[3].revents && ch->state != CHILD_DYING)
            feed(c, ch, now_ms);
        if (p[0].revents || ch->pidfd < 0)
            bury(c, at, now_ms);
        if (*at == ch)
            at = &ch->next;
    }
}

/* We did not run for so long: neither, perhaps, did they. */
static void excuse(struct command *c, uint64_t ms)
{
    for (struct child *ch = c->children; ch; ch = ch->next) {
        ch->due_ms += ms;
        ch->started_ms += ms;
        ch->leave_by_ms += ms;
        if (ch->ended_ms)
            ch->ended_ms += ms;
    }
}

static void *run(void *arg)
{
    struct command *c = arg;
    uint64_t now_ms = clock_ms();
    while (!take_submitted(c)) {
        uint64_t until = UINT64_MAX;
        if (c->over)
            stop_all(c, now_ms);
        else
            deal(c, now_ms);
        for (struct child *ch = c->children; ch; ch = ch->next) {
            feed(c, ch, now_ms);
            look(c, ch, now_ms, &until);
        }
        if (c->over)
            stop_all(c, now_ms); /* that was a fault, or one was seen meanwhile */
        if (c->count && until != UINT64_MAX)
            earlier(&until, now_ms + TICK_MS);
        if (c->later.first)
            earlier(&until, c->later.first->not_before_ms);
        if (c->suspects.count || c->waiting.count || c->control_state == CONTROL_WANTED) {
            if (c->start_after_ms > now_ms)
                earlier(&until, c->start_after_ms);
            if (c->full_ms && c->full_ms + FULL_MS > now_ms)
                earlier(&until, c->full_ms + FULL_MS);
            if (c->down >= DOWN_RETRIES && c->down_until_ms > now_ms)
                earlier(&until, c->down_until_ms);
            earlier(&until, now_ms + TICK_MS);
        }
        size_t n = gather(c);
        uint64_t before = clock_ms();
        int wait_ms = until == UINT64_MAX ? -1 : until <= before ? 0 : until - before > TICK_MS ? TICK_MS : (int)(until - before);
        int ready = poll(c->polled, n, wait_ms);
        now_ms = clock_ms();
        if (wait_ms >= 0 && now_ms - before > (uint64_t)wait_ms + LATE_MS)
            excuse(c, now_ms - before - (uint64_t)wait_ms);
        if (ready < 0)
            continue;
        uint64_t counted;
        if (c->polled[0].revents && read(c->wake, &counted, sizeof counted) < 0) {
            /* somebody else's wake-up: never, it is ours alone */
        }
        serve(c, now_ms);
    }
    return NULL;
}

/* From outside -------------------------------------------------------------------------------------------------------------------------------- */

static void wake(struct command *c)
{
    uint64_t one = 1;
    if (write(c->wake, &one, sizeof one) < 0) {
        /* the counter is full: it is awake */
    }
}

static enum status begin(struct command *c, struct err *e)
{
    sigset_t most, before;
    pthread_attr_t attr;
    sigfillset(&most); /* but for those that speak of a defect of our own */
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        sigdelset(&most, own[i]);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    pthread_sigmask(SIG_SETMASK, &most, &before);
    int failed = pthread_create(&c->thread, &attr, run, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return failed ? err_errno(e, ST_ENV, failed, "cannot start a thread for a command") : ST_OK;
}

static void release(struct command *c)
{
    spawn_release(&c->spawn);
    answer_release(&c->answer);
    pthread_mutex_destroy(&c->lock);
    if (c->wake >= 0)
        close(c->wake);
    mem_free((char *)(uintptr_t)c->control.line);
    mem_free(c->polled);
    mem_free(c->name);
    mem_free(c);
}

enum status command_new(const struct command_opts *o, struct command **out, struct err *e)
{
    struct command *c = mem_zalloc(sizeof *c);
    if (!c)
        return err_nomem(e, "a command");
    c->o = *o;
    if (!c->o.children) {
        long n = sysconf(_SC_NPROCESSORS_ONLN);
        c->o.children = n > 0 ? (uint32_t)n : 1;
    }
    if (c->o.children > MOST_CHILDREN)
        c->o.children = MOST_CHILDREN;
    c->o.ahead = o->ahead ? o->ahead : 64;
    c->o.timeout_ms = o->timeout_ms ? o->timeout_ms : 60000;
    c->o.start_ms = o->start_ms ? o->start_ms : 300000;
    c->o.answer_bytes = o->answer_bytes ? o->answer_bytes : 16u << 20;
    c->o.retries = o->retries ? o->retries : 5;
    c->o.idle_ms = o->idle_ms ? o->idle_ms : 30000;
    pthread_mutex_init(&c->lock, NULL);
    list_init(&c->submitted);
    list_init(&c->waiting);
    list_init(&c->suspects);
    list_init(&c->later);
    c->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    enum status st = ST_OK;
    if (c->wake < 0)
        st = err_errno(e, ST_ENV, errno, "cannot make an eventfd for a command");
    if (st == ST_OK)
        st = spawn_init(&c->spawn, o->shell, o->dir, o->env, e);
    c->name = mem_strdup(o->name ? o->name : "command");
    c->polled = mem_array(1 + (size_t)c->o.children * FDS, sizeof *c->polled);
    if (st == ST_OK && (!c->name || !c->polled))
        st = err_nomem(e, "a command");
    c->o.shell = c->spawn.shell;
    c->o.dir = c->spawn.dir;
    c->o.env = NULL;
    c->o.name = c->name;
    if (st == ST_OK)
        st = begin(c, e);
    if (st != ST_OK) {
        release(c);
        return st;
    }
    *out = c;
    return ST_OK;
}

void command_submit(struct command *c, struct command_record *r)
{
    struct command_record fresh = {.line = r->line, .len = r->len, .id = r->id, .id_len = r->id_len, .owner = r->owner};
    *r = fresh;
    atomic_fetch_add(&c->inside, 1);
    pthread_mutex_lock(&c->lock);
    int first = !c->submitted.first;
    list_add(&c->submitted, r);
    pthread_mutex_unlock(&c->lock);
    if (first)
        wake(c);
}

void command_stop(struct command *c)
{
    pthread_mutex_lock(&c->lock);
    c->stopping = 1;
    pthread_mutex_unlock(&c->lock);
    wake(c);
}

void command_free(struct command *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    c->stopping = c->ending = 1;
    pthread_mutex_unlock(&c->lock);
    wake(c);
    pthread_join(c->thread, NULL);
    release(c);
}

void command_stats(struct command *c, struct command_stats *out)
{
    *out = (struct command_stats){
        .children = atomic_load(&c->now_children),
        .most_children = atomic_load(&c->most_children),
        .inside = atomic_load(&c->inside),
        .starts = atomic_load(&c->starts),
        .answers = atomic_load(&c->answers),
        .errors = atomic_load(&c->errors),
        .retried = atomic_load(&c->retried),
        .redone = atomic_load(&c->redone),
    };
}
