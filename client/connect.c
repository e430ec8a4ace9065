/* A request goes out with a number of its own; what comes back with another number is an answer that came too late for an earlier call, and is
   dropped. Sockets of ZeroMQ connect later and for ever, so that a missing daemon would be waited for: a plain connect tells beforehand. */
#include "client/connect.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/path.h"
#include "client/client.h"
#include "client/private.h"
#include "wire/sock.h"

#define DEFAULT_SOCKET "/run/ebb/clients"
#define ANSWER_MS 30000
#define MEET_MS 30000
#define LOOK_MS 250 /* how often a watched daemon is looked after */

struct conn {
    int (*alive)(void *arg); /* asked while an answer is waited for; NULL: nobody knows */
    void *alive_arg;
    void *context;
    struct sock *sock;
    uint64_t last_id;
    int for_now; /* what was asked last was refused for now only */
    char *path;  /* of the daemon's socket on this machine; NULL: elsewhere */
    pid_t pid;   /* who listens there; 0: not known */
};

/* *pid: who listens, 0 when it cannot be told; as it was when nobody does. */
static enum status listening(const char *path, pid_t *pid, struct err *e)
{
    struct ucred who = {0};
    socklen_t size = sizeof who;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof a.sun_path)
        return err_set(e, ST_USER, "the socket's path '%s' is longer than the %zu bytes that a socket's name may have", path, sizeof a.sun_path - 1);
    memcpy(a.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return err_errno(e, ST_ENV, errno, "cannot make a socket");
    int failed = connect(fd, (struct sockaddr *)&a, sizeof a), errnum = errno;
    if (!failed)
        *pid = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 ? who.pid : 0;
    close(fd);
    if (!failed)
        return ST_OK;
    if (errnum == ENOENT || errnum == ENOTDIR)
        return err_set(e, ST_ENV, "no daemon listens at '%s': there is no such socket; start one ('sudo systemctl start ebbd'), name another with "
                                  "--socket, or use 'ebb run', which needs none", path);
    if (errnum == ECONNREFUSED)
        return err_set(e, ST_ENV, "no daemon listens at '%s' any more; start it again ('sudo systemctl start ebbd')", path);
    if (errnum == EACCES)
        return err_set(e, ST_ENV, "you may not talk to the daemon at '%s'; ask to be put into its group, see 'ls -l %s'", path, path);
    return err_errno(e, ST_ENV, errnum, "cannot connect to '%s'", path);
}

static int is_tcp(const char *endpoint)
{
    return strncmp(endpoint, "tcp://", 6) == 0;
}

enum status conn_key_file(enum keys_role role, char **out, struct err *e)
{
    const char *told = common.key_file ? common.key_file : getenv("EBB_KEY_FILE"), *base = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    if (told && *told)
        *out = mem_strdup(told);
    else if (base && *base == '/')
        *out = mem_printf("%s/ebb/%s.key", base, keys_role_word(role));
    else
        *out = mem_printf("%s/.config/ebb/%s.key", home && *home == '/' ? home : "", keys_role_word(role));
    return *out ? ST_OK : err_nomem(e, "a path");
}

static enum status open_tcp(struct conn *c, const char *endpoint, struct err *e)
{
    struct keys keys;
    char *file = NULL;
    TRY(conn_key_file(KEYS_CLIENT, &file, e));
    enum status st = keys_read(file, KEYS_CLIENT, &keys, e);
    if (st == ST_NOT_FOUND)
        st = err_set(e, ST_USER, "there is no key file '%s', and the daemon at '%s' wants a key; ask whoever runs it for what 'ebb invite --client' prints, or "
                                 "name yours with --key-file", file, endpoint);
    if (st == ST_OK)
        st = sock_meet(c->context, endpoint, &keys, MEET_MS, &c->sock, e);
    keys_wipe(&keys);
    mem_free(file);
    return st;
}

enum status conn_open(const char *endpoint, struct conn **out, struct err *e)
{
    const char *path = strncmp(endpoint, "ipc://", 6) == 0 ? endpoint + 6 : NULL;
    pid_t pid = 0;
    if (path)
        TRY(listening(path, &pid, e));
    struct conn *c = mem_zalloc(sizeof *c);
    if (!c || (path && !(c->path = mem_strdup(path)))) {
        mem_free(c);
        return err_nomem(e, "a connection");
    }
    c->pid = pid;
    c->context = zmq_ctx_new();
    enum status st = !c->context        ? err_set(e, ST_ENV, "cannot start ZeroMQ")
                     : is_tcp(endpoint) ? open_tcp(c, endpoint, e)
                                        : sock_dealer(c->context, endpoint, NULL, NULL, 0, &c->sock, e);
    if (st != ST_OK) {
        conn_close(c);
        return st;
    }
    *out = c;
    return ST_OK;
}

/* The daemon of another machine, when one was named; else, where this machine has no daemon, the one that was joined. */
static enum status find_daemon(char out[KEYS_ENDPOINT_MAX], struct err *e)
{
    const char *env = getenv("EBB_SOCKET"), *told = common.daemon;
    if (!told && !common.socket && !(env && *env))
        told = getenv("EBB_DAEMON");
    if (told && *told)
        return keys_endpoint(told, KEYS_CLIENT, out, e);
    if (common.socket || (env && *env) || path_exists(DEFAULT_SOCKET))
        return ST_OK;
    char *file = NULL;
    struct keys_file k;
    struct err ignored;
    TRY(conn_key_file(KEYS_CLIENT, &file, e));
    if (keys_read_file(file, &k, &ignored) == ST_OK && k.role == KEYS_CLIENT)
        snprintf(out, KEYS_ENDPOINT_MAX, "%s", k.daemon);
    keys_wipe(&k.keys);
    mem_free(file);
    return ST_OK;
}

/* Of a file that is still being made only other names stand: "out.npy.partial". */
static int is_output(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot && (strcmp(dot, ".npy") == 0 || strcmp(dot, ".jsonl") == 0);
}

enum status conn_pool(struct conn **out, struct err *e)
{
    char tcp[KEYS_ENDPOINT_MAX] = "";
    if (common.socket && common.daemon)
        return err_set(e, ST_USER, "--socket is a daemon of this machine, --daemon one of another: give one of them");
    const char *where = common.socket;
    TRY(find_daemon(tcp, e));
    if (*tcp)
        where = tcp;
    if (!where || !*where)
        where = getenv("EBB_SOCKET");
    if (!where || !*where)
        where = DEFAULT_SOCKET;
    char *endpoint;
    int of_output = 0;
    struct stat s;
    if (strstr(where, "://"))
        endpoint = mem_strdup(where);
    else if (stat(where, &s) == 0 ? !S_ISSOCK(s.st_mode) : is_output(where))
        endpoint = private_endpoint_of_output(where), of_output = 1; /* of the 'ebb run' that works on it */
    else
        endpoint = mem_printf("ipc://%s", where);
    if (!endpoint)
        return err_nomem(e, "an endpoint");
    enum status st = conn_open(endpoint, out, e);
    mem_free(endpoint);
    if (st == ST_ENV && of_output)
        return err_set(e, ST_ENV, "no 'ebb run' is at work on '%s' now; what it made are files there, see errors.jsonl and manifest.json", where);
    return st;
}

void conn_watch(struct conn *c, int (*alive)(void *arg), void *arg)
{
    c->alive = alive;
    c->alive_arg = arg;
}

void conn_close(struct conn *c)
{
    if (!c)
        return;
    sock_close(c->sock);
    if (c->context)
        zmq_ctx_term(c->context);
    mem_free(c->path);
    mem_free(c);
}

static enum status answer(Ebb__Reply *r, json_t **out, struct err *e)
{
    json_error_t at;
    json_t *j = json_loads(r->json, 0, &at);
    if (!j || !json_is_object(j)) {
        json_decref(j);
        return err_set(e, ST_CORRUPT, "the daemon's answer cannot be read: %s; are 'ebb' and 'ebbd' of one version", at.text);
    }
    if (r->code != ST_OK) {
        enum status code = r->code <= ST_END ? (enum status)r->code : ST_ENV;
        const char *text = text_of(j, "error");
        err_set(e, code, "%s", *text ? text : "the daemon failed and does not say why; see its log");
        json_decref(j);
        if (code == ST_AGAIN || code == ST_END) /* these two mean something else to our callers */
            code = e->code = ST_ENV;
        return code;
    }
    *out = j;
    return ST_OK;
}

/* A request that a daemon took with it is never answered, not by its successor either. */
static int has_died(const struct conn *c)
{
    return c->pid > 0 && kill(c->pid, 0) && errno == ESRCH;
}

enum status conn_each(struct conn *c, const char *verb, json_t *in, uint64_t timeout_ms,
                      enum status (*visit)(void *arg, json_t *reply, struct err *e), void *arg, struct err *e)
{
    char *text = json_dumps(in ? in : json_null(), JSON_COMPACT | JSON_ENCODE_ANY);
    json_decref(in);
    if (!text)
        return err_nomem(e, "a request");
    struct err ignored;
    if (has_died(c)) /* whoever has taken its place is asked */
        listening(c->path, &c->pid, &ignored);
    Ebb__Request request = EBB__REQUEST__INIT;
    request.id = ++c->last_id;
    request.verb = (char *)verb;
    request.json = in ? text : (char *)"{}";
    request.version = WIRE_VERSION;
    enum status st = sock_send(c->sock, NULL, EBB__ENVELOPE__BODY_REQUEST, &request, e);
    free(text); /* jansson's own allocator */
    uint64_t until = clock_ms() + timeout_ms;
    for (int more = 1; st == ST_OK && more;) {
        Ebb__Envelope *m;
        st = sock_receive(c->sock, NULL, &m, e);
        if (st == ST_AGAIN) {
            uint64_t now = clock_ms();
            if (now >= until)
                return err_set(e, ST_AGAIN, "the daemon does not answer");
            if ((c->alive && !c->alive(c->alive_arg)) || has_died(c))
                return err_set(e, ST_AGAIN, "the daemon has gone");
            if (sock_wait(c->sock, (int)((c->alive || c->pid) && until - now > LOOK_MS ? LOOK_MS : until - now)) < 0)
                return err_set(e, ST_AGAIN, "interrupted");
            st = ST_OK;
            continue;
        }
        if (st != ST_OK)
            return st;
        json_t *j = NULL;
        if (m->body_case == EBB__ENVELOPE__BODY_REPLY && m->reply->id == c->last_id) {
            more = m->reply->more;
            st = answer(m->reply, &j, e);
            c->for_now = m->reply->code == ST_AGAIN;
            until = clock_ms() + timeout_ms;
        }
        wire_free(m);
        if (j) {
            st = visit(arg, j, e);
            json_decref(j);
        }
    }
    return st;
}

int conn_refused_for_now(const struct conn *c)
{
    return c && c->for_now;
}

static enum status keep(void *arg, json_t *reply, struct err *e)
{
    (void)e;
    json_t **out = arg;
    json_decref(*out);
    *out = json_incref(reply);
    return ST_OK;
}

enum status conn_call(struct conn *c, const char *verb, json_t *in, uint64_t timeout_ms, json_t **out, struct err *e)
{
    json_t *last = NULL;
    enum status st = conn_each(c, verb, in, timeout_ms, keep, &last, e);
    if (st == ST_OK && out)
        *out = last;
    else
        json_decref(last);
    return st;
}

enum status ask(const char *verb, json_t *in, json_t **out, struct err *e)
{
    struct conn *c;
    enum status st = conn_pool(&c, e);
    if (st != ST_OK) {
        json_decref(in);
        return st;
    }
    st = conn_call(c, verb, in, ANSWER_MS, out, e);
    int died = st == ST_AGAIN && has_died(c);
    conn_close(c);
    if (died)
        return err_set(e, ST_ENV, "the daemon ended before it answered; ask again when it is back, see 'systemctl status ebbd'");
    return st == ST_AGAIN ? err_set(e, ST_ENV, "the daemon does not answer within %d s; it may be stopped or very busy, see 'systemctl status ebbd'",
                                    ANSWER_MS / 1000)
                          : st;
}
