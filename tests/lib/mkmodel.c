/* mkmodel DIR [seed] [hidden] [layers] [vocab]: writes a tiny random sentence encoder (tests/lib/tinymodel.h) for shell tests. */
#include <stdio.h>
#include <stdlib.h>

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
    if (argc < 2 || argc > 6) {
        fprintf(stderr, "usage: mkmodel DIR [seed] [hidden] [layers] [vocab]\n");
        return 2;
    }
    struct tinymodel t = {0};
    uint32_t *field[] = {&t.seed, &t.hidden, &t.layers, &t.vocab};
    for (int i = 2; i < argc; i++)
        *field[i - 2] = number(argv[i]);
    return tinymodel_write(argv[1], &t) == 0 ? 0 : 1;
}
