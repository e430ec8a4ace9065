#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* Set anew when a daemon reads its configuration again, while threads write. */
static const char *_Atomic program = "ebb";
static _Atomic enum log_level limit = LOG_INFO;
static atomic_int to_journal;

void log_init(const char *name, enum log_level level)
{
    program = name;
    limit = level;
    to_journal = getenv("JOURNAL_STREAM") != NULL;
}

void log_line(enum log_level level, const char *fmt, ...)
{
    static const char *const words[] = {"error", "warning", "info", "debug"};
    static const int syslog_level[] = {3, 4, 6, 7};
    if (level > limit)
        return;
    char line[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    for (char *p = line; *p; p++) /* a line is a line, whatever others have put into a name */
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = ' ';
    if (to_journal) {
        fprintf(stderr, "<%d>%s\n", syslog_level[level], line);
        return;
    }
    struct timespec t;
    struct tm tm;
    char when[32];
    clock_gettime(CLOCK_REALTIME, &t);
    localtime_r(&t.tv_sec, &tm);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &tm);
    fprintf(stderr, "%s.%03ld %s[%d] %s: %s\n", when, t.tv_nsec / 1000000, program, (int)getpid(), words[level], line);
}
