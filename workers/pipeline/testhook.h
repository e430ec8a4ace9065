/* Records that crash, hang or eat memory on purpose, for the tests of blame. Off unless the environment has EBB_TEST_HOOK=1. A text that contains
     EBB_TEST_CRASH            writes to address zero when it comes to a lane
     EBB_TEST_CRASH_WITH:WORD  does so only when another record of its micro-batch contains WORD
     EBB_TEST_HANG             sleeps for ever
     EBB_TEST_EAT              allocates until memory is out
     EBB_TEST_SLOW:MS          sleeps so long
     EBB_TEST_GATE:PATH        waits until that file is there
   and EBB_TEST_STAGE=crash:ID, hang:ID, eat:ID or gate:ID:PATH does the like when the token ID comes to a stage of a pipeline, where there are no texts any more;
   EBB_TEST_STAGE_TIMEOUT=MS is how long a head waits for a micro-batch at least; and EBB_TEST_BROKEN_MODEL=1 in the environment crashes with every micro-batch. */
#ifndef EBB_WORKERS_TESTHOOK_H
#define EBB_WORKERS_TESTHOOK_H

#include <stddef.h>
#include <stdint.h>

int testhook_on(void);
/* texts[i] (terminated; NULL: nothing special) of the n records of a micro-batch. Returns 1 when memory is to be out now. */
int testhook_run(char *const *texts, size_t n);
/* Of a micro-batch in a stage, likewise. */
int testhook_stage(const int32_t *ids, size_t n);
uint64_t testhook_stage_timeout_ms(void); /* 0: as usual */

#endif
