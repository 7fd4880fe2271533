/* Clustering: first centers by k-means++ and by k-MC2's chain, with TensorFlow's random numbers, and the centers nearest to points. */
#include <math.h>
#include <stdlib.h>

#include "base/philox.h"
#include "op/cancel.h"
#include "ops/gemm.h"
#include "ops/kern.h"

static uint64_t next64(trn_philox1 *p)
{
    uint64_t lo = trn_philox1_next(p);
    return lo | (uint64_t)trn_philox1_next(p) << 32;
}

/* [0, n), every number as likely as the others. */
static uint64_t uniform64(trn_philox1 *p, uint64_t n)
{
    if ((n & (n - 1)) == 0)
        return next64(p) & (n - 1);
    uint64_t rem = UINT64_MAX % n + 1, r;
    do
        r = next64(p);
    while (r < rem);
    return r % n;
}

static float dot(const float *a, const float *b, int64_t n)
{
    float s[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++)
            s[j] += a[i + j] * b[i + j];
    for (int j = 0; i < n; i++, j++)
        s[j] += a[i] * b[i];
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

/* ---- k-means++ ------------------------------------------------------------------------------------------------------- */

/* Squared distances are halved throughout: |x|²/2 - x·y + |y|²/2. */
typedef struct pp {
    trn_kctx *k;
    const float *x;
    int64_t n, dim;
    float *half;   /* |x|²/2 */
    float *near;   /* to the nearest point that was chosen */
    float *sum;    /* of these, up to each point */
    float *now, *best; /* with one more point */
    bool *taken;
    int64_t n_taken;
    int64_t y;
    float *to;
    trn_philox1 gen;
} pp;

static void pp_norms(void *arg, int64_t i, int64_t end)
{
    pp *p = arg;
    for (; i < end; i++)
        p->half[i] = 0.5f * dot(p->x + i * p->dim, p->x + i * p->dim, p->dim);
}

static void pp_distances(void *arg, int64_t i, int64_t end)
{
    pp *p = arg;
    const float *y = p->x + p->y * p->dim;
    for (; i < end; i++) {
        float d = p->half[i] - dot(p->x + i * p->dim, y, p->dim) + p->half[p->y];
        p->to[i] = d < p->near[i] ? d : p->near[i];
    }
}

static void pp_for(pp *p, void (*fn)(void *, int64_t, int64_t)) { trn_k_for(p->k, p->n, TRN_MAX(65536 / (p->dim + 1), 1), fn, p); }

/* The first point before which the sums do not exceed v. */
static int64_t place(const pp *p, float v)
{
    int64_t lo = 0, n = p->n;
    while (n > 0) {
        int64_t half = n / 2;
        if (v < p->sum[lo + half]) {
            n = half;
        } else {
            lo += half + 1;
            n -= half + 1;
        }
    }
    return lo;
}

#define MAX_DRAWS 100000 /* that only gave points which are taken: rounding has left nothing to the others */

/* Points are drawn in proportion to their distances. Behind the last one when all distances are zero: as TensorFlow, which takes the last then. */
static int64_t draw(pp *p)
{
    if (!p->n_taken)
        return (int64_t)uniform64(&p->gen, (uint64_t)p->n);
    for (int i = 0; i < MAX_DRAWS; i++) {
        int64_t at = place(p, trn_philox_f32(trn_philox1_next(&p->gen)) * p->sum[p->n - 1]);
        if (at >= p->n || !p->taken[at])
            return TRN_MIN(at, p->n - 1);
    }
    for (int64_t i = 0; i < p->n; i++)
        if (!p->taken[i])
            return i;
    return p->n - 1;
}

static trn_err choose(int64_t *out, pp *p, int64_t retries)
{
    float least = INFINITY;
    int64_t best = 0;
    trn_cancel *c = trn_k_cancel(p->k);
    for (int64_t i = 0; i <= retries; i++) {
        if (c && trn_cancelled(c))
            return trn_cancel_why(c);
        p->y = draw(p);
        p->to = p->now;
        pp_for(p, pp_distances);
        float potential = 0;
        for (int64_t j = 0; j < p->n; j++)
            potential += p->now[j];
        if (potential < least || retries == 0) {
            least = potential;
            best = p->y;
            float *t = p->best;
            p->best = p->now;
            p->now = t;
        }
    }
    float *t = p->near;
    p->near = p->best;
    p->best = t;
    *out = best;
    return TRN_OK;
}

static trn_err choose_all(pp *p, float *out, int64_t n, int64_t retries)
{
    pp_for(p, pp_norms);
    for (int64_t i = 0; i < p->n; i++)
        p->near[i] = p->best[i] = INFINITY;
    for (int64_t i = 0; i < n; i++) {
        if (i > 0) {
            float s = 0;
            for (int64_t j = 0; j < p->n; j++)
                p->sum[j] = s += p->near[j];
        }
        int64_t at = 0;
        TRN_TRY(choose(&at, p, retries));
        memcpy(out + i * p->dim, p->x + at * p->dim, (size_t)p->dim * sizeof *out);
        p->n_taken += !p->taken[at];
        p->taken[at] = true;
    }
    return TRN_OK;
}

static trn_err kmeans_plus_plus(trn_kctx *k)
{
    static const char *const names[] = {NULL, "num_to_sample", "seed", "num_retries_per_sample"};
    const trn_tensor *x = trn_in(k, 0);
    int64_t v[4];
    TRN_CHECK_ARG(x->shape.rank == 2, "Input points should be a matrix.");
    for (int i = 1; i < 4; i++) {
        TRN_CHECK_ARG(trn_in(k, i)->shape.rank == 0, "Input %s should be a scalar.", names[i]);
        v[i] = TRN_DATA(trn_in(k, i), int64_t)[0];
    }
    int64_t points = x->shape.dim[0], n = v[1];
    TRN_CHECK_ARG(points > 0, "Expected points.rows() > 0.");
    TRN_CHECK_ARG(n > 0, "Expected num_to_sample > 0.");
    TRN_CHECK_ARG(n <= points, "Expected num_to_sample <= points.rows(). %lld vs %lld.", (long long)n, (long long)points);
    int64_t retries = v[3] >= 0 ? TRN_MIN(v[3], INT32_MAX - 1) : 2 + (int64_t)log((double)n);
    trn_shape s = trn_shape_of(2, n, x->shape.dim[1]);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_FLOAT, &s));
    float *room = malloc((size_t)points * (5 * sizeof *room + sizeof(bool)));
    if (!room)
        return trn_err_oom();
    pp p = {.k = k, .x = TRN_DATA(x, float), .n = points, .dim = x->shape.dim[1], .half = room, .near = room + points, .sum = room + 2 * points,
            .now = room + 3 * points, .best = room + 4 * points, .taken = (bool *)(room + 5 * points)};
    memset(p.taken, 0, (size_t)points * sizeof *p.taken);
    p.gen = trn_philox1_of(trn_philox_seed((uint64_t)v[2], 0));
    trn_err err = choose_all(&p, TRN_DATA_MUT(y, float), n, retries);
    free(room);
    return err;
}

static trn_err kmc2_chain(trn_kctx *k)
{
    const trn_tensor *d = trn_in(k, 0), *seed = trn_in(k, 1);
    TRN_CHECK_ARG(d->shape.rank == 1, "Input distances should be a vector.");
    TRN_CHECK_ARG(seed->shape.rank == 0, "Input seed should be a scalar.");
    TRN_CHECK_ARG(d->count > 0, "Expected distances_tensor.size() > 0.");
    trn_philox1 gen = trn_philox1_of(trn_philox_seed((uint64_t)TRN_DATA(seed, int64_t)[0], 0));
    const float *x = TRN_DATA(d, float);
    int64_t at = 0;
    for (int64_t i = 1; i < d->count; i++)
        if (x[i] > trn_philox_f32(trn_philox1_next(&gen)) * x[at])
            at = i;
    trn_out_set(k, 0, trn_tensor_i64(at));
    return TRN_OK;
}

/* ---- the nearest centers ------------------------------------------------------------------------------------------------ */

enum { CENTERS = 1024, POINTS = 64 }; /* in a block */

typedef struct center {
    float d;
    int64_t at;
} center;

typedef struct nearest {
    const float *x, *c, *half; /* half: |c|²/2 */
    int64_t dim, n_c, k;
    int64_t *index;
    float *distance;
    _Atomic bool no_memory;
} nearest;

/* Keeps the k least of a block, in order; equal ones in the order of their numbers. */
static int64_t least(center *out, int64_t k, const nearest *a, const float *product, int64_t from, int64_t n)
{
    int64_t have = 0;
    for (int64_t j = 0; j < n; j++) {
        float d = a->half[from + j] - product[j];
        if (have == k && !(d < out[k - 1].d))
            continue;
        int64_t lo = 0, hi = have; /* behind all that are not greater */
        while (lo < hi) {
            int64_t mid = (lo + hi) / 2;
            if (d < out[mid].d)
                hi = mid;
            else
                lo = mid + 1;
        }
        have += have < k;
        memmove(out + lo + 1, out + lo, (size_t)(have - 1 - lo) * sizeof *out);
        out[lo] = (center){d, from + j};
    }
    return have;
}

/* Two lists in order become one of k; the earlier one's come first where they are equal. */
static int64_t merge(center *out, int64_t k, const center *a, int64_t n_a, const center *b, int64_t n_b)
{
    int64_t n = 0, i = 0, j = 0;
    while (n < k && (i < n_a || j < n_b))
        out[n++] = j >= n_b || (i < n_a && a[i].d <= b[j].d) ? a[i++] : b[j++];
    return n;
}

/* One point, with a block of centers: list[0] holds what other blocks gave, and takes the result. */
static int64_t one_point(center *const list[3], int64_t have, const nearest *a, float half, const float *product, int64_t from, int64_t n)
{
    int64_t got = least(list[1], TRN_MIN(a->k, n), a, product, from, n);
    for (int64_t j = 0; j < got; j++)
        list[1][j].d = (float)(2.0 * (half + list[1][j].d));
    int64_t all = merge(list[2], a->k, list[0], have, list[1], got);
    memcpy(list[0], list[2], (size_t)all * sizeof **list);
    return all;
}

static void nearest_points(void *arg, int64_t i, int64_t end)
{
    nearest *a = arg;
    int64_t block = TRN_MIN(a->n_c, CENTERS);
    float *product = malloc((size_t)(POINTS * block) * sizeof *product);
    center *room = malloc((size_t)a->k * (POINTS + 2) * sizeof *room);
    bool ok = product && room;
    for (; ok && i < end; i += POINTS) {
        int64_t rows = TRN_MIN(end - i, POINTS), have = 0, before = 0;
        for (int64_t from = 0; ok && from < a->n_c; from += block) {
            int64_t n = TRN_MIN(block, a->n_c - from);
            if (a->dim > 0)
                ok = trn_gemm(TRN_FLOAT, &(trn_gemm_args){.m = rows, .n = n, .k = a->dim, .a = a->x + i * a->dim, .ars = a->dim, .acs = 1, .b = a->c + from * a->dim,
                                                          .brs = 1, .bcs = a->dim, .c = product, .ldc = block});
            else
                memset(product, 0, (size_t)(POINTS * block) * sizeof *product);
            for (int64_t r = 0; ok && r < rows; r++) {
                const float *x = a->x + (i + r) * a->dim;
                center *list[3] = {room + r * a->k, room + POINTS * a->k, room + (POINTS + 1) * a->k};
                have = one_point(list, before, a, 0.5f * dot(x, x, a->dim), product + r * block, from, n);
            }
            before = have;
        }
        for (int64_t r = 0; ok && r < rows; r++)
            for (int64_t j = 0; j < a->k; j++) {
                a->index[(i + r) * a->k + j] = room[r * a->k + j].at;
                a->distance[(i + r) * a->k + j] = room[r * a->k + j].d;
            }
    }
    if (!ok)
        atomic_store(&a->no_memory, true);
    free(product);
    free(room);
}

static trn_err nearest_neighbors(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *c = trn_in(k, 1), *kt = trn_in(k, 2);
    TRN_CHECK_ARG(x->shape.rank == 2, "Input points should be a matrix.");
    TRN_CHECK_ARG(c->shape.rank == 2, "Input centers should be a matrix.");
    TRN_CHECK_ARG(kt->shape.rank == 0, "Input k should be a scalar.");
    int64_t n = x->shape.dim[0], dim = x->shape.dim[1], n_c = c->shape.dim[0], want = TRN_DATA(kt, int64_t)[0];
    TRN_CHECK_ARG(n > 0, "Expected points.rows() > 0.");
    TRN_CHECK_ARG(dim == c->shape.dim[1], "Expected point_dimensions == center_dimensions: %lld vs %lld.", (long long)dim, (long long)c->shape.dim[1]);
    TRN_CHECK_ARG(want >= 0, "k is negative");
    want = TRN_MIN(want, n_c);
    trn_shape s = trn_shape_of(2, n, want);
    trn_tensor *index, *distance;
    TRN_TRY(trn_out_new(&index, k, 0, TRN_INT64, &s));
    TRN_TRY(trn_out_new(&distance, k, 1, TRN_FLOAT, &s));
    if (want == 0)
        return TRN_OK;
    float *half = malloc((size_t)n_c * sizeof *half);
    if (!half)
        return trn_err_oom();
    for (int64_t i = 0; i < n_c; i++)
        half[i] = 0.5f * dot(TRN_DATA(c, float) + i * dim, TRN_DATA(c, float) + i * dim, dim);
    nearest a = {.x = TRN_DATA(x, float), .c = TRN_DATA(c, float), .half = half, .dim = dim, .n_c = n_c, .k = want, .index = TRN_DATA_MUT(index, int64_t),
                 .distance = TRN_DATA_MUT(distance, float)};
    trn_k_for(k, n, TRN_MAX(POINTS, 262144 / ((dim + 1) * n_c)), nearest_points, &a);
    free(half);
    return atomic_load(&a.no_memory) ? trn_err_oom() : TRN_OK;
}

const trn_op trn_ops_cluster[] = {
    {"KmeansPlusPlusInitialization", "points:f32, num_to_sample:i64, seed:i64, num_retries_per_sample:i64 -> samples:f32", trn_sh_unknown, kmeans_plus_plus,
     TRN_OP_HEAVY},
    {"KMC2ChainInitialization", "distances:f32, seed:i64 -> index:i64", trn_sh_scalar, kmc2_chain, 0},
    {"NearestNeighbors", "points:f32, centers:f32, k:i64 -> nearest_center_indices:i64, nearest_center_distances:f32", trn_sh_unknown, nearest_neighbors, 0},
    {0},
};
