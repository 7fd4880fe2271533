/* MapDefun: a function on every slice of its arguments' first dimension; results stacked. */
#include <stdlib.h>

#include "op/func.h"
#include "ops/kern.h"

typedef struct map {
    trn_kctx *k;
    int n_args; /* that are sliced; the others are captured */
    trn_mutex mu;
    int64_t n, next, limit;
    int64_t running, ended;
    bool launching; /* somebody is in launch(): he goes on with the next ones */
    trn_err err;
} map;

typedef struct slice {
    map *m;
    int64_t i;
} slice;

static void launch(map *m);

static void finish(map *m)
{
    trn_kctx *k = m->k;
    trn_err err = m->err;
    trn_mutex_fini(&m->mu);
    free(m);
    trn_k_done(k, err);
}

static trn_shape with_rows(const trn_shape *s, int64_t n)
{
    if (s->rank < 0 || s->rank >= TRN_MAX_RANK)
        return trn_shape_unknown();
    trn_shape r = {.rank = s->rank + 1};
    r.dim[0] = n;
    memcpy(r.dim + 1, s->dim, (size_t)s->rank * sizeof *r.dim);
    return r;
}

static bool is_full(const trn_shape *s)
{
    bool known = s->rank >= 0;
    for (int i = 0; known && i < s->rank; i++)
        known = s->dim[i] >= 0;
    return known;
}

/* The room for output j, made by whoever has the first result when the attr leaves its shape open. With m->mu held. */
static trn_err room(trn_tensor **out, map *m, int j, const trn_shape *result)
{
    trn_kctx *k = m->k;
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    const trn_shape *want = trn_node_attr(k->node, "output_shapes")->list[j].shape;
    TRN_CHECK_ARG(trn_shape_compatible(want, result), "Mismatch in function retval shape, %s, and expected output shape, %s.", trn_shape_text(a, result), trn_shape_text(b, want));
    TRN_CHECK_ARG(result->rank < TRN_MAX_RANK, "result %d has too many dimensions to be stacked", j);
    trn_shape s = with_rows(result, m->n);
    if (!k->out[j].t)
        return trn_out_new(out, k, j, k->node->out_types[j], &s);
    TRN_CHECK_ARG(trn_shape_eq(&k->out[j].t->shape, &s), "Mismatch in function retval shape, %s, and expected output shape: other slices gave another one", trn_shape_text(a, result));
    *out = k->out[j].t;
    return TRN_OK;
}

static trn_err keep(map *m, int64_t i, trn_tensor **rets, int n)
{
    trn_kctx *k = m->k;
    TRN_CHECK_ARG(n == k->n_out, "Mismatch in number of function outputs.");
    for (int j = 0; j < n; j++) {
        TRN_CHECK_ARG(rets[j]->dtype == k->node->out_types[j], "Mismatch in function return type and expected output type for output: %d", j);
        trn_tensor *out;
        trn_lock(&m->mu);
        trn_err err = room(&out, m, j, &rets[j]->shape);
        trn_unlock(&m->mu);
        TRN_TRY(err);
        TRN_TRY(trn_tensor_copy_elems(out, i * rets[j]->count, rets[j], 0, rets[j]->count)); /* rows are nobody else's */
    }
    return TRN_OK;
}

static void called(void *arg, trn_err err, trn_tensor **rets, int n)
{
    slice *s = arg;
    map *m = s->m;
    if (!err)
        err = keep(m, s->i, rets, n);
    free(s);
    trn_lock(&m->mu);
    if (err && m->err)
        trn_err_free(err);
    else if (err)
        m->err = err;
    m->running--;
    m->ended++;
    bool mine = !m->launching;
    m->launching = true;
    trn_unlock(&m->mu);
    if (mine)
        launch(m);
}

static trn_err call_slice(map *m, int64_t i)
{
    trn_kctx *k = m->k;
    trn_tensor **args = trn_xalloc(((size_t)k->n_in + 1) * sizeof *args);
    trn_err err = TRN_OK;
    int have = 0;
    for (; !err && have < k->n_in; have++) {
        const trn_tensor *t = trn_in(k, have);
        args[have] = NULL;
        if (have >= m->n_args) {
            args[have] = trn_tensor_ref(t);
            continue;
        }
        trn_shape s = t->shape;
        s.rank--;
        memmove(s.dim, s.dim + 1, (size_t)s.rank * sizeof *s.dim);
        err = trn_tensor_view(&args[have], t, i * (t->count / m->n), &s);
    }
    if (!err) {
        slice *s = trn_xalloc(sizeof *s);
        *s = (slice){m, i};
        trn_k_call(k, trn_attr_func(k->node, "f"), args, k->n_in, called, s);
    }
    for (int j = 0; j < have; j++)
        trn_tensor_unref(args[j]);
    free(args);
    return err;
}

/* Calls may end before they return: the loop is here and not in called(), so that nothing nests. m->launching is set. */
static void launch(map *m)
{
    for (;;) {
        trn_lock(&m->mu);
        bool more = !m->err && m->next < m->n;
        if (!more || m->running >= m->limit) {
            bool over = !more && m->running == 0;
            m->launching = over; /* nobody else ends it */
            trn_unlock(&m->mu);
            if (over)
                finish(m);
            return;
        }
        int64_t i = m->next++;
        m->running++;
        trn_unlock(&m->mu);
        trn_err err = call_slice(m, i);
        if (!err)
            continue;
        trn_lock(&m->mu);
        if (m->err)
            trn_err_free(err);
        else
            m->err = err;
        m->running--;
        trn_unlock(&m->mu);
    }
}

static trn_err map_defun(trn_kctx *k)
{
    int n_args;
    (void)trn_in_arg(k, "arguments", &n_args);
    const trn_attr *shapes = trn_node_attr(k->node, "output_shapes");
    TRN_CHECK_ARG(shapes && shapes->n == k->n_out, "Length of output_shapes and output_types must match.");
    for (int i = 0; i < n_args; i++) {
        const trn_shape *s = &trn_in(k, i)->shape;
        TRN_CHECK_ARG(s->rank > 0, "All inputs must have rank at least 1. Input %d has a rank of 0.", i);
        TRN_CHECK_ARG(s->dim[0] == trn_in(k, 0)->shape.dim[0], "All inputs must have the same dimension 0. Input %d has leading dimension %lld, while all previous inputs have leading dimension %lld",
                      i, (long long)s->dim[0], (long long)trn_in(k, 0)->shape.dim[0]);
    }
    int64_t n = trn_in(k, 0)->shape.dim[0];
    for (int j = 0; j < k->n_out; j++) {
        const trn_shape *s = shapes->list[j].shape;
        if (!is_full(s) || s->rank >= TRN_MAX_RANK)
            continue;
        trn_shape full = with_rows(s, n);
        trn_tensor *t;
        TRN_TRY(trn_out_new(&t, k, j, k->node->out_types[j], &full));
    }
    if (n == 0) {
        trn_k_done(k, TRN_OK);
        return TRN_OK;
    }
    map *m = trn_xalloc(sizeof *m);
    *m = (map){.k = k, .n_args = n_args, .n = n, .limit = 2 * trn_k_threads(k), .launching = true};
    trn_mutex_init(&m->mu, TRN_RANK_RES);
    launch(m);
    return TRN_OK;
}

static trn_err sh_map_defun(trn_shctx *s)
{
    const trn_attr *shapes = trn_node_attr(s->node, "output_shapes");
    for (int j = 0; shapes && j < s->n_out && j < shapes->n; j++)
        s->out[j] = with_rows(shapes->list[j].shape, s->in[0].rank > 0 ? s->in[0].dim[0] : -1);
    return TRN_OK;
}

const trn_op trn_ops_map_defun[] = {
    {"MapDefun",
     "arguments:Targuments, captured_inputs:Tcaptured -> output:output_types; Targuments:list(type)>=1, Tcaptured:list(type)>=0=[], output_types:list(type)>=1, "
     "output_shapes:list(shape)>=1, f:func, max_intra_op_parallelism:int=1",
     sh_map_defun, map_defun, TRN_OP_ASYNC | TRN_OP_BACK},
    {0},
};
