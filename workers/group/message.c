#include "workers/group/message.h"

#include <string.h>

#include "base/mem.h"

#define WIDEST (1u << 24) /* numbers in a row */

static enum status check_lengths(const Ebb__MicroBatch *m, const struct message_bounds *b, uint32_t *tokens, struct err *e)
{
    uint64_t all = 0;
    if (m->n_lengths == 0 || m->n_lengths > b->items)
        return err_set(e, ST_CORRUPT, "a micro-batch of %zu items, where 1 to %u are taken", m->n_lengths, b->items);
    for (size_t i = 0; i < m->n_lengths; i++) {
        if (m->lengths[i] == 0 || m->lengths[i] > b->longest)
            return err_set(e, ST_CORRUPT, "an item of %u tokens, where 1 to %u are taken", m->lengths[i], b->longest);
        all += m->lengths[i];
    }
    if (all > b->tokens)
        return err_set(e, ST_CORRUPT, "a micro-batch of %llu tokens, where %u are taken", (unsigned long long)all, b->tokens);
    *tokens = (uint32_t)all;
    return ST_OK;
}

enum status message_batch(const Ebb__MicroBatch *m, const struct message_bounds *b, struct model_batch *out, struct err *e)
{
    uint32_t tokens = 0;
    TRY(check_lengths(m, b, &tokens, e));
    if (m->ids.len != (size_t)tokens * sizeof(int32_t) || (m->types.len && m->types.len != tokens))
        return err_set(e, ST_CORRUPT, "a micro-batch of %u tokens with %zu bytes of ids and %zu of types", tokens, m->ids.len, m->types.len);
    const int32_t *ids = (const int32_t *)(const void *)m->ids.data; /* of the allocator: aligned for anything */
    for (uint32_t i = 0; i < tokens; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= b->vocab)
            return err_set(e, ST_CORRUPT, "token %d, of a model that knows %u", (int)ids[i], b->vocab);
    for (size_t i = 0; i < m->types.len; i++)
        if (m->types.data[i] && m->types.data[i] >= b->types)
            return err_set(e, ST_CORRUPT, "token type %u, of a model that knows %u", m->types.data[i], b->types);
    if (m->n_records != m->n_lengths)
        return err_set(e, ST_CORRUPT, "a micro-batch of %zu items that names %zu records", m->n_lengths, m->n_records);
    for (size_t i = 0; i < m->n_records; i++)
        if (!m->records[i]->record)
            return err_set(e, ST_CORRUPT, "a record without its place");
    *out = (struct model_batch){.n = (uint32_t)m->n_lengths, .lengths = m->lengths, .ids = ids, .types = m->types.len ? m->types.data : NULL};
    return ST_OK;
}

/* How many rows a tensor has; which of them are whose must be as the task has it. */
static enum status check_rows(const Ebb__StageTensor *t, const struct model_info *info, uint32_t n, const uint32_t *lengths, uint64_t *rows, struct err *e)
{
    *rows = n;
    if (!info->per_token && !t->n_rows)
        return ST_OK;
    if (!info->per_token || t->n_rows != n)
        return err_set(e, ST_CORRUPT, "a result with rows for %zu items, where there are %u", t->n_rows, info->per_token ? n : 0);
    *rows = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (t->rows[i] > lengths[i])
            return err_set(e, ST_CORRUPT, "a result of %u rows for an item of %u tokens", t->rows[i], lengths[i]);
        *rows += t->rows[i];
    }
    return ST_OK;
}

static enum status check_tokens(const struct model_tensor *t, uint64_t rows, const struct model_info *info, struct err *e)
{
    for (uint64_t i = 0; i < rows * t->width; i++)
        if (t->i32[i] < 0 || (uint32_t)t->i32[i] >= info->vocab)
            return err_set(e, ST_CORRUPT, "token %d in a result, of a model that knows %u", (int)t->i32[i], info->vocab);
    return ST_OK;
}

static enum status take_errors(const Ebb__StageResult *m, uint32_t n, struct model_result *out, struct err *e)
{
    out->errors = NULL;
    if (!m->n_errors)
        return ST_OK;
    if (m->n_errors != n)
        return err_set(e, ST_CORRUPT, "a result of %u items with %zu errors", n, m->n_errors);
    char **errors = mem_array(n, sizeof *errors);
    if (!errors)
        return err_nomem(e, "a result");
    for (uint32_t i = 0; i < n; i++)
        errors[i] = m->errors[i][0] ? m->errors[i] : NULL;
    out->errors = errors;
    return ST_OK;
}

enum status message_result(const Ebb__StageResult *m, const void *payload, size_t len, const struct model_info *info, uint32_t n, const uint32_t *lengths,
                           struct model_result *out, struct err *e)
{
    size_t at = 0, wanted = info->kind == TASK_FILL_MASK ? 2 : 1;
    uint64_t first_rows = 0;
    if (m->n_tensors != wanted)
        return err_set(e, ST_CORRUPT, "a result of %zu tensors, where the task has %zu", m->n_tensors, wanted);
    *out = (struct model_result){.count = (uint32_t)wanted};
    for (size_t i = 0; i < wanted; i++) {
        const Ebb__StageTensor *t = m->tensors[i];
        uint64_t rows;
        if (t->width == 0 || t->width > WIDEST || t->width != info->dims)
            return err_set(e, ST_CORRUPT, "a result of %u numbers in a row, where the model gives %u", t->width, info->dims);
        if (!t->integers != !i)
            return err_set(e, ST_CORRUPT, "a result of %s, where the task has the other", t->integers ? "integers" : "floats");
        TRY(check_rows(t, info, n, lengths, &rows, e));
        if (rows * t->width > (len - at) / 4)
            return err_set(e, ST_CORRUPT, "a result that is shorter than its tensors");
        if (i && (rows != first_rows || (t->n_rows && memcmp(t->rows, m->tensors[0]->rows, n * sizeof *t->rows) != 0)))
            return err_set(e, ST_CORRUPT, "a result whose tensors have different rows");
        first_rows = rows;
        const char *data = (const char *)payload + at;
        out->tensor[i] = (struct model_tensor){.name = t->name, .width = t->width, .rows = t->n_rows ? t->rows : NULL};
        if (t->integers) {
            out->tensor[i].i32 = (const int32_t *)(const void *)data;
            TRY(check_tokens(&out->tensor[i], rows, info, e));
        } else {
            out->tensor[i].f32 = (const float *)(const void *)data;
        }
        at += (size_t)(rows * t->width * 4);
    }
    if (at != len)
        return err_set(e, ST_CORRUPT, "a result of %zu bytes, where its tensors take %zu", len, at);
    return take_errors(m, n, out, e);
}

static uint64_t numbers_of(const struct model_tensor *t, uint32_t n)
{
    uint64_t rows = t->rows ? 0 : n;
    for (uint32_t i = 0; t->rows && i < n; i++)
        rows += t->rows[i];
    return rows * t->width;
}

enum status message_of_result(const struct model_result *r, uint32_t n, struct message_room *room, char **errors, Ebb__StageResult *m, void **payload, size_t *len,
                              struct err *e)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < r->count; i++)
        bytes += 4 * numbers_of(&r->tensor[i], n);
    char *to = mem_alloc(bytes ? (size_t)bytes : 1);
    if (!to)
        return err_nomem(e, "a result");
    *payload = to;
    *len = (size_t)bytes;
    for (uint32_t i = 0; i < r->count; i++) {
        const struct model_tensor *t = &r->tensor[i];
        size_t size = (size_t)(4 * numbers_of(t, n));
        if (size)
            memcpy(to, t->f32 ? (const void *)t->f32 : (const void *)t->i32, size);
        to += size;
        room->tensor[i] = (Ebb__StageTensor)EBB__STAGE_TENSOR__INIT;
        room->tensor[i].name = (char *)(uintptr_t)(t->name ? t->name : "");
        room->tensor[i].width = t->width;
        room->tensor[i].n_rows = t->rows ? n : 0;
        room->tensor[i].rows = (uint32_t *)(uintptr_t)t->rows;
        room->tensor[i].integers = t->i32 != NULL;
        room->tensors[i] = &room->tensor[i];
    }
    m->n_tensors = r->count;
    m->tensors = room->tensors;
    m->n_errors = r->errors ? n : 0;
    for (uint32_t i = 0; r->errors && i < n; i++)
        errors[i] = r->errors[i] ? r->errors[i] : (char *)(uintptr_t)"";
    m->errors = errors;
    return ST_OK;
}
