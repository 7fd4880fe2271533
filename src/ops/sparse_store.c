/* Sparse tensors kept in a map under a handle, which is what batching queues carry of them: one by one in, a batch with one more dim in front
 * out. Also SparseMatMul. (serialize.c makes strings of them.) */
#include "ops/gemm.h"
#include "ops/resop.h"
#include "ops/sparse.h"

#include <stdlib.h>

/* One sparse tensor, held. */
typedef struct item {
    trn_tensor *t[3]; /* indices, values, shape */
} item;

static void item_fini(item *it)
{
    for (int i = 0; i < 3; i++)
        trn_tensor_unref(it->t[i]);
    *it = (item){{NULL}};
}

static void items_free(item *it, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        item_fini(&it[i]);
    free(it);
}

/* ---- a batch of items, and back -------------------------------------------------------------------------------------------- */

/* Shape of the whole: `lead`, then the largest of each dim. */
static trn_err join_shape(trn_shape *out, const trn_shape *lead, const trn_sparse *s, int64_t n)
{
    trn_shape r = *lead;
    for (int64_t i = 0; i < n; i++) {
        TRN_CHECK_ARG(
            s[i].rank == s[0].rank && lead->rank + s[i].rank <= TRN_MAX_RANK,
            "Inconsistent rank across SparseTensors: rank prior to SparseTensor[%lld] was: %d but rank of SparseTensor[%lld] is: %d",
            (long long)i, lead->rank + s[0].rank, (long long)i, lead->rank + s[i].rank);
        r.rank = lead->rank + s[i].rank;
        for (int d = 0; d < s[i].rank; d++)
            r.dim[lead->rank + d] = i ? TRN_MAX(r.dim[lead->rank + d], s[i].shape.dim[d]) : s[i].shape.dim[d];
    }
    *out = r;
    int64_t count;
    return trn_count_checked(&count, out);
}

static trn_err join_items(trn_kctx *k, const trn_shape *lead, const trn_sparse *s, int64_t n, trn_dtype dtype)
{
    trn_shape shape;
    int64_t total = 0, at = 0;
    TRN_TRY(join_shape(&shape, lead, s, n));
    for (int64_t i = 0; i < n; i++)
        total += s[i].n;
    trn_tensor *ix, *v;
    TRN_TRY(trn_sparse_out(&ix, &v, k, 0, 1, total, shape.rank, dtype));
    int64_t *to = ix->data;
    for (int64_t i = 0; i < n; i++) {
        int64_t where[TRN_MAX_RANK], rest = i;
        for (int d = lead->rank - 1; d >= 0; d--) {
            where[d] = rest % lead->dim[d];
            rest /= lead->dim[d];
        }
        for (int64_t e = 0; e < s[i].n; e++, to += shape.rank) {
            memcpy(to, where, (size_t)lead->rank * sizeof *to);
            memcpy(to + lead->rank, trn_sparse_row(&s[i], e), (size_t)s[i].rank * sizeof *to);
        }
        TRN_TRY(trn_tensor_copy_elems(v, at, s[i].values, 0, s[i].n));
        at += s[i].n;
    }
    return trn_sparse_out_shape(k, 2, &shape);
}

static trn_err join(trn_kctx *k, const trn_shape *lead, const item *it, int64_t n)
{
    trn_dtype dtype = k->node->out_types[1];
    trn_sparse *s = calloc((size_t)n, sizeof *s);
    if (!s)
        return trn_err_oom();
    trn_err err = TRN_OK;
    for (int64_t i = 0; i < n && !err; i++) {
        if (it[i].t[0]->dtype != TRN_INT64 || it[i].t[2]->dtype != TRN_INT64)
            err = TRN_BAD("SparseTensor[%lld]: indices and shape must be int64", (long long)i);
        else if (it[i].t[1]->dtype != dtype)
            err = TRN_BAD("Requested SparseTensor of type %s but SparseTensor[%lld].values.dtype() == %s",
                          trn_dtype_name(dtype), (long long)i, trn_dtype_name(it[i].t[1]->dtype));
        else
            err = trn_sparse_of(&s[i], it[i].t[0], it[i].t[1], it[i].t[2]);
    }
    if (!err)
        err = join_items(k, lead, s, n, dtype);
    free(s);
    return err;
}

static trn_err cut_one(item *out, const trn_sparse *s, int64_t from, int64_t n, const trn_shape *shape)
{
    trn_shape is = trn_shape_of(2, n, (int64_t)(s->rank - 1)), vs = trn_shape_vector(n),
              ss = trn_shape_vector(shape->rank);
    TRN_TRY(trn_tensor_new(&out->t[0], TRN_INT64, &is));
    TRN_TRY(trn_tensor_new(&out->t[2], TRN_INT64, &ss));
    TRN_TRY(trn_tensor_new(&out->t[1], s->values->dtype, &vs));
    int64_t *to = out->t[0]->data;
    for (int64_t e = 0; e < n; e++, to += s->rank - 1)
        memcpy(to, trn_sparse_row(s, from + e) + 1, (size_t)(s->rank - 1) * sizeof *to);
    memcpy(out->t[2]->data, shape->dim, (size_t)shape->rank * sizeof *shape->dim);
    return trn_tensor_copy_elems(out->t[1], 0, s->values, from, n);
}

/* One item per index of the first dim; entries must be in order. */
static trn_err cut(item *out, const trn_sparse *s)
{
    trn_shape shape = {.rank = s->rank - 1};
    memcpy(shape.dim, s->shape.dim + 1, (size_t)shape.rank * sizeof *shape.dim);
    int64_t at = 0;
    for (int64_t i = 0; i < s->shape.dim[0]; i++) {
        int64_t end = at;
        while (end < s->n && trn_sparse_row(s, end)[0] == i)
            end++;
        TRN_TRY(cut_one(&out[i], s, at, end - at, &shape));
        at = end;
    }
    return TRN_OK;
}

static trn_err cut_input(item **out, int64_t *n, const trn_kctx *k)
{
    trn_sparse s;
    TRN_TRY(trn_sparse_in(&s, k, 0));
    TRN_CHECK_ARG(s.rank > 1, "Rank of input SparseTensor should be > 1, but saw rank: %d", s.rank);
    TRN_TRY(trn_sparse_in_bounds(&s));
    for (int64_t e = 1; e < s.n; e++)
        TRN_CHECK_ARG(trn_index_cmp(trn_sparse_row(&s, e - 1), trn_sparse_row(&s, e), s.rank) < 0,
                      "indices[%lld] is repeated or out of order", (long long)e);
    *n = s.shape.dim[0];
    item *it = calloc((size_t)(*n ? *n : 1), sizeof *it);
    if (!it)
        return trn_err_oom();
    trn_err err = cut(it, &s);
    if (err)
        items_free(it, *n);
    else
        *out = it;
    return err;
}

/* ---- the map ----------------------------------------------------------------------------------------------------------------- */

typedef struct entry {
    int64_t handle;
    item it;
} entry;

typedef struct map {
    trn_resource base;
    trn_mutex mu;
    int64_t next;
    entry *e; /* in no order: what is in flight between two ops */
    int64_t n, cap;
} map;

static void map_free(trn_resource *r)
{
    map *m = (map *)r;
    for (int64_t i = 0; i < m->n; i++)
        item_fini(&m->e[i].it);
    free(m->e);
    trn_mutex_fini(&m->mu);
    free(m);
}

static const trn_restype map_type = {.name = "SparseTensorsMap", .free = map_free};

static trn_err make_map(trn_resource **out, void *arg)
{
    (void)arg;
    map *m = trn_xalloc(sizeof *m);
    trn_resource_init(&m->base, &map_type);
    trn_mutex_init(&m->mu, TRN_RANK_RES);
    *out = &m->base;
    return TRN_OK;
}

static trn_err find_map(map **out, trn_kctx *k)
{
    const char *container, *name;
    trn_res_name(k->node, &container, &name);
    return trn_resmgr_get_or_make(out, trn_k_resmgr(k), container, name, &map_type, make_map, NULL);
}

/* Takes over what `it` holds. */
static int64_t map_add(map *m, item *it)
{
    trn_lock(&m->mu);
    int64_t h = m->next++;
    TRN_PUSH(m->e, m->n, m->cap, (entry){h, *it});
    trn_unlock(&m->mu);
    *it = (item){{NULL}};
    return h;
}

static trn_err map_take(item *out, map *m, int64_t handle)
{
    trn_err err = TRN_BAD("Unable to find SparseTensor: %lld in the map", (long long)handle);
    trn_lock(&m->mu);
    for (int64_t i = 0; i < m->n; i++)
        if (m->e[i].handle == handle) {
            *out = m->e[i].it;
            m->e[i] = m->e[--m->n];
            trn_err_free(err);
            err = TRN_OK;
            break;
        }
    trn_unlock(&m->mu);
    return err;
}

static trn_err add_one(trn_kctx *k)
{
    trn_sparse s;
    TRN_TRY(trn_sparse_in(&s, k, 0));
    map *m;
    TRN_TRY(find_map(&m, k));
    item it = {{trn_tensor_ref(trn_in(k, 0)), trn_tensor_ref(trn_in(k, 1)), trn_tensor_ref(trn_in(k, 2))}};
    trn_out_set(k, 0, trn_tensor_i64(map_add(m, &it)));
    trn_resource_unref(m);
    return TRN_OK;
}

static trn_err add_items(trn_kctx *k, map *m, item *it, int64_t n)
{
    trn_shape s = trn_shape_vector(n);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_INT64, &s));
    for (int64_t i = 0; i < n; i++)
        TRN_DATA_MUT(y, int64_t)[i] = map_add(m, &it[i]);
    return TRN_OK;
}

static trn_err add_many(trn_kctx *k)
{
    item *it;
    int64_t n;
    map *m;
    TRN_TRY(cut_input(&it, &n, k));
    trn_err err = find_map(&m, k);
    if (!err) {
        err = add_items(k, m, it, n);
        trn_resource_unref(m);
    }
    items_free(it, n);
    return err;
}

static trn_err take_many(trn_kctx *k)
{
    const trn_tensor *h = trn_in(k, 0);
    TRN_CHECK_ARG(trn_is_vector(h), "sparse_handles should be a vector but received rank %d", h->shape.rank);
    TRN_CHECK_ARG(h->count > 0, "Must have at least 1 serialized SparseTensor, but input matrix has 0 rows");
    item *it = calloc((size_t)h->count, sizeof *it);
    if (!it)
        return trn_err_oom();
    map *m;
    trn_err err = find_map(&m, k);
    if (!err) {
        for (int64_t i = 0; i < h->count && !err; i++)
            err = map_take(&it[i], m, TRN_DATA(h, int64_t)[i]);
        trn_resource_unref(m);
    }
    trn_shape lead = trn_shape_vector(h->count);
    if (!err)
        err = join(k, &lead, it, h->count);
    items_free(it, h->count);
    return err;
}

/* ---- SparseMatMul: dense matrices that are said to be mostly zeros --------------------------------------------------------------- */

static trn_err wide(trn_tensor **out, const trn_tensor *x)
{
    if (x->dtype == TRN_FLOAT) {
        *out = trn_tensor_ref(x);
        return TRN_OK;
    }
    TRN_TRY(trn_tensor_new(out, TRN_FLOAT, &x->shape));
    trn_widen((*out)->data, x->data, x->dtype, x->count);
    return TRN_OK;
}

static trn_err sparse_matmul(trn_kctx *k)
{
    const trn_tensor *a = trn_in(k, 0), *b = trn_in(k, 1);
    bool ta = trn_attr_bool(k->node, "transpose_a"), tb = trn_attr_bool(k->node, "transpose_b");
    TRN_CHECK_ARG(a->shape.rank == 2 && b->shape.rank == 2, "a and b must be matrices; their ranks are %d and %d",
                  a->shape.rank, b->shape.rank);
    int64_t m = a->shape.dim[ta], inner = a->shape.dim[!ta], n = b->shape.dim[!tb];
    TRN_CHECK_ARG(inner == b->shape.dim[tb], "Matrix size incompatible: a: [%lld,%lld], b: [%lld,%lld]",
                  (long long)a->shape.dim[0], (long long)a->shape.dim[1], (long long)b->shape.dim[0],
                  (long long)b->shape.dim[1]);
    trn_shape s = trn_shape_of(2, m, n);
    trn_tensor *y, *wa, *wb;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_FLOAT, &s));
    trn_zero_elems(y, 0, y->count);
    if (!y->count || !inner)
        return TRN_OK;
    TRN_TRY(wide(&wa, a));
    trn_err err = wide(&wb, b);
    if (!err) {
        int64_t ac = a->shape.dim[1], bc = b->shape.dim[1];
        trn_gemm_args g = {.m = m,
                           .n = n,
                           .k = inner,
                           .a = wa->data,
                           .ars = ta ? 1 : ac,
                           .acs = ta ? ac : 1,
                           .b = wb->data,
                           .brs = tb ? 1 : bc,
                           .bcs = tb ? bc : 1,
                           .c = y->data,
                           .ldc = n};
        err = trn_gemm(TRN_FLOAT, &g) ? TRN_OK : trn_err_oom();
        trn_tensor_unref(wb);
    }
    trn_tensor_unref(wa);
    return err;
}

#define IN "sparse_indices:i64, sparse_values:T, sparse_shape:i64"
#define OUT "sparse_indices:i64, sparse_values:dtype, sparse_shape:i64; dtype:any"
#define NAMED ", container:string=\"\", shared_name:string=\"\""

const trn_op trn_ops_sparse_store[] = {
    {"AddSparseToTensorsMap", IN " -> sparse_handle:i64; T:any" NAMED, trn_sh_scalar, add_one, TRN_OP_STATEFUL},
    {"AddManySparseToTensorsMap", IN " -> sparse_handles:i64; T:any" NAMED, trn_sh_vector, add_many, TRN_OP_STATEFUL},
    {"TakeManySparseFromTensorsMap", "sparse_handles:i64 -> " OUT NAMED, trn_sh_unknown, take_many, TRN_OP_STATEFUL},
    {"SparseMatMul",
     "a:Ta, b:Tb -> product:f32; transpose_a:bool=false, transpose_b:bool=false, a_is_sparse:bool=false, "
     "b_is_sparse:bool=false, "
     "Ta:f32|bf16=f32, Tb:f32|bf16=f32",
     trn_sh_unknown, sparse_matmul, 0},
    {0},
};
