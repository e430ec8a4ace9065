/* Who is let in: the file authorized_keys of the state directory, and the table made of it. One line a key, for people to read and to edit:

       node   <Z85, 40 characters>  gpu-box
       client <Z85>                 annas-laptop
       invite-node <Z85>            gpu-box-2  until=2026-12-01T20:15:00Z

   A line that is none lets nobody in, and is complained of; the others count. Lines that begin with '#' are remarks, and stay. */
#ifndef EBB_DAEMON_KEYRING_H
#define EBB_DAEMON_KEYRING_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "wire/keys.h"

#define KEYRING_FILE_MAX (8u << 20)

struct keyring_key {
    uint32_t user;       /* what this process calls it; never given to another key */
    enum keys_role role; /* KEYS_NODE or KEYS_CLIENT */
    int invite;          /* opens once, for a Join */
    char key[KEYS_Z85 + 1], name[KEYS_NAME_MAX];
    int64_t until_ms;    /* wall clock; 0: for ever */
};

struct keyring {
    struct keyring_key *keys;
    size_t count, cap;
    uint32_t last_user;
    uint32_t *place; /* of user 1, 2, ... last_user in keys, plus one; 0: not in it any more */
};

void keyring_release(struct keyring *r);
/* Reads the text anew: keys that were there before keep their numbers, new ones get new numbers. `complain` hears of each bad line. ST_NOMEM: *r is
   as it was. */
MUST_USE enum status keyring_read(struct keyring *r, const char *text, size_t len, void (*complain)(void *arg, size_t line, const char *why), void *arg,
                                  struct err *e);
const struct keyring_key *keyring_find(const struct keyring *r, const char *key); /* NULL */
const struct keyring_key *keyring_user(const struct keyring *r, uint32_t user);
/* A name, or a key. NULL: none. *several: more than one has this name. */
const struct keyring_key *keyring_named(const struct keyring *r, const char *name, int *several);
/* What is left of `wanted` (letters, digits, '.', '_', '-'), with a number behind it when the name is taken. */
void keyring_name(const struct keyring *r, const char *wanted, char out[KEYS_NAME_MAX]);

/* Editing the text: each appends to `out` what becomes of it. 0; -1 when memory is out. */
int keyring_add(struct buf *out, const struct keyring_key *k);
/* All but the lines of this key, and of invitations that are over at now_ms. */
int keyring_without(struct buf *out, const char *text, size_t len, const char *key, int64_t now_ms);

#endif
