/* What `ebb invite` prints and `join` takes: the daemon's public key and the secret half of a key that opens once, as bech32m text. A typo is
   found by its checksum. */
#ifndef EBB_WIRE_INVITE_H
#define EBB_WIRE_INVITE_H

#include "wire/keys.h"

#define INVITE_TEXT 128 /* bytes that hold any, with its end */

struct invite {
    enum keys_role role; /* of who comes: KEYS_NODE or KEYS_CLIENT */
    struct keys keys;    /* public_key and secret_key are those of the invitation, server_key is the daemon's */
};

/* Needs role, secret_key and server_key. */
void invite_write(const struct invite *v, char text[INVITE_TEXT]);
/* ST_USER: says what is wrong with the text. */
MUST_USE enum status invite_read(const char *text, struct invite *out, struct err *e);

#endif
