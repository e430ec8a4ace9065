/* Slurm's words: what is made of those of squeue, sbatch and scontrol, what they are told, and what follows from a queue. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/path.h"
#include "daemon/link_inside.h"
#include "daemon/slurm_inside.h"
#include "tests/lib/files.h"
#include "wire/process.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

static char dir[64];

static int setup(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/ebbd-slurm-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    struct err e;
    return path_remove_tree(dir, &e) == ST_OK ? 0 : -1;
}

/* Reading ------------------------------------------------------------------------------------------------------------------------- */

static void rows(void **state)
{
    (void)state;
    struct slurm_row r;
    static const char good[] = "8812_3|RUNNING|2|0|n3|None";
    assert_int_equal(slurm_row_parse(good, strlen(good), &r), 0);
    assert_string_equal(r.id, "8812_3");
    assert_int_equal(r.state, SLURM_RUNNING);
    assert_int_equal(r.restarts, 2);
    assert_string_equal(r.node, "n3");
    static const struct {
        const char *line;
        enum slurm_state state;
        int status;
        const char *reason;
    } cases[] = {
        {"7|PENDING|0|0||Resources", SLURM_PENDING, 0, "Resources"},
        {"7|FAILED|0|768|n2|NonZeroExitCode", SLURM_FAILED, 3 << 8, "NonZeroExitCode"},
        {"7|FAILED|0|3:0|n2|NonZeroExitCode", SLURM_FAILED, 3 << 8, "NonZeroExitCode"},
        {"7|FAILED|0|0:11|n2|x", SLURM_FAILED, SIGSEGV, "x"},
        {"7|CANCELLED|0|36608|n1|None", SLURM_CANCELLED, 143 << 8, "None"},
        {"  7 | OUT_OF_MEMORY |0| 9 |n1| a reason | with a bar ", SLURM_OUT_OF_MEMORY, SIGKILL, "a reason | with a bar"},
        {"7|PENDING|0|0||(launch failed requeued held)", SLURM_PENDING, 0, "(launch failed requeued held)"},
        {"7|DREAMING|0|0||?\x01\xff", SLURM_UNKNOWN, 0, "???"},
        {"7|RUNNING|99999999999|0|n|x", SLURM_UNKNOWN, -1, NULL},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        int bad = slurm_row_parse(cases[i].line, strlen(cases[i].line), &r);
        assert_int_equal(bad, cases[i].reason ? 0 : -1);
        if (bad)
            continue;
        assert_int_equal(r.state, cases[i].state);
        assert_int_equal(r.status, cases[i].status);
        assert_string_equal(r.reason, cases[i].reason);
    }
    static const char *const none[] = {"",          "|||||",        "x|RUNNING|0|0|n|r",   "7|RUNNING|0|0|n",       "7||0|0|n|r", "7|RUNNING||0|n|r",
                                       "7|RUNNING|0||n|r", "7|RUNNING|-1|0|n|r", "7|RUNNING|0|-1|n|r", "7_|RUNNING|0|0|n|r", "_7|RUNNING|0|0|n|r",
                                       "7_8_9|RUNNING|0|0|n|r", "7_[1-4]|PENDING|0|0||r", "-7|RUNNING|0|0|n|r", "7|RUNNING|0|1:|n|r",
                                       "1234567890123|RUNNING|0|0|n|r", "slurm_load_jobs error: Unable to contact slurm controller"};
    for (size_t i = 0; i < COUNT(none); i++)
        assert_int_equal(slurm_row_parse(none[i], strlen(none[i]), &r), -1);
    /* cut anywhere, and with nothing behind it that could be read by mistake */
    for (size_t n = 0; n < strlen(good); n++) {
        char *copy = malloc(n ? n : 1);
        memcpy(copy, good, n);
        if (slurm_row_parse(copy, n, &r) == 0)
            assert_true(n >= strlen("8812_3|RUNNING|2|0|n3|"));
        free(copy);
    }
}

static void numbers(void **state)
{
    (void)state;
    char id[SLURM_ID_MAX];
    uint32_t restarts;
    assert_int_equal(slurm_submitted_parse("8812\n", id), 0);
    assert_string_equal(id, "8812");
    assert_int_equal(slurm_submitted_parse("8812;cluster\n", id), 0);
    assert_string_equal(id, "8812");
    assert_int_equal(slurm_submitted_parse("welcome to the cluster\n2026 is the year\n8813", id), 0);
    assert_string_equal(id, "8813");
    assert_int_equal(slurm_submitted_parse("", id), -1);
    assert_int_equal(slurm_submitted_parse("Submitted batch job 8812\n", id), -1);
    assert_int_equal(slurm_submitted_parse("99999999999999999999999999999999999999\n", id), -1);

    assert_int_equal(slurm_name_parse("slurm-8812", id, &restarts), 0);
    assert_string_equal(id, "8812");
    assert_int_equal(restarts, 0);
    assert_int_equal(slurm_name_parse("slurm-8812_3.14", id, &restarts), 0);
    assert_string_equal(id, "8812_3");
    assert_int_equal(restarts, 14);
    static const char *const none[] = {"", "slurm-", "slurm", "desk12/1", "slurm-x", "slurm-1.", "slurm-1.x", "slurm-1.2.3", "slurm-1_.2", "slurm-1/2", "xslurm-1"};
    for (size_t i = 0; i < COUNT(none); i++)
        assert_int_equal(slurm_name_parse(none[i], id, &restarts), -1);

    assert_int_equal(slurm_kill_wait_ms("KeepAliveTime  = SYSTEM_DEFAULT\nKillOnBadExit = 0\nKillWait                = 30 sec\nLaunch = 1\n"), 30000);
    assert_int_equal(slurm_kill_wait_ms("KillWaiting = 30 sec\n"), 0);
    assert_int_equal(slurm_kill_wait_ms("KillWait = forever\n"), 0);
    assert_int_equal(slurm_kill_wait_ms(""), 0);

    char words[64];
    slurm_complaint("sbatch", "sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed: Invalid partition name specified\n", words, sizeof words);
    assert_string_equal(words, "invalid partition specified: x; Batch job submission failed: In"); /* cut, never past its end */
    slurm_complaint("squeue", "slurm_load_jobs error: Unable to contact\n\n", words, sizeof words);
    assert_string_equal(words, "Unable to contact");
    slurm_complaint("squeue", "", words, sizeof words);
    assert_string_equal(words, "");
}

/* How it went ------------------------------------------------------------------------------------------------------------------------ */

static void causes(void **state)
{
    (void)state;
    static const struct {
        enum slurm_state state;
        int status;
        enum blackbox_cause box;
        int hung;
        enum worker_end want;
    } cases[] = {
        {SLURM_REQUEUED, 0, BLACKBOX_UNKNOWN, 0, WORKER_PREEMPTED},
        {SLURM_PREEMPTED, SIGKILL, BLACKBOX_UNKNOWN, 0, WORKER_PREEMPTED},
        {SLURM_CANCELLED, SIGKILL, BLACKBOX_UNKNOWN, 0, WORKER_PREEMPTED},
        {SLURM_TIMEOUT, SIGTERM, BLACKBOX_UNKNOWN, 0, WORKER_PREEMPTED},
        {SLURM_DEADLINE, 0, BLACKBOX_UNKNOWN, 0, WORKER_PREEMPTED},
        {SLURM_NODE_FAIL, SIGKILL, BLACKBOX_UNKNOWN, 0, WORKER_LOST},
        {SLURM_NODE_FAIL, SIGSEGV, BLACKBOX_UNKNOWN, 0, WORKER_LOST}, /* what the node says of its last moment is worth nothing */
        {SLURM_UNKNOWN, 0, BLACKBOX_UNKNOWN, 0, WORKER_LOST},
        {SLURM_COMPLETED, 0, BLACKBOX_UNKNOWN, 0, WORKER_DRAINED},
        {SLURM_FAILED, 1 << 8, BLACKBOX_UNKNOWN, 0, WORKER_LOST},
        {SLURM_FAILED, SIGKILL, BLACKBOX_UNKNOWN, 0, WORKER_LOST},
        {SLURM_FAILED, SIGSEGV, BLACKBOX_UNKNOWN, 0, WORKER_CRASHED},
        {SLURM_FAILED, SIGSEGV | 0x80, BLACKBOX_UNKNOWN, 0, WORKER_CRASHED}, /* with a core */
        {SLURM_FAILED, (128 + SIGABRT) << 8, BLACKBOX_UNKNOWN, 0, WORKER_CRASHED},
        {SLURM_FAILED, (128 + SIGKILL) << 8, BLACKBOX_UNKNOWN, 0, WORKER_LOST},
        {SLURM_FAILED, 77 << 8, BLACKBOX_UNKNOWN, 0, WORKER_OOM},
        {SLURM_FAILED, 1 << 8, BLACKBOX_OUT_OF_MEMORY, 0, WORKER_OOM},
        {SLURM_FAILED, 1 << 8, BLACKBOX_CRASHED, 0, WORKER_CRASHED},
        {SLURM_REQUEUED, 0, BLACKBOX_CRASHED, 0, WORKER_CRASHED}, /* it crashed by itself, whatever came then */
        {SLURM_OUT_OF_MEMORY, SIGKILL, BLACKBOX_UNKNOWN, 0, WORKER_OOM},
        {SLURM_CANCELLED, SIGKILL, BLACKBOX_UNKNOWN, 1, WORKER_HUNG},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        if (slurm_cause(cases[i].state, cases[i].status, cases[i].box, cases[i].hung) != cases[i].want) {
            print_error("case %zu\n", i);
            fail();
        }
}

/* Submitting ------------------------------------------------------------------------------------------------------------------------- */

static const char *said_by(const char *script, const char *env)
{
    static char out[4096];
    char path[96], command[256];
    snprintf(path, sizeof path, "%s/script", dir);
    files_put(path, script, strlen(script));
    snprintf(command, sizeof command, "%s /bin/sh %s", env, path);
    FILE *f = popen(command, "r");
    size_t n = fread(out, 1, sizeof out - 1, f);
    out[n] = 0;
    pclose(f);
    return out;
}

static void a_script(void **state)
{
    (void)state;
    struct config c;
    struct err e;
    assert_int_equal(config_init(&c, &e), ST_OK);
    char program[96];
    snprintf(program, sizeof program, "%s/it's a $(worker)", dir);
    static const char echo[] = "#!/bin/sh\nfor a; do printf '%s\\n' \"$a\"; done\n"; /* says what it was told, a word a line */
    files_put(program, echo, strlen(echo));
    chmod(program, 0700);
    c.slurm_dir = mem_strdup("/nowhere/'at all'");
    c.slurm_key_file = mem_strdup("/home/a b/\"key\"`id`");
    c.slurm_cpus = 3;
    c.slurm_memory = 1u << 30;
    struct slurm_terms t = {.config = &c, .name = "ebb-x", .connect = "tcp://pool:5570", .program = program, .grace_ms = 2000, .count = 1};
    struct buf script = {0};
    assert_int_equal(slurm_script(&t, &script), 0);
    const char *text = buf_cstr(&script);
    assert_non_null(text);
    char *out = strdup(said_by(text, "SLURM_JOB_ID=8812 SLURMD_NODENAME=n3 TMPDIR=/scratch"));
    char *number = strstr(out, "--number\n") + strlen("--number\n");
    unsigned long long n = strtoull(number, NULL, 10);
    assert_true(n > 0);
    char want[1024];
    snprintf(want, sizeof want,
             "--provider\nslurm\n--host\nn3\n--number\n%llu\n--name\nslurm-8812\n--blackbox\n/scratch/%llu.box\n--connect\ntcp://pool:5570\n--lanes\n3\n"
             "--grace\n2000ms\n--memory\n%u\n--key-file\n/home/a b/\"key\"`id`\n", n, n, (1u << 30) - (1u << 26));
    assert_string_equal(out, want);
    free(out);
    const char *again = said_by(text, "SLURM_JOB_ID=9 SLURM_ARRAY_JOB_ID=8812 SLURM_ARRAY_TASK_ID=4 SLURM_RESTART_COUNT=2");
    assert_non_null(strstr(again, "\nslurm-8812_4.2\n"));
    char first[32];
    snprintf(first, sizeof first, "%llu", n);
    assert_null(strstr(again, first)); /* another number each time */
    buf_release(&script);

    /* a shared folder takes the box and the log; a program that is not there is looked for, and its absence said */
    mem_free(c.slurm_dir);
    c.slurm_dir = mem_strdup(dir);
    t.program = "/nowhere/ebb-worker";
    assert_int_equal(slurm_script(&t, &script), 0);
    assert_string_equal(said_by(buf_cstr(&script), "PATH=/usr/bin:/bin SLURM_JOB_ID=8813"), "");
    char log[96], words[300];
    snprintf(log, sizeof log, "%s/slurm-8813.log", dir);
    process_last_words(log, words, sizeof words);
    assert_non_null(strstr(words, "ebb-worker is neither at '/nowhere/ebb-worker' nor on the PATH; set slurm.program in ebbd.yaml"));
    buf_release(&script);
    config_release(&c);
}

static void the_words_of_sbatch(void **state)
{
    (void)state;
    struct config c;
    struct err e;
    assert_int_equal(config_init(&c, &e), ST_OK);
    struct slurm_terms t = {.config = &c, .name = "ebb-x", .count = 1};
    char **args = slurm_args(&t);
    static const char *const least[] = {"sbatch", "--parsable", "--requeue", "--open-mode=append", "--signal=B:USR1@30", "--output=/dev/null", "--chdir=/",
                                        "--export=ALL", "--nodes=1", "--ntasks=1", "--job-name=ebb-x", "--cpus-per-task=1"};
    for (size_t i = 0; i < COUNT(least); i++)
        assert_string_equal(args[i], least[i]);
    assert_null(args[COUNT(least)]);
    slurm_args_free(args);
    c.slurm_partition = mem_strdup("scavenge");
    c.slurm_account = mem_strdup("a");
    c.slurm_qos = mem_strdup("q");
    c.slurm_constraint = mem_strdup("avx512|amx");
    c.slurm_time = 90000;
    c.slurm_memory = (1u << 30) + 1;
    c.slurm_options = mem_array(3, sizeof *c.slurm_options);
    c.slurm_options[0] = mem_strdup("--nice=5");
    c.slurm_options[1] = mem_strdup("--comment=two words");
    t.count = 7;
    args = slurm_args(&t);
    static const char *const more[] = {"--partition=scavenge", "--account=a", "--qos=q", "--constraint=avx512|amx", "--time=2", "--mem=1025M", "--array=0-6",
                                       "--nice=5", "--comment=two words"};
    for (size_t i = 0; i < COUNT(more); i++)
        assert_string_equal(args[COUNT(least) + i], more[i]);
    assert_null(args[COUNT(least) + COUNT(more)]);
    slurm_args_free(args);
    for (uint64_t i = 1; i < 25; i++) { /* memory is out at each place */
        mem_fail_nth(i);
        args = slurm_args(&t);
        if (mem_fail_nth(0) < i && args)
            i = 25;
        slurm_args_free(args);
    }
    config_release(&c);
}

/* The queue -------------------------------------------------------------------------------------------------------------------------- */

static struct config config;
static struct daemon daemon_;
static struct slurm s;

static void begin(void)
{
    struct err e;
    memset(&daemon_, 0, sizeof daemon_);
    memset(&s, 0, sizeof s);
    assert_int_equal(config_init(&config, &e), ST_OK);
    config.slurm_dir = mem_strdup(dir);
    daemon_.config = &config;
    daemon_.slurm = &s;
    uv_loop_init(&daemon_.uv);
    s.d = &daemon_;
    s.lock_fd = -1;
}

static void end(void)
{
    uv_run(&daemon_.uv, UV_RUN_DEFAULT);
    slurm_ends_free(&s);
    slurm_free_all(&s);
    uv_loop_close(&daemon_.uv);
    config_release(&config);
}

static size_t cancelled(enum slurm_cancel how)
{
    size_t n = 0;
    for (const struct slurm_job *j = s.jobs; j; j = j->next)
        n += j->cancel == how;
    return n;
}

static void a_queue(void **state)
{
    (void)state;
    begin();
    assert_int_equal(slurm_plan(&s, 5, 3), 3); /* never beyond the limit */
    assert_int_equal(slurm_plan(&s, 2, 3), 2);
    /* those of an earlier daemon, and of the past */
    assert_int_equal(slurm_take(&s, "1_0|PENDING|0|0||Priority\n1_1|RUNNING|0|0|n1|None\n7|FAILED|0|256|n2|x\n8|SUSPENDED|0|0|n2|None\n"), 0);
    assert_int_equal(s.count, 3);
    assert_int_equal(slurm_plan(&s, 2, 4), 0);
    assert_int_equal(slurm_plan(&s, 3, 4), 1); /* the one that is suspended does not work, and takes a place */
    assert_int_equal(slurm_plan(&s, 9, 4), 1);
    assert_string_equal(s.waits, "");
    /* fewer are wanted: what waits goes, what works does not */
    slurm_find(&s, "1_1")->alone_ms = 0;
    assert_int_equal(slurm_plan(&s, 0, 4), 0);
    assert_int_equal(cancelled(CANCEL_WAITING), 1);
    assert_int_equal(slurm_find(&s, "1_0")->cancel, CANCEL_WAITING);
    assert_int_equal(slurm_plan(&s, 2, 4), 0); /* wanted again before it was cancelled */
    assert_int_equal(cancelled(CANCEL_WAITING), 0);
    assert_int_equal(slurm_plan(&s, 1, 4), 0);
    slurm_find(&s, "1_0")->cancel_sent = 1;
    assert_int_equal(slurm_take(&s, "1_0|RUNNING|0|0|n1|None\n1_1|RUNNING|0|0|n1|None\n8|SUSPENDED|0|0|n2|None\n"), 0);
    assert_int_equal(cancelled(CANCEL_WAITING), 0); /* it was faster */
    /* nobody has arrived from one that runs: it goes, too, once no other is too many */
    slurm_find(&s, "1_0")->alone_ms = 0;
    assert_true(slurm_find(&s, "1_1")->alone_ms > 0);
    assert_int_equal(slurm_plan(&s, 1, 4), 0);
    assert_int_equal(cancelled(CANCEL_END), 0); /* it may be on its way */
    slurm_find(&s, "1_1")->alone_ms = clock_ms() - 20000;
    assert_int_equal(slurm_plan(&s, 1, 4), 0);
    assert_int_equal(slurm_find(&s, "1_1")->cancel, CANCEL_END);
    assert_int_equal(cancelled(CANCEL_END), 1);
    /* nonsense is no empty queue: nothing is gone, nothing is submitted */
    assert_int_equal(slurm_take(&s, "the cluster is being serviced\n"), -1);
    assert_int_equal(s.count, 3);
    end();
}

/* A daemon that was started anew: nothing is wanted yet, and no worker has come again. Nothing is called back for that. */
static void after_a_start(void **state)
{
    (void)state;
    begin();
    s.since_ms = clock_ms();
    assert_int_equal(slurm_take(&s, "1_0|PENDING|0|0||Priority\n1_1|RUNNING|0|0|n1|None\n"), 0);
    slurm_find(&s, "1_1")->alone_ms = clock_ms() - 20000;
    assert_int_equal(slurm_plan(&s, 0, 4), 0);
    assert_int_equal(cancelled(CANCEL_NOT), 2);
    assert_int_equal(slurm_plan(&s, 3, 4), 1); /* what is missing may be asked for */
    s.since_ms -= 20000;
    assert_int_equal(slurm_plan(&s, 0, 4), 0);
    assert_int_equal(cancelled(CANCEL_NOT), 0);
    end();
}

static void jobs_that_go(void **state)
{
    (void)state;
    begin();
    assert_int_equal(slurm_take(&s, "1|RUNNING|0|0|n1|None\n2|RUNNING|0|0|n2|None\n"), 0);
    assert_true(slurm_find(&s, "1")->alone_ms > 0); /* nobody has said hello */
    slurm_find(&s, "1")->greeted = slurm_find(&s, "2")->greeted = 1;
    /* preempted: it goes, it waits, it runs again; at no time is another one submitted in its place */
    assert_int_equal(slurm_take(&s, "1|COMPLETING|1|0|n1|None\n2|RUNNING|0|0|n2|None\n"), 0);
    assert_int_equal(slurm_plan(&s, 2, 4), 0);
    assert_int_equal(slurm_find(&s, "1")->restarts, 0);
    assert_int_equal(slurm_take(&s, "1|PENDING|1|0||BeginTime\n2|RUNNING|0|0|n2|None\n"), 0);
    assert_int_equal(slurm_plan(&s, 2, 4), 0);
    assert_int_equal(slurm_find(&s, "1")->restarts, 1);
    assert_int_equal(slurm_find(&s, "1")->greeted, 0);
    assert_int_equal(slurm_take(&s, "1|RUNNING|1|0|n3|None\n2|RUNNING|0|0|n2|None\n"), 0);
    slurm_find(&s, "1")->greeted = 1;
    /* at its end one is missing; a look that does not list it once is no end */
    assert_int_equal(slurm_take(&s, "1|COMPLETING|1|0|n3|None\n"), 0);
    assert_int_equal(slurm_plan(&s, 2, 4), 1);
    assert_int_equal(s.count, 2);
    assert_int_equal(slurm_take(&s, "1|COMPLETED|1|0|n3|None\n"), 0);
    assert_int_equal(s.count, 0);
    assert_int_equal(slurm_plan(&s, 2, 4), 2);
    assert_int_equal(s.failures, 0);
    /* all wait: people are told why */
    assert_int_equal(slurm_take(&s, "3|PENDING|0|0||Resources\n4|PENDING|0|0||Resources\n"), 0);
    assert_string_equal(s.waits, "2 jobs wait in its queue (Resources)");
    assert_int_equal(slurm_take(&s, "3|PENDING|0|0||None\n4|PENDING|0|0||None\n"), 0);
    assert_string_equal(s.waits, "2 jobs wait in its queue");
    /* it cannot be launched and would be held for ever */
    assert_int_equal(slurm_take(&s, "3|PENDING|0|0||launch failed requeued held\n4|PENDING|0|0||Resources\n"), 0);
    assert_int_equal(slurm_find(&s, "3")->cancel, CANCEL_END);
    assert_int_equal(s.failures, 1);
    assert_non_null(strstr(s.job_trouble, "launch failed"));
    end();
}

static void jobs_that_end_at_once(void **state)
{
    (void)state;
    char log[96];
    snprintf(log, sizeof log, "%s/slurm-5.log", dir);
    files_put(log, "n1: no such library\n", strlen("n1: no such library\n"));
    begin();
    daemon_.core = (struct sched *)&s; /* there is one; nobody looks into it: no worker had come */
    uint64_t began = clock_ms();
    assert_int_equal(slurm_take(&s, "5|RUNNING|0|0|n1|None\n"), 0);
    assert_int_equal(slurm_take(&s, "5|FAILED|0|32512|n1|NonZeroExitCode\n"), 0);
    uv_run(&daemon_.uv, UV_RUN_DEFAULT);
    assert_string_equal(s.job_trouble, "jobs end before their worker says hello (5 on n1: FAILED, exit 127): n1: no such library");
    assert_true(s.submit_ms > began);
    uint64_t first = s.submit_ms - began;
    for (int i = 0; i < 12; i++) {
        char text[80];
        snprintf(text, sizeof text, "%d|PENDING|0|0||x\n", i + 10);
        assert_int_equal(slurm_take(&s, text), 0);
        snprintf(text, sizeof text, "%d|FAILED|0|256|n1|x\n", i + 10);
        assert_int_equal(slurm_take(&s, text), 0);
        uv_run(&daemon_.uv, UV_RUN_DEFAULT);
    }
    uint64_t last = s.submit_ms - clock_ms();
    assert_true(last > first && last <= 300000); /* ever more slowly, but not for ever */
    end();
}

/* Who may say that it is the worker of which job. */
static void names_from_the_wire(void **state)
{
    (void)state;
    static struct link link;
    static struct worker w[6];
    static const struct {
        const char *name;
        uint32_t provider;
        int ours;
    } cases[] = {
        {"slurm-5", PROVIDER_SLURM, 0},     /* of a start that is over */
        {"slurm-5.2", PROVIDER_SLURM, 1},   /* its next start: news */
        {"slurm-6", PROVIDER_SLURM, 1},     /* a job that we do not know yet */
        {"slurm-7_1", PROVIDER_NONE, 0},    /* does not say that it is Slurm's */
        {"slurm-../../etc", PROVIDER_SLURM, 0},
        {"slurm-7_1", PROVIDER_SLURM, 1},
    };
    begin();
    memset(&link, 0, sizeof link);
    memset(w, 0, sizeof w);
    daemon_.link = &link;
    for (size_t i = 0; i < COUNT(w); i++) {
        w[i].number = 100 + i;
        w[i].provider = cases[i].provider;
        w[i].seen_ms = clock_ms();
        snprintf(w[i].name, sizeof w[i].name, "%s", cases[i].name);
        assert_int_equal(map_add(&link.by_number, w[i].number, &w[i]), 0);
    }
    assert_int_equal(slurm_take(&s, "5|RUNNING|1|0|n1|None\n"), 0);
    for (size_t i = 0; i < COUNT(w); i++)
        assert_int_equal(provider_slurm.owns(&daemon_, w[i].number), cases[i].ours);
    assert_int_equal(provider_slurm.starting(&daemon_, NULL, NULL), 1);
    provider_slurm.hello(&daemon_, &w[1]);
    assert_int_equal(slurm_find(&s, "5")->worker, 101);
    assert_int_equal(slurm_find(&s, "5")->restarts, 2);
    provider_slurm.hello(&daemon_, &w[2]);
    assert_int_equal(s.count, 2);
    assert_int_equal(provider_slurm.starting(&daemon_, NULL, NULL), 0);
    assert_int_equal(slurm_take(&s, "5|RUNNING|2|0|n1|None\n6|RUNNING|0|0|n1|None\n"), 0);
    assert_int_equal(slurm_find(&s, "5")->alone_ms, 0);
    assert_int_equal(slurm_plan(&s, 0, 4), 0);
    assert_int_equal(cancelled(CANCEL_NOT), 2); /* who has arrived is told by the core, with a drain */
    /* one that leaves is replaced, and its job is no failure */
    provider_slurm.leaving(&daemon_, 102);
    assert_int_equal(slurm_plan(&s, 2, 4), 1);
    provider_slurm.bye(&daemon_, 102);
    assert_int_equal(slurm_find(&s, "6")->worker, 0);
    assert_int_equal(slurm_take(&s, "5|RUNNING|2|0|n1|None\n6|COMPLETED|0|0|n1|None\n"), 0);
    assert_int_equal(s.count, 1);
    assert_int_equal(s.failures, 0);
    /* Slurm forgets a job whose worker speaks: it is let go, and found again with its worker when it is listed again */
    assert_int_equal(slurm_take(&s, ""), 0);
    assert_int_equal(slurm_take(&s, ""), 0);
    assert_int_equal(s.count, 0);
    assert_int_equal(slurm_take(&s, "5|RUNNING|2|0|n1|None\n"), 0);
    assert_int_equal(slurm_find(&s, "5")->worker, 101);
    assert_int_equal(slurm_find(&s, "5")->alone_ms, 0);
    /* a silent one is one that has not arrived */
    w[1].seen_ms = clock_ms() - 2 * config.worker_timeout;
    assert_int_equal(slurm_take(&s, "5|RUNNING|2|0|n1|None\n"), 0);
    assert_true(slurm_find(&s, "5")->alone_ms > 0);
    assert_int_equal(provider_slurm.starting(&daemon_, NULL, NULL), 1);
    end();
    map_release(&link.by_number);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows), cmocka_unit_test(numbers), cmocka_unit_test(causes), cmocka_unit_test(a_script),
                                       cmocka_unit_test(the_words_of_sbatch), cmocka_unit_test(a_queue), cmocka_unit_test(after_a_start), cmocka_unit_test(jobs_that_go),
                                       cmocka_unit_test(jobs_that_end_at_once), cmocka_unit_test(names_from_the_wire)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
