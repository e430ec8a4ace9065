#include "client/progress.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/units.h"
#include "client/client.h"

#define BAR_MIN 10 /* columns between the brackets */
#define BAR_MAX 32

void view_read(struct view *v, const json_t *job)
{
    double before = v->job == count_of(job, "job") ? v->fraction : 0;
    *v = (struct view){.job = count_of(job, "job")};
    snprintf(v->name, sizeof v->name, "%s", text_of(job, "name"));
    snprintf(v->state, sizeof v->state, "%s", text_of(job, "state"));
    snprintf(v->reason, sizeof v->reason, "%s", text_of(job, "reason"));
    snprintf(v->waits_for, sizeof v->waits_for, "%s", text_of(job, "waits_for"));
    v->passing = json_is_true(json_object_get(job, "passing"));
    v->fraction = number_of(job, "fraction", 0);
    if (v->fraction < before && strcmp(v->state, "canceled") != 0)
        v->fraction = before;
    v->records_done = count_of(job, "records_done");
    v->rows = count_of(job, "rows");
    v->errors = count_of(job, "errors");
    v->quarantined = count_of(job, "quarantined");
    v->bytes_done = count_of(job, "bytes_done");
    v->bytes_total = count_of(job, "bytes_total");
    v->records_guess = number_of(job, "records_guess", -1);
    v->records_per_s = number_of(job, "records_per_s", 0);
    v->seconds_left = number_of(job, "seconds_left", -1);
    v->workers = count_of(job, "workers");
    v->workers_wanted = count_of(job, "workers_wanted");
}

int view_over(const struct view *v)
{
    return strcmp(v->state, "done") == 0 || strcmp(v->state, "canceled") == 0;
}

int view_stands(const struct view *v)
{
    return (strcmp(v->state, "held") == 0 && !v->passing) || strcmp(v->state, "paused") == 0;
}

int progress_percent(const struct view *v)
{
    if (strcmp(v->state, "done") == 0 || strcmp(v->state, "publishing") == 0)
        return 100;
    double percent = v->fraction * 100 + 1e-9; /* 0.29 * 100 is a little less than 29 */
    return percent >= 99 ? 99 : percent > 0 ? (int)percent : 0;
}

enum piece { PERCENT, DONE, RATE, LEFT, ERRORS, WORKERS, PIECES };

static size_t columns(const char *s)
{
    size_t n = 0;
    for (; *s; s++)
        n += ((unsigned char)*s & 0xC0) != 0x80;
    return n;
}

/* Cuts s behind so many columns, between characters. */
static void cut(char *s, size_t most)
{
    for (size_t n = 0; *s; s++)
        if (((unsigned char)*s & 0xC0) != 0x80 && n++ == most) {
            *s = 0;
            return;
        }
}

char *guess_words(char *out, double n)
{
    if (n >= 1e6 && n < 999.95e6) {
        snprintf(out, UNITS_MAX, "%.1f M", n / 1e6);
        return out;
    }
    if (n >= 1000) {
        double unit = pow(10, floor(log10(n)) - 2);
        n = round(n / unit) * unit;
    }
    return units_count(out, n);
}

char *progress_line(const struct view *v, int width, char *out, size_t size)
{
    static const enum piece least_first[] = {WORKERS, ERRORS, RATE, LEFT, DONE};
    char pieces[PIECES][320] = {{0}}, a[UNITS_MAX], b[UNITS_MAX];
    int starting = strcmp(v->state, "running") == 0 && v->records_per_s <= 0, publishing = strcmp(v->state, "publishing") == 0;
    snprintf(pieces[PERCENT], sizeof pieces[0], "%4d %%", progress_percent(v));
    if (v->records_total >= v->records_done && v->records_total && !publishing)
        snprintf(pieces[DONE], sizeof pieces[0], "%s of %s", units_count(a, (double)v->records_done), units_count(b, (double)v->records_total));
    else if (v->records_guess >= (double)v->records_done && v->records_guess > 0 && !publishing)
        snprintf(pieces[DONE], sizeof pieces[0], "%s of about %s", units_count(a, (double)v->records_done), guess_words(b, v->records_guess));
    else
        snprintf(pieces[DONE], sizeof pieces[0], "%s record%s", units_count(a, (double)v->records_done), v->records_done == 1 ? "" : "s");
    if (publishing)
        snprintf(pieces[RATE], sizeof pieces[0], "writing the output");
    else if (v->passing) /* "not enough disk space: 3 MiB free for ...; ...": all of it only where there is room */
        snprintf(pieces[RATE], sizeof pieces[0], "waits: %.*s", (int)strcspn(v->reason, width > 0 ? ":;" : ";"), v->reason);
    else if (strcmp(v->state, "running") != 0)
        snprintf(pieces[RATE], sizeof pieces[0], "%s", v->state);
    else if (v->records_per_s > 0)
        snprintf(pieces[RATE], sizeof pieces[0], "%s", units_rate(a, v->records_per_s));
    else if (*v->waits_for)
        snprintf(pieces[RATE], sizeof pieces[0], "%s", v->waits_for);
    else
        snprintf(pieces[RATE], sizeof pieces[0], "starting");
    if (v->seconds_left >= 0 && !publishing && !starting)
        snprintf(pieces[LEFT], sizeof pieces[0], "%s left", units_duration(a, v->seconds_left));
    if (v->errors)
        snprintf(pieces[ERRORS], sizeof pieces[0], "%s error%s", units_count(a, (double)v->errors), v->errors == 1 ? "" : "s");
    if (v->workers_wanted > v->workers)
        snprintf(pieces[WORKERS], sizeof pieces[0], "%" PRIu64 "/%" PRIu64 " workers", v->workers, v->workers_wanted);
    else if (v->workers)
        snprintf(pieces[WORKERS], sizeof pieces[0], "%" PRIu64 " worker%s", v->workers, v->workers == 1 ? "" : "s");

    for (size_t drop = 0;; drop++) {
        size_t len = 0, used;
        for (int i = 0; i < PIECES; i++)
            if (*pieces[i] && len < size)
                len += (size_t)snprintf(out + len, size - len, "%s%s", i == PERCENT ? "" : i == DONE ? "  " : "   ", pieces[i]);
        if (len >= size)
            len = size - 1; /* it was cut there */
        used = columns(out);
        if (width <= 0)
            return out;
        if (used <= (size_t)width) {
            size_t room = (size_t)width - used;
            if (room >= 3 + 2 + BAR_MIN) {
                size_t inner = room - 5 > BAR_MAX ? BAR_MAX : room - 5, full = (size_t)(v->fraction * (double)inner);
                if (progress_percent(v) == 100 || full > inner)
                    full = inner;
                char bar[BAR_MAX + 1];
                for (size_t i = 0; i < inner; i++)
                    bar[i] = i + 1 < full || full == inner ? '=' : i + 1 == full ? '>' : ' ';
                bar[inner] = 0;
                snprintf(out + len, size - len, "   [%s]", bar);
            }
            return out;
        }
        if (drop == COUNT(least_first)) {
            cut(out, (size_t)width);
            return out;
        }
        *pieces[least_first[drop]] = 0;
    }
}
