/* An encoder of any family (family.h) as a run of ops over packed tokens. Read-only once it is loaded; encoder_work is the memory of one
   thread. */
#ifndef EBB_ENGINE_ENCODER_H
#define EBB_ENGINE_ENCODER_H

#include "workers/engine/loading.h"
#include "workers/engine/window.h"

struct encoder;

/* How the segments of a directory are numbered: embeddings, each layer in the order of the run, what stands on top. */
uint32_t encoder_segments(const struct model_config *c);
/* In l->precision. Checks that every tensor is there with the shape that l->c asks for and, when l->load, reads and packs those that its segments need: *out
   then; else NULL. */
MUST_USE enum status encoder_load(struct loading *l, struct encoder **out, struct err *e);
void encoder_free(struct encoder *b);
uint32_t encoder_weights_of(const struct model_config *c, uint32_t i); /* which layer's weights layer i of the run has */
#define ENCODER_WORDS "embeddings.word_embeddings.weight" /* the vectors of the vocabulary, [vocab][embedding] */
const float *encoder_words(const struct encoder *b); /* NULL: embeddings are none of its segments */
/* Tokens that one text may have. */
uint32_t encoder_longest(const struct model_config *c);
uint32_t encoder_layers(const struct encoder *b);  /* of the run, that are among its segments */
uint32_t encoder_weights(const struct encoder *b); /* layers with weights of their own */
uint32_t encoder_layer_weights(const struct encoder *b, uint32_t i); /* of the i-th of encoder_layers */
/* Where weights lie that are in a file: of one layer's, how many; of the tables of words, positions and types. */
uint32_t encoder_pieces(const struct encoder *b, uint32_t weights, struct window_piece *out, uint32_t most);
enum { ENCODER_TABLES = 3 };
void encoder_tables(const struct encoder *b, struct window_piece out[ENCODER_TABLES]);
/* From now on encoder_run begins a sweep, through units that are its layers; one more follows, which is the caller's. */
void encoder_use_window(struct encoder *b, struct window *w);

struct encoder_work { /* parts of one allocation */
    float *x, *t, *wide, *scratch;
    size_t ld, ld_wide; /* floats between rows of x and t, of wide */
};
size_t encoder_work_bytes(const struct encoder *b, uint32_t max_tokens);
/* memory is 64-byte aligned and has encoder_work_bytes. */
void encoder_work_init(struct encoder_work *work, const struct encoder *b, uint32_t max_tokens, void *memory);
/* Through the segments that were loaded: from ids, or from the rows of work->x where embeddings are none of them. Leaves the tokens' vectors in work->x; the rest
   of work is free for what follows. types NULL: all 0. */
void encoder_run(const struct encoder *b, const struct encoder_work *work, uint32_t n_seqs, const uint32_t *lengths, const int32_t *ids,
                 const uint8_t *types);

#endif
