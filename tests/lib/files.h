/* Files for tests. */
#ifndef EBB_TESTS_FILES_H
#define EBB_TESTS_FILES_H

#include <stddef.h>

/* Makes or replaces a file; the test fails when that fails. Not synced (path_write of base/path.h is), for tests write many. */
void files_put(const char *path, const void *data, size_t len);

/* A folder of a test program's own: `top` ends in XXXXXX, which is filled in. `dir` and `packs`, of FILES_ROOM bytes, become the places in it of a model and of its
   packed weights; neither is made. Return what a group's set-up and teardown return. */
enum { FILES_ROOM = 64 };
int files_begin(char *top, char *dir, char *packs);
int files_end(const char *top);

#endif
