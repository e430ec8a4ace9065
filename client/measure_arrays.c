/* How fast a model of arrays runs: made-up arrays of its inputs' sizes, on several lanes. */
#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "client/measure.h"

enum { BATCH = 16 };

struct lane {
    pthread_t thread;
    const struct model *model;
    struct model_ctx *ctx;
    const struct array *in;
    uint64_t until_ns, records;
    double seconds;
    char why[256]; /* records do not go through the model */
};

static void count(void *arg, uint32_t record, const struct array *out, uint32_t n_out, const char *error)
{
    struct lane *l = arg;
    (void)record;
    (void)out;
    (void)n_out;
    if (error && !l->why[0])
        memcpy(l->why, error, strnlen(error, sizeof l->why - 1));
    l->records++;
}

static void *work(void *arg)
{
    struct lane *l = arg;
    const struct array *in[BATCH];
    uint64_t began = clock_ns(), now;
    struct err e;
    for (int i = 0; i < BATCH; i++)
        in[i] = l->in;
    do {
        if (model_infer_arrays(l->model, l->ctx, BATCH, in, count, l, &e) != ST_OK)
            BUG("a micro-batch: out of memory");
        now = clock_ns();
    } while (now < l->until_ns && !l->why[0]);
    l->seconds = (double)(now - began) / 1e9;
    return NULL;
}

/* Numbers between 0 and 1 where they may be broken ones, else 0. */
static enum status make(const struct port *p, int64_t open_size, struct array *out, struct err *e)
{
    static const struct str empty = {"", 0};
    uint64_t n = 1, state = 88172645463325252u;
    *out = (struct array){.dtype = p->dtype, .rank = p->rank < 0 ? 1 : (uint32_t)p->rank};
    for (uint32_t i = 0; i < out->rank; i++) {
        out->dims[i] = p->rank < 0 || p->dims[i] < 0 ? open_size : p->dims[i];
        n *= (uint64_t)out->dims[i];
        if (n > (uint64_t)1 << 32)
            return err_set(e, ST_USER, "input '%s' would have more than %llu elements", p->name, 1ull << 32);
    }
    void *data = mem_array(n ? n : 1, dtype_bytes(p->dtype));
    if (!data)
        return err_nomem(e, "an input");
    for (uint64_t i = 0; i < n; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17; /* xorshift64 */
        double x = (double)(state >> 11) * 0x1p-53;
        if (p->dtype == DT_F32)
            ((float *)data)[i] = (float)x;
        else if (p->dtype == DT_F64)
            ((double *)data)[i] = x;
        else if (p->dtype == DT_F16)
            ((uint16_t *)data)[i] = f32_to_f16((float)x);
        else if (p->dtype == DT_BF16)
            ((uint16_t *)data)[i] = f32_to_bf16((float)x);
        else if (p->dtype == DT_STR)
            ((struct str *)data)[i] = empty;
    }
    out->data = data;
    return ST_OK;
}

static enum status run(const struct model *m, const struct array *in, uint32_t lanes, double seconds, struct speed *out, struct err *e)
{
    struct lane *all = mem_array(lanes, sizeof *all);
    uint32_t started = 0;
    enum status st = all ? ST_OK : err_nomem(e, "lanes");
    for (uint32_t i = 0; i < lanes && st == ST_OK; i++) {
        all[i] = (struct lane){.model = m, .in = in, .until_ns = clock_ns() + (uint64_t)(seconds * 1e9)};
        st = model_ctx_new(m, 1, BATCH, &all[i].ctx, e);
    }
    for (; started < lanes && st == ST_OK; started++) {
        int failed = pthread_create(&all[started].thread, NULL, work, &all[started]);
        if (failed) {
            st = err_errno(e, ST_ENV, failed, "cannot start a thread");
            break;
        }
    }
    for (uint32_t i = 0; i < started; i++) {
        pthread_join(all[i].thread, NULL);
        out->records_per_s += (double)all[i].records / all[i].seconds;
        if (all[i].why[0] && st == ST_OK)
            st = err_set(e, ST_USER, "made-up arrays do not go through the model: %s; --size says what open sizes are", all[i].why);
    }
    for (uint32_t i = 0; all && i < lanes; i++)
        model_ctx_free(all[i].ctx);
    mem_free(all);
    return st;
}

enum status measure_arrays(const struct model *m, int64_t open_size, uint32_t lanes, double seconds, struct speed *out, struct err *e)
{
    uint32_t n, made = 0;
    const struct port *ports = model_inputs(m, &n);
    struct array *in = mem_array(n + 1, sizeof *in);
    enum status st = in ? ST_OK : err_nomem(e, "inputs");
    *out = (struct speed){0};
    for (; made < n && st == ST_OK; made++)
        st = make(&ports[made], open_size, &in[made], e);
    if (st == ST_OK)
        st = run(m, in, lanes, seconds, out, e);
    for (uint32_t i = 0; in && i < made; i++)
        mem_free((void *)in[i].data);
    mem_free(in);
    return st;
}
