/* What `when` of a step says of a record: "label != toxic", "score >= 0.5 and lang = de". docs/steps.md tells what people may write; here it is read. */
#ifndef EBB_WIRE_CONDITION_H
#define EBB_WIRE_CONDITION_H

#include <stddef.h>

#include "base/status.h"

/* op, how it is written; those of two letters first */
#define CONDITION_OP_MAP(X) X(EQ, "==") X(NE, "!=") X(LE, "<=") X(GE, ">=") X(IS, "=") X(LT, "<") X(GT, ">")
enum condition_op {
#define X(name, word) CONDITION_##name,
    CONDITION_OP_MAP(X)
#undef X
};
const char *condition_op_word(enum condition_op op);

enum condition_kind { CONDITION_TEXT, CONDITION_NUMBER, CONDITION_TRUE, CONDITION_FALSE, CONDITION_NULL };

struct clause {
    char *field;        /* of the record; dots lead into objects, where the record has no such field */
    enum condition_op op;
    enum condition_kind kind;
    char *text;         /* as it was written, without quotes */
    double number;      /* NUMBER */
};

struct condition {      /* holds when all of them do; none: always */
    struct clause *items;
    size_t count;
};

/* ST_USER says what is wrong with the text and how it is meant. *out is empty then. */
MUST_USE enum status condition_parse(const char *text, struct condition *out, struct err *e);
void condition_release(struct condition *c);

#endif
