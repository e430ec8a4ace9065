#include "wire/blackbox.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/path.h"

#define MAGIC 0x31786f6262626521u /* "!ebbbox1" */
#define MOST_SLOTS 4096u

struct slot {
    _Atomic uint32_t count; /* written last on the way in, first on the way out */
    uint32_t whole;         /* how many there were, before the cut to BLACKBOX_RECORDS */
    struct blackbox_record records[BLACKBOX_RECORDS];
};

struct image {
    uint64_t magic;
    uint32_t slots;
    _Atomic uint32_t cause;
    struct slot slot[];
};

struct blackbox {
    struct image *image;
    size_t bytes;
};

enum status blackbox_create(const char *path, uint32_t slots, struct blackbox **out, struct err *e)
{
    BUG_IF(slots == 0 || slots > MOST_SLOTS, "a black box of %u slots", slots);
    struct blackbox *b = mem_zalloc(sizeof *b);
    if (!b)
        return err_nomem(e, "the black box");
    b->bytes = sizeof(struct image) + slots * sizeof(struct slot);
    unlink(path);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)b->bytes) ||
        (b->image = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED) {
        enum status st = err_errno(e, ST_ENV, errno, "cannot make the black box '%s'", path);
        if (fd >= 0)
            close(fd);
        mem_free(b);
        return st;
    }
    close(fd);
    b->image->slots = slots;
    b->image->magic = MAGIC;
    *out = b;
    return ST_OK;
}

void blackbox_enter(struct blackbox *b, uint32_t slot, const struct blackbox_record *records, uint32_t count)
{
    BUG_IF(slot >= b->image->slots, "black box slot %u of %u", slot, b->image->slots);
    struct slot *s = &b->image->slot[slot];
    uint32_t n = count < BLACKBOX_RECORDS ? count : BLACKBOX_RECORDS;
    atomic_store_explicit(&s->count, 0, memory_order_release);
    memcpy(s->records, records, n * sizeof *records);
    s->whole = count;
    atomic_store_explicit(&s->count, n, memory_order_release);
}

void blackbox_leave(struct blackbox *b, uint32_t slot)
{
    atomic_store_explicit(&b->image->slot[slot].count, 0, memory_order_release);
}

void blackbox_cause(struct blackbox *b, enum blackbox_cause cause)
{
    atomic_store(&b->image->cause, (uint32_t)cause);
}

void blackbox_close(struct blackbox *b, const char *unlink_path)
{
    if (!b)
        return;
    munmap(b->image, b->bytes);
    if (unlink_path)
        unlink(unlink_path);
    mem_free(b);
}

enum status blackbox_read(const char *path, struct blackbox_record **out, size_t *count, int *incomplete, enum blackbox_cause *cause,
                          struct err *e)
{
    *out = NULL;
    *count = 0;
    *incomplete = 0;
    *cause = BLACKBOX_UNKNOWN;
    struct buf bytes = {0};
    enum status st = path_read(path, sizeof(struct image) + MOST_SLOTS * sizeof(struct slot), &bytes, e);
    if (st == ST_NOT_FOUND)
        st = ST_OK;
    if (st != ST_OK || bytes.len < sizeof(struct image))
        goto out;
    const struct image *image = (const void *)bytes.data;
    uint32_t slots = image->slots, said = image->cause;
    if (image->magic != MAGIC || slots > MOST_SLOTS || bytes.len < sizeof *image + slots * sizeof(struct slot))
        goto out;
    if (said <= BLACKBOX_CRASHED)
        *cause = (enum blackbox_cause)said;
    size_t n = 0;
    for (uint32_t i = 0; i < slots; i++)
        n += image->slot[i].count <= BLACKBOX_RECORDS ? image->slot[i].count : 0;
    if (n && !(*out = mem_array(n, sizeof **out))) {
        st = err_nomem(e, "the black box's records");
        goto out;
    }
    for (uint32_t i = 0; i < slots; i++) {
        const struct slot *s = &image->slot[i];
        uint32_t in = s->count;
        if (in == 0 || in > BLACKBOX_RECORDS)
            continue;
        memcpy(*out + *count, s->records, in * sizeof *s->records);
        *count += in;
        *incomplete |= s->whole > in;
    }
out:
    buf_release(&bytes);
    return st;
}
