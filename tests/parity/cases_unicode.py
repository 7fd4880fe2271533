"""Code points and encodings, n-grams, joined segments."""
import numpy as np
import tensorflow as tf

from kernels import Case as C
from strings import s


def i32(x):
    return np.array(x).astype(np.int32)


def i64(x):
    return np.array(x).astype(np.int64)



TEXTS = ["", "a", "hello", "grüße", "日本語 text", "\U0001f600\U0001f601x", "a\u0301", "\u0000\u0001\u001f \u007f\u0080", "\ufeffmark", "\uffff\ufffe\U0010ffff", "ΑΒΓ αβγ", "﷐"]
WRONG8 = [b"\xff", b"a\xffb", b"\xc3", b"\xc3(", b"\xe2\x82", b"\xe2\x28\xa1", b"\xf0\x9f\x98", b"\xf0\x28\x8c\xbc", b"\xed\xa0\x80", b"\xed\xb0\x80x", b"\xc0\x80", b"\xe0\x80\x80", b"\xf4\x90\x80\x80",
          b"\xf8\x88\x80\x80\x80", b"\x80\x81a", b"ok\xf0\x9f\x98\x80\xf0\x9f", b"\xef\xbb\xbf", b"\xf1\x80\x80\xe1\x80"]
ERRORS = ("replace", "ignore", "strict")
OUT = ("UTF-8", "UTF-16-BE", "UTF-32-BE")


def everything(texts, encoding, rng=None, all_=True):
    """The four ops that read text of an encoding, with all ways to deal with mistakes."""
    x = s(list(texts))
    for errors in ERRORS:
        for more in ({}, {"replace_control_characters": True}, {"replacement_char": 63}, {"replacement_char": 0x1f600}) if all_ else ({},):
            yield C("UnicodeDecode", [x], input_encoding=encoding, errors=errors, **more)
            yield C("UnicodeDecodeWithOffsets", [x], input_encoding=encoding, errors=errors, **more)
            for out in OUT:
                yield C("UnicodeTranscode", [x], input_encoding=encoding, output_encoding=out, errors=errors, **more)


def offsets32(x, **attrs):
    """TensorFlow's process ends when splits are int32 and offsets are wanted."""
    def check(_, got):
        want = [t.numpy() for t in tf.raw_ops.UnicodeDecodeWithOffsets(input=tf.constant(x.tolist(), tf.string, x.shape), **attrs)]
        want[0] = want[0].astype(np.int32)
        return None if all(w.dtype == g.dtype and w.tolist() == g.tolist() for w, g in zip(want, got)) else "ours %s, TensorFlow's %s" % (got, want)
    return C("UnicodeDecodeWithOffsets", [x], code=0, check=check, Tsplits=tf.int32, **attrs)


def cases_unicode_decode(rng, quick):
    yield from everything([t.encode() for t in TEXTS], "UTF-8")
    yield from everything(WRONG8, "UTF-8")
    for enc, py in (("UTF-16-BE", "utf-16-be"), ("UTF-16-LE", "utf-16-le"), ("UTF-16", "utf-16"), ("utf16be", "utf-16-be"), ("UTF-32-BE", "utf-32-be"), ("UTF-32LE", "utf-32-le"), ("UTF-32", "utf-32")):
        good = [t.encode(py) for t in TEXTS]
        yield from everything(good, enc, all_=not quick)
        cut = [g[:-1 - i % 3] for i, g in enumerate(good)] + [b"\xd8\x00", b"\xd8\x00\x00a", b"\xdc\x00\x00a", b"\x00\xd8a\x00", b"\x00\xdc", b"\x00\xd8\x00\xd8\x00\xdc", b"\xfe\xff", b"\xff\xfe", b"\xff\xfe\x00\x00", b"\x00\x00\xfe\xff",
                                                              b"\x00", b"\xfe", b"\xfe\xff\x00", b"\xff\xfea\x00\xff\xfe", b"\x00\x11\x00\x00", b"\x00\x00\xd8\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00a\x00", b"\x00\x00"]
        for errors in ("replace", "ignore"):
            yield C("UnicodeDecodeWithOffsets", [s(cut)], input_encoding=enc, errors=errors)
        for c in cut:
            yield C("UnicodeDecode", [s([c])], input_encoding=enc, errors="strict")
    alphabets = {"UTF-8": [0x41, 0x80, 0xbf, 0xc3, 0xe2, 0xed, 0xa0, 0xf0, 0x9f, 0xf4, 0x90, 0xff], "UTF-16": [0, 0x41, 0xd8, 0xdc, 0xfe, 0xff], "UTF-16-LE": [0, 0x41, 0xd8, 0xdc], "UTF-32": [0, 0, 0, 0x41, 0xd8, 0xfe, 0xff, 0x10]}
    for enc, letters in alphabets.items():
        for _ in range(5 if quick else 50):
            texts = [bytes(rng.choice(letters, rng.randint(0, 12)).astype(np.uint8)) for _ in range(40)]
            yield C("UnicodeDecodeWithOffsets", [s(texts)], input_encoding=enc)
            yield offsets32(s(texts), input_encoding=enc, errors="ignore")
    x = s([["a", "bc"], ["", "é"]])
    for op in ("UnicodeDecode", "UnicodeDecodeWithOffsets"):
        for t in (np.int32, np.int64):
            for y in (x, s("é"), s([]), s([[], []])):
                yield C(op, [y], input_encoding="UTF-8", Tsplits=tf.as_dtype(t)) if op == "UnicodeDecode" or t is np.int64 else offsets32(y, input_encoding="UTF-8")
        yield C(op, [x], input_encoding="UTF-8", replacement_char=-1)
        yield C(op, [x], input_encoding="UTF-8", replacement_char=0x110000)
        yield C(op, [x], input_encoding="nothing")
        yield C(op, [x], input_encoding="")
    for out in OUT:
        yield C("UnicodeTranscode", [x], input_encoding="UTF-8", output_encoding=out)
        yield C("UnicodeTranscode", [s(WRONG8)], input_encoding="UTF-8", output_encoding=out, replacement_char=0xd800)
        yield C("UnicodeTranscode", [s([])], input_encoding="utf8", output_encoding=out)
    yield C("UnicodeTranscode", [x], input_encoding="nothing", output_encoding="UTF-8")
    yield C("UnicodeTranscode", [x], input_encoding="UTF-8", output_encoding="UTF-8", replacement_char=0x110000)
    yield C("UnicodeTranscode", [s(["a\x01b"])], input_encoding="UTF-8", output_encoding="UTF-8", errors="strict", replace_control_characters=True)


SINGLE = ["US-ASCII", "ascii", "ISO-8859-1", "latin1", "iso_8859_2", "latin2", "ISO-8859-3", "ISO-8859-4", "ISO-8859-5", "cyrillic", "ISO-8859-6", "ISO-8859-7", "greek", "ISO-8859-8", "ISO-8859-9", "ISO-8859-10",
          "ISO-8859-13", "ISO-8859-14", "ISO-8859-15", "windows-1250", "windows-1251", "CP1252", "windows-1252", "windows-1253", "windows-1254", "windows-1255", "windows-1256", "windows-1257", "windows-1258", "KOI8-R",
          "koi8-u", "ibm850", "ibm855", "ibm857", "cp866", "macintosh"]
SEVERAL = {"shift_jis": "cp932", "SHIFT-JIS": "cp932", "sjis": "cp932", "euc-jp": "euc_jp", "EUC_KR": "euc_kr", "windows-949": "cp949", "gb18030": "gb18030", "GBK": "gbk", "gb2312": "gb2312", "Big5": "cp950"}
CJK = ["こんにちは世界", "カタカナ", "漢字かな交じり文", "技", "グ", "한국민", "안녕하세요", "简体中文术", "繁體中文術", "abc", "ABC 123!", "、。「」", "①"]


def cases_unicode_charsets(rng, quick):
    every = [bytes([b]) for b in range(256)]
    for enc in SINGLE:
        yield C("UnicodeDecodeWithOffsets", [s(every)], input_encoding=enc)
        yield C("UnicodeDecode", [s([bytes(range(256))])], input_encoding=enc, errors="ignore")
        yield C("UnicodeTranscode", [s(every)], input_encoding=enc, output_encoding="UTF-8", replacement_char=63)
    for enc, py in SEVERAL.items():
        texts = []
        for t in CJK:
            try:
                texts += [t.encode(py), b"x" + t.encode(py) + b"y", t.encode(py)[:-1]]
            except UnicodeEncodeError:
                pass
        yield from everything(texts, enc, all_=not quick)
    # (a yen sign is a backslash in ICU's)
    yield C("UnicodeTranscode", [s([b"\x5c\x5c", b"\x8f\x70", b"\x83\x4f"])], input_encoding="shift_jis", output_encoding="UTF-8")
    # Pairs of bytes of which Python and ICU think the same: there are several versions of some tables.
    for enc, py in SEVERAL.items():
        pairs = []
        for a in range(0x81, 0xff):
            for b in range(0x40, 0xff, 7 if quick else 1):
                try:
                    if len(bytes([a, b]).decode(py)) == 1:
                        pairs.append(bytes([a, b]))
                except UnicodeDecodeError:
                    pass
        icu = tf.raw_ops.UnicodeTranscode(input=pairs, input_encoding=enc, output_encoding="UTF-8").numpy()
        pairs = [p for p, u in zip(pairs, icu) if p.decode(py) == u.decode() and not 0xe000 <= ord(u.decode()) < 0xf900]
        assert len(pairs) > 500
        yield C("UnicodeDecode", [s(pairs)], input_encoding=enc)


def cases_unicode_encode(rng, quick):
    odd = [0, 0x41, 0x7f, 0x80, 0x7ff, 0x800, 0xd7ff, 0xd800, 0xdbff, 0xdc00, 0xdfff, 0xe000, 0xfdd0, 0xfdef, 0xfffd, 0xfffe, 0xffff, 0x10000, 0x1fffe, 0x10fffd, 0x10ffff, 0x110000, -1, 2**31 - 1, -2**31]
    for out in OUT:
        for errors in ERRORS:
            for t in (i32, i64):
                yield C("UnicodeEncode", [i32(odd), t([0, 3, 3, 10, len(odd)])], output_encoding=out, errors=errors)
                yield C("UnicodeEncode", [i32([72, 105, 0x1f600]), t([0, 2, 3])], output_encoding=out, errors=errors)
                for c in odd:
                    yield C("UnicodeEncode", [i32([97, c, 98]), t([0, 3])], output_encoding=out, errors=errors, replacement_char=63)
            yield C("UnicodeEncode", [i32([]), i64([0])], output_encoding=out, errors=errors)
            yield C("UnicodeEncode", [i32([0xd83d, 0xde00]), i64([0, 2])], output_encoding=out, errors=errors, replacement_char=0xd800)
    for splits in ([], [1, 3], [0, 2], [0, 4], [0, 2, 1, 3], [0, 5, 3], [0, -1, 3], [3], [0]):
        yield C("UnicodeEncode", [i32([97, 98, 99]), i64(splits)], output_encoding="UTF-8")
    yield C("UnicodeEncode", [i32([97, 98, 99]), i64([0, 3])], output_encoding="UTF-8", replacement_char=-5)
    for _ in range(20 if quick else 200):
        n, rows = rng.randint(0, 50), rng.randint(1, 6)
        c = rng.choice([0x80, 0x3000, 0x110000]) * rng.rand(n)
        splits = np.sort(np.concatenate([[0, n], rng.randint(0, n + 1, rows)]))
        yield C("UnicodeEncode", [i32(c), i64(splits)], output_encoding=str(rng.choice(OUT)))


def cases_unicode_script(rng, quick):
    yield C("UnicodeScript", [np.arange(0x110000, dtype=np.int32)])
    yield C("UnicodeScript", [i32([[-1, 0x110000], [2**31 - 1, 0x41]])])
    yield C("UnicodeScript", [i32(0x3b1)])
    yield C("UnicodeScript", [i32([])])


def cases_ngrams(rng, quick):
    def case(data, splits, widths, t=np.int64, sep="|", left="<", right=">", pad=-1, short=False, **kw):
        return C("StringNGrams", [s(data), np.array(splits, t)], separator=sep, ngram_widths=widths, left_pad=left, right_pad=right, pad_width=pad, preserve_short_sequences=short, **kw)
    data, splits = ["a", "b", "c", "d", "", "ef", "g" * 40], [0, 4, 4, 5, 7]
    for t in (np.int32, np.int64):
        for widths in ([1], [2], [3], [2, 3], [5, 1], [9], [4, 4]):
            for pad in (-1, 0, 1, 2, 7):
                for short in (False, True):
                    yield case(data, splits, widths, t, pad=pad, short=short)
                    yield case(data, splits, widths, t, pad=pad, short=short, sep="", left="", right="::")
    for short in (False, True):
        for pad in (0, 2):
            yield case(data, splits, [], pad=pad, short=short)
        yield case([], [0], [2], short=short)
        yield case([], [0, 0, 0], [2], short=short)
        yield case([], [], [2], short=short)
        yield case(["a", "b"], [], [2], short=short)
    yield case(data, splits, [], short=True)
    for bad in ([1, 7], [0, 8], [0, 5, 3, 7], [0, 6], [0, -1, 7], [0]):
        yield case(data, bad, [2])
    for widths in ([0], [-3], [2, 0]):
        yield case(data, splits, widths)
    yield case(data, splits, [2**31 - 1])
    yield case(data, splits, [1100000000])
    yield case(data, splits, [2**29], left="x" * 1000, code=8)
    yield case(data, splits, [3], pad=2**31 - 1)
    for _ in range(20 if quick else 300):
        n, rows = rng.randint(0, 12), rng.randint(0, 5)
        words = ["".join(chr(97 + rng.randint(26)) for _ in range(rng.randint(0, 4))) for _ in range(n)]
        cuts = [0, *sorted(rng.randint(0, n + 1, rows).tolist()), n]
        yield case(words, cuts, rng.randint(1, 6, rng.randint(1, 4)).tolist(), pad=int(rng.randint(-1, 5)), short=bool(rng.randint(2)))


def cases_segment_join(rng, quick):
    words = np.array(["", "a", "bc", "def", "x" * 50], dtype=object)
    for ids_t in (np.int32, np.int64):
        for num_t in (np.int32, np.int64):
            for shape, rank in (((6,), 1), ((4, 3), 1), ((4, 3), 2), ((2, 3, 2), 2), ((0,), 1), ((3, 0), 1), ((0, 4), 1), ((5, 2, 2), 1)):
                for n in (1, 3):
                    x = np.array([w.encode() for w in rng.choice(words, int(np.prod(shape)))], dtype=object).reshape(shape)
                    for sep in ("", ", "):
                        yield C("UnsortedSegmentJoin", [x, rng.randint(0, n, shape[:rank]).astype(ids_t), num_t(n)], separator=sep)
    x = s(["a", "b", "c"])
    yield C("UnsortedSegmentJoin", [x, i32([0, 1, 0]), i32(2)])
    yield C("UnsortedSegmentJoin", [s(["", "", "a", "", "b"]), i32([0, 0, 0, 0, 0]), i32(2)], separator=":")
    for ids, n in (([0, 1, 2], 2), ([0, -1, 1], 2), ([0, 1], 2), (0, 2), ([[0, 1, 0]], 2), ([0, 1, 0], -1), ([0, 0, 0], 0)):
        yield C("UnsortedSegmentJoin", [x, i32(ids), i32(n)])
    yield C("UnsortedSegmentJoin", [x, i32([0, 1, 0]), i32([2])])
    yield C("UnsortedSegmentJoin", [x, i32([0, 1, 0]), i32([])])
    yield C("UnsortedSegmentJoin", [s([]), i32([]), i32(0)])
