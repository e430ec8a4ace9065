#include "workers/command/noise.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "storage/utf8.h"

#define LINE_MS 100          /* ten a second for long */
#define BURST_MS 5000        /* fifty at once: a traceback */

int noise_allowed(struct noise_limit *l, uint64_t now_ms, uint64_t *left_out)
{
    if (!l->begun) {
        l->begun = 1;
        l->tokens_ms = BURST_MS;
    } else {
        l->tokens_ms += now_ms - l->since_ms;
    }
    l->since_ms = now_ms;
    if (l->tokens_ms > BURST_MS)
        l->tokens_ms = BURST_MS;
    if (l->tokens_ms < LINE_MS) {
        l->left_out++;
        return 0;
    }
    l->tokens_ms -= LINE_MS;
    *left_out = l->left_out;
    l->left_out = 0;
    return 1;
}

static void say(struct noise *n, const char *name, uint32_t child, struct noise_limit *l, uint64_t now_ms)
{
    char *line = n->last[n->said % NOISE_LAST];
    uint64_t left_out = 0;
    if (n->len == 0)
        return;
    memcpy(line, n->line, n->len);
    line[n->len] = '\0';
    n->len = 0;
    for (char *p = line; *p;) { /* a zero byte ends the line, which is as well */
        p += utf8_prefix(p, strlen(p));
        if (*p)
            *p++ = '?';
    }
    for (char *p = line; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = ' ';
    if (line[strspn(line, " ")] == '\0')
        return;
    n->said++;
    if (!noise_allowed(l, now_ms, &left_out))
        return;
    if (left_out)
        log_info("%s: %" PRIu64 " lines of its commands were left out here", name, left_out);
    log_info("%s: command %" PRIu32 ": %s", name, child, line);
}

void noise_add(struct noise *n, const char *bytes, size_t len, const char *name, uint32_t child, struct noise_limit *l, uint64_t now_ms)
{
    for (size_t i = 0; i < len; i++)
        if (bytes[i] == '\n' || bytes[i] == '\r') /* bars of progress */
            say(n, name, child, l, now_ms);
        else if (n->len < sizeof n->line - 1)
            n->line[n->len++] = bytes[i];
}

void noise_end(struct noise *n, const char *name, uint32_t child, struct noise_limit *l, uint64_t now_ms)
{
    say(n, name, child, l, now_ms);
}

void noise_words(const struct noise *n, unsigned lines, char *out, size_t size)
{
    uint64_t from = n->said > lines ? n->said - lines : 0;
    size_t at = 0;
    *out = '\0';
    for (uint64_t i = from; i < n->said && at + 1 < size; i++) {
        const char *line = n->last[i % NOISE_LAST];
        int len = snprintf(out + at, size - at, "%s%s", i > from ? " | " : "", line + strspn(line, " "));
        if (len < 0)
            break;
        at += (size_t)len;
    }
    utf8_tidy(out);
}
