/* The local provider: workers as child processes of this daemon, and those that an earlier daemon left behind. */
#ifndef EBB_DAEMON_LOCAL_H
#define EBB_DAEMON_LOCAL_H

#include "daemon/provider.h"
#include "wire/blackbox.h"

struct local;

/* The provider itself is provider_local of daemon/provider.h. */
/* Path of the worker program; "" when it is not found. */
const char *local_program(const struct local *l);

/* How a process ended, in the words of the core. */
struct local_death {
    int exit_status, signal;    /* as waitpid has it; signal 0: it exited */
    int unknown;                /* not our child: neither is known */
    int bye;                    /* it said goodbye */
    int killed_hung;            /* by us, as hung */
    int oom_risen;              /* the kernel killed something for memory meanwhile */
    enum blackbox_cause cause;  /* as the worker noted it */
};
enum worker_end local_cause(const struct local_death *death);

#endif
