/* The next steps of a task, node by node, for `trainera trace`: whoever asks gets them as JSON. While nothing is recorded it costs one load per step.
 *
 * Bounds: it ends by itself after so many parts, so many nodes (CAPTURE_NODES) or so much time; what does not fit is counted, not kept. */
#ifndef TRN_CAPTURE_H
#define TRN_CAPTURE_H

#include "exec/exec.h"

typedef struct trn_capture trn_capture;
trn_capture *trn_capture_new(void);
void trn_capture_free(trn_capture *c);

void trn_capture_start(trn_capture *c, int parts, uint64_t for_ns); /* [any] forgets what was there; parts 0: as many as come */
void trn_capture_stop(trn_capture *c);                              /* [any] what is there stays until the next start */
bool trn_capture_on(trn_capture *c);                                /* [any] */
/* [any] One part that ran; borrows everything. */
void trn_capture_add(trn_capture *c, int64_t step_id, const trn_trace *t, const trn_graph *g, uint64_t start_ns, uint64_t end_ns);
/* Adds the value of "parts": a JSON list of {"step", "start_us", "end_us", "nodes": [{"name", "op", "start_us", "us", "thread", "bytes", "key"}]}. */
void trn_capture_json(trn_capture *c, trn_sb *out);
int trn_capture_count(trn_capture *c, int *dropped); /* parts so far */

#endif
