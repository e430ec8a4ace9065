#include "workers/agent/policy.h"

#include <stdio.h>
#include <string.h>

#include "base/units.h"

#define BLIND_MS 3000          /* what cannot be read for so long is taken for the worst */
#define STALL_MS 5000          /* nobody looked for so long: what was calm before is not known to have stayed so */
#define FIRST_CALM_MS 400      /* before the first guest */
#define AGAIN_MS (30 * 60000u) /* evictions that are further apart are no series */
#define MOST_DOUBLINGS 5
#define LESS_ROOM_MS 5000
#define MORE_ROOM_MS 30000
#define SLOW_MS 15000.0

const struct policy policy_default = {
    .load_limit = 0.25,
    .load_calm = 0.15,
    .pressure_limit = {[PRESSURE_CPU] = 0.5, [PRESSURE_MEMORY] = 0.1, [PRESSURE_IO] = 0.5},
    .memory_keep = {.share = 0.15},
    .memory_evict = {.share = 0.05},
    .owner = OWNER_ACTIVE,
    .owner_idle_ms = 10 * 60000,
    .freeze_after_ms = 100,
    .thaw_after_ms = 1000,
    .evict_after_ms = 3000,
    .return_after_ms = 60000,
    .grace_ms = 20000,
    .workers = 1,
};

static const char *const pressure_words[] = {
#define X(name, word) [PRESSURE_##name] = word,
    POLICY_PRESSURE_MAP(X)
#undef X
};

const char *policy_order_word(enum policy_order order)
{
    static const char *const words[] = {
#define X(name, word) [ORDER_##name] = word,
        POLICY_ORDER_MAP(X)
#undef X
    };
    return words[order];
}

const char *policy_mode_word(enum policy_mode mode)
{
    static const char *const words[] = {
#define X(name, word) [MODE_##name] = word,
        POLICY_MODE_MAP(X)
#undef X
    };
    return words[mode];
}

uint64_t policy_bytes(const struct policy_amount *a, uint64_t memory_bytes)
{
    return a->share > 0 ? (uint64_t)(a->share * (double)memory_bytes) : a->bytes;
}

uint32_t policy_lanes(const struct policy *p, uint32_t cores)
{
    uint64_t lanes = p->lanes;
    if (!lanes)
        lanes = (cores > p->cores_keep ? cores - p->cores_keep : 0) / (p->workers ? p->workers : 1);
    return lanes ? (uint32_t)lanes : 1;
}

uint64_t policy_memory(const struct policy *p, uint64_t memory_bytes)
{
    if (p->memory_each)
        return p->memory_each;
    uint64_t keep = policy_bytes(&p->memory_keep, memory_bytes);
    return (memory_bytes > keep ? memory_bytes - keep : 0) / (p->workers ? p->workers : 1);
}

/* What is the matter -------------------------------------------------------------------------------------------------------------- */

enum matter { CALM, SLOW /* must last a little */, NOW, SHORT /* of memory: standing still is no help */ };

static int above(double x, double limit, double calm, int busy)
{
    return limit < POLICY_OFF && x > (busy ? calm : limit);
}

/* The gravest thing. busy: guests have been stopped for something: then the lower limits hold. */
static enum matter judge(const struct policy *p, struct policy_state *s, const struct readings *r, int busy, char *why, size_t size)
{
    char a[UNITS_MAX], b[UNITS_MAX];
    why[0] = 0;
    uint64_t evict = policy_bytes(&p->memory_evict, r->memory_bytes), more = evict / 2 < r->memory_bytes / 20 ? evict / 2 : r->memory_bytes / 20;
    if (r->memory_known && evict && r->memory_available_bytes < (busy ? evict + more : evict)) {
        snprintf(why, size, "memory is short: %s available, %s are the owner's", units_bytes(a, r->memory_available_bytes), units_bytes(b, evict));
        return SHORT;
    }
    const char *blind = !r->load_known                                      ? "load of others"
                        : !r->memory_known                                  ? "memory"
                        : !r->people_known && p->owner != OWNER_IGNORED ? "people logged in"
                                                                        : NULL;
    if (!blind)
        s->blind_ms = POLICY_NEVER;
    else if (s->blind_ms == POLICY_NEVER)
        s->blind_ms = s->now_ms;
    if (blind && s->now_ms - s->blind_ms >= BLIND_MS) {
        snprintf(why, size, "cannot be read: %s", blind);
        return NOW;
    }
    if (r->people_known && p->owner == OWNER_LOGGED_IN && r->people) {
        snprintf(why, size, "owner is logged in%s%s%s", *r->who ? " (" : "", r->who, *r->who ? ")" : "");
        return NOW;
    }
    if (r->people_known && p->owner != OWNER_IGNORED && r->idle_ms < p->owner_idle_ms) {
        snprintf(why, size, "owner at the keyboard%s%s%s", *r->who ? " (" : "", r->who, *r->who ? ")" : "");
        return NOW;
    }
    if (r->load_known && above(r->load_of_others / (r->cores ? r->cores : 1), p->load_limit, p->load_calm, busy)) {
        snprintf(why, size, "load of others %.1f", r->load_of_others);
        return SLOW;
    }
    for (int i = 0; i < PRESSURES; i++) {
        /* Guests wait for the processor and the disk all the time, being the last in line: only what happens without them tells of others. */
        if (!r->pressure_known[i] || (i != PRESSURE_MEMORY && r->running))
            continue;
        if (above(r->pressure[i], p->pressure_limit[i], p->pressure_limit[i] / 2, busy)) {
            snprintf(why, size, "%s pressure %.0f %%", pressure_words[i], 100 * r->pressure[i]);
            return SLOW;
        }
    }
    return CALM;
}

/* Room ----------------------------------------------------------------------------------------------------------------------------- */

static uint32_t room_now(const struct policy *p, const struct policy_state *s, const struct readings *r)
{
    double load = p->load_limit < POLICY_OFF ? s->load_slow : 0, keep = (double)p->cores_keep > load ? (double)p->cores_keep : load;
    double lanes = policy_lanes(p, r->cores), cores = ((double)r->cores - keep + lanes / 2) / lanes; /* half a guest's worth of others' load is let pass */
    uint32_t n = cores < 0 ? 0 : cores < (double)p->workers ? (uint32_t)cores : (uint32_t)p->workers;
    if (!n && p->workers && r->cores <= policy_lanes(p, r->cores) && load < 0.5)
        n = 1; /* a node of few cores */
    if (!r->memory_known)
        return n;
    /* A limit on memory is what a guest may take, not what it takes: a quarter of it must be there. */
    uint64_t need = policy_memory(p, r->memory_bytes) / 4, keep_bytes = policy_bytes(&p->memory_keep, r->memory_bytes);
    uint64_t have = r->memory_available_bytes + r->guests_bytes;
    have = have > keep_bytes ? have - keep_bytes : 0;
    if (need && have / need < n)
        n = (uint32_t)(have / need);
    return n;
}

static void update_room(const struct policy *p, struct policy_state *s, const struct readings *r, uint64_t elapsed_ms, int first)
{
    if (r->load_known) {
        double weight = first ? 1 : (double)elapsed_ms / (SLOW_MS + (double)elapsed_ms);
        s->load_slow += (r->load_of_others - s->load_slow) * weight;
    }
    uint32_t n = room_now(p, s, r);
    s->less_ms = n >= s->room ? POLICY_NEVER : s->less_ms == POLICY_NEVER ? s->now_ms : s->less_ms;
    s->more_ms = n <= s->room ? POLICY_NEVER : s->more_ms == POLICY_NEVER ? s->now_ms : s->more_ms;
    if (first || n > p->workers || (s->less_ms != POLICY_NEVER && s->now_ms - s->less_ms >= LESS_ROOM_MS) ||
        (s->more_ms != POLICY_NEVER && (s->now_ms - s->more_ms >= MORE_ROOM_MS || s->mode != MODE_FREE))) {
        s->room = n;
        s->less_ms = s->more_ms = POLICY_NEVER;
    }
    if (s->room > p->workers)
        s->room = (uint32_t)p->workers;
}

/* Modes ---------------------------------------------------------------------------------------------------------------------------- */

static void enter(struct policy_state *s, enum policy_mode mode)
{
    s->mode = mode;
    s->mode_ms = s->now_ms;
}

static void evict(struct policy_state *s)
{
    s->evictions = s->evicted_ms != POLICY_NEVER && s->now_ms - s->evicted_ms < AGAIN_MS ? s->evictions + 1 : 1;
    s->evicted_ms = s->now_ms;
    enter(s, MODE_AWAY);
}

static uint64_t calm_wanted(const struct policy *p, const struct policy_state *s)
{
    if (s->evicted_ms == POLICY_NEVER || s->now_ms - s->evicted_ms >= AGAIN_MS)
        return FIRST_CALM_MS;
    unsigned doublings = s->evictions > MOST_DOUBLINGS ? MOST_DOUBLINGS : s->evictions ? s->evictions - 1 : 0;
    return p->return_after_ms << doublings;
}

static int lasts(uint64_t since_ms, uint64_t now_ms, uint64_t for_ms)
{
    return since_ms != POLICY_NEVER && now_ms - since_ms >= for_ms;
}

void policy_decide(const struct policy *p, struct policy_state *s, const struct readings *r, struct decision *out)
{
    int first = !s->begun;
    if (first) {
        *s = (struct policy_state){.begun = 1, .mode = MODE_AWAY, .now_ms = r->now_ms, .mode_ms = r->now_ms};
        s->busy_ms = s->calm_ms = s->asked_ms = s->evicted_ms = s->blind_ms = s->less_ms = s->more_ms = s->go_ms = POLICY_NEVER;
    }
    uint64_t elapsed_ms = r->now_ms > s->now_ms ? r->now_ms - s->now_ms : 0;
    s->now_ms += elapsed_ms; /* never back */
    if (elapsed_ms > STALL_MS)
        s->calm_ms = POLICY_NEVER;
    update_room(p, s, r, elapsed_ms, first);

    char why[sizeof s->reason], outside[sizeof s->reason] = "";
    int stopped = s->mode == MODE_FROZEN || (s->mode == MODE_AWAY && s->evicted_ms != POLICY_NEVER);
    enum matter matter = judge(p, s, r, stopped, why, sizeof why);
    int may = r->load_known && r->memory_known && (r->people_known || p->owner == OWNER_IGNORED); /* nobody comes back on a guess */
    s->calm_ms = matter != CALM || !may ? POLICY_NEVER : s->calm_ms == POLICY_NEVER ? s->now_ms : s->calm_ms;
    s->busy_ms = matter == CALM ? POLICY_NEVER : s->busy_ms == POLICY_NEVER ? s->now_ms : s->busy_ms;
    if (r->leave)
        snprintf(outside, sizeof outside, "the agent ends");
    else if (!calendar_open(&p->hours, r->minute))
        snprintf(outside, sizeof outside, "outside hours %.120s", p->hours.text);
    int go = *outside != 0, thaw = 0;
    s->go_ms = !go ? POLICY_NEVER : s->go_ms == POLICY_NEVER ? s->now_ms : s->go_ms;

    if (s->mode == MODE_FREE || s->mode == MODE_LEAVING) {
        if (matter == SHORT) {
            evict(s);
        } else if (matter == NOW || (matter == SLOW && lasts(s->busy_ms, s->now_ms, p->freeze_after_ms))) {
            enter(s, MODE_FROZEN);
        } else if (s->mode == MODE_FREE && go) {
            s->asked_ms = s->now_ms;
            enter(s, MODE_LEAVING);
        }
    } else if (s->mode == MODE_FROZEN) {
        if (matter == SHORT || s->now_ms - s->mode_ms >= p->evict_after_ms || lasts(s->go_ms, s->now_ms, p->grace_ms)) {
            evict(s);
        } else if (lasts(s->calm_ms, s->now_ms, p->thaw_after_ms)) {
            thaw = 1;
            if (go && s->asked_ms == POLICY_NEVER)
                s->asked_ms = s->now_ms;
            enter(s, s->asked_ms == POLICY_NEVER ? MODE_FREE : MODE_LEAVING);
        }
    }
    if (s->mode == MODE_LEAVING && (!r->guests || s->now_ms - s->asked_ms >= p->grace_ms))
        enter(s, MODE_AWAY);
    if (s->mode == MODE_AWAY) {
        s->asked_ms = POLICY_NEVER;
        if (!go && lasts(s->calm_ms, s->now_ms, calm_wanted(p, s)))
            enter(s, MODE_FREE);
    }

    *out = (struct decision){.mode = s->mode};
    switch (s->mode) {
    case MODE_FREE:
        out->order = thaw ? ORDER_THAW : ORDER_FREE;
        out->room = s->room;
        break;
    case MODE_FROZEN:
        out->order = ORDER_FREEZE;
        break;
    case MODE_LEAVING:
        out->order = ORDER_DRAIN;
        break;
    case MODE_AWAY:
        out->order = ORDER_EVICT;
        break;
    }
    if (s->mode == MODE_FREE) {
        s->reason[0] = 0;
        if (!p->workers)
            snprintf(out->reason, sizeof out->reason, "no room: 'workers.count' is 0");
        else if (!s->room)
            snprintf(out->reason, sizeof out->reason, "no room: load of others %.1f, %.1f GiB of memory available", s->load_slow,
                     (double)r->memory_available_bytes / (1u << 30));
        return;
    }
    if (*why) /* what stopped them stays the reason until something else is */
        memcpy(s->reason, why, sizeof s->reason);
    else if (*outside)
        memcpy(s->reason, outside, sizeof s->reason);
    if (s->mode == MODE_AWAY && matter == CALM && !go) {
        uint64_t wanted = calm_wanted(p, s), been = s->calm_ms == POLICY_NEVER ? 0 : s->now_ms - s->calm_ms;
        out->waiting = 1;
        out->wait_ms = been < wanted ? wanted - been : 0;
        if (!may)
            snprintf(s->reason, sizeof s->reason, "looks around");
        if (!*s->reason)
            snprintf(s->reason, sizeof s->reason, "looks around");
    }
    memcpy(out->reason, s->reason, sizeof out->reason);
}
