"""Image files. JPEG and PNG: the same libraries on both sides, so the same pixels and the same files, also of broken ones. PNGs and GIFs that
TensorFlow does not write itself (palettes, few bits, interlaced, several frames) are made here."""
import struct
import zlib

import numpy as np
import tensorflow as tf

from cases_image import i32
from cases_string import s
from kernels import Case as C


def picture(rng, h, w, c, t=np.uint8):
    """Waves and noise, so that there is something to compress."""
    y, x = np.mgrid[:h, :w]
    v = np.stack([np.sin(x / (3 + q) + q) + np.cos(y / (5 - q / 2)) for q in range(c)], -1) * 0.2 + 0.5 + rng.uniform(-0.1, 0.1, (h, w, c))
    return (np.clip(v, 0, 1) * np.iinfo(t).max).astype(t)


def jpeg(x, **kw):
    return tf.io.encode_jpeg(x, **kw).numpy()


def broken(rng, data, n, skip=4):
    """Copies with a byte changed behind the first ones, which say what it is."""
    for _ in range(n):
        b = bytearray(data)
        b[rng.randint(skip, len(b))] = rng.randint(256)
        yield bytes(b)


# ---- JPEG ------------------------------------------------------------------------------------------------------------------------

def split_jpeg(data):
    """Segments before the picture's data (marker, body), and that data."""
    at, segments = 2, []
    while True:
        marker, n = data[at + 1], struct.unpack(">H", data[at + 2:at + 4])[0]
        segments.append((marker, data[at + 4:at + 2 + n]))
        at += 2 + n
        if marker == 0xDA:
            return segments, data[at:-2]


def many_components(greys, adobe):
    """A JPEG with a component for each grey one, a scan each. adobe: None, or what that marker says of the colours."""
    def seg(m, body):
        return bytes([0xFF, m]) + struct.pack(">H", len(body) + 2) + body
    parts = [split_jpeg(g) for g in greys]
    out = b"\xff\xd8"
    if adobe is not None:
        out += seg(0xEE, b"Adobe\0\x64\0\0\0\0" + bytes([adobe]))
    else:
        out += seg(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0")
    for m, body in parts[0][0]:
        if m == 0xC0:
            out += seg(m, body[:5] + bytes([len(greys)]) + b"".join(bytes([i + 1, 0x11, 0]) for i in range(len(greys))))
        elif m in (0xDB, 0xC4):
            out += seg(m, body)
    for i, (_, data) in enumerate(parts):
        out += seg(0xDA, bytes([1, i + 1, 0, 0, 63, 0])) + data
    return out + b"\xff\xd9"


def cases_jpeg(rng, quick):
    files = []
    for h, w in ((1, 1), (7, 5), (16, 16), (37, 50), (64, 31)):
        for c in (1, 3):
            x = picture(rng, h, w, c)
            files += [jpeg(x), jpeg(x, quality=40, chroma_downsampling=False), jpeg(x, quality=80, progressive=True)]
    for f in files:
        for channels in (0, 1, 3, 4):
            yield C("DecodeJpeg", [s(f)], channels=channels)
            yield C("DecodeImage", [s(f)], channels=channels)
        for ratio in (2, 4, 8):
            yield C("DecodeJpeg", [s(f)], ratio=ratio)
        yield C("DecodeJpeg", [s(f)], fancy_upscaling=False)
        yield C("DecodeJpeg", [s(f)], fancy_upscaling=False, dct_method="INTEGER_ACCURATE", channels=3)
        yield C("DecodeJpeg", [s(f)], dct_method="INTEGER_ACCURATE")
        yield C("DecodeJpeg", [s(f)], dct_method="INTEGER_FAST", ratio=2)
        for t in (tf.uint8, tf.uint16, tf.float32):
            yield C("DecodeImage", [s(f)], dtype=t, expand_animations=False)
        for t in (tf.uint8, tf.uint16):
            yield C("DecodePng", [s(f)], dtype=t)
            yield C("DecodePng", [s(f)], dtype=t, channels=1)
        yield C("DecodeGif", [s(f)])
        yield C("DecodeBmp", [s(f)], code=3)
        for t in (tf.int32, tf.int64):
            yield C("ExtractJpegShape", [s(f)], output_type=t)
        h, w = tf.io.extract_jpeg_shape(f).numpy()[:2]
        for ratio in (1, 2):
            rh, rw = -(-h // ratio), -(-w // ratio)
            for _ in range(3 if quick else 6):
                y, x = rng.randint(rh), rng.randint(rw)
                window = i32(y, x, rng.randint(1, rh - y + 1), rng.randint(1, rw - x + 1))
                yield C("DecodeAndCropJpeg", [s(f), window], ratio=ratio)
                yield C("DecodeAndCropJpeg", [s(f), window], ratio=ratio, channels=int(rng.choice([1, 3])), fancy_upscaling=False, dct_method="INTEGER_ACCURATE")
    f = files[-2]
    for window in (i32(0, 0, 0, 1), i32(0, 0, 1, 0), i32(-1, 0, 1, 1), i32(0, -1, 1, 1), i32(60, 0, 5, 1), i32(0, 30, 1, 2), i32(2**31 - 1, 2**31 - 1, 2**31 - 1, 2**31 - 1)):
        yield C("DecodeAndCropJpeg", [s(f), window])
    for window in (i32(1, 2, 3), np.array(3, np.int32), np.ones((1, 4), np.int32)):
        yield C("DecodeAndCropJpeg", [s(f), window])
    yield C("DecodeAndCropJpeg", [s(f), i32(1, 1, 1, 1)], channels=4)
    for op in ("DecodeJpeg", "DecodeImage", "DecodePng", "DecodeGif", "DecodeBmp", "ExtractJpegShape"):
        yield C(op, [s([f])])
        yield C(op, [s(b"")])
        yield C(op, [s(b"ThisIsNotAnImage!")])
        yield C(op, [s(f[:3])])
        if op not in ("DecodeGif", "ExtractJpegShape"):
            yield C(op, [s(f)], channels=2)
            yield C(op, [s(f)], channels=-1)
    yield C("DecodeJpeg", [s(f[:3])], try_recover_truncated=True, code=3)  # TensorFlow looks for a marker for ever
    yield C("DecodeJpeg", [s(f)], ratio=3)
    yield C("DecodeJpeg", [s(f)], dct_method="FLOAT")


def cases_jpeg_colours(rng, quick):
    greys = [jpeg(picture(rng, 20, 27, 1), quality=90) for _ in range(4)]
    for n, adobe in ((4, 0), (4, 2), (4, None), (3, 0), (3, 1), (3, None), (2, None)):
        f = many_components(greys[:n], adobe)
        yield C("ExtractJpegShape", [s(f)])
        for channels in (0, 1, 3):
            yield C("DecodeJpeg", [s(f)], channels=channels)
            yield C("DecodeAndCropJpeg", [s(f), i32(3, 11, 12, 9)], channels=channels)
        yield C("DecodeImage", [s(f)], dtype=tf.float32)


def cases_jpeg_broken(rng, quick):
    """Of a file that ends too soon, as many rows as asked for, or all of them somehow."""
    files = [jpeg(picture(rng, 60, 40, c), **kw) for c in (1, 3) for kw in ({}, {"progressive": True}, {"chroma_downsampling": False})]
    for f in files:
        for part in (0.2, 0.4, 0.55, 0.7, 0.9, 0.99, 1):
            cut = f[:int(len(f) * part)] if part < 1 else f[:-2]
            for recover in (False, True):
                for fraction in (0.0, 0.3, 0.8, 1.0, 2.0):
                    yield C("DecodeJpeg", [s(cut)], try_recover_truncated=recover, acceptable_fraction=fraction)
            yield C("DecodeAndCropJpeg", [s(cut), i32(0, 3, 10, 20)], try_recover_truncated=True)
            yield C("DecodeAndCropJpeg", [s(cut), i32(8, 3, 10, 20)], acceptable_fraction=0.5)
            yield C("DecodeImage", [s(cut)])
            yield C("ExtractJpegShape", [s(cut)])
        for b in broken(rng, f, 20 if quick else 80):
            yield C("DecodeJpeg", [s(b)])
            yield C("DecodeJpeg", [s(b)], channels=1, acceptable_fraction=0.2)
            yield C("ExtractJpegShape", [s(b)])


def cases_encode_jpeg(rng, quick):
    for h, w in ((1, 1), (9, 4), (33, 50), (120, 90)):
        for c in (1, 3):
            x = picture(rng, h, w, c)
            yield C("EncodeJpeg", [x])
            yield C("EncodeJpeg", [x], format="grayscale" if c == 1 else "rgb")
            yield C("EncodeJpeg", [x], format="rgb" if c == 1 else "grayscale")
            for kw in ({"quality": 0}, {"quality": 100}, {"quality": 50, "progressive": True}, {"optimize_size": True}, {"chroma_downsampling": False},
                       {"density_unit": "cm", "x_density": 72, "y_density": 100}, {"x_density": -1}, {"xmp_metadata": b"<x>\0\xff</x>"}):
                yield C("EncodeJpeg", [x], **kw)
            for q in (0, 30, 100, -1, 101):
                yield C("EncodeJpegVariableQuality", [x, np.array(q, np.int32)])
    x = picture(rng, 5, 6, 3)
    for bad in (x[0], x[:, :, :2], np.concatenate([x, x], -1), x[None], x[:0], x[:, :0], x[:, :, :0]):
        yield C("EncodeJpeg", [bad])
        yield C("EncodeJpegVariableQuality", [bad, np.array(50, np.int32)])
    yield C("EncodeJpegVariableQuality", [x, i32(50)])
    yield C("EncodeJpeg", [x], quality=101)
    yield C("EncodeJpeg", [x], quality=-1)
    yield C("EncodeJpeg", [x], x_density=2**33)
    yield C("EncodeJpeg", [x], xmp_metadata=b"x" * 70000)


# ---- PNG -------------------------------------------------------------------------------------------------------------------------

def png(values, depth, colour, extra=(), interlaced=False):
    """A PNG of rows of numbers of `depth` bits, as they are stored."""
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    def rows(v):
        if not v.size:
            return b""
        flat = v.reshape(v.shape[0], -1)
        bits = ((flat[:, :, None] >> np.arange(depth - 1, -1, -1)) & 1).reshape(flat.shape[0], -1).astype(np.uint8)
        packed = np.packbits(bits, axis=1)
        return b"".join(b"\0" + r.tobytes() for r in packed)

    h, w = values.shape[:2]
    if interlaced:
        passes = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
        raw = b"".join(rows(values[y::dy, x::dx]) for y, x, dy, dx in passes)
    else:
        raw = rows(values)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, depth, colour, 0, 0, interlaced)) +
            b"".join(chunk(k, b) for k, b in extra) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b""))


def pngs(rng):
    h, w = 9, 13
    for interlaced in (False, True):
        for colour, c, depths in ((0, 1, (1, 2, 4, 8, 16)), (2, 3, (8, 16)), (4, 2, (8, 16)), (6, 4, (8, 16)), (3, 1, (1, 2, 4, 8))):
            for depth in depths:
                v = rng.randint(0, 2**depth, (h, w, c))
                if colour == 3:
                    palette = (b"PLTE", rng.randint(0, 256, 3 * 2**depth).astype(np.uint8).tobytes())
                    yield png(v, depth, colour, [palette], interlaced)
                    yield png(v, depth, colour, [palette, (b"tRNS", b"\x10\x80")], interlaced)
                    continue
                yield png(v, depth, colour, interlaced=interlaced)
                if colour in (0, 2):
                    yield png(v, depth, colour, [(b"tRNS", v[0, 0].astype(">u2").tobytes())], interlaced)
                yield png(v, depth, colour, [(b"gAMA", struct.pack(">I", 45455)), (b"tEXt", b"Title\0hello")], interlaced)


def cases_png(rng, quick):
    files = list(pngs(rng)) + [tf.io.encode_png(picture(rng, 30, 41, c, t)).numpy() for c in (1, 2, 3, 4) for t in (np.uint8, np.uint16)]
    for f in files:
        for channels in (0, 1, 3, 4):
            for t in (tf.uint8, tf.uint16, tf.float32):
                yield C("DecodeImage", [s(f)], channels=channels, dtype=t)
                if t != tf.float32:
                    yield C("DecodePng", [s(f)], channels=channels, dtype=t)
        yield C("DecodeJpeg", [s(f)], channels=3)
        yield C("DecodeJpeg", [s(f)])
        yield C("DecodeGif", [s(f)])
        yield C("DecodeBmp", [s(f)])
        yield C("DecodeAndCropJpeg", [s(f), i32(0, 0, 1, 1)])
        for cut in (9, 20, 33, len(f) // 2, len(f) - 12, len(f) - 1):
            yield C("DecodePng", [s(f[:cut])])
        for b in broken(rng, f, 5 if quick else 20, 8):
            yield C("DecodePng", [s(b)])
    huge = png(np.zeros((1, 1, 1), int), 8, 0)
    for w, h in ((1 << 27, 1), (999999, 999999), (30000, 20000), (2000, 60000), (0, 1), (1, 0)):
        head = b"IHDR" + struct.pack(">II", w, h) + huge[24:29]
        yield C("DecodePng", [s(huge[:12] + head + struct.pack(">I", zlib.crc32(head)) + huge[33:])])


def cases_encode_png(rng, quick):
    for t in (np.uint8, np.uint16):
        for c in (1, 2, 3, 4):
            for lead in ((), (1,), (3,), (2, 3), (0,)):
                x = np.broadcast_to(picture(rng, 20, 17, c, t), lead + (20, 17, c)).copy()
                if lead:
                    x += rng.randint(0, 9, x.shape).astype(t)
                yield C("EncodePng", [x])
            for level in (-1, 0, 1, 9):
                yield C("EncodePng", [picture(rng, 60, 43, c, t)], compression=level)
        x = picture(rng, 4, 5, 3, t)
        for bad in (x[0], x[:, :, :0], np.concatenate([x, x], -1), x[:0], x[:, :0]):
            yield C("EncodePng", [bad])
        yield C("EncodePng", [x], compression=10)
        yield C("EncodePng", [x], compression=-2)


# ---- GIF -------------------------------------------------------------------------------------------------------------------------

def lzw(values, bits, reset=4096):
    """Blocks of codes; a new table whenever there are `reset` codes in it."""
    out, acc, have = bytearray(), 0, 0
    clear = 1 << bits

    def put(code, width):
        nonlocal acc, have
        acc |= code << have
        have += width
        while have >= 8:
            out.append(acc & 255)
            acc >>= 8
            have -= 8

    table, width = {(i,): i for i in range(clear)}, bits + 1
    put(clear, width)
    last, n = (), clear + 2
    for v in values:
        if last + (v,) in table:
            last += (v,)
            continue
        put(table[last], width)
        if n < reset:
            table[last + (v,)] = n
            n += 1
            if n > 1 << width and width < 12:
                width += 1
        else:
            put(clear, width)
            table, width, n = {(i,): i for i in range(clear)}, bits + 1, clear + 2
        last = (v,)
    put(table[last], width)
    n += 1
    if n > 1 << width and width < 12:
        width += 1
    put(clear + 1, width)
    put(0, 7)
    return b"".join(bytes([len(out[i:i + 255])]) + bytes(out[i:i + 255]) for i in range(0, len(out), 255)) + b"\0"


def gif(rng, frames, bits=3, global_map=True, version=b"GIF89a", reset=4096):
    """frames: (values, left, top, transparent, own palette, interlaced)"""
    def palette():
        return rng.randint(0, 256, 3 << bits).astype(np.uint8).tobytes()
    out = version + struct.pack("<HHBBB", 50, 40, (0x80 if global_map else 0) | (bits - 1), 0, 0) + (palette() if global_map else b"")
    for v, left, top, transparent, own, interlaced in frames:
        if transparent is not None:
            out += b"\x21\xf9\x04" + bytes([1, 5, 0, transparent]) + b"\0"
        out += b"\x21\xfe\x05hello\0"
        out += b"," + struct.pack("<HHHHB", left, top, v.shape[1], v.shape[0], (0x80 if own else 0) | (0x40 if interlaced else 0) | (bits - 1))
        out += palette() if own else b""
        if interlaced:
            v = np.concatenate([v[0::8], v[4::8], v[2::4], v[1::2]])
        out += bytes([max(bits, 2)]) + lzw(v.reshape(-1).tolist(), max(bits, 2), reset)
    return out + b";"


def frame(rng, h, w, bits, left=0, top=0, transparent=None, own=False, interlaced=False):
    v = rng.randint(0, 2**bits, (h, w)) if rng.rand() < 0.5 else np.minimum((np.mgrid[:h, :w].sum(0) // 4) % 2**bits, 2**bits - 1)
    return v, left, top, transparent, own, interlaced


def gifs(rng):
    for bits in (1, 2, 3, 5, 8):
        yield gif(rng, [frame(rng, 12, 9, bits)], bits)
        yield gif(rng, [frame(rng, 12, 9, bits, interlaced=True, own=True)], bits, global_map=False)
        yield gif(rng, [frame(rng, 90, 70, bits)], bits, reset=int(rng.choice([4096, 600])))
        yield gif(rng, [frame(rng, 8, 10, bits), frame(rng, 4, 5, bits, 2, 3, transparent=1), frame(rng, 6, 3, bits, 8, 5, own=True),
                        frame(rng, 8, 10, bits, transparent=0, interlaced=True)], bits)
        yield gif(rng, [frame(rng, 3, 4, bits, 1, 1, transparent=1), frame(rng, 7, 2, bits), frame(rng, 2, 9, bits, 60, 60)], bits, version=b"GIF87a")


def cases_gif(rng, quick):
    for f in gifs(rng):
        for op in ("DecodeGif", "DecodeJpeg", "DecodePng", "DecodeBmp"):
            yield C(op, [s(f)])
        yield C("DecodePng", [s(f)], dtype=tf.uint16, channels=3)
        yield C("DecodeAndCropJpeg", [s(f), i32(0, 0, 1, 1)])
        for expand in (False, True):
            for t in (tf.uint8, tf.uint16, tf.float32):
                for channels in (0, 1, 3, 4):
                    yield C("DecodeImage", [s(f)], expand_animations=expand, dtype=t, channels=channels)
    no_map = gif(rng, [frame(rng, 3, 4, 3)], 3, global_map=False)
    yield C("DecodeGif", [s(no_map)])
    few = gif(rng, [frame(rng, 8, 9, 3)], 3)
    few = few[:10] + bytes([0x80]) + few[11:13] + few[13:19] + few[13 + 24:]  # two colours, pixels up to 7
    yield C("DecodeGif", [s(few)])
    for f in (gif(rng, []), gif(rng, [])[:-1], b"GIF89a", b"GIF89a" + b"\0" * 6):
        yield C("DecodeGif", [s(f)])


def cases_gif_broken(rng, quick):
    """Wherever it breaks off, the frames before are there."""
    f = gif(rng, [frame(rng, 8, 10, 3), frame(rng, 4, 5, 3, 2, 3, transparent=1), frame(rng, 8, 10, 3, own=True, interlaced=True)], 3)
    for cut in range(6, len(f), 3 if quick else 1):
        yield C("DecodeGif", [s(f[:cut])])
    for f in list(gifs(rng))[3::5]:
        for b in broken(rng, f[:-1], 40 if quick else 200, 13 + 3 * 8):
            yield C("DecodeGif", [s(b + b";")])


# ---- BMP -------------------------------------------------------------------------------------------------------------------------

def bmp(x, top_down=False, start=54, pad=b""):
    h, w, c = x.shape
    body = b""
    for row in (x if top_down else x[::-1]):
        r = (row[:, ::-1] if c == 3 else row[:, [2, 1, 0, 3]] if c == 4 else row).tobytes()
        body += r + b"\0" * (-len(r) % 4)
    head = b"BM" + struct.pack("<IHHI", start + len(body), 0, 0, start) + struct.pack("<IiiHHIIiiII", 40, w, -h if top_down else h, 1, c * 8, 0, len(body), 0, 0, 0, 0)
    return head + b"\0" * (start - len(head)) + body + pad


def cases_bmp(rng, quick):
    for h, w in ((1, 1), (3, 5), (7, 4), (2, 3)):
        for c in (1, 3, 4):
            for top_down in (False, True):
                f = bmp(picture(rng, h, w, c), top_down, start=int(rng.choice([54, 70])))
                for channels in (0, 1, 3, 4):
                    yield C("DecodeBmp", [s(f)], channels=channels)
                    for t in (tf.uint8, tf.uint16, tf.float32):
                        if t == tf.uint8 or not top_down:  # there TensorFlow asks for less than no memory
                            yield C("DecodeImage", [s(f)], channels=channels, dtype=t)
                yield C("DecodeJpeg", [s(f)])
                yield C("DecodePng", [s(f)])
                yield C("DecodeGif", [s(f)])
                yield C("DecodeAndCropJpeg", [s(f), i32(0, 0, 1, 1)])
    f = bmp(picture(rng, 3, 5, 3))
    for cut in (2, 20, 31, 32, 54, len(f) - 1):
        yield C("DecodeBmp", [s(f[:cut])])
    yield C("DecodeBmp", [s(f + b"\0")])
    for at, fmt, values in ((10, "<i", (-1, 53, 2**31 - 1)), (18, "<i", (0, -1, 2**31 - 1, 6)), (22, "<i", (0, -2**31, 2**31 - 1, 4)), (28, "<h", (0, 16, -8, 64, 1, 25))):
        for v in values:
            b = bytearray(f)
            b[at:at + struct.calcsize(fmt)] = struct.pack(fmt, v)
            yield C("DecodeBmp", [s(bytes(b))])
