/* ebb-worker: runs records through a model for one ebbd. It may be killed at any time: what it has not committed is done again. */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/host.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/opt.h"
#include "base/path.h"
#include "base/provider_id.h"
#include "wire/blackbox.h"
#include "workers/engine/packfile.h"
#include "workers/link.h"
#include "workers/pipeline/pipeline.h"
#include "workers/remote/remote.h"

#ifndef EBB_VERSION
#define EBB_VERSION "0.1.0"
#endif
#define MOST_LANES 1024
#define QUEUE_BYTES (UINT64_C(64) << 20)
#define OWN_MAPPING_BYTES (64 << 10) /* larger records get a mapping each, which goes back when they do: no heap is left in pieces by them */
#define LANES_AN_ARENA 16 /* a heap for each thread keeps in each what the fullest moment of that thread took: twice what a shared one keeps */
#define LANES_MS 500 /* that the lanes get to empty themselves of records that are not wanted any more */

static struct blackbox *box;

/* A crash is noted for whoever reads the box; then it takes its usual course, core and all. */
static void on_crash(int number)
{
    if (box)
        blackbox_cause(box, BLACKBOX_CRASHED);
    signal(number, SIG_DFL);
    raise(number);
}

static void note_crashes(void)
{
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};
    struct sigaction action = {.sa_handler = on_crash, .sa_flags = SA_ONSTACK | SA_NODEFER};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaction(numbers[i], &action, NULL);
}

/* A record that asks for too much gets NULL from malloc, and the worker dies of it alone, with its box, before the machine suffers. */
static enum status limit_memory(uint64_t bytes, struct err *e)
{
    if (!bytes)
        return ST_OK;
    if (bytes < HOST_LEAST_WORKER_MEMORY)
        return err_set(e, ST_USER, "--memory is too small for any model; give at least 64MiB");
    struct rlimit limit = {.rlim_cur = bytes, .rlim_max = bytes};
    if (setrlimit(RLIMIT_DATA, &limit))
        return err_errno(e, ST_ENV, errno, "cannot limit memory");
    return ST_OK;
}

/* Where packed weights go; *out NULL: nowhere. */
static enum status find_pack_dir(const char *told, char **out, struct err *e)
{
    if (!told)
        return packfile_default_dir(out, e);
    if (strcmp(told, "off") != 0 && !(*out = path_absolute(told)))
        return err_nomem(e, "a path");
    return ST_OK;
}

static enum status find_keys(const char *endpoint, const char *told, struct keys *out, struct err *e)
{
    if (!told)
        told = getenv("EBB_KEY_FILE");
    if (!told || !*told)
        return err_set(e, ST_USER, "'%s' wants keys: name this node's key file with --key-file; 'ebb-agent join' makes one out of what 'ebb invite --node' prints",
                       endpoint);
    return keys_read(told, KEYS_NODE, out, e);
}

/* Where models that came from elsewhere go: beside the packed weights; *out NULL: nowhere. */
static enum status find_model_dir(const char *told, const char *packs, char **out, struct err *e)
{
    const char *from = told ? told : getenv("EBB_MODEL_CACHE");
    if (from && strcmp(from, "off") == 0)
        return ST_OK;
    if (from && *from)
        *out = path_absolute(from);
    else if (!packs)
        return ST_OK;
    else if (strcmp(path_base(packs), "packs") == 0)
        *out = mem_printf("%.*smodels", (int)(path_base(packs) - packs), packs);
    else
        *out = path_join(packs, "models");
    return *out ? ST_OK : err_nomem(e, "a path");
}

static int signal_write_fd = -1;

static void on_leave(int number)
{
    int saved = errno;
    unsigned char byte = (unsigned char)number;
    if (write(signal_write_fd, &byte, 1) < 0) {
        /* the pipe is full of the same news */
    }
    errno = saved;
}

/* The link reads these signals as bytes of a pipe. A handler, not a mask and a signalfd: libraries have started threads of their own before main,
   and a signal that only this thread blocks ends the process through one of those. */
static int signals_as_file(void)
{
    int fds[2];
    if (pipe2(fds, O_NONBLOCK | O_CLOEXEC))
        return -1;
    signal_write_fd = fds[1];
    struct sigaction action = {.sa_handler = on_leave, .sa_flags = SA_RESTART | SA_ONSTACK};
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    return fds[0];
}

int main(int argc, char **argv)
{
    const char *host = NULL, *endpoint = NULL, *name = NULL, *box_path = NULL, *isa = NULL, *pack = NULL, *key_file = NULL, *provider_word = NULL;
    const char *models = NULL;
    char *pack_dir = NULL, *model_dir = NULL, host_name[256] = "unknown";
    uint64_t number = 0, lanes = 1, memory = 0, queue = 0, pack_bytes = 0, model_bytes = 0;
    uint32_t provider = PROVIDER_NONE;
    uint64_t grace = LINK_GRACE_MS;
    int verbose = 0, version = 0;
    const struct opt opts[] = {
        {.name = "connect", .type = OPT_TEXT, .value = &endpoint, .arg = "ENDPOINT", .help = "the daemon's socket for workers: ipc:///run/ebb/workers, or tcp://HOST:5570 with a key"},
        {.name = "key-file", .type = OPT_TEXT, .value = &key_file, .arg = "FILE", .help = "this node's keys, as 'ebb-agent join' or 'ebb keys add' made them (default: $EBB_KEY_FILE)"},
        {.name = "name", .type = OPT_TEXT, .value = &name, .arg = "NAME", .help = "what people call this worker (default: its number)"},
        {.name = "host", .type = OPT_TEXT, .value = &host, .arg = "NAME", .help = "what its machine is called (default: its host name)"},
        {.name = "number", .type = OPT_NUMBER, .value = &number, .arg = "N", .help = "what the daemon calls it (default: drawn at random)"},
        {.name = "blackbox", .type = OPT_TEXT, .value = &box_path, .arg = "FILE", .help = "where it notes the records that are in its lanes"},
        {.name = "lanes", .type = OPT_NUMBER, .value = &lanes, .arg = "N", .help = "micro-batches at once, one core each (default: 1)"},
        {.name = "memory", .type = OPT_SIZE, .value = &memory, .arg = "SIZE", .help = "most memory that it may take; a model that needs more runs by a window of its layers (default: no limit)"},
        {.name = "provider", .type = OPT_TEXT, .value = &provider_word, .arg = "NAME", .help = "who started it: local, agent, slurm or kubernetes (default: none, it came by itself)"},
        {.name = "queue", .type = OPT_SIZE, .value = &queue, .arg = "SIZE", .help = "most bytes of records and rows inside it (default: 64MiB, or an eighth of --memory)"},
        {.name = "isa", .type = OPT_TEXT, .value = &isa, .arg = "WORD", .help = "avx512, avx2 or generic; the results are the same (default: the best there is)"},
        {.name = "pack-cache", .type = OPT_TEXT, .value = &pack, .arg = "DIR|off",
         .help = "where packed weights are kept and shared with other workers (default: $EBB_PACK_CACHE, $XDG_CACHE_HOME/ebb or ~/.cache/ebb)"},
        {.name = "pack-cache-size", .type = OPT_SIZE, .value = &pack_bytes, .arg = "SIZE", .help = "most of them; the longest unused go first (default: 20GiB)"},
        {.name = "model-cache", .type = OPT_TEXT, .value = &models, .arg = "DIR|off",
         .help = "where models that this machine does not have are kept (default: $EBB_MODEL_CACHE, or models beside the packed weights)"},
        {.name = "model-cache-size", .type = OPT_SIZE, .value = &model_bytes, .arg = "SIZE", .help = "most of them; the longest unused go first (default: 50GiB)"},
        {.name = "grace", .type = OPT_DURATION, .value = &grace, .arg = "TIME", .help = "how long SIGTERM or SIGUSR1 leaves it to commit what it has (default: 20s)"},
        {.name = "verbose", .letter = 'v', .type = OPT_FLAG, .value = &verbose, .help = "say more"},
        {.name = "version", .type = OPT_FLAG, .value = &version, .help = "print the version and leave"},
    };
    const struct opt_command command = {
        .name = "ebb-worker",
        .summary = "run records through a model for ebbd",
        .details = "Started by ebbd, ebb-agent or a batch system. SIGTERM lets it commit what it has and leave within its grace, and so does SIGUSR1, a batch "
                   "system's notice; a second SIGTERM, or any other death, loses at most what was not committed yet, which others do again.\n\n"
                   "Exit codes: 0 left as told; 1 the daemon is gone, or the environment failed; 2 the command is wrong, or the daemon refused it; "
                   "77 memory was out.",
        .opts = opts,
        .opt_count = sizeof opts / sizeof *opts,
    };
    struct err e;
    struct keys keys;
    int operands;
    enum status st = opt_parse(&command, argc, argv, &operands, &e);
    if (st == ST_END)
        return 0;
    if (st == ST_OK && version) {
        puts("ebb-worker " EBB_VERSION);
        return 0;
    }
    if (st == ST_OK && (!endpoint || !box_path))
        st = err_set(&e, ST_USER, "--%s is missing; see 'ebb-worker --help'", !endpoint ? "connect" : "blackbox");
    while (st == ST_OK && !number)
        if (getrandom(&number, sizeof number, 0) != sizeof number)
            st = err_errno(&e, ST_ENV, errno, "cannot draw a number");
    if (st == ST_OK && (lanes == 0 || lanes > MOST_LANES))
        st = err_set(&e, ST_USER, "--lanes must be 1 to %d", MOST_LANES);
    if (st == ST_OK && provider_word && provider_id_parse(provider_word, &provider))
        st = err_set(&e, ST_USER, "--provider wants none, local, agent, slurm or kubernetes, not '%s'", provider_word);
    if (st == ST_OK && strncmp(endpoint, "tcp://", 6) == 0)
        st = find_keys(endpoint, key_file, &keys, &e);
    else if (st == ST_OK && key_file)
        st = err_set(&e, ST_USER, "--key-file is for tcp: an ipc socket is guarded by its mode");
    if (st == ST_OK)
        st = limit_memory(memory, &e);
    if (st == ST_OK)
        st = find_pack_dir(pack, &pack_dir, &e);
    if (st == ST_OK)
        st = find_model_dir(models, pack_dir, &model_dir, &e);
    if (st != ST_OK) {
        fprintf(stderr, "error: %s\n", e.text);
        return status_exit_code(st);
    }
    mallopt(M_MMAP_THRESHOLD, OWN_MAPPING_BYTES);
    mallopt(M_ARENA_MAX, 1 + (int)(lanes / LANES_AN_ARENA));
    if (memory && !queue && memory / 8 < QUEUE_BYTES)
        queue = memory / 8;
    char own_name[32];
    snprintf(own_name, sizeof own_name, "%llx", (unsigned long long)number);
    log_init("ebb-worker", verbose ? LOG_DEBUG : LOG_INFO);

    int signal_fd = signals_as_file(), wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    struct pipeline *p = NULL;
    if (signal_fd < 0 || wake_fd < 0)
        st = err_errno(&e, ST_ENV, errno, "cannot set up signals");
    if (st == ST_OK)
        st = blackbox_create(box_path, pipeline_slots((uint32_t)lanes), &box, &e);
    struct remote *remote = NULL;
    if (!host && gethostname(host_name, sizeof host_name - 1) == 0)
        host_name[sizeof host_name - 1] = 0;
    if (st == ST_OK) {
        const struct remote_opts ro = {.endpoint = endpoint, .keys = strncmp(endpoint, "tcp://", 6) == 0 ? &keys : NULL, .number = number,
                                       .host = host ? host : host_name, .model_dir = model_dir, .model_bytes = model_bytes};
        st = remote_new(&ro, &remote, &e);
    }
    void *context = st == ST_OK ? zmq_ctx_new() : NULL;
    if (st == ST_OK && !context)
        st = err_errno(&e, ST_ENV, errno, "cannot start ZeroMQ");
    if (st == ST_OK) {
        note_crashes();
        struct pipeline_opts o = {.remote = remote, .lanes = (uint32_t)lanes, .isa = isa, .pack_dir = pack_dir, .pack_bytes = pack_bytes, .budget_bytes = queue, .box = box, .wake_fd = wake_fd,
                                  .context = context, .endpoint = endpoint, .keys = strncmp(endpoint, "tcp://", 6) == 0 ? &keys : NULL, .number = number, .memory_bytes = memory};
        st = pipeline_new(&o, &p, &e);
    }
    if (st != ST_OK) {
        log_error("%s", e.text);
        return status_exit_code(st);
    }
    struct link_opts o = {
        .context = context,
        .endpoint = endpoint,
        .keys = strncmp(endpoint, "tcp://", 6) == 0 ? &keys : NULL,
        .name = name ? name : own_name,
        .host = host ? host : host_name,
        .remote = remote,
        .program = "ebb-worker " EBB_VERSION,
        .number = number,
        .lanes = (uint32_t)lanes,
        .memory_bytes = memory,
        .provider = provider,
        .grace_ms = grace,
        .wake_fd = wake_fd,
        .signal_fd = signal_fd,
    };
    int exit_code = link_run(&o, p);
    for (uint64_t until_ms = clock_ms() + LANES_MS; !pipeline_idle(p); clock_sleep_ms(5))
        if (clock_ms() > until_ms) {
            fflush(NULL);
            _exit(exit_code); /* a lane is busy for long with what nobody wants any more */
        }
    pipeline_free(p);
    zmq_ctx_term(context);
    remote_free(remote);
    blackbox_close(box, exit_code == 0 ? box_path : NULL);
    close(wake_fd);
    mem_free(pack_dir);
    mem_free(model_dir);
    return exit_code;
}
