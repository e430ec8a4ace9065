/* The walk over a model's tensors, once to check that they are there with the shapes that are needed, and once more to read them. Both
   walks are the same code: what is checked is what is read. */
#ifndef EBB_ENGINE_LOADING_H
#define EBB_ENGINE_LOADING_H

#include "base/status.h"
#include "workers/engine/config.h"
#include "workers/engine/ops/linear.h"
#include "workers/engine/ops/norm.h"
#include "workers/engine/packfile.h"
#include "workers/engine/safetensors.h"

struct loading {
    const struct weights *w;
    const struct model_config *c;
    const struct kernels *kernels;
    enum precision precision;   /* of the linear layers that follow */
    struct packfile *pack;      /* of packed weights; NULL: none */
    int load;                   /* 0: only look; ops are not touched then and may be NULL */
    int part;                   /* 1: only segments [first, end) of cut.h are read and counted in `bytes`; the others are looked at */
    uint32_t first, end;
    float *space;               /* of loading_space */
    size_t room;
    int ask;                    /* without load: layers and tables that are wanted and are not in pack are counted in `lacks` */
    uint32_t lacks;
    int packing;                /* with load: everything goes into the file of pack and is forgotten; ops are only good for being released */
    uint64_t parameters, bytes; /* counted on the way */
    int marking;                /* parts of the model are noted as the walk comes to them */
    struct mark {
        char name[64];
        uint64_t bytes;         /* counted before it */
    } *mark;
    size_t marks, mark_cap;
};

void loading_release(struct loading *l); /* its space and marks */
static inline int loading_wants(const struct loading *l, uint32_t segment)
{
    return !l->part || (segment >= l->first && segment < l->end);
}
/* What follows is only looked at, and not counted in `bytes`, unless it is wanted; until loading_leave. */
struct loading_was {
    int load, ask;
    uint64_t bytes;
};
struct loading_was loading_enter(struct loading *l, int wanted);
void loading_leave(struct loading *l, struct loading_was was, int wanted);
/* Here begins the part of that name (cut.h). */
MUST_USE enum status loading_mark(struct loading *l, const char *name, struct err *e);
/* Room for n floats, kept until the next call; NULL when memory is out. */
float *loading_space(struct loading *l, size_t n);

/* Names are tried as they are, with the family's prefix, and with "model." before either; "LayerNorm.weight" also as "LayerNorm.gamma". */
int loading_has(const struct loading *l, const char *name);
/* A tensor of the shape [rows, cols], or [rows] where cols is 0: checked, counted, and read into `to`. ST_USER names file and tensor. */
MUST_USE enum status loading_tensor(struct loading *l, const char *name, uint32_t rows, uint32_t cols, float *to, struct err *e);
/* There is such a table, [rows, cols]; it is counted, loading_rows reads it. */
MUST_USE enum status loading_shape(struct loading *l, const char *name, uint32_t rows, uint32_t cols, struct err *e);
/* A table that is only read, [rows, cols]: *to is where it lies in the file of packed weights, or *own, a copy of its own that mem_free frees. */
MUST_USE enum status loading_table(struct loading *l, const char *name, uint32_t rows, uint32_t cols, const float **to, float **own, struct err *e);
/* The same, a few rows of it: [first, first + count) of the table [rows, cols] go into `to`. Counts nothing. */
MUST_USE enum status loading_rows(struct loading *l, const char *name, uint32_t rows, uint32_t cols, uint32_t first, uint32_t count, float *to,
                                  struct err *e);
/* name.weight and name.bias of a layer normalisation */
MUST_USE enum status loading_norm(struct loading *l, const char *name, uint32_t n, float eps, struct norm *to, struct err *e);
/* A linear layer, zero at first, whose outputs are then filled part by part: name.weight [count, k] and name.bias [count]; bias NULL: zeros,
   else the name of the tensor itself. packed: its name in a file of packed weights; NULL: it is packed each time. Where it is found there, the parts are
   only looked at. */
MUST_USE enum status loading_linear(struct loading *l, const char *packed, uint32_t n, uint32_t k, struct linear *to, struct err *e);
/* All layers so far are filled. ST_ENV while packing: they cannot be written, which is in the log. */
MUST_USE enum status loading_flush(struct loading *l, struct err *e);
MUST_USE enum status loading_part(struct loading *l, const char *name, uint32_t first, uint32_t count, uint32_t k, struct linear *to,
                                  struct err *e);
MUST_USE enum status loading_named(struct loading *l, const char *weight, const char *bias, uint32_t count, uint32_t k, struct linear *to,
                                   struct err *e);

#endif
