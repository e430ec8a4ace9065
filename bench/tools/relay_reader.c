/* Reads a source of a job as a worker on another host does, and says how fast: relay_reader ENDPOINT JOB SOURCE BYTES [KEY-FILE]. Prints bytes and seconds. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "storage/source.h"
#include "wire/keys.h"
#include "workers/remote/inside.h"

static void check(enum status st, const struct err *e)
{
    if (st == ST_OK)
        return;
    fprintf(stderr, "relay_reader: %s\n", e->text);
    exit(1);
}

int main(int argc, char **argv)
{
    struct err e;
    struct keys keys;
    struct remote *r;
    if (argc < 5) {
        fprintf(stderr, "relay_reader ENDPOINT JOB SOURCE BYTES [KEY-FILE]\n");
        return 2;
    }
    if (argc > 5)
        check(keys_read(argv[5], KEYS_NODE, &keys, &e), &e);
    struct remote_opts o = {.endpoint = argv[1], .keys = argc > 5 ? &keys : NULL, .host = "bench"};
    if (getrandom(&o.number, sizeof o.number, 0) != sizeof o.number)
        return 1;
    check(remote_new(&o, &r, &e), &e);
    struct source s = {.path = "(the source)", .size_bytes = strtoull(argv[4], NULL, 10), .via = &r->far, .job = strtoull(argv[2], NULL, 10),
                       .index = strtoull(argv[3], NULL, 10)};
    char *block = mem_alloc(1 << 20);
    if (!block)
        return 1;
    uint64_t bytes = 0, begun = clock_ns();
    struct source_file in;
    check(source_open(&s, 0, &in, &e), &e);
    for (size_t got = 1; got; bytes += got)
        check(source_read(&in, block, 1 << 20, &got, &e), &e);
    source_close(&in);
    printf("%" PRIu64 " %.6f\n", bytes, (double)(clock_ns() - begun) / 1e9);
    remote_free(r);
    mem_free(block);
    return bytes == s.size_bytes ? 0 : 1;
}
