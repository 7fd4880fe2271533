/* JPEG, by libjpeg-turbo with TensorFlow's settings. The library leaves by longjmp when it gives up; everything that must be freed then hangs on
 * the job, which lies in the caller's frame. */
#include "ops/image_codec.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

#include <jpeglib.h>
#include <jerror.h>

#define MAX_SCANS 500  /* a progressive file has about ten; each costs a walk over the whole image */
#define MAX_AGAIN 4096 /* ten blocks of 64 coefficients, from a few bytes each time */

typedef struct jpeg_job {
    struct jpeg_decompress_struct d;
    struct jpeg_error_mgr err;
    struct jpeg_source_mgr src;
    struct jpeg_progress_mgr progress;
    jmp_buf failed;
    const uint8_t *p;
    size_t n;
    const trn_jpeg_opts *o;
    trn_tensor *out;
    trn_err e;           /* an error of our own */
    const uint8_t *last; /* where the bytes last ran out, and how often in a row */
    int again;
} jpeg_job;

static void quiet(j_common_ptr c) {}
static void quiet_level(j_common_ptr c, int level) {}

static void decode_failed(j_common_ptr c) { longjmp(((jpeg_job *)c->client_data)->failed, 1); }
static void too_many_scans(j_common_ptr c)
{
    if (((j_decompress_ptr)c)->input_scan_number > MAX_SCANS)
        decode_failed(c);
}

/* ---- where bytes come from ------------------------------------------------------------------------------------------------------ */

static const JOCTET end_of_image[2] = {0xff, JPEG_EOI};

static void source_init(j_decompress_ptr d)
{
    const jpeg_job *j = d->client_data;
    d->src->next_input_byte = j->p;
    d->src->bytes_in_buffer = j->n;
}

/* The bytes have run out. In the middle of a coded block the library still counts those of the block as unread: then it stops there (and what
 * it has so far may do), or goes over them again, which completes a block in the end but nothing else. Elsewhere an end mark is put in, or it is
 * an error. */
static boolean source_more(j_decompress_ptr d)
{
    jpeg_job *j = d->client_data;
    bool recover = j->o && j->o->recover;
    if (d->src->bytes_in_buffer) {
        j->again = d->src->next_input_byte == j->last ? j->again + 1 : 0;
        j->last = d->src->next_input_byte;
        if (j->again > MAX_AGAIN)
            ERREXIT(d, JERR_INPUT_EMPTY);
        return recover;
    }
    if (!recover || d->src->next_input_byte == j->p || d->src->next_input_byte == end_of_image)
        ERREXIT(d, JERR_INPUT_EMPTY);
    d->src->next_input_byte = end_of_image;
    d->src->bytes_in_buffer = sizeof end_of_image;
    return TRUE;
}

static void source_skip(j_decompress_ptr d, long n)
{
    if (n <= 0)
        return;
    if ((size_t)n > d->src->bytes_in_buffer) {
        d->src->bytes_in_buffer = 0;
        (void)source_more(d);
    } else {
        d->src->bytes_in_buffer -= (size_t)n;
        d->src->next_input_byte += n;
    }
}

static void source_term(j_decompress_ptr d) {}

/* Reads the header. Jumps when it fails. */
static void begin(jpeg_job *j)
{
    jpeg_create_decompress(&j->d);
    j->d.mem->max_memory_to_use = 1L << 31; /* four times what the coefficients of the largest image need */
    j->d.src = &j->src;
    j->d.progress = &j->progress;
    jpeg_read_header(&j->d, TRUE);
}

static void job_init(jpeg_job *j, const uint8_t *p, size_t n, const trn_jpeg_opts *o)
{
    memset(j, 0, sizeof *j);
    j->p = p;
    j->n = n;
    j->o = o;
    j->d.err = jpeg_std_error(&j->err);
    j->d.client_data = j;
    j->err.error_exit = decode_failed;
    j->err.output_message = quiet;
    j->err.emit_message = quiet_level;
    j->src = (struct jpeg_source_mgr){.init_source = source_init, .fill_input_buffer = source_more, .skip_input_data = source_skip,
                                      .resync_to_restart = jpeg_resync_to_restart, .term_source = source_term};
    j->progress.progress_monitor = too_many_scans;
}

/* ---- decoding ------------------------------------------------------------------------------------------------------------------- */

/* A row of cyan, magenta, yellow and black; Adobe's programs store them inverted. */
static void cmyk_to_rgb(uint8_t *out, const uint8_t *in, int64_t n, bool inverted)
{
    for (int64_t i = 0; i < n; i++, in += 4, out += 3)
        for (int q = 0; q < 3; q++)
            out[q] = (uint8_t)(inverted ? in[3] * in[q] / 255 : (255 - in[3]) * (255 - in[q]) / 255);
}

/* False: the file cannot be used. */
static bool decode(jpeg_job *j)
{
    struct jpeg_decompress_struct *d = &j->d;
    const trn_jpeg_opts *o = j->o;
    if (setjmp(j->failed))
        return false;
    begin(j);
    int c = o->channels ? o->channels : TRN_MIN(d->num_components, 3);
    if (c != 1 && c != 3)
        return false;
    bool cmyk = c == 3 && (d->jpeg_color_space == JCS_CMYK || d->jpeg_color_space == JCS_YCCK);
    d->out_color_space = c == 1 ? JCS_GRAYSCALE : cmyk ? JCS_CMYK : JCS_RGB;
    d->do_fancy_upsampling = o->fancy;
    d->scale_num = 1;
    d->scale_denom = (unsigned)o->ratio;
    d->dct_method = o->accurate ? JDCT_ISLOW : JDCT_IFAST;
    jpeg_calc_output_dimensions(d);
    int64_t w = d->output_width, h = d->output_height, x = 0, y = 0;
    if (w <= 0 || h <= 0 || w * h * d->num_components >= TRN_IMAGE_MAX)
        return false;
    /* A block of 64 does not come out of less than a bit. Files that end far before that would be filled with grey. */
    if (!o->recover && (int64_t)d->image_width * d->image_height / 64 / 128 > (int64_t)j->n)
        return false;
    jpeg_start_decompress(d);
    if (o->crop) {
        int64_t full_w = w, full_h = h;
        y = o->crop[0];
        x = o->crop[1];
        h = o->crop[2];
        w = o->crop[3];
        if (w <= 0 || h <= 0 || x < 0 || y < 0 || y + h > full_h || x + w > full_w)
            return false;
        /* Columns are cut where coded blocks begin: the rows may be wider than asked for, on the left. */
        JDIMENSION at = (JDIMENSION)x, wide = (JDIMENSION)w;
        jpeg_crop_scanline(d, &at, &wide);
        if (y && jpeg_skip_scanlines(d, (JDIMENSION)y) != (JDIMENSION)y)
            return false;
    }
    if (d->output_components != (cmyk ? 4 : c) || d->output_width < w)
        return false;
    trn_shape s = trn_shape_of(3, h, w, (int64_t)c);
    j->e = trn_tensor_new(&j->out, TRN_UINT8, &s);
    if (j->e)
        return false;
    uint8_t *to = TRN_DATA_MUT(j->out, uint8_t);
    int64_t stride = w * c, extra = (d->output_width - w) * d->output_components;
    JSAMPARRAY row = (*d->mem->alloc_sarray)((j_common_ptr)d, JPOOL_IMAGE, d->output_width * (JDIMENSION)d->output_components, 1);
    int64_t have = 0; /* rows */
    for (; have < h; have++, to += stride) {
        bool direct = !cmyk && !extra;
        JSAMPROW line = direct ? to : row[0];
        if (jpeg_read_scanlines(d, &line, 1) != 1)
            break;
        if (cmyk)
            cmyk_to_rgb(to, line + extra, w, d->saw_Adobe_marker);
        else if (!direct)
            memcpy(to, line + extra, (size_t)stride);
    }
    bool short_of = have < h;
    if (short_of && o->recover) {
        for (; have < h; have++, to += stride)
            if (have)
                memcpy(to, to - stride, (size_t)stride);
            else
                memset(to, 0, (size_t)stride);
        d->output_scanline = (JDIMENSION)(y + h); /* or the library says that rows were left */
        short_of = false;
    }
    if (short_of) {
        if ((float)have / (float)h < TRN_MIN(o->fraction, 1.0f))
            return false;
        memset(to, 0, (size_t)((h - have) * stride));
        return true;
    }
    if (d->output_scanline < d->output_height)
        jpeg_skip_scanlines(d, d->output_height - d->output_scanline);
    jpeg_finish_decompress(d);
    return true;
}

trn_err trn_jpeg_decode(trn_tensor **out, const uint8_t *p, size_t n, const trn_jpeg_opts *o)
{
    jpeg_job j;
    job_init(&j, p, n, o);
    bool ok = n && decode(&j);
    jpeg_destroy_decompress(&j.d);
    if (!ok) {
        trn_tensor_unref(j.out);
        return j.e ? j.e : TRN_BAD("Invalid JPEG data or crop window, data size %zu", n);
    }
    *out = j.out;
    return TRN_OK;
}

static bool read_size(jpeg_job *j, int64_t size[3])
{
    if (setjmp(j->failed))
        return false;
    begin(j);
    jpeg_calc_output_dimensions(&j->d);
    size[0] = j->d.output_height;
    size[1] = j->d.output_width;
    size[2] = j->d.output_components;
    return true;
}

trn_err trn_jpeg_size(int64_t size[3], const uint8_t *p, size_t n)
{
    jpeg_job j;
    job_init(&j, p, n, NULL);
    bool ok = n && read_size(&j, size);
    jpeg_destroy_decompress(&j.d);
    return ok ? TRN_OK : TRN_BAD("Invalid JPEG data, size %zu", n);
}

/* ---- encoding ------------------------------------------------------------------------------------------------------------------- */

typedef struct encode_job {
    struct jpeg_compress_struct c;
    struct jpeg_error_mgr err;
    struct jpeg_destination_mgr dest;
    jmp_buf failed;
    trn_sb *out;
    JOCTET chunk[4096];
} encode_job;

static void encode_failed(j_common_ptr c) { longjmp(((encode_job *)c->client_data)->failed, 1); }

static void dest_init(j_compress_ptr c)
{
    encode_job *j = c->client_data;
    j->dest.next_output_byte = j->chunk;
    j->dest.free_in_buffer = sizeof j->chunk;
}
static boolean dest_full(j_compress_ptr c)
{
    encode_job *j = c->client_data;
    trn_sb_add(j->out, j->chunk, sizeof j->chunk);
    dest_init(c);
    return TRUE;
}
static void dest_term(j_compress_ptr c)
{
    encode_job *j = c->client_data;
    trn_sb_add(j->out, j->chunk, sizeof j->chunk - j->dest.free_in_buffer);
}

static void put_xmp(j_compress_ptr c, const char *p, size_t n)
{
    static const char name[] = "http://ns.adobe.com/xap/1.0/"; /* with its zero */
    if (n > 65533 - sizeof name)
        ERREXIT(c, JERR_BAD_LENGTH);
    jpeg_write_m_header(c, JPEG_APP0 + 1, (unsigned)(sizeof name + n));
    for (size_t i = 0; i < sizeof name; i++)
        jpeg_write_m_byte(c, name[i]);
    for (size_t i = 0; i < n; i++)
        jpeg_write_m_byte(c, (uint8_t)p[i]);
}

static bool encode(encode_job *j, const uint8_t *pixels, int64_t w, int64_t h, int channels, const trn_jpeg_style *s)
{
    j_compress_ptr c = &j->c;
    if (setjmp(j->failed))
        return false;
    jpeg_create_compress(c);
    c->dest = &j->dest;
    c->image_width = (JDIMENSION)w;
    c->image_height = (JDIMENSION)h;
    c->input_components = channels;
    c->in_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(c);
    if (s->optimize)
        c->optimize_coding = TRUE;
    c->density_unit = s->per_cm ? 2 : 1;
    c->X_density = (UINT16)s->x_density;
    c->Y_density = (UINT16)s->y_density;
    jpeg_set_quality(c, s->quality, TRUE);
    if (s->progressive)
        jpeg_simple_progression(c);
    for (int i = 0; i < c->num_components && !s->downsample; i++)
        c->comp_info[i].h_samp_factor = c->comp_info[i].v_samp_factor = 1;
    jpeg_start_compress(c, TRUE);
    if (s->xmp_n)
        put_xmp(c, s->xmp, s->xmp_n);
    while (c->next_scanline < c->image_height) {
        JSAMPROW row = (JSAMPROW)(pixels + (int64_t)c->next_scanline * w * channels);
        if (jpeg_write_scanlines(c, &row, 1) != 1)
            return false;
    }
    jpeg_finish_compress(c);
    return true;
}

trn_err trn_jpeg_encode(trn_sb *out, const uint8_t *pixels, int64_t w, int64_t h, int channels, const trn_jpeg_style *s)
{
    if (w <= 0 || h <= 0 || w > JPEG_MAX_DIMENSION || h > JPEG_MAX_DIMENSION || w * h >= TRN_IMAGE_MAX)
        return trn_errorf(TRN_INTERNAL, "JPEG encoding failed: no file has %lld x %lld pixels", (long long)w, (long long)h);
    encode_job *j = calloc(1, sizeof *j);
    if (!j)
        return trn_err_oom();
    j->c.err = jpeg_std_error(&j->err);
    j->c.client_data = j;
    j->err.error_exit = encode_failed;
    j->err.output_message = quiet;
    j->err.emit_message = quiet_level;
    j->dest = (struct jpeg_destination_mgr){.init_destination = dest_init, .empty_output_buffer = dest_full, .term_destination = dest_term};
    j->out = out;
    bool ok = encode(j, pixels, w, h, channels, s);
    jpeg_destroy_compress(&j->c);
    free(j);
    return ok ? TRN_OK : trn_errorf(TRN_INTERNAL, "JPEG encoding failed");
}
