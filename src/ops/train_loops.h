/* The optimizers' update rules, element by element; included by train.c once per T (float, double).
 *
 *     LOOP(name, slots…) { … }       over i in [0, n)
 *
 * x: old value of the variable, o: new value (may be x itself, or the gradient's memory), a b c: slots, updated in place; g: gradient;
 * s: the op's scalars in the order of its inputs; flags: its bool attrs. Each rule reads x[i] and g[i] before it writes o[i].
 * No include guard, on purpose. */

#define LOOP(name)                                                                                                                         \
    TRN_SIMD static void FN(name)(void *ov, const void *xv, void *const *slot, const void *gv, const void *sv, unsigned flags,           \
                                    int64_t n)
#define USE                                                                                                                                \
    T *o = ov;                                                                                                                             \
    const T *x = xv, *g = gv, *s = sv;                                                                                                     \
    (void)x, (void)flags
#define SLOT(name, i) T *restrict name = slot[i]
#define EACH TRN_IVDEP for (int64_t i = 0; i < n; i++)

LOOP(sgd) /* alpha */
{
    (void)slot;
    USE;
    const T lr = s[0];
    EACH o[i] = x[i] - g[i] * lr;
}

/* Shrinks v towards zero by l1, then scales it down by l2. */
static inline T FN(prox)(T v, T lr, T l1, T l2)
{
    T d = 1 + l2 * lr;
    if (!(l1 > 0))
        return v / d;
    T m = M(fabs)(v) - lr * l1;
    m = m > 0 ? m : 0;
    return (v > 0 ? m : v < 0 ? -m : 0) / d;
}

LOOP(prox_sgd) /* alpha l1 l2 */
{
    (void)slot;
    USE;
    const T lr = s[0], l1 = s[1], l2 = s[2];
    EACH o[i] = FN(prox)(x[i] - g[i] * lr, lr, l1, l2);
}

LOOP(adadelta) /* lr rho epsilon */
{
    USE;
    SLOT(a, 0);
    SLOT(b, 1);
    const T lr = s[0], rho = s[1], eps = s[2];
    EACH
    {
        T gi = g[i], ai = a[i] * rho + gi * gi * (1 - rho);
        T up = M(sqrt)(b[i] + eps) * (1 / M(sqrt)(ai + eps)) * gi;
        a[i] = ai;
        o[i] = x[i] - up * lr;
        b[i] = b[i] * rho + up * up * (1 - rho);
    }
}

LOOP(adagrad) /* lr */
{
    USE;
    SLOT(a, 0);
    const T lr = s[0];
    const bool add = flags & UPDATE_SLOTS;
    EACH
    {
        T gi = g[i], ai = add ? a[i] + gi * gi : a[i];
        a[i] = ai;
        o[i] = x[i] - gi * lr * (1 / M(sqrt)(ai));
    }
}

LOOP(adagrad_v2) /* lr epsilon */
{
    USE;
    SLOT(a, 0);
    const T lr = s[0], eps = s[1];
    const bool add = flags & UPDATE_SLOTS;
    EACH
    {
        T gi = g[i], ai = add ? a[i] + gi * gi : a[i];
        a[i] = ai;
        o[i] = x[i] - gi * lr / (M(sqrt)(ai) + eps);
    }
}

LOOP(prox_adagrad) /* lr l1 l2 */
{
    USE;
    SLOT(a, 0);
    const T lr = s[0], l1 = s[1], l2 = s[2];
    EACH
    {
        T gi = g[i], ai = a[i] + gi * gi, r = lr * (1 / M(sqrt)(ai));
        a[i] = ai;
        o[i] = FN(prox)(x[i] - gi * r, r, l1, l2);
    }
}

LOOP(adagrad_da) /* lr l1 l2 global_step */
{
    USE;
    SLOT(a, 0);
    SLOT(b, 1);
    const T lr = s[0], l1 = s[1], l2 = s[2], step = s[3];
    EACH
    {
        T gi = g[i], ai = a[i] + gi, bi = b[i] + gi * gi, m = ai;
        a[i] = ai;
        b[i] = bi;
        if (l1 > 0) {
            m = M(fabs)(ai) - step * l1;
            m = m > 0 ? m : 0;
            m = ai > 0 ? m : ai < 0 ? -m : 0;
        }
        o[i] = -lr * m / (l2 * (step * lr) + M(sqrt)(bi));
    }
}

static inline void FN(ftrl_one)(T *o, T xi, T *a, T *b, T gi, T lr, T l1, T l2, T shrink, T power, bool half, bool by_lr)
{
    T old = *a, now = old + gi * gi;
    T p_now = half ? M(sqrt)(now) : M(pow)(now, -power), p_old = half ? M(sqrt)(old) : M(pow)(old, -power);
    T gs = gi + 2 * shrink * xi;
    T lin = *b + (by_lr ? gs * lr - (p_now - p_old) * xi : gs - (p_now - p_old) / lr * xi);
    T edge = by_lr ? l1 * lr : l1;
    T y = by_lr ? p_now + 2 * l2 * lr : p_now / lr + 2 * l2;
    *a = now;
    *b = lin;
    *o = M(fabs)(lin) > edge ? ((lin > 0 ? edge : -edge) - lin) / y : 0;
}

static inline void FN(ftrl_all)(T *o, const T *x, T *restrict a, T *restrict b, const T *g, T lr, T l1, T l2, T shrink, T power,
                                unsigned flags, int64_t n)
{
    bool by_lr = flags & LINEAR_BY_LR;
    if (power != (T)-0.5) {
        for (int64_t i = 0; i < n; i++)
            FN(ftrl_one)(&o[i], x[i], &a[i], &b[i], g[i], lr, l1, l2, shrink, power, false, by_lr);
        return;
    }
    if (by_lr)
        EACH FN(ftrl_one)(&o[i], x[i], &a[i], &b[i], g[i], lr, l1, l2, shrink, power, true, true);
    else
        EACH FN(ftrl_one)(&o[i], x[i], &a[i], &b[i], g[i], lr, l1, l2, shrink, power, true, false);
}

LOOP(ftrl) /* lr l1 l2 lr_power */
{
    USE;
    SLOT(a, 0);
    SLOT(b, 1);
    FN(ftrl_all)(o, x, a, b, g, s[0], s[1], s[2], 0, s[3], flags, n);
}

LOOP(ftrl_v2) /* lr l1 l2 l2_shrinkage lr_power */
{
    USE;
    SLOT(a, 0);
    SLOT(b, 1);
    FN(ftrl_all)(o, x, a, b, g, s[0], s[1], s[2], s[3], s[4], flags, n);
}

LOOP(momentum) /* lr momentum */
{
    USE;
    SLOT(a, 0);
    const T lr = s[0], mom = s[1];
    if (flags & NESTEROV)
        EACH
        {
            T gi = g[i], ai = a[i] * mom + gi;
            a[i] = ai;
            o[i] = x[i] - (gi * lr + ai * mom * lr);
        }
    else
        EACH
        {
            T ai = a[i] * mom + g[i];
            a[i] = ai;
            o[i] = x[i] - ai * lr;
        }
}

LOOP(keras_momentum) /* lr momentum */
{
    USE;
    SLOT(a, 0);
    const T lr = s[0], mom = s[1];
    if (flags & NESTEROV)
        EACH
        {
            T gi = g[i] * lr, ai = a[i] * mom - gi;
            a[i] = ai;
            o[i] = x[i] + (ai * mom - gi);
        }
    else
        EACH
        {
            T ai = a[i] * mom - g[i] * lr;
            a[i] = ai;
            o[i] = x[i] + ai;
        }
}

LOOP(adam) /* beta1_power beta2_power lr beta1 beta2 epsilon */
{
    USE;
    SLOT(m, 0);
    SLOT(v, 1);
    const T alpha = s[2] * M(sqrt)(1 - s[1]) / (1 - s[0]), b1 = s[3], b2 = s[4], eps = s[5];
    if (flags & NESTEROV)
        EACH
        {
            T gi = g[i], mi = m[i] + (gi - m[i]) * (1 - b1), vi = v[i] + (gi * gi - v[i]) * (1 - b2);
            m[i] = mi;
            v[i] = vi;
            o[i] = x[i] - (gi * (1 - b1) + b1 * mi) * alpha / (M(sqrt)(vi) + eps);
        }
    else
        EACH
        {
            T gi = g[i], mi = m[i] + (gi - m[i]) * (1 - b1), vi = v[i] + (gi * gi - v[i]) * (1 - b2);
            m[i] = mi;
            v[i] = vi;
            o[i] = x[i] - mi * alpha / (M(sqrt)(vi) + eps);
        }
}

LOOP(amsgrad) /* beta1_power beta2_power lr beta1 beta2 epsilon */
{
    USE;
    SLOT(m, 0);
    SLOT(v, 1);
    SLOT(vhat, 2);
    const T alpha = s[2] * M(sqrt)(1 - s[1]) / (1 - s[0]), b1 = s[3], b2 = s[4], eps = s[5];
    EACH
    {
        T gi = g[i], mi = m[i] + (gi - m[i]) * (1 - b1), vi = v[i] + (gi * gi - v[i]) * (1 - b2), hi = vhat[i] > vi ? vhat[i] : vi;
        m[i] = mi;
        v[i] = vi;
        vhat[i] = hi;
        o[i] = x[i] - mi * alpha / (M(sqrt)(hi) + eps);
    }
}

LOOP(adamax) /* beta1_power lr beta1 beta2 epsilon */
{
    USE;
    SLOT(m, 0);
    SLOT(v, 1);
    const T rate = s[1] / (1 - s[0]), b1 = s[2], b2 = s[3], eps = s[4];
    EACH
    {
        T gi = g[i], mi = m[i] + (gi - m[i]) * (1 - b1), decayed = b2 * v[i], ga = M(fabs)(gi), vi = decayed > ga ? decayed : ga;
        m[i] = mi;
        v[i] = vi;
        o[i] = x[i] - rate * (mi / (vi + eps));
    }
}

LOOP(rmsprop) /* lr rho momentum epsilon */
{
    USE;
    SLOT(ms, 0);
    SLOT(mom, 1);
    const T lr = s[0], rho = s[1], momentum = s[2], eps = s[3];
    EACH
    {
        T gi = g[i], si = ms[i] + (gi * gi - ms[i]) * (1 - rho), mi = mom[i] * momentum + gi * lr / M(sqrt)(si + eps);
        ms[i] = si;
        mom[i] = mi;
        o[i] = x[i] - mi;
    }
}

LOOP(centered_rmsprop) /* lr rho momentum epsilon */
{
    USE;
    SLOT(mg, 0);
    SLOT(ms, 1);
    SLOT(mom, 2);
    const T lr = s[0], rho = s[1], momentum = s[2], eps = s[3];
    EACH
    {
        T gi = g[i], si = ms[i] + (gi * gi - ms[i]) * (1 - rho), ci = mg[i] + (gi - mg[i]) * (1 - rho);
        T mi = mom[i] * momentum + gi * lr / M(sqrt)(si - ci * ci + eps);
        ms[i] = si;
        mg[i] = ci;
        mom[i] = mi;
        o[i] = x[i] - mi;
    }
}

/* sign(a)·sign(b) */
static inline T FN(agree)(T a, T b)
{
    return (T)((a > 0) - (a < 0)) * (T)((b > 0) - (b < 0));
}

LOOP(add_sign) /* lr alpha sign_decay beta */
{
    USE;
    SLOT(m, 0);
    const T lr = s[0], alpha = s[1], decay = s[2], beta = s[3];
    EACH
    {
        T gi = g[i], mi = m[i] * beta + gi * (1 - beta);
        m[i] = mi;
        o[i] = x[i] - lr * (alpha + decay * FN(agree)(gi, mi)) * gi;
    }
}

LOOP(power_sign) /* lr logbase sign_decay beta */
{
    USE;
    SLOT(m, 0);
    const T lr = s[0], logbase = s[1], decay = s[2], beta = s[3];
    const T with = M(exp)(logbase * decay), against = M(exp)(-(logbase * decay)); /* the sign takes three values, so does the scale */
    EACH
    {
        T gi = g[i], mi = m[i] * beta + gi * (1 - beta), both = FN(agree)(gi, mi);
        m[i] = mi;
        o[i] = x[i] - lr * (both > 0 ? with : both < 0 ? against : 1) * gi;
    }
}

#undef LOOP
#undef USE
#undef SLOT
#undef EACH
