/* Functions whose nodes belong on several tasks: a worker's job.
 *
 * Once per function, device and places of its arguments: the body is placed (arguments are where their handles are, what takes a resource goes to it, the rest is
 * ours unless the program says otherwise), cut into one part per task, and the others' parts are registered with them as component functions. Then every run is a
 * step: our part here, RunComponentFunction for the others, one cancel for all, cleanup_function at the end. Results stay where they were made. */
#include <inttypes.h>
#include <stdlib.h>

#include "eager/eager_int.h"
#include "graph/devname.h"
#include "graph/graph_priv.h"
#include "proto/pb.h"
#include "tensor/tensor_pb.h"
#include "worker/service.h"

#define PATH "/tensorflow.eager.EagerService/"
#define SECOND UINT64_C(1000000000)
#define REGISTER_NS (30 * SECOND) /* a caller that gives up waits for no longer than this */
#define MAX_DIVIDED 8192 /* more than programs have; then all are made anew */

/* One other task's part. */
typedef struct part {
    const char *task, *device, *name; /* a device of it; the component function */
    trn_channel *channel;
    int n_args, n_rets;
    int *arg, *ret; /* which of the function's */
} part;

/* A divided function; never changed once it is built. Counted. */
typedef struct divided {
    _Atomic uint32_t ref;
    trn_arena *arena;
    trn_plan *plan; /* our own part; NULL: none */
    int n_args, n_rets;
    const char **ret_device;
    int n_parts;
    part *parts;
} divided;

/* A run on its way to its function: the first one builds it. */
typedef struct job {
    struct job *next; /* waits in the slot */
    trn_ectx *ctx;
    trn_wsession *session;
    trn_funclib *lib;
    trn_edevices *devices;
    const Tensorflow__Eager__Operation *op;
    trn_cancel *cancel;
    trn_eager_done done;
    void *arg;
    int n;           /* what comes: the inputs, those of packed ones member by member */
    trn_tensor **in; /* NULL: elsewhere */
    trn_dtype *type;
    int *dev;
    const Tensorflow__Eager__Operation__Input **input; /* how another task is told of it */
    int *first;          /* by input: where it is among them */
    int *packed;         /* by input: how many members; 0: it is not packed */
    trn_epacked **held;  /* by input: keeps them */
    size_t n_held;
    bool any_packed;
    trn_sb key;
    /* of the one that builds */
    divided *made;
    trn_join join;
    trn_arena *arena;
} job;

/* In ctx->divided. */
typedef struct slot {
    divided *d; /* NULL: being built */
    job *waiting;
} slot;

static void divided_unref(divided *d)
{
    if (!d || atomic_fetch_sub_explicit(&d->ref, 1, memory_order_acq_rel) != 1)
        return;
    trn_plan_unref(d->plan);
    for (int i = 0; i < d->n_parts; i++)
        trn_channel_unref(d->parts[i].channel);
    trn_arena_free(d->arena);
    free(d);
}

static divided *divided_ref(divided *d)
{
    atomic_fetch_add_explicit(&d->ref, 1, memory_order_relaxed);
    return d;
}

void trn_divided_free(void *v)
{
    slot *s = v;
    divided_unref(s->d);
    free(s);
}

/* ---- devices -------------------------------------------------------------------------------------------------------- */

trn_edevices *trn_edevices_new(const trn_worker *w, Tensorflow__DeviceAttributes *const *pb, size_t n, const char *self)
{
    trn_edevices *d = trn_xalloc(sizeof *d);
    d->ref = 1;
    d->arena = trn_arena_new();
    int n_own;
    const trn_device *own = trn_worker_devices(w, &n_own);
    trn_device *dev = trn_arena_alloc(d->arena, (n + (size_t)n_own) * sizeof *dev);
    /* Ours as they are here, under the name that the context has for us; the others' as the coordinator says. */
    for (int i = 0; i < n_own; i++) {
        const char *local = strstr(own[i].name, "/device:");
        dev[i] = (trn_device){trn_arena_printf(d->arena, "%s%s", self, local ? local : "/device:CPU:0"), trn_arena_strdup(d->arena, self), trn_arena_strdup(d->arena, own[i].type), own[i].incarnation};
    }
    d->set.n = n_own;
    for (size_t i = 0; i < n; i++) {
        trn_devname name;
        trn_err err = trn_devname_parse(&name, pb[i]->name, strlen(pb[i]->name));
        if (err || !trn_devname_is_full(&name)) {
            trn_err_free(err);
            continue;
        }
        char text[TRN_DEVNAME_TEXT];
        trn_devname task = trn_devname_task(name.job, name.task);
        task.replica = name.replica;
        const char *of = trn_arena_strdup(d->arena, trn_devname_text(text, &task));
        if (strcmp(of, self) != 0)
            dev[d->set.n++] = (trn_device){trn_arena_strdup(d->arena, trn_devname_text(text, &name)), of, trn_arena_strdup(d->arena, pb[i]->device_type), pb[i]->incarnation};
    }
    d->set.dev = dev;
    return d;
}

trn_edevices *trn_edevices_ref(trn_edevices *d)
{
    atomic_fetch_add_explicit(&d->ref, 1, memory_order_relaxed);
    return d;
}

void trn_edevices_unref(trn_edevices *d)
{
    if (!d || atomic_fetch_sub_explicit(&d->ref, 1, memory_order_acq_rel) != 1)
        return;
    trn_arena_free(d->arena);
    free(d);
}

int trn_edevices_find(const trn_edevices *d, const char *text)
{
    const trn_devset *set = &d->set;
    for (int i = 0; i < set->n; i++)
        if (strcmp(set->dev[i].name, text) == 0)
            return i;
    trn_devname want, have;
    trn_err err = trn_devname_parse(&want, text, strlen(text));
    for (int i = 0; i < set->n && !err; i++) {
        err = trn_devname_parse(&have, set->dev[i].name, strlen(set->dev[i].name));
        if (!err && trn_devname_match(&want, &have))
            return i;
    }
    trn_err_free(err);
    return -1;
}

/* "/job:a/replica:0/task:1" of "/job:a/replica:0/task:1/device:CPU:0"? */
static bool is_of(const char *device, const char *task)
{
    size_t n = strlen(task);
    return strncmp(device, task, n) == 0 && (device[n] == '/' || !device[n]);
}

bool trn_ectx__elsewhere(const trn_wsession *s, const Tensorflow__Eager__RemoteTensorHandle *h)
{
    return (*h->op_device || *h->device) && !is_of(h->op_device, s->task) && !is_of(h->device, s->task);
}

/* ---- building ------------------------------------------------------------------------------------------------------- */

static void pin(trn_graph *g, trn_gnode *nd, const trn_devset *set, int dev)
{
    nd->dev = dev;
    nd->n.device = trn_arena_strdup(g->arena, set->dev[dev].name);
}

/* The context's devices, and behind them a composite one for every set of devices that a packed input is on. */
typedef struct places {
    trn_devset set;
    int n_composites;
    trn_composite *composite;
    int *of; /* by input: its composite; -1: none */
} places;

static int composite_of(places *p, const job *j, trn_device *dev, int input)
{
    const int *member = &j->dev[j->first[input]], n = j->packed[input];
    for (int i = 0; i < p->n_composites; i++)
        if (p->composite[i].n == n && memcmp(p->composite[i].member, member, sizeof *member * (size_t)n) == 0)
            return i;
    dev[p->set.n] = (trn_device){trn_arena_printf(j->arena, "%s/device:" TRN_COMPOSITE ":%d", j->session->task, p->n_composites), j->session->task, TRN_COMPOSITE, 0};
    p->composite[p->n_composites] = (trn_composite){p->set.n++, n, member};
    return p->n_composites++;
}

static void find_places(places *p, const job *j)
{
    size_t n = j->op->n_op_inputs;
    *p = (places){.set = j->devices->set, .composite = trn_arena_alloc(j->arena, sizeof *p->composite * (n + 1)), .of = trn_arena_alloc(j->arena, sizeof *p->of * (n + 1))};
    trn_device *dev = trn_arena_alloc(j->arena, sizeof *dev * ((size_t)p->set.n + n));
    memcpy(dev, p->set.dev, sizeof *dev * (size_t)p->set.n);
    p->set.dev = dev;
    bool function = trn_funclib_has(j->lib, j->op->name); /* a single op has them stacked */
    for (size_t k = 0; k < n; k++)
        p->of[k] = function && j->packed[k] > 1 ? composite_of(p, j, dev, (int)k) : -1;
}

static void set_index(trn_graph *g, trn_gnode *nd, int index)
{
    trn_attr at = trn_attr__int("index", index);
    trn_gnode__set_attr(nd, g->arena, &at);
}

static trn_err check_type(const job *j, const trn_gnode *nd, int at)
{
    trn_dtype want = trn_attr_type(&nd->n, "T");
    if (want == j->type[at])
        return TRN_OK;
    return trn_errorf(TRN_INVALID_ARGUMENT, "%s: argument %" PRId64 " ('%s') is %s, not %s", j->op->name, trn_attr_int(&nd->n, "index"), nd->n.name, trn_dtype_name(want),
                      trn_dtype_name(j->type[at]));
}

static trn_err pin_args(const job *j, trn_graph *g, const places *p)
{
    bool by_input = trn_funclib_has(j->lib, j->op->name);
    int n = by_input ? (int)j->op->n_op_inputs : j->n;
    for (int i = 0; i < g->n; i++) {
        trn_gnode *nd = g->node[i];
        if (!nd || !trn_gnode__is(nd, "_Arg"))
            continue;
        int64_t index = trn_attr_int(&nd->n, "index");
        if (index < 0 || index >= n)
            return trn_errorf(TRN_INVALID_ARGUMENT, "%s: argument %" PRId64 " is missing: there are %d", j->op->name, index, n);
        int at = by_input ? j->first[index] : (int)index, composite = by_input ? p->of[index] : -1;
        TRN_TRY(check_type(j, nd, at));
        pin(g, nd, &p->set, composite >= 0 ? p->composite[composite].dev : j->dev[at]);
        if (composite < 0 && at != index)
            set_index(g, nd, at);
    }
    return TRN_OK;
}

/* Everybody takes the member of its own device. */
static trn_err take_members(const job *j, trn_graph *g, const places *p)
{
    if (!p->n_composites)
        return TRN_OK;
    TRN_TRY(trn_graph_replicate(g, &p->set, p->composite, p->n_composites));
    for (int i = 0; i < g->n; i++) {
        trn_gnode *nd = g->node[i];
        if (!nd || !trn_gnode__is(nd, "_Arg") || !trn_node_attr(&nd->n, "sub_index"))
            continue;
        int at = j->first[trn_attr_int(&nd->n, "index")] + (int)trn_attr_int(&nd->n, "sub_index");
        TRN_TRY(check_type(j, nd, at));
        set_index(g, nd, at);
        trn_gnode__del_attr(nd, "sub_index");
    }
    return TRN_OK;
}

/* A result is where the program says that it is made; nothing said: here. Resources stay with what made them anyway. */
static void pin_rets(trn_graph *g, const places *p)
{
    for (int i = 0; i < g->n; i++) {
        trn_gnode *nd = g->node[i];
        if (!nd || !trn_gnode__is(nd, "_Retval"))
            continue;
        const trn_gnode *from = g->node[nd->in[0].node];
        while (!*from->n.device && !trn_node_attr(&from->n, "_class") && trn_gnode__is(from, "Identity"))
            from = g->node[from->in[0].node];
        const trn_attr *with = trn_node_attr(&from->n, "_class");
        trn_dtype t = trn_attr_type(&nd->n, "T");
        if (from->dev >= p->set.n - p->n_composites)
            continue; /* a packed argument is on no device that could hold a result */
        if (with)
            trn_gnode__set_attr(nd, g->arena, with);
        else if (trn_gnode__is(from, "_Arg") || (*from->n.device && t != TRN_VARIANT && (t != TRN_RESOURCE || from->n.def)))
            nd->n.device = from->n.device;
    }
}

/* A variant does not travel: its result is where it was made. */
static void keep_variants(trn_graph *g)
{
    for (int i = 0; i < g->n; i++) {
        trn_gnode *nd = g->node[i];
        if (nd && trn_gnode__is(nd, "_Retval") && trn_attr_type(&nd->n, "T") == TRN_VARIANT) {
            nd->dev = g->node[nd->in[0].node]->dev;
            nd->n.device = g->node[nd->in[0].node]->n.device;
        }
    }
}

/* What is waited for has run when all parts have: a node for that would only cost messages. */
static void drop_ctl_rets(trn_graph *g)
{
    trn_gnode *nd = trn_graph_find(g, "_ctl_rets", 9);
    if (nd && nd->n.n_out == 0)
        trn_graph_remove(g, nd->id);
}

static trn_err place(trn_graph *g, const job *j, const places *p)
{
    TRN_TRY(pin_args(j, g, p));
    pin_rets(g, p);
    TRN_TRY(trn_graph_lower(g));
    TRN_TRY(trn_graph_check_ops(g));
    trn_graph_note_ops(g);
    drop_ctl_rets(g);
    bool all = !p->n_composites; /* where a node is decides which member of a packed argument it takes: none may go */
    trn_opt_opts opt = {.fold = true, .cse = true, .identity = all, .simplify = all, .fuse = all, .fuse_task = j->session->task};
    TRN_TRY(trn_graph_optimise(g, &opt, trn_exec_eval));
    TRN_TRY(trn_graph_place(g, &p->set, &(trn_place_opts){.soft = true}));
    TRN_TRY(trn_graph_place_errors(g));
    keep_variants(g);
    return take_members(j, g, p);
}

/* Our first device goes without saying, as TensorFlow's does. */
static void note_rets(divided *d, const trn_graph *g, const trn_devset *set)
{
    for (int i = 0; i < g->n; i++)
        if (g->node[i] && trn_gnode__is(g->node[i], "_Retval"))
            d->n_rets = TRN_MAX(d->n_rets, (int)trn_attr_int(&g->node[i]->n, "index") + 1);
    d->ret_device = trn_arena_alloc(d->arena, (size_t)(d->n_rets + 1) * sizeof *d->ret_device);
    for (int i = 0; i < g->n; i++)
        if (g->node[i] && trn_gnode__is(g->node[i], "_Retval") && g->node[i]->dev != 0)
            d->ret_device[trn_attr_int(&g->node[i]->n, "index")] = trn_arena_strdup(d->arena, set->dev[g->node[i]->dev].name);
}

static trn_err cut(trn_part **parts, int *n_parts, const job *j, divided *d)
{
    trn_graph *g;
    TRN_TRY(trn_ectx__graph(&g, j->ctx, j->session, j->lib, j->op, j->type, j->n, j->any_packed ? j->packed : NULL));
    if (trn_funclib_has(j->lib, j->op->name))
        g = trn_graph__without_dead_nodes(g, true);
    places p;
    find_places(&p, j);
    p.set.def = *j->op->device ? trn_edevices_find(j->devices, j->op->device) : 0;
    trn_err err = p.set.def < 0 ? trn_errorf(TRN_INVALID_ARGUMENT, "%s: unknown device %s", j->op->name, j->op->device) : TRN_OK;
    if (!err)
        err = place(g, j, &p);
    if (!err) {
        d->n_args = j->n;
        note_rets(d, g, &p.set);
        err = trn_graph_partition(parts, n_parts, g, &p.set);
    }
    trn_graph_free(g);
    return err;
}

/* The words by which a coordinator sees that a ps is lost, not the worker that says so. */
static trn_err from_task(trn_err err, const char *task, const char *method)
{
    trn_code code = trn_err_code(err);
    if (code != TRN_UNAVAILABLE && code != TRN_ABORTED)
        return err;
    trn_err more = trn_errorf(code, "%s\nAdditional GRPC error information from remote target %s while calling " PATH "%s:", trn_err_msg(err), task, method);
    bool derived = trn_err_is_derived(err);
    trn_err_free(err);
    return derived ? trn_err_set_derived(more) : more;
}

typedef struct registration {
    job *j;
    const part *p;
} registration;

static void start(job *j, TRN_OWN divided *d, TRN_OWN trn_err err);

static void built(job *j)
{
    trn_ectx *c = j->ctx;
    trn_err err = trn_join_fini(&j->join);
    divided *d = j->made;
    trn_lock(&c->mu);
    slot *s = trn_map_get(c->divided, j->key.p, j->key.n);
    job *all = s->waiting;
    s->waiting = NULL;
    if (err) /* the next try may go better: a task may be back */
        trn_map_del(c->divided, j->key.p, j->key.n);
    else
        s->d = divided_ref(d);
    trn_unlock(&c->mu);
    if (err)
        free(s);
    trn_arena_free(j->arena);
    for (job *next; all; all = next) { /* the builder among them */
        next = all->next;
        start(all, err ? NULL : divided_ref(d), err ? trn_err_copy(err) : TRN_OK);
    }
    trn_err_free(err);
    divided_unref(d);
}

static void registered(void *arg, trn_err err, const trn_msg *msg)
{
    registration *r = arg;
    (void)msg;
    if (err)
        err = from_task(trn_err_wrap(err, "part %s for %s", r->p->name, r->p->task), r->p->task, "Enqueue");
    if (trn_join_done(&r->j->join, err))
        built(r->j);
}

static bool needs_library(const trn_graph *g)
{
    for (int i = 0; i < g->n; i++) {
        const trn_gnode *nd = g->node[i];
        if (!nd)
            continue;
        if (!nd->n.def)
            return true;
        for (int k = 0; k < nd->n.n_attrs; k++)
            if (nd->n.attrs[k].kind == TRN_ATTR_FUNC)
                return true;
    }
    return false;
}

static trn_err register_part(job *j, const trn_part *from, part *p)
{
    divided *d = j->made;
    trn_devname task;
    TRN_TRY(trn_devname_parse(&task, from->task, strlen(from->task)));
    const char *address = trn_cluster_address(j->session->cluster, task.job, task.task);
    if (!address)
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s: a part belongs on %s, whose address is not known", j->op->name, from->task);
    p->task = trn_arena_strdup(d->arena, from->task);
    p->name = trn_arena_printf(d->arena, "%s_part_%016" PRIx64, j->op->name, trn_random64());
    p->device = trn_arena_printf(d->arena, "%s/device:CPU:0", from->task);
    for (int i = 0; i < from->graph->n; i++)
        if (from->graph->node[i]) {
            p->device = trn_arena_strdup(d->arena, from->graph->node[i]->n.device);
            break;
        }
    Tensorflow__FunctionDef *fd;
    int *arg, *ret;
    TRN_TRY(trn_graph__define(&fd, j->arena, from->graph, p->name, &p->n_args, &arg, &p->n_rets, &ret));
    p->arg = trn_arena_dup(d->arena, arg, sizeof *arg * (size_t)(p->n_args + 1));
    p->ret = trn_arena_dup(d->arena, ret, sizeof *ret * (size_t)(p->n_rets + 1));
    p->channel = trn_peers_get(j->ctx->e->w->peers, address);
    Tensorflow__GraphDef gd = TENSORFLOW__GRAPH_DEF__INIT;
    if (needs_library(from->graph))
        trn_funclib_export(j->lib, j->arena, &gd);
    Tensorflow__Eager__RegisterFunctionOp f = TENSORFLOW__EAGER__REGISTER_FUNCTION_OP__INIT;
    f.function_def = fd;
    f.is_component_function = true;
    f.library = gd.library;
    Tensorflow__Eager__QueueItem item = TENSORFLOW__EAGER__QUEUE_ITEM__INIT, *items = &item;
    item.item_case = TENSORFLOW__EAGER__QUEUE_ITEM__ITEM_REGISTER_FUNCTION;
    item.register_function = &f;
    Tensorflow__Eager__EnqueueRequest q = TENSORFLOW__EAGER__ENQUEUE_REQUEST__INIT;
    q.context_id = j->ctx->id;
    q.n_queue = 1;
    q.queue = &items;
    registration *r = trn_arena_alloc(j->arena, sizeof *r);
    *r = (registration){j, p};
    trn_join_add(&j->join, 1);
    trn_call_pb(p->channel, PATH "Enqueue", &q.base, trn_now_ns() + REGISTER_NS, false, NULL, registered, r);
    return TRN_OK;
}

static void build(void *arg)
{
    job *j = arg;
    divided *d = j->made = trn_xalloc(sizeof *d);
    d->ref = 1;
    d->arena = trn_arena_new();
    j->arena = trn_arena_new();
    trn_join_init(&j->join, 1);
    trn_part *parts = NULL;
    int n = 0;
    trn_err err = cut(&parts, &n, j, d);
    if (!err)
        d->parts = trn_arena_alloc(d->arena, sizeof *d->parts * (size_t)(n + 1));
    for (int i = 0; i < n && !err; i++) {
        if (strcmp(parts[i].task, j->session->task) != 0) {
            err = register_part(j, &parts[i], &d->parts[d->n_parts++]);
            continue;
        }
        trn_graph *own = parts[i].graph;
        parts[i].graph = NULL;
        trn_kcache *kc = trn_kcache_new(); /* states of its own: node names repeat from function to function */
        err = trn_plan_new(&d->plan, own, j->session->w->env, kc, j->session->resmgr);
        trn_kcache_unref(kc);
    }
    trn_parts_free(parts, n);
    if (trn_join_done(&j->join, err))
        built(j);
}

/* ---- running -------------------------------------------------------------------------------------------------------- */

typedef struct call {
    trn_erun *run;
    int part;
    trn_rpc *rpc;
} call;

struct trn_erun_parts {
    _Atomic uint32_t ref;
    divided *d;
    trn_wstep *step;
    int64_t step_id;
    uint64_t ctx_id;
    _Atomic int pending;
    trn_mutex mu;
    trn_err err;
    bool lost; /* err says that a task is gone */
    trn_cancel *cancel;
    trn_cancel_hook on_cancel;
    bool hooked;
    call *calls;
};
typedef struct trn_erun_parts run_parts;

static void parts_unref(run_parts *p)
{
    if (atomic_fetch_sub_explicit(&p->ref, 1, memory_order_acq_rel) != 1)
        return;
    for (int i = 0; i < p->d->n_parts; i++)
        trn_rpc_unref(p->calls[i].rpc);
    free(p->calls);
    trn_wstep_unref(p->step);
    trn_cancel_unref(p->cancel);
    trn_mutex_fini(&p->mu);
    divided_unref(p->d);
    free(p);
}

static void ignore_reply(void *arg, trn_err err, const trn_msg *msg)
{
    (void)arg, (void)msg;
    trn_err_free(err);
}

static void tell(const part *p, uint64_t ctx_id, Tensorflow__Eager__QueueItem *item)
{
    Tensorflow__Eager__EnqueueRequest q = TENSORFLOW__EAGER__ENQUEUE_REQUEST__INIT;
    q.context_id = ctx_id;
    q.n_queue = 1;
    q.queue = &item;
    trn_call_pb(p->channel, PATH "Enqueue", &q.base, trn_now_ns() + 30 * SECOND, false, NULL, ignore_reply, NULL);
}

static void step_over(trn_erun *r)
{
    run_parts *p = r->parts;
    if (p->hooked)
        trn_cancel_remove(p->cancel, &p->on_cancel);
    trn_worker_step_clean(r->ctx->e->w, p->step_id);
    for (int i = 0; i < p->d->n_parts; i++) {
        Tensorflow__Eager__CleanupFunctionOp c = TENSORFLOW__EAGER__CLEANUP_FUNCTION_OP__INIT;
        c.step_id = p->step_id;
        Tensorflow__Eager__QueueItem item = TENSORFLOW__EAGER__QUEUE_ITEM__INIT;
        item.item_case = TENSORFLOW__EAGER__QUEUE_ITEM__ITEM_CLEANUP_FUNCTION;
        item.cleanup_function = &c;
        tell(&p->d->parts[i], p->ctx_id, &item);
    }
    for (int i = 0; i < p->d->n_rets; i++)
        r->outs[i].device = p->d->ret_device[i];
    trn_err err = p->err;
    p->err = TRN_OK;
    trn_erun__end(r, err);
    parts_unref(p);
}

/* Records an error and ends the other parts. A lost task is what the coordinator must hear of, whatever else follows from it. */
static void fail(run_parts *p, trn_err err, bool lost)
{
    trn_err copy = trn_err_copy(err);
    trn_lock(&p->mu);
    if (!p->err || (lost && !p->lost) || (!p->lost && trn_err_is_derived(p->err) && !trn_err_is_derived(err))) {
        trn_err old = p->err;
        p->err = err;
        p->lost |= lost;
        err = old;
    }
    trn_unlock(&p->mu);
    trn_err_free(err);
    trn_cancel_fire(p->cancel, trn_err_set_derived(copy));
}

static void part_done(trn_erun *r, trn_err err, bool lost)
{
    run_parts *p = r->parts;
    if (err)
        fail(p, err, lost); /* our share of pending keeps the run */
    if (atomic_fetch_sub_explicit(&p->pending, 1, memory_order_acq_rel) == 1)
        step_over(r);
}

static void own_part_done(void *arg, trn_err err) { part_done(arg, err, false); }

/* Shapes of the results that stay there. */
static trn_err take_shapes(trn_erun *r, const part *p, const trn_msg *msg)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__Eager__RunComponentFunctionResponse *resp = NULL;
    trn_err err = TRN_PB_UNPACK(&resp, a, tensorflow__eager__run_component_function_response__descriptor, msg->p, msg->n);
    if (!err && resp->n_shape != (size_t)p->n_rets)
        err = trn_errorf(TRN_INTERNAL, "%s gave %zu results instead of %d", p->task, resp->n_shape, p->n_rets);
    for (int i = 0; i < p->n_rets && !err; i++)
        err = trn_shape_from_pb(&r->outs[p->ret[i]].shape, resp->shape[i]);
    trn_arena_free(a);
    return err;
}

static void remote_part_done(void *arg, trn_err err, const trn_msg *msg)
{
    call *c = arg;
    trn_erun *r = c->run;
    run_parts *p = r->parts;
    const part *of = &p->d->parts[c->part];
    bool lost = false;
    if (!err)
        err = take_shapes(r, of, msg);
    else if (trn_cancelled(p->cancel) && trn_err_code(err) == TRN_CANCELLED)
        err = trn_err_set_derived(err);
    else {
        if (trn_err_code(err) == TRN_CANCELLED || strstr(trn_err_msg(err), "[_Derived_]"))
            err = trn_err_set_derived(err);
        lost = trn_err_code(err) == TRN_UNAVAILABLE;
        err = from_task(err, of->task, "RunComponentFunction");
    }
    part_done(r, err, lost);
    parts_unref(p);
}

static void end_remote_parts(void *arg)
{
    run_parts *p = arg;
    for (int i = 0; i < p->d->n_parts; i++)
        if (p->calls[i].rpc)
            trn_rpc_cancel(p->calls[i].rpc);
}

static void call_part(trn_erun *r, const job *j, int i, trn_arena *a)
{
    run_parts *p = r->parts;
    const part *of = &p->d->parts[i];
    Tensorflow__Eager__Operation op = TENSORFLOW__EAGER__OPERATION__INIT;
    op.id = j->op->id;
    op.name = (char *)(uintptr_t)of->name;
    op.device = (char *)(uintptr_t)of->device;
    op.is_function = op.is_component_function = true;
    op.func_step_id = p->step_id;
    op.n_op_inputs = (size_t)of->n_args;
    op.op_inputs = trn_arena_alloc(a, sizeof *op.op_inputs * (size_t)(of->n_args + 1));
    for (int k = 0; k < of->n_args; k++) {
        op.op_inputs[k] = (Tensorflow__Eager__Operation__Input *)(uintptr_t)j->input[of->arg[k]]; /* its own handle: the argument is placed where that is */
        trn_tensor *t = r->v[of->arg[k]].t;
        if (!t)
            continue;
        Tensorflow__Eager__Operation__Input *value = trn_arena_alloc(a, sizeof *value);
        tensorflow__eager__operation__input__init(value);
        value->item_case = TENSORFLOW__EAGER__OPERATION__INPUT__ITEM_TENSOR;
        value->tensor = trn_tensor_to_pb(a, t);
        op.op_inputs[k] = value;
    }
    Tensorflow__Eager__RunComponentFunctionRequest q = TENSORFLOW__EAGER__RUN_COMPONENT_FUNCTION_REQUEST__INIT;
    q.context_id = p->ctx_id;
    q.operation = &op;
    q.n_output_num = (size_t)of->n_rets;
    q.output_num = of->ret;
    atomic_fetch_add_explicit(&p->ref, 1, memory_order_relaxed);
    uint64_t timeout = atomic_load_explicit(&r->ctx->timeout_ns, memory_order_relaxed);
    trn_call_pb(of->channel, PATH "RunComponentFunction", &q.base, timeout ? trn_now_ns() + timeout : 0, false, &p->calls[i].rpc, remote_part_done, &p->calls[i]);
}

static void start_parts(trn_erun *r, const job *j, divided *d)
{
    run_parts *p = r->parts = trn_xalloc(sizeof *p);
    p->ref = 2; /* the run's, and ours below */
    p->d = divided_ref(d);
    p->ctx_id = r->ctx->id;
    p->step_id = (int64_t)(trn_random64() >> 8 | UINT64_C(1) << 56); /* 57 bits, as TensorFlow's */
    p->step = trn_worker_step(r->ctx->e->w, p->step_id, j->session);
    p->cancel = trn_cancel_ref(r->cancel);
    trn_mutex_init(&p->mu, TRN_RANK_LEAF);
    p->calls = trn_xalloc(sizeof *p->calls * (size_t)(d->n_parts + 1));
    p->pending = 1 + d->n_parts + (d->plan != NULL); /* our own share keeps it from ending while it is being started */
    trn_arena *a = trn_arena_new();
    for (int i = 0; i < d->n_parts; i++) {
        p->calls[i] = (call){r, i, NULL};
        call_part(r, j, i, a);
    }
    trn_arena_free(a);
    p->hooked = trn_cancel_add(p->cancel, &p->on_cancel, end_remote_parts, p);
    if (!p->hooked)
        end_remote_parts(p);
    if (d->plan) {
        trn_run_opts o = {.cancel = r->cancel, .n_args = r->n_args, .n_rets = r->n_rets, .args = r->v, .rets = r->v + r->n_args};
        trn_wstep_run(p->step, r->plan, &o, own_part_done, r);
    }
    part_done(r, TRN_OK, false);
    parts_unref(p);
}

static void alone_done(void *arg, trn_err err)
{
    trn_erun__end(arg, err);
}

static void job_free(job *j)
{
    trn_cancel_unref(j->cancel);
    trn_funclib_unref(j->lib);
    trn_wsession_unref(j->session);
    trn_edevices_unref(j->devices);
    trn_ectx_unref(j->ctx);
    trn_sb_fini(&j->key);
    for (size_t k = 0; k < j->n_held; k++)
        trn_epacked_unref(j->held[k]);
    free(j->held);
    free(j->first);
    free(j->packed);
    free(j->input);
    free(j->type);
    free(j->dev);
    free(j);
}

/* The function is there, or why not. */
static void start(job *j, divided *d, trn_err err)
{
    trn_worker *w = j->ctx->e->w;
    if (err) {
        for (int i = 0; i < j->n; i++)
            trn_tensor_unref(j->in[i]);
        free(j->in);
        j->done(j->arg, err, NULL, 0);
        job_free(j);
        trn_worker_busy_add(w, -1);
        return;
    }
    trn_erun *r = trn_erun__new(j->ctx, d->plan ? trn_plan_ref(d->plan) : NULL, j->in, j->n, d->n_rets);
    trn_erun__begin(r, j->cancel, j->done, j->arg);
    if (d->n_parts)
        start_parts(r, j, d);
    else if (d->plan) { /* where its _Send and _Recv meet is nobody else's */
        r->rdv = trn_rdv_local_new();
        trn_run_opts o = {.cancel = r->cancel, .rdv = r->rdv, .step_id = (int64_t)j->ctx->id, .n_args = r->n_args, .n_rets = r->n_rets, .args = r->v, .rets = r->v + r->n_args};
        trn_plan_run(r->plan, &o, alone_done, r);
    } else
        alone_done(r, TRN_OK);
    divided_unref(d);
    job_free(j);
    trn_worker_busy_add(w, -1);
}

/* ---- finding -------------------------------------------------------------------------------------------------------- */

static trn_err take_members_of(job *j, const trn_epacked *p)
{
    for (int i = 0; i < p->n; i++, j->n++) {
        const trn_emember *m = &p->member[i];
        if (m->nested)
            return trn_errorf(TRN_INVALID_ARGUMENT, "%s: Nested packed handles are not supported", j->op->name);
        j->type[j->n] = m->dtype;
        j->dev[j->n] = trn_edevices_find(j->devices, m->device);
        if (j->dev[j->n] < 0)
            return trn_errorf(TRN_INVALID_ARGUMENT, "%s: a member of a packed handle is on the unknown device %s", j->op->name, m->device);
        j->input[j->n] = m->input;
        j->in[j->n] = m->t ? trn_tensor_ref(m->t) : NULL;
    }
    return TRN_OK;
}

static trn_err take_input(job *j, const Tensorflow__Eager__Operation__Input *i, int input, size_t *left)
{
    const char *name = j->op->name;
    int k = j->n;
    j->input[k] = i;
    if (i->item_case == TENSORFLOW__EAGER__OPERATION__INPUT__ITEM_TENSOR)
        TRN_TRY(trn_tensor_from_pb_within(&j->in[k], i->tensor, left));
    else if (i->item_case != TENSORFLOW__EAGER__OPERATION__INPUT__ITEM_REMOTE_HANDLE)
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s: input %d is empty", name, input);
    else if (trn_ectx__elsewhere(j->session, i->remote_handle)) {
        const char *device = *i->remote_handle->op_device ? i->remote_handle->op_device : i->remote_handle->device;
        j->type[k] = (trn_dtype)i->remote_handle->dtype;
        j->dev[k] = trn_edevices_find(j->devices, device);
        if (j->dev[k] < 0)
            return trn_errorf(TRN_INVALID_ARGUMENT, "%s: input %d is on the unknown device %s", name, input, device);
        j->n++;
        return TRN_OK;
    } else {
        TRN_TRY(trn_ectx_get(&j->in[k], j->ctx, i->remote_handle));
        j->dev[k] = TRN_MAX(0, trn_edevices_find(j->devices, i->remote_handle->device));
    }
    j->n++;
    j->type[k] = j->in[k]->dtype;
    /* A handle that came as a value says itself where its resource is. */
    const trn_handle *h = j->type[k] == TRN_RESOURCE && trn_tensor_count(j->in[k]) == 1 ? TRN_DATA(j->in[k], trn_handle *)[0] : NULL;
    int at = h && !h->res && h->device && !is_of(h->device, j->session->task) ? trn_edevices_find(j->devices, h->device) : -1;
    if (at >= 0)
        j->dev[k] = at;
    return TRN_OK;
}

static trn_err take_inputs(job *j, size_t *left)
{
    const Tensorflow__Eager__Operation *op = j->op;
    size_t total = 0, n = op->n_op_inputs;
    j->held = trn_xalloc((n + 1) * sizeof *j->held);
    j->packed = trn_xalloc((n + 1) * sizeof *j->packed);
    j->first = trn_xalloc((n + 1) * sizeof *j->first);
    for (; j->n_held < n; j->n_held++) {
        const Tensorflow__Eager__Operation__Input *i = op->op_inputs[j->n_held];
        trn_epacked *p = i->item_case == TENSORFLOW__EAGER__OPERATION__INPUT__ITEM_REMOTE_HANDLE && !trn_ectx__elsewhere(j->session, i->remote_handle) ? trn_ectx_packed(j->ctx, i->remote_handle) : NULL;
        j->held[j->n_held] = p;
        j->packed[j->n_held] = p ? p->n : 0;
        j->any_packed |= p != NULL;
        total += p ? (size_t)p->n : 1;
    }
    if (total > TRN_MAX_INPUTS)
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s has %zu inputs", op->name, total);
    j->in = trn_xalloc((total + 1) * sizeof *j->in);
    j->type = trn_xalloc((total + 1) * sizeof *j->type);
    j->dev = trn_xalloc((total + 1) * sizeof *j->dev);
    j->input = trn_xalloc((total + 1) * sizeof *j->input);
    for (size_t k = 0; k < n; k++) {
        j->first[k] = j->n;
        TRN_TRY(j->held[k] ? take_members_of(j, j->held[k]) : take_input(j, op->op_inputs[k], (int)k, left));
    }
    return TRN_OK;
}

void trn_ectx__divide(trn_ectx *c, trn_wsession *s, trn_funclib *lib, const Tensorflow__Eager__Operation *op, size_t *left, trn_cancel *cancel, trn_eager_done done, void *arg)
{
    job *j = trn_xalloc(sizeof *j);
    *j = (job){.ctx = trn_ectx_ref(c), .session = trn_wsession_ref(s), .lib = trn_funclib_ref(lib), .op = op, .cancel = cancel ? trn_cancel_ref(cancel) : NULL, .done = done, .arg = arg};
    trn_lock(&c->mu);
    j->devices = trn_edevices_ref(c->devices);
    trn_unlock(&c->mu);
    trn_worker_busy_add(c->e->w, 1);
    trn_err err = take_inputs(j, left);
    if (err) {
        start(j, NULL, err);
        return;
    }
    trn_ectx__plan_key(&j->key, op, j->type, j->n);
    trn_sb_add(&j->key, j->dev, sizeof *j->dev * (size_t)j->n);
    if (j->any_packed)
        trn_sb_add(&j->key, j->packed, sizeof *j->packed * op->n_op_inputs);
    trn_lock(&c->mu);
    slot *at = trn_map_get(c->divided, j->key.p, j->key.n);
    divided *d = at && at->d ? divided_ref(at->d) : NULL;
    bool builds = !at;
    if (builds) {
        at = trn_xalloc(sizeof *at);
        trn_map_put(c->divided, j->key.p, j->key.n, at);
    }
    if (!d) {
        j->next = at->waiting;
        at->waiting = j;
    }
    bool full = trn_map_count(c->divided) > MAX_DIVIDED;
    trn_unlock(&c->mu);
    if (full)
        trn_ectx__forget(c, NULL);
    if (d)
        start(j, d, TRN_OK);
    else if (builds)
        trn_pool_submit(c->e->w->env->pool, build, j);
}

void trn_ectx__forget(trn_ectx *c, const char *name)
{
    size_t n = name ? strlen(name) + 1 : 0;
    slot **gone = NULL;
    int n_gone = 0, cap = 0;
    trn_lock(&c->mu);
    for (bool again = true; again;) { /* a key begins with the name */
        again = false;
        const char *key;
        size_t len;
        void *v;
        for (size_t it = 0; !again && trn_map_next(c->divided, &it, &key, &len, &v);) {
            if (!((slot *)v)->d || (name && (len < n || memcmp(key, name, n) != 0)))
                continue;
            char *copy = trn_xalloc(len);
            memcpy(copy, key, len);
            trn_map_del(c->divided, copy, len);
            free(copy);
            TRN_PUSH(gone, n_gone, cap, v);
            again = true;
        }
    }
    trn_unlock(&c->mu);
    for (int i = 0; i < n_gone; i++) {
        for (int k = 0; k < gone[i]->d->n_parts; k++) {
            Tensorflow__Eager__RemoveFunctionOp f = TENSORFLOW__EAGER__REMOVE_FUNCTION_OP__INIT;
            f.function_name = (char *)(uintptr_t)gone[i]->d->parts[k].name;
            Tensorflow__Eager__QueueItem item = TENSORFLOW__EAGER__QUEUE_ITEM__INIT;
            item.item_case = TENSORFLOW__EAGER__QUEUE_ITEM__ITEM_REMOVE_FUNCTION;
            item.remove_function = &f;
            tell(&gone[i]->d->parts[k], c->id, &item);
        }
        trn_divided_free(gone[i]);
    }
    free(gone);
}
