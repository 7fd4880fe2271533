/* Rows that are put into, added to or taken from others, and some small ops around layouts: an input's buffer is taken over when nobody else holds it,
 * which is what "in place" may mean without surprising anybody. */
#include "ops/kern.h"

#include <stdlib.h>

/* y = x, then y[i[r]] = v[r] (or += or -=) for every row r; rows count modulo x's. */
static trn_err rows(trn_kctx *k, bool put, trn_accum_op op)
{
    const trn_tensor *x = trn_in(k, 0), *at = trn_in(k, 1), *v = trn_in(k, 2);
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_is_vector(at), "i must be a vector, not of shape %s", trn_shape_text(a, &at->shape));
    TRN_CHECK_ARG(x->shape.rank == v->shape.rank && x->shape.rank >= 1, "x and v shape doesn't match (ranks differ): %s vs. %s", trn_shape_text(a, &x->shape),
                  trn_shape_text(b, &v->shape));
    for (int i = 1; i < x->shape.rank; i++)
        TRN_CHECK_ARG(x->shape.dim[i] == v->shape.dim[i], "x and v shape doesn't match at index %d: %s vs. %s", i, trn_shape_text(a, &x->shape),
                      trn_shape_text(b, &v->shape));
    TRN_CHECK_ARG(at->count == v->shape.dim[0], "i and x shape doesn't match at index 0: %s vs. %s", trn_shape_text(a, &at->shape),
                  trn_shape_text(b, &v->shape));
    TRN_CHECK_ARG(put || trn_accum_has(op, x->dtype), "there is no arithmetic on %s", trn_dtype_name(x->dtype));
    trn_tensor *y;
    TRN_TRY(trn_out_like(&y, k, 0, 0));
    if (y->data != x->data)
        TRN_TRY(trn_tensor_copy_elems(y, 0, x, 0, x->count));
    int64_t n = x->shape.dim[0], inner = n ? x->count / n : 0;
    if (!x->count || !v->count)
        return TRN_OK;
    size_t bytes = (size_t)inner * trn_dtype_size(x->dtype);
    for (int64_t r = 0; r < at->count; r++) {
        int64_t to = TRN_DATA(at, int32_t)[r] % n;
        to += to < 0 ? n : 0;
        if (put)
            TRN_TRY(trn_tensor_copy_elems(y, to * inner, v, r * inner, inner));
        else
            trn_accum(op, x->dtype, (char *)y->data + (size_t)to * bytes, (const char *)v->data + (size_t)r * bytes, inner);
    }
    return TRN_OK;
}
static trn_err update(trn_kctx *k) { return rows(k, true, TRN_ACC_ADD); }
static trn_err add(trn_kctx *k) { return rows(k, false, TRN_ACC_ADD); }
static trn_err subtract(trn_kctx *k) { return rows(k, false, TRN_ACC_SUB); }

static trn_err deep_copy(trn_kctx *k)
{
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, trn_in(k, 0)->dtype, &trn_in(k, 0)->shape));
    return trn_tensor_copy_elems(y, 0, trn_in(k, 0), 0, y->count);
}

/* Zeros whether they are asked for or not: what lay there before is nobody's business. */
static trn_err empty(trn_kctx *k)
{
    trn_shape s;
    trn_tensor *y;
    TRN_CHECK_ARG(trn_is_vector(trn_in(k, 0)), "shape must be a vector of int32");
    TRN_TRY(trn_shape_from(&s, trn_in(k, 0), false));
    TRN_TRY(trn_out_new(&y, k, 0, trn_attr_type(k->node, "dtype"), &s));
    trn_zero_elems(y, 0, y->count);
    return TRN_OK;
}

/* Rows one below the other. */
static trn_err parallel_concat(trn_kctx *k)
{
    const trn_shape *want = trn_attr_shape(k->node, "shape"), *s = &trn_in(k, 0)->shape;
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_shape_is_full(want) && want->rank >= 1, "the shape of the result is %s, must be known", trn_shape_text(a, want));
    TRN_CHECK_ARG(want->dim[0] == k->n_in, "Wrong number of values: %d for a result of shape %s", k->n_in, trn_shape_text(a, want));
    for (int i = 0; i < k->n_in; i++) {
        s = &trn_in(k, i)->shape;
        bool fits = s->rank == want->rank && s->dim[0] == 1;
        for (int d = 1; d < want->rank && fits; d++)
            fits = s->dim[d] == want->dim[d];
        TRN_CHECK_ARG(fits, "Value %d has shape %s: the first dimension must be 1, the others those of %s", i, trn_shape_text(a, s), trn_shape_text(b, want));
    }
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, trn_in(k, 0)->dtype, want));
    int64_t inner = trn_in(k, 0)->count;
    for (int i = 0; i < k->n_in; i++)
        TRN_TRY(trn_tensor_copy_elems(y, i * inner, trn_in(k, i), 0, inner));
    return TRN_OK;
}

/* ---- layouts -------------------------------------------------------------------------------------------------------------- */

static trn_err formats(const char **src, const char **dst, const trn_node *n)
{
    *src = trn_attr_str(n, "src_format");
    *dst = trn_attr_str(n, "dst_format");
    size_t a = strlen(*src), b = strlen(*dst);
    TRN_CHECK_ARG(a == 4 || a == 5, "Source format must be of length 4 or 5, received src_format = %s", *src);
    TRN_CHECK_ARG(b == 4 || b == 5, "Destination format must be of length 4 or 5, received dst_format = %s", *dst);
    bool ok = a == b;
    for (size_t i = 0; i < a && ok; i++)
        ok = strchr(*dst, (*src)[i]) && strchr(*src, (*dst)[i]) && strrchr(*src, (*src)[i]) == *src + i;
    TRN_CHECK_ARG(ok, "Destination and source format must determine a permutation, got %s and %s", *src, *dst);
    return TRN_OK;
}

static trn_err dim_map(trn_kctx *k)
{
    const char *src, *dst;
    const trn_tensor *x = trn_in(k, 0);
    trn_tensor *y;
    TRN_TRY(formats(&src, &dst, k->node));
    TRN_TRY(trn_out_like(&y, k, 0, 0));
    int64_t n = (int64_t)strlen(src);
    for (int64_t i = 0; i < x->count; i++) {
        int64_t v = trn_int_at(x, i) % n; /* TensorFlow: any number is taken modulo the rank */
        trn_int_put(y, i, strchr(dst, src[v < 0 ? v + n : v]) - dst);
    }
    return TRN_OK;
}

/* Sizes (or pairs of paddings) in another order; two of them are height and width. */
static trn_err vec_permute(trn_kctx *k)
{
    const char *src, *dst;
    const trn_tensor *x = trn_in(k, 0);
    char text[TRN_SHAPE_TEXT], from[6] = "", to[6] = "";
    TRN_TRY(formats(&src, &dst, k->node));
    TRN_CHECK_ARG(x->shape.rank == 1 || x->shape.rank == 2, "input must be a vector or 2D tensor, but got shape %s", trn_shape_text(text, &x->shape));
    int64_t full = (int64_t)strlen(src), n = x->shape.dim[0], inner = x->shape.rank == 2 ? x->shape.dim[1] : 1;
    TRN_CHECK_ARG(n == full || n == full - 2, "%dD input must be of size %lld or %lld, but got shape %s", x->shape.rank, (long long)full - 2, (long long)full,
                  trn_shape_text(text, &x->shape));
    TRN_CHECK_ARG(x->shape.rank == 1 || inner == 2, "Second dimension of 2D input must be of size 2, but got shape %s", trn_shape_text(text, &x->shape));
    for (int64_t i = 0; i < full; i++) {
        if (n == full || !strchr("NC", src[i]))
            strncat(from, src + i, 1);
        if (n == full || !strchr("NC", dst[i]))
            strncat(to, dst + i, 1);
    }
    TRN_CHECK_ARG((int64_t)strlen(from) == n, "format %s has no %lld spatial dimensions", src, (long long)n);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &x->shape));
    for (int64_t i = 0; i < n; i++)
        TRN_TRY(trn_tensor_copy_elems(y, (strchr(to, from[i]) - to) * inner, x, i * inner, inner));
    return TRN_OK;
}

/* ---- Fingerprint ----------------------------------------------------------------------------------------------------------- */

static trn_err fingerprint(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *method = trn_in(k, 1);
    char text[TRN_SHAPE_TEXT];
    size_t n;
    TRN_CHECK_ARG(trn_is_scalar(method), "`method` should be a scalar string: %s", trn_shape_text(text, &method->shape));
    const char *p = trn_tensor_str_at(method, 0, &n);
    TRN_CHECK_ARG(n == 10 && !memcmp(p, "farmhash64", 10), "Unsupported fingerprint method: %.*s", (int)TRN_MIN(n, 100), p);
    TRN_CHECK_ARG(x->shape.rank >= 1, "`data` should have at least one dimension");
    TRN_CHECK_ARG(trn_dtype_is_plain(x->dtype) || x->dtype == TRN_STRING, "Data type not supported: %s", trn_dtype_name(x->dtype));
    int64_t count = x->shape.dim[0], inner = count ? x->count / count : 0;
    trn_shape s = {.rank = 2, .dim = {count, 8}};
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_UINT8, &s));
    uint64_t *part = malloc((size_t)(inner + 1) * sizeof *part);
    if (!part)
        return trn_err_oom();
    size_t bytes = (size_t)inner * trn_dtype_size(x->dtype);
    for (int64_t i = 0; i < count; i++) {
        uint64_t h;
        if (x->dtype == TRN_STRING) {
            for (int64_t q = 0; q < inner; q++) {
                p = trn_tensor_str_at(x, i * inner + q, &n);
                part[q] = trn_fingerprint64(p, n);
            }
            h = inner == 1 ? part[0] : trn_fingerprint64(part, (size_t)inner * 8);
        } else {
            h = trn_fingerprint64((const char *)x->data + (size_t)i * bytes, bytes);
        }
        memcpy(TRN_DATA_MUT(y, uint8_t) + 8 * i, &h, 8); /* little-endian, as TensorFlow writes it */
    }
    free(part);
    return TRN_OK;
}
static trn_err sh_fingerprint(trn_shctx *s)
{
    s->out[0] = (trn_shape){.rank = 2, .dim = {s->in[0].rank > 0 ? s->in[0].dim[0] : -1, 8}};
    return TRN_OK;
}

#define ROWS(types) "x:T, i:i32, v:T -> y:T; T:" types
#define LAYOUT "x:T -> y:T; T:i32|i64=i32, src_format:string=\"NHWC\", dst_format:string=\"NCHW\""

const trn_op trn_ops_inplace[] = {
    {"InplaceUpdate", ROWS("any"), trn_sh_same, update, 0},
    {"InplaceAdd", ROWS("any"), trn_sh_same, add, 0},
    {"InplaceSub", ROWS("any"), trn_sh_same, subtract, 0},
    {"DeepCopy", "x:T -> y:T; T:any", trn_sh_same, deep_copy, TRN_OP_STATEFUL},
    {"Empty", "shape:i32 -> output:dtype; dtype:any, init:bool=false", trn_sh_in0_shape, empty, TRN_OP_STATEFUL},
    {"ParallelConcat", "values:N*T -> output:T; N:int>=1, T:any, shape:shape", trn_sh_attr, parallel_concat, 0},
    {"DataFormatDimMap", LAYOUT, trn_sh_same, dim_map, TRN_OP_CHEAP},
    {"DataFormatVecPermute", LAYOUT, trn_sh_same, vec_permute, TRN_OP_CHEAP},
    {"Fingerprint", "data:T, method:str -> fingerprint:u8; T:any", sh_fingerprint, fingerprint, 0},
    {0},
};
