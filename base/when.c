#include "base/when.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/units.h"

/* Exactly `digits` digits, between least and most; -1 when they are not there. */
static int number(const char **p, int digits, int least, int most)
{
    int n = 0;
    for (int i = 0; i < digits; i++, (*p)++) {
        if (!isdigit((unsigned char)**p))
            return -1;
        n = n * 10 + **p - '0';
    }
    return n >= least && n <= most ? n : -1;
}

static int clock_of(const char **p, struct tm *t)
{
    t->tm_hour = number(p, 2, 0, 23);
    if (t->tm_hour < 0 || *(*p)++ != ':')
        return -1;
    t->tm_min = number(p, 2, 0, 59);
    t->tm_sec = 0;
    if (t->tm_min >= 0 && **p == ':') {
        (*p)++;
        t->tm_sec = number(p, 2, 0, 59);
    }
    return t->tm_min < 0 || t->tm_sec < 0 ? -1 : 0;
}

/* Behind the clock: "", "Z", "+01:00". *zone_s: what is to be taken off; *local: none was said. */
static int zone_of(const char *p, int *zone_s, int *local)
{
    *zone_s = 0;
    *local = !*p;
    if (!*p || strcmp(p, "Z") == 0)
        return 0;
    int sign = *p == '-' ? -1 : *p == '+' ? 1 : 0, hours, minutes;
    p++;
    if (!sign || (hours = number(&p, 2, 0, 14)) < 0 || *p++ != ':' || (minutes = number(&p, 2, 0, 59)) < 0 || *p)
        return -1;
    *zone_s = sign * (hours * 3600 + minutes * 60);
    return 0;
}

static int next_time(const struct tm *clock, int64_t now_ms, int64_t *out_ms)
{
    time_t now = (time_t)(now_ms / 1000);
    for (int days = 0; days <= 2; days++) { /* a clock that is put forward may skip a time, or two days of it */
        struct tm t;
        if (!localtime_r(&now, &t))
            return -1;
        t.tm_hour = clock->tm_hour;
        t.tm_min = clock->tm_min;
        t.tm_sec = clock->tm_sec;
        t.tm_mday += days;
        t.tm_isdst = -1;
        time_t at = mktime(&t);
        if (at != (time_t)-1 && (int64_t)at * 1000 > now_ms) {
            *out_ms = (int64_t)at * 1000;
            return 0;
        }
    }
    return -1;
}

int when_parse(const char *text, int64_t now_ms, int64_t *out_ms)
{
    struct tm t = {0};
    const char *p = text;
    uint64_t ms;
    if (*p == '+') {
        if (units_parse_duration(p + 1, &ms) || !ms || ms > INT64_C(100) * 366 * 86400000)
            return -1;
        *out_ms = now_ms + (int64_t)ms;
        return 0;
    }
    if (strlen(text) >= 2 && !(isdigit((unsigned char)p[1]) && isdigit((unsigned char)p[2])))
        return clock_of(&p, &t) || *p ? -1 : next_time(&t, now_ms, out_ms);
    t.tm_year = number(&p, 4, 1970, 9999) - 1900;
    if (t.tm_year < 0 || *p++ != '-')
        return -1;
    t.tm_mon = number(&p, 2, 1, 12) - 1;
    if (t.tm_mon < 0 || *p++ != '-')
        return -1;
    t.tm_mday = number(&p, 2, 1, 31);
    int day = t.tm_mday, zone_s, local;
    if (day < 0 || (*p != ' ' && *p != 'T'))
        return -1;
    p++;
    if (clock_of(&p, &t) || zone_of(p, &zone_s, &local))
        return -1;
    t.tm_isdst = -1;
    time_t at = local ? mktime(&t) : timegm(&t);
    if (at == (time_t)-1 || t.tm_mday != day) /* the 31st of a month that has 30 */
        return -1;
    *out_ms = ((int64_t)at - zone_s) * 1000;
    return 0;
}

char *when_text(char out[WHEN_MAX], int64_t ms)
{
    time_t at = (time_t)(ms / 1000);
    struct tm t;
    if (!gmtime_r(&at, &t) || !strftime(out, WHEN_MAX, "%Y-%m-%dT%H:%M:%SZ", &t))
        snprintf(out, WHEN_MAX, "1970-01-01T00:00:00Z");
    return out;
}
