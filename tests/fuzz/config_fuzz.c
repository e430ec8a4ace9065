/* config.json of anybody: refused, or a configuration whose numbers fit each other. Asked for what it was made for, and for each task. */
#include "tests/fuzz/model_files.h"

#include "workers/engine/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const tasks[] = {NULL, "embed", "classify", "token-classify", "fill-mask"};
    fuzz_file("config.json", data, size);
    for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++) {
        struct model_config c = {0};
        struct err e;
        enum status st = config_read(fuzz_folder, tasks[i], &c, &e);
        if (st != ST_OK && st != ST_USER)
            abort();
        if (st != ST_OK)
            continue;
        if (!c.heads || c.hidden % c.heads || !c.groups || c.layers % c.groups || !c.max_tokens || c.max_tokens > c.positions)
            abort();
        config_release(&c);
    }
    return 0;
}
