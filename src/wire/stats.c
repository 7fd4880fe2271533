#include "wire/stats.h"

#include <stdio.h>
#include <stdlib.h>

void trn_rpc_stats_init(trn_rpc_stats *s, const char *prefix, const char *name, const char *what_calls, const char *what_latency)
{
    s->prefix = prefix;
    snprintf(s->name, sizeof s->name, "%s", name);
    char *text = trn_xasprintf("%s_calls_total{method=\"%s\"}", prefix, s->name);
    s->calls = trn_metric_counter(text, what_calls);
    free(text);
    text = trn_xasprintf("%s_latency_seconds{method=\"%s\"}", prefix, s->name);
    s->latency = trn_metric_hist(text, what_latency);
    free(text);
}

void trn_rpc_stats_error(trn_rpc_stats *s, trn_code code)
{
    if (code == TRN_CODE_OK || code > TRN_UNAUTHENTICATED)
        return;
    trn_counter *c = atomic_load_explicit(&s->errors[code], memory_order_acquire);
    if (!c) {
        char *name = trn_xasprintf("%s_errors_total{method=\"%s\",code=\"%s\"}", s->prefix, s->name, trn_code_name(code));
        c = trn_metric_counter(name, "Calls that ended with an error");
        free(name);
        atomic_store_explicit(&s->errors[code], c, memory_order_release);
    }
    trn_counter_add(c, 1);
}

/* ---- as a client ---------------------------------------------------------------------------------------------- */

#define MAX_METHODS 64 /* the paths are ours, two dozen; more than this would be a leak */
#define NEAR 8

typedef struct client_stats {
    trn_rpc_stats s; /* first */
    char *path;
} client_stats;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static client_stats *known[MAX_METHODS]; /* never freed: threads remember them */
static int n_known;

static client_stats *look_up(const char *path)
{
    client_stats *c = NULL;
    pthread_mutex_lock(&mu);
    for (int i = 0; i < n_known && !c; i++)
        if (strcmp(known[i]->path, path) == 0)
            c = known[i];
    if (!c && n_known == MAX_METHODS)
        c = known[MAX_METHODS - 1];
    if (!c) {
        bool rest = n_known == MAX_METHODS - 1;
        const char *slash = strrchr(path, '/');
        c = trn_xalloc(sizeof *c);
        c->path = trn_xstrdup(path);
        trn_rpc_stats_init(&c->s, "rpc_client", rest ? "other" : slash ? slash + 1 : path, "Calls made to other tasks",
                           "From the call to its answer, as its client");
        known[n_known++] = c;
    }
    pthread_mutex_unlock(&mu);
    return c;
}

trn_rpc_stats *trn_rpc_stats_client(const char *path)
{
    /* Paths are literals nearly always, so the address finds the last answer. */
    static _Thread_local struct {
        const char *path;
        client_stats *c;
    } near[NEAR];
    size_t i = ((uintptr_t)path >> 4) % NEAR;
    if (near[i].path != path || strcmp(near[i].c->path, path) != 0) {
        near[i].c = look_up(path);
        near[i].path = path;
    }
    return &near[i].c->s;
}

/* ---- per peer ------------------------------------------------------------------------------------------------- */

#define MAX_PEERS 2048

static trn_map *peers; /* "<" or ">" and the peer → trn_traffic; under mu, never freed */

trn_traffic *trn_traffic_of(const char *peer, size_t n, bool inbound)
{
    char key[74];
    n = TRN_MIN(n, sizeof key - 2);
    key[0] = inbound ? '<' : '>';
    memcpy(key + 1, peer, n);
    pthread_mutex_lock(&mu);
    if (!peers)
        peers = trn_map_new();
    trn_traffic *t = trn_map_get(peers, key, n + 1);
    if (!t && trn_map_count(peers) >= MAX_PEERS) {
        memcpy(key + 1, "others", n = 6);
        t = trn_map_get(peers, key, n + 1);
    }
    if (!t) {
        t = trn_xalloc(sizeof *t);
        memcpy(t->peer, key + 1, TRN_MIN(n, sizeof t->peer - 1));
        t->inbound = inbound;
        trn_map_put(peers, key, n + 1, t);
    }
    pthread_mutex_unlock(&mu);
    return t;
}

void trn_traffic_each(void (*fn)(void *, const trn_traffic *), void *arg)
{
    pthread_mutex_lock(&mu);
    const char *key;
    size_t n;
    void *v;
    for (size_t it = 0; trn_map_next(peers, &it, &key, &n, &v);)
        fn(arg, v);
    pthread_mutex_unlock(&mu);
}
