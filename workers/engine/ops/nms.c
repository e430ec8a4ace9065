/* NonMaxSuppression: for each batch and class the boxes by falling score, without those that overlap a better one too much. */
#include <stdlib.h>

#include "workers/engine/ops/args.h"

static enum status shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPE(F32), e));
    TRY(arg_type(s, 1, TYPE(F32), e));
    const struct type *b = &s->in[0], *c = &s->in[1];
    if (arg_there(s, 2))
        TRY(arg_type(s, 2, TYPE(I64), e));
    for (uint32_t i = 3; i < 5; i++)
        if (arg_there(s, i))
            TRY(arg_type(s, i, TYPE(F32), e));
    if ((b->rank >= 0 && b->rank != 3) || (c->rank >= 0 && c->rank != 3))
        return node_error(s->node, e, "boxes and scores of 3 axes are wanted, not of %d and %d", b->rank, c->rank);
    if (b->rank == 3 && dim_known(b->dims[2]) && b->dims[2] != 4)
        return node_error(s->node, e, "a box has %lld numbers instead of 4", (long long)b->dims[2]);
    if (b->rank == 3 && c->rank == 3 &&
        ((dim_known(b->dims[0]) && dim_known(c->dims[0]) && b->dims[0] != c->dims[0]) ||
         (dim_known(b->dims[1]) && dim_known(c->dims[2]) && b->dims[1] != c->dims[2])))
        return node_error(s->node, e, "boxes and scores do not go together");
    type_unknown(s, &s->out[0], DT_I64, 2);
    s->out[0].dims[1] = 3;
    return ST_OK;
}

struct scored {
    float score;
    int64_t box;
};

static int better(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score ? 1 : -1) : (x->box > y->box) - (x->box < y->box);
}

struct corners {
    float y1, x1, y2, x2;
};

static struct corners corners_of(const float *b, int center)
{
    if (center)
        return (struct corners){b[1] - b[3] / 2, b[0] - b[2] / 2, b[1] + b[3] / 2, b[0] + b[2] / 2};
    return (struct corners){b[0] < b[2] ? b[0] : b[2], b[1] < b[3] ? b[1] : b[3], b[0] < b[2] ? b[2] : b[0], b[1] < b[3] ? b[3] : b[1]};
}

static int overlap(struct corners a, struct corners b, float limit)
{
    float h = (a.y2 < b.y2 ? a.y2 : b.y2) - (a.y1 > b.y1 ? a.y1 : b.y1);
    float w = (a.x2 < b.x2 ? a.x2 : b.x2) - (a.x1 > b.x1 ? a.x1 : b.x1);
    if (h <= 0 || w <= 0)
        return 0;
    float both = h * w, area_a = (a.y2 - a.y1) * (a.x2 - a.x1), area_b = (b.y2 - b.y1) * (b.x2 - b.x1);
    float either = area_a + area_b - both;
    return area_a > 0 && area_b > 0 && either > 0 && both / either > limit;
}

static enum status run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *tb = run_in(r, 0), *ts = run_in(r, 1), *opt[3];
    for (uint32_t i = 0; i < 3; i++) {
        opt[i] = node_has(n, i + 2) ? run_in(r, i + 2) : NULL;
        if (opt[i] && tensor_count(opt[i]) < 1)
            opt[i] = NULL;
    }
    if (tb->dims[0] != ts->dims[0] || tb->dims[1] != ts->dims[2] || tb->dims[2] != 4)
        return node_error(n, e, "boxes and scores do not go together");
    int64_t most = opt[0] ? tensor_i64(opt[0], 0) : 0, boxes = tb->dims[1], classes = ts->dims[1];
    float limit = opt[1] ? (float)tensor_f64(opt[1], 0) : 0, least = opt[2] ? (float)tensor_f64(opt[2], 0) : 0;
    int center = node_int(n, "center_point_box", 0) != 0;
    most = most < 0 ? 0 : most > boxes ? boxes : most;
    void *p, *q, *c;
    TRY(run_scratch(r, (size_t)boxes * sizeof(struct scored), &p, e));
    TRY(run_scratch(r, (size_t)(tb->dims[0] * classes * most) * 3 * sizeof(int64_t), &q, e));
    TRY(run_scratch(r, (size_t)(most + 1) * sizeof(struct corners), &c, e));
    struct scored *list = p;
    struct corners *kept = c;
    int64_t *found = q, count = 0;
    for (int64_t b = 0; b < tb->dims[0]; b++)
        for (int64_t k = 0; k < classes; k++) {
            const float *score = (const float *)tensor_data(ts) + (b * classes + k) * boxes;
            const float *box = (const float *)tensor_data(tb) + b * boxes * 4;
            int64_t candidates = 0, taken = 0;
            for (int64_t i = 0; i < boxes; i++)
                if (!opt[2] || score[i] > least)
                    list[candidates++] = (struct scored){score[i], i};
            qsort(list, (size_t)candidates, sizeof *list, better);
            for (int64_t i = 0; i < candidates && taken < most; i++) {
                struct corners x = corners_of(box + list[i].box * 4, center);
                int64_t j = 0;
                while (j < taken && !overlap(x, kept[j], limit))
                    j++;
                if (j < taken)
                    continue;
                kept[taken++] = x;
                found[count * 3] = b;
                found[count * 3 + 1] = k;
                found[count * 3 + 2] = list[i].box;
                count++;
            }
        }
    TRY(run_make(r, 0, DT_I64, 2, (int64_t[]){count, 3}, e));
    if (run_out(r, 0))
        for (int64_t i = 0; i < count * 3; i++)
            ((int64_t *)tensor_data(run_out(r, 0)))[i] = found[i];
    return ST_OK;
}

const struct op_def ops_nms[] = {
    {.domain = "", .name = "NonMaxSuppression", .since = 10, .until = OPSET_ANY, .min_in = 2, .max_in = 5, .min_out = 1, .max_out = 1,
     .flags = OP_MAKES, .shape = shape, .run = run},
    {0},
};
