/* A job as flags of a command (base/opt.h). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/opt.h"
#include "wire/jobspec.h"
#include "wire/jobspec_fields.h"

struct jobspec_flags {
    struct opt opts[FIELD_COUNT];
    size_t count;
    union {
        const char *text;
        struct opt_list list;
        uint64_t number;
        int64_t sign;
    } values[FIELD_COUNT];
};

/* What a number holds when its flag was not given: no value that the table accepts. */
#define ABSENT UINT64_MAX
#define ABSENT_SIGNED INT64_MIN

static const char *group_of(const char *path)
{
    static const struct {
        const char *prefix, *group;
    } groups[] = {{"input.", "Input"}, {"output.", "Output"}, {"workers.", "Workers"}, {"pipeline.", "Workers"}, {"tuning.", "Tuning"}};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (strncmp(path, groups[i].prefix, strlen(groups[i].prefix)) == 0)
            return groups[i].group;
    return "Job";
}

enum status jobspec_flags_new(struct jobspec_flags **out, struct err *e)
{
    static const enum opt_type types[] = {
        [KIND_TEXT] = OPT_TEXT, [KIND_LIST] = OPT_LIST,         [KIND_NUMBER] = OPT_NUMBER, [KIND_SIGNED] = OPT_SIGNED,
        [KIND_SIZE] = OPT_SIZE, [KIND_DURATION] = OPT_DURATION, [KIND_LIMIT] = OPT_TEXT,
        [KIND_STEPS] = OPT_LIST,
    };
    struct jobspec_flags *flags = mem_zalloc(sizeof *flags);
    if (!flags)
        return err_nomem(e, "options");
    for (enum field f = 0; f < FIELD_COUNT; f++) {
        const struct field_row *r = &field_rows[f];
        if (!*r->flag)
            continue;
        if (r->kind == KIND_NUMBER || r->kind == KIND_SIZE || r->kind == KIND_DURATION)
            flags->values[f].number = ABSENT;
        else if (r->kind == KIND_SIGNED)
            flags->values[f].sign = ABSENT_SIGNED;
        flags->opts[flags->count++] = (struct opt){
            .name = r->flag,
            .type = types[r->kind],
            .value = &flags->values[f],
            .arg = r->arg,
            .help = r->help,
            .group = group_of(r->path),
            .split = r->kind == KIND_LIST && strchr(r->arg, ',') != NULL,
        };
    }
    *out = flags;
    return ST_OK;
}

void jobspec_flags_free(struct jobspec_flags *flags)
{
    if (!flags)
        return;
    for (enum field f = 0; f < FIELD_COUNT; f++)
        if (field_rows[f].kind == KIND_LIST || field_rows[f].kind == KIND_STEPS)
            opt_list_release(&flags->values[f].list);
    mem_free(flags);
}

const struct opt *jobspec_flags_opts(struct jobspec_flags *flags, size_t *count)
{
    *count = flags->count;
    return flags->opts;
}

static enum status flag_bad(enum field f, const char *text, struct err *e)
{
    return err_set(e, ST_USER, "--%s takes %s, not '%s'", field_rows[f].flag, kind_words[field_rows[f].kind], text);
}

enum status jobspec_from_flags(struct jobspec *s, struct jobspec_flags *flags, struct err *e)
{
    for (enum field f = 0; f < FIELD_COUNT; f++) {
        const struct field_row *r = &field_rows[f];
        if (!*r->flag)
            continue;
        char number[24];
        switch (r->kind) {
        case KIND_TEXT:
            if (flags->values[f].text && !*flags->values[f].text)
                return err_set(e, ST_USER, "--%s is empty; leave it out for the default", r->flag);
            if (flags->values[f].text)
                TRY(field_put_text(s, f, flags->values[f].text, NULL, 0, e));
            break;
        case KIND_LIST:
            if (flags->values[f].list.count)
                texts_release(field_at(s, f));
            for (size_t i = 0; i < flags->values[f].list.count; i++) {
                if (!*flags->values[f].list.items[i])
                    return err_set(e, ST_USER, "--%s is empty", r->flag);
                TRY(field_put_text(s, f, flags->values[f].list.items[i], NULL, 0, e));
            }
            break;
        case KIND_STEPS:
            if (flags->values[f].list.count)
                steps_release(field_at(s, f));
            for (size_t i = 0; i < flags->values[f].list.count; i++)
                TRY(steps_add_flag(field_at(s, f), flags->values[f].list.items[i], e));
            break;
        case KIND_NUMBER:
        case KIND_SIZE:
        case KIND_DURATION:
            if (flags->values[f].number == ABSENT)
                break;
            snprintf(number, sizeof number, "%" PRIu64, flags->values[f].number);
            if (flags->values[f].number > INT64_MAX)
                return flag_bad(f, number, e);
            if (f == FIELD_limit && !flags->values[f].number)
                return err_set(e, ST_USER, "--%s 0 asks for no record at all; leave it out to have every record", r->flag);
            *(uint64_t *)field_at(s, f) = flags->values[f].number;
            break;
        case KIND_SIGNED:
            if (flags->values[f].sign != ABSENT_SIGNED)
                *(int64_t *)field_at(s, f) = flags->values[f].sign;
            break;
        case KIND_LIMIT:
            if (flags->values[f].text && limit_parse(flags->values[f].text, field_at(s, f)))
                return flag_bad(f, flags->values[f].text, e);
            break;
        }
    }
    return ST_OK;
}
