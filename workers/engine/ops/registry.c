/* Finds an op by its name. */
#include "workers/engine/ops/tables.h"

#include <string.h>

#include "workers/engine/graph/op.h"

#define X(table) extern const struct op_def table[];
OP_TABLES(X)
#undef X

static const struct op_def *const tables[] = {
#define X(table) table,
    OP_TABLES(X)
#undef X
};

/* A model has thousands of nodes at most, the tables hold hundreds of rows: a plain search takes milliseconds. */
const struct op_def *op_find(const char *domain, const char *name, int opset, int *known)
{
    if (known)
        *known = 0;
    if (strcmp(domain, "ai.onnx") == 0)
        domain = "";
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (const struct op_def *d = tables[t]; d->name; d++) {
            if (strcmp(d->name, name) != 0 || strcmp(d->domain, domain) != 0)
                continue;
            if (opset >= d->since && opset <= d->until)
                return d;
            if (known)
                *known = 1;
        }
    return NULL;
}
