#include "tests/lib/files.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/path.h"

void files_put(const char *path, const void *data, size_t len)
{
    FILE *f = fopen(path, "wb");
    if (!f)
        fail_msg("'%s' cannot be made", path);
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

int files_begin(char *top, char *dir, char *packs)
{
    if (!mkdtemp(top))
        return -1;
    snprintf(dir, FILES_ROOM, "%s/model", top);
    snprintf(packs, FILES_ROOM, "%s/packs", top);
    return 0;
}

int files_end(const char *top)
{
    struct err e;
    return path_remove_tree(top, &e) != ST_OK;
}
