/* The real ebb-worker under a scripted daemon: leases, cuts, revocations, drains, kills, a daemon that goes and comes back. Whatever is done to it, what
   is committed is each record once, in the same bytes. */
#include "tests/unit/worker/daemon.h"

#include "base/ftoa.h"
#include "workers/engine/model.h"
#include "workers/text/tokenizer.h"

#define RECORDS 700
#define JOB 3

static const char *const words[] = {"river", "stone", "tide", "ebb", "flow", "salt", "wind", "a", "of", "drift"};

/* A text of 1 to 25 words, the same for the same number. */
static void text_of(size_t i, char *out, size_t size)
{
    size_t n = 1 + (i * 7919) % 25, len = 0;
    out[0] = 0;
    for (size_t k = 0; k < n; k++)
        len += (size_t)snprintf(out + len, size - len, "%s%s", k ? " " : "", words[(i * 31 + k * k * 17) % 10]);
}

static char *errors_wanted;

/* Three sources: JSONL with blank lines, bad records and no line end at the end; one without a record; one more. */
static void make_input(struct daemon *d)
{
    char path[3][200], text[400];
    struct buf b = {0}, wrong = {0};
    struct err e;
    size_t line = 0; /* line ends so far in this source */
    for (size_t i = 0, source = 0; i < RECORDS; i++) {
        text_of(i, text, sizeof text);
        assert_int_equal(buf_printf(&b, "{\"id\":%zu,\"text\":\"%s\",\"stars\":%zu}%s", i, text, i % 6, i == 299 || i == RECORDS - 1 ? "" : "\n"), 0);
        line++;
        if (i % 50 == 7) {
            int cut_off = i % 100 == 7;
            assert_int_equal(buf_str(&b, cut_off ? "{\"id\":1,\n\n" : "\n\r\n{\"id\":\"x\"}\n"), 0);
            assert_int_equal(buf_printf(&wrong, "%zu:%zu %s\n", source, line + (cut_off ? 1 : 3), cut_off ? "invalid_json" : "missing_field"), 0);
            line += cut_off ? 2 : 3;
        }
        if (i == 299 || i == RECORDS - 1) {
            snprintf(path[source], sizeof path[source], "%s/in%zu.jsonl", d->dir, source);
            files_put(path[source], b.data, b.len);
            buf_clear(&b);
            source += 2;
            line = 0;
        }
    }
    buf_release(&b);
    mem_free(errors_wanted);
    errors_wanted = (char *)(uintptr_t)buf_cstr(&wrong);
    snprintf(path[1], sizeof path[1], "%s/in1.jsonl", d->dir);
    files_put(path[1], "\n\n\n", 3);
    const char *inputs[] = {path[0], path[1], path[2]};
    struct dataset_spec spec = {.inputs = inputs, .input_count = 3};
    if (dataset_open(&spec, &d->data, &e) != ST_OK)
        fail_msg("%s", e.text);
}

static struct span all_of(const struct daemon *d)
{
    return (struct span){0, layout_end(&d->data.layout)};
}

/* What the rows must be, by the model run on each record alone. */
static char *expected_rows(struct daemon *d)
{
    struct err e;
    struct model *m;
    struct model_ctx *ctx;
    struct tokenizer *t;
    struct tok_scratch *scratch;
    struct buf out = {0};
    assert_int_equal(model_open(d->model, &(struct model_opts){0}, &m, &e), ST_OK);
    const struct model_info *info = model_info(m);
    assert_int_equal(model_ctx_new(m, info->max_tokens, 1, &ctx, &e), ST_OK);
    assert_int_equal(tokenizer_open(d->model, &t, &e), ST_OK);
    assert_int_equal(tok_scratch_new(&scratch, &e), ST_OK);
    float *v = calloc(info->dims, sizeof *v);
    for (size_t i = 0; i < RECORDS; i++) {
        char text[400], number[FTOA_MAX + 1];
        struct tok_result r;
        text_of(i, text, sizeof text);
        assert_int_equal(tokenizer_encode(t, scratch, text, strlen(text), info->max_tokens, &r, &e), ST_OK);
        model_run(m, ctx, 1, &r.count, r.ids, v);
        assert_int_equal(buf_printf(&out, "{\"id\":%zu,\"embedding\":[", i), 0);
        for (uint32_t k = 0; k < info->dims; k++) {
            number[ftoa(v[k], number)] = 0;
            assert_int_equal(buf_printf(&out, "%s%s", k ? "," : "", number), 0);
        }
        assert_int_equal(buf_str(&out, "]}\n"), 0);
    }
    free(v);
    tok_scratch_free(scratch);
    tokenizer_free(t);
    model_ctx_free(ctx);
    model_free(m);
    return (char *)(uintptr_t)buf_cstr(&out);
}

static char *rows_wanted; /* of the plain job */

static void check_all(struct daemon *d)
{
    struct buf errors = {0};
    char *rows = daemon_rows(d, all_of(d), &errors);
    assert_string_equal(rows, rows_wanted);
    assert_string_equal(buf_cstr(&errors), errors_wanted);
    mem_free(rows);
    buf_release(&errors);
}

static int setup(void **state)
{
    struct daemon *d = daemon_new();
    make_input(d);
    if (!rows_wanted)
        rows_wanted = expected_rows(d);
    *state = d;
    return 0;
}

static int teardown(void **state)
{
    daemon_free(*state);
    return 0;
}

static void begin(struct daemon *d, const char *lanes)
{
    daemon_start(d, lanes, NULL);
    HEAR_UNTIL(d, d->hellos);
    say_job(d, JOB);
}

static void leaves_in_peace(struct daemon *d)
{
    kill(d->pid, SIGTERM);
    HEAR_UNTIL(d, d->byes);
    assert_int_equal(daemon_reap(d), 0);
    assert_int_equal(access(d->box, F_OK), -1);
}

static void one_lease_is_all(void **state)
{
    struct daemon *d = *state;
    begin(d, "1");
    assert_int_equal(d->hello->hello->worker, NUMBER);
    assert_int_equal(d->hello->hello->lanes, 1);
    assert_string_equal(d->hello->hello->name, "t/1");
    assert_string_equal(d->hello->hello->numerics, "ebb1-x86-f32");
    say_lease(d, JOB, EPOCH(5, 1), all_of(d), 0);
    HEAR_UNTIL(d, covered(d) == all_of(d).end);
    assert_int_equal(d->model_ready, 1);
    check_all(d);
    uint64_t bytes = 0;
    for (size_t i = 0; i < d->got_count; i++)
        bytes += d->got[i].x.bytes;
    assert_int_equal(bytes, layout_bytes(&d->data.layout));
    HEAR_UNTIL(d, d->beat && d->beat->beat->n_leases == 0);
    assert_int_equal(d->beat->beat->records_done, RECORDS + 14);
    assert_true(d->beat->beat->rss_bytes > 1 << 20);
    leaves_in_peace(d);
}

/* Leases that begin and end in the middle of records, several at once, three lanes, micro-batches of 3, commits all the time. */
static void leases_anywhere(void **state)
{
    struct daemon *d = *state;
    d->spec.micro_batch = 3;
    d->spec.commit_every = 1;
    begin(d, "3");
    uint64_t end = all_of(d).end, step = end / 13 + 1, n = 1;
    for (uint64_t at = 0; at < end; at += step)
        say_lease(d, JOB, EPOCH(5, n++), (struct span){at, at + step < end ? at + step : end}, 0);
    HEAR_UNTIL(d, covered(d) == end);
    check_all(d);
    leaves_in_peace(d);
}

static void probes_go_one_by_one(void **state)
{
    struct daemon *d = *state;
    begin(d, "2");
    uint64_t end = all_of(d).end;
    say_lease(d, JOB, EPOCH(5, 1), (struct span){0, 3000}, 1);
    say_lease(d, JOB, EPOCH(5, 2), (struct span){3000, end}, 0);
    HEAR_UNTIL(d, covered(d) == end);
    check_all(d);
    size_t of_probe = 0;
    for (size_t i = 0; i < d->got_count; i++)
        if (d->got[i].x.epoch == EPOCH(5, 1)) {
            assert_true(d->got[i].x.records <= 1);
            of_probe += d->got[i].x.records;
        }
    assert_true(of_probe > 10);
    leaves_in_peace(d);
}

/* A job of its own text for the tests that need one. */
static void other_input(struct daemon *d, const char *name, const char *text, size_t len)
{
    char path[200];
    struct err e;
    snprintf(path, sizeof path, "%s/%s", d->dir, name);
    files_put(path, text, len);
    dataset_release(&d->data);
    const char *inputs[] = {path};
    assert_int_equal(dataset_open(&(struct dataset_spec){.inputs = inputs, .input_count = 1}, &d->data, &e), ST_OK);
}

/* A lane that waits holds reading back, so that there is something to cut: before anything has been through the model 16 records may wait for its one
   lane, then as many as two such micro-batches as it has taken. */
#define READ_AT_FIRST (16 + 32 + 1) /* in the lane, waiting, in the reader's hand */
static void a_cut_gives_up_the_tail(void **state)
{
    struct daemon *d = *state;
    struct buf b = {0};
    char gate[PATH_MAX];
    snprintf(gate, sizeof gate, "%s/gate", d->dir);
    char *slow = mem_printf("EBB_TEST_GATE:%s", gate);
    assert_non_null(slow);
    for (size_t i = 0; i < 4000; i++)
        assert_int_equal(buf_printf(&b, "{\"id\":%zu,\"text\":\"%s\"}\n", i, i == 0 ? slow : "tide"), 0);
    other_input(d, "slow.jsonl", b.data, b.len);
    buf_release(&b);
    daemon_start(d, "1", (const char *const[]){"EBB_TEST_HOOK=1", NULL});
    HEAR_UNTIL(d, d->hellos);
    say_job(d, JOB);
    uint64_t end = all_of(d).end, half = end / 2 + 5, read_at_first = strlen(slow) + READ_AT_FIRST * strlen("{\"id\":10,\"text\":\"tide\"}\n");
    mem_free(slow);
    say_lease(d, JOB, EPOCH(5, 1), all_of(d), 0);
    say_lease(d, JOB, EPOCH(5, 2), (struct span){0, 10}, 0); /* not begun yet */
    HEAR_UNTIL(d, d->beat && d->beat->beat->n_leases == 2 && d->beat->beat->leases[0]->read_to);
    uint64_t read_to = d->beat->beat->leases[0]->read_to;
    say_cut(d, EPOCH(5, 2), 0); /* all of it */
    HEAR_UNTIL(d, d->cut_answers == 1);
    assert_int_equal(d->cut_at, 0);
    say_cut(d, EPOCH(5, 1), half);
    HEAR_UNTIL(d, d->cut_answers == 2);
    assert_int_equal(d->cut_at, half);
    say_cut(d, EPOCH(5, 1), 1); /* reading has passed that */
    HEAR_UNTIL(d, d->cut_answers == 3);
    assert_in_range(d->cut_at, read_to, read_at_first);
    files_put(gate, "", 0);
    uint64_t at = d->cut_at;
    HEAR_UNTIL(d, covered(d) == at);
    say_lease(d, JOB, EPOCH(5, 3), (struct span){at, end}, 0);
    HEAR_UNTIL(d, covered(d) == end);
    struct buf errors = {0};
    char *rows = daemon_rows(d, all_of(d), &errors);
    size_t n = 0;
    for (const char *p = rows; (p = strchr(p, '\n')); p++) {
        char want[32];
        snprintf(want, sizeof want, "{\"id\":%zu,", ++n);
        if (n < 4000)
            assert_memory_equal(p + 1, want, strlen(want));
    }
    assert_int_equal(n, 4000);
    mem_free(rows);
    buf_release(&errors);
    leaves_in_peace(d);
}

/* CSV with quoted line ends can be entered only where a record is known to begin: the worker looks for such a place. */
static void a_cut_of_a_stream_falls_on_a_record(void **state)
{
    struct daemon *d = *state;
    struct buf b = {0};
    char gate[PATH_MAX];
    snprintf(gate, sizeof gate, "%s/gate", d->dir);
    char *slow = mem_printf("EBB_TEST_GATE:%s", gate);
    assert_non_null(slow);
    assert_int_equal(buf_str(&b, "id,text\n"), 0);
    for (size_t i = 0; i < 3000; i++)
        assert_int_equal(buf_printf(&b, "%zu,\"%s\n,tide\"%s\n", i, i == 0 ? slow : "river", i % 500 == 77 ? ",more" : ""), 0);
    other_input(d, "slow.csv", b.data, b.len);
    buf_release(&b);
    mem_free(slow);
    daemon_start(d, "1", (const char *const[]){"EBB_TEST_HOOK=1", NULL});
    HEAR_UNTIL(d, d->hellos);
    say_job(d, JOB);
    uint64_t end = all_of(d).end, half = end / 2;
    say_lease(d, JOB, EPOCH(5, 1), all_of(d), 0);
    HEAR_UNTIL(d, d->beat && d->beat->beat->n_leases == 1 && d->beat->beat->leases[0]->read_to);
    say_cut(d, EPOCH(5, 1), half);
    HEAR_UNTIL(d, d->cut_answers == 1);
    uint64_t at = d->cut_at;
    assert_true(at >= half && at < half + 30);
    files_put(gate, "", 0);
    say_lease(d, JOB, EPOCH(5, 2), (struct span){at, end}, 0);
    HEAR_UNTIL(d, covered(d) == end);
    struct buf errors = {0};
    char *rows = daemon_rows(d, all_of(d), &errors);
    size_t n = 0;
    for (const char *p = rows; *p; p = strchr(p, '\n') + 1, n++) {
        char want[32];
        n += n % 500 == 77; /* those are errors */
        snprintf(want, sizeof want, "{\"id\":\"%zu\",", n);
        assert_memory_equal(p, want, strlen(want));
    }
    assert_int_equal(n, 3000);
    /* each record has two lines, the header one */
    assert_string_equal(buf_cstr(&errors), "0:156 wrong_columns\n0:1156 wrong_columns\n0:2156 wrong_columns\n0:3156 wrong_columns\n0:4156 wrong_columns\n"
                                           "0:5156 wrong_columns\n");
    mem_free(rows);
    buf_release(&errors);
    leaves_in_peace(d);
}

static void commits_come_while_it_runs(void **state)
{
    struct daemon *d = *state;
    struct buf b = {0};
    for (size_t i = 0; i < 60; i++)
        assert_int_equal(buf_printf(&b, "{\"id\":%zu,\"text\":\"EBB_TEST_SLOW:%d\"}\n", i, i == 20 ? 400 : 10), 0);
    other_input(d, "slow.jsonl", b.data, b.len);
    buf_release(&b);
    d->spec.micro_batch = 1;
    d->spec.commit_every = 60;
    daemon_start(d, "2", (const char *const[]){"EBB_TEST_HOOK=1", NULL});
    HEAR_UNTIL(d, d->hellos);
    say_job(d, JOB);
    say_lease(d, JOB, EPOCH(5, 1), all_of(d), 0);
    HEAR_UNTIL(d, covered(d) == all_of(d).end);
    assert_true(d->got_count >= 5);
    assert_true(d->got[0].x.records <= 20);
    assert_true(d->got[1].x.records + d->got[0].x.records <= 40);
    int held_up = 0; /* by record 20: what lies behind it is committed all the same */
    for (size_t i = 1; i < d->got_count; i++)
        held_up |= d->got[i].x.span.begin < d->got[i - 1].x.span.begin;
    assert_true(held_up);
    struct buf errors = {0};
    mem_free(daemon_rows(d, all_of(d), &errors));
    assert_int_equal(errors.len, 0);
    leaves_in_peace(d);
}

static void what_is_revoked_stays_unwritten(void **state)
{
    struct daemon *d = *state;
    begin(d, "1");
    d->ack = 0;
    say_lease(d, JOB, EPOCH(5, 1), (struct span){0, 1000}, 0);
    HEAR_UNTIL(d, d->got_count); /* its commit came; it is not answered but taken away */
    Ebb__Revoke m = EBB__REVOKE__INIT;
    m.epoch = EPOCH(5, 1);
    say(d, EBB__ENVELOPE__BODY_REVOKE, &m);
    HEAR_UNTIL(d, d->beat && d->beat->beat->n_leases == 0);
    daemon_forget(d);
    say_lease(d, JOB, EPOCH(5, 2), (struct span){0, 1000}, 0);
    HEAR_UNTIL(d, d->got_count);
    say_ack(d, EPOCH(5, 2), 0, 1); /* stale */
    HEAR_UNTIL(d, d->beat && d->beat->beat->n_leases == 0);
    char path[300];
    for (uint64_t i = 1; i <= 2; i++) { /* only the daemon knows what becomes of parts that a commit named */
        part_path(path, sizeof path, d->parts, JOB, EPOCH(5, i), 0);
        assert_int_equal(access(path, F_OK), 0);
    }
    daemon_forget(d);
    d->ack = 1;
    say_lease(d, JOB, EPOCH(5, 3), all_of(d), 0);
    HEAR_UNTIL(d, covered(d) == all_of(d).end);
    check_all(d);
    leaves_in_peace(d);
}

static void a_drained_worker_gives_back_the_rest(void **state)
{
    struct daemon *d = *state;
    d->spec.micro_batch = 4;
    begin(d, "1");
    uint64_t end = all_of(d).end;
    say_lease(d, JOB, EPOCH(5, 1), (struct span){0, end / 2}, 0);
    say_lease(d, JOB, EPOCH(5, 2), (struct span){end / 2, end}, 0);
    HEAR_UNTIL(d, d->model_ready);
    say_drain(d, 5000);
    HEAR_UNTIL(d, d->byes);
    assert_int_equal(daemon_reap(d), 0);
    assert_int_equal(covered(d), end); /* each position once: committed or given back */
    size_t n = d->returned_count;
    struct span *rest = calloc(n, sizeof *rest);
    memcpy(rest, d->returned, n * sizeof *rest);
    d->returned_count = 0;
    d->hellos = 0;
    begin(d, "2");
    for (size_t i = 0; i < n; i++)
        say_lease(d, JOB, EPOCH(5, 10 + i), rest[i], 0);
    HEAR_UNTIL(d, covered(d) == end);
    check_all(d);
    leaves_in_peace(d);
    free(rest);
}

/* The daemon dies with a commit unanswered and comes back as the next generation: the worker says what it holds and sends it again. */
static void a_daemon_comes_back(void **state)
{
    struct daemon *d = *state;
    struct err e;
    begin(d, "1");
    d->ack = 0;
    say_lease(d, JOB, EPOCH(5, 1), all_of(d), 0);
    HEAR_UNTIL(d, d->got_count);
    sock_close(d->router);
    clock_sleep_ms(100);
    daemon_forget(d);
    d->hellos = 0;
    d->generation = 6;
    assert_int_equal(sock_router(d->context, d->endpoint, NULL, &d->router, &e), ST_OK);
    HEAR_UNTIL(d, d->hellos);
    assert_int_equal(d->hello->hello->n_held, 1);
    assert_int_equal(d->hello->hello->held[0]->epoch, EPOCH(5, 1));
    assert_int_equal(d->hello->hello->held[0]->next_seq, 0);
    assert_int_equal(d->hello->hello->generation, 5);
    assert_int_equal(d->hello->hello->model_key, MODEL_KEY);
    HEAR_UNTIL(d, covered(d) == all_of(d).end);
    assert_int_equal(d->last_seq, 0);
    say_ack(d, d->last_epoch, d->last_seq, 0);
    check_all(d);
    /* asked out of the blue who it is, it says so */
    int before = d->hellos;
    say_welcome(d);
    HEAR_UNTIL(d, d->hellos == before + 1);
    /* one that runs from an older state is refused */
    d->generation = 4;
    say_welcome(d);
    assert_int_equal(daemon_reap(d), 1);
}

static void an_unanswered_commit_is_sent_again(void **state)
{
    struct daemon *d = *state;
    begin(d, "1");
    d->ack = 0;
    say_lease(d, JOB, EPOCH(5, 1), (struct span){0, 500}, 0);
    HEAR_UNTIL(d, d->got_count == 1);
    HEAR_UNTIL(d, d->got_count == 2); /* after five seconds, though nothing was lost */
    assert_memory_equal(&d->got[0].x, &d->got[1].x, sizeof(struct extent));
    d->ack = 1;
    say_ack(d, d->last_epoch, d->last_seq, 0);
    leaves_in_peace(d);
}

static size_t suspects(struct daemon *d, enum blackbox_cause *cause, struct blackbox_record **out)
{
    size_t n;
    int incomplete;
    struct err e;
    assert_int_equal(blackbox_read(d->box, out, &n, &incomplete, cause, &e), ST_OK);
    return n;
}

/* One record crashes its lane: the black box names it, and what was committed before stands. */
static void a_crash_is_noted(void **state)
{
    struct daemon *d = *state;
    static const char text[] = "{\"text\":\"one\"}\n{\"text\":\"two EBB_TEST_CRASH\"}\n{\"text\":\"three\"}\n";
    other_input(d, "poison.jsonl", text, sizeof text - 1);
    daemon_start(d, "2", (const char *const[]){"EBB_TEST_HOOK=1", NULL});
    HEAR_UNTIL(d, d->hellos);
    say_job(d, JOB);
    say_lease(d, JOB, EPOCH(5, 1), all_of(d), 1);
    HEAR_UNTIL(d, d->got_count == 1);
    assert_int_equal(d->got[0].x.span.end, 15);
    char want[300];
    snprintf(want, sizeof want, "{\"source\":\"%s\",\"offset\":0,\"embedding\":[", d->data.sources[0].path); /* it has no id */
    assert_memory_equal(d->got[0].rows, want, strlen(want));
    assert_int_equal(daemon_reap(d), 1000 + SIGSEGV);
    enum blackbox_cause cause;
    struct blackbox_record *r;
    assert_int_equal(suspects(d, &cause, &r), 1);
    assert_int_equal(cause, BLACKBOX_CRASHED);
    assert_int_equal(r->job, JOB);
    assert_int_equal(r->epoch, EPOCH(5, 1));
    assert_int_equal(r->record.begin, 15);
    assert_int_equal(r->record.end, 45);
    mem_free(r);
}

static void memory_is_out(void **state)
{
    struct daemon *d = *state;
    static const char text[] = "{\"text\":\"EBB_TEST_EAT\"}\n";
    other_input(d, "poison.jsonl", text, sizeof text - 1);
    daemon_start(d, "1", (const char *const[]){"EBB_TEST_HOOK=1", NULL});
    HEAR_UNTIL(d, d->hellos);
    say_job(d, JOB);
    say_lease(d, JOB, EPOCH(5, 1), all_of(d), 0);
    int code = -1;
    for (uint64_t until = clock_ms() + WAIT_MS; clock_ms() < until && code < 0;) {
        hear(d, 20);
        int status;
        if (waitpid(d->pid, &status, WNOHANG) == d->pid)
            code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    }
    d->alive = 0;
    assert_int_equal(code, 77);
    enum blackbox_cause cause;
    struct blackbox_record *r;
    assert_int_equal(suspects(d, &cause, &r), 1);
    assert_int_equal(cause, BLACKBOX_OUT_OF_MEMORY);
    mem_free(r);
}

static void a_changed_source_holds_the_job(void **state)
{
    struct daemon *d = *state;
    begin(d, "1");
    char path[200];
    snprintf(path, sizeof path, "%s/in2.jsonl", d->dir);
    files_put(path, "{}\n", 3);
    say_lease(d, JOB, EPOCH(5, 1), all_of(d), 0);
    HEAR_UNTIL(d, d->job_faults);
    assert_non_null(strstr(d->fault_text, "in2.jsonl"));
    assert_non_null(strstr(d->fault_text, "changed"));
    HEAR_UNTIL(d, covered(d) == all_of(d).end); /* and the lease comes back */
    assert_true(d->returned_count);
    leaves_in_peace(d);
}

static void a_source_that_is_gone_holds_the_job(void **state)
{
    struct daemon *d = *state;
    begin(d, "1");
    assert_int_equal(unlink(d->data.sources[0].path), 0);
    say_lease(d, JOB, EPOCH(5, 1), all_of(d), 0);
    HEAR_UNTIL(d, d->job_faults);
    assert_non_null(strstr(d->fault_text, "a source is gone: bring it back"));
    assert_non_null(strstr(d->fault_text, d->data.sources[0].path));
    HEAR_UNTIL(d, covered(d) == all_of(d).end);
    assert_true(d->returned_count);
    assert_int_equal(d->got_count, 0); /* no row, no error: nothing but the lease comes back */
    leaves_in_peace(d);
}

/* It is there and may not be read: here a link to itself, which nobody can open. */
static void an_unreadable_source_is_an_error(void **state)
{
    struct daemon *d = *state;
    begin(d, "1");
    const char *path = d->data.sources[0].path;
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink(path, path), 0);
    say_lease(d, JOB, EPOCH(5, 1), all_of(d), 0);
    HEAR_UNTIL(d, covered(d) == all_of(d).end);
    struct buf errors = {0};
    char *rows = daemon_rows(d, all_of(d), &errors);
    const char *from = strstr(rows_wanted, "{\"id\":300,");
    assert_string_equal(rows, from); /* the other sources are whole */
    assert_memory_equal(buf_cstr(&errors), "0:1 unreadable\n", 15);
    mem_free(rows);
    buf_release(&errors);
    leaves_in_peace(d);
}

static void another_model_is_refused(void **state)
{
    struct daemon *d = *state;
    d->digest.bytes[3] ^= 1;
    begin(d, "1");
    say_lease(d, JOB, EPOCH(5, 1), all_of(d), 0);
    HEAR_UNTIL(d, d->job_faults);
    assert_non_null(strstr(d->fault_text, "is not the one that the job was submitted with"));
    HEAR_UNTIL(d, covered(d) == all_of(d).end);
    assert_int_equal(d->got_count, 0);
    leaves_in_peace(d);
}

/* Its rows would differ from those that are there in their last bits. */
static void a_job_that_began_in_other_numerics_is_refused(void **state)
{
    struct daemon *d = *state;
    d->numerics = (char *)(uintptr_t)"ebb1-x86-bf16-dp";
    begin(d, "1");
    say_lease(d, JOB, EPOCH(5, 1), all_of(d), 0);
    HEAR_UNTIL(d, d->job_faults);
    assert_non_null(strstr(d->fault_text, "this machine computes f32 as 'ebb1-x86-f32', and the job began with 'ebb1-x86-bf16-dp'"));
    HEAR_UNTIL(d, covered(d) == all_of(d).end);
    assert_int_equal(d->got_count, 0);
    leaves_in_peace(d);
}

static void a_job_that_began_in_these_numerics_goes_on(void **state)
{
    struct daemon *d = *state;
    d->numerics = (char *)(uintptr_t)"ebb1-x86-f32";
    begin(d, "1");
    say_lease(d, JOB, EPOCH(5, 1), all_of(d), 0);
    HEAR_UNTIL(d, covered(d) == all_of(d).end);
    check_all(d);
    leaves_in_peace(d);
}

static void told_twice_it_leaves_at_once(void **state)
{
    struct daemon *d = *state;
    begin(d, "1");
    d->ack = 0;
    say_lease(d, JOB, EPOCH(5, 1), all_of(d), 0);
    HEAR_UNTIL(d, d->got_count);
    kill(d->pid, SIGTERM);
    clock_sleep_ms(100);
    kill(d->pid, SIGTERM);
    assert_int_equal(daemon_reap(d), 0);
    assert_int_equal(d->byes, 0);
}

/* A batch system's notice, and its SIGTERM right behind: still a drain in peace, not a hurry. */
static void a_notice_is_no_second_word(void **state)
{
    struct daemon *d = *state;
    begin(d, "1");
    say_lease(d, JOB, EPOCH(5, 1), all_of(d), 0);
    HEAR_UNTIL(d, d->got_count);
    kill(d->pid, SIGUSR1);
    kill(d->pid, SIGTERM);
    HEAR_UNTIL(d, d->byes);
    assert_int_equal(daemon_reap(d), 0);
    assert_true(d->byes == 1);
}

/* The daemon does not answer: when the grace is over it goes all the same, and says so. What it committed is named, whoever hears it. */
static void its_grace_has_an_end(void **state)
{
    static const char *const env[] = {"TEST_GRACE=300ms", NULL};
    struct daemon *d = *state;
    daemon_start(d, "1", env);
    HEAR_UNTIL(d, d->hellos);
    say_job(d, JOB);
    d->ack = 0;
    say_lease(d, JOB, EPOCH(5, 1), all_of(d), 0);
    HEAR_UNTIL(d, d->got_count);
    uint64_t began = clock_ms();
    kill(d->pid, SIGTERM);
    HEAR_UNTIL(d, d->byes);
    uint64_t took = clock_ms() - began;
    assert_int_equal(daemon_reap(d), 0);
    assert_true(took >= 300 && took < 20000); /* which is the default */
}

int main(void)
{
    setenv("EBB_PACK_CACHE", "off", 1); /* not in the user's own; packfile_test looks at it */
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(one_lease_is_all),
        T(leases_anywhere),
        T(probes_go_one_by_one),
        T(commits_come_while_it_runs),
        T(a_cut_gives_up_the_tail),
        T(a_cut_of_a_stream_falls_on_a_record),
        T(what_is_revoked_stays_unwritten),
        T(a_drained_worker_gives_back_the_rest),
        T(a_daemon_comes_back),
        T(an_unanswered_commit_is_sent_again),
        T(a_crash_is_noted),
        T(memory_is_out),
        T(a_changed_source_holds_the_job),
        T(a_source_that_is_gone_holds_the_job),
        T(an_unreadable_source_is_an_error),
        T(another_model_is_refused),
        T(a_job_that_began_in_other_numerics_is_refused),
        T(a_job_that_began_in_these_numerics_goes_on),
        T(told_twice_it_leaves_at_once),
        T(a_notice_is_no_second_word),
        T(its_grace_has_an_end),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    mem_free(rows_wanted);
    mem_free(errors_wanted);
    return failed;
}
