/* The happy path: each second the loop writes all figures into a text and puts it where the thread of libmicrohttpd finds it; a request gets that
   text, with what the system says of the process behind it, and the connection is closed.

   What can go wrong comes from outside: headers that never end (a connection has 8 KiB), bytes that drip in one a second, connections that say
   nothing (each has 5 seconds in all), thousands of them (64 at once; the oldest give way). If the loop stands still its text is old: /metrics says so with
   503 instead of passing old figures off as new ones, and so does /healthz. */
#include "daemon/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/metrics.h"

#define MOST_BUSY (HTTP_CONNECTIONS * 3 / 4)

struct connection {
    int fd; /* -1: free */
    uint64_t since_ms;
};

struct http {
    struct MHD_Daemon *mhd;
    char *where;
    pthread_mutex_t lock; /* of all below */
    struct buf text;
    char not_ready[600];  /* why not; "" when it is */
    uint64_t loop_ms;     /* when the loop came round last; 0: it does not run yet */
    struct connection connections[HTTP_CONNECTIONS];
};

/* Addresses ------------------------------------------------------------------------------------------------------------------------ */

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static enum status parse(const char *where, union address *to, struct err *e)
{
    char host[64];
    const char *colon = strrchr(where, ':');
    char *end = NULL;
    unsigned long port = colon && colon[1] >= '0' && colon[1] <= '9' ? strtoul(colon + 1, &end, 10) : 65536;
    size_t n = colon ? (size_t)(colon - where) : 0;
    *to = (union address){0};
    if (n && n < sizeof host && port <= 65535 && !*end) {
        int v6 = where[0] == '[' && where[n - 1] == ']';
        snprintf(host, sizeof host, "%.*s", (int)n - 2 * v6, where + v6);
        if (v6 && inet_pton(AF_INET6, host, &to->v6.sin6_addr) == 1) {
            to->v6.sin6_family = AF_INET6;
            to->v6.sin6_port = htons((uint16_t)port);
            return ST_OK;
        }
        if (!v6 && inet_pton(AF_INET, strcmp(host, "localhost") ? host : "127.0.0.1", &to->v4.sin_addr) == 1) {
            to->v4.sin_family = AF_INET;
            to->v4.sin_port = htons((uint16_t)port);
            return ST_OK;
        }
    }
    return err_set(e, ST_USER, "'http' wants an address and a port such as 127.0.0.1:9570 or [::1]:9570, or off, not '%.100s'", where);
}

static int is_off(const char *where)
{
    return !where || strcmp(where, "off") == 0;
}

enum status http_check(const char *where, struct err *e)
{
    union address a;
    return is_off(where) ? ST_OK : parse(where, &a, e);
}

/* The thread: connections ----------------------------------------------------------------------------------------------------------- */

/* The thread sees its end, and closes it. */
static void hang_up(struct connection *c)
{
    shutdown(c->fd, SHUT_RDWR);
    c->since_ms = UINT64_MAX; /* once is enough */
}

static void on_connection(void *arg, struct MHD_Connection *connection, void **slot, enum MHD_ConnectionNotificationCode what)
{
    struct http *h = arg;
    pthread_mutex_lock(&h->lock);
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (*slot)
            ((struct connection *)*slot)->fd = -1;
    } else {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        struct connection *room = NULL, *oldest = NULL;
        size_t busy = 0;
        for (size_t i = 0; i < HTTP_CONNECTIONS; i++) {
            struct connection *c = &h->connections[i];
            if (c->fd < 0) {
                room = c;
                continue;
            }
            busy += c->since_ms != UINT64_MAX;
            if (!oldest || c->since_ms < oldest->since_ms)
                oldest = c;
        }
        if (busy >= MOST_BUSY && oldest && oldest->since_ms != UINT64_MAX)
            hang_up(oldest);
        if (room && info) {
            *room = (struct connection){.fd = info->connect_fd, .since_ms = clock_ms()};
            *slot = room;
        }
    }
    pthread_mutex_unlock(&h->lock);
}

/* Paths are compared as they come: nothing that is hidden behind a '%' is one of ours. */
static size_t leave_escaped(void *arg, struct MHD_Connection *c, char *text)
{
    (void)arg;
    (void)c;
    return strlen(text);
}

static void log_complaint(void *arg, const char *fmt, va_list ap)
{
    (void)arg;
    char text[300];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    vsnprintf(text, sizeof text, fmt, ap);
#pragma GCC diagnostic pop
    text[strcspn(text, "\n")] = 0;
    log_debug("http: %s", text);
}

/* The thread: requests -------------------------------------------------------------------------------------------------------------- */

/* Takes the text; NULL: memory is out, the connection is dropped. */
static enum MHD_Result answer(struct MHD_Connection *c, unsigned code, const char *type, char *text, size_t len)
{
    struct MHD_Response *r = text ? MHD_create_response_from_buffer_with_free_callback(len, text, mem_free) : NULL;
    if (!r) {
        mem_free(text);
        return MHD_NO;
    }
    /* one request a connection: none is kept by those who have been answered */
    enum MHD_Result done = MHD_add_response_header(r, MHD_HTTP_HEADER_CONNECTION, "close") == MHD_YES &&
                                   MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type) == MHD_YES &&
                                   (code != MHD_HTTP_METHOD_NOT_ALLOWED || MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, "GET, HEAD") == MHD_YES)
                               ? MHD_queue_response(c, code, r)
                               : MHD_NO;
    MHD_destroy_response(r);
    return done;
}

static enum MHD_Result say(struct MHD_Connection *c, unsigned code, const char *words)
{
    char *text = mem_printf("%s\n", words);
    return answer(c, code, "text/plain; charset=utf-8", text, text ? strlen(text) : 0);
}

/* "" when the loop comes round. Under the lock. */
static void still_words(const struct http *h, char *out, size_t size)
{
    uint64_t age_ms = h->loop_ms ? clock_ms() - h->loop_ms : 0;
    out[0] = 0;
    if (h->loop_ms && age_ms < UINT64_MAX / 2 && age_ms > HTTP_LOOP_STILL_MS)
        snprintf(out, size, "the loop has not come round for %" PRIu64 " s", age_ms / 1000);
}

static enum MHD_Result on_metrics(struct http *h, struct MHD_Connection *c)
{
    char still[100], starting[sizeof h->not_ready] = "";
    struct buf text = {0};
    struct err e;
    pthread_mutex_lock(&h->lock);
    still_words(h, still, sizeof still);
    if (!h->loop_ms)
        snprintf(starting, sizeof starting, "%s", h->not_ready);
    int failed = buf_add(&text, h->text.data, h->text.len);
    pthread_mutex_unlock(&h->lock);
    if (*still || *starting) {
        buf_release(&text);
        return say(c, MHD_HTTP_SERVICE_UNAVAILABLE, *still ? still : starting);
    }
    enum status st = failed ? err_nomem(&e, "metrics") : metrics_write_process(&text, &e);
    if (st != ST_OK) {
        buf_release(&text);
        return say(c, MHD_HTTP_INTERNAL_SERVER_ERROR, e.text);
    }
    return answer(c, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", text.data, text.len);
}

static enum MHD_Result on_health(struct http *h, struct MHD_Connection *c, int ready)
{
    char words[sizeof h->not_ready];
    pthread_mutex_lock(&h->lock);
    still_words(h, words, sizeof words);
    if (ready && !*words)
        snprintf(words, sizeof words, "%s", h->not_ready);
    pthread_mutex_unlock(&h->lock);
    return *words ? say(c, MHD_HTTP_SERVICE_UNAVAILABLE, words) : say(c, MHD_HTTP_OK, ready ? "ready" : "ok");
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *c, const char *url, const char *method, const char *version, const char *upload,
                                  size_t *upload_size, void **own)
{
    struct http *h = arg;
    (void)version;
    (void)upload;
    (void)upload_size;
    (void)own;
    /* Answered as soon as the headers are there: a body, however long it says it is, is never read. */
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return say(c, MHD_HTTP_METHOD_NOT_ALLOWED, "nothing can be changed here: GET and HEAD only");
    if (strcmp(url, "/metrics") == 0)
        return on_metrics(h, c);
    if (strcmp(url, "/healthz") == 0 || strcmp(url, "/readyz") == 0)
        return on_health(h, c, url[1] == 'r');
    if (strcmp(url, "/") == 0)
        return say(c, MHD_HTTP_OK, "ebbd: /metrics /healthz /readyz");
    return say(c, MHD_HTTP_NOT_FOUND, "there is nothing here; /metrics, /healthz and /readyz are what there is");
}

/* The loop -------------------------------------------------------------------------------------------------------------------------- */

void http_second(struct daemon *d)
{
    struct http *h = d->http;
    struct buf text = {0};
    struct err e;
    if (!h)
        return;
    if (metrics_write(d, &text, &e) != ST_OK) { /* the old one grows old, and that is said */
        buf_release(&text);
        return;
    }
    uint64_t now = clock_ms();
    pthread_mutex_lock(&h->lock);
    struct buf old = h->text;
    h->text = text;
    h->loop_ms = now;
    h->not_ready[0] = 0;
    if (d->phase != LOOP_RUNNING)
        snprintf(h->not_ready, sizeof h->not_ready, "it is about to end: workers commit what they have");
    else if (!d->core)
        snprintf(h->not_ready, sizeof h->not_ready, "the store is being opened anew: %.500s", *d->trouble ? d->trouble : "after a failed write");
    for (size_t i = 0; i < HTTP_CONNECTIONS; i++) {
        struct connection *c = &h->connections[i];
        if (c->fd >= 0 && c->since_ms < now && now - c->since_ms > HTTP_REQUEST_MS)
            hang_up(c);
    }
    pthread_mutex_unlock(&h->lock);
    buf_release(&old);
}

static enum status start(const char *where, struct http **out, struct err *e)
{
    union address a;
    TRY(parse(where, &a, e));
    struct http *h = mem_zalloc(sizeof *h);
    if (!h || !(h->where = mem_strdup(where))) {
        mem_free(h);
        return err_nomem(e, "metrics");
    }
    pthread_mutex_init(&h->lock, NULL);
    for (size_t i = 0; i < HTTP_CONNECTIONS; i++)
        h->connections[i].fd = -1;
    snprintf(h->not_ready, sizeof h->not_ready, "it is starting: the store is being read");
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_ERROR_LOG | (a.any.sa_family == AF_INET6 ? (unsigned)MHD_USE_IPv6 : 0);
    errno = 0;
    h->mhd = MHD_start_daemon(flags, 0, NULL, NULL, on_request, h, MHD_OPTION_EXTERNAL_LOGGER, log_complaint, NULL, MHD_OPTION_SOCK_ADDR, &a.any,
                              MHD_OPTION_CONNECTION_LIMIT, (unsigned)HTTP_CONNECTIONS, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HTTP_MEMORY_BYTES,
                              MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)(HTTP_REQUEST_MS / 1000), MHD_OPTION_NOTIFY_CONNECTION, on_connection, h,
                              MHD_OPTION_UNESCAPE_CALLBACK, leave_escaped, NULL, MHD_OPTION_END);
    if (!h->mhd) {
        enum status st = err_errno(e, ST_USER, errno, "cannot listen on '%s' for metrics; give another 'http' in the configuration, or off", where);
        pthread_mutex_destroy(&h->lock);
        mem_free(h->where);
        mem_free(h);
        return st;
    }
    *out = h;
    const union MHD_DaemonInfo *port = MHD_get_daemon_info(h->mhd, MHD_DAEMON_INFO_BIND_PORT);
    log_info("metrics at http://%.*s:%u/metrics", (int)(strrchr(where, ':') - where), where, port ? port->port : 0u);
    return ST_OK;
}

enum status http_open(struct daemon *d, struct err *e)
{
    return is_off(d->config->http) ? ST_OK : start(d->config->http, &d->http, e);
}

void http_close(struct daemon *d)
{
    struct http *h = d->http;
    if (!h)
        return;
    MHD_stop_daemon(h->mhd); /* the thread has ended behind this */
    d->http = NULL;
    pthread_mutex_destroy(&h->lock);
    buf_release(&h->text);
    mem_free(h->where);
    mem_free(h);
}

void http_reload(struct daemon *d)
{
    const char *where = d->config->http;
    struct http *h = NULL;
    struct err e;
    if (is_off(where) ? !d->http : d->http && strcmp(d->http->where, where) == 0)
        return;
    if (!is_off(where) && start(where, &h, &e) != ST_OK) {
        log_error("%s; it stays where it was", e.text);
        return;
    }
    http_close(d);
    d->http = h;
    http_second(d);
}
