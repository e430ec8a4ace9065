/* Jobs of several steps (docs/steps.md). Between `prepare`, which makes a JSON object of each record, and the rows, such a record goes through a chain of steps, each a model or a
   command. A command may answer with several records in the place of one; so what moves here are *units*, of which a record (its *root*) has one at first. Units of a
   root stand in a list in their order; when none of them is open any more, the root's rows, or its error, go where those of any other record go.

   Each step has a queue. The lanes here are those of all model steps: they take from the last step first that has a full micro-batch, so that nothing piles up, and
   nothing goes on to a step that has enough. Commands have their own thread and children (workers/command/command.h).

   Nothing of this is there before the first job of several steps comes, and a job of one model never touches it. */
#ifndef EBB_WORKERS_STEPS_H
#define EBB_WORKERS_STEPS_H

#include <stdint.h>

#include "base/status.h"

struct buf;
struct chain;
struct held;
struct item;
struct job;
struct loaded;
struct model_opts;
struct pipeline;
struct record;
struct remote;
struct steps;

/* Slots of the black box that they use. */
uint32_t steps_slots(uint32_t lanes);

/* The models of the job's steps, as one. */
MUST_USE enum status steps_open_models(const struct job *j, const struct model_opts *machine, struct remote *remote, struct loaded **out, struct err *e);

/* The reader, when the lease's models are loaded: 1 when its records can go on, h->chain is set then where the job has steps; 0: the job cannot go on here, which was said.
   A job without steps ends the chain that was kept for the last one. */
int steps_attach(struct pipeline *p, struct held *h);
/* The job is over, or unknown here from now on. */
void steps_forget(struct pipeline *p, uint64_t job);
void chain_unref(struct chain *c);
/* Something that the figures of a lease do not show has moved since this number was another one. */
uint64_t chain_pulse(struct chain *c);

/* prepare: the item's record, which is sound, begins. Takes over the item. */
void steps_enter(struct pipeline *p, struct item *i, const struct record *r);

/* pipeline_free, when nothing comes any more: joins the threads, ends the commands. */
void steps_free(struct pipeline *p);

#endif
