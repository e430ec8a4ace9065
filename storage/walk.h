/* The files that an input names: a file, a folder (all files below it), or a pattern. Patterns: * ? [...] within a name, ** for any
   number of folders; what a pattern's last name matches counts as if it had been given itself, so a folder brings all files below
   it. Names that begin with '.' are left out unless spelt so, and so are, below a folder, the working folders of outputs (*.ebb). Links to
   files are followed, links to folders only where they are named or matched by * ? [...], so that no loop is walked. */
#ifndef EBB_STORAGE_WALK_H
#define EBB_STORAGE_WALK_H

#include "storage/dataset.h"

struct walk {
    struct source *sources; /* path, size_bytes and mtime_ns are filled in */
    size_t count, cap;
};

/* Appends what `input` (absolute) names, sorted by path, each file once. ST_USER: nothing, or something that cannot be read. */
MUST_USE enum status walk_add(struct walk *w, const char *input, struct err *e);
void walk_release(struct walk *w);

#endif
