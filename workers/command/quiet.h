/* Does a child wait for more input, and for nothing else? Then no answer to what it has will come by itself: it keeps its answers in a buffer, or it
   has passed the record over. Told without waiting for a time to run out, where the kernel tells it. */
#ifndef EBB_WORKERS_QUIET_H
#define EBB_WORKERS_QUIET_H

#include <sys/types.h>

/* in_fd: our end of its standard input. 1: that pipe is empty, somebody of `pid` and its descendants is about to read from it, and each of their threads
   waits for a pipe, for a child of its own or for another thread: none computes, sleeps, or waits for anything outside. 0: not so, or it
   cannot be seen (no /proc/PID/syscall here). */
int quiet_for_input(pid_t pid, int in_fd);

#endif
