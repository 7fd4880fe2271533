/* Datasets and iterators: tf.data without a thread per stage.
 *
 * A dataset (trn_ds) is what travels in a variant tensor: an operator, its inputs and parameters; immutable, counted. An iterator (trn_it) is
 * one walk over it, a tree like the dataset's. An operator is a small state machine: `next` is called with what happened (a new pull, an
 * element of an input, a function's results) and says what it wants. It never waits and never calls another operator; an *activity* (trn_act)
 * does that: a stack of iterators that pull on each other, moved forward by whichever thread brings the event it waits for. Operators that
 * work ahead (Prefetch, ParallelMap) have activities of their own between their input and their buffer.
 *
 * Threads: one activity at a time is in an iterator; operators with activities of their own lock what both touch. `next` runs on any thread and
 * must not block; file operators ask for a disk thread (TRN_DS_DISK). */
#ifndef TRN_DATASET_H
#define TRN_DATASET_H

#include "op/func.h"
#include "res/wait.h"
#include "tensor/tensor.h"

#define TRN_DS_MAX_DEPTH 500 /* datasets on datasets */

/* An element: a tuple of tensors. One owner. */
typedef struct trn_elem {
    int n;
    trn_tensor *t[];
} trn_elem;
trn_elem *trn_elem_new(int n);              /* all NULL */
trn_elem *trn_elem_copy(const trn_elem *e); /* the same tensors */
trn_elem *trn_elem_of(trn_tensor *const *t, int n);
void trn_elem_free(trn_elem *e);            /* NULL is fine */
size_t trn_elem_bytes(const trn_elem *e);

typedef struct trn_ds trn_ds;
typedef struct trn_it trn_it;
typedef struct trn_act trn_act;
typedef struct trn_itroot trn_itroot;

typedef enum trn_ds_why {
    TRN_DS_START,  /* somebody wants the next element; what an earlier, failed try left is forgotten */
    TRN_DS_GOT,    /* a->elem is the input's element */
    TRN_DS_ENDED,  /* the input has no more */
    TRN_DS_CALLED, /* a->elem are the function's results */
    TRN_DS_ERROR,  /* a->err is what the input or the function failed with; only for operators that catch */
    TRN_DS_ON_DISK,
    TRN_DS_WOKEN,
} trn_ds_why;

typedef enum trn_ds_do {
    TRN_DS_GIVE, /* a->elem is my next element */
    TRN_DS_END,
    TRN_DS_PULL, /* next of a->child */
    TRN_DS_CALL, /* my dataset's function on a->elem and what the dataset captured; or a->fn, on a->elem alone */
    TRN_DS_DISK, /* again, on a thread that may wait for files */
    TRN_DS_WAIT, /* parked: see trn_act_park */
    TRN_DS_FAIL, /* a->err */
} trn_ds_do;

typedef struct trn_ds_op {
    const char *name;
    size_t it_size;                            /* of its iterators: head + its own */
    void (*free)(trn_ds *d);                   /* its own parameters; may be NULL */
    trn_err (*start)(trn_it *it);              /* a new iterator; may be NULL */
    trn_ds_do (*next)(trn_it *it, trn_act *a, trn_ds_why why);
    void (*drop)(trn_it *it);                  /* the owner lets go: end the activities; may be NULL */
    void (*stop)(trn_it *it);                  /* free what the iterator holds; may be NULL */
    int64_t (*count)(const trn_ds *d);         /* elements; NULL: unknown */
    /* What walks begin with and the graph does not say (seeds): written down, and put back. NULL: nothing. */
    trn_err (*save)(trn_ds *d, trn_sb *out);
    trn_err (*load)(trn_ds *d, const uint8_t *p, size_t n);
    bool catches;
    bool alias; /* has the elements of its input 0: walked as if it were that one */
} trn_ds_op;

enum { TRN_DS_INFINITE = -1, TRN_DS_UNKNOWN = -2 };

/* Head of every dataset. */
struct trn_ds {
    trn_variant v;
    const trn_ds_op *op;
    int depth;
    int n_in;
    trn_ds **in;
    int n; /* components of an element */
    trn_dtype *types;
    trn_shape *shapes;
    trn_func *f;
    int n_cap;
    trn_tensor **cap; /* captured inputs of f */
    trn_origin *made; /* NULL: not by a node of its own */
};
extern const trn_variant_type trn_ds_type;

/* `size` bytes, zeroed behind the head. Inputs are referenced. INVALID_ARGUMENT over TRN_DS_MAX_DEPTH. */
trn_err trn_ds_new(void *out, const trn_ds_op *op, size_t size, trn_ds *const *in, int n_in) TRN_MUST_USE;
/* Datasets in `t`, which this one holds (captured, an element), lie below it, too: whoever goes down comes to them. INVALID_ARGUMENT as above. */
trn_err trn_ds_keeps(trn_ds *d, const trn_tensor *t) TRN_MUST_USE;
void trn_ds_elem_is(trn_ds *d, int n, const trn_dtype *types, const trn_shape *shapes); /* shapes NULL: unknown */
trn_ds *trn_ds_ref(trn_ds *d);
void trn_ds_unref(trn_ds *d);
int64_t trn_ds_count(const trn_ds *d); /* -1 infinite, -2 unknown */
/* The dataset in a scalar variant; borrowed. */
trn_err trn_ds_in(trn_ds **out, const trn_tensor *t) TRN_MUST_USE;
trn_err trn_ds_tensor(trn_tensor **out, TRN_OWN trn_ds *d) TRN_MUST_USE;

/* All that `save` of a dataset and of those below it say; and back. INVALID_ARGUMENT when it was another dataset. */
trn_err trn_ds_save(trn_sb *out, trn_ds *d) TRN_MUST_USE;
trn_err trn_ds_load(trn_ds *d, const uint8_t *p, size_t n) TRN_MUST_USE;

/* FAILED_PRECONDITION that names the op, when a function of the dataset or of those below it has state outside (trn_func). */
trn_err trn_ds_check_external(trn_ds *d) TRN_MUST_USE;

/* What the iterators of one walk share. Counted. */
struct trn_itroot {
    _Atomic uint32_t ref;
    trn_host host;
    trn_mutex mu;
    trn_map *funcs; /* trn_func of a dataset → its fork */
    trn_map *kept;  /* place and what → trn_resource: trn_it_kept */
};

/* Head of every iterator. Counted: by its owner (the one above it) and by its own activities. */
struct trn_it {
    _Atomic uint32_t ref;
    const trn_ds_op *op;
    trn_ds *d;
    trn_itroot *root;
    trn_func *f;  /* the dataset's function, with states of this walk */
    trn_it *in;   /* the input, for operators with one; dropped with the iterator */
    uint64_t place; /* in the tree: which inputs lead from the top to here; 0: a function has made the dataset */
};

trn_err trn_it_new(trn_it **out, trn_ds *d, trn_itroot *root) TRN_MUST_USE;
/* An iterator over input i of the parent's dataset. */
trn_err trn_it_new_in(trn_it **out, trn_it *parent, int i) TRN_MUST_USE;
/* What the iterators at one place of the tree have in common, however often they begin anew: a copy of `what`, made for the first. A dataset that is used twice
 * has two places. Borrowed; lives as long as the walk. For place 0 it is `what` itself. */
struct trn_resource;
struct trn_resource *trn_it_kept(trn_it *it, struct trn_resource *what, struct trn_resource *(*copy)(struct trn_resource *what));
/* The top of a tree, with a root of its own. */
trn_err trn_it_make(trn_it **out, trn_ds *d, const trn_host *host) TRN_MUST_USE;
trn_it *trn_it_ref(trn_it *it);
void trn_it_unref(trn_it *it); /* activities */
void trn_it_drop(trn_it *it);  /* the owner; NULL is fine */

/* ---- activities ------------------------------------------------------------------------------------------------ */

/* e and err NULL: the end. Returns true when the activity shall pull again (then it must be an activity of trn_act_start). */
typedef bool (*trn_act_done)(void *arg, TRN_OWN trn_err err, TRN_OWN trn_elem *e);

struct trn_act {
    trn_itroot *root;
    trn_cancel *cancel;
    trn_elem *elem;
    trn_err err;
    trn_it *child;
    trn_func *fn; /* borrowed */
    /* the driver's */
    trn_it *base;
    trn_it **stack;
    int n, cap;
    trn_ds_why why;
    trn_act_done done;
    void *arg;
    _Atomic int call;
    trn_wait w;
    trn_mutex *park_mu;
    trn_waitlist *park_list;
    trn_act *next;
};

/* [any] One pull on `it`, here and now as far as it goes; `done` once per pull, on any thread, maybe before this returns. The iterator is
 * referenced until the last. */
void trn_act_pull(trn_it *it, trn_cancel *cancel, trn_act_done done, void *arg);
/* [any] The same, on a pool thread: for operators that work ahead. */
void trn_act_start(trn_it *it, trn_cancel *cancel, trn_act_done done, void *arg);
/* Called by `next` with `mu` held, which this releases: the activity waits in `list`. Who makes it ready uses trn_wait_ready and trn_wait_end_all;
 * `next` is then called with TRN_DS_WOKEN. The result is what `next` must return. */
trn_ds_do trn_act_park(trn_act *a, trn_waitlist *list, trn_mutex *mu);
static inline trn_ds_do trn_act_fail(trn_act *a, TRN_OWN trn_err err)
{
    a->err = err;
    return TRN_DS_FAIL;
}
static inline trn_ds_do trn_act_pull_on(trn_act *a, trn_it *child)
{
    a->child = child;
    return TRN_DS_PULL;
}
static inline trn_ds_do trn_act_give(trn_act *a, TRN_OWN trn_elem *e)
{
    trn_elem_free(a->elem);
    a->elem = e;
    return TRN_DS_GIVE;
}
static inline trn_elem *trn_act_take(trn_act *a)
{
    trn_elem *e = a->elem;
    a->elem = NULL;
    return e;
}

#endif
