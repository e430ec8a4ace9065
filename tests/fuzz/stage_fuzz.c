/* What a member of a gang is sent: two bytes, how long the envelope is; the envelope; the payload. Refused, or every byte that the model and the rows would read is
   there. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "workers/group/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint32_t sum; /* so that reading is not left out */

static void read_batch(const Ebb__MicroBatch *m)
{
    const struct message_bounds b = {.items = 8, .tokens = 64, .longest = 16, .vocab = 100, .types = 2};
    struct model_batch out;
    uint32_t tokens = 0;
    if (message_batch(m, &b, &out, NULL) != ST_OK)
        return;
    for (uint32_t i = 0; i < out.n; i++)
        tokens += out.lengths[i];
    if (out.n > b.items || tokens > b.tokens)
        abort();
    for (uint32_t i = 0; i < tokens; i++)
        sum += (uint32_t)out.ids[i] + (out.types ? out.types[i] : 0);
    for (size_t i = 0; i < m->n_records; i++)
        sum += (uint32_t)m->records[i]->record->begin;
}

static void read_result(const Ebb__StageResult *m, const void *payload, size_t len)
{
    static const uint32_t lengths[] = {3, 1, 5};
    static const struct model_info infos[] = {
        {.kind = TASK_EMBED, .dims = 4},
        {.kind = TASK_TOKENS, .dims = 2, .per_token = 1},
        {.kind = TASK_FILL_MASK, .dims = 3, .per_token = 1, .vocab = 100},
    };
    for (size_t k = 0; k < sizeof infos / sizeof *infos; k++) {
        struct model_result r;
        if (message_result(m, payload, len, &infos[k], 3, lengths, &r, NULL) != ST_OK)
            continue;
        size_t at = 0;
        for (uint32_t i = 0; i < 3; i++) { /* as rows are made of it */
            const struct model_tensor *t = &r.tensor[0], *second = r.count > 1 ? &r.tensor[1] : NULL;
            uint32_t rows = t->rows ? t->rows[i] : 1;
            for (uint32_t x = 0; x < rows * t->width; x++) {
                uint32_t bits;
                memcpy(&bits, &t->f32[at * t->width + x], sizeof bits);
                sum += bits + (second ? (uint32_t)second->i32[at * t->width + x] : 0);
            }
            sum += r.errors && r.errors[i] ? (uint32_t)strlen(r.errors[i]) : 0;
            at += rows;
        }
        mem_free((void *)(uintptr_t)r.errors);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Ebb__Envelope *m;
    size_t len = size >= 2 ? (size_t)data[0] | (size_t)data[1] << 8 : 0;
    if (size < 2 || len > size - 2 || wire_decode(data + 2, len, &m, NULL) != ST_OK)
        return 0;
    size_t rest = size - 2 - len;
    void *payload = malloc(rest ? rest : 1); /* of its own size, so that a byte behind it is seen */
    if (rest)
        memcpy(payload, data + 2 + len, rest);
    if (m->body_case == EBB__ENVELOPE__BODY_MICRO_BATCH)
        read_batch(m->micro_batch);
    else if (m->body_case == EBB__ENVELOPE__BODY_STAGE_RESULT)
        read_result(m->stage_result, payload, rest);
    free(payload);
    wire_free(m);
    return 0;
}
