/* Parts: a finished graph runs as a row of stages, each on another worker. A part is a run of segments (segment.h): their nodes, and the cheap ones that are made
   anew from the graph's inputs. Its further inputs are the values that cross the cut before it, its outputs those that cross the one behind it; what crosses both
   without being needed is both. Constants of other parts are let go.

   Who runs a part on several records at once must be able to take one of them out of what has crossed: the one that does not go through the model fails alone. So it is
   known of each value how records lie in it, and a value of which it is not known does not cross. */
#ifndef EBB_GRAPH_PART_H
#define EBB_GRAPH_PART_H

#include "workers/engine/graph/segment.h"

enum belongs {
    BELONGS_ALL,         /* the same for all records, or there is but one */
    BELONGS_RECORDS,     /* each record has its index along `axis` */
    BELONGS_TOKENS,      /* [1, tokens, ...]: each text has its tokens along axis 1 */
    BELONGS_PLACES,      /* each axis of a text's length is the longest text's; a shorter one has the first of it */
    BELONGS_SIZES,       /* elements are sizes, which follow from those of the inputs */
    BELONGS_PLACE_SIZES, /* sizes of BELONGS_PLACES */
    BELONGS_UNKNOWN,
};
struct belonging {
    uint8_t kind; /* enum belongs */
    uint8_t axis;
};

/* Of each value of g, *out: what packed texts (PART_PACKED), or records of equal sizes, have in it; mem_free. *stays, of each value: it cannot cross (cutting.stays);
   mem_free. The graph packs, or its batch is proved. */
enum part_sharing { PART_ALONE, PART_EQUAL, PART_PACKED };
MUST_USE enum status part_belongings(const struct graph *g, enum part_sharing sharing, struct belonging **out, uint8_t **stays, struct err *e);

struct part_edge { /* a cut */
    uint32_t count;
    struct part_value {
        int32_t value;
        struct belonging belongs;
    } *list;
    uint64_t check; /* of what crosses: names, types, and where the cut lies. Equal on both sides where these were made of the same model */
};
void part_edge_release(struct part_edge *p);

struct graph_part {
    uint32_t first, end; /* nodes */
    struct part_edge before, behind; /* count 0: there is none; these are the inputs, or the results */
    uint64_t weight_bytes;           /* of constants that are kept, as they stand in the file */
};
void graph_part_release(struct graph_part *p);

/* What is left of a resolved graph is nodes [first, end) and what they need; both are bounds of segments. Then graph_plan. A part without nodes keeps nothing. */
MUST_USE enum status graph_keep_part(struct graph *g, const struct cutting *c, const struct belonging *of, uint32_t first, uint32_t end, struct graph_part *out,
                                     struct err *e);

#endif
