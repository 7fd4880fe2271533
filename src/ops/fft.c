/* Fourier transforms over the last one, two or three dims. Lengths that are powers of two go by radix 2, others by Bluestein's chirp; all in
 * double. */
#include "ops/fft.h"

#include <complex.h>
#include <math.h>
#include <stdlib.h>

typedef double _Complex cplx;

/* ---- one row -------------------------------------------------------------------------------------------------------------- */

void trn_fft_fini(trn_fft *p)
{
    free(p->root);
    free(p->chirp);
    free(p->kernel);
    free(p->work);
}

/* In place, n a power of two; step: roots are those of a transform `step` times as long. */
static void radix2(cplx *x, int64_t n, const cplx *root, bool conjugate)
{
    for (int64_t i = 1, j = 0; i < n; i++) {
        int64_t bit = n >> 1;
        for (; j & bit; bit >>= 1)
            j ^= bit;
        j ^= bit;
        if (i < j) {
            cplx t = x[i];
            x[i] = x[j];
            x[j] = t;
        }
    }
    for (int64_t len = 2; len <= n; len <<= 1)
        for (int64_t i = 0; i < n; i += len)
            for (int64_t k = 0; k < len / 2; k++) {
                cplx w = root[k * (n / len)], a = x[i + k], b = x[i + k + len / 2] * (conjugate ? conj(w) : w);
                x[i + k] = a + b;
                x[i + k + len / 2] = a - b;
            }
}

static cplx unit(double turns) { return cexp(2 * M_PI * I * turns); }

trn_err trn_fft_init(trn_fft *p, int64_t n, bool inverse)
{
    double sign = inverse ? 1 : -1;
    *p = (trn_fft){.n = n, .m = 1};
    TRN_CHECK_ARG(n < INT64_C(1) << 40, "a transform of length %lld is too long", (long long)n);
    bool power = !(n & (n - 1));
    while (p->m < (power ? n : 2 * n - 1))
        p->m *= 2;
    p->root = malloc((size_t)(p->m / 2 + 1) * sizeof(cplx));
    if (!p->root)
        return trn_err_oom();
    for (int64_t k = 0; k < p->m / 2; k++)
        p->root[k] = unit(sign * (double)k / (double)p->m);
    if (power)
        return TRN_OK;
    p->chirp = malloc((size_t)n * sizeof(cplx));
    p->kernel = calloc((size_t)p->m, sizeof(cplx));
    p->work = malloc((size_t)p->m * sizeof(cplx));
    if (!p->chirp || !p->kernel || !p->work) {
        trn_fft_fini(p);
        return trn_err_oom();
    }
    for (int64_t k = 0; k < n; k++) {
        __int128 square = (__int128)k * k; /* modulo 2n, exactly */
        p->chirp[k] = unit(sign * 0.5 * (double)(int64_t)(square % (2 * n)) / (double)n);
    }
    p->kernel[0] = conj(p->chirp[0]);
    for (int64_t k = 1; k < n; k++)
        p->kernel[k] = p->kernel[p->m - k] = conj(p->chirp[k]);
    radix2(p->kernel, p->m, p->root, false);
    return TRN_OK;
}

void trn_fft_run(const trn_fft *p, cplx *x)
{
    if (!p->chirp) {
        radix2(x, p->n, p->root, false);
        return;
    }
    memset(p->work, 0, (size_t)p->m * sizeof(cplx));
    for (int64_t k = 0; k < p->n; k++)
        p->work[k] = x[k] * p->chirp[k];
    radix2(p->work, p->m, p->root, false);
    for (int64_t k = 0; k < p->m; k++)
        p->work[k] *= p->kernel[k];
    radix2(p->work, p->m, p->root, true);
    for (int64_t k = 0; k < p->n; k++)
        x[k] = p->work[k] / (double)p->m * p->chirp[k];
}

/* ---- all rows along one dim ------------------------------------------------------------------------------------------------ */

/* x: outer × n × inner. */
static trn_err along(cplx *x, int64_t outer, int64_t n, int64_t inner, bool inverse)
{
    if (n <= 1 || outer * inner == 0)
        return TRN_OK;
    trn_fft p;
    TRN_TRY(trn_fft_init(&p, n, inverse));
    cplx *row = malloc((size_t)n * sizeof *row);
    for (int64_t r = 0; r < outer * inner && row; r++) {
        cplx *at = x + r / inner * n * inner + r % inner;
        for (int64_t k = 0; k < n; k++)
            row[k] = at[k * inner];
        trn_fft_run(&p, row);
        for (int64_t k = 0; k < n; k++)
            at[k * inner] = inverse ? row[k] / (double)n : row[k];
    }
    trn_fft_fini(&p);
    bool mem = row != NULL;
    free(row);
    return mem ? TRN_OK : trn_err_oom();
}

/* Dims d0 … rank-1 of a tensor of this shape; skip_last: not the last one. */
static trn_err all_dims(cplx *x, const trn_shape *s, int d0, bool skip_last, bool inverse)
{
    for (int d = d0; d < s->rank - skip_last; d++) {
        int64_t outer = 1, inner = 1;
        for (int i = 0; i < s->rank; i++)
            if (i != d)
                *(i < d ? &outer : &inner) *= s->dim[i];
        TRN_TRY(along(x, outer, s->dim[d], inner, inverse));
    }
    return TRN_OK;
}

static cplx get(const trn_tensor *t, int64_t i)
{
    switch (t->dtype) {
    case TRN_FLOAT:
        return (double)TRN_DATA(t, float)[i];
    case TRN_DOUBLE:
        return TRN_DATA(t, double)[i];
    case TRN_COMPLEX64:
        return (cplx)TRN_DATA(t, float _Complex)[i];
    default:
        return TRN_DATA(t, cplx)[i];
    }
}

static void put(trn_tensor *t, int64_t i, cplx v)
{
    switch (t->dtype) {
    case TRN_FLOAT:
        TRN_DATA_MUT(t, float)[i] = (float)creal(v);
        break;
    case TRN_DOUBLE:
        TRN_DATA_MUT(t, double)[i] = creal(v);
        break;
    case TRN_COMPLEX64:
        TRN_DATA_MUT(t, float _Complex)[i] = (float _Complex)v;
        break;
    default:
        TRN_DATA_MUT(t, cplx)[i] = v;
        break;
    }
}

/* The corner of x that has this shape, as complex numbers. */
static trn_err corner(cplx **out, const trn_tensor *x, const trn_shape *s)
{
    int64_t n, stride[TRN_MAX_RANK];
    TRN_TRY(trn_count_checked(&n, s));
    TRN_CHECK_ARG(n < INT64_C(1) << 40, "the transform is too large");
    cplx *y = malloc((size_t)(n ? n : 1) * sizeof *y);
    if (!y)
        return trn_err_oom();
    trn_row_strides(stride, &x->shape);
    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i, at = 0;
        for (int d = s->rank - 1; d >= 0; d--) {
            at += rest % s->dim[d] * stride[d];
            rest /= s->dim[d];
        }
        y[i] = get(x, at);
    }
    *out = y;
    return TRN_OK;
}

static int rank_of(const trn_node *n) { return strstr(n->op, "3D") ? 3 : strstr(n->op, "2D") ? 2 : 1; }

/* ---- complex ---------------------------------------------------------------------------------------------------------------- */

static trn_err complex_fft(trn_kctx *k, bool inverse)
{
    const trn_tensor *x = trn_in(k, 0);
    int r = rank_of(k->node);
    TRN_CHECK_ARG(x->shape.rank >= r, "Input must have rank of at least %d but got: %d", r, x->shape.rank);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &x->shape));
    if (!y->count)
        return TRN_OK;
    cplx *w;
    TRN_TRY(corner(&w, x, &x->shape));
    trn_err err = all_dims(w, &x->shape, x->shape.rank - r, false, inverse);
    for (int64_t i = 0; i < y->count && !err; i++)
        put(y, i, w[i]);
    free(w);
    return err;
}

static trn_err fft(trn_kctx *k) { return complex_fft(k, false); }
static trn_err ifft(trn_kctx *k) { return complex_fft(k, true); }

/* ---- real ------------------------------------------------------------------------------------------------------------------- */

/* *s: the shape of the numbers that are transformed. */
static trn_err lengths(trn_shape *s, const trn_kctx *k, bool inverse)
{
    const trn_tensor *x = trn_in(k, 0), *n = trn_in(k, 1);
    int r = rank_of(k->node), rank = x->shape.rank;
    TRN_CHECK_ARG(rank >= r, "Input must have rank of at least %d but got: %d", r, rank);
    TRN_CHECK_ARG(trn_is_vector(n) && n->count == r, "fft_length must have shape [%d]", r);
    *s = x->shape;
    for (int i = 0; i < r; i++) {
        int64_t len = TRN_DATA(n, int32_t)[i], d = rank - r + i;
        TRN_CHECK_ARG(len >= 0, "fft_length[%d] must >= 0, but got: %lld", i, (long long)len);
        int64_t need = inverse && i == r - 1 && len ? len / 2 + 1 : len;
        TRN_CHECK_ARG(x->shape.dim[d] == 0 || x->shape.dim[d] >= need,
                      "Input dimension %lld must have length of at least %lld but got: %lld", (long long)d,
                      (long long)need, (long long)x->shape.dim[d]);
        s->dim[d] = len;
    }
    return TRN_OK;
}

static trn_err rfft(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    trn_shape s, out;
    TRN_TRY(lengths(&s, k, false));
    int rank = s.rank, last = rank - 1;
    out = s;
    out.dim[last] = s.dim[last] ? s.dim[last] / 2 + 1 : 0;
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, k->node->out_types[0], &out));
    trn_zero_elems(y, 0, y->count);
    if (!y->count || !x->count)
        return TRN_OK;
    cplx *w;
    TRN_TRY(corner(&w, x, &s));
    trn_err err = all_dims(w, &s, rank - rank_of(k->node), false, false);
    int64_t half = out.dim[last], n = s.dim[last];
    for (int64_t i = 0; i < y->count && !err; i++)
        put(y, i, w[i / half * n + i % half]);
    free(w);
    return err;
}

/* The other half of a spectrum follows from this one: the result is real. */
static void real_rows(trn_tensor *y, const cplx *w, int64_t n, int64_t half, const trn_fft *p, cplx *row)
{
    for (int64_t r = 0; r < y->count / n; r++) {
        const cplx *from = w + r * half;
        for (int64_t i = 0; i < n; i++)
            row[i] = i < half ? from[i] : conj(from[n - i]);
        row[0] = creal(row[0]);
        if (n % 2 == 0)
            row[n / 2] = creal(row[n / 2]);
        trn_fft_run(p, row);
        for (int64_t i = 0; i < n; i++)
            put(y, r * n + i, row[i] / (double)n);
    }
}

static trn_err irfft(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    trn_shape out, s;
    TRN_TRY(lengths(&out, k, true));
    int rank = out.rank;
    int64_t n = out.dim[rank - 1], half = n ? n / 2 + 1 : 0;
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, k->node->out_types[0], &out));
    trn_zero_elems(y, 0, y->count);
    if (!y->count || !x->count)
        return TRN_OK;
    s = out;
    s.dim[rank - 1] = half;
    cplx *w, *row = NULL;
    trn_fft p;
    TRN_TRY(corner(&w, x, &s));
    trn_err err = all_dims(w, &s, rank - rank_of(k->node), true, true);
    if (!err)
        err = trn_fft_init(&p, n, true);
    if (!err) {
        row = malloc((size_t)n * sizeof *row);
        if (row)
            real_rows(y, w, n, half, &p, row);
        else
            err = trn_err_oom();
        trn_fft_fini(&p);
    }
    free(row);
    free(w);
    return err;
}

#define COMPLEX "input:Tcomplex -> output:Tcomplex; Tcomplex:c64|c128=c64", trn_sh_same
#define TO "input:Treal, fft_length:i32 -> output:Tcomplex; Treal:f32|f64=f32, Tcomplex:c64|c128=c64", trn_sh_unknown
#define FROM "input:Tcomplex, fft_length:i32 -> output:Treal; Treal:f32|f64=f32, Tcomplex:c64|c128=c64", trn_sh_unknown

const trn_op trn_ops_fft[] = {
    {"FFT", COMPLEX, fft, 0},
    {"FFT2D", COMPLEX, fft, 0},
    {"FFT3D", COMPLEX, fft, 0},
    {"IFFT", COMPLEX, ifft, 0},
    {"IFFT2D", COMPLEX, ifft, 0},
    {"IFFT3D", COMPLEX, ifft, 0},
    {"RFFT", TO, rfft, 0},
    {"RFFT2D", TO, rfft, 0},
    {"RFFT3D", TO, rfft, 0},
    {"IRFFT", FROM, irfft, 0},
    {"IRFFT2D", FROM, irfft, 0},
    {"IRFFT3D", FROM, irfft, 0},
    {0},
};
