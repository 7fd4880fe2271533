/* Lookup tables and staging maps, also from several threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include <pthread.h>

#include "check.h"
#include "res/stagemap.h"
#include "res/table.h"

static trn_tensor *i64s(int64_t n, const int64_t *v) { return trn_tensor_from(TRN_INT64, 1, &n, v); }

static int64_t look(trn_table *t, int64_t key)
{
    trn_tensor *k = i64s(1, &key), *d = trn_tensor_i64(-1), *y;
    trn_shape s;
    ok(trn_table_check_find(&s, t, k, d));
    ok(trn_tensor_new(&y, TRN_INT64, &s));
    ok(trn_table_find(t, y, k, d));
    int64_t v = TRN_DATA(y, int64_t)[0];
    trn_tensor_unref(k);
    trn_tensor_unref(d);
    trn_tensor_unref(y);
    return v;
}

static trn_err insert(trn_table *t, int64_t key, int64_t value)
{
    trn_tensor *k = i64s(1, &key), *v = i64s(1, &value);
    trn_err e = trn_table_insert(t, k, v);
    trn_tensor_unref(k);
    trn_tensor_unref(v);
    return e;
}

static trn_err take_out(trn_table *t, int64_t key)
{
    trn_tensor *k = i64s(1, &key);
    trn_err e = trn_table_remove(t, k);
    trn_tensor_unref(k);
    return e;
}

/* ---- tables ----------------------------------------------------------------------------------------------------------- */

static void against_a_model(trn_table *t)
{
    enum { KEYS = 300 };
    int64_t model[KEYS], n = 0;
    for (int i = 0; i < KEYS; i++)
        model[i] = -1;
    unsigned seed = 7;
    for (int step = 0; step < 5000; step++) {
        int key = 2 + rand_r(&seed) % (KEYS - 2);
        if (rand_r(&seed) % 5 < 3) {
            ok(insert(t, key, step));
            n += model[key] < 0;
            model[key] = step;
        } else {
            ok(take_out(t, key));
            n -= model[key] >= 0;
            model[key] = -1;
        }
        assert_int_equal(look(t, key), model[key]);
        assert_int_equal(trn_table_size(t), n);
    }
    for (int i = 2; i < KEYS; i++)
        assert_int_equal(look(t, i), model[i]);
}

static void scalars(void **state)
{
    (void)state;
    trn_shape s = trn_shape_scalar();
    trn_table *t = trn_table_new(TRN_TABLE_SCALARS, TRN_INT64, TRN_INT64, &s);
    against_a_model(t);
    trn_resource_unref(t);
}

static void dense(void **state)
{
    (void)state;
    trn_shape s = trn_shape_scalar();
    trn_tensor *empty = trn_tensor_i64(0), *gone = trn_tensor_i64(1);
    trn_table *t;
    fails(trn_table_new_dense(&t, empty, empty, TRN_INT64, &s, 8, 0.5f), TRN_INVALID_ARGUMENT, NULL);
    fails(trn_table_new_dense(&t, empty, gone, TRN_INT64, &s, 7, 0.5f), TRN_INVALID_ARGUMENT, NULL);
    ok(trn_table_new_dense(&t, empty, gone, TRN_INT64, &s, 4096, 0.5f));
    against_a_model(t);
    fails(insert(t, 0, 5), TRN_INVALID_ARGUMENT, NULL);
    fails(take_out(t, 1), TRN_INVALID_ARGUMENT, NULL);
    /* What was exported does not change with the table. */
    trn_tensor *k, *v;
    ok(trn_table_export(t, &k, &v));
    int64_t before = 0, after = 0;
    for (int64_t i = 0; i < k->count; i++)
        before += TRN_DATA(k, int64_t)[i];
    ok(insert(t, 100000, 5));
    for (int64_t i = 0; i < k->count; i++)
        after += TRN_DATA(k, int64_t)[i];
    assert_int_equal(before, after);
    /* A table without a free bucket ends its search. */
    trn_shape four = trn_shape_of(2, (int64_t)4, (int64_t)1);
    trn_tensor *full, *vals;
    ok(trn_tensor_new(&full, TRN_INT64, &four));
    ok(trn_tensor_new(&vals, TRN_INT64, &four));
    for (int i = 0; i < 4; i++)
        ((int64_t *)full->data)[i] = ((int64_t *)vals->data)[i] = 50 + i;
    ok(trn_table_import(t, full, vals));
    assert_int_equal(trn_table_size(t), 4);
    trn_tensor *ask = i64s(1, (int64_t[]){9}), *y;
    trn_shape one = trn_shape_vector(1);
    ok(trn_tensor_new(&y, TRN_INT64, &one));
    fails(trn_table_find(t, y, ask, y), TRN_INTERNAL, NULL);
    trn_tensor *all[] = {empty, gone, k, v, full, vals, ask, y};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        trn_tensor_unref(all[i]);
    trn_resource_unref(t);
}

static trn_table *shared;
static _Atomic int filled;

static void *worker(void *arg)
{
    int64_t me = (int64_t)(intptr_t)arg;
    for (int64_t i = 0; i < 300; i++) {
        ok(insert(shared, 1000 * me + i, i));
        assert_int_equal(look(shared, 1000 * me + i), i);
        if (i % 3 == 0)
            ok(take_out(shared, 1000 * me + i));
    }
    return NULL;
}

static void *filler(void *arg)
{
    int64_t n = 2 + (int64_t)(intptr_t)arg, v[] = {1, 2, 3, 4, 5, 6};
    trn_tensor *k = i64s(n, v);
    trn_err e = trn_table_import(shared, k, k);
    if (!e)
        atomic_fetch_add(&filled, 1);
    else
        fails(e, TRN_FAILED_PRECONDITION, NULL);
    assert_int_equal(look(shared, 2), 2);
    trn_tensor_unref(k);
    return NULL;
}

static void all_at_once(void *(*fn)(void *))
{
    pthread_t th[4];
    for (intptr_t i = 0; i < 4; i++)
        pthread_create(&th[i], NULL, fn, (void *)i);
    for (int i = 0; i < 4; i++)
        pthread_join(th[i], NULL);
}

static void threads(void **state)
{
    (void)state;
    trn_shape s = trn_shape_scalar();
    shared = trn_table_new(TRN_TABLE_SCALARS, TRN_INT64, TRN_INT64, &s);
    all_at_once(worker);
    assert_int_equal(trn_table_size(shared), 4 * 200);
    trn_resource_unref(shared);
    shared = trn_table_new(TRN_TABLE_STATIC, TRN_INT64, TRN_INT64, &s);
    all_at_once(filler);
    assert_int_equal(filled, 1); /* whoever is first; the others have other sizes */
    trn_resource_unref(shared);
}

/* ---- staging maps ------------------------------------------------------------------------------------------------------- */

static trn_stagemap *map;
static _Atomic int64_t sum;

static void taken(void *arg, trn_err err, int64_t key, trn_tensor **t, int n)
{
    (void)arg;
    ok(err);
    assert_int_equal(n, 1);
    assert_int_equal(TRN_DATA(t[0], int64_t)[0], key);
    trn_tensor_unref(t[0]);
    atomic_fetch_add(&sum, key);
}

static void was_put(void *arg, trn_err err, int64_t key, trn_tensor **t, int n)
{
    (void)arg, (void)key, (void)n;
    ok(err);
    assert_null(t);
}

static void *stager(void *arg)
{
    int64_t me = (int64_t)(intptr_t)arg;
    int32_t zero = 0;
    for (int64_t i = 0; i < 200; i++) {
        int64_t key = me / 2 * 1000 + i;
        if (me % 2) {
            trn_stagemap_take(map, NULL, i % 2 ? &key : NULL, &zero, 1, false, taken, NULL);
            continue;
        }
        trn_tensor *t = trn_tensor_i64(key);
        trn_stagemap_put(map, NULL, key, &zero, &t, 1, was_put, NULL);
        trn_tensor_unref(t);
    }
    return NULL;
}

static void staging(void **state)
{
    (void)state;
    map = trn_stagemap_new("m", 1, true, 0, 0);
    all_at_once(stager);
    /* Those that take any key may have been quicker than those that wait for theirs: give them what they still wait for. */
    int32_t zero = 0;
    for (int64_t me = 0; me < 2; me++)
        for (int64_t i = 1; i < 200; i += 2) {
            trn_tensor *t = trn_tensor_i64(me * 1000 + i);
            trn_stagemap_put(map, NULL, me * 1000 + i, &zero, &t, 1, was_put, NULL);
            trn_tensor_unref(t);
        }
    trn_stagemap_clear(map);
    assert_int_equal(trn_stagemap_size(map, false), 0);
    trn_resmgr *mgr = trn_resmgr_new("c");
    ok(trn_resmgr_put(mgr, "c", "m", (trn_resource *)map));
    trn_resmgr_unref(mgr);
}

static void refused(void *arg, trn_err err, int64_t key, trn_tensor **t, int n)
{
    (void)key, (void)t, (void)n;
    fails(err, *(trn_code *)arg, NULL);
}

static void what_maps_refuse(void **state)
{
    (void)state;
    trn_stagemap *m = trn_stagemap_new("m", 2, false, 0, 100);
    trn_code bad = TRN_INVALID_ARGUMENT, full = TRN_RESOURCE_EXHAUSTED;
    int64_t key = 1;
    trn_tensor *t[2] = {trn_tensor_i64(1), trn_tensor_i64(2)};
    trn_stagemap_put(m, NULL, key, (int32_t[]){1, 0}, t, 2, refused, &bad);
    trn_stagemap_put(m, NULL, key, (int32_t[]){0, 2}, t, 2, refused, &bad);
    trn_stagemap_put(m, NULL, key, (int32_t[]){-1}, t, 1, refused, &bad);
    trn_stagemap_put(m, NULL, key, NULL, t, 0, refused, &bad);
    trn_stagemap_take(m, NULL, &key, (int32_t[]){0, 0}, 2, true, refused, &bad);
    trn_stagemap_put(m, NULL, key, (int32_t[]){0}, t, 1, was_put, NULL);
    trn_stagemap_put(m, NULL, key, (int32_t[]){0}, t, 1, refused, &bad);
    trn_shape big = trn_shape_vector(20);
    trn_tensor *x;
    ok(trn_tensor_new(&x, TRN_INT64, &big));
    trn_stagemap_put(m, NULL, key, (int32_t[]){1}, &x, 1, refused, &full);
    assert_int_equal(trn_stagemap_size(m, true), 1);
    trn_tensor_unref(x);
    trn_tensor_unref(t[0]);
    trn_tensor_unref(t[1]);
    trn_resource_unref(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalars),          cmocka_unit_test(dense),
        cmocka_unit_test(threads),          cmocka_unit_test(staging),
        cmocka_unit_test(what_maps_refuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
