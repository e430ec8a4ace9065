/* mkmodel DIR [seed] [hidden] [layers] [vocab] [NAME=VALUE...]: writes a tiny random encoder (tests/lib/tinymodel.h) for shell tests. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/tinymodel.h"

static uint32_t number(const char *s)
{
    char *end;
    unsigned long v = strtoul(s, &end, 10);
    if (*s < '0' || *s > '9' || *end || v > 1000000) {
        fprintf(stderr, "mkmodel: '%s' is not a number up to 1000000\n", s);
        exit(2);
    }
    return (uint32_t)v;
}

int main(int argc, char **argv)
{
    struct tinymodel t = {0};
    uint32_t *positional[] = {&t.seed, &t.hidden, &t.layers, &t.vocab};
    if (argc < 2) {
        fprintf(stderr, "usage: mkmodel DIR [seed] [hidden] [layers] [vocab] [NAME=VALUE...]\n");
        return 2;
    }
    for (int i = 2; i < argc; i++) {
        if (!strchr(argv[i], '=') && i - 2 < 4)
            *positional[i - 2] = number(argv[i]);
        else if (tinymodel_set(&t, argv[i]) != 0)
            return 2;
    }
    return tinymodel_write(argv[1], &t) == 0 ? 0 : 1;
}
