/* One daemon per state directory. The file `owner` in it says who serves it; it is refreshed every two seconds by a thread of its own.

   On one host a dead owner is known at once: another boot, no such process, or another process under that number. From another host
   only silence tells: the file must stay unchanged for a minute on our own clock. An owner that does not find its own nonce ends. */
#ifndef EBB_DAEMON_OWNER_H
#define EBB_DAEMON_OWNER_H

#include <stdint.h>

#include "base/status.h"

#define OWNER_REFRESH_MS 2000
#define OWNER_SILENCE_MS 60000

struct owner_record {
    char host[128], boot[40], nonce[36], endpoint[160];
    uint64_t pid;
    uint64_t started; /* of the process, in clock ticks since the boot: tells a reused pid from the owner */
    uint64_t beat;    /* grows with each refresh */
};

enum owner_verdict {
    OWNER_FREE, /* nobody's, or its owner is dead: ours */
    OWNER_LIVE, /* served, by a process that lives */
    OWNER_WATCH /* another host's: watch whether it is refreshed */
};
/* theirs: NULL when there is no file. alive: whether a process of this host with that pid, start and name is there. */
enum owner_verdict owner_judge(const struct owner_record *theirs, const struct owner_record *self, int (*alive)(const struct owner_record *r));
int owner_alive(const struct owner_record *r);

/* Who we are: host, boot, pid, start, a fresh nonce. */
MUST_USE enum status owner_self(const char *endpoint, struct owner_record *out, struct err *e);
MUST_USE enum status owner_read(const char *state_dir, struct owner_record *out, struct err *e); /* NOT_FOUND; CORRUPT */
MUST_USE enum status owner_write(const char *state_dir, const struct owner_record *r, struct err *e);

struct owner;

/* Takes the state directory (made when it is not there). ST_AGAIN: it is served; theirs says by whom. Another host's file is watched for up to
   `silence_ms`. */
MUST_USE enum status owner_take(const char *state_dir, const char *endpoint, uint64_t silence_ms, struct owner_record *theirs, struct owner **out,
                                struct err *e);
/* Is the file still ours? Asked by the writer of the store when the last refresh is long ago. Any thread. */
MUST_USE enum status owner_check(struct owner *o, struct err *e);
/* Milliseconds since the file was last seen to be ours. */
uint64_t owner_age_ms(struct owner *o);
/* Stops refreshing and removes the file. */
void owner_release(struct owner *o);

#endif
