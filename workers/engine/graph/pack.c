#include "workers/engine/graph/pack.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

/* What a value is to a packed run. */
enum seen {
    SEEN_FREE,   /* depends on neither batch nor length */
    SEEN_TOKENS, /* axes 0 and 1 are batch and length, each token by itself; batch may be 1 (positions) */
    SEEN_SEQS,   /* axis 0 is batch, each text by itself */
    SEEN_SIZES,  /* a shape: its elements are sizes */
    SEEN_PLACES, /* made of places in a text alone (ebb.Range): along each axis of a text's length an index keeps what it has whatever the length is, so that all
                    texts of a run can take the longest one's */
    SEEN_PLACE_SIZES, /* a shape, of such */
    SEEN_OTHER,
};

static int is_ebb(const struct node *n, const char *op)
{
    return strcmp(n->domain, "ebb") == 0 && strcmp(n->op, op) == 0;
}

static int is_shape(const struct type *t)
{
    return t->kind == VALUE_TENSOR && t->values != NULL;
}

static int is_open(const struct type *t)
{
    for (int i = 0; i < t->rank; i++)
        if (!dim_known(t->dims[i]))
            return 1;
    return t->rank < 0;
}

/* The elements of a shape are plain numbers. */
static int is_fixed(const struct type *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= dim_known(t->dims[i]) ? t->dims[i] : 0;
    for (int64_t i = 0; i < n; i++)
        if (!dim_known(t->values[i]))
            return 0;
    return 1;
}

/* What is made of places, and of nothing that differs between texts, stays that: each axis of the length becomes one. */
static enum seen of_places(const struct shaping *s, const enum seen *in, dim length)
{
    for (uint32_t i = 0; i < s->n_in; i++)
        if (s->in[i].kind != VALUE_NONE && in[i] != SEEN_PLACES && in[i] != SEEN_PLACE_SIZES && in[i] != SEEN_FREE)
            return SEEN_OTHER;
    if (s->node->n_out == 1 && is_shape(&s->out[0]))
        return is_fixed(&s->out[0]) ? SEEN_FREE : SEEN_PLACE_SIZES;
    int fills = strcmp(s->node->op, "ConstantOfShape") == 0 && !*s->node->domain;
    for (uint32_t o = 0; o < s->node->n_out; o++) {
        const struct type *t = &s->out[o];
        if (s->node->out[o] < 0)
            continue;
        if (t->kind != VALUE_TENSOR || t->rank < 0 || (!fills && !s->node->def->follow))
            return SEEN_OTHER;
        for (int a = 0; a < t->rank; a++)
            if (!dim_known(t->dims[a]) && t->dims[a] != length)
                return SEEN_OTHER;
        for (uint32_t i = 0; i < s->n_in && !fills; i++)
            for (int a = 0; s->in[i].kind != VALUE_NONE && in[i] == SEEN_PLACES && a < s->in[i].rank; a++) {
                int to = s->in[i].dims[a] == length ? s->node->def->follow(s, i, (uint32_t)a, o) : 0;
                if (to < 0 || to > t->rank || (s->in[i].dims[a] == length && t->dims[to] != length))
                    return SEEN_OTHER;
            }
    }
    return SEEN_PLACES;
}

static enum seen of_node(const struct shaping *s, const enum seen *in, dim batch, dim length)
{
    const struct node *n = s->node;
    int tokens = 0, seqs = 0, sizes = 0, places = 0;
    for (uint32_t i = 0; i < s->n_in; i++) {
        if (s->in[i].kind == VALUE_NONE)
            continue;
        tokens += in[i] == SEEN_TOKENS;
        seqs += in[i] == SEEN_SEQS;
        sizes += in[i] == SEEN_SIZES;
        places += in[i] == SEEN_PLACES || in[i] == SEEN_PLACE_SIZES;
        if (in[i] == SEEN_OTHER)
            return SEEN_OTHER;
    }
    if (is_ebb(n, "Range"))
        return tokens ? SEEN_PLACES : SEEN_OTHER;
    if (is_ebb(n, "Attention") && places) /* the last input is what is added to the scores */
        return places == 1 && in[n->n_in - 1] == SEEN_PLACES && tokens == (int)n->n_in - 1 ? SEEN_TOKENS : SEEN_OTHER;
    if (is_ebb(n, "Attention"))
        return tokens == (int)n->n_in && (n->n_in == 1 || n->n_in == 3) ? SEEN_TOKENS : SEEN_OTHER;
    if (places)
        return of_places(s, in, length);
    if (strcmp(n->op, "DynamicQuantizeMatMul") == 0) { /* it quantises each text by itself; weights are the same for all */
        for (uint32_t i = 1; i < s->n_in; i++)
            if (s->in[i].kind != VALUE_NONE && !s->constants[i])
                return SEEN_OTHER;
        return (tokens && s->in[0].rank > 2) || (seqs && s->in[0].rank > 1) ? in[0] : SEEN_OTHER;
    }
    if (n->n_out == 1 && is_shape(&s->out[0]))
        return is_fixed(&s->out[0]) ? SEEN_FREE : SEEN_SIZES;
    if (is_ebb(n, "Positions") || is_ebb(n, "SeqCumSum"))
        return tokens ? SEEN_TOKENS : SEEN_OTHER;
    if (is_ebb(n, "SeqPool"))
        return in[0] == SEEN_TOKENS ? SEEN_SEQS : SEEN_OTHER;
    if (!tokens && !seqs) {
        for (uint32_t o = 0; o < n->n_out; o++)
            if (n->out[o] >= 0 && is_open(&s->out[o]))
                return SEEN_OTHER;
        return sizes ? SEEN_OTHER : SEEN_FREE;
    }
    if ((tokens && seqs) || !n->def->follow)
        return SEEN_OTHER;
    for (uint32_t i = 0; i < s->n_in; i++) {
        if (s->in[i].kind == VALUE_NONE || in[i] == SEEN_FREE)
            continue;
        if (in[i] == SEEN_SIZES && (seqs || !is_shape(&s->in[i])))
            return SEEN_OTHER; /* a shape says 1 and the number of tokens; of the number of texts it knows nothing */
        for (uint32_t o = 0; o < n->n_out && in[i] != SEEN_SIZES; o++) {
            if (n->out[o] < 0)
                continue;
            const struct type *t = &s->out[o];
            if (t->kind != VALUE_TENSOR || t->rank < (tokens ? 2 : 1))
                return SEEN_OTHER;
            /* positions are [1, length, ...]: the same rows for each text */
            int shared = tokens && s->in[i].rank == t->rank && s->in[i].dims[0] == 1;
            if ((!shared && n->def->follow(s, i, 0, o) != 0) || (tokens && n->def->follow(s, i, 1, o) != 1))
                return SEEN_OTHER;
            if (t->dims[0] != batch && !(tokens && t->dims[0] == 1))
                return SEEN_OTHER;
            if (tokens && t->dims[1] != length)
                return SEEN_OTHER;
        }
    }
    return tokens ? SEEN_TOKENS : SEEN_SEQS;
}

static int prove(const struct graph *g, enum seen *seen, enum seen *in, struct type *types, const struct tensor **constants, char *why)
{
    if (!g->n_in) {
        snprintf(why, PACK_WHY_MAX, "it has no inputs");
        return 0;
    }
    dim batch = 0, length = 0;
    for (uint32_t i = 0; i < g->n_in; i++) {
        const struct type *t = &g->values[g->in[i]].type;
        if (i == 0 && t->kind == VALUE_TENSOR && t->rank == 2) {
            batch = t->dims[0];
            length = t->dims[1];
        }
        if (t->kind != VALUE_TENSOR || t->rank != 2 || dim_known(t->dims[0]) || dim_known(t->dims[1]) || t->dims[0] == t->dims[1] || t->dims[0] != batch ||
            t->dims[1] != length) {
            snprintf(why, PACK_WHY_MAX, "input '%.100s' does not have the sizes [batch, length]", g->values[g->in[i]].name);
            return 0;
        }
        seen[g->in[i]] = SEEN_TOKENS;
    }
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct node *n = g->nodes[i];
        struct shaping s = {.syms = g->syms, .node = n, .n_in = n->n_in, .n_out = n->n_out, .in = types, .out = types + n->n_in, .constants = constants};
        for (uint32_t k = 0; k < n->n_in; k++) {
            in[k] = n->in[k] >= 0 ? seen[n->in[k]] : SEEN_FREE;
            types[k] = n->in[k] >= 0 ? g->values[n->in[k]].type : (struct type){0};
            constants[k] = n->in[k] >= 0 && g->values[n->in[k]].constant.buffer ? &g->values[n->in[k]].constant : NULL;
        }
        for (uint32_t k = 0; k < n->n_out; k++)
            types[n->n_in + k] = n->out[k] >= 0 ? g->values[n->out[k]].type : (struct type){0};
        enum seen r = of_node(&s, in, batch, length);
        if (r == SEEN_OTHER) {
            snprintf(why, PACK_WHY_MAX, "node '%.100s' (%s) does not keep tokens apart", n->name, n->op);
            return 0;
        }
        for (uint32_t k = 0; k < n->n_out; k++)
            if (n->out[k] >= 0)
                seen[n->out[k]] = r;
    }
    return 1;
}

/* all: of each value, or NULL. */
static int follow_all(const struct graph *g, enum packed_kind *kinds, enum packed_kind *all, char why[PACK_WHY_MAX])
{
    static const enum packed_kind names[] = {[SEEN_FREE] = PACKED_SAME, [SEEN_TOKENS] = PACKED_TOKENS, [SEEN_SEQS] = PACKED_SEQS, [SEEN_SIZES] = PACKED_SIZES,
                                             [SEEN_PLACES] = PACKED_PLACES, [SEEN_PLACE_SIZES] = PACKED_PLACE_SIZES, [SEEN_OTHER] = PACKED_NO};
    uint32_t most_in = 1, most_out = 1;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        most_in = g->nodes[i]->n_in > most_in ? g->nodes[i]->n_in : most_in;
        most_out = g->nodes[i]->n_out > most_out ? g->nodes[i]->n_out : most_out;
    }
    enum seen *seen = mem_array(g->n_values + 1, sizeof *seen), *in = mem_array(most_in, sizeof *in);
    struct type *types = mem_array(most_in + most_out, sizeof *types);
    const struct tensor **constants = mem_array(most_in, sizeof *constants);
    int r = -1;
    if (seen && in && types && constants) {
        for (uint32_t i = 0; i < g->n_values; i++)
            seen[i] = SEEN_FREE;
        r = prove(g, seen, in, types, constants, why);
    }
    for (uint32_t v = 0; all && v < g->n_values && r == 1; v++)
        all[v] = names[seen[v]];
    for (uint32_t i = 0; i < g->n_out && r == 1 && kinds; i++) {
        enum seen s = seen[g->out[i]];
        kinds[i] = s == SEEN_TOKENS ? PACKED_TOKENS : s == SEEN_SEQS ? PACKED_SEQS : PACKED_NO;
        if (kinds[i] == PACKED_NO) {
            snprintf(why, PACK_WHY_MAX, "output '%.100s' is of neither tokens nor texts", g->values[g->out[i]].name);
            r = 0;
        }
    }
    mem_free(seen);
    mem_free(in);
    mem_free(types);
    mem_free(constants);
    return r;
}

int pack_prove(const struct graph *g, enum packed_kind *kinds, char why[PACK_WHY_MAX])
{
    return follow_all(g, kinds, NULL, why);
}

int pack_values(const struct graph *g, enum packed_kind *of)
{
    char why[PACK_WHY_MAX];
    return follow_all(g, NULL, of, why);
}
