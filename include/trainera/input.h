/* Input: arrays in memory and in files, CSV files, TFRecord files and tf.Example in plain C, and the datasets of the op registry inside the graph.
 *
 * In plain C, a program feeds what it reads:
 *
 *     trn_tensor *xy[2];
 *     err = trn_csv_read(xy, "digits.csv", (trn_csv_field[]){{TRN_FLOAT, 0, 64}, {TRN_INT32, 64, 0}}, 2, NULL);
 *     err = trn_arrays_new(&train, xy, 2, &(trn_arrays_opts){.batch = 32, .shuffle = true, .seed = 1, .shards = n_workers, .shard = task});
 *     while (!err && !(err = trn_arrays_next(batch, train))) { … feed batch[0], batch[1] … }
 *
 * Data that shall not be held in memory stays in its file (.npy, IDX, plain numbers, TFRecords); everything else is the same:
 *
 *     err = trn_arrays_open(&train, (trn_array_file[]){{"train-images-idx3-ubyte"}, {"train-labels-idx1-ubyte"}}, 2, &(trn_arrays_opts){.shuffle = true});
 *
 * In the graph, the tasks read by themselves:
 *
 *     trn_dataset *d = trn_dataset_records(b, files, n, NULL);
 *     d = trn_dataset_batch(trn_dataset_repeat(trn_dataset_shuffle(d, 1000, TRN_I(1)), -1), 32, false);
 *     trn_iterator *it = trn_iterator_new(d);          // run it->init once; it->next.at[0] is the next batch in every step
 */
#ifndef TRAINERA_INPUT_H
#define TRAINERA_INPUT_H

#include <trainera/build.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- arrays in memory ---------------------------------------------------------------------------------------------- */

/* Tensors whose first dimension counts the examples, cut into mini-batches. One thread at a time. */
typedef struct trn_arrays trn_arrays;
typedef struct trn_arrays_opts {
    int64_t batch;       /* 0: 32 */
    bool shuffle;        /* in another order in each epoch, given by seed and epoch alone */
    int64_t seed;
    int64_t epochs;      /* 0: without end */
    bool drop_remainder; /* no smaller batch at the end of an epoch */
    int shards, shard;   /* only the examples i with i % shards == shard; 0: all */
} trn_arrays_opts;
/* Keeps references to the tensors. INVALID_ARGUMENT when they have different numbers of examples, or none for this shard. */
TRN_API trn_err trn_arrays_new(trn_arrays **out, trn_tensor *const *arrays, int n, const trn_arrays_opts *opts) TRN_MUST_USE;
TRN_API void trn_arrays_free(TRN_OWN trn_arrays *a); /* NULL is fine */
/* The next batch: as many new tensors as arrays. OUT_OF_RANGE after the last epoch. */
TRN_API trn_err trn_arrays_next(trn_tensor **out, trn_arrays *a) TRN_MUST_USE;
TRN_API int64_t trn_arrays_examples(const trn_arrays *a);           /* of this shard */
TRN_API int64_t trn_arrays_batches(const trn_arrays *a);            /* of one epoch */
TRN_API int64_t trn_arrays_epoch(const trn_arrays *a);              /* that the next batch is from: 0, 1, … */
TRN_API void trn_arrays_rewind(trn_arrays *a, int64_t batches);     /* as if so many batches had been taken: to go on where a run was interrupted */
/* Rows begin … begin+n-1 of a tensor, as a new one. */
TRN_API trn_err trn_tensor_rows(trn_tensor **out, const trn_tensor *t, int64_t begin, int64_t n) TRN_MUST_USE;

/* ---- arrays in files ----------------------------------------------------------------------------------------------- */

/* An array that stays in its file: NumPy's .npy, IDX (what MNIST comes in), or nothing but numbers. Not compressed. */
typedef struct trn_array_file {
    const char *path;
    trn_dtype dtype;          /* 0: .npy and IDX files say themselves what they hold. Else the file is nothing but numbers of this type, little endian; */
    const trn_shape *example; /* then: the shape of one example; NULL: a scalar */
    int64_t skip;             /* then: bytes in front of the first example */
} trn_array_file;
/* The batches that trn_arrays_new would make of the same arrays, in the same order, read from the files one batch ahead of the program: of the data no more
 * than two batches are in memory (and files of 4 MiB at most with examples of 32 bytes at most, such as labels), and 8 bytes per example for the order. INVALID_ARGUMENT for files that hold something else, DATA_LOSS for those that are
 * cut off. The files must stay as they are. */
TRN_API trn_err trn_arrays_open(trn_arrays **out, const trn_array_file *files, int n, const trn_arrays_opts *opts) TRN_MUST_USE;
/* The same for tf.Examples in TFRecord files (see below): one tensor per spec, whose shapes must be known. 16 bytes per example are held. */
struct trn_feature_spec;
TRN_API trn_err trn_arrays_open_records(trn_arrays **out, const char *const *paths, int n_paths, const struct trn_feature_spec *specs, int n_specs,
                                        const trn_arrays_opts *opts) TRN_MUST_USE;
/* All of it as a tensor. */
TRN_API trn_err trn_array_file_read(trn_tensor **out, const trn_array_file *file) TRN_MUST_USE;
/* A tensor of numbers or bools as a .npy file, which numpy.load reads. Put in place whole. */
TRN_API trn_err trn_npy_write(const char *path, const trn_tensor *t) TRN_MUST_USE;

/* ---- CSV ----------------------------------------------------------------------------------------------------------- */

/* One tensor out of columns first … first+count-1: [rows, count], or [rows] when count is 0. */
typedef struct trn_csv_field {
    trn_dtype dtype; /* float, double, int32, int64, string */
    int first, count;
} trn_csv_field;
typedef struct trn_csv_opts {
    bool header;             /* the first line has names */
    char delim;              /* 0: ',' */
    const char *na;          /* this text, and an empty field, stand for 0 (or ""); NULL: such fields are errors, but for strings */
    const char *compression; /* NULL, "GZIP" or "ZLIB" */
} trn_csv_opts;
/* Fields may be in quotes, with doubled quotes, delimiters and line ends inside. Errors name file, line and column. */
TRN_API trn_err trn_csv_read(trn_tensor **out, const char *path, const trn_csv_field *fields, int n, const trn_csv_opts *opts) TRN_MUST_USE;

/* ---- TFRecord ------------------------------------------------------------------------------------------------------ */

typedef struct trn_record_reader trn_record_reader;
TRN_API trn_err trn_record_reader_open(trn_record_reader **out, const char *path, const char *compression) TRN_MUST_USE; /* NULL, "GZIP", "ZLIB" */
/* *p is valid until the next call. OUT_OF_RANGE at the end, DATA_LOSS where the file is damaged. */
TRN_API trn_err trn_record_reader_next(const void **p, size_t *n, trn_record_reader *r) TRN_MUST_USE;
TRN_API void trn_record_reader_close(TRN_OWN trn_record_reader *r); /* NULL is fine */

typedef struct trn_record_writer trn_record_writer;
/* Written under another name and put in place by close: nobody sees half a file. */
TRN_API trn_err trn_record_writer_open(trn_record_writer **out, const char *path, const char *compression) TRN_MUST_USE;
TRN_API trn_err trn_record_writer_add(trn_record_writer *w, const void *p, size_t n) TRN_MUST_USE;
TRN_API trn_err trn_record_writer_close(TRN_OWN trn_record_writer *w) TRN_MUST_USE; /* frees it, also when it fails */
TRN_API void trn_record_writer_abort(TRN_OWN trn_record_writer *w);                 /* leaves no file; NULL is fine */

/* ---- tf.Example ---------------------------------------------------------------------------------------------------- */

/* Floats make a float_list, int64 an int64_list, strings a bytes_list. The shape is not kept. */
typedef struct trn_feature {
    const char *name;
    const trn_tensor *value;
} trn_feature;
/* Serialized; to be freed with free(). The features are written in the order of their names. */
TRN_API trn_err trn_example_encode(void **out, size_t *n, const trn_feature *features, int n_features) TRN_MUST_USE;
typedef struct trn_feature_spec {
    const char *name;
    trn_dtype dtype;        /* float, int64, string */
    const trn_shape *shape; /* the values must make just this; NULL: a vector of as many as there are */
} trn_feature_spec;
/* One tensor per spec; NULL where the example has no such feature (or an empty one) and no shape was asked for. */
TRN_API trn_err trn_example_decode(trn_tensor **out, const void *example, size_t n, const trn_feature_spec *specs, int n_specs) TRN_MUST_USE;

/* ---- datasets in the graph ----------------------------------------------------------------------------------------- */

/* The elements that it gives are `n` tensors each, of these types and (partial) shapes. The builder's. */
typedef struct trn_dataset {
    trn_builder *b;
    trn_out variant;
    int n;
    const trn_dtype *types;
    const trn_shape *shapes;
} trn_dataset;

/* Never NULL; after an error, or from one, it is a dataset of nothing. */
TRN_API trn_dataset *trn_dataset_tensors(trn_builder *b, const trn_out *tensors, int n); /* one element */
TRN_API trn_dataset *trn_dataset_slices(trn_builder *b, const trn_out *tensors, int n);  /* their first dimension counts the elements */
TRN_API trn_dataset *trn_dataset_range(trn_builder *b, int64_t start, int64_t stop, int64_t step); /* int64 scalars */
TRN_API trn_dataset *trn_dataset_records(trn_builder *b, const char *const *files, int n, const char *compression); /* TFRecords, as strings */
TRN_API trn_dataset *trn_dataset_lines(trn_builder *b, const char *const *files, int n, const char *compression);
/* A scalar per column of `columns` (NULL: the first n); empty fields are errors. */
TRN_API trn_dataset *trn_dataset_csv(trn_builder *b, const char *const *files, int n_files, const trn_dtype *types, int n, const int64_t *columns,
                                     const trn_csv_opts *opts);

TRN_API trn_dataset *trn_dataset_shuffle(trn_dataset *d, int64_t buffer, trn_maybe_int seed); /* another order in each repetition */
TRN_API trn_dataset *trn_dataset_repeat(trn_dataset *d, int64_t count);                       /* -1: without end */
TRN_API trn_dataset *trn_dataset_batch(trn_dataset *d, int64_t size, bool drop_remainder);
TRN_API trn_dataset *trn_dataset_shard(trn_dataset *d, int64_t shards, int64_t index);
TRN_API trn_dataset *trn_dataset_prefetch(trn_dataset *d, int64_t buffer); /* -1: as many as help */
TRN_API trn_dataset *trn_dataset_take(trn_dataset *d, int64_t count);
TRN_API trn_dataset *trn_dataset_skip(trn_dataset *d, int64_t count);
TRN_API trn_dataset *trn_dataset_cache(trn_dataset *d); /* in memory */
/* Every element through a function of the graph, built by `fn` once (control.h says what it may do): in[0 … d->n) is an element, out[0 … n_out) what becomes
 * of it. parallel: so many at a time, in order; 0 or 1: one; -1: as many as help. */
typedef void (*trn_map_fn)(void *arg, trn_builder *b, const trn_out *in, trn_out *out);
TRN_API trn_dataset *trn_dataset_map(trn_dataset *d, trn_map_fn fn, void *arg, int n_out, int64_t parallel);
/* Only the elements for which `fn` gives true (a bool scalar). */
typedef trn_out (*trn_filter_fn)(void *arg, trn_builder *b, const trn_out *in);
TRN_API trn_dataset *trn_dataset_filter(trn_dataset *d, trn_filter_fn fn, void *arg);
TRN_API trn_dataset *trn_dataset_concatenate(trn_dataset *d, trn_dataset *then);
TRN_API trn_dataset *trn_dataset_zip(trn_dataset *const *sets, int n); /* at least one */

typedef struct trn_iterator {
    trn_out handle;
    trn_out init;  /* starts it, or starts it again. Also in the collection "table_initializer", which monitored sessions run. */
    trn_outs next; /* the tensors of the next element; OUT_OF_RANGE at the end */
} trn_iterator;
TRN_API trn_iterator *trn_iterator_new(trn_dataset *d);
/* One that needs no init: the task makes the dataset, by the function that `fn` builds, when the first step asks for an element, and goes through it once.
 * `init` is nothing. `fn` may make no use of tensors from outside: the dataset depends on constants alone. */
typedef trn_dataset *(*trn_dataset_fn)(void *arg, trn_builder *b);
TRN_API trn_iterator *trn_iterator_one_shot(trn_builder *b, trn_dataset_fn fn, void *arg);

#ifdef __cplusplus
}
#endif
#endif
