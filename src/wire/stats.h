/* What /metrics tells about the calls of one method, as their server or as their client. */
#ifndef TRN_WIRE_STATS_H
#define TRN_WIRE_STATS_H

#include "base/base.h"

typedef struct trn_rpc_stats {
    const char *prefix; /* "rpc" or "rpc_client" */
    char name[64];      /* "RunStep" */
    trn_counter *calls;
    trn_hist *latency;
    _Atomic(trn_counter *) errors[17]; /* made at the first error of that code */
} trn_rpc_stats;
void trn_rpc_stats_init(trn_rpc_stats *s, const char *prefix, const char *name, const char *what_calls, const char *what_latency);
void trn_rpc_stats_error(trn_rpc_stats *s, trn_code code); /* [any] */
/* Of calls that we make: the same ones for the same "/package.Service/Method", for as long as the process lives. [any] */
trn_rpc_stats *trn_rpc_stats_client(const char *method_path);

/* Bytes to and from one peer, whoever made the connection. Kept for as long as the process lives; peers beyond a bound share one row. */
typedef struct trn_traffic {
    char peer[72];  /* the address that we call, or what a caller says of itself ("worker/0"), else its host */
    bool inbound;   /* it called us */
    _Atomic uint64_t in, out;
    _Atomic int connections;
} trn_traffic;
trn_traffic *trn_traffic_of(const char *peer, size_t n, bool inbound); /* [any] */
void trn_traffic_each(void (*fn)(void *arg, const trn_traffic *t), void *arg); /* [any] fn must be quick */

#endif
