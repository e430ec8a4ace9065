/* Hours of the week, in local time, in which guests are welcome. Pure: the minute of the week comes in. */
#ifndef EBB_WORKERS_AGENT_CALENDAR_H
#define EBB_WORKERS_AGENT_CALENDAR_H

#include <stddef.h>

#define CALENDAR_MOST 32
#define CALENDAR_WEEK (7 * 24 * 60)
#define CALENDAR_UNKNOWN (-1)

struct calendar {
    struct {
        int begin, end; /* minutes since Monday 0:00; begin < CALENDAR_WEEK, end may lie beyond it: it runs into the next week */
    } part[CALENDAR_MOST];
    size_t count; /* 0: always */
    char text[200]; /* as it was written, for people */
};

/* Adds "mon-fri 19:00-07:00", "sat,sun", "22:00-6:00" (every day) or "always". A part that ends at or before the time at which it begins ends on the
   next day. 0, or -1 with words in why (why_size bytes). On failure *c stands. */
int calendar_add(struct calendar *c, const char *text, char *why, size_t why_size);
/* minute: of the week, from Monday 0:00; CALENDAR_UNKNOWN is outside of any hours. */
int calendar_open(const struct calendar *c, int minute);

#endif
