/* `ebb model plan DIR`: profile_measure -> devices -> plan_make -> words. What is measured is this machine; a device of factor 2 is taken to do all of
   it in half the time. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/host.h"
#include "base/mem.h"
#include "base/rows.h"
#include "base/units.h"
#include "client/client.h"
#include "client/model_plan.h"
#include "workers/engine/profile.h"

struct division {
    const struct plan_dir_opts *o;
    struct profile profile;
    uint64_t weight_bytes; /* of all segments */
    double total_ms;       /* of all segments, here */
    struct plan_device devices[GANG_MOST];
    double factors[GANG_MOST];
    uint64_t memory[GANG_MOST]; /* of the whole worker; 0: no limit */
    char names[GANG_MOST][64];
    size_t device_count;
    struct plan_link link;
    struct plan plan;
    double took_ms;
};

/* What was said ------------------------------------------------------------------------------------------------------------------- */

/* "fast:2:4GiB" */
static enum status read_device(struct division *d, const char *text, struct err *e)
{
    size_t i = d->device_count;
    const char *colon = strchr(text, ':'), *second = colon ? strchr(colon + 1, ':') : NULL;
    char *end = NULL;
    double factor = colon ? strtod(colon + 1, &end) : 0;
    if (i == GANG_MOST)
        return err_set(e, ST_USER, "--device is given more than %d times: a pipeline has at most so many workers", GANG_MOST);
    if (!colon || colon == text || colon - text >= (ptrdiff_t)sizeof d->names[0] || end == colon + 1 || *end != (second ? ':' : 0) || !(factor >= 1e-6 && factor <= 1e6) ||
        (second && (units_parse_bytes(second + 1, &d->memory[i]) || !d->memory[i])))
        return err_set(e, ST_USER, "--device takes NAME:FACTOR[:MEMORY] such as 'fast:2:4GiB', a machine twice as fast as this one; not '%.100s'", text);
    snprintf(d->names[i], sizeof d->names[i], "%.*s", (int)(colon - text), text);
    for (size_t k = 0; k < i; k++)
        if (strcmp(d->names[k], d->names[i]) == 0)
            return err_set(e, ST_USER, "--device names '%s' twice", d->names[i]);
    d->factors[i] = factor;
    d->device_count++;
    return ST_OK;
}

/* "1G:0.2ms": bits per second, and how long the first of them is under way. */
static enum status read_link(struct plan_link *l, const char *text, struct err *e)
{
    static const struct {
        const char *word;
        double factor;
    } rates[] = {{"", 1}, {"k", 1e3}, {"K", 1e3}, {"M", 1e6}, {"G", 1e9}}, times[] = {{"ms", 1}, {"us", 1e-3}, {"s", 1e3}};
    char *end;
    double rate = strtod(text, &end), latency = 0;
    size_t n = strcspn(end, ":"), i = 0, k = 0;
    const char *colon = end[n] ? end + n + 1 : NULL;
    size_t bits = n >= 5 && strncmp(end + n - 5, "bit/s", 5) == 0 ? 5 : n >= 3 && strncmp(end + n - 3, "bit", 3) == 0 ? 3 : 0;
    while (i < COUNT(rates) && (strlen(rates[i].word) != n - bits || strncmp(rates[i].word, end, n - bits) != 0))
        i++;
    int good = end != text && i < COUNT(rates) && rate > 0 && isfinite(rate);
    if (good && colon) {
        latency = strtod(colon, &end);
        while (k < COUNT(times) && strcmp(times[k].word, end) != 0)
            k++;
        good = end != colon && k < COUNT(times) && latency >= 0 && isfinite(latency);
    }
    if (!good)
        return err_set(e, ST_USER, "--link takes RATE[:LATENCY] such as 1Gbit/s or 10G:0.1ms, not '%.100s'", text);
    *l = (struct plan_link){.bits_per_s = rate * rates[i].factor, .latency_ms = colon ? latency * times[k].factor : 0};
    return ST_OK;
}

static enum status read_opts(struct division *d, struct err *e)
{
    const struct plan_dir_opts *o = d->o;
    if (o->devices.count && (o->workers || o->memory_bytes))
        return err_set(e, ST_USER, "--device says which workers there are, each with its memory: leave --workers and --memory out");
    if (o->workers > GANG_MOST)
        return err_set(e, ST_USER, "--workers is between 1 and %d, not %" PRIu64 ": a pipeline has at most so many", GANG_MOST, o->workers);
    if (o->lanes > 4096)
        return err_set(e, ST_USER, "--lanes takes at most 4096, not %" PRIu64, o->lanes);
    for (size_t i = 0; i < o->devices.count; i++)
        TRY(read_device(d, o->devices.items[i], e));
    return o->link ? read_link(&d->link, o->link, e) : ST_OK;
}

static void take_workers(struct division *d, size_t n)
{
    d->device_count = n;
    for (size_t i = 0; i < n; i++) {
        snprintf(d->names[i], sizeof d->names[i], "worker %zu", i + 1);
        d->factors[i] = 1;
        d->memory[i] = d->o->memory_bytes;
    }
}

/* The plan ------------------------------------------------------------------------------------------------------------------------ */

static enum status make(struct division *d, struct err *e)
{
    const struct profile *p = &d->profile;
    size_t n = p->count, kinds = d->device_count;
    struct plan_node *nodes = mem_array(n, sizeof *nodes);
    struct plan_edge *edges = mem_array(n, sizeof *edges);
    double *times = mem_array(n * kinds, sizeof *times);
    char(*words)[24] = mem_array(n, sizeof *words);
    enum status st = nodes && edges && times && words ? ST_OK : err_nomem(e, "a plan");
    uint32_t kind_count = 0;
    for (size_t i = 0; i < d->device_count; i++) { /* of one kind are those that are as fast as each other */
        uint64_t room = d->memory[i] > p->fixed_bytes ? d->memory[i] - p->fixed_bytes : 1; /* 0 would be no limit */
        size_t k = 0;
        while (k < i && !(d->factors[k] >= d->factors[i] && d->factors[k] <= d->factors[i]))
            k++;
        d->devices[i] = (struct plan_device){.name = d->names[i], .kind = k < i ? d->devices[k].kind : kind_count++, .memory_bytes = d->memory[i] ? room : 0};
    }
    for (size_t i = 0; st == ST_OK && i < n; i++) {
        const struct profile_segment *s = &p->list[i];
        snprintf(words[i], sizeof words[i], "segment %zu", i + 1);
        nodes[i] = (struct plan_node){.name = words[i], .id = i + 1, .weight_bytes = s->weight_bytes, .output_ms = -1, .output_bytes = s->out_bytes, .group = -1,
                                      .time_ms = times + i * kind_count};
        edges[i] = (struct plan_edge){i, i + 1};
        for (size_t k = 0; k < d->device_count; k++)
            times[i * kind_count + d->devices[k].kind] = s->time_ms / d->factors[k];
    }
    struct plan_instance in = {.nodes = nodes, .node_count = n, .edges = edges, .edge_count = n - 1, .kind_count = kind_count, .devices = d->devices,
                               .device_count = d->device_count, .link = d->link, .objective = PLAN_THROUGHPUT,
                               .overlap = 1}; /* a thread of its own sends, while the lanes run the next ones */
    uint64_t before = clock_ns();
    if (st == ST_OK)
        st = plan_make(&in, &d->plan, e);
    d->took_ms = (double)(clock_ns() - before) / 1e6;
    mem_free(nodes);
    mem_free(edges);
    mem_free(times);
    mem_free(words);
    return st;
}

static uint64_t lanes_of(const struct division *d)
{
    return d->o->lanes ? d->o->lanes : host_processors();
}

static enum status no_room(const struct division *d, const struct err *why, struct err *e)
{
    char a[UNITS_MAX], b[UNITS_MAX];
    return err_set(e, ST_USER, "the workers cannot hold the model: %.300s\nit has %s of weights, and each worker takes %s beside its part (%" PRIu64 " lane%s)", why->text,
                   units_bytes(a, d->weight_bytes), units_bytes(b, d->profile.fixed_bytes), lanes_of(d), lanes_of(d) == 1 ? "" : "s");
}

static enum status divide(struct division *d, struct err *e)
{
    struct err why = {.text = ""};
    enum status st;
    size_t n = d->o->workers ? d->o->workers : d->o->memory_bytes ? 1 : 2;
    int search = !d->o->workers && d->o->memory_bytes && !d->device_count; /* as few as hold it */
    if (!d->device_count)
        take_workers(d, n);
    while ((st = make(d, &why)) == ST_USER && search && n < GANG_MOST)
        take_workers(d, ++n);
    if (st == ST_USER)
        return no_room(d, &why, e);
    if (st != ST_OK && e)
        *e = why;
    return st;
}

/* A stage's segments are a run of them: ids begin at 1. */
static uint64_t stage_bytes(const struct division *d, const struct plan_stage *s)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < s->node_count; i++)
        bytes += d->profile.list[s->nodes[i]].weight_bytes;
    return bytes;
}

/* The fastest of those that hold all of it; -1: none does. *count: how many do, *factor: how fast all of these are. */
static int alone(const struct division *d, size_t *count, double *factor)
{
    int best = -1;
    *count = 0;
    *factor = 0;
    for (size_t i = 0; i < d->device_count; i++) {
        if (d->memory[i] && d->memory[i] < d->weight_bytes + d->profile.fixed_bytes)
            continue;
        if (best < 0 || d->factors[i] > d->factors[best])
            best = (int)i;
        ++*count;
        *factor += d->factors[i];
    }
    return best;
}

static double texts_per_s(const struct division *d, double ms)
{
    return ms > 0 ? 1000 * d->profile.texts / ms : 0;
}

/* Words --------------------------------------------------------------------------------------------------------------------------- */

static void print_segments(const struct division *d)
{
    struct table *t = table_new(5, (const char *[]){"SEGMENT", "FROM", "TIME", "WEIGHTS", "ACROSS"});
    for (uint32_t i = 0; t && i < d->profile.count; i++) {
        const struct profile_segment *s = &d->profile.list[i];
        char number[24], time[32], weights[UNITS_MAX], across[UNITS_MAX];
        snprintf(number, sizeof number, "%u", i + 1);
        snprintf(time, sizeof time, "%.3f ms", s->time_ms);
        table_row(t, (const char *[]){number, s->first, time, units_bytes(weights, s->weight_bytes), i + 1 < d->profile.count ? units_bytes(across, (uint64_t)s->out_bytes) : "-"});
    }
    if (t)
        table_print(t, stdout);
}

static void print_stages(const struct division *d)
{
    struct table *t = table_new(8, (const char *[]){"STAGE", "WORKER", "SEGMENTS", "WEIGHTS", "COMPUTE", "IN", "OUT", "LOAD"});
    for (size_t i = 0; t && i < d->plan.stage_count; i++) {
        const struct plan_stage *s = &d->plan.stages[i];
        char number[24], segments[40], weights[UNITS_MAX], compute[32], in[32], out[32], load[32];
        snprintf(number, sizeof number, "%zu", i + 1);
        snprintf(segments, sizeof segments, "%zu-%zu", s->nodes[0] + 1, s->nodes[s->node_count - 1] + 1);
        snprintf(compute, sizeof compute, "%.3f ms", s->compute_ms);
        snprintf(in, sizeof in, "%.3f", s->in_ms);
        snprintf(out, sizeof out, "%.3f", s->out_ms);
        snprintf(load, sizeof load, "%.3f ms", s->load_ms);
        table_row(t, (const char *[]){number, d->names[s->devices[0]], segments, units_bytes(weights, stage_bytes(d, s)), compute, in, out, load});
    }
    if (t)
        table_print(t, stdout);
}

static void print_all(const struct division *d)
{
    char a[UNITS_MAX], b[UNITS_MAX];
    const struct profile *p = &d->profile;
    uint64_t lanes = lanes_of(d);
    size_t count;
    double factor;
    int one = alone(d, &count, &factor);
    print_field("model", "%s, to %s, %s, %s of weights", p->info.name, p->info.task, p->info.precision, units_bytes(a, d->weight_bytes));
    print_field("measured", "here, for %" PRIu64 " lane%s and micro-batches of %u texts of %u tokens; a worker takes %s beside its part", lanes, lanes == 1 ? "" : "s", p->texts,
                p->tokens, units_bytes(b, p->fixed_bytes));
    print_segments(d);
    print_stages(d);
    double rate = texts_per_s(d, d->plan.bottleneck_ms);
    if (one < 0)
        print_field("alone", "no worker holds all of it");
    else
        print_field("alone", "%s: %.3f ms a micro-batch, %s of texts", d->names[one], d->total_ms / d->factors[one], units_rate(a, texts_per_s(d, d->total_ms / d->factors[one])));
    char gain[64] = "";
    if (one >= 0 && d->plan.stage_count > 1)
        snprintf(gain, sizeof gain, ", %.2f times that", d->total_ms / d->factors[one] / d->plan.bottleneck_ms);
    if (d->plan.stage_count == 1)
        print_field("pipeline", "none: one worker, %s, is best%s", d->names[d->plan.stages[0].devices[0]], d->o->workers || d->o->devices.count ? "" : ", and holds all of it");
    else
        print_field("pipeline", "%zu workers: %.3f ms a micro-batch, %s of texts%s", d->plan.stage_count, d->plan.bottleneck_ms, units_rate(a, rate), gain);
    if (count > 1 && d->plan.stage_count > 1)
        print_field("apart", "%zu workers hold all of it: each by itself, they do %s of texts together", count, units_rate(a, texts_per_s(d, d->total_ms / factor)));
    model_plan_print_gap(&d->plan, d->took_ms);
}

static json_t *segments_json(const struct profile *p)
{
    json_t *list = json_array();
    for (uint32_t i = 0; list && i < p->count; i++)
        json_array_append_new(list, json_pack("{s:s, s:f, s:I, s:f}", "first", p->list[i].first, "time_ms", p->list[i].time_ms, "weight_bytes",
                                              (json_int_t)p->list[i].weight_bytes, "out_bytes", p->list[i].out_bytes));
    return list;
}

static json_t *devices_json(const struct division *d)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < d->device_count; i++)
        json_array_append_new(list, json_pack("{s:s, s:f, s:I}", "name", d->names[i], "factor", d->factors[i], "memory_bytes", (json_int_t)d->memory[i]));
    return list;
}

static json_t *stages_json(const struct division *d)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < d->plan.stage_count; i++) {
        const struct plan_stage *s = &d->plan.stages[i];
        json_array_append_new(list, json_pack("{s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f}", "device", d->names[s->devices[0]], "first", (json_int_t)s->nodes[0] + 1, "last",
                                              (json_int_t)s->nodes[s->node_count - 1] + 1, "weight_bytes", (json_int_t)stage_bytes(d, s), "compute_ms", s->compute_ms, "in_ms",
                                              s->in_ms, "out_ms", s->out_ms, "load_ms", s->load_ms));
    }
    return list;
}

static json_t *all_json(const struct division *d)
{
    const struct profile *p = &d->profile;
    const struct plan *plan = &d->plan;
    size_t count;
    double factor;
    int one = alone(d, &count, &factor);
    double alone_ms = one < 0 ? 0 : d->total_ms / d->factors[one];
    json_t *by_one = one < 0 ? json_null() : json_pack("{s:s, s:f, s:f}", "device", d->names[one], "time_ms", alone_ms, "texts_per_s", texts_per_s(d, alone_ms));
    return json_pack("{s:s, s:s, s:s, s:I, s:i, s:i, s:I, s:I, s:o, s:o, s:o, s:f, s:o, s:f, s:f, s:f, s:f, s:b, s:f}", "model", p->info.name, "task", p->info.task, "precision",
                     p->info.precision, "lanes", (json_int_t)lanes_of(d), "texts", (int)p->texts, "tokens", (int)p->tokens, "fixed_bytes",
                     (json_int_t)p->fixed_bytes, "weight_bytes", (json_int_t)d->weight_bytes, "segments", segments_json(p), "devices", devices_json(d), "alone", by_one, "apart_texts_per_s", count ? texts_per_s(d, d->total_ms / factor) : 0.0, "stages",
                     stages_json(d), "bottleneck_ms", plan->bottleneck_ms, "texts_per_s", texts_per_s(d, plan->bottleneck_ms), "bound_ms", plan->bound_ms, "gap", plan->gap,
                     "optimal", plan->gap <= 1e-9, "took_ms", d->took_ms);
}

int model_plan_dir(const char *dir, const struct plan_dir_opts *o)
{
    struct division d = {.o = o};
    struct model_opts mo = {.precision = o->precision, .task = o->task, .lanes = (uint32_t)(o->lanes <= 4096 ? o->lanes : 4096)};
    struct err e;
    enum status st = read_opts(&d, &e);
    if (st == ST_OK)
        st = profile_measure(dir, &mo, 1, &d.profile, &e);
    for (uint32_t i = 0; i < d.profile.count; i++) {
        d.weight_bytes += d.profile.list[i].weight_bytes;
        d.total_ms += d.profile.list[i].time_ms;
    }
    if (st == ST_OK)
        st = divide(&d, &e);
    int code = EXIT_DONE;
    if (st != ST_OK)
        code = fail(&e);
    else if (common.json)
        code = print_json(all_json(&d));
    else
        print_all(&d);
    plan_release(&d.plan);
    profile_release(&d.profile);
    return code;
}
