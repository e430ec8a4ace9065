/* `ebb model test`: runs directories that hold model.onnx and test_data_set_N/{input,output}_K.pb, as the ONNX project makes them. */
#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/path.h"
#include "client/client.h"
#include "workers/engine/cpuinfo.h"
#include "workers/engine/onnx/onnx.h"

static int constants, symbolic, verbose, plain;
static const char *isa, *tolerance;
static double absolute = 1e-7;

enum verdict { PASSED, FAILED, UNSUPPORTED };
static const char *const verdicts[] = {"passed", "failed", "unsupported"};
struct tally {
    uint32_t count[3];
    const struct kernels *kernels;
};

/* Comparing: as ONNX's own runner, |a - b| <= 1e-7 + 1e-3 * |b| ----------------------------------------------------------------------------- */

static double element(const struct tensor *t, int64_t i)
{
    const void *p = tensor_data(t);
    switch (t->dtype) {
    case DT_F32:
        return ((const float *)p)[i];
    case DT_F64:
        return ((const double *)p)[i];
    case DT_F16:
        return f16_to_f32(((const uint16_t *)p)[i]);
    case DT_BF16:
        return bf16_to_f32(((const uint16_t *)p)[i]);
    case DT_U8:
    case DT_BOOL:
        return ((const uint8_t *)p)[i];
    case DT_I8:
        return ((const int8_t *)p)[i];
    case DT_U16:
        return ((const uint16_t *)p)[i];
    case DT_I16:
        return ((const int16_t *)p)[i];
    case DT_U32:
        return ((const uint32_t *)p)[i];
    case DT_I32:
        return ((const int32_t *)p)[i];
    case DT_U64:
        return (double)((const uint64_t *)p)[i];
    case DT_I64:
        return (double)((const int64_t *)p)[i];
    default:
        return NAN;
    }
}

static void shape_text(const struct tensor *t, char *buf, size_t cap)
{
    size_t n = (size_t)snprintf(buf, cap, "%s[", dtype_name(t->dtype));
    for (uint32_t i = 0; i < t->rank && n < cap; i++)
        n += (size_t)snprintf(buf + n, cap - n, "%s%lld", i ? "," : "", (long long)t->dims[i]);
    if (n < cap)
        snprintf(buf + n, cap - n, "]");
}

/* Where bfloat16 is expected, its last bit may differ: the makers of the tests cut it off instead of rounding. */
static int near(double got, double want, enum dtype d)
{
    if (isnan(want) || isnan(got))
        return isnan(want) && isnan(got);
    return got == want || fabs(got - want) <= absolute + (d == DT_BF16 ? 0x1p-7 : 1e-3) * fabs(want);
}

static int same_tensor(const struct tensor *got, const struct tensor *want, char *why, size_t cap)
{
    char a[200], b[200];
    shape_text(got, a, sizeof a);
    shape_text(want, b, sizeof b);
    if (strcmp(a, b) != 0) {
        snprintf(why, cap, "gives %s where %s is expected", a, b);
        return 0;
    }
    int64_t count = tensor_count(want), wrong = 0, first = 0;
    size_t each = dtype_bytes(want->dtype);
    for (int64_t i = 0; i < count; i++) {
        int same;
        if (want->dtype == DT_STR) {
            const struct str *x = (const struct str *)tensor_data(got) + i, *y = (const struct str *)tensor_data(want) + i;
            same = x->len == y->len && memcmp(x->data, y->data, x->len) == 0;
        } else if (dtype_is_float(want->dtype)) {
            same = near(element(got, i), element(want, i), want->dtype);
        } else {
            same = memcmp((const char *)tensor_data(got) + (size_t)i * each, (const char *)tensor_data(want) + (size_t)i * each, each) == 0;
        }
        if (!same && wrong++ == 0)
            first = i;
    }
    if (wrong && want->dtype == DT_STR)
        snprintf(why, cap, "%lld of %lld strings differ, the first at %lld: '%s' where '%s' is expected", (long long)wrong, (long long)count, (long long)first,
                 ((const struct str *)tensor_data(got))[first].data, ((const struct str *)tensor_data(want))[first].data);
    else if (wrong)
        snprintf(why, cap, "%lld of %lld elements differ, the first at %lld: %.9g where %.9g is expected", (long long)wrong, (long long)count,
                 (long long)first, element(got, first), element(want, first));
    return !wrong;
}

static int same_value(const struct value *got, const struct value *want, char *why, size_t cap)
{
    static const char *const kinds[] = {"nothing", "a tensor", "a sequence"};
    if (got->kind != want->kind) {
        snprintf(why, cap, "gives %s where %s is expected", kinds[got->kind], kinds[want->kind]);
        return 0;
    }
    if (want->kind == VALUE_TENSOR)
        return same_tensor(&got->tensor, &want->tensor, why, cap);
    if (want->kind == VALUE_SEQUENCE && got->count != want->count) {
        snprintf(why, cap, "gives %u tensors where %u are expected", got->count, want->count);
        return 0;
    }
    for (uint32_t i = 0; want->kind == VALUE_SEQUENCE && i < want->count; i++)
        if (!same_value(&got->items[i], &want->items[i], why, cap))
            return 0;
    return 1;
}

/* One data set ------------------------------------------------------------------------------------------------------------------------------ */

struct inputs {
    struct value *v;
    uint32_t count;
};

static enum status read_inputs(const struct graph *g, const char *set, struct inputs *in, struct err *e)
{
    in->v = mem_array(g->n_in + 1, sizeof *in->v);
    if (!in->v)
        return err_nomem(e, "inputs");
    for (; in->count < g->n_in; in->count++) {
        char *path = mem_printf("%s/input_%u.pb", set, in->count);
        enum status st = path ? onnx_read_value(path, &g->values[g->in[in->count]].type, &in->v[in->count], e) : err_nomem(e, "a path");
        mem_free(path);
        TRY(st);
    }
    return ST_OK;
}

/* Data that is not what its model declares: bfloat16 stands in files as uint16, and some tests bring other sizes than they say. The data counts. */
static void trust_data(struct graph *g, struct inputs *in)
{
    for (uint32_t i = 0; i < g->n_in; i++) {
        struct type *t = &g->values[g->in[i]].type;
        struct tensor *x = &in->v[i].tensor;
        if (in->v[i].kind != VALUE_TENSOR || t->kind != VALUE_TENSOR)
            continue;
        if (t->dtype == DT_BF16 && x->dtype == DT_U16)
            x->dtype = DT_BF16;
        for (int k = 0; t->rank == (int)x->rank && k < t->rank; k++)
            if (dim_known(t->dims[k]) && t->dims[k] != x->dims[k])
                t->dims[k] = x->dims[k];
        if (t->rank >= 0 && t->rank != (int)x->rank)
            t->rank = -1;
    }
}

/* --constants: each input that is a tensor becomes an initializer. */
static enum status make_constants(struct graph *g, struct inputs *in, struct err *e)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < g->n_in; i++) {
        struct value *v = &in->v[i];
        if (v->kind != VALUE_TENSOR || g->values[g->in[i]].type.optional) {
            struct value other = in->v[kept];
            in->v[kept] = *v;
            in->v[i] = other;
            g->in[kept++] = g->in[i];
            continue;
        }
        struct tensor t = {0};
        TRY(tensor_copy(&t, v->tensor.dtype, v->tensor.rank, v->tensor.dims, tensor_data(&v->tensor), e));
        g->values[g->in[i]].type.kind = VALUE_TENSOR;
        char *name = g->values[g->in[i]].name;
        int32_t c = graph_constant(g, name, t.dtype, t.rank, t.dims, tensor_data(&t));
        tensor_release(&t);
        if (c < 0)
            return err_nomem(e, "a constant");
    }
    g->n_in = kept;
    return ST_OK;
}

/* --symbolic: nothing is known of sizes when the model is loaded. */
static void forget_sizes(struct graph *g)
{
    for (uint32_t i = 0; i < g->n_in; i++)
        for (int k = 0; k < g->values[g->in[i]].type.rank; k++)
            g->values[g->in[i]].type.dims[k] = dim_fresh(g->syms);
}

static enum status compare(const struct run *r, const struct onnx_model *m, const char *set, int *same, char *why, size_t cap, struct err *e)
{
    *same = 1;
    for (uint32_t i = 0; i < m->graph->n_out && *same; i++) {
        char *path = mem_printf("%s/output_%u.pb", set, i), what[512];
        struct value want = {0};
        if (!path)
            return err_nomem(e, "a path");
        if (i && !path_exists(path)) { /* an output that the test does not look at */
            mem_free(path);
            continue;
        }
        enum status st = onnx_read_value(path, &m->outputs[i], &want, e);
        mem_free(path);
        TRY(st);
        if (want.kind == VALUE_TENSOR && want.tensor.dtype == DT_U16 && m->outputs[i].dtype == DT_BF16)
            want.tensor.dtype = DT_BF16;
        *same = same_value(run_result(r, i), &want, what, sizeof what);
        if (!*same)
            snprintf(why, cap, "output '%s' %s", m->graph->values[m->graph->out[i]].name, what);
        onnx_value_free(&want);
    }
    return ST_OK;
}

/* Twice, so that what a run keeps for the next is used. */
static enum status run_twice(const struct onnx_model *m, struct run *r, const struct inputs *in, const char *set, int *same, char *why, size_t cap, struct err *e)
{
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < m->graph->n_in; i++)
            TRY(run_set_value(r, i, &in->v[i], e));
        TRY(run_graph(r, e));
        TRY(compare(r, m, set, same, why, cap, e));
        if (!*same)
            break;
    }
    return ST_OK;
}

/* A message about what this version cannot do, not about what is wrong. */
static int is_unsupported(const char *text)
{
    return strstr(text, "not supported") || strstr(text, "does not train");
}

static enum verdict test_set(const char *model, const char *set, const struct kernels *k, char *why, size_t cap)
{
    struct onnx_model *m = NULL;
    struct run *r = NULL;
    struct inputs in = {0};
    struct err e;
    int same = 0;
    enum status st = onnx_load(model, k, &m, &e);
    if (st == ST_OK)
        st = read_inputs(m->graph, set, &in, &e);
    if (st == ST_OK)
        trust_data(m->graph, &in);
    if (st == ST_OK && symbolic)
        forget_sizes(m->graph);
    if (st == ST_OK && constants)
        st = make_constants(m->graph, &in, &e);
    if (st == ST_OK)
        st = graph_finish(m->graph, &(struct graph_opts){.no_fuse = plain}, &e);
    if (st == ST_OK)
        st = run_new(m->graph, &r, &e);
    if (st == ST_OK)
        st = run_twice(m, r, &in, set, &same, why, cap, &e);
    enum verdict verdict = st == ST_OK && same ? PASSED : st != ST_OK && is_unsupported(e.text) ? UNSUPPORTED : FAILED;
    if (st != ST_OK) {
        const char *text = e.text; /* the path in front is said already */
        size_t n = strlen(model);
        if (text[0] == '\'' && strncmp(text + 1, model, n) == 0 && strncmp(text + 1 + n, "': ", 3) == 0)
            text += n + 4;
        snprintf(why, cap, "%s", text);
    }
    run_free(r);
    for (uint32_t i = 0; i < in.count; i++)
        onnx_value_free(&in.v[i]);
    mem_free(in.v);
    onnx_free(m);
    return verdict;
}

/* Directories ------------------------------------------------------------------------------------------------------------------------------- */

static int report(struct tally *t, const char *dir, enum verdict v, const char *why)
{
    t->count[v]++;
    if (common.json)
        return print_json(json_pack("{s:s, s:s, s:s}", "test", dir, "result", verdicts[v], "why", why));
    if (v != PASSED || verbose)
        printf("%-11s  %s%s%s\n", verdicts[v], path_base(dir), why[0] ? ": " : "", why);
    return EXIT_DONE;
}

/* Every data set of one directory; the worst verdict counts. */
static enum status test_dir(struct tally *t, const char *dir, struct err *e)
{
    char why[1200] = "no test data";
    char *model = mem_printf("%s/model.onnx", dir);
    enum verdict worst = FAILED;
    if (!model)
        return err_nomem(e, "a path");
    for (int i = 0;; i++) {
        char *set = mem_printf("%s/test_data_set_%d", dir, i);
        if (!set || !path_exists(set)) {
            mem_free(set);
            break;
        }
        if (i == 0)
            worst = PASSED, why[0] = '\0';
        enum verdict v = test_set(model, set, t->kernels, why, sizeof why);
        mem_free(set);
        if (v != PASSED) {
            worst = v;
            break;
        }
    }
    mem_free(model);
    report(t, dir, worst, why);
    return ST_OK;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static enum status test_tree(struct tally *t, const char *dir, int depth, struct err *e)
{
    char *model = mem_printf("%s/model.onnx", dir);
    if (!model)
        return err_nomem(e, "a path");
    int leaf = path_exists(model);
    mem_free(model);
    if (leaf)
        return test_dir(t, dir, e);
    DIR *d = opendir(dir);
    char **names = NULL;
    size_t cap = 0, count = 0;
    enum status st = ST_OK;
    if (!d)
        return err_set(e, ST_USER, "there is no directory '%s'", dir);
    for (struct dirent *entry; st == ST_OK && (entry = readdir(d));) {
        if (entry->d_name[0] == '.' || entry->d_type == DT_REG)
            continue;
        if (mem_grow((void **)&names, &cap, count, sizeof *names) != 0 || !(names[count] = mem_printf("%s/%s", dir, entry->d_name)))
            st = err_nomem(e, "names");
        else
            count++;
    }
    closedir(d);
    if (count)
        qsort(names, count, sizeof *names, by_text);
    for (size_t i = 0; i < count; i++) {
        if (st == ST_OK && depth < 4)
            st = test_tree(t, names[i], depth + 1, e);
        mem_free(names[i]);
    }
    mem_free(names);
    return st;
}

static int run_test(int operand_count, char **operands)
{
    struct tally t = {0};
    struct err e;
    char *end = NULL;
    if (tolerance && (absolute = strtod(tolerance, &end), *end || end == tolerance || !(absolute >= 0 && absolute < 1e9)))
        return fail_with(ST_USER, "--tolerance '%s' is no number", tolerance);
    enum status st = cpu_kernels(isa, &t.kernels, &e);
    for (int i = 0; i < operand_count && st == ST_OK; i++)
        st = test_tree(&t, operands[i], 0, &e);
    if (st != ST_OK)
        return fail(&e);
    if (!t.count[PASSED] && !t.count[FAILED] && !t.count[UNSUPPORTED])
        return fail_with(ST_USER, "there is no model.onnx in '%s'; a test is a directory with model.onnx and test_data_set_0/", operands[0]);
    if (common.json)
        print_json(json_pack("{s:I, s:I, s:I}", "passed", (json_int_t)t.count[PASSED], "failed", (json_int_t)t.count[FAILED], "unsupported",
                             (json_int_t)t.count[UNSUPPORTED]));
    else
        printf("%u passed, %u failed, %u unsupported\n", t.count[PASSED], t.count[FAILED], t.count[UNSUPPORTED]);
    return t.count[FAILED] || t.count[UNSUPPORTED] ? EXIT_ENV : EXIT_DONE;
}

static const struct opt test_opts[] = {
    {.name = "constants", .type = OPT_FLAG, .value = &constants, .help = "make each input a constant of the model first"},
    {.name = "symbolic", .type = OPT_FLAG, .value = &symbolic, .help = "forget the sizes of inputs first: they are told when the model runs"},
    {.name = "plain", .type = OPT_FLAG, .value = &plain, .help = "leave ops as they are: none are put together"},
    {.name = "isa", .type = OPT_TEXT, .value = &isa, .arg = "NAME", .help = "auto, avx512, avx2 or generic (default: auto)"},
    {.name = "all", .type = OPT_FLAG, .value = &verbose, .help = "name the tests that passed too"},
    {.name = "tolerance", .type = OPT_TEXT, .value = &tolerance, .arg = "X", .help = "what results may differ by, besides a thousandth (default: 1e-7)"},
    ROW_JSON,
};
static const struct opt_command test_table = {.name = "ebb model test", .operands = "DIR...", .summary = "run ONNX test directories",
                                              .details = "A test is a directory with model.onnx and test_data_set_N/{input,output}_K.pb; a directory of such is searched for them. "
                                                         "Results may differ by 1e-7 and a thousandth of what is expected, as ONNX's own runner allows.",
                                              .examples = "  ebb model test /usr/share/libonnx-testdata/data/simple", .opts = test_opts, .opt_count = COUNT(test_opts),
                                              .operands_min = 1, .operands_max = 1000};
const struct command command_model_test = {.name = "model test", .group = "On this machine", .table = &test_table, .run = run_test};
