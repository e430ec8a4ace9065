#include "workers/engine/ops/embed.h"

#include "base/mem.h"

size_t embed_bytes(uint32_t vocab, uint32_t positions, uint32_t types, uint32_t n)
{
    return sizeof(float) * n * ((size_t)vocab + positions + types);
}

void embed_release(struct embed *o)
{
    for (int i = 0; i < 3; i++)
        mem_free(o->own[i]);
    *o = (struct embed){0};
}

/* Tokens of one type whose positions follow each other. */
static uint32_t run_length(const struct embed *o, uint32_t left, const int32_t *ids, const uint8_t *types)
{
    uint32_t n = 1;
    if (!o->positions || (o->after_padding && ids[0] == o->padding_id))
        return 1;
    while (n < left && (!types || types[n] == types[0]) && !(o->after_padding && ids[n] == o->padding_id))
        n++;
    return n;
}

void embed_run(const struct embed *o, uint32_t n_seqs, const uint32_t *lengths, const int32_t *ids, const uint8_t *token_types, float *y,
               size_t ldy)
{
    uint32_t first = o->after_padding ? (uint32_t)o->padding_id + 1 : 0;
    for (uint32_t s = 0; s < n_seqs; s++) {
        BUG_IF(lengths[s] == 0 || (o->positions && lengths[s] > o->positions - first), "a sequence of %u tokens, the model has %u positions", lengths[s],
               o->positions - first);
        uint32_t position = first;
        for (uint32_t i = 0, n; i < lengths[s]; i += n, ids += n, y += n * ldy, token_types += token_types ? n : 0) {
            n = run_length(o, lengths[s] - i, ids, token_types);
            for (uint32_t k = 0; k < n; k++)
                BUG_IF(ids[k] < 0 || (uint32_t)ids[k] >= o->vocab, "token id %d, the vocabulary has %u", ids[k], o->vocab);
            uint32_t type = token_types ? token_types[0] : 0;
            BUG_IF(type >= o->types, "a token of type %u, the model has %u", type, o->types);
            int padding = o->after_padding && ids[0] == o->padding_id;
            uint32_t at = !o->positions ? 0 : padding ? (uint32_t)o->padding_id : position;
            o->kernels->embed(n, o->n, ids, o->word, o->position + (size_t)at * o->n, o->type + (size_t)type * o->n, y, ldy);
            position += padding ? 0 : n;
        }
    }
}
