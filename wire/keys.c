#include "wire/keys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include "base/buf.h"
#include "base/path.h"

#define FILE_MAX 4096

static const char *const role_words[] = {
#define X(name, word, words) word,
    KEYS_ROLES(X)
#undef X
};
static const char *const role_people[] = {
#define X(name, word, words) words,
    KEYS_ROLES(X)
#undef X
};
#define ROLES (sizeof role_words / sizeof *role_words)

const char *keys_role_word(enum keys_role role)
{
    BUG_IF((size_t)role >= ROLES, "no role %d", (int)role);
    return role_words[role];
}

int keys_role_of(const char *word, enum keys_role *out)
{
    for (size_t i = 0; i < ROLES; i++)
        if (strcmp(word, role_words[i]) == 0) {
            *out = (enum keys_role)i;
            return 0;
        }
    return -1;
}

int keys_valid(const char *z85)
{
    uint8_t bytes[32];
    return strlen(z85) == KEYS_Z85 && zmq_z85_decode(bytes, z85) != NULL;
}

enum status keys_generate(struct keys *k, struct err *e)
{
    *k = (struct keys){{0}, {0}, {0}};
    if (zmq_curve_keypair(k->public_key, k->secret_key))
        return err_set(e, ST_ENV, "cannot make keys: %s", errno == ENOTSUP ? "ZeroMQ was built without CURVE" : zmq_strerror(errno));
    return ST_OK;
}

enum status keys_derive(struct keys *k, struct err *e)
{
    if (zmq_curve_public(k->public_key, k->secret_key))
        return err_set(e, ST_USER, "the secret key is none: %s", zmq_strerror(errno));
    return ST_OK;
}

void keys_wipe(struct keys *k)
{
    explicit_bzero(k, sizeof *k);
}

enum status keys_give(const char *path, const char *folder, struct err *e)
{
    struct stat s;
    if (geteuid() != 0)
        return ST_OK;
    if (stat(folder, &s))
        return err_errno(e, ST_ENV, errno, "cannot look at '%s'", folder);
    return s.st_uid && lchown(path, s.st_uid, s.st_gid) ? err_errno(e, ST_ENV, errno, "cannot give '%s' to the owner of its folder", path) : ST_OK;
}

enum status keys_endpoint(const char *text, enum keys_role role, char out[KEYS_ENDPOINT_MAX], struct err *e)
{
    const char *host = strncmp(text, "tcp://", 6) == 0 ? text + 6 : text, *end = host + strlen(host);
    const char *behind = *host == '[' ? strchr(host, ']') : strrchr(host, ':'); /* [::1]:5570 */
    const char *colon = *host == '[' && behind ? (behind[1] == ':' ? behind + 1 : NULL) : behind;
    long port = role == KEYS_CLIENT ? KEYS_NODE_PORT + 1 : KEYS_NODE_PORT;
    int bad = !*host || end - host > 200 || strpbrk(host, "/ @;'\"") || (*host == '[' && (!behind || (behind[1] && behind[1] != ':'))) || colon == host;
    if (colon && !bad) {
        bad = !colon[1] || strlen(colon + 1) > 5 || strspn(colon + 1, "0123456789") != strlen(colon + 1) || (*host != '[' && strchr(host, ':') != colon);
        port = bad ? 0 : strtol(colon + 1, NULL, 10);
    }
    if (bad || port < 1 || port > 65535)
        return err_set(e, ST_USER, "'%.200s' is no address of a daemon: write tcp://HOST:PORT", text);
    snprintf(out, KEYS_ENDPOINT_MAX, "tcp://%.*s:%ld", (int)((colon ? colon : end) - host), host, port);
    return ST_OK;
}

/* Files ---------------------------------------------------------------------------------------------------------------------------- */

static enum status take_line(struct keys_file *k, int *has_role, const char *file, size_t line, const char *word, const char *value, struct err *e)
{
    const struct {
        const char *word;
        char *to;
        size_t size;
    } texts[] = {{"public", k->keys.public_key, sizeof k->keys.public_key},
                 {"secret", k->keys.secret_key, sizeof k->keys.secret_key},
                 {"server", k->keys.server_key, sizeof k->keys.server_key},
                 {"daemon", k->daemon, sizeof k->daemon},
                 {"name", k->name, sizeof k->name}};
    if (strcmp(word, "role") == 0) {
        *has_role = 1;
        return keys_role_of(value, &k->role) == 0 ? ST_OK : err_set(e, ST_USER, "'%s':%zu: unknown role '%.40s'", file, line, value);
    }
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (strcmp(word, texts[i].word) != 0)
            continue;
        if (i < 3 && !keys_valid(value))
            return err_set(e, ST_USER, "'%s':%zu: what stands behind '%s:' is not a key of 40 characters", file, line, word);
        if (strlen(value) >= texts[i].size)
            return err_set(e, ST_USER, "'%s':%zu: what stands behind '%s:' is too long", file, line, word);
        memcpy(texts[i].to, value, strlen(value) + 1);
        return ST_OK;
    }
    return err_set(e, ST_USER, "'%s':%zu: not a line of a key file", file, line);
}

/* `text` is cut into lines in place. */
static enum status parse(char *text, const char *file, struct keys_file *k, struct err *e)
{
    int has_role = 0;
    size_t number = 0;
    for (char *line = text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        number++;
        line += strspn(line, " \t");
        for (size_t n = strlen(line); n > 0 && strchr(" \t\r", line[n - 1]); n--)
            line[n - 1] = 0;
        if (!*line || *line == '#')
            continue;
        char *colon = strstr(line, ": ");
        if (!colon)
            return err_set(e, ST_USER, "'%s':%zu: not a line of a key file", file, number);
        *colon = 0;
        TRY(take_line(k, &has_role, file, number, line, colon + 2 + strspn(colon + 2, " \t"), e));
    }
    if (!has_role || !*k->keys.public_key || !*k->keys.secret_key)
        return err_set(e, ST_USER, "'%s' is not a whole key file: '%s' is missing", file, !has_role ? "role" : !*k->keys.public_key ? "public" : "secret");
    if (k->role != KEYS_DAEMON && !*k->keys.server_key)
        return err_set(e, ST_USER, "'%s' does not name the daemon's key ('server'): make it anew with the daemon's invitation", file);
    struct keys pair = k->keys;
    enum status st = keys_derive(&pair, e);
    if (st == ST_OK && strcmp(pair.public_key, k->keys.public_key) != 0)
        st = err_set(e, ST_USER, "'%s': the public key is not that of the secret one", file);
    keys_wipe(&pair);
    return st;
}

enum status keys_read_file(const char *file, struct keys_file *out, struct err *e)
{
    struct buf text = {0};
    struct stat s;
    *out = (struct keys_file){0};
    enum status st = path_read(file, FILE_MAX, &text, e);
    if (st == ST_NOT_FOUND)
        err_set(e, st, "there is no key file '%s'", file);
    /* A group may share one (a Kubernetes secret is read through a group); everybody may not. */
    if (st == ST_OK && stat(file, &s) == 0 && (s.st_mode & (S_IROTH | S_IWOTH | S_IWGRP)))
        st = err_set(e, ST_USER, "others may read or change the key file '%s': it is no secret any more; 'chmod 600' it if nobody has", file);
    if (st == ST_OK)
        st = memchr(text.data, 0, text.len) ? err_set(e, ST_USER, "'%s' is not a key file", file)
             : buf_cstr(&text)              ? parse(text.data, file, out, e)
                                            : err_nomem(e, "keys");
    if (st != ST_OK)
        keys_wipe(&out->keys);
    if (text.data)
        explicit_bzero(text.data, text.cap);
    buf_release(&text);
    return st;
}

enum status keys_read(const char *file, enum keys_role role, struct keys *out, struct err *e)
{
    struct keys_file k;
    TRY(keys_read_file(file, &k, e));
    enum status st = ST_OK;
    if (k.role != role)
        st = err_set(e, ST_USER, "the key file '%s' is one of %s, and %s needs its own", file, role_people[k.role], role_people[role]);
    else
        *out = k.keys;
    keys_wipe(&k.keys);
    return st;
}

enum status keys_write(const char *file, const struct keys_file *k, struct err *e)
{
    struct buf text = {0};
    int failed = buf_printf(&text, "# ebb key file; whoever reads it can speak as its owner: keep it to yourself\nrole: %s\npublic: %s\nsecret: %s\n",
                            keys_role_word(k->role), k->keys.public_key, k->keys.secret_key);
    if (!failed && *k->keys.server_key)
        failed = buf_printf(&text, "server: %s\n", k->keys.server_key);
    if (!failed && *k->daemon)
        failed = buf_printf(&text, "daemon: %s\n", k->daemon);
    if (!failed && *k->name)
        failed = buf_printf(&text, "name: %s\n", k->name);
    enum status st = failed ? err_nomem(e, "keys") : path_write_private(file, text.data, text.len, e);
    if (text.data)
        explicit_bzero(text.data, text.cap);
    buf_release(&text);
    return st;
}
