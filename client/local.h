/* What can be found out about a job on this machine, before anything is started: `ebb run` asks for the cheap part, `ebb check` for all of it. */
#ifndef EBB_CLIENT_LOCAL_H
#define EBB_CLIENT_LOCAL_H

#include "base/status.h"
#include "storage/assemble.h"
#include "storage/dataset.h"
#include "storage/record.h"
#include "wire/jobspec.h"
#include "workers/engine/model.h"

struct local {
    struct output_spec out;
    struct model_info model;   /* of a job of several steps: of the last one, empty when that is a command */
    struct model_info *steps;  /* of each step; NULL: a job of one model */
    struct dataset data;
    char *work_dir;
    uint64_t bytes;      /* at rest, all sources */
    int compressed;      /* some are */
};

/* *word becomes a copy of `as`. */
MUST_USE enum status local_settle(char **word, const char *as, struct err *e);
/* The model's files are what a worker can load, as far as their headers tell. What the job leaves open (task and precision "auto") is decided
   here, once, and written into s. */
MUST_USE enum status local_model(struct jobspec *s, struct model_info *info, struct err *e);
/* The same for each step of a job: infos has room for all; empty for commands. elsewhere: what is not on this machine may be on those of the pool. */
MUST_USE enum status local_steps(struct jobspec *s, struct model_info *infos, int elsewhere, struct err *e);
/* "toxic-classifier, classifies, 2 labels (softmax), int8; goes on when label != toxic" */
char *local_step_words(const struct jobspec *s, const struct model_info *infos, size_t i, char *out, size_t size);
/* "embeds 384 floats", "3 labels (softmax)" */
const char *local_gives(const struct model_info *m, char *out, size_t size);
/* The model is there, the inputs match, the output can be made. ST_USER (ST_ENV for permissions) says which does not hold. Settles s as
   local_model does. */
MUST_USE enum status local_open(struct local *l, struct jobspec *s, struct err *e);
void local_release(struct local *l);

struct sample {
    uint64_t records, bad;
    uint64_t bytes;   /* at rest, that these records take */
    int whole;        /* the dataset ended within the sample: the figures are exact */
    uint64_t good, with_id; /* of the first SAMPLE_LOOKED */
    uint64_t kept;    /* bit i: some of these has the i-th field that is to be kept */
};
struct sample_record {
    const struct source *source;
    const struct raw *raw;
    const struct record *record;
    const struct columns *columns; /* CSV and TSV */
};
/* Reads from the beginning until `bytes` of the input or `ms` have gone by, at least `least` records. visit may be NULL. Refuses (ST_USER) a
   field that no record has, with the fields that there are. */
MUST_USE enum status local_sample(const struct local *l, const struct jobspec *s, uint64_t least, uint64_t bytes, uint64_t ms,
                                  void (*visit)(void *arg, const struct sample_record *r), void *arg, struct sample *out, struct err *e);
#define SAMPLE_LOOKED 200
/* The i-th name among --id and --keep that no record of the sample has, in words; NULL: there are no more. A slip would cost a night: rows without ids. */
const char *local_absent(const struct jobspec *s, const struct sample *sample, size_t i, char *out, size_t size);
/* Records of the whole dataset, at a guess unless `whole`. */
double local_guess(const struct local *l, const struct jobspec *s, const struct sample *sample);

/* Standard input into <work>/stdin.<format>, once: *s names that file then. What comes in a second time must be the same, or nothing. */
MUST_USE enum status local_spool(struct jobspec *s, struct err *e);

char *local_count_words(const struct local *l, double records, int whole, char *out, size_t size); /* "about 5.1 M records (...)" */

#endif
