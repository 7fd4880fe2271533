/* StepStats: what the executor measured, in the form that TensorFlow's timeline reads. */
#ifndef TRN_STATS_H
#define TRN_STATS_H

#include "exec/exec.h"

trn_trace *trn_trace_new(void);
void trn_trace_free(trn_trace *t);
/* Adds the fields of a StepStats message (dev_stats), one per device that ran something. */
void trn_stats_put(trn_sb *out, const trn_trace *t, const trn_graph *g);
/* Adds the fields of a CostGraphDef: one node for everything that ran, with its time. */
void trn_costs_put(trn_sb *out, const trn_trace *t, const trn_graph *g);

#endif
