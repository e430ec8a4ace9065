/* TreeEnsembleRegressor and TreeEnsembleClassifier of ai.onnx.ml. The trees are laid out so that the two children of a node lie side by side. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/ops/ml.h"
#include "workers/engine/ops/wide.h"

enum mode { LEAF, LEQ, LT, GTE, GT, EQ, NEQ };
enum aggregate { SUM, AVERAGE, MIN, MAX };
struct split {
    float value;
    uint32_t feature;
    uint32_t yes, no;      /* nodes; of a leaf: its first weight, and how many */
    uint8_t mode, missing; /* missing: NaN takes `yes` */
};
struct weight {
    uint32_t target;
    float value;
};
struct trees {
    struct split *nodes;
    struct weight *weights;
    uint32_t *roots;
    uint32_t n_nodes, n_weights, n_roots, targets, features;
    enum aggregate aggregate;
    enum ml_post post;
    const float *base;
    uint32_t n_base;
    int classifier, binary, all_positive; /* binary: two classes, weights for one of them */
    struct ml_labels labels;
};

struct key {
    int64_t tree, node;
    uint32_t at;
};

static int by_key(const void *a, const void *b)
{
    const struct key *x = a, *y = b;
    return x->tree != y->tree ? (x->tree < y->tree ? -1 : 1) : x->node != y->node ? (x->node < y->node ? -1 : 1) : 0;
}

static int64_t find(const struct key *keys, uint32_t count, int64_t tree, int64_t node)
{
    struct key want = {tree, node, 0};
    const struct key *k = bsearch(&want, keys, count, sizeof *keys, by_key);
    return k ? (int64_t)k->at : -1;
}

/* A list of numbers, given as floats or as a tensor. */
static enum status numbers(const struct node *n, const char *name, float **out, uint32_t *count, struct err *e)
{
    char tensor[64];
    snprintf(tensor, sizeof tensor, "%s_as_tensor", name);
    const struct attr *a = node_attr(n, tensor);
    const float *v = node_floats(n, name, count);
    *out = NULL;
    if (a && a->kind == ATTR_TENSOR && a->tensors && tensor_count(a->tensors) > 0) {
        if (a->tensors->dtype == DT_STR)
            return node_error(n, e, "attribute '%s' holds strings", tensor);
        *count = (uint32_t)tensor_count(a->tensors);
    } else {
        a = NULL;
    }
    *out = mem_array(*count ? *count : 1, sizeof **out);
    if (!*out)
        return err_nomem(e, "the model's trees");
    for (uint32_t i = 0; i < *count; i++)
        (*out)[i] = a ? (float)wide_get(a->tensors->dtype, tensor_data(a->tensors), i) : v[i];
    return ST_OK;
}

static enum status lists(const struct node *n, const char *const *names, uint32_t count, const int64_t **out, uint32_t want, struct err *e)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t have;
        out[i] = node_ints(n, names[i], &have);
        if (have != want)
            return node_error(n, e, "attribute '%s' has %u values; %u are needed", names[i], have, want);
    }
    return ST_OK;
}

static int mode_of(const struct str *s)
{
    static const char *const names[] = {"LEAF", "BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"};
    for (int i = 0; i < 7; i++)
        if (s->len == strlen(names[i]) && !memcmp(s->data, names[i], s->len))
            return i;
    return -1;
}

/* Children, and roots: nodes that are nobody's child. A node with two parents could close a circle. */
static enum status link_nodes(const struct node *n, struct trees *t, const struct key *keys, const int64_t *const *ids, uint8_t *has_parent, struct err *e)
{
    for (uint32_t i = 0; i < t->n_nodes; i++) {
        if (t->nodes[i].mode == LEAF)
            continue;
        for (int k = 0; k < 2; k++) {
            int64_t at = find(keys, t->n_nodes, ids[0][i], ids[3 + k][i]);
            if (at < 0)
                return node_error(n, e, "node %lld of tree %lld has a child %lld that is not there", (long long)ids[1][i], (long long)ids[0][i],
                                  (long long)ids[3 + k][i]);
            if (has_parent[at] && (k == 0 || (uint32_t)at != t->nodes[i].yes))
                return node_error(n, e, "node %lld of tree %lld has two parents", (long long)ids[3 + k][i], (long long)ids[0][i]);
            has_parent[at] = 1;
            *(k ? &t->nodes[i].no : &t->nodes[i].yes) = (uint32_t)at;
        }
    }
    for (uint32_t i = 0; i < t->n_nodes; i++)
        if (!has_parent[i]) {
            for (uint32_t j = 0; j < t->n_roots; j++)
                if (ids[0][t->roots[j]] == ids[0][i])
                    return node_error(n, e, "tree %lld has two roots", (long long)ids[0][i]);
            t->roots[t->n_roots++] = i;
        }
    return ST_OK;
}

static enum status read_nodes(const struct node *n, struct trees *t, struct key *keys, uint8_t *has_parent, struct err *e)
{
    static const char *const names[] = {"nodes_treeids", "nodes_nodeids", "nodes_featureids", "nodes_truenodeids", "nodes_falsenodeids"};
    const int64_t *ids[5];
    uint32_t count, n_missing, n_modes;
    float *values;
    TRY(lists(n, names, 5, ids, t->n_nodes, e));
    const struct str *modes = ml_strings(n, "nodes_modes", &n_modes);
    const int64_t *missing = node_ints(n, "nodes_missing_value_tracks_true", &n_missing);
    if (n_modes != t->n_nodes || (n_missing && n_missing != t->n_nodes))
        return node_error(n, e, "%u modes for %u nodes", n_modes, t->n_nodes);
    enum status st = numbers(n, "nodes_values", &values, &count, e);
    if (st == ST_OK && count != t->n_nodes)
        st = node_error(n, e, "%u values for %u nodes", count, t->n_nodes);
    for (uint32_t i = 0; st == ST_OK && i < t->n_nodes; i++) {
        int mode = mode_of(&modes[i]);
        if (mode < 0)
            st = node_error(n, e, "node mode '%.*s' is not known", (int)(modes[i].len < 40 ? modes[i].len : 40), modes[i].data);
        else if (mode != LEAF && (ids[2][i] < 0 || ids[2][i] >= 1 << 24))
            st = node_error(n, e, "a node asks for feature %lld", (long long)ids[2][i]);
        if (st != ST_OK)
            break;
        t->nodes[i] = (struct split){.value = values[i], .feature = mode == LEAF ? 0 : (uint32_t)ids[2][i], .mode = (uint8_t)mode,
                                     .missing = missing && n_missing && missing[i]};
        if (mode != LEAF && t->nodes[i].feature >= t->features)
            t->features = t->nodes[i].feature + 1;
        keys[i] = (struct key){ids[0][i], ids[1][i], i};
    }
    mem_free(values);
    TRY(st);
    qsort(keys, t->n_nodes, sizeof *keys, by_key);
    for (uint32_t i = 1; i < t->n_nodes; i++)
        if (!by_key(&keys[i - 1], &keys[i]))
            return node_error(n, e, "node %lld of tree %lld is there twice", (long long)keys[i].node, (long long)keys[i].tree);
    return link_nodes(n, t, keys, ids, has_parent, e);
}

/* Weights, brought into the order of their leaves. */
static enum status read_weights(const struct node *n, struct trees *t, const struct key *keys, struct err *e)
{
    const char *names[] = {t->classifier ? "class_treeids" : "target_treeids", t->classifier ? "class_nodeids" : "target_nodeids",
                           t->classifier ? "class_ids" : "target_ids"};
    const int64_t *ids[3];
    uint32_t count;
    float *values;
    enum status st = numbers(n, t->classifier ? "class_weights" : "target_weights", &values, &count, e);
    if (st == ST_OK && count != t->n_weights)
        st = node_error(n, e, "%u weights; %u are needed", count, t->n_weights);
    if (st == ST_OK)
        st = lists(n, names, 3, ids, t->n_weights, e);
    t->all_positive = 1;
    int one_class = 1;
    for (int pass = 0; st == ST_OK && pass < 3; pass++) { /* count, place, fill */
        uint32_t at = 0;
        for (uint32_t i = 0; pass == 1 && i < t->n_nodes; i++)
            if (t->nodes[i].mode == LEAF) {
                t->nodes[i].yes = at;
                at += t->nodes[i].no;
                t->nodes[i].no = 0;
            }
        for (uint32_t i = 0; pass != 1 && i < t->n_weights; i++) {
            int64_t leaf = find(keys, t->n_nodes, ids[0][i], ids[1][i]);
            if (leaf < 0 || ids[2][i] < 0 || ids[2][i] >= t->targets) {
                st = node_error(n, e, "a weight is for node %lld of tree %lld and target %lld", (long long)ids[1][i], (long long)ids[0][i], (long long)ids[2][i]);
                break;
            }
            struct split *s = &t->nodes[leaf];
            if (s->mode != LEAF)
                continue; /* weights within a tree are never reached */
            if (pass == 2) {
                t->weights[s->yes + s->no] = (struct weight){(uint32_t)ids[2][i], values[i]};
                t->all_positive &= values[i] >= 0;
                one_class &= ids[2][i] == ids[2][0];
            }
            s->no++;
        }
    }
    t->binary = t->classifier && t->targets == 2 && one_class;
    mem_free(values);
    return st;
}

static enum status read_trees(struct node *n, struct trees *t, struct err *e)
{
    static const char *const aggregates[] = {"SUM", "AVERAGE", "MIN", "MAX"};
    const char *how = node_string(n, "aggregate_function", "SUM");
    uint32_t count;
    t->classifier = !strcmp(n->op, "TreeEnsembleClassifier");
    TRY(ml_post_of(n, &t->post, e));
    int known = -1;
    for (int i = 0; i < 4; i++)
        known = strcmp(how, aggregates[i]) ? known : i;
    if (known < 0)
        return node_error(n, e, "attribute 'aggregate_function' is '%s'", how);
    t->aggregate = (enum aggregate)known;
    if (t->classifier) {
        TRY(ml_labels_of(n, "classlabels_strings", "classlabels_int64s", &t->labels, e));
        t->targets = t->labels.count;
    } else {
        int64_t targets = node_int(n, "n_targets", 1);
        if (targets < 1 || targets > 1 << 20)
            return node_error(n, e, "attribute 'n_targets' is %lld", (long long)targets);
        t->targets = (uint32_t)targets;
    }
    (void)node_ints(n, "nodes_treeids", &t->n_nodes);
    (void)node_ints(n, t->classifier ? "class_ids" : "target_ids", &t->n_weights);
    if (t->n_nodes == 0)
        return node_error(n, e, "it has no trees");
    t->nodes = mem_array(t->n_nodes, sizeof *t->nodes);
    t->roots = mem_array(t->n_nodes, sizeof *t->roots);
    t->weights = mem_array(t->n_weights ? t->n_weights : 1, sizeof *t->weights);
    struct key *keys = mem_array(t->n_nodes, sizeof *keys);
    uint8_t *has_parent = mem_zalloc(t->n_nodes);
    enum status st = t->nodes && t->roots && t->weights && keys && has_parent ? ST_OK : err_nomem(e, "the model's trees");
    if (st == ST_OK)
        st = read_nodes(n, t, keys, has_parent, e);
    if (st == ST_OK)
        st = read_weights(n, t, keys, e);
    mem_free(keys);
    mem_free(has_parent);
    TRY(st);
    float *base;
    TRY(numbers(n, "base_values", &base, &count, e));
    t->base = base;
    t->n_base = count;
    if (count && count != t->targets && !(t->classifier && t->targets == 2 && count == 1))
        return node_error(n, e, "%u base values for %u targets", count, t->targets);
    return ST_OK;
}

static enum status trees_check(struct node *n, struct err *e)
{
    struct trees *t = mem_zalloc(sizeof *t);
    if (!t)
        return err_nomem(e, "the model's trees");
    n->state = t;
    return read_trees(n, t, e);
}

static void trees_release(struct node *n)
{
    struct trees *t = n->state;
    if (t) {
        mem_free(t->nodes);
        mem_free(t->roots);
        mem_free(t->weights);
        mem_free((void *)(uintptr_t)t->base);
    }
    release_state(n);
}

static enum status trees_shape(struct shaping *s, struct err *e)
{
    const struct trees *t = s->node->state;
    const struct type *x = &s->in[0];
    TRY(ml_numbers(s, 0, e));
    if (x->rank > 0 && dim_known(x->dims[x->rank - 1]) && x->dims[x->rank - 1] < t->features)
        return node_error(s->node, e, "its trees ask for %u features; its input has %lld", t->features, (long long)x->dims[x->rank - 1]);
    dim rows = ml_row_count(s, x);
    uint32_t scores = t->classifier ? 1 : 0;
    if (t->classifier)
        type_tensor(&s->out[0], ml_label_type(&t->labels), 1, &rows);
    if (shape_wants(s, scores))
        type_tensor(&s->out[scores], DT_F32, 2, (dim[]){rows, t->targets});
    return ST_OK;
}

static const struct split *leaf_of(const struct trees *t, uint32_t root, const float *x)
{
    const struct split *s = &t->nodes[root];
    while (s->mode != LEAF) {
        float v = x[s->feature];
        int yes;
        switch (s->mode) {
        case LEQ: yes = v <= s->value; break;
        case LT: yes = v < s->value; break;
        case GTE: yes = v >= s->value; break;
        case GT: yes = v > s->value; break;
        case EQ: yes = v == s->value; break;
        default: yes = v != s->value; break;
        }
        if (s->missing && v != v)
            yes = 1;
        s = &t->nodes[yes ? s->yes : s->no];
    }
    return s;
}

/* The sums (or least, largest) of one row; seen[i]: some weight was for target i. */
static void add_up(const struct trees *t, const float *x, double *sum, uint8_t *seen)
{
    memset(seen, 0, t->targets);
    for (uint32_t i = 0; i < t->targets; i++)
        sum[i] = 0;
    for (uint32_t i = 0; i < t->n_roots; i++) {
        const struct split *s = leaf_of(t, t->roots[i], x);
        for (const struct weight *w = t->weights + s->yes, *end = w + s->no; w < end; w++) {
            double v = (double)w->value;
            if (t->aggregate <= AVERAGE)
                sum[w->target] += v;
            else if (!seen[w->target] || (t->aggregate == MIN ? v < sum[w->target] : v > sum[w->target]))
                sum[w->target] = v;
            seen[w->target] = 1;
        }
    }
    for (uint32_t i = 0; t->aggregate == AVERAGE && i < t->targets; i++)
        sum[i] /= (double)t->n_roots;
}

/* Two classes: perhaps only one score, from which the other follows. Returns the class. */
static size_t two_classes(const struct trees *t, double *sum, uint8_t *seen, float *scores)
{
    int both = 1;
    if (t->n_base == 2) {
        if (seen[1]) {
            sum[1] = (double)t->base[1] + sum[0];
            sum[0] = -sum[1];
        } else {
            sum[0] += (double)t->base[0], sum[1] += (double)t->base[1];
            seen[1] = 1;
        }
    } else {
        if (t->n_base == 1)
            sum[0] += (double)t->base[0];
        both = seen[1];
    }
    double positive = both ? sum[1] : sum[0];
    size_t class;
    scores[0] = (float)sum[0], scores[1] = (float)sum[1];
    class = t->binary ? positive > (t->all_positive ? 0.5 : 0) : both ? sum[1] > sum[0] : positive > 0;
    if (both) {
        ml_post(t->post, 2, scores);
    } else if (t->post == ML_PROBIT) {
        scores[0] = scores[1] = ml_probit((float)sum[0]);
    } else if (t->binary && t->all_positive) {
        scores[1] = (float)sum[0], scores[0] = 1 - scores[1];
    } else {
        scores[1] = t->post == ML_LOGISTIC ? ml_logistic((float)sum[0]) : (float)sum[0];
        scores[0] = t->post == ML_LOGISTIC ? ml_logistic(-(float)sum[0]) : -(float)sum[0];
    }
    return class;
}

static enum status trees_run(struct run *r, const struct node *n, struct err *e)
{
    const struct trees *t = n->state;
    size_t rows, columns;
    const float *x;
    void *p;
    ml_rows(run_in(r, 0), &rows, &columns);
    TRY(wide_f32(r, run_in(r, 0), &x, e));
    TRY(run_scratch(r, t->targets * (sizeof(double) + sizeof(float) + 1) + 64, &p, e));
    double *sum = p;
    float *spare = (float *)(sum + t->targets);
    uint8_t *seen = (uint8_t *)(spare + t->targets);
    struct tensor *out = t->classifier ? (n->n_out > 1 ? run_out(r, 1) : NULL) : run_out(r, 0);
    for (size_t i = 0; i < rows; i++, x += columns) {
        float *scores = out ? (float *)tensor_data(out) + i * t->targets : spare;
        add_up(t, x, sum, seen);
        if (t->classifier && t->targets == 2) {
            ml_label(r, &t->labels, two_classes(t, sum, seen, scores), i);
            continue;
        }
        size_t best = 0;
        for (uint32_t j = 0; j < t->targets; j++) {
            scores[j] = (float)(sum[j] + (t->n_base ? (double)t->base[j] : 0));
            best = scores[j] > scores[best] ? j : best;
        }
        if (t->classifier)
            ml_label(r, &t->labels, best, i);
        ml_post(t->post, t->targets, scores);
    }
    return ST_OK;
}

#define TREES(op, out)                                                                                                           \
    {.domain = "ai.onnx.ml", .name = op, .since = 1, .until = OPSET_ANY, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = out, \
     .check = trees_check, .shape = trees_shape, .run = trees_run, .release = trees_release, .follow = ml_follow}
const struct op_def ops_trees[] = {TREES("TreeEnsembleRegressor", 1), TREES("TreeEnsembleClassifier", 2), {0}};
