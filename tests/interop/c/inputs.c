/* What input.h reads and writes, for test_c_input.py:
 *
 *     inputs write FILE COMPRESSION         three tf.Examples into a TFRecord file
 *     inputs read FILE COMPRESSION          the examples of a file that TensorFlow wrote, a line per feature
 *     inputs npy IN OUT                     an array file read, and written as .npy
 *     inputs datasets OUT.pb CSV RECORDS    a graph with iterators over all kinds of datasets: "iterator LABEL INIT NEXT…" for each
 */
#include <trainera/trainera.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static trn_err write_file(const char *path, const char *compression)
{
    trn_record_writer *w;
    TRN_TRY(trn_record_writer_open(&w, path, compression));
    for (int64_t i = 0; i < 3; i++) {
        trn_tensor *x = trn_tensor_from(TRN_FLOAT, 1, (int64_t[]){2}, (float[]){(float)i, (float)i / 4}), *id = trn_tensor_i64(i - 1), *name = trn_tensor_str("name\0x", 6);
        void *p;
        size_t n;
        TRN_TRY(trn_example_encode(&p, &n, (trn_feature[]){{"x", x}, {"id", id}, {"name", name}}, 3));
        TRN_TRY(trn_record_writer_add(w, p, n));
        free(p);
        trn_tensor_unref(x);
        trn_tensor_unref(id);
        trn_tensor_unref(name);
    }
    return trn_record_writer_close(w);
}

static trn_err read_file(const char *path, const char *compression)
{
    trn_record_reader *r;
    const void *p;
    size_t n;
    trn_err err;
    TRN_TRY(trn_record_reader_open(&r, path, compression));
    while (!(err = trn_record_reader_next(&p, &n, r))) {
        trn_tensor *t[4];
        TRN_TRY(trn_example_decode(t, p, n, (trn_feature_spec[]){{"x", TRN_FLOAT}, {"id", TRN_INT64}, {"name", TRN_STRING}, {"none", TRN_FLOAT}}, 4));
        for (int64_t i = 0; i < trn_tensor_count(t[0]); i++)
            printf("x %.9g\n", (double)((const float *)trn_tensor_data(t[0]))[i]);
        for (int64_t i = 0; i < trn_tensor_count(t[1]); i++)
            printf("id %lld\n", (long long)((const int64_t *)trn_tensor_data(t[1]))[i]);
        for (int64_t i = 0; i < trn_tensor_count(t[2]); i++) {
            size_t len;
            const char *s = trn_tensor_str_at(t[2], i, &len);
            printf("name %zu %.*s\n", len, (int)len, s);
        }
        printf("none %s\n", t[3] ? "there" : "absent");
        for (int i = 0; i < 4; i++)
            trn_tensor_unref(t[i]);
    }
    trn_record_reader_close(r);
    if (trn_err_code(err) != TRN_OUT_OF_RANGE)
        return err;
    trn_err_free(err);
    return TRN_OK;
}

static trn_err copy_array(const char *from, const char *to)
{
    trn_tensor *t;
    TRN_TRY(trn_array_file_read(&t, &(trn_array_file){from}));
    trn_err err = trn_npy_write(to, t);
    trn_tensor_unref(t);
    return err;
}

static trn_builder *b;

static void show(const char *label, const trn_iterator *it)
{
    if (!trn_builder_ok(b))
        return;
    printf("iterator %s %s", label, trn_out_is(it->init) ? trn_out_name(b, trn_out_node(it->init)) : "none");
    for (int i = 0; i < it->next.n; i++)
        printf(" %s", trn_out_name(b, it->next.at[i]));
    printf("\n");
}

static void iterator(const char *label, trn_dataset *d) { show(label, trn_iterator_new(d)); }

static void halve(void *arg, trn_builder *builder, const trn_out *in, trn_out *out)
{
    out[0] = trn_op_real_div(builder, trn_op_cast(builder, in[0], TRN_FLOAT, NULL), trn_const_f32(builder, 2));
    out[1] = in[0];
}

static trn_out large(void *arg, trn_builder *builder, const trn_out *in) { return trn_op_greater(builder, in[0], trn_const_i64(builder, 6)); }

static trn_dataset *squares(void *arg, trn_builder *builder)
{
    trn_dataset *d = trn_dataset_map(trn_dataset_range(builder, 0, *(const int64_t *)arg, 3), halve, NULL, 2, 0);
    return trn_dataset_batch(trn_dataset_shuffle(d, 10, TRN_I(2)), 3, false);
}

static trn_err datasets(const char *path, const char *csv, const char *records)
{
    b = trn_builder_new();
    trn_set_seed(b, 9);
    trn_dataset *r = trn_dataset_range(b, 0, 20, 2);
    iterator("range", r);
    iterator("shuffle", trn_dataset_shuffle(r, 4, TRN_I(3)));
    iterator("shuffle_graph_seed", trn_dataset_repeat(trn_dataset_shuffle(r, 100, (trn_maybe_int){0}), 2));
    iterator("batch", trn_dataset_batch(r, 4, false));
    iterator("drop", trn_dataset_batch(trn_dataset_shard(r, 3, 1), 2, true));
    iterator("map", trn_dataset_map(r, halve, NULL, 2, 0));
    iterator("parallel", trn_dataset_prefetch(trn_dataset_map(r, halve, NULL, 2, 4), 2));
    iterator("filter", trn_dataset_filter(trn_dataset_take(trn_dataset_skip(r, 1), 7), large, NULL));
    trn_out x = trn_const(b, trn_tensor_from(TRN_FLOAT, 2, (int64_t[]){3, 2}, (float[]){1, 2, 3, 4, 5, 6}));
    iterator("slices", trn_dataset_zip((trn_dataset *[]){trn_dataset_slices(b, &x, 1), r}, 2));
    iterator("csv", trn_dataset_csv(b, &csv, 1, (trn_dtype[]){TRN_INT32, TRN_STRING}, 2, (int64_t[]){0, 2}, &(trn_csv_opts){.header = true}));
    iterator("records", trn_dataset_records(b, &records, 1, NULL));
    iterator("lines", trn_dataset_cache(trn_dataset_concatenate(trn_dataset_lines(b, &csv, 1, NULL), trn_dataset_lines(b, &csv, 1, NULL))));
    show("one_shot", trn_iterator_one_shot(b, squares, &(int64_t){30}));
    void *graph;
    size_t n;
    TRN_TRY(trn_builder_export(&graph, &n, b));
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(graph, 1, n, f) != n || fclose(f) != 0)
        return trn_errorf(TRN_INTERNAL, "%s cannot be written", path);
    free(graph);
    trn_builder_free(b);
    return TRN_OK;
}

int main(int argc, char **argv)
{
    trn_err err = TRN_OK;
    if (argc == 4 && strcmp(argv[1], "write") == 0)
        err = write_file(argv[2], argv[3]);
    else if (argc == 4 && strcmp(argv[1], "read") == 0)
        err = read_file(argv[2], argv[3]);
    else if (argc == 4 && strcmp(argv[1], "npy") == 0)
        err = copy_array(argv[2], argv[3]);
    else if (argc == 5 && strcmp(argv[1], "datasets") == 0)
        err = datasets(argv[2], argv[3], argv[4]);
    else
        err = trn_errorf(TRN_INVALID_ARGUMENT, "usage: inputs write|read FILE COMPRESSION, inputs datasets OUT.pb CSV RECORDS");
    if (err)
        fprintf(stderr, "inputs: %s\n", trn_err_msg(err));
    int status = err ? 1 : 0;
    trn_err_free(err);
    return status;
}
