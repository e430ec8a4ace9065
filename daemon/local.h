/* The local provider: workers as child processes of this daemon, and those that an earlier daemon left behind. */
#ifndef EBB_DAEMON_LOCAL_H
#define EBB_DAEMON_LOCAL_H

#include "daemon/provider.h"

struct local;

/* The provider itself is provider_local of daemon/provider.h. */
/* Path of the worker program; "" when it is not found. */
const char *local_program(const struct local *l);

#endif
