/* CURVE key pairs, and the files that hold them. A key file is text, for people too:

       # ebb key file; whoever reads it can speak as NAME: keep it to yourself
       role: node
       public: <Z85, 40 characters>
       secret: <Z85>
       server: <Z85; the daemon's public key, pinned; not in the daemon's own file>
       daemon: tcp://pool.example:5570      (optional: where that daemon listens)
       name: gpu-box                        (optional)                                                                              */
#ifndef EBB_WIRE_KEYS_H
#define EBB_WIRE_KEYS_H

#include "base/status.h"

#define KEYS_Z85 40
#define KEYS_NAME_MAX 64
#define KEYS_ENDPOINT_MAX 256

struct keys { /* Z85 texts; "" where there is none */
    char public_key[KEYS_Z85 + 1], secret_key[KEYS_Z85 + 1], server_key[KEYS_Z85 + 1];
};

/* role, word in files, what speaks with such a key */
#define KEYS_ROLES(X)                                                                                                            \
    X(DAEMON, "daemon", "the daemon")                                                                                            \
    X(NODE, "node", "a worker or an agent")                                                                                      \
    X(CLIENT, "client", "a client")

enum keys_role {
#define X(name, word, words) KEYS_##name,
    KEYS_ROLES(X)
#undef X
};

struct keys_file {
    enum keys_role role;
    struct keys keys;
    char daemon[KEYS_ENDPOINT_MAX]; /* "": not said */
    char name[KEYS_NAME_MAX];
};

const char *keys_role_word(enum keys_role role);
MUST_USE int keys_role_of(const char *word, enum keys_role *out); /* 0; -1: no such role */
/* 40 characters that are 32 bytes in Z85? */
int keys_valid(const char *z85);
/* A new pair in public_key and secret_key. */
MUST_USE enum status keys_generate(struct keys *k, struct err *e);
/* public_key out of secret_key. */
MUST_USE enum status keys_derive(struct keys *k, struct err *e);

/* The keys of a worker (KEYS_NODE), a client or the daemon. ST_NOT_FOUND: there is no such file. ST_USER: it is not a key file, is one of another
   role, holds a pair that does not belong together, or may be read by everybody. */
MUST_USE enum status keys_read(const char *file, enum keys_role role, struct keys *out, struct err *e);
MUST_USE enum status keys_read_file(const char *file, struct keys_file *out, struct err *e); /* any role */
/* Mode 0600, durable; the old one or the new one stands after a crash. */
MUST_USE enum status keys_write(const char *file, const struct keys_file *k, struct err *e);
/* When root writes keys for a service with a user of its own, below that user's folder: gives `path` to whom `folder` belongs. */
MUST_USE enum status keys_give(const char *path, const char *folder, struct err *e);
void keys_wipe(struct keys *k);
/* "pool", "pool:5570", "tcp://pool:5570" to the last of them; without a port KEYS_NODE_PORT or the one behind it, for a client. ST_USER: none of these. */
MUST_USE enum status keys_endpoint(const char *text, enum keys_role role, char out[KEYS_ENDPOINT_MAX], struct err *e);
#define KEYS_NODE_PORT 5570

/* Where ebbd keeps its own pair, and who is let in: below its state directory. */
#define KEYS_DIR "keys"
#define KEYS_DAEMON_FILE "keys/daemon.key"
#define KEYS_AUTHORIZED_FILE "keys/authorized_keys"

#endif
