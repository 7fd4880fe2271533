/* Runs a plan.
 *
 * Threads. Whoever starts or wakes a run works on it: a stack of ready nodes, taken from the top until it is empty. Expensive nodes go to
 * the pool, but for one that this thread keeps for last; a loop or disk thread keeps none, and after its share (BUDGET) hands everything
 * over, so that it gets back to its sockets. `active` counts threads at work and asynchronous kernels under way: zero ends the run.
 *
 * Depth. A kernel that ends an asynchronous one, or starts a run (a function), while this thread is already inside the executor does not
 * nest: the new work waits in the thread's list of jobs until the outermost loop takes it. So loops made of calls need no stack.
 *
 * Errors. The first one that is not a consequence of another stays; it aborts the rendezvous and fires the step's cancellation, which ends
 * what is parked. Nodes that are ready then are dropped; what lies in inputs is swept when the last thread has left. */
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "exec/run.h"
#include "exec/waits.h"

#define BUDGET 2048              /* nodes (and 256-byte pieces of input) that a loop thread runs before it hands over */
#define EXPENSIVE_BYTES (32 << 10)
#define STREAM_BYTES (2 << 20) /* what a loop thread that has time streams through itself, 100 to 400 µs: what it received is in its core's cache, and nobody is woken */
#define STACK_OUTS 8

/* ---- jobs of this thread --------------------------------------------------------------------------------------- */

static _Thread_local struct {
    job *first, **last;
    int budget;
    bool inside; /* the outermost loop is below us on the stack */
} mine;

static void job_on_pool(void *arg);

static void post(job *j)
{
    j->next = NULL;
    if (mine.inside) {
        *mine.last = j;
        mine.last = &j->next;
        return;
    }
    mine.inside = true;
    mine.budget = BUDGET;
    mine.first = NULL;
    mine.last = &mine.first;
    j->fn(j);
    while ((j = mine.first)) {
        if (!(mine.first = j->next))
            mine.last = &mine.first;
        if (mine.budget <= 0 && j->pool && trn_loop_current())
            trn_pool_submit(j->pool, job_on_pool, j);
        else
            j->fn(j);
    }
    mine.inside = false;
}

static void job_on_pool(void *arg) { post(arg); }

/* Before this thread is busy for long: others may take what waits for it. */
static void give_away_jobs(void)
{
    for (job **at = &mine.first, *j; (j = *at);) {
        if (!j->pool) {
            at = &j->next;
            continue;
        }
        if (!(*at = j->next))
            mine.last = at;
        trn_pool_submit(j->pool, job_on_pool, j);
    }
}

/* ---- the stack of ready nodes ---------------------------------------------------------------------------------- */

static void work_init(work *w, run *r)
{
    const trn_exec_env *env = r->plan->env;
    w->r = r;
    w->p = r->plan;
    w->n = 0;
    w->cap = TRN_COUNTOF(w->first);
    w->v = w->first;
    w->heavy.node = -1;
    w->may_compute = !env->pool || !(trn_loop_current() || (env->disk && trn_pool_here(env->disk)));
}

void trn_run__push(work *w, iter *it, int node, bool dead)
{
    if (w->n == w->cap) {
        ready *v = trn_xrealloc(w->v == w->first ? NULL : w->v, 2 * (size_t)w->cap * sizeof *v);
        if (w->v == w->first)
            memcpy(v, w->first, sizeof w->first);
        w->v = v;
        w->cap *= 2;
    }
    w->v[w->n++] = (ready){.node = node, .dead = dead, .it = it};
}

/* Ready nodes on their way to another thread. */
typedef struct parcel {
    job j;
    run *r;
    int n;
    ready v[];
} parcel;

static void work_on(work *w);

static void open_parcel(job *j)
{
    parcel *p = TRN_CONTAINER(j, parcel, j);
    work w;
    work_init(&w, p->r);
    for (int i = 0; i < p->n; i++)
        trn_run__push(&w, p->v[i].it, p->v[i].node, p->v[i].dead);
    free(p);
    work_on(&w);
}

/* The parcel carries one count of `active`: the sender's own, or a new one. */
static void submit(run *r, trn_pool *pool, const ready *v, int n, bool own)
{
    parcel *p = trn_xalloc(sizeof *p + (size_t)n * sizeof *v);
    p->j = (job){.fn = open_parcel, .pool = pool};
    p->r = r;
    p->n = n;
    memcpy(p->v, v, (size_t)n * sizeof *v);
    if (!own)
        atomic_fetch_add_explicit(&r->active, 1, memory_order_relaxed);
    trn_pool_submit(pool, job_on_pool, &p->j);
}

static size_t input_bytes(const pnode *n, const iter *it)
{
    size_t bytes = 0;
    for (const trn_value *v = it->val + n->in0, *end = v + n->n_in; v < end; v++)
        if (v->t && v->t->buf)
            bytes += trn_tensor_bytes(v->t);
    return bytes;
}

static bool is_expensive(const pnode *n, const iter *it)
{
    if (n->flags & TRN_OP_HEAVY)
        return true;
    size_t bytes = TRN_MAX(input_bytes(n, it), atomic_load_explicit(&n->made, memory_order_relaxed));
    if (bytes < EXPENSIVE_BYTES)
        return false;
    const trn_loop *l = n->flags & TRN_OP_STREAM && bytes < STREAM_BYTES ? trn_loop_current() : NULL;
    return !l || !trn_loop_has_time(l);
}

static void note_made(pnode *n, const trn_value *out)
{
    size_t bytes = 0;
    for (int i = 0; i < n->n_out; i++)
        if (out[i].t && out[i].t->buf)
            bytes += trn_tensor_bytes(out[i].t);
    if (bytes != atomic_load_explicit(&n->made, memory_order_relaxed))
        atomic_store_explicit(&n->made, bytes, memory_order_relaxed);
}

/* Sends what became ready above `mark` where it belongs: cheap nodes stay on the stack. */
static void sort_ready(work *w, int mark)
{
    const trn_exec_env *env = w->p->env;
    int to = mark;
    for (int i = mark; i < w->n; i++) {
        ready rd = w->v[i];
        const pnode *n = &w->p->node[rd.node];
        bool runs = n->kind == KIND_KERNEL && (!rd.dead || n->runs_dead) && !(n->flags & TRN_OP_CHEAP);
        if (runs && (n->flags & TRN_OP_DISK) && env->disk && !trn_pool_here(env->disk)) {
            submit(w->r, env->disk, &rd, 1, false);
        } else if (runs && env->pool && is_expensive(n, rd.it)) {
            if (w->may_compute && w->heavy.node >= 0)
                submit(w->r, env->pool, &w->heavy, 1, false);
            if (w->may_compute)
                w->heavy = rd;
            else
                submit(w->r, env->pool, &rd, 1, false);
        } else {
            w->v[to++] = rd;
        }
    }
    w->n = to;
}

/* ---- errors ---------------------------------------------------------------------------------------------------- */

static void run_fail(run *r, const pnode *n, trn_err err)
{
    if (trn_cancelled(r->step.cancel)) {
        trn_code c = trn_err_code(err);
        if (c == TRN_CANCELLED || c == TRN_ABORTED || trn_err_is_derived(err)) { /* it follows: say what it follows from */
            trn_err_free(err);
            err = trn_cancel_why(r->step.cancel);
        }
    }
    err = trn_exec__at_node(err, n->node);
    trn_lock(&r->mu);
    bool first = !r->err;
    if (first || (trn_err_is_derived(r->err) && !trn_err_is_derived(err))) {
        trn_err old = r->err;
        r->err = err;
        err = old;
    }
    trn_err why = first ? trn_err_set_derived(trn_err_copy(r->err)) : TRN_OK;
    trn_unlock(&r->mu);
    trn_err_free(err);
    atomic_store_explicit(&r->stop, true, memory_order_release);
    if (!first)
        return;
    TRN_DEBUG("exec", "step %lld: %s", (long long)r->step.step_id, trn_err_msg(why));
    if (r->step.rdv)
        r->step.rdv->type->abort(r->step.rdv, trn_err_copy(why));
    trn_cancel_fire(r->step.cancel, why);
}

static bool stopped(run *r)
{
    if (TRN_UNLIKELY(atomic_load_explicit(&r->stop, memory_order_acquire)))
        return true;
    if (TRN_LIKELY(!trn_cancelled(r->step.cancel)))
        return false;
    trn_lock(&r->mu);
    if (!r->err)
        r->err = trn_cancel_why(r->step.cancel);
    trn_unlock(&r->mu);
    atomic_store_explicit(&r->stop, true, memory_order_release);
    return true;
}

/* ---- inputs and outputs of one node ----------------------------------------------------------------------------- */

static void release_inputs(const trn_plan *p, const pnode *n, trn_value *in, bool root)
{
    const trn_value *constant = root ? p->frame[0].values + n->in0 : NULL;
    for (int i = 0; i < n->n_in; i++) {
        if (in[i].t && !(constant && in[i].t == constant[i].t))
            trn_tensor_unref(in[i].t);
        if (TRN_UNLIKELY(in[i].var != NULL))
            trn_resource_unref(in[i].var);
        in[i] = (trn_value){0};
    }
}

/* Takes input i out: moved, or counted when it is a preloaded constant. */
static trn_value take_input(const trn_plan *p, const pnode *n, trn_value *in, int i, bool root)
{
    trn_value v = in[i];
    if (root && v.t && v.t == p->frame[0].values[n->in0 + i].t)
        trn_tensor_ref(v.t);
    in[i] = (trn_value){0};
    return v;
}

/* References meet ops that want values, and variables that have none yet. */
static trn_err prepare_refs(const pnode *n, trn_value *in)
{
    for (int i = 0; i < n->n_in; i++) {
        if (!in[i].var)
            continue;
        if (!trn_dtype_is_ref(n->node->in_types[i])) {
            trn_tensor *t;
            trn_err err = trn_var_read(&t, in[i].var);
            if (err && (n->flags & TRN_OP_UNINIT_VALUE)) {
                trn_err_free(err);
                trn_resource_unref(in[i].var);
                in[i] = (trn_value){0};
                continue;
            }
            TRN_TRY(err);
            if (t->dtype != n->node->in_types[i]) {
                err = trn_errorf(TRN_INVALID_ARGUMENT,
                                         "%d-th input expects type %s but automatically dereferenced input tensor has type %s", i,
                                         trn_dtype_name(n->node->in_types[i]), trn_dtype_name(t->dtype));
                trn_tensor_unref(t);
                return err;
            }
            if (n->alias) { /* its users read the variable themselves */
                trn_tensor_unref(t);
                continue;
            }
            trn_resource_unref(in[i].var);
            in[i] = (trn_value){.t = t};
        } else if (!(n->flags & TRN_OP_UNINIT_OK)) {
            trn_tensor *t;
            TRN_TRY(trn_var_read(&t, in[i].var));
            trn_tensor_unref(t);
        }
    }
    return TRN_OK;
}

static trn_err check_outputs(const pnode *n, const trn_value *out)
{
    for (int i = 0; i < n->n_out; i++) {
        trn_dtype want = n->node->out_types[i];
        if (out[i].t && out[i].t->dtype == want)
            continue;
        if (out[i].var && !out[i].t && trn_dtype_is_ref(want))
            continue;
        if (out[i].t)
            return trn_errorf(TRN_INTERNAL, "Output %d of type %s does not match declared output type %s", i, trn_dtype_name(out[i].t->dtype),
                              trn_dtype_name(want));
        if (out[i].var)
            return trn_errorf(TRN_INTERNAL, "Output %d is a reference, declared was %s", i, trn_dtype_name(want));
        if (!(n->flags & TRN_OP_RECV)) /* what arrives may be dead */
            return trn_errorf(TRN_INTERNAL, "Missing %d-th output from %s", i, n->node->op);
    }
    return TRN_OK;
}

static void drop_outputs(trn_value *out, int n)
{
    for (int i = 0; i < n; i++) {
        value_unref(out[i]);
        out[i] = (trn_value){0};
    }
}

static void trace_node(trn_trace *t, const pnode *n, const trn_value *out, uint64_t start, uint64_t end)
{
    static _Thread_local uint32_t tid;
    if (!tid)
        tid = (uint32_t)syscall(SYS_gettid);
    trn_trace_node e = {.name = n->node->name, .op = n->node->op, .start_ns = start, .end_ns = end, .thread = tid};
    for (int i = 0; out && i < n->n_out; i++)
        if (out[i].t)
            e.out_bytes += (int64_t)trn_tensor_bytes(out[i].t);
    if (out && n->n_out > 0 && out[0].t) {
        e.dtype = out[0].t->dtype;
        e.shape = out[0].t->shape;
    }
    trn_lock(&t->mu);
    if (t->n < TRN_TRACE_MAX) /* a loop has as many turns as it likes */
        TRN_PUSH(t->v, t->n, t->cap, e);
    trn_unlock(&t->mu);
}

/* ---- asynchronous kernels --------------------------------------------------------------------------------------- */

enum { A_IN_KERNEL, A_RETURNED, A_DONE };

/* Who comes second, the kernel's return or trn_k_done, goes on with the node. */
typedef struct actx {
    trn_kctx k; /* first: what trn_k_done gets */
    job j;
    run *r;
    iter *it;
    const pnode *n;
    _Atomic int state;
    trn_err err;
    uint64_t start_ns;
    trn_parked parked;
    trn_value out[];
} actx;

/* The node's end, with this thread at work on its run. Frees the context. */
static void end_async(work *w, actx *a)
{
    run *r = w->r;
    if (a->parked.listed)
        trn_waits_del(w->p->env->waits, &a->parked);
    trn_err err = a->err ? a->err : check_outputs(a->n, a->out);
    if (TRN_UNLIKELY(r->trace != NULL))
        trace_node(r->trace, a->n, a->out, a->start_ns, trn_now_ns());
    release_inputs(w->p, a->n, a->k.in, !a->it->f);
    if (TRN_UNLIKELY(err != NULL)) {
        drop_outputs(a->out, a->n->n_out);
        run_fail(r, a->n, err);
    } else {
        bool dead = a->n->n_out > 0 && (a->n->flags & TRN_OP_RECV) && value_is_dead(a->out[0]);
        trn_run__propagate(w, a->it, a->n, a->out, dead);
    }
    free(a);
}

static void resume(job *j)
{
    actx *a = TRN_CONTAINER(j, actx, j);
    work w;
    work_init(&w, a->r);
    end_async(&w, a);
    sort_ready(&w, 0);
    work_on(&w);
}

static void api_done(trn_kctx *k, trn_err err)
{
    actx *a = (actx *)k;
    a->err = err;
    if (atomic_exchange_explicit(&a->state, A_DONE, memory_order_acq_rel) == A_RETURNED)
        post(&a->j);
}

static void run_async(work *w, iter *it, const pnode *n, trn_value *in, bool dead)
{
    run *r = w->r;
    actx *a = trn_xalloc(sizeof *a + (size_t)n->n_out * sizeof *a->out);
    a->k = (trn_kctx){.node = n->node, .state = n->state, .in = in, .out = a->out, .n_in = n->n_in, .n_out = n->n_out, .dead = dead,
                      .frame_id = it->f ? it->f->id : 0, .iter = it->num, .step = &r->step};
    a->j = (job){.fn = resume, .pool = w->p->env->pool};
    a->r = r;
    a->it = it;
    a->n = n;
    if (r->trace)
        a->start_ns = trn_now_ns();
    atomic_fetch_add_explicit(&r->active, 1, memory_order_relaxed);
    trn_err err = n->kernel(&a->k);
    trn_waits *waits = n->kind == KIND_ASYNC ? w->p->env->waits : NULL;
    if (waits && !err && atomic_load_explicit(&a->state, memory_order_acquire) != A_DONE) {
        a->parked = (trn_parked){.node = n->node, .graph = w->p->g, .step_id = r->step.step_id};
        trn_waits_add(waits, &a->parked);
    }
    if (err)
        a->err = err;
    else if (atomic_exchange_explicit(&a->state, A_RETURNED, memory_order_acq_rel) != A_DONE)
        return; /* parked; `a` may be gone already */
    atomic_fetch_sub_explicit(&r->active, 1, memory_order_relaxed); /* this thread has its own */
    end_async(w, a);
}

/* ---- one node --------------------------------------------------------------------------------------------------- */

static trn_err run_switch(const trn_plan *p, const pnode *n, trn_value *in, trn_value *out, bool root)
{
    const trn_tensor *pred = in[1].t;
    if (!pred || pred->shape.rank != 0)
        return trn_errorf(TRN_INVALID_ARGUMENT, "The second input must be a scalar");
    int64_t to = pred->dtype == TRN_BOOL ? TRN_DATA(pred, bool)[0] : TRN_DATA(pred, int32_t)[0];
    if (pred->dtype != TRN_BOOL && (to < 0 || to >= n->n_out))
        to = n->n_out - 1; /* _SwitchN: the last one is the default */
    out[to] = take_input(p, n, in, 0, root);
    return TRN_OK;
}

static void run_merge(const pnode *n, trn_value *in, trn_value *out)
{
    for (int i = 0; i < n->n_in; i++) {
        if (value_is_dead(in[i]))
            continue;
        out[0] = in[i]; /* exactly one has a value, and constants are not preloaded here */
        in[i] = (trn_value){0};
        if (n->index)
            out[1].t = trn_tensor_ref(n->index[i]);
        return;
    }
}

static trn_err run_sync(run *r, iter *it, const pnode *n, trn_value *in, trn_value *out)
{
    const trn_plan *p = r->plan;
    bool root = !it->f;
    switch ((node_kind)n->kind) {
    case KIND_NOOP:
        return TRN_OK;
    case KIND_CONST:
        out[0].t = trn_tensor_ref(n->value);
        return TRN_OK;
    case KIND_IDENTITY:
    case KIND_ENTER:
    case KIND_EXIT:
    case KIND_NEXT:
        out[0] = take_input(p, n, in, 0, root);
        return TRN_OK;
    case KIND_SWITCH:
        return run_switch(p, n, in, out, root);
    case KIND_MERGE:
        run_merge(n, in, out);
        return TRN_OK;
    case KIND_KERNEL:
    case KIND_ASYNC:
    case KIND_CALL:
        break;
    }
    trn_kctx k = {.node = n->node, .state = n->state, .in = in, .out = out, .n_in = n->n_in, .n_out = n->n_out,
                  .frame_id = it->f ? it->f->id : 0, .iter = it->num, .step = &r->step};
    if (TRN_UNLIKELY(n->runs_dead))
        for (int i = 0; i < n->n_in; i++)
            k.dead |= value_is_dead(in[i]);
    TRN_TRY(n->kernel(&k));
    return check_outputs(n, out);
}

static void run_node(work *w, ready rd, trn_value *out)
{
    run *r = w->r;
    iter *it = rd.it;
    const pnode *n = &w->p->node[rd.node];
    trn_value *in = it->val + n->in0;
    if (TRN_UNLIKELY(rd.dead && !n->runs_dead)) {
        if (n->kind != KIND_MERGE) /* a dead Merge has none, and a malformed graph may just be bringing one */
            release_inputs(w->p, n, in, !it->f);
        trn_run__propagate(w, it, n, out, true);
        return;
    }
    trn_err err = TRN_UNLIKELY(n->ref_in) ? prepare_refs(n, in) : TRN_OK;
    if (!err && (n->kind == KIND_ASYNC || n->kind == KIND_CALL)) {
        bool dead = false;
        for (int i = 0; n->runs_dead && i < n->n_in; i++)
            dead |= value_is_dead(in[i]);
        run_async(w, it, n, in, dead);
        return;
    }
    uint64_t start = TRN_UNLIKELY(r->trace != NULL) ? trn_now_ns() : 0;
    if (!err)
        err = run_sync(r, it, n, in, out);
    if (TRN_UNLIKELY(r->trace != NULL))
        trace_node(r->trace, n, out, start, trn_now_ns());
    release_inputs(w->p, n, in, !it->f);
    if (TRN_UNLIKELY(err != NULL)) {
        drop_outputs(out, n->n_out);
        run_fail(r, n, err);
        return;
    }
    if (!(n->flags & TRN_OP_CHEAP))
        note_made(&r->plan->node[rd.node], out);
    trn_run__propagate(w, it, n, out, false);
}

/* ---- a run from its start to its end ------------------------------------------------------------------------------ */

/* Every fetch has a value, or the error says which has none. */
static trn_err check_rets(const run *r)
{
    for (int i = 0; i < TRN_MIN(r->step.n_rets, r->plan->n_rets); i++) {
        const pnode *n = r->plan->ret[i];
        if (!n || !value_is_dead(r->step.rets[i]))
            continue;
        const trn_gnode *gn = TRN_CONTAINER(n->node, trn_gnode, n);
        const trn_gnode *src = r->plan->g->node[gn->in[0].node];
        return trn_errorf(TRN_INVALID_ARGUMENT, "The tensor returned for %s:%d was not valid. (Retval[%d] does not have value)", src->n.name,
                          gn->in[0].slot, i);
    }
    return TRN_OK;
}

void trn_run__free_block(void *block)
{
    run *r = block;
    if (!r)
        return;
    trn_mutex_fini(&r->mu);
    free(r);
}

static run *take_block(trn_plan *p)
{
    for (int i = 0; i < RUN_CACHE; i++)
        if (atomic_load_explicit(&p->spare[i], memory_order_relaxed)) {
            run *r = atomic_exchange_explicit(&p->spare[i], NULL, memory_order_acquire);
            if (r)
                return r;
        }
    const frame_info *f = &p->frame[0];
    size_t nv = (size_t)f->n_values * sizeof(trn_value);
    run *r = trn_xalloc(sizeof *r + nv + (size_t)f->n_nodes * sizeof(uint64_t));
    trn_mutex_init(&r->mu, TRN_RANK_STEP);
    r->root.val = (trn_value *)(r + 1);
    r->root.count = (_Atomic uint64_t *)((char *)(r + 1) + nv);
    return r;
}

static void keep_block(trn_plan *p, run *r)
{
    for (int i = 0; i < RUN_CACHE; i++) {
        void *none = NULL;
        if (atomic_compare_exchange_strong_explicit(&p->spare[i], &none, r, memory_order_release, memory_order_relaxed))
            return;
    }
    trn_run__free_block(r);
}

static void run_end(run *r)
{
    trn_plan *p = r->plan;
    trn_err err = r->err ? r->err : check_rets(r);
    if (r->root.children)
        trn_run__free_frames(r);
    if (p->sweep || err)
        trn_run__sweep(&p->frame[0], &r->root);
    for (int i = 0; err && i < r->step.n_rets; i++) {
        value_unref(r->step.rets[i]);
        r->step.rets[i] = (trn_value){0};
    }
    trn_resmgr_unref(r->step.step_resmgr);
    void (*done)(void *, trn_err) = r->done;
    void *arg = r->arg;
    keep_block(p, r);
    done(arg, err);
    trn_plan_unref(p);
}

/* Runs what is on the stack and all that follows from it on this thread; gives up one count of `active`. */
static void work_on(work *w)
{
    run *r = w->r;
    trn_fpu fpu = trn_fpu_flush();
    trn_value few[STACK_OUTS] = {0};
    trn_value *out = few, *many = NULL;
    if (w->p->max_out > STACK_OUTS)
        out = many = trn_xalloc((size_t)w->p->max_out * sizeof *out);
    bool given = false;
    for (;;) {
        ready rd;
        if (w->n > 0) {
            rd = w->v[--w->n];
        } else if (w->heavy.node >= 0) {
            rd = w->heavy;
            w->heavy.node = -1;
            if (mine.first)
                give_away_jobs();
        } else {
            break;
        }
        if (stopped(r))
            break;
        if (!w->may_compute) {
            const pnode *n = &w->p->node[rd.node];
            mine.budget -= 1 + (n->flags & TRN_OP_CHEAP ? 0 : (int)(input_bytes(n, rd.it) >> (n->flags & TRN_OP_STREAM ? 11 : 8)));
            if (mine.budget <= 0) {
                w->v[w->n++] = rd; /* there is room: it was taken from there, as a thread that may not compute keeps nothing heavy */
                submit(r, w->p->env->pool, w->v, w->n, true);
                given = true;
                break;
            }
        }
        int mark = w->n;
        run_node(w, rd, out);
        if (w->n > mark)
            sort_ready(w, mark);
    }
    trn_fpu_restore(fpu);
    free(many);
    if (w->v != w->first)
        free(w->v);
    if (!given && atomic_fetch_sub_explicit(&r->active, 1, memory_order_acq_rel) == 1)
        run_end(r);
}

static void run_start(job *j)
{
    run *r = TRN_CONTAINER(j, run, start);
    const trn_plan *p = r->plan;
    work w;
    work_init(&w, r);
    if (r->trace) {
        uint64_t now = trn_now_ns();
        for (int id = 0; id < p->n; id++)
            if (p->node[id].preloaded)
                trace_node(r->trace, &p->node[id], &(trn_value){.t = p->node[id].value}, now, now);
    }
    for (int i = p->n_roots - 1; i >= 0; i--)
        trn_run__push(&w, &r->root, p->root[i], false);
    if (!w.may_compute && trn_later_count()) { /* reading a variable may mean to finish its update first */
        submit(r, p->env->pool, w.v, w.n, true);
        if (w.v != w.first)
            free(w.v);
        return;
    }
    sort_ready(&w, 0);
    work_on(&w);
}

/* ---- what kernels reach through their step ------------------------------------------------------------------------- */

static int api_threads(const trn_kctx *k)
{
    const trn_exec_env *env = ((const run *)k->step)->plan->env;
    int n = env->pool ? trn_pool_threads(env->pool) : 1;
    return env->intra > 0 && env->intra < n ? env->intra : n;
}

static void api_parallel_for(const trn_kctx *k, int64_t n, int64_t grain, void (*fn)(void *, int64_t, int64_t), void *arg)
{
    const trn_exec_env *env = ((const run *)k->step)->plan->env;
    if (env->intra > 0) /* pieces so large that no more threads find one */
        grain = TRN_MAX(grain, (n + env->intra - 1) / env->intra);
    if (!env->pool || trn_loop_current())
        fn(arg, 0, n);
    else
        trn_pool_for(env->pool, n, grain, fn, arg);
}

/* A traced step does everything itself, so that the trace shows it. */
static bool api_may_owe(const trn_kctx *k)
{
    const run *r = (const run *)k->step;
    return r->may_owe && !r->trace && api_threads(k) > 1;
}

static void api_owe(const trn_kctx *k, trn_later *l) { trn_pool_later(((const run *)k->step)->plan->env->pool, l); }

static trn_err api_check_path(const trn_kctx *k, const char *path)
{
    return trn_exec_check_path(((const run *)k->step)->plan->env, path);
}

static trn_resmgr *api_step_resmgr(const trn_kctx *k)
{
    run *r = (run *)k->step;
    trn_lock(&r->mu);
    trn_resmgr *m = r->step.step_resmgr;
    if (!m) {
        m = trn_resmgr_new("");
        __atomic_store_n(&r->step.step_resmgr, m, __ATOMIC_RELEASE);
    }
    trn_unlock(&r->mu);
    return m;
}

static const trn_step_api step_api = {
    .done = api_done,
    .call = trn_exec__call,
    .call_on = trn_exec__call_on,
    .parallel_for = api_parallel_for,
    .threads = api_threads,
    .may_owe = api_may_owe,
    .owe = api_owe,
    .check_path = api_check_path,
    .func = trn_exec__func,
    .graph = trn_exec__graph,
    .origin = trn_exec__origin,
    .graph_of = trn_exec__graph_of,
    .hash_of = trn_exec__hash_of,
    .shard = trn_exec__shard,
    .host = trn_exec__host,
    .step_resmgr = api_step_resmgr,
};

void trn_plan_run(trn_plan *p, const trn_run_opts *o, void (*done)(void *arg, trn_err err), void *arg)
{
    trn_plan__run(p, o, 0, done, arg);
}

void trn_plan__run(trn_plan *p, const trn_run_opts *o, int depth, void (*done)(void *arg, trn_err err), void *arg)
{
    run *r = take_block(p);
    const frame_info *f = &p->frame[0];
    r->step = (trn_step){.api = &step_api, .step_id = o->step_id, .resmgr = p->resmgr, .rdv = o->rdv, .cancel = o->cancel, .n_args = o->n_args,
                         .n_rets = o->n_rets, .args = o->args, .rets = o->rets};
    if (o->step_resmgr)
        r->step.step_resmgr = trn_resmgr_ref(o->step_resmgr);
    r->start = (job){.fn = run_start, .pool = p->env->pool};
    r->plan = trn_plan_ref(p);
    r->done = done;
    r->arg = arg;
    r->trace = o->trace;
    r->may_owe = o->may_owe;
    r->depth = depth;
    atomic_store_explicit(&r->active, 1, memory_order_relaxed);
    atomic_store_explicit(&r->stop, false, memory_order_relaxed);
    r->err = TRN_OK;
    memcpy(r->root.val, f->values, (size_t)f->n_values * sizeof *f->values);
    memcpy((void *)r->root.count, f->counters, (size_t)f->n_nodes * sizeof *f->counters);
    post(&r->start);
}
