/* Writes a graph of many ops to a file: ops_graph FILE. test_c_ops.py makes the same one with TensorFlow's raw ops and compares. */
#include <stdio.h>
#include <stdlib.h>
#include <trainera/trainera.h>

static trn_tensor *vec(trn_dtype t, int64_t n, const void *data) { return trn_tensor_from(t, 1, &n, data); }

static trn_out ints(trn_builder *b, const char *name, int64_t n, const int32_t *v)
{
    trn_tensor *t = vec(TRN_INT32, n, v);
    trn_out o = trn_op_const(trn_named(b, name), t, TRN_INT32);
    trn_tensor_unref(t);
    return o;
}

static trn_out number(trn_builder *b, const char *name, trn_tensor *t)
{
    trn_out o = trn_op_const(trn_named(b, name), t, trn_tensor_dtype(t));
    trn_tensor_unref(t);
    return o;
}

static void dense(trn_builder *b)
{
    trn_shape sx = trn_shape_of(2, (int64_t)4, (int64_t)6);
    trn_out x = trn_op_placeholder(trn_named(b, "x"), TRN_FLOAT, &(trn_placeholder_opts){.shape = &sx});
    trn_out zero = number(b, "zero", trn_tensor_i32(0)), one = number(b, "one", trn_tensor_i32(1)), two = number(b, "two", trn_tensor_i32(2));
    trn_out half = number(b, "half", trn_tensor_f32(0.5f));
    trn_out add = trn_op_add_v2(trn_named(b, "add"), x, half);
    trn_out mul = trn_op_mul(trn_named(b, "mul"), add, x);
    trn_out mm = trn_op_mat_mul(trn_named(b, "mm"), mul, x, &(trn_mat_mul_opts){.transpose_b = true});
    trn_op_batch_mat_mul_v2(trn_named(b, "bmm"), mm, mm, &(trn_batch_mat_mul_v2_opts){.adj_x = true});
    trn_out relu = trn_op_relu(trn_named(b, "relu"), mm);
    trn_op_leaky_relu(trn_named(b, "leaky"), mm, &(trn_leaky_relu_opts){.alpha = TRN_F(0.5f)});
    trn_op_leaky_relu(trn_named(b, "leaky0"), mm, &(trn_leaky_relu_opts){.alpha = TRN_F(0)});
    trn_op_tanh(trn_named(b, "tanh"), x);
    trn_out sm = trn_op_softmax(trn_named(b, "softmax"), x);
    trn_op_log(trn_named(b, "log"), sm);
    trn_softmax_cross_entropy_with_logits_out xe = trn_op_softmax_cross_entropy_with_logits(trn_named(b, "xent"), x, sm);
    trn_op_mean(trn_named(b, "loss"), xe.loss, zero, NULL);
    trn_op_sum(trn_named(b, "sum"), xe.backprop, one, &(trn_sum_opts){.keep_dims = true});
    trn_op_arg_max(trn_named(b, "best"), x, one, &(trn_arg_max_opts){.output_type = TRN_INT32});
    trn_op_arg_min(trn_named(b, "worst"), x, one, NULL);
    trn_op_top_k_v2(trn_named(b, "top"), x, two, &(trn_top_k_v2_opts){.sorted = TRN_B(true)});
    trn_outs parts = trn_op_split(trn_named(b, "split"), one, x, 3);
    trn_op_concat_v2(trn_named(b, "concat"), parts.at, parts.n, zero);
    trn_op_pack(trn_named(b, "pack"), parts.at, parts.n, &(trn_pack_opts){.axis = 1});
    trn_op_unpack(trn_named(b, "unpack"), relu, 4, &(trn_unpack_opts){.axis = 1});
    trn_op_add_n(trn_named(b, "addn"), parts.at, parts.n);
    trn_out perm = ints(b, "perm", 2, (int32_t[]){1, 0});
    trn_op_transpose(trn_named(b, "transpose"), x, perm);
    trn_out all_v = ints(b, "all", 1, (int32_t[]){-1});
    trn_out flat = trn_op_reshape(trn_named(b, "flat"), x, all_v);
    trn_op_expand_dims(trn_named(b, "expand"), flat, zero);
    trn_out expand2 = trn_op_expand_dims(trn_named(b, "expand2"), flat, zero);
    trn_op_squeeze(trn_named(b, "squeeze"), expand2, &(trn_squeeze_opts){.squeeze_dims = TRN_INTS(0)});
    trn_out begin = ints(b, "begin", 1, (int32_t[]){1});
    trn_out end_v = ints(b, "end", 1, (int32_t[]){3});
    trn_out step = ints(b, "step", 1, (int32_t[]){1});
    trn_op_strided_slice(trn_named(b, "slice"), x, begin, end_v, step, &(trn_strided_slice_opts){.end_mask = 1});
    trn_out rows = ints(b, "rows", 3, (int32_t[]){3, 0, 3});
    trn_op_gather_v2(trn_named(b, "gather"), x, rows, zero, NULL);
    trn_out hot = ints(b, "hot", 2, (int32_t[]){1, 4});
    trn_out depth = number(b, "depth", trn_tensor_i32(5));
    trn_out on_v = number(b, "on", trn_tensor_f32(1));
    trn_out off_v = number(b, "off", trn_tensor_f32(0));
    trn_op_one_hot(trn_named(b, "onehot"), hot, depth, on_v,
                   off_v, &(trn_one_hot_opts){.axis = TRN_I(0)});
    trn_op_cast(trn_named(b, "cast"), x, TRN_INT64, &(trn_cast_opts){.Truncate = true});
    trn_op_bitcast(trn_named(b, "bits"), x, TRN_INT32);
    trn_op_shape(trn_named(b, "shape"), x, &(trn_shape_opts){.out_type = TRN_INT64});
    trn_op_shape_n(trn_named(b, "shapes"), TRN_OUTS(x, mm), NULL);
    trn_op_identity_n(trn_named(b, "idn"), TRN_OUTS(x, zero));
    trn_op_cumsum(trn_named(b, "cumsum"), x, one, &(trn_cumsum_opts){.exclusive = true, .reverse = true});
    trn_op_bucketize(trn_named(b, "bucket"), x, TRN_FLOATS(-0.5f, 0.25f, 1));
    trn_op_dynamic_stitch(trn_named(b, "stitch"), TRN_OUTS(zero, one), TRN_OUTS(half, half));
    trn_out to_v = ints(b, "to", 4, (int32_t[]){0, 1, 1, 0});
    trn_op_dynamic_partition(trn_named(b, "deal"), x, to_v, 2);
    trn_out some = ints(b, "some", 4, (int32_t[]){7, 8, 7, 9});
    trn_op_unique(trn_named(b, "unique"), some, NULL);
    trn_out greater = trn_op_greater(trn_named(b, "greater"), x, half);
    trn_op_where(trn_named(b, "where"), greater);
    trn_out less = trn_op_less(trn_named(b, "less"), x, half);
    trn_op_select_v2(trn_named(b, "select"), less, x, half);
    trn_op_einsum(trn_named(b, "einsum"), TRN_OUTS(x, x), "ij,kj->ik");
    trn_out neg = trn_op_neg(trn_named(b, "neg"), half);
    trn_op_clip_by_value(trn_named(b, "clip"), x, neg, half);
    trn_op_check_numerics(trn_named(b, "check"), x, "x is bad");
    trn_shape se = trn_shape_of(2, (int64_t)-1, (int64_t)6);
    trn_op_ensure_shape(trn_named(b, "ensure"), x, &se);
}

static void images(trn_builder *b)
{
    trn_shape si = trn_shape_of(4, (int64_t)1, (int64_t)5, (int64_t)5, (int64_t)2), sf = trn_shape_of(4, (int64_t)3, (int64_t)3, (int64_t)2, (int64_t)2);
    trn_out img = trn_op_placeholder(trn_named(b, "img"), TRN_FLOAT, &(trn_placeholder_opts){.shape = &si});
    trn_out fil = trn_op_placeholder(trn_named(b, "fil"), TRN_FLOAT, &(trn_placeholder_opts){.shape = &sf});
    trn_out conv = trn_op_conv2d(trn_named(b, "conv"), img, fil, TRN_INTS(1, 1, 1, 1), "SAME", &(trn_conv2d_opts){.dilations = TRN_INTS(1, 2, 2, 1)});
    trn_op_conv2d(trn_named(b, "conv_e"), img, fil, TRN_INTS(1, 2, 2, 1), "EXPLICIT", &(trn_conv2d_opts){.explicit_paddings = TRN_INTS(0, 0, 1, 1, 2, 0, 0, 0)});
    trn_op_depthwise_conv2d_native(trn_named(b, "depth_conv"), img, fil, TRN_INTS(1, 1, 1, 1), "VALID", NULL);
    trn_op_max_pool(trn_named(b, "pool"), conv, TRN_INTS(1, 2, 2, 1), TRN_INTS(1, 2, 2, 1), "VALID", NULL);
    trn_op_avg_pool(trn_named(b, "avg"), conv, TRN_INTS(1, 2, 2, 1), TRN_INTS(1, 1, 1, 1), "SAME", &(trn_avg_pool_opts){.data_format = "NHWC"});
    trn_out scale = number(b, "scale", vec(TRN_FLOAT, 2, (float[]){1, 2})), offset = number(b, "offset", vec(TRN_FLOAT, 2, (float[]){0, 0.5f}));
    trn_out none = number(b, "none", vec(TRN_FLOAT, 0, NULL));
    trn_fused_batch_norm_v3_out bn = trn_op_fused_batch_norm_v3(trn_named(b, "bn"), conv, scale, offset, none, none, &(trn_fused_batch_norm_v3_opts){.epsilon = TRN_F(0.001f)});
    trn_op_bias_add(trn_named(b, "bias"), bn.y, offset, NULL);
    trn_op_lrn(trn_named(b, "lrn"), conv, &(trn_lrn_opts){.depth_radius = TRN_I(1), .bias = TRN_F(2)});
    trn_out size = ints(b, "size", 2, (int32_t[]){4, 4});
    trn_out resize = trn_op_resize_nearest_neighbor(trn_named(b, "resize"), img, size, NULL);
    trn_op_space_to_depth(trn_named(b, "s2d"), resize, 2, NULL);
}

static void strings(trn_builder *b)
{
    trn_out words = number(b, "words", vec(TRN_STRING, 2, (const char *[]){"a,b", "c"}));
    trn_op_string_join(trn_named(b, "join"), TRN_OUTS(words, words), &(trn_string_join_opts){.separator = "-"});
    trn_op_string_to_hash_bucket_strong(trn_named(b, "hash"), words, 100, TRN_INTS(5, 6));
    trn_out digit = ints(b, "digit", 2, (int32_t[]){3, 14});
    trn_op_as_string(trn_named(b, "digits"), digit, &(trn_as_string_opts){.width = TRN_I(4), .fill = "0"});
    trn_op_string_format(trn_named(b, "format"), &words, 1, &(trn_string_format_opts){.template_ = "<%s>", .placeholder = "%s", .summarize = TRN_I(1)});
    trn_out bytes = number(b, "bytes", trn_tensor_str("abcd", 4));
    trn_op_decode_raw(trn_named(b, "raw"), bytes, TRN_UINT8, &(trn_decode_raw_opts){.little_endian = TRN_B(false)});
    trn_op_static_regex_replace(trn_named(b, "regex"), words, "[a-b]", "x", &(trn_static_regex_replace_opts){.replace_global = TRN_B(false)});
}

static void state(trn_builder *b)
{
    trn_shape s = trn_shape_of(1, (int64_t)2), scalar = trn_shape_scalar();
    trn_out var = trn_op_var_handle_op(trn_named(b, "var"), TRN_FLOAT, &s, &(trn_var_handle_op_opts){.shared_name = "var"});
    trn_out var_value = number(b, "var/value", vec(TRN_FLOAT, 2, (float[]){1, 2}));
    trn_out init = trn_op_assign_variable_op(trn_named(b, "var/init"), var, var_value, NULL);
    trn_op_read_variable_op(trn_named(b, "var/read"), var, TRN_FLOAT);
    trn_out rate = number(b, "rate", trn_tensor_f32(0.5f));
    trn_out grad = number(b, "grad", vec(TRN_FLOAT, 2, (float[]){2, 4}));
    trn_op_resource_apply_gradient_descent(trn_named(b, "train"), var, rate, grad,
                                           &(trn_resource_apply_gradient_descent_opts){.use_locking = true});
    trn_out ref = trn_op_variable_v2(trn_named(b, "ref"), &scalar, TRN_INT64, NULL);
    trn_out ref_value = number(b, "ref/value", trn_tensor_i64(7));
    trn_op_assign(trn_named(b, "ref/init"), ref, ref_value, &(trn_assign_opts){.use_locking = TRN_B(false)});
    trn_op_count_up_to(trn_named(b, "count"), ref, 10);
    trn_out q = trn_op_fifo_queue_v2(trn_named(b, "queue"), TRN_TYPES(TRN_FLOAT, TRN_STRING), &(trn_fifo_queue_v2_opts){.shapes = TRN_SHAPES(s, scalar), .capacity = TRN_I(8)});
    trn_out put_a = number(b, "put/a", vec(TRN_FLOAT, 2, (float[]){3, 4}));
    trn_out put_b = number(b, "put/b", trn_tensor_str("s", 1));
    trn_op_queue_enqueue_v2(trn_named(b, "put"), q, TRN_OUTS(put_a, put_b), NULL);
    trn_outs got = trn_op_queue_dequeue_v2(trn_named(b, "take"), q, TRN_TYPES(TRN_FLOAT, TRN_STRING), NULL);
    trn_op_print(trn_named(b, "print"), got.at[0], &got.at[1], 1, &(trn_print_opts){.message = "taken", .first_n = TRN_I(1)});
    trn_op_no_op(trn_named(b, "done"));
    trn_control_add(b, trn_find(b, "done"), init);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: ops_graph FILE\n");
        return 2;
    }
    trn_builder *b = trn_builder_new();
    dense(b);
    images(b);
    strings(b);
    state(b);
    void *def = NULL;
    size_t n = 0;
    trn_err err = trn_builder_check(b);
    if (!err)
        err = trn_builder_export(&def, &n, b);
    trn_builder_free(b);
    if (err) {
        fprintf(stderr, "ops_graph: %s\n", trn_err_msg(err));
        trn_err_free(err);
        return 1;
    }
    FILE *f = fopen(argv[1], "wb");
    bool ok = f && fwrite(def, 1, n, f) == n;
    free(def);
    return (f && fclose(f)) || !ok;
}
