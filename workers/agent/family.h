/* A guest and what it has started: commands run in process groups of their own, but in its session. */
#ifndef EBB_AGENT_FAMILY_H
#define EBB_AGENT_FAMILY_H

#include <stdint.h>

/* The leader of a session and its group get the signal first, then everybody else in the session; once more for those who came meanwhile. */
void family_signal(int leader, int number);
/* Processor time of all of them, and of the children that they waited for, in clock ticks; 0: there are none. */
uint64_t family_ticks(int leader);

#endif
