/* What the pipeline around the engine costs: the throughput of a job over the engine's own on the same records.

     build/bench/overhead [--model DIR] [--input FILE.jsonl] [--records N] [--lanes N] [--rounds N]

   The engine alone: the records' tokens are ready, each thread runs micro-batches of the same sizes as a job's, the results are dropped. The job: the
   same records from the file to synced parts, through the worker's pipeline, with commits acknowledged as ebbd would. Rounds alternate, so that a busy
   machine is busy for both, and the medians are compared. Processor time outside the engine is that of all threads but the lanes, and of encoding the rows,
   which lanes do, measured by itself: a difference of two large figures would say nothing on a busy machine. The last line is one JSON object. */
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/path.h"
#include "storage/dataset.h"
#include "wire/blackbox.h"
#include "workers/engine/model.h"
#include "workers/pipeline/encode.h"
#include "workers/pipeline/pipeline.h"
#include "workers/pipeline/stages.h"
#include "workers/text/tokenizer.h"

enum { MICRO_BATCH = 64, MICRO_BATCH_TOKENS = 1024, MOST_ROUNDS = 50, MOST_LANES = 64 };

static const char *model_dir = "build/demo/all-MiniLM-L6-v2", *input = "build/demo/glosses.jsonl";
static uint64_t records = 2000;
static uint32_t lanes = 1, rounds = 5;

static struct dataset data;
static struct model *model;
static const struct model_info *info;
static int32_t *ids;
static uint32_t *lengths;
static size_t *starts;

static _Noreturn void die(const char *what, const struct err *e)
{
    fprintf(stderr, "error: %s: %s\n", what, e->text);
    exit(1);
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double lanes_cpu_seconds(const struct pipeline *p)
{
    double sum = 0;
    for (uint32_t i = 0; i < lanes; i++) {
        clockid_t clock;
        struct timespec t;
        if (pthread_getcpuclockid(p->lane[i].thread, &clock) || clock_gettime(clock, &t))
            continue;
        sum += (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    }
    return sum;
}

static void load_records(void)
{
    struct err e;
    struct tokenizer *t;
    struct tok_scratch *scratch;
    struct reader *r;
    struct decoder *d;
    const struct dataset_spec spec = {.inputs = &input, .input_count = 1, .limit = records};
    char *absolute = path_absolute(input);
    input = absolute;
    if (dataset_open(&spec, &data, &e) != ST_OK)
        die(input, &e);
    if (model_open(model_dir, &(struct model_opts){0}, &model, &e) != ST_OK || tokenizer_open(model_dir, &t, &e) != ST_OK ||
        tok_scratch_new(&scratch, &e) != ST_OK)
        die(model_dir, &e);
    info = model_info(model);
    if (reader_open(&data.sources[0], &(struct reader_opts){.format = data.format, .max_record_bytes = 16 << 20}, 0, &r, &e) != ST_OK ||
        decoder_open(&(struct decoder_opts){.format = data.format}, NULL, &d, &e) != ST_OK)
        die(input, &e);
    ids = mem_array((size_t)records * info->max_tokens, sizeof *ids);
    lengths = mem_array((size_t)records, sizeof *lengths);
    starts = mem_array((size_t)records + 1, sizeof *starts);
    struct raw raw;
    struct record record;
    struct tok_result tokens;
    uint64_t n = 0;
    for (; n < records && reader_next(r, UINT64_MAX, &raw, &e) == ST_OK; n++) {
        if (decoder_run(d, &raw, &record, &e) != ST_OK ||
            tokenizer_encode(t, scratch, record.text, record.text_len, info->max_tokens, &tokens, &e) != ST_OK)
            die(input, &e);
        memcpy(ids + starts[n], tokens.ids, tokens.count * sizeof *ids);
        lengths[n] = tokens.count;
        starts[n + 1] = starts[n] + tokens.count;
    }
    records = n;
    decoder_close(d);
    reader_close(r);
    tok_scratch_free(scratch);
    tokenizer_free(t);
}

/* The engine alone -----------------------------------------------------------------------------------------------------------------*/

static pthread_mutex_t next_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t next_record;

static void *engine_lane(void *arg)
{
    (void)arg;
    struct err e;
    struct model_ctx *ctx;
    if (model_ctx_new(model, MICRO_BATCH_TOKENS > info->max_tokens ? MICRO_BATCH_TOKENS : info->max_tokens, MICRO_BATCH, &ctx, &e) != ST_OK)
        die("a lane", &e);
    float *out = mem_array((size_t)MICRO_BATCH * info->dims, sizeof *out);
    for (;;) {
        pthread_mutex_lock(&next_lock);
        uint64_t first = next_record, n = 0;
        while (first + n < records && n < MICRO_BATCH && (n == 0 || starts[first + n + 1] - starts[first] <= MICRO_BATCH_TOKENS))
            n++;
        next_record += n;
        pthread_mutex_unlock(&next_lock);
        if (!n)
            break;
        model_run(model, ctx, (uint32_t)n, lengths + first, ids + starts[first], out);
    }
    mem_free(out);
    model_ctx_free(ctx);
    return NULL;
}

static void run_engine(void)
{
    pthread_t threads[MOST_LANES];
    next_record = 0;
    for (uint32_t i = 0; i < lanes; i++)
        pthread_create(&threads[i], NULL, engine_lane, NULL);
    for (uint32_t i = 0; i < lanes; i++)
        pthread_join(threads[i], NULL);
}

/* The job --------------------------------------------------------------------------------------------------------------------------*/

static struct pipeline *pipeline;
static int wake_fd;
static uint64_t epoch;

static void begin_job(const char *dir, struct blackbox *box)
{
    struct err e;
    const struct pipeline_opts o = {.lanes = lanes, .box = box, .wake_fd = wake_fd};
    if (pipeline_new(&o, &pipeline, &e) != ST_OK)
        die("the pipeline", &e);
    char *spec = mem_printf("{\"model\":\"%s\",\"input\":{\"glob\":[\"%s\"]},\"output\":{\"path\":\"%s/out.jsonl\"}}", model_dir, input, dir);
    char *parts = mem_printf("%s/parts", dir);
    const struct job_words w = {
        .id = 1,
        .spec_json = spec,
        .parts_dir = parts,
        .model_key = 1,
        .model_digest = info->digest.bytes,
        .model_digest_len = sizeof info->digest.bytes,
        .format = data.format,
    };
    if (pipeline_job(pipeline, &w, &e) != ST_OK)
        die("the job", &e);
    mem_free(spec);
    mem_free(parts);
}

/* A lease over all records, until its last commit. */
static uint64_t run_job(void)
{
    struct err e;
    struct input *in = mem_array(1, sizeof *in);
    in->source = data.sources[0];
    in->source.path = mem_strdup(data.sources[0].path);
    in->end = data.layout.base[1];
    uint64_t rows = 0;
    if (pipeline_lease(pipeline, 1, ++epoch, (struct span){0, data.end}, 0, in, 1, &e) != ST_OK)
        die("the lease", &e);
    for (int over = 0; !over;) {
        eventfd_t n;
        if (eventfd_read(wake_fd, &n))
            continue;
        for (struct report *r; (r = pipeline_report(pipeline));) {
            if (r->kind == REPORT_COMMIT) {
                for (size_t i = 0; i < r->commit->done_count; i++)
                    rows += r->commit->done[i].rows;
                over |= pipeline_acked(pipeline, r->commit->epoch, r->commit->seq);
                commit_free(r->commit);
            } else if (r->kind != REPORT_MODEL_READY) {
                fprintf(stderr, "error: %s\n", r->text);
                exit(1);
            }
            mem_free(r);
        }
    }
    return rows;
}

/* Seconds of processor time to encode one row, of floats as a model gives them. */
/* The whole command, from its start to its end, on the same records. */
static void run_whole(const char *dir, unsigned round)
{
    char out[PATH_MAX], here[PATH_MAX], limit[32], lanes_word[32];
    ssize_t len = readlink("/proc/self/exe", here, sizeof here - 1);
    if (len <= 0)
        exit(1);
    here[len] = 0;
    char *slash = strstr(here, "/bench/");
    if (!slash)
        exit(1);
    snprintf(slash, sizeof here - (size_t)(slash - here), "/bin/ebb");
    snprintf(out, sizeof out, "%s/whole-%u", dir, round);
    snprintf(limit, sizeof limit, "%" PRIu64, records);
    snprintf(lanes_word, sizeof lanes_word, "%u", lanes);
    pid_t pid = fork();
    if (pid == 0) {
        execl(here, "ebb", "run", "--quiet", "--model", model_dir, "--input", input, "--limit", limit, "--lanes", lanes_word, "--output", out, (char *)NULL);
        _exit(127);
    }
    int status;
    if (pid < 0 || waitpid(pid, &status, 0) < 0 || !WIFEXITED(status) || WEXITSTATUS(status)) {
        fprintf(stderr, "error: 'ebb run' failed\n");
        exit(1);
    }
}

static double encode_seconds(void)
{
    enum { ROWS = 500 };
    struct err e;
    struct model_ctx *ctx;
    struct job j = {.id = 1};
    struct buf scratch = {0};
    float *out = mem_array(info->dims, sizeof *out);
    if (model_ctx_new(model, info->max_tokens, 1, &ctx, &e) != ST_OK)
        die("encoding", &e);
    model_run(model, ctx, 1, lengths, ids, out);
    double begun = cpu_seconds();
    for (int k = 0; k < ROWS; k++) {
        struct item *i = item_new();
        i->id = mem_strdup("12345");
        i->id_len = 5;
        if (encode_item(&j, i, &(struct outcome){.task = TASK_EMBED, .rows = 1, .width = info->dims, .f32 = out}, &scratch) != 1)
            exit(1);
        item_free(i);
    }
    double took = cpu_seconds() - begun;
    buf_release(&scratch);
    model_ctx_free(ctx);
    mem_free(out);
    return took / ROWS;
}

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static double median(double *x, size_t n)
{
    qsort(x, n, sizeof *x, by_value);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

int main(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--model"))
            model_dir = argv[i + 1];
        else if (!strcmp(argv[i], "--input"))
            input = argv[i + 1];
        else if (!strcmp(argv[i], "--records"))
            records = strtoull(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--lanes"))
            lanes = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--rounds"))
            rounds = (uint32_t)strtoul(argv[i + 1], NULL, 10);
    }
    if (!records || !lanes || lanes > MOST_LANES || !rounds || rounds > MOST_ROUNDS) {
        fprintf(stderr, "error: --records, --lanes and --rounds are 1 or more, lanes at most %d, rounds at most %d\n", MOST_LANES, MOST_ROUNDS);
        return 2;
    }
    struct err e;
    char dir[] = "/tmp/ebb-overhead-XXXXXX";
    log_init("overhead", LOG_WARN);
    if (!mkdtemp(dir))
        return 1;
    char *box_path = mem_printf("%s/box", dir);
    struct blackbox *box;
    model_dir = path_absolute(model_dir);
    load_records();
    if ((wake_fd = eventfd(0, EFD_CLOEXEC)) < 0 || blackbox_create(box_path, pipeline_slots(lanes), &box, &e) != ST_OK)
        return 1;
    begin_job(dir, box);
    run_engine(); /* caches warm, the model loaded on both sides */
    run_job();
    double engine_s[MOST_ROUNDS], job_s[MOST_ROUNDS], whole_s[MOST_ROUNDS], outside_cpu[MOST_ROUNDS];
    for (uint32_t k = 0; k < rounds; k++) {
        uint64_t t0 = clock_ns();
        run_engine();
        uint64_t t1 = clock_ns();
        double all = cpu_seconds(), of_lanes = lanes_cpu_seconds(pipeline);
        uint64_t rows = run_job();
        uint64_t t2 = clock_ns();
        outside_cpu[k] = cpu_seconds() - all - (lanes_cpu_seconds(pipeline) - of_lanes);
        if (rows != records) {
            fprintf(stderr, "error: %" PRIu64 " rows of %" PRIu64 " records\n", rows, records);
            return 1;
        }
        engine_s[k] = 1e-9 * (double)(t1 - t0);
        job_s[k] = 1e-9 * (double)(t2 - t1);
        t2 = clock_ns();
        run_whole(dir, k);
        whole_s[k] = 1e-9 * (double)(clock_ns() - t2);
        printf("round %u: engine %.3f s, job %.3f s, whole %.3f s\n", k + 1, engine_s[k], job_s[k], whole_s[k]);
    }
    double n = (double)records, engine = median(engine_s, rounds), job = median(job_s, rounds), whole = median(whole_s, rounds);
    double encode_us = encode_seconds() * 1e6, outside_us = median(outside_cpu, rounds) / n * 1e6 + encode_us;
    printf("%s, %" PRIu64 " records, %.1f tokens each, %u lane%s\n", info->name, records, (double)starts[records] / n, lanes, lanes == 1 ? "" : "s");
    printf("engine alone  %8.1f records/s\njob           %8.1f records/s, %.1f %% of it\nwhole command %8.1f records/s, %.1f %% of it\noutside the engine %.1f us of processor time a record (%.1f us of it to encode the row)\n",
           n / engine, n / job, 100 * engine / job, n / whole, 100 * engine / whole, outside_us, encode_us);
    printf("{\"bench\":\"overhead\",\"model\":\"%s\",\"records\":%" PRIu64 ",\"lanes\":%u,\"engine_per_s\":%.1f,\"job_per_s\":%.1f,\"ratio\":%.4f,"
           "\"whole_per_s\":%.1f,\"whole_ratio\":%.4f,\"outside_us\":%.1f}\n",
           info->name, records, lanes, n / engine, n / job, engine / job, n / whole, engine / whole, outside_us);
    while (!pipeline_idle(pipeline))
        clock_sleep_ms(1);
    pipeline_free(pipeline);
    blackbox_close(box, box_path);
    if (path_remove_tree(dir, &e) != ST_OK)
        return 1;
    return 0;
}
