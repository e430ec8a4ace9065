/* What a function prints, as text. */
#ifndef EBB_TESTS_CAPTURE_H
#define EBB_TESTS_CAPTURE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct capture {
    FILE *stream, *file;
    int saved;
};

static inline void capture_begin(struct capture *c, FILE *stream)
{
    fflush(stream);
    c->stream = stream;
    c->file = tmpfile();
    c->saved = dup(fileno(stream));
    if (!c->file || c->saved < 0 || dup2(fileno(c->file), fileno(stream)) < 0)
        abort();
}

/* The caller frees. */
static inline char *capture_end(struct capture *c)
{
    fflush(c->stream);
    dup2(c->saved, fileno(c->stream));
    close(c->saved);
    long len = ftell(c->file);
    fseek(c->file, 0, SEEK_END);
    len = ftell(c->file);
    rewind(c->file);
    char *text = calloc(1, (size_t)len + 1);
    if (!text || fread(text, 1, (size_t)len, c->file) != (size_t)len)
        abort();
    fclose(c->file);
    return text;
}

#endif
