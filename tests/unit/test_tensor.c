/* tensor/: dtypes, shapes, tensors, views, strings, handles, half floats. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "check.h"
#include "tensor/tensor.h"

#include <math.h>
#include <stdlib.h>

static void dtypes(void **state)
{
    for (int i = 1; i < TRN_DTYPE_END; i++) {
        trn_dtype t = (trn_dtype)i;
        if (!trn_dtype_size(t)) {
            assert_true(i > TRN_FLOAT8_E4M3FN && i < TRN_INT4);
            continue;
        }
        const char *name = trn_dtype_name(t);
        assert_int_equal(trn_dtype_parse(name, strlen(name)), t);
        name = trn_dtype_name((trn_dtype)(t + TRN_REF));
        assert_int_equal(trn_dtype_parse(name, strlen(name)), t + TRN_REF);
        assert_int_equal(trn_dtype_size((trn_dtype)(t + TRN_REF)), trn_dtype_size(t));
        assert_int_equal(trn_dtype_is_plain(t), t != TRN_STRING && t != TRN_RESOURCE && t != TRN_VARIANT);
    }
    assert_string_equal(trn_dtype_name(TRN_FLOAT), "float");
    assert_string_equal(trn_dtype_name((trn_dtype)103), "int32_ref");
    assert_int_equal(trn_dtype_parse("f32", 3), TRN_FLOAT);
    assert_int_equal(trn_dtype_parse("float32", 7), TRN_FLOAT);
    assert_int_equal(trn_dtype_parse("float32x", 7), TRN_FLOAT);
    assert_int_equal(trn_dtype_parse("f3", 2), TRN_INVALID);
    assert_int_equal(trn_dtype_parse("", 0), TRN_INVALID);
    assert_int_equal(trn_dtype_parse("float_ref_ref", 13), TRN_INVALID);
    assert_int_equal(trn_dtype_size(TRN_INVALID), 0);
    assert_int_equal(trn_dtype_size((trn_dtype)-5), 0);
    assert_int_equal(trn_dtype_size((trn_dtype)99), 0);
    assert_int_equal(trn_dtype_size((trn_dtype)1000000), 0);
    assert_false(trn_dtype_is_plain(TRN_INVALID));
    assert_int_equal(sizeof(trn_str), 16);
}

static void shapes(void **state)
{
    char buf[TRN_SHAPE_TEXT];
    trn_shape a = trn_shape_of(2, (int64_t)32, (int64_t)784), u = trn_shape_unknown(),
              p = trn_shape_of(2, (int64_t)-1, (int64_t)784);
    trn_shape s = trn_shape_scalar();
    assert_string_equal(trn_shape_text(buf, &a), "[32,784]");
    assert_string_equal(trn_shape_text(buf, &p), "[?,784]");
    assert_string_equal(trn_shape_text(buf, &u), "<unknown>");
    assert_string_equal(trn_shape_text(buf, &s), "[]");
    assert_true(trn_shape_compatible(&a, &p) && trn_shape_compatible(&p, &a) && trn_shape_compatible(&u, &a));
    assert_false(trn_shape_compatible(&a, &s));
    assert_false(trn_shape_eq(&a, &p));
    assert_true(trn_shape_eq(&a, &a) && trn_shape_eq(&u, &u));
    assert_true(trn_shape_is_full(&a) && trn_shape_is_full(&s));
    assert_false(trn_shape_is_full(&p) || trn_shape_is_full(&u));
    int64_t n = -7;
    assert_null(trn_shape_count(&n, &a));
    assert_int_equal(n, 32 * 784);
    assert_null(trn_shape_count(&n, &s));
    assert_int_equal(n, 1);
    fails(trn_shape_count(&n, &p), TRN_INVALID_ARGUMENT, "[?,784]");
    fails(trn_shape_count(&n, &u), TRN_INVALID_ARGUMENT, "<unknown>");
    trn_shape big = trn_shape_of(3, (int64_t)1 << 31, (int64_t)1 << 31, (int64_t)2);
    fails(trn_shape_count(&n, &big), TRN_INVALID_ARGUMENT, "2^62");
    trn_shape over = trn_shape_of(2, INT64_MAX, INT64_MAX);
    fails(trn_shape_count(&n, &over), TRN_INVALID_ARGUMENT, "2^62");
    trn_shape zero = trn_shape_of(3, (int64_t)0, INT64_MAX, INT64_MAX);
    assert_null(trn_shape_count(&n, &zero));
    assert_int_equal(n, 0);
    assert_int_equal(n, 0);
    trn_shape wide = {.rank = TRN_MAX_RANK};
    for (int i = 0; i < TRN_MAX_RANK; i++)
        wide.dim[i] = INT64_MAX;
    trn_shape_text(buf, &wide);
    assert_true(strlen(buf) < TRN_SHAPE_TEXT);
    assert_string_equal(buf + strlen(buf) - 5, ",...]");
    wide.rank = TRN_MAX_RANK + 1;
    fails(trn_shape_count(&n, &wide), TRN_INVALID_ARGUMENT, "rank 33");
}

static trn_tensor *iota(int64_t n)
{
    trn_shape s = trn_shape_vector(n);
    trn_tensor *t;
    assert_null(trn_tensor_new(&t, TRN_INT32, &s));
    for (int64_t i = 0; i < n; i++)
        TRN_DATA_MUT(t, int32_t)[i] = (int32_t)i;
    return t;
}

static void new_tensors(void **state)
{
    trn_tensor *t = NULL;
    trn_shape s = trn_shape_of(2, (int64_t)3, (int64_t)4);
    assert_null(trn_tensor_new(&t, TRN_FLOAT, &s));
    assert_null(t->buf);
    assert_int_equal(trn_tensor_count(t), 12);
    assert_int_equal(trn_tensor_bytes(t), 48);
    assert_int_equal((uintptr_t)t->data % 16, 0);
    assert_true(trn_tensor_sole(t));
    trn_tensor *r = trn_tensor_ref(t);
    assert_false(trn_tensor_sole(t));
    trn_tensor_unref(r);
    memset(t->data, 1, 48);
    trn_tensor_unref(t);

    s = trn_shape_vector(100000);
    assert_null(trn_tensor_new(&t, TRN_DOUBLE, &s));
    assert_non_null(t->buf);
    assert_int_equal((uintptr_t)t->data % 64, 0);
    trn_tensor_unref(t);
    trn_tensor_unref(NULL);

    t = NULL;
    fails(trn_tensor_new(&t, (trn_dtype)(TRN_FLOAT + TRN_REF), &s), TRN_INVALID_ARGUMENT, "float_ref");
    fails(trn_tensor_new(&t, TRN_INVALID, &s), TRN_INVALID_ARGUMENT, "dtype 0");
    fails(trn_tensor_new(&t, (trn_dtype)77, &s), TRN_INVALID_ARGUMENT, "dtype 77");
    s = trn_shape_vector(-1);
    fails(trn_tensor_new(&t, TRN_FLOAT, &s), TRN_INVALID_ARGUMENT, "[?]");
    s = trn_shape_vector((int64_t)1 << 61);
    fails(trn_tensor_new(&t, TRN_COMPLEX128, &s), TRN_RESOURCE_EXHAUSTED, "complex128");
    fails(trn_tensor_new(&t, TRN_STRING, &s), TRN_RESOURCE_EXHAUSTED, "string");
    s = trn_shape_vector((int64_t)1 << 50);
    fails(trn_tensor_new(&t, TRN_FLOAT, &s), TRN_RESOURCE_EXHAUSTED, "[1125899906842624]");
    assert_null(t);
    s = trn_shape_vector(0);
    assert_null(trn_tensor_new(&t, TRN_FLOAT, &s));
    assert_int_equal(t->count, 0);
    trn_tensor_unref(t);
    assert_null(trn_tensor_new(&t, TRN_STRING, &s));
    trn_tensor_unref(t);
}

static void views(void **state)
{
    trn_tensor *v, *big = iota(1000), *small = iota(10);
    trn_shape s = trn_shape_of(2, (int64_t)5, (int64_t)100);
    assert_null(trn_tensor_view(&v, big, 500, &s));
    assert_ptr_equal(v->buf, big->buf);
    assert_int_equal(TRN_DATA(v, int32_t)[0], 500);
    assert_false(trn_tensor_sole(v));
    assert_false(trn_tensor_sole(big));
    trn_tensor_unref(big); /* the view keeps the bytes */
    assert_true(trn_tensor_sole(v));
    assert_int_equal(TRN_DATA(v, int32_t)[499], 999);

    trn_tensor *w = (trn_tensor *)1;
    fails(trn_tensor_view(&w, v, 1, &s), TRN_INVALID_ARGUMENT, "[5,100]");
    fails(trn_tensor_view(&w, v, -1, &s), TRN_INVALID_ARGUMENT, "view");
    s = trn_shape_vector(INT64_C(1) << 40);
    fails(trn_tensor_view(&w, v, 0, &s), TRN_INVALID_ARGUMENT, "view");
    assert_ptr_equal(w, (trn_tensor *)1);

    s = trn_shape_vector(4);
    assert_null(trn_tensor_view(&w, small, 6, &s));
    assert_int_equal(TRN_DATA(w, int32_t)[3], 9);
    assert_true(trn_tensor_sole(w) && trn_tensor_sole(small)); /* so neither may see the other's writes */
    TRN_DATA_MUT(w, int32_t)[0] = -1;
    assert_int_equal(TRN_DATA(small, int32_t)[6], 6);
    trn_tensor_unref(w);

    s = trn_shape_of(2, (int64_t)250, (int64_t)1);
    assert_null(trn_tensor_bitcast(&w, v, TRN_INT64, &s));
    assert_int_equal(TRN_DATA(w, int64_t)[0], 500 | (int64_t)501 << 32);
    trn_tensor_unref(w);
    s = trn_shape_vector(249);
    fails(trn_tensor_bitcast(&w, v, TRN_INT64, &s), TRN_INVALID_ARGUMENT, "2000 bytes");
    s = trn_shape_vector(125);
    fails(trn_tensor_bitcast(&w, v, TRN_STRING, &s), TRN_INVALID_ARGUMENT, "string");
    trn_tensor_unref(v);
    trn_tensor_unref(small);
}

static void on_buf(void **state)
{
    trn_buf *b;
    assert_null(trn_buf_new(&b, 100000));
    for (size_t i = 0; i < 100000; i++)
        b->data[i] = (uint8_t)(i * 7);
    trn_tensor *t;
    trn_shape s = trn_shape_vector(1000);
    assert_null(trn_tensor_on_buf(&t, TRN_FLOAT, &s, b, b->data + 8));
    assert_ptr_equal(t->data, b->data + 8);
    assert_ptr_equal(t->buf, b);
    assert_false(trn_buf_sole(b));
    trn_tensor_unref(t);
    assert_true(trn_buf_sole(b));
    assert_null(trn_tensor_on_buf(&t, TRN_FLOAT, &s, b, b->data + 3)); /* unaligned: copied */
    assert_ptr_not_equal(t->buf, b);
    assert_memory_equal(t->data, b->data + 3, 4000);
    trn_tensor_unref(t);
    s = trn_shape_vector(3);
    assert_null(trn_tensor_on_buf(&t, TRN_INT8, &s, b, b->data + 99997));
    assert_null(t->buf);
    assert_memory_equal(t->data, b->data + 99997, 3);
    trn_tensor_unref(t);
    fails(trn_tensor_on_buf(&t, TRN_INT8, &s, b, b->data + 99998), TRN_INVALID_ARGUMENT, "100000");
    fails(trn_tensor_on_buf(&t, TRN_INT8, &s, b, b->data - 1), TRN_INVALID_ARGUMENT, "int8[3]");
    fails(trn_tensor_on_buf(&t, TRN_INT8, &s, b, b->data + 200000), TRN_INVALID_ARGUMENT, "int8[3]");
    fails(trn_tensor_on_buf(&t, TRN_STRING, &s, b, b->data), TRN_INVALID_ARGUMENT, "string");
    trn_buf_unref(b);
}

static void strings(void **state)
{
    trn_str s = {0};
    assert_null(trn_str_set(&s, "short", 5));
    assert_ptr_equal(trn_str_p(&s), s.in);
    assert_null(trn_str_set(&s, "exactly12byt", 12));
    assert_ptr_equal(trn_str_p(&s), s.in);
    assert_null(trn_str_set(&s, "a string on the heap", 20));
    assert_memory_equal(trn_str_p(&s), "a string on the heap", 20);
    assert_null(trn_str_set(&s, trn_str_p(&s) + 2, 6)); /* a part of itself */
    assert_memory_equal(trn_str_p(&s), "string", 6);
    assert_null(trn_str_set(&s, "a string on the heap", 20));
    assert_null(trn_str_set(&s, trn_str_p(&s) + 2, 18));
    assert_memory_equal(trn_str_p(&s), "string on the heap", 18);
    assert_null(trn_str_set(&s, trn_str_p(&s), s.len));
    assert_memory_equal(trn_str_p(&s), "string on the heap", 18);
    fails(trn_str_set(&s, "x", (size_t)UINT32_MAX + 1), TRN_INVALID_ARGUMENT, "4 GiB");
    assert_int_equal(s.len, 18);
    char *q;
    assert_null(trn_str_alloc(&q, &s, 30));
    memset(q, 'z', 30);
    trn_str_fini(&s);
    assert_int_equal(s.len, 0);

    const char *words[] = {"a", "", "a somewhat longer word"};
    int64_t three = 3;
    trn_tensor *t = trn_tensor_from(TRN_STRING, 1, &three, words), *c, *v;
    size_t n;
    assert_memory_equal(trn_tensor_str_at(t, 2, &n), words[2], strlen(words[2]));
    assert_int_equal(n, strlen(words[2]));
    assert_int_equal(trn_tensor_total_bytes(t), 48 + 22);
    assert_null(trn_tensor_str_at(t, 3, &n));
    assert_int_equal(n, 0);
    assert_null(trn_tensor_copy(&c, t));
    assert_true(trn_str_eq(TRN_DATA(c, trn_str) + 2, TRN_DATA(t, trn_str) + 2));
    assert_ptr_not_equal(trn_tensor_str_at(c, 2, NULL), trn_tensor_str_at(t, 2, NULL));
    trn_shape one = trn_shape_vector(1);
    assert_null(trn_tensor_view(&v, t, 2, &one));
    trn_tensor_unref(t); /* the view keeps the strings */
    assert_memory_equal(trn_tensor_str_at(v, 0, NULL), words[2], 22);
    trn_tensor_unref(v);
    assert_null(trn_tensor_str_put(c, 0, "another rather long word", 24));
    fails(trn_tensor_str_put(c, 3, "x", 1), TRN_OUT_OF_RANGE, "element 3");
    assert_null(trn_tensor_copy_elems(c, 1, c, 0, 2)); /* overlapping */
    assert_memory_equal(trn_tensor_str_at(c, 1, NULL), "another rather long word", 24);
    assert_int_equal(TRN_DATA(c, trn_str)[2].len, 0);
    trn_tensor_unref(c);
    t = trn_tensor_str("x\0y", 3);
    assert_memory_equal(trn_tensor_str_at(t, 0, &n), "x\0y", 3);
    trn_tensor_unref(t);
}

static int res_freed;
static void res_unref(void *p)
{
    (void)p;
    res_freed++;
}
typedef struct thing {
    trn_variant v;
    int *freed;
} thing;
static void thing_free(void *p)
{
    ++*((thing *)p)->freed;
    free(p);
}

static void handles(void **state)
{
    trn_shape two = trn_shape_vector(2), s = trn_shape_scalar();
    trn_tensor *t, *c;
    assert_null(trn_tensor_new(&t, TRN_RESOURCE, &two));
    assert_null(TRN_DATA(t, trn_handle *)[1]);
    trn_handle *h = trn_handle_new("/job:ps/task:0", "c", NULL, "Var");
    assert_string_equal(h->name, "");
    h->res = &res_freed;
    h->res_unref = res_unref;
    TRN_DATA_MUT(t, trn_handle *)[0] = h;
    assert_null(trn_tensor_copy(&c, t));
    assert_ptr_equal(TRN_DATA(c, trn_handle *)[0], h);
    trn_tensor_unref(t);
    assert_int_equal(res_freed, 0);
    assert_null(trn_tensor_copy_elems(c, 1, c, 0, 1));
    trn_tensor_unref(c);
    assert_int_equal(res_freed, 1);

    static const trn_variant_type type = {"thing", thing_free};
    int freed = 0;
    thing *x = trn_xalloc(sizeof *x);
    *x = (thing){{.ref = 1, .type = &type}, &freed};
    assert_null(trn_tensor_new(&t, TRN_VARIANT, &s));
    TRN_DATA_MUT(t, trn_variant *)[0] = &x->v;
    trn_sb sb = {0};
    trn_tensor_text(&sb, t, 3);
    assert_string_equal(sb.p, "variant[] <thing>");
    trn_sb_fini(&sb);
    assert_null(trn_tensor_copy(&c, t));
    trn_tensor_unref(t);
    assert_int_equal(freed, 0);
    trn_tensor_unref(c);
    assert_int_equal(freed, 1);
}

static void copying(void **state)
{
    trn_tensor *a = iota(200), *b;
    assert_null(trn_tensor_copy(&b, a));
    assert_memory_equal(a->data, b->data, 800);
    assert_ptr_not_equal(a->data, b->data);
    assert_null(trn_tensor_copy_elems(b, 1, b, 0, 199));
    assert_int_equal(TRN_DATA(b, int32_t)[199], 198);
    fails(trn_tensor_copy_elems(b, 1, a, 0, 200), TRN_INVALID_ARGUMENT, "200");
    fails(trn_tensor_copy_elems(b, INT64_MAX, a, 0, 2), TRN_INVALID_ARGUMENT, "2 elements");
    fails(trn_tensor_copy_elems(b, 0, a, 0, -1), TRN_INVALID_ARGUMENT, "-1");
    trn_tensor *f = trn_tensor_f32(1);
    fails(trn_tensor_copy_elems(f, 0, a, 0, 1), TRN_INVALID_ARGUMENT, "int32 over type float");
    trn_tensor_unref(f);
    trn_tensor_unref(a);
    trn_tensor_unref(b);
}

static void text_is(trn_tensor *t, int max, const char *want)
{
    trn_sb s = {0};
    trn_tensor_text(&s, t, max);
    assert_string_equal(s.p, want);
    trn_sb_fini(&s);
    trn_tensor_unref(t);
}

static void texts(void **state)
{
    text_is(trn_tensor_f32(1.5f), 3, "float[] 1.5");
    text_is(trn_tensor_f64(-0.25), 3, "double[] -0.25");
    text_is(trn_tensor_i64(INT64_MIN), 3, "int64[] -9223372036854775808");
    text_is(trn_tensor_bool(true), 3, "bool[] true");
    text_is(trn_tensor_str("a\"\n\x01", 4), 3, "string[] \"a\\\"\\n\\x01\"");
    text_is(iota(5), 3, "int32[5] 0 1 2 ...");
    text_is(iota(0), 3, "int32[0]");
    text_is(trn_tensor_from(TRN_HALF, 0, NULL, &(uint16_t){0x3c00}), 1, "half[] 1");
    text_is(trn_tensor_from(TRN_COMPLEX64, 0, NULL, (float[]){1, -2}), 1, "complex64[] (1,-2)");
    assert_null(trn_tensor_from(TRN_FLOAT, 40, NULL, NULL));
    assert_null(trn_tensor_from(TRN_FLOAT, 1, &(int64_t){-1}, NULL));
}

/* Every half goes to float and back; every midpoint and its neighbours round to even, as long double arithmetic says. */
static void halfs(void **state)
{
    for (uint32_t i = 0; i < 0x10000; i++) {
        trn_half h = {(uint16_t)i};
        float f = trn_half_to_f32(h);
        int exp = i >> 10 & 31, man = i & 0x3ff;
        if (exp == 31 && man) {
            assert_true(isnan(f));
            assert_true(isnan(trn_half_to_f32(trn_half_from_f32(f))));
            continue;
        }
        double want = exp == 31 ? INFINITY : exp ? ldexp(1024 + man, exp - 25) : ldexp(man, -24);
        assert_true((double)f == (i & 0x8000 ? -want : want) && !!signbit(f) == !!(i & 0x8000));
        assert_int_equal(trn_half_from_f32(f).bits, i);
        if (exp == 31 || (i & 0x7fff) == 0x7bff)
            continue;
        float up = trn_half_to_f32((trn_half){(uint16_t)(i + 1)}), mid = (f + up) / 2; /* exact in float */
        assert_int_equal(trn_half_from_f32(mid).bits, i + (i & 1));
        assert_int_equal(trn_half_from_f32(nextafterf(mid, f)).bits, i);
        assert_int_equal(trn_half_from_f32(nextafterf(mid, up)).bits, i + 1);
    }
    assert_int_equal(trn_half_from_f32(65519.99f).bits, 0x7bff);
    assert_int_equal(trn_half_from_f32(65520.0f).bits, 0x7c00);
    assert_int_equal(trn_half_from_f32(-1e30f).bits, 0xfc00);
    assert_int_equal(trn_half_from_f32(1e-30f).bits, 0);

    for (uint32_t i = 0; i < 0x10000; i++) {
        trn_bf16 h = {(uint16_t)i};
        float f = trn_bf16_to_f32(h);
        if (isnan(f)) {
            assert_int_equal(trn_bf16_from_f32(f).bits, 0x7fc0 | (i & 0x8000));
            continue;
        }
        assert_int_equal(trn_bf16_from_f32(f).bits, i);
    }
    assert_int_equal(trn_bf16_from_f32(1.0f + 0x1p-8f).bits, 0x3f80);           /* midpoint, even below */
    assert_int_equal(trn_bf16_from_f32(1.0f + 0x1p-7f + 0x1p-8f).bits, 0x3f82); /* midpoint, even above */
    assert_int_equal(trn_bf16_from_f32(3.4e38f).bits, 0x7f80);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dtypes), cmocka_unit_test(shapes),  cmocka_unit_test(new_tensors), cmocka_unit_test(views),
        cmocka_unit_test(on_buf), cmocka_unit_test(strings), cmocka_unit_test(handles),     cmocka_unit_test(copying),
        cmocka_unit_test(texts),  cmocka_unit_test(halfs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
