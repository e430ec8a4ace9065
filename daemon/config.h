/* What ebbd is told: options over a configuration file over defaults. */
#ifndef EBB_DAEMON_CONFIG_H
#define EBB_DAEMON_CONFIG_H

#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "base/status.h"

#define EBBD_VERSION "0.1.0"

/* kind, member, path in the file. Kinds: TEXT (char *), LIST (char **, NULL at its end), NUMBER, SIZE (bytes), DURATION (ms), LEVEL */
#define CONFIG_MAP(X)                                                                                                            \
    X(TEXT, state_dir, "state_dir")        /* the store, the owner file, workers' logs */                                        \
    X(TEXT, runtime_dir, "runtime_dir")    /* the sockets */                                                                     \
    X(LIST, roots, "roots")                /* folders that clients may name; none: all */                                        \
    X(NUMBER, workers, "workers.count")    /* most workers on this machine */                                                    \
    X(NUMBER, lanes, "workers.lanes")      /* of each; 0: the processors divided among them */                                   \
    X(SIZE, memory, "workers.memory")      /* of each; 0: the worker decides */                                                  \
    X(TEXT, pack_cache, "workers.pack_cache") /* where packed weights are kept; "off": nowhere; NULL: packs in the state, or, private, as the worker likes */ \
    X(SIZE, pack_bytes, "workers.pack_cache_size") /* most of them; 0: the worker's default */                                  \
    X(DURATION, idle_ms, "idle")           /* a worker without work leaves after so long */                                      \
    X(DURATION, worker_timeout, "worker_timeout") /* no word from a worker for so long: its leases go to others */                \
    X(SIZE, min_free, "min_free")          /* below so much free space no work is given out */                                   \
    X(LEVEL, log_level, "log_level")

#define CONFIG_TYPE_TEXT char *
#define CONFIG_TYPE_LIST char **
#define CONFIG_TYPE_NUMBER uint64_t
#define CONFIG_TYPE_SIZE uint64_t
#define CONFIG_TYPE_DURATION uint64_t
#define CONFIG_TYPE_LEVEL enum log_level

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
