#define PCRE2_CODE_UNIT_WIDTH 8
#include "workers/text/pattern.h"

#include <pcre2.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "workers/text/unicode.h"

/* A match that needs more steps than this is given up: an error of that text. The limits make time and memory of any
   expression on any text finite; real ones take some dozens of steps. */
#define MATCH_LIMIT 5000000
#define DEPTH_LIMIT 100000
#define HEAP_LIMIT_KIB (64 * 1024)
#define JIT_STACK_MAX (1024 * 1024)
#define REGEX_MAX 65536

struct pattern {
    char *text;
    size_t len;
    enum pattern_known known;
    pcre2_code *code; /* NULL: a plain string */
    int jit;
};

struct pattern_room {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

static void *take(size_t size, void *unused)
{
    (void)unused;
    return mem_alloc(size);
}

static void give(void *p, void *unused)
{
    (void)unused;
    mem_free(p);
}

/* Oniguruma to PCRE2 ---------------------------------------------------------------------------------------------------------- */

/* Unicode's White_Space; PCRE2's own \s has U+180E too. */
#define SPACE "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define GROUPS_MAX 250

struct translator {
    struct buf out;
    const char *p, *end;
    size_t atom;                /* where in out the last atom begins */
    size_t group[GROUPS_MAX];   /* where each open group begins */
    int depth;
    const char *refused;
};

static int put(struct translator *x, const char *s, size_t n)
{
    return buf_add(&x->out, s, n);
}

/* A general category, for use inside of brackets: PCRE2's, and what came after its Unicode. */
static int category(struct translator *x, const char *name, size_t len)
{
    char range[32];
    int rc = put(x, "\\p{", 3) || put(x, name, len) || put(x, "}", 1);
    for (size_t i = 0; !rc && len <= 2 && i < uni_lates_count; i++) {
        const struct uni_late *u = &uni_lates[i];
        if (strncmp(u->category, name, len) != 0)
            continue;
        int n = snprintf(range, sizeof range, "\\x{%x}-\\x{%x}", (unsigned)u->first, (unsigned)u->last);
        rc = put(x, range, (size_t)n);
    }
    return rc ? -1 : 0;
}

/* Oniguruma has a table of its own for Latin-1, in which these are \w; inside of brackets it does not use it. */
#define LATIN_NUMBERS "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"

/* What is alphabetic, marks, decimal digits and connectors; PCRE2's own \w lacks marks. */
static int word_class(struct translator *x, const char *open, const char *close)
{
    return put(x, open, strlen(open)) || put(x, "\\p{Alphabetic}", 14) || put(x, LATIN_NUMBERS, *open ? strlen(LATIN_NUMBERS) : 0) || category(x, "L", 1) || category(x, "M", 1) || category(x, "Nd", 2) || category(x, "Pc", 2) ||
                   put(x, close, strlen(close))
               ? -1
               : 0;
}

/* \p{name} or \P{name}, where name is [name, end). */
static int property(struct translator *x, int negated, const char *name, const char *end, int in_class)
{
    if (name < end && *name == '^') {
        negated = !negated;
        name++;
    }
    size_t len = (size_t)(end - name);
    if (len > 2 || (negated && in_class)) {
        return put(x, negated ? "\\P{" : "\\p{", 3) || put(x, name, len) || put(x, "}", 1) ? -1 : 0;
    }
    if (in_class)
        return category(x, name, len);
    return put(x, negated ? "[^" : "[", negated ? 2 : 1) || category(x, name, len) || put(x, "]", 1) ? -1 : 0;
}

/* The escape at p, which is the backslash. */
static int escape(struct translator *x, int in_class)
{
    if (x->p + 1 >= x->end) {
        x->refused = "it ends with a backslash";
        return 0;
    }
    char c = x->p[1];
    const char *plain = NULL;
    switch (c) {
    case 's':
        plain = in_class ? SPACE : "[" SPACE "]";
        break;
    case 'w':
        x->p += 2;
        return word_class(x, in_class ? "" : "[", in_class ? "" : "]");
    case 'h':
        plain = in_class ? "0-9a-fA-F" : "[0-9a-fA-F]";
        break;
    case 'd': {
        static const char digits[] = "Nd";
        x->p += 2;
        return property(x, 0, digits, digits + 2, in_class);
    }
    case 'S':
    case 'W':
    case 'H':
        if (in_class) {
            x->refused = "\\S, \\W or \\H inside of brackets";
            return 0;
        }
        if (c == 'W') {
            x->p += 2;
            return word_class(x, "[^", "]");
        }
        plain = c == 'S' ? "[^" SPACE "]" : "[^0-9a-fA-F]";
        break;
    case 'u':
        if (x->end - x->p < 6 || strspn(x->p + 2, "0123456789abcdefABCDEF") < 4) {
            x->refused = "\\u without four digits";
            return 0;
        }
        if (put(x, "\\x{", 3) || put(x, x->p + 2, 4) || put(x, "}", 1))
            return -1;
        x->p += 6;
        return 0;
    case 'p':
    case 'P':
    case 'x':
        if (x->p + 2 < x->end && x->p[2] == '{') {
            const char *close = memchr(x->p, '}', (size_t)(x->end - x->p));
            if (!close) {
                x->refused = "a brace without its end";
                return 0;
            }
            int rc = c == 'x' ? put(x, x->p, (size_t)(close + 1 - x->p)) : property(x, c == 'P', x->p + 3, close, in_class);
            x->p = close + 1;
            return rc;
        }
        break;
    case 'b':
    case 'B':
        if (!in_class)
            x->refused = "\\b and \\B";
        break;
    case 'K':
    case 'G':
    case 'R':
    case 'X':
    case 'y':
    case 'Y':
    case 'N':
    case 'O':
    case 'C':
    case 'Q':
    case 'E':
    case 'g':
    case 'k':
        x->refused = "an escape that the two kinds of regular expressions read differently";
        break;
    default:
        break;
    }
    if (x->refused)
        return 0;
    int rc = plain ? put(x, plain, strlen(plain)) : put(x, x->p, 2);
    x->p += 2;
    return rc;
}

static int brackets(struct translator *x)
{
    if (put(x, x->p++, 1))
        return -1;
    if (x->p < x->end && *x->p == '^' && put(x, x->p++, 1))
        return -1;
    int first = 1;
    while (x->p < x->end && (*x->p != ']' || first) && !x->refused) {
        if (*x->p == '\\') {
            if (escape(x, 1))
                return -1;
        } else if (*x->p == '[' && x->p + 1 < x->end && x->p[1] == ':') {
            const char *close = strstr(x->p + 2, ":]");
            if (!close) {
                x->refused = "[: without :]";
                return 0;
            }
            if (put(x, x->p, (size_t)(close + 2 - x->p)))
                return -1;
            x->p = close + 2;
        } else if (*x->p == '[' || (*x->p == '&' && x->p + 1 < x->end && x->p[1] == '&')) {
            x->refused = "brackets inside of brackets, or &&";
            return 0;
        } else if (put(x, x->p++, 1)) {
            return -1;
        }
        first = 0;
    }
    if (x->p == x->end)
        x->refused = "a bracket without its end";
    if (x->refused)
        return 0;
    return put(x, x->p++, 1);
}

/* {2,3}+ repeats the repetition there, and is possessive here. */
static int interval(struct translator *x)
{
    const char *close = memchr(x->p, '}', (size_t)(x->end - x->p));
    int rc;
    if (!close || strspn(x->p + 1, "0123456789,") != (size_t)(close - x->p - 1) || close == x->p + 1) {
        rc = put(x, "\\{", 2);
        x->p++;
        return rc;
    }
    if (put(x, x->p, (size_t)(close + 1 - x->p)))
        return -1;
    x->p = close + 1;
    if (x->p == x->end || *x->p != '+')
        return 0;
    if (put(x, "(?:)", 4)) /* room for the brackets around it */
        return -1;
    char *from = x->out.data + x->atom;
    memmove(from + 3, from, x->out.len - x->atom - 4);
    memcpy(from, "(?:", 3);
    x->out.data[x->out.len - 1] = ')';
    return 0;
}

/* An opening bracket with what belongs to it. Ruby's (?m) is what others call (?s). */
static int open_group(struct translator *x)
{
    if (x->depth == GROUPS_MAX) {
        x->refused = "too many brackets inside of each other";
        return 0;
    }
    x->group[x->depth++] = x->out.len;
    if (put(x, x->p++, 1))
        return -1;
    if (x->p == x->end || *x->p != '?')
        return 0;
    if (x->p + 1 < x->end && (x->p[1] == '~' || x->p[1] == '#' || x->p[1] == '(' || x->p[1] == 'P' || x->p[1] == 'R' || x->p[1] == '&')) {
        x->refused = "a group that the two kinds of regular expressions read differently";
        return 0;
    }
    const char *p = x->p + 1;
    while (p < x->end && strchr("imx-", *p) && *p)
        p++;
    int flags = p > x->p + 1 && p < x->end && (*p == ':' || *p == ')');
    for (; x->p < p; x->p++)
        if (put(x, flags && *x->p == 'm' ? "s" : x->p, 1))
            return -1;
    if (flags && *p == ')') { /* nothing was opened */
        x->depth--;
        return put(x, x->p++, 1);
    }
    return 0;
}

static int translate(struct translator *x)
{
    int rc = 0;
    while (x->p < x->end && !x->refused && !rc) {
        size_t here = x->out.len;
        switch (*x->p) {
        case '\\':
            rc = escape(x, 0);
            x->atom = here;
            break;
        case '[':
            rc = brackets(x);
            x->atom = here;
            break;
        case '(':
            rc = open_group(x);
            break;
        case ')':
            rc = put(x, x->p++, 1);
            if (x->depth)
                x->atom = x->group[--x->depth];
            break;
        case '{':
            rc = interval(x);
            break;
        case '*':
        case '+':
        case '?':
        case '|':
        case '^':
        case '$':
            rc = put(x, x->p++, 1);
            break;
        default:
            x->atom = here;
            rc = put(x, x->p++, 1);
            while (!rc && x->p < x->end && (*x->p & 0xC0) == 0x80)
                rc = put(x, x->p++, 1);
        }
    }
    return rc;
}

/* --------------------------------------------------------------------------------------------------------------------------- */

static enum pattern_known recognise(const char *text, size_t len)
{
    static const struct {
        const char *text;
        enum pattern_known known;
    } list[] = {
        {PATTERN_GPT2_REGEX, PATTERN_GPT2},
        {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
         PATTERN_CL100K},
        {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
         PATTERN_CL100K},
        {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
         PATTERN_QWEN},
        {" {2,}", PATTERN_SPACES},
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (strlen(list[i].text) == len && !memcmp(list[i].text, text, len))
            return list[i].known;
    return PATTERN_OTHER;
}

static enum status compile(struct pattern *p, struct err *e)
{
    struct translator x = {.p = p->text, .end = p->text + p->len};
    enum status rc = ST_OK;
    int shown = p->len < 200 ? (int)p->len : 200;
    pcre2_general_context *general = pcre2_general_context_create(take, give, NULL);
    pcre2_compile_context *context = general ? pcre2_compile_context_create(general) : NULL;
    if (!context || translate(&x) || buf_reserve(&x.out, 1)) {
        rc = err_nomem(e, "a regular expression");
    } else if (x.refused) {
        rc = err_set(e, ST_USER, "the regular expression '%.*s' is not supported by this version: %s", shown, p->text, x.refused);
    } else {
        int code = 0;
        PCRE2_SIZE at = 0;
        pcre2_set_parens_nest_limit(context, GROUPS_MAX);
        p->code = pcre2_compile((PCRE2_SPTR)x.out.data, x.out.len, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                                &code, &at, context);
        if (!p->code && code == PCRE2_ERROR_HEAP_FAILED) {
            rc = err_nomem(e, "a regular expression");
        } else if (!p->code) {
            PCRE2_UCHAR words[160] = "";
            pcre2_get_error_message(code, words, sizeof words);
            rc = code == PCRE2_ERROR_NOMEMORY ? err_nomem(e, "a regular expression")
                                              : err_set(e, ST_USER, "the regular expression '%.*s' cannot be compiled: %s", shown, p->text,
                                                        (const char *)words);
        } else {
            /* where memory may not be made executable this fails, and the interpreter takes over */
            p->jit = pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) == 0;
        }
    }
    buf_release(&x.out);
    pcre2_compile_context_free(context);
    pcre2_general_context_free(general);
    return rc;
}

enum status pattern_open(const char *text, size_t len, int regex, struct pattern **out, struct err *e)
{
    if (regex && len > REGEX_MAX)
        return err_set(e, ST_USER, "a regular expression has more than %d bytes", REGEX_MAX);
    struct pattern *p = mem_zalloc(sizeof *p);
    if (!p || !(p->text = mem_strndup(text, len))) {
        mem_free(p);
        return err_nomem(e, "a pattern");
    }
    p->len = len;
    if (regex) {
        p->known = recognise(text, len);
        enum status rc = compile(p, e);
        if (rc != ST_OK) {
            pattern_free(p);
            return rc;
        }
    }
    *out = p;
    return ST_OK;
}

void pattern_free(struct pattern *p)
{
    if (!p)
        return;
    pcre2_code_free(p->code);
    mem_free(p->text);
    mem_free(p);
}

enum pattern_known pattern_known(const struct pattern *p)
{
    return p->known;
}

const char *pattern_text(const struct pattern *p, size_t *len)
{
    *len = p->len;
    return p->code ? NULL : p->text;
}

static struct pattern_room *new_room(void)
{
    struct pattern_room *r = mem_zalloc(sizeof *r);
    pcre2_general_context *general = r ? pcre2_general_context_create(take, give, NULL) : NULL;
    if (general) {
        r->data = pcre2_match_data_create(1, general);
        r->context = pcre2_match_context_create(general);
        r->stack = pcre2_jit_stack_create(32 * 1024, JIT_STACK_MAX, general); /* NULL where there is no JIT: its default serves */
    }
    pcre2_general_context_free(general);
    if (!r || !r->data || !r->context) {
        pattern_room_free(r);
        return NULL;
    }
    pcre2_set_match_limit(r->context, MATCH_LIMIT);
    pcre2_set_depth_limit(r->context, DEPTH_LIMIT);
    pcre2_set_heap_limit(r->context, HEAP_LIMIT_KIB);
    pcre2_jit_stack_assign(r->context, NULL, r->stack);
    return r;
}

void pattern_room_free(struct pattern_room *r)
{
    if (!r)
        return;
    pcre2_match_data_free(r->data);
    pcre2_match_context_free(r->context);
    pcre2_jit_stack_free(r->stack);
    mem_free(r);
}

enum status pattern_find(const struct pattern *p, struct pattern_room **room, const uint8_t *subject, size_t len, size_t from,
                         size_t *start, size_t *end, struct err *e)
{
    if (from > len)
        return ST_END;
    if (!p->code) {
        const uint8_t *at = p->len ? memmem(subject + from, len - from, p->text, p->len) : subject + from;
        if (!at)
            return ST_END;
        *start = (size_t)(at - subject);
        *end = *start + p->len;
        return ST_OK;
    }
    if (!*room && !(*room = new_room()))
        return err_nomem(e, "matching a regular expression");
    struct pattern_room *r = *room;
    int rc = p->jit ? pcre2_jit_match(p->code, subject, len, from, 0, r->data, r->context) : PCRE2_ERROR_JIT_STACKLIMIT;
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(p->code, subject, len, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, r->data, r->context);
    if (rc == PCRE2_ERROR_NOMATCH)
        return ST_END;
    if (rc == PCRE2_ERROR_NOMEMORY)
        return err_nomem(e, "matching a regular expression");
    if (rc < 0) {
        PCRE2_UCHAR words[120] = "";
        pcre2_get_error_message(rc, words, sizeof words);
        return err_set(e, ST_USER, "the tokenizer's regular expression '%.*s' cannot be matched against this text: %s",
                       p->len < 200 ? (int)p->len : 200, p->text, (const char *)words);
    }
    PCRE2_SIZE *pair = pcre2_get_ovector_pointer(r->data);
    *start = pair[0];
    *end = pair[1] < pair[0] ? pair[0] : pair[1];
    return ST_OK;
}
