/* SobolSample: points that fill a cube evenly. Point n is the sum (exclusive or) of direction numbers, one for each bit of n's Gray code; those of a dimension follow from its
 * first ones by a recurrence, a primitive polynomial. */
#include "ops/kern.h"

#include <stdlib.h>

enum { BITS = 31 };

static const uint64_t numbers[][2] = {
#include "ops/sobol_numbers.inc"
};
enum { DIMS = TRN_COUNTOF(numbers) + 1 };

/* As binary fractions of BITS bits. Polynomials come in order of their degree. */
static void directions(uint32_t v[BITS], int dim)
{
    static const int of_degree[] = {1, 1, 2, 2, 6, 6, 18, 16, 48, 60, 176, 144, 630}; /* primitive polynomials */
    uint32_t m[BITS] = {1};
    int s = 0;
    for (int left = dim; left > 0; left -= of_degree[s - 1])
        s++;
    const uint64_t *row = dim ? numbers[dim - 1] : (const uint64_t[2]){0};
    uint32_t inner = (uint32_t)(row[1] >> 23);
    for (int k = 1, at = 0; k < s; at += k, k++) {
        uint64_t bits = k < 11 ? row[0] >> at : k == 11 ? row[1] : row[1] >> 11;
        m[k] = (uint32_t)(bits & ((UINT64_C(1) << k) - 1)) << 1 | 1;
    }
    for (int k = TRN_MAX(s, 1); k < BITS; k++) {
        m[k] = s ? m[k - s] ^ m[k - s] << s : 1;
        for (int i = 1; i < s; i++)
            m[k] ^= (inner >> (s - 1 - i) & 1) * (m[k - i] << i);
    }
    for (int k = 0; k < BITS; k++)
        v[k] = m[k] << (BITS - 1 - k);
}

typedef struct job {
    trn_tensor *y;
    const uint32_t *v; /* BITS of each dimension */
    int64_t dim;
    uint32_t skip;
} job;

static void points(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    for (int64_t d = 0; d < j->dim; d++) {
        const uint32_t *v = j->v + d * BITS;
        uint32_t n = j->skip + (uint32_t)begin + 1, x = 0;
        for (uint32_t k = 0, gray = n ^ n >> 1; gray; k++, gray >>= 1)
            x ^= gray & 1 ? v[k] : 0;
        for (int64_t i = begin; i < end; i++) {
            if (j->y->dtype == TRN_FLOAT)
                TRN_DATA_MUT(j->y, float)[i * j->dim + d] = (float)x * 0x1p-31f;
            else
                TRN_DATA_MUT(j->y, double)[i * j->dim + d] = x * 0x1p-31;
            x ^= v[__builtin_ctz(~n++)]; /* the one bit in which the next Gray code differs; n stays below 2³¹ */
        }
    }
}

static trn_err sobol_sample(trn_kctx *k)
{
    static const char *const names[] = {"dim", "num_results", "skip"};
    int64_t arg[3];
    for (int i = 0; i < 3; i++) {
        TRN_CHECK_ARG(trn_is_scalar(trn_in(k, i)), "%s must be a scalar", names[i]);
        arg[i] = TRN_DATA(trn_in(k, i), int32_t)[0];
    }
    int64_t dim = arg[0], n = arg[1], skip = arg[2];
    TRN_CHECK_ARG(dim >= 1, "dim is less than 1");
    TRN_CHECK_ARG(dim <= 21200, "there are no numbers for %lld dimensions, only for up to 21200", (long long)dim);
    TRN_CHECK_ARG(n >= 1, "num_results is less than 1");
    TRN_CHECK_ARG(skip >= 0, "skip is negative");
    TRN_CHECK_ARG(n < INT32_MAX - skip, "num_results + skip is not less than %d", INT32_MAX);
    TRN_CHECK_ARG(n < INT32_MAX / dim, "%lld points in %lld dimensions are more numbers than 32 bits can count", (long long)n, (long long)dim);
    if (dim > DIMS)
        return trn_errorf(TRN_UNIMPLEMENTED, "numbers for %d dimensions are known here, not for %lld", (int)DIMS, (long long)dim);
    trn_shape s = trn_shape_of(2, n, dim);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, trn_attr_type(k->node, "dtype"), &s));
    uint32_t *v = trn_xalloc((size_t)dim * BITS * sizeof *v);
    for (int64_t d = 0; d < dim; d++)
        directions(v + d * BITS, (int)d);
    job j = {.y = y, .v = v, .dim = dim, .skip = (uint32_t)skip};
    trn_k_for(k, n, 16384 / dim + 16, points, &j);
    free(v);
    return TRN_OK;
}

static trn_err sh_sobol(trn_shctx *s)
{
    int64_t size[2];
    for (int i = 0; i < 3; i++)
        TRN_TRY(trn_sh_rank_of(s, i, 0));
    for (int i = 0; i < 2; i++)
        size[i] = s->value[1 - i] && trn_int_at(s->value[1 - i], 0) >= 0 ? trn_int_at(s->value[1 - i], 0) : -1;
    s->out[0] = trn_shape_of(2, size[0], size[1]);
    return TRN_OK;
}

const trn_op trn_ops_sobol[] = {
    {"SobolSample", "dim:i32, num_results:i32, skip:i32 -> samples:dtype; dtype:f32|f64=f32", sh_sobol, sobol_sample, 0},
    {0},
};
