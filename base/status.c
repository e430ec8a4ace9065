#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum status fill(struct err *e, enum status code, const char *fmt, va_list ap)
{
    if (e) {
        e->code = code;
        vsnprintf(e->text, sizeof e->text, fmt, ap);
    }
    return code;
}

enum status err_set(struct err *e, enum status code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fill(e, code, fmt, ap);
    va_end(ap);
    return code;
}

enum status err_errno(struct err *e, enum status code, int errnum, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fill(e, code, fmt, ap);
    va_end(ap);
    if (e) {
        size_t n = strlen(e->text);
        snprintf(e->text + n, sizeof e->text - n, ": %s", strerror(errnum));
    }
    return code;
}

enum status err_nomem(struct err *e, const char *what)
{
    return err_set(e, ST_NOMEM, "out of memory for %s", what);
}

enum status err_prefix(struct err *e, const char *fmt, ...)
{
    if (!e)
        return ST_ENV;
    char old[sizeof e->text];
    memcpy(old, e->text, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof e->text - 3) { /* what does not fit is cut */
        size_t room = sizeof e->text - (size_t)n - 3, len = strnlen(old, room);
        memcpy(e->text + n, ": ", 2);
        memcpy(e->text + n + 2, old, len);
        e->text[(size_t)n + 2 + len] = 0;
    }
    return e->code;
}

static const struct {
    const char *name;
    int exit_code;
} codes[] = {
#define X(n, exit_code, words) [ST_##n] = {#n, exit_code},
    STATUS_MAP(X)
#undef X
};

int status_exit_code(enum status code)
{
    return codes[code].exit_code;
}

const char *status_name(enum status code)
{
    return codes[code].name;
}

noreturn void bug_at(const char *file, int line, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "BUG at %s:%d: ", file, line);
    vfprintf(stderr, fmt, ap);
    fputs("\nthis is a fault in ebb itself; please report it with the lines above\n", stderr);
    va_end(ap);
    fflush(stderr);
    abort();
}
