/* Records that crash, hang or eat memory on purpose, for the tests of blame. Off unless the environment has EBB_TEST_HOOK=1. A text that contains
     EBB_TEST_CRASH            writes to address zero when it comes to a lane
     EBB_TEST_CRASH_WITH:WORD  does so only when another record of its micro-batch contains WORD
     EBB_TEST_HANG             sleeps for ever
     EBB_TEST_EAT              allocates until memory is out
     EBB_TEST_SLOW:MS          sleeps so long
     EBB_TEST_GATE:PATH        waits until that file is there
   and EBB_TEST_BROKEN_MODEL=1 in the environment crashes with every micro-batch. */
#ifndef EBB_WORKERS_TESTHOOK_H
#define EBB_WORKERS_TESTHOOK_H

#include <stddef.h>

int testhook_on(void);
/* texts[i] (terminated; NULL: nothing special) of the n records of a micro-batch. Returns 1 when memory is to be out now. */
int testhook_run(char *const *texts, size_t n);

#endif
