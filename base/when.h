/* Points in time as people write them. */
#ifndef EBB_BASE_WHEN_H
#define EBB_BASE_WHEN_H

#include <stdint.h>

#define WHEN_MAX 32
/* What a time may look like, for messages. */
#define WHEN_WORDS "a time such as 07:00, 2030-01-31 07:00, 2030-01-31T06:00:00Z or +3h"

/* "07:00" and "07:00:30": when the clock of this place shows that next, never now. A date before it: that very time, here or, with Z or +01:00 behind
   it, there. "+90min": so long from now. now_ms and *out_ms: wall clock since 1970. 0, or -1: it is no time. */
int when_parse(const char *text, int64_t now_ms, int64_t *out_ms);
/* "2030-01-31T06:00:00Z": means the same everywhere and for ever. */
char *when_text(char out[WHEN_MAX], int64_t ms);

#endif
