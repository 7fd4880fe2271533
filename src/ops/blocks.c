/* Moving elements: every reshuffling kernel (transpose, slice, pad, tile, concat, …) is one or a few calls of trn_block_copy. */
#include "op/kctx.h"
#include "ops/kern.h"

void trn_row_strides(int64_t *stride, const trn_shape *s)
{
    int64_t n = 1;
    for (int i = s->rank - 1; i >= 0; i--) {
        stride[i] = n;
        n = trn_times(n, s->dim[i]);
    }
}

typedef struct copy_job {
    trn_tensor *dst;
    const trn_tensor *src;
    int64_t dst_at, src_at;
    size_t size; /* of an element; 0: not plain bytes */
    int rank;    /* at least 1 */
    int64_t dim[TRN_MAX_RANK], ds[TRN_MAX_RANK], ss[TRN_MAX_RANK];
    trn_err err;
} copy_job;

#define RUN(T)                                                                                                         \
    do {                                                                                                               \
        T *y = (T *)(void *)d;                                                                                         \
        const T *x = (const T *)(const void *)s;                                                                       \
        if (ds == 1 && ss == 0) {                                                                                      \
            T v = *x;                                                                                                  \
            for (int64_t i = 0; i < n; i++)                                                                            \
                y[i] = v;                                                                                              \
        } else {                                                                                                       \
            for (int64_t i = 0; i < n; i++)                                                                            \
                y[i * ds] = x[i * ss];                                                                                 \
        }                                                                                                              \
    } while (0)

typedef struct b16 {
    uint64_t a, b;
} b16;

static inline void run_line(size_t size, char *d, int64_t ds, const char *s, int64_t ss, int64_t n)
{
    if (ds == 1 && ss == 1) {
        memcpy(d, s, (size_t)n * size);
        return;
    }
    switch (size) {
    case 1: RUN(uint8_t); break;
    case 2: RUN(uint16_t); break;
    case 4: RUN(uint32_t); break;
    case 8: RUN(uint64_t); break;
    default: RUN(b16); break;
    }
}

/* A plane whose source runs along the outer dim: tiles keep both sides in cache (transpose). */
static void run_plane(size_t size, char *d, const int64_t *ds, const char *s, const int64_t *ss, const int64_t *dim)
{
    enum { TILE = 16 };
    for (int64_t i = 0; i < dim[0]; i += TILE)
        for (int64_t j = 0; j < dim[1]; j += TILE) {
            int64_t ie = TRN_MIN(i + TILE, dim[0]), n = TRN_MIN((int64_t)TILE, dim[1] - j);
            for (int64_t p = i; p < ie; p++)
                run_line(size, d + (p * ds[0] + j * ds[1]) * (int64_t)size, ds[1], s + (p * ss[0] + j * ss[1]) * (int64_t)size, ss[1], n);
        }
}

static trn_err run_counted(copy_job *j, int64_t d, int64_t s, int64_t ds, int64_t ss, int64_t n)
{
    if (ds == 1 && ss == 1)
        return trn_tensor_copy_elems(j->dst, d, j->src, s, n);
    for (int64_t i = 0; i < n; i++)
        TRN_TRY(trn_tensor_copy_elems(j->dst, d + i * ds, j->src, s + i * ss, 1));
    return TRN_OK;
}

static void copy_part(void *arg, int64_t lo, int64_t hi)
{
    copy_job *j = arg;
    bool plane = j->size && j->rank >= 2 && j->ss[j->rank - 1] != 1 && j->ss[j->rank - 1] != 0 && j->dim[j->rank - 2] >= 8 &&
                 j->dim[j->rank - 1] >= 8;
    int in = plane ? 2 : 1, outer = j->rank - in, last = j->rank - 1;
    int64_t at[TRN_MAX_RANK] = {0}, d = j->dst_at, s = j->src_at, rest = lo;
    for (int i = outer - 1; i >= 0; i--) {
        at[i] = rest % j->dim[i];
        rest /= j->dim[i];
        d += at[i] * j->ds[i];
        s += at[i] * j->ss[i];
    }
    char *dp = j->dst->data;
    const char *sp = j->src->data;
    for (int64_t r = lo; r < hi; r++) {
        if (plane)
            run_plane(j->size, dp + d * (int64_t)j->size, &j->ds[outer], sp + s * (int64_t)j->size, &j->ss[outer], &j->dim[outer]);
        else if (j->size)
            run_line(j->size, dp + d * (int64_t)j->size, j->ds[last], sp + s * (int64_t)j->size, j->ss[last], j->dim[last]);
        else if (!j->err)
            j->err = run_counted(j, d, s, j->ds[last], j->ss[last], j->dim[last]); /* one thread only: see below */
        for (int i = outer - 1; i >= 0; i--) {
            d += j->ds[i];
            s += j->ss[i];
            if (++at[i] < j->dim[i])
                break;
            d -= j->ds[i] * j->dim[i];
            s -= j->ss[i] * j->dim[i];
            at[i] = 0;
        }
    }
}

trn_err trn_block_copy(trn_kctx *k, trn_tensor *dst, int64_t dst_at, const int64_t *ds, const trn_tensor *src, int64_t src_at,
                       const int64_t *ss, const int64_t *size, int rank)
{
    copy_job j = {.dst = dst, .src = src, .dst_at = dst_at, .src_at = src_at};
    int64_t total = 1;
    int n = 0;
    for (int i = 0; i < rank; i++)
        if (size[i] == 0)
            return TRN_OK;
    for (int i = 0; i < rank; i++) {
        total *= size[i];
        if (size[i] == 1)
            continue;
        if (n > 0 && j.ds[n - 1] == ds[i] * size[i] && j.ss[n - 1] == ss[i] * size[i]) {
            j.dim[n - 1] *= size[i];
            j.ds[n - 1] = ds[i];
            j.ss[n - 1] = ss[i];
            continue;
        }
        j.dim[n] = size[i];
        j.ds[n] = ds[i];
        j.ss[n] = ss[i];
        n++;
    }
    if (n == 0) {
        j.dim[0] = 1;
        j.ds[0] = j.ss[0] = 1;
        n = 1;
    }
    j.rank = n;
    j.size = trn_dtype_is_plain(dst->dtype) ? trn_dtype_size(dst->dtype) : 0;
    bool plane = j.size && n >= 2 && j.ss[n - 1] != 1 && j.ss[n - 1] != 0 && j.dim[n - 2] >= 8 && j.dim[n - 1] >= 8;
    int64_t inner = j.dim[n - 1] * (plane ? j.dim[n - 2] : 1), outer = total / inner;
    int64_t grain = trn_grain(TRN_MAX((int64_t)65536 / inner, (int64_t)1));
    if (!k || !j.size || outer < 2 * grain)
        copy_part(&j, 0, outer);
    else
        trn_k_for(k, outer, grain, copy_part, &j);
    return j.err;
}

trn_err trn_fill_elems(trn_tensor *dst, int64_t at, int64_t n, const trn_tensor *src, int64_t from)
{
    int64_t one = 1, zero = 0;
    return trn_block_copy(NULL, dst, at, &one, src, from, &zero, &n, 1);
}

void trn_zero_elems(trn_tensor *dst, int64_t at, int64_t n)
{
    size_t size = trn_dtype_size(dst->dtype);
    if (trn_dtype_is_plain(dst->dtype))
        memset((char *)dst->data + (size_t)at * size, 0, (size_t)n * size);
    else if (dst->dtype == TRN_STRING)
        for (int64_t i = 0; i < n; i++)
            trn_str_fini(&TRN_DATA_MUT(dst, trn_str)[at + i]);
    /* fresh handles and variants are NULL already */
}

trn_err trn_axis(int *out, int64_t axis, int rank, const char *what)
{
    if (axis < -rank || axis >= rank)
        return TRN_BAD("%s %lld is out of range [%d, %d), out of bounds for a tensor of rank %d", what, (long long)axis, -rank, rank, rank);
    *out = (int)(axis < 0 ? axis + rank : axis);
    return TRN_OK;
}

trn_err trn_count_checked(int64_t *out, const trn_shape *s)
{
    int64_t n = 1;
    for (int i = 0; i < s->rank; i++) {
        if (s->dim[i] < 0)
            return TRN_BAD("dimension %d is %lld, must be >= 0", i, (long long)s->dim[i]);
        int64_t sofar = n;
        if (__builtin_mul_overflow(n, s->dim[i], &n) || n > INT64_C(1) << 62) {
            char t[TRN_SHAPE_TEXT];
            return TRN_BAD("shape %s has too many elements: Encountered overflow when multiplying %lld with %lld", trn_shape_text(t, s), (long long)sofar,
                           (long long)s->dim[i]);
        }
    }
    *out = n;
    return TRN_OK;
}

trn_err trn_shape_from(trn_shape *out, const trn_tensor *t, bool scalar_ok)
{
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_is_vector(t) || (scalar_ok && trn_is_scalar(t)), "a shape must be a vector, not of shape %s",
                  trn_shape_text(text, &t->shape));
    TRN_CHECK_ARG(t->count <= TRN_MAX_RANK, "a shape has at most %d dimensions, not %lld", TRN_MAX_RANK, (long long)t->count);
    trn_shape s = {.rank = (int)t->count};
    for (int i = 0; i < s.rank; i++)
        s.dim[i] = trn_int_at(t, i);
    int64_t n;
    TRN_TRY(trn_count_checked(&n, &s));
    *out = s;
    return TRN_OK;
}
