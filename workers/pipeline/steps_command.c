/* A step that is a command: how its records go to the children, and what their answers mean. The children themselves are workers/command's. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/host.h"
#include "base/log.h"
#include "base/mem.h"
#include "workers/pipeline/steps_inside.h"

#define PACE_MS 500        /* answers are counted over so long */
#define AHEAD 4            /* records for each child, until it is known how fast they are */
#define NAMED_FEW 32       /* so many are named in the black box at each change, more of them every so often */
#define NAMED_EVERY_MS 100

/* How many may be inside ------------------------------------------------------------------------------------------------------------- */

static void pace(struct step_state *st, uint64_t now_ms, uint64_t answers)
{
    if (now_ms >= st->pace_ms + PACE_MS) {
        st->pace_before = now_ms < st->pace_ms + 2 * PACE_MS ? st->pace_now : 0;
        st->pace_now = 0;
        st->pace_ms = now_ms;
    }
    st->pace_now += answers;
}

/* As many as are answered in half a second to a second: what is inside can no longer be cut off a lease. */
uint64_t step_command_most(struct step_state *st, uint64_t now_ms)
{
    pace(st, now_ms, 0);
    uint64_t least = (uint64_t)st->children * AHEAD, fast = st->pace_now > st->pace_before ? st->pace_now : st->pace_before;
    return fast > least ? fast : least;
}

/* The black box ---------------------------------------------------------------------------------------------------------------------- */

/* With the lock. */
static void name_all(struct step_state *st, uint64_t now_ms)
{
    struct blackbox_record named[BLACKBOX_RECORDS];
    struct blackbox *box = st->chain->steps->p->o.box;
    uint32_t n = 0;
    if (st->inside > NAMED_FEW && now_ms < st->named_ms + NAMED_EVERY_MS)
        return;
    st->named_ms = now_ms;
    for (const struct unit *u = st->named; u && n < BLACKBOX_RECORDS; u = u->named) {
        const struct item *i = u->root->item;
        named[n++] = (struct blackbox_record){.job = i->held->job->id, .epoch = i->held->epoch, .record = i->record};
    }
    if (n)
        blackbox_enter(box, st->slot, named, n);
    else
        blackbox_leave(box, st->slot);
}

static void name_in(struct step_state *st, struct unit *u)
{
    u->named = st->named;
    u->named_before = NULL;
    if (st->named)
        st->named->named_before = u;
    st->named = u;
}

static void name_out(struct step_state *st, struct unit *u)
{
    *(u->named_before ? &u->named_before->named : &st->named) = u->named;
    if (u->named)
        u->named->named_before = u->named_before;
}

/* Feeding ---------------------------------------------------------------------------------------------------------------------------- */

static void drop(struct steps *s, struct unit *u, struct root **through)
{
    u->fate = UNIT_DROPPED;
    u->node.next = NULL;
    steps_settle(s, &u->node, through);
}

static void hand_over(struct step_state *st, struct unit *u, uint64_t now_ms)
{
    struct steps *s = st->chain->steps;
    struct item *i = u->root->item;
    u->taken = 1;
    s->busy++;
    st->inside++;
    atomic_fetch_add(&st->chain->inside, 1);
    if (st->at == 0 && !i->begun) {
        i->begun = 1;
        budget_begun(&s->p->budget, 1, 1, 1, now_ms);
    }
    name_in(st, u);
    u->record = (struct command_record){.line = u->json, .len = u->len, .owner = u};
    struct record_scratch scratch = {0};
    u->record.id = record_id(&scratch, u->json, u->len, &u->record.id_len);
    record_scratch_release(&scratch);
    command_submit(st->command, &u->record);
}

int step_command_feed(struct step_state *st, int only_one, uint64_t now_ms, struct root **through)
{
    struct chain *c = st->chain;
    int fed = 0;
    while (st->raw.head) {
        struct unit *u = (struct unit *)st->raw.head;
        if (c->faulted || steps_is_void(c->steps, u->root)) {
            u->root->lost |= c->faulted;
            line_pop(&st->raw);
            drop(c->steps, u, through);
            continue;
        }
        if (fed && only_one)
            break;
        if (!only_one && (st->inside >= step_command_most(st, now_ms) || !step_has_room(c, st->at, now_ms)))
            break;
        line_pop(&st->raw);
        hand_over(st, u, now_ms);
        fed = 1;
    }
    if (fed)
        name_all(st, now_ms);
    return fed;
}

/* Answers ---------------------------------------------------------------------------------------------------------------------------- */

struct answering { /* of the command's thread */
    struct record_scratch scratch;
    struct buf space;
};

static void not_a_record(struct pipeline *p, struct unit *u, char kind, size_t element)
{
    char message[200];
    if (element)
        snprintf(message, sizeof message, "element %zu of the command's answer is %s, where an object should stand", element, record_kind_words(kind));
    else
        snprintf(message, sizeof message, "the command answered with %s, where an object, an array of objects or null should stand", record_kind_words(kind));
    unit_failed(p, u, RECORD_FAILED, command_error_word(COMMAND_GARBAGE), message);
}

/* Children take the unit's place in its record; they are not known to anybody yet. Their fates follow. */
static struct node *spread(struct step_state *st, struct unit *u, const char *line, size_t len, size_t *count, uint64_t *bytes)
{
    struct pipeline *p = st->chain->steps->p;
    struct node *children = NULL, **tail = &children;
    const char *element;
    size_t n, at = 0;
    *count = 0;
    *bytes = 0;
    while (record_next(line, len, &at, &element, &n)) {
        ++*count;
        *bytes += n;
        if (*element != '{') {
            not_a_record(p, u, *element, *count);
            break;
        }
        if (*bytes > STEPS_RECORD_BYTES) /* settle sees that it is too large */
            continue;
        struct unit *child = unit_new(p, u->root, u->step, element, n);
        child->of_many = 1;
        *tail = &child->node;
        tail = &child->node.next;
    }
    if (u->fate != UNIT_ERROR && *bytes <= STEPS_RECORD_BYTES)
        return children;
    for (struct node *next; children; children = next) {
        next = children->next;
        unit_free((struct unit *)children);
    }
    return NULL;
}

/* With the lock: they stand where it stood. */
static void put_in_place(struct unit *u, struct node *children)
{
    struct root *r = u->root;
    struct unit *last = u;
    for (struct node *at = children; at; at = at->next) {
        struct unit *child = (struct unit *)at;
        child->before = last;
        child->behind = last->behind;
        *(last->behind ? &last->behind->before : &r->last) = child;
        last->behind = child;
        last = child;
        r->open++;
    }
}

static void judge(struct step_state *st, struct answering *a, struct unit *u, const struct command_answer *answer)
{
    struct pipeline *p = st->chain->steps->p;
    if (answer->end == COMMAND_ERROR) {
        unit_failed(p, u, RECORD_FAILED, command_error_word(answer->error), answer->text);
    } else if (answer->end == COMMAND_NOT_DONE) {
        u->fate = UNIT_DROPPED;
    } else {
        char kind = record_kind(answer->line, answer->len);
        if (kind == 'n') {
            u->fate = UNIT_DROPPED;
        } else if (kind == '{') {
            mem_free(u->json);
            if (!(u->json = mem_strndup(answer->line, answer->len)))
                pipeline_out_of_memory(p, "an answer");
            u->len = answer->len;
            unit_passed(p, &a->scratch, &a->space, u, NULL, 0);
        } else {
            not_a_record(p, u, kind, 0);
        }
    }
}

static void answered(void *arg, struct command_record *record, const struct command_answer *answer)
{
    struct step_state *st = arg;
    struct steps *s = st->chain->steps;
    struct unit *u = record->owner;
    struct root *root = u->root, *through = NULL;
    struct answering a = {0};
    struct node *children = NULL;
    size_t count = 0;
    uint64_t bytes = 0, now_ms = clock_ms();
    int many = answer->end == COMMAND_ANSWER && record_kind(answer->line, answer->len) == '[';
    if (many) {
        children = spread(st, u, answer->line, answer->len, &count, &bytes);
        if (u->fate != UNIT_ERROR)
            u->fate = UNIT_DROPPED; /* it is its children now */
    } else {
        judge(st, &a, u, answer);
    }
    for (struct node *at = children; at; at = at->next)
        unit_passed(s->p, &a.scratch, &a.space, (struct unit *)at, NULL, 0);
    pthread_mutex_lock(&s->lock);
    name_out(st, u);
    st->inside--;
    atomic_fetch_sub(&st->chain->inside, 1);
    pace(st, now_ms, 1);
    root->many |= many;
    root->lost |= answer->end == COMMAND_NOT_DONE;
    root->bytes += bytes;
    if (root->bytes > STEPS_RECORD_BYTES)
        root->too_large = 1;
    put_in_place(u, children);
    u->node.next = children;
    steps_settle(s, &u->node, &through);
    name_all(st, now_ms);
    for (size_t i = 0; i < st->chain->count; i++)
        if (st->chain->step[i].command)
            step_command_feed(&st->chain->step[i], 0, now_ms, &through);
    pthread_mutex_unlock(&s->lock);
    steps_through(s, &a.scratch, through); /* the chain may end with that */
    record_scratch_release(&a.scratch);
    buf_release(&a.space);
}

/* The command cannot do its work for anybody: the job is to be held, and its leases go back. */
static void faulted(void *arg, const char *text)
{
    struct step_state *st = arg;
    struct chain *c = st->chain;
    struct steps *s = c->steps;
    struct pipeline *p = s->p;
    pthread_mutex_lock(&s->lock);
    c->faulted = 1;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_lock(&p->lock);
    struct report report = {.kind = REPORT_JOB_FAULT, .job = c->job->id};
    snprintf(report.text, sizeof report.text, "%s: %s", st->is->words, text);
    log_error("job %" PRIu64 ": %s", c->job->id, report.text);
    pipeline_add_report(p, &report);
    for (struct held *h = p->helds; h; h = h->next)
        if (h->chain == c)
            h->give_up = 1;
    pthread_cond_broadcast(&p->to_read);
    pthread_cond_signal(&p->to_write);
    pthread_mutex_unlock(&p->lock);
    budget_poke(&p->budget);
}

enum status step_command_new(struct step_state *st, struct err *e)
{
    const struct job *j = st->chain->job;
    const struct step_spec *spec = st->is->spec;
    char name[64], job[40], step[40];
    snprintf(name, sizeof name, "job %" PRIu64 " step %u", j->id, st->at + 1);
    snprintf(job, sizeof job, "EBB_JOB=%" PRIu64, j->id);
    snprintf(step, sizeof step, "EBB_STEP=%u", st->at + 1);
    const char *env[] = {job, step, NULL};
    st->children = spec->concurrency ? (uint32_t)spec->concurrency : host_processors();
    struct command_opts o = {.shell = spec->command,
                             .dir = spec->dir,
                             .env = env,
                             .name = name,
                             .children = st->children,
                             .timeout_ms = spec->timeout,
                             .answered = answered,
                             .faulted = faulted,
                             .arg = st};
    return command_new(&o, &st->command, e);
}
