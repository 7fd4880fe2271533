/* Trainera: parameter-server training that speaks TensorFlow's wire.
 *
 *     trn_builder *b = trn_builder_new();
 *     trn_const_str(trn_named(b, "hello"), "Hello, world!");
 *     trn_server *server;
 *     trn_session *session;
 *     trn_tensor *hello;
 *     const char *fetch = "hello:0";
 *     trn_err err = trn_server_create_local(&server);
 *     if (!err) err = trn_session_open(&session, trn_server_target(server), NULL);
 *     if (!err) err = trn_session_extend_builder(session, b);
 *     if (!err) err = trn_session_run(session, &(trn_run){.fetches = &fetch, .n_fetches = 1, .out = &hello});
 *
 * Rules
 * - Errors are values (trn_err); NULL is success. Whoever gets one frees it or passes it on.
 * - What comes through an `out` argument belongs to the caller, and is written only on success.
 * - Every function here may be called from any thread; calls block until they are done. A session runs any number of steps at the same time.
 * - Nothing here starts Python. Only trn_flags_cluster reads the environment (TF_CONFIG; and TRAINERA_LOG is read), only trn_server_join handles signals.
 *
 * Link with `pkg-config --cflags --libs trainera`.
 */
#ifndef TRAINERA_H
#define TRAINERA_H

/* One header per part; a program may include only those that it uses. */
#include <trainera/types.h>
#include <trainera/build.h>
#include <trainera/control.h>
#include <trainera/grad.h>
#include <trainera/ops.h>
#include <trainera/input.h>
#include <trainera/nn.h>
#include <trainera/optim.h>
#include <trainera/session.h>
#include <trainera/monitor.h>
#include <trainera/coord.h>
#include <trainera/save.h>
#include <trainera/summary.h>

#endif
