#include "daemon/keyring.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"

#define MOST_KEYS 10000
static const char head[] = "# Who may speak to this ebbd over the network: role, public key, name. 'ebb keys' and 'ebb invite' edit this file; so may you: ebbd\n"
                           "# reads it again when it changes, and drops whoever is not in it any more.\n";

void keyring_release(struct keyring *r)
{
    mem_free(r->keys);
    mem_free(r->place);
    *r = (struct keyring){0};
}

static int name_fine(const char *name)
{
    size_t n = strlen(name);
    return n > 0 && n < KEYS_NAME_MAX && strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == n;
}

static int read_time(const char *text, int64_t *ms)
{
    struct tm t = {0};
    int end = 0;
    if (sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2dZ%n", &t.tm_year, &t.tm_mon, &t.tm_mday, &t.tm_hour, &t.tm_min, &t.tm_sec, &end) != 6 || !end || text[end])
        return -1;
    t.tm_year -= 1900;
    t.tm_mon -= 1;
    time_t s = timegm(&t);
    if (s <= 0)
        return -1;
    *ms = (int64_t)s * 1000;
    return 0;
}

/* One line, cut into words in place: NULL and *k is filled, or why not. A remark or an empty line leaves k->key empty. */
static const char *read_line(char *line, struct keyring_key *k)
{
    char *save = NULL, *role = strtok_r(line, " \t\r", &save);
    *k = (struct keyring_key){0};
    if (!role || *role == '#')
        return NULL;
    k->invite = strncmp(role, "invite-", 7) == 0;
    if (keys_role_of(role + (k->invite ? 7 : 0), &k->role) || k->role == KEYS_DAEMON)
        return "it begins with none of 'node', 'client', 'invite-node' and 'invite-client'";
    char *key = strtok_r(NULL, " \t\r", &save);
    if (!key || !keys_valid(key))
        return "its second word is not a key of 40 characters";
    for (char *word; (word = strtok_r(NULL, " \t\r", &save));) {
        if (strncmp(word, "until=", 6) == 0) {
            if (read_time(word + 6, &k->until_ms))
                return "'until=' wants a time such as 2026-12-01T20:15:00Z";
        } else if (*k->name || !name_fine(word)) {
            return "its third word is not a name (letters, digits, '.', '_' and '-', less than 64), or there is a fourth";
        } else {
            snprintf(k->name, sizeof k->name, "%s", word);
        }
    }
    if (k->invite && !k->until_ms)
        return "an invitation wants 'until='";
    memcpy(k->key, key, sizeof k->key);
    return NULL;
}

const struct keyring_key *keyring_find(const struct keyring *r, const char *key)
{
    for (size_t i = 0; i < r->count; i++)
        if (strcmp(r->keys[i].key, key) == 0)
            return &r->keys[i];
    return NULL;
}

const struct keyring_key *keyring_user(const struct keyring *r, uint32_t user)
{
    return user && user <= r->last_user && r->place[user - 1] ? &r->keys[r->place[user - 1] - 1] : NULL;
}

const struct keyring_key *keyring_named(const struct keyring *r, const char *name, int *several)
{
    const struct keyring_key *found = keyring_find(r, name);
    *several = 0;
    for (size_t i = 0; !found && i < r->count; i++)
        if (strcmp(r->keys[i].name, name) == 0)
            found = &r->keys[i];
    for (size_t i = 0; found && strcmp(found->key, name) != 0 && i < r->count; i++)
        *several |= &r->keys[i] != found && strcmp(r->keys[i].name, name) == 0;
    return found;
}

void keyring_name(const struct keyring *r, const char *wanted, char out[KEYS_NAME_MAX])
{
    char base[KEYS_NAME_MAX - 12];
    size_t n = 0;
    for (const char *p = wanted; *p && n < sizeof base - 1; p++) {
        int fine = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || strchr("._-", *p);
        base[n++] = fine ? *p : '-';
    }
    base[n] = 0;
    if (!n)
        strcpy(base, "unnamed");
    int several;
    snprintf(out, KEYS_NAME_MAX, "%s", base);
    for (unsigned i = 2; keyring_named(r, out, &several); i++)
        snprintf(out, KEYS_NAME_MAX, "%s-%u", base, i);
}

enum status keyring_read(struct keyring *r, const char *text, size_t len, void (*complain)(void *arg, size_t line, const char *why), void *arg,
                         struct err *e)
{
    struct keyring next = {.last_user = r->last_user};
    size_t number = 0;
    for (const char *p = text, *end = text + len; p < end; number++) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        size_t n = stop ? (size_t)(stop - p) : (size_t)(end - p);
        char line[512];
        const char *why = n < sizeof line ? NULL : "it is too long";
        struct keyring_key k = {0};
        if (!why) {
            memcpy(line, p, n);
            line[n] = 0;
            why = read_line(line, &k);
        } else if (*p == '#') {
            why = NULL;
        }
        p += n + 1;
        if (!why && *k.key && next.count >= MOST_KEYS)
            why = "there are too many keys";
        if (!why && *k.key && keyring_find(&next, k.key))
            why = "its key stands on an earlier line already";
        if (why)
            complain(arg, number + 1, why);
        if (why || !*k.key)
            continue;
        if (mem_grow((void **)&next.keys, &next.cap, next.count, sizeof *next.keys)) {
            keyring_release(&next);
            return err_nomem(e, "keys");
        }
        const struct keyring_key *before = keyring_find(r, k.key);
        /* What a key may do has changed: whoever came with it comes again. */
        int same = before && before->role == k.role && before->invite == k.invite;
        k.user = same ? before->user : ++next.last_user;
        next.keys[next.count++] = k;
    }
    next.place = mem_array(next.last_user, sizeof *next.place);
    if (!next.place) {
        keyring_release(&next);
        return err_nomem(e, "keys");
    }
    for (size_t i = 0; i < next.count; i++)
        next.place[next.keys[i].user - 1] = (uint32_t)i + 1;
    mem_free(r->keys);
    mem_free(r->place);
    *r = next;
    return ST_OK;
}

int keyring_add(struct buf *out, const struct keyring_key *k)
{
    if (!out->len && buf_str(out, head))
        return -1;
    if (out->len && out->data[out->len - 1] != '\n' && buf_char(out, '\n'))
        return -1;
    if (buf_printf(out, "%s%s %s %s", k->invite ? "invite-" : "", keys_role_word(k->role), k->key, k->name))
        return -1;
    if (k->until_ms) {
        time_t s = (time_t)(k->until_ms / 1000);
        struct tm t;
        char text[40];
        gmtime_r(&s, &t);
        strftime(text, sizeof text, " until=%Y-%m-%dT%H:%M:%SZ", &t);
        if (buf_str(out, text))
            return -1;
    }
    return buf_char(out, '\n');
}

int keyring_without(struct buf *out, const char *text, size_t len, const char *key, int64_t now_ms)
{
    for (const char *p = text, *end = text + len; p < end;) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        size_t n = stop ? (size_t)(stop - p) + 1 : (size_t)(end - p);
        char line[512];
        struct keyring_key k = {0};
        if (n < sizeof line) {
            memcpy(line, p, n);
            line[n - (stop ? 1 : 0)] = 0;
            if (read_line(line, &k))
                k.key[0] = 0;
        }
        int goes = *k.key && (strcmp(k.key, key) == 0 || (k.invite && k.until_ms <= now_ms));
        if (!goes && buf_add(out, p, n))
            return -1;
        p += n;
    }
    return 0;
}
