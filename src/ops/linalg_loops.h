/* Dense matrix algorithms over one scalar type; included once for double and once for double complex. Before: T, NAME(x), CONJ, RE, ABS.
 * Matrices are row-major and as small as plain loops are fit for; everything is computed in double. */

/* a = P·L·U in place, rows exchanged by partial pivoting; perm[i]: the row that row i came from. Returns the permutation's sign. */
static int NAME(lu)(T *a, int64_t n, int64_t *perm)
{
    int sign = 1;
    for (int64_t i = 0; i < n; i++)
        perm[i] = i;
    for (int64_t k = 0; k < n; k++) {
        int64_t best = k;
        for (int64_t i = k + 1; i < n; i++)
            if (ABS(a[i * n + k]) > ABS(a[best * n + k]))
                best = i;
        if (best != k) {
            for (int64_t j = 0; j < n; j++) {
                T t = a[k * n + j];
                a[k * n + j] = a[best * n + j];
                a[best * n + j] = t;
            }
            int64_t t = perm[k];
            perm[k] = perm[best];
            perm[best] = t;
            sign = -sign;
        }
        T p = a[k * n + k];
        if (ABS(p) == 0)
            continue;
        for (int64_t i = k + 1; i < n; i++) {
            T f = a[i * n + k] /= p;
            if (ABS(f) == 0)
                continue;
            for (int64_t j = k + 1; j < n; j++)
                a[i * n + j] -= f * a[k * n + j];
        }
    }
    return sign;
}

/* b (n × m) = a⁻¹·b for a triangle of a, whose other half is not looked at; unit: ones on the diagonal. */
static void NAME(tri_solve)(const T *a, int64_t n, T *b, int64_t m, bool lower, bool adjoint, bool unit)
{
    bool forward = lower != adjoint;
    for (int64_t q = 0; q < n; q++) {
        int64_t i = forward ? q : n - 1 - q;
        T d = unit ? 1 : adjoint ? CONJ(a[i * n + i]) : a[i * n + i];
        for (int64_t c = 0; c < m; c++)
            b[i * m + c] /= d;
        for (int64_t r = forward ? i + 1 : 0; r < (forward ? n : i); r++) {
            T f = adjoint ? CONJ(a[i * n + r]) : a[r * n + i];
            for (int64_t c = 0; c < m; c++)
                b[r * m + c] -= f * b[i * m + c];
        }
    }
}

/* The same for a band: a has one row per diagonal, the highest first; the element of row i of the matrix lies in column i. */
static void NAME(band_solve)(const T *a, int64_t bands, int64_t n, T *b, int64_t m, bool lower, bool adjoint)
{
    int64_t step = lower != adjoint ? 1 : -1;
    for (int64_t q = 0; q < n; q++) {
        int64_t i = step > 0 ? q : n - 1 - q;
        T d = a[(lower ? 0 : bands - 1) * n + i];
        for (int64_t c = 0; c < m; c++)
            b[i * m + c] /= adjoint ? CONJ(d) : d;
        for (int64_t e = 1, r = i + step; e < bands && r >= 0 && r < n; e++, r += step) {
            T f = a[(lower ? e : bands - 1 - e) * n + (adjoint ? i : r)];
            for (int64_t c = 0; c < m; c++)
                b[r * m + c] -= (adjoint ? CONJ(f) : f) * b[i * m + c];
        }
    }
}

/* out = a⁻¹·b, or a⁻ᴴ·b. a is destroyed. False: it is singular. */
static bool NAME(solve)(T *a, int64_t n, const T *b, int64_t m, bool adjoint, T *out, int64_t *perm)
{
    if (adjoint)
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j <= i; j++) {
                T t = CONJ(a[i * n + j]);
                a[i * n + j] = CONJ(a[j * n + i]);
                a[j * n + i] = t;
            }
    NAME(lu)(a, n, perm);
    for (int64_t i = 0; i < n; i++)
        if (ABS(a[i * n + i]) == 0)
            return false;
    for (int64_t i = 0; i < n; i++)
        memcpy(out + i * m, b + perm[i] * m, (size_t)m * sizeof *out);
    NAME(tri_solve)(a, n, out, m, true, false, true);
    NAME(tri_solve)(a, n, out, m, false, false, false);
    return true;
}

/* Lower triangle l with a = l·lᴴ, in place; only a's lower half is looked at, the upper becomes zero. */
static bool NAME(cholesky)(T *a, int64_t n)
{
    for (int64_t j = 0; j < n; j++) {
        double d = RE(a[j * n + j]);
        for (int64_t k = 0; k < j; k++)
            d -= ABS(a[j * n + k]) * ABS(a[j * n + k]);
        if (d <= 0)
            return false;
        d = sqrt(d);
        a[j * n + j] = d;
        for (int64_t i = j + 1; i < n; i++) {
            T s = a[i * n + j];
            for (int64_t k = 0; k < j; k++)
                s -= a[i * n + k] * CONJ(a[j * n + k]);
            a[i * n + j] = s / d;
            a[j * n + i] = 0;
        }
    }
    return true;
}

/* Householder: r in a's upper triangle; q (m × p) gets the first p columns of the unitary factor. Signs are LAPACK's and Eigen's. tau: min(m, n). */
static void NAME(qr)(T *a, int64_t m, int64_t n, T *q, int64_t p, T *tau)
{
    int64_t steps = m < n ? m : n;
    for (int64_t k = 0; k < steps; k++) {
        double tail = 0;
        for (int64_t i = k + 1; i < m; i++)
            tail += ABS(a[i * n + k]) * ABS(a[i * n + k]);
        T c0 = a[k * n + k];
        double beta, imag2 = ABS(c0) * ABS(c0) - RE(c0) * RE(c0);
        if (tail <= DBL_MIN && imag2 <= DBL_MIN) {
            tau[k] = 0;
            continue;
        }
        beta = sqrt(ABS(c0) * ABS(c0) + tail);
        if (RE(c0) >= 0)
            beta = -beta;
        for (int64_t i = k + 1; i < m; i++)
            a[i * n + k] /= c0 - beta;
        tau[k] = CONJ((beta - c0) / beta);
        a[k * n + k] = beta;
        for (int64_t j = k + 1; j < n; j++) { /* Hᴴ from the left */
            T s = a[k * n + j];
            for (int64_t i = k + 1; i < m; i++)
                s += CONJ(a[i * n + k]) * a[i * n + j];
            s *= tau[k];
            a[k * n + j] -= s;
            for (int64_t i = k + 1; i < m; i++)
                a[i * n + j] -= a[i * n + k] * s;
        }
    }
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < p; j++)
            q[i * p + j] = i == j;
    for (int64_t k = steps - 1; k >= 0; k--)
        for (int64_t j = 0; j < p; j++) {
            T s = q[k * p + j];
            for (int64_t i = k + 1; i < m; i++)
                s += CONJ(a[i * n + k]) * q[i * p + j];
            s *= CONJ(tau[k]);
            q[k * p + j] -= s;
            for (int64_t i = k + 1; i < m; i++)
                q[i * p + j] -= a[i * n + k] * s;
        }
}

/* The rotation that makes [[app, apq], [apqᴴ, aqq]] diagonal: columns become c·p − s·f·q and s·p + c·f·q, with f of modulus 1. */
static void NAME(rotation)(double app, T apq, double aqq, double *c, double *s, T *f)
{
    double r = ABS(apq), theta = (aqq - app) / (2 * r), t = 1 / (fabs(theta) + sqrt(1 + theta * theta));
    if (theta < 0)
        t = -t;
    *c = 1 / sqrt(1 + t * t);
    *s = t * *c;
    *f = CONJ(apq) / r;
}

/* Eigenvalues of a Hermitian matrix (ascending) and, as rows of v, their vectors; cyclic Jacobi. a (its lower half) is destroyed. */
static void NAME(eigh)(T *a, int64_t n, double *w, T *v)
{
    double norm = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) {
            if (i == j)
                a[i * n + i] = RE(a[i * n + i]);
            a[j * n + i] = CONJ(a[i * n + j]);
            norm += ABS(a[i * n + j]) * ABS(a[i * n + j]);
        }
    for (int64_t i = 0; i < n * n; i++)
        v[i] = i % (n + 1) == 0;
    for (int sweep = 0; sweep < 60; sweep++) {
        double off = 0;
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < i; j++)
                off += ABS(a[i * n + j]) * ABS(a[i * n + j]);
        if (!(off > norm * 1e-32))
            break;
        for (int64_t p = 0; p < n; p++)
            for (int64_t q = p + 1; q < n; q++) {
                if (ABS(a[p * n + q]) == 0)
                    continue;
                double c, s;
                T f;
                NAME(rotation)(RE(a[p * n + p]), a[p * n + q], RE(a[q * n + q]), &c, &s, &f);
                for (int64_t i = 0; i < n; i++) {
                    T x = a[i * n + p], y = f * a[i * n + q];
                    a[i * n + p] = c * x - s * y;
                    a[i * n + q] = s * x + c * y;
                    x = v[p * n + i], y = f * v[q * n + i];
                    v[p * n + i] = c * x - s * y;
                    v[q * n + i] = s * x + c * y;
                }
                for (int64_t i = 0; i < n; i++) {
                    T x = a[p * n + i], y = CONJ(f) * a[q * n + i];
                    a[p * n + i] = c * x - s * y;
                    a[q * n + i] = s * x + c * y;
                }
            }
    }
    for (int64_t i = 0; i < n; i++)
        w[i] = RE(a[i * n + i]);
    for (int64_t i = 0; i < n; i++) { /* selection sort: rows move with their values */
        int64_t best = i;
        for (int64_t j = i + 1; j < n; j++)
            if (w[j] < w[best])
                best = j;
        double t = w[i];
        w[i] = w[best];
        w[best] = t;
        for (int64_t j = 0; j < n && best != i; j++) {
            T x = v[i * n + j];
            v[i * n + j] = v[best * n + j];
            v[best * n + j] = x;
        }
    }
}

/* Rows [from, to) of u (each of m elements) become unit vectors at right angles to all before them. */
static void NAME(complete)(T *u, int64_t m, int64_t from, int64_t to)
{
    for (int64_t r = from, e = 0; r < to && e < m; e++) {
        T *x = u + r * m;
        for (int64_t i = 0; i < m; i++)
            x[i] = i == e;
        for (int pass = 0; pass < 2; pass++)
            for (int64_t q = 0; q < r; q++) {
                T s = 0;
                for (int64_t i = 0; i < m; i++)
                    s += CONJ(u[q * m + i]) * x[i];
                for (int64_t i = 0; i < m; i++)
                    x[i] -= s * u[q * m + i];
            }
        double norm = 0;
        for (int64_t i = 0; i < m; i++)
            norm += ABS(x[i]) * ABS(x[i]);
        norm = sqrt(norm);
        if (norm < 0.5 / sqrt((double)m)) /* this axis lies (nearly) in what is there: some other does not */
            continue;
        for (int64_t i = 0; i < m; i++)
            x[i] /= norm;
        r++;
    }
}

/* One-sided Jacobi of the n columns (m >= n elements each) that are the rows of a: singular values descending, rows of a the left vectors, rows
 * of v (n × n) the right ones. */
static void NAME(svd)(T *a, int64_t m, int64_t n, double *s, T *v)
{
    for (int64_t i = 0; i < n * n; i++)
        v[i] = i % (n + 1) == 0;
    bool again = true;
    for (int sweep = 0; sweep < 60 && again; sweep++) {
        again = false;
        for (int64_t p = 0; p < n; p++)
            for (int64_t q = p + 1; q < n; q++) {
                double pp = 0, qq = 0;
                T pq = 0;
                for (int64_t i = 0; i < m; i++) {
                    pp += ABS(a[p * m + i]) * ABS(a[p * m + i]);
                    qq += ABS(a[q * m + i]) * ABS(a[q * m + i]);
                    pq += CONJ(a[p * m + i]) * a[q * m + i];
                }
                if (!(ABS(pq) > 1e-15 * sqrt(pp * qq)))
                    continue;
                again = true;
                double c, sn;
                T f;
                NAME(rotation)(pp, pq, qq, &c, &sn, &f);
                for (int64_t i = 0; i < m; i++) {
                    T x = a[p * m + i], y = f * a[q * m + i];
                    a[p * m + i] = c * x - sn * y;
                    a[q * m + i] = sn * x + c * y;
                }
                for (int64_t i = 0; i < n; i++) {
                    T x = v[p * n + i], y = f * v[q * n + i];
                    v[p * n + i] = c * x - sn * y;
                    v[q * n + i] = sn * x + c * y;
                }
            }
    }
    for (int64_t j = 0; j < n; j++) {
        double t = 0;
        for (int64_t i = 0; i < m; i++)
            t += ABS(a[j * m + i]) * ABS(a[j * m + i]);
        s[j] = sqrt(t);
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t best = i;
        for (int64_t j = i + 1; j < n; j++)
            if (s[j] > s[best])
                best = j;
        double t = s[i];
        s[i] = s[best];
        s[best] = t;
        for (int64_t j = 0; j < m && best != i; j++) {
            T x = a[i * m + j];
            a[i * m + j] = a[best * m + j];
            a[best * m + j] = x;
        }
        for (int64_t j = 0; j < n && best != i; j++) {
            T x = v[i * n + j];
            v[i * n + j] = v[best * n + j];
            v[best * n + j] = x;
        }
    }
    int64_t rank = 0;
    while (rank < n && s[rank] > s[0] * 1e-300 && s[rank] > 0) {
        for (int64_t i = 0; i < m; i++)
            a[rank * m + i] /= s[rank];
        rank++;
    }
    NAME(complete)(a, m, rank, n);
}
