#include "client/plan_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/suggest.h"
#include "client/client.h"

#define MOST_BYTES (256u << 20)
#define MOST_DEVICES 4096

struct parse {
    const char *path;
    struct plan_file *f;
    size_t kind_count, kind_cap;
    struct err *e;
};

static enum status bad(struct parse *p, const char *where, size_t at, const char *what)
{
    if (!where)
        return err_set(p->e, ST_USER, "'%s': %s", p->path, what);
    return err_set(p->e, ST_USER, "'%s': %s[%zu]: %s", p->path, where, at, what);
}

/* Only keys that are known: a misspelt one would change the problem in silence. */
static enum status known_keys(struct parse *p, const json_t *o, const char *where, size_t at, const char *const *words)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)o, key, value) {
        size_t i = 0;
        while (words[i] && strcmp(words[i], key) != 0)
            i++;
        if (words[i])
            continue;
        char what[300];
        size_t count = 0;
        while (words[count])
            count++;
        const char *near = suggest(key, words, count);
        snprintf(what, sizeof what, "unknown key '%.100s'%s%s%s", key, near ? " (did you mean '" : "", near ? near : "", near ? "')" : "");
        return bad(p, where, at, what);
    }
    return ST_OK;
}

static int number_in(const json_t *o, const char *key, double otherwise, double *out)
{
    const json_t *v = json_object_get(o, key);
    *out = otherwise;
    if (!v)
        return 0;
    if (!json_is_number(v) || !isfinite(json_number_value(v)) || json_number_value(v) < 0)
        return -1;
    *out = json_number_value(v);
    return 0;
}

static int flag_in(const json_t *o, const char *key, int otherwise, int *out)
{
    const json_t *v = json_object_get(o, key);
    *out = v ? json_is_true(v) : otherwise;
    return v && !json_is_boolean(v) ? -1 : 0;
}

static uint32_t kind_of(struct parse *p, const char *name)
{
    for (uint32_t k = 0; k < p->kind_count; k++)
        if (strcmp(p->f->kinds[k], name) == 0)
            return k;
    return UINT32_MAX;
}

static enum status read_devices(struct parse *p)
{
    static const char *const keys[] = {"name", "kind", "memory_bytes", "free_link", NULL};
    const json_t *list = json_object_get(p->f->json, "devices");
    size_t n = json_array_size(list);
    if (!n || n > MOST_DEVICES)
        return bad(p, NULL, 0, "'devices' must be a list of 1 to 4,096 devices");
    if (!(p->f->devices = mem_array(n, sizeof *p->f->devices)) || !(p->f->kinds = mem_array(n, sizeof *p->f->kinds)))
        return err_nomem(p->e, "a plan");
    for (size_t i = 0; i < n; i++) {
        const json_t *o = json_array_get(list, i);
        struct plan_device *d = &p->f->devices[i];
        double memory;
        TRY(known_keys(p, o, "devices", i, keys));
        const char *kind = json_string_value(json_object_get(o, "kind"));
        d->name = json_string_value(json_object_get(o, "name"));
        if (!d->name || !kind)
            return bad(p, "devices", i, "needs 'name' and 'kind', both strings");
        for (size_t k = 0; k < i; k++)
            if (strcmp(p->f->devices[k].name, d->name) == 0)
                return bad(p, "devices", i, "has the name of an earlier device");
        if (number_in(o, "memory_bytes", 0, &memory) || memory > 1e18)
            return bad(p, "devices", i, "'memory_bytes' must be a number of bytes");
        if (json_object_get(o, "memory_bytes") && memory < 1)
            return bad(p, "devices", i, "has no memory: leave it out");
        if (flag_in(o, "free_link", 0, &d->free_link))
            return bad(p, "devices", i, "'free_link' must be true or false");
        d->memory_bytes = (uint64_t)memory;
        d->kind = kind_of(p, kind);
        if (d->kind == UINT32_MAX) {
            d->kind = (uint32_t)p->kind_count;
            p->f->kinds[p->kind_count++] = kind;
        }
    }
    p->f->instance.devices = p->f->devices;
    p->f->instance.device_count = n;
    p->f->instance.kind_count = (uint32_t)p->kind_count;
    return ST_OK;
}

static enum status read_nodes(struct parse *p)
{
    static const char *const keys[] = {"id", "name", "weight_bytes", "time_ms", "output_ms", "output_bytes", "group", NULL};
    const json_t *list = json_object_get(p->f->json, "nodes");
    size_t n = json_array_size(list), kinds = p->kind_count;
    if (!n)
        return bad(p, NULL, 0, "'nodes' must be a list of at least one node");
    if (!(p->f->nodes = mem_array(n, sizeof *p->f->nodes)) || !(p->f->times = mem_array(n * kinds, sizeof *p->f->times)))
        return err_nomem(p->e, "a plan");
    for (size_t i = 0; i < n; i++) {
        const json_t *o = json_array_get(list, i), *times = json_object_get(o, "time_ms"), *id = json_object_get(o, "id"), *group = json_object_get(o, "group");
        struct plan_node *v = &p->f->nodes[i];
        double weight;
        TRY(known_keys(p, o, "nodes", i, keys));
        if (!json_is_integer(id) || json_integer_value(id) < 0)
            return bad(p, "nodes", i, "needs an 'id', a whole number");
        if (!json_is_object(times))
            return bad(p, "nodes", i, "needs 'time_ms', an object of times by kind of device");
        v->id = (uint64_t)json_integer_value(id);
        v->name = json_string_value(json_object_get(o, "name"));
        v->name = v->name ? v->name : "";
        if (number_in(o, "weight_bytes", 0, &weight) || weight > 1e18)
            return bad(p, "nodes", i, "'weight_bytes' must be a number of bytes");
        v->weight_bytes = (uint64_t)weight;
        if (number_in(o, "output_ms", -1, &v->output_ms) || number_in(o, "output_bytes", 0, &v->output_bytes))
            return bad(p, "nodes", i, "'output_ms' and 'output_bytes' must be numbers, not below 0");
        if (group && !json_is_integer(group))
            return bad(p, "nodes", i, "'group' must be a whole number");
        v->group = group && json_integer_value(group) >= 0 ? json_integer_value(group) : -1;
        double *t = p->f->times + i * kinds;
        for (size_t k = 0; k < kinds; k++)
            if (number_in(times, p->f->kinds[k], INFINITY, &t[k]))
                return bad(p, "nodes", i, "times must be numbers of milliseconds, not below 0");
        v->time_ms = t;
    }
    p->f->instance.nodes = p->f->nodes;
    p->f->instance.node_count = n;
    return ST_OK;
}

struct by_id {
    uint64_t id;
    size_t at;
};

static int compare_ids(const void *a, const void *b)
{
    uint64_t x = ((const struct by_id *)a)->id, y = ((const struct by_id *)b)->id;
    return (x > y) - (x < y);
}

static const struct by_id *find_id(const struct by_id *ids, size_t n, const json_t *v)
{
    struct by_id key = {.id = (uint64_t)json_integer_value(v)};
    return json_is_integer(v) && json_integer_value(v) >= 0 ? bsearch(&key, ids, n, sizeof *ids, compare_ids) : NULL;
}

static enum status read_edges(struct parse *p)
{
    const json_t *list = json_object_get(p->f->json, "edges");
    size_t n = json_array_size(list), nodes = p->f->instance.node_count;
    if (list && !json_is_array(list))
        return bad(p, NULL, 0, "'edges' must be a list of [from, to]");
    struct by_id *ids = mem_array(nodes, sizeof *ids);
    p->f->edges = mem_array(n + 1, sizeof *p->f->edges);
    enum status st = ids && p->f->edges ? ST_OK : err_nomem(p->e, "a plan");
    for (size_t i = 0; st == ST_OK && i < nodes; i++)
        ids[i] = (struct by_id){p->f->nodes[i].id, i};
    if (st == ST_OK)
        qsort(ids, nodes, sizeof *ids, compare_ids);
    for (size_t i = 1; st == ST_OK && i < nodes; i++)
        if (ids[i].id == ids[i - 1].id)
            st = bad(p, "nodes", ids[i].at, "has the id of another node");
    for (size_t i = 0; st == ST_OK && i < n; i++) {
        const json_t *o = json_array_get(list, i);
        const struct by_id *from = find_id(ids, nodes, json_array_get(o, 0)), *to = find_id(ids, nodes, json_array_get(o, 1));
        if (json_array_size(o) != 2 || !from || !to)
            st = bad(p, "edges", i, "must be [from, to], both ids of nodes");
        else
            p->f->edges[i] = (struct plan_edge){from->at, to->at};
    }
    mem_free(ids);
    p->f->instance.edges = p->f->edges;
    p->f->instance.edge_count = n;
    return st;
}

static int read_link(const json_t *o, struct plan_link *l)
{
    return number_in(o, "bandwidth_bits_per_s", 0, &l->bits_per_s) || number_in(o, "latency_ms", 0, &l->latency_ms) ? -1 : 0;
}

static enum status read_links(struct parse *p)
{
    static const char *const one_keys[] = {"bandwidth_bits_per_s", "latency_ms", NULL};
    static const char *const keys[] = {"from", "to", "bandwidth_bits_per_s", "latency_ms", NULL};
    const json_t *one = json_object_get(p->f->json, "link"), *list = json_object_get(p->f->json, "links");
    size_t n = p->f->instance.device_count;
    if (one && json_object_size(one)) {
        TRY(known_keys(p, one, "link", 0, one_keys));
        if (read_link(one, &p->f->instance.link))
            return bad(p, NULL, 0, "'link' needs numbers 'bandwidth_bits_per_s' and 'latency_ms'");
    }
    if (!json_array_size(list))
        return ST_OK;
    if (!(p->f->links = mem_array(n * n, sizeof *p->f->links)))
        return err_nomem(p->e, "a plan");
    for (size_t i = 0; i < n * n; i++)
        p->f->links[i] = (struct plan_link){.bits_per_s = -1};
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *o = json_array_get(list, i);
        const char *from = json_string_value(json_object_get(o, "from")), *to = json_string_value(json_object_get(o, "to"));
        size_t a = n, b = n;
        TRY(known_keys(p, o, "links", i, keys));
        for (size_t d = 0; d < n && from && to; d++) {
            a = strcmp(p->f->devices[d].name, from) == 0 ? d : a;
            b = strcmp(p->f->devices[d].name, to) == 0 ? d : b;
        }
        if (a == n || b == n)
            return bad(p, "links", i, "'from' and 'to' must be names of devices");
        if (read_link(o, &p->f->links[a * n + b]))
            return bad(p, "links", i, "needs numbers 'bandwidth_bits_per_s' and 'latency_ms'");
    }
    for (size_t i = 0; i < n * n; i++)
        if (p->f->links[i].bits_per_s < 0) { /* the other way round is as good, else what holds for all */
            const struct plan_link *back = &p->f->links[i % n * n + i / n];
            if (i / n == i % n)
                p->f->links[i] = (struct plan_link){.bits_per_s = 0};
            else if (back->bits_per_s >= 0)
                p->f->links[i] = *back;
            else if (p->f->instance.link.bits_per_s > 0)
                p->f->links[i] = p->f->instance.link;
            else {
                char what[300];
                snprintf(what, sizeof what, "no link between '%.100s' and '%.100s' is given, and no 'link' for all", p->f->devices[i / n].name,
                         p->f->devices[i % n].name);
                return bad(p, NULL, 0, what);
            }
        }
    p->f->instance.links = p->f->links;
    return ST_OK;
}

static enum status read_all(struct parse *p)
{
    static const char *const keys[] = {"format", "objective", "micro_batches", "overlap", "contiguous", "replicas", "nodes", "edges", "devices", "link",
                                       "links", "source", "name", "comment", "optimum", NULL};
    const json_t *o = p->f->json;
    struct plan_instance *in = &p->f->instance;
    const char *format = json_string_value(json_object_get(o, "format")), *objective = json_string_value(json_object_get(o, "objective"));
    double m;
    if (!json_is_object(o) || !format || strcmp(format, "ebb-plan/1") != 0)
        return bad(p, NULL, 0, "is no placement problem: \"format\" must be \"ebb-plan/1\"");
    TRY(known_keys(p, o, "top level", 0, keys));
    if (objective && strcmp(objective, "throughput") != 0 && strcmp(objective, "latency") != 0)
        return bad(p, NULL, 0, "'objective' must be throughput or latency");
    in->objective = objective && strcmp(objective, "latency") == 0 ? PLAN_LATENCY : PLAN_THROUGHPUT;
    if (number_in(o, "micro_batches", 1, &m) || m < 1 || m > 1e12 || m != floor(m))
        return bad(p, NULL, 0, "'micro_batches' must be a whole number from 1 on");
    in->micro_batches = (uint64_t)m;
    if (flag_in(o, "overlap", 0, &in->overlap) || flag_in(o, "replicas", 0, &in->replicas) || flag_in(o, "contiguous", 1, &p->f->contiguous))
        return bad(p, NULL, 0, "'overlap', 'replicas' and 'contiguous' must be true or false");
    TRY(read_devices(p));
    TRY(read_nodes(p));
    TRY(read_edges(p));
    return read_links(p);
}

enum status plan_file_read(const char *path, struct plan_file *out, struct err *e)
{
    struct buf text = {0};
    json_error_t at;
    *out = (struct plan_file){.json = NULL};
    TRY(path_read(path, MOST_BYTES, &text, e));
    out->json = json_loadb(text.data, text.len, JSON_REJECT_DUPLICATES, &at);
    buf_release(&text);
    struct parse p = {.path = path, .f = out, .e = e};
    enum status st = out->json ? read_all(&p) : err_set(e, ST_USER, "'%s' line %d: %s", path, at.line, at.text);
    if (st != ST_OK)
        plan_file_release(out);
    return st;
}

void plan_file_release(struct plan_file *f)
{
    json_decref(f->json);
    mem_free(f->kinds);
    mem_free(f->nodes);
    mem_free(f->times);
    mem_free(f->edges);
    mem_free(f->devices);
    mem_free(f->links);
    *f = (struct plan_file){.json = NULL};
}
