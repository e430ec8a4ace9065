/* A job as JSON, from a client: refused, or one that goes back to JSON and is the same again. */
#include <stdlib.h>
#include <string.h>

#include "wire/jobspec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct jobspec s, again;
    struct err e;
    if (jobspec_init(&s, &e) != ST_OK || jobspec_init(&again, &e) != ST_OK)
        abort();
    if (jobspec_from_json(&s, (const char *)data, size, &e) == ST_OK && jobspec_check(&s, &e) == ST_OK) {
        json_t *first = jobspec_to_json(&s);
        char *text = json_dumps(first, JSON_COMPACT);
        if (jobspec_from_json(&again, text, strlen(text), &e) != ST_OK)
            abort();
        json_t *second = jobspec_to_json(&again);
        if (!json_equal(first, second))
            abort();
        json_decref(first);
        json_decref(second);
        free(text); /* jansson's own */
    }
    jobspec_release(&s);
    jobspec_release(&again);
    return 0;
}
