/* Contexts: who they belong to, what they hold, when they end. */
#include <inttypes.h>
#include <stdlib.h>

#include "eager/coordination.h"
#include "graph/devname.h"
#include "graph/graph_priv.h"
#include "tensor/tensor_pb.h"

#define SWEEP_NS 1000000000ull
#define COORDINATION_LINGERS_NS 10000000000ull /* contexts are closed and made anew in one breath */

static void unref_tensor(void *t) { trn_tensor_unref(t); }
static void unref_plan(void *p) { trn_plan_unref(p); }

trn_ectx *trn_ectx_new(trn_eager *e, uint64_t id, uint64_t view, uint64_t keep_ns)
{
    trn_ectx *c = trn_xalloc(sizeof *c);
    c->ref = 1;
    c->e = e;
    c->id = id;
    c->view = view;
    c->keep_ns = keep_ns;
    c->seen_ns = trn_now_ns();
    trn_mutex_init(&c->mu, TRN_RANK_WORKER);
    c->handles = trn_map_new();
    c->packed = trn_map_new();
    c->plans = trn_map_new();
    c->divided = trn_map_new();
    c->steps = trn_map_new();
    c->lib = trn_funclib_new();
    c->registered = trn_map_new();
    c->lacking = trn_map_new();
    return c;
}

trn_ectx *trn_ectx_ref(trn_ectx *c)
{
    atomic_fetch_add_explicit(&c->ref, 1, memory_order_relaxed);
    return c;
}

void trn_ectx_unref(trn_ectx *c)
{
    if (!c || atomic_fetch_sub_explicit(&c->ref, 1, memory_order_acq_rel) != 1)
        return;
    trn_map_free(c->handles, unref_tensor);
    trn_map_free(c->packed, trn_epacked_unref);
    trn_map_free(c->plans, unref_plan);
    trn_map_free(c->divided, trn_divided_free);
    trn_edevices_unref(c->devices);
    trn_map_free(c->steps, NULL);
    trn_funclib_unref(c->lib);
    trn_map_free(c->registered, NULL);
    trn_map_free(c->lacking, NULL);
    trn_wsession_unref(c->session);
    trn_mutex_fini(&c->mu);
    free(c);
}

trn_err trn_ectx_find(trn_ectx **out, trn_eager *e, uint64_t id)
{
    trn_lock(&e->mu);
    trn_ectx *c = trn_map_geti(e->contexts, id);
    if (c)
        trn_ectx_ref(c);
    trn_unlock(&e->mu);
    if (!c) /* coordinators look for these words */
        return trn_errorf(TRN_ABORTED, "Unable to find a context_id matching the specified one (%" PRIu64 "): %s was restarted since, or the context ended.", id,
                          trn_worker_task(e->w));
    atomic_store_explicit(&c->seen_ns, trn_now_ns(), memory_order_relaxed);
    *out = c;
    return TRN_OK;
}

/* ---- handles -------------------------------------------------------------------------------------------------------- */

void trn_ectx_put(trn_ectx *c, int64_t op_id, int output, trn_tensor *t)
{
    trn_ehandle_key k = {op_id, output};
    trn_lock(&c->mu);
    trn_tensor *old = trn_map_put(c->handles, &k, sizeof k, trn_tensor_ref(t));
    trn_unlock(&c->mu);
    trn_tensor_unref(old);
}

static trn_err no_handle(const Tensorflow__Eager__RemoteTensorHandle *h)
{
    return trn_errorf(TRN_INVALID_ARGUMENT, "Unable to find the relevant tensor remote_handle: Op ID: %" PRId64 ", Output num: %d", h->op_id, h->output_num);
}

trn_err trn_ectx_get(trn_tensor **out, trn_ectx *c, const Tensorflow__Eager__RemoteTensorHandle *h)
{
    trn_ehandle_key k = {h->op_id, h->output_num};
    trn_lock(&c->mu);
    trn_tensor *t = trn_map_get(c->handles, &k, sizeof k);
    if (t)
        trn_tensor_ref(t);
    trn_unlock(&c->mu);
    if (!t)
        return no_handle(h);
    *out = t;
    return TRN_OK;
}

trn_err trn_ectx_drop(trn_ectx *c, const Tensorflow__Eager__RemoteTensorHandle *h)
{
    trn_ehandle_key k = {h->op_id, h->output_num};
    trn_lock(&c->mu);
    trn_tensor *t = trn_map_del(c->handles, &k, sizeof k);
    trn_unlock(&c->mu);
    if (!t)
        return trn_ectx__unpack(c, &k) ? TRN_OK : no_handle(h);
    trn_tensor_unref(t);
    return TRN_OK;
}

trn_err trn_etensor_from_pb(trn_tensor **out, const Tensorflow__TensorProto *pb, size_t *left)
{
    trn_err err = trn_tensor_from_pb_within(out, pb, left);
    if (!err)
        return TRN_OK;
    trn_err said = trn_errorf(trn_err_code(err), "Unable to parse tensor proto: %s", trn_err_msg(err));
    trn_err_free(err);
    return said;
}

/* ---- functions ------------------------------------------------------------------------------------------------------ */

static void replace_lib(trn_ectx *c, trn_funclib *lib)
{
    trn_funclib *old = c->lib;
    c->lib = lib;
    trn_funclib_unref(old);
}

static trn_funclib *library_of(trn_ectx *c)
{
    trn_lock(&c->mu);
    trn_funclib *lib = trn_funclib_ref(c->lib);
    trn_unlock(&c->mu);
    return lib;
}

/* Is it pinned to another task? */
static bool is_others(const Tensorflow__NodeDef *nd, const trn_devname *own)
{
    trn_devname d;
    trn_err err = trn_devname_parse(&d, nd->device, strlen(nd->device));
    bool other = !err && trn_devname_has_task(&d) && !trn_devname_same_task(&d, own);
    trn_err_free(err);
    return other;
}

/* Says which op of a function is not here. One that begins with "__" is a function's name, which may come later. */
static void note_lacking(trn_ectx *c, const trn_funclib *lib, const trn_devname *own, const Tensorflow__FunctionDef *f)
{
    const Tensorflow__NodeDef *lacks = NULL;
    for (size_t i = 0; !lacks && i < f->n_node_def; i++) {
        const char *op = f->node_def[i]->op;
        if (!trn_op_find(op) && strncmp(op, "__", 2) != 0 && !trn_funclib_has(lib, op) && !is_others(f->node_def[i], own))
            lacks = f->node_def[i];
    }
    if (!lacks)
        return;
    trn_lock(&c->mu);
    bool known = trn_map_puts(c->lacking, f->signature->name, c) != NULL;
    trn_unlock(&c->mu);
    if (!known)
        TRN_WARN("eager", "function %s cannot run here: Trainera has no op %s (node %s)", f->signature->name, lacks->op, lacks->name);
}

static void note_all_lacking(trn_ectx *c, const Tensorflow__Eager__RegisterFunctionOp *f)
{
    trn_funclib *lib = library_of(c);
    trn_lock(&c->mu);
    trn_devname own;
    trn_err err = trn_devname_parse(&own, c->session->task, strlen(c->session->task));
    trn_unlock(&c->mu);
    if (err)
        own = trn_devname_any();
    trn_err_free(err);
    if (f->function_def)
        note_lacking(c, lib, &own, f->function_def);
    for (size_t i = 0; f->library && i < f->library->n_function; i++)
        note_lacking(c, lib, &own, f->library->function[i]);
    trn_funclib_unref(lib);
}

/* All that running it would look at: the functions that it calls, too. What else is wrong with it, its caller learns when it runs. */
static trn_err check_component(trn_ectx *c, const char *name)
{
    trn_funclib *lib = library_of(c);
    trn_graph *g = NULL;
    trn_func_ref ref = {.name = name};
    trn_err err = trn_funclib_body(&g, lib, &ref);
    if (!err) {
        err = trn_graph_lower(g);
        if (!err)
            err = trn_graph_check_ops(g);
        if (err)
            err = trn_err_wrap(err, "function %s", name);
    }
    trn_graph_free(g);
    trn_funclib_unref(lib);
    if (err && trn_err_code(err) != TRN_UNIMPLEMENTED) {
        trn_err_free(err);
        err = TRN_OK;
    }
    return err;
}

trn_err trn_ectx_add_functions(trn_ectx *c, const Tensorflow__Eager__RegisterFunctionOp *f)
{
    const char *name = f->function_def && f->function_def->signature ? f->function_def->signature->name : "";
    trn_lock(&c->mu);
    uintptr_t times = (uintptr_t)trn_map_gets(c->registered, name);
    /* One that nobody else sees is not copied: a client may register functions by the thousand before it runs one. */
    trn_funclib *lib = trn_funclib__alone(c->lib) ? trn_funclib_ref(c->lib) : trn_funclib__copy(c->lib);
    int had = (int)trn_funclib_count(lib);
    trn_err err = f->function_def ? trn_funclib_add(lib, f->function_def) : TRN_OK; /* the same again is fine, another one is not */
    for (size_t i = 0; f->library && i < f->library->n_function && !err && !times; i++)
        err = trn_funclib_add(lib, f->library->function[i]);
    if (err || times) {
        trn_funclib__cut(lib, had);
        trn_funclib_unref(lib);
    } else
        replace_lib(c, lib);
    if (!err && f->function_def)
        trn_map_puts(c->registered, name, (void *)(times + 1));
    trn_unlock(&c->mu);
    if (err || times)
        return err;
    if (!f->is_component_function || !f->function_def) {
        note_all_lacking(c, f);
        return TRN_OK;
    }
    err = check_component(c, name);
    if (err)
        trn_err_free(trn_ectx_remove_function(c, name));
    return err;
}

trn_err trn_ectx_remove_function(trn_ectx *c, const char *name)
{
    size_t n = strlen(name) + 1;
    trn_plan **gone = NULL;
    int n_gone = 0, cap = 0;
    trn_lock(&c->mu);
    uintptr_t times = (uintptr_t)trn_map_gets(c->registered, name);
    if (times > 1)
        trn_map_puts(c->registered, name, (void *)(times - 1));
    if (times != 1) {
        trn_unlock(&c->mu);
        return times ? TRN_OK : trn_errorf(TRN_INVALID_ARGUMENT, "Tried to remove non-existent function '%s'.", name);
    }
    trn_map_dels(c->registered, name);
    trn_map_dels(c->lacking, name);
    if (trn_funclib_has(c->lib, name)) {
        trn_funclib *lib = trn_funclib__alone(c->lib) ? trn_funclib_ref(c->lib) : trn_funclib__copy(c->lib);
        trn_funclib_remove(lib, name);
        replace_lib(c, lib);
    }
    for (bool again = true; again;) { /* a plan's key begins with the name */
        again = false;
        const char *key;
        size_t len;
        void *v;
        for (size_t it = 0; !again && trn_map_next(c->plans, &it, &key, &len, &v);)
            if (len >= n && memcmp(key, name, n) == 0) {
                char *copy = trn_xalloc(len);
                memcpy(copy, key, len);
                trn_map_del(c->plans, copy, len);
                free(copy);
                TRN_PUSH(gone, n_gone, cap, v);
                again = true;
            }
    }
    trn_unlock(&c->mu);
    for (int i = 0; i < n_gone; i++)
        trn_plan_unref(gone[i]);
    free(gone);
    trn_ectx__forget(c, name);
    return TRN_OK;
}

void trn_ectx_clean_step(trn_ectx *c, int64_t step_id)
{
    trn_lock(&c->mu);
    trn_map_deli(c->steps, (uint64_t)step_id);
    trn_unlock(&c->mu);
    trn_worker_step_clean(c->e->w, step_id);
}

/* ---- the table ------------------------------------------------------------------------------------------------------ */

/* The coordination service ends some time after the last context that asked for it. [loop] */
static void sweep_coordination(trn_eager *e, uint64_t now)
{
    bool wanted = false;
    const char *key;
    size_t len;
    void *v;
    trn_lock(&e->mu);
    for (size_t it = 0; !wanted && trn_map_next(e->contexts, &it, &key, &len, &v);)
        wanted = atomic_load(&((trn_ectx *)v)->coordinated);
    trn_unlock(&e->mu);
    if (wanted)
        e->coordinated_ns = now;
    else if (e->coordinated_ns && now - e->coordinated_ns > COORDINATION_LINGERS_NS) {
        e->coordinated_ns = 0;
        trn_coord_end(e, "its last context has ended");
    }
}

/* Coordinators never say that they end: a context that nobody has asked for in its time is dropped. [loop] */
static void sweep(void *arg)
{
    trn_eager *e = arg;
    uint64_t now = trn_now_ns();
    for (bool again = true; again;) {
        again = false;
        trn_ectx *old = NULL;
        const char *key;
        size_t len;
        void *v;
        trn_lock(&e->mu);
        for (size_t it = 0; !old && trn_map_next(e->contexts, &it, &key, &len, &v);) {
            trn_ectx *c = v;
            uint64_t seen = atomic_load_explicit(&c->seen_ns, memory_order_relaxed);
            if (c->keep_ns && now > seen && now - seen > c->keep_ns)
                old = trn_ectx_ref(c);
        }
        trn_unlock(&e->mu);
        if (old) {
            TRN_INFO("eager", "context %" PRIu64 " is dropped: nobody has used it for %" PRIu64 " s", old->id, old->keep_ns / 1000000000);
            trn_ectx_close(old, TRN_ABORTED, "the context has expired");
            trn_ectx_unref(old);
            again = true;
        }
    }
    sweep_coordination(e, now);
    trn_timer_start(e->loop, &e->sweep, now + SWEEP_NS, sweep, e);
}

trn_eager *trn_eager_new(trn_worker *w, trn_loop *loop)
{
    trn_eager *e = trn_xalloc(sizeof *e);
    e->w = w;
    e->loop = loop;
    trn_mutex_init(&e->mu, TRN_RANK_SESSION);
    e->contexts = trn_map_new();
    trn_loop_post(loop, sweep, e);
    return e;
}

void trn_eager_drain(trn_eager *e)
{
    trn_lock(&e->mu);
    e->stopped = true;
    trn_unlock(&e->mu);
    trn_coord_end(e, "the task is shutting down");
}

void trn_eager_stop(trn_eager *e)
{
    trn_eager_drain(e);
    for (;;) {
        trn_ectx *c = NULL;
        const char *key;
        size_t len;
        void *v;
        trn_lock(&e->mu);
        size_t it = 0;
        if (trn_map_next(e->contexts, &it, &key, &len, &v))
            c = trn_ectx_ref(v);
        trn_unlock(&e->mu);
        if (!c)
            return;
        trn_ectx_close(c, TRN_UNAVAILABLE, "the task is shutting down");
        trn_ectx_unref(c);
    }
}

void trn_eager_free(trn_eager *e)
{
    if (!e)
        return;
    trn_agent_free(e->agent);
    trn_map_free(e->contexts, NULL); /* empty */
    trn_mutex_fini(&e->mu);
    free(e);
}

trn_eager_stats trn_eager_count(trn_eager *e)
{
    trn_eager_stats st = {0};
    const char *key;
    size_t len;
    void *v;
    trn_lock(&e->mu);
    st.contexts = trn_map_count(e->contexts);
    for (size_t it = 0; trn_map_next(e->contexts, &it, &key, &len, &v);) {
        trn_ectx *c = v;
        trn_lock(&c->mu);
        st.handles += trn_map_count(c->handles) + trn_map_count(c->packed);
        st.plans += trn_map_count(c->plans) + trn_map_count(c->divided);
        st.functions += trn_funclib_count(c->lib);
        st.lacking += trn_map_count(c->lacking);
        for (const trn_erun *r = c->running; r; r = r->next)
            st.running++;
        trn_unlock(&c->mu);
    }
    trn_unlock(&e->mu);
    return st;
}
