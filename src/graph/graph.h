/* Graphs as arrays. A graph lives in one arena; nodes are never freed one by one. GraphDef ⇄ arrays, then prune → lower → optimise → place → partition.
 *
 * Node ids are positions in g->node; edges name (node id, output slot). Removed nodes leave a NULL behind until trn_graph_compact. */
#ifndef TRN_GRAPH_H
#define TRN_GRAPH_H

#include "op/func.h"
#include "op/registry.h"
#include "proto/tensorflow.pb-c.h"

#define TRN_GRAPH_PRODUCER 1087 /* of graphs that we make, a version of TensorFlow 2: defaults may be left out */

typedef struct trn_edge {
    int node;
    int slot;
} trn_edge;

typedef struct trn_gnode {
    trn_node n;
    int id;
    trn_edge *in;     /* n.n_in data inputs */
    int n_ctl, cap_ctl;
    int *ctl;         /* control inputs: node ids, no doubles */
    int dev;          /* placed: index in the trn_devset; -1: not yet */
    trn_err place_err; /* why it could not be placed; reported only when the node is needed. Owned by the graph. */
} trn_gnode;

typedef struct trn_funclib trn_funclib;
typedef struct trn_gstore trn_gstore;

typedef struct trn_graph {
    trn_arena *arena;
    int n, cap;
    trn_gnode **node;
    trn_map *by_name;
    trn_funclib *lib; /* counted, shared with copies */
    int producer, min_consumer;
    trn_gstore *store; /* owns the arena; shared with copies, which read strings, types and attr values in it */
    int uniq;
    bool keep_branches; /* If, Case and While are not lowered: their kernels run them */
} trn_graph;

trn_graph *trn_graph_new(trn_funclib *lib_or_null);
void trn_graph_free(trn_graph *g);
/* For those who keep a node of a graph longer than the graph. */
trn_gstore *trn_gstore_ref(trn_gstore *s);
void trn_gstore_unref(trn_gstore *s);
trn_gnode *trn_graph_find(const trn_graph *g, const char *name, size_t len);
/* "name:1" → edge; "name" → slot 0; "^name" → slot -1. NOT_FOUND / INVALID_ARGUMENT that name it. */
trn_err trn_graph_tensor(trn_edge *out, const trn_graph *g, const char *tensor_name) TRN_MUST_USE;

/* Adds the nodes (and functions) of a GraphDef behind those that are there: ExtendSession. Checks names, duplicates, inputs (existing, slots, dtypes),
 * attrs, cycles (only NextIteration → Merge may close one), sizes. All or nothing. An op that we do not have is kept (n.def NULL) and reported
 * by trn_graph_check_ops when something needs it. */
trn_err trn_graph_import(trn_graph *g, const Tensorflow__GraphDef *gd) TRN_MUST_USE;
/* [any] Constants say in few bytes that they are large. What they may take beyond their bytes, in one import: 1 GiB, or this if it is more. */
void trn_graph_allow_growth(uint64_t bytes);
/* As a message whose memory is in `a` (tensor bytes point into the graph's tensors). Attrs that equal their default are left out. */
Tensorflow__GraphDef *trn_graph_export(trn_arena *a, const trn_graph *g);
trn_err trn_attr_from_pb(trn_attr *out, trn_arena *a, const char *name, const Tensorflow__AttrValue *pb) TRN_MUST_USE;
Tensorflow__AttrValue *trn_attr_to_pb(trn_arena *a, const trn_attr *attr);

/* Building: name must be new (trn_graph_unique_name). attrs are copied; inputs as edges. An input from node -1 is set later by the caller (back edges). */
trn_err trn_graph_add(trn_gnode **out, trn_graph *g, const char *op, const char *name, const char *device, const trn_attr *attrs, int n_attrs,
                      const trn_edge *in, int n_in) TRN_MUST_USE;
const char *trn_graph_unique_name(trn_graph *g, const char *base);
void trn_graph_add_ctl(trn_graph *g, trn_gnode *to, int from);
void trn_graph_remove(trn_graph *g, int id); /* caller has rewired its users */
void trn_graph_compact(trn_graph *g);        /* drops the holes, renumbers */
/* keep[id], NULL: all; dangling inputs must not exist. Without holes. The copy may outlive g; it shares n.name, n.device, types and attr values, so change those
 * by pointing elsewhere, never in place. */
trn_graph *trn_graph_copy(const trn_graph *g, const bool *keep);
/* Ids in an order in which inputs come first (back edges into Merge ignored). Returns how many; order has room for g->n. */
int trn_graph_topo(const trn_graph *g, int *order);

/* ---- functions (functions.c) */
trn_funclib *trn_funclib_new(void);
trn_funclib *trn_funclib_ref(trn_funclib *l);
void trn_funclib_unref(trn_funclib *l);
trn_err trn_funclib_add(trn_funclib *l, const Tensorflow__FunctionDef *f) TRN_MUST_USE; /* same name, same body: fine; other body: INVALID_ARGUMENT */
/* The functions that an attr names and all that they call, out of another library. *stateful, unless NULL: an op in them whose results depend on more than its inputs. */
trn_err trn_funclib_add_called(trn_funclib *l, const trn_funclib *from, const trn_attr *a, const char **stateful) TRN_MUST_USE;
void trn_funclib_remove(trn_funclib *l, const char *name); /* nobody shares l */
size_t trn_funclib_count(const trn_funclib *l);
bool trn_funclib_has(const trn_funclib *l, const char *name);
/* Argument and result dtypes for a call with these attrs. */
trn_err trn_funclib_signature(const trn_funclib *l, trn_arena *a, const trn_func_ref *f, int *n_args, trn_dtype **args, int *n_rets, trn_dtype **rets) TRN_MUST_USE;
/* The body as a graph with _Arg and _Retval nodes (index attrs), attrs substituted, "node:out_arg:i" inputs resolved. Control outputs become
 * control inputs of a NoOp called "_ctl_rets". */
trn_err trn_funclib_body(trn_graph **out, trn_funclib *l, const trn_func_ref *f) TRN_MUST_USE;
void trn_funclib_export(const trn_funclib *l, trn_arena *a, Tensorflow__GraphDef *gd); /* sets gd->library */
/* Calls, If, While, Case, PartitionedCall become their bodies: v1 control flow (Switch/Merge/Enter/Exit/…). Nested ones too, to a depth limit.
 * Recursive functions stay calls. Inlined nodes without a device take the caller's. */
trn_err trn_graph_lower(trn_graph *g) TRN_MUST_USE;

/* ---- prune (prune.c) */
typedef struct trn_run_sig {
    int n_feeds, n_fetches, n_targets;
    const char *const *feeds;   /* "x:0" */
    const char *const *fetches; /* "y:0" */
    const char *const *targets; /* node names */
    int n_joins;                /* tensors that stand in for others, as a feed would: */
    const char *const *join_from, *const *join_to;
} trn_run_sig;
/* A new graph with only what the fetches and targets need. Fed tensors come from _Arg nodes (index = position in feeds), fetched ones go to _Retval
 * nodes (index = position in fetches), both named "_arg_<name>_<slot>…" and pinned to `client_device`. Unknown names: NOT_FOUND/INVALID_ARGUMENT as TensorFlow says. */
trn_err trn_graph_prune(trn_graph **out, const trn_graph *g, const trn_run_sig *sig, const char *client_device) TRN_MUST_USE;
/* UNIMPLEMENTED naming op, node and users of the first op that we have no row for. */
trn_err trn_graph_check_ops(const trn_graph *g) TRN_MUST_USE;
/* For tools/ops-doc: with TRAINERA_OPS_SEEN=FILE in the environment the names of the ops are added to FILE, each once. */
void trn_graph_note_ops(const trn_graph *g);

/* ---- datasets (shard.c): the graph whose node `sink` takes a dataset gives each worker its part of the elements. NOT_FOUND: there are no files to divide. */
trn_err trn_graph_shard(trn_graph *g, trn_gnode *sink, const trn_shard *s) TRN_MUST_USE;

/* ---- shapes (infer.c): partial shapes of all outputs; out[id] is an array of n_out shapes in g's arena. */
trn_err trn_graph_infer(trn_shape ***out, const trn_graph *g) TRN_MUST_USE;

/* ---- optimise (optimise.c, simplify.c, fuse.c): constant folding, common subexpressions, identity removal, arithmetic, fused kernels; never touches
 * stateful ops, feeds, fetches or devices, never changes a result. */
typedef struct trn_opt_opts {
    bool fold, cse, identity, simplify, fuse;
    int64_t max_folded_bytes; /* 0: the default */
    const char *fuse_task;    /* only nodes of this task ("/job:…/task:N") are fused: other kinds of server may lack the kernels. NULL: all */
} trn_opt_opts;
/* `eval` runs one pure node on constant inputs (exec/ provides it; graph/ may not include exec). */
typedef trn_err (*trn_eval_fn)(trn_tensor **outs, const trn_node *n, trn_tensor *const *ins);
trn_err trn_graph_optimise(trn_graph *g, const trn_opt_opts *o, trn_eval_fn eval) TRN_MUST_USE;

/* ---- one task's part (loopref.c): reads of variables that a loop assigns are done inside it. */
trn_err trn_graph_reads_in_loops(trn_graph *g) TRN_MUST_USE;

/* ---- frames (frames.c): the loops of v1 control flow. Frame 0 is the root: what is in no loop. */
typedef struct trn_frame {
    const char *name; /* the graph's; "" for the root */
    int parent;       /* the root is its own */
    int enter;        /* one of its Enter nodes; -1: root */
    int loop_cond;    /* its LoopCond; -1: none */
} trn_frame;
typedef struct trn_frames {
    int n;
    trn_frame *frame; /* parents come first */
    int *of;          /* by node id: an Enter and an Exit belong to their loop; -1: no such node */
} trn_frames;
/* INVALID_ARGUMENT when a node has inputs from several frames, or a loop is entered from several. */
trn_err trn_graph_frames(trn_frames *out, const trn_graph *g) TRN_MUST_USE;
void trn_frames_fini(trn_frames *f);
int trn_frames_in(const trn_frames *f, const trn_gnode *nd);  /* where its inputs are: for an Enter, outside */
int trn_frames_out(const trn_frames *f, const trn_gnode *nd); /* where its outputs are: for an Exit, outside */

/* ---- placement (place.c) */
typedef struct trn_device {
    const char *name;  /* "/job:ps/replica:0/task:0/device:CPU:0" */
    const char *task;  /* "/job:ps/replica:0/task:0" */
    const char *type;  /* "CPU" */
    uint64_t incarnation;
} trn_device;
typedef struct trn_devset {
    int n;
    const trn_device *dev;
    int def; /* default device: the master's own CPU:0 */
} trn_devset;
typedef struct trn_place_opts {
    bool soft;
    bool log;
    bool unlowered; /* calls are still whole: what takes a resource out of one is left for when the way of the resource through its body is known */
} trn_place_opts;
/* Sets node.dev and n.device of all nodes that have none yet (a call keeps the n.device that was asked for: lowering gives it to the body); errors are kept per node (place_err) so that an unused bad node harms nobody. */
trn_err trn_graph_place(trn_graph *g, const trn_devset *ds, const trn_place_opts *o) TRN_MUST_USE;
trn_err trn_graph_place_errors(const trn_graph *g) TRN_MUST_USE; /* the first one in g */

/* ---- composite devices (replicate.c): what is on one is a value or resource per member, as a packed argument is. */
#define TRN_COMPOSITE "COMPOSITE" /* their type */
typedef struct trn_composite {
    int dev; /* in the set */
    int n;
    const int *member; /* devices in the set */
} trn_composite;
/* After placement: a node on a composite device becomes one node for each member that a consumer is on (all of them when nobody takes what it makes), and each consumer
 * takes its own device's. The copies of an _Arg have the member's number as `sub_index`; where a consumer is on none of the devices an _Arg's members are stacked for it (Pack),
 * anything else is INVALID_ARGUMENT. */
trn_err trn_graph_replicate(trn_graph *g, const trn_devset *ds, const trn_composite *c, int n) TRN_MUST_USE;

/* ---- partition (partition.c) */
typedef struct trn_part {
    const char *task;
    trn_graph *graph;
} trn_part;
/* One graph per task; cut edges become _Send/_Recv pairs with TensorFlow's attrs (tensor_name, send_device, send_device_incarnation, recv_device,
 * client_terminated, T/tensor_type), control edges float[0] constants; loops that span tasks get a control loop on every task that has a part of
 * their body. One pair per (tensor, task), small constants are copied instead of sent. */
trn_err trn_graph_partition(trn_part **out, int *n, const trn_graph *g, const trn_devset *ds) TRN_MUST_USE;
void trn_parts_free(trn_part *p, int n);

#endif
