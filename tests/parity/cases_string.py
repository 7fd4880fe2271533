"""Strings: joining, splitting, matching, numbers, hashes, encodings."""
import numpy as np
import tensorflow as tf

from cases_array import i32
from cases_math import BF16, FLOATS, INTS, NUM, rand
from kernels import Case as C


def s(*v):
    """Bytes as a string tensor: s(b"a"), s([b"a", b"b"])."""
    v = v[0]
    a = np.array(v, dtype=object)
    return a


TEXTS = [b"", b"a", b"abc", b"aaa", b"hello world", b"foo-bar_baz 123", b"  padded \t\n", b"line one\nline two", "gr\u00fc\u00dfe \u4e16\u754c".encode(), b"a.b.c", b"\xff\xfe bad", b"x" * 100,
         b"s3://bucket/key", b"2023-11-15", b"AbCdE", b"a,b,,c,", b"((nested))", b"tab\tsep", b"1e5", b"--"]


def cases_regex(rng, quick):
    patterns = [b"", b".*", b"a", b"a*", b"a+b?c*", b"[a-z]+", b"[^a-z]*", b"(foo|bar|hello).*", b"\\d{4}-\\d{2}-\\d{2}", b"^s3://.*", b"s3://(.*)/(.*)", b".*\\s.*", b"(?i)abcde",
                b"(?s).*", b"(?s)line.*two", b"(?m)^line", b"\\w+ \\w+", b"[[:alpha:]]+", b"[[:^alpha:]]+", b"x{100}", b"x{3,}", b"x{0,5}", b"a{2,3}", b"(a|ab)(c|bcd)", b"(a*)*", b"(a*)+",
                b"a|b|", b"\\Aabc\\z", b"\\bhello\\b.*", b".*\\Bo.*", b"a\\.b\\.c", b"[a\\]]+", b"[]a]+", b"[^]a]+", b"\\x61+", b"\\x{61}bc", b"\\141bc", b"\\Qa.b\\E.c", "gr\u00fc.*".encode(),
                "[\u00e0-\u00ff]".encode(), b"(?:a|b)c", b"(?P<n>a)bc", b"a*?", b"(a+?)(a*)", b"(?U)a+", b"[\\d\\s]+", b"[-a]+", b"[a-]+", b"\\--", b"a{,3}", b"{", b"}", b"a{1", b"\\.", b"(?-i)a",
                b"(((((a)))))bc", b"$", b"^", b"^$", b"\\pN"]
    bad = [b"(", b")", b"[", b"[a", b"*", b"a**", b"a{3,2}", b"a{1001}", b"\\", b"(?P<n", b"(?z)a", b"[z-a]", b"\\1", b"[[:foo:]]", b"(?", b"\\8", b"a++", b"(?=a)", b"[a-\\d]"]
    for p in patterns + bad:
        yield C("StaticRegexFullMatch", [s(TEXTS)], pattern=p)
        yield C("RegexFullMatch", [s(TEXTS), s(p)])
        for w in (b"", b"<\\0>", b"\\1", b"[\\2\\1]", b"x\\\\y", b"bad\\"):
            for g in (True, False):
                yield C("StaticRegexReplace", [s(TEXTS)], pattern=p, rewrite=w, replace_global=g)
            if not quick:
                yield C("RegexReplace", [s(TEXTS), s(p), s(w)])
    for _ in range(60 if quick else 1500):
        p = b"".join([b"a", b"b", b"ab", b"(a|b)", b"(ab|a)", b".", b"[ab]", b"[^a]", b"(a*)", b"(b+)?", b"a{1,2}", b"(?:b|)", b"^", b"$", b"|", b"a*?", b"b??", b"\\b"][rng.randint(18)] for _ in range(rng.randint(1, 6)))
        texts = [b"".join([b"a", b"b", b"c"][rng.randint(3)] for _ in range(rng.randint(0, 8))) for _ in range(5)]
        yield C("StaticRegexFullMatch", [s(texts)], pattern=p)
        for w in (b"<\\0>", b"<\\1>"):
            yield C("StaticRegexReplace", [s(texts)], pattern=p, rewrite=w, replace_global=bool(rng.randint(2)))


def cases_strings(rng, quick):
    t = s(TEXTS)
    for op in ("StringStrip",):
        yield C(op, [t])
    for op in ("StringLower", "StringUpper"):
        yield C(op, [t])
        yield C(op, [s([x for x in TEXTS if x != b"\xff\xfe bad" and b"\xc3\x9f" not in x] + ["\u00c9t\u00e9 \u0416\u0436".encode()])], encoding="utf-8")
        yield C(op, [t], encoding="latin1")
    for unit in ("BYTE", "UTF8_CHAR"):
        yield C("StringLength", [t], unit=unit)
        u = s([x for x in TEXTS if x != b"\xff\xfe bad"])
        for pos in range(-4, 5):
            for n in (0, 1, 3, 100):
                yield C("Substr", [s([b"hello", "gr\u00fc\u00dfe".encode()]), i32(pos), i32(n)], unit=unit)
        yield C("Substr", [u, i32(0), i32(3)], unit=unit)
        yield C("Substr", [s(b"abc"), i32(4), i32(1)], unit=unit)
        yield C("Substr", [s(b"abc"), i32(-4), i32(1)], unit=unit)
    yield C("Substr", [s([[b"abcdef"], [b"ghijkl"]]), i32([1, 2, 3]), i32([2, 2, 2])])
    yield C("Substr", [s([b"ab"]), i32([1]), i32([1, 2])])
    deep = s([[[b"abcdef", b"ghijkl"]]])
    for at in ([1, 2], [[[1, 2]]], [[[1], [2]]], [1], 1):  # broadcast over three dimensions: not in TensorFlow
        yield C("Substr", [deep, i32(at), i32(at)])
    for sep in ("", "-", ", "):
        yield C("StringJoin", [[t, s(b"x"), t]], separator=sep)
        yield C("StringJoin", [[s(b"x"), s(b"y")]], separator=sep)
        yield C("StringJoin", [[s(b"x")]], separator=sep)
        yield C("StringJoin", [[s([b"a", b"b"]), s([b"c", b"d"])]], separator=sep)
        yield C("StringJoin", [[s([b"a", b"b"]), s([b"c"])]], separator=sep)
        for ax in ([0], [1], [0, 1], [1, 0], [-1], [-2, -1], [], [2], [0, 0]):
            for keep in (True, False):
                yield C("ReduceJoin", [s([[b"a", b"b"], [b"c", b"d"]]), i32(ax)], separator=sep, keep_dims=keep)
        yield C("ReduceJoin", [rand(rng, object, (2, 3, 2)), i32([2, 0])], separator=sep)
        yield C("ReduceJoin", [rand(rng, object, (2, 0)), i32([1])], separator=sep)
    for d in (b"", b",", b" ", b", ", b"ab"):
        for skip in (True, False):
            yield C("StringSplit", [t, s(d)], skip_empty=skip)
        for m in (-1, 0, 1, 2):
            yield C("StringSplitV2", [s([b"a b  c", b"", b"  lead", b"trail  ", b"a,b,,c", b"xabyab", b"one"]), s(d)], maxsplit=m)
    yield C("StringSplit", [s(b"scalar"), s(b",")])
    yield C("StringSplitV2", [s(b"scalar"), s(b",")])
    for n in (1, 10, 2 ** 40):
        long = s([bytes(rng.randint(0, 256, m).tolist()) for m in list(range(0, 70)) + [100, 127, 128, 129, 200, 1000]])
        for op in ("StringToHashBucketFast", "StringToHashBucket"):
            yield C(op, [long], num_buckets=n)
        yield C("StringToHashBucketStrong", [long], num_buckets=n, key=[123, -456])
    yield C("StringToHashBucketStrong", [t], num_buckets=3, key=[1])
    for a in ([], [b""], [b"a"], [b"ab"], [b"abc"], [b"abcd"], [b"\xff\xfe\xfd", b"hello world"]):
        a = s(a)
        for pad in (True, False):
            yield C("EncodeBase64", [a], pad=pad)
    for a in (b"", b"YQ==", b"YQ", b"YWI", b"YWI=", b"YWJj", b"-_-_", b"Y", b"Y!==", b"YQ=", b"====", b"+/+/"):
        yield C("DecodeBase64", [s(a)])


def cases_numbers(rng, quick):
    for t in NUM + [np.bool_, object]:
        x = rand(rng, t, (5,))
        yield C("AsString", [x])
        for kw in (dict(precision=3), dict(scientific=True), dict(shortest=True), dict(scientific=True, shortest=True), dict(width=12), dict(width=12, fill="0"), dict(width=8, fill="-"),
                   dict(fill="+"), dict(fill=" "), dict(fill="x"), dict(fill="00"), dict(width=10, precision=2), dict(precision=2, scientific=True)):
            if t in (object, np.bool_) and ("fill" in kw or "width" in kw):
                continue
            yield C("AsString", [x], **kw)
    yield C("AsString", [np.array([np.inf, -np.inf, np.nan, 1e30, 0.1], np.float32)])
    for fill in ("", "-", "0", "+", " ", "#", "x", "ab"):
        for x in (s([b"", b"hello", b"longer than that", b"a\0b"]), np.array([True, False]), np.array([1.5, -2], np.float32), np.array([3, -12345], np.int64)):
            for kw in (dict(width=10), dict(width=10, precision=3), dict(width=0), dict(precision=2), dict(width=6, scientific=True), dict(shortest=True)):
                yield C("AsString", [x], fill=fill, **kw)
    for shape in ((2, 3, 2), (7, 8, 9), (2, 2, 2, 2), (9, 1, 2, 8)):
        for summarize in (1, 3, -1):
            yield C("StringFormat", [[np.arange(np.prod(shape), dtype=np.int32).reshape(shape)]], template="%s", summarize=summarize)
    for o in (tf.float32, tf.float64, tf.int32, tf.int64):
        for v in (b"1", b"-2", b" 3 ", b"1.5", b"1e3", b"abc", b"", b"99999999999", b"inf", b"nan", b"1 2", b"0x10", b"+5", b"1.", b".5", b"9223372036854775808", b"-2147483648", b"1e400"):
            yield C("StringToNumber", [s(v)], out_type=o)
        yield C("StringToNumber", [s([b"1", b"2"])], out_type=o)
    for o in (tf.uint8, tf.int8, tf.int16, tf.int32, tf.int64, tf.float32, tf.float64, tf.float16, tf.uint16, tf.complex64, tf.complex128):
        for le in (True, False):
            yield C("DecodeRaw", [s([b"0123456789abcdef", b"fedcba9876543210"])], out_type=o, little_endian=le)
        yield C("DecodeRaw", [s([b"0123456"])], out_type=o)
        yield C("DecodeRaw", [s([b"12345678", b"1234"])], out_type=o)
        yield C("DecodeRaw", [s([])], out_type=o)
        yield C("DecodeRaw", [s([b"", b""])], out_type=o)
    yield C("StringFormat", [[]], template="plain", T=[])
    for n in (3, -1, 1):
        for x in (np.float32([1, 2.5, -3]), np.arange(20, dtype=np.int32), np.arange(30).reshape(5, 6), np.array([True, False]), s([b"a", b"b c"]), np.float64(0.1), np.zeros((2, 0), np.int32)):
            yield C("StringFormat", [[x, np.int64(7)]], template="<%s> and %s", summarize=n)
    yield C("StringFormat", [[np.int64(7)]], template="no place")
    yield C("StringFormat", [[np.int64(7)]], template="{}!", placeholder="{}")
    f, d, i, j, st = np.float32([0.5]), np.float64([]), np.int32([7]), np.int64([-1]), s([b"def"])
    good = s([b"1.5,2,3,4,x", b",2,,,", b'" 1.5 ",2,3,4,"a ""q"", b"', b"NA,2,NA,NA,NA"])
    for kw in ({}, dict(na_value="NA"), dict(use_quote_delim=False), dict(field_delim=";"), dict(field_delim=",,")):
        yield C("DecodeCSV", [good, [f, d, i, j, st]], **kw)
        yield C("DecodeCSV", [s([b"1.5,2,3,4,x"]), [f, d, i, j, st]], **kw)
    for rec in (b"1,2", b"", b"a,2,3,4,x", b"1,,3,4,x", b'"1,2,3,4,x', b'1"2,2,3,4,x', b'"1"x,2,3,4,x', b"1,2,3.5,4,x", b"1,2,3,4,x,", b"1,2,3,4,x\n", b"1,2,99999999999,4,x"):
        yield C("DecodeCSV", [s([rec]), [f, d, i, j, st]])
    yield C("DecodeCSV", [s([b"1,2,3,4"]), [i, i]], select_cols=[1, 3])
    yield C("DecodeCSV", [s([b"1,2"]), [i, i]], select_cols=[1, 3])
    yield C("DecodeCSV", [s([b"1,2,3,4"]), [i, i]], select_cols=[3, 1])
    yield C("DecodeCSV", [s([b"1,2,3,4"]), [i, i]], select_cols=[3])
    yield C("DecodeCSV", [s([b"1"]), [np.int32([1, 2])]])
