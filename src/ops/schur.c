#include "ops/schur.h"

#include <complex.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#undef I

typedef double _Complex num;

static double norm2(num z) { return creal(z) * creal(z) + cimag(z) * cimag(z); }

/* Householder's reflections: zeros below the first diagonal under the main one. `v` is room for n. */
static void hessenberg(num *a, num *u, int64_t n, num *v)
{
    for (int64_t k = 0; k + 2 < n; k++) {
        double below = 0, len;
        for (int64_t i = k + 2; i < n; i++)
            below += norm2(a[i * n + k]);
        if (below == 0)
            continue;
        num x = a[(k + 1) * n + k];
        len = sqrt(norm2(x) + below);
        double r = cabs(x);
        v[k + 1] = x + (r > 0 ? x / r * len : len);
        for (int64_t i = k + 2; i < n; i++)
            v[i] = a[i * n + k];
        double beta = 2 / (norm2(v[k + 1]) + below);
        for (int64_t j = k; j < n; j++) { /* from the left */
            num s = 0;
            for (int64_t i = k + 1; i < n; i++)
                s += conj(v[i]) * a[i * n + j];
            s *= beta;
            for (int64_t i = k + 1; i < n; i++)
                a[i * n + j] -= s * v[i];
        }
        for (int64_t i = 0; i < n; i++) { /* from the right, and into u */
            num s = 0, t = 0;
            for (int64_t j = k + 1; j < n; j++) {
                s += a[i * n + j] * v[j];
                t += u[i * n + j] * v[j];
            }
            s *= beta;
            t *= beta;
            for (int64_t j = k + 1; j < n; j++) {
                a[i * n + j] -= s * conj(v[j]);
                u[i * n + j] -= t * conj(v[j]);
            }
        }
        for (int64_t i = k + 2; i < n; i++)
            a[i * n + k] = 0;
    }
}

/* The eigenvalue of the last 2 × 2 block that is nearer to its corner. */
static num wilkinson(const num *a, int64_t n, int64_t hi)
{
    num p = a[(hi - 1) * n + hi - 1], q = a[(hi - 1) * n + hi], r = a[hi * n + hi - 1], s = a[hi * n + hi];
    num half = 0.5 * (p + s), d = csqrt(0.25 * (p - s) * (p - s) + q * r);
    return cabs(half + d - s) < cabs(half - d - s) ? half + d : half - d;
}

static void rotate_rows(num *a, int64_t n, int64_t k, int64_t from, double c, num s)
{
    for (int64_t j = from; j < n; j++) {
        num x = a[k * n + j], y = a[(k + 1) * n + j];
        a[k * n + j] = c * x + s * y;
        a[(k + 1) * n + j] = c * y - conj(s) * x;
    }
}

static void rotate_columns(num *a, int64_t n, int64_t k, int64_t rows, double c, num s)
{
    for (int64_t i = 0; i < rows; i++) {
        num x = a[i * n + k], y = a[i * n + k + 1];
        a[i * n + k] = c * x + conj(s) * y;
        a[i * n + k + 1] = c * y - s * x;
    }
}

/* One step with a shift on rows lo … hi: a bulge below the diagonal is chased out. */
static void qr_step(num *a, num *u, int64_t n, int64_t lo, int64_t hi, num shift)
{
    num x = a[lo * n + lo] - shift, y = a[(lo + 1) * n + lo];
    for (int64_t k = lo; k < hi; k++) {
        double len = sqrt(norm2(x) + norm2(y)), r = cabs(x), c = 1;
        num s = 0;
        if (len > 0) {
            c = r / len;
            s = r > 0 ? x / r * conj(y) / len : conj(y) / len;
        }
        rotate_rows(a, n, k, k > lo ? k - 1 : lo, c, s);
        rotate_columns(a, n, k, (k + 3 <= hi ? k + 3 : hi + 1), c, s);
        rotate_columns(u, n, k, n, c, s);
        if (k + 1 < hi) {
            x = a[(k + 1) * n + k];
            y = a[(k + 2) * n + k];
        }
    }
}

bool trn_schur(num *a, num *u, int64_t n)
{
    for (int64_t i = 0; i < n * n; i++) {
        u[i] = i % (n + 1) == 0;
        if (!isfinite(creal(a[i])) || !isfinite(cimag(a[i])))
            return false;
    }
    num *v = malloc((size_t)(n + 1) * sizeof *v);
    if (!v)
        return false;
    hessenberg(a, u, n, v);
    free(v);
    int tries = 0;
    for (int64_t hi = n - 1; hi > 0;) {
        int64_t lo = hi;
        for (; lo > 0; lo--) {
            double near = cabs(a[(lo - 1) * n + lo - 1]) + cabs(a[lo * n + lo]);
            if (cabs(a[lo * n + lo - 1]) <= DBL_EPSILON * near || cabs(a[lo * n + lo - 1]) < DBL_MIN) {
                a[lo * n + lo - 1] = 0;
                break;
            }
        }
        if (lo == hi) {
            hi--;
            tries = 0;
            continue;
        }
        if (++tries > 60)
            return false;
        /* now and then another shift: the usual one may go in circles */
        num shift = tries % 10 ? wilkinson(a, n, hi) : a[hi * n + hi] + cabs(a[hi * n + hi - 1]);
        qr_step(a, u, n, lo, hi, shift);
    }
    return true;
}

void trn_schur_vectors(num *v, const num *t, const num *u, int64_t n)
{
    double size = 0;
    for (int64_t i = 0; i < n * n; i++)
        size = fmax(size, cabs(t[i]));
    double least = fmax(size * DBL_EPSILON, DBL_MIN);
    num *x = malloc((size_t)(n + 1) * sizeof *x);
    for (int64_t k = 0; x && k < n; k++) {
        x[k] = 1;
        for (int64_t i = k - 1; i >= 0; i--) {
            num s = t[i * n + k], d = t[k * n + k] - t[i * n + i];
            for (int64_t j = i + 1; j < k; j++)
                s += t[i * n + j] * x[j];
            x[i] = s / (cabs(d) < least ? least : d);
        }
        double len = 0;
        for (int64_t i = 0; i < n; i++) {
            num s = 0;
            for (int64_t j = 0; j <= k; j++)
                s += u[i * n + j] * x[j];
            v[i * n + k] = s;
            len += norm2(s);
        }
        for (int64_t i = 0; i < n; i++)
            v[i * n + k] /= sqrt(len);
    }
    free(x);
}
