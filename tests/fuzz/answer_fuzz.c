/* What a command says: an answer to a record with this id or that, or none; its standard error becomes lines that can be printed. The first byte says
   how long the id is, and in what pieces standard error comes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "storage/utf8.h"
#include "workers/command/answer.h"
#include "workers/command/noise.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void printable(const char *text, size_t most)
{
    size_t len = strlen(text);
    if (len >= most || utf8_prefix(text, len) != len)
        abort();
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct answer a;
    static struct noise_limit limit;
    if (!size)
        return 0;
    log_init("answer_fuzz", LOG_ERROR);
    const char *id = (const char *)data + 1, *line;
    size_t id_len = data[0] % 32 < size - 1 ? data[0] % 32 : size - 1, len = size - 1 - id_len;
    line = id + id_len;
    /* an id comes out of a record that was read: a string or a number, whole */
    int whole = id_len && utf8_prefix(id, id_len) == id_len && *id != '{' && *id != '[' && json_is_value(id, id_len) && (*id != '"' || id[id_len - 1] == '"');
    answer_read(&a, line, len, whole ? id : NULL, whole ? id_len : 0);
    if (a.kind != ANSWER_GARBAGE && (utf8_prefix(line, len) != len || !json_is_value(line, len)))
        abort();
    if (a.kind == ANSWER_NOMEM || (a.echoes && (a.kind == ANSWER_OTHER || a.kind == ANSWER_GARBAGE || !whole)))
        abort();
    printable(a.text, sizeof a.text);
    if ((a.kind == ANSWER_VALUE) != !*a.text)
        abort();

    struct noise n = {0};
    char words[2000];
    size_t piece = 1 + data[0] / 8u;
    for (size_t at = 0; at < len; at += piece)
        noise_add(&n, line + at, len - at < piece ? len - at : piece, "fuzz", 0, &limit, at);
    noise_end(&n, "fuzz", 0, &limit, len);
    noise_words(&n, NOISE_LAST, words, sizeof words);
    printable(words, sizeof words);
    noise_words(&n, 1, words, 10);
    printable(words, 10);
    return 0;
}
