/* What a person asks for: a job, as flags of `ebb run`, as a YAML file, as JSON on the wire and in the manifest. One table. */
#ifndef EBB_WIRE_JOBSPEC_H
#define EBB_WIRE_JOBSPEC_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/opt.h"
#include "base/status.h"

/* kind, member, path in YAML and JSON, flag ("" : none), argument, part of the job's identity, help.
   Kinds: TEXT (char *), LIST (texts), NUMBER (uint64_t), SIGNED (int64_t), SIZE (bytes), DURATION (ms), LIMIT (a number or a share such as 1%), STEPS. */
#define JOBSPEC_MAP(X)                                                                                                           \
    X(TEXT, name, "name", "name", "NAME", 0, "what people call the job (default: the output's name)")                            \
    X(TEXT, model, "model", "model", "DIR", 0, "the model: a Hugging Face directory, or an ONNX file")                                            \
    X(STEPS, steps, "steps", "step", "KEY=VALUE,...", 1, "instead of a model: one step of several, e.g. model=DIR,when=label != toxic or 'command=python3 clean.py'; given again for the next one") \
    X(TEXT, precision, "precision", "precision", "WORD", 1, "f32, bf16, int8 or auto (default: auto; 'ebb check' says what that is)") \
    X(TEXT, task, "task", "task", "WORD", 1, "embed, classify, token-classify, fill-mask, outputs or auto (default: auto, what the model was made for)") \
    X(NUMBER, top_k, "top_k", "top-k", "N", 1, "fill-mask: tokens for each mask (default: 5)")                                   \
    X(LIST, inputs, "input.glob", "input", "PATH", 0, "files, directories or globs to read, in this order; - is standard input") \
    X(TEXT, format, "input.format", "format", "WORD", 1, "jsonl, csv, tsv, lines, images or npy (default: by the names)")                     \
    X(TEXT, field, "input.field", "field", "NAME", 1, "the field or column that holds the text (default: text), the picture (image) or the array")                 \
    X(TEXT, pair_field, "input.pair_field", "pair-field", "NAME", 1, "classify: the field or column that holds the second text of a pair") \
    X(TEXT, id, "input.id", "id", "NAME", 1, "the field or column that names a record (default: id, else custom_id)")            \
    X(LIST, keep, "input.keep", "keep", "NAME,...", 1, "fields or columns to pass through to the output")                        \
    X(NUMBER, limit, "input.limit", "limit", "N", 1, "only the first N records")                                                 \
    X(SIZE, max_record_bytes, "input.max_record", "max-record", "SIZE", 1, "longer records are errors (default: 16MiB)")         \
    X(TEXT, on_long, "input.on_long", "on-long", "WORD", 1, "a text of more tokens than the model takes: truncate (default) or error") \
    X(TEXT, output, "output.path", "output", "PATH", 0, "a directory, or one file ending in .jsonl or .npy")                     \
    X(TEXT, output_format, "output.format", "output-format", "WORD", 1, "jsonl or npy (default: by the ending, else jsonl)")     \
    X(TEXT, floats, "output.floats", "floats", "WORD", 1, "in JSONL: array (default) or base64 (little-endian f32)")             \
    X(SIZE, part_bytes, "output.part_bytes", "part-bytes", "SIZE", 1, "size of the parts of a directory (default: 256MiB)")      \
    X(LIMIT, max_errors, "max_errors", "max-errors", "N|SHARE", 0, "hold the job when more records fail, e.g. 1000 or 1% (default: no limit)") \
    X(NUMBER, weight, "weight", "weight", "N", 0, "share among jobs of one priority, 1 to 1000 (default: 100)")                  \
    X(SIGNED, priority, "priority", "priority", "N", 0, "higher goes first (default: 0)")                                        \
    X(NUMBER, workers_min, "workers.min", "min-workers", "N", 0, "not fewer workers while there is work")                        \
    X(NUMBER, workers_max, "workers.max", "max-workers", "N", 0, "not more workers (default: no limit)")                         \
    X(LIMIT, workers_preemptible, "workers.preemptible", "preemptible", "SHARE", 0, "most of its workers that may be such as can be taken away, e.g. 90% (default: all)") \
    X(NUMBER, stages, "pipeline.stages", "stages", "N", 0, "cut the model among N workers that run it as one pipeline; 1: each worker holds all of it (default: 0, as many as it takes)") \
    X(TEXT, deadline, "deadline", "deadline", "TIME", 0, "when it should be done: 07:00, 2030-01-31 07:00 or +3h; more workers are started in time, and it is said when that cannot be") \
    X(DURATION, lease_target, "tuning.lease", "lease", "TIME", 0, "how long one lease should last (default: 30s)")               \
    X(DURATION, commit_every, "tuning.commit", "commit", "TIME", 0, "how often a worker commits (default: 3s)")                  \
    X(DURATION, stall_timeout, "tuning.stall", "stall", "TIME", 0, "a worker without progress for so long hangs (default: 2min)") \
    X(NUMBER, micro_batch, "tuning.micro_batch", "micro-batch", "N", 0, "most records in one micro-batch (default: 64)")         \
    X(NUMBER, micro_batch_tokens, "tuning.micro_batch_tokens", "micro-batch-tokens", "N", 0, "most tokens in one micro-batch (default: 1024)")

/* A step: a model or a command. kind, member, key in YAML, JSON and on the command line, part of the job's identity, 1 of models alone, 2 of commands alone, help */
#define JOBSPEC_STEP_MAP(X)                                                                                                      \
    X(TEXT, model, "model", 0, 1, "the model: a Hugging Face directory, or an ONNX file")                                        \
    X(TEXT, command, "command", 1, 2, "a command for /bin/sh: a JSON object a line in, an answer a line out")                    \
    X(TEXT, dir, "dir", 1, 2, "where the command runs (default: the job file's folder, or where the job was typed)")             \
    X(TEXT, precision, "precision", 1, 1, "f32, bf16, int8 or auto (default: the job's)")                                        \
    X(TEXT, task, "task", 1, 1, "what the model is to do (default: auto)")                                                       \
    X(NUMBER, top_k, "top_k", 1, 1, "fill-mask: tokens for each mask (default: the job's)")                                      \
    X(TEXT, field, "field", 1, 1, "the field that it reads (default: the job's)")                                                \
    X(TEXT, when, "when", 1, 0, "only records for which this holds behind the step go on: FIELD OP VALUE")                       \
    X(NUMBER, batch, "batch", 0, 1, "most records in one micro-batch (default: the job's)")                                      \
    X(NUMBER, concurrency, "concurrency", 0, 2, "most children (default: the processors)")                                       \
    X(DURATION, timeout, "timeout", 0, 2, "for one record (default: 30s)")

#define JOBSPEC_MOST_STEPS 16

struct texts {
    char **items;
    size_t count;
};

struct limit {
    uint64_t count;  /* UINT64_MAX: none */
    uint32_t ppm;    /* UINT32_MAX: none */
};

struct step_spec { /* TEXT: NULL, else 0: left open */
#define STEP_TYPE_TEXT char *
#define STEP_TYPE_NUMBER uint64_t
#define STEP_TYPE_DURATION uint64_t
#define X(kind, member, key, identity, only, help) STEP_TYPE_##kind member;
    JOBSPEC_STEP_MAP(X)
#undef X
};

struct step_specs {
    struct step_spec *items;
    size_t count;
};

struct jobspec {
#define JOBSPEC_TYPE_TEXT char *
#define JOBSPEC_TYPE_LIST struct texts
#define JOBSPEC_TYPE_NUMBER uint64_t
#define JOBSPEC_TYPE_SIGNED int64_t
#define JOBSPEC_TYPE_SIZE uint64_t
#define JOBSPEC_TYPE_DURATION uint64_t
#define JOBSPEC_TYPE_LIMIT struct limit
#define JOBSPEC_TYPE_STEPS struct step_specs
#define X(kind, member, path, flag, arg, identity, help) JOBSPEC_TYPE_##kind member;
    JOBSPEC_MAP(X)
#undef X
};

/* Defaults are filled in: no TEXT with a default is NULL after this (name, field, id and format may be NULL: "find out"). */
MUST_USE enum status jobspec_init(struct jobspec *s, struct err *e);
void jobspec_release(struct jobspec *s);
/* The options of the table, pointing into `flags`; then jobspec_from_flags. Aliases in YAML: input may be a text or a list (= input.glob),
   input.path and input.paths; output a text, output.dir and output.file. */
struct jobspec_flags; /* holds what opt_parse filled in */
MUST_USE enum status jobspec_flags_new(struct jobspec_flags **out, struct err *e);
void jobspec_flags_free(struct jobspec_flags *f);
const struct opt *jobspec_flags_opts(struct jobspec_flags *f, size_t *count);
/* Only flags that were given change s. Relative paths are made absolute. */
MUST_USE enum status jobspec_from_flags(struct jobspec *s, struct jobspec_flags *f, struct err *e);
/* YAML text; name and line in every message: "job.yaml:5: unknown key 'worker' (did you mean 'workers')". Relative paths are those of the
   file's folder. */
MUST_USE enum status jobspec_from_yaml(struct jobspec *s, const char *file, struct err *e);
/* JSON of jobspec_to_json; unknown members are refused. */
MUST_USE enum status jobspec_from_json(struct jobspec *s, const char *json, size_t len, struct err *e);
json_t *jobspec_to_json(const struct jobspec *s); /* every field, nested as in YAML; NULL when memory is out */
/* Words and ranges: model and inputs and output are there, precision and the others are known words, weight in range. */
MUST_USE enum status jobspec_check(const struct jobspec *s, struct err *e);
/* What goes with a job of several steps once format and output are known. kinds: what the input holds that is no record of fields ("images"), NULL: nothing. A step whose task
   is not known yet is not judged. */
MUST_USE enum status jobspec_check_steps(const struct jobspec *s, const char *kinds, int npy, struct err *e);
/* "clean.py", "toxic-classifier": what people see of a step. */
const char *jobspec_step_name(const struct step_spec *s, char *out, size_t size);
/* The model's name for people; of a job of steps "clean.py > toxic-classifier > all-MiniLM-L6-v2". */
const char *jobspec_model_name(const struct jobspec *s, char *out, size_t size);
/* What goes with the job's task, once that is known: `npy` says that the output is one. ST_OK while it is "auto". */
MUST_USE enum status jobspec_check_task(const struct jobspec *s, int npy, struct err *e);

/* The identity of a job: {"model":DIGEST,"input":DIGEST,"input.format":...}: every field of the table that counts, under its path, plus the
   digests of model and dataset. NULL when memory is out. */
json_t *jobspec_fingerprint(const struct jobspec *s, const char *format_resolved, const char *model_hex, const char *dataset_hex);
/* In words what differs ("input.field was 'text' and is 'title'; the model has changed"); 0 when they are equal. */
int jobspec_fingerprint_differs(const json_t *then, const json_t *now, char *words, size_t size);
/* Likewise of what is no part of the identity, and which a job that is submitted again keeps as it was: deadline, weight, limits, tuning. Without name, paths and the
   number of stages; max_errors only when it is asked for. -1: memory is out. */
int jobspec_rest_differs(const struct jobspec *then, const struct jobspec *now, int max_errors, char *words, size_t size);

#endif
