/* Recurrent cells as one op: an LSTM's step, a whole LSTM over time, a GRU's step, and their gradients. What TensorFlow 1 calls block cells.
 *
 * All of them work in float; half is read into and written from floats. Gates lie side by side in one product [x h]·w. */
#include "ops/kern.h"

#include <stdlib.h>
#include <string.h>

#include "ops/gemm.h"
#include "ops/vmath.h"

/* Floats that live as long as the kernel runs. */
typedef struct room {
    float *p[48];
    int n;
    bool full; /* an allocation failed: every pointer is to be thought of as missing */
} room;

static float *floats(room *r, int64_t n)
{
    float *p = r->n < (int)TRN_COUNTOF(r->p) ? calloc((size_t)TRN_MAX(n, 1), sizeof *p) : NULL;
    if (p)
        r->p[r->n++] = p;
    else
        r->full = true;
    return p;
}

static void leave(room *r)
{
    for (int i = 0; i < r->n; i++)
        free(r->p[i]);
}

static const float *load(room *r, const trn_tensor *t)
{
    if (t->dtype == TRN_FLOAT)
        return TRN_DATA(t, float);
    float *p = floats(r, t->count);
    for (int64_t i = 0; p && i < t->count; i++)
        p[i] = trn_half_to_f32(TRN_DATA(t, trn_half)[i]);
    return p;
}

/* Outputs: floats to fill, and their way into the tensor. */
typedef struct result {
    trn_tensor *t;
    float *v;
} result;

static trn_err result_new(result *out, room *r, trn_kctx *k, int i, trn_dtype type, const trn_shape *shape)
{
    TRN_TRY(trn_out_new(&out->t, k, i, type, shape));
    if (type == TRN_FLOAT) {
        out->v = TRN_DATA_MUT(out->t, float);
        if (out->t->count)
            memset(out->v, 0, sizeof *out->v * (size_t)out->t->count);
    } else {
        out->v = floats(r, out->t->count);
    }
    return TRN_OK;
}

static void result_store(const result *y, int n)
{
    for (int j = 0; j < n; j++)
        if (y[j].t->dtype != TRN_FLOAT)
            for (int64_t i = 0; i < y[j].t->count; i++)
                TRN_DATA_MUT(y[j].t, trn_half)[i] = trn_half_from_f32(y[j].v[i]);
}

static trn_err no_memory(void) { return trn_errorf(TRN_RESOURCE_EXHAUSTED, "no memory for the gates"); }

/* c[m,n] = a[m,k]·b[k,n], b as it is or turned over (b[n,k]). */
static bool product(float *c, const float *a, const float *b, int64_t m, int64_t n, int64_t k, bool turned)
{
    if (!m || !n)
        return true;
    if (!k) {
        memset(c, 0, sizeof *c * (size_t)(m * n));
        return true;
    }
    trn_gemm_args g = {.m = m, .n = n, .k = k, .a = a, .ars = k, .acs = 1, .b = b, .c = c, .ldc = n};
    g.brs = turned ? 1 : n;
    g.bcs = turned ? k : 1;
    return trn_gemm(TRN_FLOAT, &g);
}

/* rows of x and h side by side, h times `by` where given */
static void side_by_side(float *xh, const float *x, const float *h, const float *by, int64_t batch, int64_t in, int64_t cell)
{
    for (int64_t b = 0; b < batch; b++) {
        float *row = xh + b * (in + cell);
        memcpy(row, x + b * in, sizeof *row * (size_t)in);
        for (int64_t j = 0; j < cell; j++)
            row[in + j] = h[b * cell + j] * (by ? by[b * cell + j] : 1.0f);
    }
}

static trn_err check_rank(const trn_kctx *k, int from, int to, int rank)
{
    for (int i = from; i < to; i++)
        TRN_CHECK_ARG(trn_in(k, i)->shape.rank == rank, "input %d must be rank %d but is rank %d", i, rank,
                      trn_in(k, i)->shape.rank);
    return TRN_OK;
}

static trn_err check_matrix(const trn_kctx *k, int i, const char *name, int64_t rows, int64_t cols)
{
    const trn_shape *s = &trn_in(k, i)->shape;
    TRN_CHECK_ARG(s->rank == 2 && s->dim[0] == rows && s->dim[1] == cols, "%s must be [%lld,%lld]", name,
                  (long long)rows, (long long)cols);
    return TRN_OK;
}

static trn_err check_vector(const trn_kctx *k, int i, const char *name, int64_t n)
{
    const trn_shape *s = &trn_in(k, i)->shape;
    TRN_CHECK_ARG(s->rank == 1 && s->dim[0] == n, "%s must have %lld elements", name, (long long)n);
    return TRN_OK;
}

/* ---- LSTM -------------------------------------------------------------------------------------------------------------- */

enum { I, CS, F, O, CI, CO, H, N_VALUES }; /* what a step gives, in the order of the ops' outputs */

typedef struct lstm {
    int64_t time, steps, batch, in, cell;
    int at_c, at_f; /* which quarter of the gates: i c f o, or i f c o */
    bool peephole;
    float forget_bias, clip;
    const float *x, *cs_prev, *h_prev, *w, *wci, *wcf, *wco, *b;
} lstm;

/* Inputs x … b begin at `first`; x is [batch, in], or [time, batch, in] after the number of steps (`timed`). */
static trn_err lstm_init(lstm *l, room *r, const trn_kctx *k, bool timed, bool second)
{
    const int x = timed;
    const trn_shape *xs = &trn_in(k, x)->shape;
    *l = (lstm){.time = 1, .steps = 1, .at_c = second ? 2 : 1, .at_f = second ? 1 : 2};
    TRN_TRY(check_rank(k, x, x + 1, timed ? 3 : 2));
    TRN_TRY(check_rank(k, x + 1, x + 4, 2));
    TRN_TRY(check_rank(k, x + 4, x + 8, 1));
    if (timed) {
        TRN_CHECK_ARG(trn_in(k, 0)->shape.rank == 0, "seq_len_max must be rank 0 but is rank %d",
                      trn_in(k, 0)->shape.rank);
        l->time = xs->dim[0];
        l->steps = TRN_DATA(trn_in(k, 0), int64_t)[0];
        TRN_CHECK_ARG(l->steps >= 0 && l->steps <= l->time, "seq_len_max is %lld, x has %lld steps",
                      (long long)l->steps, (long long)l->time);
    }
    l->batch = xs->dim[timed];
    l->in = xs->dim[timed + 1];
    l->cell = trn_in(k, x + 1)->shape.dim[1];
    TRN_TRY(check_matrix(k, x + 1, "cs_prev", l->batch, l->cell));
    TRN_TRY(check_matrix(k, x + 2, "h_prev", l->batch, l->cell));
    int64_t gates;
    TRN_CHECK_ARG(!__builtin_mul_overflow(l->cell, 4, &gates), "the cell is too large");
    TRN_TRY(check_matrix(k, x + 3, "w", l->in + l->cell, gates));
    TRN_TRY(check_vector(k, x + 7, "b", gates));
    l->peephole = trn_attr_bool(k->node, "use_peephole");
    static const char *const names[] = {"wci", "wcf", "wco"};
    for (int i = 0; i < 3; i++)
        if (l->peephole || timed)
            TRN_TRY(check_vector(k, x + 4 + i, names[i], l->cell));
    const float **to[] = {&l->x, &l->cs_prev, &l->h_prev, &l->w, &l->wci, &l->wcf, &l->wco, &l->b};
    for (int i = 0; i < 8; i++)
        *to[i] = load(r, trn_in(k, x + i));
    return r->full ? no_memory() : TRN_OK;
}

/* Step t: values v[·] of [time, batch, cell]; xh and gates are scratch. */
static bool lstm_step(const lstm *l, int64_t t, const result *v, float *xh, float *gates)
{
    const int64_t n = l->batch * l->cell, c = l->cell;
    const float *cs_prev = t ? v[CS].v + (t - 1) * n : l->cs_prev, *h_prev = t ? v[H].v + (t - 1) * n : l->h_prev;
    side_by_side(xh, l->x + t * l->batch * l->in, h_prev, NULL, l->batch, l->in, c);
    if (!product(gates, xh, l->w, l->batch, 4 * c, l->in + c, false))
        return false;
    for (int64_t b = 0; b < l->batch; b++) {
        const float *g = gates + b * 4 * c, *was = cs_prev + b * c;
        int64_t o = t * n + b * c;
        for (int64_t j = 0; j < c; j++) {
            float peep_i = l->peephole ? was[j] * l->wci[j] : 0, peep_f = l->peephole ? was[j] * l->wcf[j] : 0;
            float i = trn_v_sigmoidf(g[j] + l->b[j] + peep_i);
            float ci = trn_v_tanhf(g[l->at_c * c + j] + l->b[l->at_c * c + j]);
            float f = trn_v_sigmoidf(g[l->at_f * c + j] + l->b[l->at_f * c + j] + l->forget_bias + peep_f);
            float cs = i * ci + f * was[j];
            if (l->clip > 0)
                cs = cs < -l->clip ? -l->clip : cs > l->clip ? l->clip : cs;
            float co = trn_v_tanhf(cs);
            float og = trn_v_sigmoidf(g[3 * c + j] + l->b[3 * c + j] + (l->peephole ? cs * l->wco[j] : 0));
            v[I].v[o + j] = i;
            v[CS].v[o + j] = cs;
            v[F].v[o + j] = f;
            v[O].v[o + j] = og;
            v[CI].v[o + j] = ci;
            v[CO].v[o + j] = co;
            v[H].v[o + j] = og * co;
        }
    }
    return true;
}

static trn_err lstm_forward(trn_kctx *k, room *r, bool timed, bool second)
{
    lstm l;
    TRN_TRY(lstm_init(&l, r, k, timed, second));
    TRN_CHECK_ARG(timed || (l.batch > 0 && l.cell > 0), "cs_prev is empty: [%lld,%lld]", (long long)l.batch,
                  (long long)l.cell);
    l.forget_bias = second ? 0 : trn_attr_float(k->node, "forget_bias");
    l.clip = trn_attr_float(k->node, "cell_clip");
    trn_shape s = timed ? trn_shape_of(3, l.time, l.batch, l.cell) : trn_shape_of(2, l.batch, l.cell);
    result v[N_VALUES];
    for (int i = 0; i < N_VALUES; i++)
        TRN_TRY(result_new(&v[i], r, k, i, trn_in(k, timed)->dtype, &s));
    float *xh = floats(r, l.batch * (l.in + l.cell)), *gates = floats(r, l.batch * 4 * l.cell);
    if (r->full)
        return no_memory();
    for (int64_t t = 0; t < l.steps; t++)
        if (!lstm_step(&l, t, v, xh, gates))
            return no_memory();
    result_store(v, N_VALUES);
    return TRN_OK;
}

/* The gradient of one step with respect to its gates (dg), the state before it (dcs_prev), and, added to, the peepholes. */
typedef struct back {
    const float *v[N_VALUES]; /* of this step */
    const float *cs_prev, *dcs, *dh;
    float *dg, *dcs_prev, *dwci, *dwcf, *dwco;
} back;

static void lstm_back(const lstm *l, const back *s)
{
    const int64_t c = l->cell;
    for (int64_t b = 0; b < l->batch; b++)
        for (int64_t j = 0; j < c; j++) {
            int64_t e = b * c + j;
            float i = s->v[I][e], f = s->v[F][e], o = s->v[O][e], ci = s->v[CI][e], co = s->v[CO][e];
            float d_o = o * (1 - o) * s->dh[e] * co, dcs = (1 - co * co) * s->dh[e] * o + s->dcs[e];
            if (l->peephole)
                dcs += d_o * l->wco[j];
            float dci = (1 - ci * ci) * dcs * i, df = f * (1 - f) * dcs * s->cs_prev[e], di = i * (1 - i) * dcs * ci;
            float *g = s->dg + b * 4 * c + j;
            float before = s->cs_prev[e];
            g[0] = di;
            g[l->at_c * c] = dci;
            g[l->at_f * c] = df;
            g[3 * c] = d_o;
            s->dcs_prev[e] = dcs * f;
            if (l->peephole) {
                s->dcs_prev[e] += di * l->wci[j] + df * l->wcf[j];
                s->dwci[j] += di * before;
                s->dwcf[j] += df * before;
                s->dwco[j] += d_o * s->v[CS][e];
            }
        }
}

static trn_err k_lstm_cell_grad(trn_kctx *k, room *r)
{
    lstm l;
    TRN_TRY(lstm_init(&l, r, k, false, false));
    back s = {0};
    for (int i = 0; i < 8; i++) /* i cs f o ci co, cs_grad h_grad */
        TRN_TRY(check_matrix(k, 8 + i, "a value or gradient", l.batch, l.cell));
    for (int i = 0; i < H; i++)
        s.v[i] = load(r, trn_in(k, 8 + i));
    s.dcs = load(r, trn_in(k, 14));
    s.dh = load(r, trn_in(k, 15));
    s.cs_prev = l.cs_prev;
    trn_dtype type = trn_in(k, 0)->dtype;
    trn_shape state = trn_shape_of(2, l.batch, l.cell), gates = trn_shape_of(2, l.batch, 4 * l.cell);
    result y[5];
    TRN_TRY(result_new(&y[0], r, k, 0, type, &state));
    TRN_TRY(result_new(&y[1], r, k, 1, type, &gates));
    for (int i = 0; i < 3; i++)
        TRN_TRY(result_new(&y[2 + i], r, k, 2 + i, type, &trn_in(k, 4 + i)->shape));
    if (r->full)
        return no_memory();
    s.dcs_prev = y[0].v;
    s.dg = y[1].v;
    s.dwci = y[2].v;
    s.dwcf = y[3].v;
    s.dwco = y[4].v;
    lstm_back(&l, &s);
    result_store(y, 5);
    return TRN_OK;
}

static trn_err lstm_backward(trn_kctx *k, room *r, bool second)
{
    lstm l;
    TRN_TRY(lstm_init(&l, r, k, true, second));
    trn_shape values = trn_shape_of(3, l.time, l.batch, l.cell);
    const float *v[N_VALUES + 2]; /* i cs f o ci co h, cs_grad h_grad */
    for (int i = 0; i < N_VALUES + 2; i++) {
        TRN_CHECK_ARG(trn_shape_eq(&trn_in(k, 9 + i)->shape, &values),
                      "input %d must be [%lld,%lld,%lld], as the values of the steps are", 9 + i, (long long)l.time,
                      (long long)l.batch, (long long)l.cell);
        v[i] = load(r, trn_in(k, 9 + i));
    }
    result y[8]; /* x, cs_prev, h_prev, w, wci, wcf, wco, b: like the inputs */
    for (int i = 0; i < 8; i++)
        TRN_TRY(result_new(&y[i], r, k, i, trn_in(k, 1)->dtype, &trn_in(k, 1 + i)->shape));
    const int64_t n = l.batch * l.cell, width = l.in + l.cell, rows = l.steps * l.batch;
    float *xh = floats(r, rows * width), *dg = floats(r, rows * 4 * l.cell), *dxh = floats(r, l.batch * width),
          *dcs = floats(r, n), *dh = floats(r, n);
    if (r->full)
        return no_memory();
    for (int64_t t = l.steps - 1; t >= 0; t--) {
        back s = {.cs_prev = t ? v[CS] + (t - 1) * n : l.cs_prev, .dcs = dcs, .dh = dh, .dg = dg + t * l.batch * 4 * l.cell};
        for (int i = 0; i < N_VALUES; i++)
            s.v[i] = v[i] + t * n;
        for (int64_t e = 0; e < n; e++) { /* what later steps sent back, and what comes from outside */
            dcs[e] = y[1].v[e] + v[N_VALUES][t * n + e];
            dh[e] = y[2].v[e] + v[N_VALUES + 1][t * n + e];
        }
        s.dcs_prev = y[1].v;
        s.dwci = y[4].v;
        s.dwcf = y[5].v;
        s.dwco = y[6].v;
        lstm_back(&l, &s);
        if (!product(dxh, s.dg, l.w, l.batch, width, 4 * l.cell, true))
            return no_memory();
        for (int64_t b = 0; b < l.batch; b++) {
            memcpy(y[0].v + (t * l.batch + b) * l.in, dxh + b * width, sizeof *dxh * (size_t)l.in);
            memcpy(y[2].v + b * l.cell, dxh + b * width + l.in, sizeof *dxh * (size_t)l.cell);
        }
        side_by_side(xh + t * l.batch * width, l.x + t * l.batch * l.in, t ? v[H] + (t - 1) * n : l.h_prev, NULL,
                     l.batch, l.in, l.cell);
    }
    if (rows && width && l.cell) { /* all steps at once */
        trn_gemm_args g = {.m = width, .n = 4 * l.cell, .k = rows, .a = xh, .ars = 1, .acs = width, .b = dg,
                           .brs = 4 * l.cell, .bcs = 1, .c = y[3].v, .ldc = 4 * l.cell};
        if (!trn_gemm(TRN_FLOAT, &g))
            return no_memory();
    }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < 4 * l.cell; j++)
            y[7].v[j] += dg[i * 4 * l.cell + j];
    result_store(y, 8);
    return TRN_OK;
}

/* ---- GRU --------------------------------------------------------------------------------------------------------------- */

typedef struct gru {
    int64_t batch, in, cell;
    const float *x, *h_prev, *w_ru, *w_c, *b_ru, *b_c;
} gru;

static trn_err gru_init(gru *g, const trn_kctx *k)
{
    TRN_TRY(check_rank(k, 0, 4, 2));
    TRN_TRY(check_rank(k, 4, 6, 1));
    g->batch = trn_in(k, 0)->shape.dim[0];
    g->in = trn_in(k, 0)->shape.dim[1];
    g->cell = trn_in(k, 1)->shape.dim[1];
    int64_t two;
    TRN_CHECK_ARG(!__builtin_mul_overflow(g->cell, 2, &two), "the cell is too large");
    TRN_TRY(check_matrix(k, 1, "h_prev", g->batch, g->cell));
    TRN_TRY(check_matrix(k, 2, "w_ru", g->in + g->cell, two));
    TRN_TRY(check_matrix(k, 3, "w_c", g->in + g->cell, g->cell));
    TRN_TRY(check_vector(k, 4, "b_ru", two));
    TRN_TRY(check_vector(k, 5, "b_c", g->cell));
    const float **to[] = {&g->x, &g->h_prev, &g->w_ru, &g->w_c, &g->b_ru, &g->b_c};
    for (int i = 0; i < 6; i++)
        *to[i] = TRN_DATA(trn_in(k, i), float);
    return TRN_OK;
}

static trn_err k_gru_cell(trn_kctx *k, room *r)
{
    gru g;
    TRN_TRY(gru_init(&g, k));
    const int64_t c = g.cell, width = g.in + c;
    trn_shape state = trn_shape_of(2, g.batch, c);
    result y[4]; /* r u c h */
    for (int i = 0; i < 4; i++)
        TRN_TRY(result_new(&y[i], r, k, i, TRN_FLOAT, &state));
    float *xh = floats(r, g.batch * width), *ru = floats(r, g.batch * 2 * c);
    if (r->full)
        return no_memory();
    side_by_side(xh, g.x, g.h_prev, NULL, g.batch, g.in, c);
    if (!product(ru, xh, g.w_ru, g.batch, 2 * c, width, false))
        return no_memory();
    for (int64_t b = 0; b < g.batch; b++)
        for (int64_t j = 0; j < c; j++) {
            y[0].v[b * c + j] = trn_v_sigmoidf(ru[b * 2 * c + j] + g.b_ru[j]);
            y[1].v[b * c + j] = trn_v_sigmoidf(ru[b * 2 * c + c + j] + g.b_ru[c + j]);
        }
    side_by_side(xh, g.x, g.h_prev, y[0].v, g.batch, g.in, c);
    if (!product(y[2].v, xh, g.w_c, g.batch, c, width, false))
        return no_memory();
    for (int64_t e = 0; e < g.batch * c; e++) {
        float v = y[2].v[e] = trn_v_tanhf(y[2].v[e] + g.b_c[e % c]);
        y[3].v[e] = y[1].v[e] * (g.h_prev[e] - v) + v;
    }
    return TRN_OK;
}

static trn_err k_gru_cell_grad(trn_kctx *k, room *r)
{
    gru g;
    TRN_TRY(gru_init(&g, k));
    const int64_t c = g.cell, width = g.in + c;
    const float *v[4]; /* r u c d_h */
    for (int i = 0; i < 4; i++) {
        TRN_TRY(check_matrix(k, 6 + i, "a value or gradient", g.batch, c));
        v[i] = TRN_DATA(trn_in(k, 6 + i), float);
    }
    trn_shape gates = trn_shape_of(2, g.batch, 2 * c);
    result y[4]; /* d_x d_h_prev d_c_bar d_r_bar_u_bar */
    for (int i = 0; i < 4; i++)
        TRN_TRY(result_new(&y[i], r, k, i, TRN_FLOAT, i == 3 ? &gates : &trn_in(k, i == 0 ? 0 : 1)->shape));
    float *dxh = floats(r, g.batch * width), *dxhr = floats(r, g.batch * width);
    if (r->full)
        return no_memory();
    for (int64_t b = 0; b < g.batch; b++)
        for (int64_t j = 0; j < c; j++) {
            int64_t e = b * c + j;
            float u = v[1][e], cc = v[2][e], dh = v[3][e];
            y[2].v[e] = dh * (1 - u) * (1 - cc * cc);
            y[3].v[b * 2 * c + c + j] = dh * (g.h_prev[e] - cc) * u * (1 - u);
        }
    if (!product(dxhr, y[2].v, g.w_c, g.batch, width, c, true))
        return no_memory();
    for (int64_t b = 0; b < g.batch; b++)
        for (int64_t j = 0; j < c; j++) {
            int64_t e = b * c + j;
            y[3].v[b * 2 * c + j] = dxhr[b * width + g.in + j] * g.h_prev[e] * v[0][e] * (1 - v[0][e]);
        }
    if (!product(dxh, y[3].v, g.w_ru, g.batch, width, 2 * c, true))
        return no_memory();
    for (int64_t b = 0; b < g.batch; b++) {
        for (int64_t j = 0; j < g.in; j++)
            y[0].v[b * g.in + j] = dxh[b * width + j] + dxhr[b * width + j];
        for (int64_t j = 0; j < c; j++) {
            int64_t e = b * c + j, h = b * width + g.in + j;
            y[1].v[e] = dxh[h] + dxhr[h] * v[0][e] + v[3][e] * v[1][e];
        }
    }
    return TRN_OK;
}

/* ---- rows -------------------------------------------------------------------------------------------------------------- */

#define WITH_ROOM(name, call)                                                                                          \
    static trn_err name(trn_kctx *k)                                                                                   \
    {                                                                                                                  \
        room r = {0};                                                                                                  \
        trn_err err = call;                                                                                            \
        leave(&r);                                                                                                     \
        return err;                                                                                                    \
    }
WITH_ROOM(lstm_cell, lstm_forward(k, &r, false, false))
WITH_ROOM(lstm_cell_grad, k_lstm_cell_grad(k, &r))
WITH_ROOM(block_lstm, lstm_forward(k, &r, true, false))
WITH_ROOM(block_lstm2, lstm_forward(k, &r, true, true))
WITH_ROOM(block_lstm_grad, lstm_backward(k, &r, false))
WITH_ROOM(block_lstm_grad2, lstm_backward(k, &r, true))
WITH_ROOM(gru_cell, k_gru_cell(k, &r))
WITH_ROOM(gru_cell_grad, k_gru_cell_grad(k, &r))

#define LSTM_IN "x:T, cs_prev:T, h_prev:T, w:T, wci:T, wcf:T, wco:T, b:T"
#define LSTM_OUT "i:T, cs:T, f:T, o:T, ci:T, co:T, h:T"
#define LSTM_GRAD                                                                                                      \
    "seq_len_max:i64, " LSTM_IN ", " LSTM_OUT ", cs_grad:T, h_grad:T -> x_grad:T, cs_prev_grad:T, h_prev_grad:T, "     \
    "w_grad:T, wci_grad:T, wcf_grad:T, wco_grad:T, b_grad:T; use_peephole:bool, T:f16|f32"

const trn_op trn_ops_rnn_block[] = {
    {"LSTMBlockCell",
     LSTM_IN " -> " LSTM_OUT "; forget_bias:float=1.0, cell_clip:float=3.0, use_peephole:bool=false, T:f16|f32",
     trn_sh_unknown, lstm_cell, 0},
    {"LSTMBlockCellGrad",
     LSTM_IN ", i:T, cs:T, f:T, o:T, ci:T, co:T, cs_grad:T, h_grad:T -> cs_prev_grad:T, dicfo:T, wci_grad:T, "
             "wcf_grad:T, wco_grad:T; use_peephole:bool, T:f16|f32",
     trn_sh_unknown, lstm_cell_grad, 0},
    {"BlockLSTM",
     "seq_len_max:i64, " LSTM_IN " -> " LSTM_OUT
     "; forget_bias:float=1.0, cell_clip:float=3.0, use_peephole:bool=false, T:f16|f32",
     trn_sh_unknown, block_lstm, 0},
    {"BlockLSTMV2",
     "seq_len_max:i64, " LSTM_IN " -> " LSTM_OUT "; cell_clip:float=0.0, use_peephole:bool=false, T:f16|f32",
     trn_sh_unknown, block_lstm2, 0},
    {"BlockLSTMGrad", LSTM_GRAD, trn_sh_unknown, block_lstm_grad, 0},
    {"BlockLSTMGradV2", LSTM_GRAD, trn_sh_unknown, block_lstm_grad2, 0},
    {"GRUBlockCell",
     "x:T, h_prev:T, w_ru:T, w_c:T, b_ru:T, b_c:T -> r:T, u:T, c:T, h:T; T:f32", trn_sh_unknown, gru_cell, 0},
    {"GRUBlockCellGrad",
     "x:T, h_prev:T, w_ru:T, w_c:T, b_ru:T, b_c:T, r:T, u:T, c:T, d_h:T -> d_x:T, d_h_prev:T, d_c_bar:T, "
     "d_r_bar_u_bar:T; T:f32",
     trn_sh_unknown, gru_cell_grad, 0},
    {0},
};
