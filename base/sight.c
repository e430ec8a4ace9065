#include "base/sight.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fault.h"

#define MOST_GROUPS 256

struct sum {
    uint64_t a, b;
};

/* Two FNV-1a sums with different seeds: nobody has a reason to forge this, it only has to differ where the facts differ. */
static void add(struct sum *s, const void *data, size_t len)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < len; i++) {
        s->a = (s->a ^ p[i]) * UINT64_C(0x100000001b3);
        s->b = (s->b ^ (uint8_t)(p[i] + 0x5f)) * UINT64_C(0x100000001b3);
        s->b ^= s->b >> 29;
    }
}

static int add_file(struct sum *s, const char *path)
{
    struct stat st;
    if (stat(path, &st))
        return 0;
    add(s, &st.st_dev, sizeof st.st_dev);
    add(s, &st.st_ino, sizeof st.st_ino);
    return 1;
}

int sight_of_this(uint8_t out[SIGHT_BYTES])
{
    struct sum s = {UINT64_C(0xcbf29ce484222325), UINT64_C(0x9e3779b97f4a7c15)};
    char boot[64];
    gid_t groups[MOST_GROUPS];
    memset(out, 0, SIGHT_BYTES);
    if (fault_point("sight"))
        return 0;
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, boot, sizeof boot);
    if (fd >= 0)
        close(fd);
    int count = getgroups(MOST_GROUPS, groups);
    if (n <= 0 || count < 0 || !add_file(&s, "/proc/self/ns/mnt") || !add_file(&s, "/"))
        return 0;
    /* root without these sees as others do */
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3];
    memset(caps, 0, sizeof caps);
    if (syscall(SYS_capget, &head, caps))
        return 0;
    uint32_t overrides = caps[0].effective & (1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH);
    add(&s, &overrides, sizeof overrides);
    add(&s, boot, (size_t)n);
    uid_t uid = geteuid();
    gid_t gid = getegid();
    add(&s, &uid, sizeof uid);
    add(&s, &gid, sizeof gid);
    add(&s, groups, (size_t)count * sizeof *groups);
    memcpy(out, &s.a, sizeof s.a);
    memcpy(out + sizeof s.a, &s.b, sizeof s.b);
    return 1;
}
