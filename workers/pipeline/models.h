/* A loaded model with its tokenizer: read-only, shared by all lanes, counted, so that the next job of the same model finds it warm and
   another model's memory goes when the last record has left it. */
#ifndef EBB_WORKERS_MODELS_H
#define EBB_WORKERS_MODELS_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/status.h"
#include "workers/engine/model.h"
#include "workers/image/spec.h"
#include "workers/pipeline/job.h"
#include "workers/tensor_in/feed.h"
#include "workers/text/tokenizer.h"

struct loaded {
    atomic_int refs;
    uint64_t key;
    struct model *model;
    struct tokenizer *tokenizer; /* NULL: the model takes arrays */
    struct image_spec *images;   /* how it wants pictures; NULL: it does not say */
    const struct model_info *info;
    uint64_t record_bytes;   /* of the arrays that a record becomes, where their sizes are known; they may be far more than the record */
    int32_t mask_id;         /* fill-mask; else -1 */
    uint64_t load_ms;
    struct loaded **parts;   /* of a job of several steps: the model of each, NULL of a command; model, tokenizer and images are NULL then, info is `whole` */
    size_t part_count;
    struct model_info whole;
    int shell;               /* tokenizer and model_info alone: its gang runs the model */
    char *path;              /* where the model was found */
};

struct remote;

/* Loads the job's model and proves that it is the one the job was submitted with. machine: what does not come from the job (isa, packed weights). remote: where
   to get a model that is not on this machine; may be NULL. ST_USER: it is not the one, or the tokenizer does not go with it. */
MUST_USE enum status loaded_open(const struct job *j, const struct model_opts *machine, struct remote *remote, struct loaded **out, struct err *e);
/* The same, for a gang (docs/pipelines.md): the segments [first, end) of it, without a tokenizer unless the task needs one; first == end: a shell. */
MUST_USE enum status loaded_open_part(const struct job *j, const struct model_opts *machine, struct remote *remote, uint32_t first, uint32_t end,
                                      struct loaded **out, struct err *e);
/* How records of a job become what a model of arrays takes; read-only, holds on to both. */
MUST_USE enum status loaded_feed(const struct loaded *l, const struct job *j, struct feed **out, struct err *e);
/* It is the job's model, and gives the same bits as where the job began. */
int loaded_fits(const struct loaded *l, const struct job *j);
struct loaded *loaded_ref(struct loaded *l);
void loaded_unref(struct loaded *l);

#endif
