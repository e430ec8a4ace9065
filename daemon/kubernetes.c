/* Workers in a Kubernetes cluster. Nothing is done here: the figure that the core wants is exported as ebb_workers_wanted{provider="kubernetes"}
   (daemon/http.c), and a scaler in the cluster makes a Deployment of as many pods (deploy/kubernetes/). A pod that is removed gets SIGTERM, drains and goes;
   one that ends by itself would be started anew by its Deployment, so idle ones are not told to leave: the figure falls, and the cluster removes them.

   What can fail: nobody reads the figure, or the cluster has no room. People are told when workers have been wanted for long and none has come. */
#include <inttypes.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/mem.h"
#include "daemon/provider.h"

#define PATIENCE_MS 300000 /* a cluster may have to start a machine first */

struct kubernetes {
    uint32_t wanted;
    uint64_t waiting_ms; /* since when more are wanted than there are, and none has come; 0: that is not so */
    size_t there;        /* at the last look */
};

static enum status open_it(struct daemon *d, struct err *e)
{
    d->kubernetes = mem_zalloc(sizeof *d->kubernetes);
    return d->kubernetes ? ST_OK : err_nomem(e, "the Kubernetes provider");
}

static void close_it(struct daemon *d)
{
    mem_free(d->kubernetes);
    d->kubernetes = NULL;
}

static void terms(const struct daemon *d, struct provider_terms *out)
{
    out->limit = (uint32_t)d->config->kubernetes_limit;
    out->preemptible = d->config->kubernetes_class;
}

static void want(struct daemon *d, uint32_t workers)
{
    d->kubernetes->wanted = workers;
}

static size_t there(const struct daemon *d)
{
    size_t n = 0, i = 0;
    for (const struct worker *w; d->link && (w = link_next(d->link, &i));)
        n += w->provider == PROVIDER_KUBERNETES && !w->ended;
    return n;
}

static void second(struct daemon *d)
{
    struct kubernetes *k = d->kubernetes;
    size_t n = there(d);
    if (k->wanted <= n || n > k->there)
        k->waiting_ms = 0;
    else if (!k->waiting_ms)
        k->waiting_ms = clock_ms();
    k->there = n;
}

static size_t starting(const struct daemon *d, provider_visit *visit, void *arg)
{
    (void)visit; /* they have no names yet */
    (void)arg;
    size_t n = there(d);
    return d->kubernetes->wanted > n ? d->kubernetes->wanted - n : 0;
}

static const char *trouble(const struct daemon *d)
{
    static char text[240];
    const struct kubernetes *k = d->kubernetes;
    if (!d->config->kubernetes_limit || !k->waiting_ms || clock_ms() - k->waiting_ms < PATIENCE_MS)
        return "";
    snprintf(text, sizeof text, "Kubernetes: %" PRIu32 " workers have been wanted for %" PRIu64 " min, %zu are there: see 'kubectl -n ebb describe scaledobject ebb-worker' and 'kubectl -n ebb get pods'",
             k->wanted, (clock_ms() - k->waiting_ms) / 60000, k->there);
    return text;
}

const struct provider provider_kubernetes = {
    .id = PROVIDER_KUBERNETES,
    .open = open_it,
    .close = close_it,
    .terms = terms,
    .want = want,
    .second = second,
    .starting = starting,
    .trouble = trouble,
};
