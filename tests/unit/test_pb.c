/* proto/: the checked way into protobuf-c, and the wire by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "check.h"
#include "proto/pb.h"
#include "proto/pbw.h"
#include "proto/tensorflow.pb-c.h"

#include <stdlib.h>

#define GRAPH tensorflow__graph_def__descriptor
#define TENSOR tensorflow__tensor_proto__descriptor

static void bad(const ProtobufCMessageDescriptor *d, const void *p, size_t n, const char *part)
{
    uint8_t *exact = malloc(n ? n : 1);
    memcpy(exact, p, n);
    trn_arena *a = trn_arena_new();
    ProtobufCMessage *m = NULL;
    fails(trn_pb_unpack(&m, a, d, exact, n), TRN_INVALID_ARGUMENT, part);
    assert_null(m);
    trn_arena_free(a);
    free(exact);
}
#define BAD(d, bytes, part) bad(&(d), bytes, sizeof bytes - 1, part)

static void round_trip(void **state)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__GraphDef g = TENSORFLOW__GRAPH_DEF__INIT, *back;
    Tensorflow__NodeDef node = TENSORFLOW__NODE_DEF__INIT, *nodes[] = {&node, &node};
    Tensorflow__AttrValue v = TENSORFLOW__ATTR_VALUE__INIT;
    Tensorflow__NodeDef__AttrEntry e = TENSORFLOW__NODE_DEF__ATTR_ENTRY__INIT, *entries[] = {&e};
    node.name = "a";
    node.op = "Const";
    e.key = "n";
    e.value = &v;
    v.value_case = TENSORFLOW__ATTR_VALUE__VALUE_I;
    v.i = -42;
    node.n_attr = 1;
    node.attr = entries;
    g.n_node = 2;
    g.node = nodes;
    trn_sb s = {0};
    trn_sb_adds(&s, "x"); /* appends */
    trn_pb_pack(&s, &g.base);
    assert_int_equal(s.p[0], 'x');
    assert_null(TRN_PB_UNPACK(&back, a, GRAPH, (uint8_t *)s.p + 1, s.n - 1));
    assert_int_equal(back->n_node, 2);
    assert_string_equal(back->node[1]->op, "Const");
    assert_int_equal(back->node[1]->attr[0]->value->i, -42);
    trn_buf *b;
    assert_null(trn_pb_pack_buf(&b, &g.base));
    assert_int_equal(b->size, s.n - 1);
    assert_memory_equal(b->data, s.p + 1, b->size);
    trn_buf_unref(b);
    trn_sb_fini(&s);
    assert_null(TRN_PB_UNPACK(&back, a, GRAPH, NULL, 0));
    assert_int_equal(back->n_node, 0);
    trn_arena_free(a);
}

static void malformed(void **state)
{
    BAD(GRAPH, "\x0a", "varint");              /* a tag, no length */
    BAD(GRAPH, "\x0a\x05zz", "GraphDef.node"); /* longer than the message */
    BAD(GRAPH, "\x0a\x05zz", "beyond");
    BAD(GRAPH, "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "beyond");
    BAD(GRAPH, "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "more than 10 bytes");
    BAD(GRAPH, "\x08\x01", "GraphDef.node: field 1 is sent as varint");
    BAD(GRAPH, "\x0a\x02\x0a\x05", "NodeDef.name"); /* inside a node */
    BAD(GRAPH, "\x0b", "groups");
    BAD(GRAPH, "\x0f", "groups");
    BAD(GRAPH, "\x00\x00", "number");
    BAD(GRAPH, "\x80\x80\x80\x80\x80\x80\x01", "number");
    BAD(GRAPH, "\xff\xff", "end inside a varint");
    BAD(GRAPH, "\xf9\x07zzzz", "(unknown field)"); /* field 127, 8 bytes announced, 4 there */
    BAD(GRAPH,
        "\x0a\x05\x0a\x03"
        "a\0b",
        "zero byte");                              /* NodeDef.name */
    BAD(GRAPH, "\x22\x00\x22\x00", "twice");       /* GraphDef.versions */
    BAD(TENSOR, "\x2a\x05zzzzz", "multiple of 4"); /* packed floats */
    BAD(TENSOR, "\x3a\x02\x01\x80", "varint");     /* packed ints */
    BAD(TENSOR, "\x2d\x01\x02", "32-bit");         /* one float, unpacked */
    BAD(TENSOR, "\x18\x80", "varint");

    trn_arena *a = trn_arena_new();
    Tensorflow__TensorProto *t;
    /* Packed, unpacked and unknown fields side by side are fine. */
    static const char ok[] = "\x3a\x02\x01\x02\x38\x03\xf8\x07\x01\xfa\x07\x02zz\xfd\x07zzzz\xf9\x07zzzzzzzz";
    assert_null(TRN_PB_UNPACK(&t, a, TENSOR, (const uint8_t *)ok, sizeof ok - 1));
    assert_int_equal(t->n_int_val, 3);
    assert_int_equal(t->int_val[2], 3);
    trn_arena_free(a);
}

/* TensorProto { variant_val { tensors { variant_val { ... */
static uint8_t *nested(size_t *n, int depth)
{
    uint8_t *buf = malloc((size_t)depth * 8 + 1), *end = buf + (size_t)depth * 8, *p = end;
    for (int i = depth - 1; i > 0; i--) {
        uint8_t head[16];
        size_t h = trn_pbw_varint_to(head, (i % 2 ? 15 : 3) << 3 | TRN_PB_BYTES);
        h += trn_pbw_varint_to(head + h, (uint64_t)(end - p));
        p -= h;
        memcpy(p, head, h);
    }
    *n = (size_t)(end - p);
    memmove(buf, p, *n);
    return buf;
}

static void depth(void **state)
{
    size_t n;
    trn_arena *a = trn_arena_new();
    ProtobufCMessage *m;
    uint8_t *p = nested(&n, TRN_PB_MAX_DEPTH);
    assert_null(trn_pb_unpack(&m, a, &TENSOR, p, n));
    free(p);
    p = nested(&n, TRN_PB_MAX_DEPTH + 1);
    fails(trn_pb_unpack(&m, a, &TENSOR, p, n), TRN_INVALID_ARGUMENT, "nested more than 64");
    free(p);
    p = nested(&n, 100000);
    fails(trn_pb_unpack(&m, a, &TENSOR, p, n), TRN_INVALID_ARGUMENT, "nested");
    free(p);
    trn_arena_free(a);
}

/* A million empty nodes in two million bytes would take 200 MB. */
static void growth(void **state)
{
    size_t n = 2000000;
    uint8_t *p = calloc(1, n);
    for (size_t i = 0; i < n; i += 2)
        p[i] = 0x0a;
    trn_arena *a = trn_arena_new();
    ProtobufCMessage *m;
    fails(trn_pb_unpack(&m, a, &GRAPH, p, n), TRN_RESOURCE_EXHAUSTED, "GraphDef");
    assert_true(trn_arena_bytes(a) < 10000);
    assert_null(trn_pb_unpack(&m, a, &GRAPH, p, 20000));
    trn_arena_free(a);
    free(p);
}

static void by_hand(void **state)
{
    trn_sb s = {0};
    trn_pbw_varint(&s, 1, UINT64_MAX);
    trn_pbw_varint(&s, 200, 0); /* left out */
    trn_pbw_fixed32(&s, 3, 0xdeadbeef);
    trn_pbw_fixed64(&s, 4, 0x0123456789abcdef);
    trn_pbw_bytes(&s, 536870911, "a\0b", 3);
    trn_pbw_str(&s, 6, "text");
    trn_pbw_str(&s, 6, "");
    trn_pbw_head(&s, 7, 2);
    trn_pbw_varint(&s, 1, 5);
    trn_pbr r = trn_pbr_init(s.p, s.n), sub;
    assert_true(trn_pbr_next(&r) && r.field == 1 && r.type == TRN_PB_VARINT && r.v == UINT64_MAX);
    assert_true(trn_pbr_next(&r) && r.field == 3 && r.type == TRN_PB_FIXED32 && r.v == 0xdeadbeef);
    assert_true(trn_pbr_next(&r) && r.field == 4 && r.type == TRN_PB_FIXED64 && r.v == 0x0123456789abcdef);
    assert_true(trn_pbr_next(&r) && r.field == 536870911 && r.type == TRN_PB_BYTES && r.n == 3 && r.b[2] == 'b');
    assert_true(trn_pbr_next(&r) && r.field == 6 && r.n == 4);
    assert_true(trn_pbr_next(&r) && r.field == 7 && r.n == 2);
    sub = trn_pbr_init(r.b, r.n);
    assert_true(trn_pbr_next(&sub) && sub.v == 5);
    assert_false(trn_pbr_next(&sub) || trn_pbr_next(&r));
    assert_false(r.bad || sub.bad);
    /* Cut anywhere, a reader stops inside and says why; it ends in peace only between fields. */
    int peace = 0;
    for (size_t cut = 0; cut < s.n; cut++) {
        uint8_t *exact = malloc(cut ? cut : 1);
        memcpy(exact, s.p, cut);
        r = trn_pbr_init(exact, cut);
        while (trn_pbr_next(&r))
            ;
        assert_true(r.bad ? r.why != NULL : r.p == r.end);
        peace += !r.bad;
        free(exact);
    }
    assert_int_equal(peace, 6);
    trn_sb_fini(&s);
    for (int bits = 0; bits < 64; bits++) {
        uint8_t buf[TRN_PB_VARINT_MAX];
        uint64_t x = (uint64_t)1 << bits;
        assert_int_equal(trn_pbw_varint_to(buf, x), trn_pbw_varint_size(x));
        assert_int_equal(trn_pbw_varint_to(buf, x - 1), trn_pbw_varint_size(x - 1));
    }
    trn_pbw_bytes(&s, 16, "abc", 3);
    assert_int_equal(s.n, trn_pbw_bytes_size(16, 3));
    trn_sb_fini(&s);
    r = trn_pbr_init(NULL, 0);
    assert_false(trn_pbr_next(&r) || r.bad);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip), cmocka_unit_test(malformed), cmocka_unit_test(depth),
        cmocka_unit_test(growth),     cmocka_unit_test(by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
