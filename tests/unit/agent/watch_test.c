/* What is read of a node: from a folder that mimics /proc, /run/utmp and /dev. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <utmp.h>

#include "base/path.h"
#include "workers/agent/watch.h"

static char root[64];

static void put(const char *name, const void *data, size_t len)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    fclose(f);
}

static void put_text(const char *name, const char *text)
{
    put(name, text, strlen(text));
}

static void folder(const char *name)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", root, name);
    assert_int_equal(mkdir(path, 0700), 0);
}

static void drop(const char *name)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", root, name);
    unlink(path);
}

static void touched(const char *name, time_t at)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", root, name);
    struct timespec times[2] = {{.tv_sec = at}, {.tv_sec = at}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void busy(double seconds) /* of the processor, since the beginning */
{
    char text[200];
    snprintf(text, sizeof text, "cpu  %d 0 0 5 0 0 0 0 0 0\ncpu0 1 2 3\n", (int)(seconds * (double)sysconf(_SC_CLK_TCK)));
    put_text("stat", text);
}

static void pressed(double seconds)
{
    char text[200];
    snprintf(text, sizeof text, "some avg10=1.00 avg60=0.00 avg300=0.00 total=%.0f\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n", seconds * 1e6);
    put_text("pressure/memory", text);
}

static struct utmp entry(const char *user, const char *line)
{
    struct utmp u = {.ut_type = USER_PROCESS};
    strncpy(u.ut_user, user, sizeof u.ut_user);
    strncpy(u.ut_line, line, sizeof u.ut_line);
    return u;
}

static int setup(void **state)
{
    (void)state;
    strcpy(root, "/tmp/ebb-watch-XXXXXX");
    assert_non_null(mkdtemp(root));
    folder("pressure");
    folder("dev");
    folder("dev/pts");
    busy(0);
    put_text("meminfo", "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:   400 kB\n");
    put("utmp", "", 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    struct err e;
    return path_remove_tree(root, &e) != ST_OK;
}

static struct watch *opened(uint64_t now_ms)
{
    struct watch *w;
    struct err e;
    assert_int_equal(watch_open(root, now_ms, &w, &e), ST_OK);
    return w;
}

static void load_and_memory(void **state)
{
    (void)state;
    struct watch *w = opened(1000);
    struct readings r = {0};
    watch_read(w, 1000, 0, &r);
    assert_false(r.load_known); /* one look says nothing of a rate */
    assert_true(r.memory_known);
    assert_int_equal(r.memory_bytes, 1000 * 1024);
    assert_int_equal(r.memory_available_bytes, 400 * 1024);
    busy(1.0);
    watch_read(w, 1500, 0, &r);
    assert_true(r.load_known);
    assert_true(r.load_of_others > 1.9 && r.load_of_others < 2.1);
    busy(1.0);
    watch_read(w, 2000, 0, &r); /* over the last 0.4 s or so, not the whole time */
    assert_true(r.load_of_others < 0.1);
    watch_read(w, 2050, 0, &r);
    assert_true(r.load_known); /* over what is long enough to tell */
    busy(3.0);
    watch_read(w, 2500, 0, &r);
    busy(2.9); /* a step back that is none: what guests took is counted more finely than the whole */
    watch_read(w, 3000, 0, &r);
    assert_true(r.load_known && r.load_of_others == 0);
    for (int i = 0; i < 5; i++) { /* goes on so: what others take behind it is seen at once, and not when the loss is made up for */
        busy(2.9 - 0.2 * i);
        watch_read(w, 3000 + 200 * (uint64_t)(i + 1), 0, &r);
    }
    busy(2.5);
    watch_read(w, 4200, 0, &r);
    assert_true(r.load_known && r.load_of_others > 0.4);
    busy(0.2); /* the counters begin anew */
    watch_read(w, 4500, 0, &r);
    assert_false(r.load_known);
    busy(0.3);
    watch_read(w, 5000, 0, &r);
    assert_true(r.load_known && r.load_of_others > 0.1 && r.load_of_others < 0.3);
    busy(0.4);
    watch_read(w, 60000, 0, &r); /* nobody looked for long: an average over that says nothing of now */
    assert_false(r.load_known);
    static const char *const bad[] = {"", "cpu\n", "cpu 1 2 3\n", "intr 5\n", "cpu x y z a b c d\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put_text("stat", bad[i]);
        watch_read(w, 61000 + i, 0, &r);
        assert_false(r.load_known);
    }
    static const char *const memories[] = {"", "MemTotal: 5 kB\n", "MemAvailable: 5 kB\n", "MemTotal: 0 kB\nMemAvailable: 0 kB\n", "nonsense"};
    for (size_t i = 0; i < sizeof memories / sizeof *memories; i++) {
        put_text("meminfo", memories[i]);
        watch_read(w, 62000 + i, 0, &r);
        assert_false(r.memory_known);
    }
    watch_close(w);
}

static void pressure(void **state)
{
    (void)state;
    struct watch *w = opened(1000);
    struct readings r = {0};
    char words[900];
    watch_read(w, 1000, 0, &r);
    assert_false(r.pressure_known[PRESSURE_MEMORY]);
    watch_words(w, words, sizeof words);
    assert_non_null(strstr(words, "no pressure/memory: "));
    pressed(5);
    watch_read(w, 2000, 0, &r);
    pressed(5.25);
    watch_read(w, 3000, 0, &r);
    assert_true(r.pressure_known[PRESSURE_MEMORY]);
    assert_true(r.pressure[PRESSURE_MEMORY] > 0.24 && r.pressure[PRESSURE_MEMORY] < 0.26);
    assert_false(r.pressure_known[PRESSURE_CPU]);
    put_text("pressure/memory", "some avg10=0.00\n");
    watch_read(w, 4000, 0, &r);
    assert_false(r.pressure_known[PRESSURE_MEMORY]);
    watch_close(w);
}

static void people(void **state)
{
    (void)state;
    time_t now = time(NULL);
    put("dev/pts/3", "", 0);
    put("dev/pts/4", "", 0);
    touched("dev/pts/3", now - 500);
    touched("dev/pts/4", now - 9000);
    struct utmp list[3] = {entry("anna", "pts/3"), entry("bert", "pts/4"), entry("gone", "pts/9")};
    list[2].ut_type = DEAD_PROCESS;
    put("utmp", list, sizeof list);
    struct watch *w = opened(1000);
    struct readings r = {0};
    watch_read(w, 1000, 0, &r);
    assert_true(r.people_known);
    assert_int_equal(r.people, 2);
    assert_string_equal(r.who, "anna, pts/3");
    assert_true(r.idle_ms >= 499000 && r.idle_ms < 530000);
    watch_read(w, 61000, 0, &r); /* a minute by our own clock, whatever the wall's says */
    assert_true(r.idle_ms >= 559000 && r.idle_ms < 590000);
    touched("dev/pts/4", now - 8000); /* an old time, and yet it changed: somebody typed, and the clock was set */
    watch_read(w, 62000, 0, &r);
    assert_int_equal(r.idle_ms, 0);
    assert_string_equal(r.who, "bert, pts/4");
    watch_read(w, 65000, 0, &r);
    assert_int_equal(r.idle_ms, 3000);
    put("utmp", list, sizeof *list + 7); /* cut off in the middle */
    watch_read(w, 66000, 0, &r);
    assert_int_equal(r.people, 1);
    watch_close(w);
}

/* Without a terminal of its own, and nothing that tells of input, being logged in is being there. */
static void screens(void **state)
{
    (void)state;
    struct utmp list[] = {entry("anna", ":0")};
    put("utmp", list, sizeof list);
    struct watch *w = opened(1000);
    struct readings r = {0};
    watch_read(w, 500000, 0, &r);
    assert_int_equal(r.idle_ms, 0);
    watch_close(w);
    /* with a device that can be read it is known better: it counts from when we began to look, and from each input */
    folder("dev/input");
    char path[200];
    snprintf(path, sizeof path, "%s/dev/input/event3", root);
    assert_int_equal(mkfifo(path, 0600), 0);
    w = opened(1000);
    watch_read(w, 2000, 0, &r);
    assert_int_equal(r.idle_ms, 1000);
    watch_read(w, 700000, 0, &r);
    assert_int_equal(r.idle_ms, 699000);
    int fd = open(path, O_WRONLY | O_NONBLOCK);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "key", 3), 3);
    watch_read(w, 700200, 0, &r);
    assert_int_equal(r.idle_ms, 0);
    watch_read(w, 705200, 0, &r);
    assert_int_equal(r.idle_ms, 5000);
    put("utmp", "", 0); /* at the screen that asks for a name */
    watch_read(w, 706200, 0, &r);
    assert_int_equal(r.people, 0);
    assert_int_equal(r.idle_ms, 6000);
    assert_string_equal(r.who, "input devices");
    close(fd);
    watch_close(w);
}

/* No utmp: whoever touches any terminal. Names from a file never lead out of the folder, nor onto the screen as they are. */
static void strange_names(void **state)
{
    (void)state;
    drop("utmp");
    put("dev/tty1", "", 0);
    put("dev/pts/0", "", 0);
    put("dev/ttyS0x", "", 0);
    touched("dev/tty1", time(NULL) - 1000);
    touched("dev/pts/0", time(NULL) - 100);
    struct watch *w = opened(1000);
    struct readings r = {0};
    watch_read(w, 1000, 0, &r);
    assert_true(r.people_known);
    assert_int_equal(r.people, 0);
    assert_string_equal(r.who, "pts/0");
    assert_true(r.idle_ms >= 99000 && r.idle_ms < 130000);
    static const char *const lines[] = {"../../etc/passwd", "/dev/tty1", "..", "pts/../tty1", "\x1b[31m"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct utmp u = entry("an\x07na", lines[i]);
        put("utmp", &u, sizeof u);
        watch_read(w, 2000 + i, 0, &r);
        assert_int_equal(r.people, 1);
        assert_int_equal(r.idle_ms, 0); /* a session that cannot be watched: there */
        for (const char *c = r.who; *c; c++)
            assert_true(*c >= 0x20 && *c <= 0x7e);
    }
    watch_close(w);
}

static void nothing_there(void **state)
{
    (void)state;
    struct watch *w;
    struct err e;
    drop("stat");
    assert_int_equal(watch_open(root, 1000, &w, &e), ST_ENV);
    assert_non_null(strstr(e.text, "cannot read the load in '"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(load_and_memory, setup, teardown), cmocka_unit_test_setup_teardown(pressure, setup, teardown),
        cmocka_unit_test_setup_teardown(people, setup, teardown), cmocka_unit_test_setup_teardown(screens, setup, teardown),
        cmocka_unit_test_setup_teardown(strange_names, setup, teardown), cmocka_unit_test_setup_teardown(nothing_there, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
