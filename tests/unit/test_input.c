/* Input: arrays, CSV, TFRecord, tf.Example in plain C; datasets in a session of this process. */
#include <trainera/trainera.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants the four above first */
#include <cmocka.h>

#include "check.h"

static char dir[] = "/tmp/trn_input_XXXXXX";

static int start(void **state) { return mkdtemp(dir) ? 0 : -1; }

static int stop(void **state)
{
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -r %s", dir);
    return system(cmd);
}

static const char *file(const char *name, const char *text)
{
    static char path[4][160];
    static int turn;
    char *p = path[turn++ % 4];
    snprintf(p, sizeof *path, "%s/%s", dir, name);
    if (text) {
        FILE *f = fopen(p, "wb");
        fwrite(text, 1, strlen(text), f);
        fclose(f);
    }
    return p;
}

#define I32(t) ((const int32_t *)trn_tensor_data(t))
#define I64(t) ((const int64_t *)trn_tensor_data(t))
#define F32(t) ((const float *)trn_tensor_data(t))

static void test_arrays(void **state)
{
    int32_t x[10][2];
    const char *names[10];
    char text[10][4];
    for (int i = 0; i < 10; i++) {
        x[i][0] = i;
        x[i][1] = 10 * i;
        snprintf(text[i], sizeof text[i], "n%d", i);
        names[i] = text[i];
    }
    trn_tensor *in[2] = {trn_tensor_from(TRN_INT32, 2, (int64_t[]){10, 2}, x), trn_tensor_from(TRN_STRING, 1, (int64_t[]){10}, names)}, *out[2];
    trn_arrays *a;
    /* In order, every example once, the last batch smaller, then the end. */
    ok(trn_arrays_new(&a, in, 2, &(trn_arrays_opts){.batch = 4, .epochs = 1}));
    assert_int_equal(trn_arrays_batches(a), 3);
    for (int k = 0, i = 0; k < 3; k++) {
        ok(trn_arrays_next(out, a));
        assert_int_equal(trn_tensor_shape(out[0])->dim[0], k < 2 ? 4 : 2);
        for (int j = 0; j < (k < 2 ? 4 : 2); j++, i++) {
            size_t n;
            assert_int_equal(I32(out[0])[2 * j], i);
            assert_int_equal(I32(out[0])[2 * j + 1], 10 * i);
            const char *s = trn_tensor_str_at(out[1], j, &n);
            assert_true(n == 2 && s[1] == '0' + i);
        }
        trn_tensor_unref(out[0]);
        trn_tensor_unref(out[1]);
    }
    fails(trn_arrays_next(out, a), TRN_OUT_OF_RANGE, "1 epochs");
    trn_arrays_free(a);
    /* Shuffled: a permutation in each epoch, another one each time, the same for the same seed; rewind goes on in the middle. */
    int32_t seen[2][3][10];
    for (int run = 0; run < 2; run++) {
        ok(trn_arrays_new(&a, in, 1, &(trn_arrays_opts){.batch = 5, .shuffle = true, .seed = 7}));
        for (int e = 0; e < 3; e++) {
            bool had[10] = {0};
            for (int half = 0; half < 2; half++) {
                assert_int_equal(trn_arrays_epoch(a), e);
                if (run && e == 1 && half == 1)
                    trn_arrays_rewind(a, 3);
                ok(trn_arrays_next(out, a));
                for (int j = 0; j < 5; j++)
                    had[seen[run][e][half * 5 + j] = I32(out[0])[2 * j]] = true;
                trn_tensor_unref(out[0]);
            }
            for (int i = 0; i < 10; i++)
                assert_true(had[i]);
        }
        trn_arrays_free(a);
    }
    assert_memory_equal(seen[0], seen[1], sizeof seen[0]);
    assert_memory_not_equal(seen[0][0], seen[0][1], sizeof seen[0][0]);
    /* Shards are disjoint and together everything. */
    int count = 0;
    for (int s = 0; s < 3; s++) {
        ok(trn_arrays_new(&a, in, 1, &(trn_arrays_opts){.batch = 10, .shards = 3, .shard = s}));
        ok(trn_arrays_next(out, a));
        count += (int)trn_arrays_examples(a);
        for (int j = 0; j < trn_arrays_examples(a); j++)
            assert_int_equal(I32(out[0])[2 * j] % 3, s);
        trn_tensor_unref(out[0]);
        trn_arrays_free(a);
    }
    assert_int_equal(count, 10);
    ok(trn_arrays_new(&a, in, 1, &(trn_arrays_opts){.batch = 4, .drop_remainder = true}));
    assert_int_equal(trn_arrays_batches(a), 2);
    trn_arrays_free(a);
    trn_tensor *short_one = trn_tensor_from(TRN_FLOAT, 1, (int64_t[]){3}, (float[3]){0}), *rows;
    fails(trn_arrays_new(&a, (trn_tensor *[]){in[0], short_one}, 2, NULL), TRN_INVALID_ARGUMENT, "array 1 is [3], but the first is [10,2]");
    fails(trn_arrays_new(&a, in, 2, &(trn_arrays_opts){.shards = 20, .shard = 12}), TRN_INVALID_ARGUMENT, "shard 12 of 20 has 0 of 10");
    fails(trn_tensor_rows(&rows, in[0], 5, 6), TRN_OUT_OF_RANGE, "rows 5 to 11");
    ok(trn_tensor_rows(&rows, in[0], 5, 5));
    assert_int_equal(I32(rows)[0], 5);
    trn_tensor_unref(rows);
    trn_tensor_unref(short_one);
    trn_tensor_unref(in[0]);
    trn_tensor_unref(in[1]);
}

static const char *bytes_file(const char *name, const void *p, size_t n)
{
    const char *path = file(name, NULL);
    FILE *f = fopen(path, "wb");
    assert_int_equal(fwrite(p, 1, n, f), n);
    fclose(f);
    return path;
}

static void unref(trn_tensor **t, int n)
{
    for (int i = 0; i < n; i++)
        trn_tensor_unref(t[i]);
}

/* Whatever the options, and after rewinding too, the batches are those of the arrays in memory. */
static void same_batches(trn_arrays *a, trn_arrays *m, int n_arrays, int batches)
{
    trn_tensor *x[3], *y[3];
    assert_int_equal(trn_arrays_examples(a), trn_arrays_examples(m));
    assert_int_equal(trn_arrays_batches(a), trn_arrays_batches(m));
    for (int k = 0; k < batches; k++) {
        if (k == batches / 2) { /* the batch that was read ahead is not the one that is wanted */
            trn_arrays_rewind(a, 2);
            trn_arrays_rewind(m, 2);
        }
        assert_int_equal(trn_arrays_epoch(a), trn_arrays_epoch(m));
        trn_err ea = trn_arrays_next(x, a), em = trn_arrays_next(y, m);
        assert_int_equal(trn_err_code(ea), trn_err_code(em));
        trn_err_free(em);
        if (ea) {
            fails(ea, TRN_OUT_OF_RANGE, "epochs");
            continue;
        }
        for (int i = 0; i < n_arrays; i++) {
            assert_int_equal(trn_tensor_dtype(x[i]), trn_tensor_dtype(y[i]));
            assert_true(trn_shape_eq(trn_tensor_shape(x[i]), trn_tensor_shape(y[i])));
            if (trn_tensor_dtype(x[i]) == TRN_STRING)
                for (int64_t j = 0; j < trn_tensor_count(x[i]); j++) {
                    size_t p, q;
                    const char *u = trn_tensor_str_at(x[i], j, &p), *v = trn_tensor_str_at(y[i], j, &q);
                    assert_true(p == q && memcmp(u, v, p) == 0);
                }
            else
                assert_memory_equal(trn_tensor_data(x[i]), trn_tensor_data(y[i]), trn_tensor_bytes(x[i]));
        }
        unref(x, n_arrays);
        unref(y, n_arrays);
    }
    trn_arrays_free(a);
    trn_arrays_free(m);
}

static const trn_arrays_opts some_opts[] = {
    {.batch = 4, .epochs = 2},
    {.batch = 3, .shuffle = true, .seed = 5},
    {.batch = 5, .shuffle = true, .seed = 5, .shards = 3, .shard = 1, .epochs = 3},
    {.batch = 4, .drop_remainder = true, .shuffle = true},
    {.batch = 1000, .shuffle = true, .seed = 1, .epochs = 4},
};

static void test_array_files(void **state)
{
    float x[23][2];
    int16_t y[23];
    uint8_t idx_x[16 + sizeof x] = {0, 0, 0x0d, 2, 0, 0, 0, 23, 0, 0, 0, 2}, idx_y[8 + 2 * 23] = {0, 0, 0x0b, 1, 0, 0, 0, 23};
    for (int i = 0; i < 23; i++) {
        x[i][0] = (float)i / 3;
        x[i][1] = -(float)i;
        y[i] = (int16_t)(300 * i - 7);
        for (int k = 0; k < 2; k++) /* IDX has the highest byte first */
            for (int b = 0; b < 4; b++)
                idx_x[12 + 4 * (2 * i + k) + b] = ((const uint8_t *)&x[i][k])[3 - b];
        idx_y[8 + 2 * i] = (uint8_t)((uint16_t)y[i] >> 8);
        idx_y[9 + 2 * i] = (uint8_t)y[i];
    }
    trn_tensor *in[2] = {trn_tensor_from(TRN_FLOAT, 2, (int64_t[]){23, 2}, x), trn_tensor_from(TRN_INT16, 1, (int64_t[]){23}, y)}, *t;
    const char *npy = file("x.npy", NULL);
    ok(trn_npy_write(npy, in[0]));
    char xs[64], ys[64], raw[64];
    snprintf(xs, sizeof xs, "%s", bytes_file("x.idx", idx_x, 12 + sizeof x));
    snprintf(ys, sizeof ys, "%s", bytes_file("y.idx", idx_y, sizeof idx_y));
    snprintf(raw, sizeof raw, "%s", bytes_file("x.raw", x, sizeof x));
    trn_arrays *a, *m;
    trn_shape pair = trn_shape_vector(2);
    /* One whose rows are read one by one, and turned round. */
    uint8_t big[4 + 4 * 2 + 23 * 40] = {0, 0, 0x0c, 2, 0, 0, 0, 23, 0, 0, 0, 10};
    int32_t want[23][10];
    for (int i = 0; i < 230; i++) {
        want[i / 10][i % 10] = i * 1000003;
        for (int b = 0; b < 4; b++)
            big[12 + 4 * i + b] = (uint8_t)((uint32_t)want[i / 10][i % 10] >> (24 - 8 * b));
    }
    trn_tensor *large = trn_tensor_from(TRN_INT32, 2, (int64_t[]){23, 10}, want);
    for (size_t i = 0; i < sizeof some_opts / sizeof *some_opts; i++) {
        ok(trn_arrays_open(&a, &(trn_array_file){bytes_file("big.idx", big, sizeof big)}, 1, &some_opts[i]));
        ok(trn_arrays_new(&m, &large, 1, &some_opts[i]));
        same_batches(a, m, 1, 14);
    }
    trn_tensor_unref(large);
    npy = file("x.npy", NULL);
    for (size_t i = 0; i < sizeof some_opts / sizeof *some_opts; i++)
        for (int kind = 0; kind < 3; kind++) {
            const trn_array_file of[3][2] = {{{npy}, {ys}}, {{xs}, {ys}}, {{raw, TRN_FLOAT, &pair, 0}, {ys, 0, NULL, 0}}};
            ok(trn_arrays_open(&a, of[kind], 2, &some_opts[i]));
            ok(trn_arrays_new(&m, in, 2, &some_opts[i]));
            same_batches(a, m, 2, 14);
        }
    /* Freed while the next batch is being read, or before any was. */
    for (int i = 0; i < 20; i++) {
        ok(trn_arrays_open(&a, &(trn_array_file){npy}, 1, NULL));
        if (i % 2) {
            ok(trn_arrays_next(&t, a));
            trn_tensor_unref(t);
        }
        trn_arrays_free(a);
    }
    ok(trn_array_file_read(&t, &(trn_array_file){xs}));
    assert_memory_equal(trn_tensor_data(t), x, sizeof x);
    trn_tensor_unref(t);
    ok(trn_array_file_read(&t, &(trn_array_file){raw, TRN_DOUBLE, NULL, 8})); /* other numbers, from the second on */
    assert_int_equal(trn_tensor_count(t), 22);
    trn_tensor_unref(t);
    /* A file that gets shorter is an error of that batch, and the program may try again. */
    trn_shape wide = trn_shape_vector(10); /* small examples would be held */
    assert_int_equal(truncate(raw, 4 * 40), 0);
    ok(trn_arrays_open(&a, &(trn_array_file){raw, TRN_FLOAT, &wide, 0}, 1, &(trn_arrays_opts){.batch = 2}));
    assert_int_equal(truncate(raw, 81), 0);
    ok(trn_arrays_next(&t, a));
    trn_tensor_unref(t);
    fails(trn_arrays_next(&t, a), TRN_DATA_LOSS, "x.raw ends at 81");
    fails(trn_arrays_next(&t, a), TRN_DATA_LOSS, "example 2");
    trn_arrays_free(a);
    unref(in, 2);
}

#define NPY(header) "\x93NUMPY\1\0\x60\0" header
/* A version 1 file: the header is padded to 0x60 bytes, then 12 bytes follow. */
static const char *npy_file(const char *name, const char *header, size_t data)
{
    char all[10 + 0x60 + 64];
    memset(all, ' ', 10 + 0x60);
    memcpy(all, "\x93NUMPY\1\0\x60\0", 10);
    memcpy(all + 10, header, strlen(header));
    memset(all + 10 + 0x60, 2, data);
    return bytes_file(name, all, 10 + 0x60 + data);
}

static void test_odd_files(void **state)
{
    trn_arrays *a;
    trn_tensor *t;
#define ODD(path_, code, part) fails(trn_arrays_open(&a, &(trn_array_file){.path = path_}, 1, NULL), code, part)
    ODD(NULL, TRN_INVALID_ARGUMENT, "without a name");
    ODD(file("absent.npy", NULL), TRN_NOT_FOUND, "absent.npy");
    ODD(dir, TRN_FAILED_PRECONDITION, "not a regular file");
    ODD(file("text", "1,2\n3,4\n"), TRN_INVALID_ARGUMENT, "neither a .npy nor an IDX");
    ODD(file("empty", ""), TRN_INVALID_ARGUMENT, "neither");
    ODD(bytes_file("x.gz", "\x1f\x8b\x08\0\0\0\0\0\0\0", 10), TRN_INVALID_ARGUMENT, "unpack it first");
    ODD(npy_file("1.npy", "{'descr': '<i4', 'fortran_order': False, 'shape': (4,), }", 12), TRN_DATA_LOSS, "1.npy is cut off: its [4] of int32");
    ODD(npy_file("2.npy", "{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }", 12), TRN_INVALID_ARGUMENT, "4 bytes follow its [2] of int32");
    ODD(npy_file("3.npy", "{'descr': '<i4', 'fortran_order': True, 'shape': (3,), }", 12), TRN_INVALID_ARGUMENT, "fortran_order");
    ODD(npy_file("4.npy", "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }", 12), TRN_INVALID_ARGUMENT, "\"|O\"");
    ODD(npy_file("5.npy", "{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (3,), }", 12), TRN_INVALID_ARGUMENT, "several fields");
    ODD(npy_file("6.npy", "{'descr': '<i4', 'fortran_order': False, 'shape': (), }", 4), TRN_INVALID_ARGUMENT, "not a row of examples");
    ODD(npy_file("7.npy", "{'descr': '<i4', 'fortran_order': False, 'shape': (99999999999999999999,), }", 4), TRN_INVALID_ARGUMENT, "cannot be understood");
    ODD(npy_file("8.npy", "{'descr': '<i4', 'fortran_order': False, 'shape': (3037000500, 3037000500), }", 4), TRN_INVALID_ARGUMENT, "elements");
    ODD(npy_file("9.npy", "{'descr': '<i4', 'fortran_order': False, 'shape': (4611686018427387904, 0), }", 0), TRN_INVALID_ARGUMENT, "not a row of examples");
    ODD(npy_file("10.npy", "{'descr': '<i4', 'fortran_order': False, 'shape': (0, 3), }", 0), TRN_INVALID_ARGUMENT, "0 examples");
    ODD(npy_file("11.npy", "{'descr': '<i4', 'fortran_order': Fal", 0), TRN_INVALID_ARGUMENT, "cannot be understood");
    ODD(npy_file("12.npy", "{'descr': '<i4', 'shape': (1", 0), TRN_INVALID_ARGUMENT, "cannot be understood");
    ODD(bytes_file("13.npy", NPY(""), 10), TRN_DATA_LOSS, "inside its .npy header");
    ODD(bytes_file("14.npy", NPY("{'descr'"), 18), TRN_DATA_LOSS, "inside its .npy header");
    ODD(bytes_file("15.npy", "\x93NUMPY\7\0\0\0\0\0", 12), TRN_INVALID_ARGUMENT, "version 7");
    ODD(bytes_file("1.idx", "\0\0\x08\3\0\0", 6), TRN_DATA_LOSS, "inside its IDX header");
    ODD(bytes_file("2.idx", "\0\0\x0a\1\0\0\0\1", 8), TRN_INVALID_ARGUMENT, "element type 10");
    ODD(bytes_file("3.idx", "\0\0\x08\1\xff\xff\xff\xff", 8), TRN_DATA_LOSS, "[4294967295] of uint8");
    fails(trn_arrays_open(&a, &(trn_array_file){.path = file("5.raw", "12345"), .dtype = TRN_INT32}, 1, NULL), TRN_INVALID_ARGUMENT, "5 bytes do not make whole examples of 1 int32");
    fails(trn_arrays_open(&a, &(trn_array_file){.path = file("5.raw", NULL), .dtype = TRN_STRING}, 1, NULL), TRN_INVALID_ARGUMENT, "plain string");
    fails(trn_arrays_open(&a, &(trn_array_file){.path = file("5.raw", NULL), .dtype = TRN_UINT8, .skip = 6}, 1, NULL), TRN_INVALID_ARGUMENT, "to be left out");
    trn_array_file two[2] = {{npy_file("16.npy", "{'descr': '>i2', 'fortran_order': False, 'shape': (3, 2), }", 12)}, {npy_file("17.npy", "{'descr': '|b1', 'fortran_order': False, 'shape': (2L,), }", 2)}};
    fails(trn_arrays_open(&a, two, 2, NULL), TRN_INVALID_ARGUMENT, "17.npy is [2], but");
    ok(trn_array_file_read(&t, &two[0]));
    assert_int_equal(((const int16_t *)trn_tensor_data(t))[5], 0x0202);
    trn_tensor_unref(t);
    ok(trn_array_file_read(&t, &two[1]));
    assert_int_equal(((const uint8_t *)trn_tensor_data(t))[1], 1); /* a bool is 0 or 1 */
    trn_tensor_unref(t);
    t = trn_tensor_str("x", 1);
    fails(trn_npy_write(file("s.npy", NULL), t), TRN_INVALID_ARGUMENT, "string");
    trn_tensor_unref(t);
}

/* Whatever bytes a file has: an answer, never a crash. */
static void test_any_bytes(void **state)
{
    static const char npy[] = "\x93NUMPY\1\0\x39\0{'descr': '<i2', 'fortran_order': False, 'shape': (3, 2)}12345678abcd";
    static const char idx[] = "\0\0\x0b\2\0\0\0\3\0\0\0\2" "12345678abcd";
    uint32_t random = 1;
    for (int i = 0; i < 1000; i++) {
        char bytes[128];
        size_t n = i % 2 ? sizeof npy - 1 : sizeof idx - 1;
        memcpy(bytes, i % 2 ? npy : idx, n);
        for (int k = 0; k < i % 5; k++) { /* a byte is another one, or the file ends there */
            random = random * 1664525 + 1013904223;
            size_t at = (random >> 8) % n;
            bytes[at] = (char)(random >> 24);
            if (random >> 5 & (k == 3))
                n = at + 1;
        }
        trn_tensor *t;
        trn_arrays *a;
        trn_array_file f = {.path = bytes_file("any", bytes, n)};
        trn_err err = trn_array_file_read(&t, &f);
        if (i % 5 == 0)
            ok(err);
        if (!err)
            trn_tensor_unref(t);
        trn_err_free(err);
        err = i % 7 ? TRN_OK : trn_arrays_open(&a, &f, 1, NULL);
        if (!err && i % 7 == 0) {
            err = trn_arrays_next(&t, a);
            if (!err)
                trn_tensor_unref(t);
            trn_arrays_free(a);
        }
        trn_err_free(err);
    }
}

static void test_record_arrays(void **state)
{
    float x[17][2];
    int64_t id[17];
    const char *name[17];
    char text[17][40];
    char paths[3][64];
    const char *files[3];
    trn_record_writer *w = NULL;
    for (int f = 0; f < 3; f++)
        files[f] = strcpy(paths[f], file(f == 0 ? "0.rec" : f == 1 ? "1.rec" : "2.rec", NULL));
    for (int i = 0; i < 17; i++) { /* 9 in the first file, none in the second, 8 in the third */
        if (i == 0 || i == 9) {
            if (i)
                ok(trn_record_writer_close(w));
            ok(trn_record_writer_open(&w, files[i ? 2 : 0], NULL));
        }
        x[i][0] = (float)i;
        x[i][1] = (float)(i * i);
        id[i] = 1000 - i;
        snprintf(text[i], sizeof text[i], "a name of some length %d", i);
        name[i] = text[i];
        trn_tensor *v[3] = {trn_tensor_from(TRN_FLOAT, 1, (int64_t[]){2}, x[i]), trn_tensor_i64(id[i]), trn_tensor_str(text[i], strlen(text[i]))};
        void *p;
        size_t n;
        ok(trn_example_encode(&p, &n, (trn_feature[]){{"x", v[0]}, {"id", v[1]}, {"name", v[2]}}, 3));
        ok(trn_record_writer_add(w, p, n));
        free(p);
        unref(v, 3);
    }
    ok(trn_record_writer_close(w));
    file("1.rec", "");
    trn_shape pair = trn_shape_vector(2), scalar = trn_shape_scalar();
    trn_feature_spec specs[3] = {{"x", TRN_FLOAT, &pair}, {"id", TRN_INT64, &scalar}, {"name", TRN_STRING, &scalar}};
    trn_tensor *in[3] = {trn_tensor_from(TRN_FLOAT, 2, (int64_t[]){17, 2}, x), trn_tensor_from(TRN_INT64, 1, (int64_t[]){17}, id), trn_tensor_from(TRN_STRING, 1, (int64_t[]){17}, name)};
    trn_arrays *a, *m;
    for (size_t i = 0; i < sizeof some_opts / sizeof *some_opts; i++) {
        ok(trn_arrays_open_records(&a, files, 3, specs, 3, &some_opts[i]));
        ok(trn_arrays_new(&m, in, 3, &some_opts[i]));
        same_batches(a, m, 3, 14);
    }
    fails(trn_arrays_open_records(&a, files, 3, (trn_feature_spec[]){{"x", TRN_FLOAT, NULL}}, 1, NULL), TRN_INVALID_ARGUMENT, "batches need a known one");
    fails(trn_arrays_open_records(&a, files, 3, (trn_feature_spec[]){{"x", TRN_INT32, &pair}}, 1, NULL), TRN_INVALID_ARGUMENT, "as int32");
    fails(trn_arrays_open_records(&a, files + 1, 1, specs, 1, NULL), TRN_INVALID_ARGUMENT, "0 examples");
    trn_tensor *t;
    ok(trn_arrays_open_records(&a, files, 3, (trn_feature_spec[]){{"id", TRN_INT64, &pair}}, 1, NULL));
    fails(trn_arrays_next(&t, a), TRN_INVALID_ARGUMENT, "0.rec, record 0");
    trn_arrays_free(a);
    /* Damage in a length is seen when the file is opened, damage in a record when it is read. */
    FILE *f = fopen(files[2], "r+b");
    fseek(f, 20, SEEK_SET);
    fputc('!', f);
    fclose(f);
    ok(trn_arrays_open_records(&a, files, 3, specs, 3, &(trn_arrays_opts){.batch = 9}));
    trn_tensor *got[3];
    ok(trn_arrays_next(got, a));
    unref(got, 3);
    fails(trn_arrays_next(got, a), TRN_DATA_LOSS, "corrupted record at 0 of ");
    trn_arrays_free(a);
    assert_int_equal(truncate(files[2], 100), 0);
    fails(trn_arrays_open_records(&a, files, 3, specs, 3, NULL), TRN_DATA_LOSS, "2.rec ends inside a record");
    fails(trn_arrays_open_records(&a, (const char *[]){file("text", "neither records nor anything")}, 1, specs, 3, NULL), TRN_DATA_LOSS, "no TFRecord file");
    fails(trn_arrays_open_records(&a, (const char *[]){bytes_file("z.gz", "\x1f\x8b\x08\0\0\0\0\0\0\0\0\0\0\0", 14)}, 1, specs, 3, NULL), TRN_INVALID_ARGUMENT, "compressed");
    unref(in, 3);
}

static void test_csv(void **state)
{
    trn_tensor *t[3];
    size_t n;
    const char *path = file("a.csv", "a,b,name,c\r\n1,2.5,\"x, \"\"y\"\"\nz\",-3\r\n\r\n4, 5e1 ,plain,6");
    trn_csv_field f[] = {{TRN_FLOAT, 0, 2}, {TRN_STRING, 2, 0}, {TRN_INT64, 3, 0}};
    ok(trn_csv_read(t, path, f, 3, &(trn_csv_opts){.header = true}));
    assert_int_equal(trn_tensor_shape(t[0])->rank, 2);
    assert_true(F32(t[0])[0] == 1 && F32(t[0])[1] == 2.5f && F32(t[0])[2] == 4 && F32(t[0])[3] == 50);
    const char *s = trn_tensor_str_at(t[1], 0, &n);
    assert_int_equal(n, 8);
    assert_memory_equal(s, "x, \"y\"\nz", 8);
    assert_true(I64(t[2])[0] == -3 && I64(t[2])[1] == 6);
    for (int i = 0; i < 3; i++)
        trn_tensor_unref(t[i]);
    trn_csv_field one[] = {{TRN_INT32, 1, 0}};
    fails(trn_csv_read(t, file("b.csv", "1,2\n3,x\n"), one, 1, NULL), TRN_INVALID_ARGUMENT, "b.csv, line 2, column 1: this is no integer (\"x\")");
    fails(trn_csv_read(t, file("c.csv", "1,2\n3\n"), one, 1, NULL), TRN_INVALID_ARGUMENT, "c.csv, line 2: 1 columns, at least 2");
    fails(trn_csv_read(t, file("d.csv", "1,3000000000\n"), one, 1, NULL), TRN_INVALID_ARGUMENT, "int32");
    fails(trn_csv_read(t, file("e.csv", "1,\n"), one, 1, NULL), TRN_INVALID_ARGUMENT, "empty");
    fails(trn_csv_read(t, file("f.csv", "1,\"2\n"), one, 1, NULL), TRN_INVALID_ARGUMENT, "not closed");
    fails(trn_csv_read(t, file("none.csv", NULL), one, 1, NULL), TRN_NOT_FOUND, "none.csv");
    ok(trn_csv_read(t, file("g.csv", "1;\n2;NA\n3;4\n"), one, 1, &(trn_csv_opts){.delim = ';', .na = "NA"}));
    assert_true(trn_tensor_count(t[0]) == 3 && I32(t[0])[0] == 0 && I32(t[0])[1] == 0 && I32(t[0])[2] == 4);
    trn_tensor_unref(t[0]);
    ok(trn_csv_read(t, file("h.csv", ""), one, 1, NULL));
    assert_int_equal(trn_tensor_count(t[0]), 0);
    trn_tensor_unref(t[0]);
}

static void test_records(void **state)
{
    const char *how[] = {NULL, "GZIP", "ZLIB"};
    char big[70000];
    for (size_t i = 0; i < sizeof big; i++)
        big[i] = (char)(i * 31 % 251);
    for (int c = 0; c < 3; c++) {
        const char *path = file("r.tfrecord", NULL);
        trn_record_writer *w;
        ok(trn_record_writer_open(&w, path, how[c]));
        ok(trn_record_writer_add(w, "first", 5));
        ok(trn_record_writer_add(w, "", 0));
        if (!c)
            assert_int_not_equal(access(path, F_OK), 0); /* not in place before it is whole */
        ok(trn_record_writer_add(w, big, sizeof big));
        ok(trn_record_writer_close(w));
        trn_record_reader *r;
        const void *p;
        size_t n;
        ok(trn_record_reader_open(&r, path, how[c]));
        ok(trn_record_reader_next(&p, &n, r));
        assert_int_equal(n, 5);
        assert_memory_equal(p, "first", 5);
        ok(trn_record_reader_next(&p, &n, r));
        assert_int_equal(n, 0);
        ok(trn_record_reader_next(&p, &n, r));
        assert_int_equal(n, sizeof big);
        assert_memory_equal(p, big, n);
        fails(trn_record_reader_next(&p, &n, r), TRN_OUT_OF_RANGE, "no more");
        trn_record_reader_close(r);
    }
    trn_record_writer *w;
    ok(trn_record_writer_open(&w, file("gone", NULL), NULL));
    trn_record_writer_abort(w);
    assert_int_not_equal(access(file("gone", NULL), F_OK), 0);
    fails(trn_record_writer_open(&w, file("x", NULL), "LZ4"), TRN_INVALID_ARGUMENT, "LZ4");
    trn_record_reader *r;
    const void *p;
    size_t n;
    ok(trn_record_reader_open(&r, file("bad", "this is no record file at all"), NULL));
    fails(trn_record_reader_next(&p, &n, r), TRN_DATA_LOSS, "bad");
    trn_record_reader_close(r);
}

static void test_example(void **state)
{
    trn_tensor *f = trn_tensor_from(TRN_FLOAT, 2, (int64_t[]){2, 2}, (float[]){1, 2, 3, 4}), *i = trn_tensor_from(TRN_INT64, 1, (int64_t[]){2}, (int64_t[]){-1, 300});
    trn_tensor *s = trn_tensor_from(TRN_STRING, 1, (int64_t[]){2}, (const char *[]){"ab", ""}), *out[4];
    void *bytes;
    size_t n;
    ok(trn_example_encode(&bytes, &n, (trn_feature[]){{"x", f}, {"ids", i}, {"name", s}}, 3));
    trn_shape two = trn_shape_of(2, (int64_t)2, (int64_t)2), three = trn_shape_vector(3);
    ok(trn_example_decode(out, bytes, n, (trn_feature_spec[]){{"ids", TRN_INT64}, {"x", TRN_FLOAT, &two}, {"name", TRN_STRING}, {"absent", TRN_FLOAT}}, 4));
    assert_true(trn_tensor_count(out[0]) == 2 && I64(out[0])[0] == -1 && I64(out[0])[1] == 300);
    assert_true(trn_tensor_shape(out[1])->rank == 2 && F32(out[1])[3] == 4);
    size_t len;
    assert_memory_equal(trn_tensor_str_at(out[2], 0, &len), "ab", 2);
    assert_int_equal(trn_tensor_count(out[2]), 2);
    assert_null(out[3]);
    for (int k = 0; k < 3; k++)
        trn_tensor_unref(out[k]);
    fails(trn_example_decode(out, bytes, n, (trn_feature_spec[]){{"ids", TRN_FLOAT}}, 1), TRN_INVALID_ARGUMENT, "\"ids\" is a int64_list, not a float_list");
    fails(trn_example_decode(out, bytes, n, (trn_feature_spec[]){{"ids", TRN_INT64, &three}}, 1), TRN_INVALID_ARGUMENT, "2 values");
    fails(trn_example_decode(out, bytes, n, (trn_feature_spec[]){{"absent", TRN_INT64, &three}}, 1), TRN_INVALID_ARGUMENT, "0 values");
    for (size_t cut = 0; cut < n; cut++) { /* whatever is cut off: an error or fewer values, never a crash */
        trn_err err = trn_example_decode(out, bytes, cut, (trn_feature_spec[]){{"ids", TRN_INT64}, {"x", TRN_FLOAT}, {"name", TRN_STRING}}, 3);
        for (int k = 0; k < 3 && !err; k++)
            trn_tensor_unref(out[k]);
        trn_err_free(err);
    }
    free(bytes);
    trn_tensor *b = trn_tensor_bool(true);
    fails(trn_example_encode(&bytes, &n, &(trn_feature){"b", b}, 1), TRN_INVALID_ARGUMENT, "\"b\" is of bool");
    trn_tensor_unref(b);
    trn_tensor_unref(f);
    trn_tensor_unref(i);
    trn_tensor_unref(s);
}

/* All values of the first tensor of an iterator, until it ends; -1 behind them. */
static int drain(int64_t *out, int max, trn_session *s, trn_builder *b, trn_iterator *it)
{
    const char *init = trn_out_is(it->init) ? trn_out_name(b, trn_out_node(it->init)) : NULL, *next = trn_out_name(b, it->next.at[0]);
    ok(trn_session_extend_builder(s, b));
    if (init)
        ok(trn_session_run(s, &(trn_run){.targets = &init, .n_targets = 1}));
    int n = 0;
    for (;;) {
        trn_tensor *t;
        trn_err err = trn_session_run(s, &(trn_run){.fetches = &next, .n_fetches = 1, .out = &t});
        if (err) {
            assert_int_equal(trn_err_code(err), TRN_OUT_OF_RANGE);
            trn_err_free(err);
            return n;
        }
        for (int64_t i = 0; i < trn_tensor_count(t) && n < max; i++)
            out[n++] = trn_tensor_dtype(t) == TRN_INT64 ? I64(t)[i] : trn_tensor_dtype(t) == TRN_INT32 ? I32(t)[i] : (int64_t)trn_tensor_bytes(t);
        trn_tensor_unref(t);
    }
}
#define DRAINS(d, ...)                                                                                                                                  \
    do {                                                                                                                                                \
        int64_t want_[] = {__VA_ARGS__}, got_[64];                                                                                                      \
        int n_ = drain(got_, 64, s, b, trn_iterator_new(d));                                                                                            \
        assert_int_equal(n_, sizeof want_ / sizeof *want_);                                                                                             \
        assert_memory_equal(got_, want_, sizeof want_);                                                                                                 \
    } while (0)

static void twice_and_sum(void *arg, trn_builder *b, const trn_out *in, trn_out *out)
{
    out[0] = trn_op_mul(b, in[0], trn_const_i64(b, 2));
    out[1] = trn_op_cast(b, trn_op_add_v2(b, in[0], *(trn_out *)arg), TRN_FLOAT, NULL); /* takes something from outside */
}

static trn_out is_even(void *arg, trn_builder *b, const trn_out *in)
{
    return trn_op_equal(b, trn_op_floor_mod(b, in[0], trn_const_i64(b, 2)), trn_const_i64(b, 0), NULL);
}

static trn_out no_bool(void *arg, trn_builder *b, const trn_out *in) { return in[0]; }

static trn_dataset *evens(void *arg, trn_builder *b)
{
    if (arg) { /* something from outside */
        trn_dataset *d = trn_dataset_tensors(b, (const trn_out *)arg, 1);
        return d;
    }
    return trn_dataset_filter(trn_dataset_range(b, 0, 7, 1), is_even, NULL);
}

static trn_dataset *no_set(void *arg, trn_builder *b) { return NULL; }

static void test_datasets(void **state)
{
    trn_server *server;
    trn_session *s;
    ok(trn_server_create_local(&server));
    ok(trn_session_open_on(&s, server, NULL));
    trn_builder *b = trn_builder_new();
    trn_dataset *r = trn_dataset_range(b, 0, 7, 1);
    DRAINS(r, 0, 1, 2, 3, 4, 5, 6);
    DRAINS(trn_dataset_take(trn_dataset_skip(r, 2), 3), 2, 3, 4);
    DRAINS(trn_dataset_shard(r, 3, 1), 1, 4);
    DRAINS(trn_dataset_repeat(trn_dataset_take(r, 2), 2), 0, 1, 0, 1);
    DRAINS(trn_dataset_prefetch(trn_dataset_concatenate(trn_dataset_take(r, 1), trn_dataset_skip(r, 6)), 2), 0, 6);
    DRAINS(trn_dataset_repeat(trn_dataset_cache(trn_dataset_take(r, 2)), 2), 0, 1, 0, 1);
    trn_dataset *batch = trn_dataset_batch(r, 3, true);
    char text[TRN_SHAPE_TEXT];
    trn_iterator *it = trn_iterator_new(batch);
    assert_string_equal(trn_shape_text(text, trn_out_shape(b, it->next.at[0])), "[3]");
    DRAINS(batch, 0, 1, 2, 3, 4, 5);
    /* Two tensors by example, zipped with a third. */
    trn_out x = trn_const(b, trn_tensor_from(TRN_INT32, 2, (int64_t[]){2, 2}, (int32_t[]){1, 2, 3, 4})), y = trn_const(b, trn_tensor_from(TRN_FLOAT, 1, (int64_t[]){2}, (float[]){5, 6}));
    trn_dataset *pair = trn_dataset_slices(b, TRN_OUTS(x, y)), *three = trn_dataset_zip((trn_dataset *[]){pair, r}, 2);
    assert_int_equal(three->n, 3);
    assert_int_equal(three->types[1], TRN_FLOAT);
    DRAINS(three, 1, 2, 3, 4);
    DRAINS(trn_dataset_tensors(b, &x, 1), 1, 2, 3, 4);
    /* The same seed, the same order; a permutation. */
    int64_t first[8], again[8];
    assert_int_equal(drain(first, 8, s, b, trn_iterator_new(trn_dataset_shuffle(r, 100, TRN_I(3)))), 7);
    assert_int_equal(drain(again, 8, s, b, trn_iterator_new(trn_dataset_shuffle(r, 100, TRN_I(3)))), 7);
    assert_memory_equal(first, again, 7 * sizeof *first);
    /* Functions. */
    trn_out ten = trn_const_i64(b, 10);
    trn_dataset *mapped = trn_dataset_map(r, twice_and_sum, &ten, 2, 0);
    assert_true(mapped->n == 2 && mapped->types[0] == TRN_INT64 && mapped->types[1] == TRN_FLOAT && mapped->shapes[1].rank == 0);
    DRAINS(mapped, 0, 2, 4, 6, 8, 10, 12);
    DRAINS(trn_dataset_map(r, twice_and_sum, &ten, 2, 3), 0, 2, 4, 6, 8, 10, 12);
    DRAINS(trn_dataset_filter(r, is_even, NULL), 0, 2, 4, 6);
    DRAINS(trn_dataset_batch(trn_dataset_map(trn_dataset_filter(r, is_even, NULL), twice_and_sum, &ten, 2, -1), 3, true), 0, 4, 8);
    /* Files. */
    const char *path = file("s.csv", "1,2\n3,4\n");
    DRAINS(trn_dataset_csv(b, &path, 1, (trn_dtype[]){TRN_INT64}, 1, (int64_t[]){1}, NULL), 2, 4);
    DRAINS(trn_dataset_csv(b, &path, 1, (trn_dtype[]){TRN_INT32, TRN_FLOAT}, 2, NULL, NULL), 1, 3);
    int n = drain(first, 8, s, b, trn_iterator_new(trn_dataset_lines(b, &path, 1, NULL)));
    assert_int_equal(n, 2);
    trn_record_writer *w;
    path = file("d.tfrecord", NULL);
    ok(trn_record_writer_open(&w, path, NULL));
    for (int i = 0; i < 3; i++)
        ok(trn_record_writer_add(w, "abc", (size_t)i));
    ok(trn_record_writer_close(w));
    assert_int_equal(drain(first, 8, s, b, trn_iterator_new(trn_dataset_records(b, &path, 1, NULL))), 3);
    /* No init, and over after one pass. */
    it = trn_iterator_one_shot(b, evens, NULL);
    assert_true(it->next.n == 1 && !trn_out_is(it->init));
    assert_int_equal(drain(first, 8, s, b, it), 4);
    assert_int_equal(first[3], 6);
    assert_int_equal(drain(first, 8, s, b, it), 0);
    ok(trn_builder_check(b));
    trn_collection(&n, b, "table_initializer");
    assert_true(n > 10);
    trn_err_free(trn_session_close(s));
    trn_server_close(server, 0);
    /* After an error everything is a dataset of nothing. */
    trn_dataset *none = trn_dataset_shard(r, 3, 3);
    none = trn_dataset_batch(trn_dataset_shuffle(none, 10, TRN_I(1)), 2, false);
    it = trn_iterator_new(none);
    assert_false(trn_out_is(it->init));
    fails(trn_builder_check(b), TRN_INVALID_ARGUMENT, "shard 3 of 3");
    trn_builder_free(b);
    b = trn_builder_new();
    trn_dataset_filter(trn_dataset_range(b, 0, 3, 1), no_bool, NULL);
    fails(trn_builder_check(b), TRN_INVALID_ARGUMENT, "bool scalar");
    trn_builder_free(b);
    b = trn_builder_new();
    trn_out outside = trn_placeholder(b, "fed", TRN_INT64, trn_shape_scalar());
    trn_iterator_one_shot(b, evens, &outside);
    fails(trn_builder_check(b), TRN_INVALID_ARGUMENT, "depends on 'fed:0', which is outside");
    trn_builder_free(b);
    b = trn_builder_new();
    trn_iterator_one_shot(b, no_set, NULL);
    fails(trn_builder_check(b), TRN_INVALID_ARGUMENT, "gave no dataset");
    trn_builder_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arrays), cmocka_unit_test(test_array_files), cmocka_unit_test(test_odd_files), cmocka_unit_test(test_any_bytes), cmocka_unit_test(test_record_arrays),
        cmocka_unit_test(test_csv), cmocka_unit_test(test_records), cmocka_unit_test(test_example), cmocka_unit_test(test_datasets),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
