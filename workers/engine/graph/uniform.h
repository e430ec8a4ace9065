/* Values that hold one number throughout, whatever they hold it for. A text alone, unpadded, has an attention mask of ones and token types of
   zeros; followed through a graph, that makes most of what exporters write for masks a single known number, and x + 0 is x.

   The number may be the size of an axis (the sum of a mask over a sequence is its length). */
#ifndef EBB_GRAPH_UNIFORM_H
#define EBB_GRAPH_UNIFORM_H

#include "workers/engine/graph/graph.h"

enum uniform_kind { UNIFORM_NO, UNIFORM_NUMBER, UNIFORM_SIZE };
struct uniform {
    enum uniform_kind kind;
    double number;
    dim size;        /* >= 1 */
    int has_low;     /* no element is below `low`, uniform or not */
    double low;
};

/* For each value of g. `given` (may be NULL) has n_given inputs of the graph whose number is known beforehand. Free with mem_free. */
MUST_USE enum status uniform_find(const struct graph *g, const struct given *given, uint32_t n_given, struct uniform **out, struct err *e);

/* Removes what such values make needless: x + 0, x * 1, Where with a known condition, Expand to the size that a value has already or that
   broadcasting gives it anyway. *changed counts. The graph wants a sweep after it. */
MUST_USE enum status uniform_simplify(struct graph *g, const struct uniform *u, uint32_t *changed, struct err *e);

#endif
