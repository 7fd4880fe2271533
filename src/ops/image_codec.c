/* Ops that read and write image files. One decoder serves them all: the first bytes say what a file is, the op which kinds it takes and
 * whether there is an axis for frames. */
#include "ops/image_codec.h"

#include <stdlib.h>

#include "ckpt/media.h"

#define STR(t) TRN_DATA(t, trn_str)

/* ---- BMP ------------------------------------------------------------------------------------------------------------------------ */

static int32_t le32(const uint8_t *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return v;
}

/* Grey, BGR or BGRA without compression, as many bytes as the header says and no more. */
trn_err trn_bmp_decode(trn_tensor **out, const uint8_t *p, size_t n, int channels)
{
    TRN_CHECK_ARG(n >= 32, "Incomplete bmp content, requires at least 32 bytes to find the header size, width, height, and bpp, got %zu bytes", n);
    int64_t start = le32(p + 10), w = le32(p + 18), h = le32(p + 22), c = (int16_t)(p[28] | p[29] << 8) / 8;
    bool top_down = h < 0;
    h = top_down ? -h : h;
    TRN_CHECK_ARG(c == 1 || c == 3 || c == 4, "Number of channels inherent in the image must be 1, 3 or 4, was %lld", (long long)c);
    TRN_CHECK_ARG(w > 0 && h > 0 && start >= 0, "a BMP of %lld x %lld pixels that begins at %lld", (long long)w, (long long)h, (long long)start);
    TRN_CHECK_ARG(w * h < INT32_MAX / 8, "Total possible pixel bytes must be less than 2^30");
    int64_t row = (c * w + 3) / 4 * 4, differ = (int64_t)n - start - row * h;
    TRN_CHECK_ARG(differ == 0, "Input size should match (header_size + row_size * abs_height) but they differ by %lld", (long long)differ);
    int64_t to = channels ? channels : c;
    trn_shape s = trn_shape_of(3, h, w, to);
    trn_tensor *t;
    TRN_TRY(trn_tensor_new(&t, TRN_UINT8, &s));
    uint8_t *o = TRN_DATA_MUT(t, uint8_t);
    for (int64_t y = 0; y < h; y++) {
        const uint8_t *from = p + start + (top_down ? y : h - 1 - y) * row;
        for (int64_t x = 0; x < w; x++, from += c, o += to) {
            o[0] = from[c == 1 ? 0 : 2];
            if (to >= 3) {
                o[1] = from[c == 1 ? 0 : 1];
                o[2] = from[0];
            }
            if (to == 4)
                o[3] = c == 4 ? from[3] : 255;
        }
    }
    *out = t;
    return TRN_OK;
}

/* ---- decoding ------------------------------------------------------------------------------------------------------------------- */

typedef enum reader { R_JPEG, R_CROP, R_PNG, R_GIF, R_BMP, R_ANY } reader;
typedef enum kind { K_JPEG, K_PNG, K_GIF, K_BMP, K_UNKNOWN } kind;
static const char *const kind_name[] = {"JPEG", "PNG", "GIF", "BMP"};

static kind kind_of(const uint8_t *p, size_t n)
{
    static const struct {
        const char *magic;
        size_t n;
    } first[] = {{"\xff\xd8\xff", 3}, {"\x89PNG\r\n\x1a\n", 8}, {"GIF8", 4}, {"BM", 2}};
    for (int i = 0; i < K_UNKNOWN; i++)
        if (n >= first[i].n && !memcmp(p, first[i].magic, first[i].n))
            return (kind)i;
    return K_UNKNOWN;
}

/* DecodeJpeg, DecodePng and DecodeGif take each other's files. */
static bool takes(reader r, kind k)
{
    return r == R_ANY || (r == R_CROP ? k == K_JPEG : r == R_BMP ? k == K_BMP : k != K_BMP);
}

static trn_err jpeg_opts(trn_jpeg_opts *o, trn_kctx *k, reader r, int channels)
{
    *o = (trn_jpeg_opts){.channels = channels, .ratio = 1, .fancy = true, .fraction = 1};
    if (r != R_JPEG && r != R_CROP)
        return TRN_OK;
    int64_t ratio = trn_attr_int(k->node, "ratio");
    const char *dct = trn_attr_str(k->node, "dct_method");
    TRN_CHECK_ARG(ratio == 1 || ratio == 2 || ratio == 4 || ratio == 8, "ratio must be 1, 2, 4, or 8, got %lld", (long long)ratio);
    o->accurate = !strcmp(dct, "INTEGER_ACCURATE");
    TRN_CHECK_ARG(o->accurate || !*dct || !strcmp(dct, "INTEGER_FAST"), "dct_method must be one of {'', 'INTEGER_FAST', 'INTEGER_ACCURATE'}");
    o->ratio = (int)ratio;
    o->fancy = trn_attr_bool(k->node, "fancy_upscaling");
    o->recover = trn_attr_bool(k->node, "try_recover_truncated");
    o->fraction = trn_attr_float(k->node, "acceptable_fraction");
    if (r == R_CROP) {
        const trn_tensor *crop = trn_in(k, 1);
        char t[TRN_SHAPE_TEXT];
        TRN_CHECK_ARG(trn_is_vector(crop) && crop->count == 4, "crop_window must be 1-D with four elements, got shape %s", trn_shape_text(t, &crop->shape));
        o->crop = TRN_DATA(crop, int32_t);
    }
    return TRN_OK;
}

static trn_err read_file(trn_tensor **out, trn_kctx *k, reader r, kind what, const uint8_t *p, size_t n)
{
    int64_t channels = r == R_GIF ? 3 : trn_attr_int(k->node, "channels");
    TRN_CHECK_ARG(channels == 0 || channels == 1 || channels == 3 || channels == 4, "`channels` must be 0, 1, 3 or 4 but got %lld", (long long)channels);
    trn_jpeg_opts o;
    TRN_TRY(jpeg_opts(&o, k, r, (int)channels));
    TRN_CHECK_ARG(what != K_UNKNOWN, "Unknown image file format. One of JPEG, PNG, GIF, BMP required.");
    TRN_CHECK_ARG(takes(r, what), "Trying to decode %s format using a wrong op (%s); use DecodeImage, or the op for %s files", kind_name[what], k->node->op,
                  kind_name[what]);
    switch (what) {
    case K_JPEG:
        TRN_CHECK_ARG(channels != 4, "JPEG does not support 4 channels");
        return trn_jpeg_decode(out, p, n, &o);
    case K_PNG: return trn_png_decode(out, p, n, (int)channels, k->node->out_types[0] == TRN_UINT8 ? 8 : 16);
    case K_GIF:
        TRN_CHECK_ARG(channels == 0 || channels == 3, "channels must be 0 or 3 for GIF, got %lld", (long long)channels);
        return trn_gif_decode(out, p, n, r == R_GIF ? TRN_GIF_ALL : r != R_ANY ? TRN_GIF_SINGLE : trn_attr_bool(k->node, "expand_animations") ? TRN_GIF_ALL : TRN_GIF_FIRST);
    default:
        TRN_CHECK_ARG(channels != 1, "`channels` must be 0, 3 or 4 for BMP, but got 1");
        return trn_bmp_decode(out, p, n, (int)channels);
    }
}

/* bytes or 16-bit numbers to what the op gives: the same, the upper bits of 16, or floats from 0 to 1. */
struct convert {
    const void *x;
    void *y;
    trn_dtype from, to;
};
static void convert(void *arg, int64_t begin, int64_t end)
{
    const struct convert *c = arg;
    for (int64_t i = begin; i < end; i++)
        if (c->to == TRN_UINT16)
            ((uint16_t *)c->y)[i] = (uint16_t)(((const uint8_t *)c->x)[i] * 256);
        else if (c->from == TRN_UINT8)
            ((float *)c->y)[i] = (float)((const uint8_t *)c->x)[i] * (float)(1. / 255);
        else
            ((float *)c->y)[i] = (float)((const uint16_t *)c->x)[i] * (float)(1. / 65535);
}

static trn_err decode(trn_kctx *k, reader r)
{
    const trn_tensor *x = trn_in(k, 0);
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_is_scalar(x), "`contents` must be scalar but got shape %s", trn_shape_text(text, &x->shape));
    const uint8_t *p = (const uint8_t *)trn_str_p(STR(x));
    size_t n = STR(x)->len;
    TRN_CHECK_ARG(n > 0, "Input is empty.");
    TRN_CHECK_ARG(n <= INT32_MAX, "Input contents are too large for int: %zu", n);
    kind what = kind_of(p, n);
    trn_tensor *t, *y;
    TRN_TRY(read_file(&t, k, r, what, p, n));

    trn_shape s = t->shape, one = trn_shape_of(4, (int64_t)1, s.dim[0], s.dim[1], s.dim[2]);
    if (r == R_GIF && s.rank == 3)
        s = one;
    else if (s.rank == 4 && (r == R_JPEG || r == R_PNG || (r == R_ANY && !trn_attr_bool(k->node, "expand_animations"))))
        s = trn_shape_of(3, s.dim[1], s.dim[2], s.dim[3]);
    trn_dtype to = k->node->out_types[0];
    trn_err e;
    if (t->dtype == to) {
        e = trn_tensor_view(&y, t, 0, &s);
        if (!e)
            trn_out_set(k, 0, y);
    } else {
        e = trn_out_new(&y, k, 0, to, &s);
        if (!e)
            trn_k_for(k, t->count, 1 << 16, convert, &(struct convert){t->data, y->data, t->dtype, to});
    }
    trn_tensor_unref(t);
    return e;
}
static trn_err k_decode_jpeg(trn_kctx *k) { return decode(k, R_JPEG); }
static trn_err k_decode_and_crop_jpeg(trn_kctx *k) { return decode(k, R_CROP); }
static trn_err k_decode_png(trn_kctx *k) { return decode(k, R_PNG); }
static trn_err k_decode_gif(trn_kctx *k) { return decode(k, R_GIF); }
static trn_err k_decode_bmp(trn_kctx *k) { return decode(k, R_BMP); }
static trn_err k_decode_image(trn_kctx *k) { return decode(k, R_ANY); }

static trn_err k_extract_jpeg_shape(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_is_scalar(x), "contents must be scalar, got shape %s", trn_shape_text(text, &x->shape));
    int64_t size[3];
    TRN_TRY(trn_jpeg_size(size, (const uint8_t *)trn_str_p(STR(x)), STR(x)->len));
    trn_shape s = trn_shape_vector(3);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, k->node->out_types[0], &s));
    for (int i = 0; i < 3; i++)
        if (y->dtype == TRN_INT64)
            TRN_DATA_MUT(y, int64_t)[i] = size[i];
        else
            TRN_DATA_MUT(y, int32_t)[i] = (int32_t)size[i];
    return TRN_OK;
}

/* ---- encoding ------------------------------------------------------------------------------------------------------------------- */

static trn_err encode_jpeg(trn_kctx *k, const char *format, const trn_jpeg_style *s)
{
    const trn_tensor *x = trn_in(k, 0);
    const int64_t *d = x->shape.dim;
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(x->shape.rank == 3, "image must be 3-dimensional, not %s", trn_shape_text(text, &x->shape));
    TRN_CHECK_ARG(x->count < INT32_MAX, "Cannot encode images with >= max int32 elements");
    TRN_CHECK_ARG(*format || d[2] == 1 || d[2] == 3, "image must have 1 or 3 channels, got %s", trn_shape_text(text, &x->shape));
    int want = !*format ? (int)d[2] : !strcmp(format, "grayscale") ? 1 : 3;
    TRN_CHECK_ARG(d[2] == want, "format %s expects %d channels, got %s", format, want, trn_shape_text(text, &x->shape));
    TRN_CHECK_ARG(s->quality >= 0 && s->quality <= 100, "quality must be in [0,100], got %d", s->quality);
    trn_shape scalar = trn_shape_scalar();
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_STRING, &scalar));
    trn_sb b = {0};
    trn_err e = trn_jpeg_encode(&b, TRN_DATA(x, uint8_t), d[1], d[0], want, s);
    if (!e)
        e = trn_str_set(TRN_DATA_MUT(y, trn_str), b.p, b.n);
    trn_sb_fini(&b);
    return e;
}

static trn_err small_int(int *out, const trn_node *n, const char *attr)
{
    int64_t v = trn_attr_int(n, attr);
    TRN_CHECK_ARG(v >= INT32_MIN && v <= INT32_MAX, "attr %s has value %lld, out of range for an int32", attr, (long long)v);
    *out = (int)v;
    return TRN_OK;
}

static trn_err k_encode_jpeg(trn_kctx *k)
{
    const trn_node *n = k->node;
    const trn_attr *xmp = trn_node_attr(n, "xmp_metadata");
    trn_jpeg_style s = {.progressive = trn_attr_bool(n, "progressive"), .optimize = trn_attr_bool(n, "optimize_size"),
                        .downsample = trn_attr_bool(n, "chroma_downsampling"), .per_cm = !strcmp(trn_attr_str(n, "density_unit"), "cm")};
    TRN_TRY(small_int(&s.quality, n, "quality"));
    TRN_TRY(small_int(&s.x_density, n, "x_density"));
    TRN_TRY(small_int(&s.y_density, n, "y_density"));
    if (xmp) {
        s.xmp = xmp->v.s.p;
        s.xmp_n = xmp->v.s.n;
    }
    return encode_jpeg(k, trn_attr_str(n, "format"), &s);
}

static trn_err k_encode_jpeg_variable_quality(trn_kctx *k)
{
    const trn_tensor *q = trn_in(k, 1);
    TRN_CHECK_ARG(trn_is_scalar(q), "quality must be scalar");
    return encode_jpeg(k, "", &(trn_jpeg_style){.quality = *TRN_DATA(q, int32_t), .downsample = true, .x_density = 300, .y_density = 300});
}

struct png_batch {
    const char *pixels;
    trn_str *to;
    int64_t w, h, size; /* bytes of an image */
    int channels, bits, level;
    _Atomic(trn_error *) failed;
};
static void encode_pngs(void *arg, int64_t begin, int64_t end)
{
    struct png_batch *b = arg;
    for (int64_t i = begin; i < end; i++) {
        trn_sb png = {0};
        trn_err e = trn_png_encode(&png, b->pixels + i * b->size, b->w, b->h, b->channels, b->bits, b->level);
        if (!e)
            e = trn_str_set(&b->to[i], png.p, png.n);
        trn_sb_fini(&png);
        if (e)
            trn_err_free(atomic_exchange(&b->failed, e));
    }
}

static trn_err k_encode_png(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    char text[TRN_SHAPE_TEXT];
    int64_t level = trn_attr_int(k->node, "compression");
    TRN_CHECK_ARG(level >= -1 && level <= 9, "compression should be in [-1,9], got %lld", (long long)level);
    trn_shape s = x->shape;
    TRN_CHECK_ARG(s.rank >= 3, "images must be at least rank 3, not %s", trn_shape_text(text, &s));
    TRN_CHECK_ARG(x->count < INT32_MAX, "image cannot have >= int32 max elements");
    s.rank -= 3;
    const int64_t *d = x->shape.dim + s.rank;
    TRN_CHECK_ARG(d[2] >= 1 && d[2] <= 4, "image must have 1, 2, 3, or 4 channels, got %lld", (long long)d[2]);
    TRN_CHECK_ARG(d[1] < INT32_MAX / 2 / d[2], "image too wide to encode");
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_STRING, &s));
    if (!y->count)
        return TRN_OK;
    int bits = x->dtype == TRN_UINT16 ? 16 : 8;
    int64_t size = d[0] * d[1] * d[2] * (bits / 8);
    struct png_batch b = {x->data, TRN_DATA_MUT(y, trn_str), d[1], d[0], size, (int)d[2], bits, (int)level};
    trn_k_for(k, y->count, TRN_MAX(1, (1 << 14) / TRN_MAX(size, 1)), encode_pngs, &b);
    return b.failed;
}

/* ---- shapes --------------------------------------------------------------------------------------------------------------------- */

static trn_err scalar_in(const trn_shctx *s)
{
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(s->in[0].rank <= 0, "Shape must be rank 0 but is %s", trn_shape_text(t, &s->in[0]));
    return TRN_OK;
}

static trn_err image_of(trn_shctx *s, int64_t h, int64_t w)
{
    TRN_TRY(scalar_in(s));
    int64_t c = trn_attr_int(s->node, "channels");
    TRN_CHECK_ARG(c >= 0, "channels must be non-negative, got %lld", (long long)c);
    s->out[0] = trn_shape_of(3, h, w, c ? c : (int64_t)-1);
    return TRN_OK;
}
static trn_err sh_decode(trn_shctx *s) { return image_of(s, -1, -1); }

static trn_err sh_crop(trn_shctx *s)
{
    const trn_shape *c = &s->in[1];
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(c->rank < 0 || (c->rank == 1 && (c->dim[0] < 0 || c->dim[0] == 4)), "crop_window must have shape [4], not %s", trn_shape_text(t, c));
    const int32_t *v = s->value[1] && s->value[1]->count == 4 ? TRN_DATA(s->value[1], int32_t) : NULL;
    return v ? image_of(s, TRN_MAX(v[2], -1), TRN_MAX(v[3], -1)) : image_of(s, -1, -1);
}

static trn_err sh_decode_image(trn_shctx *s)
{
    TRN_TRY(image_of(s, -1, -1));
    if (trn_attr_bool(s->node, "expand_animations"))
        s->out[0] = trn_shape_unknown();
    return TRN_OK;
}

static trn_err sh_decode_gif(trn_shctx *s)
{
    TRN_TRY(scalar_in(s));
    s->out[0] = trn_shape_of(4, (int64_t)-1, (int64_t)-1, (int64_t)-1, (int64_t)3);
    return TRN_OK;
}

static trn_err sh_jpeg_shape(trn_shctx *s)
{
    TRN_TRY(scalar_in(s));
    s->out[0] = trn_shape_vector(3);
    return TRN_OK;
}

static trn_err sh_encode(trn_shctx *s)
{
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(s->in[0].rank < 0 || s->in[0].rank == 3, "Shape must be rank 3 but is %s", trn_shape_text(t, &s->in[0]));
    s->out[0] = trn_shape_scalar();
    return TRN_OK;
}

static trn_err sh_encode_png(trn_shctx *s)
{
    char t[TRN_SHAPE_TEXT];
    if (s->in[0].rank < 0)
        return TRN_OK;
    TRN_CHECK_ARG(s->in[0].rank >= 3, "Shape must be at least rank 3 but is %s", trn_shape_text(t, &s->in[0]));
    s->out[0] = s->in[0];
    s->out[0].rank -= 3;
    return TRN_OK;
}

#define JPEG_ATTRS "channels:int=0, ratio:int=1, fancy_upscaling:bool=true, try_recover_truncated:bool=false, acceptable_fraction:float=1.0, dct_method:string=\"\""

const trn_op trn_ops_image_codec[] = {
    {"DecodeJpeg", "contents:str -> image:u8; " JPEG_ATTRS, sh_decode, k_decode_jpeg, TRN_OP_HEAVY},
    {"DecodeAndCropJpeg", "contents:str, crop_window:i32 -> image:u8; " JPEG_ATTRS, sh_crop, k_decode_and_crop_jpeg, TRN_OP_HEAVY},
    {"DecodePng", "contents:str -> image:dtype; channels:int=0, dtype:u8|u16=u8", sh_decode, k_decode_png, TRN_OP_HEAVY},
    {"DecodeGif", "contents:str -> image:u8", sh_decode_gif, k_decode_gif, TRN_OP_HEAVY},
    {"DecodeBmp", "contents:str -> image:u8; channels:int=0", sh_decode, k_decode_bmp, TRN_OP_HEAVY},
    {"DecodeImage", "contents:str -> image:dtype; channels:int=0, dtype:u8|u16|f32=u8, expand_animations:bool=true", sh_decode_image, k_decode_image,
     TRN_OP_HEAVY},
    {"ExtractJpegShape", "contents:str -> image_shape:output_type; output_type:i32|i64=i32", sh_jpeg_shape, k_extract_jpeg_shape, 0},
    {"EncodeJpeg",
     "image:u8 -> contents:str; format:{\"\",grayscale,rgb}=\"\", quality:int=95, progressive:bool=false, optimize_size:bool=false, "
     "chroma_downsampling:bool=true, density_unit:{in,cm}=in, x_density:int=300, y_density:int=300, xmp_metadata:string=\"\"",
     sh_encode, k_encode_jpeg, TRN_OP_HEAVY},
    {"EncodeJpegVariableQuality", "images:u8, quality:i32 -> contents:str", sh_encode, k_encode_jpeg_variable_quality, TRN_OP_HEAVY},
    {"EncodePng", "image:T -> contents:str; compression:int=-1, T:u8|u16=u8", sh_encode_png, k_encode_png, TRN_OP_HEAVY},
    {0},
};
