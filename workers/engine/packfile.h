/* Packed weights on disk: `<model digest>-<layout>-<kind>.pack`, made by the first worker that loads a model, then mapped read-only by all workers of a
   host. The bytes are those that packing would give again; a file that is damaged, truncated or made for anything else is removed and made anew.

   Two ways lead to a file. By streaming, where it is known beforehand what belongs into it: packfile_has for each layer, and where one is missing
   packfile_begin -> layers, packfile_flush after each few -> packfile_end; nothing but these few is in memory. Or all at once, where only the finished model
   tells: packfile_linear for each layer -> packfile_seal once all of them are filled. Then ... -> packfile_free, after the layers.
   A packfile that is NULL is no cache: packfile_linear is linear_init then. */
#ifndef EBB_ENGINE_PACKFILE_H
#define EBB_ENGINE_PACKFILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "workers/engine/ops/linear.h"

/* Raised whenever the weights that a layer's name stands for change (the order of rows in a layer, what is folded into them, a bit of f32's results, through which
   vectors of distances have gone), or the format does. How kernels lay weights out is looked at each time and needs no number. */
enum { PACKFILE_VERSION = 2 };
#define PACKFILE_MOST_BYTES (UINT64_C(20) << 30) /* all files of a folder, unless told otherwise */

struct packfile;

struct packfile_opts {
    const char *dir;       /* made where it is missing, for the user alone */
    uint64_t most_bytes;   /* files of the folder, the longest unused ones go; 0: PACKFILE_MOST_BYTES */
    const uint8_t *digest; /* 16 bytes: the model's */
    const char *kind;      /* which layers a load asks for: the task, "onnx" */
    const struct kernels *kernels;
    enum precision precision; /* of most layers; the others are f32 */
    int sparing;           /* 1: pages are not left in memory when their sums have been looked at */
    int part;              /* 1: others ask for other layers of this file: packfile_seal leaves in it what was not asked for */
};

/* Looks at what the file says it holds, not at the weights. Only ST_NOMEM fails. A folder that cannot be used (not ours, read-only, on a network file system) is
   said in the log; *out is NULL then. */
MUST_USE enum status packfile_open(const struct packfile_opts *o, struct packfile **out, struct err *e);
void packfile_free(struct packfile *p);

/* A layer's weights under `name`: l->filled, and they are there, with the right sum; or zero, and the caller fills them with linear_set before packfile_flush or
   packfile_seal. l must be released before p is freed. p or name may be NULL: linear_init. */
MUST_USE enum status packfile_linear(struct packfile *p, const char *name, struct linear *l, const struct kernels *kernels, enum precision precision, uint32_t n,
                                     uint32_t k, struct err *e);
/* The same, filled from w (as linear_set_strided) where it has to be; its name is a digest of what w and bias hold. */
MUST_USE enum status packfile_linear_of(struct packfile *p, struct linear *l, const struct kernels *kernels, enum precision precision, uint32_t n, uint32_t k,
                                        const float *w, size_t row, size_t column, const float *bias, struct err *e);
/* A table of floats [rows][cols], each row where it lies in the file. NULL: it is not there, or p is NULL. */
const float *packfile_table(struct packfile *p, const char *name, uint32_t rows, uint32_t cols);

/* Is such a layer in the file, with the right sum? Its pages are read. A file that turns out to be damaged is removed; what else is in it still serves. */
int packfile_has(struct packfile *p, const char *name, const struct kernels *kernels, enum precision precision, uint32_t n, uint32_t k);
int packfile_has_table(struct packfile *p, const char *name, uint32_t rows, uint32_t cols);

/* Streaming. Each gives 0, or -1: there is no cache (why is said in the log), the layers made since the last flush are gone, and only packfile_free is left. */
int packfile_begin(struct packfile *p, uint64_t about_bytes); /* nothing is found from now on until packfile_end */
/* Layers that packfile_linear gave are filled: they are written, and their memory goes; linear_release is all that they are good for. */
int packfile_flush(struct packfile *p);
/* Rows [first, first + count) of a table, all of them in order, with no other rows and no packfile_flush between. */
int packfile_rows(struct packfile *p, const char *name, uint32_t rows, uint32_t cols, uint32_t first, uint32_t count, const float *data);
int packfile_broken(const struct packfile *p); /* one of them gave -1 */
int packfile_end(struct packfile *p); /* the file has its name, and what is in it is found */

/* Layers that were not in the file: the model had better be the one of the digest still. */
uint32_t packfile_made(const struct packfile *p);
/* Writes what was made, once, and puts the file's pages in the place of the memory. Whatever fails is said in the log: there is no cache then, and the
   layers stay as they are. */
void packfile_seal(struct packfile *p);

/* Bytes of layers and tables that lie in a file's pages. For figures, and tests. */
uint64_t packfile_mapped_bytes(const struct packfile *p);

/* Where files go by default: $EBB_PACK_CACHE, $XDG_CACHE_HOME/ebb, ~/.cache/ebb; *out NULL: nowhere ("off", or there is no home). mem_free(*out). */
MUST_USE enum status packfile_default_dir(char **out, struct err *e);

#endif
