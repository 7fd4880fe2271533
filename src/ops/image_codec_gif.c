/* GIF to pixels. As in TensorFlow (and giflib) the canvas is as large as the largest frame, a frame's transparent pixels show the frame before,
 * and a file that ends too soon or makes no sense from somewhere on gives the whole frames before that. */
#include "ops/image_codec.h"

#include <stdlib.h>

enum { CODES = 4096, NONE = CODES + 2 };

typedef struct palette {
    const uint8_t *rgb; /* NULL: none */
    int n;
} palette;

typedef struct frame {
    int left, top, width, height;
    palette colours;
    int transparent; /* colour number, or -1 */
    uint8_t *pixels;
} frame;

typedef struct gif {
    const uint8_t *p, *end;
    palette colours;
    int transparent; /* said by an extension before the frame; -1 none, -2 nothing was said yet */
    frame *frames;
    int64_t n, cap, total; /* total: pixels of all frames */
    int64_t most;          /* pixels that so many bytes can say: a string for each bit */
} gif;

/* n bytes, or NULL. */
static const uint8_t *take(gif *g, size_t n)
{
    if ((size_t)(g->end - g->p) < n)
        return NULL;
    g->p += n;
    return g->p - n;
}
static int word(const uint8_t *p) { return p[0] | p[1] << 8; }

/* The next block of data: its length, 0 at the end, -1 when it is not there as a whole. */
static int block(const uint8_t **p, gif *g)
{
    const uint8_t *len = take(g, 1);
    *p = len ? take(g, *len) : NULL;
    return *p ? *len : -1;
}

static bool take_palette(palette *out, gif *g, int flags)
{
    *out = (palette){0};
    if (!(flags & 0x80))
        return true;
    int n = 2 << (flags & 7);
    const uint8_t *p = take(g, (size_t)n * 3);
    if (p)
        *out = (palette){p, n};
    return p;
}

/* ---- LZW ------------------------------------------------------------------------------------------------------------------------ */

/* A code above `clear` + 1 stands for what its prefix stands for and one more pixel. */
typedef struct lzw {
    gif *g;
    const uint8_t *p; /* of the current block */
    int left;
    uint32_t acc;
    int have, bits; /* bits in acc, bits of a code */
    int min_bits, clear, last;
    int next; /* the code that this one defines, once there was one before it */
    uint16_t prefix[CODES];
    uint8_t suffix[CODES], stack[CODES];
} lzw;

static void start_table(lzw *z)
{
    for (int i = 0; i < CODES; i++)
        z->prefix[i] = NONE;
    z->bits = z->min_bits + 1;
    z->next = z->clear;
    z->last = NONE;
}

static int next_code(lzw *z)
{
    while (z->have < z->bits) {
        if (!z->left) {
            z->left = block(&z->p, z->g);
            if (z->left <= 0) {
                z->left = 0;
                return -1;
            }
        }
        z->acc |= (uint32_t)*z->p++ << z->have;
        z->left--;
        z->have += 8;
    }
    int c = (int)(z->acc & ((1u << z->bits) - 1));
    z->acc >>= z->bits;
    z->have -= z->bits;
    if (z->next < CODES - 1 && ++z->next + 2 > 1 << z->bits && z->bits < 12)
        z->bits++;
    return c;
}

/* The first pixel that a code stands for. What no code can mean becomes some pixel. */
static uint8_t first_pixel(const lzw *z, int code)
{
    for (int i = 0; code > z->clear && i <= CODES; i++) {
        if (code >= CODES)
            return (uint8_t)NONE;
        code = z->prefix[code];
    }
    return (uint8_t)code;
}

/* False when the data ends too soon or makes no sense. */
static bool unpack(lzw *z, frame *f)
{
    int64_t at = 0, n = (int64_t)f->width * f->height;
    start_table(z);
    while (at < n) {
        int code = next_code(z);
        if (code < 0 || code == z->clear + 1)
            return false;
        if (code == z->clear) {
            start_table(z);
            continue;
        }
        int sp = 0, c = code;
        if (code > z->clear) {
            if (z->prefix[code] == NONE) { /* the one that is being made: the last string and its own first pixel */
                c = z->last;
                z->stack[sp++] = first_pixel(z, code == z->next ? z->last : code);
            }
            for (; c > z->clear && c < CODES && sp < CODES - 1; c = z->prefix[c])
                z->stack[sp++] = z->suffix[c];
            if (c >= CODES || sp >= CODES - 1)
                return false;
        }
        z->stack[sp++] = (uint8_t)c;
        while (sp && at < n)
            f->pixels[at++] = z->stack[--sp];
        if (z->last != NONE && z->prefix[z->next] == NONE) {
            z->prefix[z->next] = (uint16_t)z->last;
            z->suffix[z->next] = first_pixel(z, code == z->next ? z->last : code);
        }
        z->last = code;
    }
    return true;
}

/* ---- the file ------------------------------------------------------------------------------------------------------------------- */

/* Rows of an interlaced frame come in four passes. */
static bool in_order(frame *f)
{
    static const int first[] = {0, 4, 2, 1}, step[] = {8, 8, 4, 2};
    uint8_t *sorted = malloc((size_t)f->width * (size_t)f->height);
    if (!sorted)
        return false;
    int64_t from = 0;
    for (int q = 0; q < 4; q++)
        for (int y = first[q]; y < f->height; y += step[q], from++)
            memcpy(sorted + (int64_t)y * f->width, f->pixels + from * f->width, (size_t)f->width);
    free(f->pixels);
    f->pixels = sorted;
    return true;
}

/* A frame after its ','. False: there are no more; *bad says why those before are of no use either. */
static bool take_frame(gif *g, lzw *z, trn_err *bad)
{
    const uint8_t *h = take(g, 9), *bits, *rest;
    frame f = {0};
    if (!h || !take_palette(&f.colours, g, h[8]) || !(bits = take(g, 1)) || *bits > 8)
        return false;
    f.left = word(h);
    f.top = word(h + 2);
    f.width = word(h + 4);
    f.height = word(h + 6);
    f.transparent = TRN_MAX(g->transparent, -1);
    g->transparent = -2;
    int64_t n = (int64_t)f.width * f.height;
    if (!n || g->total + n >= TRN_IMAGE_MAX) {
        *bad = TRN_BAD("Invalid GIF data: frame %lld has %d x %d pixels", (long long)g->n, f.width, f.height);
        return false;
    }
    g->total += n;
    if (n > g->most)
        return false;
    if (g->n == g->cap) {
        g->cap = TRN_MAX(g->cap * 2, (int64_t)8);
        frame *more = realloc(g->frames, (size_t)g->cap * sizeof *more);
        if (!more) {
            *bad = trn_err_oom();
            return false;
        }
        g->frames = more;
    }
    f.pixels = malloc((size_t)n);
    if (!f.pixels) {
        *bad = trn_err_oom();
        return false;
    }
    z->min_bits = *bits;
    z->clear = 1 << *bits;
    z->left = z->have = 0;
    z->acc = 0;
    int len = unpack(z, &f) ? 1 : -1;
    while (len > 0)
        len = block(&rest, g);
    if (len == 0 && (h[8] & 0x40) && !in_order(&f)) {
        *bad = trn_err_oom();
        len = -1;
    }
    if (len < 0)
        free(f.pixels);
    else
        g->frames[g->n++] = f;
    return len == 0;
}

static bool take_extension(gif *g)
{
    const uint8_t *kind = take(g, 1), *p;
    int len = kind ? block(&p, g) : -1;
    if (len > 0 && *kind == 0xf9 && g->transparent == -2)
        g->transparent = len == 4 && (p[0] & 1) ? p[3] : -1;
    while (len > 0)
        len = block(&p, g);
    return len == 0;
}

static trn_err read_all(gif *g)
{
    const uint8_t *head = take(g, 13);
    if (!head || memcmp(head, "GIF", 3) || !take_palette(&g->colours, g, head[10]))
        return TRN_BAD("Invalid GIF data: no header");
    lzw *z = malloc(sizeof *z);
    if (!z)
        return trn_err_oom();
    z->g = g;
    trn_err bad = TRN_OK;
    for (bool more = true; more;) {
        const uint8_t *kind = take(g, 1);
        more = kind && (*kind == '!' ? take_extension(g) : *kind == ',' && take_frame(g, z, &bad));
    }
    free(z);
    if (!bad && !g->n)
        bad = TRN_BAD("Invalid GIF data: no frame in it");
    return bad;
}

/* Frame i over what is there already. */
static trn_err draw(uint8_t *to, int64_t w, int64_t h, const gif *g, int64_t i)
{
    const frame *f = &g->frames[i];
    palette c = f->colours.rgb ? f->colours : g->colours;
    if (!c.rgb)
        return TRN_BAD("Invalid GIF data: missing color map for frame %lld", (long long)i);
    for (int64_t y = f->top; y < TRN_MIN(h, (int64_t)f->top + f->height); y++)
        for (int64_t x = f->left; x < TRN_MIN(w, (int64_t)f->left + f->width); x++) {
            int v = f->pixels[(y - f->top) * f->width + (x - f->left)];
            if (v >= c.n)
                return TRN_BAD("Invalid GIF data: found color index %d outside of color map range %d", v, c.n);
            if (v != f->transparent)
                memcpy(to + (y * w + x) * 3, c.rgb + v * 3, 3);
        }
    return TRN_OK;
}

static trn_err draw_all(trn_tensor **out, const gif *g, trn_gif_frames which)
{
    int64_t w = 0, h = 0, n = which == TRN_GIF_FIRST ? 1 : g->n;
    for (int64_t i = 0; i < g->n; i++) {
        w = TRN_MAX(w, (int64_t)g->frames[i].width);
        h = TRN_MAX(h, (int64_t)g->frames[i].height);
    }
    TRN_CHECK_ARG(which != TRN_GIF_SINGLE || n == 1, "Got %lld frames, but animated gifs can only be decoded by tf.io.decode_gif or tf.io.decode_image",
                  (long long)n);
    /* Thin frames can make a large canvas: no more than such a file could fill. */
    TRN_CHECK_ARG(n < TRN_MIN(TRN_IMAGE_MAX, g->most + (1 << 24)) / (w * h), "Invalid GIF data: %lld frames of %lld x %lld pixels are too many", (long long)n,
                  (long long)w, (long long)h);
    trn_shape s = trn_shape_of(4, n, h, w, (int64_t)3);
    trn_tensor *t;
    TRN_TRY(trn_tensor_new(&t, TRN_UINT8, &s));
    uint8_t *to = TRN_DATA_MUT(t, uint8_t);
    int64_t size = w * h * 3;
    memset(to, 0, (size_t)size);
    trn_err e = TRN_OK;
    for (int64_t i = 0; i < n && !e; i++, to += size) {
        if (i)
            memcpy(to, to - size, (size_t)size);
        e = draw(to, w, h, g, i);
    }
    if (e)
        trn_tensor_unref(t);
    else
        *out = t;
    return e;
}

trn_err trn_gif_decode(trn_tensor **out, const uint8_t *p, size_t n, trn_gif_frames which)
{
    gif g = {.p = p, .end = p + n, .transparent = -2, .most = (int64_t)n * 8 * CODES};
    trn_err e = read_all(&g);
    if (!e)
        e = draw_all(out, &g, which);
    for (int64_t i = 0; i < g.n; i++)
        free(g.frames[i].pixels);
    free(g.frames);
    return e;
}
