#include "wire/condition.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define MEANT "write FIELD OP VALUE with one of = != < <= > >=, e.g. label != toxic, or score >= 0.5 and lang = de"

static const char *const op_words[] = {
#define X(name, word) [CONDITION_##name] = word,
    CONDITION_OP_MAP(X)
#undef X
};

const char *condition_op_word(enum condition_op op)
{
    return op_words[op];
}

void condition_release(struct condition *c)
{
    for (size_t i = 0; i < c->count; i++) {
        mem_free(c->items[i].field);
        mem_free(c->items[i].text);
    }
    mem_free(c->items);
    *c = (struct condition){0};
}

static const char *skip(const char *p)
{
    while (isspace((unsigned char)*p))
        p++;
    return p;
}

static enum status bad(const char *text, const char *why, struct err *e)
{
    return err_set(e, ST_USER, "the condition '%.200s' %s; " MEANT, text, why);
}

/* What stands between quotes at *p, which moves behind them; within them \ takes the next character as it is. */
static enum status quoted(const char **p, const char *whole, char **out, struct err *e)
{
    char quote = **p, *to = mem_alloc(strlen(*p) + 1);
    size_t n = 0;
    if (!to)
        return err_nomem(e, "a condition");
    const char *at = *p + 1;
    for (; *at && *at != quote; at++) {
        if (*at == '\\' && at[1])
            at++;
        to[n++] = *at;
    }
    to[n] = 0;
    if (!*at) {
        mem_free(to);
        return bad(whole, "has a quote that is not closed", e);
    }
    *p = at + 1;
    *out = to;
    return ST_OK;
}

static enum status take_field(const char **p, const char *whole, char **out, struct err *e)
{
    if (**p == '"' || **p == '\'')
        return quoted(p, whole, out, e);
    size_t n = strcspn(*p, " \t=!<>");
    if (!n)
        return bad(whole, "names no field", e);
    if (!(*out = mem_strndup(*p, n)))
        return err_nomem(e, "a condition");
    *p += n;
    return ST_OK;
}

static int take_op(const char **p, enum condition_op *out)
{
    for (size_t i = 0; i < sizeof op_words / sizeof *op_words; i++) {
        size_t n = strlen(op_words[i]);
        if (strncmp(*p, op_words[i], n) != 0)
            continue;
        *out = (enum condition_op)i;
        *p += n;
        return 1;
    }
    return 0;
}

/* Where a value without quotes ends: before " and ". */
static size_t bare_len(const char *p)
{
    const char *at = p;
    while ((at = strstr(at, "and"))) {
        if (at > p && isspace((unsigned char)at[-1]) && (!at[3] || isspace((unsigned char)at[3])))
            break;
        at += 3;
    }
    size_t n = at ? (size_t)(at - p) : strlen(p);
    while (n && isspace((unsigned char)p[n - 1]))
        n--;
    return n;
}

static void judge(struct clause *c)
{
    char *end;
    double x = strtod(c->text, &end);
    c->kind = CONDITION_TEXT;
    if (strcmp(c->text, "true") == 0)
        c->kind = CONDITION_TRUE;
    else if (strcmp(c->text, "false") == 0)
        c->kind = CONDITION_FALSE;
    else if (strcmp(c->text, "null") == 0)
        c->kind = CONDITION_NULL;
    else if (end != c->text && !*end && isfinite(x) && (isdigit((unsigned char)end[-1]) || end[-1] == '.')) {
        c->kind = CONDITION_NUMBER;
        c->number = x;
    }
}

static enum status take_value(const char **p, const char *whole, struct clause *c, struct err *e)
{
    if (**p == '"' || **p == '\'') {
        c->kind = CONDITION_TEXT;
        return quoted(p, whole, &c->text, e);
    }
    size_t n = bare_len(*p);
    if (!n)
        return bad(whole, "compares with nothing (an empty text is written '')", e);
    if (!(c->text = mem_strndup(*p, n)))
        return err_nomem(e, "a condition");
    *p += n;
    judge(c);
    return ST_OK;
}

static enum status take_clause(const char **p, const char *whole, struct clause *c, struct err *e)
{
    TRY(take_field(p, whole, &c->field, e));
    *p = skip(*p);
    if (!take_op(p, &c->op))
        return bad(whole, "has no comparison behind its field", e);
    *p = skip(*p);
    TRY(take_value(p, whole, c, e));
    if (c->op == CONDITION_EQ)
        c->op = CONDITION_IS;
    if (c->op != CONDITION_IS && c->op != CONDITION_NE && c->kind != CONDITION_TEXT && c->kind != CONDITION_NUMBER)
        return bad(whole, "asks which is larger of true, false or null", e);
    *p = skip(*p);
    return ST_OK;
}

enum status condition_parse(const char *text, struct condition *out, struct err *e)
{
    size_t cap = 0;
    const char *p = skip(text);
    enum status st = ST_OK;
    *out = (struct condition){0};
    do {
        if (mem_grow((void **)&out->items, &cap, out->count, sizeof *out->items)) {
            st = err_nomem(e, "a condition");
            break;
        }
        out->items[out->count] = (struct clause){0};
        st = take_clause(&p, text, &out->items[out->count++], e);
        if (st != ST_OK || !*p)
            break;
        if (strncmp(p, "and", 3) != 0 || (p[3] && !isspace((unsigned char)p[3])))
            st = bad(text, "goes on behind its value without 'and'", e);
        else
            p = skip(p + 3);
    } while (st == ST_OK);
    if (st != ST_OK)
        condition_release(out);
    return st;
}
