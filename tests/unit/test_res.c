/* Containers and variables. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "op/kctx.h"
#include "res/var.h"

typedef struct thing {
    trn_resource base;
    int *closed, *freed;
} thing;

static void thing_free(trn_resource *r)
{
    ++*((thing *)r)->freed;
    free(r);
}
static void thing_close(trn_resource *r) { ++*((thing *)r)->closed; }
static const trn_restype thing_type = {.name = "Thing", .handle = "tensorflow::Thing", .free = thing_free, .close = thing_close};
static const trn_restype other_type = {.name = "Other", .handle = "tensorflow::Other", .free = thing_free};

static int closed, freed;

static trn_err make_thing(trn_resource **out, void *arg)
{
    thing *t = trn_xalloc(sizeof *t);
    trn_resource_init(&t->base, &thing_type);
    t->closed = &closed;
    t->freed = &freed;
    if (arg)
        ++*(int *)arg;
    *out = &t->base;
    return TRN_OK;
}

static void code_is(trn_err e, trn_code c, const char *part)
{
    assert_non_null(e);
    assert_int_equal(trn_err_code(e), c);
    if (!strstr(trn_err_msg(e), part))
        fail_msg("'%s' is not in: %s", part, trn_err_msg(e));
    trn_err_free(e);
}

static void table(void **state)
{
    closed = freed = 0;
    trn_resmgr *m = trn_resmgr_new("");
    thing *a, *b;
    int made = 0;
    code_is(trn_resmgr_get(&a, m, "", "x", &thing_type), TRN_NOT_FOUND, "localhost/x");
    assert_null(trn_resmgr_get_or_make(&a, m, "", "x", &thing_type, make_thing, &made));
    assert_null(trn_resmgr_get_or_make(&b, m, "localhost", "x", &thing_type, make_thing, &made)); /* the default has a name */
    assert_int_equal(made, 1);
    assert_ptr_equal(a, b);
    trn_resource_unref(a);
    trn_resource_unref(b);
    code_is(trn_resmgr_get(&a, m, "", "x", &other_type), TRN_NOT_FOUND, "localhost/x/Other");
    trn_resource *r;
    assert_null(make_thing(&r, NULL));
    code_is(trn_resmgr_put(m, "", "x", r), TRN_ALREADY_EXISTS, "x");
    assert_int_equal(freed, 1);
    assert_null(make_thing(&r, NULL));
    assert_null(trn_resmgr_put(m, "c", "x", r)); /* another container */
    code_is(trn_resmgr_del(m, "c", "x", &other_type), TRN_NOT_FOUND, "c/x/Other");
    assert_null(trn_resmgr_del(m, "c", "x", &thing_type));
    assert_int_equal(freed, 2);
    code_is(trn_resmgr_del(m, "c", "x", &thing_type), TRN_NOT_FOUND, "c/x");
    char *long_name = trn_xalloc(1000);
    memset(long_name, 'n', 999);
    assert_null(trn_resmgr_get_or_make(&a, m, "", long_name, &thing_type, make_thing, NULL));
    trn_resource_unref(a);
    assert_null(trn_resmgr_get(&a, m, "", long_name, &thing_type));
    trn_resource_unref(a);
    free(long_name);
    trn_resmgr_unref(m);
    assert_int_equal(freed, 4);
}

static void count_one(void *arg, const char *container, const char *name, trn_resource *r)
{
    assert_true(strcmp(container, "localhost") == 0 || strcmp(container, "c1") == 0);
    assert_true(name[0] == 'n');
    ++*(int *)arg;
}

static void clearing(void **state)
{
    closed = freed = 0;
    trn_resmgr *m = trn_resmgr_new("");
    thing *held = NULL;
    for (int i = 0; i < 100; i++) {
        char name[16];
        snprintf(name, sizeof name, "n%d", i);
        thing *t;
        assert_null(trn_resmgr_get_or_make(&t, m, i % 2 ? "c1" : "", name, &thing_type, make_thing, NULL));
        if (i == 1)
            held = t;
        else
            trn_resource_unref(t);
    }
    int n = 0;
    trn_resmgr_each(m, count_one, &n);
    assert_int_equal(n, 100);
    trn_resmgr_clear(m, "c1");
    assert_int_equal(closed, 50);
    assert_int_equal(freed, 49); /* one is still held */
    n = 0;
    trn_resmgr_each(m, count_one, &n);
    assert_int_equal(n, 50);
    trn_resmgr_clear(m, "");
    assert_int_equal(closed, 100);
    trn_resource_unref(held);
    assert_int_equal(freed, 100);
    trn_resmgr_unref(m);
}

static void variables(void **state)
{
    trn_shape s = trn_shape_vector(3);
    trn_var *v;
    trn_tensor *t, *w;
    assert_null(trn_var_new(&v, "w/x", TRN_FLOAT, &s));
    code_is(trn_var_read(&t, v), TRN_FAILED_PRECONDITION, "Attempting to use uninitialized value w/x");
    float data[3] = {1, 2, 3};
    trn_var_assign(v, trn_tensor_from(TRN_FLOAT, 1, s.dim, data));
    assert_null(trn_var_read(&t, v));
    trn_lock(&v->mu);
    assert_null(trn_var_writable(&w, v)); /* somebody reads it: a copy */
    assert_ptr_not_equal(w, t);
    TRN_DATA_MUT(w, float)[0] = 7;
    trn_tensor *w2;
    assert_null(trn_var_writable(&w2, v)); /* nobody else now: in place */
    assert_ptr_equal(w, w2);
    trn_unlock(&v->mu);
    assert_true(TRN_DATA(t, float)[0] == 1);
    trn_tensor_unref(t);
    assert_int_equal(trn_var_type.bytes(&v->base), 12);
    trn_sb sb = {0};
    trn_var_type.describe(&v->base, &sb);
    assert_string_equal(sb.p, "float[3]");
    trn_sb_fini(&sb);
    trn_resource_unref(v);
}

/* A context good enough to look resources up. */
typedef struct fake {
    trn_node node;
    trn_step step;
    trn_value in[1];
    trn_kctx k;
} fake;

static void fake_init(fake *f, trn_resmgr *m, trn_tensor *t)
{
    *f = (fake){.node = {.name = "op", .op = "Op", .device = "/job:ps/replica:0/task:0/device:CPU:0"}, .step = {.resmgr = m}};
    f->in[0].t = t;
    f->k = (trn_kctx){.node = &f->node, .in = f->in, .n_in = 1, .step = &f->step};
}

static trn_err make_other(trn_resource **out, void *arg)
{
    TRN_TRY(make_thing(out, arg));
    (*out)->type = &other_type;
    return TRN_OK;
}

/* Things of different types may have one name. */
static void types(void **state)
{
    closed = freed = 0;
    trn_resmgr *m = trn_resmgr_new("");
    thing *a, *b, *c;
    assert_null(trn_resmgr_get_or_make(&a, m, "", "x", &thing_type, make_thing, NULL));
    assert_null(trn_resmgr_get_or_make(&b, m, "", "x", &other_type, make_other, NULL));
    assert_ptr_not_equal(a, b);
    assert_null(trn_resmgr_get(&c, m, "", "x", &other_type));
    assert_ptr_equal(b, c);
    trn_resource_unref(c);
    assert_null(trn_resmgr_get(&c, m, "", "x", NULL)); /* one of them */
    assert_true(c == a || c == b);
    trn_resource_unref(c);
    code_is(trn_resmgr_get(&c, m, "", "xy", NULL), TRN_NOT_FOUND, "localhost/xy");
    trn_resource_unref(a);
    trn_resource_unref(b);
    /* A handle says which. */
    trn_handle *h = trn_handle_new("", "localhost", "x", "tensorflow::Other");
    assert_null(trn_resmgr_del_handle(m, h));
    code_is(trn_resmgr_get(&c, m, "", "x", &other_type), TRN_NOT_FOUND, "Other");
    assert_null(trn_resmgr_get(&c, m, "", "x", &thing_type));
    trn_resource_unref(c);
    code_is(trn_resmgr_del_handle(m, h), TRN_NOT_FOUND, "Other");
    trn_handle_unref(h);
    assert_null(trn_resmgr_del(m, "", "x", NULL));
    assert_int_equal(freed, 2);
    trn_resmgr_unref(m);
}

static void handles(void **state)
{
    trn_resmgr *m = trn_resmgr_new("");
    fake f;
    trn_var *v, *got;
    trn_tensor *h;
    fake_init(&f, m, NULL);
    trn_shape s = trn_shape_scalar();
    assert_null(trn_res_handle(&h, &f.node, "", "v", "tensorflow::Var", TRN_FLOAT, &s));
    const trn_handle *raw = TRN_DATA(h, trn_handle *)[0];
    assert_string_equal(raw->container, "localhost");
    assert_int_equal(raw->n_dtypes, 1);
    f.in[0].t = h;
    code_is(trn_k_resource(&got, &f.k, 0, &trn_var_type), TRN_NOT_FOUND, "localhost/v");
    assert_null(trn_var_new(&v, "v", TRN_FLOAT, &s));
    assert_null(trn_resmgr_put(m, "", "v", trn_resource_ref(v)));
    assert_null(trn_k_resource(&got, &f.k, 0, &trn_var_type));
    assert_ptr_equal(got, v);
    trn_resource_unref(got);
    code_is(trn_k_resource(&got, &f.k, 0, &thing_type), TRN_INVALID_ARGUMENT, "Expected tensorflow::Thing got tensorflow::Var");
    f.node.device = "/job:ps/replica:0/task:0/device:CPU:1"; /* another device of the task: same containers */
    assert_null(trn_k_resource(&got, &f.k, 0, &trn_var_type));
    trn_resource_unref(got);
    f.node.device = "/job:ps/replica:0/task:1/device:CPU:0";
    code_is(trn_k_resource(&got, &f.k, 0, &trn_var_type), TRN_INVALID_ARGUMENT, "located in device");
    f.node.device = "/job:ps/replica:0/task:0/device:CPU:0";
    trn_tensor_unref(h);

    /* Anonymous: the handle itself holds the resource. */
    assert_null(trn_res_handle(&h, &f.node, "", "anon", "Var", TRN_INVALID, NULL));
    TRN_DATA_MUT(h, trn_handle *)[0]->res = trn_resource_ref(v);
    TRN_DATA_MUT(h, trn_handle *)[0]->res_unref = trn_resource_unref;
    f.in[0].t = h;
    assert_null(trn_k_resource(&got, &f.k, 0, &trn_var_type));
    assert_ptr_equal(got, v);
    trn_resource_unref(got);
    code_is(trn_k_resource(&got, &f.k, 0, &thing_type), TRN_INVALID_ARGUMENT, "anon");
    trn_tensor_unref(h);

    /* The old form, two strings. */
    trn_shape two = trn_shape_vector(2);
    assert_null(trn_tensor_new(&h, TRN_STRING, &two));
    assert_null(trn_tensor_str_put(h, 1, "v", 1));
    f.in[0].t = h;
    assert_null(trn_k_resource(&got, &f.k, 0, &trn_var_type));
    assert_ptr_equal(got, v);
    trn_resource_unref(got);
    /* … by reference */
    trn_var *ref;
    assert_null(trn_var_new(&ref, "q", TRN_STRING, &two));
    trn_var_assign(ref, h);
    f.in[0] = (trn_value){.var = ref};
    assert_null(trn_k_resource(&got, &f.k, 0, &trn_var_type));
    trn_resource_unref(got);
    trn_resource_unref(ref);

    f.in[0] = (trn_value){.t = trn_tensor_f32(1)};
    code_is(trn_k_resource(&got, &f.k, 0, &trn_var_type), TRN_INVALID_ARGUMENT, "float");
    trn_tensor_unref(f.in[0].t);
    assert_null(trn_tensor_new(&h, TRN_RESOURCE, &s));
    f.in[0].t = h; /* a handle that nobody filled in */
    code_is(trn_k_resource(&got, &f.k, 0, &trn_var_type), TRN_INVALID_ARGUMENT, "empty");
    trn_tensor_unref(h);
    trn_resource_unref(v);
    trn_resmgr_unref(m);
}

static void *hammer(void *arg)
{
    trn_resmgr *m = arg;
    for (int i = 0; i < 2000; i++) {
        char name[16];
        snprintf(name, sizeof name, "n%d", i % 17);
        trn_var *v;
        if (i % 101 == 0)
            trn_resmgr_clear(m, NULL);
        trn_err e = trn_resmgr_get(&v, m, "", name, &trn_var_type);
        if (e) {
            trn_err_free(e);
            e = trn_var_new(&v, name, TRN_FLOAT, NULL);
            trn_err_free(trn_resmgr_put(m, "", name, trn_resource_ref(v)));
        }
        trn_var_assign(v, trn_tensor_f32((float)i));
        trn_tensor *t;
        trn_err_free(trn_var_read(&t, v));
        trn_tensor_unref(t);
        trn_resource_unref(v);
    }
    return NULL;
}

static void threads(void **state)
{
    trn_resmgr *m = trn_resmgr_new("");
    pthread_t t[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&t[i], NULL, hammer, m);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    trn_resmgr_unref(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table), cmocka_unit_test(clearing), cmocka_unit_test(variables), cmocka_unit_test(types), cmocka_unit_test(handles), cmocka_unit_test(threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
