#include "workers/command/child.h"

#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/mem.h"

#define CHUNK 65536
#define AT_ONCE 32           /* records in one call */
#define KEEP_TEXT (1u << 20) /* memory that an empty buffer may hold on to */

static void shut(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

enum status child_start(struct spawn *s, uint32_t number, struct child **out, struct err *e)
{
    struct spawned got;
    struct child *ch = mem_zalloc(sizeof *ch);
    if (!ch)
        return err_nomem(e, "a command's child");
    enum status st = spawn_run(s, number, &got, e);
    if (st != ST_OK) {
        mem_free(ch);
        return st;
    }
    ch->number = number;
    ch->pid = got.pid;
    ch->pidfd = got.pidfd;
    ch->in = got.in;
    ch->out = got.out;
    ch->err = got.err;
    *out = ch;
    return ST_OK;
}

int child_over(struct spawn *s, struct child *ch, int *status)
{
    if (!spawn_reap(s, ch->pid, status))
        return 0;
    ch->pid = 0;
    return 1;
}

void child_free(struct child *ch)
{
    shut(&ch->pidfd);
    shut(&ch->in);
    shut(&ch->out);
    shut(&ch->err);
    buf_release(&ch->text);
    mem_free(ch);
}

void child_give(struct child *ch, struct command_record *r, uint64_t now_ms)
{
    r->next = NULL;
    if (ch->last)
        ch->last->next = r;
    else
        ch->first = r;
    ch->last = r;
    if (!ch->due) {
        ch->due = r;
        ch->due_ms = now_ms;
    }
    if (!ch->unsent) {
        ch->unsent = r;
        ch->sent = 0;
    }
    ch->load++;
    ch->given++;
}

struct command_record *child_take(struct child *ch)
{
    struct command_record *r = ch->first;
    if (!r)
        return NULL;
    if (ch->due == r)
        ch->due = r->next;
    else if (ch->kept)
        ch->kept--;
    if (ch->unsent == r) {
        ch->unsent = r->next;
        ch->sent = 0;
    }
    ch->first = r->next;
    if (!ch->first)
        ch->last = NULL;
    ch->load--;
    r->next = NULL;
    return r;
}

int child_write(struct child *ch, int *moved)
{
    while (ch->unsent && ch->in >= 0) {
        struct iovec parts[AT_ONCE * 2];
        int n = 0;
        size_t skip = ch->sent;
        for (const struct command_record *r = ch->unsent; r && n < AT_ONCE * 2; r = r->next) {
            if (skip < r->len)
                parts[n++] = (struct iovec){(char *)(uintptr_t)r->line + skip, r->len - skip};
            parts[n++] = (struct iovec){(char *)(uintptr_t)"\n", 1};
            skip = 0;
        }
        ssize_t wrote = writev(ch->in, parts, n);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0 && errno == EAGAIN)
            return 0;
        if (wrote < 0) {
            shut(&ch->in);
            return -1;
        }
        *moved = 1;
        for (size_t left = (size_t)wrote; left;) {
            size_t rest = ch->unsent->len + 1 - ch->sent;
            if (left < rest) {
                ch->sent += left;
                break;
            }
            left -= rest;
            ch->unsent = ch->unsent->next;
            ch->sent = 0;
        }
    }
    return 0;
}

int child_read(struct child *ch, size_t most)
{
    size_t got = 0;
    if (ch->begun == ch->text.len) {
        ch->text.len = ch->begun = ch->searched = 0;
        if (ch->text.cap > KEEP_TEXT)
            buf_release(&ch->text);
    } else if (ch->begun > CHUNK) {
        memmove(ch->text.data, ch->text.data + ch->begun, ch->text.len - ch->begun);
        ch->text.len -= ch->begun;
        ch->searched -= ch->begun;
        ch->begun = 0;
    }
    while (ch->out >= 0 && got < most) {
        if (buf_reserve(&ch->text, CHUNK))
            return -1;
        ssize_t n = read(ch->out, ch->text.data + ch->text.len, ch->text.cap - ch->text.len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n <= 0) {
            shut(&ch->out);
            ch->ended = 1;
            break;
        }
        ch->text.len += (size_t)n;
        got += (size_t)n;
    }
    return 0;
}

size_t child_unread(const struct child *ch)
{
    int n = 0;
    return ch->in >= 0 && ioctl(ch->in, FIONREAD, &n) == 0 && n > 0 ? (size_t)n : 0;
}

int child_has_said(const struct child *ch)
{
    int n = 0;
    return ch->out >= 0 && ioctl(ch->out, FIONREAD, &n) == 0 && n > 0;
}

int child_line(struct child *ch, const char **line, size_t *len)
{
    if (ch->searched == ch->text.len)
        return 0;
    const char *from = ch->text.data + ch->searched, *end = memchr(from, '\n', ch->text.len - ch->searched);
    if (!end) {
        ch->searched = ch->text.len;
        return 0;
    }
    *line = ch->text.data + ch->begun;
    *len = (size_t)(end - *line);
    ch->begun = ch->searched = (size_t)(end + 1 - ch->text.data);
    if (*len && end[-1] == '\r')
        --*len;
    return 1;
}

size_t child_rest(const struct child *ch)
{
    return ch->text.len - ch->begun;
}

void child_hear(struct child *ch, const char *name, struct noise_limit *l, uint64_t now_ms, int last)
{
    char chunk[8192];
    for (int times = 0; ch->err >= 0 && times < 16; times++) {
        ssize_t n = read(ch->err, chunk, sizeof chunk);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n <= 0) {
            shut(&ch->err);
            break;
        }
        noise_add(&ch->noise, chunk, (size_t)n, name, ch->number, l, now_ms);
    }
    if (last)
        noise_end(&ch->noise, name, ch->number, l, now_ms);
}

void child_close_in(struct child *ch)
{
    shut(&ch->in);
}

void child_kill(struct child *ch)
{
    if (ch->pid)
        spawn_kill(ch->pid);
    ch->state = CHILD_DYING;
    shut(&ch->in);
    shut(&ch->out);
    shut(&ch->err);
}
