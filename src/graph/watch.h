/* tfdbg's watches: tensors of a step that a debugger wants to see (RunOptions.debug_options).
 *
 * A watched tensor gets a Copy, and each debug op of the watch gets that copy; whoever uses the tensor waits for them, so that dumps follow each other as the tensors
 * did. Names are TensorFlow's (__copy_NODE_SLOT, __dbg_NODE:SLOT_NUMBER_OP): readers of dumps tell debug nodes by them. A watch for a node that is not there is
 * passed over: every task gets all watches of the step. */
#ifndef TRN_GRAPH_WATCH_H
#define TRN_GRAPH_WATCH_H

#include "graph/graph.h"

typedef struct trn_tensor_watch {
    const char *node; /* "*": all that have no watch of their own */
    int slot;         /* -1 with "*" */
    int n_ops, n_urls;
    const char **ops; /* "DebugNumericSummary(lower_bound=-1;mute_if_healthy=true)" */
    const char **urls;
    bool tolerate; /* a debug op that does not take this tensor is left out */
} trn_tensor_watch;

typedef struct trn_watches {
    int n; /* none: as if there were no debug options */
    trn_tensor_watch *v;
    int64_t global_step; /* what the client says it is */
    bool reset_disk;     /* dumps so far are gone: they do not count any more */
} trn_watches;

/* A DebugOptions message. Everything is copied. */
trn_err trn_watches_parse(trn_watches *out, trn_arena *a, const void *p, size_t n) TRN_MUST_USE;
/* What decides which graph a step runs: not the global step. */
void trn_watches_key(trn_sb *out, const trn_watches *w);
/* Each URL once, in `a`. RESOURCE_EXHAUSTED when they are too many to be folders of dumps. */
trn_err trn_watches_urls(const char ***out, int *n, trn_arena *a, const trn_watches *w) TRN_MUST_USE;
/* Adds the copies and debug ops to one task's part of a step; loops go one iteration after the other. `device` is that of nodes that have none. RESOURCE_EXHAUSTED
 * when so many ops, URLs or users of a tensor meet that the graph would become far larger than it was. */
trn_err trn_graph_watch(trn_graph *g, const trn_watches *w, const char *device) TRN_MUST_USE;

#endif
