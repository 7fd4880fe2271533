/* For authors of ops: an op is one function and one row.
 *
 *     static trn_err relu(trn_kctx *k)                     // number, dtype and ref-ness of inputs are already checked
 *     {
 *         const trn_tensor *x = trn_in(k, 0);
 *         trn_tensor *y;
 *         TRN_TRY(trn_out_like(&y, k, 0, 0));              // takes over x's buffer when nobody else holds it
 *         ...
 *     }
 *     const trn_op trn_ops_nn[] = {
 *       { "Relu", "features:T -> activations:T; T:real", trn_sh_same, relu, 0 },
 *       { 0 }
 *     };
 *
 * The signature string:  inputs "->" outputs [";" attrs]
 *     argument   name:T  name:f32  name:&T (reference)  name:N*T (N of one type)  name:Ts (Ts is a list(type) attr)
 *     type attr  T:f32|f64|i32   T:real   T:any=f32        the set is what our kernel takes; "=f32" is the default
 *     others     N:int>=1   axis:int=0   use_locking:bool=false   container:string=""   padding:{SAME,VALID}   shape:shape
 *                shape:shape=?  (unknown rank)   value:tensor   value:tensor=u8[1,2]   f:func   eps:float=0.0001
 *                Ts:list(type)>=1   shapes:list(shape)=[]   strides:list(int)=[1,1]
 *     sets       float = f16 bf16 f32 f64; int = i8 i16 i32 i64 u8 u16 u32 u64; real = float + int; num = real + c64 c128;
 *                quant = qint8 quint8 qint16 quint16 qint32; any = everything ("int" and "float" are sets where the attr types an argument or in a union, else plain attrs); single names: f16 bf16 f32 f64 i8 … u64 c64 c128 bool str res var
 * Argument and attr names, order and defaults are TensorFlow's (tools/check-ops compares).
 */
#ifndef TRAINERA_OP_H
#define TRAINERA_OP_H

#include <trainera/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct trn_op trn_op;
typedef struct trn_opdef trn_opdef; /* a row with its signature parsed; op/registry.h */
typedef struct trn_kctx trn_kctx;
typedef struct trn_var trn_var;       /* a variable's storage; res/var.h */
typedef struct trn_resmgr trn_resmgr; /* containers; res/res.h */
typedef struct trn_rdv trn_rdv;       /* rendezvous; res/rdv.h */
typedef struct trn_cancel trn_cancel; /* op/cancel.h */
typedef struct trn_step trn_step;     /* what one run of a graph shares; op/kctx.h */

/* ---- attributes ----------------------------------------------------------------------------------------------- */

typedef enum trn_attr_kind {
    TRN_ATTR_NONE,
    TRN_ATTR_STRING,
    TRN_ATTR_INT,
    TRN_ATTR_FLOAT,
    TRN_ATTR_BOOL,
    TRN_ATTR_TYPE,
    TRN_ATTR_SHAPE,
    TRN_ATTR_TENSOR,
    TRN_ATTR_FUNC,
    TRN_ATTR_PLACEHOLDER, /* inside function bodies: stands for the function's own attr `s` */
} trn_attr_kind;

typedef struct trn_attr trn_attr;

/* A function by name, with the attrs it is instantiated with. */
typedef struct trn_func_ref {
    const char *name;
    int n_attrs;
    const trn_attr *attrs;
} trn_func_ref;

typedef union trn_attr_val {
    struct {
        const char *p; /* zero-terminated after n bytes */
        size_t n;
    } s;
    int64_t i;
    float f;
    bool b;
    trn_dtype type;
    const trn_shape *shape;
    trn_tensor *tensor; /* owned by the graph */
    const trn_func_ref *func;
} trn_attr_val;

struct trn_attr {
    const char *name;
    trn_attr_kind kind; /* of the elements, when a list; NONE for an empty untyped list */
    bool is_list;
    int n; /* elements of a list */
    union {
        trn_attr_val v;
        const trn_attr_val *list;
    };
};

/* ---- a node, as a kernel sees it ------------------------------------------------------------------------------- */

typedef struct trn_node {
    const char *name;
    const char *op;
    const char *device;    /* full name once placed: "/job:ps/replica:0/task:0/device:CPU:0"; else as requested, maybe "" */
    const trn_opdef *def;  /* NULL: not an op of ours (a function's name, or unknown) */
    int n_attrs;
    trn_attr *attrs;       /* what the graph says, then the defaults of the rest */
    int n_in, n_out;
    trn_dtype *in_types;   /* with TRN_REF where the signature (in) or the op (out) says so */
    trn_dtype *out_types;
} trn_node;

TRN_API const trn_attr *trn_node_attr(const trn_node *n, const char *name); /* NULL when absent */
/* These give the default value of the type (0, "", false, …) when the attr is absent: the row has checked what must be there. */
TRN_API int64_t trn_attr_int(const trn_node *n, const char *name);
TRN_API float trn_attr_float(const trn_node *n, const char *name);
TRN_API bool trn_attr_bool(const trn_node *n, const char *name);
TRN_API trn_dtype trn_attr_type(const trn_node *n, const char *name);
TRN_API const char *trn_attr_str(const trn_node *n, const char *name); /* zero-terminated; bytes may hold zeros: see trn_node_attr */
TRN_API const trn_shape *trn_attr_shape(const trn_node *n, const char *name); /* unknown rank when absent */
TRN_API trn_tensor *trn_attr_tensor(const trn_node *n, const char *name); /* borrowed */
TRN_API const trn_func_ref *trn_attr_func(const trn_node *n, const char *name);

/* ---- kernels -------------------------------------------------------------------------------------------------- */

/* What travels along an edge: a tensor, or (ref edges) the variable it lives in. */
typedef struct trn_value {
    trn_tensor *t;
    trn_var *var;
} trn_value;

struct trn_kctx {
    const trn_node *node;
    void *state;       /* what row->init made; shared by all steps of the session, so locked by the kernel itself */
    trn_value *in;     /* n_in: a ref input has `var`; if the op does not want a ref, `t` is its value at the time of the call */
    trn_value *out;    /* n_out: zero at entry; left zero = the op forgot it (INTERNAL) */
    int n_in, n_out;
    bool dead;         /* only for TRN_OP_DEAD_OK rows: an input was dead */
    uint64_t frame_id; /* of the frame that the node runs in: part of rendezvous keys */
    int64_t iter;
    trn_step *step;
};

#define TRN_IN(k, i) ((const trn_tensor *)(k)->in[i].t) /* input i, borrowed */
static inline const trn_tensor *trn_in(const trn_kctx *k, int i) { return k->in[i].t; }
/* First flat input of a named argument and how many it has, for N*T and list(type) arguments. */
TRN_API int trn_in_arg(const trn_kctx *k, const char *arg, int *count);
/* New output tensor. Borrowed pointer: the context owns it. */
TRN_API trn_err trn_out_new(trn_tensor **out, trn_kctx *k, int i, trn_dtype dtype, const trn_shape *shape) TRN_MUST_USE;
/* Output i with dtype and shape of input j: takes over j's buffer when the kernel is its only holder (so y may alias x). */
TRN_API trn_err trn_out_like(trn_tensor **out, trn_kctx *k, int i, int j) TRN_MUST_USE;
/* Same, for an output of another shape or dtype: tries to take over input j's buffer when sizes agree. j < 0: just allocate. */
TRN_API trn_err trn_out_forward(trn_tensor **out, trn_kctx *k, int i, int j, trn_dtype dtype, const trn_shape *shape) TRN_MUST_USE;
TRN_API void trn_out_set(trn_kctx *k, int i, TRN_OWN trn_tensor *t);
TRN_API void trn_out_var(trn_kctx *k, int i, trn_var *var); /* ref output; adds a reference */

/* Error that names the op and the node is added by the executor; say only what is wrong. */
#define TRN_BAD(...) trn_errorf(TRN_INVALID_ARGUMENT, __VA_ARGS__)
/* if (!(cond)) return INVALID_ARGUMENT */
#define TRN_CHECK_ARG(cond, ...)                                                                                       \
    do {                                                                                                               \
        if (__builtin_expect(!(cond), 0))                                                                              \
            return trn_errorf(TRN_INVALID_ARGUMENT, __VA_ARGS__);                                                      \
    } while (0)

/* Where a kernel reaches the rest of the world. */
TRN_API int64_t trn_k_step_id(const trn_kctx *k);
TRN_API trn_resmgr *trn_k_resmgr(const trn_kctx *k);      /* containers of the session */
TRN_API trn_resmgr *trn_k_step_resmgr(const trn_kctx *k); /* dies with the step: TensorArray, Stack */
TRN_API trn_rdv *trn_k_rdv(const trn_kctx *k);
TRN_API trn_cancel *trn_k_cancel(const trn_kctx *k);
TRN_API trn_err trn_k_check_path(const trn_kctx *k, const char *path) TRN_MUST_USE; /* --allow-path */
/* fn(arg, begin, end) over [0, n), in parallel when it is worth it: `grain` elements at least per piece. Returns when all are done. */
TRN_API void trn_k_for(const trn_kctx *k, int64_t n, int64_t grain, void (*fn)(void *, int64_t, int64_t), void *arg);
/* How many threads one kernel may use, for those that divide their work in advance: results depend on nothing else. */
TRN_API int trn_k_threads(const trn_kctx *k);
/* For TRN_OP_ASYNC rows: exactly once, from any thread, after (or while) the kernel returns TRN_OK. A kernel that returns an error must
 * not call it. The context stays valid until then. */
TRN_API void trn_k_done(trn_kctx *k, TRN_OWN trn_err err);
/* Runs a function of the graph's library. `done` gets the results (borrowed) or an error; may run before this returns, on any thread. */
typedef void (*trn_call_done)(void *arg, TRN_OWN trn_err err, trn_tensor **rets, int n_rets);
TRN_API void trn_k_call(trn_kctx *k, const trn_func_ref *f, trn_tensor *const *args, int n_args, trn_call_done done, void *arg);

typedef trn_err (*trn_kernel_fn)(trn_kctx *k);

/* Per-node state, made when the node is first prepared in a session; lives as long as the session (TensorFlow keeps stateful kernels
 * per session and node name, across graphs). */
typedef struct trn_kinit {
    const trn_node *node;
    trn_resmgr *resmgr;
    void *state; /* set by init */
} trn_kinit;

/* ---- shape rules ---------------------------------------------------------------------------------------------- */

/* Runs when graphs are built or checked; unknown is always allowed. */
typedef struct trn_shctx {
    const trn_node *node;
    int n_in, n_out;
    const trn_shape *in;           /* partial shapes */
    const trn_tensor *const *value; /* constant inputs, or NULL each */
    trn_shape *out;                /* unknown at entry */
} trn_shctx;
typedef trn_err (*trn_shape_fn)(trn_shctx *s);

TRN_API trn_err trn_sh_same(trn_shctx *s);    /* every output like input 0 */
TRN_API trn_err trn_sh_bcast(trn_shctx *s);   /* output 0: inputs 0 and 1 broadcast */
TRN_API trn_err trn_sh_scalar(trn_shctx *s);  /* every output a scalar */
TRN_API trn_err trn_sh_unknown(trn_shctx *s); /* nothing is known before it runs */
TRN_API trn_err trn_sh_attr(trn_shctx *s);    /* output 0 is attr "shape" */

/* ---- the row -------------------------------------------------------------------------------------------------- */

enum {
    TRN_OP_CHEAP = 1 << 0,    /* microseconds whatever its inputs: run where it became ready */
    TRN_OP_HEAVY = 1 << 1,    /* never on a loop thread, even with small inputs */
    TRN_OP_ASYNC = 1 << 2,    /* ends by trn_k_done: holds no thread while it waits */
    TRN_OP_STATEFUL = 1 << 3, /* never folded, merged or dropped; state per session and node name */
    TRN_OP_DISK = 1 << 4,     /* does file I/O: runs on the disk threads */
    TRN_OP_DEAD_OK = 1 << 5,  /* runs on dead inputs (_Send) */
    TRN_OP_UNINIT_OK = 1 << 6, /* takes uninitialised ref inputs (Assign, IsVariableInitialized) */
    TRN_OP_BACK = 1 << 7,     /* effects may be seen by the client only: not folded (Print, Assert) */
    TRN_OP_STREAM = 1 << 8,   /* about as long as it takes to receive its inputs: a loop thread that has time does megabytes of it where they arrived */
    TRN_OP_UNINIT_VALUE = 1 << 9, /* takes uninitialised variables as values, too: `t` is NULL then (Copy) */
    /* Control flow, done by the executor itself: */
    TRN_OP_SWITCH = 1 << 16,
    TRN_OP_MERGE = 1 << 17,
    TRN_OP_ENTER = 1 << 18,
    TRN_OP_EXIT = 1 << 19,
    TRN_OP_NEXT = 1 << 20,
    TRN_OP_LOOPCOND = 1 << 21,
    TRN_OP_CTRL_TRIGGER = 1 << 22,
    TRN_OP_SEND = 1 << 23,
    TRN_OP_RECV = 1 << 24,
};

struct trn_op {
    const char *name;
    const char *sig;
    trn_shape_fn shape;
    trn_kernel_fn kernel;
    uint32_t flags;
    trn_err (*init)(trn_kinit *ki); /* may be NULL */
    void (*fini)(void *state);
};

#ifdef __cplusplus
}
#endif
#endif
