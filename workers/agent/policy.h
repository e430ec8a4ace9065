/* What is to become of a node's guests: pure. The state, what was read and the time come in, an order comes out; docs/agent.md says why the rules
   are as they are.

       AWAY    nobody runs: at the start, and after guests had to go. FREE when all has been calm for long enough
       FREE    guests may run, as many as there is room for
       FROZEN  something needs the node: they stand still. Calm again: FREE. Lasts too long, or memory is short: AWAY
       LEAVING the hours end, or the agent does: they commit what they have and go; what is left when the grace is over is killed: AWAY */
#ifndef EBB_WORKERS_AGENT_POLICY_H
#define EBB_WORKERS_AGENT_POLICY_H

#include <stdint.h>

#include "workers/agent/calendar.h"

#define POLICY_OFF 1e9          /* as a limit: never reached */
#define POLICY_NEVER UINT64_MAX /* as a time */

/* resource, word, the file below /proc/pressure */
#define POLICY_PRESSURE_MAP(X)                                                                                                   \
    X(CPU, "cpu")                                                                                                                \
    X(MEMORY, "memory")                                                                                                          \
    X(IO, "io")
enum policy_pressure {
#define X(name, word) PRESSURE_##name,
    POLICY_PRESSURE_MAP(X)
#undef X
        PRESSURES
};

enum policy_owner { OWNER_ACTIVE, OWNER_LOGGED_IN, OWNER_IGNORED };

enum policy_priority { PRIORITY_IDLE, PRIORITY_LOW, PRIORITY_NORMAL }; /* of guests, for processor and disk */

struct policy_amount { /* of memory: a share of all, or bytes */
    double share;      /* 0: bytes counts */
    uint64_t bytes;
};

struct policy {
    double load_limit, load_calm;     /* of others, as a share of the cores: freeze above the one, calm below the other */
    double pressure_limit[PRESSURES]; /* share of the time in which something waited; calm is half of it */
    struct policy_amount memory_keep; /* left to the owner when guests are started */
    struct policy_amount memory_evict; /* less than that is available: guests go at once */
    enum policy_owner owner;
    uint64_t owner_idle_ms;           /* so long without a sign of life: away */
    struct calendar hours;
    uint64_t freeze_after_ms;         /* load and pressure must last so long; an owner need not */
    uint64_t thaw_after_ms;           /* calm for so long thaws */
    uint64_t evict_after_ms;          /* frozen for so long: they go */
    uint64_t return_after_ms;         /* calm for so long after that brings them back; doubled each time that it happens again within half an hour */
    uint64_t grace_ms;                /* to commit and hand back, when they are asked to leave */
    uint64_t workers, lanes;          /* most guests; lanes of each, 0: the cores divided among them */
    uint64_t cores_keep;              /* left to the owner */
    uint64_t memory_each;             /* of each guest; 0: what is not kept, divided among them */
};
extern const struct policy policy_default;

struct readings {
    uint64_t now_ms;          /* monotonic */
    int minute;               /* of the week, local; CALENDAR_UNKNOWN */
    uint32_t cores;
    int load_known, memory_known, people_known, pressure_known[PRESSURES];
    double load_of_others;    /* in cores, over the last half second or so */
    double pressure[PRESSURES]; /* 0..1, over the last second or so */
    uint64_t memory_bytes, memory_available_bytes, guests_bytes;
    uint32_t people;          /* logged in */
    uint64_t idle_ms;         /* since the last sign of life of any of them; POLICY_NEVER: none was seen */
    char who[72];             /* whose: "anna, tty2" */
    uint32_t guests, running; /* that live; that are neither frozen nor gone */
    int leave;                /* the agent was told to end */
};

#define POLICY_ORDER_MAP(X)                                                                                                      \
    X(FREE, "free")     /* guests may run, up to the room */                                                                     \
    X(THAW, "thaw")     /* the same, and for the first time after a freeze */                                                     \
    X(FREEZE, "freeze") /* all stand still, none is started */                                                                   \
    X(DRAIN, "drain")   /* all commit what they have and go, none is started */                                                  \
    X(EVICT, "evict")   /* none may live */
enum policy_order {
#define X(name, word) ORDER_##name,
    POLICY_ORDER_MAP(X)
#undef X
};
const char *policy_order_word(enum policy_order order);

#define POLICY_MODE_MAP(X)                                                                                                       \
    X(AWAY, "away")                                                                                                              \
    X(FREE, "free")                                                                                                              \
    X(FROZEN, "frozen")                                                                                                          \
    X(LEAVING, "leaving")
enum policy_mode {
#define X(name, word) MODE_##name,
    POLICY_MODE_MAP(X)
#undef X
};
const char *policy_mode_word(enum policy_mode mode);

struct decision {
    enum policy_order order;
    enum policy_mode mode;
    uint32_t room;            /* guests that may run; 0 unless FREE or THAW */
    int waiting;              /* away although all is calm: so that calm lasts */
    uint64_t wait_ms;         /* for so long yet */
    char reason[240];         /* "owner at the keyboard (anna, tty2)"; "" when free */
};

struct policy_state {         /* zeroed before the first decision */
    int begun;
    enum policy_mode mode;
    uint64_t now_ms, mode_ms; /* of the last decision; when the mode began */
    uint64_t busy_ms, calm_ms; /* since when; POLICY_NEVER: not */
    uint64_t go_ms;           /* since when they should not be here, by hours or because the agent ends */
    uint64_t asked_ms;        /* when they were asked to leave; POLICY_NEVER: were not */
    uint64_t evicted_ms;      /* last time; POLICY_NEVER */
    unsigned evictions;       /* within half an hour of each other */
    uint64_t blind_ms;        /* since when something cannot be read; POLICY_NEVER: all can */
    double load_slow;         /* of others, smoothed, for the room */
    uint32_t room;
    uint64_t less_ms, more_ms; /* since when there is less, or more, room than that; POLICY_NEVER */
    char reason[240];
};

void policy_decide(const struct policy *p, struct policy_state *s, const struct readings *r, struct decision *out);
/* Lanes and memory limit of a guest on this node. */
uint32_t policy_lanes(const struct policy *p, uint32_t cores);
uint64_t policy_memory(const struct policy *p, uint64_t memory_bytes);
uint64_t policy_bytes(const struct policy_amount *a, uint64_t memory_bytes);

#endif
