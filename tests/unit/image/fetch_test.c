/* Pictures that records name or hold. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/path.h"
#include "tests/lib/files.h"
#include "workers/image/fetch.h"

static char root[256], folder[300];

static int make(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    snprintf(root, sizeof root, "%s/ebb-fetch-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(root))
        return -1;
    snprintf(folder, sizeof folder, "%s/data", root);
    char path[512];
    mkdir(folder, 0755);
    snprintf(path, sizeof path, "%s/sub", folder);
    mkdir(path, 0755);
    snprintf(path, sizeof path, "%s/sub/a.png", folder);
    files_put(path, "picture", 7);
    snprintf(path, sizeof path, "%s/secret", root);
    files_put(path, "secret", 6);
    snprintf(path, sizeof path, "%s/out", folder);
    if (symlink("../secret", path))
        return -1;
    snprintf(path, sizeof path, "%s/up", folder);
    if (symlink("..", path))
        return -1;
    snprintf(path, sizeof path, "%s/fifo", folder);
    return mkfifo(path, 0600);
}

static int tidy(void **state)
{
    (void)state;
    struct err e;
    return path_remove_tree(root, &e) != ST_OK;
}

static void taken(const char *text, const char *want, size_t want_len)
{
    struct buf out = {0};
    struct err e = {0};
    if (image_fetch(folder, NULL, text, strlen(text), 100, &out, &e) != ST_OK)
        fail_msg("%s: %s", text, e.text);
    assert_int_equal(out.len, want_len);
    assert_memory_equal(out.data, want, want_len);
    buf_release(&out);
}

static void refused(const char *text, const char *says)
{
    struct buf out = {0};
    struct err e = {0};
    if (image_fetch(folder, NULL, text, strlen(text), 100, &out, &e) != ST_USER || !strstr(e.text, says))
        fail_msg("%s: %s", text, e.text);
    buf_release(&out);
}

static void paths(void **state)
{
    (void)state;
    char absolute[512];
    taken("sub/a.png", "picture", 7);
    taken("./sub//a.png", "picture", 7);
    taken("sub/../sub/a.png", "picture", 7); /* does not lead out */
    snprintf(absolute, sizeof absolute, "%s/sub/a.png", folder);
    taken(absolute, "picture", 7);
    refused("sub/b.png", "cannot open 'sub/b.png': No such file");
    refused("../secret", "'../secret' leads out of '");
    refused("sub/../../secret", "leads out of");
    refused("out", "'out' leads out of");
    refused("up/secret", "leads out of");
    refused("/etc/passwd", "leads out of");
    snprintf(absolute, sizeof absolute, "%s/../secret", folder);
    refused(absolute, "leads out of");
    snprintf(absolute, sizeof absolute, "%sx/a", folder);
    refused(absolute, "leads out of");
    refused("fifo", "'fifo' is no regular file");
    refused("sub", "'sub' is no regular file");
    refused("", "an empty text");
    char large[5001];
    memset(large, 'a', 5000);
    large[5000] = '\0';
    refused(large, "a text of 5000 bytes that is neither a path nor an image in base64");
    snprintf(absolute, sizeof absolute, "%s/large", folder);
    files_put(absolute, large, 101);
    refused("large", "'large' has 101 bytes, 100 are allowed");
}

static void base64(void **state)
{
    (void)state;
    taken("/9j/4AAQ", "\xff\xd8\xff\xe0\0\x10", 6);
    taken("iVBORw0KGgo=", "\x89PNG\r\n\x1a\n", 8);
    taken("iVBORw0KGgo", "\x89PNG\r\n\x1a\n", 8);
    taken("UklGRgAA\nAAA=", "RIFF\0\0\0\0", 8);
    taken("data:image/png;base64,aGVsbG8=", "hello", 5);
    taken("data:;base64,", "", 0);
    refused("data:image/png,hello", "a data URI that is not base64");
    refused("data:image/png;base64,a b", "holds something that is not base64");
    refused("data:image/png;base64,aGVsbG8a=a", "holds something that is not base64");
    refused("data:image/png;base64,a", "holds something that is not base64"); /* six bits are no byte */
    refused("/9j/x.jpg", "leads out of"); /* a path after all */
    char large[300] = "/9j/";
    memset(large + 4, 'A', 280);
    refused(large, "the image has about 213 bytes, 100 are allowed");
}

static void memory_runs_out(void **state)
{
    (void)state;
    static const char *const texts[] = {"sub/a.png", "/9j/4AAQ"};
    for (int i = 0; i < 2; i++) {
        enum status st = ST_NOMEM;
        uint64_t n = 1;
        for (; st != ST_OK; n++) {
            struct buf out = {0};
            struct err e;
            mem_fail_nth(n);
            st = image_fetch(folder, NULL, texts[i], strlen(texts[i]), 100, &out, &e);
            mem_fail_nth(0);
            assert_true(st == ST_OK || st == ST_NOMEM);
            buf_release(&out);
        }
        assert_true(n > 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(paths), cmocka_unit_test(base64), cmocka_unit_test(memory_runs_out)};
    return cmocka_run_group_tests(tests, make, tidy);
}
