#include "workers/engine/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/host.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/path.h"
#include "storage/onnxdir.h"
#include "workers/engine/cpuinfo.h"
#include "workers/engine/describe.h"
#include "workers/engine/encoder.h"
#include "workers/engine/fit.h"
#include "workers/engine/head.h"
#include "workers/engine/onnxarrays.h"
#include "workers/engine/onnxtext.h"
#include "workers/engine/packfile.h"
#include "workers/engine/precision.h"

#define RUN_LEAST_BYTES (64u << 20)

struct model {
    struct model_info info;
    struct model_config config;
    struct encoder *encoder;
    struct head *head;
    struct onnxtext *onnx; /* in place of encoder and head */
    struct onnxarrays *arrays; /* likewise */
    struct packfile *pack; /* NULL: none; layers of all of them point into it */
    struct window *window; /* NULL: all layers are in memory */
    int32_t mask_id;
    int part;                  /* only these segments of all are there */
    uint32_t first, end, segments;
};

struct model_ctx {
    const struct model *model;
    uint32_t max_tokens, max_seqs;
    void *memory;
    struct encoder_work work;
    struct head_work head;
    struct onnxtext_lane *onnx;
    struct onnxarrays_lane *arrays;
};

static uint32_t tokens_for_a_mask(const struct model_opts *o, const struct model_config *c)
{
    uint32_t k = o->top_k ? o->top_k : 5;
    return k < c->vocab ? k : c->vocab;
}

/* One walk over the model's tensors. m is NULL where nothing is kept: they are looked at, or packed. */
static enum status walk(struct loading *l, const char *dir, enum precision p, uint32_t top_k, struct model *m, struct err *e)
{
    struct encoder *encoder = NULL;
    struct head *head = NULL;
    int wanted = loading_wants(l, encoder_segments(l->c) - 1);
    l->load = m || l->packing;
    l->precision = p;
    l->parameters = l->bytes = 0;
    TRY(encoder_load(l, m ? &m->encoder : &encoder, e));
    struct loading_was was = loading_enter(l, wanted);
    TRY(head_load(l, dir, m ? encoder_words(m->encoder) : NULL, top_k, m ? &m->head : &head, e));
    loading_leave(l, was, wanted);
    return ST_OK;
}

/* All of the model goes into the file of packed weights, layer by layer. Layers have the names of their places in the directory: what is written down under a digest
   must be what has it, even if the directory was exchanged while it was read. */
static enum status pack_all(struct loading *l, const char *dir, enum precision p, uint32_t top_k, const struct model_info *i, struct model *m, struct err *e)
{
    struct model_digest now;
    int part = l->part, failed = packfile_begin(m->pack, i->weight_bytes + i->weight_bytes / 64);
    enum status st = ST_OK;
    l->part = 0;
    l->packing = 1;
    if (!failed) {
        st = walk(l, dir, p, top_k, NULL, e);
        failed = st != ST_OK && packfile_broken(m->pack);
        if (st == ST_OK)
            st = modeldir_digest(dir, &now, e);
        if (st == ST_OK && memcmp(now.bytes, i->digest.bytes, sizeof now.bytes) != 0)
            st = err_set(e, ST_ENV, "'%s' was changed while it was read; try again", dir);
        if (st == ST_OK)
            failed = packfile_end(m->pack);
    }
    l->packing = 0;
    l->part = part;
    if (failed) { /* why is in the log */
        packfile_free(m->pack);
        l->pack = m->pack = NULL;
        st = ST_OK;
    }
    return st;
}

/* What is opened is in the file of packed weights; the first who needs something of it makes all of it. */
static enum status ready_pack(struct loading *l, const char *dir, enum precision p, uint32_t top_k, const struct model_info *i, struct model *m, struct err *e)
{
    l->pack = m->pack;
    if (!m->pack)
        return ST_OK;
    l->ask = 1;
    l->lacks = 0;
    enum status st = walk(l, dir, p, top_k, NULL, e);
    l->ask = 0;
    return st == ST_OK && l->lacks ? pack_all(l, dir, p, top_k, i, m, e) : st;
}

/* For a model that is to run. kind: which layers it will ask for. */
static enum status open_pack(const struct model_opts *o, const char *kind, enum precision p, const struct kernels *k, const struct model_info *i, struct model *m,
                             struct err *e)
{
    struct packfile_opts pack = {.dir = o->pack_dir, .most_bytes = o->pack_bytes, .digest = i->digest.bytes, .kind = kind, .kernels = k, .precision = p, .part = o->part, .sparing = o->memory_bytes != 0};
    return m && o->pack_dir ? packfile_open(&pack, &m->pack, e) : ST_OK;
}

/* Whole, or by a window: what memory there is tells. */
static enum status fit(const struct model_opts *o, struct model *m, struct err *e)
{
    struct model_info *i = &m->info;
    struct fit_opts f = {.name = i->name, .encoder = m->encoder, .head = m->head, .memory_bytes = o->memory_bytes, .other_bytes = o->other_bytes,
                         .weight_bytes = i->weight_bytes, .mapped_bytes = packfile_made(m->pack) ? 0 : i->shared_bytes, .lanes = o->lanes ? o->lanes : host_processors(), .max_tokens = i->max_tokens};
    struct fit has;
    TRY(fit_model(&f, &has, e));
    if (!has.window)
        return ST_OK;
    m->window = has.window;
    i->window = has.layers;
    i->window_bytes = has.window_bytes;
    i->batch_tokens = has.batch_tokens;
    i->batch_records = has.batch_records;
    encoder_use_window(m->encoder, m->window);
    log_info("'%s' is larger than its memory: %u of %u layers are held at once, %llu MiB; batches of %u tokens", i->name, has.layers, encoder_layers(m->encoder),
             (unsigned long long)(has.window_bytes >> 20), has.batch_tokens);
    return ST_OK;
}

/* The weights of a directory's segments. */
static enum status read_weights(struct loading *l, const char *dir, const struct model_opts *o, enum precision p, uint32_t top_k, struct model *m, struct err *e)
{
    struct model_info *i = &m->info;
    if (m->first < m->end)
        TRY(open_pack(o, task_words[l->c->task], p, l->kernels, i, m, e));
    TRY(ready_pack(l, dir, p, top_k, i, m, e));
    int limited = o->memory_bytes && m->first < m->end;
    if (limited && !m->pack) {
        TRY(walk(l, dir, p, top_k, NULL, e));
        TRY(fit_unmapped(&(struct fit_opts){.name = i->name, .memory_bytes = o->memory_bytes, .other_bytes = o->other_bytes, .weight_bytes = l->bytes}, e));
    }
    TRY(walk(l, dir, p, top_k, m, e));
    i->weight_bytes = l->bytes;
    i->shared_bytes = packfile_mapped_bytes(m->pack);
    return limited ? fit(o, m, e) : ST_OK;
}

static enum status choose_part(struct loading *l, const struct model_opts *o, const char *dir, struct model *m, struct err *e)
{
    uint32_t segments = encoder_segments(l->c);
    if (o->part && (o->first > o->end || o->end > segments))
        return err_set(e, ST_USER, "'%s' has %u segments; those from %u to %u are none of them", dir, segments, o->first, o->end);
    l->part = o->part;
    l->first = o->first;
    l->end = o->end;
    m->part = o->part;
    m->first = o->part ? o->first : 0;
    m->end = o->part ? o->end : segments;
    m->segments = segments;
    return ST_OK;
}

static int has_tokenizer(const char *folder)
{
    static const char *const files[] = {"tokenizer.json", "vocab.txt", "vocab.json"};
    int has = 0;
    for (int i = 0; i < 3 && !has; i++) {
        char *path = mem_printf("%s/%s", folder, files[i]);
        has = path && path_exists(path);
        mem_free(path);
    }
    return has;
}

/* What one record may take on its way through a graph: an equal share, for each lane, of half of what there is. What a process is limited to is its own; the
   machine's memory is for all its processors. */
static uint64_t run_bytes(const struct model_opts *o)
{
    uint64_t own = host_memory_limit(), all = own ? own : host_memory_bytes();
    uint32_t processors = host_processors(), lanes = o->lanes ? o->lanes : processors;
    uint64_t each = all / 2 / (!own && processors > lanes ? processors : lanes);
    return each > RUN_LEAST_BYTES ? each : RUN_LEAST_BYTES;
}

/* Nodes of a graph are not held by turns. What is said is the least that its weights come to in that precision. */
static enum status fits_whole(const char *path, const struct model_opts *o, enum precision p, const struct graph_model_info *g, struct err *e)
{
    uint64_t least = g->part_bytes / (p == PREC_INT8 ? 4 : p == PREC_BF16 ? 2 : 1) + o->other_bytes;
    if (!o->memory_bytes || least <= o->memory_bytes)
        return ST_OK;
    return err_set(e, ST_ENV, "'%s' takes more than %llu MiB and may take %llu: layers of an ONNX model are not held by turns; give it more with --memory, or cut it among workers with --stages",
                   path, (unsigned long long)(least >> 20), (unsigned long long)(o->memory_bytes >> 20));
}

/* An ONNX file; all of it is read, m or not: only the finished graph tells what it gives. */
static enum status read_onnx(const char *path, const char *folder, const char *file, const struct model_opts *o, enum precision p, const struct kernels *k,
                             struct model_config *c, struct model_info *i, struct model *m, struct cut *cut, struct err *e)
{
    struct onnxtext *text = NULL;
    struct onnxarrays *arrays = NULL;
    struct graph_model *gm = NULL;
    int part = m && o->part, empty = part && o->first == o->end;
    TRY(modeldir_digest_known(path, &i->digest, e));
    TRY(describe_name(path, i->name, sizeof i->name, e));
    if (!empty)
        TRY(open_pack(o, "onnx", p, k, i, m, e));
    char *whole = mem_printf("%s/%s", folder, file);
    if (!whole)
        return err_nomem(e, "a path");
    struct graph_model_opts opts = {.text = has_tokenizer(folder), .precision = p, .pack = m ? m->pack : NULL, .run_bytes = run_bytes(o), .part = part,
                                    .first = o->first, .end = o->end};
    enum status st = graph_model_open(whole, k, &opts, &gm, e);
    if (st == ST_OK && m)
        st = fits_whole(path, o, p, graph_model_info(gm), e);
    if (st == ST_OK) {
        i->arrays = !graph_model_info(gm)->text;
        st = i->arrays ? onnxarrays_open(gm, folder, o, c, &arrays, e) : onnxtext_open(gm, folder, o, k, c, &text, e);
        if (st == ST_USER)
            err_prefix(e, "'%s'", whole);
    }
    mem_free(whole);
    if (st != ST_OK) {
        graph_model_free(gm);
        return st;
    }
    describe_task(i, c, k);
    describe_graph(i, graph_model_info(gm));
    i->hidden = c->hidden;
    i->layers = c->layers;
    i->heads = c->heads;
    i->ffn = c->ffn;
    i->dims = text ? onnxtext_width(text) : onnxarrays_width(arrays);
    st = cut ? graph_model_cut(gm, cut, e) : ST_OK;
    if (m) {
        packfile_seal(m->pack); /* names tell what the layers hold */
        i->shared_bytes = packfile_mapped_bytes(m->pack);
        m->onnx = text;
        m->arrays = arrays;
        m->part = o->part;
        m->first = o->part ? o->first : 0;
        m->end = o->part ? o->end : 1; /* of a whole model it is not asked how many there are */
    } else {
        onnxtext_free(text);
        onnxarrays_free(arrays);
    }
    return st;
}

/* All but the weights themselves, and these too when m is there. c is the caller's to release, also on failure. */
static enum status read_all(const char *dir, const struct model_opts *o, const struct kernels *k, struct model_config *c, struct model_info *i,
                            struct model *m, struct cut *cut, struct err *e)
{
    struct weights *w = NULL;
    char *folder = NULL, *file = NULL;
    struct err why;
    enum precision p;
    TRY(precision_parse(o->precision, &p, e));
    describe_precision(i, p, k);
    enum status found = onnxdir_find(dir, &folder, &file, &why);
    if (found == ST_OK) {
        enum status onnx = read_onnx(dir, folder, file, o, p, k, c, i, m, cut, e);
        mem_free(folder);
        mem_free(file);
        return onnx;
    }
    if (found != ST_NOT_FOUND)
        return err_set(e, found, "%s", why.text);
    TRY(modeldir_digest_known(dir, &i->digest, e));
    TRY(describe_name(dir, i->name, sizeof i->name, e));
    TRY(config_read(dir, o->task, c, e));
    TRY(weights_open(dir, &w, e));
    struct loading l = {.w = w, .c = c, .kernels = k, .marking = cut != NULL};
    uint32_t top_k = tokens_for_a_mask(o, c);
    enum status st = walk(&l, dir, p, top_k, NULL, e);
    describe_encoder(i, c, k, top_k);
    i->parameters = l.parameters;
    i->weight_bytes = l.bytes;
    if (st == ST_OK && cut)
        st = cut_encoder(cut, &l, top_k, e);
    l.marking = 0;
    if (st == ST_OK && m)
        st = choose_part(&l, o, dir, m, e);
    if (st == ST_OK && m)
        st = read_weights(&l, dir, o, p, top_k, m, e);
    loading_release(&l);
    weights_free(w);
    return st;
}

static enum status check_opts(const struct model_opts *o, const struct kernels **k, struct err *e)
{
    enum precision p;
    TRY(precision_parse(o->precision, &p, e));
    TRY(cpu_kernels(o->isa, k, e));
    if (o->reference)
        *k = &kernels_reference;
    return ST_OK;
}

static const struct model_opts defaults;

enum status model_probe_cut(const char *dir, const struct model_opts *o, struct model_info *info, struct cut *cut, struct err *e)
{
    const struct kernels *k;
    struct model_info i = {0};
    struct model_config c = {0};
    o = o ? o : &defaults;
    TRY(check_opts(o, &k, e));
    enum status st = read_all(dir, o, k, &c, &i, NULL, cut, e);
    config_release(&c);
    if (st == ST_OK)
        *info = i;
    return st;
}

enum status model_probe(const char *dir, const struct model_opts *o, struct model_info *info, struct err *e)
{
    return model_probe_cut(dir, o, info, NULL, e);
}

enum status model_open(const char *dir, const struct model_opts *o, struct model **out, struct err *e)
{
    const struct kernels *k;
    o = o ? o : &defaults;
    TRY(check_opts(o, &k, e));
    struct model *m = mem_zalloc(sizeof *m);
    if (!m)
        return err_nomem(e, "the model");
    m->mask_id = -1;
    enum status st = read_all(dir, o, k, &m->config, &m->info, m, NULL, e);
    if (st == ST_OK)
        *out = m;
    else
        model_free(m);
    return st;
}

void model_free(struct model *m)
{
    if (!m)
        return;
    onnxtext_free(m->onnx);
    onnxarrays_free(m->arrays);
    window_free(m->window);
    head_free(m->head);
    encoder_free(m->encoder);
    packfile_free(m->pack);
    config_release(&m->config);
    mem_free(m);
}

const struct model_info *model_info(const struct model *m)
{
    return &m->info;
}

double model_flops(const struct model *m, size_t n, const uint32_t *lengths)
{
    const struct model_config *c = &m->config;
    double tokens = 0, squares = 0, h = c->hidden, layers = (double)c->layers * c->inner, head = 0;
    for (size_t i = 0; i < n; i++) {
        tokens += lengths[i];
        squares += (double)lengths[i] * lengths[i];
    }
    if (c->task == TASK_TOKENS)
        head = tokens * h * c->label_count;
    else if (c->task == TASK_CLASSIFY)
        head = (double)n * h * (h + c->label_count);
    return 2 * (layers * (tokens * (4 * h * h + 2 * h * c->ffn) + 2 * squares * h) + head);
}

const char *model_label(const struct model *m, uint32_t i)
{
    BUG_IF(i >= m->config.label_count, "label %u of %u", i, m->config.label_count);
    return m->config.label[i];
}

void model_set_mask(struct model *m, int32_t id)
{
    m->mask_id = id;
}

static size_t whole_lines(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

size_t model_ctx_bytes(const struct model *m, uint32_t max_tokens, uint32_t max_seqs)
{
    if (m->arrays)
        return sizeof(struct model_ctx); /* what records bring tells */
    if (m->onnx)
        return sizeof(struct model_ctx) + onnxtext_lane_bytes(m->onnx, max_tokens, max_seqs);
    size_t head = m->head ? head_work_bytes(m->head, max_tokens, max_seqs) : 0;
    return sizeof(struct model_ctx) + whole_lines(encoder_work_bytes(m->encoder, max_tokens)) + head;
}

enum status model_ctx_new(const struct model *m, uint32_t max_tokens, uint32_t max_seqs, struct model_ctx **out, struct err *e)
{
    BUG_IF(max_tokens == 0 || max_seqs == 0, "a context for %u tokens and %u sequences", max_tokens, max_seqs);
    struct model_ctx *c = mem_zalloc(sizeof *c);
    if (c && (m->onnx || m->arrays)) {
        *c = (struct model_ctx){.model = m, .max_tokens = max_tokens, .max_seqs = max_seqs};
        enum status st = m->onnx ? onnxtext_lane_new(m->onnx, max_tokens, max_seqs, &c->onnx, e) : onnxarrays_lane_new(m->arrays, max_seqs, &c->arrays, e);
        if (st == ST_OK)
            *out = c;
        else
            mem_free(c);
        return st;
    }
    char *memory = c ? mem_aligned(model_ctx_bytes(m, max_tokens, max_seqs) - sizeof *c) : NULL;
    if (!memory) {
        mem_free(c);
        return err_nomem(e, "a lane's activations");
    }
    *c = (struct model_ctx){.model = m, .max_tokens = max_tokens, .max_seqs = max_seqs, .memory = memory};
    encoder_work_init(&c->work, m->encoder, max_tokens, memory);
    if (m->head)
        head_work_init(&c->head, m->head, max_tokens, max_seqs, memory + whole_lines(encoder_work_bytes(m->encoder, max_tokens)));
    if (m->window)
        window_join(m->window);
    *out = c;
    return ST_OK;
}

void model_ctx_free(struct model_ctx *c)
{
    if (!c)
        return;
    if (c->model->window)
        window_leave(c->model->window);
    onnxtext_lane_free(c->onnx);
    onnxarrays_lane_free(c->arrays);
    mem_free(c->memory);
    mem_free(c);
}

/* Of those that are there; NULL: what stands on top is not. */
static const struct model_result *run_segments(const struct model *m, struct model_ctx *c, const struct model_batch *b)
{
    const struct model_result *r = NULL;
    uint32_t last = encoder_layers(m->encoder); /* unit of the window */
    encoder_run(m->encoder, &c->work, b->n, b->lengths, b->ids, b->types);
    if (m->window)
        window_wait(m->window, last);
    if (m->head)
        r = head_run(m->head, &c->head, b->n, b->lengths, b->ids, m->mask_id, c->work.x, c->work.ld);
    if (m->window)
        window_done(m->window, last);
    return r;
}

const struct model_result *model_infer(const struct model *m, struct model_ctx *c, const struct model_batch *b)
{
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < b->n; i++)
        tokens += b->lengths[i];
    BUG_IF(c->model != m || m->arrays, "a context of another model");
    BUG_IF(m->part, "all of a model is asked of a part of it");
    BUG_IF(b->n > c->max_seqs || tokens > c->max_tokens, "a micro-batch of %u sequences and %llu tokens; planned were %u and %u", b->n,
           (unsigned long long)tokens, c->max_seqs, c->max_tokens);
    if (m->onnx)
        return onnxtext_run(c->onnx, b, m->mask_id);
    unsigned saved = fp_enter();
    const struct model_result *r = run_segments(m, c, b);
    fp_leave(saved);
    return r;
}

/* What came over the wire. */
static enum status check_batch(const struct model *m, const struct model_ctx *c, const struct model_batch *b, struct err *e)
{
    uint64_t tokens = 0;
    uint32_t longest = encoder_longest(&m->config);
    int needs_ids = m->first == 0 || (m->end == m->segments && m->config.task == TASK_FILL_MASK);
    if (b->n == 0 || b->n > c->max_seqs)
        return err_set(e, ST_CORRUPT, "a micro-batch of %u items; planned were at most %u", b->n, c->max_seqs);
    for (uint32_t i = 0; i < b->n; i++) {
        if (b->lengths[i] == 0 || b->lengths[i] > longest)
            return err_set(e, ST_CORRUPT, "a micro-batch with an item of %u tokens; the model takes 1 to %u", b->lengths[i], longest);
        tokens += b->lengths[i];
    }
    if (tokens > c->max_tokens)
        return err_set(e, ST_CORRUPT, "a micro-batch of %llu tokens; planned were at most %u", (unsigned long long)tokens, c->max_tokens);
    if (needs_ids && !b->ids)
        return err_set(e, ST_CORRUPT, "a micro-batch without its tokens' numbers");
    for (uint64_t i = 0; i < tokens && m->first == 0; i++) {
        if (b->ids[i] < 0 || (uint32_t)b->ids[i] >= m->config.vocab)
            return err_set(e, ST_CORRUPT, "a micro-batch with the token %d; the vocabulary has %u", b->ids[i], m->config.vocab);
        if (b->types && m->config.types > 1 && b->types[i] >= m->config.types)
            return err_set(e, ST_CORRUPT, "a micro-batch with a token of type %u; the model has %u", b->types[i], m->config.types);
    }
    return ST_OK;
}

enum status model_stage(const struct model *m, struct model_ctx *c, const struct model_batch *b, const void *in, size_t in_len, const void **out,
                        size_t *out_len, const struct model_result **result, struct err *e)
{
    size_t tokens = 0, row = sizeof(float) * m->config.hidden;
    BUG_IF(c->model != m || m->first >= m->end, "a context of another model, or a model without segments");
    *out = NULL;
    *out_len = 0;
    *result = NULL;
    BUG_IF(m->arrays, "texts are given to a model of arrays");
    if (m->onnx)
        return onnxtext_stage(c->onnx, b, m->mask_id, in, in_len, out, out_len, result, e);
    TRY(check_batch(m, c, b, e));
    for (uint32_t i = 0; i < b->n; i++)
        tokens += b->lengths[i];
    if (m->first == 0 ? in_len != 0 : !in || in_len != tokens * row)
        return err_set(e, ST_CORRUPT, "a micro-batch of %zu tokens comes to segment %u with %zu bytes; it needs %zu", tokens, m->first, in_len,
                       m->first == 0 ? 0 : tokens * row);
    float *x = c->work.x;
    for (size_t i = 0; m->first && i < tokens; i++)
        memcpy(x + i * c->work.ld, (const char *)in + i * row, row);
    unsigned saved = fp_enter();
    *result = run_segments(m, c, b);
    fp_leave(saved);
    if (m->head)
        return ST_OK;
    for (size_t i = 1; i < tokens; i++) /* rows close up, from the front */
        memmove(x + i * m->config.hidden, x + i * c->work.ld, row);
    *out = x;
    *out_len = tokens * row;
    return ST_OK;
}

void model_run(const struct model *m, struct model_ctx *c, uint32_t n_seqs, const uint32_t *lengths, const int32_t *ids,
               float *out)
{
    BUG_IF(m->info.per_token, "one row each is asked of a model that gives rows for tokens");
    const struct model_result *r = model_infer(m, c, &(struct model_batch){.n = n_seqs, .lengths = lengths, .ids = ids});
    BUG_IF(!r, "a micro-batch: out of memory");
    memcpy(out, r->tensor[0].f32, sizeof *out * n_seqs * m->info.dims);
}

/* Arrays -------------------------------------------------------------------------------------------------------------------------------- */

const struct port *model_inputs(const struct model *m, uint32_t *count)
{
    BUG_IF(!m->arrays, "arrays are asked of a model of texts");
    const struct graph_model_info *i = onnxarrays_info(m->arrays);
    *count = i->n_in;
    return i->in;
}

const struct port *model_outputs(const struct model *m, uint32_t *count)
{
    BUG_IF(!m->arrays, "arrays are asked of a model of texts");
    return onnxarrays_outputs(m->arrays, count);
}

enum status model_infer_arrays(const struct model *m, struct model_ctx *c, uint32_t n, const struct array *const *in, model_take *take, void *arg, struct err *e)
{
    BUG_IF(c->model != m || !m->arrays || m->part, "a context of another model, or a part of one");
    return onnxarrays_run(c->arrays, n, in, take, arg, e);
}

enum status model_arrays_pack(const struct model *m, struct model_ctx *c, uint32_t n, const struct array *const *in, const void **out, size_t *out_len, struct err *e)
{
    BUG_IF(c->model != m || !m->arrays, "a context of another model");
    return onnxarrays_pack(c->arrays, n, in, out, out_len, e);
}

enum status model_stage_arrays(const struct model *m, struct model_ctx *c, uint32_t n, const void *in, size_t in_len, const void **out, size_t *out_len, struct err *e)
{
    BUG_IF(c->model != m || !m->arrays || m->first >= m->end, "a context of another model, or a model without segments");
    return onnxarrays_stage(c->arrays, n, in, in_len, out, out_len, e);
}

enum status model_arrays_take(const struct model *m, struct model_ctx *c, uint32_t n, const void *in, size_t in_len, model_take *take, void *arg, struct err *e)
{
    BUG_IF(c->model != m || !m->arrays, "a context of another model");
    return onnxarrays_take(c->arrays, n, in, in_len, take, arg, e);
}

enum status model_folder(const char *path, char **out, struct err *e)
{
    char *file = NULL;
    struct err why;
    enum status st = onnxdir_find(path, out, &file, &why);
    mem_free(file);
    if (st == ST_NOT_FOUND)
        return (*out = mem_strdup(path)) ? ST_OK : err_nomem(e, "a path");
    return st == ST_OK ? ST_OK : err_set(e, st, "%s", why.text);
}
