#include "base/units.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

char *units_count(char *out, double n)
{
    if (n >= 1e7) {
        snprintf(out, UNITS_MAX, n >= 999.95e6 ? "%.1f G" : "%.1f M", n >= 999.95e6 ? n / 1e9 : n / 1e6);
        return out;
    }
    char digits[UNITS_MAX];
    int len = snprintf(digits, sizeof digits, "%.0f", n < 0 ? 0 : n), at = 0;
    for (int i = 0; i < len; i++) {
        if (i && (len - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = 0;
    return out;
}

char *units_bytes(char *out, uint64_t bytes)
{
    static const char *const words[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double n = (double)bytes;
    int i = 0;
    while (n >= 1023.95 && i < 5) {
        n /= 1024;
        i++;
    }
    snprintf(out, UNITS_MAX, i ? "%.1f %s" : "%.0f %s", n, words[i]);
    return out;
}

char *units_duration(char *out, double seconds)
{
    if (seconds < 0)
        seconds = 0;
    if (seconds < 9.95) {
        snprintf(out, UNITS_MAX, "%.1f s", seconds);
        return out;
    }
    uint64_t s = (uint64_t)llround(seconds);
    if (s < 60)
        snprintf(out, UNITS_MAX, "%u s", (unsigned)s);
    else if (s < 3600)
        snprintf(out, UNITS_MAX, "%u min %02u s", (unsigned)(s / 60), (unsigned)(s % 60));
    else if (s < 86400)
        snprintf(out, UNITS_MAX, "%u h %02u min", (unsigned)(s / 3600), (unsigned)(s / 60 % 60));
    else
        snprintf(out, UNITS_MAX, "%u d %u h", (unsigned)(s / 86400), (unsigned)(s / 3600 % 24));
    return out;
}

char *units_rate(char *out, double per_second)
{
    if (per_second >= 1e6)
        snprintf(out, UNITS_MAX, "%.1f M/s", per_second / 1e6);
    else if (per_second >= 2e4)
        snprintf(out, UNITS_MAX, "%.0f k/s", per_second / 1e3);
    else if (per_second < 9.95)
        snprintf(out, UNITS_MAX, "%.1f/s", per_second);
    else {
        units_count(out, per_second);
        strncat(out, "/s", UNITS_MAX - strlen(out) - 1);
    }
    return out;
}

struct unit {
    const char *word;
    double scale;
};

static int parse(const char *text, const struct unit *units, double *out)
{
    char *end;
    if (!isdigit((unsigned char)*text) || (text[0] == '0' && tolower((unsigned char)text[1]) == 'x')) /* strtod would take hexadecimals */
        return -1;
    double n = strtod(text, &end);
    while (*end == ' ')
        end++;
    for (; units->word; units++)
        if (strcasecmp(end, units->word) == 0) {
            n *= units->scale;
            if (!isfinite(n) || n > 9e18)
                return -1;
            *out = n;
            return 0;
        }
    return -1;
}

int units_parse_bytes(const char *text, uint64_t *bytes)
{
    static const struct unit units[] = {
        {"", 1},      {"B", 1},           {"K", 1024.0},       {"KiB", 1024.0},          {"KB", 1e3},   {"M", 1048576.0}, {"MiB", 1048576.0},
        {"MB", 1e6},  {"G", 1073741824.0}, {"GiB", 1073741824.0}, {"GB", 1e9}, {"T", 1099511627776.0}, {"TiB", 1099511627776.0}, {"TB", 1e12},
        {NULL, 0}};
    double n;
    if (parse(text, units, &n))
        return -1;
    *bytes = (uint64_t)n;
    return 0;
}

int units_parse_duration(const char *text, uint64_t *ms)
{
    static const struct unit units[] = {{"", 1e3},      {"ms", 1},       {"s", 1e3},     {"sec", 1e3}, {"min", 6e4},
                                        {"m", 6e4},     {"h", 36e5},     {"d", 864e5},   {NULL, 0}};
    double n;
    if (parse(text, units, &n))
        return -1;
    *ms = (uint64_t)llround(n);
    return 0;
}
