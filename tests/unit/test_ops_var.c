/* Variables, both kinds: made, found by name, assigned, added to, scattered into; errors that name them; exact sums under concurrency. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>

#include "check.h"
#include "ops/rows.h"
#include "statetest.h"

static trn_tensor *f32s(int n, ...)
{
    float v[16];
    va_list ap;
    va_start(ap, n);
    for (int i = 0; i < n; i++)
        v[i] = (float)va_arg(ap, double);
    va_end(ap);
    int64_t dim = n;
    return trn_tensor_from(TRN_FLOAT, 1, &dim, v);
}

static trn_var *ref_var(st *s, const char *name, trn_dtype dtype, const trn_shape *shape)
{
    st_node *n = st_op(s, "VariableV2", name);
    st_type(s, n, "dtype", dtype);
    st_shape(s, n, "shape", shape);
    trn_value out[1];
    ok(st_run(s, n, NULL, 0, out));
    return out[0].var;
}

static trn_tensor *handle(st *s, const char *name, const char *shared, trn_dtype dtype)
{
    st_node *n = st_op(s, "VarHandleOp", name);
    st_type(s, n, "dtype", dtype);
    st_str(s, n, "shared_name", shared);
    trn_shape u = trn_shape_unknown();
    st_shape(s, n, "shape", &u);
    trn_value out[1];
    ok(st_run(s, n, NULL, 0, out));
    return out[0].t;
}

/* An op with type attr `attr` and these inputs (all taken over); output 0 or nothing. */
static trn_err run(st *s, trn_value *out, const char *op, const char *attr, trn_dtype dtype, int n_in, ...)
{
    st_node *n = st_op(s, op, "n");
    if (attr)
        st_type(s, n, attr, dtype);
    if (strstr(op, "catter") || strstr(op, "Gather"))
        st_type(s, n, "Tindices", TRN_INT32);
    trn_value in[4] = {0}, outs[4] = {0};
    va_list ap;
    va_start(ap, n_in);
    for (int i = 0; i < n_in; i++)
        in[i] = va_arg(ap, trn_value);
    va_end(ap);
    trn_err err = st_run_give(s, n, in, n_in, outs, true);
    if (out)
        *out = outs[0];
    else
        st_drop(outs[0]);
    return err;
}
#define R(out, ...) ok(run(s, out, __VA_ARGS__))
static trn_value H(trn_tensor *h) { return st_t(trn_tensor_ref(h)); }

static void expect(const trn_tensor *t, int n, ...)
{
    va_list ap;
    va_start(ap, n);
    assert_int_equal(t->count, n);
    for (int i = 0; i < n; i++)
        assert_true(TRN_DATA(t, float)[i] == (float)va_arg(ap, double));
    va_end(ap);
}

static void ref_life(void **state)
{
    st *s = st_new();
    trn_shape two = trn_shape_vector(2);
    trn_var *v = ref_var(s, "w", TRN_FLOAT, &two), *again = ref_var(s, "w", TRN_FLOAT, &two);
    assert_ptr_equal(v, again);
    trn_resource_unref(again);
    trn_value out;
    R(&out, "IsVariableInitialized", "dtype", TRN_FLOAT, 1, st_v(v));
    assert_false(TRN_DATA(out.t, bool)[0]);
    st_drop(out);
    fails(run(s, NULL, "AssignAdd", "T", TRN_FLOAT, 2, st_v(v), st_t(f32s(2, 1., 1.))), TRN_FAILED_PRECONDITION, "uninitialized value w");
    fails(run(s, NULL, "Assign", "T", TRN_FLOAT, 2, st_v(v), st_t(f32s(3, 1., 1., 1.))), TRN_INVALID_ARGUMENT, "match");

    trn_tensor *value = f32s(2, 1., 2.);
    const void *bytes = value->data;
    R(&out, "Assign", "T", TRN_FLOAT, 2, st_v(v), st_t(value));
    assert_ptr_equal(out.var, v); /* the ref goes on */
    st_drop(out);
    assert_ptr_equal(v->value->data, bytes); /* moved, not copied */
    R(NULL, "AssignAdd", "T", TRN_FLOAT, 2, st_v(v), st_t(f32s(2, 10., 20.)));
    assert_ptr_equal(v->value->data, bytes); /* nobody else looks: in place */
    expect(v->value, 2, 11., 22.);

    trn_tensor *reader;
    ok(trn_var_read(&reader, v));
    R(NULL, "AssignSub", "T", TRN_FLOAT, 2, st_v(v), st_t(f32s(2, 1., 2.)));
    expect(v->value, 2, 10., 20.);
    expect(reader, 2, 11., 22.); /* what was read stays */
    trn_tensor_unref(reader);
    fails(run(s, NULL, "AssignAdd", "T", TRN_FLOAT, 2, st_v(v), st_t(f32s(1, 1.))), TRN_INVALID_ARGUMENT, "variable w");

    st_node *n = st_op(s, "VariableV2", "w");
    st_type(s, n, "dtype", TRN_INT32);
    st_shape(s, n, "shape", &two);
    fails(st_run(s, n, NULL, 0, &out), TRN_INVALID_ARGUMENT, "dtype");
    trn_resource_unref(v);
    st_free(s);
}

/* The delta is somebody else's too: it must not be written into. */
static void shared_delta(void **state)
{
    st *s = st_new();
    trn_shape shape = trn_shape_vector(2);
    trn_var *v = ref_var(s, "w", TRN_FLOAT, &shape);
    trn_tensor *a = f32s(2, 1., 2.), *reader;
    R(NULL, "Assign", "T", TRN_FLOAT, 2, st_v(v), st_t(a));
    ok(trn_var_read(&reader, v));
    trn_tensor *delta = f32s(2, 5., 5.);
    R(NULL, "AssignAdd", "T", TRN_FLOAT, 2, st_v(v), H(delta));
    expect(delta, 2, 5., 5.);
    expect(v->value, 2, 6., 7.);
    /* And a variable added to itself, by two names of one tensor. */
    trn_tensor *self;
    ok(trn_var_read(&self, v));
    R(NULL, "AssignAdd", "T", TRN_FLOAT, 2, st_v(v), st_t(self));
    expect(v->value, 2, 12., 14.);
    trn_tensor_unref(delta);
    trn_tensor_unref(reader);
    trn_resource_unref(v);
    st_free(s);
}

static void every_dtype(void **state)
{
    const trn_dtype types[] = {TRN_FLOAT, TRN_DOUBLE, TRN_HALF, TRN_BFLOAT16, TRN_INT8, TRN_INT16, TRN_INT32, TRN_INT64,
                               TRN_UINT8, TRN_UINT16, TRN_UINT32, TRN_UINT64, TRN_COMPLEX64, TRN_COMPLEX128};
    for (size_t i = 0; i < TRN_COUNTOF(types); i++) {
        st *s = st_new();
        trn_shape shape = trn_shape_vector(3);
        trn_var *v = ref_var(s, "w", types[i], &shape);
        trn_tensor *one, *two;
        ok(trn_tensor_new(&one, types[i], &shape));
        memset(one->data, 0, trn_tensor_bytes(one));
        for (int j = 0; j < 3; j++)
            switch (types[i]) {
            case TRN_FLOAT: TRN_DATA_MUT(one, float)[j] = 1; break;
            case TRN_DOUBLE: TRN_DATA_MUT(one, double)[j] = 1; break;
            case TRN_HALF: TRN_DATA_MUT(one, trn_half)[j] = trn_half_from_f32(1); break;
            case TRN_BFLOAT16: TRN_DATA_MUT(one, trn_bf16)[j] = trn_bf16_from_f32(1); break;
            case TRN_COMPLEX64: TRN_DATA_MUT(one, float)[2 * j] = 1; break;
            case TRN_COMPLEX128: TRN_DATA_MUT(one, double)[2 * j] = 1; break;
            default: TRN_DATA_MUT(one, uint8_t)[(size_t)j * trn_dtype_size(types[i])] = 1; break;
            }
        R(NULL, "Assign", "T", types[i], 2, st_v(v), H(one));
        R(NULL, "AssignAdd", "T", types[i], 2, st_v(v), H(one));
        ok(trn_var_read(&two, v));
        R(NULL, "AssignSub", "T", types[i], 2, st_v(v), H(one));
        assert_memory_not_equal(two->data, one->data, trn_tensor_bytes(one));
        assert_memory_equal(v->value->data, one->data, trn_tensor_bytes(one)); /* 1 + 1 - 1 */
        trn_tensor_unref(one);
        trn_tensor_unref(two);
        trn_resource_unref(v);
        st_free(s);
    }
}

static void resource_life(void **state)
{
    st *s = st_new();
    trn_tensor *h = handle(s, "node", "shared", TRN_FLOAT);
    trn_value out;
    R(&out, "VarIsInitializedOp", NULL, 0, 1, H(h));
    assert_false(TRN_DATA(out.t, bool)[0]);
    st_drop(out);
    fails(run(s, NULL, "ReadVariableOp", "dtype", TRN_FLOAT, 1, H(h)), TRN_FAILED_PRECONDITION, "shared");
    fails(run(s, NULL, "AssignAddVariableOp", "dtype", TRN_FLOAT, 2, H(h), st_t(f32s(1, 1.))), TRN_NOT_FOUND, "uninitialized");
    R(NULL, "AssignVariableOp", "dtype", TRN_FLOAT, 2, H(h), st_t(f32s(2, 1., 2.)));
    R(NULL, "AssignAddVariableOp", "dtype", TRN_FLOAT, 2, H(h), st_t(f32s(2, 1., 1.)));
    trn_tensor *other = handle(s, "another_node", "shared", TRN_FLOAT);
    R(&out, "ReadVariableOp", "dtype", TRN_FLOAT, 1, H(other));
    expect(out.t, 2, 2., 3.);
    st_drop(out);
    R(&out, "VariableShape", NULL, 0, 1, H(h));
    assert_int_equal(out.t->count, 1);
    assert_int_equal(TRN_DATA(out.t, int32_t)[0], 2);
    st_drop(out);
    fails(run(s, NULL, "ReadVariableOp", "dtype", TRN_INT32, 1, H(h)), TRN_INVALID_ARGUMENT, "dtype");
    fails(run(s, NULL, "AssignVariableOp", "dtype", TRN_INT32, 2, H(h), st_t(trn_tensor_i32(1))), TRN_INVALID_ARGUMENT, "dtype");

    R(NULL, "DestroyResourceOp", NULL, 0, 1, H(h));
    R(NULL, "DestroyResourceOp", NULL, 0, 1, H(h)); /* gone already: ignored by default */
    st_node *n = st_op(s, "DestroyResourceOp", "d");
    st_bool(s, n, "ignore_lookup_error", false);
    trn_value in = st_t(h);
    fails(st_run(s, n, &in, 1, &out), TRN_NOT_FOUND, "shared");
    fails(run(s, NULL, "ReadVariableOp", "dtype", TRN_FLOAT, 1, H(h)), TRN_FAILED_PRECONDITION, "shared");
    trn_tensor_unref(h);
    trn_tensor_unref(other);
    st_free(s);
}

static void anonymous(void **state)
{
    st *s = st_new();
    const char *uuid = "cd2c89b7-88b7-44c8-ad83-06c2a9158347";
    trn_tensor *a = handle(s, "a", uuid, TRN_FLOAT), *b = handle(s, "b", uuid, TRN_FLOAT);
    trn_value out;
    R(NULL, "AssignVariableOp", "dtype", TRN_FLOAT, 2, H(a), st_t(f32s(1, 1.)));
    fails(run(s, NULL, "ReadVariableOp", "dtype", TRN_FLOAT, 1, H(b)), TRN_FAILED_PRECONDITION, "uninitialized");
    R(NULL, "AssignVariableOp", "dtype", TRN_FLOAT, 2, H(b), st_t(f32s(1, 2.)));
    R(&out, "ReadVariableOp", "dtype", TRN_FLOAT, 1, H(a));
    expect(out.t, 1, 1.);
    st_drop(out);
    R(NULL, "DestroyResourceOp", NULL, 0, 1, H(a));
    trn_tensor_unref(a);
    trn_tensor_unref(b);
    st_free(s);
}

/* Not a handle, an empty one, several: refused, not followed. */
static void bad_handles(void **state)
{
    st *s = st_new();
    trn_shape scalar = trn_shape_scalar(), two = trn_shape_vector(2);
    trn_tensor *empty, *pair;
    ok(trn_tensor_new(&empty, TRN_RESOURCE, &scalar));
    ok(trn_tensor_new(&pair, TRN_RESOURCE, &two));
    const char *ops[] = {"ReadVariableOp", "VarIsInitializedOp", "VariableShape", "DestroyResourceOp", "DisableCopyOnRead"};
    for (size_t i = 0; i < TRN_COUNTOF(ops); i++) {
        fails(run(s, NULL, ops[i], i ? NULL : "dtype", TRN_FLOAT, 1, H(empty)), TRN_INVALID_ARGUMENT, "handle");
        fails(run(s, NULL, ops[i], i ? NULL : "dtype", TRN_FLOAT, 1, H(pair)), TRN_INVALID_ARGUMENT, "handle");
    }
    fails(run(s, NULL, "AssignVariableOp", "dtype", TRN_FLOAT, 2, H(empty), st_t(f32s(1, 1.))), TRN_INVALID_ARGUMENT, "handle");
    trn_tensor_unref(empty);
    trn_tensor_unref(pair);
    st_free(s);
}

static void strings(void **state)
{
    st *s = st_new();
    trn_tensor *h = handle(s, "words", "", TRN_STRING);
    R(NULL, "AssignVariableOp", "dtype", TRN_STRING, 2, H(h), st_t(trn_tensor_str("hello, variable world", 21)));
    trn_value out;
    R(&out, "ReadVariableOp", "dtype", TRN_STRING, 1, H(h));
    size_t n;
    assert_memory_equal(trn_tensor_str_at(out.t, 0, &n), "hello, variable world", 21);
    st_drop(out);
    trn_tensor_unref(h);
    st_free(s);
}

static void count_up_to(void **state)
{
    st *s = st_new();
    trn_shape scalar = trn_shape_scalar();
    trn_var *v = ref_var(s, "c", TRN_INT64, &scalar);
    R(NULL, "Assign", "T", TRN_INT64, 2, st_v(v), st_t(trn_tensor_i64(5)));
    st_node *n = st_op(s, "CountUpTo", "n");
    st_type(s, n, "T", TRN_INT64);
    st_int(s, n, "limit", 7);
    trn_value in = st_v(v), out;
    for (int i = 5; i < 7; i++) {
        ok(st_run(s, n, &in, 1, &out));
        assert_int_equal(TRN_DATA(out.t, int64_t)[0], i);
        st_drop(out);
    }
    fails(st_run(s, n, &in, 1, &out), TRN_OUT_OF_RANGE, "limit of 7");
    assert_int_equal(TRN_DATA(v->value, int64_t)[0], 7);
    trn_resource_unref(v);
    st_free(s);
}

static void temporary(void **state)
{
    st *s = st_new();
    trn_shape two = trn_shape_vector(2);
    st_node *n = st_op(s, "TemporaryVariable", "t");
    st_type(s, n, "dtype", TRN_FLOAT);
    st_shape(s, n, "shape", &two);
    st_str(s, n, "var_name", "tmp");
    trn_value v, out;
    ok(st_run(s, n, NULL, 0, &v));
    fails(st_run(s, n, NULL, 0, &out), TRN_ALREADY_EXISTS, "tmp");
    R(NULL, "AssignAdd", "T", TRN_FLOAT, 2, v, st_t(f32s(2, 3., 4.)));
    st_node *d = st_op(s, "DestroyTemporaryVariable", "d");
    st_type(s, d, "T", TRN_FLOAT);
    st_str(s, d, "var_name", "tmp");
    ok(st_run(s, d, &v, 1, &out));
    expect(out.t, 2, 3., 4.);
    st_drop(out);
    st_drop(v);
    ok(st_run(s, n, NULL, 0, &v)); /* the name is free again */
    st_drop(v);
    st_free(s);
}

/* ---- scatter, gather ------------------------------------------------------------------------------------------ */

static trn_tensor *i32s(int rank, int64_t a, int64_t b, const int32_t *v)
{
    int64_t dims[2] = {a, b};
    return trn_tensor_from(TRN_INT32, rank, dims, v);
}
static trn_tensor *mat(int64_t a, int64_t b, const float *v)
{
    int64_t dims[2] = {a, b};
    return trn_tensor_from(TRN_FLOAT, 2, dims, v);
}

static void scatter(void **state)
{
    st *s = st_new();
    trn_tensor *h = handle(s, "table", "", TRN_FLOAT);
    const float zero[6] = {0}, up[6] = {1, 2, 3, 4, 5, 6};
    R(NULL, "AssignVariableOp", "dtype", TRN_FLOAT, 2, H(h), st_t(mat(3, 2, zero)));
    const int32_t twice[3] = {2, 0, 2}, bad[2] = {0, 3}, neg[2] = {0, -1};
    R(NULL, "ResourceScatterAdd", "dtype", TRN_FLOAT, 3, H(h), st_t(i32s(1, 3, 0, twice)), st_t(mat(3, 2, up)));
    trn_value out, before;
    R(&before, "ReadVariableOp", "dtype", TRN_FLOAT, 1, H(h));
    expect(before.t, 6, 3., 4., 0., 0., 6., 8.);
    /* A bad index changes nothing, not even the rows before it. */
    fails(run(s, NULL, "ResourceScatterAdd", "dtype", TRN_FLOAT, 3, H(h), st_t(i32s(1, 2, 0, bad)), st_t(mat(2, 2, up))), TRN_INVALID_ARGUMENT,
          "indices[1] = 3 is not in [0, 3)");
    fails(run(s, NULL, "ResourceScatterMul", "dtype", TRN_FLOAT, 3, H(h), st_t(i32s(1, 2, 0, neg)), st_t(mat(2, 2, up))), TRN_INVALID_ARGUMENT,
          "indices[1] = -1");
    fails(run(s, NULL, "ResourceScatterAdd", "dtype", TRN_FLOAT, 3, H(h), st_t(i32s(1, 2, 0, twice)), st_t(mat(3, 2, up))),
          TRN_INVALID_ARGUMENT, "updates");
    /* One value for all; a reader keeps what it has. */
    R(NULL, "ResourceScatterUpdate", "dtype", TRN_FLOAT, 3, H(h), st_t(i32s(1, 1, 0, twice)), st_t(trn_tensor_f32(9)));
    expect(before.t, 6, 3., 4., 0., 0., 6., 8.);
    st_drop(before);
    const int32_t nd[4] = {1, 1, 0, 0}, nd_bad[2] = {1, 2};
    R(NULL, "ResourceScatterNdSub", "T", TRN_FLOAT, 3, H(h), st_t(i32s(2, 2, 2, nd)), st_t(f32s(2, 10., 20.)));
    fails(run(s, NULL, "ResourceScatterNdSub", "T", TRN_FLOAT, 3, H(h), st_t(i32s(2, 1, 2, nd_bad)), st_t(f32s(1, 1.))), TRN_INVALID_ARGUMENT,
          "[1, 2] does not index");
    R(&out, "ResourceGather", "dtype", TRN_FLOAT, 2, H(h), st_t(i32s(1, 3, 0, twice)));
    expect(out.t, 6, 9., 9., -17., 4., 9., 9.);
    st_drop(out);
    R(&out, "ResourceGatherNd", "dtype", TRN_FLOAT, 2, H(h), st_t(i32s(2, 2, 2, nd)));
    expect(out.t, 2, -10., -17.);
    st_drop(out);
    fails(run(s, NULL, "ResourceGather", "dtype", TRN_FLOAT, 2, H(h), st_t(i32s(1, 2, 0, bad))), TRN_INVALID_ARGUMENT, "indices[1] = 3");
    trn_tensor_unref(h);

    h = handle(s, "ints", "", TRN_INT32);
    const int32_t v[3] = {INT32_MIN, 7, 8}, by[3] = {-1, 2, 0}, all[3] = {0, 1, 2};
    R(NULL, "AssignVariableOp", "dtype", TRN_INT32, 2, H(h), st_t(i32s(1, 3, 0, v)));
    fails(run(s, NULL, "ResourceScatterDiv", "dtype", TRN_INT32, 3, H(h), st_t(i32s(1, 3, 0, all)), st_t(i32s(1, 3, 0, by))),
          TRN_INVALID_ARGUMENT, "zero");
    R(NULL, "ResourceScatterDiv", "dtype", TRN_INT32, 3, H(h), st_t(i32s(1, 2, 0, all)), st_t(i32s(1, 2, 0, by)));
    R(&out, "ReadVariableOp", "dtype", TRN_INT32, 1, H(h));
    assert_int_equal(TRN_DATA(out.t, int32_t)[0], INT32_MIN);
    assert_int_equal(TRN_DATA(out.t, int32_t)[1], 3);
    st_drop(out);
    trn_tensor_unref(h);
    st_free(s);
}

static void scatter_strings(void **state)
{
    st *s = st_new();
    trn_tensor *h = handle(s, "words", "", TRN_STRING), *t;
    trn_shape three = trn_shape_vector(3), one = trn_shape_vector(1);
    ok(trn_tensor_new(&t, TRN_STRING, &three));
    R(NULL, "AssignVariableOp", "dtype", TRN_STRING, 2, H(h), st_t(t));
    ok(trn_tensor_new(&t, TRN_STRING, &one));
    ok(trn_tensor_str_put(t, 0, "a string that is long", 21));
    const int32_t at[1] = {1};
    R(NULL, "ResourceScatterUpdate", "dtype", TRN_STRING, 3, H(h), st_t(i32s(1, 1, 0, at)), st_t(t));
    trn_value out;
    R(&out, "ResourceGather", "dtype", TRN_STRING, 2, H(h), st_t(i32s(1, 1, 0, at)));
    size_t n;
    assert_memory_equal(trn_tensor_str_at(out.t, 0, &n), "a string that is long", 21);
    st_drop(out);
    trn_tensor_unref(h);
    st_free(s);
}

static void slice_assign(void **state)
{
    st *s = st_new();
    trn_tensor *h = handle(s, "m", "", TRN_FLOAT);
    const float zero[6] = {0}, up[2] = {1, 2};
    const int32_t begin[2] = {2, 1}, end[2] = {0, 2}, step[2] = {-2, 1};
    R(NULL, "AssignVariableOp", "dtype", TRN_FLOAT, 2, H(h), st_t(mat(3, 2, zero)));
    st_node *n = st_op(s, "ResourceStridedSliceAssign", "s");
    st_type(s, n, "T", TRN_FLOAT);
    st_type(s, n, "Index", TRN_INT32);
    st_int(s, n, "end_mask", 1); /* m[2::-2, 1] = [1, 2] */
    st_int(s, n, "shrink_axis_mask", 2);
    trn_value in[5] = {st_t(h), st_t(i32s(1, 2, 0, begin)), st_t(i32s(1, 2, 0, end)), st_t(i32s(1, 2, 0, step)),
                       st_t(f32s(2, (double)up[0], (double)up[1]))}, out;
    ok(st_run(s, n, in, 5, &out));
    R(&out, "ReadVariableOp", "dtype", TRN_FLOAT, 1, H(h));
    expect(out.t, 6, 0., 2., 0., 0., 0., 1.);
    st_drop(out);
    st_drop(in[4]);
    in[4] = st_t(trn_tensor_f32(7)); /* one value for all */
    ok(st_run(s, n, in, 5, &out));
    R(&out, "ReadVariableOp", "dtype", TRN_FLOAT, 1, H(h));
    expect(out.t, 6, 0., 7., 0., 0., 0., 7.);
    st_drop(out);
    st_drop(in[4]);
    in[4] = st_t(f32s(3, 1., 2., 3.));
    fails(st_run(s, n, in, 5, &out), TRN_INVALID_ARGUMENT, "broadcast");
    for (int i = 0; i < 5; i++)
        st_drop(in[i]);
    st_free(s);
}

/* ---- threads -------------------------------------------------------------------------------------------------- */

enum { THREADS = 8, STEPS = 500 };
struct worker {
    st *s;
    trn_tensor *h;
    st_node *add, *scatter, *read;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    const int32_t row[1] = {3};
    trn_tensor *ones, *at = i32s(1, 1, 0, row);
    trn_shape shape = trn_shape_vector(1000), one = trn_shape_vector(1);
    trn_err err = trn_tensor_new(&ones, TRN_INT64, &shape);
    for (int i = 0; !err && i < 1000; i++)
        TRN_DATA_MUT(ones, int64_t)[i] = 1;
    trn_tensor *more = NULL;
    if (!err)
        err = trn_tensor_new(&more, TRN_INT64, &one);
    if (!err)
        TRN_DATA_MUT(more, int64_t)[0] = 1;
    for (int i = 0; i < STEPS && !err; i++) {
        trn_value in[3] = {st_t(w->h), st_t(ones)}, out = {0};
        err = st_run(w->s, w->add, in, 2, &out);
        if (!err && i % 5 == 0) {
            in[1] = st_t(at);
            in[2] = st_t(more);
            err = st_run(w->s, w->scatter, in, 3, &out);
        }
        if (!err && i % 7 == 0) {
            err = st_run(w->s, w->read, in, 1, &out);
            /* All elements but one move together: a torn read would show. */
            for (int j = 1; !err && j < 1000; j++)
                if (j != 3 && TRN_DATA(out.t, int64_t)[j] != TRN_DATA(out.t, int64_t)[0])
                    err = trn_errorf(TRN_INTERNAL, "torn");
            st_drop(out);
        }
    }
    trn_tensor_unref(ones);
    trn_tensor_unref(more);
    trn_tensor_unref(at);
    return err;
}

static void concurrent_sum(void **state)
{
    st *s = st_new();
    trn_tensor *h = handle(s, "sum", "", TRN_INT64), *zeros;
    trn_shape shape = trn_shape_vector(1000);
    ok(trn_tensor_new(&zeros, TRN_INT64, &shape));
    memset(zeros->data, 0, trn_tensor_bytes(zeros));
    R(NULL, "AssignVariableOp", "dtype", TRN_INT64, 2, H(h), st_t(zeros));
    struct worker w = {s, h, st_op(s, "AssignAddVariableOp", "a"), st_op(s, "ResourceScatterAdd", "s"), st_op(s, "ReadVariableOp", "r")};
    st_type(s, w.add, "dtype", TRN_INT64);
    st_type(s, w.scatter, "dtype", TRN_INT64);
    st_type(s, w.scatter, "Tindices", TRN_INT32);
    st_type(s, w.read, "dtype", TRN_INT64);
    ok(st_prepare(s, w.add));
    ok(st_prepare(s, w.scatter));
    ok(st_prepare(s, w.read));
    pthread_t t[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&t[i], NULL, work, &w), 0);
    for (int i = 0; i < THREADS; i++) {
        void *err;
        pthread_join(t[i], &err);
        ok(err);
    }
    trn_value out;
    R(&out, "ReadVariableOp", "dtype", TRN_INT64, 1, H(h));
    for (int i = 0; i < 1000; i++)
        assert_int_equal(TRN_DATA(out.t, int64_t)[i], THREADS * STEPS + (i == 3 ? THREADS * STEPS / 5 : 0));
    st_drop(out);
    trn_tensor_unref(h);
    st_free(s);
}

/* Rows of one table, updated and gathered by many at once: no update is lost, no row is seen half done. */
enum { ROWS = 200, COLS = 48, AT_ONCE = 16 };
struct rows {
    st *s;
    trn_tensor *h;
    st_node *scatter, *gather, *read;
    _Atomic unsigned seed;
};

static void *work_on_rows(void *arg)
{
    struct rows *w = arg;
    unsigned seed = atomic_fetch_add(&w->seed, 1) * 7919u;
    trn_shape shape = {.rank = 2, .dim = {AT_ONCE, COLS}};
    trn_tensor *ones;
    trn_err err = trn_tensor_new(&ones, TRN_INT64, &shape);
    for (int i = 0; !err && i < AT_ONCE * COLS; i++)
        TRN_DATA_MUT(ones, int64_t)[i] = 1;
    for (int i = 0; i < STEPS && !err; i++) {
        int32_t rows[AT_ONCE];
        for (int j = 0; j < AT_ONCE; j++)
            rows[j] = (int32_t)((seed = seed * 1103515245u + 12345u) >> 16) % ROWS;
        trn_tensor *at = i32s(1, AT_ONCE, 0, rows);
        trn_value in[3] = {st_t(w->h), st_t(at), st_t(ones)}, out = {0};
        err = st_run(w->s, w->scatter, in, 3, &out);
        if (!err && i % 3 == 0) {
            err = st_run(w->s, w->gather, in, 2, &out);
            for (int j = 0; !err && j < AT_ONCE * COLS; j++)
                if (TRN_DATA(out.t, int64_t)[j] != TRN_DATA(out.t, int64_t)[j / COLS * COLS])
                    err = trn_errorf(TRN_INTERNAL, "a torn row");
            st_drop(out);
        }
        if (!err && i % 50 == 0) { /* the whole: the next update copies it */
            err = st_run(w->s, w->read, in, 1, &out);
            for (int j = 0; !err && j < ROWS * COLS; j++)
                if (TRN_DATA(out.t, int64_t)[j] != TRN_DATA(out.t, int64_t)[j / COLS * COLS])
                    err = trn_errorf(TRN_INTERNAL, "a torn row in the whole");
            st_drop(out);
        }
        trn_tensor_unref(at);
    }
    trn_tensor_unref(ones);
    return err;
}

static void concurrent_rows(void **state)
{
    st *s = st_new();
    trn_tensor *h = handle(s, "rows", "", TRN_INT64), *zeros;
    trn_shape shape = {.rank = 2, .dim = {ROWS, COLS}};
    ok(trn_tensor_new(&zeros, TRN_INT64, &shape));
    memset(zeros->data, 0, trn_tensor_bytes(zeros));
    R(NULL, "AssignVariableOp", "dtype", TRN_INT64, 2, H(h), st_t(zeros));
    struct rows w = {.s = s, .h = h, .scatter = st_op(s, "ResourceScatterAdd", "s"), .gather = st_op(s, "ResourceGather", "g"), .read = st_op(s, "ReadVariableOp", "r")};
    st_node *all[] = {w.scatter, w.gather, w.read};
    for (int i = 0; i < 3; i++) {
        st_type(s, all[i], "dtype", TRN_INT64);
        if (i < 2)
            st_type(s, all[i], "Tindices", TRN_INT32);
        ok(st_prepare(s, all[i]));
    }
    pthread_t t[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&t[i], NULL, work_on_rows, &w), 0);
    for (int i = 0; i < THREADS; i++) {
        void *err;
        pthread_join(t[i], &err);
        ok(err);
    }
    trn_value out;
    R(&out, "ReadVariableOp", "dtype", TRN_INT64, 1, H(h));
    int64_t sum = 0;
    for (int i = 0; i < ROWS * COLS; i++)
        sum += TRN_DATA(out.t, int64_t)[i];
    assert_int_equal(sum, (int64_t)THREADS * STEPS * AT_ONCE * COLS);
    st_drop(out);
    trn_tensor_unref(h);
    st_free(s);
}

/* Rows of two variables visited by lock: every item once, those of a row in their order, and what somebody else has locked last. */
enum { ITEMS = 5000, VISITED_ROWS = 300 };
struct visits {
    trn_var *var[2];
    _Atomic int n;
    int fetched[ITEMS], at[ITEMS], last[VISITED_ROWS];
    bool in_order;
};

static int64_t row_of(int64_t item) { return item * 7919 % VISITED_ROWS; }

static void fetch_visit(const void *arg, int64_t item) { (*(struct visits *const *)arg)->fetched[item]++; }

static void visit(const void *arg, int64_t item)
{
    struct visits *v = *(struct visits *const *)arg;
    int64_t row = row_of(item);
    v->in_order = v->in_order && v->last[row] <= item && !trn_var_row_try(v->var[0], trn_var_row_lock_of(row)) && !trn_var_row_try(v->var[1], trn_var_row_lock_of(row));
    v->last[row] = (int)item + 1;
    v->at[item] = ++v->n;
}

static void *visit_all(void *arg)
{
    struct visits *v = arg;
    trn_rows rows;
    rows.n = 0;
    for (int64_t i = 0; i < ITEMS; i++)
        if (trn_rows_add(&rows, i, row_of(i)) || i + 1 == ITEMS)
            trn_rows_visit(&rows, v->var, 2, &v, fetch_visit, visit);
    return NULL;
}

static void rows_by_lock(void **state)
{
    trn_shape shape = trn_shape_vector(VISITED_ROWS);
    struct visits *v = trn_xalloc(sizeof *v);
    v->in_order = true;
    for (int i = 0; i < 2; i++)
        ok(trn_var_new(&v->var[i], "v", TRN_FLOAT, &shape));
    int busy = trn_var_row_lock_of(17), held = 0; /* in the first block of items */
    assert_true(trn_var_row_try(v->var[0], busy));
    for (int64_t i = 0; i < TRN_ROWS_BLOCK; i++)
        held += trn_var_row_lock_of(row_of(i)) == busy;
    assert_true(held > 1);
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, visit_all, v), 0);
    while (atomic_load(&v->n) < TRN_ROWS_BLOCK - held)
        sched_yield();
    trn_var_row_unlock(v->var[0], busy);
    pthread_join(t, NULL);
    assert_int_equal(v->n, ITEMS);
    assert_true(v->in_order);
    for (int i = 0; i < ITEMS; i++) {
        assert_int_equal(v->fetched[i], 1);
        assert_true(v->at[i] > 0);
        if (i < TRN_ROWS_BLOCK)
            assert_true((v->at[i] > TRN_ROWS_BLOCK - held) == (trn_var_row_lock_of(row_of(i)) == busy));
    }
    for (int l = 0; l < TRN_VAR_ROW_LOCKS; l++)
        assert_true(trn_var_row_try(v->var[0], l) && trn_var_row_try(v->var[1], l)); /* all given back */
    trn_resource_unref(v->var[0]);
    trn_resource_unref(v->var[1]);
    free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ref_life),    cmocka_unit_test(shared_delta), cmocka_unit_test(every_dtype), cmocka_unit_test(resource_life),
        cmocka_unit_test(anonymous),   cmocka_unit_test(bad_handles),  cmocka_unit_test(strings),     cmocka_unit_test(count_up_to),
        cmocka_unit_test(temporary),   cmocka_unit_test(scatter),      cmocka_unit_test(scatter_strings),
        cmocka_unit_test(concurrent_sum), cmocka_unit_test(concurrent_rows), cmocka_unit_test(slice_assign),
        cmocka_unit_test(rows_by_lock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
