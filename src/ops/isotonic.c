/* The nearest sequence that never rises (isotonic regression), along the last dim. */
#include <stdatomic.h>
#include <stdlib.h>

#include "ops/kern.h"

/* A run of equal results: the mean of its inputs. */
typedef struct run {
    int64_t begin;
    double sum, mean;
} run;

typedef struct iso_job {
    int64_t n;
    const trn_tensor *x;
    trn_tensor *y, *segments;
    atomic_bool oom;
} iso_job;

/* Sums and means have the precision of the result. */
static double as(trn_dtype t, double v)
{
    switch (t) {
    case TRN_HALF: return (double)trn_half_to_f32(trn_half_from_f32((float)v));
    case TRN_BFLOAT16: return (double)trn_bf16_to_f32(trn_bf16_from_f32((float)v));
    case TRN_FLOAT: return (double)(float)v;
    default: return v;
    }
}
static double get(const trn_tensor *t, int64_t i)
{
    switch (t->dtype) {
    case TRN_HALF: return (double)trn_half_to_f32(TRN_DATA(t, trn_half)[i]);
    case TRN_BFLOAT16: return (double)trn_bf16_to_f32(TRN_DATA(t, trn_bf16)[i]);
    case TRN_FLOAT: return (double)TRN_DATA(t, float)[i];
    case TRN_DOUBLE: return TRN_DATA(t, double)[i];
    default: return (double)trn_int_at(t, i);
    }
}
static void put(trn_tensor *t, int64_t i, double v)
{
    switch (t->dtype) {
    case TRN_HALF: TRN_DATA_MUT(t, trn_half)[i] = trn_half_from_f32((float)v); break;
    case TRN_BFLOAT16: TRN_DATA_MUT(t, trn_bf16)[i] = trn_bf16_from_f32((float)v); break;
    case TRN_FLOAT: TRN_DATA_MUT(t, float)[i] = (float)v; break;
    default: TRN_DATA_MUT(t, double)[i] = v; break;
    }
}

/* Neighbouring runs that rise become one, until none does. */
static void iso_rows(void *arg, int64_t lo, int64_t hi)
{
    iso_job *j = arg;
    trn_dtype t = j->y->dtype;
    run *runs = malloc(sizeof *runs * (size_t)j->n);
    if (!runs) {
        j->oom = true;
        return;
    }
    for (int64_t r = lo; r < hi; r++) {
        int64_t n = 0, at = r * j->n;
        for (int64_t i = 0; i < j->n; i++) {
            double v = get(j->x, at + i);
            runs[n++] = (run){i, v, v};
            for (; n > 1 && runs[n - 1].mean > runs[n - 2].mean; n--) {
                run *a = &runs[n - 2];
                a->sum = as(t, a->sum + runs[n - 1].sum);
                a->mean = as(t, a->sum / as(t, (double)(i + 1 - a->begin)));
            }
        }
        for (int64_t s = 0; s < n; s++)
            for (int64_t i = runs[s].begin; i < (s + 1 < n ? runs[s + 1].begin : j->n); i++) {
                put(j->y, at + i, runs[s].mean);
                TRN_DATA_MUT(j->segments, int32_t)[at + i] = (int32_t)s;
            }
    }
    free(runs);
}

static trn_err isotonic(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    trn_dtype t = trn_attr_type(k->node, "output_dtype");
    bool small = x->dtype == TRN_INT8 || x->dtype == TRN_INT16, whole = small || x->dtype == TRN_INT32 || x->dtype == TRN_INT64;
    TRN_CHECK_ARG(t == (small ? TRN_FLOAT : whole ? TRN_DOUBLE : x->dtype), "no regression of %s to %s", trn_dtype_name(x->dtype), trn_dtype_name(t));
    iso_job j = {.n = x->shape.rank ? x->shape.dim[x->shape.rank - 1] : 1, .x = x};
    TRN_CHECK_ARG(j.n < INT32_MAX, "Tensor too large");
    TRN_TRY(trn_out_new(&j.y, k, 0, t, &x->shape));
    TRN_TRY(trn_out_new(&j.segments, k, 1, TRN_INT32, &x->shape));
    if (x->count)
        trn_k_for(k, x->count / j.n, TRN_MAX(4096 / j.n, (int64_t)1), iso_rows, &j);
    return j.oom ? trn_err_oom() : TRN_OK;
}

const trn_op trn_ops_isotonic[] = {
    {"IsotonicRegression", "input:T -> output:output_dtype, segments:i32; T:float|i8|i16|i32|i64, output_dtype:float=f32", trn_sh_same, isotonic, 0},
    {0},
};
