/* A control group for the guests, where the agent may make one: last in line for the processor, frozen and killed as one, and what they took is
   counted exactly. Version 2 where it is mounted (freeze, kill, and cpu.idle when the controller is there); of version 1 the controllers cpu and
   cpuacct. Its freezer is not used: what it froze cannot be killed, and would stay for ever if the agent died (docs/agent.md). */
#ifndef EBB_WORKERS_AGENT_CGROUP_H
#define EBB_WORKERS_AGENT_CGROUP_H

#include <stddef.h>
#include <stdint.h>

struct cgroup;

/* Makes (or takes over from an agent that died) the groups called `name` below our own. idle: they get the processor when
   nobody else wants it. Never fails: what may not be had is left out and said by
   cgroup_words. NULL: memory is out. */
struct cgroup *cgroup_open(const char *name, int idle);
/* Removes what is empty. */
void cgroup_close(struct cgroup *c);

/* For the child between fork and exec: it joins each by writing "0" there. */
#define CGROUP_MOST 3
size_t cgroup_doors(const struct cgroup *c, int fds[CGROUP_MOST]);
int cgroup_can_freeze(const struct cgroup *c);
int cgroup_freeze(struct cgroup *c, int on); /* 0, or -1: use signals */
int cgroup_frozen(const struct cgroup *c);   /* all of it stands still now */
void cgroup_kill(struct cgroup *c);          /* everything in it; nothing where that cannot be */
/* Processor time that its members took, those that are gone included. 0, or -1: not counted. */
int cgroup_cpu_ns(const struct cgroup *c, uint64_t *ns);
const char *cgroup_words(const struct cgroup *c); /* "cgroup v2: freeze, kill, cpu.idle; v1: cpu.idle" or "none" */

#endif
