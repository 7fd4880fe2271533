/* tensorflow.CoordinationService: which tasks of a coordinator's cluster are alive, values under names, barriers. Inside eager/.
 *
 * A coordinator that wants it (TF_PSS_ENABLE_COORDINATION_SERVICE, configure_coordination_service) says so in the ServerDef of its contexts. One task is the
 * leader and keeps the tables (coordination.c); every task, the leader too, has an agent that registers with it and sends heartbeats (coordination_agent.c). A task
 * that is not heard of for heartbeat_timeout_in_ms is in error until it registers again; the others that are connected are told. Both begin with the first
 * context that asks for them and end with the last one.
 *
 * Limits: 65,536 values and 64 MiB of them, 1,024 barriers, 4,096 calls that wait. */
#ifndef TRN_COORDINATION_H
#define TRN_COORDINATION_H

#include "eager/eager_int.h"
#include "proto/coordination.pb-c.h"

typedef struct trn_coord trn_coord;   /* the leader's tables; counted */
typedef struct trn_agent trn_agent;   /* of this task; [loop] */

/* What a ServerDef asks for, filled up with TensorFlow's defaults; memory is the arena's. NULL: nothing, or nothing that concerns us. */
Tensorflow__CoordinationServiceConfig *trn_coord_config(trn_err *err, trn_arena *a, const Tensorflow__ServerDef *def);

/* [any] The leader's tables, made unless there are some for the same configuration. Nothing happens on other tasks. */
void trn_coord_begin(trn_eager *e, const Tensorflow__CoordinationServiceConfig *cfg, const trn_wsession *s);
/* [any] The agent registers unless it has; `done` on the loop, once, when it has or cannot. */
typedef void (*trn_agent_done)(void *arg, TRN_OWN trn_err err);
void trn_agent_connect(trn_eager *e, const Tensorflow__CoordinationServiceConfig *cfg, const trn_wsession *s, trn_agent_done done, void *arg);
/* [any] Nobody asks for it any more: whoever waits gets an error. */
void trn_coord_end(trn_eager *e, const char *why);
void trn_agent_free(trn_agent *g); /* the loop is gone */
void trn_coord_serve(trn_rpc_server *s, trn_eager *e);

/* ---- inside */

#define TRN_PATH_COORDINATION "/tensorflow.CoordinationService/"
enum { TRN_TASK_DISCONNECTED = 2, TRN_TASK_CONNECTED = 3, TRN_TASK_ERROR = 4 };
#define TRN_HEARTBEAT_MS 10000

void trn_coord__end(trn_eager *e, const char *why); /* the leader's tables */
bool trn_coord__same(const Tensorflow__CoordinationServiceConfig *a, const Tensorflow__CoordinationServiceConfig *b);
Tensorflow__CoordinationServiceConfig *trn_coord__copy(trn_arena *a, const Tensorflow__CoordinationServiceConfig *cfg);
void trn_agent__told(trn_eager *e, TRN_OWN trn_err err); /* [any] the leader says that the cluster has failed */

#endif
