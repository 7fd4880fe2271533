/* Optimizers: Apply… and ResourceApply…, and their sparse forms.
 *
 * The rules are in train_loops.h, one loop each; here is what they share. Variables stand first among an op's inputs, the gradient is called
 * grad (or delta), everything else is a scalar: so one driver finds its way by the row's argument names. All variables of an update are
 * locked together. When somebody still reads the variable's old value, the rule writes the new one straight into new memory (or into the
 * gradient's, if nobody else needs that): no copy first. A sparse update touches the rows it names and nothing else, in the order given.
 * Half and bfloat16 are widened block by block and rounded once per update. */
#include "op/kctx.h"
#include "op/registry.h"
#include "op/streams.h"
#include "ops/gemm.h"
#include "ops/rows.h"
#include "ops/state.h"

#include <math.h>
#include <stdlib.h>

enum { NESTEROV = 1, UPDATE_SLOTS = 2, LINEAR_BY_LR = 4 };

/* new value, old value, slots, gradient, scalars, flags, count */
typedef void (*loop_fn)(void *o, const void *x, void *const *slot, const void *g, const void *s, unsigned flags, int64_t n);
typedef struct rule {
    loop_fn f32, f64;
} rule;

#define T float
#define FN(name) name##_f32
#define M(fn) fn##f
#include "ops/train_loops.h"
#undef T
#undef FN
#undef M
#define T double
#define FN(name) name##_f64
#define M(fn) fn
#include "ops/train_loops.h"
#undef T
#undef FN
#undef M

#define MAX_SCALARS 8

/* An update, ready to run: everything checked, all variables locked. */
typedef struct update {
    trn_vars vars;
    rule rule;
    trn_dtype dtype;
    unsigned flags;
    const trn_tensor *grad, *indices;
    int grad_at;
    union {
        float f32[MAX_SCALARS];
        double f64[MAX_SCALARS];
    } s;
    int n_s;
    char *o, *slot[TRN_VARS_MAX - 1];
    const char *x, *g;
    int64_t row; /* sparse: elements of a row */
    size_t size; /* of an element */
} update;

static double scalar_of(const trn_tensor *t)
{
    switch (t->dtype) {
    case TRN_FLOAT: return TRN_DATA(t, float)[0];
    case TRN_DOUBLE: return TRN_DATA(t, double)[0];
    case TRN_HALF: return trn_half_to_f32(TRN_DATA(t, trn_half)[0]);
    case TRN_BFLOAT16: return trn_bf16_to_f32(TRN_DATA(t, trn_bf16)[0]);
    case TRN_INT64: return (double)TRN_DATA(t, int64_t)[0];
    default: return 0;
    }
}

static trn_err add_scalar(update *u, const char *name, const trn_tensor *t)
{
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(t->shape.rank == 0, "%s is not a scalar: %s", name, trn_shape_text(text, &t->shape));
    double v = scalar_of(t);
    if (u->dtype == TRN_DOUBLE)
        u->s.f64[u->n_s++] = v;
    else
        u->s.f32[u->n_s++] = (float)v;
    return TRN_OK;
}

static unsigned flags_of(const trn_node *n)
{
    return (trn_attr_bool(n, "use_nesterov") ? NESTEROV : 0u) | (trn_attr_bool(n, "update_slots") ? UPDATE_SLOTS : 0u) |
           (trn_attr_bool(n, "multiply_linear_by_lr") ? LINEAR_BY_LR : 0u);
}

/* Inputs behind the variables, by their names in the row. */
static trn_err read_inputs(update *u, const trn_kctx *k, int n_vars)
{
    const trn_argdef *args = k->node->def->in;
    for (int i = n_vars; i < k->n_in; i++) {
        const trn_tensor *t = trn_in(k, i);
        if (strcmp(args[i].name, "grad") == 0 || strcmp(args[i].name, "delta") == 0) {
            u->grad = t;
            u->grad_at = i;
        } else if (strcmp(args[i].name, "indices") == 0) {
            u->indices = t;
        } else {
            TRN_TRY(add_scalar(u, args[i].name, t));
        }
    }
    u->flags = flags_of(k->node);
    return TRN_OK;
}

static int count_vars(const trn_kctx *k)
{
    int n = 0;
    while (n < k->n_in && (trn_dtype_is_ref(k->node->in_types[n]) || k->node->in_types[n] == TRN_RESOURCE))
        n++;
    return n;
}

static trn_err slots_agree(const update *u)
{
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    const trn_var *var = u->vars.v[0];
    for (int i = 1; i < u->vars.n; i++) {
        const trn_var *slot = u->vars.v[i];
        TRN_CHECK_ARG(trn_shape_eq(&var->value->shape, &slot->value->shape), "var and slot do not have the same shape: %s is %s, %s is %s",
                      var->name, trn_shape_text(a, &var->value->shape), slot->name, trn_shape_text(b, &slot->value->shape));
    }
    return TRN_OK;
}

#define BLOCK 512

/* n elements at `at` of variable and slots, with the gradient's at `g_at`. */
static void run_rule(const update *u, int64_t at, int64_t g_at, int64_t n)
{
    int n_slots = u->vars.n - 1;
    void *slot[TRN_VARS_MAX - 1] = {0};
    if (u->dtype == TRN_FLOAT || u->dtype == TRN_DOUBLE) {
        int64_t size = u->dtype == TRN_FLOAT ? 4 : 8;
        for (int i = 0; i < n_slots; i++)
            slot[i] = u->slot[i] + at * size;
        (size == 4 ? u->rule.f32 : u->rule.f64)(u->o + at * size, u->x + at * size, slot, u->g + g_at * size, &u->s, u->flags, n);
        return;
    }
    float x[BLOCK], g[BLOCK], s[TRN_VARS_MAX - 1][BLOCK];
    for (int i = 0; i < n_slots; i++)
        slot[i] = s[i];
    for (int64_t b = 0; b < n; b += BLOCK) {
        int64_t m = TRN_MIN(n - b, (int64_t)BLOCK);
        trn_widen(x, u->x + (at + b) * 2, u->dtype, m);
        trn_widen(g, u->g + (g_at + b) * 2, u->dtype, m);
        for (int i = 0; i < n_slots; i++)
            trn_widen(s[i], u->slot[i] + (at + b) * 2, u->dtype, m);
        u->rule.f32(x, x, slot, g, &u->s, u->flags, m);
        trn_narrow(u->o + (at + b) * 2, x, u->dtype, m);
        for (int i = 0; i < n_slots; i++)
            trn_narrow(u->slot[i] + (at + b) * 2, s[i], u->dtype, m);
    }
}

/* Variables, slots and gradient are more streams out of memory than a core fetches ahead by itself: large ones are asked for some lines at a time (Adam on 13 MB: an
 * eighth faster on an Emerald Rapids, as fast as if it only added). */
enum { STREAMS_FROM = 4 << 20, STREAM_LINES = 512, STREAM_AHEAD = 1024 };

static void fetch_ahead(const update *u, size_t at)
{
    for (size_t i = at; i < at + STREAM_LINES; i += 64) {
        __builtin_prefetch(u->x + i);
        __builtin_prefetch(u->g + i);
        for (int s = 0; s + 1 < u->vars.n; s++)
            __builtin_prefetch(u->slot[s] + i);
    }
}

static size_t dense_bytes(const update *u) { return (size_t)u->grad->count * u->size * (size_t)(u->vars.n + 1); }

static void dense_piece(void *arg, int64_t begin, int64_t end)
{
    const update *u = arg;
    int64_t n = end - begin;
    if (dense_bytes(u) >= STREAMS_FROM)
        n = STREAM_LINES / (int64_t)u->size;
    for (int64_t i = begin; i < end; i += n) {
        if (n < end - begin) /* past the end of the piece is the next one, past that of the memory nothing happens */
            fetch_ahead(u, (size_t)i * u->size + STREAM_AHEAD);
        run_rule(u, i, i, TRN_MIN(n, end - i));
    }
}

/* *now: where the new value goes. */
static trn_err begin_dense(trn_tensor **now, update *u, trn_kctx *k, const trn_shape *grad)
{
    trn_var *var = u->vars.v[0];
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    TRN_TRY(slots_agree(u));
    TRN_CHECK_ARG(trn_shape_eq(&var->value->shape, grad), "var and grad do not have the same shape: %s is %s, the gradient %s", var->name,
                  trn_shape_text(a, &var->value->shape), trn_shape_text(b, grad));
    for (int i = 1; i < u->vars.n; i++) {
        trn_tensor *t;
        TRN_TRY(trn_vars_write(&t, &u->vars, i));
        u->slot[i - 1] = t->data;
    }
    TRN_TRY(trn_vars_next(now, &u->vars, 0, k, u->grad_at));
    u->x = var->value->data;
    u->o = (*now)->data;
    return TRN_OK;
}

static trn_err dense_locked(update *u, trn_kctx *k)
{
    trn_tensor *now;
    TRN_TRY(begin_dense(&now, u, k, &u->grad->shape));
    u->g = u->grad->data;
    size_t bytes = dense_bytes(u);
    if (bytes < STREAMS_FROM) {
        trn_k_for(k, u->grad->count, TRN_GRAIN, dense_piece, u);
    } else {
        static trn_streams by_size[4]; /* from 4, 16, 64, 256 MiB: caches hold the first ones and not the last */
        int size = 0;
        for (size_t from = (size_t)STREAMS_FROM * 4; size < 3 && bytes >= from; from *= 4)
            size++;
        trn_k_for_streams(&by_size[size], k, bytes, u->grad->count, TRN_GRAIN, dense_piece, u);
    }
    trn_vars_set_next(&u->vars, 0, now);
    return TRN_OK;
}

static trn_err dense(trn_kctx *k, rule r)
{
    update u = {.rule = r, .dtype = trn_attr_type(k->node, "T")};
    u.size = trn_dtype_size(u.dtype);
    int n_vars = count_vars(k);
    TRN_TRY(read_inputs(&u, k, n_vars));
    TRN_TRY(trn_var_missing_as(trn_vars_lock(&u.vars, k, n_vars, u.dtype), TRN_INTERNAL));
    return trn_vars_done(&u.vars, k, dense_locked(&u, k));
}

/* ---- sparse --------------------------------------------------------------------------------------------------- */

/* A job's part: columns [begin, end) of the rows that it visits. */
typedef struct sparse_part {
    const update *u;
    int64_t begin, end;
} sparse_part;

static void fetch_item(const void *arg, int64_t i)
{
    const sparse_part *p = arg;
    const update *u = p->u;
    size_t at = (size_t)(trn_int_at(u->indices, i) * u->row + p->begin) * u->size, bytes = (size_t)(p->end - p->begin) * u->size;
    trn_fetch_row(u->x + at, bytes);
    for (int s = 0; s + 1 < u->vars.n; s++)
        trn_fetch_row(u->slot[s] + at, bytes);
}

static void update_item(const void *arg, int64_t i)
{
    const sparse_part *p = arg;
    run_rule(p->u, trn_int_at(p->u->indices, i) * p->u->row + p->begin, i * p->u->row + p->begin, p->end - p->begin);
}

/* The indices whose row's lock lies in lines [from, to): all indices of a row do, and are taken in order, so that one named twice is updated twice, one after the other. */
static void sparse_lines(const sparse_part *p, int64_t from, int64_t to)
{
    const update *u = p->u;
    trn_rows rows;
    rows.n = 0;
    for (int64_t i = 0; i < u->indices->count; i++) {
        int64_t row = trn_int_at(u->indices, i), line = (int64_t)((uint64_t)row % TRN_VAR_LINES);
        if (line >= from && line < to && trn_rows_add(&rows, i, row))
            trn_rows_visit(&rows, u->vars.shared, u->vars.n_shared, p, fetch_item, update_item);
    }
    trn_rows_visit(&rows, u->vars.shared, u->vars.n_shared, p, fetch_item, update_item);
}

static void sparse_columns(void *arg, int64_t begin, int64_t end) { sparse_lines(&(sparse_part){arg, begin, end}, 0, TRN_VAR_LINES); }

static void sparse_rows(void *arg, int64_t from, int64_t to)
{
    const update *u = arg;
    sparse_lines(&(sparse_part){u, 0, u->row}, from, to);
}

/* Rows out of memory: two threads wait for it together as long as one does, and a thread that is woken for less than this much of it takes the core from somebody
 * else (an embedding's ps: a tenth of its CPU time, and its steps a fifth slower). */
#define PART_BYTES (4 << 20)

static trn_err sparse_locked(update *u, trn_kctx *k)
{
    trn_var *var = u->vars.v[0];
    trn_shape shape = var->value->shape;
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    TRN_TRY(slots_agree(u));
    TRN_CHECK_ARG(shape.rank >= 1, "var must be at least 1 dimensional: %s is a scalar", var->name);
    TRN_CHECK_ARG(u->indices->shape.rank == 1, "indices must be one-dimensional, got %s", trn_shape_text(a, &u->indices->shape));
    int64_t n = u->indices->count, rows = shape.dim[0];
    trn_shape want = shape;
    want.dim[0] = n;
    TRN_CHECK_ARG(trn_shape_eq(&want, &u->grad->shape), "grad must have one row of %s's shape %s per index (%lld), got %s", var->name,
                  trn_shape_text(a, &shape), (long long)n, trn_shape_text(b, &u->grad->shape));
    for (int64_t i = 0; i < n; i++) {
        int64_t at = trn_int_at(u->indices, i);
        TRN_CHECK_ARG(at >= 0 && at < rows, "indices[%lld] = %lld is not in [0, %lld)", (long long)i, (long long)at, (long long)rows);
    }
    if (u->grad->count == 0)
        return TRN_OK;
    trn_tensor *t;
    for (int i = 1; i < u->vars.n; i++) {
        TRN_TRY(trn_vars_write(&t, &u->vars, i));
        u->slot[i - 1] = t->data;
    }
    TRN_TRY(trn_vars_write(&t, &u->vars, 0));
    u->x = u->o = t->data;
    u->g = u->grad->data;
    u->row = u->grad->count / n;
    u->size = trn_dtype_size(u->dtype);
    if (n >= 16 * TRN_VAR_LINES && u->grad->count >= TRN_GRAIN) {
        int64_t parts = TRN_MIN(u->grad->count * (int64_t)u->size * u->vars.n / PART_BYTES, (int64_t)trn_k_threads(k));
        trn_k_for(k, TRN_VAR_LINES, TRN_MAX(TRN_VAR_LINES / TRN_MAX(parts, (int64_t)1), (int64_t)1), sparse_rows, u);
    } else {
        trn_k_for(k, u->row, TRN_MAX(TRN_GRAIN / n, (int64_t)128), sparse_columns, u);
    }
    return TRN_OK;
}

static trn_err sparse(trn_kctx *k, rule r)
{
    update u = {.rule = r, .dtype = trn_attr_type(k->node, "T")};
    int n_vars = count_vars(k);
    TRN_TRY(read_inputs(&u, k, n_vars));
    TRN_TRY(trn_var_missing_as(trn_vars_share(&u.vars, k, n_vars, u.dtype), TRN_INTERNAL));
    return trn_vars_done(&u.vars, k, sparse_locked(&u, k));
}

/* ---- a product that is a gradient --------------------------------------------------------------------------------- */

/* What the master's optimiser writes (graph/fuse_update.c): MatMul and the update that alone uses it, in one node. Every piece of the product goes into
 * the variable while it is in the cache, and never to memory. The variable is locked meanwhile; where others wait for it, the product comes first. */
typedef struct product_update {
    update u;
    int64_t columns;
} product_update;

static void update_piece(void *arg, const trn_gemm_args *g, int64_t row, int64_t col)
{
    const product_update *p = arg;
    update u = p->u;
    u.g = g->c;
    bool whole = g->n == p->columns && g->ldc == g->n;
    for (int64_t r = 0; r < (whole ? 1 : g->m); r++)
        run_rule(&u, (row + r) * p->columns + col, r * g->ldc, whole ? g->m * g->n : g->n);
}

/* The same left for later: what it reads stays until it is done, what it writes is the variables' (which end it before they let go of that). */
typedef struct owed_product {
    trn_gemm_job job;
    product_update p;
    trn_tensor *a, *b, *old;
} owed_product;

static void product_paid(void *arg)
{
    owed_product *o = TRN_CONTAINER(arg, owed_product, job);
    trn_tensor_unref(o->a);
    trn_tensor_unref(o->b);
    trn_tensor_unref(o->old);
    free(o);
}

static trn_later *owe_product(product_update *p, const trn_kctx *k, const trn_gemm_args *g, trn_tensor *now)
{
    trn_vars *v = &p->u.vars;
    owed_product *o = trn_xalloc(sizeof *o);
    o->p = *p;
    o->a = trn_tensor_ref(k->in[v->n].t);
    o->b = trn_tensor_ref(k->in[v->n + 1].t);
    trn_vars_set_next(v, 0, now);
    o->old = v->old[0];
    v->old[0] = NULL;
    trn_gemm_divide(&o->job, k, TRN_FLOAT, g, update_piece, &o->p);
    trn_later *l = trn_later_new(o->job.n, o->job.grain, o->job.piece, &o->job, product_paid);
    for (int i = 0; i < v->n; i++)
        if (!v->v[i]->owed)
            trn_var_owe(v->v[i], trn_later_ref(l));
    return l;
}

#define OWED_WORK (8 << 20) /* multiplications that are worth a thread's waking up */

/* *owed: the rest of it, which the caller gives to the pool when it has let the variables go. */
static trn_err product_locked(product_update *p, trn_kctx *k, const trn_gemm_args *g, trn_later **owed)
{
    trn_tensor *now;
    TRN_TRY(begin_dense(&now, &p->u, k, &(trn_shape){.rank = 2, .dim = {g->m, g->n}}));
    p->columns = g->n;
    if (g->m * g->n >= OWED_WORK / TRN_MAX(g->k, (int64_t)1) && trn_k_may_owe(k)) {
        *owed = owe_product(p, k, g, now);
        return TRN_OK;
    }
    trn_err err = trn_gemm_divided(k, TRN_FLOAT, g, update_piece, p);
    trn_vars_set_next(&p->u.vars, 0, now);
    return err;
}

static bool take_crowded(const trn_vars *v)
{
    int n = 0;
    for (int i = 0; i < v->n; i++)
        if ((n = atomic_load_explicit(&v->v[i]->crowded, memory_order_relaxed)) > 0) {
            atomic_store_explicit(&v->v[i]->crowded, n - 1, memory_order_relaxed);
            return true;
        }
    return false;
}

/* The variable is free while the product is computed. */
static trn_err product_first(update *u, trn_kctx *k, trn_gemm_args *g, int n_vars)
{
    trn_tensor *grad;
    TRN_TRY(trn_tensor_new(&grad, TRN_FLOAT, &(trn_shape){.rank = 2, .dim = {g->m, g->n}}));
    g->c = grad->data;
    u->grad = grad;
    trn_err err = trn_gemm_divided(k, TRN_FLOAT, g, NULL, NULL);
    if (!err)
        err = trn_var_missing_as(trn_vars_lock(&u->vars, k, n_vars, TRN_FLOAT), TRN_INTERNAL);
    if (!err)
        err = trn_vars_done(&u->vars, k, dense_locked(u, k));
    trn_tensor_unref(grad);
    return err;
}

/* Updates of float variables that may be given a product: variables and numbers that each takes. */
static const struct product_rule {
    const char *op;
    loop_fn rule;
    int vars, numbers;
} product_rules[] = {
#define RULE(op, name, vars, numbers) {"ResourceApply" op, name##_f32, vars, numbers}
    RULE("GradientDescent", sgd, 1, 1),
    RULE("ProximalGradientDescent", prox_sgd, 1, 3),
    RULE("Adadelta", adadelta, 3, 3),
    RULE("Adagrad", adagrad, 2, 1),
    RULE("AdagradV2", adagrad_v2, 2, 2),
    RULE("ProximalAdagrad", prox_adagrad, 2, 3),
    RULE("Ftrl", ftrl, 3, 4),
    RULE("FtrlV2", ftrl_v2, 3, 5),
    RULE("Momentum", momentum, 2, 2),
    RULE("KerasMomentum", keras_momentum, 2, 2),
    RULE("Adam", adam, 3, 6),
    RULE("AdamWithAmsgrad", amsgrad, 4, 6),
    RULE("AdaMax", adamax, 3, 5),
    RULE("RMSProp", rmsprop, 3, 4),
    RULE("CenteredRMSProp", centered_rmsprop, 4, 4),
    RULE("AddSign", add_sign, 2, 4),
    RULE("PowerSign", power_sign, 2, 4),
};

static trn_err k_product_update(trn_kctx *k)
{
    const char *op = trn_attr_str(k->node, "update");
    product_update p = {.u = {.dtype = TRN_FLOAT}};
    update *u = &p.u;
    const struct product_rule *how = NULL;
    for (size_t i = 0; i < TRN_COUNTOF(product_rules); i++)
        if (strcmp(op, product_rules[i].op) == 0)
            how = &product_rules[i];
    if (!how)
        return trn_errorf(TRN_UNIMPLEMENTED, "%s is not an update that a product can be given to", op);
    TRN_CHECK_ARG(trn_attr_int(k->node, "num_vars") == how->vars && trn_attr_int(k->node, "num_args") == how->numbers, "%s takes %d variables and %d numbers", op,
                  how->vars, how->numbers);
    u->rule.f32 = how->rule;
    int n_vars = count_vars(k);
    const trn_tensor *a = trn_in(k, n_vars), *b = trn_in(k, n_vars + 1);
    trn_gemm_args g;
    TRN_TRY(trn_gemm_of(&g, a, b, trn_attr_bool(k->node, "transpose_a"), trn_attr_bool(k->node, "transpose_b")));
    for (int i = n_vars + 2; i < k->n_in; i++)
        TRN_TRY(add_scalar(u, "a number of the update", trn_in(k, i)));
    u->flags = flags_of(k->node);
    u->grad_at = -1;
    TRN_TRY(trn_var_missing_as(trn_vars_lock(&u->vars, k, n_vars, TRN_FLOAT), TRN_INTERNAL));
    if (take_crowded(&u->vars)) {
        TRN_TRY(trn_vars_done(&u->vars, k, TRN_OK));
        u->vars = (trn_vars){0};
        return product_first(u, k, &g, n_vars);
    }
    trn_later *owed = NULL;
    trn_err err = trn_vars_done(&u->vars, k, product_locked(&p, k, &g, &owed));
    if (owed)
        trn_k_owe(k, owed);
    return err;
}

/* ---- rows ----------------------------------------------------------------------------------------------------- */

#define DENSE(name)                                                                                                                        \
    static trn_err apply_##name(trn_kctx *k) { return dense(k, (rule){name##_f32, name##_f64}); }
#define BOTH(name)                                                                                                                         \
    DENSE(name)                                                                                                                            \
    static trn_err sparse_##name(trn_kctx *k) { return sparse(k, (rule){name##_f32, name##_f64}); }
DENSE(sgd)
BOTH(prox_sgd)
BOTH(adadelta)
BOTH(adagrad)
BOTH(adagrad_v2)
BOTH(prox_adagrad)
BOTH(adagrad_da)
BOTH(ftrl)
BOTH(ftrl_v2)
BOTH(momentum)
BOTH(keras_momentum)
DENSE(adam)
DENSE(amsgrad)
DENSE(adamax)
BOTH(rmsprop)
BOTH(centered_rmsprop)
DENSE(add_sign)
DENSE(power_sign)

/* clang-format off */
#define END "T:float, use_locking:bool=false"
/* A ref op and its resource twin differ in the variables' types and the output. */
#define RES_ROW(name, vars, rest, attrs, kernel) \
    {"Resource" name, vars(":res") rest " ->; " attrs, trn_sh_update, kernel, TRN_OP_STATEFUL | TRN_OP_STREAM}
#define ROWS(name, vars, rest, attrs, kernel) \
    {name, vars(":&T") rest " -> out:&T; " attrs, trn_sh_update, kernel, TRN_OP_STATEFUL | TRN_OP_STREAM}, \
    RES_ROW(name, vars, rest, attrs, kernel)
#define V1(t) "var" t
#define V_ACCUM(t) "var" t ", accum" t
#define V_DELTA(t) "var" t ", accum" t ", accum_update" t
#define V_DA(t) "var" t ", gradient_accumulator" t ", gradient_squared_accumulator" t
#define V_LINEAR(t) "var" t ", accum" t ", linear" t
#define V_M(t) "var" t ", m" t
#define V_MV(t) "var" t ", m" t ", v" t
#define V_MVH(t) "var" t ", m" t ", v" t ", vhat" t
#define V_RMS(t) "var" t ", ms" t ", mom" t
#define V_CRMS(t) "var" t ", mg" t ", ms" t ", mom" t
#define SPARSE_END "T:float, Tindices:i32|i64, use_locking:bool=false"

const trn_op trn_ops_train[] = {
    ROWS("ApplyGradientDescent", V1, ", alpha:T, delta:T", END, apply_sgd),
    ROWS("ApplyProximalGradientDescent", V1, ", alpha:T, l1:T, l2:T, delta:T", END, apply_prox_sgd),
    ROWS("ApplyAdadelta", V_DELTA, ", lr:T, rho:T, epsilon:T, grad:T", END, apply_adadelta),
    ROWS("ApplyAdagrad", V_ACCUM, ", lr:T, grad:T", END ", update_slots:bool=true", apply_adagrad),
    ROWS("ApplyAdagradV2", V_ACCUM, ", lr:T, epsilon:T, grad:T", END ", update_slots:bool=true", apply_adagrad_v2),
    ROWS("ApplyProximalAdagrad", V_ACCUM, ", lr:T, l1:T, l2:T, grad:T", END, apply_prox_adagrad),
    ROWS("ApplyAdagradDA", V_DA, ", grad:T, lr:T, l1:T, l2:T, global_step:i64", END, apply_adagrad_da),
    ROWS("ApplyFtrl", V_LINEAR, ", grad:T, lr:T, l1:T, l2:T, lr_power:T", END ", multiply_linear_by_lr:bool=false", apply_ftrl),
    ROWS("ApplyFtrlV2", V_LINEAR, ", grad:T, lr:T, l1:T, l2:T, l2_shrinkage:T, lr_power:T", END ", multiply_linear_by_lr:bool=false",
         apply_ftrl_v2),
    ROWS("ApplyMomentum", V_ACCUM, ", lr:T, grad:T, momentum:T", END ", use_nesterov:bool=false", apply_momentum),
    RES_ROW("ApplyKerasMomentum", V_ACCUM, ", lr:T, grad:T, momentum:T", END ", use_nesterov:bool=false", apply_keras_momentum),
    ROWS("ApplyAdam", V_MV, ", beta1_power:T, beta2_power:T, lr:T, beta1:T, beta2:T, epsilon:T, grad:T", END ", use_nesterov:bool=false",
         apply_adam),
    RES_ROW("ApplyAdamWithAmsgrad", V_MVH, ", beta1_power:T, beta2_power:T, lr:T, beta1:T, beta2:T, epsilon:T, grad:T", END, apply_amsgrad),
    ROWS("ApplyAdaMax", V_MV, ", beta1_power:T, lr:T, beta1:T, beta2:T, epsilon:T, grad:T", END, apply_adamax),
    ROWS("ApplyRMSProp", V_RMS, ", lr:T, rho:T, momentum:T, epsilon:T, grad:T", END, apply_rmsprop),
    ROWS("ApplyCenteredRMSProp", V_CRMS, ", lr:T, rho:T, momentum:T, epsilon:T, grad:T", END, apply_centered_rmsprop),
    ROWS("ApplyAddSign", V_M, ", lr:T, alpha:T, sign_decay:T, beta:T, grad:T", END, apply_add_sign),
    ROWS("ApplyPowerSign", V_M, ", lr:T, logbase:T, sign_decay:T, beta:T, grad:T", END, apply_power_sign),

    ROWS("SparseApplyProximalGradientDescent", V1, ", alpha:T, l1:T, l2:T, grad:T, indices:Tindices", SPARSE_END, sparse_prox_sgd),
    ROWS("SparseApplyAdadelta", V_DELTA, ", lr:T, rho:T, epsilon:T, grad:T, indices:Tindices", SPARSE_END, sparse_adadelta),
    ROWS("SparseApplyAdagrad", V_ACCUM, ", lr:T, grad:T, indices:Tindices", SPARSE_END ", update_slots:bool=true", sparse_adagrad),
    ROWS("SparseApplyAdagradV2", V_ACCUM, ", lr:T, epsilon:T, grad:T, indices:Tindices", SPARSE_END ", update_slots:bool=true",
         sparse_adagrad_v2),
    ROWS("SparseApplyProximalAdagrad", V_ACCUM, ", lr:T, l1:T, l2:T, grad:T, indices:Tindices", SPARSE_END, sparse_prox_adagrad),
    ROWS("SparseApplyAdagradDA", V_DA, ", grad:T, indices:Tindices, lr:T, l1:T, l2:T, global_step:i64", SPARSE_END, sparse_adagrad_da),
    ROWS("SparseApplyFtrl", V_LINEAR, ", grad:T, indices:Tindices, lr:T, l1:T, l2:T, lr_power:T",
         SPARSE_END ", multiply_linear_by_lr:bool=false", sparse_ftrl),
    ROWS("SparseApplyFtrlV2", V_LINEAR, ", grad:T, indices:Tindices, lr:T, l1:T, l2:T, l2_shrinkage:T, lr_power:T",
         SPARSE_END ", multiply_linear_by_lr:bool=false", sparse_ftrl_v2),
    ROWS("SparseApplyMomentum", V_ACCUM, ", lr:T, grad:T, indices:Tindices, momentum:T", SPARSE_END ", use_nesterov:bool=false",
         sparse_momentum),
    RES_ROW("SparseApplyKerasMomentum", V_ACCUM, ", lr:T, grad:T, indices:Tindices, momentum:T", SPARSE_END ", use_nesterov:bool=false",
            sparse_keras_momentum),
    ROWS("SparseApplyRMSProp", V_RMS, ", lr:T, rho:T, momentum:T, epsilon:T, grad:T, indices:Tindices", SPARSE_END, sparse_rmsprop),
    ROWS("SparseApplyCenteredRMSProp", V_CRMS, ", lr:T, rho:T, momentum:T, epsilon:T, grad:T, indices:Tindices", SPARSE_END,
         sparse_centered_rmsprop),
    {"_MatMulUpdate",
     "vars:num_vars*res, a:f32, b:f32, args:num_args*f32 ->; update:string, transpose_a:bool=false, transpose_b:bool=false, num_vars:int>=1, num_args:int>=0, "
     "use_nesterov:bool=false, update_slots:bool=true, multiply_linear_by_lr:bool=false",
     trn_sh_unknown, k_product_update, TRN_OP_STATEFUL | TRN_OP_HEAVY},
    {0},
};
/* clang-format on */
