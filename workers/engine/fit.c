#include "workers/engine/fit.h"

#include "base/mem.h"

enum { NOMINAL_TOKENS = 1024, NOMINAL_RECORDS = 64, LEAST_TOKENS = 256, PIECES_MOST = 4096 };
/* Looking up a few hundred rows brings at most that much of a table into memory: the kernel maps 16 pages around each. */
#define TABLE_MOST_BYTES (UINT64_C(16) << 20)

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static uint32_t records_of(uint32_t tokens)
{
    return tokens / FIT_TOKENS_OF_A_RECORD < FIT_BATCH_RECORDS ? tokens / FIT_TOKENS_OF_A_RECORD : FIT_BATCH_RECORDS;
}

static unsigned long long mib(uint64_t bytes)
{
    return (unsigned long long)((bytes + (1u << 20) - 1) >> 20);
}

static uint64_t contexts(const struct fit_opts *o, uint32_t tokens, uint32_t records)
{
    return o->lanes * (encoder_work_bytes(o->encoder, tokens) + (o->head ? head_work_bytes(o->head, tokens, records) : 0));
}

static enum status no_file(const struct fit_opts *o, uint64_t need, struct err *e)
{
    return err_set(e, ST_ENV,
                   "'%s' takes %llu MiB and may take %llu: its layers can be held by turns only where packed weights are kept on a disk; --pack-cache names a folder (the log "
                   "says why one cannot be used)",
                   o->name, mib(need), mib(o->memory_bytes));
}

enum status fit_unmapped(const struct fit_opts *o, struct err *e)
{
    uint64_t need = o->other_bytes + o->weight_bytes;
    return need > o->memory_bytes ? no_file(o, need, e) : ST_OK;
}

struct parts {
    struct window_piece *piece, table[ENCODER_TABLES];
    struct window_set *set;
    uint32_t *unit;
    uint32_t pieces, sets, units;
    uint64_t largest, layer; /* bytes of a set, of a layer's */
    uint64_t fixed, tables;  /* what is in memory all the time; of tables that are looked at here and there */
};

static void release(struct parts *p)
{
    mem_free(p->piece);
    mem_free(p->set);
    mem_free(p->unit);
}

/* Each layer's weights are a set; what stands on top is the last one, and the last unit. */
static enum status collect(const struct fit_opts *o, struct parts *p, struct err *e)
{
    uint32_t weights = encoder_weights(o->encoder), layers = encoder_layers(o->encoder);
    p->sets = weights + 1;
    p->units = layers + 1;
    p->piece = mem_array((size_t)p->sets * PIECES_MOST, sizeof *p->piece);
    p->set = mem_array(p->sets, sizeof *p->set);
    p->unit = mem_array(p->units, sizeof *p->unit);
    if (!p->piece || !p->set || !p->unit)
        return err_nomem(e, "a window of layers");
    for (uint32_t i = 0; i < p->sets; i++) {
        struct window_piece *at = p->piece + p->pieces;
        uint64_t bytes = 0;
        uint32_t n = i < weights ? encoder_pieces(o->encoder, i, at, PIECES_MOST) : o->head ? head_pieces(o->head, at, PIECES_MOST) : 0;
        for (uint32_t k = 0; k < n; k++)
            bytes += (at[k].bytes + 4095) / 4096 * 4096;
        p->set[i] = (struct window_set){at, n};
        p->pieces += n;
        p->largest = bytes > p->largest ? bytes : p->largest;
        p->layer = i < weights && bytes > p->layer ? bytes : p->layer;
    }
    for (uint32_t i = 0; i < layers; i++)
        p->unit[i] = encoder_layer_weights(o->encoder, i);
    p->unit[layers] = weights;
    encoder_tables(o->encoder, p->table);
    p->fixed = o->weight_bytes - o->mapped_bytes + p->table[1].bytes + p->table[2].bytes;
    p->tables = p->table[0].bytes < TABLE_MOST_BYTES ? p->table[0].bytes : TABLE_MOST_BYTES;
    return ST_OK;
}

static enum status make_window(const struct fit_opts *o, const struct parts *p, struct fit *out, struct err *e)
{
    uint64_t steady = o->other_bytes + p->fixed + p->tables, need = 0, lanes = 0;
    uint32_t least = larger(o->max_tokens, LEAST_TOKENS), tokens = larger(FIT_BATCH_TOKENS, least);
    for (;; tokens = larger(tokens / 2, least)) {
        lanes = contexts(o, tokens, records_of(tokens));
        need = steady + lanes + 2 * p->largest; /* one is fetched while the other is in use */
        if ((need <= o->memory_bytes && lanes <= o->memory_bytes / 2) || tokens == least)
            break;
    }
    need = need <= o->memory_bytes ? need : need - p->largest;
    if (need > o->memory_bytes)
        return err_set(e, ST_ENV, "'%s' needs at least %llu MiB of memory even if its layers are held by turns (one is %llu MiB, batches of %u lanes %llu), and may take %llu",
                       o->name, mib(need), mib(p->largest), o->lanes, mib(lanes), mib(o->memory_bytes));
    out->window_bytes = o->memory_bytes - steady - lanes;
    out->layers = p->layer ? (uint32_t)(out->window_bytes / p->layer) : encoder_layers(o->encoder);
    out->layers = out->layers < encoder_layers(o->encoder) ? out->layers : encoder_layers(o->encoder);
    out->batch_tokens = tokens;
    out->batch_records = records_of(tokens);
    struct window_opts w = {.set = p->set, .sets = p->sets, .unit = p->unit, .units = p->units, .table = p->table, .tables = 1, .most_bytes = out->window_bytes};
    return window_new(&w, &out->window, e);
}

enum status fit_model(const struct fit_opts *o, struct fit *out, struct err *e)
{
    uint32_t tokens = larger(NOMINAL_TOKENS, o->max_tokens);
    uint64_t need = o->other_bytes + o->weight_bytes + contexts(o, tokens, NOMINAL_RECORDS);
    *out = (struct fit){0};
    if (need <= o->memory_bytes)
        return ST_OK;
    if (!o->mapped_bytes)
        return no_file(o, need, e);
    struct parts p = {0};
    enum status st = collect(o, &p, e);
    if (st == ST_OK)
        st = make_window(o, &p, out, e);
    release(&p);
    return st;
}
