/* Packed weights on disk: `<model digest>-<layout>-<kind>.pack`, made by the first worker that loads a model, then mapped read-only by all workers of a
   host. The bytes are those that packing would give again; a file that is damaged, truncated or made for anything else is removed and made anew.

   The way: packfile_open -> packfile_linear for each layer -> packfile_seal, once all of them are filled -> ... -> packfile_free, after the layers.
   A packfile that is NULL is no cache: packfile_linear is linear_init then. */
#ifndef EBB_ENGINE_PACKFILE_H
#define EBB_ENGINE_PACKFILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "workers/engine/ops/linear.h"

/* Raised whenever the weights that a layer's name stands for change (the order of rows in a layer, what is folded into them). How kernels lay weights out
   is looked at each time and needs no number. */
enum { PACKFILE_VERSION = 1 };
#define PACKFILE_MOST_BYTES (UINT64_C(20) << 30) /* all files of a folder, unless told otherwise */

struct packfile;

struct packfile_opts {
    const char *dir;       /* made where it is missing, for the user alone */
    uint64_t most_bytes;   /* files of the folder, the longest unused ones go; 0: PACKFILE_MOST_BYTES */
    const uint8_t *digest; /* 16 bytes: the model's */
    const char *kind;      /* which layers a load asks for: the task, "onnx" */
    const struct kernels *kernels;
    enum precision precision; /* of most layers; the others are f32 */
};

/* Only ST_NOMEM fails. A folder that cannot be used (not ours, read-only, on a network file system) is said in the log; *out is NULL then. */
MUST_USE enum status packfile_open(const struct packfile_opts *o, struct packfile **out, struct err *e);
void packfile_free(struct packfile *p);

/* A layer's weights under `name`: l->filled, and they are there; or zero, and the caller fills them with linear_set before packfile_seal. l must be
   released before p is freed. p or name may be NULL: linear_init. */
MUST_USE enum status packfile_linear(struct packfile *p, const char *name, struct linear *l, const struct kernels *kernels, enum precision precision, uint32_t n,
                                     uint32_t k, struct err *e);
/* The same, filled from w (as linear_set_strided) where it has to be; its name is a digest of what w and bias hold. */
MUST_USE enum status packfile_linear_of(struct packfile *p, struct linear *l, const struct kernels *kernels, enum precision precision, uint32_t n, uint32_t k,
                                        const float *w, size_t row, size_t column, const float *bias, struct err *e);
/* Layers that were not in the file: the model had better be the one of the digest still. */
uint32_t packfile_made(const struct packfile *p);
/* Writes what was made, once, and puts the file's pages in the place of the memory. Whatever fails is said in the log: there is no cache then, and the
   layers stay as they are. */
void packfile_seal(struct packfile *p);

/* Bytes of l that lie in a file's pages. For tests and figures. */
uint64_t packfile_mapped_bytes(const struct packfile *p);

/* Where files go by default: $EBB_PACK_CACHE, $XDG_CACHE_HOME/ebb, ~/.cache/ebb; *out NULL: nowhere ("off", or there is no home). mem_free(*out). */
MUST_USE enum status packfile_default_dir(char **out, struct err *e);

#endif
