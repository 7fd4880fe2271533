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

static char dir[] = "/tmp/trn_input_XXXXXX";

static int start(void **state) { return mkdtemp(dir) ? 0 : -1; }

static int stop(void **state)
{
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -r %s", dir);
    return system(cmd);
}

static void ok(trn_err err)
{
    if (err)
        fail_msg("%s", trn_err_msg(err));
}

static void fails(trn_err err, trn_code code, const char *part)
{
    assert_non_null(err);
    if (trn_err_code(err) != code || !strstr(trn_err_msg(err), part))
        fail_msg("%d \"%s\" does not say \"%s\"", (int)trn_err_code(err), trn_err_msg(err), part);
    trn_err_free(err);
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
    const char *init = trn_out_name(b, trn_out_node(it->init)), *next = trn_out_name(b, it->next.at[0]);
    ok(trn_session_extend_builder(s, b));
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
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arrays), cmocka_unit_test(test_csv), cmocka_unit_test(test_records), cmocka_unit_test(test_example), cmocka_unit_test(test_datasets),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
