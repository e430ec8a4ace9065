/* What graphmodel.c and graphlane.c share. Not for others. */
#ifndef EBB_ENGINE_GRAPHINNER_H
#define EBB_ENGINE_GRAPHINNER_H

#include "workers/engine/graph/pack.h"
#include "workers/engine/graph/part.h"
#include "workers/engine/graphmodel.h"
#include "workers/engine/onnx/onnx.h"

enum port_part { PORT_IDS, PORT_MASK, PORT_TYPES, PORT_POSITIONS, PORT_PARTS };

struct graph_model {
    struct graph_model_info info;
    struct onnx_model *onnx;
    const struct graph *g;
    enum port_part part[PORTS_MAX];     /* of each input, of texts */
    enum packed_kind packed[PORTS_MAX]; /* of each output */
    uint32_t fill, vocab;
    struct graph_part stage;            /* where this is a part; its bounds are those of the whole graph else */
    uint32_t own;                       /* of the graph's inputs, the first ones: what records bring. The others cross a cut */
    int last;                           /* outputs of the graph are the model's */
    int32_t *open;                      /* symbols that sizes of the model's inputs are, each once */
    uint32_t n_open;
    int32_t batch, length;              /* symbols; -1: there is none */
};

struct lane_room {
    void *data;
    size_t cap;
};

struct graph_lane {
    const struct graph_model *m;
    struct run *run;
    struct lane_room stack[PORTS_MAX]; /* of each input: records side by side */
    uint32_t records, tokens, length;
    struct seqs seqs;

    /* of a stage */
    int64_t *size;                     /* of each symbol, in this run; DIM_UNKNOWN: not known */
    struct array *taken, *alone;       /* of what crosses the cut before it: of the whole run; of one record of it */
    struct lane_room *taken_room, *alone_room;
    const struct array *given;         /* one of the two; NULL: nothing was taken */
    uint32_t taken_records;            /* of the whole run */
};

/* Room for so many bytes, 64-byte aligned; what was there goes when it grows. */
MUST_USE enum status graph_lane_room(struct lane_room *room, size_t bytes, void **out, struct err *e);
/* What crosses the cut before this stage becomes inputs of the run. */
MUST_USE enum status graph_lane_give(struct graph_lane *l, struct err *e);
/* Sizes of the inputs, of this run: of texts, and of records. */
void graph_lane_know_texts(struct graph_lane *l, uint32_t n, uint32_t tokens, uint32_t length);
void graph_lane_know(struct graph_lane *l, uint32_t n, const struct array *in);

#endif
