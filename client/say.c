/* How the client speaks. */
#include "client/client.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

struct common common;

static int coloured(void)
{
    const char *term = getenv("TERM"), *no = getenv("NO_COLOR");
    return isatty(STDERR_FILENO) && !(no && *no) && term && strcmp(term, "dumb") != 0;
}

void say(const char *fmt, ...)
{
    if (common.quiet)
        return;
    va_list ap;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

void advise(const char *fmt, ...)
{
    va_list ap;
    fputs("   ", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

/* Prints text up to `end`, quoted paths as a person would write them here. */
static void print_shortened(const char *text, const char *end)
{
    char here[4096] = "'";
    size_t n = getcwd(here + 1, sizeof here - 2) ? strlen(here) : 0;
    if (n > 2)
        here[n++] = '/'; /* "'/home/ann/" */
    while (text < end) {
        const char *quote = memchr(text, '\'', (size_t)(end - text));
        size_t plain = (size_t)((quote ? quote + 1 : end) - text);
        fwrite(text, 1, plain, stderr);
        text += plain;
        if (quote && n > 2 && (size_t)(end - quote) > n && memcmp(quote, here, n) == 0 && quote[n] != '\'')
            text += n - 1;
    }
}

void print_error_line(const char *text)
{
    fputs(coloured() ? "\033[1;31merror:\033[0m " : "error: ", stderr);
    for (int depth = 0; *text;) { /* a "; " between brackets parts nothing */
        const char *end = text;
        size_t skip = 0;
        for (; *end && !skip; end += !skip) {
            depth += *end == '(' ? 1 : *end == ')' && depth ? -1 : 0;
            skip = *end == '\n' ? 1 : depth == 0 && end[0] == ';' && end[1] == ' ' ? 2 : 0;
        }
        print_shortened(text, end);
        fputc('\n', stderr);
        text = end + skip;
        text += strspn(text, " ");
        if (*text)
            fputs("   ", stderr);
        if (skip == 1)
            depth = 0;
    }
}

int fail(const struct err *e)
{
    print_error_line(e->text);
    return status_exit_code(e->code);
}

int fail_with(enum status code, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    print_error_line(text);
    return status_exit_code(code);
}

int print_json(json_t *j)
{
    char *text = j ? json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(10)) : NULL;
    json_decref(j);
    if (!text)
        return fail_with(ST_NOMEM, "out of memory for an answer");
    puts(text);
    fflush(stdout);
    free(text); /* jansson's own allocator */
    return EXIT_DONE;
}

void print_field(const char *name, const char *fmt, ...)
{
    printf("%-7s ", name);
    va_list ap;
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
}

/* Tables -------------------------------------------------------------------------------------------------------------------------- */

struct table {
    size_t columns, count, cap;
    char **cells;
    int failed;
};

void table_row(struct table *t, const char *const *cells)
{
    for (size_t i = 0; t && i < t->columns; i++) {
        char *copy = mem_strdup(cells[i]);
        if (!copy || mem_grow((void **)&t->cells, &t->cap, t->count, sizeof *t->cells)) {
            mem_free(copy);
            t->failed = 1;
            return;
        }
        t->cells[t->count++] = copy;
    }
}

struct table *table_new(size_t columns, const char *const *headings)
{
    struct table *t = mem_zalloc(sizeof *t);
    if (t)
        t->columns = columns;
    table_row(t, headings);
    return t;
}

/* Columns of a terminal, for text in few scripts: one a code point. */
static size_t width_of(const char *s)
{
    size_t n = 0;
    for (; *s; s++)
        n += ((unsigned char)*s & 0xC0) != 0x80;
    return n;
}

void table_print(struct table *t, FILE *to)
{
    if (!t || t->failed)
        fail_with(ST_NOMEM, "out of memory for a table");
    for (size_t i = 0; t && !t->failed && i < t->count; i++) {
        size_t column = i % t->columns, widest = 0, own = width_of(t->cells[i]);
        for (size_t j = column; j < t->count; j += t->columns)
            if (width_of(t->cells[j]) > widest)
                widest = width_of(t->cells[j]);
        fprintf(to, "%s%s", column ? "  " : " ", t->cells[i]);
        if (column + 1 < t->columns)
            fprintf(to, "%*s", (int)(widest - own), "");
        else
            fputc('\n', to);
    }
    for (size_t i = 0; t && i < t->count; i++)
        mem_free(t->cells[i]);
    if (t)
        mem_free(t->cells);
    mem_free(t);
}

/* Words and answers --------------------------------------------------------------------------------------------------------------- */

const char *short_path(const char *path)
{
    char here[4096];
    size_t n;
    if (getcwd(here, sizeof here) && (n = strlen(here)) > 1 && strncmp(path, here, n) == 0 && path[n] == '/' && path[n + 1])
        return path + n + 1;
    return path;
}

enum status parse_job(const char *word, uint64_t *job, struct err *e)
{
    char *end;
    errno = 0;
    unsigned long long n = strtoull(word, &end, 10);
    if (*word < '0' || *word > '9' || *end || errno || n == 0 || n > INT64_MAX)
        return err_set(e, ST_USER, "'%.60s' is no job's number; 'ebb jobs --all' lists them", word);
    *job = n;
    return ST_OK;
}

const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

double number_of(const json_t *o, const char *key, double otherwise)
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : otherwise;
}

uint64_t count_of(const json_t *o, const char *key)
{
    json_int_t n = json_integer_value(json_object_get(o, key));
    return n > 0 ? (uint64_t)n : 0;
}

/* Signals ------------------------------------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t taken;

static void take(int number)
{
    (void)number;
    taken = taken + 1;
}

void signals_take(void)
{
    struct sigaction a = {.sa_handler = take}; /* without SA_RESTART: waiting ends at once */
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGHUP, &a, NULL);
    signal(SIGPIPE, SIG_IGN);
}

int signals_count(void)
{
    return (int)taken;
}
