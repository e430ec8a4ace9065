/* Days in the life of a node, told as tables: what is read, what is decided. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "workers/agent/policy.h"

#define GIB ((uint64_t)1 << 30)

static struct readings calm(void)
{
    return (struct readings){.now_ms = 1000, .minute = 600, .cores = 8, .load_known = 1, .memory_known = 1, .people_known = 1,
                             .pressure_known = {1, 1, 1}, .memory_bytes = 32 * GIB, .memory_available_bytes = 20 * GIB, .idle_ms = POLICY_NEVER};
}

/* One line of a story: so many milliseconds later, in steps of 200 ms, with these readings throughout, this is the order at the end. */
struct line {
    uint64_t after_ms;
    enum { QUIET, LOAD, HIGH_LOAD, OWNER, SHORT, BLIND, NIGHT, LEAVE, PRESSED, WAITS, SLEEPY } what;
    double much;
    uint32_t guests;
    enum policy_order order;
    const char *reason; /* NULL: any */
};

static struct readings readings_of(const struct line *x)
{
    struct readings r = calm();
    r.guests = r.running = x->guests;
    r.guests_bytes = x->guests * GIB;
    switch (x->what) {
    case QUIET:
        break;
    case LOAD:
    case HIGH_LOAD:
        r.load_of_others = x->much;
        break;
    case OWNER:
        r.people = 1;
        r.idle_ms = (uint64_t)x->much;
        strcpy(r.who, "anna, tty2");
        break;
    case SLEEPY: /* logged in and away */
        r.people = 1;
        r.idle_ms = 3600000;
        strcpy(r.who, "anna, tty2");
        break;
    case SHORT:
        r.memory_available_bytes = (uint64_t)(x->much * (double)GIB);
        break;
    case BLIND:
        r.load_known = 0;
        break;
    case NIGHT:
        r.minute = 60;
        break;
    case LEAVE:
        r.leave = 1;
        break;
    case PRESSED:
        r.pressure[PRESSURE_MEMORY] = x->much;
        break;
    case WAITS:
        r.pressure[PRESSURE_CPU] = x->much;
        break;
    }
    return r;
}

static uint64_t tell(const struct policy *p, struct policy_state *s, uint64_t now_ms, const struct line *story, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct readings r = readings_of(&story[i]);
        struct decision d = {0};
        for (uint64_t done = 0; done < story[i].after_ms;) {
            uint64_t step = story[i].after_ms - done < 200 ? story[i].after_ms - done : 200;
            done += step;
            now_ms += step;
            r.now_ms = now_ms;
            policy_decide(p, s, &r, &d);
        }
        if (d.order != story[i].order || (story[i].reason && strcmp(d.reason, story[i].reason))) {
            print_error("line %zu: %s (\"%s\"), not %s (\"%s\")\n", i, policy_order_word(d.order), d.reason, policy_order_word(story[i].order),
                        story[i].reason ? story[i].reason : "any");
            fail();
        }
    }
    return now_ms;
}
#define TELL(p, s, ...)                                                                                                          \
    do {                                                                                                                         \
        const struct line story_[] = {__VA_ARGS__};                                                                              \
        now = tell(p, s, now, story_, sizeof story_ / sizeof *story_);                                                           \
    } while (0)

static void test_owner_comes_and_goes(void **state)
{
    (void)state;
    struct policy p = policy_default;
    struct policy_state s = {0};
    uint64_t now = 5000;
    TELL(&p, &s,
         {200, QUIET, 0, 0, ORDER_EVICT, "looks around"},
         {400, QUIET, 0, 0, ORDER_FREE, ""},
         {60000, SLEEPY, 0, 1, ORDER_FREE, ""},
         {200, OWNER, 50, 1, ORDER_FREEZE, "owner at the keyboard (anna, tty2)"}, /* at once */
         {2800, OWNER, 50, 1, ORDER_FREEZE, "owner at the keyboard (anna, tty2)"},
         {200, OWNER, 50, 1, ORDER_EVICT, "owner at the keyboard (anna, tty2)"},
         {60000, OWNER, 5000, 0, ORDER_EVICT, "owner at the keyboard (anna, tty2)"},
         {59800, SLEEPY, 0, 0, ORDER_EVICT, "owner at the keyboard (anna, tty2)"},
         {600, SLEEPY, 0, 0, ORDER_FREE, ""});
}

static void test_short_visit_thaws(void **state)
{
    (void)state;
    struct policy p = policy_default;
    struct policy_state s = {0};
    uint64_t now = 5000;
    TELL(&p, &s,
         {600, QUIET, 0, 0, ORDER_FREE, ""},
         {200, LOAD, 5, 1, ORDER_FREE, ""},                /* a blink */
         {200, QUIET, 0, 1, ORDER_FREE, ""},
         {400, LOAD, 5, 1, ORDER_FREEZE, "load of others 5.0"},
         {200, QUIET, 0, 1, ORDER_FREEZE, "load of others 5.0"},
         {800, QUIET, 0, 1, ORDER_FREEZE, "load of others 5.0"},
         {200, QUIET, 0, 1, ORDER_THAW, ""},
         {200, QUIET, 0, 1, ORDER_FREE, ""});
}

/* Load that hovers between the two limits neither stops guests nor brings them back. */
static void test_hysteresis(void **state)
{
    (void)state;
    struct policy p = policy_default; /* 25 % and 10 % of 8 cores */
    struct policy_state s = {0};
    uint64_t now = 5000;
    TELL(&p, &s,
         {600, QUIET, 0, 0, ORDER_FREE, ""},
         {60000, LOAD, 1.5, 1, ORDER_FREE, ""},
         {400, HIGH_LOAD, 2.5, 1, ORDER_FREEZE, NULL},
         {2000, LOAD, 1.5, 1, ORDER_FREEZE, "load of others 1.5"},
         {1000, LOAD, 1.5, 1, ORDER_EVICT, NULL},
         {600000, LOAD, 1.5, 0, ORDER_EVICT, "load of others 1.5"},
         {60000, LOAD, 0.7, 0, ORDER_EVICT, NULL},
         {400, LOAD, 0.7, 0, ORDER_FREE, ""});
}

/* An owner's job that comes back each time that guests do: they wait twice as long each time. */
static void test_flapping_backs_off(void **state)
{
    (void)state;
    struct policy p = policy_default;
    struct policy_state s = {0};
    uint64_t now = 5000;
    TELL(&p, &s, {600, QUIET, 0, 0, ORDER_FREE, ""});
    uint64_t wait = 60000;
    for (int round = 0; round < 4; round++, wait *= 2)
        TELL(&p, &s,
             {3600, LOAD, 8, 1, ORDER_EVICT, NULL},
             {wait - 1000, QUIET, 0, 0, ORDER_EVICT, NULL},
             {1600, QUIET, 0, 0, ORDER_FREE, ""});
    TELL(&p, &s, {31 * 60000, QUIET, 0, 1, ORDER_FREE, ""},  /* long peace: forgotten */
         {3600, LOAD, 8, 1, ORDER_EVICT, NULL},
         {59000, QUIET, 0, 0, ORDER_EVICT, NULL},
         {1600, QUIET, 0, 0, ORDER_FREE, ""});
}

static void test_memory_does_not_wait(void **state)
{
    (void)state;
    struct policy p = policy_default; /* 5 % of 32 GiB: 1.6 GiB */
    struct policy_state s = {0};
    uint64_t now = 5000;
    TELL(&p, &s,
         {600, QUIET, 0, 0, ORDER_FREE, ""},
         {200, SHORT, 1.0, 1, ORDER_EVICT, "memory is short: 1.0 GiB available, 1.6 GiB are the owner's"},
         {70000, SHORT, 2.0, 0, ORDER_EVICT, NULL},            /* more than the limit, less than half as much again */
         {59000, QUIET, 0, 0, ORDER_EVICT, NULL},
         {1600, QUIET, 0, 0, ORDER_FREE, ""},
         {200, OWNER, 0, 1, ORDER_FREEZE, NULL},
         {200, SHORT, 1.0, 1, ORDER_EVICT, NULL});               /* frozen ones hold memory, too */
}

static void test_hours(void **state)
{
    (void)state;
    struct policy p = policy_default;
    char why[100];
    assert_int_equal(calendar_add(&p.hours, "mon-fri 08:00-20:00", why, sizeof why), 0);
    struct policy_state s = {0};
    uint64_t now = 5000;
    TELL(&p, &s,
         {600, NIGHT, 0, 0, ORDER_EVICT, "outside hours mon-fri 08:00-20:00"},
         {600000, NIGHT, 0, 0, ORDER_EVICT, NULL},
         {200, QUIET, 0, 0, ORDER_FREE, ""},                     /* it has been calm all the time */
         {200, NIGHT, 0, 1, ORDER_DRAIN, "outside hours mon-fri 08:00-20:00"},
         {10000, NIGHT, 0, 1, ORDER_DRAIN, NULL},
         {200, NIGHT, 0, 0, ORDER_EVICT, NULL},                  /* gone before the grace was over */
         {400, QUIET, 0, 0, ORDER_FREE, ""},                     /* the clock was set: open again */
         {200, NIGHT, 0, 1, ORDER_DRAIN, NULL},
         {200, QUIET, 0, 1, ORDER_DRAIN, NULL},                  /* asked is asked */
         {19400, NIGHT, 0, 1, ORDER_DRAIN, NULL},
         {400, NIGHT, 0, 1, ORDER_EVICT, NULL},                  /* the grace is over */
         {200, NIGHT, 0, 0, ORDER_EVICT, NULL});
}

static void test_owner_comes_while_they_leave(void **state)
{
    (void)state;
    struct policy p = policy_default;
    struct policy_state s = {0};
    uint64_t now = 5000;
    TELL(&p, &s,
         {600, QUIET, 0, 0, ORDER_FREE, ""},
         {200, LEAVE, 0, 1, ORDER_DRAIN, "the agent ends"},
         {200, OWNER, 0, 1, ORDER_FREEZE, NULL},
         {1200, LEAVE, 0, 1, ORDER_DRAIN, NULL},                  /* thawed, and still to go */
         {200, LEAVE, 0, 0, ORDER_EVICT, "the agent ends"},
         {600000, LEAVE, 0, 0, ORDER_EVICT, "the agent ends"});
}

/* However long guests may stand still, the agent's end does not wait for the owner to go. */
static void test_end_while_frozen(void **state)
{
    (void)state;
    struct policy p = policy_default;
    p.evict_after_ms = 3600000;
    struct policy_state s = {0};
    uint64_t now = 5000;
    TELL(&p, &s,
         {600, QUIET, 0, 0, ORDER_FREE, ""},
         {200, OWNER, 0, 1, ORDER_FREEZE, NULL},
         {60000, OWNER, 0, 1, ORDER_FREEZE, NULL});
    struct readings r = calm();
    struct decision d;
    r.guests = r.running = 1;
    r.people = 1;
    r.idle_ms = 0;
    r.leave = 1;
    for (int i = 0; i < 100; i++) {
        r.now_ms = now += 200;
        policy_decide(&p, &s, &r, &d);
        assert_int_equal(d.order, ORDER_FREEZE);
    }
    r.now_ms = now += 400;
    policy_decide(&p, &s, &r, &d);
    assert_int_equal(d.order, ORDER_EVICT);
}

static void test_missing_readings(void **state)
{
    (void)state;
    struct policy p = policy_default;
    struct policy_state s = {0};
    uint64_t now = 5000;
    TELL(&p, &s,
         {2000, BLIND, 0, 0, ORDER_EVICT, "looks around"},       /* nobody begins on a guess */
         {20000, BLIND, 0, 0, ORDER_EVICT, "cannot be read: load of others"},
         {600, QUIET, 0, 0, ORDER_FREE, ""},
         {2000, BLIND, 0, 1, ORDER_FREE, ""},                    /* one that fails now and then is no reason */
         {200, QUIET, 0, 1, ORDER_FREE, ""},
         {2800, BLIND, 0, 1, ORDER_FREE, ""},
         {600, BLIND, 0, 1, ORDER_FREEZE, "cannot be read: load of others"},
         {3000, BLIND, 0, 1, ORDER_EVICT, NULL});
    p.owner = OWNER_IGNORED;
    s = (struct policy_state){0};
    TELL(&p, &s, {600, OWNER, 0, 0, ORDER_FREE, ""});
}

static void test_logged_in_is_enough_if_told_so(void **state)
{
    (void)state;
    struct policy p = policy_default;
    p.owner = OWNER_LOGGED_IN;
    struct policy_state s = {0};
    uint64_t now = 5000;
    TELL(&p, &s,
         {600, QUIET, 0, 0, ORDER_FREE, ""},
         {200, SLEEPY, 0, 1, ORDER_FREEZE, "owner is logged in (anna, tty2)"});
}

static void test_pressure(void **state)
{
    (void)state;
    struct policy p = policy_default;
    struct policy_state s = {0};
    uint64_t now = 5000;
    TELL(&p, &s,
         {1000, WAITS, 0.9, 0, ORDER_EVICT, "cpu pressure 90 %"}, /* without guests it is others who wait */
         {600, QUIET, 0, 0, ORDER_FREE, ""},
         {60000, WAITS, 0.9, 1, ORDER_FREE, ""},                  /* with guests, it is they */
         {600, PRESSED, 0.2, 1, ORDER_FREEZE, "memory pressure 20 %"},
         {600, PRESSED, 0.07, 1, ORDER_FREEZE, "memory pressure 7 %"},
         {1400, PRESSED, 0.04, 1, ORDER_FREE, ""});
    p.pressure_limit[PRESSURE_MEMORY] = POLICY_OFF;
    TELL(&p, &s, {60000, PRESSED, 1.0, 1, ORDER_FREE, ""});
}

/* A machine that slept, or an agent that was stopped: what was calm before proves nothing, and time never goes back. */
static void test_clock_jumps(void **state)
{
    (void)state;
    struct policy p = policy_default;
    struct policy_state s = {0};
    struct decision d;
    uint64_t now = 5000;
    TELL(&p, &s, {600, QUIET, 0, 0, ORDER_FREE, ""}, {3600, LOAD, 8, 1, ORDER_EVICT, NULL}, {30000, QUIET, 0, 0, ORDER_EVICT, NULL});
    struct readings r = calm();
    r.now_ms = now += 45000; /* in one leap */
    policy_decide(&p, &s, &r, &d);
    assert_int_equal(d.order, ORDER_EVICT);
    assert_true(d.waiting);
    assert_int_equal(d.wait_ms, 60000);
    r.now_ms = now - 40000; /* back */
    policy_decide(&p, &s, &r, &d);
    assert_int_equal(d.order, ORDER_EVICT);
    assert_int_equal(d.wait_ms, 60000);
    TELL(&p, &s, {59800, QUIET, 0, 0, ORDER_EVICT, NULL}, {400, QUIET, 0, 0, ORDER_FREE, ""});
    r = calm();
    r.now_ms = now += 3600000; /* frozen guests that nobody looked at for an hour go */
    r.load_of_others = 8;
    policy_decide(&p, &s, &r, &d);
    TELL(&p, &s, {200, LOAD, 8, 1, ORDER_FREEZE, NULL}, {4000, LOAD, 8, 1, ORDER_EVICT, NULL});
}

static void test_room(void **state)
{
    (void)state;
    static const struct {
        uint64_t workers, lanes, keep;
        uint32_t cores;
        double load;
        uint64_t memory_gib, available_gib, guests_gib;
        uint32_t room;
    } cases[] = {
        {1, 0, 0, 8, 0, 32, 20, 0, 1},
        {4, 0, 0, 8, 0, 32, 20, 0, 4},
        {4, 2, 2, 8, 0, 32, 20, 0, 3},
        {4, 2, 2, 8, 1.5, 32, 20, 0, 3}, /* what is kept for the owner is what the owner takes */
        {8, 1, 2, 8, 1.9, 32, 30, 0, 6},
        {100, 1, 0, 4, 0, 64, 60, 0, 4},
        {1, 0, 0, 1, 0.2, 4, 3, 0, 1},
        {1, 0, 1, 2, 0.2, 4, 3, 0, 1},
        {4, 1, 0, 8, 0, 32, 5, 0, 0},   /* 4.8 GiB are the owner's */
        {4, 1, 0, 8, 0, 32, 9, 0, 2},   /* a quarter of 6.8 GiB each */
        {4, 1, 0, 8, 0, 32, 7, 6, 4},   /* what guests hold is theirs already */
        {0, 0, 0, 8, 0, 32, 20, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct policy p = policy_default;
        struct policy_state s = {0};
        struct decision d;
        struct readings r = calm();
        p.workers = cases[i].workers;
        p.lanes = cases[i].lanes;
        p.cores_keep = cases[i].keep;
        p.load_limit = 0.9;
        r.cores = cases[i].cores;
        r.load_of_others = cases[i].load;
        r.memory_bytes = cases[i].memory_gib * GIB;
        r.memory_available_bytes = cases[i].available_gib * GIB;
        r.guests_bytes = cases[i].guests_gib * GIB;
        policy_decide(&p, &s, &r, &d);
        r.now_ms += 500;
        policy_decide(&p, &s, &r, &d);
        if (d.order != ORDER_FREE || d.room != cases[i].room) {
            print_error("case %zu: %s, room %u, not %u\n", i, policy_order_word(d.order), d.room, cases[i].room);
            fail();
        }
    }
}

/* Room follows slowly: a guest is not sent away for a short load, nor called for a short calm. */
static void test_room_is_lazy(void **state)
{
    (void)state;
    struct policy p = policy_default;
    struct policy_state s = {0};
    struct decision d;
    struct readings r = calm();
    p.workers = 4;
    p.lanes = 2;
    p.load_limit = 0.9;
    uint64_t changes = 0;
    uint32_t room = 0;
    for (int i = 0; i < 3000; i++) { /* ten minutes of load that comes and goes each second */
        r.now_ms += 200;
        r.load_of_others = i / 5 % 2 ? 4 : 0;
        policy_decide(&p, &s, &r, &d);
        changes += i > 150 && d.room != room;
        room = d.room;
    }
    assert_int_equal(changes, 0);
    assert_int_equal(room, 3);
    r.load_of_others = 0;
    for (int i = 0; i < 400; i++) {
        r.now_ms += 200;
        policy_decide(&p, &s, &r, &d);
    }
    assert_int_equal(d.room, 4);
    p.load_limit = POLICY_OFF; /* then it takes no room, either */
    r.load_of_others = 8;
    for (int i = 0; i < 400; i++) {
        r.now_ms += 200;
        policy_decide(&p, &s, &r, &d);
    }
    assert_int_equal(d.order, ORDER_FREE);
    assert_int_equal(d.room, 4);
}

static void test_calendar(void **state)
{
    (void)state;
    static const struct {
        const char *text, *why; /* NULL: is fine */
    } texts[] = {
        {"always", NULL},
        {"sat,sun", NULL},
        {"fri-mon 10:00-11:00", NULL},
        {"22:00-6:00", NULL},
        {"mon 00:00-24:00", NULL},
        {"", "is empty: write hours such as 'mon-fri 19:00-07:00'"},
        {"mo 8:00-9:00", "has no day 'mo': did you mean 'mon' (days are mon tue wed thu fri sat sun)"},
        {"mon-xyz", "has no day 'xyz' (days are mon tue wed thu fri sat sun)"},
        {"mon, 8:00-9:00", "ends in a comma: 'mon,'"},
        {"mon 8-9", "cannot be read: 'mon 8-9': write hours such as 'mon-fri 19:00-07:00', 'sat,sun' or '22:00-06:00'"},
        {"25:00-9:00", "cannot be read: '25:00-9:00': write hours such as 'mon-fri 19:00-07:00', 'sat,sun' or '22:00-06:00'"},
        {"8:00-9:60", "cannot be read: '8:00-9:60': write hours such as 'mon-fri 19:00-07:00', 'sat,sun' or '22:00-06:00'"},
        {"8:00-9:00 mon", "cannot be read: '8:00-9:00 mon': write hours such as 'mon-fri 19:00-07:00', 'sat,sun' or '22:00-06:00'"},
        {"8:00", "cannot be read: '8:00': write hours such as 'mon-fri 19:00-07:00', 'sat,sun' or '22:00-06:00'"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct calendar c = {0};
        char why[256] = "";
        int failed = calendar_add(&c, texts[i].text, why, sizeof why);
        assert_int_equal(failed, texts[i].why ? -1 : 0);
        assert_string_equal(why, texts[i].why ? texts[i].why : "");
        assert_true(!failed == (c.count > 0));
    }
#define AT(day, hour, minute) ((day) * 1440 + (hour) * 60 + (minute))
    struct calendar c = {0};
    char why[256];
    assert_true(calendar_open(&c, AT(2, 3, 4))); /* no hours: always */
    assert_int_equal(calendar_add(&c, "mon-fri 19:00-07:00", why, sizeof why), 0);
    assert_int_equal(calendar_add(&c, "sun 12:00-12:30", why, sizeof why), 0);
    static const struct {
        int minute, open;
    } at[] = {{AT(0, 18, 59), 0}, {AT(0, 19, 0), 1}, {AT(1, 6, 59), 1}, {AT(1, 7, 0), 0}, {AT(4, 23, 0), 1}, {AT(5, 6, 59), 1}, {AT(5, 19, 0), 0},
              {AT(6, 12, 0), 1},  {AT(6, 12, 30), 0}, {AT(0, 3, 0), 0}, {CALENDAR_UNKNOWN, 0}, {CALENDAR_WEEK, 0}};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        if (calendar_open(&c, at[i].minute) != at[i].open) {
            print_error("minute %d: open is not %d\n", at[i].minute, at[i].open);
            fail();
        }
    struct calendar round = {0};
    assert_int_equal(calendar_add(&round, "sun 22:00-06:00", why, sizeof why), 0);
    assert_true(calendar_open(&round, AT(0, 5, 59))); /* over the week's end */
    assert_false(calendar_open(&round, AT(0, 6, 0)));
    assert_string_equal(c.text, "mon-fri 19:00-07:00, sun 12:00-12:30");
    for (int i = 0; i < 4; i++)
        assert_int_equal(calendar_add(&round, "always", why, sizeof why), 0);
    assert_int_equal(calendar_add(&round, "always", why, sizeof why), -1);
    assert_int_equal(round.count, 29);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_owner_comes_and_goes), cmocka_unit_test(test_short_visit_thaws), cmocka_unit_test(test_hysteresis),
        cmocka_unit_test(test_flapping_backs_off), cmocka_unit_test(test_memory_does_not_wait), cmocka_unit_test(test_hours),
        cmocka_unit_test(test_owner_comes_while_they_leave), cmocka_unit_test(test_end_while_frozen), cmocka_unit_test(test_missing_readings),
        cmocka_unit_test(test_logged_in_is_enough_if_told_so), cmocka_unit_test(test_pressure), cmocka_unit_test(test_clock_jumps),
        cmocka_unit_test(test_room), cmocka_unit_test(test_room_is_lazy), cmocka_unit_test(test_calendar),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
