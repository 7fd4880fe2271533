/* The local rendezvous: any order, dead tensors, cancellation, abort, threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "res/rdv.h"
#include "tensor/tensor.h"

typedef struct got {
    _Atomic int n;
    trn_code code;
    float v;
    bool dead;
    trn_rdv *again; /* send this key from inside the callback */
} got;

static void on_recv(void *arg, trn_err err, trn_tensor *t, bool dead)
{
    got *g = arg;
    g->code = trn_err_code(err);
    g->v = t ? TRN_DATA(t, float)[0] : 0;
    g->dead = dead;
    trn_err_free(err);
    if (g->again) {
        trn_tensor *x = trn_tensor_f32(5);
        trn_err_free(g->again->type->send(g->again, "nested", x, false));
        trn_tensor_unref(x);
    }
    atomic_fetch_add(&g->n, 1);
}

static trn_err send_f(trn_rdv *r, const char *key, float v)
{
    trn_tensor *t = trn_tensor_f32(v);
    trn_err e = r->type->send(r, key, t, false);
    trn_tensor_unref(t);
    return e;
}

static void order(void **state)
{
    trn_rdv *r = trn_rdv_local_new();
    got a = {0}, b = {0}, c = {0}, d = {0};
    assert_null(send_f(r, "k1", 1)); /* send first */
    r->type->recv(r, "k1", NULL, on_recv, &a);
    assert_int_equal(a.n, 1);
    assert_true(a.v == 1 && !a.dead);
    r->type->recv(r, "k2", NULL, on_recv, &b); /* recv first */
    assert_int_equal(b.n, 0);
    assert_null(send_f(r, "k2", 2));
    assert_int_equal(b.n, 1);
    assert_true(b.v == 2);
    assert_null(r->type->send(r, "k3", NULL, true)); /* dead */
    r->type->recv(r, "k3", NULL, on_recv, &c);
    assert_true(c.n == 1 && c.dead && c.code == TRN_CODE_OK);
    assert_null(send_f(r, "k4", 4)); /* twice without anybody who takes it */
    trn_err e = send_f(r, "k4", 5);
    assert_int_equal(trn_err_code(e), TRN_INTERNAL);
    trn_err_free(e);
    r->type->recv(r, "k4", NULL, on_recv, &d);
    assert_true(d.v == 4);
    assert_null(send_f(r, "left", 9)); /* freed with the rendezvous */
    trn_rdv_unref(r);
}

static void two_waiters(void **state)
{
    trn_rdv *r = trn_rdv_local_new();
    got a = {0}, b = {0};
    r->type->recv(r, "k", NULL, on_recv, &a);
    r->type->recv(r, "k", NULL, on_recv, &b);
    assert_null(send_f(r, "k", 1));
    assert_true(a.n == 1 && b.n == 0);
    assert_null(send_f(r, "k", 2));
    assert_true(b.n == 1 && b.v == 2);
    trn_rdv_unref(r);
}

static void cancelling(void **state)
{
    trn_rdv *r = trn_rdv_local_new();
    trn_cancel *c = trn_cancel_new();
    got a = {0}, b = {0}, d = {0};
    r->type->recv(r, "k", c, on_recv, &a);
    r->type->recv(r, "other", c, on_recv, &b);
    assert_null(send_f(r, "other", 3)); /* its hook goes with it */
    assert_int_equal(b.n, 1);
    trn_cancel_fire(c, trn_errorf(TRN_DEADLINE_EXCEEDED, "late"));
    assert_int_equal(a.n, 1);
    assert_int_equal(a.code, TRN_DEADLINE_EXCEEDED);
    assert_int_equal(b.n, 1);
    r->type->recv(r, "k", c, on_recv, &d); /* after the fact */
    assert_int_equal(d.n, 1);
    assert_int_equal(d.code, TRN_DEADLINE_EXCEEDED);
    got e = {0};
    assert_null(send_f(r, "k", 6)); /* nobody waits any more: it stays */
    r->type->recv(r, "k", NULL, on_recv, &e);
    assert_true(e.n == 1 && e.v == 6);
    trn_cancel_unref(c);
    trn_rdv_unref(r);
}

static void aborting(void **state)
{
    trn_rdv *r = trn_rdv_local_new();
    trn_cancel *c = trn_cancel_new();
    got a = {0}, b = {0}, d = {0};
    r->type->recv(r, "k", c, on_recv, &a);
    r->type->recv(r, "k", NULL, on_recv, &b);
    assert_null(send_f(r, "parked", 1));
    r->type->abort(r, trn_errorf(TRN_ABORTED, "peer gone"));
    r->type->abort(r, trn_errorf(TRN_INTERNAL, "second"));
    assert_true(a.n == 1 && b.n == 1);
    assert_int_equal(a.code, TRN_ABORTED);
    assert_int_equal(b.code, TRN_ABORTED);
    r->type->recv(r, "parked", c, on_recv, &d);
    assert_int_equal(d.code, TRN_ABORTED);
    trn_err e = send_f(r, "x", 1);
    assert_int_equal(trn_err_code(e), TRN_ABORTED);
    trn_err_free(e);
    trn_cancel_fire(c, trn_errorf(TRN_CANCELLED, "c"));
    assert_int_equal(a.n, 1);
    trn_cancel_unref(c);
    trn_rdv_unref(r);
}

static void from_callback(void **state)
{
    trn_rdv *r = trn_rdv_local_new();
    got a = {.again = r}, b = {0};
    r->type->recv(r, "nested", NULL, on_recv, &b);
    r->type->recv(r, "k", NULL, on_recv, &a);
    assert_null(send_f(r, "k", 1));
    assert_true(a.n == 1 && b.n == 1 && b.v == 5);
    trn_rdv_unref(r);
}

/* Senders, receivers, a canceller: each receive ends exactly once. */
enum { KEYS = 400 };
static struct {
    trn_rdv *r;
    trn_cancel *c;
    got g[KEYS];
} race;

static void *sender(void *arg)
{
    for (int i = 0; i < KEYS; i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", i);
        trn_err_free(send_f(race.r, key, (float)i));
    }
    return NULL;
}

static void *receiver(void *arg)
{
    for (int i = 0; i < KEYS; i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", i);
        race.r->type->recv(race.r, key, race.c, on_recv, &race.g[i]);
    }
    return NULL;
}

static void *canceller(void *arg)
{
    for (volatile int i = 0; i < *(int *)arg; i++)
        ;
    trn_cancel_fire(race.c, trn_errorf(TRN_CANCELLED, "stop"));
    return NULL;
}

static void races(void **state)
{
    for (int round = 0; round < 20; round++) {
        memset(race.g, 0, sizeof race.g);
        race.r = trn_rdv_local_new();
        race.c = trn_cancel_new();
        int spin = round * 5000;
        pthread_t t[3];
        pthread_create(&t[0], NULL, receiver, NULL);
        pthread_create(&t[1], NULL, sender, NULL);
        pthread_create(&t[2], NULL, canceller, &spin);
        for (int i = 0; i < 3; i++)
            pthread_join(t[i], NULL);
        for (int i = 0; i < KEYS; i++) {
            assert_int_equal(race.g[i].n, 1);
            if (!race.g[i].code)
                assert_true(race.g[i].v == (float)i);
        }
        trn_cancel_unref(race.c);
        trn_rdv_unref(race.r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order),    cmocka_unit_test(two_waiters),   cmocka_unit_test(cancelling),
        cmocka_unit_test(aborting), cmocka_unit_test(from_callback), cmocka_unit_test(races),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
