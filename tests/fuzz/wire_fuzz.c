/* Bytes from a peer: refused, or a message that goes back to bytes and can be read again (or is refused then: fields that nobody knows come back as the
   library keeps them). */
#include <stdlib.h>
#include <string.h>

#include "wire/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Ebb__Envelope *m, *again;
    struct buf bytes = {0};
    if (wire_decode(data, size, &m, NULL) != ST_OK)
        return 0;
    if (wire_encode(m->body_case, m->hello, &bytes, NULL) != ST_OK)
        abort();
    if (wire_decode(bytes.data, bytes.len, &again, NULL) == ST_OK) {
        if (again->body_case != m->body_case)
            abort();
        wire_free(again);
    }
    wire_free(m);
    buf_release(&bytes);
    return 0;
}
