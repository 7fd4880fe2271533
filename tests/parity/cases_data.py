"""Parsing: Example and SequenceExample protos, tensors and sparse tensors as strings, raw and compressed bytes."""
import gzip
import zlib

import numpy as np
import tensorflow as tf

from cases_array import i32
from cases_string import s
from kernels import Case as C
from kernels import run_tf

KINDS = {tf.float32: np.float32, tf.int64: np.int64, tf.string: object}


def i64(v):
    return np.array(v, np.int64)


def strs(v):
    a = np.empty(len(v), dtype=object)
    a[:] = v
    return a


def feature(v, packed=True):
    f = tf.train.Feature()
    if v is None:
        return f
    kind, v = v
    if kind == tf.string:
        f.bytes_list.value.extend(v)
        f.bytes_list.SetInParent()
    elif kind == tf.float32:
        f.float_list.value.extend(v)
        f.float_list.SetInParent()
    else:
        f.int64_list.value.extend(v)
        f.int64_list.SetInParent()
    return f


def values(rng, kind, n):
    if kind == tf.string:
        return (kind, [bytes(rng.randint(97, 123, rng.randint(0, 20)).tolist()) for _ in range(n)])
    if kind == tf.float32:
        return (kind, rng.standard_normal(n).astype(np.float32).tolist())
    return (kind, [int(x) for x in rng.randint(-5, 2 ** 40, n)])


def example(fs):
    return tf.train.Example(features=tf.train.Features(feature={k: feature(v) for k, v in fs.items()})).SerializeToString()


def sequence(ctx, lists):
    return tf.train.SequenceExample(
        context=tf.train.Features(feature={k: feature(v) for k, v in ctx.items()}),
        feature_lists=tf.train.FeatureLists(feature_list={k: tf.train.FeatureList(feature=[feature(x) for x in v]) for k, v in lists.items()})).SerializeToString()


def default(kind, shape, value=None):
    if kind == tf.string:
        a = np.empty(shape, dtype=object)
        a.fill(b"def" if value is None else value)
        return a
    return np.full(shape, 7 if value is None else value, KINDS[kind])


def old_style():
    """Unpacked lists, as old writers made them: f = [1.5, 2.5], i = [3, -1]."""
    def ld(tag, b):
        return bytes([tag, len(b)]) + b
    floats = b"".join(b"\x0d" + np.float32(v).tobytes() for v in (1.5, 2.5))
    ints = b"\x08\x03" + b"\x08" + b"\xff" * 9 + b"\x01"
    entries = ld(0x0A, ld(0x0A, b"f") + ld(0x12, ld(0x12, floats))) + ld(0x0A, ld(0x0A, b"i") + ld(0x12, ld(0x1A, ints)))
    return ld(0x0A, entries)


def batches(rng):
    """Several kinds of batch: lists of examples over the keys a, b, c, d of float, int64, string and variable length."""
    def ex(full=True):
        fs = {"a": values(rng, tf.float32, 2), "b": values(rng, tf.int64, 1), "c": values(rng, tf.string, rng.randint(0, 4)), "d": values(rng, tf.int64, 3 * rng.randint(0, 3)),
              "other": values(rng, tf.string, 2)}
        if not full:
            fs = {k: v for k, v in fs.items() if rng.randint(2)}
        return example(fs)
    yield [ex() for _ in range(3)]
    yield [ex(False) for _ in range(5)]
    yield [ex()]
    yield []
    yield [b""]
    yield [example({"a": None, "c": None, "d": None})]
    yield [example({"c": (tf.int64, [1])})]
    yield [example({"a": (tf.float32, [1.0])})]
    yield [example({"a": (tf.float32, [1.0, 2.0, 3.0])})]
    yield [example({"a": (tf.int64, [1, 2])})]
    yield [example({"d": (tf.int64, [1, 2])})]
    yield [b"not a proto"]
    yield [example({"a": values(rng, tf.float32, 2)}) + example({"a": values(rng, tf.float32, 2), "c": values(rng, tf.string, 1)})]


def cases_example(rng, quick):
    for rnd in range(2 if quick else 20):
        for b in batches(rng):
            dense = [default(tf.float32, [2]), default(tf.int64, [1])]
            var = [default(tf.int64, [1], -1)]
            for required in (False, True):
                d = [np.zeros([0], np.float32), dense[1]] if required else dense
                yield C("ParseExample", [strs(b), strs([]), [s(b"c")], [s(b"a"), s(b"b")], d], sparse_types=[tf.string], dense_shapes=[[2], [1]])
                yield C("ParseExampleV2", [strs(b), strs([]), strs([b"c"]), strs([b"a", b"b"]), strs([]), d], num_sparse=1, sparse_types=[tf.string], ragged_value_types=[],
                        ragged_split_types=[], dense_shapes=[[2], [1]])
            yield C("ParseExample", [strs(b), strs([b"n%d" % i for i in range(len(b))]), [s(b"c"), s(b"a")], [s(b"d")], var], sparse_types=[tf.string, tf.float32], dense_shapes=[[None, 3]])
            for split in (tf.int32, tf.int64):
                yield C("ParseExampleV2", [strs(b), strs([]), strs([]), strs([b"d"]), strs([b"c", b"a"]), var], num_sparse=0, sparse_types=[], ragged_value_types=[tf.string, tf.float32],
                        ragged_split_types=[split, split], dense_shapes=[[None, 3]])
            for x in b[:2]:
                one = s(x)
                yield C("ParseSingleExample", [one, dense], num_sparse=1, sparse_keys=[b"c"], dense_keys=[b"a", b"b"], sparse_types=[tf.string], dense_shapes=[[2], [1]])
                yield C("ParseSingleExample", [one, var], num_sparse=2, sparse_keys=[b"c", b"a"], dense_keys=[b"d"], sparse_types=[tf.string, tf.float32], dense_shapes=[[None, 3]])
                yield C("ParseExampleV2", [one, s([]), strs([b"c"]), strs([b"a", b"b"]), strs([b"d"]), dense], num_sparse=1, sparse_types=[tf.string], ragged_value_types=[tf.int64],
                        ragged_split_types=[tf.int64], dense_shapes=[[2], [1]])
    yield C("ParseExample", [strs([old_style()] * 2), strs([]), [s(b"i")], [s(b"f")], [default(tf.float32, [2])]], sparse_types=[tf.int64], dense_shapes=[[2]])
    yield C("ParseExample", [strs([b"\x0a\xff\xff\xff\xff\x07"]), strs([]), [s(b"i")], [], []], sparse_types=[tf.int64], dense_shapes=[], code=3)  # TensorFlow takes it for empty
    good = [example({"a": (tf.float32, [1, 2])})]
    d = [default(tf.float32, [2])]
    yield C("ParseExample", [s(good[0]), strs([]), [], [s(b"a")], d], sparse_types=[], dense_shapes=[[2]])
    yield C("ParseExample", [strs(good), strs([b"x", b"y"]), [], [s(b"a")], d], sparse_types=[], dense_shapes=[[2]])
    yield C("ParseExample", [strs(good), strs([]), [], [s(b"a")], [default(tf.float32, [3])]], sparse_types=[], dense_shapes=[[2]])
    yield C("ParseExample", [strs(good), strs([]), [], [s(b"a")], d], sparse_types=[], dense_shapes=[[None]])
    yield C("ParseExample", [strs(good), strs([]), [], [s(b"a")], [default(tf.float32, [])]], sparse_types=[], dense_shapes=[[]])
    yield C("ParseExampleV2", [strs(good), strs([]), strs([]), strs([b"a", b"b"]), strs([]), d], num_sparse=0, sparse_types=[], ragged_value_types=[], ragged_split_types=[], dense_shapes=[[2]])
    yield C("ParseExampleV2", [strs(good).reshape(1, 1), strs([]), strs([]), strs([b"a"]), strs([]), d], num_sparse=0, sparse_types=[], ragged_value_types=[], ragged_split_types=[], dense_shapes=[[2]])


def cases_sequence(rng, quick):
    def seq(full=True):
        ctx = {"n": values(rng, tf.int64, 2), "w": values(rng, tf.string, rng.randint(0, 3))}
        lists = {"x": [values(rng, tf.float32, 2) for _ in range(rng.randint(0, 4))], "t": [values(rng, tf.string, rng.randint(0, 3)) for _ in range(rng.randint(0, 4))],
                 "i": [values(rng, tf.int64, rng.randint(0, 3)) for _ in range(rng.randint(0, 3))], "other": [values(rng, tf.int64, 1)]}
        if not full:
            ctx = {k: v for k, v in ctx.items() if rng.randint(2)}
            lists = {k: v for k, v in lists.items() if rng.randint(2)}
        return sequence(ctx, lists)

    groups = [[seq() for _ in range(3)], [seq(False) for _ in range(4)], [seq()], [], [b""], [b"garbage"], [sequence({"n": (tf.int64, [1])}, {})],
              [sequence({"n": (tf.float32, [1.0, 2.0])}, {})], [sequence({}, {"x": [(tf.float32, [1.0])]})], [sequence({}, {"x": [(tf.int64, [1, 2])]})],
              [sequence({}, {"t": [None, (tf.string, [b"q"])]})]]
    for rnd in range(1 if quick else 10):
        for b in groups:
            for empty in ([], [b"x"]):
                attrs = dict(context_sparse_types=[tf.string], context_dense_shapes=[[2]], feature_list_sparse_types=[tf.string, tf.int64], feature_list_dense_types=[tf.float32],
                             feature_list_dense_shapes=[[2]])
                yield C("ParseSequenceExample", [strs(b), strs([]), [default(tf.int64, [2])]], feature_list_dense_missing_assumed_empty=empty, context_sparse_keys=[b"w"],
                        context_dense_keys=[b"n"], feature_list_sparse_keys=[b"t", b"i"], feature_list_dense_keys=[b"x"], Ncontext_sparse=1, Ncontext_dense=1, Nfeature_list_sparse=2,
                        Nfeature_list_dense=1, **attrs)
                yield C("ParseSequenceExampleV2", [strs(b), strs([]), strs([]), strs([b"n"]), strs([b"w"]), strs([b"i"]), strs([b"x"]), strs([b"t"]), np.array([bool(empty)]),
                                                   [default(tf.int64, [2])]], Ncontext_sparse=0, context_sparse_types=[], context_ragged_value_types=[tf.string],
                        context_ragged_split_types=[tf.int64], context_dense_shapes=[[2]], Nfeature_list_sparse=1, Nfeature_list_dense=1, feature_list_dense_types=[tf.float32],
                        feature_list_sparse_types=[tf.int64], feature_list_ragged_value_types=[tf.string], feature_list_ragged_split_types=[tf.int32], feature_list_dense_shapes=[[2]])
                for x in b[:1]:
                    yield C("ParseSingleSequenceExample", [s(x), strs(empty), [s(b"w")], [s(b"n")], [s(b"t"), s(b"i")], [s(b"x")], [default(tf.int64, [2])], s(b"name")], **attrs)


def cases_tensor(rng, quick):
    for dt in (np.float32, np.float64, np.int32, np.int64, np.uint8, np.bool_, np.float16, np.complex64):
        for shape in ([], [0], [3], [2, 0, 4], [2, 3]):
            x = (rng.standard_normal(shape) * 10).astype(dt)
            yield C("SerializeTensor", [np.asarray(x)])
            yield C("ParseTensor", [s(tf.io.serialize_tensor(tf.constant(x)).numpy())], out_type=tf.as_dtype(dt))
    for x in ([b"a", b"", b"c" * 300], b"one", []):
        yield C("SerializeTensor", [s(x)])
        yield C("ParseTensor", [s(tf.io.serialize_tensor(tf.constant(x, tf.string)).numpy())], out_type=tf.string)
    yield C("ParseTensor", [s(tf.io.serialize_tensor(tf.constant(1)).numpy())], out_type=tf.float32)
    yield C("ParseTensor", [s(b"garbage")], out_type=tf.float32)
    yield C("ParseTensor", [s([b"a"])], out_type=tf.float32)


def cases_json(rng, quick):
    from google.protobuf import json_format

    def one(f):
        return '{"features": {"feature": {"a": %s}}}' % f

    def value(kind, v):
        return one('{"%s": {"value": %s}}' % (kind, v))

    for n in range(4):
        b = [tf.train.Example.FromString(example({"a": values(rng, tf.float32, n), "b": values(rng, tf.int64, n), "c": values(rng, tf.string, n)})) for _ in range(n)]
        text = [json_format.MessageToJson(x, preserving_proto_field_name=i % 2 == 1) for i, x in enumerate(b)]
        yield C("DecodeJSONExample", [strs([t.encode() for t in text])])
    good = ["{}", '{"features": null}', '{"features": {}}', '{"features": {"feature": {}}}', '{"features": {"feature": null}}', one("{}"), one("null"), one('{"bytesList": {}}'),
            one('{"bytesList": null}'), one('{"int64List": null, "floatList": {"value": [1]}}'), '{"features": {"feature": {"": {}, "\\u00e9": {}, "\\ud83d\\ude00": {}}}}']
    bytes_ = ["[]", "null", "[null]", '["aGk=", "aGk", "", "_-8", "/+8="]', '"aGk="', '["a"]', '["a b="]', '["aGl="]', '["aGk=="]', '[" aGk="]', '["aGk=aGk="]', '["===="]', '["+_8="]', "[1]", '["\\u0000aaa"]']
    floats = ['[1, 2.5, -0.0, 0, 1e10, 16777217, 0.1, 1e-50, "3.5", "1e3", "NaN", "Infinity", "-Infinity", "0x10"]', "1", "[[1], [], [[2]]]", "[1e39]", '["1e39"]', '["nan"]', '["inf"]', '["x"]', '[" 1"]',
              '["1 "]', '[""]', "[true]", "[3.4028235677973366e+38]", "[1e400]", "[NaN]", "[{}]", "[+1]"]
    ints = ['[1, "2", -3, "-4", 0, 9223372036854775807, "9223372036854775807", -9223372036854775808, 1.0, 1e2, 9.2e18, "+1", "01"]', "7", "{}", "[9223372036854775808]", '["9223372036854775808"]', "[1.5]",
            '["1.0"]', '["1e2"]', '[""]', '[" 1"]', '["1 "]', '["0x1"]', "[true]", "[9.3e18]", "[01]", "[1 2]", '["-"]']
    bad = ["", "  ", "null", "[]", "1", '"x"', "garbage", "{} x", '{"features"', '{"features": {}', '{"x": 1}', '{"features": {"x": 1}}', '{"features": []}', '{"features": 1}', '{"features": {"feature": []}}',
           one("1"), one("[]"), one('{"x": 1}'), one('{"floatList": [1]}'), one('{"floatList": 1}'), one('{"floatList": {"value": [1], "y": 2}}'), one('{"int64List": {}, "floatList": {}}'),
           '{"features": {"feature": {"a": {}, "a": {}}}}', '{"features": {"feature": {"\\ud83d": {}}}}', "[" * 100000]
    lists = [value(kind, v) for kind, vs in (("bytesList", bytes_), ("floatList", floats), ("int64List", ints)) for v in vs]
    for t in good + bad + lists:
        yield C("DecodeJSONExample", [s(t.encode())], code=3 if t.startswith("[[[") else None)
    yield C("DecodeJSONExample", [strs([t.encode() for t in good]).reshape(1, -1)])
    yield C("DecodeJSONExample", [strs([])])


def cases_sparse_strings(rng, quick):
    sp = [([[0, 1], [1, 0], [3, 2]], [4, 3]), (np.zeros([0, 2]), [2, 3]), ([[0, 0, 0], [2, 1, 1]], [3, 2, 2])]
    for ind, shape in sp:
        ind = i64(ind)
        for v in (np.arange(len(ind), dtype=np.float32), np.arange(len(ind)), strs([b"v%d" % i for i in range(len(ind))])):
            yield C("SerializeSparse", [ind, v, i64(shape)])
            yield C("SerializeManySparse", [ind, v, i64(shape)])
            vt = tf.constant(v.tolist(), tf.string, shape=[len(ind)]) if v.dtype == object else tf.constant(v)
            st = tf.SparseTensor(tf.constant(ind), vt, tf.constant(i64(shape)))
            dt = vt.dtype
            one = np.array(tf.io.serialize_sparse(st).numpy(), dtype=object)
            many = np.array(tf.io.serialize_many_sparse(st).numpy(), dtype=object)
            yield C("DeserializeSparse", [one], dtype=dt)
            yield C("DeserializeSparse", [many], dtype=dt)
            yield C("DeserializeSparse", [np.stack([one, one])[None]], dtype=dt)
            yield C("DeserializeManySparse", [many], dtype=dt)
            yield C("DeserializeManySparse", [one], dtype=dt)
            yield C("DeserializeSparse", [one], dtype=tf.int8)
    yield C("SerializeManySparse", [i64([[5, 0]]), np.array([1.0]), i64([2, 2])])
    yield C("SerializeManySparse", [i64([[0]]), np.array([1.0]), i64([2])])
    yield C("SerializeSparse", [i64([0]), np.array([1.0]), i64([2])])
    yield C("DeserializeSparse", [strs([b"x", b"y", b"z"])], dtype=tf.float32)
    yield C("DeserializeSparse", [strs([b"x", b"y"])], dtype=tf.float32)


def cases_bytes(rng, quick):
    for dt in (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64, tf.int16, tf.int8, tf.uint8, tf.uint16, tf.bfloat16):
        data = strs([bytes(rng.randint(0, 60, n).tolist()) for n in (0, 3, 8, 16, 30)])
        for n in (8, 16, 24, 7, 0, -8):
            for little in (True, False):
                other = C("DecodePaddedRaw", [data, i32(n)], out_type=tf.uint16, little_endian=little)  # for halves, which TensorFlow has forgotten
                bits = lambda other=other, dt=dt: [run_tf(other)[2][0].view(dt.as_numpy_dtype)]
                yield C("DecodePaddedRaw", [data, i32(n)], out_type=dt, little_endian=little, like=bits if n in (8, 16, 24) else other)
    yield C("DecodePaddedRaw", [s(b"abcdef"), i32([4])], out_type=tf.uint8)
    text = [b"", b"hello", bytes(rng.randint(0, 255, 5000).tolist()), b"a" * 100000]
    for kind, f in (("", lambda x: x), ("ZLIB", zlib.compress), ("GZIP", gzip.compress)):
        yield C("DecodeCompressed", [strs([f(t) for t in text])], compression_type=kind)
        yield C("DecodeCompressed", [s(f(text[2]))], compression_type=kind)
    yield C("DecodeCompressed", [s(b"not compressed at all")], compression_type="ZLIB")
    yield C("DecodeCompressed", [s(b"x")], compression_type="LZ4")
