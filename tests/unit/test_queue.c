/* Queues: order, waiting, closing, cancelling, sharing; through the kernels, and with threads on the resource itself. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "restest.h"
#include "res/queue.h"
#include "res/var.h"

static void put_i32(optest *q, int32_t v)
{
    optest t;
    ok(RUN(&t, "QueueEnqueueV2", "Tcomponents=[i32]", H(q), trn_tensor_i32(v)));
    optest_end(&t);
}

static int32_t take_i32(optest *q)
{
    optest t;
    ok(RUN(&t, "QueueDequeueV2", "component_types=[i32]", H(q)));
    int32_t v = TRN_DATA(t.out[0].t, int32_t)[0];
    optest_end(&t);
    return v;
}

static int32_t size_of(optest *q)
{
    optest t;
    ok(RUN(&t, "QueueSizeV2", "", H(q)));
    int32_t v = TRN_DATA(t.out[0].t, int32_t)[0];
    optest_end(&t);
    return v;
}

static void close_queue(optest *q, bool cancel_pending)
{
    optest t;
    ok(RUN(&t, "QueueCloseV2", cancel_pending ? "cancel_pending_enqueues=true" : "", H(q)));
    optest_end(&t);
}

static void check_i32(const trn_tensor *t, int n, ...)
{
    assert_int_equal(t->count, n);
    va_list ap;
    va_start(ap, n);
    for (int i = 0; i < n; i++)
        assert_int_equal(TRN_DATA(t, int32_t)[i], va_arg(ap, int));
    va_end(ap);
}

/* ---- order ----------------------------------------------------------------------------------------------------- */

static void fifo(void **state)
{
    (void)state;
    optest q, t;
    make(&q, "FIFOQueueV2", "component_types=[i32], shapes=[[]], capacity=10");
    for (int round = 0; round < 50; round++) { /* the ring turns */
        for (int i = 0; i < 7; i++)
            put_i32(&q, i);
        assert_int_equal(size_of(&q), 7);
        for (int i = 0; i < 7; i++)
            assert_int_equal(take_i32(&q), i);
    }
    ok(RUN(&t, "QueueEnqueueManyV2", "Tcomponents=[i32]", H(&q), OPTEST_I32(1, 2, 3, 4, 5)));
    optest_end(&t);
    ok(RUN(&t, "QueueDequeueManyV2", "component_types=[i32]", H(&q), trn_tensor_i32(3)));
    check_i32(t.out[0].t, 3, 1, 2, 3);
    optest_end(&t);
    ok(RUN(&t, "QueueDequeueManyV2", "component_types=[i32]", H(&q), trn_tensor_i32(0)));
    assert_int_equal(t.out[0].t->shape.dim[0], 0);
    optest_end(&t);
    fails(RUN(&t, "QueueDequeueManyV2", "component_types=[i32]", H(&q), trn_tensor_i32(-1)), TRN_INVALID_ARGUMENT,
          "-1 < 0");
    optest_end(&t);
    assert_int_equal(size_of(&q), 2);
    optest_end(&q);
}

static void strings_and_tuples(void **state)
{
    (void)state;
    optest q, t;
    make(&q, "FIFOQueueV2", "component_types=[str,f32], shapes=[[],[2]]");
    ok(RUN(&t, "QueueEnqueueV2", "Tcomponents=[str,f32]", H(&q), trn_tensor_str("a string longer than twelve", 27),
           OPTEST_F32(1, 2)));
    optest_end(&t);
    ok(RUN(&t, "QueueEnqueueV2", "Tcomponents=[str,f32]", H(&q), trn_tensor_str("b", 1), OPTEST_F32(3, 4)));
    optest_end(&t);
    ok(RUN(&t, "QueueDequeueManyV2", "component_types=[str,f32]", H(&q), trn_tensor_i32(2)));
    size_t n;
    assert_memory_equal(trn_tensor_str_at(t.out[0].t, 0, &n), "a string longer than twelve", 27);
    assert_memory_equal(trn_tensor_str_at(t.out[0].t, 1, &n), "b", 1);
    assert_float_equal(TRN_DATA(t.out[1].t, float)[3], 4, 0);
    optest_end(&t);
    fails(RUN(&t, "QueueEnqueueV2", "Tcomponents=[str,f32]", H(&q), trn_tensor_str("b", 1), OPTEST_F32(3)),
          TRN_INVALID_ARGUMENT, "Shape mismatch in tuple component 1. Expected [2], got [1]");
    optest_end(&t);
    fails(RUN(&t, "QueueEnqueueV2", "Tcomponents=[str]", H(&q), trn_tensor_str("b", 1)), TRN_INVALID_ARGUMENT,
          "Wrong number of components");
    optest_end(&t);
    fails(RUN(&t, "QueueEnqueueV2", "Tcomponents=[str,i32]", H(&q), trn_tensor_str("b", 1), trn_tensor_i32(1)),
          TRN_INVALID_ARGUMENT, "Type mismatch");
    optest_end(&t);
    fails(RUN(&t, "QueueEnqueueManyV2", "Tcomponents=[str,f32]", H(&q), trn_tensor_str("b", 1), OPTEST_F32(3)),
          TRN_INVALID_ARGUMENT, "scalar");
    optest_end(&t);
    fails(RUN(&t, "QueueDequeueV2", "component_types=[str,i32]", H(&q)), TRN_INVALID_ARGUMENT, "Signature mismatch");
    optest_end(&t);
    optest_end(&q);
}

static void shuffle(void **state)
{
    (void)state;
    optest q, t;
    /* TensorFlow's own answer for these seeds: the numbers come from its generator, in its order. */
    static const int want[] = {
#include "golden_shuffle_queue.inc"
    };
    make(&q, "RandomShuffleQueueV2",
         "component_types=[i32], shapes=[[]], capacity=100, min_after_dequeue=0, seed=7, seed2=3");
    for (int i = 0; i < 20; i++)
        put_i32(&q, i);
    for (int i = 0; i < 20; i++)
        assert_int_equal(take_i32(&q), want[i]);
    optest_end(&q);

    make(&q, "RandomShuffleQueueV2", "component_types=[i32], shapes=[[]], capacity=100, min_after_dequeue=2");
    put_i32(&q, 1);
    put_i32(&q, 2);
    ok(START(&t, "QueueDequeueV2", "component_types=[i32]", H(&q)));
    assert_true(waiting(&t));
    put_i32(&q, 3);
    ok(optest_wait(&t, 1000));
    optest_end(&t);
    close_queue(&q, false); /* what is left may leave */
    take_i32(&q);
    take_i32(&q);
    fails(RUN(&t, "QueueDequeueV2", "component_types=[i32]", H(&q)), TRN_OUT_OF_RANGE, "RandomShuffleQueue '_");
    optest_end(&t);
    optest_end(&q);
    fails(start(&t, "RandomShuffleQueueV2", "component_types=[i32], capacity=5, min_after_dequeue=5", NULL, 0),
          TRN_INVALID_ARGUMENT, "must be < capacity");
    optest_end(&t);
}

static void padding(void **state)
{
    (void)state;
    optest q, t;
    make(&q, "PaddingFIFOQueueV2", "component_types=[i32,str], shapes=[[?,2],[?]]");
    ok(RUN(&t, "QueueEnqueueV2", "Tcomponents=[i32,str]", H(&q), OPTEST_MAT(TRN_INT32, int32_t, 1, 2, 1, 2),
           OPTEST_VEC(TRN_STRING, const char *, "a", "b")));
    optest_end(&t);
    ok(RUN(&t, "QueueEnqueueV2", "Tcomponents=[i32,str]", H(&q), OPTEST_MAT(TRN_INT32, int32_t, 2, 2, 3, 4, 5, 6),
           OPTEST_VEC(TRN_STRING, const char *, "c")));
    optest_end(&t);
    fails(RUN(&t, "QueueEnqueueV2", "Tcomponents=[i32,str]", H(&q), OPTEST_MAT(TRN_INT32, int32_t, 1, 1, 3),
              OPTEST_VEC(TRN_STRING, const char *, "c")),
          TRN_INVALID_ARGUMENT, "Shape mismatch");
    optest_end(&t);
    ok(RUN(&t, "QueueDequeueManyV2", "component_types=[i32,str]", H(&q), trn_tensor_i32(2)));
    check_i32(t.out[0].t, 8, 1, 2, 0, 0, 3, 4, 5, 6);
    assert_int_equal(t.out[1].t->count, 4);
    size_t n;
    trn_tensor_str_at(t.out[1].t, 3, &n);
    assert_int_equal(n, 0);
    optest_end(&t);
    ok(RUN(&t, "QueueDequeueManyV2", "component_types=[i32,str]", H(&q), trn_tensor_i32(0)));
    assert_int_equal(t.out[0].t->shape.rank, 3);
    optest_end(&t);
    optest_end(&q);
}

static void priority(void **state)
{
    (void)state;
    optest q, t;
    make(&q, "PriorityQueueV2", "component_types=[i32], shapes=[[]]");
    ok(RUN(&t, "QueueEnqueueManyV2", "Tcomponents=[i64,i32]", H(&q), OPTEST_I64(5, -1, 3, 9, 0),
           OPTEST_I32(50, -10, 30, 90, 0)));
    optest_end(&t);
    ok(RUN(&t, "QueueDequeueManyV2", "component_types=[i64,i32]", H(&q), trn_tensor_i32(3)));
    check_i32(t.out[1].t, 3, -10, 0, 30);
    optest_end(&t);
    ok(START(&t, "QueueDequeueManyV2", "component_types=[i64,i32]", H(&q),
             trn_tensor_i32(3))); /* leaves in one sorted piece */
    assert_true(waiting(&t));
    assert_int_equal(size_of(&q), 2);
    optest e;
    ok(RUN(&e, "QueueEnqueueV2", "Tcomponents=[i64,i32]", H(&q), trn_tensor_i64(6), trn_tensor_i32(60)));
    optest_end(&e);
    ok(optest_wait(&t, 1000));
    check_i32(t.out[1].t, 3, 50, 60, 90);
    optest_end(&t);
    /* Equal priorities leave as they leave TensorFlow's. */
    ok(RUN(&t, "QueueEnqueueManyV2", "Tcomponents=[i64,i32]", H(&q), OPTEST_I64(0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1),
           OPTEST_I32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)));
    optest_end(&t);
    ok(RUN(&t, "QueueDequeueManyV2", "component_types=[i64,i32]", H(&q), trn_tensor_i32(11)));
    check_i32(t.out[1].t, 11, 0, 6, 3, 9, 10, 7, 4, 1, 5, 2, 8);
    optest_end(&t);
    fails(RUN(&t, "QueueEnqueueV2", "Tcomponents=[i64,i32]", H(&q), OPTEST_I64(6), trn_tensor_i32(60)),
          TRN_INVALID_ARGUMENT, "priority");
    optest_end(&t);
    optest_end(&q);
}

/* ---- waiting, closing, cancelling ------------------------------------------------------------------------------- */

static void waiters_in_order(void **state)
{
    (void)state;
    optest q, a, b;
    make(&q, "FIFOQueueV2", "component_types=[i32], shapes=[[]]");
    ok(START(&a, "QueueDequeueManyV2", "component_types=[i32]", H(&q), trn_tensor_i32(2)));
    ok(START(&b, "QueueDequeueV2", "component_types=[i32]", H(&q)));
    put_i32(&q, 1);
    assert_true(waiting(&a) && waiting(&b)); /* b came later: it does not overtake */
    put_i32(&q, 2);
    ok(optest_wait(&a, 1000));
    check_i32(a.out[0].t, 2, 1, 2);
    assert_true(waiting(&b));
    put_i32(&q, 3);
    ok(optest_wait(&b, 1000));
    optest_end(&a);
    optest_end(&b);
    optest_end(&q);
}

static void batch_larger_than_capacity(void **state)
{
    (void)state;
    optest q, a, b;
    make(&q, "FIFOQueueV2", "component_types=[i32], shapes=[[]], capacity=2");
    ok(START(&a, "QueueEnqueueManyV2", "Tcomponents=[i32]", H(&q), OPTEST_I32(1, 2, 3, 4, 5)));
    assert_true(waiting(&a));
    ok(START(&b, "QueueDequeueManyV2", "component_types=[i32]", H(&q), trn_tensor_i32(5)));
    ok(optest_wait(&a, 1000));
    ok(optest_wait(&b, 1000));
    check_i32(b.out[0].t, 5, 1, 2, 3, 4, 5);
    optest_end(&a);
    optest_end(&b);
    optest_end(&q);
}

static void closing(void **state)
{
    (void)state;
    optest q, a, b, t;
    make(&q, "FIFOQueueV2", "component_types=[i32], shapes=[[]], capacity=3, shared_name=\"cq\"");
    put_i32(&q, 1);
    put_i32(&q, 2);
    ok(START(&a, "QueueDequeueManyV2", "component_types=[i32]", H(&q), trn_tensor_i32(3)));
    ok(START(&b, "QueueDequeueUpToV2", "component_types=[i32]", H(&q), trn_tensor_i32(5)));
    close_queue(&q, false);
    fails(optest_wait(&a, 1000), TRN_OUT_OF_RANGE,
          "FIFOQueue 'cq' is closed and has insufficient elements (requested 1, current size 0)");
    ok(optest_wait(&b, 1000)); /* gets what a gave back, in order */
    check_i32(b.out[0].t, 2, 1, 2);
    optest_end(&a);
    optest_end(&b);
    fails(RUN(&t, "QueueEnqueueV2", "Tcomponents=[i32]", H(&q), trn_tensor_i32(1)), TRN_CANCELLED,
          "FIFOQueue 'cq' is closed.");
    optest_end(&t);
    fails(RUN(&t, "QueueDequeueUpToV2", "component_types=[i32]", H(&q), trn_tensor_i32(1)), TRN_OUT_OF_RANGE,
          "requested 1, current size 0");
    optest_end(&t);
    fails(RUN(&t, "QueueCloseV2", "", H(&q)), TRN_CANCELLED, "already closed");
    optest_end(&t);
    ok(RUN(&t, "QueueCloseV2", "cancel_pending_enqueues=true", H(&q)));
    optest_end(&t);
    ok(RUN(&t, "QueueIsClosedV2", "", H(&q)));
    assert_true(TRN_DATA(t.out[0].t, bool)[0]);
    optest_end(&t);
    optest_end(&q);
}

static void close_waits_behind_enqueues(void **state)
{
    (void)state;
    optest q, a, c;
    make(&q, "FIFOQueueV2", "component_types=[i32], shapes=[[]], capacity=1");
    put_i32(&q, 1);
    ok(START(&a, "QueueEnqueueV2", "Tcomponents=[i32]", H(&q), trn_tensor_i32(2)));
    ok(START(&c, "QueueCloseV2", "", H(&q)));
    assert_true(waiting(&c));
    assert_int_equal(take_i32(&q), 1);
    ok(optest_wait(&a, 1000));
    ok(optest_wait(&c, 1000));
    assert_int_equal(take_i32(&q), 2);
    optest_end(&a);
    optest_end(&c);
    optest_end(&q);

    make(&q, "FIFOQueueV2", "component_types=[i32], shapes=[[]], capacity=1");
    put_i32(&q, 1);
    ok(START(&a, "QueueEnqueueManyV2", "Tcomponents=[i32]", H(&q), OPTEST_I32(2, 3)));
    close_queue(&q, true);
    fails(optest_wait(&a, 1000), TRN_CANCELLED, "Enqueue operation was cancelled");
    assert_int_equal(take_i32(&q), 1);
    optest_end(&a);
    optest_end(&q);
}

static void cancelling(void **state)
{
    (void)state;
    optest q, a, b;
    make(&q, "FIFOQueueV2", "component_types=[i32], shapes=[[]]");
    put_i32(&q, 1);
    ok(START(&a, "QueueDequeueManyV2", "component_types=[i32]", H(&q), trn_tensor_i32(3)));
    put_i32(&q, 2);
    assert_int_equal(size_of(&q), 0);
    trn_cancel *first = cancel; /* another step waits behind */
    cancel = trn_cancel_new();
    ok(START(&b, "QueueDequeueV2", "component_types=[i32]", H(&q)));
    assert_true(waiting(&b));
    trn_cancel_fire(first, trn_errorf(TRN_CANCELLED, "step over"));
    fails(optest_wait(&a, 1000), TRN_CANCELLED, "Dequeue operation was cancelled");
    ok(optest_wait(&b, 1000)); /* nothing lost, nothing blocked */
    check_i32(b.out[0].t, 1, 1);
    assert_int_equal(size_of(&q), 1);
    optest_end(&a);
    optest_end(&b);
    trn_cancel_fire(cancel, trn_errorf(TRN_CANCELLED, "step over"));
    ok(START(&a, "QueueDequeueV2", "component_types=[i32]", H(&q)));
    fails(optest_wait(&a, 1000), TRN_CANCELLED, "Dequeue operation was cancelled"); /* also when it need not wait */
    optest_end(&a);
    optest_end(&q);
    trn_cancel_unref(first);
}

static void *cancel_soon(void *arg)
{
    struct timespec ms = {.tv_nsec = 20000000};
    nanosleep(&ms, NULL);
    trn_cancel_fire(arg, trn_errorf(TRN_CANCELLED, "step over"));
    return NULL;
}

/* Rows without elements: more than there is time or memory for. */
static void cancelled_while_it_puts(void **state)
{
    (void)state;
    optest q, a;
    make(&q, "FIFOQueueV2", "component_types=[i32], shapes=[[0]]");
    pthread_t th;
    assert_int_equal(pthread_create(&th, NULL, cancel_soon, cancel), 0);
    ok(START(&a, "QueueEnqueueManyV2", "Tcomponents=[i32]", H(&q), trn_tensor_from(TRN_INT32, 2, (int64_t[]){INT64_C(1) << 50, 0}, NULL)));
    fails(optest_wait(&a, 1000), TRN_CANCELLED, "Enqueue operation was cancelled");
    assert_int_equal(pthread_join(th, NULL), 0);
    optest_end(&a);
    optest_end(&q);
}

static void container_cleared(void **state)
{
    (void)state;
    optest q, a, t;
    make(&q, "FIFOQueueV2", "component_types=[i32], shapes=[[]], shared_name=\"x\", container=\"c\"");
    ok(START(&a, "QueueDequeueV2", "component_types=[i32]", H(&q)));
    trn_resmgr_clear(mgr, "other");
    assert_true(waiting(&a));
    trn_resmgr_clear(mgr, "c");
    fails(optest_wait(&a, 1000), TRN_CANCELLED, "container was cleared");
    optest_end(&a);
    fails(RUN(&t, "QueueSizeV2", "", H(&q)), TRN_NOT_FOUND, "c/x");
    optest_end(&t);
    optest_end(&q);
}

/* ---- sharing ---------------------------------------------------------------------------------------------------- */

static void sharing(void **state)
{
    (void)state;
    optest a, b, t;
    const char *attrs = "component_types=[i32], shapes=[[]], shared_name=\"s\", capacity=5";
    make(&a, "FIFOQueueV2", attrs);
    make(&b, "FIFOQueueV2", attrs);
    put_i32(&a, 4);
    assert_int_equal(take_i32(&b), 4);
    fails(start(&t, "FIFOQueueV2", "component_types=[i32], shapes=[[]], shared_name=\"s\"", NULL, 0),
          TRN_INVALID_ARGUMENT, "has capacity 5 but requested capacity was 2147483647");
    optest_end(&t);
    fails(start(&t, "FIFOQueueV2", "component_types=[i32], shared_name=\"s\", capacity=5", NULL, 0),
          TRN_INVALID_ARGUMENT, "component shapes");
    optest_end(&t);
    fails(start(&t, "FIFOQueueV2", "component_types=[i64], shapes=[[]], shared_name=\"s\", capacity=5", NULL, 0),
          TRN_INVALID_ARGUMENT, "component types");
    optest_end(&t);
    fails(start(&t, "PaddingFIFOQueueV2", attrs, NULL, 0), TRN_INVALID_ARGUMENT, "does not match");
    optest_end(&t);
    fails(start(&t, "FIFOQueueV2", "component_types=[i32], shared_name=\"_s\"", NULL, 0), TRN_INVALID_ARGUMENT,
          "start with '_'");
    optest_end(&t);
    fails(start(&t, "FIFOQueueV2", "component_types=[i32], container=\"a b\"", NULL, 0), TRN_INVALID_ARGUMENT,
          "invalid characters");
    optest_end(&t);
    optest_end(&a);
    assert_int_equal(size_of(&b), 0); /* shared ones outlive the session that made them */
    optest_end(&b);
    /* Without a shared name every node of every session has its own, and it goes with the session. */
    make(&a, "FIFOQueueV2", "component_types=[i32], shapes=[[]]");
    make(&b, "FIFOQueueV2", "component_types=[i32], shapes=[[]]");
    put_i32(&a, 4);
    assert_int_equal(size_of(&b), 0);
    trn_tensor *h = H(&a);
    optest_end(&a);
    fails(RUN(&t, "QueueSizeV2", "", h), TRN_NOT_FOUND, "does not exist");
    optest_end(&t);
    optest_end(&b);
}

static void old_form(void **state)
{
    (void)state;
    optest q, t, f;
    ok(start(&q, "FIFOQueue", "component_types=[i32], shapes=[[]], shared_name=\"old\"", NULL, 0));
    trn_var *ref = q.out[0].var;
    trn_tensor *strings;
    ok(trn_var_read(&strings, ref));
    size_t n;
    assert_memory_equal(trn_tensor_str_at(strings, 0, &n), "localhost", 9);
    assert_memory_equal(trn_tensor_str_at(strings, 1, &n), "old", 3);
    ok(RUN(&t, "QueueEnqueue", "Tcomponents=[i32]", trn_tensor_ref(strings), trn_tensor_i32(8)));
    optest_end(&t);
    trn_resource_unref(ref);
    optest v2;
    make(&v2, "FIFOQueueV2", "component_types=[i32], shapes=[[]], shared_name=\"old\"");
    ok(start(&f, "FakeQueue", "", (trn_tensor *[]){H(&v2)}, 1));
    trn_tensor *fake;
    ok(trn_var_read(&fake, f.out[0].var));
    ok(RUN(&t, "QueueDequeue", "component_types=[i32]", fake));
    check_i32(t.out[0].t, 1, 8);
    optest_end(&t);
    trn_resource_unref(f.out[0].var);
    optest_end(&f);
    optest_end(&v2);
    trn_tensor_unref(strings);
    optest_end(&q);
}

/* ---- threads ---------------------------------------------------------------------------------------------------- */

enum { THREADS = 4, EACH = 400 };
static _Atomic int64_t sum_in, sum_out;

static void was_put(void *arg, trn_err err, trn_tensor **tuple)
{
    (void)tuple;
    if (!err)
        sum_in += *(int *)arg;
    trn_err_free(err);
}

static void was_taken(void *arg, trn_err err, trn_tensor **tuple)
{
    trn_err_free(err);
    for (int64_t i = 0; tuple && i < tuple[0]->count; i++)
        sum_out += TRN_DATA(tuple[0], int32_t)[i];
    if (tuple)
        trn_tensor_unref(tuple[0]);
    atomic_store((_Atomic bool *)arg, true);
}

static void *producer(void *arg)
{
    static int value = 3;
    for (int i = 0; i < EACH; i++) {
        trn_tensor *t = trn_tensor_i32(value);
        trn_queue_enqueue(arg, NULL, &t, 1, was_put, &value);
        trn_tensor_unref(t);
    }
    return NULL;
}

/* Takes in ones and batches, and cancels at about the time the call could be ready. */
static void *consumer(void *arg)
{
    for (int i = 0; i < EACH; i++) {
        trn_cancel *c = trn_cancel_new();
        _Atomic bool over = false;
        if (i % 2)
            trn_queue_dequeue(arg, c, was_taken, &over);
        else
            trn_queue_dequeue_many(arg, c, 2, false, was_taken, &over);
        struct timespec nap = {.tv_nsec = 1000 * (i % 3)};
        nanosleep(&nap, NULL);
        trn_cancel_fire(c, trn_errorf(TRN_CANCELLED, "test"));
        while (!over)
            sched_yield();
        trn_cancel_unref(c);
    }
    return NULL;
}

static void many_threads(void **state)
{
    (void)state;
    trn_queue *q;
    trn_shape scalar = trn_shape_scalar();
    ok(trn_queue_new(
        &q, "t",
        &(trn_queue_spec){.capacity = 3, .n = 1, .types = (trn_dtype[]){TRN_INT32}, .n_shapes = 1, .shapes = &scalar}));
    pthread_t p[THREADS], c[THREADS];
    for (int i = 0; i < THREADS; i++) {
        pthread_create(&p[i], NULL, producer, q);
        pthread_create(&c[i], NULL, consumer, q);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(p[i], NULL);
        pthread_join(c[i], NULL);
    }
    _Atomic bool over = false;
    while (trn_queue_size(q))
        trn_queue_dequeue(q, NULL, was_taken, &over);
    trn_queue_close(q, false, was_taken, &over);
    assert_true(trn_queue_is_closed(q));
    assert_int_equal(sum_in, (int64_t)THREADS * EACH * 3);
    assert_int_equal(sum_out, sum_in); /* cancelled calls lost nothing */
    trn_resource_unref(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(fifo, setup, teardown),
        cmocka_unit_test_setup_teardown(strings_and_tuples, setup, teardown),
        cmocka_unit_test_setup_teardown(shuffle, setup, teardown),
        cmocka_unit_test_setup_teardown(padding, setup, teardown),
        cmocka_unit_test_setup_teardown(priority, setup, teardown),
        cmocka_unit_test_setup_teardown(waiters_in_order, setup, teardown),
        cmocka_unit_test_setup_teardown(batch_larger_than_capacity, setup, teardown),
        cmocka_unit_test_setup_teardown(closing, setup, teardown),
        cmocka_unit_test_setup_teardown(close_waits_behind_enqueues, setup, teardown),
        cmocka_unit_test_setup_teardown(cancelling, setup, teardown),
        cmocka_unit_test_setup_teardown(cancelled_while_it_puts, setup, teardown),
        cmocka_unit_test_setup_teardown(container_cleared, setup, teardown),
        cmocka_unit_test_setup_teardown(sharing, setup, teardown),
        cmocka_unit_test_setup_teardown(old_form, setup, teardown),
        cmocka_unit_test(many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
