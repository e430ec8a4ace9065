/* Who gets what, and when one child more is started. */
#include <inttypes.h>

#include "base/clock.h"
#include "base/log.h"
#include "wire/process.h"
#include "workers/command/inside.h"

#define AHEAD_NS 20000000u       /* so much work waits in a child's pipe */
#define UNPROVEN_MS 10000        /* a child without its first answer keeps the next one from starting for so long */

static uint32_t ahead(const struct command *c, const struct child *ch)
{
    if (!ch->echoes)
        return 1;
    uint64_t n = ch->pace_ns ? AHEAD_NS / ch->pace_ns : 2;
    return n < 2 ? 2 : n > c->o.ahead ? c->o.ahead : (uint32_t)n;
}

static int has_room(const struct command *c, const struct child *ch)
{
    if (ch->state != CHILD_UP || ch->retiring || ch->alone || ch->in < 0)
        return 0;
    return ch->batch ? ch->given < ch->batch_size : ch->load < ahead(c, ch);
}

static struct child *least_busy(struct command *c)
{
    struct child *best = NULL;
    for (struct child *ch = c->children; ch; ch = ch->next)
        if (has_room(c, ch) && (!best || ch->load < best->load || (ch->load == best->load && ch->number < best->number)))
            best = ch;
    return best;
}

void deal_let_go(struct child *ch, uint64_t now_ms, uint64_t ms)
{
    child_close_in(ch);
    ch->state = CHILD_LEAVING;
    ch->leave_by_ms = now_ms + ms;
}

/* One child ends when it has nothing to do, so that a suspect finds room for a fresh one. */
static void make_room(struct command *c)
{
    struct child *best = NULL;
    for (struct child *ch = c->children; ch; ch = ch->next) {
        if (ch->retiring || ch->state != CHILD_UP)
            return; /* one is going already */
        if (!ch->alone && (!best || ch->load < best->load))
            best = ch;
    }
    if (best)
        best->retiring = 1;
}

static uint32_t free_number(const struct command *c)
{
    for (uint32_t n = 0;; n++) {
        const struct child *ch = c->children;
        while (ch && ch->number != n)
            ch = ch->next;
        if (!ch)
            return n;
    }
}

static void start_for(struct command *c, struct command_record *r, uint64_t now_ms)
{
    struct child *ch;
    struct err e;
    c->oom_kills = process_oom_kills();
    if (child_start(&c->spawn, free_number(c), &ch, &e) != ST_OK) {
        fate_no_start(c, r, &e, now_ms);
        return;
    }
    c->no_starts = 0;
    ch->started_ms = now_ms;
    ch->alone = r->suspect;
    ch->batch = c->buffers;
    ch->batch_size = r->suspect ? 1 : c->batch;
    ch->next = c->children;
    c->children = ch;
    c->count++;
    atomic_fetch_add(&c->starts, 1);
    atomic_store(&c->now_children, c->count);
    if (c->count > atomic_load(&c->most_children))
        atomic_store(&c->most_children, c->count);
    log_debug("%s: command %" PRIu32 ": started as %d%s", c->name, ch->number, (int)ch->pid, ch->alone ? " for one record alone" : "");
    child_give(ch, r, now_ms);
}

static int may_start(const struct command *c, uint64_t now_ms)
{
    return c->count < c->o.children && now_ms >= c->start_after_ms;
}

/* One child at a time, until it has shown that it can answer, or takes long over it. Suspects of a command that can are in nobody's way. */
static int unanswered(const struct command *c, int suspects_too, uint64_t now_ms)
{
    for (const struct child *ch = c->children; ch; ch = ch->next)
        if (ch->state == CHILD_UP && !ch->lines && now_ms < ch->started_ms + UNPROVEN_MS && (!ch->alone || suspects_too))
            return 1;
    return 0;
}

uint32_t deal_serving(const struct command *c)
{
    uint32_t n = 0;
    for (const struct child *ch = c->children; ch; ch = ch->next)
        n += ch->state == CHILD_UP && !ch->retiring;
    return n;
}

/* Notes since when all have been busy: with records waiting, or each with one more than it works on. */
static void note_full(struct command *c, uint64_t now_ms)
{
    uint32_t enough = c->waiting.count ? 1 : 2;
    int full = 0;
    for (const struct child *ch = c->children; ch; ch = ch->next) {
        if (ch->state != CHILD_UP || ch->retiring)
            continue;
        full = ch->load >= enough;
        if (!full)
            break;
    }
    if (!full)
        c->full_ms = 0;
    else if (!c->full_ms)
        c->full_ms = now_ms;
}

static int busy(const struct command *c)
{
    for (const struct child *ch = c->children; ch; ch = ch->next)
        if (ch->load)
            return 1;
    return 0;
}

void deal(struct command *c, uint64_t now_ms)
{
    while (c->later.first && c->later.first->not_before_ms <= now_ms)
        list_add(&c->waiting, list_take(&c->later));
    /* what the command needs is down: one record at a time finds out whether it still is */
    int down = c->down >= DOWN_RETRIES;
    if (down && (busy(c) || now_ms < c->down_until_ms))
        return;
    if ((c->suspects.count || c->control_state == CONTROL_WANTED) && c->count == c->o.children)
        make_room(c);
    if (c->control_state == CONTROL_WANTED) {
        if (may_start(c, now_ms)) {
            struct command_record control = {.line = c->control.line, .len = c->control.len, .suspect = 1, .lost = c->control.lost};
            c->control = control;
            c->control_state = CONTROL_RUNS;
            start_for(c, &c->control, now_ms);
        }
        return;
    }
    while (c->suspects.count && may_start(c, now_ms) && (c->proven ? 1 : !unanswered(c, 1, now_ms))) {
        if (c->streak && c->waiting.count)
            break; /* is it the record or the command? Another record tells */
        start_for(c, list_take(&c->suspects), now_ms);
        if (down)
            return;
    }
    /* one more, where all were busy for a while; a first one at once */
    int few = !deal_serving(c) || (c->full_ms && now_ms >= c->full_ms + FULL_MS);
    if (c->waiting.count && few && may_start(c, now_ms) && !unanswered(c, !c->proven, now_ms)) {
        c->full_ms = 0;
        start_for(c, list_take(&c->waiting), now_ms);
        if (down)
            return;
    }
    for (struct child *ch; c->waiting.count && !c->over && (ch = least_busy(c));) {
        child_give(ch, list_take(&c->waiting), now_ms);
        if (down)
            return;
    }
    note_full(c, now_ms);
}
