/* What people paste and edit: an invitation, a line of authorized_keys, a key file. What is read can be written and read again, and is the same. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "daemon/keyring.h"
#include "wire/invite.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void hear(void *arg, size_t line, const char *why)
{
    (void)arg;
    if (!line || !why)
        abort();
}

static void invitation(const char *text)
{
    struct invite v, again;
    char out[INVITE_TEXT];
    if (invite_read(text, &v, NULL) != ST_OK)
        return;
    invite_write(&v, out);
    if (invite_read(out, &again, NULL) != ST_OK || memcmp(&v, &again, sizeof v) != 0)
        abort();
}

static void ring(const char *text, size_t size)
{
    struct keyring r = {0}, again = {0};
    struct buf out = {0};
    if (keyring_read(&r, text, size, hear, NULL, NULL) != ST_OK)
        abort();
    for (size_t i = 0; i < r.count; i++)
        if (keyring_add(&out, &r.keys[i]))
            abort();
    if (keyring_read(&again, out.data ? out.data : "", out.len, hear, NULL, NULL) != ST_OK || again.count != r.count)
        abort();
    for (size_t i = 0; i < r.count; i++)
        if (strcmp(r.keys[i].key, again.keys[i].key) != 0 || r.keys[i].role != again.keys[i].role || r.keys[i].until_ms != again.keys[i].until_ms ||
            strcmp(r.keys[i].name, again.keys[i].name) != 0)
            abort();
    buf_clear(&out);
    if (keyring_without(&out, text, size, r.count ? r.keys[0].key : "", 0) || out.len > size)
        abort();
    keyring_release(&r);
    keyring_release(&again);
    buf_release(&out);
}

static void file(const char *text, size_t size)
{
    static int fd = -1;
    char path[40];
    struct keys_file k;
    struct err e;
    if (fd < 0 && (fd = memfd_create("key", 0)) < 0)
        abort();
    if (ftruncate(fd, 0) || fchmod(fd, 0600) || pwrite(fd, text, size, 0) != (ssize_t)size)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (keys_read_file(path, &k, &e) != ST_OK && (*k.keys.secret_key || !*e.text))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    char *text = mem_strndup((const char *)data + 1, size - 1);
    if (!text)
        return 0;
    if (*data % 3 == 0)
        invitation(text);
    else if (*data % 3 == 1)
        ring((const char *)data + 1, size - 1);
    else
        file((const char *)data + 1, size - 1);
    mem_free(text);
    return 0;
}
