/* The session's inside, for those who keep one beside its owner (train/). */
#ifndef TRN_SESSION_H
#define TRN_SESSION_H

#include <trainera/session.h>

#include "op/cancel.h"

/* [any] Keeps the memory of a session that its owner may close meanwhile: what runs then ends with an error, so does every later run. A session in
 * process needs its server for as long. */
trn_session *trn_session_ref(trn_session *s);
void trn_session_unref(trn_session *s);
bool trn_session_is_closed(const trn_session *s); /* or being closed: whatever fails now fails for that reason */
/* As trn_session_run; when `c` fires, the step is cancelled everywhere and the call ends with CANCELLED. */
trn_err trn_session_run_until(trn_session *s, const trn_run *run, trn_cancel *c) TRN_MUST_USE;

#endif
