/* Asking an output for its errors: while the job runs, afterwards, and while a retry is under way. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "storage/asmstate.h"
#include "storage/assemble.h"
#include "storage/errwalk.h"
#include "storage/output.h"
#include "storage/rows.h"

enum status assembly_error_spans(const struct output_spec *o, struct span **out, size_t *count, struct err *e)
{
    struct seal s;
    struct error_record *r = NULL;
    struct err mine = {0};
    enum status st = seal_read(o, &s, &mine);
    if (st == ST_NOT_FOUND)
        return err_set(e, st, "'%s' is not finished: only the errors of a finished output can be retried", o->path);
    if (st != ST_OK) {
        if (e)
            *e = mine;
        return st;
    }
    TRY(output_read_errors(o, (uint32_t)s.attempt, s.errors, &r, e));
    struct span *spans = mem_array((size_t)s.errors, sizeof *spans);
    if (!spans) {
        mem_free(r);
        return err_nomem(e, "the records in error");
    }
    for (size_t i = 0; i < s.errors; i++) {
        spans[i] = r[i].record;
        uint64_t most = i + 1 < s.errors ? r[i + 1].record.begin : s.end;
        if (spans[i].end > most)
            spans[i].end = most;
    }
    mem_free(r);
    *out = spans;
    *count = (size_t)s.errors;
    return ST_OK;
}

typedef enum status visit_fn(void *arg, const char *json, size_t len, struct err *e);

/* Lines of a file of errors, up to a length. */
struct lines {
    int fd;
    char *path;
    uint64_t at, end; /* of what the window does not hold */
    struct buf window;
    size_t used;
};

static void lines_close(struct lines *l)
{
    if (l->fd >= 0)
        close(l->fd);
    l->fd = -1;
    mem_free(l->path);
    l->path = NULL;
    buf_release(&l->window);
}

/* ST_END behind the last. The line is given without its line end. */
static enum status lines_next(struct lines *l, const char **line, size_t *len, struct err *e)
{
    char *nl;
    while (!(nl = l->window.len > l->used ? memchr(l->window.data + l->used, '\n', l->window.len - l->used) : NULL)) {
        size_t n = l->end - l->at < 65536 ? (size_t)(l->end - l->at) : 65536;
        if (n == 0 && l->window.len == l->used)
            return ST_END;
        if (n == 0)
            return err_set(e, ST_CORRUPT, "'%s' ends within a line", l->path);
        l->window.len -= l->used;
        if (l->used && l->window.len)
            memmove(l->window.data, l->window.data + l->used, l->window.len);
        l->used = 0;
        if (buf_reserve(&l->window, n))
            return err_nomem(e, "error rows");
        TRY(output_pread(l->fd, l->path, l->window.data + l->window.len, n, l->at, e));
        l->window.len += n;
        l->at += n;
    }
    *line = l->window.data + l->used;
    *len = (size_t)(nl - *line);
    l->used += *len + 1;
    return ST_OK;
}

static enum status lines_open(struct lines *l, const struct output_spec *o, int partial, uint64_t from, uint64_t to, struct err *e)
{
    lines_close(l);
    *l = (struct lines){.fd = -1, .at = from, .end = to};
    if (!(l->path = output_name(o, OUTPUT_ERRORS, 0, partial)))
        return err_nomem(e, "a path");
    l->fd = open(l->path, O_RDONLY | O_CLOEXEC);
    if (l->fd < 0)
        return err_errno(e, errno == ENOENT ? ST_NOT_FOUND : ST_ENV, errno, "cannot open '%s'", l->path);
    return ST_OK;
}

/* The sealed errors may still lack their name, and what lies under the partial name may be a retry's: the digest tells. */
static enum status open_sealed(struct lines *l, const struct output_spec *o, const struct seal *s, uint64_t from, struct err *e)
{
    struct err mine = {0};
    uint8_t digest[16];
    struct stat st;
    if (lines_open(l, o, 1, from, s->errors_bytes, &mine) == ST_OK && fstat(l->fd, &st) == 0 && (uint64_t)st.st_size == s->errors_bytes &&
        output_digest(l->fd, l->path, s->errors_bytes, digest, &mine) == ST_OK && memcmp(digest, s->errors_digest, 16) == 0)
        return ST_OK;
    return lines_open(l, o, 0, from, s->errors_bytes, e);
}

struct each {
    const struct output_spec *o;
    uint64_t job;
    const struct dataset *d;
    struct store *s;
    visit_fn *visit;
    void *arg;
    struct asmstate state;
    int has_state, has_seal;
    struct seal seal;
    struct error_record *old; /* of the seal, while extents of a retry may replace some */
    struct lines lines;
    struct buf row;
};

static enum status show(void *arg, const struct errline *x, uint64_t line, struct err *e)
{
    struct each *m = arg;
    buf_clear(&m->row);
    if (errline_people(&m->row, m->d->sources[x->source].path, line, x->record.begin - m->d->layout.base[x->source], x))
        return err_nomem(e, "an error row");
    return m->visit(m->arg, m->row.data, m->row.len - 1, e);
}

/* Lines of the earlier output about records before `begin`; with drop they are passed over. */
static enum status pass_old(struct each *m, uint64_t begin, int drop, struct err *e)
{
    while (m->has_seal && m->state.old_errors < m->seal.errors && m->old[m->state.old_errors].record.begin < begin) {
        const char *line;
        size_t len;
        enum status st = lines_next(&m->lines, &line, &len, e);
        if (st == ST_END)
            return err_set(e, ST_CORRUPT, "'%s' holds fewer rows than its index", m->lines.path);
        if (st != ST_OK)
            return st;
        m->state.old_errors++;
        if (!drop)
            TRY(m->visit(m->arg, line, len, e));
    }
    return ST_OK;
}

static enum status each_extent(struct each *m, struct extent_iter *it, struct part_file *part, struct err *e)
{
    struct errwalk walk = {.d = m->d, .source = m->state.line_source, .lines = m->state.line_count, .known = 1};
    uint64_t end = m->state.last_end;
    struct extent x;
    enum status st;
    if (!m->has_state)
        errwalk_jump(&walk, 0);
    while ((st = extent_iter_next(it, &x, e)) == ST_OK) {
        if (m->has_seal ? x.attempt <= m->seal.attempt : x.attempt != 0)
            continue;
        if (m->has_state && m->state.taken && x.span.begin <= m->state.last_begin)
            continue;
        TRY(pass_old(m, x.span.begin, 0, e));
        if (x.span.begin != end)
            errwalk_jump(&walk, x.span.begin);
        if (m->has_seal && m->state.old_errors < m->seal.errors && m->old[m->state.old_errors].record.begin == x.span.begin) {
            const struct error_record *r = &m->old[m->state.old_errors];
            walk = (struct errwalk){.d = m->d, .source = r->source, .lines = r->line - 1, .known = 1};
        }
        TRY(pass_old(m, x.span.end, 1, e));
        TRY(errwalk_extent(&walk, &x, part, show, m, e));
        end = x.span.end;
    }
    return st == ST_END ? ST_OK : st;
}

/* Was a part missing only because the assembly went on meanwhile? */
static int moved_on(struct each *m, const struct buf *saved)
{
    struct buf now = {0};
    struct err mine = {0};
    enum status st = rows_get_assembly(m->s, m->job, &now, &mine);
    int moved = st == ST_OK ? now.len != saved->len || memcmp(now.data, saved->data, now.len) != 0 : saved->len > 0;
    buf_release(&now);
    return moved;
}

static enum status each_unassembled(struct each *m, const struct buf *saved, struct err *e)
{
    char *dir = output_parts_dir(m->o);
    if (!dir)
        return err_nomem(e, "a path");
    struct part_file part = {.dir = dir, .job = m->job, .fd = -1};
    struct extent_iter *it = NULL;
    enum status st = extent_iter_open(m->s, m->job, m->has_state && m->state.taken ? m->state.last_begin : 0, &it, e);
    if (st == ST_OK)
        st = each_extent(m, it, &part, e);
    if (st == ST_CORRUPT && moved_on(m, saved))
        st = err_set(e, ST_AGAIN, "the errors of '%s' moved while they were read: ask again", m->o->path);
    extent_iter_close(it);
    part_file_close(&part);
    mem_free(dir);
    return st;
}

enum status assembly_each_error(const struct output_spec *o, uint64_t job, const struct dataset *d, struct store *s, visit_fn *visit, void *arg,
                                struct err *e)
{
    struct each m = {.o = o, .job = job, .d = d, .s = s, .visit = visit, .arg = arg, .lines.fd = -1};
    struct buf saved = {0};
    struct err mine = {0};
    enum status st = seal_read(o, &m.seal, &mine);
    m.has_seal = st == ST_OK && m.seal.job == job;
    if (st == ST_OK || st == ST_NOT_FOUND)
        st = s ? rows_get_assembly(s, job, &saved, &mine) : ST_NOT_FOUND;
    if (st == ST_OK)
        st = asmstate_get(saved.data, saved.len, &m.state, &mine);
    else if (st == ST_NOT_FOUND) {
        saved.len = 0;
        st = ST_OK;
    }
    if (st != ST_OK) {
        if (e)
            *e = mine;
        goto out;
    }
    m.has_state = saved.len > 0 && !(m.has_seal && m.seal.attempt >= m.state.attempt);
    if (!m.has_state)
        m.state = (struct asmstate){0};
    if (m.has_state) { /* what is assembled already */
        st = lines_open(&m.lines, o, 1, 0, m.state.errors_bytes, e);
        if (st == ST_NOT_FOUND)
            st = lines_open(&m.lines, o, 0, 0, m.state.errors_bytes, e);
        const char *line;
        size_t len;
        while (st == ST_OK && (st = lines_next(&m.lines, &line, &len, e)) == ST_OK)
            st = visit(arg, line, len, e);
        if (st != ST_END)
            goto out;
        st = ST_OK;
    }
    if (m.has_seal) {
        st = output_read_errors(o, (uint32_t)m.seal.attempt, m.seal.errors, &m.old, e);
        if (st == ST_OK)
            st = open_sealed(&m.lines, o, &m.seal, m.state.old_errors_at, e);
    }
    if (st == ST_OK && s)
        st = each_unassembled(&m, &saved, e);
    if (st == ST_OK)
        st = pass_old(&m, UINT64_MAX, 0, e);
out:
    lines_close(&m.lines);
    mem_free(m.old);
    buf_release(&m.row);
    buf_release(&saved);
    return st;
}
