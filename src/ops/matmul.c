/* Matrix products: the kernels. The products themselves are in gemm.c. Halves are widened to float. */
#include <stdlib.h>

#include "ops/fused.h"
#include "ops/gemm.h"
#include "ops/kern.h"

enum { PIECE_BYTES = 160 << 10 }; /* of a piece that is used up where it was made: some rows of tiles, well within a core's second cache (384 KiB: 4 % of an MLP's step slower) */

TRN_SIMD static void add_f32(float *y, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += b[i];
}

/* Without memory for a piece: row by row, through what the stack has. */
static void frugal_piece(const trn_gemm_job *j, const trn_gemm_args *g, int64_t row, int64_t col)
{
    float few[64];
    for (int64_t r = 0; r < g->m; r++)
        for (int64_t c = 0; c < g->n; c += 64) {
            trn_gemm_args one = *g;
            one.m = 1;
            one.n = TRN_MIN(g->n - c, (int64_t)64);
            one.c = few;
            one.ldc = 64;
            for (int64_t i = 0; i < one.n; i++) {
                float sum = 0;
                for (int64_t k = 0; k < g->k; k++)
                    sum += ((const float *)g->a)[r * g->ars + k * g->acs] * ((const float *)g->b)[k * g->brs + (c + i) * g->bcs];
                few[i] = sum;
            }
            j->then(j->arg, &one, row + r, col + c);
        }
}

static void compute(trn_gemm_job *j, trn_gemm_args g, int64_t row, int64_t col)
{
    trn_buf *own = NULL;
    if (!g.c) {
        trn_err err = trn_buf_new(&own, (size_t)(g.m * g.n) * j->size);
        if (err) {
            trn_err_free(err);
            frugal_piece(j, &g, row, col);
            return;
        }
        g.c = own->data;
        g.ldc = g.n;
    }
    for (int64_t r = 0; g.k == 0 && r < g.m; r++)
        memset((char *)g.c + (size_t)(r * g.ldc) * j->size, 0, (size_t)g.n * j->size);
    if (g.k > 0 && !trn_gemm(j->t, &g)) {
        if (own)
            frugal_piece(j, &g, row, col);
        else
            j->failed = true;
    } else if (j->then) {
        j->then(j->arg, &g, row, col);
    }
    trn_buf_unref(own);
}

static void gemm_rows(void *arg, int64_t lo, int64_t hi)
{
    trn_gemm_job *j = arg;
    trn_gemm_args g = j->g;
    g.m = hi - lo;
    g.a = (const char *)g.a + (lo * g.ars) * (int64_t)j->size;
    if (g.c)
        g.c = (char *)g.c + (lo * g.ldc) * (int64_t)j->size;
    compute(j, g, lo, 0);
}
static void gemm_cols(void *arg, int64_t lo, int64_t hi)
{
    trn_gemm_job *j = arg;
    trn_gemm_args g = j->g;
    g.n = hi - lo;
    g.b = (const char *)g.b + (lo * g.bcs) * (int64_t)j->size;
    if (g.c)
        g.c = (char *)g.c + lo * (int64_t)j->size;
    compute(j, g, 0, lo);
}

void trn_gemm_divide(trn_gemm_job *j, const trn_kctx *k, trn_dtype t, const trn_gemm_args *g, trn_gemm_then then, void *arg)
{
    /* Every piece packs the other matrix for itself, unless that lies in rows: few pieces, and a thread's waking up must be worth it. */
    if (g->m == 0 || g->n == 0) { /* the other dims may be of any size */
        *j = (trn_gemm_job){.t = t, .size = trn_dtype_size(t), .g = *g, .then = then, .arg = arg, .piece = gemm_rows, .grain = 1};
        return;
    }
    int64_t threads = trn_k_threads(k), rows = g->m >= g->n, n = rows ? g->m : g->n, across = TRN_MAX(rows ? g->n : g->m, (int64_t)1);
    int64_t least = 524288 / (TRN_MAX(g->k, (int64_t)1) * 2 * across) + 1, tile = rows ? 12 : 32, parts = threads * 2;
    int64_t grain = TRN_MAX(TRN_MAX(least, tile * 2), ((n + parts - 1) / parts + tile - 1) / tile * tile);
    *j = (trn_gemm_job){.t = t, .size = trn_dtype_size(t), .g = *g, .then = then, .arg = arg, .piece = rows ? gemm_rows : gemm_cols};
    j->g.stream = !then;
    if (!g->c) /* it must stay in the cache */
        grain = TRN_MIN(grain, TRN_MAX(PIECE_BYTES / (across * (int64_t)j->size) / tile * tile, tile * 2));
    j->n = n;
    j->grain = threads > 1 || !g->c ? grain : n;
}

trn_err trn_gemm_divided(trn_kctx *k, trn_dtype t, const trn_gemm_args *g, trn_gemm_then then, void *arg)
{
    trn_gemm_job j;
    trn_gemm_divide(&j, k, t, g, then, arg);
    trn_k_for(k, j.n, j.grain, j.piece, &j);
    return j.failed ? trn_err_oom() : TRN_OK;
}

/* What follows a product (f32 only). */
typedef struct epilogue {
    const float *bias;
    trn_act act;
    float alpha;
} epilogue;

static void finish(void *arg, const trn_gemm_args *g, int64_t row, int64_t column)
{
    const epilogue *e = arg;
    (void)row;
    for (int64_t r = 0; r < g->m; r++) {
        float *y = (float *)g->c + r * g->ldc;
        add_f32(y, e->bias + column, g->n);
        trn_act_f32(y, g->n, e->act, e->alpha);
    }
}

static trn_err gemm(trn_kctx *k, trn_dtype t, const trn_gemm_args *g, epilogue *e)
{
    return trn_gemm_divided(k, t, g, e ? finish : NULL, e);
}

/* ---- kernels ------------------------------------------------------------------------------------------------------------------ */

static trn_err widened(trn_tensor **out, const trn_tensor *x)
{
    TRN_TRY(trn_tensor_new(out, TRN_FLOAT, &x->shape));
    trn_widen((*out)->data, x->data, x->dtype, x->count);
    return TRN_OK;
}

/* x: [..., r, c] read transposed when asked. */
typedef struct mat {
    int64_t rows, cols, rs, cs;
} mat;
static mat mat_of(const trn_shape *s, bool transpose)
{
    int64_t r = s->dim[s->rank - 2], c = s->dim[s->rank - 1];
    return transpose ? (mat){c, r, 1, c} : (mat){r, c, c, 1};
}

trn_err trn_gemm_of(trn_gemm_args *g, const trn_tensor *a, const trn_tensor *b, bool ta, bool tb)
{
    char x[TRN_SHAPE_TEXT], z[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(a->shape.rank == 2 && b->shape.rank == 2, "In[0] and In[1] must be matrices: %s and %s", trn_shape_text(x, &a->shape),
                  trn_shape_text(z, &b->shape));
    mat ma = mat_of(&a->shape, ta), mb = mat_of(&b->shape, tb);
    TRN_CHECK_ARG(ma.cols == mb.rows, "Matrix size-incompatible: In[0]: %s, In[1]: %s", trn_shape_text(x, &a->shape), trn_shape_text(z, &b->shape));
    *g = (trn_gemm_args){.m = ma.rows, .n = mb.cols, .k = ma.cols, .ars = ma.rs, .acs = ma.cs, .brs = mb.rs, .bcs = mb.cs, .ldc = mb.cols};
    g->a = a->data;
    g->b = b->data;
    return TRN_OK;
}

static trn_err product(trn_kctx *k, trn_tensor **y, bool ta, bool tb, epilogue *then)
{
    const trn_tensor *a = trn_in(k, 0), *b = trn_in(k, 1);
    trn_gemm_args g;
    TRN_TRY(trn_gemm_of(&g, a, b, ta, tb));
    trn_shape s = {.rank = 2, .dim = {g.m, g.n}};
    int64_t n;
    TRN_TRY(trn_count_checked(&n, &s));
    TRN_TRY(trn_out_new(y, k, 0, a->dtype, &s));
    g.c = (*y)->data;
    if (!trn_is_half(a->dtype))
        return gemm(k, a->dtype, &g, then);
    trn_tensor *wa = NULL, *wb = NULL, *wc = NULL;
    trn_err e = widened(&wa, a);
    if (!e)
        e = widened(&wb, b);
    if (!e)
        e = trn_tensor_new(&wc, TRN_FLOAT, &s);
    if (!e) {
        g.a = wa->data;
        g.b = wb->data;
        g.c = wc->data;
        e = gemm(k, TRN_FLOAT, &g, NULL);
    }
    if (!e)
        trn_narrow((*y)->data, TRN_DATA(wc, float), a->dtype, wc->count);
    trn_tensor_unref(wa);
    trn_tensor_unref(wb);
    trn_tensor_unref(wc);
    return e;
}

static trn_err k_matmul(trn_kctx *k)
{
    trn_tensor *y;
    return product(k, &y, trn_attr_bool(k->node, "transpose_a"), trn_attr_bool(k->node, "transpose_b"), NULL);
}
static trn_err sh_matmul(trn_shctx *s)
{
    TRN_TRY(trn_sh_rank_of(s, 0, 2));
    TRN_TRY(trn_sh_rank_of(s, 1, 2));
    bool ta = trn_attr_bool(s->node, "transpose_a"), tb = trn_attr_bool(s->node, "transpose_b");
    const trn_shape *a = &s->in[0], *b = &s->in[1];
    int64_t m = a->rank < 0 ? -1 : a->dim[ta], ka = a->rank < 0 ? -1 : a->dim[!ta], kb = b->rank < 0 ? -1 : b->dim[tb], n = b->rank < 0 ? -1 : b->dim[!tb];
    TRN_CHECK_ARG(ka < 0 || kb < 0 || ka == kb, "inner dimensions differ: %lld and %lld", (long long)ka, (long long)kb);
    s->out[0] = trn_shape_of(2, m, n);
    return TRN_OK;
}

typedef struct batch_job {
    const trn_bcast *c;
    trn_dtype t;
    int64_t size, na, nb, ny;
    const char *a, *b;
    char *y;
    trn_gemm_args g;
    _Atomic bool failed;
} batch_job;

static trn_gemm_args batch_at(const batch_job *j, int64_t i)
{
    int64_t ao = 0, bo = 0, rest = i;
    for (int d = j->c->rank - 1; d >= 0; d--) {
        ao += rest % j->c->dim[d] * j->c->sa[d];
        bo += rest % j->c->dim[d] * j->c->sb[d];
        rest /= j->c->dim[d];
    }
    trn_gemm_args g = j->g;
    g.a = j->a + ao * j->na * j->size;
    g.b = j->b + bo * j->nb * j->size;
    g.c = j->y + i * j->ny * j->size;
    return g;
}
static void batch_part(void *arg, int64_t lo, int64_t hi)
{
    batch_job *j = arg;
    for (int64_t i = lo; i < hi; i++) {
        trn_gemm_args g = batch_at(j, i);
        if (!trn_gemm(j->t, &g))
            j->failed = true;
    }
}

/* Halves as float, bytes as int32 or, when a half comes out, as float; everything else as it is. */
static trn_err computable(trn_tensor **out, const trn_tensor *x, trn_dtype to)
{
    if (trn_is_half(x->dtype))
        return widened(out, x);
    if (x->dtype != TRN_INT8 && x->dtype != TRN_UINT8) {
        *out = trn_tensor_ref(x);
        return TRN_OK;
    }
    TRN_TRY(trn_tensor_new(out, trn_is_half(to) ? TRN_FLOAT : TRN_INT32, &x->shape));
    for (int64_t i = 0; i < x->count; i++)
        if (trn_is_half(to))
            TRN_DATA_MUT(*out, float)[i] = (float)trn_int_at(x, i);
        else
            TRN_DATA_MUT(*out, int32_t)[i] = (int32_t)trn_int_at(x, i);
    return TRN_OK;
}

static trn_err batch_matmul(trn_kctx *k, bool broadcast, trn_dtype to)
{
    const trn_tensor *a = trn_in(k, 0), *b = trn_in(k, 1);
    bool ta = trn_attr_bool(k->node, "adj_x"), tb = trn_attr_bool(k->node, "adj_y");
    char x[TRN_SHAPE_TEXT], z[TRN_SHAPE_TEXT];
    trn_shape_text(x, &a->shape);
    trn_shape_text(z, &b->shape);
    TRN_CHECK_ARG(a->shape.rank >= 2 && b->shape.rank >= 2, "In[0] and In[1] must be at least matrices: %s and %s", x, z);
    trn_shape la = a->shape, lb = b->shape;
    la.rank -= 2;
    lb.rank -= 2;
    TRN_CHECK_ARG(broadcast || trn_shape_eq(&la, &lb), "In[0] and In[1] must have the same batch dimensions: %s and %s", x, z);
    trn_bcast c;
    TRN_TRY(trn_bcast_make(&c, &la, &lb));
    mat ma = mat_of(&a->shape, ta), mb = mat_of(&b->shape, tb);
    TRN_CHECK_ARG(ma.cols == mb.rows, "Matrix size-incompatible: In[0]: %s, In[1]: %s", x, z);
    trn_shape s = c.out;
    s.dim[s.rank++] = ma.rows;
    s.dim[s.rank++] = mb.cols;
    int64_t count;
    TRN_TRY(trn_count_checked(&count, &s));
    trn_tensor *y, *wa = NULL, *wb = NULL, *wy = NULL;
    TRN_TRY(trn_out_new(&y, k, 0, to, &s));
    if (!count)
        return TRN_OK;
    trn_err e = computable(&wa, a, to);
    if (!e)
        e = computable(&wb, b, to);
    if (!e && trn_is_half(to))
        e = trn_tensor_new(&wy, TRN_FLOAT, &s);
    else if (!e)
        wy = trn_tensor_ref(y);
    if (!e) {
        batch_job j = {.c = &c, .t = wa->dtype, .size = (int64_t)trn_dtype_size(wa->dtype), .na = ma.rows * ma.cols, .nb = mb.rows * mb.cols,
                       .ny = ma.rows * mb.cols, .a = wa->data, .b = wb->data, .y = wy->data};
        j.g = (trn_gemm_args){.m = ma.rows, .n = mb.cols, .k = ma.cols, .ars = ma.rs, .acs = ma.cs, .brs = mb.rs, .bcs = mb.cs, .ldc = mb.cols, .conj_a = ta, .conj_b = tb};
        int64_t batches = count / j.ny, work = j.ny * TRN_MAX(ma.cols, (int64_t)1) * 2;
        if (ma.cols && (batches >= 2 * trn_k_threads(k) || work < 524288)) /* whole products are divided among threads */
            trn_k_for(k, batches, 524288 / work + 1, batch_part, &j);
        else
            for (int64_t i = 0; i < batches && !e; i++) {
                trn_gemm_args g = batch_at(&j, i);
                e = gemm(k, j.t, &g, NULL);
            }
        if (j.failed)
            e = trn_err_oom();
    }
    if (!e && wy != y)
        trn_narrow(y->data, TRN_DATA(wy, float), y->dtype, y->count);
    trn_tensor_unref(wa);
    trn_tensor_unref(wb);
    trn_tensor_unref(wy);
    return e;
}
static trn_err k_batch_matmul(trn_kctx *k) { return batch_matmul(k, false, trn_in(k, 0)->dtype); }
static trn_err k_batch_matmul_v2(trn_kctx *k) { return batch_matmul(k, true, trn_in(k, 0)->dtype); }
/* One type throughout, bytes that give int32, or a bfloat16 and bytes that give bfloat16, as TensorFlow's CPU kernels have it. */
static trn_err k_batch_matmul_v3(trn_kctx *k)
{
    trn_dtype a = trn_in(k, 0)->dtype, b = trn_in(k, 1)->dtype, to = trn_attr_type(k->node, "Tout");
    bool a8 = a == TRN_INT8 || a == TRN_UINT8, b8 = b == TRN_INT8 || b == TRN_UINT8;
    bool mixed = a8 && b8 ? to == TRN_INT32 : (a8 || b8) && (a == TRN_BFLOAT16 || b == TRN_BFLOAT16) && to == TRN_BFLOAT16;
    if (!mixed && (a != b || a != to))
        return trn_errorf(TRN_INVALID_ARGUMENT, "No OpKernel was registered to support Op 'BatchMatMulV3' with %s times %s to %s", trn_dtype_name(a), trn_dtype_name(b), trn_dtype_name(to));
    return batch_matmul(k, true, to);
}
static trn_err sh_batch_matmul(trn_shctx *s)
{
    const trn_shape *a = &s->in[0], *b = &s->in[1];
    s->out[0] = trn_shape_unknown();
    if (a->rank < 0 || b->rank < 0)
        return TRN_OK;
    TRN_CHECK_ARG(a->rank >= 2 && b->rank >= 2, "both inputs must be at least matrices");
    bool ta = trn_attr_bool(s->node, "adj_x"), tb = trn_attr_bool(s->node, "adj_y");
    trn_shape la = *a, lb = *b, r;
    la.rank -= 2;
    lb.rank -= 2;
    TRN_TRY(trn_sh_broadcast(&r, &la, &lb));
    int64_t ka = a->dim[a->rank - 1 - ta], kb = b->dim[b->rank - 2 + tb];
    TRN_CHECK_ARG(ka < 0 || kb < 0 || ka == kb, "inner dimensions differ: %lld and %lld", (long long)ka, (long long)kb);
    r.dim[r.rank++] = a->dim[a->rank - 2 + ta];
    r.dim[r.rank++] = b->dim[b->rank - 1 - tb];
    s->out[0] = r;
    return TRN_OK;
}

/* ---- with what follows it ------------------------------------------------------------------------------------------------------- */

/* What the master's optimiser writes: MatMul, BiasAdd and perhaps an activation in one node. */
static trn_err k_fused_matmul(trn_kctx *k)
{
    const trn_attr *f = trn_node_attr(k->node, "fused_ops");
    TRN_CHECK_ARG(f && f->n >= 1 && f->n <= 2 && !strcmp(f->list[0].s.p, "BiasAdd"), "fused_ops must be BiasAdd and at most one activation");
    TRN_CHECK_ARG(k->n_in == 3, "_FusedMatMul must have one extra argument: bias.");
    trn_act act = TRN_ACT_NONE;
    if (f->n == 2 && !trn_act_of(&act, f->list[1].s.p))
        return trn_errorf(TRN_UNIMPLEMENTED, "Fusion is not implemented: [BiasAdd,%.40s]", f->list[1].s.p);
    float alpha = trn_attr_float(k->node, "leakyrelu_alpha");
    bool ta = trn_attr_bool(k->node, "transpose_a"), tb = trn_attr_bool(k->node, "transpose_b");
    const trn_tensor *b = trn_in(k, 1), *bias = trn_in(k, 2);
    int64_t n = b->shape.rank == 2 ? b->shape.dim[!tb] : -1; /* else the product will complain */
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(n < 0 || (trn_is_vector(bias) && bias->count == n), "bias must be a vector of %lld elements, not of shape %s", (long long)n,
                  trn_shape_text(t, &bias->shape));
    trn_tensor *y;
    bool wide = bias->dtype == TRN_FLOAT;
    TRN_TRY(product(k, &y, ta, tb, wide ? &(epilogue){TRN_DATA(bias, float), act, alpha} : NULL));
    if (wide || !y->count)
        return TRN_OK;
    float *row = malloc(2 * sizeof *row * (size_t)n);
    if (!row)
        return trn_err_oom();
    trn_widen(row + n, bias->data, y->dtype, n);
    for (int64_t r = 0; r < y->shape.dim[0]; r++) {
        uint16_t *h = TRN_DATA_MUT(y, uint16_t) + r * n;
        trn_widen(row, h, y->dtype, n);
        add_f32(row, row + n, n);
        trn_act_f32(row, n, act, alpha);
        trn_narrow(h, row, y->dtype, n);
    }
    free(row);
    return TRN_OK;
}

const trn_op trn_ops_matmul[] = {
    {"MatMul", "a:T, b:T -> product:T; transpose_a:bool=false, transpose_b:bool=false, T:float|i32|i64|c64|c128", sh_matmul, k_matmul, TRN_OP_HEAVY},
    {"BatchMatMul", "x:T, y:T -> output:T; T:float|i32|i64|c64|c128, adj_x:bool=false, adj_y:bool=false", sh_batch_matmul, k_batch_matmul, TRN_OP_HEAVY},
    {"BatchMatMulV2", "x:T, y:T -> output:T; T:float|i16|i32|i64|c64|c128, adj_x:bool=false, adj_y:bool=false", sh_batch_matmul, k_batch_matmul_v2,
     TRN_OP_HEAVY},
    {"BatchMatMulV3",
     "x:Ta, y:Tb -> output:Tout; Ta:float|i8|u8|i16|i32|i64|c64|c128, Tb:float|i8|u8|i16|i32|i64|c64|c128, Tout:float|i16|i32|i64|c64|c128, adj_x:bool=false, "
     "adj_y:bool=false",
     sh_batch_matmul, k_batch_matmul_v3, TRN_OP_HEAVY},
    {"_FusedMatMul",
     "a:T, b:T, args:num_args*T -> product:T; transpose_a:bool=false, transpose_b:bool=false, T:f16|bf16|f32, num_args:int>=0, "
     "fused_ops:list(string)=[], epsilon:float=0.0001, leakyrelu_alpha:float=0.2",
     sh_matmul, k_fused_matmul, TRN_OP_HEAVY},
    {0},
};
