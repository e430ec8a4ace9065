/* Leases inside a worker, against a model that does everything one after the other: random records in several sources, results in random
   order, errors, cuts in the middle, commits that fail, holes. What is committed, taken together, is each record once, in order, with the
   lines that a person would count. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/status.h"
#include "workers/pipeline/held.h"

#define MOST 400

static uint64_t seed;

static uint32_t rnd(uint32_t below)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)(seed >> 33) % below;
}

struct truth { /* a record, or (gap) the end of a source */
    struct span cell;
    size_t source;
    int gap, error;
    uint64_t line;       /* in its source, from 0 */
    uint64_t lines_after;
};

struct world {
    struct input *inputs;
    size_t sources;
    struct truth t[MOST];
    size_t count;
    struct span all;
    uint64_t rows[MOST];  /* times that it was committed */
};

/* Sources with records of 1 to 9 positions; a record's cell may hold some blank lines before it. */
static void make_world(struct world *w)
{
    memset(w, 0, sizeof *w);
    w->sources = 1 + rnd(4);
    w->inputs = mem_array(w->sources, sizeof *w->inputs);
    uint64_t at = 100;
    w->all.begin = at;
    for (size_t s = 0; s < w->sources; s++) {
        uint64_t lines = 0;
        w->inputs[s].source.base = at;
        w->inputs[s].source.path = mem_strdup("x");
        w->inputs[s].index = s + 10;
        for (size_t n = rnd(60); n; n--) {
            uint64_t blank = rnd(4) ? 0 : rnd(3), len = 1 + rnd(9);
            struct truth *t = &w->t[w->count++];
            *t = (struct truth){.cell = {at, at + blank + len}, .source = s, .error = rnd(6) == 0, .line = lines + blank};
            lines += blank + 1;
            t->lines_after = lines;
            at += blank + len;
        }
        uint64_t tail = at == w->inputs[s].source.base ? 3 : rnd(3);
        if (tail) {
            w->t[w->count++] = (struct truth){.cell = {at, at + tail}, .source = s, .gap = 1, .line = lines, .lines_after = lines + tail};
            at += tail;
        }
        w->inputs[s].end = at;
    }
    w->all.end = at;
}

/* The items that a reader would make of a lease that begins with record `first`. */
static struct item *make_item(const struct world *w, struct held *h, size_t k, uint64_t entry_lines)
{
    const struct truth *t = &w->t[k];
    const struct input *in = &h->inputs[t->source];
    uint64_t less = in->source.base < h->span.begin ? entry_lines : 0, before = 0;
    if (k && w->t[k - 1].source == t->source)
        before = w->t[k - 1].lines_after;
    struct item *i = item_new();
    i->held = held_ref(h);
    i->input = in;
    i->cell = i->record = t->cell;
    i->line = t->line - less;
    i->lines_before = before - less;
    i->lines_after = t->lines_after - less;
    i->bytes = t->cell.end - t->cell.begin;
    i->charge = 10;
    i->tokens = (uint32_t)k;
    if (t->gap)
        i->state = ITEM_GAP;
    return i;
}

struct extent_seen {
    struct span span;
    uint64_t lines, bytes;
    uint64_t error_at[MOST], error_line[MOST];
    size_t errors;
};

struct log {
    struct extent_seen *x;
    size_t count;
};

static void note_runs(struct world *w, struct log *log, const struct run *runs, size_t n)
{
    for (size_t k = 0; k < n; k++) {
        log->x = realloc(log->x, (log->count + 1) * sizeof *log->x);
        struct extent_seen *x = &log->x[log->count++];
        memset(x, 0, sizeof *x);
        x->span = (struct span){runs[k].first->cell.begin, runs[k].last->cell.end};
        run_measure(&runs[k], &x->lines, &x->bytes);
        size_t count = 0;
        for (struct item *i = runs[k].first, *later; i; i = later) {
            later = i->later;
            if (later)
                assert_int_equal(later->cell.begin, i->cell.end);
            w->rows[i->tokens]++;
            if (i->state == ITEM_ERROR) {
                x->error_at[x->errors] = i->tokens;
                x->error_line[x->errors++] = run_line(&runs[k], i);
            }
            count++;
        }
        assert_int_equal(count, runs[k].count);
        /* the lines need the whole run: free it afterwards */
        for (struct item *i = runs[k].first, *later; i; i = later) {
            later = i->later;
            item_free(i);
        }
    }
}

static int by_begin(const void *a, const void *b)
{
    const struct extent_seen *x = a, *y = b;
    return x->span.begin < y->span.begin ? -1 : x->span.begin > y->span.begin;
}

/* As the assembler reads extents: they tile, and lines are prefix sums. */
static void check_log(const struct world *w, struct log *log, uint64_t begin, uint64_t end)
{
    if (log->count)
        qsort(log->x, log->count, sizeof *log->x, by_begin);
    uint64_t at = begin, lines = 0, bytes = 0;
    size_t source = 0;
    for (size_t k = 0; k < log->count; k++) {
        const struct extent_seen *x = &log->x[k];
        assert_int_equal(x->span.begin, at);
        while (w->inputs[source].end <= at)
            source++;
        if (w->inputs[source].source.base == at)
            lines = 0;
        for (size_t n = 0; n < x->errors; n++) {
            const struct truth *t = &w->t[x->error_at[n]];
            uint64_t base = w->inputs[t->source].source.base;
            assert_int_equal(x->error_line[n] + (base < x->span.begin ? lines : 0), t->line);
        }
        at = x->span.end;
        size_t last = source;
        while (w->inputs[last].end < at)
            last++;
        lines = x->lines + (w->inputs[last].source.base < x->span.begin ? lines : 0);
        bytes += x->bytes;
    }
    assert_int_equal(at, end);
    assert_int_equal(bytes, end - begin);
}

/* One lease from record `first` on, run in random order; returns where it ended (it may be cut). */
static size_t run_lease(struct world *w, struct log *log, size_t first)
{
    size_t stop = first + 1 + rnd((uint32_t)(w->count - first));
    struct span span = {w->t[first].cell.begin, w->t[stop - 1].cell.end};
    uint64_t entry_lines = first && w->t[first - 1].source == w->t[first].source ? w->t[first - 1].lines_after : 0;
    struct input *inputs = mem_array(w->sources, sizeof *inputs);
    for (size_t s = 0; s < w->sources; s++) {
        inputs[s] = w->inputs[s];
        inputs[s].source.path = mem_strdup("x");
        inputs[s].stream = rnd(2) == 0;
    }
    struct held *h = held_new(NULL, 1, span, 0, inputs, w->sources, 0);
    struct item *open[MOST];
    size_t opens = 0, next = first;
    uint64_t now = 0;
    while (!(held_complete(h) && h->done == 0)) {
        now += rnd(20);
        uint32_t what = rnd(10);
        if (what < 4 && h->read_to < h->limit) { /* the reader */
            struct item *i = make_item(w, h, next++, entry_lines);
            if (i->state == ITEM_OPEN)
                open[opens++] = i;
            h->reading = rnd(2) == 0;
            if (h->reading && rnd(4) == 0) { /* a cut arrives while it reads */
                uint64_t at = span.begin + rnd((uint32_t)(span.end - span.begin));
                uint64_t known = w->t[next - 1].cell.end; /* where reading will stand: the earliest that may be given */
                if (at < known)
                    at = h->read_to;
                else
                    at = w->t[next - 1 + rnd((uint32_t)(stop - next + 1))].cell.end;
                enum cut_answer a = held_cut(h, &at, 1);
                assert_true(a == CUT_LATER || (a == CUT_NOW && at == h->limit));
            }
            h->reading = 0;
            held_add(h, i, now);
            uint64_t at;
            if (held_cut_settle(h, &at)) {
                assert_true(at >= h->read_to);
                assert_int_equal(at, h->limit);
            }
        } else if (what < 8 && opens) { /* a result */
            size_t k = rnd((uint32_t)opens);
            struct item *i = open[k];
            open[k] = open[--opens];
            assert_int_equal(held_finish(h, i, w->t[i->tokens].error ? ITEM_ERROR : ITEM_ROW, now), 1);
        } else if (what == 8 && rnd(8) == 0) { /* a cut between records */
            size_t k = next == first ? first : next - 1 + rnd((uint32_t)(stop - next + 1));
            uint64_t at = next == first && rnd(2) ? span.begin : w->t[k].cell.end, asked = at;
            if (held_cut(h, &at, 1) == CUT_NOW) {
                assert_true(at <= h->limit && at >= h->read_to);
                assert_true(at == h->limit || asked == at);
            }
        } else if (held_due(h, now, 50, rnd(12) == 0)) {
            struct run runs[HELD_MOST_RUNS];
            size_t n = held_take(h, now, 50, rnd(2) == 0, runs);
            for (size_t k = 0; k + 1 < n; k++)
                assert_true(runs[k].last->cell.end < runs[k + 1].first->cell.begin);
            h->committed_ms = now;
            h->seq++;
            if (rnd(4) == 0) { /* it could not be written */
                size_t done = h->done;
                held_untake(h, runs, n);
                for (size_t k = 0; k < n; k++)
                    done += runs[k].count;
                assert_int_equal(h->done, done);
            } else {
                note_runs(w, log, runs, n);
            }
        }
    }
    assert_int_equal(h->done_bytes, 0);
    uint64_t end = h->limit;
    struct span *rest;
    size_t rests;
    assert_int_equal(held_rest(h, &rest, &rests), 0);
    assert_int_equal(rests, 0);
    mem_free(rest);
    assert_int_equal(opens, 0);
    held_unref(h);
    while (first < w->count && w->t[first].cell.begin < end)
        first++;
    return first;
}

static void any_order_comes_to_the_same(void **state)
{
    (void)state;
    for (uint64_t s = 1; s <= 1500; s++) {
        seed = s * 0x9e3779b97f4a7c15u;
        struct world w;
        struct log log = {0};
        make_world(&w);
        for (size_t first = 0; first < w.count;)
            first = run_lease(&w, &log, first);
        check_log(&w, &log, w.all.begin, w.all.end);
        for (size_t i = 0; i < w.count; i++)
            assert_int_equal(w.rows[i], 1);
        free(log.x);
        inputs_free(w.inputs, w.sources);
    }
}

static struct held *simple(size_t cells, struct item **items)
{
    struct input *in = mem_array(1, sizeof *in);
    in->source.path = mem_strdup("x");
    in->end = cells * 10;
    struct held *h = held_new(NULL, 1, (struct span){0, cells * 10}, 0, in, 1, 0);
    for (size_t k = 0; k < cells; k++) {
        items[k] = item_new();
        items[k]->held = held_ref(h);
        items[k]->input = in;
        items[k]->cell = items[k]->record = (struct span){k * 10, k * 10 + 10};
        items[k]->charge = 1;
        held_add(h, items[k], 0);
    }
    return h;
}

static void free_runs(struct run *runs, size_t n)
{
    for (size_t k = 0; k < n; k++)
        for (struct item *i = runs[k].first, *later; i; i = later) {
            later = i->later;
            item_free(i);
        }
}

/* What lies behind a hole waits for one interval more, in the hope that the hole closes and one extent does. */
static void holes_wait_a_while(void **state)
{
    (void)state;
    struct item *items[200];
    struct run runs[HELD_MOST_RUNS];
    struct held *h = simple(200, items);
    assert_int_equal(held_due(h, 1000, 50, 1), 0); /* nothing is done */
    struct span *whole;
    size_t wholes;
    assert_int_equal(held_rest(h, &whole, &wholes), 0);
    assert_int_equal(wholes, 1); /* what touches is one span */
    assert_int_equal(whole[0].end, 2000);
    mem_free(whole);
    assert_int_equal(held_finish(h, items[0], ITEM_ROW, 10), 1);
    assert_int_equal(held_finish(h, items[2], ITEM_ROW, 10), 1);
    assert_int_equal(held_due(h, 49, 50, 0), 0);
    assert_int_equal(held_due(h, 50, 50, 0), 1);
    assert_int_equal(held_take(h, 50, 50, 0, runs), 1);
    assert_int_equal(runs[0].first->cell.begin, 0);
    free_runs(runs, 1);
    assert_int_equal(held_take(h, 59, 50, 0, runs), 0);
    assert_int_equal(held_take(h, 60, 50, 0, runs), 1);
    assert_int_equal(runs[0].first->cell.begin, 20);
    free_runs(runs, 1);
    for (size_t k = 4; k < 200; k += 2) /* 98 runs: not more than 64 in one commit */
        assert_int_equal(held_finish(h, items[k], ITEM_ROW, 100), 1);
    assert_int_equal(held_take(h, 100, 50, 1, runs), 64);
    free_runs(runs, 64);
    assert_int_equal(held_take(h, 100, 50, 1, runs), 34);
    free_runs(runs, 34);
    struct span *rest;
    size_t n;
    assert_int_equal(held_rest(h, &rest, &n), 0);
    assert_int_equal(n, 100);
    assert_int_equal(rest[0].begin, 10);
    assert_int_equal(rest[1].end, 40);
    mem_free(rest);
    assert_int_equal(held_finish(h, items[1], ITEM_ERROR, 100), 1);
    struct item *dropped;
    held_close(h, &dropped);
    assert_ptr_equal(dropped, items[1]);
    assert_null(dropped->later);
    item_free(dropped);
    for (size_t k = 3; k < 200; k += 2) {
        assert_int_equal(held_finish(h, items[k], ITEM_ROW, 100), 0); /* nobody wants it any more */
        item_free(items[k]);
    }
    held_unref(h);
}

/* A stream can be cut only where a record is known to begin. */
static void streams_are_cut_at_records(void **state)
{
    (void)state;
    struct input *in = mem_array(2, sizeof *in);
    for (size_t k = 0; k < 2; k++) {
        in[k].source.path = mem_strdup("x");
        in[k].source.base = k * 100;
        in[k].end = k * 100 + 100;
        in[k].stream = 1;
    }
    struct held *h = held_new(NULL, 1, (struct span){0, 200}, 0, in, 2, 0);
    uint64_t at = 50;
    assert_int_equal(held_cut(h, &at, 0), CUT_SCAN);
    assert_int_equal(at, 50);
    assert_ptr_equal(held_input(h, at), &in[0]);
    at = 100; /* where a source begins, it needs no look */
    assert_int_equal(held_cut(h, &at, 0), CUT_NOW);
    assert_int_equal(h->limit, 100);
    at = 300; /* nothing to give */
    assert_int_equal(held_cut(h, &at, 0), CUT_NOW);
    assert_int_equal(at, 100);
    h->reading = 1;
    at = 60;
    assert_int_equal(held_cut(h, &at, 1), CUT_LATER);
    at = 70; /* the earlier one counts */
    assert_int_equal(held_cut(h, &at, 1), CUT_LATER);
    h->reading = 0;
    assert_int_equal(held_cut_settle(h, &at), 1);
    assert_int_equal(at, 60);
    assert_int_equal(held_cut_settle(h, &at), 0);
    at = 0; /* all of it, before it began */
    assert_int_equal(held_cut(h, &at, 0), CUT_NOW);
    assert_int_equal(at, 0);
    assert_int_equal(held_complete(h), 1);
    held_unref(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_order_comes_to_the_same),
        cmocka_unit_test(holes_wait_a_while),
        cmocka_unit_test(streams_are_cut_at_records),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
