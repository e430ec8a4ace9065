/* `ebb doctor`: is this machine fit? Each check says what it found, and what to do where it is not well. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

#include "base/host.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/units.h"
#include "client/client.h"
#include "client/connect.h"
#include "client/private.h"
#include "workers/engine/cpuinfo.h"

static int unwell;

static void report(const char *name, int ok, const char *fmt, ...) PRINTF(3, 4);
static void report(const char *name, int ok, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    unwell += !ok;
    if (common.json)
        print_json(json_pack("{s:s, s:b, s:s}", "name", name, "ok", ok, "text", text));
    else
        printf("%-4s %-11s %s\n", ok ? "ok" : "BAD", name, text);
}

static void check_programs(void)
{
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) {
        report("programs", 0, "/proc/self/exe cannot be read: is /proc mounted?");
        return;
    }
    self[n] = 0;
    *strrchr(self, '/') = 0;
    static const char *const names[] = {"ebbd", "ebb-worker"};
    for (size_t i = 0; i < COUNT(names); i++) {
        char *path = path_join(self, names[i]);
        int there = path && access(path, X_OK) == 0;
        report("programs", there, there ? "%s" : "%s is not there or cannot be run: 'make install' puts all of ebb into one folder", path ? path : names[i]);
        mem_free(path);
    }
}

static void check_libraries(void)
{
    int major, minor, patch;
    zmq_version(&major, &minor, &patch);
    int curve = zmq_has("curve"), ipc = zmq_has("ipc");
    report("libraries", ipc, "ZeroMQ %d.%d.%d%s%s, jansson %s", major, minor, patch, ipc ? "" : ", WITHOUT ipc: install one that has it",
           curve ? "" : " (without curve: machines cannot be joined safely)", JANSSON_VERSION);
}

static void check_processor(void)
{
    const struct kernels *k;
    struct err e;
    uint32_t n = host_processors();
    long all = sysconf(_SC_NPROCESSORS_ONLN);
    if (cpu_kernels("auto", &k, &e) != ST_OK)
        report("processor", 0, "%s", e.text);
    else
        report("processor", 1, "%u of %ld cores may be used, %s kernels%s", n, all, k->name,
               strcmp(k->name, "generic") == 0 ? ": this processor has neither AVX2 nor AVX-512, expect a fraction of the speed" : "");
}

static void check_memory(void)
{
    char line[256], a[UNITS_MAX];
    uint64_t available_kib = 0;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %" SCNu64, &available_kib) == 1)
            break;
    if (f)
        fclose(f);
    uint64_t bytes = available_kib << 10, limit = UINT64_MAX;
    static const char *const limits[] = {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"};
    for (size_t i = 0; i < COUNT(limits); i++) {
        unsigned long long n;
        f = fopen(limits[i], "re");
        if (f && fscanf(f, "%llu", &n) == 1 && n < limit)
            limit = n;
        if (f)
            fclose(f);
    }
    int little = bytes < (UINT64_C(512) << 20) || limit < (UINT64_C(512) << 20);
    units_bytes(a, limit < bytes ? limit : bytes);
    report("memory", !little, "%s %s%s", a, limit < bytes ? "(limit of this control group)" : "available",
           little ? ": little for a worker; a model and its buffers want 512 MiB and more" : "");
}

static void check_space(const char *name, const char *path, uint64_t least, const char *what)
{
    char a[UNITS_MAX];
    uint64_t bytes;
    struct err e;
    if (path_free_bytes(path, &bytes, &e) != ST_OK)
        report(name, 0, "%s", e.text);
    else if (access(path, W_OK))
        report(name, 0, "'%s' cannot be written to: %s", path, strerror(errno));
    else
        report(name, bytes >= least, "%s free in '%s'%s%s", units_bytes(a, bytes), path, bytes >= least ? "" : ": ", bytes >= least ? "" : what);
}

static void check_listen(void)
{
    struct err e;
    char *dir = private_runtime_dir("doctor", &e);
    if (!dir) {
        report("sockets", 0, "%s", e.text);
        return;
    }
    char *path = path_join(dir, "try");
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), ok = 0, errnum = 0;
    if (path && fd >= 0 && strlen(path) < sizeof a.sun_path) {
        memcpy(a.sun_path, path, strlen(path) + 1);
        unlink(path);
        ok = bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 1) == 0;
        errnum = errno;
        unlink(path);
    }
    if (fd >= 0)
        close(fd);
    if (ok)
        report("sockets", 1, "can listen in '%s'", dir);
    else
        report("sockets", 0, "cannot listen in '%s': %s; set XDG_RUNTIME_DIR to a folder of yours on a local disk", dir, strerror(errnum));
    rmdir(dir);
    mem_free(path);
    mem_free(dir);
}

static void check_limits(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0)
        report("limits", r.rlim_cur >= 256, "%llu open files%s", (unsigned long long)r.rlim_cur, r.rlim_cur >= 256 ? "" : ": raise it ('ulimit -n 1024')");
}

/* Without a pool all is well: `ebb run` needs none. */
static void check_daemon(void)
{
    struct conn *c;
    struct err e;
    json_t *answer = NULL, *check;
    size_t i;
    int systemd = access("/run/systemd/system", F_OK) == 0, unit = access("/etc/systemd/system/ebbd.service", F_OK) == 0 ||
                                                                   access("/lib/systemd/system/ebbd.service", F_OK) == 0 ||
                                                                   access("/usr/local/lib/systemd/system/ebbd.service", F_OK) == 0;
    const char *wanted = common.socket ? common.socket : common.daemon ? common.daemon : getenv("EBB_SOCKET");
    if (!wanted || !*wanted)
        wanted = getenv("EBB_DAEMON");
    char *key = NULL;
    int joined = conn_key_file(KEYS_CLIENT, &key, &e) == ST_OK && path_exists(key);
    mem_free(key);
    if (conn_pool(&c, &e) != ST_OK) {
        if ((wanted && *wanted) || joined || unit)
            report("daemon", 0, "%s", e.text);
        else
            report("daemon", 1, "no pool on this machine ('ebb run' needs none)%s", systemd ? "; the service would be 'ebbd'" : "; systemd does not run here");
        return;
    }
    if (conn_call(c, "doctor", NULL, 30000, &answer, &e) != ST_OK)
        report("daemon", 0, "%s; see 'systemctl status ebbd'", e.text);
    json_array_foreach(json_object_get(answer, "checks"), i, check)
        report(text_of(check, "name"), json_is_true(json_object_get(check, "ok")), "daemon: %s", text_of(check, "text"));
    json_decref(answer);
    conn_close(c);
}

static int run_doctor(int operand_count, char **operands)
{
    (void)operand_count;
    (void)operands;
    check_programs();
    check_libraries();
    check_processor();
    check_memory();
    check_space("disk", ".", UINT64_C(1) << 30, "outputs of a few million embeddings take some GiB");
    check_space("temporary", "/tmp", UINT64_C(16) << 20, "sockets and small files need a little");
    check_listen();
    check_limits();
    check_daemon();
    if (!common.json)
        printf("%s\n", unwell ? "something is not well, see BAD above" : "all is well");
    return unwell ? EXIT_ENV : EXIT_DONE;
}

static const struct opt opts[] = {ROW_JSON, ROW_SOCKET};
static const struct opt_command table = {.name = "ebb doctor", .summary = "look whether this machine, and a pool's daemon, are fit to work",
                                         .details = "Exit codes: 0 all is well; 1 something is not.", .opts = opts, .opt_count = COUNT(opts)};

const struct command command_doctor = {.name = "doctor", .group = "Machines", .table = &table, .run = run_doctor};
