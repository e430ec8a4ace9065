/* A program of Slurm's: started, fed, heard to its end; then whoever asked is told, and its handles close.

   What can fail: there is no such program; it hangs (slurmctld does not answer): it is killed; it says more than anybody reads. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/mem.h"
#include "daemon/slurm_inside.h"
#include "daemon/words.h"

#define LIMIT_MS 60000         /* squeue itself gives up after some ten seconds without an answer */
#define MOST_OUT (16u << 20)   /* 4,096 jobs and as many that ended lately are 1 MiB */
#define STREAMS 3

struct slurm_run {
    struct slurm *s;           /* NULL: nobody waits any more */
    slurm_ran *ran;
    uv_process_t process;
    uv_pipe_t pipe[STREAMS];
    uv_timer_t limit;
    uv_write_t writing;
    struct buf input, text[STREAMS]; /* [1], [2] are its output */
    char chunk[16384], name[16];
    int handles;               /* open, and to be closed */
    int exited, ends;          /* ends: of its two outputs */
    int status, failed, done, closing;
    char why[200];
};

static void run_free(struct slurm_run *r)
{
    buf_release(&r->input);
    for (int i = 0; i < STREAMS; i++)
        buf_release(&r->text[i]);
    mem_free(r);
}

static void on_closed(uv_handle_t *h)
{
    struct slurm_run *r = h->data;
    if (--r->handles == 0)
        run_free(r);
}

static void shut(struct slurm_run *r, uv_handle_t *h)
{
    if (h->data == r && !uv_is_closing(h))
        uv_close(h, on_closed);
}

static void close_all(struct slurm_run *r)
{
    r->closing = 1;
    for (int i = 0; i < STREAMS; i++)
        shut(r, (uv_handle_t *)&r->pipe[i]);
    shut(r, (uv_handle_t *)&r->process);
    shut(r, (uv_handle_t *)&r->limit);
}

static void finish(struct slurm_run *r)
{
    struct slurm *s = r->s;
    if (r->done)
        return;
    r->done = 1;
    struct slurm_output o = {.failed = r->failed, .status = r->status};
    static char nothing[1];
    o.out = (char *)(uintptr_t)buf_cstr(&r->text[1]);
    o.err = (char *)(uintptr_t)buf_cstr(&r->text[2]);
    if (!o.out || !o.err) {
        o.failed = 1;
        snprintf(r->why, sizeof r->why, "memory is out");
        o.out = o.err = nothing;
    }
    if (o.failed)
        snprintf(o.complaint, sizeof o.complaint, "%s", r->why);
    else if (o.status)
        slurm_complaint(r->name, *o.err ? o.err : o.out, o.complaint, sizeof o.complaint);
    if (!o.failed && o.status && !*o.complaint) {
        if (WIFSIGNALED(o.status))
            snprintf(o.complaint, sizeof o.complaint, "it died of signal %d", WTERMSIG(o.status));
        else
            snprintf(o.complaint, sizeof o.complaint, "it ended with %d and said nothing", WEXITSTATUS(o.status));
    }
    if (s) {
        s->running = NULL;
        r->ran(s, &o);
    }
    close_all(r);
}

static void look(struct slurm_run *r)
{
    if (r->exited && r->ends == 2)
        finish(r);
}

static void on_gone(uv_process_t *p, int64_t status, int sig)
{
    struct slurm_run *r = p->data;
    r->exited = 1;
    r->status = sig ? sig : (int)(status & 0xff) << 8;
    look(r);
}

static void give_up(struct slurm_run *r, const char *why)
{
    if (!r->failed)
        snprintf(r->why, sizeof r->why, "%s", why);
    r->failed = 1;
    uv_process_kill(&r->process, SIGKILL);
}

static void on_limit(uv_timer_t *t)
{
    struct slurm_run *r = t->data;
    char why[80];
    if (r->exited) { /* a child of its own holds its output open */
        r->ends = 2;
        look(r);
        return;
    }
    snprintf(why, sizeof why, "no answer within %d s", LIMIT_MS / 1000);
    give_up(r, why);
    uv_timer_start(&r->limit, on_limit, 5000, 0);
}

static void on_alloc(uv_handle_t *h, size_t size, uv_buf_t *out)
{
    (void)size;
    struct slurm_run *r = h->data;
    *out = uv_buf_init(r->chunk, sizeof r->chunk);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *chunk)
{
    struct slurm_run *r = stream->data;
    struct buf *text = &r->text[stream == (uv_stream_t *)&r->pipe[1] ? 1 : 2];
    if (n < 0) {
        uv_read_stop(stream);
        r->ends++;
        look(r);
        return;
    }
    if (text->len + (size_t)n > MOST_OUT)
        give_up(r, "it says more than 16 MiB");
    else if (buf_add(text, chunk->base, (size_t)n))
        give_up(r, "memory is out");
}

static void on_written(uv_write_t *w, int status)
{
    struct slurm_run *r = w->data;
    (void)status; /* what it did not read it will complain of */
    shut(r, (uv_handle_t *)&r->pipe[0]);
}

static void on_not_started(uv_timer_t *t)
{
    finish(t->data);
}

/* Only what these programs and the jobs need: no word of the service manager's, nothing that changes what is printed. */
static char **environment(void)
{
    static const char *const names[] = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "KRB5CCNAME", "SLURM_CONF", "SLURM_CLUSTERS",
                                        "LD_LIBRARY_PATH", "TMPDIR", "XDG_CACHE_HOME"};
    extern char **environ;
    size_t count = 0, n = 0;
    while (environ[count])
        count++;
    char **list = mem_array(count + 2, sizeof *list);
    if (!list)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        size_t len = strcspn(environ[i], "=");
        int wanted = strncmp(environ[i], "EBB_", 4) == 0;
        for (size_t k = 0; k < sizeof names / sizeof *names && !wanted; k++)
            wanted = strlen(names[k]) == len && memcmp(names[k], environ[i], len) == 0;
        if (wanted)
            list[n++] = environ[i];
    }
    list[n] = (char *)(uintptr_t)"LC_ALL=C.UTF-8";
    return list;
}

void slurm_run(struct slurm *s, char **args, struct buf *input, int hold_fd, slurm_ran *ran)
{
    uv_loop_t *loop = &s->d->uv;
    struct slurm_run *r = mem_zalloc(sizeof *r);
    char **env = environment();
    if (!r || !env) {
        struct err e;
        err_nomem(&e, "a program of Slurm's");
        loop_fatal(s->d, &e);
    }
    r->s = s;
    r->ran = ran;
    snprintf(r->name, sizeof r->name, "%s", args[0]);
    if (input) {
        r->input = *input;
        *input = (struct buf){0};
    }
    for (int i = 0; i < STREAMS; i++) {
        uv_pipe_init(loop, &r->pipe[i], 0);
        r->pipe[i].data = r;
    }
    uv_timer_init(loop, &r->limit);
    r->process.data = r->limit.data = r;
    r->handles = STREAMS + 2;
    uv_stdio_container_t stdio[] = {{.flags = UV_CREATE_PIPE | UV_READABLE_PIPE, .data.stream = (uv_stream_t *)&r->pipe[0]},
                                    {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&r->pipe[1]},
                                    {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&r->pipe[2]},
                                    {.flags = UV_INHERIT_FD, .data.fd = hold_fd}};
    /* a group of its own: Ctrl-C at our terminal must not tear a submission in two */
    uv_process_options_t options = {.file = args[0], .args = args, .env = env, .stdio = stdio, .stdio_count = hold_fd < 0 ? 3 : 4, .exit_cb = on_gone,
                                    .flags = UV_PROCESS_DETACHED};
    s->running = r;
    int failed = uv_spawn(loop, &r->process, &options);
    mem_free(env);
    if (failed) {
        r->failed = 1;
        snprintf(r->why, sizeof r->why, failed == UV_ENOENT ? "'%s' is not on the PATH of ebbd: install Slurm's client programs (slurm-client)" :
                 "'%s' cannot be started: %s", args[0], uv_strerror(failed));
        uv_timer_start(&r->limit, on_not_started, 0, 0);
        return;
    }
    uv_timer_start(&r->limit, on_limit, LIMIT_MS, 0);
    uv_read_start((uv_stream_t *)&r->pipe[1], on_alloc, on_read);
    uv_read_start((uv_stream_t *)&r->pipe[2], on_alloc, on_read);
    r->writing.data = r;
    uv_buf_t chunk = uv_buf_init(r->input.data, (unsigned)r->input.len);
    if (!r->input.len || uv_write(&r->writing, (uv_stream_t *)&r->pipe[0], &chunk, 1, on_written))
        shut(r, (uv_handle_t *)&r->pipe[0]);
}

void slurm_run_forget(struct slurm *s)
{
    struct slurm_run *r = s->running;
    if (!r)
        return;
    r->s = NULL;
    r->done = 1;
    s->running = NULL;
    close_all(r);
}
