/* Drivers of element-wise kernels: shapes, dtypes, splitting over threads. The inner loops are in the families. */
#include "op/kctx.h"
#include "ops/kern.h"

enum { BLOCK = 512 }; /* elements widened at a time: a few KiB of stack */

TRN_SIMD static void widen_bf16(float *y, const uint16_t *x, int64_t n)
{
    uint32_t *o = (uint32_t *)(void *)y;
    for (int64_t i = 0; i < n; i++)
        o[i] = (uint32_t)x[i] << 16;
}

TRN_SIMD static void narrow_bf16(uint16_t *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &x[i], 4);
        uint32_t r = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
        y[i] = (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : r);
    }
}

void trn_widen(float *y, const void *x, trn_dtype t, int64_t n)
{
    if (t == TRN_BFLOAT16) {
        widen_bf16(y, x, n);
        return;
    }
    const trn_half *h = x;
    for (int64_t i = 0; i < n; i++)
        y[i] = trn_half_to_f32(h[i]);
}

void trn_narrow(void *y, const float *x, trn_dtype t, int64_t n)
{
    if (t == TRN_BFLOAT16) {
        narrow_bf16(y, x, n);
        return;
    }
    trn_half *h = y;
    for (int64_t i = 0; i < n; i++)
        h[i] = trn_half_from_f32(x[i]);
}

static int64_t grain_of(int cost) { return trn_grain(cost ? 4096 : 65536); }

/* ---- one input ------------------------------------------------------------------------------------------------- */

typedef struct unary_job {
    trn_unary_fn f;
    trn_dtype half; /* widen from this, or TRN_INVALID */
    bool narrow;    /* and narrow the result */
    float p;
    size_t xs, ys;
    char *y;
    const char *x;
} unary_job;

static void unary_part(void *arg, int64_t lo, int64_t hi)
{
    const unary_job *j = arg;
    if (j->half == TRN_INVALID) {
        j->f(j->y + (size_t)lo * j->ys, j->x + (size_t)lo * j->xs, hi - lo, j->p);
        return;
    }
    float in[BLOCK], out[BLOCK];
    for (int64_t i = lo; i < hi; i += BLOCK) {
        int64_t n = TRN_MIN((int64_t)BLOCK, hi - i);
        trn_widen(in, j->x + i * 2, j->half, n);
        if (j->narrow) {
            j->f(out, in, n, j->p);
            trn_narrow(j->y + i * 2, out, j->half, n);
        } else {
            j->f(j->y + (size_t)i * j->ys, in, n, j->p);
        }
    }
}

trn_err trn_ew_unary_to(trn_kctx *k, const trn_unary *op, trn_dtype to)
{
    const trn_tensor *x = trn_in(k, 0);
    trn_tensor *y;
    unary_job j = {.f = op->f[x->dtype], .xs = trn_dtype_size(x->dtype), .ys = trn_dtype_size(to)};
    if (!j.f && trn_is_half(x->dtype)) {
        j.f = op->f[TRN_FLOAT];
        j.half = x->dtype;
        j.narrow = to == x->dtype;
    }
    if (!j.f)
        return trn_errorf(TRN_UNIMPLEMENTED, "no kernel for %s", trn_dtype_name(x->dtype));
    j.p = op->attr ? trn_attr_float(k->node, op->attr) : 0;
    j.x = x->data;
    if (to == x->dtype)
        TRN_TRY(trn_out_like(&y, k, 0, 0));
    else
        TRN_TRY(trn_out_new(&y, k, 0, to, &x->shape));
    j.y = y->data;
    int64_t n = y->count, grain = grain_of(op->cost);
    if (n < 2 * grain)
        unary_part(&j, 0, n);
    else
        trn_k_for(k, n, grain, unary_part, &j);
    return TRN_OK;
}

trn_err trn_ew_unary(trn_kctx *k, const trn_unary *op) { return trn_ew_unary_to(k, op, trn_in(k, 0)->dtype); }

/* ---- two inputs ------------------------------------------------------------------------------------------------ */

trn_err trn_bcast_make(trn_bcast *b, const trn_shape *x, const trn_shape *y)
{
    int rank = TRN_MAX(x->rank, y->rank);
    int64_t sx = 1, sy = 1, count;
    int64_t dim[TRN_MAX_RANK], ax[TRN_MAX_RANK], ay[TRN_MAX_RANK];
    b->out.rank = rank;
    for (int i = rank - 1, p = x->rank - 1, q = y->rank - 1; i >= 0; i--, p--, q--) {
        int64_t dx = p >= 0 ? x->dim[p] : 1, dy = q >= 0 ? y->dim[q] : 1;
        if (dx != dy && dx != 1 && dy != 1) {
            char tx[TRN_SHAPE_TEXT], ty[TRN_SHAPE_TEXT];
            return TRN_BAD("Incompatible shapes: %s vs. %s", trn_shape_text(tx, x), trn_shape_text(ty, y));
        }
        b->out.dim[i] = dim[i] = dx == 1 ? dy : dx;
        ax[i] = dx == 1 ? 0 : sx;
        ay[i] = dy == 1 ? 0 : sy;
        sx = trn_times(sx, dx);
        sy = trn_times(sy, dy);
    }
    TRN_TRY(trn_count_checked(&count, &b->out));
    if (!count) {
        b->rank = 1;
        b->dim[0] = b->sa[0] = b->sb[0] = 0;
        return TRN_OK;
    }
    /* Merge from the inside out; a dim of 1 disappears. */
    int n = 0; /* reversed: dims [0..n) innermost first */
    for (int i = rank - 1; i >= 0; i--) {
        if (dim[i] == 1)
            continue;
        if (n > 0 && ax[i] == b->sa[n - 1] * b->dim[n - 1] && ay[i] == b->sb[n - 1] * b->dim[n - 1]) {
            b->dim[n - 1] *= dim[i];
            continue;
        }
        b->dim[n] = dim[i];
        b->sa[n] = ax[i];
        b->sb[n] = ay[i];
        n++;
    }
    if (n == 0) {
        b->dim[0] = 1;
        b->sa[0] = b->sb[0] = 0;
        n = 1;
    }
    b->rank = n;
    for (int i = 0; i < n / 2; i++) {
        int j = n - 1 - i;
        int64_t t;
        t = b->dim[i], b->dim[i] = b->dim[j], b->dim[j] = t;
        t = b->sa[i], b->sa[i] = b->sa[j], b->sa[j] = t;
        t = b->sb[i], b->sb[i] = b->sb[j], b->sb[j] = t;
    }
    return TRN_OK;
}

typedef struct binary_job {
    trn_binary_fn f;
    trn_dtype half;
    bool narrow;
    float p;
    size_t xs, ys;
    char *y;
    const char *a, *b;
    const trn_bcast *bc;
    _Atomic int bad;
} binary_job;

static void binary_run(const binary_job *j, int64_t yo, int64_t ao, int64_t bo, int64_t n, int sa, int sb, int *bad)
{
    if (j->half == TRN_INVALID) {
        j->f(j->y + yo * (int64_t)j->ys, j->a + ao * (int64_t)j->xs, j->b + bo * (int64_t)j->xs, n, sa, sb, bad, j->p);
        return;
    }
    float x[BLOCK], z[BLOCK], out[BLOCK];
    if (!sa)
        trn_widen(x, j->a + ao * 2, j->half, 1);
    if (!sb)
        trn_widen(z, j->b + bo * 2, j->half, 1);
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t m = TRN_MIN((int64_t)BLOCK, n - i);
        if (sa)
            trn_widen(x, j->a + (ao + i) * 2, j->half, m);
        if (sb)
            trn_widen(z, j->b + (bo + i) * 2, j->half, m);
        if (j->narrow) {
            j->f(out, x, z, m, sa, sb, bad, j->p);
            trn_narrow(j->y + (yo + i) * 2, out, j->half, m);
        } else {
            j->f(j->y + (yo + i) * (int64_t)j->ys, x, z, m, sa, sb, bad, j->p);
        }
    }
}

static void binary_flat(void *arg, int64_t lo, int64_t hi)
{
    binary_job *j = arg;
    const trn_bcast *c = j->bc;
    int bad = 0;
    binary_run(j, lo, lo * c->sa[0], lo * c->sb[0], hi - lo, (int)c->sa[0], (int)c->sb[0], &bad);
    if (bad)
        atomic_fetch_or(&j->bad, bad);
}

/* [lo, hi) counts rows: runs along the last merged dim. */
static void binary_rows(void *arg, int64_t lo, int64_t hi)
{
    binary_job *j = arg;
    const trn_bcast *c = j->bc;
    int last = c->rank - 1, bad = 0;
    int64_t at[TRN_MAX_RANK] = {0}, ao = 0, bo = 0, n = c->dim[last], rest = lo;
    int sa = (int)c->sa[last], sb = (int)c->sb[last];
    for (int d = last - 1; d >= 0; d--) {
        at[d] = rest % c->dim[d];
        rest /= c->dim[d];
        ao += at[d] * c->sa[d];
        bo += at[d] * c->sb[d];
    }
    for (int64_t r = lo; r < hi; r++) {
        binary_run(j, r * n, ao, bo, n, sa, sb, &bad);
        for (int d = last - 1; d >= 0; d--) {
            ao += c->sa[d];
            bo += c->sb[d];
            if (++at[d] < c->dim[d])
                break;
            ao -= c->sa[d] * c->dim[d];
            bo -= c->sb[d] * c->dim[d];
            at[d] = 0;
        }
    }
    if (bad)
        atomic_fetch_or(&j->bad, bad);
}

static trn_err binary_go(trn_kctx *k, const trn_binary *op, trn_dtype to, const trn_bcast *c)
{
    const trn_tensor *a = trn_in(k, 0), *b = trn_in(k, 1);
    trn_dtype dt = a->dtype;
    binary_job j = {.f = op->f[dt], .xs = trn_dtype_size(dt), .ys = trn_dtype_size(to), .bc = c};
    if (!j.f && trn_is_half(dt)) {
        j.f = op->f[TRN_FLOAT];
        j.half = dt;
        j.narrow = to == dt;
    }
    if (!j.f)
        return trn_errorf(TRN_UNIMPLEMENTED, "no kernel for %s", trn_dtype_name(dt));
    j.p = op->attr ? trn_attr_float(k->node, op->attr) : 0;
    j.a = a->data;
    j.b = b->data;
    trn_tensor *y;
    /* A string result is written by replacing elements, so it never takes over an input that is still read. */
    if (to == dt && dt != TRN_STRING && trn_shape_eq(&c->out, &a->shape) && trn_tensor_sole(a))
        TRN_TRY(trn_out_like(&y, k, 0, 0));
    else if (to == dt && dt != TRN_STRING && trn_shape_eq(&c->out, &b->shape))
        TRN_TRY(trn_out_like(&y, k, 0, 1));
    else
        TRN_TRY(trn_out_new(&y, k, 0, to, &c->out));
    j.y = y->data;
    if (y->count == 0)
        return TRN_OK;
    int64_t grain = grain_of(op->cost), inner = c->dim[c->rank - 1], rows = y->count / inner;
    if (c->rank == 1) {
        if (inner < 2 * grain)
            binary_flat(&j, 0, inner);
        else
            trn_k_for(k, inner, grain, binary_flat, &j);
    } else if (y->count < 2 * grain) {
        binary_rows(&j, 0, rows);
    } else {
        trn_k_for(k, rows, TRN_MAX(grain / inner, (int64_t)1), binary_rows, &j);
    }
    int bad = j.bad;
    if (TRN_UNLIKELY(bad)) {
        if (bad & TRN_EW_OOM)
            return trn_err_oom();
        if (bad & TRN_EW_NEGPOW)
            return TRN_BAD("Integers to negative integer powers are not allowed");
        return TRN_BAD("Integer division by zero");
    }
    return TRN_OK;
}

trn_err trn_ew_binary_to(trn_kctx *k, const trn_binary *op, trn_dtype to)
{
    trn_bcast c;
    const trn_tensor *a = trn_in(k, 0), *b = trn_in(k, 1);
    TRN_TRY(trn_bcast_make(&c, &a->shape, &b->shape));
    return binary_go(k, op, to, &c);
}

trn_err trn_ew_binary(trn_kctx *k, const trn_binary *op) { return trn_ew_binary_to(k, op, trn_in(k, 0)->dtype); }

trn_err trn_ew_binary_same(trn_kctx *k, const trn_binary *op)
{
    const trn_tensor *a = trn_in(k, 0), *b = trn_in(k, 1);
    if (!trn_shape_eq(&a->shape, &b->shape)) {
        char ta[TRN_SHAPE_TEXT], tb[TRN_SHAPE_TEXT];
        return TRN_BAD("Inputs to operation %s must have the same size and shape.  Input 0: %s != input 1: %s", k->node->op,
                       trn_shape_text(ta, &a->shape), trn_shape_text(tb, &b->shape));
    }
    return trn_ew_binary(k, op);
}
