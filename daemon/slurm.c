/* The happy path: the core wants workers; what is missing is submitted, as an array when it is several; each job's script becomes a worker, which says
   hello by itself. squeue is asked every few seconds while there are jobs: those that are gone are replaced, those that are too many and wait still are
   cancelled. Nothing is submitted before the queue was read, nor on an old reading, so that a daemon that was started anew finds its own jobs (by their
   name, which holds the id of its store) and starts none twice. An sbatch that outlives its daemon holds a lock, and the next daemon waits for it.

   What can fail: Slurm does not answer: workers go on, nothing is submitted, and it is asked again ever more rarely. sbatch refuses: the reason is what
   `ebb why` says. A job waits: so does the pool. It is preempted: its worker commits what it has, goes, and the job waits anew. It runs and its worker
   does not say hello: it is cancelled and replaced, ever more slowly. */
#include "daemon/slurm.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/path.h"
#include "daemon/local.h"
#include "daemon/slurm_inside.h"

#define GREET_MS 60000         /* a job that runs, and whose worker has not said hello by then (or is silent for so long), is of no use */
#define HUNG_MS 60000          /* for a job with a hung worker to end */
#define FRESH_MS 1000          /* a reading of the queue that may be submitted on */
#define BACK_OFF_MS 2000       /* after the first failure; doubled each time */
#define LOOK_BACK_OFF_MOST_MS 60000
#define SUBMIT_BACK_OFF_MOST_MS 300000
#define CANCEL_AGAIN_MS 60000
#define MOST_AT_ONCE 500       /* jobs of one sbatch or scancel */
#define KEEP_S (7 * 86400)     /* logs and black boxes in the shared folder */

static void turn(struct slurm *s);

/* Programs ------------------------------------------------------------------------------------------------------------------------- */

static void said(char *trouble, size_t size, const char *program, const struct slurm_output *o)
{
    char text[400];
    snprintf(text, sizeof text, "%s%s%s", o->failed ? "" : program, o->failed ? "" : ": ", o->complaint);
    if (strcmp(text, trouble))
        log_warn("slurm: %s", text);
    snprintf(trouble, size, "%s", text);
}

static uint64_t longer(uint64_t back_off, uint64_t most)
{
    back_off = back_off ? back_off * 2 : BACK_OFF_MS;
    return back_off < most ? back_off : most;
}

static void look_failed(struct slurm *s, const char *program, const struct slurm_output *o)
{
    said(s->queue_trouble, sizeof s->queue_trouble, program, o);
    s->back_off_ms = longer(s->back_off_ms, LOOK_BACK_OFF_MOST_MS);
    s->next_ms = clock_ms() + s->back_off_ms;
}

static void ran_config(struct slurm *s, const struct slurm_output *o)
{
    if (o->failed || o->status) {
        look_failed(s, "scontrol", o);
        return;
    }
    s->asked_config = 1;
    s->kill_wait_ms = slurm_kill_wait_ms(o->out);
    log_info("slurm: jobs are named '%s', KillWait is %" PRIu64 " s", s->name, s->kill_wait_ms / 1000);
    turn(s);
}

static void ran_look(struct slurm *s, const struct slurm_output *o)
{
    if (o->failed || o->status) {
        look_failed(s, "squeue", o);
        return;
    }
    if (slurm_take(s, o->out)) {
        struct slurm_output strange = {.failed = 1};
        snprintf(strange.complaint, sizeof strange.complaint, "squeue prints what is no queue: '%.100s'", o->out);
        look_failed(s, "squeue", &strange);
        return;
    }
    if (*s->queue_trouble)
        log_info("slurm: the queue can be read again");
    s->queue_trouble[0] = 0;
    s->back_off_ms = 0;
    s->known = s->fresh = 1;
    s->idle_look = 0;
    s->looked_ms = clock_ms();
    s->next_ms = s->looked_ms + s->d->config->slurm_poll;
    turn(s);
}

static void ran_submit(struct slurm *s, const struct slurm_output *o)
{
    uint32_t count = s->submitting;
    char id[SLURM_ID_MAX], one[SLURM_ID_MAX + 12];
    s->submitting = 0;
    s->fresh = 0; /* whatever it says, the queue knows */
    if (!o->failed && !o->status && slurm_submitted_parse(o->out, id) == 0) {
        for (uint32_t i = 0; i < count; i++) {
            snprintf(one, sizeof one, count > 1 ? "%s_%" PRIu32 : "%s", id, i);
            if (strlen(one) < SLURM_ID_MAX && !slurm_find(s, one) && !slurm_add(s, one))
                log_warn("slurm job %s: memory is out; the next look finds it", one);
        }
        log_info("slurm job %s: submitted, for %" PRIu32 " worker%s", id, count, count == 1 ? "" : "s");
        s->submit_trouble[0] = 0;
        s->submit_back_off_ms = 0;
        turn(s);
        return;
    }
    if (count > 1 && strstr(o->complaint, "array")) {
        s->no_arrays = 1;
        turn(s);
        return;
    }
    struct slurm_output strange = {.failed = 1, .complaint = "sbatch names no job"};
    said(s->submit_trouble, sizeof s->submit_trouble, "sbatch", o->failed || o->status ? o : &strange);
    s->submit_back_off_ms = longer(s->submit_back_off_ms, SUBMIT_BACK_OFF_MOST_MS);
    s->submit_ms = clock_ms() + s->submit_back_off_ms;
}

static void ran_cancel(struct slurm *s, const struct slurm_output *o)
{
    int ok = !o->failed && !o->status;
    for (struct slurm_job *j = s->jobs; j; j = j->next)
        if (j->cancel_sent == 2) {
            j->cancel_sent = ok;
            j->cancel_ms = clock_ms();
        }
    if (!ok) {
        log_warn("slurm: %s%s", o->failed ? "" : "scancel: ", o->complaint);
        s->cancel_ms = clock_ms() + BACK_OFF_MS;
    } else {
        s->fresh = 0;
    }
    turn(s);
}

static void no_memory(struct slurm *s)
{
    struct err e;
    err_nomem(&e, "a submission to Slurm");
    loop_fatal(s->d, &e);
}

static void look(struct slurm *s)
{
    char user[32], *args[] = {"squeue", "--noheader", "--array", "--states=all", user, NULL, "--Format=" SLURM_FORMAT, NULL};
    char name[64];
    snprintf(user, sizeof user, "--user=%u", (unsigned)geteuid());
    snprintf(name, sizeof name, "--name=%s", s->name);
    args[5] = name;
    slurm_run(s, args, NULL, -1, ran_look);
}

static void submit(struct slurm *s, uint32_t count)
{
    const struct config *c = s->d->config;
    uint64_t grace = c->slurm_grace;
    if (!grace) /* a second is for what follows the last commit */
        grace = s->kill_wait_ms > 2000 ? s->kill_wait_ms - 1000 : s->kill_wait_ms ? s->kill_wait_ms / 2 : 5000;
    const char *ours = local_program(s->d->local);
    struct slurm_terms t = {
        .config = c,
        .name = s->name,
        .connect = c->slurm_connect ? c->slurm_connect : s->d->workers_endpoint,
        .program = c->slurm_program ? c->slurm_program : *ours ? ours : "ebb-worker",
        .grace_ms = grace,
        .count = s->no_arrays ? 1 : count < MOST_AT_ONCE ? count : MOST_AT_ONCE,
    };
    struct buf script = {0};
    char **args = slurm_args(&t);
    if (!args || slurm_script(&t, &script))
        no_memory(s);
    s->submitting = t.count;
    slurm_run(s, args, &script, s->lock_fd, ran_submit);
    slurm_args_free(args);
    buf_release(&script);
}

/* One scancel for those that are to be told in the same way. 1: one was begun. */
static int cancel(struct slurm *s, uint64_t now_ms)
{
    static const char *const how[CANCELS] = {[CANCEL_WAITING] = "--state=PENDING", [CANCEL_END] = "--quiet", [CANCEL_KILL] = "--signal=KILL"};
    char *args[MOST_AT_ONCE + 3] = {"scancel"};
    if (now_ms < s->cancel_ms)
        return 0;
    for (int kind = CANCEL_WAITING; kind < CANCELS; kind++) {
        size_t n = 1;
        args[n++] = (char *)(uintptr_t)how[kind];
        for (struct slurm_job *j = s->jobs; j && n < MOST_AT_ONCE + 2; j = j->next) {
            if (j->cancel_sent == 1 && now_ms - j->cancel_ms > CANCEL_AGAIN_MS)
                j->cancel_sent = 0;
            if (j->cancel == (enum slurm_cancel)kind && !j->cancel_sent) {
                j->cancel_sent = 2;
                args[n++] = j->id;
                log_info("slurm job %s: cancelled", j->id);
            }
        }
        args[n] = NULL;
        if (n > 2) {
            slurm_run(s, args, NULL, -1, ran_cancel);
            return 1;
        }
    }
    return 0;
}

/* What comes next ------------------------------------------------------------------------------------------------------------------- */

/* 0: an sbatch of a daemon before us runs still. */
static int lock(struct slurm *s)
{
    if (s->lock_fd >= 0)
        return 1;
    int fd = open(s->lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) {
        if (!*s->queue_trouble)
            log_warn("slurm: cannot open '%s': %s", s->lock_path, strerror(errno));
        snprintf(s->queue_trouble, sizeof s->queue_trouble, "cannot open '%s': %s", s->lock_path, strerror(errno));
        return 0;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
        close(fd);
        snprintf(s->queue_trouble, sizeof s->queue_trouble, "an sbatch of the ebbd before this one has not ended yet");
        return 0;
    }
    s->lock_fd = fd;
    return 1;
}

static void turn(struct slurm *s)
{
    struct daemon *d = s->d;
    uint64_t now = clock_ms();
    if (s->running || !*s->name || !d->core || d->phase != LOOP_RUNNING || !(s->count || s->wanted || s->idle_look) || !lock(s))
        return;
    if (!s->known || *s->queue_trouble) { /* nothing is done on what is not known */
        if (now < s->next_ms)
            return;
        if (s->asked_config) {
            look(s);
        } else {
            char *args[] = {"scontrol", "show", "config", NULL};
            slurm_run(s, args, NULL, -1, ran_config);
        }
        return;
    }
    uint64_t limit = d->config->slurm_limit;
    uint32_t missing = slurm_plan(s, s->wanted < limit ? s->wanted : (uint32_t)limit, s->stay ? 0 : (uint32_t)limit);
    if (cancel(s, now))
        return;
    int due = missing && now >= s->submit_ms;
    if (due && s->fresh && now - s->looked_ms <= FRESH_MS)
        submit(s, missing);
    else if (due || now >= s->next_ms)
        look(s);
}

static void look_at_jobs(struct slurm *s, uint64_t now_ms)
{
    for (struct slurm_job *j = s->jobs; j; j = j->next) {
        if (j->alone_ms && slurm_speaks(s, j, now_ms))
            j->alone_ms = 0;
        if (j->alone_ms && now_ms - j->alone_ms > GREET_MS && (j->cancel == CANCEL_NOT || j->cancel == CANCEL_WAITING)) {
            char how[80];
            snprintf(how, sizeof how, "it runs, and its worker has been silent for %d s", GREET_MS / 1000);
            if (!j->greeted)
                slurm_failure(s, j->id, j->node, how, "");
            else
                log_warn("slurm job %s: %s", j->id, how);
            j->cancel = CANCEL_END;
            j->cancel_sent = 0;
        }
        if (j->hung_ms && now_ms - j->hung_ms > HUNG_MS)
            slurm_ended(s, j, j->state, 0);
    }
}

/* What the core asks, see daemon/provider.h ------------------------------------------------------------------------------------------ */

static void terms(const struct daemon *d, struct provider_terms *out)
{
    const struct slurm *s = d->slurm;
    uint64_t limit = d->config->slurm_limit;
    out->limit = (uint32_t)(s->stay && s->count < limit ? s->count : limit);
    out->preemptible = d->config->slurm_class;
    out->idle_ms = d->config->idle_ms;
}

static void want(struct daemon *d, uint32_t workers)
{
    d->slurm->wanted = workers;
    turn(d->slurm);
}

/* The job that this worker says it is, if it may be: a number that is higher than ours is news, a lower one comes from a start that is over. */
static int claims(const struct slurm *s, uint64_t number, char id[SLURM_ID_MAX], uint32_t *restarts)
{
    const struct worker *w = link_worker(s->d->link, number);
    if (!w || w->provider != PROVIDER_SLURM || slurm_name_parse(w->name, id, restarts))
        return 0;
    const struct slurm_job *j = slurm_find(s, id);
    return !j || *restarts >= j->restarts;
}

static int owns(const struct daemon *d, uint64_t worker)
{
    char id[SLURM_ID_MAX];
    uint32_t restarts;
    return d->slurm && (map_find(&d->slurm->by_worker, worker) || claims(d->slurm, worker, id, &restarts));
}

static void hello(struct daemon *d, const struct worker *w)
{
    struct slurm *s = d->slurm;
    char id[SLURM_ID_MAX];
    uint32_t restarts;
    s->failures = 0;
    s->job_trouble[0] = 0;
    if (map_find(&s->by_worker, w->number) || !claims(s, w->number, id, &restarts))
        return;
    struct slurm_job *j = slurm_find(s, id);
    if (!j) { /* a daemon before us submitted it, and the queue was not read yet */
        if (!(j = slurm_add(s, id)))
            no_memory(s);
        j->adopted = 1;
        log_info("slurm job %s: adopted, its worker is here", j->id);
    }
    if (j->worker || restarts > j->restarts)
        slurm_ended(s, j, SLURM_REQUEUED, 0); /* the one before has ended, squeue will say so */
    j->restarts = restarts;
    j->worker = w->number;
    j->greeted = 1;
    j->draining = j->requeued = 0;
    j->alone_ms = 0;
    if (slurm_meaning(j->state) == SLURM_WAITS)
        j->state = SLURM_RUNNING;
    if (j->cancel == CANCEL_WAITING)
        j->cancel = CANCEL_NOT;
    if (map_add(&s->by_worker, w->number, j))
        no_memory(s);
}

static void bye(struct daemon *d, uint64_t worker)
{
    struct slurm_job *j = map_remove(&d->slurm->by_worker, worker);
    if (j)
        j->worker = 0;
}

static void leaving(struct daemon *d, uint64_t worker)
{
    struct slurm_job *j = map_find(&d->slurm->by_worker, worker);
    if (j)
        j->draining = 1;
}

static void kill_hung(struct daemon *d, uint64_t worker, const char *why)
{
    struct slurm *s = d->slurm;
    struct slurm_job *j = map_find(&s->by_worker, worker);
    if (!j) {
        link_ended(d->link, worker, WORKER_HUNG, NULL, 0);
        return;
    }
    log_warn("slurm job %s: its worker hangs: %s", j->id, why);
    j->hung_ms = clock_ms();
    j->cancel = CANCEL_KILL;
    j->cancel_sent = 0;
    turn(s);
}

static void second(struct daemon *d)
{
    struct slurm *s = d->slurm;
    slurm_ends(s);
    look_at_jobs(s, clock_ms());
    turn(s);
}

static size_t starting(const struct daemon *d, provider_visit *visit, void *arg)
{
    const struct slurm *s = d->slurm;
    uint64_t now = clock_ms();
    size_t n = 0;
    for (const struct slurm_job *j = s->jobs; j; j = j->next) {
        if (!slurm_alive(j) || slurm_speaks(s, j, now))
            continue;
        char name[SLURM_ID_MAX + 8];
        snprintf(name, sizeof name, "slurm-%s", j->id);
        if (visit)
            visit(arg, 0, name, 0, j->since_ms);
        n++;
    }
    return n;
}

static const char *trouble(const struct daemon *d)
{
    static char text[640];
    const struct slurm *s = d->slurm;
    const char *all[] = {s->queue_trouble, s->submit_trouble, s->job_trouble, s->wanted ? s->waits : ""};
    for (size_t i = 0; i < sizeof all / sizeof *all && d->config->slurm_limit; i++)
        if (*all[i]) {
            snprintf(text, sizeof text, "Slurm: %s", all[i]);
            return text;
        }
    return "";
}

static int queues(const struct daemon *d)
{
    const struct slurm *s = d->slurm;
    return !*s->queue_trouble && !*s->submit_trouble && !*s->job_trouble;
}

static void stay(struct daemon *d, int on)
{
    d->slurm->stay = on;
    d->slurm->submit_ms = 0; /* the configuration may be another: what was refused is tried again */
    d->slurm->submit_trouble[0] = 0;
    turn(d->slurm);
}

/* Opening ---------------------------------------------------------------------------------------------------------------------------- */

static void prune(const char *dir)
{
    DIR *all = opendir(dir);
    time_t now = time(NULL);
    for (const struct dirent *f; all && (f = readdir(all));) {
        const char *dot = strrchr(f->d_name, '.');
        struct stat st;
        if (dot && (strcmp(dot, ".box") == 0 || (strcmp(dot, ".log") == 0 && strncmp(f->d_name, "slurm-", 6) == 0)) &&
            fstatat(dirfd(all), f->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) && now - st.st_mtime > KEEP_S)
            unlinkat(dirfd(all), f->d_name, 0);
    }
    if (all)
        closedir(all);
}

static enum status open_it(struct daemon *d, struct err *e)
{
    struct slurm *s = d->slurm = mem_zalloc(sizeof *s);
    if (!s || !(s->lock_path = path_join(d->config->state_dir, "slurm.lock")))
        return err_nomem(e, "the Slurm provider");
    s->d = d;
    s->lock_fd = -1;
    s->idle_look = d->config->slurm_limit || path_exists(s->lock_path); /* jobs of a daemon before us, whose configuration had some */
    if (d->config->slurm_limit) {
        if (path_make_dirs(d->config->slurm_dir, 0700, e) != ST_OK)
            log_warn("slurm: %s: the workers' logs and black boxes are not kept", e->text);
        else
            prune(d->config->slurm_dir);
    }
    return ST_OK;
}

static void recovered(struct daemon *d)
{
    d->slurm->since_ms = clock_ms();
    snprintf(d->slurm->name, sizeof d->slurm->name, "ebb-%.16s", d->store_id);
    turn(d->slurm);
}

static void close_it(struct daemon *d)
{
    struct slurm *s = d->slurm;
    if (!s)
        return;
    slurm_run_forget(s);
    slurm_ends_free(s);
    slurm_free_all(s);
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    mem_free(s->lock_path);
    mem_free(s);
    d->slurm = NULL;
}

const struct provider provider_slurm = {
    .id = PROVIDER_SLURM,
    .open = open_it,
    .recovered = recovered,
    .close = close_it,
    .terms = terms,
    .want = want,
    .owns = owns,
    .kill = kill_hung,
    .leaving = leaving,
    .hello = hello,
    .bye = bye,
    .second = second,
    .starting = starting,
    .trouble = trouble,
    .queues = queues,
    .stay = stay,
};
