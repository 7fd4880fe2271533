/* Building models: a graph that grows call by call.
 *
 *     trn_builder *b = trn_builder_new();
 *     trn_out x = trn_placeholder(b, "x", TRN_FLOAT, trn_shape_of(2, -1L, 784L));
 *     trn_variable *w = trn_variable_new(b, "w", trn_zeros(b, TRN_FLOAT, trn_shape_of(2, 784L, 10L)), 0);
 *     trn_out y = trn_op_mat_mul(trn_named(b, "logits"), x, w->value, NULL);
 *     trn_err err = trn_builder_check(b);        // one check for all of it
 *
 * Rules
 * - The first error stays (it says which call was wrong, and why); every call after it does nothing and gives TRN_NONE. So model code has no checks:
 *   one trn_builder_check at the end.
 * - Everything that a builder hands out (names, variables, optimizers, lists) is the builder's and dies with it. Arguments are borrowed for the call.
 * - A builder belongs to one thread at a time.
 * - Names, op types and attrs are TensorFlow's, so that graphs and checkpoints are exchanged both ways.
 */
#ifndef TRAINERA_BUILD_H
#define TRAINERA_BUILD_H

#include <trainera/op.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct trn_builder trn_builder;

/* A tensor: output `slot` of a node. Slot -1: the node itself (what a step runs, what others wait for). Node -1: nothing. */
typedef struct trn_out {
    int node;
    int slot;
} trn_out;
#define TRN_NONE ((trn_out){-1, 0})
static inline bool trn_out_is(trn_out o) { return o.node >= 0; }
static inline trn_out trn_out_node(trn_out o) { return (trn_out){o.node, -1}; }          /* the node that makes o */
static inline trn_out trn_out_nth(trn_out o, int slot) { return (trn_out){o.node, slot}; } /* another output of the same node */

/* Several tensors, in memory of the builder. */
typedef struct trn_outs {
    int n;
    trn_out *at;
} trn_outs;

/* A tensor and what it is called elsewhere: in a signature, in a graph that is imported. */
typedef struct trn_named_out {
    const char *name;
    trn_out tensor;
} trn_named_out;

/* Optional attrs whose default is not zero say whether they were given: .epsilon = TRN_F(1e-3) */
typedef struct trn_maybe_int { bool given; int64_t v; } trn_maybe_int;
typedef struct trn_maybe_float { bool given; float v; } trn_maybe_float;
typedef struct trn_maybe_bool { bool given; bool v; } trn_maybe_bool;
#define TRN_I(x) ((trn_maybe_int){true, (x)})
#define TRN_F(x) ((trn_maybe_float){true, (x)})
#define TRN_B(x) ((trn_maybe_bool){true, (x)})
typedef struct trn_ints { const int64_t *at; int n; } trn_ints;
#define TRN_INTS(...) ((trn_ints){(const int64_t[]){__VA_ARGS__}, (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))})
/* Lists of attrs, the same way: .dilations = TRN_INTS(1, 2, 2, 1), .labels = TRN_STRS("a", "b") */
typedef struct trn_floats { const float *at; int n; } trn_floats;
typedef struct trn_types { const trn_dtype *at; int n; } trn_types;
typedef struct trn_strs { const char *const *at; int n; } trn_strs;
typedef struct trn_shapes { const trn_shape *at; int n; } trn_shapes;
typedef struct trn_funcs { const trn_func_ref *at; int n; } trn_funcs;
#define TRN_FLOATS(...) ((trn_floats){(const float[]){__VA_ARGS__}, (int)(sizeof((const float[]){__VA_ARGS__}) / sizeof(float))})
#define TRN_TYPES(...) ((trn_types){(const trn_dtype[]){__VA_ARGS__}, (int)(sizeof((const trn_dtype[]){__VA_ARGS__}) / sizeof(trn_dtype))})
#define TRN_STRS(...) ((trn_strs){(const char *const[]){__VA_ARGS__}, (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))})
#define TRN_SHAPES(...) ((trn_shapes){(const trn_shape[]){__VA_ARGS__}, (int)(sizeof((const trn_shape[]){__VA_ARGS__}) / sizeof(trn_shape))})
#define TRN_FUNCS(...) ((trn_funcs){(const trn_func_ref[]){__VA_ARGS__}, (int)(sizeof((const trn_func_ref[]){__VA_ARGS__}) / sizeof(trn_func_ref))})
#define TRN_OUTS(...) (const trn_out[]){__VA_ARGS__}, (int)(sizeof((const trn_out[]){__VA_ARGS__}) / sizeof(trn_out))

TRN_API trn_builder *trn_builder_new(void); /* an empty graph to build in, until */
TRN_API void trn_builder_free(TRN_OWN trn_builder *b); /* which also ends what it handed out */
/* The first error, as a copy for the caller; NULL: all calls were fine, and all scopes are closed. */
TRN_API trn_err trn_builder_check(const trn_builder *b) TRN_MUST_USE;
TRN_API bool trn_builder_ok(const trn_builder *b);
/* For layers of your own: latches the error unless there is one already. Always gives TRN_NONE. */
TRN_API trn_out trn_builder_fail(trn_builder *b, TRN_OWN trn_err err);
TRN_API void *trn_builder_alloc(trn_builder *b, size_t n); /* zeroed, lives as long as the builder */
TRN_API const char *trn_builder_strdup(trn_builder *b, const char *s);
TRN_API const char *trn_builder_printf(trn_builder *b, const char *fmt, ...) TRN_PRINTF(2, 3);

/* ---- names and scopes: each trn_..._scope is ended by trn_end ------------------------------------------------------ */

/* A builder with a name for the node or layer that gets it as its argument: trn_op_relu(trn_named(b, "hidden"), x). Made unique with _1, _2 as in TensorFlow. The
 * name is for that call alone, in whatever order C evaluates the arguments beside it. */
TRN_API trn_builder *trn_named(trn_builder *b, const char *name);
/* For layers: the pending name, or `otherwise`; the name is then no longer pending. */
TRN_API const char *trn_take_name(trn_builder *b, const char *otherwise);
TRN_API void trn_name_scope(trn_builder *b, const char *name);        /* "tower" → "tower/…", then "tower_1/…" */
TRN_API void trn_name_scope_again(trn_builder *b, const char *scope); /* a scope that exists, by its whole name; "" the root */
TRN_API const char *trn_scope_name(const trn_builder *b);             /* "" at the root, else "tower/dense" */
TRN_API void trn_device_scope(trn_builder *b, const char *device);    /* "/job:ps/task:0"; parts that are missing come from the scope around it; "": none */
/* Chooses for every new node; gets what the scopes inside it asked for ("" if nothing) and returns the full wish (builder memory, or static). */
typedef const char *(*trn_device_fn)(void *arg, trn_builder *b, const trn_node *node, const char *asked);
TRN_API void trn_device_fn_scope(trn_builder *b, trn_device_fn fn, void *arg);
TRN_API void trn_control_scope(trn_builder *b, const trn_out *deps, int n); /* new nodes run after these; deps NULL: also those of the scopes around are forgotten */
TRN_API void trn_colocate_scope(trn_builder *b, trn_out with);              /* new nodes go where this one is ("_class") */
TRN_API void trn_end(trn_builder *b);
/* TRN_SCOPE(trn_name_scope(b, "hidden"), b) { … }      no break or return out of the braces */
#define TRN_SCOPE(open, b) TRN_SCOPE_(open, b, __COUNTER__)
#define TRN_SCOPE_(open, b, n) TRN_SCOPE__(open, b, n)
#define TRN_SCOPE__(open, b, n) for (int trn_once_##n = ((open), 1); trn_once_##n; trn_end(b), trn_once_##n = 0)

/* ---- nodes --------------------------------------------------------------------------------------------------------- */

/* Any op of the registry, or a function of the imported library; trainera/ops.h has a typed function for each op. Type, number and type-list attrs that
 * follow from the inputs are filled in. Gives the first output, or the node itself where there is none. */
TRN_API trn_out trn_node_add(trn_builder *b, const char *op, const trn_out *in, int n_in, const trn_attr *attrs, int n_attrs);
TRN_API trn_attr trn_at_type(const char *name, trn_dtype v); /* attrs; what they point to is borrowed */
TRN_API trn_attr trn_at_int(const char *name, int64_t v);
TRN_API trn_attr trn_at_float(const char *name, float v);
TRN_API trn_attr trn_at_bool(const char *name, bool v);
TRN_API trn_attr trn_at_str(const char *name, const char *v);
TRN_API trn_attr trn_at_tensor(const char *name, trn_tensor *v);
TRN_API trn_attr trn_at_shape(const char *name, const trn_shape *v);
TRN_API trn_attr trn_at_func(const char *name, const trn_func_ref *v);
/* Lists; what they are made of is kept by the builder. A length below zero is latched as an error. */
TRN_API trn_attr trn_at_ints(trn_builder *b, const char *name, trn_ints v);
TRN_API trn_attr trn_at_floats(trn_builder *b, const char *name, trn_floats v);
TRN_API trn_attr trn_at_types(trn_builder *b, const char *name, trn_types v);
TRN_API trn_attr trn_at_strs(trn_builder *b, const char *name, trn_strs v);
TRN_API trn_attr trn_at_shapes(trn_builder *b, const char *name, trn_shapes v);
TRN_API trn_attr trn_at_funcs(trn_builder *b, const char *name, trn_funcs v);
TRN_API void trn_control_add(trn_builder *b, trn_out node, trn_out after); /* one more control input for a node that exists */
/* An attr of a node that exists, set or replaced (e.g. "_class", "_output_shapes"); types must not change. */
TRN_API void trn_node_set_attr(trn_builder *b, trn_out node, const trn_attr *attr);

TRN_API trn_dtype trn_out_dtype(const trn_builder *b, trn_out o);        /* without TRN_REF; TRN_INVALID for TRN_NONE */
TRN_API const trn_shape *trn_out_shape(const trn_builder *b, trn_out o); /* what is known of it */
TRN_API const char *trn_out_name(trn_builder *b, trn_out o);             /* "logits:0"; of a node: "logits" */
TRN_API const trn_node *trn_out_op(const trn_builder *b, trn_out o);     /* op type, attrs, dtypes, device as asked for; NULL for TRN_NONE */
TRN_API trn_out trn_out_input(const trn_builder *b, trn_out o, int i);   /* what feeds input i of o's node */
TRN_API const trn_tensor *trn_out_const(const trn_builder *b, trn_out o); /* its value when it is a Const, else NULL */
TRN_API trn_out trn_find(trn_builder *b, const char *name);              /* "logits:0" or "train"; latches NOT_FOUND */
TRN_API int trn_builder_node_count(const trn_builder *b);                /* node ids are 0 … n-1 */

/* ---- constants, inputs, groups ------------------------------------------------------------------------------------- */

TRN_API trn_out trn_const(trn_builder *b, TRN_OWN trn_tensor *value); /* trn_const(b, trn_tensor_f32(0.5f)) */
TRN_API trn_out trn_const_f32(trn_builder *b, float v);
TRN_API trn_out trn_const_i32(trn_builder *b, int32_t v);
TRN_API trn_out trn_const_i64(trn_builder *b, int64_t v);
TRN_API trn_out trn_const_bool(trn_builder *b, bool v);
TRN_API trn_out trn_const_str(trn_builder *b, const char *v);
TRN_API trn_out trn_const_i32s(trn_builder *b, const int32_t *v, int n);         /* a vector */
TRN_API trn_out trn_const_num(trn_builder *b, trn_dtype dtype, double v);        /* a number as a scalar of any numeric dtype */
TRN_API trn_out trn_fill(trn_builder *b, trn_dtype dtype, trn_shape shape, double v); /* known shape; Fill, not a large Const */
TRN_API trn_out trn_zeros(trn_builder *b, trn_dtype dtype, trn_shape shape);
TRN_API trn_out trn_placeholder(trn_builder *b, const char *name, trn_dtype dtype, trn_shape shape); /* dims -1: any */
TRN_API trn_out trn_group(trn_builder *b, const trn_out *ops, int n);               /* a NoOp that waits for all; one per device in between */
TRN_API trn_out trn_with_deps(trn_builder *b, trn_out value, const trn_out *after, int n); /* the value, once the others have run */

/* ---- variables ----------------------------------------------------------------------------------------------------- */

typedef enum trn_variable_flags {
    TRN_NOT_TRAINABLE = 1,
    TRN_LOCAL = 2,      /* not saved, not shared by workers: LOCAL_VARIABLES, initialised by the local init */
    TRN_REF_VARIABLE = 4, /* VariableV2 as TF1 programs make by default; else a resource (VarHandleOp) */
    TRN_NOT_SAVED = 8,
    TRN_SLOT = 16,      /* an optimizer's: global, not trainable */
} trn_variable_flags;

typedef struct trn_variable {
    const char *name;   /* of the node, which is also the shared name on the ps and the checkpoint key */
    trn_dtype dtype;
    trn_shape shape;
    unsigned flags;
    trn_out handle;     /* the resource, or the reference */
    trn_out value;      /* reads it once per step ("name/Read/ReadVariableOp"; of a ref variable "name/read") */
    trn_out initial;    /* the initial value */
    trn_out init;       /* "name/Assign" */
    trn_out is_initialized;
    /* One piece of a partitioned variable: where it lies in the whole. full_name NULL: not a piece. */
    const char *full_name;
    trn_shape full_shape;
    int64_t offset[TRN_MAX_RANK];
} trn_variable;

/* `initial` is put on the variable's device. Its shape must be known. */
TRN_API trn_variable *trn_variable_new(trn_builder *b, const char *name, trn_out initial, unsigned flags);
/* All resource variables of this builder become ref variables from here on, as in an unchanged TF1 program. */
TRN_API void trn_use_ref_variables(trn_builder *b, bool yes);
TRN_API trn_out trn_variable_read(trn_builder *b, trn_variable *v); /* another read, where the current control scope puts it */
TRN_API trn_out trn_variable_assign(trn_builder *b, trn_variable *v, trn_out value);
TRN_API trn_out trn_variable_assign_add(trn_builder *b, trn_variable *v, trn_out delta);
TRN_API trn_variable *trn_variable_of(const trn_builder *b, trn_out handle_or_value); /* NULL when it is none */
TRN_API trn_variable *trn_variable_find(const trn_builder *b, const char *name);      /* NULL when there is none */
typedef enum trn_which { TRN_VARS_GLOBAL, TRN_VARS_TRAINABLE, TRN_VARS_LOCAL, TRN_VARS_ALL } trn_which;
TRN_API trn_variable **trn_variables(int *n, trn_builder *b, trn_which which); /* in order of creation */
TRN_API trn_out trn_variables_init(trn_builder *b, trn_which which);           /* "init": runs every initializer. Made once per kind. */
TRN_API trn_variable *trn_global_step(trn_builder *b);                         /* int64 "global_step"; made on first use */

/* ---- collections ("summaries", "losses", "update_ops", …): what the parts of a program leave for each other ---------- */

TRN_API void trn_collect(trn_builder *b, const char *collection, trn_out o); /* made on first use */
TRN_API const trn_out *trn_collection(int *n, const trn_builder *b, const char *collection);
/* A value of any kind by key, for modules that keep something per builder. */
TRN_API void trn_builder_put(trn_builder *b, const char *key, void *value);
TRN_API void *trn_builder_get(const trn_builder *b, const char *key);
/* Run when the builder is freed, last one first. */
TRN_API void trn_builder_on_free(trn_builder *b, void (*fn)(void *), void *arg);

/* ---- GraphDef ------------------------------------------------------------------------------------------------------ */

/* Adds the nodes and functions of a serialized GraphDef, under the current name scope as `prefix/…` when prefix is not NULL. */
TRN_API void trn_builder_import(trn_builder *b, const void *graph_def, size_t n, const char *prefix);
/* The same; what the imported nodes take from a tensor called inputs[i].name ("x", "x:1"; "^x" for control inputs) comes from inputs[i].tensor instead, be there a
 * node of that name in the GraphDef or not. Latches NOT_FOUND for names that no node asks for. */
TRN_API void trn_builder_import_with(trn_builder *b, const void *graph_def, size_t n, const char *prefix, const trn_named_out *inputs, int n_inputs);
/* Serialized; to be freed with free(). */
TRN_API trn_err trn_builder_export(void **out, size_t *n, const trn_builder *b) TRN_MUST_USE;
TRN_API trn_err trn_builder_export_text(char **out, const trn_builder *b) TRN_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
