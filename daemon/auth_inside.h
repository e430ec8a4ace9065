/* Inside auth: auth.c (who is let in, the sockets), auth_watch.c (connections that come and go), auth_edit.c (changes of authorized_keys). */
#ifndef EBB_DAEMON_AUTH_INSIDE_H
#define EBB_DAEMON_AUTH_INSIDE_H

#include <pthread.h>

#include "base/log.h"
#include "daemon/auth.h"
#include "daemon/keyring.h"

struct edit;

struct tcp_fd { /* of a connection over tcp, by its number */
    int accepted;       /* and not heard of yet: it is in the queue of those that wait */
    int before, behind; /* it; -1: none */
    uint64_t since_ms;
    char address[56];
    uint32_t user;      /* of its last message; stale ones do no harm */
    int invited;        /* it is an invitation */
};

struct watch { /* of one socket */
    struct sock *sock;
    void *monitor;
    uv_poll_t poll;
    char why[160];      /* the last failure, until the end of its connection */
};

struct auth {
    struct daemon *d;
    struct keys keys;
    char *dir, *file;   /* STATE/keys, STATE/keys/authorized_keys */
    pthread_mutex_t lock; /* of the ring: the loop alone changes it, other threads ask */
    struct keyring ring;
    void *context, *zap;
    uv_poll_t zap_poll;
    uv_fs_poll_t changes;
    int handles;        /* of ours that libuv holds yet */
    int listening, closed;
    int ports[32];      /* the workers' ports of what we listen at; the clients' are one on */
    size_t port_count;
    struct watch watch[2];
    struct tcp_fd *fds;
    size_t fd_count;
    int first, last, waiting; /* the queue of those that were accepted and have not been heard of */
    int most_waiting;
    uint64_t refused;
    uint64_t said_ms, lines, unsaid; /* when `lines`, that may be said, grew last */
    struct edit *edits, *edits_last; /* wait for the one that a thread does */
    int editing;
};

/* auth.c */
void auth_complain(struct auth *a, const char *fmt, ...) PRINTF(2, 3); /* a line, unless there were many; counts */
/* Takes the new text; whoever is not in it any more is dropped. */
void auth_take_text(struct auth *a, const char *text, size_t len);
const char *auth_plain_ip(const char *ip);
noreturn void auth_no_memory(struct auth *a);

/* auth_watch.c */
MUST_USE enum status auth_watch_open(struct auth *a, struct watch *w, void *context, struct sock *s, const char *name, struct err *e);
void auth_watch_turn(struct auth *a, struct watch *w);
void auth_watch_second(struct auth *a);
void auth_shut(struct auth *a, int fd);            /* the connection, if it is one of ours */
void auth_spoke(struct auth *a, int fd, uint32_t user, int invited);
const char *auth_address(struct auth *a, int fd);
unsigned auth_connections(struct auth *a, uint32_t user);
void auth_drop_revoked(struct auth *a);

/* auth_edit.c */
void auth_read_again(struct auth *a);
void auth_edits_release(struct auth *a);

#endif
