/* What the processor can do at most: a loop of multiply-adds and nothing else, as a measure for everything else. */
#ifndef EBB_ENGINE_PEAK_H
#define EBB_ENGINE_PEAK_H

#include <stdint.h>

/* One thread, for `rounds` times ten multiply-adds of vectors (a nanosecond or two each): floating point operations done, two for each multiply-add in f32; 0 where the instruction set (a
   name of model_info) has none of its own. */
double peak_burn(const char *isa, uint64_t rounds);

#endif
