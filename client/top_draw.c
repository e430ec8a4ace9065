#include "client/top_draw.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "base/units.h"
#include "client/client.h"
#include "client/progress.h"

#define CELL 520 /* bytes; more than any text of the daemon's that is shown */
#define MOST_COLUMNS 9
#define BOLD "\033[1m"
#define REVERSED "\033[7m"
#define RED "\033[31m"
#define DIM "\033[2m"
#define PLAIN "\033[0m"

/* The pool -------------------------------------------------------------------------------------------------------------------------- */

static int by_node_name(const void *a, const void *b)
{
    const json_t *const *x = a, *const *y = b;
    return strcmp(text_of(*x, "host"), text_of(*y, "host"));
}

static const json_t **rows_of(const json_t *list, size_t *count)
{
    *count = json_array_size(list);
    const json_t **rows = mem_array(*count + 1, sizeof *rows);
    for (size_t i = 0; rows && i < *count; i++)
        rows[i] = json_array_get(list, i);
    return rows;
}

static int is_busy(const json_t *w)
{
    const char *state = text_of(w, "state");
    return strcmp(state, "running") == 0 || strcmp(state, "probing") == 0;
}

static int by_name(const void *a, const void *b)
{
    const struct top_node *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* What agents say of the nodes that are there, sorted by name, and of others. */
static void gather_offers(struct top_pool *p)
{
    size_t with_workers = p->node_count, i;
    json_t *offer;
    json_array_foreach(json_object_get(p->offers, "nodes"), i, offer)
    {
        struct top_node key = {.name = text_of(offer, "host")}, *n = with_workers ? bsearch(&key, p->nodes, with_workers, sizeof key, by_name) : NULL;
        if (!n) {
            n = &p->nodes[p->node_count++];
            *n = key;
        }
        n->state = text_of(offer, "state");
        n->reason = text_of(offer, "reason");
    }
}

/* One node for each run of equal hosts. */
static int gather_nodes(struct top_pool *p)
{
    p->nodes = mem_array(p->worker_count + json_array_size(json_object_get(p->offers, "nodes")) + 1, sizeof *p->nodes);
    if (!p->nodes)
        return -1;
    qsort(p->worker_rows, p->worker_count, sizeof *p->worker_rows, by_node_name);
    for (size_t i = 0; i < p->worker_count; i++) {
        const json_t *w = p->worker_rows[i];
        const char *host = text_of(w, "host");
        if (!p->node_count || strcmp(p->nodes[p->node_count - 1].name, host) != 0)
            p->nodes[p->node_count++] = (struct top_node){.name = host, .state = "", .reason = ""};
        struct top_node *n = &p->nodes[p->node_count - 1];
        n->workers++;
        n->busy += (size_t)is_busy(w);
        n->lanes += count_of(w, "lanes");
        n->rss_bytes += count_of(w, "rss_bytes");
        n->records_per_s += number_of(w, "records_per_s", 0);
    }
    gather_offers(p);
    return 0;
}

enum status top_pool_take(struct top_pool *out, json_t *hello, json_t *jobs, json_t *workers, json_t *offers, struct err *e)
{
    *out = (struct top_pool){.hello = hello, .jobs = jobs, .workers = workers, .offers = offers};
    out->job_rows = rows_of(json_object_get(jobs, "jobs"), &out->job_count);
    out->worker_rows = rows_of(json_object_get(workers, "workers"), &out->worker_count);
    if (!out->job_rows || !out->worker_rows || gather_nodes(out)) {
        top_pool_release(out);
        return err_nomem(e, "the pool's figures");
    }
    for (size_t i = 0; i < out->job_count; i++) {
        int running = strcmp(text_of(out->job_rows[i], "state"), "running") == 0;
        out->running += (size_t)running;
        out->records_per_s += running ? number_of(out->job_rows[i], "records_per_s", 0) : 0;
    }
    return ST_OK;
}

void top_pool_release(struct top_pool *p)
{
    mem_free(p->job_rows);
    mem_free(p->worker_rows);
    mem_free(p->nodes);
    json_decref(p->hello);
    json_decref(p->jobs);
    json_decref(p->workers);
    json_decref(p->offers);
    *p = (struct top_pool){0};
}

static const char *name_of(const json_t *w)
{
    return *text_of(w, "name") ? text_of(w, "name") : text_of(w, "worker");
}

/* desk9/2 before desk10/1; equal ones by number, so that nothing jumps about */
static int compare_names(const json_t *a, const json_t *b)
{
    int c = strverscmp(name_of(a), name_of(b));
    return c ? c : strcmp(text_of(a, "worker"), text_of(b, "worker"));
}

static int compare(double a, double b)
{
    return a < b ? -1 : a > b;
}

static enum top_order sorting; /* qsort passes nothing on */

static int by_order(const void *a, const void *b)
{
    const json_t *x = *(const json_t *const *)a, *y = *(const json_t *const *)b;
    int c = sorting == TOP_BY_RATE    ? compare(number_of(y, "records_per_s", 0), number_of(x, "records_per_s", 0))
            : sorting == TOP_BY_STATE ? strcmp(text_of(x, "state"), text_of(y, "state"))
            : sorting == TOP_BY_JOB   ? compare((double)count_of(x, "job"), (double)count_of(y, "job"))
                                      : 0;
    return c ? c : compare_names(x, y);
}

static int nodes_by_order(const void *a, const void *b)
{
    const struct top_node *x = a, *y = b;
    int c = sorting == TOP_BY_RATE    ? compare(y->records_per_s, x->records_per_s)
            : sorting == TOP_BY_STATE ? compare((double)y->workers, (double)x->workers)
            : sorting == TOP_BY_JOB   ? compare((double)y->rss_bytes, (double)x->rss_bytes)
                                      : 0;
    return c ? c : strverscmp(x->name, y->name);
}

void top_pool_sort(struct top_pool *p, enum top_order order)
{
    sorting = order;
    qsort(p->worker_rows, p->worker_count, sizeof *p->worker_rows, by_order);
    qsort(p->nodes, p->node_count, sizeof *p->nodes, nodes_by_order);
}

/* Cells ----------------------------------------------------------------------------------------------------------------------------- */

struct shape {
    size_t columns;
    const char *headings[MOST_COLUMNS];
    void (*row)(const struct top_pool *p, size_t i, char (*cells)[CELL]);
};

static void say_cell(char *cell, const char *text)
{
    snprintf(cell, CELL, "%.510s", *text ? text : "-");
}

static void job_row(const struct top_pool *p, size_t i, char (*cells)[CELL])
{
    struct view v = {0};
    const json_t *job = p->job_rows[i];
    int running;
    view_read(&v, job);
    running = strcmp(v.state, "running") == 0;
    snprintf(cells[0], CELL, "%" PRIu64, v.job);
    say_cell(cells[1], v.name);
    say_cell(cells[2], v.state);
    snprintf(cells[3], CELL, "%d %%", progress_percent(&v));
    say_cell(cells[4], "");
    if (running && v.records_per_s > 0)
        units_rate(cells[4], v.records_per_s);
    say_cell(cells[5], "");
    if (running && v.seconds_left >= 0)
        units_duration(cells[5], v.seconds_left);
    if (v.workers_wanted > v.workers)
        snprintf(cells[6], CELL, "%" PRIu64 "/%" PRIu64, v.workers, v.workers_wanted);
    else
        snprintf(cells[6], CELL, "%" PRIu64, v.workers);
    units_count(cells[7], (double)v.errors);
    snprintf(cells[8], CELL, "%.510s", *v.waits_for ? v.waits_for : v.reason);
}

static void worker_row(const struct top_pool *p, size_t i, char (*cells)[CELL])
{
    const json_t *w = p->worker_rows[i];
    char lease[400];
    double s = number_of(w, "since_s", 0);
    say_cell(cells[0], name_of(w));
    say_cell(cells[1], text_of(w, "host"));
    say_cell(cells[2], text_of(w, "state"));
    snprintf(cells[3], CELL, count_of(w, "job") ? "%" PRIu64 : "-", count_of(w, "job"));
    say_cell(cells[4], "");
    if (number_of(w, "records_per_s", 0) > 0)
        units_rate(cells[4], number_of(w, "records_per_s", 0));
    snprintf(cells[5], CELL, "%d:%02d", (int)(s / 3600), (int)(s / 60) % 60);
    say_cell(cells[6], "");
    if (count_of(w, "rss_bytes"))
        units_bytes(cells[6], count_of(w, "rss_bytes"));
    snprintf(cells[7], CELL, "%" PRIu64, count_of(w, "lanes"));
    say_cell(cells[8], lease_words(w, lease, sizeof lease));
}

static void node_row(const struct top_pool *p, size_t i, char (*cells)[CELL])
{
    const struct top_node *n = &p->nodes[i];
    say_cell(cells[0], n->name);
    snprintf(cells[1], CELL, "%zu", n->workers);
    snprintf(cells[2], CELL, "%zu", n->busy);
    snprintf(cells[3], CELL, "%zu", n->lanes);
    say_cell(cells[4], "");
    if (n->records_per_s > 0)
        units_rate(cells[4], n->records_per_s);
    say_cell(cells[5], "");
    if (n->rss_bytes)
        units_bytes(cells[5], n->rss_bytes);
    say_cell(cells[6], n->state);
    snprintf(cells[7], CELL, "%.510s", n->reason);
}

static const struct shape job_shape = {9, {"JOB", "NAME", "STATE", "DONE", "RATE", "LEFT", "WORKERS", "ERRORS", ""}, job_row};
static const struct shape worker_shape = {9, {"WORKER", "NODE", "STATE", "JOB", "RATE", "SINCE", "MEMORY", "LANES", "LEASE"}, worker_row};
static const struct shape node_shape = {8, {"NODE", "WORKERS", "BUSY", "LANES", "RATE", "MEMORY", "AGENT", ""}, node_row};

/* The screen ------------------------------------------------------------------------------------------------------------------------ */

static int glyph(const char *s, utf8proc_int32_t *point, int *width)
{
    utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)s, -1, point);
    if (n < 1) { /* not UTF-8 */
        *point = -1;
        *width = 1;
        return 1;
    }
    *width = *point < 0x20 || (*point >= 0x7F && *point < 0xA0) ? 1 : utf8proc_charwidth(*point);
    utf8proc_category_t c = utf8proc_category(*point);
    if (*point < 0x20 || (*point >= 0x7F && *point < 0xA0) || c == UTF8PROC_CATEGORY_CF || c == UTF8PROC_CATEGORY_ZL || c == UTF8PROC_CATEGORY_ZP) {
        *point = -1; /* could steer the terminal, or turn the line around */
        *width = 1;
    }
    return (int)n;
}

static int width_of(const char *s)
{
    utf8proc_int32_t point;
    int width, sum = 0;
    while (*s) {
        s += glyph(s, &point, &width);
        sum += width;
    }
    return sum;
}

/* At most `most` columns of the text; *used: how many. */
static int put(struct buf *out, const char *s, int most, int *used)
{
    utf8proc_int32_t point;
    int width, sum = 0, failed = 0;
    while (*s && !failed) {
        int n = glyph(s, &point, &width);
        if (sum + width > most)
            break;
        failed = point < 0 ? buf_char(out, '?') : buf_add(out, s, (size_t)n);
        sum += width;
        s += n;
    }
    *used = sum;
    return failed;
}

static int spaces(struct buf *out, int n)
{
    int failed = 0;
    while (n-- > 0 && !failed)
        failed = buf_char(out, ' ');
    return failed;
}

struct pen {
    struct buf *out;
    const struct top_screen *s;
    int line, failed;
};

/* A whole line; style: "" or what comes before it. */
static void line(struct pen *p, const char *style, const char *text)
{
    int used, styled = p->s->colours && *style;
    if (p->line >= p->s->rows)
        return;
    p->failed = p->failed || (p->line && buf_str(p->out, "\r\n")) || (styled && buf_str(p->out, style)) || put(p->out, text, p->s->columns, &used) ||
                (styled && spaces(p->out, strcmp(style, REVERSED) ? 0 : p->s->columns - used)) || (styled && buf_str(p->out, PLAIN)) || buf_str(p->out, "\033[K");
    p->line++;
}

/* Rows first .. first + count of a table with its heading. Columns are as wide as what is shown of them; the last takes what is left. */
static void table(struct pen *p, const struct top_pool *pool, const struct shape *t, size_t first, size_t count)
{
    char cells[MOST_COLUMNS][CELL];
    int widths[MOST_COLUMNS];
    for (size_t c = 0; c < t->columns; c++)
        widths[c] = width_of(t->headings[c]);
    for (size_t i = first; i < first + count; i++) {
        t->row(pool, i, cells);
        for (size_t c = 0; c < t->columns; c++) {
            int w = width_of(cells[c]);
            widths[c] = w > widths[c] ? w : widths[c];
        }
    }
    for (size_t i = first; i <= first + count; i++) { /* the heading, then the rows */
        struct buf text = {0};
        const char *style = i == first ? BOLD : "";
        int used;
        if (i > first)
            t->row(pool, i - 1, cells);
        for (size_t c = 0; c < t->columns && !p->failed; c++) {
            const char *cell = i == first ? t->headings[c] : cells[c];
            p->failed = put(&text, cell, widths[c], &used) || (c + 1 < t->columns && spaces(&text, widths[c] - used + 2));
            if (i > first && c == 2 && (strcmp(cell, "held") == 0 || strcmp(cell, "lost") == 0))
                style = RED;
        }
        p->failed = p->failed || !buf_cstr(&text);
        if (!p->failed)
            line(p, style, text.data);
        buf_release(&text);
    }
}

static void title(struct pen *p, const struct top_pool *pool)
{
    char text[400], rate[UNITS_MAX], workers[UNITS_MAX], nodes[UNITS_MAX];
    if (!pool->hello)
        snprintf(text, sizeof text, "ebb top - the daemon is being asked");
    else
        snprintf(text, sizeof text, "ebb top - %s on %s - %zu job%s, %zu running - %s worker%s on %s node%s - %s", text_of(pool->hello, "program"),
             text_of(pool->hello, "host"), pool->job_count, pool->job_count == 1 ? "" : "s", pool->running, units_count(workers, (double)pool->worker_count),
             pool->worker_count == 1 ? "" : "s", units_count(nodes, (double)pool->node_count), pool->node_count == 1 ? "" : "s",
             units_rate(rate, pool->records_per_s));
    line(p, REVERSED, text);
    if (*p->s->trouble) {
        char age[UNITS_MAX];
        snprintf(text, sizeof text, "figures are %s old: %s", units_duration(age, p->s->age_s), p->s->trouble);
        line(p, RED, text);
    } else {
        line(p, "", "");
    }
}

int top_draw(const struct top_pool *pool, struct top_screen *s, struct buf *out)
{
    static const char *const orders[] = {
#define X(name, word) word,
        TOP_ORDER_MAP(X)
#undef X
    };
    struct pen p = {.out = out, .s = s};
    char text[300], a[UNITS_MAX];
    if (s->rows < 1 || s->columns < 1)
        return 0;
    p.failed = buf_str(out, "\033[H");
    title(&p, pool);
    /* Of the rows that are left jobs get a third, at least three, and no more than there are; two rows are headings, two stay for distance and keys. */
    size_t room = s->rows > 6 ? (size_t)s->rows - 6 : 0, jobs = room / 3 > 3 ? room / 3 : 3, total = s->nodes ? pool->node_count : pool->worker_count;
    if (total + 2 < room && room - total - 2 > jobs)
        jobs = room - total - 2;
    if (jobs > pool->job_count)
        jobs = pool->job_count;
    if (jobs > room)
        jobs = room;
    table(&p, pool, &job_shape, 0, jobs);
    if (pool->job_count > jobs)
        snprintf(text, sizeof text, "... and %s more: 'ebb jobs'", units_count(a, (double)(pool->job_count - jobs)));
    else
        snprintf(text, sizeof text, "%s", pool->job_count || !pool->hello ? "" : "no jobs under way");
    line(&p, DIM, text);
    s->page = room - jobs;
    if (s->first + s->page > total)
        s->first = total > s->page ? total - s->page : 0;
    size_t shown = total - s->first < s->page ? total - s->first : s->page;
    table(&p, pool, s->nodes ? &node_shape : &worker_shape, s->first, shown);
    while (p.line < s->rows - 1)
        line(&p, "", "");
    snprintf(text, sizeof text, "%zu-%zu of %zu %s by %s   q quit   Tab %s   s sort   arrows, PgUp, PgDn, Home, End", total ? s->first + 1 : 0, s->first + shown, total,
             s->nodes ? "nodes" : "workers", s->nodes && s->order == TOP_BY_STATE ? "workers" : s->nodes && s->order == TOP_BY_JOB ? "memory" : orders[s->order],
             s->nodes ? "workers" : "nodes");
    line(&p, DIM, text);
    return p.failed ? -1 : 0;
}

/* Without a terminal ------------------------------------------------------------------------------------------------------------------ */

static void print_table(const struct top_pool *p, const struct shape *s, size_t count, FILE *to)
{
    char cells[MOST_COLUMNS][CELL];
    const char *row[MOST_COLUMNS];
    struct table *t = table_new(s->columns, s->headings);
    for (size_t i = 0; i < count; i++) {
        s->row(p, i, cells);
        for (size_t c = 0; c < s->columns; c++)
            row[c] = cells[c];
        table_row(t, row);
    }
    table_print(t, to);
}

void top_print(const struct top_pool *p, FILE *to)
{
    char rate[UNITS_MAX];
    fprintf(to, "%s on %s: %zu jobs, %zu running, %zu workers on %zu nodes, %s\n", text_of(p->hello, "program"), text_of(p->hello, "host"), p->job_count,
            p->running, p->worker_count, p->node_count, units_rate(rate, p->records_per_s));
    if (p->job_count) {
        fputc('\n', to);
        print_table(p, &job_shape, p->job_count, to);
    }
    if (p->node_count) {
        fputc('\n', to);
        print_table(p, &node_shape, p->node_count, to);
        fputc('\n', to);
        print_table(p, &worker_shape, p->worker_count, to);
    }
}

json_t *top_json(const struct top_pool *p)
{
    json_t *nodes = json_array();
    for (size_t i = 0; nodes && i < p->node_count; i++) {
        const struct top_node *n = &p->nodes[i];
        if (json_array_append_new(nodes, json_pack("{s:s, s:I, s:I, s:I, s:f, s:I, s:s, s:s}", "host", n->name, "workers", (json_int_t)n->workers, "busy", (json_int_t)n->busy,
                                                   "lanes", (json_int_t)n->lanes, "records_per_s", n->records_per_s, "rss_bytes", (json_int_t)n->rss_bytes, "agent", n->state,
                                                   "reason", n->reason))) {
            json_decref(nodes);
            nodes = NULL;
        }
    }
    return nodes ? json_pack("{s:O, s:f, s:O, s:o, s:O}", "daemon", p->hello, "records_per_s", p->records_per_s, "jobs", json_object_get(p->jobs, "jobs"), "nodes",
                             nodes, "workers", json_object_get(p->workers, "workers"))
                 : NULL;
}
