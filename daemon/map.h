/* u64 -> pointer. Open addressing; numbers may be anything, 0 too. A zeroed struct is an empty map. */
#ifndef EBB_DAEMON_MAP_H
#define EBB_DAEMON_MAP_H

#include <stddef.h>
#include <stdint.h>

struct map_slot {
    uint64_t key;
    void *value; /* NULL: free */
};
struct map {
    struct map_slot *slots;
    size_t cap, count;
};

void *map_find(const struct map *m, uint64_t key);
int map_add(struct map *m, uint64_t key, void *value) __attribute__((warn_unused_result)); /* replaces; 0 or -1 when memory is out */
void *map_remove(struct map *m, uint64_t key);                                             /* what was there, or NULL */
/* for (size_t i = 0; (v = map_next(&m, &i));): nothing may be added or removed meanwhile */
void *map_next(const struct map *m, size_t *i);
void map_release(struct map *m);

#endif
