/* Models built in C: names, scopes, devices, deduced attrs, shapes, the first error, variables, import and export. */
#include <trainera/trainera.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants the four above first */
#include <cmocka.h>

static trn_out add2(trn_builder *b, trn_out x, trn_out y) { return trn_node_add(b, "AddV2", (trn_out[]){x, y}, 2, NULL, 0); }
static trn_out one(trn_builder *b, const char *op, trn_out x) { return trn_node_add(b, op, &x, 1, NULL, 0); }

static void check(trn_builder *b)
{
    trn_err err = trn_builder_check(b);
    if (err)
        fail_msg("%s", trn_err_msg(err));
}

static void expect(trn_builder *b, trn_code code, const char *part)
{
    trn_err err = trn_builder_check(b);
    assert_non_null(err);
    if (!strstr(trn_err_msg(err), part))
        fail_msg("\"%s\" does not say \"%s\"", trn_err_msg(err), part);
    assert_int_equal(trn_err_code(err), code);
    trn_err_free(err);
}

static void test_names(void **state)
{
    trn_builder *b = trn_builder_new();
    trn_out x = trn_const_f32(b, 1), y = trn_const_f32(b, 2), z = trn_const_f32(trn_named(b, "const_1"), 3);
    assert_string_equal(trn_out_name(b, x), "Const:0");
    assert_string_equal(trn_out_name(b, y), "Const_1:0");
    assert_string_equal(trn_out_name(b, z), "const_1_1:0"); /* small and capital letters are one name, as in TensorFlow */
    TRN_SCOPE(trn_name_scope(b, "tower"), b)
    {
        assert_string_equal(trn_out_name(b, trn_out_node(add2(b, x, y))), "tower/AddV2");
        TRN_SCOPE(trn_name_scope(b, "in"), b) assert_string_equal(trn_scope_name(b), "tower/in");
        TRN_SCOPE(trn_name_scope_again(b, ""), b) assert_string_equal(trn_out_name(b, add2(trn_named(b, "sum"), x, y)), "sum:0");
    }
    TRN_SCOPE(trn_name_scope(b, "tower"), b) assert_string_equal(trn_out_name(b, add2(b, x, y)), "tower_1/AddV2:0");
    /* A name is for the call that gets it, in whatever order the compiler evaluates the arguments beside it. */
    trn_builder *named = trn_named(b, "outer");
    trn_out inner = one(b, "Neg", x), outer = one(named, "Exp", inner);
    assert_string_equal(trn_out_name(b, inner), "Neg:0");
    assert_string_equal(trn_out_name(b, outer), "outer:0");
    assert_string_equal(trn_out_name(b, one(named, "Exp", inner)), "Exp:0"); /* once */
    check(b);
    trn_find(b, "nobody:0");
    expect(b, TRN_NOT_FOUND, "nobody");
    trn_builder_free(b);
}

static const char *to_ps(void *arg, trn_builder *b, const trn_node *n, const char *asked)
{
    return strcmp(n->op, "VarHandleOp") == 0 ? "/job:ps/task:3" : asked;
}

static void test_devices(void **state)
{
    trn_builder *b = trn_builder_new();
    trn_device_scope(b, "/job:worker");
    trn_out x = trn_const_f32(b, 1);
    trn_device_scope(b, "/task:2");
    trn_out y = trn_const_f32(b, 1);
    trn_device_scope(b, "/job:ps/task:1/device:CPU:0");
    trn_out z = trn_const_f32(b, 1);
    trn_device_scope(b, "");
    trn_out none = trn_const_f32(b, 1);
    trn_colocate_scope(b, y);
    trn_out with = one(b, "Neg", z);
    for (int i = 0; i < 5; i++)
        trn_end(b);
    assert_string_equal(trn_out_op(b, x)->device, "/job:worker");
    assert_string_equal(trn_out_op(b, y)->device, "/job:worker/task:2");
    assert_string_equal(trn_out_op(b, z)->device, "/job:ps/task:1/device:CPU:0");
    assert_string_equal(trn_out_op(b, none)->device, "");
    assert_string_equal(trn_out_op(b, with)->device, "/job:worker/task:2");
    const trn_attr *class_ = trn_node_attr(trn_out_op(b, with), "_class");
    assert_non_null(class_);
    assert_string_equal(class_->list[0].s.p, "loc:@Const_1");
    trn_device_fn_scope(b, to_ps, NULL);
    trn_device_scope(b, "/job:worker/task:0");
    trn_variable *v = trn_variable_new(b, "v", trn_zeros(b, TRN_FLOAT, trn_shape_of(1, (int64_t)4)), 0);
    trn_out use = one(b, "Neg", v->value);
    trn_end(b);
    trn_end(b);
    check(b);
    trn_out parts[] = {v->handle, v->value, v->init, v->is_initialized, v->initial};
    for (int i = 0; i < 5; i++)
        assert_string_equal(trn_out_op(b, parts[i])->device, "/job:ps/task:3");
    assert_string_equal(trn_out_op(b, use)->device, "/job:worker/task:0");
    trn_device_scope(b, "/nonsense:1:2:3");
    trn_end(b);
    expect(b, TRN_INVALID_ARGUMENT, "nonsense");
    trn_builder_free(b);
}

static void test_deduced(void **state)
{
    trn_builder *b = trn_builder_new();
    trn_out x = trn_placeholder(b, "x", TRN_FLOAT, trn_shape_of(2, (int64_t)-1, (int64_t)784));
    trn_out w = trn_zeros(b, TRN_FLOAT, trn_shape_of(2, (int64_t)784, (int64_t)10));
    trn_out y = trn_node_add(b, "MatMul", (trn_out[]){x, w}, 2, NULL, 0);
    assert_int_equal(trn_out_dtype(b, y), TRN_FLOAT);
    char text[TRN_SHAPE_TEXT];
    assert_string_equal(trn_shape_text(text, trn_out_shape(b, y)), "[?,10]");
    trn_out list[] = {y, y, y};
    trn_out sum = trn_node_add(b, "AddN", list, 3, NULL, 0);
    assert_int_equal(trn_attr_int(trn_out_op(b, sum), "N"), 3);
    trn_out id = trn_node_add(b, "IdentityN", (trn_out[]){y, trn_const_i32(b, 1)}, 2, NULL, 0);
    assert_int_equal(trn_out_dtype(b, trn_out_nth(id, 1)), TRN_INT32);
    trn_out cat = trn_node_add(b, "ConcatV2", (trn_out[]){y, y, trn_const_i32(b, 1)}, 3, NULL, 0);
    assert_string_equal(trn_shape_text(text, trn_out_shape(b, cat)), "[?,20]");
    check(b);
    trn_node_add(trn_named(b, "bad"), "MatMul", (trn_out[]){w, w}, 2, NULL, 0);
    expect(b, TRN_INVALID_ARGUMENT, "bad");
    trn_builder_free(b);
}

/* Shapes that are computed from shapes. */
static void test_values(void **state)
{
    trn_builder *b = trn_builder_new();
    char text[TRN_SHAPE_TEXT];
    trn_out x = trn_placeholder(b, "x", TRN_FLOAT, trn_shape_of(3, (int64_t)-1, (int64_t)7, (int64_t)4));
    trn_out s = one(b, "Shape", x);
    trn_out at[] = {trn_const_i32s(b, (int32_t[]){0}, 1), trn_const_i32s(b, (int32_t[]){1}, 1), trn_const_i32s(b, (int32_t[]){3}, 1)};
    trn_attr mask = trn_at_int("shrink_axis_mask", 1);
    trn_out rows = trn_node_add(b, "StridedSlice", (trn_out[]){s, at[0], at[1], at[1]}, 4, &mask, 1);
    trn_out rest = trn_node_add(b, "StridedSlice", (trn_out[]){s, at[1], at[2], at[1]}, 4, NULL, 0);
    trn_out n = trn_node_add(b, "Prod", (trn_out[]){rest, trn_const_i32(b, 0)}, 2, NULL, 0);
    trn_out flat = trn_node_add(b, "Reshape", (trn_out[]){x, trn_node_add(b, "Pack", (trn_out[]){rows, n}, 2, NULL, 0)}, 2, NULL, 0);
    assert_string_equal(trn_shape_text(text, trn_out_shape(b, flat)), "[?,28]");
    trn_out twice = trn_node_add(b, "Mul", (trn_out[]){n, trn_const_i32(b, 2)}, 2, NULL, 0);
    trn_out z = trn_node_add(b, "Fill", (trn_out[]){trn_node_add(b, "Pack", (trn_out[]){rows, twice, rows}, 3, NULL, 0), trn_const_f32(b, 0)}, 2, NULL, 0);
    assert_string_equal(trn_shape_text(text, trn_out_shape(b, z)), "[?,56,?]");
    trn_out full = trn_node_add(b, "Reshape", (trn_out[]){trn_zeros(b, TRN_FLOAT, trn_shape_of(2, (int64_t)8, (int64_t)7)), trn_node_add(b, "Pack", (trn_out[]){rows, n}, 2, NULL, 0)}, 2, NULL, 0);
    assert_string_equal(trn_shape_text(text, trn_out_shape(b, full)), "[2,28]");
    /* Packed vectors are a matrix, also when each has one element. */
    trn_attr axis = trn_at_int("axis", 1);
    trn_out pads = trn_node_add(b, "Pack", (trn_out[]){at[1], at[2]}, 2, &axis, 1), wide = trn_node_add(b, "Pad", (trn_out[]){trn_zeros(b, TRN_FLOAT, trn_shape_vector(5)), pads}, 2, NULL, 0);
    check(b);
    trn_out_shape(b, wide);
    trn_builder_free(b);
}

/* The first error stays, whatever follows. */
static void test_latch(void **state)
{
    struct {
        const char *op, *says;
        trn_code code;
        int n_in;
    } cases[] = {{"Nonsense", "Nonsense", TRN_UNIMPLEMENTED, 1}, {"AddV2", "takes 2 inputs", TRN_INVALID_ARGUMENT, 1}, {"Neg", "takes 1 inputs", TRN_INVALID_ARGUMENT, 2},
                 {"MatMul", "", TRN_UNIMPLEMENTED, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        trn_builder *b = trn_builder_new();
        trn_out s = trn_const_str(b, "x"), in[] = {s, s};
        trn_out o = trn_node_add(trn_named(b, "culprit"), cases[i].op, in, cases[i].n_in, NULL, 0);
        assert_false(trn_out_is(o));
        assert_false(trn_out_is(add2(b, o, o)));
        trn_variable *v = trn_variable_new(b, "v", o, 0);
        assert_false(trn_out_is(v->value));
        expect(b, cases[i].code, cases[i].says);
        expect(b, cases[i].code, "culprit");
        trn_builder_free(b);
    }
    trn_builder *b = trn_builder_new();
    trn_out c = trn_const_f32(b, 1);
    add2(trn_named(b, "sum"), c, TRN_NONE);
    expect(b, TRN_INVALID_ARGUMENT, "input 1 (y) is nothing");
    trn_builder_free(b);
    b = trn_builder_new();
    trn_name_scope(b, "open");
    expect(b, TRN_FAILED_PRECONDITION, "open");
    trn_end(b);
    trn_end(b);
    expect(b, TRN_FAILED_PRECONDITION, "trn_end");
    trn_builder_free(b);
}

static float run1(trn_session *s, const char *fetch)
{
    trn_tensor *t = NULL;
    trn_err err = trn_session_run(s, &(trn_run){.fetches = &fetch, .n_fetches = 1, .out = &t});
    if (err)
        fail_msg("%s: %s", fetch, trn_err_msg(err));
    float v = *(const float *)trn_tensor_data(t);
    trn_tensor_unref(t);
    return v;
}

static void run_op(trn_session *s, const char *target)
{
    trn_err err = trn_session_run(s, &(trn_run){.targets = &target, .n_targets = 1});
    if (err)
        fail_msg("%s: %s", target, trn_err_msg(err));
}

static void variables(bool ref)
{
    trn_builder *b = trn_builder_new();
    trn_server *server;
    trn_session *s;
    assert_null(trn_server_create_local(&server));
    assert_null(trn_session_open_on(&s, server, NULL));
    trn_use_ref_variables(b, ref);
    trn_variable *v = trn_variable_new(b, "v", trn_const_f32(b, 2), 0), *w = trn_variable_new(b, "w", trn_fill(b, TRN_FLOAT, trn_shape_of(1, (int64_t)3), 5), TRN_NOT_TRAINABLE);
    trn_variable *l = trn_variable_new(b, "l", trn_const_f32(b, 7), TRN_LOCAL);
    trn_variable *step = trn_global_step(b);
    assert_ptr_equal(step, trn_global_step(b));
    int n;
    assert_ptr_equal(trn_variables(&n, b, TRN_VARS_TRAINABLE)[0], v);
    assert_int_equal(n, 1);
    trn_variables(&n, b, TRN_VARS_GLOBAL);
    assert_int_equal(n, 3);
    assert_ptr_equal(trn_variables(&n, b, TRN_VARS_LOCAL)[0], l);
    assert_int_equal(n, 1);
    assert_ptr_equal(trn_variable_of(b, w->handle), w);
    assert_ptr_equal(trn_variable_find(b, "w"), w);
    trn_out add = trn_variable_assign_add(b, v, trn_const_f32(b, 3));
    trn_control_scope(b, &add, 1);
    trn_out after = trn_variable_read(trn_named(b, "after"), v);
    trn_end(b);
    trn_variables_init(b, TRN_VARS_GLOBAL);
    trn_variables_init(b, TRN_VARS_GLOBAL);
    trn_variables_init(b, TRN_VARS_LOCAL);
    check(b);
    assert_int_equal(trn_out_shape(b, w->value)->dim[0], 3);
    assert_null(trn_session_extend_builder(s, b));
    run_op(s, "init");
    run_op(s, "init_local");
    assert_true(run1(s, trn_out_name(b, after)) == 5);
    assert_true(run1(s, trn_out_name(b, w->value)) == 5);
    assert_true(run1(s, trn_out_name(b, l->value)) == 7);
    /* What came since goes there too; what is there stays as it is. */
    trn_out one_f = trn_const_f32(b, 1);
    trn_variable_assign(trn_named(b, "reset"), v, one_f);
    assert_null(trn_session_extend_builder(s, b));
    run_op(s, "reset");
    assert_true(run1(s, trn_out_name(b, v->value)) == 1);
    trn_control_add(b, after, add);
    expect(b, TRN_FAILED_PRECONDITION, "cannot change");
    trn_err_free(trn_session_close(s));
    trn_server_close(server, 0);
    trn_builder_free(b);
}

static void test_variables(void **state) { variables(false); }
static void test_ref_variables(void **state) { variables(true); }

static void test_bad_variables(void **state)
{
    trn_builder *b = trn_builder_new();
    trn_variable_new(b, "v", trn_placeholder(b, "x", TRN_FLOAT, trn_shape_of(1, (int64_t)-1)), 0);
    expect(b, TRN_INVALID_ARGUMENT, "variable 'v'");
    trn_builder_free(b);
    b = trn_builder_new();
    trn_variable *v = trn_variable_new(b, "v", trn_zeros(b, TRN_FLOAT, trn_shape_of(1, (int64_t)3)), 0);
    trn_variable_assign(b, v, trn_zeros(b, TRN_FLOAT, trn_shape_of(1, (int64_t)4)));
    expect(b, TRN_INVALID_ARGUMENT, "[3]");
    trn_builder_free(b);
}

static int n_ctl(trn_builder *b, trn_out o, const char *after)
{
    char *text, want[64];
    assert_null(trn_builder_export_text(&text, b));
    snprintf(want, sizeof want, "input: \"^%s\"", after);
    char name[64];
    snprintf(name, sizeof name, "name: \"%s\"", trn_out_op(b, o)->name);
    char *node = strstr(text, name), *end = strstr(node, "\n}\n"), *at = strstr(node, want);
    int n = at && at < end;
    free(text);
    return n;
}

static void test_control(void **state)
{
    trn_builder *b = trn_builder_new();
    trn_out x = trn_const_f32(b, 1), first = one(trn_named(b, "first"), "Neg", x);
    trn_control_scope(b, &first, 1);
    trn_out y = one(b, "Exp", x), z = one(b, "Exp", y);
    trn_control_scope(b, NULL, 0);
    trn_out free_ = one(b, "Abs", x);
    trn_end(b);
    trn_end(b);
    check(b);
    assert_int_equal(n_ctl(b, y, "first"), 1);
    assert_int_equal(n_ctl(b, z, "first"), 0); /* y has waited already */
    assert_int_equal(n_ctl(b, free_, "first"), 0);
    trn_device_scope(b, "/job:ps/task:0");
    trn_out p = one(b, "Sin", x);
    trn_end(b);
    trn_out all = trn_group(trn_named(b, "all"), (trn_out[]){y, p, z}, 3);
    assert_string_equal(trn_out_name(b, all), "all");
    assert_int_equal(n_ctl(b, all, "all/NoOp"), 1);
    assert_int_equal(n_ctl(b, all, "all/NoOp_1"), 1);
    check(b);
    trn_builder_free(b);
}

static void test_import(void **state)
{
    trn_builder *b = trn_builder_new();
    trn_variable *v = trn_variable_new(b, "v", trn_fill(b, TRN_FLOAT, trn_shape_of(1, (int64_t)2), 0.1), 0);
    trn_colocate_scope(b, v->handle);
    one(trn_named(b, "y"), "Neg", v->value);
    trn_end(b);
    void *bytes;
    size_t n;
    char *text;
    assert_null(trn_builder_export(&bytes, &n, b));
    assert_null(trn_builder_export_text(&text, b));
    trn_builder *c = trn_builder_new();
    trn_builder_import(c, bytes, n, NULL);
    trn_builder_import(c, bytes, n, "again");
    assert_int_equal(trn_out_shape(c, trn_find(c, "again/y:0"))->dim[0], 2);
    assert_string_equal(trn_node_attr(trn_out_op(c, trn_find(c, "again/y")), "_class")->list[0].s.p, "loc:@again/v");
    assert_string_equal(trn_out_name(c, one(trn_named(c, "y"), "Exp", trn_find(c, "y:0"))), "y_1:0");
    check(c);
    trn_builder_import(c, bytes, n, NULL); /* the names are taken */
    expect(c, TRN_INVALID_ARGUMENT, "importing");
    /* The text reads back as the same graph. */
    trn_server *server;
    trn_session *s;
    assert_null(trn_server_create_local(&server));
    assert_null(trn_session_open_on(&s, server, NULL));
    trn_err err = trn_session_extend_text(s, text);
    if (err)
        fail_msg("%s", trn_err_msg(err));
    run_op(s, "v/Assign");
    assert_true(run1(s, "y:0") == -0.1f);
    trn_err_free(trn_session_close(s));
    trn_server_close(server, 0);
    free(bytes);
    free(text);
    trn_builder_free(b);
    trn_builder_free(c);
}

static int freed;
static void count_free(void *arg) { freed = freed * 10 + *(int *)arg; }

/* What layers and modules of one's own are made with. */
static void test_own_layers(void **state)
{
    trn_builder *b = trn_builder_new();
    int first = 1, second = 2;
    trn_builder_on_free(b, count_free, &first);
    trn_builder_on_free(b, count_free, &second);
    assert_null(trn_builder_get(b, "mine"));
    char text[] = "kept";
    trn_builder_put(b, "mine", (void *)(uintptr_t)trn_builder_strdup(b, text));
    text[0] = 'x';
    assert_string_equal(trn_builder_get(b, "mine"), "kept");
    /* A pending name is taken once. */
    assert_string_equal(trn_take_name(trn_named(b, "given"), "otherwise"), "given");
    assert_string_equal(trn_take_name(b, "otherwise"), "otherwise");
    trn_out x = trn_placeholder(b, "x", TRN_FLOAT, trn_shape_of(1, (int64_t)3)), y = trn_const_f32(b, 2), sum = add2(b, x, y);
    assert_int_equal(trn_out_input(b, sum, 1).node, y.node);
    trn_out after = trn_with_deps(b, x, &sum, 1);
    assert_int_equal(trn_out_input(b, after, 0).node, x.node);
    assert_string_equal(trn_out_op(b, after)->op, "Identity");
    trn_attr attr = trn_at_str("_note", "hello");
    trn_node_set_attr(b, sum, &attr);
    assert_string_equal(trn_attr_str(trn_out_op(b, sum), "_note"), "hello");
    check(b);
    trn_builder_fail(b, trn_errorf(TRN_ABORTED, "enough"));
    trn_builder_fail(b, trn_errorf(TRN_INTERNAL, "more"));
    expect(b, TRN_ABORTED, "enough");
    trn_builder_free(b);
    assert_int_equal(freed, 21); /* last one first */
}

static const trn_attr *attr_of(trn_builder *b, trn_out o, const char *name)
{
    check(b);
    const trn_attr *a = trn_node_attr(trn_out_op(b, o), name);
    assert_non_null(a);
    return a;
}

/* Attrs of every kind on nodes that want them. What lists are made of may go away. */
static void test_attrs(void **state)
{
    trn_builder *b = trn_builder_new();
    trn_tensor *t = trn_tensor_f32(7);
    trn_out c = trn_node_add(b, "Const", NULL, 0, (trn_attr[]){trn_at_type("dtype", TRN_FLOAT), trn_at_tensor("value", t)}, 2);
    trn_tensor_unref(t);
    assert_float_equal(*(const float *)trn_tensor_data(trn_out_const(b, c)), 7, 0);
    trn_attr alpha = trn_at_float("alpha", 0.25f);
    trn_out leaky = trn_node_add(b, "LeakyRelu", &c, 1, &alpha, 1);
    assert_float_equal(attr_of(b, leaky, "alpha")->v.f, 0.25f, 0);
    int64_t ints[] = {1, 2, 2, 1};
    float floats[] = {0.5f, 1.5f};
    trn_dtype types[] = {TRN_FLOAT, TRN_INT64};
    trn_shape shapes[] = {trn_shape_scalar(), trn_shape_vector(3)};
    const char *strs[] = {"a", "bc"};
    trn_out image = trn_zeros(b, TRN_FLOAT, trn_shape_of(4, (int64_t)1, (int64_t)4, (int64_t)4, (int64_t)1));
    trn_attr pool[] = {trn_at_ints(b, "ksize", (trn_ints){ints, 4}), trn_at_ints(b, "strides", (trn_ints){ints, 4}), trn_at_str("padding", "VALID")};
    trn_attr queue[] = {trn_at_types(b, "component_types", (trn_types){types, 2}), trn_at_shapes(b, "shapes", (trn_shapes){shapes, 2})};
    trn_attr edges = trn_at_floats(b, "boundaries", (trn_floats){floats, 2});
    trn_attr words = trn_at_strs(b, "_words", (trn_strs){strs, 2});
    memset(ints, 0, sizeof ints);
    memset(floats, 0, sizeof floats);
    memset(types, 0, sizeof types);
    memset(shapes, 0, sizeof shapes);
    strs[1] = "gone";
    char text[TRN_SHAPE_TEXT];
    assert_string_equal(trn_shape_text(text, trn_out_shape(b, trn_node_add(b, "MaxPool", &image, 1, pool, 3))), "[1,2,2,1]");
    trn_out q = trn_node_add(b, "FIFOQueueV2", NULL, 0, queue, 2), bucket = trn_node_add(b, "Bucketize", &c, 1, &edges, 1);
    assert_int_equal(attr_of(b, q, "component_types")->list[1].type, TRN_INT64);
    assert_int_equal(attr_of(b, q, "shapes")->list[1].shape->dim[0], 3);
    assert_float_equal(attr_of(b, bucket, "boundaries")->list[1].f, 1.5f, 0);
    trn_node_set_attr(b, bucket, &words);
    assert_int_equal(attr_of(b, bucket, "_words")->list[1].s.n, 2);
    /* Functions: one, and several. */
    trn_func_ref ref = {.name = "f"}, refs[] = {{.name = "f"}, {.name = "g"}};
    trn_attr fn = trn_at_func("_fn", &ref), fns = trn_at_funcs(b, "_fns", (trn_funcs){refs, 2});
    trn_node_set_attr(b, bucket, &fn);
    trn_node_set_attr(b, bucket, &fns);
    assert_string_equal(attr_of(b, bucket, "_fn")->v.func->name, "f");
    assert_string_equal(attr_of(b, bucket, "_fns")->list[1].func->name, "g");
    trn_at_ints(b, "ksize", (trn_ints){NULL, -1});
    expect(b, TRN_INVALID_ARGUMENT, "ksize");
    trn_builder_free(b);
}

/* Inputs of what is imported, from the graph that is there. */
static void test_import_with(void **state)
{
    trn_builder *from = trn_builder_new();
    trn_out x = trn_const_f32(trn_named(from, "x"), 1), pair = trn_node_add(trn_named(from, "pair"), "Unpack", (trn_out[]){trn_zeros(from, TRN_FLOAT, trn_shape_of(1, (int64_t)2))}, 1, (trn_attr[]){trn_at_int("num", 2)}, 1);
    trn_out y = add2(trn_named(from, "y"), x, trn_out_nth(pair, 1));
    trn_control_add(from, y, trn_out_node(x));
    void *graph;
    size_t n;
    trn_err err = trn_builder_export(&graph, &n, from);
    assert_null(err);
    trn_builder_free(from);
    trn_builder *b = trn_builder_new();
    trn_out mine = trn_const_f32(trn_named(b, "mine"), 3), other = trn_const_f32(trn_named(b, "other"), 4);
    trn_builder_import_with(b, graph, n, "in", (trn_named_out[]){{"x:0", mine}, {"pair:1", other}, {"^x", trn_out_node(other)}}, 3);
    y = trn_find(b, "in/y:0");
    check(b);
    assert_int_equal(trn_out_input(b, y, 0).node, mine.node);
    assert_int_equal(trn_out_input(b, y, 1).node, other.node);
    trn_find(b, "in/x"); /* it came along, for nobody */
    check(b);
    trn_builder_import_with(b, graph, n, "again", (trn_named_out[]){{"pair:0", mine}}, 1);
    expect(b, TRN_NOT_FOUND, "'pair:0'");
    trn_builder_free(b);
    free(graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_names),     cmocka_unit_test(test_devices),       cmocka_unit_test(test_deduced), cmocka_unit_test(test_values),
                                       cmocka_unit_test(test_latch),     cmocka_unit_test(test_variables),     cmocka_unit_test(test_ref_variables),
                                       cmocka_unit_test(test_bad_variables), cmocka_unit_test(test_control), cmocka_unit_test(test_import),
                                       cmocka_unit_test(test_own_layers), cmocka_unit_test(test_attrs), cmocka_unit_test(test_import_with)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
