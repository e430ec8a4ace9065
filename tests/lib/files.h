/* Files for tests. */
#ifndef EBB_TESTS_FILES_H
#define EBB_TESTS_FILES_H

#include <stddef.h>

/* Makes or replaces a file; the test fails when that fails. Not synced (path_write of base/path.h is), for tests write many. */
void files_put(const char *path, const void *data, size_t len);

#endif
