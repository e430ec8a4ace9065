#include "wire/join.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/path.h"
#include "wire/invite.h"
#include "wire/sock.h"

#define AGAIN_MS 3000

static enum status wait_answer(struct sock *s, Ebb__Join *m, uint64_t until_ms, struct keys_file *k, struct err *e)
{
    for (uint64_t say_ms = 0;;) {
        uint64_t now = clock_ms();
        if (now >= until_ms)
            return err_set(e, ST_ENV, "the daemon does not answer; the same command again goes on where this one stopped");
        if (now >= say_ms) {
            TRY(sock_send(s, NULL, EBB__ENVELOPE__BODY_JOIN, m, e));
            say_ms = now + AGAIN_MS;
        }
        uint64_t next = say_ms < until_ms ? say_ms : until_ms;
        sock_wait(s, (int)(next - now));
        struct sock_peer ignored;
        Ebb__Envelope *a;
        enum status st = sock_receive(s, &ignored, &a, e);
        if (st == ST_AGAIN)
            continue;
        TRY(st);
        if (a->body_case == EBB__ENVELOPE__BODY_JOIN_ANSWER) {
            st = a->join_answer->accepted ? ST_OK : err_set(e, ST_USER, "the daemon refuses: %s", a->join_answer->text ? a->join_answer->text : "");
            if (st == ST_OK && a->join_answer->name)
                snprintf(k->name, sizeof k->name, "%s", a->join_answer->name);
            wire_free(a);
            return st;
        }
        wire_free(a);
    }
}

/* A key that was drawn by an earlier try, and that the daemon knows although its answer was lost. */
static int known_already(void *context, const char *file, const struct keys_file *wanted, struct keys_file *k, uint64_t timeout_ms)
{
    struct err e;
    struct sock *s = NULL;
    if (keys_read_file(file, k, &e) != ST_OK || k->role != wanted->role || strcmp(k->keys.server_key, wanted->keys.server_key) != 0)
        return 0;
    if (sock_meet(context, wanted->daemon, &k->keys, timeout_ms, &s, &e) != ST_OK)
        return 0;
    sock_close(s);
    snprintf(k->daemon, sizeof k->daemon, "%s", wanted->daemon);
    return 1;
}

static enum status ask(void *context, const struct join_opts *o, const struct invite *v, struct keys_file *k, uint64_t until_ms, struct err *e)
{
    struct sock *s = NULL;
    char host[256] = "";
    uint64_t now = clock_ms();
    enum status st = sock_meet(context, k->daemon, &v->keys, until_ms > now ? until_ms - now : 1, &s, e);
    if (st == ST_USER)
        return err_set(e, ST_USER, "the daemon at '%s' does not take this invitation: it was used, it is over, or it is not for %s; ask for a new one "
                                   "('ebb invite --%s')", k->daemon, o->role == KEYS_NODE ? "nodes" : "clients", keys_role_word(o->role));
    TRY(st);
    if (gethostname(host, sizeof host - 1))
        snprintf(host, sizeof host, "unknown");
    Ebb__Join m = EBB__JOIN__INIT;
    m.version_min = WIRE_VERSION_MIN;
    m.version_max = WIRE_VERSION;
    m.program = (char *)(uintptr_t)o->program;
    m.host = host;
    m.public_key = k->keys.public_key;
    m.name = (char *)(uintptr_t)(o->name ? o->name : "");
    st = wait_answer(s, &m, until_ms, k, e);
    sock_close(s);
    return st;
}

/* The folder that it lies in, made where there is none. The caller frees it. */
static enum status make_folder(const char *file, char **out, struct err *e)
{
    const char *slash = strrchr(file, '/');
    *out = slash ? mem_strndup(file, slash > file ? (size_t)(slash - file) : 1) : mem_strdup(".");
    if (!*out)
        return err_nomem(e, "a path");
    return path_exists(*out) ? ST_OK : path_make_dirs(*out, 0700, e);
}

enum status join_pool(const struct join_opts *o, struct keys_file *out, struct err *e)
{
    struct invite v;
    uint64_t until_ms = clock_ms() + o->timeout_ms;
    *out = (struct keys_file){.role = o->role};
    TRY(keys_endpoint(o->daemon, o->role, out->daemon, e));
    TRY(invite_read(o->invitation, &v, e));
    if (v.role != o->role)
        return err_set(e, ST_USER, v.role == KEYS_NODE ? "this invitation is for a node: use it with 'ebb-agent join'" : "this invitation is for a client: use it with 'ebb join'");
    if (path_exists(o->key_file) && !o->force)
        return err_set(e, ST_USER, "there is a key file '%s' already; name another with --key-file, or give --force", o->key_file);
    char *folder = NULL;
    enum status st = make_folder(o->key_file, &folder, e);
    snprintf(out->keys.server_key, sizeof out->keys.server_key, "%s", v.keys.server_key);
    char *file = mem_printf("%s.joining", o->key_file);
    void *context = zmq_ctx_new();
    if (st == ST_OK)
        st = !file ? err_nomem(e, "a path") : !context ? err_set(e, ST_ENV, "cannot start ZeroMQ") : ST_OK;
    struct keys_file before;
    if (st == ST_OK && path_exists(file) && known_already(context, file, out, &before, o->timeout_ms / 4)) {
        *out = before;
    } else if (st == ST_OK) {
        struct keys drawn;
        st = keys_generate(&drawn, e);
        if (st == ST_OK) {
            snprintf(out->keys.public_key, sizeof out->keys.public_key, "%s", drawn.public_key);
            snprintf(out->keys.secret_key, sizeof out->keys.secret_key, "%s", drawn.secret_key);
            keys_wipe(&drawn);
            st = keys_write(file, out, e);
        }
        if (st == ST_OK)
            st = ask(context, o, &v, out, until_ms, e);
        if (st == ST_USER) /* refused: this key will never be known */
            unlink(file);
    }
    if (st == ST_OK)
        st = keys_write(o->key_file, out, e); /* with the name that the daemon gave it */
    if (st == ST_OK)
        st = keys_give(o->key_file, folder, e);
    if (st == ST_OK)
        unlink(file);
    else
        keys_wipe(&out->keys);
    if (context)
        zmq_ctx_term(context);
    keys_wipe(&v.keys);
    mem_free(file);
    mem_free(folder);
    return st;
}
