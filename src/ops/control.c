/* The structural ops: constants, arguments and results, identities, the two ends of a cut edge, v1 and v2 control flow, and what talks to the
 * person at the terminal. Switch, Merge, Enter, Exit, NextIteration are done by the executor; their rows say what they look like. */
#include "ops/control.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "op/kctx.h"
#include "res/rdv.h"
#include "res/res.h"
#include "res/var.h"

/* ---- constants, feeds, arguments, results ------------------------------------------------------------------------ */

static trn_err konst(trn_kctx *k)
{
    trn_out_set(k, 0, trn_tensor_ref(trn_attr_tensor(k->node, "value")));
    return TRN_OK;
}

static trn_err sh_const(trn_shctx *s)
{
    const trn_tensor *v = trn_attr_tensor(s->node, "value");
    if (v)
        s->out[0] = v->shape;
    return TRN_OK;
}

static trn_err placeholder(trn_kctx *k)
{
    const trn_shape *shape = trn_attr_shape(k->node, "shape");
    char text[TRN_SHAPE_TEXT];
    return trn_errorf(TRN_INVALID_ARGUMENT, "You must feed a value for placeholder tensor '%s' with dtype %s%s%s", k->node->name,
                      trn_dtype_name(k->node->out_types[0]), shape->rank > 0 ? " and shape " : "",
                      shape->rank > 0 ? trn_shape_text(text, shape) : "");
}

static trn_err arg(trn_kctx *k)
{
    int64_t i = trn_attr_int(k->node, "index");
    const trn_value *v = i < k->step->n_args ? &k->step->args[i] : NULL;
    if (!v || (!v->t && !v->var))
        return trn_errorf(TRN_INVALID_ARGUMENT, "Argument %lld was not given (there are %d)", (long long)i, k->step->n_args);
    trn_tensor *t = NULL;
    if (v->t)
        t = trn_tensor_ref(v->t);
    else
        TRN_TRY(trn_var_read(&t, v->var));
    trn_out_set(k, 0, t);
    if (t->dtype != k->node->out_types[0])
        return trn_errorf(TRN_INVALID_ARGUMENT, "Argument %lld is %s, %s expected", (long long)i, trn_dtype_name(t->dtype),
                          trn_dtype_name(k->node->out_types[0]));
    return TRN_OK;
}

static trn_err retval(trn_kctx *k)
{
    int64_t i = trn_attr_int(k->node, "index");
    if (i >= k->step->n_rets)
        return trn_errorf(TRN_INVALID_ARGUMENT, "Result %lld was not asked for (%d were)", (long long)i, k->step->n_rets);
    k->step->rets[i].t = trn_tensor_ref(trn_in(k, 0));
    return TRN_OK;
}

/* ---- identities -------------------------------------------------------------------------------------------------- */

static trn_err identity(trn_kctx *k)
{
    for (int i = 0; i < k->n_out; i++)
        trn_out_set(k, i, trn_tensor_ref(trn_in(k, i)));
    return TRN_OK;
}

static trn_err sh_each(trn_shctx *s)
{
    for (int i = 0; i < s->n_out; i++)
        s->out[i] = s->in[i];
    return TRN_OK;
}

static trn_err ref_identity(trn_kctx *k)
{
    trn_out_var(k, 0, k->in[0].var);
    return TRN_OK;
}

static trn_err ref_select(trn_kctx *k)
{
    const trn_tensor *index = trn_in(k, 0);
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(index->shape.rank == 0, "Index must be a scalar, but it has shape %s", trn_shape_text(text, &index->shape));
    int32_t i = TRN_DATA(index, int32_t)[0];
    TRN_CHECK_ARG(i >= 0 && i < k->n_in - 1, "Index must be in the range [0, %d) but got %d", k->n_in - 1, i);
    trn_out_var(k, 0, k->in[1 + i].var);
    return TRN_OK;
}

/* A shape only where all inputs have the same one. */
static trn_err sh_ref_select(trn_shctx *s)
{
    s->out[0] = s->in[1];
    for (int i = 2; i < s->n_in; i++)
        if (!trn_shape_eq(&s->in[i], &s->in[1]))
            s->out[0] = trn_shape_unknown();
    return TRN_OK;
}

static trn_err nothing(trn_kctx *k) { return TRN_OK; }

static trn_err sh_none(trn_shctx *s) { return TRN_OK; }

/* ---- v1 control flow: the executor's own -------------------------------------------------------------------------- */

static trn_err by_executor(trn_kctx *k) { return trn_errorf(TRN_INTERNAL, "%s runs inside a graph only", k->node->op); }

static trn_err sh_merge(trn_shctx *s)
{
    trn_shape o = s->in[0];
    for (int i = 1; i < s->n_in; i++) {
        if (o.rank < 0 || s->in[i].rank != o.rank) {
            o = trn_shape_unknown();
            break;
        }
        for (int d = 0; d < o.rank; d++)
            if (o.dim[d] != s->in[i].dim[d])
                o.dim[d] = -1;
    }
    s->out[0] = o;
    s->out[1] = trn_shape_scalar();
    return TRN_OK;
}

/* What goes round may change its shape. */
static trn_err sh_enter(trn_shctx *s)
{
    s->out[0] = trn_attr_bool(s->node, "is_constant") ? s->in[0] : trn_shape_unknown();
    return TRN_OK;
}

/* ---- the two ends of a cut edge ------------------------------------------------------------------------------------ */

/* The key but for its frame and iteration. */
static trn_err key_init(trn_kinit *ki)
{
    const trn_node *n = ki->node;
    ki->state = trn_xasprintf("%s;%016llx;%s;%s;", trn_attr_str(n, "send_device"),
                              (unsigned long long)trn_attr_int(n, "send_device_incarnation"), trn_attr_str(n, "recv_device"),
                              trn_attr_str(n, "tensor_name"));
    return TRN_OK;
}

static const char *full_key(char *buf, size_t n, char **heap, const trn_kctx *k)
{
    const char *head = k->state;
    size_t len = strlen(head);
    char tail[48];
    int m = k->frame_id == 0 && k->iter == 0 ? snprintf(tail, sizeof tail, "0:0")
                                             : snprintf(tail, sizeof tail, "%llu:%lld", (unsigned long long)k->frame_id, (long long)k->iter);
    char *p = len + (size_t)m < n ? buf : (*heap = trn_xalloc(len + (size_t)m + 1));
    memcpy(p, head, len);
    memcpy(p + len, tail, (size_t)m + 1);
    return p;
}

static trn_err send(trn_kctx *k)
{
    trn_rdv *r = trn_k_rdv(k);
    if (!r)
        return trn_errorf(TRN_INTERNAL, "Op kernel context needs to provide a valid rendezvous.");
    char buf[512], *heap = NULL;
    const char *key = full_key(buf, sizeof buf, &heap, k);
    trn_err err = r->type->send(r, key, k->dead ? NULL : k->in[0].t, k->dead);
    free(heap);
    return err;
}

static void received(void *arg_, trn_err err, trn_tensor *t, bool dead)
{
    trn_kctx *k = arg_;
    if (!err && !dead && !t)
        err = trn_errorf(TRN_INTERNAL, "Nothing was received");
    if (!err && !dead && t->dtype != k->node->out_types[0])
        err = trn_errorf(TRN_INTERNAL, "Received %s, %s expected", trn_dtype_name(t->dtype), trn_dtype_name(k->node->out_types[0]));
    if (!err && !dead) /* a dead one leaves no output: that is how the executor knows */
        trn_out_set(k, 0, trn_tensor_ref(t));
    trn_k_done(k, err);
}

static trn_err recv(trn_kctx *k)
{
    trn_rdv *r = trn_k_rdv(k);
    if (!r)
        return trn_errorf(TRN_INTERNAL, "Op kernel context needs to provide a valid rendezvous.");
    char buf[512], *heap = NULL;
    const char *key = full_key(buf, sizeof buf, &heap, k);
    r->type->recv(r, key, trn_k_cancel(k), received, k);
    free(heap);
    return TRN_OK;
}

/* ---- messages ------------------------------------------------------------------------------------------------------- */

static trn_err assertion(trn_kctx *k)
{
    const trn_tensor *cond = trn_in(k, 0);
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(cond->shape.rank == 0, "In[0] should be a scalar: %s", trn_shape_text(text, &cond->shape));
    if (TRN_DATA(cond, bool)[0])
        return TRN_OK;
    trn_sb s = {0};
    trn_sb_adds(&s, "assertion failed: ");
    for (int i = 1; i < k->n_in; i++) {
        trn_sb_adds(&s, i > 1 ? " [" : "[");
        trn_summarize(&s, trn_in(k, i), trn_attr_int(k->node, "summarize"));
        trn_sb_adds(&s, "]");
    }
    trn_err err = trn_errorf(TRN_INVALID_ARGUMENT, "%s", s.p);
    trn_sb_fini(&s);
    return err;
}

/* One write, so that lines of several threads stay lines. What the terminal does not take is lost. */
static void say(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t w = write(fd, p, n);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return;
        p += w;
        n -= (size_t)w;
    }
}

static trn_err print_init(trn_kinit *ki)
{
    ki->state = trn_xalloc(sizeof(_Atomic int64_t)); /* how often it has printed */
    return TRN_OK;
}

static trn_err print(trn_kctx *k)
{
    trn_out_set(k, 0, trn_tensor_ref(trn_in(k, 0)));
    int64_t first_n = trn_attr_int(k->node, "first_n");
    if (first_n >= 0 && atomic_fetch_add((_Atomic int64_t *)k->state, 1) >= first_n)
        return TRN_OK;
    trn_sb s = {0};
    const trn_attr *message = trn_node_attr(k->node, "message");
    if (message)
        trn_sb_add(&s, message->v.s.p, message->v.s.n);
    for (int i = 1; i < k->n_in; i++) {
        trn_sb_adds(&s, "[");
        trn_summarize(&s, trn_in(k, i), trn_attr_int(k->node, "summarize"));
        trn_sb_adds(&s, "]");
    }
    trn_sb_adds(&s, "\n");
    say(STDERR_FILENO, s.p, s.n);
    trn_sb_fini(&s);
    return TRN_OK;
}

static trn_err print_to_file(trn_kctx *k, const char *path, const trn_sb *s)
{
    TRN_TRY(trn_k_check_path(k, path));
    int fd = open(trn_local_path(path), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0)
        return trn_err_errno(errno, "%s", path);
    say(fd, s->p, s->n);
    close(fd);
    return TRN_OK;
}

static trn_err print_v2(trn_kctx *k)
{
    const trn_tensor *t = trn_in(k, 0);
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(t->shape.rank == 0, "Input is expected to be scalar, but got %s", trn_shape_text(text, &t->shape));
    const char *to = trn_attr_str(k->node, "output_stream");
    size_t n;
    const char *p = trn_tensor_str_at(t, 0, &n);
    trn_sb s = {0};
    trn_sb_add(&s, p, n);
    bool log = strncmp(to, "log(", 4) == 0;
    if (!log)
        trn_sb_adds(&s, trn_attr_str(k->node, "end"));
    trn_err err = TRN_OK;
    if (strncmp(to, "file://", 7) == 0)
        err = print_to_file(k, to + 7, &s);
    else if (strcmp(to, "stderr") == 0)
        say(STDERR_FILENO, s.p, s.n);
    else if (strcmp(to, "stdout") == 0)
        say(STDOUT_FILENO, s.p, s.n);
    else if (strcmp(to, "log(info)") == 0 || strcmp(to, "log(warning)") == 0 || strcmp(to, "log(error)") == 0)
        trn_log(to[4] == 'i' ? TRN_LOG_INFO : to[4] == 'w' ? TRN_LOG_WARN : TRN_LOG_ERROR, "print", "%s", s.p ? s.p : "");
    else
        err = trn_errorf(TRN_INVALID_ARGUMENT,
                         "Unknown output stream: %s, Valid streams are: stdout stderr log(info) log(warning) log(error), or file://<filename>", to);
    trn_sb_fini(&s);
    return err;
}

/* ---- CheckNumerics --------------------------------------------------------------------------------------------------- */

enum { HAS_NAN = 1, HAS_INF = 2, HAS_NEG_INF = 4 };

static int kinds_of(double v) { return isnan(v) ? HAS_NAN : !isinf(v) ? 0 : v > 0 ? HAS_INF : HAS_NEG_INF; }

static int scan(const trn_tensor *t)
{
    int bad = 0;
    /* x - x is 0 for every finite x: the common case is one loop without branches. */
    if (t->dtype == TRN_FLOAT) {
        const float *x = TRN_DATA(t, float);
        float sum = 0;
        for (int64_t i = 0; i < t->count; i++)
            sum += x[i] - x[i];
        for (int64_t i = 0; sum != 0 && i < t->count; i++)
            bad |= kinds_of(x[i]);
    } else if (t->dtype == TRN_DOUBLE) {
        for (int64_t i = 0; i < t->count; i++)
            bad |= kinds_of(TRN_DATA(t, double)[i]);
    } else if (t->dtype == TRN_HALF) {
        for (int64_t i = 0; i < t->count; i++)
            bad |= kinds_of(trn_half_to_f32(TRN_DATA(t, trn_half)[i]));
    } else {
        for (int64_t i = 0; i < t->count; i++)
            bad |= kinds_of(trn_bf16_to_f32(TRN_DATA(t, trn_bf16)[i]));
    }
    return bad;
}

static trn_err check_numerics(trn_kctx *k)
{
    int bad = scan(trn_in(k, 0));
    bool v2 = strcmp(k->node->op, "CheckNumericsV2") == 0;
    if (bad) {
        const char *what[3] = {"", "", ""};
        int n = 0;
        if (v2 && (bad & HAS_NEG_INF))
            what[n++] = "-Inf";
        if (bad & (v2 ? HAS_INF : HAS_INF | HAS_NEG_INF))
            what[n++] = v2 ? "+Inf" : "Inf";
        if (bad & HAS_NAN)
            what[n++] = "NaN";
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s : Tensor had %s%s%s%s%s values", trn_attr_str(k->node, "message"), what[0],
                          n == 3 ? ", " : n == 2 ? " and " : "", what[1], n == 3 ? ", and " : "", what[2]);
    }
    trn_out_set(k, 0, trn_tensor_ref(trn_in(k, 0)));
    return TRN_OK;
}

/* ---- tensors that a session keeps -------------------------------------------------------------------------------------- */

#define SESSION_TENSORS "TensorHandle" /* container of our own: handles are unique in the process */

typedef struct kept_tensor {
    trn_resource base;
    trn_tensor *t;
} kept_tensor;

static void kept_free(trn_resource *r)
{
    trn_tensor_unref(((kept_tensor *)r)->t);
    free(r);
}

static size_t kept_bytes(trn_resource *r) { return trn_tensor_total_bytes(((kept_tensor *)r)->t); }

static const trn_restype kept_type = {.name = "TensorHandle", .free = kept_free, .bytes = kept_bytes};

static trn_err get_session_handle(trn_kctx *k)
{
    static _Atomic int64_t last_id;
    kept_tensor *kt = trn_xalloc(sizeof *kt);
    trn_resource_init(&kt->base, &kept_type);
    kt->t = trn_tensor_ref(trn_in(k, 0));
    char *handle = trn_xasprintf("%s;%lld;%s", k->node->name, (long long)atomic_fetch_add(&last_id, 1), k->node->device);
    trn_err err = trn_resmgr_put(trn_k_resmgr(k), SESSION_TENSORS, handle, &kt->base);
    trn_tensor *t = NULL;
    if (!err && k->node->out_types[0] == TRN_RESOURCE)
        err = trn_res_handle(&t, k->node, SESSION_TENSORS, handle, SESSION_TENSORS, TRN_INVALID, NULL);
    else if (!err)
        t = trn_tensor_str(handle, strlen(handle));
    free(handle);
    if (!err && !t)
        err = trn_err_oom();
    if (!err)
        trn_out_set(k, 0, t);
    return err;
}

static trn_err handle_of(char **out, trn_kctx *k)
{
    const trn_tensor *t = trn_in(k, 0);
    TRN_CHECK_ARG(t->shape.rank == 0, "handle must be scalar");
    size_t n;
    const char *p = trn_tensor_str_at(t, 0, &n);
    *out = trn_xstrndup(p, n);
    return TRN_OK;
}

static trn_err no_such_tensor(trn_err err, const char *handle)
{
    if (trn_err_code(err) != TRN_NOT_FOUND)
        return err;
    trn_err_free(err);
    return trn_errorf(TRN_INVALID_ARGUMENT, "The tensor with handle '%s' is not in the session store.", handle);
}

static trn_err get_session_tensor(trn_kctx *k)
{
    char *handle;
    TRN_TRY(handle_of(&handle, k));
    kept_tensor *kt;
    trn_err err = trn_resmgr_get(&kt, trn_k_resmgr(k), SESSION_TENSORS, handle, &kept_type);
    if (err) {
        err = no_such_tensor(err, handle);
    } else {
        trn_out_set(k, 0, trn_tensor_ref(kt->t));
        trn_resource_unref(kt);
    }
    free(handle);
    return err;
}

static trn_err delete_session_tensor(trn_kctx *k)
{
    char *handle;
    TRN_TRY(handle_of(&handle, k));
    trn_err err = trn_resmgr_del(trn_k_resmgr(k), SESSION_TENSORS, handle, &kept_type);
    if (err)
        err = no_such_tensor(err, handle);
    free(handle);
    return err;
}

/* ---- functions, for graphs that were not lowered ------------------------------------------------------------------------ */

static void called(void *arg_, trn_err err, trn_tensor **rets, int n_rets)
{
    trn_kctx *k = arg_;
    if (!err && n_rets != k->n_out)
        err = trn_errorf(TRN_INVALID_ARGUMENT, "The function gave %d results, %d were expected", n_rets, k->n_out);
    for (int i = 0; !err && i < n_rets; i++)
        trn_out_set(k, i, trn_tensor_ref(rets[i]));
    trn_k_done(k, err);
}

/* The tensors of inputs from `first` on, as an array; free it. */
static trn_tensor **tensors_of(const trn_kctx *k, int first)
{
    trn_tensor **v = trn_xalloc(((size_t)k->n_in + 1) * sizeof *v);
    for (int i = first; i < k->n_in; i++)
        v[i - first] = k->in[i].t;
    return v;
}

trn_err trn_ops_call(trn_kctx *k, const trn_func_ref *f, int first)
{
    if (!f)
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s without a function", k->node->op);
    trn_tensor **args = tensors_of(k, first);
    int n = k->n_in - first;
    trn_k_call(k, f, args, n, called, k); /* k may be gone after this */
    free(args);
    return TRN_OK;
}

static trn_err partitioned_call(trn_kctx *k) { return trn_ops_call(k, trn_attr_func(k->node, "f"), 0); }

static trn_err remote_call(trn_kctx *k)
{
    const trn_tensor *t = trn_in(k, 0);
    TRN_CHECK_ARG(t->count == 1, "target must be one string");
    size_t n;
    const char *target = trn_tensor_str_at(t, 0, &n);
    const trn_func_ref *f = trn_attr_func(k->node, "f");
    if (!f || n == 0)
        return trn_ops_call(k, f, 1);
    trn_tensor **args = tensors_of(k, 1);
    char *device = trn_xstrndup(target, n);
    trn_k_call_on(k, device, f, args, k->n_in - 1, called, k); /* k may be gone after this */
    free(device);
    free(args);
    return TRN_OK;
}

/* TensorFlow's idea of truth: a scalar that is not zero (or empty), else any tensor that has elements. */
static trn_err truth(bool *out, const trn_tensor *t)
{
    if (t->shape.rank != 0) {
        *out = t->count > 0;
        return TRN_OK;
    }
    size_t n;
    switch (t->dtype) {
    case TRN_BOOL: *out = TRN_DATA(t, uint8_t)[0]; break;
    case TRN_FLOAT: *out = TRN_DATA(t, float)[0] != 0; break;
    case TRN_DOUBLE: *out = TRN_DATA(t, double)[0] != 0; break;
    case TRN_INT32: *out = TRN_DATA(t, int32_t)[0] != 0; break;
    case TRN_UINT8: *out = TRN_DATA(t, uint8_t)[0] != 0; break;
    case TRN_INT16: *out = TRN_DATA(t, int16_t)[0] != 0; break;
    case TRN_INT8: *out = TRN_DATA(t, int8_t)[0] != 0; break;
    case TRN_INT64: *out = TRN_DATA(t, int64_t)[0] != 0; break;
    case TRN_STRING: trn_tensor_str_at(t, 0, &n), *out = n > 0; break;
    default: return trn_errorf(TRN_INVALID_ARGUMENT, "%s cannot be converted to a bool", trn_dtype_name(t->dtype));
    }
    return TRN_OK;
}

static trn_err if_op(trn_kctx *k)
{
    bool yes;
    TRN_TRY(truth(&yes, trn_in(k, 0)));
    return trn_ops_call(k, trn_attr_func(k->node, yes ? "then_branch" : "else_branch"), 1);
}

static trn_err case_op(trn_kctx *k)
{
    const trn_tensor *t = trn_in(k, 0);
    TRN_CHECK_ARG(t->count == 1, "branch_index must be a scalar");
    const trn_attr *branches = trn_node_attr(k->node, "branches");
    int32_t i = TRN_DATA(t, int32_t)[0];
    if (i < 0 || i >= branches->n)
        i = branches->n - 1;
    return trn_ops_call(k, branches->list[i].func, 1);
}

/* While as calls: cond, body, cond, … Each callback starts the next call and returns, so the stack does not grow. */
typedef struct loop {
    trn_kctx *k;
    int n;
    trn_tensor *v[]; /* loop variables; references */
} loop;

static void loop_end(loop *l, trn_err err)
{
    trn_kctx *k = l->k;
    for (int i = 0; i < l->n; i++) {
        if (err)
            trn_tensor_unref(l->v[i]);
        else
            trn_out_set(k, i, l->v[i]);
    }
    free(l);
    trn_k_done(k, err);
}

static void loop_cond(loop *l);

static void body_done(void *arg_, trn_err err, trn_tensor **rets, int n_rets)
{
    loop *l = arg_;
    if (!err && n_rets != l->n)
        err = trn_errorf(TRN_INVALID_ARGUMENT, "The loop's body gave %d values, it has %d", n_rets, l->n);
    for (int i = 0; !err && i < l->n; i++) {
        trn_tensor_unref(l->v[i]);
        l->v[i] = trn_tensor_ref(rets[i]);
    }
    if (err)
        loop_end(l, err);
    else
        loop_cond(l);
}

static void cond_done(void *arg_, trn_err err, trn_tensor **rets, int n_rets)
{
    loop *l = arg_;
    bool more = false;
    if (!err && n_rets != 1)
        err = trn_errorf(TRN_INVALID_ARGUMENT, "The loop's cond gave %d values, it must give one", n_rets);
    if (!err)
        err = truth(&more, rets[0]);
    if (err || !more)
        loop_end(l, err);
    else
        trn_k_call(l->k, trn_attr_func(l->k->node, "body"), l->v, l->n, body_done, l);
}

static void loop_cond(loop *l) { trn_k_call(l->k, trn_attr_func(l->k->node, "cond"), l->v, l->n, cond_done, l); }

static trn_err while_op(trn_kctx *k)
{
    loop *l = trn_xalloc(sizeof *l + (size_t)k->n_in * sizeof *l->v);
    l->k = k;
    l->n = k->n_in;
    for (int i = 0; i < l->n; i++)
        l->v[i] = trn_tensor_ref(trn_in(k, i));
    loop_cond(l);
    return TRN_OK;
}

/* For: the body gets the number of the iteration in front of the loop variables. v[0] is that number. */
typedef struct counted {
    trn_kctx *k;
    int64_t at, limit, delta;
    int n;
    trn_tensor *v[];
} counted;

static void for_end(counted *c, trn_err err)
{
    trn_kctx *k = c->k;
    trn_tensor_unref(c->v[0]);
    for (int i = 1; i < c->n; i++) {
        if (err)
            trn_tensor_unref(c->v[i]);
        else
            trn_out_set(k, i - 1, c->v[i]);
    }
    free(c);
    trn_k_done(k, err);
}

static void for_next(counted *c);

static void for_done(void *arg_, trn_err err, trn_tensor **rets, int n_rets)
{
    counted *c = arg_;
    if (!err && n_rets != c->n - 1)
        err = trn_errorf(TRN_INVALID_ARGUMENT, "For loop body returned %d arguments. Expected: %d", n_rets, c->n - 1);
    for (int i = 1; !err && i < c->n; i++) {
        if (rets[i - 1]->dtype != c->v[i]->dtype) {
            err = trn_errorf(TRN_INVALID_ARGUMENT, "For loop body returned %s as argument %d. Expected: %s", trn_dtype_name(rets[i - 1]->dtype), i - 1,
                             trn_dtype_name(c->v[i]->dtype));
            break;
        }
        trn_tensor_unref(c->v[i]);
        c->v[i] = trn_tensor_ref(rets[i - 1]);
    }
    c->at += c->delta;
    if (err)
        for_end(c, err);
    else
        for_next(c);
}

static void for_next(counted *c)
{
    if (c->delta > 0 ? c->at >= c->limit : c->at <= c->limit) {
        for_end(c, TRN_OK);
        return;
    }
    trn_shape s = trn_shape_scalar();
    trn_tensor_unref(c->v[0]);
    c->v[0] = NULL;
    trn_err err = trn_tensor_new(&c->v[0], TRN_INT32, &s);
    if (err) {
        for_end(c, err);
        return;
    }
    TRN_DATA_MUT(c->v[0], int32_t)[0] = (int32_t)c->at;
    trn_k_call(c->k, trn_attr_func(c->k->node, "body"), c->v, c->n, for_done, c);
}

static trn_err for_op(trn_kctx *k)
{
    static const char *const what[] = {"start", "limit", "delta"};
    int64_t v[3];
    for (int i = 0; i < 3; i++) {
        const trn_tensor *t = trn_in(k, i);
        char text[TRN_SHAPE_TEXT];
        TRN_CHECK_ARG(t->shape.rank == 0, "%s must be a scalar, not of shape %s", what[i], trn_shape_text(text, &t->shape));
        v[i] = TRN_DATA(t, int32_t)[0];
    }
    TRN_CHECK_ARG((v[2] > 0 && v[0] <= v[1]) || (v[2] < 0 && v[0] >= v[1]) || (v[0] == v[1]), "Invalid start/limit/delta: %lld %lld %lld", (long long)v[0],
                  (long long)v[1], (long long)v[2]);
    counted *c = trn_xalloc(sizeof *c + (size_t)k->n_in * sizeof *c->v);
    *c = (counted){.k = k, .at = v[0], .limit = v[1], .delta = v[2], .n = k->n_in - 2};
    c->v[0] = NULL;
    for (int i = 1; i < c->n; i++)
        c->v[i] = trn_tensor_ref(trn_in(k, i + 2));
    for_next(c);
    return TRN_OK;
}

/* Gone before a step runs. */
static trn_err by_lowering(trn_kctx *k) { return trn_errorf(TRN_UNIMPLEMENTED, "%s outside of a graph that is lowered", k->node->op); }

static trn_err to_bool(trn_kctx *k)
{
    bool yes;
    trn_tensor *y;
    trn_shape s = trn_shape_scalar();
    TRN_TRY(truth(&yes, trn_in(k, 0)));
    TRN_TRY(trn_out_new(&y, k, 0, TRN_BOOL, &s));
    TRN_DATA_MUT(y, uint8_t)[0] = yes;
    return TRN_OK;
}

static trn_err sh_output_shapes(trn_shctx *s)
{
    const trn_attr *a = trn_node_attr(s->node, "output_shapes");
    for (int i = 0; i < s->n_out; i++)
        s->out[i] = a && a->is_list && a->n == s->n_out && a->kind == TRN_ATTR_SHAPE ? *a->list[i].shape : trn_shape_unknown();
    return TRN_OK;
}

/* ---- the rows ------------------------------------------------------------------------------------------------------------ */

#define TRANSFER_ATTRS "tensor_name:string, send_device:string, send_device_incarnation:int, recv_device:string, client_terminated:bool=false"
#define SEND_SIG "tensor:T -> ; T:any, " TRANSFER_ATTRS
#define RECV_SIG "-> tensor:tensor_type; tensor_type:any, " TRANSFER_ATTRS
#define ENTER_ATTRS "T:any, frame_name:string, is_constant:bool=false, parallel_iterations:int=10"
#define CALL_SIG "args:Tin -> output:Tout; Tin:list(type)>=0, Tout:list(type)>=0, f:func, config:string=\"\", config_proto:string=\"\", executor_type:string=\"\""
#define IF_SIG                                                                                                                            \
    "cond:Tcond, input:Tin -> output:Tout; Tcond:any, Tin:list(type)>=0, Tout:list(type)>=0, then_branch:func, else_branch:func, "              \
    "output_shapes:list(shape)=[]"
#define CASE_SIG                                                                                                                          \
    "branch_index:i32, input:Tin -> output:Tout; Tin:list(type)>=0, Tout:list(type)>=0, branches:list(func)>=1, output_shapes:list(shape)=[]"
#define WHILE_SIG "input:T -> output:T; T:list(type)>=0, cond:func, body:func, output_shapes:list(shape)=[], parallel_iterations:int=10"

enum { CHEAP = TRN_OP_CHEAP, ASYNC = TRN_OP_ASYNC, STATE = TRN_OP_STATEFUL, BACK = TRN_OP_BACK, UNINIT = TRN_OP_UNINIT_OK };

const trn_op trn_ops_control[] = {
    {"Const", "-> output:dtype; value:tensor, dtype:any", sh_const, konst, CHEAP},
    {"Placeholder", "-> output:dtype; dtype:any, shape:shape=?", trn_sh_attr, placeholder, CHEAP},
    {"PlaceholderV2", "-> output:dtype; dtype:any, shape:shape", trn_sh_attr, placeholder, CHEAP},
    {"PlaceholderWithDefault", "input:dtype -> output:dtype; dtype:any, shape:shape", trn_sh_attr, identity, CHEAP},
    {"_Arg", "-> output:T; T:any, index:int>=0", trn_sh_unknown, arg, CHEAP | STATE},
    {"_Retval", "input:T -> ; T:any, index:int>=0", sh_none, retval, CHEAP | STATE},
    {"NoOp", "-> ", sh_none, nothing, CHEAP},
    {"ControlTrigger", "-> ", sh_none, nothing, CHEAP | TRN_OP_CTRL_TRIGGER},
    {"Identity", "input:T -> output:T; T:any", trn_sh_same, identity, CHEAP},
    {"DebugGradientIdentity", "input:T -> output:T; T:any", trn_sh_same, identity, CHEAP | STATE},
    {"DebugGradientRefIdentity", "input:&T -> output:&T; T:any", trn_sh_same, ref_identity, CHEAP | UNINIT},
    {"IdentityN", "input:T -> output:T; T:list(type)>=1", sh_each, identity, CHEAP},
    {"RefIdentity", "input:&T -> output:&T; T:any", trn_sh_same, ref_identity, CHEAP | UNINIT},
    {"RefSelect", "index:i32, inputs:N*&T -> output:&T; T:any, N:int>=1", sh_ref_select, ref_select, CHEAP},
    {"Snapshot", "input:T -> output:T; T:any", trn_sh_same, identity, CHEAP},
    {"StopGradient", "input:T -> output:T; T:any", trn_sh_same, identity, CHEAP},
    {"PreventGradient", "input:T -> output:T; T:any, message:string=\"\"", trn_sh_same, identity, CHEAP},

    {"Switch", "data:T, pred:bool -> output_false:T, output_true:T; T:any", trn_sh_same, by_executor, CHEAP | TRN_OP_SWITCH},
    {"RefSwitch", "data:&T, pred:bool -> output_false:&T, output_true:&T; T:any", trn_sh_same, by_executor, CHEAP | TRN_OP_SWITCH | UNINIT},
    {"_SwitchN", "data:T, output_index:i32 -> outputs:num_outs*T; num_outs:int>=1, T:any", trn_sh_same, by_executor, CHEAP | TRN_OP_SWITCH},
    {"Merge", "inputs:N*T -> output:T, value_index:i32; T:any, N:int>=1", sh_merge, by_executor, CHEAP | TRN_OP_MERGE},
    {"RefMerge", "inputs:N*&T -> output:&T, value_index:i32; T:any, N:int>=1", sh_merge, by_executor, CHEAP | TRN_OP_MERGE},
    {"Enter", "data:T -> output:T; " ENTER_ATTRS, sh_enter, by_executor, CHEAP | TRN_OP_ENTER},
    {"RefEnter", "data:&T -> output:&T; " ENTER_ATTRS, sh_enter, by_executor, CHEAP | TRN_OP_ENTER},
    {"Exit", "data:T -> output:T; T:any", trn_sh_same, by_executor, CHEAP | TRN_OP_EXIT},
    {"RefExit", "data:&T -> output:&T; T:any", trn_sh_same, by_executor, CHEAP | TRN_OP_EXIT},
    {"NextIteration", "data:T -> output:T; T:any", trn_sh_same, by_executor, CHEAP | TRN_OP_NEXT},
    {"RefNextIteration", "data:&T -> output:&T; T:any", trn_sh_same, by_executor, CHEAP | TRN_OP_NEXT},
    {"LoopCond", "input:bool -> output:bool", trn_sh_same, by_executor, CHEAP | TRN_OP_LOOPCOND},

    {"_Send", SEND_SIG, sh_none, send, CHEAP | STATE | TRN_OP_SEND | TRN_OP_DEAD_OK, key_init, free},
    {"_HostSend", SEND_SIG, sh_none, send, CHEAP | STATE | TRN_OP_SEND | TRN_OP_DEAD_OK, key_init, free},
    {"_Recv", RECV_SIG, trn_sh_unknown, recv, ASYNC | STATE | TRN_OP_RECV, key_init, free},
    {"_HostRecv", RECV_SIG, trn_sh_unknown, recv, ASYNC | STATE | TRN_OP_RECV, key_init, free},

    {"Assert", "condition:bool, data:T -> ; T:list(type)>=1, summarize:int=3", sh_none, assertion, CHEAP | STATE | BACK},
    {"Print", "input:T, data:U -> output:T; T:any, U:list(type)>=0, message:string=\"\", first_n:int=-1, summarize:int=3", trn_sh_same, print,
     STATE | BACK, print_init, free},
    {"PrintV2", "input:str -> ; output_stream:string=\"stderr\", end:string=\"\n\"", sh_none, print_v2, STATE | BACK | TRN_OP_DISK},
    {"CheckNumerics", "tensor:T -> output:T; T:f16|bf16|f32|f64, message:string", trn_sh_same, check_numerics, STATE},
    {"CheckNumericsV2", "tensor:T -> output:T; T:f16|bf16|f32|f64, message:string", trn_sh_same, check_numerics, STATE},

    {"GetSessionHandle", "value:T -> handle:str; T:any", trn_sh_scalar, get_session_handle, CHEAP | STATE},
    {"GetSessionHandleV2", "value:T -> handle:res; T:any", trn_sh_scalar, get_session_handle, CHEAP | STATE},
    {"GetSessionTensor", "handle:str -> value:dtype; dtype:any", trn_sh_unknown, get_session_tensor, CHEAP | STATE},
    {"DeleteSessionTensor", "handle:str -> ", sh_none, delete_session_tensor, CHEAP | STATE},

    {"PartitionedCall", CALL_SIG, trn_sh_unknown, partitioned_call, ASYNC},
    {"StatefulPartitionedCall", CALL_SIG, trn_sh_unknown, partitioned_call, ASYNC | STATE},
    {"RemoteCall", "target:str, args:Tin -> output:Tout; Tin:list(type)>=1, Tout:list(type)>=1, f:func", trn_sh_unknown, remote_call, ASYNC | STATE},
    {"SymbolicGradient", "input:Tin -> output:Tout; Tin:list(type)>=1, Tout:list(type)>=1, f:func", trn_sh_unknown, by_lowering, 0},
    {"If", IF_SIG, sh_output_shapes, if_op, ASYNC | STATE},
    {"StatelessIf", IF_SIG, sh_output_shapes, if_op, ASYNC},
    {"Case", CASE_SIG, sh_output_shapes, case_op, ASYNC | STATE},
    {"StatelessCase", CASE_SIG, sh_output_shapes, case_op, ASYNC},
    {"While", WHILE_SIG, sh_output_shapes, while_op, ASYNC | STATE},
    {"StatelessWhile", WHILE_SIG, sh_output_shapes, while_op, ASYNC},
    {"For", "start:i32, limit:i32, delta:i32, input:T -> output:T; T:list(type)>=0, body:func", trn_sh_unknown, for_op, ASYNC},
    {"ToBool", "input:T -> output:bool; T:any", trn_sh_scalar, to_bool, CHEAP},
    {0},
};
