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

#define PA 0.625f
#define PB 1.5f
#define PA2 (PA * PA)
#define PB2 (PB * PB)
#define SUM2 (PA2 + PB2)
#define PRODUCT2 (PA2 * PB2)
#define NORM_0 (1 / PRODUCT2) /* over the products of a point's distances from the others */
#define NORM_A (1 / (2 * PA2 * (PA2 - PB2)))
#define NORM_B (1 / (2 * PB2 * (PB2 - PA2)))

/* ---- transforms ----------------------------------------------------------------------------------------------------------------- */

#if TRN_ASAN || TRN_TSAN || defined(__clang__)
#define UNROLL /* as in gemm.c; clang does so by itself */
#else
#define UNROLL _Pragma("GCC unroll 6")
#endif

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* One direction, in registers: x[0], x[s], x[2s]… to y[0], y[t]…; `in` and `out` say how many there are. */
#define TO_POINTS(y, t, x, s, in, out) /* of an image: 6 to 6 */                                                       \
    do {                                                                                                               \
        vec e1 = x[4 * s] - PB2 * x[2 * s], o1 = PA * (x[3 * s] - PB2 * x[s]);                                         \
        vec e2 = x[4 * s] - PA2 * x[2 * s], o2 = PB * (x[3 * s] - PA2 * x[s]);                                         \
        y[0] = PRODUCT2 * x[0] + (x[4 * s] - SUM2 * x[2 * s]);                                                         \
        y[5 * t] = PRODUCT2 * x[s] + (x[5 * s] - SUM2 * x[3 * s]);                                                     \
        y[t] = e1 + o1;                                                                                                \
        y[2 * t] = e1 - o1;                                                                                            \
        y[3 * t] = e2 + o2;                                                                                            \
        y[4 * t] = e2 - o2;                                                                                            \
    } while (0)
#define WINDOW_TO_POINTS(y, t, x, s, in, out) /* of a window: 2 to 5 to 6 */                                           \
    do {                                                                                                               \
        vec e1 = x[0], e2 = x[0], o1 = PA * x[s], o2 = PB * x[s];                                                      \
        if (in > 2) {                                                                                                  \
            e1 += PA2 * x[2 * s];                                                                                      \
            e2 += PB2 * x[2 * s];                                                                                      \
        }                                                                                                              \
        if (in > 3) {                                                                                                  \
            o1 += PA2 * PA * x[3 * s];                                                                                 \
            o2 += PB2 * PB * x[3 * s];                                                                                 \
        }                                                                                                              \
        if (in > 4) {                                                                                                  \
            e1 += PA2 * PA2 * x[4 * s];                                                                                \
            e2 += PB2 * PB2 * x[4 * s];                                                                                \
        }                                                                                                              \
        y[0] = NORM_0 * x[0];                                                                                          \
        y[t] = NORM_A * (e1 + o1);                                                                                     \
        y[2 * t] = NORM_A * (e1 - o1);                                                                                 \
        y[3 * t] = NORM_B * (e2 + o2);                                                                                 \
        y[4 * t] = NORM_B * (e2 - o2);                                                                                 \
        y[5 * t] = x[(in - 1) * s];                                                                                    \
    } while (0)
#define FROM_POINTS(y, t, x, s, in, out) /* 6 to 2 to 5 */                                                             \
    do {                                                                                                               \
        vec s1 = x[s] + x[2 * s], d1 = x[s] - x[2 * s], s2 = x[3 * s] + x[4 * s], d2 = x[3 * s] - x[4 * s];            \
        y[0] = x[0] + s1 + s2;                                                                                         \
        y[t] = PA * d1 + PB * d2;                                                                                      \
        if (out > 2)                                                                                                   \
            y[2 * t] = PA2 * s1 + PB2 * s2;                                                                            \
        if (out > 3)                                                                                                   \
            y[3 * t] = PA2 * PA * d1 + PB2 * PB * d2;                                                                  \
        if (out > 4)                                                                                                   \
            y[4 * t] = PA2 * PA2 * s1 + PB2 * PB2 * s2;                                                                \
        y[(out - 1) * t] += x[5 * s];                                                                                  \
    } while (0)

/* Both directions over c channels: from x[row, column], `in` of each, to y[row, column], the first rows x columns of `out` of each. */
typedef struct grid {
    float *y;
    const float *x;
    int64_t yr, yc, xr, xc; /* elements from row to row, column to column */
    int64_t rows, cols, c;
} grid;

#define TRANSFORM(name, ONE, in, out)                                                                                  \
    TRN_SIMD static void name(const grid *g)                                                                           \
    {                                                                                                                  \
        for (int64_t c = 0; c < g->c; c += LANES) {                                                                    \
            vec half[(out) * (in)];                                                                                    \
            UNROLL for (int j = 0; j < (in); j++)                                                                      \
            {                                                                                                          \
                vec x[in], *h = half + j;                                                                              \
                UNROLL for (int i = 0; i < (in); i++) x[i] = *(const vec *)(g->x + i * g->xr + j * g->xc + c);         \
                ONE(h, (in), x, 1, in, out);                                                                           \
            }                                                                                                          \
            UNROLL for (int i = 0; i < (out); i++)                                                                     \
            {                                                                                                          \
                vec y[out], *h = half + i * (in);                                                                      \
                ONE(y, 1, h, 1, in, out);                                                                              \
                if (i < g->rows)                                                                                       \
                    UNROLL for (int j = 0; j < (out); j++) if (j < g->cols) *(vec *)(g->y + i * g->yr + j * g->yc + c) = y[j];\
            }                                                                                                          \
        }                                                                                                              \
    }

TRANSFORM(image_in, TO_POINTS, 6, 6)
TRANSFORM(window_in_2, WINDOW_TO_POINTS, 2, 6)
TRANSFORM(window_in_3, WINDOW_TO_POINTS, 3, 6)
TRANSFORM(window_in_4, WINDOW_TO_POINTS, 4, 6)
TRANSFORM(window_in_5, WINDOW_TO_POINTS, 5, 6)
TRANSFORM(out_2, FROM_POINTS, 6, 2)
TRANSFORM(out_3, FROM_POINTS, 6, 3)
TRANSFORM(out_4, FROM_POINTS, 6, 4)
TRANSFORM(out_5, FROM_POINTS, 6, 5)

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
            tile_in(image_in, POINTS, v + ((l - lo) * w->wide + t) * w->from.c, tiles * w->from.c, &w->from, l / w->high,
                    l % w->high * w->step - w->from.pad[0], t * w->step - w->from.pad[1], spare);
}

static void grads_in(const wino *w, float *m, int64_t tiles, int64_t lo, int64_t hi, float *spare)
{
    for (int64_t l = lo; l < hi; l++)
        for (int64_t t = 0; t < w->wide; t++)
            tile_in(window_in[w->step], w->step, m + ((l - lo) * w->wide + t) * w->to.c, tiles * w->to.c, &w->to, l / w->high, l % w->high * w->step,
                    t * w->step, spare);
}

static void lines_out(const wino *w, const float *m, int64_t tiles, int64_t lo, int64_t hi)
{
    int64_t c = w->to.c;
    grid g = {.yr = w->to.w * c, .yc = c, .xr = POINTS * tiles * c, .xc = tiles * c, .c = c};
    for (int64_t l = lo; l < hi; l++) {
        int64_t y = l % w->high * w->step;
        g.rows = TRN_MIN((int64_t)w->step, w->to.h - y);
        for (int64_t t = 0; t < w->wide; t++) {
            g.x = m + ((l - lo) * w->wide + t) * c;
            g.y = w->to.data + ((l / w->high * w->to.h + y) * w->to.w + t * w->step) * c;
            g.cols = TRN_MIN((int64_t)w->step, w->to.w - t * w->step);
            points_out[w->step](&g);
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

/* TRAINERA_WINOGRAD in the environment: 0, or all; gradients of inputs only otherwise. */
static bool allowed(trn_conv_kind kind)
{
    enum { UNKNOWN, NONE, INPUTS, ALL };
    static _Atomic int known;
    int v = atomic_load_explicit(&known, memory_order_relaxed);
    if (v == UNKNOWN) {
        const char *s = getenv("TRAINERA_WINOGRAD");
        v = s && !strcmp(s, "0") ? NONE : s && !strcmp(s, "all") ? ALL : INPUTS;
        atomic_store_explicit(&known, v, memory_order_relaxed);
    }
    return v == ALL || (v == INPUTS && kind == TRN_CONV_BWD_INPUT);
}

bool trn_winograd_fits(trn_conv_kind kind, const trn_conv_geom *g)
{
    int64_t r = g->ker[1];
    if (!allowed(kind) || g->in[0] != 1 || g->ker[0] != 1 || g->out[0] != 1 || g->pad[0] || g->groups != 1 || (r != 3 && r != 5) || g->ker[2] != r || g->ic % LANES ||
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
    return tiles * TILE < 0.6 * places * (double)(r * r) && (double)g->n * tiles >= 64 && line < LINE_BYTES;
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
    trn_buf *u, *turned = NULL;
    TRN_TRY(trn_buf_new(&u, sizeof(float) * (size_t)(w.parts * TILE * all)));
    w.u = (float *)(void *)u->data;
    if (w.turned) {
        trn_err e = trn_buf_new(&turned, sizeof(float) * (size_t)(r * r * all));
        if (e) {
            trn_buf_unref(u);
            return e;
        }
    }
    enum { PAIRS = 64 }; /* of channels, sixteen at a time: what is worth a thread */
    if (sums) {
        trn_k_for(k, w.parts, 1, sums_part, &w);
        trn_k_for(k, all / LANES, PAIRS, filter_out, &w);
    } else {
        if (turned) {
            w.filter = (float *)(void *)turned->data;
            trn_k_for(k, r * r, 4, turn_places, &(turn_job){.to = w.filter, .from = filter, .rows = g->ic, .cols = g->oc});
        }
        trn_k_for(k, all / LANES, PAIRS, filter_in, &w);
        trn_k_for(k, (w.lines + w.block - 1) / w.block, 1, blocks_part, &w);
    }
    trn_buf_unref(u);
    trn_buf_unref(turned);
    return atomic_load(&w.err);
}
