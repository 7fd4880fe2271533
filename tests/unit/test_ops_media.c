/* Image and sound files without TensorFlow: what was written is read again, files made by hand, sizes that only a header claims. That pixels and
 * bytes are TensorFlow's is tests/parity's business. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "check.h"
#include "optest.h"

/* Output 0 of one op; takes the input. */
static trn_tensor *ran(const char *op, const char *attrs, trn_tensor *x)
{
    optest t;
    ok(optest_run(&t, op, attrs, x, NULL));
    trn_tensor *y = trn_tensor_ref(t.out[0].t);
    optest_end(&t);
    return y;
}

static void refused(const char *op, const char *attrs, const void *file, size_t n, const char *why)
{
    optest t;
    fails(optest_run(&t, op, attrs, trn_tensor_str(file, n), NULL), TRN_INVALID_ARGUMENT, why);
    optest_end(&t);
}

static void same_bytes(const trn_tensor *a, const trn_tensor *b)
{
    assert_true(trn_shape_eq(&a->shape, &b->shape));
    assert_int_equal(a->dtype, b->dtype);
    assert_memory_equal(a->data, b->data, trn_tensor_bytes(a));
}

static trn_tensor *waves(trn_dtype t, int64_t h, int64_t w, int64_t c)
{
    trn_shape s = trn_shape_of(3, h, w, c);
    trn_tensor *x;
    if (trn_tensor_new(&x, t, &s))
        abort();
    for (int64_t i = 0; i < x->count; i++)
        if (t == TRN_UINT16)
            TRN_DATA_MUT(x, uint16_t)[i] = (uint16_t)(i * 2654435761u >> 7);
        else
            TRN_DATA_MUT(x, uint8_t)[i] = (uint8_t)(100 + i / c % w * 3 + i / c / w * 2 + i % c * 10);
    return x;
}

static void png_there_and_back(void **state)
{
    for (int c = 1; c <= 4; c++)
        for (int wide = 0; wide < 2; wide++) {
            trn_tensor *x = waves(wide ? TRN_UINT16 : TRN_UINT8, 7, 5, c);
            trn_tensor *y = ran("DecodePng", wide ? "dtype=u16" : "", ran("EncodePng", "", trn_tensor_ref(x)));
            same_bytes(x, y);
            trn_tensor_unref(x);
            trn_tensor_unref(y);
        }
}

static void jpeg_there_and_back(void **state)
{
    for (int c = 1; c <= 3; c += 2) {
        trn_tensor *x = waves(TRN_UINT8, 19, 23, c), *file = ran("EncodeJpeg", "quality=100, chroma_downsampling=false", trn_tensor_ref(x));
        trn_tensor *y = ran("DecodeJpeg", "", trn_tensor_ref(file)), *size = ran("ExtractJpegShape", "", trn_tensor_ref(file));
        assert_true(trn_shape_eq(&x->shape, &y->shape));
        for (int i = 0; i < 3; i++)
            assert_int_equal(TRN_DATA(size, int32_t)[i], x->shape.dim[i]);
        for (int64_t i = 0; i < x->count; i++)
            assert_in_range(TRN_DATA(x, uint8_t)[i] - TRN_DATA(y, uint8_t)[i] + 6, 0, 12);
        trn_tensor *half = ran("DecodeJpeg", "ratio=2", trn_tensor_ref(file)), *f32 = ran("DecodeImage", "dtype=f32", file);
        assert_int_equal(half->shape.dim[0], 10);
        assert_int_equal(half->shape.dim[1], 12);
        for (int64_t i = 0; i < x->count; i++)
            assert_float_equal(TRN_DATA(f32, float)[i], TRN_DATA(y, uint8_t)[i] / 255.0f, 1e-6f);
        trn_tensor_unref(x);
        trn_tensor_unref(y);
        trn_tensor_unref(size);
        trn_tensor_unref(half);
        trn_tensor_unref(f32);
    }
}

/* A window of a file is that part of the whole file. */
static void jpeg_window(void **state)
{
    trn_tensor *file = ran("EncodeJpeg", "", waves(TRN_UINT8, 50, 60, 1)), *all = ran("DecodeJpeg", "", trn_tensor_ref(file));
    trn_tensor *crop = trn_tensor_from(TRN_INT32, 1, (int64_t[]){4}, (int32_t[]){11, 21, 30, 17});
    optest t;
    ok(optest_run(&t, "DecodeAndCropJpeg", "", file, crop, NULL));
    const uint8_t *a = TRN_DATA(all, uint8_t), *b = TRN_DATA(t.out[0].t, uint8_t);
    for (int y = 0; y < 30; y++)
        assert_memory_equal(b + y * 17, a + (y + 11) * 60 + 21, 17);
    optest_end(&t);
    trn_tensor_unref(all);
}

/* Two frames of 2 x 2, the second one pixel and a transparent one over the first. */
static const uint8_t gif[] = {
    'G',  'I',  'F',  '8', '9', 'a', 2,    0,    2, 0, 0x80, 0, 0, 255, 0, 0, 0, 0, 255,    /* red, blue */
    ',',  0,    0,    0,   0,   2,   0,    2,    0, 0, 2,    3, 0x44, 0x02, 0x05, 0,          /* clear 0 1 1 0 end */
    '!',  0xf9, 4,    1,   0,   0,   0,    0,                                                 /* red is transparent */
    ',',  0,    0,    0,   0,   2,   0,    1,    0, 0, 2,    2, 0x0c, 0x0a, 0, ';',           /* clear 1 0 end */
};

static void gif_frames(void **state)
{
    trn_tensor *y = ran("DecodeGif", "", trn_tensor_str((const char *)gif, sizeof gif));
    static const uint8_t want[2][4][3] = {{{255, 0, 0}, {0, 0, 255}, {0, 0, 255}, {255, 0, 0}}, {{0, 0, 255}, {0, 0, 255}, {0, 0, 255}, {255, 0, 0}}};
    assert_int_equal(y->shape.rank, 4);
    assert_int_equal(y->count, sizeof want);
    assert_memory_equal(y->data, want, sizeof want);
    trn_tensor_unref(y);
    y = ran("DecodeImage", "expand_animations=false", trn_tensor_str((const char *)gif, sizeof gif));
    assert_int_equal(y->shape.rank, 3);
    assert_memory_equal(y->data, want[0], sizeof want[0]);
    trn_tensor_unref(y);
    refused("DecodePng", "", gif, sizeof gif, "2 frames");
    refused("DecodeImage", "channels=1", gif, sizeof gif, "channels");
}

/* What a file may not claim: each of these would be gigabytes. */
static void absurd_sizes(void **state)
{
    uint8_t wide[sizeof gif];
    memcpy(wide, gif, sizeof gif);
    memset(wide + 24, 0xff, 4); /* 65,535 x 65,535 */
    refused("DecodeGif", "", wide, sizeof wide, "pixels");
    refused("DecodeBmp", "", "BM", 2, "32 bytes");
    uint8_t bmp[58] = {'B', 'M', [10] = 54, [14] = 40, [21] = 0x40, [25] = 0x40, [28] = 24};
    refused("DecodeBmp", "", bmp, sizeof bmp, "2^30");
    trn_tensor *jpeg = ran("EncodeJpeg", "", waves(TRN_UINT8, 8, 8, 1));
    size_t n;
    uint8_t *p = (uint8_t *)trn_tensor_str_at(jpeg, 0, &n);
    for (size_t i = 0; i + 9 < n; i++)
        if (p[i] == 0xff && p[i + 1] == 0xc0)
            p[i + 5] = p[i + 7] = 0x50; /* 20,488 x 20,488 */
    refused("DecodeJpeg", "", p, n, "Invalid JPEG");
    trn_tensor_unref(jpeg);
    refused("DecodeImage", "", "nonsense", 8, "Unknown image file format");
    refused("DecodeJpeg", "try_recover_truncated=true", "\xff\xd8\xff", 3, "Invalid JPEG");
    refused("DecodeJpeg", "", "", 0, "empty");
}

static void wav_there_and_back(void **state)
{
    static const float x[6] = {0, 0.5f, -0.5f, 1, -1, 0.25f};
    optest t;
    ok(optest_run(&t, "EncodeWav", "", trn_tensor_from(TRN_FLOAT, 2, (int64_t[]){3, 2}, x), trn_tensor_i32(8000), NULL));
    trn_tensor *file = trn_tensor_ref(t.out[0].t);
    optest_end(&t);
    size_t n;
    const char *p = trn_tensor_str_at(file, 0, &n);
    assert_int_equal(n, 44 + 12);
    refused("DecodeWav", "", p, 43, "too short");
    refused("DecodeWav", "", p, n - 1, "too short");
    ok(optest_run(&t, "DecodeWav", "desired_channels=3, desired_samples=4", file, NULL));
    const float *y = TRN_DATA(t.out[0].t, float);
    for (int i = 0; i < 12; i++)
        assert_float_equal(y[i], (i >= 9 ? 0 : x[i / 3 * 2 + TRN_MIN(i % 3, 1)]), 1e-4f);
    assert_int_equal(*TRN_DATA(t.out[1].t, int32_t), 8000);
    optest_end(&t);
}

/* A tone of a frequency that fits the window is in one place (and, by the window's shape, its neighbours). */
static void spectrogram_of_a_tone(void **state)
{
    float x[96];
    for (int i = 0; i < 96; i++)
        x[i] = (float)__builtin_cos(2 * 3.14159265358979 * 5 * i / 32);
    trn_tensor *y = ran("AudioSpectrogram", "window_size=32, stride=16", trn_tensor_from(TRN_FLOAT, 2, (int64_t[]){96, 1}, x));
    assert_int_equal(y->shape.dim[1], 5);
    assert_int_equal(y->shape.dim[2], 17);
    for (int i = 0; i < 5 * 17; i++)
        assert_float_equal(TRN_DATA(y, float)[i], (i % 17 == 5 ? 8 : i % 17 == 4 || i % 17 == 6 ? 4 : 0), 1e-4f);
    trn_tensor_unref(y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(png_there_and_back), cmocka_unit_test(jpeg_there_and_back), cmocka_unit_test(jpeg_window),
        cmocka_unit_test(gif_frames),         cmocka_unit_test(absurd_sizes),        cmocka_unit_test(wav_there_and_back),
        cmocka_unit_test(spectrogram_of_a_tone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
