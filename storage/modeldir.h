/* The identity of a model: a digest over every file that its loader reads. */
#ifndef EBB_STORAGE_MODELDIR_H
#define EBB_STORAGE_MODELDIR_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct json_t; /* jansson */

struct model_digest {
    uint8_t bytes[16];
    char hex[33];
    uint64_t size_bytes; /* of all files together */
    uint32_t files;
};

/* dir is a Hugging Face directory. XXH3-128 over (relative name, size, content) of, in name order and where there: config.json,
   *.safetensors, *.safetensors.index.json, tokenizer.json, vocab.txt, tokenizer_config.json, special_tokens_map.json,
   modules.json, sentence_bert_config.json, preprocessor_config.json, and config.json and model.safetensors of each folder that modules.json names. ST_USER when dir is no such
   directory (no config.json), naming what is missing. Or dir names an ONNX model (onnxdir.h): over that file, the files with its external data
   and the JSON files beside it. */
MUST_USE enum status modeldir_digest(const char *dir, struct model_digest *out, struct err *e);

/* The same without reading files again that this process has read: they have the names, sizes, inodes and times that they had then, and were two seconds old, so
   that no later change can have left them these times. For whoever opens a model again and again, a part of it each time. */
MUST_USE enum status modeldir_digest_known(const char *dir, struct model_digest *out, struct err *e);

/* The same files, for whoever passes the model on: laid out under the same names elsewhere they are the same model, opened at `entry`. */
struct model_files {
    char *folder, *entry; /* entry: relative to the folder, "": the folder itself */
    struct model_file {
        char *name;       /* relative to the folder */
        uint64_t size_bytes;
    } *items;
    size_t count;
};
MUST_USE enum status modeldir_files(const char *path, struct model_files *out, struct err *e);
void modeldir_files_release(struct model_files *m);

/* Reads the JSON file dir/name; json_decref(*out) frees it. ST_NOT_FOUND when there is no such file, ST_USER when it is not
   JSON (naming line and column) or larger than 64 MiB. On failure *out is untouched. */
MUST_USE enum status modeldir_json(const char *dir, const char *name, struct json_t **out, struct err *e);

/* The folder of module `index` of a parsed modules.json. "" is the model's own. ST_USER when modules.json is not a list of objects
   with a path, or the path leads out of the directory. */
MUST_USE enum status modeldir_module_path(const char *dir, struct json_t *modules, uint32_t index, const char **path,
                                          struct err *e);

#endif
