/* What ebb-worker tells systemd, when it is a service itself. As a child of one (of ebbd, of ebb-agent) it inherits the socket and keeps silent. */
#ifndef EBB_WORKERS_SERVICE_H
#define EBB_WORKERS_SERVICE_H

#include <stddef.h>
#include <stdint.h>

/* Each turn of the link: ready at the first, then how things stand, and the watchdog, once a second or when something has changed. */
void service_turn(int connected, int draining, size_t leases, uint64_t now_ms);

#endif
