#include "workers/service.h"

#include <stdlib.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#define EVERY_MS 1000

/* systemd says whom it started itself. */
static int is_service(void)
{
    const char *pid = getenv("SYSTEMD_EXEC_PID");
    return getenv("NOTIFY_SOCKET") && pid && strtol(pid, NULL, 10) == (long)getpid();
}

void service_turn(int connected, int draining, size_t leases, uint64_t now_ms)
{
    static int service = -1, was_connected, was_draining;
    static size_t had;
    static uint64_t told_ms;
    if (service < 0)
        service = is_service();
    if (!service || (told_ms && now_ms - told_ms < EVERY_MS && connected == was_connected && draining == was_draining && leases == had))
        return;
    const char *state = !told_ms ? "READY=1\n" : draining && !was_draining ? "STOPPING=1\n" : "";
    if (draining)
        sd_notifyf(0, "%sWATCHDOG=1\nSTATUS=commits what it has and leaves", state);
    else if (connected)
        sd_notifyf(0, "%sWATCHDOG=1\nSTATUS=serves the pool, %zu lease%s", state, leases, leases == 1 ? "" : "s");
    else
        sd_notifyf(0, "%sWATCHDOG=1\nSTATUS=no connection to the pool yet", state);
    told_ms = now_ms;
    was_connected = connected;
    was_draining = draining;
    had = leases;
}
