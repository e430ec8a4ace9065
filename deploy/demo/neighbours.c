/* Nearest neighbours of a few sentences, by the cosine of their embeddings, so that a person sees that it works.
   usage: demo-neighbours EMBEDDINGS.npy EMBEDDINGS.ids.jsonl TEXTS.jsonl ID... */
#include <fcntl.h>
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIMS 384
#define BEST 4

static void die(const char *what, const char *path)
{
    fprintf(stderr, "demo-neighbours: %s '%s'\n", what, path);
    exit(1);
}

static const char *map(const char *path, size_t *len)
{
    struct stat s;
    int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &s))
        die("cannot read", path);
    *len = (size_t)s.st_size;
    const char *p = mmap(NULL, *len, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        die("cannot map", path);
    return p;
}

/* The lines of a file as JSON texts: whole lines, or the member `key` of each. */
static char **texts(const char *path, const char *key, size_t *count)
{
    FILE *f = fopen(path, "r");
    if (!f)
        die("cannot open", path);
    char **out = NULL, *line = NULL;
    size_t cap = 0, room = 0;
    *count = 0;
    while (getline(&line, &cap, f) > 0) {
        json_t *j = json_loads(line, JSON_DECODE_ANY, NULL);
        const char *s = json_string_value(key ? json_object_get(j, key) : j);
        if (*count == room)
            out = realloc(out, (room = room ? room * 2 : 1024) * sizeof *out);
        if (!s || !out)
            die("a line is not what it should be in", path);
        out[(*count)++] = strdup(s);
        json_decref(j);
    }
    free(line);
    fclose(f);
    return out;
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "usage: %s EMBEDDINGS.npy EMBEDDINGS.ids.jsonl TEXTS.jsonl ID...\n", argv[0]);
        return 2;
    }
    size_t len, rows, lines;
    const char *npy = map(argv[1], &len);
    char **ids = texts(argv[2], NULL, &rows), **words = texts(argv[3], "text", &lines);
    size_t header = 10 + (size_t)(uint8_t)npy[8] + 256u * (uint8_t)npy[9];
    if (len != header + rows * DIMS * sizeof(float) || lines != rows)
        die("rows, ids and texts do not agree in", argv[1]);
    const float *e = (const void *)(npy + header);
    for (int a = 4; a < argc; a++) {
        size_t q = 0;
        while (q < rows && strcmp(ids[q], argv[a]) != 0)
            q++;
        if (q == rows)
            die("no such id", argv[a]);
        size_t best[BEST] = {0};
        float score[BEST] = {-2, -2, -2, -2};
        for (size_t i = 0; i < rows; i++) {
            float dot = 0;
            for (size_t k = 0; k < DIMS; k++)
                dot += e[q * DIMS + k] * e[i * DIMS + k];
            if (i == q || dot <= score[BEST - 1])
                continue;
            int at = BEST - 1;
            for (; at > 0 && score[at - 1] < dot; at--) {
                score[at] = score[at - 1];
                best[at] = best[at - 1];
            }
            score[at] = dot;
            best[at] = i;
        }
        printf("\n%s\n", words[q]);
        for (int i = 0; i < BEST; i++)
            printf("  %.3f  %s\n", (double)score[i], words[best[i]]);
    }
    return 0;
}
