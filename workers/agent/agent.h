/* The agent itself: looks, decides, acts, tells, several times a second. */
#ifndef EBB_WORKERS_AGENT_AGENT_H
#define EBB_WORKERS_AGENT_AGENT_H

#include "workers/agent/config.h"

/* Serves until SIGTERM or SIGINT; SIGHUP reads the configuration again, from the same words. The program's exit code: 0 ended as told, 1 the
   environment failed, 2 the configuration is wrong. */
int agent_run(const struct agent_words *words);
/* `ebb-agent status`: what it sees, and what it would do. */
int agent_status(const struct agent_words *words, int json);

#endif
