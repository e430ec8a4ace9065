#include "workers/agent/calendar.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/suggest.h"

#define DAY (24 * 60)

static const char *const days[] = {"mon", "tue", "wed", "thu", "fri", "sat", "sun"};

static int day_of(const char *word, size_t len, char *why, size_t why_size)
{
    char copy[16];
    snprintf(copy, sizeof copy, "%.*s", (int)(len < sizeof copy ? len : sizeof copy - 1), word);
    for (int i = 0; i < 7; i++)
        if (strcasecmp(copy, days[i]) == 0)
            return i;
    const char *near = suggest(copy, days, 7);
    snprintf(why, why_size, "has no day '%s'%s%s%s (days are mon tue wed thu fri sat sun)", copy, near ? ": did you mean '" : "", near ? near : "",
             near ? "'" : "");
    return -1;
}

/* "mon-fri,sun" -> a bit for each day; 0: wrong. */
static unsigned parse_days(const char *text, size_t len, char *why, size_t why_size)
{
    unsigned set = 0;
    for (const char *p = text, *end = text + len; p < end;) {
        const char *comma = memchr(p, ',', (size_t)(end - p)), *stop = comma ? comma : end;
        const char *dash = memchr(p, '-', (size_t)(stop - p));
        int from = day_of(p, (size_t)((dash ? dash : stop) - p), why, why_size), to = from;
        if (from < 0 || (dash && (to = day_of(dash + 1, (size_t)(stop - dash - 1), why, why_size)) < 0))
            return 0;
        for (int d = from;; d = (d + 1) % 7) {
            set |= 1u << d;
            if (d == to)
                break;
        }
        if (comma && comma + 1 == end) {
            snprintf(why, why_size, "ends in a comma: '%.*s'", (int)len, text);
            return 0;
        }
        p = comma ? comma + 1 : end;
    }
    return set;
}

/* "7:05" -> 425; -1: wrong. */
static int parse_time(const char **p)
{
    int hour = 0, minute = 0, n = 0;
    for (; isdigit((unsigned char)**p) && n < 2; (*p)++, n++)
        hour = hour * 10 + (**p - '0');
    if (!n || **p != ':' || !isdigit((unsigned char)(*p)[1]) || !isdigit((unsigned char)(*p)[2]))
        return -1;
    minute = ((*p)[1] - '0') * 10 + ((*p)[2] - '0');
    *p += 3;
    return minute > 59 || hour > 24 || (hour == 24 && minute) ? -1 : hour * 60 + minute;
}

int calendar_add(struct calendar *c, const char *text, char *why, size_t why_size)
{
    struct calendar was = *c;
    unsigned set = 0x7f;
    int begin = 0, end = DAY;
    const char *p = text;
    while (*p == ' ')
        p++;
    if (!*p) {
        snprintf(why, why_size, "is empty: write hours such as 'mon-fri 19:00-07:00'");
        return -1;
    }
    if (strcasecmp(p, "always") == 0) {
        p += strlen(p);
    } else if (isalpha((unsigned char)*p)) {
        size_t len = strcspn(p, " ");
        set = parse_days(p, len, why, why_size);
        if (!set)
            return -1;
        for (p += len; *p == ' ';)
            p++;
    }
    if (*p) {
        begin = parse_time(&p);
        int dash = begin >= 0 && *p == '-';
        p += dash;
        end = dash ? parse_time(&p) : -1;
        while (*p == ' ')
            p++;
        if (begin < 0 || end < 0 || *p || begin == DAY) {
            snprintf(why, why_size, "cannot be read: '%.60s': write hours such as 'mon-fri 19:00-07:00', 'sat,sun' or '22:00-06:00'", text);
            return -1;
        }
        if (end <= begin)
            end += DAY;
    }
    for (int d = 0; d < 7; d++) {
        if (!(set & 1u << d))
            continue;
        if (c->count == CALENDAR_MOST) {
            *c = was;
            snprintf(why, why_size, "has more than %d parts (each day counts)", CALENDAR_MOST);
            return -1;
        }
        c->part[c->count].begin = d * DAY + begin;
        c->part[c->count].end = d * DAY + end;
        c->count++;
    }
    size_t n = strlen(c->text);
    snprintf(c->text + n, sizeof c->text - n, "%s%s", n ? ", " : "", text);
    return 0;
}

int calendar_open(const struct calendar *c, int minute)
{
    if (!c->count)
        return 1;
    if (minute < 0 || minute >= CALENDAR_WEEK)
        return 0;
    for (size_t i = 0; i < c->count; i++)
        if ((minute >= c->part[i].begin && minute < c->part[i].end) || minute + CALENDAR_WEEK < c->part[i].end)
            return 1;
    return 0;
}
