/* Boxes in images: sampled at random (the same seeds give TensorFlow's), drawn, and thinned out where they overlap (non-maximum suppression). A box is
 * [y, x, y, x] of two corners. */
#include <float.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "op/cancel.h"
#include "ops/image.h"
#include "ops/random.h"

/* ---- sampling ------------------------------------------------------------------------------------------------------------------- */

typedef struct rect {
    int32_t x0, y0, x1, y1;
} rect;

/* Sizes are 32 bits wide and wrap around, as TensorFlow's do. */
static int32_t wrap_mul(int32_t a, int32_t b) { return (int32_t)((uint32_t)a * (uint32_t)b); }
static float area_of(const rect *r) { return (float)wrap_mul((int32_t)((uint32_t)r->x1 - (uint32_t)r->x0), (int32_t)((uint32_t)r->y1 - (uint32_t)r->y0)); }
static int32_t nearest_int(float v) { return (int32_t)lrintf(v); }

/* One try: part of a w x h image, of an area between two parts of its area. False: no such part has these sides. */
static bool random_part(rect *out, int32_t w, int32_t h, float least, float most, float aspect, trn_philox1 *gen)
{
    if (most <= 0 || aspect <= 0 || w <= 0 || h <= 0 || least > most)
        return false;
    float lo = least * (float)w * (float)h, hi = most * (float)w * (float)h;
    int32_t height = nearest_int(sqrtf(lo / aspect)), top = nearest_int(sqrtf(hi / aspect));
    if (lrintf((float)top * aspect) > w) {
        top = trn_i32_of(((double)w + 0.5 - (double)0.0000001f) / (double)aspect);
        if (lrintf((float)top * aspect) > w)
            top = (int32_t)((uint32_t)top - 1);
    }
    top = top > h ? h : top;
    height = height >= top ? top : height;
    if (height < top)
        height = (int32_t)((uint32_t)height + trn_philox1_below(gen, (uint32_t)top - (uint32_t)height + 1));
    int32_t width = nearest_int((float)height * aspect);
    float area = (float)wrap_mul(width, height);
    if (area < lo) { /* by rounding: one row more */
        height = (int32_t)((uint32_t)height + 1);
        width = nearest_int((float)height * aspect);
        area = (float)wrap_mul(width, height);
    }
    if (area > hi) {
        height = (int32_t)((uint32_t)height - 1);
        width = nearest_int((float)height * aspect);
        area = (float)wrap_mul(width, height);
    }
    if (area < lo || area > hi || width > w || height > h || width <= 0 || height <= 0)
        return false;
    int32_t y = height < h ? (int32_t)trn_philox1_below(gen, (uint32_t)(h - height)) : 0, x = width < w ? (int32_t)trn_philox1_below(gen, (uint32_t)(w - width)) : 0;
    *out = (rect){x, y, x + width, y + height};
    return true;
}

/* Some box of n (none: the whole image) lies in the part to a share of at least `least`. */
static bool covers(const rect *part, float least, const float *box, int64_t n, int32_t w, int32_t h)
{
    if (area_of(part) < 1)
        return false;
    static const float image[4] = {0, 0, 1, 1};
    const float *b = n ? box : image;
    float fw = (float)w, fh = (float)h;
    for (int64_t i = 0; i < TRN_MAX(n, (int64_t)1); i++, b += 4) {
        rect r = {trn_i32_of((double)(b[1] * fw)), trn_i32_of((double)(b[0] * fh)), n ? trn_i32_of((double)(b[3] * fw)) : w,
                  n ? trn_i32_of((double)(b[2] * fh)) : h};
        float area = area_of(&r);
        if (area < 1)
            continue;
        rect both = {TRN_MAX(part->x0, r.x0), TRN_MAX(part->y0, r.y0), TRN_MIN(part->x1, r.x1), TRN_MIN(part->y1, r.y1)};
        float share = both.x0 > both.x1 || both.y0 > both.y1 ? 0 : area_of(&both) / area;
        if (share >= least)
            return true;
    }
    return false;
}

static trn_err range_of(float v[2], const trn_node *n, const char *name, const char *title)
{
    const trn_attr *a = trn_node_attr(n, name);
    TRN_CHECK_ARG(a && a->is_list && a->n == 2, "%s field must specify 2 dimensions", title);
    v[0] = a->list[0].f;
    v[1] = a->list[1].f;
    TRN_CHECK_ARG(v[0] > 0 && v[1] > 0, "%s must be non-negative: [%g, %g]", title, (double)v[0], (double)v[1]);
    return TRN_OK;
}

static void small_int(trn_tensor *t, int i, int64_t v)
{
    if (t->dtype == TRN_UINT8 || t->dtype == TRN_INT8)
        TRN_DATA_MUT(t, uint8_t)[i] = (uint8_t)v;
    else
        trn_int_put(t, i, v);
}

static trn_err k_sample_box(trn_kctx *k)
{
    const trn_tensor *size = trn_in(k, 0), *box = trn_in(k, 1);
    char t[TRN_SHAPE_TEXT];
    float aspect[2], area[2], least;
    TRN_TRY(range_of(aspect, k->node, "aspect_ratio_range", "Aspect ratio range"));
    TRN_TRY(range_of(area, k->node, "area_range", "Area range"));
    TRN_CHECK_ARG(area[0] <= 1 && area[1] <= 1, "Area range must be less then or equal to 1.0: [%g, %g]", (double)area[0], (double)area[1]);
    int64_t tries = trn_attr_int(k->node, "max_attempts");
    TRN_CHECK_ARG(tries > 0 && tries <= INT32_MAX, "Max attempts must be positive and fit in 32 bits: %lld", (long long)tries);
    if (k->n_in > 2) {
        TRN_CHECK_ARG(trn_is_scalar(trn_in(k, 2)), "min_object_covered must be 0-D, got shape %s", trn_shape_text(t, &trn_in(k, 2)->shape));
        least = *TRN_DATA(trn_in(k, 2), float);
    } else {
        least = trn_attr_float(k->node, "min_object_covered");
    }
    TRN_CHECK_ARG(least >= 0, "Min object covered must be non-negative: %g", (double)least);
    TRN_CHECK_ARG(trn_is_vector(size) && size->count == 3, "image_size must be 1-dimensional and must contain 3 elements, not %s", trn_shape_text(t, &size->shape));
    int64_t h = trn_int_at(size, 0), w = trn_int_at(size, 1);
    TRN_CHECK_ARG(h >= 0 && h < INT32_MAX, "image height cannot be >= int32 max: %lld", (long long)h);
    TRN_CHECK_ARG(w >= 0 && w < INT32_MAX, "image width cannot be >= int32 max: %lld", (long long)w);
    TRN_CHECK_ARG(box->shape.rank == 3 && box->shape.dim[2] == 4,
                  "input boxes must be 3-dimensional [batch, num_boxes, coords], with 4 coords, got %s", trn_shape_text(t, &box->shape));
    for (int64_t i = 0; i < box->count; i++)
        TRN_CHECK_ARG(TRN_DATA(box, float)[i] >= 0 && TRN_DATA(box, float)[i] <= 1, "All bounding box coordinates must be in [0.0, 1.0]: %g",
                      (double)TRN_DATA(box, float)[i]);
    TRN_CHECK_ARG(box->count || trn_attr_bool(k->node, "use_image_if_no_bounding_boxes"),
                  "No bounding boxes provided as input. One must enable use_image_if_no_bounding_boxes if you wish to not provide any bounding boxes.");
    trn_philox start;
    if (k->n_in > 3)
        TRN_TRY(trn_random_seeded(&start, trn_in(k, 3)));
    else
        start = trn_random_reserve(k, (uint64_t)tries); /* 4 samples a try */
    trn_philox1 gen = trn_philox1_of(start);
    rect part = {0, 0, (int32_t)w, (int32_t)h};
    for (int64_t i = 0; i < tries; i++) {
        rect r;
        float sides = trn_philox_f32(trn_philox1_next(&gen)) * (aspect[1] - aspect[0]) + aspect[0];
        if (random_part(&r, (int32_t)w, (int32_t)h, area[0], area[1], sides, &gen) && covers(&r, least, box->data, box->count / 4, (int32_t)w, (int32_t)h)) {
            part = r;
            break;
        }
        if (i % 4096 == 4095 && trn_k_cancel(k) && trn_cancelled(trn_k_cancel(k)))
            return trn_cancel_why(trn_k_cancel(k));
    }
    trn_shape three = trn_shape_vector(3), one = trn_shape_of(3, (int64_t)1, (int64_t)1, (int64_t)4);
    trn_tensor *begin, *len, *y;
    TRN_TRY(trn_out_new(&begin, k, 0, size->dtype, &three));
    TRN_TRY(trn_out_new(&len, k, 1, size->dtype, &three));
    TRN_TRY(trn_out_new(&y, k, 2, TRN_FLOAT, &one));
    int64_t at[3] = {part.y0, part.x0, 0}, is[3] = {part.y1 - part.y0, part.x1 - part.x0, -1}; /* -1: all channels */
    for (int i = 0; i < 3; i++) {
        small_int(begin, i, at[i]);
        small_int(len, i, is[i]);
    }
    float *v = y->data;
    v[0] = (float)part.y0 / (float)h;
    v[1] = (float)part.x0 / (float)w;
    v[2] = (float)part.y1 / (float)h;
    v[3] = (float)part.x1 / (float)w;
    return TRN_OK;
}

/* ---- drawing -------------------------------------------------------------------------------------------------------------------- */

static const float colours[10][4] = {{1, 1, 0, 1},       {0, 0, 1, 1},     {1, 0, 0, 1},     {0, 1, 0, 1}, {0.5f, 0, 0.5f, 1},
                                     {0.5f, 0.5f, 0, 1}, {0.5f, 0, 0, 1}, {0, 0, 0.5f, 1}, {0, 1, 1, 1}, {1, 0, 1, 1}};

/* n pixels of one colour, `step` pixels apart. */
static void draw_line(trn_tensor *y, int64_t at, int64_t n, int64_t step, int64_t c, const float *colour)
{
    for (int64_t i = 0; i < n; i++, at += step)
        if (y->dtype == TRN_FLOAT)
            memcpy(TRN_DATA_MUT(y, float) + at * c, colour, sizeof(float) * (size_t)c);
        else
            trn_narrow(TRN_DATA_MUT(y, trn_half) + at * c, colour, TRN_HALF, c);
}

static trn_err k_draw_boxes(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *box = trn_in(k, 1), *colour = k->n_in > 2 ? trn_in(k, 2) : NULL;
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(x->shape.rank == 4, "The rank of the images should be 4: %s", trn_shape_text(t, &x->shape));
    TRN_CHECK_ARG(box->shape.rank == 3, "The rank of the boxes tensor should be 3: %s", trn_shape_text(t, &box->shape));
    int64_t n = x->shape.dim[0], h = x->shape.dim[1], w = x->shape.dim[2], c = x->shape.dim[3], boxes = box->shape.dim[1], n_colours = 10;
    TRN_CHECK_ARG(n == box->shape.dim[0], "The batch sizes should be the same: %lld, %lld", (long long)n, (long long)box->shape.dim[0]);
    TRN_CHECK_ARG(c == 1 || c == 3 || c == 4, "Channel depth should be either 1 (GRY), 3 (RGB), or 4 (RGBA), not %lld", (long long)c);
    TRN_CHECK_ARG(box->shape.dim[2] == 4, "The size of the third dimension of the box must be 4. Received: %lld", (long long)box->shape.dim[2]);
    if (colour) {
        TRN_CHECK_ARG(colour->shape.rank == 2, "colors must be a 2-D matrix: %s", trn_shape_text(t, &colour->shape));
        TRN_CHECK_ARG(colour->shape.dim[1] >= c, "colors must have equal or more channels than the image provided: %s", trn_shape_text(t, &colour->shape));
        n_colours = colour->count ? colour->shape.dim[0] : 10;
    }
    bool own = colour && colour->count;
    trn_tensor *y;
    TRN_TRY(trn_out_like(&y, k, 0, 0));
    if (y->data != x->data)
        TRN_TRY(trn_tensor_copy_elems(y, 0, x, 0, x->count));
    static const float white[4] = {1, 1, 1, 1};
    for (int64_t i = 0; i < n * boxes; i++) {
        const float *b = TRN_DATA(box, float) + 4 * i;
        const float *by = own ? TRN_DATA(colour, float) + i % boxes % n_colours * colour->shape.dim[1] : c == 1 ? white : colours[i % boxes % 10];
        float fh = (float)(h - 1), fw = (float)(w - 1);
        int64_t top = trn_i64_of(b[0] * fh), bottom = trn_i64_of(b[2] * fh), left = trn_i64_of(b[1] * fw), right = trn_i64_of(b[3] * fw), at = i / boxes * h * w;
        if (top > bottom || left > right || top >= h || bottom < 0 || left >= w || right < 0)
            continue; /* turned around, or outside */
        int64_t r0 = TRN_MAX(top, (int64_t)0), r1 = TRN_MIN(bottom, h - 1), i0 = TRN_MAX(left, (int64_t)0), i1 = TRN_MIN(right, w - 1);
        TRN_CHECK_ARG(r1 >= 0 && i1 >= 0, "a box in an image without pixels");
        if (top >= 0)
            draw_line(y, at + top * w + i0, i1 - i0 + 1, 1, c, by);
        if (bottom < h)
            draw_line(y, at + bottom * w + i0, i1 - i0 + 1, 1, c, by);
        if (left >= 0)
            draw_line(y, at + r0 * w + left, r1 - r0 + 1, w, c, by);
        if (right < w)
            draw_line(y, at + r0 * w + right, r1 - r0 + 1, w, c, by);
    }
    return TRN_OK;
}

/* ---- suppression ---------------------------------------------------------------------------------------------------------------- */

typedef struct cand {
    float score;
    int32_t box;
    int32_t seen; /* of the selected boxes, so many have had their say */
} cand;

/* A heap with the best on top, in the order of libstdc++'s: where boxes have one score and nothing else decides, that is which of them comes first. */
typedef struct heap {
    cand *v;
    int64_t n;
    bool by_index; /* of one score: the first one */
} heap;

static bool worse(const heap *h, const cand *a, const cand *b) { return a->score < b->score || (h->by_index && a->score == b->score && a->box > b->box); }
static void heap_up(heap *h, int64_t at, cand c)
{
    for (int64_t up = (at - 1) / 2; at > 0 && worse(h, &h->v[up], &c); up = (at - 1) / 2) {
        h->v[at] = h->v[up];
        at = up;
    }
    h->v[at] = c;
}
static void heap_push(heap *h, cand c) { heap_up(h, h->n++, c); }
static cand heap_pop(heap *h)
{
    cand top = h->v[0], last = h->v[--h->n];
    int64_t at = 0;
    if (!h->n)
        return top;
    for (int64_t down; (down = 2 * at + 1) < h->n; at = down) {
        if (down + 1 < h->n && !worse(h, &h->v[down + 1], &h->v[down]))
            down++;
        h->v[at] = h->v[down];
    }
    heap_up(h, at, last);
    return top;
}

/* A box with its sides in order. */
typedef struct side {
    float y0, x0, y1, x1, area;
} side;
static side side_of(const float *b)
{
    side s = {b[2] < b[0] ? b[2] : b[0], b[3] < b[1] ? b[3] : b[1], b[0] < b[2] ? b[2] : b[0], b[1] < b[3] ? b[3] : b[1], 0};
    s.area = (s.y1 - s.y0) * (s.x1 - s.x0);
    return s;
}
/* What two boxes share, of all that they cover. */
static float overlap(const side *a, const side *b)
{
    if (a->area <= 0 || b->area <= 0)
        return 0;
    float y0 = a->y0 < b->y0 ? b->y0 : a->y0, x0 = a->x0 < b->x0 ? b->x0 : a->x0, y1 = b->y1 < a->y1 ? b->y1 : a->y1, x1 = b->x1 < a->x1 ? b->x1 : a->x1;
    float h = y1 - y0, w = x1 - x0, both = (h < 0 ? 0 : h) * (w < 0 ? 0 : w);
    return both / (a->area + b->area - both);
}

typedef struct nms {
    bool half; /* numbers are rounded to halves on the way */
    int64_t n, most;
    float most_overlap, least_score, sigma;
    side *sides;
    const float *given; /* overlaps [n, n] instead of boxes */
    heap heap;
    int32_t *chosen;
    float *scores;
    int64_t n_chosen;
} nms;

static float rounded(const nms *s, float v) { return s->half ? trn_half_to_f32(trn_half_from_f32(v)) : v; }

static void nms_choose(nms *s)
{
    bool soft = s->sigma > 0;
    float scale = soft ? rounded(s, -0.5f / s->sigma) : 0;
    while (s->n_chosen < s->most && s->heap.n) {
        cand c = heap_pop(&s->heap);
        float before = c.score;
        bool gone = false;
        for (int64_t j = s->n_chosen - 1; j >= c.seen; j--) {
            int64_t other = s->chosen[j];
            float like = rounded(s, s->given ? s->given[c.box * s->n + other] : overlap(&s->sides[c.box], &s->sides[other]));
            float keep = rounded(s, expf(rounded(s, rounded(s, scale * like) * like)));
            c.score = rounded(s, c.score * (soft || like <= s->most_overlap ? keep : 0));
            gone = !soft && like > s->most_overlap;
            if (gone || c.score <= s->least_score)
                break;
        }
        c.seen = (int32_t)s->n_chosen;
        if (gone)
            continue;
        if (c.score == before) {
            s->chosen[s->n_chosen] = c.box;
            s->scores[s->n_chosen++] = c.score;
        } else if (c.score > s->least_score) {
            heap_push(&s->heap, c); /* others may be better now */
        }
    }
}

static trn_err scalar_of(float *out, const trn_tensor *t, const char *what)
{
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_is_scalar(t), "%s must be 0-D, got shape %s (Shape must be rank 0 but is rank %d)", what, trn_shape_text(text, &t->shape), t->shape.rank);
    *out = t->dtype == TRN_HALF ? trn_half_to_f32(*TRN_DATA(t, trn_half)) : *TRN_DATA(t, float);
    return TRN_OK;
}

static trn_err nms_read(nms *s, const trn_kctx *k)
{
    const trn_tensor *box = trn_in(k, 0), *score = trn_in(k, 1), *most = trn_in(k, 2);
    bool given = !strcmp(k->node->op, "NonMaxSuppressionWithOverlaps");
    char t[TRN_SHAPE_TEXT];
    s->half = box->dtype == TRN_HALF;
    s->least_score = s->half ? -65504.0f : -FLT_MAX;
    TRN_CHECK_ARG(trn_is_scalar(most), "max_output_size must be 0-D, got shape %s (Shape must be rank 0 but is rank %d)",
                  trn_shape_text(t, &most->shape), most->shape.rank);
    if (k->n_in > 3)
        TRN_TRY(scalar_of(&s->most_overlap, trn_in(k, 3), given ? "overlap_threshold" : "iou_threshold"));
    else
        s->most_overlap = trn_attr_float(k->node, "iou_threshold");
    s->most_overlap = rounded(s, s->most_overlap);
    TRN_CHECK_ARG(given || (s->most_overlap >= 0 && s->most_overlap <= 1), "iou_threshold must be in [0, 1], not %g", (double)s->most_overlap);
    if (k->n_in > 4)
        TRN_TRY(scalar_of(&s->least_score, trn_in(k, 4), "score_threshold"));
    s->least_score = rounded(s, s->least_score);
    if (k->n_in > 5)
        TRN_TRY(scalar_of(&s->sigma, trn_in(k, 5), "soft_nms_sigma"));
    TRN_CHECK_ARG(s->sigma >= 0, "soft_nms_sigma_val must be >= 0, not %g", (double)s->sigma);
    TRN_CHECK_ARG(box->shape.rank == 2, "%s must be 2-D, got %s (Shape must be rank 2 but is rank %d)", given ? "overlaps" : "boxes",
                  trn_shape_text(t, &box->shape), box->shape.rank);
    s->n = box->shape.dim[0];
    if (given)
        TRN_CHECK_ARG(box->shape.dim[1] == s->n, "overlaps must be square: %s", trn_shape_text(t, &box->shape));
    else
        TRN_CHECK_ARG(box->shape.dim[1] == 4, "boxes must have 4 columns (Dimension must be 4 but is %lld)", (long long)box->shape.dim[1]);
    TRN_CHECK_ARG(trn_is_vector(score), "scores must be 1-D, got %s (Shape must be rank 1 but is rank %d)", trn_shape_text(t, &score->shape), score->shape.rank);
    TRN_CHECK_ARG(score->count == s->n, "scores has incompatible shape (Dimensions must be equal, but are %lld and %lld)", (long long)s->n, (long long)score->count);
    TRN_CHECK_ARG(s->n <= INT32_MAX, "too many boxes");
    s->most = *TRN_DATA(most, int32_t);
    TRN_CHECK_ARG(s->most >= 0, "output size must be non-negative: %lld", (long long)s->most);
    s->given = given ? TRN_DATA(box, float) : NULL;
    return TRN_OK;
}

static trn_err nms_run(nms *s, trn_kctx *k)
{
    const trn_tensor *box = trn_in(k, 0), *score = trn_in(k, 1);
    size_t n = (size_t)s->n + 1;
    s->heap = (heap){.v = malloc(n * sizeof(cand)), .by_index = true};
    s->chosen = malloc(n * sizeof *s->chosen);
    s->scores = malloc(n * sizeof *s->scores);
    s->sides = s->given ? NULL : malloc(n * sizeof *s->sides);
    if (!s->heap.v || !s->chosen || !s->scores || (!s->given && !s->sides))
        return trn_err_oom();
    for (int64_t i = 0; i < s->n; i++) {
        float v = s->half ? trn_half_to_f32(TRN_DATA(score, trn_half)[i]) : TRN_DATA(score, float)[i], b[4];
        if (v > s->least_score)
            heap_push(&s->heap, (cand){v, (int32_t)i, 0});
        if (s->given)
            continue;
        if (s->half)
            trn_widen(b, TRN_DATA(box, trn_half) + 4 * i, TRN_HALF, 4);
        else
            memcpy(b, TRN_DATA(box, float) + 4 * i, sizeof b);
        s->sides[i] = side_of(b);
    }
    nms_choose(s);
    bool pad = trn_node_attr(k->node, "pad_to_max_output_size") && trn_attr_bool(k->node, "pad_to_max_output_size"), five = k->n_out == 3;
    trn_shape len = trn_shape_vector(pad ? s->most : s->n_chosen), scalar = trn_shape_scalar();
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_INT32, &len));
    trn_zero_elems(y, 0, y->count);
    if (s->n_chosen)
        memcpy(y->data, s->chosen, sizeof *s->chosen * (size_t)s->n_chosen);
    if (five) {
        TRN_TRY(trn_out_new(&y, k, 1, score->dtype, &len));
        trn_zero_elems(y, 0, y->count);
        if (s->half)
            trn_narrow(y->data, s->scores, TRN_HALF, s->n_chosen);
        else if (s->n_chosen)
            memcpy(y->data, s->scores, sizeof *s->scores * (size_t)s->n_chosen);
    }
    if (k->n_out > 1) {
        TRN_TRY(trn_out_new(&y, k, k->n_out - 1, TRN_INT32, &scalar));
        *TRN_DATA_MUT(y, int32_t) = (int32_t)s->n_chosen;
    }
    return TRN_OK;
}

static trn_err k_nms(trn_kctx *k)
{
    nms s = {0};
    TRN_TRY(nms_read(&s, k));
    trn_err e = nms_run(&s, k);
    free(s.heap.v);
    free(s.chosen);
    free(s.scores);
    free(s.sides);
    return e;
}

/* ---- suppression in batches and classes ----------------------------------------------------------------------------------------- */

typedef struct found {
    float score;
    int32_t box, class;
    float at[4];
} found;

typedef struct many {
    int64_t images, boxes, q, classes, per_class, total, out;
    float most_overlap, least_score;
    bool clip;
    const float *box, *score;
    found *found; /* [images, classes, per_class] */
    float *y_box, *y_score, *y_class;
    int32_t *y_n;
    atomic_bool oom;
} many;

static void many_choose(void *arg, int64_t lo, int64_t hi)
{
    many *m = arg;
    heap h = {.v = malloc(sizeof(cand) * (size_t)(m->boxes + 1))};
    side *sides = malloc(sizeof *sides * (size_t)(m->per_class + 1));
    if (!h.v || !sides) {
        m->oom = true;
        lo = hi;
    }
    for (int64_t i = lo; i < hi; i++) {
        int64_t image = i / m->classes, class = i % m->classes, n = 0;
        const float *score = m->score + image * m->boxes * m->classes + class, *box = m->box + (image * m->boxes * m->q + (m->q > 1 ? class : 0)) * 4;
        h.n = 0;
        for (int64_t b = 0; b < m->boxes; b++)
            if (score[b * m->classes] > m->least_score)
                heap_push(&h, (cand){score[b * m->classes], (int32_t)b, 0});
        while (n < m->per_class && h.n) {
            cand c = heap_pop(&h);
            const float *at = box + c.box * m->q * 4;
            side s = side_of(at);
            bool gone = false;
            for (int64_t j = n - 1; j >= 0 && !gone; j--)
                gone = overlap(&s, &sides[j]) > m->most_overlap;
            if (gone)
                continue;
            m->found[i * m->per_class + n] = (found){c.score, c.box, (int32_t)class, {at[0], at[1], at[2], at[3]}};
            sides[n++] = s;
        }
        for (; n < m->per_class; n++)
            m->found[i * m->per_class + n] = (found){-1, -1, -1, {0}};
    }
    free(h.v);
    free(sides);
}

static int best_first(const void *a, const void *b)
{
    const found *x = *(const found *const *)a, *y = *(const found *const *)b;
    return x->score != y->score ? (x->score < y->score) - (x->score > y->score) : (x > y) - (x < y);
}

/* Sorting as libstdc++ does it, for the same reason as the heap: which of equal scores comes first. Quicksort by the median of three down to runs of 16,
 * which are inserted in the end; what is left where it does not get on is sorted otherwise, and then the order of equals is ours. */
typedef const found *found_p;
static bool better(found_p a, found_p b) { return a->score > b->score; }
static void swap(found_p *a, found_p *b)
{
    found_p t = *a;
    *a = *b;
    *b = t;
}
static void median_first(found_p *to, found_p *a, found_p *b, found_p *c)
{
    if (better(*a, *b))
        swap(to, better(*b, *c) ? b : better(*a, *c) ? c : a);
    else
        swap(to, better(*a, *c) ? a : better(*b, *c) ? c : b);
}
static void sort_runs(found_p *v, int64_t n, int depth)
{
    while (n > 16) {
        if (!depth--) {
            qsort(v, (size_t)n, sizeof *v, best_first);
            return;
        }
        median_first(v, v + 1, v + n / 2, v + n - 1);
        int64_t lo = 1, hi = n;
        for (;; lo++) {
            while (better(v[lo], v[0]))
                lo++;
            do
                hi--;
            while (better(v[0], v[hi]));
            if (lo >= hi)
                break;
            swap(v + lo, v + hi);
        }
        sort_runs(v + lo, n - lo, depth);
        n = lo;
    }
}
static void sort_found(found_p *v, int64_t n)
{
    int depth = 0;
    for (int64_t m = n; m > 1; m /= 2)
        depth += 2;
    sort_runs(v, n, depth);
    for (int64_t i = 1; i < n; i++) {
        found_p f = v[i];
        int64_t at = i;
        for (; at > 0 && better(f, v[at - 1]); at--)
            v[at] = v[at - 1];
        v[at] = f;
    }
}

static void many_sort(void *arg, int64_t lo, int64_t hi)
{
    many *m = arg;
    int64_t n = m->classes * m->per_class;
    found_p *order = malloc(sizeof *order * (size_t)(n + 1));
    if (!order)
        m->oom = true;
    for (int64_t b = lo; order && b < hi; b++) {
        int64_t count = 0;
        for (int64_t i = 0; i < n; i++) {
            order[i] = m->found + b * n + i;
            count += order[i]->box >= 0;
        }
        sort_found(order, n);
        count = TRN_MIN(count, m->out);
        m->y_n[b] = (int32_t)count;
        for (int64_t i = 0; i < count; i++) {
            m->y_score[b * m->out + i] = order[i]->score;
            m->y_class[b * m->out + i] = (float)order[i]->class;
            for (int q = 0; q < 4; q++) {
                float v = order[i]->at[q];
                if (m->clip) {
                    v = 1 < v ? 1 : v;
                    v = v < 0 ? 0 : v;
                }
                m->y_box[(b * m->out + i) * 4 + q] = v;
            }
        }
    }
    free(order);
}

static trn_err k_combined(trn_kctx *k)
{
    const trn_tensor *box = trn_in(k, 0), *score = trn_in(k, 1), *most = trn_in(k, 2), *total = trn_in(k, 3);
    char t[TRN_SHAPE_TEXT];
    many m = {.clip = trn_attr_bool(k->node, "clip_boxes")};
    TRN_CHECK_ARG(box->shape.rank == 4, "boxes must be 4-D: %s", trn_shape_text(t, &box->shape));
    TRN_CHECK_ARG(score->shape.rank == 3, "scores must be 3-D: %s", trn_shape_text(t, &score->shape));
    TRN_CHECK_ARG(box->shape.dim[0] == score->shape.dim[0], "boxes and scores must have same batch size: %lld, %lld", (long long)box->shape.dim[0],
                  (long long)score->shape.dim[0]);
    TRN_CHECK_ARG(trn_is_scalar(most), "max_size_per_class must be 0-D, got shape %s", trn_shape_text(t, &most->shape));
    TRN_CHECK_ARG(*TRN_DATA(most, int32_t) > 0, "max_size_per_class must be positive: %d", (int)*TRN_DATA(most, int32_t));
    TRN_CHECK_ARG(trn_is_scalar(total), "max_total_size must be 0-D, got shape %s", trn_shape_text(t, &total->shape));
    m.total = *TRN_DATA(total, int32_t);
    TRN_CHECK_ARG(m.total > 0, "max_total_size must be > 0: %lld", (long long)m.total);
    TRN_TRY(scalar_of(&m.most_overlap, trn_in(k, 4), "iou_threshold"));
    TRN_TRY(scalar_of(&m.least_score, trn_in(k, 5), "score_threshold"));
    TRN_CHECK_ARG(m.most_overlap >= 0 && m.most_overlap <= 1, "iou_threshold must be in [0, 1], not %g", (double)m.most_overlap);
    m.images = box->shape.dim[0];
    m.boxes = box->shape.dim[1];
    m.q = box->shape.dim[2];
    m.classes = score->shape.dim[2];
    TRN_CHECK_ARG(m.q == 1 || m.q == m.classes, "third dimension of boxes must be either 1 or num classes: %lld", (long long)m.q);
    TRN_CHECK_ARG(box->shape.dim[3] == 4, "boxes must have 4 columns: %s", trn_shape_text(t, &box->shape));
    TRN_CHECK_ARG(score->shape.dim[1] == m.boxes, "scores has incompatible shape: %s", trn_shape_text(t, &score->shape));
    TRN_CHECK_ARG(m.boxes <= INT32_MAX && m.classes <= INT32_MAX, "too many boxes or classes: %s", trn_shape_text(t, &score->shape));
    m.per_class = TRN_MIN((int64_t)*TRN_DATA(most, int32_t), m.boxes);
    m.out = trn_attr_bool(k->node, "pad_per_class") ? TRN_MIN(m.total, (int64_t)*TRN_DATA(most, int32_t) * m.classes) : m.total;
    trn_shape s3 = trn_shape_of(3, m.images, m.out, (int64_t)4), s2 = trn_shape_of(2, m.images, m.out), s1 = trn_shape_vector(m.images);
    trn_tensor *y[4];
    int64_t n;
    TRN_TRY(trn_count_checked(&n, &s3));
    TRN_TRY(trn_out_new(&y[0], k, 0, TRN_FLOAT, &s3));
    TRN_TRY(trn_out_new(&y[1], k, 1, TRN_FLOAT, &s2));
    TRN_TRY(trn_out_new(&y[2], k, 2, TRN_FLOAT, &s2));
    TRN_TRY(trn_out_new(&y[3], k, 3, TRN_INT32, &s1));
    for (int i = 0; i < 4; i++)
        trn_zero_elems(y[i], 0, y[i]->count);
    if (!score->count)
        return TRN_OK;
    m.box = box->data;
    m.score = score->data;
    m.y_box = y[0]->data;
    m.y_score = y[1]->data;
    m.y_class = y[2]->data;
    m.y_n = y[3]->data;
    m.found = malloc(sizeof *m.found * (size_t)(m.images * m.classes * m.per_class));
    if (!m.found)
        return trn_err_oom();
    trn_k_for(k, m.images * m.classes, TRN_MAX(2048 / m.boxes, (int64_t)1), many_choose, &m);
    if (!m.oom)
        trn_k_for(k, m.images, 1, many_sort, &m);
    free(m.found);
    return m.oom ? trn_err_oom() : TRN_OK;
}

/* ---- shape rules ---------------------------------------------------------------------------------------------------------------- */

static trn_err sh_sample(trn_shctx *s)
{
    TRN_TRY(trn_sh_rank_of(s, 0, 1));
    TRN_TRY(trn_sh_rank_of(s, 1, 3));
    s->out[0] = s->out[1] = trn_shape_vector(3);
    s->out[2] = trn_shape_of(3, (int64_t)1, (int64_t)1, (int64_t)4);
    return TRN_OK;
}
static trn_err sh_draw(trn_shctx *s)
{
    TRN_TRY(trn_sh_rank_of(s, 0, 4));
    TRN_TRY(trn_sh_rank_of(s, 1, 3));
    return trn_sh_same(s);
}
static trn_err sh_nms(trn_shctx *s)
{
    TRN_TRY(trn_sh_rank_of(s, 0, 2));
    TRN_TRY(trn_sh_rank_of(s, 1, 1));
    for (int i = 2; i < s->n_in; i++)
        TRN_TRY(trn_sh_rank_of(s, i, 0));
    const trn_tensor *most = s->value[2];
    bool pad = trn_node_attr(s->node, "pad_to_max_output_size") && trn_attr_bool(s->node, "pad_to_max_output_size");
    s->out[0] = trn_shape_vector(pad && most && trn_is_scalar(most) ? TRN_MAX(*TRN_DATA(most, int32_t), -1) : -1);
    if (s->n_out == 3)
        s->out[1] = s->out[0];
    if (s->n_out > 1)
        s->out[s->n_out - 1] = trn_shape_scalar();
    return TRN_OK;
}
static trn_err sh_combined(trn_shctx *s)
{
    TRN_TRY(trn_sh_rank_of(s, 0, 4));
    TRN_TRY(trn_sh_rank_of(s, 1, 3));
    for (int i = 2; i < 6; i++)
        TRN_TRY(trn_sh_rank_of(s, i, 0));
    const trn_tensor *most = s->value[2], *total = s->value[3];
    int64_t n = total && trn_is_scalar(total) ? *TRN_DATA(total, int32_t) : -1, images = s->in[0].rank == 4 ? s->in[0].dim[0] : -1,
        classes = s->in[1].rank == 3 ? s->in[1].dim[2] : -1;
    if (trn_attr_bool(s->node, "pad_per_class"))
        n = n >= 0 && most && trn_is_scalar(most) && classes >= 0 && classes <= INT32_MAX ? TRN_MIN(n, *TRN_DATA(most, int32_t) * classes) : -1;
    n = n < 0 ? -1 : n;
    s->out[0] = trn_shape_of(3, images, n, (int64_t)4);
    s->out[1] = s->out[2] = trn_shape_of(2, images, n);
    s->out[3] = trn_shape_vector(images);
    return TRN_OK;
}

#define SAMPLED " -> begin:T, size:T, bboxes:f32; T:u8|i8|i16|i32|i64, "
#define SEEDS "seed:int=0, seed2:int=0, "
#define PARTS "aspect_ratio_range:list(float)=[0.75,1.33], area_range:list(float)=[0.05,1.0], max_attempts:int=100, use_image_if_no_bounding_boxes:bool=false"
#define OWN_GENERATOR TRN_OP_STATEFUL, trn_random_init, trn_random_fini
#define NMS "T:f16|f32=f32, T_threshold:f16|f32=f32"
#define PAD "pad_to_max_output_size:bool=false"

const trn_op trn_ops_image_box[] = {
    {"SampleDistortedBoundingBox", "image_size:T, bounding_boxes:f32" SAMPLED SEEDS "min_object_covered:float=0.1, " PARTS, sh_sample, k_sample_box, OWN_GENERATOR},
    {"SampleDistortedBoundingBoxV2", "image_size:T, bounding_boxes:f32, min_object_covered:f32" SAMPLED SEEDS PARTS, sh_sample, k_sample_box, OWN_GENERATOR},
    {"StatelessSampleDistortedBoundingBox", "image_size:T, bounding_boxes:f32, min_object_covered:f32, seed:Tseed" SAMPLED "Tseed:i32|i64, " PARTS,
     sh_sample, k_sample_box, 0},
    {"DrawBoundingBoxes", "images:T, boxes:f32 -> output:T; T:f32|f16=f32", sh_draw, k_draw_boxes, 0},
    {"DrawBoundingBoxesV2", "images:T, boxes:f32, colors:f32 -> output:T; T:f32|f16=f32", sh_draw, k_draw_boxes, 0},
    {"NonMaxSuppression", "boxes:f32, scores:f32, max_output_size:i32 -> selected_indices:i32; iou_threshold:float=0.5", sh_nms, k_nms, 0},
    {"NonMaxSuppressionV2", "boxes:T, scores:T, max_output_size:i32, iou_threshold:T_threshold -> selected_indices:i32; " NMS, sh_nms, k_nms, 0},
    {"NonMaxSuppressionV3",
     "boxes:T, scores:T, max_output_size:i32, iou_threshold:T_threshold, score_threshold:T_threshold -> selected_indices:i32; " NMS, sh_nms, k_nms, 0},
    {"NonMaxSuppressionV4",
     "boxes:T, scores:T, max_output_size:i32, iou_threshold:T_threshold, score_threshold:T_threshold -> selected_indices:i32, valid_outputs:i32; " NMS ", " PAD, sh_nms, k_nms, 0},
    {"NonMaxSuppressionV5",
     "boxes:T, scores:T, max_output_size:i32, iou_threshold:T, score_threshold:T, soft_nms_sigma:T -> selected_indices:i32, selected_scores:T, valid_outputs:i32; T:f16|f32=f32, " PAD, sh_nms, k_nms, 0},
    {"NonMaxSuppressionWithOverlaps",
     "overlaps:f32, scores:f32, max_output_size:i32, overlap_threshold:f32, score_threshold:f32 -> selected_indices:i32", sh_nms, k_nms, 0},
    {"CombinedNonMaxSuppression",
     "boxes:f32, scores:f32, max_output_size_per_class:i32, max_total_size:i32, iou_threshold:f32, score_threshold:f32 -> "
     "nmsed_boxes:f32, nmsed_scores:f32, nmsed_classes:f32, valid_detections:i32; pad_per_class:bool=false, clip_boxes:bool=true",
     sh_combined, k_combined, 0},
    {0},
};
