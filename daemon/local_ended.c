/* The happy path: a worker's process ends; what it sent before is read; its exit, its black box and the kernel's count of kills say what became of
   it; the core is told, with the records that were in it.

   What can fail: workers that end as soon as they start are started ever more rarely, and hold the jobs when none ever says hello. */
#include "daemon/local_inside.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "daemon/job.h"
#include "daemon/link.h"
#include "daemon/words.h"
#include "wire/process.h"

#define AT_ONCE_MS 5000       /* a worker that dies sooner, without a hello, never worked */
#define BACK_OFF_MAX_MS 30000
#define LAST_WORDS_MS 100     /* what it sent before its end is read first */

/* Reaping ------------------------------------------------------------------------------------------------------------------------- */

struct child *local_find(const struct local *l, uint64_t number)
{
    struct child *c = l->children;
    while (c && c->number != number)
        c = c->next;
    return c;
}

void local_child_free(struct child *c)
{
    if (c->pidfd >= 0)
        close(c->pidfd);
    mem_free(c->blackbox);
    mem_free(c->note);
    mem_free(c->log);
    mem_free(c);
}

void local_child_closed(uv_handle_t *h)
{
    local_child_free(h->data);
}

/* No worker can be started at all: jobs wait for it with the reason. */
void local_hold_all(struct local *l, const char *why)
{
    struct daemon *d = l->d;
    struct sched_job_view v;
    for (size_t i = 0; d->core && i < sched_job_count(d->core); i++) {
        struct sched_event ev = {.kind = SCHED_JOB_CONTROL, .job = sched_job_at(d->core, i)};
        if (!sched_job_view(d->core, ev.job, &v) || v.row->state != JOB_RUNNING || sched_worker_count(d->core))
            continue;
        ev.u.control.verb = VERB_HOLD;
        ev.u.control.text = why;
        ev.u.control.wall_ms = clock_wall_ms();
        loop_tell(d, &ev);
    }
}

static void died_at_once(struct local *l, const struct child *c, const char *how)
{
    char words[200];
    process_last_words(c->log, words, sizeof words);
    words_tidy(words);
    l->back_off_ms = l->back_off_ms ? l->back_off_ms * 2 : BACK_OFF_MS;
    if (l->back_off_ms > BACK_OFF_MAX_MS)
        l->back_off_ms = BACK_OFF_MAX_MS;
    l->not_before_ms = clock_ms() + l->back_off_ms;
    snprintf(l->trouble, sizeof l->trouble, "workers end as soon as they start (%s)%s%s", how, *words ? ": " : "", words);
    log_warn("worker %s: %s; the next one in %" PRIu64 " ms", c->name, l->trouble, l->back_off_ms);
    if (!c->greeted && ++l->deaths >= DEATHS_THAT_HOLD) {
        l->deaths = 0;
        local_hold_all(l, l->trouble);
    }
}

/* The one way in which a child ends. */
static void reap(struct child *c, int exit_status, int signal, int unknown)
{
    struct local *l = c->l;
    struct daemon *d = l->d;
    struct process_death death = {.exit_status = exit_status, .signal = signal, .unknown = unknown, .bye = c->bye, .killed_hung = c->hung};
    struct blackbox_record *records = NULL;
    size_t count = 0;
    int incomplete = 0;
    struct err e;
    uint64_t kills = process_oom_kills();
    death.oom_risen = kills > l->oom_kills;
    l->oom_kills = kills;
    if (blackbox_read(c->blackbox, &records, &count, &incomplete, &death.cause, &e) != ST_OK)
        log_warn("worker %s: its black box cannot be read: %s", c->name, e.text);
    enum worker_end how = process_cause(&death);
    struct sched_suspect *suspects = mem_array(count, sizeof *suspects);
    if (!suspects) {
        err_nomem(&e, "the end of a worker");
        loop_fatal(d, &e);
        count = 0;
    }
    for (size_t i = 0; i < count; i++)
        suspects[i] = (struct sched_suspect){records[i].job, records[i].epoch, records[i].record};
    char how_words[64];
    if (unknown)
        snprintf(how_words, sizeof how_words, "gone");
    else if (signal)
        snprintf(how_words, sizeof how_words, "signal %d", signal);
    else
        snprintf(how_words, sizeof how_words, "exit %d", exit_status);
    log_info("worker %s: ended (%s): %s, %zu records were in it%s", c->name, how_words, process_end_word(how), count, incomplete ? " at least" : "");
    /* A crash is the core's business: it knows whether a record or the model is to blame. */
    if (clock_ms() - c->started_ms > AT_ONCE_MS)
        l->back_off_ms = 0;
    else if (how == WORKER_LOST && !c->killed && !c->draining && !c->adopted)
        died_at_once(l, c, how_words);
    link_ended(d->link, c->number, how, suspects, count);
    unlink(c->blackbox);
    unlink(c->note);
    mem_free(records);
    mem_free(suspects);
    for (struct child **at = &l->children; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            l->count--;
            break;
        }
    uv_handle_t *h = c->adopted ? (uv_handle_t *)&c->poll : (uv_handle_t *)&c->process;
    h->data = c;
    uv_close(h, local_child_closed);
    local_fill(l);
}

static void on_reaper(uv_timer_t *t)
{
    struct local *l = t->data;
    uint64_t now = clock_ms();
    int left = 0;
    for (struct child *c = l->children, *next; c; c = next) {
        next = c->next;
        if (!c->dead)
            continue;
        const struct worker *w = link_worker(l->d->link, c->number);
        if (now - c->dead_ms < LAST_WORDS_MS || (w && w->verifying))
            left = 1;
        else
            reap(c, c->exit_status, c->signal, c->adopted); /* frees it, and no other */
    }
    if (!left)
        uv_timer_stop(t);
}

void local_died(struct child *c, int exit_status, int signal)
{
    c->dead = 1;
    c->dead_ms = clock_ms();
    c->exit_status = exit_status;
    c->signal = signal;
    uv_timer_start(&c->l->reaper, on_reaper, LAST_WORDS_MS, LAST_WORDS_MS / 4);
}

