/* PNG to pixels, by libpng with TensorFlow's settings. Writing is in ckpt/media.h, which the event files share. */
#include "ops/image_codec.h"

#include <png.h>
#include <stdlib.h>

typedef struct png_job {
    png_structp png;
    png_infop info;
    const uint8_t *p;
    size_t left, n;
    int channels, bits;
    trn_tensor *out;
    trn_err e;
} png_job;

static void failed(png_structp png, png_const_charp why)
{
    png_job *j = png_get_error_ptr(png);
    j->e = TRN_BAD("Invalid PNG data, size %zu: %s", j->n, why);
    png_longjmp(png, 1);
}
static void warned(png_structp png, png_const_charp why) {}

/* The library believes what a chunk says of its length; none is longer than the file, and a row has at most a million pixels. */
static png_voidp get_memory(png_structp png, size_t n)
{
    const png_job *j = png_get_mem_ptr(png);
    return n <= j->n + (16 << 20) ? malloc(n) : NULL;
}
static void free_memory(png_structp png, png_voidp p) { free(p); }

static void take(png_structp png, png_bytep to, size_t n)
{
    png_job *j = png_get_io_ptr(png);
    if (n > j->left)
        png_error(png, "the data ends too soon");
    memcpy(to, j->p, n);
    j->p += n;
    j->left -= n;
}

/* Says what rows shall look like. The order of the calls matters to the library. */
static void set_up(png_job *j, int depth, int colour)
{
    png_structp png = j->png;
    bool cut = png_get_valid(png, j->info, PNG_INFO_tRNS), palette = colour == PNG_COLOR_TYPE_PALETTE, grey = !(colour & PNG_COLOR_MASK_COLOR);
    if (!j->channels)
        j->channels = palette ? cut ? 4 : 3 : png_get_channels(png, j->info);
    bool alpha = colour & PNG_COLOR_MASK_ALPHA, want_alpha = j->channels % 2 == 0;
    if (want_alpha && !alpha && cut)
        png_set_tRNS_to_alpha(png);
    else if (want_alpha && !alpha)
        png_set_add_alpha(png, (1u << depth) - 1, PNG_FILLER_AFTER);
    else if (!want_alpha && (alpha || cut))
        png_set_strip_alpha(png);
    if (depth > 8 && j->bits == 8)
        png_set_strip_16(png);
    png_set_packing(png);
    if (j->bits == 16)
        png_set_swap(png);
    if (palette)
        png_set_palette_to_rgb(png);
    if (grey && depth < 8)
        png_set_expand_gray_1_2_4_to_8(png);
    if (j->channels < 3 && !grey)
        png_set_rgb_to_gray(png, PNG_ERROR_ACTION_NONE, 0.299, 0.587);
    else if (j->channels >= 3 && grey)
        png_set_gray_to_rgb(png);
}

static void decode(png_job *j)
{
    if (setjmp(png_jmpbuf(j->png)))
        return;
    png_structp png = j->png;
    png_set_read_fn(png, j, take);
    png_read_info(png, j->info);
    png_uint_32 w, h;
    int depth, colour;
    png_get_IHDR(png, j->info, &w, &h, &depth, &colour, NULL, NULL, NULL);
    if (!w || !h || w >= 1 << 27 || h >= 1 << 27 || (int64_t)w * h >= TRN_IMAGE_MAX)
        png_error(png, "the size is too large");
    /* Compression makes data at most 1032 times smaller: this much cannot come out of a short file. */
    int64_t raw = (((int64_t)w * depth * png_get_channels(png, j->info) + 7) / 8 + 1) * h;
    if (raw / 1032 > (int64_t)j->n)
        png_error(png, "the data is too short for the size");
    int passes = png_set_interlace_handling(png);
    set_up(j, depth, colour);
    png_read_update_info(png, j->info);
    bool widen = j->bits == 16 && depth <= 8;
    int64_t count = (int64_t)w * j->channels, row = count * (j->bits / 8);
    if ((int64_t)png_get_rowbytes(png, j->info) != (widen ? count : row))
        png_error(png, "rows have an unexpected size");
    trn_shape s = trn_shape_of(3, (int64_t)h, (int64_t)w, (int64_t)j->channels);
    j->e = trn_tensor_new(&j->out, j->bits == 16 ? TRN_UINT16 : TRN_UINT8, &s);
    if (j->e)
        return;
    uint8_t *to = TRN_DATA_MUT(j->out, uint8_t);
    for (int q = 0; q < passes; q++)
        for (int64_t y = 0; y < h; y++)
            png_read_row(png, to + y * row, NULL);
    png_read_end(png, j->info);
    for (int64_t y = 0; y < h && widen; y++) {
        uint8_t *b = to + y * row;
        for (int64_t i = count; i-- > 0;)
            ((uint16_t *)b)[i] = (uint16_t)(b[i] * 257);
    }
}

trn_err trn_png_decode(trn_tensor **out, const uint8_t *p, size_t n, int channels, int bits)
{
    png_job j = {.p = p, .left = n, .n = n, .channels = channels, .bits = bits};
    j.png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &j, failed, warned, &j, get_memory, free_memory);
    j.info = j.png ? png_create_info_struct(j.png) : NULL;
    if (j.info)
        decode(&j);
    else if (!j.e)
        j.e = trn_err_oom();
    png_destroy_read_struct(&j.png, &j.info, NULL);
    if (j.e) {
        trn_tensor_unref(j.out);
        return j.e;
    }
    *out = j.out;
    return TRN_OK;
}
