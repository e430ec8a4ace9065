#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim.h"

static struct image_job *job_of(struct sim *m, struct image *i, uint64_t job)
{
    if (job < 1 || job > MAX_JOBS)
        sim_fail(m, "row of job %" PRIu64 ", which does not exist", job);
    return &i->jobs[job - 1];
}

static size_t span_slot(const struct image_job *j, uint64_t begin)
{
    size_t low = 0, high = j->span_count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (j->spans[mid].span.begin < begin)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static void cover(struct sim *m, struct image_job *j, struct span s)
{
    size_t k = 0;
    while (k < j->cover_count && j->cover[k].end < s.begin)
        k++;
    /* run k touches or follows s */
    if (k < j->cover_count && j->cover[k].end > s.begin && j->cover[k].begin < s.end)
        sim_fail(m, "job %" PRIu64 ": %" PRIu64 "-%" PRIu64 " is done twice", j->row.id, s.begin, s.end);
    if (k < j->cover_count && j->cover[k].end == s.begin) {
        if (k + 1 < j->cover_count && j->cover[k + 1].begin < s.end)
            sim_fail(m, "job %" PRIu64 ": %" PRIu64 "-%" PRIu64 " is done twice", j->row.id, s.begin, s.end);
        j->cover[k].end = s.end;
        if (k + 1 < j->cover_count && j->cover[k + 1].begin == s.end) {
            j->cover[k].end = j->cover[k + 1].end;
            memmove(j->cover + k + 1, j->cover + k + 2, (j->cover_count - k - 2) * sizeof *j->cover);
            j->cover_count--;
        }
        return;
    }
    if (k < j->cover_count && j->cover[k].begin == s.end) {
        j->cover[k].begin = s.begin;
        return;
    }
    j->cover = xgrow(j->cover, &j->cover_cap, j->cover_count, sizeof *j->cover);
    memmove(j->cover + k + 1, j->cover + k, (j->cover_count - k) * sizeof *j->cover);
    j->cover[k] = s;
    j->cover_count++;
}

void image_uncover(struct sim *m, struct image *i, uint64_t job, const struct span *spans, size_t count)
{
    struct image_job *j = job_of(m, i, job);
    for (size_t c = 0; c < count; c++) {
        size_t k = 0;
        while (k < j->cover_count && j->cover[k].end <= spans[c].begin)
            k++;
        if (k == j->cover_count || j->cover[k].begin > spans[c].begin || j->cover[k].end < spans[c].end)
            sim_fail(m, "retry of a record that is not done");
        struct span right = {spans[c].end, j->cover[k].end};
        j->cover[k].end = spans[c].begin;
        if (j->cover[k].begin == j->cover[k].end) {
            memmove(j->cover + k, j->cover + k + 1, (j->cover_count - k - 1) * sizeof *j->cover);
            j->cover_count--;
        }
        if (right.begin < right.end)
            cover(m, j, right);
        for (size_t b = 0; b < j->bad_count; b++)
            if (j->bad[b].span.begin == spans[c].begin) {
                j->bad[b] = j->bad[--j->bad_count];
                break;
            }
        j->records--;
        j->errors--;
    }
}

void image_apply(struct sim *m, struct image *i, const struct sched_action *a)
{
    struct image_job *j;
    size_t k;
    switch (a->kind) {
    case SCHED_DO_PUT_JOB:
        j = job_of(m, i, a->job);
        j->exists = 1;
        j->row = a->u.job;
        return;
    case SCHED_DO_DEL_JOB:
        j = job_of(m, i, a->job);
        free(j->spans);
        free(j->cover);
        free(j->bad);
        *j = (struct image_job){0};
        return;
    case SCHED_DO_PUT_SPAN:
        j = job_of(m, i, a->job);
        k = span_slot(j, a->u.span.span.begin);
        if (k == j->span_count || j->spans[k].span.begin != a->u.span.span.begin) {
            j->spans = xgrow(j->spans, &j->span_cap, j->span_count, sizeof *j->spans);
            memmove(j->spans + k + 1, j->spans + k, (j->span_count - k) * sizeof *j->spans);
            j->span_count++;
        }
        j->spans[k] = a->u.span;
        return;
    case SCHED_DO_DEL_SPAN:
        j = job_of(m, i, a->job);
        k = span_slot(j, a->u.span.span.begin);
        if (k == j->span_count || j->spans[k].span.begin != a->u.span.span.begin)
            sim_fail(m, "job %" PRIu64 ": deletes span %" PRIu64 ", which is not stored", a->job, a->u.span.span.begin);
        memmove(j->spans + k, j->spans + k + 1, (j->span_count - k - 1) * sizeof *j->spans);
        j->span_count--;
        return;
    case SCHED_DO_PUT_EXTENT:
        j = job_of(m, i, a->job);
        cover(m, j, a->u.extent.span);
        j->records += a->u.extent.records;
        j->errors += a->u.extent.errors;
        if (a->u.extent.errors) {
            j->bad = xgrow(j->bad, &j->bad_cap, j->bad_count, sizeof *j->bad);
            j->bad[j->bad_count++] = (struct bad_record){a->u.extent.span, a->u.extent.epoch == 0};
        }
        return;
    default:
        return;
    }
}

static void *copy(const void *from, size_t bytes)
{
    if (!bytes)
        return NULL;
    return memcpy(xmalloc(bytes), from, bytes);
}

void image_copy(struct image *to, const struct image *from)
{
    image_release(to);
    for (size_t k = 0; k < MAX_JOBS; k++) {
        const struct image_job *f = &from->jobs[k];
        struct image_job *t = &to->jobs[k];
        *t = *f;
        t->spans = copy(f->spans, f->span_count * sizeof *f->spans);
        t->cover = copy(f->cover, f->cover_count * sizeof *f->cover);
        t->bad = copy(f->bad, f->bad_count * sizeof *f->bad);
        t->span_cap = t->span_count;
        t->cover_cap = t->cover_count;
        t->bad_cap = t->bad_count;
    }
}

void image_release(struct image *i)
{
    for (size_t k = 0; k < MAX_JOBS; k++) {
        free(i->jobs[k].spans);
        free(i->jobs[k].cover);
        free(i->jobs[k].bad);
    }
    *i = (struct image){0};
}

struct walk {
    struct sim *m;
    const struct image_job *j;
    size_t at;
};

static int same_row(const struct span_row *a, const struct span_row *b)
{
    return a->span.begin == b->span.begin && a->span.end == b->span.end && a->state == b->state && a->worker == b->worker &&
           a->epoch == b->epoch && a->next_seq == b->next_seq && a->attempts == b->attempts && a->losses == b->losses &&
           a->probe == b->probe && a->crashes == b->crashes && a->crash_host == b->crash_host;
}

static void compare(void *arg, const struct span_row *row)
{
    struct walk *w = arg;
    if (w->at >= w->j->span_count || !same_row(row, &w->j->spans[w->at]))
        sim_fail(w->m, "job %" PRIu64 ": the store and the core differ at span %" PRIu64, w->j->row.id, row->span.begin);
    w->at++;
}

void image_compare(struct sim *m, const struct image *i, const struct sched *s)
{
    for (size_t k = 0; k < MAX_JOBS; k++) {
        const struct image_job *j = &i->jobs[k];
        struct sched_job_view v;
        if (!sched_job_view(s, k + 1, &v)) {
            if (j->exists)
                sim_fail(m, "job %zu is in the store only", k + 1);
            continue;
        }
        if (!j->exists || j->row.state != v.row->state || memcmp(&j->row.counts, &v.row->counts, sizeof j->row.counts) ||
            j->row.attempt != v.row->attempt || j->row.numerics != v.row->numerics || strcmp(j->row.reason, v.row->reason))
            sim_fail(m, "job %zu: the store and the core differ", k + 1);
        struct walk w = {m, j, 0};
        sched_spans(s, k + 1, compare, &w);
        if (w.at != j->span_count)
            sim_fail(m, "job %zu: %zu spans in the store, %zu in the core", k + 1, j->span_count, w.at);
        uint64_t pos = 0, end = layout_end(&m->data[k].layout);
        size_t a = 0, b = 0;
        while (pos < end) { /* what is done and what is not make up the dataset, exactly */
            if (a < j->cover_count && j->cover[a].begin == pos)
                pos = j->cover[a++].end;
            else if (b < j->span_count && j->spans[b].span.begin == pos)
                pos = j->spans[b++].span.end;
            else
                sim_fail(m, "job %zu: position %" PRIu64 " is lost or held twice", k + 1, pos);
        }
        if (a != j->cover_count || b != j->span_count)
            sim_fail(m, "job %zu: spans overlap", k + 1);
        if (j->records != j->row.counts.records || j->errors != j->row.counts.errors)
            sim_fail(m, "job %zu: %" PRIu64 " records are done, the counter says %" PRIu64, k + 1, j->records, j->row.counts.records);
    }
}
