/* A lease is cut: the daemon asks for its tail. Where reading stands between two records of a plain source the answer is known at once; in the middle
   of a record the reader gives it; in a stream a thread looks for a record's begin first. */
#include <inttypes.h>

#include "base/log.h"
#include "base/mem.h"
#include "workers/pipeline/stages.h"
#include "workers/remote/remote.h"

struct scan {
    struct pipeline *pipeline;
    struct held *held;
    uint64_t at, from;
};

/* Looks for a record's begin in a stream, on a handle of its own, so that neither the reader nor the link waits. */
static void *scan_run(void *arg)
{
    struct scan *s = arg;
    struct pipeline *p = s->pipeline;
    struct held *h = s->held;
    const struct input *in = held_input(h, s->at);
    struct err e;
    uint64_t found = 0;
    pthread_mutex_lock(&p->lock);
    struct source source = in->source;
    int settled = in->settled;
    pthread_mutex_unlock(&p->lock);
    enum status st = settled || !p->o.remote ? ST_OK : remote_settle(p->o.remote, h->job->id, in->index, &source, &e);
    if (st == ST_OK)
        st = reader_boundary(&source, &h->job->reading, s->from - in->source.base, s->at - in->source.base, &found, &e);
    if (st == ST_NOMEM)
        pipeline_out_of_memory(p, "a cut");
    pthread_mutex_lock(&p->lock);
    uint64_t at = in->source.base + found;
    if (st != ST_OK) {
        log_warn("lease %" PRIx64 " cannot be cut: %s", h->epoch, e.text);
        at = UINT64_MAX;
    } else if (at < s->at) {
        at = in->end; /* no record begins there: the source goes as a whole */
    }
    if (!h->closed && held_cut(h, &at, 1) == CUT_NOW) {
        pipeline_cut_answer(p, h->epoch, at);
        pthread_cond_broadcast(&p->to_read);
        pthread_cond_signal(&p->to_write);
        pipeline_over(p, h);
    }
    held_unref(h);
    p->scans--; /* nothing of the pipeline is touched behind this */
    pthread_mutex_unlock(&p->lock);
    mem_free(s);
    return NULL;
}

/* With the lock held. */
static void begin_scan(struct pipeline *p, struct held *h, uint64_t at)
{
    const struct input *in = held_input(h, at);
    struct scan *s = mem_alloc(sizeof *s);
    if (!s)
        pipeline_out_of_memory(p, "a cut");
    *s = (struct scan){.pipeline = p, .held = held_ref(h), .at = at, .from = h->read_to > in->source.base ? h->read_to : in->source.base};
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_t thread;
    p->scans++;
    if (pthread_create(&thread, &attributes, scan_run, s)) {
        p->scans--;
        held_unref(h);
        mem_free(s);
        pipeline_cut_answer(p, h->epoch, h->limit);
    }
    pthread_attr_destroy(&attributes);
}

void pipeline_cut(struct pipeline *p, uint64_t epoch, uint64_t at)
{
    pthread_mutex_lock(&p->lock);
    struct held *h = pipeline_find(p, epoch);
    if (h && h->closed)
        pipeline_cut_answer(p, epoch, h->span.end);
    else if (h)
        switch (held_cut(h, &at, 0)) {
        case CUT_NOW:
            pipeline_cut_answer(p, epoch, at);
            if (!pipeline_over(p, h))
                pthread_cond_signal(&p->to_write); /* it may be complete now */
            pthread_cond_broadcast(&p->to_read);
            break;
        case CUT_LATER:
            break;
        case CUT_SCAN:
            begin_scan(p, h, at);
            break;
        }
    pthread_mutex_unlock(&p->lock);
}
