/* Runs a text model over token ids made elsewhere, so that ebb and a peer run over the very same tokens.

     build/bench/tools/encode_ids MODEL IDS [PRECISION [THREADS [SECONDS [OUT]]]]

   IDS: for each text its count and its ids, as int32. Texts go in file order, packed into micro-batches of at most 4096 tokens and 64 texts.
   Goes round until SECONDS have passed, whole rounds. OUT gets the f32 rows of the first round. Prints one JSON object. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "workers/engine/model.h"

enum { TOKENS = 4096, TEXTS = 64, THREADS = 64 };

struct batch {
    uint32_t first, n, tokens;
    const int32_t *ids;
};

static struct model *model;
static uint32_t *lengths, n_texts, n_batches, dims;
static struct batch *batches;
static float *rows;
static atomic_uint next;

static void *lane(void *arg)
{
    struct err e;
    struct model_ctx *c;
    (void)arg;
    if (model_ctx_new(model, TOKENS, TEXTS, &c, &e) != ST_OK) {
        fprintf(stderr, "encode_ids: %s\n", e.text);
        exit(1);
    }
    for (uint32_t i; (i = atomic_fetch_add(&next, 1)) < n_batches;) {
        const struct batch *b = &batches[i];
        model_run(model, c, b->n, lengths + b->first, b->ids, rows + (size_t)b->first * dims);
    }
    model_ctx_free(c);
    return NULL;
}

static void round_of(uint32_t threads)
{
    pthread_t t[THREADS];
    atomic_store(&next, 0);
    for (uint32_t i = 0; i < threads; i++)
        if (pthread_create(&t[i], NULL, lane, NULL) != 0)
            abort();
    for (uint32_t i = 0; i < threads; i++)
        pthread_join(t[i], NULL);
}

int main(int argc, char **argv)
{
    struct err e;
    if (argc < 3) {
        fprintf(stderr, "usage: encode_ids MODEL IDS [PRECISION [THREADS [SECONDS [OUT]]]]\n");
        return 2;
    }
    struct model_opts o = {.precision = argc > 3 ? argv[3] : "f32"};
    uint32_t threads = argc > 4 ? (uint32_t)atoi(argv[4]) : 1;
    double seconds = argc > 5 ? atof(argv[5]) : 2;
    threads = threads < 1 ? 1 : threads > THREADS ? THREADS : threads;
    if (model_open(argv[1], &o, &model, &e) != ST_OK) {
        fprintf(stderr, "encode_ids: %s\n", e.text);
        return 1;
    }
    dims = model_info(model)->dims;
    FILE *f = fopen(argv[2], "rb");
    if (!f) {
        perror(argv[2]);
        return 1;
    }
    fseek(f, 0, SEEK_END);
    size_t words = (size_t)ftell(f) / 4;
    rewind(f);
    int32_t *all = mem_array(words + 1, sizeof *all);
    lengths = mem_array(words + 1, sizeof *lengths);
    batches = mem_array(words + 1, sizeof *batches);
    int32_t *ids = mem_array(words + 1, sizeof *ids);
    if (!all || !lengths || !batches || !ids || fread(all, 4, words, f) != words)
        abort();
    fclose(f);
    size_t at = 0;
    struct batch *b = NULL;
    for (size_t i = 0; i < words;) {
        uint32_t len = (uint32_t)all[i++];
        if (!len || len > TOKENS || i + len > words) {
            fprintf(stderr, "encode_ids: '%s' is not a file of token ids\n", argv[2]);
            return 2;
        }
        if (!b || b->n == TEXTS || b->tokens + len > TOKENS) {
            b = &batches[n_batches++];
            *b = (struct batch){.first = n_texts, .ids = ids + at};
        }
        memcpy(ids + at, all + i, len * sizeof *ids);
        lengths[n_texts++] = len;
        b->n++;
        b->tokens += len;
        at += len;
        i += len;
    }
    rows = mem_array((size_t)n_texts * dims, sizeof *rows);
    if (!rows)
        abort();
    if (argc > 6) {
        round_of(threads);
        FILE *out = fopen(argv[6], "wb");
        if (!out || fwrite(rows, sizeof *rows * dims, n_texts, out) != n_texts || fclose(out)) {
            perror(argv[6]);
            return 1;
        }
    }
    uint64_t start = clock_ns(), now;
    uint32_t rounds = 0;
    do {
        round_of(threads);
        rounds++;
        now = clock_ns();
    } while ((double)(now - start) < seconds * 1e9);
    double took = (double)(now - start) * 1e-9;
    printf("{\"precision\":\"%s\",\"numerics\":\"%s\",\"isa\":\"%s\",\"tokens_per_s\":%.1f,\"records_per_s\":%.2f}\n", model_info(model)->precision,
           model_info(model)->numerics, model_info(model)->isa, (double)at * rounds / took, (double)n_texts * rounds / took);
    model_free(model);
    mem_free(all);
    mem_free(lengths);
    mem_free(batches);
    mem_free(ids);
    mem_free(rows);
    return 0;
}
