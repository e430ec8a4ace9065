#include "workers/group/cost.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/path.h"
#include "workers/engine/slow.h"

#define FORMAT "ebb-cost/1"
#define MOST_BYTES (4u << 20)

/* By its name, as the kernel has it: figures of one model of processor are good for another of the same. */
static void processor(char *out, size_t size)
{
    char line[400];
    FILE *f = fopen("/proc/cpuinfo", "re");
    snprintf(out, size, "unknown");
    while (f && fgets(line, sizeof line, f)) {
        char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !value)
            continue;
        value[strcspn(value, "\n")] = 0;
        snprintf(out, size, "%s", value + 2);
        break;
    }
    if (f)
        fclose(f);
}

static char *file_of(const struct model_opts *o, const struct model_info *info)
{
    char hex[2 * sizeof info->digest.bytes + 1];
    for (size_t i = 0; i < sizeof info->digest.bytes; i++)
        snprintf(hex + 2 * i, 3, "%02x", info->digest.bytes[i]);
    char slower[40] = "";
    if (slow_factor() > 1)
        snprintf(slower, sizeof slower, "-slow%g", slow_factor());
    return mem_printf("%s/%s-%s-%s-%s-%u%s.cost", o->pack_dir, hex, info->precision, info->isa, info->task, o->lanes, slower);
}

/* One worker of a host measures at a time: two would disturb each other, and the second finds what the first has written. -1: the folder is not there yet, or knows no
   locks; then they may. */
static int lock(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (fd >= 0 && flock(fd, LOCK_EX))
        if (errno != EINTR)
            break;
    return fd;
}

static json_t *to_json(const struct profile *p, const char *numerics)
{
    char cpu[200];
    processor(cpu, sizeof cpu);
    json_t *list = json_array();
    for (uint32_t i = 0; i < p->count; i++)
        json_array_append_new(list, json_pack("{s:s, s:f, s:I, s:f}", "first", p->list[i].first, "time_ms", p->list[i].time_ms, "weight_bytes",
                                              (json_int_t)p->list[i].weight_bytes, "out_bytes", p->list[i].out_bytes));
    return json_pack("{s:s, s:s, s:s, s:f, s:i, s:i, s:I, s:o}", "format", FORMAT, "processor", cpu, "numerics", numerics, "slower", slow_factor(), "texts",
                     (int)p->texts, "tokens", (int)p->tokens, "fixed_bytes", (json_int_t)p->fixed_bytes, "segments", list);
}

static int good(double x)
{
    return isfinite(x) && x >= 0;
}

/* 1: it is what this machine would measure. */
static int from_json(json_t *j, const struct model_info *info, struct profile *out)
{
    const char *format, *cpu, *numerics;
    char own[200];
    double slower;
    int texts, tokens;
    json_int_t fixed;
    json_t *list;
    processor(own, sizeof own);
    if (json_unpack(j, "{s:s, s:s, s:s, s:F, s:i, s:i, s:I, s:o}", "format", &format, "processor", &cpu, "numerics", &numerics, "slower", &slower, "texts", &texts,
                    "tokens", &tokens, "fixed_bytes", &fixed, "segments", &list) ||
        strcmp(format, FORMAT) != 0 || strcmp(cpu, own) != 0 || strcmp(numerics, info->numerics) != 0 || slower != slow_factor() || texts < 1 || tokens < 1 || fixed < 0 ||
        !json_is_array(list) || json_array_size(list) < 2 || json_array_size(list) > 100000)
        return 0;
    *out = (struct profile){.count = (uint32_t)json_array_size(list), .texts = (uint32_t)texts, .tokens = (uint32_t)tokens, .fixed_bytes = (uint64_t)fixed, .info = *info};
    int fits = (out->list = mem_array(out->count, sizeof *out->list)) != NULL;
    for (uint32_t i = 0; i < out->count && fits; i++) {
        struct profile_segment *s = &out->list[i];
        const char *first;
        json_int_t weight;
        fits = json_unpack(json_array_get(list, i), "{s:s, s:F, s:I, s:F}", "first", &first, "time_ms", &s->time_ms, "weight_bytes", &weight, "out_bytes",
                           &s->out_bytes) == 0 &&
               good(s->time_ms) && good(s->out_bytes) && weight >= 0;
        if (fits) {
            s->weight_bytes = (uint64_t)weight;
            snprintf(s->first, sizeof s->first, "%s", first);
        }
    }
    if (!fits)
        profile_release(out);
    return fits;
}

static int read_file(const char *file, const struct model_info *info, struct profile *out)
{
    struct buf bytes = {0};
    struct err e;
    if (path_read(file, MOST_BYTES, &bytes, &e) != ST_OK) {
        buf_release(&bytes);
        return 0;
    }
    json_t *j = json_loadb(bytes.data ? bytes.data : "", bytes.len, 0, NULL);
    int fits = j && from_json(j, info, out);
    if (!fits)
        log_info("'%s' is not of this machine and version; its model is measured again", file);
    json_decref(j);
    buf_release(&bytes);
    return fits;
}

/* Whole or not at all; whatever fails only costs another measurement. */
static void write_file(const char *file, const struct profile *p, const char *numerics)
{
    json_t *j = to_json(p, numerics);
    char *text = j ? json_dumps(j, JSON_INDENT(1) | JSON_SORT_KEYS | JSON_REAL_PRECISION(17)) : NULL, *next = mem_printf("%s.%d", file, (int)getpid());
    FILE *f = text && next ? fopen(next, "we") : NULL;
    int failed = !f || fputs(text, f) == EOF;
    failed |= f && fclose(f) != 0;
    if (!failed)
        failed = rename(next, file) != 0;
    if (failed) {
        log_info("what the segments of a model cost is not kept in '%s'", file);
        if (f)
            unlink(next);
    }
    free(text);
    mem_free(next);
    json_decref(j);
}

enum status cost_of(const char *dir, const struct model_opts *o, const struct model_info *info, struct profile *out, struct err *e)
{
    char *file = o->pack_dir ? file_of(o, info) : NULL;
    if (o->pack_dir && !file)
        return err_nomem(e, "a path");
    enum status st = ST_OK;
    if (!file || !read_file(file, info, out)) {
        int locked = file ? lock(o->pack_dir) : -1;
        if (locked < 0 || !read_file(file, info, out)) {
            st = profile_measure(dir, o, slow_factor(), out, e);
            if (st == ST_OK && file)
                write_file(file, out, info->numerics);
        }
        if (locked >= 0)
            close(locked);
    }
    mem_free(file);
    return st;
}
