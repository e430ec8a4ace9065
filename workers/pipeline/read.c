/* The reader: one thread, leases in the order in which they came, their sources in order.

   The happy path: take the next lease, see that its job's model is loaded, open each source where the lease enters it, and make an item of
   each record until the lease ends; what is left of a source behind its last record is a gap.

   What can fail: the model (the job's leases go back); a source that changed, or is gone three times over (likewise, and the job is to be held: a
   disk that is mounted again must not cost a record); one that is there and cannot be opened or read, three times over: one error record
   stands for all of its positions that the lease holds, and the next source goes on; the lease is taken away, cut or drained: seen
   between two records. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "workers/group/group.h"
#include "workers/pipeline/stages.h"
#include "workers/pipeline/steps.h"
#include "workers/remote/remote.h"

#define TRIES 3
#define RETRY_MS 200
#define BEYOND_BYTES (64u << 10) /* the last record of a lease may end behind it */
#define CHUNK_RECORDS 32      /* handed on together */
#define CHUNK_BYTES (64u << 10)

struct reading {
    struct pipeline *p;
    struct held *h;
    struct input *in;
    struct reader *reader;
    uint64_t lines_at_entry;  /* of the source (or lease) before the place where `reader` entered it */
    uint64_t lines, bytes;    /* so far, in this source; bytes as reader_bytes counts them */
    struct node *chunk, **chunk_tail;
    size_t chunk_count, chunk_bytes;
};

static void hand_on(struct reading *r)
{
    queue_push(&r->p->to_prepare, r->chunk, r->chunk_count);
    r->chunk = NULL;
    r->chunk_tail = &r->chunk;
    r->chunk_count = r->chunk_bytes = 0;
}

/* With the lock held. */
static int goes_on(const struct reading *r)
{
    return !r->p->stopping && !r->p->draining && !r->h->closed && !r->h->give_up;
}

/* Room for a record: 0 when the lease does not go on. What was collected goes to the next stage before anybody waits for room. */
static int enter_budget(struct reading *r, uint64_t bytes)
{
    if (budget_try(&r->p->budget, bytes))
        return 1;
    hand_on(r);
    for (;;) {
        uint64_t pokes = budget_pokes(&r->p->budget);
        pthread_mutex_lock(&r->p->lock);
        int go = goes_on(r);
        pthread_mutex_unlock(&r->p->lock);
        if (!go)
            return 0;
        if (budget_take(&r->p->budget, bytes, pokes))
            return 1;
    }
}

/* A probe's record runs alone, and is safe before the next one begins. */
static void wait_for_probe(struct reading *r)
{
    struct pipeline *p = r->p;
    struct held *h = r->h;
    pthread_mutex_lock(&p->lock);
    while (goes_on(r) && (h->open || h->done || h->acked < h->seq))
        pthread_cond_wait(&p->to_read, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

static struct item *make(struct reading *r, struct span cell)
{
    struct item *i = item_new();
    if (!i)
        pipeline_out_of_memory(r->p, "a record");
    i->held = held_ref(r->h);
    i->input = r->in;
    i->cell = i->record = cell;
    i->line = i->lines_before = i->lines_after = r->lines;
    i->charge = sizeof *i;
    return i;
}

/* Puts the item into its lease; a waiting cut is answered. 0: the lease is closed, the item is gone. */
static int add(struct reading *r, struct item *i)
{
    struct pipeline *p = r->p;
    struct held *h = r->h;
    uint64_t at;
    pthread_mutex_lock(&p->lock);
    h->reading = 0;
    h->reading_to = 0;
    int open = !h->closed;
    if (open) {
        held_add(h, i, clock_ms());
        if (held_cut_settle(h, &at))
            pipeline_cut_answer(p, h->epoch, at);
        if (h->done == 1 || held_complete(h))
            pthread_cond_signal(&p->to_write);
    }
    pthread_mutex_unlock(&p->lock);
    if (!open)
        item_free(i);
    return open;
}

/* The record is read and waits for room, perhaps for long: a cut behind it need not. */
static void waits(struct reading *r, uint64_t end)
{
    struct held *h = r->h;
    uint64_t at;
    pthread_mutex_lock(&r->p->lock);
    h->reading_to = end;
    if (!h->closed && held_cut_settle(h, &at))
        pipeline_cut_answer(r->p, h->epoch, at);
    pthread_mutex_unlock(&r->p->lock);
}

static void not_reading(struct reading *r)
{
    uint64_t at;
    pthread_mutex_lock(&r->p->lock);
    r->h->reading = 0;
    r->h->reading_to = 0;
    if (!r->h->closed && held_cut_settle(r->h, &at)) {
        pipeline_cut_answer(r->p, r->h->epoch, at);
        pipeline_over(r->p, r->h); /* all before the cut may have been acknowledged already */
    }
    pthread_mutex_unlock(&r->p->lock);
}

/* Bytes at rest of a cell: what it covers, or of a compressed stream what the reader took in meanwhile. */
static uint64_t weigh(struct reading *r, struct span cell)
{
    if (r->in->source.compression == COMPRESSION_NONE)
        return cell.end - cell.begin;
    uint64_t now = r->reader ? reader_bytes(r->reader) : r->bytes, more = now - r->bytes;
    r->bytes = now;
    return more;
}

static int add_gap(struct reading *r, uint64_t to)
{
    struct span cell = {r->h->read_to, to};
    uint64_t lines = r->reader ? r->lines_at_entry + reader_lines(r->reader) : r->lines;
    if (cell.begin >= cell.end) {
        not_reading(r);
        return 1;
    }
    struct item *i = make(r, cell);
    i->state = ITEM_GAP;
    i->charge = 0;
    i->lines_after = r->lines = lines;
    i->bytes = weigh(r, cell);
    return add(r, i);
}

static int add_record(struct reading *r, const struct raw *raw, uint64_t limit)
{
    struct pipeline *p = r->p;
    uint64_t base = r->in->source.base, begin = base + raw->offset, end = base + raw->end;
    struct span cell = {r->h->read_to, end > limit ? limit : end};
    if (cell.end <= cell.begin) /* an error that stands for no byte of its own */
        cell.end = cell.begin + 1;
    struct item *i = make(r, cell);
    i->record = (struct span){begin, end > begin ? end : begin + 1};
    i->line = r->lines_at_entry + raw->line;
    /* a line whose end lies behind the limit has none before it */
    i->lines_after = r->lines = end > limit ? i->line : r->lines_at_entry + reader_lines(r->reader);
    i->bytes = weigh(r, cell);
    i->error = raw->error;
    i->charge += raw->len + r->h->loaded->record_bytes;
    i->raw = mem_alloc(raw->len + 1);
    if (!i->raw)
        pipeline_out_of_memory(p, "a record");
    memcpy(i->raw, raw->data, raw->len);
    i->raw[raw->len] = 0;
    i->raw_len = raw->len;
    if (raw->error != RECORD_NONE && !(i->message = mem_strdup(raw->message)))
        pipeline_out_of_memory(p, "a record");
    uint64_t charge = i->charge;
    waits(r, cell.end);
    if (!enter_budget(r, charge)) {
        not_reading(r); /* whoever gets the rest begins with it */
        item_free(i);
        return 0;
    }
    if (!add(r, i)) {
        budget_through(&p->budget, 1, 1, charge, 0, clock_ms());
        return 0;
    }
    *r->chunk_tail = &i->node;
    r->chunk_tail = &i->node.next;
    r->chunk_count++;
    r->chunk_bytes += charge;
    if (r->h->probe || r->chunk_count >= CHUNK_RECORDS || r->chunk_bytes >= CHUNK_BYTES)
        hand_on(r);
    if (r->h->probe)
        wait_for_probe(r);
    return 1;
}

/* One error for all that the lease holds of the source from here on. */
static int add_unreadable(struct reading *r, const char *why)
{
    struct pipeline *p = r->p;
    struct held *h = r->h;
    if (r->reader)
        reader_close(r->reader);
    r->reader = NULL;
    pthread_mutex_lock(&p->lock);
    struct span cell = {h->read_to, r->in->end < h->limit ? r->in->end : h->limit};
    h->reading = cell.begin < cell.end; /* the limit stays until it is in */
    pthread_mutex_unlock(&p->lock);
    if (cell.begin >= cell.end)
        return 1;
    log_warn("job %" PRIu64 " lease %" PRIx64 ": '%s' from offset %" PRIu64 " on becomes an error: %s", h->job->id, h->epoch, r->in->source.path,
             cell.begin - r->in->source.base, why);
    struct item *i = make(r, cell);
    i->bytes = weigh(r, cell);
    if (!enter_budget(r, i->charge)) {
        not_reading(r);
        item_free(i);
        return 0;
    }
    uint64_t charge = i->charge;
    if (!add(r, i)) {
        budget_through(&p->budget, 1, 1, charge, 0, clock_ms());
        return 0;
    }
    pipeline_failed(p, i, RECORD_UNREADABLE, why);
    if (h->probe)
        wait_for_probe(r);
    return 1;
}

/* A header that cannot be read spoils its own source, not the job. */
static enum status need_columns(struct reading *r, struct err *e)
{
    struct input *in = r->in;
    if (!r->h->job->columns || in->has_columns || in->refused)
        return ST_OK;
    enum status st = reader_columns(&in->source, &r->h->job->reading, &in->columns, e);
    in->has_columns = st == ST_OK;
    if (st != ST_USER)
        return st;
    in->refused = mem_strdup(e->text);
    return in->refused ? ST_OK : err_nomem(e, "a header");
}

/* As a file of this machine, or through the daemon. */
static enum status settle(struct reading *r, struct err *e)
{
    struct pipeline *p = r->p;
    if (!p->o.remote || r->in->settled)
        return ST_OK;
    struct source s = r->in->source;
    TRY(remote_settle(p->o.remote, r->h->job->id, r->in->index, &s, e));
    pthread_mutex_lock(&p->lock);
    r->in->source = s;
    r->in->settled = 1;
    pthread_mutex_unlock(&p->lock);
    return ST_OK;
}

/* Small sources through the relay would each wait for the way there and back. */
static void look_ahead(const struct reading *r)
{
    const struct held *h = r->h;
    size_t at = (size_t)(r->in - h->inputs);
    for (size_t i = at + 1; r->in->source.via && i < h->input_count && i <= at + REMOTE_AHEAD && h->inputs[i].source.base < h->limit; i++)
        remote_soon(r->p->o.remote, h->job->id, h->inputs[i].index, &h->inputs[i].source);
}

static enum status open_source(struct reading *r, struct err *e)
{
    struct held *h = r->h;
    uint64_t base = r->in->source.base, from = h->read_to > base ? h->read_to - base : 0;
    struct reader *reader;
    TRY(settle(r, e));
    look_ahead(r);
    struct source s = r->in->source;
    if (s.compression == COMPRESSION_NONE && h->limit > base)
        s.until = h->limit - base + BEYOND_BYTES;
    TRY(reader_open(&s, &h->job->reading, from, &reader, e));
    enum status st = need_columns(r, e);
    if (st != ST_OK) {
        reader_close(reader);
        return st;
    }
    r->reader = reader;
    r->lines_at_entry = r->lines;
    r->bytes = 0;
    return ST_OK;
}

/* Whether another try may help; waits before it. */
static int try_again(struct reading *r, enum status st, int *tries)
{
    if (st == ST_NOMEM)
        pipeline_out_of_memory(r->p, "reading");
    if ((st != ST_ENV && st != ST_NOT_FOUND) || ++*tries >= TRIES)
        return 0;
    hand_on(r);
    clock_sleep_ms((uint64_t)RETRY_MS << (*tries - 1));
    return 1;
}

static void hold_job(struct reading *r, const char *why)
{
    struct pipeline *p = r->p;
    pthread_mutex_lock(&p->lock);
    if (!r->h->closed && !r->h->give_up) {
        struct report report = {.kind = REPORT_JOB_FAULT, .job = r->h->job->id};
        snprintf(report.text, sizeof report.text, "%s", why);
        log_error("job %" PRIu64 ": %s", r->h->job->id, why);
        pipeline_add_report(p, &report);
        r->h->give_up = 1;
        pthread_cond_signal(&p->to_write);
    }
    pthread_mutex_unlock(&p->lock);
}

/* A file that was read here is not as it should be, and the daemon may see another one: what the lease still holds goes back, and whoever gets it next reads the
   source through the daemon. 0: it came from there already, or this machine sees what the daemon sees. */
static int ask_elsewhere(struct reading *r, const char *why)
{
    struct pipeline *p = r->p;
    if (!remote_far(p->o.remote) || !r->in->settled || (r->in->source.via && r->in->source.via->open))
        return 0;
    remote_distrust(p->o.remote, &r->in->source, why);
    pthread_mutex_lock(&p->lock);
    r->h->give_up = 1;
    pthread_cond_signal(&p->to_write);
    pthread_mutex_unlock(&p->lock);
    return 1;
}

/* Where reading may go to now; 0: nowhere. From 1 on the end of what is read next is not known to anybody else. */
static int next_limit(struct reading *r, uint64_t *limit)
{
    struct held *h = r->h;
    pthread_mutex_lock(&r->p->lock);
    int go = goes_on(r) && h->read_to < h->limit;
    if (go)
        h->reading = 1;
    *limit = h->limit;
    pthread_mutex_unlock(&r->p->lock);
    return go;
}

static enum status next_record(struct reading *r, uint64_t to, struct raw *raw, struct err *e)
{
    int errnum = fault_point("worker.read");
    if (errnum)
        return err_errno(e, ST_ENV, errnum, "cannot read '%s'", r->in->source.path);
    return reader_next(r->reader, to, raw, e);
}

/* 1: the source is through, go on with the next; 0: the lease does not go on. */
static int read_source(struct reading *r)
{
    struct err e;
    int tries = 0;
    uint64_t limit, base = r->in->source.base;
    r->lines = 0;
    for (;;) {
        if (!next_limit(r, &limit))
            return r->h->read_to >= r->in->end;
        uint64_t to = (limit < r->in->end ? limit : r->in->end);
        enum status st = r->reader ? ST_OK : open_source(r, &e);
        struct raw raw;
        if (st == ST_OK)
            st = next_record(r, to - base, &raw, &e);
        if (st == ST_OK) {
            tries = 0;
            if (!add_record(r, &raw, to))
                return 0;
            continue;
        }
        if (st == ST_END) /* while it counts as reading: what was asked for has no more records, whatever is cut meanwhile */
            return add_gap(r, to);
        not_reading(r);
        if (try_again(r, st, &tries)) {
            if (r->reader)
                reader_close(r->reader);
            r->reader = NULL;
            continue;
        }
        if (ask_elsewhere(r, e.text))
            return 0;
        if (st == ST_NOT_FOUND)
            err_prefix(&e, "a source is gone: bring it back as it was, then resume");
        if (st == ST_USER || st == ST_NOT_FOUND) {
            hold_job(r, e.text);
            return 0;
        }
        return add_unreadable(r, e.text);
    }
}

static void read_lease(struct pipeline *p, struct held *h)
{
    struct reading r = {.p = p, .h = h};
    r.chunk_tail = &r.chunk;
    if (h->probe) { /* alone: nothing else is in a lane */
        for (;;) {
            uint64_t pokes = budget_pokes(&p->budget);
            pthread_mutex_lock(&p->lock);
            int go = goes_on(&r);
            pthread_mutex_unlock(&p->lock);
            if (!go || budget_records(&p->budget) == 0)
                break;
            budget_wait_idle(&p->budget, pokes);
        }
    }
    for (;;) {
        pthread_mutex_lock(&p->lock);
        int go = goes_on(&r) && h->read_to < h->limit;
        pthread_mutex_unlock(&p->lock);
        if (!go)
            break;
        r.in = held_input(h, h->read_to);
        go = read_source(&r);
        if (r.reader)
            reader_close(r.reader);
        r.reader = NULL;
        if (!go)
            break;
    }
    hand_on(&r);
}

/* The job's model, loaded: 0 when it cannot be, which has been said then. */
static int load(struct pipeline *p, struct held *h)
{
    pthread_mutex_lock(&p->lock);
    struct loaded *old = NULL;
    int shell = group_heads(p->group, h->job->id);
    if (p->loaded && loaded_fits(p->loaded, h->job) && p->loaded->shell == shell) {
        h->loaded = loaded_ref(p->loaded);
    } else {
        old = p->loaded;
        p->loaded = NULL;
    }
    pthread_mutex_unlock(&p->lock);
    if (h->loaded)
        return 1;
    loaded_unref(old); /* its memory goes with the last record that needs it */
    struct err e;
    struct loaded *l;
    struct model_opts machine = {.isa = p->o.isa, .pack_dir = p->o.pack_dir, .pack_bytes = p->o.pack_bytes, .lanes = p->o.lanes,
                                 .memory_bytes = p->o.memory_bytes, .other_bytes = PIPELINE_OWN_BYTES + p->budget.most_bytes};
    enum status st = shell ? loaded_open_part(h->job, &machine, p->o.remote, 0, 0, &l, &e) : loaded_open(h->job, &machine, p->o.remote, &l, &e);
    if (st == ST_NOMEM)
        pipeline_out_of_memory(p, "the model");
    struct report report = {.kind = REPORT_MODEL_READY, .job = h->job->id, .model_key = h->job->model_key};
    pthread_mutex_lock(&p->lock);
    if (st == ST_OK) {
        p->loaded = l;
        h->loaded = loaded_ref(l);
        memcpy(report.digest, l->info->digest.bytes, sizeof report.digest);
        snprintf(report.numerics, sizeof report.numerics, "%s", l->info->numerics);
        report.load_ms = l->load_ms;
        report.dims = l->info->dims;
        log_info("job %" PRIu64 ": model '%s' is loaded in %" PRIu64 " ms (%s)", h->job->id, l->info->name, l->load_ms, l->info->numerics);
    } else {
        report.kind = REPORT_MODEL_FAILED;
        report.machine = st == ST_ENV;
        snprintf(report.text, sizeof report.text, "%s", e.text);
        log_error("job %" PRIu64 ": %s", h->job->id, e.text);
        h->give_up = 1;
        pthread_cond_signal(&p->to_write);
    }
    pipeline_add_report(p, &report);
    pthread_mutex_unlock(&p->lock);
    return st == ST_OK;
}

void *read_run(void *arg)
{
    struct pipeline *p = ((struct stage *)arg)->pipeline;
    pthread_mutex_lock(&p->lock);
    while (!p->stopping) {
        struct held *h = p->draining ? NULL : p->helds;
        while (h && (h->stage != HELD_WAITING || h->closed))
            h = h->next;
        if (!h) {
            pthread_cond_wait(&p->to_read, &p->lock);
            continue;
        }
        held_ref(h);
        h->stage = HELD_READING;
        p->reading = 1;
        pthread_mutex_unlock(&p->lock);
        if (load(p, h) && steps_attach(p, h))
            read_lease(p, h);
        pthread_mutex_lock(&p->lock);
        h->stage = HELD_READ;
        p->reading = 0;
        pthread_cond_signal(&p->to_write);
        held_unref(h);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}
