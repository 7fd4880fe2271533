/* Random numbers must be TensorFlow's, bit for bit: the hashes (FNV-1a over the bytes of three runs; one for stateless ops) and values below
 * come from TensorFlow 2.15.1 on CPU with the same seeds and shapes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <unistd.h>

#include "check.h"
#include "statetest.h"

static const struct golden {
    const char *op;
    trn_dtype dtype;
    int64_t seed, seed2;
    int rank;
    int64_t dims[2];
    uint64_t hash;
} goldens[] = {
    {"RandomUniform", TRN_FLOAT, 87654321, 1, 0, {0}, 0xec6d8f1790ea416b},
    {"RandomUniform", TRN_FLOAT, 1, 2, 1, {3}, 0x4f7620370f4f28b5},
    {"RandomUniform", TRN_FLOAT, 0, 7, 2, {5, 7}, 0x252a7b67eb3df70b},
    {"RandomUniform", TRN_FLOAT, 1099511627776, -3, 1, {1000}, 0x72e00da87d03159c},
    {"RandomUniform", TRN_DOUBLE, 87654321, 1, 2, {5, 7}, 0x0f6cf36b0df4a34e},
    {"RandomUniform", TRN_DOUBLE, 1, 2, 1, {1000}, 0xe472644c5e3e0ce5},
    {"RandomUniform", TRN_HALF, 87654321, 1, 2, {5, 7}, 0x33abcb4535098b94},
    {"RandomUniform", TRN_HALF, 1, 2, 1, {1000}, 0xf61b85cb70e0c6d8},
    {"RandomUniform", TRN_BFLOAT16, 87654321, 1, 2, {5, 7}, 0xab71118a925be420},
    {"RandomUniform", TRN_BFLOAT16, 1, 2, 1, {1000}, 0xe54b6d6bf17375d9},
    {"RandomStandardNormal", TRN_FLOAT, 87654321, 1, 0, {0}, 0xdaf89dca5cc6c9a8},
    {"RandomStandardNormal", TRN_FLOAT, 1, 2, 1, {3}, 0xd67410cd5de7b92c},
    {"RandomStandardNormal", TRN_FLOAT, 0, 7, 2, {5, 7}, 0xb06bd8ad08ff8e1e},
    {"RandomStandardNormal", TRN_FLOAT, 1099511627776, -3, 1, {1000}, 0x8224a399dc27d33d},
    {"RandomStandardNormal", TRN_DOUBLE, 87654321, 1, 2, {5, 7}, 0x90217a6b8fbfa3e3},
    {"RandomStandardNormal", TRN_DOUBLE, 1, 2, 1, {1000}, 0x3f2055919c86bd02},
    {"RandomStandardNormal", TRN_HALF, 87654321, 1, 2, {5, 7}, 0xba4cec7b6404bbdb},
    {"RandomStandardNormal", TRN_HALF, 1, 2, 1, {1000}, 0x26178b8a8029a539},
    {"RandomStandardNormal", TRN_BFLOAT16, 87654321, 1, 2, {5, 7}, 0x3db0aa2f5499509c},
    {"RandomStandardNormal", TRN_BFLOAT16, 1, 2, 1, {1000}, 0x52fe2a04b6d7ac4d},
    {"TruncatedNormal", TRN_FLOAT, 87654321, 1, 0, {0}, 0xdaf89dca5cc6c9a8},
    {"TruncatedNormal", TRN_FLOAT, 1, 2, 1, {3}, 0xd67410cd5de7b92c},
    {"TruncatedNormal", TRN_FLOAT, 0, 7, 2, {5, 7}, 0xc9a75bc5f461592c},
    {"TruncatedNormal", TRN_FLOAT, 1099511627776, -3, 1, {1000}, 0x8e69cff858ca1205},
    {"TruncatedNormal", TRN_DOUBLE, 87654321, 1, 2, {5, 7}, 0x3121d3ac0d9f8acb},
    {"TruncatedNormal", TRN_DOUBLE, 1, 2, 1, {1000}, 0xb91366641f8cac95},
    {"TruncatedNormal", TRN_HALF, 87654321, 1, 2, {5, 7}, 0xca73da8b59a61167},
    {"TruncatedNormal", TRN_HALF, 1, 2, 1, {1000}, 0x4b19d37e3cf8949d},
    {"TruncatedNormal", TRN_BFLOAT16, 87654321, 1, 2, {5, 7}, 0x07a785e50059a10d},
    {"TruncatedNormal", TRN_BFLOAT16, 1, 2, 1, {1000}, 0xf945d97280d0ab64},
    {"StatelessRandomUniform", TRN_FLOAT, 1, 2, 1, {9}, 0x4fd599fab1a4748c},
    {"StatelessRandomUniform", TRN_FLOAT, 1099511627776, -3, 2, {33, 5}, 0xf8e137cc0671921c},
    {"StatelessRandomUniform", TRN_DOUBLE, 1, 2, 1, {9}, 0x47657fc4c066c85b},
    {"StatelessRandomUniform", TRN_DOUBLE, 1099511627776, -3, 2, {33, 5}, 0x5f765848cf557896},
    {"StatelessRandomUniform", TRN_HALF, 1, 2, 1, {9}, 0x7e4f91e8f46a4881},
    {"StatelessRandomUniform", TRN_HALF, 1099511627776, -3, 2, {33, 5}, 0x5b6ff7ec4d11b703},
    {"StatelessRandomUniform", TRN_BFLOAT16, 1, 2, 1, {9}, 0xaafbd38b03436b7a},
    {"StatelessRandomUniform", TRN_BFLOAT16, 1099511627776, -3, 2, {33, 5}, 0x4520b508577f9c74},
    {"StatelessRandomNormal", TRN_FLOAT, 1, 2, 1, {9}, 0x3e1fe593eadb9241},
    {"StatelessRandomNormal", TRN_FLOAT, 1099511627776, -3, 2, {33, 5}, 0x86f7803aca96f207},
    {"StatelessRandomNormal", TRN_DOUBLE, 1, 2, 1, {9}, 0x1d5cf764f8e87dda},
    {"StatelessRandomNormal", TRN_DOUBLE, 1099511627776, -3, 2, {33, 5}, 0x264260ffe8a18853},
    {"StatelessRandomNormal", TRN_HALF, 1, 2, 1, {9}, 0x5513394ed6758bfc},
    {"StatelessRandomNormal", TRN_HALF, 1099511627776, -3, 2, {33, 5}, 0x0ce9288c913e7e4a},
    {"StatelessRandomNormal", TRN_BFLOAT16, 1, 2, 1, {9}, 0xf0307da9b342ed0a},
    {"StatelessRandomNormal", TRN_BFLOAT16, 1099511627776, -3, 2, {33, 5}, 0xa8314b55190d624a},
    {"StatelessTruncatedNormal", TRN_FLOAT, 1, 2, 1, {9}, 0x007309361da70f07},
    {"StatelessTruncatedNormal", TRN_FLOAT, 1099511627776, -3, 2, {33, 5}, 0xfbb76dfcd2cb26c9},
    {"StatelessTruncatedNormal", TRN_DOUBLE, 1, 2, 1, {9}, 0x587499439d338dfc},
    {"StatelessTruncatedNormal", TRN_DOUBLE, 1099511627776, -3, 2, {33, 5}, 0x07bcd0621a43918b},
    {"StatelessTruncatedNormal", TRN_HALF, 1, 2, 1, {9}, 0xa612c7d86af69821},
    {"StatelessTruncatedNormal", TRN_HALF, 1099511627776, -3, 2, {33, 5}, 0x9f6a180917cbadf5},
    {"StatelessTruncatedNormal", TRN_BFLOAT16, 1, 2, 1, {9}, 0x2d0a08b5b5cdd219},
    {"StatelessTruncatedNormal", TRN_BFLOAT16, 1099511627776, -3, 2, {33, 5}, 0x991008e5de855598},
    {"StatelessRandomUniformFullInt", TRN_INT32, 1, 2, 1, {9}, 0x2ca03f2a39cae091},
    {"StatelessRandomUniformFullInt", TRN_INT32, 1099511627776, -3, 2, {33, 5}, 0x8329695315dfade9},
    {"StatelessRandomUniformFullInt", TRN_UINT64, 1, 2, 1, {9}, 0x095c63c6d5353df5},
    {"StatelessRandomUniformFullInt", TRN_UINT64, 1099511627776, -3, 2, {33, 5}, 0xdf93bf6f700f285e},
};

static const struct golden_int {
    trn_dtype dtype;
    int64_t lo, hi;
    uint64_t hash; /* RandomUniformInt, seeds 5 and 6, shape [77], two runs */
} goldens_int[] = {
    {TRN_INT32, 0, 10, 0x4b7b8e9f9fccd63a},
    {TRN_INT32, -100, 1, 0x061c0bc14e1b1d29},
    {TRN_INT64, 0, 10, 0x995ee80c40817aec},
    {TRN_INT64, -100, 1, 0x2a44dc93bafd1724},
};

static uint64_t fnv(uint64_t h, const void *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h = (h ^ ((const uint8_t *)p)[i]) * 0x100000001b3u;
    return h;
}

static trn_tensor *shape_tensor(int rank, const int64_t *dims)
{
    int64_t n = rank;
    return trn_tensor_from(TRN_INT64, 1, &n, dims);
}

static trn_tensor *int_scalar(trn_dtype dtype, int64_t v) { return dtype == TRN_INT32 ? trn_tensor_i32((int32_t)v) : trn_tensor_i64(v); }

/* Runs n times and hashes output 0. */
static uint64_t hash_runs(st *s, st_node *n, trn_value *in, int n_in, int runs)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (int i = 0; i < runs; i++) {
        trn_value out[3] = {0};
        ok(st_run(s, n, in, n_in, out));
        h = fnv(h, out[0].t->data, trn_tensor_bytes(out[0].t));
        st_drop(out[0]);
    }
    return h;
}

static void same_bits(void **state)
{
    for (size_t i = 0; i < TRN_COUNTOF(goldens); i++) {
        const struct golden *g = &goldens[i];
        bool stateless = strncmp(g->op, "Stateless", 9) == 0;
        st *s = st_new();
        st_node *n = st_op(s, g->op, "r");
        st_type(s, n, "dtype", g->dtype);
        st_type(s, n, "T", TRN_INT64);
        int64_t two = 2, seeds[2] = {g->seed, g->seed2};
        trn_value in[2] = {st_t(shape_tensor(g->rank, g->dims))};
        if (stateless) {
            in[1] = st_t(trn_tensor_from(TRN_INT64, 1, &two, seeds));
        } else {
            st_int(s, n, "seed", g->seed);
            st_int(s, n, "seed2", g->seed2);
        }
        uint64_t h = hash_runs(s, n, in, stateless ? 2 : 1, stateless ? 1 : 3);
        if (h != g->hash)
            fail_msg("%s %s: row %zu differs from TensorFlow", g->op, trn_dtype_name(g->dtype), i);
        st_drop(in[0]);
        st_drop(in[1]);
        st_free(s);
    }
}

static void same_integers(void **state)
{
    for (size_t i = 0; i < TRN_COUNTOF(goldens_int); i++) {
        const struct golden_int *g = &goldens_int[i];
        st *s = st_new();
        st_node *n = st_op(s, "RandomUniformInt", "r");
        st_type(s, n, "Tout", g->dtype);
        st_type(s, n, "T", TRN_INT64);
        st_int(s, n, "seed", 5);
        st_int(s, n, "seed2", 6);
        int64_t dim = 77;
        trn_value in[3] = {st_t(shape_tensor(1, &dim)), st_t(int_scalar(g->dtype, g->lo)), st_t(int_scalar(g->dtype, g->hi))};
        assert_int_equal(hash_runs(s, n, in, 3, 2), g->hash);
        for (int j = 0; j < 3; j++)
            st_drop(in[j]);
        st_free(s);
    }
}

/* The V2 op under the key and counter that the seeds scramble to is the op itself. */
static void key_and_counter(void **state)
{
    st *s = st_new();
    int64_t two = 2, seeds[2] = {1, 2}, dim = 9;
    trn_value seed = st_t(trn_tensor_from(TRN_INT64, 1, &two, seeds)), kca[3] = {0}, out[1];
    ok(st_run(s, st_op(s, "StatelessRandomGetKeyCounterAlg", "k"), &seed, 1, kca));
    assert_int_equal(TRN_DATA(kca[2].t, int32_t)[0], 1);
    trn_value in[4] = {st_t(shape_tensor(1, &dim)), kca[0], kca[1], kca[2]};
    st_node *n = st_op(s, "StatelessRandomUniformV2", "u");
    st_type(s, n, "Tshape", TRN_INT64);
    assert_int_equal(hash_runs(s, n, in, 4, 1), 0x4fd599fab1a4748cu);
    trn_tensor_unref(in[3].t);
    in[3] = st_t(trn_tensor_i32(2)); /* ThreeFry */
    trn_err err = st_run(s, n, in, 4, out);
    assert_int_equal(trn_err_code(err), TRN_INVALID_ARGUMENT);
    trn_err_free(err);
    for (int i = 0; i < 4; i++)
        st_drop(in[i]);
    st_drop(seed);
    st_free(s);
}

static void seeds34(st *s, st_node *n)
{
    st_int(s, n, "seed", 3);
    st_int(s, n, "seed2", 4);
}

static void shuffle_and_sample(void **state)
{
    st *s = st_new();
    trn_value out[1];
    int64_t ten = 10;
    int32_t v[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    const int32_t want[2][10] = {{1, 5, 3, 8, 0, 4, 7, 6, 9, 2}, {6, 5, 9, 3, 2, 7, 8, 1, 4, 0}};
    trn_value in[2] = {st_t(trn_tensor_from(TRN_INT32, 1, &ten, v))};
    st_node *n = st_op(s, "RandomShuffle", "s");
    st_type(s, n, "T", TRN_INT32);
    seeds34(s, n);
    for (int i = 0; i < 2; i++) {
        ok(st_run(s, n, in, 1, out));
        assert_memory_equal(out[0].t->data, want[i], sizeof want[i]);
        st_drop(out[0]);
    }
    st_drop(in[0]);

    const float logits[6] = {0, 1, 2, 2, 1, 0};
    const int64_t dims[2] = {2, 3}, drawn[2][16] = {{2, 2, 1, 2, 0, 1, 2, 2, 1, 0, 1, 0, 1, 1, 1, 0}, {0, 0, 1, 1, 2, 1, 2, 2, 1, 2, 0, 1, 0, 1, 0, 1}};
    in[0] = st_t(trn_tensor_from(TRN_FLOAT, 2, dims, logits));
    in[1] = st_t(trn_tensor_i32(8));
    n = st_op(s, "Multinomial", "m");
    st_type(s, n, "T", TRN_FLOAT);
    seeds34(s, n);
    for (int i = 0; i < 2; i++) {
        ok(st_run(s, n, in, 2, out));
        assert_memory_equal(out[0].t->data, drawn[i], sizeof drawn[i]);
        st_drop(out[0]);
    }
    st_drop(in[0]);
    st_drop(in[1]);
    st_free(s);
}

static void gamma_and_poisson(void **state)
{
    st *s = st_new();
    trn_value out[1];
    int64_t two = 2, three = 3, six = 6;
    const double alpha[3] = {.5, 1, 3}, rate[2] = {2, 50};
    const double want[6] = {0x1.ed244430ac213p-6, 0x1.5e3f38910ba00p+0, 0x1.d9c0727b54cc4p-1,
                            0x1.6eff3aa2a28c8p-2, 0x1.70df173017d46p+0, 0x1.8d79c52d1d785p+1};
    const int64_t counts[12] = {3, 53, 1, 49, 2, 56, 2, 59, 1, 56, 2, 47};
    trn_value in[2] = {st_t(shape_tensor(1, &two)), st_t(trn_tensor_from(TRN_DOUBLE, 1, &three, alpha))};
    st_node *n = st_op(s, "RandomGamma", "g");
    st_type(s, n, "S", TRN_INT64);
    st_type(s, n, "T", TRN_DOUBLE);
    seeds34(s, n);
    ok(st_run(s, n, in, 2, out));
    for (int i = 0; i < 6; i++)
        assert_true(TRN_DATA(out[0].t, double)[i] > want[i] * (1 - 1e-14) && TRN_DATA(out[0].t, double)[i] < want[i] * (1 + 1e-14));
    st_drop(out[0]);
    st_drop(in[0]);
    st_drop(in[1]);

    in[0] = st_t(shape_tensor(1, &six));
    in[1] = st_t(trn_tensor_from(TRN_DOUBLE, 1, &two, rate));
    n = st_op(s, "RandomPoissonV2", "p");
    st_type(s, n, "S", TRN_INT64);
    seeds34(s, n);
    ok(st_run(s, n, in, 2, out));
    assert_memory_equal(out[0].t->data, counts, sizeof counts);
    st_drop(out[0]);
    st_drop(in[1]);

    /* A rate that no sample fits must end with an error, not search for ever. */
    const double bad[2] = {1e30, 1.0 / 0.0 - 1.0 / 0.0};
    for (int i = 0; i < 2; i++) {
        in[1] = st_t(trn_tensor_f64(bad[i]));
        trn_err err = st_run(s, n, in, 2, out);
        assert_int_equal(trn_err_code(err), TRN_INVALID_ARGUMENT);
        trn_err_free(err);
        st_drop(in[1]);
    }
    st_drop(in[0]);
    st_free(s);
}

static const struct {
    trn_dtype dtype;
    double lo, hi;
    uint64_t hash; /* ParameterizedTruncatedNormal of mean 0.5, deviation 1.5, seeds 3 and 4, shape [150], two runs */
} goldens_between[] = {
    {TRN_FLOAT, -2.0, 2.0, 0x5357ac16857185f4},
    {TRN_FLOAT, 3.0, INFINITY, 0xcb2aff04cef4f243},
    {TRN_FLOAT, 1.0, 1.25, 0xd3546d3e3ef8ed7a},
    {TRN_DOUBLE, -2.0, 2.0, 0x4c81592994208b50},
    {TRN_DOUBLE, 3.0, INFINITY, 0x92db9bc37522c627},
    {TRN_DOUBLE, 1.0, 1.25, 0xeab243d31613b90f},
};

static trn_tensor *real_scalar(trn_dtype dtype, double v) { return dtype == TRN_FLOAT ? trn_tensor_f32((float)v) : trn_tensor_f64(v); }

static void between_bounds(void **state)
{
    int64_t dim = 150;
    for (size_t i = 0; i <= TRN_COUNTOF(goldens_between); i++) {
        bool last = i == TRN_COUNTOF(goldens_between); /* bounds the wrong way round */
        trn_dtype dtype = last ? TRN_FLOAT : goldens_between[i].dtype;
        st *s = st_new();
        st_node *n = st_op(s, "ParameterizedTruncatedNormal", "t");
        st_type(s, n, "dtype", dtype);
        st_type(s, n, "T", TRN_INT64);
        seeds34(s, n);
        trn_value out[1], in[5] = {st_t(shape_tensor(1, &dim)), st_t(real_scalar(dtype, .5)), st_t(real_scalar(dtype, 1.5)),
                                   st_t(real_scalar(dtype, last ? 2 : goldens_between[i].lo)),
                                   st_t(real_scalar(dtype, last ? 1 : goldens_between[i].hi))};
        if (last) {
            trn_err err = st_run(s, n, in, 5, out);
            assert_int_equal(trn_err_code(err), TRN_INVALID_ARGUMENT);
            trn_err_free(err);
        } else {
            assert_int_equal(hash_runs(s, n, in, 5, 2), goldens_between[i].hash);
        }
        for (int j = 0; j < 5; j++)
            st_drop(in[j]);
        st_free(s);
    }
}

/* Without seeds two nodes differ; bad shapes are refused. */
static void unseeded_and_bad(void **state)
{
    st *s = st_new();
    trn_value out[2];
    int64_t eight = 8, minus = -1, huge[2] = {1LL << 40, 1LL << 40};
    trn_value in[3] = {st_t(shape_tensor(1, &eight))};
    uint64_t h[2];
    for (int i = 0; i < 2; i++) {
        st_node *n = st_op(s, "RandomUniform", "u");
        st_type(s, n, "dtype", TRN_FLOAT);
        st_type(s, n, "T", TRN_INT64);
        h[i] = hash_runs(s, n, in, 1, 1);
    }
    assert_int_not_equal(h[0], h[1]);
    st_drop(in[0]);
    trn_tensor *bad[3] = {shape_tensor(1, &minus), shape_tensor(2, huge), trn_tensor_i64(3)};
    for (int i = 0; i < 3; i++) {
        st_node *n = st_op(s, "RandomUniform", "u");
        st_type(s, n, "dtype", TRN_FLOAT);
        st_type(s, n, "T", TRN_INT64);
        in[0] = st_t(bad[i]);
        trn_err err = st_run(s, n, in, 1, out);
        assert_non_null(err);
        trn_err_free(err);
        st_drop(in[0]);
    }
    st_node *n = st_op(s, "RandomUniformInt", "i");
    st_type(s, n, "Tout", TRN_INT32);
    st_type(s, n, "T", TRN_INT64);
    in[0] = st_t(shape_tensor(1, &eight));
    in[1] = st_t(trn_tensor_i32(4));
    in[2] = st_t(trn_tensor_i32(4));
    trn_err err = st_run(s, n, in, 3, out);
    assert_int_equal(trn_err_code(err), TRN_INVALID_ARGUMENT);
    trn_err_free(err);
    for (int i = 0; i < 3; i++)
        st_drop(in[i]);
    st_free(s);
}

static void a_cancelled_cast(void **state)
{
    st *s = st_new();
    st_node *n = st_op(s, "StochasticCastToInt", "cast");
    st_type(s, n, "Tin", TRN_FLOAT);
    st_type(s, n, "Tout", TRN_INT32);
    trn_value out, in[4] = {st_t(trn_tensor_f32(.5f)), st_t(trn_tensor_from(TRN_UINT64, 1, (int64_t[]){1}, (uint64_t[]){7})),
                            st_t(trn_tensor_from(TRN_UINT64, 1, (int64_t[]){2}, (uint64_t[]){1, 2})), st_t(trn_tensor_i32(1))};
    s->step.cancel = trn_cancel_new();
    ok(st_run(s, n, in, 4, &out));
    st_drop(out);
    trn_cancel_fire(s->step.cancel, trn_errorf(TRN_CANCELLED, "nobody waits"));
    fails(st_run(s, n, in, 4, &out), TRN_CANCELLED, "nobody waits");
    trn_cancel_unref(s->step.cancel);
    for (int i = 0; i < 4; i++)
        st_drop(in[i]);
    st_free(s);
}

/* word2vec's pairs: a step that is cancelled while it looks for words takes none from those that come after it. */
static void pairs_after_a_cancelled_step(void **state)
{
    char path[] = "/tmp/trainera-words-XXXXXX";
    int fd = mkstemp(path);
    for (int i = 0; i < 50; i++)
        assert_int_equal(write(fd, "a ", 2), 2);
    close(fd);
    st *s = st_new();
    st_node *n = st_op(s, "Skipgram", "pairs");
    st_str(s, n, "filename", path);
    st_int(s, n, "batch_size", 4000);
    st_int(s, n, "window_size", 5);
    st_int(s, n, "min_count", 1);
    st_attr(s, n, "subsample", TRN_ATTR_FLOAT)->v.f = 1e-7f; /* three in ten thousand words are kept: more are looked at than between two looks at the step */
    trn_value out[7];
    s->step.cancel = trn_cancel_new();
    trn_cancel_fire(s->step.cancel, trn_errorf(TRN_DEADLINE_EXCEEDED, "too late"));
    for (int i = 0; i < 2; i++)
        fails(st_run(s, n, NULL, 0, out), TRN_DEADLINE_EXCEEDED, "too late");
    trn_cancel_unref(s->step.cancel);
    s->step.cancel = trn_cancel_new();
    ok(st_run(s, n, NULL, 0, out));
    for (int i = 0; i < 4000; i++)
        assert_true(TRN_DATA(out[5].t, int32_t)[i] == 1 && TRN_DATA(out[6].t, int32_t)[i] == 1);
    for (int i = 0; i < 7; i++)
        st_drop(out[i]);
    trn_cancel_unref(s->step.cancel);
    st_free(s);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits),         cmocka_unit_test(same_integers),     cmocka_unit_test(key_and_counter),
        cmocka_unit_test(shuffle_and_sample), cmocka_unit_test(gamma_and_poisson), cmocka_unit_test(unseeded_and_bad),
        cmocka_unit_test(between_bounds),     cmocka_unit_test(pairs_after_a_cancelled_step),
        cmocka_unit_test(a_cancelled_cast),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
