#include "client/follow.h"

#include <inttypes.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/path.h"
#include "base/units.h"
#include "client/client.h"
#include "client/connect.h"

#define POLL_MS 500
#define FIRST_POLL_MS 50 /* for the first two seconds: a small job should not be waited for */
#define LINE_MS 10000
#define FIRST_LINE_MS 3000 /* a job that is over by then needs no line */

json_t *follow_json(const char *event, const json_t *job)
{
    json_t *o = json_object();
    if (!o || json_object_set_new(o, "event", json_string(event)) || json_object_update(o, (json_t *)job)) {
        json_decref(o);
        return NULL;
    }
    return o;
}

static int terminal_width(void)
{
    struct winsize w;
    if (!isatty(STDERR_FILENO))
        return 0;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 3 ? w.ws_col - 3 : 77; /* the last column would wrap, and so would "^C" behind it */
}

void follow_clear(struct follow *f)
{
    if (f->drawn)
        fputs("\r\033[K", stderr);
    f->drawn = 0;
}

void follow_show(struct follow *f)
{
    char line[512];
    if (common.quiet || common.json)
        return;
    int width = terminal_width();
    if (width) {
        fprintf(stderr, "\r%s\033[K", progress_line(&f->view, width, line, sizeof line));
        fflush(stderr);
        f->drawn = 1;
        return;
    }
    uint64_t now = clock_ms();
    progress_line(&f->view, 0, line, sizeof line);
    if (now < f->next_line_ms || strcmp(line, f->last) == 0)
        return;
    fprintf(stderr, "%s\n", line);
    memcpy(f->last, line, sizeof line);
    f->next_line_ms = now + LINE_MS;
}

enum status follow_job(struct follow *f, enum follow_end *end, struct err *e)
{
    int signals = signals_count();
    uint64_t next_json = 0, began = clock_ms();
    f->next_line_ms = began + FIRST_LINE_MS;
    for (;;) {
        json_t *job = NULL;
        enum status st = f->poll(f->arg, &job, e);
        if (signals_count() != signals) {
            if (st == ST_OK)
                view_read(&f->view, job);
            json_decref(job);
            *end = FOLLOW_SIGNAL;
            return ST_OK;
        }
        if (st != ST_OK && st != ST_AGAIN)
            return st;
        if (st == ST_OK) {
            view_read(&f->view, job);
            f->view.records_total = f->records_total;
            if (f->own_machine)
                f->view.workers_wanted = 0;
            int over = view_over(&f->view), stands = view_stands(&f->view) && !(f->wait_paused && strcmp(f->view.state, "paused") == 0);
            if (common.json && !over && !stands && clock_ms() >= next_json) {
                print_json(follow_json("progress", job));
                next_json = clock_ms() + POLL_MS;
            }
            json_decref(job);
            if (over || stands) {
                *end = over ? FOLLOW_OVER : FOLLOW_STANDS;
                return ST_OK;
            }
            follow_show(f);
        }
        clock_sleep_ms(clock_ms() - began < 2000 ? FIRST_POLL_MS : POLL_MS); /* a signal ends it early or is seen behind it */
    }
}

/* Files, bytes and names of an output. */
static void output_line(const json_t *job, const char *shown)
{
    const char *output = shown;
    json_t *files = json_object_get(job, "files"), *name;
    size_t i, parts = 0;
    uint64_t bytes = 0;
    const char *errors = NULL;
    int manifest = 0;
    char size[UNITS_MAX];
    json_array_foreach(files, i, name)
    {
        const char *path = json_string_value(name) ? json_string_value(name) : "", *base = path_base(path);
        struct stat s;
        size_t n = strlen(base);
        int side = strstr(base, ".ids.jsonl") != NULL;
        if (strcmp(base, "errors.jsonl") == 0 || (n > 13 && strcmp(base + n - 13, ".errors.jsonl") == 0)) {
            errors = path;
        } else if (strstr(base, "manifest.json")) {
            manifest = 1;
        } else if (strcmp(base, "_SUCCESS") != 0 && stat(path, &s) == 0) {
            parts += !side;
            bytes += (uint64_t)s.st_size;
        }
    }
    struct stat s;
    int is_dir = stat(text_of(job, "output"), &s) == 0 && S_ISDIR(s.st_mode);
    char what[96] = "";
    if (is_dir)
        snprintf(what, sizeof what, " (%zu part%s, %s%s)", parts, parts == 1 ? "" : "s", units_bytes(size, bytes), manifest ? ", manifest.json" : "");
    else if (bytes)
        snprintf(what, sizeof what, " (%s)", units_bytes(size, bytes));
    if (count_of(job, "errors") && errors)
        say("output  %s%s, errors in %s", output, what, short_path(errors));
    else
        say("output  %s%s", output, what);
}

void summary_print(const json_t *job, const char *shown, double seconds, uint64_t records_before)
{
    char n[UNITS_MAX], now[UNITS_MAX], time[UNITS_MAX], rate[UNITS_MAX], bad[UNITS_MAX];
    uint64_t records = count_of(job, "records_done"), errors = count_of(job, "errors"), quarantined = count_of(job, "quarantined");
    uint64_t here = records > records_before ? records - records_before : 0;
    char tail[96] = "";
    units_count(n, (double)records);
    if (errors)
        snprintf(tail, sizeof tail, ", %s error%s", units_count(bad, (double)errors), errors == 1 ? "" : "s");
    if (quarantined) {
        size_t len = strlen(tail);
        snprintf(tail + len, sizeof tail - len, " (%" PRIu64 " set aside: they crash the worker)", quarantined);
    }
    units_duration(time, seconds);
    units_rate(rate, seconds > 0 ? (double)here / seconds : 0);
    if (records_before && !here)
        say("done    %s record%s, all of them before%s", n, records == 1 ? "" : "s", tail);
    else if (records_before)
        say("done    %s record%s, %s of them now, in %s (%s)%s", n, records == 1 ? "" : "s", units_count(now, (double)here), time, rate, tail);
    else
        say("done    %s record%s in %s (%s)%s", n, records == 1 ? "" : "s", time, rate, tail);
    output_line(job, shown);
}

static enum status print_row(void *arg, json_t *reply, struct err *e)
{
    (void)arg;
    (void)e;
    json_t *row;
    size_t i;
    json_array_foreach(json_object_get(reply, "rows"), i, row)
    {
        json_t *o = json_loads(json_string_value(row) ? json_string_value(row) : "", 0, NULL);
        if (o)
            advise("%s:%" PRIu64 ": %s: %s", short_path(text_of(o, "source")), count_of(o, "line"), text_of(o, "code"), text_of(o, "message"));
        json_decref(o);
    }
    return ST_OK;
}

void why_print(struct conn *c, uint64_t job, int daemon_goes)
{
    json_t *why = NULL, *line;
    struct err e;
    size_t i;
    if (conn_call(c, "why", json_pack("{s:I}", "job", (json_int_t)job), 10000, &why, &e) != ST_OK) {
        print_error_line(e.text);
        return;
    }
    print_error_line(text_of(why, "text"));
    json_array_foreach(json_object_get(why, "advice"), i, line)
    {
        const char *words = json_string_value(line) ? json_string_value(line) : "", *limit = strstr(words, "--max-errors ");
        if (!daemon_goes)
            advise("%s", words);
        else if (strncmp(words, "ebb errors", 10) == 0) /* nobody can be asked later: the first ones now */
            (void)!conn_each(c, "errors", json_pack("{s:I, s:i}", "job", (json_int_t)job, "limit", 3), 10000, print_row, NULL, &e);
        else if (limit)
            advise("allow more: %.*s", (int)strcspn(limit + 13, " ") + 13, limit);
    }
    if (daemon_goes)
        advise("put it right, then type the same command again: what is done stays done");
    json_decref(why);
}
