/* What a line, an end or a silence means for a record.

   The happy path: a line is JSON and carries its record's id: it is the answer. A line without one is *kept* until it is sure that it is
   nobody else's: until one that carries its id follows, or nothing else is under way and nothing more was said.

   What can fail: all the rest. Children answer in order, so the suspect is the record whose answer was due; where answers and records do not
   match, the first whose answer is not sure.

   Where children end at one record after the other without an answer, the command may be at fault: at once if it never answered any; if it did, a
   record that it has answered before, the *control*, is given to a fresh child. Its answer clears the command, and is thrown away. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "wire/process.h"
#include "workers/command/inside.h"

#define MOST_LOST 5          /* ends from outside at the same record, until it is a suspect all the same */
#define BACK_OFF_MS 20       /* between starts that come to nothing, doubled */
#define BACK_OFF_MAX_MS 300
#define NO_START_MS 100      /* the same where the machine has no process for us */
#define MOST_NO_STARTS 8
#define LOST_MS 500
#define RETRY_MS 1000
#define RETRY_MAX_MS 30000
#define MOST_BATCH 1024

static const struct {
    const char *word;
    unsigned times;
} errors[] = {
#define X(name, word, times, meaning) {word, times},
    COMMAND_ERROR_MAP(X)
#undef X
};

const char *command_error_word(enum command_error error)
{
    return errors[error].word;
}

/* A note for the log, where there may be thousands. */
static int may_note(struct command *c, uint64_t now_ms)
{
    uint64_t left_out;
    return noise_allowed(&c->notes, now_ms, &left_out);
}

/* Records leave -------------------------------------------------------------------------------------------------------------------------- */

static void leave(struct command *c, struct command_record *r, const struct command_answer *a)
{
    char *kept = r->kept; /* the answer, perhaps */
    r->kept = NULL;
    if (r == &c->control) { /* nobody's: if it was answered, that is all */
        c->control_state = CONTROL_AT_REST;
        mem_free(kept);
        return;
    }
    atomic_fetch_sub(&c->inside, 1);
    c->o.answered(c->o.arg, r, a);
    mem_free(kept);
}

void fate_give_back(struct command *c, struct command_record *r)
{
    leave(c, r, &(struct command_answer){.end = COMMAND_NOT_DONE});
}

void fate_again(struct command *c, struct command_record *r)
{
    if (r == &c->control)
        c->control_state = CONTROL_WANTED;
    else
        list_add_front(r->suspect ? &c->suspects : &c->waiting, r);
}

static void leave_error(struct command *c, struct command_record *r, enum command_error error, const char *text)
{
    if (r != &c->control)
        atomic_fetch_add(&c->errors, 1);
    leave(c, r, &(struct command_answer){.end = COMMAND_ERROR, .error = error, .text = text});
}

static void again_later(struct command *c, struct command_record *r, const struct answer *a, uint64_t now_ms)
{
    char text[700];
    uint64_t pause = RETRY_MS << (r->retries < 5 ? r->retries : 5);
    if (pause > RETRY_MAX_MS)
        pause = RETRY_MAX_MS;
    if (a->has_after)
        pause = a->after_ms;
    if (c->down < DOWN_RETRIES)
        c->down++;
    c->down_until_ms = now_ms + pause;
    if (r->retries++ >= c->o.retries) {
        snprintf(text, sizeof text, "the command asked for another try %u times in a row: %s", r->retries, a->text);
        leave_error(c, r, COMMAND_RETRY, text);
        return;
    }
    atomic_fetch_add(&c->retried, 1);
    r->not_before_ms = now_ms + pause;
    struct command_record **at = &c->later.first;
    while (*at && (*at)->not_before_ms <= r->not_before_ms)
        at = &(*at)->next;
    r->next = *at;
    *at = r;
    if (!r->next)
        c->later.last = &r->next;
    c->later.count++;
}

/* r, which was taken off its child, has its answer for sure. */
static void settle(struct command *c, struct child *ch, struct command_record *r, const struct answer *a, const char *line, size_t len, uint64_t now_ms)
{
    ch->answers++;
    c->proven = 1;
    if (c->streak)
        c->start_after_ms = 0;
    c->streak = c->distinct = 0;
    r->suspect = 0;
    if (r == &c->control) {
        leave(c, r, NULL);
        return;
    }
    if (!c->control.line && (c->control.line = mem_strndup(r->line, r->len)))
        c->control.len = r->len; /* without memory for it, without it */
    if (a->kind == ANSWER_RETRY) {
        mem_free(r->kept);
        r->kept = NULL;
        again_later(c, r, a, now_ms);
        return;
    }
    c->down = 0;
    if (a->kind == ANSWER_REFUSED) {
        leave_error(c, r, COMMAND_REFUSED, a->text);
        return;
    }
    atomic_fetch_add(&c->answers, 1);
    leave(c, r, &(struct command_answer){.end = COMMAND_ANSWER, .line = line, .len = len});
}

static void settle_kept(struct command *c, struct child *ch, uint64_t now_ms)
{
    while (ch->kept) {
        struct command_record *r = child_take(ch);
        answer_read(&c->answer, r->kept, r->kept_len, r->id, r->id_len);
        if (c->answer.kind == ANSWER_NOMEM) { /* it was read before: only memory can be out */
            mem_free(r->kept);
            r->kept = NULL;
            fate_again(c, r);
            continue;
        }
        settle(c, ch, r, &c->answer, r->kept, r->kept_len, now_ms);
    }
}

/* Whose fault ---------------------------------------------------------------------------------------------------------------------------- */

static void fault(struct command *c, const char *text)
{
    if (c->over)
        return;
    c->over = 1;
    pthread_mutex_lock(&c->lock);
    c->stopping = 1;
    pthread_mutex_unlock(&c->lock);
    c->o.faulted(c->o.arg, text);
}

/* A child ended without one answer. 1 when that is the command's fault. last: its last words. */
static int fruitless(struct command *c, const struct command_record *r, const char *why, const char *last, int cannot_start, uint64_t now_ms)
{
    char text[1024];
    c->streak++;
    uint32_t i = 0;
    while (i < c->distinct && c->at[i] != r)
        i++;
    if (i == c->distinct && c->distinct < DISTINCT)
        c->at[c->distinct++] = r;
    if (c->streak > 1) {
        uint64_t pause = (uint64_t)BACK_OFF_MS << (c->streak < 10 ? c->streak - 2 : 7);
        c->start_after_ms = now_ms + (pause < BACK_OFF_MAX_MS ? pause : BACK_OFF_MAX_MS);
    }
    if (c->distinct < DISTINCT && r != &c->control && !(cannot_start && !c->proven))
        return 0;
    if (c->proven && c->control.line && r != &c->control) {
        if (c->control_state == CONTROL_AT_REST)
            c->control_state = CONTROL_WANTED;
        return 0;
    }
    if (c->streak == 1)
        snprintf(text, sizeof text, "the command cannot be run: it %s%s%s", why, *last ? ": " : "", last);
    else
        snprintf(text, sizeof text, "the command was started %" PRIu32 " times in a row without one answer; the last time it %s%s%s", c->streak, why,
                 *last ? "; it said: " : "", last);
    fault(c, text);
    return 1;
}

static void first_answer(struct command *c, const struct child *ch, uint64_t now_ms)
{
    uint64_t took = now_ms - ch->started_ms;
    if (took > c->first_ms)
        c->first_ms = took ? took : 1;
}

/* All of its records but `suspect` go back to the front of the line, in their order, without blame. */
static void take_back(struct command *c, struct child *ch, const struct command_record *suspect)
{
    struct command_record *chain = NULL, *r;
    const struct command_record *unsent = ch->unsent;
    size_t sent = ch->sent;
    int begun = 1;
    while (ch->first) {
        r = child_take(ch);
        mem_free(r->kept);
        r->kept = NULL;
        if (r == unsent)
            begun = sent > 0;
        if (r != suspect) {
            if (begun)
                atomic_fetch_add(&c->redone, 1);
            r->next = chain;
            chain = r;
        }
        if (r == unsent)
            begun = 0;
    }
    for (; chain; chain = r) {
        r = chain->next;
        fate_again(c, chain);
    }
}

void fate_failed(struct command *c, struct child *ch, enum command_error error, const char *why, uint64_t now_ms)
{
    char text[1100], last[NOISE_LINE + 8], tail[NOISE_LINE + 64];
    struct command_record *suspect = error == COMMAND_GARBAGE || !ch->due ? ch->first : ch->due;
    int alone = ch->given == 1;
    if (ch->state != CHILD_DYING) {
        child_hear(ch, c->name, &c->noise, now_ms, 1);
        child_kill(ch);
    }
    noise_words(&ch->noise, 1, last, sizeof last);
    noise_words(&ch->noise, NOISE_LAST, tail, sizeof tail);
    take_back(c, ch, suspect);
    if (ch->batch && !alone)
        c->batch = c->batch > 1 ? c->batch / 2 : 1;
    if (may_note(c, now_ms))
        log_warn("%s: command %" PRIu32 ": it %s%s%s; %s", c->name, ch->number, why, *last ? ": " : "", last,
                 alone ? "it had this record alone" : "the record that was due runs again alone, the others without blame");
    int is_fault = ch->answers == 0 && suspect && fruitless(c, suspect, why, tail, error == COMMAND_CRASHED && ch->cannot, now_ms);
    if (!suspect)
        return;
    if (is_fault || suspect == &c->control) {
        fate_give_back(c, suspect);
        return;
    }
    if (alone)
        suspect->failed[error]++;
    if (suspect->failed[error] < errors[error].times) {
        suspect->suspect = 1;
        list_add(&c->suspects, suspect);
        return;
    }
    char times[48] = "";
    if (errors[error].times > 1)
        snprintf(times, sizeof times, ", %u times alone with this record", suspect->failed[error]);
    snprintf(text, sizeof text, "the command %s%s%s%s", why, times, *last ? "; its last words: " : "", last);
    leave_error(c, suspect, error, text);
}

void fate_lost(struct command *c, struct child *ch, const char *why, uint64_t now_ms)
{
    struct command_record *r = ch->due ? ch->due : ch->first;
    if (r && ++r->lost >= MOST_LOST) {
        fate_failed(c, ch, COMMAND_CRASHED, why, now_ms);
        return;
    }
    log_warn("%s: command %" PRIu32 ": it %s; its records run again, without blame", c->name, ch->number, why);
    if (ch->state != CHILD_DYING)
        child_kill(ch);
    take_back(c, ch, NULL);
    c->start_after_ms = now_ms + LOST_MS;
}

void fate_no_start(struct command *c, struct command_record *r, const struct err *e, uint64_t now_ms)
{
    char why[400];
    snprintf(why, sizeof why, "could not be started: %.300s", e->text);
    log_warn("%s: a command cannot be started: %s", c->name, e->text);
    fate_again(c, r);
    c->no_starts++;
    c->start_after_ms = now_ms + ((uint64_t)NO_START_MS << (c->no_starts < 6 ? c->no_starts : 6));
    if (c->no_starts >= MOST_NO_STARTS) {
        char text[1024];
        snprintf(text, sizeof text, "the command %s", why);
        fault(c, text);
    }
}

void fate_not_done(struct command *c, struct child *ch)
{
    while (ch->first)
        fate_give_back(c, child_take(ch));
}

/* What came ------------------------------------------------------------------------------------------------------------------------------- */

static void stray(struct command *c, struct child *ch, const char *line, size_t len, uint64_t now_ms)
{
    char text[1024];
    if (ch->kept) { /* whose it is cannot be said, and so neither whose those before it are */
        fate_failed(c, ch, COMMAND_GARBAGE, "answered with more lines than it was given records", now_ms);
        return;
    }
    answer_read(&c->answer, line, len, NULL, 0);
    if (c->answer.kind == ANSWER_GARBAGE) {
        if (may_note(c, now_ms))
            log_warn("%s: command %" PRIu32 ": %s after its last answer; notes belong on standard error", c->name, ch->number, c->answer.text);
    } else if (ch->echoes) {
        log_warn("%s: command %" PRIu32 ": it answered once more than it was asked; it is started anew", c->name, ch->number);
        child_kill(ch);
    } else {
        snprintf(text, sizeof text, "the command answers with more lines than it is given records, so rows may hold another record's answer; let each answer carry its "
                 "record's id, and begin the job anew (--force)");
        fault(c, text);
    }
}

void fate_line(struct command *c, struct child *ch, const char *line, size_t len, uint64_t now_ms)
{
    struct command_record *r = ch->due;
    char why[640];
    if (!r) {
        stray(c, ch, line, len, now_ms);
        return;
    }
    if (len > c->o.answer_bytes) {
        snprintf(why, sizeof why, "answered with a line of more than %" PRIu64 " bytes", c->o.answer_bytes);
        fate_failed(c, ch, COMMAND_GARBAGE, why, now_ms);
        return;
    }
    answer_read(&c->answer, line, len, r->id, r->id_len);
    if (c->answer.kind == ANSWER_NOMEM) {
        fate_lost(c, ch, "was ended because memory is out here", now_ms);
        return;
    }
    if (c->answer.kind == ANSWER_GARBAGE || c->answer.kind == ANSWER_OTHER) {
        snprintf(why, sizeof why, "answered with %s", c->answer.text);
        fate_failed(c, ch, COMMAND_GARBAGE, why, now_ms);
        return;
    }
    /* behind `unsent`: an answer before its record was written is nobody's */
    if (ch->unsent == r) {
        fate_failed(c, ch, COMMAND_GARBAGE, "answered before it had read the record", now_ms);
        return;
    }
    if (!c->answer.echoes && ch->load == 1 && child_unread(ch) > r->len) {
        fate_failed(c, ch, COMMAND_GARBAGE, "answered before it had read the record", now_ms);
        return;
    }
    uint64_t now_ns = clock_ns();
    if (ch->lines++ == 0)
        first_answer(c, ch, now_ms);
    else if (ch->answered_ns) {
        uint64_t took = now_ns - ch->answered_ns;
        ch->pace_ns = ch->pace_ns ? (ch->pace_ns * 7 + took) / 8 : took;
    }
    ch->due = r->next;
    ch->due_ms = now_ms;
    ch->answered_ns = ch->due ? now_ns : 0; /* the time in which it has nothing to do is not its pace */
    if (c->answer.echoes) {
        ch->echoes = 1;
        if (ch->kept) {
            ch->kept++; /* r goes with them, which keeps the order */
            if (!(r->kept = mem_strndup(line, len))) {
                fate_lost(c, ch, "was ended because memory is out here", now_ms);
                return;
            }
            r->kept_len = len;
            settle_kept(c, ch, now_ms);
            return;
        }
    } else if (ch->batch || ch->due || ch->kept || child_rest(ch)) {
        if (!(r->kept = mem_strndup(line, len))) {
            fate_lost(c, ch, "was ended because memory is out here", now_ms);
            return;
        }
        r->kept_len = len;
        ch->kept++;
        return;
    }
    ch->kept++; /* for child_take: it is answered */
    child_take(ch);
    settle(c, ch, r, &c->answer, line, len, now_ms);
}

void fate_quiet(struct command *c, struct child *ch, uint64_t now_ms)
{
    char why[200];
    if (child_rest(ch) > c->o.answer_bytes) {
        snprintf(why, sizeof why, "answered with a line of more than %" PRIu64 " bytes", c->o.answer_bytes);
        if (ch->load)
            fate_failed(c, ch, COMMAND_GARBAGE, why, now_ms);
        else
            child_kill(ch);
    } else if (ch->kept && !ch->due && child_rest(ch)) {
        fate_failed(c, ch, COMMAND_GARBAGE, "answered with more lines than it was given records", now_ms);
    } else if (ch->kept && !ch->due && !ch->batch) {
        settle_kept(c, ch, now_ms);
    }
}

/* What it ended of, in words. Shells say 128 + N where a program of theirs died of signal N. */
static int describe(int status, int oom, char *out, size_t size)
{
    int number = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status) > 128 && WEXITSTATUS(status) <= 192 ? WEXITSTATUS(status) - 128 : 0;
    const char *name = number ? sigdescr_np(number) : NULL;
    if (WIFSIGNALED(status))
        snprintf(out, size, "died of signal %d (%s)%s", number, name ? name : "?", oom ? ", for want of memory" : "");
    else if (number)
        snprintf(out, size, "ended with exit status %d (signal %d, %s)%s", WEXITSTATUS(status), number, name ? name : "?", oom ? ", for want of memory" : "");
    else
        snprintf(out, size, "ended with exit status %d", WEXITSTATUS(status));
    return number;
}

void fate_ended(struct command *c, struct child *ch, int status, uint64_t now_ms)
{
    char why[200], last[NOISE_LINE + 8];
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && ch->due && child_rest(ch)) { /* the last line may lack its end */
        size_t len = child_rest(ch);
        const char *line = ch->text.data + ch->begun;
        ch->begun = ch->searched = ch->text.len;
        fate_line(c, ch, line, len, now_ms);
    } else if (!ch->due && child_rest(ch)) {
        stray(c, ch, ch->text.data + ch->begun, child_rest(ch), now_ms);
    }
    if (ch->kept && !ch->due) {
        settle_kept(c, ch, now_ms);
        if (ch->batch && c->batch < MOST_BATCH)
            c->batch *= 2;
    }
    int number = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status) - 128;
    uint64_t kills = number == SIGKILL ? process_oom_kills() : 0;
    int oom = number == SIGKILL && kills > c->oom_kills;
    if (oom)
        c->oom_kills = kills;
    describe(status, oom, why, sizeof why);
    if (ch->load) {
        if (number == SIGTERM || number == SIGINT || number == SIGHUP || (number == SIGKILL && !oom)) {
            fate_lost(c, ch, why, now_ms);
        } else if (ch->hung && WIFEXITED(status)) {
            snprintf(why, sizeof why, "passed the record over: when its input was closed it ended (exit status %d) without an answer", WEXITSTATUS(status));
            fate_failed(c, ch, COMMAND_MISSING, why, now_ms);
        } else if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
            fate_failed(c, ch, COMMAND_MISSING, "ended (exit status 0) before it answered", now_ms);
        } else {
            ch->cannot = WIFEXITED(status) && (WEXITSTATUS(status) == 126 || WEXITSTATUS(status) == 127);
            fate_failed(c, ch, COMMAND_CRASHED, why, now_ms);
        }
        return;
    }
    if (ch->hung && ch->lines && !c->buffers) {
        c->buffers = 1;
        c->batch = c->o.ahead;
        log_warn("%s: the command answers only when its input ends: it keeps its answers in a buffer. It is started anew for each batch of records; "
                 "let it flush each line (python -u, jq --unbuffered, sed -u, stdbuf -oL)", c->name);
    }
    if (ch->state == CHILD_UP && !c->over && !ch->batch && may_note(c, now_ms)) {
        noise_words(&ch->noise, 1, last, sizeof last);
        log_warn("%s: command %" PRIu32 ": it %s after %" PRIu64 " answers, where it should go on until its input ends%s%s", c->name, ch->number, why, ch->answers,
                 *last ? ": " : "", last);
    }
}

void fate_hung(struct command *c, struct child *ch, uint64_t now_ms)
{
    char why[200];
    uint64_t s = c->o.timeout_ms / 1000, ms = c->o.timeout_ms % 1000;
    const char *more = ch->lines ? "" : ", nor when its input had ended";
    if (ms || !s)
        snprintf(why, sizeof why, "did not answer within %" PRIu64 " ms%s", c->o.timeout_ms, more);
    else
        snprintf(why, sizeof why, "did not answer within %" PRIu64 " s%s", s, more);
    fate_failed(c, ch, COMMAND_HUNG, why, now_ms);
}
