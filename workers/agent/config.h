/* What ebb-agent is told: options over a file over what `ebb-agent join` left over defaults. */
#ifndef EBB_WORKERS_AGENT_CONFIG_H
#define EBB_WORKERS_AGENT_CONFIG_H

#include <stdint.h>

#include "base/log.h"
#include "base/status.h"
#include "workers/agent/policy.h"

#define AGENT_VERSION "0.1.0"
#define AGENT_FILE "/etc/ebb/agent.yaml"
#define AGENT_LOCK "lock" /* in its folder; held as long as it runs */
#define AGENT_NUMBER "number" /* there, too: its identity */

struct agent_config {
    char *daemon;       /* endpoint of the workers' socket; NULL: nobody said */
    char *key_file;     /* NULL: none */
    char *dir;          /* notes, black boxes, logs */
    char *host;         /* what the node is called */
    char *pack_cache;   /* NULL: packs in dir */
    uint64_t pack_bytes;
    struct policy policy;
    enum policy_priority priority;
    enum log_level log_level;
    char *file;         /* that was read; NULL: none */
    char *proc;         /* in place of /proc, for tests; NULL: none */
};

struct agent_words {    /* of the command line; NULL: not given */
    const char *file, *daemon, *key_file, *host, *dir, *proc, *level;
};

/* On failure *c is released. Complaints about the file name it and the line. */
MUST_USE enum status agent_config_read(struct agent_config *c, const struct agent_words *words, struct err *e);
void agent_config_release(struct agent_config *c);
/* Where `ebb-agent join` puts the key when nobody says otherwise, and where it is looked for. The caller frees it; NULL: memory is out. */
char *agent_config_joined_key(const struct agent_config *c);

#endif
