#include "workers/pipeline/testhook.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

#define PREFIX "EBB_TEST_"
/* Where there is no limit, 1 TiB passes for all memory; less where an instrumented allocator touches it. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define MOST_CHUNKS 64
#else
#define MOST_CHUNKS (1 << 16)
#endif

static int is_set(const char *name)
{
    const char *value = getenv(name);
    return value && strcmp(value, "1") == 0;
}

int testhook_on(void)
{
    static atomic_int on = -1;
    int known = on;
    if (known < 0)
        on = known = is_set("EBB_TEST_HOOK");
    return known;
}

/* Sanitizers leave it alone: it is to look like any other crash. */
__attribute__((noinline, no_sanitize("undefined", "address", "thread"))) static void crash(void)
{
    volatile int *volatile nowhere = NULL; /* read when it runs: the compiler takes a store to a known null for one that never happens */
    *nowhere = 1;
}

static const char *after(const char *text, const char *word)
{
    const char *at = strstr(text, word);
    return at ? at + strlen(word) : NULL;
}

/* Whether a record beside number `self` contains the word that stands at `word`. */
static int has_neighbour(char *const *texts, size_t n, size_t self, const char *word)
{
    size_t len = strcspn(word, " \t\r\n\"");
    char *copy = mem_strndup(word, len);
    int found = 0;
    for (size_t i = 0; copy && i < n && !found; i++)
        found = i != self && texts[i] && strstr(texts[i], copy) != NULL;
    mem_free(copy);
    return found;
}

/* Waits until the file is there. */
static void gate(const char *word)
{
    char *path = mem_strndup(word, strcspn(word, " \t\r\n\""));
    while (path && access(path, F_OK) != 0)
        clock_sleep_ms(2);
    mem_free(path);
}

static void eat(void)
{
    for (int k = 0; k < MOST_CHUNKS && mem_alloc(16u << 20); k++) /* untouched: the limit counts what is asked for */
        ;
}

static int one(char *const *texts, size_t n, size_t i)
{
    const char *text = texts[i], *at;
    if ((at = after(text, PREFIX "CRASH_WITH:"))) {
        if (has_neighbour(texts, n, i, at))
            crash();
    } else if (after(text, PREFIX "CRASH")) {
        crash();
    }
    while (after(text, PREFIX "HANG"))
        clock_sleep_ms(1000);
    if (after(text, PREFIX "EAT"))
        eat();
    if ((at = after(text, PREFIX "GATE:")))
        gate(at);
    if ((at = after(text, PREFIX "SLOW:")))
        clock_sleep_ms(strtoul(at, NULL, 10));
    return strstr(text, PREFIX "EAT") != NULL;
}

int testhook_stage(const int32_t *ids, size_t n)
{
    const char *what = testhook_on() ? getenv("EBB_TEST_STAGE") : NULL, *id = what ? strchr(what, ':') : NULL;
    int found = 0;
    for (size_t i = 0; id && i < n && !found; i++)
        found = ids[i] == atoi(id + 1);
    if (!found)
        return 0;
    if (strncmp(what, "crash:", 6) == 0)
        crash();
    while (strncmp(what, "hang:", 5) == 0)
        clock_sleep_ms(1000);
    if (strncmp(what, "gate:", 5) == 0 && strchr(id + 1, ':'))
        gate(strchr(id + 1, ':') + 1);
    if (strncmp(what, "eat:", 4) == 0)
        eat();
    return strncmp(what, "eat:", 4) == 0;
}

uint64_t testhook_stage_timeout_ms(void)
{
    const char *ms = testhook_on() ? getenv("EBB_TEST_STAGE_TIMEOUT") : NULL;
    return ms ? strtoul(ms, NULL, 10) : 0;
}

int testhook_run(char *const *texts, size_t n)
{
    if (!testhook_on())
        return 0;
    if (is_set("EBB_TEST_BROKEN_MODEL"))
        crash();
    int out_of_memory = 0;
    for (size_t i = 0; i < n; i++)
        if (texts[i])
            out_of_memory |= one(texts, n, i);
    return out_of_memory;
}
