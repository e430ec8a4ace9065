/* LinearRegressor, LinearClassifier, SVMRegressor and SVMClassifier of ai.onnx.ml. Sums in double, rounded once. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/ops/ml.h"
#include "workers/engine/ops/wide.h"

struct linear_model {
    enum ml_post post;
    int classifier;
    struct ml_labels labels;
    uint32_t targets, features, n_intercepts;
    const float *coefficients, *intercepts;
};

static enum status linear_check(struct node *n, struct err *e)
{
    struct linear_model *m = mem_zalloc(sizeof *m);
    uint32_t count;
    if (!m)
        return err_nomem(e, "the model's graph");
    n->state = m;
    TRY(ml_post_of(n, &m->post, e));
    m->classifier = !strcmp(n->op, "LinearClassifier");
    m->coefficients = node_floats(n, "coefficients", &count);
    m->intercepts = node_floats(n, "intercepts", &m->n_intercepts);
    if (m->classifier) {
        TRY(ml_labels_of(n, "classlabels_strings", "classlabels_ints", &m->labels, e));
        m->targets = m->n_intercepts ? m->n_intercepts : m->labels.count;
        if (m->targets != m->labels.count && !(m->targets == 1 && m->labels.count == 2))
            return node_error(n, e, "%u intercepts for %u classes", m->targets, m->labels.count);
    } else {
        int64_t targets = node_int(n, "targets", 1);
        if (targets < 1 || targets > 1 << 20)
            return node_error(n, e, "attribute 'targets' is %lld", (long long)targets);
        m->targets = (uint32_t)targets;
        if (m->n_intercepts && m->n_intercepts != m->targets)
            return node_error(n, e, "%u intercepts for %u targets", m->n_intercepts, m->targets);
    }
    if (!count || count % m->targets)
        return node_error(n, e, "%u coefficients for %u targets", count, m->targets);
    m->features = count / m->targets;
    return ST_OK;
}

static uint32_t columns_of(const struct linear_model *m)
{
    return m->classifier ? m->labels.count : m->targets;
}

static enum status linear_shape(struct shaping *s, struct err *e)
{
    const struct linear_model *m = s->node->state;
    const struct type *x = &s->in[0];
    TRY(ml_numbers(s, 0, e));
    if (x->rank > 0 && dim_known(x->dims[x->rank - 1]) && x->dims[x->rank - 1] != m->features)
        return node_error(s->node, e, "its coefficients are for %u features; its input has %lld", m->features, (long long)x->dims[x->rank - 1]);
    dim rows = ml_row_count(s, x);
    if (m->classifier)
        type_tensor(&s->out[0], ml_label_type(&m->labels), 1, &rows);
    if (shape_wants(s, m->classifier ? 1 : 0))
        type_tensor(&s->out[m->classifier ? 1 : 0], DT_F32, 2, (dim[]){rows, columns_of(m)});
    return ST_OK;
}

static enum status linear_run(struct run *r, const struct node *n, struct err *e)
{
    const struct linear_model *m = n->state;
    size_t rows, columns, out = columns_of(m);
    const float *x;
    void *spare;
    ml_rows(run_in(r, 0), &rows, &columns);
    TRY(wide_f32(r, run_in(r, 0), &x, e));
    TRY(run_scratch(r, (out + 1) * sizeof(float), &spare, e));
    struct tensor *y = m->classifier ? (n->n_out > 1 ? run_out(r, 1) : NULL) : run_out(r, 0);
    for (size_t i = 0; i < rows; i++, x += columns) {
        float *scores = y ? (float *)tensor_data(y) + i * out : spare;
        size_t best = 0;
        for (uint32_t t = 0; t < m->targets; t++) {
            double sum = 0;
            for (uint32_t j = 0; j < m->features; j++)
                sum += (double)x[j] * (double)m->coefficients[t * m->features + j];
            scores[t] = (float)(sum + (m->n_intercepts ? (double)m->intercepts[t] : 0));
            best = scores[t] > scores[best] ? t : best;
        }
        if (m->targets < out) { /* one score for two classes */
            float v = scores[0];
            best = v > 0;
            scores[1] = m->post == ML_LOGISTIC ? ml_logistic(v) : v;
            scores[0] = m->post == ML_LOGISTIC ? ml_logistic(-v) : 1 - v;
        } else {
            ml_post(m->post, out, scores);
        }
        if (m->classifier)
            ml_label(r, &m->labels, best, i);
    }
    return ST_OK;
}

/* Support vectors ------------------------------------------------------------------------------------------------------------------------------------ */

enum kernel { LINEAR, POLY, RBF, SIGMOID };
struct svm {
    enum ml_post post;
    enum kernel kernel;
    double gamma, coef0, degree;
    int classifier, one_class;
    struct ml_labels labels;
    uint32_t features, vectors, n_rho, n_coefficients;
    const float *support, *coefficients, *rho, *prob_a, *prob_b;
    const int64_t *per_class;
};

static enum status svm_kernel(const struct node *n, struct svm *m, struct err *e)
{
    static const char *const names[] = {"LINEAR", "POLY", "RBF", "SIGMOID"};
    const char *kernel = node_string(n, "kernel_type", "LINEAR");
    uint32_t count;
    int known = -1;
    for (int i = 0; i < 4; i++)
        known = strcmp(kernel, names[i]) ? known : i;
    if (known < 0)
        return node_error(n, e, "attribute 'kernel_type' is '%s'", kernel);
    m->kernel = (enum kernel)known;
    const float *p = node_floats(n, "kernel_params", &count);
    if (count != 0 && count != 3)
        return node_error(n, e, "attribute 'kernel_params' has %u values; 3 are needed", count);
    if (p)
        m->gamma = (double)p[0], m->coef0 = (double)p[1], m->degree = (double)p[2];
    return ST_OK;
}

static enum status svm_check(struct node *n, struct err *e)
{
    struct svm *m = mem_zalloc(sizeof *m);
    uint32_t n_support, n_a, n_b, n_per;
    if (!m)
        return err_nomem(e, "the model's graph");
    n->state = m;
    TRY(ml_post_of(n, &m->post, e));
    TRY(svm_kernel(n, m, e));
    m->classifier = !strcmp(n->op, "SVMClassifier");
    m->support = node_floats(n, "support_vectors", &n_support);
    m->coefficients = node_floats(n, "coefficients", &m->n_coefficients);
    m->rho = node_floats(n, "rho", &m->n_rho);
    m->prob_a = node_floats(n, "prob_a", &n_a);
    m->prob_b = node_floats(n, "prob_b", &n_b);
    m->per_class = node_ints(n, "vectors_per_class", &n_per);
    m->one_class = node_int(n, "one_class", 0) != 0;
    if (!m->n_coefficients || !m->n_rho)
        return node_error(n, e, "it has no coefficients or no rho");
    if (!m->classifier) {
        int64_t supports = node_int(n, "n_supports", 0);
        if (supports < 0 || supports > INT32_MAX)
            return node_error(n, e, "attribute 'n_supports' is %lld", (long long)supports);
        m->vectors = (uint32_t)supports;
        m->features = m->vectors ? n_support / m->vectors : m->n_coefficients;
        if (m->vectors && (m->features * m->vectors != n_support || m->n_coefficients != m->vectors))
            return node_error(n, e, "%u numbers of support vectors and %u coefficients for %u vectors", n_support, m->n_coefficients, m->vectors);
        return ST_OK;
    }
    TRY(ml_labels_of(n, "classlabels_strings", "classlabels_ints", &m->labels, e));
    if (n_per == 0 || n_support == 0)
        return node_error(n, e, "linear machines without support vectors are not supported: export them as LinearClassifier");
    int64_t vectors = 0;
    for (uint32_t i = 0; i < n_per; i++) {
        if (m->per_class[i] < 0 || m->per_class[i] > INT32_MAX)
            return node_error(n, e, "attribute 'vectors_per_class' holds %lld", (long long)m->per_class[i]);
        vectors += m->per_class[i];
    }
    uint32_t classes = m->labels.count, pairs = classes * (classes - 1) / 2;
    if (vectors < 1 || vectors > INT32_MAX || n_support % (uint32_t)vectors || n_per != classes || classes < 2 || classes > 10000)
        return node_error(n, e, "%u classes, %u counts of vectors, %lld vectors of %u numbers", classes, n_per, (long long)vectors, n_support);
    m->vectors = (uint32_t)vectors;
    m->features = n_support / m->vectors;
    if (m->n_coefficients != (classes - 1) * m->vectors || m->n_rho != pairs || (n_a && n_a != pairs) || n_b != n_a)
        return node_error(n, e, "%u coefficients, %u rho, %u and %u of prob for %u pairs of classes", m->n_coefficients, m->n_rho, n_a, n_b, pairs);
    return ST_OK;
}

static enum status svm_shape(struct shaping *s, struct err *e)
{
    const struct svm *m = s->node->state;
    const struct type *x = &s->in[0];
    TRY(ml_numbers(s, 0, e));
    if (x->rank > 0 && dim_known(x->dims[x->rank - 1]) && x->dims[x->rank - 1] != m->features)
        return node_error(s->node, e, "it is for %u features; its input has %lld", m->features, (long long)x->dims[x->rank - 1]);
    dim rows = ml_row_count(s, x);
    if (!m->classifier) {
        type_tensor(&s->out[0], DT_F32, 2, (dim[]){rows, 1});
        return ST_OK;
    }
    uint32_t classes = m->labels.count, columns = m->prob_a || classes == 2 ? classes : m->n_rho;
    type_tensor(&s->out[0], ml_label_type(&m->labels), 1, &rows);
    if (shape_wants(s, 1))
        type_tensor(&s->out[1], DT_F32, 2, (dim[]){rows, columns});
    return ST_OK;
}

static double kernel_of(const struct svm *m, const float *a, const float *b)
{
    double sum = 0;
    for (uint32_t i = 0; i < m->features; i++) {
        double d = (double)a[i] - (double)b[i];
        sum += m->kernel == RBF ? d * d : (double)a[i] * (double)b[i];
    }
    switch (m->kernel) {
    case POLY: return pow(m->gamma * sum + m->coef0, m->degree);
    case RBF: return exp(-m->gamma * sum);
    case SIGMOID: return tanh(m->gamma * sum + m->coef0);
    case LINEAR: break;
    }
    return sum;
}

/* Probabilities of k classes from those of pairs (Wu, Lin, Weng 2004, second method). p: k x k */
static void couple(uint32_t k, const double *r, double *q, double *qp, double *p)
{
    for (uint32_t t = 0; t < k; t++) {
        p[t] = 1.0 / k;
        q[t * k + t] = 0;
        for (uint32_t j = 0; j < k; j++)
            if (j != t) {
                q[t * k + t] += r[j * k + t] * r[j * k + t];
                q[t * k + j] = -r[j * k + t] * r[t * k + j];
            }
    }
    for (int round = 0; round < (k < 100 ? 100 : (int)k); round++) {
        double pqp = 0, worst = 0;
        for (uint32_t t = 0; t < k; t++) {
            qp[t] = 0;
            for (uint32_t j = 0; j < k; j++)
                qp[t] += q[t * k + j] * p[j];
            pqp += p[t] * qp[t];
        }
        for (uint32_t t = 0; t < k; t++)
            worst = fabs(qp[t] - pqp) > worst ? fabs(qp[t] - pqp) : worst;
        if (worst < 0.005 / k)
            break;
        for (uint32_t t = 0; t < k; t++) {
            double diff = (-qp[t] + pqp) / q[t * k + t];
            p[t] += diff;
            pqp = (pqp + diff * (diff * q[t * k + t] + 2 * qp[t])) / (1 + diff) / (1 + diff);
            for (uint32_t j = 0; j < k; j++) {
                qp[j] = (qp[j] + diff * q[t * k + j]) / (1 + diff);
                p[j] /= 1 + diff;
            }
        }
    }
}

struct svm_room {
    double *kernels, *pair, *r, *q, *qp, *p, *votes;
};

/* Decision values of all pairs and the votes for each class. */
static void decide(const struct svm *m, const float *x, const struct svm_room *o)
{
    uint32_t classes = m->labels.count;
    for (uint32_t i = 0; i < m->vectors; i++)
        o->kernels[i] = kernel_of(m, x, m->support + (size_t)i * m->features);
    memset(o->votes, 0, classes * sizeof *o->votes);
    int64_t start_i = 0;
    for (uint32_t i = 0, k = 0; i < classes; start_i += m->per_class[i], i++) {
        int64_t start_j = start_i + m->per_class[i];
        for (uint32_t j = i + 1; j < classes; start_j += m->per_class[j], j++, k++) {
            double sum = 0;
            for (int64_t v = 0; v < m->per_class[i]; v++)
                sum += (double)m->coefficients[(size_t)(j - 1) * m->vectors + (size_t)(start_i + v)] * o->kernels[start_i + v];
            for (int64_t v = 0; v < m->per_class[j]; v++)
                sum += (double)m->coefficients[(size_t)i * m->vectors + (size_t)(start_j + v)] * o->kernels[start_j + v];
            o->pair[k] = sum + (double)m->rho[k];
            o->votes[o->pair[k] > 0 ? i : j]++;
        }
    }
}

static size_t classify(const struct svm *m, const struct svm_room *o, float *scores)
{
    uint32_t classes = m->labels.count;
    size_t best = 0;
    for (uint32_t i = 0; i < classes; i++) /* votes decide, whatever the probabilities say */
        best = o->votes[i] > o->votes[best] ? i : best;
    if (m->prob_a) {
        for (uint32_t i = 0, k = 0; i < classes; i++)
            for (uint32_t j = i + 1; j < classes; j++, k++) {
                double v = 1 / (1 + exp((double)m->prob_a[k] * o->pair[k] + (double)m->prob_b[k]));
                v = v < 1e-7 ? 1e-7 : v > 1 - 1e-7 ? 1 - 1e-7 : v;
                o->r[i * classes + j] = v;
                o->r[j * classes + i] = 1 - v;
            }
        couple(classes, o->r, o->q, o->qp, o->p);
        for (uint32_t i = 0; i < classes; i++)
            scores[i] = (float)o->p[i];
        return best;
    }
    if (classes == 2) {
        scores[0] = -(float)o->pair[0], scores[1] = (float)o->pair[0];
        return best;
    }
    for (uint32_t k = 0; k < m->n_rho; k++)
        scores[k] = (float)o->pair[k];
    return best;
}

static enum status doubles(struct run *r, size_t n, double **out, struct err *e)
{
    void *p;
    TRY(run_scratch(r, (n + 2) * sizeof(double), &p, e));
    *out = p;
    return ST_OK;
}

static enum status svm_run(struct run *r, const struct node *n, struct err *e)
{
    const struct svm *m = n->state;
    size_t rows, columns;
    const float *x;
    ml_rows(run_in(r, 0), &rows, &columns);
    TRY(wide_f32(r, run_in(r, 0), &x, e));
    if (!m->classifier) {
        for (size_t i = 0; i < rows && run_out(r, 0); i++, x += columns) {
            double sum = 0;
            for (uint32_t v = 0; v < m->vectors; v++)
                sum += (double)m->coefficients[v] * kernel_of(m, x, m->support + (size_t)v * m->features);
            if (!m->vectors)
                sum = kernel_of(m, x, m->coefficients);
            sum += (double)m->rho[0];
            float y = (float)sum;
            if (m->one_class)
                y = y > 0 ? 1 : -1;
            ((float *)tensor_data(run_out(r, 0)))[i] = y;
        }
        return ST_OK;
    }
    size_t k = m->labels.count, out = m->prob_a || k == 2 ? k : m->n_rho;
    struct svm_room o;
    TRY(doubles(r, m->vectors, &o.kernels, e));
    TRY(doubles(r, m->n_rho, &o.pair, e));
    TRY(doubles(r, k * k, &o.r, e));
    TRY(doubles(r, k * k, &o.q, e));
    TRY(doubles(r, k, &o.qp, e));
    TRY(doubles(r, k, &o.p, e));
    TRY(doubles(r, k, &o.votes, e));
    struct tensor *y = n->n_out > 1 ? run_out(r, 1) : NULL;
    void *spare;
    TRY(run_scratch(r, (out + 1) * sizeof(float), &spare, e));
    for (size_t i = 0; i < rows; i++, x += columns) {
        float *scores = y ? (float *)tensor_data(y) + i * out : spare;
        decide(m, x, &o);
        ml_label(r, &m->labels, classify(m, &o, scores), i);
        ml_post(m->post, out, scores);
    }
    return ST_OK;
}

#define ML(op, out, fn) {.domain = "ai.onnx.ml", .name = op, .since = 1, .until = OPSET_ANY, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = out, \
                         .check = fn##_check, .shape = fn##_shape, .run = fn##_run, .release = release_state, .follow = ml_follow}
const struct op_def ops_ml_linear[] = {
    ML("LinearRegressor", 1, linear), ML("LinearClassifier", 2, linear), ML("SVMRegressor", 1, svm), ML("SVMClassifier", 2, svm), {0},
};
