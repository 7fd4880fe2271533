/* Signature strings, node resolution, cancellation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "op/cancel.h"
#include "op/families.h"
#include "op/registry.h"

static trn_err nop(trn_kctx *k) { (void)k; return TRN_OK; }

static const trn_op rows[] = {
    {"TestMany", "a:T, b:N*T, c:Ts, r:&T -> x:T, y:N*i32, z:Ts, q:&T; T:f32|f64=f32, N:int>=1, Ts:list(type)>=0=[], "
                 "mode:{SAME,VALID}=SAME, shape:shape=?, dims:list(int)=[1,-2], eps:float=0.5, name:string=\"a,b\"", trn_sh_unknown, nop, 0},
    {"TestSets", "a:T -> b:U; T:int, U:float|bool, n:int=3, f:float=2, use:bool=true", trn_sh_unknown, nop, 0},
    {0}};

static trn_attr attr_i(const char *name, int64_t i) { return (trn_attr){.name = name, .kind = TRN_ATTR_INT, .v.i = i}; }
static trn_attr attr_t(const char *name, trn_dtype t) { return (trn_attr){.name = name, .kind = TRN_ATTR_TYPE, .v.type = t}; }

static void expect_code(trn_err e, trn_code c)
{
    assert_int_equal(trn_err_code(e), c);
    trn_err_free(e);
}

static void test_resolve(void **s)
{
    trn_arena *a = trn_arena_new();
    trn_attr_val ts[2] = {{.type = TRN_STRING}, {.type = TRN_BOOL}};
    trn_attr attrs[] = {attr_i("N", 2), {.name = "Ts", .kind = TRN_ATTR_TYPE, .is_list = true, .n = 2, .list = ts}};
    trn_node n = {.name = "n", .op = "TestMany", .device = "", .attrs = attrs, .n_attrs = 2};
    assert_null(trn_node_resolve(&n, a));
    assert_int_equal(n.n_in, 1 + 2 + 2 + 1);
    assert_int_equal(n.n_out, 1 + 2 + 2 + 1);
    assert_int_equal(n.in_types[0], TRN_FLOAT);
    assert_int_equal(n.in_types[3], TRN_STRING);
    assert_int_equal(n.in_types[5], TRN_FLOAT + TRN_REF);
    assert_int_equal(n.out_types[2], TRN_INT32);
    assert_string_equal(trn_attr_str(&n, "mode"), "SAME");
    assert_string_equal(trn_attr_str(&n, "name"), "a,b");
    assert_int_equal(trn_attr_shape(&n, "shape")->rank, -1);
    assert_true(trn_attr_float(&n, "eps") == 0.5f);
    const trn_attr *dims = trn_node_attr(&n, "dims");
    assert_int_equal(dims->n, 2);
    assert_int_equal(dims->list[1].i, -2);
    int first, count;
    assert_true(trn_node_out_arg(&n, "z", 1, &first, &count));
    assert_int_equal(first, 3);
    assert_int_equal(count, 2);
    assert_false(trn_node_out_arg(&n, "nope", 4, &first, &count));
    trn_arena_free(a);
}

static void test_resolve_errors(void **s)
{
    trn_arena *a = trn_arena_new();
    trn_node n = {.name = "n", .op = "NoSuchOp", .device = ""};
    expect_code(trn_node_resolve(&n, a), TRN_UNIMPLEMENTED);
    n.op = "TestMany";
    expect_code(trn_node_resolve(&n, a), TRN_INVALID_ARGUMENT); /* N missing */
    trn_attr zero[] = {attr_i("N", 0)};
    n.attrs = zero, n.n_attrs = 1;
    expect_code(trn_node_resolve(&n, a), TRN_INVALID_ARGUMENT); /* N < 1 */
    trn_attr type[] = {attr_i("N", 1), attr_t("T", TRN_INT32)};
    n.attrs = type, n.n_attrs = 2;
    expect_code(trn_node_resolve(&n, a), TRN_UNIMPLEMENTED);
    trn_attr huge[] = {attr_i("N", INT64_MAX)};
    n.attrs = huge, n.n_attrs = 1;
    expect_code(trn_node_resolve(&n, a), TRN_INVALID_ARGUMENT);
    trn_attr kind[] = {attr_t("N", TRN_FLOAT)};
    n.attrs = kind, n.n_attrs = 1;
    expect_code(trn_node_resolve(&n, a), TRN_INVALID_ARGUMENT);
    trn_attr mode[] = {attr_i("N", 1), {.name = "mode", .kind = TRN_ATTR_STRING, .v.s = {"FULL", 4}}};
    n.attrs = mode, n.n_attrs = 2;
    expect_code(trn_node_resolve(&n, a), TRN_INVALID_ARGUMENT);
    trn_arena_free(a);
}

static void test_sets(void **s)
{
    const trn_opdef *d = trn_op_find("TestSets");
    assert_non_null(d);
    assert_int_equal(d->attrs[0].kind, TRN_ATTR_TYPE); /* types an argument */
    assert_int_equal(d->attrs[1].kind, TRN_ATTR_TYPE);
    assert_int_equal(d->attrs[2].kind, TRN_ATTR_INT);
    assert_int_equal(d->attrs[3].kind, TRN_ATTR_FLOAT);
    assert_true(d->attrs[0].types >> TRN_UINT8 & 1);
    assert_false(d->attrs[0].types >> TRN_FLOAT & 1);
}

static void test_bad_signatures(void **s)
{
    static const char *const sigs[] = {"a:T", "a:T ->", "a:T -> b:T; T:f33", "a:N*T -> ; T:any", "-> x:f32; n:int=", "a -> b:f32", "-> ; s:list(int)=[1", "-> x:f32 junk"};
    for (size_t i = 0; i < TRN_COUNTOF(sigs); i++) {
        trn_arena *a = trn_arena_new();
        trn_op row = {"Bad", sigs[i], NULL, nop, 0, NULL, NULL};
        trn_opdef *d;
        expect_code(trn_opdef_parse(&d, a, &row), TRN_INTERNAL);
        trn_arena_free(a);
    }
}

static void count(void *arg) { ++*(int *)arg; }

static void test_cancel(void **s)
{
    trn_cancel *c = trn_cancel_new();
    trn_cancel_hook h1, h2;
    int n = 0;
    assert_true(trn_cancel_add(c, &h1, count, &n));
    assert_true(trn_cancel_add(c, &h2, count, &n));
    assert_true(trn_cancel_remove(c, &h1));
    assert_false(trn_cancelled(c));
    trn_cancel_fire(c, trn_errorf(TRN_ABORTED, "first"));
    trn_cancel_fire(c, trn_errorf(TRN_INTERNAL, "second"));
    assert_int_equal(n, 1);
    assert_false(trn_cancel_remove(c, &h2));
    assert_false(trn_cancel_add(c, &h1, count, &n));
    expect_code(trn_cancel_why(c), TRN_ABORTED);
    trn_cancel_unref(c);
}

static int set_up(void **s)
{
    trn_op_register_test(rows);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_resolve), cmocka_unit_test(test_resolve_errors), cmocka_unit_test(test_sets),
                                       cmocka_unit_test(test_bad_signatures), cmocka_unit_test(test_cancel)};
    return cmocka_run_group_tests(tests, set_up, NULL);
}
