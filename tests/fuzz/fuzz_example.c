/* Examples (also as JSON), SequenceExamples, serialized and compressed tensors: bytes that clients and files bring, through the kernels that read them. */
#include <stdlib.h>

#include "ckpt/stream.h"
#include "op/kctx.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static trn_tensor *str(const void *p, size_t n) { return trn_tensor_str(n ? p : "", n); }

static trn_tensor *strs(int n, const char *const *v) { return trn_tensor_from(TRN_STRING, 1, (int64_t[]){n}, v); }

#define S(x) {.s = {x, sizeof x - 1}}
#define LIST(nm, k, ...)                                                                                               \
    {                                                                                                                  \
        .name = nm, .kind = k, .is_list = true, .n = (int)(sizeof((trn_attr_val[]){__VA_ARGS__}) / sizeof(trn_attr_val)), \
        .list = (trn_attr_val[]){__VA_ARGS__}                                                                          \
    }
#define TYPES(nm, ...) LIST(nm, TRN_ATTR_TYPE, __VA_ARGS__)
#define NONE(nm, k) {.name = nm, .kind = k, .is_list = true}
#define INT(nm, v_) {.name = nm, .kind = TRN_ATTR_INT, .v.i = v_}

static trn_err no_path(const trn_kctx *k, const char *path) { return trn_errorf(TRN_PERMISSION_DENIED, "no files"); }

/* Runs one node; takes the inputs. Whatever comes out must be whole. */
static void run(const char *op, const trn_attr *attrs, int n_attrs, trn_tensor **in, int n_in)
{
    static const trn_step_api api = {.check_path = no_path};
    trn_arena *a = trn_arena_new();
    trn_node n = {.name = "fuzz", .op = op, .device = "", .def = trn_op_find(op), .n_attrs = n_attrs};
    n.attrs = trn_arena_alloc(a, ((size_t)n_attrs + 1) * sizeof *attrs);
    if (n_attrs)
        memcpy(n.attrs, attrs, (size_t)n_attrs * sizeof *attrs);
    trn_err err = trn_node_resolve(&n, a);
    if (err || n.n_in != n_in)
        abort(); /* the fuzzer itself is wrong */
    trn_value *v = trn_xalloc(((size_t)n_in + (size_t)n.n_out) * sizeof *v);
    for (int i = 0; i < n_in; i++)
        v[i].t = in[i];
    trn_step step = {.api = &api, .cancel = trn_cancel_new()};
    trn_kctx k = {.node = &n, .in = v, .out = v + n_in, .n_in = n_in, .n_out = n.n_out, .step = &step};
    err = n.def->row->kernel(&k);
    for (int i = 0; !err && i < n.n_out; i++)
        if (!k.out[i].t || k.out[i].t->dtype != n.out_types[i])
            abort();
    trn_err_free(err);
    for (int i = 0; i < n_in + n.n_out; i++)
        trn_tensor_unref(v[i].t);
    free(v);
    trn_cancel_unref(step.cancel);
    trn_arena_free(a);
}

static void examples(const uint8_t *p, size_t n)
{
    trn_shape two = trn_shape_vector(2), var = trn_shape_of(2, (int64_t)-1, (int64_t)3);
    trn_tensor *batch, *def = trn_tensor_from(TRN_FLOAT, 1, (int64_t[]){2}, (float[]){1, 2}), *pad = trn_tensor_from(TRN_INT64, 1, (int64_t[]){1}, (int64_t[]){-1});
    trn_shape vec = trn_shape_vector(2);
    if (trn_tensor_new(&batch, TRN_STRING, &vec))
        abort();
    /* the bytes, and their second half */
    if (trn_tensor_str_put(batch, 0, (const char *)p, n) || trn_tensor_str_put(batch, 1, (const char *)p + n / 2, n - n / 2))
        abort();
    const trn_attr attrs[] = {TYPES("Tdense", {.type = TRN_FLOAT}, {.type = TRN_INT64}),
                              INT("num_sparse", 1),
                              TYPES("sparse_types", {.type = TRN_STRING}),
                              TYPES("ragged_value_types", {.type = TRN_INT64}),
                              TYPES("ragged_split_types", {.type = TRN_INT32}),
                              LIST("dense_shapes", TRN_ATTR_SHAPE, {.shape = &two}, {.shape = &var})};
    trn_tensor *in[] = {batch, strs(0, NULL), strs(1, (const char *[]){"c"}), strs(2, (const char *[]){"a", "d"}), strs(1, (const char *[]){"b"}), trn_tensor_ref(def),
                        trn_tensor_ref(pad)};
    run("ParseExampleV2", attrs, (int)TRN_COUNTOF(attrs), in, (int)TRN_COUNTOF(in));
    const trn_attr seq[] = {LIST("feature_list_dense_missing_assumed_empty", TRN_ATTR_STRING, S("x")),
                            LIST("context_sparse_keys", TRN_ATTR_STRING, S("w")),
                            NONE("context_dense_keys", TRN_ATTR_STRING),
                            LIST("feature_list_sparse_keys", TRN_ATTR_STRING, S("t")),
                            LIST("feature_list_dense_keys", TRN_ATTR_STRING, S("x")),
                            INT("Ncontext_sparse", 1),
                            INT("Nfeature_list_sparse", 1),
                            INT("Nfeature_list_dense", 1),
                            TYPES("context_sparse_types", {.type = TRN_STRING}),
                            TYPES("feature_list_dense_types", {.type = TRN_FLOAT}),
                            TYPES("feature_list_sparse_types", {.type = TRN_INT64}),
                            LIST("feature_list_dense_shapes", TRN_ATTR_SHAPE, {.shape = &two})};
    trn_tensor *sin[] = {str(p, n), strs(0, NULL)};
    run("ParseSequenceExample", seq, (int)TRN_COUNTOF(seq), sin, 2);
    trn_tensor_unref(def);
    trn_tensor_unref(pad);
}

static void streams(const uint8_t *p, size_t n)
{
    for (int c = TRN_PLAIN; c <= TRN_GZIP; c++)
        for (int records = 0; records < 2; records++) {
            trn_stream *s;
            if (trn_stream_on_memory(&s, p, n, (trn_compression)c))
                abort();
            trn_err err = TRN_OK;
            trn_cut got = TRN_CUT_MORE;
            const char *q;
            size_t len;
            for (int i = 0; !err && got != TRN_CUT_END && i < 10000; i++) {
                err = records ? trn_stream_record(&got, s, &q, &len) : trn_stream_line(&got, s, &q, &len);
                if (!err && got == TRN_CUT_MORE)
                    err = trn_stream_fill(s);
            }
            trn_err_free(err);
            trn_stream_close(s);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > 1 << 20)
        return 0;
    static bool once;
    if (!once) {
        trn_log_set_level(TRN_LOG_OFF);
        trn_faults_set("ckpt.crc");
        once = true;
    }
    const uint8_t *p = data + 1;
    size_t n = size - 1;
    trn_tensor *one = str(p, n);
    const trn_attr type = {.name = "out_type", .kind = TRN_ATTR_TYPE, .v.type = TRN_FLOAT}, dtype = {.name = "dtype", .kind = TRN_ATTR_TYPE, .v.type = TRN_FLOAT};
    switch (data[0] == 'J' ? 4 : data[0] % 4) {
    case 4:
        run("DecodeJSONExample", NULL, 0, (trn_tensor *[]){trn_tensor_ref(one)}, 1);
        break;
    case 0:
        examples(p, n);
        break;
    case 1:
        streams(p, n);
        break;
    case 2:
        if (n < 1000)
            run("ParseTensor", &type, 1, (trn_tensor *[]){trn_tensor_ref(one)}, 1);
        break;
    default: {
        /* three serialized tensors, cut where the bytes say */
        size_t i = n ? p[0] % n : 0, j = n ? i + (n - i) / 2 : 0;
        trn_shape three = trn_shape_vector(3);
        trn_tensor *t;
        if (n > 1000 || trn_tensor_new(&t, TRN_STRING, &three))
            break;
        if (trn_tensor_str_put(t, 0, (const char *)p, i) || trn_tensor_str_put(t, 1, (const char *)p + i, j - i) || trn_tensor_str_put(t, 2, (const char *)p + j, n - j))
            abort();
        run("DeserializeSparse", &dtype, 1, &t, 1);
    }
    }
    trn_tensor_unref(one);
    return 0;
}
