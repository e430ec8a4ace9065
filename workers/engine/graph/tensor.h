/* A tensor: type, sizes, and where its elements lie: (device, buffer, offset). Elements are row-major without gaps. Only a backend's
   kernels turn that into a pointer; for the processor that is tensor_data. */
#ifndef EBB_GRAPH_TENSOR_H
#define EBB_GRAPH_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "workers/engine/graph/dtype.h"

enum { RANK_MAX = 12 };
enum device { DEVICE_CPU };

/* Counted. Owned by a graph (constants) or by a run (everything else); never shared between lanes but read-only. */
struct buffer {
    uint32_t refs;
    enum device device;
    size_t bytes;
    void *base; /* of the device; for the processor 64-byte aligned host memory */
    void *owner; /* a run's memory; NULL: a constant of a graph, which a run does not count */
};

struct tensor {
    enum dtype dtype;
    uint32_t rank;
    int64_t dims[RANK_MAX];
    struct buffer *buffer; /* NULL: none (an optional input that is not there) */
    size_t offset;         /* bytes */
};

static inline void *tensor_data(const struct tensor *t)
{
    return (char *)t->buffer->base + t->offset;
}

static inline int64_t tensor_count(const struct tensor *t)
{
    int64_t n = 1;
    for (uint32_t i = 0; i < t->rank; i++)
        n *= t->dims[i];
    return n;
}

/* Constants: memory that the graph owns. Filled with zeros; of strings: data is copied with their bytes. ST_USER where the sizes are too large. */
MUST_USE enum status tensor_make(struct tensor *t, enum dtype d, uint32_t rank, const int64_t *dims, struct err *e);
MUST_USE enum status tensor_copy(struct tensor *t, enum dtype d, uint32_t rank, const int64_t *dims, const void *data, struct err *e);
void tensor_share(struct tensor *t, const struct tensor *other); /* counts */
void tensor_release(struct tensor *t);
/* Bytes of so many elements; -1 where that overflows or a size is negative. */
int64_t tensor_size(enum dtype d, uint32_t rank, const int64_t *dims);

/* What an edge of the graph carries. */
enum value_kind { VALUE_NONE, VALUE_TENSOR, VALUE_SEQUENCE }; /* NONE: an empty optional */
struct value {
    enum value_kind kind;
    struct tensor tensor;
    struct value *items; /* of a sequence */
    uint32_t count, cap;
    enum dtype element;  /* of a sequence, for an empty one */
    void *charged;       /* the run's memory to which `items` counts */
};

#endif
