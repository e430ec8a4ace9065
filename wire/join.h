/* Getting a key of one's own with an invitation (`ebb invite` prints it): `ebb join` for clients, `ebb-agent join` for nodes.

   The secret key is drawn here and never leaves this machine. It is written, beside its final name, before the daemon is asked, and renamed when
   it has answered; so that an answer that is lost costs nothing: the same command again finds that the key is good. */
#ifndef EBB_WIRE_JOIN_H
#define EBB_WIRE_JOIN_H

#include <stdint.h>

#include "wire/keys.h"

struct join_opts {
    enum keys_role role;    /* KEYS_NODE or KEYS_CLIENT: who is to speak with the key */
    const char *daemon;     /* "tcp://pool:5570", "pool:5570" or "pool" */
    const char *invitation; /* "ebb1..." */
    const char *key_file;   /* where it goes; its folder is made */
    const char *name;       /* for people; NULL: the invitation's, else this host's */
    const char *program;    /* "ebb 0.1.0" */
    int force;              /* over a key file that is there */
    uint64_t timeout_ms;
};

/* Fills *out as it was written. ST_USER: a typo, an invitation that is over or of the other role, a key file that is there already; the daemon's
   own words. ST_ENV: nobody there, no answer in time, the file cannot be written. */
MUST_USE enum status join_pool(const struct join_opts *o, struct keys_file *out, struct err *e);

#endif
