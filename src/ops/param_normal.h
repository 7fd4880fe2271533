/* Normals of given mean and deviation between two bounds; included by random_param.c once per T (float, double). No include guard, on
 * purpose. Three samplers, chosen by where the bounds lie (Robert, Simulation of truncated normal variables, 1995); which one, and how many
 * samples it takes, is TensorFlow's choice, so that the numbers are the same. */

/* One batch: n numbers at out, every stride-th element; false when a sampler cannot find one. */
static bool FN(batch)(trn_philox *gen, T *out, int64_t stride, int64_t n, T mean, T dev, T min, T max)
{
    if ((isinf(min) && min < 0) || max < mean) { /* mirror, so that the lower bound is the one that matters */
        T t = min;
        min = max;
        max = t;
        dev = -dev;
    }
    const T a = (min - mean) / dev, b = (max - mean) / dev, root = M(sqrt)(a * a + 4);
    const T cutoff = 2 * M(exp)((T)0.5 + (a * (a - root)) / 4) / (a + root), diff = b - a;
    int64_t have = 0;
    int misses = 0;
    T r[4], u[4];
    if ((a < (T)-1.3 && b >= 0) || (b > (T)1.3 && a <= 0)) { /* wide: throw normals away */
        while (have < n) {
            FN(normals)(gen, r);
            for (int i = 0; i < PER_BLOCK && have < n; i++) {
                if (r[i] >= a && r[i] <= b) {
                    out[have++ * stride] = r[i] * dev + mean;
                    misses = 0;
                } else if (++misses > MAX_MISSES) {
                    return false;
                }
            }
        }
    } else if (diff < cutoff) { /* narrow: uniform between the bounds, accepted by density */
        const T plus = a < 0 ? 0 : a * a;
        while (have < n) {
            FN(uniforms)(gen, r);
            FN(uniforms)(gen, u);
            for (int i = 0; i < PER_BLOCK && have < n; i++) {
                T z = r[i] * diff + a;
                if (u[i] <= M(exp)((plus - z * z) / 2)) {
                    out[have++ * stride] = z * dev + mean;
                    misses = 0;
                } else if (++misses >= MAX_MISSES) {
                    return false;
                }
            }
        }
    } else { /* far out in the tail: exponential */
        const T alpha = (a + root) / 2;
        while (have < n) {
            FN(uniforms)(gen, r);
            for (int i = 0; i < PER_BLOCK && have < n; i += 2) {
                T z = -M(log)(r[i]) / alpha + a, x = a < alpha ? alpha - z : a - alpha;
                if (r[i + 1] <= M(exp)(-x * x / 2) && z < b) {
                    out[have++ * stride] = z * dev + mean;
                    misses = 0;
                } else if (++misses >= MAX_MISSES) {
                    return false;
                }
            }
        }
    }
    return true;
}

static trn_err FN(fill)(const struct params *p, trn_philox gen, trn_tensor *out)
{
    const T *v[4];
    for (int i = 0; i < 4; i++)
        v[i] = p->t[i]->data;
    for (int64_t b = 0; b < p->batches; b++) {
        T x[4];
        for (int i = 0; i < 4; i++)
            x[i] = v[i][param_at(p, i, b)];
        TRN_CHECK_ARG(x[1] > 0 && x[2] < x[3] && (isfinite(x[2]) || isfinite(x[3])), "Invalid parameters: mean %g, stddev %g, bounds [%g, %g]",
                      (double)x[0], (double)x[1], (double)x[2], (double)x[3]);
        int64_t first = p->across ? b : b * p->per_batch, n = p->across ? p->per_batch : TRN_MIN(p->per_batch, out->count - first);
        if (n > 0 && !FN(batch)(&gen, TRN_DATA_MUT(out, T) + first, p->across ? p->batches : 1, n, x[0], x[1], x[2], x[3]))
            return trn_errorf(TRN_INTERNAL, "TruncatedNormal: no sample was accepted in %d trials (mean %g, stddev %g, bounds [%g, %g])",
                              MAX_MISSES, (double)x[0], (double)x[1], (double)x[2], (double)x[3]);
    }
    return TRN_OK;
}
