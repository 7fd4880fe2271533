/* Matrix products. Rows of the result are split over threads; the inner loop adds four scaled rows of b to a row of the result, which the compiler
 * vectorises. A transposed operand is copied into row order first: the copy is small beside the product. */
#include <complex.h>
#include <stdlib.h>

#include "ops/kern.h"

#define INNER(T, S, SIMD)                                                                                              \
    SIMD static void rows_##S(void *vc, const void *va, const void *vb, int64_t rows, int64_t k, int64_t n)            \
    {                                                                                                                  \
        T *c = vc;                                                                                                     \
        const T *a = va, *b = vb;                                                                                      \
        for (int64_t i = 0; i < rows; i++, c += n, a += k) {                                                           \
            for (int64_t j = 0; j < n; j++)                                                                            \
                c[j] = 0;                                                                                              \
            int64_t p = 0;                                                                                             \
            for (; p + 4 <= k; p += 4) {                                                                               \
                const T a0 = a[p], a1 = a[p + 1], a2 = a[p + 2], a3 = a[p + 3];                                        \
                const T *b0 = b + p * n, *b1 = b0 + n, *b2 = b1 + n, *b3 = b2 + n;                                     \
                TRN_IVDEP                                                                                              \
                for (int64_t j = 0; j < n; j++)                                                                        \
                    c[j] += a0 * b0[j] + a1 * b1[j] + a2 * b2[j] + a3 * b3[j];                                         \
            }                                                                                                          \
            for (; p < k; p++) {                                                                                       \
                const T a0 = a[p];                                                                                     \
                const T *b0 = b + p * n;                                                                               \
                TRN_IVDEP                                                                                              \
                for (int64_t j = 0; j < n; j++)                                                                        \
                    c[j] += a0 * b0[j];                                                                                \
            }                                                                                                          \
        }                                                                                                              \
    }
INNER(float, f32, TRN_SIMD)
INNER(double, f64, TRN_SIMD)
INNER(uint32_t, i32, TRN_SIMD) /* two's complement wraps alike for both signs */
INNER(uint64_t, i64, )
INNER(float _Complex, c64, )
INNER(double _Complex, c128, )

typedef void (*rows_fn)(void *, const void *, const void *, int64_t, int64_t, int64_t);
static const rows_fn inner[TRN_DTYPE_END] = {
    [TRN_FLOAT] = rows_f32, [TRN_DOUBLE] = rows_f64, [TRN_INT32] = rows_i32, [TRN_INT64] = rows_i64, [TRN_COMPLEX64] = rows_c64, [TRN_COMPLEX128] = rows_c128};

/* y[c][r] = x[r][c], conjugated when asked for. */
static void transpose(void *vy, const void *vx, int64_t rows, int64_t cols, trn_dtype t, bool conj)
{
    size_t size = trn_dtype_size(t);
    for (int64_t r0 = 0; r0 < rows; r0 += 16)
        for (int64_t c0 = 0; c0 < cols; c0 += 16)
            for (int64_t r = r0; r < TRN_MIN(r0 + 16, rows); r++)
                for (int64_t c = c0; c < TRN_MIN(c0 + 16, cols); c++)
                    memcpy((char *)vy + (size_t)(c * rows + r) * size, (const char *)vx + (size_t)(r * cols + c) * size, size);
    if (conj && t == TRN_COMPLEX64)
        for (int64_t i = 0; i < rows * cols; i++)
            ((float _Complex *)vy)[i] = conjf(((float _Complex *)vy)[i]);
    if (conj && t == TRN_COMPLEX128)
        for (int64_t i = 0; i < rows * cols; i++)
            ((double _Complex *)vy)[i] = (__extension__ ~((double _Complex *)vy)[i]);
}

typedef struct product {
    char *c;
    const char *a, *b;
    int64_t m, k, n;
    size_t size;
    rows_fn f;
} product;

static void some_rows(void *arg, int64_t begin, int64_t end)
{
    const product *p = arg;
    p->f(p->c + (size_t)(begin * p->n) * p->size, p->a + (size_t)(begin * p->k) * p->size, p->b, end - begin, p->k, p->n);
}

/* A matrix in row order, in the type that is computed in: itself, or a copy in `tmp` (to be freed). */
static const void *in_order(trn_err *err, void **tmp, const void *x, int64_t rows, int64_t cols, trn_dtype t, bool transposed, bool conj)
{
    *tmp = NULL;
    if (!transposed && !trn_is_half(t))
        return x;
    trn_dtype ct = trn_is_half(t) ? TRN_FLOAT : t;
    size_t bytes = (size_t)(rows * cols) * trn_dtype_size(ct);
    void *wide = NULL;
    if (trn_is_half(t)) {
        wide = malloc(bytes + 1);
        if (!wide) {
            *err = trn_err_oom();
            return NULL;
        }
        trn_widen(wide, x, t, rows * cols);
        x = wide;
    }
    if (transposed) {
        *tmp = malloc(bytes + 1);
        if (!*tmp) {
            free(wide);
            *err = trn_err_oom();
            return NULL;
        }
        transpose(*tmp, x, cols, rows, ct, conj); /* x is cols × rows as it lies */
        free(wide);
        return *tmp;
    }
    *tmp = wide;
    return wide;
}

/* c[m][n] = a·b; ta, tb: the operand lies transposed. */
static trn_err multiply(const trn_kctx *kc, void *c, const void *a, const void *b, int64_t m, int64_t k, int64_t n, trn_dtype t, bool ta, bool tb, bool conj)
{
    if (!m || !n)
        return TRN_OK;
    trn_err err = TRN_OK;
    void *atmp = NULL, *btmp = NULL, *out = NULL;
    const void *pa = in_order(&err, &atmp, a, m, k, t, ta, conj);
    const void *pb = err ? NULL : in_order(&err, &btmp, b, k, n, t, tb, conj);
    trn_dtype ct = trn_is_half(t) ? TRN_FLOAT : t;
    if (!err && trn_is_half(t) && !(out = malloc((size_t)(m * n) * sizeof(float))))
        err = trn_err_oom();
    if (!err) {
        product p = {out ? out : c, pa, pb, m, k, n, trn_dtype_size(ct), inner[ct]};
        int64_t grain = TRN_MAX(1, (1 << 16) / TRN_MAX(k * n, 1));
        trn_k_for(kc, m, grain, some_rows, &p);
        if (out)
            trn_narrow(c, out, t, m * n);
    }
    free(atmp);
    free(btmp);
    free(out);
    return err;
}

static trn_err matmul_into(trn_tensor **y, trn_kctx *k)
{
    const trn_tensor *a = trn_in(k, 0), *b = trn_in(k, 1);
    bool ta = trn_attr_bool(k->node, "transpose_a"), tb = trn_attr_bool(k->node, "transpose_b");
    char sa[TRN_SHAPE_TEXT], sb[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(a->shape.rank == 2, "In[0] is not a matrix. Instead it has shape %s", trn_shape_text(sa, &a->shape));
    TRN_CHECK_ARG(b->shape.rank == 2, "In[1] is not a matrix. Instead it has shape %s", trn_shape_text(sb, &b->shape));
    int64_t m = a->shape.dim[ta], ka = a->shape.dim[!ta], kb = b->shape.dim[tb], n = b->shape.dim[!tb];
    TRN_CHECK_ARG(ka == kb, "Matrix size-incompatible: In[0]: %s, In[1]: %s", trn_shape_text(sa, &a->shape), trn_shape_text(sb, &b->shape));
    trn_shape shape = trn_shape_of(2, m, n);
    TRN_TRY(trn_out_new(y, k, 0, a->dtype, &shape));
    return multiply(k, (*y)->data, a->data, b->data, m, ka, n, a->dtype, ta, tb, false);
}

static trn_err matmul(trn_kctx *k)
{
    trn_tensor *y;
    return matmul_into(&y, k);
}

static trn_err matmul_shape(trn_shctx *s)
{
    const trn_shape *a = &s->in[0], *b = &s->in[1];
    bool ta = trn_attr_bool(s->node, "transpose_a"), tb = trn_attr_bool(s->node, "transpose_b");
    TRN_CHECK_ARG((a->rank == 2 || a->rank < 0) && (b->rank == 2 || b->rank < 0), "%s: MatMul of something that is not a matrix", s->node->name);
    s->out[0] = trn_shape_of(2, a->rank < 0 ? INT64_C(-1) : a->dim[ta], b->rank < 0 ? INT64_C(-1) : b->dim[!tb]);
    return TRN_OK;
}

/* ---- batches ---------------------------------------------------------------------------------------------------------- */

/* Batch dims broadcast (V2); the offset of each operand's matrix follows from the result's batch index. */
static trn_err batch_matmul_as(trn_kctx *k, bool broadcast)
{
    const trn_tensor *x = trn_in(k, 0), *y = trn_in(k, 1);
    bool tx = trn_attr_bool(k->node, "adj_x"), ty = trn_attr_bool(k->node, "adj_y");
    char sx[TRN_SHAPE_TEXT], sy[TRN_SHAPE_TEXT];
    int rx = x->shape.rank, ry = y->shape.rank;
    TRN_CHECK_ARG(rx >= 2, "In[0] ndims must be >= 2: %d", rx);
    TRN_CHECK_ARG(ry >= 2, "In[1] ndims must be >= 2: %d", ry);
    TRN_CHECK_ARG(broadcast || rx == ry, "In[0] and In[1] has different ndims: %s vs. %s", trn_shape_text(sx, &x->shape), trn_shape_text(sy, &y->shape));
    int64_t m = x->shape.dim[rx - 2 + tx], kx = x->shape.dim[rx - 1 - tx], ky = y->shape.dim[ry - 2 + ty], n = y->shape.dim[ry - 1 - ty];
    TRN_CHECK_ARG(kx == ky, "Matrix size-incompatible: In[0]: %s, In[1]: %s", trn_shape_text(sx, &x->shape), trn_shape_text(sy, &y->shape));
    trn_shape out = {.rank = TRN_MAX(rx, ry)};
    int nb = out.rank - 2;
    int64_t stride_x[TRN_MAX_RANK] = {0}, stride_y[TRN_MAX_RANK] = {0}, batches = 1, px = 1, py = 1;
    for (int i = nb - 1; i >= 0; i--) {
        int ix = i - (nb - (rx - 2)), iy = i - (nb - (ry - 2));
        int64_t dx = ix < 0 ? 1 : x->shape.dim[ix], dy = iy < 0 ? 1 : y->shape.dim[iy];
        TRN_CHECK_ARG(dx == dy || (broadcast && (dx == 1 || dy == 1)), "In[0] and In[1] must have compatible batch dimensions: %s vs. %s",
                      trn_shape_text(sx, &x->shape), trn_shape_text(sy, &y->shape));
        out.dim[i] = dx == 1 ? dy : dx;
        stride_x[i] = dx == 1 ? 0 : px;
        stride_y[i] = dy == 1 ? 0 : py;
        px *= dx;
        py *= dy;
        batches *= out.dim[i];
    }
    out.dim[nb] = m;
    out.dim[nb + 1] = n;
    trn_tensor *z;
    TRN_TRY(trn_out_new(&z, k, 0, x->dtype, &out));
    size_t size = trn_dtype_size(x->dtype);
    for (int64_t i = 0; i < batches; i++) {
        int64_t rest = i, ox = 0, oy = 0;
        for (int d = nb - 1; d >= 0; d--) {
            int64_t at = rest % out.dim[d];
            rest /= out.dim[d];
            ox += at * stride_x[d];
            oy += at * stride_y[d];
        }
        TRN_TRY(multiply(k, (char *)z->data + (size_t)(i * m * n) * size, (const char *)x->data + (size_t)(ox * m * kx) * size,
                         (const char *)y->data + (size_t)(oy * ky * n) * size, m, kx, n, x->dtype, tx, ty, true));
    }
    return TRN_OK;
}

static trn_err batch_matmul(trn_kctx *k)
{
    return batch_matmul_as(k, false);
}

static trn_err batch_matmul_v2(trn_kctx *k)
{
    return batch_matmul_as(k, true);
}

/* ---- fused ------------------------------------------------------------------------------------------------------------ */

static float act_identity(float v, float alpha) { return v; }
static float act_relu(float v, float alpha) { return v > 0 ? v : 0; }
static float act_relu6(float v, float alpha) { return v < 0 ? 0 : v > 6 ? 6 : v; }
static float act_elu(float v, float alpha) { return v > 0 ? v : __builtin_expm1f(v); }
static float act_leaky(float v, float alpha) { return v > 0 ? v : alpha * v; }
static float act_tanh(float v, float alpha) { return __builtin_tanhf(v); }
static float act_sigmoid(float v, float alpha) { return 1 / (1 + __builtin_expf(-v)); }

static const struct {
    const char *name;
    float (*f)(float, float);
} activations[] = {{"Relu", act_relu},      {"Relu6", act_relu6}, {"Elu", act_elu},
                   {"LeakyRelu", act_leaky}, {"Tanh", act_tanh},   {"Sigmoid", act_sigmoid}};

/* What a TensorFlow master's optimiser makes of MatMul + BiasAdd + activation. */
static trn_err fused_matmul(trn_kctx *k)
{
    const trn_attr *ops = trn_node_attr(k->node, "fused_ops");
    TRN_CHECK_ARG(ops && ops->n >= 1 && !strcmp(ops->list[0].s.p, "BiasAdd"), "fused_ops must begin with BiasAdd");
    float (*act)(float, float) = ops->n == 1 ? act_identity : NULL;
    for (size_t i = 0; ops->n == 2 && i < TRN_COUNTOF(activations); i++)
        if (!strcmp(activations[i].name, ops->list[1].s.p))
            act = activations[i].f;
    if (!act)
        return trn_errorf(TRN_UNIMPLEMENTED, "fused_ops with %s: Trainera has no such fusion", ops->list[ops->n - 1].s.p);
    int n_args, first = trn_in_arg(k, "args", &n_args);
    TRN_CHECK_ARG(n_args >= 1, "a fused bias needs its argument");
    const trn_tensor *bias = trn_in(k, first);
    trn_tensor *y;
    TRN_TRY(matmul_into(&y, k));
    int64_t n = y->shape.dim[1];
    TRN_CHECK_ARG(bias->shape.rank == 1 && bias->count == n, "the bias has %lld elements for %lld columns", (long long)bias->count, (long long)n);
    const float alpha = trn_attr_float(k->node, "leakyrelu_alpha"), *b = bias->data;
    float *v = y->data;
    for (int64_t i = 0; i < y->count; i++)
        v[i] = act(v[i] + b[i % n], alpha);
    return TRN_OK;
}

const trn_op trn_ops_matmul[] = {
    {"MatMul", "a:T, b:T -> product:T; transpose_a:bool=false, transpose_b:bool=false, T:f16|bf16|f32|f64|i32|i64|c64|c128", matmul_shape, matmul, TRN_OP_HEAVY},
    {"BatchMatMul", "x:T, y:T -> output:T; T:f16|bf16|f32|f64|i32|i64|c64|c128, adj_x:bool=false, adj_y:bool=false", trn_sh_unknown, batch_matmul, TRN_OP_HEAVY},
    {"BatchMatMulV2", "x:T, y:T -> output:T; T:f16|bf16|f32|f64|i32|i64|c64|c128, adj_x:bool=false, adj_y:bool=false", trn_sh_unknown, batch_matmul_v2,
     TRN_OP_HEAVY},
    {"_FusedMatMul",
     "a:T, b:T, args:num_args*T -> product:T; transpose_a:bool=false, transpose_b:bool=false, T:f32, num_args:int>=0, fused_ops:list(string)=[], "
     "epsilon:float=0.0001, leakyrelu_alpha:float=0.2",
     matmul_shape, fused_matmul, TRN_OP_HEAVY},
    {0},
};
