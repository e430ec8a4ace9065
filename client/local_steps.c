/* The steps of a job, as far as they can be looked at before anything is started. */
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "client/client.h"
#include "client/local.h"
#include "workers/text/tokenizer.h"

static enum status look_at_model(const struct jobspec *s, struct step_spec *step, struct model_info *info, struct err *e)
{
    struct jobspec one = {.model = step->model, .top_k = step->top_k ? step->top_k : s->top_k};
    enum status st = local_settle(&one.precision, step->precision ? step->precision : s->precision, e);
    if (st == ST_OK)
        st = local_settle(&one.task, step->task ? step->task : "auto", e);
    if (st == ST_OK)
        st = local_model(&one, info, e);
    if (st == ST_OK) {
        mem_free(step->precision);
        mem_free(step->task);
        step->precision = one.precision;
        step->task = one.task;
        return ST_OK;
    }
    mem_free(one.precision);
    mem_free(one.task);
    return st;
}

static enum status look_at(const struct jobspec *s, size_t i, struct model_info *info, int elsewhere, struct err *e)
{
    struct step_spec *step = &s->steps.items[i];
    struct stat there;
    const char *path = step->model ? step->model : step->dir;
    *info = (struct model_info){0};
    if (stat(path, &there)) {
        if (elsewhere)
            return ST_OK;
        return err_set(e, ST_USER, step->model ? "step %zu: there is no model at '%s'" : "step %zu: the command is to run in '%s', which is not there", i + 1, path);
    }
    if (step->command)
        return S_ISDIR(there.st_mode) ? ST_OK : err_set(e, ST_USER, "step %zu: the command is to run in '%s', which is no folder", i + 1, path);
    if (look_at_model(s, step, info, e) != ST_OK)
        return err_prefix(e, "step %zu", i + 1);
    return ST_OK;
}

enum status local_steps(struct jobspec *s, struct model_info *infos, int elsewhere, struct err *e)
{
    for (size_t i = 0; i < s->steps.count; i++)
        TRY(look_at(s, i, &infos[i], elsewhere, e));
    return ST_OK;
}

char *local_step_words(const struct jobspec *s, const struct model_info *infos, size_t i, char *out, size_t size)
{
    const struct step_spec *step = &s->steps.items[i];
    char gives[128];
    if (step->model)
        snprintf(out, size, "%s, %s, %s", infos[i].name, local_gives(&infos[i], gives, sizeof gives), infos[i].precision);
    else
        snprintf(out, size, "command: %s", step->command);
    size_t n = strlen(out);
    if (step->when && n < size)
        snprintf(out + n, size - n, "; goes on when %s", step->when);
    return out;
}
