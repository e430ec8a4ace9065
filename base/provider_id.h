/* Where workers come from: the word that people and configurations use, and the number that is stored and sent. */
#ifndef EBB_BASE_PROVIDER_ID_H
#define EBB_BASE_PROVIDER_ID_H

#include <stdint.h>

/* Numbers travel in Hello: never change one. In the order in which they are preferred. */
#define PROVIDER_MAP(X)                                                                                                          \
    X(NONE, "none")             /* joined by itself: somebody started it by hand */                                              \
    X(LOCAL, "local")           /* child processes of the daemon */                                                              \
    X(AGENT, "agent")           /* idle nodes, by ebb-agent */                                                                   \
    X(SLURM, "slurm")                                                                                                            \
    X(KUBERNETES, "kubernetes") /* scaled from outside, on the exported metric */
enum provider_id {
#define X(name, word) PROVIDER_##name,
    PROVIDER_MAP(X)
#undef X
        PROVIDERS
};

const char *provider_id_word(uint32_t id);               /* "none" for a number that nobody knows */
int provider_id_parse(const char *word, uint32_t *out);  /* 0, or -1: no such word */

#endif
