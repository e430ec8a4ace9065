/* An ONNX model as records meet it: named inputs and outputs of one record each, and how many records may share a run.

   A record brings an array for each input. Where all inputs have a first axis that is open (or 1), that axis is the batch: a record's arrays lack it. Else a
   record brings whole tensors. Records that may share a run give the bits that they would give alone. */
#ifndef EBB_ENGINE_GRAPHMODEL_H
#define EBB_ENGINE_GRAPHMODEL_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "workers/engine/cpu/kernels.h"
#include "workers/engine/cut.h"
#include "workers/engine/graph/dtype.h"

enum { ARRAY_RANK_MAX = 12, PORTS_MAX = 64 };

struct array {
    enum dtype dtype;
    uint32_t rank;
    int64_t dims[ARRAY_RANK_MAX];
    const void *data; /* row-major */
};

struct port { /* an input or output, of one record */
    const char *name;
    enum dtype dtype;
    int rank; /* -1: any */
    int64_t dims[ARRAY_RANK_MAX]; /* -1: any; axes that must be equal where they are given as the same symbol are not told apart here */
};

enum sharing {
    SHARING_NONE,   /* record by record: the graph mixes records, or that could not be ruled out */
    SHARING_EQUAL,  /* records whose arrays have equal sizes */
    SHARING_PACKED, /* texts of any lengths, end to end, without padding */
};

struct graph_model_info {
    int64_t ir_version;
    int opset;
    char producer[96];
    uint64_t parameters, weight_bytes;
    uint32_t nodes, ops; /* as in the file; as they run */
    uint32_t n_in, n_out;
    struct port in[PORTS_MAX], out[PORTS_MAX];
    int text;    /* takes texts: graph_lane_texts */
    int batched; /* records lack the first axis */
    enum sharing sharing;
    char why[200]; /* why not more is shared; "" where all is */
    char whole[200]; /* why it cannot be cut into parts; "" where it can */
    uint64_t part_bytes; /* weights of this part, as they stand in the file; of a whole model weight_bytes */
};

struct graph_model_opts {
    /* There is a tokenizer: if the inputs are those of texts ([batch, length] of ids, a mask, token types), that is what the model is for. */
    int text;
    int precision; /* enum precision of linear layers */
    struct packfile *pack; /* of their weights; NULL: none. Outlives the model */
    uint64_t run_bytes;    /* most memory of a lane's run, see graph_opts */
    int part;              /* 1: a stage: segments [first, end) of graph_model_cut's list, which must be there. first == end: only what graph_model_info says */
    uint32_t first, end;
};

struct graph_model;
/* path is the ONNX file itself. ST_USER names file and node. */
MUST_USE enum status graph_model_open(const char *path, const struct kernels *k, const struct graph_model_opts *o, struct graph_model **out, struct err *e);
void graph_model_free(struct graph_model *m);
const struct graph_model_info *graph_model_info(const struct graph_model *m);

/* One lane's memory. */
struct graph_lane;
MUST_USE enum status graph_lane_new(const struct graph_model *m, struct graph_lane **out, struct err *e);
void graph_lane_free(struct graph_lane *l);
size_t graph_lane_bytes(const struct graph_lane *l); /* held now */

/* n records, whose arrays lie record by record: in[r * n_in + i]. n is 1, or the model shares runs of equal sizes and these are. ST_USER: these records do
   not go through the model (an index out of range, sizes that do not fit, more memory than a run may have): what is wrong with which node. Results stay until the next run. */
MUST_USE enum status graph_lane_run(struct graph_lane *l, uint32_t n, const struct array *in, struct err *e);
/* Record r's part of output o. */
void graph_lane_result(const struct graph_lane *l, uint32_t o, uint32_t r, struct array *out);

/* Texts end to end (SHARING_PACKED), or of one length (SHARING_EQUAL), or one. types may be NULL. fill: each is filled up to that length, if the model has
   a fixed one; 0: not. */
MUST_USE enum status graph_lane_texts(struct graph_lane *l, uint32_t n, const uint32_t *lengths, const int32_t *ids, const uint8_t *types, uint32_t fill,
                                      struct err *e);
/* Output o after graph_lane_texts, whole: [texts, ...], or a row for each token: [tokens, width] (rows_are_tokens). ST_USER: it is neither. */
MUST_USE enum status graph_lane_rows(const struct graph_lane *l, uint32_t o, const float **rows, uint32_t *width, int *rows_are_tokens, struct err *e);
/* Rows of the table in which token ids are looked up; 0: not known. */
uint32_t graph_model_vocab(const struct graph_model *m);
/* For one record whose open sizes are out->tokens (a batch is 1). Where the cuts lie does not depend on out->tokens. Not of a part. */
MUST_USE enum status graph_model_cut(const struct graph_model *m, struct cut *out, struct err *e);
uint32_t graph_model_fill(const struct graph_model *m); /* the fixed length of texts; 0: none */

/* Stages --------------------------------------------------------------------------------------------------------------------------------------------

   A stage that is not the first takes what crosses the cut before it, run by run, and then runs as it would else: graph_lane_texts (the same texts), or
   graph_lane_resume. One that is not the last gives what crosses the cut behind it. carry.h has the bytes. */
struct carry_in;
struct carry_out;
int graph_model_is_first(const struct graph_model *m);
int graph_model_is_last(const struct graph_model *m);
uint64_t graph_model_check(const struct graph_model *m, int behind); /* of the cut before, or behind, for carry_open and carry_begin */
/* Reads what one run of n records gave, and checks it against the plan. Of texts: `lengths`; of arrays NULL. What was read stands until the next. ST_CORRUPT, ST_NOMEM. */
MUST_USE enum status graph_lane_take(struct graph_lane *l, struct carry_in *in, uint32_t n, const uint32_t *lengths, struct err *e);
/* The next run is of record r of those alone; of texts: its first token among theirs, and how many it has. */
MUST_USE enum status graph_lane_take_one(struct graph_lane *l, uint32_t r, uint32_t start, uint32_t length, struct err *e);
/* Arrays: runs what was taken. ST_USER: as graph_lane_run. */
MUST_USE enum status graph_lane_resume(struct graph_lane *l, struct err *e);
/* After a run: writes what crosses the cut behind. */
MUST_USE enum status graph_lane_carry(const struct graph_lane *l, struct carry_out *out, struct err *e);
/* As if zeros had been taken, for one text of so many tokens: to see what a run takes. ST_USER: sizes are not known beforehand. */
MUST_USE enum status graph_lane_take_nothing(struct graph_lane *l, uint32_t length, struct err *e);

/* Sorts n records into groups whose arrays have equal sizes: order gets their numbers, group after group; groups get each one's count. Returns how many
   groups. */
uint32_t graph_groups(uint32_t n, uint32_t n_in, const struct array *in, uint32_t *order, uint32_t *groups);

#endif
