/* Faults on purpose, for the tests that pull the plug. In a program whose environment has no EBB_FAULT a fault point is one branch.

   EBB_FAULT is a comma-separated list of NAME:N:WHAT, for the Nth time that NAME is passed (0: every time); WHAT is `kill` (SIGKILL
   to itself), `stop` (SIGSTOP), `sleep=MS`, `wait=FILE` (until that file is there), or an errno's name (EIO, ENOSPC, EINTR, EACCES, ENOMEM) that the caller then treats as its own. A name
   may end in * . With EBB_FAULT_ONCE=FILE in the environment only the first process that comes to a `kill` or `stop` (it makes FILE) obeys: those
   that take its place inherit the same environment. Counters are per process and per rule. tests/README.md lists the points. */
#ifndef EBB_BASE_FAULT_H
#define EBB_BASE_FAULT_H

/* 0, or the errno to pretend. */
int fault_point(const char *name);
/* Tests in one process: replaces what the environment said. NULL: none. A spec that cannot be read is a BUG. */
void fault_set(const char *spec);

#endif
