#include "tests/unit/storage/out_fixture.h"

#include <fcntl.h>
#include <sys/wait.h>

/* The output does not depend on how the job was cut, nor on how often the assembly stopped; it is what a plain loop over the records
   gives. */
static void any_cut_gives_the_same(void **state)
{
    (void)state;
    static const struct {
        const char *kinds;
        int is_dir;
        enum output_kind kind;
    } shapes[] = {{"p", 1, OUTPUT_JSONL},  {"pep", 1, OUTPUT_JSONL}, {"pzp", 1, OUTPUT_JSONL}, {"zzp", 0, OUTPUT_JSONL},
                  {"ppp", 1, OUTPUT_NPY},  {"pzp", 0, OUTPUT_NPY},   {"e", 1, OUTPUT_JSONL},   {"", 1, OUTPUT_NPY},
                  {"ee", 0, OUTPUT_JSONL}, {"", 0, OUTPUT_NPY}};
    for (uint64_t seed = 1; seed <= 60; seed++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
            struct fixture f;
            fixture_init(&f, shapes[k].kinds, 1 + seed % 40, seed);
            fixture_spec(&f, shapes[k].is_dir, shapes[k].kind, 1 + seed * 37 % 700);
            OK(output_claim(&f.o, "{}", 2, &f_err));
            commit(&f, 0, f.d.end, 1 + seed * seed % 900, 0);
            OK(assemble(&f, 0, 1 + seed * 11 % 500, NULL, &f_err));
            check_output(&f);
            fixture_release(&f);
        }
}

/* Which spans are to be run again, and how a retry's workers might cut them: adjacent ones are one. */
static void commit_retry(struct fixture *f, const struct span *spans, size_t count, uint32_t attempt)
{
    for (size_t i = 0; i < count;) {
        struct span s = spans[i++];
        while (i < count && spans[i].begin == s.end && rnd(f, 4))
            s.end = spans[i++].end;
        commit(f, s.begin, s.end, 40, attempt);
    }
}

/* After a retry the output is what an undisturbed run would have given, had these records been good from the start. */
static void retry_merges(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++)
        for (int shape = 0; shape < 4; shape++) {
            struct fixture f;
            fixture_init(&f, shape & 1 ? "pp" : "pzp", 5 + seed % 30, seed);
            fixture_spec(&f, shape != 3, shape & 1 ? OUTPUT_NPY : OUTPUT_JSONL, 1 + seed * 53 % 400);
            OK(output_claim(&f.o, "{}", 2, &f_err));
            commit(&f, 0, f.d.end, 100, 0);
            OK(assemble(&f, 0, 300, NULL, &f_err));
            for (uint32_t attempt = 1; attempt <= 3; attempt++) {
                struct span *spans = NULL;
                size_t count = 0, bad = 0;
                OK(assembly_error_spans(&f.o, &spans, &count, &f_err));
                size_t again = 0;
                for (size_t i = 0; i < f.count; i++)
                    if (f.records[i].fate != GOOD) {
                        assert_int_equal(spans[bad].begin, f.records[i].span.begin);
                        assert_int_equal(spans[bad].end, f.records[i].span.end);
                        if (seed % 2 && rnd(&f, 3) == 0) { /* not retried: its error stays as it is */
                            bad++;
                            continue;
                        }
                        spans[again++] = spans[bad++];
                        uint64_t dice = rnd(&f, 3); /* some come right, some fail in another way */
                        f.records[i].fate = dice == 0 || attempt == 3 ? GOOD : dice == 1 ? BAD : QUARANTINED;
                    }
                assert_int_equal(bad, count);
                struct store_batch *b = NULL; /* as a finished job is kept */
                OK(store_batch_new(f.store, &b, &f_err));
                rows_shrink_job(b, JOB);
                OK(store_write(f.store, b, 1, &f_err));
                store_batch_free(b);
                commit_retry(&f, spans, again, attempt);
                mem_free(spans);
                OK(assemble(&f, attempt, 1 + seed * 7 % 300, NULL, &f_err));
                check_output(&f);
            }
            fixture_release(&f);
        }
}

/* A fixture in which everything happens: rotation, errors, quarantine, streams; after `attempt` retries. */
static void eventful(struct fixture *f, enum output_kind kind, int is_dir, uint32_t attempt, const char *state_path)
{
    fixture_init(f, "pz", 12, 5);
    fixture_spec(f, is_dir, kind, kind == OUTPUT_NPY ? 50 : 300);
    OK(output_claim(&f->o, "{}", 2, &f_err));
    commit(f, 0, f->d.end, 200, 0);
    if (attempt == 0)
        return;
    OK(assemble(f, 0, 1 << 20, state_path, &f_err));
    struct span *spans = NULL;
    size_t count = 0;
    OK(assembly_error_spans(&f->o, &spans, &count, &f_err));
    for (size_t i = 0, n = 0; i < f->count; i++)
        if (f->records[i].fate != GOOD && n++ % 2)
            f->records[i].fate = GOOD;
    commit_retry(f, spans, count, 1);
    mem_free(spans);
}

/* The nth time that anything is written, copied, synced, renamed or made, it fails; the next go, from what was saved, ends with the same
   bytes. */
static void any_failure_can_be_repeated(void **state)
{
    (void)state;
    static const char *const how[] = {"EIO", "ENOSPC"};
    for (int shape = 0; shape < 8; shape++) {
        uint32_t attempt = shape & 1;
        unsigned n = 1, failures = 0;
        for (int done = 0; !done; n++) {
            struct fixture f;
            eventful(&f, shape & 2 ? OUTPUT_NPY : OUTPUT_JSONL, shape < 4, attempt, NULL);
            char rule[64];
            struct err e = {0};
            snprintf(rule, sizeof rule, "assemble.*:%u:%s", n, how[n % 2]);
            fault_set(rule);
            enum status st = assemble(&f, attempt, 400, NULL, &e);
            fault_set(NULL);
            if (st == ST_OK)
                done = 1; /* beyond the last, or copying fell back to another way */
            else {
                failures++;
                assert_int_equal(st, ST_ENV);
                assert_non_null(strchr(e.text, '\''));
                assert_non_null(strstr(e.text, n % 2 ? "No space left" : "Input/output error"));
                OK(assemble(&f, attempt, 400, NULL, &f_err));
            }
            check_output(&f);
            fixture_release(&f);
        }
        assert_true(failures > 20);
    }
}

static void store_failures_can_be_repeated(void **state)
{
    (void)state;
    for (unsigned n = 1;; n++) {
        struct fixture f;
        struct err e = {0};
        eventful(&f, OUTPUT_JSONL, 1, 0, NULL);
        char rule[64];
        snprintf(rule, sizeof rule, "store.write:%u:EIO", n);
        fault_set(rule);
        enum status st = assemble(&f, 0, 400, NULL, &e);
        fault_set(NULL);
        if (st != ST_OK) {
            assert_string_equal(e.text, "cannot write to the database: Input/output error");
            store_mem_crash(f.store);
            OK(assemble(&f, 0, 400, NULL, &f_err));
        }
        check_output(&f);
        fixture_release(&f);
        if (st == ST_OK) {
            assert_true(n > 5);
            return;
        }
    }
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    for (int shape = 0; shape < 4; shape++)
        for (uint64_t n = 1;; n++) {
            struct fixture f;
            struct err e = {0};
            uint32_t attempt = shape & 1;
            eventful(&f, shape & 2 ? OUTPUT_NPY : OUTPUT_JSONL, shape != 3, attempt, NULL);
            mem_fail_nth(n);
            enum status st = assemble(&f, attempt, 900, NULL, &e);
            uint64_t made = mem_fail_nth(0);
            if (st != ST_OK) {
                if (st != ST_NOMEM || !strstr(e.text, "out of memory for "))
                    fail_msg("allocation %" PRIu64 ": %s: %s", n, status_name(st), e.text);
                OK(assemble(&f, attempt, 900, NULL, &f_err));
            }
            check_output(&f);
            fixture_release(&f);
            if (made < n)
                break;
        }
}

/* The process dies at the nth point, is started again, dies at the next ... and ends with the same bytes. */
static void any_kill_can_be_survived(void **state)
{
    (void)state;
    for (int shape = 0; shape < 6; shape++) {
        uint32_t attempt = shape & 1;
        unsigned kills = 0;
        for (unsigned n = 1, done = 0; !done; n++) {
            struct fixture f;
            char saved[128];
            eventful(&f, shape & 2 ? OUTPUT_NPY : OUTPUT_JSONL, shape < 4, attempt, NULL);
            snprintf(saved, sizeof saved, "%s/state", f.dir);
            for (int life = 0;; life++) {
                pid_t pid = fork();
                assert_true(pid >= 0);
                if (pid == 0) {
                    char rule[64];
                    struct err e;
                    snprintf(rule, sizeof rule, "assemble.*:%u:kill", n);
                    fault_set(life < 2 ? rule : NULL);
                    _exit(assemble(&f, attempt, 700, saved, &e) == ST_OK ? 0 : 1);
                }
                int status = 0;
                assert_int_equal(waitpid(pid, &status, 0), pid);
                if (WIFEXITED(status)) {
                    assert_int_equal(WEXITSTATUS(status), 0);
                    done = life == 0;
                    break;
                }
                assert_int_equal(WTERMSIG(status), SIGKILL);
                kills++;
            }
            check_output(&f);
            fixture_release(&f);
        }
        assert_true(kills > 40);
    }
}

/* Whatever was written behind the last saved state, be it rubbish, is gone; so are files that it does not know. */
static void what_was_not_saved_is_cut_off(void **state)
{
    (void)state;
    struct fixture f;
    struct assembly *a = NULL;
    struct buf saved = {0}, rubbish = {0};
    int more = 0;
    eventful(&f, OUTPUT_NPY, 1, 0, NULL);
    for (int i = 0; i < 4000; i++)
        assert_int_equal(buf_str(&rubbish, "rubbish\n"), 0);
    OK(assembly_open(&f.o, JOB, &f.d, 0, NULL, 0, &a, &f_err));
    OK(assembly_advance(a, f.store, f.d.end, 200, &more, &f_err));
    assert_true(more);
    OK(assembly_save(a, &saved, &f_err));
    assembly_close(a);
    struct store_batch *b = NULL;
    OK(store_batch_new(f.store, &b, &f_err));
    rows_put_assembly(b, JOB, saved.data, saved.len);
    OK(store_write(f.store, b, 1, &f_err));
    store_batch_free(b);
    static const char *const grown[] = {"errors.jsonl.partial", ".ebb/errors-0", ".ebb/files-0"}; /* and the current files */
    char path[256];
    for (size_t i = 0; i < sizeof grown / sizeof *grown + 2; i++) {
        if (i < sizeof grown / sizeof *grown)
            snprintf(path, sizeof path, "%s/%s", f.out, grown[i]);
        else
            for (int k = 0; k < 100; k++) {
                char next[256];
                snprintf(next, sizeof next, "%s/part-%05d.%s.partial", f.out, k, i & 1 ? "npy" : "ids.jsonl");
                if (!path_exists(next))
                    break;
                strcpy(path, next);
            }
        int fd = open(path, O_WRONLY | O_APPEND);
        assert_true(fd >= 0);
        assert_int_equal(write(fd, rubbish.data, rubbish.len), rubbish.len);
        close(fd);
    }
    snprintf(path, sizeof path, "%s/part-00300.npy.partial", f.out);
    OK(path_write(path, "x", 1, &f_err));
    OK(assemble(&f, 0, 400, NULL, &f_err));
    check_output(&f);
    buf_release(&saved);
    buf_release(&rubbish);
    fixture_release(&f);
}

/* Damage ------------------------------------------------------------------------------------------------------------------------ */

static struct store_batch *batch(struct fixture *f)
{
    struct store_batch *b = NULL;
    OK(store_batch_new(f->store, &b, &f_err));
    return b;
}

static void write_free(struct fixture *f, struct store_batch *b)
{
    OK(store_write(f->store, b, 1, &f_err));
    store_batch_free(b);
}

static void expect_corrupt(struct fixture *f, const char *what)
{
    struct assembly *a = NULL;
    struct err e = {0};
    int more = 0;
    OK(assembly_open(&f->o, JOB, &f->d, 0, NULL, 0, &a, &f_err));
    assert_int_equal(assembly_advance(a, f->store, f->d.end, 1 << 20, &more, &e), ST_CORRUPT);
    if (!strstr(e.text, what))
        fail_msg("'%s' does not say '%s'", e.text, what);
    assert_int_equal(assembly_advance(a, f->store, f->d.end, 1 << 20, &more, &e), ST_ENV); /* of no use any more */
    assembly_close(a);
}

static void small(struct fixture *f)
{
    fixture_init(f, "p", 12, 3);
    for (size_t i = 0; i < f->count; i++)
        f->records[i].fate = i == 3 ? BAD : GOOD;
    fixture_spec(f, 1, OUTPUT_JSONL, 1 << 20);
    OK(output_claim(&f->o, "{}", 2, &f_err));
}

static void gaps_and_overlaps_are_named(void **state)
{
    (void)state;
    struct fixture f;
    char what[200];
    small(&f);
    uint64_t a = f.records[2].span.begin, b = f.records[5].span.begin, end = f.d.end;
    commit(&f, 0, a, 1 << 20, 0);
    commit(&f, b, end, 1 << 20, 0);
    /* commit cuts at random: what follows the gap begins at b and what precedes it ends at a */
    struct extent_iter *it = NULL;
    struct extent x, before = {0}, behind = {0};
    OK(extent_iter_open(f.store, JOB, 0, &it, &f_err));
    while (extent_iter_next(it, &x, &f_err) == ST_OK) {
        if (x.span.end == a)
            before = x;
        if (x.span.begin == b)
            behind = x;
    }
    extent_iter_close(it);
    snprintf(what, sizeof what, "between extents [%" PRIu64 ", %" PRIu64 ") and [%" PRIu64 ", %" PRIu64 ") of job 7 nothing is done",
             before.span.begin, before.span.end, behind.span.begin, behind.span.end);
    expect_corrupt(&f, what);
    struct store_batch *batch_ = batch(&f);
    struct extent over = before;
    over.span = (struct span){a - 1, b};
    rows_put_extent(batch_, JOB, &over);
    write_free(&f, batch_);
    snprintf(what, sizeof what, "extents [%" PRIu64 ", %" PRIu64 ") and [%" PRIu64 ", %" PRIu64 ") of job 7 overlap", before.span.begin,
             before.span.end, a - 1, b);
    expect_corrupt(&f, what);
    fixture_release(&f);

    small(&f); /* an end that is missing */
    commit(&f, 0, f.records[2].span.begin, 1 << 20, 0);
    expect_corrupt(&f, "nothing is done up to");
    fixture_release(&f);
}

static void damaged_parts_are_named(void **state)
{
    (void)state;
    static const char *const what[] = {"is missing", "bytes, and the extent at 0 says that it ends at", "error row 1 of the extent at 0 does not read",
                                       "do not end with a line end"};
    for (int k = 0; k < 4; k++) {
        struct fixture f;
        char path[256];
        small(&f);
        struct part *p = NULL;
        OK(part_new(&p, &f_err));
        work(&f, p, 0, f.d.end);
        struct extent x = part_extents(p)[0];
        publish(&f, p, 0);
        part_free(p);
        char *dir = output_parts_dir(&f.o);
        part_path(path, sizeof path, dir, JOB, EPOCH(1, 1), 0);
        mem_free(dir);
        int fd = open(path, O_RDWR);
        assert_true(fd >= 0);
        if (k == 0)
            assert_int_equal(unlink(path), 0);
        else if (k == 1)
            assert_int_equal(ftruncate(fd, 10), 0);
        else
            assert_int_equal(pwrite(fd, "x", 1, (off_t)(k == 2 ? x.rows_bytes + 3 : x.rows_bytes - 1)), 1);
        close(fd);
        expect_corrupt(&f, what[k]);
        expect_corrupt(&f, k == 0 ? path : "part '");
        fixture_release(&f);
    }
}

/* Somebody shortens or removes a file while it is written: what comes behind must not paper over the gap. */
static void damage_while_writing_is_named(void **state)
{
    (void)state;
    static const char *const files[] = {"part-00000.npy.partial", "part-00000.ids.jsonl.partial", "errors.jsonl.partial"};
    for (int k = 0; k < 6; k++) {
        struct fixture f;
        struct assembly *a = NULL;
        struct buf saved = {0};
        int more = 0;
        char path[256];
        fixture_init(&f, "pp", 150, 5);
        fixture_spec(&f, 1, OUTPUT_NPY, 1 << 20);
        OK(output_claim(&f.o, "{}", 2, &f_err));
        commit(&f, 0, f.d.end, 200, 0);
        OK(assembly_open(&f.o, JOB, &f.d, 0, NULL, 0, &a, &f_err));
        OK(assembly_advance(a, f.store, f.d.end, 2000, &more, &f_err));
        assert_true(more);
        OK(assembly_save(a, &saved, &f_err));
        snprintf(path, sizeof path, "%s/%s", f.out, files[k / 2]);
        assert_int_equal(k % 2 ? unlink(path) : truncate(path, 5), 0); /* it has more */
        enum status st = ST_OK;
        while (st == ST_OK && more)
            st = assembly_advance(a, f.store, f.d.end, 200, &more, &f_err);
        if (st == ST_OK)
            st = assembly_save(a, &saved, &f_err);
        buf_release(&saved);
        assert_int_equal(st, ST_CORRUPT);
        assert_non_null(strstr(f_err.text, path));
        assert_non_null(strstr(f_err.text, k % 2 ? "was removed while it was written" : "something else changed it"));
        assembly_close(a);
        fixture_release(&f);
    }
}

/* Asking for errors -------------------------------------------------------------------------------------------------------------- */

static enum status add_line(void *arg, const char *json, size_t len, struct err *e)
{
    struct buf *b = arg;
    return buf_add(b, json, len) || buf_char(b, '\n') ? err_nomem(e, "a test") : ST_OK;
}

static void errors_can_be_asked_at_any_time(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct fixture f;
        struct buf want = {0}, have = {0}, saved = {0};
        struct assembly *a = NULL;
        int more = 1;
        fixture_init(&f, "pzp", 15, seed);
        fixture_spec(&f, 1, OUTPUT_JSONL, 200);
        OK(output_claim(&f.o, "{}", 2, &f_err));
        commit(&f, 0, f.d.end, 150, 0);
        for (size_t i = 0; i < f.count; i++)
            if (f.records[i].fate != GOOD)
                expect_error(&f, i, &want);
        OK(assembly_open(&f.o, JOB, &f.d, 0, NULL, 0, &a, &f_err));
        while (more) { /* as it is assembled, a part of the lines comes from the file and the rest from the parts */
            buf_clear(&have);
            OK(assembly_each_error(&f.o, JOB, &f.d, f.store, add_line, &have, &f_err));
            assert_int_equal(have.len, want.len);
            assert_memory_equal(have.data, want.data, want.len);
            OK(assembly_advance(a, f.store, f.d.end, 200, &more, &f_err));
            buf_clear(&saved);
            OK(assembly_save(a, &saved, &f_err));
            struct store_batch *b = batch(&f);
            rows_put_assembly(b, JOB, saved.data, saved.len);
            write_free(&f, b);
            OK(assembly_free_parts(a, &f_err));
        }
        OK(assembly_finish(a, &test_info, &f_err));
        assembly_close(a);
        buf_clear(&have);
        OK(assembly_each_error(&f.o, JOB, &f.d, f.store, add_line, &have, &f_err));
        assert_int_equal(have.len, want.len);
        assert_memory_equal(have.data, want.data, want.len);
        buf_release(&want);
        buf_release(&have);
        buf_release(&saved);
        fixture_release(&f);
    }
}

/* While a retry is under way, the rows of records that it has done again are the retry's. */
static void errors_during_a_retry(void **state)
{
    (void)state;
    struct fixture f;
    struct buf want = {0}, have = {0};
    struct span *spans = NULL;
    size_t count = 0;
    fixture_init(&f, "pp", 20, 9);
    fixture_spec(&f, 1, OUTPUT_JSONL, 200);
    OK(output_claim(&f.o, "{}", 2, &f_err));
    commit(&f, 0, f.d.end, 150, 0);
    OK(assemble(&f, 0, 1 << 20, NULL, &f_err));
    OK(assembly_error_spans(&f.o, &spans, &count, &f_err));
    assert_true(count > 4);
    for (size_t i = 0, n = 0; i < f.count; i++)
        if (f.records[i].fate != GOOD) {
            if (n < count / 2)
                f.records[i].fate = n % 2 ? GOOD : BAD;
            n++;
        }
    commit_retry(&f, spans, count / 2, 1);
    for (size_t i = 0; i < f.count; i++)
        if (f.records[i].fate != GOOD)
            expect_error(&f, i, &want);
    OK(assembly_each_error(&f.o, JOB, &f.d, f.store, add_line, &have, &f_err));
    assert_int_equal(have.len, want.len);
    assert_memory_equal(have.data, want.data, want.len);
    mem_free(spans);
    buf_release(&want);
    buf_release(&have);
    fixture_release(&f);
}

/* Behind a gap nobody knows the line yet: the offset stands in its place, and no line is made up. */
static void lines_behind_a_gap_are_not_guessed(void **state)
{
    (void)state;
    struct fixture f;
    struct buf have = {0};
    char want[200];
    small(&f);
    f.records[8].fate = BAD;
    f.records[8].has_id = 0;
    commit(&f, f.records[6].span.begin, f.d.end, 1 << 20, 0);
    OK(assembly_each_error(&f.o, JOB, &f.d, f.store, add_line, &have, &f_err));
    snprintf(want, sizeof want, "{\"source\":\"/data/s\\\"0.jsonl\",\"offset\":%" PRIu64 ",\"code\":\"missing_field\"", f.records[8].span.begin);
    assert_true(have.len > strlen(want));
    assert_memory_equal(have.data, want, strlen(want));
    buf_release(&have);
    fixture_release(&f);
}

/* Rules of opening ---------------------------------------------------------------------------------------------------------------- */

static void attempts_are_in_order(void **state)
{
    (void)state;
    struct fixture f;
    struct assembly *a = NULL;
    struct err e = {0};
    struct span *spans = NULL;
    size_t count = 0;
    small(&f);
    assert_int_equal(assembly_error_spans(&f.o, &spans, &count, &e), ST_NOT_FOUND);
    assert_non_null(strstr(e.text, "is not finished"));
    assert_int_equal(assembly_open(&f.o, JOB, &f.d, 1, NULL, 0, &a, &e), ST_CORRUPT);
    assert_non_null(strstr(e.text, "holds no finished output of job 7"));
    OK(assembly_open(&f.o, JOB, &f.d, 0, NULL, 0, &a, &f_err));
    assert_int_equal(assembly_finish(a, &test_info, &e), ST_AGAIN);
    assembly_close(a);
    commit(&f, 0, f.d.end, 100, 0);
    OK(assemble(&f, 0, 1 << 20, NULL, &f_err));
    OK(assemble(&f, 0, 1 << 20, NULL, &f_err)); /* again, as after a crash behind the end */
    check_output(&f);
    OK(assembly_open(&f.o, JOB, &f.d, 1, NULL, 0, &a, &f_err));
    char path[256];
    snprintf(path, sizeof path, "%s/_SUCCESS", f.out);
    assert_false(path_exists(path)); /* withdrawn first */
    assembly_close(a);
    fixture_release(&f);
}

static void saved_states_are_checked(void **state)
{
    (void)state;
    struct fixture f;
    struct assembly *a = NULL;
    struct err e = {0};
    struct buf saved = {0};
    char path[256];
    small(&f);
    commit(&f, 0, f.d.end, 60, 0);
    OK(assembly_open(&f.o, JOB, &f.d, 0, NULL, 0, &a, &f_err));
    int more = 0;
    OK(assembly_advance(a, f.store, f.d.end, 100, &more, &f_err));
    assert_true(more);
    OK(assembly_save(a, &saved, &f_err));
    assembly_close(a);
    for (size_t n = 0; n < saved.len; n++) /* cut short */
        if (n)
            assert_int_equal(assembly_open(&f.o, JOB, &f.d, 0, saved.data, n, &a, &e), ST_CORRUPT);
    assert_int_equal(assembly_open(&f.o, JOB + 1, &f.d, 0, saved.data, saved.len, &a, &e), ST_CORRUPT);
    assert_non_null(strstr(e.text, "is of job 7, not of 8"));
    saved.data[0] = 2;
    assert_int_equal(assembly_open(&f.o, JOB, &f.d, 0, saved.data, saved.len, &a, &e), ST_USER);
    assert_string_equal(e.text, "the saved state of the output has version 2 and this program knows 1");
    saved.data[0] = 1;
    snprintf(path, sizeof path, "%s/part-00000.jsonl.partial", f.out);
    assert_int_equal(truncate(path, 3), 0); /* somebody touched it */
    assert_int_equal(assembly_open(&f.o, JOB, &f.d, 0, saved.data, saved.len, &a, &e), ST_CORRUPT);
    assert_non_null(strstr(e.text, "has 3 bytes, and "));
    buf_release(&saved);
    fixture_release(&f);
}

/* How long a row is may be learnt, or forgotten with a daemon, between two goes at one output. */
static void length_of_a_row_learnt_meanwhile(void **state)
{
    (void)state;
    for (int npy = 0; npy < 2; npy++)
        for (uint32_t first = 0; first <= 3; first += 3) {
            struct fixture f;
            struct assembly *a = NULL;
            struct buf saved = {0};
            int more = 0;
            if (npy && !first)
                continue; /* rows of no length are not appended */
            if (npy) {
                fixture_init(&f, "p", 12, 3);
                for (size_t i = 0; i < f.count; i++)
                    f.records[i].fate = GOOD;
                fixture_spec(&f, 0, OUTPUT_NPY, 0);
                OK(output_claim(&f.o, "{}", 2, &f_err));
            } else {
                small(&f);
            }
            commit(&f, 0, f.d.end, 60, 0);
            f.o.dims = first;
            OK(assembly_open(&f.o, JOB, &f.d, 0, NULL, 0, &a, &f_err));
            OK(assembly_advance(a, f.store, f.d.end, 100, &more, &f_err));
            OK(assembly_save(a, &saved, &f_err));
            assembly_close(a);
            f.o.dims = 3 - first;
            OK(assembly_open(&f.o, JOB, &f.d, 0, saved.data, saved.len, &a, &f_err));
            OK(assembly_advance(a, f.store, f.d.end, 1 << 20, &more, &f_err));
            OK(assembly_finish(a, &test_info, &f_err));
            assembly_close(a);
            f.o.dims = 3;
            check_output(&f);
            buf_release(&saved);
            fixture_release(&f);
        }
}

/* Parts go as soon as their rows are safe elsewhere, not sooner; nothing but the output stays. */
static void parts_are_freed(void **state)
{
    (void)state;
    struct fixture f;
    struct buf saved = {0};
    struct assembly *a = NULL;
    char path[256];
    int more = 0;
    small(&f);
    struct part *p = NULL;
    OK(part_new(&p, &f_err));
    work(&f, p, 0, f.records[6].span.begin);
    publish(&f, p, 0);
    work(&f, p, f.records[6].span.begin, f.d.end);
    publish(&f, p, 0);
    part_free(p);
    char *dir = output_parts_dir(&f.o);
    part_path(path, sizeof path, dir, JOB, EPOCH(1, 1), 0);
    mem_free(dir);
    OK(assembly_open(&f.o, JOB, &f.d, 0, NULL, 0, &a, &f_err));
    OK(assembly_advance(a, f.store, f.records[6].span.begin, 1 << 20, &more, &f_err));
    OK(assembly_free_parts(a, &f_err));
    assert_true(path_exists(path)); /* not saved yet */
    OK(assembly_save(a, &saved, &f_err));
    assert_true(path_exists(path)); /* the row may not be safe yet */
    OK(assembly_free_parts(a, &f_err));
    assert_false(path_exists(path));
    OK(assembly_advance(a, f.store, f.d.end, 1 << 20, &more, &f_err));
    OK(assembly_finish(a, &test_info, &f_err));
    assembly_close(a);
    snprintf(path, sizeof path, "%s/.ebb/parts/7", f.out);
    assert_false(path_exists(path));
    check_output(&f);
    buf_release(&saved);
    fixture_release(&f);
}

/* A job of which no record gave a row never learned how long one is. */
static void no_rows_at_all(void **state)
{
    (void)state;
    struct fixture f;
    struct buf b = {0};
    fixture_init(&f, "p", 5, 3);
    for (size_t i = 0; i < f.count; i++)
        f.records[i].fate = BAD;
    fixture_spec(&f, 0, OUTPUT_NPY, 0);
    f.o.dims = 0;
    OK(output_claim(&f.o, "{}", 2, &f_err));
    commit(&f, 0, f.d.end, 100, 0);
    OK(assemble(&f, 0, 1 << 20, NULL, &f_err));
    OK(path_read(f.out, 1000, &b, &f_err));
    assert_int_equal(b.len, 128);
    assert_memory_equal(b.data, "\x93NUMPY\x01\0v\0{'descr': '<f4', 'fortran_order': False, 'shape': (0, 0), }", 69);
    f.o.dims = 3; /* a retry may learn it */
    struct span *spans = NULL;
    size_t count = 0;
    OK(assembly_error_spans(&f.o, &spans, &count, &f_err));
    f.records[2].fate = GOOD;
    commit_retry(&f, spans, count, 1);
    mem_free(spans);
    OK(assemble(&f, 1, 1 << 20, NULL, &f_err));
    check_output(&f);
    buf_release(&b);
    fixture_release(&f);
}

/* A row of CSV may hold line ends in quotes; whoever set it aside took it for one line. */
static void lines_of_a_quarantined_row_are_counted(void **state)
{
    (void)state;
    static const char text[] = "id,text\n1,a\n2,\"b\nb\nb\"\n3,c\n";
    struct fixture f;
    struct buf have = {0};
    char path[128], want[400];
    fixture_init(&f, "", 0, 1);
    snprintf(path, sizeof path, "%s/x.csv", f.dir);
    OK(path_write(path, text, sizeof text - 1, &f_err));
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    struct source source = {.path = path, .size_bytes = sizeof text - 1, .mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec};
    uint64_t size = sizeof text - 1, at = 12, behind = 23;
    uint8_t kind = 1;
    struct dataset d = {.format = FORMAT_CSV, .count = 1, .sources = &source, .end = size};
    assert_int_equal(layout_init(&d.layout, 1, &size, &kind), 0);
    struct store_batch *b = batch(&f);
    struct extent x[] = {{.span = {0, at}, .epoch = 5, .part_extents = 2, .lines = 2},
                         {.span = {at, behind}, .records = 1, .errors = 1, .lines = 1, .reason = "hung|for ever"},
                         {.span = {behind, size}, .records = 1, .errors = 1, .lines = 1, .reason = "a text without a code"}};
    for (int i = 0; i < 3; i++)
        rows_put_extent(b, JOB, &x[i]);
    write_free(&f, b);
    fixture_spec(&f, 1, OUTPUT_JSONL, 0);
    OK(assembly_each_error(&f.o, JOB, &d, f.store, add_line, &have, &f_err));
    snprintf(want, sizeof want, "{\"source\":\"%s\",\"line\":3,\"code\":\"hung\",\"message\":\"for ever\"}\n"
                                "{\"source\":\"%s\",\"line\":6,\"code\":\"failed\",\"message\":\"a text without a code\"}\n",
             path, path);
    assert_string_equal(buf_cstr(&have), want);
    layout_release(&d.layout);
    buf_release(&have);
    fixture_release(&f);
}

static int open_fds(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void no_descriptor_stays_open(void **state)
{
    int before = open_fds();
    attempts_are_in_order(state);
    damaged_parts_are_named(state);
    saved_states_are_checked(state);
    errors_during_a_retry(state);
    assert_int_equal(open_fds(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_cut_gives_the_same),
        cmocka_unit_test(retry_merges),
        cmocka_unit_test(any_failure_can_be_repeated),
        cmocka_unit_test(store_failures_can_be_repeated),
        cmocka_unit_test(any_allocation_may_fail),
        cmocka_unit_test(any_kill_can_be_survived),
        cmocka_unit_test(what_was_not_saved_is_cut_off),
        cmocka_unit_test(gaps_and_overlaps_are_named),
        cmocka_unit_test(damaged_parts_are_named),
        cmocka_unit_test(damage_while_writing_is_named),
        cmocka_unit_test(errors_can_be_asked_at_any_time),
        cmocka_unit_test(errors_during_a_retry),
        cmocka_unit_test(lines_behind_a_gap_are_not_guessed),
        cmocka_unit_test(attempts_are_in_order),
        cmocka_unit_test(saved_states_are_checked),
        cmocka_unit_test(length_of_a_row_learnt_meanwhile),
        cmocka_unit_test(parts_are_freed),
        cmocka_unit_test(no_rows_at_all),
        cmocka_unit_test(lines_of_a_quarantined_row_are_counted),
        cmocka_unit_test(no_descriptor_stays_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
