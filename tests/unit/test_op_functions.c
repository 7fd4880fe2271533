/* The generated functions of trainera/ops.h: every form there is, as it comes out in the GraphDef. */
#include <trainera/trainera.h>

#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants the four above first */
#include <cmocka.h>

static int setup(void **state)
{
    *state = trn_builder_new();
    return 0;
}

static int teardown(void **state)
{
    trn_builder_free(*state);
    return 0;
}

/* The exported node of this name as text, white space between tokens made one blank. In memory of the builder. */
static const char *node_text(trn_builder *b, const char *name)
{
    trn_err err = trn_builder_check(b);
    if (err)
        fail_msg("%s", trn_err_msg(err));
    char *text;
    err = trn_builder_export_text(&text, b);
    if (err)
        fail_msg("%s", trn_err_msg(err));
    const char *key = trn_builder_printf(b, "node {\n  name: \"%s\"\n", name);
    const char *p = strstr(text, key);
    if (!p)
        fail_msg("no node %s", name);
    const char *end = strstr(p + 1, "\n}\n");
    char *out = trn_builder_alloc(b, (size_t)(end - p) + 2), *o = out;
    for (; p < end; p++)
        if (!isspace((unsigned char)*p))
            *o++ = *p;
        else if (o > out && o[-1] != ' ')
            *o++ = ' ';
    free(text);
    return out;
}

static void has(trn_builder *b, const char *name, const char *part)
{
    const char *text = node_text(b, name);
    if (!strstr(text, part))
        fail_msg("node %s has no %s:\n%s", name, part, text);
}

/* The attr with this value, as it is in the text. */
static void attr(trn_builder *b, const char *name, const char *key, const char *value)
{
    has(b, name, trn_builder_printf(b, "attr { key: \"%s\" value { %s } }", key, value));
}

static void no_attr(trn_builder *b, const char *name, const char *key)
{
    const char *text = node_text(b, name);
    if (strstr(text, trn_builder_printf(b, "key: \"%s\"", key)))
        fail_msg("node %s has attr %s:\n%s", name, key, text);
}

static void fails(trn_builder *b, const char *part)
{
    trn_err err = trn_builder_check(b);
    assert_non_null(err);
    if (!strstr(trn_err_msg(err), part))
        fail_msg("\"%s\" does not say \"%s\"", trn_err_msg(err), part);
    assert_int_equal(trn_err_code(err), TRN_INVALID_ARGUMENT);
    trn_err_free(err);
}

static trn_out floats(trn_builder *b, const char *name) { return trn_placeholder(b, name, TRN_FLOAT, trn_shape_of(2, (int64_t)4, (int64_t)6)); }

/* One output, none, and optional attrs that are plain. */
static void test_simple(void **state)
{
    trn_builder *b = *state;
    trn_out x = floats(b, "x");
    trn_out y = trn_op_mat_mul(trn_named(b, "y"), x, x, &(trn_mat_mul_opts){.transpose_b = true});
    assert_int_equal(y.slot, 0);
    assert_string_equal(trn_out_name(b, y), "y:0");
    has(b, "y", "op: \"MatMul\" input: \"x\" input: \"x\"");
    attr(b, "y", "transpose_b", "b: true");
    attr(b, "y", "T", "type: DT_FLOAT");
    no_attr(b, "y", "grad_a");
    trn_op_mat_mul(trn_named(b, "y2"), y, x, NULL);
    assert_null(strstr(node_text(b, "y2"), "b: true"));

    trn_out none = trn_op_no_op(trn_named(b, "nothing"));
    assert_int_equal(none.slot, -1);
    has(b, "nothing", "op: \"NoOp\"");
    trn_out queue = trn_op_fifo_queue_v2(b, TRN_TYPES(TRN_FLOAT), &(trn_fifo_queue_v2_opts){.capacity = TRN_I(3), .shared_name = "q"});
    has(b, "FIFOQueueV2", "key: \"component_types\" value { list { type: DT_FLOAT } }");
    attr(b, "FIFOQueueV2", "capacity", "i: 3");
    attr(b, "FIFOQueueV2", "shared_name", "s: \"q\"");
    assert_int_equal(trn_op_queue_close_v2(b, queue, NULL).slot, -1);
    assert_int_equal(trn_op_queue_enqueue_v2(trn_named(b, "put"), queue, &x, 1, &(trn_queue_enqueue_v2_opts){.timeout_ms = TRN_I(-1)}).slot, -1);
    has(b, "put", "op: \"QueueEnqueueV2\" input: \"FIFOQueueV2\" input: \"x\"");
    attr(b, "put", "Tcomponents", "list { type: DT_FLOAT }");
}

/* Defaults that are not zero: numbers say that they are given, the rest is NULL or TRN_INVALID. */
static void test_optional(void **state)
{
    trn_builder *b = *state;
    trn_out x = trn_placeholder(b, "x", TRN_FLOAT, trn_shape_of(4, (int64_t)2, (int64_t)8, (int64_t)8, (int64_t)3));
    trn_out v = trn_placeholder(b, "v", TRN_FLOAT, trn_shape_of(1, (int64_t)3));
    trn_out f = trn_placeholder(b, "f", TRN_FLOAT, trn_shape_of(4, (int64_t)3, (int64_t)3, (int64_t)3, (int64_t)5));
    trn_fused_batch_norm_v3_out n = trn_op_fused_batch_norm_v3(trn_named(b, "n"), x, v, v, v, v, &(trn_fused_batch_norm_v3_opts){.epsilon = TRN_F(0.25f), .is_training = TRN_B(false)});
    attr(b, "n", "epsilon", "f: 0.25");
    attr(b, "n", "is_training", "b: false");
    no_attr(b, "n", "exponential_avg_factor");
    assert_int_equal(n.y.slot, 0);
    assert_int_equal(n.batch_mean.slot, 1);
    assert_int_equal(n.reserve_space_3.slot, 5);
    assert_int_equal(n.reserve_space_3.node, n.y.node);

    trn_op_conv2d(trn_named(b, "c0"), x, f, TRN_INTS(1, 1, 1, 1), "SAME", NULL);
    attr(b, "c0", "strides", "list { i: 1 i: 1 i: 1 i: 1 }");
    attr(b, "c0", "padding", "s: \"SAME\"");
    no_attr(b, "c0", "dilations");
    trn_op_conv2d(trn_named(b, "c1"), x, f, TRN_INTS(1, 1, 1, 1), "EXPLICIT",
                  &(trn_conv2d_opts){.explicit_paddings = TRN_INTS(0, 0, 1, 1, 1, 1, 0, 0), .dilations = TRN_INTS(1, 2, 2, 1), .use_cudnn_on_gpu = TRN_B(false)});
    attr(b, "c1", "explicit_paddings", "list { i: 0 i: 0 i: 1 i: 1 i: 1 i: 1 i: 0 i: 0 }");
    attr(b, "c1", "dilations", "list { i: 1 i: 2 i: 2 i: 1 }");
    trn_op_max_pool(trn_named(b, "m"), x, TRN_INTS(1, 1, 2, 2), TRN_INTS(1, 1, 1, 1), "VALID", &(trn_max_pool_opts){.data_format = "NCHW"});
    attr(b, "m", "data_format", "s: \"NCHW\"");
    attr(b, "c1", "use_cudnn_on_gpu", "b: false");

    trn_out axis = trn_const_i32(b, 1);
    trn_op_arg_max(trn_named(b, "a0"), x, axis, NULL);
    assert_int_equal(trn_out_dtype(b, trn_find(b, "a0:0")), TRN_INT64);
    trn_op_arg_max(trn_named(b, "a1"), x, axis, &(trn_arg_max_opts){.output_type = TRN_INT32});
    attr(b, "a1", "output_type", "type: DT_INT32");

    trn_shape unknown = trn_shape_of(2, (int64_t)-1, (int64_t)3);
    trn_op_placeholder(trn_named(b, "p0"), TRN_INT64, NULL);
    trn_op_placeholder(trn_named(b, "p1"), TRN_INT64, &(trn_placeholder_opts){.shape = &unknown});
    attr(b, "p1", "shape", "shape { dim { size: -1 } dim { size: 3 } }");
    assert_int_equal(trn_out_shape(b, trn_find(b, "p0:0"))->rank, -1);

    trn_out ids = trn_placeholder(b, "ids", TRN_INT64, trn_shape_of(2, (int64_t)4, (int64_t)1));
    trn_fixed_unigram_candidate_sampler_out s = trn_op_fixed_unigram_candidate_sampler(trn_named(b, "s"), ids, 1, 2, true, 3, &(trn_fixed_unigram_candidate_sampler_opts){.unigrams = TRN_FLOATS(0.5f, 0.25f, 0.125f)});
    assert_int_equal(s.sampled_expected_count.slot, 2);
    attr(b, "s", "unigrams", "list { f: 0.5 f: 0.25 f: 0.125 }");
    attr(b, "s", "unique", "b: true");
    attr(b, "s", "range_max", "i: 3");

    trn_tensor *red = trn_tensor_from(TRN_UINT8, 1, (int64_t[]){3}, (uint8_t[]){9, 8, 7});
    trn_out tag = trn_const_str(b, "tag");
    trn_op_image_summary(trn_named(b, "i"), tag, x, &(trn_image_summary_opts){.bad_color = red});
    trn_tensor_unref(red);
    has(b, "i", "key: \"bad_color\" value { tensor { dtype: DT_UINT8 tensor_shape { dim { size: 3 } }");
    trn_op_tensor_summary(trn_named(b, "t"), x, &(trn_tensor_summary_opts){.labels = TRN_STRS("one", "two")});
    attr(b, "t", "labels", "list { s: \"one\" s: \"two\" }");
}

/* Lists of tensors in and out, alone and among others. */
static void test_lists(void **state)
{
    trn_builder *b = *state;
    trn_out x = floats(b, "x"), zero = trn_const_i32(b, 0);
    trn_outs parts = trn_op_split(trn_named(b, "s"), zero, x, 2);
    assert_int_equal(parts.n, 2);
    assert_string_equal(trn_out_name(b, parts.at[1]), "s:1");
    attr(b, "s", "num_split", "i: 2");
    trn_op_concat_v2(trn_named(b, "c"), parts.at, parts.n, zero);
    has(b, "c", "input: \"s\" input: \"s:1\" input: \"Const\"");
    attr(b, "c", "N", "i: 2");

    trn_outs same = trn_op_identity_n(trn_named(b, "id"), TRN_OUTS(x, zero));
    assert_int_equal(same.n, 2);
    assert_int_equal(trn_out_dtype(b, same.at[1]), TRN_INT32);
    attr(b, "id", "T", "list { type: DT_FLOAT type: DT_INT32 }");

    trn_out i0 = trn_const_i32s(b, (int32_t[]){0, 1, 2, 3}, 4);
    trn_op_dynamic_stitch(trn_named(b, "st"), TRN_OUTS(i0, i0), TRN_OUTS(x, x));
    attr(b, "st", "N", "i: 2");

    trn_out yes = trn_const_bool(b, true);
    trn_op_assert(trn_named(b, "as"), yes, TRN_OUTS(zero, x), &(trn_assert_opts){.summarize = TRN_I(1)});
    attr(b, "as", "T", "list { type: DT_INT32 type: DT_FLOAT }");
    attr(b, "as", "summarize", "i: 1");

    trn_out seq = trn_placeholder(b, "seq", TRN_FLOAT, trn_shape_of(3, (int64_t)5, (int64_t)2, (int64_t)4));
    trn_out len = trn_placeholder(b, "len", TRN_INT32, trn_shape_of(1, (int64_t)2));
    trn_ctc_beam_search_decoder_out d = trn_op_ctc_beam_search_decoder(trn_named(b, "d"), seq, len, 10, 2, NULL);
    assert_int_equal(d.decoded_indices.n, 2);
    assert_int_equal(d.decoded_values.at[0].slot, 2);
    assert_int_equal(d.decoded_shape.at[1].slot, 5);
    assert_int_equal(d.log_probability.slot, 6);
    attr(b, "d", "top_paths", "i: 2");

    trn_out str = trn_placeholder(b, "str", TRN_STRING, trn_shape_of(1, (int64_t)-1)), key = trn_const_str(b, "k"), dense = trn_const_str(b, "");
    trn_parse_example_out e = trn_op_parse_example(trn_named(b, "e"), str, str, TRN_OUTS(key), TRN_OUTS(key, key), TRN_OUTS(dense, dense), TRN_TYPES(TRN_INT64),
                                                   TRN_SHAPES(trn_shape_of(1, (int64_t)1), trn_shape_scalar()));
    assert_int_equal(e.sparse_values.n, 1);
    assert_int_equal(trn_out_dtype(b, e.sparse_values.at[0]), TRN_INT64);
    assert_int_equal(e.dense_values.n, 2);
    assert_int_equal(e.dense_values.at[1].slot, 4);
    attr(b, "e", "Nsparse", "i: 1");
    attr(b, "e", "Ndense", "i: 2");
    attr(b, "e", "Tdense", "list { type: DT_STRING type: DT_STRING }");
    attr(b, "e", "dense_shapes", "list { shape { dim { size: 1 } } shape { } }");

    /* Lists without anything in them. */
    trn_op_string_format(trn_named(b, "fmt"), NULL, 0, &(trn_string_format_opts){.template_ = "nothing"});
    attr(b, "fmt", "template", "s: \"nothing\"");
    has(b, "fmt", "key: \"T\" value { list { } }");
}

/* Required attrs of every kind. */
static void test_required(void **state)
{
    trn_builder *b = *state;
    trn_out x = floats(b, "x");
    trn_op_cast(trn_named(b, "type"), x, TRN_HALF, NULL);
    attr(b, "type", "DstT", "type: DT_HALF");
    trn_out a = trn_const_str(b, "a");
    trn_op_audio_summary(trn_named(b, "float"), a, x, 8000.5f, NULL);
    attr(b, "float", "sample_rate", "f: 8000.5");
    trn_op_bucketize(trn_named(b, "floats"), x, TRN_FLOATS(0.5f, 1.5f));
    attr(b, "floats", "boundaries", "list { f: 0.5 f: 1.5 }");
    trn_shape s = trn_shape_of(2, (int64_t)4, (int64_t)-1);
    trn_op_ensure_shape(trn_named(b, "shape"), x, &s);
    attr(b, "shape", "shape", "shape { dim { size: 4 } dim { size: -1 } }");
    trn_tensor *seven = trn_tensor_i64(7);
    trn_out c = trn_op_const(trn_named(b, "tensor"), seven, TRN_INT64);
    trn_tensor_unref(seven);
    assert_non_null(trn_out_const(b, c));
    trn_outs called = trn_op_partitioned_call(trn_named(b, "func"), &x, 1, TRN_TYPES(TRN_FLOAT, TRN_INT32),
                                              &(trn_func_ref){.name = "f", .n_attrs = 1, .attrs = (trn_attr[]){trn_at_type("T", TRN_FLOAT)}}, NULL);
    assert_int_equal(called.n, 2);
    has(b, "func", "key: \"f\" value { func { name: \"f\" attr { key: \"T\" value { type: DT_FLOAT } } } }");
    trn_out index = trn_const_i32(b, 0);
    trn_outs chosen = trn_op_case(trn_named(b, "funcs"), index, &x, 1, TRN_TYPES(TRN_FLOAT), TRN_FUNCS({.name = "f"}, {.name = "g"}),
                                  &(trn_case_opts){.output_shapes = TRN_SHAPES(trn_shape_of(1, (int64_t)2))});
    assert_int_equal(chosen.n, 1);
    attr(b, "funcs", "branches", "list { func { name: \"f\" } func { name: \"g\" } }");
    attr(b, "funcs", "output_shapes", "list { shape { dim { size: 2 } } }");
    trn_out data = trn_op_tensor_slice_dataset(trn_named(b, "slices"), &x, 1, TRN_SHAPES(trn_shape_of(1, (int64_t)6)), NULL);
    attr(b, "slices", "output_shapes", "list { shape { dim { size: 6 } } }");
    trn_op_map_dataset(trn_named(b, "map"), data, NULL, 0, &(trn_func_ref){.name = "f"}, TRN_TYPES(TRN_FLOAT), TRN_SHAPES(trn_shape_unknown()), NULL);
    attr(b, "map", "output_types", "list { type: DT_FLOAT }");
    attr(b, "map", "output_shapes", "list { shape { unknown_rank: true } }");
    attr(b, "map", "Targuments", "list { }");
}

/* Wrong calls latch an error that names the op; what they return can be used all the same. */
static void test_null(void **state)
{
    trn_builder *b = *state;
    assert_false(trn_out_is(trn_op_const(b, NULL, TRN_FLOAT)));
    fails(b, "Const: attr value");
    trn_outs parts = trn_op_split(b, TRN_NONE, TRN_NONE, 3); /* nothing after the first error counts, but it is safe to index */
    assert_int_equal(parts.n, 3);
    assert_false(trn_out_is(parts.at[2]));
    trn_fused_batch_norm_v3_out n = trn_op_fused_batch_norm_v3(b, TRN_NONE, TRN_NONE, TRN_NONE, TRN_NONE, TRN_NONE, NULL);
    assert_false(trn_out_is(n.reserve_space_3));
    assert_false(trn_out_is(trn_op_conv2d(b, TRN_NONE, TRN_NONE, TRN_INTS(1), NULL, NULL)));
    fails(b, "Const: attr value");
}

static void test_null_string(void **state)
{
    trn_builder *b = *state;
    trn_out x = floats(b, "x");
    trn_op_conv2d(b, x, x, TRN_INTS(1, 1, 1, 1), NULL, NULL);
    fails(b, "Conv2D: attr padding");
}

static void test_lengths(void **state)
{
    trn_builder *b = *state;
    trn_out x = floats(b, "x"), i = trn_const_i32(b, 0);
    trn_op_dynamic_stitch(b, &i, 1, TRN_OUTS(x, x));
    fails(b, "DynamicStitch: indices has 1 tensors, data has 2");
}

static void test_negative(void **state)
{
    trn_builder *b = *state;
    trn_out x = floats(b, "x");
    trn_op_add_n(b, &x, -1);
    fails(b, "length -1");
}

static void test_negative_outputs(void **state)
{
    trn_builder *b = *state;
    trn_outs none = trn_op_split(b, trn_const_i32(b, 0), floats(b, "x"), -2);
    assert_int_equal(none.n, 0);
    fails(b, "num_split");
}

static void test_bad_list(void **state)
{
    trn_builder *b = *state;
    trn_out x = floats(b, "x");
    trn_op_conv2d(b, x, x, (trn_ints){NULL, 4}, "SAME", NULL);
    fails(b, "strides");
}

static void test_none(void **state)
{
    trn_builder *b = *state;
    trn_op_relu(trn_named(b, "r"), TRN_NONE);
    fails(b, "Relu");
}

/* A graph of them runs, and the names of outputs are right. */
static void test_run(void **state)
{
    trn_builder *b = *state;
    trn_tensor *values = trn_tensor_from(TRN_FLOAT, 1, (int64_t[]){5}, (float[]){3, 1, 4, 1, 5});
    trn_out x = trn_op_const(trn_named(b, "x"), values, TRN_FLOAT);
    trn_tensor_unref(values);
    trn_out two = trn_const_i32(b, 2), zero = trn_const_i32(b, 0);
    trn_top_k_v2_out top = trn_op_top_k_v2(b, x, two, NULL);
    trn_unique_with_counts_out u = trn_op_unique_with_counts(b, x, NULL);
    trn_outs halves = trn_op_split_v(b, x, trn_const_i32s(b, (int32_t[]){2, 3}, 2), zero, 2);
    trn_out sum = trn_op_sum(b, halves.at[1], zero, &(trn_sum_opts){.keep_dims = true});
    const char *fetches[] = {trn_out_name(b, top.indices), trn_out_name(b, u.count), trn_out_name(b, sum)};
    trn_server *server;
    trn_session *session;
    trn_tensor *out[3];
    trn_err err = trn_builder_check(b);
    assert_null(err);
    assert_null(err = trn_server_create_local(&server));
    assert_null(err = trn_session_open_on(&session, server, NULL));
    assert_null(err = trn_session_extend_builder(session, b));
    assert_null(err = trn_session_run(session, &(trn_run){.fetches = fetches, .n_fetches = 3, .out = out}));
    const int32_t *index = trn_tensor_data(out[0]), *count = trn_tensor_data(out[1]);
    assert_int_equal(index[0], 4);
    assert_int_equal(index[1], 2);
    assert_int_equal(trn_tensor_count(out[1]), 4);
    assert_int_equal(count[1], 2);
    assert_int_equal(trn_tensor_shape(out[2])->rank, 1);
    assert_float_equal(*(const float *)trn_tensor_data(out[2]), 10, 0);
    for (int i = 0; i < 3; i++)
        trn_tensor_unref(out[i]);
    err = trn_session_close(session);
    assert_null(err);
    trn_server_close(server, 0);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {T(test_simple), T(test_optional), T(test_lists), T(test_required), T(test_null), T(test_null_string),
                                       T(test_lengths), T(test_negative), T(test_negative_outputs), T(test_bad_list), T(test_none), T(test_run)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
