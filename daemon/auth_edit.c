/* Changes of authorized_keys, one after the other: a thread reads the file, takes lines out and puts one in, writes it durably under its name;
   then the table is made anew of what was written, and whoever asked is answered. So a Join is answered only when its key outlives a crash.

   What can fail: the file cannot be written: nothing has changed, and the answer says why; an invitation is good for another try then. */
#include "daemon/auth_inside.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/path.h"
#include "daemon/api.h"
#include "daemon/call.h"
#include "daemon/words.h"
#include "wire/invite.h"

#define MOST_EDITS 1000 /* that wait */
#define INVITE_MS (24 * 3600 * (int64_t)1000)
#define INVITE_MOST_MS (31 * 24 * 3600 * (int64_t)1000)

struct edit {
    struct edit *next;
    uv_work_t work;
    struct auth *a;
    int adds;                /* `key` goes in */
    struct keyring_key key;
    char without[KEYS_Z85 + 1]; /* this one goes; "": none */
    struct sock *join;       /* a Join, answered here; NULL: `client` asked, or nobody */
    int asked;
    struct sock_peer peer;
    uint64_t id;
    struct keys invitation;  /* of an invite */
    struct buf text;
    enum status st;
    struct err e;
};

static void edit_free(struct edit *x)
{
    buf_release(&x->text);
    keys_wipe(&x->invitation);
    mem_free(x);
}

void auth_edits_release(struct auth *a)
{
    for (struct edit *x = a->edits, *next; x; x = next) {
        next = x->next;
        edit_free(x);
    }
    a->edits = a->edits_last = NULL;
}

static void run(uv_work_t *work)
{
    struct edit *x = work->data;
    struct buf old = {0};
    x->st = path_read(x->a->file, KEYRING_FILE_MAX, &old, &x->e);
    if (x->st == ST_NOT_FOUND)
        x->st = ST_OK;
    int changes = x->adds || *x->without;
    if (x->st == ST_OK && (changes ? keyring_without(&x->text, old.data ? old.data : "", old.len, x->without, clock_wall_ms())
                                   : buf_add(&x->text, old.data ? old.data : "", old.len)))
        x->st = err_nomem(&x->e, "keys");
    if (x->st == ST_OK && x->adds && keyring_add(&x->text, &x->key))
        x->st = err_nomem(&x->e, "keys");
    if (x->st == ST_OK && changes)
        x->st = path_write_private(x->a->file, x->text.data ? x->text.data : "", x->text.len, &x->e);
    buf_release(&old);
}

static void start(struct auth *a);

static void say_join(struct edit *x, const char *refused)
{
    Ebb__JoinAnswer m = EBB__JOIN_ANSWER__INIT;
    struct err e;
    m.accepted = !refused;
    m.text = (char *)(uintptr_t)(refused ? refused : "");
    m.name = x->key.name;
    if (sock_send(x->join, &x->peer, EBB__ENVELOPE__BODY_JOIN_ANSWER, &m, &e) != ST_OK)
        log_debug("who joined did not get the answer: %s", e.text);
}

static void say_client(struct edit *x)
{
    struct daemon *d = x->a->d;
    const struct keyring_key *k = &x->key;
    if (!*x->invitation.secret_key) {
        api_answer(d, &x->peer, x->id, json_pack("{s:s, s:s, s:s}", "name", k->name, "role", keys_role_word(k->role), "key", k->key));
        return;
    }
    struct invite v = {.role = k->role, .keys = x->invitation};
    char text[INVITE_TEXT], where[KEYS_ENDPOINT_MAX + 32];
    invite_write(&v, text);
    const char *at = d->config->listen && *d->config->listen ? *d->config->listen : "tcp://?:0", *colon = strrchr(at, ':');
    int host_len = (int)(colon - at) - 6, port = atoi(colon + 1) + (k->role == KEYS_CLIENT);
    int any = (host_len == 7 && strncmp(at + 6, "0.0.0.0", 7) == 0) || (host_len == 4 && strncmp(at + 6, "[::]", 4) == 0) || (host_len == 1 && at[6] == '*');
    if (any)
        snprintf(where, sizeof where, "tcp://%s:%d", d->host, port);
    else
        snprintf(where, sizeof where, "tcp://%.*s:%d", host_len, at + 6, port);
    json_t *o = json_pack("{s:s, s:s, s:s, s:s, s:I, s:b}", "name", k->name, "role", keys_role_word(k->role), "invitation", text, "connect", where, "until_ms",
                          (json_int_t)k->until_ms, "guessed_host", any);
    explicit_bzero(text, sizeof text);
    keys_wipe(&v.keys);
    api_answer(d, &x->peer, x->id, o);
}

static void done(uv_work_t *work, int status)
{
    (void)status;
    struct edit *x = work->data;
    struct auth *a = x->a;
    a->editing = 0;
    if (x->st == ST_NOMEM)
        auth_no_memory(a);
    if (x->st != ST_OK) {
        log_error("'%s' stays as it was: %s", a->file, x->e.text);
        if (x->join)
            say_join(x, "the daemon could not write its list of keys; try again with the same invitation");
        else if (x->asked)
            api_refuse(a->d, &x->peer, x->id, &x->e);
    } else {
        if (x->join) { /* before its connection is dropped with its invitation */
            log_info("%s: joined as %s '%s', key %s", auth_address(a, x->peer.fd), keys_role_word(x->key.role), x->key.name, x->key.key);
            say_join(x, NULL);
        }
        auth_take_text(a, x->text.data ? x->text.data : "", x->text.len);
        if (!x->join && x->asked)
            say_client(x);
    }
    edit_free(x);
    start(a);
}

/* Names are given out here: no other edit is under way. */
static void start(struct auth *a)
{
    struct edit *x = a->edits;
    if (!x || a->editing)
        return;
    a->edits = x->next;
    if (!a->edits)
        a->edits_last = NULL;
    if (x->join && !keyring_user(&a->ring, x->peer.user)) {
        const struct keyring_key *k = keyring_find(&a->ring, x->key.key);
        if (k) { /* the same Join again: its answer was long in coming */
            x->key = *k;
            say_join(x, NULL);
        } else {
            say_join(x, "this invitation was used already");
        }
        edit_free(x);
        start(a);
        return;
    }
    char wanted[KEYS_NAME_MAX];
    snprintf(wanted, sizeof wanted, "%s", x->key.name);
    if (x->adds) {
        const struct keyring_key *invited = x->join ? keyring_user(&a->ring, x->peer.user) : NULL;
        if (invited && strncmp(invited->name, "invited", 7) != 0)
            snprintf(x->key.name, sizeof x->key.name, "%s", invited->name); /* it makes way for it */
        else
            keyring_name(&a->ring, wanted, x->key.name);
    }
    a->editing = 1;
    uv_queue_work(&a->d->uv, &x->work, run, done);
}

/* Takes x. */
static void queue(struct auth *a, struct edit *x)
{
    x->a = a;
    x->work.data = x;
    if (a->edits_last)
        a->edits_last->next = x;
    else
        a->edits = x;
    a->edits_last = x;
    start(a);
}

static struct edit *edit_new(struct auth *a)
{
    struct edit *x = mem_zalloc(sizeof *x);
    if (!x)
        auth_no_memory(a);
    return x;
}

static size_t waiting(const struct auth *a)
{
    size_t n = 0;
    for (const struct edit *x = a->edits; x; x = x->next)
        n++;
    return n;
}

void auth_read_again(struct auth *a)
{
    if (a->editing || a->edits) /* what is written now is read by that */
        return;
    queue(a, edit_new(a));
}

void auth_join(struct auth *a, struct sock *s, const struct sock_peer *peer, enum keys_role role, const Ebb__Join *m)
{
    const struct keyring_key *invited = keyring_user(&a->ring, peer->user);
    struct edit *x = edit_new(a);
    x->join = s;
    x->peer = *peer;
    x->adds = 1;
    x->key.role = role;
    snprintf(x->key.name, sizeof x->key.name, "%s", m->name && *m->name ? m->name : m->host ? m->host : "");
    const struct keyring_key *known = m->public_key ? keyring_find(&a->ring, m->public_key) : NULL;
    const char *why = NULL;
    if (m->version_min > WIRE_VERSION || m->version_max < WIRE_VERSION_MIN)
        why = "it speaks another version of the protocol: install the same version of ebb on both machines";
    else if (!m->public_key || !keys_valid(m->public_key) || strcmp(m->public_key, a->keys.public_key) == 0)
        why = "its key is none";
    else if (known && known->invite)
        why = "its key is that of an invitation";
    else if (waiting(a) > MOST_EDITS)
        why = "too many others join at this moment; try again";
    if (why || !invited) {
        auth_complain(a, "%s: wants to join: %s", auth_address(a, peer->fd), why ? why : "without an invitation");
        say_join(x, why ? why : "there is no invitation");
        edit_free(x);
        return;
    }
    snprintf(x->key.key, sizeof x->key.key, "%s", m->public_key);
    snprintf(x->without, sizeof x->without, "%s", invited->key);
    queue(a, x);
}

/* Verbs ------------------------------------------------------------------------------------------------------------------------------ */

/* A key that could give out keys would be every key; members of the group that may use the clients' socket may run jobs and no more. */
static struct auth *of_call(struct call *c)
{
    struct ucred who = {.uid = (uid_t)-1};
    socklen_t size = sizeof who;
    if (c->client.user)
        call_refuse(c, ST_USER, "keys are given out on the daemon's own machine alone");
    else if (getsockopt(c->client.fd, SOL_SOCKET, SO_PEERCRED, &who, &size) || (who.uid != 0 && who.uid != geteuid()))
        call_refuse(c, ST_USER, "keys are given out by root and the daemon's own user alone");
    else if (!c->d->auth)
        call_refuse(c, ST_USER, "this ebbd listens at no network address, so nobody needs a key: put 'listen: tcp://0.0.0.0:5570' and 'roots' into its "
                                "configuration, run 'ebb keygen', and start it again");
    else
        return c->d->auth;
    return NULL;
}

void verb_keys(struct call *c)
{
    struct auth *a = of_call(c);
    if (!a)
        return;
    json_t *list = json_array();
    for (size_t i = 0; list && i < a->ring.count; i++) {
        const struct keyring_key *k = &a->ring.keys[i];
        if (k->until_ms && k->until_ms <= clock_wall_ms())
            continue;
        if (json_array_append_new(list, json_pack("{s:s, s:s, s:b, s:s, s:I, s:I}", "name", k->name, "role", keys_role_word(k->role), "invitation", k->invite,
                                                  "key", k->key, "until_ms", (json_int_t)k->until_ms, "connections",
                                                  (json_int_t)auth_connections(a, k->user)))) {
            json_decref(list);
            list = NULL;
        }
    }
    call_answer(c, list ? json_pack("{s:s, s:o, s:I}", "daemon", a->keys.public_key, "keys", list, "refused", (json_int_t)a->refused) : NULL);
}

/* The fields that invite and authorize share. 0: refused. */
static int take_key(struct call *c, struct keyring_key *k)
{
    const char *role = json_string_value(json_object_get(c->in, "role")), *name = json_string_value(json_object_get(c->in, "name"));
    if (!role || keys_role_of(role, &k->role) || k->role == KEYS_DAEMON) {
        call_refuse(c, ST_USER, "role wants 'node' or 'client'");
        return 0;
    }
    if (name && (!*name || strlen(name) > 48)) {
        call_refuse(c, ST_USER, "a name has 1 to 48 characters");
        return 0;
    }
    snprintf(k->name, sizeof k->name, "%s", name ? name : k->invite ? "invited" : keys_role_word(k->role));
    return 1;
}

void verb_invite(struct call *c)
{
    struct auth *a = of_call(c);
    if (!a)
        return;
    json_t *valid = json_object_get(c->in, "valid_ms");
    struct err e;
    int64_t ms = json_is_integer(valid) ? json_integer_value(valid) : INVITE_MS;
    struct keyring_key k = {.invite = 1};
    if (!take_key(c, &k))
        return;
    if (ms < 1000 || ms > INVITE_MOST_MS) {
        call_refuse(c, ST_USER, "an invitation is good for 1 s to 31 days");
        return;
    }
    struct edit *x = edit_new(a);
    if (keys_generate(&x->invitation, &e) != ST_OK) {
        api_refuse(c->d, &c->client, c->id, &e);
        edit_free(x);
        return;
    }
    snprintf(k.key, sizeof k.key, "%s", x->invitation.public_key);
    snprintf(x->invitation.server_key, sizeof x->invitation.server_key, "%s", a->keys.public_key);
    k.until_ms = (clock_wall_ms() + ms) / 1000 * 1000;
    x->adds = x->asked = 1;
    x->key = k;
    x->peer = c->client;
    x->id = c->id;
    queue(a, x);
}

void verb_authorize(struct call *c)
{
    struct auth *a = of_call(c);
    const char *key = json_string_value(json_object_get(c->in, "key"));
    struct keyring_key k = {0};
    if (!a || !take_key(c, &k))
        return;
    if (!key || !keys_valid(key)) {
        call_refuse(c, ST_USER, "key wants a public key of 40 characters");
        return;
    }
    if (keyring_find(&a->ring, key)) {
        call_refuse(c, ST_USER, "this key is known already, as '%s'", keyring_find(&a->ring, key)->name);
        return;
    }
    struct edit *x = edit_new(a);
    snprintf(k.key, sizeof k.key, "%s", key);
    x->adds = x->asked = 1;
    x->key = k;
    x->peer = c->client;
    x->id = c->id;
    queue(a, x);
}

void verb_revoke(struct call *c)
{
    struct auth *a = of_call(c);
    if (!a)
        return;
    const char *name = json_string_value(json_object_get(c->in, "name"));
    int several = 0;
    const struct keyring_key *k = name ? keyring_named(&a->ring, name, &several) : NULL;
    if (!k || several) {
        call_refuse(c, k ? ST_USER : ST_NOT_FOUND, k ? "there are several keys named '%.60s': give the key itself, as 'ebb keys' shows it"
                                                     : "there is no key named '%.60s'; 'ebb keys list' names those there are", name ? name : "");
        return;
    }
    struct edit *x = edit_new(a);
    x->key = *k;
    x->asked = 1;
    snprintf(x->without, sizeof x->without, "%s", k->key);
    x->peer = c->client;
    x->id = c->id;
    log_info("the key '%s' is revoked", k->name);
    queue(a, x);
}
