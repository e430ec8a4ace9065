/* A worker is gone with its job. What it left in the shared folder, its black box and the end of its log, is read by a thread: that folder may lie on a
   network. Then the core is told, once what the worker had sent before was dealt with. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "daemon/slurm_inside.h"
#include "daemon/words.h"
#include "wire/process.h"

#define BACK_OFF_MS 2000
#define BACK_OFF_MOST_MS 300000

struct slurm_end {
    struct slurm_end *next;
    struct slurm *s;         /* NULL: the daemon has gone on without it */
    uv_work_t work;
    char id[SLURM_ID_MAX], node[64];
    uint64_t worker;         /* 0: it never said hello */
    enum slurm_state state;
    int status, hung, greeted, failure, ready;
    char *box, *log;
    struct blackbox_record *records;
    size_t count;
    enum blackbox_cause cause;
    char words[240];         /* last ones of its log */
};

static void end_free(struct slurm_end *x)
{
    mem_free(x->records);
    mem_free(x->box);
    mem_free(x->log);
    mem_free(x);
}

static void read_it(uv_work_t *work)
{
    struct slurm_end *x = work->data;
    struct err e;
    int incomplete;
    if (x->worker && blackbox_read(x->box, &x->records, &x->count, &incomplete, &x->cause, &e) != ST_OK)
        log_warn("slurm job %s: the black box of its worker cannot be read: %s", x->id, e.text);
    if (x->worker)
        unlink(x->box);
    if (x->failure)
        process_last_words(x->log, x->words, sizeof x->words);
    if (x->state == SLURM_COMPLETED && x->greeted)
        unlink(x->log); /* it went as it should: nobody will ask */
}

static void was_read(uv_work_t *work, int status)
{
    struct slurm_end *x = work->data;
    (void)status;
    x->ready = 1;
    if (x->s)
        slurm_ends(x->s);
    else
        end_free(x);
}

void slurm_ended(struct slurm *s, struct slurm_job *j, enum slurm_state state, int status)
{
    int failure = !j->greeted && !j->cancel && (state == SLURM_COMPLETED || state == SLURM_FAILED || state == SLURM_OUT_OF_MEMORY ||
                                                state == SLURM_NODE_FAIL || state == SLURM_BOOT_FAIL || state == SLURM_TIMEOUT);
    if (!j->worker && !failure && state != SLURM_COMPLETED)
        return;
    struct slurm_end *x = mem_zalloc(sizeof *x);
    if (!x || !(x->box = mem_printf("%s/%" PRIu64 ".box", s->d->config->slurm_dir, j->worker)) ||
        !(x->log = mem_printf("%s/slurm-%s.log", s->d->config->slurm_dir, j->id))) {
        struct err e;
        err_nomem(&e, "the end of a worker");
        loop_fatal(s->d, &e);
    }
    x->s = s;
    x->work.data = x;
    snprintf(x->id, sizeof x->id, "%s", j->id);
    snprintf(x->node, sizeof x->node, "%s", j->node);
    x->worker = j->worker;
    x->state = state;
    x->status = status;
    x->hung = j->hung_ms != 0;
    x->greeted = j->greeted;
    x->failure = failure;
    if (j->worker)
        map_remove(&s->by_worker, j->worker);
    j->worker = 0;
    j->hung_ms = 0;
    x->next = s->ends;
    s->ends = x;
    uv_queue_work(&s->d->uv, &x->work, read_it, was_read);
}

void slurm_failure(struct slurm *s, const char *id, const char *node, const char *how, const char *words)
{
    uint64_t back_off = BACK_OFF_MS;
    for (unsigned i = 0; i < s->failures && back_off < BACK_OFF_MOST_MS; i++)
        back_off *= 2;
    s->failures++;
    s->submit_ms = clock_ms() + (back_off < BACK_OFF_MOST_MS ? back_off : BACK_OFF_MOST_MS);
    snprintf(s->job_trouble, sizeof s->job_trouble, "jobs end before their worker says hello (%s%s%s: %s)%s%s", id, *node ? " on " : "", node, how,
             *words ? ": " : "", words);
    log_warn("slurm: %s; the next one in %" PRIu64 " s at the earliest", s->job_trouble, (s->submit_ms - clock_ms()) / 1000);
}

static void how_words(const struct slurm_end *x, char *out, size_t size)
{
    if (WIFSIGNALED(x->status))
        snprintf(out, size, "%s, signal %d", slurm_state_word(x->state), WTERMSIG(x->status));
    else if (WEXITSTATUS(x->status))
        snprintf(out, size, "%s, exit %d", slurm_state_word(x->state), WEXITSTATUS(x->status));
    else
        snprintf(out, size, "%s", slurm_state_word(x->state));
}

static void tell(struct slurm *s, struct slurm_end *x)
{
    char how[64];
    how_words(x, how, sizeof how);
    words_tidy(x->words);
    if (x->failure)
        slurm_failure(s, x->id, x->node, how, x->words);
    if (!x->worker)
        return;
    enum worker_end end = slurm_cause(x->state, x->status, x->cause, x->hung);
    struct sched_suspect *suspects = mem_array(x->count, sizeof *suspects);
    if (!suspects) {
        struct err e;
        err_nomem(&e, "the end of a worker");
        loop_fatal(s->d, &e);
    }
    for (size_t i = 0; i < x->count; i++)
        suspects[i] = (struct sched_suspect){x->records[i].job, x->records[i].epoch, x->records[i].record};
    log_info("slurm job %s: its worker ended (%s): %s, %zu records were in it", x->id, how, process_end_word(end), x->count);
    link_ended(s->d->link, x->worker, end, suspects, x->count);
    mem_free(suspects);
}

void slurm_ends(struct slurm *s)
{
    struct slurm_end **at = &s->ends;
    while (*at && s->d->core) { /* without a core there is nobody to tell */
        struct slurm_end *x = *at;
        const struct worker *w = x->worker ? link_worker(s->d->link, x->worker) : NULL;
        if (!x->ready || (w && w->verifying)) {
            at = &x->next;
            continue;
        }
        *at = x->next;
        tell(s, x);
        end_free(x);
        at = &s->ends; /* telling may have begun others */
    }
}

void slurm_ends_free(struct slurm *s)
{
    for (struct slurm_end *x = s->ends, *next; x; x = next) {
        next = x->next;
        x->s = NULL;
        if (x->ready)
            end_free(x);
    }
    s->ends = NULL;
}
