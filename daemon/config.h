/* What ebbd is told: options over a configuration file over defaults. */
#ifndef EBB_DAEMON_CONFIG_H
#define EBB_DAEMON_CONFIG_H

#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "base/status.h"

#define EBBD_VERSION "0.1.0"

/* kind, member, path in the file. Kinds: TEXT (char *), LIST (folders: char **, NULL at its end), WORDS (the same of any texts), ENDPOINTS (the same, or one of them), NUMBER, SIZE (bytes),
   DURATION (ms), LEVEL, CLASS (1: preemptible, 0: guaranteed), FLAG (true or false) */
#define CONFIG_MAP(X)                                                                                                            \
    X(TEXT, state_dir, "state_dir")        /* the store, the owner file, workers' logs */                                        \
    X(TEXT, runtime_dir, "runtime_dir")    /* the sockets */                                                                     \
    X(ENDPOINTS, listen, "listen")         /* where others come in over the network, "tcp://0.0.0.0:5570": workers at this port, clients one on, the   \
                                              relay two on; needs keys and roots */                                              \
    X(LIST, roots, "roots")                /* folders that clients may name; none: all */                                        \
    X(NUMBER, workers, "workers.count")    /* most workers on this machine */                                                    \
    X(NUMBER, lanes, "workers.lanes")      /* of each; 0: the processors divided among them */                                   \
    X(SIZE, memory, "workers.memory")      /* of each; 0: the worker decides */                                                  \
    X(TEXT, pack_cache, "workers.pack_cache") /* where packed weights are kept; "off": nowhere; NULL: packs in the state, or, private, as the worker likes */ \
    X(SIZE, pack_bytes, "workers.pack_cache_size") /* most of them; 0: the worker's default */                                  \
    X(DURATION, idle_ms, "idle")           /* a worker without work leaves after so long */                                      \
    X(DURATION, worker_timeout, "worker_timeout") /* no word from a worker for so long: its leases go to others */                \
    X(SIZE, min_free, "min_free")          /* below so much free space no work is given out */                                   \
    X(FLAG, commands, "commands")          /* jobs may have steps that are commands: who may submit may then run any program as our user, on every worker */ \
    X(TEXT, group, "group")                /* whose members may use the clients' socket; NULL: our own user alone */             \
    X(TEXT, http, "http")                  /* metrics and health, "127.0.0.1:9570"; NULL or "off": nowhere */                    \
    X(LEVEL, log_level, "log_level")                                                                                             \
    X(NUMBER, slurm_limit, "slurm.limit")  /* most workers of a Slurm cluster; 0: none is used */                                \
    X(CLASS, slurm_class, "slurm.class")                                                                                         \
    X(TEXT, slurm_partition, "slurm.partition") /* NULL: Slurm's default; likewise below */                                      \
    X(TEXT, slurm_account, "slurm.account")                                                                                      \
    X(TEXT, slurm_qos, "slurm.qos")                                                                                              \
    X(TEXT, slurm_constraint, "slurm.constraint")                                                                                \
    X(DURATION, slurm_time, "slurm.time")  /* of each job; 0: the partition's */                                                 \
    X(NUMBER, slurm_cpus, "slurm.cpus")    /* of each job, one lane each */                                                      \
    X(SIZE, slurm_memory, "slurm.memory")  /* of each job; 0: the partition's */                                                 \
    X(WORDS, slurm_options, "slurm.options") /* further ones of sbatch */                                                        \
    X(TEXT, slurm_connect, "slurm.connect") /* where the workers find this daemon; NULL: the ipc socket */                       \
    X(TEXT, slurm_key_file, "slurm.key_file") /* of the workers, as the nodes see it */                                          \
    X(TEXT, slurm_program, "slurm.program") /* ebb-worker as the nodes see it; NULL: where ours lies, else on their PATH */      \
    X(TEXT, slurm_dir, "slurm.dir")        /* logs and black boxes, where the nodes see this folder; NULL: slurm in the state */ \
    X(TEXT, slurm_pack_cache, "slurm.pack_cache") /* packed weights on the nodes; NULL: as the worker likes */                   \
    X(DURATION, slurm_grace, "slurm.grace") /* from the notice to the end; 0: what the cluster's KillWait leaves */              \
    X(DURATION, slurm_poll, "slurm.poll")  /* between two looks at the queue */                                                  \
    X(NUMBER, kubernetes_limit, "kubernetes.limit") /* most workers that are asked for by the exported metric; 0: none */        \
    X(CLASS, kubernetes_class, "kubernetes.class")

#define CONFIG_TYPE_TEXT char *
#define CONFIG_TYPE_LIST char **
#define CONFIG_TYPE_ENDPOINTS char **
#define CONFIG_TYPE_NUMBER uint64_t
#define CONFIG_TYPE_SIZE uint64_t
#define CONFIG_TYPE_DURATION uint64_t
#define CONFIG_TYPE_LEVEL enum log_level
#define CONFIG_TYPE_WORDS char **
#define CONFIG_TYPE_CLASS int
#define CONFIG_TYPE_FLAG int

struct config {
#define X(kind, member, path) CONFIG_TYPE_##kind member;
    CONFIG_MAP(X)
#undef X
    char *file;        /* that was read; NULL: none */
    int is_private;    /* started by `ebb run`: ends when nobody asks any more */
    int own_runtime;   /* runtime_dir was made up by us and goes with us */
    struct config *before; /* what a reload replaced: threads may still read it */
};

#define CONFIG_FILE "/etc/ebb/ebbd.yaml"

/* Defaults from the environment (systemd's STATE_DIRECTORY and RUNTIME_DIRECTORY, XDG folders, the user). */
MUST_USE enum status config_init(struct config *c, struct err *e);
void config_release(struct config *c);
/* Every complaint names file and line: "ebbd.yaml:5: unknown key 'worker' (did you mean 'workers')". On failure *c may hold some of the
   file's values: throw it away. */
MUST_USE enum status config_read(struct config *c, const char *file, struct err *e);
/* Command line, then file, then what is missing. ST_END: help or version was printed. */
MUST_USE enum status config_parse(struct config *c, int argc, char **argv, struct err *e);
/* May clients name this path? ST_USER when roots are set and it lies under none of them (links are followed as far as the path exists). */
MUST_USE enum status config_allows(const struct config *c, const char *path, struct err *e);

#endif
