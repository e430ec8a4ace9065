#ifndef EBB_BASE_CLOCK_H
#define EBB_BASE_CLOCK_H

#include <stdint.h>

uint64_t clock_ns(void);      /* monotonic */
uint64_t clock_ms(void);      /* monotonic */
int64_t clock_wall_ms(void);  /* since 1970, UTC: only for people, never for decisions */
void clock_sleep_ms(uint64_t ms);

#endif
