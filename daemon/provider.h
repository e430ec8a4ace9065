/* Providers make workers exist. The core says how many of which provider would be useful; each keeps as many alive, and tells what became of those
   that went. A new one is a table below its own file, and a line in provider.c. */
#ifndef EBB_DAEMON_PROVIDER_H
#define EBB_DAEMON_PROVIDER_H

#include "base/provider_id.h"
#include "daemon/link.h"
#include "daemon/loop.h"

typedef void provider_visit(void *arg, uint64_t number, const char *name, uint64_t pid, uint64_t since_ms);

/* Each function runs on the loop and must not block. Those marked * may be NULL. */
struct provider {
    enum provider_id id;
    enum status (*open)(struct daemon *d, struct err *e);  /* * before the store is read; nothing may be told to the core yet */
    void (*recovered)(struct daemon *d);                   /* * core and sockets are there */
    void (*close)(struct daemon *d);                       /* * also when open failed */
    void (*terms)(const struct daemon *d, struct provider_terms *out); /* as they are now; asked once a second and by provider_changed. limit 0: is not in use */
    /* Keep alive + starting at this figure until another one comes (it comes again after the core was rebuilt). What never arrived is replaced by
       that alone. Fewer: start no more, call back what has not arrived; those that joined are told to leave by the core. */
    void (*want)(struct daemon *d, uint32_t workers);
    int (*owns)(const struct daemon *d, uint64_t worker);  /* * is this one of those that it started? */
    void (*kill)(struct daemon *d, uint64_t worker, const char *why); /* * it owns it, and it hangs: link_ended(HUNG) must follow */
    void (*leaving)(struct daemon *d, uint64_t worker);    /* * it owns it, and it is told to drain: it does not count any more */
    void (*hello)(struct daemon *d, const struct worker *w); /* * one that it owns has arrived */
    void (*bye)(struct daemon *d, uint64_t worker);        /* * one that it owns has said goodbye */
    void (*second)(struct daemon *d);                      /* * once a second, while there is a core */
    size_t (*starting)(const struct daemon *d, provider_visit *visit, void *arg); /* * asked for and not arrived yet; visit may be NULL */
    const char *(*trouble)(const struct daemon *d);        /* * why it can give no workers; "" when it can */
    int (*queues)(const struct daemon *d);                 /* * that trouble is only that others are served first: nothing is wrong */
    void (*stay)(struct daemon *d, int stay);              /* * 1: `ebb drain --stay`, start no new ones; 0: as usual */
    void (*stop)(struct daemon *d, int now);               /* * the daemon ends: drain those that end with it; now: kill them */
    size_t (*left)(const struct daemon *d);                /* * how many of those are still there */
};

/* Over all of them. */
MUST_USE enum status provider_open(struct daemon *d, struct err *e);
void provider_close(struct daemon *d);
/* A new core: it is told what there is. */
void provider_tell(struct daemon *d);
/* Sockets are there, too. */
void provider_recovered(struct daemon *d);
/* Its terms may have changed: the core is told when they did. Cheap. */
void provider_changed(struct daemon *d, enum provider_id id);
void provider_reload(struct daemon *d); /* the configuration has changed */
void provider_second(struct daemon *d);
void provider_want(struct daemon *d, uint32_t id, uint32_t workers);
uint32_t provider_of(const struct daemon *d, uint64_t worker); /* who owns it; PROVIDER_NONE */
void provider_kill(struct daemon *d, uint64_t worker, const char *why);
void provider_leaving(struct daemon *d, uint64_t worker);
void provider_hello(struct daemon *d, const struct worker *w);
void provider_bye(struct daemon *d, uint64_t worker);
size_t provider_starting(const struct daemon *d, provider_visit *visit, void *arg);
size_t provider_starting_of(const struct daemon *d, enum provider_id id);
const char *provider_trouble(const struct daemon *d); /* of the first that has some, when none can give workers */
/* For `ebb doctor`: a line on each that is in use. */
void provider_examine(const struct daemon *d, void (*say)(void *arg, const char *name, int ok, const char *text), void *arg);
void provider_stay(struct daemon *d, int stay);
void provider_stop(struct daemon *d, int now);
size_t provider_left(const struct daemon *d);

extern const struct provider provider_local, provider_slurm, provider_kubernetes;

#endif
