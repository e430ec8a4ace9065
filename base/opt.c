#include "base/opt.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/suggest.h"
#include "base/units.h"

void opt_list_release(struct opt_list *l)
{
    for (size_t i = 0; i < l->copy_count; i++)
        mem_free(l->copies[i]);
    mem_free(l->copies);
    mem_free(l->items);
    *l = (struct opt_list){0};
}

static int list_add(struct opt_list *l, const char *text)
{
    if (mem_grow((void **)&l->items, &l->cap, l->count, sizeof *l->items))
        return -1;
    l->items[l->count++] = text;
    return 0;
}

static int list_add_split(struct opt_list *l, const char *text)
{
    char *copy = mem_strdup(text), *save = NULL;
    if (!copy || mem_grow((void **)&l->copies, &l->copy_cap, l->copy_count, sizeof *l->copies)) {
        mem_free(copy);
        return -1;
    }
    l->copies[l->copy_count++] = copy;
    for (char *word = strtok_r(copy, ",", &save); word; word = strtok_r(NULL, ",", &save))
        if (list_add(l, word))
            return -1;
    return 0;
}

static enum status bad_value(const struct opt *o, const char *text, const char *wanted, struct err *e)
{
    return err_set(e, ST_USER, "--%s takes %s, not '%s'", o->name, wanted, text);
}

static enum status take(const struct opt *o, const char *text, struct err *e)
{
    char *end;
    errno = 0;
    switch (o->type) {
    case OPT_FLAG:
        *(int *)o->value = 1;
        return ST_OK;
    case OPT_TEXT:
        *(const char **)o->value = text;
        return ST_OK;
    case OPT_LIST:
        return (o->split ? list_add_split : list_add)(o->value, text) ? err_nomem(e, "options") : ST_OK;
    case OPT_NUMBER: {
        unsigned long long n = strtoull(text, &end, 10);
        if (isdigit((unsigned char)*text) && !*end && errno == ERANGE)
            return bad_value(o, text, "a smaller number", e);
        if (!isdigit((unsigned char)*text) || *end || errno)
            return bad_value(o, text, *text == '-' ? "a whole number from 0 on" : "a whole number", e);
        *(uint64_t *)o->value = n;
        return ST_OK;
    }
    case OPT_SIGNED: {
        long long n = strtoll(text, &end, 10);
        if (end == text || *end || errno)
            return bad_value(o, text, "a whole number", e);
        *(int64_t *)o->value = n;
        return ST_OK;
    }
    case OPT_SIZE:
        return units_parse_bytes(text, o->value) ? bad_value(o, text, "a size such as 64MB or 1.5GiB", e) : ST_OK;
    case OPT_DURATION:
        return units_parse_duration(text, o->value) ? bad_value(o, text, "a duration such as 30s or 5min", e) : ST_OK;
    }
    BUG("option '%s' has no type", o->name);
}

static const struct opt *find(const struct opt_command *c, const char *name, size_t len, char letter)
{
    for (size_t i = 0; i < c->opt_count; i++)
        if (letter ? c->opts[i].letter == letter : strlen(c->opts[i].name) == len && memcmp(c->opts[i].name, name, len) == 0)
            return &c->opts[i];
    return NULL;
}

static enum status unknown(const struct opt_command *c, const char *word, size_t len, struct err *e)
{
    const char *names[128];
    size_t n = 0;
    char copy[64];
    snprintf(copy, sizeof copy, "%.*s", (int)(len < sizeof copy ? len : sizeof copy - 1), word);
    for (size_t i = 0; i < c->opt_count && n < 127; i++)
        names[n++] = c->opts[i].name;
    names[n++] = "help";
    const char *near = suggest(copy, names, n);
    if (near)
        return err_set(e, ST_USER, "unknown option '--%s' (did you mean '--%s'); see '%s --help'", copy, near, c->name);
    return err_set(e, ST_USER, "unknown option '--%s'; see '%s --help'", copy, c->name);
}

enum status opt_parse(const struct opt_command *c, int argc, char **argv, int *operand_count, struct err *e)
{
    int operands = 0, only_operands = 0;
    for (int i = 1; i < argc; i++) {
        char *word = argv[i];
        if (only_operands || word[0] != '-' || word[1] == 0) {
            argv[++operands] = word;
            continue;
        }
        if (strcmp(word, "--") == 0) {
            only_operands = 1;
            continue;
        }
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            opt_help(c, stdout);
            return ST_END;
        }
        if (strcmp(word, "--man") == 0) {
            opt_man(c, stdout);
            return ST_END;
        }
        const struct opt *o;
        const char *value = NULL;
        if (word[1] == '-') {
            size_t len = strcspn(word + 2, "=");
            if (word[2 + len] == '=')
                value = word + 3 + len;
            o = find(c, word + 2, len, 0);
            if (!o)
                return unknown(c, word + 2, len, e);
        } else {
            o = find(c, NULL, 0, word[1]);
            if (!o)
                return err_set(e, ST_USER, "unknown option '-%c'; see '%s --help'", word[1], c->name);
            if (word[2])
                value = word + 2;
        }
        if (o->type == OPT_FLAG && value)
            return err_set(e, ST_USER, "--%s takes no argument", o->name);
        if (o->type != OPT_FLAG && !value && !(value = argv[++i]))
            return err_set(e, ST_USER, "--%s wants %s behind it", o->name, o->arg);
        TRY(take(o, value, e));
    }
    if ((size_t)operands < c->operands_min)
        return err_set(e, ST_USER, "%s wants %s; see '%s --help'", c->name, c->operands, c->name);
    if ((size_t)operands > c->operands_max)
        return err_set(e, ST_USER, "'%s' is more than %s takes; see '%s --help'", argv[c->operands_max + 1], c->name, c->name);
    *operand_count = operands;
    return ST_OK;
}

static void each_group(const struct opt_command *c, void (*heading)(FILE *, const char *), void (*row)(FILE *, const struct opt *), FILE *to)
{
    for (size_t i = 0; i < c->opt_count; i++) {
        const char *group = c->opts[i].group;
        int first = 1;
        for (size_t j = 0; j < i; j++)
            first &= !(c->opts[j].group == group || (group && c->opts[j].group && strcmp(c->opts[j].group, group) == 0));
        if (!first)
            continue;
        heading(to, group ? group : "Options");
        for (size_t j = i; j < c->opt_count; j++)
            if (c->opts[j].group == group || (group && c->opts[j].group && strcmp(c->opts[j].group, group) == 0))
                row(to, &c->opts[j]);
    }
}

static void help_heading(FILE *to, const char *text)
{
    fprintf(to, "\n%s\n", text);
}

static void help_row(FILE *to, const struct opt *o)
{
    char left[80];
    snprintf(left, sizeof left, "%c%c%s--%s%s%s", o->letter ? '-' : ' ', o->letter ? o->letter : ' ', o->letter ? ", " : "  ", o->name,
             o->arg ? " " : "", o->arg ? o->arg : "");
    fprintf(to, "  %-30s%s", left, strlen(left) > 28 ? "\n                                " : "");
    size_t column = 0;
    for (const char *p = o->help; *p;) { /* words, wrapped */
        size_t word = strcspn(p, " ");
        if (column && column + word > 76) {
            fputs("\n                                ", to);
            column = 0;
        }
        fprintf(to, "%s%.*s", column ? " " : "", (int)word, p);
        column += word + 1;
        p += word + (p[word] == ' ');
    }
    fputc('\n', to);
}

void opt_help(const struct opt_command *c, FILE *to)
{
    fprintf(to, "usage: %s%s%s%s\n%s\n", c->name, c->opt_count ? " [OPTION...]" : "", c->operands ? " " : "", c->operands ? c->operands : "",
            c->summary);
    if (c->details)
        fprintf(to, "\n%s\n", c->details);
    each_group(c, help_heading, help_row, to);
    if (c->examples)
        fprintf(to, "\nExamples\n%s\n", c->examples);
}

static void man_text(FILE *to, const char *text)
{
    for (int start = 1; *text; text++) {
        if (start && (*text == '.' || *text == '\''))
            fputs("\\&", to);
        if (*text == '\\')
            fputs("\\e", to);
        else if (*text == '-')
            fputs("\\-", to);
        else
            fputc(*text, to);
        start = *text == '\n';
        if (start && text[1] == '\n') {
            fputs(".PP\n", to);
            text++;
        }
    }
    fputc('\n', to);
}

static void man_heading(FILE *to, const char *text)
{
    fputs(".SH ", to);
    for (; *text; text++)
        fputc(toupper((unsigned char)*text), to);
    fputc('\n', to);
}

static void man_row(FILE *to, const struct opt *o)
{
    fputs(".TP\n", to);
    if (o->letter)
        fprintf(to, ".BR \\-%c \", \"\n", o->letter);
    fputs("\\fB\\-\\-", to);
    for (const char *p = o->name; *p; p++)
        fprintf(to, *p == '-' ? "\\-" : "%c", *p);
    fprintf(to, "\\fR%s%s%s%s\n", o->arg ? " \\fI" : "", o->arg ? o->arg : "", o->arg ? "\\fR" : "", "");
    man_text(to, o->help);
}

void opt_man(const struct opt_command *c, FILE *to)
{
    char title[64];
    snprintf(title, sizeof title, "%s", c->name);
    for (char *p = title; *p; p++)
        *p = *p == ' ' ? '-' : *p;
    fprintf(to, ".TH \"%s\" 1\n.SH NAME\n%s \\- ", title, title);
    man_text(to, c->summary);
    fprintf(to, ".SH SYNOPSIS\n.B %s\n%s %s\n", c->name, c->opt_count ? "[OPTION...]" : "", c->operands ? c->operands : "");
    if (c->details) {
        fputs(".SH DESCRIPTION\n", to);
        man_text(to, c->details);
    }
    each_group(c, man_heading, man_row, to);
    if (c->examples) {
        fputs(".SH EXAMPLES\n.nf\n", to);
        man_text(to, c->examples);
        fputs(".fi\n", to);
    }
}
