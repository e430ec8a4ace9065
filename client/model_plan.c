/* `ebb model plan`: which devices hold which part of a model. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/units.h"
#include "client/client.h"
#include "client/model_plan.h"
#include "client/plan_file.h"

static const char *instance_path;
static struct plan_dir_opts of_model;

static json_t *stage_json(const struct plan_instance *in, const struct plan_stage *s)
{
    json_t *nodes = json_array(), *devices = json_array();
    for (size_t i = 0; i < s->node_count; i++)
        json_array_append_new(nodes, json_integer((json_int_t)in->nodes[s->nodes[i]].id));
    for (size_t i = 0; i < s->device_count; i++)
        json_array_append_new(devices, json_string(in->devices[s->devices[i]].name));
    return json_pack("{s:s, s:o, s:o, s:f, s:f, s:f, s:f}", "device", in->devices[s->devices[0]].name, "devices", devices, "nodes", nodes, "compute_ms",
                     s->compute_ms, "in_ms", s->in_ms, "out_ms", s->out_ms, "load_ms", s->load_ms);
}

static json_t *maybe(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *plan_json(const struct plan_instance *in, const struct plan *p, double took_ms, double fixed, double even)
{
    json_t *stages = json_array();
    for (size_t i = 0; i < p->stage_count; i++)
        json_array_append_new(stages, stage_json(in, &p->stages[i]));
    return json_pack("{s:s, s:s, s:o, s:f, s:f, s:f, s:f, s:f, s:b, s:f, s:o, s:o}", "format", "ebb-plan/1", "objective",
                     in->objective == PLAN_LATENCY ? "latency" : "throughput", "stages", stages, "bottleneck_ms", p->bottleneck_ms, "sum_ms", p->sum_ms,
                     "value_ms", p->value_ms, "bound_ms", p->bound_ms, "gap", p->gap, "optimal", p->gap <= 1e-9, "took_ms", took_ms, "fixed_order_ms",
                     maybe(fixed), "even_split_ms", maybe(even));
}

static void node_names(const struct plan_instance *in, const struct plan_stage *s, char *out, size_t size)
{
    const struct plan_node *a = &in->nodes[s->nodes[0]], *b = &in->nodes[s->nodes[s->node_count - 1]];
    if (s->node_count == 1)
        snprintf(out, size, "%s", a->name);
    else
        snprintf(out, size, "%.40s ... %.40s (%zu)", a->name, b->name, s->node_count);
}

void model_plan_print_gap(const struct plan *p, double took_ms)
{
    if (p->gap <= 1e-9)
        print_field("proved", "no plan is better (%.0f ms to find)", took_ms);
    else
        print_field("gap", "at most %.2f %%: no plan is below %.6f ms (%.0f ms to find)", 100 * p->gap, p->bound_ms, took_ms);
}

static void print_plan(const struct plan_file *f, const struct plan *p, double took_ms, double fixed, double even)
{
    static const char *const headings[] = {"STAGE", "DEVICE", "KIND", "NODES", "WEIGHTS", "COMPUTE", "IN", "OUT", "LOAD"};
    const struct plan_instance *in = &f->instance;
    struct table *t = table_new(COUNT(headings), headings);
    for (size_t i = 0; i < p->stage_count && t; i++) {
        const struct plan_stage *s = &p->stages[i];
        char number[24], device[200], nodes[120], weights[UNITS_MAX], compute[32], in_ms[32], out_ms[32], load[32];
        uint64_t bytes = 0;
        for (size_t n = 0; n < s->node_count; n++)
            bytes += in->nodes[s->nodes[n]].weight_bytes;
        snprintf(number, sizeof number, "%zu", i + 1);
        snprintf(device, sizeof device, s->device_count > 1 ? "%.100s and %zu more" : "%.100s", in->devices[s->devices[0]].name, s->device_count - 1);
        node_names(in, s, nodes, sizeof nodes);
        snprintf(compute, sizeof compute, "%.3f ms", s->compute_ms);
        snprintf(in_ms, sizeof in_ms, "%.3f", s->in_ms);
        snprintf(out_ms, sizeof out_ms, "%.3f", s->out_ms);
        snprintf(load, sizeof load, "%.3f ms", s->load_ms);
        const char *cells[] = {number, device, f->kinds[in->devices[s->devices[0]].kind], nodes, units_bytes(weights, bytes), compute, in_ms, out_ms, load};
        table_row(t, cells);
    }
    if (t)
        table_print(t, stdout);
    if (in->objective == PLAN_LATENCY)
        print_field("latency", "%.6f ms for %" PRIu64 " micro-batches: %.6f ms through all stages, and %.6f ms for each further one", p->value_ms, in->micro_batches,
                    p->sum_ms, p->bottleneck_ms);
    else
        print_field("bottleneck", "%.6f ms: %.2f micro-batches/s", p->bottleneck_ms, p->bottleneck_ms > 0 ? 1000 / p->bottleneck_ms : 0);
    model_plan_print_gap(p, took_ms);
    if (isfinite(fixed) && fixed > 0)
        print_field("beside", "devices in the order given: %.6f ms, %.1f %% more%s", fixed, 100 * (fixed / p->value_ms - 1), isfinite(even) ? "" : "; an even split does not fit");
    if (isfinite(even) && even > 0)
        print_field("", "an even split: %.6f ms, %.1f %% more", even, 100 * (even / p->value_ms - 1));
    if (!f->contiguous)
        print_field("note", "stages of a pipeline are contiguous; one that is not may be faster, but ebb does not run such");
}

static int plan_instance(void)
{
    struct plan_file f;
    struct plan p;
    struct err e;
    enum status st = plan_file_read(instance_path, &f, &e);
    if (st != ST_OK)
        return fail(&e);
    uint64_t before = clock_ns();
    st = plan_make(&f.instance, &p, &e);
    double took_ms = (double)(clock_ns() - before) / 1e6;
    if (st != ST_OK) {
        plan_file_release(&f);
        return fail(&e);
    }
    double fixed = plan_fixed_order(&f.instance, &e), even = plan_even_split(&f.instance, &e);
    int code = EXIT_DONE;
    if (common.json)
        code = print_json(plan_json(&f.instance, &p, took_ms, fixed, even));
    else
        print_plan(&f, &p, took_ms, fixed, even);
    plan_release(&p);
    plan_file_release(&f);
    return code;
}

static int run_plan(int operand_count, char **operands)
{
    const struct plan_dir_opts *o = &of_model;
    if (!instance_path && !operand_count)
        return fail_with(ST_USER, "nothing is given to be planned: name a model's directory, or a problem with --instance FILE");
    if (instance_path && (operand_count || o->workers || o->memory_bytes || o->lanes || o->devices.count || o->link || o->precision || o->task))
        return fail_with(ST_USER, "--instance is a whole problem, with its devices: leave the rest out");
    int code = instance_path ? plan_instance() : model_plan_dir(operands[0], o);
    opt_list_release(&of_model.devices);
    return code;
}

static const struct opt plan_opts[] = {
    {.name = "workers", .type = OPT_NUMBER, .value = &of_model.workers, .arg = "N", .group = "Workers that are alike", .help = "so many (default: as few as hold the model; 2 without --memory)"},
    {.name = "memory", .type = OPT_SIZE, .value = &of_model.memory_bytes, .arg = "SIZE", .group = "Workers that are alike", .help = "of each (default: no limit)"},
    {.name = "device", .type = OPT_LIST, .value = &of_model.devices, .arg = "NAME:FACTOR[:MEMORY]", .group = "Unlike workers",
     .help = "one that is FACTOR times as fast as this machine; may be given again"},
    {.name = "link", .type = OPT_TEXT, .value = &of_model.link, .arg = "RATE[:LATENCY]", .help = "between any two of them, such as 1Gbit/s or 10G:0.1ms (default: costs nothing)"},
    {.name = "lanes", .type = OPT_NUMBER, .value = &of_model.lanes, .arg = "N", .help = "cores that each worker uses (default: all of this machine)"},
    {.name = "precision", .type = OPT_TEXT, .value = &of_model.precision, .arg = "WORD", .help = "as a job with this --precision would run it"},
    {.name = "task", .type = OPT_TEXT, .value = &of_model.task, .arg = "WORD", .help = "embed, classify, token-classify or fill-mask (default: what it was made for)"},
    {.name = "instance", .type = OPT_TEXT, .value = &instance_path, .arg = "FILE", .help = "the problem, an ebb-plan/1 file (docs/pipelines.md)"},
    ROW_JSON,
};
static const struct opt_command plan_table = {.name = "ebb model plan", .operands = "[DIR]", .summary = "cut a model into stages over workers, like or unlike",
                                              .details = "Finds which devices hold which part of a model, in which order, cut where, so that the busiest device is as little busy as can be (or the "
                                                         "last of M micro-batches is through as soon as can be), and says how far from the best possible it may be. Of a model it measures on this machine what each "
                                                         "segment costs, one of them in memory at a time; of an --instance everything is in the file.",
                                              .examples = "  ebb model plan bert-large/ --memory 600MiB\n"
                                                          "  ebb model plan bert-large/ --device new:2:8GiB --device old:0.5:2GiB --link 1Gbit/s\n"
                                                          "  ebb model plan --instance cluster.json",
                                              .opts = plan_opts, .opt_count = COUNT(plan_opts), .operands_max = 1};
const struct command command_model_plan = {.name = "model plan", .group = "On this machine", .table = &plan_table, .run = run_plan};
