/* Gangs: the workers of one pipeline. They hold a job's model together, a run of segments each; one of them, the head, holds the leases.

   gang.c: what a worker is good for, how it comes and goes, what members say. gang_tend.c: what is to be done about gangs at the end of a step. gang_form.c: which
   workers become one, and when. gang_plan.c: who holds which segments. gang_view.c: what people see.

   A worker leaves its gang without memory being needed (gang_leave): the gang is then broken, and cut anew or dissolved by gang_update in the same
   step, or, when memory is out, in a later one. */
#ifndef EBB_SCHEDULER_GANG_H
#define EBB_SCHEDULER_GANG_H

#include "scheduler/core.h"

/* state, its word */
#define GANG_STATE_MAP(X)                                                                                                        \
    X(LOADING, "loading")  /* its members load their parts */                                                                    \
    X(RUNNING, "running")  /* the head has been told to go */                                                                    \
    X(BROKEN, "broken")    /* a member is gone, or messages were lost: it is to be cut anew */                                   \
    X(OVER, "over")
enum gang_state {
#define X(name, word) GANG_##name,
    GANG_STATE_MAP(X)
#undef X
};

struct gang_member {
    struct worker *worker;   /* NULL: gone */
    uint32_t first, end;     /* segments */
    double load_ms;          /* predicted */
    int ready, moved;        /* moved: this cut gave it segments that it did not hold */
};

struct gang {
    uint64_t id;
    struct job *job;
    enum gang_state state;
    struct worker *head;     /* NULL: gone */
    uint32_t cut, count, segments;
    struct gang_member members[GANG_MOST];
    double bottleneck_ms, gap;
    uint64_t cut_ms, sent_ms; /* cut; told of the cut last */
    uint64_t ran_ms;         /* since when it has run at all; 0: it has not */
    uint64_t idle_ms;        /* since when its head has no lease; 0: it has */
    uint32_t faults;         /* in a row, without a commit between */
    uint64_t killed;         /* a member that hung: what it names, when its end is told, is looked up in the head's leases. 0: none */
    uint64_t tried;          /* workers among which no better division was found */
    struct gang *job_prev, *job_next;
};

/* What the segments of a model cost on a worker. */
struct profile {
    uint64_t model_key, fixed_bytes, weight_bytes;
    uint64_t version;        /* of all that were ever heard */
    double time_ms;
    size_t count, link_count;
    const struct sched_link *links; /* behind the segments */
    struct profile *next;
    struct sched_segment segments[];
};
const struct profile *gang_profile(const struct worker *w, uint64_t model_key); /* NULL: not known */

/* Events; each makes its own room. */
enum status gang_profiled(struct sched *s, const struct sched_event *ev, struct err *e);
enum status gang_stage_ready(struct sched *s, const struct sched_event *ev, struct err *e);
enum status gang_stage_fault(struct sched *s, const struct sched_event *ev, struct err *e);

/* gang_tend.c: broken gangs are cut anew or dissolved, new ones formed. At the end of each step, before leases are handed out. Makes its own room. */
void gang_update(struct sched *s);
/* w cannot be used any more, or left of itself. No room is needed. */
void gang_leave(struct sched *s, struct worker *w);
/* It said hello anew: what was on its way may be lost. No room is needed. */
void gang_again(struct sched *s, struct worker *w);
/* Leases are given back already, or stay with the head. No room is needed. */
void gang_end(struct sched *s, struct gang *g);
void gang_forget(struct worker *w); /* its profiles */
/* It measures a model from now on; 0: no more. */
void gang_profiling(struct sched *s, struct worker *w, uint64_t model_key);
/* SEND_STAGE or SEND_STAGE_GO, to a member. Room: 1 message */
void gang_send(struct sched *s, enum sched_action_kind kind, const struct gang *g, const struct worker *w);
/* Something of the head's was committed: the pipeline works. */
void gang_progress(struct worker *w);
void gang_set_state(struct sched *s, struct gang *g, enum gang_state to);

/* Does it take several such workers to hold the model, so that w is of use to j in a gang only (or by a window, when nothing else is left)? */
int gang_needs(const struct worker *w, const struct job *j);
/* May w be given leases of j: alone, or as the head of a pipeline that runs? */
int gang_can_hold(const struct worker *w, const struct job *j);
/* In no gang, and with leases of j: can it go on with them? */
int gang_can_keep(const struct worker *w, const struct job *j);
/* It holds leases of j, and its pipeline does not run. */
int gang_waits(const struct worker *w);
/* w may become a member; its profile need not be known, nor need it be free. */
int gang_may_join(const struct sched *s, const struct worker *w, const struct job *j);
/* It is to wait for others that would be members, where it is j's turn. */
int gang_gathers(const struct sched *s, const struct worker *w, const struct job *j);
/* Of the workers that serve j, those that hold no lease of it. */
uint32_t gang_silent_members(const struct job *j);
/* How many workers a pipeline of j has, as far as one knows; 1: it is no job of pipelines. */
uint32_t gang_size(const struct job *j);
/* It was given a lease in this very step, which is not a row yet: what would take it back waits for the next one. */
int gang_too_soon(struct sched *s, const struct worker *w);
/* How many would take part in the work of a free worker: the members of its gang. */
uint32_t gang_count_of(const struct worker *w);

/* gang_plan.c */
struct gang_division {
    uint32_t count, segments;
    struct gang_member members[GANG_MOST];
    double bottleneck_ms, gap;
};
/* The best division of j's model among these (at most GANG_MOST, all with a profile of equally many segments); some may stay unused. ST_USER: they cannot hold it. */
enum status gang_divide(const struct job *j, struct worker *const *among, size_t count, struct gang_division *out, struct err *e);
/* Of a group, whose first `fixed` take part; their order changes: `from` to `to` workers, as few as can; the fastest, or if these cannot hold the model those with
   the most memory. ST_OK with count 0: they cannot. */
enum status gang_choose(const struct job *j, struct worker **among, size_t n, size_t fixed, size_t from, size_t to, struct gang_division *out, struct err *e);
/* The largest load, as the profiles and their links are now. INFINITY: one is not known. */
double gang_bottleneck(const struct gang *g);
/* What was measured between these two, by either; where both did, the slower of the two. 0: neither did. */
int gang_link(const struct worker *a, const struct worker *b, struct sched_link *out);
uint64_t gang_memory(const struct worker *w, const struct profile *p); /* for weights; 0: none */

/* gang_form.c */
/* The best division of the members that are left and of free ones. ST_OK with count 0: there is none. */
enum status gang_redivide(struct sched *s, struct gang *g, struct gang_division *out, struct err *e);
/* One more gang, or a better one, for jobs that want it. 1: something was done and there may be more to do. */
int gang_gather(struct sched *s);
/* Workers that a pipeline takes at least; 0: not known. */
uint32_t gang_least(const struct job *j);
/* Would j have use for one more pipeline, and may it have one? */
int gang_wanted(const struct sched *s, const struct job *j);
/* Carries out a division: a new gang's first cut, or the next one of an old gang. Room: gang_cut_room. */
int gang_cut_room(struct sched *s);
void gang_cut(struct sched *s, struct gang *g, const struct gang_division *d);

/* gang_view.c */
/* Why a running job of pipelines has no lease: 1, something was said. */
int gang_why(const struct sched *s, const struct job *j, char *out, size_t size);
void gang_check(const struct sched *s);

#endif
