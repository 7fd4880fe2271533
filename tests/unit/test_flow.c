/* Decisions, loops and functions that are built in C: what they give, what they take from outside, and what is wrong with them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>

#include <trainera/trainera.h>

#include "base/base.h"
#include "check.h"

static trn_server *server;

static void check(trn_err err)
{
    if (err)
        fail_msg("%s", trn_err_msg(err));
}

static trn_out op2(trn_builder *b, const char *op, trn_out x, trn_out y) { return trn_node_add(b, op, TRN_OUTS(x, y), NULL, 0); }

static double value(trn_session *s, trn_builder *b, trn_out o, int64_t at)
{
    check(trn_session_extend_builder(s, b));
    const char *name = trn_out_name(b, o);
    trn_tensor *t = NULL;
    check(trn_session_run(s, &(trn_run){.n_fetches = 1, .fetches = &name, .out = &t}));
    assert_true(at < trn_tensor_count(t));
    double v = trn_tensor_dtype(t) == TRN_INT32 ? ((const int32_t *)trn_tensor_data(t))[at] : (double)((const float *)trn_tensor_data(t))[at];
    trn_tensor_unref(t);
    return v;
}

static void run_node(trn_session *s, trn_builder *b, trn_out o)
{
    check(trn_session_extend_builder(s, b));
    const char *name = trn_out_name(b, trn_out_node(o));
    check(trn_session_run(s, &(trn_run){.n_targets = 1, .targets = &name}));
}

typedef struct env {
    trn_variable *count;
    trn_out k;
} env;

static void add_k(void *arg, trn_builder *b, trn_out *out, int n)
{
    env *e = arg;
    out[0] = op2(b, "AddV2", e->count->value, e->k);
    trn_collect(b, "mine", out[0]);
}

static void bump(void *arg, trn_builder *b, trn_out *out, int n)
{
    env *e = arg;
    trn_variable_assign_add(b, e->count, trn_const_f32(b, 10)); /* nobody takes its result: it runs all the same */
    out[0] = trn_const_f32(b, -1);
}

static trn_out below(void *arg, trn_builder *b, const trn_out *v) { return op2(b, "Less", v[0], trn_const_f32(b, 100)); }
static void doubled(void *arg, trn_builder *b, trn_out *v) { v[0] = op2(b, "Mul", v[0], ((env *)arg)->k); }
static void grow(void *arg, trn_builder *b, trn_out *v)
{
    v[0] = op2(b, "AddV2", v[0], trn_const_f32(b, 30));
    v[1] = trn_node_add(b, "ConcatV2", TRN_OUTS(v[1], v[1], trn_const_i32(b, 0)), NULL, 0);
}

static void body_of_f(void *arg, trn_builder *b, const trn_out *in, int n_in, trn_out *out, int n_out)
{
    out[0] = op2(b, "Mul", in[0], ((env *)arg)->k);
    out[1] = op2(b, "Sub", in[0], in[1]);
}

static void they_run(void **state)
{
    trn_builder *b = trn_builder_new();
    trn_session *s;
    check(trn_session_open_on(&s, server, NULL));
    env e = {trn_variable_new(b, "count", trn_const_f32(b, 5), 0), trn_placeholder(b, "k", TRN_FLOAT, trn_shape_scalar())};
    e.k = op2(b, "AddV2", trn_const_f32(b, 1), trn_const_f32(b, 1));
    run_node(s, b, trn_variables_init(b, TRN_VARS_GLOBAL));
    trn_outs yes = trn_cond(trn_named(b, "choice"), op2(b, "Less", e.k, trn_const_f32(b, 3)), add_k, bump, &e, 1);
    assert_string_equal(trn_out_name(b, yes.at[0]), "choice:0");
    assert_true(value(s, b, yes.at[0], 0) == 7);
    int n;
    trn_collection(&n, b, "mine");
    assert_int_equal(n, 0); /* what is in a body is not outside */
    trn_outs no = trn_cond(b, op2(b, "Less", e.k, trn_const_f32(b, 1)), add_k, bump, &e, 1);
    assert_true(value(s, b, no.at[0], 0) == -1);
    assert_true(value(s, b, e.count->value, 0) == 15);
    /* Loops: what is taken from outside, shapes that change, a limit. */
    trn_outs w = trn_while(b, below, doubled, &e, TRN_OUTS(trn_const_f32(b, 3)), NULL);
    assert_int_equal(trn_out_shape(b, w.at[0])->rank, 0);
    assert_true(value(s, b, w.at[0], 0) == 192);
    w = trn_while(b, below, doubled, &e, TRN_OUTS(trn_const_f32(b, 3)), &(trn_loop_opts){.max_iterations = 2});
    assert_true(value(s, b, w.at[0], 0) == 12);
    trn_out one = trn_fill(b, TRN_FLOAT, trn_shape_vector(1), 7);
    w = trn_while(b, below, grow, NULL, TRN_OUTS(trn_const_f32(b, 0), one), &(trn_loop_opts){.shapes = (trn_shape[]){trn_shape_scalar(), trn_shape_vector(-1)}});
    assert_int_equal(trn_out_shape(b, w.at[1])->dim[0], -1);
    assert_true(value(s, b, w.at[1], 15) == 7);
    trn_function *f = trn_function_new(b, "f", body_of_f, &e, TRN_OUTS(one, one), 2);
    assert_int_equal(f->n_outside, 1);
    assert_false(f->stateful);
    trn_outs r = trn_call(b, f, TRN_OUTS(trn_const_f32(b, 9), trn_const_f32(b, 4)));
    assert_true(value(s, b, r.at[0], 0) == 18 && value(s, b, r.at[1], 0) == 5);
    /* A loop that a session has does not change any more. */
    trn_grad g;
    trn_gradients(&g, b, r.at, 1, &e.k, 1, NULL);
    trn_err err = trn_builder_check(b);
    assert_int_equal(trn_err_code(err), TRN_FAILED_PRECONDITION);
    trn_err_free(err);
    trn_err_free(trn_session_close(s));
    trn_builder_free(b);
}

/* Written and read again, it does the same. */
static void they_travel(void **state)
{
    trn_builder *b = trn_builder_new(), *c = trn_builder_new();
    env e = {NULL, trn_const_f32(b, 2)};
    trn_out x = trn_const_f32(trn_named(b, "x"), 3);
    trn_outs w = trn_while(trn_named(b, "loop"), below, doubled, &e, &x, 1, NULL);
    trn_grad g;
    trn_gradients(&g, b, w.at, 1, &x, 1, NULL);
    void *bytes;
    size_t n;
    check(trn_builder_export(&bytes, &n, b));
    trn_builder_import(c, bytes, n, NULL);
    free(bytes);
    check(trn_builder_check(c));
    trn_session *s;
    check(trn_session_open_on(&s, server, NULL));
    assert_true(value(s, c, trn_find(c, "loop:0"), 0) == 192);
    assert_true(value(s, c, trn_find(c, trn_out_name(b, g.values)), 0) == 64);
    trn_err_free(trn_session_close(s));
    trn_builder_free(b);
    trn_builder_free(c);
}

static trn_out no_bool(void *arg, trn_builder *b, const trn_out *v) { return v[0]; }
static void other_type(void *arg, trn_builder *b, trn_out *v) { v[0] = trn_const_i32(b, 1); }
static void other_shape(void *arg, trn_builder *b, trn_out *v) { v[0] = trn_fill(b, TRN_FLOAT, trn_shape_vector(2), 0); }
static void makes_variable(void *arg, trn_builder *b, trn_out *v) { trn_variable_new(b, "inside", v[0], 0); }
static void an_int(void *arg, trn_builder *b, trn_out *out, int n) { out[0] = trn_const_i32(b, 1); }
static void a_float(void *arg, trn_builder *b, trn_out *out, int n) { out[0] = trn_const_f32(b, 1); }
static void gives_nothing(void *arg, trn_builder *b, trn_out *out, int n) {}

static void what_is_wrong_is_said(void **state)
{
    static const struct {
        trn_loop_cond_fn cond;
        trn_loop_body_fn body;
        const char *word;
    } loops[] = {{no_bool, doubled, "not a bool"}, {below, other_type, "is float before the body, int32 behind"}, {below, other_shape, "opts->shapes"}, {below, makes_variable, "make it before"}};
    for (size_t i = 0; i < TRN_COUNTOF(loops); i++) {
        trn_builder *b = trn_builder_new();
        env e = {NULL, trn_const_f32(b, 2)};
        trn_out r = trn_while(b, loops[i].cond, loops[i].body, &e, TRN_OUTS(trn_const_f32(b, 0)), NULL).at[0];
        assert_false(trn_out_is(r));
        fails_build(b, loops[i].word);
    }
    trn_builder *b = trn_builder_new();
    trn_cond(b, trn_const_bool(b, true), an_int, a_float, NULL, 1);
    fails_build(b, "int32 if true, float if false");
    b = trn_builder_new();
    trn_cond(b, trn_const_bool(b, true), a_float, gives_nothing, NULL, 1);
    fails_build(b, "");
    b = trn_builder_new();
    env e = {NULL, trn_const_f32(b, 2)};
    trn_function *f = trn_function_new(b, "f", body_of_f, &e, TRN_OUTS(e.k, e.k), 2);
    trn_call(b, f, &e.k, 1);
    fails_build(b, "takes 2 arguments, not 1");
}

int main(void)
{
    check(trn_server_create_local(&server));
    const struct CMUnitTest tests[] = {cmocka_unit_test(they_run), cmocka_unit_test(they_travel), cmocka_unit_test(what_is_wrong_is_said)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    trn_server_close(server, 0);
    return rc;
}
