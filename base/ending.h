/* How a worker went: judged by whoever started it, told to the scheduler, sent in AgentEnded (so numbers never change). Only CRASHED, OOM and HUNG are
   evidence against records. */
#ifndef EBB_BASE_ENDING_H
#define EBB_BASE_ENDING_H

/* end, word, guilty */
#define WORKER_END_MAP(X)                                                                                                        \
    X(DRAINED, "drained", 0)                                                                                                     \
    X(LOST, "lost", 0)       /* no word, or killed from outside */                                                              \
    X(PREEMPTED, "preempted", 0)                                                                                                 \
    X(CRASHED, "crashed", 1)                                                                                                     \
    X(OOM, "out of memory", 1)                                                                                                   \
    X(HUNG, "hung", 1)
enum worker_end {
#define X(name, word, guilt) WORKER_##name,
    WORKER_END_MAP(X)
#undef X
        WORKER_ENDS
};

#endif
