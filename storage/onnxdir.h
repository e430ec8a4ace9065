/* Which ONNX file a model's path means, and which files hold its data: what modeldir_digest and the loader have to agree on. */
#ifndef EBB_STORAGE_ONNXDIR_H
#define EBB_STORAGE_ONNXDIR_H

#include "base/status.h"

/* path is a file *.onnx; or a directory without safetensors that holds model.onnx, or one *.onnx, or onnx/model.onnx. *folder is where the model's other
   files lie (the directory, or the file's folder), *file is relative to it; both are freed with mem_free. ST_NOT_FOUND: path is no such thing;
   ST_USER: it holds several. */
MUST_USE enum status onnxdir_find(const char *path, char **folder, char **file, struct err *e);
/* Calls back with each file that holds external data of folder/file, relative to folder, each once, as the ONNX file names them (a place outside of the
   folder is left out: the loader refuses it). Reads only the messages around, not the tensors. ST_USER: no ONNX file. */
MUST_USE enum status onnxdir_external(const char *folder, const char *file, enum status (*name)(void *arg, const char *name, struct err *e), void *arg,
                                      struct err *e);

#endif
