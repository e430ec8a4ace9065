/* How fast is tokenising, on one core? Usage: build/bench/tokenise MODEL-FOLDER TEXT-FILE [SECONDS]
   Every line of the file is one text; WordNet's data.* files are cut to their glosses. The best of several rounds counts. The
   last line of output is JSON. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "workers/text/tokenizer.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int fail(const struct err *e)
{
    fprintf(stderr, "tokenise: %s\n", e->text);
    return status_exit_code(e->code);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct tokenizer *t;
    struct tok_scratch *s;
    char *usual[] = {argv[0], (char *)"build/demo/all-MiniLM-L6-v2", (char *)"/usr/share/wordnet/data.noun", NULL};
    if (argc == 1) {
        argv = usual;
        argc = 3;
    }
    if (argc < 3) {
        fprintf(stderr, "usage: tokenise [MODEL-FOLDER TEXT-FILE [SECONDS]]\n");
        return 2;
    }
    double start = now();
    if (tokenizer_open(argv[1], &t, &e) != ST_OK || tok_scratch_new(&s, &e) != ST_OK)
        return fail(&e);
    double open_ms = (now() - start) * 1e3;

    FILE *f = fopen(argv[2], "r");
    if (!f) {
        perror(argv[2]);
        return 1;
    }
    const char *name = strrchr(argv[2], '/');
    int wordnet = !strncmp(name ? name + 1 : argv[2], "data.", 5);
    char *data = NULL, *line = NULL;
    size_t len = 0, room = 0, cap = 0, lines = 0;
    for (ssize_t n; (n = getline(&line, &cap, f)) > 0;) {
        const char *p = line;
        if (wordnet && !(p = strstr(line, " | ")))
            continue;
        if (wordnet)
            p += 3;
        size_t more = strcspn(p, "\n");
        if (len + more + 1 > room && !(data = realloc(data, room = 2 * (len + more + 1)))) {
            perror("tokenise");
            return 1;
        }
        memcpy(data + len, p, more);
        data[len + more] = '\n';
        len += more + 1;
        lines++;
    }
    fclose(f);
    free(line);
    if (!lines) {
        fprintf(stderr, "tokenise: '%s' has no text\n", argv[2]);
        return 1;
    }

    double seconds = argc > 3 ? atof(argv[3]) : 2, best = 1e9;
    size_t tokens = 0, rounds = 0;
    for (double stop = now() + seconds; rounds < 3 || now() < stop; rounds++) {
        tokens = 0;
        start = now();
        for (const char *p = data, *nl; p < data + len; p = nl + 1) {
            struct tok_result r;
            nl = memchr(p, '\n', (size_t)(data + len - p));
            if (tokenizer_encode(t, s, p, (size_t)(nl - p), 0, &r, &e) != ST_OK)
                return fail(&e);
            tokens += r.count;
        }
        double took = now() - start;
        if (took < best)
            best = took;
    }
    printf("%zu texts, %.1f MB, %zu tokens, best of %zu rounds %.3f s; opening the tokenizer took %.1f ms\n", lines, (double)len * 1e-6,
           tokens, rounds, best, open_ms);
    printf("{\"bench\":\"tokenise\",\"mb_per_s\":%.1f,\"tokens_per_s\":%.0f,\"open_ms\":%.1f}\n", (double)len * 1e-6 / best,
           (double)tokens / best, open_ms);
    free(data);
    tok_scratch_free(s);
    tokenizer_free(t);
    return 0;
}
