/* A worker on a machine that does not see the job's files, or not all of them: what it sees is found out, and the rest goes through the daemon's relay. Each root is
   proved, not configured: a folder of sources by comparing bytes that the daemon chose with what stands under the same path here; the folder of parts by writing a
   file that the daemon finds; the model by its digest.

   A worker in the daemon's own view of the files (base/sight.h) needs none of this: then nothing is connected and every question is answered at once.

   The functions that ask the daemon wait for it, through its restarts too: a worker whose daemon stays away ends as a whole (workers/link.h). Any thread. */
#ifndef EBB_WORKERS_REMOTE_H
#define EBB_WORKERS_REMOTE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "storage/source.h"
#include "wire/keys.h"

struct remote;

struct remote_opts {
    const char *endpoint;      /* of the daemon's workers: the relay's follows from it */
    const struct keys *keys;   /* NULL: ipc */
    uint64_t number;           /* the worker's */
    const char *host;          /* workers of one host share the models that were fetched */
    const char *model_dir;     /* where those are kept; NULL: nowhere */
    uint64_t model_bytes;      /* most of them; 0: REMOTE_MODEL_BYTES */
};
#define REMOTE_MODEL_BYTES (UINT64_C(50) << 30)

/* Holds on to what the options point to. Connects only when somebody asks for something. */
MUST_USE enum status remote_new(const struct remote_opts *o, struct remote **out, struct err *e);
void remote_free(struct remote *r); /* when no thread is inside */

/* The daemon's Welcome: whether it has a relay, and what it sees. What was found out under an older generation is found out again. */
void remote_welcome(struct remote *r, int relay, const void *sight, size_t len, uint32_t generation);
/* The daemon may see other files than this worker, and has a relay. r may be NULL: no. */
int remote_far(struct remote *r);

/* How the source is to be read: s->via is set. Errors as of source_open. */
MUST_USE enum status remote_settle(struct remote *r, uint64_t job, uint64_t index, struct source *s, struct err *e);
/* The source will be read soon, from its beginning: if it comes through the relay and there is room, its first bytes are asked for now. Never waits for the
   daemon. */
void remote_soon(struct remote *r, uint64_t job, uint64_t index, const struct source *s);
#define REMOTE_AHEAD 24 /* sources at most */
/* A file that was to be read directly is not as it should be: the folder's files come through the relay from now on. */
void remote_distrust(struct remote *r, const struct source *s, const char *why);
/* A file here has changed: ST_USER when the daemon's has too, with its words; ST_ENV when only this one has, which is distrusted then. */
MUST_USE enum status remote_judge(struct remote *r, uint64_t job, uint64_t index, const struct source *s, struct err *e);

/* Whether parts of the job are written directly. */
MUST_USE enum status remote_output(struct remote *r, uint64_t job, const char *parts_dir, int *direct, struct err *e);
struct remote_part {
    uint64_t job, epoch, seq;
    const void *data;
    uint64_t size;
    const uint8_t *digest; /* 16 bytes */
};
/* Writes a part through the relay: ST_OK when a commit may name it. goes_on is asked now and then; 0 ends it with ST_AGAIN. ST_ENV: it cannot be written now. */
MUST_USE enum status remote_part(struct remote *r, const struct remote_part *p, int (*goes_on)(void *arg), void *arg, struct err *e);

/* The model of this digest out of the host's cache, fetched if it is not there: *path is to be opened as a model (mem_free). */
MUST_USE enum status remote_model(struct remote *r, const uint8_t digest[16], char **path, struct err *e);
/* It is damaged there: the next remote_model fetches it anew. */
void remote_model_bad(struct remote *r, const uint8_t digest[16]);

/* For tests and figures: bytes that came through the relay, and went. */
void remote_figures(struct remote *r, uint64_t *in, uint64_t *out);

#endif
