/* What the fuzz targets of a model's files share: a folder in memory with one file in it. */
#ifndef EBB_TESTS_MODEL_FILES_H
#define EBB_TESTS_MODEL_FILES_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char fuzz_folder[64], fuzz_path[128];

static inline void fuzz_file(const char *name, const uint8_t *data, size_t size)
{
    if (!fuzz_folder[0]) {
        snprintf(fuzz_folder, sizeof fuzz_folder, "/dev/shm/ebb-fuzz-%d", (int)getpid());
        mkdir(fuzz_folder, 0700);
    }
    snprintf(fuzz_path, sizeof fuzz_path, "%s/%s", fuzz_folder, name);
    FILE *f = fopen(fuzz_path, "w");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f))
        abort();
}

#endif
