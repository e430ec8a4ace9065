#include "workers/engine/ops/embed.h"

#include "base/mem.h"

size_t embed_bytes(uint32_t vocab, uint32_t positions, uint32_t n)
{
    return sizeof(float) * n * ((size_t)vocab + positions + 1);
}

enum status embed_init(struct embed *o, const struct kernels *kernels, uint32_t vocab, uint32_t positions, uint32_t n,
                       struct err *e)
{
    *o = (struct embed){.kernels = kernels, .vocab = vocab, .positions = positions, .n = n};
    o->word = mem_aligned(sizeof(float) * n * vocab);
    o->position = mem_aligned(sizeof(float) * n * positions);
    o->type = mem_aligned(sizeof(float) * n);
    if (!o->word || !o->position || !o->type) {
        embed_release(o);
        return err_nomem(e, "the model's weights");
    }
    return ST_OK;
}

void embed_release(struct embed *o)
{
    mem_free(o->word);
    mem_free(o->position);
    mem_free(o->type);
    *o = (struct embed){0};
}

void embed_run(const struct embed *o, uint32_t n_seqs, const uint32_t *lengths, const int32_t *ids, float *y, size_t ldy)
{
    for (uint32_t s = 0; s < n_seqs; ids += lengths[s], y += lengths[s] * ldy, s++) {
        BUG_IF(lengths[s] == 0 || lengths[s] > o->positions, "a sequence of %u tokens, the model has %u positions", lengths[s],
               o->positions);
        for (uint32_t i = 0; i < lengths[s]; i++)
            BUG_IF(ids[i] < 0 || (uint32_t)ids[i] >= o->vocab, "token id %d, the vocabulary has %u", ids[i], o->vocab);
        o->kernels->embed(lengths[s], o->n, ids, o->word, o->position, o->type, y, ldy);
    }
}
