/* The words of winograd.h as code: three transforms, of one tile and sixteen channels at a time, around trn_gemm. */
#include "ops/winograd.h"

#include <stdlib.h>

#include "ops/gemm.h"
#include "ops/kern.h"

#ifndef __clang__
#pragma GCC optimize("fp-contract=fast") /* as in gemm.c */
#endif

/* Six points in each direction; sixteen channels are a vector. */
enum { POINTS = 6, TILE = POINTS * POINTS, LANES = 16, BLOCK_BYTES = 640 << 10, SUMS_BYTES = 4 << 20, LINE_BYTES = 4 << 20, ROWS = 12 };

#define LARGE_FLOPS 250e6 /* by the definition */

/* ---- transforms ----------------------------------------------------------------------------------------------------------------- */

#if TRN_ASAN || TRN_TSAN || defined(__clang__)
#define UNROLL /* as in gemm.c; clang does so by itself */
#else
#define UNROLL _Pragma("GCC unroll 6")
#endif

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* Two sets of points (0 and infinity belong to both). Results: what is the same everywhere is exactly 0 at all points of an image but 1, where all places of a tile
 * get it from. Gradients of windows: more precise. */
#define RESULT 1.0f, 1.75f
#define GRADIENT 0.625f, 1.5f
#define NORM_0(p, q) (1 / ((p) * (p) * (q) * (q))) /* over the products of a point's distances from the others */
#define NORM(p, q) (1 / (2 * (p) * (p) * ((p) * (p) - (q) * (q))))

/* One direction, in registers: x[0], x[1]… to y[0], y[t]…; `in` and `out` say how many there are, p and q which points beside 0 and infinity: ±p, ±q. */
#define TO_POINTS(y, t, x, in, out, p, q) /* of an image: 6 to 6, by differences */                                    \
    do {                                                                                                               \
        const float p2 = (p) * (p), q2 = (q) * (q), rest = (1 - p2) * (1 - q2);                                        \
        vec e1 = x[4] - q2 * x[2], o1 = (p) * (x[3] - q2 * x[1]);                                                      \
        vec e2 = x[4] - p2 * x[2], o2 = (q) * (x[3] - p2 * x[1]);                                                      \
        y[0] = p2 * q2 * (x[0] - x[2]) + (x[4] - x[2]);                                                                \
        y[5 * t] = p2 * q2 * (x[1] - x[3]) + (x[5] - x[3]);                                                            \
        if ((p) != 1) {                                                                                                \
            y[0] += rest * x[2];                                                                                       \
            y[5 * t] += rest * x[3];                                                                                   \
        }                                                                                                              \
        y[t] = e1 + o1;                                                                                                \
        y[2 * t] = e1 - o1;                                                                                            \
        y[3 * t] = e2 + o2;                                                                                            \
        y[4 * t] = e2 - o2;                                                                                            \
    } while (0)
#define WINDOW_TO_POINTS(y, t, x, in, out, p, q) /* of a window: 2 to 5 to 6 */                                        \
    do {                                                                                                               \
        const float p2 = (p) * (p), q2 = (q) * (q);                                                                    \
        vec e1 = x[0], e2 = x[0], o1 = (p) * x[1], o2 = (q) * x[1];                                                    \
        if (in > 2) {                                                                                                  \
            e1 += p2 * x[2];                                                                                           \
            e2 += q2 * x[2];                                                                                           \
        }                                                                                                              \
        if (in > 3) {                                                                                                  \
            o1 += p2 * (p) * x[3];                                                                                     \
            o2 += q2 * (q) * x[3];                                                                                     \
        }                                                                                                              \
        if (in > 4) {                                                                                                  \
            e1 += p2 * p2 * x[4];                                                                                      \
            e2 += q2 * q2 * x[4];                                                                                      \
        }                                                                                                              \
        y[0] = NORM_0(p, q) * x[0];                                                                                    \
        y[t] = NORM(p, q) * (e1 + o1);                                                                                 \
        y[2 * t] = NORM(p, q) * (e1 - o1);                                                                             \
        y[3 * t] = NORM(q, p) * (e2 + o2);                                                                             \
        y[4 * t] = NORM(q, p) * (e2 - o2);                                                                             \
        y[5 * t] = x[in - 1];                                                                                          \
    } while (0)
#define FROM_POINTS(y, t, x, in, out, p, q) /* 6 to 2 to 5 */                                                          \
    do {                                                                                                               \
        const float p2 = (p) * (p), q2 = (q) * (q);                                                                    \
        vec s1 = x[1] + x[2], d1 = x[1] - x[2], s2 = x[3] + x[4], d2 = x[3] - x[4];                                    \
        y[0] = x[0] + s1 + s2;                                                                                         \
        y[t] = (p) * d1 + (q) * d2;                                                                                    \
        if (out > 2)                                                                                                   \
            y[2 * t] = p2 * s1 + q2 * s2;                                                                              \
        if (out > 3)                                                                                                   \
            y[3 * t] = p2 * (p) * d1 + q2 * (q) * d2;                                                                  \
        if (out > 4)                                                                                                   \
            y[4 * t] = p2 * p2 * s1 + q2 * q2 * s2;                                                                    \
        y[(out - 1) * t] += x[5];                                                                                      \
    } while (0)

/* Both directions over c channels: from x[row, column], `in` of each, to y[row, column], the first rows x columns of `out` of each. */
typedef struct grid {
    float *y;
    const float *x;
    int64_t yr, yc, xr, xc; /* elements from row to row, column to column */
    int64_t rows, cols, c;
} grid;

#define TRANSFORM(...) TRANSFORM_(__VA_ARGS__) /* the points are two */
#define TRANSFORM_(name, ONE, in, out, p, q)                                                                           \
    TRN_SIMD static void name(const grid *g)                                                                           \
    {                                                                                                                  \
        for (int64_t c = 0; c < g->c; c += LANES) {                                                                    \
            vec half[(out) * (in)];                                                                                    \
            UNROLL for (int j = 0; j < (in); j++)                                                                      \
            {                                                                                                          \
                vec x[in], *h = half + j;                                                                              \
                UNROLL for (int i = 0; i < (in); i++) x[i] = *(const vec *)(g->x + i * g->xr + j * g->xc + c);         \
                ONE(h, (in), x, in, out, p, q);                                                                        \
            }                                                                                                          \
            UNROLL for (int i = 0; i < (out); i++)                                                                     \
            {                                                                                                          \
                vec y[out], *h = half + i * (in);                                                                      \
                ONE(y, 1, h, in, out, p, q);                                                                           \
                if (i < g->rows)                                                                                       \
                    UNROLL for (int j = 0; j < (out); j++) if (j < g->cols) *(vec *)(g->y + i * g->yr + j * g->yc + c) = y[j];\
            }                                                                                                          \
        }                                                                                                              \
    }

TRANSFORM(image_in, TO_POINTS, 6, 6, RESULT)
TRANSFORM(image_in_gradient, TO_POINTS, 6, 6, GRADIENT)
TRANSFORM(window_in_3, WINDOW_TO_POINTS, 3, 6, RESULT)
TRANSFORM(window_in_5, WINDOW_TO_POINTS, 5, 6, RESULT)
TRANSFORM(window_in_2, WINDOW_TO_POINTS, 2, 6, GRADIENT)
TRANSFORM(window_in_4, WINDOW_TO_POINTS, 4, 6, GRADIENT)
TRANSFORM(out_2, FROM_POINTS, 6, 2, RESULT)
TRANSFORM(out_4, FROM_POINTS, 6, 4, RESULT)
TRANSFORM(out_3, FROM_POINTS, 6, 3, GRADIENT)
TRANSFORM(out_5, FROM_POINTS, 6, 5, GRADIENT)

typedef void transform_fn(const grid *g);
static transform_fn *const window_in[] = {[2] = window_in_2, [3] = window_in_3, [4] = window_in_4, [5] = window_in_5};
static transform_fn *const points_out[] = {[2] = out_2, [3] = out_3, [4] = out_4, [5] = out_5};

/* ---- the job -------------------------------------------------------------------------------------------------------------------- */

/* Channels-last images of one tensor. */
typedef struct images {
    float *data;
    int64_t h, w, c;
    int64_t pad[2]; /* rows and columns of zeros above and left of it */
} images;

/* Tiles are counted in rows of them, which are whole rows of places: image after image, from top to bottom. */
typedef struct wino {
    int window, step;  /* 3 and 4, or 5 and 2: places per tile */
    images from, to;   /* BWD_FILTER: to is the output's gradient, read too */
    int64_t high, wide, lines, block; /* rows of tiles per image, tiles per row, rows in all, at a time */
    float *u;          /* [36, from.c, to.c]: the window at the points, or per part its gradient */
    float *filter;
    bool turned;       /* BWD_INPUT */
    uint8_t *blank;    /* per place of `from`: all its channels are 0. BWD_FILTER: NULL */
    atomic_bool any_blank;
    int64_t parts;     /* BWD_FILTER */
    void (*then)(void *, int64_t, int64_t);
    void *then_arg;
    _Atomic(trn_err) err;
} wino;

static void failed(wino *w, trn_err e)
{
    trn_err none = NULL;
    if (e && !atomic_compare_exchange_strong(&w->err, &none, e))
        trn_err_free(e);
}

/* n x n places of an image from (y, x) on, to 36 points each `apart` from the next; what lies outside is 0. */
static void tile_in(transform_fn *fn, int n, float *to, int64_t apart, const images *im, int64_t image, int64_t y, int64_t x, float *spare)
{
    const float *at = im->data + image * im->h * im->w * im->c;
    grid g = {.y = to, .yr = POINTS * apart, .yc = apart, .rows = POINTS, .cols = POINTS, .c = im->c};
    if (y >= 0 && x >= 0 && y + n <= im->h && x + n <= im->w) {
        g.x = at + (y * im->w + x) * im->c;
        g.xr = im->w * im->c;
        g.xc = im->c;
    } else {
        int64_t left = TRN_MAX(-x, (int64_t)0), right = TRN_MIN(im->w - x, (int64_t)n);
        memset(spare, 0, sizeof *spare * (size_t)(n * n * im->c));
        for (int i = 0; i < n && left < right; i++)
            if (y + i >= 0 && y + i < im->h)
                memcpy(spare + (i * n + left) * im->c, at + ((y + i) * im->w + x + left) * im->c, sizeof *at * (size_t)((right - left) * im->c));
        g.x = spare;
        g.xr = n * im->c;
        g.xc = im->c;
    }
    fn(&g);
}

/* Rows of tiles lo … hi of both tensors; `v`: [36, tiles, from.c]; `m` likewise with to.c. There may be more tiles than are filled. */
static void lines_in(const wino *w, float *v, int64_t tiles, int64_t lo, int64_t hi, float *spare)
{
    for (int64_t l = lo; l < hi; l++)
        for (int64_t t = 0; t < w->wide; t++)
            tile_in(w->blank ? image_in : image_in_gradient, POINTS, v + ((l - lo) * w->wide + t) * w->from.c, tiles * w->from.c, &w->from, l / w->high,
                    l % w->high * w->step - w->from.pad[0], t * w->step - w->from.pad[1], spare);
}

static void grads_in(const wino *w, float *m, int64_t tiles, int64_t lo, int64_t hi, float *spare)
{
    for (int64_t l = lo; l < hi; l++)
        for (int64_t t = 0; t < w->wide; t++)
            tile_in(window_in[w->step], w->step, m + ((l - lo) * w->wide + t) * w->to.c, tiles * w->to.c, &w->to, l / w->high, l % w->high * w->step,
                    t * w->step, spare);
}

/* Places lo … hi of all images in a row. */
static void find_blank(void *arg, int64_t lo, int64_t hi)
{
    wino *w = arg;
    bool any = false;
    for (int64_t p = lo; p < hi; p++) {
        const float *x = w->from.data + p * w->from.c;
        int64_t c = 0;
        while (c < w->from.c && x[c] == 0)
            c++;
        any |= w->blank[p] = c == w->from.c;
    }
    if (any)
        atomic_store_explicit(&w->any_blank, true, memory_order_relaxed);
}

/* A window that sees only zeros gives 0 by the definition, whatever else its tile has; the points leave a trace of that, and a Relu lets half of the traces pass. */
static void blanks_out(const wino *w, const grid *g, int64_t image, int64_t y, int64_t x)
{
    unsigned seen[POINTS], all = (1U << w->window) - 1;
    for (int i = 0; i < POINTS; i++) {
        int64_t row = y - w->from.pad[0] + i, col = x - w->from.pad[1];
        seen[i] = 0;
        if (row < 0 || row >= w->from.h)
            continue;
        const uint8_t *b = w->blank + (image * w->from.h + row) * w->from.w;
        for (int j = 0; j < POINTS; j++)
            if (col + j >= 0 && col + j < w->from.w && !b[col + j])
                seen[i] |= 1U << j;
    }
    for (int i = 0; i < g->rows; i++)
        for (int j = 0; j < g->cols; j++) {
            unsigned any = 0;
            for (int r = i; r < i + w->window; r++)
                any |= seen[r] >> j & all;
            if (!any)
                memset(g->y + i * g->yr + j * g->yc, 0, sizeof *g->y * (size_t)g->c);
        }
}

static void lines_out(const wino *w, const float *m, int64_t tiles, int64_t lo, int64_t hi)
{
    int64_t c = w->to.c;
    bool blanks = atomic_load_explicit(&w->any_blank, memory_order_relaxed);
    grid g = {.yr = w->to.w * c, .yc = c, .xr = POINTS * tiles * c, .xc = tiles * c, .c = c};
    for (int64_t l = lo; l < hi; l++) {
        int64_t y = l % w->high * w->step;
        g.rows = TRN_MIN((int64_t)w->step, w->to.h - y);
        for (int64_t t = 0; t < w->wide; t++) {
            g.x = m + ((l - lo) * w->wide + t) * c;
            g.y = w->to.data + ((l / w->high * w->to.h + y) * w->to.w + t * w->step) * c;
            g.cols = TRN_MIN((int64_t)w->step, w->to.w - t * w->step);
            points_out[w->step](&g);
            if (blanks)
                blanks_out(w, &g, l / w->high, y, t * w->step);
        }
    }
}

/* How many places lie before this row of tiles. */
static int64_t place_at(const wino *w, int64_t line)
{
    return (line / w->high * w->to.h + TRN_MIN(line % w->high * w->step, w->to.h)) * w->to.w;
}

/* A product's rows in whole tiles of its own: what is computed for the last few is looked at by nobody. */
static int64_t whole_rows(int64_t tiles) { return (tiles + ROWS - 1) / ROWS * ROWS; }

static trn_err block_new(trn_buf **out, const wino *w, float **v, float **m, float **spare)
{
    int64_t tiles = whole_rows(w->block * w->wide), most = TRN_MAX(w->from.c, w->to.c);
    TRN_TRY(trn_buf_new(out, sizeof(float) * (size_t)(TILE * (tiles * (w->from.c + w->to.c) + most))));
    *v = (float *)(void *)(*out)->data;
    *m = *v + TILE * tiles * w->from.c;
    *spare = *m + TILE * tiles * w->to.c;
    return TRN_OK;
}

/* FWD and BWD_INPUT: blocks lo … hi. */
static void blocks_part(void *arg, int64_t lo, int64_t hi)
{
    wino *w = arg;
    trn_buf *buf;
    float *v, *m, *spare;
    trn_err e = block_new(&buf, w, &v, &m, &spare);
    if (e) {
        failed(w, e);
        return;
    }
    int64_t ic = w->from.c, oc = w->to.c;
    for (int64_t b = lo; b < hi; b++) {
        int64_t from = b * w->block, to = TRN_MIN(from + w->block, w->lines), tiles = whole_rows((to - from) * w->wide);
        lines_in(w, v, tiles, from, to, spare);
        for (int p = 0; p < TILE; p++)
            if (!trn_gemm(TRN_FLOAT, &(trn_gemm_args){.m = tiles, .n = oc, .k = ic, .a = v + p * tiles * ic, .ars = ic, .acs = 1, .b = w->u + p * ic * oc,
                                                      .brs = oc, .bcs = 1, .c = m + p * tiles * oc, .ldc = oc})) {
                failed(w, trn_err_oom());
                break;
            }
        lines_out(w, m, tiles, from, to);
        if (w->then)
            w->then(w->then_arg, place_at(w, from), place_at(w, to));
    }
    trn_buf_unref(buf);
}

/* BWD_FILTER: parts lo … hi, each a sum over its own rows of tiles. */
static void sums_part(void *arg, int64_t lo, int64_t hi)
{
    wino *w = arg;
    trn_buf *buf;
    float *v, *m, *spare;
    trn_err e = block_new(&buf, w, &v, &m, &spare);
    if (e) {
        failed(w, e);
        return;
    }
    int64_t ic = w->from.c, oc = w->to.c;
    for (int64_t part = lo; part < hi; part++) {
        int64_t begin = w->lines * part / w->parts, end = w->lines * (part + 1) / w->parts;
        float *u = w->u + part * TILE * ic * oc;
        for (int64_t from = begin; from < end; from += w->block) {
            int64_t to = TRN_MIN(from + w->block, end), tiles = (to - from) * w->wide;
            lines_in(w, v, tiles, from, to, spare);
            grads_in(w, m, tiles, from, to, spare);
            for (int p = 0; p < TILE; p++)
                if (!trn_gemm(TRN_FLOAT, &(trn_gemm_args){.m = ic, .n = oc, .k = tiles, .a = v + p * tiles * ic, .ars = 1, .acs = ic, .b = m + p * tiles * oc,
                                                          .brs = oc, .bcs = 1, .c = u + p * ic * oc, .ldc = oc, .add = from > begin})) {
                    failed(w, trn_err_oom());
                    break;
                }
        }
    }
    trn_buf_unref(buf);
}

/* Channels lo … hi, sixteen each, of all pairs of them: the window to the points, … */
static void filter_in(void *arg, int64_t lo, int64_t hi)
{
    const wino *w = arg;
    int64_t all = w->from.c * w->to.c, last = w->turned ? w->window * w->window - 1 : 0, sign = w->turned ? -1 : 1;
    window_in[w->window](&(grid){.y = w->u + lo * LANES, .yr = POINTS * all, .yc = all, .rows = POINTS, .cols = POINTS, .x = w->filter + last * all + lo * LANES,
                                 .xr = sign * w->window * all, .xc = sign * all, .c = (hi - lo) * LANES});
}

/* … and back, the sum of all parts. */
static void filter_out(void *arg, int64_t lo, int64_t hi)
{
    const wino *w = arg;
    int64_t all = w->from.c * w->to.c, n = (hi - lo) * LANES;
    for (int64_t part = 1; part < w->parts; part++)
        for (int p = 0; p < TILE; p++)
            trn_accum(TRN_ACC_ADD, TRN_FLOAT, w->u + p * all + lo * LANES, w->u + (part * TILE + p) * all + lo * LANES, n);
    points_out[w->window](&(grid){.y = w->filter + lo * LANES, .yr = w->window * all, .yc = all, .rows = w->window, .cols = w->window, .x = w->u + lo * LANES,
                                  .xr = POINTS * all, .xc = all, .c = n});
}

/* BWD_INPUT: the window's places lo … hi, from [ic, oc] to [oc, ic]. */
typedef struct turn_job {
    float *to;
    const float *from;
    int64_t rows, cols; /* of `from` */
} turn_job;

static void turn_places(void *arg, int64_t lo, int64_t hi)
{
    const turn_job *t = arg;
    for (int64_t p = lo; p < hi; p++) {
        float *to = t->to + p * t->rows * t->cols;
        const float *from = t->from + p * t->rows * t->cols;
        for (int64_t rb = 0; rb < t->rows; rb += LANES)
            for (int64_t cb = 0; cb < t->cols; cb += LANES)
                for (int64_t c = cb; c < cb + LANES; c++)
                    for (int64_t r = rb; r < rb + LANES; r++)
                        to[c * t->rows + r] = from[r * t->cols + c];
    }
}

/* TRAINERA_WINOGRAD in the environment: 0, or all. */
static bool allowed(trn_conv_kind kind, double flops)
{
    enum { UNKNOWN, NONE, LARGE, ALL };
    static _Atomic int known;
    int v = atomic_load_explicit(&known, memory_order_relaxed);
    if (v == UNKNOWN) {
        const char *s = getenv("TRAINERA_WINOGRAD");
        v = s && !strcmp(s, "0") ? NONE : s && !strcmp(s, "all") ? ALL : LARGE;
        atomic_store_explicit(&known, v, memory_order_relaxed);
    }
    return v == ALL || (v == LARGE && (kind == TRN_CONV_BWD_INPUT || flops >= LARGE_FLOPS));
}

bool trn_winograd_fits(trn_conv_kind kind, const trn_conv_geom *g)
{
    int64_t r = g->ker[1];
    if (g->in[0] != 1 || g->ker[0] != 1 || g->out[0] != 1 || g->pad[0] || g->groups != 1 || (r != 3 && r != 5) || g->ker[2] != r || g->ic % LANES ||
        g->oc % LANES || g->ic < 2 * LANES || g->oc < 2 * LANES)
        return false;
    for (int i = 1; i < 3; i++)
        if (g->stride[i] != 1 || g->dil[i] != 1 || g->pad[i] >= r || g->pad[i] < 0 || g->pad_after[i] >= r || g->pad_after[i] < 0)
            return false;
    /* Tiles that stick out of small images, and the transforms, may cost more than is saved. */
    int64_t step = POINTS + 1 - r;
    const int64_t *to = kind == TRN_CONV_BWD_INPUT ? g->in : g->out;
    double tiles = (double)((to[1] + step - 1) / step) * (double)((to[2] + step - 1) / step), places = (double)to[1] * (double)to[2];
    double line = (double)((to[2] + step - 1) / step) * (double)(g->ic + g->oc) * TILE * sizeof(float); /* worked on at once, at the least */
    double flops = 2.0 * (double)g->n * (double)g->out[1] * (double)g->out[2] * (double)(r * r) * (double)g->ic * (double)g->oc;
    return allowed(kind, flops) && tiles * TILE < 0.6 * places * (double)(r * r) && (double)g->n * tiles >= 64 && line < LINE_BYTES;
}

/* Rows of tiles for a block of about so many tiles, such that a product's last rows are not too few. */
static int64_t block_of(int64_t wide, int64_t tiles)
{
    int64_t best = TRN_MAX(tiles / wide, (int64_t)1);
    double least = 1e9;
    for (int64_t n = TRN_MAX(best * 2 / 3, (int64_t)1); n <= best * 3 / 2 + 1; n++) {
        double waste = (double)whole_rows(n * wide) / (double)(n * wide);
        if (waste < least - 0.01) {
            least = waste;
            best = n;
        }
    }
    return best;
}

trn_err trn_winograd(trn_kctx *k, trn_conv_kind kind, const trn_conv_geom *g, float *input, float *filter, float *output,
                     void (*then)(void *, int64_t, int64_t), void *then_arg)
{
    int r = (int)g->ker[1];
    wino w = {.window = r, .step = POINTS + 1 - r, .filter = filter, .turned = kind == TRN_CONV_BWD_INPUT, .then = then, .then_arg = then_arg};
    images in = {.data = input, .h = g->in[1], .w = g->in[2], .c = g->ic, .pad = {g->pad[1], g->pad[2]}};
    images out = {.data = output, .h = g->out[1], .w = g->out[2], .c = g->oc, .pad = {r - 1 - g->pad[1], r - 1 - g->pad[2]}};
    w.from = w.turned ? out : in;
    w.to = w.turned ? in : out;
    w.high = (w.to.h + w.step - 1) / w.step;
    w.wide = (w.to.w + w.step - 1) / w.step;
    w.lines = g->n * w.high;
    /* So many tiles that they stay in a core's cache, but enough for a product's sake. */
    int64_t tiles = TRN_MAX(BLOCK_BYTES / (int64_t)(sizeof(float) * TILE) / (g->ic + g->oc), (int64_t)4 * ROWS);
    w.block = block_of(w.wide, tiles);
    int threads = trn_k_threads(k);
    int64_t all = g->ic * g->oc;
    bool sums = kind == TRN_CONV_BWD_FILTER;
    if (!sums) /* at least as many blocks as threads */
        w.block = TRN_MIN(w.block, (w.lines + threads - 1) / threads);
    /* Sums: several for each thread, which may have started something else, as long as they are small. */
    int64_t parts = TRN_MAX(TRN_MIN(SUMS_BYTES / (int64_t)(sizeof(float) * TILE) / all, (int64_t)4 * threads), (int64_t)threads);
    w.parts = sums ? TRN_MIN(threads > 1 ? parts : 1, (w.lines + w.block - 1) / w.block) : 1;
    int64_t points = w.parts * TILE * all, turned = w.turned ? r * r * all : 0, places = sums ? 0 : g->n * w.from.h * w.from.w;
    trn_buf *buf;
    TRN_TRY(trn_buf_new(&buf, sizeof(float) * (size_t)(points + turned) + (size_t)places));
    w.u = (float *)(void *)buf->data;
    enum { PAIRS = 64, PLACES = 8192 }; /* of channels, sixteen at a time; of images: what is worth a thread */
    if (sums) {
        trn_k_for(k, w.parts, 1, sums_part, &w);
        trn_k_for(k, all / LANES, PAIRS, filter_out, &w);
    } else {
        if (turned) {
            w.filter = w.u + points;
            trn_k_for(k, r * r, 4, turn_places, &(turn_job){.to = w.filter, .from = filter, .rows = g->ic, .cols = g->oc});
        }
        w.blank = (uint8_t *)(w.u + points + turned);
        trn_k_for(k, places, PLACES, find_blank, &w);
        trn_k_for(k, all / LANES, PAIRS, filter_in, &w);
        trn_k_for(k, (w.lines + w.block - 1) / w.block, 1, blocks_part, &w);
    }
    trn_buf_unref(buf);
    return atomic_load(&w.err);
}
