/* `ebb top`: the pool at a glance, drawn again every few seconds.

   The figures are asked for by the thread that also reads the keys: while it waits for an answer it is called back four times a second and looks after
   the keyboard and the window's size (alive). A daemon that is slow, or away, is seen in the second line; the figures stand meanwhile. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "base/clock.h"
#include "client/client.h"
#include "client/connect.h"
#include "client/top_draw.h"

#define LEAST_INTERVAL_MS 200
#define ANSWER_MS 5000
#define LOOK_MS 250
#define QUIET_MS 3000 /* an answer that takes so long is worth a word */

static uint64_t interval_ms = 2000;
static int once, by_nodes;
static const char *order_word;

/* The terminal ----------------------------------------------------------------------------------------------------------------------- */

static struct termios before;
static int is_raw;

static void write_all(const char *data, size_t len)
{
    while (len) {
        ssize_t n = write(STDOUT_FILENO, data, len);
        if (n < 0 && errno == EAGAIN) {
            struct pollfd p = {.fd = STDOUT_FILENO, .events = POLLOUT};
            poll(&p, 1, LOOK_MS);
        } else if (n < 0 && errno != EINTR) {
            return; /* the terminal is gone: the next read of a key says so */
        } else if (n > 0) {
            data += n;
            len -= (size_t)n;
        }
    }
}

static void leave_screen(void)
{
    static const char words[] = "\033[?25h\033[?1049l";
    if (!is_raw)
        return;
    is_raw = 0;
    write_all(words, sizeof words - 1);
    tcsetattr(STDIN_FILENO, TCSANOW, &before);
}

static int enter_screen(void)
{
    static const char words[] = "\033[?1049h\033[?25l\033[2J";
    if (tcgetattr(STDIN_FILENO, &before))
        return -1;
    struct termios raw = before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO | ISIG | IEXTEN);
    raw.c_iflag &= ~(tcflag_t)(IXON | ICRNL);
    raw.c_oflag &= ~(tcflag_t)OPOST; /* lines end as they are drawn */
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    if (tcsetattr(STDIN_FILENO, TCSANOW, &raw))
        return -1;
    is_raw = 1;
    write_all(words, sizeof words - 1);
    return 0;
}

struct top {
    struct conn *c;
    struct top_pool pool;
    struct top_screen screen;
    struct buf frame;
    int has_pool, quit;
    uint64_t answered_ms, asked_ms;
    char trouble[sizeof ((struct err *)0)->text];
    char keys[16]; /* an escape sequence that is not whole yet */
    size_t key_count;
};

static void draw(struct top *t)
{
    static const struct top_pool none;
    struct winsize w = {0};
    uint64_t now = clock_ms();
    char words[sizeof t->trouble];
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) || !w.ws_row || !w.ws_col)
        w = (struct winsize){.ws_row = 24, .ws_col = 80};
    t->screen.rows = w.ws_row;
    t->screen.columns = w.ws_col;
    snprintf(words, sizeof words, "%s", t->trouble);
    if (!*words && now - t->asked_ms > QUIET_MS && t->asked_ms > t->answered_ms)
        snprintf(words, sizeof words, "the daemon is slow to answer");
    t->screen.trouble = words;
    t->screen.age_s = (double)(now - t->answered_ms) / 1000;
    buf_clear(&t->frame);
    if (top_draw(t->has_pool ? &t->pool : &none, &t->screen, &t->frame) == 0)
        write_all(t->frame.data, t->frame.len);
    t->screen.trouble = "";
}

/* Keys ------------------------------------------------------------------------------------------------------------------------------- */

static void move(struct top_screen *s, int down, size_t by)
{
    s->first = down ? s->first + by : s->first > by ? s->first - by : 0; /* drawing knows the end */
}

static void suspend(void)
{
    leave_screen();
    raise(SIGTSTP);
    if (enter_screen())
        exit(EXIT_ENV);
}

static void key(struct top *t, const char *name)
{
    struct top_screen *s = &t->screen;
    size_t page = s->page > 1 ? s->page - 1 : 1;
    if (strcmp(name, "q") == 0 || strcmp(name, "\003") == 0 || strcmp(name, "\004") == 0) {
        t->quit = 1;
    } else if (strcmp(name, "\032") == 0) {
        suspend();
    } else if (strcmp(name, "\t") == 0) {
        s->nodes = !s->nodes;
        s->first = 0;
    } else if (strcmp(name, "s") == 0) {
        s->order = (s->order + 1) % TOP_ORDERS;
        top_pool_sort(&t->pool, s->order);
    } else if (strcmp(name, "\033[A") == 0 || strcmp(name, "\033OA") == 0 || strcmp(name, "k") == 0) {
        move(s, 0, 1);
    } else if (strcmp(name, "\033[B") == 0 || strcmp(name, "\033OB") == 0 || strcmp(name, "j") == 0) {
        move(s, 1, 1);
    } else if (strcmp(name, "\033[5~") == 0 || strcmp(name, "b") == 0) {
        move(s, 0, page);
    } else if (strcmp(name, "\033[6~") == 0 || strcmp(name, " ") == 0) {
        move(s, 1, page);
    } else if (strcmp(name, "\033[H") == 0 || strcmp(name, "\033OH") == 0 || strcmp(name, "\033[1~") == 0 || strcmp(name, "g") == 0) {
        s->first = 0;
    } else if (strcmp(name, "\033[F") == 0 || strcmp(name, "\033OF") == 0 || strcmp(name, "\033[4~") == 0 || strcmp(name, "G") == 0) {
        s->first = SIZE_MAX / 2;
    }
}

/* ESC [ 5 ~, ESC O A: an introducer, parameters, one last letter. */
static int is_whole(const char *keys, size_t n)
{
    if (keys[0] != '\033')
        return n == 1;
    if (n == 1)
        return 0;
    if (keys[1] == 'O')
        return n == 3;
    if (keys[1] != '[')
        return 1;
    return n > 2 && keys[n - 1] >= '@' && keys[n - 1] <= '~';
}

/* What has been typed. 1 when something changed. The keyboard's end is the program's. */
static int read_keys(struct top *t)
{
    char c;
    int any = 0;
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    while (!t->quit && poll(&p, 1, 0) > 0) {
        ssize_t n = read(STDIN_FILENO, &c, 1);
        if (n <= 0) {
            t->quit |= n == 0 || (errno != EINTR && errno != EAGAIN);
            break;
        }
        t->keys[t->key_count++] = c;
        t->keys[t->key_count] = 0;
        if (!is_whole(t->keys, t->key_count) && t->key_count + 1 < sizeof t->keys)
            continue;
        key(t, t->keys);
        t->key_count = 0;
        any = 1;
    }
    return any;
}

/* Asking ----------------------------------------------------------------------------------------------------------------------------- */

static int alive(void *arg)
{
    struct top *t = arg;
    read_keys(t);
    draw(t);
    return !t->quit && !signals_count();
}

static enum status look(struct conn *c, struct top_pool *out, struct err *e)
{
    json_t *hello = NULL, *jobs = NULL, *workers = NULL, *offers = NULL;
    enum status st = conn_call(c, "hello", NULL, ANSWER_MS, &hello, e);
    if (st == ST_OK)
        st = conn_call(c, "jobs", NULL, ANSWER_MS, &jobs, e);
    if (st == ST_OK)
        st = conn_call(c, "workers", NULL, ANSWER_MS, &workers, e);
    if (st == ST_OK)
        st = conn_call(c, "nodes", NULL, ANSWER_MS, &offers, e);
    if (st == ST_USER) /* a daemon of the version before knows of no agents */
        st = ST_OK;
    if (st == ST_OK)
        return top_pool_take(out, hello, jobs, workers, offers, e);
    json_decref(hello);
    json_decref(jobs);
    json_decref(workers);
    return st;
}

static void ask_again(struct top *t)
{
    struct top_pool pool;
    struct err e;
    t->asked_ms = clock_ms();
    enum status st = look(t->c, &pool, &e);
    if (st == ST_OK) {
        top_pool_release(&t->pool);
        t->pool = pool;
        top_pool_sort(&t->pool, t->screen.order);
        t->has_pool = 1;
        t->trouble[0] = 0;
        t->answered_ms = clock_ms();
    } else {
        snprintf(t->trouble, sizeof t->trouble, "%s", e.text);
    }
}

static int live(struct conn *c, enum top_order order)
{
    struct top t = {.c = c, .answered_ms = clock_ms(), .screen = {.nodes = by_nodes, .order = order, .colours = 1, .trouble = ""}};
    const char *no = getenv("NO_COLOR");
    t.screen.colours = !(no && *no);
    signals_take();
    atexit(leave_screen);
    if (enter_screen())
        return fail_with(ST_ENV, "the terminal cannot be set up: %s; 'ebb top --once' needs none", strerror(errno));
    conn_watch(c, alive, &t);
    while (!t.quit && !signals_count()) {
        ask_again(&t);
        uint64_t now = clock_ms(), took = *t.trouble ? 0 : now - t.asked_ms;
        /* a large pool is not asked all the time */
        for (uint64_t next = now + (took * 4 > interval_ms ? took * 4 : interval_ms); !t.quit && !signals_count() && now < next; now = clock_ms()) {
            draw(&t);
            struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
            poll(&p, 1, (int)(next - now < LOOK_MS ? next - now : LOOK_MS));
            read_keys(&t);
        }
    }
    leave_screen();
    top_pool_release(&t.pool);
    buf_release(&t.frame);
    return t.quit ? EXIT_DONE : EXIT_INTERRUPTED;
}

static int snapshot(struct conn *c, enum top_order order)
{
    struct top_pool pool;
    struct err e;
    enum status st = look(c, &pool, &e);
    if (st == ST_AGAIN)
        return fail_with(ST_ENV, "the daemon does not answer within %d s; see 'systemctl status ebbd'", ANSWER_MS / 1000);
    if (st != ST_OK)
        return fail(&e);
    int code = EXIT_DONE;
    top_pool_sort(&pool, order);
    if (common.json)
        code = print_json(top_json(&pool));
    else
        top_print(&pool, stdout);
    top_pool_release(&pool);
    return code;
}

static int run_top(int operand_count, char **operands)
{
    static const char *const words[] = {
#define X(name, word) word,
        TOP_ORDER_MAP(X)
#undef X
    };
    (void)operand_count;
    (void)operands;
    struct conn *c;
    struct err e;
    size_t order = 0;
    while (order_word && order < TOP_ORDERS && strcmp(order_word, words[order]) != 0)
        order++;
    if (order == TOP_ORDERS)
        return fail_with(ST_USER, "--sort wants name, rate, state or job, not '%.40s'", order_word);
    if (interval_ms < LEAST_INTERVAL_MS)
        return fail_with(ST_USER, "--interval wants at least 0.2s");
    if (conn_pool(&c, &e) != ST_OK)
        return fail(&e);
    const char *term = getenv("TERM");
    int terminal = isatty(STDOUT_FILENO) && isatty(STDIN_FILENO) && term && *term && strcmp(term, "dumb") != 0;
    int code = once || common.json || !terminal ? snapshot(c, (enum top_order)order) : live(c, (enum top_order)order);
    conn_close(c);
    return code;
}

static const struct opt opts[] = {
    {.name = "interval", .letter = 'i', .type = OPT_DURATION, .value = &interval_ms, .arg = "TIME", .help = "ask so often (default: 2s; a large pool more seldom)"},
    {.name = "sort", .type = OPT_TEXT, .value = &order_word, .arg = "WORD", .help = "order of the list: name, rate, state or job (default: name)"},
    {.name = "nodes", .type = OPT_FLAG, .value = &by_nodes, .help = "list nodes instead of workers"},
    {.name = "once", .type = OPT_FLAG, .value = &once, .help = "print it once, as lines; so does a pipe"},
    ROW_JSON,
    ROW_SOCKET,
};
static const struct opt_command table = {
    .name = "ebb top",
    .summary = "watch a pool: jobs, workers, nodes and rates",
    .details = "Keys: q leaves; Tab changes between workers and nodes; s changes the order; arrows, j and k, Page Up and Page Down, Home and End move in the list.\n\n"
               "Without a terminal, with --once or with --json, everything is printed once: --json gives one object.",
    .examples = "  ebb top\n  ebb top --nodes --sort rate\n  ebb top --json | jq .records_per_s",
    .opts = opts,
    .opt_count = COUNT(opts)};

const struct command command_top = {.name = "top", .group = "Machines", .table = &table, .run = run_top};
